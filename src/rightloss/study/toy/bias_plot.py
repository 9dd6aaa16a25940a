"""The figure of the three kinds of sampling bias: the people selected, and what each remedy then loses.

Stage: `BiasRow`s, `BiasConfig` → matplotlib figure → PNG and SVG.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...atomic_files import whole_path
from .biases import CURVED, MODELS, BiasConfig, BiasRow
from .population import BY_BOTH, BY_FEATURE, BY_LABEL, CurvedRisk, Selection, met

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_PEOPLE = 500  # in the small pictures
_LEAST = 2e-5  # nats: the left end of the axis
_WORDS = {
    BY_FEATURE.name: "who has the symptom comes",
    BY_LABEL.name: "cases and controls",
    BY_BOTH.name: "clear cases, healthy volunteers",
}
_WRONG, _RIGHT = "#D55E00", "#0072B2"  # also distinguished by the filling


def plot_biases(rows: list[BiasRow], config: BiasConfig | None = None) -> Canvas:
    """Draw a column per kind of selection: above the people selected, below what each remedy loses, for either model."""
    import matplotlib.figure

    config = BiasConfig() if config is None else config
    figure = matplotlib.figure.Figure(figsize=(10, 8.2), dpi=150, layout="constrained")
    axes = figure.subplots(3, len(config.selections), height_ratios=(1.15, 1, 1), squeeze=False)
    for column, selection in enumerate(config.selections):
        _show_people(axes[0, column], config.population, selection)
        for line, model in enumerate(MODELS, start=1):
            shown = [row for row in rows if (row.selection, row.model) == (selection.name, model)]
            _show_remedies(axes[line, column], shown, first=column == 0)
    _explain(figure, axes[0, 0], axes[1, 0], axes[2, 0])
    return figure


def save_biases(rows: list[BiasRow], config: BiasConfig, paths: tuple[Path, ...]) -> None:
    """Write the figure to each path, in the format of its suffix; the same rows give the same bytes."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "biases"}):
        figure = plot_biases(rows, config)
        for path in paths:
            with whole_path(path) as temporary:
                kind = path.suffix[1:]
                figure.savefig(temporary, format=kind, metadata={"Date": None} if kind == "svg" else None)


def _show_people(ax: Axes, population: CurvedRisk, selection: Selection) -> None:
    x, y, selected = met(population, selection, _PEOPLE, torch.Generator().manual_seed(0))
    ax.scatter(x[:, 0], x[:, 1], s=3, color="0.75", linewidths=0, label="not selected")
    for label, marker, colour in ((0, "o", "none"), (1, "^", "black")):
        shown = x[selected & (y == label)]
        style: dict[str, Any] = {
            "marker": marker,
            "facecolors": colour,
            "edgecolors": "black",
            "label": f"selected, class {label}",
        }
        ax.scatter(shown[:, 0], shown[:, 1], s=16, linewidths=0.7, **style)
    across = np.linspace(-3.2, 3.2, 100)
    height = -population.log_odds(np.stack([across, 0 * across], 1)) / population.slopes[1]
    ax.plot(across, height, color="black", linestyle="--", linewidth=0.9, label="a risk of one half")
    words = _WORDS.get(selection.name)
    ax.set_title(f"Selected {selection.name}" + (f":\n{words}" if words else ""), fontsize=10)
    ax.set(xlim=(-3.2, 3.2), ylim=(-3.2, 3.2), xticks=[], yticks=[], xlabel="x₁", ylabel="x₂")


def _show_remedies(ax: Axes, rows: list[BiasRow], first: bool) -> None:
    ax.axvspan(_LEAST, rows[0].noise, color="0.92", linewidth=0)
    for place, row in enumerate(rows):
        colour = _RIGHT if row.right else _WRONG
        ends = [max(end, _LEAST) for end in (row.beyond_low, row.beyond_high)]
        ax.plot(ends, [place, place], color=colour, linewidth=2)
        filling = colour if row.right else "white"
        ax.plot(max(row.beyond, _LEAST), place, "o", color=colour, markerfacecolor=filling, markersize=6)
    ax.set_xscale("log")
    ax.set_xlim(_LEAST, 0.6)
    ax.set_xticks([1e-4, 1e-3, 1e-2, 1e-1], ["0.0001", "0.001", "0.01", "0.1"])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), [row.remedy for row in rows] if first else [""] * len(rows))
    ax.grid(axis="y", color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(labelsize=8.5)
    ax.spines[["top", "right"]].set_visible(False)


def _explain(figure: Canvas, people: Axes, curved: Axes, straight: Axes) -> None:
    people.legend(loc="center right", bbox_to_anchor=(-0.12, 0.5), fontsize=9, frameon=False)
    curved.set_ylabel(f"{CURVED} model:\ncan express the truth", fontsize=10)
    straight.set_ylabel("straight model:\ncannot", fontsize=10)
    figure.supxlabel(
        "expected log-likelihood lost in the population, beyond the best this model can do (nats; further left is better)\n"
        "filled: no more than noise (the grey zone); hollow: wrong; bars: 95 % intervals over repetitions",
        fontsize=9.5,
    )
