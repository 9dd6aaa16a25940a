"""The three charts of a card: calibration, predictive values by prevalence, and net benefit by threshold.

Stage: named predictions, labels, π, or an answer of a card's numbers → SVG by `svg`, or a sentence that says why there is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit, logit

from ..metrics import smooth_calibration_curve
from .svg import Axis, Series, plot, tag
from .words import number, percent

if TYPE_CHECKING:
    from markupsafe import Markup

    from ..metrics.sample import Mix, Numbers, Predictions
    from .numbers import Plain

_LOWEST, _HIGHEST = 1e-6, 0.9999


def calibration_plot(
    predictions: Mapping[str, Predictions], target: Numbers, prevalence: Mix, positive: int, groups: Numbers | None = None
) -> Markup:
    """Return the plot of smooth calibration curves; those that cannot be fitted are left out.

    Args:
        predictions: log-probabilities by their name in the legend.
        target: labels.
        prevalence: π, as in `metrics.smooth_calibration_curve`.
        positive: the class.
        groups: ids of patients, if rows are not independent.
    """
    curves = {}
    for name, log_probs in predictions.items():
        try:
            curves[name] = smooth_calibration_curve(log_probs, target, prevalence, positive=positive, groups=groups)
        except ValueError:  # predictions that are all equal, or separate the classes
            continue
    if not curves:
        reason = "No calibration curve: predictions are all equal, or separate the classes of these rows."
        return tag("p", reason, class_="note")
    return curve_plot(curves, next(iter(curves.values())).prevalence)


def curve_plot(curves: Mapping[str, Any], rate: float) -> Markup:
    """Return the plot of fitted curves, which have `predicted`, `observed`, `low`, `high` and `ici`, where `rate` have it."""
    values = np.concatenate([[*each.predicted, *each.observed] for each in curves.values()])
    axes = [Axis.around(name, np.clip(values, _LOWEST, _HIGHEST), "log-odds") for name in ("predicted risk", "observed risk")]
    lines = [
        Series(name, each.predicted, each.observed, each.low, each.high, style=i)
        for i, (name, each) in enumerate(curves.items())
    ]
    distances = "; ".join(f"{name}: {percent(each.ici)}" for name, each in curves.items())
    alt = f"Observed against predicted risk where {percent(rate)} have it; mean distance from being right: {distances}."
    ends = [axes[0].low, axes[0].high]
    return plot(axes[0], axes[1], [Series("calibrated", ends, ends, style=None), *lines[::-1]], alt=alt)


def value_plot(answer: Plain, question: Plain) -> Markup:
    """Return PPV and NPV by prevalence, of flagging the same people."""
    rate, figures = question["prevalence"]["value"], answer["figures"]
    low, high = max(1e-6, rate / 30), min(0.6, 30 * rate)
    grid = expit(np.linspace(logit(low), logit(high), 61))

    def after(ratio: float | None, unbounded: bool) -> np.ndarray:
        if ratio is None:
            return np.full(len(grid), 1.0 if unbounded else np.nan)
        return expit(logit(grid) + math.log(ratio)) if ratio > 0 else np.zeros(len(grid))

    plus, minus = (
        {part: after(figures[name][part], figures[name]["low"] is not None) for part in ("value", "low", "high")}
        for name in ("lr_plus", "lr_minus")
    )
    series = [
        Series("NPV: of the others, do not have it", grid, 1 - minus["value"], 1 - minus["high"], 1 - minus["low"], style=2),
        Series("PPV: of the flagged, have it", grid, plus["value"], plus["low"], plus["high"]),
    ]
    x = Axis("how frequent it is", low, high, "log-odds", words=percent)
    series = [each for each in series if np.isfinite(each.y).any()]
    return plot(x, Axis("share", 0, 1), series, alt="Predictive values by prevalence, with intervals as bands.", marker=True)


def benefit_plot(answer: Plain, question: Plain) -> Markup:
    """Return the decision curve, at the card's own prevalence."""
    curve = {name: np.array(each, dtype=float) for name, each in answer["decision"].items()}
    t, rate, unit = curve["threshold"], question["prevalence"]["value"], question["people"]
    top = unit * max(float(np.nanmax(curve["high"])), rate)
    everybody = curve["treat_all"] * unit
    series = [
        Series("flag nobody", [t[0], t[-1]], [0, 0], style=None),
        Series("flag everybody", t, np.where(everybody < -0.35 * top, np.nan, everybody), style=1),
        Series("flag by the model", t, unit * curve["net_benefit"], unit * curve["low"], unit * curve["high"]),
    ]
    x = Axis("flag from this risk on", float(t[0]), float(t[-1]), "log-odds", words=percent)
    y = Axis(f"net benefit among {unit:,} people", -0.35 * top, 1.05 * top, words=number)
    alt = f"Net benefit by threshold where {percent(rate)} have it: of the model, of flagging everybody and of flagging nobody."
    return plot(x, y, series, alt=alt, marker=True)
