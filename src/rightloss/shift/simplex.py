"""Concave functions of a prevalence → their maximum on the simplex, boundary included.

Stage: value, gradient, curvature at π → π̂. Works on the K frequencies alone, in numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

__all__ = ["Curve", "Maximum", "maximise", "nearest_in_model"]

_ENOUGH = 1e-10  # nats of log-likelihood still to gain: about 1e-5 of a standard error
_BOLD = 8  # turns in which many coordinates may be set to 0 together, before it is one by one
_RIDGE = 1e-11  # relative to the mean curvature: decides between classes that cannot be told apart


@dataclass(frozen=True)
class Curve:
    """A concave function at `point`: its value, gradient (K,) and the negative of its second derivatives (K, K)."""

    point: np.ndarray
    value: float
    gradient: np.ndarray
    curvature: np.ndarray


@dataclass(frozen=True)
class Maximum:
    """Where the search ended: the point, the value there, the curve at the last point looked at, and how it went."""

    point: np.ndarray
    value: float
    curve: Curve
    iterations: int
    converged: bool


def maximise(
    function: Callable[[np.ndarray], Curve], start: np.ndarray, fixed: int | None = None, max_iterations: int = 100
) -> Maximum:
    """The maximum over the simplex by Newton's method, with the coordinate `fixed` held at its start.

    Each step maximises the second-order model of the function over the simplex, so coordinates reach 0 exactly and leave it
    again; it is halved until the function grows. For the log-likelihood of a mixture, which is self-concordant, that converges
    from everywhere, and quadratically in the end.
    """
    curve = function(start)
    if not np.isfinite(curve.value):
        return Maximum(start, -np.inf, curve, 1, False)
    for iteration in range(1, max_iterations + 1):
        best = nearest_in_model(curve, fixed)
        step = best - curve.point
        gain = float(curve.gradient @ step)
        if gain <= _ENOUGH:
            return Maximum(best, curve.value + gain / 2, curve, iteration, True)
        found = _backtracked(function, curve, step, gain)
        if found is None:  # rounding hides what is left to gain
            small = gain < 1e-6 + 1e-13 * abs(curve.value)
            return Maximum(best if small else curve.point, curve.value, curve, iteration, small)
        curve = found
    return Maximum(curve.point, curve.value, curve, max_iterations, False)


def nearest_in_model(curve: Curve, fixed: int | None = None) -> np.ndarray:
    """The maximum of the curve's second-order model over the simplex, started from its point: a primal active-set method."""
    size = len(curve.point)
    ridge = _RIDGE * np.trace(curve.curvature) / size
    matrix = curve.curvature + ridge * np.eye(size)
    point = curve.point.copy()
    held = np.zeros(size, dtype=bool) if fixed is None else np.arange(size) == fixed
    free = ~held & ((point > 0) | (curve.gradient >= _common(curve, held)))
    mass = point[~held].sum()
    for turn in range(10 * size):
        slope = curve.gradient - matrix @ (point - curve.point)
        step, level = _equality_step(matrix, slope, free)
        shrinking = free & (step < 0)
        limits = np.where(shrinking, -point / np.where(shrinking, step, -1.0), np.inf)
        if limits.min() < 1 and turn < _BOLD and (point + step > 0)[~held].any():
            free &= point + step > 0  # all at once; whichever should not have gone comes back below
            point = np.where(held, point, np.maximum(point + step, 0.0))
            point[~held] *= mass / point[~held].sum()
            continue
        if limits.min() < 1:
            first = int(limits.argmin())
            point = np.maximum(point + limits[first] * step, 0.0)
            point[first], free[first] = 0.0, False
            continue
        point = np.maximum(point + step, 0.0)
        wanting = np.where(free | held, -np.inf, curve.gradient - matrix @ (point - curve.point) - level)
        worst = int(wanting.argmax())
        if wanting[worst] <= 1e-12 * (1 + abs(level)):
            break
        free[worst] = True
    return point / point.sum() if fixed is None else _rescaled(point, fixed, curve.point[fixed])


def _equality_step(matrix: np.ndarray, slope: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, float]:
    """The Newton step of the free coordinates that leaves their sum alone, and their common slope after it."""
    index = np.flatnonzero(free)
    step = np.zeros(len(slope))
    if len(index) == 0:
        return step, np.inf
    if len(index) == 1:
        return step, float(slope[index[0]])
    both = np.linalg.solve(matrix[np.ix_(index, index)], np.stack([slope[index], np.ones(len(index))], axis=1))
    level = float(both[:, 0].sum() / both[:, 1].sum())
    step[index] = both[:, 0] - level * both[:, 1]
    return step, level


def _common(curve: Curve, held: np.ndarray) -> float:
    """The mean slope of what the free coordinates hold: those at 0 with a smaller one stay there."""
    mass = np.where(held, 0.0, curve.point)
    return float(mass @ curve.gradient / mass.sum()) if mass.sum() > 0 else -np.inf


def _backtracked(function: Callable[[np.ndarray], Curve], curve: Curve, step: np.ndarray, gain: float) -> Curve | None:
    rounding = 1e-14 * (abs(curve.value) + 1)
    share = 1.0
    while share > 1e-12 and share * gain > rounding:
        found = function(curve.point + share * step)
        if found.value >= curve.value + 1e-4 * share * gain - rounding:
            return found
        share /= 2 if share > 0.1 else 10
    return None


def _rescaled(point: np.ndarray, fixed: int, value: float) -> np.ndarray:
    point[fixed] = 0.0
    total = point.sum()
    point = point * ((1 - value) / total) if total > 0 else point
    point[fixed] = value
    return point
