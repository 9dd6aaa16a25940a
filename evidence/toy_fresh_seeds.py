"""Test whether the toy study's linear results hold on seeds that were not used to choose its settings.

The number of examples, steps and step size of the linear model were chosen on seeds 0 to 4, those of the study. Here are 40
other seeds, as eight studies of five, and pooled: the distance to the best possible in the study's standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import pandas as pd
import torch

from rightloss.study.methods import DEFAULT, METHODS
from rightloss.study.toy import study
from rightloss.study.toy.table import constant_rows

from .engine import Comparison
from .pages import table

POPULATIONS = {population.title: population for population in study.ToyConfig().populations()}
SEEDS, BLOCK = 40, 5


class Cell(NamedTuple):
    population: str
    loss: str
    seed: int


def cells(quick: bool) -> Iterator[Cell]:
    seeds = range(100, 100 + (BLOCK if quick else SEEDS))
    yield from (Cell(*each) for each in product(POPULATIONS, (DEFAULT, "logit-adjusted"), seeds))


def run(cell: Cell) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    problem = study.ToyProblem(POPULATIONS[cell.population], study.LINEAR, cell.seed, study.ToyConfig().test_examples)
    found = study.run(study.ToyRun(problem, cell.loss))
    return [{"log_likelihood": found.log_likelihood, "variance": found.variance}]


def distance(part: pd.DataFrame, best: float) -> float:
    """Return the mean's distance from the best possible, in standard errors."""
    return float((part["log_likelihood"].mean() - best) / (math.sqrt(part["variance"].sum()) / len(part)))


def tables(rows: pd.DataFrame) -> dict[str, str]:
    lines = []
    for (population, loss), part in rows.groupby(["population", "loss"], sort=False):
        best = constant_rows(POPULATIONS[population])[0].log_likelihood
        blocks = [distance(part[start : start + BLOCK], best) for start in range(0, len(part), BLOCK)]
        cells = [" ".join(f"{z:.1f}" for z in blocks), f"{sum(abs(z) > 3 for z in blocks)} of {len(blocks)}"]
        lines.append([population, METHODS[loss].title, *cells, f"{distance(part, best):.1f}"])
    header = ["prevalence", "loss", "s.e. from the best possible, by five seeds", "beyond 3", f"{SEEDS} seeds together"]
    return {"table": table(header, lines)}


COMPARISON = Comparison("toy_fresh_seeds", cells, run, tables)
