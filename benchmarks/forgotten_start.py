"""Measure the effect of omitting `start_at_prevalence`, for the default loss and logit adjustment.

Four problems, trained on equal classes and used at π = 0.01 and 0.001: the program of the README; images (8 × 8 noise, with or
without a faint spot) and a small convolutional net; dense labels (a disc in each image, a label per pixel); and an ensemble by
`rightloss.inference.ensemble`. Five seeds each; both losses see the same examples, initial weights and minibatches. Writes
forgotten_start.md: a row per problem, π and start.

    python benchmarks/forgotten_start.py --docs
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import Any, NamedTuple

import torch
from report import folder, table
from torch import Tensor, nn

import rightloss as rl
from rightloss import inference

SEEDS = range(5)
RATES = (0.01, 0.001)
LOSSES: dict[str, Any] = {"information gain": rl.InformationGainLoss, "logit-adjusted": rl.LogitAdjustedLoss}


class Run(NamedTuple):
    """One training."""

    problem: str
    rate: float
    start: bool
    loss: str
    seed: int


class Found(NamedTuple):
    """A trained model's mean prediction of class 1 and its expected log-likelihood, both at π."""

    mean: float
    log_likelihood: float


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


def mlp() -> tuple[nn.Module, nn.Module]:
    head = nn.Linear(16, 2)
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), head), head


def convnet() -> tuple[nn.Module, nn.Module]:
    head = nn.Linear(16, 2)
    layers = [
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
    ]
    return nn.Sequential(*layers, nn.Flatten(), head), head


def dense_net() -> tuple[nn.Module, nn.Module]:
    head = nn.Conv2d(8, 2, 1)
    return nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 8, 5, padding=2), nn.ReLU(), head), head


# data, number of training and of test examples, net, batch size
PROBLEMS: dict[str, tuple[Callable[[int], tuple[Tensor, Tensor]], int, int, Callable[[], Any], int]] = {
    "README": (people, 4000, 100_000, mlp, 250),
    "images": (images, 4000, 40_000, convnet, 250),
    "dense": (discs, 200, 400, dense_net, 16),
    "ensemble": (people, 4000, 100_000, mlp, 250),
}


def one(run: Run) -> Found:
    torch.set_num_threads(1)
    torch.manual_seed(run.seed)
    draw, train, test, net, batch_size = PROBLEMS[run.problem]
    x, y = draw(train)
    x_new, y_new = draw(test)
    prevalence = rl.Prevalence.from_labels(y, run.rate)
    model, head = net()
    if run.start:
        rl.start_at_prevalence(head, prevalence)
    if run.problem == "ensemble":
        return worth(ensemble(model, prevalence, run, (x, y), x_new), y_new, prevalence)
    criterion = LOSSES[run.loss](prevalence)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    # at a constant step size, an image net's mean prediction depends on the last few minibatches
    end = 1.0 if run.problem == "README" else 0.0
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, end, total_iters=300)
    for _ in range(300):
        rows = torch.randint(train, (batch_size,))
        optimizer.zero_grad()
        criterion(model(x[rows]), y[rows]).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return worth(torch.log_softmax(model(x_new), 1), y_new, prevalence)


def ensemble(model: nn.Module, prevalence: rl.Prevalence, run: Run, data: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    """Return the log-probabilities of an ensemble of five networks with different initial weights."""
    target = inference.log_posterior(model, prevalence, loss=LOSSES[run.loss])
    posterior = inference.ensemble(target, data, members=5, steps=300, batch_size=250, lr=0.01, seed=run.seed, progress=False)
    return torch.as_tensor(posterior.predict(x).log_probs)


def worth(log_probs: Tensor, y: Tensor, prevalence: rl.Prevalence) -> Found:
    table = log_probs.double().movedim(1, -1).flatten(0, -2) if log_probs.ndim > 2 else log_probs.double()
    y = y.flatten()
    weights = (torch.tensor(prevalence.population) * len(y) / torch.bincount(y))[y]
    own = table.gather(1, y[:, None]).squeeze(1)
    return Found(float((weights * table[:, 1].exp()).mean()), float((weights * own).mean()))


def line(problem: str, rate: float, start: bool, found: dict[Run, Found]) -> list[str]:
    gain, adjusted = ([found[Run(problem, rate, start, loss, seed)] for seed in SEEDS] for loss in LOSSES)
    difference = [a.log_likelihood - b.log_likelihood for a, b in zip(gain, adjusted, strict=True)]
    error = statistics.stdev(difference) / math.sqrt(len(difference))
    mean = statistics.fmean(difference)
    factors = [[max(each.mean / rate, rate / each.mean) for each in some] for some in (gain, adjusted)]
    worse = sum(a > 1.5 >= b for a, b in zip(*factors, strict=True))
    means = [" ".join(f"{each.mean:.2g}" for each in some) for some in (gain, adjusted)]
    compared = f"{mean:+.6f} ± {error:.6f}", f"{mean / error:+.1f}" if error else "0"
    return [problem, f"{rate:g}", "yes" if start else "no", *means, f"{worse} of {len(SEEDS)}", *compared]


def main() -> None:
    out = folder()
    runs = [Run(*each) for each in product(PROBLEMS, RATES, (False, True), LOSSES, SEEDS)]
    with ProcessPoolExecutor(2) as pool:
        found = dict(zip(runs, pool.map(one, runs), strict=True))
    header = ["problem", "π", "start", "mean prediction, by seed: information gain", "logit-adjusted"]
    header += ["beyond a factor 1.5 of π where logit adjustment is within", "log-likelihood against it ± s.e.", "in s.e."]
    rows = [line(problem, rate, start, found) for problem, rate, start in product(PROBLEMS, RATES, (False, True))]
    page = f"Made by `python benchmarks/forgotten_start.py`; {len(SEEDS)} seeds.\n\n{table(header, rows)}\n"
    (out / "forgotten_start.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
