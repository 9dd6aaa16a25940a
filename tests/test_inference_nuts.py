"""The no-U-turn sampler, against grids and closed forms."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from logistic import Logistic, grid_moments
from members import SEED, assert_refused, generator, unchecked_types
from torch import Tensor, nn

import rightloss as rl
from rightloss.inference import Diverged, LogPosterior, gaussian_prior, log_posterior
from rightloss.inference.diagnostics import effective_sample_size
from rightloss.inference.distributions import DenseGaussian, DiagonalGaussian, Layout, Particles
from rightloss.inference.nuts import _potential, _space, nuts
from rightloss.inference.posterior import Posterior, posterior_of

nuts_file = sys.modules["rightloss.inference.nuts"]  # the name in the package is that of the function

PREVALENCE = rl.Prevalence.binary(0.05)
PROBLEM = Logistic(1)
SHORT: dict[str, Any] = {"draws": 4, "warmup": 20, "chains": 1}


def by_chain(posterior: Posterior) -> Tensor:
    assert isinstance(posterior.distribution, Particles)
    return posterior.distribution.by_chain


def assert_moments(posterior: Posterior, mean: Tensor, covariance: Tensor) -> None:
    """Within 4 standard errors of the mean and of second moments, whose deviations are taken to be those of a Gaussian."""
    away = posterior.distribution.draws - mean  # type: ignore[attr-defined]
    variance = covariance.diagonal()
    deviations = torch.cat([variance.sqrt(), (torch.outer(variance, variance) + covariance.square()).sqrt().flatten()])
    values = torch.cat([away, (away[:, :, None] * away[:, None]).flatten(1)], 1)
    worth = effective_sample_size(values[None]).clamp_max(len(values))
    assert float(worth.min()) > 30
    expected = torch.cat([torch.zeros_like(mean), covariance.flatten()])
    scores = (values.mean(0) - expected) / (deviations / worth.sqrt())
    assert bool((scores.abs() < 4).all()), scores.tolist()


def sampled(target: LogPosterior, data: tuple[Tensor, Tensor], seed: int = SEED, **options: Any) -> Posterior:
    """Without type checks, which take longer than the sampler."""
    with unchecked_types():
        return nuts(target, data, seed=seed, **options)


def mlp() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Dropout(0.5), nn.Linear(3, 2))


def balanced(n: int = 60) -> tuple[Tensor, Tensor]:
    y = torch.arange(n) % 2
    return torch.randn(n, 2, generator=generator(1)) + 0.5 * y[:, None], y


@pytest.mark.long
def test_a_gaussian_is_found_with_its_mean_and_covariance() -> None:
    mean, factor = torch.tensor([2.0, -1.0, 0.5]).double(), torch.tensor([[1.5, 0, 0], [0.6, 0.5, 0], [0, 0.1, 0.4]]).double()
    precision = torch.linalg.inv(factor @ factor.T)

    def prior(params: Mapping[str, Tensor]) -> Tensor:
        away = params["weight"].flatten() - mean
        return -0.5 * away @ precision @ away

    model = nn.Linear(3, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    silent = log_posterior(model, PREVALENCE, rl.Bernoulli(), prior=prior)
    nothing = torch.zeros(20, 3).double(), torch.arange(20) % 2  # inputs that tell nothing of the weights
    found = sampled(silent, nothing, draws=300, warmup=100, chains=1)
    assert_moments(found, mean, factor @ factor.T)
    assert found.record["divergences"] == 0


@pytest.mark.long
def test_two_weights_agree_with_a_grid() -> None:
    target = PROBLEM.target(pool=PROBLEM.data, reference=PREVALENCE.population)
    mean, covariance = grid_moments(PROBLEM, target, points=101)
    start = posterior_of(target, DenseGaussian(mean, 1.5 * torch.linalg.cholesky(covariance)))
    found = sampled(target, PROBLEM.data, draws=200, warmup=60, chains=1, start=start)
    assert_moments(found, mean, covariance)
    assert found.predict(PROBLEM.data[0]).log_probs.shape == (200, 2)


@pytest.mark.parametrize("reference", [None, PREVALENCE.population], ids=["r = ρ", "r = π"])
def test_without_a_pool_the_training_data_are_the_pool(reference: Any) -> None:
    over_data = PROBLEM.target(pool=PROBLEM.data, reference=reference)
    at = torch.randn(2, dtype=torch.float64, generator=generator(2)) - torch.tensor([0.0, 3.0])
    expected = slope_of(over_data, PROBLEM.data, at)
    for marginal in (rl.RunningMarginal(), rl.BatchMarginal()):
        for _ in range(2):  # no state moves
            found = slope_of(PROBLEM.target(marginal=marginal, reference=reference), PROBLEM.data, at)
            torch.testing.assert_close(found, expected)


def slope_of(target: LogPosterior, data: tuple[Tensor, Tensor], at: Tensor) -> Tensor:
    slope: Tensor = torch.autograd.functional.jacobian(_potential(target, data, Layout.of(target.parameters())), at)
    return slope


@pytest.mark.long
def test_the_marginal_of_a_density_is_over_all_data() -> None:
    """A model that tells nothing of y gains nothing, whatever its bias: its posterior is its prior."""
    prevalence = rl.ContinuousPrevalence(torch.distributions.Normal(0.0, 1.0), evidence=0.0)
    target = log_posterior(nn.Linear(1, 1).double(), prevalence, rl.Gaussian(), prior=gaussian_prior(0.3), num_data=20)
    data = torch.zeros(20, 1).double(), torch.randn(20, generator=generator(3)).double()
    at = torch.randn(3, dtype=torch.float64, generator=generator(4))
    torch.testing.assert_close(slope_of(target, data, at), at / 0.3**2)
    assert by_chain(nuts(target, data, **SHORT)).shape == (1, 4, 3)


@pytest.mark.long
def test_random_numbers_of_other_libraries_are_unchanged_and_draws_have_the_weights_dtype() -> None:
    import pyro

    model = mlp().train()
    model[0].requires_grad_(False)
    np.random.seed(SEED)
    random.seed(SEED)
    found = sampled(log_posterior(model, PREVALENCE), balanced(), **SHORT)  # without type checks, which draw numbers
    after = np.random.random(), random.random()
    np.random.seed(SEED)
    random.seed(SEED)
    assert after == (np.random.random(), random.random())
    assert not dict(pyro.get_param_store().items())
    assert not any(name.startswith("0.") for name in found.layout.names)
    assert by_chain(found).dtype == torch.float32
    torch.testing.assert_close(found.model.state_dict()["0.weight"], model[0].weight)


def test_a_start_may_be_weights_or_a_posterior_even_one_without_spread() -> None:
    target = PROBLEM.target()
    at, spread = torch.tensor([5.0, -3.0]).double(), torch.tensor([0.1, 0.3]).double()
    starts: list[Any] = [Layout.of(target.parameters()).unflatten(at), posterior_of(target, Particles(at[None]))]
    for start in (*starts, posterior_of(target, Particles(at + torch.tensor([[0.0], [1.0]])))):
        space = _space(target, Layout.of(target.parameters()), start, None)
        assert space.factor is None, "two equal rows, or one, tell no covariance"
    space = _space(target, Layout.of(target.parameters()), posterior_of(target, DiagonalGaussian(at, spread)), None)
    assert torch.equal(space.origin, at)
    torch.testing.assert_close(space.weights(torch.ones(2).double()), at + spread)
    assert space.spread == 1


@pytest.mark.long
@unchecked_types()
def test_features_on_any_scale_and_redundant_weights_need_no_long_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two logits share a direction that only the wide prior limits, and an age of 55 ± 12 is confounded with the intercept."""
    (x, y), calls = PROBLEM.data, list[int]()
    one_by_one = nuts_file._potential

    def counted(*args: Any) -> Callable[[Tensor], Tensor]:
        potential = one_by_one(*args)
        return lambda vector: (calls.append(1), potential(vector))[1]  # type: ignore[func-returns-value]

    monkeypatch.setattr(nuts_file, "_potential", counted)
    target = log_posterior(nn.Linear(1, 2).double(), rl.Prevalence.beta(2.5, 48.5), prior=gaussian_prior(10.0))
    nuts(target, (55 + 12 * x, y), draws=20, warmup=40, chains=1)
    assert len(calls) < 60 * 20


def test_what_cannot_be_sampled_is_refused() -> None:
    target, data = PROBLEM.target(), PROBLEM.data
    wide = nn.Linear(600, 2)
    many = torch.zeros(10, 600), torch.arange(10) % 2
    assert_refused(lambda: nuts(log_posterior(wide, PREVALENCE), many), "1202.*sghmc")
    for option in ({"draws": 3}, {"warmup": 0}, {"chains": 0}, {"max_tree_depth": 0}, {"seed": 0.5}):
        assert_refused(partial(nuts, target, data, **option), next(iter(option)))
    for accept in (0.0, 1.0):
        assert_refused(partial(nuts, target, data, target_accept=accept), "target_accept")
    other = Logistic(2).target()
    starts: list[Any] = [{"weight": torch.zeros(1, 1)}, 3, posterior_of(other, Particles(torch.zeros(1, 3).double()))]
    for start in starts:
        assert_refused(partial(nuts, target, data, start=start), "start")


def test_a_start_without_a_finite_density_says_so() -> None:
    target = log_posterior(PROBLEM.model(), PREVALENCE, rl.Bernoulli(), prior=lambda params: params["bias"].sum().log())
    with pytest.raises(Diverged, match="finite"):
        nuts(target, PROBLEM.data, **SHORT)


def test_without_pyro_an_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyro", None)
    with pytest.raises(ImportError, match=r"\.\[bayes\]"):
        nuts(PROBLEM.target(), PROBLEM.data, **SHORT)
