"""Fit a table: compare candidates by cross-validation at the population, and refit the chosen one on all rows.

Stage: `pandas.DataFrame`, target, population → `TableModel`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Int64

from ..prevalence import Prevalence
from ..sklearn.population import Population
from .candidates import Family, Fitted, Part, families
from .columns import as_text
from .compare import (
    Candidate,
    CrossValidation,
    Progress,
    always_population,
    calibration_of,
    candidates_of,
    choose,
    choose_folds,
    comparison_table,
    cross_validate,
)
from .encode import ColumnSpec, column_specs
from .findings import Finding, raise_errors
from .inspect import inspect_table
from .labels import Label, labels_of, population_of
from .model import HeldOutRows, TableModel
from .splits import stratified_rows


def fit_table(
    frame: pd.DataFrame,
    *,
    target: str,
    population: Population | None,
    positive: Label | None = None,
    group: str | None = None,
    leave_out: Iterable[str] = (),
    candidates: Sequence[str] | None = None,
    folds: int = 5,
    seed: int = 0,
    max_compare_rows: int = 50_000,
    progress: Progress | None = None,
) -> TableModel:
    """Fit a classifier of a table for a population.

    Linear models and boosted trees are trained on the rows as they are, and their predictions moved to the population: in
    closed form, or after an affine calibration of their log-probabilities that is cross-fitted. All are compared out of fold by
    the expected log-likelihood at the population, beside always answering π and the uncorrected models. The simplest that is
    within one standard error of the best is kept and fitted to all rows.

    A large table is compared on a part of its rows, of which a rare class is kept as far as possible and the other classes
    have weights. Scales, medians and lists of categories are taken from all rows; the labels have no part in them.

    Args:
        frame: the table.
        target: the column with the classes.
        population: π: for two classes how often the positive one occurs, or a dict by label, K frequencies in the order of the
            sorted classes, a `Prevalence`, an estimate; None for the table's own mix.
        positive: of two classes, the one that `population` is the frequency of; found by its name where it is left out.
        group: the column that names patients, sites or the like; rows of one are never in both parts of a fold.
        leave_out: columns that are not to be used.
        candidates: "linear", "boosting"; None: both, boosting only where LightGBM is installed.
        folds: how many; fewer where a class has fewer rows, or groups.
        seed: of the folds, the drawn rows and LightGBM; the same seed gives the same model.
        max_compare_rows: rows on which candidates are compared.
        progress: called with (done, of how many steps, a few words).

    Raises:
        ValueError: the errors that `inspect_table` finds.

    Examples:
        >>> import numpy as np, pandas as pd
        >>> from rightloss.tabular import fit_table
        >>> rng = np.random.default_rng(0)
        >>> cancer = np.arange(300) % 2
        >>> frame = pd.DataFrame({"x": rng.normal(2 * cancer, 1), "cancer": np.where(cancer, "yes", "no")})
        >>> model = fit_table(frame, target="cancer", population=0.01, candidates=["linear"])
        >>> model.comparison["candidate"].iloc[-1]
        'linear, uncorrected'
    """
    _check_numbers(folds, max_compare_rows)
    report = inspect_table(
        frame, target=target, positive=positive, group=group, population=population, leave_out=list(leave_out)
    )
    raise_errors(report.findings)
    found = labels_of(frame[target], positive)
    prevalence = population_of(population, found)
    labelled = found.codes >= 0
    frame = frame if labelled.all() else frame.loc[labelled]
    specs = column_specs(frame, {column.name: column.kind for column in report.columns if column.role == "feature"})
    groups = None if group is None else _group_numbers(frame[group])
    table = _Table(frame, specs, found.codes[labelled], groups, len(found.classes))
    chosen_families, notes = families(candidates, specs, seed)
    result = _compare(table, chosen_families, prevalence, folds, seed, max_compare_rows, progress)
    notes += result.notes
    return TableModel(
        target=target,
        group=group,
        classes_=found.classes,
        positive=found.positive,
        population=prevalence,
        columns=specs,
        comparison=result.comparison,
        held_out=result.held_out,
        family=result.chosen.family,
        fitted=result.fitted,
        calibration=None if result.chosen.correction != "affine" else calibration_of(result.raw, result.held_out.target),
        rows=len(frame),
        findings=[*report.findings, *(Finding("note", None, words) for words in notes), *result.findings],
    )


@dataclass(frozen=True, eq=False)
class _Table:
    """The labelled rows."""

    frame: pd.DataFrame
    specs: list[ColumnSpec]
    codes: Int64[np.ndarray, " n"]
    groups: Int64[np.ndarray, " n"] | None
    num_classes: int


@dataclass(frozen=True, eq=False)
class _Result:
    """What a comparison comes to."""

    chosen: Candidate
    fitted: Fitted | None
    raw: np.ndarray
    comparison: pd.DataFrame
    held_out: HeldOutRows
    notes: list[str]
    findings: list[Finding]


def _compare(
    table: _Table,
    chosen_families: list[Family],
    prevalence: Prevalence,
    num_folds: int,
    seed: int,
    most: int,
    progress: Progress | None,
) -> _Result:
    """Cross-validate the families on some rows, choose, and refit."""
    rows, weights = stratified_rows(table.codes, most, seed)
    codes, groups = table.codes[rows], None if table.groups is None else table.groups[rows]
    folds = choose_folds(codes, groups, num_folds, seed)
    step = _steps(progress, len(chosen_families) * (int(folds.max()) + 1) + 2)
    compared = [always_population(prevalence, len(rows))]
    crossed: dict[str, CrossValidation] = {}
    notes = (
        [] if len(rows) == len(table.codes) else [f"candidates were compared on {len(rows):,} of {len(table.codes):,} rows."]
    )
    if int(folds.max()) + 1 < num_folds:
        notes.append(f"{int(folds.max()) + 1} folds in the place of {num_folds}: a class has no more rows, or groups.")
    part_frame = table.frame.iloc[rows]
    for family in chosen_families:
        part = Part(family.matrix(part_frame, table.specs), codes, weights, table.num_classes)
        crossed[family.name] = cross_validate(family, part, folds, groups, seed, step)
        made, words = candidates_of(family.name, crossed[family.name], codes, folds, prevalence)
        compared, notes = compared + made, notes + words
    chosen = choose(compared, codes, prevalence, groups)
    step("figures of the candidates")
    comparison = comparison_table(compared, codes, prevalence, groups, chosen)
    step("fit to all rows")
    fitted, raw = None, chosen.log_probs
    findings: list[Finding] = []
    if chosen.family is None:
        warning = (
            "no candidate predicts better than always answering π: the model does so, and its predictions are all the same."
        )
        findings.append(Finding("warning", None, warning))
    else:
        family = next(each for each in chosen_families if each.name == chosen.family)
        fitted, raw = _refit(family, table, crossed[family.name].setting, seed), crossed[family.name].log_probs
    step("done")
    return _Result(chosen, fitted, raw, comparison, HeldOutRows(chosen.log_probs, codes, groups, rows), notes, findings)


def _refit(family: Family, table: _Table, setting: float, seed: int) -> Fitted:
    """Fit to all rows, or to as many as the family's matrix may hold."""
    width = sum(spec.linear_width for spec in table.specs)
    most = len(table.codes) if family.most_cells is None else max(family.most_cells // width, 1000)
    rows, weights = stratified_rows(table.codes, most, seed)
    frame = table.frame if len(rows) == len(table.codes) else table.frame.iloc[rows]
    return family.fit(Part(family.matrix(frame, table.specs), table.codes[rows], weights, table.num_classes), setting)


def _group_numbers(series: pd.Series) -> Int64[np.ndarray, " n"]:
    """Number the groups; a row without one is a group of its own."""
    codes = as_text(series)[0]
    alone = codes < 0
    codes[alone] = codes.max(initial=-1) + 1 + np.arange(int(alone.sum()))
    return codes


def _steps(progress: Progress | None, total: int) -> Callable[[str], None]:
    """Return a function that counts the steps begun, and tells `progress`."""
    done = -1

    def step(words: str) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(float(done), total, words)

    return step


def _check_numbers(folds: int, max_compare_rows: int) -> None:
    if isinstance(folds, bool) or folds < 2:
        raise ValueError(f"Expected 2 folds or more, but got {folds!r}: one is tested on, the others are trained on.")
    if isinstance(max_compare_rows, bool) or max_compare_rows < 100:
        raise ValueError(f"Expected `max_compare_rows` of 100 or more, but got {max_compare_rows!r}: such as 50000.")
