"""What all methods have in common: seeds, what they leave untouched, what they do where a step fails, and without gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from layers import inputs
from members import assert_refused, generator, unchecked_types
from posterior_fixtures import posterior_of_net
from small_targets import MARGINALS
from torch import Tensor, nn
from torch.distributions import Normal

import rightloss as rl
from rightloss import inference

Method = Callable[..., inference.Posterior]

MODES: dict[str, Callable[[], Any]] = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}

CHAINS = {"chains": 2, "steps": 16, "thin": 2, "lr": 0.1, "scale": 0.1, "batch_size": None}
METHODS: dict[str, tuple[Method, dict[str, Any]]] = {
    "map_estimate": (inference.map_estimate, {"steps": 5}),
    "map_estimate, polished": (inference.map_estimate, {"steps": 5, "batch_size": None}),
    "ensemble": (inference.ensemble, {"steps": 5, "members": 2}),
    "mc_dropout": (inference.mc_dropout, {"steps": 5}),
    "laplace": (inference.laplace, {"steps": 5}),
    "laplace, diagonal": (inference.laplace, {"mode": "model", "covariance": "diagonal"}),
    "variational": (inference.variational, {"steps": 5, "batch_size": 10}),
    "expectation_propagation": (inference.expectation_propagation, {"iterations": 2, "draws": 32}),
    "sghmc": (inference.sghmc, CHAINS),
    "nuts": (inference.nuts, {"draws": 4, "warmup": 20, "chains": 1}),
}
# what five steps do not lead to, and need not
short = pytest.mark.filterwarnings("ignore:The log posterior|Chains disagree|Expectation propagation still:UserWarning")
FIRM = rl.Prevalence.binary(0.1, evidence=0.5)


def _net(dropout: bool = False, moving: bool = False) -> nn.Sequential:
    """With a frozen layer in between; all weights from a stream of their own."""
    middle: list[nn.Module] = [nn.BatchNorm1d(4)] if moving else []
    middle += [nn.Dropout(0.3)] if dropout else []
    net = nn.Sequential(nn.Linear(2, 4), *middle, nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 2)).double()
    stream = generator(1)
    for value in net.parameters():
        value.data = torch.randn(value.shape, dtype=torch.float64, generator=stream) / 2
    net[-2].requires_grad_(False)
    return net


def _data(k: int = 2) -> tuple[Tensor, Tensor]:
    y = torch.arange(30) % k
    return torch.randn(30, 2, dtype=torch.float64, generator=generator(2)) + y[:, None], y


def _target(net: nn.Module) -> inference.LogPosterior:
    return inference.log_posterior(net, FIRM, prior=inference.gaussian_prior(1.0))


def _found(name: str) -> inference.Posterior:
    """What the method finds, all it takes made here and now."""
    method, options = METHODS[name]
    net = _net(dropout=name == "mc_dropout")
    net[0].requires_grad_(method is not inference.expectation_propagation)  # else it would look for the mode first
    return method(_target(net), _data(), **options)


_found_outside = lru_cache(None)(_found)


def _assert_same(found: inference.Posterior, expected: inference.Posterior) -> None:
    for name, value in expected.distribution.tensors().items():
        torch.testing.assert_close(found.distribution.tensors()[name], value, rtol=1e-9, atol=1e-12)
    assert found.record.keys() == expected.record.keys()


@pytest.mark.long
@short
@pytest.mark.parametrize(("name", "mode"), [*((name, "inference_mode") for name in METHODS), ("laplace", "no_grad")])
def test_a_method_finds_the_same_without_gradients(name: str, mode: str) -> None:
    """Gradients are switched on in one place for all methods, so the milder mode is tried on one."""
    expected = _found_outside(name)
    with MODES[mode]():
        found = _found(name)
        assert torch.is_inference_mode_enabled() or not torch.is_grad_enabled()
    _assert_same(found, expected)
    torch.testing.assert_close(found.predict(_data()[0]).log_probs, expected.predict(_data()[0]).log_probs)


def _with_marginal(kind: str) -> inference.LogPosterior:
    net = _net()
    marginal = rl.PoolMarginal(net, [_data()]) if kind == "pool" else rl.AuxiliaryMarginal(net[-1])
    return inference.log_posterior(net, FIRM, marginal=marginal)


# Targets with a part that autograd must not find as an inference tensor, and the method that uses it.
PARTS: dict[str, tuple[Method, Callable[[], inference.LogPosterior]]] = {
    "a pool": (inference.map_estimate, lambda: inference.log_posterior(_net(), FIRM, pool=_data())),
    "a reference": (
        inference.variational,
        lambda: inference.log_posterior(_net(), FIRM, reference=torch.tensor([0.6, 0.4]).double()),
    ),
    "moving averages": (inference.ensemble, lambda: inference.log_posterior(_net(moving=True), FIRM)),
    "a prior's centre": (
        inference.map_estimate,
        lambda: inference.log_posterior(_net(), FIRM, prior=inference.gaussian_prior(1.0, {"0.bias": torch.ones(4).double()})),
    ),
    "cutpoints": (
        inference.variational,
        lambda: inference.log_posterior(
            nn.Linear(2, 1).double().requires_grad_(False), rl.Prevalence([0.5, 0.3, 0.2]), rl.CumulativeLogit(3).double()
        ),
    ),
    "a rival": (inference.ensemble, lambda: inference.log_posterior(_net(), rl.Prevalence.binary(0.1), loss=rl.WeightedLoss)),
    "a density": (
        inference.map_estimate,
        lambda: inference.log_posterior(
            nn.Linear(2, 1).double(), rl.ContinuousPrevalence(Normal(0.0, 1.0)), rl.Gaussian().double()
        ),
    ),
    "a marginal with a pool": (inference.map_estimate, lambda: _with_marginal("pool")),
    "a marginal with a network": (inference.map_estimate, lambda: _with_marginal("auxiliary")),
}


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
def test_what_was_made_under_inference_mode_is_taken(part: str) -> None:
    method, make = PARTS[part]
    options: dict[str, Any] = {"steps": 4, "batch_size": 10, **({"members": 2} if method is inference.ensemble else {})}

    def data() -> tuple[Tensor, Tensor]:
        return (_data()[0], _data()[0][:, 0]) if part == "a density" else _data(3 if part == "cutpoints" else 2)

    def found(made: Any, used: Any) -> inference.Posterior:
        torch.manual_seed(0)
        with made():
            target, given = make(), data()
        with used():
            return method(target, given, **options)

    expected = found(nullcontext, nullcontext)
    for used in (nullcontext, torch.inference_mode):
        _assert_same(found(torch.inference_mode, used), expected)


@pytest.mark.parametrize(("mode", "linearised"), [("no_grad", False), ("inference_mode", True)])
def test_a_posterior_is_the_same_without_gradients(mode: str, linearised: bool, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")

    def asked() -> dict[str, Any]:
        posterior, x = posterior_of_net(kind="DenseGaussian", linearised=linearised), inputs().double()
        posterior.save(tmp_path / "posterior.safetensors")
        again = inference.Posterior.load(tmp_path / "posterior.safetensors", posterior_of_net().module())
        return {
            "sample": torch.cat([value.flatten() for value in posterior.sample(3).values()]),
            "tables": torch.cat(list(posterior.tables(x, samples=3))),
            "predict": posterior.predict(x, population=[0.2, 0.3, 0.5], level=0.8).high,
            "predictive": rl.predictive(posterior, x, [0.2, 0.3, 0.5]),
            "module": posterior.module()(x).detach(),
            "as_module": posterior.as_module(samples=3)(x),
            "loaded": again.predict(x).model_entropy,
        }

    expected = asked()
    with MODES[mode]():
        found, made = asked(), posterior_of_net()
        nets = made.module(), made.model
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for net in nets:
        net(inputs().double()).sum().backward()  # it can be trained
        assert all(value.grad is not None for value in net.parameters())


def test_a_model_in_the_place_of_a_log_posterior_is_refused() -> None:
    methods: list[Any] = [*(method for method, _ in METHODS.values()), inference.sgld, inference.optimize_prior]
    for method in dict.fromkeys(methods):
        words = rf"but got Sequential: write {method.__name__}\(log_posterior\(model, prevalence\), data\)"
        assert_refused(partial(method, target=_net(), data=_data()), words)
    assert_refused(lambda: inference.laplace(rl.LogLikelihoodLoss(FIRM), _data()), "but got LogLikelihoodLoss")  # type: ignore[arg-type]


MOVING, BATCHES = {"moving": True, "dropout": True}, {"steps": 3, "batch_size": 16}
FEW = {"chains": 2, "steps": 60, "warmup": 0, "thin": 20, "batch_size": 16}
# method, marginal or another loss, parts of the net (None for one layer, the mode of which is soon found), options
SEEDED: dict[str, tuple[Method, str, dict[str, bool] | None, dict[str, Any]]] = {
    "map, running": (inference.map_estimate, "running", MOVING, BATCHES),
    "map, classwise": (inference.map_estimate, "classwise", MOVING, BATCHES),
    "map, pool": (inference.map_estimate, "pool", None, {"steps": 3, "batch_size": None}),
    "ensemble, auxiliary": (inference.ensemble, "auxiliary", {}, {"members": 2, **BATCHES}),
    "ensemble, pool": (inference.ensemble, "pool", {}, {"members": 2, **BATCHES}),
    "ensemble, classwise": (inference.ensemble, "classwise", {}, {"members": 2, **BATCHES}),
    "ensemble, all data": (inference.ensemble, "running", {}, {"members": 2, "steps": 3, "batch_size": None}),
    "ensemble, one by one": (inference.ensemble, "running", MOVING, {"members": 2, **BATCHES}),
    "variational": (inference.variational, "running", MOVING, BATCHES),
    "variational, local noise": (inference.variational, "loss", {"dropout": True}, BATCHES),
    "variational, auxiliary": (inference.variational, "auxiliary", {}, BATCHES),
    "laplace": (inference.laplace, "running", MOVING, BATCHES),
    "expectation propagation": (inference.expectation_propagation, "batch", None, {"iterations": 2}),
    "sghmc": (inference.sghmc, "running", MOVING, FEW),
    "nuts": (inference.nuts, "batch", MOVING, {"draws": 4, "warmup": 20, "chains": 2}),
}


def _state_of(model: nn.Module) -> list[Any]:
    """Everything that a method must leave as it was, and torch's random numbers."""
    values = [value.clone() for value in model.state_dict().values()]
    parts = [torch.tensor([part.training, bool(part._forward_hooks)]) for part in model.modules()]
    grads = torch.tensor([value.grad is None for value in model.parameters()])
    return [*values, *parts, grads, torch.random.get_rng_state()]


@pytest.mark.long
@short
@pytest.mark.parametrize("name", SEEDED)
@unchecked_types()
def test_a_seed_fixes_the_result_with_any_marginal_and_leaves_everything_as_it_was(name: str) -> None:
    """Three steps: a pool that is renewed at every second is in between."""
    method, marginal, parts, options = SEEDED[name]
    model = nn.Sequential(nn.Linear(2, 2).double()) if parts is None else _net(**parts)
    model[0].eval()
    how = {"loss": rl.LogLikelihoodLoss} if marginal == "loss" else {"marginal": MARGINALS[marginal](model, [_data()])}
    target: Any = inference.log_posterior(model, FIRM, **how)
    options = {**options, "start": target.parameters()} if method is inference.sghmc else options
    before = _state_of(model)
    runs = [method(target, _data(), seed=seed, **options) for seed in (1, 2, 1)]
    first, other, again = (run.distribution.mean for run in runs)
    assert torch.equal(first, again)
    assert parts is None or not torch.equal(first, other)
    for was, now in zip(before, _state_of(model), strict=True):
        assert torch.equal(was, now)
    if parts == MOVING and method in (inference.map_estimate, inference.laplace, inference.variational):
        assert not torch.equal(runs[0].model.get_buffer("1.running_mean"), model.get_buffer("1.running_mean"))


class Fragile(nn.Module):
    """Logits that are numbers only while the weights' mean is below 3."""

    def __init__(self, moving: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2, dtype=torch.float64))
        self.norm = nn.BatchNorm1d(2, affine=False).double() if moving else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.norm(x @ self.weight + torch.log1p(-self.weight.mean() / 3))
        return logits


def _higher(member: int) -> dict[str, Tensor]:
    return {"weight": 2 * torch.ones(2, 2, dtype=torch.float64)} if member else {}


FAST = {"lr": 0.1, "steps": 100, "batch_size": 16}
FAILING: dict[str, tuple[Method, dict[str, Any]]] = {
    "map": (inference.map_estimate, FAST),
    "map, pool": (inference.map_estimate, {**FAST, "batch_size": None}),
    "ensemble": (inference.ensemble, {"members": 2, "initial": _higher, **FAST}),
    "ensemble, one by one": (inference.ensemble, {"members": 2, "initial": _higher, **FAST}),
    "variational": (inference.variational, {"initial_sd": 1e-3, "family": "low-rank", "rank": 2, **FAST}),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_step_that_fails_stops_all_and_the_last_good_weights_are_kept(name: str) -> None:
    method, options = FAILING[name]
    model, pool = Fragile("one by one" in name), _data() if "pool" in name else None
    before = _state_of(model)
    rising = inference.log_posterior(model, FIRM, prior=lambda params: 1e9 * params["weight"].sum(), pool=pool)
    with pytest.raises(inference.Diverged, match=r"Expected .* to be finite, but step \d+ gave .*: lower `lr`") as caught:
        method(rising, _data(), **options)
    last = caught.value.posterior
    assert caught.value.step > 2
    assert bool((last.mean["weight"] > 1).all())  # it had got somewhere
    assert bool(torch.isfinite(last.predict(_data()[0]).log_probs).all())
    for was, now in zip(before, _state_of(model), strict=True):
        assert torch.equal(was, now)
