"""Figures of a cell with ratings 1 to 5: readers and predictions each made one answer by the same rule.

Stage: `Cell` → figures by name, with intervals by patient.

    expected_log_likelihood, skill, brier, calibration_error    readers' votes as soft labels, at the shares of the votes
    RULE_accuracy, RULE_balanced_accuracy                       the answer is the readers'
    RULE_off_by_one, RULE_balanced_off_by_one                   … or beside it
    RULE_off_by_one_recall_1 … _5                               … of the nodules that readers rated so
    RULE_malignant_accuracy, _tpr, _tnr, _ppv, _npv             4 and 5 against 1 and 2, nodules rated 3 left out
    score_within_half, score_within_one, score_error            the mean rating, and how far off it is

RULE is "majority" or "mean", the class nearest to the mean rating. "Balanced" is the mean over the ratings that occur.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Bool, Float64, Int64

from ...lidc.votes import expected_score, majority, rounded_mean
from ...metrics import Figure, evaluate
from ..pooled_predictions import Cell
from .contract import rounded
from .likelihood import expected_at, votes_of
from .resampling import LEVEL, Estimate, Resamples, Weights

RULES: dict[str, Callable[[np.ndarray], Int64[np.ndarray, " n"]]] = {
    "majority": lambda votes: majority(votes).numpy(),
    "mean": lambda votes: rounded_mean(votes).numpy(),
}
EVALUATED = ("brier", "calibration_error")
OF_CONSTANT = ("expected_log_likelihood", *EVALUATED)
_MIDDLE = 2  # rating 3, counted from 0

Marks = Float64[np.ndarray, " n"]


def rating_figures(cell: Cell, resamples: Resamples) -> Mapping[str, Figure]:
    """Every figure above. Brier score and calibration error have the delta method's intervals, which takes a tenth of the time
    of resampling where there are five classes."""
    shares = _Shares(resamples, resamples.patient[cell.rows])
    votes, probs = votes_of(cell), np.exp(cell.log_probs)
    found = evaluate(cell.log_probs, votes, cell.population, groups=cell.patients, level=LEVEL, intervals="analytic")
    return {
        **_of_likelihood(cell, resamples),
        **{name: rounded(found[name]) for name in EVALUATED},
        **{f"{name}_{key}": figure for name in RULES for key, figure in _of_rule(RULES[name], votes, probs, shares).items()},
        **_of_score(votes, probs, shares),
    }


def _of_likelihood(cell: Cell, resamples: Resamples) -> dict[str, Figure]:
    """`skill` is the same figure on another scale."""
    patient = resamples.patient[cell.rows]
    found = expected_at(cell.log_probs, votes_of(cell), patient, cell.population, resamples).figure("a rating has no vote")
    blind = float(cell.population @ np.log(cell.population))
    value, low, high = (1 - each / blind for each in (found.value, found.low, found.high))
    return {"expected_log_likelihood": found, "skill": rounded(Figure(value, low, high, found.reason))}


def _of_rule(
    rule: Callable[[np.ndarray], np.ndarray], votes: np.ndarray, probs: np.ndarray, shares: _Shares
) -> dict[str, Figure]:
    truth, answer = rule(votes), rule(probs)
    exact, near = answer == truth, np.abs(answer - truth) <= 1
    everybody = np.ones(len(truth), dtype=bool)
    return {
        "accuracy": shares.of(exact, everybody),
        "balanced_accuracy": shares.balanced(exact, truth),
        "off_by_one": shares.of(near, everybody),
        "balanced_off_by_one": shares.balanced(near, truth),
        **{f"off_by_one_recall_{k + 1}": shares.of(near, truth == k) for k in range(5)},
        **_of_malignancy(truth, probs, shares),
    }


def _of_malignancy(truth: np.ndarray, probs: np.ndarray, shares: _Shares) -> dict[str, Figure]:
    """Malignant is called where P(4) + P(5) > P(1) + P(2); half of P(3) on each side would change nothing."""
    called = probs[:, 3:].sum(1) > probs[:, :2].sum(1)
    malignant, benign = truth > _MIDDLE, truth < _MIDDLE
    sure = malignant | benign
    return {
        "malignant_accuracy": shares.of(called == malignant, sure),
        "malignant_tpr": shares.of(called, malignant),
        "malignant_tnr": shares.of(~called, benign),
        "malignant_ppv": shares.of(malignant, called & sure),
        "malignant_npv": shares.of(benign, ~called & sure),
    }


def _of_score(votes: np.ndarray, probs: np.ndarray, shares: _Shares) -> dict[str, Figure]:
    off = (expected_score(probs) - expected_score(votes)).abs().numpy()
    everybody = np.ones(len(off), dtype=bool)
    rounding = 1e-6  # shares are kept in float32
    return {
        "score_within_half": shares.of(off <= 0.5 + rounding, everybody),
        "score_within_one": shares.of(off <= 1 + rounding, everybody),
        "score_error": shares.mean(off, everybody).figure(),
    }


class _Shares:
    """Shares of nodules, and means over them, with patients drawn anew."""

    def __init__(self, resamples: Resamples, patient: Int64[np.ndarray, " n"]) -> None:
        self.resamples, self.patient = resamples, patient

    def of(self, marked: Bool[np.ndarray, " n"], among: Bool[np.ndarray, " n"]) -> Figure:
        patients = len(np.unique(self.patient[among]))
        return self.mean(marked.astype(np.float64), among).share(patients, "there is no such nodule")

    def mean(self, values: Marks, among: Bool[np.ndarray, " n"]) -> Estimate:
        return self.resamples.estimate(self._ratio(values, among))

    def balanced(self, marked: Bool[np.ndarray, " n"], truth: Int64[np.ndarray, " n"]) -> Figure:
        ratings = np.unique(truth).tolist()
        ratios = [self._ratio(marked.astype(np.float64), truth == rating) for rating in ratings]
        fewest = min(len(np.unique(self.patient[truth == rating])) for rating in ratings)
        return self.resamples.estimate(lambda weights: np.mean([ratio(weights) for ratio in ratios], axis=0)).share(fewest)

    def _ratio(self, values: Marks, among: Bool[np.ndarray, " n"]) -> Callable[[Weights], Float64[np.ndarray, " b"]]:
        size = self.resamples.size
        top = np.bincount(self.patient, weights=values * among, minlength=size)
        bottom = np.bincount(self.patient, weights=among, minlength=size)

        def ratio(weights: Weights) -> Float64[np.ndarray, " b"]:
            with np.errstate(invalid="ignore"):
                return np.asarray(weights @ top / (weights @ bottom))

        return ratio
