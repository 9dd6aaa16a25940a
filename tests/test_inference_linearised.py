"""Posteriors that predict with the model made linear in its weights; and posteriors as one module, also when exported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from layers import inputs, network
from logistic import Logistic
from members import ClassLikelihood, assert_refused, each_kind, generator, population, unchecked_types
from posterior_fixtures import DISTRIBUTIONS, normal, parameters_of, posterior_of_net, prevalence_of
from torch import Tensor, nn
from torch.export import Dim
from torch.func import functional_call, jacrev

from rightloss import Bernoulli, Categorical, CumulativeLogit, Prevalence, predictive
from rightloss.inference import log_posterior
from rightloss.inference.distributions import Layout, Particles
from rightloss.inference.laplace import laplace
from rightloss.inference.posterior import Posterior, posterior_of
from rightloss.predictive import PrevalenceLayer
from rightloss.predictive.retarget import retarget

X = inputs().double()
each_distribution = pytest.mark.parametrize("kind", DISTRIBUTIONS)


def smooth(outputs: int, seed: int = 1) -> nn.Sequential:
    """A small net without kinks."""
    net = nn.Sequential(nn.Linear(6, 5), nn.SiLU(), nn.Linear(5, outputs)).double()
    torch.nn.utils.vector_to_parameters(normal(41 + 6 * outputs - 6, seed=seed), net.parameters())
    return net


def jacobian(posterior: Posterior, x: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs `(n, c)` at the mean, and their slopes `(n, c, d)` in the model's random weights, in the layout's order."""
    own = {name: value for name, value in posterior.mean.items() if not name.startswith("likelihood.")}
    model, layout = posterior.model, Layout.of(own)

    def outputs(at: Tensor) -> Tensor:
        return functional_call(model, layout.unflatten(at), (x,))

    vector = layout.flatten(own)
    return outputs(vector).detach(), jacrev(outputs)(vector).detach()


def tables_of(posterior: Posterior, **settings: Any) -> Tensor:
    return torch.cat(list(posterior.tables(X, **settings)))


class TestPredictions:
    @each_kind
    def test_outputs_move_along_their_slopes_and_the_likelihood_by_itself(
        self, make: Callable[[], ClassLikelihood], k: int
    ) -> None:
        likelihood = make().double()
        posterior = posterior_of_net(make().double(), k, net=smooth(likelihood.num_outputs or k), linearised=True)
        outputs, slopes = jacobian(posterior, X)
        expected, inside = [], slopes.shape[-1]
        for draw in posterior.distribution.draws:  # type: ignore[attr-defined]
            moved = outputs + slopes @ (draw - posterior.distribution.mean)[:inside]
            torch.nn.utils.vector_to_parameters(draw[inside:].clone(), parameters_of(nn.Module(), likelihood).values())
            expected.append(likelihood.table(moved).detach())
        torch.testing.assert_close(tables_of(posterior), torch.stack(expected))

    @each_distribution
    def test_linearising_a_linear_model_changes_nothing(self, kind: str) -> None:
        likelihood, to = CumulativeLogit(4).double(), population(4, 3)
        curved, linear = (
            posterior_of_net(likelihood, 4, kind, nn.Linear(6, 1).double(), linearised=each) for each in (False, True)
        )
        torch.testing.assert_close(tables_of(linear, samples=9), tables_of(curved, samples=9), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(predictive(linear, X, to), predictive(curved, X, to), rtol=1e-9, atol=1e-9)
        assert torch.equal(*(each.layout.flatten(each.sample(5)) for each in (curved, linear)))

    def test_only_the_random_weights_move(self) -> None:
        """The last layer of a net is linear by itself, as are a likelihood's own parameters, and what is before stays."""
        net, likelihood = network(1).double(), CumulativeLogit(4).double()
        names = parameters_of(net, likelihood)
        for prefix, fixed in (("4.", {"0.bias": normal(8)}), ("likelihood.", {})):
            layout = Layout.of({name: value for name, value in names.items() if name.startswith(prefix)})
            draws = Particles(normal(5, layout.size, seed=1))
            curved, linear = (
                Posterior(net, Prevalence(population(4)), likelihood, draws, layout, fixed, linearised=each)
                for each in (False, True)
            )
            torch.testing.assert_close(tables_of(linear), tables_of(curved))

    def test_small_moves_of_narrow_weights_are_not_lost(self) -> None:
        """bfloat16 cannot tell 1.001 from 1; of x = 1 the logit is the sum of all weights."""
        net = nn.Linear(6, 1).bfloat16()
        layout, step = Layout.of(dict(net.named_parameters())), 1e-3 * normal(7).abs()
        draws = Particles(1 + torch.stack([step, -step]))
        posterior = Posterior(net, Prevalence.binary(0.5), Bernoulli(), draws, layout, linearised=True)
        table = torch.cat(list(posterior.tables(torch.ones(1, 6, dtype=torch.bfloat16))))[:, 0]
        up, down = (table[:, 1] - table[:, 0]).tolist()
        assert up - down == pytest.approx(float(2 * step.sum()), rel=0.02)


def test_errors_in_x_are_reported_as_without_linearisation() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        posterior_of_net(linearised=True).predict(X[:, :4])


class Attention(nn.Module):
    """Torch's fused attention has no forward derivatives."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(2, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inner(x.unflatten(1, (3, 2))).unsqueeze(1)
        return self.head(nn.functional.scaled_dot_product_attention(parts, parts, parts)[:, 0].mean(1))


class TestLaplace:
    @pytest.mark.long
    @unchecked_types()
    def test_gauss_newton_curvature_predicts_with_the_linear_model_unless_told_otherwise(self) -> None:
        problem = Logistic(features=2, n=60)
        net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        torch.nn.utils.vector_to_parameters(normal(17, seed=1), net.parameters())
        target, data = log_posterior(net, problem.prevalence, Bernoulli()), problem.data
        found = laplace(target, data, mode=target.parameters())
        assert found.record["curvature"] == "fisher"
        assert found.linearised
        same = posterior_of(target, found.distribution, linearised=True).predict(data[0]).log_probs
        assert torch.equal(found.predict(data[0]).log_probs, same)
        curved = laplace(target, data, mode=target.parameters(), linearised=False)
        assert not curved.linearised
        torch.testing.assert_close(curved.distribution.covariance(), found.distribution.covariance())
        assert not laplace(problem.target(), data, steps=50).linearised  # the Hessian is that of the net itself
        assert_refused(lambda: laplace(target, data, linearised="yes"), "`linearised` to be")  # type: ignore[arg-type]

    def test_a_model_without_forward_derivatives_causes_a_warning(self) -> None:
        data = normal(20, 6), torch.arange(20) % 2
        target = log_posterior(Attention().double(), Prevalence.binary(0.1))
        with pytest.warns(UserWarning, match=r"not be linearised.*forward derivatives"):
            found = laplace(target, data, mode=target.parameters())
        assert not found.linearised
        asked = laplace(target, data, mode=target.parameters(), linearised=True)
        assert_refused(lambda: asked.predict(data[0]), r"forward derivatives .* linearised=False")


EXPORTED: dict[str, Callable[[], ClassLikelihood]] = {"Categorical": lambda: Categorical(2), "Bernoulli": Bernoulli}


def exported(name: str) -> tuple[PrevalenceLayer, Tensor]:
    """A layer around draws that are nearly alike, and sure of some x beyond what 1 − p in float32 can say."""
    likelihood = EXPORTED[name]()
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, likelihood.num_outputs or 2))
    posterior = posterior_of_net(likelihood, 2, net=net)
    draws = posterior.distribution.draws  # type: ignore[attr-defined]
    scale = torch.where(torch.arange(draws.shape[1]) < 56, 1, 20)  # of the hidden layer, and of the output
    sure = Particles(scale * (draws[:1] + 0.01 * draws))
    posterior = Posterior(net, posterior.prevalence, likelihood, sure, posterior.layout)
    return PrevalenceLayer(posterior.as_module(2), prevalence_of(posterior)).eval(), 3 * inputs(50, seed=3)


class TestAsModule:
    @pytest.mark.parametrize(("kind", "linearised"), [(kind, number % 2 == 0) for number, kind in enumerate(DISTRIBUTIONS)])
    def test_the_module_predicts_what_the_posterior_does(self, kind: str, linearised: bool) -> None:
        posterior, x = posterior_of_net(kind=kind, linearised=linearised), X.clone().requires_grad_()
        for samples in (None, 4):
            module = posterior.as_module(samples, generator(1)).train()
            expected = posterior.predict(X, samples, generator(1)).log_probs
            torch.testing.assert_close(module(X), expected, rtol=1e-10, atol=1e-10)
            assert not any(part.training for part in module.modules())
        assert not any(each.requires_grad for each in module.parameters())
        module(x)[:, 0].sum().backward()
        assert x.grad is not None
        assert bool(x.grad.any())

    @each_kind
    def test_a_layer_around_it_moves_the_average(self, make: Callable[[], ClassLikelihood], k: int) -> None:
        posterior, to = posterior_of_net(make(), k, linearised=True), population(k, 3)
        layer, own = PrevalenceLayer(posterior.as_module(), prevalence_of(posterior)), predictive(posterior, X)
        torch.testing.assert_close(layer.predict(X), own)
        torch.testing.assert_close(layer.predict(X, to), retarget(own, prevalence_of(posterior), to))

    @pytest.mark.long
    def test_it_exports_with_a_population_as_an_input_or_linearised_for_one_number_of_rows(self) -> None:
        layer, x = exported("Categorical")
        mix, linear = torch.tensor([0.3, 0.7]), posterior_of_net(net=smooth(3), linearised=True).as_module(2)
        with unchecked_types():
            shapes = {"x": {0: Dim.DYNAMIC}, "population": None}
            program = torch.export.export(layer, (x[:4], mix), dynamic_shapes=shapes).module()
            fixed = torch.export.export(linear, (X,)).module()
        torch.testing.assert_close(program(x, 1 - mix), layer(x, 1 - mix))
        torch.testing.assert_close(fixed(inputs(seed=3).double()), linear(inputs(seed=3).double()))

    @pytest.mark.long
    @pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.*:FutureWarning")
    def test_it_runs_in_onnxruntime(self, tmp_path: Path) -> None:
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
