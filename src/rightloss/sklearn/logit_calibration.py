"""Calibrate logits: slopes and intercepts from labelled predictions, or intercepts from unlabelled ones and a given mean.

Stage: `log_probs (n, k)`, labels or a mean → `LogitCalibration` → calibrated `log_probs`; counts → smoothed ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

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
    slopes = 1 if method == "affine" else size
    table, total = np.ascontiguousarray(log_probs.T), weights.sum()
    share = weights / total
    scale = max(1.0, float(np.sqrt(share @ table.var(axis=0))))  # so that slopes and intercepts have steps of the same size
    own_log = np.bincount(labels, weights=share * table[labels, np.arange(len(labels))], minlength=size)
    own = np.bincount(labels, weights=share, minlength=size)

    def loss(params: np.ndarray) -> tuple[float, np.ndarray]:
        change, bias = params[:slopes] / scale, params[slopes:]
        slope = np.broadcast_to(1 + change, (size,))
        log_total, probs = _normalised(table, slope, bias)
        value = share @ log_total - slope @ own_log - bias @ own + change @ change / (2 * total * _SLOPE_SPREAD**2)
        by_slope = np.einsum("n,kn,kn->k", share, probs, table) - own_log
        by_change = (by_slope if slopes > 1 else by_slope.sum(keepdims=True)) + change / (total * _SLOPE_SPREAD**2)
        return float(value), np.concatenate([by_change / scale, probs @ share - own])

    bounds = [(-scale, None)] * slopes + [(None, None)] * size
    options = {"ftol": 1e-14, "gtol": 1e-9, "maxiter": 500}
    found = minimize(loss, np.zeros(slopes + size), jac=True, bounds=bounds, method="L-BFGS-B", options=options)
    slope = np.broadcast_to(1 + found.x[:slopes] / scale, (size,)).copy()
    return LogitCalibration(slope, found.x[slopes:] - found.x[slopes:].mean())


def flattened(log_probs: np.ndarray, mean: np.ndarray, weights: np.ndarray) -> LogitCalibration:
    """Return a calibration that predicts nearly `mean` (K,) for every row, but keeps the order of the predictions."""
    return match_mean(log_probs, mean, weights, np.full(len(mean), _FLAT))


def match_mean(
    log_probs: np.ndarray, mean: np.ndarray, weights: np.ndarray, slope: np.ndarray | None = None
) -> LogitCalibration:
    """Return the intercepts b with which the mean prediction is `mean`; no labels are needed.

    They minimise the convex F(b) = avg_n log Σ_k exp(a_k log p(k|x_n) + b_k) − Σ_k mean_k b_k, whose gradient is the mean
    prediction minus `mean`, by Newton's method with step halving.

    Args:
        log_probs: finite, `(n, k)`.
        mean: positive, sums to 1 (K,).
        weights: of the rows `(n,)`, at least 0.
        slope: a (K,); 1 by default.
    """
    slopes = np.ones(len(mean)) if slope is None else slope
    table, share = np.ascontiguousarray(log_probs.T), weights / weights.sum()

    def at(bias: np.ndarray) -> tuple[float, np.ndarray, np.ndarray, float]:
        """Return F, the probabilities, their mean, and how far that is from `mean`, relatively."""
        totals, probs = _normalised(table, slopes, bias)
        average = probs @ share
        return float(share @ totals - mean @ bias), probs, average, float(np.abs(average / mean - 1).max())

    bias = np.log(mean) - np.log(at(np.zeros(len(mean)))[2])
    value, probs, average, error = at(bias)
    for _ in range(100):
        if error < 1e-12:
            break
        curvature = np.diag(average) - (probs * share) @ probs.T
        step = np.linalg.pinv(curvature, rcond=1e-14, hermitian=True) @ (average - mean)
        scaling = np.log(average) - np.log(mean)  # iterative scaling, slower: the last try, where Newton's step is of no use
        for change in (*(step * 0.5**halvings for halvings in range(20)), scaling):
            found = at(bias - change)
            if found[0] < value or found[3] < error:  # near the end F is rounding, and the error still falls
                break
        else:
            break
        bias, (value, probs, average, error) = bias - change, found
    return LogitCalibration(slopes, bias - bias.mean())


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


def _normalised(table: np.ndarray, slope: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log Σ_k exp(a_k t_k + b_k) of each column of `table` `(k, n)`, and the probabilities `(k, n)`."""
    logits = slope[:, None] * table + bias[:, None]
    top = logits.max(axis=0)
    probs = np.exp(logits - top)
    total = probs.sum(axis=0)
    return np.log(total) + top, probs / total
