"""Calibrate logits: slopes and intercepts from labelled predictions, or intercepts from unlabelled ones and a given mean.

Stage: `log_probs (n, k)`, labels or a mean → `LogitCalibration` → calibrated `log_probs`; counts → smoothed ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import linalg
from scipy.special import log_softmax

from ..solve import Quadratic, intercepts_for_mean, minimise, softmax_columns

CalibrationMethod = Literal["affine", "beta"]
_SLOPE_SPREAD = 1.0  # standard deviation of the slopes' prior, a normal distribution around 1
_FLAT = 0.01  # a slope that keeps the order of the predictions, but makes them nearly constant


@dataclass(frozen=True)
class LogitCalibration:
    """q(k|x) ∝ exp(a_k log p(k|x) + b_k), as [`Calibration`][rightloss.shift.Calibration], with slopes that may be 0.

    Attributes:
        slope: a (K,), at least 0.
        intercept: b (K,), with mean 0.
    """

    slope: np.ndarray
    intercept: np.ndarray

    def __call__(self, log_probs: np.ndarray) -> np.ndarray:
        """Return calibrated log-probabilities `(n, k)`; `log_probs` are finite."""
        return log_softmax(self.slope * log_probs + self.intercept, axis=1)


def calibrate_logits(
    log_probs: np.ndarray, labels: np.ndarray, weights: np.ndarray, method: CalibrationMethod
) -> LogitCalibration:
    """Fit slopes and intercepts to labelled predictions, and shrink the slopes for use on new rows.

    A fitted slope is on average too steep for new rows. The shrinkage of van Houwelingen and le
    Cessie (1990) multiplies slopes by 1 − s/χ², with s the number of slopes and χ² twice the gain in log-likelihood over the
    labels' frequencies; here by at least 0.01. The intercepts are then matched to those frequencies.

    Args:
        log_probs: finite, `(n, k)`.
        labels: class numbers `(n,)`, with every class.
        weights: weights of the rows `(n,)`, at least 0.
        method: "affine" or "beta", as in `fit_logits`.
    """
    fitted = fit_logits(log_probs, labels, weights, method)
    data = np.bincount(labels, weights=weights) / weights.sum()
    own = fitted(log_probs)[np.arange(len(labels)), labels]
    statistic = 2 * float(weights @ (own - np.log(data)[labels]))
    slopes = 1 if method == "affine" else len(data)
    shrinkage = max(_FLAT, 1 - slopes / max(statistic, slopes))
    return match_mean(log_probs, data, weights, shrinkage * fitted.slope)


def fit_logits(log_probs: np.ndarray, labels: np.ndarray, weights: np.ndarray, method: CalibrationMethod) -> LogitCalibration:
    """Fit slopes and intercepts to labelled predictions by penalised maximum likelihood, without shrinkage.

    "affine" has one slope for all classes: for two classes the log-odds become a · log-odds + b. "beta" has one per class:
    for two classes a₁ log p − a₀ log (1 − p) + b, beta calibration (Kull et al. 2017). Slopes are at least 0, with a normal
    prior of mean 1 and standard deviation 1. So few rows, or rows that the predictions separate, give a finite fit close to
    the uncalibrated predictions. Intercepts are free, so the weighted mean prediction equals the labels' weighted
    frequencies.

    Args:
        log_probs: finite, `(n, k)`.
        labels: class numbers `(n,)`, every class among them.
        weights: of the rows `(n,)`, at least 0.
        method: "affine" or "beta".
    """
    size = log_probs.shape[1]
    table, total = np.ascontiguousarray(log_probs.T), weights.sum()
    share = weights / total
    scale = max(1.0, float(np.sqrt(share @ table.var(axis=0))))  # so that slopes and intercepts have steps of the same size
    own = np.bincount(labels, weights=share, minlength=size)
    own_log = np.bincount(labels, weights=share * table[labels, np.arange(len(labels))], minlength=size)
    slopes = np.ones((size, 1)) if method == "affine" else np.eye(size)
    count = slopes.shape[1]
    # from the free parameters to (a, b) of all classes; the intercept of the most frequent one stays at 0
    design = linalg.block_diag(slopes / scale, np.delete(np.eye(size), own.argmax(), axis=1))
    penalty = np.zeros(design.shape[1])
    penalty[:count] = 1 / (total * (scale * _SLOPE_SPREAD) ** 2)

    def loss(params: np.ndarray) -> Quadratic:
        slope, bias = np.split(np.repeat([1.0, 0.0], size) + design @ params, 2)
        log_total, probs = softmax_columns(slope[:, None] * table + bias[:, None])
        value = share @ log_total - slope @ own_log - bias @ own + penalty @ params**2 / 2
        seen = np.concatenate([probs * table, probs])
        mean = seen @ share
        squared, crossed, predicted = (np.diag(each) for each in ((probs * table**2) @ share, *np.split(mean, 2)))
        curvature = np.block([[squared, crossed], [crossed, predicted]]) - (seen * share) @ seen.T
        gradient = design.T @ (mean - np.concatenate([own_log, own])) + penalty * params
        return Quadratic(float(value), gradient, design.T @ curvature @ design + np.diag(penalty))

    lower = np.concatenate([np.full(count, -scale), np.full(size - 1, -np.inf)])
    slope, bias = np.split(design @ minimise(loss, np.zeros(len(lower)), lower).point, 2)
    return LogitCalibration(1 + slope, bias - bias.mean())


def flattened(log_probs: np.ndarray, mean: np.ndarray, weights: np.ndarray) -> LogitCalibration:
    """Return a calibration that predicts nearly `mean` (K,) for every row, but keeps the order of the predictions."""
    return match_mean(log_probs, mean, weights, np.full(len(mean), _FLAT))


def match_mean(
    log_probs: np.ndarray, mean: np.ndarray, weights: np.ndarray, slope: np.ndarray | None = None
) -> LogitCalibration:
    """Return the intercepts b with which the mean prediction is `mean`; no labels are needed.

    Args:
        log_probs: finite, `(n, k)`.
        mean: positive, sums to 1 (K,).
        weights: of the rows `(n,)`, at least 0.
        slope: a (K,); 1 by default.
    """
    slopes = np.ones(len(mean)) if slope is None else slope
    return LogitCalibration(slopes, intercepts_for_mean(slopes * log_probs, mean, weights))


def smooth_likelihoods(log_probs: np.ndarray, population: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return predictions that claim no more than the labelled rows can show: no likelihood ratio exceeds about n_k + 1.

    p(k|x)/π_k is proportional to the likelihood p(x|k). If none of n_k labelled rows of class k looked like x, one in n_k of
    that class still may. So 1/(n_k + 1) is added to each class's share of the likelihood, Σ_k share_k = 1. For two classes
    this keeps the order of the predictions.

    Args:
        log_probs: at the population `(n, k)`, finite.
        population: π (K,).
        counts: labelled rows of each class n_k (K,).
    """
    prior = np.log(population)
    shares = np.exp(log_softmax(log_probs - prior, axis=1)) + 1 / (1 + counts)
    return log_softmax(np.log(shares) + prior, axis=1)
