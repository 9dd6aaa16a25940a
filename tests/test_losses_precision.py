"""Losses of large batches, of buffers that change, of meta tensors: right, or refused, and no memory kept."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from members import assert_refused
from torch import Tensor, nn

import rightloss as rl
from rightloss.tensors import tensor_of

MANY = 3_000_000  # not a power of two: those hide what rounding loses


def shared_bias_gradient(criterion: Callable[[Tensor, Tensor], Tensor], z: Tensor, y: Tensor) -> float:
    """Derivative of the loss by a number that is added to the last output of every row."""
    bias = torch.zeros((), dtype=z.dtype, requires_grad=True)
    last = torch.zeros(z.shape[1], dtype=z.dtype)
    last[-1] = 1
    criterion(z + bias * last, y).backward()
    assert bias.grad is not None
    return float(bias.grad)


@pytest.mark.long
@pytest.mark.parametrize("reference", ["sampling", "population"])
@pytest.mark.parametrize("path", ["Bernoulli", "composed", "fused"])
def test_the_gradient_of_millions_of_float32_rows_is_that_of_float64(path: str, reference: str) -> None:
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(MANY, generator=generator) < 0.5).long()
    z = torch.randn(MANY, 1 if path == "Bernoulli" else 2, generator=generator) + y[:, None] - 3
    prevalence = rl.Prevalence.binary(0.01, evidence=0.1)
    r = None if reference == "sampling" else prevalence.population

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        likelihood = rl.Bernoulli() if path == "Bernoulli" else None
        return rl.information_gain_loss(logits, target, prevalence, likelihood, reference=r, fused=path == "fused")

    exact = shared_bias_gradient(loss, z.double(), y)
    assert shared_bias_gradient(loss, z, y) == pytest.approx(exact, rel=2e-4)


@pytest.mark.long
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("shape", ["rows", "dense", "ignored"])
def test_a_constant_prediction_of_millions_of_float32_rows_gains_nothing(shape: str, fused: bool) -> None:
    y = torch.arange(MANY) % 2
    prevalence = rl.Prevalence.from_labels(y, 0.01, evidence=0.0)
    z = torch.tensor([0.3, -2.1]).expand(MANY, 2)
    if shape == "dense":
        z, y = z.reshape(3, -1, 2).movedim(2, 1), y.reshape(3, -1)
    if shape == "ignored":
        y = torch.where(torch.arange(MANY) < 6, -100, y)
    loss = rl.information_gain_loss(z, y, prevalence, reference=prevalence.population, fused=fused)
    assert abs(float(loss)) < 2e-6


@pytest.mark.long
def test_unreduced_losses_of_millions_of_rows_have_the_same_gradient() -> None:
    y = (torch.arange(MANY) % 3 == 0).long()
    z = torch.randn(MANY, 2, generator=torch.Generator().manual_seed(1))
    prevalence = rl.Prevalence.binary(0.01, sampling=0.4, evidence=0.0)

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return rl.information_gain_loss(logits, target, prevalence, reduction="none").mean()

    assert shared_bias_gradient(loss, z, y) == pytest.approx(shared_bias_gradient(loss, z.double(), y), rel=2e-4)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dense", [False, True])
def test_labels_that_change_before_the_backward_pass_are_refused(fused: bool, dense: bool) -> None:
    shape = (4, 5, 5) if dense else (20,)
    z, y = torch.randn(shape[0], 2, *shape[1:], requires_grad=True), torch.ones(shape, dtype=torch.long)
    y.view(-1)[::2] = 0
    loss = rl.InformationGainLoss(rl.Prevalence.binary(0.1), fused=fused)(z, y)
    y.fill_(0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.long
@pytest.mark.parametrize("make", [rl.InformationGainLoss, rl.InformationGainLoss.as_published, rl.LogitAdjustedLoss])
def test_a_loss_that_is_kept_keeps_no_logits_alive(make: Any) -> None:
    criterion = make(rl.Prevalence.binary(0.1))
    leaf = torch.randn(20, 2, requires_grad=True)
    logits, y = 2 * leaf, torch.arange(20) % 2
    alive = weakref.ref(logits)
    loss = criterion(logits, y)
    loss.backward()
    del logits
    gc.collect()
    assert loss.grad_fn is not None
    assert alive() is None


MARGINALS: dict[str, Callable[[nn.Linear, Tensor, Tensor], Any]] = {
    "running": lambda model, x, y: rl.RunningMarginal(),
    "batch": lambda model, x, y: rl.BatchMarginal(),
    "pool": lambda model, x, y: rl.PoolMarginal(model, [(x, y)]),
    "auxiliary": lambda model, x, y: rl.AuxiliaryMarginal(model),
}


@pytest.mark.parametrize("name", list(MARGINALS))
def test_a_batch_of_meta_tensors_has_a_shape_and_changes_nothing(name: str) -> None:
    def losses(meta: bool) -> list[float]:
        torch.manual_seed(0)
        model, x, y = nn.Linear(2, 2), torch.randn(20, 2), torch.arange(20) % 2
        criterion = rl.InformationGainLoss(rl.Prevalence.binary(0.1), marginal=MARGINALS[name](model, x, y))
        found = [float(criterion(model(x), y).detach())]
        if meta:
            assert criterion(model(x).to("meta"), y.to("meta")).shape == ()
        return [*found, float(criterion(model(x) + 1, y).detach())]

    assert losses(meta=True) == losses(meta=False)


@pytest.mark.parametrize("name", ["pool", "auxiliary"])
def test_a_copied_loss_still_follows_the_model(name: str) -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(2, 2), torch.randn(20, 2), torch.arange(20) % 2
    marginal = MARGINALS[name](model, x, y)
    criterion = rl.InformationGainLoss(rl.Prevalence.binary(0.1), marginal=marginal)
    twin = copy.deepcopy(criterion)
    asked = getattr(twin.marginal, "model" if name == "pool" else "source")
    assert asked is model


@pytest.mark.parametrize("name", ["pool", "auxiliary"])
@pytest.mark.parametrize("order", [("model", "criterion"), ("criterion", "model")])
def test_a_model_copied_with_its_loss_is_followed_by_the_copy(name: str, order: tuple[str, str]) -> None:
    model, x, y = nn.Linear(2, 2), torch.randn(20, 2), torch.arange(20) % 2
    criterion = rl.InformationGainLoss(rl.Prevalence.binary(0.1), marginal=MARGINALS[name](model, x, y))
    parts = {"model": model, "criterion": criterion}
    twin: Any = copy.deepcopy({part: parts[part] for part in order})
    marginal = twin["criterion"].marginal
    assert (marginal.model if name == "pool" else marginal.source) is twin["model"]
    assert twin["model"] is not model


def test_a_method_as_the_source_of_an_auxiliary_marginal_is_copied_with_its_owner() -> None:
    class Net(nn.Linear):
        def vector(self) -> Tensor:
            return self.bias

    net = Net(2, 2)
    criterion = rl.InformationGainLoss(rl.Prevalence.binary(0.1), marginal=rl.AuxiliaryMarginal(net.vector))
    together: Any = copy.deepcopy([criterion, net])
    assert together[0].marginal.source.__self__ is together[1]
    assert copy.deepcopy(criterion).marginal.source.__self__ is net  # type: ignore[attr-defined]


def test_a_running_average_of_other_classes_is_refused() -> None:
    marginal = rl.RunningMarginal()
    rl.InformationGainLoss(rl.Prevalence([0.5, 0.3, 0.2]), marginal=marginal)
    rl.InformationGainLoss(rl.Prevalence.binary(0.1), marginal=marginal)(torch.randn(8, 2), torch.arange(8) % 2)
    with pytest.raises(ValueError, match="average over 2: make one for each loss"):
        rl.InformationGainLoss(rl.Prevalence([0.5, 0.3, 0.2]), marginal=marginal)


def test_a_float64_loss_goes_on_from_its_state_to_the_last_digit() -> None:
    prevalence, y = rl.Prevalence.binary(0.1), torch.arange(20) % 2
    z = torch.randn(20, 2, dtype=torch.float64)
    first, second = rl.InformationGainLoss(prevalence), rl.InformationGainLoss(prevalence)
    first(z, y)
    second.load_state_dict(first.state_dict())
    assert float(first(2 * z, y)) == float(second(2 * z, y))


@pytest.mark.parametrize("loss", [rl.InformationGainLoss, rl.LogitAdjustedLoss, rl.WeightedLoss, rl.LogLikelihoodLoss])
def test_ignore_index_none_ignores_no_label(loss: Any) -> None:
    z, y = torch.randn(20, 3), torch.arange(20) % 3
    prevalence = rl.Prevalence([0.7, 0.2, 0.1])
    assert torch.equal(loss(prevalence, ignore_index=None)(z, y), loss(prevalence)(z, y))
    with pytest.raises(ValueError, match=r"labels in 0\.\.2, but got -100"):
        loss(prevalence, ignore_index=None)(z, torch.where(y == 0, -100, y))
    for wrong in (1.5, "0", True):
        assert_refused(partial(loss, prevalence, ignore_index=wrong), "`ignore_index` to be an int label, or None")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_votes_of_a_coarse_dtype_are_those_of_a_fine_one_but_for_rounding(dtype: torch.dtype) -> None:
    votes = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0.25, 0.75, 0.0], [0.1, 0.2, 0.7]]).repeat(4, 1)
    z = torch.randn(12, 3, dtype=torch.float64)
    prevalence = rl.Prevalence.from_labels(votes.to(dtype), [0.7, 0.2, 0.1])
    torch.testing.assert_close(tensor_of(prevalence.sampling), votes.double().mean(0), rtol=0, atol=2e-3)
    exact = rl.LogitAdjustedLoss(prevalence)(z, votes.double())
    torch.testing.assert_close(rl.LogitAdjustedLoss(prevalence)(z, votes.to(dtype)), exact, rtol=0, atol=1e-2)
    constant = rl.information_gain_loss(z[:1].expand(12, 3), votes.to(dtype), prevalence.with_evidence(0.0))
    assert abs(float(constant)) < 1e-12  # rows that summed to more than 1 would gain


@pytest.mark.parametrize("dense", [False, True])
def test_rivals_of_a_softmax_are_torch_s_own_cross_entropy(dense: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (3, 4, 5) if dense else (60,)
    z = torch.randn(shape[0], 3, *shape[1:], generator=generator, dtype=torch.float64)
    y = torch.randint(3, shape, generator=generator)
    y.view(-1)[:7] = -100
    prevalence = rl.Prevalence([0.7, 0.2, 0.1], [0.3, 0.3, 0.4])
    offset = (tensor_of(prevalence.sampling).log() - tensor_of(prevalence.population).log()).view(3, *(1 for _ in shape[1:]))
    counted = int((y != -100).sum())
    exact: Any = {"rtol": 0, "atol": 1e-13}
    torch.testing.assert_close(rl.LogitAdjustedLoss(prevalence)(z, y), F.cross_entropy(z + offset, y), **exact)
    torch.testing.assert_close(rl.LogLikelihoodLoss(prevalence)(z, y), F.cross_entropy(z, y), **exact)
    weighted = F.cross_entropy(z, y, weight=tensor_of(prevalence.weights), reduction="sum") / counted
    torch.testing.assert_close(rl.WeightedLoss(prevalence)(z, y), weighted, **exact)


def test_the_paper_s_loss_is_one_word_away() -> None:
    """Eq. (1) with r = π and the minibatch's own marginal, by hand."""
    prevalence = rl.Prevalence([0.7, 0.2, 0.1], [0.3, 0.3, 0.4], evidence=2.0)
    z, y = torch.randn(30, 3, dtype=torch.float64), torch.arange(30) % 3
    p = torch.softmax(z, 1)
    m = (tensor_of(prevalence.weights)[y][:, None] * p).mean(0)
    by_hand = -(p.log() - m.log())[torch.arange(30), y].mean()
    criterion = rl.InformationGainLoss.as_published(prevalence)
    torch.testing.assert_close(criterion(z, y), by_hand, rtol=0, atol=1e-12)
    assert criterion.prevalence == prevalence.with_evidence(0.0)
    assert isinstance(criterion.marginal, rl.BatchMarginal)


def test_an_uncertain_prevalence_is_trained_at_its_mean() -> None:
    uncertain, z, y = rl.Prevalence.beta(3.0, 27.0), torch.randn(30, 2, dtype=torch.float64), torch.arange(30) % 2
    known = rl.InformationGainLoss(rl.Prevalence.binary(0.1))(z, y)
    assert torch.equal(rl.InformationGainLoss(uncertain)(z, y), known)
    with pytest.warns(DeprecationWarning, match="num_data"):
        assert torch.equal(rl.InformationGainLoss(uncertain, num_data=1000)(z, y), known)
