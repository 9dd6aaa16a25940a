"""Predictions at one mix → the log-likelihood of any other, with its derivatives.

Stage: blocks of `log_probs`, ρ → L(π), in one pass over the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from .calibration import Calibration
from .rows import Rows
from .simplex import Curve

__all__ = ["MixLikelihood"]

_KEPT = 1 << 23  # entries of a table whose ratios are kept from one pass to the next: 64 MB


class MixLikelihood:
    """L(π) = Σ_n log Σ_k π_k p(k|x_n)/ρ_k, up to Σ_n log p(x_n) at the mix ρ (Saerens, Latinne, Decaestecker 2002).

    Concave in π. With Dirichlet parameters α it is the log posterior, L(π) + Σ_k (α_k − 1) log π_k: as if α_k − 1 more people
    had been counted by class alone.

    Args:
        rows: predictions on unlabelled data.
        sampling: ρ, the mix at which they hold (after the calibration).
        calibration: applied to each block.
        prior: α, all ≥ 1.
    """

    def __init__(
        self, rows: Rows, sampling: np.ndarray, calibration: Calibration | None = None, prior: np.ndarray | None = None
    ) -> None:
        self._rows, self._calibration = rows, calibration
        self._log_sampling = torch.from_numpy(np.log(sampling))[:, None]
        self._counted = np.zeros(len(sampling)) if prior is None else prior - 1
        small = not rows.is_stream and (rows.count or 0) * rows.num_classes <= _KEPT
        self._kept = torch.cat([self._ratios(block) for block in rows], 1) if small else None

    @property
    def is_kept(self) -> bool:
        """Whether passes are cheap, because the ratios p(k|x_n)/ρ_k are in memory."""
        return self._kept is not None

    def __call__(self, population: np.ndarray) -> Curve:
        """L, its gradient and its curvature at π: one pass."""
        return self._summed(population, self._blocks())

    def of_some_rows(self) -> Callable[[np.ndarray], Curve] | None:
        """The same of some rows, where a search over all can start: every eighth, or the first where passes are dear.

        None for few rows, where it would save nothing.
        """
        if self._kept is None:
            some = self._ratios(self._rows.head())
        elif self._kept.numel() >= 1 << 15:
            some = self._kept[:, ::8].contiguous()
        else:
            return None
        return lambda population: self._summed(population, iter([some]))

    def by_calibration(self, population: np.ndarray) -> np.ndarray:
        """∂²L/∂π∂(a, c) `(K, 2K)` at π, where the log ratios are a_k log p_k + c_k but for a constant per row: one pass.

        With shares s_nk = r_nk / Σ_j π_j r_nj, ∂s_nk/∂l_nj = s_nk (1{j=k} − π_j s_nj).
        """
        weights, size = torch.from_numpy(population), len(population)
        by_slope, by_offset = torch.zeros(size, size, dtype=torch.float64), torch.zeros(size, size, dtype=torch.float64)
        start = 0
        for block in self._rows:
            ratios = self._ratios(block) if self._kept is None else self._kept[:, start : start + len(block)]
            start += len(block)
            shares = ratios / (weights @ ratios)
            if self._calibration is None or self._calibration.kind != "mean":  # whose slopes are not in doubt
                moved = shares * block.T.clamp_min(-1e5)  # a share of 0 times log 0 is 0
                by_slope += torch.diag(moved.sum(1)) - weights * (shares @ moved.T)
            by_offset += torch.diag(shares.sum(1)) - weights * (shares @ shares.T)
        return torch.cat([by_slope, by_offset], 1).numpy()

    def _blocks(self) -> Iterator[Tensor]:
        if self._kept is not None:
            return iter([self._kept])
        return (self._ratios(block) for block in self._rows)

    def _ratios(self, block: Tensor) -> Tensor:
        """p(k|x_n)/ρ_k, `(K, n)`: classes first, so that sums over them run along memory."""
        block = block if self._calibration is None else self._calibration.applied(block)
        return torch.sub(block.T, self._log_sampling).contiguous().exp_()

    def _summed(self, population: np.ndarray, blocks: Iterator[Tensor]) -> Curve:
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
        return Curve(population, value, gradient, curvature)
