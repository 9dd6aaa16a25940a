"""Losses warn, once, of labels in another mix, a mean prediction that stays far off, and softmax taken twice; else never."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rightloss as rl
from rightloss.losses.batch import class_batch
from rightloss.losses.monitor import FALSE_ALARMS, Monitor, _Average
from rightloss.tensors import tensor_of

LOSSES: dict[str, Callable[[rl.Prevalence], Any]] = {
    "information gain": rl.InformationGainLoss,
    "as published": rl.InformationGainLoss.as_published,
    "logit-adjusted": rl.LogitAdjustedLoss,
    "weighted": rl.WeightedLoss,
    "log-likelihood": rl.LogLikelihoodLoss,
}
MIX, MEAN, LOGITS = "labels in the mix `sampling`", "mean prediction of class", "like the output of a softmax"


def warned(call: Callable[[], Any]) -> list[str]:
    """Messages of the warnings that `call` gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert all(each.category is rl.PrevalenceWarning for each in caught)
    assert all(each.filename == __file__ for each in caught)  # the line that called the loss
    return [str(each.message) for each in caught]


def train(criterion: Any, seed: int, steps: int, share: float = 0.5, last: nn.Module | None = None) -> None:
    """A small net on two Gaussians, of which class 1 makes up `share`."""
    generator = torch.Generator().manual_seed(seed)
    y = (torch.rand(2000, generator=generator) < share).long()
    x = torch.randn(2000, 3, generator=generator) + (2 * y[:, None] - 1)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2), *([] if last is None else [last]))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        rows = torch.randint(2000, (32,), generator=generator)
        optimizer.zero_grad()
        criterion(model(x[rows]), y[rows]).backward()
        optimizer.step()


def feed(criterion: Any, labels: Callable[[int], Tensor], batches: int, classes: int = 2) -> None:
    """Batches with these labels, and predictions that are what they should be on average."""
    centre = tensor_of(criterion.prevalence.population).log().float()
    for batch in range(batches):
        y = labels(batch)
        shape = (y.shape[0], classes, *y.shape[1:])
        criterion(centre.view(-1, *(1 for _ in shape[2:])).expand(shape).contiguous(), y)


def show(criterion: Any, labels: Callable[[int], Tensor], batches: int) -> None:
    """Pass to the monitor the batches it asks for, with predictions that are always right."""
    for batch in range(batches):
        if criterion.monitor.due():
            y = labels(batch)
            classes = criterion.prevalence.num_classes
            logits = 8 * nn.functional.one_hot(y, classes).movedim(-1, 1).float()
            checked = class_batch(logits, y, criterion.likelihood, classes, None, "raise")
            criterion.monitor.look(checked, criterion.terms(logits), criterion.likelihood)


class TestLabels:
    @pytest.mark.long
    @pytest.mark.parametrize("name", LOSSES)
    def test_a_mix_that_was_not_declared_is_noticed_by_every_loss_that_uses_it(self, name: str) -> None:
        messages = warned(lambda: train(LOSSES[name](rl.Prevalence.binary(0.1, sampling=0.5)), 0, 150, share=0.2))
        assert any(MIX in each for each in messages) == (name != "log-likelihood")

    @pytest.mark.long
    @pytest.mark.parametrize("rate", [0.5, 0.002])
    def test_labels_at_the_declared_rates_are_not_suspected(self, rate: float) -> None:
        """In 64 batches: no more than `FALSE_ALARMS` allows in 50 trainings, so most likely none."""
        alarms = 0
        for seed in range(50):
            generator, monitor = torch.Generator().manual_seed(seed), Monitor("mean", "logits")
            sampling = torch.tensor([1 - rate, rate], dtype=torch.float64)
            for _ in range(64):
                counts = torch.bincount((torch.rand(20, generator=generator) < rate).long(), minlength=2).double()
                alarms += len(warned_silently(partial(monitor._look_at_mix, counts, sampling, dense=False)))
        assert alarms <= 50 * FALSE_ALARMS + 1

    @pytest.mark.long
    def test_a_lesion_in_one_image_of_twenty_may_be_absent_from_the_first_batches(self) -> None:
        """One image a batch, half of it a lesion if it has one: the class's share is 0 in batch after batch, then 0.5."""
        alarms = 0
        for seed in range(4):
            generator = torch.Generator().manual_seed(seed)

            def image(_: int, generator: torch.Generator = generator) -> Tensor:
                found = torch.rand(1, generator=generator) < 0.05
                return (found & (torch.arange(64) < 32)).long().view(1, 8, 8)

            alarms += len(warned(partial(show, rl.InformationGainLoss(rl.Prevalence.binary(0.1, 0.025)), image, 1000)))
        assert alarms == 0

    @pytest.mark.long
    def test_a_class_absent_from_maps_is_noticed_if_half_of_the_pixels_should_have_it(self) -> None:
        criterion = rl.InformationGainLoss(rl.Prevalence.binary(0.1))
        (message,) = warned(lambda: show(criterion, lambda _: torch.zeros(2, 8, 8, dtype=torch.long), 300))
        assert MIX in message

    @pytest.mark.long
    def test_a_sorted_loader_is_told_to_shuffle_and_not_that_the_mix_is_wrong(self) -> None:
        classes = 5
        criterion = rl.InformationGainLoss(rl.Prevalence([1 / classes] * classes))
        (message,) = warned(lambda: show(criterion, lambda batch: torch.full((8,), batch // 150), 250))
        assert "sorted: pass shuffle=True" in message
        assert "will be wrong" not in message

    @pytest.mark.long
    def test_a_warning_names_the_finding_it_is_about(self) -> None:
        criterion = rl.InformationGainLoss(rl.Prevalence.binary(0.1))
        criterion.monitor = Monitor(name="mass")
        (message,) = warned(lambda: show(criterion, lambda batch: (torch.arange(20) == batch % 20).long(), 200))
        assert message.startswith("finding 'mass': Expected labels in the mix")
        assert "shuffle" not in message

    @pytest.mark.long
    def test_ignored_pixels_are_of_no_class(self) -> None:
        criterion = rl.InformationGainLoss(rl.Prevalence.binary(0.1))
        y = torch.tensor([[0, 1, -100, -100, -100, -100]]).expand(4, 6)
        assert warned(lambda: feed(criterion, lambda _: y.contiguous(), 100)) == []


def warned_silently(call: Callable[[], Any]) -> list[Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return caught


class TestMeanPrediction:
    @pytest.mark.long
    def test_one_that_stays_where_it_began_is_noticed(self) -> None:
        without = rl.Prevalence.binary(0.001, evidence=0.0)
        (message,) = warned(lambda: train(rl.InformationGainLoss(without), 0, 300))
        assert MEAN in message
        assert "start_at_prevalence" in message

    @pytest.mark.long
    def test_an_output_that_cannot_reach_the_prevalence_is_noticed(self) -> None:
        (message,) = warned(lambda: train(rl.InformationGainLoss(rl.Prevalence.binary(0.001)), 0, 300, last=nn.Sigmoid()))
        assert MEAN in message
        assert "sigmoid" in message

    @pytest.mark.long
    def test_predictions_that_follow_the_labels_of_few_clusters_are_not_stuck(self) -> None:
        """A rare class is absent from most batches of patients, and so is its prediction, by a net that is always right."""
        mix, alarms = torch.tensor([0.5, 0.3, 0.1, 0.08, 0.02]), 0
        for seed in range(4):
            generator = torch.Generator().manual_seed(seed)

            def patients(_: int, generator: torch.Generator = generator) -> Tensor:
                return torch.multinomial(mix, 4, True, generator=generator).repeat_interleave(10)

            alarms += len(warned(partial(show, rl.InformationGainLoss(rl.Prevalence(mix, sampling=mix)), patients, 1100)))
        assert alarms == 0

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("name", "rate"), [("information gain", 0.001), ("weighted", 0.001), ("log-likelihood", 0.001), ("as published", 0.3)]
    )
    def test_right_training_is_not_disturbed(self, name: str, rate: float) -> None:
        criterion = LOSSES[name](rl.Prevalence.binary(rate))
        assert warned(lambda: train(criterion, 0, 300)) == []


def test_a_running_mean_has_the_standard_error_of_the_batches() -> None:
    values, average = torch.randn(9, 2, dtype=torch.float64), _Average()
    for each in values:
        average.add(each)
    torch.testing.assert_close(average.mean, values.mean(0))
    torch.testing.assert_close(average.standard_error, values.std(0) / 3)


class TestLogits:
    @pytest.mark.parametrize("name", ["information gain", "log-likelihood"])
    def test_probabilities_are_noticed_at_once(self, name: str) -> None:
        messages = warned(lambda: train(LOSSES[name](rl.Prevalence.binary(0.1)), 0, 5, last=nn.Softmax(1)))
        assert [LOGITS in each for each in messages] == [True]

    def test_the_outputs_of_other_likelihoods_may_be_anything(self) -> None:
        criterion = rl.InformationGainLoss(rl.Prevalence.binary(0.5), rl.Bernoulli())
        assert warned(lambda: [criterion(torch.ones(8), torch.arange(8) % 2) for _ in range(5)]) == []

    @pytest.mark.long
    def test_log_probabilities_are_logits(self) -> None:
        assert warned(lambda: train(rl.InformationGainLoss(rl.Prevalence.binary(0.1)), 0, 20, last=nn.LogSoftmax(1))) == []


@pytest.mark.long
def test_each_kind_is_said_once_and_silenced_as_usual() -> None:
    criterion = rl.InformationGainLoss(rl.Prevalence.binary(0.001))
    wrong: Any = [lambda _: torch.zeros(8, dtype=torch.long), 200]
    (message,) = warned(lambda: feed(criterion, *wrong))
    for words in (MIX, "class 0 makes up 1 ", "from_labels"):
        assert words in message
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", rl.PrevalenceWarning)
        feed(rl.InformationGainLoss(rl.Prevalence.binary(0.001)), *wrong)
    quiet = rl.InformationGainLoss(rl.Prevalence.binary(0.001))
    quiet.monitor = None
    assert warned(lambda: feed(quiet, *wrong)) == []


def test_validation_is_not_watched() -> None:
    criterion = rl.InformationGainLoss(rl.Prevalence.binary(0.001)).eval()
    assert warned(lambda: feed(criterion, lambda _: torch.zeros(8, dtype=torch.long), 20)) == []
    assert isinstance(criterion.monitor, Monitor)
    assert criterion.monitor.batches == 0


@pytest.mark.long
def test_what_is_watched_changes_no_loss_and_copies_go_on_by_themselves() -> None:
    prevalence, y = rl.Prevalence.binary(0.1), torch.arange(20) % 2
    watched, alone = rl.InformationGainLoss(prevalence), rl.InformationGainLoss(prevalence)
    alone.monitor = None
    for batch in range(30):
        z = torch.randn(20, 2, generator=torch.Generator().manual_seed(batch))
        assert torch.equal(watched(z, y), alone(z, y))
    twin = copy.deepcopy(watched)
    twin(torch.randn(20, 2), y)
    assert isinstance(twin.monitor, Monitor)
    assert isinstance(watched.monitor, Monitor)
    assert (twin.monitor.batches, watched.monitor.batches) == (31, 30)
    assert watched.state_dict().keys() == alone.state_dict().keys()
