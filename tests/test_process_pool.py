"""Jobs in other processes: results, and what is left when a process crashes, hangs, is interrupted or loses its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import dicom_series
import numpy as np
import pytest
from dicom_series import nodule_table, several_scans, write_all
from worker_jobs import is_running, noisy_sum

from rightloss.lidc.ct import preparation
from rightloss.lidc.ct.preparation import prepare
from rightloss.process_pool import Failure, run_jobs

# No `if __name__ == "__main__"`.
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import worker_jobs
from rightloss.process_pool import run_jobs
for job, found in run_jobs(worker_jobs.endless, [sys.argv[2]], 1, 100.0):
    print(found)
"""


def start_script(folder: Path) -> tuple[subprocess.Popen[str], int]:
    """A script in the middle of a job, in a process group of its own, and the process that it has started."""
    (folder / "script.py").write_text(SCRIPT)
    log = folder / "log"
    run = subprocess.Popen(
        [sys.executable, folder / "script.py", Path(__file__).parent, log],
        cwd=folder,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # the parent may have switched it off
        stderr=subprocess.PIPE,
        text=True,
    )
    while not log.exists() or not log.read_text():
        assert run.poll() is None
        time.sleep(0.02)
    return run, int(log.read_text())


def wait_until_gone(process: int) -> None:
    end = time.monotonic() + 30
    while is_running(process):
        assert time.monotonic() < end, "a process is left"
        time.sleep(0.02)


@pytest.mark.long
def test_a_process_that_crashes_or_hangs_costs_one_scan_and_another_run_tries_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans, out = several_scans(4), tmp_path / "n.npz"
    write_all(tmp_path / "dicom", scans)
    table = nodule_table(scans)
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "make_shard", dicom_series.crash_in_one)
        prepared = prepare(tmp_path / "dicom", out, 1, 8, nodules=table, timeout=2.0)
    with np.load(out) as file:
        assert file["patient_id"].tolist() == ["P-00", "P-00", "P-02", "P-02"]
    reasons = {remark.series_uid: remark.text for remark in prepared.remarks}
    assert "SIGSEGV" in reasons[scans["P-01"].uid]
    assert reasons[scans["P-03"].uid] == "given up after 2 s"
    assert set(prepared.series_failed) == set(reasons)
    assert prepare(tmp_path / "dicom", out, 0, 8, nodules=table).nodules == 8


@pytest.mark.long
def test_results_and_errors_come_back_with_their_jobs_and_no_process_is_left_after_a_stop(
    capfd: pytest.CaptureFixture[str],
) -> None:
    jobs: list[str | tuple[int, ...]] = [(), (1, 2), "unbalanced", "process", "long"]
    results = run_jobs(noisy_sum, jobs, 1, 60.0)
    found = dict(next(results) for _ in jobs[:-1])
    results.close()
    process = found.pop("process")
    assert found == {(): 0, (1, 2): 3, "unbalanced": Failure("no numbers in 'unbalanced'", "ValueError")}
    assert isinstance(process, int)
    assert not is_running(process)
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
def test_ctrl_c_in_the_middle_of_a_job_leaves_no_process_behind(tmp_path: Path) -> None:
    run, process = start_script(tmp_path)
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to all processes
    _, printed = run.communicate(timeout=60)
    wait_until_gone(process)
    assert run.returncode == -signal.SIGINT
    assert printed.count("Traceback") == 1, printed  # of the script alone
    assert "leaked" not in printed


@pytest.mark.long
def test_processes_that_do_not_start_are_the_runs_error_and_not_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiprocessing.spawn._python_exe", b"/nowhere/python")
    with pytest.raises(ChildProcessError, match="could not be started"):
        list(run_jobs(noisy_sum, ["process"], 1, 60.0))
