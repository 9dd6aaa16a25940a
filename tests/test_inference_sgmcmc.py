"""SGHMC and SGLD against closed forms, and against a posterior on a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from logistic import Logistic, grid_moments
from members import SEED, assert_mean_is, assert_refused, generator, unchecked_types
from oracles import posteriors
from torch import Tensor, nn

import rightloss as rl
from rightloss.inference import Diverged, LogPosterior, gaussian_prior, log_posterior
from rightloss.inference.distributions import Layout, Particles
from rightloss.inference.ensemble import ensemble
from rightloss.inference.map import map_estimate
from rightloss.inference.minibatches import Minibatches
from rightloss.inference.posterior import Posterior
from rightloss.inference.sgmcmc import (
    ChainGradients,
    ChainOptions,
    Overdamped,
    Underdamped,
    _late,
    fitted_scale,
    gradient_noise,
    heat,
    sghmc,
    sgld,
    steady_lr,
    steepest,
)
from rightloss.inference.weight_sets import CarriedMarginal, marginal_of_sets
from rightloss.marginals import MinibatchEstimate
from rightloss.tensors import in_mode

SD = {"weight": 0.5, "bias": 4.0}
NOTHING = torch.zeros(2, 2, dtype=torch.float64), torch.arange(2)


def gaussian_target() -> LogPosterior:
    """The posterior is the prior, N(0, SD²), since the data say nothing: all inputs are 0."""

    class Blind(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = (nn.Parameter(torch.zeros(6, dtype=torch.float64)) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return x * (self.weight + self.bias).sum()

    return log_posterior(Blind(), rl.Prevalence.binary(0.5), prior=gaussian_prior(SD), loss=rl.LogLikelihoodLoss)


def prior_draws(chains: int, seed: int) -> dict[str, Tensor]:
    stream = generator(seed)
    return {name: sd * torch.randn(chains, 6, dtype=torch.float64, generator=stream) for name, sd in SD.items()}


def last_of_each(method: Callable[..., Posterior], lr: float, steps: int, **options: Any) -> Tensor:
    """The weights divided by their standard deviations, after so many steps of many chains that start in the posterior."""
    start = prior_draws(1000, 1)
    fixed = {"chains": 1000, "warmup": 0, "thin": steps, "scale": 1.0, "batch_size": None}
    with unchecked_types():
        found = method(gaussian_target(), NOTHING, lr=lr, steps=steps, start=start, seed=SEED, **fixed, **options)
    named = found.layout.unflatten(found.distribution.sample(1000))
    return torch.cat([named[name] / sd for name, sd in SD.items()], 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("lr", "steps", "options"), [(0.9, 60, {}), (0.5, 60, {"friction": 5.0}), (0.5, 100, {"temperature": 0.3})]
)
def test_sghmc_has_the_variance_of_a_gaussian_at_any_stable_step_size_and_temperature(
    lr: float, steps: int, options: dict[str, float]
) -> None:
    # The narrow weights, of curvature 4, are stable until lr = 1.
    assert_mean_is(last_of_each(sghmc, lr, steps, **options).square(), options.get("temperature", 1.0))


@pytest.mark.long
def test_sgld_is_too_wide_by_what_theory_says() -> None:
    narrow = last_of_each(sgld, 0.2, 60)[:, :6]
    assert_mean_is(narrow.square(), 1 / (1 - 0.2 * SD["weight"] ** -2 / 2))


@pytest.mark.long
@pytest.mark.parametrize(("examples", "size"), [(5, 1), (5, 3), (7, 2)])
def test_minibatches_that_share_an_epoch_heat_by_the_formula(examples: int, size: int) -> None:
    torch.manual_seed(SEED)
    chains, lr, steps = 4000, 0.3, examples // size
    states = Underdamped(1.0)
    states.begin(torch.zeros(chains, 1), 0.0)
    errors = torch.linspace(-1, 1, examples)
    late = []
    for _ in range(60 // steps + 2):
        orders = torch.rand(chains, examples).argsort(1)[:, : steps * size].unflatten(1, (steps, size))
        for step in range(steps):
            states.step(-states.position + errors[orders[:, step]].mean(1, keepdim=True), lr, torch.zeros(1))
            late.append(states.position[:, 0])
    variance = errors.var() / size
    found = torch.stack(late[-steps:], 1).square().mean(1)
    assert_mean_is(found, float(heat(variance[None, None], states.response(lr), [examples / size])))


def test_a_step_size_is_halved_until_minibatches_heat_by_a_quarter() -> None:
    noise = torch.full((1, 10), 100.0)
    for answer in (Overdamped().response, Underdamped(1.0).response):
        lr = steady_lr(noise, answer, [None], 0.5, 1.0)
        assert float(heat(noise, answer(lr), [None]).max()) <= 0.25 < float(heat(noise, answer(2 * lr), [None]).max())
        assert steady_lr(torch.zeros(1, 10), answer, [7.0], 0.5, 1.0) == 0.5


def test_the_scale_of_independent_weights_is_their_standard_deviation() -> None:
    torch.manual_seed(SEED)
    target = gaussian_target().with_data(2)
    gradients = ChainGradients(target, Minibatches(NOTHING, None), 400)
    scale = torch.full((12,), 1e-3, dtype=torch.float64)
    for _ in range(2):
        scale = fitted_scale(gradients, torch.zeros(400, 12, dtype=torch.float64), scale, 4)
    expected = torch.cat([torch.full((6,), sd, dtype=torch.float64) for sd in SD.values()])
    torch.testing.assert_close(scale, expected, rtol=0.06, atol=0)


@pytest.mark.long
def test_the_noise_of_gradients_is_their_variance_over_minibatches() -> None:
    problem = Logistic(1)
    target = problem.target()
    gradients = ChainGradients(target, Minibatches(problem.data, 50, generator(3)), 64)
    weights = Layout.of(target.parameters()).flatten(target.parameters()).add(0.3).expand(64, 2)
    found = gradient_noise(gradients, weights, torch.ones(2, dtype=torch.float64), pairs=16)
    x, y = problem.data
    by_example = gradients.at(weights[:1].expand(200, 2), (x[:, None], y[:, None]))[0]
    torch.testing.assert_close(found[0], by_example.var(0) / 50, rtol=0.15, atol=0)


def test_the_largest_curvature_is_that_of_the_narrowest_direction() -> None:
    torch.manual_seed(SEED)
    gradients = ChainGradients(gaussian_target().with_data(2), Minibatches(NOTHING, None), 3)
    ones = torch.ones(12, dtype=torch.float64)
    assert steepest(gradients, torch.zeros(3, 12, dtype=torch.float64), ones) == pytest.approx(SD["weight"] ** -2)


@pytest.mark.long
def test_a_carried_average_follows_the_weights() -> None:
    problem = Logistic(1)
    target = problem.target(marginal=rl.RunningMarginal(decay=0.99))
    gradients, plain = (ChainGradients(target, Minibatches(problem.data, None), 2) for _ in range(2))
    plain.marginal = marginal_of_sets(target)
    way = torch.linspace(0, -3, 30, dtype=torch.float64)[:, None, None] * torch.ones(2, 2, dtype=torch.float64)
    for weights in way:
        for each in (gradients, plain):
            each.moved(weights)
    exact = torch.stack([target.log_marginal(gradients.layout.unflatten(each), problem.data) for each in way[-1]])
    lagging = plain.marginal.value(MinibatchEstimate(exact, 2)) if plain.marginal is not None else exact
    assert isinstance(gradients.marginal, CarriedMarginal)
    torch.testing.assert_close(gradients.marginal.log_average, exact)
    assert float((lagging - exact).abs().max()) > 0.3


@pytest.mark.long
def test_sghmc_finds_the_posterior_of_a_logistic_regression_by_minibatches() -> None:
    problem = Logistic(1)
    target = problem.target()
    start = map_estimate(target, problem.data, steps=50, batch_size=None)
    options: dict[str, Any] = {"chains": 40, "steps": 330, "warmup": 80, "thin": 3, "start": start}
    with unchecked_types():  # thousands of gradients
        found = sghmc(target, problem.data, batch_size=50, seed=SEED, **options)
    assert found.record["effective_sample_size"] > 1000
    mean, covariance = grid_moments(problem, target, points=101)
    sd, distribution = covariance.diagonal().sqrt(), found.distribution
    assert float(((distribution.mean - mean) / sd).abs().max()) < 0.15
    assert float((distribution.standard_deviation / sd - 1).abs().max()) < 0.1


@pytest.mark.long
@pytest.mark.parametrize("method", [sghmc, sgld])
@unchecked_types()
def test_one_chain_of_a_net_with_moving_averages_runs(method: Callable[..., Posterior]) -> None:
    net = nn.Sequential(nn.Linear(11, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
    y = torch.arange(64) % 2
    x = torch.randn(64, 11, generator=generator(4)) + y[:, None]
    target = log_posterior(net, rl.Prevalence.binary(0.1))
    start = None if method is sghmc else map_estimate(target, (x, y), steps=20, batch_size=32)
    found = method(target, (x, y), chains=1, steps=60, warmup=16, thin=20, batch_size=32, start=start)
    assert isinstance(found.distribution, Particles)
    assert found.distribution.draws.shape == (2, Layout.of(target.parameters()).size)
    assert found.predict(x).log_probs.shape == (64, 2)


def normalised_net() -> tuple[nn.Sequential, tuple[Tensor, Tensor]]:
    """A net with moving averages, in training mode but for one part, and data."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
    net[2].eval()
    y = torch.arange(32) % 2
    return net, (torch.randn(32, 3, generator=generator(5)) + y[:, None], y)


def few_steps(target: LogPosterior, data: Any, start: Any, chains: int = 2) -> Posterior:
    """Every step is kept."""
    return sghmc(target, data, chains=chains, steps=3, warmup=0, thin=1, batch_size=16, lr=0.01, start=start, seed=SEED)


@pytest.mark.long
def test_an_auxiliary_marginal_sees_the_chains_weights() -> None:
    net, data = normalised_net()
    auxiliary = rl.AuxiliaryMarginal(net[3])
    target = log_posterior(net, rl.Prevalence.binary(0.1), marginal=auxiliary)
    start = map_estimate(target, data, steps=5, batch_size=16)
    found = few_steps(target, data, start)
    assert isinstance(found.distribution, Particles)
    head = found.layout.unflatten(found.distribution.by_chain.transpose(0, 1).flatten(0, 1))
    seen = auxiliary._seen_weights[: int(auxiliary._steps)]
    torch.testing.assert_close(seen, torch.cat([head["3.weight"].flatten(1), head["3.bias"]], 1))
    assert len(seen.unique(dim=0)) == 3 * 2
    torch.testing.assert_close(found.model.get_buffer("1.running_mean"), start.model.get_buffer("1.running_mean"))
    assert not torch.equal(found.model.get_buffer("1.running_mean"), net.get_buffer("1.running_mean"))


def test_q_over_a_pool_is_that_of_the_net_with_the_moving_averages_of_the_start() -> None:
    net, data = normalised_net()
    target = log_posterior(
        net, rl.Prevalence.binary(0.1), marginal=rl.PoolMarginal(net, [data], every=3, labelled=True), num_data=32
    )
    averages = {"1.running_mean": torch.full((4,), 2.0)}
    weights = Layout.of(target.parameters()).flatten(target.parameters()).expand(2, -1)
    with in_mode(net, False):
        gradients = ChainGradients(target, Minibatches(data, 16, generator(6)), 2, averages)
        gradients.moved(weights)
        assert gradients.marginal is not None
        kept = gradients.marginal.value(MinibatchEstimate(torch.zeros(2, 2), 2))
        exact = target.log_marginal({**target.parameters(), **averages}, data)
    torch.testing.assert_close(kept, exact.expand(2, 2))


@pytest.mark.long
def test_a_start_with_some_random_weights_takes_the_rest_from_its_net() -> None:
    net, data = normalised_net()
    target = log_posterior(net, rl.Prevalence.binary(0.1))
    trained = map_estimate(target, data, steps=20, batch_size=16)
    layout = Layout.of({name: trained.mean[name] for name in ("3.weight", "3.bias")})
    head = Particles(layout.flatten(trained.mean)[None])
    last = Posterior(trained.model, trained.prevalence, trained.likelihood, head, layout)
    means = [few_steps(target, data, start).mean for start in (trained, last)]
    torch.testing.assert_close(*means, rtol=0, atol=0)


@pytest.mark.long
def test_a_start_of_nets_with_moving_averages_of_their_own_is_refused_unless_there_is_one_chain() -> None:
    net, data = normalised_net()
    target = log_posterior(net, rl.Prevalence.binary(0.1))
    members = ensemble(target, data, members=2, steps=5, batch_size=16)
    assert_refused(lambda: few_steps(target, data, members), r"start\.module\(0\)")
    found = few_steps(target, data, members, chains=1).model.get_buffer("1.running_mean")
    assert any(torch.equal(found, members.module(member).get_buffer("1.running_mean")) for member in range(2))
    other = log_posterior(nn.Linear(3, 2), rl.Prevalence.binary(0.1))
    assert_refused(lambda: few_steps(other, data, members), "target's weights")


@pytest.mark.long
def test_too_large_a_step_stops_with_the_draws_so_far() -> None:
    problem = Logistic(1)
    target = problem.target()
    with pytest.raises(Diverged) as caught:
        sghmc(target, problem.data, lr=1e3, steps=400, warmup=0, thin=1, chains=2, batch_size=None, start=target.parameters())
    draws = caught.value.posterior.distribution.draws
    assert len(draws) == 2 * caught.value.step > 0
    assert bool(torch.isfinite(draws).all())


@pytest.mark.long
def test_chains_that_disagree_cause_a_warning() -> None:
    problem = Logistic(1)
    apart = {"weight": torch.tensor([0.0, 9.0], dtype=torch.float64)[:, None, None]}
    with pytest.warns(UserWarning, match=r"Chains disagree: R̂ of predictions is .* Raise `steps`"):
        found = sghmc(
            problem.target(), problem.data, lr=1e-3, chains=2, steps=40, warmup=0, thin=2, batch_size=None, start=apart
        )
    assert found.record["predictions"]["r_hat"] > 1.05


@pytest.mark.long
def test_minibatches_that_are_too_hot_cause_a_warning() -> None:
    problem = Logistic(1)
    target = problem.target()
    with pytest.warns(UserWarning, match="Lower `lr`"):
        found = sghmc(target, problem.data, lr=1.0, chains=2, steps=8, thin=4, batch_size=2, start=target.parameters())
    assert found.record["lr"] == 1.0


def test_chains_adapt_a_few_times_in_the_warm_up_the_last_time_at_its_end() -> None:
    for warmup in (0, 1, 9, 40):
        options = ChainOptions(steps=60, thin=4, warmup=warmup)
        adapted = [step for step in range(60) if options.adapts(step)]
        assert adapted[-1:] == [warmup][: warmup > 0]
        assert min(warmup, 4) <= len(adapted) <= 8
        assert [step for step in range(60) if options.keeps(step)] == list(range(warmup + 3, 60, 4))


def test_of_many_adaptations_the_later_half_counts() -> None:
    values = list(torch.arange(8.0))
    assert _late(values).tolist() == [4, 5, 6, 7]
    assert _late(values[:4]).tolist() == [0, 1, 2, 3]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"chains": 0}, "chains"),
    ({"lr": -1.0}, "lr"),
    ({"friction": 0.0}, "friction"),
    ({"temperature": math.nan}, "temperature"),
    ({"scale": "diagonal"}, "scale"),
    ({"warmup": -1}, "warmup"),
    ({"steps": 10, "thin": 20}, "raise `steps`"),
    ({"start": torch.zeros(2)}, "`start` to be weights by name"),
    ({"start": {"weight": torch.zeros(3)}}, r"of shape \(1, 1\)"),
    ({"start": {"other": torch.zeros(3)}}, "among"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=range(len(REFUSED)))
def test_invalid_options_are_refused(options: dict[str, Any], words: str) -> None:
    problem = Logistic(1)
    assert_refused(partial(sghmc, problem.target(), problem.data, **options), words)


def test_a_density_is_refused() -> None:
    prevalence = rl.ContinuousPrevalence(torch.distributions.Normal(0.0, 1.0))
    target = log_posterior(nn.Linear(1, 2), prevalence, rl.Gaussian())
    assert_refused(lambda: sghmc(target, (torch.randn(9, 1), torch.randn(9))), "density")


@pytest.fixture
def float64() -> Iterator[None]:
    """The default dtype, in which posteriors computes its friction."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("rule", "options", "ours"),
    [(posteriors.sgmcmc.baoa, {"alpha": 0.7}, Underdamped(0.7)), (posteriors.sgmcmc.sgld, {}, Overdamped())],
)
def test_steps_are_those_of_posteriors_with_the_same_noise(rule: Any, options: dict[str, float], ours: Any) -> None:
    curvature, temperature = torch.linspace(0.1, 2, 5), torch.linspace(0, 2, 5)
    ours.begin(torch.randn(3, 5, generator=generator(8)), 1.5)

    def log_posterior(u: Tensor, batch: None) -> tuple[Tensor, dict[str, Tensor]]:
        return (-curvature * u**2 / 2).sum(), {}

    state = rule.init(ours.position, *([ours.momentum] if options else []))
    with torch.random.fork_rng():
        for seed in range(100 * SEED, 100 * SEED + 20):
            torch.manual_seed(seed)
            ours.step(-curvature * ours.position, 0.3, temperature)
            torch.manual_seed(seed)
            state, _ = rule.update(state, None, log_posterior, lr=0.3, temperature=temperature, **options)
            torch.testing.assert_close(ours.position, state.params, rtol=1e-12, atol=1e-12)
