"""Compare pipelines and their corrections by cross-fitting, at the population.

Stage: pipelines, rows with labels → out-of-fold log-probabilities → every correction at π → a table of figures, and the choice
by the rule of `PrevalenceCorrectedClassifier`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..calibration import Calibration
from ..calibration.choice import choose_correction, clearly_best, corrections
from ..calibration.held_out import HeldOut
from ..calibration.model import checked_kind, fit_slopes
from ..metrics import evaluate
from ..prevalence import Prevalence
from ..sklearn.folds import GivenRows, Split, log_prob_rows, out_of_fold, probability_floor, splits_of
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
    for count in range(num_folds, 1, -1):
        with suppress(ValueError):  # a class is in one fold alone
            splits = splits or splits_of(count, GivenRows(rows, codes, codes, weights, groups), seed)
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
