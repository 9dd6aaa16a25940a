"""Gaussians by natural parameters and by moments, and what leads from one to another.

Stage: precision and shift ↔ mean and covariance.

What site matches factor is read from derivatives (Bonnet's and Price's theorems). N(m, V) times a factor g has the moments

    m + V a and V + V B V,  a = E[∇ log g],  B = E[∇² log g + ∇ log g ∇ log gᵀ] − a aᵀ,

in expectation under that product. A small power of a factor thus costs no digits, as it would in weighted sums of w wᵀ. And
with m and V of the approximation itself and the factor divided by its site for g, points are where the product has its mass,
and a site that equals its factor stays without error.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

_FACTOR = 30.0  # by which a site may change a variance at once


@dataclass(frozen=True, eq=False)
class Natural:
    """exp(shiftᵀ w − ½ wᵀ precision w)."""

    precision: Tensor
    shift: Tensor

    def plus(self, other: Natural, step: float = 1.0) -> Natural:
        """The product with `other` to the power `step`."""
        return Natural(self.precision + step * other.precision, self.shift + step * other.shift)

    def times(self, share: float) -> Natural:
        """To that power."""
        return self if share == 1 else Natural(share * self.precision, share * self.shift)

    def moments(self) -> Moments | None:
        """As mean and covariance; None where it is no distribution."""
        factor, info = torch.linalg.cholesky_ex(self.precision)
        if int(info) or not bool(torch.isfinite(factor).all()):
            return None
        covariance = torch.cholesky_inverse(factor)
        return Moments(covariance @ self.shift, covariance)


@dataclass(frozen=True, eq=False)
class Moments:
    """A Gaussian over w, or, with a dimension of n in front, over the outputs z_n of each of n rows."""

    mean: Float[Tensor, "*n d"]
    covariance: Float[Tensor, "*n d d"]

    def outputs(self, features: Float[Tensor, "n p"]) -> Moments:
        """Of z_n = W h_n."""
        size = features.shape[1]
        halves = (features @ self.covariance.reshape(-1, size, len(self.mean))).unflatten(-1, (-1, size))
        return Moments(features @ self.mean.reshape(-1, size).T, torch.einsum("anbp,np->nab", halves, features))

    def without(self, site: Natural, power: float) -> Moments:
        """Divided by the site to that power."""
        eye = torch.eye(self.mean.shape[-1]).to(self.mean)
        covariance = torch.linalg.solve_ex(eye - power * self.covariance @ site.precision, self.covariance)[0]
        pull = power * (_times(site.precision, self.mean) - site.shift)
        covariance = (covariance + covariance.mT) / 2
        return Moments(self.mean + _times(covariance, pull), covariance)

    def matching(self, a: Tensor, b: Tensor) -> Natural:
        """The natural parameters that lead from here to the moments m + V a, V + V B V.

        Of two points far apart, B can be anything; no variance shall change by more than a factor of `_FACTOR` at once.
        """
        factor, info = torch.linalg.cholesky_ex(self.covariance)
        factor = torch.where(info[..., None, None] == 0, factor, torch.nan)
        inner = factor.mT @ b @ factor
        sound = torch.isfinite(inner).flatten(-2).all(-1)[..., None, None]
        values, vectors = torch.linalg.eigh(torch.where(sound, (inner + inner.mT) / 2, 0.0))
        ratio = (1 + values).clamp(1 / _FACTOR, _FACTOR)
        vectors = torch.linalg.solve_triangular(factor.mT, vectors, upper=True)
        precision = torch.where(sound, (vectors * (1 / ratio - 1).unsqueeze(-2)) @ vectors.mT, torch.nan)
        return Natural(precision, a + _times(precision, self.mean + _times(self.covariance, a)))


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)
