"""Operating points: the threshold for a recall, a specificity or a number of alarms, and its rates at a prevalence.

Stage: log_probs, target, π, an aim → threshold → `OperatingPoint`: rates and people per day, each with an interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any
from typing import Any

import numpy as np

from ..arrays import checked_level, random_generator
from .decisions import threshold_log_odds
from .figures import Figure
from .one_vs_rest import Array, Scores, scores, with_limits
from .predictive_values import predictive_values, separating_thresholds, threshold_reaching
from .sample import IGNORED, Mix, Numbers, Predictions


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
        rows = {
            "recall (sensitivity)": self.recall,
            "specificity": self.specificity,
            "positive predictive value": self.ppv,
            "negative predictive value": self.npv,
            f"alarms among {self.people:g} people": self.alarms,
            "  right": self.found,
            "  false": self.false_alarms,
            "missed": self.missed,
        }
        width = max(len(name) for name in rows)
        lines = [f"{head}; {self.level:.0%} intervals"] + [f"  {name:<{width}}  {figure}" for name, figure in rows.items()]
        return "\n".join(lines)


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
        find 2.85 and miss 2.15 a day, from p = 0.034
    """
    level, stream = checked_level(level), random_generator(generator)
    asked = _asked(recall=recall, specificity=specificity, alarms=alarms, threshold=threshold)
    people = _positive_number(people, "people")
    seen = scores(log_probs, target, prevalence, positive, "an operating point", groups, ignore_index)
    if alarms is not None:
        cut = _within_budget(seen, _positive_number(alarms, "alarms"), people)
    elif threshold is not None:
        threshold_log_odds(threshold)
        cut = float(threshold)
    else:
        cut = float(threshold_reaching(seen, recall, specificity, asked)[0])
    counts = seen.called_from(seen.cuts(np.full(1, cut)))

    def everything(tpr: Array, fpr: Array, pi: Array) -> Array:
        called = pi * tpr + (1 - pi) * fpr
        per_person = [called, pi * tpr, (1 - pi) * fpr, pi * (1 - tpr)]
        return np.concatenate([tpr, 1 - fpr, *predictive_values(tpr, fpr, pi), *(people * each for each in per_person)], -1)

    value, low, high = with_limits(everything, counts, seen.prevalence, seen.positive, level, stream)
    names = ("recall", "specificity", "ppv", "npv", "alarms", "found", "false_alarms", "missed")
    figures = {name: _figure(name, *map(float, each)) for name, *each in zip(names, value, low, high, strict=True)}
    return OperatingPoint(cut, **figures, people=people, prevalence=seen.rate, level=level, positive=seen.positive)


def _figure(name: str, value: float, low: float, high: float) -> Figure:
    if math.isnan(value):
        return Figure(math.nan, reason=f"{'nobody' if name == 'ppv' else 'everybody'} is called positive")
    return Figure(value, low, high)


def _within_budget(seen: Scores, alarms: float, people: float) -> float:
    """Return the lowest threshold at which at most the fraction alarms/people of the population is called positive."""
    if alarms >= people:
        raise ValueError(
            f"Expected fewer `alarms` than `people`, but got {alarms:g} of {people:g}: both are counted over the same time."
        )
    middle, cuts, parts = separating_thresholds(seen)
    order = np.argsort(seen.odds)
    below = np.append(0.0, seen.weights[order].cumsum())[np.searchsorted(seen.odds[order], cuts)]
    reached = parts & (1 - below / seen.weights.sum() <= alarms / people + 1e-12)
    if not reached.any():
        raise ValueError(
            f"Expected a threshold with at most {alarms:g} `alarms` among {people:g} people, but of more than that the "
            f"predictions are certain of class {seen.positive}: allow more."
        )
    return float(middle[np.flatnonzero(reached)[0]])


def _asked(**options: float | int | None) -> str:
    """Return the name of the only option given."""
    given = [name for name, value in options.items() if value is not None]
    if len(given) != 1:
        raise ValueError(f"Expected one of {', '.join(options)}, but got {' and '.join(given) or 'none'}: choose one.")
    return given[0]


def _positive_number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise ValueError(f"Expected `{name}` to be a number above 0, but got {value!r}: such as 20 alarms among 500 people.")
    return float(value)
