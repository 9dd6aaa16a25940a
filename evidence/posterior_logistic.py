"""Compare posterior means and standard deviations of logistic regression under label-based sampling, by method.

There are 2 weights (a slope and an intercept) or 10, and 200 examples, half of each class, from a population with 5 % of class
1. The reference is a dense grid for 2 weights and NUTS for 10, which is itself checked by importance sampling. p(y|w) is over
the training data, and every step uses all data. The uncorrected posterior treats labels as drawn given inputs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from rightloss.inference import LogPosterior, Posterior, expectation_propagation, laplace, nuts, sghmc, variational

from .engine import ROOT, Comparison
from .pages import table

sys.path.append(str(ROOT / "tests"))  # the problem is defined once, in the tests
from logistic import Logistic, grid_moments, importance_moments

Moments = tuple[Tensor, Tensor]  # mean and standard deviation, (d,) each
UNCORRECTED, CHECK = "uncorrected posterior", "importance sampling"
CLOSE, FAIR = (0.15, 15.0), (0.3, 25.0)  # aims: largest error of the mean in standard deviations, and of these in %
VARIATIONAL: dict[str, Any] = {"batch_size": None, "progress": False}


def by_nuts(target: LogPosterior, data: Any, **options: Any) -> Posterior:
    """Run NUTS from draws of the Laplace approximation."""
    return nuts(target, data, warmup=150, start=laplace(target, data, progress=False), progress=False, **options)


METHODS: dict[str, tuple[Callable[..., Posterior], tuple[float, float] | None]] = {  # and its aim; None: no aim
    "NUTS": (partial(by_nuts, chains=2, draws=500), CLOSE),
    "expectation propagation": (expectation_propagation, CLOSE),
    "SGHMC": (partial(sghmc, batch_size=None), CLOSE),
    "variational, full rank": (partial(variational, family="full-rank", steps=2000, samples=8, **VARIATIONAL), FAIR),
    "variational, mean-field": (partial(variational, family="mean-field", steps=1000, samples=4, **VARIATIONAL), None),
    "Laplace, full": (partial(laplace, covariance="full"), FAIR),
    "Laplace, diagonal": (partial(laplace, covariance="diagonal"), None),
}


class Cell(NamedTuple):
    features: int
    reference: str
    seed: int


def cells() -> Iterator[Cell]:
    yield from (Cell(*each) for each in product((1, 9), ("ρ", "π"), range(2)))


def moments(posterior: Any) -> Moments:
    return posterior.distribution.mean.double(), posterior.distribution.standard_deviation.double()


def by_brute_force(problem: Logistic, target: LogPosterior) -> Moments:
    """Return moments from a grid, or with many weights from weighted draws around the Laplace approximation."""
    if problem.features == 1:
        mean, covariance = grid_moments(problem, target)
    else:
        near, stream = laplace(target, problem.data), torch.Generator().manual_seed(0)
        mean, covariance, _ = importance_moments(target, problem.data, near, 100_000, 1.0, stream)
    return mean, covariance.diagonal().sqrt()


def run(cell: Cell) -> list[dict[str, Any]]:
    """Return by method the largest error over the weights, of means in sd and of standard deviations in %, and the time."""
    torch.set_num_threads(1)
    problem = Logistic(cell.features, seed=cell.seed)
    options = {"reference": problem.prevalence.population} if cell.reference == "π" else {}
    target, rows, few = problem.target(pool=problem.data, **options), list[dict[str, Any]](), cell.features == 1
    if few:
        reference, error = by_brute_force(problem, target), 0.0
    else:
        exact = by_nuts(target, problem.data, chains=4, draws=600, seed=1)
        assert exact.record["r_hat"] < 1.02, exact.record
        assert exact.record["divergences"] == 0, exact.record
        reference, error = moments(exact), exact.record["effective_sample_size"] ** -0.5
    calls: dict[str, Callable[[], Moments]] = {
        name: lambda method=method: moments(method(target, problem.data))  # type: ignore[misc]
        for name, (method, _) in METHODS.items()
        if few or name != "NUTS"  # it is the reference
    }
    calls |= {} if few else {CHECK: lambda: by_brute_force(problem, target)}
    for name, call in {**calls, UNCORRECTED: lambda: by_brute_force(problem, problem.uncorrected())}.items():
        begin = time.process_time()
        mean, deviation = call()
        seconds = time.process_time() - begin if name != UNCORRECTED else float("nan")
        off = float(((mean - reference[0]) / reference[1]).abs().max())
        wide = 100 * float((deviation / reference[1] - 1).abs().max())
        rows.append({"method": name, "mean": off, "deviation": wide, "seconds": seconds, "error": error})
    return rows


def section(rows: pd.DataFrame, features: int, reference: str) -> str:
    own, lines = rows[(rows["features"] == features) & (rows["reference"] == reference)], []
    for name, part in own.groupby("method", sort=False):
        aim = METHODS[str(name)][1] if name in METHODS else None
        within = 0 if aim is None else int(((part["mean"] <= aim[0]) & (part["deviation"] <= aim[1])).sum())
        seconds = part["seconds"].median()
        lines.append([
            str(name),
            f"{part['mean'].median():.2f} ({part['mean'].max():.2f})",
            f"{part['deviation'].median():.0f} ({part['deviation'].max():.0f})",
            *(["–", "–"] if aim is None else [f"{aim[0]} sd, {aim[1]:.0f} %", f"{within} of {len(part)}"]),
            "–" if seconds != seconds else f"{seconds:.1f}",
        ])  # fmt: skip
    exact = "a dense grid"
    if features > 1:
        exact = f"NUTS, whose own standard error is {own['error'].max():.3f} sd at most"
    header = ["method", "mean off by, in sd", "sd off by, in %", "aim", "data sets within it", "processor seconds"]
    mix = "π, the population's" if reference == "π" else "ρ, the sample's (the default)"
    return f"**{1 + features} weights, mix of reference {mix}**, against {exact}.\n\n{table(header, lines)}\n\n"


def tables(rows: pd.DataFrame) -> dict[str, str]:
    """Return how often the aims are reached, how far off the uncorrected posterior is, and a table for each setting."""
    text = ""
    for aim in (CLOSE, FAIR):
        names = [name for name, (_, own) in METHODS.items() if own == aim]
        part = rows[rows["method"].isin(names)]
        within = (part["mean"] <= aim[0]) & (part["deviation"] <= aim[1])
        failed = "; ".join(sorted(set(part["method"][~within])))
        text += f"Within {aim[0]} sd and {aim[1]:.0f} % ({'; '.join(names)}): {within.sum()} of {len(part)} results"
        text += f"; not always: {failed}.\n" if failed else ".\n"
    wrong = rows["mean"][rows["method"] == UNCORRECTED]
    text += f"The uncorrected posterior's mean is off by {wrong.min():.1f} to {wrong.max():.1f} sd."
    settings = rows[["features", "reference"]].drop_duplicates().itertuples(index=False)
    return {
        "verdict": text,
        "sections": "".join(section(rows, *each) for each in settings),
        "number": str(rows["seed"].nunique()),
    }


COMPARISONS = (Comparison("posterior_logistic", cells, run, tables),)
