"""The distributions of weights: draws have the moments that are said of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from members import assert_mean_is, assert_refused, generator
from posterior_fixtures import DISTRIBUTIONS, normal
from torch import Tensor

from rightloss.inference.distributions import (
    DenseGaussian,
    DiagonalGaussian,
    Distribution,
    LowRankGaussian,
    Particles,
    saved_distribution,
)

each_kind = pytest.mark.parametrize("kind", DISTRIBUTIONS)
each_gaussian = pytest.mark.parametrize("kind", [kind for kind in DISTRIBUTIONS if "Gaussian" in kind])
D = 4


@pytest.mark.long
@each_gaussian
def test_draws_have_the_stated_mean_and_covariance(kind: str) -> None:
    distribution = DISTRIBUTIONS[kind](D)
    draws = distribution.sample(20_000, generator(1))
    away = draws - distribution.mean
    assert_mean_is(draws, distribution.mean, z=5)
    assert_mean_is(away[:, :, None] * away[:, None], distribution.covariance(), z=5)
    scaled = away @ torch.linalg.inv(torch.linalg.cholesky(distribution.covariance())).T
    assert_mean_is(scaled**4, 3.0, z=5)  # a Gaussian's kurtosis


@each_kind
def test_the_standard_deviation_is_that_of_the_covariance(kind: str) -> None:
    distribution = DISTRIBUTIONS[kind](D)
    torch.testing.assert_close(distribution.standard_deviation.square(), distribution.covariance().diagonal())


@each_kind
def test_draws_depend_on_the_generator_alone(kind: str) -> None:
    distribution, before = DISTRIBUTIONS[kind](D), torch.get_rng_state()
    draws = distribution.sample(5, generator(1))
    assert torch.equal(draws, distribution.sample(5, generator(1)))
    assert torch.equal(torch.get_rng_state(), before)
    assert isinstance(distribution, Distribution)


@each_gaussian
@pytest.mark.parametrize("d", [1, 4, 40])
def test_two_draws_and_three_are_the_same_five(kind: str, d: int) -> None:
    distribution, stream = DISTRIBUTIONS[kind](d), generator(1)
    parts = torch.cat([distribution.sample(2, stream), distribution.sample(3, stream)])
    # a product of matrices may round by their number of rows
    torch.testing.assert_close(parts, distribution.sample(5, generator(1)), rtol=1e-12, atol=1e-12)


class TestParticles:
    def test_moments_are_those_of_the_sample(self) -> None:
        draws = normal(7, D)
        found = Particles(draws)
        torch.testing.assert_close(found.mean, draws.mean(0))
        np.testing.assert_allclose(found.covariance().numpy(), np.cov(draws.numpy().T), rtol=1e-12)

    def test_a_point_has_no_spread(self) -> None:
        point = Particles(normal(1, D))
        assert torch.equal(point.mean, point.draws[0])
        assert not point.standard_deviation.any()
        assert not point.covariance().any()
        assert torch.equal(point.sample(3), point.draws.expand(3, D))

    @pytest.mark.parametrize("n", [1, 4, 9])
    def test_particles_are_drawn_without_replacement_while_there_are_enough(self, n: int) -> None:
        draws = torch.arange(9.0)[:, None]
        found = Particles(draws).sample(n, generator(1)).flatten()
        assert len(found.unique()) == len(found) == n

    @pytest.mark.long
    def test_particles_are_drawn_equally_often(self) -> None:
        few = torch.stack([Particles(torch.eye(9)).sample(2, generator(seed)).sum(0) for seed in range(2000)])
        assert_mean_is(few, 2 / 9, z=5)
        assert_mean_is(Particles(torch.eye(9)).sample(20_000, generator(1)), 1 / 9, z=5)

    def test_chains_are_stored_one_after_the_other(self) -> None:
        draws = torch.arange(12.0).reshape(6, 2)
        assert Particles(draws, chains=2).by_chain[1].flatten().tolist() == [6, 7, 8, 9, 10, 11]


@each_kind
def test_a_distribution_comes_back_from_its_tensors(kind: str) -> None:
    given = DISTRIBUTIONS[kind](D)
    found = saved_distribution(type(given).__name__, given.tensors())
    assert type(found) is type(given)
    assert torch.equal(found.covariance(), given.covariance())
    assert torch.equal(found.sample(5, generator(1)), given.sample(5, generator(1)))
    assert [*found.tensors()] == [*given.tensors()]


ONE = torch.ones(2)
NOT_FINITE = torch.tensor([1.0, float("nan")])
TENSORS: dict[str, Tensor] = {"mean": ONE, "factor": torch.eye(2)}
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "draws of one dimension": (lambda: Particles(ONE), r"`draws` .* 2 dimension.* shape \(2,\): flatten"),
    "no draws": (lambda: Particles(torch.empty(0, 2)), "but got 0 in all"),
    "chains of unequal length": (lambda: Particles(torch.eye(3), 2), r"from each of 2 chain\(s\), but got 3 in all"),
    "a mean that is not finite": (lambda: DiagonalGaussian(NOT_FINITE, ONE), "`mean` to be finite"),
    "whole numbers": (lambda: DiagonalGaussian(ONE.long(), ONE), r"`mean` .* but got torch\.int64"),
    "a deviation of another length": (lambda: DiagonalGaussian(ONE, torch.ones(3)), r"of shape \(2,\), but got \(3,\)"),
    "logarithms of deviations": (lambda: DiagonalGaussian(ONE, -ONE), "some are negative: were these logarithms"),
    "a factor of another size": (lambda: DenseGaussian(ONE, torch.eye(3)), r"`factor` of shape \(2, 2\), but got \(3, 3\)"),
    "a low factor of another size": (lambda: LowRankGaussian(ONE, torch.ones(3, 1), ONE), r"`factor` of shape \(2, 1\)"),
    "an unknown name": (lambda: saved_distribution("Cauchy", TENSORS), "one of Particles, .* but got 'Cauchy'"),
    "no name": (lambda: saved_distribution(["Particles"], TENSORS), "one of Particles"),
    "another's tensors": (lambda: saved_distribution("LowRankGaussian", TENSORS), r"with \['factor', 'mean'\]: save"),
    "many numbers of chains": (lambda: saved_distribution("Particles", {"draws": torch.eye(2), "chains": ONE}), "one of"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_a_remedy(what: str) -> None:
    assert_refused(*BAD[what])
