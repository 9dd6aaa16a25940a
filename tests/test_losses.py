"""Losses: against the formula in probability space, torch's cross-entropy and each other; large batches; refusals."""

from __future__ import annotations

import copy
import gc
import os
import re
import shutil
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import mpmath  # type: ignore[import-untyped]
import pytest
import torch
import torch.nn.functional as F
from members import MARGINALS, assert_refused, assert_same, recorded, unchecked_types
from torch import Tensor, nn

import rightloss as rl
from rightloss.losses import fused
from rightloss.marginals import MinibatchEstimate
from rightloss.tensors import tensor_of

LOSSES: list[Callable[..., Any]] = [rl.InformationGainLoss, rl.WeightedLoss, rl.LogitAdjustedLoss, rl.LogLikelihoodLoss]
each_loss = pytest.mark.parametrize("loss", LOSSES)
EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


class FixedMarginal(rl.BatchMarginal):
    """q given once and for all."""

    def __init__(self, log_q: Tensor) -> None:
        super().__init__()
        self.log_q = log_q

    def value(self, estimate: MinibatchEstimate) -> Tensor:
        return self.log_q


def mix(k: int, seed: int) -> Tensor:
    values = torch.rand(k, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.2
    return values / values.sum()


def reference_of(name: str, prevalence: rl.Prevalence) -> Tensor | None:
    return {"sampling": None, "population": tensor_of(prevalence.population), "other": mix(prevalence.num_classes, 99)}[name]


def naive(z: Tensor, votes: Tensor, prevalence: rl.Prevalence, r: Tensor, weights: Tensor, q: Tensor, z0: Tensor) -> Tensor:
    """The mean loss in probability space, with log q replaced by its first-order expansion log q + (m(z) − m(z₀))/q."""

    def at_reference(outputs: Tensor) -> Tensor:
        tilted = torch.softmax(outputs, 1) * (r / tensor_of(prevalence.population))
        return tilted / tilted.sum(1, keepdim=True)

    beta = votes @ weights
    m, m0 = ((beta[:, None] * at_reference(outputs)).mean(0) for outputs in (z, z0))
    log_marginal = q.log() + (m - m0) / q
    labels = tensor_of(prevalence.sampling) if prevalence.evidence else votes.mean(0)
    return -(votes * at_reference(z).log()).sum(1).mean() + ((labels - prevalence.evidence * r) * log_marginal).sum()


def targets(k: int, n: int, soft: bool, seed: int) -> tuple[Tensor, Tensor]:
    """A target as the user gives it, and as votes (n, k); every class occurs."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.cat([torch.arange(k), torch.randint(k, (n - k,), generator=generator)])
    votes = F.one_hot(y, k).double()
    if not soft:
        return y, votes
    votes = 0.6 * votes + 0.4 * votes[torch.randperm(n, generator=generator)]
    return votes, votes


@pytest.mark.long
@pytest.mark.parametrize(
    ("reference", "kappa", "soft", "k"),
    [
        ("sampling", 0.0, False, 2),
        ("sampling", 0.7, True, 3),
        ("population", 0.0, True, 17),
        ("population", 0.7, False, 211),
        ("other", 0.0, False, 17),
        ("other", 0.7, True, 2),
        ("population", 0.7, False, 3),
    ],
)
def test_loss_and_gradient_equal_autograd_through_the_naive_formula(reference: str, kappa: float, soft: bool, k: int) -> None:
    torch.manual_seed(k)
    n = 2 * k + 5
    prevalence = rl.Prevalence(mix(k, 1), mix(k, 2), kappa)
    r = reference_of(reference, prevalence)
    z = (2 * torch.randn(n, k, dtype=torch.float64)).requires_grad_()
    target, votes = targets(k, n, soft, 3)
    log_q = torch.log_softmax(torch.randn(k, dtype=torch.float64), 0)
    mixed = tensor_of(prevalence.sampling) if r is None else r
    weights = mixed / tensor_of(prevalence.sampling)
    expected = naive(z, votes, prevalence, mixed, weights, log_q.exp(), z.detach())
    for path in (True, False):
        criterion = rl.InformationGainLoss(prevalence, marginal=FixedMarginal(log_q), reference=r, fused=path)
        assert_same(criterion(z, target), expected, z, atol=1e-10)


@pytest.mark.parametrize("name", MARGINALS)
@pytest.mark.parametrize(("reference", "path"), [("sampling", True), ("population", False), ("other", True)])
def test_every_marginal_enters_the_gradient_through_its_value_alone(name: str, reference: str, path: bool) -> None:
    torch.manual_seed(0)
    k, n, d = 4, 30, 3
    prevalence = rl.Prevalence(mix(k, 1), mix(k, 2), 0.3)
    r = reference_of(reference, prevalence)
    model, x = nn.Linear(d, k).double(), torch.randn(n, d, dtype=torch.float64)
    y, votes = targets(k, n, False, 3)
    criterion = rl.InformationGainLoss(prevalence, marginal=MARGINALS[name](model, [(x, y)]), reference=r, fused=path)
    criterion(model(x), y)
    criterion.eval()
    z = (model(x) + 0.1 * torch.randn(n, k, dtype=torch.float64)).detach().requires_grad_()
    seen = recorded(criterion.marginal)
    loss = criterion(z, y)
    mixed = tensor_of(prevalence.sampling) if r is None else r
    weights = mixed / (votes.mean(0) if name == "classwise" else tensor_of(prevalence.sampling))
    assert_same(loss, naive(z, votes, prevalence, mixed, weights, seen[-1].exp(), z.detach()), z, atol=1e-10)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    ("shape", "dtype"), [((40, 3), torch.float64), ((300, 500), torch.float32), ((30_000, 5), torch.float32)]
)
def test_the_default_loss_is_torchs_cross_entropy_of_logits_moved_to_the_sampled_mix(
    shape: tuple[int, int], dtype: torch.dtype, reduction: Literal["mean", "sum", "none"]
) -> None:
    torch.manual_seed(0)
    n, k = shape
    prevalence = rl.Prevalence(mix(k, 1), mix(k, 2))
    z, y = torch.randn(n, k, dtype=dtype, requires_grad=True), torch.randint(k, (n,))
    loss = rl.InformationGainLoss(prevalence, reduction=reduction)(z, y)
    expected = F.cross_entropy(z - tensor_of(prevalence.log_weights).to(dtype), y, reduction=reduction)
    assert_same(loss, expected, z, *((1e-5, 1e-6) if dtype == torch.float32 else (1e-12, 1e-12)))
    torch.testing.assert_close(rl.information_gain_loss(z, y, prevalence, reduction=reduction), loss)


def test_the_default_losss_running_marginal_can_be_read_though_it_does_not_enter() -> None:
    torch.manual_seed(0)
    prevalence, y = rl.Prevalence(mix(3, 1)), torch.arange(30) % 3
    criterion, z = rl.InformationGainLoss(prevalence), torch.randn(30, 3, dtype=torch.float64, requires_grad=True)
    for _ in range(70):
        criterion(z, y)
    seen = torch.softmax(z.detach() - tensor_of(prevalence.log_weights), 1).mean(0)
    assert isinstance(criterion.marginal, rl.RunningMarginal)
    torch.testing.assert_close(criterion.marginal.log_average.exp(), seen)
    assert int(criterion.marginal.steps) == 3  # one batch in 32


@pytest.mark.long
@pytest.mark.parametrize("blocks", [64, 2**19])
@pytest.mark.parametrize("layout", ["rows", "columns", "dense", "channels last"])
def test_fused_and_composed_paths_agree_whatever_the_blocks(blocks: int, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "BLOCK", blocks)
    k = 20 if layout == "rows" else 5
    shape = {"rows": (40, k), "columns": (4000, k)}.get(layout, (3, k, 6, 7))
    torch.manual_seed(0)
    prevalence = rl.Prevalence(mix(k, 1), mix(k, 2), 0.4)
    z = torch.randn(shape, dtype=torch.float64)
    z = (z.to(memory_format=torch.channels_last) if layout == "channels last" else z).requires_grad_()
    reduction: Any
    for reference, reduction, ignored in (("sampling", "mean", False), ("population", "sum", True), ("other", "mean", True)):
        y = torch.randint(k, shape[:1] + shape[2:])
        if ignored:
            y.view(-1)[::7] = -100
        options: dict[str, Any] = {"reference": reference_of(reference, prevalence), "reduction": reduction}
        fast, slow = (rl.information_gain_loss(z, y, prevalence, fused=path, **options) for path in (True, False))
        assert_same(fast, slow, z, **EXACT)


@pytest.mark.parametrize("kappa", [0.4, 1.0])
def test_large_losses_whose_probabilities_underflow_are_computed_in_log_space(kappa: float) -> None:
    prevalence, y = rl.Prevalence(mix(500, 1), mix(500, 2), kappa), torch.arange(300)
    z = (1e3 * torch.randn(300, 500, dtype=torch.float64)).requires_grad_()
    expected = rl.information_gain_loss(z, y, prevalence, fused=False)
    if kappa == 1:
        expected = F.cross_entropy(z - tensor_of(prevalence.log_weights), y)
    assert_same(rl.information_gain_loss(z, y, prevalence), expected, z, rtol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(
            rl.information_gain_loss(z / 1e3, y, prevalence), rl.InformationGainLoss(prevalence)(z / 1e3, y)
        )


@pytest.mark.parametrize("shape", [(40, 5), (3, 5, 6, 7)])
def test_unreduced_losses_are_0_where_ignored_and_sum_to_the_others(shape: tuple[int, ...]) -> None:
    prevalence, z = rl.Prevalence(mix(5, 1), mix(5, 2), 0.4), torch.randn(shape, dtype=torch.float64, requires_grad=True)
    y = torch.randint(5, shape[:1] + shape[2:])
    y.view(-1)[::7] = -100
    each, total = (rl.information_gain_loss(z, y, prevalence, reduction=how) for how in ("none", "sum"))
    assert each.shape == y.shape
    assert bool((each[y == -100] == 0).all())
    assert_same(each.sum(), total, z, **EXACT)


@pytest.mark.parametrize(("n", "k", "kappa"), [(12, 3, 0.2), (300, 500, 1.0)])
def test_a_loss_that_keeps_its_gradient_goes_backward_twice_and_has_second_derivatives(n: int, k: int, kappa: float) -> None:
    prevalence, y = rl.Prevalence(mix(k, 1), mix(k, 2), kappa), torch.arange(n) % k
    z, v = torch.randn(n, k, dtype=torch.float64, requires_grad=True), torch.randn(n, k, dtype=torch.float64)
    reference = None if kappa == 1 else prevalence.population

    def composed(z: Tensor) -> Tensor:
        if kappa == 1:
            return F.cross_entropy(z - tensor_of(prevalence.log_weights), y)
        return rl.information_gain_loss(z, y, prevalence, reference=reference, fused=False)

    loss = rl.information_gain_loss(z, y, prevalence, reference=reference)
    first = torch.autograd.grad(loss, z, retain_graph=True)[0].clone()
    torch.testing.assert_close(torch.autograd.grad(3 * loss, z, retain_graph=True)[0], 3 * first)
    product = torch.autograd.grad((torch.autograd.grad(loss, z, create_graph=True)[0] * v).sum(), z)[0]
    exact = torch.autograd.functional.hvp(composed, z, v)[1]
    torch.testing.assert_close(product, exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dense", [False, True])
def test_rivals_equal_their_textbook_forms(dense: bool) -> None:
    shape = (3, 4, 5) if dense else (60,)
    z, y = torch.randn(shape[0], 3, *shape[1:], dtype=torch.float64), torch.randint(3, shape)
    y.view(-1)[:7] = -100
    prevalence = rl.Prevalence(mix(3, 1), mix(3, 2))
    offset = -tensor_of(prevalence.log_weights).view(3, *(1 for _ in shape[1:]))
    torch.testing.assert_close(rl.LogitAdjustedLoss(prevalence)(z, y), F.cross_entropy(z + offset, y), **EXACT)
    torch.testing.assert_close(rl.LogLikelihoodLoss(prevalence)(z, y), F.cross_entropy(z, y), **EXACT)
    weighted = F.cross_entropy(z, y, weight=tensor_of(prevalence.weights), reduction="sum") / int((y != -100).sum())
    torch.testing.assert_close(rl.WeightedLoss(prevalence)(z, y), weighted, **EXACT)
    same = rl.Prevalence(mix(3, 1), mix(3, 1))
    for rival in (rl.WeightedLoss, rl.LogitAdjustedLoss):
        torch.testing.assert_close(rival(same)(z, y), F.cross_entropy(z, y), **EXACT)


def test_the_papers_loss_is_one_word_away() -> None:
    """Eq. (1) with r = π and the minibatch's own marginal, by hand."""
    prevalence = rl.Prevalence([0.7, 0.2, 0.1], [0.3, 0.3, 0.4], evidence=2.0)
    criterion = rl.InformationGainLoss.as_published(prevalence)
    for n in (2, 30):
        z, y = torch.randn(n, 3, dtype=torch.float64), torch.arange(n) % 3
        p = torch.softmax(z, 1)
        m = (tensor_of(prevalence.weights)[y][:, None] * p).mean(0)
        torch.testing.assert_close(criterion(z, y), -(p.log() - m.log())[torch.arange(n), y].mean(), **EXACT)
    assert criterion.prevalence == prevalence.with_evidence(0.0)
    assert isinstance(criterion.marginal, rl.BatchMarginal)


@each_loss
def test_labels_of_every_form_give_the_same_numbers(loss: Callable[..., Any]) -> None:
    prevalence = rl.Prevalence(mix(5, 1), mix(5, 2))
    z, y = torch.randn(2, 5, 8, 9, requires_grad=True), torch.randint(5, (2, 8, 9))
    y[0, :3] = 255
    keep = y.flatten() != 255
    flat, labels = z.movedim(1, -1).reshape(-1, 5)[keep], y.flatten()[keep]
    rows, criterion = loss(prevalence)(flat, labels), loss(prevalence, ignore_index=255)
    assert_same(criterion(z, y), rows, z, 1e-5, 1e-6)
    assert_same(criterion(z.contiguous(memory_format=torch.channels_last), y), rows, z, 1e-5, 1e-6)
    assert_same(loss(prevalence)(flat, F.one_hot(labels, 5).float()), rows, z, 1e-5, 1e-6)
    binary, one, y = rl.Prevalence.binary(0.01, 0.4), torch.randn(30, dtype=torch.float64, requires_grad=True), labels[:30] % 2
    two = torch.stack([torch.zeros_like(one), one], 1)
    assert_same(loss(binary, likelihood=rl.Bernoulli())(one, y), loss(binary)(two, y), one, atol=1e-13)


@each_loss
def test_logits_of_ten_thousand_and_a_prevalence_of_a_billionth_stay_exact(loss: Callable[..., Any]) -> None:
    mpmath.mp.dps = 60
    prevalence = rl.Prevalence.binary(1e-9, 0.5, evidence=0.0)
    rows, labels = [[1e4, -1e4], [-1e4, 1e4], [3.0, -1.0], [1e4, -1e4], [0.5, 1e4]], [0, 1, 1, 1, 0]
    pi, half = [mpmath.mpf(1) - mpmath.mpf(1e-9), mpmath.mpf(1e-9)], mpmath.mpf("0.5")

    def log_probs(row: list[float], offset: list[Any]) -> list[Any]:
        moved = [mpmath.mpf(value) + o for value, o in zip(row, offset, strict=True)]
        total = mpmath.log(sum(mpmath.exp(value) for value in moved))
        return [value - total for value in moved]

    plain = [log_probs(row, [0, 0]) for row in rows]
    tilted = [log_probs(row, [mpmath.log(half / p) for p in pi]) for row in rows]
    log_m = [mpmath.log(sum(mpmath.exp(row[k]) for row in tilted) / len(rows)) for k in range(2)]
    by_loss: dict[Any, Callable[[int, int], Any]] = {
        rl.InformationGainLoss: lambda n, label: -(tilted[n][label] - log_m[label]),
        rl.WeightedLoss: lambda n, label: -plain[n][label] * pi[label] / half,
        rl.LogitAdjustedLoss: lambda n, label: -tilted[n][label],
        rl.LogLikelihoodLoss: lambda n, label: -plain[n][label],
    }
    expected = [float(by_loss[loss](n, label)) for n, label in enumerate(labels)]
    options: dict[str, Any] = {"marginal": rl.BatchMarginal()} if loss is rl.InformationGainLoss else {}
    for dtype, tolerance in ((torch.float32, 2e-6), (torch.float64, 1e-12)):
        z = torch.tensor(rows, dtype=dtype, requires_grad=True)
        values = loss(prevalence, reduction="none", **options)(z, torch.tensor(labels))
        torch.testing.assert_close(values, torch.tensor(expected, dtype=dtype), rtol=tolerance, atol=tolerance)
        assert bool(torch.isfinite(torch.autograd.grad(values.sum(), z)[0]).all())


def test_the_module_equals_its_function() -> None:
    prevalence = rl.Prevalence(mix(3, 1), mix(3, 2), 0.5)
    z, y = torch.randn(20, 3), torch.arange(20) % 3
    functions: list[Any] = [rl.information_gain_loss, rl.weighted_loss, rl.logit_adjusted_loss, rl.log_likelihood_loss]
    for loss, function in zip(LOSSES, functions, strict=True):
        options: Any = {"marginal": rl.BatchMarginal()} if loss is rl.InformationGainLoss else {}
        assert torch.equal(loss(prevalence, **options)(z, y), function(z, y, prevalence))
    torch.manual_seed(0)  # the same auxiliary net for both
    found = rl.information_gain_loss(z, y, prevalence, marginal=rl.AuxiliaryMarginal(nn.Linear(2, 3)))
    torch.manual_seed(0)
    module = rl.InformationGainLoss(prevalence, marginal=rl.AuxiliaryMarginal(nn.Linear(2, 3)))
    torch.testing.assert_close(found, module(z, y))


def test_a_loss_keeps_the_prevalence_and_the_reference_it_was_made_with() -> None:
    criterion = rl.InformationGainLoss(rl.Prevalence.binary(0.1), reference=0.3)
    torch.testing.assert_close(criterion.reference, torch.tensor([0.7, 0.3], dtype=torch.float64))
    for name in ("prevalence", "reference"):
        with pytest.raises(AttributeError):
            setattr(criterion, name, rl.Prevalence.binary(0.5))


def test_evidence_of_one_in_batches_at_the_sampling_rates_is_logit_adjustment() -> None:
    prevalence = rl.Prevalence([0.7, 0.2, 0.1], [0.5, 0.25, 0.25], evidence=1.0)
    y, z = torch.tensor([0, 0, 1, 2] * 5), torch.randn(20, 2, dtype=torch.float64, requires_grad=True)
    gain, adjusted = (loss(prevalence, rl.OnionPeeling(3))(z, y) for loss in (rl.InformationGainLoss, rl.LogitAdjustedLoss))
    assert_same(gain, adjusted, z, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@each_loss
def test_narrow_logits_are_computed_on_in_float32(loss: Callable[..., Any], dtype: torch.dtype) -> None:
    prevalence = rl.Prevalence.binary(0.001, 0.5, evidence=0.5)
    z, y = torch.randn(64, 2).to(dtype).requires_grad_(), torch.arange(64) % 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = loss(prevalence)(z, y)
        gradient = torch.autograd.grad(narrow, z)[0]
    wide_z = z.detach().float().requires_grad_()
    wide = loss(prevalence)(wide_z, y)
    assert narrow.dtype == torch.float32
    assert torch.equal(narrow, wide)
    assert gradient.dtype == dtype
    torch.testing.assert_close(gradient, torch.autograd.grad(wide, wide_z)[0].to(dtype), rtol=1e-2, atol=1e-6)


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


def test_votes_that_mark_a_class_as_impossible_do_not_meet_its_infinite_logarithm() -> None:
    z = torch.tensor([[0.0, -1e30], [0.0, 1.0]], dtype=torch.float32)
    loss = rl.log_likelihood_loss(z, torch.tensor([[1.0, 0.0], [0.5, 0.5]]), rl.Prevalence.binary(0.5))
    assert bool(torch.isfinite(loss))


@pytest.mark.long
def test_vmap_over_weights_equals_a_loop_and_grad_of_func_equals_autograd() -> None:
    prevalence = rl.Prevalence(mix(3, 1), mix(3, 2))
    x, y = torch.randn(20, 4, dtype=torch.float64), torch.arange(20) % 3
    weights = torch.randn(6, 3, 4, dtype=torch.float64)

    def loss(weight: Tensor) -> Tensor:
        return rl.information_gain_loss(x @ weight.T, y, prevalence, reference=prevalence.population)

    together = torch.func.vmap(loss)(weights)
    torch.testing.assert_close(together, torch.stack([loss(weight) for weight in weights]), **EXACT)
    gradients = torch.func.vmap(torch.func.grad(loss))(weights)
    for weight, gradient in zip(weights, gradients, strict=True):
        leaf = weight.clone().requires_grad_()
        torch.testing.assert_close(gradient, torch.autograd.grad(loss(leaf), leaf)[0], **EXACT)
    hessian = torch.func.hessian(loss)(weights[0])
    torch.testing.assert_close(hessian, torch.autograd.functional.hessian(loss, weights[0]), **EXACT)


@pytest.mark.parametrize(("name", "remedy"), [("running", "BatchMarginal"), ("auxiliary", "call `.eval")])
def test_a_stateful_marginal_is_refused_inside_a_transform_and_allowed_in_eval_mode(name: str, remedy: str) -> None:
    criterion = rl.InformationGainLoss(rl.Prevalence(mix(3, 1), evidence=0.5), marginal=MARGINALS[name](nn.Linear(2, 3), []))
    z, y = torch.randn(20, 3), torch.arange(20) % 3
    criterion(z, y)
    with pytest.raises(ValueError, match=remedy):
        torch.func.grad(lambda z: criterion(z, y))(z)
    criterion.eval()
    inside = torch.func.grad(lambda z: criterion(z, y))(z)
    leaf = z.clone().requires_grad_()
    torch.testing.assert_close(inside, torch.autograd.grad(criterion(leaf, y), leaf)[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: rl.InformationGainLoss(rl.Prevalence.binary(0.02, 0.5), unlabelled_evidence=3.0),
        lambda: rl.InformationGainLoss(rl.Prevalence.unknown(2)),
        lambda: rl.LogitAdjustedLoss(rl.Prevalence.binary(0.02, 0.5), unlabelled_evidence=3.0),
    ],
)
def test_a_validation_batch_without_gradients_changes_nothing(make: Any) -> None:
    z, others, z_valid, others_valid = torch.randn(4, 60, 2, generator=torch.Generator().manual_seed(0))
    y, y_valid = torch.arange(60) % 2, (torch.arange(60) % 5 == 0).long()  # validation is at another mix
    criterion = make()
    for _ in range(3):
        criterion(z.clone().requires_grad_(), y, unlabelled=others)
    before = {name: value.clone() for name, value in criterion.state_dict().items()}
    rows: dict[str, Any]
    for mode, rows in ((torch.no_grad, {}), (torch.inference_mode, {"unlabelled": others_valid})):
        with warnings.catch_warnings(), mode():
            warnings.simplefilter("error")
            losses = [criterion(z_valid, y_valid, **rows) for _ in range(100)]
        assert all(module.training for module in criterion.modules())
        torch.testing.assert_close(criterion.state_dict(), before, rtol=0, atol=0)
        expected = criterion.eval()(z_valid, y_valid, **rows)
        torch.testing.assert_close(torch.stack(losses), expected.expand(100), rtol=0, atol=0)
        criterion.train()


@pytest.mark.parametrize(
    ("loss", "kappa", "dense", "reduction"),
    [
        (rl.InformationGainLoss, 0.0, True, "mean"),
        (rl.InformationGainLoss, 0.4, False, "sum"),
        (rl.InformationGainLoss, 0.4, True, "mean"),
        (rl.InformationGainLoss, 1.0, False, "mean"),
        (rl.WeightedLoss, 1.0, True, "mean"),
        (rl.LogitAdjustedLoss, 1.0, True, "sum"),
    ],
)
def test_a_sample_weight_is_the_row_as_many_times(loss: Any, kappa: float, dense: bool, reduction: str) -> None:
    prevalence, shape = rl.Prevalence(mix(3, 1), mix(3, 2), kappa), (2, 3) if dense else ()
    z, y = torch.randn(7, 3, *shape, dtype=torch.float64, requires_grad=True), torch.randint(3, (7, *shape))
    counts = torch.tensor([1, 2, 0, 3, 1, 0, 2])
    options = {"marginal": rl.BatchMarginal()} if loss is rl.InformationGainLoss else {}
    criterion = loss(prevalence, reduction=reduction, **options)
    repeated = criterion(z.repeat_interleave(counts, 0), y.repeat_interleave(counts, 0))
    assert_same(criterion(z, y, sample_weight=counts.double()), repeated, z, **EXACT)
    if dense:
        cells = counts[:, None, None].expand_as(y).double()
        torch.testing.assert_close(criterion(z, y, sample_weight=cells), repeated, **EXACT)


def test_sample_weights_of_soft_labels_findings_and_unlabelled_rows_are_rows_as_many_times() -> None:
    counts, z, z_u = torch.tensor([2, 0, 1, 3]), torch.randn(4, 3), torch.randn(5, 3)
    times, votes = counts.double(), torch.softmax(torch.randn(4, 3), 1)
    soft = rl.InformationGainLoss(rl.Prevalence(mix(3, 1), mix(3, 2), 0.4), marginal=rl.BatchMarginal())
    again = z.repeat_interleave(counts, 0)
    torch.testing.assert_close(soft(z, votes, sample_weight=times), soft(again, votes.repeat_interleave(counts, 0)))
    y = torch.tensor([0, 1, 2, 1])
    found = soft(z, y, unlabelled=z_u, sample_weight=times)
    torch.testing.assert_close(found, soft(again, y.repeat_interleave(counts, 0), unlabelled=z_u))
    several = rl.InformationGainLoss(rl.Prevalence.multilabel([0.3, 0.1, 0.01], [0.5, 0.5, 0.5]))
    read = torch.tensor([[1.0, 0, 1], [1, 1, 0], [0, torch.nan, 1], [1, 0, 0]])
    torch.testing.assert_close(several(z, read, sample_weight=times), several(again, read.repeat_interleave(counts, 0)))


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
@pytest.mark.parametrize("path", ["Bernoulli", "composed", "fused", "unreduced"])
def test_the_gradient_of_millions_of_float32_rows_is_that_of_float64(path: str) -> None:
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(MANY, generator=generator) < 0.5).long()
    z = torch.randn(MANY, 1 if path == "Bernoulli" else 2, generator=generator) + y[:, None] - 3
    prevalence = rl.Prevalence.binary(0.01, evidence=0.0 if path == "unreduced" else 0.1)

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        likelihood = rl.Bernoulli() if path == "Bernoulli" else None
        options: dict[str, Any] = {"fused": path == "fused", "reduction": "none" if path == "unreduced" else "mean"}
        return rl.information_gain_loss(
            logits, target, prevalence, likelihood, reference=prevalence.population, **options
        ).mean()

    assert shared_bias_gradient(loss, z, y) == pytest.approx(shared_bias_gradient(loss, z.double(), y), rel=2e-4)


@pytest.mark.long
@pytest.mark.parametrize(("shape", "path"), [("rows", True), ("dense", True), ("ignored", True), ("rows", False)])
def test_a_constant_prediction_of_millions_of_float32_rows_gains_nothing(shape: str, path: bool) -> None:
    y = torch.arange(MANY) % 2
    prevalence = rl.Prevalence.from_labels(y, 0.01, evidence=0.0)
    z = torch.tensor([0.3, -2.1]).expand(MANY, 2)
    if shape == "dense":
        z, y = z.reshape(3, -1, 2).movedim(2, 1), y.reshape(3, -1)
    if shape == "ignored":
        y = torch.where(torch.arange(MANY) < 6, -100, y)
    loss = rl.information_gain_loss(z, y, prevalence, reference=prevalence.population, fused=path)
    assert abs(float(loss)) < 2e-6


@pytest.mark.parametrize(("path", "shape"), [(True, (20,)), (False, (4, 5, 5)), (True, (4, 5, 5))])
def test_labels_that_change_before_the_backward_pass_are_refused(path: bool, shape: tuple[int, ...]) -> None:
    z, y = torch.randn(shape[0], 2, *shape[1:], requires_grad=True), torch.ones(shape, dtype=torch.long)
    y.view(-1)[::2] = 0
    for kappa in (0.5, 1.0):
        loss = rl.InformationGainLoss(rl.Prevalence.binary(0.1, evidence=kappa), fused=path)(z, y)
        y.fill_(0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        y.view(-1)[::2] = 1


@pytest.mark.long
@pytest.mark.parametrize("make", [rl.InformationGainLoss, rl.InformationGainLoss.as_published])
def test_a_loss_that_is_kept_keeps_no_logits_alive(make: Any) -> None:
    leaf = torch.randn(20, 2, requires_grad=True)
    logits, y = 2 * leaf, torch.arange(20) % 2
    alive = weakref.ref(logits)
    loss = make(rl.Prevalence.binary(0.1))(logits, y)
    loss.backward()
    del logits
    gc.collect()
    assert loss.grad_fn is not None
    assert alive() is None


@pytest.mark.parametrize("name", ["running", "batch", "pool", "auxiliary"])
def test_a_batch_of_meta_tensors_has_a_shape_and_changes_nothing(name: str) -> None:
    def losses(meta: bool) -> list[float]:
        torch.manual_seed(0)
        model, x, y = nn.Linear(2, 2), torch.randn(20, 2), torch.arange(20) % 2
        criterion = rl.InformationGainLoss(rl.Prevalence.binary(0.1, evidence=0.5), marginal=MARGINALS[name](model, [(x, y)]))
        found = [float(criterion(model(x), y).detach())]
        if meta:
            assert criterion(model(x).to("meta"), y.to("meta")).shape == ()
        return [*found, float(criterion(model(x) + 1, y).detach())]

    assert losses(meta=True) == losses(meta=False)


@pytest.mark.parametrize("name", ["pool", "auxiliary"])
def test_a_copied_loss_follows_the_model_or_the_copy_of_it_that_was_made_with_it(name: str) -> None:
    model, x, y = nn.Linear(2, 2), torch.randn(20, 2), torch.arange(20) % 2
    criterion = rl.InformationGainLoss(rl.Prevalence.binary(0.1), marginal=MARGINALS[name](model, [(x, y)]))
    asked = "model" if name == "pool" else "source"
    assert getattr(copy.deepcopy(criterion).marginal, asked) is model
    for order in (["model", "criterion"], ["criterion", "model"]):
        twin: Any = copy.deepcopy({part: {"model": model, "criterion": criterion}[part] for part in order})
        assert getattr(twin["criterion"].marginal, asked) is twin["model"]
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


@pytest.mark.long
@pytest.mark.parametrize(("backend", "count"), [("aot_eager", 11), pytest.param("inductor", 1, marks=pytest.mark.slow)])
def test_losses_compile_into_one_graph_with_the_same_numbers(backend: str, count: int) -> None:
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("torch's inductor backend needs a C++ compiler (g++), and there is none here")
    script = Path(__file__).with_name("compiled.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, str(script), backend], env=environment, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.count("same compiled:") == count


PREVALENCE = rl.Prevalence([0.5, 0.3, 0.2])
LOGITS = torch.randn(6, 3)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
BAD_BATCHES: dict[str, tuple[Tensor, Tensor, str]] = {
    "label too large": (LOGITS, torch.tensor([0, 1, 3, 0, 1, 2]), "labels in 0..2"),
    "label negative": (LOGITS, torch.tensor([0, 1, -1, 0, -100, 2]), "labels in 0..2"),
    "labels out of range both ways": (LOGITS, torch.tensor([0, 3, -1, 0, 1, 2]), "labels in 0..2, but got -1..3"),
    "float labels": (LOGITS, LABELS.float(), "int labels"),
    "too few labels": (LOGITS, LABELS[:5], "one batch"),
    "labels in a column": (LOGITS, LABELS[:, None], r"squeeze\(1\)"),
    "one-hot labels that are ints": (LOGITS, F.one_hot(LABELS, 3), "multi-label"),
    "too many outputs": (torch.randn(6, 4), LABELS, "match the last layer"),
    "one-dimensional logits": (torch.randn(6), LABELS, "match the last layer"),
    "int logits": (torch.ones(6, 3, dtype=torch.long), LABELS, "float tensor"),
    "empty batch": (torch.randn(0, 3), LABELS[:0], "the batch is empty"),
    "maps without a cell": (torch.randn(2, 3, 0), torch.zeros(2, 0, dtype=torch.long), "at least one"),
    "all ignored": (LOGITS, torch.full((6,), -100), "at least one label"),
    "votes that do not sum to one": (LOGITS, torch.full((6, 3), 0.4), "sum to 1"),
    "negative votes": (LOGITS, torch.tensor([[2.0, -1.0, 0.0]] * 6), "non-negative"),
    "votes without any": (LOGITS, torch.zeros(6, 3), "at least one"),
    "NaN logit": (LOGITS.index_fill(0, torch.tensor([4]), float("nan")), LABELS, "row 4"),
    "minus infinite logit": (torch.where(torch.arange(18).view(6, 3) == 10, -torch.inf, LOGITS), LABELS, "row 3"),
}


@pytest.mark.parametrize("what", BAD_BATCHES)
def test_bad_batches_are_refused_with_a_remedy(what: str) -> None:
    logits, target, message = BAD_BATCHES[what]
    gain = partial(rl.InformationGainLoss, PREVALENCE.with_evidence(0.5))
    for criterion in (gain(), gain(fused=False), rl.InformationGainLoss(PREVALENCE), rl.LogitAdjustedLoss(PREVALENCE)):
        with pytest.raises(ValueError, match=message) as caught:
            criterion(logits, target)
        assert re.match(r"Expected .*(but|because) .*[:;] .+", str(caught.value), re.DOTALL)


wrong: Any = {"reduction": "avg", "nonfinite": "zero", "ignore_index": 1.5}
gains: Any = partial(rl.information_gain_loss, LOGITS, LABELS)
UNIFORM = rl.ContinuousPrevalence(torch.distributions.Uniform(-1.0, 1.0, validate_args=False))
BAD_SET_UPS: dict[str, tuple[Callable[[], Any], str]] = {
    "reference of another length": (lambda: rl.InformationGainLoss(PREVALENCE, reference=[0.5, 0.5]), "3 entries"),
    "reference that is no mix": (lambda: rl.InformationGainLoss(PREVALENCE, reference=wrong["reduction"]), "write the mix"),
    **{name: (partial(gains, PREVALENCE, **{name: wrong[name]}), name) for name in wrong},
    **{f"{name} of a module": (partial(rl.WeightedLoss, PREVALENCE, **{name: wrong[name]}), name) for name in wrong},
    "likelihood of other levels": (lambda: rl.InformationGainLoss(PREVALENCE, rl.OnionPeeling(5)), "5 classes"),
    "a density with classes": (lambda: rl.InformationGainLoss(PREVALENCE, rl.Gaussian()), "ContinuousPrevalence"),
    "classes with a density": (lambda: rl.InformationGainLoss(UNIFORM, rl.Bernoulli()), "Expected a Prevalence of classes"),
    "no likelihood": (lambda: rl.InformationGainLoss(PREVALENCE, rl.Categorical), "call the class"),  # type: ignore[arg-type]
    "no marginal": (lambda: rl.InformationGainLoss(PREVALENCE, marginal=rl.RunningMarginal), "make one"),  # type: ignore[arg-type]
    "one logit with float labels": (
        lambda: rl.InformationGainLoss(rl.Prevalence.binary(0.1), rl.Bernoulli())(LOGITS[:, 0], (LABELS > 0).float()),
        r"target.long\(\)",
    ),
    "label without density": (
        lambda: rl.logit_adjusted_loss(LOGITS[:, :1], 3 * LABELS.float(), UNIFORM, rl.Gaussian()),
        "positive density",
    ),
    "weights without a density of the sample": (
        lambda: rl.weighted_loss(LOGITS[:, :1], LABELS / 3, UNIFORM, rl.Gaussian()),
        "`sampling` is None",
    ),
    "labels of a density that are ints": (
        lambda: rl.logit_adjusted_loss(LOGITS[:, :1], LABELS, UNIFORM, rl.Gaussian()),
        "float",
    ),
    "decay of one": (lambda: rl.RunningMarginal(decay=1.0), "decay"),
    "pool every zero batches": (lambda: rl.PoolMarginal(nn.Linear(2, 2), [], every=0), "every"),
    "layer without parameters": (lambda: rl.AuxiliaryMarginal(nn.ReLU()), "parameters"),
    "batch of one": (
        lambda: rl.information_gain_loss(LOGITS[:1], LABELS[:1], PREVALENCE.with_evidence(0.5)),
        "at least 2 examples",
    ),
    "batch of one that counts": (
        lambda: rl.information_gain_loss(LOGITS, torch.tensor([0, -100, -100, -100, -100, -100]), PREVALENCE.with_evidence(0)),
        "at least 2 examples",
    ),
    "class missing where it is needed": (
        lambda: rl.information_gain_loss(LOGITS, LABELS * 0, PREVALENCE.with_evidence(0), marginal=rl.ClasswiseMarginal()),
        "StratifiedBatchSampler",
    ),
    "unlabelled pool at another mix": (
        lambda: gains(PREVALENCE, None, rl.PoolMarginal(nn.Identity(), [LOGITS], labelled=False), reference=[0.2, 0.4, 0.4]),
        "reference=prevalence.population",
    ),
    "empty pool": (
        lambda: gains(PREVALENCE.with_evidence(0), marginal=rl.PoolMarginal(nn.Identity(), [])),
        "at least one batch",
    ),
    "outputs of a density": (
        lambda: rl.logit_adjusted_loss(LOGITS, LABELS / 3, UNIFORM, rl.Gaussian()),
        r"\(n, 1\) for Gaussian",
    ),
    "infinite labels of a density": (
        lambda: rl.logit_adjusted_loss(LOGITS[:, :1], LABELS / 0, UNIFORM, rl.Gaussian()),
        "finite labels",
    ),
    "another mix than a density's sample": (
        lambda: rl.InformationGainLoss(UNIFORM, rl.Gaussian(), reference="population")(LOGITS[:, :1], LABELS / 3),
        "both densities",
    ),
    "sample weights of a density": (
        lambda: rl.logit_adjusted_loss(LOGITS[:, :1], LABELS / 3, UNIFORM, rl.Gaussian(), sample_weight=torch.ones(6)),
        "no `sample_weight` in regression",
    ),
    "logits in a list": (lambda: rl.WeightedLoss(PREVALENCE)(LOGITS.tolist(), LABELS), "`logits` to be a tensor, but got list"),
    "too few sample weights": (lambda: gains(PREVALENCE, sample_weight=torch.ones(3)), "one for each example"),
    "negative sample weights": (lambda: gains(PREVALENCE, sample_weight=-torch.ones(6)), "≥ 0"),
    "an infinite sample weight": (lambda: gains(PREVALENCE, sample_weight=torch.full((6,), torch.inf)), "finite"),
    "no sample weight": (lambda: gains(PREVALENCE, sample_weight=torch.zeros(6)), "above 0"),
}


@pytest.mark.parametrize("what", BAD_SET_UPS)
def test_bad_set_ups_are_refused_with_a_remedy(what: str) -> None:
    call, message = BAD_SET_UPS[what]
    with unchecked_types(), pytest.raises(ValueError, match=message) as caught:
        call()
    assert re.match(r"Expected .*(but|because) .*[:;.]", str(caught.value), re.DOTALL)


@each_loss
def test_on_request_a_logit_that_is_not_finite_makes_the_loss_nan(loss: Callable[..., Any]) -> None:
    for bad in (torch.nan, torch.inf, -torch.inf):
        z = LOGITS.clone()
        z[2, 1] = bad
        assert bool(torch.isnan(loss(PREVALENCE, nonfinite="nan")(z, LABELS)))
        assert bool(torch.isnan(loss(PREVALENCE, nonfinite="nan", reduction="none")(z, LABELS)[2]))


@each_loss
def test_ignore_index_none_ignores_no_label(loss: Callable[..., Any]) -> None:
    assert torch.equal(loss(PREVALENCE, ignore_index=None)(LOGITS, LABELS), loss(PREVALENCE)(LOGITS, LABELS))
    ignored = torch.where(LABELS == 0, -100, LABELS)
    assert_refused(lambda: loss(PREVALENCE, ignore_index=None)(LOGITS, ignored), r"labels in 0\.\.2, but got -100")
