"""Populations with known Bayes-optimal predictions, and ways in which people are selected for training.

Stage: a frozen population, with its prevalence → `sample` of equal classes, true `log_probs`, `best_log_likelihood`;
`CurvedRisk`, `Selection` → `drawn` examples, with the chance that each had; `lost` in the population.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ...likelihoods import Categorical, Likelihood, OnionPeeling
from ...prevalence import Prevalence

_NODES = 80  # per dimension; from 64 on neither integral changes by 1e-12


@dataclass(frozen=True)
class TwoGaussians:
    """Class 0 is N(−μ, I), class 1 is N(μ, I), so the log-odds of class 1 are `logit π + 2 μ·x`.

    Attributes:
        positive: π of class 1.
        features: D; μ points along the diagonal.
        separation: |μ|. The AUC is Φ(√2 |μ|), 0.871 at 0.8.

    Examples:
        >>> from rightloss.study import TwoGaussians
        >>> population = TwoGaussians(0.001)
        >>> round(population.best_log_likelihood, 4), round(population.best_auc, 3)
        (-0.0066, 0.871)
        >>> x, y = population.sample(per_class=3, seed=0)
        >>> tuple(x.shape), y.tolist()
        ((6, 5), [0, 0, 0, 1, 1, 1])
    """

    positive: float
    features: int = 5
    separation: float = 0.8

    @property
    def title(self) -> str:
        return f"{self.positive:g}"

    @property
    def prevalence(self) -> Prevalence:
        """π in use, with equal classes in training."""
        return Prevalence.binary(self.positive)

    @property
    def likelihood(self) -> Likelihood:
        """The one under which a linear model can express the truth."""
        return Categorical(2)

    @property
    def best_log_likelihood(self) -> float:
        """`Σ_c π_c E[log p(c|x) | y = c]` of the true p(y|x), which no model exceeds.

        By Gauss–Hermite quadrature: given the class the log-odds are N(logit π ± 2|μ|², 4|μ|²).
        """
        nodes, weights = gauss_hermite(1)
        shift, scale = 2 * self.separation**2, 2 * self.separation
        odds = math.log(self.positive) - math.log1p(-self.positive) + scale * nodes[:, 0]
        gains = self.positive * F.logsigmoid(odds + shift) + (1 - self.positive) * F.logsigmoid(shift - odds)
        return float(weights @ gains)

    @property
    def best_auc(self) -> float:
        """Φ(√2 |μ|)."""
        return 0.5 * (1 + math.erf(self.separation))

    def log_probs(self, x: Float[Tensor, "n d"]) -> Float64[Tensor, "n k"]:
        """Return the true log p(y|x) at π."""
        slope = 2 * self.separation / math.sqrt(self.features)
        odds = math.log(self.positive) - math.log1p(-self.positive) + slope * x.double().sum(1)
        return torch.stack([F.logsigmoid(-odds), F.logsigmoid(odds)], 1)

    def sample(self, per_class: int, seed: int) -> tuple[Float[Tensor, "n d"], Int64[Tensor, " n"]]:
        """Draw `per_class` examples of every class, class 0 first."""
        y = torch.arange(2).repeat_interleave(per_class)
        noise = torch.randn(2 * per_class, self.features, generator=torch.Generator().manual_seed(seed))
        return noise + (2 * y[:, None] - 1) * self.separation / math.sqrt(self.features), y


@dataclass(frozen=True)
class FiveRatings:
    """x is N(0, I) and the rating given x is `OnionPeeling(5)` of a linear map of its first two features.

    The first determines how high the rating is, the second how clear the case is; the resulting π is (0.07, 0.20, 0.45, 0.20,
    0.08).

    Examples:
        >>> from rightloss.study import FiveRatings
        >>> [round(rate, 2) for rate in FiveRatings().prevalence.population.tolist()]
        [0.07, 0.2, 0.45, 0.2, 0.08]
    """

    features: int = 5
    weights: tuple[tuple[float, float], ...] = ((-1.5, 0.5), (1.5, 0.5), (-1.0, 0.3), (1.0, 0.3))
    bias: tuple[float, ...] = (-3.5, -3.3, -1.1, -1.1)

    @property
    def title(self) -> str:
        return "5 ratings"

    @cached_property
    def prevalence(self) -> Prevalence:
        """π_k = E[p(k|x)], by quadrature over the two features that count."""
        nodes, weights = gauss_hermite(2)
        return Prevalence(weights @ self.log_probs(nodes).exp())

    @property
    def likelihood(self) -> Likelihood:
        return OnionPeeling(5)

    @property
    def best_log_likelihood(self) -> float:
        """`E_x Σ_k p(k|x) log p(k|x)`, the same sum taken the other way round; by quadrature."""
        nodes, weights = gauss_hermite(2)
        table = self.log_probs(nodes)
        return float(weights @ (table.exp() * table).sum(1))

    @property
    def best_auc(self) -> None:
        """None: there are more than two classes."""

    def log_probs(self, x: Float[Tensor, "n d"]) -> Float64[Tensor, "n k"]:
        slopes = torch.tensor(self.weights, dtype=torch.float64)
        outputs = x[:, :2].double() @ slopes.T + torch.tensor(self.bias, dtype=torch.float64)
        return self.likelihood.table(outputs)

    def sample(self, per_class: int, seed: int) -> tuple[Float[Tensor, "n d"], Int64[Tensor, " n"]]:
        """Draw people from the population, and keep the first `per_class` of each rating."""
        generator = torch.Generator().manual_seed(seed)
        block = int(1.1 * per_class / float(self.prevalence.population.min())) + 100
        x, y = torch.empty(0, self.features), torch.empty(0, dtype=torch.int64)
        while int(torch.bincount(y, minlength=5).min()) < per_class:
            more = torch.randn(block, self.features, generator=generator)
            uniform = torch.rand(block, 1, dtype=torch.float64, generator=generator)
            rating = (self.log_probs(more).exp().cumsum(1)[:, :-1] < uniform).sum(1)
            x, y = torch.cat([x, more]), torch.cat([y, rating])
        kept = torch.cat([torch.nonzero(y == rating).flatten()[:per_class] for rating in range(5)])
        return x[kept], y[kept]


Population = TwoGaussians | FiveRatings


def gauss_hermite(dimensions: int) -> tuple[Float64[Tensor, "n d"], Float64[Tensor, " n"]]:
    """Return nodes and weights that integrate over N(0, I)."""
    nodes, weights = (torch.from_numpy(each) for each in np.polynomial.hermite_e.hermegauss(_NODES))
    weights = weights / weights.sum()
    if dimensions == 1:
        return nodes[:, None], weights
    assert dimensions == 2
    return torch.cartesian_prod(nodes, nodes), torch.outer(weights, weights).flatten()


@dataclass(frozen=True)
class CurvedRisk:
    """x is N(0, I) in two dimensions; the log-odds of class 1 are `bias + slopes·x + bend x₁²`; the resulting π is 0.15.

    Attributes:
        bias, slopes: the straight part.
        bend: what a model that is linear in x cannot follow.
    """

    bias: float = -3.0
    slopes: tuple[float, float] = (1.2, 0.8)
    bend: float = 0.6

    @cached_property
    def people(self) -> tuple[Float64[Tensor, "m 2"], Float64[Tensor, " m"]]:
        """Nodes and weights that integrate over the population."""
        return gauss_hermite(2)

    @property
    def positive(self) -> float:
        """π of class 1, `E[p(1|x)]`."""
        x, weights = self.people
        return float(weights @ self.log_odds(x).sigmoid())

    def log_odds(self, x: Float64[Tensor, "n 2"]) -> Float64[Tensor, " n"]:
        return self.bias + x @ torch.tensor(self.slopes, dtype=torch.float64) + self.bend * x[:, 0] ** 2

    def lost(self, log_odds: Float64[Tensor, " m"]) -> float:
        """Return the expected log-likelihood of the truth less that of predictions for `people`: `E_x KL[p(y|x) ‖ q(y|x)]`."""
        x, weights = self.people
        true = self.log_odds(x)
        pairs = ((true, log_odds), (-true, -log_odds))  # of class 1, of class 0
        return float(weights @ sum(right.sigmoid() * (F.logsigmoid(right) - F.logsigmoid(own)) for right, own in pairs))


@dataclass(frozen=True)
class Selection:
    """How people get into the training set: `p(selected|x, y) = share_y σ(slope_y x₁ + shift_y)`.

    Attributes:
        name: by what people are selected.
        share, slope, shift: for class 0 and class 1.
    """

    name: str
    share: tuple[float, float]
    slope: tuple[float, float]
    shift: tuple[float, float]

    def chances(self, x: Float64[Tensor, "n 2"]) -> Float64[Tensor, "n 2"]:
        """Return p(selected|x, y), a column per class."""
        share, slope, shift = (torch.tensor(each, dtype=torch.float64) for each in (self.share, self.slope, self.shift))
        return share * (slope * x[:, :1] + shift).sigmoid()


# People with x₁, a symptom, go to the doctor, ill or not.
BY_FEATURE = Selection("by feature", share=(1.0, 1.0), slope=(1.2, 1.2), shift=(-0.5, -0.5))
# Cases and controls: a share of each class, whatever their x.
BY_LABEL = Selection("by label", share=(0.18, 1.0), slope=(0.0, 0.0), shift=(0.0, 0.0))
# Clear cases and the healthiest volunteers: class 1 mostly with the symptom, class 0 mostly without.
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
    """Draw people until `examples` of them are selected."""
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
    """Draw people: x, class, and whether each is selected. The same generator draws the same people for every selection."""
    x = torch.randn(people, 2, dtype=torch.float64, generator=generator)
    risk, luck = torch.rand(2, people, dtype=torch.float64, generator=generator)
    y = (risk < population.log_odds(x).sigmoid()).long()
    return x, y, luck < selection.chances(x).gather(1, y[:, None]).squeeze(1)
