"""The distributions of weights: draws have the moments that are said of them; weights by name and as vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from members import assert_mean_is, assert_refused, generator
from posterior_fixtures import DISTRIBUTIONS, normal
from torch import Tensor

from rightloss.inference import Diverged
from rightloss.inference.distributions import (
    DenseGaussian,
    DiagonalGaussian,
    Distribution,
    Layout,
    LowRankGaussian,
    Particles,
    check_finite,
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


def test_the_independent_part_of_a_low_rank_gaussian_is_as_wide_as_it_says() -> None:
    own = LowRankGaussian(torch.zeros(2), torch.zeros(2, 1), torch.tensor([0.01, 100.0]))
    assert_mean_is((own.sample(2000, generator(1)) / own.own_deviation).square(), 1.0)


@each_kind
def test_a_distribution_is_told_by_its_moments_its_generator_and_its_tensors(kind: str) -> None:
    distribution, before = DISTRIBUTIONS[kind](D), torch.get_rng_state()
    assert isinstance(distribution, Distribution)
    torch.testing.assert_close(distribution.standard_deviation.square(), distribution.covariance().diagonal())
    draws = distribution.sample(5, generator(1))
    assert torch.equal(draws, distribution.sample(5, generator(1)))
    assert torch.equal(torch.get_rng_state(), before)
    found = saved_distribution(type(distribution).__name__, distribution.tensors())
    assert type(found) is type(distribution)
    assert torch.equal(found.sample(5, generator(1)), draws)
    torch.testing.assert_close(found.tensors(), distribution.tensors(), rtol=0, atol=0)


@each_gaussian
@pytest.mark.parametrize("d", [4, 40])
def test_two_draws_and_three_are_the_same_five(kind: str, d: int) -> None:
    distribution, stream = DISTRIBUTIONS[kind](d), generator(1)
    parts = torch.cat([distribution.sample(2, stream), distribution.sample(3, stream)])
    # a product of matrices may round by their number of rows
    torch.testing.assert_close(parts, distribution.sample(5, generator(1)), rtol=1e-12, atol=1e-12)


class TestParticles:
    def test_moments_are_those_of_the_sample_and_chains_are_stored_one_after_the_other(self) -> None:
        for n in (2, 6):
            draws = normal(n, D)
            found = Particles(draws, chains=2)
            torch.testing.assert_close(found.mean, draws.mean(0))
            np.testing.assert_allclose(found.covariance().numpy(), np.cov(draws.numpy().T), rtol=1e-12)
            assert torch.equal(found.by_chain[1], draws[n // 2 :])

    def test_a_point_has_no_spread(self) -> None:
        point = Particles(normal(1, D))
        assert torch.equal(point.mean, point.draws[0])
        assert not point.standard_deviation.any()
        assert not point.covariance().any()
        assert torch.equal(point.sample(3), point.draws.expand(3, D))

    @pytest.mark.long
    def test_particles_are_drawn_equally_often_and_without_replacement_while_there_are_enough(self) -> None:
        for n in (1, 4, 9):
            found = Particles(torch.arange(9.0)[:, None]).sample(n, generator(1)).flatten()
            assert len(found.unique()) == len(found) == n
        few = torch.stack([Particles(torch.eye(9)).sample(2, generator(seed)).sum(0) for seed in range(2000)])
        assert_mean_is(few, 2 / 9, z=5)
        assert_mean_is(Particles(torch.eye(9)).sample(20_000, generator(1)), 1 / 9, z=5)


ONE = torch.ones(2)
NOT_FINITE = torch.tensor([1.0, float("nan")])
TENSORS: dict[str, Tensor] = {"mean": ONE, "factor": torch.eye(2)}
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "draws of one dimension": (lambda: Particles(ONE), r"2 dimension.* shape \(2,\): flatten"),
    "no draws": (lambda: Particles(torch.empty(0, 2)), "but got 0 in all"),
    "chains of unequal length": (lambda: Particles(torch.eye(3), 2), r"from each of 2 chain\(s\)"),
    "a mean that is not finite": (lambda: DiagonalGaussian(NOT_FINITE, ONE), "`mean` to be finite"),
    "whole numbers": (lambda: DiagonalGaussian(ONE.long(), ONE), r"but got torch\.int64"),
    "a deviation of another length": (lambda: DiagonalGaussian(ONE, torch.ones(3)), r"but got \(3,\)"),
    "logarithms of deviations": (lambda: DiagonalGaussian(ONE, -ONE), "were these logarithms"),
    "a factor of another size": (lambda: DenseGaussian(ONE, torch.eye(3)), r"`factor` of shape \(2, 2\)"),
    "a low factor of another size": (lambda: LowRankGaussian(ONE, torch.ones(3, 1), ONE), r"`factor` of shape \(2, 1\)"),
    "an unknown name": (lambda: saved_distribution("Cauchy", TENSORS), "one of Particles, .* but got 'Cauchy'"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_a_remedy(what: str) -> None:
    assert_refused(*BAD[what])


@pytest.mark.parametrize("lead", [(), (2, 3)])
def test_weights_by_name_go_into_a_vector_and_back(lead: tuple[int, ...]) -> None:
    shapes: dict[str, tuple[int, ...]] = {"a": (2, 3), "b": (), "c": (0,), "d.e": (4,)}
    many = {name: torch.randn(*lead, *shape, 1, generator=generator(1))[..., 0] for name, shape in shapes.items()}
    layout = Layout.of({name: torch.zeros(shape) for name, shape in shapes.items()})
    assert layout == Layout(tuple(shapes), tuple(shapes.values()))
    vector = layout.flatten({"more": torch.ones(3), **dict(reversed(many.items()))})
    assert vector.shape == (*lead, 11)
    assert layout.size == 11
    torch.testing.assert_close(vector[..., :6].reshape(*lead, 2, 3), many["a"])
    torch.testing.assert_close(vector[..., 6], many["b"])
    torch.testing.assert_close(layout.unflatten(vector), many)


def test_a_step_that_is_not_finite_stops_with_what_was_good() -> None:
    made: list[str] = []
    check_finite(torch.tensor([1.0, -1e30]), 3, lambda: made.append("made"))
    assert not made
    for bad in (torch.nan, -torch.inf):
        with pytest.raises(Diverged, match=r"Expected the weights to be finite, but step 7 gave .+: lower `lr`") as caught:
            check_finite(torch.tensor([[0.0, bad]]), 7, lambda: "the last good state", "the weights")
        assert (caught.value.step, caught.value.posterior) == (7, "the last good state")
