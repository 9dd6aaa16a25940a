"""ROC and precision-recall curves over all thresholds, reliability curves, and histograms of the predictions by class.

Stage: log_probs, target, π → a frozen curve of arrays, ready to plot. One class, `positive`, is compared with the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..arrays import array_of, checked_choice, checked_int, checked_level, random_generator
from .intervals import normal_interval, unseen_share
from .one_vs_rest import Array, Scores, positive_class, scores
from .sample import IGNORED, Mix, Numbers, Predictions, labelled_sample


@dataclass(frozen=True)
class RocCurve:
    """A ROC curve: a point per distinct prediction, from "nobody is called positive" (0, 0) to "everybody is" (1, 1).

    Attributes:
        false_positive_rate: share of the rest called positive.
        true_positive_rate: share of the positive class called positive.
        threshold: predictions p(positive|x) ≥ this are called positive; ∞ at the first point. Predictions that round to the
            same probability, but differ in their logarithms, have separate points with the same threshold.
        auc: area under the curve: the probability that a positive has a higher prediction than another, with ties as one half.
        positive: the class.
        low: lower limit of the area, by DeLong's variance, that of Obuchowski for groups; π is taken as known.
        high: upper limit.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import RocCurve, roc_curve
        >>> p = np.array([0.1, 0.4, 0.3, 0.8])  # of class 1
        >>> log_probs, y = np.log(np.stack([1 - p, p], 1)), [0, 0, 1, 1]
        >>> isinstance(roc_curve(log_probs, y), RocCurve)
        True
    """

    false_positive_rate: Array
    true_positive_rate: Array
    threshold: Array
    auc: float
    positive: int
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class PrecisionRecallCurve:
    """Precision against recall: a point per distinct prediction, the highest threshold first.

    Attributes:
        recall: fraction of the positive class called positive (TPR).
        precision: fraction of those called positive in the population who are positive (PPV).
        threshold: predictions p(positive|x) ≥ this are called positive, as in `RocCurve`.
        average_precision: `Σ (R_i − R_{i−1}) P_i`.
        prevalence: π of the class: the precision of calling everybody positive.
        positive: the class.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import precision_recall_curve
        >>> p = np.array([0.1, 0.4, 0.3, 0.8])  # of class 1
        >>> log_probs, y = np.log(np.stack([1 - p, p], 1)), [0, 0, 1, 1]
        >>> precision_recall_curve(log_probs, y, prevalence=0.1).recall.tolist()
        [0.5, 0.5, 1.0, 1.0]
    """

    recall: Array
    precision: Array
    threshold: Array
    average_precision: float
    prevalence: float
    positive: int


@dataclass(frozen=True)
class ProbabilityHistogram:
    """A histogram of the predicted probability of one class, by true class.

    Attributes:
        edges: edges of the bins `(b + 1,)`, probabilities or log-odds.
        share: fraction of each class's examples in the bin `(k, b)`; a row sums to 1.
        scale: "probability" or "log-odds".
        positive: the class predicted.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import probability_histogram
        >>> p = np.array([0.1, 0.4, 0.3, 0.8])  # of class 1
        >>> log_probs, y = np.log(np.stack([1 - p, p], 1)), [0, 0, 1, 1]
        >>> probability_histogram(log_probs, y, bins=2).edges.tolist()
        [0.0, 0.5, 1.0]
    """

    edges: Array
    share: Array
    scale: str
    positive: int


@dataclass(frozen=True)
class ReliabilityCurve:
    """Observed against predicted frequency, in increasing bins without the empty ones. See `reliability_curve`.

    Attributes:
        predicted: mean prediction in the bin, over the population `(b,)`.
        observed, low, high: frequency of the positive class in the bin, at π, with limits `(b,)`.
        weight: the fraction of the population in the bin `(b,)`; they sum to 1.
        prevalence: π of the class.
        level: the level of the limits.
        positive: the class.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import reliability_curve
        >>> p = np.array([0.1, 0.4, 0.3, 0.8])  # of class 1
        >>> log_probs, y = np.log(np.stack([1 - p, p], 1)), [0, 0, 1, 1]
        >>> reliability_curve(log_probs, y, prevalence=0.1, bins=2).weight.round(2).tolist()
        [0.5, 0.5]
    """

    predicted: Array
    observed: Array
    low: Array
    high: Array
    weight: Array
    prevalence: float
    level: float
    positive: int


def roc_curve(
    log_probs: Predictions,
    target: Numbers,
    positive: int | None = None,
    prevalence: Mix | None = None,
    ignore_index: int = IGNORED,
    *,
    groups: Numbers | None = None,
    level: float = 0.95,
) -> RocCurve:
    """Return true and false positive rates over all thresholds. For two classes they are the same at every prevalence.

    Args:
        log_probs: predictions `(n, k)`, or dense maps `(n, k, h, w, …)`, as log-probabilities.
        target: int labels `(n,)` or `(n, h, w, …)`, or soft votes of the predictions' shape.
        positive: the positive class; 1 for two classes by default.
        prevalence: π, which weights the other classes in "the rest"; needed for more than two classes.
        ignore_index: the int label of examples to ignore.
        groups: ids of patients (or sites) `(n,)`, for the limits of the area: rows with the same id may be correlated. For
            dense maps they are the images' patients; without them each image is a group.
        level: coverage of these limits.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import roc_curve
        >>> p = np.array([0.1, 0.4, 0.3, 0.8])  # of class 1
        >>> log_probs, y = np.log(np.stack([1 - p, p], 1)), [0, 0, 1, 1]
        >>> curve = roc_curve(log_probs, y)
        >>> curve.auc, curve.true_positive_rate.tolist()
        (0.75, [0.0, 0.5, 0.5, 1.0, 1.0])
    """
    found = scores(log_probs, target, prevalence, positive, "a ROC curve", groups, ignore_index)
    fpr, tpr, threshold = _rates(found)
    auc = float(np.sum(np.diff(fpr) * (tpr[1:] + tpr[:-1])) / 2)
    return RocCurve(fpr, tpr, threshold, auc, found.positive, *_area_limits(found, fpr, tpr, auc, checked_level(level)))


def precision_recall_curve(
    log_probs: Predictions, target: Numbers, prevalence: Mix, positive: int | None = None, ignore_index: int = IGNORED
) -> PrecisionRecallCurve:
    """Return precision at π, `π TPR / (π TPR + (1 − π) FPR)`, and recall, over all thresholds.

    Args:
        log_probs: predictions `(n, k)`, or dense maps `(n, k, h, w, …)`, as log-probabilities.
        target: int labels `(n,)` or `(n, h, w, …)`, or soft votes of the predictions' shape, in any mix of classes.
        prevalence: π: a `Prevalence` (its mean if uncertain), an estimate of one, K frequencies, or for two classes that of
            class 1.
        positive: the positive class; 1 for two classes by default.
        ignore_index: the int label of examples to ignore.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import precision_recall_curve
        >>> p = np.array([0.1, 0.4, 0.3, 0.8])  # of class 1
        >>> log_probs, y = np.log(np.stack([1 - p, p], 1)), [0, 0, 1, 1]
        >>> curve = precision_recall_curve(log_probs, y, prevalence=0.1)
        >>> curve.precision.round(3).tolist()
        [1.0, 0.1, 0.182, 0.1]
    """
    found = scores(log_probs, target, prevalence, positive, "a precision-recall curve", ignore_index=ignore_index)
    fpr, tpr, threshold = (each[1:] for each in _rates(found))
    right, wrong = found.rate * tpr, (1 - found.rate) * fpr
    precision = right / (right + wrong)
    average = float(np.sum(np.diff(tpr, prepend=0.0) * precision))
    return PrecisionRecallCurve(tpr, precision, threshold, average, found.rate, found.positive)


def reliability_curve(
    log_probs: Predictions,
    target: Numbers,
    prevalence: Mix,
    bins: int = 15,
    positive: int | None = None,
    width: Literal["equal-mass", "equal-width"] = "equal-mass",
    level: float = 0.95,
    generator: Any = None,
    groups: Numbers | None = None,
    ignore_index: int = IGNORED,
) -> ReliabilityCurve:
    """Compare predicted probabilities of one class with how often it occurs, in bins of predictions, at the prevalence π.

    In bin b the class has the frequency `π a₁ / (π a₁ + (1 − π) a₀)`, with a₁, a₀ the fractions of it and of the rest in b.
    The limits are computed as those of `decision_curve`, for fixed edges of the bins.

    Args:
        log_probs: predictions for the population `(n, k)`, or dense maps `(n, k, h, w, …)`, as log-probabilities.
        target: int labels `(n,)` or `(n, h, w, …)`, or soft votes of the predictions' shape, in any mix of classes.
        prevalence: π: a `Prevalence`, an estimate of one, K frequencies, or for two classes that of class 1.
        bins: the number of bins.
        positive: the class; 1 where there are two.
        width: "equal-mass", the same fraction of the population in each bin as far as ties allow, or "equal-width"; a
            probability at an edge is in the upper bin.
        level: coverage of the limits.
        generator: random numbers for the limits; with a fixed seed by default.
        groups: ids of patients (or sites) `(n,)`, if rows are not independent; by default each image of a dense map is a group.
        ignore_index: the int label of examples to ignore.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import reliability_curve
        >>> p = np.array([0.1, 0.1, 0.1, 0.1, 0.8, 0.8])
        >>> curve = reliability_curve(np.log(np.stack([1 - p, p], 1)), [0, 0, 0, 1, 0, 1], prevalence=0.2, bins=2)
        >>> curve.predicted.round(3).tolist(), curve.observed.round(3).tolist()
        ([0.1, 0.8], [0.143, 0.333])
    """
    level, bins, stream = checked_level(level), checked_int(bins, "bins", 1), random_generator(generator)
    even = checked_choice(width, "width", ("equal-mass", "equal-width")) == "equal-mass"
    found = scores(log_probs, target, prevalence, positive, "a reliability curve", groups, ignore_index)
    weights = found.sample.population_weights
    mass = np.bincount(found.place, weights)
    # of lower predictions, plus half of that of equal ones
    share = (mass.cumsum() - mass / 2)[found.place] if even else _to_bin(found)
    _, index = np.unique(np.minimum((share * bins).astype(np.int64), bins - 1), return_inverse=True)
    weight: Array = np.bincount(index, weights).astype(np.float64)
    predicted = np.bincount(index, weights * found.probability) / weight

    def observed(own: Array, rest: Array, pi: Array) -> dict[str, Array]:
        return {"observed": pi * own / (pi * own + (1 - pi) * rest)}

    counts = found.in_bins(index, len(weight))
    limits = found.with_limits(observed, counts, level, stream)
    return ReliabilityCurve(predicted, *limits["observed"], weight, found.rate, level, found.positive)


def probability_histogram(
    log_probs: Predictions,
    target: Numbers,
    bins: int | Numbers = 30,
    positive: int | None = None,
    scale: Literal["probability", "log-odds"] = "probability",
    ignore_index: int = IGNORED,
) -> ProbabilityHistogram:
    """Return a histogram of the predicted probability of one class, by true class; it depends on no prevalence.

    Args:
        log_probs: predictions `(n, k)`, or dense maps `(n, k, h, w, …)`, as log-probabilities.
        target: int labels `(n,)` or `(n, h, w, …)`, or soft votes of the predictions' shape.
        bins: their number, or their edges on the chosen scale. A bin includes its lower edge; values outside count in the
            outermost bin.
        positive: the class predicted; 1 for two classes by default.
        scale: "probability", from 0 to 1, or "log-odds", from the smallest to the largest finite one.
        ignore_index: the int label of examples to ignore.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import probability_histogram
        >>> p = np.array([0.1, 0.4, 0.3, 0.8])  # of class 1
        >>> log_probs, y = np.log(np.stack([1 - p, p], 1)), [0, 0, 1, 1]
        >>> probability_histogram(log_probs, y, bins=2).share.tolist()  # a row per true class
        [[1.0, 0.0], [0.5, 0.5]]
    """
    scale = checked_choice(scale, "scale", ("probability", "log-odds"))
    sample = labelled_sample(log_probs, target, None, ignore_index=ignore_index)
    sample.require_every_class("a histogram by class")
    found = Scores(sample, positive_class(positive, sample.num_classes))
    values = _to_bin(found) if scale == "probability" else found.odds
    edges = _edges(bins, values, scale)
    index = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    return ProbabilityHistogram(edges, found.in_bins(index, len(edges) - 1).shares.T, scale, found.positive)


def _rates(found: Scores) -> tuple[Array, Array, Array]:
    """Return FPR, TPR and threshold, a point per distinct prediction after (0, 0, ∞)."""
    lowest = np.full(found.place.max() + 1, np.inf)
    np.minimum.at(lowest, found.place, found.probability)
    own, weights = found.is_positive, found.sample.population_weights
    true, false = (np.append(0.0, np.bincount(found.place, weights * each)[::-1].cumsum()) for each in (own, ~own))
    return false / false[-1], true / true[-1], np.minimum.accumulate(np.append(np.inf, lowest[::-1]))


def _area_limits(found: Scores, fpr: Array, tpr: Array, auc: float, level: float) -> tuple[float, float]:
    """Return limits of the area on the scale of log-odds; NaN if a class is in a single group, or has a single row."""
    own, sample = found.is_positive, found.sample
    at = len(fpr) - 1 - found.place  # the curve's point at which an entry is called positive
    placed = np.where(own, 1 - (fpr[at] + fpr[at - 1]) / 2, (tpr[at] + tpr[at - 1]) / 2)
    moves = (placed - auc) * sample.population_weights / np.where(own, found.rate, 1 - found.rate)
    groups = np.arange(len(moves)) if found.groups is None else found.groups
    sizes = [len(np.unique(groups[sample.labels == c])) for c in range(sample.num_classes)]
    if min(sizes) < 2:
        return math.nan, math.nan
    if auc in (0.0, 1.0):  # no resample can change it
        unseen = float(unseen_share(min(sizes), level))
        return (1 - unseen, 1.0) if auc else (0.0, unseen)
    sums, count = np.bincount(groups, moves), len(np.unique(groups))
    return normal_interval(auc, math.sqrt(sums @ sums * count / (count - 1)), level, (0.0, 1.0))


def _edges(bins: int | Numbers, values: Array, scale: str) -> Array:
    if isinstance(bins, int | np.integer) and not isinstance(bins, bool):
        low, high, number = 0.0, 1.0, checked_int(bins, "bins", 1)
        if scale == "log-odds":
            finite = values[np.isfinite(values)]
            low, high = (float(finite.min()), float(finite.max())) if len(finite) else (-1.0, 1.0)
            low, high = (low, high) if low < high else (low - 1, high + 1)
        return np.linspace(low, high, number + 1)
    edges = array_of(bins, "bins").astype(np.float64)
    if edges.ndim != 1 or len(edges) < 2 or not (np.diff(edges) > 0).all():
        raise ValueError(f"Expected `bins` to be a number or rising edges, but got {bins!r}: such as [0, 0.1, 1].")
    return edges


def _to_bin(found: Scores) -> Array:
    """Return the probabilities plus their rounding error, so that one at an edge is in the bin above it."""
    return found.probability + 2 * found.rounding
