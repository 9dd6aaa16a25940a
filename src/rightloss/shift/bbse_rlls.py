"""BBSE and RLLS: the prevalence by a linear system, from mean predictions with and without labels.

Stage: held-out and target `log_probs` → moments → π by a linear system: P π = μ, where μ is the mean prediction on the target
and P_jk the mean prediction of j over held-out examples of class k.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar, nnls

from ..calibration.held_out import HeldOut
from .maximum_likelihood import welch_limit, within_simplex


@dataclass(frozen=True)
class PredictionMoments:
    """Means and covariances of the predictions, as one-hot classes or as probabilities.

    Attributes:
        target: μ (K,); target_spread: covariance of μ `(K, K)`.
        by_class: P `(K, K)`, column per true class; spreads: covariance of each column `(K, K, K)`; counts: n_k (K,).
    """

    target: np.ndarray
    target_spread: np.ndarray
    by_class: np.ndarray
    spreads: np.ndarray
    counts: np.ndarray


def prediction_moments(blocks: Iterable[np.ndarray], held_out: HeldOut, soft: bool) -> PredictionMoments:
    """Compute the moments in one pass over the target and one over the held-out set.

    The average is over probabilities if `soft`, else over 1 for the most probable class (the first of ties) and 0 for others.
    """
    size = held_out.log_probs.shape[1]
    total, products, count = np.zeros(size), np.zeros((size, size)), 0
    for block in blocks:
        sums, squares = _summed(block, soft)
        total, products, count = total + sums, products + squares, count + len(block)
    classes = [held_out.log_probs[held_out.labels == k] for k in range(size)]
    columns = [(*_summed(rows, soft), len(rows)) for rows in classes]
    by_class = np.stack([sums / number for sums, _, number in columns], 1)
    spreads = np.stack([_mean_spread(*column, soft) for column in columns])
    spread = _mean_spread(total, products, count, soft)
    return PredictionMoments(total / count, spread, by_class, spreads, held_out.counts)


def _unconstrained(data: PredictionMoments) -> np.ndarray:
    """Return P⁻¹ μ, which sums to 1 but may have negative entries. If P is singular, return the solution closest to uniform."""
    equal = np.full(len(data.target), 1 / len(data.target))
    return equal + _inverse(data.by_class)[0] @ (data.target - data.by_class @ equal)


def bbse(data: PredictionMoments) -> np.ndarray:
    """Return P⁻¹ μ if it has no negative entry, else the π that minimises ‖P π − μ‖ (Lipton, Wang, Smola 2018)."""
    free = _unconstrained(data)
    if (free >= 0).all():
        return free / free.sum()
    # of all x ≥ 0, ‖(P − μ 1ᵀ) x‖² + (Σ x − 1)² is least at a multiple of that π
    system = np.vstack([data.by_class - data.target[:, None], np.ones(len(free))])
    weights = nnls(system, np.eye(len(system))[-1])[0]
    return weights / weights.sum()


def rlls(data: PredictionMoments) -> np.ndarray:
    """Return π = ρ (1 + θ), where θ minimises ‖C θ − b‖ + λ‖θ‖ with θ ≥ −1.

    From Azizzadenesheli, Liu, Yang, Anandkumar (2019), with C_jk = P_jk ρ_k and b = μ − C·1, and with their choice of
    λ = 0.03 (2 log(2K/δ)/(3n) + √(2 log(2K/δ)/n)), δ = 0.05. The norms are not squared, so θ solves C θ = b exactly if λ is
    small relative to the smallest singular value of C. Then the result is that of BBSE with its constraint. Finally the weights
    1 + θ are scaled to a prevalence.
    """
    rho, size = data.counts / data.counts.sum(), len(data.counts)
    joint = data.by_class * rho
    shift = data.target - joint.sum(1)
    spread = 2 * math.log(2 * size / 0.05)
    penalty = 0.03 * (spread / (3 * data.counts.sum()) + math.sqrt(spread / data.counts.sum()))

    def ridge(log_ridge: float) -> np.ndarray:
        root = math.exp(log_ridge / 2)
        return nnls(np.vstack([joint, root * np.eye(size)]), np.append(data.target, np.full(size, root)))[0] - 1

    def cost(theta: np.ndarray) -> float:
        return float(np.linalg.norm(joint @ theta - shift) + penalty * np.linalg.norm(theta))

    # the minimum is one of the ridge solutions, and along them the cost has a single minimum
    best = minimize_scalar(lambda at: cost(ridge(at)), bounds=(-40.0, 10.0), method="bounded", options={"xatol": 1e-9})
    theta = min(ridge(-40.0), ridge(float(best.x)), np.zeros(size), key=cost)
    weights = rho * (1 + theta)
    return weights / weights.sum()


def covariance(data: PredictionMoments, population: np.ndarray) -> np.ndarray:
    """Return the covariance of P⁻¹ μ `(K, K)`, from the noise of both sets: P⁻¹ (V_μ + Σ_k π_k² V_k) P⁻ᵀ.

    In a direction that P maps to 0 the standard error is 1, the width of the simplex.
    """
    noise = data.target_spread + np.einsum("k,kij->ij", population**2, data.spreads)
    inverse, unseen = _inverse(data.by_class)
    return inverse @ noise @ inverse.T + unseen


def fieller_region(data: PredictionMoments, population: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return, per class, the limits of all v in [0, 1] with (v − (P⁻¹ μ)_k)² ≤ z² σ_k²(v), where z is Student's.

    σ_k² is `covariance` at π_k = v, with the others in proportion: A + Q v² + R (1 − v)². For two classes this is Fieller's
    region, which is valid even if P is very uncertain; it can be all of [0, 1]. If the region has two pieces, their hull is
    returned.
    """
    inverse, unseen = _inverse(data.by_class)
    by_target = np.einsum("ki,ij,kj->k", inverse, data.target_spread, inverse) + np.diag(unseen)
    by_class = np.einsum("ki,lij,kj->kl", inverse, data.spreads, inverse)
    others = np.where(np.eye(len(population), dtype=bool), 0.0, population + 1e-12)
    others = others / others.sum(1, keepdims=True)
    centre = _unconstrained(data)
    of_held_out = by_class @ population**2
    z2 = welch_limit(by_target, by_target + of_held_out, float(data.counts.min()), level)
    own, rest = z2 * np.diag(by_class), z2 * (others**2 * by_class).sum(1)
    square, linear, constant = 1 - own - rest, rest - centre, centre**2 - z2 * by_target - rest
    root = np.sqrt((linear**2 - square * constant).clip(0))
    ends = np.sort((-linear + np.array([[-1.0], [1.0]]) * root) / np.where(square == 0, 1e-300, square), axis=0)
    low, high = ends
    # if the quadratic opens downwards, the set is outside the two roots, which are its only limits
    gap = (square < 0) & (root > 0)
    below, above = gap & (low < 0) & (high > 0), gap & (low < 1) & (high > 1)
    low, high = (
        np.where(square > 0, low, np.where(below & ~above, high, 0.0)),
        np.where(square > 0, high, np.where(above & ~below, low, 1.0)),
    )
    return within_simplex(low.clip(0, 1), high.clip(0, 1))


def _inverse(by_class: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return P⁻¹ on the space of changes that sum to 0 `(K, K)`, and the projection onto the null space of P in it."""
    size = len(by_class)
    basis = np.linalg.svd(np.ones((1, size)))[2][1:].T
    left, values, right = np.linalg.svd(basis.T @ by_class @ basis)
    seen = values > 1e-10
    moves, blind = basis @ right[seen].T, basis @ right[~seen].T
    return (moves / values[seen]) @ (basis @ left[:, seen]).T, blind @ blind.T


def _summed(log_probs: np.ndarray, soft: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return Σ_n s_n (K,) and Σ_n s_n s_nᵀ of the rows s_n that are averaged."""
    if soft:
        probs = np.exp(log_probs)
        return probs.sum(0), probs.T @ probs
    counts = np.bincount(log_probs.argmax(1), minlength=log_probs.shape[1]).astype(float)
    return counts, np.diag(counts)


def _mean_spread(total: np.ndarray, products: np.ndarray, count: int, soft: bool) -> np.ndarray:
    """Return the covariance of a mean of `count` rows with these sums.

    One-hot rows get half a count more in every class, because a class not predicted in n rows may be predicted in the next.
    For probabilities one row with that covariance, the largest possible, is added, because few rows can underestimate it.
    """
    smooth = (total + 0.5) / (count + 0.5 * len(total))
    largest = np.diag(smooth) - np.outer(smooth, smooth)
    if not soft:
        return largest / count
    return (products - np.outer(total, total) / count + largest) / count**2
