"""Measure the effect of omitting `start_at_prevalence`, for the default loss and logit adjustment.

Four problems, trained on equal classes and used at π = 0.01 and 0.001: the program of the README; images (8 × 8 noise, with or
without a faint spot) and a small convolutional net; dense labels (a disc in each image, a label per pixel); and an ensemble by
`rightloss.inference.ensemble`. Five seeds each; both losses see the same examples, initial weights and minibatches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import rightloss as rl

from .engine import Comparison
from .pages import paired, table

SEEDS, RATES = range(5), (0.01, 0.001)
LOSSES: dict[str, Any] = {"information gain": rl.InformationGainLoss, "logit-adjusted": rl.LogitAdjustedLoss}


class Cell(NamedTuple):
    problem: str
    rate: float
    start: bool
    loss: str
    seed: int


def cells(quick: bool) -> Iterator[Cell]:
    problems, seeds = (["README"], range(2)) if quick else (list(PROBLEMS), SEEDS)
    yield from (Cell(*each) for each in product(problems, RATES, (False, True), LOSSES, seeds))


def people(n: int) -> tuple[Tensor, Tensor]:
    """Draw from the two Gaussians of the README."""
    y = torch.arange(n) % 2
    return torch.randn(n, 5) + 0.7 * (2 * y[:, None] - 1), y


def images(n: int) -> tuple[Tensor, Tensor]:
    """Draw 8 × 8 noise, with a faint spot at a random place in every second image."""
    y = torch.arange(n) % 2
    row, column = torch.randint(2, 6, (2, n, 1, 1)).float()
    grid = torch.arange(8.0)
    blot = torch.exp(-((grid[:, None] - row) ** 2 + (grid - column) ** 2) / 3)
    return (torch.randn(n, 8, 8) + 1.5 * y[:, None, None] * blot)[:, None], y


def discs(n: int) -> tuple[Tensor, Tensor]:
    """Draw 16 × 16 noise, brighter on a disc that covers half of the image, with a label per pixel."""
    row, column = torch.randint(4, 12, (2, n, 1, 1)).float()
    grid = torch.arange(16.0)
    distance = (grid[:, None] - row) ** 2 + (grid - column) ** 2
    y = (distance <= distance.flatten(1).median(1).values[:, None, None]).long()
    return (torch.randn(n, 16, 16) + 1.2 * y)[:, None], y


def mlp() -> nn.Sequential:
    head = nn.Linear(16, 2)
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), head)


def convnet() -> nn.Sequential:
    head, pool = nn.Linear(16, 2), nn.AdaptiveMaxPool2d(1)
    first = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, nn.Conv2d(8, 16, 3), nn.ReLU(), pool, nn.Flatten(), head)


def dense_net() -> nn.Sequential:
    head = nn.Conv2d(8, 2, 1)
    return nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 8, 5, padding=2), nn.ReLU(), head)


# data, number of training and of test examples, net, batch size
PROBLEMS: dict[str, tuple[Callable[[int], tuple[Tensor, Tensor]], int, int, Callable[[], nn.Sequential], int]] = {
    "README": (people, 4000, 100_000, mlp, 250),
    "images": (images, 4000, 40_000, convnet, 250),
    "dense": (discs, 200, 400, dense_net, 16),
    "ensemble": (people, 4000, 100_000, mlp, 250),
}


def run(cell: Cell) -> list[dict[str, Any]]:
    """Return a trained model's mean prediction of class 1 and its expected log-likelihood, both at π."""
    torch.manual_seed(cell.seed)
    draw, train, test, net, batch_size = PROBLEMS[cell.problem]
    (x, y), (x_new, y_new) = draw(train), draw(test)
    prevalence = rl.Prevalence.from_labels(y, cell.rate)
    model = net()
    if cell.start:
        rl.start_at_prevalence(model[-1], prevalence)
    if cell.problem == "ensemble":
        log_probs = ensemble(model, prevalence, cell, (x, y), x_new)
    else:
        trained(model, LOSSES[cell.loss](prevalence), x, y, batch_size, end=1.0 if cell.problem == "README" else 0.0)
        with torch.no_grad():
            log_probs = torch.log_softmax(model(x_new), 1)
    flat, y_new = log_probs.double().movedim(1, -1).reshape(-1, 2), y_new.flatten()
    weights = (torch.tensor(prevalence.population) * len(y_new) / torch.bincount(y_new))[y_new]
    own = flat.gather(1, y_new[:, None]).squeeze(1)
    return [{"mean": float((weights * flat[:, 1].exp()).mean()), "log_likelihood": float((weights * own).mean())}]


def trained(model: nn.Module, criterion: nn.Module, x: Tensor, y: Tensor, batch_size: int, end: float) -> None:
    """Train; at a constant step size (`end` 1) an image net's mean prediction depends on the last few minibatches."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, end, total_iters=300)
    for _ in range(300):
        rows = torch.randint(len(x), (batch_size,))
        optimizer.zero_grad()
        criterion(model(x[rows]), y[rows]).backward()
        optimizer.step()
        schedule.step()


def ensemble(model: nn.Module, prevalence: rl.Prevalence, cell: Cell, data: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    """Return the log-probabilities of an ensemble of five networks with different initial weights."""
    from rightloss import inference

    target = inference.log_posterior(model, prevalence, loss=LOSSES[cell.loss])
    posterior = inference.ensemble(target, data, members=5, steps=300, batch_size=250, lr=0.01, seed=cell.seed, progress=False)
    return torch.as_tensor(posterior.predict(x).log_probs)


def tables(rows: pd.DataFrame) -> dict[str, str]:
    lines = []
    for (problem, rate, start), part in rows.groupby(["problem", "rate", "start"], sort=False):
        gain, adjusted = (part[part["loss"] == loss].set_index("seed") for loss in LOSSES)
        mean, error, _ = paired(gain["log_likelihood"] - adjusted["log_likelihood"])
        factors = [np.maximum(each["mean"] / rate, rate / each["mean"]) for each in (gain, adjusted)]
        worse = int(((factors[0] > 1.5) & (factors[1] <= 1.5)).sum())
        means = [" ".join(f"{value:.2g}" for value in each["mean"]) for each in (gain, adjusted)]
        against = [f"{mean:+.6f} ± {error:.6f}", f"{mean / error:+.1f}" if error else "0"]
        lines.append([problem, f"{rate:g}", "yes" if start else "no", *means, f"{worse} of {len(gain)}", *against])
    header = ["problem", "π", "start", "mean prediction, by seed: information gain", "logit-adjusted",
              "beyond a factor 1.5 of π where logit adjustment is within", "log-likelihood against it ± s.e.",
              "in s.e."]  # fmt: skip
    return {"means": table(header, lines), "count": str(rows["seed"].nunique())}


COMPARISON = Comparison("forgotten_start", cells, run, tables)
