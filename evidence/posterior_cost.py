"""Measure what a posterior costs, compared with one training: an ensemble trained together, VI, and the other methods.

An MLP of 32 hidden units on LIDC-IDRI's features (11 columns), minibatches of 128, the information gain at its defaults, one
thread, processor time. All methods take the same number of steps and are run in turn, so that a temporary slowdown of the
machine affects all of them (use one worker). With equal steps and batch sizes, ratios by step are ratios by epoch. One-time
work of a method, such as building the posterior, is included. In addition, each method is run once at its own defaults.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from rightloss import Bernoulli, Prevalence, start_at_prevalence
from rightloss import inference as methods
from rightloss.inference import LogPosterior
from rightloss.lidc import binary_set

from .engine import Comparison
from .pages import table

HIDDEN, BATCH, STEPS, MEMBERS, POPULATION, TURNS = 32, 128, 300, 10, 0.01, 15
TRAINED: dict[str, Any] = {"steps": STEPS, "batch_size": BATCH, "progress": False}
COMPARED: dict[str, Callable[..., object]] = {
    "MAP": partial(methods.map_estimate, **TRAINED),
    f"ensemble of {MEMBERS}, together": partial(methods.ensemble, members=MEMBERS, **TRAINED),
    f"ensemble of {MEMBERS}, one after the other": lambda target, data: [
        methods.map_estimate(target, data, seed=seed, **TRAINED) for seed in range(MEMBERS)
    ],
    "VI, mean field": partial(methods.variational, **TRAINED),
}
DEFAULTS: dict[str, Callable[..., object]] = {
    "MAP": methods.map_estimate,
    "MC dropout": methods.mc_dropout,
    f"ensemble of {MEMBERS}": partial(methods.ensemble, members=MEMBERS),
    "VI, mean field": methods.variational,
    "Laplace, last layer": partial(methods.laplace, covariance="last-layer"),
    "Laplace, full": methods.laplace,
    "EP, last layer": methods.expectation_propagation,
    "SGHMC, 4 chains": methods.sghmc,
}


class Cell(NamedTuple):
    """A turn of a method; turn −1 is at the method's own defaults."""

    turn: int
    method: str


def cells(quick: bool) -> Iterator[Cell]:
    yield from (Cell(turn, method) for turn in range(1 if quick else TURNS) for method in COMPARED)
    yield from (Cell(-1, method) for method in DEFAULTS)


def problem(dropout: float) -> tuple[LogPosterior, tuple[Tensor, Tensor]]:
    nodules = binary_set()
    x, y = nodules.standardised(torch.arange(len(nodules.labels))), nodules.labels
    prevalence = Prevalence.from_labels(y, POPULATION)
    torch.manual_seed(0)
    drop = [nn.Dropout(dropout)] if dropout else []
    model = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.SiLU(), *drop, nn.Linear(HIDDEN, 1))
    start_at_prevalence(model[-1], prevalence, Bernoulli())
    return methods.log_posterior(model, prevalence, Bernoulli()), (x, y)


def run(cell: Cell) -> list[dict[str, Any]]:
    """Return the processor seconds of one call."""
    torch.set_num_threads(1)
    target, data = problem(0.1 if cell.method == "MC dropout" else 0.0)
    call = COMPARED[cell.method] if cell.turn >= 0 else partial(DEFAULTS[cell.method], progress=False)
    if cell.turn == 0:
        call(target, data)  # first-use work of libraries is not counted
    start = time.process_time()
    call(target, data)
    return [{"seconds": time.process_time() - start}]


def tables(rows: pd.DataFrame) -> dict[str, str]:
    """Return ms per step, and the time relative to MAP in the same turn, median and interquartile range; and defaults."""
    turns = rows[rows["turn"] >= 0].pivot(index="turn", columns="method", values="seconds")
    ratios = turns.div(turns["MAP"], axis=0)
    lines = []
    for name in COMPARED:
        low, middle, high = (ratios[name].quantile(share) for share in (0.25, 0.5, 0.75))
        lines.append([name, f"{1e3 * turns[name].median() / STEPS:.2f}", f"{middle:.2f}", f"{low:.2f} to {high:.2f}"])
    once = [[row.method, f"{row.seconds:.1f}"] for row in rows[rows["turn"] < 0].itertuples()]
    compared = table(["method", "ms a step", "time / MAP", "turns"], lines)
    return {"compared": compared, "defaults": table(["method", "seconds"], once), "turns": str(len(turns))}


COMPARISON = Comparison("posterior_cost", cells, run, tables)
