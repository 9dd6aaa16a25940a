"""Compare model families and corrections by cross-validation, at the population.

Stage: families, rows with labels → out-of-fold log-probabilities at π of every candidate → a table of figures, and the choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float64, Int64

from ..metrics import evaluate
from ..predictive.retarget import retarget
from ..prevalence import Prevalence
from ..shift import Calibration, fit_calibration
from .candidates import Family, Fitted, Part
from .splits import fold_numbers, usable_folds

Correction = Literal["closed form", "affine", "none"]
Progress = Callable[[float, int, str], None]

NOTHING = "always answering π"
_TUNED_ONCE = 20_000  # with more rows, the setting of the first fold is used for all folds
_INNER_FOLDS = 5  # one of these parts is for validation
_DEFAULTS = {"boosting": 50.0}  # settings if a class has too few rows for validation
_DEFAULT = 0.1  # setting of the linear families
_FEWEST_TO_CALIBRATE = 20  # minimum of out-of-fold rows of each class


@dataclass(frozen=True, eq=False)
class Candidate:
    """A family with a correction, and its out-of-fold predictions.

    Attributes:
        name: the name in the table.
        family: the family's name; None for always answering π.
        correction: how predictions at the training mix are moved to the population; "none" is shown, but never chosen.
        log_probs: out-of-fold predictions at π, one row per compared row.
        seconds: the time of the family.
        only_as_best: it is chosen only if it is the best, not if it is nearly the best.
    """

    name: str
    family: str | None
    correction: Correction
    log_probs: Float64[np.ndarray, "m k"]
    seconds: float
    only_as_best: bool = False


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """The out-of-fold predictions of a family, at the mix of the weighted labels; the settings and models of the folds."""

    log_probs: Float64[np.ndarray, "m k"]
    settings: list[float]
    seconds: float
    models: list[Fitted] = field(default_factory=list)

    @property
    def setting(self) -> float:
        """The median of the chosen settings."""
        return sorted(self.settings)[len(self.settings) // 2]


def choose_folds(
    codes: Int64[np.ndarray, " m"], groups: Int64[np.ndarray, " m"] | None, num_folds: int, seed: int
) -> Int64[np.ndarray, " m"]:
    """Return the fold of each row, with the requested number of folds, or fewer if the classes require it.

    Raises:
        ValueError: if there cannot be two folds with every class in the rows outside of each.
    """
    for count in range(usable_folds(codes, groups, num_folds), 1, -1):
        folds = fold_numbers(codes, groups, count, seed)
        if all(_has_every_class(codes[folds != fold], codes) for fold in range(count)):
            return folds
    raise ValueError(
        "Expected every class in two groups or more, so that one can be tested on, but there are not enough: add groups, "
        "or leave the group column out."
    )


def cross_validate(
    family: Family,
    part: Part,
    folds: Int64[np.ndarray, " m"],
    groups: Int64[np.ndarray, " m"] | None,
    seed: int,
    step: Callable[[str], None] = lambda words: None,
) -> CrossValidation:
    """Return predictions of each fold by a model tuned and fitted on the others; `step` is called for every fold."""
    start, count = time.perf_counter(), int(folds.max()) + 1
    log_probs = np.empty((len(part.codes), part.num_classes))
    settings: list[float] = []
    models: list[Fitted] = []
    for fold in range(count):
        step(f"{family.name}, fold {fold + 1} of {count}")
        train, test = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        known = part.rows(train)
        if not settings or len(folds) <= _TUNED_ONCE:
            settings.append(tuned(family, known, None if groups is None else groups[train], seed))
        models.append(family.fit(known, settings[-1]))
        log_probs[test] = models[-1].log_probs(part.matrix[test])
    return CrossValidation(log_probs, settings, time.perf_counter() - start, models)


def tuned(family: Family, part: Part, groups: Int64[np.ndarray, " n"] | None, seed: int) -> float:
    """Return the family's setting, chosen on a fifth of the rows; a default if a class has too few rows."""
    count = usable_folds(part.codes, groups, _INNER_FOLDS)
    if count < 2:
        return _DEFAULTS.get(family.name, _DEFAULT)
    inner = fold_numbers(part.codes, groups, count, seed + 1)
    train, valid = np.flatnonzero(inner > 0), np.flatnonzero(inner == 0)
    if not _has_every_class(part.codes[train], part.codes):
        return _DEFAULTS.get(family.name, _DEFAULT)
    return family.tune(part.rows(train), part.rows(valid))


def candidates_of(
    family: str, found: CrossValidation, codes: Int64[np.ndarray, " m"], folds: Int64[np.ndarray, " m"], prevalence: Prevalence
) -> tuple[list[Candidate], list[str]]:
    """Return a family's candidates, one per correction, and notes about impossible ones.

    "closed form" moves predictions from ρ to π (`retarget`). "affine" first fits a slope and biases to out-of-fold
    log-probabilities (`fit_calibration`), for each fold on the other folds. "none" keeps them at ρ, to show the effect of a
    correction.
    """
    moved = retarget(found.log_probs, from_=prevalence.sampling, to=prevalence)
    made = [Candidate(f"{family}, closed form", family, "closed form", moved, found.seconds)]
    notes = []
    try:
        affine = _cross_fitted(found.log_probs, codes, folds, prevalence)
        made.append(Candidate(f"{family}, affine", family, "affine", affine, found.seconds))
    except ValueError as error:
        why = str(error).rpartition(", but ")[2].partition(": ")[0]  # without what was expected, and the advice
        notes.append(f"{family}: no affine correction ({why}).")
    if float(prevalence.log_weights.abs().max()) > 1e-6:
        made.append(Candidate(f"{family}, uncorrected", family, "none", found.log_probs, found.seconds))
    return made, notes


def calibration_of(log_probs: Float64[np.ndarray, "m k"], codes: Int64[np.ndarray, " m"]) -> Calibration:
    """Fit the affine correction.

    Raises:
        ValueError: if a class has too few rows, or the calibration has no solution.
    """
    fewest = int(np.bincount(codes, minlength=log_probs.shape[1]).min())
    if fewest < _FEWEST_TO_CALIBRATE:
        raise ValueError(f"a class has {fewest} rows out of fold, fewer than {_FEWEST_TO_CALIBRATE}")
    return fit_calibration(log_probs, codes)


def always_population(prevalence: Prevalence, rows: int) -> Candidate:
    """Return the candidate that predicts π for every row."""
    table = np.tile(prevalence.population.log().numpy(), (rows, 1))
    return Candidate(NOTHING, None, "closed form", table, 0.0)


def comparison_table(
    candidates: Sequence[Candidate],
    codes: Int64[np.ndarray, " m"],
    prevalence: Prevalence,
    groups: Int64[np.ndarray, " m"] | None,
    chosen: Candidate,
) -> pd.DataFrame:
    """Return the figures of each candidate at π, the best expected log-likelihood first."""
    rows = []
    for each in candidates:
        found = evaluate(each.log_probs, codes, prevalence, groups=groups, intervals="analytic")
        row: dict[str, Any] = {"candidate": each.name, "family": each.family or "none", "correction": each.correction}
        of_likelihood = found.expected_log_likelihood
        row |= {"expected_log_likelihood": of_likelihood.value, "low": of_likelihood.low, "high": of_likelihood.high}
        row |= {"skill": found.skill.value, "auc": found.auc.value, "calibration_slope": found.calibration_slope.value}
        row["calibration_intercept"] = found.calibration_intercept.value
        rows.append(row | {"seconds": each.seconds, "chosen": each is chosen})
    return pd.DataFrame(rows).sort_values("expected_log_likelihood", ascending=False, ignore_index=True)


def choose(
    candidates: Sequence[Candidate],
    codes: Int64[np.ndarray, " m"],
    prevalence: Prevalence,
    groups: Int64[np.ndarray, " m"] | None = None,
) -> Candidate:
    """Return the simplest candidate that is within one standard error of the best expected log-likelihood at π.

    The standard error is that of the paired difference. The simplest is the earliest in the list; always answering π, the
    first, is chosen only if nothing has a higher expected log-likelihood. A candidate with `only_as_best` is chosen if it is
    the best.
    """
    own = [likelihoods(each.log_probs, codes) for each in candidates]
    means = [expectation(each, codes, prevalence) for each in own]
    better = [i for i, each in enumerate(candidates) if each.correction != "none" and each.family and means[i] > means[0]]
    if not better:
        return candidates[0]
    best = max(better, key=lambda i: means[i])
    if candidates[best].only_as_best:
        return candidates[best]
    for i in (i for i in better if not candidates[i].only_as_best):
        if means[best] - means[i] <= standard_error(own[best] - own[i], codes, prevalence, groups):
            return candidates[i]
    raise AssertionError("the best candidate is within one standard error of itself")


def likelihoods(log_probs: Float64[np.ndarray, "m k"], codes: Int64[np.ndarray, " m"]) -> Float64[np.ndarray, " m"]:
    """Return the log-probability of each row's class."""
    return log_probs[np.arange(len(codes)), codes]


def expectation(values: Float64[np.ndarray, " m"], codes: Int64[np.ndarray, " m"], prevalence: Prevalence) -> float:
    """Return Σ_c π_c · the mean of class c."""
    return float(_weights(codes, prevalence) @ values)


def standard_error(
    values: Float64[np.ndarray, " m"],
    codes: Int64[np.ndarray, " m"],
    prevalence: Prevalence,
    groups: Int64[np.ndarray, " m"] | None = None,
) -> float:
    """Return the standard error of `expectation`, for fixed class counts; rows of a group count as one draw."""
    counts = np.bincount(codes)
    means = np.bincount(codes, values) / np.maximum(counts, 1)
    moves = _weights(codes, prevalence) * (values - means[codes])
    if groups is not None:
        moves = np.bincount(np.unique(groups, return_inverse=True)[1], moves)
    return float(np.sqrt(moves @ moves))


def _cross_fitted(log_probs: np.ndarray, codes: np.ndarray, folds: np.ndarray, prevalence: Prevalence) -> np.ndarray:
    """Return each fold's predictions, calibrated on the other folds and moved to π."""
    found = np.empty_like(log_probs)
    for fold in range(int(folds.max()) + 1):
        test = folds == fold
        calibration = calibration_of(log_probs[~test], codes[~test])
        found[test] = retarget(calibration(log_probs[test]), from_=calibration.sampling, to=prevalence)
    return found


def _weights(codes: np.ndarray, prevalence: Prevalence) -> np.ndarray:
    """Return π_c / n_c of each row."""
    return (prevalence.population.numpy() / np.maximum(np.bincount(codes, minlength=prevalence.num_classes), 1))[codes]


def _has_every_class(some: np.ndarray, all_codes: np.ndarray) -> bool:
    return len(np.unique(some)) == len(np.unique(all_codes))
