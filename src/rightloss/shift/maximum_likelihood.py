"""The prevalence by maximum likelihood: L(π) from predictions at one mix, and its maximum on the simplex, boundary included.

Stage: blocks of `log_probs`, ρ → L(π), in one pass over the rows → π̂. The search works on the K frequencies alone, in numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .calibration import Calibration
from .stream import PredictionStream

_KEPT = 1 << 23  # entries of a table whose ratios are kept from one pass to the next: 64 MB
_ENOUGH = 1e-10  # tolerance in nats of the log-likelihood: about 1e-5 of a standard error
_BOLD = 8  # iterations in which many coordinates may be set to 0 together; later only one at a time
_RIDGE = 1e-11  # relative to the mean curvature: regularises classes that cannot be distinguished


@dataclass(frozen=True)
class QuadraticModel:
    """A concave function to second order at `point`: its value, gradient (K,) and negative second derivatives (K, K)."""

    point: np.ndarray
    value: float
    gradient: np.ndarray
    curvature: np.ndarray


class MixLikelihood:
    """The log-likelihood L(π) = Σ_n log Σ_k π_k p(k|x_n)/ρ_k, up to a constant (Saerens, Latinne, Decaestecker 2002).

    The constant is Σ_n log p(x_n) at the mix ρ. L is concave in π. With Dirichlet parameters α it is the log posterior,
    L(π) + Σ_k (α_k − 1) log π_k: as if α_k − 1 more people of class k were counted.

    Args:
        rows: predictions on unlabelled data.
        sampling: ρ, the mix at which they hold (after the calibration).
        calibration: applied to each block.
        prior: α, all ≥ 1.
    """

    def __init__(
        self,
        rows: PredictionStream,
        sampling: np.ndarray,
        calibration: Calibration | None = None,
        prior: np.ndarray | None = None,
    ) -> None:
        self._rows, self._calibration = rows, calibration
        self._log_sampling = torch.from_numpy(np.log(sampling))[:, None]
        self._counted = np.zeros(len(sampling)) if prior is None else prior - 1
        small = not rows.is_stream and (rows.count or 0) * rows.num_classes <= _KEPT
        self._kept = torch.cat([self._ratios(block) for block in rows], 1) if small else None

    @property
    def is_kept(self) -> bool:
        """True if passes are cheap, because the ratios p(k|x_n)/ρ_k are in memory."""
        return self._kept is not None

    def __call__(self, population: np.ndarray) -> QuadraticModel:
        """Return L, its gradient and its curvature at π, in one pass."""
        return self._summed(population, self._blocks())

    def of_some_rows(self) -> Callable[[np.ndarray], QuadraticModel] | None:
        """Return L of some rows, to start a search over all: every eighth row, or the first rows if passes are slow.

        Return None for few rows, where it would save no time.
        """
        if self._kept is None:
            some = self._ratios(self._rows.head())
        elif self._kept.numel() >= 1 << 15:
            some = self._kept[:, ::8].contiguous()
        else:
            return None
        return lambda population: self._summed(population, iter([some]))

    def by_calibration(self, population: np.ndarray) -> np.ndarray:
        """Return ∂²L/∂π∂(a, c) `(K, 2K)` at π, where the log ratios are a_k log p_k + c_k up to a constant per row.

        With shares s_nk = r_nk / Σ_j π_j r_nj, ∂s_nk/∂l_nj = s_nk (1{j=k} − π_j s_nj).
        """
        weights, size = torch.from_numpy(population), len(population)
        by_slope, by_offset = torch.zeros(size, size, dtype=torch.float64), torch.zeros(size, size, dtype=torch.float64)
        start = 0
        for block in self._rows:
            ratios = self._ratios(block) if self._kept is None else self._kept[:, start : start + len(block)]
            start += len(block)
            shares = ratios / (weights @ ratios)
            if self._calibration is None or self._calibration.kind != "mean":  # the slopes of "mean" have no uncertainty
                moved = shares * block.T.clamp_min(-1e5)  # a share of 0 times log 0 is 0
                by_slope += torch.diag(moved.sum(1)) - weights * (shares @ moved.T)
            by_offset += torch.diag(shares.sum(1)) - weights * (shares @ shares.T)
        return torch.cat([by_slope, by_offset], 1).numpy()

    def by_cluster(self, population: np.ndarray, clusters: Tensor) -> np.ndarray:
        """Return the variance of the gradient `(K, K)` beyond the curvature, for rows correlated within `clusters` (n,).

        It is Σ_g s_g s_gᵀ of the sums s_g of the rows' centred shares, times G/(G − 1) for G clusters, minus Σ_n s_n s_nᵀ.
        """
        weights, start, size = torch.from_numpy(population), 0, len(population)
        count = int(clusters.max()) + 1
        sums, products = (torch.zeros(size, width, dtype=torch.float64) for width in (count, size))
        for ratios in self._blocks():
            shares = ratios / (weights @ ratios) - 1  # a constant for all classes does not move π
            sums.index_add_(1, clusters[start : start + shares.shape[1]], shares)
            products += shares @ shares.T
            start += shares.shape[1]
        return (sums @ sums.T * (count / max(1, count - 1)) - products).numpy()

    def _blocks(self) -> Iterator[Tensor]:
        if self._kept is not None:
            return iter([self._kept])
        return (self._ratios(block) for block in self._rows)

    def _ratios(self, block: Tensor) -> Tensor:
        """Return p(k|x_n)/ρ_k, `(K, n)`: classes first, so that sums over them run along memory."""
        block = block if self._calibration is None else self._calibration.apply(block)
        return torch.sub(block.T, self._log_sampling).contiguous().exp_()

    def _summed(self, population: np.ndarray, blocks: Iterator[Tensor]) -> QuadraticModel:
        weights = torch.from_numpy(population)
        counted = self._counted > 0
        with np.errstate(divide="ignore"):
            value = float((self._counted * np.where(counted, np.log(population), 0.0))[counted].sum())
        per_person = np.divide(1.0, population, out=np.zeros_like(population), where=counted & (population > 0))
        gradient, curvature = self._counted * per_person, np.diag(self._counted * per_person**2)
        for ratios in blocks:
            mixed = weights @ ratios
            shares = ratios / mixed
            value += float(mixed.log_().sum())
            gradient += shares.sum(1).numpy()
            curvature += (shares @ shares.T).numpy()
        return QuadraticModel(population, value, gradient, curvature)


@dataclass(frozen=True)
class Maximum:
    """The result of a search: the point, its value, the model at the last evaluated point, and whether it converged."""

    point: np.ndarray
    value: float
    model: QuadraticModel
    iterations: int
    converged: bool


def maximise(
    function: Callable[[np.ndarray], QuadraticModel], start: np.ndarray, fixed: int | None = None, max_iterations: int = 100
) -> Maximum:
    """Return the maximum over the simplex, by Newton's method, with the coordinate `fixed` kept at its start.

    Each step maximises the second-order model of the function over the simplex, so coordinates can reach 0 exactly and leave
    it again. A step is halved until the function increases. For the log-likelihood of a mixture, which is self-concordant,
    this converges from every start, and quadratically near the maximum.
    """
    model = function(start)
    if not np.isfinite(model.value):
        return Maximum(start, -np.inf, model, 1, False)
    for iteration in range(1, max_iterations + 1):
        best = maximise_model(model, fixed)
        step = best - model.point
        gain = float(model.gradient @ step)
        if gain <= _ENOUGH:
            return Maximum(best, model.value + gain / 2, model, iteration, True)
        found = _backtracked(function, model, step, gain)
        if found is None:  # the remaining gain is below rounding
            small = gain < 1e-6 + 1e-13 * abs(model.value)
            return Maximum(best if small else model.point, model.value, model, iteration, small)
        model = found
    return Maximum(model.point, model.value, model, max_iterations, False)


def maximise_model(model: QuadraticModel, fixed: int | None = None) -> np.ndarray:
    """Return the maximum of a second-order model over the simplex, by a primal active-set method from its own point."""
    size = len(model.point)
    ridge = _RIDGE * np.trace(model.curvature) / size
    matrix = model.curvature + ridge * np.eye(size)
    point = model.point.copy()
    held = np.zeros(size, dtype=bool) if fixed is None else np.arange(size) == fixed
    free = ~held & ((point > 0) | (model.gradient >= _common(model, held)))
    mass = point[~held].sum()
    for turn in range(10 * size):
        slope = model.gradient - matrix @ (point - model.point)
        step, level = _equality_step(matrix, slope, free)
        shrinking = free & (step < 0)
        limits = np.where(shrinking, -point / np.where(shrinking, step, -1.0), np.inf)
        if limits.min() < 1 and turn < _BOLD and (point + step > 0)[~held].any():
            free &= point + step > 0  # all together; a coordinate wrongly set to 0 is freed again below
            point = np.where(held, point, np.maximum(point + step, 0.0))
            point[~held] *= mass / point[~held].sum()
            continue
        if limits.min() < 1:
            first = int(limits.argmin())
            point = np.maximum(point + limits[first] * step, 0.0)
            point[first], free[first] = 0.0, False
            continue
        point = np.maximum(point + step, 0.0)
        wanting = np.where(free | held, -np.inf, model.gradient - matrix @ (point - model.point) - level)
        worst = int(wanting.argmax())
        if wanting[worst] <= 1e-12 * (1 + abs(level)):
            break
        free[worst] = True
    return point / point.sum() if fixed is None else _rescaled(point, fixed, model.point[fixed])


def _equality_step(matrix: np.ndarray, slope: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the Newton step of the free coordinates that keeps their sum, and their common slope after it."""
    index = np.flatnonzero(free)
    step = np.zeros(len(slope))
    if len(index) == 0:
        return step, np.inf
    if len(index) == 1:
        return step, float(slope[index[0]])
    both = np.linalg.solve(matrix[np.ix_(index, index)], np.stack([slope[index], np.ones(len(index))], axis=1))
    level = float(both[:, 0].sum() / both[:, 1].sum())
    step[index] = both[:, 0] - level * both[:, 1]
    return step, level


def _common(model: QuadraticModel, held: np.ndarray) -> float:
    """Return the mean slope of the free coordinates, weighted by their values: those at 0 with a smaller slope stay there."""
    mass = np.where(held, 0.0, model.point)
    return float(mass @ model.gradient / mass.sum()) if mass.sum() > 0 else -np.inf


def _backtracked(
    function: Callable[[np.ndarray], QuadraticModel], model: QuadraticModel, step: np.ndarray, gain: float
) -> QuadraticModel | None:
    rounding = 1e-14 * (abs(model.value) + 1)
    share = 1.0
    while share > 1e-12 and share * gain > rounding:
        found = function(model.point + share * step)
        if found.value >= model.value + 1e-4 * share * gain - rounding:
            return found
        share /= 2 if share > 0.1 else 10
    return None


def _rescaled(point: np.ndarray, fixed: int, value: float) -> np.ndarray:
    point[fixed] = 0.0
    total = point.sum()
    point = point * ((1 - value) / total) if total > 0 else point
    point[fixed] = value
    return point
