"""Fit a table: compare pipelines and their corrections at the population, and refit the best to all rows.

Stage: `pandas.DataFrame`, target, population, unlabelled rows → out-of-fold log-probabilities → every correction at π → a table
of figures, and the choice by the rule of `PrevalenceCorrectedClassifier` → `TableModel`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.base import clone

from ..arrays import checked_number
from ..calibration import Calibration, fit_mean
from ..calibration.auto import choose_correction, clearly_best, corrections, expected_gain, score
from ..calibration.fit_with_shrinkage import checked_kind, fit_slopes
from ..calibration.held_out import HeldOut
from ..metrics import evaluate
from ..predictive import retarget
from ..prevalence import Prevalence
from ..sklearn.folds import GivenRows, Split, log_prob_rows, out_of_fold, probability_floor, splits_of
from ..sklearn.population import LearntPopulation, Population, is_unknown
from .columns import Finding, Label, group_numbers, labels_of, population_of
from .inspect import inspect_table
from .limits import odds_ratios
from .model import FoldModels, HeldOutPredictions, TableModel, UnlabelledReport
from .pipelines import ColumnSpec, LinearPipeline, Pipeline, column_specs, pipelines, stratified_rows
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
    from jaxtyping import Float64, Int64

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
    prevalence = population_of(stated, found.classes, found.shares)
    prevalence = Prevalence.unknown(len(found.classes), prevalence.sampling) if is_unknown(population) else prevalence
    labelled = found.codes >= 0
    frame = frame if labelled.all() else frame.loc[labelled]
    specs = column_specs(frame, {column.name: column.kind for column in report.columns if column.role == "feature"})
    table = LabelledTable(frame, specs, found.codes[labelled], None if group is None else group_numbers(frame[group])[0])
    others, odd = (None, []) if unlabelled is None else unlabelled_table(unlabelled, frame, specs, target, how.seed)
    models, notes = pipelines(how.candidates, specs, how.seed)
    some = compared_rows(table, how.folds, how.seed, how.max_compare_rows)
    with_both = others is not None and models[0].family == "linear"
    step = _steps(how.progress, len(models) + 2 + (others is not None) + with_both)
    compared = _Comparison(some, prevalence, others, step)
    chosen = compared.run(models)
    step("figures of the candidates")
    comparison = comparison_table(compared.candidates, chosen, some, compared.prevalence)
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
        population=compared.prevalence,
        columns=specs,
        comparison=comparison,
        held_out=HeldOutPredictions(chosen.log_probs, some.table.codes, some.table.groups, some.rows),
        fitted=fitted,
        correction=None if fitted is None else compared.correction(chosen, of_others),
        rows=len(frame),
        findings=[*report.findings, *odd, *findings],
        unlabelled=compared.brought,
        folds=compared.fold_models(chosen),
        odds_ratios=ratios,
    )
    step("done")
    return model if others is None else _with_mean_predictions(model, others)


@dataclass
class _Comparison:
    """The comparison of candidates on some rows at π, which may be unknown at first, with unlabelled rows if there are some.

    It collects the candidates, findings, and how unlabelled rows were used.
    """

    some: ComparedRows
    prevalence: Prevalence
    others: UnlabelledTable | None
    step: Step
    candidates: list[TableCandidate] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    brought: UnlabelledReport | None = None

    def run(self, models: Sequence[Pipeline]) -> TableCandidate:
        """Cross-fit the pipelines, and choose one and its correction."""
        crossed, some, others = [self._crossed(each) for each in models], self.some, self.others
        if others is not None:
            self.step("test of the unlabelled rows")
            p_value, self.findings = shift_findings(some.table, others, self.prevalence)
            self.brought = UnlabelledReport(others.rows, len(others.frame), p_value, warned=bool(self.findings))
            if self.prevalence.is_unknown:
                estimate = learn_population(crossed, some.table.codes, others)
                limits = {"population_low": estimate.low.tolist(), "population_high": estimate.high.tolist()}
                self.brought = replace(self.brought, **limits)
                self.prevalence = estimate.prevalence(self.prevalence.sampling)
        self.candidates, kept = [always_population(self.prevalence, len(some.rows))], []
        for each in crossed:
            used = others is not None and not self.findings  # with a mean prediction of π over the unlabelled rows
            matched = fit_mean(others.by_fold(each.models), self.prevalence) if others is not None and used else None
            made, best = corrected(each, some, self.prevalence, matched)
            self.candidates += made
            kept += [] if best is None else [best]
        chosen = simplest(kept, some, self.prevalence.population) or self.candidates[0]
        if others is None or models[0].family != "linear":
            return chosen
        return self._with_both_tables(chosen, models[0], others)

    def _with_both_tables(self, chosen: TableCandidate, linear: Pipeline, others: UnlabelledTable) -> TableCandidate:
        """Add the linear model of both tables; keep it if the test did not warn, and it explains held-out rows of both best."""
        assert self.brought is not None
        some, prevalence, pi = self.some, self.prevalence, self.prevalence.population
        pipeline = LinearWithUnlabelled(prevalence, others.encoded(linear), random_state=linear.random_state)
        found = self._crossed(pipeline, WITH_UNLABELLED)
        learnt = replace(
            corrected(found, some, prevalence)[0][0], name=WITH_UNLABELLED
        )  # the closed form: its likelihood has π
        plain = next(each for each in self.candidates if each.name == "linear, closed form")
        self.candidates.append(learnt)
        data = some.held_out(plain.log_probs)
        own = score({"learnt": learnt.log_probs, "plain": plain.log_probs}, data)
        gain, error = expected_gain(own["learnt"] - own["plain"], data, pi)
        self.brought = replace(self.brought, gain=gain, low=gain - 1.96 * error, high=gain + 1.96 * error)
        if self.brought.warned:
            return chosen
        codes = some.table.codes
        ours = [np.asarray(retarget(each, prevalence.sampling, pi)) for each in found.pipeline.held_out(some)]
        better = stream_log_likelihood(ours[0], codes, ours[1], pi)
        better -= stream_log_likelihood(chosen.log_probs, codes, self.of_others(chosen, others), pi)
        self.brought = replace(self.brought, stream_gain=better, kept=better > 0)
        return learnt if better > 0 else chosen

    def _crossed(self, pipeline: Pipeline, name: str | None = None) -> CrossFit:
        self.step(f"{name or pipeline.family}, {len(self.some.splits)} folds")
        return cross_fit(pipeline, self.some)

    def of_others(self, candidate: TableCandidate, others: UnlabelledTable) -> np.ndarray:
        """Return a candidate's predictions of the unlabelled rows at π, from the models of the folds."""
        if candidate.found is None:
            return np.tile(np.log(self.prevalence.population), (len(others.frame), 1))
        raw = others.by_fold(candidate.found.models)
        made = self.correction(candidate, raw)
        return np.asarray(retarget(made.apply(raw), made.sampling, self.prevalence))

    def correction(self, candidate: TableCandidate, of_others: np.ndarray | None, without: int = -1) -> Calibration:
        """Return the correction of a candidate, or of its model without one fold: by the held-out rows outside of that fold.

        "mean_matching" is by the predictions of the unlabelled rows instead.
        """
        found, codes, kept = candidate.found, self.some.table.codes, self.some.folds != without
        assert found is not None
        if candidate.method == "mean_matching":
            assert of_others is not None
            return fit_mean(of_others, self.prevalence)
        mix = self.prevalence.sampling
        if not isinstance(found.pipeline, LinearWithUnlabelled):  # such models predict at the same mix in each fold
            mix = mix * np.bincount(codes[kept], minlength=len(mix)) / np.bincount(codes)
        return correction_of(candidate.method, found.log_probs[kept], codes[kept], mix / mix.sum())

    def fold_models(self, candidate: TableCandidate) -> FoldModels | None:
        """Return the models of the folds, each with the correction of its own rows."""
        found, others = candidate.found, self.others if candidate.method == "mean_matching" else None
        if found is None:
            return None
        seen = [None if others is None else others.predictions(each) for each in found.models]
        made = [self.correction(candidate, each, fold) for fold, each in enumerate(seen)]
        return FoldModels(found.models, found.log_probs, self.some.folds, made)


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


def _steps(progress: Progress | None, total: int) -> Step:
    """Return a function that counts the started steps, and reports them to `progress`."""
    done = count()
    return lambda words: None if progress is None else progress(float(next(done)), total, words)


NOTHING = "always answering π"


@dataclass(frozen=True, eq=False)
class LabelledTable:
    """The labelled rows: a table, how its columns are encoded, class numbers `(n,)`, and numbers of groups or None."""

    frame: pd.DataFrame
    specs: list[ColumnSpec]
    codes: Int64[np.ndarray, " n"]
    groups: Int64[np.ndarray, " n"] | None


@dataclass(frozen=True, eq=False)
class ComparedRows:
    """The rows on which candidates are compared.

    Attributes:
        table: these rows.
        rows: their numbers in the whole table `(m,)`.
        weights: with which their mix of classes is that of the whole table `(m,)`.
        splits: rows to train on and to test on, of each fold.
        notes: on their choice.
    """

    table: LabelledTable
    rows: Int64[np.ndarray, " m"]
    weights: Float64[np.ndarray, " m"]
    splits: list[Split]
    notes: list[str]

    @property
    def folds(self) -> Int64[np.ndarray, " m"]:
        """The fold that left out each row."""
        numbers = np.empty(len(self.rows), dtype=np.int64)
        for number, (_, test) in enumerate(self.splits):
            numbers[test] = number
        return numbers

    def given(self, pipeline: Pipeline) -> GivenRows:
        """Return the rows, encoded for a pipeline."""
        table = self.table
        return GivenRows(pipeline.encode(table.frame, table.specs), table.codes, table.codes, self.weights, table.groups)

    def held_out(self, log_probs: np.ndarray) -> HeldOut:
        """Return the rows with out-of-fold predictions `(m, k)`."""
        return HeldOut(log_probs, self.table.codes, self.table.groups)


@dataclass(frozen=True, eq=False)
class CrossFit:
    """A tuned pipeline, and its models without each fold, with their predictions of that at the table's mix `(m, k)`."""

    pipeline: Pipeline
    models: list[Pipeline]
    log_probs: Float64[np.ndarray, "m k"]
    seconds: float


@dataclass(frozen=True, eq=False)
class TableCandidate:
    """A pipeline with a correction, and its out-of-fold predictions.

    Attributes:
        name: the name in the table.
        found: the pipeline; None for always answering π.
        method: that of the correction; "none" is shown, but never chosen.
        log_probs: out-of-fold predictions at π `(m, k)`.
    """

    name: str
    found: CrossFit | None
    method: str
    log_probs: Float64[np.ndarray, "m k"]


def compared_rows(table: LabelledTable, num_folds: int, seed: int, most: int) -> ComparedRows:
    """Return at most `most` rows, in folds that keep groups together; fewer folds if a class has fewer rows, or groups.

    Raises:
        ValueError: if there cannot be two folds with every class in the rows outside of each.
    """
    rows, weights = stratified_rows(table.codes, most, seed)
    codes, groups = table.codes[rows], None if table.groups is None else table.groups[rows]
    splits = None
    for number in range(num_folds, 1, -1):
        with suppress(ValueError):  # a class is in one fold alone
            splits = splits or splits_of(number, GivenRows(rows, codes, codes, weights, groups), seed)
    if splits is None:
        raise ValueError(
            "Expected every class in two groups or more, so that one can be tested on, but there are not enough: add groups, "
            "or leave the group column out."
        )
    notes = []
    if len(rows) < len(table.codes):
        notes.append(f"candidates were compared on {len(rows):,} of {len(table.codes):,} rows.")
    if len(splits) < num_folds:
        notes.append(f"{len(splits)} folds instead of {num_folds}: a class has no more rows, or groups.")
    frame = table.frame if len(rows) == len(table.codes) else table.frame.iloc[rows]
    return ComparedRows(LabelledTable(frame, table.specs, codes, groups), rows, weights, splits, notes)


def cross_fit(pipeline: Pipeline, some: ComparedRows) -> CrossFit:
    """Tune a pipeline, and return each row's prediction by a copy of it that was fitted to the other folds."""
    start, rows = time.perf_counter(), some.given(pipeline)
    tuned = pipeline.tuned(rows)
    found = out_of_fold(tuned, rows, some.splits, {"sample_weight": rows.weights})
    log_probs = log_prob_rows(found.values, found.values.shape[1], probability_floor(found.values))
    return CrossFit(tuned, found.models, log_probs, time.perf_counter() - start)


def corrected(
    found: CrossFit, some: ComparedRows, prevalence: Prevalence, matched: Calibration | None = None
) -> tuple[list[TableCandidate], TableCandidate | None]:
    """Return a pipeline with every correction, and the one to use.

    That is chosen as in `PrevalenceCorrectedClassifier`; None if it is not clearly better than always answering π.

    Args:
        found: the pipeline.
        some: the rows.
        prevalence: π, and the mix of the table.
        matched: the correction that makes the mean prediction of unlabelled rows π, if there are some.
    """
    data, pi = some.held_out(found.log_probs), prevalence.population
    tables = corrections(data, some.folds, prevalence.sampling, pi, matched)
    method = choose_correction(tables, data, pi)
    if float(np.abs(prevalence.log_weights).max()) > 1e-6:
        tables["none"] = found.log_probs
    words = {name: "uncorrected" if name == "none" else name.replace("_", " ") for name in tables}
    family = found.pipeline.family
    made = {name: TableCandidate(f"{family}, {words[name]}", found, name, table) for name, table in tables.items()}
    return list(made.values()), made.get(method)


def simplest(candidates: Sequence[TableCandidate], some: ComparedRows, population: np.ndarray) -> TableCandidate | None:
    """Return the first, unless a later one is better by more than one standard error of the paired difference."""
    if not candidates:
        return None
    tables = {each.name: each.log_probs for each in candidates}
    name = clearly_best(tables, some.held_out(candidates[0].log_probs), population)
    return next(each for each in candidates if each.name == name)


def always_population(prevalence: Prevalence, rows: int) -> TableCandidate:
    """Return the candidate that predicts π for every row."""
    return TableCandidate(NOTHING, None, "closed_form", np.tile(np.log(prevalence.population), (rows, 1)))


def correction_of(method: str, log_probs: np.ndarray, codes: np.ndarray, sampling: np.ndarray) -> Calibration:
    """Return a correction: apply it to predictions, and move these from its `sampling` to the population.

    Args:
        method: "closed_form", "affine" or "beta".
        log_probs: out-of-fold predictions `(m, k)`, at `sampling`.
        codes: class numbers `(m,)`.
        sampling: the mix (K,) at which the predictions hold without a calibration.
    """
    if method == "closed_form":
        return Calibration("mean", np.ones(len(sampling)), np.zeros(len(sampling)), sampling)
    return fit_slopes(HeldOut(log_probs, codes), checked_kind(method, "method"))


def comparison_table(
    candidates: Sequence[TableCandidate], chosen: TableCandidate, some: ComparedRows, prevalence: Prevalence
) -> pd.DataFrame:
    """Return the figures of each candidate at π, the best expected log-likelihood first."""
    rows = []
    for each in candidates:
        found = evaluate(each.log_probs, some.table.codes, prevalence, groups=some.table.groups, intervals="analytic")
        family, seconds = ("none", 0.0) if each.found is None else (each.found.pipeline.family, each.found.seconds)
        row: dict[str, Any] = {"candidate": each.name, "family": family, "correction": each.method.replace("_", " ")}
        gain = found.expected_log_likelihood
        row |= {"expected_log_likelihood": gain.value, "low": gain.low, "high": gain.high}
        row |= {name: found[name].value for name in ("skill", "auc", "calibration_slope", "calibration_intercept")}
        rows.append(row | {"seconds": seconds, "chosen": each is chosen})
    return pd.DataFrame(rows).sort_values("expected_log_likelihood", ascending=False, ignore_index=True)
