"""The check of torch models: modules, layers and posteriors; loaders, samplers and torch's modes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from members import assert_refused, generator, unchecked_types
from normal_classes import DISTANCE, equal, exact, mix
from normal_classes import drawn as drawn_arrays
from test_check import RARE, THREE, assert_same
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from rightloss import Bernoulli, Prevalence, PrevalenceLayer, RebalancedSampler
from rightloss.check import check
from rightloss.inference import ensemble, log_posterior


def drawn(mix: np.ndarray, n: int, seed: int) -> tuple[Tensor, Tensor]:
    x, y = drawn_arrays(mix, n, seed)
    return torch.from_numpy(x), torch.from_numpy(y)


def right(x: Any) -> np.ndarray:
    """The true log-probabilities at the rare population."""
    return exact(np.asarray(x), RARE.population)


class Ending(nn.Module):
    """The true model at π with something done to its logits."""

    def __init__(self, prevalence: Prevalence, end: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.log_pi, self.end = torch.log(torch.tensor(prevalence.population)), end

    def forward(self, x: Tensor) -> Tensor:
        return self.end(DISTANCE * x + self.log_pi)


class TestMistakes:
    @pytest.mark.parametrize("prevalence", [RARE, THREE], ids=["two classes", "three classes"])
    def test_a_second_softmax_is_found_and_named(self, prevalence: Prevalence) -> None:
        found = check(Ending(prevalence, lambda z: z.softmax(1)), drawn(prevalence.sampling, 2000, 7), prevalence)
        assert found["mean prediction"].verdict == found["logits"].verdict == "look"
        assert "drop the model's" in found["logits"].remedy

    def test_a_sigmoid_before_a_logistic_likelihood_is_found_unless_logits_may_be_there(self) -> None:
        x, y = drawn(equal(2), 400, 9)
        for rate, seen in ((0.01, True), (0.6, False)):
            prevalence = Prevalence.binary(rate)
            model = Ending(prevalence, lambda z: torch.sigmoid(z[:, 1] - z[:, 0]))
            found = check(model, (x, y), prevalence, likelihood=Bernoulli())
            assert any(row.name == "logits" for row in found.rows) == seen
            assert not found.ok


class TestForms:
    """Whatever the model and the rows come as, the figures are the same."""

    @pytest.mark.long
    def test_models(self) -> None:
        x, y = drawn(RARE.sampling, 300, 31)
        table, model = right(x), Ending(RARE, lambda z: z)
        expected = check(table, y, RARE, unlabelled=table)
        one = Ending(RARE, lambda z: z[:, 1:] - z[:, :1])
        for found in (
            check(model, (x, y), RARE, unlabelled=x),
            check(model, (x, y), RARE, unlabelled=x, batch_size=7),
            check(one, (x, y), RARE, likelihood=Bernoulli(), unlabelled=x),
            check(right, (x, y), RARE, unlabelled=x),
            check(PrevalenceLayer(model, Prevalence.binary(0.01)), (x, y), RARE, unlabelled=x),
            check(PrevalenceLayer(model, RARE.retarget(0.01)), (x.numpy(), y.numpy()), RARE, unlabelled=x.numpy()),
            check(PrevalenceLayer(model, RARE).predict, (x, y), RARE, unlabelled=x),
        ):
            assert_same(found, expected)

    def test_a_layer_of_another_population_is_asked_at_the_one_checked(self) -> None:
        x, y = drawn(equal(2), 500, 32)
        elsewhere = PrevalenceLayer(Ending(Prevalence.binary(0.3), lambda z: z), Prevalence.binary(0.3))
        assert_same(check(elsewhere, (x, y), RARE), check(right(x), y, RARE))

    def test_rows(self) -> None:
        x, y = drawn(RARE.sampling, 300, 33)
        pairs, model = TensorDataset(x, y), Ending(RARE, lambda z: z)
        unlabelled: Any = DataLoader(TensorDataset(x), batch_size=50)
        expected = check(model, (x, y), RARE, unlabelled=x)
        for data in (
            DataLoader(pairs, batch_size=32),
            DataLoader(pairs, batch_size=32, shuffle=True, generator=generator(34)),
            pairs,
            [(x[:100], y[:100]), (x[100:200], y[100:200]), (x[200:], y[200:])],
        ):
            assert_same(check(model, data, RARE, unlabelled=unlabelled), expected)

    @pytest.mark.long
    def test_a_posterior(self) -> None:
        x, y = drawn(equal(2), 200, 35)
        prevalence = Prevalence(mix(0.9, 0.1), evidence=1.0)
        posterior = ensemble(log_posterior(nn.Linear(2, 2), prevalence), (x.float(), y), members=2, steps=20)
        table = posterior.predict(x.float()).log_probs
        assert_same(check(posterior, (x.float(), y), prevalence), check(table, y, prevalence))
        assert_same(check(posterior.predict(x.float()), y, prevalence), check(table, y, prevalence))

    def test_tensors(self) -> None:
        x, y = drawn(RARE.sampling, 300, 30)
        expected = check(right(x), np.asarray(y), RARE, unlabelled=right(x))
        for dtype in (torch.float64, torch.float32):
            table = torch.from_numpy(right(x)).to(dtype).requires_grad_()
            assert_same(check(table, y, RARE, unlabelled=table), expected)

    @pytest.mark.long
    @unchecked_types()
    def test_copies_that_a_sampler_draws_count_as_one_example(self) -> None:
        alarms = 0
        for seed in range(40):
            x, y = drawn(mix(0.97, 0.03), 800, 70_000 + 1000 * seed)
            if int(y.sum()) < 5:
                continue
            sampler = RebalancedSampler(y, RARE, generator=generator(seed))
            loader = DataLoader(TensorDataset(x, y), batch_size=400, sampler=sampler)
            alarms += int(not check(Ending(RARE, lambda z: z), loader, RARE).ok)
        assert alarms / 40 < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 40)


class TestTheModelIsLeftAsItWas:
    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_in_every_mode_of_torch_the_figures_are_the_same(self, mode: Any) -> None:
        x, y = drawn(RARE.sampling, 300, 60)
        expected = check(right(x), y, RARE, unlabelled=right(x))
        with mode():
            assert_same(check(Ending(RARE, lambda z: z), (x, y), RARE, unlabelled=x), expected)

    def test_it_is_called_in_eval_mode_without_gradient_and_gets_its_modes_back(self) -> None:
        seen: list[tuple[bool, bool]] = []

        class Watched(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                seen.append((self.training, torch.is_grad_enabled()))
                return super().forward(x)

        model = nn.Sequential(Watched(2, 4), nn.Dropout(0.5), nn.Linear(4, 2)).train()
        model[1].eval()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        check(model, tuple(part.float() if part.is_floating_point() else part for part in drawn(equal(2), 100, 61)), RARE)
        assert set(seen) == {(False, False)}
        assert [module.training for module in model] == [True, False, True]
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert not model._forward_hooks


def test_bad_input_is_refused_with_a_remedy() -> None:
    model, x = nn.Linear(2, 2), torch.zeros(4, 2)
    assert_refused(lambda: check(model, x, RARE), "inputs and their labels")
    assert_refused(lambda: check(model, DataLoader(TensorDataset(x)), RARE), r"batches \(x, y\)")
    assert_refused(lambda: check(model, iter([]), RARE), "at least one batch")
    assert_refused(lambda: check(lambda x: 3 * right(x), drawn(equal(2), 40, 1), RARE), "are these logits")
