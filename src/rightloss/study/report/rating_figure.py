"""Ratings, readers' against predicted: what is taken for what, and how often the answer is off by no more than one.

Stage: `StudyResults`, `Summary` → `Drawing`s: a column for each likelihood.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float64

from ...lidc.votes import rounded_mean
from ...metrics import Figure as Number
from ...metrics.plots import axes as plain_axes
from ..paper import RATINGS
from ..pooled_predictions import Cell, cells
from ..results import StudyResults
from ..summary import Summary
from ..summary.words import LIKELIHOODS, listed
from .drawing import Drawing, drawn
from .words import chief_loss, file_name, panel_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEVELS = 5


def rating_figures(results: StudyResults, summary: Summary) -> list[Drawing]:
    """One for each data set and net, of the default loss."""
    if results.config.task != "rating":
        return []
    grouped: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells(results):
        if cell.key.loss == chief_loss(results.config) and cell.key.marginal == results.config.marginals[0]:
            key = (cell.key.data, cell.key.minibatches, cell.key.net, cell.key.inference)
            grouped.setdefault(key, []).append(cell)
    return [_figure(some, summary) for some in grouped.values()]


def confusion(cell: Cell) -> Float64[np.ndarray, "5 5"]:
    """Shares of the nodules of each of the readers' rounded mean ratings (rows) by the prediction's (columns)."""
    truth = rounded_mean(cell.data.votes[cell.rows]).numpy()
    answer = rounded_mean(np.exp(cell.log_probs)).numpy()
    counts = np.zeros((_LEVELS, _LEVELS))
    np.add.at(counts, (truth, answer), 1)
    return counts / np.maximum(counts.sum(1, keepdims=True), 1)


def _figure(some: list[Cell], summary: Summary) -> Drawing:
    from matplotlib.figure import Figure

    figures = {row.key: row.figures for row in summary.rows}
    picture = Figure(figsize=(2.7 * len(some) + 0.4, 4.9), dpi=150, layout="constrained")
    grid = picture.subplots(2, len(some), squeeze=False, height_ratios=[1.5, 1])
    for place, cell in enumerate(some):
        grid[0, place].set_title(LIKELIHOODS[cell.key.likelihood], fontsize=10, fontweight="bold", loc="left")
        _matrix(grid[0, place], confusion(cell), place == 0)
        near = [figures[cell.key][f"mean_off_by_one_recall_{level + 1}"] for level in range(_LEVELS)]
        _bars(plain_axes(grid[1, place]), near, cell.key.likelihood == "onion-peeling", place == 0)
    names = [LIKELIHOODS[cell.key.likelihood] for cell in some]
    title = panel_title(some[0].key, summary.config, without=("likelihood",))
    return drawn(
        picture,
        f"ratings-{file_name(title)}",
        title,
        f"Confusion matrices of readers' and predicted ratings, and off-by-one shares, for {listed(names)}",
        "Top: of the nodules that readers rated so (rounded mean), the percentage for each predicted rating. Bottom: how "
        "often the prediction is off by no more than one, with 95 % intervals by patient; crosses are the paper's, for "
        "onion peeling.",
    )


def _matrix(axes: Axes, shares: Float64[np.ndarray, "5 5"], first: bool) -> None:
    axes.imshow(shares, cmap="Greys", vmin=0, vmax=1, aspect="equal")
    for (row, column), share in np.ndenumerate(shares):
        ink = "#fefefe" if share > 0.5 else "#111111"  # on the square, whatever the page's colours
        axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", fontsize=8, color=ink)
    axes.set_xticks(range(_LEVELS), labels=[str(level + 1) for level in range(_LEVELS)], fontsize=8)
    axes.set_yticks(range(_LEVELS), labels=[str(level + 1) for level in range(_LEVELS)], fontsize=8)
    axes.set_xlabel("predicted", fontsize=8)
    axes.set_ylabel("readers" if first else "", fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _bars(axes: Axes, near: list[Number], has_paper: bool, first: bool) -> None:
    value, low, high = (np.array([getattr(figure, name) for figure in near]) for name in ("value", "low", "high"))
    reach = np.nan_to_num(np.stack([value - low, high - value]), nan=0.0)
    where = np.arange(1, _LEVELS + 1)
    axes.bar(where, np.nan_to_num(value), 0.6, color=("#0072B2", 0.25), edgecolor="#0072B2")
    axes.errorbar(where, np.nan_to_num(value), reach, linestyle="none", color="#000000", elinewidth=0.9, capsize=2.5)
    if has_paper:
        paper = [RATINGS[f"off_by_one_recall_{level}"] for level in where]
        axes.plot(where, paper, linestyle="none", marker="x", markersize=6, color="#D55E00", label="the paper")
        axes.legend(fontsize=7, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0)
    axes.set_ylim(0, 1.05)
    axes.set_xticks(where)
    axes.tick_params(labelsize=8)
    axes.set_xlabel("readers' rating", fontsize=8)
    axes.set_ylabel("off by one at most" if first else "", fontsize=8)
