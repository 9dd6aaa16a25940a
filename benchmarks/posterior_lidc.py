"""Compare posteriors on LIDC-IDRI's features: methods × likelihoods × prevalences, ten folds by patient, with intervals.

    python benchmarks/posterior_lidc.py            # everything; finished fits are read from benchmarks/out
    python benchmarks/posterior_lidc.py --folds 2  # a quick look

An MLP with one hidden layer predicts malignancy from the annotations' columns. Nine folds are the training data, in their
natural mix; the tenth is predicted. Nothing is tuned: all methods have the same prior, the same number of steps and step size
where they train, and start at the prevalence. Figures are computed at π on all out-of-fold predictions together; intervals
resample patients. Writes posterior_lidc.md: a summary, and for each prevalence a table of figures and one of paired
differences.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from report import ROOT, table
from rich.progress import track
from torch import Tensor, nn

from rightloss import Bernoulli, LogitAdjustedLoss, Prevalence, WeightedLoss, predictive, start_at_prevalence
from rightloss.atomic_files import whole_file
from rightloss.inference import (
    Posterior,
    ensemble,
    expectation_propagation,
    laplace,
    log_posterior,
    map_estimate,
    sghmc,
    variational,
)
from rightloss.lidc import NoduleSet, binary_set, folds
from rightloss.metrics import evaluate

FOLDS = 10
PREVALENCES = (0.3, 0.01, 0.001)
HIDDEN, STEPS, BATCH, RATE = 32, 1000, 128, 1e-2
RESAMPLES = 2000

LIKELIHOODS: dict[str, Callable[[Prevalence], dict[str, Any]]] = {
    "information gain, r = ρ": lambda prevalence: {},
    "information gain, r = π": lambda prevalence: {"reference": prevalence.population},
    "weighted": lambda prevalence: {"loss": WeightedLoss},
    "logit-adjusted": lambda prevalence: {"loss": LogitAdjustedLoss},
}
OURS, RIVALS = tuple(LIKELIHOODS)[:2], tuple(LIKELIHOODS)[2:]

TRAINED = {"steps": STEPS, "batch_size": BATCH, "lr": RATE}
METHODS: dict[str, tuple[Callable[..., Posterior], dict[str, Any]]] = {
    "MAP": (map_estimate, TRAINED),
    "ensemble of 10": (ensemble, {**TRAINED, "members": 10}),
    "Laplace, full": (laplace, TRAINED),
    "VI, mean field": (variational, TRAINED),
    "SGHMC, 4 chains": (sghmc, {"steps": 3000, "batch_size": BATCH}),
    "EP, last layer": (expectation_propagation, {}),
}


class Cell(NamedTuple):
    """One fit: a fold, a prevalence, a method and a likelihood."""

    fold: int
    population: float
    method: str
    likelihood: str

    @property
    def path(self) -> Path:
        """The file of this fit, named by everything that can change its predictions, including the library's code."""
        key = hashlib.sha256(repr((tuple(self), HIDDEN, METHODS[self.method][1], _code())).encode()).hexdigest()[:16]
        return ROOT / "benchmarks" / "out" / "posterior_lidc" / f"{key}.npz"


def run(cell: Cell) -> Path:
    """Fit on nine folds, predict the tenth and save the result; a pure function of the cell."""
    if cell.path.exists():
        return cell.path
    torch.set_num_threads(1)
    data = _nodules()
    train, test = folds(data.labels, data.patients, FOLDS)[cell.fold]
    x, y = data.standardised(train), data.labels
    prevalence = Prevalence.from_labels(
        y[train], cell.population, evidence=0.0
    )  # the information gain alone; with 1 it is logit adjustment
    torch.manual_seed(cell.fold)
    model = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, 1))
    start_at_prevalence(model[-1], prevalence, Bernoulli())
    target = log_posterior(model, prevalence, Bernoulli(), **LIKELIHOODS[cell.likelihood](prevalence))
    start = time.process_time()
    fit, options = METHODS[cell.method]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about chains that disagree: R̂ is in the table
        posterior = fit(target, (x[train], y[train]), seed=cell.fold, progress=False, **options)
    seconds = time.process_time() - start
    r_hat = posterior.record.get("predictions", {}).get("r_hat", np.nan)
    with whole_file(cell.path) as file:
        np.savez(file, rows=test.numpy(), log_probs=predictive(posterior, x[test]).numpy(), seconds=seconds, r_hat=r_hat)
    return cell.path


def together(population: float, method: str, likelihood: str, parts: range) -> tuple[Tensor, Tensor, str]:
    """Return rows and log-probabilities of all folds, and a fit's seconds, with the largest R̂ of predictions if any."""
    found = [np.load(Cell(fold, population, method, likelihood).path, allow_pickle=False) for fold in parts]
    rows, log_probs = (torch.from_numpy(np.concatenate([each[name] for each in found])) for name in ("rows", "log_probs"))
    seconds, r_hat = (np.array([float(each[name]) for each in found]) for name in ("seconds", "r_hat"))
    worst = "" if np.isnan(r_hat).any() else f", R̂ {r_hat.max():.2f}"
    return rows, log_probs.double(), f"{np.median(seconds):.1f}{worst}"


def report(parts: range) -> str:
    """Return a table for each prevalence, and the information gain's difference to its rivals under each method."""
    data, text = _nodules(), ""
    assert data.patients is not None
    verdicts = []
    for population in PREVALENCES:
        rows, gains = [], []
        for method in METHODS:
            tables = {}
            for likelihood in LIKELIHOODS:
                where, log_probs, seconds = together(population, method, likelihood, parts)
                tables[likelihood] = log_probs
                found = evaluate(log_probs, data.labels[where], population, groups=data.patients[where.numpy()])
                figures = (found.expected_log_likelihood, found.auc, found.calibration_error)
                rows.append([method, likelihood, *(_figure(each) for each in figures), seconds])
            for ours, rival in product(OURS, RIVALS):
                difference = _difference(data, where, tables[ours], tables[rival], population)
                gains.append([method, ours, rival, difference.text])
                verdicts.append((population, ours, rival, difference))
        guess = population * np.log(population) + (1 - population) * np.log(1 - population)
        header = [
            "method",
            "likelihood",
            "expected log-likelihood [95 %]",
            "AUC [95 %]",
            "calibration error [95 %]",
            "processor s/fit",
        ]
        text += f"### At π = {population:g}\n\nAlways predicting π has an expected log-likelihood of {guess:.5f} nats.\n\n"
        text += (
            table(header, rows)
            + "\nExpected log-likelihood, ours minus the rival's, in nats, paired; * where the interval excludes 0:\n\n"
        )
        text += table(["method", "ours", "rival", "difference [95 %]"], gains) + "\n"
    return _opening(data, len(parts)) + _verdict(verdicts) + text


def _opening(data: NoduleSet, parts: int) -> str:
    return (
        f"Made by `python benchmarks/posterior_lidc.py`: {data}, {parts} of {FOLDS} folds by patient. Expected log-likelihoods "
        "are in nats, at π; intervals resample patients. Nothing is tuned.\n\n"
    )


def _verdict(found: list[tuple[float, str, str, Difference]]) -> str:
    """Count the methods under which the information gain is better than a rival, or worse, beyond the interval."""
    rows = []
    for population, ours, rival in product(PREVALENCES, OURS, RIVALS):
        those = [each for *where, each in found if where == [population, ours, rival]]
        better, worse = sum(each.low > 0 for each in those), sum(each.high < 0 for each in those)
        rows.append([f"{population:g}", ours, rival, str(better), str(worse), str(len(those) - better - worse)])
    header = ["π", "ours", "rival", "methods under which ours is better", "worse", "undecided at 95 %"]
    return "Expected log-likelihoods, ours against a rival's:\n\n" + table(header, rows) + "\n"


class Difference(NamedTuple):
    """A paired difference and its interval."""

    value: float
    low: float
    high: float

    @property
    def text(self) -> str:
        return f"{self.value:+.6f} [{self.low:+.6f}, {self.high:+.6f}]{' *' if self.low * self.high > 0 else ''}"


def _figure(found: Any) -> str:
    return f"{found.value:.5f} [{found.low:.5f}, {found.high:.5f}]"


def _difference(data: NoduleSet, where: Tensor, one: Tensor, other: Tensor, population: float) -> Difference:
    """Return the difference of the expected log-likelihoods at π, with a 95 % interval from resampled patients."""
    y = data.labels[where]
    assert data.patients is not None
    gain = (one - other).gather(1, y[:, None]).squeeze(1).numpy()
    people, own = np.unique(data.patients[where.numpy()], return_inverse=True)
    sums = np.stack(
        [np.bincount(own, weights * (y == label).numpy(), len(people)) for label in (0, 1) for weights in (gain, 1)]
    )
    drawn = np.random.default_rng(0).multinomial(len(people), np.full(len(people), 1 / len(people)), RESAMPLES)
    values = [_at(population, totals) for totals in (sums.sum(1)[:, None], sums @ drawn.T)]
    low, high = np.quantile(values[1], [0.025, 0.975])
    return Difference(float(values[0][0]), float(low), float(high))


def _at(population: float, sums: np.ndarray) -> np.ndarray:
    benign, malignant = sums[0] / sums[1], sums[2] / sums[3]
    return (1 - population) * benign + population * malignant


@cache
def _nodules() -> NoduleSet:
    return binary_set()


@cache
def _code() -> str:
    """Return a digest of the library's source."""
    files = sorted((ROOT / "src" / "rightloss").rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folds", type=int, default=FOLDS, help="run only the first FOLDS of the ten")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="number of processes, with one thread each")
    parser.add_argument("--docs", action="store_true", help="write into docs/benchmarks, which is kept in the repository")
    chosen = parser.parse_args()
    folder = ROOT / ("docs/benchmarks" if chosen.docs else "benchmarks/out")
    (ROOT / "benchmarks" / "out" / "posterior_lidc").mkdir(parents=True, exist_ok=True)
    cells = [Cell(*each) for each in product(range(chosen.folds), PREVALENCES, METHODS, LIKELIHOODS)]
    with ProcessPoolExecutor(chosen.workers, get_context("spawn")) as pool:
        for _ in track(pool.map(run, cells), "fits", total=len(cells)):
            pass
    text = report(range(chosen.folds))
    print(text)
    (folder / "posterior_lidc.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
