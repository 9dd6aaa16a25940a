"""Predictions, labels → every figure at a prevalence, with an interval.

Stage: log_probs, target, prevalence → `Sample` → `State` → values, and their spread by one of two ways → `Evaluation`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Integral
from typing import Any

from torch import Tensor

from ..inference.steps import checked_level
from ..rng import own_stream
from .bounds import Ends, bounds
from .decisions import cost_matrix
from .evaluation import Evaluation, Figure
from .figures import FIGURES
from .problem import Key, Problem, make_problem
from .sample import IGNORED, labelled_sample

_MOST_RESAMPLED = 50_000  # entries × classes up to which "auto" draws resamples; beyond, the two ways agree and one is instant


def evaluate(
    log_probs: Any,
    target: Any,
    prevalence: Any,
    *,
    costs: Any = None,
    threshold: Any = None,
    groups: Any = None,
    intervals: str | None = "auto",
    level: Any = 0.95,
    draws: Any = 1000,
    bins: Any = 15,
    generator: Any = None,
    ignore_index: int = IGNORED,
) -> Evaluation:
    """How good predictions are where the classes come as `prevalence` says, whatever their mix among the labels.

    Everything is averaged within each class, and the classes are weighted by π. Predictions are taken as they are: made for
    another prevalence, they must be moved to this one first (`retarget`), or they will look miscalibrated, as they are.

    An uncertain prevalence (`Prevalence.beta`, `.dirichlet`) is carried along: the value is that at the mean of π, and the
    interval covers what is not known of π as well as the sample's own noise. An estimate (`estimate_prevalence`) counts as the
    uncertain `Prevalence` that its `prevalence()` gives: the Dirichlet with its mean and uncertainty.

    Args:
        log_probs: predictions `(n, k)`, or dense maps `(n, k, h, w, …)`, of which each cell is an example; log-probabilities.
        target: int labels `(n,)` or `(n, h, w, …)`, for two classes also bools; or soft votes of the predictions' shape, which
            sum to 1 over the classes: then an example counts for each class by its share of the votes.
        prevalence: a `Prevalence`, an estimate of one, K frequencies, or for two classes that of class 1.
        costs: what decision d costs where class c is true, `(k, k)`; decisions are those of least expected cost. None means
            1 for every mistake, and so the likeliest class.
        threshold: for two classes, in the place of `costs`: decide 1 from this probability on.
        groups: ids of patients (or sites) `(n,)`: examples that share one are drawn together. For dense maps they are the
            images' patients; without them each image is drawn as a whole, since its cells resemble each other.
        intervals: "bootstrap": stratified by class, BCa. "analytic": the delta method, for large samples; DeLong's for AUC.
            Figures of decisions alone are made from draws of each class's shares in both, unless there are groups or votes.
            "auto": the first up to 50,000 examples × classes, then the second. None: no intervals.
        level: their coverage.
        draws: how many resamples.
        bins: of equal weight in the population, for the calibration error.
        generator: source of the resamples; by default one with a fixed seed, so that equal input gives equal output.
        ignore_index: the int label of examples that are left out.
    """
    sample = labelled_sample(log_probs, target, prevalence, groups, ignore_index)
    costs = _square(cost_matrix(sample.num_classes, costs, threshold))
    level, stream = checked_level(level), own_stream(generator)
    _check_options(intervals, draws, bins)
    problem = make_problem(sample, costs, int(bins))
    how = _method(intervals, problem)
    ends: dict[Key, Ends] = {}
    if how != "none":
        ends = bounds(problem, how == "bootstrap", level, int(draws), stream)
    return Evaluation(
        **{name: _figure(problem, ends, name) for name in FIGURES},
        level=level,
        intervals=how,
        num_examples=tuple(sample.totals.tolist()),
        population=tuple(sample.prevalence.population.tolist()),
    )


def _figure(problem: Problem, ends: dict[Key, Ends], name: str) -> Figure:
    by_class = None
    if (name, 0) in problem.quantities:
        by_class = tuple(_one(problem, ends, (name, j)) for j in range(problem.sample.num_classes))
    return replace(_one(problem, ends, (name, None)), by_class=by_class)


def _one(problem: Problem, ends: dict[Key, Ends], key: Key) -> Figure:
    if key not in problem.quantities:
        return Figure(math.nan, reason=problem.reasons[key[0]])
    value = problem.values[key]
    if key[0] in ("expected_log_likelihood", "skill") and problem.impossible:
        return Figure(-math.inf, reason=f"{problem.impossible} example(s) were given probability 0")
    if key not in ends:
        return Figure(value)
    low, high, reason = ends[key]
    return Figure(value, low if math.isnan(low) else min(low, value), high if math.isnan(high) else max(high, value), reason)


def _method(intervals: str | None, problem: Problem) -> str:
    if intervals != "auto":
        return "none" if intervals is None else intervals
    recipe, sample = problem.state.averages.recipe, problem.sample
    small = max(len(sample.labels), recipe.size) * sample.num_classes <= _MOST_RESAMPLED
    return "bootstrap" if small else "analytic"


def _square(costs: Tensor) -> Tensor:
    if costs.shape[0] != costs.shape[1]:
        raise ValueError(
            f"Expected `costs` with a decision per class to evaluate, but got shape {tuple(costs.shape)}: "
            "with other decisions than classes use `decide` and `expected_cost`."
        )
    return costs


def _check_options(intervals: Any, draws: Any, bins: Any) -> None:
    if intervals not in ("auto", "bootstrap", "analytic", None):
        raise ValueError(f'Expected `intervals` "auto", "bootstrap", "analytic" or None, but got {intervals!r}: choose one.')
    for name, value, least in (("draws", draws, 100), ("bins", bins, 1)):
        if not isinstance(value, Integral) or value < least:
            raise ValueError(f"Expected `{name}` to be an int of at least {least}, but got {value!r}: leave it out?")
