"""The calibration plot of the report: predicted against observed risk, in log-odds.

Stage: held-out log-probabilities, labels, π, ρ → `Drawing`, coordinates that the report's template draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..predictive import retarget

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

_TICKS = (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
_LOWEST, _HIGHEST = 1e-6, 0.9999
_FEWEST = 3  # minimum rows of the class, and of the rest, in a group
_Z = 1.959964  # of 95 % intervals


@dataclass(frozen=True)
class Tick:
    """A number on both axes."""

    label: str
    x: float
    y: float


@dataclass(frozen=True)
class Point:
    """A bin: its position, and the limits of its interval."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Series:
    """The bins of one set of predictions, named "after" or "before" the correction."""

    name: str
    points: list[Point]

    @property
    def path(self) -> str:
        return " ".join(f"{point.x:.1f},{point.y:.1f}" for point in self.points)


@dataclass(frozen=True)
class Drawing:
    """The plot: its size, the rectangle of the axes, and the content."""

    ticks: list[Tick]
    series: list[Series]
    alt: str
    width: int = 480
    height: int = 400
    left: int = 62
    right: int = 468
    top: int = 12
    bottom: int = 350


def calibration_drawing(
    log_probs: Float64[np.ndarray, "n k"],
    target: Int64[np.ndarray, " n"],
    population: Float64[np.ndarray, " k"],
    sampling: Float64[np.ndarray, " k"],
    positive: int,
    bins: int = 10,
) -> Drawing:
    """Return the plot of observed against predicted risk of one class at π: for the predictions, and for the same at ρ.

    Args:
        log_probs: held-out predictions at π.
        target: labels, as column numbers of `log_probs`.
        population: π.
        sampling: ρ, the mix of predictions without a correction.
        positive: the class.
        bins: number of groups of predictions, with equal numbers of rows of the class.
    """
    uncorrected = retarget(log_probs, population, sampling)
    curves = {
        name: calibration_curve(np.exp(table[:, positive]), target, population, positive, bins)
        for name, table in (("after", log_probs), ("before", uncorrected))
    }
    weights = population[target] / np.bincount(target, minlength=len(population))[target]
    after, before = (float(np.average(np.exp(table[:, positive]), weights=weights)) for table in (log_probs, uncorrected))
    alt = (
        f"Observed risk against predicted risk at the population, where it is {population[positive]:.3g}: on average the model "
        f"predicts {after:.3g}, and without the correction {before:.3g}."
    )
    frame = _Frame.around(list(curves.values()))
    return Drawing(frame.ticks(), [Series(name, frame.points(curve)) for name, curve in curves.items()], alt)


@dataclass(frozen=True)
class Curve:
    """Groups of increasing predictions: mean predicted risk, and observed risk with limits, all at π `(b,)`."""

    predicted: Float64[np.ndarray, " b"]
    observed: Float64[np.ndarray, " b"]
    low: Float64[np.ndarray, " b"]
    high: Float64[np.ndarray, " b"]


def calibration_curve(
    probability: Float64[np.ndarray, " n"],
    target: Int64[np.ndarray, " n"],
    population: Float64[np.ndarray, " k"],
    positive: int,
    bins: int,
) -> Curve:
    """Return observed against predicted risk in groups with as many rows of the class each: at a small π, groups of equal
    size would have none.

    With a_1, a_0 the shares of the class and of the rest in a group, the rest mixed by π, its log-odds there are
    logit π + log a_1/a_0, with the standard error of a log likelihood ratio.
    """
    counts = np.bincount(target, minlength=len(population))
    group = _groups(probability, target == positive, bins)
    size = int(group.max()) + 1
    weights = population[target] / counts[target]
    predicted = np.bincount(group, weights * probability, size) / np.bincount(group, weights, size)
    shares = np.stack([np.bincount(group[target == k], minlength=size) / max(counts[k], 1) for k in range(len(population))])
    spread = shares * (1 - shares) / np.maximum(counts, 1)[:, None]
    mix = np.where(np.arange(len(population)) == positive, 0, population) / (1 - population[positive])
    rest = mix @ shares
    error = np.sqrt(spread[positive] / shares[positive] ** 2 + (mix**2 @ spread) / rest**2)
    odds = _logit(float(population[positive])) + np.log(shares[positive] / rest)
    observed, low, high = (1 / (1 + np.exp(-(odds + z * error))) for z in (0.0, -_Z, _Z))
    return Curve(predicted, observed, low, high)


def _groups(probability: np.ndarray, own: np.ndarray, bins: int) -> np.ndarray:
    """Return the group of each row, from quantiles of the class's rows; groups with too few rows are merged with the next."""
    shares = np.linspace(0, 1, min(bins, max(1, int(own.sum()) // _FEWEST)) + 1)[1:-1]
    edges = np.unique(np.quantile(probability[own], shares))
    kept: list[float] = []
    for edge in [*edges.tolist(), math.inf]:
        inside = (probability >= (kept[-1] if kept else -math.inf)) & (probability < edge)
        if min(int((inside & own).sum()), int((inside & ~own).sum())) >= _FEWEST:
            kept.append(edge)
    return np.searchsorted(np.array(kept[:-1]), probability, side="right")


@dataclass(frozen=True)
class _Frame:
    """The range of log-odds of both axes, and its position in the plot."""

    low: float
    high: float

    @classmethod
    def around(cls, curves: list[Curve]) -> _Frame:
        shown = np.concatenate([each for curve in curves for each in (curve.predicted, curve.observed)])
        shown = np.clip(shown[np.isfinite(shown)], _LOWEST, _HIGHEST)
        return cls(_logit(float(shown.min())) - 0.7, _logit(float(shown.max())) + 0.7)

    def points(self, curve: Curve) -> list[Point]:
        rows = zip(curve.predicted, curve.observed, curve.low, curve.high, strict=True)
        return [
            Point(self.x(float(predicted)), *(self.y(float(value)) for value in (observed, low, high)))
            for predicted, observed, low, high in rows
        ]

    def ticks(self) -> list[Tick]:
        inside = [each for each in _TICKS if self.low <= _logit(each) <= self.high]
        return [Tick(f"{100 * each:g} %", self.x(each), self.y(each)) for each in inside]

    def x(self, share: float) -> float:
        return round(Drawing.left + self._place(share) * (Drawing.right - Drawing.left), 1)

    def y(self, share: float) -> float:
        return round(Drawing.bottom - self._place(share) * (Drawing.bottom - Drawing.top), 1)

    def _place(self, share: float) -> float:
        """Return the position of a fraction on the axis, from 0 to 1; values beyond the ends are at the end."""
        return min(1.0, max(0.0, (_logit(share) - self.low) / (self.high - self.low)))


def _logit(share: float) -> float:
    share = min(max(share, 1e-300), 1 - 1e-16)
    return math.log(share) - math.log1p(-share)
