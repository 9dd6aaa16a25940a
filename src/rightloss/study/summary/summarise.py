"""Results of a study → its summary: the figures of every cell, comparisons and checks.

Stage: `StudyResults` → `Cell`s → `CellSummary`s and `CellPair`s, on the same resamples → `PaperCheck`s → `Summary`.

Figures of two classes are those of `rightloss.metrics.evaluate`, except the AUC, and those by cost. Ratings have the expected
log-likelihood, skill, Brier score and calibration error of the votes, and the accuracies of `comparisons`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...metrics import Figure, evaluate
from ..config import StudyConfig
from ..results import Cell, CellKey, StudyResults, cells, grouped, matched
from .claims import binary_claims, rating_claims
from .comparisons import (
    LOG_MEAN_OFF,
    MARGIN,
    RULES,
    calibration_difference,
    compare,
    decision_figures,
    is_binary,
    paired_figures,
    pairs,
    rating_figures,
    votes_of,
)
from .contract import AUC, CONSTANT, COSTS, LOG_LIKELIHOOD, MEAN, CellPair, CellSummary, PaperCheck, Summary
from .resampling import DRAWS, LEVEL, Areas, Resamples, areas_of, combined, mean_area, resamples_of, rounded

BINARY_FIGURES = (
    *(LOG_LIKELIHOOD, "skill", "brier", "accuracy", "weighted_accuracy", "balanced_accuracy"),
    *("ppv", "npv", "tpr", "tnr", "calibration_error", MEAN),
)
COST_FIGURES = tuple(f"{name}_cost_{cost}" for cost in COSTS for name in ("tpr", "tnr", "net_benefit"))
_RATING_FIGURES = ("brier", "calibration_error")  # of those that `evaluate` has
_MATCHED_FIGURES = ("tpr", "tnr", MEAN)


def summarise(results: StudyResults) -> Summary:
    """Compute figures with intervals by patient, paired differences, and whether the paper's claims hold.

    Args:
        results: of a study, as `read_study` or `run_study` gives them; runs may be missing.

    Returns:
        the summary; the same results give the same to the last digit.

    Examples:
        >>> from rightloss.study import PRESETS, StudyResults
        >>> from rightloss.study.summary import summarise
        >>> summarise(StudyResults(PRESETS["quick"], data={}, runs=())).missing
        80
    """
    found = cells(results)
    resamples = {name: resamples_of(some) for name, some in grouped(found, lambda cell: cell.key.data).items()}
    binary = results.config.task != "rating"
    areas = {cell.key: areas_of(cell, resamples[cell.key.data]) for cell in found} if binary else {}
    rows = tuple(_rows(found, areas, resamples))
    comparisons = tuple(_comparisons(results, found, areas, resamples))
    moved = cells(matched(results)) if binary else []
    kept = {cell.key: _of_cell(areas[cell.key], cell) for cell in moved}  # an offset changes no ranks within a run
    matched_comparisons = tuple(_comparisons(results, moved, kept, resamples))
    return Summary(
        results.config,
        results.missing,
        rows,
        comparisons,
        paper_checks(rows, comparisons, results.config),
        tuple(_row(cell, cell.key, _matched_figures(cell, kept[cell.key], resamples[cell.key.data])) for cell in moved),
        matched_comparisons,
    )


def paper_checks(rows: Sequence[CellSummary], comparisons: Sequence[CellPair], config: StudyConfig) -> tuple[PaperCheck, ...]:
    """Make the checks that the study has the runs for; none if training patients are unlabelled."""
    if config.unlabelled:
        return ()
    return (rating_claims if config.task == "rating" else binary_claims)(rows, comparisons, config)


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
) -> Iterator[CellPair]:
    by_key = {cell.key: cell for cell in found}
    for about, ours, theirs in pairs(list(by_key), results.config):
        both = (areas[ours], areas[theirs]) if areas else None
        comparison = compare(about, by_key[ours], by_key[theirs], both, resamples[ours.data])
        if comparison is not None:
            yield _with_calibration(comparison, by_key, resamples[ours.data])


def _with_calibration(comparison: CellPair, by_key: Mapping[CellKey, Cell], resamples: Resamples) -> CellPair:
    """Add `log_mean_off` over all populations to the published form's comparison at the lowest."""
    pairs = [
        (ours, theirs)
        for key, ours in by_key.items()
        if key == comparison.ours._replace(population=key.population)
        if (theirs := by_key.get(comparison.theirs._replace(population=key.population))) is not None
    ]
    rates = [ours.key.population for ours, _ in pairs if ours.key.population is not None]
    if comparison.about != "published" or not rates or comparison.ours.population != min(rates):
        return comparison
    found = calibration_difference([ours for ours, _ in pairs], [theirs for _, theirs in pairs], resamples)
    return comparison if found is None else replace(comparison, differences={**comparison.differences, LOG_MEAN_OFF: found})


def _of_cell(areas: Areas, cell: Cell) -> Areas:
    return {run: areas[run] for run in cell.runs if run in areas}


def _constant_figures(cell: Cell) -> Mapping[str, Figure]:
    """Return the figures of always answering π to the cell's nodules: no interval, since nothing is learnt. Its AUC is ½."""
    binary = is_binary(cell)
    rows = np.unique(cell.rows, return_index=True)[1]
    answer = np.tile(np.log(cell.population), (len(rows), 1))
    target = cell.labels[rows] if binary else votes_of(cell)[rows]
    found = evaluate(answer, target, cell.population, intervals=None)
    names = BINARY_FIGURES if binary else (LOG_LIKELIHOOD, *_RATING_FIGURES)
    figures = {name: Figure(round(found[name].value, 12), reason=found[name].reason) for name in names}
    figures |= {"skill": Figure(0.0), "calibration_error": Figure(0.0)}  # up to rounding
    if not binary:
        return figures
    for cost in COSTS:
        acts = float(cell.population[1] >= 1 / (1 + cost))
        benefit = acts * float(cell.population[1] - cell.population[0] / cost)
        by_cost = {"tpr": acts, "tnr": 1 - acts, "net_benefit": round(benefit, 12)}
        figures |= {f"{name}_cost_{cost}": Figure(value) for name, value in by_cost.items()}
    return {**figures, AUC: Figure(0.5)}


def _binary_figures(cell: Cell, areas: Areas, resamples: Resamples) -> Mapping[str, Figure]:
    """Return the figures of all out-of-fold predictions together, except the AUC; intervals by patient. A nodule occurs once
    per seed, which does not narrow the intervals: its patient is drawn as a whole."""
    found = evaluate(cell.log_probs, cell.labels, cell.population, groups=cell.patients, level=LEVEL, draws=DRAWS)
    auc = mean_area(areas)
    runs = len(cell.runs)
    if len(areas) < runs and not math.isnan(auc.value) and not auc.reason:
        left_out = f"{runs - len(areas)} of {runs} tests have one class alone, and are left out"
        auc = Figure(auc.value, auc.low, auc.high, left_out)
    decisions, patient = decision_figures(cell), resamples.patient[cell.rows]
    by_cost = {name: decisions[name].figure(patient, resamples) for name in COST_FIGURES}
    return {**{name: rounded(found[name]) for name in BINARY_FIGURES}, AUC: auc, **by_cost}


def _matched_figures(cell: Cell, areas: Areas, resamples: Resamples) -> Mapping[str, Figure]:
    """Return the figures of matched predictions, by resamples alone, which takes a fraction of the time of `evaluate`."""
    decisions, patient = decision_figures(cell), resamples.patient[cell.rows]
    by_class = {name: decisions[name].figure(patient, resamples) for name in (*_MATCHED_FIGURES, *COST_FIGURES)}
    return {**_likelihood_figures(cell, resamples), **by_class, AUC: mean_area(areas)}


def _rating_figures(cell: Cell, resamples: Resamples) -> Mapping[str, Figure]:
    """Return every figure of ratings. Brier score and calibration error have the delta method's intervals, which takes a tenth
    of the time of resampling with five classes."""
    found = evaluate(cell.log_probs, votes_of(cell), cell.population, groups=cell.patients, level=LEVEL, intervals="analytic")
    patient, shares = resamples.patient[cell.rows], rating_figures(cell)
    figures = {name: each.figure(patient, resamples, "there is no such nodule") for name, each in shares.items()}
    for rule in RULES:
        recalls = [shares[f"{rule}_off_by_one_recall_{rating}"].estimate(patient, resamples) for rating in range(1, 5)]
        figures[f"{rule}_{MARGIN}"] = combined(lambda each: each[1:].min(0) - each[0], recalls).figure("a rating is missing")
    return {**_likelihood_figures(cell, resamples), **{name: rounded(found[name]) for name in _RATING_FIGURES}, **figures}


def _likelihood_figures(cell: Cell, resamples: Resamples) -> dict[str, Figure]:
    found = paired_figures(cell)[LOG_LIKELIHOOD].figure(resamples.patient[cell.rows], resamples, "a class has no nodule")
    blind = float(cell.population @ np.log(cell.population))
    value, low, high = (1 - each / blind for each in (found.value, found.low, found.high))
    return {LOG_LIKELIHOOD: found, "skill": rounded(Figure(value, low, high, found.reason))}
