"""Predictive values by prevalence, and net benefit by threshold.

Stage: log_probs, target, a threshold → PPV and NPV over prevalences; log_probs, target, π → net benefit over thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import checked_level, random_generator
from ..prevalence import Prevalence, without_estimate
from .decisions import threshold_log_odds
from .one_vs_rest import Array, Scores, against_rest, expit, logit, scores, shares_of, with_limits
from .sample import IGNORED, Mix, Numbers, Predictions, refuse_findings


@dataclass(frozen=True)
class PredictiveValueCurve:
    """PPV and NPV as functions of the prevalence, with pointwise limits. See `predictive_value_curve`.

    Attributes:
        prevalence: frequencies of the positive class `(m,)`, increasing.
        ppv, ppv_low, ppv_high: fraction of those called positive who are positive; NaN, 0 and 1 if nobody is called positive.
        npv, npv_low, npv_high: fraction of those not called positive who are not positive; NaN, 0 and 1 if there are none.
        true_positive_rate, true_negative_rate: at the threshold of each prevalence `(m,)`.
        threshold: threshold on the given predictions `(m,)`.
        level: the level of the limits.
        positive: the class.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import predictive_value_curve
        >>> p = np.array([0.1, 0.4, 0.3, 0.8])  # of class 1
        >>> log_probs, y = np.log(np.stack([1 - p, p], 1)), [0, 0, 1, 1]
        >>> curve = predictive_value_curve(log_probs, y, threshold=0.5)
        >>> len(curve.prevalence), float(curve.true_positive_rate[0])
        (61, 0.5)
    """

    prevalence: Array
    ppv: Array
    ppv_low: Array
    ppv_high: Array
    npv: Array
    npv_low: Array
    npv_high: Array
    true_positive_rate: Array
    true_negative_rate: Array
    threshold: Array
    level: float
    positive: int


@dataclass(frozen=True)
class DecisionCurve:
    """Net benefit of acting on predictions, per person of the population, in units of one positive acted on.

    See `decision_curve`.

    Attributes:
        threshold: t, the probability from which to act `(m,)`.
        net_benefit, low, high: of acting where p(positive|x) ≥ t `(m,)`.
        treat_all: of acting on everybody `(m,)`; on nobody it is 0.
        prevalence: π of the class.
        level: the level of the limits.
        positive: the class.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import decision_curve
        >>> p = np.array([0.1, 0.4, 0.3, 0.8])  # of class 1
        >>> log_probs, y = np.log(np.stack([1 - p, p], 1)), [0, 0, 1, 1]
        >>> decision_curve(log_probs, y, prevalence=0.1, thresholds=[0.05]).treat_all.round(3).tolist()
        [0.053]
    """

    threshold: Array
    net_benefit: Array
    low: Array
    high: Array
    treat_all: Array
    prevalence: float
    level: float
    positive: int

    @property
    def treat_none(self) -> Array:
        """Return 0 for every threshold."""
        return np.zeros_like(self.threshold)


def predictive_value_curve(
    log_probs: Predictions,
    target: Numbers,
    *,
    threshold: float | None = None,
    tpr: float | None = None,
    tnr: float | None = None,
    prevalences: Mix | None = None,
    retarget: bool = False,
    from_: Mix | None = None,
    positive: int | None = None,
    level: float = 0.95,
    generator: Any = None,
    groups: Numbers | None = None,
    ignore_index: int = IGNORED,
) -> PredictiveValueCurve:
    """Return PPV and NPV over prevalences π of the positive class.

    `PPV = π TPR / (π TPR + (1 − π) FPR)` and `NPV = (1 − π) TNR / ((1 − π) TNR + π (1 − TPR))`.

    With a fixed threshold the same people are called positive at every prevalence, and the values follow from Bayes' rule.
    With `retarget=True` the predictions are first moved to each prevalence, as by a model with the prevalence as an input, and
    `threshold` applies to the moved ones: on the given log-odds it changes by `logit from_ − logit π`. The limits are computed
    as those of `decision_curve`.

    Args:
        log_probs: predictions `(n, k)`, or dense maps `(n, k, h, w, …)`, as log-probabilities.
        target: int labels `(n,)` or `(n, h, w, …)`, or soft votes of the predictions' shape, in any mix of classes.
        threshold: predictions p(positive|x) ≥ this are called positive. Or give one of `tpr` and `tnr`.
        tpr: choose the highest threshold at which at least this fraction of the positive class is found.
        tnr: choose the lowest threshold at which at least this fraction of the rest is not called positive, midway between two
            predictions. Both are chosen on this sample, which the limits do not include; the result used as `threshold` calls
            the same people.
        prevalences: increasing frequencies of the positive class; by default 61 from 1e-4 to 0.5, evenly spaced in the
            logarithm. A `Prevalence`, or an estimate of one, means its frequency; if it is uncertain, the limits include that.
        retarget: whether predictions are moved to each prevalence.
        from_: the population of `log_probs`; needed to retarget, and, for the mix of the rest, with more than two classes.
        positive: the positive class; 1 for two classes by default.
        level: the level of the limits.
        generator: for the draws behind the limits.
        groups: ids of patients (or sites) `(n,)`, if rows are not independent; by default each image of a dense map is a group.
        ignore_index: the int label of examples to ignore.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import predictive_value_curve
        >>> p = np.array([0.1, 0.4, 0.3, 0.8])  # of class 1
        >>> log_probs, y = np.log(np.stack([1 - p, p], 1)), [0, 0, 1, 1]
        >>> curve = predictive_value_curve(log_probs, y, threshold=0.35, prevalences=[0.01, 0.1])
        >>> curve.ppv.round(3).tolist(), curve.npv.round(3).tolist()
        ([0.01, 0.1], [0.99, 0.9])
    """
    level, stream = checked_level(level), random_generator(generator)
    _check_choice(threshold, tpr, tnr, retarget, from_)
    refuse_findings(prevalences)
    rates = without_estimate(prevalences)  # or a single prevalence
    at = rates if isinstance(rates, Prevalence) else None
    found = scores(log_probs, target, at if from_ is None else from_, positive, "predictive values", groups, ignore_index)
    grid = shares_of(rates, "prevalences", lambda: np.geomspace(1e-4, 0.5, 61)) if at is None else _only(at, found)
    t = (
        threshold_reaching(found, tpr, tnr, "tpr" if tnr is None else "tnr")
        if threshold is None
        else np.full(1, float(threshold))
    )
    moves = logit(grid) - logit(found.rate) if retarget else np.zeros(1)
    cuts = found.cuts(t) - moves
    counts = found.called_from(cuts)
    own, rest = against_rest(counts.shares, (at or found.prevalence).population, found.positive)
    own, rest, where = (
        np.broadcast_to(each, grid.shape).copy() for each in (own, rest, expit(logit(t) - moves) if retarget else t)
    )

    def both(tpr: Array, fpr: Array, pi: Array) -> Array:
        return np.concatenate(predictive_values(tpr, fpr, grid if at is None else pi), -1)

    value, low, high = with_limits(both, counts, at or found.prevalence, found.positive, level, stream)
    low, high = np.where(np.isnan(value), 0.0, low), np.where(np.isnan(value), 1.0, high)
    ppv, npv = np.split(np.stack([value, low, high]), 2, axis=1)
    return PredictiveValueCurve(
        grid, ppv[0], ppv[1], ppv[2], npv[0], npv[1], npv[2], own, 1 - rest, where, level, found.positive
    )


def decision_curve(
    log_probs: Predictions,
    target: Numbers,
    prevalence: Mix,
    thresholds: Numbers | None = None,
    positive: int | None = None,
    level: float = 0.95,
    generator: Any = None,
    groups: Numbers | None = None,
    ignore_index: int = IGNORED,
) -> DecisionCurve:
    """Return net benefit over thresholds: positives acted on, minus others acted on at their cost.

    `NB(t) = π TPR(t) − (1 − π) FPR(t) t/(1 − t)`. For the limits, the fraction of each class that is called positive is drawn
    from Jeffreys' posterior, Beta(x + ½, n − x + ½), and an uncertain π from its own distribution; the limits are pointwise
    quantiles of 4,000 draws. Rows are assumed to be
    independent, unless they are in groups, such as the cells of an image: then n is replaced by n/d, with d the design effect.

    Args:
        log_probs: predictions for the population `(n, k)`, or dense maps `(n, k, h, w, …)`, as log-probabilities.
        target: int labels `(n,)` or `(n, h, w, …)`, or soft votes of the predictions' shape, in any mix of classes.
        prevalence: π: a `Prevalence`, an estimate of one, K frequencies, or for two classes that of class 1. If it is
            uncertain, the limits include that.
        thresholds: t; by default 101, evenly spaced in the log-odds, from a twentieth to 20 times the odds of π.
        positive: the class acted on; 1 for two classes by default.
        level: the level of the limits.
        generator: for the draws behind the limits.
        groups: ids of patients (or sites) `(n,)`, if rows are not independent; by default each image of a dense map is a group.
        ignore_index: the int label of examples to ignore.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import decision_curve
        >>> p = np.array([0.1, 0.4, 0.3, 0.8])  # of class 1
        >>> log_probs, y = np.log(np.stack([1 - p, p], 1)), [0, 0, 1, 1]
        >>> curve = decision_curve(log_probs, y, prevalence=0.1, thresholds=[0.05, 0.5])
        >>> curve.net_benefit.round(3).tolist()
        [0.053, 0.05]
    """
    level, stream = checked_level(level), random_generator(generator)
    found = scores(log_probs, target, prevalence, positive, "net benefit", groups, ignore_index)
    reach = np.log(20.0)
    grid = shares_of(thresholds, "thresholds", lambda: expit(logit(found.rate) + np.linspace(-reach, reach, 101)))
    counts = found.called_from(found.cuts(grid))
    cost = grid / (1 - grid)

    def net_benefit(tpr: Array, fpr: Array, pi: Array) -> Array:
        return pi * tpr - (1 - pi) * fpr * cost

    values = with_limits(net_benefit, counts, found.prevalence, found.positive, level, stream)
    everybody = found.rate - (1 - found.rate) * cost
    return DecisionCurve(grid, *values, everybody, found.rate, level, found.positive)


def predictive_values(tpr: Array, fpr: Array, pi: Array) -> tuple[Array, Array]:
    """Return PPV and NPV; NaN if there is nobody on that side."""
    with np.errstate(invalid="ignore"):
        ppv = pi * tpr / (pi * tpr + (1 - pi) * fpr)
        npv = (1 - pi) * (1 - fpr) / ((1 - pi) * (1 - fpr) + pi * (1 - tpr))
    return ppv, npv


def _only(prevalence: Prevalence, found: Scores) -> Array:
    """Return the one rate of the positive class, as an array."""
    if prevalence.num_classes != len(found.totals):
        raise ValueError(
            f"Expected a prevalence of {len(found.totals)} classes, but got {prevalence.num_classes}: "
            "both list the same classes in the same order."
        )
    return prevalence.population[[found.positive]]


def _check_choice(threshold: float | None, tpr: float | None, tnr: float | None, retarget: bool, from_: Mix | None) -> None:
    given = [name for name, value in (("threshold", threshold), ("tpr", tpr), ("tnr", tnr)) if value is not None]
    if len(given) != 1:
        raise ValueError(f"Expected one of `threshold`, `tpr` and `tnr`, but got {given or 'none'}: choose one.")
    if threshold is not None:
        threshold_log_odds(threshold)
    if retarget and (from_ is None or threshold is None):
        raise ValueError(
            f"Expected `threshold` and `from_` to retarget, but got {given[0]} and from_={from_!r}: "
            "give the prevalence of the predictions; at a fixed TPR or TNR nothing moves."
        )


def separating_thresholds(found: Scores) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Return thresholds midway, in log-odds, between neighbouring predictions, and beyond the first and the last.

    Also return them as cuts on the log-odds, as `Scores.cuts`, and whether the two predictions differ by more than rounding, so
    that `decide` separates them.
    """
    edges = np.unique(found.odds[np.isfinite(found.odds)])
    edges = np.concatenate([edges[:1] - 2, edges, edges[-1:] + 2]) if len(edges) else np.array([-2.0, 2.0])
    middle = expit((edges[1:] + edges[:-1]) / 2)
    held = (middle > 0) & (middle < 1)  # by a float
    middle, low, high = middle[held], edges[:-1][held], edges[1:][held]
    odds, cuts = logit(middle), found.cuts(middle)
    return middle, cuts, (low < odds - 4 * (odds - cuts)) & (odds < high)


def threshold_reaching(found: Scores, tpr: float | None, tnr: float | None, name: str) -> Array:
    """Return the highest threshold with that TPR on this sample, or the lowest with that TNR `(1,)`; `name` is the option's."""
    asked = tpr if tnr is None else tnr
    share = float(shares_of([asked], name, lambda: np.empty(0))[0])
    middle, cuts, parts = separating_thresholds(found)
    own = (found.labels == found.positive) == (tnr is None)
    order = np.argsort(found.odds[own])
    below = np.append(0.0, found.weights[own][order].cumsum())[np.searchsorted(found.odds[own][order], cuts)]
    below /= found.weights[own].sum()
    reached = parts & ((1 - below if tnr is None else below) >= share - 1e-12)
    if not reached.any():
        raise ValueError(
            f"Expected a threshold with a `{name}` of {share:g}, but for too many the predictions are certain "
            f"{'of another class than' if tnr is None else 'of class'} {found.positive}: no threshold is beyond that; "
            "use a smaller value."
        )
    return middle[np.flatnonzero(reached)[[-1 if tnr is None else 0]]]
