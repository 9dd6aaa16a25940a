"""Measure how often the losses warn about a mistake, how often they warn without one, and the cost of monitoring.

Each kind of mistake is made in 20 trainings. There are 200 correct trainings, with every loss at several prevalences and
training mixes. A training is 600 steps of a small net. Then there are 200 correct trainings in each of five designs where rows
are correlated or a class is rare: 4,000 batches, with predictions that follow the labels. The cost is that of a step with and
without the monitor at 256 × 100, in turn. Writes warnings_of_losses.md: a row per mistake or design, and the cost.

    python benchmarks/warnings_of_losses.py --docs
"""

from __future__ import annotations

import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import torch
from report import folder, table
from torch import Tensor, nn

import rightloss as rl
from rightloss.losses.batch import class_batch

STEPS, BATCH, EXAMPLES = 600, 64, 4000
SEEDS, BATCHES = 200, 4000  # of the correlated designs
LOSSES: dict[str, Callable[[rl.Prevalence], Any]] = {
    "InformationGainLoss": rl.InformationGainLoss,
    "LogitAdjustedLoss": rl.LogitAdjustedLoss,
    "WeightedLoss": rl.WeightedLoss,
    "LogLikelihoodLoss": rl.LogLikelihoodLoss,
}


class Run(NamedTuple):
    """One training."""

    loss: str
    population: float
    sampling: float  # as declared
    share: float  # of class 1 in training
    seed: int
    evidence: float = 1.0
    last: str = ""
    start: bool = False


def kinds(run: Run) -> set[str]:
    """Return the kinds of mistakes that the loss warned about."""
    torch.set_num_threads(1)
    torch.manual_seed(run.seed)
    y = (torch.rand(EXAMPLES) < run.share).long()
    x = torch.randn(EXAMPLES, 5) + 0.7 * (2 * y[:, None] - 1)
    prevalence = rl.Prevalence.binary(run.population, run.sampling, run.evidence)
    criterion = LOSSES[run.loss](prevalence)
    last = [{"softmax": nn.Softmax(1)}[run.last]] if run.last else []
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2), *last)
    if run.start:
        rl.start_at_prevalence(model[2], prevalence)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(STEPS):
            rows = torch.randint(EXAMPLES, (BATCH,))
            optimizer.zero_grad()
            criterion(model(x[rows]), y[rows]).backward()
            optimizer.step()
    words = {"mix `sampling`": "mix", "mean prediction": "mean", "a softmax": "logits"}
    return {kind for each in caught for word, kind in words.items() if word in str(each.message)}


def mistakes() -> dict[str, tuple[str, list[Run]]]:
    """Return, by mistake, the warning it should cause and the trainings."""
    gain, seeds = "InformationGainLoss", range(20)
    return {
        "no positive at all, `sampling=0.5`": ("mix", [Run(gain, 0.001, 0.5, 0.0, seed) for seed in seeds]),
        "natural mix (0.1) declared as balanced": ("mix", [Run(gain, 0.001, 0.5, 0.1, seed) for seed in seeds]),
        "balanced mix declared as 0.3": ("mix", [Run(gain, 0.001, 0.3, 0.5, seed) for seed in seeds]),
        "`evidence=0`, no start, π = 0.001": ("mean", [Run(gain, 0.001, 0.5, 0.5, seed, evidence=0.0) for seed in seeds]),
        "softmax outputs as logits": ("logits", [Run(gain, 0.001, 0.5, 0.5, seed, last="softmax") for seed in seeds]),
    }


def right() -> Iterator[Run]:
    """Yield 200 trainings without a mistake."""
    for seed in range(100, 105):
        for loss in LOSSES:
            for population in (0.3, 0.001):
                for sampling, start in ((0.5, False), (0.5, True), (0.2, False), (0.2, True), (0.02, True)):
                    yield Run(loss, population, sampling, sampling, seed, start=start)


def images(number: int, share: float, draw: random.Random) -> Tensor:
    """Return masks 32 × 32 of a batch, a `share` of them with a lesion, which covers 1 to 16 of the 32 lines."""
    lines = [draw.randint(1, 16) if draw.random() < share else 0 for _ in range(number)]
    return (torch.arange(32)[:, None] < torch.tensor(lines)[:, None, None]).long().expand(-1, 32, 32)


def patients(number: int, rows: int, rate: float, draw: random.Random) -> Tensor:
    """Return labels of a batch of patients with several rows each, all of one class."""
    return torch.tensor([int(draw.random() < rate) for _ in range(number)]).repeat_interleave(rows)


def slices(part: int, draw: random.Random) -> Tensor:
    """Return masks 16 × 16 of 8 slices, one of four parts of a volume; half of the volumes have a lesion in 16 slices."""
    first = draw.randint(0, 16) if draw.random() < 0.5 else 32
    numbers = torch.arange(8)[:, None, None] + 8 * part
    return ((first <= numbers) & (numbers < first + 16) & (torch.arange(16)[:, None] < 4)).long().expand(8, 16, 16)


# by design: the rate of class 1, batches in a cluster, and labels from the number of the batch in its cluster and a generator
DESIGNS: dict[str, tuple[float, int, Callable[[int, random.Random], Tensor]]] = {
    "one image a batch, lesions in 5 % of them": (0.05 * 8.5 / 32, 1, lambda _, draw: images(1, 0.05, draw)),
    "four images a batch, lesions in 30 % of them": (0.3 * 8.5 / 32, 1, lambda _, draw: images(4, 0.3, draw)),
    "four patients a batch with 10 rows each, ρ = 0.1": (0.1, 1, lambda _, draw: patients(4, 10, 0.1, draw)),
    "volumes of 32 slices, 8 in a batch, in sequence": (0.5 * 0.5 * 0.25, 4, slices),
    "batches of 32 rows, ρ = 0.01": (0.01, 1, lambda _, draw: patients(32, 1, 0.01, draw)),
}


def alarms(design: str, seed: int) -> bool:
    """Return whether the loss warns in a correct training of this design. Only batches that the monitor checks are drawn."""
    torch.set_num_threads(1)
    rate, cluster, labels = DESIGNS[design]
    criterion = rl.InformationGainLoss(rl.Prevalence.binary(0.001, rate))
    monitor = criterion.monitor
    assert monitor is not None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in range(BATCHES):
            if monitor.due():
                y = labels(batch % cluster, random.Random(f"{seed} {batch // cluster}"))
                logits = 10 * torch.stack([0.5 - y, y - 0.5], 1)
                checked = class_batch(logits, y, criterion.likelihood, 2, None, "raise")
                monitor.look(checked, criterion.terms(logits), criterion.likelihood)
    return bool(caught)


def step_seconds(watched: bool, steps: int = 1000) -> float:
    """Return seconds per step of a linear model with 100 classes, in batches of 256."""
    torch.manual_seed(0)
    model, y = nn.Linear(64, 100), torch.randint(100, (256,))
    x = torch.randn(256, 64)
    criterion = rl.InformationGainLoss(rl.Prevalence.from_labels(torch.arange(100), [0.01] * 100))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    if not watched:
        criterion.monitor = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rl.PrevalenceWarning)
        begin = time.process_time()
        for _ in range(steps):
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        return (time.process_time() - begin) / steps


def cost() -> str:
    torch.set_num_threads(1)
    step_seconds(True, 50)
    pairs = [(step_seconds(True), step_seconds(False)) for _ in range(15)]
    ratios = sorted(watched / plain - 1 for watched, plain in pairs)
    quarter, micro = len(ratios) // 4, statistics.median(plain for _, plain in pairs) * 1e6
    half = f"interquartile range {ratios[quarter]:+.1%} to {ratios[-1 - quarter]:+.1%}"
    return (
        f"Monitoring adds {statistics.median(ratios):+.1%} to a step of 256 × 100, which takes {micro:.0f} µs of processor "
        f"time (linear model of 64 inputs, the first 1,000 steps, one thread; median of {len(ratios)} turns, {half})."
    )


def main() -> None:
    out = folder()
    wrong, fine = mistakes(), list(right())
    rows = []
    with ProcessPoolExecutor(2) as pool:
        for name, (kind, runs) in wrong.items():
            found = list(pool.map(kinds, runs))
            rows.append([name, kind, f"{sum(kind in each for each in found)} of {len(runs)}"])
        found = list(pool.map(kinds, fine))
        rows.append(["none: correct trainings, all losses", "any", f"{sum(bool(each) for each in found)} of {len(fine)}"])
        for design in DESIGNS:
            wrongly = sum(pool.map(partial(alarms, design), range(SEEDS), chunksize=10))
            rows.append([f"none: {design}", "any", f"{wrongly} of {SEEDS}"])
    found_by = table(["mistake", "warning", "trainings that warn"], rows)
    page = f"Made by `python benchmarks/warnings_of_losses.py`.\n\n{found_by}\n{cost()}\n"
    (out / "warnings_of_losses.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
