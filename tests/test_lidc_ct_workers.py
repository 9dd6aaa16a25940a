"""Jobs in other processes: results, and what is left when a process crashes, hangs, is interrupted or loses its parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import dicom_series
import numpy as np
import pytest
from dicom_series import nodule_table, several_scans, write_all
from worker_jobs import is_running, noisy_sum, own_process

from rightloss.lidc.ct import preparation
from rightloss.lidc.ct.preparation import prepare
from rightloss.lidc.ct.workers import Failure, Isolated, run_jobs

# No `if __name__ == "__main__"`, and a module in the current folder that hides one of Python's.
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import worker_jobs
from rightloss.lidc.ct.workers import run_jobs
for job, found in run_jobs(worker_jobs.nested, [sys.argv[2]], 1, 100.0):
    print(found)
"""


def start_script(folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A script in the middle of a job, in a process group of its own, and all processes that it has started."""
    (folder / "script.py").write_text(SCRIPT)
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "queue.py").write_text("raise SystemExit('a file in the current folder is no module')")
    log = folder / "log"
    run = subprocess.Popen(
        [sys.executable, "-P", folder / "script.py", Path(__file__).parent, log],
        cwd=folder / "elsewhere",
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # the parent may have switched it off
        stderr=subprocess.PIPE,
        text=True,
    )
    while not log.exists() or len(log.read_text().split()) < 2:
        assert run.poll() is None
        time.sleep(0.02)
    return run, [int(number) for number in log.read_text().split()]


def wait_until_gone(processes: list[int]) -> None:
    end = time.monotonic() + 30
    while any(map(is_running, processes)):
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
def test_an_isolated_function_outlives_a_crash_and_the_death_of_its_idle_process() -> None:
    call = Isolated(own_process, 60.0)
    try:
        assert call(-1.0) == Failure("the process that read it died (SIGSEGV)", "SIGSEGV", True)
        first = call(0.0)
        assert isinstance(first, int)
        os.kill(first, signal.SIGKILL)
        wait_until_gone([first])
        second = call(0.0)
        assert isinstance(second, int)
        assert second not in (first, os.getpid())
        assert is_running(second)
    finally:
        call.close()
    assert not is_running(second)


@pytest.mark.long
def test_an_isolated_function_can_be_called_in_a_daemonic_process_such_as_a_data_loaders() -> None:
    processes = multiprocessing.get_context("fork")
    queue = processes.SimpleQueue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fork where there are threads
        loader = processes.Process(target=lambda: queue.put(Isolated(own_process, 60.0)(0.0)), daemon=True)
        loader.start()
    found = queue.get()
    loader.join(30)
    assert isinstance(found, int)
    assert found not in (loader.pid, os.getpid())
    assert (loader.exitcode, is_running(found)) == (0, False)


@pytest.mark.long
def test_ctrl_c_in_the_middle_of_a_job_leaves_no_process_behind(tmp_path: Path) -> None:
    run, processes = start_script(tmp_path)
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to all processes
    _, printed = run.communicate(timeout=60)
    wait_until_gone(processes)
    assert run.returncode == -signal.SIGINT
    assert printed.count("Traceback") == 1, printed  # of the script alone
    assert "leaked" not in printed


@pytest.mark.long
def test_processes_that_do_not_start_are_the_runs_error_and_not_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiprocessing.spawn._python_exe", b"/nowhere/python")
    with pytest.raises(ChildProcessError, match="could not be started"):
        list(run_jobs(own_process, [0.0, 0.0], 1, 60.0))
