"""The log posterior as a function of weights and a minibatch."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from members import assert_refused, each_likelihood, generator
from small_targets import KINDS, MARGINALS, NUM_DATA, REFERENCES, Small, by_hand, posterior_by_hand, random_weights
from torch import Tensor, nn
from torch.func import grad, hessian, jacrev, vmap

from rightloss import (
    BatchMarginal,
    Bernoulli,
    Categorical,
    ContinuousPrevalence,
    Gaussian,
    InformationGainLoss,
    LogitAdjustedLoss,
    LogLikelihoodLoss,
    OnionPeeling,
    PoolMarginal,
    Prevalence,
    RunningMarginal,
    WeightedLoss,
)
from rightloss.inference import (
    LogPosterior,
    expectation_propagation,
    gaussian_prior,
    laplace,
    log_posterior,
    map_estimate,
    sghmc,
)
from rightloss.inference.distributions import Layout
from rightloss.inference.weight_sets import evaluate_many

each_kind = pytest.mark.parametrize("kind", KINDS)
each_reference = pytest.mark.parametrize("reference", REFERENCES)
each_marginal = pytest.mark.parametrize("marginal", MARGINALS)
each_rival = pytest.mark.parametrize("loss", [WeightedLoss, LogitAdjustedLoss, LogLikelihoodLoss])


def value_of(target: LogPosterior, params: Any, batch: Any) -> Tensor:
    return target(params, batch)[0]


def flat_function(target: LogPosterior, batch: Any) -> Any:
    layout = Layout.of(target.parameters())
    return lambda vector: target(layout.unflatten(vector), batch)[0]


def flat(params: Any) -> Tensor:
    return Layout.of(params).flatten(params)


def assert_is(value: Any, expected: Any) -> None:
    torch.testing.assert_close(torch.as_tensor(value).detach(), torch.as_tensor(expected).to(torch.float64))


@each_likelihood
@each_reference
def test_its_value_is_the_mean_gain_and_the_priors_share(make: Any, k: int, reference: str) -> None:
    small = Small(k, make)
    r, (x, y) = REFERENCES[reference](small.prevalence), small.batch()
    target = small.target(marginal=BatchMarginal(), reference=r)
    params = random_weights(target)
    gain, m = by_hand(small.log_probs(params, x), small.votes(y), small.prevalence, r)
    value, aux = target(params, (x, y))
    assert_is(value, posterior_by_hand(gain, params))
    assert_is(aux["log_m"].exp(), m)


@each_kind
@each_reference
@pytest.mark.parametrize(("make", "k"), [(Categorical, 3), (lambda: OnionPeeling(5), 5)])
def test_labels_may_be_soft_and_dense_and_ignored(kind: str, reference: str, make: Any, k: int) -> None:
    small = Small(k, make, kind)
    r, (x, y) = REFERENCES[reference](small.prevalence), small.batch()
    target = small.target(marginal=BatchMarginal(), reference=r)
    params = random_weights(target)
    gain, _ = by_hand(small.log_probs(params, x), small.votes(y), small.prevalence, r)
    assert_is(value_of(target, params, (x, y)), posterior_by_hand(gain, params))


@each_kind
@each_reference
def test_a_pool_gives_the_denominator_exactly_at_the_weights_given(kind: str, reference: str) -> None:
    small = Small(kind=kind)
    r, (x, y), pool = REFERENCES[reference](small.prevalence), small.batch(), small.batch(1)
    target = small.target(pool=pool, reference=r)
    params = random_weights(target)
    _, q = by_hand(small.log_probs(params, pool[0]), small.votes(pool[1]), small.prevalence, r)
    gain, _ = by_hand(small.log_probs(params, x), small.votes(y), small.prevalence, r, q)
    assert_is(target.log_marginal(params, pool).exp(), q)
    assert_is(value_of(target, params, (x, y)), posterior_by_hand(gain, params))


def test_the_running_marginal_is_the_denominator_that_the_batches_so_far_give() -> None:
    small = Small()
    target = small.target(marginal=RunningMarginal(0.7))
    weights, batches = [random_weights(target, seed) for seed in range(3)], [small.batch(seed) for seed in range(3)]
    values = [value_of(target, *pair) for pair in zip(weights, batches, strict=True)]
    tables = [small.log_probs(params, x) for params, (x, _) in zip(weights, batches, strict=True)]
    ms = [by_hand(table, small.votes(y), small.prevalence, None)[1] for table, (_, y) in zip(tables, batches, strict=True)]
    q = (0.49 * ms[0] + 0.7 * ms[1] + ms[2]) / (0.49 + 0.7 + 1)
    gain, _ = by_hand(tables[2], small.votes(batches[2][1]), small.prevalence, None, q)
    assert_is(values[2], posterior_by_hand(gain, weights[2]))


@each_reference
def test_a_pool_marginal_is_exact_at_the_weights_given_inside_a_transform_and_out(reference: str) -> None:
    small, model = Small(), Small().model()
    r, batch, pool = REFERENCES[reference](small.prevalence), small.batch(), [small.batch(1), list(small.batch(2))]
    target = small.target(model, marginal=PoolMarginal(model, pool, every=1), reference=r)
    params = random_weights(target)
    x, votes = torch.cat([x for x, _ in pool]), np.concatenate([small.votes(y) for _, y in pool])
    _, q = by_hand(small.log_probs(params, x), votes, small.prevalence, r)
    gain, _ = by_hand(small.log_probs(params, batch[0]), small.votes(batch[1]), small.prevalence, r, q)
    assert_is(value_of(target, params, batch), posterior_by_hand(gain, params))
    _, inside = grad(lambda params: target(params, batch)[0].repeat(2).unbind(), has_aux=True)(params)
    assert_is(inside, posterior_by_hand(gain, params))


def test_an_unlabelled_pool_may_come_with_more_than_its_inputs() -> None:
    small, model = Small(), Small().model()
    r, x = small.prevalence.population, small.batch(1)[0]
    plain, more = PoolMarginal(model, [x], labelled=False), PoolMarginal(model, [(x, torch.ones(3))], labelled=False)
    params = random_weights(small.target(model))
    values = [jacrev(value_of, 1)(small.target(model, marginal=m, reference=r), params, small.batch()) for m in (plain, more)]
    torch.testing.assert_close(*values)
    exact = small.target(model, pool=x, reference=r).log_marginal(params, x)
    assert_is(exact, np.log(np.exp(small.log_probs(params, x)).mean(0)))


@each_rival
@each_kind
def test_a_rivals_loss_counts_as_minus_the_log_likelihood(loss: Any, kind: str) -> None:
    small = Small(kind=kind)
    x, y = small.batch()
    target = small.target(loss=loss)
    params = random_weights(target)
    table, votes = small.log_probs(params, x), small.votes(y)
    pi, rho = np.asarray(small.prevalence.population), np.asarray(small.prevalence.sampling)
    adjusted = table + np.log(rho / pi)
    terms = {
        WeightedLoss: votes * table * pi / rho,
        LogitAdjustedLoss: votes * (adjusted - np.log(np.exp(adjusted).sum(1, keepdims=True))),
        LogLikelihoodLoss: votes * table,
    }[loss]
    assert_is(value_of(target, params, (x, y)), posterior_by_hand(terms.sum() / (votes.sum(1) > 0).sum(), params))
    assert target.marginal is None


@each_reference
def test_a_constant_predictor_gains_nothing(reference: str) -> None:
    small = Small(evidence=0.0)
    prevalence = Prevalence(small.prevalence.population, sampling=[0.5, 0.25, 0.25], evidence=0.0)
    x, y = torch.randn(8, 3, dtype=torch.float64, generator=generator(3)), torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    options = {"reference": REFERENCES[reference](prevalence), "prior": lambda params: params["bias"].sum() * 0, "num_data": 8}
    constant = {"weight": torch.zeros(3, 3, dtype=torch.float64), "bias": torch.tensor([0.3, -2, 1], dtype=torch.float64)}
    for how in ({"marginal": BatchMarginal()}, {"pool": (x, y)}):
        target = log_posterior(small.model(), prevalence, **how, **options)
        assert_is(value_of(target, constant, (x, y)), 0.0)


@pytest.mark.long
@each_reference
@each_kind
def test_a_pool_that_is_the_batch_is_the_batch_marginal_in_value_gradient_and_curvature(reference: str, kind: str) -> None:
    small = Small(kind=kind)
    r, batch = REFERENCES[reference](small.prevalence), small.batch()
    over_pool, over_batch = small.target(pool=batch, reference=r), small.target(marginal=BatchMarginal(), reference=r)
    at = flat(random_weights(over_pool))
    for derivative in (lambda function: function, grad, hessian):
        one, other = (derivative(flat_function(target, batch))(at) for target in (over_pool, over_batch))
        torch.testing.assert_close(one, other)
    outside = [torch.autograd.functional.hessian(flat_function(target, batch), at) for target in (over_pool, over_batch)]
    torch.testing.assert_close(outside[0], hessian(flat_function(over_pool, batch))(at))
    torch.testing.assert_close(outside[1], outside[0])


def settled(marginal: str, small: Small, **options: Any) -> LogPosterior:
    """A target whose marginal has seen two batches, and is now used as it stands."""
    model = small.model()
    target = small.target(model, marginal=MARGINALS[marginal](model, [small.batch(5)]), **options)
    for seed in (6, 7):
        target(random_weights(target, seed), small.batch(seed))
    target.criterion.marginal.eval()
    return target


@each_marginal
@each_reference
def test_its_gradient_is_the_same_by_autograd_and_by_torch_func(marginal: str, reference: str) -> None:
    small = Small()
    target = settled(marginal, small, reference=REFERENCES[reference](small.prevalence))
    params, batch = random_weights(target), small.batch()
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    if isinstance(target.marginal, PoolMarginal):
        target.marginal.reset()  # so that a pass is due, as it always is inside
    outside = torch.autograd.grad(value_of(target, leaves, batch), list(leaves.values()))
    inside, _ = grad(target, has_aux=True)(params, batch)
    torch.testing.assert_close(list(inside.values()), list(outside))


@pytest.mark.long
@each_marginal
@each_kind
def test_vmap_over_weights_is_a_loop(marginal: str, kind: str) -> None:
    small = Small(kind=kind)
    target = settled(marginal, small)
    many, batch = random_weights(target, members=3), small.batch()
    together, aux = vmap(target, in_dims=(0, None))(many, batch)
    each = [grad_and_value(target, {name: value[m] for name, value in many.items()}, batch) for m in range(3)]
    torch.testing.assert_close(together, torch.stack([value for value, _ in each]))
    torch.testing.assert_close(aux["log_m"], torch.stack([one["log_m"] for _, one in each]))


def grad_and_value(target: LogPosterior, params: Any, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The value inside a transform, where every marginal is as it stands."""
    _, (value, aux) = grad(lambda params: (target(params, batch)[0], target(params, batch)), has_aux=True)(params)
    return value, aux


@pytest.mark.long
@pytest.mark.parametrize("marginal", ["running", "auxiliary"])
def test_inside_a_transform_a_marginal_stays_and_follow_moves_it_as_a_call_outside_would(marginal: str) -> None:
    small, targets = Small(), []
    for _ in range(2):
        torch.manual_seed(0)
        model = small.model()
        targets.append(small.target(model, marginal=MARGINALS[marginal](model, [])))
    inside, outside = targets
    for step in range(4):
        params, batch = random_weights(inside, step), small.batch(step)
        before = state_of(inside)
        _, aux = grad(inside, has_aux=True)(params, batch)
        assert_same_state(state_of(inside), before)
        inside.follow(params, aux)
        outside(params, batch)
        assert_same_state(state_of(inside), state_of(outside))
        with pytest.raises(AssertionError):
            assert_same_state(state_of(inside), before)


def state_of(target: LogPosterior) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in target.criterion.marginal.state_dict().items() if isinstance(value, Tensor)}


def assert_same_state(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Adam divides gradients by their size, and so their rounding too; a step of it is 1e-3."""
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_a_marginal_moves_once_in_a_call_and_not_at_all_in_eval_mode() -> None:
    small = Small()
    target = small.target()
    assert isinstance(target.marginal, RunningMarginal)
    for _ in range(3):
        target(random_weights(target), small.batch())
    assert int(target.marginal.steps) == 3
    target.marginal.eval()
    target(random_weights(target), small.batch())
    assert int(target.marginal.steps) == 3


def test_log_marginal_over_batches_is_that_over_all_and_the_pool_marginals() -> None:
    small, model = Small(kind="dense"), Small(kind="dense").model()
    r, pool = small.prevalence.population, [small.batch(1), small.batch(2), small.batch(3)]
    marginal = PoolMarginal(model, pool)
    target = small.target(model, marginal=marginal, reference=r)
    params = random_weights(target)
    target(params, small.batch())
    exact = target.log_marginal(params, pool)
    torch.testing.assert_close(exact, marginal._last_pass)
    torch.testing.assert_close(
        exact, target.log_marginal(params, (torch.cat([x for x, _ in pool]), torch.cat([y for _, y in pool])))
    )


def test_outputs_and_table_are_the_models_with_these_weights() -> None:
    small = Small(kind="dense")
    target, (x, _) = small.target(), small.batch()
    params = random_weights(target)
    twin = small.model()
    twin.load_state_dict(params)
    torch.testing.assert_close(target.outputs(params, x), twin(x))
    assert_is(target.table(params, x), small.log_probs(params, x))


def test_regression_has_the_batchs_own_labels_as_the_support() -> None:
    prevalence, likelihood = ContinuousPrevalence(torch.distributions.Normal(0.0, 1.0)), Gaussian().double()
    model, twin = (nn.Linear(3, likelihood.num_outputs).double() for _ in range(2))
    x = torch.randn(9, 3, dtype=torch.float64, generator=generator(4))
    y, batch = x.sum(1), (x[:4], x[:4].sum(1))
    target = log_posterior(model, prevalence, likelihood, prior=gaussian_prior(2.0), num_data=NUM_DATA)
    params = random_weights(target)
    loss = InformationGainLoss(prevalence, Gaussian().double())
    twin.load_state_dict({name: value for name, value in params.items() if "likelihood" not in name})
    loss.load_state_dict({name: value for name, value in params.items() if "likelihood" in name})
    assert_is(value_of(target, params, (x, y)), posterior_by_hand(-float(loss(twin(x), y).detach()), params))
    target = log_posterior(model, prevalence, likelihood, PoolMarginal(model, [(x, y)]), num_data=NUM_DATA)
    torch.testing.assert_close(grad_and_value(target, params, batch)[0], value_of(target, params, batch))
    assert_refused(lambda: target.log_marginal(params, (x, y)), "density")


EXACT = Prevalence([0.9, 0.07, 0.03], sampling=[0.4, 0.3, 0.3])


def exact_case(rows: int = 30) -> tuple[LogPosterior, dict[str, Tensor], tuple[Tensor, Tensor]]:
    """A target with `evidence="exact"` and a flat prior, weights near those of the data, and the data."""
    stream = generator(0)
    y = torch.arange(rows) % 3
    x = torch.randn(rows, 2, generator=stream, dtype=torch.float64)
    x[:, 0] += 0.8 * y
    model = nn.Linear(2, 3).double()
    target = log_posterior(model, EXACT, prior=lambda params: torch.zeros(()), num_data=rows, evidence="exact")
    weight = 0.5 * torch.randn(3, 2, generator=stream, dtype=torch.float64)
    bias = torch.tensor(EXACT.population).log() - (weight @ x.mean(0))
    return target, {"weight": weight, "bias": bias}, (x, y)


def profiled(params: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> float:
    """The log-likelihood with the mix r by many steps of EM, from its definition."""
    x, y = batch
    table = torch.log_softmax(x @ params["weight"].T + params["bias"], 1) - torch.tensor(EXACT.population).log()
    log_r = torch.full((3,), -float(np.log(3)), dtype=torch.float64)
    for _ in range(20_000):
        log_r = torch.log_softmax(table + log_r, 1).exp().mean(0).log()
    return float((table.gather(1, y[:, None]).squeeze(1) - torch.logsumexp(table + log_r, 1)).mean())


@pytest.mark.long
def test_an_exact_prevalence_has_the_gain_at_the_most_probable_mix_of_the_rows() -> None:
    target, params, batch = exact_case()
    moved = {**params, "bias": params["bias"] + torch.tensor([0.0, 1.0, -0.5])}  # at the boundary of the simplex
    for each in (params, moved):
        assert float(value_of(target, each, batch)) == pytest.approx(profiled(each, batch), abs=1e-6)


@pytest.mark.long
def test_an_exact_prevalence_has_exact_second_derivatives() -> None:
    target, params, batch = exact_case()
    layout = Layout.of(params)

    def value(vector: Tensor) -> Tensor:
        return value_of(target, layout.unflatten(vector), batch)

    start = layout.flatten(params).requires_grad_()
    assert torch.autograd.gradcheck(value, start)
    direction = torch.randn(len(start), dtype=torch.float64, generator=generator(1))
    there, back = (grad(value)(start.detach() + step * direction) for step in (1e-5, -1e-5))
    torch.testing.assert_close(hessian(value)(start.detach()) @ direction, (there - back) / 2e-5, rtol=1e-5, atol=1e-7)


def test_many_weights_at_once_have_the_exact_likelihood_of_each() -> None:
    target, params, batch = exact_case()
    several = {name: torch.stack([value, 0.5 * value, value + 0.3]) for name, value in params.items()}
    found, _ = evaluate_many(target, several, batch, shared=True)
    alone = [value_of(target, {name: value[one] for name, value in several.items()}, batch) for one in range(3)]
    torch.testing.assert_close(found, torch.stack(alone))


@pytest.mark.long
def test_an_exact_prevalence_has_the_mode_of_counted_people_and_a_smaller_variance_of_the_intercept() -> None:
    y = torch.arange(120) % 2
    x = torch.randn(120, 1, generator=generator(2), dtype=torch.float64) + y[:, None]
    prevalence, wide = Prevalence.binary(0.05), gaussian_prior(1000.0)
    counted, exact = (
        laplace(log_posterior(nn.Linear(1, 1).double(), prevalence, Bernoulli(), prior=wide, evidence=evidence), (x, y))
        for evidence in (None, "exact")
    )
    torch.testing.assert_close(exact.mean, counted.mean, rtol=1e-4, atol=1e-4)
    expected = counted.distribution.covariance() - torch.tensor([[0.0, 0.0], [0.0, 2 / 60]])  # of slope and intercept
    torch.testing.assert_close(exact.distribution.covariance(), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("curvature", ["hessian", "fisher"])
def test_laplace_has_the_curvature_of_the_exact_likelihood(curvature: Any) -> None:
    target, params, batch = exact_case()
    target = log_posterior(target.model, EXACT, prior=gaussian_prior(1.0), num_data=30, evidence="exact")
    posterior = laplace(target, batch, curvature=curvature, mode=params)
    vector = posterior.distribution.mean
    found = hessian(lambda at: -30 * value_of(target, posterior.layout.unflatten(at), batch))(vector)
    # a softmax of linear outputs has its Hessian as Fisher information
    torch.testing.assert_close(torch.linalg.inv(posterior.distribution.covariance()), found, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"evidence": "exact", "pool": torch.zeros(4, 2)}, "no pool"),
        ({"evidence": "exact", "reference": EXACT.population}, "no reference"),
        ({"evidence": "exact", "unlabelled": torch.zeros(4, 2)}, "no unlabelled"),
    ],
)
def test_an_exact_prevalence_refuses_options_that_it_cannot_use(options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        log_posterior(nn.Linear(2, 3), EXACT, **options)


@pytest.mark.parametrize("method", [partial(map_estimate, batch_size=8), partial(sghmc, batch_size=8), expectation_propagation])
def test_an_exact_prevalence_refuses_methods_that_do_not_see_all_rows_together(method: Any) -> None:
    target, _, batch = exact_case()
    with pytest.raises(ValueError, match="exact"):
        method(target, batch, progress=False)
