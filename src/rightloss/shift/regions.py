"""Confidence intervals per class, from the maximum of a likelihood.

Stage: L(π), π̂, covariance → `low`, `high`. They use the profile likelihood if passes over the data are cheap, else the
curvature.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from .maximum_likelihood import Maximum, QuadraticModel, maximise

_AT_THE_END = 1e-12  # a bound this close to 0 or 1 counts as 0 or 1


Limit = Callable[[float], float]  # distance of π_k from 0 or 1, in standard errors → the limit of the deviance of π_k
Widening = np.ndarray | Callable[[QuadraticModel], np.ndarray]  # factor of that limit (K,), or what it is at another π


def profile_region(
    likelihood: Callable[[np.ndarray], QuadraticModel],
    best: Maximum,
    errors: np.ndarray,
    limit: float | Limit,
    widening: Widening,
    before: Callable[[], None] = lambda: None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the limits of all π_k with 2 (L(π̂) − max L given π_k) ≤ limit · widening_k.

    `low` is 0 if the region includes 0.

    Args:
        likelihood: L.
        best: its maximum.
        errors: standard errors (K,) from the curvature, to start the search.
        limit: limit of the deviance, such as `deviance_limit(level)`, or `boundary_limit` as a function of the distance to 0 or
            1, in the smaller of the standard errors at π̂ and at π_k.
        widening: the variance of π̂_k relative to that of the curvature (K,); 1 if predictions are assumed to be exact. As a
            function of L's model at π it is the larger of those at π̂ and at π: π̂ may be where the variance is small.
        before: called before each search, for a likelihood that remembers its last evaluation.
    """
    size, at = len(best.point), widening if callable(widening) else None
    own = widening(best.model) if callable(widening) else widening
    low, high = np.empty(size), np.empty(size)
    for k in range(size):
        if size == 2 and k == 1:  # the second class is 1 minus the first
            low[1], high[1] = 1 - high[0], 1 - low[0]
            continue
        reach = _Reach(limit, best, k, float(own[k]), at)
        for bounds, side in ((low, -1), (high, +1)):
            before()
            bounds[k] = _bound(likelihood, best, k, side, reach, float(errors[k]))
    return low, high


def curvature_region(point: np.ndarray, errors: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return logit π̂_k ± z · s.e. of the logit, or π̂_k ± z · s.e. if that reaches 0 or 1, without a pass over the data."""
    z = math.sqrt(deviance_limit(level))
    low, high = np.clip(point - z * errors, 0, 1), np.clip(point + z * errors, 0, 1)
    inner = (low > 0) & (high < 1)
    centre, spread = np.where(inner, point, 0.5), np.where(inner, errors, 0.0)
    logit, spread = np.log(centre / (1 - centre)), spread / (centre * (1 - centre))
    below, above = (1 / (1 + np.exp(-logit - sign * z * spread)) for sign in (-1, 1))
    return within_simplex(np.where(inner, below, low), np.where(inner, above, high))


def within_simplex(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return `high`, at most 1 minus the `low` of all other classes: a bound even for classes that cannot be distinguished."""
    return low, np.minimum(high, 1 - (low.sum() - low))


def deviance_limit(level: float) -> float:
    """Return the quantile of χ² with one degree of freedom."""
    return float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64))) ** 2


def boundary_limit(distance: float, level: float, degrees: float = math.inf) -> float:
    """Return the limit c of the deviance of a parameter ≥ 0, for regions with coverage `level` also near 0.

    X ~ N(t, 1) estimates t ≥ 0. The best t is 0 if X < 0, so the deviance of t is (X − t)², or t² − 2 t X if X < 0. It
    exceeds c if X > t + √c or X < t − z, so

        Φ(−√c) + Φ(−z) = 1 − level,   z = √c where t ≥ √c, else (t² + c)/(2 t).

    c grows from χ²₁(2 level − 1) at t = 0, where only one side can fail (Chernoff 1954), to χ²₁(level) from t = √c on: for
    95 %, from 2.71 to 3.84. These are the regions of Feldman and Cousins (1998). With the limit of χ² everywhere, the coverage
    near 0 would be up to (1 + level)/2.

    Args:
        distance: t, in standard errors.
        level: the level of the region.
        degrees: degrees of freedom of the variance; Student's t then replaces Φ (by the approximation of Wallace 1959).
    """

    def missed(root: float) -> float:
        far = root if distance >= root else (distance**2 + root**2) / (2 * distance) if distance > 0 else math.inf
        return _tail(root, degrees) + _tail(far, degrees)

    inside, outside = 0.0, 1.0
    while missed(outside) > 1 - level:
        outside *= 2
    while outside - inside > 1e-12 * outside:
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if missed(middle) > 1 - level else (inside, middle)
        if outside < 1e-150:
            return 0.0
    return outside**2


def _tail(score: float, degrees: float) -> float:
    """Return P(T > score ≥ 0) of Student's t."""
    if math.isfinite(degrees) and math.isfinite(score):
        score = math.sqrt(degrees * math.log1p(score**2 / degrees)) * (8 * degrees + 1) / (8 * degrees + 3)
    return 0.5 * math.erfc(score / math.sqrt(2))


def curvature_at(best: Maximum, level: float) -> np.ndarray:
    """Return the curvature of L at its maximum `(K, K)`; for a class at 0 it includes the slope at 0.

    From 0 the deviance of such a class grows like 2 s t + c t², with slope s and curvature c, and reaches χ²₁(level) = z² at
    t = z²/(s + √(s² + c z²)). A curvature of (s + √(s² + c z²))²/z² alone reaches it at the same t.
    """
    model, z2 = best.model, deviance_limit(level)
    gradient = model.gradient + model.curvature @ (model.point - best.point)
    slope = np.where(best.point > 0, 0.0, (best.point @ gradient - gradient).clip(0))
    own = 1 / np.diag(tangent_inverse(model.curvature))
    more = 2 * slope * (slope + np.sqrt(slope**2 + own * z2)) / z2
    return model.curvature + np.diag(more)


def tangent_inverse(curvature: np.ndarray) -> np.ndarray:
    """Return the covariance `(K, K)` of frequencies that sum to 1: the curvature's inverse among changes that sum to 0.

    In a direction without curvature the standard error is 1, the width of the simplex.
    """
    scale = _units(curvature)  # columns of rare classes are large, so scale them before solving
    basis = np.linalg.svd(scale[None, :])[2][1:].T  # orthogonal to the scaled sum
    values, vectors = np.linalg.eigh(basis.T @ (scale[:, None] * curvature * scale) @ basis)
    moves = scale[:, None] * (basis @ vectors)
    least = (moves**2).sum(0)
    return (moves / np.maximum(values, least)) @ moves.T


def condition_number(curvature: np.ndarray) -> float:
    """Return the condition number of the columns p(k|x)/ρ_k: 1 if no classes overlap, ∞ if some are mixtures of others."""
    scale = _units(curvature)
    values = np.linalg.eigvalsh(scale[:, None] * curvature * scale)
    return float(np.sqrt(values[-1] / values[0])) if values[0] > 1e-14 * values[-1] else math.inf


def _units(curvature: np.ndarray) -> np.ndarray:
    """Return the units in which each class's own curvature is 1 (K,)."""
    own = np.diag(curvature)
    return 1 / np.sqrt(own.clip(1e-14 * own.max()))


class _Reach:
    """The limit of the root of the deviance of π_k, √(limit · widening), as a function of π_k and the curvature there."""

    def __init__(
        self,
        limit: float | Limit,
        best: Maximum,
        k: int,
        widening: float,
        elsewhere: Callable[[QuadraticModel], np.ndarray] | None = None,
    ) -> None:
        self._limit, self._k, self._widening, self._elsewhere = limit, k, widening, elsewhere
        self._error = math.inf if isinstance(limit, float) else self._error_of(best.model)
        self.most = self._root(math.inf)

    def __call__(self, value: float, model: QuadraticModel) -> tuple[float, float]:
        """Return the limit at π_k = `value`, and its derivative."""
        error = 0.0 if isinstance(self._limit, float) else min(self._error, self._error_of(model))
        if error == 0:
            more = 1.0 if self._elsewhere is None else float(self._elsewhere(model)[self._k]) / self._widening
            return self.most * math.sqrt(max(1.0, more)), 0.0
        distance, step = min(value, 1 - value) / error, 1e-4
        slope = (self._root(distance + step) - self._root(distance)) / (step * error)
        return self._root(distance), slope if value < 0.5 else -slope

    def _root(self, distance: float) -> float:
        limit = self._limit if isinstance(self._limit, float) else self._limit(distance)
        return math.sqrt(limit * self._widening)

    def _error_of(self, model: QuadraticModel) -> float:
        return math.sqrt(float(tangent_inverse(model.curvature)[self._k, self._k]) * self._widening)


def _bound(
    likelihood: Callable[[np.ndarray], QuadraticModel], best: Maximum, k: int, side: int, reach: _Reach, error: float
) -> float:
    """Return the π_k at which the root of the deviance reaches its limit, by Newton's method: the root is nearly linear."""
    start, end = float(best.point[k]), 0.0 if side < 0 else 1.0
    near = abs(start - end) < 3 * reach.most * error  # further away the search finds it by itself
    if start == end or (near and _excess(likelihood, best, best.point, k, end, reach)[0] <= 0):
        return end
    inside, outside, point = start, end, best.point
    value = _moved(start, side * reach.most * error, inside, outside)
    for _ in range(60):
        excess, slope, point = _excess(likelihood, best, point, k, value, reach)
        if abs(excess) < 1e-6 * reach.most or abs(outside - inside) < 1e-14:
            break
        inside, outside = (value, outside) if excess < 0 else (inside, value)
        value = _moved(value, -excess / slope if slope else math.nan, inside, outside)
    return end if abs(value - end) < _AT_THE_END else value


def _excess(
    likelihood: Callable[[np.ndarray], QuadraticModel],
    best: Maximum,
    near: np.ndarray,
    k: int,
    value: float,
    reach: _Reach,
) -> tuple[float, float, np.ndarray]:
    """Return √(2 (L(π̂) − max L given π_k = value)) minus its limit, the derivative by the value, and the point of the maximum.

    The search for the maximum starts at `near`.
    """
    found = maximise(likelihood, _with(near, k, value), fixed=k)
    if not np.isfinite(found.value):  # rows explained by class k may need a class with frequency 0
        found = maximise(likelihood, _with(0.9 * near + 0.1 / len(near), k, value), fixed=k)
    if not np.isfinite(found.value):
        return math.inf, math.nan, near
    root = math.sqrt(max(0.0, 2 * (best.value - found.value)))
    gradient = found.model.gradient + found.model.curvature @ (found.model.point - found.point)
    slope = float(gradient[k] - (found.point @ gradient - value * gradient[k]) / (1 - value)) if value < 1 else math.nan
    allowed, by_value = reach(value, found.model)
    return root - allowed, -slope / root - by_value if root > 0 else math.nan, found.point


def _with(point: np.ndarray, k: int, value: float) -> np.ndarray:
    """Return the point with `value` for class k, the others in proportion."""
    others = np.where(np.arange(len(point)) == k, 0.0, point)
    if others.sum() == 0:
        others = np.where(np.arange(len(point)) == k, 0.0, 1.0)
    start = others * ((1 - value) / others.sum())
    start[k] = value
    return start


def _moved(value: float, step: float, inside: float, outside: float) -> float:
    """Return `value + step` where that lies between the two, else a point between them."""
    low, high = min(inside, outside), max(inside, outside)
    new = value + step
    if math.isfinite(new) and low < new < high:
        return new
    if low > 0 or high == 1.0 or outside == high:
        return (low + high) / 2
    return high / 4  # towards 0
