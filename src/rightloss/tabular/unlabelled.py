"""Learn from a labelled table and unlabelled rows of the population: a linear model of both, and the population itself.

Stage: unlabelled table, columns of the labelled one → `UnlabelledTable`, and findings; that → a pipeline for the comparison,
the population if it is unknown, and an `UnlabelledReport` on the use of the rows.
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.special import logsumexp
from sklearn.base import clone

from ..prevalence import Prevalence
from ..shift import JointPrevalenceEstimate, joint_prevalence, unlabelled_shift_test
from ..sklearn.folds import GivenRows
from ..sklearn.information_gain import InformationGainClassifier
from ..sklearn.rows import some_rows
from .columns import Finding
from .pipelines import ColumnSpec, LinearPipeline, Pipeline, boosting_matrix, by_fold, check_columns, linear_matrix, readable

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

    from .fit import ComparedRows, CrossFit, LabelledTable

WITH_UNLABELLED = "linear, with the unlabelled rows"
_MOST_ROWS = 50_000  # maximum of unlabelled rows used
_MOST_TO_TUNE = 5_000  # rows used to choose a penalty
_FEWEST_EXPECTED = 10  # expected readable cells of a column from which at least one must be readable
_FAR = 1.25  # factor between a mean prediction and π that gives a warning
_MOSTLY = 0.9  # fraction of distinct labelled rows from which an equal row in both tables counts as the same person


@dataclass(frozen=True, eq=False)
class UnlabelledTable:
    """Unlabelled rows.

    Attributes:
        frame: the rows used, with the columns of the labelled table.
        rows: number of given rows.
        specs: how the columns are encoded.
    """

    frame: pd.DataFrame
    rows: int
    specs: list[ColumnSpec]

    def encoded(self, pipeline: Pipeline) -> np.ndarray:
        """Return the rows as the matrix of a pipeline."""
        return pipeline.encode(self.frame, self.specs)

    def predictions(self, fitted: Pipeline) -> Float64[np.ndarray, "u k"]:
        """Return a fitted pipeline's log-probabilities, at the mix of its training."""
        return fitted.predict_log_proba(self.encoded(fitted))

    def by_fold(self, models: Sequence[Pipeline]) -> Float64[np.ndarray, "u k"]:
        """Return predictions, each from the model of one fold, like those of labelled rows."""
        return by_fold(models, self.encoded(models[0]))


def unlabelled_table(
    frame: pd.DataFrame, labelled: pd.DataFrame, specs: Sequence[ColumnSpec], target: str, seed: int
) -> tuple[UnlabelledTable, list[Finding]]:
    """Return the rows to use, and findings about them.

    Args:
        frame: the unlabelled table.
        labelled: the labelled table.
        specs: the columns in use.
        target: its target column.
        seed: seed for drawing rows, if there are very many.

    Raises:
        ValueError: if a column is missing or has no readable cell, or if there are no rows besides the labelled ones.
    """
    if not len(frame):
        raise ValueError("Expected unlabelled rows, but got a table without any: leave it out.")
    found = [*frame.attrs.get("findings", []), *check_columns(frame, specs, [target, *map(str, labelled.columns)])]
    for spec in specs:
        _check_readable(frame[spec.name], labelled[spec.name], spec)
    if target in frame.columns:
        words = "the unlabelled table has the target column: it is not read there, and no label in it is learnt from."
        found.append(Finding("note", target, words))
    width = sum(spec.linear_width for spec in specs)
    most = min(_MOST_ROWS, max(LinearPipeline.most_cells // 4 // width, 1000))
    if len(frame) > most:
        found.append(
            Finding("note", None, f"{most:,} of the {len(frame):,} unlabelled rows, drawn at random, are learnt from.")
        )
    rows = np.sort(np.random.default_rng(seed).choice(len(frame), min(most, len(frame)), replace=False))
    chosen = frame.iloc[rows]
    found += _repeated_rows(chosen, labelled, specs)
    return UnlabelledTable(chosen, len(frame), list(specs)), [_of_unlabelled(each) for each in found]


def _check_readable(series: pd.Series, labelled: pd.Series, spec: ColumnSpec) -> None:
    """Raise a ValueError for a column without a readable cell, if many were expected from the labelled table."""
    expected = readable(labelled, spec).mean() * len(series)
    if expected < _FEWEST_EXPECTED or readable(series, spec).any():
        return
    filled = series[series.notna()]
    came = f"such as {str(filled.iloc[0])[:40]!r}" if len(filled) else "they are all empty"
    what = {"category": "a category of the labelled table", "date": "a date"}.get(spec.kind, "a number")
    raise ValueError(
        f"Expected {what} in the column {spec.name!r} of the unlabelled table, but none of its {len(series):,} cells has one "
        f"({came}): write it as in the labelled table, or leave the column out (--leave-out {shlex.quote(spec.name)})."
    )


def _repeated_rows(chosen: pd.DataFrame, labelled: pd.DataFrame, specs: Sequence[ColumnSpec]) -> list[Finding]:
    """Return a note on unlabelled rows that are also in the labelled table; raise a ValueError if there are no others.

    This applies only if labelled rows are nearly all distinct; otherwise rows can be equal by chance.
    """
    tables = (pd.DataFrame(boosting_matrix(frame, specs) + np.float32(0)) for frame in (labelled, chosen))
    ours, theirs = (pd.util.hash_pandas_object(table, index=False) for table in tables)
    if ours.nunique() < _MOSTLY * len(ours):
        return []
    count = int(theirs.isin(ours).sum())
    if count == len(theirs):
        raise ValueError(
            f"Expected unlabelled rows of the population, but {count:,} of {count:,} are rows of the labelled table: is it the "
            "same file? Give one with other people, or leave it out."
        )
    if not count:
        return []
    return [
        Finding("note", None, f"{count:,} of {len(theirs):,} unlabelled rows are in the labelled table, too: they count twice.")
    ]


def shift_findings(table: LabelledTable, others: UnlabelledTable, prevalence: Prevalence) -> tuple[float | None, list[Finding]]:
    """Test whether p(x|y) is the same in both tables, for the features of linear models; return the p-value, and a warning."""
    ours, theirs = (linear_matrix(frame, table.specs) for frame in (table.frame, others.frame))
    if not np.ptp(np.concatenate([ours, theirs]), axis=0).any():
        return None, []
    rows, unlabelled = some_rows(table.codes), some_rows(np.zeros(len(theirs), dtype=np.int64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its complaints become the warning
        found = unlabelled_shift_test(ours[rows], table.codes[rows], theirs[unlabelled], prevalence)
    if not found.complaints:
        return found.p_value, []
    tested = "" if found.tenable else f" (p = {found.p_value:.2g})"
    words = f"unlabelled rows: {' '.join(found.complaints)}{tested} Fit once without them, and compare."
    return found.p_value, [Finding("warning", None, words)]


def stream_log_likelihood(
    log_probs: Float64[np.ndarray, "m k"],
    codes: Int64[np.ndarray, " m"],
    of_others: Float64[np.ndarray, "u k"],
    population: Float64[np.ndarray, " k"],
) -> float:
    """Return the log-likelihood of the streams of labelled and unlabelled rows, per labelled row.

    It is that of `LogitAdjustedLoss` with unlabelled rows: P(k|x) ∝ n_k p(k|x)/π_k, P(unlabelled|x) ∝ N_u. It detects
    predictions that are too high on average, or too far apart, with few rows of a class. The expected log-likelihood of
    labelled rows instead depends on the few rows of the frequent class that look like the rare one.

    Args:
        log_probs: predictions of labelled rows at the population.
        codes: their classes.
        of_others: predictions of the unlabelled rows.
        population: π.
    """
    with np.errstate(divide="ignore"):
        offset = np.log(np.bincount(codes, minlength=len(population))) - np.log(population)
    size = np.log(len(of_others))
    of_labelled, of_unlabelled = (np.logaddexp(size, logsumexp(table + offset, axis=1)) for table in (log_probs, of_others))
    own = (log_probs + offset)[np.arange(len(codes)), codes]
    return float(((own - of_labelled).sum() + (size - of_unlabelled).sum()) / len(codes))


def learn_population(
    crossed: Sequence[CrossFit], codes: Int64[np.ndarray, " m"], others: UnlabelledTable
) -> JointPrevalenceEstimate:
    """Estimate π from the pipeline with the best out-of-fold predictions at the table's own mix."""
    best = max(crossed, key=lambda each: float(each.log_probs[np.arange(len(codes)), codes].mean()))
    odds = [table[:, 1:] - table[:, :1] for table in (best.log_probs, others.by_fold(best.models))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of few rows: the interval shows it
        return joint_prevalence(odds[0], codes, odds[1])


class LinearWithUnlabelled(LinearPipeline):
    """Logistic regression with a ridge penalty, by the likelihood of labelled and unlabelled rows at the population.

    Args:
        prevalence: π; predictions are at its ρ, like those of the other pipelines.
        others: the unlabelled rows, encoded by `linear_matrix`.
        C: as in `LinearPipeline`.
        random_state: seed of the validation rows.
    """

    def __init__(self, prevalence: Prevalence, others: np.ndarray, C: float = 0.1, random_state: int = 0) -> None:
        super().__init__(C, random_state)
        self.prevalence = prevalence
        self.others = others

    def tuned(self, rows: GivenRows) -> LinearWithUnlabelled:
        """Return a copy with the best penalty, chosen with some of the unlabelled rows."""
        few = LinearWithUnlabelled(self.prevalence, self.others[:: -(-len(self.others) // _MOST_TO_TUNE)], self.C)
        return clone(self).set_params(C=super(LinearWithUnlabelled, few).tuned(rows).C)

    def _coefficients(self, X: np.ndarray, codes: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        model = InformationGainClassifier(self.prevalence.population, C=self.C, max_iter=500, check_unlabelled=False)
        model.fit(X, codes, weights, X_unlabelled=self.others)
        moves = -self.prevalence.log_weights
        return model.coef_, model.intercept_ + (moves if len(model.coef_) > 1 else moves[1:] - moves[:1])

    def held_out(self, some: ComparedRows) -> tuple[Float64[np.ndarray, "m k"], Float64[np.ndarray, "u k"]]:
        """Return predictions at ρ of labelled and unlabelled rows, from models trained on neither."""
        rows, numbers = some.given(self), np.arange(len(self.others)) % len(some.splits)
        first, second = (np.empty((count, self.prevalence.num_classes)) for count in (len(rows.y), len(self.others)))
        for fold, (train, test) in enumerate(some.splits):
            own = numbers == fold
            fitted = LinearWithUnlabelled(self.prevalence, self.others[~own], self.C)
            fitted.fit(rows.X[train], rows.y[train], rows.weights[train])
            first[test], second[own] = (fitted.predict_log_proba(each) for each in (rows.X[test], self.others[own]))
        return first, second


def mean_findings(
    predictions: Float64[np.ndarray, "u k"], population: Float64[np.ndarray, " k"], classes: Sequence[object]
) -> list[Finding]:
    """Return a warning if the mean prediction of the unlabelled rows is far from π, beyond chance."""
    means = predictions.mean(0)
    with np.errstate(divide="ignore"):
        far = np.abs(np.log(means) - np.log(population))
    error = predictions.std(0) / np.sqrt(len(predictions))
    wrong = (far > np.log(_FAR)) & (np.abs(means - population) > 3 * error) & (len(predictions) > 1)
    if not wrong.any():
        return []
    worst = int(np.argmax(np.where(wrong, far, -1)))
    words = (
        f"unlabelled rows: the model predicts {100 * means[worst]:.3g} % {classes[worst]} for them on average, but the "
        f"population has {100 * population[worst]:.3g} %: label more rows, or check that the population is right and that the "
        "unlabelled rows are from it."
    )
    return [Finding("warning", None, words)]


def _of_unlabelled(finding: Finding) -> Finding:
    """Return a finding that names the unlabelled table."""
    if "unlabelled" in finding.message:
        return finding
    return Finding(finding.level, finding.column, f"unlabelled rows: {finding.message}")
