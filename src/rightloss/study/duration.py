"""How long a study will take, before it is run: a few steps of one group of each data set stand for all.

Stage: groups, work, number of workers → seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, median

from .config import OF_TABLES, Group
from .engines import Work, one_thread

_STEPS, _VIEWS = 4, 3  # of a probe: the last step also scores the validation part


def estimate_seconds(groups: Sequence[Group], work: Work, workers: int) -> float | None:
    """Estimate how long these groups take, `workers` of them at once, without the posteriors of `OF_TABLES`.

    Returns:
        The seconds; None if `work` does not report its steps, as on several devices, or if there are posteriors alone.
    """
    trained = [replace(each, runs=tuple(run for run in each.runs if run.inference not in OF_TABLES)) for each in groups]
    spent = [_seconds(group, work) for group in {each.source: each for each in trained if each.runs}.values()]
    found = [each for each in spent if each is not None]
    return fmean(found) * math.ceil(len(groups) / workers) if found else None


def _seconds(group: Group, work: Work) -> float | None:
    """Train a group for a few steps with its first step size and three views; return what that makes of the whole group."""
    training, stamps = group.runs[0].training, list[float]()
    few = replace(training, steps=_STEPS, checkpoints=1, views=_VIEWS, learning_rates=training.learning_rates[:1])
    with one_thread():
        work(
            replace(group, runs=tuple(replace(run, training=few) for run in group.runs)),
            lambda share: stamps.append(time.monotonic()),
        )
    if len(stamps) < _STEPS:
        return None
    *steps, last = (after - before for before, after in pairwise(stamps))
    step = median(steps)
    looks = (training.checkpoints + 1) * max(0.0, last - step)
    return (step * training.steps * training.views / _VIEWS + looks) * len(training.learning_rates)
