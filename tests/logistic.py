"""Logistic regression under label-based sampling, and its posterior by brute force, against which methods are held."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from members import generator
from torch import Tensor, nn
from torch.func import vmap

from rightloss import Bernoulli, LogLikelihoodLoss, Prevalence, start_at_prevalence
from rightloss.inference import LogPosterior, Posterior, gaussian_prior, log_posterior


@dataclass(frozen=True)
class Logistic:
    """x ~ N(0, I) and y|x logistic in the population; the sample has `n` examples, half of each class, float64.

    The intercept is such that class 1 has about the frequency `population`. Weights: `features` slopes and an intercept, with
    prior N(0, 1) but for the intercept's centre, where `start_at_prevalence` puts it.
    """

    features: int
    n: int = 200
    population: float = 0.05
    seed: int = 0

    @property
    def prevalence(self) -> Prevalence:
        return Prevalence.binary(self.population)

    @cached_property
    def data(self) -> tuple[Tensor, Tensor]:
        """People drawn from the population, of whom the first n/2 of each class are kept."""
        stream = generator(700 + self.seed)
        x = torch.randn(100 * self.n, self.features, dtype=torch.float64, generator=stream)
        slopes = torch.linspace(1.0, -0.5, self.features, dtype=torch.float64)
        ill = torch.rand(len(x), dtype=torch.float64, generator=stream) < torch.sigmoid(x @ slopes + self.intercept)
        kept = torch.cat([torch.nonzero(ill == label).flatten()[: self.n // 2] for label in (False, True)])
        return x[kept], ill[kept].long()

    @property
    def intercept(self) -> float:
        """logit π for the slopes' mean effect: Mackay's approximation of E σ(b + a) = π with a ~ N(0, v)."""
        variance = float(torch.linspace(1.0, -0.5, self.features, dtype=torch.float64).square().sum())
        return math.log(self.population / (1 - self.population)) * math.sqrt(1 + math.pi * variance / 8)

    def model(self) -> nn.Linear:
        """Zero slopes, the intercept at the prevalence."""
        layer = nn.Linear(self.features, 1).double()
        nn.init.zeros_(layer.weight)
        start_at_prevalence(layer, self.prevalence, Bernoulli())
        return layer

    def target(self, **options: Any) -> LogPosterior:
        """The corrected log posterior with p(y|w) exact over the data, unless told otherwise."""
        model = self.model()
        prior = gaussian_prior(1.0, {"bias": model.bias})
        if not options:
            options = {"pool": self.data}
        return log_posterior(model, self.prevalence, Bernoulli(), prior=prior, num_data=self.n, **options)

    def uncorrected(self) -> LogPosterior:
        """The same without the correction."""
        return self.target(loss=LogLikelihoodLoss)


def grid_moments(problem: Logistic, target: LogPosterior, width: float = 6.0, points: int = 151) -> tuple[Tensor, Tensor]:
    """Mean and covariance of (slope, intercept) by a dense grid, for one feature. Twice the points give the same 12 digits."""
    assert problem.features == 1
    slope = torch.linspace(-width, width, points, dtype=torch.float64)
    intercept = torch.linspace(-width, width, points, dtype=torch.float64) + float(problem.model().bias.detach())
    both = torch.cartesian_prod(slope, intercept)
    params = {"weight": both[:, :1, None], "bias": both[:, 1:]}
    data = problem.data  # drawn here, since vmap allows no random numbers
    log_density = problem.n * vmap(lambda each: target(each, data)[0], chunk_size=10_000)(params).detach()
    mass = torch.softmax(log_density, 0)
    at_edge = (both[:, 0].abs() == width) | ((both[:, 1] - intercept.mean()).abs() > width - 1e-9)
    assert float(mass[at_edge].sum()) < 1e-6, "the grid is too small"
    mean = mass @ both
    return mean, (both - mean).T @ ((both - mean) * mass[:, None])


def importance_moments(
    target: LogPosterior, data: tuple[Tensor, Tensor], near: Posterior, draws: int, wider: float, stream: torch.Generator
) -> tuple[Tensor, Tensor, float]:
    """Mean and covariance by weighted draws, and how many draws these are worth.

    Args:
        target: the log posterior, with N.
        data: all of it.
        near: a Gaussian; draws are of a t distribution of 8 degrees of freedom around its mean.
        draws: how many.
        wider: its scale matrix, as a multiple of the covariance of `near`.
        stream: of random numbers.
    """
    q, freedom = near.distribution, 8
    noise = torch.randn(draws, len(q.mean), dtype=torch.float64, generator=stream)
    noise = noise / torch.randn(draws, freedom, dtype=torch.float64, generator=stream).square().mean(1, keepdim=True).sqrt()
    w = q.mean + noise @ torch.linalg.cholesky(wider * q.covariance()).T
    log_proposal = -(freedom + len(q.mean)) / 2 * torch.log1p(noise.square().sum(1) / freedom)
    assert target.num_data is not None
    values = vmap(lambda each: target(each, data)[0], chunk_size=2000)(near.layout.unflatten(w)).detach()
    mass = torch.softmax(target.num_data * values - log_proposal, 0)
    mean = mass @ w
    return mean, (w - mean).T @ ((w - mean) * mass[:, None]), float(1 / mass.square().sum())
