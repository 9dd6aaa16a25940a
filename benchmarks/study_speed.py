"""Time the study: a fold of `rightloss study quick`, also by another checkout, and runs side by side or one by one.

*study_speed*: the whole command is timed: start of Python, reading the data, ten runs of 300 steps side by side, tables and
report. Training is timed apart: it is what remains after the time of `rightloss report` on the same folder. It runs in one
process on one thread, as the command does for each core. The variable AGAINST names another checkout, whose code runs in this
environment and takes turns with this one (`git worktree add PATH COMMIT`).

*study_side_by_side*: eight runs that share a fold: four losses at two prevalences, the small ConvNet on contour volumes. One
by one, each run cuts its own views and computes its own low-level features; patches are already in memory.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from measuring import ROOT, table, write_pages

from rightloss.study.config import PRESETS, Group, StudyConfig
from rightloss.study.datasets import study_images
from rightloss.study.results import RunResult
from rightloss.study.training import train_group

COMMAND = ["study", "quick", "--folds", "1", "--engine", "processes", "--workers", "1"]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
TURNS, STEPS, CHECKPOINTS = 3, 60, 2
LOSSES = ("information-gain", "weighted", "logit-adjusted", "corrected")
Times = dict[str, list[tuple[float, float]]]


def processor_seconds(checkout: Path, command: list[str]) -> float:
    """Run the command with the code of a checkout; return its user and system time."""
    program = [sys.executable, "-c", "from rightloss.cli import main; main()", *command]
    before = os.times()
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(checkout / "src")}
    subprocess.run(program, env=environment, cwd=tempfile.gettempdir(), capture_output=True, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def predictions(out: Path) -> dict[str, np.ndarray]:
    """Return the log-probabilities of each run, by its name without the digest of its config."""
    return {path.stem.rpartition("-")[0]: np.load(path)["log_probs"] for path in sorted(out.glob("runs/*.npz"))}


def commit_of(checkout: Path) -> str:
    found = subprocess.run(["git", "-C", checkout, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def study_speed() -> str:
    checkouts = {"this checkout": ROOT}
    if "AGAINST" in os.environ:
        checkouts["the other"] = Path(os.environ["AGAINST"]).resolve()
    times: Times = {name: [] for name in checkouts}  # of the command, and of training alone
    predicted: dict[str, dict[str, np.ndarray]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(TURNS):
            for name, checkout in checkouts.items():
                out = Path(folder) / f"{turn}-{name.replace(' ', '-')}"
                whole = processor_seconds(checkout, [*COMMAND, "--out", str(out)])
                times[name].append((whole, whole - processor_seconds(checkout, ["report", str(out)])))
                predicted[name] = predictions(out)
    rows = [
        [name, commit_of(checkouts[name])]
        + [f"{statistics.median(each):.1f} ({min(each):.1f} to {max(each):.1f})" for each in zip(*found, strict=True)]
        for name, found in times.items()
    ]
    text = (
        f"processor seconds of `rightloss {' '.join(COMMAND)}`, median and range of {TURNS} turns. *Training* is the command "
        "without what `rightloss report` takes: start, tables and pictures.\n\n"
    )
    return (
        text + table(["code", "commit", "command", "training"], rows) + (compared(times, predicted) if len(times) > 1 else "")
    )


def compared(times: Times, predicted: dict[str, dict[str, np.ndarray]]) -> str:
    (ours, theirs), both = predicted.values(), times.values()
    apart = [float(np.abs(ours[run] - theirs[run]).max()) for run in sorted(set(ours) & set(theirs))]
    own, other = ([statistics.median(each) for each in zip(*found, strict=True)] for found in both)
    return (
        f"\nThe other takes {other[1] / own[1]:.2f} × the time of this checkout for training, {other[0] / own[0]:.2f} × for "
        f"the command. The largest difference between the log-probabilities of their {len(apart)} runs is {max(apart):g}.\n"
    )


def one_by_one(group: Group) -> list[RunResult]:
    return [result for run in group.runs for result in train_group(Group(group.source, (run,)))]


def study_side_by_side() -> str:
    torch.set_num_threads(1)
    training = dataclasses.replace(PRESETS["quick"].training, steps=STEPS, checkpoints=CHECKPOINTS)
    (group,) = StudyConfig("quick", losses=LOSSES, folds=1, training=training).groups()
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
    pairs = zip(*results.values(), strict=True)
    apart = max(float(np.abs(one.log_probs - other.log_probs).max()) for one, other in pairs)
    seconds = {name: statistics.median(each) for name, each in times.items()}
    rows = [[name, f"{seconds[name]:.1f}", f"{min(each):.1f} to {max(each):.1f}"] for name, each in times.items()]
    return (
        f"{len(group.runs)} runs of {STEPS} steps that share a fold.\n\n"
        + table(["way", "processor seconds, median", "from, to"], rows)
        + f"\nSide by side takes {seconds['side by side'] / seconds['one by one']:.2f} of the time of one by one. "
        f"The largest difference between their log-probabilities is {apart:g}.\n"
    )


if __name__ == "__main__":
    write_pages(__doc__, study_speed=study_speed, study_side_by_side=study_side_by_side)
