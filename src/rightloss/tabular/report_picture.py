"""Predicted against observed risk, in log-odds.

Stage: held-out log-probabilities, labels, π, ρ → `Drawing`, coordinates that the report's template draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from ..metrics import ReliabilityCurve, reliability_curve
from ..predictive import retarget

_TICKS = (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
_LOWEST, _HIGHEST = 1e-6, 0.9999


@dataclass(frozen=True)
class Tick:
    """A number on both axes."""

    label: str
    x: float
    y: float


@dataclass(frozen=True)
class Point:
    """A bin: its place, and the ends of its interval."""

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
    """The picture: its size, the rectangle of the axes, and what is in it."""

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
    """Draw observed against predicted risk of one class at π: of the predictions, and of the same ones stated at ρ.

    Args:
        log_probs: held-out predictions at π.
        target: labels, as columns of `log_probs`.
        population: π.
        sampling: ρ, the mix that a model without a correction would predict at.
        positive: the class.
        bins: groups of equal weight in the population.
    """
    uncorrected = retarget(log_probs, population, sampling)
    curves = {
        name: reliability_curve(table, target, population, bins=bins, positive=positive)
        for name, table in (("after", log_probs), ("before", uncorrected))
    }
    frame = _Frame.around(list(curves.values()))
    after, before = (float(np.sum(curve.weight * curve.predicted)) for curve in curves.values())
    alt = (
        f"Observed risk against predicted risk at the population, where it is {population[positive]:.3g}: on average the model "
        f"predicts {after:.3g}, and without the correction {before:.3g}."
    )
    return Drawing(frame.ticks(), [Series(name, frame.points(curve)) for name, curve in curves.items()], alt)


@dataclass(frozen=True)
class _Frame:
    """The range of log-odds of both axes, and where it is drawn."""

    low: float
    high: float

    @classmethod
    def around(cls, curves: list[ReliabilityCurve]) -> _Frame:
        shown = np.concatenate([np.concatenate([curve.predicted, curve.observed[curve.observed > 0]]) for curve in curves])
        shown = np.clip(shown[np.isfinite(shown)], _LOWEST, _HIGHEST)
        return cls(_logit(float(shown.min())) - 0.7, _logit(float(shown.max())) + 0.7)

    def points(self, curve: ReliabilityCurve) -> list[Point]:
        rows = zip(curve.predicted, curve.observed, curve.low, curve.high, strict=True)
        return [
            Point(self.x(float(predicted)), *(self.y(float(value)) for value in (observed, low, high)))
            for predicted, observed, low, high in rows
            if math.isfinite(observed)
        ]

    def ticks(self) -> list[Tick]:
        inside = [each for each in _TICKS if self.low <= _logit(each) <= self.high]
        return [Tick(f"{100 * each:g} %", self.x(each), self.y(each)) for each in inside]

    def x(self, share: float) -> float:
        return round(Drawing.left + self._place(share) * (Drawing.right - Drawing.left), 1)

    def y(self, share: float) -> float:
        return round(Drawing.bottom - self._place(share) * (Drawing.bottom - Drawing.top), 1)

    def _place(self, share: float) -> float:
        """Return where a share is between the ends of the axis, 0 to 1; beyond them, at the end."""
        return min(1.0, max(0.0, (_logit(share) - self.low) / (self.high - self.low)))


def _logit(share: float) -> float:
    share = min(max(share, 1e-300), 1 - 1e-16)
    return math.log(share) - math.log1p(-share)
