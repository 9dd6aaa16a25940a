"""Drawings: plots of `rightloss.card.svg` side by side, for the page and as an SVG file of their own.

Stage: `Plot`s → `Drawing` → HTML of each plot; one SVG, which needs no page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from ...card.svg import Axis, Series, drawing, plot, swatch, tag

if TYPE_CHECKING:
    from markupsafe import Markup

_WIDTH, _HEIGHT, _TITLE, _LINE = 440, 340, 30, 20  # pixels of a plot, its title, and a line of its legend
_ACROSS = 3


class Plot(NamedTuple):
    """A plot: its title, axes, series, and what it shows for readers who do not see it."""

    title: str
    x: Axis
    y: Axis
    series: list[Series]
    alt: str

    def html(self) -> Markup:
        """Return the plot with its legend."""
        return plot(self.x, self.y, self.series, alt=self.alt, width=_WIDTH, height=_HEIGHT)

    @property
    def named(self) -> list[Series]:
        return [each for each in self.series if each.name]


@dataclass(frozen=True)
class Drawing:
    """Plots that belong together.

    Attributes:
        name: of its file, without ending.
        title: its subject, in a few words.
        plots: in reading order.
    """

    name: str
    title: str
    plots: tuple[Plot, ...]

    @property
    def alt(self) -> str:
        return f"{self.title}: {', '.join(dict.fromkeys(each.alt for each in self.plots))}"

    def svg(self) -> str:
        """Return the drawing as a file, in light colours."""
        across = min(_ACROSS, len(self.plots))
        height = _TITLE + _HEIGHT + _LINE * (max(len(each.named) for each in self.plots) + 1)
        width, total = across * _WIDTH, -(-len(self.plots) // across) * height
        cells = (_cell(each, i % across * _WIDTH, i // across * height) for i, each in enumerate(self.plots))
        inside = [tag("style", _style()), tag("rect", width="100%", height="100%", fill="#fff"), *cells]
        return (
            str(tag("svg", *inside, class_="plot", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {total}")) + "\n"
        )


def _cell(each: Plot, left: int, top: int) -> Markup:
    from markupsafe import Markup

    drawn = str(drawing(each.x, each.y, each.series, alt=each.alt, width=_WIDTH, height=_HEIGHT))
    nested = drawn.replace("<svg ", f'<svg y="{_TITLE}" width="{_WIDTH}" height="{_HEIGHT}" ', 1)
    legend = [_sample(series, _TITLE + _HEIGHT + _LINE * row) for row, series in enumerate(each.named)]
    title = tag("text", each.title, class_="title", x=14, y=20)
    return tag("g", title, Markup(nested), *legend, transform=f"translate({left} {top})")


def _sample(series: Series, top: int) -> Markup:
    """Return a line of a legend."""
    from markupsafe import Markup

    mark = str(swatch(series)).removesuffix("</svg>").partition(">")[2]
    return tag("g", Markup(mark), tag("text", series.name, x=46, y=10), transform=f"translate(64 {top})")


def _style() -> Markup:
    """Return what `page.css` says about plots, in light colours."""
    from markupsafe import Markup

    text = files("rightloss.card").joinpath("templates", "page.css").read_text("utf-8")
    rules = [line.strip() for line in text.splitlines() if re.match(r"\.(plot|ideal|s\d)\b", line)]
    return Markup(
        "\n".join([text.partition("}")[0] + "}", *rules, "svg.plot { max-width: none; } svg svg.plot { width: revert-layer; }"])
        + "\n.plot .title { fill: var(--ink); font-weight: 600; }"
    )


def with_unique_names(drawings: Iterable[Drawing]) -> list[Drawing]:
    """Return the drawings with unique names: duplicates get a number."""
    taken: dict[str, int] = {}
    found = []
    for each in drawings:
        taken[each.name] = number = taken.get(each.name, 0) + 1
        found.append(each if number == 1 else Drawing(f"{each.name}-{number}", each.title, each.plots))
    return found
