"""Fake studies: a folder of results as a study leaves it, with predictions from a simple model instead of training."""

from __future__ import annotations

import zlib
from functools import lru_cache
from pathlib import Path

import numpy as np

from rightloss.lidc.splits import fold_numbers
from rightloss.study.config import RunConfig, StudyConfig
from rightloss.study.results import DataSummary, RunResult, write_config, write_data, write_run

# How far each loss's log-odds are off, and how much noise they carry beyond what x leaves open.
_FAULTS = {"published": (2.5, 0.3), "weighted": (0.5, 0.8), "plain": (0.0, 0.0)}


def fake_study(out: Path, config: StudyConfig, nodules: int = 300, skip: int = 0) -> None:
    """Write every run of `config` but the last `skip`, on `nodules` made-up nodules per source.

    Benign and malignant nodules have a score from N(∓1, 1), so that log-odds are logit π + 2 score; a rating follows the score.
    """
    for name in ("runs", "data"):
        (out / name).mkdir(parents=True, exist_ok=True)
    write_config(out, config)
    for source in config.sources:
        write_data(out, fake_data(source.name, config.task, nodules), config.task, source.digest)
    runs = config.runs()
    for run in runs[: len(runs) - skip]:
        write_run(out, fake_result(run, nodules))


def fake_data(name: str, task: str, nodules: int) -> DataSummary:
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    score, malignant = _scores(name, nodules)
    rating = np.clip(np.digitize(score, [-1.6, -0.5, 0.5, 1.6]), 0, 4)
    ratings = np.stack([np.bincount(row, minlength=5) for row in _readers(rating, generator)])
    labels = rating if task == "rating" else malignant
    shares = ratings / ratings.sum(1, keepdims=True) if task == "rating" else np.eye(2)[malignant]
    return DataSummary(
        name=name,
        labels=labels.astype(np.int64),
        votes=shares.astype(np.float32),
        ratings=ratings.astype(np.int64),
        patients=np.array([f"P{number // 2:04d}" for number in range(nodules)]),
        nodules=np.arange(nodules),
        pictures=_pictures(score, generator),
    )


def fake_result(run: RunConfig, nodules: int, rows: np.ndarray | None = None) -> RunResult:
    """Predictions for the fold of `fake_data`, or for these rows."""
    score, _ = _scores(run.data, nodules)
    rows = np.flatnonzero(_folds(run.data, run.task, nodules, run.num_folds) == run.fold) if rows is None else rows
    generator = np.random.default_rng(zlib.crc32(run.key.encode()))
    shift, noise = _FAULTS.get(run.loss, (0.0, 0.1))
    noisy = score[rows] + noise * generator.standard_normal(len(rows))
    if run.task == "rating":
        centres = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
        logits = -((noisy[:, None] - centres) ** 2) - 0.2 * shift
    else:
        assert run.population is not None
        rate = 0.5 if run.loss == "plain" else run.population
        odds = np.log(rate / (1 - rate)) + 2 * noisy + shift * (rate < 0.1)
        logits = np.stack([np.zeros_like(odds), odds], 1)
    log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    return RunResult(run, rows, log_probs, {"learning_rate": 1e-3, "step": 100}, ((-0.7, -0.5, -0.4),))


@lru_cache
def _folds(name: str, task: str, nodules: int, num_folds: int) -> np.ndarray:
    data = fake_data(name, task, nodules)
    return fold_numbers(data.labels, data.patients, num_folds).numpy()


def _scores(name: str, nodules: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(zlib.crc32(f"scores of {name}".encode()))
    malignant = (generator.random(nodules) < 0.3).astype(np.int64)
    return 2.0 * malignant - 1 + generator.standard_normal(nodules), malignant


def _readers(rating: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Four readers, each sometimes off by one."""
    return np.clip(rating[:, None] + generator.choice([-1, 0, 0, 1], size=(len(rating), 4)), 0, 4)


def _pictures(score: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Discs, larger for higher scores."""
    y, x = np.mgrid[-20:20, -20:20]
    radius = np.clip(6 + 3 * score, 2, 18)[:, None, None]
    noise = generator.integers(0, 40, (len(score), 40, 40))
    return np.where(x**2 + y**2 < radius**2, 180, 20).astype(np.uint8) + noise.astype(np.uint8)
