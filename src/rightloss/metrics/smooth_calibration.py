"""A smooth calibration curve on the log-odds: observed probability against predicted, with a band and mean distances.

Stage: log_probs, target, π → log-odds l of one class → f(l), a natural cubic spline in a logistic regression of the class on
l → `SmoothCalibrationCurve`.

In a sample taken by class, a weight per class only changes f by a constant. So f is fitted at the sample's own mix, which is
least noisy, and then moved from the sample's odds to the population's, f(l) + logit π − log n₁/n₀ (Prentice & Pyke 1979). The
classes of the rest are mixed as in π.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit, ndtri

from ..arrays import checked_int, checked_level, random_generator
from ..solve import Minimum, Quadratic, minimise
from .intervals import design_of
from .one_vs_rest import Array, Scores, expit, logit, scores, shares_of
from .sample import IGNORED, Mix, Numbers, Predictions

# quantiles of the knots, by Harrell
_PLACES = {3: (0.1, 0.5, 0.9), 4: (0.05, 0.35, 0.65, 0.95), 5: (0.05, 0.275, 0.5, 0.725, 0.95)}
_BEND = 2.0  # prior standard deviation, in log-odds, of each bend: bounds f in ranges of l with a single class
_BINS, _POINTS, _DRAWS, _STEPS = 40, 101, 4000, 200


@dataclass(frozen=True)
class SmoothCalibrationCurve:
    """Observed against predicted probability as a smooth curve. See `smooth_calibration_curve`.

    Attributes:
        predicted: increasing probabilities, by default evenly spaced in log-odds `(g,)`.
        observed, low, high: frequency of the class at each, at π, with pointwise limits `(g,)`.
        ici: integrated calibration index: mean |observed − predicted| over the population (Austin & Steyerberg 2019).
        e50: median of |observed − predicted|.
        e90: its 90 % quantile.
        edges: edges of the bins of predictions, as probabilities `(b + 1,)`.
        share: fraction of the rest, and of the positive class, in each bin `(2, b)`; each row sums to 1.
        num_certain: the number of predictions of exactly 0 or 1; they are placed 1 log-odds beyond the others.
        prevalence: π of the class.
        level: the level of the limits.
        positive: the class.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import smooth_calibration_curve
        >>> y = np.arange(400) % 2
        >>> odds = np.random.default_rng(0).normal(size=400) + y - 5.1  # right at 1 in 100
        >>> log_probs = -np.logaddexp(0, np.stack([odds, -odds], 1))
        >>> curve = smooth_calibration_curve(log_probs, y, prevalence=0.01, grid=[0.005, 0.02])
        >>> bool((curve.low < curve.predicted).all() and (curve.predicted < curve.high).all())
        True
    """

    predicted: Array
    observed: Array
    low: Array
    high: Array
    ici: float
    e50: float
    e90: float
    edges: Array
    share: Array
    num_certain: int
    prevalence: float
    level: float
    positive: int


def smooth_calibration_curve(
    log_probs: Predictions,
    target: Numbers,
    prevalence: Mix,
    *,
    grid: Numbers | None = None,
    knots: int | None = None,
    positive: int | None = None,
    level: float = 0.95,
    generator: Any = None,
    groups: Numbers | None = None,
    ignore_index: int = IGNORED,
) -> SmoothCalibrationCurve:
    """Compare predicted probabilities of one class with how often it occurs, as a smooth curve, at the prevalence π.

    The observed log-odds are a natural cubic spline of the predicted log-odds: linear beyond the outer knots, and slightly
    shrunk towards a line in between. The band is pointwise: the larger of the standard errors from the likelihood's curvature
    and from the influence of each row (or group), plus that of an uncertain π. Unlike the bins of `reliability_curve` it shows
    where a rare class's probabilities are wrong.

    Args:
        log_probs: predictions for the population `(n, k)`, or dense maps `(n, k, h, w, …)`, as log-probabilities.
        target: labels, as in `evaluate`, in any mix of classes.
        prevalence: π: a `Prevalence`, an estimate of one, K frequencies, or for two classes that of class 1.
        grid: probabilities at which to evaluate the curve; by default 101, evenly spaced in log-odds, from the 1 % to the 99 %
            quantile of either side's predictions.
        knots: 2 for a straight line, to 5; by default 3 below 30 examples of the rarer side, 4 below 100, then 5.
        positive: the class looked at; 1 for two classes by default.
        level: coverage of the band.
        generator: for draws of an uncertain π; with a fixed seed by default.
        groups: ids of patients (or sites) `(n,)`, if rows are not independent; by default each image of a dense map is a group.
        ignore_index: the int label of examples to ignore.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import smooth_calibration_curve
        >>> y = np.arange(400) % 2
        >>> odds = np.random.default_rng(0).normal(size=400) + y - 0.5  # right where half are of class 1
        >>> log_probs = -np.logaddexp(0, np.stack([odds, -odds], 1))
        >>> curve = smooth_calibration_curve(log_probs, y, prevalence=0.01, grid=[0.5], knots=2)
        >>> print(f"predicted {curve.predicted[0]:.2f}, observed {curve.observed[0]:.3f}, ICI {curve.ici:.2f}")
        predicted 0.50, observed 0.010, ICI 0.37
    """
    level, stream = checked_level(level), random_generator(generator)
    found = scores(log_probs, target, prevalence, positive, "a calibration curve", groups, ignore_index)
    seen = _Regression.of(found)
    spline = _fit(seen, _knots(seen, knots))
    points = shares_of(grid, "grid", lambda: expit(np.linspace(*seen.reach, _POINTS)))
    value, error = spline.at(logit(points))
    pi = found.sample.prevalence
    of_odds = logit(pi.sample(_DRAWS, stream)[:, found.positive]).std(ddof=1) if pi.is_uncertain else 0.0
    error = ndtri((1 + level) / 2) * np.hypot(error, of_odds)
    band = (expit(value), expit(value - error), expit(value + error))
    certain = int((~np.isfinite(found.odds)).sum())
    predicted = np.exp(found.sample.per_entry(found.sample.log_probs[:, found.positive]).astype(np.float64))
    distance, weights = np.abs(expit(spline.at(seen.odds)[0]) - predicted), found.sample.population_weights
    ici, (e50, e90) = float(weights @ distance), weighted_quantiles(distance, weights, (0.5, 0.9)).tolist()
    edges, share = _histogram(seen)
    return SmoothCalibrationCurve(
        points, *band, ici, e50, e90, edges, share, certain, prevalence=found.rate, level=level, positive=found.positive
    )


@dataclass(frozen=True)
class _Regression:
    """The inputs of the regression of one class on its log-odds.

    Attributes:
        scores: the predictions with labels.
        odds: l of each entry, finite `(m,)`.
        side: 1 for entries of the class, 0 for the rest `(m,)`.
        counts: the weight of an entry `(m,)`: its vote; for the rest, times the mix of its classes at π.
        sides: Σ counts of the rest, and of the class.
        shift: logit π − log n₁/n₀, from the sample's log-odds to the population's.
    """

    scores: Scores
    odds: Array
    side: NDArray[np.int64]
    counts: Array
    sides: Array
    shift: float

    @classmethod
    def of(cls, found: Scores) -> _Regression:
        finite = found.odds[np.isfinite(found.odds)]
        if len(finite) == 0 or np.ptp(finite) <= 1e-9 * (1 + np.abs(finite).max()):
            raise ValueError(
                "Expected predictions that differ for a calibration curve, but all of them are equal or certain: "
                "compare their mean with the prevalence instead, as `evaluate` does."
            )
        sample, side, own = found.sample, found.is_positive.astype(np.int64), found.sample.totals[found.positive]
        sides = np.array([sample.totals.sum() - own, own])
        counts = sample.population_weights * (sides / np.bincount(side, sample.population_weights, 2))[side]
        shift = float(logit(found.rate) - np.log(sides[1] / sides[0]))
        return cls(found, found.odds.clip(finite.min() - 1, finite.max() + 1), side, counts, sides, shift)

    @property
    def reach(self) -> tuple[float, float]:
        """Return the lowest 1 % quantile and the highest 99 % quantile of both sides' log-odds."""
        of = [self.side == side for side in (0, 1)]
        ends = np.stack([weighted_quantiles(self.odds[own], self.counts[own], (0.01, 0.99)) for own in of])
        return float(ends[:, 0].min()), float(ends[:, 1].max())


@dataclass(frozen=True)
class _Spline:
    """f(l) + shift, with two covariances of its coefficients; the larger standard error is used."""

    knots: Array
    rotation: Array
    theta: Array
    covariances: tuple[Array, ...]
    shift: float

    def at(self, odds: Array) -> tuple[Array, Array]:
        """Return the observed log-odds at predicted ones, and their standard error."""
        basis = self.rotation.T @ _basis(odds, self.knots)
        variance = np.max([(basis * (each @ basis)).sum(0) for each in self.covariances], axis=0)
        return self.theta @ basis + self.shift, np.sqrt(np.maximum(variance, 0))


def _knots(seen: _Regression, given: int | None) -> Array:
    """Return knots at quantiles of the log-odds, with equal weight for both sides; two knots give a line."""
    fewer = round(float(seen.sides.min()), 6)
    number = 3 if fewer < 30 else 4 if fewer < 100 else 5
    number = number if given is None else checked_int(given, "knots", 2, 5)
    return np.unique(weighted_quantiles(seen.odds, seen.counts / seen.sides[seen.side], _PLACES.get(number, (0.1, 0.9))))


def _basis(odds: Array, knots: Array) -> Array:
    """Return 1, l, and the q − 2 cubic terms of a spline that is linear beyond its outer knots `(p, m)`; 1 and l for fewer."""
    rows = [np.ones_like(odds), odds]
    if len(knots) > 2:
        last, before = knots[-1], knots[-2]
        cubes = [np.maximum(odds - knot, 0) ** 3 / (last - knots[0]) ** 2 for knot in knots]
        for knot, cube in zip(knots[:-2], cubes[:-2], strict=True):
            rows.append(cube + ((before - knot) * cubes[-1] - (last - knot) * cubes[-2]) / (last - before))
    return np.stack(rows)


def _fit(seen: _Regression, knots: Array) -> _Spline:
    """Maximise the likelihood, with bends shrunk towards 0."""
    own, rest = seen.odds[seen.side == 1], seen.odds[seen.side == 0]
    if own.min() >= rest.max() or own.max() <= rest.min():
        raise ValueError(
            "Expected predictions of the two sides to overlap for a calibration curve, but they are separated: "
            "no smooth curve fits best; look at `reliability_curve`, or add examples."
        )
    raw = _basis(seen.odds, knots)
    # rows of unit size, orthogonal in the sample, so that bends are orthogonal to lines
    triangle = np.linalg.qr((raw * np.sqrt(seen.counts / seen.counts.sum())).T)[1]
    rotation = np.linalg.inv(triangle)
    basis, sign = rotation.T @ raw, 2.0 * seen.side - 1
    penalty = np.where(np.arange(len(basis)) < 2, 0.0, 1 / _BEND**2)

    def loss(theta: Array) -> Quadratic:
        odds = sign * (theta @ basis)
        scores = seen.counts * sign * expit(-odds) * basis
        curvature = (basis * (seen.counts * expit(odds) * expit(-odds))) @ basis.T + np.diag(penalty)
        value = penalty @ theta**2 / 2 - seen.counts @ log_expit(odds)
        return Quadratic(float(value), penalty * theta - scores.sum(1), curvature, scores)

    found = minimise(loss, np.zeros(len(basis)), max_steps=_STEPS)
    if not found.converged:
        remedy = "use fewer `knots`, or `reliability_curve`"
        raise ValueError(f"Expected predictions to fit a curve to, but the classes are almost separated: {remedy}.")
    unit = float(triangle[0, 0])  # of θ's first place, in log-odds
    # For independent rows: the inverse information, minus 1/n₁ + 1/n₀ for the intercept, because the numbers of the two sides
    # are fixed here (Prentice & Pyke 1979). It is valid with few rows, as in the tails, where the empirical variance is too
    # small.
    by_model = np.linalg.inv(found.at.hessian)
    by_model[0, 0] -= unit**2 * (1 / seen.sides).sum()
    return _Spline(knots, rotation, found.point, (by_model, _by_rows(seen, found, unit)), seen.shift)


def _by_rows(seen: _Regression, found: Minimum, unit: float) -> Array:
    """Return the covariance of θ from the influence of each row or group, within the strata of the design."""
    design, added = design_of(seen.scores.sample), np.linalg.solve(found.at.hessian, found.at.detail)
    # the shift, −log n₁/n₀, varies with the classes' totals where groups are drawn
    added[0] += unit * seen.counts * ([1, -1] / seen.sides)[seen.side]
    if design.clusters is not None:
        added = np.stack([np.bincount(design.clusters, each) for each in added])
    covariance = np.zeros_like(found.at.hessian)
    for stratum in np.unique(design.strata):
        members = added[:, design.strata == stratum]
        centred, n = members - members.mean(1, keepdims=True), members.shape[1]
        covariance += n / max(n - 1, 1) * centred @ centred.T
    return covariance


def _histogram(seen: _Regression) -> tuple[Array, Array]:
    """Return the edges of bins of the log-odds, as probabilities, and the fraction of each side's predictions in them."""
    edges = np.linspace(*seen.reach, _BINS + 1)
    place = np.clip(np.searchsorted(edges, seen.odds, side="right") - 1, 0, _BINS - 1) + _BINS * seen.side
    counts = np.bincount(place, seen.counts, 2 * _BINS).reshape(2, _BINS)
    return expit(edges), counts / counts.sum(1, keepdims=True)


def weighted_quantiles(values: Array, weights: Array, places: tuple[float, ...]) -> Array:
    """Return the lowest values with at least these fractions of the weight at or below them."""
    order = np.argsort(values)
    share = weights[order].cumsum() / weights.sum()
    return values[order][np.minimum(np.searchsorted(share, np.array(places) - 1e-12), len(values) - 1)]
