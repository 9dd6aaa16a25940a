"""Losses: against the formula in probability space, against each other, and where they must refuse."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import mpmath  # type: ignore[import-untyped]
import pytest
import torch
import torch.nn.functional as F
from members import unchecked_types
from torch import Tensor, nn

import rightloss as rl
from rightloss.losses import fused
from rightloss.marginals import Marginal, MinibatchEstimate
from rightloss.tensors import tensor_of

REFERENCES = ["sampling", "population", "other"]
KAPPAS = [0.0, 0.7]


class FixedMarginal:
    """q given once and for all."""

    def __init__(self, log_q: Tensor) -> None:
        self.log_q = log_q

    def prepare(self, num_classes: int | None) -> None:
        """Nothing to do."""

    def sampling_frequencies(self, sampling: Tensor, realised: Callable[[], Tensor]) -> Tensor:
        return sampling

    def value(self, estimate: MinibatchEstimate) -> Tensor:
        return self.log_q

    def update(self, estimate: MinibatchEstimate) -> Tensor:
        return self.log_q

    def reset(self) -> None:
        """Nothing to forget."""


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
@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("kappa", KAPPAS)
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("k", [2, 3, 17, 211])
def test_loss_and_gradient_equal_autograd_through_the_naive_formula(reference: str, kappa: float, soft: bool, k: int) -> None:
    torch.manual_seed(k)
    n = 2 * k + 5
    prevalence = rl.Prevalence(mix(k, 1), mix(k, 2), kappa)
    r = reference_of(reference, prevalence)
    z = (2 * torch.randn(n, k, dtype=torch.float64)).requires_grad_()
    target, votes = targets(k, n, soft, 3)
    log_q = torch.log_softmax(torch.randn(k, dtype=torch.float64), 0)
    criterion = rl.InformationGainLoss(prevalence, marginal=FixedMarginal(log_q), reference=r)
    mixed = tensor_of(prevalence.sampling) if r is None else r
    weights = mixed / tensor_of(prevalence.sampling)
    expected = naive(z, votes, prevalence, mixed, weights, log_q.exp(), z.detach())
    loss = criterion(z, target)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-10)
    ours, theirs = torch.autograd.grad(loss, z)[0], torch.autograd.grad(expected, z)[0]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def marginals_with_their_q(k: int, model: nn.Linear, x: Tensor, y: Tensor) -> dict[str, Marginal]:
    """Every marginal the library has, told about the batch and then held still where it has a state."""
    pool = [(x, y)]
    return {
        "batch": rl.BatchMarginal(),
        "classwise": rl.ClasswiseMarginal(),
        "running": rl.RunningMarginal(),
        "pool": rl.PoolMarginal(model, pool),
        "auxiliary": rl.AuxiliaryMarginal(model),
    }


@pytest.mark.parametrize("name", ["batch", "classwise", "running", "pool", "auxiliary"])
@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("fused_path", [True, False])
def test_every_marginal_enters_the_gradient_through_its_value_alone(name: str, reference: str, fused_path: bool) -> None:
    torch.manual_seed(0)
    k, n, d = 4, 30, 3
    prevalence = rl.Prevalence(mix(k, 1), mix(k, 2), 0.3)
    r = reference_of(reference, prevalence)
    model = nn.Linear(d, k).double()
    x = torch.randn(n, d, dtype=torch.float64)
    y, votes = targets(k, n, False, 3)
    criterion = rl.InformationGainLoss(
        prevalence, marginal=marginals_with_their_q(k, model, x, y)[name], reference=r, fused=fused_path
    )
    criterion(model(x), y)
    criterion.eval()
    z = (model(x) + 0.1 * torch.randn(n, k, dtype=torch.float64)).detach().requires_grad_()
    seen: list[Tensor] = []
    update = criterion.marginal.update
    criterion.marginal.update = lambda estimate: seen.append(update(estimate)) or seen[-1]  # type: ignore
    loss = criterion(z, y)
    mixed = tensor_of(prevalence.sampling) if r is None else r
    weights = mixed / (votes.mean(0) if name == "classwise" else tensor_of(prevalence.sampling))
    expected = naive(z, votes, prevalence, mixed, weights, seen[-1].exp(), z.detach())
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-10)
    ours, theirs = torch.autograd.grad(loss, z)[0], torch.autograd.grad(expected, z)[0]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


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
    rtol, atol = (1e-5, 1e-6) if dtype == torch.float32 else (1e-12, 1e-12)
    torch.testing.assert_close(loss, expected, rtol=rtol, atol=atol)
    torch.testing.assert_close(rl.information_gain_loss(z, y, prevalence, reduction=reduction), loss)
    ours, theirs = (torch.autograd.grad(each.sum(), z)[0] for each in (loss, expected))
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


def test_a_large_default_loss_goes_backward_twice_and_has_second_derivatives() -> None:
    torch.manual_seed(0)
    z, y = torch.randn(300, 500, dtype=torch.float64, requires_grad=True), torch.randint(500, (300,))
    loss = rl.InformationGainLoss(rl.Prevalence(mix(500, 1)))(z, y)
    first = torch.autograd.grad(loss, z, retain_graph=True)[0].clone()
    torch.testing.assert_close(torch.autograd.grad(3 * loss, z, retain_graph=True)[0], 3 * first)
    (graph,) = torch.autograd.grad(loss, z, create_graph=True)
    direction = torch.randn_like(z)
    (product,) = torch.autograd.grad(graph, z, direction)
    offset = -tensor_of(rl.Prevalence(mix(500, 1)).log_weights)
    p = torch.softmax(z.detach() + offset, 1)
    torch.testing.assert_close(product, p * (direction - (p * direction).sum(1, keepdim=True)) / 300)


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
@pytest.mark.parametrize("blocks", ["one", "many"])
@pytest.mark.parametrize("layout", ["rows", "columns", "dense", "channels last"])
@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("ignored", [False, True])
def test_fused_and_composed_paths_agree_whatever_the_blocks(
    blocks: str, layout: str, reference: str, reduction: Any, ignored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "BLOCK", 64 if blocks == "many" else 2**19)
    k = 20 if layout == "rows" else 5
    shape = {"rows": (40, k), "columns": (4000, k)}.get(layout, (3, k, 6, 7))
    torch.manual_seed(0)
    prevalence = rl.Prevalence(mix(k, 1), mix(k, 2), 0.4)
    z = torch.randn(shape, dtype=torch.float64)
    z = (z.to(memory_format=torch.channels_last) if layout == "channels last" else z).requires_grad_()
    y = torch.randint(k, shape[:1] + shape[2:])
    if ignored:
        y.view(-1)[::7] = -100
    results = []
    for fast in (True, False):
        loss = rl.information_gain_loss(
            z, y, prevalence, reference=reference_of(reference, prevalence), reduction=reduction, fused=fast
        )
        weight = torch.linspace(0.5, 2, loss.numel(), dtype=torch.float64).reshape(loss.shape)
        results.append((loss, torch.autograd.grad((loss * weight).sum(), z)[0]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(40, 5), (3, 5, 6, 7)])
def test_unreduced_losses_are_0_where_ignored_and_sum_to_the_others(shape: tuple[int, ...]) -> None:
    prevalence, z = rl.Prevalence(mix(5, 1), mix(5, 2), 0.4), torch.randn(shape, dtype=torch.float64, requires_grad=True)
    y = torch.randint(5, shape[:1] + shape[2:])
    y.view(-1)[::7] = -100
    each, total = (rl.information_gain_loss(z, y, prevalence, reduction=how) for how in ("none", "sum"))
    assert each.shape == y.shape
    assert bool((each[y == -100] == 0).all())
    torch.testing.assert_close(each.sum(), total, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(each.sum(), z)[0], torch.autograd.grad(total, z)[0], rtol=0, atol=1e-12)


def test_a_second_backward_pass_through_the_same_graph_gives_the_same_gradient() -> None:
    z = torch.randn(50, 3, dtype=torch.float64, requires_grad=True)
    loss = rl.information_gain_loss(z, torch.randint(3, (50,)), rl.Prevalence(mix(3, 1)))
    first = torch.autograd.grad(loss, z, retain_graph=True)[0].clone()
    torch.testing.assert_close(torch.autograd.grad(loss, z)[0], first, rtol=0, atol=0)


def test_double_backward_through_the_fused_path_equals_the_composed_one() -> None:
    z = torch.randn(12, 3, dtype=torch.float64, requires_grad=True)
    y, v = torch.arange(12) % 3, torch.randn(12, 3, dtype=torch.float64)
    prevalence = rl.Prevalence(mix(3, 1), mix(3, 2), 0.2)
    products = []
    for fast in (True, False):
        loss = rl.information_gain_loss(z, y, prevalence, fused=fast, reference=prevalence.population)
        gradient = torch.autograd.grad(loss, z, create_graph=True)[0]
        products.append(torch.autograd.grad((gradient * v).sum(), z)[0])
    torch.testing.assert_close(products[0], products[1], rtol=0, atol=1e-12)
    exact = torch.autograd.functional.hvp(
        lambda z: rl.information_gain_loss(z, y, prevalence, fused=False, reference=prevalence.population), z, v
    )[1]
    torch.testing.assert_close(products[0], exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("marginal", [rl.BatchMarginal, rl.ClasswiseMarginal])
@pytest.mark.parametrize("reference", REFERENCES)
def test_a_constant_predictor_gains_nothing(marginal: Callable[[], Marginal], reference: str) -> None:
    prevalence = rl.Prevalence(mix(4, 1), mix(4, 2))
    y = torch.arange(40) % 4
    counted = rl.Prevalence.from_labels(y, prevalence.population, evidence=0.0)
    z = torch.randn(4, dtype=torch.float64).expand(40, 4)
    loss = rl.information_gain_loss(
        z, y, counted, marginal=marginal(), reference=reference_of(reference, counted), reduction="none"
    )
    torch.testing.assert_close(loss, torch.zeros(40, dtype=torch.float64), rtol=0, atol=1e-14)


def test_an_informative_predictor_gains() -> None:
    y = torch.arange(40) % 4
    loss = rl.information_gain_loss(3 * F.one_hot(y, 4).double(), y, rl.Prevalence(mix(4, 1), evidence=0.0))
    assert float(loss) < -0.5


def test_equal_mixes_leave_cross_entropy_minus_the_marginals_term() -> None:
    y, z = torch.arange(30) % 3, torch.randn(30, 3, dtype=torch.float64)
    prevalence = rl.Prevalence.from_labels(y, [1 / 3] * 3, evidence=0.0)
    log_m = torch.softmax(z, 1).mean(0).log()
    expected = F.cross_entropy(z, y) + log_m[y].mean()
    torch.testing.assert_close(rl.information_gain_loss(z, y, prevalence), expected, rtol=0, atol=1e-14)


def test_rivals_equal_their_textbook_forms() -> None:
    pi, rho = mix(3, 1), mix(3, 2)
    prevalence = rl.Prevalence(pi, rho)
    z, y = torch.randn(30, 3, dtype=torch.float64), torch.arange(30) % 3
    exact: Any = {"rtol": 0, "atol": 1e-14}
    torch.testing.assert_close(rl.LogLikelihoodLoss(prevalence)(z, y), F.cross_entropy(z, y), **exact)
    torch.testing.assert_close(rl.LogitAdjustedLoss(prevalence)(z, y), F.cross_entropy(z + (rho / pi).log(), y), **exact)
    weighted = F.cross_entropy(z, y, weight=pi / rho, reduction="sum") / 30
    torch.testing.assert_close(rl.WeightedLoss(prevalence)(z, y), weighted, **exact)
    same = rl.Prevalence(pi, pi)
    for rival in (rl.WeightedLoss, rl.LogitAdjustedLoss):
        torch.testing.assert_close(rival(same)(z, y), F.cross_entropy(z, y), **exact)


LOSSES: list[Callable[..., nn.Module]] = [
    rl.InformationGainLoss,
    rl.WeightedLoss,
    rl.LogitAdjustedLoss,
    rl.LogLikelihoodLoss,
]


@pytest.mark.parametrize("loss", LOSSES)
def test_one_hot_votes_give_what_int_labels_give(loss: Callable[..., nn.Module]) -> None:
    prevalence = rl.Prevalence(mix(3, 1), mix(3, 2))
    z, y = torch.randn(20, 3, dtype=torch.float64), torch.arange(20) % 3
    hard, soft = loss(prevalence)(z, y), loss(prevalence)(z, F.one_hot(y, 3).double())
    torch.testing.assert_close(hard, soft, rtol=0, atol=1e-14)


@pytest.mark.parametrize("loss", LOSSES)
def test_dense_targets_equal_the_flattened_computation(loss: Callable[..., nn.Module]) -> None:
    prevalence = rl.Prevalence(mix(5, 1), mix(5, 2))
    z = torch.randn(2, 5, 8, 9, requires_grad=True)
    y = torch.randint(5, (2, 8, 9))
    y[0, :3] = 255
    keep = y.flatten() != 255
    flat = z.movedim(1, -1).reshape(-1, 5)[keep]
    dense, rows = loss(prevalence, ignore_index=255)(z, y), loss(prevalence)(flat, y.flatten()[keep])
    torch.testing.assert_close(dense, rows)
    torch.testing.assert_close(torch.autograd.grad(dense, z)[0], torch.autograd.grad(rows, z, retain_graph=True)[0])
    last = z.detach().to(memory_format=torch.channels_last).requires_grad_()
    same = loss(prevalence, ignore_index=255)(last, y)
    torch.testing.assert_close(same, dense)
    torch.testing.assert_close(torch.autograd.grad(same, last)[0], torch.autograd.grad(rows, z)[0])


@pytest.mark.parametrize("loss", LOSSES)
def test_one_logit_and_two_logits_give_the_same_numbers(loss: Callable[..., nn.Module]) -> None:
    prevalence = rl.Prevalence.binary(0.01, 0.4)
    z, y = torch.randn(30, dtype=torch.float64, requires_grad=True), torch.arange(30) % 2
    two = torch.stack([torch.zeros_like(z), z], 1)
    one_logit = loss(prevalence, likelihood=rl.Bernoulli())(z, y)
    torch.testing.assert_close(one_logit, loss(prevalence)(two, y), rtol=0, atol=1e-13)
    torch.testing.assert_close(
        torch.autograd.grad(one_logit, z)[0], torch.autograd.grad(loss(prevalence)(two, y), z)[0], rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_of_ten_thousand_and_a_prevalence_of_a_billionth_stay_exact(
    loss: Callable[..., nn.Module], dtype: torch.dtype
) -> None:
    mpmath.mp.dps = 60
    prevalence = rl.Prevalence.binary(1e-9, 0.5, evidence=0.0)
    rows = [[1e4, -1e4], [-1e4, 1e4], [3.0, -1.0], [1e4, -1e4], [0.5, 1e4]]
    z = torch.tensor(rows, dtype=dtype, requires_grad=True)
    y = torch.tensor([0, 1, 1, 1, 0])
    kwargs: dict[str, Any] = {"marginal": rl.BatchMarginal()} if loss is rl.InformationGainLoss else {}
    values = loss(prevalence, reduction="none", **kwargs)(z, y)
    pi = [mpmath.mpf(1) - mpmath.mpf(1e-9), mpmath.mpf(1e-9)]
    half = mpmath.mpf("0.5")

    def log_probs(row: list[float], offset: list[Any]) -> list[Any]:
        moved = [mpmath.mpf(value) + o for value, o in zip(row, offset, strict=True)]
        total = mpmath.log(sum(mpmath.exp(value) for value in moved))
        return [value - total for value in moved]

    plain = [log_probs(row, [0, 0]) for row in rows]
    tilted = [log_probs(row, [mpmath.log(half / p) for p in pi]) for row in rows]
    log_m = [mpmath.log(sum(mpmath.exp(row[k]) for row in tilted) / len(rows)) for k in range(2)]
    expected = []
    for n, label in enumerate(y.tolist()):
        values_by_loss: dict[Any, Any] = {
            rl.InformationGainLoss: -(tilted[n][label] - log_m[label]),
            rl.WeightedLoss: -plain[n][label] * pi[label] / half,
            rl.LogitAdjustedLoss: -tilted[n][label],
            rl.LogLikelihoodLoss: -plain[n][label],
        }
        expected.append(values_by_loss[loss])
    tolerance = 2e-6 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(
        values, torch.tensor([float(value) for value in expected], dtype=dtype), rtol=tolerance, atol=tolerance
    )
    assert bool(torch.isfinite(torch.autograd.grad(values.sum(), z)[0]).all())


def test_the_module_equals_its_function() -> None:
    prevalence = rl.Prevalence(mix(3, 1), mix(3, 2))
    z, y = torch.randn(20, 3), torch.arange(20) % 3
    pairs: list[tuple[nn.Module, Any]] = [
        (rl.InformationGainLoss(prevalence, marginal=rl.BatchMarginal()), rl.information_gain_loss),
        (rl.WeightedLoss(prevalence), rl.weighted_loss),
        (rl.LogitAdjustedLoss(prevalence), rl.logit_adjusted_loss),
        (rl.LogLikelihoodLoss(prevalence), rl.log_likelihood_loss),
    ]
    for module, function in pairs:
        torch.testing.assert_close(module(z, y), function(z, y, prevalence), rtol=0, atol=0)


@pytest.mark.parametrize("make", [rl.RunningMarginal, lambda: rl.AuxiliaryMarginal(nn.Linear(2, 3))])
def test_the_function_takes_a_marginal_with_a_state(make: Callable[[], Marginal]) -> None:
    prevalence = rl.Prevalence(mix(3, 1))
    z, y = torch.randn(20, 3), torch.arange(20) % 3
    torch.manual_seed(0)  # the same auxiliary net for both
    first = rl.information_gain_loss(z, y, prevalence, marginal=make())
    torch.manual_seed(0)
    module = rl.InformationGainLoss(prevalence, marginal=make())
    torch.testing.assert_close(first, module(z, y))


def test_a_loss_keeps_the_prevalence_and_the_reference_it_was_made_with() -> None:
    criterion = rl.InformationGainLoss(rl.Prevalence.binary(0.1), reference=0.3)
    torch.testing.assert_close(criterion.reference, torch.tensor([0.7, 0.3], dtype=torch.float64))
    for name in ("prevalence", "reference"):
        with pytest.raises(AttributeError):
            setattr(criterion, name, rl.Prevalence.binary(0.5))


@pytest.mark.long
def test_evidence_pulls_the_mean_prediction_to_the_population() -> None:
    y = torch.arange(200) % 2
    distances = []
    for kappa in (0.0, 100.0):
        torch.manual_seed(0)
        prevalence = rl.Prevalence.binary(0.1, 0.5, evidence=kappa)
        bias = torch.tensor([0.0, 0.0], dtype=torch.float64, requires_grad=True)
        features = torch.randn(200, 2, dtype=torch.float64) * 0.1
        optimizer = torch.optim.Adam([bias], lr=0.1)
        criterion = rl.InformationGainLoss(prevalence, reference=prevalence.population, marginal=rl.BatchMarginal())
        for _ in range(150):
            optimizer.zero_grad()
            criterion(features + bias, y).backward()
            optimizer.step()
        mean = float(torch.softmax(features + bias.detach(), 1).mean(0)[1])
        distances.append(abs(mean - 0.1))
    assert distances[1] < 1e-3 < distances[0]


@pytest.mark.parametrize("likelihood", [rl.Categorical(), rl.OnionPeeling(3)])
def test_evidence_of_one_in_batches_at_the_sampling_rates_is_logit_adjustment(likelihood: Any) -> None:
    prevalence = rl.Prevalence([0.7, 0.2, 0.1], [0.5, 0.25, 0.25], evidence=1.0)
    y = torch.tensor([0, 0, 1, 2] * 5)
    z = torch.randn(20, likelihood.num_outputs or 3, dtype=torch.float64, requires_grad=True)
    gain = rl.InformationGainLoss(prevalence, likelihood)(z, y)
    adjusted = rl.LogitAdjustedLoss(prevalence, likelihood)(z, y)
    torch.testing.assert_close(gain, adjusted, rtol=0, atol=1e-14)
    torch.testing.assert_close(torch.autograd.grad(gain, z)[0], torch.autograd.grad(adjusted, z)[0], rtol=0, atol=1e-14)


def test_votes_that_mark_a_class_as_impossible_do_not_meet_its_infinite_logarithm() -> None:
    z = torch.tensor([[0.0, -1e30], [0.0, 1.0]], dtype=torch.float32)
    loss = rl.log_likelihood_loss(z, torch.tensor([[1.0, 0.0], [0.5, 0.5]]), rl.Prevalence.binary(0.5))
    assert bool(torch.isfinite(loss))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("loss", LOSSES)
def test_narrow_logits_are_computed_on_in_float32(loss: Callable[..., nn.Module], dtype: torch.dtype) -> None:
    prevalence = rl.Prevalence.binary(0.001, 0.5)
    z, y = torch.randn(64, 2).to(dtype).requires_grad_(), torch.arange(64) % 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = loss(prevalence)(z, y)
        gradient = torch.autograd.grad(narrow, z)[0]
    wide_z = z.detach().float().requires_grad_()
    wide = loss(prevalence)(wide_z, y)
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow, wide, rtol=0, atol=0)
    assert gradient.dtype == dtype
    torch.testing.assert_close(gradient, torch.autograd.grad(wide, wide_z)[0].to(dtype), rtol=1e-2, atol=1e-6)


@pytest.mark.long
def test_vmap_over_weights_equals_a_loop_and_grad_of_func_equals_autograd() -> None:
    prevalence = rl.Prevalence(mix(3, 1), mix(3, 2))
    x, y = torch.randn(20, 4, dtype=torch.float64), torch.arange(20) % 3
    weights = torch.randn(6, 3, 4, dtype=torch.float64)

    def loss(weight: Tensor) -> Tensor:
        return rl.information_gain_loss(x @ weight.T, y, prevalence, reference=prevalence.population)

    together = torch.func.vmap(loss)(weights)
    torch.testing.assert_close(together, torch.stack([loss(weight) for weight in weights]), rtol=0, atol=1e-13)
    gradients = torch.func.vmap(torch.func.grad(loss))(weights)
    for weight, gradient in zip(weights, gradients, strict=True):
        leaf = weight.clone().requires_grad_()
        torch.testing.assert_close(gradient, torch.autograd.grad(loss(leaf), leaf)[0], rtol=0, atol=1e-13)
    hessian = torch.func.hessian(loss)(weights[0])
    exact = torch.autograd.functional.hessian(loss, weights[0])
    torch.testing.assert_close(hessian, exact, rtol=0, atol=1e-12)


def test_a_stateful_marginal_is_refused_inside_a_transform_and_allowed_in_eval_mode() -> None:
    prevalence = rl.Prevalence(mix(3, 1), evidence=0.5)
    criterion = rl.InformationGainLoss(prevalence)
    z, y = torch.randn(20, 3), torch.arange(20) % 3
    criterion(z, y)
    with pytest.raises(ValueError, match="BatchMarginal"):
        torch.func.grad(lambda z: criterion(z, y))(z)
    criterion.eval()
    inside = torch.func.grad(lambda z: criterion(z, y))(z)
    leaf = z.clone().requires_grad_()
    torch.testing.assert_close(inside, torch.autograd.grad(criterion(leaf, y), leaf)[0])


PREVALENCE = rl.Prevalence([0.5, 0.3, 0.2])
LOGITS = torch.randn(6, 3)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
BAD_BATCHES: list[tuple[str, Tensor, Tensor, str]] = [
    ("label too large", LOGITS, torch.tensor([0, 1, 3, 0, 1, 2]), "labels in 0..2"),
    ("label negative", LOGITS, torch.tensor([0, 1, -1, 0, 1, 2]), "labels in 0..2"),
    ("float labels", LOGITS, LABELS.float(), "int labels"),
    ("bool labels", LOGITS, LABELS > 0, "int labels"),
    ("too few labels", LOGITS, LABELS[:5], "one batch"),
    ("labels in a column", LOGITS, LABELS[:, None], r"squeeze\(1\)"),
    ("one-hot labels that are ints", LOGITS, torch.nn.functional.one_hot(LABELS, 3), "multi-label"),
    ("labels of another shape", LOGITS, LABELS[:, None, None], "one batch"),
    ("too many outputs", torch.randn(6, 4), LABELS, "match the last layer"),
    ("too few outputs", torch.randn(6, 2), LABELS, "match the last layer"),
    ("one-dimensional logits", torch.randn(6), LABELS, "match the last layer"),
    ("int logits", torch.ones(6, 3, dtype=torch.long), LABELS, "float tensor"),
    ("empty batch", torch.randn(0, 3), LABELS[:0], "at least one"),
    ("all ignored", LOGITS, torch.full((6,), -100), "at least one label"),
    ("votes that do not sum to one", LOGITS, torch.ones(6, 3), "sum to 1"),
    ("negative votes", LOGITS, torch.tensor([[2.0, -1.0, 0.0]] * 6), "non-negative"),
    ("votes without any", LOGITS, torch.zeros(6, 3), "at least one"),
    ("votes for other classes", LOGITS, torch.full((6, 4), 0.25), "one batch"),
    ("NaN logit", LOGITS.index_fill(0, torch.tensor([4]), float("nan")), LABELS, "row 4"),
    ("infinite logit", LOGITS.index_fill(0, torch.tensor([2]), float("inf")), LABELS, "row 2"),
    ("one minus infinite logit", torch.where(torch.arange(18).view(6, 3) == 10, -torch.inf, LOGITS), LABELS, "row 3"),
]


@pytest.mark.parametrize(("logits", "target", "message"), [row[1:] for row in BAD_BATCHES], ids=[row[0] for row in BAD_BATCHES])
@pytest.mark.parametrize(
    "loss",
    [rl.InformationGainLoss, partial(rl.InformationGainLoss, fused=False), rl.LogitAdjustedLoss],
    ids=["fused", "composed", "rival"],
)
def test_bad_batches_are_refused_with_a_remedy(
    loss: Callable[..., nn.Module], logits: Tensor, target: Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        loss(PREVALENCE)(logits, target)
    assert re.match(r"Expected .*(but|because) .*[:;] .+", str(caught.value), re.DOTALL)


BAD_SET_UPS: list[tuple[str, Callable[[], Any], str]] = [
    ("reference of another length", lambda: rl.InformationGainLoss(PREVALENCE, reference=[0.5, 0.5]), "3 entries"),
    ("reference that does not sum to one", lambda: rl.InformationGainLoss(PREVALENCE, reference=[0.5, 0.5, 0.5]), "sum to 1"),
    ("unknown reduction", lambda: rl.WeightedLoss(PREVALENCE, reduction="avg"), "reduction"),  # type: ignore[arg-type]
    ("unknown nonfinite", lambda: rl.WeightedLoss(PREVALENCE, nonfinite="zero"), "nonfinite"),  # type: ignore[arg-type]
    ("likelihood of other levels", lambda: rl.InformationGainLoss(PREVALENCE, likelihood=rl.OnionPeeling(5)), "5 classes"),
    ("one logit for three classes", lambda: rl.LogitAdjustedLoss(PREVALENCE, likelihood=rl.Bernoulli()), "2 classes"),
    ("a density with classes", lambda: rl.InformationGainLoss(PREVALENCE, likelihood=rl.Gaussian()), "ContinuousPrevalence"),
    (
        "unknown reduction of the function",
        lambda: rl.information_gain_loss(LOGITS, LABELS, PREVALENCE, reduction="avg"),  # type: ignore[arg-type]
        "reduction",
    ),
    (
        "unknown nonfinite of the function",
        lambda: rl.weighted_loss(LOGITS, LABELS, PREVALENCE, nonfinite="no"),  # type: ignore[arg-type]
        "nonfinite",
    ),
    (
        "one logit with float labels",
        lambda: rl.InformationGainLoss(rl.Prevalence.binary(0.1), rl.Bernoulli())(LOGITS[:, 0], (LABELS > 0).float()),
        r"target.long\(\)",
    ),
    (
        "label without density",
        lambda: rl.logit_adjusted_loss(
            LOGITS[:, :1],
            3 * LABELS.float(),
            rl.ContinuousPrevalence(torch.distributions.Uniform(-1.0, 1.0, validate_args=False)),
            rl.Gaussian(),
        ),
        "positive density",
    ),
    ("decay of one", lambda: rl.RunningMarginal(decay=1.0), "decay"),
    ("pool every zero batches", lambda: rl.PoolMarginal(nn.Linear(2, 2), [], every=0), "every"),
    ("layer without parameters", lambda: rl.AuxiliaryMarginal(nn.ReLU()), "parameters"),
    (
        "batch of one",
        lambda: rl.information_gain_loss(LOGITS[:1], LABELS[:1], PREVALENCE.with_evidence(0.5)),
        "at least 2 examples",
    ),
    (
        "batch of one that counts",
        lambda: rl.information_gain_loss(LOGITS, torch.tensor([0, -100, -100, -100, -100, -100]), PREVALENCE.with_evidence(0)),
        "at least 2 examples",
    ),
    (
        "class missing where it is needed",
        lambda: rl.information_gain_loss(LOGITS, LABELS * 0, PREVALENCE.with_evidence(0), marginal=rl.ClasswiseMarginal()),
        "StratifiedBatchSampler",
    ),
    (
        "unlabelled pool at another mix",
        lambda: rl.InformationGainLoss(
            PREVALENCE, marginal=rl.PoolMarginal(nn.Identity(), [LOGITS], labelled=False), reference=[0.2, 0.4, 0.4]
        )(LOGITS, LABELS),
        "reference=prevalence.population",
    ),
    (
        "empty pool",
        lambda: rl.InformationGainLoss(PREVALENCE.with_evidence(0), marginal=rl.PoolMarginal(nn.Identity(), []))(
            LOGITS, LABELS
        ),
        "at least one batch",
    ),
]


@pytest.mark.parametrize(("call", "message"), [row[1:] for row in BAD_SET_UPS], ids=[row[0] for row in BAD_SET_UPS])
def test_bad_set_ups_are_refused_with_a_remedy(call: Callable[[], Any], message: str) -> None:
    with unchecked_types(), pytest.raises(ValueError, match=message) as caught:
        call()
    assert re.match(r"Expected .*(but|because) .*[:;] .+", str(caught.value), re.DOTALL)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_on_request_a_logit_that_is_not_finite_makes_the_loss_nan(loss: Callable[..., nn.Module], bad: float) -> None:
    z = LOGITS.clone()
    z[2, 1] = bad
    assert bool(torch.isnan(loss(PREVALENCE, nonfinite="nan")(z, LABELS)))
    rows = loss(PREVALENCE, nonfinite="nan", reduction="none")(z, LABELS)
    assert bool(torch.isnan(rows[2]))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("unlabelled", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: rl.InformationGainLoss(rl.Prevalence.binary(0.02, 0.5)),
        lambda: rl.InformationGainLoss(rl.Prevalence.binary(0.02, 0.5), unlabelled_evidence=3.0),
        lambda: rl.InformationGainLoss(rl.Prevalence.unknown(2)),
        lambda: rl.LogitAdjustedLoss(rl.Prevalence.binary(0.02, 0.5), unlabelled_evidence=3.0),
    ],
)
def test_a_validation_batch_without_gradients_changes_nothing(make: Any, unlabelled: bool, mode: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    z, others, z_valid, others_valid = torch.randn(4, 60, 2, generator=generator)
    y, y_valid = torch.arange(60) % 2, (torch.arange(60) % 5 == 0).long()  # validation is at another mix
    criterion = make()
    for _ in range(3):
        criterion(z.clone().requires_grad_(), y, unlabelled=others)
    before = {name: value.clone() for name, value in criterion.state_dict().items()}
    rows = {"unlabelled": others_valid} if unlabelled else {}
    with warnings.catch_warnings(), mode():
        warnings.simplefilter("error")
        losses = [criterion(z_valid, y_valid, **rows) for _ in range(100)]
    assert all(module.training for module in criterion.modules())
    assert {*before} == {*criterion.state_dict()}
    for name, value in criterion.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    expected = criterion.eval()(z_valid, y_valid, **rows)
    torch.testing.assert_close(torch.stack(losses), expected.expand(100), rtol=0, atol=0)
