"""The calibration plot of the report: predicted against observed risk, in log-odds.

Stage: held-out log-probabilities, labels, π, ρ → coordinates that the report's template draws.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import expit, logit

from ..predictive import retarget

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

_TICKS = (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
_LOWEST, _HIGHEST = 1e-6, 0.9999
_FEWEST = 3  # minimum rows of the class, and of the rest, in a group
_Z = 1.959964  # of 95 % intervals
_SIZE = {"width": 480, "height": 400, "left": 62, "right": 468, "top": 12, "bottom": 350}  # the last four are those of the axes


def calibration_drawing(
    log_probs: Float64[np.ndarray, "n k"],
    target: Int64[np.ndarray, " n"],
    population: Float64[np.ndarray, " k"],
    sampling: Float64[np.ndarray, " k"],
    positive: int,
    bins: int = 10,
) -> dict[str, Any]:
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
    shown = np.concatenate([each for curve in curves.values() for each in (curve.predicted, curve.observed)])
    ends = logit(np.clip(shown[np.isfinite(shown)], _LOWEST, _HIGHEST))
    low, high = ends.min() - 0.7, ends.max() + 0.7

    def place(shares: np.ndarray, start: str, end: str) -> np.ndarray:
        """Return positions of fractions on an axis; values beyond the ends are at the end."""
        parts = np.clip((logit(np.clip(shares, 1e-300, 1 - 1e-16)) - low) / (high - low), 0, 1)
        return np.round(_SIZE[start] + parts * (_SIZE[end] - _SIZE[start]), 1)

    series = []
    for name, curve in curves.items():
        columns = [place(curve.predicted, "left", "right"), *(place(each, "bottom", "top") for each in curve[1:])]
        points = [dict(zip(("x", "y", "low", "high"), point, strict=True)) for point in np.column_stack(columns).tolist()]
        path = " ".join(f"{point['x']:.1f},{point['y']:.1f}" for point in points)
        series.append({"name": name, "points": points, "path": path})
    inside = np.array([each for each in _TICKS if low <= logit(each) <= high])
    both = zip(inside, place(inside, "left", "right").tolist(), place(inside, "bottom", "top").tolist(), strict=True)
    ticks = [{"label": f"{100 * share:g} %", "x": x, "y": y} for share, x, y in both]
    return {**_SIZE, "ticks": ticks, "series": series, "alt": alt}


class RiskCurve(NamedTuple):
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
) -> RiskCurve:
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
    odds = logit(population[positive]) + np.log(shares[positive] / rest)
    observed, low, high = (expit(odds + z * error) for z in (0.0, -_Z, _Z))
    return RiskCurve(predicted, observed, low, high)


def _groups(probability: np.ndarray, own: np.ndarray, bins: int) -> np.ndarray:
    """Return the group of each row, from quantiles of the class's rows; groups with too few rows are merged with the next."""
    shares = np.linspace(0, 1, min(bins, max(1, int(own.sum()) // _FEWEST)) + 1)[1:-1]
    edges = np.unique(np.quantile(probability[own], shares))
    kept: list[float] = []
    for edge in [*edges.tolist(), np.inf]:
        inside = (probability >= (kept[-1] if kept else -np.inf)) & (probability < edge)
        if min(int((inside & own).sum()), int((inside & ~own).sum())) >= _FEWEST:
            kept.append(edge)
    return np.searchsorted(np.array(kept[:-1]), probability, side="right")
