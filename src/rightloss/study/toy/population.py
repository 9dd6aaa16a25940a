"""Populations whose Bayes-optimal predictions are known: class or rating → examples, and the best figures there are.

Stage: a frozen population, with its prevalence → `sample` of equal classes, true `log_probs`, `best_log_likelihood`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ...likelihoods import Categorical, Likelihood, OnionPeeling
from ...prevalence import Prevalence

_NODES = 80  # per dimension; from 64 on neither integral changes by 1e-12


@dataclass(frozen=True)
class TwoGaussians:
    """Class 0 is N(−μ, I), class 1 is N(μ, I), so the log-odds of class 1 are `logit π + 2 μ·x`.

    Attributes:
        positive: π, how often class 1 is met.
        features: D; μ points along the diagonal.
        separation: |μ|. The AUC is Φ(√2 |μ|), 0.871 at 0.8.
    """

    positive: float
    features: int = 5
    separation: float = 0.8

    @property
    def title(self) -> str:
        return f"{self.positive:g}"

    @property
    def prevalence(self) -> Prevalence:
        """π, to be met in use, with equal classes in training."""
        return Prevalence.binary(self.positive)

    @property
    def likelihood(self) -> Likelihood:
        """The one under which a linear model can express the truth."""
        return Categorical(2)

    @property
    def best_log_likelihood(self) -> float:
        """`Σ_c π_c E[log p(c|x) | y = c]` of the true p(y|x): no model has more.

        By Gauss–Hermite quadrature: given the class the log-odds are N(logit π ± 2|μ|², 4|μ|²).
        """
        nodes, weights = gauss_hermite(1)
        shift, scale = 2 * self.separation**2, 2 * self.separation
        odds = math.log(self.positive) - math.log1p(-self.positive) + scale * nodes[:, 0]
        gains = self.positive * F.logsigmoid(odds + shift) + (1 - self.positive) * F.logsigmoid(shift - odds)
        return float(weights @ gains)

    @property
    def best_auc(self) -> float:
        """Φ(√2 |μ|)."""
        return 0.5 * (1 + math.erf(self.separation))

    def log_probs(self, x: Float[Tensor, "n d"]) -> Float64[Tensor, "n k"]:
        """The true log p(y|x) at π."""
        slope = 2 * self.separation / math.sqrt(self.features)
        odds = math.log(self.positive) - math.log1p(-self.positive) + slope * x.double().sum(1)
        return torch.stack([F.logsigmoid(-odds), F.logsigmoid(odds)], 1)

    def sample(self, per_class: int, seed: int) -> tuple[Float[Tensor, "n d"], Int64[Tensor, " n"]]:
        """`per_class` examples of every class, class 0 first."""
        y = torch.arange(2).repeat_interleave(per_class)
        noise = torch.randn(2 * per_class, self.features, generator=torch.Generator().manual_seed(seed))
        return noise + (2 * y[:, None] - 1) * self.separation / math.sqrt(self.features), y


@dataclass(frozen=True)
class FiveRatings:
    """x is N(0, I) and the rating given x is `OnionPeeling(5)` of a linear map of its first two features.

    The first says how high the rating is, the second how clear the case; π is what follows, (0.07, 0.20, 0.45, 0.20, 0.08).
    """

    features: int = 5
    weights: tuple[tuple[float, float], ...] = ((-1.5, 0.5), (1.5, 0.5), (-1.0, 0.3), (1.0, 0.3))
    bias: tuple[float, ...] = (-3.5, -3.3, -1.1, -1.1)

    @property
    def title(self) -> str:
        return "5 ratings"

    @cached_property
    def prevalence(self) -> Prevalence:
        """π_k = E[p(k|x)], by quadrature over the two features that count."""
        nodes, weights = gauss_hermite(2)
        return Prevalence(weights @ self.log_probs(nodes).exp())

    @property
    def likelihood(self) -> Likelihood:
        return OnionPeeling(5)

    @property
    def best_log_likelihood(self) -> float:
        """`E_x Σ_k p(k|x) log p(k|x)`, the same sum taken the other way round; by quadrature."""
        nodes, weights = gauss_hermite(2)
        table = self.log_probs(nodes)
        return float(weights @ (table.exp() * table).sum(1))

    @property
    def best_auc(self) -> None:
        """There are more than two classes."""

    def log_probs(self, x: Float[Tensor, "n d"]) -> Float64[Tensor, "n k"]:
        slopes = torch.tensor(self.weights, dtype=torch.float64)
        outputs = x[:, :2].double() @ slopes.T + torch.tensor(self.bias, dtype=torch.float64)
        return self.likelihood.table(outputs)

    def sample(self, per_class: int, seed: int) -> tuple[Float[Tensor, "n d"], Int64[Tensor, " n"]]:
        """People drawn from the population, of whom the first `per_class` of each rating are kept."""
        generator = torch.Generator().manual_seed(seed)
        block = int(1.1 * per_class / float(self.prevalence.population.min())) + 100
        x, y = torch.empty(0, self.features), torch.empty(0, dtype=torch.int64)
        while int(torch.bincount(y, minlength=5).min()) < per_class:
            more = torch.randn(block, self.features, generator=generator)
            uniform = torch.rand(block, 1, dtype=torch.float64, generator=generator)
            rating = (self.log_probs(more).exp().cumsum(1)[:, :-1] < uniform).sum(1)
            x, y = torch.cat([x, more]), torch.cat([y, rating])
        kept = torch.cat([torch.nonzero(y == rating).flatten()[:per_class] for rating in range(5)])
        return x[kept], y[kept]


Population = TwoGaussians | FiveRatings


def gauss_hermite(dimensions: int) -> tuple[Float64[Tensor, "n d"], Float64[Tensor, " n"]]:
    """Nodes and weights that integrate over N(0, I)."""
    nodes, weights = (torch.from_numpy(each) for each in np.polynomial.hermite_e.hermegauss(_NODES))
    weights = weights / weights.sum()
    if dimensions == 1:
        return nodes[:, None], weights
    assert dimensions == 2
    return torch.cartesian_prod(nodes, nodes), torch.outer(weights, weights).flatten()
