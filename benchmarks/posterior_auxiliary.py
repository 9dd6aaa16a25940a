"""Measure whether q_ψ(w) follows the weights in variational inference, compared with other marginals.

An MLP on 2,000 balanced examples of two Gaussian classes. In the second half of the training, 50 times, 20 draws of the
weights are taken from the current q(w). For each, KL[p(·|w) ‖ q] in nats is computed, both as class mixes at the reference,
with p(·|w) exact over all training data. The expected log-likelihood of new test data at the prevalence is compared with that
of training with the exact marginal. Writes posterior_auxiliary.md: a row per π, reference and marginal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from report import folder, table
from torch import Tensor, nn

import rightloss as rl
from rightloss.inference import Distribution, LogPosterior, log_posterior
from rightloss.inference.distributions import Layout
from rightloss.inference.vi import following, variational
from rightloss.study.toy.population import TwoGaussians

STEPS, TIMES, DRAWS, BATCH, PER_CLASS = 2000, 50, 20, 128, 1000
MOST, SHARE = 1e-2, 0.02  # nats; of the expected log-likelihood
MARGINALS = ("exact", "auxiliary", "auxiliary, reads the weights", "running", "batch")


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
            exact = self.target.log_marginal(params, self.data).log_softmax(0)
            log_q = self.value(params).log_softmax(0)
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
    make: dict[str, Callable[[], Any]] = {
        "auxiliary, reads the weights": lambda: rl.AuxiliaryMarginal(model),
        "running": lambda: Plain(rl.RunningMarginal()),
        "batch": rl.BatchMarginal,
    }
    if name == "exact":
        return log_posterior(model, prevalence, reference=reference, pool=data, num_data=len(data[1]))
    marginal = make[name]() if name in make else None
    target = log_posterior(model, prevalence, marginal=marginal, reference=reference, num_data=len(data[1]))
    # `variational` does this itself with the default marginal; done here to have access to q_ψ
    return following(target, target.parameters(), data, torch.Generator().manual_seed(0))


def rows_of(population: TwoGaussians, per_class: int, seed: int) -> tuple[Tensor, Tensor]:
    x, y = population.sample(per_class, seed)
    return torch.from_numpy(x).float(), torch.from_numpy(y)


def run(name: str, positive: float, paper: bool) -> tuple[list[float], float]:
    """Return the divergences, and the expected log-likelihood at the prevalence."""
    population = TwoGaussians(positive)
    data, prevalence = rows_of(population, PER_CLASS, 0), population.prevalence.with_evidence(0.0)
    target = target_of(name, prevalence, prevalence.population if paper else prevalence.sampling, data)
    watcher = Watcher(target, data)
    posterior = variational(target, data, steps=STEPS, batch_size=BATCH, watch=None if name == "exact" else watcher)
    x, y = rows_of(population, 10_000, 1)
    log_probs = posterior.predict(x, samples=100).log_probs
    gains = log_probs.gather(1, y[:, None]).squeeze(1).double()
    by_class = [float(gains[y == label].mean()) for label in (0, 1)]
    return watcher.divergences, float(prevalence.population @ by_class)


def main() -> None:
    torch.set_num_threads(1)
    rows, missed = [], []
    for positive in (0.05, 0.001):
        for paper in (False, True):
            exact = float("nan")
            for name in MARGINALS:
                divergences, log_likelihood = run(name, positive, paper)
                exact = log_likelihood if name == "exact" else exact
                away = abs(log_likelihood / exact - 1)
                figures = ["–"] * 3
                if divergences:
                    found = torch.tensor(divergences)
                    figures = [f"{float(each):.1e}" for each in (found.mean(), found.quantile(0.95), found.max())]
                if name == "auxiliary" and (max(divergences) > MOST or away > SHARE):
                    missed.append((positive, paper))
                rows.append([f"{positive:g}", "π" if paper else "ρ", name, *figures, f"{log_likelihood:.5f}", f"{away:.1%}"])
                print(rows[-1], flush=True)
    header = ["π", "reference", "marginal", "mean KL", "95 % quantile", "largest", "expected log-lik.", "from exact"]
    verdict = "reached" if not missed else f"not reached in all cases: {missed}"
    page = (
        f"Made by `python benchmarks/posterior_auxiliary.py`. Aim for the auxiliary marginal: largest "
        f"KL below {MOST:g} nats, and expected log-likelihood within {SHARE:.0%} of the exact marginal's: {verdict}.\n\n"
        f"{table(header, rows)}"
    )
    out = folder()
    (out / "posterior_auxiliary.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
