"""Plots of curves, readable without colour.

Stage: a curve, or `{name: curve}` → matplotlib Axes. Without `ax` a new figure of 4 × 3.5 inches is made, without a window or
global state: `plot_roc(curve).figure.savefig("roc.png")`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np

from ..extras import install
from .curves import PrecisionRecallCurve, ProbabilityHistogram, ReliabilityCurve, RocCurve
from .one_vs_rest import Array, expit, logit
from .predictive_values import DecisionCurve, PredictiveValueCurve
from .smooth_calibration import SmoothCalibrationCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = TypeVar("Curve")
OneOrMore: TypeAlias = Curve | Mapping[str, Curve]  # a curve, or curves by name

_RARE = 0.05  # axes of probabilities are logarithmic below this prevalence
# Okabe and Ito's colours, which colour-blind people can distinguish; dark ones first, for lines on white.
_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00"]
_LINES: list[str | tuple[int, tuple[int | float, ...]]] = ["-", "--", "-.", ":", (0, (6, 1.5, 1, 1.5, 1, 1.5)), (0, (2, 1))]
_MARKERS = ["o", "s", "^", "D", "v", "P", "X"]  # seven, so that line and marker together repeat after 42
_GREY = "0.45"


def plot_roc(curves: OneOrMore[RocCurve], ax: Axes | None = None, positive_name: str | None = None) -> Axes:
    """Draw ROC curves, with the area under each.

    Args:
        curves: a `RocCurve`, or `{name: RocCurve}`.
        ax: where to draw.
        positive_name: what the positive examples are, such as "cancers" or "malignant".
    """
    given, ax = named(curves, RocCurve), axes(ax)
    ax.plot([0, 1], [0, 1], **faint("by chance"))
    for i, (name, curve) in enumerate(given.items()):
        x, y = curve.false_positive_rate, curve.true_positive_rate
        ax.plot(x, y, label=label(name, f"AUC {curve.auc:.3f}"), **line_style(i, len(x)))
    shares(ax, "xy")
    found = f"True positive rate\n({_who(positive_name, given)}: share found)"
    return finish(ax, "lower right", "False positive rate\n(share of the others called positive)", found)


def plot_precision_recall(
    curves: OneOrMore[PrecisionRecallCurve], ax: Axes | None = None, positive_name: str | None = None
) -> Axes:
    """Draw precision against recall at the population's prevalence, with the average precision (AP) of each.

    The horizontal line at the prevalence is the precision of calling everybody positive.

    Args:
        curves: a `PrecisionRecallCurve`, or `{name: PrecisionRecallCurve}`.
        ax: where to draw.
        positive_name: what the positive examples are, such as "cancers" or "malignant".
    """
    given, ax = named(curves, PrecisionRecallCurve), axes(ax)
    for i, (name, curve) in enumerate(given.items()):
        style = line_style(i, len(curve.recall))
        ax.plot(curve.recall, curve.precision, label=label(name, f"AP {curve.average_precision:.3f}"), **style)
    for rate in sorted({curve.prevalence for curve in given.values()}):
        ax.axhline(rate, **faint(f"everybody: {one_in(rate)}"))
    shares(ax, "xy")
    recall = f"Recall ({_who(positive_name, given)}: share found)"
    return finish(ax, "above", recall, "Precision\n(share of those called positive who are)")


def plot_predictive_values(
    curves: OneOrMore[PredictiveValueCurve],
    ax: Axes | None = None,
    positive_name: str | None = None,
    values: Sequence[Literal["ppv", "npv"]] = ("ppv", "npv"),
) -> Axes:
    """Draw positive and negative predictive values against prevalence, with bands for their limits.

    Args:
        curves: a `PredictiveValueCurve`, or `{name: PredictiveValueCurve}`.
        ax: where to draw.
        positive_name: what the positive examples are, such as "cancers" or "malignant".
        values: "ppv", "npv" or both.
    """
    given = named(curves, PredictiveValueCurve)
    if not values or not set(values) <= {"ppv", "npv"}:
        raise ValueError(f'Expected `values` among "ppv" and "npv", but got {values!r}: such as ("ppv",).')
    ax = axes(ax)
    for i, (name, curve) in enumerate(given.items()):
        for value in values:
            lines = [getattr(curve, f"{value}{end}") for end in ("", "_low", "_high")]
            style = line_style(i, len(curve.prevalence), hollow=value == "npv")
            _draw_band(ax, curve.prevalence, lines, label(name, value.upper(), ", "), style)
    log_shares(ax, "x", *_ends([curve.prevalence for curve in given.values()]))
    shares(ax, "y")
    return finish(ax, "above", f"Prevalence ({_who(positive_name, given)})", "Share of calls that are right")


def plot_reliability(
    curves: OneOrMore[ReliabilityCurve], ax: Axes | None = None, positive_name: str | None = None, log: bool | None = None
) -> Axes:
    """Draw observed frequency against predicted probability, a bar for the limits of each bin.

    Args:
        curves: a `ReliabilityCurve`, or `{name: ReliabilityCurve}`.
        ax: where to draw.
        positive_name: what the positive examples are, such as "cancers" or "malignant".
        log: whether both axes are logarithmic; by default if the prevalence is below 0.05. A bin without the class is then
            drawn at the axis.
    """
    given, ax = named(curves, ReliabilityCurve), axes(ax)
    log = min(curve.prevalence for curve in given.values()) < _RARE if log is None else log
    low, high = _reliability_ends(list(given.values())) if log else (0.0, 1.0)
    ax.plot([low, high], [low, high], **faint("as predicted"))
    for i, (name, curve) in enumerate(given.items()):
        style = line_style(i, len(curve.predicted)) | {"linewidth": 1.0, "markevery": 1, "markersize": 4.5}
        y = np.maximum(curve.observed, low)
        bars = np.stack([y - np.maximum(curve.low, low), np.maximum(curve.high, low) - y])
        ax.errorbar(curve.predicted, y, bars, label=label(name, "observed", None), elinewidth=1.0, capsize=2, **style)
    log_shares(ax, "xy", low, high) if log else shares(ax, "xy")
    return finish(ax, "upper left", "Predicted probability", f"Observed share ({_who(positive_name, given)})")


def plot_smooth_calibration(
    curves: OneOrMore[SmoothCalibrationCurve], ax: Axes | None = None, positive_name: str | None = None
) -> Axes:
    """Draw observed against predicted probability as smooth curves with bands, on log-odds axes.

    A histogram at the lower border shows the predictions: of the positive class upwards, of the rest downwards, each
    normalised. Where there are none, the curve is not reliable.

    Args:
        curves: a `SmoothCalibrationCurve`, or `{name: SmoothCalibrationCurve}`.
        ax: where to draw.
        positive_name: what the positive examples are, such as "cancers" or "malignant".
    """
    given, ax = named(curves, SmoothCalibrationCurve), axes(ax)
    values = logit(np.concatenate([each for curve in given.values() for each in (curve.predicted, curve.observed)]))
    reach = max(float(np.ptp(values)), 1.0)
    low, high = expit([values.min() - 0.2 * reach, values.max() + 0.05 * reach]).tolist()  # with room for the histogram
    ax.plot([low, high], [low, high], **faint("as predicted"))
    for i, (name, curve) in enumerate(given.items()):
        style = line_style(i, len(curve.predicted))
        lines = [curve.observed, curve.low, curve.high]
        _draw_band(ax, curve.predicted, lines, label(name, f"ICI {curve.ici:.2g}"), style)
        base, height = 0.08, 0.07 / float(curve.share.max())  # of the histograms, as fractions of the axes
        for top in base + height * np.array([[-1], [1]]) * curve.share:
            filling = {"fill": True, "color": style["color"], "alpha": 0.35}
            ax.stairs(top, curve.edges, baseline=base, transform=ax.get_xaxis_transform(), **filling)
    _logit_shares(ax, low, high)
    return finish(ax, "upper left", "Predicted probability", f"Observed share ({_who(positive_name, given)})")


def plot_decision_curve(curves: OneOrMore[DecisionCurve], ax: Axes | None = None, positive_name: str | None = None) -> Axes:
    """Draw net benefit per 1,000 people against the threshold, compared with acting on everybody and on nobody.

    Args:
        curves: a `DecisionCurve`, or `{name: DecisionCurve}`.
        ax: where to draw.
        positive_name: what the positive examples are, such as "cancers" or "malignant".
    """
    given, ax = named(curves, DecisionCurve), axes(ax)
    top = 1000 * max(float(curve.high.max()) for curve in given.values())
    top = top if top > 0 else 1.0
    for curve in {curve.prevalence: curve for curve in given.values()}.values():
        ax.plot(curve.threshold, 1000 * curve.treat_all, **faint(f"everybody ({one_in(curve.prevalence)})", ":"))
    ax.axhline(0.0, **faint("nobody", "-"))
    for i, (name, curve) in enumerate(given.items()):
        style = line_style(i, len(curve.threshold))
        lines = [1000 * each for each in (curve.net_benefit, curve.low, curve.high)]
        _draw_band(ax, curve.threshold, lines, label(name, "by the predictions", None), style)
    ends = _ends([curve.threshold for curve in given.values()])
    ax.set(xlim=ends, ylim=(-0.15 * top, 1.1 * top))
    if min(curve.prevalence for curve in given.values()) < _RARE:
        log_shares(ax, "x", *ends)
    benefit = f"Net benefit per 1000 people\n({_who(positive_name, given)}: acted on, less others at their cost)"
    return finish(ax, "above", "Threshold (probability from which to act)", benefit)


def plot_probability_histogram(
    curves: OneOrMore[ProbabilityHistogram],
    ax: Axes | None = None,
    positive_name: str | None = None,
    class_names: Sequence[str] | None = None,
) -> Axes:
    """Draw the distribution of the predictions for each class.

    Args:
        curves: a `ProbabilityHistogram`, or `{name: ProbabilityHistogram}`, all on one scale.
        ax: where to draw.
        positive_name: what is predicted, such as "cancer" or "malignant".
        class_names: one per class.
    """
    given = named(curves, ProbabilityHistogram)
    scales = {curve.scale for curve in given.values()}
    if len(scales) > 1:
        raise ValueError(f"Expected histograms of one scale, but got {sorted(scales)}: draw them on two axes.")
    size, ax = max(len(curve.share) for curve in given.values()), axes(ax)
    classes = [f"class {c}" for c in range(size)] if class_names is None else [str(name) for name in class_names]
    if len(classes) != size:
        raise ValueError(f"Expected {size} `class_names`, but got {len(classes)}: name every class, in order.")
    lines = [(name, c, curve) for name, curve in given.items() for c in range(len(curve.share))]
    for i, (name, c, curve) in enumerate(lines):
        style = {key: value for key, value in line_style(i, 0).items() if not key.startswith("mark")}
        share = curve.share[c]
        ax.stairs(100 * share, curve.edges, label=label(name, classes[c], ", "), baseline=None, **style)
        ax.stairs(100 * share, curve.edges, fill=True, color=style["color"], alpha=0.12)
    what = "Predicted probability" if scales == {"probability"} else "Predicted log-odds"
    ax.set_ylim(bottom=0)
    return finish(ax, "best", f"{what} ({_who(positive_name, given)})", "Share of the class (%)")


def _who(positive_name: str | None, curves: Mapping[str, Any]) -> str:
    return f"class {next(iter(curves.values())).positive}" if positive_name is None else positive_name


def _draw_band(ax: Axes, x: Array, lines: list[Array], text: str, style: dict[str, Any]) -> None:
    """Draw a line, and its limits as a transparent band."""
    y, low, high = lines
    ax.fill_between(x, low, high, where=~np.isnan(y), color=style["color"], alpha=0.15, linewidth=0)
    ax.plot(x, y, label=text, **style)


def _ends(grids: list[Array]) -> tuple[float, float]:
    """Return the limits of an axis that shows all values, with room on both sides of a single point."""
    low, high = min(float(grid.min()) for grid in grids), max(float(grid.max()) for grid in grids)
    return (low, high) if low < high else (low / 2, min(1.0, 2 * high))


def _reliability_ends(curves: list[ReliabilityCurve]) -> tuple[float, float]:
    """Return the limits of a logarithmic axis that shows all predictions, and all frequencies but 0."""
    values = np.concatenate([each for curve in curves for each in (curve.predicted, curve.observed, curve.high)])
    lows, values = np.concatenate([curve.low for curve in curves]), values[values > 0]
    return float(min(values.min(), *lows[lows > values.min() / 10])) / 1.3, min(1.0, 1.3 * float(values.max()))


def axes(ax: Axes | None) -> Axes:
    """Return `ax`, or the axes of a new figure without global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"Plots need matplotlib: {install('study')}") from error
    ax = Figure(figsize=(4, 3.5), dpi=150, layout="constrained").subplots() if ax is None else ax
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
    return ax


def named(curves: OneOrMore[Curve], kind: type[Curve]) -> dict[str, Curve]:
    """Return checked `{name: curve}`; a single curve has no name."""
    given: dict[str, Curve] = dict(curves) if isinstance(curves, Mapping) else {"": curves}
    wrong = sorted({type(curve).__name__ for curve in given.values() if not isinstance(curve, kind)})
    if not given or wrong:
        came = f"{', '.join(wrong) or 'an empty dict'}: make it by the function of that name"
        raise ValueError(f"Expected a {kind.__name__}, or a dict of them by name, but got {came}.")
    named = {str(name): curve for name, curve in given.items()}
    if len(named) < len(given):
        raise ValueError(f"Expected names that differ, but got {list(given)}: a legend cannot tell 1 from '1'.")
    return named


def label(name: str, figure: str, between: str | None = ": ") -> str:
    """Return the legend of a line: name and figure, or, if `between` is None, the figure only without a name."""
    text = name if name and between is None else f"{name}{between}{figure}" if name else figure
    return f" {text}" if text.startswith("_") else text  # matplotlib would leave it out


def line_style(i: int, points: int, hollow: bool = False) -> dict[str, Any]:
    """Return the i-th line's colour, dashes and a few markers."""
    colour = _COLOURS[i % len(_COLOURS)]
    look = {"color": colour, "linestyle": _LINES[i % len(_LINES)], "linewidth": 1.5, "marker": _MARKERS[i % len(_MARKERS)]}
    every = (max(1, points // 8) // 2, max(1, points // 8))
    return look | {"markersize": 4, "markerfacecolor": "white" if hollow else colour, "markevery": every}


def faint(text: str, line: str | tuple[int, tuple[int | float, ...]] = (0, (1, 2))) -> dict[str, Any]:
    """Return the style of reference lines."""
    return {"color": _GREY, "linestyle": line, "linewidth": 1.0, "label": text, "zorder": 1}


def shares(ax: Axes, which: str) -> None:
    """Set axes from 0 to 1, with room for a line at the border."""
    _set_axes(ax, which, "linear", (-0.02, 1.02), {0: "0", 0.25: "0.25", 0.5: "0.5", 0.75: "0.75", 1: "1"})


def log_shares(ax: Axes, which: str, low: float, high: float) -> None:
    """Set logarithmic axes of fractions, with ticks such as "1 in 1000": at most five, or they would overlap."""
    decades = [10.0**e for e in range(-15, 1) if low <= 1.001 * 10.0**e and 10.0**e <= 1.001 * high]
    ticks = decades[:: -max(1, -(-len(decades) // 4))][::-1] + [0.5] * (0.5 <= high < 1)
    ticks = ticks if len(ticks) > 1 else [low, float(np.sqrt(low * high)), high]
    _set_axes(ax, which, "log", (low, high), {tick: one_in(tick) for tick in ticks})


def _logit_shares(ax: Axes, low: float, high: float) -> None:
    """Set log-odds axes of fractions, both, with a few ticks such as "1 in 1000" below a half and percent above."""
    apart, marks = float(logit(high) - logit(low)) / 3.3, list[float]()
    for mark in [*(10.0**e for e in range(-15, 0)), 0.5, *(1 - 10.0**e for e in range(-1, -7, -1))]:
        if low <= mark <= high and (not marks or float(logit(mark) - logit(marks[-1])) >= apart):
            marks.append(mark)
    marks = marks if len(marks) > 1 else [low, float(expit((logit(low) + logit(high)) / 2)), high]
    texts = {mark: one_in(mark) if mark < 0.5 else f"{100 * mark:.4g} %" for mark in marks}
    _set_axes(ax, "xy", "logit", (low, high), texts)


def _set_axes(ax: Axes, which: str, scale: str, ends: tuple[float, float], ticks: dict[float, str]) -> None:
    """Set scale, limits and ticks of the x and y axis, or of one of them."""
    from matplotlib.ticker import NullFormatter, NullLocator

    for name in which:
        axis = ax.xaxis if name == "x" else ax.yaxis
        ax.set(**{f"{name}scale": scale, f"{name}lim": ends})
        axis.set_ticks(list(ticks), labels=list(ticks.values()))
        if scale != "log":
            axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())


def one_in(share: float) -> str:
    """Return a fraction as text with two digits: "1 in 1000", "37 %"."""
    people = 1 / share
    whole = round(people) if people < 100 else round(float(f"{people:.2g}"))
    if people >= 10 or abs(people - whole) < 1e-6:
        return f"1 in {whole}" if whole > 1 else "all"
    return f"{100 * share:.2g} %"


def finish(ax: Axes, place: str, x: str, y: str) -> Axes:
    """Name the axes, and set a legend inside or "above" them, with reference lines last."""
    ax.set_xlabel(x, fontsize=9)
    ax.set_ylabel(y, fontsize=9)
    grey = {str(line.get_label()) for line in ax.get_lines() if line.get_color() == _GREY}
    lines = sorted(zip(*ax.get_legend_handles_labels(), strict=True), key=lambda line: line[1] in grey)
    handles, texts = zip(*lines, strict=True)
    where: dict[str, Any] = {"loc": place}
    if place == "above":
        where = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "ncols": 2 if max(map(len, texts)) < 24 else 1}
    look: dict[str, Any] = {"fontsize": 8, "framealpha": 0.85, "edgecolor": "none", "handlelength": 2.6, "columnspacing": 1.2}
    ax.legend(handles, texts, borderaxespad=0.3, **look, **where)
    return ax
