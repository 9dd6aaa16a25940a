"""Beta(a, b) on the scale of log-odds: means and quantiles.

Stage: parameters → log-odds t with weights, or the t that a share of the distribution lies below.

With t = t₀ + u and t₀ = log a/b, the mode of the density of t, that density is, relative to the mode,

    g(u) = −a log(1 + b/(a+b) (e^{−u} − 1)) − b log(1 + a/(a+b) (e^u − 1)),

without the cancellation of a log σ(t) + b log σ(−t) at large counts, and without the poles of Beta(a, b) at a, b < 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

_NODES, _WEIGHTS = (torch.from_numpy(each) for each in np.polynomial.legendre.leggauss(16))
_NEGLIGIBLE = 50.0  # e^−50 of the mode
_FARTHEST = 700.0  # from the mode, so that e^u is finite; what lies beyond is exponential to the last digit


@dataclass(frozen=True)
class BetaLogOdds:
    """The distribution of log π/(1 − π) for π ~ Beta(a, b)."""

    a: float
    b: float

    def rule(self) -> tuple[Float64[Tensor, " m"], Float64[Tensor, " m"]]:
        """Nodes t and weights that sum to 1: E[f(t)] ≈ Σ w f(t), for f that is smooth on the scale of 1."""
        edges = self._edges()
        u, mass = self._cells(edges[:-1], edges[1:])
        below, above = self._tails(edges)
        nodes = torch.cat([edges[:1], u.flatten(), edges[-1:]]) + self._mode
        weights = torch.cat([below[None], mass.flatten(), above[None]])
        return nodes, weights / weights.sum()

    def quantile(self, share: float) -> float:
        """The t that `share` of the distribution lies below."""
        edges = self._edges()
        below, above = self._tails(edges)
        mass = self._cells(edges[:-1], edges[1:])[1].sum(1)
        up_to = below + torch.cat([torch.zeros(1, dtype=torch.float64), mass.cumsum(0)])
        wanted = share * float(up_to[-1] + above)
        if wanted <= float(below):
            return self._mode + float(edges[0]) + math.log(wanted / float(below)) / abs(self._slope(float(edges[0])))
        if wanted >= float(up_to[-1]):
            left = (1 - share) * float(up_to[-1] + above)
            return self._mode + float(edges[-1]) - math.log(left / float(above)) / abs(self._slope(float(edges[-1])))
        cell = int(torch.searchsorted(up_to, wanted)) - 1
        return self._mode + self._within(edges[cell], edges[cell + 1], wanted - float(up_to[cell]))

    @property
    def _mode(self) -> float:
        return math.log(self.a) - math.log(self.b)

    def _log_density(self, u: Tensor) -> Tensor:
        share = self.a / (self.a + self.b)
        rest = self.b / (self.a + self.b)
        return -self.a * torch.log1p(rest * torch.expm1(-u)) - self.b * torch.log1p(share * torch.expm1(u))

    def _slope(self, u: float) -> float:
        """dg/du."""
        odds = math.exp(-abs(self._mode + u))
        small, large = odds / (1 + odds), 1 / (1 + odds)
        up, down = (small, large) if self._mode + u < 0 else (large, small)  # σ(t), σ(−t)
        return self.a * down - self.b * up

    def _edges(self) -> Float64[Tensor, " m"]:
        width = math.sqrt(1 / self.a + 1 / self.b)
        low, high = -self._reach(-1.0, width), self._reach(1.0, width)
        return torch.linspace(low, high, math.ceil((high - low) / min(1.0, width)) + 1, dtype=torch.float64)

    def _reach(self, direction: float, width: float) -> float:
        distance = width
        while distance < _FARTHEST and self._log_density(torch.tensor(direction * distance).double()) > -_NEGLIGIBLE:
            distance *= 1.5
        return min(distance, _FARTHEST)

    def _cells(self, left: Tensor, right: Tensor) -> tuple[Float64[Tensor, "m q"], Float64[Tensor, "m q"]]:
        """Gauss–Legendre nodes in each cell, and the mass each stands for."""
        half = (right - left)[:, None] / 2
        u = (right + left)[:, None] / 2 + half * _NODES
        return u, half * _WEIGHTS * self._log_density(u).exp()

    def _tails(self, edges: Tensor) -> tuple[Tensor, Tensor]:
        """The mass beyond either end, where the density is exponential."""
        ends = edges[[0, -1]]
        slopes = torch.tensor([abs(self._slope(float(end))) for end in ends], dtype=torch.float64)
        below, above = self._log_density(ends).exp() / slopes
        return below, above

    def _within(self, left: Tensor, right: Tensor, wanted: float) -> float:
        """The u in a cell up to which it holds the mass `wanted`, by bisection."""
        low, high = float(left), float(right)
        for _ in range(60):
            middle = (low + high) / 2
            if float(self._cells(left[None], torch.tensor([middle], dtype=torch.float64))[1].sum()) < wanted:
                low = middle
            else:
                high = middle
        return (low + high) / 2
