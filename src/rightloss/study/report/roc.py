"""The ROC curve of several nets whose scores are not comparable: the mean of their curves.

Stage: `Cell` → `RocCurve`.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from ...metrics import RocCurve, roc_curve
from ..pooled_predictions import Cell

Array = Float64[np.ndarray, " m"]


def mean_roc(cell: Cell) -> RocCurve | None:
    """Over folds and seeds, the mean true positive rate at each false positive rate; None where no fold has both classes.

    Its area is the mean of their areas: at a step both ends of it are averaged, so that nothing is lost between the points.
    """
    curves = [roc_curve(cell.log_probs[part], cell.labels[part]) for part in parts(cell) if len(set(cell.labels[part])) == 2]
    if not curves:
        return None
    grid = np.unique(np.concatenate([curve.false_positive_rate for curve in curves]))
    ends = [np.mean([_ends(curve, grid, side) for curve in curves], 0) for side in ("left", "right")]
    x, y = np.repeat(grid, 2), np.stack(ends, 1).reshape(-1)
    return RocCurve(x, y, np.full(len(x), np.nan), float(np.mean([curve.auc for curve in curves])), 1)


def parts(cell: Cell) -> list[np.ndarray]:
    """Rows that one net predicted: those of a fold and a seed."""
    pairs = np.stack([cell.seed, cell.fold], 1)
    return [np.flatnonzero((pairs == pair).all(1)) for pair in np.unique(pairs, axis=0)]


def _ends(curve: RocCurve, grid: Array, side: str) -> Array:
    """The true positive rate at each of the grid: where the curve steps up, at the step's lower (left) or upper end."""
    x, y = curve.false_positive_rate, curve.true_positive_rate
    found = np.interp(grid, x, y)
    at = np.searchsorted(x, grid, "left") if side == "left" else np.searchsorted(x, grid, "right") - 1
    exact = x[at] == grid
    found[exact] = y[at[exact]]
    return found
