"""Figures as files and as part of the page: the same bytes for the same figure.

Stage: matplotlib Figure → `Drawing`: SVG and PNG; SVG → SVG to stand in a page, in the page's own colours.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...atomic_files import whole_file, write_whole
from .markup import Html, scrolling, tag

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours of the figures → the page's, which differ in the dark.
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


@dataclass(frozen=True)
class Drawing:
    """A figure, ready to be written.

    Attributes:
        name: of its files, without ending.
        title: what it is of, in a few words.
        alt: what it shows, for who does not see it.
        caption: how to read it.
        svg: as a file of its own.
        png: likewise.
        width: in pixels, at which its letters can be read.
    """

    name: str
    title: str
    alt: str
    caption: str
    svg: str
    png: bytes
    width: int

    def figure(self) -> Html:
        """For the page, with its caption."""
        picture = tag("div", Html(_inline(self.svg, self.name)), class_="drawing", role="img", aria_label=self.alt)
        sized = tag("div", picture, style=f"min-width:{self.width}px;max-width:{round(1.5 * self.width)}px")
        return tag("figure", [scrolling(sized, f"Figure: {self.alt}"), tag("figcaption", self.caption)])


def drawn(figure: Figure, name: str, title: str, alt: str, caption: str) -> Drawing:
    import matplotlib

    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, not once for each file
    svg, png = io.StringIO(), io.BytesIO()
    # Text stays text: it can be read aloud, found, and takes the page's font.
    with matplotlib.rc_context({"svg.hashsalt": "rightloss", "svg.fonttype": "none"}):
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    return Drawing(name, title, alt, caption, svg.getvalue(), png.getvalue(), round(72 * figure.get_size_inches()[0]))


def named_apart(drawings: list[Drawing]) -> list[Drawing]:
    """No two of one name: a number is put to those that come later."""
    taken: dict[str, int] = {}
    found = []
    for each in drawings:
        taken[each.name] = taken.get(each.name, 0) + 1
        found.append(each if taken[each.name] == 1 else replace(each, name=f"{each.name}-{taken[each.name]}"))
    return found


def write_drawings(drawings: list[Drawing], folder: Path) -> None:
    """`NAME.svg` and `NAME.png` of each."""
    for each in drawings:
        write_whole(folder / f"{each.name}.svg", each.svg)
        with whole_file(folder / f"{each.name}.png") as file:
            file.write(each.png)


def _inline(svg: str, prefix: str) -> str:
    """The SVG element alone: no fixed size, no style for the whole page, ids that no other figure has."""
    found = svg[svg.index("<svg") :]
    found = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", found, flags=re.DOTALL)
    found = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", found))
    found = re.sub(r" font-family: [^;\"]*;?", "", found)
    for colour, name in _COLOURS.items():
        found = found.replace(colour, name)
    used = set(re.findall(rf"{_REFERENCE}([\w-]+)", found))
    found = re.sub(r' id="([^"]*)"', lambda hit: f' id="{prefix}-{hit[1]}"' if hit[1] in used else "", found)
    found = re.sub(rf"({_REFERENCE})([\w-]+)", rf"\1{prefix}-\2", found)
    return re.sub(r"\n\s*", "\n", found)
