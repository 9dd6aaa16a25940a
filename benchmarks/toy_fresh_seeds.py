"""Test whether the toy study's linear results hold on seeds that were not used to choose its settings.

The number of examples, steps and step size of the linear model were chosen on seeds 0 to 4, those of the study. This script
uses 40 other seeds, as eight studies of five, and pooled. Writes toy_fresh_seeds.md: the distance to the best possible in the
study's standard errors, a row per population and loss.
"""

from __future__ import annotations

import math
from concurrent.futures import ProcessPoolExecutor

import torch
from report import folder, table

from rightloss.study.methods import DEFAULT
from rightloss.study.methods import METHODS as ALL
from rightloss.study.toy.population import Population
from rightloss.study.toy.study import LINEAR, ToyConfig, ToyFigures, ToyProblem, ToyRun, run
from rightloss.study.toy.table import constant_rows

SEEDS = range(100, 140)
BLOCK = 5
METHODS = (DEFAULT, "logit-adjusted")


def one(config: ToyRun) -> ToyFigures:
    torch.set_num_threads(1)
    return run(config)


def distances(runs: list[ToyFigures], best: float) -> list[float]:
    """Return the distance of each block's mean from the best possible, in standard errors, and last that of all seeds."""
    blocks = [runs[start : start + BLOCK] for start in range(0, len(runs), BLOCK)]
    results = []
    for block in [*blocks, runs]:
        error = math.sqrt(math.fsum(each.variance for each in block)) / len(block)
        results.append((math.fsum(each.log_likelihood for each in block) / len(block) - best) / error)
    return results


def rows(population: Population, pool: ProcessPoolExecutor) -> list[list[str]]:
    best = constant_rows(population)[0].log_likelihood
    made = []
    for method in METHODS:
        configs = [ToyRun(ToyProblem(population, LINEAR, seed, ToyConfig().test_examples), method) for seed in SEEDS]
        *blocks, pooled = distances(list(pool.map(one, configs)), best)
        outside = sum(abs(z) > 3 for z in blocks)
        shown = [" ".join(f"{z:.1f}" for z in blocks), f"{outside} of {len(blocks)}", f"{pooled:.1f}"]
        made.append([population.title, ALL[method].title, *shown])
    return made


def main() -> None:
    out = folder()
    with ProcessPoolExecutor(2) as pool:
        lines = [row for population in ToyConfig().populations() for row in rows(population, pool)]
    header = ["prevalence", "loss", "s.e. from the best possible, by five seeds", "beyond 3", "40 seeds together"]
    page = f"Linear model; made by `python benchmarks/toy_fresh_seeds.py`.\n\n{table(header, lines)}"
    (out / "toy_fresh_seeds.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
