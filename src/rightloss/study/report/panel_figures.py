"""Figures of predictions: ROC curves with histograms as in the paper, and reliability.

Stage: `StudyResults` → `Panel`s: cells with the same data, net and training, over prevalences and losses → `Drawing`s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Float64
from scipy.special import expit, logit

from ...metrics import ReliabilityCurve, RocCurve, probability_histogram, reliability_curve, roc_curve
from ...metrics.plots import axes as plain_axes
from ...metrics.plots import faint, line_style, log_shares, shares
from ..pooled_predictions import Cell, cells
from ..results import StudyResults
from ..summary.wording import file_name, listed, one_in, panel_title, short_method
from .figures import Drawing, canvas, draw, grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RARE = 0.05  # below this prevalence most probabilities are near 0: the axis is linear in the log-odds
_MOST_COLUMNS = 4
_HISTOGRAM_BINS, _RELIABILITY_BINS = 24, 6
_TICKS = [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999]  # probabilities, on an axis of log-odds


@dataclass(frozen=True, eq=False)
class Column:
    """One prevalence of a panel.

    Attributes:
        rate: π of malignant nodules.
        cells: one for each method, in the config's order.
    """

    rate: float
    cells: tuple[Cell, ...]


@dataclass(frozen=True, eq=False)
class Panel:
    """Same data, minibatches, net, likelihood, start and inference.

    Attributes:
        title: the shared settings.
        columns: by prevalence, in the config's order.
    """

    title: str
    columns: tuple[Column, ...]


def panels_of(results: StudyResults) -> list[Panel]:
    """Return the panels in the config's order; none for ratings."""
    if results.config.task == "rating":
        return []
    # Folds of an unfinished study may have a single class, for which nothing can be drawn.
    found = [cell for cell in cells(results) if len(set(cell.labels)) == 2]
    groups = grouped(found, "start", "data", "minibatches", "net", "likelihood", "inference")
    return [Panel(panel_title(group[0].key, results.config), _columns(group)) for group in groups]


def _columns(group: list[Cell]) -> tuple[Column, ...]:
    return tuple(Column(float(some[0].population[-1]), tuple(some)) for some in grouped(group, "population"))


def roc_figure(panel: Panel) -> Drawing:
    """Draw ROC curves, and below them the predicted probabilities: a column per prevalence, a row of histograms per loss.

    More than four prevalences continue below, so that the figure fits a page.
    """
    rows = max(len(column.cells) for column in panel.columns)
    across = min(_MOST_COLUMNS, len(panel.columns))
    blocks = -(-len(panel.columns) // across)
    figure = canvas(3.3 * across + 0.3, blocks * (3.2 + 1.35 * rows))
    grid = figure.subplots(blocks * (rows + 1), across, squeeze=False, height_ratios=blocks * [2.5, *[1.0] * rows])
    for axes in grid.flat:
        axes.set_axis_off()
    for number, column in enumerate(panel.columns):
        block, place = divmod(number, across)
        top = block * (rows + 1)
        _roc(grid[top, place], column, place == 0)
        for row, cell in enumerate(column.cells):
            last = row == len(column.cells) - 1
            _histogram(grid[top + row + 1, place], cell, first=row == 0 and number == 0, last=last)
    rates = listed([one_in(column.rate) for column in panel.columns])
    return draw(
        figure,
        f"roc-{file_name(panel.title)}",
        panel.title,
        f"ROC curves and histograms of predicted probability at prevalences of {rates}; {panel.title}",
        "Top: ROC curves, averaged over folds and seeds, with the area under each. Below: histograms of the predictions for "
        "benign (solid) and malignant (dashed) nodules, one row per loss, each with its own scale. The dotted line is the "
        f"prevalence. Below a prevalence of {one_in(RARE)} the scale is linear in the log-odds: otherwise one bar would hold "
        "everything.",
    )


def _roc(axes: Axes, column: Column, first: bool) -> None:
    from ...metrics.plots import plot_roc

    curves = {short_method(cell.key): mean_roc(cell) for cell in column.cells}
    axes.set_title(f"Prevalence {one_in(column.rate)}", fontsize=10, fontweight="bold", loc="left")
    shown = {name: curve for name, curve in curves.items() if curve is not None}
    if not shown:
        return
    axes.set_axis_on()
    plot_roc(shown, axes)
    axes.set_xlabel("False positive rate", fontsize=8)
    axes.set_ylabel("True positive rate" if first else "", fontsize=8)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[1:] + handles[:1], labels[1:] + labels[:1], fontsize=7, frameon=False, loc="lower right", handlelength=2.6
    )


def _histogram(axes: Axes, cell: Cell, first: bool, last: bool) -> None:
    from ...metrics.plots import plot_probability_histogram

    rate = float(cell.population[-1])
    scale: Literal["log-odds", "probability"] = "log-odds" if rate < RARE else "probability"
    odds = cell.log_probs[:, 1] - cell.log_probs[:, 0]
    edges = _edges(odds, scale)
    found = probability_histogram(cell.log_probs, cell.labels, edges, scale=scale)
    axes.set_axis_on()
    plot_probability_histogram(found, axes, class_names=("benign", "malignant"))
    axes.set_title(short_method(cell.key), fontsize=8, loc="left", pad=3)
    axes.axvline(float(logit(rate)) if scale == "log-odds" else rate, **faint("prevalence"))
    axes.set_xlim(edges[0], edges[-1])
    if scale == "log-odds":
        _mark_probabilities(axes, edges)
    axes.tick_params(labelsize=7)
    axes.set_yticks([])
    axes.set_ylabel("")
    axes.set_xlabel("Predicted probability of malignancy" if last else "", fontsize=8)
    axes.legend(fontsize=7, frameon=False, loc="upper right").set_visible(first)


def _edges(odds: Float64[np.ndarray, " n"], scale: str) -> Float64[np.ndarray, " b"]:
    """Return bins from the lowest to the highest prediction, without the outer 0.5 % on either side."""
    finite = odds[np.isfinite(odds)]
    low, high = (float(each) for each in np.quantile(finite, [0.005, 0.995])) if len(finite) else (-1.0, 1.0)
    if scale == "probability":
        return np.linspace(0.0, max(float(expit(high)), 0.02), _HISTOGRAM_BINS + 1)
    return np.linspace(low, high if high > low else low + 1, _HISTOGRAM_BINS + 1)


def _mark_probabilities(axes: Axes, edges: Float64[np.ndarray, " b"]) -> None:
    """Label an axis of log-odds with probabilities, four at most."""
    inside = [p for p in _TICKS if edges[0] <= float(logit(p)) <= edges[-1]]
    inside = inside[:: max(1, -(-len(inside) // 4))]
    shown = inside if len(inside) > 1 else [float(f"{float(expit(edges[place])):.1g}") for place in (2, -3)]
    axes.set_xticks([float(logit(p)) for p in shown], labels=[f"{100 * p:g} %" for p in shown])


def mean_roc(cell: Cell) -> RocCurve | None:
    """Average the ROC curves of folds and seeds, since their scores are not comparable; None if no fold has both classes.

    The true positive rates are averaged at each false positive rate. The area of the mean is the mean of the areas: at a step
    both ends are averaged, so that nothing is lost between the points.
    """
    curves = [roc_curve(cell.log_probs[part], cell.labels[part]) for part in _runs(cell) if len(set(cell.labels[part])) == 2]
    if not curves:
        return None
    grid = np.unique(np.concatenate([curve.false_positive_rate for curve in curves]))
    ends = [np.mean([_rates_at(curve, grid, side) for curve in curves], 0) for side in ("left", "right")]
    x, y = np.repeat(grid, 2), np.stack(ends, 1).reshape(-1)
    return RocCurve(x, y, np.full(len(x), np.nan), float(np.mean([curve.auc for curve in curves])), 1)


def _runs(cell: Cell) -> list[np.ndarray]:
    """Return the rows that each net predicted: one set per fold and seed."""
    pairs = np.stack([cell.seed, cell.fold], 1)
    return [np.flatnonzero((pairs == pair).all(1)) for pair in np.unique(pairs, axis=0)]


def _rates_at(curve: RocCurve, grid: Float64[np.ndarray, " m"], side: str) -> Float64[np.ndarray, " m"]:
    """Return the true positive rate at each point of the grid; where the curve steps up, the lower (left) or upper end."""
    x, y = curve.false_positive_rate, curve.true_positive_rate
    found = np.interp(grid, x, y)
    at = np.searchsorted(x, grid, "left") if side == "left" else np.searchsorted(x, grid, "right") - 1
    exact = x[at] == grid
    found[exact] = y[at[exact]]
    return found


def reliability_figure(panel: Panel) -> Drawing:
    """Draw observed against predicted shares: a row per prevalence, a column per loss."""
    across = max(len(column.cells) for column in panel.columns)
    figure = canvas(2.15 * across + 0.5, 2.25 * len(panel.columns) + 0.3)
    grid = figure.subplots(len(panel.columns), across, squeeze=False)
    for row, column in zip(grid, panel.columns, strict=True):
        _row(list(row), column, column is panel.columns[-1])
    rates = listed([one_in(column.rate) for column in panel.columns])
    return draw(
        figure,
        f"reliability-{file_name(panel.title)}",
        panel.title,
        f"Observed against predicted share of malignant nodules, by loss, at prevalences of {rates}; {panel.title}",
        "Each point is a bin of predictions; all bins have the same weight in the population. On the dotted line, predicted "
        "and observed shares agree; above it the net predicts too little, below it too much. Bars are 95 % limits that treat "
        "nodules as independent. On logarithmic axes, a hollow point on the lower edge is a bin without a malignant nodule.",
    )


def _row(axes: list[Axes], column: Column, last: bool) -> None:
    curves = [reliability_curve(cell.log_probs, cell.labels, column.rate, bins=_RELIABILITY_BINS) for cell in column.cells]
    log = column.rate < RARE
    low, high = _axis_ends(curves) if log else (0.0, 1.0)
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
    """Set axes from 0 to 1, or logarithmic with three ticks at most."""
    if not log:
        shares(axes, "xy")
        return
    log_shares(axes, "xy", low, high)
    powers = [power for power in range(-8, 1) if low <= 10.0**power <= high]
    ticks = [10.0**power for power in powers[:: max(1, -(-len(powers) // 3))]]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, labels=[f"{100 * tick:g} %" for tick in ticks])
    axes.minorticks_off()


def _axis_ends(curves: list[ReliabilityCurve]) -> tuple[float, float]:
    """Return axis limits that show all predictions and all observed shares above 0."""
    shown = np.concatenate([np.concatenate([curve.predicted, curve.observed, curve.high]) for curve in curves])
    low = max(float(shown[shown > 0].min()), 1e-7)
    return low / 1.5, min(1.0, 1.5 * float(shown.max()))
