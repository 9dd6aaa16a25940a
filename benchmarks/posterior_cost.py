"""Measure what a posterior costs, compared with one training: an ensemble trained together, VI, and the other methods.

An MLP of 32 hidden units on LIDC-IDRI's features (11 columns), minibatches of 128, the information gain at its defaults, one
thread, processor time. All methods take the same number of steps and are run in turn, so that a temporary slowdown of the
machine affects all of them. With equal steps and batch sizes, ratios by step are ratios by epoch. One-time work of a method,
such as building the posterior, is included. In addition, each method is run once at its own defaults. Writes
posterior_cost.md: two tables, a row per method.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from report import folder, table
from torch import Tensor, nn

from rightloss import Bernoulli, Prevalence, start_at_prevalence
from rightloss.inference import (
    LogPosterior,
    Posterior,
    ensemble,
    expectation_propagation,
    laplace,
    log_posterior,
    map_estimate,
    mc_dropout,
    sghmc,
    variational,
)
from rightloss.lidc import binary_set

HIDDEN, BATCH, STEPS, MEMBERS, POPULATION = 32, 128, 300, 10, 0.01
REPEATS = int(os.environ.get("REPEATS", "15"))
AIM = 2.5  # maximum time of an ensemble of ten, and of VI, relative to MAP

Data = tuple[Tensor, Tensor]
Method = Callable[[LogPosterior, Data], object]


def one_after_the_other(target: LogPosterior, data: Data) -> list[Posterior]:
    return [map_estimate(target, data, seed=seed, **trained()) for seed in range(MEMBERS)]


def trained() -> dict[str, Any]:
    return {"steps": STEPS, "batch_size": BATCH, "progress": False}


COMPARED: dict[str, Method] = {
    "MAP": lambda target, data: map_estimate(target, data, **trained()),
    f"ensemble of {MEMBERS}, together": lambda target, data: ensemble(target, data, members=MEMBERS, **trained()),
    f"ensemble of {MEMBERS}, one after the other": one_after_the_other,
    "VI, mean field": lambda target, data: variational(target, data, **trained()),
}
DEFAULTS: dict[str, Method] = {
    "MAP": partial(map_estimate, progress=False),
    "MC dropout": partial(mc_dropout, progress=False),
    f"ensemble of {MEMBERS}": partial(ensemble, members=MEMBERS, progress=False),
    "VI, mean field": partial(variational, progress=False),
    "Laplace, last layer": partial(laplace, covariance="last-layer", progress=False),
    "Laplace, full": partial(laplace, progress=False),
    "EP, last layer": partial(expectation_propagation, progress=False),
    "SGHMC, 4 chains": partial(sghmc, progress=False),
}


def problem(dropout: float = 0.0) -> tuple[LogPosterior, Data]:
    nodules = binary_set()
    x, y = nodules.standardised(torch.arange(len(nodules.labels))), nodules.labels
    prevalence = Prevalence.from_labels(y, POPULATION)
    torch.manual_seed(0)
    drop = [nn.Dropout(dropout)] if dropout else []
    model = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.SiLU(), *drop, nn.Linear(HIDDEN, 1))
    start_at_prevalence(model[-1], prevalence, Bernoulli())
    return log_posterior(model, prevalence, Bernoulli()), (x, y)


def seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def in_turn(calls: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(REPEATS):
        for name, call in calls.items():
            times[name].append(seconds(call))
        print(repeat, {name: round(values[-1], 2) for name, values in times.items()}, flush=True)
    return times


def compared() -> list[list[str]]:
    """Return a row per method: ms per step, and the time relative to MAP in the same turn, median and interquartile range."""
    target, data = problem()
    times = in_turn({name: partial(method, target, data) for name, method in COMPARED.items()})
    rows = []
    for name, values in times.items():
        ratios = [one / base for one, base in zip(values, times["MAP"], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        step = f"{1e3 * statistics.median(values) / STEPS:.2f}"
        rows.append([name, step, f"{statistics.median(ratios):.2f}", f"{low:.2f} to {high:.2f}"])
    return rows


def at_defaults() -> list[list[str]]:
    rows = []
    for name, method in DEFAULTS.items():
        target, data = problem(0.1 if name == "MC dropout" else 0.0)
        rows.append([name, f"{seconds(partial(method, target, data)):.1f}"])
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    out, load = folder(), os.getloadavg()[0]
    torch.set_num_threads(1)
    rows = compared()
    counts = f"{STEPS} steps, medians of {REPEATS} turns, with the interquartile range in the last column"
    words = (
        f"Made by `python benchmarks/posterior_cost.py`: an MLP of {HIDDEN} hidden units on LIDC-IDRI's features, minibatches "
        f"of {BATCH}, one thread, processor time; {counts}. Aim: at most {AIM} times MAP for the ensemble trained together "
        f"and for VI. Load of the machine in the minute before: {load:.1f} on {os.cpu_count()} cores.\n\n"
    )
    first = table(["method", "ms a step", "time / MAP", "turns"], rows)
    middle = "\nEach method once, at its own defaults (steps, minibatches, chains):\n\n"
    (out / "posterior_cost.md").write_text(words + first + middle + table(["method", "seconds"], at_defaults()))


if __name__ == "__main__":
    main()
