"""The intercept of an output layer after training: the mean prediction over unlabelled rows is the population's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from members import each_kind, generator, population
from torch import Tensor, nn

from rightloss import Bernoulli, Prevalence, match_prevalence
from rightloss.tensors import tensor_of


@pytest.mark.parametrize("seed", range(3))
@each_kind
def test_after_matching_the_mean_prediction_over_unlabelled_rows_is_the_population(
    make: Callable[[], Any], k: int, seed: int
) -> None:
    likelihood, prevalence = make().double(), Prevalence(population(k, seed))
    layer = nn.Linear(4, likelihood.num_outputs or k, dtype=torch.float64)
    x = 3 * torch.randn(200, 4, dtype=torch.float64, generator=generator(seed))
    weight = layer.weight.detach().clone()
    match_prevalence(layer, layer(x), prevalence, likelihood)
    torch.testing.assert_close(likelihood.table(layer(x)).exp().mean(0), tensor_of(prevalence.population), rtol=1e-8, atol=0)
    assert torch.equal(layer.weight, weight)


def test_matching_a_billionth_and_dense_outputs() -> None:
    prevalence, layer = Prevalence.binary(1e-9), nn.Conv2d(2, 2, 1, dtype=torch.float64)
    x = 5 * torch.randn(3, 2, 4, 5, dtype=torch.float64, generator=generator())
    match_prevalence(layer, layer(x), prevalence)
    torch.testing.assert_close(layer(x).detach().softmax(1)[:, 1].mean().item(), 1e-9, rtol=1e-8, atol=0)


def test_matching_agrees_with_bisection_of_the_log_odds() -> None:
    layer, x = nn.Linear(3, 1, dtype=torch.float64), torch.randn(500, 3, dtype=torch.float64, generator=generator(1))
    z = 2 * layer(x).detach()
    low, high = -30.0, 30.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if float((z + middle).sigmoid().mean()) < 0.03 else (low, middle)
    before = layer.bias.detach().clone()
    match_prevalence(layer, z, Prevalence.binary(0.03), Bernoulli())
    torch.testing.assert_close(float(layer.bias.detach() - before), low, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (torch.zeros(4, 3), r"shape \(n, 2\)"),
        (torch.zeros(0, 2), r"got \(0, 2\)"),
        (torch.full((4, 2), torch.nan), "not finite"),
        (torch.zeros(4, 2, dtype=torch.long), "torch.int64"),
        (torch.tensor([[1e5, 0.0], [-1e5, 0.0]]), "logits are not extreme"),
    ],
)
def test_matching_refuses_outputs_that_cannot_be_matched(outputs: Tensor, message: str) -> None:
    layer = nn.Linear(3, 2)
    before = layer.bias.detach().clone()
    with pytest.raises(ValueError, match=message):
        match_prevalence(layer, outputs, Prevalence.binary(0.01))
    assert torch.equal(layer.bias, before)
    with pytest.raises(ValueError, match="known prevalence"):
        match_prevalence(layer, torch.zeros(4, 2), Prevalence.unknown(2))
