"""The nodules that the nets get wrong most often.

Stage: `StudyResults` → `Misjudged` nodules of each side, the worst first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from ...lidc.votes import rounded_mean
from ...metrics.one_vs_rest import expit
from ..methods import DEFAULT
from ..pooled_predictions import Cell, cells
from ..results import DataSummary, StudyResults

Odds = Float64[np.ndarray, " n"]
BENIGN, MALIGNANT, NEITHER = 0, 1, -1
_NOT_MOVED = "plain"


@dataclass(frozen=True)
class Misjudged:
    """A nodule, and how wrong the nets are about it.

    Attributes:
        row: of the data set.
        side: 0 for benign, 1 for malignant.
        wrong: mean probability given to the other side, were both sides equally frequent.
        share: of the judging loss's predictions that are on the other side.
        by_loss: `wrong` for each loss of the study.
    """

    row: int
    side: int
    wrong: float
    share: float
    by_loss: dict[str, float]


def misjudged(results: StudyResults, data: str, most: int = 12) -> dict[int, list[Misjudged]]:
    """Of each side those that the judging loss gets most wrong, over all nets, prevalences, folds and seeds.

    Predictions are moved to equally frequent sides first, so that no prevalence decides. Cross-entropy as it is predicts for
    its minibatches whatever π is: it is not asked.
    """
    by_loss: dict[str, list[Cell]] = {}
    for cell in cells(results):
        if cell.key.data == data and cell.key.loss != _NOT_MOVED:
            by_loss.setdefault(cell.key.loss, []).append(cell)
    judge = judging_loss(results)
    if judge not in by_loss:
        return {BENIGN: [], MALIGNANT: []}
    side = sides(results.data[data])
    tables = {loss: _wrong(some, side) for loss, some in by_loss.items()}
    return {which: _worst(tables, judge, np.flatnonzero(side == which), which, most) for which in (BENIGN, MALIGNANT)}


def judging_loss(results: StudyResults) -> str | None:
    """The default, or the first of which there are runs; None where there are none."""
    done = dict.fromkeys(run.config.loss for run in results.runs if run.config.loss != _NOT_MOVED)
    return DEFAULT if DEFAULT in done else next(iter(done), None)


def sides(data: DataSummary) -> Int64[np.ndarray, " n"]:
    """Benign, malignant or neither: of five ratings by the readers' rounded mean, where 3 is neither."""
    if data.votes.shape[1] == 2:
        return data.labels
    rating = rounded_mean(data.votes).numpy()
    return np.select([rating < 2, rating > 2], [BENIGN, MALIGNANT], NEITHER)


def side_odds(cell: Cell) -> Odds:
    """Log-odds of malignant against benign, were both sides equally frequent."""
    table = np.concatenate([cell.log_probs, np.log(cell.population)[None]])
    middle = table.shape[1] // 2
    benign = np.logaddexp.reduce(table[:, :middle], axis=1)
    malignant = np.logaddexp.reduce(table[:, -middle:], axis=1)
    return (malignant - benign)[:-1] - (malignant - benign)[-1]


def _wrong(some: list[Cell], side: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, "n 2"]:
    """By row: mean probability of the other side, share of predictions there; NaN for what was not tested."""
    total = np.zeros((len(side), 3))
    for cell in some:
        odds = side_odds(cell) * np.where(side[cell.rows] == MALIGNANT, -1.0, 1.0)
        np.add.at(total, cell.rows, np.stack([expit(odds), odds > 0, np.ones(len(odds))], 1))
    tested = total[:, 2:] > 0
    return np.where(tested, total[:, :2] / np.where(tested, total[:, 2:], 1), np.nan)


def _worst(
    tables: dict[str, Float64[np.ndarray, "n 2"]], judge: str, rows: Int64[np.ndarray, " m"], side: int, most: int
) -> list[Misjudged]:
    tested = rows[~np.isnan(tables[judge][rows, 0])]
    order = tested[np.argsort(-tables[judge][tested, 0], kind="stable")][:most]
    return [
        Misjudged(
            int(row),
            side,
            float(tables[judge][row, 0]),
            float(tables[judge][row, 1]),
            {loss: float(table[row, 0]) for loss, table in tables.items() if not np.isnan(table[row, 0])},
        )
        for row in order
    ]
