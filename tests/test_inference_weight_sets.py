"""Many weights at once: as one after the other."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from members import assert_refused, each_kind, generator
from small_targets import MARGINALS, REFERENCES, Small, random_weights
from torch import Tensor, nn

import rightloss as rl
from rightloss.inference import LogPosterior, log_posterior
from rightloss.inference.weight_sets import CarriedMarginal, evaluate_many, marginal_of_sets
from rightloss.marginals import MinibatchEstimate

M = 3


def batches_of(small: Small, first: int = 0) -> tuple[Tensor, Tensor]:
    """One for each member."""
    pairs = [small.batch(first + member) for member in range(M)]
    return torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])


def one_of(params: dict[str, Tensor], member: int) -> dict[str, Tensor]:
    return {name: value[member] for name, value in params.items()}


def loop(target: LogPosterior, params: dict[str, Tensor], batches: tuple[Tensor, Tensor]) -> Tensor:
    """`target` at each member's weights and batch."""
    return torch.stack([target(one_of(params, m), (batches[0][m], batches[1][m]))[0] for m in range(M)])


def check_against_loop(small: Small, **options: Any) -> None:
    """Values and gradients."""
    target = small.target(**options)
    params, batches = random_weights(target, members=M), batches_of(small)
    leaves = [{name: value.clone().requires_grad_() for name, value in params.items()} for _ in range(2)]
    together, estimate = evaluate_many(target, leaves[0], batches, marginal_of_sets(target))
    each = loop(target, leaves[1], batches)
    torch.testing.assert_close(together, each)
    slopes = [torch.autograd.grad(v.sum(), list(own.values())) for v, own in zip((together, each), leaves, strict=True)]
    torch.testing.assert_close(*slopes)
    assert (estimate is not None) == (target.marginal is not None)


@pytest.mark.long
@each_kind
def test_all_likelihoods_are_evaluated_as_one_by_one(make: Any, k: int) -> None:
    check_against_loop(Small(k, make), loss=rl.LogitAdjustedLoss)
    check_against_loop(Small(k, make), marginal=rl.BatchMarginal())


@pytest.mark.parametrize(
    ("kind", "reference", "rival"),
    [
        ("soft", "population", rl.WeightedLoss),
        ("dense", "another", rl.LogitAdjustedLoss),
        ("dense soft", "sampling", rl.LogLikelihoodLoss),
    ],
)
def test_all_labels_references_and_rivals_are_evaluated_as_one_by_one(kind: str, reference: str, rival: Any) -> None:
    small = Small(kind=kind)
    r = REFERENCES[reference](small.prevalence)
    check_against_loop(small, marginal=rl.BatchMarginal(), reference=r)
    check_against_loop(small, pool=small.batch(9), reference=r)
    check_against_loop(small, loss=rival)


@pytest.mark.long
@pytest.mark.parametrize(("marginal", "reference"), [("running", "another"), ("pool", "population")])
def test_each_member_has_a_marginal_of_its_own_that_goes_along_with_it(marginal: str, reference: str) -> None:
    """Over six steps, a pool's pass at every second, against as many targets as there are members."""
    small, models = Small(), [Small().model() for _ in range(M + 1)]
    made = MARGINALS[marginal]
    options = {"reference": REFERENCES[reference](small.prevalence)}
    together, *alone = (
        small.target(model, marginal=made(model, [small.batch(20), small.batch(21)]), **options) for model in models
    )
    sets = marginal_of_sets(together)
    assert sets is not None
    for step in range(6):
        params, batches = random_weights(together, step, members=M), batches_of(small, step)
        values, estimate = evaluate_many(together, params, batches, sets)
        again, _ = evaluate_many(together, params, batches, sets)
        assert estimate is not None
        sets.update(estimate)
        each = [one(one_of(params, m), (batches[0][m], batches[1][m]))[0] for m, one in enumerate(alone)]
        torch.testing.assert_close(values, torch.stack(each))
        torch.testing.assert_close(values, again)


@pytest.mark.parametrize("carried", [False, True])
def test_a_batch_that_is_not_finite_leaves_an_average_as_it_was(carried: bool) -> None:
    sets = CarriedMarginal(0.9) if carried else marginal_of_sets(Small().target())
    assert sets is not None
    log_m = torch.rand(M, 3, generator=generator(1)).log()
    sets.update(MinibatchEstimate(log_m, 10))
    sets.update(MinibatchEstimate(log_m * torch.nan, 10))
    torch.testing.assert_close(sets.value(MinibatchEstimate(log_m, 10)), log_m)


def test_one_auxiliary_network_follows_all_members() -> None:
    """It is taught every member's pair (w, m), and asked at every member's w."""
    small, model = Small(), Small().model()
    marginal = rl.AuxiliaryMarginal(model)
    target = small.target(model, marginal=marginal)
    sets = marginal_of_sets(target)
    assert sets is not None
    params, batches = random_weights(target, members=M), batches_of(small)
    first, estimate = evaluate_many(target, params, batches, sets)
    assert estimate is not None
    torch.testing.assert_close(first, loop(small.target(model, marginal=rl.BatchMarginal()), params, batches))
    sets.update(estimate)
    assert int(marginal._steps) == M
    marginal.eval()
    sets.update(estimate)
    assert int(marginal._steps) == M
    torch.testing.assert_close(evaluate_many(target, params, batches, sets)[0], loop(target, params, batches))


def test_an_auxiliary_network_that_reads_another_net_is_refused() -> None:
    small, model = Small(), nn.Linear(3, 3).double()
    for marginal in (rl.AuxiliaryMarginal(model), rl.AuxiliaryMarginal(lambda: model.weight.flatten())):
        own = small.target(model, marginal=marginal)
        estimate = MinibatchEstimate(torch.full((M, 3), -1.0).double(), 10, params=random_weights(own, members=M))
        right, wrong = (marginal_of_sets(each) for each in (own, replace(own, model=copy.deepcopy(model))))
        assert right is not None
        assert wrong is not None
        right.update(estimate)
        assert_refused(partial(wrong.update, estimate), "weights that are inferred")


class Recurrent(nn.Module):
    """Goes over the features as over time."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.GRU(1, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x[..., None])[0][:, -1])


def normalised() -> nn.Module:
    """A net with moving averages."""
    return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3))


@pytest.mark.parametrize(("make", "training"), [(Recurrent, True), (normalised, True), (normalised, False)])
def test_models_that_vmap_does_not_take_go_one_by_one(make: Any, training: bool) -> None:
    small, model = Small(), make().double().train(training)
    for options in ({"marginal": rl.BatchMarginal()}, {"pool": small.batch(9)}):
        target = small.target(model, **options)
        params, batches = random_weights(target, members=M), batches_of(small)
        values, _ = evaluate_many(target, params, batches, marginal_of_sets(target))
        torch.testing.assert_close(values, loop(target, params, batches))


def test_moving_averages_that_are_given_along_are_moved_for_each_member() -> None:
    small, model = Small(), normalised().double()
    target = small.target(model, marginal=rl.PoolMarginal(model, [small.batch(9)]))
    params, (x, y) = random_weights(target, members=M), batches_of(small)
    buffers = {name: value.expand(M, *value.shape).clone() for name, value in target.buffers().items()}
    evaluate_many(target, params | buffers, (x, y), marginal_of_sets(target))
    torch.testing.assert_close(buffers["0.running_mean"], 0.1 * x.mean(1))
    torch.testing.assert_close(model.get_buffer("0.running_mean"), torch.zeros(3).double())


def test_members_drop_out_by_masks_of_their_own_also_on_a_shared_minibatch() -> None:
    small, model = Small(), nn.Sequential(nn.Linear(3, 64), nn.Dropout(0.5), nn.Linear(64, 3)).double()
    target = small.target(model, marginal=rl.BatchMarginal())
    params, batch = random_weights(target), small.batch()
    alike = {name: value.expand(M, *value.shape) for name, value in params.items()}
    with torch.random.fork_rng():
        values, _ = evaluate_many(target, alike, batch, marginal_of_sets(target), shared=True)
    assert len(values.unique()) == M
    model.eval()
    values, _ = evaluate_many(target, alike, batch, marginal_of_sets(target), shared=True)
    torch.testing.assert_close(values, target(params, batch)[0].expand(M))


def test_what_many_weights_cannot_share_is_refused() -> None:
    small = Small()
    assert_refused(lambda: marginal_of_sets(small.target(marginal=rl.ClasswiseMarginal())), "ClasswiseMarginal")
    target = small.target(marginal=rl.BatchMarginal())
    params, (x, y) = random_weights(target, members=M), batches_of(small)
    sets = marginal_of_sets(target)
    for wrong in (y[:, :5], y.double(), y.double()[..., None], y[:, :, None].expand(M, -1, 2)):
        assert_refused(partial(evaluate_many, target, params, (x, wrong), sets), "labels")
    assert_refused(lambda: evaluate_many(target, params, (x[:, :1], y[:, :1]), sets), "at least 2 examples")
    wide = small.target(nn.Linear(3, 4).double(), marginal=rl.BatchMarginal())
    assert_refused(lambda: evaluate_many(wide, random_weights(wide, members=M), (x, y), sets), "3 classes, but got 4")
    density = log_posterior(
        nn.Linear(3, 1), rl.ContinuousPrevalence(torch.distributions.Normal(0.0, 1.0)), rl.Gaussian(), num_data=3
    )
    assert_refused(lambda: evaluate_many(density, params, (x, y), sets), "density")
