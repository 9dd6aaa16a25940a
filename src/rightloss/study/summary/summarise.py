"""A study's results → all that is to be said of them.

Stage: `StudyResults` → `Cell`s → `Row`s and `Comparison`s, on the same resamples → checks and sentences → `Summary`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from ...metrics import Figure
from ..pooled_predictions import Cell, CellKey, cells
from ..results import StudyResults
from .answer import answer_of
from .areas import Areas, areas_of
from .binary import EVALUATED, binary_figures, constant_figures
from .checks import checks_of
from .comparisons import compare, pairs
from .contract import CONSTANT, Comparison, Row, Summary
from .findings import findings_of
from .question import question_of
from .ratings import OF_CONSTANT, rating_figures
from .resampling import Resamples, resamples_of


def summarise(results: StudyResults) -> Summary:
    """Figures with intervals by patient, paired differences, and what they say in words. Reads nothing but `results`, and
    gives the same to the last digit each time."""
    found = cells(results)
    names = dict.fromkeys(cell.key.data for cell in found)
    resamples = {name: resamples_of(cell for cell in found if cell.key.data == name) for name in names}
    binary = results.config.task != "rating"
    areas = {cell.key: areas_of(cell, resamples[cell.key.data]) for cell in found} if binary else {}
    rows = tuple(_rows(found, areas, resamples))
    comparisons = tuple(_comparisons(results, found, areas, resamples))
    checks = checks_of(rows, comparisons, results.config)
    return Summary(
        results.config,
        results.missing,
        question_of(results),
        answer_of(rows, comparisons, results.config),
        rows,
        comparisons,
        checks,
        findings_of(rows, comparisons, checks, results.config, results.missing),
    )


def _rows(found: Iterable[Cell], areas: Mapping[CellKey, Areas], resamples: Mapping[str, Resamples]) -> Iterator[Row]:
    """A cell's row; before the first of its data set, minibatches and population that of always answering π."""
    answered = set()
    for cell in found:
        constant = CellKey(cell.key.data, cell.key.minibatches, "", "", "", "", cell.key.population, CONSTANT)
        binary = len(cell.population) == 2
        if constant not in answered:
            answered.add(constant)
            yield _row(cell, constant, constant_figures(cell, EVALUATED if binary else OF_CONSTANT))
        draws = resamples[cell.key.data]
        yield _row(cell, cell.key, binary_figures(cell, areas[cell.key], draws) if binary else rating_figures(cell, draws))


def _row(cell: Cell, key: CellKey, figures: Mapping[str, Figure]) -> Row:
    counts = (len(np.unique(each)) for each in (cell.fold, cell.seed, cell.rows, cell.patients))
    return Row(key, figures, *counts)


def _comparisons(
    results: StudyResults, found: Iterable[Cell], areas: Mapping[CellKey, Areas], resamples: Mapping[str, Resamples]
) -> Iterator[Comparison]:
    by_key = {cell.key: cell for cell in found}
    for about, ours, theirs in pairs(list(by_key), results.config):
        both = (areas[ours], areas[theirs]) if areas else None
        comparison = compare(about, by_key[ours], by_key[theirs], both, resamples[ours.data])
        if comparison is not None:
            yield comparison
