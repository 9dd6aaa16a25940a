"""Processes that do jobs: what they answer, and what is left when they die, hang, or lose their parent."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from dicom_series import is_running, nodule_table, several_scans, write_all

from rightloss.lidc.ct import preparation as preparing
from rightloss.lidc.ct.preparation import prepare
from rightloss.lidc.ct.workers import Failure, Worker, run_jobs


def test_a_process_that_dies_or_hangs_costs_only_its_series_and_another_run_tries_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans, out = several_scans(4), tmp_path / "n.npz"
    write_all(tmp_path / "dicom", scans)
    table = nodule_table(scans)
    with monkeypatch.context() as patch:
        patch.setattr(preparing, "_MAKE_PART", "dicom_series:crash_in_one")
        prepared = prepare(tmp_path / "dicom", out, 1, 8, nodules=table, timeout=8.0)
    with np.load(out) as file:
        assert file["patient_id"].tolist() == ["P-00", "P-00", "P-02", "P-02"]
    reasons = {remark.series_uid: remark.text for remark in prepared.remarks}
    assert "SIGSEGV" in reasons[scans["P-01"].uid]
    assert reasons[scans["P-03"].uid] == "given up after 8 s"
    assert set(prepared.series_failed) == set(reasons)
    assert prepare(tmp_path / "dicom", out, 0, 8, nodules=table).nodules == 8


def test_results_and_errors_come_back_with_their_jobs_whatever_is_printed() -> None:
    jobs = [[], [1, 2], "unbalanced"]
    found = {json.dumps(job): result for job, result in run_jobs("dicom_series:noisy_sum", jobs, 1, 60.0)}
    assert found == {"[]": 0, "[1, 2]": 3, '"unbalanced"': Failure("no numbers in 'unbalanced'", "ValueError")}


def test_no_process_is_left_when_it_is_stopped() -> None:
    results = run_jobs("dicom_series:own_process", [0] * 8, 1, 60.0)
    pid = next(results)[1]
    results.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_one_that_died_while_idle_is_replaced_and_one_whose_parent_is_gone_ends_in_the_middle_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queue.py").write_text("raise SystemExit('what lies in the current folder is no module')")
    worker = Worker("dicom_series:own_process", 60.0)
    try:
        first = worker.run(0)
        assert worker.process is not None
        worker.process.kill()
        worker.process.wait()
        second = worker.run(0)
        assert isinstance(first, int)
        assert isinstance(second, int)
        assert first != second
        assert worker.process.stdin is not None
        worker.process.stdin.write("1000\n")
        worker.process.stdin.close()  # as when this process ends
        assert worker.process.wait(30) == 0
        assert not is_running(second)
    finally:
        worker.close()


def test_one_that_does_not_start_is_the_runs_error_and_no_jobs() -> None:
    with pytest.raises(ChildProcessError, match=r"could not be started .*No module named 'nowhere'"):
        list(run_jobs("nowhere:nothing", [1, 2], 1, 60.0))
