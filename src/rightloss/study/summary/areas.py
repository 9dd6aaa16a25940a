"""AUC within each fold and seed, and in every resample of its patients.

Stage: `Cell`, `Resamples` → `Areas`, one of each run → their mean, or the mean of differences, as an `Estimate`.

Scores of different nets are on scales of their own: pooled, they would be ranked across nets, which nobody does in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64

from ..pooled_predictions import Cell
from .resampling import Estimate, Resamples


@dataclass(frozen=True, eq=False)
class Area:
    """AUC of one run.

    Attributes:
        value: of its test fold.
        draws: of each resample `(b,)`.
        changes: when a patient is left out `(p,)`; 0 for patients of other folds.
    """

    value: float
    draws: Float64[np.ndarray, " b"]
    changes: Float64[np.ndarray, " p"]


Areas = Mapping[tuple[int, int], Area]  # by fold and seed; runs whose fold has one class alone are not there


def areas_of(cell: Cell, resamples: Resamples) -> Areas:
    """Of a cell with two classes."""
    score, positive = cell.log_probs[:, 1] - cell.log_probs[:, 0], cell.labels == 1
    found = {}
    for fold, seed in dict.fromkeys(zip(cell.fold.tolist(), cell.seed.tolist(), strict=True)):
        own = np.flatnonzero((cell.fold == fold) & (cell.seed == seed))
        if 0 < positive[own].sum() < len(own):
            found[fold, seed] = _area(score[own], positive[own], resamples.patient[cell.rows[own]], resamples)
    return found


def mean_area(areas: Areas, resamples: Resamples) -> Estimate:
    """Over folds and seeds; NaN where there is none."""
    each = list(areas.values()) or [Area(np.nan, np.full(len(resamples.counts), np.nan), np.zeros(resamples.size))]
    draws = np.mean([area.draws for area in each], axis=0)
    changes = np.mean([area.changes for area in each], axis=0)
    return Estimate(float(np.mean([area.value for area in each])), draws, changes, resamples.strata)


def differences(ours: Areas, theirs: Areas) -> Areas:
    """Ours less theirs, of the runs that both have."""
    pairs = {run: (ours[run], theirs[run]) for run in ours if run in theirs}
    return {run: Area(a.value - b.value, a.draws - b.draws, a.changes - b.changes) for run, (a, b) in pairs.items()}


def weighted_auc(
    score: Float64[np.ndarray, " n"], positive: Bool[np.ndarray, " n"], weights: Float64[np.ndarray, "b n"]
) -> Float64[np.ndarray, " b"]:
    """P(score of a positive > score of a negative) + ½ P(equal), for each row of weights; NaN where a class weighs nothing."""
    order = np.argsort(score, kind="stable")
    values, weights, positive = score[order], weights[:, order], positive[order]
    first, last = np.searchsorted(values, values, "left"), np.searchsorted(values, values, "right")
    below = np.concatenate([np.zeros((len(weights), 1)), np.cumsum(weights * ~positive, axis=1)], axis=1)
    negatives = below[:, -1]
    of_positives = weights[:, positive]
    beaten = (below[:, first[positive]] + below[:, last[positive]]) / 2
    with np.errstate(invalid="ignore"):
        return (of_positives * beaten).sum(1) / (of_positives.sum(1) * negatives)


def _area(
    score: Float64[np.ndarray, " n"],
    positive: Bool[np.ndarray, " n"],
    patient: Int64[np.ndarray, " n"],
    resamples: Resamples,
) -> Area:
    members, local = np.unique(patient, return_inverse=True)
    value = float(weighted_auc(score, positive, np.ones((1, len(score))))[0])
    draws = weighted_auc(score, positive, resamples.counts[:, members][:, local])
    changes = np.zeros(resamples.size)
    changes[members] = weighted_auc(score, positive, (1 - np.eye(len(members)))[:, local]) - value
    return Area(value, draws, changes)
