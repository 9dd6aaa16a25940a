"""Plots as SVG, drawn from numbers; colours, dashes and fonts are those of `templates/page.css`, on screen and on paper.

Stage: `Axis`, `Series` → SVG with its legend. Every series has its own colour, dash and mark, so that readers can distinguish
them without colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logit

from .words import percent

if TYPE_CHECKING:
    from markupsafe import Markup

Scale = Literal["linear", "log", "log-odds"]
_DECADES = tuple(float(f"1e{power}") for power in range(-9, 10))
_NEAR_ONE = (0.9, 0.99, 0.999, 0.9999)
# Ticks of a scale, from many to few: those are drawn that are not too many.
_TICKS: dict[str, list[tuple[float, ...]]] = {
    "log": [tuple(step * each for each in _DECADES for step in (1, 2, 5)), _DECADES, _DECADES[::2]],
    "log-odds": [
        (*(step * each for each in _DECADES[:9] for step in (1, 2, 5)), 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, *_NEAR_ONE[2:]),
        (*_DECADES[:9], 0.5, *_NEAR_ONE),
        (*_DECADES[1:8:2], 0.5, *_NEAR_ONE[1::2]),
    ],
}
_MOST_TICKS = 6
_MARKS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
    "M-4-4h8v8h-8z",
    "M0-5L5 4H-5z",
    "M0-5L5 0 0 5-5 0z",
    "M0 5L5-4H-5z",
    "M-5-5L5 5M5-5L-5 5",
)
_STYLES = len(_MARKS)  # `s0`, `s1`, … in the style sheet
_RIGHT, _TOP, _BOTTOM = 18, 12, 48  # margins of the axes; that on the left is as wide as the labels
_LETTER = 8  # width of a letter


@dataclass(frozen=True)
class Axis:
    """An axis. Lines and bands end at its ends; marks and bars beyond are drawn at the ends.

    Attributes:
        label: what it shows.
        low, high: its ends.
        scale: of the places: of the values, their logarithm, or their log-odds.
        words: how a value is written at its tick.
        ticks: where it has ticks; by default at round numbers.
    """

    label: str
    low: float
    high: float
    scale: Scale = "linear"
    words: Callable[[float], str] = percent
    ticks: tuple[float, ...] = ()

    @classmethod
    def around(cls, label: str, values: ArrayLike, scale: Scale = "linear", **options: Any) -> Axis:
        """Return an axis that holds all finite values, with a margin."""
        shown = _scaled(np.asarray(values, float).ravel(), scale)
        shown = shown[np.isfinite(shown)]
        low, high = (float(shown.min()), float(shown.max())) if len(shown) else (0.0, 0.0)
        margin = 0.06 * (high - low) or 1.0
        back = {"linear": float, "log": math.exp, "log-odds": lambda z: 1 / (1 + math.exp(-z))}[scale]
        return cls(label, back(low - margin), back(high + margin), scale, **options)

    def places(self, values: ArrayLike) -> np.ndarray:
        """Return where values are: 0 at the low end, 1 at the high end; NaN stays."""
        low, high = _scaled(np.array([self.low, self.high]), self.scale)
        return (_scaled(np.asarray(values, float), self.scale) - low) / (high - low)

    def tick_values(self) -> list[float]:
        """Return the values with a tick."""
        slack = 1e-9 * (self.high - self.low)
        options = [self.ticks] if self.ticks else [self._linear()] if self.scale == "linear" else _TICKS[self.scale]
        found = [[each for each in values if self.low - slack <= each <= self.high + slack] for values in options]
        return next((each for each in found if len(each) <= _MOST_TICKS + 1), found[-1])

    def _linear(self) -> Sequence[float]:
        size = 10.0 ** math.floor(math.log10(self.high - self.low))
        steps = (size / 10, size / 5, size / 4, size / 2, size, 2 * size)
        step = next(each for each in steps if (self.high - self.low) / each < _MOST_TICKS)
        return [round(i * step, 12) for i in range(math.floor(self.low / step), math.ceil(self.high / step) + 1)]


@dataclass(frozen=True)
class Series:
    """Points, joined by a line or not, with limits as a band or as bars.

    Attributes:
        name: in the legend; "" for none.
        x, y: the points; NaN leaves a gap.
        low, high: limits of y.
        marks: whether each point has a mark; its limits are then bars, else a band.
        joined: whether a line joins the points.
        style: number of the colour, dash and mark; None for what others are compared with, in grey.
    """

    name: str
    x: ArrayLike
    y: ArrayLike
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    marks: bool = False
    joined: bool = True
    style: int | None = 0

    @property
    def css(self) -> str:
        return "ideal" if self.style is None else f"s{self.style % _STYLES}"


def plot(
    x: Axis, y: Axis, series: Sequence[Series], *, alt: str, width: int = 440, height: int = 340, marker: bool = False
) -> Markup:
    """Return a plot and its legend.

    Args:
        x: the horizontal axis.
        y: the vertical axis.
        series: what is drawn, from the back to the front.
        alt: what the plot shows, for readers who do not see it.
        width, height: in pixels of the drawing, which is scaled to its place on the page.
        marker: whether the plot has a vertical line that `moveMarker(plot, value)` of the page's script places.

    Examples:
        >>> diagonal = Series("calibrated", [0, 1], [0, 1], style=None)
        >>> drawn = plot(Axis("predicted", 0, 1), Axis("observed", 0, 1), [diagonal], alt="The diagonal.")
        >>> drawn.startswith('<svg class="plot" role="img" aria-label="The diagonal."')
        True
    """
    drawn = drawing(x, y, series, alt=alt, width=width, height=height, marker=marker)
    named = [tag("li", swatch(each), each.name) for each in series if each.name]
    return drawn + tag("ul", *named, class_="legend") if named else drawn


def drawing(
    x: Axis, y: Axis, series: Sequence[Series], *, alt: str, width: int = 440, height: int = 340, marker: bool = False
) -> Markup:
    """Return the plot without its legend; arguments as in `plot`."""
    frame = _Frame(x, y, width, height)
    parts = [*frame.axes(), *(_drawn(each, frame) for each in series)]
    if marker:
        parts.append(tag("line", class_="marker", y1=_TOP, y2=height - _BOTTOM))
    ends = {"data-scale": x.scale, "data-low": x.low, "data-high": x.high, "data-left": frame.left, "data-right": frame.right}
    return tag("svg", *parts, class_="plot", role="img", aria_label=alt, viewBox=f"0 0 {width} {height}", **ends)


def swatch(series: Series) -> Markup:
    """Return a sample of a series' line and mark, for legends."""
    line = tag("path", class_="line", d="M0 6H38") if series.joined else ""
    mark = _mark(series, 19, 6) if series.marks else ""
    return tag("svg", tag("g", line, mark, class_=series.css), class_="swatch plot", viewBox="0 0 38 12", aria_hidden="true")


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """Return an element; text and attributes are escaped. `class_` is `class`, and `_` within a name is `-`."""
    from markupsafe import Markup, escape

    written = (f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{''.join(written)}>{''.join(escape(child) for child in children)}</{name}>")


@dataclass(frozen=True)
class _Frame:
    """The axes of a plot, in pixels."""

    x: Axis
    y: Axis
    width: int
    height: int

    @cached_property
    def left(self) -> int:
        return 26 + _LETTER * max((len(self.y.words(value)) for value in self.y.tick_values()), default=0)

    @property
    def right(self) -> int:
        return self.width - _RIGHT

    @property
    def bottom(self) -> int:
        return self.height - _BOTTOM

    def across(self, values: ArrayLike) -> np.ndarray:
        return np.round(self.left + self.x.places(values) * (self.right - self.left), 1)

    def up(self, values: ArrayLike) -> np.ndarray:
        return np.round(self.bottom - self.y.places(values) * (self.bottom - _TOP), 1)

    def axes(self) -> list[Markup]:
        """Return the ticks with their grid lines, and the labels."""
        left, right, bottom = self.left, self.right, self.bottom
        parts = []
        for value in self.x.tick_values():
            place = self.across(value)
            parts.append(tag("line", class_="rule", x1=place, x2=place, y1=_TOP, y2=bottom))
            parts.append(tag("text", self.x.words(value), x=place, y=bottom + 18, text_anchor="middle"))
        for value in self.y.tick_values():
            place = self.up(value)
            parts.append(tag("line", class_="rule", x1=left, x2=right, y1=place, y2=place))
            parts.append(tag("text", self.y.words(value), x=left - 7, y=place + 4, text_anchor="end"))
        turned = f"translate(13 {(_TOP + bottom) / 2:g}) rotate(-90)"
        parts.append(tag("text", self.x.label, x=(left + right) / 2, y=self.height - 7, text_anchor="middle"))
        parts.append(tag("text", self.y.label, transform=turned, text_anchor="middle"))
        return parts

    def inside(self, *children: Markup) -> Markup:
        """Return what is drawn within the axes; the rest is cut off."""
        left, top, width, height = self.left - 1, _TOP - 1, self.right - self.left + 2, self.bottom - _TOP + 2
        box = {"x": left, "y": top, "width": width, "height": height, "viewBox": f"{left} {top} {width} {height}"}
        return tag("svg", *children, **box)


def _drawn(series: Series, frame: _Frame) -> Markup:
    """Return a series: its band or bars, its line, and its marks."""
    x, y = frame.across(series.x), frame.up(series.y)
    lines = [tag("path", class_="line", d=_path(zip(x, y, strict=True)))] if series.joined else []
    bars: list[Markup] = []
    at_x, at_y = x.clip(frame.left, frame.right), y.clip(_TOP, frame.bottom)
    if series.low is not None and series.high is not None:
        low, high = frame.up(series.low), frame.up(series.high)
        if series.marks:
            ends = zip(at_x, low.clip(_TOP, frame.bottom), high.clip(_TOP, frame.bottom), strict=True)
            bars = [tag("path", class_="bar", d=f"M{a} {b}V{c}") for a, b, c in ends if _finite(a, b, c)]
        else:
            around = np.isfinite(x + low + high)
            edge = [*zip(x[around], low[around], strict=True), *zip(x[around][::-1], high[around][::-1], strict=True)]
            lines.insert(0, tag("path", class_="band", d=_path(edge) + "z"))
    marks = [_mark(series, a, b) for a, b in zip(at_x, at_y, strict=True) if _finite(a, b)] if series.marks else []
    return tag("g", frame.inside(*lines), *bars, *marks, class_=series.css)


def _mark(series: Series, x: float, y: float) -> Markup:
    return tag("path", class_="mark", d=_MARKS[(series.style or 0) % _STYLES], transform=f"translate({x} {y})")


def _path(points: Any) -> str:
    """Return a line through points, interrupted where one is not finite."""
    written, pen = [], "M"
    for x, y in points:
        if _finite(x, y):
            written.append(f"{pen}{x} {y}")
        pen = "L" if _finite(x, y) else "M"
    return "".join(written)


def _finite(*values: float) -> bool:
    return all(map(math.isfinite, values))


def _scaled(values: np.ndarray, scale: Scale) -> np.ndarray:
    if scale == "log":
        return np.log(np.maximum(values, 1e-300))
    return logit(np.clip(values, 1e-300, 1 - 1e-16)) if scale == "log-odds" else values
