"""The plan of a study, for `--dry-run`.

Stage: `StudyConfig`, its missing groups, `Machine` → text on the terminal: the grid, the runs, the time, the space.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from ..study.config import OF_TABLES, Group, Source, StudyConfig
from ..study.engines import Work, one_thread
from ..study.execute import size_in_words
from ..study.methods import EVIDENCE, METHODS

if TYPE_CHECKING:
    from ..study.toy.study import ToyConfig
    from .study import Machine

_TASKS = {"binary": "benign or malignant", "rating": "malignancy from 1 to 5", "balanced": "benign or malignant, half of each"}
_SHOWN = 3  # runs at either end
_STEPS, _VIEWS = 4, 3  # of a probe: the last step also scores the validation part


def print_plan(
    config: StudyConfig, missing: list[Group], machine: Machine, out: Path | None, space: int, verbose: bool
) -> None:
    """Print the grid, the runs, and the time and space they take; runs a few steps, writes nothing."""
    for name, text in _grid(config):
        print(f"{name:13}{text}")
    print(f"\n{_counts(config, missing, out)}")
    print("\n".join(f"  {line}" for line in _shown([run.label for run in config.runs()], verbose)))
    print(f"\ntime         {_time(config, missing, machine)}")
    print(f"space        at most {size_in_words(space)}{_where(out)}")
    print("nothing was written")


def print_toy_plan(config: ToyConfig, verbose: bool) -> None:
    """Print the runs of the toy study and the time they take; runs a few, writes nothing."""
    from ..study.toy.biases import run_seed
    from ..study.toy.study import run

    runs, biases = config.runs(), config.biases
    first = [each for each in runs if each.problem.seed == 0 and each.problem.population == runs[0].problem.population]
    run(first[0])  # once for what is imported
    whole = len(runs) / len(first) * _seconds(lambda: [run(each) for each in first])
    whole += biases.seeds * _seconds(lambda: run_seed(biases, 0))
    labels = [*(each.label for each in runs), *(f"sampling biases, seed {seed}" for seed in range(biases.seeds))]
    print(f"{_number(len(labels), 'run')}, one after the other")
    print("\n".join(f"  {line}" for line in _shown(labels, verbose)))
    print(f"\ntime         {lasting(whole)}")
    print("nothing was written")


def words(value: Any) -> str:
    """Return a value of the grid as text."""
    if isinstance(value, tuple):
        return ", ".join(map(words, value))
    if isinstance(value, bool):
        return "small" if value else "full"
    if isinstance(value, Source):
        return value.name
    return "the data's own shares" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _seconds(work: Callable[[], Any]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def _grid(config: StudyConfig) -> Iterator[tuple[str, str]]:
    training = config.training
    yield "study", f"{config.preset}: {_TASKS[config.task]}"
    yield "data", words(config.sources)
    yield "nets", f"{words(config.nets)}, {words(training.small)}"
    yield "losses", "; ".join(METHODS[name].title for name in config.losses)
    yield "prevalences", words(config.populations)
    for name in ("likelihoods", "starts", "inferences", "minibatches"):
        yield name, words(getattr(config, name))
    if config.evidence != EVIDENCE:
        yield "evidence", words(config.evidence)
    if config.unlabelled:
        learn = "; ".join(METHODS[name].title for name in config.losses if METHODS[name].takes_unlabelled)
        weight = "" if config.unlabelled_weight is None else f", weight {config.unlabelled_weight:g}"
        share = f"{100 * config.unlabelled:g} % of the training patients{weight}"
        yield "unlabelled", f"{share}; learnt from by: {learn or 'no loss'}"
    yield "folds", f"{config.folds} of {config.num_folds}, split by patient"
    yield "seeds", words(config.seeds)
    yield (
        "training",
        f"{training.steps} steps of {training.batch_size} nodules with {training.views} views; {training.checkpoints} "
        f"checkpoints; initial step sizes {words(training.learning_rates)}",
    )


def _where(out: Path | None) -> str:
    from ..study.execute import nearest

    return "" if out is None else f" in {out}, where {size_in_words(shutil.disk_usage(nearest(out)).free)} are free"


def _counts(config: StudyConfig, missing: list[Group], out: Path | None) -> str:
    runs, left = len(config.runs()), sum(len(group.runs) for group in missing)
    text = f"{_number(runs, 'run')} in {_number(len(config.groups()), 'group')}; runs of a group are trained side by side"
    return text if left == runs else f"{text}; {runs - left} are done already in {out}"


def _shown(lines: list[str], verbose: bool) -> list[str]:
    if verbose or len(lines) <= 2 * _SHOWN + 1:
        return lines
    return [*lines[:_SHOWN], f"… and {len(lines) - 2 * _SHOWN} more (--verbose prints them) …", *lines[-_SHOWN:]]


def estimate_seconds(groups: Sequence[Group], work: Work, workers: int) -> float | None:
    """Estimate how long these groups take, `workers` of them at once, without the posteriors of `OF_TABLES`.

    Returns:
        The seconds; None if `work` does not report its steps, as on several devices, or if there are posteriors alone.
    """
    trained = [replace(each, runs=tuple(run for run in each.runs if run.inference not in OF_TABLES)) for each in groups]
    spent = [_spent(group, work) for group in {each.source: each for each in trained if each.runs}.values()]
    found = [each for each in spent if each is not None]
    return fmean(found) * math.ceil(len(groups) / workers) if found else None


def _spent(group: Group, work: Work) -> float | None:
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


def lasting(seconds: float) -> str:
    """Return a duration with its unit: "about 3 minutes"."""
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        if seconds >= 2 * length:
            return f"about {float(f'{seconds / length:.2g}'):g} {unit}s"
    return "a second or two"


def _time(config: StudyConfig, missing: list[Group], machine: Machine) -> str:
    if not missing:
        return "seconds: everything is done"
    found = estimate_seconds(missing, machine.work, machine.workers)
    others = [each for each in config.inferences if each in OF_TABLES]
    without = f", not counting {', '.join(others)}" if others else ""
    return f"{'not estimated' if found is None else lasting(found)} with {machine.words}{without}"


def _number(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
