"""Patients drawn with replacement within folds, the same draws for every cell: so that differences are paired.

Stage: `Cell`s of one data set → `Resamples`: how often each patient occurs in each; an `Estimate` → a figure with its interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int64

from ...metrics import Figure
from ...metrics.intervals import bca, unseen_share
from ..pooled_predictions import Cell
from .contract import rounded

DRAWS, LEVEL = 1000, 0.95
_SEED = 2020
_MOST_UNDEFINED = 0.05  # share of resamples in which a figure may be undefined and still have an interval
_FEWEST = 5  # patients for an interval

Weights = Float64[np.ndarray, "b p"]
Statistic = Callable[[Weights], Float64[np.ndarray, " b"]]


@dataclass(frozen=True, eq=False)
class Resamples:
    """How often each patient of a data set occurs in each resample.

    Attributes:
        patient: of each row of the data set `(n,)`, a number; −1 for rows that no cell has.
        fold: of each patient `(p,)`.
        strata: of each patient `(p,)`; each weighs the same in every resample. They are the folds, and for two classes also
            whether a patient has a malignant nodule, so that no class dies out. Patients who would be alone in theirs, and
            could not vary, are thrown together.
        counts: resample × patient `(b, p)`: n − 1 of a stratum's n are drawn, each for n/(n − 1), since a draw of n spreads too
            little where n is small (Rao and Wu, 1988).
    """

    patient: Int64[np.ndarray, " n"]
    fold: Int64[np.ndarray, " p"]
    strata: Int64[np.ndarray, " p"]
    counts: Weights

    @property
    def size(self) -> int:
        return len(self.fold)

    def estimate(self, statistic: Statistic) -> Estimate:
        """Of a statistic that takes weights of the patients, a row per resample."""
        value = float(statistic(np.ones((1, self.size)))[0])
        without = statistic(1 - np.eye(self.size))
        return Estimate(value, statistic(self.counts), without - value, self.strata)


@dataclass(frozen=True, eq=False)
class Estimate:
    """A figure, what it is in each resample, and by how much it changes when a patient is left out.

    Attributes:
        value: of the sample.
        draws: of each resample `(b,)`; NaN where it is not defined.
        changes: by patient `(p,)`.
        strata: of the patients `(p,)`.
    """

    value: float
    draws: Float64[np.ndarray, " b"]
    changes: Float64[np.ndarray, " p"]
    strata: Int64[np.ndarray, " p"]

    def figure(self, missing: str = "") -> Figure:
        """With a BCa interval; `missing` says why there is no value, if so."""
        if math.isnan(self.value):
            return Figure(math.nan, reason=missing or "not defined")
        defined = self.draws[np.isfinite(self.draws)]
        if len(self.strata) < _FEWEST:
            return rounded(Figure(self.value, reason=f"no interval: {len(self.strata)} patients are too few"))
        if len(defined) < (1 - _MOST_UNDEFINED) * len(self.draws):
            share = 1 - len(defined) / len(self.draws)
            return rounded(Figure(self.value, reason=f"no interval: undefined in {share:.0%} of the resamples"))
        # Draws that are equal but for rounding are ties with the value.
        low, high = bca(torch.from_numpy(defined.round(12)), round(self.value, 12), self._lean(), LEVEL)
        return rounded(Figure(self.value, min(low, self.value), max(high, self.value)))

    def share(self, patients: int, missing: str = "") -> Figure:
        """The figure of a share among so many patients: where it is 0 or 1, as far as what was not met allows."""
        figure = self.figure(missing)
        if self.value not in (0.0, 1.0) or math.isnan(figure.low):
            return figure
        unseen = float(unseen_share(torch.tensor(patients), LEVEL))
        ends = (0.0, unseen) if self.value == 0 else (1 - unseen, 1.0)
        return rounded(Figure(self.value, *ends, figure.reason))

    def _lean(self) -> float:
        """BCa's acceleration, from the patients left out one by one."""
        changes = np.nan_to_num(-self.changes)
        sizes = np.maximum(np.bincount(self.strata), 1)
        centred = changes - (np.bincount(self.strata, weights=changes) / sizes)[self.strata]
        squares = float(np.square(centred).sum())
        return 0.0 if squares == 0 else float((centred**3).sum()) / (6 * squares**1.5)


def resamples_of(cells: Iterable[Cell], draws: int = DRAWS) -> Resamples:
    """Of all patients whom these cells, of one data set, tested. Each stratum has random numbers of its own, so that a fold's
    draws do not hang on which other folds are done."""
    cells = list(cells)
    data = cells[0].data
    fold_of_row = np.full(len(data.labels), -1)
    for cell in cells:
        fold_of_row[cell.rows] = cell.fold
    tested = np.flatnonzero(fold_of_row >= 0)
    _, first, number = np.unique(data.patients[tested], return_index=True, return_inverse=True)
    patient = np.full(len(data.labels), -1)
    patient[tested] = number
    fold = fold_of_row[tested][first]
    binary = cells[0].log_probs.shape[1] == 2
    malignant = np.bincount(number, weights=data.labels[tested] == 1) > 0
    kind = 2 + 2 * fold + (malignant & binary)
    alone = np.bincount(kind)[kind] == 1
    kind = np.where(alone, kind % 2, kind)
    return Resamples(patient, fold, np.unique(kind, return_inverse=True)[1].astype(np.int64), _counts(kind, draws))


def _counts(kind: np.ndarray, draws: int) -> Weights:
    counts = np.ones((draws, len(kind)))
    for number in np.unique(kind).tolist():
        members = np.flatnonzero(kind == number)
        n = len(members)
        if n > 1:
            drawn = np.random.default_rng((_SEED, number)).multinomial(n - 1, np.full(n, 1 / n), size=draws)
            counts[:, members] = drawn * (n / (n - 1))
    return counts
