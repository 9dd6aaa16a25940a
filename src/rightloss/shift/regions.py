"""A maximum of the likelihood → an interval per class.

Stage: L(π), π̂, covariance → `low`, `high`. By profile likelihood where passes over the data are cheap, else by curvature.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from .maximum_likelihood import Maximum, QuadraticModel, maximise

_AT_THE_END = 1e-12  # a bound this near to 0 or 1 is there


Limit = Callable[[float], float]  # distance of π_k from 0 or 1, in standard errors → where the deviance of π_k ends


def profile_region(
    likelihood: Callable[[np.ndarray], QuadraticModel],
    best: Maximum,
    errors: np.ndarray,
    limit: float | Limit,
    widening: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of all π_k with 2 (L(π̂) − max L given π_k) ≤ limit · widening_k.

    `low` is 0 where 0 is among them.

    Args:
        likelihood: L.
        best: its maximum.
        errors: standard errors (K,) from the curvature: where to look first.
        limit: of the deviance, such as `deviance_limit(level)`, or what `boundary_limit` says of the distance to 0 or 1. The
            distance is that in the smaller of the standard errors at π̂ and at π_k.
        widening: the variance of π̂_k relative to what the curvature says (K,); 1 where predictions are taken as exact.
    """
    size = len(best.point)
    low, high = np.empty(size), np.empty(size)
    for k in range(size):
        if size == 2 and k == 1:  # one number, seen from the other side
            low[1], high[1] = 1 - high[0], 1 - low[0]
            continue
        reach = _Reach(limit, best, k, float(widening[k]))
        low[k] = _bound(likelihood, best, k, -1, reach, float(errors[k]))
        high[k] = _bound(likelihood, best, k, +1, reach, float(errors[k]))
    return low, high


def curvature_region(point: np.ndarray, errors: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return logit π̂_k ± z · s.e. of the logit, or π̂_k ± z · s.e. where that reaches 0 or 1: no pass over the data."""
    z = math.sqrt(deviance_limit(level))
    low, high = np.clip(point - z * errors, 0, 1), np.clip(point + z * errors, 0, 1)
    inner = (low > 0) & (high < 1)
    centre, spread = np.where(inner, point, 0.5), np.where(inner, errors, 0.0)
    logit, spread = np.log(centre / (1 - centre)), spread / (centre * (1 - centre))
    below, above = (1 / (1 + np.exp(-logit - sign * z * spread)) for sign in (-1, 1))
    return within_simplex(np.where(inner, below, low), np.where(inner, above, high))


def within_simplex(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cut `high` to what the `low` of all other classes leaves: a bound even for classes that cannot be told apart."""
    return low, np.minimum(high, 1 - (low.sum() - low))


def deviance_limit(level: float) -> float:
    """Return the quantile of χ² with one degree of freedom."""
    return float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64))) ** 2


def boundary_limit(distance: float, level: float, degrees: float = math.inf) -> float:
    """Return the limit c of the deviance of a parameter ≥ 0 for regions that contain it as often as `level` says, also near 0.

    X ~ N(t, 1) estimates t ≥ 0. The best t is 0 where X < 0, so the deviance of t is (X − t)², or t² − 2 t X where X < 0. It
    exceeds c where X > t + √c, and where X < t − z, so

        Φ(−√c) + Φ(−z) = 1 − level,   z = √c where t ≥ √c, else (t² + c)/(2 t).

    c grows from χ²₁(2 level − 1) at t = 0, where only one side can be missed (Chernoff 1954), to χ²₁(level) from t = √c on: for
    95 %, from 2.71 to 3.84. These are the regions of Feldman and Cousins (1998). With the limit of χ² throughout, those of a
    parameter near 0 would cover up to (1 + level)/2.

    Args:
        distance: t, in standard errors.
        level: of the region.
        degrees: of freedom of the variance; Student's t then takes the place of Φ (by the approximation of Wallace 1959).
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
    """Return the curvature of L at its maximum `(K, K)`; for a class at 0 it includes the slope there.

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

    In a direction that the curvature says nothing about, the standard error is 1, as long as the simplex is wide.
    """
    scale = _units(curvature)  # columns of rare classes are large: solve in even units
    basis = np.linalg.svd(scale[None, :])[2][1:].T  # orthogonal to the scaled sum
    values, vectors = np.linalg.eigh(basis.T @ (scale[:, None] * curvature * scale) @ basis)
    moves = scale[:, None] * (basis @ vectors)
    least = (moves**2).sum(0)
    return (moves / np.maximum(values, least)) @ moves.T


def condition_number(curvature: np.ndarray) -> float:
    """Return that of the columns p(k|x)/ρ_k: 1 where no two classes overlap, ∞ where some are mixtures of others."""
    scale = _units(curvature)
    values = np.linalg.eigvalsh(scale[:, None] * curvature * scale)
    return float(np.sqrt(values[-1] / values[0])) if values[0] > 1e-14 * values[-1] else math.inf


def _units(curvature: np.ndarray) -> np.ndarray:
    """Return the units in which each class's own curvature is 1 (K,)."""
    own = np.diag(curvature)
    return 1 / np.sqrt(own.clip(1e-14 * own.max()))


class _Reach:
    """How far the root of the deviance of π_k may go: √(limit · widening), by the value of π_k and the curvature there."""

    def __init__(self, limit: float | Limit, best: Maximum, k: int, widening: float) -> None:
        self._limit, self._k, self._widening = limit, k, widening
        self._error = math.inf if isinstance(limit, float) else self._error_of(best.model)
        self.most = self._root(math.inf)

    def __call__(self, value: float, model: QuadraticModel) -> tuple[float, float]:
        """Return it for π_k = `value`, and its derivative by that value."""
        error = 0.0 if isinstance(self._limit, float) else min(self._error, self._error_of(model))
        if error == 0:
            return self.most, 0.0
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
    """Find where the root of the deviance of π_k goes as far as it may, by Newton's method: the root is nearly linear."""
    start, end = float(best.point[k]), 0.0 if side < 0 else 1.0
    near = abs(start - end) < 3 * reach.most * error  # farther away the search would find out by itself
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
    """Return √(2 (L(π̂) − max L given π_k = value)) less its reach, the derivative by the value, and the maximum's point.

    The maximum is sought from `near`.
    """
    found = maximise(likelihood, _with(near, k, value), fixed=k)
    if not np.isfinite(found.value):  # rows that class k explained may need a class that had nothing
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
