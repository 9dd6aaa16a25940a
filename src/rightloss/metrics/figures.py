"""The formula of each figure, from statistics within the classes and the population's mix; and the class `Evaluation`.

Stage: `Statistics` → a number per resample. C[c, d] is the fraction of class c with decision d; with more than
two classes, `ppv`, `npv`, `tpr` and `tnr` are those of one class against the rest, averaged over the classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from scipy.special import logit

from .class_statistics import Statistics
from .recalibration import symmetric

Compute = Callable[[Statistics], np.ndarray]


def expected_log_likelihood(s: Statistics) -> np.ndarray:
    """Σ_c π_c E[log p(c|x) | c], in nats."""
    return s.at_population("log_likelihood")[0]


def skill(s: Statistics) -> np.ndarray:
    """1 − (expected log-likelihood) / Σ_c π_c log π_c: 0 for always answering π, 1 for certain and correct predictions."""
    return 1 - expected_log_likelihood(s) / _of_always_the_mix(s)


def brier(s: Statistics) -> np.ndarray:
    """E[(p(1|x) − y)²] for two classes, E[Σ_k (p(k|x) − 1{y = k})²] for more."""
    return s.at_population("brier")[0]


def mean_prediction_by_class(s: Statistics) -> np.ndarray:
    """E[p(k|x)], (k, b): equal to π in a correct model."""
    return s.at_population("probs")


def accuracy(s: Statistics) -> np.ndarray:
    """Fraction of correct decisions in the sample."""
    share = s.totals / s.totals.sum(0)
    return np.where(share > 0, share * tpr_by_class(s), 0.0).sum(0)


def weighted_accuracy(s: Statistics) -> np.ndarray:
    """Fraction of correct decisions in the population, Σ_c π_c C[c, c]."""
    return (s.population * tpr_by_class(s)).sum(0)


def balanced_accuracy(s: Statistics) -> np.ndarray:
    """Fraction of correct decisions if all classes were equally frequent."""
    return tpr_by_class(s).mean(0)


def tpr_by_class(s: Statistics) -> np.ndarray:
    """Sensitivity: the fraction of a class that is found, C[k, k], (k, b)."""
    return np.einsum("kkb->kb", s.confusion)


def tnr_by_class(s: Statistics) -> np.ndarray:
    """Specificity: the fraction of the others that are not assigned to a class, Σ_{c≠k} π_c (1 − C[c, k]) / (1 − π_k)."""
    return _not_said_and_not_of(s) / _others(s)


def ppv_by_class(s: Statistics) -> np.ndarray:
    """Precision: the fraction of examples assigned to a class that are of it, π_k C[k, k] / Σ_c π_c C[c, k]."""
    return s.population * tpr_by_class(s) / s.at_population("confusion")


def npv_by_class(s: Statistics) -> np.ndarray:
    """The fraction of those not assigned to a class that are not of it: Σ_{c≠k} π_c (1 − C[c, k]) / Σ_c π_c (1 − C[c, k])."""
    return _not_said_and_not_of(s) / _not_said(s)


def auc(s: Statistics) -> np.ndarray:
    """P(score of a positive > score of a negative) + ½ P(equal); for more classes one against the rest at π, averaged."""
    if s.num_classes == 2:
        return s.areas[1, 0]
    share = s.population[None] * _except_own(s)[:, :, None]
    return ((share * s.areas).sum(1) / _others(s)).mean(0)


def auc_pairwise(s: Statistics) -> np.ndarray:
    """The mean over pairs of classes, Hand and Till's; independent of the prevalence."""
    k = s.num_classes
    return (s.areas.sum((0, 1)) - k / 2) / (k * (k - 1))


def off_by_one(s: Statistics) -> np.ndarray:
    """P(|decision − class| ≤ 1) in the population, for ordered classes."""
    return _expected(s, _neighbours(s))


def calibration_error(s: Statistics) -> np.ndarray:
    """Σ_bins |mean prediction − observed frequency| · share, at π; for more than two classes the mean over the classes."""
    return np.abs(calibration_gaps(s)).sum(0) / len(s.spec.edges)


def calibration_gaps(s: Statistics) -> np.ndarray:
    """(mean prediction − observed frequency) · share of each bin of each selected class, (j·e, b)."""
    return s.at_population("gaps")


def calibration_slope(s: Statistics) -> np.ndarray:
    """b of `recalibration.py`: 1 for a correct model, less for an overconfident one.

    In a resample, one Newton step from the fit to the whole sample, θ + H⁻¹ g: NaN if H is singular.
    """
    fit, curvature = s.spec.recalibration, _curvature(s)
    assert fit is not None
    singular = np.linalg.slogdet(curvature)[0] == 0
    curvature[singular] = np.eye(curvature.shape[1])
    step = np.linalg.solve(curvature, s.at_population("score").T[..., None])[:, 0, 0]
    return (fit.theta[0] + np.where(singular, np.nan, step)) / fit.scale


def calibration_intercept_by_class(s: Statistics) -> np.ndarray:
    """Shifts of the log-odds that correct the mean prediction: a_k of `recalibration.py`, E[σ(l_k + a_k)] = π_k, (k, b).

    0 for a correct model, above 0 if the predictions are too low. In a resample, one Newton step from the fit to the whole
    sample, on the log-odds of both sides.
    """
    fit = s.spec.intercepts
    assert fit is not None
    mean, slope = s.at_population("shifted"), s.at_population("slopes")
    gap = logit(s.population[list(fit.classes)]) - logit(mean)
    return fit.shifts[:, None] + gap * mean * (1 - mean) / slope


def expected_cost(s: Statistics) -> np.ndarray:
    """Σ_c π_c Σ_d C[c, d] cost[c, d]."""
    return _expected(s, s.spec.costs)


def net_benefit(s: Statistics) -> np.ndarray:
    """π TPR − (1 − π) FPR t/(1 − t): true positives per person, minus false ones at their cost."""
    return s.population[1] * s.confusion[1, 1] - s.population[0] * s.confusion[0, 1] * _price(s)


def _curvature(s: Statistics) -> np.ndarray:
    """The curvature of the recalibration's log-likelihood at π, (b, p, p)."""
    return np.moveaxis(symmetric(s.at_population("curvature")), -1, 0)


def _of_always_the_mix(s: Statistics) -> np.ndarray:
    """Σ_c π_c log π_c: the expected log-likelihood of always answering π."""
    return (s.population * np.log(s.population)).sum(0)


def _one_or_mean(by_class: Compute) -> Compute:
    """The figure of class 1 of two, or the mean over the classes."""
    return lambda s: by_class(s)[1] if s.num_classes == 2 else by_class(s).mean(0)


def _of_last(by_class: Compute) -> Compute:
    return lambda s: by_class(s)[-1]


def _expected(s: Statistics, table: np.ndarray) -> np.ndarray:
    """Σ_c π_c Σ_d C[c, d] table[c, d]."""
    return (s.population * (table[:, :, None] * s.confusion).sum(1)).sum(0)


def _except_own(s: Statistics) -> np.ndarray:
    return 1 - np.eye(s.num_classes)


def _neighbours(s: Statistics) -> np.ndarray:
    """1 where a decision is at most one class off."""
    return np.tri(s.num_classes, k=1) - np.tri(s.num_classes, k=-2)


def _price(s: Statistics) -> float:
    """The cost of a false alarm, in units of a miss."""
    costs = s.spec.costs
    return float((costs[0, 1] - costs[0, 0]) / (costs[1, 0] - costs[1, 1]))


def _not_said_and_not_of(s: Statistics) -> np.ndarray:
    """Σ_{c≠k} π_c (1 − C[c, k])."""
    own = np.eye(s.num_classes, dtype=bool)[:, :, None]
    return np.where(own, 0.0, s.population[:, None] * (1 - s.confusion)).sum(0)


def _not_said(s: Statistics) -> np.ndarray:
    """Σ_c π_c (1 − C[c, k]): the fraction of the population not assigned to class k."""
    return _not_said_and_not_of(s) + s.population * (1 - tpr_by_class(s))


def _others(s: Statistics) -> np.ndarray:
    """1 − π_k, as a sum, to avoid cancellation if π_k is near 1."""
    return _except_own(s) @ s.population


ANY, UNIT, POSITIVE = (-math.inf, math.inf), (0.0, 1.0), (0.0, math.inf)


@dataclass(frozen=True)
class Formula:
    """A figure's formula, and its properties.

    Attributes:
        compute: the formula.
        words: its name.
        bounds: its range.
        of_decisions: whether it depends only on the decisions.
        by_class: the same for each class against the rest.
        better: "higher", "lower", or "nearer" to the `ideal`.
        ideal: its value in a correct model, if neither high nor low is better.
    """

    compute: Compute
    words: str
    bounds: tuple[float, float] = ANY
    of_decisions: bool = False
    by_class: Compute | None = None
    better: Literal["higher", "lower", "nearer"] = "higher"
    ideal: Callable[[Statistics], np.ndarray | float] | None = None


FIGURES: dict[str, Formula] = {
    "expected_log_likelihood": Formula(expected_log_likelihood, "expected log-likelihood", (-math.inf, 0.0)),
    "skill": Formula(skill, "skill against always answering the prevalence", (-math.inf, 1.0)),
    "brier": Formula(brier, "Brier score", POSITIVE, better="lower"),
    "mean_prediction": Formula(
        _of_last(mean_prediction_by_class), "mean prediction of the last class", UNIT, by_class=mean_prediction_by_class,
        better="nearer", ideal=lambda s: s.population[-1],
    ),
    "accuracy": Formula(accuracy, "accuracy in the sample", UNIT, True),
    "weighted_accuracy": Formula(weighted_accuracy, "accuracy in the population", UNIT, True),
    "balanced_accuracy": Formula(balanced_accuracy, "balanced accuracy", UNIT, True),
    "ppv": Formula(_one_or_mean(ppv_by_class), "positive predictive value", UNIT, True, ppv_by_class),
    "npv": Formula(_one_or_mean(npv_by_class), "negative predictive value", UNIT, True, npv_by_class),
    "tpr": Formula(_one_or_mean(tpr_by_class), "true positive rate (sensitivity)", UNIT, True, tpr_by_class),
    "tnr": Formula(_one_or_mean(tnr_by_class), "true negative rate (specificity)", UNIT, True, tnr_by_class),
    "auc": Formula(auc, "area under the ROC curve", UNIT),
    "auc_pairwise": Formula(auc_pairwise, "the same, mean over pairs of classes", UNIT),
    "off_by_one": Formula(off_by_one, "within one class of the truth", UNIT, True),
    "calibration_error": Formula(calibration_error, "calibration error", POSITIVE, better="lower"),
    "calibration_slope": Formula(calibration_slope, "calibration slope", better="nearer", ideal=lambda s: 1.0),
    "calibration_intercept": Formula(
        _of_last(calibration_intercept_by_class), "calibration intercept of the last class",
        by_class=calibration_intercept_by_class, better="nearer", ideal=lambda s: 0.0,
    ),
    "expected_cost": Formula(expected_cost, "expected cost of the decisions", ANY, True, better="lower"),
    "net_benefit": Formula(net_benefit, "net benefit", ANY, True),
}  # fmt: skip

# The derivative of a figure, at one sample (b = 1), by the statistics that it depends on: of a kind in `Statistics.means`, for
# its mean over the population; of "confusion" C[c, d], "areas" A[k, c] and "totals" n_c, for each.
Gradient = dict[str, np.ndarray]

# For figures by class, j is the class, and None the figure of class 1 of two, of the last class, or the mean over the classes.
GRADIENTS: dict[str, Callable[[Statistics, int | None], Gradient]] = {
    "expected_log_likelihood": lambda s, j: {"log_likelihood": np.ones(1)},
    "skill": lambda s, j: {"log_likelihood": -1 / _of_always_the_mix(s)},
    "brier": lambda s, j: {"brier": np.ones(1)},
    "mean_prediction": lambda s, j: {"probs": _only(j, np.ones(s.spec.fields["probs"]))},
    "accuracy": lambda s, j: {
        "confusion": np.diag(s.totals[:, 0] / s.totals.sum()),
        "totals": (np.nan_to_num(tpr_by_class(s)[:, 0]) - accuracy(s)) / s.totals.sum(),
    },
    "weighted_accuracy": lambda s, j: {"confusion": np.diag(s.population[:, 0])},
    "balanced_accuracy": lambda s, j: {"confusion": np.eye(s.num_classes) / s.num_classes},
    "ppv": lambda s, j: _column(
        j, s.population * (np.eye(s.num_classes) - ppv_by_class(s)[:, 0]) / s.at_population("confusion")[:, 0]
    ),
    "npv": lambda s, j: _column(j, s.population * (npv_by_class(s)[:, 0] - _except_own(s)) / _not_said(s)[:, 0]),
    "tpr": lambda s, j: _column(j, np.eye(s.num_classes)),
    "tnr": lambda s, j: _column(j, -s.population * _except_own(s) / _others(s)[:, 0]),
    "auc": lambda s, j: {"areas": s.population[:, 0] * _except_own(s) / _others(s) / s.num_classes},
    "auc_pairwise": lambda s, j: {"areas": _except_own(s) / (s.num_classes * (s.num_classes - 1))},
    "off_by_one": lambda s, j: {"confusion": s.population * _neighbours(s)},
    "calibration_error": lambda s, j: {"gaps": np.sign(calibration_gaps(s)[:, 0]) / len(s.spec.edges)},
    "calibration_slope": lambda s, j: {"score": _slope_gradient(s)},
    "calibration_intercept": lambda s, j: {"shifted": _only(j, -1 / s.at_population("slopes")[:, 0])},
    "expected_cost": lambda s, j: {"confusion": s.population * s.spec.costs},
    "net_benefit": lambda s, j: {"confusion": s.population * [[0.0, -_price(s)], [0.0, 1.0]]},
}


def _only(j: int | None, values: np.ndarray) -> np.ndarray:
    """Return the values with zeros for all classes but j, or the last."""
    return np.where(np.arange(len(values)) == (len(values) - 1 if j is None else j), values, 0.0)


def _slope_gradient(s: Statistics) -> np.ndarray:
    assert s.spec.recalibration is not None
    row: np.ndarray = np.linalg.inv(_curvature(s)[0])[0] / s.spec.recalibration.scale
    return row


def _column(j: int | None, by_class: np.ndarray) -> Gradient:
    """Return the gradient in C of class j's figure, from those of all classes' figures, each in its own column of C."""
    k = len(by_class)
    if j is None and k > 2:
        return {"confusion": by_class / k}
    return {"confusion": by_class * (np.arange(k) == (1 if j is None else j))}


Found = TypeVar("Found")


class ByFigure(Generic[Found]):
    """Results by the name of a figure: each is an attribute and an item."""

    _field: ClassVar[str]  # the attribute that has all of them

    def __getattr__(self, name: str) -> Found:
        if name not in FIGURES:
            raise AttributeError(f"{type(self).__name__} has no {name!r}: its figures are {', '.join(FIGURES)}.")
        return self[name]

    def __getitem__(self, name: str) -> Found:
        if name not in FIGURES:
            raise KeyError(f"there is no figure {name!r}; there are {', '.join(FIGURES)}")
        found: Found = vars(self)[self._field][name]
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(FIGURES)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return plain numbers and strings, for JSON or a data frame: `pandas.DataFrame(found.to_dict()).T`."""
        return {name: {key: each for key, each in vars(self[name]).items() if key != "by_class"} for name in self}


def table_head(population: tuple[float, ...], num_examples: tuple[float, ...], how: str) -> str:
    """Return the first line of a table of figures."""
    share, counts = (
        ", ".join(f"{each:{form}}" for each in values[:6]) + ", …" * (len(values) > 6)
        for form, values in ((".4g", population), ("g", num_examples))
    )
    return f"At a population of [{share}], from [{counts}] examples{how}"


@dataclass(frozen=True)
class Figure:
    """A number with its interval. `float(figure)` is its value.

    Examples:
        >>> from rightloss.metrics import Figure
        >>> print(Figure(0.25, 0.1, 0.4))
        0.25 (0.1 to 0.4)

    Attributes:
        value: the figure; NaN if it is not defined.
        low: lower limit of the interval; NaN if there is none.
        high: upper limit.
        reason: why a value is NaN, or why the interval is not reliable; empty otherwise.
        by_class: with three to fifty classes, the figure of each against the rest, for the figures that have it (PPV, NPV, TPR,
            TNR, mean prediction, calibration intercept); NaN with a reason for a class without it, as the PPV of one that is
            never decided.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    reason: str = ""
    by_class: tuple[Figure, ...] | None = None

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        if math.isnan(self.value):
            return f"undefined: {self.reason}"
        interval = "" if math.isnan(self.low) and math.isnan(self.high) else f" ({self.low:.4g} to {self.high:.4g})"
        return f"{self.value:.4g}{interval}" + (f"; {self.reason}" if self.reason else "")


@dataclass(frozen=True, repr=False)
class Evaluation(ByFigure[Figure]):
    """The result of `evaluate`: every figure at one prevalence. Print it for a table.

    Each figure is an attribute, such as `found.auc`, and an item, `found["auc"]`.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import evaluate
        >>> p = np.array([0.1, 0.4, 0.3, 0.8])
        >>> found = evaluate(np.log(np.stack([1 - p, p], 1)), [0, 0, 1, 1], prevalence=0.1, intervals=None)
        >>> found.auc.value, found["tpr"].value
        (0.75, 0.5)

    Attributes:
        expected_log_likelihood: Σ_c π_c E[log p(c|x) | c], in nats.
        skill: 1 − (expected log-likelihood) / Σ_c π_c log π_c: 0 for always answering π.
        brier: mean squared error of the probabilities.
        mean_prediction: of the last class; its π in a correct model.
        accuracy: fraction of correct decisions in the sample.
        weighted_accuracy: the same in the population.
        balanced_accuracy: the same if all classes were equally frequent.
        ppv: positive predictive value, or precision.
        npv: negative predictive value.
        tpr: true positive rate, sensitivity, or recall.
        tnr: true negative rate, or specificity.
        auc: area under the ROC curve; one against the rest for more than two classes.
        auc_pairwise: its mean over pairs of classes.
        off_by_one: fraction of decisions within one class of the truth.
        calibration_error: mean distance between predicted and observed frequency, in bins of equal weight.
        calibration_slope: 1 in a correct model, less in an overconfident one.
        calibration_intercept: shift of the last class's log-odds that corrects the mean prediction; 0 in a correct model,
            above 0 if its probabilities are too low.
        expected_cost: expected cost per decision, in `cost_unit`.
        net_benefit: true positives per person, minus false ones at their cost.
        figures: a dict of all of these.
        level: the level of the intervals.
        intervals: the method of the intervals: "bootstrap", "analytic" or "none".
        num_examples: the number of examples of each class; votes count as fractions.
        population: π.
        cost_unit: the unit of `expected_cost`, as text.
    """

    figures: dict[str, Figure]
    level: float
    intervals: str
    num_examples: tuple[float, ...]
    population: tuple[float, ...]
    cost_unit: str = ""
    _field: ClassVar[str] = "figures"

    def __repr__(self) -> str:
        how = "" if self.intervals == "none" else f"; {self.level:.0%} intervals, {self.intervals}"
        words = {name: kind.words for name, kind in FIGURES.items()}
        if self.cost_unit:
            words["expected_cost"] = f"expected cost per decision ({self.cost_unit})"
        width = max(map(len, words.values()))
        lines = [f"  {words[name]:<{width}}  {self[name]}" for name in self]
        return "\n".join([table_head(self.population, self.num_examples, how), *lines])
