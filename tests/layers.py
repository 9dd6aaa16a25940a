"""The small networks and layers that tests of `PrevalenceLayer` share."""

from __future__ import annotations

from typing import Any

import torch
from members import ClassLikelihood, generator, population
from torch import Tensor, nn

from rightloss import Prevalence
from rightloss.predictive import PrevalenceLayer

FEATURES = 6
NAN = float("nan")


def network(outputs: int, seed: int = 0) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, outputs)).eval()
    with torch.no_grad():
        for each in model.parameters():
            each.copy_(torch.randn(each.shape, generator=generator(seed)))
    return model


def inputs(n: int = 7, seed: int = 9) -> Tensor:
    return torch.randn(n, FEATURES, generator=generator(seed))


def layer_of(likelihood: ClassLikelihood, k: int, **settings: Any) -> PrevalenceLayer:
    prevalence = Prevalence(population(k, 1), population(k, 2), evidence=0.5)
    return PrevalenceLayer(network(likelihood.num_outputs or k), prevalence, likelihood, **settings).eval()
