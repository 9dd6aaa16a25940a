"""Evaluate predictions at a prevalence: every figure with an interval.

Stage: log_probs, target, prevalence → `Sample` → `EvaluationInputs` → limits, by resampling or by the delta method →
`Evaluation`; for several findings (multi-label), one for each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, overload

import numpy as np

from ..arrays import checked_choice, checked_int, checked_level
from ..finding_tables import ByFinding, FindingRows, by_name, for_each_finding, option_by_name
from ..prevalence import FindingMix
from .class_statistics import make_spec
from .confidence import Contrast, EvaluationInputs, Key, confidence_limits, prepare
from .decisions import cost_matrix
from .figures import FIGURES, Evaluation, Figure
from .intervals import ConfidenceLimits
from .sample import IGNORED, Mix, Numbers, Predictions, Sample, labelled_sample

# entries × classes up to which "auto" draws resamples; with more, both methods agree and the analytic one is fast
_MOST_RESAMPLED = 50_000


@overload
def evaluate(log_probs: Predictions, target: Numbers, prevalence: FindingMix, **options: Any) -> ByFinding[Evaluation]: ...
@overload
def evaluate(log_probs: Predictions, target: Numbers, prevalence: Mix, **options: Any) -> Evaluation: ...
def evaluate(  # type: ignore[misc]  # the options of both are the same
    log_probs: Predictions,
    target: Numbers,
    prevalence: Mix | FindingMix,
    *,
    costs: Numbers | Mapping[str, Numbers] | None = None,
    threshold: float | Mapping[str, float] | None = None,
    groups: Numbers | None = None,
    intervals: Literal["auto", "bootstrap", "analytic"] | None = "auto",
    level: float = 0.95,
    draws: int = 1000,
    bins: int = 15,
    generator: Any = None,
    ignore_index: int = IGNORED,
) -> Evaluation | ByFinding[Evaluation]:
    """Evaluate predictions at the class frequencies `prevalence`, for labels with any class frequencies.

    Everything is averaged within each class, and the classes are weighted by π. Predictions are not changed: if they are for
    another prevalence, move them to this one first (`retarget`), or they are miscalibrated.

    With an uncertain prevalence (`Prevalence.beta`, `.dirichlet`) the value is that at the mean of π, and the interval includes
    the uncertainty of π as well as the noise of the sample. An estimate (`estimate_prevalence`) is used as the uncertain
    `Prevalence` from its `prevalence()`: the Dirichlet with its mean and uncertainty.

    **Several findings** (multi-label), with a `Prevalence.multilabel` or a dict by name of rates, prevalences or estimates:
    log-probabilities of presence `(n, L)`, targets `(n, L)` of 0 and 1, NaN where a finding was not read. The result has an
    `Evaluation` for each finding, `found["mass"].auc`, over the rows in which it was read. `threshold` is one for all,
    or a dict by name, `costs` one table or a dict. If images were sampled by findings together
    (`Prevalence.from_label_matrix`), rows have the weights of their patterns: then they must have been sampled in that way.

    Args:
        log_probs: predictions `(n, k)`, or dense maps `(n, k, h, w, …)` with an example per cell, as log-probabilities.
        target: int labels `(n,)` or `(n, h, w, …)`, for two classes also bools; or soft votes of the predictions' shape, which
            sum to 1 over the classes: then an example counts for each class by its fraction of the votes.
        prevalence: a `Prevalence`, an estimate of one, K frequencies, or for two classes that of class 1.
        costs: `(k, k)`, a row for each true class and a column for each decision, in any unit; decisions minimise the expected
            cost. `[[0, 1], [20, 0]]`: a missed class 1 costs 20 false alarms. None means 1 for every mistake, so that the
            most probable class is decided. `expected_cost` is in the unit of these costs, per decision.
        threshold: for two classes, instead of `costs`: decide 1 from this probability t on. A miss then costs 1, and a false
            alarm t/(1 − t).
        groups: ids of patients (or sites) `(n,)`: examples with the same id are drawn together. For dense maps they are the
            images' patients; without them each image is drawn as a whole, because its cells are correlated.
        intervals: "bootstrap" for BCa, stratified by class; "analytic" for the delta method (for AUC DeLong's), for large
            samples; "auto" for the first up to 50,000 examples × classes, then the second; None for no intervals. In both,
            figures of decisions use draws of each class's decisions, unless there are groups or votes.
        level: coverage of the intervals.
        draws: number of resamples.
        bins: number of bins of equal weight in the population, for the calibration error.
        generator: random generator for the resamples; with a fixed seed by default, so that equal input gives equal output.
        ignore_index: the int label of examples to ignore.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import evaluate
        >>> y = np.arange(200) % 2
        >>> x = np.random.default_rng(0).normal(size=200) + y
        >>> log_probs = -np.logaddexp(0, np.stack([2 * x, -2 * x], 1))  # from a balanced training set
        >>> found = evaluate(log_probs, y, prevalence=0.01, threshold=0.9)
        >>> print(f"PPV {found.ppv.value:.3f} ({found.ppv.low:.3f} to {found.ppv.high:.3f})")
        PPV 0.044 (0.026 to 0.076)
    """
    options = checked_options(intervals, level, draws, bins, generator)
    findings = by_name(prevalence)
    if findings is None:
        sample = labelled_sample(log_probs, target, prevalence, groups, ignore_index)  # type: ignore[arg-type]
        return _evaluation(sample, costs, threshold, **options)
    names, rows = list(findings), FindingRows.of(log_probs, target, prevalence)
    prices, thresholds = option_by_name(costs, names, "costs"), option_by_name(threshold, names, "threshold")

    def evaluated(number: int, name: str) -> Evaluation:
        table, labels, weights = rows[number]
        sample = labelled_sample(table, labels, findings[name], groups, weights=weights)
        return _evaluation(sample, prices[name], thresholds[name], **options)

    found = for_each_finding(names, evaluated, stacklevel=3)
    title = "By finding, each at its rate in the population"
    title += "" if intervals is None else f"; {level:.0%} intervals"
    if threshold is not None:
        title += f"; present from {', '.join(f'{each:g}' for each in dict.fromkeys(map(float, thresholds.values())))} on"
    title += "; rows weighted by the findings they have together" * (rows.weights is not None)
    return ByFinding(found, _cells, title, _remarks(found))


def _evaluation(
    sample: Sample, costs: Any, threshold: Any, intervals: str | None, level: float, draws: int, bins: int, generator: Any
) -> Evaluation:
    """Return all figures of a sample; the options are those of `evaluate`, checked."""
    inputs = prepare(sample, make_spec(sample, square_costs(sample.num_classes, costs, threshold), bins))
    how = _interval_method(intervals, inputs)
    limits = {} if how == "none" else confidence_limits(Contrast((inputs,)), how == "bootstrap", level, draws, generator)
    figures = {name: _figure(inputs, limits, name) for name in FIGURES}
    counts, population = (tuple(each.tolist()) for each in (sample.totals, sample.prevalence.population))
    unit = "an error costs 1" if threshold is None else "a miss costs 1"
    return Evaluation(figures, level, how, counts, population, unit if costs is None else "units of `costs`")


def _cells(found: Evaluation) -> dict[str, str]:
    """Return a finding's row of the table."""

    def value(name: str, interval: bool = False) -> str:
        figure = found[name]
        if math.isnan(figure.value):
            return "–"
        limits = f" ({figure.low:.3g} to {figure.high:.3g})" if interval and not math.isnan(figure.low) else ""
        return f"{figure.value:.3g}{limits}" + "*" * bool(figure.reason)

    read = {"read": sum(found.num_examples), "present": found.num_examples[1]}
    wide = {"mean prediction": "mean_prediction", "skill": "skill", "AUC": "auc"}
    cells = {"rate": f"{found.population[1]:.3g}"} | {name: f"{number:.6g}" for name, number in read.items()}
    cells |= {name: value(figure, True) for name, figure in wide.items()}
    return cells | {name.upper(): value(name) for name in ("tpr", "tnr", "ppv")}


def _remarks(found: Mapping[str, Evaluation]) -> list[str]:
    """Return the reasons of the figures in the table that have one, with the findings."""
    said: dict[str, list[str]] = {}
    for name, each in found.items():
        for figure in ("mean_prediction", "skill", "auc", "tpr", "tnr", "ppv"):
            if each[figure].reason:
                said.setdefault(each[figure].reason, []).append(name)
    return [f"* {', '.join(dict.fromkeys(names))}: {reason}" for reason, names in said.items()]


def _figure(inputs: EvaluationInputs, limits: dict[Key, ConfidenceLimits], name: str) -> Figure:
    by_class, classes = None, range(inputs.sample.num_classes)
    if any((name, j) in inputs.quantities for j in classes):
        by_class = tuple(_single_figure(inputs, limits, (name, j)) for j in classes)
    return replace(_single_figure(inputs, limits, (name, None)), by_class=by_class)


def _single_figure(inputs: EvaluationInputs, limits: dict[Key, ConfidenceLimits], key: Key) -> Figure:
    if key not in inputs.quantities:
        return Figure(math.nan, reason=inputs.reasons[key[0]])
    value = inputs.values[key]
    if value == -math.inf:
        return Figure(value, reason=f"{inputs.impossible} example(s) were given probability 0")
    low, high, reason = limits.get(key, ConfidenceLimits(math.nan, math.nan))
    return Figure(value, min(low, value), max(high, value), reason)  # NaN stays, being first


def _interval_method(intervals: str | None, inputs: EvaluationInputs) -> str:
    """Return the method of the intervals: the given one, or by the size of the sample."""
    if intervals != "auto":
        return intervals or "none"
    k, spec = inputs.sample.num_classes, inputs.spec
    numbers = sum(spec.fields.values()) + k + 3 * len(spec.edges) * spec.bins
    small = max(len(inputs.sample.labels), numbers) * k <= _MOST_RESAMPLED
    return "bootstrap" if small else "analytic"


def square_costs(num_classes: int, costs: Any, threshold: Any) -> np.ndarray:
    """Return checked costs with one decision per class."""
    matrix = cost_matrix(num_classes, costs, threshold)
    if matrix.shape[0] != matrix.shape[1]:
        remedy = "for other decisions use `decide` and `expected_cost`"
        raise ValueError(f"Expected `costs` with a decision per class, but got shape {matrix.shape}: {remedy}.")
    return matrix


def checked_options(intervals: Any, level: Any, draws: Any, bins: Any, generator: Any) -> dict[str, Any]:
    """Return the options of the intervals, or raise a ValueError."""
    how = checked_choice(intervals, "intervals", ("auto", "bootstrap", "analytic", None))
    numbers = {"draws": checked_int(draws, "draws", 100), "bins": checked_int(bins, "bins", 1)}
    return {"intervals": how, "level": checked_level(level), "generator": generator, **numbers}
