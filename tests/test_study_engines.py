"""Engines: what comes back is the same wherever groups are run, and what is left when processes die or work fails."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import resource_tracker, spawn
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import study_work
import torch
from members import assert_refused
from study_work import processes_of, small_result, small_study
from worker_jobs import is_running

from rightloss.study.config import Group, Source
from rightloss.study.engines import Engine, InProcess, OnRay, Processes, Work, attempt

GROUPS = small_study(Source("slices")).groups()


def silent(number: int, share: float) -> None: ...


def run(engine: Engine, work: Work, groups: list[Group] = GROUPS, report: Callable[[int, float], None] = silent) -> Any:
    return dict(engine.run(work, groups, report))


def assert_gone(processes: list[int]) -> None:
    deadline = time.monotonic() + 10
    while any(map(is_running, processes)):
        assert time.monotonic() < deadline, "a process is left"
        time.sleep(0.02)


@pytest.mark.long
@pytest.mark.parametrize("engine", [InProcess(), Processes(2)], ids=["in-process", "processes"])
def test_every_group_comes_back_once_as_the_work_made_it_and_an_error_as_it_is(engine: Engine, tmp_path: Path) -> None:
    told: dict[int, list[float]] = {}
    torch.set_num_threads(2)  # the work asserts that it has one
    try:
        found = run(engine, partial(study_work.fake, pause=0.3), GROUPS, lambda n, share: told.setdefault(n, []).append(share))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert sorted(found) == [0, 1, 2, 3]
    for number, group in enumerate(GROUPS):
        assert [result.config for result in found[number]] == list(group.runs)
        for result in found[number]:
            np.testing.assert_array_equal(result.log_probs, small_result(result.config).log_probs)
        assert told[number] == sorted(told[number])
        assert 0 <= told[number][0] < told[number][-1] <= 1
    work = partial(study_work.refused, log=tmp_path / "log")
    assert_refused(lambda: run(engine, work, GROUPS[:1]), r"^Expected better data, but got slices, fold 1")
    assert len(processes_of(tmp_path / "log")) == 1, "it is not tried again"


def test_an_error_that_cannot_be_pickled_and_an_exit_become_errors_that_can() -> None:
    found = pickle.loads(pickle.dumps(attempt(study_work.unspeakable, GROUPS[0], lambda share: None)))
    assert (type(found), str(found)) == (RuntimeError, "Unspeakable: this and that")
    assert "in unspeakable" in found.__notes__[0]
    found = attempt(study_work.exits, GROUPS[0], lambda share: None)
    assert (type(found), str(found)) == (RuntimeError, "SystemExit: no licence")


@pytest.mark.long
def test_a_group_whose_process_is_killed_is_run_again_and_given_up_by_name_if_it_always_is(tmp_path: Path) -> None:
    once, always = tmp_path / "once", tmp_path / "always"
    assert sorted(run(Processes(1), partial(study_work.deadly, log=once, times=1), GROUPS[:3])) == [0, 1, 2]
    assert sorted(line.split()[2] for line in once.read_text().splitlines()) == ["0", "1", "1", "2"]
    assert len(set(processes_of(once))) == 2
    words = r"result of slices, fold 2, seed 0: 2 runs, but .* 2 times .*SIGKILL.*: if mem"
    with pytest.raises(ChildProcessError, match=words):
        run(Processes(1, retries=1), partial(study_work.deadly, log=always, times=9), GROUPS[1:])
    assert_gone([*processes_of(once), *processes_of(always)])


@pytest.mark.long
def test_closing_it_ends_the_processes_in_the_middle_of_their_groups(tmp_path: Path) -> None:
    log = tmp_path / "log"
    results = Processes(2).run(partial(study_work.fake, log=log, pause=1.0), [*GROUPS, *GROUPS], silent)
    next(results)
    started = time.monotonic()
    results.close()
    assert time.monotonic() - started < 1
    assert not any(map(is_running, processes_of(log)))
    assert len(processes_of(log)) < 8


@pytest.mark.long
def test_work_that_other_processes_cannot_import_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_refused(lambda: run(Processes(1), lambda group, report: []), "work that other processes can import")

    def of_a_script(group: Group, report: Any) -> list[Any]:
        return []

    of_a_script.__module__, of_a_script.__qualname__ = "__main__", "of_a_script"
    monkeypatch.setattr(sys.modules["__main__"], "of_a_script", of_a_script, raising=False)
    assert_refused(lambda: run(Processes(1), of_a_script), "work that other processes can import.*'of_a_script'")


def test_processes_that_do_not_start_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    resource_tracker.ensure_running()  # it is started with the same interpreter
    monkeypatch.setattr(spawn, "_python_exe", b"/nowhere/python")
    with pytest.raises(ChildProcessError, match=r"processes to run groups in, but they could not be started \(.*\): if memory"):
        run(Processes(1), study_work.fake)


def test_engines_keep_the_contract_and_refuse_numbers_that_make_no_sense() -> None:
    for engine in (InProcess(), Processes(), OnRay()):
        assert isinstance(engine, Engine)
        assert run(engine, study_work.fake, []) == {}
    for make, words in (
        (lambda: Processes(0), "`workers` to be an int of at least 1"),
        (lambda: OnRay(retries=-1), "`retries` to be an int of at least 0"),
        (lambda: OnRay("auto", workers=2), "no number of workers for the cluster at auto"),
    ):
        assert_refused(make, words)
