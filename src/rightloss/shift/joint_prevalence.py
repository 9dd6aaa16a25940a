"""Estimate the prevalence jointly with a model, from labelled rows sampled by class and unlabelled rows of the population.

Stage: features of both, labels → L(π), maximal over the model's weights → `JointPrevalenceEstimate`: π̂ with an interval, and
the weights.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg
from scipy.special import log_softmax

from ..arrays import Array, Numbers, array_of, as_given, checked_level, checked_number, feature_table, fields_as_given
from ..prevalence import mix_of_every_class
from ..solve import Quadratic, minimise, softmax_columns
from .estimate import PrevalenceEstimate, warn_of_few
from .label_shift import LabelShiftWarning
from .maximum_likelihood import (
    QuadraticModel,
    boundary_limit,
    condition_number,
    curvature_at,
    log_mixture,
    maximise,
    profile_region,
    tangent_inverse,
)

_BLOCK = 1 << 15  # rows per product, so that its factors stay in the cache
_ENOUGH = 1e-15  # tolerance in nats of the maximum over the weights
_RANK = 1e-10  # fraction of the largest variance below which a direction of the features counts as constant
_LEAST = 1e-300  # probability used for one too small to be represented


@dataclass(frozen=True, eq=False)
class JointPrevalenceEstimate(PrevalenceEstimate):
    """The result of `joint_prevalence`: a `PrevalenceEstimate` with the fitted model.

    Attributes:
        tilt: α (K,), with mean 0: p(x|k) ∝ exp(α_k + b_k·f(x)) h(x), with one h for all classes. Independent of π.
        slopes: b `(K, d)`, with mean 0 over the classes.
        counts: labelled rows of each class (K,).

    Examples:
        >>> import numpy as np
        >>> from rightloss.shift import joint_prevalence
        >>> draw, y, unknown = np.random.default_rng(0), np.arange(400) % 2, np.arange(2000) % 10 == 0
        >>> x, unlabelled = (draw.normal(2.0 * each[:, None]) for each in (y, unknown))
        >>> estimate = joint_prevalence(x, y, unlabelled)
        >>> np.allclose(np.exp(estimate.log_probs(unlabelled)).mean(0), estimate.population)
        True
    """

    tilt: Array = field(repr=False)
    slopes: Array = field(repr=False)
    counts: Array = field(repr=False)

    @property
    def intercept(self) -> Array:
        """a (K,): α_k + log π̂_k; −∞ for a class with π̂_k = 0."""
        with np.errstate(divide="ignore"):
            return as_given(array_of(self.tilt, "tilt") + np.log(array_of(self.population, "population")), self.tilt)

    def log_probs(self, features: Numbers) -> Any:
        """Return log p(k|x) in the population `(n, K)` for features `(n, d)`; tensors for a tensor."""
        slopes, intercept = array_of(self.slopes, "slopes"), array_of(self.intercept, "intercept")
        given = feature_table(features, "features", like=slopes, finite=True)
        return as_given(log_softmax(given @ slopes.T + intercept, axis=1), features)

    def __str__(self) -> str:
        head = f"Prevalence estimate (joint, {int(self.counts.sum()):,} labelled and {self.rows:,} unlabelled rows)"
        return "\n".join([head, *super().__str__().splitlines()[1:]])


def joint_prevalence(
    features: Numbers, y: Numbers, unlabelled: Numbers, *, level: float = 0.95, penalty: float = 1e-3
) -> JointPrevalenceEstimate:
    """Estimate the prevalence by the joint maximum likelihood of π and of p(k|x) ∝ exp(a_k + b_k·f(x)), with intervals.

    Unlike `estimate_prevalence` it uses no given predictions: labelled rows, drawn by class in any numbers, and unlabelled
    rows of the population fit the model together. So the intervals include the uncertainty of the model. π̂_k is the model's
    mean prediction over the unlabelled rows. f is the inputs of a logistic model, or the logits of a trained network on rows
    that it was *not* trained on; the model is then an affine recalibration of it. The estimate does not depend on the units of
    f, nor on a linear map of it.

    Intervals are those of the profile likelihood with p(x) profiled out, see `JointLikelihood`. The limit of the deviance is
    that of χ² with 1 degree of freedom, and smaller near 0 and 1 (`boundary_limit`). If a class has few labelled rows,
    Student's t replaces the normal distribution; its degrees of freedom are the rows of the rarest class minus d + 1, a choice
    made among a few on simulated draws. Intervals include 0 if 0 is probable enough. The class counts of the labelled rows
    are treated as fixed by design, as in a case-control study (Prentice and Pyke 1979). Random counts change nothing, because
    they contain no information about π.

    Args:
        features: f of the labelled rows `(n, d)`.
        y: their classes (n,), 0 … K−1; each class needs rows. Fewer than 15 give a warning.
        unlabelled: f of the population's rows `(m, d)`, assumed to be independent.
        level: the level of the intervals.
        penalty: τ of −τ/2 Σ_k Var(b_k·f − mean of the classes), which keeps slopes finite if the classes are separated.

    Raises:
        ValueError: if features are not a finite table, differ in width, or a class has no rows.

    Examples:
        >>> import numpy as np
        >>> from rightloss.shift import joint_prevalence
        >>> draw, y, unknown = np.random.default_rng(0), np.arange(400) % 2, np.arange(2000) % 10 == 0
        >>> x, unlabelled = (draw.normal(2.0 * each[:, None]) for each in (y, unknown))
        >>> estimate = joint_prevalence(x, y, unlabelled)
        >>> bool(estimate.low[1] < 0.1 < estimate.high[1])
        True
    """
    level = checked_level(level)
    penalty = checked_number(penalty, "penalty", 0.0, remedy="1e-3 keeps separated classes finite")
    rows, mean, whiten = _whitened(features, y, unlabelled)
    likelihood = JointLikelihood(rows, penalty)
    warn_of_few(rows.counts, 3, "labelled rows")
    if ((likelihood.weights.gamma @ rows.labelled).argmax(0) == rows.labels).all():
        message = (
            "A linear model separates the labelled rows, so only `penalty` bounds its slopes and the estimate assumes that the "
            "classes do not overlap: use fewer features, or label more rows."
        )
        warnings.warn(message, LabelShiftWarning, stacklevel=2)
    best = maximise(likelihood, likelihood.start())
    likelihood(best.point)
    weights = likelihood.weights

    def go_back() -> None:  # so that a search does not depend on those before
        likelihood.weights = weights

    curvature = curvature_at(best, level)
    full = tangent_inverse(curvature)
    errors = np.sqrt(np.diag(tangent_inverse(best.model.curvature)))
    degrees = max(3.0, float(rows.counts.min()) - len(rows.labelled))  # rows of the rarest class minus the weights of a class
    limit = partial(boundary_limit, level=level, degrees=degrees)

    def reach(k: int, value: float, model: QuadraticModel) -> float:
        error = min(float(errors[k]), math.sqrt(tangent_inverse(model.curvature)[k, k]))
        return math.sqrt(limit(min(value, 1 - value) / error))

    most = np.full(len(best.point), math.sqrt(limit(math.inf)))
    low, high = profile_region(likelihood, best, np.sqrt(np.diag(full)), most, reach, go_back)
    if not best.converged:
        warnings.warn("Do not rely on the estimated prevalence: its search did not converge.", LabelShiftWarning, stacklevel=2)
    gamma, multipliers = weights
    slopes = gamma[:, 1:] @ whiten.T  # in the features' own units
    tilt = gamma[:, 0] + multipliers - slopes @ mean
    search = (full, condition_number(curvature), best.iterations, best.converged, best.value)
    data = (rows.unlabelled.shape[1], None, rows.counts / rows.counts.sum())  # no calibration
    model = (tilt - tilt.mean(), slopes - slopes.mean(0), rows.counts)
    found = JointPrevalenceEstimate(best.point, low, high, level, "profile", "joint", *search, *data, *model)
    return fields_as_given(found, features)


def _whitened(features: Any, y: Any, unlabelled: Any) -> tuple[WhitenedRows, np.ndarray, np.ndarray]:
    """Return the data with uncorrelated features of variance 1, and the mean and the matrix `(d, rank)` that give them."""
    labelled = feature_table(features, "features", finite=True)
    others = feature_table(unlabelled, "unlabelled", like=features, finite=True)
    labels, expected = array_of(y, "labels"), (len(labelled),)
    if labels.shape != expected:
        raise ValueError(f"Expected one label per labelled row, {expected}, but got shape {labels.shape}: were some dropped?")
    size = 2 if labels.dtype.kind == "f" else max(2, int(labels.max()) + 1)
    labels = labels.astype(np.int64) if labels.dtype == bool else labels
    mix_of_every_class(labels, size, None, "add some, or number the classes from 0 without gaps")
    labels, both = labels.astype(np.int64), np.concatenate([labelled, others])
    mean, spread = both.mean(0), both.std(0)
    scale = np.where(spread > 0, spread, 1.0)
    centred = (both - mean) / scale
    values, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
    kept = values > _RANK * max(values[-1], 1e-300)
    if not kept.any():
        raise ValueError("Expected features that vary, but all rows are equal: use other features.")
    whiten = vectors[:, kept] / np.sqrt(values[kept]) / scale[:, None]
    first, second = (np.concatenate([np.ones((1, len(x))), whiten.T @ (x - mean).T]) for x in (labelled, others))
    return WhitenedRows(first, labels, second, np.bincount(labels).astype(float)), mean, whiten


@dataclass(frozen=True)
class WhitenedRows:
    """The data, in columns: whitened features below a 1.

    Attributes:
        labelled: of the labelled rows `(p, n)`.
        labels: their classes (n,).
        unlabelled: of the rows of the population `(p, m)`.
        counts: labelled rows of each class (K,).
    """

    labelled: np.ndarray
    labels: np.ndarray
    unlabelled: np.ndarray
    counts: np.ndarray

    @property
    def total(self) -> float:
        """N, the number of all rows."""
        return float(self.counts.sum() + self.unlabelled.shape[1])


class TiltWeights(NamedTuple):
    """The nuisance parameters: Γ `(K, p)`, a row of 0 first, and log multipliers v (K,), with Σ_k exp(−v_k) = 1."""

    gamma: np.ndarray
    log_multipliers: np.ndarray


class _Derivatives(NamedTuple):
    """L at one point: its value, its derivatives by the free rows of Γ and by v, and predictions of the unlabelled rows."""

    value: float
    weights: TiltWeights
    by_gamma: np.ndarray
    gamma_gamma: np.ndarray
    gamma_v: np.ndarray
    v_v: np.ndarray
    shares: np.ndarray  # s `(K, m)`: predictions in the population
    ratios: np.ndarray  # q `(K, m)`: s/π


class JointLikelihood:
    """L(π) = max_Γ min_v of the empirical log-likelihood of both kinds of rows (Qin 1998; Vardi 1985), up to a constant.

    Rows of class k come from p(x|k), unlabelled ones from Σ_k π_k p(x|k), where p(x|k) ∝ exp(α_k + b_k·f(x)) p(x|0): the
    model is softmax-linear. The density p(x|0) gets a mass at each row; that each p(x|k) integrates to 1 are constraints with
    multipliers c_k, Σ_k c_k = N. Maximising over the masses leaves, with Γ_k·f = log c_k + α_k + b_k·f and v_k = −log(c_k/N),

        Σ_labelled [log T_y + v_y] + Σ_unlabelled log Σ_k π_k exp(v_k) T_k + N log Σ_k exp(−v_k),   T = softmax(Γ f),

    a minimum over v, which is convex, and a maximum over Γ. There c_k = n_k + Σ_unlabelled p(k|x). At the maximum over π too,
    Σ_unlabelled p(k|x) = N_u π_k, so that T is the likelihood of the streams, with c_k = n_k + N_u π_k. Away from it the two
    differ: 2 (L(π̂) − L(π)) is χ² where the class counts are fixed by design, that of the streams is too small.

    Args:
        rows: the data.
        penalty: τ of −τ/2 Σ_k ‖b_k − b̄‖² for the whitened features, which keeps the weights finite if classes are separated.
    """

    def __init__(self, rows: WhitenedRows, penalty: float) -> None:
        self._rows, self._size = rows, len(rows.counts)
        slopes = np.eye(len(rows.labelled))
        slopes[0, 0] = 0.0
        self._penalty = penalty * np.kron((np.eye(self._size) - 1 / self._size)[1:, 1:], slopes)
        mix = rows.counts / rows.counts.sum()
        start = TiltWeights(np.zeros((self._size, len(slopes))), -np.log(mix))
        self.weights = self._maximised(replace(rows, unlabelled=rows.unlabelled[:, :0]), mix, start).weights

    def __call__(self, population: np.ndarray) -> QuadraticModel:
        """Return L, its gradient and its curvature at π; the search for the weights starts from those at the last π."""
        found = self._maximised(self._rows, population, self.weights)
        fixed, gradient = found.ratios @ found.ratios.T, found.ratios.sum(1)
        mixed = self._mixed(found)
        if not np.isfinite(mixed).all():  # a row of a class that π excludes
            return QuadraticModel(population, -np.inf, gradient, fixed)
        # If classes are separated, L has no curvature in some directions, nor does π move the weights along them.
        saddle = np.block([[found.gamma_gamma, found.gamma_v], [found.gamma_v.T, found.v_v]])  # −, + definite
        slope = -np.linalg.lstsq(saddle, mixed, rcond=1e-14)[0]
        curvature = fixed - mixed.T @ slope
        if not np.isfinite(curvature).all():
            return QuadraticModel(population, -np.inf, gradient, fixed)
        self.weights = found.weights
        curvature = (curvature + curvature.T) / 2
        usable = np.linalg.eigvalsh(curvature)[0] > 0  # otherwise L is not concave here, but with fixed weights it is
        return QuadraticModel(population, found.value, gradient, curvature if usable else fixed)

    def start(self) -> np.ndarray:
        """Return the π that best fits the unlabelled rows at the current weights, moved away from the boundary."""
        gamma, v = self.weights
        densities = softmax_columns(gamma @ self._rows.unlabelled + v[:, None])[1]  # p(x|k), up to a factor for each row
        equal = np.full(self._size, 1 / self._size)
        return 0.99 * maximise(lambda population: log_mixture(population, [densities]), equal).point + 0.01 / self._size

    def _maximised(self, rows: WhitenedRows, population: np.ndarray, start: TiltWeights) -> _Derivatives:
        """Return max_Γ min_v, by Newton's method over Γ in coordinates in which all classes are alike."""
        contrasts = np.kron(_contrasts(self._size), np.eye(len(rows.labelled)))
        v = start.log_multipliers

        def loss(point: np.ndarray) -> Quadratic:
            nonlocal v
            gamma = np.vstack([np.zeros(len(rows.labelled)), (contrasts @ point).reshape(self._size - 1, -1)])
            found = self._derivatives(rows, population, TiltWeights(gamma, v))
            v = found.weights.log_multipliers
            curvature = found.gamma_v @ np.linalg.solve(found.v_v, found.gamma_v.T) - found.gamma_gamma
            return Quadratic(-found.value, -contrasts.T @ found.by_gamma, contrasts.T @ curvature @ contrasts, found)

        first = np.linalg.solve(contrasts, start.gamma[1:].ravel())
        return minimise(loss, first, enough=_ENOUGH).at.detail

    def _derivatives(self, rows: WhitenedRows, population: np.ndarray, weights: TiltWeights) -> _Derivatives:
        """Return L and its derivatives at Γ and π, with v at its minimum."""
        logits = weights.gamma @ rows.labelled
        totals, own = softmax_columns(logits)
        pooled = np.maximum(softmax_columns(weights.gamma @ rows.unlabelled)[1], _LEAST)
        v, mixed, v_v = _least(rows, population, pooled, weights.log_multipliers)
        ratios = pooled * (np.exp(v)[:, None] / mixed)
        shares = ratios * population[:, None]
        labelled = np.eye(self._size)[:, rows.labels] - own
        by_gamma = (shares - pooled)[1:] @ rows.unlabelled.T + labelled[1:] @ rows.labelled.T
        free = weights.gamma[1:].reshape(-1)
        drawn = self._penalty @ free
        value = (np.take_along_axis(logits, rows.labels[None], 0) - totals).sum() + np.log(mixed).sum() + rows.counts @ v
        spread = _gram(rows.unlabelled, shares)
        gamma_gamma = spread - _gram(rows.unlabelled, pooled) - _gram(rows.labelled, own) - self._penalty
        gamma_v = spread[:, :: len(rows.labelled)]  # v changes the predictions in the same way as the intercepts
        at = TiltWeights(weights.gamma, v)
        by_free = by_gamma.reshape(-1) - drawn
        return _Derivatives(float(value - free @ drawn / 2), at, by_free, gamma_gamma, gamma_v, v_v, shares, ratios)

    def _mixed(self, found: _Derivatives) -> np.ndarray:
        """Return the second derivatives of L by (Γ, v) and π: of s_l by π_k, 1{l=k} q_l − s_l q_k."""
        columns = []
        for k in range(self._size):
            moved = -found.shares * found.ratios[k]
            moved[k] += found.ratios[k]
            by_gamma = moved[1:] @ self._rows.unlabelled.T
            columns.append(np.append(by_gamma.reshape(-1), by_gamma[:, 0]))
        return np.stack(columns, 1)


def _least(
    rows: WhitenedRows, population: np.ndarray, pooled: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Minimise n·v + Σ log Σ_k π_k exp(v_k) T_k + N log Σ_k exp(−v_k) over v, by Newton's method.

    Returns v, Σ_k π_k exp(v_k) T_k of each row, and the second derivatives by v_1 … v_K−1.
    """
    contrasts = _contrasts(len(start))

    def function(point: np.ndarray) -> Quadratic:
        """Return the value, its derivatives, and as detail what `_least` returns."""
        v = np.append(0.0, contrasts @ point)
        mix, scale = population * np.exp(v), np.exp(-v).sum()
        mixed = mix @ pooled
        value = rows.counts @ v + rows.total * np.log(scale) + np.log(mixed).sum()
        shares = mix[1:, None] * pooled[1:] / mixed
        multipliers, expected = rows.total * np.exp(-v)[1:] / scale, shares.sum(1)
        gradient = rows.counts[1:] + expected - multipliers
        curved = np.diag(expected + multipliers) - shares @ shares.T - np.outer(multipliers, multipliers) / rows.total
        detail = v + np.log(scale), mixed * scale, curved
        return Quadratic(float(value), contrasts.T @ gradient, contrasts.T @ curved @ contrasts, detail)

    found = minimise(function, np.linalg.solve(contrasts, (start - start[0])[1:]), enough=1e-2 * _ENOUGH)
    return found.at.detail


def _contrasts(size: int) -> np.ndarray:
    """Return the map (K−1, K−1) from coordinates in which all classes are alike to differences from class 0."""
    basis = linalg.helmert(size).T
    return basis[1:] - basis[0]


def _gram(f: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """Return Σ_i (diag p_i − p_i p_iᵀ) ⊗ f_i f_iᵀ for classes 1 … K−1."""
    free, width = len(probs) - 1, len(f)
    out = np.zeros((free * width, free * width))
    for start in range(0, f.shape[1], _BLOCK):
        block, p = f[:, start : start + _BLOCK], probs[1:, start : start + _BLOCK]
        moved = p[:, None] * block
        out += linalg.block_diag(*(each @ block.T for each in moved))
        moved = moved.reshape(free * width, -1)
        out -= moved @ moved.T
    return out
