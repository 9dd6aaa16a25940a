"""Predictive values by prevalence, net benefit by threshold, and operating points.

Stage: log_probs, target, a threshold → PPV and NPV over prevalences; log_probs, target, π → net benefit over thresholds; with
an aim, such as a recall or a number of alarms → threshold → `OperatingPoint`: rates and people per day, each with an interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import checked_level, checked_number, random_generator
from ..prevalence import Prevalence, without_estimate
from .decisions import threshold_log_odds
from .figures import Figure
from .one_vs_rest import Array, Scores, against_rest, expit, logit, scores, shares_of
from .sample import IGNORED, Mix, Numbers, Predictions, as_prevalence, refuse_findings


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


@dataclass(frozen=True, repr=False)
class OperatingPoint:
    """A threshold, and its rates in the population. See `operating_point`. Print it for a table.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import operating_point
        >>> p = np.array([0.1, 0.4, 0.3, 0.8])  # of class 1
        >>> found = operating_point(np.log(np.stack([1 - p, p], 1)), [0, 0, 1, 1], prevalence=0.1, threshold=0.35)
        >>> found.recall.value, found.alarms.value, found.missed.value
        (0.5, 500.0, 50.0)

    Attributes:
        threshold: predictions p(positive|x) ≥ this are called positive.
        recall: fraction of the positive class that is found (sensitivity, TPR).
        specificity: fraction of the rest that is not called positive (TNR).
        ppv: fraction of the alarms that are right.
        npv: fraction of those without an alarm who are not of the class.
        lr_plus: positive likelihood ratio, by which an alarm multiplies the odds; ∞ without a false alarm in the sample.
        lr_minus: negative likelihood ratio, by which no alarm multiplies the odds; ∞ if all without an alarm are of the class.
        alarms: number of people called positive, of `people`.
        found: people of the class among them.
        false_alarms: the others among them.
        missed: people of the class without an alarm.
        people: the number of people.
        prevalence: π of the class.
        level: the level of the intervals.
        positive: the class.
    """

    threshold: float
    recall: Figure
    specificity: Figure
    ppv: Figure
    npv: Figure
    lr_plus: Figure
    lr_minus: Figure
    alarms: Figure
    found: Figure
    false_alarms: Figure
    missed: Figure
    people: float
    prevalence: float
    level: float
    positive: int

    def __repr__(self) -> str:
        head = f"Class {self.positive} from a probability of {self.threshold:.4g}, at a prevalence of {self.prevalence:.4g}"
        rows = {"recall (sensitivity)": self.recall, "specificity": self.specificity}
        rows |= {"positive predictive value": self.ppv, "negative predictive value": self.npv}
        rows |= {"positive likelihood ratio": self.lr_plus, "negative likelihood ratio": self.lr_minus}
        rows |= {f"alarms among {self.people:g} people": self.alarms, "  right": self.found, "  false": self.false_alarms}
        rows |= {"missed": self.missed}
        width = max(len(name) for name in rows)
        lines = [f"{head}; {self.level:.0%} intervals"] + [f"  {name:<{width}}  {figure}" for name, figure in rows.items()]
        return "\n".join(lines)


def predictive_value_curve(
    log_probs: Predictions,
    target: Numbers,
    *,
    threshold: float,
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
        threshold: predictions p(positive|x) ≥ this are called positive; `operating_point` finds one for a recall or a
            specificity.
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
    threshold_log_odds(threshold)
    if retarget and from_ is None:
        raise ValueError("Expected `from_` to retarget, but got none: give the prevalence of the predictions.")
    refuse_findings(prevalences)
    rates = without_estimate(prevalences)  # or a single prevalence
    at = rates if isinstance(rates, Prevalence) else None
    found = scores(log_probs, target, at if from_ is None else from_, positive, "predictive values", groups, ignore_index)
    population = as_prevalence(at or found.sample.prevalence, found.sample.num_classes)
    if at is None:
        grid = shares_of(rates, "prevalences", lambda: np.geomspace(1e-4, 0.5, 61))
    else:
        grid = population.population[[found.positive]]
    moves = logit(grid) - logit(found.rate) if retarget else np.zeros(1)
    counts = found.called_from(found.cuts(np.array([float(threshold)])) - moves)
    own, rest = against_rest(counts.shares, population.population, found.positive)
    where = expit(logit(threshold) - moves) if retarget else np.array([float(threshold)])

    def both(tpr: Array, fpr: Array, pi: Array) -> dict[str, Array]:
        return dict(zip(("ppv", "npv"), predictive_values(tpr, fpr, grid if at is None else pi), strict=True))

    limits = {
        name: (value, np.where(np.isnan(value), 0.0, low), np.where(np.isnan(value), 1.0, high))
        for name, (value, low, high) in found.with_limits(both, counts, level, stream, at=population).items()
    }
    own, right, where = (np.broadcast_to(each, grid.shape).copy() for each in (own, 1 - rest, where))
    return PredictiveValueCurve(grid, *limits["ppv"], *limits["npv"], own, right, where, level, found.positive)


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
    counts, cost = found.called_from(found.cuts(grid)), grid / (1 - grid)

    def net_benefit(tpr: Array, fpr: Array, pi: Array) -> dict[str, Array]:
        return {"net_benefit": pi * tpr - (1 - pi) * fpr * cost}

    limits = found.with_limits(net_benefit, counts, level, stream)
    everybody = found.rate - (1 - found.rate) * cost
    return DecisionCurve(grid, *limits["net_benefit"], everybody, found.rate, level, found.positive)


def operating_point(
    log_probs: Predictions,
    target: Numbers,
    prevalence: Mix,
    *,
    recall: float | None = None,
    specificity: float | None = None,
    alarms: float | int | None = None,
    threshold: float | None = None,
    people: float | int = 1000,
    positive: int | None = None,
    level: float = 0.95,
    generator: Any = None,
    groups: Numbers | None = None,
    ignore_index: int = IGNORED,
) -> OperatingPoint:
    """Return the threshold for a recall, a specificity or a number of alarms, with its rates in the population.

    Give exactly one of `recall`, `specificity`, `alarms` and `threshold`. The intervals are for the returned threshold: the
    fraction of each class beyond it is drawn from Jeffreys' posterior, and an uncertain π from its own distribution. They
    remain valid although the threshold was chosen on the same rows: of n positives, the true recall above the j-th lowest is
    Beta(n + 1 − j, j), almost Jeffreys' posterior. In a new sample the recall will be in the interval, not exactly at the
    requested value.

    Args:
        log_probs: predictions `(n, k)`, or dense maps `(n, k, h, w, …)`, as log-probabilities.
        target: labels, as in `evaluate`, in any mix of classes.
        prevalence: π: a `Prevalence`, an estimate of one, K frequencies, or for two classes that of class 1.
        recall: choose the highest threshold at which at least this fraction of the class is found.
        specificity: choose the lowest threshold at which at least this fraction of the rest is not called positive.
        alarms: choose the lowest threshold at which at most this number of `people` are called positive, at π.
        threshold: a given threshold. For costs use `cost_false_alarm / (cost_false_alarm + cost_miss)`.
        people: the number of people, such as those screened in a day; 1,000 by default.
        positive: the positive class; 1 for two classes by default.
        level: coverage of the intervals.
        generator: random numbers for the intervals; with a fixed seed by default.
        groups: ids of patients (or sites) `(n,)`, if rows are not independent; by default each image of a dense map is a group.
        ignore_index: the int label of examples to ignore.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import operating_point
        >>> y = np.arange(400) % 2
        >>> odds = 2 * np.random.default_rng(0).normal(size=400) + 4 * y - 7
        >>> log_probs = -np.logaddexp(0, np.stack([odds, -odds], 1))
        >>> found = operating_point(log_probs, y, prevalence=0.01, alarms=20, people=500)
        >>> print(f"find {found.found.value:.2f} and miss {found.missed.value:.2f} a day, from p = {found.threshold:.3f}")
        find 3.05 and miss 1.95 a day, from p = 0.026
    """
    level, stream = checked_level(level), random_generator(generator)
    aims = {"recall": recall, "specificity": specificity, "alarms": alarms, "threshold": threshold}
    given = [name for name, value in aims.items() if value is not None]
    if len(given) != 1:
        raise ValueError(f"Expected one of {', '.join(aims)}, but got {' and '.join(given) or 'none'}: choose one.")
    people = _positive_number(people, "people")
    seen = scores(log_probs, target, prevalence, positive, "an operating point", groups, ignore_index)
    if threshold is not None:
        threshold_log_odds(threshold)
    cut = float(_threshold_for(seen, recall, specificity, alarms, people) if threshold is None else threshold)
    counts = seen.called_from(seen.cuts(np.array([cut])))
    limits = seen.with_limits(partial(figures_at, people=people), counts, level, stream)
    figures = {name: _figure(name, *(each.item() for each in three)) for name, three in limits.items()}
    return OperatingPoint(cut, **figures, people=people, prevalence=seen.rate, level=level, positive=seen.positive)


def figures_at(tpr: Array, fpr: Array, pi: Array, people: float = 1.0) -> dict[str, Array]:
    """Return the figures of `OperatingPoint` from the fractions of two sides that are called positive, and π.

    LR+ = TPR/FPR and LR− = (1 − TPR)/(1 − FPR) are NaN if nobody is on that side, and ∞ if only positives are.
    """
    found, false = pi * tpr, (1 - pi) * fpr
    ppv, npv = predictive_values(tpr, fpr, pi)
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = {"recall": tpr, "specificity": 1 - fpr, "ppv": ppv, "npv": npv}
        rates |= {"lr_plus": tpr / fpr, "lr_minus": (1 - tpr) / (1 - fpr)}
    counts = {"alarms": found + false, "found": found, "false_alarms": false, "missed": pi * (1 - tpr)}
    return rates | {name: people * each for name, each in counts.items()}


def predictive_values(tpr: Array, fpr: Array, pi: Array) -> tuple[Array, Array]:
    """Return PPV and NPV; NaN if there is nobody on that side."""
    with np.errstate(invalid="ignore"):
        ppv = pi * tpr / (pi * tpr + (1 - pi) * fpr)
        npv = (1 - pi) * (1 - fpr) / ((1 - pi) * (1 - fpr) + pi * (1 - tpr))
    return ppv, npv


def _figure(name: str, value: float, low: float, high: float) -> Figure:
    if math.isnan(value):
        return Figure(math.nan, reason=f"{'nobody' if name in ('ppv', 'lr_plus') else 'everybody'} is called positive")
    return Figure(value, low, high, "the sample has only a lower limit" if math.isinf(value) else "")


def _threshold_for(seen: Scores, recall: float | None, specificity: float | None, alarms: float | None, people: float) -> float:
    """Return the highest threshold with that recall on this sample, or the lowest with that specificity or so many alarms."""
    of, aim = np.ones(len(seen.odds), bool), f"{alarms} `alarms` among {people:g} people"
    if alarms is None:
        of = seen.is_positive if specificity is None else ~seen.is_positive
        name, asked = ("recall", recall) if specificity is None else ("specificity", specificity)
        share = float(shares_of([asked], name, lambda: np.empty(0))[0])
        aim, share = f"a `{name}` of {share:g}", share if specificity is None else 1 - share
    else:
        share = _positive_number(alarms, "alarms") / people
        if share >= 1:
            raise ValueError(f"Expected fewer `alarms` than `people`, but got {alarms:g} of {people:g}: count both alike.")
    middle, cuts, parts = _separating_thresholds(seen)
    order = np.argsort(seen.odds[of])
    below = np.append(0.0, seen.sample.population_weights[of][order].cumsum())
    called = 1 - below[np.searchsorted(seen.odds[of][order], cuts)] / below[-1]
    reached = parts & (called <= share + 1e-12 if recall is None else called >= share - 1e-12)
    if not reached.any():
        raise ValueError(
            f"Expected a threshold with {aim}, but for too many the predictions are certain, "
            f"{'of class' if recall is None else 'of another class than'} {seen.positive}: no threshold is beyond that."
        )
    return float(middle[np.flatnonzero(reached)[-1 if alarms is None and specificity is None else 0]])


def _separating_thresholds(found: Scores) -> tuple[Array, Array, NDArray[np.bool_]]:
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


def _positive_number(value: Any, name: str) -> float:
    remedy = "such as 20 alarms among 500 people"
    if (number := checked_number(value, name, 0.0, remedy=remedy)) == 0:
        raise ValueError(f"Expected `{name}` to be a number above 0, but got 0: {remedy}.")
    return number
