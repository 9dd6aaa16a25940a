"""Where `laplace` expands: at a model's own weights where these are near a mode, else where a search leads."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from logistic import Logistic
from members import generator, unchecked_types
from scipy.optimize import brentq, minimize
from scipy.stats import chi2
from small_targets import likelihood_terms
from torch import Tensor, nn

import rightloss as rl
from rightloss import inference
from rightloss.inference.distributions import Layout

laplace_module = importlib.import_module("rightloss.inference.laplace")  # the package's `laplace` is the function

OWN, SEARCHED = "the model's own weights", "found by a search"
each_covariance = pytest.mark.parametrize(
    ("covariance", "evidence"), [("full", 0.0), ("last-layer", 1.0), ("diagonal", 0.0), ("full", 1.0)]
)
PROBLEM = Logistic(4, n=400, seed=1)


@pytest.fixture
def unsearched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every search for a mode fail."""

    def refuse(*args: Any, **options: Any) -> inference.Posterior:
        raise AssertionError("a search")

    monkeypatch.setattr(laplace_module, "most_probable", refuse)


def _prevalence(evidence: float, population: float = 0.05) -> rl.Prevalence:
    return rl.Prevalence.binary(population, evidence=evidence)


def _net(prevalence: rl.Prevalence, seed: int = 1, hidden: tuple[int, ...] = (16,)) -> nn.Sequential:
    """Fresh, but for an output bias at the prevalence."""
    with torch.random.fork_rng():
        torch.manual_seed(generator(seed).initial_seed())
        sizes = (4, *hidden)
        layers = [part for a, b in zip(sizes, hidden, strict=False) for part in (nn.Linear(a, b), nn.Tanh())]
        net = nn.Sequential(*layers, nn.Linear(sizes[-1], 1)).double()
    rl.start_at_prevalence(net[-1], prevalence, rl.Bernoulli())
    return net


@lru_cache(None)
def _trained(evidence: float, corrected: bool) -> nn.Module:
    """With the information gain or with plain cross-entropy, by minibatches, Adam and no weight decay, as many a net is."""
    prevalence, (x, y), stream = _prevalence(evidence), PROBLEM.data, generator(3)
    net, loss = _net(prevalence), rl.InformationGainLoss(prevalence, rl.Bernoulli()) if corrected else _cross_entropy
    optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(60):
        for rows in torch.randperm(len(y), generator=stream).split(50):
            optimiser.zero_grad()
            loss(net(x[rows]), y[rows]).backward()
            optimiser.step()
    return net


def _cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], y.double())


def _target(net: nn.Module, prevalence: rl.Prevalence, **options: Any) -> inference.LogPosterior:
    return inference.log_posterior(net, prevalence, rl.Bernoulli(), **options)


def _at_its_mode(features: int, evidence: float, scale: float = 1.0) -> tuple[nn.Linear, rl.Prevalence, tuple[Tensor, Tensor]]:
    """A logistic regression at the peak of log p(w|X,Y), found by SciPy; its features times `scale`."""
    prevalence, data = _prevalence(evidence), Logistic(features, n=300, seed=2).data
    model = nn.Linear(features, 1).double()
    target = _pooled(model, prevalence, data)
    layout = Layout.of(target.parameters())

    def minus(vector: np.ndarray) -> tuple[float, np.ndarray]:
        w = torch.from_numpy(vector).requires_grad_()
        value = -len(data[1]) * target(layout.unflatten(w), data)[0]
        return float(value.detach()), torch.autograd.grad(value, w)[0].numpy()

    start = np.append(np.zeros(features), -3.0)
    peak = layout.unflatten(torch.from_numpy(minimize(minus, start, jac=True, method="BFGS", options={"gtol": 1e-7}).x))
    with torch.no_grad():
        model.weight.copy_(peak["weight"] / scale)
        model.bias.copy_(peak["bias"])
    return model, prevalence, (scale * data[0], data[1])


def _prior(scale: float) -> Any:
    return inference.gaussian_prior({"weight": 1.0 / scale, "bias": 1.0}, {"bias": torch.tensor([-3.0]).double()})


def _pooled(
    model: nn.Module, prevalence: rl.Prevalence, data: tuple[Tensor, Tensor], scale: float = 1.0
) -> inference.LogPosterior:
    return _target(model, prevalence, pool=data, num_data=len(data[1]), prior=_prior(scale))


@pytest.mark.long
@pytest.mark.parametrize(("features", "evidence"), [(1, 1.0), (8, 0.0)])
@pytest.mark.usefixtures("unsearched")
@unchecked_types()
def test_a_regression_at_its_mode_stays_there(features: int, evidence: float) -> None:
    model, prevalence, data = _at_its_mode(features, evidence)
    found = inference.laplace(_pooled(model, prevalence, data), data)
    assert found.record["mode"] == OWN
    assert found.record["decrement"] < 1e-6
    for name, value in model.named_parameters():
        assert torch.equal(found.mean[name], value)


@pytest.mark.long
@each_covariance
@pytest.mark.usefixtures("unsearched")
@unchecked_types()
def test_a_net_that_was_trained_with_the_loss_is_taken_as_it_is(covariance: Any, evidence: float) -> None:
    prevalence = _prevalence(evidence)
    net = _trained(evidence, corrected=True)
    found = inference.laplace(_target(net, prevalence), PROBLEM.data, covariance=covariance)
    assert found.record["mode"] == OWN
    for name, value in net.named_parameters():
        torch.testing.assert_close(found.model.get_parameter(name), value, rtol=0, atol=0)


def _plain(evidence: float) -> tuple[inference.LogPosterior, nn.Module]:
    """A net that was trained by plain cross-entropy, under the prior of a fresh one."""
    prevalence, net = _prevalence(evidence), _trained(evidence, corrected=False)
    return _target(net, prevalence, prior=inference.layer_prior(_net(prevalence))), net


@pytest.mark.long
@each_covariance
@pytest.mark.usefixtures("unsearched")
@unchecked_types()
def test_a_net_that_was_trained_by_plain_cross_entropy_is_not_at_a_mode(covariance: Any, evidence: float) -> None:
    with pytest.raises(AssertionError, match="a search"):
        inference.laplace(_plain(evidence)[0], PROBLEM.data, covariance=covariance)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The log posterior is:UserWarning")  # some steps towards it are enough
@unchecked_types()
def test_the_search_from_a_net_that_was_trained_by_plain_cross_entropy_finds_the_intercept() -> None:
    target, net = _plain(0.0)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = inference.laplace(target, PROBLEM.data, covariance="last-layer", steps=300, batch_size=100, lr=3e-2)
    assert found.record["mode"] == SEARCHED
    torch.testing.assert_close(dict(net.state_dict()), before, rtol=0, atol=0)
    people = torch.randn(4000, 4, dtype=torch.float64, generator=generator(4))  # as the population's are
    with torch.no_grad():
        before_and_after = [float(torch.sigmoid(each(people)).mean()) for each in (net, found.module())]
    assert before_and_after[0] > 0.3
    assert before_and_after[1] < 0.15


@pytest.mark.long
@pytest.mark.parametrize(
    ("covariance", "evidence", "n"), [("full", 0.0, 60), ("last-layer", 1.0, 400), ("diagonal", 1.0, 60), ("full", 0.0, 400)]
)
@pytest.mark.usefixtures("unsearched")
@unchecked_types()
def test_random_weights_are_not_near_a_mode(covariance: Any, evidence: float, n: int) -> None:
    """Of 60 examples too few to tell good weights from bad ones by the gradient; of 400 enough."""
    prevalence, data = _prevalence(evidence), Logistic(4, n=n, seed=1).data
    for seed, hidden in enumerate([(16,), (20, 20), (16, 16, 16)]):
        with pytest.raises(AssertionError, match="a search"):
            inference.laplace(_target(_net(prevalence, seed, hidden), prevalence), data, covariance=covariance)


@pytest.mark.long
@pytest.mark.parametrize(("evidence", "scale"), [(0.0, 1.0), (1.0, 1000.0)])
@unchecked_types()
def test_near_a_mode_means_nearer_than_95_percent_of_draws_at_any_scale(evidence: float, scale: float) -> None:
    """Along a direction that leaves p(k|w) as it is, the verdict changes where the decrement is the χ² quantile's half."""
    model, prevalence, data = _at_its_mode(8, evidence, scale)
    peak, direction = _flat(model), _directions(model, prevalence, data, scale)[0]
    target = _pooled(model, prevalence, data, scale)

    def at(distance: float, **options: Any) -> inference.Posterior:
        torch.nn.utils.vector_to_parameters(peak + distance * direction, model.parameters())
        return inference.laplace(target, data, curvature="fisher", linearised=False, **options)

    limit = chi2.ppf(0.05, 9) / 2
    edge = brentq(lambda distance: at(distance, mode="model").record["decrement"] - limit, 0.0, 5.0)
    assert at(0.99 * edge).record["mode"] == OWN
    assert at(1.01 * edge, steps=50).record["mode"] == SEARCHED


@pytest.mark.long
@pytest.mark.usefixtures("unsearched")
@unchecked_types()
def test_a_wrong_intercept_is_noticed_among_many_weights() -> None:
    """Four standard deviations are little for 61 weights together, and too much for p(1|w)."""
    model, prevalence, data = _at_its_mode(60, 1.0)
    peak, target = _flat(model), _pooled(model, prevalence, data)
    elsewhere, intercept = _directions(model, prevalence, data)
    torch.nn.utils.vector_to_parameters(peak + 4 * elsewhere, model.parameters())
    assert inference.laplace(target, data).record["mode"] == OWN
    torch.nn.utils.vector_to_parameters(peak + 4 * intercept, model.parameters())
    assert inference.laplace(target, data, mode="model").record["decrement"] < 0.5 * chi2.ppf(0.05, 61) / 2
    assert inference.laplace(target, data).record["mode"] == SEARCHED


def _flat(model: nn.Module) -> Tensor:
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def _directions(
    model: nn.Module, prevalence: rl.Prevalence, data: tuple[Tensor, Tensor], scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Of one posterior standard deviation: one along which no p(k|w) changes, and that along which p(1|w) changes most."""
    target = _pooled(model, prevalence, data, scale)
    layout = Layout.of(target.parameters())
    factor = torch.linalg.cholesky(inference.laplace(target, data, mode="model").distribution.covariance())
    slopes = torch.autograd.functional.jacobian(
        lambda w: target.log_marginal(layout.unflatten(w), data), layout.flatten(target.parameters())
    )
    most = factor.T @ slopes[1]  # p(0|w) changes with it, as 1 − p(1|w) but for sampling
    span = torch.linalg.qr((slopes @ factor).T).Q
    noise = torch.randn(len(factor), dtype=torch.float64, generator=generator(5))
    noise = noise - span @ (span.T @ noise)
    return factor @ noise / noise.norm(), factor @ most / most.norm()


def test_the_decrement_is_that_of_the_newton_step() -> None:
    prevalence, data = _prevalence(0.5), PROBLEM.data
    target = _target(_net(prevalence, hidden=()), prevalence, pool=data, num_data=400, prior=inference.gaussian_prior(1.0))
    layout = Layout.of(target.parameters())

    def minus(w: Tensor) -> Tensor:
        return -400 * target(layout.unflatten(w), data)[0]

    at = layout.flatten(target.parameters()).requires_grad_()
    g = torch.autograd.grad(minus(at), at)[0]
    h = torch.autograd.functional.hessian(minus, at)
    found = inference.laplace(target, data, mode="model", curvature="hessian")
    assert found.record["decrement"] == pytest.approx(float(g @ torch.linalg.solve(h, g) / 2), rel=1e-6)


@pytest.mark.long
@unchecked_types()
def test_mode_can_be_search_or_model_or_given() -> None:
    prevalence = _prevalence(1.0)
    target, fresh = (_target(net, prevalence) for net in (_trained(1.0, corrected=True), _net(prevalence)))
    searched = inference.laplace(target, PROBLEM.data, mode="search", steps=300, batch_size=100)
    assert searched.record["mode"] == SEARCHED
    assert searched.record["decrement"] < inference.laplace(target, PROBLEM.data).record["decrement"]
    found = inference.laplace(fresh, PROBLEM.data, mode="model")
    assert found.record["mode"] == OWN
    torch.testing.assert_close(found.mean, fresh.parameters(), rtol=0, atol=0)
    mode = inference.map_estimate(fresh, PROBLEM.data, steps=20)
    for given in (mode, mode.mean, fresh.parameters()):
        assert inference.laplace(fresh, PROBLEM.data, mode=given).record["mode"] == "as given"


@pytest.mark.long
@pytest.mark.usefixtures("unsearched")
@unchecked_types()
def test_newtons_method_finds_the_mode_of_one_layer_without_an_optimiser() -> None:
    """Also from saturated predictions, and the mode that SciPy finds from a good start."""
    model, prevalence, data = _at_its_mode(2, 1.0)
    for scale in (1.0, 50.0):
        far = nn.Linear(2, 1).double()
        with torch.no_grad():
            far.weight.mul_(scale)
        found = inference.laplace(_pooled(far, prevalence, data), data, mode="search")
        torch.testing.assert_close(found.distribution.mean, _flat(model), rtol=0, atol=1e-4)
        assert found.record["decrement"] < 1e-9


@pytest.mark.long
@unchecked_types()
def test_a_start_without_a_peak_causes_no_warning_if_the_search_finds_one() -> None:
    """Where the Hessian is negative at the fresh weights, and not where the search ends, nothing was repaired."""
    model, prevalence, data = _at_its_mode(2, 0.0)
    with torch.no_grad():
        model.bias.zero_()
    target = _target(model, prevalence, prior=_prior(1.0))
    with pytest.warns(UserWarning, match="no peak"):
        inference.laplace(target, data, mode="model", curvature="hessian")
    found = inference.laplace(target, data, curvature="hessian", steps=100)
    assert found.record["mode"] == SEARCHED
    assert found.record["repaired"] == 0


LOSSES: dict[str, tuple[float, dict[str, Any]]] = {
    "gain": (0.0, {}),
    "gain at the population": (0.7, {"reference": torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)}),
    "weighted": (0.0, {"loss": rl.WeightedLoss}),
}


@pytest.mark.long
@pytest.mark.parametrize("name", LOSSES)
@unchecked_types()
def test_the_best_constant_predictions_are_those_of_free_intercepts(name: str) -> None:
    evidence, options = LOSSES[name]
    y = torch.arange(31) % 3
    prevalence = rl.Prevalence([0.7, 0.2, 0.1], torch.bincount(y) / 31, evidence=evidence)
    target = inference.log_posterior(nn.Linear(1, 3).double(), prevalence, rl.Categorical(3), num_data=31, **options)
    data, layout = (torch.zeros(31, 1, dtype=torch.float64), y), Layout.of(target.parameters())

    def terms(bias: Any) -> Any:
        w = layout.flatten({"weight": torch.zeros(3, 1).double(), "bias": torch.as_tensor(np.asarray(bias)).double()})
        return likelihood_terms(target, w, data)

    best = minimize(lambda bias: -terms(bias).log_likelihood, [0.1, -0.2, 0.0], method="Nelder-Mead", tol=1e-10)
    assert terms([0.3, 0.5, -1.0]).constant == pytest.approx(-best.fun, abs=1e-6)
