"""Expected log-likelihood at the population, of a table of log-probabilities or of the difference of two.

Stage: values `(n, k)`, votes `(n, k)`, π → Σ_c π_c E[value of c | c], as an `Estimate` and by fold.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64

from ..pooled_predictions import Cell
from .resampling import Estimate, Resamples, Weights

Table = Float64[np.ndarray, "n k"]


def votes_of(cell: Cell) -> Table:
    """What each row counts for: its class; of ratings, the readers' shares."""
    if cell.log_probs.shape[1] == 2:
        return np.eye(2)[cell.labels]
    return cell.data.votes[cell.rows].astype(np.float64)


def expected_at(
    values: Table,
    votes: Table,
    patient: Int64[np.ndarray, " n"],
    population: Float64[np.ndarray, " k"],
    resamples: Resamples,
) -> Estimate:
    """Means within each class, weighted by π, with patients drawn anew."""
    sums, totals = (_by_patient(table, patient, resamples.size) for table in (_counted(values, votes), votes))

    def statistic(weights: Weights) -> Float64[np.ndarray, " b"]:
        with np.errstate(invalid="ignore", divide="ignore"):
            return ((weights @ sums) / (weights @ totals)) @ population

    return resamples.estimate(statistic)


def expected_in_folds(
    values: Table, votes: Table, fold: Int64[np.ndarray, " n"], population: Float64[np.ndarray, " k"]
) -> dict[int, float]:
    """The same in each fold that has every class."""
    counted, found = _counted(values, votes), {}
    for number in np.unique(fold).tolist():
        totals = votes[fold == number].sum(0)
        if (totals > 0).all():
            found[number] = float(counted[fold == number].sum(0) / totals @ population)
    return found


def _counted(values: Table, votes: Table) -> Table:
    # A class without a vote may have been given probability 0.
    return votes * np.where(votes > 0, values, 0.0)


def _by_patient(table: Table, patient: Int64[np.ndarray, " n"], size: int) -> Float64[np.ndarray, "p k"]:
    return np.stack([np.bincount(patient, weights=column, minlength=size) for column in table.T], axis=1)
