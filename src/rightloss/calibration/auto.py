"""The rule of `auto`: choose a correction, or a model, by the score of held-out predictions at the population.

Stage: held-out `log_probs` at π by name, labels, π → scores with standard errors → the name of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ..predictive import retarget
from .fit_with_shrinkage import fit_slopes
from .held_out import HeldOut
from .model import Calibration, smooth_likelihoods

FEW = 20.0  # rows of a class, by weight, below which a calibration is the last resort
_ROUNDING = 1e-12  # predictions with a slope of 0 are π up to rounding


def expected_gain(values: np.ndarray, data: HeldOut, population: np.ndarray) -> tuple[float, float]:
    """Return Σ_k π_k avg_{n: y_n = k} v_n and its standard error, with class k's variance divided by its rows, by weight.

    With v_n = log p(y_n|x_n) it is the expected log-likelihood at π; with a difference of two it is a paired comparison. The
    rows of a group count as one draw.
    """
    mass, counts = data.mass, data.counts
    means = np.bincount(data.labels, mass * values) / counts
    if data.groups is not None:
        shares = (population / np.sqrt(counts * np.maximum(counts - 1, 1)))[data.labels]
        moves = np.bincount(data.groups, shares * mass * (values - means[data.labels]))
        return float(population @ means), float(np.linalg.norm(moves))
    squares = np.bincount(data.labels, mass * (values - means[data.labels]) ** 2) / counts
    return float(population @ means), float(np.sqrt(population**2 @ (squares / np.maximum(counts - 1, 1))))


def cross_fitted(data: HeldOut, folds: np.ndarray, kind: str, population: np.ndarray) -> np.ndarray:
    """Return calibrated predictions at π `(n, k)`, each row's calibration fitted on the other folds.

    Args:
        data: finite predictions, labels and weights.
        folds: the number of each row's fold `(n,)`; without any one of them every class is left.
        kind: "temperature", "affine" or "beta".
        population: π (K,).
    """
    found = np.empty_like(data.log_probs)
    for fold in np.unique(folds):
        out = folds == fold
        fitted = fit_slopes(data.take(~out), kind)
        found[out] = retarget(fitted.apply(data.log_probs[out]), fitted.sampling, population)
    return found


def corrections(
    data: HeldOut,
    folds: np.ndarray,
    sampling: np.ndarray | None,
    population: np.ndarray,
    matched: Calibration | None = None,
) -> dict[str, np.ndarray]:
    """Return held-out predictions at π by each correction that `choose_correction` chooses from.

    Args:
        data: the predictions, labels and weights.
        folds: the number of each row's fold `(n,)`.
        sampling: ρ, at which the predictions hold; None for values that only a calibration makes probabilities.
        population: π (K,).
        matched: the correction that makes the mean prediction of unlabelled rows π, if there are some.
    """
    tables = {} if sampling is None else {"closed_form": np.asarray(retarget(data.log_probs, sampling, population))}
    if matched is not None:
        tables["mean_matching"] = matched.apply(data.log_probs)
    kinds = ("affine",) if data.counts.min() < FEW else ("affine", "beta")
    return tables | {kind: cross_fitted(data, folds, kind, population) for kind in kinds}


def score(tables: Mapping[str, np.ndarray], data: HeldOut) -> dict[str, np.ndarray]:
    """Return the log-probability of each row's label (n,), for each table `(n, k)`."""
    return {name: table[np.arange(len(data.labels)), data.labels] for name, table in tables.items()}


def compare(tables: Mapping[str, np.ndarray], data: HeldOut, population: np.ndarray) -> dict[str, dict[str, float]]:
    """Return for each table its expected log-likelihood at π, the gain over always predicting π, and the gain's standard error.

    Args:
        tables: held-out predictions at π by name, each `(n, k)`.
        data: the labels and weights.
        population: π (K,).
    """
    always, found = np.log(population)[data.labels], {}
    for name, own in score(tables, data).items():
        gain, error = expected_gain(own - always, data, population)
        found[name] = {
            "expected_log_likelihood": expected_gain(own, data, population)[0],
            "gain": gain,
            "standard_error": error,
        }
    return found


def clearly_best(tables: Mapping[str, np.ndarray], data: HeldOut, population: np.ndarray, names: Iterable[str] = ()) -> str:
    """Return the first name, unless a later one is better by more than a standard error of the paired difference at π.

    For models in the order of preference, such as the simplest first.

    Args:
        tables: held-out predictions at π by name, each `(n, k)`.
        data: the labels and weights.
        population: π (K,).
        names: some of the tables, in their order; all by default.
    """
    own = score(tables, data)
    chosen, *others = list(names) or list(tables)
    for name in others:
        gain, error = expected_gain(own[name] - own[chosen], data, population)
        chosen = name if gain > error else chosen
    return chosen


def choose_correction(tables: Mapping[str, np.ndarray], data: HeldOut, population: np.ndarray) -> str:
    """Return the correction to use, by the rule in the docstring of `PrevalenceCorrectedClassifier`.

    Args:
        tables: held-out predictions at π by name, each `(n, k)`: "affine", and any of "beta", "closed_form", "mean_matching".
        data: the labels and weights.
        population: π (K,).
    """
    own = {**score(tables, data), "population": np.log(population)[data.labels]}

    def gain(name: str, over: str) -> tuple[float, float]:
        return expected_gain(own[name] - own[over], data, population)

    simple = [name for name in ("closed_form", "mean_matching") if name in tables]
    calibrated = "beta" if "beta" in tables else "affine"
    if data.counts.min() < FEW and simple:
        chosen = clearly_best(tables, data, population, simple)
        over, noise = gain(chosen, "population")
        if over < -noise and gain(calibrated, chosen)[0] > 0:
            chosen = calibrated
    else:
        chosen = clearly_best(tables, data, population, [name for name in (calibrated, "mean_matching") if name in tables])
    over, noise = gain(chosen, "population")
    return "flat" if over <= _ROUNDING - noise else chosen


def is_smoothed(table: np.ndarray, data: HeldOut, population: np.ndarray) -> bool:
    """Return whether predictions at π should be smoothed: unless they are better without, by more than a standard error."""
    if data.counts.min() < FEW:
        return False
    both = score({"plain": table, "smoothed": smooth_likelihoods(table, population, data.counts)}, data)
    gain, error = expected_gain(both["plain"] - both["smoothed"], data, population)
    return gain <= error
