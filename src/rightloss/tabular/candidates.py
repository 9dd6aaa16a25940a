"""Compare pipelines and their corrections by cross-fitting, at the population.

Stage: pipelines, rows with labels → out-of-fold log-probabilities → every correction at π → a table of figures, and the choice
by the rule of `PrevalenceCorrectedClassifier`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ..calibration import Calibration, fit_mean
from ..calibration.held_out import HeldOut
from ..calibration.model import fit_slopes
from ..metrics import evaluate
from ..predictive import retarget
from ..prevalence import Prevalence
from ..sklearn.method_choice import HeldOutRows, choose_method, expected_gain, predict_held_out
from ..sklearn.out_of_fold import Split, log_prob_rows, out_of_fold, probability_floor, splits_of
from .encode import ColumnSpec
from .pipelines import Pipeline, stratified_rows

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

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

    @property
    def mix(self) -> np.ndarray:
        """Their mix of classes, without weights (K,)."""
        return np.bincount(self.table.codes) / len(self.rows)


@dataclass(frozen=True, eq=False)
class CrossFit:
    """A pipeline, fitted without each fold: the models, and their predictions of the fold at the mix of the table `(m, k)`."""

    pipeline: Pipeline
    models: list[Pipeline]
    log_probs: Float64[np.ndarray, "m k"]
    seconds: float


@dataclass(frozen=True, eq=False)
class Correction:
    """How a pipeline's predictions are moved to a population.

    Attributes:
        method: "closed_form", "affine", "beta" or "mean_matching".
        trained_at: the mix (K,) at which they hold.
        calibration: slopes and biases, fitted at its own `sampling` ("affine", "beta") or at `trained_at`; None for the closed
            form.
    """

    method: str
    trained_at: np.ndarray
    calibration: Calibration | None = None

    def __call__(self, log_probs: Float64[np.ndarray, "n k"], to: Prevalence | np.ndarray) -> Float64[np.ndarray, "n k"]:
        """Return predictions at the population `to`."""
        if self.calibration is None:
            return np.asarray(retarget(log_probs, self.trained_at, to))
        if self.method != "mean_matching":
            log_probs = np.asarray(retarget(log_probs, self.trained_at, self.calibration.sampling))
        return np.asarray(retarget(self.calibration.apply(log_probs), self.calibration.sampling, to))


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
    splits, count = None, num_folds
    while splits is None and count > 1:
        try:
            splits = splits_of(count, codes, weights, seed, groups, (rows, codes), {})
        except ValueError:  # a class is in one fold alone
            pass
        count -= 1
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
    """Return each row's prediction by a copy of the pipeline that was tuned and fitted on the other folds."""
    start, table = time.perf_counter(), some.table
    matrix = pipeline.encode(table.frame, table.specs)
    arguments = {"sample_weight": some.weights} | ({} if table.groups is None else {"groups": table.groups})
    found = out_of_fold(pipeline, matrix, table.codes, table.codes, some.weights, some.splits, None, arguments)
    log_probs = log_prob_rows(found.values, found.values.shape[1], probability_floor(found.values))
    return CrossFit(pipeline, found.models, log_probs, time.perf_counter() - start)


def corrected(
    found: CrossFit, some: ComparedRows, prevalence: Prevalence, matched: Correction | None = None
) -> tuple[list[TableCandidate], TableCandidate | None]:
    """Return a pipeline with every correction, and the one to use.

    That is chosen as in `PrevalenceCorrectedClassifier`; None if it is not clearly better than always answering π.

    Args:
        found: the pipeline.
        some: the rows.
        prevalence: π, and the mix of the table.
        matched: the correction that makes the mean prediction of unlabelled rows π, if there are some.
    """
    rows = held_out_rows(found.log_probs, some, prevalence)
    fixed = {"closed_form": rows.at_population(rows.log_probs)}
    if matched is not None:
        fixed["mean_matching"] = matched(found.log_probs, prevalence)
    tables = predict_held_out(rows, fixed)
    method = choose_method({name: rows.own(table) for name, table in tables.items()}, rows)
    del tables["population"]
    if float(np.abs(prevalence.log_weights).max()) > 1e-6:
        tables["none"] = found.log_probs
    made = {name: TableCandidate(_candidate_name(found, name), found, name, table) for name, table in tables.items()}
    return list(made.values()), made.get(method)


def simplest(candidates: Sequence[TableCandidate], some: ComparedRows, prevalence: Prevalence) -> TableCandidate | None:
    """Return the first, unless a later one is better by more than one standard error of the paired difference."""
    chosen: TableCandidate | None = None
    for each in candidates:
        if chosen is None or np.greater(*gain_over(each, chosen, some, prevalence)):
            chosen = each
    return chosen


def gain_over(
    candidate: TableCandidate, other: TableCandidate, some: ComparedRows, prevalence: Prevalence
) -> tuple[float, float]:
    """Return the increase of the expected log-likelihood at π, and its standard error."""
    rows = held_out_rows(candidate.log_probs, some, prevalence)
    return expected_gain(rows.own(candidate.log_probs) - rows.own(other.log_probs), rows)


def always_population(prevalence: Prevalence, rows: int) -> TableCandidate:
    """Return the candidate that predicts π for every row."""
    return TableCandidate(NOTHING, None, "closed_form", np.tile(np.log(prevalence.population), (rows, 1)))


def correction_of(
    method: str, log_probs: np.ndarray, codes: np.ndarray, trained_at: np.ndarray, shrink: float = 1.0
) -> Correction:
    """Return a correction by out-of-fold predictions and their labels.

    Args:
        method: "closed_form", "affine" or "beta".
        log_probs: `(m, k)`, at `trained_at`.
        codes: class numbers `(m,)`.
        trained_at: the mix (K,) of the predictions.
        shrink: as in `fit_calibration`.
    """
    if method == "closed_form":
        return Correction(method, trained_at)
    data = HeldOut(np.asarray(retarget(log_probs, trained_at, np.bincount(codes) / len(codes))), codes)
    return Correction(method, trained_at, fit_slopes(data, method, shrink))  # type: ignore[arg-type]


def fold_corrections(
    method: str, log_probs: np.ndarray, codes: np.ndarray, folds: np.ndarray, trained_at: np.ndarray, shrink: float = 1.0
) -> list[Correction]:
    """Return the correction of the model without each fold, by the rows outside of it; arguments as in `correction_of`."""
    found, counts = [], np.bincount(codes)
    for fold in range(int(folds.max()) + 1):
        other = folds != fold
        made = correction_of(method, log_probs[other], codes[other], trained_at, shrink)
        mix = trained_at * np.bincount(codes[other], minlength=len(counts)) / counts  # at which that model predicts
        found.append(replace(made, trained_at=mix / mix.sum()))
    return found


def matching(log_probs: Float64[np.ndarray, "u k"], prevalence: Prevalence) -> Correction:
    """Return the correction that makes the mean of these predictions, of unlabelled rows, π."""
    return Correction("mean_matching", prevalence.sampling, fit_mean(log_probs, prevalence.population))


def held_out_rows(log_probs: np.ndarray, some: ComparedRows, prevalence: Prevalence) -> HeldOutRows:
    """Return predictions at the table's mix as those of `PrevalenceCorrectedClassifier`, which are at the rows' own."""
    table = np.asarray(retarget(log_probs, prevalence.sampling, some.mix))
    return HeldOutRows(table, some.table.codes, np.ones(len(table)), some.folds, some.mix, prevalence.population)


def comparison_table(
    candidates: Sequence[TableCandidate], chosen: TableCandidate, some: ComparedRows, prevalence: Prevalence
) -> pd.DataFrame:
    """Return the figures of each candidate at π, the best expected log-likelihood first."""
    rows = []
    for each in candidates:
        found = evaluate(each.log_probs, some.table.codes, prevalence, groups=some.table.groups, intervals="analytic")
        figures = ("skill", "auc", "calibration_slope", "calibration_intercept")
        rows.append(
            {
                "candidate": each.name,
                "family": "none" if each.found is None else each.found.pipeline.family,
                "correction": each.method.replace("_", " "),
                "expected_log_likelihood": found.expected_log_likelihood.value,
                "low": found.expected_log_likelihood.low,
                "high": found.expected_log_likelihood.high,
                **{name: getattr(found, name).value for name in figures},
                "seconds": 0.0 if each.found is None else each.found.seconds,
                "chosen": each is chosen,
            }
        )
    return pd.DataFrame(rows).sort_values("expected_log_likelihood", ascending=False, ignore_index=True)


def _candidate_name(found: CrossFit, method: str) -> str:
    return f"{found.pipeline.family}, {'uncorrected' if method == 'none' else method.replace('_', ' ')}"
