"""Fit a table: compare candidates by cross-fitting at the population, and refit the chosen one on all rows.

Stage: `pandas.DataFrame`, target, population, unlabelled rows → `TableModel`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.base import clone

from ..arrays import checked_number
from ..calibration import Calibration, fit_mean
from ..calibration.choice import expected_gain, score
from ..predictive import retarget
from ..prevalence import Prevalence
from ..sklearn.population import LearntPopulation, Population, is_unknown
from .candidates import (
    ComparedRows,
    CrossFit,
    LabelledTable,
    TableCandidate,
    always_population,
    compared_rows,
    comparison_table,
    corrected,
    correction_of,
    cross_fit,
    fold_corrections,
    simplest,
)
from .columns import Label, as_text
from .encode import column_specs
from .findings import Finding
from .inspect import inspect_table
from .labels import labels_of, population_of
from .limits import odds_ratios
from .model import FoldModels, HeldOutPredictions, TableModel, UnlabelledReport
from .pipelines import LinearPipeline, Pipeline, pipelines, stratified_rows
from .unlabelled import (
    WITH_UNLABELLED,
    LinearWithUnlabelled,
    UnlabelledTable,
    learn_population,
    mean_findings,
    shift_findings,
    stream_log_likelihood,
    unlabelled_table,
)

if TYPE_CHECKING:
    from jaxtyping import Int64

Progress = Callable[[float, int, str], None]
Step = Callable[[str], None]
_NOTHING_BETTER = (
    "no candidate predicts better than always answering π: the model does so, and its predictions are all the same."
)


@dataclass(frozen=True)
class FitOptions:
    """How `fit_table` compares models.

    Attributes:
        candidates: "linear", "boosting"; None for both, boosting only if LightGBM is installed.
        folds: number of folds; fewer if a class has fewer rows, or groups.
        seed: seed of the folds, the drawn rows and LightGBM; the same seed gives the same model.
        max_compare_rows: maximum number of rows for the comparison of candidates.
        progress: called with (steps done, number of steps, a short text).

    Examples:
        >>> from rightloss.tabular import FitOptions
        >>> FitOptions(candidates=["linear"]).folds
        5
    """

    candidates: Sequence[str] | None = None
    folds: int = 5
    seed: int = 0
    max_compare_rows: int = 50_000
    progress: Progress | None = None

    def __post_init__(self) -> None:
        checked_number(self.folds, "folds", 2.0, remedy="one is tested on, the others are trained on")
        checked_number(self.max_compare_rows, "max_compare_rows", 100.0, remedy="such as 50000")


def fit_table(
    frame: pd.DataFrame,
    *,
    target: str,
    population: LearntPopulation | None,
    unlabelled: pd.DataFrame | None = None,
    positive: Label | None = None,
    group: str | None = None,
    leave_out: Iterable[str] = (),
    **options: Any,
) -> TableModel:
    """Fit a classifier of a table for a population.

    Linear models and boosted trees are trained on the given rows, and their predictions moved to the population, as in
    [`PrevalenceCorrectedClassifier`][rightloss.sklearn.PrevalenceCorrectedClassifier]: in closed form, or calibrated on
    out-of-fold predictions. Its rule, by the expected log-likelihood at the population, chooses the correction of each.
    Boosting is kept if it is better than the linear model by more than one standard error. If neither is better than always
    answering π, the model answers π.

    For a large table, candidates are compared on a subset of the rows, which keeps as many rows of a rare class as possible
    and weights the other classes. Scales, medians and lists of categories use all rows, but not the labels.

    With unlabelled rows of the population there are more candidates: predictions with a mean of π over these rows, and a linear
    model by the likelihood of both tables (`InformationGainClassifier.fit`), which uses them in every fold. First, a test
    checks whether p(x|y) is the same in both tables. If it does not warn, that model and the best of the others are compared by
    the likelihood of held-out rows of both tables (`stream_log_likelihood`). If it warns, these candidates are not kept. An
    unknown population is learned once, from the out-of-fold predictions of the better pipeline (`joint_prevalence`), and all
    candidates are compared at it.

    Args:
        frame: the table.
        target: the column with the classes.
        population: π: for two classes the frequency of the positive one, or a dict by label, K frequencies in the order of the
            sorted classes, a `Prevalence`, an estimate; None for the table's own mix; "unknown" to learn it from `unlabelled`.
        unlabelled: rows of the population, with the columns of the table except for the target.
        positive: of two classes, the one that `population` is the frequency of; by default guessed from its name.
        group: the column of patients, sites or other groups; rows of a group are never split between training and test.
        leave_out: columns to ignore.
        **options: `candidates`, `folds`, `seed`, `max_compare_rows` and `progress`, as in `FitOptions`.

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
    how = FitOptions(**options)
    stated, left_out = _stated_population(population, unlabelled), list(leave_out)
    report = inspect_table(frame, target=target, positive=positive, group=group, population=stated, leave_out=left_out)
    if report.errors:
        raise ValueError(" ".join(each.message for each in report.errors))
    found = labels_of(frame[target], positive)
    prevalence = population_of(stated, found)
    prevalence = Prevalence.unknown(len(found.classes), prevalence.sampling) if is_unknown(population) else prevalence
    labelled = found.codes >= 0
    frame = frame if labelled.all() else frame.loc[labelled]
    specs = column_specs(frame, {column.name: column.kind for column in report.columns if column.role == "feature"})
    table = LabelledTable(frame, specs, found.codes[labelled], None if group is None else _group_numbers(frame[group]))
    others, odd = (None, []) if unlabelled is None else unlabelled_table(unlabelled, frame, specs, target, how.seed)
    models, notes = pipelines(how.candidates, specs, how.seed)
    some = compared_rows(table, how.folds, how.seed, how.max_compare_rows)
    with_both = others is not None and models[0].family == "linear"
    step = _steps(how.progress, len(models) + 2 + (others is not None) + with_both)
    compared = _compare(models, some, prevalence, others, step)
    chosen, prevalence = compared.chosen, compared.prevalence
    step("figures of the candidates")
    comparison = comparison_table(compared.candidates, chosen, some, prevalence)
    step("fit to all rows")
    fitted = None if chosen.found is None else _refit(chosen.found.pipeline, table, how.seed)
    ratios, why = odds_ratios(table, found.classes) if isinstance(fitted, LinearPipeline) else (None, [])
    of_others = None if others is None or fitted is None else others.predictions(fitted)
    findings = [Finding("note", None, words) for words in (*notes, *some.notes, *why)] + compared.findings
    findings += [Finding("warning", None, _NOTHING_BETTER)] if fitted is None else []
    model = TableModel(
        target=target,
        group=group,
        classes_=found.classes,
        positive=found.positive,
        population=prevalence,
        columns=specs,
        comparison=comparison,
        held_out=HeldOutPredictions(chosen.log_probs, some.table.codes, some.table.groups, some.rows),
        fitted=fitted,
        correction=None if fitted is None else _correction(chosen, some, prevalence, of_others),
        rows=len(frame),
        findings=[*report.findings, *odd, *findings],
        unlabelled=compared.brought,
        folds=_fold_models(chosen, some, prevalence, others),
        odds_ratios=ratios,
    )
    step("done")
    return model if others is None else _with_mean_predictions(model, others)


@dataclass(frozen=True, eq=False)
class _Compared:
    """All candidates, the chosen one, π, how unlabelled rows were used, and findings."""

    candidates: list[TableCandidate]
    chosen: TableCandidate
    prevalence: Prevalence
    brought: UnlabelledReport | None = None
    findings: list[Finding] = field(default_factory=list)


def _compare(
    models: Sequence[Pipeline], some: ComparedRows, prevalence: Prevalence, others: UnlabelledTable | None, step: Step
) -> _Compared:
    """Cross-fit the pipelines, and choose one and its correction."""
    crossed = [_crossed(each, some, step) for each in models]
    if others is None:
        return _choose(crossed, some, prevalence)
    step("test of the unlabelled rows")
    p_value, findings = shift_findings(some.table, others, prevalence)
    brought = UnlabelledReport(others.rows, len(others.frame), p_value, warned=bool(findings))
    if prevalence.is_unknown:
        estimate = learn_population(crossed, some.table.codes, others)
        brought = replace(brought, population_low=estimate.low.tolist(), population_high=estimate.high.tolist())
        prevalence = estimate.prevalence(prevalence.sampling)
    compared = _choose(crossed, some, prevalence, None if findings else others)
    compared = replace(compared, brought=brought, findings=findings)
    return _with_both_tables(compared, models[0], some, others, step) if models[0].family == "linear" else compared


def _choose(
    crossed: Sequence[CrossFit], some: ComparedRows, prevalence: Prevalence, others: UnlabelledTable | None = None
) -> _Compared:
    """Return all candidates and the best; unlabelled rows, if given, have a mean prediction of π in one correction."""
    candidates, kept = [always_population(prevalence, len(some.rows))], []
    for each in crossed:
        matched = None if others is None else fit_mean(others.by_fold(each.models), prevalence)
        made, best = corrected(each, some, prevalence, matched)
        candidates += made
        kept += [] if best is None else [best]
    return _Compared(candidates, simplest(kept, some, prevalence.population) or candidates[0], prevalence)


def _with_both_tables(
    compared: _Compared, linear: Pipeline, some: ComparedRows, others: UnlabelledTable, step: Step
) -> _Compared:
    """Add the linear model of both tables; keep it if the test did not warn, and it explains held-out rows of both best."""
    assert compared.brought is not None
    prevalence, chosen, brought = compared.prevalence, compared.chosen, compared.brought
    pipeline = LinearWithUnlabelled(prevalence, others.encoded(linear), random_state=linear.random_state)
    found = _crossed(pipeline, some, step, WITH_UNLABELLED)
    learnt = replace(corrected(found, some, prevalence)[0][0], name=WITH_UNLABELLED)  # the closed form: its likelihood has π
    plain = next(each for each in compared.candidates if each.name == "linear, closed form")
    own = score({"learnt": learnt.log_probs, "plain": plain.log_probs}, some.held_out(plain.log_probs))
    gain, error = expected_gain(own["learnt"] - own["plain"], some.held_out(plain.log_probs), prevalence.population)
    brought = replace(brought, gain=gain, low=gain - 1.96 * error, high=gain + 1.96 * error)
    if not brought.warned:
        codes, pi = some.table.codes, prevalence.population
        ours = [np.asarray(retarget(each, prevalence.sampling, pi)) for each in found.pipeline.held_out(some)]
        theirs = chosen.log_probs, _of_others(chosen, some, prevalence, others)
        better = stream_log_likelihood(ours[0], codes, ours[1], pi) - stream_log_likelihood(theirs[0], codes, theirs[1], pi)
        chosen = learnt if better > 0 else chosen
        brought = replace(brought, stream_gain=better, kept=chosen is learnt)
    return replace(compared, candidates=[*compared.candidates, learnt], chosen=chosen, brought=brought)


def _crossed(pipeline: Pipeline, some: ComparedRows, step: Step, name: str | None = None) -> CrossFit:
    step(f"{name or pipeline.family}, {len(some.splits)} folds")
    return cross_fit(pipeline, some)


def _of_others(candidate: TableCandidate, some: ComparedRows, prevalence: Prevalence, others: UnlabelledTable) -> np.ndarray:
    """Return a candidate's predictions of the unlabelled rows at π, from the models of the folds."""
    if candidate.found is None:
        return np.tile(np.log(prevalence.population), (len(others.frame), 1))
    raw = others.by_fold(candidate.found.models)
    made = _correction(candidate, some, prevalence, raw)
    return np.asarray(retarget(made.apply(raw), made.sampling, prevalence))


def _correction(
    candidate: TableCandidate, some: ComparedRows, prevalence: Prevalence, of_others: np.ndarray | None
) -> Calibration:
    """Return the correction of a candidate: by its out-of-fold predictions, or by its predictions of the unlabelled rows."""
    assert candidate.found is not None
    if candidate.method == "mean_matching":
        assert of_others is not None
        return fit_mean(of_others, prevalence)
    return correction_of(candidate.method, candidate.found.log_probs, some.table.codes, prevalence.sampling)


def _fold_models(
    candidate: TableCandidate, some: ComparedRows, prevalence: Prevalence, others: UnlabelledTable | None
) -> FoldModels | None:
    """Return the models of the folds, each with the correction of its own rows."""
    found, folds = candidate.found, some.folds
    if found is None:
        return None
    if others is not None and candidate.method == "mean_matching":
        made = [fit_mean(others.predictions(each), prevalence) for each in found.models]
    elif isinstance(found.pipeline, LinearWithUnlabelled):  # such models predict at the same mix in each fold
        made = [_correction(candidate, some, prevalence, None)] * len(found.models)
    else:
        made = fold_corrections(candidate.method, found.log_probs, some.table.codes, folds, prevalence.sampling)
    return FoldModels(found.models, found.log_probs, folds, made)


def _refit(pipeline: Pipeline, table: LabelledTable, seed: int) -> Pipeline:
    """Fit to all rows, or to as many as the pipeline's matrix allows."""
    width = sum(spec.linear_width for spec in table.specs)
    most = len(table.codes) if pipeline.most_cells is None else max(pipeline.most_cells // width, 1000)
    rows, weights = stratified_rows(table.codes, most, seed)
    frame = table.frame if len(rows) == len(table.codes) else table.frame.iloc[rows]
    return clone(pipeline).fit(pipeline.encode(frame, table.specs), table.codes[rows], weights)


def _with_mean_predictions(model: TableModel, others: UnlabelledTable) -> TableModel:
    """Return the model with its mean prediction for the unlabelled rows, and with a warning if that is far from π."""
    assert model.unlabelled is not None
    predictions = np.exp(model.predict_log_proba(others.frame, warn=False))  # unusual cells are among the findings
    brought = replace(model.unlabelled, mean_predictions=predictions.mean(0).tolist())
    found = mean_findings(predictions, model.population.population, model.classes_)
    return replace(model, unlabelled=brought, findings=[*model.findings, *found])


def _stated_population(population: LearntPopulation | None, unlabelled: pd.DataFrame | None) -> Population | None:
    """Return the given population, None if it is to be learned; raise a ValueError if it does not fit the unlabelled rows."""
    if is_unknown(population) and unlabelled is None:
        raise ValueError(
            "Expected unlabelled rows from which an unknown population is learnt, but got none: give them, or the population."
        )
    if population is None and unlabelled is not None:
        raise ValueError(
            "Expected a population with unlabelled rows, but got none: where the labelled rows are in the population's mix, "
            "unlabelled ones add nothing; give how frequent the classes are, or 'unknown' to learn it."
        )
    return None if isinstance(population, str) else population


def _group_numbers(series: pd.Series) -> Int64[np.ndarray, " n"]:
    """Return the groups as numbers; a row without one is its own group."""
    codes = as_text(series)[0]
    alone = codes < 0
    codes[alone] = codes.max(initial=-1) + 1 + np.arange(int(alone.sum()))
    return codes


def _steps(progress: Progress | None, total: int) -> Step:
    """Return a function that counts the started steps, and reports them to `progress`."""
    done = count()
    return lambda words: None if progress is None else progress(float(next(done)), total, words)
