"""Expectation propagation against grids, importance sampling, and cases in which it is exact."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from logistic import Logistic, grid_moments, importance_moments
from members import ClassLikelihood, assert_refused, each_likelihood, generator, population, random_outputs, unchecked_types
from torch import Tensor, nn
from torch.func import grad, hessian, vmap
from torch.utils.data import DataLoader, TensorDataset

from rightloss import (
    Bernoulli,
    Categorical,
    ContinuousPrevalence,
    CumulativeLogit,
    Gaussian,
    LogitAdjustedLoss,
    LogLikelihoodLoss,
    OnionPeeling,
    Prevalence,
    WeightedLoss,
    start_at_prevalence,
)
from rightloss.inference import Diverged, LogPosterior, gaussian_prior, horseshoe_prior, log_posterior
from rightloss.inference import ep as propagation_module
from rightloss.inference.distributions import Layout
from rightloss.inference.ep import expectation_propagation
from rightloss.inference.ep_factors import factors_of, head_of, output_table
from rightloss.inference.ep_sites import (
    ExampleSites,
    MarginalSites,
    NaturalParameters,
    normal_points,
    sobol_points,
)
from rightloss.inference.map import map_estimate
from rightloss.inference.posterior import Posterior
from rightloss.inference.prediction import JointModel
from rightloss.losses.gain import at_reference

Data = tuple[Tensor, Tensor]
ONE = Logistic(1)  # its data are drawn now: inside vmap nothing can be
TEN = Logistic(10)
assert len(ONE.data[0]) == len(TEN.data[0])


def targets(problem: Logistic) -> dict[str, LogPosterior]:
    """Every kind of factor there is."""
    pi, x = problem.prevalence.population, problem.data[0]
    firm = Prevalence(pi, problem.prevalence.sampling, evidence=0.5)
    model = problem.model()
    prior = gaussian_prior(1.0, {"bias": model.bias})
    return {
        "r = ρ": problem.target(),
        "r = π": problem.target(pool=problem.data, reference=pi),
        "another r": problem.target(pool=problem.data, reference=[0.7, 0.3]),
        "unlabelled pool": problem.target(pool=x[: problem.n // 2], reference=pi),
        "evidence": log_posterior(model, firm, Bernoulli(), prior=prior, num_data=problem.n, pool=problem.data),
        "uncorrected": problem.uncorrected(),
        "weighted": problem.target(loss=WeightedLoss),
        "logit-adjusted": problem.target(loss=LogitAdjustedLoss),
    }


def by_importance(target: LogPosterior, data: Data, found: Posterior) -> tuple[Tensor, Tensor]:
    """The posterior's mean and covariance, from draws wider than `found`."""
    mean, covariance, worth = importance_moments(target, data, found, 8000, 1.2, generator(1))
    assert worth > 1000, "too few draws count"
    return mean, covariance


def assert_near(found: Posterior, moments: tuple[Tensor, Tensor], mean: float, deviation: float) -> None:
    """Means within `mean` standard deviations, and these within a factor of 1 ± `deviation`."""
    sd = moments[1].diagonal().sqrt()
    away, ratio = (found.distribution.mean - moments[0]) / sd, found.distribution.standard_deviation / sd
    assert bool((away.abs() < mean).all()), away
    assert bool(((ratio - 1).abs() < deviation).all()), ratio


def assert_same(*posteriors: Posterior, tolerance: float = 3e-5) -> None:
    a, b = (each.distribution for each in posteriors)
    torch.testing.assert_close(a.mean, b.mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(a.covariance(), b.covariance(), rtol=tolerance, atol=tolerance)


# Means within so many standard deviations, and these within such a share: where the marginal takes most of the information on
# the intercept away again, what is left is wide and skewed.
CLOSE, WIDE = (0.05, 0.07), (0.15, 0.2)
SOON = 0.5  # a tolerance for runs that are to do the same, step for step
NEAR = {"r = π": WIDE, "another r": WIDE, "unlabelled pool": WIDE}


@pytest.mark.long
@pytest.mark.parametrize("name", targets(ONE))
@unchecked_types()
def test_mean_and_covariance_are_those_of_the_grid(name: str) -> None:
    target = targets(ONE)[name]
    found = expectation_propagation(target, ONE.data)
    assert found.record["converged"]
    assert_near(found, grid_moments(ONE, target, points=61), *NEAR.get(name, CLOSE))


@pytest.mark.long
def test_the_uncorrected_posterior_is_another_one() -> None:
    right, wrong = (expectation_propagation(each, ONE.data).distribution for each in (ONE.target(), ONE.uncorrected()))
    assert float(((right.mean - wrong.mean) / right.standard_deviation)[1].abs()) > 3


@pytest.mark.long
@pytest.mark.parametrize("name", ["r = ρ", "r = π"])
@unchecked_types()
def test_ten_features_agree_with_importance_sampling(name: str) -> None:
    target = targets(TEN)[name]
    found = expectation_propagation(target, TEN.data)
    assert_near(found, by_importance(target, TEN.data, found), *NEAR.get(name, (0.08, 0.08)))


def test_one_factor_is_matched_exactly() -> None:
    data = (torch.tensor([[2.0]], dtype=torch.float64), torch.tensor([1]))
    model = nn.Linear(1, 1, bias=False).double()
    target = log_posterior(model, Prevalence.binary(0.3, 0.5), Bernoulli(), prior=gaussian_prior(1.5), loss=LogLikelihoodLoss)
    q = expectation_propagation(target, data, tolerance=1e-9).distribution  # to the precision of 32 nodes
    w = torch.linspace(-15, 15, 20_001, dtype=torch.float64)
    mass = torch.softmax(torch.nn.functional.logsigmoid(2 * w) - 0.5 * (w / 1.5).square(), 0)
    mean = (mass * w).sum()
    torch.testing.assert_close(q.mean[0], mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(q.standard_deviation[0], (mass * (w - mean).square()).sum().sqrt(), rtol=1e-4, atol=1e-4)


class _Measured:
    """log p(z) = −½ |z − 1|²: a measurement of every output with error 1."""

    def log_probs(self, z: Tensor) -> Tensor:
        return -0.5 * (z - 1).square().sum(-1, keepdim=True)

    def derivatives(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        bends = -torch.eye(z.shape[-1]).to(z).expand(*z.shape[:-1], 1, -1, -1)
        return self.log_probs(z), (1 - z).unsqueeze(-2), bends


@pytest.mark.parametrize("outputs", [1, 2, 5])
@pytest.mark.parametrize("power", [1.0, 0.01])
def test_sites_of_gaussian_factors_become_these_factors(outputs: int, power: float) -> None:
    features, size = torch.randn(7, 3, dtype=torch.float64, generator=generator(2)), 3 * outputs
    ones, points = torch.ones(7, 1, dtype=torch.float64), normal_points(outputs, 16, 0)
    own = NaturalParameters(torch.zeros(7, outputs, outputs, dtype=torch.float64), torch.zeros(7, outputs, dtype=torch.float64))
    prior = NaturalParameters(torch.eye(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64))
    sites, natural, q = ExampleSites(features, ones, _Measured(), points, own), prior, prior.moments()
    assert q is not None
    for _ in range(60):
        moved = propagation_module._moved(natural, q, [(sites, 1.0)], power, 0.5)
        assert moved is not None
        natural, q, _ = moved
    design = torch.block_diag(*[features] * outputs)
    covariance = torch.linalg.inv(torch.eye(size, dtype=torch.float64) + design.T @ design)
    torch.testing.assert_close(q.covariance, covariance)
    torch.testing.assert_close(q.mean, covariance @ design.sum(0))


def test_points_have_the_moments_of_a_normal_distribution() -> None:
    for points in (normal_points(1, 0, 0), normal_points(2, 0, 0), normal_points(3, 0, 0), sobol_points(9, 64, 0)):
        weight, dimensions = points.log_weight.exp(), points.at.shape[1]
        torch.testing.assert_close(weight @ points.at, torch.zeros(dimensions, dtype=torch.float64))
        second = points.at.T @ (weight[:, None] * points.at)
        torch.testing.assert_close(second, torch.eye(dimensions, dtype=torch.float64))


@pytest.mark.long
@each_likelihood
def test_derivatives_are_those_of_the_table(make: Any, k: int) -> None:
    likelihood: ClassLikelihood = make().double()
    z, offset = random_outputs(likelihood, 5), population(k).log()
    log_p, gradients, hessians = output_table(likelihood, offset).derivatives(z)
    for row in range(5):

        def entry(outputs: Tensor, label: int) -> Tensor:
            return at_reference(likelihood.table(outputs[None]), offset)[0, label]

        for label in range(k):
            torch.testing.assert_close(log_p[row, label], entry(z[row], label))
            torch.testing.assert_close(gradients[row, label], grad(entry)(z[row], label))
            own = hessians[row, label if hessians.shape[1] > 1 else 0]
            torch.testing.assert_close(own, torch.autograd.functional.hessian(lambda o, n=label: entry(o, n), z[row]))


def _many_classes(likelihood: Any, n: int = 150) -> tuple[LogPosterior, Data]:
    """A linear model of two features at r = π, labels in equal numbers that depend on the first."""
    classes = likelihood.num_classes
    y = torch.arange(n) % classes
    x = torch.randn(n, 2, dtype=torch.float64, generator=generator(3)) + 0.5 * y[:, None] * torch.tensor([1.0, 0.0])
    prevalence = Prevalence([0.5, *[0.5 / (classes - 1)] * (classes - 1)])
    model = nn.Linear(2, likelihood.num_outputs).double()
    start_at_prevalence(model, prevalence, likelihood)
    prior, pi = gaussian_prior(1.0, {"bias": model.bias}), prevalence.population
    target = log_posterior(model, prevalence, likelihood, prior=prior, num_data=n, reference=pi, pool=(x, y))
    return target, (x, y)


@pytest.mark.long
@pytest.mark.parametrize("likelihood", [Categorical(3), OnionPeeling(3)], ids=str)
@unchecked_types()
def test_several_classes_agree_with_importance_sampling(likelihood: Any) -> None:
    target, data = _many_classes(likelihood)
    found = expectation_propagation(target, data, draws=512)
    assert found.record["converged"]
    assert_near(found, by_importance(target, data, found), *WIDE)


def test_the_marginal_and_its_derivatives_are_those_of_the_target() -> None:
    target, data = _many_classes(OnionPeeling(4))
    net = JointModel(copy.deepcopy(target.model), target.likelihood)
    head = head_of(net.model, None, target.parameters())
    sites = factors_of(target, net, head, data, 16, 0).marginal
    assert isinstance(sites, MarginalSites)
    w = 0.5 * torch.randn(1, head.layout.size, dtype=torch.float64, generator=generator(4))

    def log_marginal(each: Tensor) -> Tensor:
        return target.log_marginal(head.layout.unflatten(each[head.order()]), data)

    log_m = sites.log_marginal(w)
    torch.testing.assert_close(log_m[0], log_marginal(w[0]))
    slopes, bends = sites._derivatives(w, log_m, torch.ones_like(log_m))
    torch.testing.assert_close(slopes[0], torch.func.jacrev(log_marginal)(w[0]))
    torch.testing.assert_close(bends, hessian(log_marginal)(w[0]))


@pytest.mark.long
@unchecked_types()
def test_a_small_power_is_variational_inference() -> None:
    target = ONE.target()
    q = expectation_propagation(target, ONE.data, power=1e-4, tolerance=1e-6).distribution
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(20))
    noise, weight = torch.cartesian_prod(nodes, nodes), torch.cartesian_prod(weights, weights).prod(1) / (2 * math.pi)
    draws = q.mean + noise @ torch.linalg.cholesky(q.covariance()).T

    def log_density(w: Tensor) -> Tensor:
        return ONE.n * target({"weight": w[:1, None], "bias": w[1:]}, ONE.data)[0]

    slope = weight @ vmap(grad(log_density))(draws)
    bend = torch.einsum("s,sab->ab", weight, vmap(hessian(log_density))(draws))
    assert float((q.standard_deviation * slope).abs().max()) < 1e-3
    torch.testing.assert_close(-torch.linalg.inv(bend), q.covariance(), rtol=2e-3, atol=1e-5)


@pytest.mark.long
@unchecked_types()
def test_votes_of_one_label_are_that_label_and_shared_votes_agree_with_importance_sampling() -> None:
    x, y = ONE.data
    votes = torch.nn.functional.one_hot(y, 2).double()
    target = ONE.target(reference=ONE.prevalence.population)
    assert_same(*(expectation_propagation(target, (x, each), tolerance=SOON) for each in (votes, y)), tolerance=1e-9)
    unsure = 0.8 * votes + 0.1
    target = ONE.target(pool=(x, unsure), reference=ONE.prevalence.population)
    found = expectation_propagation(target, (x, unsure))
    assert_near(found, by_importance(target, (x, unsure), found), *WIDE)


@pytest.mark.long
@unchecked_types()
def test_neither_order_nor_damping_nor_batches_change_the_answer() -> None:
    problem = Logistic(1, n=100)
    target, (x, y) = targets(problem)["r = π"], problem.data
    plain = expectation_propagation(target, (x, y), tolerance=1e-6)
    mixed = torch.randperm(len(y), generator=generator(5))
    loader = DataLoader(TensorDataset(x[mixed], y[mixed]), 64)
    assert_same(plain, expectation_propagation(target, loader, tolerance=1e-6))
    assert_same(plain, expectation_propagation(target, (x, y), tolerance=1e-6, damping=0.4, batch_size=70))


@pytest.mark.long
@unchecked_types()
def test_ignored_examples_count_for_nothing_and_num_data_for_all() -> None:
    (x, y), target = ONE.data, ONE.target(reference=ONE.prevalence.population)
    more = torch.cat([x, 5 + x[:20]]), torch.cat([y, torch.full((20,), -100)])
    assert_same(*(expectation_propagation(target, each, tolerance=SOON) for each in ((x, y), more)), tolerance=1e-9)
    twice = ONE.target(pool=ONE.data)
    twice = log_posterior(twice.model, ONE.prevalence, Bernoulli(), prior=twice.prior, num_data=2 * ONE.n, pool=ONE.data)
    found = expectation_propagation(twice, ONE.data)
    assert_near(found, by_importance(twice, ONE.data, found), *CLOSE)


def _net() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(10, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 1)).double()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for value in model.parameters():
            nn.init.normal_(value)
    return model


def test_a_last_layer_is_a_linear_model_of_its_inputs() -> None:
    model, (x, y) = _net(), TEN.data
    before, state = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    prior = gaussian_prior(1.0)
    target = log_posterior(model, TEN.prevalence, Bernoulli(), prior=prior)
    found = expectation_propagation(target, (x, y), mode=target.parameters(), tolerance=SOON)
    features = torch.tanh(model[0](x)).detach()
    linear = log_posterior(copy.deepcopy(model[3]), TEN.prevalence, Bernoulli(), prior=prior)
    assert_same(found, expectation_propagation(linear, (features, y), tolerance=SOON), tolerance=1e-9)
    assert found.layout == Layout(("3.weight", "3.bias"), ((1, 4), (1,)))
    torch.testing.assert_close(found.module()[0].weight, model[0].weight)  # type: ignore[index]
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(part.training for part in model.modules())
    assert bool(torch.isfinite(found.predict(x[:5]).log_probs).all())


@pytest.mark.long
@unchecked_types()
def test_the_rest_of_a_net_is_trained_first(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(10, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    target = log_posterior(model, TEN.prevalence, Bernoulli())
    monkeypatch.setattr(propagation_module, "map_estimate", partial(map_estimate, steps=30))
    mode = map_estimate(target, TEN.data, steps=30)
    assert_same(
        *(expectation_propagation(target, TEN.data, mode=each, tolerance=SOON) for each in (None, mode)), tolerance=1e-9
    )


def test_the_likelihoods_own_weights_stay_at_the_mode() -> None:
    target, data = _many_classes(CumulativeLogit(3))
    cut = {"likelihood.first": torch.tensor([0.4]), "likelihood.log_gaps": torch.tensor([0.1])}
    found = expectation_propagation(target, data, mode={**target.parameters(), **cut}, tolerance=SOON)
    assert found.layout.names == ("weight", "bias")
    assert isinstance(found.likelihood, CumulativeLogit)
    torch.testing.assert_close(found.likelihood.first.detach(), cut["likelihood.first"])


def test_stopping_too_early_causes_a_warning() -> None:
    with pytest.warns(UserWarning, match="still changes by .* after 2 iterations: give it more"):
        found = expectation_propagation(ONE.target(), ONE.data, iterations=2)
    assert found.record["iterations"] == 2
    assert not found.record["converged"]


def test_if_no_step_is_possible_the_last_good_state_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def near(old: Any, new: Any) -> bool:
        calls.append(1)
        return len(calls) < 3

    monkeypatch.setattr(propagation_module, "_near", near)
    with pytest.raises(Diverged, match="lower `damping`") as caught:
        expectation_propagation(ONE.target(), ONE.data)
    assert caught.value.step > 0
    assert bool(torch.isfinite(caught.value.posterior.predict(ONE.data[0][:3]).log_probs).all())


def test_a_wide_prior_where_the_data_leave_the_intercept_open_still_converges() -> None:
    model = ONE.model()
    prior = gaussian_prior({"weight": 3.0, "bias": 3.0}, {"bias": model.bias})
    found = expectation_propagation(log_posterior(model, ONE.prevalence, Bernoulli(), prior=prior), ONE.data)
    assert found.record["converged"]


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.layer(x)


def test_unsupported_models_and_options_are_refused() -> None:
    data, prevalence = ONE.data, ONE.prevalence
    wrong: dict[str, Any] = {"power": 2, "damping": 0, "draws": 0, "iterations": 0, "tolerance": -1, "batch_size": 0}
    for name, value in wrong.items():
        assert_refused(partial(expectation_propagation, ONE.target(), data, **{name: value}), name)
    assert_refused(lambda: expectation_propagation(ONE.target(), data, layer="head"), "nn.Linear")
    assert_refused(lambda: expectation_propagation(ONE.target(), data, mode=3), "mode")  # type: ignore[arg-type]
    frozen = ONE.model()
    frozen.bias.requires_grad_(False)

    def run(model: nn.Module, **options: Any) -> Posterior:
        return expectation_propagation(log_posterior(model, prevalence, Bernoulli(), **options), data)

    assert_refused(lambda: run(frozen), "requires_grad")
    assert_refused(lambda: run(_Scaled()), "comes after it")
    assert_refused(lambda: expectation_propagation(ONE.target(), (data[0] * math.nan, data[1])), "finite outputs")
    assert_refused(lambda: run(nn.utils.parametrizations.weight_norm(ONE.model())), "computed from others")
    tied = nn.Sequential(ONE.model(), ONE.model())
    tied[1].weight = tied[0].weight
    assert_refused(lambda: run(tied), "share its weights")
    assert_refused(lambda: run(ONE.model(), prior=horseshoe_prior(1.0)), "Gaussian prior")
    assert_refused(lambda: run(nn.Sequential(nn.Conv1d(1, 1, 1), nn.Flatten()).double()), "nn.Linear")
    density = ContinuousPrevalence(torch.distributions.Normal(0.0, 1.0))
    regression = log_posterior(nn.Linear(1, 2), density, Gaussian())
    assert_refused(lambda: expectation_propagation(regression, (data[0].float(), data[0][:, 0].float())), "classes")
