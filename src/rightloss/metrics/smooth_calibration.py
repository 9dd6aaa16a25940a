"""A smooth calibration curve on the log-odds: observed probability against predicted, with a band and mean distances.

Stage: log_probs, target, π → log-odds l of one class → f(l), a natural cubic spline in a logistic regression of the class on
l → `SmoothCalibrationCurve`.

In a sample taken by class, a weight per class only changes f by a constant. So f is fitted at the sample's own mix, which is
least noisy, and then moved from the sample's odds to the population's, f(l) + logit π − log n₁/n₀ (Prentice & Pyke 1979). The
classes of the rest are mixed as in π.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import log_expit, ndtri

from ..arrays import checked_level, random_generator
from ..solve import Quadratic, minimise
from .intervals import design_of
from .one_vs_rest import Array, expit, log_odds, logit, positive_class, shares_of
from .sample import IGNORED, Mix, Numbers, Predictions, Sample, labelled_sample

if TYPE_CHECKING:
    from jaxtyping import Float64

# quantiles of the knots, by Harrell
_PLACES = {3: (0.1, 0.5, 0.9), 4: (0.05, 0.35, 0.65, 0.95), 5: (0.05, 0.275, 0.5, 0.725, 0.95)}
_BEND = 2.0  # prior standard deviation, in log-odds, of each bend: bounds f in ranges of l with a single class
_BINS, _POINTS, _DRAWS = 40, 101, 4000


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
        predicted 0.50, observed 0.010, ICI 0.41
    """
    level, stream = checked_level(level), random_generator(generator)
    sample = labelled_sample(log_probs, target, prevalence, groups, ignore_index)
    sample.require_every_class("a calibration curve")
    chosen = positive_class(positive, sample.num_classes)
    seen = _OneAgainstRest.of(sample, chosen)
    spline = _fit(seen, _knots(seen, knots))
    points = shares_of(grid, "grid", lambda: expit(np.linspace(*seen.reach, _POINTS)))
    value, error = spline.at(logit(points))
    error = np.hypot(error, _spread_of_odds(sample, chosen, stream))
    z = float(ndtri((1 + level) / 2))
    distances = _distances(seen, spline)
    rate = float(sample.prevalence.population[chosen])
    band = (expit(value), expit(value - z * error), expit(value + z * error))
    return SmoothCalibrationCurve(points, *band, *distances, *_where(seen), seen.num_certain, rate, level, chosen)


@dataclass(frozen=True)
class _OneAgainstRest:
    """Log-odds of one class against the rest, the inputs of the regression.

    Attributes:
        sample: the predictions with labels.
        odds: l of each entry, finite `(m,)`.
        probability: the predicted probability `(m,)`.
        is_positive: whether it is of the class `(m,)`.
        counts: the weight of an entry `(m,)`: its vote; for the rest, times the mix of its classes at π.
        shift: logit π − log n₁/n₀, from the sample's log-odds to the population's.
        num_certain: the number of infinite l.
    """

    sample: Sample
    odds: Float64[np.ndarray, " m"]
    probability: Float64[np.ndarray, " m"]
    is_positive: np.ndarray
    counts: Float64[np.ndarray, " m"]
    shift: float
    num_certain: int

    @classmethod
    def of(cls, sample: Sample, positive: int) -> _OneAgainstRest:
        odds = sample.per_entry(log_odds(sample.log_probs, positive))
        finite = odds[np.isfinite(odds)]
        if len(finite) == 0 or np.ptp(finite) <= 1e-9 * (1 + np.abs(finite).max()):
            raise ValueError(
                "Expected predictions that differ for a calibration curve, but all of them are equal or certain: "
                "compare their mean with the prevalence instead, as `evaluate` does."
            )
        is_positive, weights, totals = sample.labels == positive, sample.population_weights, sample.totals
        sides = np.array([totals.sum() - totals[positive], totals[positive]])
        shares = np.bincount(is_positive, weights, 2)
        shift = float(logit(sample.prevalence.population[positive]) - np.log(sides[1] / sides[0]))
        placed = odds.clip(finite.min() - 1, finite.max() + 1)
        probability = np.exp(sample.per_entry(sample.log_probs[:, positive]).astype(np.float64))
        counts = weights * (sides / shares)[is_positive.astype(int)]
        return cls(sample, placed, probability, is_positive, counts, shift, len(odds) - len(finite))

    @property
    def sides(self) -> Float64[np.ndarray, " 2"]:
        """The total count of the rest and of the class."""
        return np.bincount(self.is_positive, self.counts, 2)

    def quantiles(self, places: tuple[float, ...], positive: bool) -> Array:
        """Return weighted quantiles of the log-odds of one of the two sides."""
        own = self.is_positive == positive
        return _weighted_quantiles(self.odds[own], self.counts[own], places)

    @property
    def reach(self) -> tuple[float, float]:
        """Return the lowest 1 % quantile and the highest 99 % quantile of both sides' log-odds."""
        ends = np.stack([self.quantiles((0.01, 0.99), side) for side in (False, True)])
        return float(ends[:, 0].min()), float(ends[:, 1].max())


@dataclass(frozen=True)
class _Spline:
    """f(l) + shift, with two covariances of its coefficients; the larger standard error is used."""

    knots: Float64[np.ndarray, " q"]
    rotation: Float64[np.ndarray, "p p"]
    theta: Float64[np.ndarray, " p"]
    covariances: tuple[np.ndarray, ...]
    shift: float

    def at(self, odds: Float64[np.ndarray, " m"]) -> tuple[Array, Array]:
        """Return the observed log-odds at predicted ones, and their standard error."""
        basis = _basis(odds, self.knots) @ self.rotation
        variance = np.max([((basis @ each) * basis).sum(1) for each in self.covariances], axis=0)
        return basis @ self.theta + self.shift, np.sqrt(np.maximum(variance, 0.0))


def _knots(seen: _OneAgainstRest, given: int | None) -> Float64[np.ndarray, " q"]:
    """Return knots at quantiles of the log-odds, with equal weight for both sides; two knots give a line."""
    if given is not None and (isinstance(given, bool) or not isinstance(given, int | np.integer) or not 2 <= given <= 5):
        raise ValueError(f"Expected `knots` to be an int from 2 to 5, but got {given!r}: leave it out for the default.")
    fewer = round(float(seen.sides.min()), 6)
    number = int(given) if given is not None else 3 if fewer < 30 else 4 if fewer < 100 else 5
    alike = seen.counts / seen.sides[seen.is_positive.astype(int)]
    return np.unique(_weighted_quantiles(seen.odds, alike, _PLACES.get(number, (0.1, 0.9))))


def _basis(odds: Float64[np.ndarray, " m"], knots: Float64[np.ndarray, " q"]) -> Float64[np.ndarray, "m p"]:
    """Return 1, l, and the q − 2 cubic terms of a spline that is linear beyond its outer knots; a line with fewer than 3."""
    columns = [np.ones_like(odds), odds]
    if len(knots) > 2:
        last, before = knots[-1], knots[-2]
        cubes = [np.maximum(odds - knot, 0.0) ** 3 / (last - knots[0]) ** 2 for knot in knots]
        for knot, cube in zip(knots[:-2], cubes[:-2], strict=True):
            columns.append(cube + ((before - knot) * cubes[-1] - (last - knot) * cubes[-2]) / (last - before))
    return np.stack(columns, 1)


def _fit(seen: _OneAgainstRest, knots: Float64[np.ndarray, " q"]) -> _Spline:
    """Maximise the likelihood, with bends shrunk towards 0."""
    own, rest = seen.odds[seen.is_positive], seen.odds[~seen.is_positive]
    if own.min() >= rest.max() or own.max() <= rest.min():
        raise ValueError(
            "Expected predictions of the two sides to overlap for a calibration curve, but they are separated: "
            "no smooth curve fits best; look at `reliability_curve`, or add examples."
        )
    raw = _basis(seen.odds, knots)
    # columns of unit size, orthogonal in the sample, so that bends are orthogonal to lines
    triangle = np.linalg.qr(raw * np.sqrt(seen.counts / seen.counts.sum())[:, None], mode="r")
    rotation = np.linalg.inv(triangle)
    theta, scores, curvature = _maximise(raw @ rotation, seen)
    unit = triangle[0, 0]  # of θ's first place, in log-odds
    covariances = (_by_model(seen, curvature, unit), _by_rows(seen, scores, curvature, unit))
    return _Spline(knots, rotation, theta, covariances, seen.shift)


def _maximise(basis: np.ndarray, seen: _OneAgainstRest) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return θ, each entry's score there `(m, p)`, and the negative Hessian of the penalised log-likelihood."""
    sign, penalty = np.where(seen.is_positive, 1.0, -1.0), np.full(basis.shape[1], 1 / _BEND**2)
    penalty[:2] = 0.0

    def loss(theta: np.ndarray) -> Quadratic:
        odds = basis @ theta
        scores = (seen.counts * sign * expit(-sign * odds))[:, None] * basis
        spread = seen.counts * expit(odds) * expit(-odds)
        value = -seen.counts @ log_expit(sign * odds) + (penalty * theta**2).sum() / 2
        curvature = (basis * spread[:, None]).T @ basis + np.diag(penalty)
        return Quadratic(float(value), penalty * theta - scores.sum(0), curvature, scores)

    found = minimise(loss, np.zeros(basis.shape[1]))
    if not found.converged:
        raise ValueError(
            "Expected predictions to which a calibration curve can be fitted, but the classes are almost separated: use fewer "
            "`knots`, or `reliability_curve`."
        )
    return found.point, found.at.detail, found.at.hessian


def _by_model(seen: _OneAgainstRest, curvature: np.ndarray, unit: float) -> Float64[np.ndarray, "p p"]:
    """Return the covariance of θ for independent rows: the inverse information, minus 1/n₁ + 1/n₀ for the intercept.

    The subtracted term is due to the numbers of the two sides, which are fixed here (Prentice & Pyke 1979). This covariance is
    valid even with few rows, as in the tails, where the empirical variance is too small.
    """
    covariance = np.linalg.inv(curvature)
    covariance[0, 0] -= unit**2 * (1 / seen.sides).sum()
    return covariance


def _by_rows(seen: _OneAgainstRest, scores: np.ndarray, curvature: np.ndarray, unit: float) -> Float64[np.ndarray, "p p"]:
    """Return the covariance of θ from the influence of each row or group, within the strata of the design."""
    design = design_of(seen.sample)
    added = np.linalg.solve(curvature, scores.T).T
    # the shift, −log n₁/n₀, varies with the classes' totals where groups are drawn
    added[:, 0] += unit * np.where(seen.is_positive, -1.0, 1.0) * seen.counts / seen.sides[seen.is_positive.astype(int)]
    sums = added
    if design.clusters is not None:
        sums = np.stack([np.bincount(design.clusters, column, len(design.strata)) for column in added.T], 1)
    covariance = np.zeros_like(curvature)
    for stratum in np.unique(design.strata):
        members = sums[design.strata == stratum]
        centred, n = members - members.mean(0), len(members)
        covariance += n / max(n - 1, 1) * centred.T @ centred
    return covariance


def _spread_of_odds(sample: Sample, positive: int, generator: np.random.Generator) -> float:
    """Return the standard deviation of logit π; 0 if it is certain."""
    if not sample.prevalence.is_uncertain:
        return 0.0
    return float(logit(sample.prevalence.sample(_DRAWS, generator)[:, positive]).std(ddof=1))


def _distances(seen: _OneAgainstRest, spline: _Spline) -> tuple[float, float, float]:
    """Return mean, median and 90 % quantile of |observed − predicted| over the population."""
    distance = np.abs(expit(spline.at(seen.odds)[0]) - seen.probability)
    weights = seen.sample.population_weights
    e50, e90 = _weighted_quantiles(distance, weights, (0.5, 0.9)).tolist()
    return float(weights @ distance), e50, e90


def _where(seen: _OneAgainstRest) -> tuple[Array, Array]:
    """Return the fraction of each side's predictions in bins of the log-odds, and the bins' edges."""
    edges = np.linspace(*seen.reach, _BINS + 1)
    place = np.clip(np.searchsorted(edges, seen.odds, side="right") - 1, 0, _BINS - 1)
    sides = (~seen.is_positive, seen.is_positive)
    counts = np.stack([np.bincount(place[own], seen.counts[own], _BINS) for own in sides])
    return expit(edges), counts / counts.sum(1, keepdims=True)


def _weighted_quantiles(values: Array, weights: Array, places: tuple[float, ...]) -> Array:
    """Return the lowest values with at least these fractions of the weight at or below them."""
    order = np.argsort(values)
    share = weights[order].cumsum() / weights.sum()
    return values[order][np.minimum(np.searchsorted(share, np.array(places) - 1e-12), len(values) - 1)]
