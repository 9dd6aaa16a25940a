"""The empirical likelihood of labelled rows sampled by class and unlabelled rows of the population, as a function of π.

Stage: features of both, labels → L(π), maximal over the model's weights → `maximum_likelihood` and `regions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy import linalg
from torch import Tensor

from ..solve import Quadratic, minimise
from .maximum_likelihood import QuadraticModel

_BLOCK = 1 << 15  # rows per product, so that its factors stay in the cache
_ENOUGH = 1e-13  # tolerance in nats of the maximum over the weights
_RANK = 1e-10  # fraction of the largest variance below which a direction of the features counts as constant
_LEAST = 1e-300  # probability used for one too small to be represented


@dataclass(frozen=True)
class Rows:
    """The data, in columns: whitened features below a 1, labelled `(p, n)` and unlabelled `(p, m)`, and the weight of a row.

    Attributes:
        labelled: of the labelled rows.
        labels: their classes (n,).
        unlabelled: of the rows of the population.
        weight: weight of an unlabelled row relative to a labelled one; 1 in the likelihood.
        counts: labelled rows of each class (K,).
    """

    labelled: Tensor
    labels: Tensor
    unlabelled: Tensor
    weight: float
    counts: np.ndarray

    @property
    def total(self) -> float:
        """N, the total weight of all rows."""
        return float(self.counts.sum() + self.weight * self.unlabelled.shape[1])


class Weights(NamedTuple):
    """The nuisance parameters: Γ `(K, p)`, a row of 0 first, and log multipliers v (K,), with Σ_k exp(−v_k) = 1."""

    gamma: np.ndarray
    log_multipliers: np.ndarray

    def moved(self, step: np.ndarray) -> Weights:
        """Return the weights after a step of the free rows of Γ and, if the step is longer, of v_1 … v_K−1."""
        gamma, v = self.gamma.copy(), self.log_multipliers.copy()
        free = gamma[1:].size
        gamma[1:] += step[:free].reshape(gamma[1:].shape)
        if len(step) > free:
            v[1:] += step[free:]
        return Weights(gamma, v)


class Last(NamedTuple):
    """The π of an evaluation, the best weights there, and the derivatives of (Γ, v) by π."""

    population: np.ndarray
    weights: Weights
    slope: np.ndarray


@dataclass(frozen=True)
class _Derivatives:
    """L at one point: its value, its derivatives by the free rows of Γ and by v, and each row's probabilities in columns."""

    value: float
    weights: Weights
    by_gamma: np.ndarray
    gamma_gamma: np.ndarray
    gamma_v: np.ndarray
    v_v: np.ndarray
    own: Tensor  # T `(K, n)` of the labelled rows
    pooled: Tensor  # T `(K, m)` of the unlabelled rows
    shares: Tensor  # s `(K, m)`: predictions in the population
    ratios: Tensor  # q `(K, m)`: s/π

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
        self.last: Last | None = None
        mix = rows.counts / rows.counts.sum()
        start = Weights(np.zeros((self._size, len(slopes))), -np.log(mix))
        alone = Rows(rows.labelled, rows.labels, rows.unlabelled[:, :0], rows.weight, rows.counts)
        self.weights = self._maximised(alone, mix, start).weights

    def __call__(self, population: np.ndarray) -> QuadraticModel:
        """Return L, its gradient and its curvature at π; the search for the weights starts from those at the last π."""
        found, mixed, slope = self._found(population)
        fixed = self._rows.weight * (found.ratios @ found.ratios.T).numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            curvature = fixed - mixed.T @ slope
        gradient = self._rows.weight * found.ratios.sum(1).numpy()
        if not np.isfinite(curvature).all():  # a row of a class that π excludes
            return QuadraticModel(population, -np.inf, gradient, fixed)
        self.weights, self.last = found.weights, Last(population, found.weights, slope)
        curvature = (curvature + curvature.T) / 2
        usable = np.linalg.eigvalsh(curvature)[0] > 0  # otherwise L is not concave here, but with fixed weights it is
        return QuadraticModel(population, found.value, gradient, curvature if usable else fixed)

    def go_back(self, last: Last | None) -> None:
        """Make an earlier `last` the start of the next search, so that it does not depend on those in between."""
        if last is not None:
            self.last, self.weights = last, last.weights

    def class_densities(self) -> Tensor:
        """Return p(x|k) of the unlabelled rows `(K, m)`, up to a factor for each row, at the current weights."""
        gamma, v = (torch.from_numpy(each) for each in self.weights)
        return torch.softmax(gamma @ self._rows.unlabelled + v[:, None], 0)

    def score_variance(self, population: np.ndarray) -> np.ndarray:
        """Return the variance `(K, K)` of the gradient by π, with Γ and v profiled out, for class counts fixed by design."""
        rows = self._rows
        found, _, slope = self._found(population)
        adjust = torch.from_numpy(-slope)
        own = torch.eye(self._size, dtype=torch.float64)[:, rows.labels]
        labelled = -_score(rows.labelled, own - found.own, own, adjust)
        unlabelled = found.ratios - _score(rows.unlabelled, found.shares - found.pooled, found.shares, adjust)
        by_stream = [labelled[:, rows.labels == k] for k in range(self._size)] + [rows.weight * unlabelled]
        centred = [scores - scores.mean(1, keepdim=True) for scores in by_stream]
        return torch.stack([scores @ scores.T for scores in centred]).sum(0).numpy()

    def _found(self, population: np.ndarray) -> tuple[_Derivatives, np.ndarray, np.ndarray]:
        """Return L at π with its second derivatives by (Γ, v) and π, and the derivatives of the best (Γ, v) by π.

        If classes are separated, L has no curvature in some directions, nor does π move the weights along them.
        """
        found = self._maximised(self._rows, population, self._expected(population))
        mixed = self._mixed(found)
        if not np.isfinite(mixed).all():
            return found, mixed, np.full_like(mixed, np.nan)
        return found, mixed, -np.linalg.lstsq(found.saddle(), mixed, rcond=1e-14)[0]

    def _expected(self, population: np.ndarray) -> Weights:
        """Return the weights to expect at π from the last ones and their derivative."""
        if self.last is None:
            return self.weights
        at, weights, slope = self.last
        moved = weights.moved(slope @ (population - at))
        far = max(float(np.ptp(new - old, axis=0).max()) for new, old in zip(moved, weights, strict=True))
        return moved if far < 2 else weights  # further is too far for a linear extrapolation

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
        gamma, w = torch.from_numpy(weights.gamma), rows.weight
        log_own = torch.log_softmax(gamma @ rows.labelled, 0)
        own, pooled = log_own.exp(), torch.softmax(gamma @ rows.unlabelled, 0).clamp_min_(_LEAST)
        v, mixed, v_v = _least(rows, population, pooled, weights.log_multipliers)
        ratios = pooled * (torch.from_numpy(np.exp(v))[:, None] / mixed)
        shares = ratios * torch.from_numpy(population)[:, None]
        by_gamma = w * ((shares - pooled)[1:] @ rows.unlabelled.T) - own[1:] @ rows.labelled.T
        by_gamma.index_add_(0, rows.labels[rows.labels > 0] - 1, rows.labelled.T[rows.labels > 0])
        free = weights.gamma[1:].reshape(-1)
        drawn = self._penalty @ free
        value = float(log_own.gather(0, rows.labels[None]).sum() + w * mixed.log().sum()) + float(rows.counts @ v)
        spread = w * _gram(rows.unlabelled, shares)
        gamma_gamma = spread - w * _gram(rows.unlabelled, pooled) - _gram(rows.labelled, own) - self._penalty
        gamma_v = spread[:, :: len(rows.labelled)]  # v changes the predictions in the same way as the intercepts
        by_free = by_gamma.numpy().reshape(-1) - drawn
        at = Weights(weights.gamma, v)
        return _Derivatives(value - free @ drawn / 2, at, by_free, gamma_gamma, gamma_v, v_v, own, pooled, shares, ratios)

    def _mixed(self, found: _Derivatives) -> np.ndarray:
        """Return the second derivatives of L by (Γ, v) and π: of s_l by π_k, 1{l=k} q_l − s_l q_k."""
        rows, columns = self._rows, []
        for k in range(self._size):
            moved = -found.shares * found.ratios[k]
            moved[k] += found.ratios[k]
            by_gamma = rows.weight * (moved[1:] @ rows.unlabelled.T)
            columns.append(torch.cat([by_gamma.flatten(), by_gamma[:, 0]]))
        return torch.stack(columns, 1).numpy()


def whitening(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the matrix `(d, rank)` that give features uncorrelated entries of variance 1."""
    mean, spread = features.mean(0), features.std(0)
    scale = np.where(spread > 0, spread, 1.0)
    centred = (features - mean) / scale
    values, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
    kept = values > _RANK * max(values[-1], 1e-300)
    return mean, vectors[:, kept] / np.sqrt(values[kept]) / scale[:, None]


def _least(rows: Rows, population: np.ndarray, pooled: Tensor, start: np.ndarray) -> tuple[np.ndarray, Tensor, np.ndarray]:
    """Minimise n·v + Σ log Σ_k π_k exp(v_k) T_k + N log Σ_k exp(−v_k) over v, by Newton's method.

    Returns v, Σ_k π_k exp(v_k) T_k of each row, and the second derivatives by v_1 … v_K−1.
    """
    contrasts = _contrasts(len(start))

    def function(point: np.ndarray) -> Quadratic:
        v = np.append(0.0, contrasts @ point)
        mixed = torch.from_numpy(population * np.exp(v)) @ pooled
        value = rows.counts @ v + rows.total * np.log(np.exp(-v).sum()) + rows.weight * float(mixed.log().sum())
        gradient, curved = _slopes_by_multipliers(rows, population * np.exp(v), pooled, mixed, v)
        return Quadratic(float(value), contrasts.T @ gradient, contrasts.T @ curved @ contrasts, (v, mixed, curved))

    v, mixed, curved = minimise(function, np.linalg.solve(contrasts, (start - start[0])[1:]), enough=1e-2 * _ENOUGH).at.detail
    scale = float(np.exp(-v).sum())
    return v + np.log(scale), mixed * scale, curved


def _contrasts(size: int) -> np.ndarray:
    """Return the map (K−1, K−1) from coordinates in which all classes are alike to differences from class 0."""
    basis = linalg.helmert(size).T
    return basis[1:] - basis[0]


def _slopes_by_multipliers(
    rows: Rows, mix: np.ndarray, pooled: Tensor, mixed: Tensor, v: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and second derivatives by v_1 … v_K−1 of what `_least` minimises."""
    shares = torch.from_numpy(mix[1:])[:, None] * pooled[1:] / mixed
    multipliers = (rows.total * np.exp(-v) / np.exp(-v).sum())[1:]
    expected = rows.weight * shares.sum(1).numpy()
    curved = np.diag(expected + multipliers) - rows.weight * (shares @ shares.T).numpy()
    return rows.counts[1:] + expected - multipliers, curved - np.outer(multipliers, multipliers) / rows.total


def _score(f: Tensor, by_logits: Tensor, by_v: Tensor, adjust: Tensor) -> Tensor:
    """Return `(K, n)`: each row's derivatives by Γ and v, times `adjust`."""
    width, free = len(f), len(by_v) - 1
    by_gamma = adjust[: width * free].reshape(free, width, -1)
    moved = torch.einsum("kn,kpj,pn->jn", by_logits[1:], by_gamma, f)
    return moved + adjust[width * free :].T @ by_v[1:]


def _gram(f: Tensor, probs: Tensor) -> np.ndarray:
    """Return Σ_i (diag p_i − p_i p_iᵀ) ⊗ f_i f_iᵀ for classes 1 … K−1."""
    free, width = len(probs) - 1, len(f)
    out = torch.zeros(free, width, free, width, dtype=torch.float64)
    for start in range(0, f.shape[1], _BLOCK):
        block, p = f[:, start : start + _BLOCK], probs[1:, start : start + _BLOCK]
        for k in range(free):
            for j in range(k, free):
                of_rows = p[k] * (1 - p[k]) if j == k else -p[k] * p[j]
                out[k, :, j] += (block * of_rows) @ block.T
    for k in range(free):
        for j in range(k):
            out[k, :, j] = out[j, :, k].T
    return out.reshape(free * width, free * width).numpy()
