"""Minimise a smooth function of a few numbers by Newton's method in a trust region, and match the mean of predictions.

Stage: a function, or logits and a mean → the point of its minimum, or intercepts. In numpy alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

_ROUNDING = 1e-13  # changes of a value that are smaller than this, relatively, may be rounding


class Quadratic(NamedTuple):
    """A function to second order at a point: its value, gradient `(p,)`, second derivatives `(p, p)`, and more."""

    value: float
    gradient: np.ndarray
    hessian: np.ndarray
    detail: Any = None


class Minimum(NamedTuple):
    """The point found, the function there, and whether no step improves it."""

    point: np.ndarray
    at: Quadratic
    converged: bool


def minimise(
    function: Callable[[np.ndarray], Quadratic],
    start: np.ndarray,
    lower: float | np.ndarray = -np.inf,
    enough: float = 0.0,
    max_steps: int = 500,
) -> Minimum:
    """Minimise a function by Newton steps within a radius, which grows while the function behaves as its second-order model.

    So it neither stops nor jumps where the curvature is almost 0 but the slope is not. Where the value changes by rounding,
    steps go on as long as they halve the gradient: no tolerance has the function's units.

    Args:
        function: smooth; convex for a global minimum. The coordinates should have similar scales.
        start: the first point `(p,)`, at least `lower`.
        lower: bounds of the coordinates.
        enough: the expected gain of a step below which none is taken; 0 for all digits.
        max_steps: maximum number of evaluations.
    """
    point, at, radius = start, function(start), 1.0
    for _ in range(max_steps):
        free = (point > lower) | (at.gradient < 0)
        values, vectors = np.linalg.eigh(at.hessian[np.ix_(free, free)])
        slopes = vectors.T @ at.gradient[free]
        trial = point.copy()
        trial[free] -= vectors @ _limited(np.abs(values), slopes, radius)
        trial = np.maximum(trial, lower)
        step = trial - point
        expected = -float(at.gradient @ step + step @ at.hessian @ step / 2)
        if abs(expected) < enough:
            return Minimum(point, at, True)
        found = function(trial)
        gain, length = at.value - found.value, float(np.linalg.norm(step))
        if abs(expected) <= _ROUNDING * abs(at.value):
            now, then = (
                ((vectors.T @ each.gradient[free]) ** 2 / np.maximum(np.abs(values), 1e-300)).sum() for each in (at, found)
            )
            if not then < now / 4:
                return Minimum(point, at, True)
            point, at = trial, found
        elif gain >= 0.1 * expected > 0:
            point, at, radius = trial, found, max(radius, (4.0 if gain > 0.7 * expected else 1.0) * length)
        else:
            radius = length / 4
        if radius < 1e-14 * (1 + np.abs(point).max()):
            break
    return Minimum(point, at, False)


def intercepts_for_mean(logits: np.ndarray, mean: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the b, with mean 0, for which the weighted mean of softmax(logits + b) is `mean` (K,).

    They minimise the convex F(b) = avg_n log Σ_k exp(z_nk + b_k) − Σ_k mean_k b_k, whose gradient is that mean minus `mean`.

    Args:
        logits: z `(n, k)`, finite.
        mean: positive, sums to 1 (K,).
        weights: of the rows `(n,)`, at least 0.
    """
    table, share = np.ascontiguousarray(logits.T), weights / weights.sum()
    rest = np.arange(len(mean)) != mean.argmax()  # F is constant along equal changes of all intercepts, so one stays at 0

    def function(free: np.ndarray) -> Quadratic:
        bias = np.zeros(len(mean))
        bias[rest] = free
        totals, probs = softmax_columns(table + bias[:, None])
        probs = probs[rest]
        average = probs @ share
        curvature = np.diag(average) - (probs * share) @ probs.T
        return Quadratic(float(share @ totals - mean @ bias), average - mean[rest], curvature)

    start = np.log(mean) - np.log(np.maximum(softmax_columns(table)[1] @ share, 1e-300))
    found = np.zeros(len(mean))
    found[rest] = minimise(function, (start - start[~rest])[rest]).point
    return found - found.mean()


def softmax_columns(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log Σ_k exp(z_k) of each column of logits `(k, n)`, and the probabilities `(k, n)`."""
    top = logits.max(axis=0)
    probs = np.exp(logits - top)
    total = probs.sum(axis=0)
    return np.log(total) + top, probs / total


def _limited(curvatures: np.ndarray, slopes: np.ndarray, radius: float) -> np.ndarray:
    """Return slopes/(curvatures + λ) (p,), with the smallest λ ≥ 0 for which its length is at most `radius`."""
    curvatures = np.maximum(curvatures, 1e-300)
    more = max(0.0, float((np.abs(slopes) / radius - curvatures).max(initial=0.0)))  # no entry is longer
    for _ in range(50):
        step = slopes / (curvatures + more)
        length = float(np.linalg.norm(step))
        if length <= 1.01 * radius:
            break
        more += length**2 / float(step @ (step / (curvatures + more))) * (length / radius - 1)
    return step
