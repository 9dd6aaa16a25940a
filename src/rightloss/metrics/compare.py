"""Compare two models on the same rows: the difference of every figure at a prevalence, with a paired interval.

Stage: a, b, target, prevalence → two `EvaluationInputs` of one design → the same resamples for both, or the delta method on the
influence of each example on the difference → `Comparison`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from .class_statistics import Statistics, make_spec
from .confidence import Contrast, EvaluationInputs, Key, Quantity, confidence_limits, prepare
from .evaluate import checked_options, square_costs
from .figures import FIGURES, GRADIENTS, ByFigure, Gradient, table_head
from .intervals import ConfidenceLimits
from .sample import IGNORED, Mix, Numbers, Predictions, labelled_sample

Verdict = Literal["a ahead", "b ahead", "undecided"]

_DISTANCE = -1  # instead of a class in a `Key`: the distance of the figure from its ideal


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
class Comparison(ByFigure[Difference]):
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
    _field: ClassVar[str] = "differences"

    def __repr__(self) -> str:
        how = "" if self.intervals == "none" else f"; paired {self.level:.0%} intervals, {self.intervals}"
        width = max(len(FIGURES[name].words) for name in self)
        lines = [table_head(self.population, self.num_examples, how), f"  {'':<{width}}  {'a':>9}  {'b':>9}  a − b"]
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
    generator: Any = None,
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
        >>> import numpy as np
        >>> from rightloss.metrics import compare
        >>> y = np.arange(400) % 2
        >>> x = np.random.default_rng(0).normal(size=(400, 2)) + y[:, None]
        >>> one, both = x[:, 0] - 5.1, x.sum(1) - 5.6  # log-odds at 1 in 100, from one measurement and from two
        >>> a, b = (-np.logaddexp(0, np.stack([odds, -odds], 1)) for odds in (both, one))
        >>> print(compare(a, b, y, prevalence=0.01).auc)
        0.1003 (0.06442 to 0.1362), a ahead
    """
    pair = [labelled_sample(each, target, prevalence, groups, ignore_index) for each in (a, b)]
    if pair[0].log_probs.shape != pair[1].log_probs.shape:
        shapes = " and ".join(str(sample.log_probs.shape) for sample in pair)
        raise ValueError(f"Expected predictions of the same rows and classes, but got {shapes}: align the two first.")
    matrix = square_costs(pair[0].num_classes, costs, threshold)
    options = checked_options(intervals, level, draws, bins, generator)
    models = Contrast(tuple(_with_distances(prepare(each, make_spec(each, matrix, options["bins"]))) for each in pair))
    how, level = "analytic" if intervals == "auto" else intervals or "none", options["level"]
    by = (how == "bootstrap", level, options["draws"], options["generator"])
    limits = {} if how == "none" else confidence_limits(models, *by)
    counts, population = (tuple(each.tolist()) for each in (pair[0].totals, pair[0].prevalence.population))
    return Comparison({name: _difference(models, limits, name) for name in FIGURES}, level, how, counts, population)


def _with_distances(inputs: EvaluationInputs) -> EvaluationInputs:
    """Return the quantities without those by class, plus the distances from the ideal."""
    quantities = {key: each for key, each in inputs.quantities.items() if key[1] is None}
    near = [name for name, formula in FIGURES.items() if formula.ideal is not None and (name, None) in quantities]
    distances: dict[Key, Quantity] = {(name, _DISTANCE): _distance(name) for name in near}
    values = {key: float(each.compute(inputs.statistics)[0]) for key, each in distances.items()}
    return replace(inputs, quantities=quantities | distances, values=inputs.values | values)


def _distance(name: str) -> Quantity:
    """Return |figure − ideal|."""
    compute, ideal = FIGURES[name].compute, FIGURES[name].ideal

    def above(s: Statistics) -> np.ndarray:
        return compute(s) - (0.0 if ideal is None else ideal(s))

    def gradient(s: Statistics) -> Gradient:
        return {kind: np.sign(above(s)) * each for kind, each in GRADIENTS[name](s, None).items()}

    return Quantity(lambda s: np.abs(above(s)), gradient)


def _difference(models: Contrast, limits: dict[Key, ConfidenceLimits], name: str) -> Difference:
    key, better = (name, None), FIGURES[name].better
    alone = dict(zip("ab", models.models, strict=True))
    reasons = [f"{model}: {inputs.reasons[name]}" for model, inputs in alone.items() if name in inputs.reasons]
    if reasons:
        a, b = (inputs.values.get(key, math.nan) for inputs in alone.values())
        return Difference(math.nan, a=a, b=b, better=better, reason="; ".join(reasons))
    (a, b), value = (inputs.values[key] for inputs in alone.values()), models.value(key)
    if not math.isfinite(value):
        given = [f"{model} gave probability 0 to {each.impossible}" for model, each in alone.items() if each.impossible]
        verdict = _verdict("higher", value, value)
        return Difference(value, a=a, b=b, better=better, verdict=verdict, reason=" and ".join(given) + " example(s)")
    if key not in limits:
        return Difference(value, a=a, b=b, better=better)
    low, high, reason = limits[key]
    low, high = min(low, value), max(high, value)  # NaN stays, being first
    decisive = limits[name, _DISTANCE] if better == "nearer" else ConfidenceLimits(low, high)
    return Difference(value, low, high, a, b, better, _verdict(better, decisive.low, decisive.high), reason)


def _verdict(better: str, low: float, high: float) -> Verdict:
    ahead, behind = (low > 0, high < 0) if better == "higher" else (high < 0, low > 0)
    return "a ahead" if ahead else "b ahead" if behind else "undecided"
