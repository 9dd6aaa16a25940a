"""Figures with their intervals: over prevalences, and inference by inference.

Stage: `Summary` → `Drawing`s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...metrics.plots import axes as plain_axes
from ...metrics.plots import faint, line_style, log_shares
from ..methods import METHODS
from ..pooled_predictions import CellKey
from ..summary import Row, Summary
from ..summary.contract import CONSTANT
from ..summary.words import INFERENCES, net, source
from .drawing import Drawing, drawn
from .words import chief_loss, file_name, one_in, panel_title, short_method

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SKILL = "Gain over always answering π\n(share of what is to be gained)"
_LOWEST = -1.0  # of the skill's axis


def prevalence_figures(summary: Summary) -> list[Drawing]:
    """Where there are three prevalences or more: a figure for each panel with a line for each loss, and where there are several
    nets in a study of metadata one with a line for each net."""
    if summary.config.task == "rating" or len(summary.config.populations) < 3:
        return []
    drawings = []
    if summary.config.task == "balanced" and len(summary.config.nets) > 1:
        rows = [row for row in summary.rows if row.key.loss == chief_loss(summary.config)]
        for some in _grouped(rows, ("data", "minibatches", "inference")):
            title = ", ".join([source(some[0].key.data), METHODS[some[0].key.loss].title])
            drawings.append(_over_prevalence(some, lambda key: net(key, summary.config), "nets", f"By net: {title}"))
    if len(summary.config.losses) > 1:
        rows = [row for row in summary.rows if row.key.loss != CONSTANT]
        for some in _grouped(rows, ("data", "minibatches", "net", "likelihood", "inference")):
            title = panel_title(some[0].key, summary.config)
            drawings.append(_over_prevalence(some, short_method, "prevalences", f"By loss: {title}"))
    return drawings


def inference_figures(summary: Summary) -> list[Drawing]:
    """Where there are several inferences: expected log-likelihood, a row for each and a column for each prevalence."""
    if summary.config.task == "rating" or len(summary.config.inferences) < 2:
        return []
    rows = [row for row in summary.rows if row.key.loss != CONSTANT]
    return [_inferences(some, summary) for some in _grouped(rows, ("data", "minibatches", "net"))]


def _grouped(rows: Sequence[Row], names: tuple[str, ...]) -> list[list[Row]]:
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(getattr(row.key, name) for name in names), []).append(row)
    return list(found.values())


def _over_prevalence(rows: Sequence[Row], line: Callable[[CellKey], str], name: str, title: str) -> Drawing:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.6, 3.9), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    lines = list(dict.fromkeys(line(row.key) for row in rows))
    for axes, measure in ((left, "auc"), (right, "skill")):
        _curves(plain_axes(axes), [(each, [row for row in rows if line(row.key) == each]) for each in lines], measure)
    left.set_ylabel("AUC", fontsize=9)
    right.set_ylabel(_SKILL, fontsize=9)
    right.axhline(0, **faint("always answering π"))
    right.set_ylim(bottom=max(_LOWEST, right.get_ylim()[0]))
    figure.legend(
        *left.get_legend_handles_labels(), fontsize=8, frameon=False, loc="outside lower center", ncols=min(5, len(lines))
    )
    return drawn(
        figure,
        f"{name}-{file_name(title)}",
        title,
        f"AUC and gain in expected log-likelihood over prevalences. {title}",
        "Left: how well malignant nodules are ranked above benign ones (AUC, the mean over folds). Right: expected "
        "log-likelihood, as the share of what there is to gain over always answering the prevalence: 0 is no gain, 1 would "
        f"be certainty; what lies below −{-_LOWEST:g} is not shown. Bars are 95 % intervals by patient. {title}.",
    )


def _curves(axes: Axes, lines: list[tuple[str, list[Row]]], measure: str) -> None:
    rates = sorted({row.key.population for _, rows in lines for row in rows if row.key.population is not None})
    for place, (name, rows) in enumerate(lines):
        rows = sorted((row for row in rows if row.key.population is not None), key=lambda row: row.key.population or 0.0)
        beside = 1.06 ** (place - (len(lines) - 1) / 2)  # so that no bar hides another
        x = np.array([row.key.population or math.nan for row in rows]) * beside
        y, bars = _bars(rows, measure)
        style = line_style(place, len(x))
        style.update(markevery=1, linewidth=1.2)
        axes.errorbar(x, y, bars, label=name, elinewidth=0.9, capsize=2, **style)
    log_shares(axes, "x", rates[0] / 1.5, min(1.0, rates[-1] * 1.5))
    axes.minorticks_off()
    axes.set_xlabel("Prevalence", fontsize=9)


def _bars(rows: Sequence[Row], measure: str) -> tuple[Any, Any]:
    """Values, and how far the interval reaches down and up; NaN where there is none."""
    value, low, high = (np.array([getattr(row.figures[measure], end) for row in rows]) for end in ("value", "low", "high"))
    finite = np.isfinite(value)
    value = np.where(finite, value, np.nan)
    return value, np.nan_to_num(np.stack([value - low, high - value]), nan=0.0, posinf=0.0, neginf=0.0)


def _inferences(rows: list[Row], summary: Summary) -> Drawing:
    from matplotlib.figure import Figure

    rates = list(dict.fromkeys(row.key.population for row in rows))
    names = list(dict.fromkeys(row.key.inference for row in rows))
    methods = list(dict.fromkeys(short_method(row.key) for row in rows))
    height = 1.2 + len(names) * (0.16 * len(methods) + 0.14)
    figure = Figure(figsize=(2.8 * len(rates) + 0.8, height), dpi=150, layout="constrained")
    grid = figure.subplots(1, len(rates), squeeze=False)[0]
    for axes, rate in zip(grid, rates, strict=True):
        some = [row for row in rows if row.key.population == rate]
        _dots(plain_axes(axes), some, names, methods)
        blind = next(
            row
            for row in summary.rows
            if (row.key.data, row.key.population, row.key.loss) == (rows[0].key.data, rate, CONSTANT)
        )
        axes.axvline(blind.figures["expected_log_likelihood"].value, **faint("always answering π"))
        axes.set_title("own shares" if rate is None else f"Prevalence {one_in(rate)}", fontsize=9, loc="left")
        axes.set_xlabel("Expected log-likelihood", fontsize=8)
        axes.set_yticks(
            range(len(names)), labels=[INFERENCES[name] for name in names] if axes is grid[0] else [""] * len(names)
        )
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.tick_params(labelsize=8)
        axes.locator_params(axis="x", nbins=4)
    figure.legend(*grid[0].get_legend_handles_labels(), fontsize=8, frameon=False, loc="outside lower center", ncols=3)
    title = panel_title(rows[0].key, summary.config, without=("inference",))
    return drawn(
        figure,
        f"inferences-{file_name(title)}",
        title,
        f"Expected log-likelihood by way of inference and loss, at {len(rates)} prevalences",
        "Expected log-likelihood of each way of inference, a mark for each loss, with 95 % intervals by patient: further "
        "to the right is better. The dotted line is always answering the prevalence. Each prevalence has a scale of its "
        "own.",
    )


def _dots(axes: Axes, rows: list[Row], names: list[str], methods: list[str]) -> None:
    for place, method in enumerate(methods):
        own = [row for row in rows if short_method(row.key) == method]
        y = [names.index(row.key.inference) + 0.72 * ((place + 0.5) / len(methods) - 0.5) for row in own]
        x, bars = _bars(own, "expected_log_likelihood")
        style = line_style(place, 1)
        style.update(linestyle="none", markevery=1, markersize=3.5)
        axes.errorbar(x, y, xerr=bars, label=method, elinewidth=0.9, capsize=1.5, **style)
    for line in range(1, len(names)):
        axes.axhline(line - 0.5, color="0.85", linewidth=0.6)
