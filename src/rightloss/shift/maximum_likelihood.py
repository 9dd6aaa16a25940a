"""The prevalence by maximum likelihood: L(π) from predictions at one mix, and its maximum on the simplex, boundary included.

Stage: blocks of `log_probs`, ρ → L(π), in one pass over the rows → π̂.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from ..calibration import Calibration
from ..solve import Quadratic, minimise
from .stream import PredictionStream

_KEPT = 1 << 23  # entries of a table whose ratios are kept from one pass to the next: 64 MB
_ENOUGH = 1e-19  # tolerance in nats of the log-likelihood: 1e-9 of a standard error
_RIDGE = 1e-11  # relative to the mean curvature: regularises classes that cannot be distinguished


class QuadraticModel(NamedTuple):
    """A concave function to second order at `point`: its value, gradient (K,) and negative second derivatives (K, K)."""

    point: np.ndarray
    value: float
    gradient: np.ndarray
    curvature: np.ndarray


class MixLikelihood:
    """The log-likelihood L(π) = Σ_n log Σ_k π_k p(k|x_n)/ρ_k, up to a constant (Saerens, Latinne, Decaestecker 2002).

    The constant is Σ_n log p(x_n) at the mix ρ. L is concave in π.

    Args:
        rows: predictions on unlabelled data.
        sampling: ρ, the mix at which they hold (after the calibration).
        calibration: applied to each block.
    """

    def __init__(self, rows: PredictionStream, sampling: np.ndarray, calibration: Calibration | None = None) -> None:
        self._rows, self._calibration = rows, calibration
        self._log_sampling = np.log(sampling)[:, None]
        small = not rows.is_stream and (rows.count or 0) * rows.num_classes <= _KEPT
        self._kept = [self._ratios(block) for block in rows] if small else None

    @property
    def is_kept(self) -> bool:
        """True if passes are cheap, because the ratios p(k|x_n)/ρ_k are in memory."""
        return self._kept is not None

    def __call__(self, population: np.ndarray) -> QuadraticModel:
        """Return L, its gradient and its curvature at π, in one pass."""
        return log_mixture(population, self._blocks())

    def of_some_rows(self) -> Callable[[np.ndarray], QuadraticModel] | None:
        """Return L of some rows, to start a search over all: every eighth row, or the first rows if passes are slow.

        Return None for few rows, where it would save no time.
        """
        if self._kept is None:
            some = self._ratios(self._rows.head())
        elif sum(block.size for block in self._kept) >= 1 << 15:
            some = np.concatenate([block[:, ::8] for block in self._kept], 1)
        else:
            return None
        return lambda population: log_mixture(population, [some])

    def added_variance(self, population: np.ndarray, clusters: np.ndarray | None) -> np.ndarray:
        """Return the variance of the gradient at π beyond the curvature `(K, K)`: by the calibration, and by clusters of rows.

        The first is J Var(a, c) Jᵀ, J = ∂²L/∂π∂(a, c), where the log ratios are a_k log p_k + c_k up to a constant per row.
        With shares s_nk = r_nk / Σ_j π_j r_nj, ∂s_nk/∂l_nj = s_nk (1{j=k} − π_j s_nj). The second is Σ_g s_g s_gᵀ of the sums
        s_g of the rows' centred shares, times G/(G − 1) for G clusters, minus Σ_n s_n s_nᵀ.
        """
        size, added = len(population), np.zeros((len(population), len(population)))
        if self._calibration is not None:
            by_slope, by_offset = np.zeros((size, size)), np.zeros((size, size))
            for block, ratios in zip(self._rows, self._blocks(), strict=True):
                shares = ratios / (population @ ratios)
                if self._calibration.kind != "mean":  # the slopes of "mean" have no uncertainty
                    moved = shares * np.maximum(block.T, -1e5)  # a share of 0 times log 0 is 0
                    by_slope += np.diag(moved.sum(1)) - population * (shares @ moved.T)
                by_offset += np.diag(shares.sum(1)) - population * (shares @ shares.T)
            both = np.concatenate([by_slope, by_offset], 1)
            added += both @ self._calibration.covariance @ both.T
        if clusters is not None:
            count, start = int(clusters.max()) + 1, 0
            sums = np.zeros((size, count))
            for ratios in self._blocks():
                shares = ratios / (population @ ratios) - 1  # a constant for all classes does not move π
                own = clusters[start : start + shares.shape[1]]
                sums += [np.bincount(own, share, count) for share in shares]
                added -= shares @ shares.T
                start += shares.shape[1]
            added += sums @ sums.T * (count / max(1, count - 1))
        return added

    def _blocks(self) -> Iterable[np.ndarray]:
        return (self._ratios(block) for block in self._rows) if self._kept is None else self._kept

    def _ratios(self, block: np.ndarray) -> np.ndarray:
        """Return p(k|x_n)/ρ_k, `(K, n)`: classes first, so that sums over them run along memory."""
        block = block if self._calibration is None else self._calibration.apply(block)
        ratios = np.array(block.T, order="C")
        ratios -= self._log_sampling
        return np.exp(ratios, out=ratios)


def log_mixture(population: np.ndarray, blocks: Iterable[np.ndarray]) -> QuadraticModel:
    """Return Σ_n log Σ_k π_k r_kn to second order, for ratios r in blocks `(K, n)`."""
    size = len(population)
    value, gradient, curvature = 0.0, np.zeros(size), np.zeros((size, size))
    for ratios in blocks:
        mixed = population @ ratios
        shares = ratios / mixed
        value += float(np.log(mixed, out=mixed).sum())
        gradient += shares.sum(1)
        curvature += shares @ shares.T
    return QuadraticModel(population, value, gradient, curvature)


class Maximum(NamedTuple):
    """The result of a search: the maximum, the function there to second order, its evaluations, and whether it converged."""

    point: np.ndarray
    value: float
    model: QuadraticModel
    iterations: int
    converged: bool


@np.errstate(divide="ignore", invalid="ignore", over="ignore")  # L is −∞ where π excludes a row
def maximise(function: Callable[[np.ndarray], QuadraticModel], start: np.ndarray, fixed: int | None = None) -> Maximum:
    """Return the maximum over the simplex, by Newton's method, with the coordinate `fixed` kept at its start.

    A log-likelihood L of mixtures grows by N log s if all frequencies are multiplied by s. So the maximum of L(π) − N Σ_k π_k
    over all π ≥ 0 has the sum 1, and bounds at 0 are the only ones. With π_k fixed at v, the others are (1 − v) w, and
    L is again that of a mixture of K − 1 components: π = A w, where A repeats v in row k.
    """
    size = len(start)
    spread = np.eye(size)
    if fixed is not None:
        others = np.arange(size) != fixed
        spread = (1 - start[fixed]) * spread[:, others] + start[fixed] * ~others[:, None]
    first, calls = function(start), 0
    if not np.isfinite(first.value) or (fixed is not None and start[fixed] == 1):
        return Maximum(first.point, first.value, first, 1, bool(np.isfinite(first.value)))
    total = float(first.gradient @ start)

    def loss(weights: np.ndarray) -> Quadratic:
        nonlocal calls
        calls += 1
        model = function(spread @ weights) if calls > 1 else first
        curvature = spread.T @ model.curvature @ spread
        curvature += _RIDGE * np.trace(curvature) / len(weights) * np.eye(len(weights))
        value = model.value if np.isfinite(curvature).all() else -np.inf
        return Quadratic(total * weights.sum() - value, total - spread.T @ model.gradient, curvature, model)

    found = minimise(loss, start if fixed is None else start[others] / (1 - start[fixed]), 0.0, _ENOUGH, max_steps=100)
    point, value, gradient, curvature = found.at.detail
    scale = float(point.sum())  # 1 up to the tolerance
    model = QuadraticModel(point / scale, value - total * math.log(scale), gradient * scale, curvature * scale**2)
    return Maximum(model.point, model.value, model, calls, found.converged)
