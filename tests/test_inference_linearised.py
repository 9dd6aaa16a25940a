"""Posteriors that predict with the model made linear in its weights, as Laplace's Gaussian assumes it to be."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from layers import inputs, network
from logistic import Logistic
from members import ClassLikelihood, assert_mean_is, assert_refused, each_likelihood, generator, population, unchecked_types
from posterior_fixtures import DISTRIBUTIONS, normal, parameters_of, posterior_of_net, prevalence_of
from torch import Tensor, nn
from torch.distributions import Normal
from torch.func import functional_call, jacrev

from rightloss import Bernoulli, Categorical, ContinuousPrevalence, CumulativeLogit, Gaussian, Prevalence, predictive
from rightloss.inference import LogPosterior, log_posterior
from rightloss.inference import posterior as posterior_file
from rightloss.inference.distributions import DenseGaussian, Layout, Particles
from rightloss.inference.laplace import laplace
from rightloss.inference.posterior import Posterior, posterior_of
from rightloss.predictive import PrevalenceLayer
from rightloss.predictive.retarget import retarget

X = inputs().double()
each_kind = pytest.mark.parametrize("kind", DISTRIBUTIONS)


def smooth(outputs: int, seed: int = 1) -> nn.Sequential:
    """A small net without kinks."""
    net = nn.Sequential(nn.Linear(6, 5), nn.SiLU(), nn.Linear(5, outputs)).double()
    torch.nn.utils.vector_to_parameters(normal(41 + 6 * outputs - 6, seed=seed), net.parameters())
    return net


def jacobian(posterior: Posterior, x: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs `(n, c)` at the mean, and their slopes `(n, c, d)` in the model's random weights, in the layout's order."""
    own = {name: value for name, value in posterior.mean.items() if not name.startswith("likelihood.")}
    model, layout = posterior.model, Layout.of(own)
    vector = layout.flatten(own)

    def outputs(at: Tensor) -> Tensor:
        return functional_call(model, layout.unflatten(at), (x,))

    return outputs(vector).detach(), jacrev(outputs)(vector).detach()


def spread_over(prevalence: Any, likelihood: Any, x: Tensor, spread: float) -> Posterior:
    """A dense Gaussian over the weights of a net with one output, which is so wide that the output varies by `spread`."""
    net = smooth(1)
    layout = Layout.of(dict(net.named_parameters()))
    mean, factor = normal(layout.size, seed=2), normal(layout.size, layout.size, seed=3)
    wide = Posterior(net, prevalence, likelihood, DenseGaussian(mean, factor), layout)
    narrow = DenseGaussian(mean, factor * spread / moments_of_output(wide, x)[1].max())
    return Posterior(net, prevalence, likelihood, narrow, layout, linearised=True)


def moments_of_output(posterior: Posterior, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of a single output that is linear in the weights."""
    outputs, slopes = jacobian(posterior, x)
    return outputs[:, 0], ((slopes[:, 0] @ posterior.distribution.covariance()) * slopes[:, 0]).sum(1).sqrt()


def tables_of(posterior: Posterior, **settings: Any) -> Tensor:
    return torch.cat(list(posterior.tables(X, **settings)))


class TestPredictions:
    @pytest.mark.long
    @unchecked_types()
    def test_the_probability_is_an_integral_over_one_gaussian_output(self) -> None:
        posterior = spread_over(Prevalence.binary(0.1), Bernoulli(), X, 1.5)
        mean, spread = moments_of_output(posterior, X)
        nodes, weights = np.polynomial.hermite_e.hermegauss(200)
        expected = torch.sigmoid(mean[:, None] + spread[:, None] * torch.from_numpy(nodes)) @ torch.from_numpy(weights)
        draws = tables_of(posterior, samples=20_000, generator=generator(4))[:, :, 1].exp()
        assert_mean_is(draws, expected / math.sqrt(2 * math.pi), z=5)
        found = posterior.predict(X, samples=20_000, generator=generator(4)).log_probs
        torch.testing.assert_close(found[:, 1].exp(), draws.mean(0))

    @each_likelihood
    def test_outputs_move_along_their_slopes_and_the_likelihood_by_itself(
        self, make: Callable[[], ClassLikelihood], k: int
    ) -> None:
        likelihood = make().double()
        posterior = posterior_of_net(make().double(), k, net=smooth(likelihood.num_outputs or k), linearised=True)
        outputs, slopes = jacobian(posterior, X)
        expected = []
        for draw in posterior.distribution.draws:  # type: ignore[attr-defined]
            inside = slopes.shape[-1]
            moved = outputs + slopes @ (draw - posterior.distribution.mean)[:inside]
            torch.nn.utils.vector_to_parameters(draw[inside:].clone(), parameters_of(nn.Module(), likelihood).values())
            expected.append(likelihood.table(moved).detach())
        torch.testing.assert_close(tables_of(posterior), torch.stack(expected))

    @each_kind
    @pytest.mark.parametrize("likelihood", [Bernoulli(), CumulativeLogit(4).double()])
    def test_linearising_a_linear_model_changes_nothing(self, kind: str, likelihood: Any) -> None:
        k = 2 if isinstance(likelihood, Bernoulli) else 4
        curved, linear = (
            posterior_of_net(likelihood, k, kind, nn.Linear(6, 1).double(), linearised=each) for each in (False, True)
        )
        torch.testing.assert_close(tables_of(linear, samples=9), tables_of(curved, samples=9), rtol=1e-9, atol=1e-9)
        to = population(k, 3)
        torch.testing.assert_close(predictive(linear, X, to), predictive(curved, X, to), rtol=1e-9, atol=1e-9)

    def test_near_the_mean_the_net_is_nearly_linear(self) -> None:
        """What a draw's two predictions differ by is of the second order: a tenth of the way, a hundredth of it."""
        net = smooth(3)
        layout, apart = Layout.of(dict(net.named_parameters())), []
        for scale in (1e-3, 1e-4):
            step = scale * normal(layout.size, seed=2)
            draws = Particles(normal(layout.size, seed=3) + torch.stack([step, -step]))
            pair = [
                tables_of(Posterior(net, Prevalence(population(3)), Categorical(), draws, layout, linearised=each))
                for each in (False, True)
            ]
            apart.append((pair[0] - pair[1]).abs().max())
        assert float(apart[1]) > 0
        assert float(apart[1] / apart[0]) == pytest.approx(0.01, rel=0.1)

    def test_a_point_predicts_what_its_net_does(self) -> None:
        posterior = posterior_of_net(kind="a point", linearised=True)
        expected = torch.log_softmax(posterior.module()(X), 1)
        torch.testing.assert_close(posterior.predict(X).log_probs, expected, rtol=1e-12, atol=1e-12)

    def test_only_the_random_weights_move(self) -> None:
        """The last layer of a net is linear by itself, and what is before it stays."""
        net = network(3).double()
        layout = Layout.of({name: value for name, value in net.named_parameters() if name.startswith("4.")})
        fixed, draws = {"0.bias": normal(8)}, Particles(normal(5, layout.size, seed=1))
        curved, linear = (
            Posterior(net, Prevalence(population(3)), Categorical(), draws, layout, fixed, linearised=each)
            for each in (False, True)
        )
        torch.testing.assert_close(tables_of(linear), tables_of(curved))

    def test_linearising_the_likelihoods_parameters_alone_changes_nothing(self) -> None:
        likelihood = CumulativeLogit(4).double()
        layout = Layout.of({f"likelihood.{name}": value for name, value in likelihood.named_parameters()})
        mix, draws = Prevalence(population(4)), Particles(normal(5, layout.size))
        curved, linear = (Posterior(smooth(1), mix, likelihood, draws, layout, linearised=each) for each in (False, True))
        torch.testing.assert_close(tables_of(linear), tables_of(curved))

    def test_a_density_has_the_closed_form(self) -> None:
        posterior = spread_over(ContinuousPrevalence(Normal(0.0, 1.0)), Gaussian(scale=0.7).double(), X[:1], 0.5)
        mean, spread = moments_of_output(posterior, X[:1])
        support = mean + torch.linspace(-1, 1, 5).double()
        expected = Normal(mean, (spread**2 + 0.49).sqrt()).log_prob(support).exp()
        draws = torch.cat(list(posterior.tables(X[:1], 20_000, support=support)))[:, 0].exp()
        assert_mean_is(draws, expected, z=5)

    def test_dense_maps_are_predicted_cell_by_cell(self) -> None:
        net = nn.Sequential(nn.Conv2d(6, 4, 1), nn.Tanh(), nn.Conv2d(4, 3, 1)).double()
        posterior, maps = posterior_of_net(net=net, linearised=True), normal(4, 6, 2, 3)
        cells = posterior.predict(maps.movedim(1, -1).reshape(-1, 6, 1, 1)).log_probs
        torch.testing.assert_close(posterior.predict(maps).log_probs.movedim(1, -1).reshape(-1, 3), cells.flatten(1))

    def test_small_moves_of_narrow_weights_are_not_lost(self) -> None:
        """bfloat16 cannot tell 1.001 from 1; of x = 1 the logit is the sum of all weights."""
        net = nn.Linear(6, 1).bfloat16()
        layout, step = Layout.of(dict(net.named_parameters())), 1e-3 * normal(7).abs()
        draws = Particles(1 + torch.stack([step, -step]))
        posterior = Posterior(net, Prevalence.binary(0.5), Bernoulli(), draws, layout, linearised=True)
        table = torch.cat(list(posterior.tables(torch.ones(1, 6, dtype=torch.bfloat16))))[:, 0]
        up, down = (table[:, 1] - table[:, 0]).tolist()
        assert up - down == pytest.approx(float(2 * step.sum()), rel=0.02)


class Copied(torch.autograd.Function):
    """The identity, with derivatives but no rule for `vmap`."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def jvp(ctx: Any, slope: Tensor) -> Tensor:
        return slope.clone()


class Counted(nn.Module):
    """A net that counts its calls and, if so told, cannot be run for many draws at once."""

    def __init__(self, single: bool) -> None:
        super().__init__()
        self.inner, self.single, self.calls = smooth(3), single, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        outputs: Tensor = self.inner(x)
        return Copied.apply(outputs) if self.single else outputs


class Attention(nn.Module):
    """Torch's fused attention has no forward derivatives."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(2, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inner(x.unflatten(1, (3, 2))).unsqueeze(1)
        return self.head(nn.functional.scaled_dot_product_attention(parts, parts, parts)[:, 0].mean(1))


class TestTheWayThere:
    def test_many_draws_at_once_predict_what_they_do_one_by_one(self) -> None:
        found = {}
        for single in (False, True):
            posterior = posterior_of_net(net=Counted(single), linearised=True)
            found[single] = tables_of(posterior)
            assert posterior.model.calls == (2 + 6 if single else 1)
        torch.testing.assert_close(found[True], found[False])

    @pytest.mark.long
    @each_kind
    @pytest.mark.parametrize(("weights", "numbers"), [(1, 1), (200, 1 << 20)])
    def test_any_size_of_blocks_and_batches_gives_the_same(
        self, kind: str, weights: int, numbers: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        posterior = posterior_of_net(kind=kind, linearised=True)
        expected = posterior.predict(X, samples=11).log_probs
        monkeypatch.setattr(posterior_file, "_WEIGHTS", weights)
        monkeypatch.setattr(posterior_file, "_INPUTS", numbers)
        assert len(list(posterior.tables(X, samples=11))) > 1
        found = posterior.predict(X, samples=11, batch_size=3).log_probs
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)

    @each_kind
    def test_the_weights_drawn_are_the_same(self, kind: str) -> None:
        curved, linear = (posterior_of_net(kind=kind, linearised=each) for each in (False, True))
        for one, other in zip(curved.sample(5).values(), linear.sample(5).values(), strict=True):
            assert torch.equal(one, other)

    @pytest.mark.parametrize("single", [False, True])
    def test_the_users_model_is_unchanged(self, single: bool) -> None:
        model = Counted(single).train()
        before, state = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
        posterior = posterior_of_net(net=model, linearised=True)
        own = {name: value.clone() for name, value in posterior.model.state_dict().items()}
        posterior.predict(X)
        assert torch.equal(torch.get_rng_state(), state)
        assert all(part.training for part in model.modules())
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert all(torch.equal(value, own[name]) for name, value in posterior.model.state_dict().items())

    def test_it_is_saved_with_the_rest_and_shown(self, tmp_path: Path) -> None:
        posterior = posterior_of_net(kind="DenseGaussian", linearised=True)
        posterior.save(tmp_path / "x")
        found = Posterior.load(tmp_path / "x", network(3, seed=5).double())
        assert found.linearised
        assert torch.equal(found.predict(X).log_probs, posterior.predict(X).log_probs)
        assert "random weights of Sequential, linearised, Categorical" in repr(found)


class TestAsModule:
    @each_kind
    def test_the_module_predicts_what_the_posterior_does(self, kind: str) -> None:
        posterior = posterior_of_net(kind=kind, linearised=True)
        module = posterior.as_module(4, generator(1))
        torch.testing.assert_close(module(X), posterior.predict(X, 4, generator(1)).log_probs, rtol=1e-10, atol=1e-10)
        layer, to = PrevalenceLayer(module, prevalence_of(posterior)), population(3, 3)
        expected = retarget(predictive(posterior, X, samples=4, generator=generator(1)), prevalence_of(posterior), to)
        torch.testing.assert_close(layer.predict(X, to), expected)

    @pytest.mark.long
    def test_gradients_reach_x(self) -> None:
        module = posterior_of_net(net=smooth(3), linearised=True).as_module()
        assert torch.autograd.gradcheck(module, (X[:2].clone().requires_grad_(),))

    @pytest.mark.long
    def test_it_exports_for_one_number_of_rows(self) -> None:
        module = posterior_of_net(net=smooth(3), linearised=True).as_module(2)
        with unchecked_types():
            program = torch.export.export(module, (X,)).module()
        other = inputs(seed=3).double()
        torch.testing.assert_close(program(other), module(other))


def nested(**options: Any) -> tuple[LogPosterior, tuple[Tensor, Tensor]]:
    """A net of two layers with the data of a logistic problem."""
    problem = Logistic(features=2, n=60)
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    torch.nn.utils.vector_to_parameters(normal(17, seed=1), net.parameters())
    return log_posterior(net, problem.prevalence, Bernoulli(), **options), problem.data


class TestLaplace:
    @pytest.mark.long
    @pytest.mark.parametrize("covariance", ["full", "diagonal"])
    @unchecked_types()
    def test_gauss_newton_curvature_predicts_with_the_linear_model(self, covariance: Any) -> None:
        target, data = nested()
        found = laplace(target, data, covariance=covariance, steps=30)
        assert found.record["curvature"] == "fisher"
        assert found.linearised
        same = posterior_of(target, found.distribution, linearised=True).predict(data[0]).log_probs
        assert torch.equal(found.predict(data[0]).log_probs, same)

    def test_linearised_can_be_switched_on_and_off(self) -> None:
        target, data = nested()
        curved = laplace(target, data, mode=target.parameters(), linearised=False)
        linear = laplace(target, data, mode=target.parameters(), linearised=True)
        assert (curved.linearised, linear.linearised) == (False, True)
        torch.testing.assert_close(curved.distribution.covariance(), linear.distribution.covariance())
        assert_refused(lambda: laplace(target, data, linearised="yes"), "`linearised` to be")  # type: ignore[arg-type]

    @pytest.mark.long
    def test_the_hessian_is_that_of_the_net_itself(self) -> None:
        problem = Logistic(features=1)
        found = laplace(problem.target(), problem.data, steps=50)
        assert found.record["curvature"] == "hessian"
        assert not found.linearised

    def test_a_model_without_forward_derivatives_causes_a_warning(self) -> None:
        data = normal(20, 6), torch.arange(20) % 2
        target = log_posterior(Attention().double(), Prevalence.binary(0.1))
        with pytest.warns(UserWarning, match=r"not be linearised.*forward derivatives"):
            found = laplace(target, data, mode=target.parameters())
        assert not found.linearised
        asked = laplace(target, data, mode=target.parameters(), linearised=True)
        assert_refused(lambda: asked.predict(data[0]), r"forward derivatives .* linearised=False")


def test_what_cannot_be_linearised_is_refused() -> None:
    assert_refused(lambda: posterior_of_net(dropout=True, linearised=True), "dropout or a linearised model, but got both")
    net = network(3).double()
    layout = Layout(("1.running_mean",), ((8,),))
    mix, draws = Prevalence(population(3)), Particles(normal(2, 8))
    assert_refused(
        lambda: Posterior(net, mix, Categorical(), draws, layout, linearised=True), r"but `1\.running_mean` is a buffer"
    )


def test_errors_in_x_are_reported_as_without_linearisation() -> None:
    posterior = posterior_of_net(linearised=True)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        posterior.predict(X[:, :4])
