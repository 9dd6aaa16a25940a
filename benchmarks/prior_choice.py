"""Compare the prior's scale that maximises Laplace's evidence with the best of a grid of ten scales on held-out rows.

Logistic regression by the information gain and Laplace's posterior, five folds (LIDC by patient), features standardised on the
training part. The prevalence is that of the sample. Held-out log-likelihood per row of the posterior's mean prediction, with
two standard errors: that of the best log-likelihood, and the much smaller one of the difference by row from it. Processor time
of one thread, in turn: the choice, and ten fits of the grid from the model's own weights. Writes prior_choice.md: a row for
each set.
"""

from __future__ import annotations

import math
import os
import time

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from data_sets import DataSet, load
from report import folder, table
from sklearn.model_selection import GroupKFold, StratifiedKFold
from torch import Tensor, nn

from rightloss import Bernoulli, Prevalence, start_at_prevalence
from rightloss.inference import Posterior, laplace, layer_prior, log_posterior, optimize_prior

GRID, FOLDS, ROWS = np.geomspace(0.03, 100.0, 10), 5, 3000


def synthetic() -> DataSet:
    """Return 300 rows of 40 features, of which 5 say something."""
    stream = np.random.default_rng(0)
    x = stream.standard_normal((300, 40))
    y = stream.random(300) < 1 / (1 + np.exp(1.0 - x[:, :5].sum(1)))
    return DataSet(x, y.astype(np.int64))


def subset(name: str) -> DataSet:
    """Return the set, or a sample of its rows."""
    whole = load(name)
    if len(whole.y) <= ROWS:
        return whole
    rows = np.random.default_rng(0).permutation(len(whole.y))[:ROWS]
    return DataSet(whole.x[rows], whole.y[rows])


def tensors(data: DataSet, train: np.ndarray, test: np.ndarray) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    mean = np.nanmean(data.x[train], 0)
    x = np.where(np.isnan(data.x), mean, data.x) - mean
    x = torch.tensor(x / np.maximum(x[train].std(0), 1e-9)).clamp(-10, 10)
    y = torch.tensor(data.y)
    return (x[train], y[train]), (x[test], y[test])


def held_out(posterior: Posterior, data: tuple[Tensor, Tensor]) -> Tensor:
    x, y = data
    return posterior.predict(x, 200, torch.Generator().manual_seed(0)).log_probs.gather(1, y[:, None])[:, 0]


def fold(data: DataSet, train: np.ndarray, test: np.ndarray) -> tuple[float, Tensor, Tensor, float, float]:
    """Return the chosen scale, log-likelihoods of the choice (n,) and of the grid (10, n), and seconds of both."""
    fitted, kept = tensors(data, train, test)
    prevalence = Prevalence.from_labels(fitted[1], float(fitted[1].double().mean()))
    model = nn.Linear(fitted[0].shape[1], 1).double()
    nn.init.zeros_(model.weight)
    start_at_prevalence(model, prevalence, Bernoulli())
    start = time.process_time()
    chosen = optimize_prior(log_posterior(model, prevalence, Bernoulli()), fitted)
    between = time.process_time()
    priors = [layer_prior(model, float(scale)) for scale in GRID]
    grid = [laplace(log_posterior(model, prevalence, Bernoulli(), prior=prior), fitted, mode="search") for prior in priors]
    end = time.process_time()
    scores = torch.stack([held_out(each, kept) for each in grid])
    assert isinstance(chosen.scale, float)
    return chosen.scale, held_out(chosen.posterior, kept), scores, between - start, end - between


def row(name: str, data: DataSet) -> list[str]:
    folds = GroupKFold(FOLDS) if data.groups is not None else StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    parts = [fold(data, *rows) for rows in folds.split(data.x, data.y, data.groups)]
    scales, chosen, grid = [part[0] for part in parts], torch.cat([p[1] for p in parts]), torch.cat([p[2] for p in parts], 1)
    best = int(grid.mean(1).argmax())
    behind = grid[best] - chosen
    error = float(behind.std()) / math.sqrt(len(behind))
    ours, theirs = sum(p[3] for p in parts), sum(p[4] for p in parts)
    print(name, scales, GRID[best], grid.mean(1).tolist(), float(chosen.mean()), error, ours, theirs, flush=True)
    return [
        name,
        f"{len(data.y):,} × {data.x.shape[1]}",
        f"{np.median(scales):.2g} ({min(scales):.2g} to {max(scales):.2g})",
        f"{GRID[best]:.2g}",
        f"{float(chosen.mean()):.4f}",
        f"{float(grid[best].mean()):.4f} ± {float(grid[best].std()) / math.sqrt(len(behind)):.4f}",
        f"{float(behind.mean()):+.5f} ± {error:.5f}",
        f"{float(behind.mean() / grid[best].std()) * math.sqrt(len(behind)):.2f} / {float(behind.mean()) / error:.1f}",
        f"{float(grid.mean(1).min()):.3f}",
        f"{ours / FOLDS:.2f} / {theirs / FOLDS:.2f}",
    ]


def main() -> None:
    out = folder()
    torch.set_num_threads(1)
    sets = {"LIDC": load("LIDC"), **{name: subset(name) for name in ("breast cancer", "Default", "Caravan")}}
    rows = [row(name, data) for name, data in {**sets, "synthetic": synthetic()}.items()]
    words = (
        "Made by `python benchmarks/prior_choice.py`: logistic regression, Laplace's posterior, five folds; log-likelihood per "
        f"held-out row. The grid has ten scales from {GRID[0]:g} to {GRID[-1]:g}, and its best is found with the held-out rows "
        f"themselves. Default and Caravan: {ROWS:,} of their rows. Seconds are processor time of a fold: the choice, and "
        "the ten fits of the grid on the same training part.\n\n"
    )
    head = [
        "set",
        "rows × features",
        "chosen scale",
        "grid's best",
        "chosen",
        "best",
        "behind",
        "in s.e. of best / of difference",
        "grid's worst",
    ]
    (out / "prior_choice.md").write_text(words + table([*head, "seconds, choice / grid"], rows))


if __name__ == "__main__":
    main()
