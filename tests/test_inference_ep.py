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
from members import ClassLikelihood, assert_refused, each_kind, generator, population, random_outputs, unchecked_types
from posterior_fixtures import normal
from torch import Tensor, nn
from torch.func import grad, hessian, jacrev, vmap
from torch.utils.data import DataLoader, TensorDataset

import rightloss as rl
from rightloss.inference import Diverged, LogPosterior, gaussian_prior, horseshoe_prior, log_posterior
from rightloss.inference import ep as propagation_module
from rightloss.inference.distributions import Layout
from rightloss.inference.ep import expectation_propagation, head_of, sites_of
from rightloss.inference.ep_sites import MarginalSites, NaturalParameters, normal_points, output_table, sobol_points
from rightloss.inference.map import map_estimate
from rightloss.inference.posterior import Posterior
from rightloss.inference.prediction import JointModel

Data = tuple[Tensor, Tensor]
ONE = Logistic(1)  # its data are drawn now: inside vmap nothing can be
TEN = Logistic(10)
assert len(ONE.data[0]) == len(TEN.data[0])


def targets(problem: Logistic) -> dict[str, LogPosterior]:
    """A target of each kind of factor."""
    pi, x = problem.prevalence.population, problem.data[0]
    firm = rl.Prevalence(pi, problem.prevalence.sampling, evidence=0.5)
    model = problem.model()
    prior = gaussian_prior(1.0, {"bias": model.bias})
    return {
        "r = ρ": problem.target(),
        "r = π": problem.target(pool=problem.data, reference=pi),
        "another r": problem.target(pool=problem.data, reference=[0.7, 0.3]),
        "unlabelled pool": problem.target(pool=x[: problem.n // 2], reference=pi),
        "evidence": log_posterior(model, firm, rl.Bernoulli(), prior=prior, num_data=problem.n, pool=problem.data),
        "logit-adjusted": log_posterior(
            model, firm, rl.Bernoulli(), prior=prior, num_data=problem.n, loss=rl.LogitAdjustedLoss
        ),
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
@pytest.mark.parametrize("name", [name for name in targets(ONE) if name != "r = π"])
@unchecked_types()
def test_mean_and_covariance_are_those_of_the_grid(name: str) -> None:
    target = targets(ONE)[name]
    found = expectation_propagation(target, ONE.data)
    assert found.record["converged"]
    assert_near(found, grid_moments(ONE, target, points=61), *NEAR.get(name, CLOSE))


def test_one_factor_is_matched_exactly() -> None:
    data = (torch.tensor([[2.0]], dtype=torch.float64), torch.tensor([1]))
    model = nn.Linear(1, 1, bias=False).double()
    target = log_posterior(
        model, rl.Prevalence.binary(0.3, 0.5), rl.Bernoulli(), prior=gaussian_prior(1.5), loss=rl.LogLikelihoodLoss
    )
    q = expectation_propagation(target, data, tolerance=1e-9).distribution  # to the precision of 32 nodes
    w = torch.linspace(-15, 15, 20_001, dtype=torch.float64)
    mass = torch.softmax(torch.nn.functional.logsigmoid(2 * w) - 0.5 * (w / 1.5).square(), 0)
    mean = (mass * w).sum()
    torch.testing.assert_close(q.mean[0], mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(q.standard_deviation[0], (mass * (w - mean).square()).sum().sqrt(), rtol=1e-4, atol=1e-4)


def test_natural_parameters_of_no_distribution_have_no_moments() -> None:
    assert NaturalParameters(torch.diag(torch.tensor([1.0, -1.0])), torch.zeros(2)).moments() is None


def test_points_have_the_moments_of_a_normal_distribution() -> None:
    for points in (normal_points(1, 0, 0), normal_points(2, 0, 0), normal_points(3, 0, 0), sobol_points(9, 64, 0)):
        weight, dimensions = points.log_weight.exp(), points.at.shape[1]
        torch.testing.assert_close(weight @ points.at, torch.zeros(dimensions, dtype=torch.float64))
        second = points.at.T @ (weight[:, None] * points.at)
        torch.testing.assert_close(second, torch.eye(dimensions, dtype=torch.float64))
    assert len(points) == 64


@pytest.mark.long
@each_kind
def test_derivatives_of_a_row_are_autograds(make: Any, k: int) -> None:
    """Those of log p(k|z) at another mix, or of the streams, of which one class has none if there are more than two."""
    likelihood: ClassLikelihood = make().double()
    sampled, z = torch.arange(k) >= (k > 2), random_outputs(likelihood, 3)
    for streams, offset in ((False, population(k).log()), (True, normal(int(sampled.sum()) + 1, seed=3))):

        def table(row: Tensor, streams: bool = streams, offset: Tensor = offset) -> Tensor:
            log_p = likelihood.table(row[None])[0]
            own = torch.cat([log_p[sampled], torch.zeros(1).double()]) if streams else log_p
            return torch.log_softmax(own + offset, 0)

        log_p, gradients, hessians = output_table(likelihood, offset, sampled if streams else None).derivatives(z)
        for row in range(3):
            torch.testing.assert_close(log_p[row], table(z[row]))
            torch.testing.assert_close(gradients[row], jacrev(table)(z[row]))
            bends = hessian(table)(z[row])
            torch.testing.assert_close(hessians[row].expand_as(bends), bends)


def _many_classes(likelihood: Any, n: int = 150) -> tuple[LogPosterior, Data]:
    """A linear model of two features at r = π, labels in equal numbers that depend on the first."""
    classes = likelihood.num_classes
    y = torch.arange(n) % classes
    x = torch.randn(n, 2, dtype=torch.float64, generator=generator(3)) + 0.5 * y[:, None] * torch.tensor([1.0, 0.0])
    prevalence = rl.Prevalence([0.5, *[0.5 / (classes - 1)] * (classes - 1)])
    model = nn.Linear(2, likelihood.num_outputs).double()
    rl.start_at_prevalence(model, prevalence, likelihood)
    prior, pi = gaussian_prior(1.0, {"bias": model.bias}), prevalence.population
    target = log_posterior(model, prevalence, likelihood, prior=prior, num_data=n, reference=pi, pool=(x, y))
    return target, (x, y)


@pytest.mark.long
@unchecked_types()
def test_several_classes_agree_with_importance_sampling() -> None:
    target, data = _many_classes(rl.OnionPeeling(3))
    found = expectation_propagation(target, data, draws=512)
    assert found.record["converged"]
    assert_near(found, by_importance(target, data, found), *WIDE)


def test_the_marginal_and_its_derivatives_are_those_of_the_target() -> None:
    target, data = _many_classes(rl.OnionPeeling(4))
    net = JointModel(copy.deepcopy(target.model), target.likelihood)
    head = head_of(net.model, None, target.parameters())
    sites = sites_of(target, net, head, data, 16, 0)[1]
    assert isinstance(sites, MarginalSites)
    w = 0.5 * torch.randn(1, head.layout.size, dtype=torch.float64, generator=generator(4))

    def log_marginal(each: Tensor) -> Tensor:
        return target.log_marginal(head.layout.unflatten(each[head.order()]), data)

    log_m = sites.log_marginal(w)
    torch.testing.assert_close(log_m[0], log_marginal(w[0]))
    slopes, bends = sites._derivatives(w, log_m, torch.ones_like(log_m))
    torch.testing.assert_close(slopes[0], jacrev(log_marginal)(w[0]))
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
def test_neither_order_nor_damping_changes_the_answer() -> None:
    problem = Logistic(1, n=100)
    target, (x, y) = targets(problem)["r = π"], problem.data
    plain = expectation_propagation(target, (x, y), tolerance=1e-6)
    mixed = torch.randperm(len(y), generator=generator(5))
    loader = DataLoader(TensorDataset(x[mixed], y[mixed]), 64)
    assert_same(plain, expectation_propagation(target, loader, tolerance=1e-6))
    assert_same(plain, expectation_propagation(target, (x, y), tolerance=1e-6, damping=0.4))


@pytest.mark.long
@unchecked_types()
def test_ignored_examples_count_for_nothing_and_num_data_for_all() -> None:
    (x, y), target = ONE.data, ONE.target(reference=ONE.prevalence.population)
    more = torch.cat([x, 5 + x[:20]]), torch.cat([y, torch.full((20,), -100)])
    assert_same(*(expectation_propagation(target, each, tolerance=SOON) for each in ((x, y), more)), tolerance=1e-9)
    twice = ONE.target(pool=ONE.data)
    twice = log_posterior(twice.model, ONE.prevalence, rl.Bernoulli(), prior=twice.prior, num_data=2 * ONE.n, pool=ONE.data)
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
    prior = gaussian_prior(1.0)
    target = log_posterior(model, TEN.prevalence, rl.Bernoulli(), prior=prior)
    found = expectation_propagation(target, (x, y), mode=target.parameters(), tolerance=SOON)
    features = torch.tanh(model[0](x)).detach()
    linear = log_posterior(copy.deepcopy(model[3]), TEN.prevalence, rl.Bernoulli(), prior=prior)
    assert_same(found, expectation_propagation(linear, (features, y), tolerance=SOON), tolerance=1e-9)
    assert found.layout == Layout(("3.weight", "3.bias"), ((1, 4), (1,)))
    torch.testing.assert_close(found.module()[0].weight, model[0].weight)  # type: ignore[index]
    assert bool(torch.isfinite(found.predict(x[:5]).log_probs).all())


@pytest.mark.long
@unchecked_types()
def test_the_rest_of_a_net_is_trained_first(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(10, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    target = log_posterior(model, TEN.prevalence, rl.Bernoulli())
    monkeypatch.setattr(propagation_module, "map_estimate", partial(map_estimate, steps=30))
    mode = map_estimate(target, TEN.data, steps=30)
    assert_same(
        *(expectation_propagation(target, TEN.data, mode=each, tolerance=SOON) for each in (None, mode)), tolerance=1e-9
    )


def test_the_likelihoods_own_weights_stay_at_the_mode() -> None:
    target, data = _many_classes(rl.CumulativeLogit(3))
    cut = {"likelihood.first": torch.tensor([0.4]), "likelihood.log_gaps": torch.tensor([0.1])}
    found = expectation_propagation(target, data, mode={**target.parameters(), **cut}, tolerance=SOON)
    assert found.layout.names == ("weight", "bias")
    assert isinstance(found.likelihood, rl.CumulativeLogit)
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
    found = expectation_propagation(log_posterior(model, ONE.prevalence, rl.Bernoulli(), prior=prior), ONE.data)
    assert found.record["converged"]


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.layer(x)


def test_unsupported_models_and_options_are_refused() -> None:
    data, target = ONE.data, ONE.target()
    wrong: dict[str, Any] = {"power": 2, "damping": 0, "draws": 0, "iterations": 0, "tolerance": -1, "mode": 3}
    for name, value in wrong.items():
        assert_refused(partial(expectation_propagation, target, data, **{name: value}), name)
    assert_refused(lambda: expectation_propagation(target, data, layer="head"), "nn.Linear")
    assert_refused(lambda: expectation_propagation(target, (data[0] * math.nan, data[1])), "finite outputs")
    frozen, tied = ONE.model(), nn.Sequential(ONE.model(), ONE.model())
    frozen.bias.requires_grad_(False)
    tied[1].weight = tied[0].weight
    models: dict[str, Any] = {
        "requires_grad": frozen,
        "comes after it": _Scaled(),
        "computed from others": nn.utils.parametrizations.weight_norm(ONE.model()),
        "share its weights": tied,
        "nn.Linear": nn.Sequential(nn.Conv1d(1, 1, 1), nn.Flatten()).double(),
    }
    for words, model in models.items():
        assert_refused(partial(expectation_propagation, log_posterior(model, ONE.prevalence, rl.Bernoulli()), data), words)
    peaked = log_posterior(ONE.model(), ONE.prevalence, rl.Bernoulli(), prior=horseshoe_prior(1.0))
    assert_refused(lambda: expectation_propagation(peaked, data), "Gaussian prior")
    density = rl.ContinuousPrevalence(torch.distributions.Normal(0.0, 1.0))
    regression = log_posterior(nn.Linear(1, 2), density, rl.Gaussian())
    assert_refused(lambda: expectation_propagation(regression, (data[0].float(), data[0][:, 0].float())), "classes")
