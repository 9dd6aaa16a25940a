"""Small log posteriors with data, for the tests of inference, and the gain worked out by hand in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from members import MARGINALS as MARGINALS
from members import ClassLikelihood, generator, population
from torch import Tensor, nn

from rightloss import Categorical, Prevalence
from rightloss.inference import LogPosterior, gaussian_prior, log_posterior
from rightloss.inference.distributions import Layout
from rightloss.inference.fisher import DataLikelihood, LikelihoodTerms

FEATURES, ROWS, NUM_DATA = 3, 14, 40
REFERENCES: dict[str, Callable[[Prevalence], Any]] = {
    "sampling": lambda prevalence: None,
    "population": lambda prevalence: prevalence.population,
    "another": lambda prevalence: population(prevalence.num_classes, 9),
}


@dataclass(frozen=True)
class Small:
    """A linear model, in float64, over `k` classes; labels "hard", "soft", "dense" or "dense soft", each class among them."""

    k: int = 3
    make: Callable[[], ClassLikelihood] = Categorical
    kind: str = "hard"
    evidence: float = 0.3

    @property
    def prevalence(self) -> Prevalence:
        """Sampled at rates of which the batches' equal ones are within chance."""
        sampling = 0.2 * population(self.k, 2) + 0.8 / self.k
        return Prevalence(population(self.k, 1), sampling=sampling, evidence=self.evidence)

    def model(self) -> nn.Module:
        likelihood = self.make()
        outputs = self.k if likelihood.num_outputs is None else likelihood.num_outputs
        dense = self.kind.startswith("dense")
        return (nn.Conv2d(FEATURES, outputs, 1) if dense else nn.Linear(FEATURES, outputs)).double()

    def batch(self, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Two dense maps of 2 × 7 cells, of which some are ignored, or 28 rows."""
        stream = generator(50 + seed)
        cells = (2, 2, 7) if self.kind.startswith("dense") else (2 * ROWS,)
        x = torch.randn(cells[0], FEATURES, *cells[1:], dtype=torch.float64, generator=stream)
        index = torch.randperm(2 * ROWS, generator=stream).reshape(cells) % self.k
        if "soft" not in self.kind:
            return x, self._holes(index)
        votes = torch.rand(*cells, self.k, dtype=torch.float64, generator=stream) ** 3
        votes = votes / votes.sum(-1, keepdim=True)
        if self.kind == "dense soft":
            votes[0, 0, 0] = 0
        return x, votes.movedim(-1, 1)

    def _holes(self, index: Tensor) -> Tensor:
        if self.kind == "dense":
            index[0, 0, :2], index[1, 1, 3] = -100, -100
        return index

    def target(self, model: nn.Module | None = None, **options: Any) -> LogPosterior:
        options = {"prior": gaussian_prior(2.0), "num_data": NUM_DATA, "likelihood": self.make(), **options}
        return log_posterior(self.model() if model is None else model, self.prevalence, **options)

    def log_probs(self, params: Mapping[str, Tensor], x: Tensor) -> np.ndarray:
        """log p(y|x,w), a row for each label, without torch.func."""
        weight, bias = params["weight"].flatten(1), params["bias"]
        likelihood = self.make()
        assert isinstance(likelihood, nn.Module)
        likelihood.double().load_state_dict({name: params[f"likelihood.{name}"] for name in likelihood.state_dict()})
        with torch.no_grad():
            return np.asarray(likelihood.table(x.movedim(1, -1).reshape(-1, FEATURES) @ weight.T + bias))

    def votes(self, y: Tensor) -> np.ndarray:
        """Labels of any kind as a row of shares each, of zeros where they are to be ignored."""
        if y.is_floating_point():
            return np.asarray(y.movedim(1, -1).reshape(-1, self.k))
        return np.asarray(y.reshape(-1, 1) == torch.arange(self.k)).astype(float)


def random_weights(target: LogPosterior, seed: int = 0, members: int | None = None, scale: float = 0.7) -> dict[str, Tensor]:
    """Other weights than the model has, in float64; `members` of them on request."""
    stream, lead = generator(80 + seed), () if members is None else (members,)
    shapes = {name: (*lead, *value.shape) for name, value in target.parameters().items()}
    return {name: scale * torch.randn(shape, dtype=torch.float64, generator=stream) for name, shape in shapes.items()}


def likelihood_terms(target: LogPosterior, vector: Tensor, data: tuple[Tensor, Tensor]) -> LikelihoodTerms:
    """The likelihood of the data at these weights."""
    layout = Layout.of(target.parameters())
    return DataLikelihood(target, layout.unflatten(vector), data).at(layout.unflatten, vector)


def by_hand(
    log_probs: np.ndarray, votes: np.ndarray, prevalence: Prevalence, reference: Any, q: np.ndarray | None = None
) -> tuple[float, np.ndarray]:
    """Mean information gain of the rows that count, with κ's part, and the rows' m; q = m by default."""
    pi, rho = np.asarray(prevalence.population), np.asarray(prevalence.sampling)
    r = rho if reference is None else np.asarray(reference)
    log_probs, votes = log_probs[votes.sum(1) > 0], votes[votes.sum(1) > 0]
    moved = np.exp(log_probs) * r / pi
    moved /= moved.sum(1, keepdims=True)
    m = np.mean((votes @ (r / rho))[:, None] * moved, 0)
    q = m if q is None else q
    # with evidence the declared ρ stands for the labels' own frequencies
    counted = rho - prevalence.evidence * r if prevalence.evidence else votes.mean(0)
    return float(np.sum(votes * np.log(moved), 1).mean() - np.sum(counted * np.log(q))), m


def posterior_by_hand(gain: float, params: Mapping[str, Tensor]) -> float:
    """What the target gives: the mean gain, and one example's share of the log density of independent N(0, 2²)."""
    flat = np.concatenate([np.asarray(value).ravel() for value in params.values()])
    return gain + float(np.sum(-0.5 * (flat / 2) ** 2 - np.log(2 * np.sqrt(2 * np.pi)))) / NUM_DATA
