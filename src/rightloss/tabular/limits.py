"""Limits of a table model's risks, and odds ratios of its columns.

Stage: models of the folds, a table, a population → limits `(n, k)`; columns, classes → odds ratios with limits.

The limits are those of a jackknife by folds. The procedure that made the model was run without each fold in turn: fit, and
calibration. With η_j(x) the log-odds of a class by the model without fold j of F, and η̄ their mean, the model's variance is

    v(x) = (F − 1)/F Σ_j (η_j(x) − η̄(x))²,        with F − 1 degrees of freedom.

It needs no standard errors, so it serves trees too, and where folds are made of whole groups it allows for the likeness of
their rows. To it comes the variance of the population, where that is a survey's, learnt, or the mix of the table itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from scipy import special

from ..arrays import checked_level
from ..predictive import retarget
from ..predictive.interval import BetaLogOdds
from ..sklearn.coefficients import one_vs_rest_logits, prevalence_variance
from ..sklearn.linear import NEWTON_LIMIT
from .pipelines import ColumnSpec, linear_matrix

if TYPE_CHECKING:
    from jaxtyping import Float64

    from ..prevalence import Prevalence
    from .fit import LabelledTable
    from .model import TableModel

_MOST_COEFFICIENTS = 1000  # with more, there are no odds ratios
_MOST_CELLS = 10_000_000  # numbers of the features from which odds ratios are computed
_BLOCK = 20_000  # rows predicted at a time
_GRID = 65  # standard errors at which a quantile is computed, between which it is interpolated
_DEPENDENT = 1e-8  # share of a column's variance that is new, below which it follows from the columns before it


# Limits of risks.


def risk_limits(
    model: TableModel, frame: pd.DataFrame, to: Prevalence, level: float
) -> tuple[Float64[np.ndarray, "n k"], Float64[np.ndarray, "n k"]]:
    """Return the lower and upper limits of each class's risk at a population; see `TableModel.predict_limits`."""
    level, fitted, correction, folds = checked_level(level), model.fitted, model.correction, model.folds
    low, high = (np.empty((len(frame), len(model.classes_))) for _ in range(2))
    if fitted is not None and folds is None:
        raise ValueError("Expected a model with the models of its folds, but got one of version 0.2.0: fit it again.")
    for start in range(0, len(frame), _BLOCK):
        rows = slice(start, start + _BLOCK)
        log_probs, without = np.tile(np.log(to.population), (len(low[rows]), 1)), []
        if fitted is not None and correction is not None and folds is not None:
            matrix = fitted.encode(frame.iloc[rows], model.columns)
            both = [(fitted, correction), *zip(folds.models, folds.corrections, strict=True)]
            log_probs, *without = [
                np.asarray(retarget(made.apply(each.predict_log_proba(matrix)), made.sampling, to)) for each, made in both
            ]
        low[rows], high[rows] = _limits(log_probs, without, model, to, level)
    return low, high


def _limits(
    log_probs: np.ndarray, replicates: list[np.ndarray], model: TableModel, to: Prevalence, level: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the limits of predictions (n, k), from those of the replicates."""
    reach = -float(special.ndtri((1 - level) / 2))
    logit, gradient = one_vs_rest_logits(log_probs)
    alpha, k = to.concentration, len(model.classes_)
    spread = _mix_covariance(model) if is_own_mix(model, to) else np.zeros((k - 1, k - 1))
    if alpha is not None and k > 2:
        spread = spread + prevalence_variance(alpha)
    of_mix = np.einsum("nci,ij,ncj->nc", gradient, spread, gradient)
    errors = np.sqrt(of_mix)
    if len(replicates):
        count = len(replicates)
        variance = (count - 1) * np.var([one_vs_rest_logits(each)[0] for each in replicates], axis=0)
        variance *= len(model.held_out.target) / model.rows  # the folds may be of some rows only
        total = np.maximum(variance + of_mix, np.finfo(float).tiny)
        freedom = (count - 1) * (total / np.maximum(variance, 1e-12 * total)) ** 2  # Satterthwaite's
        errors = np.sqrt(total) * special.stdtrit(freedom, (1 + level) / 2) / reach
    if alpha is not None and k == 2:
        return _with_survey(logit[:, 1], errors[:, 1], BetaLogOdds(*alpha.tolist()[::-1]), level)
    return special.expit(logit - reach * errors), special.expit(logit + reach * errors)


def limits_cover(model: TableModel, to: Prevalence) -> str:
    """Return what the limits of the risks at a population allow for, in words."""
    parts = [] if model.fitted is None else ["what the model would have learnt from other rows of the same kind"]
    if to.concentration is not None:
        parts.append("the uncertainty of the population")
    elif is_own_mix(model, to):
        parts.append("the training rows' mix of classes being a sample")
    known = "" if len(parts) == 2 or to.concentration is not None else "; the population is taken as known"
    return (" and ".join(parts) or "nothing, since the model always answers the population") + known


def is_own_mix(model: TableModel, to: Prevalence) -> bool:
    """Return whether a population is the mix of the training rows, and so as uncertain as that."""
    return to.concentration is None and bool(np.array_equal(to.population, model.population.sampling))


def _mix_covariance(model: TableModel) -> np.ndarray:
    """Return the covariance of log π_k − log π_0 for the mix of the training rows, by the held-out ones."""
    codes, k = model.held_out.target, len(model.classes_)
    own = np.eye(k)[codes] / np.bincount(codes, minlength=k)
    moves = own[:, 1:] - own[:, :1]
    if model.held_out.groups is not None:
        moves = pd.DataFrame(moves).groupby(model.held_out.groups).sum().to_numpy()
    return np.asarray(moves.T @ moves * len(codes) / model.rows)


def _with_survey(logit: np.ndarray, errors: np.ndarray, beta: BetaLogOdds, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return limits (n, 2) where π ~ Beta: of the log-odds of π plus a normal error, without a normal approximation of π."""
    nodes, weights = (each for each in beta.rule())
    least = 0.25 * float(np.sqrt(np.cov(nodes, aweights=weights)))  # of an error that is smooth between the nodes
    grid = np.linspace(least, max(float(errors.max(initial=0)), least), _GRID)
    mean, ends = np.log(beta.a) - np.log(beta.b), []
    for share in ((1 - level) / 2, (1 + level) / 2):
        found = np.array([beta.quantile(share), *_sum_quantiles(nodes, weights, grid, share)])
        ends.append(logit - mean + np.interp(errors**2, np.array([0.0, *grid]) ** 2, found))
    low, high = ends
    return special.expit(np.column_stack([-high, low])), special.expit(np.column_stack([-low, high]))


def _sum_quantiles(nodes: np.ndarray, weights: np.ndarray, errors: np.ndarray, share: float) -> np.ndarray:
    """Return the quantile of t + s z for each s, where t has these nodes and weights and z is normal; by bisection."""
    low, high = (np.full(len(errors), end) for end in (nodes.min() - 10 * errors.max(), nodes.max() + 10 * errors.max()))
    for _ in range(60):
        middle = (low + high) / 2
        below = special.ndtr((middle[:, None] - nodes) / errors[:, None]) @ weights < share
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2


# Odds ratios.


class _Change(NamedTuple):
    """A change of a column: which column of `linear_matrix` it moves, by how much, and in words."""

    place: int
    column: str
    words: str
    step: float | None
    move: float


def odds_ratios(table: LabelledTable, classes: Sequence[object], level: float = 0.95) -> tuple[pd.DataFrame | None, list[str]]:
    """Return the odds ratios of a logistic regression without penalty on the columns of a table; or None, and a note why.

    They are of the columns together, so each is adjusted for the others. The errors are those for given class counts: odds
    ratios depend neither on the population nor on how many rows of each class were sampled (Prentice & Pyke 1979).

    Returns:
        A row for each class but the first and each change of a column: class, column, change, step (of a number, else None),
        odds_ratio, low and high. Columns that follow from columns before them are left out.
    """
    from ..sklearn.information_gain import InformationGainClassifier

    specs, groups = table.specs, table.groups
    width = sum(spec.linear_width for spec in specs)
    if width * (len(classes) - 1) > _MOST_COEFFICIENTS:
        return None, [f"no odds ratios, since there would be {width * (len(classes) - 1):,} of them."]
    rows = _rows_in_proportion(table.codes, max(_MOST_CELLS // width, 1000))
    matrix, codes = linear_matrix(table.frame.iloc[rows], specs).astype(np.float64), table.codes[rows]
    changes = _determined(matrix, _changes(specs))
    if (len(changes) + 1) * (len(classes) - 1) > NEWTON_LIMIT:
        return None, [f"no odds ratios, since there would be {len(changes) * (len(classes) - 1):,} of them."]
    x = matrix[:, [change.place for change in changes]]
    model = InformationGainClassifier(penalty=None, tol=1e-8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of separated classes, which the summary refuses
        model.fit(x, codes)
    try:
        summary = model.summary()
    except ValueError as problem:
        separated = "columns separate the classes of these rows perfectly: some are infinite"
        return None, [f"no odds ratios, since the {separated if 'separate' in str(problem) else 'rows do not determine them'}."]
    coefficients, covariance = summary.frame["coef"].to_numpy().reshape(len(classes) - 1, -1), summary.covariance.to_numpy()
    if groups is not None:
        residuals = (model.predict_proba(x) - np.eye(len(classes))[codes])[:, 1:]
        covariance = covariance @ _between_groups(x, residuals, codes, groups[rows]) @ covariance
    error = np.sqrt(np.diag(covariance)).reshape(coefficients.shape)
    reach = -float(special.ndtri((1 - level) / 2))
    found = []
    for k, label in enumerate(classes[1:]):
        for change, middle, s in zip(changes, coefficients[k], error[k], strict=False):  # these have the intercept, too
            row = {"class": label, "column": change.column, "change": change.words, "step": change.step}
            ends = {"odds_ratio": middle, "low": middle - reach * s, "high": middle + reach * s}
            found.append(row | {name: float(np.exp(change.move * value)) for name, value in ends.items()})
    return pd.DataFrame(found), []


def _changes(specs: Sequence[ColumnSpec]) -> list[_Change]:
    """Return the change of each column of `linear_matrix`: a step of a number, or a level against the most frequent one."""
    found, start = [], 0
    for spec in specs:
        if spec.is_category:
            first, *others = [*spec.categories, "another"]
            names = {start + number: f"{each} against {first}" for number, each in enumerate(others, 1)}
            found += [_Change(place, spec.name, words, None, 1.0) for place, words in names.items()]
        elif spec.kind == "boolean":
            first = "false"
            found.append(_Change(start, spec.name, "true against false", None, 1 / spec.scale))
        else:
            first, step = f"{spec.fill:.4g}", _round_step(spec.scale)
            words = f"+{step:g} days" if spec.kind == "date" else f"+{step:g}"
            found.append(_Change(start, spec.name, words, step, step / spec.scale))
        if spec.has_missing:
            found.append(_Change(start + spec.linear_width - 1, spec.name, f"missing against {first}", None, 1.0))
        start += spec.linear_width
    return found


def _round_step(scale: float) -> float:
    """Return the round number, 1, 2 or 5 times a power of 10, closest to a standard deviation."""
    power = 10.0 ** np.floor(np.log10(scale))
    return float(min((each * power for each in (1, 2, 5, 10)), key=lambda step: abs(np.log(step / scale))))


def _determined(matrix: np.ndarray, changes: list[_Change]) -> list[_Change]:
    """Return the changes whose columns are not constant and do not follow from those before them."""
    columns = matrix[:, [change.place for change in changes]]
    basis, kept = np.zeros_like(columns), list[_Change]()  # orthonormal, of the columns kept
    for change, column in zip(changes, (columns - columns.mean(0)).T, strict=True):
        known = basis[:, : len(kept)]
        new, size = column - known @ (known.T @ column), column @ column
        if new @ new > _DEPENDENT * max(size, _DEPENDENT):
            basis[:, len(kept)] = new / np.linalg.norm(new)
            kept.append(change)
    return kept


def _rows_in_proportion(codes: np.ndarray, most: int) -> np.ndarray:
    """Return about that many rows at most, each class in proportion."""
    return np.arange(len(codes)) if len(codes) <= most else np.argsort(codes, kind="stable")[:: -(-len(codes) // most)]


def _between_groups(features: np.ndarray, scores: np.ndarray, codes: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return Σ_g s_g s_gᵀ of the groups' sums of gradients, each less the mean of its class."""
    x = np.column_stack([features, np.ones(len(features))])
    each = pd.DataFrame((scores[:, :, None] * x[:, None, :]).reshape(len(x), -1))
    sums = (each - each.groupby(codes).transform("mean")).groupby(groups).sum().to_numpy()
    return sums.T @ sums * len(sums) / max(len(sums) - 1, 1)
