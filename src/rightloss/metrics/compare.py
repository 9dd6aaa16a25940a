"""Compare two models on the same rows: the difference of every figure at a prevalence, with a paired interval.

Stage: a, b, target, prevalence → two `EvaluationInputs` of one design → the same resamples for both, or the delta method on the
influence of each example on the difference → `Comparison`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from ..rng import checked_level, own_stream
from .class_statistics import Statistics, compute_statistics, make_spec
from .decisions import cost_matrix, decide
from .evaluate import MOST_DRAWN, MOST_UNDEFINED, check_options, qualified, square
from .evaluation_inputs import EvaluationInputs, Key, influences, prepare
from .figures import ANY, FIGURES, Formula
from .intervals import (
    ConfidenceLimits,
    Influence,
    bca,
    bca_weighted,
    delta_draws,
    normal_interval,
    percentiles,
    resamples,
)
from .sample import IGNORED, Mix, Numbers, Predictions, labelled_sample

Verdict = Literal["a ahead", "b ahead", "undecided"]

_DISTANCE = -1  # instead of a class in a `Key`: the distance of the figure from its ideal
_ROUNDING = 1e-13  # relative to the figures: a smaller difference counts as 0


@dataclass(frozen=True)
class Difference:
    """A figure of model a minus that of model b, with its interval. `float(difference)` is its value.

    Examples:
        >>> from rightloss.metrics import Difference
        >>> print(Difference(0.02, 0.01, 0.03, a=0.91, b=0.89, better="higher", verdict="a ahead"))
        0.02 (0.01 to 0.03), a ahead

    Attributes:
        value: a − b; NaN if one of the two is not defined.
        low: lower limit of the interval; NaN if there is none.
        high: upper limit.
        a: the figure of the first model.
        b: that of the second.
        better: "higher", "lower", or "nearer" to the figure's value in a correct model.
        verdict: "a ahead" or "b ahead" if the interval is on one side of 0, else "undecided". For "nearer", the interval of
            a's distance minus b's decides.
        reason: why a value is NaN, or why the interval is not reliable; empty otherwise.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    a: float = math.nan
    b: float = math.nan
    better: Literal["higher", "lower", "nearer"] = "higher"
    verdict: Verdict = "undecided"
    reason: str = ""

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        if math.isnan(self.value):
            return f"undefined: {self.reason}"
        interval = "" if math.isnan(self.low) and math.isnan(self.high) else f" ({self.low:.4g} to {self.high:.4g})"
        return f"{self.value:.4g}{interval}, {self.verdict}" + (f"; {self.reason}" if self.reason else "")


@dataclass(frozen=True, repr=False)
class Comparison:
    """The result of `compare`: the difference of two models in every figure of `Evaluation`. Print it for a table.

    Each difference is an attribute, such as `comparison.auc`, and an item, `comparison["auc"]`.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import compare
        >>> a, b = (np.log(np.stack([1 - p, p], 1)) for p in (np.array([0.1, 0.4, 0.3, 0.8]), np.array([0.4, 0.1, 0.2, 0.3])))
        >>> found = compare(a, b, [0, 0, 1, 1], prevalence=0.1, intervals=None)
        >>> found.auc.value, found.auc.better, found["tpr"].a
        (0.25, 'higher', 0.5)

    Attributes:
        differences: a dict by the figure's name.
        level: the level of the intervals.
        intervals: the method of the intervals: "bootstrap", "analytic" or "none".
        num_examples: the number of examples of each class; votes count as fractions.
        population: π.
    """

    differences: dict[str, Difference]
    level: float
    intervals: str
    num_examples: tuple[float, ...]
    population: tuple[float, ...]

    def __getattr__(self, name: str) -> Difference:
        if name in FIGURES:
            return self.differences[name]
        raise AttributeError(f"A Comparison has no {name!r}: its figures are {', '.join(FIGURES)}.")

    def __getitem__(self, name: str) -> Difference:
        if name not in FIGURES:
            raise KeyError(f"there is no figure {name!r}; there are {', '.join(FIGURES)}")
        return self.differences[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.differences)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return plain numbers and strings, for JSON or a data frame: `pandas.DataFrame(comparison.to_dict()).T`."""
        return {name: dict(vars(difference)) for name, difference in self.differences.items()}

    def __repr__(self) -> str:
        share, counts = (
            ", ".join(f"{each:.6g}" for each in values[:6]) + (", …" if len(values) > 6 else "")
            for values in (self.population, self.num_examples)
        )
        how = "" if self.intervals == "none" else f"; paired {self.level:.0%} intervals, {self.intervals}"
        width = max(len(FIGURES[name].words) for name in self)
        lines = [f"At a population of [{share}], from [{counts}] examples{how}"]
        lines.append(f"  {'':<{width}}  {'a':>9}  {'b':>9}  a − b")
        lines += [
            f"  {FIGURES[name].words:<{width}}  {found.a:>9.4g}  {found.b:>9.4g}  {found}"
            for name, found in self.differences.items()
        ]
        return "\n".join(lines)


def compare(
    a: Predictions,
    b: Predictions,
    target: Numbers,
    prevalence: Mix,
    *,
    costs: Numbers | None = None,
    threshold: float | None = None,
    groups: Numbers | None = None,
    intervals: Literal["auto", "bootstrap", "analytic"] | None = "auto",
    level: float = 0.95,
    draws: int = 1000,
    bins: int = 15,
    generator: torch.Generator | None = None,
    ignore_index: int = IGNORED,
) -> Comparison:
    """Compare two models' predictions of the same rows: every figure of `evaluate`, a minus b, with paired intervals.

    Each resample has the same rows for both models (stratified by class, with groups kept together, at one draw of an
    uncertain prevalence), so that noise common to both cancels. Two overlapping intervals of `evaluate` do not mean that the
    models are equal; an interval of the difference that includes 0 means that these rows cannot decide.

    Verdicts are for one figure at a time, at the level of the intervals: of twenty figures of two equal models, one is
    expected to differ by chance at 95 %. Choose the figure that matters in advance.

    Figures of decisions (sensitivity, specificity, PPV, NPV, accuracies) shift with the threshold: a model with more alarms is
    ahead in sensitivity and behind in specificity. Look at the expected log-likelihood and the expected cost first.

    Args:
        a: predictions of the first model `(n, k)`, or dense maps `(n, k, h, w, …)`, as log-probabilities for the population.
        b: predictions of the second model, for the same rows in the same order.
        target: labels, as in `evaluate`.
        prevalence: π, as in `evaluate`; if it is uncertain, the intervals include that.
        costs: costs of decisions `(k, k)`, as in `evaluate`; the same for both models.
        threshold: for two classes, instead of `costs`: decide 1 from this probability on.
        groups: ids of patients (or sites) `(n,)`: rows with the same id are drawn together.
        intervals: "analytic" for the delta method (for AUC DeLong's paired one), which is also "auto"; "bootstrap" for BCa,
            which covers about as often, and is slower; None for no intervals. In both, differences of decisions
            use draws of the joint decisions of both models in each class, unless there are groups or votes.
        level: coverage of the intervals.
        draws: number of resamples.
        bins: number of bins of equal weight in the population, for the calibration error.
        generator: random generator; with a fixed seed by default, so that equal input gives equal output.
        ignore_index: the int label of examples to ignore.

    Examples:
        >>> import torch
        >>> from rightloss.metrics import compare
        >>> y = torch.arange(400) % 2
        >>> x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0)) + y[:, None]
        >>> one, both = x[:, 0] - 5.1, x.sum(1) - 5.6  # log-odds at 1 in 100, from one measurement and from two
        >>> a, b = (torch.log_softmax(torch.stack([torch.zeros(400), odds], 1), 1) for odds in (both, one))
        >>> print(compare(a, b, y, prevalence=0.01).auc)
        0.0438 (0.008101 to 0.0795), a ahead
    """
    pair = [labelled_sample(each, target, prevalence, groups, ignore_index) for each in (a, b)]
    if pair[0].log_probs.shape != pair[1].log_probs.shape:
        shapes = " and ".join(str(tuple(sample.log_probs.shape)) for sample in pair)
        raise ValueError(f"Expected predictions of the same rows and classes, but got {shapes}: align the two first.")
    matrix = square(cost_matrix(pair[0].num_classes, costs, threshold))
    level, stream = checked_level(level), own_stream(generator)
    check_options(intervals, draws, bins)
    models = _Pair(*(_with_distances(prepare(sample, make_spec(sample, matrix, int(bins)))) for sample in pair))
    how = "analytic" if intervals == "auto" else intervals or "none"
    limits = {} if how == "none" else _confidence_limits(models, how == "bootstrap", level, int(draws), stream)
    return Comparison(
        {name: _difference(models, limits, name) for name in FIGURES},
        level,
        how,
        tuple(pair[0].totals.tolist()),
        tuple(pair[0].prevalence.population.tolist()),
    )


@dataclass(frozen=True)
class _Pair:
    """The inputs of two models, for the same rows."""

    a: EvaluationInputs
    b: EvaluationInputs

    @property
    def keys(self) -> list[Key]:
        """Return the quantities that both have."""
        return [key for key in self.a.quantities if key in self.b.quantities]

    def values(self, key: Key) -> tuple[float, float]:
        """Return a quantity of both; −∞ for the log-likelihood if a true class had probability 0."""
        infinite = key[0] in ("expected_log_likelihood", "skill")
        a, b = (-math.inf if infinite and each.impossible else each.values[key] for each in (self.a, self.b))
        return a, b

    def value(self, key: Key) -> float:
        """Return the difference."""
        a, b = self.values(key)
        return 0.0 if abs(a - b) <= _ROUNDING * (abs(a) + abs(b)) < math.inf else a - b

    def computed(self, statistics: tuple[Statistics, Statistics], width: int) -> Float64[Tensor, "f b"]:
        """Compute the differences of all quantities that both have, in each of `width` resamples."""
        a, b = statistics
        rows = [(self.a.quantities[key](a).expand(width), self.b.quantities[key](b).expand(width)) for key in self.keys]
        return torch.stack([_without_rounding(*row) for row in rows])


def _without_rounding(a: Tensor, b: Tensor) -> Tensor:
    difference = a - b
    return torch.where(difference.abs() <= _ROUNDING * (a.abs() + b.abs()), 0.0, difference)


def _with_distances(inputs: EvaluationInputs) -> EvaluationInputs:
    """Return the quantities without those by class, plus the distances from the ideal."""
    quantities = {key: formula for key, formula in inputs.quantities.items() if key[1] is None}
    for name, formula in FIGURES.items():
        if formula.ideal is not None and (name, None) in quantities:
            quantities[name, _DISTANCE] = _distance(formula)
    values = {key: float(formula(inputs.statistics)) for key, formula in quantities.items()}
    return replace(inputs, quantities=quantities, values=values)


def _distance(formula: Formula) -> Any:
    ideal = formula.ideal
    assert ideal is not None
    return lambda statistics: (formula.compute(statistics) - ideal(statistics)).abs()


def _difference(models: _Pair, limits: dict[Key, ConfidenceLimits], name: str) -> Difference:
    key, better = (name, None), FIGURES[name].better
    alone = {"a": models.a, "b": models.b}
    reasons = [f"{model}: {inputs.reasons[name]}" for model, inputs in alone.items() if name in inputs.reasons]
    if reasons:
        a, b = (inputs.values.get(key, math.nan) for inputs in alone.values())
        return Difference(math.nan, a=a, b=b, better=better, reason="; ".join(reasons))
    (a, b), value = models.values(key), models.value(key)
    if not math.isfinite(value):
        given = [f"{model} gave probability 0 to {each.impossible}" for model, each in alone.items() if each.impossible]
        verdict = _verdict("higher", value, value)
        return Difference(value, a=a, b=b, better=better, verdict=verdict, reason=" and ".join(given) + " example(s)")
    if key not in limits:
        return Difference(value, a=a, b=b, better=better)
    low, high, reason = limits[key]
    low, high = (low, high) if math.isnan(low) else (min(low, value), max(high, value))
    decisive = limits[name, _DISTANCE] if better == "nearer" else ConfidenceLimits(low, high)
    return Difference(value, low, high, a, b, better, _verdict(better, decisive.low, decisive.high), reason)


def _verdict(better: str, low: float, high: float) -> Verdict:
    ahead, behind = (low > 0, high < 0) if better == "higher" else (high < 0, low > 0)
    return "a ahead" if ahead else "b ahead" if behind else "undecided"


def _confidence_limits(
    models: _Pair, bootstrap: bool, level: float, draws: int, generator: torch.Generator
) -> dict[Key, ConfidenceLimits]:
    """Return the interval of each difference: for decisions from drawn counts, for others by bootstrap or delta method."""
    sample, design = models.a.sample, models.a.design
    added, classes = influences(models.a, models.b)
    make = _by_resampling if bootstrap else _by_delta_method
    limits = make(models, added, level, draws, generator)
    examples = design.clusters_by_class(sample.labels, sample.num_classes)
    for key in models.keys:
        counts = {c: int(examples[c]) for c in classes[key]}
        limits[key] = qualified(models.a, key, limits[key], added[key].effective_size, counts, models.value(key))
    same = torch.equal(models.a.sample.log_probs, models.b.sample.log_probs)
    if design.clusters is None and not same and 2 * sample.num_classes**3 * draws <= MOST_DRAWN:
        limits |= _from_drawn_decisions(models, level, draws, generator)
    return limits


def _by_resampling(
    models: _Pair, added: dict[Key, Influence], level: float, draws: int, generator: torch.Generator
) -> dict[Key, ConfidenceLimits]:
    """Return BCa intervals; with an uncertain prevalence each resample has its own draw of it."""
    sample = models.a.sample
    uncertain, both = sample.prevalence.is_uncertain, (models.a, models.b)
    parts, parts_moved = [], []
    for counts in resamples(models.a.design, draws, sample.num_classes * max(each.spec.size for each in both), generator):
        width = counts.shape[1]
        a, b = (compute_statistics(each.sample, each.spec, counts) for each in both)
        parts.append(models.computed((a, b), width))
        if uncertain:
            population = sample.prevalence.sample(width, generator).T
            parts_moved.append(models.computed((replace(a, population=population), replace(b, population=population)), width))
    table = torch.cat(parts, 1)
    moved = torch.cat(parts_moved, 1) if uncertain else table
    return {
        key: _resampled_limits(key, models.value(key), row, row_moved, added[key], uncertain, level)
        for key, row, row_moved in zip(models.keys, table, moved, strict=True)
    }


def _resampled_limits(
    key: Key, value: float, row: Tensor, moved: Tensor, added: Influence, uncertain: bool, level: float
) -> ConfidenceLimits:
    finite = torch.isfinite(row) & torch.isfinite(moved)
    fine, fine_moved = row[finite], moved[finite]
    if len(fine) < (1 - MOST_UNDEFINED) * len(row):
        return ConfidenceLimits(math.nan, math.nan, f"undefined in {1 - len(fine) / len(row):.0%} of the resamples")
    if key[0] == "calibration_error":  # a sum of absolute values, so its resamples are biased, and vary too little
        return ConfidenceLimits(*normal_interval(value, max(float(fine_moved.std()), added.error), level, ANY))
    if not uncertain:
        return ConfidenceLimits(*bca(fine, value, added.acceleration, level))
    if float(fine.max() - fine.min()) <= _ROUNDING * abs(value):  # all resamples are equal
        return ConfidenceLimits(*percentiles(fine_moved, level))
    return ConfidenceLimits(*bca_weighted(fine, fine_moved, value, added.acceleration, level))


def _by_delta_method(
    models: _Pair, added: dict[Key, Influence], level: float, draws: int, generator: torch.Generator
) -> dict[Key, ConfidenceLimits]:
    """Return normal intervals; an uncertain prevalence is drawn."""
    prevalence = models.a.sample.prevalence
    if not prevalence.is_uncertain:
        return {key: ConfidenceLimits(*normal_interval(models.value(key), added[key].error, level, ANY)) for key in models.keys}
    population = prevalence.sample(draws, generator).T
    a, b = (replace(each.statistics, population=population) for each in (models.a, models.b))
    noise = torch.randn(draws, dtype=torch.float64, generator=generator)
    return {
        key: ConfidenceLimits(*percentiles(delta_draws(row, noise, models.value(key), added[key].error, ANY), level))
        for key, row in zip(models.keys, models.computed((a, b), draws), strict=True)
    }


def _from_drawn_decisions(models: _Pair, level: float, draws: int, generator: torch.Generator) -> dict[Key, ConfidenceLimits]:
    """Return intervals of differences of decisions, from draws of the fraction of each class for which a decides d and b e.

    The fractions are Dirichlet(counts + 1/K²): each model's own fractions are then those of `evaluate`, and a disagreement
    that did not occur can be drawn. Half of the draws exchange the models, so that b − a is exactly −(a − b).
    """
    k, prevalence = models.a.sample.num_classes, models.a.sample.prevalence
    population = prevalence.sample(draws, generator).T.repeat(1, 2) if prevalence.is_uncertain else None
    joint, state = _joint_decisions(models), generator.get_state()
    halves = []
    for alpha in (joint + 1 / k**2, joint.mT + 1 / k**2):
        generator.set_state(state)
        gamma = torch._standard_gamma(alpha[..., None].expand(k, k, k, draws).contiguous(), generator=generator)
        halves.append(gamma / gamma.sum((1, 2), keepdim=True))
    shares = torch.cat([halves[0], halves[1].transpose(1, 2)], 3)
    a, b = (
        replace(
            each.statistics,
            decided=shares.sum(axis),
            population=each.statistics.population if population is None else population,
        )
        for each, axis in ((models.a, 2), (models.b, 1))
    )
    table = dict(zip(models.keys, models.computed((a, b), 2 * draws), strict=True))
    return {key: ConfidenceLimits(*percentiles(row, level)) for key, row in table.items() if FIGURES[key[0]].of_decisions}


def _joint_decisions(models: _Pair) -> Float64[Tensor, "k k k"]:
    """Return the number of examples of each class for which a decides d and b decides e."""
    k, labels = models.a.sample.num_classes, models.a.sample.labels
    a, b = (each.sample.per_entry(decide(each.sample.log_probs, costs=each.spec.costs)) for each in (models.a, models.b))
    return torch.bincount((labels * k + a) * k + b, minlength=k**3).view(k, k, k).double()
