"""Fit a calibration to labels, with shrinkage: slopes and biases, and their covariance.

Stage: held-out `log_probs`, labels → `HeldOut` → `Calibration`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
from scipy import linalg

from ..arrays import Numbers, Predictions, checked_choice, checked_number
from ..prevalence import PrevalenceWarning
from ..solve import Quadratic, intercepts_for_mean, minimise, softmax_columns
from .held_out import HeldOut, held_out_set
from .model import LEAST, Calibration

CalibrationKind = Literal["mean", "temperature", "affine", "beta"]
KINDS = get_args(CalibrationKind)
_OLD_NAMES = {"bias-corrected": "affine", "vector": "beta"}  # of version 0.2
FLAT = 0.01  # a slope that keeps the order of the predictions, but makes them nearly constant
_CLEAR = 10.8  # χ² of 1 degree of freedom with p = 0.001
_STEEPEST = 1e4  # a slope above it has no bound
_NONE = 1e-12  # a slope below it is 0 up to rounding
_CERTAIN = 1e-6  # minus the log-likelihood of all rows together, below which the predictions separate them
_MOST_LEVERAGE = 0.9  # of a row on its own prediction, in the covariance of a fit
_BLOCK = 1 << 18  # rows at a time, so that a large set is not copied; with more, the search starts on a sixteenth of them


def fit_calibration(
    log_probs: Predictions,
    labels: Numbers,
    kind: CalibrationKind | str = "affine",
    weights: Numbers | None = None,
    shrink: float | int = 1.0,
    groups: Numbers | None = None,
) -> Calibration:
    """Fit a calibration to labelled predictions that the model was not trained on.

    | kind | slopes | biases | for two classes |
    |---|---|---|---|
    | "temperature" | one | none | the log-odds times a |
    | "affine" | one | one per class | a · log-odds + b (Platt; Cox's recalibration) |
    | "beta" | one per class | one per class | a₁ log p − a₀ log(1 − p) + b, beta calibration (Kull et al. 2017) |
    | "mean" | 1 | 0 | unchanged: only finds the mix at which the predictions hold |

    With biases the mean prediction equals the label frequencies; estimates of a prevalence need that (Alexandari, Kundaje,
    Shrikumar 2020, who call "affine" bias-corrected temperature scaling and "beta" vector scaling).

    **Shrinkage.** A slope fitted to few rows is on average too steep for new ones, and has no bound if the predictions separate
    the labels. With `shrink`=1 (s below) two things act, both negligible with many rows. Slopes have a normal prior of mean 1
    and precision s. With biases they are then multiplied by 1 − s m/χ² (van Houwelingen and le Cessie 1990), at least 0.01,
    with m slopes and χ² twice their gain in log-likelihood over always answering the label frequencies, and the biases are
    matched to these again. 0 is plain maximum likelihood, for tests and intervals that assume it.

    **Labels that the predictions say nothing about.** Slopes are at least 0. If the labels contradict the predictions, or do
    no more than agree by chance, the calibration answers the label frequencies (slope 0, or 0.01 of the fitted one, which keeps
    the order), with a `PrevalenceWarning`. It is a ValueError if the labels clearly agree with the columns in another order.

    Args:
        log_probs: predictions `(n, k)`, or dense maps `(n, k, h, w, …)`.
        labels: class numbers `(n,)`, or `(n, h, w, …)`, every class among them. Rows and cells labelled −100 are ignored.
        kind: "temperature", "affine", "beta" or "mean".
        weights: of the rows `(n,)`; 2 is the same as the row twice.
        shrink: s, at least 0.
        groups: ids of rows that are correlated `(n,)`, such as a person's, for the covariance.

    Examples:
        >>> import numpy as np
        >>> from rightloss.calibration import fit_calibration
        >>> labels = np.arange(2000) % 2
        >>> logit = 2 * (np.random.default_rng(0).normal(size=2000) + 2 * labels - 1)
        >>> overconfident = np.stack([-np.logaddexp(0, 3 * logit), -np.logaddexp(0, -3 * logit)], 1)
        >>> fit_calibration(overconfident, labels, "temperature").temperature.round()
        array([3., 3.])
    """
    kind = checked_kind(kind, "kind", stacklevel=3)
    return calibrate(held_out_set((log_probs, labels), groups=groups, weights=weights), kind, shrink, stacklevel=3)


def checked_kind(kind: Any, name: str, stacklevel: int = 2) -> CalibrationKind:
    """Return the kind of a calibration, or raise a ValueError; names of version 0.2 are replaced with a DeprecationWarning."""
    if isinstance(kind, str) and kind in _OLD_NAMES:
        new = _OLD_NAMES[kind]
        warnings.warn(f"{name}={kind!r} is called {new!r} now: write that.", DeprecationWarning, stacklevel=stacklevel + 1)
        kind = new
    return checked_choice(kind, name, KINDS)


def calibrate(data: HeldOut, kind: str, shrink: float | int = 1.0, stacklevel: int = 2) -> Calibration:
    """Return the calibration of `fit_calibration`, for a checked set."""
    shrink = checked_number(shrink, "shrink", 0.0, remedy="1 is the default, 0 is plain maximum likelihood")
    data.require_every_class()
    data = replace(data, log_probs=np.maximum(data.log_probs, LEAST))
    size = data.log_probs.shape[1]
    if kind == "mean":
        found = Calibration(kind, np.ones(size), np.zeros(size), np.full(size, 1 / size), data.counts)
    else:
        _require_own_probability(data)
        found = fit_slopes(data, kind, shrink)
        _refuse_another_order(data, found)
        warn_of_disagreement(data, found, stacklevel)
    probs = np.exp(found.apply(data.log_probs)).T
    never = np.flatnonzero(probs.sum(1) == 0).tolist()
    if never:
        raise ValueError(
            f"Expected predictions that give every class some probability, but class(es) {never} never have any in the "
            "held-out set: leave such a class out."
        )
    mean = probs @ data.mass
    spread = covariance_of_mean(probs, data) if kind == "mean" else covariance(probs, data, kind, shrink)
    return replace(found, sampling=mean / mean.sum(), covariance=spread)


def fit_slopes(data: HeldOut, kind: str, shrink: float | int = 1.0) -> Calibration:
    """Return the calibration without checks, warnings and covariance.

    Args:
        data: finite predictions, every class among the labels.
        kind: "temperature", "affine" or "beta".
        shrink: s of `fit_calibration`.
    """
    slopes, biases = maximise(data, kind, shrink)
    found = Calibration(kind, slopes, biases, data.counts / data.mass.sum(), data.counts)
    if kind == "temperature" or shrink == 0:
        return found
    number = shrink * (1 if kind == "affine" else len(slopes))
    slopes = slopes * max(FLAT, 1 - number / max(_statistic(found, data), number))
    return replace(found, slopes=slopes, biases=intercepts_for_mean(slopes * data.log_probs, found.sampling, data.mass))


def _statistic(found: Calibration, data: HeldOut) -> float:
    """Return twice the gain in log-likelihood over always answering the label frequencies."""
    own = found.apply(data.log_probs)[np.arange(len(data.labels)), data.labels]
    return 2 * float(data.mass @ (own - np.log(data.counts / data.mass.sum())[data.labels]))


def _require_own_probability(data: HeldOut) -> None:
    own = data.log_probs[np.arange(len(data.labels)), data.labels]
    if (own <= LEAST).any():
        raise ValueError(
            f"Expected predictions that give each held-out label some probability, but row {int(own.argmin())} gives its label "
            "none: mix a little of the class frequencies into the predictions first, or use kind='mean'."
        )


def warn_of_disagreement(data: HeldOut, found: Calibration, stacklevel: int) -> None:
    """Warn if the labels that a calibration was fitted to agree with the predictions no more than by chance."""
    against = np.flatnonzero(found.slopes == 0).tolist()
    number = {"temperature": -np.inf, "affine": 1, "beta": len(found.slopes)}[found.kind]
    if not against and _statistic(found, data) >= number:
        return
    what, remedy = "agree with the predictions no more than by chance", "use more rows, or another model"
    if against:
        what = f"contradict the predictions of class(es) {against}, so their slopes are 0"
        remedy = (
            "check that rows and labels are in the same order, and columns in that of the class numbers; method='bbse' of "
            "estimate_prevalence needs no agreement"
        )
    if 0 < len(against) < len(found.slopes):
        remedy = "kind='affine' has one slope for all classes"
    warnings.warn(
        f"The held-out labels {what}. The calibration answers little more than their frequencies: {remedy}.",
        PrevalenceWarning,
        stacklevel=stacklevel + 1,
    )


def _refuse_another_order(data: HeldOut, found: Calibration) -> None:
    against = np.flatnonzero(found.slopes == 0).tolist()
    order = _better_order(data) if against else None
    if order is not None:
        raise ValueError(
            f"Expected held-out labels that the predictions agree with, but the best slope of class(es) {against} is negative: "
            f"put the columns in the order of the class numbers; log_probs[:, {order}] agrees with the labels."
        )


def _better_order(data: HeldOut) -> list[int] | None:
    """Return the order of the columns that the labels clearly support, if it is not the given one, else None."""
    size = data.log_probs.shape[1]
    by_class = np.stack([np.bincount(data.labels, each, size) for each in (np.exp(data.log_probs) * data.mass[:, None]).T])
    by_class = by_class / data.counts  # the mean prediction of j among examples of k
    lift = by_class / by_class.mean(1, keepdims=True).clip(1e-300)
    order = lift.argmax(0).tolist()
    second, first = np.sort(lift, 0)[-2:]
    if sorted(order) != list(range(size)) or order == list(range(size)) or not (first > 1.2 * second).all():
        return None
    moved = replace(data, log_probs=data.log_probs[:, order])
    return order if _statistic(fit_slopes(moved, "affine"), moved) > _CLEAR else None


# Tables are `(K, n)` from here on, so that sums over rows run along memory.


def maximise(data: HeldOut, kind: str, shrink: float | int) -> tuple[np.ndarray, np.ndarray]:
    """Return slopes and biases (K,) of the largest likelihood, with slopes of at least 0.

    Args:
        data: finite predictions, every class among the labels.
        kind: "temperature", "affine" or "beta".
        shrink: precision of the slopes' normal prior, with mean 1.

    Raises:
        ValueError: if nothing bounds the slopes, because the predictions separate the labels; not with `shrink` above 0.
    """
    size, total, identity = data.log_probs.shape[1], data.mass.sum(), np.repeat([1.0, 0.0], data.log_probs.shape[1])
    # so that slopes and biases have steps of the same size; the bias of the most frequent class stays at 0
    scale = max(1.0, float(np.sqrt(data.mass @ data.log_probs.var(axis=1) / total)))
    design = design_of(kind, size, fixed=int(data.counts.argmax())) / np.where(identity, scale, 1.0)[:, None]
    is_slope = (design[:size] != 0).any(axis=0)
    penalty, lower = is_slope * shrink / scale**2, np.where(is_slope, -scale, -np.inf)
    point = np.zeros(len(lower))
    some = HeldOut(data.log_probs[::16], data.labels[::16], None, data.mass[::16])
    if len(data.labels) > _BLOCK and some.counts.all():
        point = minimise(_loss(some, design, penalty), point, lower).point
    found = minimise(_loss(data, design, penalty), point, lower)
    slopes, biases = np.split(identity + design @ found.point, 2)
    if shrink == 0 and (slopes.max() > _STEEPEST or found.at.value * total < _CERTAIN):
        raise ValueError(
            "Expected predictions and labels that can be calibrated, but the predictions separate the held-out labels "
            "perfectly, so that the likelihood has no maximum: use more held-out examples, or "
            "shrink=1; an estimate of the prevalence also takes calibration='mean'."
        )
    return np.where(slopes > _NONE, slopes, 0.0), biases - biases.mean()


def design_of(kind: str, size: int, fixed: int | None = None) -> np.ndarray:
    """Return the matrix `(2K, P)` from the free parameters to changes of (a_1 … a_K, b_1 … b_K); one bias may be fixed."""
    slopes = np.eye(size) if kind == "beta" else np.ones((size, 1))
    free = [] if kind == "temperature" else [k for k in range(size) if k != fixed]
    return linalg.block_diag(slopes, np.eye(size)[:, free])


def _loss(data: HeldOut, design: np.ndarray, penalty: np.ndarray) -> Callable[[np.ndarray], Quadratic]:
    """Return minus the mean log-likelihood, as a function of changes from the identity, plus the prior of the slopes."""
    table, mass = np.ascontiguousarray(data.log_probs.T), data.mass
    size, total = len(table), mass.sum()
    own = table[data.labels, np.arange(len(mass))]
    labelled = np.concatenate([np.bincount(data.labels, each, size) for each in (mass * own, mass)])
    identity, prior = np.repeat([1.0, 0.0], size), penalty / total

    def loss(params: np.ndarray) -> Quadratic:
        both = identity + design @ params
        log_total, sums, second = 0.0, np.zeros(2 * size), np.zeros((2 * size, 2 * size))
        for start in range(0, len(mass), _BLOCK):
            part = slice(start, start + _BLOCK)
            logs, probs = softmax_columns(both[:size, None] * table[:, part] + both[size:, None])
            log_total += float(mass[part] @ logs)
            for whole, each in zip((sums, second), moments(table[:, part], probs, mass[part]), strict=True):
                whole += each
        value = (log_total - both @ labelled) / total + prior @ params**2 / 2
        gradient = design.T @ (sums - labelled) / total + prior * params
        return Quadratic(float(value), gradient, design.T @ second @ design / total + np.diag(prior))

    return loss


def moments(table: np.ndarray, probs: np.ndarray, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Σ_n w_n p_n (log p_n, 1), (2K,), and the negative second derivatives of the log-likelihood in (a, b)."""
    weighted = probs * mass
    both = np.concatenate([probs * table, probs])
    sums = both @ mass
    squared, crossed, own = (np.diag(each) for each in ((weighted * table**2).sum(1), *np.split(sums, 2)))
    return sums, np.block([[squared, crossed], [crossed, own]]) - (both * mass) @ both.T


def covariance_of_mean(probs: np.ndarray, data: HeldOut) -> np.ndarray:
    """Return `covariance` if nothing is fitted: that of the log of the mean prediction.

    One row with the largest covariance for this mean, that of one-hot rows, is added, because few rows can underestimate it.
    """
    size, total = len(probs), data.mass.sum()
    mean = probs @ data.mass / total
    spread = np.zeros((2 * size, 2 * size))
    spread[size:, size:] = (_summed_squares(probs / mean[:, None] - 1, data) + np.diag(1 / mean) - 1) / total**2
    return spread


def covariance(probs: np.ndarray, data: HeldOut, kind: str, shrink: float | int) -> np.ndarray:
    """Return the covariance of (a, b − log mean prediction), from the influence of each held-out row: valid for any model.

    A row changes (a, b) by A times its score. It changes the mean prediction by its own prediction, and by the effect of
    (a, b) on all predictions, whose derivative is the lower half of the information matrix. A row pulls the fit towards itself,
    so its residual is divided by 1 − its leverage, which gives what the fit without it leaves (HC3, MacKinnon and White 1985).
    """
    table, mass = data.log_probs.T, data.mass
    size, total = len(table), mass.sum()
    design, information = design_of(kind, size), moments(table, probs, mass)[1]
    prior = np.diag(shrink * (design[:size] != 0).any(axis=0))
    moves = design @ np.linalg.pinv(design.T @ information @ design + prior, rcond=1e-12, hermitian=True) @ design.T
    mean = probs @ mass / total
    left = -probs
    left[data.labels, np.arange(len(mass))] += 1
    left /= 1 - _leverage(table, probs, moves).clip(0, _MOST_LEVERAGE)
    seen = np.concatenate([left * table, left, probs - mean[:, None]])  # scores, and predictions
    by_scores = moves.copy()
    by_scores[size:] -= information[size:] @ moves / (total * mean[:, None])
    by_prediction = np.concatenate([np.zeros((size, size)), np.diag(-1 / (total * mean))])
    influence = np.concatenate([by_scores, by_prediction], 1)
    return influence @ _summed_squares(seen, data) @ influence.T


def _summed_squares(seen: np.ndarray, data: HeldOut) -> np.ndarray:
    """Return Σ_n w_n s_n s_nᵀ of the columns s_n; the columns of a group are added up first."""
    if data.groups is None:
        return (seen * data.mass) @ seen.T
    sums = np.stack([np.bincount(data.groups, each) for each in seen * data.mass])
    return sums @ sums.T


def _leverage(table: np.ndarray, probs: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """Return the share of each row in its own fitted logits (n,): tr(W_n X_n A X_nᵀ), with W_n = diag(p_n) − p_n p_nᵀ."""
    size = len(table)
    both = np.concatenate([probs * table, probs])
    by_slope, crossed, by_bias = (
        np.diag(each)[:, None] for each in (moves[:size, :size], moves[:size, size:], moves[size:, size:])
    )
    own = probs * (table**2 * by_slope + 2 * table * crossed + by_bias)
    found: np.ndarray = own.sum(0) - (both * (moves @ both)).sum(0)
    return found
