"""Test for label shift: whether labelled and unlabelled predictions differ only in their class frequencies.

Stage: target `log_probs`, held-out `log_probs` and labels → `LabelShiftTest`. Every estimate of a prevalence assumes label
shift.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
from scipy.special import chdtrc, xlogy

from ..arrays import Numbers, Predictions, array_of, array_or_tensor, checked_level, log_prob_table, rows_of
from ..calibration.held_out import HeldOut, held_out_set
from ..finding_tables import ByFinding, FindingRows, by_name, finding_tables, for_each_finding, in_order
from ..prevalence import FindingMix, Frequencies, Prevalence, frequencies
from .bbse_rlls import covariance, prediction_moments

_MOST_BINS = 6  # bins per predicted class
_PER_BIN = 25  # rows of either set per bin, if possible
_WORST_CONDITION = 30.0
_WORST_ERROR = 0.1


class LabelShiftWarning(UserWarning):
    """Warn that an estimated prevalence, or a model trained with unlabelled rows, is not reliable.

    Examples:
        >>> import warnings
        >>> from rightloss.shift import LabelShiftWarning
        >>> warnings.filterwarnings("error", category=LabelShiftWarning)  # stop instead of going on
        >>> warnings.resetwarnings()
    """


@dataclass(frozen=True)
class LabelShiftTest:
    """The result of `label_shift_test`.

    Attributes:
        p_value: of the hypothesis that only the class frequencies differ. If it is small, something else differs as well.
        tenable: whether the p-value is at least 1 − level.
        statistic: the deviance of the best fit of the target's predictions by a mixture of the held-out classes.
        degrees: its degrees of freedom.
        sampling_p_value: of the hypothesis that the held-out labels have the mix `sampling`; None if none was given.
        condition: condition number of the confusion matrix p(predicted|true), the largest factor of errors of the mean
            prediction.
        error: the largest standard error of an estimated class frequency.
        well_conditioned: whether condition ≤ 30 and error ≤ 0.1, so that a prevalence can be estimated from these sets.
        message: the result as text.
        complaints: the problems found, as sentences; empty if there are none.

    Examples:
        >>> import numpy as np
        >>> from scipy.special import log_softmax
        >>> from rightloss.shift import label_shift_test
        >>> y = np.arange(2000) % 2
        >>> x = np.random.default_rng(0).normal(2.0 * y - 1)
        >>> log_probs = log_softmax(np.stack([-x, x], 1), 1)
        >>> label_shift_test(log_probs, held_out=(log_probs, y)).well_conditioned
        True
    """

    p_value: float
    tenable: bool
    statistic: float
    degrees: int
    sampling_p_value: float | None
    condition: float
    error: float
    well_conditioned: bool
    message: str
    complaints: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.message


@overload
def label_shift_test(log_probs: Predictions, held_out: Any, sampling: FindingMix, **o: Any) -> ByFinding[LabelShiftTest]: ...
@overload
def label_shift_test(
    log_probs: Predictions, held_out: Any, sampling: Frequencies | Prevalence | None = None, **options: Any
) -> LabelShiftTest: ...
def label_shift_test(  # type: ignore[misc]  # the options of both are these
    log_probs: Predictions,
    held_out: tuple[Predictions, Numbers] | list[Any],
    sampling: Frequencies | Prevalence | FindingMix | None = None,
    *,
    level: float = 0.95,
    folds: tuple[Numbers, Numbers] | None = None,
) -> LabelShiftTest | ByFinding[LabelShiftTest]:
    """Test whether the target is a mixture of the held-out set's classes; warn with `LabelShiftWarning` if it is not.

    Under label shift p(x|y) is the same in both sets. So every function of x, such as the bin of the prediction, has the
    distribution Σ_k π_k P_k in the target, with P_k its distribution over held-out examples of class k. With more bins than
    classes this can be tested. π and P are fitted to the counts of both sets by maximum likelihood, which includes the noise
    of both. The deviance, 2 Σ observed · log(observed / expected), is then χ² with (bins − 1) − (K − 1) degrees of freedom. It
    stays so with few held-out rows of a class, where Pearson's statistic does not: one row where hardly any is expected
    decides that. A class that may be absent (its
    frequency is within 2 standard errors of 0) does not reduce the degrees of freedom: if it is absent, the statistic is a
    mixture of χ² with and without its degree, and the larger number keeps the size below 1 − level, with some loss of power. A
    bin is a predicted class and a range of that class's probability. So p depends on the model, and on the mix of its
    predictions. If that mix makes a class too rare to be predicted, move both sets to equal classes first (`retarget`).

    Args:
        log_probs: predictions on unlabelled target data `(n, k)`, or dense maps `(n, k, h, w, …)`. Rows and cells are assumed
            to be independent; pixels of an image are not, so p-values are then too small.
        held_out: `(log_probs, labels)` of the same model on labelled data that it was not trained on.
        sampling: ρ, the mix of the predictions; if given, the held-out labels are tested against it. With a
            `Prevalence.multilabel`, or a dict of rates by finding, each finding is tested, as in `estimate_prevalence`.
        level: a p-value below 1 − level is not tenable.
        folds: if several models of a cross-validation predicted the rows, the number of each row's model: of the target `(n,)`,
            and of the held-out rows `(m,)`. Each model's rows are tested alone, and the statistics added: a model was trained
            on the rows that the others are tested on, so all held-out predictions together vary more than independent ones.
            If no model has enough rows for that, all rows are tested together.

    Examples:
        >>> import numpy as np
        >>> from scipy.special import log_softmax
        >>> from rightloss.shift import label_shift_test
        >>> draw = np.random.default_rng(0)
        >>> def predict(y):  # at equal classes, N(−1, 1) and N(1, 1)
        ...     x = draw.normal(2.0 * y - 1)
        ...     return log_softmax(np.stack([-x, x], 1), 1)
        >>> labels, unknown = np.arange(2000) % 2, np.arange(2000) % 10 == 0
        >>> held_out, target = predict(labels), predict(unknown)
        >>> label_shift_test(target, held_out=(held_out, labels)).tenable
        True
    """
    level = checked_level(level)
    findings = by_name(sampling)
    if findings is not None:
        tables = finding_tables(in_order(log_probs, list(findings)), len(findings))
        pairs = held_out_by_finding(held_out, sampling)

        def tested(number: int, name: str) -> LabelShiftTest:
            return label_shift_test(tables[:, :, number], pairs[number], findings[name], level=level, folds=folds)

        return ByFinding(for_each_finding(findings, tested, stacklevel=3), _cells, "Label shift by finding")
    target = log_prob_table(rows_of(array_or_tensor(log_probs, "log_probs"))).astype(np.float64, copy=False)
    data = held_out_set(held_out, target.shape[1])
    data.require_every_class()
    rho = None if sampling is None else sampling_mix(sampling, target.shape[1])  # type: ignore[arg-type]
    means = prediction_moments([target], data, soft=False)
    fits = [_distance(*_binned(*part)) for part in _parts(target, data, folds)]
    if max(fit.bins for fit in fits) <= target.shape[1]:  # no model has enough rows to be tested alone
        fits = [_distance(*_binned(target, data))]
    population = np.average([fit.population for fit in fits], axis=0, weights=[fit.rows for fit in fits])
    errors = np.sqrt(np.diag(covariance(means, population)))
    present = max(1, int((population > 2 * errors).sum()))
    used = [fit for fit in fits if fit.bins > present]
    statistic, degrees = float(sum(fit.statistic for fit in used)), sum(fit.bins - present for fit in used)
    p_value = float(chdtrc(degrees, statistic)) if degrees > 0 else 1.0
    of_mix = None if rho is None else goodness_of_fit(data.counts, rho)
    condition, error = float(np.linalg.cond(means.by_class)), float(errors.max())
    complaints = _complaints(p_value, degrees, of_mix, condition, error, 1 - level)
    summary = f"p = {p_value:.3g} (χ² = {statistic:.1f}, {degrees} degrees), condition {condition:.3g}, "
    summary += f"standard error ≤ {error:.2g}."
    message = " ".join([*(complaints or ["The sets may differ in their mix of classes alone:"]), summary])
    if complaints:
        warnings.warn(message, LabelShiftWarning, stacklevel=2)
    sight = (condition, error, condition <= _WORST_CONDITION and error <= _WORST_ERROR)
    return LabelShiftTest(p_value, p_value >= 1 - level, statistic, degrees, of_mix, *sight, message, tuple(complaints))


def _cells(found: LabelShiftTest) -> dict[str, str]:
    """Return a finding's row of the table."""
    return {"p": f"{found.p_value:.3g}", "condition": f"{found.condition:.3g}", "": " ".join(found.complaints) or "tenable"}


def held_out_by_finding(held_out: Any, sampling: Any) -> list[Any]:
    """Return the held-out predictions and labels of each finding, as those of two classes; None for each without them."""
    if getattr(sampling, "patterns", None) is not None:
        raise ValueError(
            "Expected rates of findings that were sampled each by itself, but `sampling` has weights of rows by the findings "
            "they have together: pass the rates at which the predictions hold, dict(zip(prevalence.names, "
            "prevalence.population.tolist())) after one of rightloss's losses, with a random sample of held-out rows."
        )
    if held_out is None:
        return [None] * len(by_name(sampling) or ())
    if not isinstance(held_out, tuple | list) or len(held_out) != 2:
        held_out_set(held_out)  # raises
    rows = FindingRows.of(held_out[0], held_out[1], sampling, "held_out labels")
    return [rows[number][:2] for number in range(len(rows.names))]


def sampling_mix(sampling: Frequencies | Prevalence, num_classes: int) -> np.ndarray:
    """Return ρ (K,) from K frequencies, that of class 1 for two classes, or a `Prevalence`."""
    given = sampling.sampling if isinstance(sampling, Prevalence) else sampling
    return frequencies(given, "sampling", num_classes)


def goodness_of_fit(counts: np.ndarray, rho: np.ndarray) -> float:
    """Return the p-value of Pearson's test that labels with these counts (K,) have the mix ρ."""
    expected = counts.sum() * rho
    return float(chdtrc(len(rho) - 1, ((counts - expected) ** 2 / expected).sum()))


def _binned(target: np.ndarray, data: HeldOut) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows in each bin: of the target (B,), and of each held-out class `(B, K)`."""
    size = target.shape[1]
    both = (target, data.log_probs)
    # of two classes, the probability of the other ranks confident predictions without rounding
    score = np.concatenate([-each.min(1) if size == 2 else each.max(1) for each in both])
    predicted = np.concatenate([each.argmax(1).astype(np.int16) for each in both])
    kind = np.concatenate([np.full(len(target), size, np.int16), data.labels.astype(np.int16)])  # the target is one more column
    bins, first = np.zeros(len(score), dtype=np.int32), 0
    for k in np.unique(predicted):
        rows = predicted == k
        edges = _edges(score[rows], kind[rows] == size)
        bins[rows] = first + np.searchsorted(edges, score[rows])
        first += len(edges) + 1
    counts = np.bincount(bins * (size + 1) + kind, minlength=first * (size + 1)).reshape(first, size + 1).astype(float)
    return counts[:, -1], counts[:, :-1]


def _edges(score: np.ndarray, is_target: np.ndarray) -> np.ndarray:
    """Return quantiles of the scores, with equal weight for both sets; all below the largest score, so that no bin is empty."""
    ours, theirs = int(is_target.sum()), int((~is_target).sum())
    parts = min(_MOST_BINS, max(1, min(ours, theirs) // _PER_BIN))
    weight, order = np.where(is_target, 0.5 / max(ours, 1), 0.5 / max(theirs, 1)), score.argsort()
    places = np.searchsorted(weight[order].cumsum() / weight.sum(), np.arange(1, parts) / parts - 1e-12)  # not by rounding
    edges = np.unique(score[order][places.clip(max=len(order) - 1)])
    return edges[edges < score.max()]


def _parts(target: np.ndarray, data: HeldOut, folds: tuple[Numbers, Numbers] | None) -> Iterator[tuple[np.ndarray, HeldOut]]:
    """Yield the rows of each model that has some of both sets, with every class in the second; all rows if there is none."""
    if folds is None:
        yield target, data
        return
    ours, theirs = (array_of(each, "folds") for each in folds)
    if ours.shape != (len(target),) or theirs.shape != data.labels.shape:
        expected, came = f"{len(target)} and {len(data.labels)} `folds`", f"shapes {ours.shape} and {theirs.shape}"
        raise ValueError(f"Expected {expected}, those of target and held-out rows, but got {came}: a number for every row.")
    full = [j for j in np.unique(theirs) if data.take(theirs == j).counts.all() and (ours == j).any()]
    yield from ((target[ours == j], data.take(theirs == j)) for j in full)  # one at a time, as the target may be large
    if not full:
        yield target, data


class _Fit(NamedTuple):
    """A fitted mixture: its deviance, π, and the number of bins and target rows."""

    statistic: float
    population: np.ndarray
    bins: int
    rows: float


def _distance(counts: np.ndarray, by_class: np.ndarray) -> _Fit:
    """Fit P `(B, K)` and π (K,) to the counts of both sets by maximum likelihood; return the deviance over all cells.

    By EM over the target rows' classes. Each step increases the likelihood; the steps end when the gain is below 1e-6, far
    below the resolution of a χ².
    """
    sizes, rows = by_class.sum(0), counts.sum()
    pooled = (counts + by_class.sum(1)) / (rows + sizes.sum())
    shares = (by_class + 0.5 * pooled[:, None]) / (sizes + 0.5)  # no cell starts at 0, because EM would keep it there
    population, before = np.full(len(sizes), 1 / len(sizes)), -np.inf
    for _ in range(10_000):
        mixed = shares @ population
        value = counts @ np.log(mixed) + xlogy(by_class, shares).sum()
        if value - before < 1e-6:
            break
        before = value
        owned = shares * population * (counts / mixed)[:, None]
        shares, population = (by_class + owned) / (sizes + owned.sum(0)), owned.sum(0) / rows
    observed = np.column_stack([counts, by_class])
    expected = np.column_stack([rows * (shares @ population), sizes * shares])
    deviance = 2 * float((xlogy(observed, observed) - xlogy(observed, expected)).sum())
    return _Fit(max(0.0, deviance), population, len(counts), float(rows))


def _complaints(p: float, degrees: int, of_mix: float | None, condition: float, error: float, size: float) -> list[str]:
    blurred, other_mix = condition > _WORST_CONDITION, of_mix is not None and of_mix < size
    said = {
        "The target is no mixture of the held-out classes: p(x|y) differs as well, and an estimated prevalence may be far "
        "off; look for changes in scanner, site or case selection.": p < size,
        "Too few rows for more bins than classes: label shift cannot be tested; collect more of either set.": degrees < 1,
        "The held-out labels do not have the mix `sampling`; pass the mix of the predictions.": other_mix,
        "The model hardly distinguishes some classes, so its predictions cannot show their frequencies.": blurred,
        "The sets are too small to estimate a prevalence from these predictions; collect more of either.": (
            error > _WORST_ERROR and not blurred
        ),
    }
    return [sentence for sentence, wrong in said.items() if wrong]
