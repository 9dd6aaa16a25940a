"""Methods and posteriors under `torch.no_grad()` and `torch.inference_mode()`; and what is no log posterior."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from layers import inputs
from members import assert_refused, generator
from posterior_fixtures import posterior_of_net
from torch import Tensor, nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, TensorDataset

from rightloss import (
    AuxiliaryMarginal,
    BatchMarginal,
    ContinuousPrevalence,
    CumulativeLogit,
    Gaussian,
    LogLikelihoodLoss,
    PoolMarginal,
    Prevalence,
    WeightedLoss,
    predictive,
)
from rightloss.inference import (
    LogPosterior,
    Posterior,
    ensemble,
    expectation_propagation,
    gaussian_prior,
    laplace,
    log_posterior,
    map_estimate,
    mc_dropout,
    nuts,
    sghmc,
    sgld,
    variational,
)

Method = Callable[..., Posterior]

MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
each_mode = pytest.mark.parametrize("mode", MODES)

CHAINS = {"chains": 2, "steps": 16, "thin": 2, "lr": 0.1, "scale": 0.1, "batch_size": None}
METHODS: dict[str, tuple[Method, dict[str, Any]]] = {
    "map_estimate": (map_estimate, {"steps": 5}),
    "map_estimate, polished": (map_estimate, {"steps": 5, "batch_size": None}),
    "ensemble": (ensemble, {"steps": 5, "members": 2}),
    "mc_dropout": (mc_dropout, {"steps": 5}),
    "laplace": (laplace, {"steps": 5}),
    "laplace, last layer": (laplace, {"steps": 5, "covariance": "last-layer"}),
    "laplace, diagonal": (laplace, {"mode": "model", "covariance": "diagonal"}),
    "variational": (variational, {"steps": 5, "batch_size": 10}),
    "expectation_propagation": (expectation_propagation, {"iterations": 2, "draws": 32}),
    "sghmc": (sghmc, CHAINS),
    "sgld": (sgld, CHAINS),
    "nuts": (nuts, {"draws": 4, "warmup": 20, "chains": 1}),
}
each_method = pytest.mark.parametrize("name", METHODS)
# what five steps do not lead to, and need not
short = pytest.mark.filterwarnings("ignore:The log posterior|Chains disagree|Expectation propagation still:UserWarning")


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


def _found(name: str) -> Posterior:
    """What the method finds, all it takes made here and now."""
    method, options = METHODS[name]
    net = _net(dropout=name == "mc_dropout")
    net[0].requires_grad_(method is not expectation_propagation)  # else it would look for the mode first
    return method(_target(net), _data(), **options)


_found_outside = lru_cache(None)(_found)


def _target(net: nn.Module) -> LogPosterior:
    return log_posterior(net, Prevalence.binary(0.1, evidence=0.5), prior=gaussian_prior(1.0))


def _assert_same(found: Posterior, expected: Posterior) -> None:
    for name, value in expected.distribution.tensors().items():
        torch.testing.assert_close(found.distribution.tensors()[name], value, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.predict(_data()[0]).log_probs, expected.predict(_data()[0]).log_probs)
    assert found.record.keys() == expected.record.keys()


@pytest.mark.long
@short
@pytest.mark.parametrize(
    ("name", "mode"), [*((name, "inference_mode") for name in METHODS), ("map_estimate", "no_grad"), ("laplace", "no_grad")]
)
def test_a_method_finds_the_same_without_gradients(name: str, mode: str) -> None:
    """Gradients are switched on in one place for all methods, so the milder mode is tried on two."""
    expected = _found_outside(name)
    with MODES[mode]():
        found = _found(name)
    _assert_same(found, expected)


# Targets with a part that autograd must not find as an inference tensor, and their data.
PARTS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "a pool": lambda: (log_posterior(_net(), Prevalence.binary(0.1, evidence=0.5), pool=_data()), _data()),
    "a reference": lambda: (
        log_posterior(_net(), Prevalence.binary(0.1, evidence=0.5), reference=torch.tensor([0.6, 0.4]).double()),
        _data(),
    ),
    "moving averages": lambda: (log_posterior(_net(moving=True), Prevalence.binary(0.1, evidence=0.5)), _data()),
    "a prior's centre": lambda: (
        log_posterior(
            _net(), Prevalence.binary(0.1, evidence=0.5), prior=gaussian_prior(1.0, {"0.bias": torch.ones(4).double()})
        ),
        _data(),
    ),
    "cutpoints": lambda: (
        log_posterior(
            nn.Linear(2, 1).double().requires_grad_(False),
            Prevalence([0.5, 0.3, 0.2], evidence=0.5),
            CumulativeLogit(3).double(),
        ),
        _data(3),
    ),
    "a loader": lambda: (
        log_posterior(_net(), Prevalence.binary(0.1, evidence=0.5)),
        DataLoader(TensorDataset(*_data()), batch_size=10),
    ),
    "a rival": lambda: (log_posterior(_net(), Prevalence.binary(0.1), loss=WeightedLoss), _data()),
    "a batch's marginal": lambda: (
        log_posterior(_net(), Prevalence.binary(0.1, evidence=0.5), marginal=BatchMarginal()),
        _data(),
    ),
    "a density": lambda: (
        log_posterior(nn.Linear(2, 1).double(), ContinuousPrevalence(Normal(0.0, 1.0)), Gaussian().double()),
        (_data()[0], _data()[0][:, 0]),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("method", [map_estimate, ensemble, variational], ids=lambda method: method.__name__)
def test_what_was_made_under_inference_mode_is_taken(part: str, method: Method) -> None:
    if part == "cutpoints" and method is ensemble:
        pytest.skip("the ensemble has nothing to draw")
    options = {"steps": 4, "batch_size": 10, **({"members": 2} if method is ensemble else {})}
    torch.manual_seed(0)
    expected = method(*PARTS[part](), **options)
    torch.manual_seed(0)
    with torch.inference_mode():
        target, data = PARTS[part]()
    for found in (method(target, data, **options), _under_inference_mode(lambda: method(target, data, **options))):
        for name, value in expected.distribution.tensors().items():
            torch.testing.assert_close(found.distribution.tensors()[name], value, rtol=1e-9, atol=1e-12)


def _under_inference_mode(call: Callable[[], Any]) -> Any:
    with torch.inference_mode():
        return call()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["pool", "auxiliary"])
def test_marginals_that_ask_the_model_are_taken(kind: str) -> None:
    def found(mode: Callable[[], AbstractContextManager[Any]]) -> Posterior:
        with mode():
            net = _net()
            marginal = PoolMarginal(net, [_data()]) if kind == "pool" else AuxiliaryMarginal(net[-1])
            torch.manual_seed(0)  # of q_ψ's own weights
            target = log_posterior(net, Prevalence.binary(0.1, evidence=0.5), marginal=marginal)
            return map_estimate(target, _data(), steps=10, batch_size=10)

    _assert_same(found(torch.inference_mode), found(nullcontext))


@pytest.mark.parametrize("linearised", [True, False])
@each_mode
def test_a_posterior_is_the_same_without_gradients(mode: str, linearised: bool, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")

    def asked() -> dict[str, Any]:
        posterior, x = posterior_of_net(kind="DenseGaussian", linearised=linearised), inputs().double()
        posterior.save(tmp_path / "posterior.safetensors")
        again = Posterior.load(tmp_path / "posterior.safetensors", posterior_of_net().module())
        return {
            "sample": torch.cat([value.flatten() for value in posterior.sample(3).values()]),
            "tables": torch.cat(list(posterior.tables(x, samples=3))),
            "predict": posterior.predict(x, population=[0.2, 0.3, 0.5], level=0.8).high,
            "predictive": predictive(posterior, x, [0.2, 0.3, 0.5]),
            "module": posterior.module()(x).detach(),
            "as_module": posterior.as_module(samples=3)(x),
            "loaded": again.predict(x).model_entropy,
        }

    expected = asked()
    with MODES[mode]():
        found = asked()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_net_taken_from_a_posterior_under_inference_mode_can_be_trained() -> None:
    with torch.inference_mode():
        net = posterior_of_net().module()
    net(inputs().double()).sum().backward()
    assert all(value.grad is not None for value in net.parameters())


@pytest.mark.long
def test_a_user_s_own_mode_is_left_on() -> None:
    with torch.inference_mode():
        map_estimate(_target(_net()), _data(), steps=2)
        assert torch.is_inference_mode_enabled()
    with torch.no_grad():
        map_estimate(_target(_net()), _data(), steps=2)
        assert not torch.is_grad_enabled()


@each_method
def test_a_model_in_the_place_of_a_log_posterior_is_refused(name: str) -> None:
    method, _ = METHODS[name]
    words = (
        rf"what log_posterior returns, but got Sequential: write {method.__name__}\(log_posterior\(model, prevalence\), data\)"
    )
    assert_refused(lambda: method(_net(), _data()), words)
    assert_refused(lambda: method(target=_net(), data=_data()), words)
    assert_refused(lambda: method(None, _data()), "but got NoneType")
    loss = LogLikelihoodLoss(Prevalence.binary(0.1))
    assert_refused(lambda: method(loss, _data()), "but got LogLikelihoodLoss")
