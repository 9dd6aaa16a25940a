"""Laplace's approximation of a logistic posterior against a dense grid."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from logistic import Logistic, grid_moments
from torch import Tensor
from torch.func import hessian, jacfwd, vmap

from rightloss.inference import LogPosterior
from rightloss.inference.laplace import laplace
from rightloss.inference.posterior import Posterior


@pytest.mark.parametrize("curvature", [None, "hessian", "fisher"])
def test_moments_and_evidence_are_those_of_the_grid(curvature: str | None) -> None:
    problem, target, mean, deviation, log_integral = _grid(False)
    found = laplace(target, problem.data, curvature=curvature, steps=50)
    assert found.record["decrement"] < 1e-6
    assert found.record["repaired"] == 0
    assert found.record["curvature"] == (curvature or "hessian")
    assert float(((found.distribution.mean - mean) / deviation).abs().max()) < 0.15
    assert float((found.distribution.standard_deviation / deviation - 1).abs().max()) < 0.15
    assert found.record["log_evidence"] == pytest.approx(log_integral, abs=0.1)


def test_at_the_population_the_mean_is_off_the_mode_by_the_skewness() -> None:
    """At r = π few examples count for most of the marginal, and the posterior is skew: its mean is up to 0.4 of its standard
    deviations off the mode, as its third derivatives say. Widths are then good to a quarter or so, where the skewness is worst.
    """
    problem, target, mean, deviation, log_integral = _grid(True)
    found = laplace(target, problem.data, steps=50)
    assert found.record["decrement"] < 1e-6
    expected = found.distribution.mean + _shift(found, problem, target)
    assert float(((expected - mean) / deviation).abs().max()) < 0.3
    assert float((found.distribution.standard_deviation / deviation - 1).abs().max()) < 0.4
    assert found.record["log_evidence"] == pytest.approx(log_integral, abs=0.15)


def _shift(found: Posterior, problem: Logistic, target: LogPosterior) -> Tensor:
    """Mean less mode to the first order: −½ Σ_jkl C_ij T_jkl C_kl, with the third derivatives T of −log p(w|X,Y)."""
    data, covariance = problem.data, found.distribution.covariance()

    def energy(vector: Tensor) -> Tensor:
        return -problem.n * target(found.layout.unflatten(vector), data)[0]

    third = jacfwd(hessian(energy))(found.distribution.mean)
    return -0.5 * torch.einsum("ij,jkl,kl->i", covariance, third, covariance)


@cache
def _grid(population: bool) -> tuple[Logistic, LogPosterior, Tensor, Tensor, float]:
    """A problem, its means and standard deviations, and log ∫ p(w) p(Y|X,w) dw."""
    problem = Logistic(features=1)
    reference = {"reference": problem.prevalence.population} if population else {}
    target = problem.target(pool=problem.data, **reference)
    mean, covariance = grid_moments(problem, target, points=101)
    deviation = covariance.diagonal().sqrt()
    axis = torch.linspace(-8, 8, 81, dtype=torch.float64)  # in standard deviations: a coarse sum is exact to e^(−2 π²/step²)
    both = mean + torch.cartesian_prod(axis, axis) * deviation
    params = {"weight": both[:, :1, None], "bias": both[:, 1:]}
    values = problem.n * vmap(lambda each: target(each, problem.data)[0], chunk_size=10_000)(params).detach()
    cell = float(axis[1] - axis[0]) ** 2 * float(deviation.prod())
    return problem, target, mean, deviation, float(torch.logsumexp(values, 0)) + math.log(cell)


def test_a_search_that_ends_far_below_the_peak_is_told_of() -> None:
    problem = Logistic(1)
    with pytest.warns(UserWarning, match=r"nats below its peak where the search ended.+Raise `steps`"):
        found = laplace(problem.target(), problem.data, steps=2, batch_size=50)
    assert found.record["decrement"] > 0.5 * len(found.distribution.mean)
