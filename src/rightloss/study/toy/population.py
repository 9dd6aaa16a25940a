"""Populations with known Bayes-optimal predictions, and ways in which people are selected for training.

Stage: a frozen population, with its prevalence → `sample` of equal classes, true `log_probs`, `best_log_likelihood`;
`CurvedRisk`, `Selection` → `drawn` examples, with the chance that each had; `lost` in the population. In NumPy; torch is
imported for the likelihoods of `FiveRatings`, and to draw selected people, who so stay those of the published tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit, log_expit

from ...prevalence import Prevalence

if TYPE_CHECKING:
    import torch
    from jaxtyping import Bool, Float64, Int64

    from ...likelihoods import Likelihood

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
        from ...likelihoods import Categorical

        return Categorical(2)

    @property
    def best_log_likelihood(self) -> float:
        """`Σ_c π_c E[log p(c|x) | y = c]` of the true p(y|x), which no model exceeds.

        By Gauss–Hermite quadrature: given the class the log-odds are N(logit π ± 2|μ|², 4|μ|²).
        """
        nodes, weights = gauss_hermite(1)
        shift, scale = 2 * self.separation**2, 2 * self.separation
        odds = math.log(self.positive) - math.log1p(-self.positive) + scale * nodes[:, 0]
        gains = self.positive * log_expit(odds + shift) + (1 - self.positive) * log_expit(shift - odds)
        return float(weights @ gains)

    @property
    def best_auc(self) -> float:
        """Φ(√2 |μ|)."""
        return 0.5 * (1 + math.erf(self.separation))

    def log_probs(self, x: np.ndarray) -> Float64[np.ndarray, "n k"]:
        """Return the true log p(y|x) at π."""
        slope = 2 * self.separation / math.sqrt(self.features)
        odds = math.log(self.positive) - math.log1p(-self.positive) + slope * x.sum(1)
        return log_expit(np.stack([-odds, odds], 1))

    def sample(self, per_class: int, seed: int) -> tuple[Float64[np.ndarray, "n d"], Int64[np.ndarray, " n"]]:
        """Draw `per_class` examples of every class, class 0 first."""
        y = np.repeat([0, 1], per_class)
        noise = np.random.default_rng(seed).standard_normal((2 * per_class, self.features))
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
        return Prevalence(weights @ np.exp(self.log_probs(nodes)))

    @property
    def likelihood(self) -> Likelihood:
        from ...likelihoods import OnionPeeling

        return OnionPeeling(5)

    @property
    def best_log_likelihood(self) -> float:
        """`E_x Σ_k p(k|x) log p(k|x)`, the same sum taken the other way round; by quadrature."""
        nodes, weights = gauss_hermite(2)
        table = self.log_probs(nodes)
        return float(weights @ (np.exp(table) * table).sum(1))

    @property
    def best_auc(self) -> None:
        """None: there are more than two classes."""

    def log_probs(self, x: np.ndarray) -> Float64[np.ndarray, "n k"]:
        from ...tensors import tensor_of

        return self.likelihood.table(tensor_of(x[:, :2] @ np.transpose(self.weights) + self.bias)).numpy()

    def sample(self, per_class: int, seed: int) -> tuple[Float64[np.ndarray, "n d"], Int64[np.ndarray, " n"]]:
        """Draw people from the population, and keep the first `per_class` of each rating."""
        draws = np.random.default_rng(seed)
        block = int(1.1 * per_class / self.prevalence.population.min()) + 100
        x, y = np.empty((0, self.features)), np.empty(0, np.int64)
        while np.bincount(y, minlength=5).min() < per_class:
            more = draws.standard_normal((block, self.features))
            rating = (np.exp(self.log_probs(more)).cumsum(1)[:, :-1] < draws.random((block, 1))).sum(1)
            x, y = np.concatenate([x, more]), np.concatenate([y, rating])
        kept = np.concatenate([np.flatnonzero(y == rating)[:per_class] for rating in range(5)])
        return x[kept], y[kept]


Population = TwoGaussians | FiveRatings


def gauss_hermite(dimensions: int) -> tuple[Float64[np.ndarray, "n d"], Float64[np.ndarray, " n"]]:
    """Return nodes and weights that integrate over N(0, I)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    weights = weights / weights.sum()
    if dimensions == 1:
        return nodes[:, None], weights
    assert dimensions == 2
    return np.stack(np.meshgrid(nodes, nodes, indexing="ij"), -1).reshape(-1, 2), np.outer(weights, weights).ravel()


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
    def people(self) -> tuple[Float64[np.ndarray, "m 2"], Float64[np.ndarray, " m"]]:
        """Nodes and weights that integrate over the population."""
        return gauss_hermite(2)

    @property
    def positive(self) -> float:
        """π of class 1, `E[p(1|x)]`."""
        x, weights = self.people
        return float(weights @ expit(self.log_odds(x)))

    def log_odds(self, x: Float64[np.ndarray, "n 2"]) -> Float64[np.ndarray, " n"]:
        return self.bias + x @ np.array(self.slopes) + self.bend * x[:, 0] ** 2

    def lost(self, log_odds: Float64[np.ndarray, " m"]) -> float:
        """Return the expected log-likelihood of the truth less that of predictions for `people`: `E_x KL[p(y|x) ‖ q(y|x)]`."""
        x, weights = self.people
        true = self.log_odds(x)
        pairs = ((true, log_odds), (-true, -log_odds))  # of class 1, of class 0
        return float(weights @ sum(expit(right) * (log_expit(right) - log_expit(own)) for right, own in pairs))


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

    def chances(self, x: Float64[np.ndarray, "n 2"]) -> Float64[np.ndarray, "n 2"]:
        """Return p(selected|x, y), a column per class."""
        share, slope, shift = (np.array(each) for each in (self.share, self.slope, self.shift))
        return share * expit(slope * x[:, :1] + shift)


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

    x: Float64[np.ndarray, "n 2"]
    y: Int64[np.ndarray, " n"]
    given_x: Float64[np.ndarray, " n"]
    given_both: Float64[np.ndarray, " n"]


def drawn(population: CurvedRisk, selection: Selection, examples: int, seed: int) -> Drawn:
    """Draw people until `examples` of them are selected."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    x, y = np.empty((0, 2)), np.empty(0, np.int64)
    while len(y) < examples:
        more, labels, selected = met(population, selection, examples, generator)
        x, y = np.concatenate([x, more[selected]]), np.concatenate([y, labels[selected]])
    x, y = x[:examples], y[:examples]
    chances, odds = selection.chances(x), population.log_odds(x)
    given_x = (chances * expit(np.stack([-odds, odds], 1))).sum(1)
    return Drawn(x, y, given_x, chances[np.arange(examples), y])


def met(
    population: CurvedRisk, selection: Selection, people: int, generator: torch.Generator
) -> tuple[Float64[np.ndarray, "n 2"], Int64[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Draw people: x, class, and whether each is selected. The same generator draws the same people for every selection."""
    import torch

    x = torch.randn(people, 2, dtype=torch.float64, generator=generator).numpy()
    risk, luck = torch.rand(2, people, dtype=torch.float64, generator=generator).numpy()
    y = (risk < expit(population.log_odds(x))).astype(np.int64)
    return x, y, luck < selection.chances(x)[np.arange(people), y]
