"""Bootstrap intervals by patient: patients are drawn within folds, with the same draws for every cell, so that differences
are paired.

Stage: `Cell`s of one data set → `Resamples`; a statistic → `BootstrapEstimate` → a figure with its interval.

Statistics that need more than weights are below: the expected log-likelihood at π, and the AUC within each run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64

from ...metrics import Figure
from ...metrics.intervals import bca, unseen_share
from ..pooled_predictions import Cell

DRAWS, LEVEL = 1000, 0.95
_SEED = 2020
_MOST_UNDEFINED = 0.05  # share of resamples in which a figure may be undefined and still have an interval
_FEWEST = 5  # patients for an interval

PatientWeights = Float64[np.ndarray, "b p"]
Statistic = Callable[[PatientWeights], Float64[np.ndarray, " b"]]
ByClass = Float64[np.ndarray, "n k"]


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

    def estimate(self, statistic: Statistic) -> BootstrapEstimate:
        """Evaluate a statistic that takes weights of the patients, a row per resample."""
        value = float(statistic(np.ones((1, self.size)))[0])
        without = statistic(1 - np.eye(self.size))
        return BootstrapEstimate(value, statistic(self.counts), without - value, self.strata)


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
        return BootstrapEstimate(self.value - other.value, self.draws - other.draws, self.changes - other.changes, self.strata)

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
        low, high = bca(torch.from_numpy(defined.round(12)), round(self.value, 12), self._acceleration(), LEVEL)
        return rounded(Figure(self.value, min(low, self.value), max(high, self.value)))

    def share(self, patients: int, missing: str = "") -> Figure:
        """Return the figure of a share among this many patients; if it is 0 or 1, Wilson's limit is the other end."""
        figure = self.figure(missing)
        if self.value not in (0.0, 1.0) or math.isnan(figure.low):
            return figure
        unseen = float(unseen_share(torch.tensor(patients), LEVEL))
        ends = (0.0, unseen) if self.value == 0 else (1 - unseen, 1.0)
        return rounded(Figure(self.value, *ends, figure.reason))

    def _acceleration(self) -> float:
        """Return BCa's acceleration, from the patients left out one by one."""
        changes = np.nan_to_num(-self.changes)
        sizes = np.maximum(np.bincount(self.strata), 1)
        centred = changes - (np.bincount(self.strata, weights=changes) / sizes)[self.strata]
        squares = float(np.square(centred).sum())
        return 0.0 if squares == 0 else float((centred**3).sum()) / (6 * squares**1.5)


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


# Expected log-likelihood at the population, of a table of log-probabilities or of the difference of two: Σ_c π_c E[value | c].


def votes_of(cell: Cell) -> ByClass:
    """Return the weight of each class in each row: its label, or for ratings the readers' shares."""
    if cell.log_probs.shape[1] == 2:
        return np.eye(2)[cell.labels]
    return cell.data.votes[cell.rows].astype(np.float64)


def expected_at(
    values: ByClass,
    votes: ByClass,
    patient: Int64[np.ndarray, " n"],
    population: Float64[np.ndarray, " k"],
    resamples: Resamples,
) -> BootstrapEstimate:
    """Estimate the means within each class, weighted by π."""
    sums, totals = (
        np.stack([np.bincount(patient, weights=column, minlength=resamples.size) for column in table.T], axis=1)
        for table in (_counted(values, votes), votes)
    )

    def statistic(weights: PatientWeights) -> Float64[np.ndarray, " b"]:
        with np.errstate(invalid="ignore", divide="ignore"):
            return ((weights @ sums) / (weights @ totals)) @ population

    return resamples.estimate(statistic)


def expected_in_folds(
    values: ByClass, votes: ByClass, fold: Int64[np.ndarray, " n"], population: Float64[np.ndarray, " k"]
) -> dict[int, float]:
    """Return the same mean in each fold that has every class."""
    counted, found = _counted(values, votes), {}
    for number in np.unique(fold).tolist():
        totals = votes[fold == number].sum(0)
        if (totals > 0).all():
            found[number] = float(counted[fold == number].sum(0) / totals @ population)
    return found


def _counted(values: ByClass, votes: ByClass) -> ByClass:
    # A class without a vote may have been given probability 0.
    return votes * np.where(votes > 0, values, 0.0)


# AUC within each fold and seed: scores of different nets are on scales of their own and must not be ranked together.

Areas = Mapping[tuple[int, int], BootstrapEstimate]  # by fold and seed; without runs with a single class in their fold


def areas_of(cell: Cell, resamples: Resamples) -> Areas:
    """Estimate the AUC of each run of a cell with two classes."""
    score, positive = cell.log_probs[:, 1] - cell.log_probs[:, 0], cell.labels == 1
    found = {}
    for fold, seed in dict.fromkeys(zip(cell.fold.tolist(), cell.seed.tolist(), strict=True)):
        own = np.flatnonzero((cell.fold == fold) & (cell.seed == seed))
        if 0 < positive[own].sum() < len(own):
            found[fold, seed] = _area(score[own], positive[own], resamples.patient[cell.rows[own]], resamples)
    return found


def mean_area(areas: Areas, resamples: Resamples) -> BootstrapEstimate:
    """Return the mean over folds and seeds; NaN if there is none."""
    undefined = BootstrapEstimate(math.nan, np.full(len(resamples.counts), np.nan), np.zeros(resamples.size), resamples.strata)
    each = list(areas.values()) or [undefined]
    draws = np.mean([area.draws for area in each], axis=0)
    changes = np.mean([area.changes for area in each], axis=0)
    return BootstrapEstimate(float(np.mean([area.value for area in each])), draws, changes, resamples.strata)


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
    score: Float64[np.ndarray, " n"],
    positive: Bool[np.ndarray, " n"],
    patient: Int64[np.ndarray, " n"],
    resamples: Resamples,
) -> BootstrapEstimate:
    members, local = np.unique(patient, return_inverse=True)
    value = float(weighted_auc(score, positive, np.ones((1, len(score))))[0])
    draws = weighted_auc(score, positive, resamples.counts[:, members][:, local])
    changes = np.zeros(resamples.size)  # patients of other folds change nothing
    changes[members] = weighted_auc(score, positive, (1 - np.eye(len(members)))[:, local]) - value
    return BootstrapEstimate(value, draws, changes, resamples.strata)
