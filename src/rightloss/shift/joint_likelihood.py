"""The empirical likelihood of labelled rows sampled by class and unlabelled rows of the population, as a function of π.

Stage: features of both, labels → L(π), maximal over the model's weights → `maximum_likelihood` and `regions`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy import linalg

from ..solve import Quadratic, minimise, softmax_columns
from .maximum_likelihood import QuadraticModel

_BLOCK = 1 << 15  # rows per product, so that its factors stay in the cache
_ENOUGH = 1e-15  # tolerance in nats of the maximum over the weights
_RANK = 1e-10  # fraction of the largest variance below which a direction of the features counts as constant
_LEAST = 1e-300  # probability used for one too small to be represented


@dataclass(frozen=True)
class Rows:
    """The data, in columns: whitened features below a 1.

    Attributes:
        labelled: of the labelled rows `(p, n)`.
        labels: their classes (n,).
        unlabelled: of the rows of the population `(p, m)`.
        counts: labelled rows of each class (K,).
    """

    labelled: np.ndarray
    labels: np.ndarray
    unlabelled: np.ndarray
    counts: np.ndarray

    @property
    def total(self) -> float:
        """N, the number of all rows."""
        return float(self.counts.sum() + self.unlabelled.shape[1])


class Weights(NamedTuple):
    """The nuisance parameters: Γ `(K, p)`, a row of 0 first, and log multipliers v (K,), with Σ_k exp(−v_k) = 1."""

    gamma: np.ndarray
    log_multipliers: np.ndarray


class _Derivatives(NamedTuple):
    """L at one point: its value, its derivatives by the free rows of Γ and by v, and predictions of the unlabelled rows."""

    value: float
    weights: Weights
    by_gamma: np.ndarray
    gamma_gamma: np.ndarray
    gamma_v: np.ndarray
    v_v: np.ndarray
    shares: np.ndarray  # s `(K, m)`: predictions in the population
    ratios: np.ndarray  # q `(K, m)`: s/π

    def saddle(self) -> np.ndarray:
        """Return the second derivatives by (Γ, v), negative in Γ and positive in v."""
        return np.block([[self.gamma_gamma, self.gamma_v], [self.gamma_v.T, self.v_v]])


class JointLikelihood:
    """L(π) = max_Γ min_v of the empirical log-likelihood of both kinds of rows (Qin 1998; Vardi 1985), up to a constant.

    Rows of class k come from p(x|k), unlabelled ones from Σ_k π_k p(x|k), where p(x|k) ∝ exp(α_k + b_k·f(x)) p(x|0): the
    model is softmax-linear. The density p(x|0) gets a mass at each row; that each p(x|k) integrates to 1 are constraints with
    multipliers c_k, Σ_k c_k = N. Maximising over the masses leaves, with Γ_k·f = log c_k + α_k + b_k·f and v_k = −log(c_k/N),

        Σ_labelled [log T_y + v_y] + Σ_unlabelled log Σ_k π_k exp(v_k) T_k + N log Σ_k exp(−v_k),   T = softmax(Γ f),

    a minimum over v, which is convex, and a maximum over Γ. There c_k = n_k + Σ_unlabelled p(k|x). At the maximum over π too,
    Σ_unlabelled p(k|x) = N_u π_k, so that T is the likelihood of the streams, with c_k = n_k + N_u π_k. Away from it the two
    differ: 2 (L(π̂) − L(π)) is χ² where the class counts are fixed by design, that of the streams is too small.

    Args:
        rows: the data.
        penalty: τ of −τ/2 Σ_k ‖b_k − b̄‖² for the whitened features, which keeps the weights finite if classes are separated.
    """

    def __init__(self, rows: Rows, penalty: float) -> None:
        self._rows, self._size = rows, len(rows.counts)
        slopes = np.eye(len(rows.labelled))
        slopes[0, 0] = 0.0
        self._penalty = penalty * np.kron((np.eye(self._size) - 1 / self._size)[1:, 1:], slopes)
        mix = rows.counts / rows.counts.sum()
        start = Weights(np.zeros((self._size, len(slopes))), -np.log(mix))
        self.weights = self._maximised(replace(rows, unlabelled=rows.unlabelled[:, :0]), mix, start).weights

    def __call__(self, population: np.ndarray) -> QuadraticModel:
        """Return L, its gradient and its curvature at π; the search for the weights starts from those at the last π."""
        found = self._maximised(self._rows, population, self.weights)
        fixed, gradient = found.ratios @ found.ratios.T, found.ratios.sum(1)
        mixed = self._mixed(found)
        if not np.isfinite(mixed).all():  # a row of a class that π excludes
            return QuadraticModel(population, -np.inf, gradient, fixed)
        # If classes are separated, L has no curvature in some directions, nor does π move the weights along them.
        slope = -np.linalg.lstsq(found.saddle(), mixed, rcond=1e-14)[0]
        curvature = fixed - mixed.T @ slope
        if not np.isfinite(curvature).all():
            return QuadraticModel(population, -np.inf, gradient, fixed)
        self.weights = found.weights
        curvature = (curvature + curvature.T) / 2
        usable = np.linalg.eigvalsh(curvature)[0] > 0  # otherwise L is not concave here, but with fixed weights it is
        return QuadraticModel(population, found.value, gradient, curvature if usable else fixed)

    def class_densities(self) -> np.ndarray:
        """Return p(x|k) of the unlabelled rows `(K, m)`, up to a factor for each row, at the current weights."""
        gamma, v = self.weights
        return softmax_columns(gamma @ self._rows.unlabelled + v[:, None])[1]

    def _maximised(self, rows: Rows, population: np.ndarray, start: Weights) -> _Derivatives:
        """Return max_Γ min_v, by Newton's method over Γ in coordinates in which all classes are alike."""
        contrasts = np.kron(_contrasts(self._size), np.eye(len(rows.labelled)))
        v = start.log_multipliers

        def loss(point: np.ndarray) -> Quadratic:
            nonlocal v
            gamma = np.vstack([np.zeros(len(rows.labelled)), (contrasts @ point).reshape(self._size - 1, -1)])
            found = self._derivatives(rows, population, Weights(gamma, v))
            v = found.weights.log_multipliers
            curvature = found.gamma_v @ np.linalg.solve(found.v_v, found.gamma_v.T) - found.gamma_gamma
            return Quadratic(-found.value, -contrasts.T @ found.by_gamma, contrasts.T @ curvature @ contrasts, found)

        first = np.linalg.solve(contrasts, start.gamma[1:].ravel())
        found: _Derivatives = minimise(loss, first, enough=_ENOUGH).at.detail
        return found

    def _derivatives(self, rows: Rows, population: np.ndarray, weights: Weights) -> _Derivatives:
        """Return L and its derivatives at Γ and π, with v at its minimum."""
        logits = weights.gamma @ rows.labelled
        totals, own = softmax_columns(logits)
        pooled = np.maximum(softmax_columns(weights.gamma @ rows.unlabelled)[1], _LEAST)
        v, mixed, v_v = _least(rows, population, pooled, weights.log_multipliers)
        ratios = pooled * (np.exp(v)[:, None] / mixed)
        shares = ratios * population[:, None]
        labelled = np.eye(self._size)[:, rows.labels] - own
        by_gamma = (shares - pooled)[1:] @ rows.unlabelled.T + labelled[1:] @ rows.labelled.T
        free = weights.gamma[1:].reshape(-1)
        drawn = self._penalty @ free
        value = (np.take_along_axis(logits, rows.labels[None], 0) - totals).sum() + np.log(mixed).sum() + rows.counts @ v
        spread = _gram(rows.unlabelled, shares)
        gamma_gamma = spread - _gram(rows.unlabelled, pooled) - _gram(rows.labelled, own) - self._penalty
        gamma_v = spread[:, :: len(rows.labelled)]  # v changes the predictions in the same way as the intercepts
        at = Weights(weights.gamma, v)
        by_free = by_gamma.reshape(-1) - drawn
        return _Derivatives(float(value - free @ drawn / 2), at, by_free, gamma_gamma, gamma_v, v_v, shares, ratios)

    def _mixed(self, found: _Derivatives) -> np.ndarray:
        """Return the second derivatives of L by (Γ, v) and π: of s_l by π_k, 1{l=k} q_l − s_l q_k."""
        columns = []
        for k in range(self._size):
            moved = -found.shares * found.ratios[k]
            moved[k] += found.ratios[k]
            by_gamma = moved[1:] @ self._rows.unlabelled.T
            columns.append(np.append(by_gamma.reshape(-1), by_gamma[:, 0]))
        return np.stack(columns, 1)


def whitening(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the matrix `(d, rank)` that give features uncorrelated entries of variance 1."""
    mean, spread = features.mean(0), features.std(0)
    scale = np.where(spread > 0, spread, 1.0)
    centred = (features - mean) / scale
    values, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
    kept = values > _RANK * max(values[-1], 1e-300)
    return mean, vectors[:, kept] / np.sqrt(values[kept]) / scale[:, None]


def _least(
    rows: Rows, population: np.ndarray, pooled: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Minimise n·v + Σ log Σ_k π_k exp(v_k) T_k + N log Σ_k exp(−v_k) over v, by Newton's method.

    Returns v, Σ_k π_k exp(v_k) T_k of each row, and the second derivatives by v_1 … v_K−1.
    """
    contrasts = _contrasts(len(start))

    def function(point: np.ndarray) -> Quadratic:
        v = np.append(0.0, contrasts @ point)
        mix, scale = population * np.exp(v), np.exp(-v).sum()
        mixed = mix @ pooled
        value = rows.counts @ v + rows.total * np.log(scale) + np.log(mixed).sum()
        shares = mix[1:, None] * pooled[1:] / mixed
        multipliers, expected = rows.total * np.exp(-v)[1:] / scale, shares.sum(1)
        gradient = rows.counts[1:] + expected - multipliers
        curved = np.diag(expected + multipliers) - shares @ shares.T - np.outer(multipliers, multipliers) / rows.total
        detail = v + np.log(scale), mixed * scale, curved
        return Quadratic(float(value), contrasts.T @ gradient, contrasts.T @ curved @ contrasts, detail)

    found = minimise(function, np.linalg.solve(contrasts, (start - start[0])[1:]), enough=1e-2 * _ENOUGH).at.detail
    v, mixed, curved = found
    return v, mixed, curved


def _contrasts(size: int) -> np.ndarray:
    """Return the map (K−1, K−1) from coordinates in which all classes are alike to differences from class 0."""
    basis = linalg.helmert(size).T
    return basis[1:] - basis[0]


def _gram(f: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """Return Σ_i (diag p_i − p_i p_iᵀ) ⊗ f_i f_iᵀ for classes 1 … K−1."""
    free, width = len(probs) - 1, len(f)
    out = np.zeros((free * width, free * width))
    for start in range(0, f.shape[1], _BLOCK):
        block, p = f[:, start : start + _BLOCK], probs[1:, start : start + _BLOCK]
        moved = p[:, None] * block
        out += linalg.block_diag(*(each @ block.T for each in moved))
        moved = moved.reshape(free * width, -1)
        out -= moved @ moved.T
    return out
