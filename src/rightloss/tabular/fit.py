"""Fit a table: compare candidates by cross-validation at the population, and refit the chosen one on all rows.

Stage: `pandas.DataFrame`, target, population, unlabelled rows → `TableModel`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Int64

from ..predictive.retarget import retarget
from ..prevalence import Prevalence
from ..shift import JointPrevalenceEstimate
from ..sklearn.population import LearntPopulation, Population, is_unknown
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
    likelihoods,
)
from .encode import ColumnSpec, column_specs, linear_matrix
from .findings import Finding, TableWarning, raise_errors
from .inspect import inspect_table
from .labels import Label, labels_of, population_of
from .model import FoldModels, HeldOutRows, TableModel
from .splits import stratified_rows
from .unlabelled import (
    WITH_UNLABELLED,
    LinearWithUnlabelled,
    UnlabelledReport,
    UnlabelledTable,
    by_fold,
    learn_population,
    mean_findings,
    shift_findings,
    stream_log_likelihood,
    unlabelled_table,
    what_they_brought,
)

_NOTHING_BETTER = (
    "no candidate predicts better than always answering π: the model does so, and its predictions are all the same."
)


def fit_table(
    frame: pd.DataFrame,
    *,
    target: str,
    population: LearntPopulation | None,
    unlabelled: pd.DataFrame | None = None,
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

    Linear models and boosted trees are trained on the given rows, and their predictions moved to the population: in closed
    form, or after a cross-fitted affine calibration of their log-probabilities. All are compared out of fold by the expected
    log-likelihood at the population, together with always answering π and the uncorrected models. The simplest one within one
    standard error of the best is kept and fitted to all rows.

    For a large table, candidates are compared on a subset of the rows, which keeps as many rows of a rare class as possible
    and weights the other classes. Scales, medians and lists of categories use all rows, but not the labels.

    With unlabelled rows of the population there is one more candidate: a linear model by the likelihood of both
    (`InformationGainClassifier.fit`), which uses them in every fold. First, a test checks whether p(x|y) is the same in both
    tables. If it does not warn, that candidate and the best of the others are compared by the likelihood of held-out rows of
    both tables (`stream_log_likelihood`). If it warns, that candidate is not kept. An unknown population is learned once, from
    the out-of-fold predictions of the better family (`joint_prevalence`), and all candidates are compared at it.

    Args:
        frame: the table.
        target: the column with the classes.
        population: π: for two classes the frequency of the positive one, or a dict by label, K frequencies in the order of the
            sorted classes, a `Prevalence`, an estimate; None for the table's own mix; "unknown" to learn it from `unlabelled`.
        unlabelled: rows of the population, with the columns of the table except for the target.
        positive: of two classes, the one that `population` is the frequency of; by default guessed from its name.
        group: the column of patients, sites or other groups; rows of a group are never split between training and test.
        leave_out: columns to ignore.
        candidates: "linear", "boosting"; None for both, boosting only if LightGBM is installed.
        folds: number of folds; fewer if a class has fewer rows, or groups.
        seed: seed of the folds, the drawn rows and LightGBM; the same seed gives the same model.
        max_compare_rows: maximum number of rows for the comparison of candidates.
        progress: called with (steps done, number of steps, a short text).

    Raises:
        ValueError: for the errors that `inspect_table` finds.

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
    stated, left_out = _stated_population(population, unlabelled), list(leave_out)
    report = inspect_table(frame, target=target, positive=positive, group=group, population=stated, leave_out=left_out)
    raise_errors(report.findings)
    found = labels_of(frame[target], positive)
    prevalence = population_of(stated, found)
    prevalence = Prevalence.unknown(len(found.classes), prevalence.sampling) if is_unknown(population) else prevalence
    labelled = found.codes >= 0
    frame = frame if labelled.all() else frame.loc[labelled]
    specs = column_specs(frame, {column.name: column.kind for column in report.columns if column.role == "feature"})
    groups = None if group is None else _group_numbers(frame[group])
    others: UnlabelledTable | None = None
    odd: list[Finding] = []
    if unlabelled is not None:
        others, odd = unlabelled_table(unlabelled, frame, specs, target, seed)
    table = _Table(frame, specs, found.codes[labelled], groups, len(found.classes), others)
    chosen_families, notes = families(candidates, specs, seed)
    result = _compare(table, chosen_families, prevalence, folds, seed, max_compare_rows, progress)
    notes += result.notes
    model = TableModel(
        target=target,
        group=group,
        classes_=found.classes,
        positive=found.positive,
        population=result.prevalence,
        columns=specs,
        comparison=result.comparison,
        held_out=result.held_out,
        family="linear" if result.chosen.family == WITH_UNLABELLED else result.chosen.family,
        fitted=result.fitted,
        calibration=None if result.chosen.correction != "affine" else calibration_of(result.raw, result.held_out.target),
        rows=len(frame),
        findings=[*report.findings, *odd, *(Finding("note", None, words) for words in notes), *result.findings],
        unlabelled=result.unlabelled,
        folds=result.folds,
    )
    return model if others is None else _with_mean_predictions(model, others)


@dataclass(frozen=True, eq=False)
class _Table:
    """The labelled rows, and the unlabelled ones."""

    frame: pd.DataFrame
    specs: list[ColumnSpec]
    codes: Int64[np.ndarray, " n"]
    groups: Int64[np.ndarray, " n"] | None
    num_classes: int
    others: UnlabelledTable | None


@dataclass(frozen=True, eq=False)
class _Result:
    """The result of a comparison."""

    chosen: Candidate
    fitted: Fitted | None
    raw: np.ndarray
    comparison: pd.DataFrame
    held_out: HeldOutRows
    notes: list[str]
    findings: list[Finding]
    prevalence: Prevalence
    unlabelled: UnlabelledReport | None
    folds: FoldModels | None


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
    some = _some_rows(table, num_folds, seed, most)
    more = int(any(family.name == "linear" for family in chosen_families)) if table.others is not None else 0
    step = _steps(progress, (len(chosen_families) + more) * some.num_folds + 2 + (table.others is not None))
    findings: list[Finding] = []
    p_value, estimate = None, None
    if table.others is not None:
        step("test of the unlabelled rows")
        of_others = linear_matrix(table.others.frame, table.specs)
        p_value, findings = shift_findings(linear_matrix(some.frame, table.specs), some.codes, of_others, prevalence)
    crossed = {family.name: _crossed(family, table, some, seed, step) for family in chosen_families}
    if prevalence.is_unknown:
        estimate = _learnt_population(chosen_families, crossed, some.codes, table)
        prevalence = estimate.prevalence(prevalence.sampling)
    if more:
        chosen_families = [*chosen_families, LinearWithUnlabelled(of_others, prevalence)]
        crossed[WITH_UNLABELLED] = _crossed(chosen_families[-1], table, some, seed, step)
    compared, notes = _candidates(crossed, some, prevalence)
    warned, gain = bool(findings), None
    able = [each for each in compared if not (warned and each.family == WITH_UNLABELLED)]
    chosen = choose(able, some.codes, prevalence, some.groups)
    if more and not warned and p_value is not None:
        chosen, gain = _chosen_by_both(compared, chosen_families, crossed, table, some, prevalence)
    step("figures of the candidates")
    comparison = comparison_table(compared, some.codes, prevalence, some.groups, chosen)
    step("fit to all rows")
    fitted, raw, of_folds = None, chosen.log_probs, None
    if chosen.family is None:
        findings.append(Finding("warning", None, _NOTHING_BETTER))
    else:
        family = next(each for each in chosen_families if each.name == chosen.family)
        found = crossed[family.name]
        fitted, raw = _refit(family, table, found.setting, seed), found.log_probs
        of_folds = FoldModels(found.models, raw, some.folds)
    step("done")
    brought = None
    if table.others is not None:
        of_test = (p_value, warned, gain)
        brought = what_they_brought(table.others, *of_test, estimate, compared, chosen, some.codes, prevalence, some.groups)
    held = HeldOutRows(chosen.log_probs, some.codes, some.groups, some.rows)
    return _Result(chosen, fitted, raw, comparison, held, some.notes + notes, findings, prevalence, brought, of_folds)


@dataclass(frozen=True, eq=False)
class _SomeRows:
    """The rows for the comparison of candidates, with the test fold of each, and notes on their choice."""

    rows: Int64[np.ndarray, " m"]
    weights: np.ndarray
    frame: pd.DataFrame
    codes: Int64[np.ndarray, " m"]
    groups: Int64[np.ndarray, " m"] | None
    folds: Int64[np.ndarray, " m"]
    notes: list[str]

    @property
    def num_folds(self) -> int:
        return int(self.folds.max()) + 1


def _some_rows(table: _Table, num_folds: int, seed: int, most: int) -> _SomeRows:
    rows, weights = stratified_rows(table.codes, most, seed)
    codes, groups = table.codes[rows], None if table.groups is None else table.groups[rows]
    folds = choose_folds(codes, groups, num_folds, seed)
    notes = []
    if len(rows) < len(table.codes):
        notes.append(f"candidates were compared on {len(rows):,} of {len(table.codes):,} rows.")
    if int(folds.max()) + 1 < num_folds:
        notes.append(f"{int(folds.max()) + 1} folds instead of {num_folds}: a class has no more rows, or groups.")
    return _SomeRows(rows, weights, table.frame.iloc[rows], codes, groups, folds, notes)


def _crossed(family: Family, table: _Table, some: _SomeRows, seed: int, step: Callable[[str], None]) -> CrossValidation:
    part = Part(family.matrix(some.frame, table.specs), some.codes, some.weights, table.num_classes)
    return cross_validate(family, part, some.folds, some.groups, seed, step)


def _candidates(
    crossed: dict[str, CrossValidation], some: _SomeRows, prevalence: Prevalence
) -> tuple[list[Candidate], list[str]]:
    """Return all candidates, the simplest first, and notes about impossible ones."""
    compared = [always_population(prevalence, len(some.rows))]
    notes: list[str] = []
    for name, found in crossed.items():
        made, words = candidates_of(name, found, some.codes, some.folds, prevalence)
        if name == WITH_UNLABELLED:  # its closed form follows from its likelihood
            compared.append(replace(made[0], name=name, only_as_best=True))
        else:
            compared, notes = compared + made, notes + words
    return compared, notes


def _chosen_by_both(
    compared: list[Candidate],
    chosen_families: list[Family],
    crossed: dict[str, CrossValidation],
    table: _Table,
    some: _SomeRows,
    prevalence: Prevalence,
) -> tuple[Candidate, float]:
    """Choose between the model with unlabelled rows and the best of the others, by held-out rows of both tables.

    Returns:
        The one with the higher `stream_log_likelihood`, and that of the first minus that of the other.
    """
    assert table.others is not None
    (learnt,) = [each for each in compared if each.family == WITH_UNLABELLED]
    rival = choose([each for each in compared if each is not learnt], some.codes, prevalence, some.groups)
    family = chosen_families[-1]
    assert isinstance(family, LinearWithUnlabelled)
    part = Part(family.matrix(some.frame, table.specs), some.codes, some.weights, table.num_classes)
    with_them = family.held_out(part, some.folds, crossed[WITH_UNLABELLED].settings)
    without = rival.log_probs, _of_others(rival, chosen_families, crossed, table, some.codes, prevalence)
    pi = prevalence.population.numpy()
    scores = [stream_log_likelihood(ours, some.codes, theirs, pi) for ours, theirs in (with_them, without)]
    return learnt if scores[0] > scores[1] else rival, scores[0] - scores[1]


def _of_others(
    candidate: Candidate,
    chosen_families: list[Family],
    crossed: dict[str, CrossValidation],
    table: _Table,
    codes: np.ndarray,
    prevalence: Prevalence,
) -> np.ndarray:
    """Return a candidate's predictions of the unlabelled rows at π, from the models of the folds."""
    assert table.others is not None
    if candidate.family is None:
        return np.tile(prevalence.population.log().numpy(), (len(table.others.frame), 1))
    family, found = next(each for each in chosen_families if each.name == candidate.family), crossed[candidate.family]
    raw, from_ = by_fold(found.models, family.matrix(table.others.frame, table.specs), table.num_classes), prevalence.sampling
    if candidate.correction == "affine":
        calibration = calibration_of(found.log_probs, codes)
        raw, from_ = np.asarray(calibration(raw)), calibration.sampling
    return np.asarray(retarget(raw, from_=from_, to=prevalence))


def _with_mean_predictions(model: TableModel, others: UnlabelledTable) -> TableModel:
    """Return the model with its mean prediction for the unlabelled rows, and with a warning if that is far from π."""
    assert model.unlabelled is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)  # warnings of unusual cells, which are among the findings
        predictions = np.exp(model.predict_log_proba(others.frame))
    brought = replace(model.unlabelled, mean_predictions=predictions.mean(0).tolist())
    found = mean_findings(predictions, model.population.population.numpy(), model.classes_)
    return replace(model, unlabelled=brought, findings=[*model.findings, *found])


def _learnt_population(
    chosen_families: list[Family], crossed: dict[str, CrossValidation], codes: np.ndarray, table: _Table
) -> JointPrevalenceEstimate:
    """Estimate π with the family that has the best out-of-fold predictions at the table's own mix."""
    assert table.others is not None
    best = max(chosen_families, key=lambda family: float(likelihoods(crossed[family.name].log_probs, codes).mean()))
    found = crossed[best.name]
    return learn_population(found.models, found.log_probs, codes, best.matrix(table.others.frame, table.specs))


def _stated_population(population: LearntPopulation | None, unlabelled: pd.DataFrame | None) -> Population | None:
    """Return the given population, None if it is to be learned; raise a ValueError if it does not fit the unlabelled rows."""
    if is_unknown(population):
        if unlabelled is None:
            raise ValueError(
                "Expected unlabelled rows from which an unknown population is learnt, but got none: give them, or the "
                "population."
            )
        return None
    if population is None and unlabelled is not None:
        raise ValueError(
            "Expected a population with unlabelled rows, but got none: where the labelled rows are in the population's mix, "
            "unlabelled ones add nothing; give how frequent the classes are, or 'unknown' to learn it."
        )
    assert not isinstance(population, str)
    return population


def _refit(family: Family, table: _Table, setting: float, seed: int) -> Fitted:
    """Fit to all rows, or to as many as the family's matrix allows."""
    width = sum(spec.linear_width for spec in table.specs)
    most = len(table.codes) if family.most_cells is None else max(family.most_cells // width, 1000)
    rows, weights = stratified_rows(table.codes, most, seed)
    frame = table.frame if len(rows) == len(table.codes) else table.frame.iloc[rows]
    return family.fit(Part(family.matrix(frame, table.specs), table.codes[rows], weights, table.num_classes), setting)


def _group_numbers(series: pd.Series) -> Int64[np.ndarray, " n"]:
    """Return the groups as numbers; a row without one is its own group."""
    codes = as_text(series)[0]
    alone = codes < 0
    codes[alone] = codes.max(initial=-1) + 1 + np.arange(int(alone.sum()))
    return codes


def _steps(progress: Progress | None, total: int) -> Callable[[str], None]:
    """Return a function that counts the started steps, and reports them to `progress`."""
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
