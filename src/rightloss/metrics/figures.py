"""Each figure as a function of what was averaged within the classes, and of the population's mix.

Stage: `Averages`, areas A, π → a number per resample. C[c, d] is the share of class c that is decided to be d; with more than
two classes, `ppv`, `npv`, `tpr` and `tnr` are those of one class against the rest, averaged over the classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from .averages import Averages


@dataclass(frozen=True)
class State:
    """All that a figure may depend on, for b resamples.

    Attributes:
        averages: within each class.
        areas: A[k, c], see `ranks.py`.
        population: π, class × resample, or class × 1.
        decided: C in the place of the averages' own, where it is drawn by itself.
    """

    averages: Averages
    areas: Float64[Tensor, "k k b"]
    population: Float64[Tensor, "k _"]
    decided: Float64[Tensor, "k k _"] | None = None

    @property
    def confusion(self) -> Tensor:
        """C[c, d], class × decision × resample."""
        return self.averages.confusion if self.decided is None else self.decided

    @property
    def num_classes(self) -> int:
        return len(self.areas)

    def at_population(self, by_class: Tensor) -> Tensor:
        """Σ_c π_c (·)_c: the expectation over the population."""
        return (self.population * by_class).sum(0)


def expected_log_likelihood(s: State) -> Tensor:
    """Σ_c π_c E[log p(c|x) | c], in nats."""
    return s.at_population(s.averages.log_likelihood)


def skill(s: State) -> Tensor:
    """1 − (expected log-likelihood) / Σ_c π_c log π_c: 0 for always answering π, 1 for certainty about what happens."""
    return 1 - expected_log_likelihood(s) / (s.population * s.population.log()).sum(0)


def brier(s: State) -> Tensor:
    """E[(p(1|x) − y)²] for two classes, E[Σ_k (p(k|x) − 1{y = k})²] for more."""
    return s.at_population(s.averages.brier)


def mean_prediction(s: State) -> Tensor:
    """E[p(last class|x)]: equal to that class's π in a model that is right."""
    return s.at_population(s.averages.last)


def accuracy(s: State) -> Tensor:
    """Share of right decisions in the sample as it is."""
    share = s.averages.totals / s.averages.totals.sum(0)
    return torch.where(share > 0, share * s.confusion.diagonal().T, 0.0).sum(0)


def weighted_accuracy(s: State) -> Tensor:
    """Share of right decisions in the population, Σ_c π_c C[c, c]."""
    return s.at_population(s.confusion.diagonal().T)


def balanced_accuracy(s: State) -> Tensor:
    """The same were all classes equally frequent."""
    return s.confusion.diagonal().mean(1)


def tpr(s: State) -> Tensor:
    """Sensitivity: the share of a class that is found."""
    return s.confusion[1, 1] if s.num_classes == 2 else tpr_by_class(s).mean(0)


def tnr(s: State) -> Tensor:
    """Specificity: the share of those not of a class that are not said to be of it."""
    return s.confusion[0, 0] if s.num_classes == 2 else tnr_by_class(s).mean(0)


def ppv(s: State) -> Tensor:
    """Precision: the share, of those said to be of a class, that are."""
    return ppv_by_class(s)[1] if s.num_classes == 2 else ppv_by_class(s).mean(0)


def npv(s: State) -> Tensor:
    """The share, of those said not to be of a class, that are not."""
    return npv_by_class(s)[1] if s.num_classes == 2 else npv_by_class(s).mean(0)


def tpr_by_class(s: State) -> Tensor:
    """C[k, k], (k, b)."""
    return s.confusion.diagonal().T


def tnr_by_class(s: State) -> Tensor:
    """Σ_{c≠k} π_c (1 − C[c, k]) / (1 − π_k)."""
    return _not_said_and_not_of(s) / _others(s.population)


def ppv_by_class(s: State) -> Tensor:
    """π_k C[k, k] / Σ_c π_c C[c, k]."""
    return s.population * tpr_by_class(s) / _said(s)


def npv_by_class(s: State) -> Tensor:
    """Σ_{c≠k} π_c (1 − C[c, k]) / Σ_c π_c (1 − C[c, k])."""
    right = _not_said_and_not_of(s)
    return right / (right + s.population * (1 - tpr_by_class(s)))


def auc(s: State) -> Tensor:
    """P(score of a positive > score of a negative) + ½ P(equal); for more classes one against the rest at π, averaged."""
    if s.num_classes == 2:
        return s.areas[1, 0]
    share = s.population[None] * (1 - torch.eye(s.num_classes, dtype=torch.float64))[:, :, None]
    return (share * s.areas).sum(1).div(_others(s.population)).mean(0)


def auc_pairwise(s: State) -> Tensor:
    """The mean over pairs of classes, Hand and Till's; the prevalence plays no part."""
    k = s.num_classes
    return (s.areas.sum((0, 1)) - k / 2) / (k * (k - 1))


def off_by_one(s: State) -> Tensor:
    """P(|decision − class| ≤ 1) in the population, for ordered classes."""
    near = torch.ones(s.num_classes, s.num_classes, dtype=torch.float64).tril(1).triu(-1)
    return s.at_population((near[:, :, None] * s.confusion).sum(1))


def calibration_error(s: State) -> Tensor:
    """Σ_bins |mean prediction − observed frequency| · share, at π; for more than two classes the mean over the classes."""
    return calibration_gaps(s).abs().sum(0) / len(s.averages.recipe.edges)


def calibration_gaps(s: State) -> Tensor:
    """(mean prediction − observed frequency) · share of each bin, of each class looked at, (j·e, b)."""
    return (s.population[:, None] * s.averages.gaps).sum(0)


def calibration_slope(s: State) -> Tensor:
    """b of `recalibration.py`: 1 for a model that is right, less for one too sure of itself.

    In a resample, one Newton step from the fit to the whole sample, θ + H⁻¹ g: NaN where H is singular.
    """
    fit = s.averages.recipe.recalibration
    assert fit is not None
    score = (s.population[:, None] * s.averages.score).sum(0)
    curvature = (s.population[:, None, None] * s.averages.curvature).sum(0)
    step, failed = torch.linalg.solve_ex(curvature.permute(2, 0, 1), score.T)
    return (fit.theta[0] + torch.where(failed == 0, step[:, 0], torch.nan)) / fit.scale


def expected_cost(s: State) -> Tensor:
    """Σ_c π_c Σ_d C[c, d] cost[c, d]."""
    return s.at_population((s.averages.recipe.costs[:, :, None] * s.confusion).sum(1))


def net_benefit(s: State) -> Tensor:
    """π TPR − (1 − π) FPR t/(1 − t): true positives per person, less false ones at their price."""
    costs = s.averages.recipe.costs
    price = (costs[0, 1] - costs[0, 0]) / (costs[1, 0] - costs[1, 1])
    return s.population[1] * s.confusion[1, 1] - s.population[0] * s.confusion[0, 1] * price


ANY, UNIT, POSITIVE = (-math.inf, math.inf), (0.0, 1.0), (0.0, math.inf)


@dataclass(frozen=True)
class Kind:
    """A figure: its formula, its name in words, what it lies between, and whether it depends on the decisions alone."""

    formula: Callable[[State], Tensor]
    words: str
    bounds: tuple[float, float] = ANY
    of_decisions: bool = False
    by_class: Callable[[State], Tensor] | None = None


FIGURES: dict[str, Kind] = {
    "expected_log_likelihood": Kind(expected_log_likelihood, "expected log-likelihood", (-math.inf, 0.0)),
    "skill": Kind(skill, "skill against always answering the prevalence", (-math.inf, 1.0)),
    "brier": Kind(brier, "Brier score", POSITIVE),
    "mean_prediction": Kind(mean_prediction, "mean prediction of the last class", UNIT),
    "accuracy": Kind(accuracy, "accuracy in the sample", UNIT, True),
    "weighted_accuracy": Kind(weighted_accuracy, "accuracy in the population", UNIT, True),
    "balanced_accuracy": Kind(balanced_accuracy, "balanced accuracy", UNIT, True),
    "ppv": Kind(ppv, "positive predictive value", UNIT, True, ppv_by_class),
    "npv": Kind(npv, "negative predictive value", UNIT, True, npv_by_class),
    "tpr": Kind(tpr, "true positive rate (sensitivity)", UNIT, True, tpr_by_class),
    "tnr": Kind(tnr, "true negative rate (specificity)", UNIT, True, tnr_by_class),
    "auc": Kind(auc, "area under the ROC curve", UNIT),
    "auc_pairwise": Kind(auc_pairwise, "the same, mean over pairs of classes", UNIT),
    "off_by_one": Kind(off_by_one, "within one class of the truth", UNIT, True),
    "calibration_error": Kind(calibration_error, "calibration error", POSITIVE),
    "calibration_slope": Kind(calibration_slope, "calibration slope"),
    "expected_cost": Kind(expected_cost, "expected cost of the decisions", ANY, True),
    "net_benefit": Kind(net_benefit, "net benefit", ANY, True),
}


def _said(s: State) -> Tensor:
    """Σ_c π_c C[c, k]: the share of the population that is said to be of class k."""
    return (s.population[:, None] * s.confusion).sum(0)


def _not_said_and_not_of(s: State) -> Tensor:
    """Σ_{c≠k} π_c (1 − C[c, k])."""
    other = 1 - torch.eye(s.num_classes, dtype=torch.float64)[:, :, None]
    return (s.population[:, None] * other * (1 - s.confusion)).sum(0)


def _others(population: Tensor) -> Tensor:
    """1 − π_k, by adding: nothing cancels where π_k is near 1."""
    return (1 - torch.eye(len(population), dtype=torch.float64)) @ population
