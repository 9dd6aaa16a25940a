"""Measure how often the losses warn about a mistake, how often they warn without one, and the cost of monitoring.

Each kind of mistake is made in 20 trainings. There are 200 correct trainings, with every loss at several prevalences and
training mixes. A training is 600 steps of a small net. The cost is that of a step with and without the monitor at 256 × 100,
in turn. Writes warnings_of_losses.md: a row per mistake, and the cost.

    python benchmarks/warnings_of_losses.py --docs
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import torch
from report import folder, table
from torch import nn

import rightloss as rl

STEPS, BATCH, EXAMPLES = 600, 64, 4000
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
    found_by = table(["mistake", "warning", "trainings that warn"], rows)
    page = f"Made by `python benchmarks/warnings_of_losses.py`.\n\n{found_by}\n{cost()}\n"
    (out / "warnings_of_losses.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
