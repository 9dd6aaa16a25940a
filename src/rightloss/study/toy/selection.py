"""A population with a curved risk, and three ways in which its people get into a training set.

Stage: `CurvedRisk`, `Selection` → `drawn` examples, with the chance that each had; `lost` in the population.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from .population import gauss_hermite


@dataclass(frozen=True)
class CurvedRisk:
    """x is N(0, I) in two dimensions, and the log-odds of class 1 are `bias + slopes·x + bend x₁²`; π is what follows, 0.15.

    Attributes:
        bias, slopes: the straight part.
        bend: what a model that is linear in x cannot follow.
    """

    bias: float = -3.0
    slopes: tuple[float, float] = (1.2, 0.8)
    bend: float = 0.6

    @cached_property
    def people(self) -> tuple[Float64[Tensor, "m 2"], Float64[Tensor, " m"]]:
        """Points and weights that stand for the whole population in integrals."""
        return gauss_hermite(2)

    @property
    def positive(self) -> float:
        """π of class 1, `E[p(1|x)]`."""
        x, weights = self.people
        return float(weights @ self.log_odds(x).sigmoid())

    def log_odds(self, x: Float64[Tensor, "n 2"]) -> Float64[Tensor, " n"]:
        return self.bias + x @ torch.tensor(self.slopes, dtype=torch.float64) + self.bend * x[:, 0] ** 2

    def lost(self, log_odds: Float64[Tensor, " m"]) -> float:
        """Expected log-likelihood of the truth less that of predictions for `people`: `E_x KL[p(y|x) ‖ q(y|x)]`."""
        x, weights = self.people
        true = self.log_odds(x)
        pairs = ((true, log_odds), (-true, -log_odds))  # of class 1, of class 0
        return float(weights @ sum(right.sigmoid() * (F.logsigmoid(right) - F.logsigmoid(own)) for right, own in pairs))


@dataclass(frozen=True)
class Selection:
    """Who of the population gets into the training set: `p(selected|x, y) = share_y σ(slope_y x₁ + shift_y)`.

    Attributes:
        name: by what people are selected.
        share, slope, shift: for class 0 and class 1.
    """

    name: str
    share: tuple[float, float]
    slope: tuple[float, float]
    shift: tuple[float, float]

    def chances(self, x: Float64[Tensor, "n 2"]) -> Float64[Tensor, "n 2"]:
        """p(selected|x, y), a column per class."""
        share, slope, shift = (torch.tensor(each, dtype=torch.float64) for each in (self.share, self.slope, self.shift))
        return share * (slope * x[:, :1] + shift).sigmoid()


# Who has x₁, a symptom, goes to the doctor, ill or not.
BY_FEATURE = Selection("by feature", share=(1.0, 1.0), slope=(1.2, 1.2), shift=(-0.5, -0.5))
# Cases and controls, of each class the same share whoever they are.
BY_LABEL = Selection("by label", share=(0.18, 1.0), slope=(0.0, 0.0), shift=(0.0, 0.0))
# Clear cases and the healthiest volunteers: of class 1 rather those with the symptom, of class 0 rather those without.
BY_BOTH = Selection("by both", share=(0.25, 1.0), slope=(-1.2, 1.2), shift=(0.0, 0.0))
SELECTIONS = (BY_FEATURE, BY_LABEL, BY_BOTH)
# The population itself.
EVERYONE = Selection("as they are met", share=(1.0, 1.0), slope=(0.0, 0.0), shift=(math.inf, math.inf))


@dataclass(frozen=True)
class Drawn:
    """Selected people.

    Attributes:
        x: features.
        y: classes.
        given_x: p(selected|x), for each.
        given_both: p(selected|x, y), for each.
    """

    x: Float64[Tensor, "n 2"]
    y: Int64[Tensor, " n"]
    given_x: Float64[Tensor, " n"]
    given_both: Float64[Tensor, " n"]


def drawn(population: CurvedRisk, selection: Selection, examples: int, seed: int) -> Drawn:
    """People met one after the other, until `examples` of them were selected."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.empty(0, 2, dtype=torch.float64), torch.empty(0, dtype=torch.int64)
    while len(y) < examples:
        more, labels, selected = met(population, selection, examples, generator)
        x, y = torch.cat([x, more[selected]]), torch.cat([y, labels[selected]])
    x, y = x[:examples], y[:examples]
    chances, odds = selection.chances(x), population.log_odds(x)
    given_x = (chances * torch.stack([-odds, odds], 1).sigmoid()).sum(1)
    return Drawn(x, y, given_x, chances.gather(1, y[:, None]).squeeze(1))


def met(
    population: CurvedRisk, selection: Selection, people: int, generator: torch.Generator
) -> tuple[Float64[Tensor, "n 2"], Int64[Tensor, " n"], Bool[Tensor, " n"]]:
    """People of the population, their classes, and whether each is selected. One generator meets the same people for all."""
    x = torch.randn(people, 2, dtype=torch.float64, generator=generator)
    risk, luck = torch.rand(2, people, dtype=torch.float64, generator=generator)
    y = (risk < population.log_odds(x).sigmoid()).long()
    return x, y, luck < selection.chances(x).gather(1, y[:, None]).squeeze(1)
