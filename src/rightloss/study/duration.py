"""Estimate the run time and disk space of a study before it is run.

Stage: groups, work, number of workers → `Duration`, from a few steps of a few runs; runs and sources → bytes.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from .config import IMAGE_NETS, OF_TABLES, Group, RunConfig, Source, Training
from .engines import Work
from .engines.contract import one_thread

RUN_SIZE = 24_000  # bytes: predictions for some hundred nodules, and how they were chosen
SOURCE_SIZE = 8_000_000  # bytes: small pictures of some thousand nodules
_START = 6.0  # seconds until a process has imported everything
# Steps of a probe: the first includes all that comes before it, the last scores the validation part, the others are plain.
_STEPS, _LONG_STEPS = 8, 3
_FEW, _MORE = 20, 60  # steps of an inference without checkpoints: the difference is what a step takes
_RANGE = (0.8, 1.3)  # processes that run at once slow each other down; the first steps may be slow, too


class Duration(NamedTuple):
    """A range of seconds.

    Examples:
        >>> print(Duration.around(400.0))
        about 5.3 to 8.7 minutes
    """

    low: float
    high: float

    @classmethod
    def around(cls, seconds: float) -> Duration:
        """Return the range for an estimate of `seconds`."""
        return cls(*(factor * seconds for factor in _RANGE))

    def __str__(self) -> str:
        for unit, seconds in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
            if self.high >= 2 * seconds:
                low, high = (_two_digits(each / seconds) for each in self)
                return f"about {high} {unit}s" if low == high else f"about {low} to {high} {unit}s"
        return "a second or two"


def estimate_duration(groups: Sequence[Group], work: Work, workers: int, seconds: float = 15.0) -> Duration | None:
    """Estimate how long these groups take, `workers` of them at once.

    A few runs of one group of each source are trained for a few steps; nothing is kept.

    Args:
        groups: what is left to do.
        work: trains a group.
        workers: how many at once.
        seconds: time limit after which no measurement is started.

    Returns:
        The estimate; None if `work` does not report its steps, as on several devices.
    """
    if not groups:
        return Duration(0.0, 0.0)
    until = time.monotonic() + seconds
    costs: dict[Source, _Cost] = {}
    for group in sorted({each.source: each for each in groups}.values(), key=lambda each: each.source.name):
        if costs and time.monotonic() > until:
            break
        cost = _measured(group, work, until)
        if cost is None:
            return None
        costs[group.source] = cost
    dearest = max(costs.values(), key=lambda cost: cost.of(groups[0]))
    lengths = [costs.get(group.source, dearest).of(group) for group in groups]
    total = _START + sum(cost.load for cost in costs.values()) + makespan(lengths, workers)
    return Duration.around(total)


def makespan(lengths: Iterable[float], workers: int) -> float:
    """Return the total time if each worker takes the next group as soon as it is free."""
    free = [0.0] * workers
    for length in lengths:
        heapq.heapreplace(free, free[0] + length)
    return max(free)


def disk_space(runs: int, sources: int) -> int:
    """Return an upper bound, in bytes, for this many results and data sets."""
    return RUN_SIZE * runs + SOURCE_SIZE * sources


def size_in_words(size: int) -> str:
    """Return bytes with two digits and a unit: 64 kB, 3.1 MB, 120 MB, 2.5 GB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            number = size / scale
            return f"{number:.1f} {unit}" if number < 10 else f"{number:.0f} {unit}"
    return f"{size} bytes"


@dataclass(frozen=True)
class _Cost:
    """Seconds that the groups of a source take: to load it once, and then for a group, shared and for each of its runs."""

    load: float
    shared: float
    by_run: float

    def of(self, group: Group) -> float:
        return self.shared + self.by_run * len(group.runs)


class _Split(NamedTuple):
    """Seconds that all runs share, and that each run adds."""

    shared: float
    by_run: float


class _Times(NamedTuple):
    """Seconds until the first step was done, of a step, and of scoring the validation part; None if time was short."""

    head: float
    step: float
    look: float | None


class _Enough(Exception):
    """Raised to end a probe with enough measurements."""


def _measured(group: Group, work: Work, until: float) -> _Cost | None:
    trained = [run for run in group.runs if run.inference not in OF_TABLES]
    others = [run for run in group.runs if run.inference in OF_TABLES]
    cost = _of_trained(replace(group, runs=tuple(trained)), work, until) if trained else _Cost(0.0, 0.0, 0.0)
    if cost is None or not others:
        return cost
    by_run = _of_posteriors(replace(group, runs=_of_each_kind(others, 1)), work, until)
    return _Cost(cost.load, cost.shared, (cost.by_run * len(trained) + by_run * len(others)) / len(group.runs))


def _of_trained(group: Group, work: Work, until: float) -> _Cost | None:
    """Measure one run of each kind, then two: the difference is what a run adds to what all share."""
    training = group.runs[0].training
    one, two = (_of_each_kind(group.runs, number) for number in (1, 2))
    first = _probe(replace(group, runs=one), work, until)
    if first is None:
        return None
    second = _probe(replace(group, runs=two), work, until) if len(two) > len(one) else None
    step = _split(len(one), first.step, len(two), None if second is None else second.step)
    look = _split(len(one), first.step if first.look is None else first.look, len(two), None if second is None else second.look)
    probe = _probing(training, group)
    steps = training.steps * training.views / probe.views
    held = training.test_views / probe.test_views
    looks = (training.checkpoints + 1) * held
    again = first if second is None else second  # the first has loaded the data, too
    return _Cost(
        load=max(0.0, first.head - again.head),
        shared=steps * step.shared + looks * look.shared + 2 * held * max(0.0, again.head - again.step),
        by_run=(steps * step.by_run + looks * look.by_run) * len(training.learning_rates),
    )


def _split(runs: int, before: float, more_runs: int, after: float | None) -> _Split:
    """Split two measurements into a shared part and a part per run; without a second, everything is per run."""
    if after is None:
        return _Split(0.0, before / runs)
    by_run = min(max(0.0, (after - before) / (more_runs - runs)), before / runs)
    return _Split(before - runs * by_run, by_run)


def _probe(group: Group, work: Work, until: float) -> _Times | None:
    """Time a few steps with one step size; return None if no steps are reported."""
    training = _probing(group.runs[0].training, group)
    tried = replace(group, runs=tuple(replace(run, training=training) for run in group.runs))
    stamps = [time.monotonic()]

    def report(share: float) -> None:
        stamps.append(time.monotonic())
        if len(stamps) > training.steps or (len(stamps) > 2 and stamps[-1] > until):
            raise _Enough

    with one_thread(), suppress(_Enough):
        work(tried, report)
    spans = [after - before for before, after in pairwise(stamps)]
    if len(spans) < 2:
        return None
    if len(spans) < training.steps:
        return _Times(spans[0], median(spans[1:]), None)
    step = median(spans[1:-1])
    return _Times(spans[0], step, max(0.0, spans[-1] - step))


def _probing(training: Training, group: Group) -> Training:
    """Return a training config of a few steps; the paper's nets, which are slow, get only three views."""
    few = replace(training, steps=_STEPS, checkpoints=1, learning_rates=training.learning_rates[:1])
    return replace(few, steps=_LONG_STEPS, views=3, test_views=3) if _is_long(training, group) else few


def _is_long(training: Training, group: Group) -> bool:
    return not training.small and any(run.net in (*IMAGE_NETS, "both") for run in group.runs)


def _of_posteriors(group: Group, work: Work, until: float) -> float:
    """Return the mean seconds per run, over as many runs of the group as time allows."""
    training = group.runs[0].training
    found: list[float] = []
    _whole(group, group.runs[0], work, _FEW)  # once for what is imported
    for run in group.runs:
        if not found or time.monotonic() < until:
            few, more = (_whole(group, run, work, steps) for steps in (_FEW, _MORE))
            found.append(few + max(0.0, more - few) / (_MORE - _FEW) * (training.steps - _FEW))
    return fmean(found) * len(training.prior_scales)


def _whole(group: Group, run: RunConfig, work: Work, steps: int) -> float:
    few = replace(run.training, steps=steps, checkpoints=1, prior_scales=run.training.prior_scales[:1])
    start = time.monotonic()
    with one_thread():
        work(replace(group, runs=(replace(run, training=few),)), lambda share: None)
    return time.monotonic() - start


def _of_each_kind(runs: Sequence[RunConfig], number: int) -> tuple[RunConfig, ...]:
    """Return up to `number` runs of each net, likelihood and inference, and with unlabelled patients of each population, with
    and without them: these are drawn for each population, and make its runs longer."""
    kinds: dict[tuple[object, ...], list[RunConfig]] = {}
    for run in runs:
        drawn = (run.population, run.learns_from_unlabelled) if run.unlabelled else ()
        kinds.setdefault((run.net, run.likelihood, run.inference, *drawn), []).append(run)
    return tuple(run for each in kinds.values() for run in each[:number])


def _two_digits(number: float) -> str:
    return f"{float(f'{number:.2g}'):g}"
