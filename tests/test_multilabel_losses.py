"""Losses, and the layer, for several findings at once (multi-label)."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from members import unchecked_types
from torch import Tensor, nn

import rightloss as rl
from rightloss.prevalence import MultilabelPrevalence
from rightloss.tensors import tensor_of

RATES, SAMPLED = [0.30, 0.05, 0.01], [0.3, 0.4, 0.5]
LOSSES: dict[str, Callable[..., Any]] = {
    "default": rl.InformationGainLoss,
    "published": rl.InformationGainLoss.as_published,
    "classwise": partial(rl.InformationGainLoss, marginal=rl.ClasswiseMarginal()),
    "weighted": rl.WeightedLoss,
    "adjusted": rl.LogitAdjustedLoss,
    "plain": rl.LogLikelihoodLoss,
}
FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "default": rl.information_gain_loss,
    "weighted": rl.weighted_loss,
    "adjusted": rl.logit_adjusted_loss,
    "plain": rl.log_likelihood_loss,
}


def findings() -> MultilabelPrevalence:
    return rl.Prevalence.multilabel(RATES, SAMPLED, names=["edema", "mass", "nodule"])


def batch(seed: int, rows: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, 3, dtype=torch.float64, generator=generator).requires_grad_()
    return logits, (torch.rand(rows, 3, generator=generator) < torch.tensor(SAMPLED)).double()


class TestLosses:
    @pytest.mark.parametrize(
        ("name", "reduction"),
        [*((name, "mean") for name in LOSSES), ("published", "sum"), ("published", "none"), ("weighted", "none")],
    )
    def test_loss_and_gradient_are_those_of_a_loss_for_each_finding(self, name: str, reduction: str) -> None:
        together = LOSSES[name](findings(), reduction=reduction)
        apart = [LOSSES[name](each, rl.Bernoulli(), reduction=reduction) for each in findings()]
        for step in range(3):  # the running average has a history
            logits, y = batch(step)
            if step:
                y[torch.rand(y.shape, generator=torch.Generator().manual_seed(step)) < 0.3] = torch.nan
            read = [~column.isnan() for column in y.T]
            parts = [
                each(logits[rows, number], y[rows, number].long())
                for number, (each, rows) in enumerate(zip(apart, read, strict=True))
            ]
            if reduction == "none":
                parts = [
                    torch.zeros(len(y), dtype=part.dtype).masked_scatter(rows, part)
                    for part, rows in zip(parts, read, strict=True)
                ]
            expected = torch.stack(parts, -1)
            expected = expected if reduction == "none" else expected.sum() / (3 if reduction == "mean" else 1)
            found = together(logits, y)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
            gradients = [torch.autograd.grad(each.sum(), logits)[0] for each in (found, expected)]
            torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)

    def test_functions_are_the_first_batch_of_the_modules(self) -> None:
        logits, y = batch(1)
        for name, function in FUNCTIONS.items():
            torch.testing.assert_close(function(logits, y, findings()), LOSSES[name](findings())(logits, y))

    @pytest.mark.parametrize("name", ["default", "published", "weighted"])
    def test_a_finding_that_no_row_has_read_changes_nothing(self, name: str) -> None:
        criterion, two = LOSSES[name](findings()), LOSSES[name](rl.Prevalence.multilabel(RATES[:2], SAMPLED[:2]))
        for step in range(2):
            logits, y = batch(step)
            unread = torch.cat([y[:, :2], torch.full_like(y[:, :1], torch.nan)], 1)
            found = criterion(logits, unread)
            torch.testing.assert_close(found * 3, two(logits[:, :2], y[:, :2]) * 2)
            assert float(torch.autograd.grad(found, logits)[0][:, 2].abs().max()) < 1e-12
        state = criterion.state_dict()
        assert all(int(value) == 0 for key, value in state.items() if key == "marginal.2.steps")

    def test_ints_bools_and_an_ignored_label_are_read_as_floats_and_nan(self) -> None:
        logits, y = batch(0)
        hole = y.clone()
        hole[3, 1] = torch.nan
        ints = torch.where(hole.isnan(), -100, hole).long()
        bytes_ = torch.full_like(ints, 156).to(torch.uint8)  # -100 as a byte
        with pytest.raises(ValueError, match="0 is absent"):
            rl.logit_adjusted_loss(logits, bytes_, findings())
        torch.testing.assert_close(
            rl.logit_adjusted_loss(logits, ints, findings()), rl.logit_adjusted_loss(logits, hole, findings())
        )
        torch.testing.assert_close(
            rl.information_gain_loss(logits, y.bool(), findings()), rl.information_gain_loss(logits, y, findings())
        )

    def test_a_share_of_readers_is_a_mixture_of_both_labels(self) -> None:
        logits, y = batch(0)
        losses = [rl.logit_adjusted_loss(logits, torch.full_like(y, value), findings()) for value in (0.0, 0.25, 1.0)]
        torch.testing.assert_close(losses[1], 0.75 * losses[0] + 0.25 * losses[2])

    def test_masks_of_several_findings_are_rows_of_each(self) -> None:
        logits, y = batch(0, rows=24)
        maps = [each.reshape(2, 3, 4, 3).movedim(-1, 1) for each in (logits, y)]
        torch.testing.assert_close(
            rl.information_gain_loss(maps[0], maps[1], findings()), rl.information_gain_loss(logits, y, findings())
        )
        unreduced = rl.information_gain_loss(maps[0], maps[1], findings(), reduction="none")
        assert unreduced.shape == (2, 3, 3, 4)
        rows = rl.information_gain_loss(logits, y, findings(), reduction="none")
        torch.testing.assert_close(unreduced, rows.reshape(2, 3, 4, 3).movedim(-1, 1))

    def test_a_wrong_mix_is_reported_with_the_name_of_the_finding(self) -> None:
        criterion = rl.LogitAdjustedLoss(rl.Prevalence.multilabel({"edema": 0.1, "mass": 0.1}, sampling=[0.3, 0.5]))
        generator = torch.Generator().manual_seed(0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(200):
                y = (torch.rand(64, 2, generator=generator) < 0.3).float()
                y[:5, 1] = torch.nan
                criterion(torch.zeros(64, 2, requires_grad=True), y)
        assert {str(each.message).split(":")[0] for each in caught} == {"finding 'mass'"}

    def test_state_is_saved_by_finding_and_copies_are_apart(self) -> None:
        criterion = rl.InformationGainLoss(findings())
        criterion(*batch(0))
        other = rl.InformationGainLoss(findings())
        other.load_state_dict(criterion.state_dict())
        torch.testing.assert_close(other(*batch(1)), copy.deepcopy(criterion)(*batch(1)))


class TestRefusals:
    @pytest.mark.parametrize("kind", [torch.long, torch.float])
    def test_a_single_prevalence_refuses_the_logits_and_labels_of_several_findings(self, kind: torch.dtype) -> None:
        with pytest.raises(ValueError, match="multi-label"):
            rl.InformationGainLoss(rl.Prevalence.binary(0.1), rl.Bernoulli())(torch.zeros(8, 3), torch.zeros(8, 3).to(kind))
        multi_hot = torch.tensor([[1, 1, 0], [0, 0, 1]]).to(kind)
        with pytest.raises(ValueError, match="multi-label"):
            rl.InformationGainLoss(rl.Prevalence([0.5, 0.3, 0.2]))(torch.zeros(2, 3), multi_hot)

    def test_images_without_findings_are_not_left_out_without_a_word(self) -> None:
        with pytest.warns(rl.PrevalenceWarning, match="multi-label"):
            rl.log_likelihood_loss(
                torch.zeros(3, 3), torch.eye(3)[[0, 1, 2]] * torch.tensor([[1.0], [1], [0]]), rl.Prevalence([0.5, 0.3, 0.2])
            )

    @pytest.mark.parametrize(
        ("logits", "target", "message"),
        [
            (torch.zeros(8, 2), torch.zeros(8, 2), r"\(n, 3, …\)"),
            (torch.zeros(8, 3), torch.full((8, 3), -1.0), "uncertain"),
            (torch.zeros(8, 3), torch.full((8, 3), 2), "0 is absent"),
            (torch.zeros(8, 3), torch.full((8, 3), torch.nan), "skip such a batch"),
            (torch.full((8, 3), torch.nan), torch.zeros(8, 3), "finite"),
        ],
    )
    def test_what_is_not_a_table_of_findings_is_refused(self, logits: Tensor, target: Tensor, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            rl.InformationGainLoss(findings())(logits, target)

    def test_options_that_several_findings_do_not_have_are_refused(self) -> None:
        logits, y = batch(0)
        with pytest.raises(ValueError, match="one loss for each finding"):
            rl.InformationGainLoss(findings())(logits, y, unlabelled=logits)
        with pytest.raises(ValueError, match="Bernoulli"):
            rl.InformationGainLoss(findings(), rl.Categorical())
        from rightloss.inference import log_posterior

        with unchecked_types(), pytest.raises(ValueError, match="multi-label"):
            log_posterior(nn.Linear(3, 3), findings())  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="RunningMarginal"):
            rl.InformationGainLoss(findings(), marginal=rl.PoolMarginal(nn.Linear(1, 1), []))


def associated(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """x and the findings A (5 %) and B, which 30 % of those with A have, and 1 % of the others; x tells about A and B."""
    generator = torch.Generator().manual_seed(seed)
    a = (torch.rand(rows, generator=generator) < 0.05).double()
    b = (torch.rand(rows, generator=generator) < 0.01 + 0.29 * a).double()
    y = torch.stack([a, b], 1)
    return torch.randn(rows, 2, dtype=torch.float64, generator=generator) + y * torch.tensor([2.0, 1.0]), y


def drawn_by_any(rows: int) -> tuple[Tensor, Tensor]:
    """Findings of images that were drawn by whether they have any finding, and those of their archive."""
    _, y = associated(rows, 0)
    ill, well = torch.nonzero(y.any(1)).flatten(), torch.nonzero(~y.any(1)).flatten()
    return y[torch.cat([ill, well[: len(ill)]])], y


class TestSampledByFindings:
    def test_losses_weight_the_rows_of_each_finding_by_their_pattern(self) -> None:
        y, archive = drawn_by_any(4000)
        together, logits = rl.Prevalence.from_label_matrix(y, population=archive), torch.randn(len(y), 2, dtype=torch.float64)
        assert together.patterns is not None
        weights = together.patterns.of_rows(y)
        assert float(weights.std()) > 0.1
        for loss in (rl.InformationGainLoss.as_published, rl.LogitAdjustedLoss):
            own = [
                loss(each, rl.Bernoulli())(logits[:, column], y[:, column].long(), sample_weight=weights[:, column])
                for column, each in enumerate(together)
            ]
            torch.testing.assert_close(loss(together)(logits, y), torch.stack(own).mean())

    @pytest.mark.long
    def test_weights_by_pattern_are_the_same_for_tensors_arrays_and_compiled_code(self) -> None:
        y, archive = drawn_by_any(4000)
        prevalence = rl.Prevalence.from_label_matrix(y, population=archive)
        assert prevalence.patterns is not None
        found = prevalence.patterns.of_rows(y)
        assert found.tolist() == prevalence.patterns.of_rows(y.numpy()).tolist()
        with unchecked_types():
            compiled = torch.compile(prevalence.patterns.of_rows, backend="aot_eager")(y)
        torch.testing.assert_close(compiled, found)
        with pytest.raises(ValueError, match="NaN"):  # a row with an unread finding has no pattern
            rl.information_gain_loss(torch.zeros(2, 2), torch.tensor([[0, torch.nan], [1, 0]]), prevalence)


class TestPredictions:
    @pytest.mark.parametrize("outputs_at", ["population", "sampling", [0.2, 0.3, 0.4]])
    def test_layer_predicts_at_any_rates(self, outputs_at: Any) -> None:
        torch.manual_seed(0)
        model, x = nn.Linear(4, 3), torch.randn(5, 4)
        layer = rl.PrevalenceLayer(model, findings(), outputs_at=outputs_at)
        start = {"population": RATES, "sampling": SAMPLED}.get(str(outputs_at), outputs_at)
        to = torch.tensor([0.4, 0.5, 0.6])
        expected = F.logsigmoid(model(x) + torch.logit(to) - torch.logit(torch.tensor(start)))
        torch.testing.assert_close(layer(x, to), expected)
        torch.testing.assert_close(layer.predict(x, {"edema": 0.4, "mass": 0.5, "nodule": 0.6}), expected)
        torch.testing.assert_close(layer(x, to.expand(5, 3)), expected)
        with pytest.raises(ValueError, match="multi-label"):
            layer(x, torch.tensor([0.4, 0.6]))
        with pytest.raises(ValueError, match="strictly between 0 and 1"):
            layer(x, torch.tensor([0.4, 0.6, 1.0]))
        with pytest.raises(ValueError, match="a logit for each of 3 findings"):
            rl.PrevalenceLayer(nn.Linear(4, 2), findings())(x)
        with pytest.raises(ValueError, match="names of the prevalence"):
            rl.PrevalenceLayer(model, findings(), classes=["edema", "mass", "node"])

    def test_a_saved_layer_keeps_rates_and_names(self, tmp_path: Path) -> None:
        model, x = nn.Linear(4, 3), torch.randn(5, 4)
        layer = rl.PrevalenceLayer(model, findings())
        layer.save(tmp_path / "layer.safetensors")
        loaded = rl.PrevalenceLayer.load(tmp_path / "layer.safetensors", nn.Linear(4, 3))
        assert loaded.prevalence == findings()
        torch.testing.assert_close(loaded.predict(x), layer.predict(x))

    def test_start_and_match_give_each_finding_its_rate(self) -> None:
        torch.manual_seed(0)
        head, x = nn.Linear(4, 3).double(), torch.randn(500, 4, dtype=torch.float64)
        rl.start_at_prevalence(head, findings())
        torch.testing.assert_close(head.bias.sigmoid(), tensor_of(findings().population))
        rl.match_prevalence(head, head(x), findings())
        torch.testing.assert_close(head(x).sigmoid().mean(0), tensor_of(findings().population), rtol=1e-6, atol=0)

    def test_a_layer_does_not_correct_predictions_of_images_sampled_by_findings_together(self) -> None:
        _, y = associated(4000, 2)
        together = rl.Prevalence.from_label_matrix(torch.cat([y, y[y.any(1)]]), population=y)
        with pytest.raises(ValueError, match=r"findings .*together"):
            rl.PrevalenceLayer(nn.Linear(2, 2), together, outputs_at="sampling")
