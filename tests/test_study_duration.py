"""The estimate against work whose length is known: it moves the clock itself."""

from __future__ import annotations

import dataclasses
import math
import time

import pytest

from rightloss.study.config import OF_TABLES, PRESETS, Group, Source, StudyConfig, Training
from rightloss.study.duration import Duration, estimate_duration, makespan
from rightloss.study.engines import Report
from rightloss.study.methods import ADJUSTED_LABELLED
from rightloss.study.results import RunResult

START = 6.0  # seconds that a process takes to import everything, as the estimate has it
LOAD, HELD, SHARED, STEP, LOOK, FIT, FIT_STEP = 4.0, 0.1, 0.05, 0.02, 0.03, 0.4, 0.003
DRAWN, LEARNT = 0.04, 0.015  # more for each population of unlabelled patients, and for each net that learns from them


class Worker:
    """Trains nothing, but takes its time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.loaded = 0.0, set[str]()
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def __call__(self, group: Group, report: Report) -> list[RunResult]:
        if group.source.name not in self.loaded:
            self.loaded.add(group.source.name)
            self.now += LOAD
        training = group.runs[0].training
        posteriors = sum(run.inference in OF_TABLES for run in group.runs)
        if posteriors < len(group.runs):
            learning = [run for run in group.runs if run.learns_from_unlabelled]
            more = DRAWN * len({run.population for run in learning}) + LEARNT * len(learning) * len(training.learning_rates)
            self._train(training, (len(group.runs) - posteriors) * len(training.learning_rates), more, report)
        self.now += posteriors * len(training.prior_scales) * (FIT + FIT_STEP * training.steps)
        return []

    def _train(self, training: Training, nets: int, more: float, report: Report) -> None:
        self.now += HELD * training.test_views
        for step in range(1, training.steps + 1):
            self.now += (SHARED + STEP * nets + more) * training.views
            if step * training.checkpoints % training.steps == 0:
                self.now += LOOK * nets * training.test_views
            report(step / training.steps)
        self.now += HELD * training.test_views + LOOK * nets * training.test_views

    def seconds(self, groups: list[Group]) -> list[float]:
        """What each takes once the data are there."""
        spent = []
        for group in groups:
            before = self.now
            self(group, lambda share: None)
            spent.append(self.now - before)
        return spent


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(monkeypatch)


QUICK = PRESETS["quick"]
TWO_SOURCES = dataclasses.replace(QUICK, sources=(Source("contours"), Source("slices", "digest", "slices.npz")))
CASES = {
    "quick": QUICK,
    "one run a group": dataclasses.replace(QUICK, losses=("weighted",), populations=(0.3,)),
    "several kinds": dataclasses.replace(QUICK, nets=("convnet", "inception"), inferences=("map", "mc-dropout")),
    "the paper's nets": PRESETS["table1"],
    "posteriors": PRESETS["features"],
    "two sources": TWO_SOURCES,
    "unlabelled patients": dataclasses.replace(
        QUICK, losses=("information-gain", "published", "weighted", ADJUSTED_LABELLED), unlabelled=0.8
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_a_few_steps_predict_the_time_of_all(name: str, workers: int, worker: Worker) -> None:
    config: StudyConfig = CASES[name]
    found = estimate_duration(config.groups(), worker, workers, seconds=100.0)
    lengths = worker.seconds(config.groups())
    whole = START + LOAD * len(config.sources) + makespan(lengths, workers)
    assert found is not None
    assert found.low < whole < found.high
    assert (found.low / 0.8, found.high / 1.3) == pytest.approx((whole, whole), rel=0.1)


@pytest.mark.parametrize("name", ["quick", "the paper's nets", "posteriors"])
def test_the_estimate_takes_seconds(name: str, worker: Worker) -> None:
    estimate_duration(CASES[name].groups(), worker, 2)
    assert worker.now < 20


def test_an_estimate_without_time_to_measure_everything_is_near(worker: Worker) -> None:
    hurried = estimate_duration(TWO_SOURCES.groups(), worker, 2, seconds=0.0)
    assert worker.loaded == {"contours"}
    calm = estimate_duration(TWO_SOURCES.groups(), worker, 2, seconds=100.0)
    assert hurried is not None
    assert calm is not None
    assert 0.5 * calm.low < hurried.low < 2 * calm.low


def test_only_what_is_missing_counts(worker: Worker) -> None:
    groups = QUICK.groups()
    all_of_it, half = estimate_duration(groups, worker, 1), estimate_duration(groups[:2], worker, 1)
    few_runs = estimate_duration([dataclasses.replace(group, runs=group.runs[:1]) for group in groups], worker, 1)
    assert all_of_it is not None
    assert half is not None
    assert few_runs is not None
    assert 0.4 * all_of_it.low < half.low < 0.6 * all_of_it.low
    assert few_runs.low < 0.5 * all_of_it.low
    assert estimate_duration([], worker, 1) == Duration(0.0, 0.0)


def test_work_that_does_not_report_its_steps_is_not_estimated() -> None:
    def silent(group: Group, report: Report) -> list[RunResult]:
        return []

    assert estimate_duration(QUICK.groups(), silent, 1) is None


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_the_makespan_is_what_workers_that_take_turns_need(workers: int) -> None:
    lengths = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]
    ends: list[float] = []
    for length in lengths:  # each begins when fewer than `workers` are under way
        ends.append((sorted(ends)[-workers] if len(ends) >= workers else 0.0) + length)
    assert makespan(lengths, workers) == max(ends)
    assert makespan([1.0] * 5, workers) == math.ceil(5 / workers)


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.3, 1.2, "a second or two"),
        (8.0, 12.6, "about 8 to 13 seconds"),
        (1190.0, 1830.0, "about 20 to 30 minutes"),
        (9000.0, 14600.0, "about 2.5 to 4.1 hours"),
        (200_000.0, 340_000.0, "about 2.3 to 3.9 days"),
        (300.0, 301.0, "about 5 minutes"),
    ],
)
def test_a_duration_reads_like_one(low: float, high: float, words: str) -> None:
    assert str(Duration(low, high)) == words
