"""Compare the prior's scale that maximises Laplace's evidence with the best of a grid of ten scales on held-out rows.

Logistic regression by the information gain and Laplace's posterior, five folds (LIDC by patient), features standardised on the
training part. The prevalence is that of the sample. Held-out log-likelihood per row of the posterior's mean prediction, with
two standard errors: that of the best log-likelihood, and the much smaller one of the difference by row from it. Processor time
of one thread: the choice, and ten fits of the grid from the model's own weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import GroupKFold, StratifiedKFold
from torch import Tensor, nn

from rightloss import Bernoulli, Prevalence, start_at_prevalence
from rightloss.inference import Posterior, laplace, layer_prior, log_posterior, optimize_prior

from .data_sets import DataSet, load
from .engine import Comparison
from .pages import table

GRID, FOLDS, ROWS = np.geomspace(0.03, 100.0, 10), 5, 3000
NAMES = [f"grid_{number}" for number in range(len(GRID))]


class Cell(NamedTuple):
    set: str
    fold: int


def cells(quick: bool) -> Iterator[Cell]:
    sets = ("synthetic",) if quick else ("LIDC", "breast cancer", "Default", "Caravan", "synthetic")
    yield from (Cell(name, fold) for name in sets for fold in range(FOLDS))


def data_of(name: str) -> DataSet:
    """Return the set, or a sample of its rows; "synthetic" has 300 rows of 40 features, of which 5 say something."""
    if name == "synthetic":
        random = np.random.default_rng(0)
        x = random.standard_normal((300, 40))
        y = random.random(300) < 1 / (1 + np.exp(1.0 - x[:, :5].sum(1)))
        return DataSet(x, y.astype(np.int64))
    whole = load(name)
    if len(whole.y) <= ROWS:
        return whole
    rows = np.random.default_rng(0).permutation(len(whole.y))[:ROWS]
    return DataSet(whole.x[rows], whole.y[rows])


def run(cell: Cell) -> list[dict[str, Any]]:
    """Return of each held-out row the log-likelihoods of the choice and of the grid; the scale and the seconds of both."""
    torch.set_num_threads(1)
    data = data_of(cell.set)
    folds = GroupKFold(FOLDS) if data.groups is not None else StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    train, test = list(folds.split(data.x, data.y, data.groups))[cell.fold]
    mean = np.nanmean(data.x[train], 0)
    x, y = torch.tensor(np.where(np.isnan(data.x), mean, data.x) - mean), torch.tensor(data.y)
    x = (x / np.maximum(x[train].numpy().std(0), 1e-9)).clamp(-10, 10)
    fitted, kept = (x[train], y[train]), (x[test], y[test])
    prevalence = Prevalence.from_labels(fitted[1], float(fitted[1].double().mean()))
    model = nn.Linear(x.shape[1], 1).double()
    nn.init.zeros_(model.weight)
    start_at_prevalence(model, prevalence, Bernoulli())
    start = time.process_time()
    chosen = optimize_prior(log_posterior(model, prevalence, Bernoulli()), fitted)
    between = time.process_time()
    priors = [layer_prior(model, float(scale)) for scale in GRID]
    grid = [laplace(log_posterior(model, prevalence, Bernoulli(), prior=prior), fitted, mode="search") for prior in priors]
    seconds = {"choice_seconds": between - start, "grid_seconds": time.process_time() - between}
    scores = pd.DataFrame({name: held_out(each, kept) for name, each in zip(NAMES, grid, strict=True)})
    about = {"scale": float(chosen.scale), "features": x.shape[1], **seconds}  # type: ignore[arg-type]
    return scores.assign(chosen=held_out(chosen.posterior, kept), **about).to_dict("records")  # type: ignore[return-value]


def held_out(posterior: Posterior, data: tuple[Tensor, Tensor]) -> np.ndarray:
    x, y = data
    log_probs = torch.as_tensor(posterior.predict(x, 200, torch.Generator().manual_seed(0)).log_probs)
    return log_probs.gather(1, y[:, None])[:, 0].numpy()


def tables(rows: pd.DataFrame) -> dict[str, str]:
    lines = []
    for name, part in rows.groupby("set", sort=False):
        folds, means = part.drop_duplicates("fold"), part[NAMES].mean()
        best, behind = part[means.idxmax()], part[means.idxmax()] - part["chosen"]
        root = math.sqrt(len(part))
        lines.append([
            str(name),
            f"{len(part):,} × {part['features'].iloc[0]}",
            f"{folds['scale'].median():.2g} ({folds['scale'].min():.2g} to {folds['scale'].max():.2g})",
            f"{GRID[int(means.to_numpy().argmax())]:.2g}",
            f"{part['chosen'].mean():.4f}",
            f"{best.mean():.4f} ± {best.std() / root:.4f}",
            f"{behind.mean():+.5f} ± {behind.std() / root:.5f}",
            f"{behind.mean() / best.std() * root:.2f} / {behind.mean() / behind.std() * root:.1f}",
            f"{means.min():.3f}",
            f"{folds['choice_seconds'].mean():.2f} / {folds['grid_seconds'].mean():.2f}",
        ])  # fmt: skip
    head = ["set", "rows × features", "chosen scale", "grid's best", "chosen", "best", "behind"]
    head += ["in s.e. of best / of difference", "grid's worst", "seconds, choice / grid"]
    return {"table": table(head, lines)}


COMPARISON = Comparison("prior_choice", cells, run, tables)
