"""The likelihood of slopes and biases: its maximum, and the covariance of the fit.

Stage: `HeldOut`, a kind → (a, b), their covariance. Tables are `(K, n)` here, so that sums over rows run along memory.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import linalg

from ..solve import Quadratic, minimise, softmax_columns
from .held_out import HeldOut

_STEEPEST = 1e4  # a slope above it has no bound
_NONE = 1e-12  # a slope below it is 0 up to rounding
_CERTAIN = 1e-6  # minus the log-likelihood of all rows together, below which the predictions separate them
_MOST_LEVERAGE = 0.9  # of a row on its own prediction, in the covariance of a fit
_BLOCK = 1 << 18  # rows at a time, so that a large set is not copied; with more, the search starts on a sixteenth of them


def maximise(data: HeldOut, kind: str, shrink: float | int) -> tuple[np.ndarray, np.ndarray]:
    """Return slopes and biases (K,) of the largest likelihood, with slopes of at least 0.

    Args:
        data: finite predictions, every class among the labels.
        kind: "temperature", "affine" or "beta".
        shrink: precision of the slopes' normal prior, with mean 1.

    Raises:
        ValueError: if nothing bounds the slopes, because the predictions separate the labels; not with `shrink` above 0.
    """
    size, total, identity = data.log_probs.shape[1], data.mass.sum(), np.repeat([1.0, 0.0], data.log_probs.shape[1])
    # so that slopes and biases have steps of the same size; the bias of the most frequent class stays at 0
    scale = max(1.0, float(np.sqrt(data.mass @ data.log_probs.var(axis=1) / total)))
    design = design_of(kind, size, fixed=int(data.counts.argmax())) / np.where(identity, scale, 1.0)[:, None]
    is_slope = (design[:size] != 0).any(axis=0)
    penalty, lower = is_slope * shrink / scale**2, np.where(is_slope, -scale, -np.inf)
    point = np.zeros(len(lower))
    some = HeldOut(data.log_probs[::16], data.labels[::16], None, data.mass[::16])
    if len(data.labels) > _BLOCK and some.counts.all():
        point = minimise(_loss(some, design, penalty), point, lower).point
    found = minimise(_loss(data, design, penalty), point, lower)
    slopes, biases = np.split(identity + design @ found.point, 2)
    if shrink == 0 and (slopes.max() > _STEEPEST or found.at.value * total < _CERTAIN):
        raise ValueError(
            "Expected predictions and labels that can be calibrated, but the predictions separate the held-out labels "
            "perfectly, so that the likelihood has no maximum: use more held-out examples, or "
            "shrink=1; an estimate of the prevalence also takes calibration='mean'."
        )
    return np.where(slopes > _NONE, slopes, 0.0), biases - biases.mean()


def design_of(kind: str, size: int, fixed: int | None = None) -> np.ndarray:
    """Return the matrix `(2K, P)` from the free parameters to changes of (a_1 … a_K, b_1 … b_K); one bias may be fixed."""
    slopes = np.eye(size) if kind == "beta" else np.ones((size, 1))
    free = [] if kind == "temperature" else [k for k in range(size) if k != fixed]
    return linalg.block_diag(slopes, np.eye(size)[:, free])


def _loss(data: HeldOut, design: np.ndarray, penalty: np.ndarray) -> Callable[[np.ndarray], Quadratic]:
    """Return minus the mean log-likelihood, as a function of changes from the identity, plus the prior of the slopes."""
    table, mass = np.ascontiguousarray(data.log_probs.T), data.mass
    size, total = len(table), mass.sum()
    own = table[data.labels, np.arange(len(mass))]
    labelled = np.concatenate([np.bincount(data.labels, each, size) for each in (mass * own, mass)])
    identity, prior = np.repeat([1.0, 0.0], size), penalty / total

    def loss(params: np.ndarray) -> Quadratic:
        both = identity + design @ params
        log_total, sums, second = 0.0, np.zeros(2 * size), np.zeros((2 * size, 2 * size))
        for start in range(0, len(mass), _BLOCK):
            part = slice(start, start + _BLOCK)
            logs, probs = softmax_columns(both[:size, None] * table[:, part] + both[size:, None])
            log_total += float(mass[part] @ logs)
            for whole, each in zip((sums, second), moments(table[:, part], probs, mass[part]), strict=True):
                whole += each
        value = (log_total - both @ labelled) / total + prior @ params**2 / 2
        gradient = design.T @ (sums - labelled) / total + prior * params
        return Quadratic(float(value), gradient, design.T @ second @ design / total + np.diag(prior))

    return loss


def moments(table: np.ndarray, probs: np.ndarray, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Σ_n w_n p_n (log p_n, 1), (2K,), and the negative second derivatives of the log-likelihood in (a, b)."""
    weighted = probs * mass
    both = np.concatenate([probs * table, probs])
    sums = both @ mass
    squared, crossed, own = (np.diag(each) for each in ((weighted * table**2).sum(1), *np.split(sums, 2)))
    return sums, np.block([[squared, crossed], [crossed, own]]) - (both * mass) @ both.T


def covariance_of_mean(probs: np.ndarray, data: HeldOut) -> np.ndarray:
    """Return `covariance` if nothing is fitted: that of the log of the mean prediction.

    One row with the largest covariance for this mean, that of one-hot rows, is added, because few rows can underestimate it.
    """
    size, total = len(probs), data.mass.sum()
    mean = probs @ data.mass / total
    spread = np.zeros((2 * size, 2 * size))
    spread[size:, size:] = (_summed_squares(probs / mean[:, None] - 1, data) + np.diag(1 / mean) - 1) / total**2
    return spread


def covariance(probs: np.ndarray, data: HeldOut, kind: str, shrink: float | int) -> np.ndarray:
    """Return the covariance of (a, b − log mean prediction), from the influence of each held-out row: valid for any model.

    A row changes (a, b) by A times its score. It changes the mean prediction by its own prediction, and by the effect of
    (a, b) on all predictions, whose derivative is the lower half of the information matrix. A row pulls the fit towards itself,
    so its residual is divided by 1 − its leverage, which gives what the fit without it leaves (HC3, MacKinnon and White 1985).
    """
    table, mass = data.log_probs.T, data.mass
    size, total = len(table), mass.sum()
    design, information = design_of(kind, size), moments(table, probs, mass)[1]
    prior = np.diag(shrink * (design[:size] != 0).any(axis=0))
    moves = design @ np.linalg.pinv(design.T @ information @ design + prior, rcond=1e-12, hermitian=True) @ design.T
    mean = probs @ mass / total
    left = -probs
    left[data.labels, np.arange(len(mass))] += 1
    left /= 1 - _leverage(table, probs, moves).clip(0, _MOST_LEVERAGE)
    seen = np.concatenate([left * table, left, probs - mean[:, None]])  # scores, and predictions
    by_scores = moves.copy()
    by_scores[size:] -= information[size:] @ moves / (total * mean[:, None])
    by_prediction = np.concatenate([np.zeros((size, size)), np.diag(-1 / (total * mean))])
    influence = np.concatenate([by_scores, by_prediction], 1)
    return influence @ _summed_squares(seen, data) @ influence.T


def _summed_squares(seen: np.ndarray, data: HeldOut) -> np.ndarray:
    """Return Σ_n w_n s_n s_nᵀ of the columns s_n; the columns of a group are added up first."""
    if data.groups is None:
        return (seen * data.mass) @ seen.T
    sums = np.stack([np.bincount(data.groups, each) for each in seen * data.mass])
    return sums @ sums.T


def _leverage(table: np.ndarray, probs: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """Return the share of each row in its own fitted logits (n,): tr(W_n X_n A X_nᵀ), with W_n = diag(p_n) − p_n p_nᵀ."""
    size = len(table)
    both = np.concatenate([probs * table, probs])
    by_slope, crossed, by_bias = (
        np.diag(each)[:, None] for each in (moves[:size, :size], moves[:size, size:], moves[size:, size:])
    )
    own = probs * (table**2 * by_slope + 2 * table * crossed + by_bias)
    found: np.ndarray = own.sum(0) - (both * (moves @ both)).sum(0)
    return found
