"""Unlabelled rows of the population in the losses: against the likelihood of the streams in probability space."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from members import assert_same, each_kind, generator, population, random_outputs, unchecked_types
from torch import Tensor, nn

import rightloss as rl
from rightloss.losses import PopulationRows, fused
from rightloss.tensors import tensor_of

K = 3


def classes(k: int, sampling: Tensor | None = None, evidence: float = 1.0) -> rl.Prevalence:
    return rl.Prevalence(population(k, 3), sampling, evidence)


def batch(k: int = K, n: int = 12, m: int = 20, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of n labelled rows, each class as often, their labels, and logits of m unlabelled rows."""
    z = 2 * torch.randn(n + m, k, dtype=torch.float64, generator=generator(seed))
    return z[:n].requires_grad_(), torch.arange(n) % k, z[n:].requires_grad_()


def stream_probs(p: Tensor, prevalence: rl.Prevalence, lam: float) -> Tensor:
    """P(stream|x) in probability space: the formula of the design's section 10."""
    masses = torch.cat(
        [p * tensor_of(prevalence.sampling) / tensor_of(prevalence.population), torch.full((len(p), 1), lam, dtype=p.dtype)], 1
    )
    return masses / masses.sum(1, keepdim=True)


def by_hand(p: Tensor, y: Tensor, p_u: Tensor, prevalence: rl.Prevalence, lam: float, kappa: float = 1.0) -> Tensor:
    """The mean loss per labelled example with the minibatch's own marginal, in probability space."""
    t, t_u = stream_probs(p, prevalence, lam), stream_probs(p_u, prevalence, lam)
    m = (t.mean(0) + lam * t_u.mean(0)) / (1 + lam)
    r = torch.cat([tensor_of(prevalence.sampling), torch.tensor([lam], dtype=torch.float64)]) / (1 + lam)
    labels = F.pad(torch.bincount(y, minlength=p.shape[1]).double() / len(y), (0, 1), value=lam) / (1 + lam)
    marginal = (((r if kappa else labels) - kappa * r) * m.log()).sum()
    return (1 + lam) * marginal - t.gather(1, y[:, None]).log().mean() - lam * t_u[:, -1].log().mean()


@pytest.mark.parametrize(("k", "weight", "kappa"), [(2, None, 0.0), (3, 0.3, 0.4), (5, 7.0, 1.0), (3, None, 1.0)])
def test_loss_and_gradient_equal_the_likelihood_of_the_streams(k: int, weight: float | None, kappa: float) -> None:
    z, y, z_u = batch(k, n=4 * k, m=20)
    prevalence, lam = classes(k, evidence=kappa), 20 / (4 * k) if weight is None else weight
    expected = by_hand(z.softmax(1), y, z_u.softmax(1), prevalence, lam, kappa)
    options: dict[str, Any] = {"unlabelled_weight": weight, "unlabelled_evidence": 0.0}
    for path in (True, False):
        criterion = rl.InformationGainLoss(prevalence, marginal=rl.BatchMarginal(), fused=path, **options)
        assert_same(criterion(z, y, unlabelled=z_u), expected, (z, z_u))
    found = rl.information_gain_loss(z, y, prevalence, unlabelled=z_u, **options)
    assert_same(found, expected, (z, z_u))


@each_kind
def test_every_likelihood_takes_unlabelled_rows(make: Callable[[], Any], k: int) -> None:
    likelihood, y, prevalence = make(), torch.arange(4 * k) % k, classes(k)
    outputs, others = random_outputs(likelihood, 4 * k).requires_grad_(), random_outputs(likelihood, 9, seed=1).requires_grad_()
    for weight, lam in ((None, 9 / (4 * k)), (7.0, 7.0)):
        expected = by_hand(likelihood.table(outputs).exp(), y, likelihood.table(others).exp(), prevalence, lam)
        options: dict[str, Any] = {"unlabelled_weight": weight, "unlabelled_evidence": 0.0}
        for loss in (rl.LogitAdjustedLoss, rl.InformationGainLoss):
            found = loss(prevalence, likelihood, **options)(outputs, y, unlabelled=others)
            assert_same(found, expected, (outputs, others))
        twin = rl.logit_adjusted_loss(outputs, y, prevalence, likelihood, unlabelled=others, **options)
        assert_same(twin, expected, (outputs, others))


@pytest.mark.parametrize("kappa", [0.0, 1.0])
def test_without_unlabelled_rows_nothing_changes(kappa: float) -> None:
    z, y, z_u = batch()
    for others, weight in ((None, None), (z_u[:0], None), (z_u, 0.0)):
        for loss in (rl.LogitAdjustedLoss, rl.InformationGainLoss):
            found = loss(classes(K, evidence=kappa), unlabelled_weight=weight)(z, y, unlabelled=others)
            assert torch.equal(found, loss(classes(K, evidence=kappa))(z, y))


@pytest.mark.parametrize("kappa", [0.0, 0.4])
def test_at_the_populations_mix_the_unlabelled_rows_are_the_marginal(kappa: float) -> None:
    z, y, z_u = batch()
    prevalence = classes(K, evidence=kappa)
    log_m = z_u.softmax(1).mean(0).log()
    labels = tensor_of(prevalence.sampling) if kappa else torch.bincount(y, minlength=K).double() / len(y)
    marginal = ((labels - kappa * tensor_of(prevalence.population)) * log_m).sum()
    gain = torch.log_softmax(z, 1).gather(1, y[:, None])[:, 0] - marginal
    references: list[Any] = ["population", prevalence.population]
    for reference in references:
        criterion = rl.InformationGainLoss(
            prevalence, marginal=rl.BatchMarginal(), reference=reference, unlabelled_evidence=0.0
        )
        assert_same(criterion(z, y, unlabelled=z_u), -gain.mean(), (z, z_u))
    found = rl.information_gain_loss(z, y, prevalence, reference=prevalence.population, unlabelled=z_u)
    assert_same(found, -gain.mean(), (z, z_u))


def test_one_hot_votes_and_ignored_rows_give_what_int_labels_give() -> None:
    z, y, z_u = batch()
    prevalence = classes(K, evidence=0.3)
    expected = rl.InformationGainLoss(prevalence)(z, y, unlabelled=z_u)
    votes = nn.functional.one_hot(y, K).double()
    assert_same(rl.InformationGainLoss(prevalence)(z, votes, unlabelled=z_u), expected, (z, z_u))
    more, ignored = torch.cat([z, z.detach()[:5]]), torch.cat([y, torch.full((5,), -100)])
    for path in (True, False):
        assert_same(rl.InformationGainLoss(prevalence, fused=path)(more, ignored, unlabelled=z_u), expected, (z, z_u))


def test_dense_rows_equal_the_flattened_computation() -> None:
    z, z_u = torch.randn(4, K, 2, 3, generator=generator(1)).double(), torch.randn(5, K, 2, 3, generator=generator(2)).double()
    y = torch.arange(24).view(4, 2, 3) % K
    flat, flat_u = (each.movedim(1, -1).flatten(0, -2) for each in (z, z_u))
    for loss in (rl.LogitAdjustedLoss, rl.InformationGainLoss):
        expected = loss(classes(K), reduction="none")(flat, y.flatten(), unlabelled=flat_u)
        found = loss(classes(K), reduction="none")(z, y, unlabelled=z_u)
        assert found.shape == (9, 2, 3)
        torch.testing.assert_close(found.flatten(), expected)
        other_size = loss(classes(K), reduction="none")(z, y, unlabelled=z_u[..., :1])
        assert other_size.shape == (24 + 10,)


@pytest.mark.parametrize("loss", [rl.LogitAdjustedLoss, rl.InformationGainLoss, rl.InformationGainLoss.as_published])
@pytest.mark.parametrize("weight", [None, 0.4])
def test_unreduced_losses_sum_to_the_reduced_ones_and_count_no_ignored_row(loss: Any, weight: float | None) -> None:
    z, y, z_u = batch()
    y = torch.where(torch.arange(12) < 3, -100, y)
    rows, total, mean = (
        loss(classes(K, evidence=0.3), reduction=how, unlabelled_weight=weight)(z, y, unlabelled=z_u)
        for how in ("none", "sum", "mean")
    )
    assert rows.shape == ((12,) if loss == rl.InformationGainLoss.as_published else (32,))
    torch.testing.assert_close(rows.sum(), total)
    torch.testing.assert_close(total / 9, mean)


@each_kind
def test_evidence_is_the_mean_log_likelihood_of_people_counted_by_class(make: Callable[[], Any], k: int) -> None:
    kappa = 0.4
    likelihood, prevalence = make().double(), classes(k, evidence=kappa)
    outputs = random_outputs(likelihood, 32).requires_grad_()
    z, y, z_u = outputs[:12], torch.arange(12) % k, outputs[12:]
    mean = likelihood.table(z_u).exp().mean(0)
    for weight, lam in ((None, 20 / 12), (0.3, 0.3)):
        expected = -2.5 * lam * kappa * (tensor_of(prevalence.population) * mean.log()).sum()
        options: dict[str, Any] = {"unlabelled": z_u, "unlabelled_weight": weight}
        for loss in (rl.information_gain_loss, rl.logit_adjusted_loss):
            found = [loss(z, y, prevalence, likelihood, unlabelled_evidence=people, **options) for people in (2.5, 0.0)]
            assert_same(found[0] - found[1], expected, (outputs,))


def test_evidence_has_the_running_mean_as_its_value_and_the_minibatch_as_its_gradient() -> None:
    """About 20 π_k of 20 rows are of class k: to see 30 of the rarest, the mean is taken over 33 minibatches at most."""
    prevalence = classes(K)
    decay = 1 - max(20 * float(prevalence.population.min()) / 30, 1 / 33)
    for loss in (rl.InformationGainLoss, rl.LogitAdjustedLoss):
        ours, without = loss(prevalence), loss(prevalence, unlabelled_evidence=0.0)
        average = torch.zeros(K, dtype=torch.float64)
        for step in range(4):
            z, y, z_u = batch(seed=step)
            p = z_u.softmax(1)
            share = (1 - decay) / (1 - decay ** (step + 1))
            average = (1 - share) * average + share * p.detach().mean(0)
            found = ours(z, y, unlabelled=z_u) - without(z, y, unlabelled=z_u)
            torch.testing.assert_close(found, -5 * (tensor_of(prevalence.population) * average.log()).sum())
            by_hand = -5 * (tensor_of(prevalence.population) / average * p.mean(0)).sum()
            gradients = (torch.autograd.grad(each, z_u, retain_graph=True)[0] for each in (found, by_hand))
            torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("prevalence", [rl.Prevalence.unknown(K), classes(K, evidence=0.0)], ids=str)
def test_evidence_says_nothing_where_the_population_is_unknown_or_no_evidence(prevalence: rl.Prevalence) -> None:
    z, y, z_u = batch()
    for loss in (rl.InformationGainLoss, rl.LogitAdjustedLoss):
        found = [loss(prevalence, unlabelled_evidence=people)(z, y, unlabelled=z_u) for people in (0.0, 5.0)]
        assert torch.equal(*found)


@pytest.mark.parametrize("rows", [50, 4000])
def test_fused_and_composed_paths_agree_whatever_the_blocks(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "BLOCK", 256)
    z, y, z_u = batch(5, rows, 2 * rows)
    for weight in (None, 0.5):
        marginals: list[Callable[[], Any]] = [rl.BatchMarginal, rl.RunningMarginal, rl.ClasswiseMarginal]
        for marginal in marginals:
            ours, theirs = (
                rl.InformationGainLoss(classes(5, evidence=0.2), marginal=marginal(), fused=path, unlabelled_weight=weight)
                for path in (True, False)
            )
            assert_same(ours(z, y, unlabelled=z_u), theirs(z, y, unlabelled=z_u), (z, z_u))


@pytest.mark.long
def test_gradients_pass_gradcheck_and_double_backward() -> None:
    z, y, z_u = batch(3, 6, 4)
    prevalence = classes(3, evidence=0.3)
    for path in (True, False):

        def loss(a: Tensor, b: Tensor, path: bool = path) -> Tensor:
            options: dict[str, Any] = {"unlabelled": b, "unlabelled_weight": 1.7, "unlabelled_evidence": 2.0}
            return rl.information_gain_loss(a, y, prevalence, fused=path, **options)

        assert torch.autograd.gradcheck(loss, (z, z_u))
        assert torch.autograd.gradgradcheck(loss, (z, z_u))


def test_vmap_over_weights_equals_a_loop() -> None:
    x, y, x_u = torch.randn(12, 4).double(), torch.arange(12) % K, torch.randn(8, 4).double()
    weights = torch.randn(5, K, 4, generator=generator(3)).double()
    criterion = rl.InformationGainLoss(classes(K, evidence=0.5), marginal=rl.BatchMarginal(), unlabelled_weight=2.0)

    def loss(w: Tensor) -> Tensor:
        return criterion(x @ w.T, y, unlabelled=x_u @ w.T)

    torch.testing.assert_close(torch.func.vmap(loss)(weights), torch.stack([loss(w) for w in weights]))
    gradients = torch.func.vmap(torch.func.grad(loss))(weights)
    torch.testing.assert_close(gradients, torch.stack([torch.func.grad(loss)(w) for w in weights]))


@pytest.mark.parametrize("loss", [rl.LogitAdjustedLoss, rl.InformationGainLoss])
def test_positive_and_unlabelled_rows_alone_give_the_likelihood_of_contaminated_controls(loss: Callable[..., Any]) -> None:
    """Lancaster & Imbens (1996): P(labelled|x) = n₁ p/π / (n₁ p/π + N)."""
    z, _, z_u = batch(2, 10, 30)
    p, p_u = (each.softmax(1)[:, 1] / 0.2 for each in (z, z_u))
    expected = -(p / (p + 3)).log().mean() - 3 * (3 / (p_u + 3)).log().mean()
    criterion = loss(rl.Prevalence.positive_unlabelled(0.2), unlabelled_evidence=0.0)
    assert_same(criterion(z, torch.ones(10, dtype=torch.long), unlabelled=z_u), expected, (z, z_u))
    with pytest.raises(ValueError, match="Expected `unlabelled` rows"):
        criterion(z, torch.ones(10, dtype=torch.long))
    with pytest.raises(ValueError, match="never labelled"):
        criterion(z, torch.zeros(10, dtype=torch.long), unlabelled=z_u)


def test_the_marginal_of_the_streams_has_no_class_that_is_never_labelled() -> None:
    z, _, z_u = batch(2, 10, 30)
    criterion = rl.InformationGainLoss(rl.Prevalence.positive_unlabelled(0.2).with_evidence(0.5)).eval()

    def loss(z: Tensor) -> Tensor:
        return criterion(z, torch.ones(10, dtype=torch.long), unlabelled=z_u.detach())

    inside = torch.func.grad(loss)(z.detach())  # where values cannot be read, the average must have the right size
    torch.testing.assert_close(inside, torch.autograd.grad(loss(z), z)[0])


def test_logits_of_ten_thousand_and_a_prevalence_of_a_billionth_stay_finite() -> None:
    z, y, z_u = batch(2)
    prevalence = rl.Prevalence.binary(1e-9)
    for loss in (rl.LogitAdjustedLoss, rl.InformationGainLoss):
        for scale in (1e4, 1e-9):
            big, big_u = ((each.detach() * scale).requires_grad_() for each in (z, z_u))
            found = loss(prevalence)(big, y, unlabelled=big_u)
            gradients = torch.autograd.grad(found, (big, big_u))
            assert bool(found.isfinite())
            assert all(bool(each.isfinite().all()) for each in gradients)


@pytest.mark.parametrize("make", [rl.InformationGainLoss, rl.InformationGainLoss.as_published])
def test_what_was_learnt_of_an_unknown_prevalence_is_saved_and_used_in_eval_mode(make: Callable[..., Any]) -> None:
    z, y, z_u = batch(2)
    criterion, copy = (make(rl.Prevalence.unknown(2)) for _ in range(2))
    torch.testing.assert_close(criterion.population, torch.tensor([0.5, 0.5]).double())
    for _ in range(3):
        criterion(z, y, unlabelled=z_u)
    torch.testing.assert_close(criterion.population, z_u.detach().softmax(1).mean(0))
    copy.load_state_dict(criterion.state_dict())
    torch.testing.assert_close(copy.population, criterion.population)
    known = rl.Prevalence.unknown(2).retarget(criterion.population)
    assert not known.is_unknown
    for others in (None, z_u):
        found, same = (each.eval()(z, y, unlabelled=others) for each in (criterion, copy))
        assert torch.equal(found, same)
        torch.testing.assert_close(found, make(known, unlabelled_evidence=0.0).eval()(z, y, unlabelled=others))


def test_training_goes_on_after_a_pass_in_inference_mode() -> None:
    z, y, z_u = batch()
    for make in (rl.InformationGainLoss, rl.LogitAdjustedLoss, rl.InformationGainLoss.as_published):
        criterion: Any = make(classes(K, evidence=0.5))
        with torch.inference_mode():
            criterion(z, y, unlabelled=z_u)
        found, expected = (each(z, y, unlabelled=z_u) for each in (criterion, make(classes(K, evidence=0.5))))
        assert_same(found, expected, (z, z_u))


def test_a_state_saved_without_unlabelled_rows_loads_and_one_saved_with_them_too() -> None:
    z, y, z_u = batch()
    plain, streams, fresh = (rl.InformationGainLoss(classes(K, evidence=0.5)) for _ in range(3))
    plain(z, y)
    streams(z, y, unlabelled=z_u)
    assert not any("stream" in name for name in plain.state_dict())
    fresh.load_state_dict(streams.state_dict())
    assert torch.equal(fresh.eval()(z, y, unlabelled=z_u[:7]), streams.eval()(z, y, unlabelled=z_u[:7]))


def test_a_state_saved_by_an_earlier_version_loads() -> None:
    """Its mean prediction over the unlabelled rows was called `evidence_marginal`, if π was known."""
    average, streams = torch.log(torch.tensor([0.2, 0.3, 0.5])), torch.log(torch.tensor([0.1, 0.2, 0.2, 0.5]))
    state = {
        "marginal.log_average": average,
        "marginal.steps": torch.tensor(4),
        "evidence_marginal.log_average": average,
        "evidence_marginal.steps": torch.tensor(3),
        "stream_marginal.log_average": streams,
        "stream_marginal.steps": torch.tensor(2),
    }
    loss = rl.InformationGainLoss(classes(3, evidence=0.5))
    loss.load_state_dict(state)
    assert loss.population_marginal is not None
    assert int(loss.population_marginal.steps) == 3
    torch.testing.assert_close(loss.population_marginal.log_average, average)
    assert isinstance(loss.stream_marginal, rl.RunningMarginal)
    torch.testing.assert_close(loss.stream_marginal.log_average, streams)
    assert "evidence_marginal.steps" in state


def test_population_rows_are_the_keyword_arguments_as_one_object() -> None:
    z, y, z_u = batch()
    for loss in (rl.InformationGainLoss, rl.LogitAdjustedLoss):
        expected = loss(classes(K), unlabelled_weight=0.7, unlabelled_evidence=2.0)(z, y, unlabelled=z_u)
        rows = PopulationRows(z_u, weight=0.7, evidence=2.0)
        assert torch.equal(loss(classes(K))(z, y, unlabelled=rows), expected)


def _call(**options: Any) -> Callable[[], Any]:
    z, y, z_u = batch()
    given = {"unlabelled": z_u, **options}
    loss = given.pop("loss", rl.InformationGainLoss(classes(K)))
    return lambda: loss(z, y, **given)


def _unknown(loss: Any) -> Callable[[], Any]:
    z, y, _ = batch(2)
    return lambda: loss(rl.Prevalence.unknown(2))(z, y)


gain_loss: Any = rl.InformationGainLoss
REFUSED = {
    "another number of outputs": (_call(unlabelled=torch.zeros(4, 2)), "as the labelled ones"),
    "no tensor": (_call(unlabelled=[[0.0, 0.0, 0.0]]), "pass model(x_unlabelled)"),
    "not finite": (_call(unlabelled=torch.full((4, 3), torch.nan)), "Expected finite logits"),
    "weighted": (_call(loss=rl.WeightedLoss(classes(K))), "use LogitAdjustedLoss"),
    "a pool": (
        _call(loss=rl.InformationGainLoss(classes(K, evidence=0.5), marginal=rl.PoolMarginal(nn.Identity(), []))),
        "use RunningMarginal()",
    ),
    "a weight below 0": (lambda: rl.InformationGainLoss(classes(K), unlabelled_weight=-1.0), "finite number from 0 up"),
    "evidence below 0": (lambda: rl.LogitAdjustedLoss(classes(K), unlabelled_evidence=-1.0), "per unlabelled row"),
    "evidence that is no number": (lambda: gain_loss(classes(K), unlabelled_evidence=None), "per unlabelled row"),
    "π unknown, no unlabelled rows": (_unknown(rl.InformationGainLoss), "give the prevalence a population"),
    "π unknown, weights": (lambda: rl.WeightedLoss(rl.Prevalence.unknown(2)), "Expected a known prevalence"),
    "π unknown, predictions": (
        lambda: rl.retarget(torch.zeros(2, 2).log_softmax(1), 0.5, rl.Prevalence.unknown(2)),
        "Expected a known prevalence",
    ),
    "π unknown, one class": (lambda: rl.Prevalence.unknown(1), "count the classes"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_input_is_refused_with_a_remedy(what: str) -> None:
    call, message = REFUSED[what]
    with unchecked_types(), pytest.raises(ValueError, match=re.escape(message)):
        call()
