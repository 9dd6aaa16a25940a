"""The log posterior in the form that `posteriors` takes; what it leaves as it was; what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import torch
from logistic import Logistic
from members import SEED, assert_mean_is, assert_refused, generator
from oracles import posteriors
from small_targets import MARGINALS, Small, random_weights
from torch import Tensor, nn
from torch.func import grad, hessian, vmap

from rightloss import (
    AuxiliaryMarginal,
    BatchMarginal,
    Bernoulli,
    CumulativeLogit,
    LogLikelihoodLoss,
    PoolMarginal,
    Prevalence,
    WeightedLoss,
    start_at_prevalence,
)
from rightloss.inference import log_posterior
from rightloss.inference.distributions import Layout


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Asserts that weights, buffers, gradients, modes and the random stream are afterwards as they were."""
    before, modes = {name: value.clone() for name, value in model.state_dict().items()}, [m.training for m in model.modules()]
    stream = torch.get_rng_state()
    yield
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert [m.training for m in model.modules()] == modes
    assert all(value.grad is None and value.requires_grad for value in model.parameters())
    assert torch.equal(torch.get_rng_state(), stream)


class Normalised(nn.Module):
    """With moving averages."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(3), nn.Linear(3, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))


class Tied(nn.Module):
    """The same matrix twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


@pytest.mark.parametrize("marginal", MARGINALS)
def test_the_users_model_is_as_it_was_after_calls_inside_transforms_and_out(marginal: str) -> None:
    small, model = Small(), nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 3)).double()
    target = small.target(model, marginal=MARGINALS[marginal](model, [small.batch(1)]))
    params, batch = {name: value.requires_grad_() for name, value in random_weights(target).items()}, small.batch()
    with untouched(model):
        target(params, batch)[0].backward()
        _, aux = grad(target, has_aux=True)({name: value.detach() for name, value in params.items()}, batch)
        target.follow(params, aux)
        target.outputs(params, batch[0])
        target.log_marginal(params, batch).sum().backward()
    assert all(value.grad is not None for value in params.values())


def test_moving_averages_that_are_given_are_moved_and_the_models_own_never() -> None:
    small, model = Small(), Normalised()
    target, (x, y) = small.target(model), small.batch()
    buffers = target.buffers()
    params = random_weights(target)
    with untouched(model):
        target(params, (x, y))
        grad(target, has_aux=True)(params, (x, y))
        target(params | buffers, (x, y))
    torch.testing.assert_close(buffers["norm.running_mean"], 0.1 * x.mean(0))
    assert int(buffers["norm.num_batches_tracked"]) == 1
    torch.testing.assert_close(target.log_prior(params | buffers), target.log_prior(params))


def test_a_pool_is_gone_over_in_eval_mode_though_the_model_trains() -> None:
    small, model = Small(), nn.Sequential(nn.Dropout(0.9), nn.Linear(3, 3).double())
    target = small.target(model, marginal=PoolMarginal(model, [small.batch(1)], every=1))
    params, empty = random_weights(target), (torch.zeros(5, 3, dtype=torch.float64), torch.zeros(5, dtype=torch.long))
    with untouched(model), torch.random.fork_rng():
        inside = [grad(lambda params: (target(params, empty)[0],) * 2, has_aux=True)(params)[1] for _ in range(2)]
        torch.testing.assert_close(*inside, rtol=0, atol=0)
        torch.testing.assert_close(inside[0], target(params, empty)[0])


def test_tied_weights_are_one_weight() -> None:
    small, model = Small(), Tied()
    target = small.target(model, marginal=BatchMarginal())
    params, (x, _) = random_weights(target), small.batch()
    assert list(params) == ["first.weight", "first.bias", "second.bias"]
    w = params["first.weight"]
    expected = torch.tanh(x @ w.T + params["first.bias"]) @ w.T + params["second.bias"]
    torch.testing.assert_close(target.outputs(params, x), expected)


def test_frozen_weights_are_not_inferred_and_keep_their_values() -> None:
    small, model = Small(), nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3)).double()
    model[0].requires_grad_(False)
    target = small.target(model)
    assert list(target.parameters()) == ["1.weight", "1.bias"]
    params, (x, _) = random_weights(target), small.batch()
    torch.testing.assert_close(target.outputs(params, x), model[0](x) @ params["1.weight"].T + params["1.bias"])


def test_parameters_are_copies_and_include_the_likelihoods() -> None:
    likelihood = CumulativeLogit(4)
    target = Small(4, lambda: likelihood).target()
    params = target.parameters()
    assert set(params) == {"weight", "bias", "likelihood.first", "likelihood.log_gaps"}
    params["likelihood.first"] += 1
    assert float((params["likelihood.first"] - likelihood.first).detach()) == pytest.approx(1)
    assert not any(value.requires_grad for value in params.values())


def test_num_data_is_what_was_said_and_else_the_size_of_the_data() -> None:
    small = Small()
    assert small.target(num_data=7).with_data(100).num_data == 7
    assert small.target(num_data=None).with_data(100).num_data == 100
    params = random_weights(small.target())
    ten, hundred = (small.target(num_data=n, marginal=BatchMarginal())(params, small.batch())[0] for n in (10, 100))
    torch.testing.assert_close(ten - hundred, small.target().log_prior(params) * (1 / 10 - 1 / 100))


def test_the_default_prior_believes_the_output_bias_and_the_cutpoints_as_they_stand() -> None:
    likelihood, model = CumulativeLogit(3).double(), nn.Linear(2, 1).double()
    prevalence = Prevalence([0.98, 0.015, 0.005])
    start_at_prevalence(model, prevalence, likelihood)
    target = log_posterior(model, prevalence, likelihood, num_data=5)
    slope = grad(target.log_prior)(target.parameters())
    torch.testing.assert_close(
        {name: value for name, value in slope.items() if name != "weight"},
        {
            "bias": torch.zeros(1).double(),
            "likelihood.first": torch.zeros(1).double(),
            "likelihood.log_gaps": torch.zeros(1).double(),
        },
    )


def test_sghmc_of_posteriors_goes_by_its_gradient() -> None:
    """Without friction and noise a step makes the momentum lr times the gradient, and the next moves the weights by it."""
    problem = Logistic(2)
    target = problem.target()
    params = random_weights(target)
    transform = posteriors.sgmcmc.sghmc.build(target, lr=0.1, alpha=0.0, temperature=0.0, momenta=0.0)
    first, aux = transform.update(transform.init(params), problem.data, inplace=False)
    second, _ = transform.update(first, problem.data, inplace=False)
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    slopes = torch.autograd.grad(target(leaves, problem.data)[0], list(leaves.values()))
    for (name, start), slope in zip(params.items(), slopes, strict=True):
        torch.testing.assert_close(first.momenta[name], 0.1 * slope)
        torch.testing.assert_close(second.params[name], start + 0.01 * slope)
    assert aux["outputs"].shape == (problem.n, 1)


def test_the_variational_bound_of_posteriors_at_temperature_1_over_n_is_that_of_the_posterior_over_n() -> None:
    problem = Logistic(2)
    target = problem.target()
    mean = random_weights(target, scale=0.3)
    sds = {name: torch.full_like(value, 0.2) for name, value in mean.items()}
    with torch.random.fork_rng():
        torch.manual_seed(1000 * SEED)
        bound, _ = posteriors.vi.diag.nelbo(mean, sds, problem.data, target, 1 / problem.n, n_samples=1000, stl=False)
    stream = generator(6)
    drawn = {m: value + 0.2 * torch.randn(1000, *value.shape, dtype=value.dtype, generator=stream) for m, value in mean.items()}
    log_q = sum(torch.distributions.Normal(mean[m], 0.2).log_prob(drawn[m]).flatten(1).sum(1) for m in mean)
    assert_mean_is(log_q - problem.n * vmap(lambda w: target(w, problem.data)[0])(drawn), problem.n * bound, z=4 * 2**0.5)


def test_a_laplace_approximation_of_posteriors_has_its_curvature() -> None:
    problem = Logistic(2)
    target = problem.target()
    params = dict(sorted(random_weights(target).items()))  # the order in which posteriors writes matrices
    layout = Layout.of(params)
    transform = posteriors.laplace.dense_hessian.build(target)
    state, _ = transform.update(transform.init(params), problem.data, inplace=False)
    curvature = hessian(lambda vector: target(layout.unflatten(vector), problem.data)[0])(layout.flatten(params))
    torch.testing.assert_close(state.prec, -curvature)


def test_what_cannot_be_a_log_posterior_is_refused() -> None:
    prevalence, model = Prevalence.binary(0.1), nn.Linear(2, 2)
    named = nn.ModuleDict({"likelihood": nn.Linear(2, 2)})
    x, y = torch.zeros(8, 2), torch.arange(8) % 2
    assert_refused(lambda: log_posterior(lambda x: x, prevalence), "nn.Module")  # type: ignore[arg-type]
    normed = nn.Sequential(nn.Linear(2, 2))
    normed.add_module("likelihood", nn.BatchNorm1d(2, affine=False))
    for taken in (named, normed):
        assert_refused(partial(log_posterior, taken, prevalence), "rename")
    assert_refused(lambda: log_posterior(nn.Linear(2, 2).requires_grad_(False), prevalence), "unfreeze")
    assert_refused(lambda: log_posterior(model, prevalence, prior=1.0), "gaussian_prior")  # type: ignore[arg-type]
    for num_data in (0, -1, 2.5, True):
        assert_refused(partial(log_posterior, model, prevalence, num_data=num_data), "num_data")  # type: ignore[arg-type]
    for loss in (nn.CrossEntropyLoss, LogLikelihoodLoss(prevalence), "weighted"):
        assert_refused(partial(log_posterior, model, prevalence, loss=loss), "WeightedLoss")  # type: ignore[arg-type]
    assert_refused(lambda: log_posterior(model, prevalence, loss=WeightedLoss, marginal=BatchMarginal()), "no marginal")
    assert_refused(lambda: log_posterior(model, prevalence, loss=WeightedLoss, pool=(x, y)), "pool")
    assert_refused(lambda: log_posterior(model, prevalence, marginal=BatchMarginal(), pool=(x, y)), "both")
    assert_refused(lambda: log_posterior(model, prevalence, Bernoulli, num_data=1), "call the class")  # type: ignore[arg-type]
    assert_refused(lambda: log_posterior(model, 0.1), "Prevalence")  # type: ignore[arg-type]


def test_a_pool_that_would_mislead_is_refused() -> None:
    prevalence, model = Prevalence.binary(0.1), nn.Linear(2, 2)
    x = torch.zeros(100, 2)
    assert_refused(lambda: log_posterior(model, prevalence, pool=(x, torch.arange(100) // 90)), "sampling")
    assert_refused(lambda: log_posterior(model, prevalence, pool=(x, torch.arange(98) % 2)), "cut off")
    assert_refused(lambda: log_posterior(model, prevalence, pool=x), "unlabelled")
    over_batch = log_posterior(model, prevalence)
    assert_refused(lambda: over_batch.log_marginal(over_batch.parameters(), x), "unlabelled")
    for other in (PoolMarginal(nn.Linear(2, 2), [(x, x)]), AuxiliaryMarginal(nn.Linear(2, 2))):
        assert_refused(partial(log_posterior, model, prevalence, marginal=other), "not with a copy")
    head = nn.Sequential(nn.Linear(2, 2), model)
    log_posterior(head, prevalence, marginal=AuxiliaryMarginal(model))


def test_weights_of_another_model_are_refused_and_not_left_out() -> None:
    target = Small().target()
    wrong = {"weights": torch.zeros(3, 3).double(), **random_weights(target)}
    assert_refused(lambda: target(wrong, Small().batch()), "weights")
    assert_refused(lambda: Small().target(num_data=None)(random_weights(target), Small().batch()), "num_data")
    assert_refused(lambda: Small().target(num_data=None).with_data(None), "num_data")


def test_a_marginal_that_is_one_for_all_follows_one_at_a_time() -> None:
    small = Small()
    target = small.target()
    _, aux = vmap(target, in_dims=(0, None))(random_weights(target, members=2), small.batch())
    assert_refused(lambda: target.follow(target.parameters(), aux), "follow each")


def test_outputs_that_are_not_finite_make_it_nan_for_the_method_to_stop() -> None:
    small = Small()
    x, y = small.batch()
    for options in ({}, {"pool": (x, y)}, {"loss": WeightedLoss}, {"marginal": BatchMarginal()}):
        target = small.target(**options)
        params = random_weights(target)
        params["bias"][0] = torch.inf
        assert bool(target(params, (x, y))[0].isnan())
        assert bool(target(random_weights(target), (x, y))[0].isfinite())


def test_arrays_make_a_pool_of_the_models_dtype() -> None:
    small = Small()
    x, y = small.batch()
    for model in (small.model(), small.model().float()):
        target = small.target(model, pool=(np.asarray(x), np.asarray(y)))
        assert target.pool is not None
        assert target.pool[0].dtype == next(model.parameters()).dtype
        assert target.log_marginal(target.parameters(), target.pool).dtype == target.pool[0].dtype
