"""Predictions with labels, and predictions without → the prevalence that joins their means.

Stage: held-out and target `log_probs` → moments → π by a linear system: P π = μ, where μ is the mean prediction in the target
and P_jk the mean prediction of j over held-out examples of class k.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .held_out import HeldOut
from .simplex import Curve, nearest_in_model

__all__ = ["Moments", "covariance", "moments", "regularised", "solved", "unbounded"]


@dataclass(frozen=True)
class Moments:
    """Means and covariances of the predictions, as numbers of class k (one-hot) or as probabilities.

    Attributes:
        target: μ (K,); target_spread: covariance of that mean `(K, K)`; target_count: n.
        by_class: P `(K, K)`, column per true class; spreads: covariance of each column `(K, K, K)`; counts: n_k (K,).
    """

    target: np.ndarray
    target_spread: np.ndarray
    target_count: int
    by_class: np.ndarray
    spreads: np.ndarray
    counts: np.ndarray

    @property
    def frequencies(self) -> np.ndarray:
        """The held-out set's own label frequencies (K,)."""
        return self.counts / self.counts.sum()


def moments(blocks: Iterable[Tensor], held_out: HeldOut, soft: bool) -> Moments:
    """One pass over the target, one over the held-out set.

    Averaged are the probabilities, or else 1 for the likeliest class (the first of equals) and 0 for the others.
    """
    size = held_out.log_probs.shape[1]
    total, products, count = torch.zeros(size).double(), torch.zeros(size, size).double(), 0
    for block in blocks:
        sums, squares = _summed(block, soft)
        total, products, count = total + sums, products + squares, count + len(block)
    columns = _columns(held_out, soft)
    by_class = torch.stack([sums / number for sums, _, number in columns], 1)
    spreads = torch.stack([_mean_spread(*column, soft) for column in columns])
    spread = _mean_spread(total, products, count, soft)
    return Moments((total / count).numpy(), spread.numpy(), count, by_class.numpy(), spreads.numpy(), held_out.counts)


def unbounded(data: Moments) -> np.ndarray:
    """P⁻¹ μ: sums to 1, but may leave the simplex. Where P is singular, the shortest solution."""
    return np.linalg.lstsq(data.by_class, data.target, rcond=1e-10)[0]


def solved(data: Moments) -> np.ndarray:
    """BBSE (Lipton, Wang, Smola 2018): P⁻¹ μ where that is a prevalence, else the π of least ‖P π − μ‖."""
    free = unbounded(data)
    if (free >= 0).all():
        return free / free.sum()
    curvature = data.by_class.T @ data.by_class

    def fit(point: np.ndarray) -> Curve:
        left = data.target - data.by_class @ point
        return Curve(point, -0.5 * float(left @ left), data.by_class.T @ left, curvature)

    return nearest_in_model(fit(np.full(len(free), 1 / len(free))))


def regularised(data: Moments, strength: float = 0.01, delta: float = 0.05) -> np.ndarray:
    """RLLS (Azizzadenesheli, Liu, Yang, Anandkumar 2019): θ = π/ρ − 1 that minimises ‖C θ − b‖ + λ‖θ‖ with θ ≥ −1.

    C_jk = P_jk ρ_k and b = μ − C·1. λ = `strength` · 3 (2 log(2K/δ)/(3n) + √(2 log(2K/δ)/n)) is the authors' choice. Since the
    norms are not squared, θ solves C θ = b exactly wherever λ is small against C's least singular value: then this is BBSE
    with its constraint. The weights 1 + θ are at last scaled to a prevalence.
    """
    rho, size = data.frequencies, len(data.counts)
    joint = data.by_class * rho
    shift = data.target - joint.sum(1)
    spread = 2 * math.log(2 * size / delta)
    penalty = strength * 3 * (spread / (3 * data.counts.sum()) + math.sqrt(spread / data.counts.sum()))

    exact = unbounded(data) / rho - 1
    # where 0 lies in the subgradient at the solution of C θ = b, and that is allowed, there is nothing to search for
    push = np.linalg.lstsq(joint.T, exact, rcond=None)[0]
    if (exact >= -1).all() and np.linalg.matrix_rank(joint) == size and penalty * np.linalg.norm(push) <= np.linalg.norm(exact):
        theta = exact
    else:
        theta = _least_cost(joint, shift, penalty)
    weights = rho * (1 + theta)
    return weights / weights.sum()


def covariance(data: Moments, population: np.ndarray) -> np.ndarray:
    """Of P⁻¹ μ `(K, K)`, from the noise of the target's mean and of each held-out class's: P⁻¹ (V_μ + Σ_k π_k² V_k) P⁻ᵀ."""
    noise = data.target_spread + np.einsum("k,kij->ij", population**2, data.spreads)
    inverse = np.linalg.pinv(data.by_class, rcond=1e-10)
    return inverse @ noise @ inverse.T


def _columns(held_out: HeldOut, soft: bool) -> list[tuple[Tensor, Tensor, int]]:
    """`_summed` and the number of rows, for the held-out examples of each class."""
    size = held_out.log_probs.shape[1]
    if soft:
        rows = [held_out.log_probs[held_out.labels == k] for k in range(size)]
        return [(*_summed(each, soft), len(each)) for each in rows]
    pairs = size * held_out.labels + held_out.log_probs.argmax(1)
    counts = torch.bincount(pairs, minlength=size**2).double().view(size, size)
    return [(row, torch.diag(row), int(row.sum())) for row in counts]


def _summed(log_probs: Tensor, soft: bool) -> tuple[Tensor, Tensor]:
    """Σ_n s_n (K,) and Σ_n s_n s_nᵀ of what is averaged."""
    if soft:
        probs = log_probs.exp()
        return probs.sum(0), probs.T @ probs
    counts = torch.bincount(log_probs.argmax(1), minlength=log_probs.shape[1]).double()
    return counts, torch.diag(counts)


def _mean_spread(total: Tensor, products: Tensor, count: int, soft: bool) -> Tensor:
    """The covariance of a mean of `count` rows with these sums.

    Half a count more in every class of one-hot rows: a class never predicted in n rows is not one that never will be.
    """
    if soft:
        mean = total / count
        return (products / count - torch.outer(mean, mean)) / max(count - 1, 1)
    mean = (total + 0.5) / (count + 0.5 * len(total))
    return (torch.diag(mean) - torch.outer(mean, mean)) / count


def _least_cost(joint: np.ndarray, shift: np.ndarray, penalty: float) -> np.ndarray:
    """The θ ≥ −1 of least ‖C θ − b‖ + λ‖θ‖.

    The ridge solutions pass through every best trade of one norm for the other, and along them the cost has one valley.
    """

    def cost(theta: np.ndarray) -> float:
        return float(np.linalg.norm(joint @ theta - shift) + penalty * np.linalg.norm(theta))

    def at(log_ridge: float) -> np.ndarray:
        return _ridge(joint, shift, math.exp(log_ridge))

    low, high, golden = -40.0, 10.0, (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    of_left, of_right = cost(at(left)), cost(at(right))
    while high - low > 1e-9:
        if of_left <= of_right:
            high, right, of_right = right, left, of_left
            left = high - golden * (high - low)
            of_left = cost(at(left))
        else:
            low, left, of_left = left, right, of_right
            right = low + golden * (high - low)
            of_right = cost(at(right))
    return min(at(-40.0), at((low + high) / 2), np.zeros(len(shift)), key=cost)


def _ridge(joint: np.ndarray, shift: np.ndarray, ridge: float) -> np.ndarray:
    """The θ ≥ −1 of least ‖C θ − b‖² + ridge ‖θ‖²: Lawson and Hanson's active set for 1 + θ ≥ 0."""
    size = len(shift)
    matrix = joint.T @ joint + ridge * np.eye(size)
    wanted = joint.T @ shift + matrix.sum(1)
    weights, free = np.ones(size), np.ones(size, dtype=bool)
    for _ in range(10 * size):
        index = np.flatnonzero(free)
        best = np.zeros(size)
        best[index] = np.linalg.solve(matrix[np.ix_(index, index)], wanted[index])
        below = free & (best < 0)
        if below.any():
            share = np.where(below, weights / np.where(below, weights - best, 1.0), np.inf)
            first = int(share.argmin())
            weights = np.maximum(weights + share[first] * (best - weights), 0.0)
            weights[first], free[first] = 0.0, False
            continue
        weights = best
        slope = np.where(free, -np.inf, wanted - matrix @ weights)
        worst = int(slope.argmax())
        if slope[worst] <= 1e-12 * np.abs(wanted).max():
            break
        free[worst] = True
    return weights - 1
