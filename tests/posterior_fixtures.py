"""The small posteriors that tests of inference and prediction share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from layers import network
from members import ClassLikelihood, generator, population
from torch import Tensor, nn

from rightloss import Categorical, Prevalence
from rightloss.inference.distributions import DenseGaussian, DiagonalGaussian, Distribution, Layout, LowRankGaussian, Particles
from rightloss.inference.posterior import Posterior


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=generator(seed))


# One of each kind over d weights.
DISTRIBUTIONS: dict[str, Callable[[int], Distribution]] = {
    "a point": lambda d: Particles(normal(1, d, seed=1)),
    "particles": lambda d: Particles(normal(6, d, seed=2), chains=2),
    "DiagonalGaussian": lambda d: DiagonalGaussian(normal(d, seed=3), normal(d, seed=4).exp()),
    "DenseGaussian": lambda d: DenseGaussian(normal(d, seed=5), normal(d, d, seed=6) / d**0.5),
    "LowRankGaussian": lambda d: LowRankGaussian(normal(d, seed=7), normal(d, 2, seed=8), normal(d, seed=9).exp()),
}


def parameters_of(model: nn.Module, likelihood: Any) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    return named | {f"likelihood.{name}": value for name, value in likelihood.named_parameters()}


def posterior_of_net(
    likelihood: ClassLikelihood | None = None,
    k: int = 3,
    kind: str = "particles",
    net: nn.Module | None = None,
    **settings: Any,
) -> Posterior:
    """Over all weights of a small network with batch normalisation."""
    likelihood = Categorical(k) if likelihood is None else likelihood
    model = network(likelihood.num_outputs or k).double() if net is None else net
    layout = Layout.of(parameters_of(model, likelihood))
    prevalence = Prevalence(population(k, 1), population(k, 2))
    return Posterior(model, prevalence, likelihood, DISTRIBUTIONS[kind](layout.size), layout, **settings)


def prevalence_of(posterior: Posterior) -> Prevalence:
    """Return the one of a posterior over classes."""
    assert isinstance(posterior.prevalence, Prevalence)
    return posterior.prevalence
