"""Values of the figures of one or two models, and their confidence limits.

Stage: `Sample`, `MetricSpec` → `EvaluationInputs` → influence of each example on each figure, or on the difference of two
models' figures → resamples, or the delta method; draws of the decisions → limits by figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..arrays import random_generator
from . import intervals
from .class_statistics import MOST_CLASSES_SHOWN, Block, MetricSpec, Statistics, area_influence, blocks, compute_statistics
from .decisions import best_decisions
from .figures import ANY, FIGURES, GRADIENTS, Gradient, calibration_gaps
from .intervals import ConfidenceLimits, Design, Influence, InfluenceSum, design_of, resamples, unseen_share
from .sample import Sample

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

Key = tuple[str, int | None]  # a figure's name, and its class for figures by class
_MOST_UNDEFINED = 0.05  # largest fraction of undefined resamples for which a figure still has an interval
_MOST_DRAWN = 1 << 23  # numbers in the table of drawn decisions
_FEWEST_GROUPS, _FEW_EXAMPLES, _SMALL_EFFECTIVE_SIZE = 5, 10, 5.0
_ROUNDING = 1e-13  # relative to the figures: a smaller difference counts as 0


class Quantity(NamedTuple):
    """A figure, or that of one class: its formula, and its gradient at one sample."""

    compute: Callable[[Statistics], np.ndarray]
    gradient: Callable[[Statistics], Gradient]


@dataclass(frozen=True)
class EvaluationInputs:
    """A sample, and the statistics that all intervals use.

    Attributes:
        sample: labelled predictions.
        design: which entries are drawn together.
        statistics: the inputs of the figures.
        reasons: the figures without a value, and why.
        quantities: the formulas of the others.
        values: their values; −∞ for the log-likelihood and the skill if a true class had probability 0.
        impossible: the number of entries with probability 0 for their class.
    """

    sample: Sample
    design: Design
    statistics: Statistics
    reasons: dict[str, str]
    quantities: dict[Key, Quantity]
    values: dict[Key, float]
    impossible: int

    @property
    def spec(self) -> MetricSpec:
        return self.statistics.spec


@np.errstate(all="ignore")  # what divides by 0 is reported as undefined
def prepare(sample: Sample, spec: MetricSpec, only: str | None = None) -> EvaluationInputs:
    """Return the statistics of a sample, and the values of all defined figures, or of one."""
    k, statistics = sample.num_classes, compute_statistics(sample, spec)
    reasons, lacking = _undefined(sample, statistics)
    quantities: dict[Key, Quantity] = {}
    for name, formula in FIGURES.items():
        if only not in (None, name):
            continue
        if name not in reasons:
            quantities[name, None] = _quantity(name, None)
        if formula.by_class is not None and (name not in reasons or name in lacking) and 2 < k <= MOST_CLASSES_SHOWN:
            quantities |= {(name, j): _quantity(name, j) for j in range(k) if j not in lacking.get(name, ())}
    values = {key: float(each.compute(statistics)[0]) for key, each in quantities.items()}
    impossible = int(np.isneginf(sample.own_log_probs).sum())
    if impossible:
        infinite = [("expected_log_likelihood", None), ("skill", None)]
        values |= dict.fromkeys(quantities.keys() & infinite, -math.inf)
    return EvaluationInputs(sample, design_of(sample), statistics, reasons, quantities, values, impossible)


def _quantity(name: str, j: int | None) -> Quantity:
    by_class = FIGURES[name].by_class
    compute = FIGURES[name].compute if j is None or by_class is None else lambda s: by_class(s)[j]
    return Quantity(compute, lambda s: GRADIENTS[name](s, j))


def _undefined(sample: Sample, statistics: Statistics) -> tuple[dict[str, str], dict[str, list[int]]]:
    """Return the figures that are undefined for this sample, with the reason, and the classes of those that others have."""
    reasons: dict[str, str] = {}
    spec, two = statistics.spec, sample.num_classes == 2
    if spec.recalibration is None:
        reasons["calibration_slope"] = spec.reason
    if spec.intercepts is None:
        reasons["calibration_intercept"] = spec.no_intercepts
    if not two:
        reasons["net_benefit"] = "defined for two classes"
    elif not spec.costs[1, 0] - spec.costs[1, 1] > 0:
        reasons["net_benefit"] = "a missed case costs nothing"
    if sample.missing:
        kept = ["accuracy", *(["tnr" if sample.missing == [1] else "tpr"] * two)]
        return reasons | {name: f"no example of class(es) {sample.missing}" for name in FIGURES if name not in kept}, {}
    confusion = statistics.confusion[:, :, 0]
    never = np.flatnonzero(confusion.sum(0) == 0).tolist()
    always = np.flatnonzero((confusion == 1).all(0)).tolist()
    if 1 in never if two else never:
        reasons["ppv"] = f"class(es) {never} are never decided"
    if 1 in always if two else always:
        reasons["npv"] = f"class {always[0]} is always decided"
    return reasons, {name: classes for name, classes in (("ppv", never), ("npv", always)) if name in reasons and not two}


class _Gradients:
    """Gradients of some of a model's quantities, for the influence of each entry.

    Attributes:
        each: the gradient of every quantity.
        dense: in the dense means over the population, quantity × position; and `rows`, the quantities that depend on them.
        confusion: in the decisions of each class, quantity × class × decision; and `decided`, those that depend on them.
        base: Σ gradient · mean, quantity × class.
        by_total: in the classes' totals, quantity × class.
    """

    def __init__(self, inputs: EvaluationInputs, keys: Sequence[Key]) -> None:
        self.inputs, s = inputs, inputs.statistics
        self.each = [inputs.quantities[key].gradient(s) for key in keys]
        fields, k = inputs.spec.fields, s.num_classes

        def stacked(kind: str, *shape: int) -> np.ndarray:
            return np.nan_to_num([each.get(kind, np.zeros(shape)) for each in self.each])

        self.dense = np.concatenate([stacked(kind, size) for kind, size in fields.items()], 1)
        self.rows = np.flatnonzero(self.dense.any(1))
        self.gaps = {row: each["gaps"] for row, each in enumerate(self.each) if "gaps" in each}
        self.confusion, self.by_total = stacked("confusion", k, k), stacked("totals", k)
        self.decided = np.flatnonzero(self.confusion.any((1, 2)))
        means = {kind: np.nan_to_num(each[..., 0]) for kind, each in s.means.items()}
        self.base = self.dense @ np.concatenate([means[kind] for kind in fields], 1).T
        for row, gradient in self.gaps.items():
            self.base[row] += means["gaps"] @ gradient
        self.base = self.base * s.population[:, 0] + (self.confusion * means["confusion"]).sum(2)

    def of_block(self, block: Block) -> Float64[np.ndarray, "f m"]:
        """Return the influence of each entry of a block through the class means."""
        s, c, votes = self.inputs.statistics, block.label, self.inputs.sample.votes
        added = np.zeros((len(self.each), len(block.entries)))
        added[self.rows] = self.dense[self.rows] @ block.dense
        for row, gradient in self.gaps.items():
            added[row] += (gradient[block.cells] * block.errors).sum(0)
        added *= s.population[c]
        added[self.decided] += self.confusion[self.decided, c][:, block.decided]
        added -= self.base[:, [c]]
        added /= s.totals[c]
        if self.inputs.design.clusters is not None:  # then the class frequencies vary as well
            added += self.by_total[:, [c]]
        return added if votes is None else added * votes[block.entries]

    def of_areas(self, number: int) -> Float64[np.ndarray, " m"]:
        """Return the influence of each entry through the areas, on the quantity with that number."""
        sample, s = self.inputs.sample, self.inputs.statistics
        added = area_influence(sample, self.inputs.spec.rankings, self.each[number]["areas"], s.areas[..., 0])
        return added / s.totals[sample.labels, 0]

    def classes(self, number: int) -> set[int]:
        """Return the classes on which a quantity depends."""
        gradient = self.each[number]
        if "areas" in gradient:
            return set(np.flatnonzero(gradient["areas"].any(0) | gradient["areas"].any(1)).tolist())
        of_all = any(gradient[kind].any() for kind in gradient if kind not in ("confusion", "totals"))
        return set(np.flatnonzero(self.confusion[number].any(1) | of_all).tolist())


def influences(models: Sequence[EvaluationInputs], keys: Sequence[Key]) -> tuple[dict[Key, Influence], dict[Key, list[int]]]:
    """Return the summed influences on each quantity, and the classes that the quantity depends on.

    For two models, with predictions of the same entries, the influence is that on the first minus that on the second.
    """
    gradients = [_Gradients(model, keys) for model in models]
    sums = [InfluenceSum(models[0].design) for _ in keys]
    ranked = {number for number, each in enumerate(gradients[0].each) if "areas" in each}
    for same in zip(*(blocks(model.sample, model.spec) for model in models), strict=True):
        added = reduce(np.subtract, [each.of_block(block) for each, block in zip(gradients, same, strict=True)])
        for number in set(range(len(keys))) - ranked:
            sums[number].add(same[0].entries, added[number])
    for number in ranked:
        sums[number].add(slice(None), reduce(np.subtract, [each.of_areas(number) for each in gradients]))
    classes = {key: sorted(set().union(*(each.classes(number) for each in gradients))) for number, key in enumerate(keys)}
    return {key: each.summary() for key, each in zip(keys, sums, strict=True)}, classes


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
        each = zip(of.models, parts, strict=True)
        statistics = [compute_statistics(model.sample, model.spec, counts, blocks_of) for model, blocks_of in each]
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
        return ConfidenceLimits(*intervals.normal_interval(value, max(float(fine_moved.std(ddof=1)), added.error), level, ANY))
    if key[0] == "calibration_error":
        return _calibration_error_limits(of.first, added.error, fine_moved if uncertain else None, level)
    if not uncertain:
        return ConfidenceLimits(*intervals.bca(fine, value, added.acceleration, level))
    if np.ptp(fine) <= _ROUNDING * abs(value):  # all resamples are equal
        return ConfidenceLimits(*intervals.percentiles(fine_moved, level))
    return ConfidenceLimits(*intervals.bca_weighted(fine, fine_moved, value, added.acceleration, level))


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
            limits[key] = ConfidenceLimits(*intervals.normal_interval(value, error, level, bounds))
        else:
            drawn = intervals.delta_draws(row, noise, value, error, bounds)
            limits[key] = ConfidenceLimits(*intervals.percentiles(drawn, level))
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
    found = zip(of.keys, of.computed(drawn, width), strict=True)
    return {key: ConfidenceLimits(*intervals.percentiles(row, level)) for key, row in found if FIGURES[key[0]].of_decisions}


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
    low, high = intervals.calibration_interval(gaps / parts, _calibration_noise(inputs) / parts, error, level)
    if at_population is None:
        return ConfidenceLimits(low, high)
    value = inputs.values["calibration_error", None]
    least, most = intervals.percentiles(at_population, level)
    below, above = math.hypot(value - low, value - least), math.hypot(high - value, most - value)
    return ConfidenceLimits(max(value - below, 0.0), value + above)


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
