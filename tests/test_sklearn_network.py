"""Training by hand-passed gradients, against autograd and torch's Adam; losses of weighted rows against repeated ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from members import SEED, generator
from torch import nn

import rightloss as rl
from rightloss.sklearn import InformationGainClassifier
from rightloss.sklearn.criteria import LOSSES, loss_of_rows, make_criterion
from rightloss.sklearn.labelled_rows import LabelledRows, soft_row_labels
from rightloss.sklearn.network import Network, NetworkSettings, forward

PREVALENCE = rl.Prevalence([0.7, 0.2, 0.1], [0.2, 0.3, 0.5])
MODULES: dict[str, nn.Module] = {"relu": nn.ReLU(), "tanh": nn.Tanh(), "logistic": nn.Sigmoid()}


def settings(activation: str, decay: float = 0.01) -> NetworkSettings:
    return NetworkSettings((5, 4), activation, decay, 10, 1e-4, 20, 0.01, False, 0.1, 10, False)


def rows(n: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    draws = generator(SEED)
    return torch.randn(n, 3, dtype=torch.float64, generator=draws), torch.arange(n) % 3


@pytest.mark.long
@pytest.mark.parametrize("soft", [False, True], ids=["labels", "votes"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weights"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("activation", list(MODULES))
def test_steps_are_those_of_autograd_and_torchs_adam(activation: str, loss: Any, weighted: bool, soft: bool) -> None:
    x, y = rows()
    target = torch.eye(3, dtype=torch.float64)[y] * 0.8 + 0.2 / 3 if soft else y
    weight = torch.rand(len(x), dtype=torch.float64, generator=generator()) + 0.5 if weighted else None
    criteria = [make_criterion(loss, PREVALENCE, None, rl.Categorical(), True).double() for _ in range(2)]
    network = Network([3, 5, 4, 3], PREVALENCE.population.log(), settings(activation), criteria[0], x.dtype, generator())
    layers = [nn.Linear(a, b, dtype=torch.float64) for a, b in ((3, 5), (5, 4), (4, 3))]
    weights, biases = network.arrays()
    with torch.no_grad():
        for layer, w, b in zip(layers, weights, biases, strict=True):
            layer.weight.copy_(torch.from_numpy(w.T))
            layer.bias.copy_(torch.from_numpy(b))
    act = MODULES[activation]
    model = nn.Sequential(layers[0], act, layers[1], act, layers[2])
    groups: list[dict[str, Any]] = [
        {"params": [each.weight for each in layers], "weight_decay": 0.01},
        {"params": [each.bias for each in layers]},
    ]
    optimizer = torch.optim.Adam(groups, lr=0.01)
    labels = soft_row_labels(
        LabelledRows(x.numpy(), np.arange(3), None if soft else y.numpy(), target.numpy() if soft else None, None), x.dtype
    )
    for _ in range(5):
        value = loss_of_rows(criteria[1], model(x), labels, weight)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        assert abs(network.step(x, target, weight) - float(value.detach())) < 1e-10
    weights, biases = network.arrays()
    torch.testing.assert_close(torch.from_numpy(weights[0].T.copy()), layers[0].weight.detach(), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(torch.from_numpy(biases[-1]), layers[-1].bias.detach(), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(forward(weights, biases, activation, x.numpy()), model(x).detach().numpy(), atol=1e-8)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kappa", [0.4, 1.0])
@pytest.mark.parametrize("reference", [None, PREVALENCE.population], ids=["sampled mix", "population"])
def test_the_loss_of_weighted_rows_is_that_of_repeated_rows(loss: Any, kappa: float, reference: Any) -> None:
    x, y = rows()
    outputs = 2 * x
    weight = 1 + (torch.arange(len(x)) * 7 % 3)
    repeated = torch.repeat_interleave(torch.arange(len(x)), weight)

    def value(chosen: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        criterion = make_criterion(loss, PREVALENCE.with_evidence(kappa), reference, rl.Categorical(), True).double()
        few = LabelledRows(x[chosen].numpy(), np.arange(3), y[chosen].numpy(), None, None)
        return loss_of_rows(criterion, outputs[chosen], soft_row_labels(few, x.dtype), weights)

    torch.testing.assert_close(value(torch.arange(len(x)), weight.double()), value(repeated, None), rtol=1e-12, atol=1e-12)


def test_the_default_gain_over_all_rows_is_the_logit_adjusted_loss_it_is_trained_as() -> None:
    x, y = rows()
    prevalence = rl.Prevalence.from_labels(y, [0.7, 0.2, 0.1])
    gain = rl.information_gain_loss(2 * x, y, prevalence)
    trained_as = make_criterion("information_gain", prevalence, None, rl.Categorical(), False).double()
    difference = gain - trained_as(2 * x, y)
    torch.testing.assert_close(difference, torch.zeros_like(difference), rtol=0, atol=1e-12)


@pytest.mark.long
def test_early_stopping_waits_as_long_for_a_rarer_class() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(1000) % 2
    x = rng.normal(size=(1000, 5)) + 2 * np.eye(5)[0] * y[:, None]
    options: dict[str, Any] = {"hidden_layer_sizes": (20,), "early_stopping": True, "random_state": 0, "max_iter": 1000}
    rare, rarer = (InformationGainClassifier(population, **options).fit(x, y).n_iter_ for population in (1e-2, 1e-4))
    assert rarer > rare / 2
