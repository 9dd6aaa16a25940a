"""Confidence limits of every figure of a model, or of the differences between two models.

Stage: `EvaluationInputs` of one or two models → resamples, or the delta method; draws of the decisions → limits by figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays import random_generator
from .class_statistics import Statistics, blocks, compute_statistics
from .decisions import best_decisions
from .evaluation_inputs import EvaluationInputs, Key, influences
from .figures import ANY, FIGURES, calibration_gaps
from .intervals import (
    ConfidenceLimits,
    Influence,
    bca,
    bca_weighted,
    calibration_interval,
    delta_draws,
    normal_interval,
    percentiles,
    resamples,
    unseen_share,
)

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

_MOST_UNDEFINED = 0.05  # largest fraction of undefined resamples for which a figure still has an interval
_MOST_DRAWN = 1 << 23  # numbers in the table of drawn decisions
_FEWEST_GROUPS, _FEW_EXAMPLES, _SMALL_EFFECTIVE_SIZE = 5, 10, 5.0
_ROUNDING = 1e-13  # relative to the figures: a smaller difference counts as 0


@dataclass(frozen=True)
class Contrast:
    """The quantities of one model, or their differences between two models, for the same rows."""

    models: tuple[EvaluationInputs, ...]

    @property
    def first(self) -> EvaluationInputs:
        return self.models[0]

    @property
    def is_difference(self) -> bool:
        return len(self.models) > 1

    @property
    def keys(self) -> list[Key]:
        """The quantities that all models have."""
        return [key for key in self.first.quantities if all(key in model.quantities for model in self.models)]

    def value(self, key: Key) -> float:
        """Return a quantity, or the difference."""
        return float(_subtracted([np.array(model.values[key]) for model in self.models]))

    def computed(self, statistics: Sequence[Statistics], width: int) -> Float64[np.ndarray, "f b"]:
        """Compute all quantities in each of `width` resamples."""
        pairs = list(zip(self.models, statistics, strict=True))
        rows = [[np.broadcast_to(m.quantities[key].compute(s), width) for m, s in pairs] for key in self.keys]
        return np.stack([_subtracted(row) for row in rows])


def _subtracted(values: Sequence[np.ndarray]) -> np.ndarray:
    """Return the first of the values minus the second, if there is one; 0 if they are equal up to rounding."""
    if len(values) == 1:
        return values[0]
    a, b = values
    with np.errstate(invalid="ignore"):
        difference = a - b
        same = (np.abs(difference) <= _ROUNDING * (np.abs(a) + np.abs(b))) & np.isfinite(difference)
        return np.where(same, 0.0, difference)


@np.errstate(all="ignore")  # a resample may lack what a figure divides by
def confidence_limits(of: Contrast, bootstrap: bool, level: float, draws: int, generator: Any) -> dict[Key, ConfidenceLimits]:
    """Return the interval of each quantity: for decisions from drawn counts, for others by bootstrap or delta method."""
    sample, design, k = of.first.sample, of.first.design, of.first.sample.num_classes
    generator, (added, classes) = random_generator(generator), influences(of.models, of.keys)
    make = _by_resampling if bootstrap else _by_delta_method
    limits = make(of, added, level, draws, generator)
    examples = design.clusters_by_class(sample.labels, k)
    moved = None if of.is_difference else _with_unseen(of.first, examples, level)
    for key in of.keys:
        counts = {c: int(examples[c]) for c in classes[key]}
        unseen = of.value(key) if moved is None else float(of.first.quantities[key].compute(moved)[0])
        limits[key] = _qualified(of.first, key, limits[key], added[key].effective_size, counts, unseen)
    if design.clusters is None and (2 * k**3 if of.is_difference else k**2) * draws <= _MOST_DRAWN:
        limits |= _from_drawn_decisions(of, level, draws, generator)
    return limits


def _by_resampling(
    of: Contrast, added: dict[Key, Influence], level: float, draws: int, generator: np.random.Generator
) -> dict[Key, ConfidenceLimits]:
    """Return BCa intervals; with an uncertain prevalence each resample has its own draw of it."""
    prevalence = of.first.sample.prevalence
    parts = [list(blocks(model.sample, model.spec)) for model in of.models]
    numbers = max(sum(each[..., 0].size for each in model.statistics.means.values()) for model in of.models)
    found, found_moved = [], []
    for counts in resamples(of.first.design, draws, numbers, generator):
        width = counts.shape[1]
        statistics = [
            compute_statistics(model.sample, model.spec, counts, each) for model, each in zip(of.models, parts, strict=True)
        ]
        found.append(of.computed(statistics, width))
        if prevalence.is_uncertain:
            population = prevalence.sample(width, generator).T
            found_moved.append(of.computed([replace(each, population=population) for each in statistics], width))
    table = np.concatenate(found, 1)
    moved = np.concatenate(found_moved, 1) if prevalence.is_uncertain else table
    return {
        key: _resampled_limits(of, key, row, row_moved, added[key], level)
        for key, row, row_moved in zip(of.keys, table, moved, strict=True)
    }


def _resampled_limits(
    of: Contrast, key: Key, row: np.ndarray, moved: np.ndarray, added: Influence, level: float
) -> ConfidenceLimits:
    finite = np.isfinite(row) & np.isfinite(moved)
    fine, fine_moved = row[finite], moved[finite]
    if len(fine) < (1 - _MOST_UNDEFINED) * len(row):
        return ConfidenceLimits(math.nan, math.nan, f"undefined in {1 - len(fine) / len(row):.0%} of the resamples")
    value, uncertain = of.value(key), of.first.sample.prevalence.is_uncertain
    if key[0] == "calibration_error" and of.is_difference:  # of absolute values: resamples are biased, and vary too little
        return ConfidenceLimits(*normal_interval(value, max(float(fine_moved.std(ddof=1)), added.error), level, ANY))
    if key[0] == "calibration_error":
        return _calibration_error_limits(of.first, added.error, fine_moved if uncertain else None, level)
    if not uncertain:
        return ConfidenceLimits(*bca(fine, value, added.acceleration, level))
    if np.ptp(fine) <= _ROUNDING * abs(value):  # all resamples are equal
        return ConfidenceLimits(*percentiles(fine_moved, level))
    return ConfidenceLimits(*bca_weighted(fine, fine_moved, value, added.acceleration, level))


def _by_delta_method(
    of: Contrast, added: dict[Key, Influence], level: float, draws: int, generator: np.random.Generator
) -> dict[Key, ConfidenceLimits]:
    """Return intervals on a scale without the figure's bounds; an uncertain prevalence is drawn."""
    prevalence, moved, noise = of.first.sample.prevalence, None, np.empty(0)
    if prevalence.is_uncertain:
        population = prevalence.sample(draws, generator).T
        moved = of.computed([replace(model.statistics, population=population) for model in of.models], draws)
        noise = generator.standard_normal(draws)
    limits = {}
    for number, key in enumerate(of.keys):
        value, error, row = of.value(key), added[key].error, None if moved is None else moved[number]
        bounds = ANY if of.is_difference else FIGURES[key[0]].bounds
        if key[0] == "calibration_error" and not of.is_difference:
            limits[key] = _calibration_error_limits(of.first, error, row, level)
        elif row is None:
            limits[key] = ConfidenceLimits(*normal_interval(value, error, level, bounds))
        else:
            limits[key] = ConfidenceLimits(*percentiles(delta_draws(row, noise, value, error, bounds), level))
    return limits


def _from_drawn_decisions(
    of: Contrast, level: float, draws: int, generator: np.random.Generator
) -> dict[Key, ConfidenceLimits]:
    """Return intervals of figures of decisions, from draws of each class's decisions: Dirichlet(counts + 1/K), Jeffreys' for
    two.

    Resampling is bad for counts near 0 or n: it never draws a mistake that did not occur. With weights of rows, the counts are
    those of an effective number of examples.
    """
    prevalence = of.first.sample.prevalence
    tables = _drawn_pairs(of, draws, generator) if of.is_difference else [_drawn(of.first, draws, generator)]
    if not tables:
        return {}
    drawn, width = [], tables[0].shape[2]
    population = np.tile(prevalence.sample(draws, generator).T, width // draws) if prevalence.is_uncertain else None
    for model, decided in zip(of.models, tables, strict=True):
        each = replace(model.statistics, means=model.statistics.means | {"confusion": decided})
        drawn.append(each if population is None else replace(each, population=population))
    found = dict(zip(of.keys, of.computed(drawn, width), strict=True))
    return {key: ConfidenceLimits(*percentiles(row, level)) for key, row in found.items() if FIGURES[key[0]].of_decisions}


def _drawn(inputs: EvaluationInputs, draws: int, generator: np.random.Generator) -> Float64[np.ndarray, "k k b"]:
    """Draw the fraction of each class with each decision."""
    k = inputs.sample.num_classes
    counts = np.nan_to_num(inputs.statistics.confusion * _worth(inputs)[:, None, None])
    gamma = generator.standard_gamma(counts + 1 / k, (k, k, draws))
    return gamma / gamma.sum(1, keepdims=True)


def _drawn_pairs(of: Contrast, draws: int, generator: np.random.Generator) -> list[Float64[np.ndarray, "k k b"]]:
    """Draw the fractions of both models, from the fraction of each class for which a decides d and b e; none if all are equal.

    The fractions are Dirichlet(counts + 1/K²): each model's own fractions are then those of `evaluate`, and a disagreement
    that did not occur can be drawn. Half of the draws exchange the models, so that b − a is exactly −(a − b).
    """
    a, b = of.models
    if np.array_equal(a.sample.log_probs, b.sample.log_probs):
        return []
    k, state = a.sample.num_classes, generator.bit_generator.state
    cells = (a.sample.labels * k + _decided(a)) * k + _decided(b)
    joint = np.bincount(cells, minlength=k**3).reshape(k, k, k, 1) + 1 / k**2
    halves = []
    for alpha in (joint, joint.swapaxes(1, 2)):
        generator.bit_generator.state = state
        gamma = generator.standard_gamma(alpha, (k, k, k, draws))
        halves.append(gamma / gamma.sum((1, 2), keepdims=True))
    shares = np.concatenate([halves[0], halves[1].swapaxes(1, 2)], 3)
    return [shares.sum(2), shares.sum(1)]


def _decided(inputs: EvaluationInputs) -> Int64[np.ndarray, " m"]:
    return inputs.sample.per_entry(best_decisions(inputs.sample.log_probs, inputs.spec.costs))


def _worth(inputs: EvaluationInputs) -> Float64[np.ndarray, " k"]:
    """Return the effective number of examples of each class, for its decisions.

    With weights it is that of equally weighted examples with the same variance of the decisions, at most their number (Korn &
    Graubard 1998); (Σ w)²/Σ w² if all decisions are equal.
    """
    sample, totals = inputs.sample, inputs.sample.totals
    if not sample.weighted or sample.votes is None:
        return totals
    shares = inputs.statistics.confusion[..., 0]
    gaps = np.eye(len(totals))[_decided(inputs)] - shares[sample.labels]
    variance = np.bincount(sample.labels, sample.votes**2 * (gaps**2).sum(1), len(totals)) / totals**2
    worth = np.minimum((shares * (1 - shares)).sum(1) / variance, totals)
    return np.where(variance > 0, worth, sample.effective_totals)


def _calibration_error_limits(
    inputs: EvaluationInputs, error: float, at_population: np.ndarray | None, level: float
) -> ConfidenceLimits:
    """Return the `calibration_interval`, widened by the effect of an uncertain prevalence."""
    parts = len(inputs.spec.edges)
    gaps = calibration_gaps(inputs.statistics)[:, 0]
    low, high = calibration_interval(gaps / parts, _calibration_noise(inputs) / parts, error, level)
    if at_population is None:
        return ConfidenceLimits(low, high)
    value = inputs.values["calibration_error", None]
    least, most = percentiles(at_population, level)
    return ConfidenceLimits(
        max(value - math.hypot(value - low, value - least), 0.0), value + math.hypot(high - value, most - value)
    )


def _calibration_noise(inputs: EvaluationInputs) -> Float64[np.ndarray, " je"]:
    """Return the standard error of each bin's gap for a correct model.

    Σ_c (π_c²/n_c) Var(p_j − 1{c = j} in the bin | c). A class's mean there is M/π_c, with M = E[p_j (1 − p_j) in the bin] for j
    and, together, for the rest. Treating the rest together is exact for two classes, and slightly too large for more.
    """
    squares, products = (inputs.statistics.at_population(kind)[:, 0] for kind in ("squares", "products"))
    every = inputs.sample.effective_totals
    totals = every[inputs.spec.binned]
    per_example = 1 / totals + 1 / (every.sum() - totals)
    return np.sqrt(np.maximum(squares - products**2 * np.repeat(per_example, inputs.spec.bins), 0))


def _qualified(
    inputs: EvaluationInputs, key: Key, limits: ConfidenceLimits, size: float, examples: dict[int, int], with_unseen: float
) -> ConfidenceLimits:
    """Return limits, widened for events that did not occur in the sample, with a reason if they are not reliable.

    Args:
        inputs: the sample.
        key: the quantity.
        limits: its interval.
        size: its effective sample size.
        examples: the number of examples, or groups, of each class that it depends on.
        with_unseen: the quantity by `_with_unseen`.
    """
    grouped, groups = inputs.sample.groups is not None, len(inputs.design.strata)
    what = "group" if grouped else "example"
    single, few = [c for c, n in examples.items() if n == 1], [c for c, n in examples.items() if n < _FEW_EXAMPLES]
    if grouped and groups < _FEWEST_GROUPS:
        return ConfidenceLimits(math.nan, math.nan, f"no interval: {groups} groups are too few")
    if single:
        return ConfidenceLimits(math.nan, math.nan, f"no interval: class(es) {single} occur in a single {what}")
    if limits.reason:
        return limits
    reason = ""
    if few:
        reason = f"fewer than {_FEW_EXAMPLES} {what}s of class(es) {few}: the interval is too short"
    elif size < _SMALL_EFFECTIVE_SIZE and key[0] != "calibration_error":
        reason = f"effective sample size ≈ {max(1, round(size))}: the interval may be too short"
    return ConfidenceLimits(min(limits.low, with_unseen), max(limits.high, with_unseen), reason)


def _with_unseen(inputs: EvaluationInputs, examples: Int64[np.ndarray, " k"], level: float) -> Statistics:
    """Return the statistics if a fraction `unseen_share` of examples were decided or ranked differently.

    This is for each class with equal decisions for all examples, or with all ranked above another class: no resample can
    change them.
    """
    s, sample = inputs.statistics, inputs.sample
    confusion, areas = s.confusion, s.areas
    worth = examples * np.nan_to_num(sample.effective_totals / sample.totals)
    share = unseen_share(worth, level)[:, None, None]
    alike = ((confusion == 1) | (confusion == 0)).all(1, keepdims=True)
    moved = np.where(alike, np.where(confusion == 1, 1 - share, share / max(1, len(worth) - 1)), confusion)
    fewer = unseen_share(np.minimum(worth[:, None], worth), level)[..., None]
    moved_areas = np.where(areas == 1, 1 - fewer, np.where(areas == 0, fewer, areas))
    return replace(s, areas=moved_areas, means=s.means | {"confusion": moved})
