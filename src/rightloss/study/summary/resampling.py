"""Bootstrap intervals by patient: patients are drawn within folds, with the same draws for every cell, so that differences
are paired.

Stage: `Cell`s of one data set → `Resamples`; a statistic → `BootstrapEstimate` → a figure with its interval.

Statistics that need more than weights are below: means within classes, and the AUC within each run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float64, Int64

from ...metrics import Figure
from ...metrics.intervals import bca, unseen_share
from ..results import Cell

DRAWS, LEVEL = 1000, 0.95
_SEED = 2020
_MOST_UNDEFINED = 0.05  # share of resamples in which a figure may be undefined and still have an interval
_FEWEST = 5  # patients for an interval

PatientWeights = Float64[np.ndarray, "b p"]


@dataclass(frozen=True, eq=False)
class Resamples:
    """How often each patient of a data set occurs in each resample.

    Attributes:
        patient: number of the patient of each row of the data set `(n,)`; −1 for rows that no cell has.
        fold: of each patient `(p,)`.
        strata: of each patient `(p,)`; each stratum weighs the same in every resample. They are the folds, and for two classes
            also whether a patient has a malignant nodule, so that no class is lost. Patients who would be alone in their
            stratum, and could not vary, share one.
        counts: resample × patient `(b, p)`: n − 1 of a stratum's n are drawn, each for n/(n − 1), since a draw of n spreads too
            little where n is small (Rao and Wu, 1988).
    """

    patient: Int64[np.ndarray, " n"]
    fold: Int64[np.ndarray, " p"]
    strata: Int64[np.ndarray, " p"]
    counts: PatientWeights

    @property
    def size(self) -> int:
        """Number of patients."""
        return len(self.fold)


@dataclass(frozen=True, eq=False)
class BootstrapEstimate:
    """A statistic, its value in each resample, and its change when a patient is left out.

    Attributes:
        value: on the sample.
        draws: on each resample `(b,)`; NaN if undefined.
        changes: by patient `(p,)`.
        strata: of the patients `(p,)`.
    """

    value: float
    draws: Float64[np.ndarray, " b"]
    changes: Float64[np.ndarray, " p"]
    strata: Int64[np.ndarray, " p"]

    def __sub__(self, other: BootstrapEstimate) -> BootstrapEstimate:
        return combined(lambda both: both[0] - both[1], [self, other])

    def figure(self, missing: str = "") -> Figure:
        """Return the value with its BCa interval; `missing` is the reason if there is no value."""
        if math.isnan(self.value):
            return Figure(math.nan, reason=missing or "not defined")
        defined = self.draws[np.isfinite(self.draws)]
        if len(self.strata) < _FEWEST:
            return rounded(Figure(self.value, reason=f"no interval: {len(self.strata)} patients are too few"))
        if len(defined) < (1 - _MOST_UNDEFINED) * len(self.draws):
            share = 1 - len(defined) / len(self.draws)
            return rounded(Figure(self.value, reason=f"no interval: undefined in {share:.0%} of the resamples"))
        # Draws that are equal up to rounding are ties with the value.
        low, high = bca(defined.round(12), round(self.value, 12), self._acceleration(), LEVEL)
        return rounded(Figure(self.value, min(low, self.value), max(high, self.value)))

    def _acceleration(self) -> float:
        """Return BCa's acceleration, from the patients left out one by one."""
        changes = np.nan_to_num(-self.changes)
        sizes = np.maximum(np.bincount(self.strata), 1)
        centred = changes - (np.bincount(self.strata, weights=changes) / sizes)[self.strata]
        squares = float(np.square(centred).sum())
        return 0.0 if squares == 0 else float((centred**3).sum()) / (6 * squares**1.5)


def combined(
    function: Callable[[Float64[np.ndarray, "m b"]], Float64[np.ndarray, " b"]], estimates: Sequence[BootstrapEstimate]
) -> BootstrapEstimate:
    """Return a function of several estimates on the same resamples."""
    values = np.array([[each.value] for each in estimates])
    value = float(function(values)[0])
    without = function(values + np.array([each.changes for each in estimates]))
    return BootstrapEstimate(
        value, function(np.array([each.draws for each in estimates])), without - value, estimates[0].strata
    )


def rounded(figure: Figure) -> Figure:
    """Round to nine digits: the last ones depend on the order in which a machine adds."""
    value, low, high = (float(f"{each:.9g}") for each in (figure.value, figure.low, figure.high))
    return Figure(value, low, high, figure.reason)


def resamples_of(cells: Iterable[Cell], draws: int = DRAWS) -> Resamples:
    """Resample all patients that these cells of one data set tested. Each stratum has its own random numbers, so that a fold's
    draws do not depend on which other folds are done."""
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


def _counts(kind: Int64[np.ndarray, " p"], draws: int) -> PatientWeights:
    counts = np.ones((draws, len(kind)))
    for number in np.unique(kind).tolist():
        members = np.flatnonzero(kind == number)
        n = len(members)
        if n > 1:
            drawn = np.random.default_rng((_SEED, number)).multinomial(n - 1, np.full(n, 1 / n), size=draws)
            counts[:, members] = drawn * (n / (n - 1))
    return counts


# Figures that are means within groups, such as classes: differences of two cells are means of paired differences.


@dataclass(frozen=True, eq=False)
class GroupMeans:
    """A figure Σ_g w_g E[value | g] of rows in groups.

    Attributes:
        values: row × group `(n, g)`.
        members: how much a row counts in each group `(n, g)`.
        weights: of the groups `(g,)`.
        share: whether every value is 0 or 1; in a difference, −1, 0 or 1.
        lowest: the least value of a share.
    """

    values: Float64[np.ndarray, "n g"]
    members: Float64[np.ndarray, "n g"]
    weights: Float64[np.ndarray, " g"]
    share: bool = False
    lowest: float = 0.0

    def __sub__(self, other: GroupMeans) -> GroupMeans:
        with np.errstate(invalid="ignore"):
            return replace(self, values=self.values - other.values, lowest=-1.0)

    def at(self, rows: Int64[np.ndarray, " m"]) -> GroupMeans:
        return replace(self, values=self.values[rows], members=self.members[rows])

    @property
    def counted(self) -> Float64[np.ndarray, "n g"]:
        """Values times membership: what nobody of a group has may be infinite."""
        return self.members * np.where(self.members > 0, self.values, 0.0)

    def estimate(self, patient: Int64[np.ndarray, " n"], resamples: Resamples) -> BootstrapEstimate:
        """Evaluate it with patients resampled; `patient` is that of each row."""
        sums, totals = (
            np.stack([np.bincount(patient, weights=column, minlength=resamples.size) for column in table.T], axis=1)
            for table in (self.counted, self.members)
        )

        def value(top: PatientWeights, bottom: PatientWeights) -> Float64[np.ndarray, " b"]:
            with np.errstate(invalid="ignore", divide="ignore"):
                return np.asarray((top / bottom) @ self.weights)

        with np.errstate(invalid="ignore"):
            whole, everybody = sums.sum(0, keepdims=True), totals.sum(0, keepdims=True)
            draws = value(resamples.counts @ sums, resamples.counts @ totals)
            found = float(value(whole, everybody)[0])
            return BootstrapEstimate(found, draws, value(whole - sums, everybody - totals) - found, resamples.strata)

    def figure(self, patient: Int64[np.ndarray, " n"], resamples: Resamples, missing: str = "no such nodule") -> Figure:
        """Return the value with its interval; of a share that does not vary, Wilson's limit says what may have been missed."""
        found = self.estimate(patient, resamples)
        figure = found.figure(missing)
        varies = math.isnan(figure.low) or np.nanmax(np.abs(found.draws - found.value)) > 1e-12
        if not self.share or varies or len(patient) == 0:
            return figure
        fewest = min(len(np.unique(patient[column > 0])) for column in self.members.T)
        unseen = float(unseen_share(np.array(fewest), LEVEL))
        return rounded(
            Figure(found.value, max(self.lowest, found.value - unseen), min(1.0, found.value + unseen), figure.reason)
        )

    def in_folds(self, fold: Int64[np.ndarray, " n"]) -> dict[int, float]:
        """Return the value in each fold that has every group."""
        found, counted = {}, self.counted
        for number in np.unique(fold).tolist():
            totals = self.members[fold == number].sum(0)
            if (totals > 0).all():
                found[number] = float(counted[fold == number].sum(0) / totals @ self.weights)
        return found


# AUC within each fold and seed: scores of different nets are on scales of their own and must not be ranked together.

Areas = Mapping[tuple[int, int], BootstrapEstimate]  # by fold and seed; without runs with a single class in their fold


def areas_of(cell: Cell, resamples: Resamples) -> Areas:
    """Estimate the AUC of each run of a cell with two classes."""
    score, positive = cell.log_probs[:, 1] - cell.log_probs[:, 0], cell.labels == 1
    found = {}
    for run, own in cell.runs.items():
        if 0 < positive[own].sum() < len(own):
            found[run] = _area(score[own], positive[own], resamples.patient[cell.rows[own]], resamples)
    return found


def mean_area(areas: Areas) -> Figure:
    """Return the mean over folds and seeds with its interval; NaN if there is none."""
    if not areas:
        return Figure(math.nan, reason="no fold has both classes")
    return combined(lambda each: each.mean(0), list(areas.values())).figure()


def weighted_auc(
    score: Float64[np.ndarray, " n"], positive: Bool[np.ndarray, " n"], weights: Float64[np.ndarray, "b n"]
) -> Float64[np.ndarray, " b"]:
    """Return P(score of a positive > score of a negative) + ½ P(equal) for each row of weights; NaN if a class has weight 0."""
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
    score: Float64[np.ndarray, " n"], positive: Bool[np.ndarray, " n"], patient: Int64[np.ndarray, " n"], resamples: Resamples
) -> BootstrapEstimate:
    members, local = np.unique(patient, return_inverse=True)
    value = float(weighted_auc(score, positive, np.ones((1, len(score))))[0])
    draws = weighted_auc(score, positive, resamples.counts[:, members][:, local])
    changes = np.zeros(resamples.size)  # patients of other folds change nothing
    changes[members] = weighted_auc(score, positive, (1 - np.eye(len(members)))[:, local]) - value
    return BootstrapEstimate(value, draws, changes, resamples.strata)
