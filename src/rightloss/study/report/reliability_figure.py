"""Whether predictions come true, loss by loss and prevalence by prevalence.

Stage: `Panel` → `Drawing`: a row for each prevalence, a column for each loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...metrics import ReliabilityCurve, reliability_curve
from ...metrics.plots import axes as plain_axes
from ...metrics.plots import faint, line_style, log_shares, shares
from ..summary.words import listed
from .comparison_figure import RARE
from .drawing import Drawing, drawn
from .panels import Column, Panel
from .words import file_name, one_in, short_method

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS = 6


def reliability_figure(panel: Panel) -> Drawing:
    from matplotlib.figure import Figure

    across = max(len(column.cells) for column in panel.columns)
    size = (2.15 * across + 0.5, 2.25 * len(panel.columns) + 0.3)
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    grid = figure.subplots(len(panel.columns), across, squeeze=False)
    for row, column in zip(grid, panel.columns, strict=True):
        _row(list(row), column, column is panel.columns[-1])
    rates = listed([one_in(column.rate) for column in panel.columns])
    return drawn(
        figure,
        f"reliability-{file_name(panel.title)}",
        panel.title,
        f"Observed against predicted share of malignant nodules, by loss, at prevalences of {rates}; {panel.title}",
        "Each point is a bin of predictions, all of the same weight in the population: on the dotted line what was "
        "predicted comes true; above it the net promises too little, below it too much. Bars are 95 % limits that take "
        "nodules as independent. Where the axes are logarithmic, a hollow point on the lower edge is a bin without a "
        "malignant nodule.",
    )


def _row(axes: list[Axes], column: Column, last: bool) -> None:
    curves = [reliability_curve(cell.log_probs, cell.labels, column.rate, bins=_BINS) for cell in column.cells]
    log = column.rate < RARE
    low, high = _ends(curves) if log else (0.0, 1.0)
    for place, (each, cell, curve) in enumerate(zip(axes, column.cells, curves, strict=False)):
        _tile(each, place, curve, low, high)
        each.set_title(short_method(cell.key), fontsize=8, loc="left", pad=4)
        _scale(each, low, high, log)
        each.tick_params(labelsize=7, labelleft=place == 0)
        each.set_xlabel("predicted" if last else "", fontsize=8)
    axes[0].set_ylabel(f"prevalence {one_in(column.rate)}\nobserved", fontsize=8)
    for each in axes[len(curves) :]:
        each.set_axis_off()


def _tile(axes: Axes, place: int, curve: ReliabilityCurve, low: float, high: float) -> None:
    plain_axes(axes).plot([low, high], [low, high], **faint("as predicted"))
    style = line_style(place, len(curve.predicted))
    style.update(linewidth=1.2, markevery=1, markersize=4)
    x, y = np.maximum(curve.predicted, low), np.maximum(curve.observed, low)
    bars = np.stack([y - np.maximum(curve.low, low), np.maximum(curve.high, low) - y])
    seen = curve.observed > low if low > 0 else np.ones(len(y), dtype=bool)
    axes.errorbar(x[seen], y[seen], bars[:, seen], elinewidth=0.8, capsize=1.5, **style)
    style.update(linestyle="none", markerfacecolor="white")
    axes.errorbar(x[~seen], 1.15 * y[~seen], bars[:, ~seen], elinewidth=0.8, capsize=1.5, **style)


def _scale(axes: Axes, low: float, high: float, log: bool) -> None:
    """From 0 to 1, or logarithmic with three marks at most."""
    if not log:
        shares(axes, "xy")
        return
    log_shares(axes, "xy", low, high)
    powers = [power for power in range(-8, 1) if low <= 10.0**power <= high]
    ticks = [10.0**power for power in powers[:: max(1, -(-len(powers) // 3))]]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, labels=[f"{100 * tick:g} %" for tick in ticks])
    axes.minorticks_off()


def _ends(curves: list[ReliabilityCurve]) -> tuple[float, float]:
    """Of axes that show all predictions, and all that was observed but 0."""
    shown = np.concatenate([np.concatenate([curve.predicted, curve.observed, curve.high]) for curve in curves])
    low = max(float(shown[shown > 0].min()), 1e-7)
    return low / 1.5, min(1.0, 1.5 * float(shown.max()))
