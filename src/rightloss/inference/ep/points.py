"""Points that stand for a standard normal distribution.

Stage: number of dimensions → points `(s, d)` with weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.quasirandom import SobolEngine

_NODES = {1: 32, 2: 12, 3: 7}  # of Gauss–Hermite in each direction, by the number of dimensions


@dataclass(frozen=True, eq=False)
class Points:
    """E[f(ε)] ≈ Σ_s exp(log_weight_s) f(at_s) for ε ~ N(0, I)."""

    at: Float[Tensor, "s d"]
    log_weight: Float[Tensor, " s"]

    def to(self, device: torch.device) -> Points:
        """The same elsewhere."""
        return Points(self.at.to(device), self.log_weight.to(device))

    def __len__(self) -> int:
        return len(self.at)


def normal_points(dimensions: int, draws: int, seed: int) -> Points:
    """Gauss–Hermite's product rule in up to three dimensions; beyond it `sobol_points`, `draws` of them."""
    if dimensions not in _NODES:
        return sobol_points(dimensions, draws, seed)
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(_NODES[dimensions]))
    at = torch.cartesian_prod(*[nodes] * dimensions).reshape(-1, dimensions)
    log_weight = torch.cartesian_prod(*[weights.log()] * dimensions).reshape(-1, dimensions).sum(1)
    return Points(at, log_weight - torch.logsumexp(log_weight, 0))


def sobol_points(dimensions: int, draws: int, seed: int) -> Points:
    """Sobol' points made normal, each with its mirror image, and scaled to a covariance of exactly I.

    There are `draws` of them, or more where that needs more: three for each dimension. Whatever is quadratic, and whatever is
    odd, is thus averaged without error.
    """
    half = max(math.ceil(draws / 2), math.ceil(1.5 * dimensions))
    uniform = SobolEngine(dimensions, scramble=True, seed=seed).draw(half, dtype=torch.float64)
    normal = torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9))
    factor = torch.linalg.cholesky(normal.T @ normal / half)
    normal = torch.linalg.solve_triangular(factor, normal.T, upper=False).T
    return Points(torch.cat([normal, -normal]), torch.full((2 * half,), -math.log(2 * half), dtype=torch.float64))
