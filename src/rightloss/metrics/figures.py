"""The formula of each figure, from statistics within the classes and the population's mix; and the class `Evaluation`.

Stage: `Statistics` → a number per resample. C[c, d] is the fraction of class c with decision d; with more than
two classes, `ppv`, `npv`, `tpr` and `tnr` are those of one class against the rest, averaged over the classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.special import logit

from .calibration import symmetric
from .class_statistics import Statistics


def expected_log_likelihood(s: Statistics) -> np.ndarray:
    """Σ_c π_c E[log p(c|x) | c], in nats."""
    return s.at_population("log_likelihood")[0]


def skill(s: Statistics) -> np.ndarray:
    """1 − (expected log-likelihood) / Σ_c π_c log π_c: 0 for always answering π, 1 for certain and correct predictions."""
    return 1 - expected_log_likelihood(s) / _of_always_the_mix(s)


def brier(s: Statistics) -> np.ndarray:
    """E[(p(1|x) − y)²] for two classes, E[Σ_k (p(k|x) − 1{y = k})²] for more."""
    return s.at_population("brier")[0]


def mean_prediction(s: Statistics) -> np.ndarray:
    """E[p(last class|x)]: equal to that class's π in a correct model."""
    return mean_prediction_by_class(s)[-1]


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


def tpr(s: Statistics) -> np.ndarray:
    """Sensitivity: the fraction of a class that is found."""
    return s.confusion[1, 1] if s.num_classes == 2 else tpr_by_class(s).mean(0)


def tnr(s: Statistics) -> np.ndarray:
    """Specificity: the fraction of examples not of a class that are not assigned to it."""
    return s.confusion[0, 0] if s.num_classes == 2 else tnr_by_class(s).mean(0)


def ppv(s: Statistics) -> np.ndarray:
    """Precision: the fraction of examples assigned to a class that are of it."""
    return ppv_by_class(s)[1] if s.num_classes == 2 else ppv_by_class(s).mean(0)


def npv(s: Statistics) -> np.ndarray:
    """The fraction of examples not assigned to a class that are not of it."""
    return npv_by_class(s)[1] if s.num_classes == 2 else npv_by_class(s).mean(0)


def tpr_by_class(s: Statistics) -> np.ndarray:
    """C[k, k], (k, b)."""
    return np.einsum("kkb->kb", s.confusion)


def tnr_by_class(s: Statistics) -> np.ndarray:
    """Σ_{c≠k} π_c (1 − C[c, k]) / (1 − π_k)."""
    return _not_said_and_not_of(s) / _others(s)


def ppv_by_class(s: Statistics) -> np.ndarray:
    """π_k C[k, k] / Σ_c π_c C[c, k]."""
    return s.population * tpr_by_class(s) / s.at_population("confusion")


def npv_by_class(s: Statistics) -> np.ndarray:
    """Σ_{c≠k} π_c (1 − C[c, k]) / Σ_c π_c (1 − C[c, k])."""
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
    """b of `calibration.py`: 1 for a correct model, less for an overconfident one.

    In a resample, one Newton step from the fit to the whole sample, θ + H⁻¹ g: NaN if H is singular.
    """
    fit = s.spec.recalibration
    assert fit is not None
    curvature = np.moveaxis(symmetric(s.at_population("curvature")), -1, 0)
    singular = np.linalg.slogdet(curvature)[0] == 0
    curvature[singular] = np.eye(curvature.shape[1])
    step = np.linalg.solve(curvature, s.at_population("score").T[..., None])[:, 0, 0]
    return (fit.theta[0] + np.where(singular, np.nan, step)) / fit.scale


def calibration_intercept(s: Statistics) -> np.ndarray:
    """Shift of the log-odds of the last class that corrects the mean prediction: 0 for a correct model."""
    return calibration_intercept_by_class(s)[-1]


def calibration_intercept_by_class(s: Statistics) -> np.ndarray:
    """a_k of `calibration.py`: E[σ(l_k + a_k)] = π_k, (k, b); above 0 if the predictions are too low.

    In a resample, one Newton step from the fit to the whole sample, on the log-odds of both sides.
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


def _of_always_the_mix(s: Statistics) -> np.ndarray:
    """Σ_c π_c log π_c: the expected log-likelihood of always answering π."""
    return (s.population * np.log(s.population)).sum(0)


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
    return (s.population[:, None] * _except_own(s)[:, :, None] * (1 - s.confusion)).sum(0)


def _not_said(s: Statistics) -> np.ndarray:
    """Σ_c π_c (1 − C[c, k]): the fraction of the population not assigned to class k."""
    return _not_said_and_not_of(s) + s.population * (1 - tpr_by_class(s))


def _others(s: Statistics) -> np.ndarray:
    """1 − π_k, as a sum, to avoid cancellation if π_k is near 1."""
    return _except_own(s) @ s.population


# The derivative of each figure, at one sample (b = 1), by the statistics that it depends on: of a kind in `Statistics.means`,
# for its mean over the population; of "confusion" C[c, d], "areas" A[k, c] and "totals" n_c, for each.
Gradient = dict[str, np.ndarray]


def _by_column(s: Statistics, j: int | None, by_class: np.ndarray) -> Gradient:
    """Return the gradient of class j's figure, or of their mean, from that of each figure in its own column of C `(k, k)`."""
    if j is None and s.num_classes > 2:
        return {"confusion": by_class / s.num_classes}
    return {"confusion": by_class * (np.arange(s.num_classes) == (1 if j is None else j))}


def _by_class(s: Statistics, j: int | None, kind: str, value: np.ndarray) -> Gradient:
    """Return the gradient of class j's figure, or the last's, which depends on one mean of that kind."""
    return {kind: np.where(np.arange(len(value)) == (len(value) - 1 if j is None else j), value, 0.0)}


def _gradient_of_accuracy(s: Statistics) -> Gradient:
    total = s.totals.sum()
    right = np.nan_to_num(tpr_by_class(s)[:, 0])
    return {"confusion": np.diag(s.totals[:, 0] / total), "totals": (right - accuracy(s)) / total}


def _gradient_of_auc(s: Statistics) -> np.ndarray:
    if s.num_classes == 2:
        return np.array([[0.0, 0.0], [1.0, 0.0]])
    return s.population[:, 0] * _except_own(s) / _others(s) / s.num_classes


def _gradient_of_slope(s: Statistics) -> Gradient:
    fit = s.spec.recalibration
    assert fit is not None
    return {"score": np.linalg.inv(symmetric(s.at_population("curvature"))[..., 0])[0] / fit.scale}


ANY, UNIT, POSITIVE = (-math.inf, math.inf), (0.0, 1.0), (0.0, math.inf)


@dataclass(frozen=True)
class Formula:
    """A figure's formula, and its properties.

    Attributes:
        compute: the formula.
        gradient: its derivative; of figures by class, for one class, or for None of the figure itself.
        words: its name.
        bounds: its range.
        of_decisions: whether it depends only on the decisions.
        by_class: the same for each class against the rest.
        better: "higher", "lower", or "nearer" to the `ideal`.
        ideal: its value in a correct model, if neither high nor low is better.
    """

    compute: Callable[[Statistics], np.ndarray]
    gradient: Callable[[Statistics, int | None], Gradient]
    words: str
    bounds: tuple[float, float] = ANY
    of_decisions: bool = False
    by_class: Callable[[Statistics], np.ndarray] | None = None
    better: Literal["higher", "lower", "nearer"] = "higher"
    ideal: Callable[[Statistics], np.ndarray | float] | None = None


FIGURES: dict[str, Formula] = {
    "expected_log_likelihood": Formula(
        expected_log_likelihood, lambda s, j: {"log_likelihood": np.ones(1)}, "expected log-likelihood", (-math.inf, 0.0)
    ),
    "skill": Formula(
        skill,
        lambda s, j: {"log_likelihood": -1 / _of_always_the_mix(s)},
        "skill against always answering the prevalence",
        (-math.inf, 1.0),
    ),
    "brier": Formula(brier, lambda s, j: {"brier": np.ones(1)}, "Brier score", POSITIVE, better="lower"),
    "mean_prediction": Formula(
        mean_prediction,
        lambda s, j: _by_class(s, j, "probs", np.ones(s.spec.fields["probs"])),
        "mean prediction of the last class",
        UNIT,
        by_class=mean_prediction_by_class,
        better="nearer",
        ideal=lambda s: s.population[-1],
    ),
    "accuracy": Formula(accuracy, lambda s, j: _gradient_of_accuracy(s), "accuracy in the sample", UNIT, True),
    "weighted_accuracy": Formula(
        weighted_accuracy, lambda s, j: {"confusion": np.diag(s.population[:, 0])}, "accuracy in the population", UNIT, True
    ),
    "balanced_accuracy": Formula(
        balanced_accuracy, lambda s, j: {"confusion": np.eye(s.num_classes) / s.num_classes}, "balanced accuracy", UNIT, True
    ),
    "ppv": Formula(
        ppv,
        lambda s, j: _by_column(
            s, j, s.population * (np.eye(s.num_classes) - ppv_by_class(s)[:, 0]) / s.at_population("confusion")[:, 0]
        ),
        "positive predictive value",
        UNIT,
        True,
        ppv_by_class,
    ),
    "npv": Formula(
        npv,
        lambda s, j: _by_column(s, j, s.population * (npv_by_class(s)[:, 0] - _except_own(s)) / _not_said(s)[:, 0]),
        "negative predictive value",
        UNIT,
        True,
        npv_by_class,
    ),
    "tpr": Formula(
        tpr,
        lambda s, j: _by_column(s, j, np.eye(s.num_classes)),
        "true positive rate (sensitivity)",
        UNIT,
        True,
        tpr_by_class,
    ),
    "tnr": Formula(
        tnr,
        lambda s, j: _by_column(s, j, -s.population * _except_own(s) / _others(s)[:, 0]),
        "true negative rate (specificity)",
        UNIT,
        True,
        tnr_by_class,
    ),
    "auc": Formula(auc, lambda s, j: {"areas": _gradient_of_auc(s)}, "area under the ROC curve", UNIT),
    "auc_pairwise": Formula(
        auc_pairwise,
        lambda s, j: {"areas": np.full((s.num_classes,) * 2, 1 / (s.num_classes * (s.num_classes - 1)))},
        "the same, mean over pairs of classes",
        UNIT,
    ),
    "off_by_one": Formula(
        off_by_one, lambda s, j: {"confusion": s.population * _neighbours(s)}, "within one class of the truth", UNIT, True
    ),
    "calibration_error": Formula(
        calibration_error,
        lambda s, j: {"gaps": np.sign(calibration_gaps(s)[:, 0]) / len(s.spec.edges)},
        "calibration error",
        POSITIVE,
        better="lower",
    ),
    "calibration_slope": Formula(
        calibration_slope, lambda s, j: _gradient_of_slope(s), "calibration slope", better="nearer", ideal=lambda s: 1.0
    ),
    "calibration_intercept": Formula(
        calibration_intercept,
        lambda s, j: _by_class(s, j, "shifted", -1 / s.at_population("slopes")[:, 0]),
        "calibration intercept of the last class",
        by_class=calibration_intercept_by_class,
        better="nearer",
        ideal=lambda s: 0.0,
    ),
    "expected_cost": Formula(
        expected_cost,
        lambda s, j: {"confusion": s.population * s.spec.costs},
        "expected cost of the decisions",
        ANY,
        True,
        better="lower",
    ),
    "net_benefit": Formula(
        net_benefit,
        lambda s, j: {"confusion": s.population * [[0.0, -_price(s)], [0.0, 1.0]]},
        "net benefit",
        ANY,
        True,
    ),
}


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
class Evaluation:
    """The result of `evaluate`: every figure at one prevalence. Print it for a table.

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
        level: the level of the intervals.
        intervals: the method of the intervals: "bootstrap", "analytic" or "none".
        num_examples: the number of examples of each class; votes count as fractions.
        population: π.
        cost_unit: the unit of `expected_cost`, as text.
    """

    expected_log_likelihood: Figure
    skill: Figure
    brier: Figure
    mean_prediction: Figure
    accuracy: Figure
    weighted_accuracy: Figure
    balanced_accuracy: Figure
    ppv: Figure
    npv: Figure
    tpr: Figure
    tnr: Figure
    auc: Figure
    auc_pairwise: Figure
    off_by_one: Figure
    calibration_error: Figure
    calibration_slope: Figure
    calibration_intercept: Figure
    expected_cost: Figure
    net_benefit: Figure
    level: float
    intervals: str
    num_examples: tuple[float, ...]
    population: tuple[float, ...]
    cost_unit: str = ""

    def __getitem__(self, name: str) -> Figure:
        if name not in FIGURES:
            raise KeyError(f"there is no figure {name!r}; there are {', '.join(FIGURES)}")
        figure: Figure = getattr(self, name)
        return figure

    def __iter__(self) -> Iterator[str]:
        return iter(FIGURES)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return plain numbers and strings, for JSON or a data frame: `pandas.DataFrame(evaluation.to_dict()).T`."""
        figures = {name: self[name] for name in FIGURES}
        return {name: {"value": f.value, "low": f.low, "high": f.high, "reason": f.reason} for name, f in figures.items()}

    def __repr__(self) -> str:
        share = ", ".join(f"{value:.4g}" for value in self.population[:6]) + (", …" if len(self.population) > 6 else "")
        counts = ", ".join(f"{value:g}" for value in self.num_examples[:6]) + (", …" if len(self.num_examples) > 6 else "")
        how = "" if self.intervals == "none" else f"; {self.level:.0%} intervals, {self.intervals}"
        lines = [f"At a population of [{share}], from [{counts}] examples{how}"]
        words = {name: kind.words for name, kind in FIGURES.items()}
        if self.cost_unit:
            words["expected_cost"] = f"expected cost per decision ({self.cost_unit})"
        width = max(map(len, words.values()))
        lines += [f"  {words[name]:<{width}}  {self[name]}" for name in FIGURES]
        return "\n".join(lines)
