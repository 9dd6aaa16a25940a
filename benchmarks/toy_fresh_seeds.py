"""Test whether the toy study's linear results hold on seeds that were not used to choose its settings.

The number of examples, steps and step size of the linear model were chosen on seeds 0 to 4, those of the study. This script
uses 40 other seeds, as eight studies of five, and pooled: the distance to the best possible in the study's standard errors.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ProcessPoolExecutor

import torch
from measuring import shown, table, write_pages

from rightloss.study.methods import DEFAULT, METHODS
from rightloss.study.toy.study import LINEAR, ToyConfig, ToyFigures, ToyProblem, ToyRun, run
from rightloss.study.toy.table import constant_rows

SEEDS, BLOCK = range(100, 100 + int(os.environ.get("RIGHTLOSS_DRAWS", "40"))), 5


def one(config: ToyRun) -> ToyFigures:
    torch.set_num_threads(1)
    return run(config)


def distances(runs: list[ToyFigures], best: float) -> list[float]:
    """Return the distance of each block's mean from the best possible, in standard errors, and last that of all seeds."""
    found = []
    for block in [*(runs[start : start + BLOCK] for start in range(0, len(runs), BLOCK)), runs]:
        error = math.sqrt(math.fsum(each.variance for each in block)) / len(block)
        found.append((math.fsum(each.log_likelihood for each in block) / len(block) - best) / error)
    return found


def toy_fresh_seeds() -> str:
    lines = []
    with ProcessPoolExecutor(2) as pool:
        for population in ToyConfig().populations():
            best = constant_rows(population)[0].log_likelihood
            for method in (DEFAULT, "logit-adjusted"):
                runs = [ToyRun(ToyProblem(population, LINEAR, seed, ToyConfig().test_examples), method) for seed in SEEDS]
                *blocks, pooled = distances(list(pool.map(one, runs)), best)
                cells = [" ".join(f"{z:.1f}" for z in blocks), f"{sum(abs(z) > 3 for z in blocks)} of {len(blocks)}"]
                lines.append(shown([population.title, METHODS[method].title, *cells, f"{pooled:.1f}"]))
    header = ["prevalence", "loss", "s.e. from the best possible, by five seeds", "beyond 3", f"{len(SEEDS)} seeds together"]
    return f"linear model.\n\n{table(header, lines)}"


if __name__ == "__main__":
    write_pages(__doc__, toy_fresh_seeds=toy_fresh_seeds)
