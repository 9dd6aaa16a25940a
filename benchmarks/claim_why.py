"""Show why corrections differ, on two closed-form populations: how well a loss sees the intercept, and a wrong model.

Stage: populations of rightloss.study.toy, a linear model fitted to the optimum by each loss → benchmarks/out/claim_why.json.

    python benchmarks/claim_why.py      # about two minutes on one core; the page of claim.py shows the result

*Intercept*: two Gaussians, for which a linear model is right; over many samples, the standard deviation of the fitted intercept
and of the slope along the truth, and what is lost of the best log-likelihood. *Wrong model*: log-odds with a bend that a linear
model cannot follow; what is lost, by the number of labelled rows. *Heavy tails*: some rows lie far out; what capping brings.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.nn.functional as F
from report import ROOT
from torch import Tensor

from rightloss import Prevalence, information_gain_loss, logit_adjusted_loss, weighted_loss
from rightloss.atomic_files import write_whole
from rightloss.study.toy.population import EVERYONE, CurvedRisk, TwoGaussians, gauss_hermite, met

OUT = ROOT / "benchmarks/out/claim_why.json"
SHARES = (0.3, 0.01, 0.001)
SAMPLES, PER_CLASS = 60, 200  # of the first table
SIZES, REPEATS = (50, 200, 1000, 5000), 12  # of the second
DECAY = 1e-7
CAPPED = "logit-adjusted, likelihood ratio capped"
Criterion = Callable[[Tensor, Tensor, Prevalence], Tensor]


def _gain(kappa: float, at_population: bool) -> Criterion:
    def loss(logits: Tensor, y: Tensor, known: Prevalence) -> Tensor:
        prevalence = Prevalence(known.population, evidence=kappa)
        return information_gain_loss(logits, y, prevalence, reference=prevalence.population if at_population else None)

    return loss


def _half_weighted(logits: Tensor, y: Tensor, known: Prevalence) -> Tensor:
    """Return the weighted loss in the mix r between ρ and π, r ∝ √π: weights r/ρ, and the table moved to r."""
    middle = np.sqrt(known.population) / np.sqrt(known.population).sum()
    return weighted_loss(logits + torch.from_numpy(np.log(middle / known.population)), y, Prevalence(middle))


LOSSES: dict[str, Criterion] = {
    "logit-adjusted (gain, r = ρ, κ = 1)": logit_adjusted_loss,
    "gain, r = ρ, κ = 0.1": _gain(0.1, False),
    "gain, r = ρ, κ = 0": _gain(0.0, False),
    "half weighted": _half_weighted,
    "weighted": weighted_loss,
    "gain, r = π, κ = 1": _gain(1.0, True),
    "gain, r = π, κ = 0 (published)": _gain(0.0, True),
}


def fitted(loss: Criterion, x: Tensor, y: Tensor, prevalence: Prevalence) -> Tensor:
    """Return weights and bias (last) of the log-odds at π, at the optimum of the loss over all rows, started at π."""
    weights = torch.zeros(x.shape[1] + 1, dtype=torch.float64)
    weights[-1] = math.log(prevalence.population[1] / prevalence.population[0])
    weights.requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weights], max_iter=100, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        z = x @ weights[:-1] + weights[-1]
        found = loss(torch.stack([torch.zeros_like(z), z], 1), y, prevalence) + DECAY * weights[:-1].square().sum()
        found.backward()
        return found

    optimizer.step(closure)
    return weights.detach()


def expected(z: Tensor, mass: Tensor, share: float) -> float:
    """Return the log-likelihood at the share, of log-odds at nodes with masses `(nodes, 2)` of p(x|k)."""
    return float((1 - share) * mass[:, 0] @ F.logsigmoid(-z) + share * mass[:, 1] @ F.logsigmoid(z))


def lost_by_gaussian(weights: Tensor, population: TwoGaussians, cap: bool = False) -> float:
    """Return what is lost of the best log-likelihood, capped on request: given the class, log-odds are normal."""
    nodes, mass = map(torch.from_numpy, gauss_hermite(1))
    mean = population.separation / math.sqrt(population.features) * weights[:-1].sum()
    spread = weights[:-1].norm()
    found = 0.0
    for sign, share in ((-1.0, 1 - population.positive), (1.0, population.positive)):
        z = weights[-1] + sign * mean + spread * nodes[:, 0]
        z = capped(z, population.positive, PER_CLASS) if cap else z
        found += share * float(mass @ F.logsigmoid(sign * z))
    return population.best_log_likelihood - found


def capped(z: Tensor, share: float, rows: int) -> Tensor:
    """Return log-odds at the share with the likelihood ratio between 1/(n + 1) and n + 1, for n labelled rows of each class."""
    log_odds, limit = math.log(share / (1 - share)), math.log1p(rows)
    return (z - log_odds).clamp(-limit, limit) + log_odds


def heavy_tails() -> list[dict[str, float | str]]:
    """Return what a linear model gains over the guess, in %, where one row in fifty of either class is ten times as far out.

    As fitted, with capped likelihood ratios, and by the weighted loss; the median and the worst of the samples.
    """
    direction = torch.full((5,), 0.8 / math.sqrt(5), dtype=torch.float64)

    def people(size: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        y = torch.arange(2).repeat_interleave(size)
        far = 1 + 9 * (torch.rand(2 * size, 1, generator=generator) < 0.02)
        noise = torch.randn(2 * size, 5, generator=generator, dtype=torch.float64)
        return far * (noise + (2 * y[:, None] - 1) * direction), y

    x_test, y_test = people(20_000, 10_000)
    mass = torch.stack([(y_test == k).double() / 20_000 for k in (0, 1)], 1)
    rows: list[dict[str, float | str]] = []
    for share in SHARES:
        guess = -(share * math.log(share) + (1 - share) * math.log1p(-share))
        for size in SIZES[:3]:
            found: dict[str, list[float]] = {"logit-adjusted": [], "logit-adjusted, capped": [], "weighted": []}
            for seed in range(SAMPLES // 3):
                x, y = people(size, seed)
                for name, loss in (("logit-adjusted", logit_adjusted_loss), ("weighted", weighted_loss)):
                    weights = fitted(loss, x, y, Prevalence.binary(share))
                    z = x_test @ weights[:-1] + weights[-1]
                    found[name].append(100 * (expected(z, mass, share) + guess) / guess)
                    if name == "logit-adjusted":
                        found["logit-adjusted, capped"].append(
                            100 * (expected(capped(z, share, size), mass, share) + guess) / guess
                        )
            for name, each in found.items():
                rows.append({"share": share, "rows": size, "loss": name, "median": float(np.median(each)), "worst": min(each)})
    return rows


def intercepts() -> list[dict[str, float | str]]:
    """Return, for each share and loss, the spread of intercept and slope, and the mean loss in % of the guess's."""
    rows: list[dict[str, float | str]] = []
    for share in SHARES:
        population = TwoGaussians(share)
        direction = torch.full((population.features,), 1 / math.sqrt(population.features), dtype=torch.float64)
        guess = -(share * math.log(share) + (1 - share) * math.log1p(-share))
        for name, loss in {**LOSSES, CAPPED: logit_adjusted_loss}.items():
            found = []
            for seed in range(SAMPLES):
                x, y = map(torch.from_numpy, population.sample(PER_CLASS, seed))
                weights = fitted(loss, x, y, population.prevalence)
                lost = 100 * lost_by_gaussian(weights, population, cap=name == CAPPED) / guess
                found.append([float(weights[-1]), float(weights[:-1] @ direction), lost])
            array = np.array(found)
            spread = array.std(axis=0, ddof=1)
            rows.append({
                "share": share, "loss": name, "intercept": spread[0], "slope": spread[1],
                "lost": array[:, 2].mean(), "lost_se": spread[2] / math.sqrt(SAMPLES), "median": float(np.median(array[:, 2])),
            })  # fmt: skip
    return rows


def wrong_model() -> list[dict[str, float | str]]:
    """Return, by share, loss and number of rows, what a linear model loses where the truth is bent, in % of the guess's."""
    people = CurvedRisk()
    truth, natural = torch.from_numpy(people.log_odds(people.people[0])), people.positive
    x, mass = map(torch.from_numpy, people.people)
    densities = torch.stack([mass * (-truth).sigmoid() / (1 - natural), mass * truth.sigmoid() / natural], 1)
    pool_x, pool_y, _ = map(torch.from_numpy, met(people, EVERYONE, 60_000, torch.Generator().manual_seed(0)))
    rows: list[dict[str, float | str]] = []
    for share in SHARES:
        shift = math.log(share / (1 - share)) - math.log(natural / (1 - natural))
        best, guess = expected(truth + shift, densities, share), -(share * math.log(share) + (1 - share) * math.log1p(-share))
        for name in ("logit-adjusted (gain, r = ρ, κ = 1)", "half weighted", "weighted"):
            for size in SIZES:
                found = []
                for seed in range(REPEATS):
                    order = torch.randperm(len(pool_y), generator=torch.Generator().manual_seed(seed))
                    chosen = torch.cat([order[pool_y[order] == k][:size] for k in (0, 1)])
                    weights = fitted(LOSSES[name], pool_x[chosen], pool_y[chosen], Prevalence.binary(share))
                    found.append(100 * (best - expected(x @ weights[:-1] + weights[-1], densities, share)) / guess)
                error = float(np.std(found, ddof=1)) / math.sqrt(REPEATS)
                rows.append({"share": share, "loss": name, "rows": size, "lost": float(np.mean(found)), "lost_se": error})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true", help="without effect: the page of claim.py shows the result")
    parser.parse_args()
    torch.set_num_threads(1)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    write_whole(
        OUT, json.dumps({"intercepts": intercepts(), "wrong_model": wrong_model(), "heavy_tails": heavy_tails()}, indent=1)
    )
    print(OUT.read_text())


if __name__ == "__main__":
    main()
