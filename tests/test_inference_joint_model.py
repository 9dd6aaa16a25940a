"""A posterior as one module: x → averaged log-probabilities, also when exported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from layers import inputs, network
from members import ClassLikelihood, each_likelihood, generator, population, unchecked_types
from posterior_fixtures import DISTRIBUTIONS, normal, posterior_of_net, prevalence_of
from torch import nn
from torch.distributions import Normal
from torch.export import Dim

from rightloss import Bernoulli, Categorical, ContinuousPrevalence, Gaussian, predictive
from rightloss.inference.distributions import Layout, Particles
from rightloss.inference.posterior import Posterior
from rightloss.predictive import PrevalenceLayer
from rightloss.predictive.retarget import retarget

X = inputs().double()


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_the_module_predicts_what_the_posterior_does(kind: str) -> None:
    posterior = posterior_of_net(kind=kind)
    for samples in (None, 4):
        module = posterior.as_module(samples, generator(1)).train()
        expected = posterior.predict(X, samples, generator(1)).log_probs
        torch.testing.assert_close(module(X), expected, rtol=1e-10, atol=1e-12)
        assert not any(part.training for part in module.modules())


@each_likelihood
def test_a_layer_around_it_moves_the_average(make: Callable[[], ClassLikelihood], k: int) -> None:
    posterior, to = posterior_of_net(make(), k), population(k, 3)
    layer = PrevalenceLayer(posterior.as_module(), prevalence_of(posterior))
    torch.testing.assert_close(layer.predict(X), predictive(posterior, X))
    torch.testing.assert_close(layer.predict(X, to), retarget(predictive(posterior, X), prevalence_of(posterior), to))


def test_a_density_takes_its_support() -> None:
    model, prevalence = network(1).double(), ContinuousPrevalence(Normal(0.0, 1.0))
    layout = Layout.of(dict(model.named_parameters()))
    posterior = Posterior(model, prevalence, Gaussian().double(), Particles(normal(3, layout.size)), layout)
    support = normal(5)
    torch.testing.assert_close(posterior.as_module()(X, support), posterior.predict(X, support=support).log_probs)


def test_nothing_in_it_is_trained_and_gradients_reach_x() -> None:
    module, x = posterior_of_net().as_module(), X.clone().requires_grad_()
    assert not any(each.requires_grad for each in module.parameters())
    module(x)[:, 0].sum().backward()
    assert x.grad is not None
    assert bool(x.grad.any())


EXPORTED: dict[str, Callable[[], ClassLikelihood]] = {"Categorical": lambda: Categorical(2), "Bernoulli": Bernoulli}


def exported(name: str) -> tuple[PrevalenceLayer, torch.Tensor]:
    """A layer around draws that are nearly alike, and sure of some x beyond what 1 − p in float32 can say."""
    likelihood = EXPORTED[name]()
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, likelihood.num_outputs or 2))
    posterior = posterior_of_net(likelihood, 2, net=net)
    draws = posterior.distribution.draws  # type: ignore[attr-defined]
    scale = torch.where(torch.arange(draws.shape[1]) < 56, 1, 20)  # of the hidden layer, and of the output
    sure = Particles(scale * (draws[:1] + 0.01 * draws))
    posterior = Posterior(net, posterior.prevalence, likelihood, sure, posterior.layout)
    return PrevalenceLayer(posterior.as_module(2), prevalence_of(posterior)).eval(), 3 * inputs(50, seed=3)


@pytest.mark.long
@pytest.mark.parametrize("name", EXPORTED)
def test_it_exports_with_a_population_as_an_input(name: str) -> None:
    layer, x = exported(name)
    mix = torch.tensor([0.3, 0.7])
    with unchecked_types():
        shapes = {"x": {0: Dim.DYNAMIC}, "population": None}
        program = torch.export.export(layer, (x[:4], mix), dynamic_shapes=shapes).module()
    torch.testing.assert_close(program(x, 1 - mix), layer(x, 1 - mix))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.*:FutureWarning")
def test_it_runs_in_onnxruntime(tmp_path: Path) -> None:
    import onnxruntime

    layer, x = exported("Bernoulli")
    mix = torch.tensor([0.3, 0.7])
    with unchecked_types():
        program = torch.onnx.export(layer, (x, mix), dynamo=True, verbose=False)
    assert program is not None
    program.save(tmp_path / "layer.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "layer.onnx", providers=["CPUExecutionProvider"])
    found = session.run(None, {"x": x.numpy(), "population": (1 - mix).numpy()})[0]
    expected = layer(x, 1 - mix).numpy()
    assert expected.min() < -20  # where a plain Log(Sigmoid(z)) would be −∞ or wrong
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)  # and wrong is by 0.15 and more
