"""Pool runs that differ only in fold and seed: a cell of the tables.

Stage: `StudyResults` → `Cell`s: out-of-fold predictions with labels and patients. `matched` moves them first, so that what a
loss learnt can be told from where its intercept stands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from .config import RunConfig
from .results import DataSummary, RunResult, StudyResults


class CellKey(NamedTuple):
    """Settings that all runs of a cell share."""

    data: str
    minibatches: str
    net: str
    likelihood: str
    start: str
    inference: str
    population: float | None
    loss: str

    @classmethod
    def of(cls, run: RunConfig) -> CellKey:
        return cls(*(getattr(run, name) for name in cls._fields))


@dataclass(frozen=True, eq=False)
class Cell:
    """Predictions of all folds and seeds, a row for each nodule and seed.

    Attributes:
        key: settings that all its runs share.
        data: the data set.
        rows: of the data set `(n,)`; each nodule once for each seed.
        log_probs: at the cell's population `(n, k)`.
        fold, seed: of each row `(n,)`.
    """

    key: CellKey
    data: DataSummary
    rows: Int64[np.ndarray, " n"]
    log_probs: Float64[np.ndarray, "n k"]
    fold: Int64[np.ndarray, " n"]
    seed: Int64[np.ndarray, " n"]

    @property
    def labels(self) -> Int64[np.ndarray, " n"]:
        return self.data.labels[self.rows]

    @property
    def patients(self) -> np.ndarray:
        return self.data.patients[self.rows]

    @property
    def population(self) -> Float64[np.ndarray, " k"]:
        """π by class; for None, the shares of the readers' votes in the whole data set."""
        if self.key.population is None:
            return self.data.votes.mean(0, dtype=np.float64)
        return np.array([1 - self.key.population, self.key.population])


def matched(results: StudyResults) -> StudyResults:
    """Move each run's predictions by its offsets, so that their mean at π is π on the validation part. Runs without finite
    offsets are left out."""
    runs = [run for run in results.runs if run.matched and np.isfinite(run.matched).all()]
    return replace(results, runs=tuple(replace(run, log_probs=_moved(run)) for run in runs))


def _moved(run: RunResult) -> Float64[np.ndarray, "n k"]:
    table = run.log_probs + np.array(run.matched)
    return np.asarray(table - np.logaddexp.reduce(table, axis=1, keepdims=True))


def cells(results: StudyResults) -> list[Cell]:
    """Return the cells, in the config's order of data, minibatches, nets, likelihoods, inferences, populations and losses."""
    gathered: dict[CellKey, list[int]] = {}
    for number, run in enumerate(results.runs):
        gathered.setdefault(CellKey.of(run.config), []).append(number)
    return [_cell(key, results, numbers) for key, numbers in gathered.items()]


def _cell(key: CellKey, results: StudyResults, numbers: list[int]) -> Cell:
    runs = [results.runs[number] for number in numbers]
    return Cell(
        key,
        results.data[key.data],
        np.concatenate([run.rows for run in runs]),
        np.concatenate([run.log_probs for run in runs]),
        np.concatenate([np.full(len(run.rows), run.config.fold) for run in runs]),
        np.concatenate([np.full(len(run.rows), run.config.seed) for run in runs]),
    )
