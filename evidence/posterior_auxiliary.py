"""Measure whether q_ψ(w) follows the weights in variational inference, compared with other marginals.

An MLP on 2,000 balanced examples of two Gaussian classes. In the second half of the training, 50 times, 20 draws of the
weights are taken from the current q(w). For each, KL[p(·|w) ‖ q] in nats is computed, both as class mixes at the reference,
with p(·|w) exact over all training data. The expected log-likelihood of new test data at the prevalence is compared with that
of training with the exact marginal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import rightloss as rl
from rightloss.inference import Distribution, LogPosterior, log_posterior, variational
from rightloss.inference.distributions import Layout
from rightloss.study.toy.population import TwoGaussians

from .engine import Comparison
from .pages import table

STEPS, TIMES, DRAWS, BATCH, PER_CLASS = 2000, 50, 20, 128, 1000
MOST, SHARE = 1e-2, 0.02  # nats; of the expected log-likelihood
MARGINALS = ("exact", "auxiliary", "auxiliary, reads the weights", "running", "batch")


class Cell(NamedTuple):
    population: float
    reference: str
    marginal: str


def cells(quick: bool) -> Iterator[Cell]:
    yield from (Cell(*each) for each in product((0.05,) if quick else (0.05, 0.001), ("ρ", "π"), MARGINALS))


class Plain:
    """A wrapper around a marginal, so that `variational` uses a running average unchanged."""

    def __init__(self, marginal: Any) -> None:
        self.marginal = marginal

    def __getattr__(self, name: str) -> Any:
        return getattr(self.marginal, name)


@dataclass
class Watcher:
    """Records KL[exact ‖ q] of draws from q(w), over the second half of the training."""

    target: LogPosterior
    data: tuple[Tensor, Tensor]
    stream: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(1))
    divergences: list[float] = field(default_factory=list)

    @torch.no_grad()
    def __call__(self, step: int, q: Distribution) -> None:
        if step < STEPS // 2 or (step + 1) % (STEPS // 2 // TIMES):
            return
        layout = Layout.of(self.target.parameters())
        for vector in q.sample(DRAWS, self.stream):
            params = layout.unflatten(vector)
            exact, log_q = (each.log_softmax(0) for each in (self.target.log_marginal(params, self.data), self.value(params)))
            self.divergences.append(float((exact.exp() * (exact - log_q)).sum()))

    def value(self, params: dict[str, Tensor]) -> Tensor:
        """Return log q as the loss would use it at these weights."""
        marginal: Any = self.target.marginal
        if isinstance(marginal, rl.AuxiliaryMarginal):
            return self.target.at(params, lambda: marginal.log_marginal(marginal.vector()))
        if isinstance(marginal, Plain):
            return marginal.marginal.log_average
        rows = torch.randperm(len(self.data[1]), generator=self.stream)[:BATCH]
        return self.target.log_marginal(params, (self.data[0][rows], self.data[1][rows]))


def target_of(name: str, prevalence: rl.Prevalence, reference: np.ndarray, data: tuple[Tensor, Tensor]) -> LogPosterior:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 2))
    rl.start_at_prevalence(model[-1], prevalence)
    how: dict[str, Any] = {"reference": reference, "num_data": len(data[1])}
    if name == "exact":
        return log_posterior(model, prevalence, pool=data, **how)
    make: dict[str, Callable[[], Any]] = {
        "auxiliary, reads the weights": lambda: rl.AuxiliaryMarginal(model),
        "running": lambda: Plain(rl.RunningMarginal()),
        "batch": rl.BatchMarginal,
    }
    target = log_posterior(model, prevalence, marginal=make[name]() if name in make else None, **how)
    # `variational` does this itself with the default marginal; done here to have access to q_ψ
    following = sys.modules[variational.__module__].following  # type: ignore[attr-defined]
    return following(target, target.parameters(), data, torch.Generator().manual_seed(0))


def rows_of(population: TwoGaussians, per_class: int, seed: int) -> tuple[Tensor, Tensor]:
    x, y = population.sample(per_class, seed)
    return torch.from_numpy(x).float(), torch.from_numpy(y)


def run(cell: Cell) -> list[dict[str, Any]]:
    """Return the divergences' mean, 95 % quantile and largest, and the expected log-likelihood at the prevalence."""
    torch.set_num_threads(1)
    population = TwoGaussians(cell.population)
    data, prevalence = rows_of(population, PER_CLASS, 0), population.prevalence.with_evidence(0.0)
    target = target_of(cell.marginal, prevalence, prevalence.population if cell.reference == "π" else prevalence.sampling, data)
    watcher = Watcher(target, data)
    watch = None if cell.marginal == "exact" else watcher
    posterior = variational(target, data, steps=STEPS, batch_size=BATCH, watch=watch)
    x, y = rows_of(population, 10_000, 1)
    gains = torch.as_tensor(posterior.predict(x, samples=100).log_probs).gather(1, y[:, None]).squeeze(1).double()
    found = torch.tensor(watcher.divergences or [float("nan")])
    divergences = {"mean": float(found.mean()), "most": float(found.max()), "high": float(found.quantile(0.95))}
    by_class = [float(gains[y == label].mean()) for label in (0, 1)]
    return [{**divergences, "log_likelihood": float(prevalence.population @ by_class)}]


def tables(rows: pd.DataFrame) -> dict[str, str]:
    exact = rows[rows["marginal"] == "exact"].set_index(["population", "reference"])["log_likelihood"]
    away = (rows["log_likelihood"] / [exact[row.population, row.reference] for row in rows.itertuples()] - 1).abs()
    missed = rows[(rows["marginal"] == "auxiliary") & ((rows["most"] > MOST) | (away > SHARE))]
    verdict = f"not reached in {len(missed)} cases" if len(missed) else "reached"
    lines = [
        [f"{row.population:g}", row.reference, row.marginal]
        + [f"{each:.1e}".replace("nan", "–") for each in (row.mean, row.high, row.most)]
        + [f"{row.log_likelihood:.5f}", f"{off:.1%}"]
        for row, off in zip(rows.itertuples(index=False), away, strict=True)
    ]
    header = ["π", "reference", "marginal", "mean KL", "95 % quantile", "largest", "expected log-lik.", "from exact"]
    return {"table": table(header, lines), "verdict": verdict}


COMPARISON = Comparison("posterior_auxiliary", cells, run, tables)
