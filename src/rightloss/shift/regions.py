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


def profile_region(
    likelihood: Callable[[np.ndarray], QuadraticModel], best: Maximum, errors: np.ndarray, level: float, widening: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of all π_k with 2 (L(π̂) − max L given π_k) ≤ χ²₁(level) · widening_k.

    `low` is 0 where 0 is among them.

    Args:
        likelihood: L.
        best: its maximum.
        errors: standard errors (K,) from the curvature: where to look first.
        level: of the region.
        widening: the variance of π̂_k relative to what the curvature says (K,); 1 where predictions are taken as exact.
    """
    size = len(best.point)
    limits = np.sqrt(deviance_limit(level) * widening)
    low, high = np.empty(size), np.empty(size)
    for k in range(size):
        if size == 2 and k == 1:  # one number, seen from the other side
            low[1], high[1] = 1 - high[0], 1 - low[0]
            continue
        low[k] = _bound(likelihood, best, k, -1, float(limits[k]), float(errors[k]))
        high[k] = _bound(likelihood, best, k, +1, float(limits[k]), float(errors[k]))
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


def _bound(
    likelihood: Callable[[np.ndarray], QuadraticModel], best: Maximum, k: int, side: int, limit: float, error: float
) -> float:
    """Find where the signed root of the deviance of π_k reaches `limit`, by Newton's method: the root is nearly linear."""
    start, end = float(best.point[k]), 0.0 if side < 0 else 1.0
    near = abs(start - end) < 3 * limit * error  # farther away the search would find out by itself
    if start == end or (near and _root(likelihood, best, best.point, k, end)[0] <= limit):
        return end
    inside, outside, point = start, end, best.point
    value = _moved(start, side * limit * error, inside, outside)
    for _ in range(60):
        root, slope, point = _root(likelihood, best, point, k, value)
        if abs(root - limit) < 1e-6 * limit or abs(outside - inside) < 1e-14:
            break
        inside, outside = (value, outside) if root < limit else (inside, value)
        value = _moved(value, (limit - root) / slope if slope else math.nan, inside, outside)
    return end if abs(value - end) < _AT_THE_END else value


def _root(
    likelihood: Callable[[np.ndarray], QuadraticModel], best: Maximum, near: np.ndarray, k: int, value: float
) -> tuple[float, float, np.ndarray]:
    """Return √(2 (L(π̂) − max L given π_k = value)), its derivative by that value, and the maximum, sought from `near`."""
    found = maximise(likelihood, _with(near, k, value), fixed=k)
    if not np.isfinite(found.value):  # rows that class k explained may need a class that had nothing
        found = maximise(likelihood, _with(0.9 * near + 0.1 / len(near), k, value), fixed=k)
    if not np.isfinite(found.value):
        return math.inf, math.nan, near
    root = math.sqrt(max(0.0, 2 * (best.value - found.value)))
    gradient = found.model.gradient + found.model.curvature @ (found.model.point - found.point)
    slope = float(gradient[k] - (found.point @ gradient - value * gradient[k]) / (1 - value)) if value < 1 else math.nan
    return root, -slope / root if root > 0 else math.nan, found.point


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
