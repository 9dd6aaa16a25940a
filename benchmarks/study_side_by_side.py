"""Compare eight runs that share a fold, trained side by side and one by one: processor time, and whether results are equal.

The runs are those of `rightloss study quick` without the published form: four losses at two prevalences, the small ConvNet on
contour volumes. One by one, each run cuts its own views and computes its own low-level features; patches are already in
memory. Processor time on one thread, medians of three turns each. Writes study_side_by_side.md: a row per way of training.
"""

from __future__ import annotations

import dataclasses
import statistics
import time

import numpy as np
import torch
from report import folder, table

from rightloss.study.config import PRESETS, Group, StudyConfig
from rightloss.study.datasets import study_images
from rightloss.study.results import RunResult
from rightloss.study.training import train_group

STEPS, CHECKPOINTS, TURNS = 60, 2, 3
LOSSES = ("information-gain", "weighted", "logit-adjusted", "corrected")


def group_of() -> Group:
    quick = PRESETS["quick"]
    training = dataclasses.replace(quick.training, steps=STEPS, checkpoints=CHECKPOINTS)
    config = StudyConfig("quick", losses=LOSSES, folds=1, training=training)
    (group,) = config.groups()
    return group


def one_by_one(group: Group) -> list[RunResult]:
    return [result for run in group.runs for result in train_group(Group(group.source, (run,)))]


def main() -> None:
    out = folder()
    torch.set_num_threads(1)
    group = group_of()
    study_images(group.source, "binary")
    ways = {"side by side": train_group, "one by one": one_by_one}
    train_group(dataclasses.replace(group, runs=group.runs[:1]))  # imports
    times: dict[str, list[float]] = {name: [] for name in ways}
    results = {}
    for _ in range(TURNS):
        for name, train in ways.items():
            start = time.process_time()
            results[name] = train(group)
            times[name].append(time.process_time() - start)
    seconds = {name: statistics.median(each) for name, each in times.items()}
    apart = max(
        float(np.abs(one.log_probs - other.log_probs).max())
        for one, other in zip(results["side by side"], results["one by one"], strict=True)
    )
    ratio = seconds["side by side"] / seconds["one by one"]
    rows = [[name, f"{seconds[name]:.1f}", f"{min(times[name]):.1f} to {max(times[name]):.1f}"] for name in ways]
    text = (
        f"Made by `python benchmarks/study_side_by_side.py`: {len(group.runs)} runs of {STEPS} steps that share a fold.\n\n"
        + table(["way", "processor seconds, median", "from, to"], rows)
        + f"\nSide by side takes {ratio:.2f} of the time of one by one. "
        f"The largest difference between their log-probabilities is {apart:g}.\n"
    )
    print(text)
    (out / "study_side_by_side.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
