"""The prevalence by maximum likelihood: L(π), its maximum on the simplex, boundary included, and regions per class.

Stage: blocks of `log_probs`, ρ → L(π), in one pass over the rows → π̂ → `low`, `high`: from the profile of L if passes over the
data are cheap, else from its curvature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit, ndtr, ndtri

from ..calibration import Calibration
from ..solve import Quadratic, minimise
from .stream import PredictionStream

_KEPT = 1 << 23  # entries of a table whose ratios are kept from one pass to the next: 64 MB
_ENOUGH = 1e-19  # tolerance in nats of the log-likelihood: 1e-9 of a standard error
_AT_THE_END = 1e-12  # a bound this close to 0 or 1 counts as 0 or 1
_RIDGE = 1e-11  # relative to the mean curvature: regularises classes that cannot be distinguished


class QuadraticModel(NamedTuple):
    """A concave function to second order at `point`: its value, gradient (K,) and negative second derivatives (K, K)."""

    point: np.ndarray
    value: float
    gradient: np.ndarray
    curvature: np.ndarray


class MixLikelihood:
    """The log-likelihood L(π) = Σ_n log Σ_k π_k p(k|x_n)/ρ_k, up to a constant (Saerens, Latinne, Decaestecker 2002).

    The constant is Σ_n log p(x_n) at the mix ρ. L is concave in π.

    Args:
        rows: predictions on unlabelled data.
        sampling: ρ, the mix at which they hold (after the calibration).
        calibration: applied to each block.
    """

    def __init__(self, rows: PredictionStream, sampling: np.ndarray, calibration: Calibration | None = None) -> None:
        self._rows, self._calibration = rows, calibration
        self._log_sampling = np.log(sampling)[:, None]
        small = not rows.is_stream and (rows.count or 0) * rows.num_classes <= _KEPT
        self._kept = [self._ratios(block) for block in rows] if small else None

    @property
    def is_kept(self) -> bool:
        """True if passes are cheap, because the ratios p(k|x_n)/ρ_k are in memory."""
        return self._kept is not None

    def __call__(self, population: np.ndarray) -> QuadraticModel:
        """Return L, its gradient and its curvature at π, in one pass."""
        return log_mixture(population, self._blocks())

    def of_some_rows(self) -> Callable[[np.ndarray], QuadraticModel] | None:
        """Return L of some rows, to start a search over all: every eighth row, or the first rows if passes are slow.

        Return None for few rows, where it would save no time.
        """
        if self._kept is None:
            some = self._ratios(self._rows.head())
        elif sum(block.size for block in self._kept) >= 1 << 15:
            some = np.concatenate([block[:, ::8] for block in self._kept], 1)
        else:
            return None
        return lambda population: log_mixture(population, [some])

    def added_variance(self, population: np.ndarray, clusters: np.ndarray | None) -> np.ndarray:
        """Return the variance of the gradient at π beyond the curvature `(K, K)`: by the calibration, and by clusters of rows.

        The first is J Var(a, c) Jᵀ, J = ∂²L/∂π∂(a, c), where the log ratios are a_k log p_k + c_k up to a constant per row.
        With shares s_nk = r_nk / Σ_j π_j r_nj, ∂s_nk/∂l_nj = s_nk (1{j=k} − π_j s_nj). The second is Σ_g s_g s_gᵀ of the sums
        s_g of the rows' centred shares, times G/(G − 1) for G clusters, minus Σ_n s_n s_nᵀ.
        """
        size, added = len(population), np.zeros((len(population), len(population)))
        if self._calibration is not None:
            by_slope, by_offset = np.zeros((size, size)), np.zeros((size, size))
            for block, ratios in zip(self._rows, self._blocks(), strict=True):
                shares = ratios / (population @ ratios)
                if self._calibration.kind != "mean":  # the slopes of "mean" have no uncertainty
                    moved = shares * np.maximum(block.T, -1e5)  # a share of 0 times log 0 is 0
                    by_slope += np.diag(moved.sum(1)) - population * (shares @ moved.T)
                by_offset += np.diag(shares.sum(1)) - population * (shares @ shares.T)
            both = np.concatenate([by_slope, by_offset], 1)
            added += both @ self._calibration.covariance @ both.T
        if clusters is not None:
            count, start = int(clusters.max()) + 1, 0
            sums = np.zeros((size, count))
            for ratios in self._blocks():
                shares = ratios / (population @ ratios) - 1  # a constant for all classes does not move π
                own = clusters[start : start + shares.shape[1]]
                sums += [np.bincount(own, share, count) for share in shares]
                added -= shares @ shares.T
                start += shares.shape[1]
            added += sums @ sums.T * (count / max(1, count - 1))
        return added

    def _blocks(self) -> Iterable[np.ndarray]:
        return (self._ratios(block) for block in self._rows) if self._kept is None else self._kept

    def _ratios(self, block: np.ndarray) -> np.ndarray:
        """Return p(k|x_n)/ρ_k, `(K, n)`: classes first, so that sums over them run along memory."""
        block = block if self._calibration is None else self._calibration.apply(block)
        ratios = np.array(block.T, order="C")
        ratios -= self._log_sampling
        return np.exp(ratios, out=ratios)


def log_mixture(population: np.ndarray, blocks: Iterable[np.ndarray]) -> QuadraticModel:
    """Return Σ_n log Σ_k π_k r_kn to second order, for ratios r in blocks `(K, n)`."""
    size = len(population)
    value, gradient, curvature = 0.0, np.zeros(size), np.zeros((size, size))
    for ratios in blocks:
        mixed = population @ ratios
        shares = ratios / mixed
        value += float(np.log(mixed, out=mixed).sum())
        gradient += shares.sum(1)
        curvature += shares @ shares.T
    return QuadraticModel(population, value, gradient, curvature)


class Maximum(NamedTuple):
    """The result of a search: the maximum, the function there to second order, its evaluations, and whether it converged."""

    point: np.ndarray
    value: float
    model: QuadraticModel
    iterations: int
    converged: bool


@np.errstate(divide="ignore", invalid="ignore", over="ignore")  # L is −∞ where π excludes a row
def maximise(function: Callable[[np.ndarray], QuadraticModel], start: np.ndarray, fixed: int | None = None) -> Maximum:
    """Return the maximum over the simplex, by Newton's method, with the coordinate `fixed` kept at its start.

    A log-likelihood L of mixtures grows by N log s if all frequencies are multiplied by s. So the maximum of L(π) − N Σ_k π_k
    over all π ≥ 0 has the sum 1, and bounds at 0 are the only ones. With π_k fixed at v, the others are (1 − v) w, and
    L is again that of a mixture of K − 1 components: π = A w, where A repeats v in row k.
    """
    size = len(start)
    spread = np.eye(size)
    if fixed is not None:
        others = np.arange(size) != fixed
        spread = (1 - start[fixed]) * spread[:, others] + start[fixed] * ~others[:, None]
    first, calls = function(start), 0
    if not np.isfinite(first.value) or (fixed is not None and start[fixed] == 1):
        return Maximum(first.point, first.value, first, 1, bool(np.isfinite(first.value)))
    total = float(first.gradient @ start)

    def loss(weights: np.ndarray) -> Quadratic:
        nonlocal calls
        calls += 1
        model = function(spread @ weights) if calls > 1 else first
        curvature = spread.T @ model.curvature @ spread
        curvature += _RIDGE * np.trace(curvature) / len(weights) * np.eye(len(weights))
        value = model.value if np.isfinite(curvature).all() else -np.inf
        return Quadratic(total * weights.sum() - value, total - spread.T @ model.gradient, curvature, model)

    found = minimise(loss, start if fixed is None else start[others] / (1 - start[fixed]), 0.0, _ENOUGH, max_steps=100)
    point, value, gradient, curvature = found.at.detail
    scale = float(point.sum())  # 1 up to the tolerance
    model = QuadraticModel(point / scale, value - total * math.log(scale), gradient * scale, curvature * scale**2)
    return Maximum(model.point, model.value, model, calls, found.converged)


Reach = Callable[[int, float, QuadraticModel], float]  # k, π_k, L at π → the limit of the deviance's root


def profile_region(
    likelihood: Callable[[np.ndarray], QuadraticModel],
    best: Maximum,
    errors: np.ndarray,
    most: np.ndarray,
    reach: Reach | None = None,
    before: Callable[[], None] = lambda: None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the limits of all π_k whose root of the deviance, √(2 (L(π̂) − max L given π_k)), is within its limit.

    `low` is 0 if the region includes 0.

    Args:
        likelihood: L.
        best: its maximum.
        errors: standard errors (K,) from the curvature, to start the search.
        most: the limit of the deviance's root for each class (K,), such as √deviance_limit(level).
        reach: the limit at another π, if it differs.
        before: called before each search, for a likelihood that remembers its last evaluation.
    """

    def excess(k: int, value: float, near: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the root of the deviance minus its limit, and the maximum, searched from `near`."""
        found = maximise(likelihood, _with(near, k, value), fixed=k)
        if not np.isfinite(found.value):  # rows explained by class k may need a class with frequency 0
            found = maximise(likelihood, _with(0.9 * near + 0.1 / len(near), k, value), fixed=k)
        if not np.isfinite(found.value):
            return math.inf, near
        root = math.sqrt(max(0.0, 2 * (best.value - found.value)))
        return root - (float(most[k]) if reach is None else reach(k, value, found.model)), found.point

    size = len(best.point)
    low, high = np.empty(size), np.empty(size)
    for k in range(size):
        if size == 2 and k == 1:  # the second class is 1 minus the first
            low[1], high[1] = 1 - high[0], 1 - low[0]
            continue
        for bounds, side in ((low, -1), (high, +1)):
            before()
            bounds[k] = _bound(partial(excess, k), best, k, side, float(most[k]), float(errors[k]))
    return low, high


def curvature_region(point: np.ndarray, reach: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return π̂_k ± `reach`, z times the standard error, on the scale of log-odds unless π̂_k ± reach is beyond 0 or 1."""
    low, high = np.clip(point - reach, 0, 1), np.clip(point + reach, 0, 1)
    inner = (low > 0) & (high < 1)
    centre = np.where(inner, point, 0.5)
    steps = np.where(inner, reach / (centre * (1 - centre)), 0.0)
    below, above = (expit(logit(centre) + sign * steps) for sign in (-1, 1))
    return within_simplex(np.where(inner, below, low), np.where(inner, above, high))


def within_simplex(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return `high`, at most 1 minus the `low` of all other classes: a bound even for classes that cannot be distinguished."""
    return low, np.minimum(high, 1 - (low.sum() - low))


def deviance_limit(level: float) -> float:
    """Return the quantile of χ² with one degree of freedom."""
    return float(ndtri((1 + level) / 2)) ** 2


def welch_limit(alone: np.ndarray, together: np.ndarray, examples: float, level: float) -> np.ndarray:
    """Return Student's t² (K,) at `level`, with Welch's degrees of freedom: the inverse of `normal_score`.

    Args:
        alone: the part of the variance that is known (K,).
        together: the whole variance (K,); the rest is estimated, with as many degrees of freedom as examples, less one.
        examples: their number; ∞ if all is known.
        level: the level of the region.
    """
    share = ((together - alone) / together.clip(1e-300)).clip(1e-9, 1)
    degrees = np.minimum(max(examples - 1, 1) / share**2, 1e18)
    return degrees * np.expm1(deviance_limit(level) * ((8 * degrees + 3) / (8 * degrees + 1)) ** 2 / degrees)


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
        return float(sum(ndtr(-normal_score(each, degrees)) for each in (root, far))) - (1 - level)

    outside = 1.0
    while missed(outside) > 0:
        outside *= 2
    return float(brentq(missed, 0.0, outside, xtol=1e-100)) ** 2 if missed(1e-100) > 0 else 0.0


def normal_score(t: float, degrees: float) -> float:
    """Return the normal value ≥ 0 with the same tail probability as Student's |t| (Wallace 1959)."""
    if not math.isfinite(degrees) or not math.isfinite(t):
        return abs(t)
    return math.sqrt(degrees * math.log1p(t**2 / degrees)) * (8 * degrees + 1) / (8 * degrees + 3)


def curvature_at(best: Maximum, level: float) -> np.ndarray:
    """Return the curvature of L at its maximum `(K, K)`; for a class at 0 it includes the slope at 0.

    From 0 the deviance of such a class grows like 2 s t + c t², with slope s and curvature c, and reaches χ²₁(level) = z² at
    t = z²/(s + √(s² + c z²)). A curvature of (s + √(s² + c z²))²/z² alone reaches it at the same t.
    """
    model, z2 = best.model, deviance_limit(level)
    slope = np.where(model.point > 0, 0.0, (model.point @ model.gradient - model.gradient).clip(0))
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


def _bound(
    excess_at: Callable[[float, np.ndarray], tuple[float, np.ndarray]],
    best: Maximum,
    k: int,
    side: int,
    most: float,
    error: float,
) -> float:
    """Return the π_k at which the root of the deviance reaches its limit, by secants: the root is nearly linear."""
    start, end = float(best.point[k]), 0.0 if side < 0 else 1.0
    near = abs(start - end) < 3 * most * error  # further away the search finds it by itself
    if start == end or (near and excess_at(end, best.point)[0] <= 0):
        return end
    inside, outside, point = start, end, best.point
    last, before = start, -most
    value = _moved(start, side * most * error, inside, outside)
    for _ in range(60):
        excess, point = excess_at(value, point)
        if abs(excess) < 1e-7 * most or abs(outside - inside) < 1e-14:
            break
        inside, outside = (value, outside) if excess < 0 else (inside, value)
        change, last, before = (value - last) / (excess - before or math.nan), value, excess
        value = _moved(value, -excess * change, inside, outside)
    return end if abs(value - end) < _AT_THE_END else value


def _with(point: np.ndarray, k: int, value: float) -> np.ndarray:
    """Return the point with `value` for class k, the others in proportion."""
    others = np.delete(point, k)
    others = others if others.sum() > 0 else np.ones_like(others)
    return np.insert(others * ((1 - value) / others.sum()), k, value)


def _moved(value: float, step: float, inside: float, outside: float) -> float:
    """Return `value + step` where that lies between the two, else a point between them."""
    low, high = min(inside, outside), max(inside, outside)
    new = value + step
    if math.isfinite(new) and low < new < high:
        return new
    if low > 0 or high == 1.0 or outside == high:
        return (low + high) / 2
    return high / 4  # towards 0
