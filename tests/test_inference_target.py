"""The log posterior as a function of weights and a minibatch, also in the form that `posteriors` takes; what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from logistic import Logistic
from members import assert_refused, generator
from oracles import posteriors
from small_targets import MARGINALS, NUM_DATA, REFERENCES, Small, by_hand, posterior_by_hand, random_weights
from torch import Tensor, nn
from torch.func import grad, hessian, vmap

import rightloss as rl
from rightloss import inference
from rightloss.inference.distributions import Layout
from rightloss.inference.weight_sets import evaluate_many


def value_of(target: inference.LogPosterior, params: Any, batch: Any) -> Tensor:
    return target(params, batch)[0]


def flat_function(target: inference.LogPosterior, batch: Any) -> Callable[[Tensor], Tensor]:
    layout = Layout.of(target.parameters())
    return lambda vector: target(layout.unflatten(vector), batch)[0]


def flat(params: Any) -> Tensor:
    return Layout.of(params).flatten(params)


def assert_is(value: Any, expected: Any) -> None:
    torch.testing.assert_close(torch.as_tensor(value).detach(), torch.as_tensor(expected).to(torch.float64))


# A likelihood of each kind, with each kind of labels and each reference.
CASES: list[tuple[Any, int, str, str]] = [
    (rl.Categorical, 3, "soft", "population"),
    (rl.Categorical, 3, "dense", "sampling"),
    (rl.Bernoulli, 2, "hard", "sampling"),
    (lambda: rl.OnionPeeling(5), 5, "dense", "another"),
    (lambda: rl.StickBreaking(4), 4, "dense soft", "population"),
    (lambda: rl.CumulativeLogit(3), 3, "hard", "another"),
]


@pytest.mark.parametrize(("make", "k", "kind", "reference"), CASES)
def test_its_value_is_the_mean_gain_and_the_priors_share_over_the_batch_or_a_pool(
    make: Any, k: int, kind: str, reference: str
) -> None:
    small = Small(k, make, kind)
    r, (x, y), pool = REFERENCES[reference](small.prevalence), small.batch(), small.batch(1)
    over_batch, over_pool = small.target(marginal=rl.BatchMarginal(), reference=r), small.target(pool=pool, reference=r)
    params = random_weights(over_batch)
    table, votes = small.log_probs(params, x), small.votes(y)
    gain, m = by_hand(table, votes, small.prevalence, r)
    value, aux = over_batch(params, (x, y))
    assert_is(value, posterior_by_hand(gain, params))
    assert_is(aux["log_m"].exp(), m)
    _, q = by_hand(small.log_probs(params, pool[0]), small.votes(pool[1]), small.prevalence, r)
    assert_is(over_pool.log_marginal(params, pool).exp(), q)
    assert_is(value_of(over_pool, params, (x, y)), posterior_by_hand(by_hand(table, votes, small.prevalence, r, q)[0], params))


def test_the_running_marginal_is_the_denominator_that_the_batches_so_far_give() -> None:
    small = Small()
    target = small.target(marginal=rl.RunningMarginal(0.7))
    weights, batches = [random_weights(target, seed) for seed in range(3)], [small.batch(seed) for seed in range(3)]
    values = [value_of(target, *pair) for pair in zip(weights, batches, strict=True)]
    tables = [small.log_probs(params, x) for params, (x, _) in zip(weights, batches, strict=True)]
    ms = [by_hand(table, small.votes(y), small.prevalence, None)[1] for table, (_, y) in zip(tables, batches, strict=True)]
    q = (0.49 * ms[0] + 0.7 * ms[1] + ms[2]) / (0.49 + 0.7 + 1)
    gain, _ = by_hand(tables[2], small.votes(batches[2][1]), small.prevalence, None, q)
    assert_is(values[2], posterior_by_hand(gain, weights[2]))
    assert isinstance(target.marginal, rl.RunningMarginal)
    assert int(target.marginal.steps) == 3
    target.marginal.eval()
    target(weights[0], batches[0])
    assert int(target.marginal.steps) == 3


def test_a_pool_marginal_is_exact_at_the_weights_given_inside_a_transform_and_out() -> None:
    small, model = Small(), Small().model()
    r, batch, pool = REFERENCES["another"](small.prevalence), small.batch(), [small.batch(1), list(small.batch(2))]
    target = small.target(model, marginal=rl.PoolMarginal(model, pool, every=1), reference=r)
    params = random_weights(target)
    x, votes = torch.cat([x for x, _ in pool]), np.concatenate([small.votes(y) for _, y in pool])
    _, q = by_hand(small.log_probs(params, x), votes, small.prevalence, r)
    gain, _ = by_hand(small.log_probs(params, batch[0]), small.votes(batch[1]), small.prevalence, r, q)
    assert_is(value_of(target, params, batch), posterior_by_hand(gain, params))
    _, inside = grad(lambda params: target(params, batch)[0].repeat(2).unbind(), has_aux=True)(params)
    assert_is(inside, posterior_by_hand(gain, params))
    both = [(x, y) for x, y in map(tuple, pool)]
    assert_is(target.log_marginal(params, both).exp(), q)


@pytest.mark.parametrize(
    ("loss", "kind"), [(rl.WeightedLoss, "soft"), (rl.LogitAdjustedLoss, "dense"), (rl.LogLikelihoodLoss, "dense soft")]
)
def test_a_rivals_loss_counts_as_minus_the_log_likelihood(loss: Any, kind: str) -> None:
    small = Small(kind=kind)
    x, y = small.batch()
    target = small.target(loss=loss)
    params = random_weights(target)
    table, votes = small.log_probs(params, x), small.votes(y)
    pi, rho = np.asarray(small.prevalence.population), np.asarray(small.prevalence.sampling)
    adjusted = table + np.log(rho / pi)
    terms = {
        rl.WeightedLoss: votes * table * pi / rho,
        rl.LogitAdjustedLoss: votes * (adjusted - np.log(np.exp(adjusted).sum(1, keepdims=True))),
        rl.LogLikelihoodLoss: votes * table,
    }[loss]
    assert_is(value_of(target, params, (x, y)), posterior_by_hand(terms.sum() / (votes.sum(1) > 0).sum(), params))
    assert target.marginal is None


@pytest.mark.long
def test_a_pool_that_is_the_batch_is_the_batch_marginal_in_curvature_inside_a_transform_and_out() -> None:
    small = Small(kind="dense soft")
    batch, pi = small.batch(), small.prevalence.population
    over_pool, over_batch = small.target(pool=batch, reference=pi), small.target(marginal=rl.BatchMarginal(), reference=pi)
    at = flat(random_weights(over_pool))
    expected = hessian(flat_function(over_pool, batch))(at)
    torch.testing.assert_close(hessian(flat_function(over_batch, batch))(at), expected)
    for target in (over_pool, over_batch):
        torch.testing.assert_close(torch.autograd.functional.hessian(flat_function(target, batch), at), expected)


@pytest.mark.long
@pytest.mark.parametrize(
    ("marginal", "kind"),
    [("batch", "dense"), ("classwise", "hard"), ("running", "soft"), ("pool", "dense soft"), ("auxiliary", "hard")],
)
def test_its_gradient_is_autograds_and_vmap_over_weights_is_a_loop(marginal: str, kind: str) -> None:
    """The marginal has seen two batches, and is now used as it stands."""
    small = Small(kind=kind)
    model, batch = small.model(), small.batch()
    marginal_of = MARGINALS[marginal](model, [small.batch(5)])
    target = small.target(model, marginal=marginal_of, reference=REFERENCES["another"](small.prevalence))
    for seed in (6, 7):
        target(random_weights(target, seed), small.batch(seed))
    target.criterion.marginal.eval()
    params = random_weights(target)
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    if isinstance(target.marginal, rl.PoolMarginal):
        target.marginal.reset()  # so that a pass is due, as it always is inside
    outside = torch.autograd.grad(value_of(target, leaves, batch), list(leaves.values()))
    inside, _ = grad(target, has_aux=True)(params, batch)
    torch.testing.assert_close(list(inside.values()), list(outside))
    many = random_weights(target, members=3)
    together, aux = vmap(target, in_dims=(0, None))(many, batch)
    each = [inside_of(target, {name: value[m] for name, value in many.items()}, batch) for m in range(3)]
    torch.testing.assert_close(together, torch.stack([value for value, _ in each]))
    torch.testing.assert_close(aux["log_m"], torch.stack([one["log_m"] for _, one in each]))


def inside_of(target: inference.LogPosterior, params: Any, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The value inside a transform, where every marginal is as it stands."""
    _, (value, aux) = grad(lambda params: (target(params, batch)[0], target(params, batch)), has_aux=True)(params)
    return value, aux


@pytest.mark.long
@pytest.mark.parametrize("marginal", ["running", "auxiliary"])
def test_inside_a_transform_a_marginal_stays_and_follow_moves_it_as_a_call_outside_would(marginal: str) -> None:
    def state_of(target: inference.LogPosterior) -> dict[str, Tensor]:
        state = target.criterion.marginal.state_dict()
        return {name: value.clone() for name, value in state.items() if isinstance(value, Tensor)}

    # Adam divides gradients by their size, and so their rounding too; a step of it is 1e-3
    same = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-6)
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
        same(state_of(inside), before)
        inside.follow(params, aux)
        outside(params, batch)
        same(state_of(inside), state_of(outside))
        with pytest.raises(AssertionError):
            same(state_of(inside), before)
    _, aux = vmap(inside, in_dims=(0, None))(random_weights(inside, members=2), small.batch())
    assert_refused(lambda: inside.follow(inside.parameters(), aux), "follow each")


def test_regression_has_the_batchs_own_labels_as_the_support() -> None:
    prevalence, likelihood = rl.ContinuousPrevalence(torch.distributions.Normal(0.0, 1.0)), rl.Gaussian().double()
    model, twin = (nn.Linear(3, likelihood.num_outputs).double() for _ in range(2))
    x = torch.randn(9, 3, dtype=torch.float64, generator=generator(4))
    y, batch = x.sum(1), (x[:4], x[:4].sum(1))
    target = inference.log_posterior(model, prevalence, likelihood, prior=inference.gaussian_prior(2.0), num_data=NUM_DATA)
    params = random_weights(target)
    loss = rl.InformationGainLoss(prevalence, rl.Gaussian().double())
    twin.load_state_dict({name: value for name, value in params.items() if "likelihood" not in name})
    loss.load_state_dict({name: value for name, value in params.items() if "likelihood" in name})
    assert_is(value_of(target, params, (x, y)), posterior_by_hand(-float(loss(twin(x), y).detach()), params))
    target = inference.log_posterior(model, prevalence, likelihood, rl.PoolMarginal(model, [(x, y)]), num_data=NUM_DATA)
    torch.testing.assert_close(inside_of(target, params, batch)[0], value_of(target, params, batch))
    assert_refused(lambda: target.log_marginal(params, (x, y)), "density")


EXACT = rl.Prevalence([0.9, 0.07, 0.03], sampling=[0.4, 0.3, 0.3])


class TestAnExactPrevalence:
    @staticmethod
    def case() -> tuple[inference.LogPosterior, dict[str, Tensor], tuple[Tensor, Tensor]]:
        """A target with `evidence="exact"` and a flat prior, weights near those of the data, and the data."""
        stream, y = generator(0), torch.arange(30) % 3
        x = torch.randn(30, 2, generator=stream, dtype=torch.float64)
        x[:, 0] += 0.8 * y
        model = nn.Linear(2, 3).double()
        target = inference.log_posterior(model, EXACT, prior=lambda params: torch.zeros(()), num_data=30, evidence="exact")
        weight = 0.5 * torch.randn(3, 2, generator=stream, dtype=torch.float64)
        bias = torch.tensor(EXACT.population).log() - (weight @ x.mean(0))
        return target, {"weight": weight, "bias": bias}, (x, y)

    @staticmethod
    def profiled(params: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> float:
        """The log-likelihood with the mix r by many steps of EM, from its definition."""
        x, y = batch
        table = torch.log_softmax(x @ params["weight"].T + params["bias"], 1) - torch.tensor(EXACT.population).log()
        log_r = torch.full((3,), -float(np.log(3)), dtype=torch.float64)
        for _ in range(20_000):
            log_r = torch.log_softmax(table + log_r, 1).exp().mean(0).log()
        return float((table.gather(1, y[:, None]).squeeze(1) - torch.logsumexp(table + log_r, 1)).mean())

    @pytest.mark.long
    def test_has_the_gain_at_the_most_probable_mix_of_the_rows_at_one_set_of_weights_or_many(self) -> None:
        target, params, batch = self.case()
        moved = {**params, "bias": params["bias"] + torch.tensor([0.0, 1.0, -0.5])}  # at the boundary of the simplex
        expected = [self.profiled(each, batch) for each in (params, moved)]
        assert [float(value_of(target, each, batch)) for each in (params, moved)] == pytest.approx(expected, abs=1e-6)
        both = {name: torch.stack([params[name], moved[name]]) for name in params}
        assert evaluate_many(target, both, batch, shared=True)[0].tolist() == pytest.approx(expected, abs=1e-6)

    @pytest.mark.long
    def test_has_exact_second_derivatives_which_laplace_has_too(self) -> None:
        target, params, batch = self.case()
        value, start = flat_function(target, batch), flat(params).requires_grad_()
        assert torch.autograd.gradcheck(value, start)
        direction = torch.randn(len(start), dtype=torch.float64, generator=generator(1))
        there, back = (grad(value)(start.detach() + step * direction) for step in (1e-5, -1e-5))
        bends = hessian(value)(start.detach())
        torch.testing.assert_close(bends @ direction, (there - back) / 2e-5, rtol=1e-5, atol=1e-7)
        held = inference.log_posterior(target.model, EXACT, prior=inference.gaussian_prior(1.0), num_data=30, evidence="exact")
        for curvature in ("hessian", "fisher"):  # a softmax of linear outputs has its Hessian as Fisher information
            posterior = inference.laplace(held, batch, curvature=curvature, mode=params)
            precision = torch.linalg.inv(posterior.distribution.covariance())
            torch.testing.assert_close(precision, torch.eye(9).double() - 30 * bends, rtol=1e-6, atol=1e-6)

    @pytest.mark.long
    def test_has_the_mode_of_counted_people_and_a_smaller_variance_of_the_intercept(self) -> None:
        y = torch.arange(120) % 2
        x = torch.randn(120, 1, generator=generator(2), dtype=torch.float64) + y[:, None]
        prevalence, wide = rl.Prevalence.binary(0.05), inference.gaussian_prior(1000.0)
        counted, exact = (
            inference.laplace(
                inference.log_posterior(nn.Linear(1, 1).double(), prevalence, rl.Bernoulli(), prior=wide, evidence=evidence),
                (x, y),
            )
            for evidence in (None, "exact")
        )
        torch.testing.assert_close(exact.mean, counted.mean, rtol=1e-4, atol=1e-4)
        expected = counted.distribution.covariance() - torch.tensor([[0.0, 0.0], [0.0, 2 / 60]])  # of slope and intercept
        torch.testing.assert_close(exact.distribution.covariance(), expected, rtol=1e-3, atol=1e-5)

    def test_refuses_options_and_methods_that_do_not_see_all_rows_together(self) -> None:
        x = torch.zeros(4, 2)
        refused: dict[str, Any] = {"pool": x, "reference": EXACT.population, "unlabelled": x}
        for option, given in refused.items():
            assert_refused(
                partial(inference.log_posterior, nn.Linear(2, 3), EXACT, evidence="exact", **{option: given}), f"no {option}"
            )
        assert_refused(lambda: inference.log_posterior(nn.Linear(2, 3), EXACT, evidence="all"), "`evidence`")
        target, _, batch = self.case()
        for method in (
            partial(inference.map_estimate, batch_size=8),
            partial(inference.sghmc, batch_size=8),
            inference.expectation_propagation,
        ):
            assert_refused(partial(method, target, batch, progress=False), "exact")


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


@pytest.mark.parametrize("marginal", ["running", "pool", "auxiliary"])
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
    small, model = Small(), nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)).double()
    target, (x, y) = small.target(model), small.batch()
    params, buffers = random_weights(target), target.buffers()
    with untouched(model):
        target(params, (x, y))
        grad(target, has_aux=True)(params, (x, y))
        target(params | buffers, (x, y))
    torch.testing.assert_close(buffers["0.running_mean"], 0.1 * x.mean(0))
    assert int(buffers["0.num_batches_tracked"]) == 1
    torch.testing.assert_close(target.log_prior(params | buffers), target.log_prior(params))


def test_a_pool_is_gone_over_in_eval_mode_though_the_model_trains() -> None:
    small, model = Small(), nn.Sequential(nn.Dropout(0.9), nn.Linear(3, 3).double())
    target = small.target(model, marginal=rl.PoolMarginal(model, [small.batch(1)], every=1))
    params, empty = random_weights(target), (torch.zeros(5, 3, dtype=torch.float64), torch.zeros(5, dtype=torch.long))
    with untouched(model), torch.random.fork_rng():
        inside = [grad(lambda params: (target(params, empty)[0],) * 2, has_aux=True)(params)[1] for _ in range(2)]
        torch.testing.assert_close(*inside, rtol=0, atol=0)
        torch.testing.assert_close(inside[0], target(params, empty)[0])


class Tied(nn.Module):
    """The same matrix twice, after a layer that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.first, self.second = nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(self.frozen(x))))


def test_tied_weights_are_one_weight_frozen_ones_stay_and_the_likelihoods_are_among_them() -> None:
    small, model = Small(), Tied()
    target = small.target(model, marginal=rl.BatchMarginal())
    params, (x, _) = random_weights(target), small.batch()
    assert list(params) == ["first.weight", "first.bias", "second.bias"]
    w = params["first.weight"]
    expected = torch.tanh(model.frozen(x) @ w.T + params["first.bias"]) @ w.T + params["second.bias"]
    torch.testing.assert_close(target.outputs(params, x), expected)
    torch.testing.assert_close(target.table(params, x), torch.log_softmax(expected, 1))
    likelihood = rl.CumulativeLogit(4)
    own = Small(4, lambda: likelihood).target().parameters()
    assert set(own) == {"weight", "bias", "likelihood.first", "likelihood.log_gaps"}
    own["likelihood.first"] += 1  # a copy
    assert float((own["likelihood.first"] - likelihood.first).detach()) == pytest.approx(1)
    assert not any(value.requires_grad for value in own.values())


def test_num_data_is_what_was_said_and_else_the_size_of_the_data() -> None:
    small = Small()
    assert small.target(num_data=7).with_data(100).num_data == 7
    assert small.target(num_data=None).with_data(100).num_data == 100
    params = random_weights(small.target())
    ten, hundred = (small.target(num_data=n, marginal=rl.BatchMarginal())(params, small.batch())[0] for n in (10, 100))
    torch.testing.assert_close(ten - hundred, small.target().log_prior(params) * (1 / 10 - 1 / 100))


def test_the_default_prior_believes_the_output_bias_and_the_cutpoints_as_they_stand() -> None:
    likelihood, model = rl.CumulativeLogit(3).double(), nn.Linear(2, 1).double()
    prevalence = rl.Prevalence([0.98, 0.015, 0.005])
    rl.start_at_prevalence(model, prevalence, likelihood)
    target = inference.log_posterior(model, prevalence, likelihood, num_data=5)
    slope = grad(target.log_prior)(target.parameters())
    assert not any(bool(slope[name].any()) for name in ("bias", "likelihood.first", "likelihood.log_gaps"))
    assert bool(slope["weight"].any())


def test_sghmc_of_posteriors_goes_by_its_gradient_and_its_laplace_approximation_by_its_curvature() -> None:
    """Without friction and noise a step makes the momentum lr times the gradient, and the next moves the weights by it."""
    problem = Logistic(2)
    target = problem.target()
    params = dict(sorted(random_weights(target).items()))  # the order in which posteriors writes matrices
    transform = posteriors.sgmcmc.sghmc.build(target, lr=0.1, alpha=0.0, temperature=0.0, momenta=0.0)
    first, aux = transform.update(transform.init(params), problem.data, inplace=False)
    second, _ = transform.update(first, problem.data, inplace=False)
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    slopes = torch.autograd.grad(target(leaves, problem.data)[0], list(leaves.values()))
    for (name, start), slope in zip(params.items(), slopes, strict=True):
        torch.testing.assert_close(first.momenta[name], 0.1 * slope)
        torch.testing.assert_close(second.params[name], start + 0.01 * slope)
    assert aux["outputs"].shape == (problem.n, 1)
    bent = posteriors.laplace.dense_hessian.build(target)
    state, _ = bent.update(bent.init(params), problem.data, inplace=False)
    layout = Layout.of(params)
    curvature = hessian(lambda vector: target(layout.unflatten(vector), problem.data)[0])(layout.flatten(params))
    torch.testing.assert_close(state.prec, -curvature)


TWO, NET, X = rl.Prevalence.binary(0.1), nn.Linear(2, 2), torch.zeros(100, 2)
NORMED = nn.Sequential(nn.Linear(2, 2))
NORMED.add_module("likelihood", nn.BatchNorm1d(2, affine=False))
REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a function for a model": (lambda x: x, {}, "nn.Module"),
    "a part named likelihood": (NORMED, {}, "rename"),
    "nothing to infer": (nn.Linear(2, 2).requires_grad_(False), {}, "unfreeze"),
    "a number for a prior": (NET, {"prior": 1.0}, "gaussian_prior"),
    "half an example": (NET, {"num_data": 2.5}, "num_data"),
    "a loss of torch": (NET, {"loss": nn.CrossEntropyLoss}, "WeightedLoss"),
    "a loss that is made": (NET, {"loss": rl.LogLikelihoodLoss(TWO)}, "WeightedLoss"),
    "a rival's marginal": (NET, {"loss": rl.WeightedLoss, "marginal": rl.BatchMarginal()}, "no marginal"),
    "a rival's pool": (NET, {"loss": rl.WeightedLoss, "pool": X}, "pool"),
    "marginal and pool": (NET, {"marginal": rl.BatchMarginal(), "pool": (X, torch.arange(100) % 2)}, "both"),
    "a class of a likelihood": (NET, {"likelihood": rl.Bernoulli}, "call the class"),
    "a pool in another mix": (NET, {"pool": (X, torch.arange(100) // 90)}, "sampling"),
    "a pool cut off": (NET, {"pool": (X, torch.arange(98) % 2)}, "cut off"),
    "a pool of people at the sampled mix": (NET, {"pool": X}, "unlabelled"),
    "a pool of another model": (NET, {"marginal": rl.PoolMarginal(nn.Linear(2, 2), [(X, X)])}, "not with a copy"),
    "q of another model": (NET, {"marginal": rl.AuxiliaryMarginal(nn.Linear(2, 2))}, "not with a copy"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_a_log_posterior_is_refused(what: str) -> None:
    model, options, words = REFUSED[what]
    assert_refused(lambda: inference.log_posterior(model, TWO, **options), words)


def test_a_density_has_no_pool_and_a_part_of_the_model_may_be_asked() -> None:
    density = rl.ContinuousPrevalence(torch.distributions.Normal(0.0, 1.0))
    assert_refused(lambda: inference.log_posterior(nn.Linear(2, 1), density, rl.Gaussian(), pool=X), "PoolMarginal")
    inference.log_posterior(nn.Sequential(nn.Linear(2, 2), NET), TWO, marginal=rl.AuxiliaryMarginal(NET))
    over_batch = inference.log_posterior(NET, TWO)
    assert_refused(lambda: over_batch.log_marginal(over_batch.parameters(), X), "unlabelled")


def test_weights_of_another_model_are_refused_and_not_left_out() -> None:
    target = Small().target()
    wrong = {"weights": torch.zeros(3, 3).double(), **random_weights(target)}
    assert_refused(lambda: target(wrong, Small().batch()), "weights")
    assert_refused(lambda: Small().target(num_data=None)(random_weights(target), Small().batch()), "num_data")
    assert_refused(lambda: Small().target(num_data=None).with_data(None), "num_data")


def test_outputs_that_are_not_finite_make_it_nan_for_the_method_to_stop() -> None:
    small = Small()
    x, y = small.batch()
    for options in ({}, {"pool": (x, y)}, {"loss": rl.WeightedLoss}):
        target = small.target(**options)
        params = random_weights(target)
        params["bias"][0] = torch.inf
        assert bool(target(params, (x, y))[0].isnan())
        assert bool(target(random_weights(target), (x, y))[0].isfinite())


def test_arrays_make_a_pool_of_the_models_dtype() -> None:
    small = Small()
    x, y = small.batch()
    target = small.target(small.model().float(), pool=(np.asarray(x), np.asarray(y)))
    assert target.pool is not None
    assert target.pool[0].dtype == torch.float32
    assert target.log_marginal(target.parameters(), target.pool).dtype == torch.float32
