"""R̂ and effective sample sizes against closed forms and chains that are known to be bad; Gaussians against a grid."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from logistic import Logistic
from members import assert_refused, generator
from scipy.stats import norm, rankdata
from torch import Tensor

from rightloss import Bernoulli, Prevalence, inference
from rightloss.inference.diagnostics import effective_sample_size, judge_chains, judge_gaussian, r_hat
from rightloss.inference.posterior import posterior_of


def independent(chains: int = 4, n: int = 500, d: int = 3, seed: int = 0) -> Tensor:
    """Standard normal draws."""
    return torch.randn(chains, n, d, dtype=torch.float64, generator=generator(seed))


def autoregressive(phi: float, chains: int = 4, n: int = 4000, d: int = 16) -> Tensor:
    """x_t = φ x_{t−1} + noise, stationary from the start."""
    noise = independent(chains, n, d, seed=1)
    draws = [noise[:, 0] / math.sqrt(1 - phi**2)]
    for step in range(1, n):
        draws.append(phi * draws[-1] + noise[:, step])
    return torch.stack(draws, 1)


@pytest.mark.long
@pytest.mark.parametrize("phi", [-0.3, 0.9])
def test_an_autoregressive_chain_has_its_effective_sample_size(phi: float) -> None:
    draws = autoregressive(phi)
    expected = 4 * 4000 * (1 - phi) / (1 + phi)
    # The estimate's own spread is about √(lags/n); the mean of 16 of them has a quarter of it.
    assert float(effective_sample_size(draws).mean()) == pytest.approx(expected, rel=0.05)


@pytest.mark.long
def test_the_sizes_tell_the_errors_of_the_mean_and_of_a_quantile() -> None:
    draws, level = autoregressive(0.6, chains=2, n=500, d=1000), 0.05
    told, found = draws.var((0, 1)) / effective_sample_size(draws), draws.mean((0, 1)).square()
    assert float(told.mean()) == pytest.approx(float(found.mean()), rel=4 * math.sqrt(2 / 1000) + 0.03)
    below = (draws < norm.ppf(level) / math.sqrt(1 - 0.36)).double().mean((0, 1))
    told = level * (1 - level) / effective_sample_size(draws, tail=True)
    assert float(told.mean()) == pytest.approx(float((below - level).square().mean()), rel=0.25)


def disagreeing(how: str) -> Tensor:
    if how == "drifting":
        return independent(chains=1) + torch.linspace(0, 2, 500, dtype=torch.float64)[:, None]
    draws = independent()
    draws[0] = {"shifted": draws[0] + 2, "stuck": torch.full_like(draws[0], 0.5), "wide": 3 * draws[0]}[how]
    return draws


def test_chains_that_disagree_have_a_large_r_hat_and_are_worth_few_draws() -> None:
    assert float(r_hat(independent().requires_grad_()).max()) < 1.02
    for how in ("shifted", "stuck", "wide", "drifting"):
        assert float(r_hat(disagreeing(how)).min()) > 1.1
        assert how == "wide" or float(effective_sample_size(disagreeing(how)).max()) < 300  # of 2000, or 500


def test_r_hat_is_that_of_normal_scores_of_ranks_where_draws_repeat() -> None:
    draws = torch.randint(0, 6, (2, 40, 1), generator=generator(2)).double()
    halves = draws[:, :, 0].reshape(4, 20).numpy()

    def by_hand(values: object) -> float:
        z = norm.ppf((rankdata(values).reshape(4, 20) - 0.375) / 80.25)
        within, between = z.var(1, ddof=1).mean(), 20 * z.mean(1).var(ddof=1)
        return float(((19 / 20 * within + between / 20) / within) ** 0.5)

    median = float(draws.flatten().median())
    assert float(r_hat(draws)) == pytest.approx(max(by_hand(halves), by_hand(abs(halves - median))))


def test_a_number_that_never_moves_has_r_hat_infinity_and_sample_size_0() -> None:
    draws = torch.cat([independent(d=1), torch.ones(4, 500, 1, dtype=torch.float64)], 2)
    assert r_hat(draws)[1] == math.inf
    assert float(r_hat(independent(chains=1, n=7, d=1))) == math.inf, "nothing to compare"
    assert effective_sample_size(draws)[1] == effective_sample_size(draws, tail=True)[1] == 0
    assert bool(torch.isfinite(effective_sample_size(draws)).all())


def test_wrong_draws_are_refused() -> None:
    assert_refused(lambda: r_hat(torch.zeros(4, 100)), "shape")
    assert_refused(lambda: effective_sample_size(torch.zeros(4, 3, 2)), "at least 4")
    assert_refused(lambda: r_hat(torch.full((2, 10, 1), torch.nan)), "finite")


def _logistic_target(evidence: float) -> tuple[inference.LogPosterior, Logistic]:
    """The mix of reference is π, and the prior has the scale 3. Without evidence the intercept's posterior is skewed."""
    problem = Logistic(1)
    model, prevalence = problem.model(), Prevalence.binary(problem.population, evidence=evidence)
    options: dict[str, Any] = {"pool": problem.data, "reference": prevalence.population}
    prior = inference.gaussian_prior(3.0, {"bias": model.bias})
    return inference.log_posterior(model, prevalence, Bernoulli(), prior=prior, num_data=problem.n, **options), problem


METHODS: dict[str, Callable[..., inference.Posterior]] = {
    "EP": inference.expectation_propagation,
    "VI": partial(inference.variational, batch_size=None, steps=400, lr=0.05),
}


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_a_gaussian_that_is_too_narrow_says_so_and_a_right_one_does_not(method: str) -> None:
    """On a grid the intercept's standard deviation is 1.874 without evidence, and 0.3407 with it."""
    for evidence, exact, wrong in ((0.0, 1.874, True), (1.0, 0.3407, False)):
        target, problem = _logistic_target(evidence)
        with warnings.catch_warnings(record=True) as issued:
            warnings.simplefilter("always")
            found = METHODS[method](target, problem.data)
        truth = exact / float(found.distribution.standard_deviation[1])
        assert (abs(math.log(truth)) > 0.15) is wrong
        assert [str(each.message) for each in issued if "of `bias` is 0." in str(each.message)] != [] or not wrong
        assert wrong or not issued
        assert found.record["sd_ratio"] == pytest.approx(truth, rel=0.15)


def test_predictions_that_round_to_1_do_not_count_against_the_chains() -> None:
    problem = Logistic(1)
    draws = independent(1, 400, 2)[0] / 10 + torch.tensor([1.0, -3.0])
    posterior = posterior_of(problem.target(), inference.Particles(draws, chains=4))
    x = torch.cat([problem.data[0][:5], torch.tensor([[1e6]])])
    assert bool((torch.cat([table[:, 5, 1] for table in posterior.tables(x)]) == 0).all()), "a probability of 1 in every draw"
    judge_chains(posterior, x)
    assert posterior.record["predictions"]["r_hat"] < 1.05
    assert posterior.record["predictions"]["effective_sample_size"] > 100


def test_chains_are_compared_by_rows_from_all_of_the_data() -> None:
    draws = independent(1, 400, 2)[0] / 10
    draws[:100, 0] += 3  # the slope of the first chain
    posterior = posterior_of(Logistic(1).target(), inference.Particles(draws, chains=4))
    x = torch.zeros(640, 1).double()
    x[-64:] = 1
    with pytest.warns(UserWarning, match="Chains disagree"):
        judge_chains(posterior, x)


def test_draws_from_elsewhere_are_said_to_be_improbable() -> None:
    target, problem = _logistic_target(1.0)
    far = inference.DenseGaussian(torch.tensor([9.0, 9.0]).double(), 0.1 * torch.eye(2).double())
    with pytest.warns(UserWarning, match="hardly any"):
        judge_gaussian(posterior_of(target, far), target, problem.data)
