"""Figures of the report: over prevalences, by inference, and of ratings; saving and inlining of figures.

Stage: `Summary`, `StudyResults` → matplotlib figure → `Drawing`: SVG and PNG, the same bytes for the same figure. The SVG in
the page takes the page's own colours. ROC curves, histograms and reliability are in `panel_figures.py`.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from jaxtyping import Float64

from ...lidc.votes import rounded_mean
from ...metrics import Figure
from ...metrics.plots import axes as plain_axes
from ...metrics.plots import faint, line_style, log_shares
from ..methods import METHODS
from ..paper import RATINGS
from ..pooled_predictions import Cell, CellKey, cells
from ..results import StudyResults
from ..summary import CellSummary, Summary
from ..summary.comparisons import main_loss
from ..summary.contract import AUC, CONSTANT, LOG_LIKELIHOOD
from ..summary.wording import INFERENCES, LIKELIHOODS, file_name, listed, net, one_in, panel_title, short_method

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Keyed = TypeVar("Keyed", Cell, CellSummary)

# Colours of the figures → those of the page, which differ in dark mode.
_COLOURS = {
    "#000000": "currentColor",
    "#ffffff": "var(--paper)",
    "#0072b2": "var(--line-0)",
    "#d55e00": "var(--line-1)",
    "#009e73": "var(--line-2)",
    "#cc79a7": "var(--line-3)",
    "#e69f00": "var(--line-5)",
    "#737373": "var(--muted)",
    "#d9d9d9": "var(--rule)",
}
_REFERENCE = r'(?:url\(|href=")#'
_SKILL = "Gain over always answering π\n(share of the possible gain)"
_LOWEST = -1.0  # lower end of the skill's axis
_LEVELS = 5


@dataclass(frozen=True)
class Drawing:
    """A figure, ready to be written.

    Attributes:
        name: of its files, without ending.
        title: its subject, in a few words.
        alt: description for screen readers.
        caption: how to read it.
        svg, png: the contents of its files.
        width: in pixels, at which its text is readable.
    """

    name: str
    title: str
    alt: str
    caption: str
    svg: str
    png: bytes
    width: int


def canvas(width: float, height: float) -> Canvas:
    """Return an empty figure, in inches."""
    import matplotlib.figure

    return matplotlib.figure.Figure(figsize=(width, height), dpi=150, layout="constrained")


def draw(figure: Canvas, name: str, title: str, alt: str, caption: str) -> Drawing:
    """Return the figure as SVG and PNG."""
    import matplotlib

    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # one layout for both files
    svg, png = io.StringIO(), io.BytesIO()
    # Text stays text: it can be read aloud and searched, and uses the page's font.
    with matplotlib.rc_context({"svg.hashsalt": "rightloss", "svg.fonttype": "none"}):
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    return Drawing(name, title, alt, caption, svg.getvalue(), png.getvalue(), round(72 * figure.get_size_inches()[0]))


def with_unique_names(drawings: Mapping[str, Sequence[Drawing]]) -> dict[str, list[Drawing]]:
    """Return drawings by section with unique names: duplicates get a number."""
    taken: dict[str, int] = {}
    found: dict[str, list[Drawing]] = {section: [] for section in drawings}
    for section, each in ((section, each) for section, some in drawings.items() for each in some):
        taken[each.name] = taken.get(each.name, 0) + 1
        name = each.name if taken[each.name] == 1 else f"{each.name}-{taken[each.name]}"
        found[section].append(replace(each, name=name))
    return found


def grouped(some: Iterable[Keyed], *names: str) -> list[list[Keyed]]:
    """Group cells or rows by these fields of their keys."""
    found: dict[tuple[object, ...], list[Keyed]] = {}
    for each in some:
        found.setdefault(tuple(getattr(each.key, name) for name in names), []).append(each)
    return list(found.values())


def inline_svg(drawing: Drawing) -> str:
    """Return only the SVG element, without a fixed size or page-wide style, and with unique ids."""
    prefix, found = drawing.name, drawing.svg[drawing.svg.index("<svg") :]
    found = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", found, flags=re.DOTALL)
    found = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", found))
    found = re.sub(r" font-family: [^;\"]*;?", "", found)
    for colour, name in _COLOURS.items():
        found = found.replace(colour, name)
    used = set(re.findall(rf"{_REFERENCE}([\w-]+)", found))
    found = re.sub(r' id="([^"]*)"', lambda hit: f' id="{prefix}-{hit[1]}"' if hit[1] in used else "", found)
    found = re.sub(rf"({_REFERENCE})([\w-]+)", rf"\1{prefix}-\2", found)
    return re.sub(r"\n\s*", "\n", found)


# Over prevalences, and by inference.


def prevalence_figures(summary: Summary) -> list[Drawing]:
    """Draw AUC and skill over three or more prevalences: a figure per panel with a line per loss, and in a study of metadata
    with several nets also a figure with a line per net."""
    if summary.config.task == "rating" or len(summary.config.populations) < 3:
        return []
    drawings = []
    if summary.config.task == "balanced" and len(summary.config.nets) > 1:
        rows = [row for row in summary.rows if row.key.loss == main_loss(summary.config)]
        for some in grouped(rows, "data", "minibatches", "start", "inference"):
            title = ", ".join([panel_title(some[0].key, summary.config, without=("net",)), METHODS[some[0].key.loss].title])
            drawings.append(_over_prevalence(some, lambda key: net(key, summary.config), "nets", f"By net: {title}"))
    if len(summary.config.losses) > 1:
        rows = [row for row in summary.rows if row.key.loss != CONSTANT]
        for some in grouped(rows, "data", "minibatches", "net", "likelihood", "start", "inference"):
            title = panel_title(some[0].key, summary.config)
            drawings.append(_over_prevalence(some, short_method, "prevalences", f"By loss: {title}"))
    return drawings


def inference_figures(summary: Summary) -> list[Drawing]:
    """Draw the expected log-likelihood of several inferences, a row for each and a column for each prevalence."""
    if summary.config.task == "rating" or len(summary.config.inferences) < 2:
        return []
    rows = [row for row in summary.rows if row.key.loss != CONSTANT]
    return [_inferences(some, summary) for some in grouped(rows, "data", "minibatches", "net", "start")]


def _over_prevalence(rows: Sequence[CellSummary], line: Callable[[CellKey], str], name: str, title: str) -> Drawing:
    figure = canvas(8.6, 3.9)
    left, right = figure.subplots(1, 2)
    lines = list(dict.fromkeys(line(row.key) for row in rows))
    for axes, measure in ((left, AUC), (right, "skill")):
        _curves(plain_axes(axes), [(each, [row for row in rows if line(row.key) == each]) for each in lines], measure)
    left.set_ylabel("AUC", fontsize=9)
    right.set_ylabel(_SKILL, fontsize=9)
    right.axhline(0, **faint("always answering π"))
    lowest = max(_LOWEST, right.get_ylim()[0])
    highest = max((end for row in rows for end in _ends(row) if math.isfinite(end)), default=0.0)
    right.set_ylim(lowest, max(highest, 0.0) + 0.05 * (max(highest, 0.0) - lowest))
    figure.legend(
        *left.get_legend_handles_labels(), fontsize=8, frameon=False, loc="outside lower center", ncols=min(5, len(lines))
    )
    return draw(
        figure,
        f"{name}-{file_name(title)}",
        title,
        f"AUC and gain in expected log-likelihood over prevalences. {title}",
        "Left: how well malignant nodules are ranked above benign ones (AUC, averaged over folds). Right: gain in expected "
        "log-likelihood over always answering the prevalence, as a share of the possible gain: 0 is no gain, 1 would be "
        f"certainty; values below −{-_LOWEST:g} are not shown. Bars are 95 % intervals by patient. {title}.",
    )


def _ends(row: CellSummary) -> tuple[float, float]:
    return row.figures["skill"].value, row.figures["skill"].high


def _curves(axes: Axes, lines: list[tuple[str, list[CellSummary]]], measure: str) -> None:
    rates = sorted({row.key.population for _, rows in lines for row in rows if row.key.population is not None})
    for place, (name, rows) in enumerate(lines):
        rows = sorted((row for row in rows if row.key.population is not None), key=lambda row: row.key.population or 0.0)
        beside = 1.06 ** (place - (len(lines) - 1) / 2)  # so that bars do not overlap
        x = np.array([row.key.population or math.nan for row in rows]) * beside
        y, bars = _bars(rows, measure)
        style = line_style(place, len(x))
        style.update(markevery=1, linewidth=1.2)
        axes.errorbar(x, y, bars, label=name, elinewidth=0.9, capsize=2, **style)
    log_shares(axes, "x", rates[0] / 1.5, min(1.0, rates[-1] * 1.5))
    axes.minorticks_off()
    axes.set_xlabel("Prevalence", fontsize=9)


def _bars(rows: Sequence[CellSummary], measure: str) -> tuple[Any, Any]:
    """Return values, and the distances to both ends of the interval; 0 if there is none."""
    value, low, high = (np.array([getattr(row.figures[measure], end) for row in rows]) for end in ("value", "low", "high"))
    finite = np.isfinite(value)
    value = np.where(finite, value, np.nan)
    return value, np.nan_to_num(np.stack([value - low, high - value]), nan=0.0, posinf=0.0, neginf=0.0)


def _inferences(rows: list[CellSummary], summary: Summary) -> Drawing:
    rates = list(dict.fromkeys(row.key.population for row in rows))
    names = list(dict.fromkeys(row.key.inference for row in rows))
    methods = list(dict.fromkeys(short_method(row.key) for row in rows))
    height = 1.2 + len(names) * (0.16 * len(methods) + 0.14)
    figure = canvas(2.8 * len(rates) + 0.8, height)
    grid = figure.subplots(1, len(rates), squeeze=False)[0]
    for axes, rate in zip(grid, rates, strict=True):
        some = [row for row in rows if row.key.population == rate]
        _dots(plain_axes(axes), some, names, methods)
        blind = next(
            row
            for row in summary.rows
            if (row.key.data, row.key.population, row.key.loss) == (rows[0].key.data, rate, CONSTANT)
        )
        axes.axvline(blind.figures[LOG_LIKELIHOOD].value, **faint("always answering π"))
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
    return draw(
        figure,
        f"inferences-{file_name(title)}",
        title,
        f"Expected log-likelihood by inference and loss, at {len(rates)} prevalences",
        "Expected log-likelihood of each inference, with a mark per loss and 95 % intervals by patient; further to the right "
        "is better. The dotted line is always answering the prevalence. Each prevalence has its own scale.",
    )


def _dots(axes: Axes, rows: list[CellSummary], names: list[str], methods: list[str]) -> None:
    for place, method in enumerate(methods):
        own = [row for row in rows if short_method(row.key) == method]
        y = [names.index(row.key.inference) + 0.72 * ((place + 0.5) / len(methods) - 0.5) for row in own]
        x, bars = _bars(own, LOG_LIKELIHOOD)
        style = line_style(place, 1)
        style.update(linestyle="none", markevery=1, markersize=3.5)
        axes.errorbar(x, y, xerr=bars, label=method, elinewidth=0.9, capsize=1.5, **style)
    for line in range(1, len(names)):
        axes.axhline(line - 0.5, color="0.85", linewidth=0.6)


# Ratings.


def rating_figures(results: StudyResults, summary: Summary) -> list[Drawing]:
    """Draw confusion and off-by-one shares of the default loss: a figure per data set and net, a column per likelihood."""
    if results.config.task != "rating":
        return []
    config = results.config
    own = [cell for cell in cells(results) if (cell.key.loss, cell.key.start) == (main_loss(config), config.starts[0])]
    return [_rating_figure(some, summary) for some in grouped(own, "data", "minibatches", "net", "inference")]


def confusion(cell: Cell) -> Float64[np.ndarray, "5 5"]:
    """Return shares of the nodules of each of the readers' rounded mean ratings (rows) by the prediction's (columns)."""
    truth = rounded_mean(cell.data.votes[cell.rows]).numpy()
    answer = rounded_mean(np.exp(cell.log_probs)).numpy()
    counts = np.zeros((_LEVELS, _LEVELS))
    np.add.at(counts, (truth, answer), 1)
    return counts / np.maximum(counts.sum(1, keepdims=True), 1)


def _rating_figure(some: list[Cell], summary: Summary) -> Drawing:
    figures = {row.key: row.figures for row in summary.rows}
    picture = canvas(2.7 * len(some) + 0.4, 4.9)
    grid = picture.subplots(2, len(some), squeeze=False, height_ratios=[1.5, 1])
    for place, cell in enumerate(some):
        grid[0, place].set_title(LIKELIHOODS[cell.key.likelihood], fontsize=10, fontweight="bold", loc="left")
        _matrix(grid[0, place], confusion(cell), place == 0)
        near = [figures[cell.key][f"mean_off_by_one_recall_{level + 1}"] for level in range(_LEVELS)]
        _rating_bars(plain_axes(grid[1, place]), near, cell.key.likelihood == "onion-peeling", place == 0)
    names = [LIKELIHOODS[cell.key.likelihood] for cell in some]
    title = panel_title(some[0].key, summary.config, without=("likelihood",))
    return draw(
        picture,
        f"ratings-{file_name(title)}",
        title,
        f"Confusion matrices of readers' and predicted ratings, and off-by-one shares, for {listed(names)}",
        "Top: for each rating by readers (rounded mean), the percentage of nodules with each predicted rating. Bottom: how "
        "often the prediction is off by at most one, with 95 % intervals by patient; crosses are the paper's, for onion "
        "peeling.",
    )


def _matrix(axes: Axes, shares: Float64[np.ndarray, "5 5"], first: bool) -> None:
    axes.imshow(shares, cmap="Greys", vmin=0, vmax=1, aspect="equal")
    for (row, column), share in np.ndenumerate(shares):
        ink = "#fefefe" if share > 0.5 else "#111111"  # readable on the square in any colour scheme
        axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", fontsize=8, color=ink)
    axes.set_xticks(range(_LEVELS), labels=[str(level + 1) for level in range(_LEVELS)], fontsize=8)
    axes.set_yticks(range(_LEVELS), labels=[str(level + 1) for level in range(_LEVELS)], fontsize=8)
    axes.set_xlabel("predicted", fontsize=8)
    axes.set_ylabel("readers" if first else "", fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _rating_bars(axes: Axes, near: list[Figure], has_paper: bool, first: bool) -> None:
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
