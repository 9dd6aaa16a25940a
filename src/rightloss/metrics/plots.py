"""Curves → pictures that can be read without colour.

Stage: a curve, or `{name: curve}` → matplotlib Axes. Without `ax` a figure of its own is made, 4 × 3.5 inches, that no
window or global state knows of: `plot_roc(curve).figure.savefig("roc.png")`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .curves import PrecisionRecallCurve, ProbabilityHistogram, RocCurve
from .one_vs_rest import Array
from .plot_style import axes, faint, finish, label, line_style, log_shares, named, one_in, shares, thinned
from .predictive_values import DecisionCurve, PredictiveValueCurve
from .reliability_curve import ReliabilityCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "plot_decision_curve",
    "plot_precision_recall",
    "plot_predictive_values",
    "plot_probability_histogram",
    "plot_reliability",
    "plot_roc",
]

_RARE = 0.05  # below this prevalence an axis of probabilities is logarithmic


def plot_roc(curves: Any, ax: Axes | None = None, positive_name: str | None = None) -> Axes:
    """ROC curves, with the area under each.

    Args:
        curves: a `RocCurve`, or `{name: RocCurve}`.
        ax: where to draw.
        positive_name: what the positive examples are, such as "cancers" or "malignant".
    """
    given = named(curves, RocCurve)
    ax = axes(ax)
    ax.plot([0, 1], [0, 1], **faint("by chance"))
    for i, (name, curve) in enumerate(given.items()):
        x, y = thinned(curve.false_positive_rate, curve.true_positive_rate)
        ax.plot(x, y, label=label(name, f"AUC {curve.auc:.3f}"), **line_style(i, len(x)))
    ax.set_xlabel("False positive rate\n(share of the others called positive)")
    ax.set_ylabel(f"True positive rate\n({_who(positive_name, given)}: share found)")
    shares(ax, "xy")
    return finish(ax, "lower right")


def plot_precision_recall(curves: Any, ax: Axes | None = None, positive_name: str | None = None) -> Axes:
    """Precision against recall at the population's prevalence, with the average precision (AP) of each.

    The prevalence is the lowest line: the precision of calling everybody positive.

    Args:
        curves: a `PrecisionRecallCurve`, or `{name: PrecisionRecallCurve}`.
        ax: where to draw.
        positive_name: what the positive examples are, such as "cancers" or "malignant".
    """
    given = named(curves, PrecisionRecallCurve)
    ax = axes(ax)
    for i, (name, curve) in enumerate(given.items()):
        x, y = thinned(curve.recall, curve.precision)
        ax.plot(x, y, label=label(name, f"AP {curve.average_precision:.3f}"), **line_style(i, len(x)))
    for rate in sorted({curve.prevalence for curve in given.values()}):
        ax.axhline(rate, **faint(f"everybody: {one_in(rate)}"))
    ax.set_xlabel(f"Recall ({_who(positive_name, given)}: share found)")
    ax.set_ylabel("Precision\n(share of those called positive who are)")
    shares(ax, "xy")
    return finish(ax, "above")


def plot_predictive_values(
    curves: Any, ax: Axes | None = None, positive_name: str | None = None, values: tuple[str, ...] = ("ppv", "npv")
) -> Axes:
    """Positive and negative predictive value against prevalence, with bands for their limits.

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
            x, y = curve.prevalence, getattr(curve, value)
            style = line_style(i, len(x), hollow=value == "npv")
            low, high = getattr(curve, f"{value}_low"), getattr(curve, f"{value}_high")
            ax.fill_between(x, low, high, where=~np.isnan(y), **_band(style))
            ax.plot(x, y, label=label(name, value.upper(), ", "), **style)
    ax.set_xlabel(f"Prevalence ({_who(positive_name, given)})")
    ax.set_ylabel("Share of calls that are right")
    log_shares(ax, "x", *_ends([curve.prevalence for curve in given.values()]))
    shares(ax, "y")
    return finish(ax, "above")


def plot_reliability(curves: Any, ax: Axes | None = None, positive_name: str | None = None, log: bool | None = None) -> Axes:
    """Observed frequency against predicted probability, a bar for the limits of each bin.

    Args:
        curves: a `ReliabilityCurve`, or `{name: ReliabilityCurve}`.
        ax: where to draw.
        positive_name: what the positive examples are, such as "cancers" or "malignant".
        log: whether both axes are logarithmic; by default where the prevalence is below 0.05. A bin in which the class was
            not observed is then drawn at the axis.
    """
    given = named(curves, ReliabilityCurve)
    ax = axes(ax)
    log = min(curve.prevalence for curve in given.values()) < _RARE if log is None else log
    low, high = _reliability_ends(list(given.values())) if log else (0.0, 1.0)
    ax.plot([low, high], [low, high], **faint("as predicted"))
    for i, (name, curve) in enumerate(given.items()):
        style = line_style(i, len(curve.predicted))
        style.update(linewidth=1.0, markevery=1, markersize=4.5)
        y = np.maximum(curve.observed, low)
        bars = np.stack([y - np.maximum(curve.low, low), np.maximum(curve.high, low) - y])
        ax.errorbar(curve.predicted, y, bars, label=label(name, "observed", None), elinewidth=1.0, capsize=2, **style)
    ax.set_xlabel("Predicted probability")
    ax.set_ylabel(f"Observed share ({_who(positive_name, given)})")
    if log:
        log_shares(ax, "xy", low, high)
    else:
        shares(ax, "xy")
    return finish(ax, "upper left")


def plot_decision_curve(curves: Any, ax: Axes | None = None, positive_name: str | None = None) -> Axes:
    """Net benefit per 1,000 people against the threshold, beside acting on everybody and on nobody.

    Args:
        curves: a `DecisionCurve`, or `{name: DecisionCurve}`.
        ax: where to draw.
        positive_name: what the positive examples are, such as "cancers" or "malignant".
    """
    given = named(curves, DecisionCurve)
    ax = axes(ax)
    top = 1000 * max(float(curve.high.max()) for curve in given.values())
    top = top if top > 0 else 1.0
    for curve in {curve.prevalence: curve for curve in given.values()}.values():
        ax.plot(curve.threshold, 1000 * curve.treat_all, **faint(f"everybody ({one_in(curve.prevalence)})", ":"))
    ax.axhline(0.0, **faint("nobody", "-"))
    for i, (name, curve) in enumerate(given.items()):
        style = line_style(i, len(curve.threshold))
        ax.fill_between(curve.threshold, 1000 * curve.low, 1000 * curve.high, **_band(style))
        ax.plot(curve.threshold, 1000 * curve.net_benefit, label=label(name, "by the predictions", None), **style)
    ax.set_xlabel("Threshold (probability from which to act)")
    ax.set_ylabel(f"Net benefit per 1000 people\n({_who(positive_name, given)}: acted on, less others at their cost)")
    ends = _ends([curve.threshold for curve in given.values()])
    if min(curve.prevalence for curve in given.values()) < _RARE:
        log_shares(ax, "x", *ends)
    else:
        ax.set_xlim(*ends)
    ax.set_ylim(-0.15 * top, 1.1 * top)
    return finish(ax, "above")


def plot_probability_histogram(
    curves: Any, ax: Axes | None = None, positive_name: str | None = None, class_names: Any = None
) -> Axes:
    """How the predictions of each class's examples are distributed.

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
    classes = _class_names(class_names, max(len(curve.share) for curve in given.values()))
    ax = axes(ax)
    i = 0
    for name, curve in given.items():
        for c, share in enumerate(curve.share):
            style = {key: value for key, value in line_style(i, 0).items() if not key.startswith("mark")}
            ax.stairs(100 * share, curve.edges, label=label(name, classes[c], ", "), baseline=None, **style)
            ax.stairs(100 * share, curve.edges, fill=True, color=style["color"], alpha=0.12)
            i += 1
    what = "Predicted probability" if scales == {"probability"} else "Predicted log-odds"
    ax.set_xlabel(f"{what} ({_who(positive_name, given)})")
    ax.set_ylabel("Share of the class (%)")
    ax.set_ylim(bottom=0)
    return finish(ax, "best")


def _who(positive_name: str | None, curves: Mapping[str, Any]) -> str:
    return f"class {next(iter(curves.values())).positive}" if positive_name is None else positive_name


def _band(style: dict[str, Any]) -> dict[str, Any]:
    """A filling light enough for lines to be seen through it."""
    return {"color": style["color"], "alpha": 0.15, "linewidth": 0}


def _ends(grids: list[Array]) -> tuple[float, float]:
    """Of an axis that shows all of them; with room to both sides of a single point."""
    low, high = min(float(grid.min()) for grid in grids), max(float(grid.max()) for grid in grids)
    return (low, high) if low < high else (low / 2, min(1.0, 2 * high))


def _reliability_ends(curves: list[ReliabilityCurve]) -> tuple[float, float]:
    """Of a logarithmic axis that shows all predictions, and all frequencies but 0."""
    values = np.concatenate([np.concatenate([curve.predicted, curve.observed, curve.high]) for curve in curves])
    lows = np.concatenate([curve.low for curve in curves])
    visible = np.concatenate([values[values > 0], lows[lows > values[values > 0].min() / 10]])
    return float(visible.min()) / 1.3, min(1.0, 1.3 * float(visible.max()))


def _class_names(names: Any, classes: int) -> list[str]:
    found = [f"class {c}" for c in range(classes)] if names is None else [str(name) for name in names]
    if len(found) != classes:
        raise ValueError(f"Expected {classes} `class_names`, but got {len(found)}: name every class, in order.")
    return found
