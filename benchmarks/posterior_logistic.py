"""Compare posterior means and standard deviations of logistic regression under label-based sampling, by method.

There are 2 weights (a slope and an intercept) or 10, and 200 examples, half of each class, from a population with 5 % of class
1. The reference is a dense grid for 2 weights and NUTS for 10, which is itself checked by importance sampling. p(y|w) is over
the training data, and every step uses all data. The uncorrected posterior treats labels as drawn given inputs. Writes
posterior_logistic.md: a table for each number of weights and reference mix, a row per method.

    python benchmarks/posterior_logistic.py --docs
    python benchmarks/posterior_logistic.py --seeds 1
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
from report import ROOT, table
from torch import Tensor

from rightloss.inference import LogPosterior
from rightloss.inference.distributions import Layout
from rightloss.inference.ep import expectation_propagation
from rightloss.inference.laplace import laplace
from rightloss.inference.nuts import nuts
from rightloss.inference.posterior import Posterior
from rightloss.inference.sgmcmc import sghmc
from rightloss.inference.vi import variational

sys.path.append(str(ROOT / "tests"))  # the problem is defined once, in the tests
from logistic import Logistic, grid_moments, importance_moments

Moments = tuple[Tensor, Tensor]  # mean and standard deviation, (d,) each
Method = Callable[[LogPosterior, tuple[Tensor, Tensor]], Posterior]

REFERENCE = 600  # draws per chain, 4 chains

# Method, and its aim: largest error of the mean in standard deviations, and of the standard deviation in %. None: no aim.
CLOSE, FAIR = (0.15, 15.0), (0.3, 25.0)
NUTS, UNCORRECTED, CHECK = "NUTS", "uncorrected posterior", "importance sampling"
METHODS: dict[str, tuple[Method, tuple[float, float] | None]] = {
    NUTS: (lambda target, data: by_nuts(target, data, chains=2, draws=500), CLOSE),
    "expectation propagation": (lambda target, data: expectation_propagation(target, data), CLOSE),
    "SGHMC": (lambda target, data: sghmc(target, data, batch_size=None), CLOSE),
    "variational, full rank": (
        lambda target, data: variational(target, data, family="full-rank", batch_size=None, steps=2000, samples=8),
        FAIR,
    ),
    "variational, mean-field": (
        lambda target, data: variational(target, data, family="mean-field", batch_size=None, steps=1000, samples=4),
        None,
    ),
    "Laplace, full": (lambda target, data: laplace(target, data, covariance="full"), FAIR),
    "Laplace, diagonal": (lambda target, data: laplace(target, data, covariance="diagonal"), None),
}


class Miss(NamedTuple):
    """The largest error over the weights: of means in sd, of standard deviations in %; and the processor time."""

    mean: float
    deviation: float
    seconds: float

    def within(self, aim: tuple[float, float]) -> bool:
        return self.mean <= aim[0] and self.deviation <= aim[1]


class Case(NamedTuple):
    """The errors by method in one data set, and the reference's own Monte Carlo error in standard deviations."""

    misses: dict[str, Miss]
    error: float


def moments(posterior: Posterior) -> Moments:
    return posterior.distribution.mean.double(), posterior.distribution.standard_deviation.double()


def by_nuts(target: LogPosterior, data: tuple[Tensor, Tensor], **options: Any) -> Posterior:
    """Run NUTS from draws of the Laplace approximation."""
    return nuts(target, data, warmup=150, start=laplace(target, data, progress=False), progress=False, **options)


def by_grid(problem: Logistic, target: LogPosterior) -> Moments:
    mean, covariance = grid_moments(problem, target)
    return mean, covariance.diagonal().sqrt()


def by_importance(problem: Logistic, target: LogPosterior) -> tuple[Moments, float]:
    """Return moments from weighted draws around the Laplace approximation, and the effective sample size."""
    near, stream = laplace(target, problem.data), torch.Generator().manual_seed(0)
    mean, covariance, worth = importance_moments(target, problem.data, near, 100_000, 1.0, stream)
    return (mean, covariance.diagonal().sqrt()), worth


def reference_of(problem: Logistic, target: LogPosterior) -> tuple[Moments, float]:
    """Return the reference moments, and the standard error of the means in standard deviations."""
    if problem.features == 1:
        return by_grid(problem, target), 0.0
    posterior = by_nuts(target, problem.data, chains=4, draws=REFERENCE, seed=1)
    assert posterior.record["r_hat"] < 1.02, posterior.record
    assert posterior.record["divergences"] == 0, posterior.record
    return moments(posterior), posterior.record["effective_sample_size"] ** -0.5


def miss(found: Moments, reference: Moments, seconds: float) -> Miss:
    mean = float(((found[0] - reference[0]) / reference[1]).abs().max())
    return Miss(mean, 100 * float((found[1] / reference[1] - 1).abs().max()), seconds)


def case_of(features: int, at_population: bool, seed: int) -> Case:
    torch.set_num_threads(1)
    problem = Logistic(features, seed=seed)
    options = {"reference": problem.prevalence.population} if at_population else {}
    target, uncorrected = problem.target(pool=problem.data, **options), problem.uncorrected()
    assert Layout.of(target.parameters()).names == ("weight", "bias")
    where = f"{1 + features} weights, seed {seed}, r = {'π' if at_population else 'ρ'}"
    print(f"{where}: begins", file=sys.stderr, flush=True)
    reference, error = reference_of(problem, target)
    misses = {}
    for name, (method, _) in METHODS.items():
        if features > 1 and name == NUTS:
            continue  # it is the reference
        begin = time.process_time()
        found = moments(method(target, problem.data))
        misses[name] = miss(found, reference, time.process_time() - begin)
        print(f"{where}: {name} {misses[name]}", file=sys.stderr, flush=True)
    if features > 1:
        begin = time.process_time()
        misses[CHECK] = miss(by_importance(problem, target)[0], reference, time.process_time() - begin)
    wrong = by_grid(problem, uncorrected) if features == 1 else by_importance(problem, uncorrected)[0]
    misses[UNCORRECTED] = miss(wrong, reference, float("nan"))
    return Case(misses, error)


def rows_of(cases: list[Case]) -> list[list[str]]:
    rows = []
    for name in cases[0].misses:
        each = [case.misses[name] for case in cases]
        aim = METHODS[name][1] if name in METHODS else None
        within = "–" if aim is None else f"{sum(one.within(aim) for one in each)} of {len(each)}"
        seconds = statistics.median(one.seconds for one in each)
        rows.append(
            [
                name,
                f"{statistics.median(one.mean for one in each):.2f} ({max(one.mean for one in each):.2f})",
                f"{statistics.median(one.deviation for one in each):.0f} ({max(one.deviation for one in each):.0f})",
                "–" if aim is None else f"{aim[0]} sd, {aim[1]:.0f} %",
                within,
                "–" if seconds != seconds else f"{seconds:.1f}",
            ]
        )
    return rows


def section(features: int, at_population: bool, cases: list[Case]) -> str:
    exact = "a dense grid"
    if features > 1:
        exact = f"NUTS, whose own standard error is {max(case.error for case in cases):.3f} sd at most"
    header = ["method", "mean off by, in sd", "sd off by, in %", "aim", "data sets within it", "processor seconds"]
    mix = "π, the population's" if at_population else "ρ, the sample's (the default)"
    return f"**{1 + features} weights, mix of reference {mix}**, against {exact}.\n\n{table(header, rows_of(cases))}\n"


def verdict(found: dict[tuple[int, bool], list[Case]]) -> str:
    """Summarise how often the aims are reached, and how far off the uncorrected posterior is."""
    cases = [case for some in found.values() for case in some]
    text = ""
    for aim in (CLOSE, FAIR):
        results = [
            (name, each.within(aim))
            for case in cases
            for name, each in case.misses.items()
            if name in METHODS and METHODS[name][1] == aim
        ]
        failed = sorted({name for name, within in results if not within})
        names = "; ".join(name for name, (_, own) in METHODS.items() if own == aim)
        text += (
            f"Within {aim[0]} sd and {aim[1]:.0f} % ({names}): {sum(within for _, within in results)} of {len(results)} results"
        )
        text += f"; not always: {'; '.join(failed)}.\n" if failed else ".\n"
    wrong = [case.misses[UNCORRECTED].mean for case in cases]
    return text + f"The uncorrected posterior's mean is off by {min(wrong):.1f} to {max(wrong):.1f} sd.\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", action="store_true", help="write into docs/benchmarks, which is kept in the repository")
    parser.add_argument("--seeds", type=int, default=2, help="number of data sets")
    parser.add_argument("--workers", type=int, default=2, help="number of processes, with one thread each")
    options = parser.parse_args()
    out = ROOT / ("docs/benchmarks" if options.docs else "benchmarks/out")
    out.mkdir(parents=True, exist_ok=True)
    page = (
        f"Made by `python benchmarks/posterior_logistic.py`: {options.seeds} data sets of 200 examples, π = 0.05, half of each "
        "class. Each figure is the largest over the weights: its median over the data sets and, in brackets, its worst; sd: "
        "the posterior's standard deviation. The diagonal approximations have no aim, because they cannot represent "
        "correlated weights.\n\n"
    )
    settings = list(product((9, 1), (False, True)))  # the longer ones first
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        jobs = {each: [pool.submit(case_of, *each, seed) for seed in range(options.seeds)] for each in settings}
        found = {each: [job.result() for job in some] for each, some in jobs.items()}
    page += verdict(found) + "".join(section(*each, found[each]) for each in sorted(settings))
    (out / "posterior_logistic.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
