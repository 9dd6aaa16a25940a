"""Choose the correction of a classifier's predictions by its score on held-out rows at the population.

Stage: out-of-fold `log_probs` at the rows' own mix, labels, π → tables at π → scores → the name of one, smoothed or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..predictive import retarget
from .logit_calibration import CalibrationMethod, calibrate_logits, smooth_likelihoods

FEW = 20.0  # rows of a class, by weight, below which a calibration is the last resort
# standard errors better than predicting π that are needed to skip the calibration, and to keep a correction at all
_SURE, _SOME = 2.0, 0.5


@dataclass(frozen=True)
class HeldOutRows:
    """Out-of-fold predictions, their mix of classes, and that of the population.

    Attributes:
        log_probs: `(n, k)`, finite, moved to `data` by the closed form.
        labels: class numbers `(n,)`.
        weights: `(n,)`, that sum to the number of rows of each class: `rows_of_classes`.
        folds: `(n,)`, for calibrations that are fitted on the other folds.
        data: the mix of these numbers (K,).
        population: π (K,).
    """

    log_probs: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    folds: np.ndarray
    data: np.ndarray
    population: np.ndarray

    def own(self, log_probs: np.ndarray) -> np.ndarray:
        """Return the log-probability of each row's label (n,)."""
        return log_probs[np.arange(len(self.labels)), self.labels]

    @property
    def mass(self) -> np.ndarray:
        """Rows of each class, by weight (K,)."""
        return np.bincount(self.labels, weights=self.weights)

    def at_population(self, log_probs: np.ndarray) -> np.ndarray:
        """Return predictions at `data` as predictions at the population."""
        return np.asarray(retarget(log_probs, self.data, self.population))


def predict_held_out(rows: HeldOutRows, fixed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the predictions of each correction at the population `(n, k)`, and always π as "population".

    Args:
        rows: the held-out rows.
        fixed: predictions at the population `(n, k)` of corrections that use no labels, by name. "affine", and "beta" if there
            are enough rows, are added, each fitted on the other folds.
    """
    methods: list[CalibrationMethod] = ["affine"] if fewest(rows) < FEW else ["affine", "beta"]
    calibrated = {str(method): rows.at_population(_cross_fitted(rows, method)) for method in methods}
    return {**fixed, **calibrated, "population": np.broadcast_to(np.log(rows.population), rows.log_probs.shape)}


def is_smoothed(rows: HeldOutRows, log_probs: np.ndarray) -> bool:
    """Return whether predictions at π should be smoothed: unless they are better without, by more than a standard error."""
    if fewest(rows) < FEW:
        return False
    smoothed = smooth_likelihoods(log_probs, rows.population, rows.mass)
    gain, error = expected_gain(rows.own(log_probs) - rows.own(smoothed), rows)
    return gain <= error


def rows_of_classes(labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return how many rows of each class there are (K,), which does not depend on the scale of the weights.

    That is Kish's effective number (Σ w)²/Σ w². Only whole numbers from 1 on, as for rows that occur several times, are added
    up instead.
    """
    mass, squares, parts = (np.bincount(labels, weights=each) for each in (weights, weights**2, weights % 1))
    least = np.full(len(mass), np.inf)
    np.minimum.at(least, labels[weights > 0], weights[weights > 0])
    found: np.ndarray = np.where((parts == 0) & (least == 1), mass, mass**2 / squares)
    return found


def choose_method(scores: Mapping[str, np.ndarray], rows: HeldOutRows) -> str:
    """Return the correction to use, by the rule in the docstring of `PrevalenceCorrectedClassifier`."""
    few = fewest(rows) < FEW
    simple = [name for name in ("closed_form", "mean_matching") if name in scores]
    start = _clearly_best(simple, scores, rows) if simple else "affine"
    calibrated = max(
        [name for name in ("affine", "beta") if name in scores], key=lambda name: expected_gain(scores[name], rows)[0]
    )
    gain, error = expected_gain(scores[calibrated] - scores[start], rows)
    over, noise = expected_gain(scores[start] - scores["population"], rows)
    needed = over < -noise and gain > 0 if few else over < _SURE * noise or gain > -error
    chosen = calibrated if needed else start
    over, noise = expected_gain(scores[chosen] - scores["population"], rows)
    return "flat" if over < (-1 if few else _SOME) * noise else chosen


def compare_methods(scores: Mapping[str, np.ndarray], rows: HeldOutRows) -> dict[str, dict[str, float]]:
    """Return each correction's expected log-likelihood at π, its gain over predicting π, and the gain's standard error."""
    found = {}
    for name, each in scores.items():
        gain, error = expected_gain(each - scores["population"], rows)
        found[name] = {"expected_log_likelihood": expected_gain(each, rows)[0], "gain": gain, "standard_error": error}
    return found


def expected_gain(values: np.ndarray, rows: HeldOutRows) -> tuple[float, float]:
    """Return Σ_k π_k avg_{n: y_n = k} v_n and its standard error, with class k's variance divided by its rows, by weight."""
    mean, variance = 0.0, 0.0
    for k, share in enumerate(rows.population):
        own = rows.labels == k
        weights, total = rows.weights[own], rows.weights[own].sum()
        average = weights @ values[own] / total
        mean += share * average
        variance += share**2 * (weights @ (values[own] - average) ** 2) / total / max(total - 1, 1)
    return float(mean), float(variance**0.5)


def fewest(rows: HeldOutRows) -> float:
    """Return the number of rows, by weight, of the rarest class."""
    return float(rows.mass.min())


def _clearly_best(names: list[str], scores: Mapping[str, np.ndarray], rows: HeldOutRows) -> str:
    """Return the first name, unless a later one is better by more than a standard error of the paired difference."""
    chosen = names[0]
    for name in names[1:]:
        gain, error = expected_gain(scores[name] - scores[chosen], rows)
        chosen = name if gain > error else chosen
    return chosen


def _cross_fitted(rows: HeldOutRows, method: CalibrationMethod) -> np.ndarray:
    found = rows.log_probs.copy()
    for fold in np.unique(rows.folds):
        other = rows.folds != fold
        fitted = calibrate_logits(rows.log_probs[other], rows.labels[other], rows.weights[other], method)
        found[~other] = fitted(rows.log_probs[~other])
    return found
