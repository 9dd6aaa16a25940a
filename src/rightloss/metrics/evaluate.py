"""Evaluate predictions at a prevalence: every figure with an interval.

Stage: log_probs, target, prevalence → `Sample` → `EvaluationInputs` → limits, by resampling or by the delta method →
`Evaluation`; for several findings (multi-label), one for each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from typing import Any, Literal, overload

import torch
from torch import Tensor

from ..finding_tables import ByFinding, FindingRows, by_name, for_each_finding, option_by_name
from ..prevalence import FindingMix
from ..rng import checked_level, own_stream
from .class_statistics import Statistics, compute_statistics, make_spec
from .decisions import cost_matrix, decide
from .evaluation_inputs import EvaluationInputs, Key, influences, prepare
from .figures import FIGURES, Evaluation, Figure, calibration_gaps
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
from .sample import IGNORED, Mix, Numbers, Predictions, Sample, labelled_sample

# entries × classes up to which "auto" draws resamples; with more, both methods agree and the analytic one is fast
_MOST_RESAMPLED = 50_000
MOST_UNDEFINED = 0.05  # largest fraction of undefined resamples for which a figure still has an interval
MOST_DRAWN = 1 << 23  # numbers in the table of drawn decisions
_FEWEST_GROUPS, _FEW_EXAMPLES, _SMALL_EFFECTIVE_SIZE = 5, 10, 5.0


@overload
def evaluate(log_probs: Predictions, target: Numbers, prevalence: FindingMix, **options: Any) -> ByFinding[Evaluation]: ...
@overload
def evaluate(
    log_probs: Predictions,
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
) -> Evaluation: ...
def evaluate(  # type: ignore[misc]  # the options of both are the same
    log_probs: Predictions,
    target: Numbers,
    prevalence: Mix | FindingMix,
    *,
    costs: Numbers | Mapping[str, Numbers] | None = None,
    threshold: float | Numbers | Mapping[str, float] | None = None,
    groups: Numbers | None = None,
    intervals: Literal["auto", "bootstrap", "analytic"] | None = "auto",
    level: float = 0.95,
    draws: int = 1000,
    bins: int = 15,
    generator: torch.Generator | None = None,
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
    `Evaluation` for each finding, `found["mass"].auc`, over the rows in which it was read. `threshold` is one for all, a list,
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
        >>> import torch
        >>> from rightloss.metrics import evaluate
        >>> y = torch.arange(200) % 2
        >>> x = torch.randn(200, generator=torch.Generator().manual_seed(0)) + y
        >>> log_probs = torch.log_softmax(torch.stack([-x, x], 1), 1)  # from a balanced training set
        >>> found = evaluate(log_probs, y, prevalence=0.01, threshold=0.9)
        >>> print(f"PPV {found.ppv.value:.3f} ({found.ppv.low:.3f} to {found.ppv.high:.3f})")
        PPV 0.052 (0.029 to 0.102)
    """
    check_options(intervals, draws, bins)
    options: dict[str, Any] = {"intervals": intervals, "draws": int(draws), "bins": int(bins), "generator": generator}
    options["level"] = checked_level(level)
    findings = by_name(prevalence)
    if findings is None:
        sample = labelled_sample(log_probs, target, prevalence, groups, ignore_index)  # type: ignore[arg-type]
        return _evaluation(sample, costs, threshold, **options)
    names, rows = list(findings), FindingRows.of(log_probs, target, prevalence)
    prices, thresholds = option_by_name(costs, names, "costs"), option_by_name(_named(threshold, names), names, "threshold")

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
    sample: Sample,
    costs: Any,
    threshold: Any,
    intervals: str | None,
    draws: int,
    bins: int,
    generator: torch.Generator | None,
    level: float,
) -> Evaluation:
    """Return all figures of a sample; the options are those of `evaluate`, checked."""
    matrix, stream = square(cost_matrix(sample.num_classes, costs, threshold)), own_stream(generator)
    inputs = prepare(sample, make_spec(sample, matrix, bins))
    how = interval_method(intervals, inputs)
    limits = {} if how == "none" else _confidence_limits(inputs, how == "bootstrap", level, draws, stream)
    return Evaluation(
        **{name: _figure(inputs, limits, name) for name in FIGURES},
        level=level,
        intervals=how,
        num_examples=tuple(sample.totals.tolist()),
        population=tuple(sample.prevalence.population.tolist()),
        cost_unit=_cost_unit(costs, threshold),
    )


def _named(threshold: Any, names: list[str]) -> Any:
    """Return a list of thresholds by the findings' names; anything else unchanged."""
    if isinstance(threshold, Mapping) or not hasattr(threshold, "__len__") or getattr(threshold, "ndim", 1) == 0:
        return threshold
    if len(threshold) != len(names):
        raise ValueError(
            f"Expected `threshold` for {len(names)} findings, but got {len(threshold)}: one number, or one for each."
        )
    return dict(zip(names, threshold, strict=True))


def _cells(found: Evaluation) -> dict[str, str]:
    """Return a finding's row of the table."""

    def value(name: str, interval: bool = False) -> str:
        figure = found[name]
        if math.isnan(figure.value):
            return "–"
        limits = f" ({figure.low:.3g} to {figure.high:.3g})" if interval and not math.isnan(figure.low) else ""
        return f"{figure.value:.3g}{limits}" + "*" * bool(figure.reason)

    return {
        "rate": f"{found.population[1]:.3g}",
        "read": f"{sum(found.num_examples):.6g}",
        "present": f"{found.num_examples[1]:.6g}",
        "mean prediction": value("mean_prediction", True),
        "skill": value("skill", True),
        "AUC": value("auc", True),
        "TPR": value("tpr"),
        "TNR": value("tnr"),
        "PPV": value("ppv"),
    }


def _remarks(found: Mapping[str, Evaluation]) -> list[str]:
    """Return the reasons of the figures in the table that have one, with the findings."""
    said: dict[str, list[str]] = {}
    for name, each in found.items():
        for figure in ("mean_prediction", "skill", "auc", "tpr", "tnr", "ppv"):
            if each[figure].reason:
                said.setdefault(each[figure].reason, []).append(name)
    return [f"* {', '.join(dict.fromkeys(names))}: {reason}" for reason, names in said.items()]


def _cost_unit(costs: Numbers | None, threshold: float | None) -> str:
    if costs is not None:
        return "units of `costs`"
    return "an error costs 1" if threshold is None else "a miss costs 1"


def _figure(inputs: EvaluationInputs, limits: dict[Key, ConfidenceLimits], name: str) -> Figure:
    by_class, classes = None, range(inputs.sample.num_classes)
    if any((name, j) in inputs.quantities for j in classes):
        by_class = tuple(_single_figure(inputs, limits, (name, j)) for j in classes)
    return replace(_single_figure(inputs, limits, (name, None)), by_class=by_class)


def _single_figure(inputs: EvaluationInputs, limits: dict[Key, ConfidenceLimits], key: Key) -> Figure:
    if key not in inputs.quantities:
        return Figure(math.nan, reason=inputs.reasons[key[0]])
    if key[0] in ("expected_log_likelihood", "skill") and inputs.impossible:
        return Figure(-math.inf, reason=f"{inputs.impossible} example(s) were given probability 0")
    value = inputs.values[key]
    if key not in limits:
        return Figure(value)
    low, high, reason = limits[key]
    return Figure(value, low if math.isnan(low) else min(low, value), high if math.isnan(high) else max(high, value), reason)


def _confidence_limits(
    inputs: EvaluationInputs, bootstrap: bool, level: float, draws: int, generator: torch.Generator
) -> dict[Key, ConfidenceLimits]:
    """Return the interval of each quantity: for decisions from drawn counts, for others by bootstrap or delta method."""
    sample, design = inputs.sample, inputs.design
    added, classes = influences(inputs)
    make = _by_resampling if bootstrap else _by_delta_method
    limits = make(inputs, added, level, draws, generator)
    examples = design.clusters_by_class(sample.labels, sample.num_classes)
    moved = _with_unseen(inputs.statistics, examples * (sample.effective_totals / sample.totals).nan_to_num(), level)
    for key, formula in inputs.quantities.items():
        counts, size = {c: int(examples[c]) for c in classes[key]}, added[key].effective_size
        limits[key] = qualified(inputs, key, limits[key], size, counts, float(formula(moved)))
    if design.clusters is None and sample.num_classes**2 * draws <= MOST_DRAWN:
        limits |= _from_drawn_decisions(inputs, level, draws, generator)
    return limits


def _by_resampling(
    inputs: EvaluationInputs, added: dict[Key, Influence], level: float, draws: int, generator: torch.Generator
) -> dict[Key, ConfidenceLimits]:
    """Return BCa intervals; with an uncertain prevalence each resample has its own draw of it."""
    sample, spec = inputs.sample, inputs.spec
    uncertain = sample.prevalence.is_uncertain
    parts, parts_moved = [], []
    for counts in resamples(inputs.design, draws, sample.num_classes * spec.size, generator):
        width = counts.shape[1]
        statistics = compute_statistics(sample, spec, counts)
        parts.append(inputs.computed(statistics, width))
        if uncertain:
            population = sample.prevalence.sample(width, generator).T
            parts_moved.append(inputs.computed(replace(statistics, population=population), width))
    table = torch.cat(parts, 1)
    moved = torch.cat(parts_moved, 1) if uncertain else table
    limits: dict[Key, ConfidenceLimits] = {}
    for key, row, row_moved in zip(inputs.quantities, table, moved, strict=True):
        value, influence = inputs.values[key], added[key]
        finite = torch.isfinite(row) & torch.isfinite(row_moved)
        fine, fine_moved = row[finite], row_moved[finite]
        if len(fine) < (1 - MOST_UNDEFINED) * draws:
            reason = f"undefined in {1 - len(fine) / draws:.0%} of the resamples"
            limits[key] = ConfidenceLimits(math.nan, math.nan, reason)
            continue
        if key[0] == "calibration_error":
            ends = _calibration_error_limits(inputs, influence.error, fine_moved if uncertain else None, level)
        elif not uncertain:
            ends = bca(fine, value, influence.acceleration, level)
        elif float(fine.max() - fine.min()) <= 1e-13 * abs(value):  # all resamples are equal
            ends = percentiles(fine_moved, level)
        else:
            ends = bca_weighted(fine, fine_moved, value, influence.acceleration, level)
        limits[key] = ConfidenceLimits(*ends)
    return limits


def _by_delta_method(
    inputs: EvaluationInputs, added: dict[Key, Influence], level: float, draws: int, generator: torch.Generator
) -> dict[Key, ConfidenceLimits]:
    """Return intervals on a scale without the figure's bounds; an uncertain prevalence is drawn."""
    prevalence, moved = inputs.sample.prevalence, None
    if prevalence.is_uncertain:
        population = prevalence.sample(draws, generator).T
        moved = inputs.computed(replace(inputs.statistics, population=population), draws)
    noise = torch.randn(draws, dtype=torch.float64, generator=generator)
    limits: dict[Key, ConfidenceLimits] = {}
    for number, (key, value) in enumerate(inputs.values.items()):
        error, bounds = added[key].error, FIGURES[key[0]].bounds
        row = None if moved is None else moved[number]
        if key[0] == "calibration_error":
            ends = _calibration_error_limits(inputs, error, row, level)
        elif row is None:
            ends = normal_interval(value, error, level, bounds)
        else:
            ends = percentiles(delta_draws(row, noise, value, error, bounds), level)
        limits[key] = ConfidenceLimits(*ends)
    return limits


def _from_drawn_decisions(
    inputs: EvaluationInputs, level: float, draws: int, generator: torch.Generator
) -> dict[Key, ConfidenceLimits]:
    """Return intervals of figures of decisions, from draws of each class's decisions: Dirichlet(counts + 1/K), Jeffreys' for
    two.

    Resampling is bad for counts near 0 or n: it never draws a mistake that did not occur. With weights of rows, the counts are
    those of an effective number of examples.
    """
    statistics, k = inputs.statistics, inputs.sample.num_classes
    counts = (statistics.confusion * _worth(inputs)[:, None, None]).nan_to_num()
    gamma = torch._standard_gamma((counts + 1 / k).expand(k, k, draws).contiguous(), generator=generator)
    drawn = replace(statistics, decided=gamma / gamma.sum(1, keepdim=True))
    if inputs.sample.prevalence.is_uncertain:
        drawn = replace(drawn, population=inputs.sample.prevalence.sample(draws, generator).T)
    return {
        key: ConfidenceLimits(*percentiles(formula(drawn).expand(draws), level))
        for key, formula in inputs.quantities.items()
        if FIGURES[key[0]].of_decisions
    }


def _worth(inputs: EvaluationInputs) -> Tensor:
    """Return the effective number of examples of each class, for its decisions `(k,)`.

    With weights it is that of equally weighted examples with the same variance of the decisions, at most their number (Korn &
    Graubard 1998); (Σ w)²/Σ w² if all decisions are equal.
    """
    sample, totals = inputs.sample, inputs.sample.totals
    if not sample.weighted or sample.votes is None:
        return totals
    decided = decide(sample.per_entry(sample.log_probs), costs=inputs.spec.costs)
    shares = inputs.statistics.confusion[..., 0][sample.labels]
    gaps = torch.nn.functional.one_hot(decided, sample.num_classes) - shares
    variance = torch.bincount(sample.labels, sample.votes.square() * gaps.square().sum(1), minlength=len(totals)) / totals**2
    binomial = (inputs.statistics.confusion[..., 0] * (1 - inputs.statistics.confusion[..., 0])).sum(1)
    return torch.where(variance > 0, torch.minimum(binomial / variance, totals), sample.effective_totals)


def _calibration_error_limits(
    inputs: EvaluationInputs, error: float, at_population: Tensor | None, level: float
) -> tuple[float, float]:
    """Return the `calibration_interval`, widened by the effect of an uncertain prevalence."""
    parts = len(inputs.spec.edges)
    gaps = calibration_gaps(inputs.statistics)[:, 0]
    low, high = calibration_interval(gaps / parts, _calibration_noise(inputs) / parts, error, level)
    if at_population is None:
        return low, high
    value = inputs.values["calibration_error", None]
    least, most = percentiles(at_population, level)
    return max(value - math.hypot(value - low, value - least), 0.0), value + math.hypot(high - value, most - value)


def _calibration_noise(inputs: EvaluationInputs) -> Tensor:
    """Return the standard error of each bin's gap for a correct model, (j·e,).

    Σ_c (π_c²/n_c) Var(p_j − 1{c = j} in the bin | c). A class's mean there is M/π_c, with M = E[p_j (1 − p_j) in the bin] for j
    and, together, for the rest. Treating the rest together is exact for two classes, and slightly too large for more.
    """
    statistics, averages = inputs.statistics, inputs.statistics.averages
    squares, products = ((statistics.population[:, None] * each).sum(0)[:, 0] for each in (averages.squares, averages.products))
    every = inputs.sample.effective_totals
    totals = every[[1] if statistics.num_classes == 2 else slice(None)]
    per_example = 1 / totals + 1 / (every.sum() - totals)
    return (squares - products.square() * per_example.repeat_interleave(inputs.spec.bins)).clamp_min(0).sqrt()


def qualified(
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


def _with_unseen(statistics: Statistics, examples: Tensor, level: float) -> Statistics:
    """Return the statistics if a fraction `unseen_share` of examples were decided or ranked differently.

    This is for each class with equal decisions for all examples, or with all ranked above another class: no resample can
    change them.
    """
    share, confusion, areas = unseen_share(examples, level)[:, None, None], statistics.confusion, statistics.areas
    alike = ((confusion == 1) | (confusion == 0)).all(1, keepdim=True)
    moved = torch.where(confusion == 1, 1 - share, share / max(1, len(examples) - 1))
    fewer = unseen_share(torch.minimum(examples[:, None], examples[None]), level)[..., None]
    moved_areas = torch.where(areas == 1, 1 - fewer, torch.where(areas == 0, fewer, areas))
    return replace(statistics, areas=moved_areas, decided=torch.where(alike, moved, confusion))


def interval_method(intervals: str | None, inputs: EvaluationInputs) -> str:
    """Return the method of the intervals: the given one, or by the size of the sample."""
    if intervals != "auto":
        return "none" if intervals is None else intervals
    sample = inputs.sample
    small = max(len(sample.labels), inputs.spec.size) * sample.num_classes <= _MOST_RESAMPLED
    return "bootstrap" if small else "analytic"


def square(costs: Tensor) -> Tensor:
    """Return checked costs with one decision per class."""
    if costs.shape[0] != costs.shape[1]:
        raise ValueError(
            f"Expected `costs` with a decision per class to evaluate, but got shape {tuple(costs.shape)}: "
            "for other decisions use `decide` and `expected_cost`."
        )
    return costs


def check_options(intervals: object, draws: object, bins: object) -> None:
    """Raise a ValueError for invalid options of the intervals."""
    if intervals not in ("auto", "bootstrap", "analytic", None):
        raise ValueError(f'Expected `intervals` "auto", "bootstrap", "analytic" or None, but got {intervals!r}: choose one.')
    for name, value, least in (("draws", draws, 100), ("bins", bins, 1)):
        if not isinstance(value, Integral) or int(value) < least:
            raise ValueError(
                f"Expected `{name}` to be an int of at least {least}, but got {value!r}: leave it out for the default."
            )
