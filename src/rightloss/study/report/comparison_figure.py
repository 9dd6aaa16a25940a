"""The paper's figure: ROC curves above, below them the predicted probabilities of benign and malignant nodules.

Stage: `Panel` → `Drawing`: a column for each prevalence, a row of histograms for each loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Float64

from ...metrics import probability_histogram
from ...metrics.one_vs_rest import expit, logit
from ...metrics.plots import faint
from ..pooled_predictions import Cell
from ..summary.words import listed
from .drawing import Drawing, drawn
from .panels import Column, Panel
from .roc import mean_roc
from .words import file_name, one_in, short_method

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RARE = 0.05  # below this prevalence most probabilities are near 0: the axis is even in the log-odds
_BINS = 24
_ODDS_OF_TICKS = [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999]


def comparison_figure(panel: Panel) -> Drawing:
    from matplotlib.figure import Figure

    rows = max(len(column.cells) for column in panel.columns)
    size = (3.3 * len(panel.columns) + 0.3, 3.2 + 1.35 * rows)
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    grid = figure.subplots(rows + 1, len(panel.columns), squeeze=False, height_ratios=[2.5, *[1.0] * rows])
    for place, column in enumerate(panel.columns):
        _roc(grid[0, place], column, place == 0)
        for row in range(rows):
            axes = grid[row + 1, place]
            if row < len(column.cells):
                _histogram(axes, column.cells[row], first=row == 0 and place == 0, last=row == len(column.cells) - 1)
            else:
                axes.set_axis_off()
    rates = listed([one_in(column.rate) for column in panel.columns])
    return drawn(
        figure,
        f"roc-{file_name(panel.title)}",
        panel.title,
        f"ROC curves and histograms of predicted probability at prevalences of {rates}; {panel.title}",
        "Top: ROC curves, the mean over folds and seeds, with the area under each. Below: how the predictions for benign "
        "(solid) and malignant (dashed) nodules are spread, a row for each loss on a scale of its own; the dotted line is "
        f"the prevalence. Below a prevalence of {one_in(RARE)} the scale is even in the log-odds, where all would otherwise "
        "lie in one bar.",
    )


def _roc(axes: Axes, column: Column, first: bool) -> None:
    from ...metrics.plots import plot_roc

    curves = {short_method(cell.key): mean_roc(cell) for cell in column.cells}
    axes.set_title(f"Prevalence {one_in(column.rate)}", fontsize=10, fontweight="bold", loc="left")
    shown = {name: curve for name, curve in curves.items() if curve is not None}
    if not shown:
        axes.set_axis_off()
        return
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
    """From the lowest prediction to the highest, but for one in two hundred on either side."""
    finite = odds[np.isfinite(odds)]
    low, high = (float(each) for each in np.quantile(finite, [0.005, 0.995])) if len(finite) else (-1.0, 1.0)
    if scale == "probability":
        return np.linspace(0.0, max(float(expit(high)), 0.02), _BINS + 1)
    return np.linspace(low, high if high > low else low + 1, _BINS + 1)


def _mark_probabilities(axes: Axes, edges: Float64[np.ndarray, " b"]) -> None:
    """The log-odds' axis with probabilities on it: four at most."""
    inside = [p for p in _ODDS_OF_TICKS if edges[0] <= float(logit(p)) <= edges[-1]]
    inside = inside[:: max(1, -(-len(inside) // 4))]
    shown = inside if len(inside) > 1 else [float(f"{float(expit(edges[place])):.1g}") for place in (2, -3)]
    axes.set_xticks([float(logit(p)) for p in shown], labels=[f"{100 * p:g} %" for p in shown])
