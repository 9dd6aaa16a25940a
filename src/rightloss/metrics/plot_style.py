"""How all pictures of curves look: lines told apart without colour, shares on axes in words, few marks.

Stage: Axes → Axes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .one_vs_rest import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which colour-blind people tell apart; dark ones first, for they are lines on white.
_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00"]
_LINES: list[Any] = ["-", "--", "-.", ":", (0, (6, 1.5, 1, 1.5, 1, 1.5)), (0, (2, 1))]
_MARKERS = ["o", "s", "^", "D", "v", "P", "X"]  # seven, so that line and marker together repeat after 42
_GREY = "0.45"
_POINTS = 2000  # of a line, from which it is thinned to what can be seen


def axes(ax: Axes | None) -> Axes:
    """`ax`, or the only one of a new figure that no global state knows of."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Plots need matplotlib: pip install 'rightloss[study]'") from error
    ax = Figure(figsize=(4, 3.5), dpi=150, layout="constrained").subplots() if ax is None else ax
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
    return ax


def named(curves: Any, kind: type) -> dict[str, Any]:
    """A curve or `{name: curve}` → `{name: curve}`, checked; the only one has no name."""
    given = curves if isinstance(curves, dict) else {"": curves}
    wrong = sorted({type(curve).__name__ for curve in given.values() if not isinstance(curve, kind)})
    if not given or wrong:
        raise ValueError(
            f"Expected a {kind.__name__}, or a dict of them by name, but got {', '.join(wrong) or 'an empty dict'}: "
            "make it by the function of that name."
        )
    names = [str(name) for name in given]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Expected names that differ, but got {twice} twice: a legend cannot tell 1 from '1'.")
    return dict(zip(names, given.values(), strict=True))


def label(name: str, figure: str, between: str | None = ": ") -> str:
    """A line's words in the legend: the name, then the figure; where `between` is None, the figure only without a name."""
    text = name if name and between is None else f"{name}{between}{figure}" if name else figure
    return f" {text}" if text.startswith("_") else text  # which matplotlib would leave out


def line_style(i: int, points: int, hollow: bool = False) -> dict[str, Any]:
    """The i-th line's colour, dashes and a few markers."""
    colour = _COLOURS[i % len(_COLOURS)]
    return {
        "color": colour,
        "linestyle": _LINES[i % len(_LINES)],
        "linewidth": 1.5,
        "marker": _MARKERS[i % len(_MARKERS)],
        "markersize": 4,
        "markerfacecolor": "white" if hollow else colour,
        "markevery": (max(1, points // 8) // 2, max(1, points // 8)),
    }


def faint(text: str, line: Any = (0, (1, 2))) -> dict[str, Any]:
    """The style of what curves are compared with."""
    return {"color": _GREY, "linestyle": line, "linewidth": 1.0, "label": text, "zorder": 1}


def thinned(x: Array, y: Array) -> tuple[Array, Array]:
    """Of a long line the points that differ by a thousandth, and the last: less cannot be seen."""
    if len(x) <= _POINTS:
        return x, y
    cell = np.floor(1000 * x) * 10_000 + np.floor(1000 * y)
    kept = np.append(True, cell[1:] != cell[:-1])
    kept[-1] = True
    return x[kept], y[kept]


def shares(ax: Axes, which: str) -> None:
    """Axes from 0 to 1, with room for a line along the border."""
    for name in which:
        (ax.set_xlim if name == "x" else ax.set_ylim)(-0.02, 1.02)
        axis = ax.xaxis if name == "x" else ax.yaxis
        axis.set_ticks([0, 0.25, 0.5, 0.75, 1], labels=["0", "0.25", "0.5", "0.75", "1"])


def log_shares(ax: Axes, which: str, low: float, high: float) -> None:
    """Logarithmic axes of shares, marked "1 in 1000": five marks at most, or they would overlap."""
    from matplotlib.ticker import NullFormatter

    decades = [10.0**e for e in range(-15, 1) if low <= 1.001 * 10.0**e and 10.0**e <= 1.001 * high]
    ticks = decades[:: -max(1, -(-len(decades) // 4))][::-1] + [0.5] * (0.5 <= high < 1)
    ticks = ticks if len(ticks) > 1 else [low, float(np.sqrt(low * high)), high]
    for name in which:
        axis = ax.xaxis if name == "x" else ax.yaxis
        (ax.set_xscale if name == "x" else ax.set_yscale)("log")
        (ax.set_xlim if name == "x" else ax.set_ylim)(low, high)
        axis.set_ticks(ticks, labels=[one_in(tick) for tick in ticks])
        axis.set_minor_formatter(NullFormatter())


def one_in(share: float) -> str:
    """A share in words, to two digits: "1 in 1000", "37 %"."""
    people = 1 / share
    whole = round(people) if people < 100 else round(float(f"{people:.2g}"))
    if people >= 10 or abs(people - whole) < 1e-6:
        return f"1 in {whole}" if whole > 1 else "all"
    return f"{100 * share:.2g} %"


def finish(ax: Axes, place: Any) -> Axes:
    """Small letters, and a legend, inside or "above", where it hides no line, with what the curves are compared with last."""
    ax.xaxis.label.set_fontsize(9)
    ax.yaxis.label.set_fontsize(9)
    handles, texts = ax.get_legend_handles_labels()
    order = sorted(range(len(texts)), key=lambda i: texts[i] in _faint_texts(ax))
    where: dict[str, Any] = {"loc": place}
    if place == "above":
        where = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "ncols": 2 if max(map(len, texts)) < 24 else 1}
    ax.legend(
        [handles[i] for i in order],
        [texts[i] for i in order],
        fontsize=8,
        framealpha=0.85,
        edgecolor="none",
        handlelength=2.6,
        columnspacing=1.2,
        borderaxespad=0.3,
        **where,
    )
    return ax


def _faint_texts(ax: Axes) -> set[str]:
    return {str(line.get_label()) for line in ax.get_lines() if line.get_color() == _GREY}
