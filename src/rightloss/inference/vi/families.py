"""The Gaussian families of variational inference, with trainable parameters.

Stage: standard normal noise → a draw of the weights, differentiable by the family's parameters; these → `Distribution`. Every
family measures its steps in standard deviations, so that one learning rate fits large and small weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ...arrays import checked_choice
from ..distributions import DenseGaussian, DiagonalGaussian, Distribution, LowRankGaussian

_LOG_2PI_E = math.log(2 * math.pi) + 1
_LARGEST_DENSE = 2000


@runtime_checkable
class Family(Protocol):
    """A Gaussian N(μ, Σ) over d weights, in training."""

    leaves: list[Tensor]
    noise_size: int

    def draw(self, noise: Float[Tensor, " e"]) -> Float[Tensor, " d"]:
        """Return w = μ + (a factor of Σ) · noise."""
        ...

    def score(self, noise: Float[Tensor, " e"]) -> Float[Tensor, " d"]:
        """Return Σ⁻¹(w − μ) = −∇ log q(w) at `draw(noise)`, without gradient."""
        ...

    def entropy(self) -> Tensor:
        """Return H[q] in nats."""
        ...

    def distribution(self) -> Distribution:
        """Return the current Gaussian, detached."""
        ...


def family_of(name: str, start: Float[Tensor, " d"], deviation: float, rank: int) -> Family:
    """Return the family of that name around `start`, with this standard deviation."""
    families: dict[str, Callable[[], Family]] = {
        "mean-field": lambda: MeanField(start, deviation),
        "full-rank": lambda: FullRank(start, deviation),
        "low-rank": lambda: LowRank(start, deviation, rank),
    }
    return families[checked_choice(name, "family", families)]()


class MeanField:
    """Σ = diag(σ²)."""

    def __init__(self, start: Float[Tensor, " d"], deviation: float) -> None:
        self.mean = start.clone().requires_grad_()
        self.log_deviation = torch.full_like(start, math.log(deviation)).requires_grad_()
        self.leaves, self.noise_size = [self.mean, self.log_deviation], len(start)

    def draw(self, noise: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        return torch.addcmul(self.mean, self.log_deviation.exp(), noise)

    @torch.no_grad()
    def score(self, noise: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        return noise * torch.exp(-self.log_deviation)

    def entropy(self) -> Tensor:
        return self.log_deviation.sum() + 0.5 * _LOG_2PI_E * len(self.mean)

    def distribution(self) -> DiagonalGaussian:
        return DiagonalGaussian(self.mean.detach().clone(), self.log_deviation.detach().exp())


class FullRank:
    """Σ = F Fᵀ with F = diag(s)(I + U), U strictly below the diagonal."""

    def __init__(self, start: Float[Tensor, " d"], deviation: float) -> None:
        if len(start) > _LARGEST_DENSE:
            raise ValueError(
                f"Expected at most {_LARGEST_DENSE} weights for family='full-rank', but got {len(start)}, "
                f"with {len(start) ** 2:,} covariances: use family='low-rank' or 'mean-field'."
            )
        self.mean = start.clone().requires_grad_()
        self.log_scale = torch.full_like(start, math.log(deviation)).requires_grad_()
        self.below = start.new_zeros(len(start), len(start)).requires_grad_()
        self.leaves, self.noise_size = [self.mean, self.log_scale, self.below], len(start)

    def factor(self) -> Float[Tensor, "d d"]:
        """F, lower triangular."""
        return self.log_scale.exp()[:, None] * (self.below.tril(-1) + torch.eye(len(self.mean)).to(self.mean))

    def draw(self, noise: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        return self.mean + self.log_scale.exp() * (noise + self.below.tril(-1) @ noise)

    @torch.no_grad()
    def score(self, noise: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        return torch.linalg.solve_triangular(self.factor().T, noise[:, None], upper=True)[:, 0]

    def entropy(self) -> Tensor:
        return self.log_scale.sum() + 0.5 * _LOG_2PI_E * len(self.mean)

    def distribution(self) -> DenseGaussian:
        return DenseGaussian(self.mean.detach().clone(), self.factor().detach())


class LowRank:
    """Σ = D (I + A Aᵀ) D with D = diag(s) and A of `rank` columns."""

    def __init__(self, start: Float[Tensor, " d"], deviation: float, rank: int) -> None:
        if rank > len(start):
            raise ValueError(f"Expected `rank` up to the number of weights, {len(start)}, but got {rank}: lower it.")
        self.mean = start.clone().requires_grad_()
        self.log_scale = torch.full_like(start, math.log(deviation)).requires_grad_()
        # not 0, where the gradient of A is always 0
        common = torch.randn(len(start), rank, dtype=start.dtype) / math.sqrt(len(start) * rank)
        self.common = common.to(start.device).requires_grad_()
        self.leaves, self.noise_size = [self.mean, self.log_scale, self.common], len(start) + rank

    def draw(self, noise: Float[Tensor, " e"]) -> Float[Tensor, " d"]:
        return self.mean + self.log_scale.exp() * self._spread(noise)

    @torch.no_grad()
    def score(self, noise: Float[Tensor, " e"]) -> Float[Tensor, " d"]:
        away, common = self._spread(noise), self.common
        inner = torch.linalg.solve(self._inner(), common.T @ away)  # Woodbury
        return (away - common @ inner) * torch.exp(-self.log_scale)

    def entropy(self) -> Tensor:
        half_log_det = self.log_scale.sum() + 0.5 * torch.logdet(self._inner())
        return half_log_det + 0.5 * _LOG_2PI_E * len(self.mean)

    def distribution(self) -> LowRankGaussian:
        scale = self.log_scale.detach().exp()
        return LowRankGaussian(self.mean.detach().clone(), scale[:, None] * self.common.detach(), scale)

    def _spread(self, noise: Float[Tensor, " e"]) -> Float[Tensor, " d"]:
        own, common = noise.split([len(self.mean), self.common.shape[1]])
        return own + self.common @ common

    def _inner(self) -> Float[Tensor, "r r"]:
        """I + AᵀA."""
        return torch.eye(self.common.shape[1]).to(self.mean) + self.common.T @ self.common
