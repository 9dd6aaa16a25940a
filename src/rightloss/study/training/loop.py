"""The loop: the runs of a group, trained side by side on the same minibatches and low-level features.

Stage: `Group` → a `RunResult` for each of its runs, a pure function whatever else is in the group.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..config import OF_TABLES, Group, RunConfig
from ..datasets import StudyData, study_data, study_images
from ..engines import Report
from ..results import RunResult
from .batches import Batch, Batches
from .candidates import Candidate
from .hardware import Hardware
from .models import takes_image
from .posteriors import posterior_result

if TYPE_CHECKING:
    from lightning.fabric import Fabric


def silent(share: float) -> None:
    """Nobody is told."""


def train_group(group: Group, report: Report = silent, hardware: Hardware | None = None) -> list[RunResult]:
    """Train, choose on the validation part, predict the test part.

    Args:
        group: runs that share data, fold, seed and minibatches.
        report: told the share that is done; not from several devices.
        hardware: the CPU by default.
    """
    hardware = Hardware() if hardware is None else hardware
    training = group.runs[0].training
    fabric: Any = hardware.fabric(training.precision)
    batch_size = training.batch_size
    if batch_size % hardware.devices:
        raise ValueError(
            f"Expected a batch size that {hardware.devices} devices can share, but got {batch_size}: "
            "take a multiple of their number."
        )
    told = silent if hardware.devices > 1 else report  # which does not reach into other processes
    with torch.random.fork_rng():
        # A partial, and plain tuples back: Fabric takes arguments and results apart, and refuses frozen dataclasses.
        found = fabric.launch(partial(_plain, group=group, report=told))
    if isinstance(found, ValueError):
        raise found
    return [RunResult(run, *each) for run, each in zip(group.runs, found, strict=True)]


def _plain(fabric: Fabric, group: Group, report: Report) -> list[tuple[Any, ...]] | ValueError:
    """A user's error as a value: from another process it would come back as one of torch's."""
    try:
        return [(each.rows, each.log_probs, each.chosen, each.validation) for each in _train(fabric, group, report)]
    except ValueError as error:
        return error


def _train(fabric: Fabric, group: Group, report: Report) -> list[RunResult]:
    first = group.runs[0]
    data = study_data(group.source, first.task)
    images = study_images(group.source, first.task) if any(takes_image(run.net) for run in group.runs) else None
    batches = Batches(data, images, first, fabric.device, fabric.global_rank, fabric.world_size)
    trained = [run for run in group.runs if run.inference not in OF_TABLES]
    share = len(trained) / len(group.runs)
    results = _side_by_side(fabric, trained, batches, lambda done: report(share * done)) if trained else {}
    for run in group.runs:
        if run.inference in OF_TABLES:
            results[run] = posterior_result(run, batches, population_of(run, data))
            report(len(results) / len(group.runs))
    return [results[run] for run in group.runs]


def _side_by_side(fabric: Fabric, runs: list[RunConfig], batches: Batches, report: Report) -> dict[RunConfig, RunResult]:
    training, features = runs[0].training, len(batches.data.feature_names)
    candidates = {
        run: [
            Candidate(run, rate, batches.sampling, population_of(run, batches.data), features, fabric)
            for rate in training.learning_rates
        ]
        for run in runs
    }
    everyone = [candidate for each in candidates.values() for candidate in each]
    looks = {round(training.steps * (number + 1) / training.checkpoints) for number in range(training.checkpoints)}
    valid = batches.held(batches.parts.valid)
    for step, batch in enumerate(batches, start=1):
        for candidate in everyone:
            candidate.step(batch, step)
        if step in looks:
            for candidate in everyone:
                candidate.look(valid)
        report(step / training.steps)
    test = batches.held(batches.parts.test)
    return {run: _best(run, each, sorted(looks), test, batches.parts.test) for run, each in candidates.items()}


def _best(run: RunConfig, candidates: list[Candidate], looks: list[int], test: Batch, rows: Tensor) -> RunResult:
    """Of the candidate, at the look, that the validation part liked best."""
    scored = [candidate for candidate in candidates if candidate.scores]
    if not scored:
        raise ValueError(f"Expected finite losses, but got none for {run.label}: lower --learning-rate.")
    chosen = max(scored, key=lambda candidate: max(candidate.scores))
    chosen.restore()
    return RunResult(
        run,
        rows.numpy(),
        chosen.log_probs(test).numpy(),
        {"learning_rate": chosen.rate, "step": looks[int(np.argmax(chosen.scores))]},
        tuple(tuple(candidate.scores) for candidate in candidates),
    )


def population_of(run: RunConfig, data: StudyData) -> Tensor:
    """π by class: of the run; for ratings the shares of votes in the whole data set."""
    if run.population is None:
        return data.votes.double().mean(0)
    return torch.tensor([1 - run.population, run.population], dtype=torch.float64)
