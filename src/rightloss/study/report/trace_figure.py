"""The figure of intercepts: the mean prediction against π during training.

Stage: `RunResult.trace` of all folds and seeds → a `Drawing` for each prevalence: colour by loss, dashes by start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float64

from ...metrics.plots import axes as plain_axes
from ...metrics.plots import faint, line_style, log_shares
from ..pooled_predictions import CellKey
from ..results import RunResult, StudyResults, trace_steps
from ..summary.wording import SHORT_LOSSES, STARTS, file_name, one_in, panel_title
from .figures import Drawing, canvas, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CAPTION = (
    "Mean prediction during training, weighted to the population: a line that stays away from π, the dotted one, is an "
    "intercept that did not move. Means over folds and seeds, with bands from the lowest to the highest."
)
_DASHES = {"population": "-", "equal": "--"}
_SHARED = ("data", "minibatches", "net", "likelihood", "inference")


def trace_figures(results: StudyResults) -> list[Drawing]:
    """Draw the traces of the first data set and net: the highest and the lowest prevalence first, then the others."""
    traced = [run for run in results.runs if run.trace]
    by_rate: dict[float | None, list[RunResult]] = {}
    for run in traced:
        if all(getattr(run.config, name) == getattr(traced[0].config, name) for name in _SHARED):
            by_rate.setdefault(run.config.population, []).append(run)
    rates = sorted(by_rate, key=lambda rate: -(rate or 0.0))
    order = dict.fromkeys([*rates[:1], *rates[-1:], *rates])
    return [_figure(by_rate[rate], results) for rate in order]


def mean_and_range(runs: Sequence[RunResult]) -> Float64[np.ndarray, "3 steps"]:
    """Return the mean over runs at each step, the lowest and the highest; a trace that ended early is left out afterwards."""
    table = np.full((len(runs), max(len(run.trace) for run in runs)), np.nan)
    for row, run in zip(table, runs, strict=True):
        row[: len(run.trace)] = run.trace
    return np.stack([np.nanmean(table, 0), np.nanmin(table, 0), np.nanmax(table, 0)])


def _figure(runs: Sequence[RunResult], results: StudyResults) -> Drawing:
    first, config = runs[0].config, results.config
    rate = first.population
    share = float(results.data[first.data].votes[:, -1].mean(dtype=np.float64)) if rate is None else rate
    lines: dict[tuple[str, str], list[RunResult]] = {}
    for run in runs:
        lines.setdefault((run.config.loss, run.config.start), []).append(run)
    figure = canvas(4.7, 3.9)
    axes = plain_axes(figure.subplots())
    for (loss, start), some in lines.items():
        _line(axes, some, config.losses.index(loss), SHORT_LOSSES[loss] if start == config.starts[0] else "_")
    for start in config.starts if len(config.starts) > 1 else ():
        axes.plot([], [], color="0.45", linestyle=_DASHES[start], label=STARTS[start])
    axes.axhline(share, **faint("π"))
    low, high = map(float, axes.get_ylim())
    log_shares(axes, "y", max(low, share / 100), min(high, 1.0))
    axes.set_xlim(0, first.training.steps)
    axes.set_xlabel("Training step", fontsize=8)
    name = f"π = {one_in(share)}"
    axes.set_title(f"Mean prediction, {name}", fontsize=10, fontweight="bold", loc="left")
    figure.legend(fontsize=7.5, frameon=False, loc="outside lower center", ncols=2, handlelength=3)
    where = panel_title(CellKey.of(first), config, without=("start",))
    return draw(
        figure, f"trace-{file_name(f'{where} {share:g}')}", name, f"Mean prediction by training step, {name}; {where}", CAPTION
    )


def _line(axes: Axes, runs: Sequence[RunResult], place: int, label: str) -> None:
    mean, lowest, highest = mean_and_range(runs)
    start, steps = runs[0].config.start, trace_steps(runs[0].config.training.steps)[: len(mean)]
    style = line_style(place, len(mean), hollow=start == "equal")
    style.update(linestyle=_DASHES[start], linewidth=1.4, label=label)
    axes.fill_between(steps, lowest, highest, color=style["color"], alpha=0.08, linewidth=0)
    axes.semilogy(steps, mean, **style)
