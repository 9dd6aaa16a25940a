"""Unlabelled rows of the population beside a labelled table: a linear model that learns from both, and the population itself.

Stage: unlabelled table, columns of the labelled one → `UnlabelledTable`, and findings; that → a family of models for the
comparison, the population where it is unknown, and an `UnlabelledReport` of what the rows brought.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Float64, Int64

from ..prevalence import Prevalence
from ..shift import JointPrevalenceEstimate, joint_prevalence, unlabelled_shift_test
from ..sklearn.information_gain import InformationGainClassifier
from ..sklearn.unlabelled_rows import some_rows
from .candidates import MOST_CELLS, PENALTIES, Fitted, LinearModel, Part, log_likelihood
from .compare import Candidate, expectation, likelihoods, standard_error
from .encode import ColumnSpec, check_columns, linear_matrix
from .findings import Finding

WITH_UNLABELLED = "linear, with the unlabelled rows"
_MOST_ROWS = 50_000  # unlabelled ones that are learnt from
_MOST_TO_TUNE = 5_000  # those on which a penalty is chosen


@dataclass(frozen=True)
class UnlabelledReport:
    """What unlabelled rows were used for.

    Attributes:
        rows: how many there were.
        used: how many were learnt from.
        p_value: of the hypothesis that their classes look like the labelled ones; None where it was not tested.
        gain: by how much the expected log-likelihood of the linear model is higher with them; None where it was not fitted.
        low: lower limit of a 95 % interval of the gain.
        high: its upper limit.
        kept: whether the model that learnt from them is the one that is kept.
        population_low: lower limits of the frequencies (K), where these were learnt from the rows; else None.
        population_high: upper limits.

    Examples:
        >>> from rightloss.tabular import UnlabelledReport
        >>> UnlabelledReport(rows=5000, used=5000, p_value=0.4, gain=0.002, low=0.001, high=0.003, kept=True).kept
        True
    """

    rows: int
    used: int
    p_value: float | None
    gain: float | None
    low: float | None
    high: float | None
    kept: bool
    population_low: list[float] | None = None
    population_high: list[float] | None = None


@dataclass(frozen=True, eq=False)
class UnlabelledTable:
    """Unlabelled rows.

    Attributes:
        frame: those that are learnt from, with the columns of the labelled table.
        rows: how many there were.
    """

    frame: pd.DataFrame
    rows: int


def unlabelled_table(
    frame: pd.DataFrame, specs: Sequence[ColumnSpec], target: str, known: Sequence[str], seed: int
) -> tuple[UnlabelledTable, list[Finding]]:
    """Return the rows to learn from, and what is odd about them.

    Args:
        frame: as read.
        specs: the columns of the labelled table that are used.
        target: its target column.
        known: its other columns.
        seed: of the rows drawn where there are very many.

    Raises:
        ValueError: a column is missing, or there are no rows.
    """
    missing = [spec.name for spec in specs if spec.name not in frame.columns]
    if missing:
        raise ValueError(
            f"Expected the columns of the labelled table in the unlabelled one, but {missing[:20]} are missing: add them "
            "(cells may be empty), or leave them out of both."
        )
    if not len(frame):
        raise ValueError("Expected unlabelled rows, but got a table without any: leave it out.")
    found = [*frame.attrs.get("findings", []), *check_columns(frame, specs, [target, *known])]
    if target in frame.columns:
        found.append(Finding("note", target, "the unlabelled table has the target column: it is ignored there."))
    width = sum(spec.linear_width for spec in specs)
    most = min(_MOST_ROWS, max(MOST_CELLS // 4 // width, 1000))
    if len(frame) > most:
        found.append(
            Finding("note", None, f"{most:,} of the {len(frame):,} unlabelled rows, drawn at random, are learnt from.")
        )
    rows = np.sort(np.random.default_rng(seed).choice(len(frame), min(most, len(frame)), replace=False))
    return UnlabelledTable(frame.iloc[rows], len(frame)), [_of_unlabelled(each) for each in found]


def shift_findings(
    matrix: np.ndarray, codes: Int64[np.ndarray, " n"], others: np.ndarray, prevalence: Prevalence
) -> tuple[float | None, list[Finding]]:
    """Test whether the classes look the same in both tables, as linear models see them; return the p-value, and a warning."""
    if not np.ptp(np.concatenate([matrix, others]), axis=0).any():
        return None, []
    rows, unlabelled = some_rows(codes), some_rows(np.zeros(len(others), dtype=np.int64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the complaints are the warning
        found = unlabelled_shift_test(matrix[rows], codes[rows], others[unlabelled], prevalence)
    if not found.complaints:
        return found.p_value, []
    words = f"unlabelled rows: {' '.join(found.complaints)} (p = {found.p_value:.2g}) Fit once without them, and compare."
    return found.p_value, [Finding("warning", None, words)]


def learn_population(
    models: Sequence[Fitted],
    log_probs: Float64[np.ndarray, "m k"],
    codes: Int64[np.ndarray, " m"],
    others: np.ndarray,
) -> JointPrevalenceEstimate:
    """Estimate π from the predictions of models on rows that they were not trained on, labelled and unlabelled.

    Each unlabelled row is predicted by the model of one fold, as each labelled row is.

    Args:
        models: one of each fold.
        log_probs: out-of-fold predictions of the labelled rows.
        codes: their classes.
        others: the unlabelled rows, encoded as the models take them.
    """
    of_others = np.empty((len(others), log_probs.shape[1]))
    for fold, fitted in enumerate(models):
        of_others[fold :: len(models)] = fitted.log_probs(others[fold :: len(models)])
    odds = [table[:, 1:] - table[:, :1] for table in (log_probs, of_others)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few rows: the interval says it
        return joint_prevalence(odds[0], codes, odds[1])


@dataclass(frozen=True, eq=False)
class LinearWithUnlabelled:
    """Logistic regression with a ridge penalty, by the likelihood of labelled and unlabelled rows at the population.

    Attributes:
        others: the unlabelled rows, as `linear_matrix` encodes them.
        prevalence: π; the fitted models predict at its ρ, as those of the other families do.
    """

    others: np.ndarray
    prevalence: Prevalence
    name: str = WITH_UNLABELLED
    most_cells: int | None = MOST_CELLS

    def matrix(self, frame: pd.DataFrame, specs: Sequence[ColumnSpec]) -> np.ndarray:
        """Return `linear_matrix`."""
        return linear_matrix(frame, specs)

    def tune(self, train: Part, valid: Part) -> float:
        """Return the penalty with the highest weighted log-likelihood on the validation rows."""
        few = LinearWithUnlabelled(self.others[:: -(-len(self.others) // _MOST_TO_TUNE)], self.prevalence)
        some = train.at_most(2 * _MOST_TO_TUNE)
        return max(PENALTIES, key=lambda setting: log_likelihood(few.fit(some, setting), valid))

    def fit(self, part: Part, setting: float) -> LinearModel:
        """Fit by maximum penalised likelihood."""
        pi, rho = self.prevalence.population.numpy(), self.prevalence.sampling.numpy()
        model = InformationGainClassifier(pi, C=setting, max_iter=500, check_unlabelled=False)
        with warnings.catch_warnings():  # of separated classes and collinear columns, which the penalty takes care of
            warnings.simplefilter("ignore")
            model.fit(part.matrix, part.codes, part.weights, X_unlabelled=self.others)
        coefficients, intercepts = model.coef_, model.intercept_
        if part.num_classes == 2:
            coefficients = np.concatenate([0 * coefficients, coefficients])
            intercepts = np.concatenate([0 * intercepts, intercepts])
        return LinearModel(coefficients, intercepts + np.log(rho) - np.log(pi))


def what_they_brought(
    others: UnlabelledTable,
    p_value: float | None,
    estimate: JointPrevalenceEstimate | None,
    compared: Sequence[Candidate],
    chosen: Candidate,
    codes: Int64[np.ndarray, " m"],
    prevalence: Prevalence,
    groups: Int64[np.ndarray, " m"] | None,
) -> UnlabelledReport:
    """Return what the unlabelled rows brought: the linear model with them against that without, on the same held-out rows."""
    tables = {each.name: each.log_probs for each in compared}
    report = UnlabelledReport(others.rows, len(others.frame), p_value, None, None, None, chosen.family == WITH_UNLABELLED)
    if estimate is not None:
        report = replace(report, population_low=estimate.low.tolist(), population_high=estimate.high.tolist())
    if WITH_UNLABELLED not in tables:
        return report
    gains = likelihoods(tables[WITH_UNLABELLED], codes) - likelihoods(tables["linear, closed form"], codes)
    gain, error = expectation(gains, codes, prevalence), standard_error(gains, codes, prevalence, groups)
    return replace(report, gain=gain, low=gain - 1.96 * error, high=gain + 1.96 * error)


def _of_unlabelled(finding: Finding) -> Finding:
    """Return a finding that says which table it is about."""
    if "unlabelled" in finding.message:
        return finding
    return Finding(finding.level, finding.column, f"unlabelled rows: {finding.message}")
