"""The calibration of one class at π as a plot: observed against predicted risk, in log-odds, with a band.

Stage: named predictions, labels, π → SVG by `plots`, or a sentence that says why there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..metrics import smooth_calibration_curve
from .plots import Axis, Series, plot, tag
from .words import percent

if TYPE_CHECKING:
    from markupsafe import Markup

    from ..metrics.sample import Mix, Numbers, Predictions

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
        return tag(
            "p", "No calibration curve: predictions are all equal, or separate the classes of these rows.", class_="note"
        )
    rate = next(iter(curves.values())).prevalence
    return curve_plot(curves, rate)


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
