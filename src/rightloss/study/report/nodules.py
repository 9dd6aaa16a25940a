"""The nodules that the nets most often misjudge, with pictures and readers' ratings.

Stage: `StudyResults` → `HardCase`s of each side, the worst first, with their pictures.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64, UInt8
from scipy.special import expit

from ...lidc.votes import rounded_mean
from ..methods import DEFAULT
from ..pooled_predictions import Cell, cells
from ..results import DataSummary, StudyResults
from ..summary.wording import SHORT_LOSSES, capitalised, source

BENIGN, MALIGNANT, NEITHER = 0, 1, -1
_SIDES = {BENIGN: "benign", MALIGNANT: "malignant"}
_NOT_MOVED = "plain"


@dataclass(frozen=True)
class HardCase:
    """A nodule, and how wrong the nets are about it.

    Attributes:
        row: of the data set.
        side: 0 for benign, 1 for malignant.
        wrong: mean probability of the wrong side, at equal class frequencies.
        share: share of the judging loss's predictions on the wrong side.
        by_loss: `wrong` for each loss of the study.
    """

    row: int
    side: int
    wrong: float
    share: float
    by_loss: dict[str, float]


def hardest_cases(results: StudyResults, data: str, most: int = 12) -> dict[int, list[HardCase]]:
    """Return for each side the nodules that the judging loss misjudges most, over all nets, prevalences, folds and seeds, from
    the study's first start.

    Predictions are first moved to equal class frequencies, so the prevalence plays no part. Plain cross-entropy predicts at its
    minibatches' frequencies, whatever π is, and is left out.
    """
    by_loss: dict[str, list[Cell]] = {}
    for cell in cells(results):
        if (cell.key.data, cell.key.start) == (data, results.config.starts[0]) and cell.key.loss != _NOT_MOVED:
            by_loss.setdefault(cell.key.loss, []).append(cell)
    judge = judging_loss(results)
    if judge not in by_loss:
        return {BENIGN: [], MALIGNANT: []}
    side = _sides(results.data[data])
    errors = {loss: _errors(some, side) for loss, some in by_loss.items()}
    return {which: _worst(errors, judge, np.flatnonzero(side == which), which, most) for which in (BENIGN, MALIGNANT)}


def judging_loss(results: StudyResults) -> str | None:
    """Return the default loss, or else the first that has runs; None if there are none."""
    done = dict.fromkeys(run.config.loss for run in results.runs if run.config.loss != _NOT_MOVED)
    return DEFAULT if DEFAULT in done else next(iter(done), None)


def nodules_by_side(results: StudyResults) -> dict[str, list[dict[str, Any]]]:
    """Return the hardest cases of each data set and side as the page shows them; none of data sets without pictures."""
    found = {}
    for name, data in ((name, data) for name, data in results.data.items() if data.pictures.size):
        for side, cases in hardest_cases(results, name).items():
            title = f"{capitalised(_SIDES[side])}, taken for {_SIDES[1 - side]}"
            title += f" ({source(name)})" if len(results.data) > 1 else ""
            if cases:
                found[title] = [_shown(case, data) for case in cases]
    return found


def _shown(case: HardCase, data: DataSummary) -> dict[str, Any]:
    ratings = np.repeat(np.arange(1, 6), data.ratings[case.row]).tolist() if len(data.ratings) else []
    return {
        "nodule": int(data.nodules[case.row]),
        "side": _SIDES[case.side],
        "picture": _data_uri(data.pictures[case.row]),
        "ratings": ", ".join(map(str, ratings)),
        "wrong": case.wrong,
        "share": case.share,
        "others": {SHORT_LOSSES[loss]: wrong for loss, wrong in case.by_loss.items()},
    }


def _data_uri(plane: UInt8[np.ndarray, "h w"]) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(plane).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _sides(data: DataSummary) -> Int64[np.ndarray, " n"]:
    """Return benign, malignant or neither: for five ratings by the readers' rounded mean, where 3 is neither."""
    if data.votes.shape[1] == 2:
        return data.labels
    rating = rounded_mean(data.votes).numpy()
    return np.select([rating < 2, rating > 2], [BENIGN, MALIGNANT], NEITHER)


def _side_odds(cell: Cell) -> Float64[np.ndarray, " n"]:
    """Return log-odds of malignant against benign at equal class frequencies."""
    table = np.concatenate([cell.log_probs, np.log(cell.population)[None]])
    middle = table.shape[1] // 2
    benign = np.logaddexp.reduce(table[:, :middle], axis=1)
    malignant = np.logaddexp.reduce(table[:, -middle:], axis=1)
    return (malignant - benign)[:-1] - (malignant - benign)[-1]


def _errors(some: list[Cell], side: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, "n 2"]:
    """Return, by row, the mean probability of the wrong side and the share of predictions there; NaN if not tested."""
    total = np.zeros((len(side), 3))
    for cell in some:
        odds = _side_odds(cell) * np.where(side[cell.rows] == MALIGNANT, -1.0, 1.0)
        np.add.at(total, cell.rows, np.stack([expit(odds), odds > 0, np.ones(len(odds))], 1))
    tested = total[:, 2:] > 0
    return np.where(tested, total[:, :2] / np.where(tested, total[:, 2:], 1), np.nan)


def _worst(
    errors: dict[str, Float64[np.ndarray, "n 2"]], judge: str, rows: Int64[np.ndarray, " m"], side: int, most: int
) -> list[HardCase]:
    tested = rows[~np.isnan(errors[judge][rows, 0])]
    order = tested[np.argsort(-errors[judge][tested, 0], kind="stable")][:most].tolist()
    found = []
    for row in order:
        by_loss = {loss: float(table[row, 0]) for loss, table in errors.items() if not np.isnan(table[row, 0])}
        wrong, share = errors[judge][row].tolist()
        found.append(HardCase(row, side, wrong, share, by_loss))
    return found
