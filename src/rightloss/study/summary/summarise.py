"""Results of a study → its summary: the figures of every cell, comparisons, checks and sentences.

Stage: `StudyResults` → `Cell`s → `CellSummary`s and `Comparison`s, on the same resamples → checks and sentences → `Summary`.

Figures of two classes are those of `rightloss.metrics.evaluate`, except the AUC. Figures of ratings 1 to 5:

    expected_log_likelihood, skill, brier, calibration_error    readers' votes as soft labels, at the shares of the votes
    RULE_accuracy, RULE_balanced_accuracy                       the answer is the readers'
    RULE_off_by_one, RULE_balanced_off_by_one                   … or beside it
    RULE_off_by_one_recall_1 … _5                               … of the nodules that readers rated so
    RULE_malignant_accuracy, _tpr, _tnr, _ppv, _npv             4 and 5 against 1 and 2, nodules rated 3 left out
    score_within_half, score_within_one, score_error            the mean rating, and how far off it is

RULE is how votes and predictions become one answer: "majority", or "mean", the class nearest to the mean rating. "Balanced" is
the mean over the ratings that occur.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from jaxtyping import Bool, Float64, Int64

from ...lidc.votes import expected_score, majority, rounded_mean
from ...metrics import Figure, evaluate
from ..pooled_predictions import Cell, CellKey, cells
from ..results import StudyResults
from . import narrative
from .checks import paper_checks
from .comparisons import compare, pairs
from .contract import AUC, CONSTANT, LOG_LIKELIHOOD, CellSummary, Comparison, Summary
from .resampling import (
    DRAWS,
    LEVEL,
    Areas,
    BootstrapEstimate,
    PatientWeights,
    Resamples,
    areas_of,
    expected_at,
    mean_area,
    resamples_of,
    rounded,
    votes_of,
)

BINARY_FIGURES = (
    LOG_LIKELIHOOD,
    "skill",
    "brier",
    "accuracy",
    "weighted_accuracy",
    "balanced_accuracy",
    "ppv",
    "npv",
    "tpr",
    "tnr",
    "calibration_error",
    "mean_prediction",
)
_RATING_FIGURES = ("brier", "calibration_error")  # of those that `evaluate` has
_RULES: dict[str, Callable[[np.ndarray], Int64[np.ndarray, " n"]]] = {
    "majority": lambda votes: majority(votes).numpy(),
    "mean": lambda votes: rounded_mean(votes).numpy(),
}
_MIDDLE = 2  # rating 3, counted from 0


def summarise(results: StudyResults) -> Summary:
    """Compute figures with intervals by patient, paired differences, and what they say in words.

    Args:
        results: of a study, as `read_study` or `run_study` gives them; runs may be missing.

    Returns:
        the summary; the same results give the same to the last digit.

    Examples:
        >>> from rightloss.study import PRESETS, StudyResults
        >>> from rightloss.study.summary import summarise
        >>> summary = summarise(StudyResults(PRESETS["quick"], data={}, runs=()))
        >>> summary.findings[0]
        'The study is incomplete: 40 of 40 runs are missing, and this report covers the others. Run it again to go on.'
    """
    found = cells(results)
    names = dict.fromkeys(cell.key.data for cell in found)
    resamples = {name: resamples_of(cell for cell in found if cell.key.data == name) for name in names}
    binary = results.config.task != "rating"
    areas = {cell.key: areas_of(cell, resamples[cell.key.data]) for cell in found} if binary else {}
    rows = tuple(_rows(found, areas, resamples))
    comparisons = tuple(_comparisons(results, found, areas, resamples))
    checks = paper_checks(rows, comparisons, results.config)
    return Summary(
        results.config,
        results.missing,
        narrative.question(results),
        narrative.answer(rows, comparisons, results.config),
        rows,
        comparisons,
        checks,
        narrative.findings(rows, comparisons, checks, results.config, results.missing),
    )


def _rows(found: Iterable[Cell], areas: Mapping[CellKey, Areas], resamples: Mapping[str, Resamples]) -> Iterator[CellSummary]:
    """Yield a row per cell; before the first of a data set, minibatches and population, the one that always answers π."""
    answered = set()
    for cell in found:
        constant = CellKey(cell.key.data, cell.key.minibatches, "", "", "", "", cell.key.population, CONSTANT)
        if constant not in answered:
            answered.add(constant)
            yield _row(cell, constant, _constant_figures(cell))
        draws = resamples[cell.key.data]
        figures = _binary_figures(cell, areas[cell.key], draws) if cell.key in areas else _rating_figures(cell, draws)
        yield _row(cell, cell.key, figures)


def _row(cell: Cell, key: CellKey, figures: Mapping[str, Figure]) -> CellSummary:
    counts = (len(np.unique(each)) for each in (cell.fold, cell.seed, cell.rows, cell.patients))
    return CellSummary(key, figures, *counts)


def _comparisons(
    results: StudyResults, found: Iterable[Cell], areas: Mapping[CellKey, Areas], resamples: Mapping[str, Resamples]
) -> Iterator[Comparison]:
    by_key = {cell.key: cell for cell in found}
    for about, ours, theirs in pairs(list(by_key), results.config):
        both = (areas[ours], areas[theirs]) if areas else None
        comparison = compare(about, by_key[ours], by_key[theirs], both, resamples[ours.data])
        if comparison is not None:
            yield comparison


def _constant_figures(cell: Cell) -> Mapping[str, Figure]:
    """Return the figures of always answering π to the cell's nodules: no interval, since nothing is learnt. Its AUC is ½."""
    binary = len(cell.population) == 2
    rows = np.unique(cell.rows, return_index=True)[1]
    answer = np.tile(np.log(cell.population), (len(rows), 1))
    target = cell.labels[rows] if binary else votes_of(cell)[rows]
    found = evaluate(answer, target, cell.population, intervals=None)
    names = BINARY_FIGURES if binary else (LOG_LIKELIHOOD, *_RATING_FIGURES)
    figures = {name: Figure(round(found[name].value, 12), reason=found[name].reason) for name in names}
    figures |= {"skill": Figure(0.0), "calibration_error": Figure(0.0)}  # up to rounding
    return {**figures, AUC: Figure(0.5)} if binary else figures


def _binary_figures(cell: Cell, areas: Areas, resamples: Resamples) -> Mapping[str, Figure]:
    """Return the figures of all out-of-fold predictions together, except the AUC; intervals by patient. A nodule occurs once
    per seed, which does not narrow the intervals: its patient is drawn as a whole."""
    found = evaluate(cell.log_probs, cell.labels, cell.population, groups=cell.patients, level=LEVEL, draws=DRAWS)
    auc = mean_area(areas, resamples).figure("no fold has both classes")
    runs = len(set(zip(cell.fold.tolist(), cell.seed.tolist(), strict=True)))
    if len(areas) < runs and not math.isnan(auc.value) and not auc.reason:
        left_out = f"{runs - len(areas)} of {runs} tests have one class alone, and are left out"
        auc = Figure(auc.value, auc.low, auc.high, left_out)
    return {**{name: rounded(found[name]) for name in BINARY_FIGURES}, AUC: auc}


def _rating_figures(cell: Cell, resamples: Resamples) -> Mapping[str, Figure]:
    """Return every figure of ratings. Brier score and calibration error have the delta method's intervals, which takes a tenth
    of the time of resampling with five classes."""
    shares = _Shares(resamples, resamples.patient[cell.rows])
    votes, probs = votes_of(cell), np.exp(cell.log_probs)
    found = evaluate(cell.log_probs, votes, cell.population, groups=cell.patients, level=LEVEL, intervals="analytic")
    return {
        **_likelihood_figures(cell, resamples),
        **{name: rounded(found[name]) for name in _RATING_FIGURES},
        **{f"{name}_{key}": figure for name in _RULES for key, figure in _rule_figures(name, votes, probs, shares).items()},
        **_score_figures(votes, probs, shares),
    }


def _likelihood_figures(cell: Cell, resamples: Resamples) -> dict[str, Figure]:
    patient = resamples.patient[cell.rows]
    found = expected_at(cell.log_probs, votes_of(cell), patient, cell.population, resamples).figure("a rating has no vote")
    blind = float(cell.population @ np.log(cell.population))
    value, low, high = (1 - each / blind for each in (found.value, found.low, found.high))
    return {LOG_LIKELIHOOD: found, "skill": rounded(Figure(value, low, high, found.reason))}


def _rule_figures(rule: str, votes: np.ndarray, probs: np.ndarray, shares: _Shares) -> dict[str, Figure]:
    """Return accuracies of one answer per nodule. It is called malignant if P(4) + P(5) > P(1) + P(2); half of P(3) on each
    side would change nothing."""
    truth, answer = _RULES[rule](votes), _RULES[rule](probs)
    exact, near = answer == truth, np.abs(answer - truth) <= 1
    everybody = np.ones(len(truth), dtype=bool)
    called = probs[:, 3:].sum(1) > probs[:, :2].sum(1)
    malignant, benign = truth > _MIDDLE, truth < _MIDDLE
    sure = malignant | benign
    return {
        "accuracy": shares.of(exact, everybody),
        "balanced_accuracy": shares.balanced(exact, truth),
        "off_by_one": shares.of(near, everybody),
        "balanced_off_by_one": shares.balanced(near, truth),
        **{f"off_by_one_recall_{k + 1}": shares.of(near, truth == k) for k in range(5)},
        "malignant_accuracy": shares.of(called == malignant, sure),
        "malignant_tpr": shares.of(called, malignant),
        "malignant_tnr": shares.of(~called, benign),
        "malignant_ppv": shares.of(malignant, called & sure),
        "malignant_npv": shares.of(benign, ~called & sure),
    }


def _score_figures(votes: np.ndarray, probs: np.ndarray, shares: _Shares) -> dict[str, Figure]:
    off = (expected_score(probs) - expected_score(votes)).abs().numpy()
    everybody = np.ones(len(off), dtype=bool)
    rounding = 1e-6  # shares are kept in float32
    return {
        "score_within_half": shares.of(off <= 0.5 + rounding, everybody),
        "score_within_one": shares.of(off <= 1 + rounding, everybody),
        "score_error": shares.mean(off, everybody).figure(),
    }


class _Shares:
    """Shares of nodules, and means over them, with patients resampled."""

    def __init__(self, resamples: Resamples, patient: Int64[np.ndarray, " n"]) -> None:
        self.resamples, self.patient = resamples, patient

    def of(self, marked: Bool[np.ndarray, " n"], among: Bool[np.ndarray, " n"]) -> Figure:
        patients = len(np.unique(self.patient[among]))
        return self.mean(marked.astype(np.float64), among).share(patients, "there is no such nodule")

    def mean(self, values: Float64[np.ndarray, " n"], among: Bool[np.ndarray, " n"]) -> BootstrapEstimate:
        return self.resamples.estimate(self._ratio(values, among))

    def balanced(self, marked: Bool[np.ndarray, " n"], truth: Int64[np.ndarray, " n"]) -> Figure:
        ratings = np.unique(truth).tolist()
        ratios = [self._ratio(marked.astype(np.float64), truth == rating) for rating in ratings]
        fewest = min(len(np.unique(self.patient[truth == rating])) for rating in ratings)
        return self.resamples.estimate(lambda weights: np.mean([ratio(weights) for ratio in ratios], axis=0)).share(fewest)

    def _ratio(
        self, values: Float64[np.ndarray, " n"], among: Bool[np.ndarray, " n"]
    ) -> Callable[[PatientWeights], Float64[np.ndarray, " b"]]:
        size = self.resamples.size
        top = np.bincount(self.patient, weights=values * among, minlength=size)
        bottom = np.bincount(self.patient, weights=among, minlength=size)

        def ratio(weights: PatientWeights) -> Float64[np.ndarray, " b"]:
            with np.errstate(invalid="ignore"):
                return np.asarray(weights @ top / (weights @ bottom))

        return ratio
