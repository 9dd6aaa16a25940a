"""Measure how often the losses warn about a mistake, and how often they warn without one.

Each kind of mistake is made in 20 trainings. There are 200 correct trainings, with every loss at several prevalences and
training mixes. A training is 600 steps of a small net. Then there are 200 correct trainings in each of five designs where rows
are correlated or a class is rare: 4,000 batches, with predictions that follow the labels.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from measuring import shown, table, write_pages
from torch import Tensor, nn

import rightloss as rl
from rightloss.losses.batch import class_batch

STEPS, BATCH, EXAMPLES = int(os.environ.get("RIGHTLOSS_DRAWS", "600")), 64, 4000
SEEDS, BATCHES = 200, 4000  # of the correlated designs
LOSSES: dict[str, Callable[[rl.Prevalence], Any]] = {
    each.__name__: each for each in (rl.InformationGainLoss, rl.LogitAdjustedLoss, rl.WeightedLoss, rl.LogLikelihoodLoss)
}
WORDS = {"mix `sampling`": "mix", "mean prediction": "mean", "a softmax": "logits"}


class Run(NamedTuple):
    """One training."""

    seed: int
    sampling: float = 0.5  # as declared
    share: float = 0.5  # of class 1 in training
    population: float = 0.001
    loss: str = "InformationGainLoss"
    evidence: float = 1.0
    softmax: bool = False
    start: bool = False


MISTAKES: dict[str, tuple[str, dict[str, Any]]] = {  # the warning that each should cause, and what is wrong
    "no positive at all, `sampling=0.5`": ("mix", {"share": 0.0}),
    "natural mix (0.1) declared as balanced": ("mix", {"share": 0.1}),
    "balanced mix declared as 0.3": ("mix", {"sampling": 0.3}),
    "`evidence=0`, no start, π = 0.001": ("mean", {"evidence": 0.0}),
    "softmax outputs as logits": ("logits", {"softmax": True}),
}
MIXES = ((0.5, False), (0.5, True), (0.2, False), (0.2, True), (0.02, True))
RIGHT = [  # 200 trainings without a mistake
    Run(seed, sampling, sampling, population, loss, start=start)
    for seed, loss, population, (sampling, start) in product(range(100, 105), LOSSES, (0.3, 0.001), MIXES)
]


def kinds(run: Run) -> set[str]:
    """Return the kinds of mistakes that the loss warned about."""
    torch.set_num_threads(1)
    torch.manual_seed(run.seed)
    y = (torch.rand(EXAMPLES) < run.share).long()
    x = torch.randn(EXAMPLES, 5) + 0.7 * (2 * y[:, None] - 1)
    prevalence = rl.Prevalence.binary(run.population, run.sampling, run.evidence)
    criterion = LOSSES[run.loss](prevalence)
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2), *([nn.Softmax(1)] if run.softmax else []))
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
    return {kind for each in caught for word, kind in WORDS.items() if word in str(each.message)}


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


def alarm(design: str, seed: int) -> bool:
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


def warnings_of_losses() -> str:
    rows = []
    with ProcessPoolExecutor(2) as pool:
        for name, (kind, wrong) in MISTAKES.items():
            found = list(pool.map(kinds, [Run(seed, **wrong) for seed in range(20)]))
            rows.append(shown([name, kind, f"{sum(kind in each for each in found)} of {len(found)}"]))
        alarms = [bool(each) for each in pool.map(kinds, RIGHT)]
        rows.append(shown(["none: correct trainings, all losses", "any", f"{sum(alarms)} of {len(alarms)}"]))
        for design in DESIGNS:
            alarms = list(pool.map(partial(alarm, design), range(SEEDS), chunksize=10))
            rows.append(shown([f"none: {design}", "any", f"{sum(alarms)} of {SEEDS}"]))
    return f"π and mixes by row.\n\n{table(['mistake', 'warning', 'trainings that warn'], rows)}"


if __name__ == "__main__":
    write_pages(__doc__, warnings_of_losses=warnings_of_losses)
