"""Learn from a labelled table and unlabelled rows of the population: a linear model of both, and the population itself.

Stage: unlabelled table, columns of the labelled one → `UnlabelledTable`, and findings; that → a family of models for the
comparison, the population if it is unknown, and an `UnlabelledReport` on the use of the rows.
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Float64, Int64
from scipy.special import logsumexp

from ..predictive.retarget import retarget
from ..prevalence import Prevalence
from ..shift import JointPrevalenceEstimate, joint_prevalence, unlabelled_shift_test
from ..sklearn.information_gain import InformationGainClassifier
from ..sklearn.unlabelled_rows import some_rows
from .candidates import MOST_CELLS, PENALTIES, Fitted, LinearModel, Part, log_likelihood
from .compare import Candidate, expectation, likelihoods, standard_error
from .encode import ColumnSpec, boosting_matrix, check_columns, linear_matrix, readable
from .findings import Finding

WITH_UNLABELLED = "linear, with the unlabelled rows"
_MOST_ROWS = 50_000  # maximum of unlabelled rows used
_MOST_TO_TUNE = 5_000  # rows used to choose a penalty
_FEWEST_EXPECTED = 10  # expected readable cells of a column from which at least one must be readable
_FAR = 1.25  # factor between a mean prediction and π that gives a warning
_MOSTLY = 0.9  # fraction of distinct labelled rows from which an equal row in both tables counts as the same person


@dataclass(frozen=True)
class UnlabelledReport:
    """How unlabelled rows were used.

    Attributes:
        rows: number of unlabelled rows.
        used: number of rows used.
        p_value: of the hypothesis that p(x|y) is the same as in the labelled rows; None if it was not tested.
        gain: increase of the expected log-likelihood of the linear model by these rows; None if it was not fitted.
        low: lower limit of a 95 % interval of the gain.
        high: its upper limit.
        kept: whether the model that uses them is kept.
        stream_gain: log-likelihood of held-out rows of both tables, in nats per labelled row, of the model that uses them minus
            that of the best other one, if that decided; else None.
        warned: whether the shift test, or its absence, gave a warning.
        mean_predictions: the kept model's mean prediction for them (K); None in older models.
        population_low: lower limits of the frequencies (K), if these were learned from the rows; else None.
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
    stream_gain: float | None = None
    warned: bool = False
    mean_predictions: list[float] | None = None
    population_low: list[float] | None = None
    population_high: list[float] | None = None


@dataclass(frozen=True, eq=False)
class UnlabelledTable:
    """Unlabelled rows.

    Attributes:
        frame: the rows used, with the columns of the labelled table.
        rows: number of given rows.
    """

    frame: pd.DataFrame
    rows: int


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
    _check_names(frame, specs)
    if not len(frame):
        raise ValueError("Expected unlabelled rows, but got a table without any: leave it out.")
    found = [*frame.attrs.get("findings", []), *check_columns(frame, specs, [target, *map(str, labelled.columns)])]
    for spec in specs:
        _check_readable(frame[spec.name], labelled[spec.name], spec)
    if target in frame.columns:
        words = "the unlabelled table has the target column: it is not read there, and no label in it is learnt from."
        found.append(Finding("note", target, words))
    width = sum(spec.linear_width for spec in specs)
    most = min(_MOST_ROWS, max(MOST_CELLS // 4 // width, 1000))
    if len(frame) > most:
        found.append(
            Finding("note", None, f"{most:,} of the {len(frame):,} unlabelled rows, drawn at random, are learnt from.")
        )
    rows = np.sort(np.random.default_rng(seed).choice(len(frame), min(most, len(frame)), replace=False))
    chosen = frame.iloc[rows]
    found += _repeated_rows(chosen, labelled, specs)
    return UnlabelledTable(chosen, len(frame)), [_of_unlabelled(each) for each in found]


def _check_names(frame: pd.DataFrame, specs: Sequence[ColumnSpec]) -> None:
    missing = [spec.name for spec in specs if spec.name not in frame.columns]
    if not missing:
        return
    alike = {str(name).casefold(): str(name) for name in frame.columns}
    meant = [alike[name.casefold()] for name in missing if name.casefold() in alike]
    hint = f" (it has {meant[:20]}, written otherwise)" if meant else ""
    raise ValueError(
        f"Expected the columns of the labelled table in the unlabelled one, but {missing[:20]} are missing{hint}: add them, or "
        "leave them out (--leave-out)."
    )


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
    ours, theirs = (_row_bytes(boosting_matrix(frame, specs)) for frame in (labelled, chosen))
    if len(np.unique(ours)) < _MOSTLY * len(ours):
        return []
    count = int(np.isin(theirs, ours).sum())
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


def _row_bytes(matrix: np.ndarray) -> np.ndarray:
    """Return each row as a single comparable value."""
    plain = np.ascontiguousarray(np.where(np.isnan(matrix), np.float32(np.inf), matrix) + np.float32(0))
    return plain.view(np.dtype((np.void, plain.dtype.itemsize * plain.shape[1])))[:, 0]


def shift_findings(
    matrix: np.ndarray, codes: Int64[np.ndarray, " n"], others: np.ndarray, prevalence: Prevalence
) -> tuple[float | None, list[Finding]]:
    """Test whether p(x|y) is the same in both tables, for the features of linear models; return the p-value, and a warning."""
    if not np.ptp(np.concatenate([matrix, others]), axis=0).any():
        return None, []
    rows, unlabelled = some_rows(codes), some_rows(np.zeros(len(others), dtype=np.int64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its complaints become the warning
        found = unlabelled_shift_test(matrix[rows], codes[rows], others[unlabelled], prevalence)
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


def by_fold(models: Sequence[Fitted], others: np.ndarray, num_classes: int) -> Float64[np.ndarray, "u k"]:
    """Return predictions of the unlabelled rows, each from the model of one fold."""
    found = np.empty((len(others), num_classes))
    for fold, fitted in enumerate(models):
        found[fold :: len(models)] = fitted.log_probs(others[fold :: len(models)])
    return found


def learn_population(
    models: Sequence[Fitted],
    log_probs: Float64[np.ndarray, "m k"],
    codes: Int64[np.ndarray, " m"],
    others: np.ndarray,
) -> JointPrevalenceEstimate:
    """Estimate π from out-of-fold predictions of labelled and unlabelled rows.

    Each unlabelled row is predicted by the model of one fold, like each labelled row.

    Args:
        models: one of each fold.
        log_probs: out-of-fold predictions of the labelled rows.
        codes: their classes.
        others: the unlabelled rows, encoded for the models.
    """
    tables = (log_probs, by_fold(models, others, log_probs.shape[1]))
    odds = [table[:, 1:] - table[:, :1] for table in tables]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of few rows: the interval shows it
        return joint_prevalence(odds[0], codes, odds[1])


@dataclass(frozen=True, eq=False)
class LinearWithUnlabelled:
    """Logistic regression with a ridge penalty, by the likelihood of labelled and unlabelled rows at the population.

    Attributes:
        others: the unlabelled rows, encoded by `linear_matrix`.
        prevalence: π; the fitted models predict at its ρ, like those of the other families.
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
        with warnings.catch_warnings():  # warnings of separated classes and collinear columns, which the penalty handles
            warnings.simplefilter("ignore")
            model.fit(part.matrix, part.codes, part.weights, X_unlabelled=self.others)
        coefficients, intercepts = model.coef_, model.intercept_
        if part.num_classes == 2:
            coefficients = np.concatenate([0 * coefficients, coefficients])
            intercepts = np.concatenate([0 * intercepts, intercepts])
        return LinearModel(coefficients, intercepts + np.log(rho) - np.log(pi))

    def held_out(
        self, part: Part, folds: Int64[np.ndarray, " m"], settings: Sequence[float]
    ) -> tuple[Float64[np.ndarray, "m k"], Float64[np.ndarray, "u k"]]:
        """Return predictions at π of labelled and unlabelled rows, from models trained on neither."""
        count = int(folds.max()) + 1
        tables = np.empty((len(part.codes), part.num_classes)), np.empty((len(self.others), part.num_classes))
        numbers = np.arange(len(self.others)) % count
        for fold in range(count):
            family = replace(self, others=self.others[numbers != fold])
            fitted = family.fit(part.rows(np.flatnonzero(folds != fold)), settings[min(fold, len(settings) - 1)])
            for table, matrix, of in zip(tables, (part.matrix, self.others), (folds, numbers), strict=True):
                table[of == fold] = fitted.log_probs(matrix[of == fold])
        first, second = (retarget(table, from_=self.prevalence.sampling, to=self.prevalence) for table in tables)
        return np.asarray(first), np.asarray(second)


def what_they_brought(
    others: UnlabelledTable,
    p_value: float | None,
    warned: bool,
    stream_gain: float | None,
    estimate: JointPrevalenceEstimate | None,
    compared: Sequence[Candidate],
    chosen: Candidate,
    codes: Int64[np.ndarray, " m"],
    prevalence: Prevalence,
    groups: Int64[np.ndarray, " m"] | None,
) -> UnlabelledReport:
    """Return the report on the unlabelled rows: the linear model with them against that without, on the same held-out rows."""
    tables = {each.name: each.log_probs for each in compared}
    kept = chosen.family == WITH_UNLABELLED
    report = UnlabelledReport(others.rows, len(others.frame), p_value, None, None, None, kept, stream_gain, warned)
    if estimate is not None:
        report = replace(report, population_low=estimate.low.tolist(), population_high=estimate.high.tolist())
    if WITH_UNLABELLED not in tables:
        return report
    gains = likelihoods(tables[WITH_UNLABELLED], codes) - likelihoods(tables["linear, closed form"], codes)
    gain, error = expectation(gains, codes, prevalence), standard_error(gains, codes, prevalence, groups)
    return replace(report, gain=gain, low=gain - 1.96 * error, high=gain + 1.96 * error)


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
