"""Work for a study's engines: cheap stand-ins for training, imported by the processes that do it. Not a test module.

As a script, `study_work.py ARCHIVE OUT LOG` runs a study of them in another process, for tests to kill.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from study_results import fake_result
from threadpoolctl import threadpool_info

from rightloss.lidc import write_archive
from rightloss.lidc.splits import fold_numbers
from rightloss.study.config import Group, RunConfig, Source, StudyConfig
from rightloss.study.datasets import source_of
from rightloss.study.engines import Processes, Report
from rightloss.study.execute import run_study
from rightloss.study.results import RunResult

NODULES = 60
ILL = np.arange(NODULES) // 2 % 3 == 0
PATIENTS = [f"P{row // 2:02d}" for row in range(NODULES)]


class Unspeakable(Exception):
    """Cannot be pickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def small_source(folder: Path) -> Source:
    """A nodule archive of slices, two nodules a patient, and every third of the patients ill."""
    path = folder / "slices.npz"
    patches = np.where(ILL, 100, -500)[:, None, None] + np.zeros((1, 16, 16))
    ratings = np.where(ILL, 5, 1)[:, None] * np.ones((1, 3), int)
    write_archive(path, patches.astype(np.int16), ratings, PATIENTS, 1.0)
    return source_of(str(path))


def small_study(source: Source, folds: int = 4) -> StudyConfig:
    """A group for each fold, of two runs."""
    return StudyConfig("quick", sources=(source,), losses=("information-gain", "weighted"), populations=(0.3,), folds=folds)


def fake(group: Group, report: Report, log: Path | None = None, pause: float = 0.0) -> list[RunResult]:
    """Made-up results after `pause` seconds; a line in `log` with the process, the number of runs, and the fold."""
    threads = [torch.get_num_threads(), *(each["num_threads"] for each in threadpool_info())]
    assert set(threads) == {1}, f"{threads} threads"
    if log is not None:
        with open(log, "a") as file:
            file.write(f"{os.getpid()} {len(group.runs)} {group.runs[0].fold}\n")
    for step in range(5):
        report(step / 5)
        time.sleep(pause / 5)
    return [small_result(run) for run in group.runs]


def small_result(run: RunConfig) -> RunResult:
    """Made up, for the rows that the run's fold of `small_source` tests."""
    return fake_result(run, NODULES, np.flatnonzero(fold_numbers(ILL, PATIENTS, run.num_folds).numpy() == run.fold))


def deadly(group: Group, report: Report, log: Path, times: int) -> list[RunResult]:
    """As `fake`; but in the group of fold 1 the process is killed the first `times`, as by a system short of memory."""
    results = fake(group, report, log)
    if sum(line.endswith(" 1") for line in log.read_text().splitlines()) <= times and group.runs[0].fold == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return results


def refused(group: Group, report: Report, log: Path) -> list[RunResult]:
    fake(group, report, log)
    raise ValueError(f"Expected better data, but got {group.label}: choose others.")


def exits(group: Group, report: Report) -> list[RunResult]:
    sys.exit("no licence")


def unspeakable(group: Group, report: Report) -> list[RunResult]:
    raise Unspeakable("this", "that")


def not_numbers(group: Group, report: Report) -> list[RunResult]:
    results = fake(group, report)
    results[-1].log_probs[3] = np.nan
    return results


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def processes_of(log: Path) -> list[int]:
    """Those that wrote to the log of `fake`."""
    return [int(line.split()[0]) for line in log.read_text().splitlines()]


if __name__ == "__main__":
    import study_work  # under the name by which the processes find it

    signal.signal(signal.SIGINT, signal.default_int_handler)  # which the parent may have switched off
    archive, out, log = sys.argv[1:]
    run_study(
        small_study(source_of(archive), folds=8),
        Path(out),
        Processes(1),
        work=partial(study_work.fake, log=Path(log), pause=0.5),
    )
