"""The estimate against work whose length is known: it moves the clock itself."""

from __future__ import annotations

import dataclasses
import math
import time

import pytest

from rightloss.cli.dry_run import estimate_seconds, lasting
from rightloss.study.config import PRESETS, Group, Source, StudyConfig
from rightloss.study.engines import Report
from rightloss.study.results import RunResult

STEP, LOOK = 0.05, 0.03
QUICK = PRESETS["quick"]
TWO_SOURCES = dataclasses.replace(QUICK, sources=(Source("contours"), Source("slices", "digest", "slices.npz")))


class Worker:
    """Trains nothing, but takes its time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def __call__(self, group: Group, report: Report) -> list[RunResult]:
        training = group.runs[0].training
        nets = len(group.runs) * len(training.learning_rates)
        for step in range(1, training.steps + 1):
            self.now += STEP * nets * training.views
            if step * training.checkpoints % training.steps == 0:
                self.now += LOOK * nets * training.test_views
            report(step / training.steps)
        self.now += LOOK * nets * training.test_views
        return []


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(monkeypatch)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("config", [QUICK, PRESETS["table1"], TWO_SOURCES], ids=["quick", "the paper's nets", "two sources"])
def test_a_few_steps_predict_the_time_of_all(config: StudyConfig, workers: int, worker: Worker) -> None:
    groups = config.groups()
    found = estimate_seconds(groups, worker, workers)
    assert worker.now < 200
    before = worker.now
    worker(groups[0], lambda share: None)
    assert found == pytest.approx((worker.now - before) * math.ceil(len(groups) / workers))


def test_posteriors_are_not_counted(worker: Worker) -> None:
    both = dataclasses.replace(PRESETS["features"], inferences=("map", "laplace"))
    alone = dataclasses.replace(both, inferences=("map",))
    assert estimate_seconds(both.groups(), worker, 2) == pytest.approx(estimate_seconds(alone.groups(), worker, 2))
    assert estimate_seconds(dataclasses.replace(both, inferences=("laplace",)).groups(), worker, 2) is None


def test_work_that_does_not_report_its_steps_is_not_estimated() -> None:
    assert estimate_seconds(QUICK.groups(), lambda group, report: [], 1) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.3, "a second or two"), (12.6, "about 13 seconds"), (1500.0, "about 25 minutes"), (2.6e5, "about 3 days")],
)
def test_a_duration_reads_like_one(seconds: float, words: str) -> None:
    assert lasting(seconds) == words
