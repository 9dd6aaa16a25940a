"""Conformal prediction sets: sets of classes with guaranteed coverage, in another population than that of the calibration.

Stage: labelled predictions, π, a level → `ConformalSets`; log_probs `(n, k)` → bool `(n, k)`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays import as_given, checked_level, fields_as_given, log_prob_table
from .sample import Mix, Numbers, Predictions, labelled_sample

if TYPE_CHECKING:
    from jaxtyping import Float64


@dataclass(frozen=True)
class ConformalSets:
    """Label-shift conformal sets (Podkopaev & Ramdas 2021, by the weighted quantiles of Tibshirani et al. 2019).

    Class y is in the set of x if its score s(x, y) = −log p(y|x) is at most q_y, the smallest q with

        Σ_i w_i 1{s(x_i, y_i) ≤ q}  ≥  level · (1 + w_y),      w_i = π_{y_i} / n_{y_i},   w_y = π_y / n_y,

    over the calibration sample: n_c examples of class c, in any mix. w_y is the weight of the new case, if its class is y. Then
    the set contains the true class for at least a fraction `level` of the population, on average over calibration samples, for
    any quality of the predictions. With `per_class` the quantile is taken within class y, so that `level` holds for each class,
    and therefore at any prevalence; the sets are larger.

    Make one with `ConformalSets.fit`.

    Attributes:
        thresholds: q `(k,)`; ∞ for a class that is in every set, because it had too few examples, or because the true class had
            probability 0 more often than the level allows.
        level: the guaranteed coverage.
        per_class: whether the level holds in every class.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import ConformalSets
        >>> y = np.arange(200) % 2
        >>> x = np.random.default_rng(0).normal(size=200) + y
        >>> log_probs = -np.logaddexp(0, np.stack([2 * x, -2 * x], 1))
        >>> sets = ConformalSets.fit(log_probs[:100], y[:100], prevalence=0.1, level=0.9)
        >>> sets.predict(log_probs[100:103]).tolist()
        [[True, True], [False, True], [True, True]]
    """

    thresholds: Float64[np.ndarray, " k"]
    level: float
    per_class: bool

    @classmethod
    def fit(
        cls,
        log_probs: Predictions,
        labels: Numbers,
        prevalence: Mix | None = None,
        level: float = 0.9,
        per_class: bool = False,
    ) -> ConformalSets:
        """Fit the thresholds to a calibration sample that the model was not trained on.

        Warn if a class is in every set, and say why.

        Args:
            log_probs: predictions `(n, k)`, as log-probabilities.
            labels: int labels `(n,)` or soft votes `(n, k)`, in any mix of classes; every class must occur.
            prevalence: π of the population: a `Prevalence`, an estimate of one, K frequencies, or for two classes that of class
                1. Coverage is linear in π, so the mean of an uncertain π is used, and the level holds on average over π. For a
                level at every π use `per_class`, which needs no prevalence.
            level: the fraction of people with their class in the set.
            per_class: whether the level must hold in every class.
        """
        level = checked_level(level)
        if prevalence is None and not per_class:
            remedy = "give it, or use per_class=True, with a level that holds at any prevalence"
            raise ValueError(f"Expected `prevalence`, where the sets will be used, but got none: {remedy}.")
        sample = labelled_sample(log_probs, labels, prevalence)
        log_prob_table(log_probs)  # refuses a map
        sample.require_every_class("conformal sets")
        own, mix = -sample.own_log_probs, sample.prevalence.population
        share = mix if per_class else np.ones_like(mix)
        mass = level * (share + mix / sample.totals) * (1 - 1e-12)  # rounding counts as reached
        thresholds = np.empty_like(mass)
        for c in range(sample.num_classes):
            among = sample.labels == c if per_class else slice(None)
            thresholds[c] = _quantile(own[among], sample.population_weights[among], mass[c])
        unbounded, few = np.isinf(thresholds), mass > share
        _warn_of(unbounded & few, f"Too few calibration examples for a level of {level:g}", "calibrate on more of them")
        why = f"The predictions give probability 0 to the true class of too many examples for a level of {level:g}"
        _warn_of(unbounded & ~few, why, "use predictions that rule out less")
        return fields_as_given(cls(thresholds, level, per_class), log_probs)

    def predict(self, log_probs: Predictions) -> Any:
        """Return which classes are in the set of each row: bool `(n, k)`, an array or a tensor like `log_probs`.

        Args:
            log_probs: predictions of the same model, with the precision and prevalence of the calibration.
        """
        table = log_prob_table(log_probs, len(self.thresholds))
        return as_given(-table <= np.asarray(self.thresholds), log_probs)


def _quantile(scores: np.ndarray, weights: np.ndarray, mass: float) -> float:
    """Return the smallest score with at least `mass` of the weights at or below it; ∞ if there is none."""
    order = np.argsort(scores, kind="stable")
    reached = weights[order].cumsum() >= mass
    return float(scores[order][reached.argmax()]) if reached[-1] else np.inf


def _warn_of(classes: np.ndarray, reason: str, remedy: str) -> None:
    listed = np.flatnonzero(classes).tolist()
    if listed:
        warnings.warn(f"{reason}: class(es) {listed} are in every set. Lower the level, or {remedy}.", stacklevel=3)
