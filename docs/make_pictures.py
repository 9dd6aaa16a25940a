"""Run the programs of pages and write the pictures that they draw.

    .venv/bin/python docs/make_pictures.py [--print] [PAGE …]      # by default every page that draws a picture

A picture `pictures/NAME.png` is the figure of the axes with the name NAME in the page's programs. With `--print` the output of
the programs is also written into the page, after each line "It prints:". Without a PAGE, the paper's Fig. 2 is drawn, too:
`graphical_models.png`. Other pictures that no program of the page draws are left: `risk_before_after.png` is made by
examples/risk_before_after.py, `table_report.png` by docs/make_table.py, `card.png` by docs/make_card.py.
"""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch

FOLDER = Path(__file__).resolve().parent
PROGRAM = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?P<then>\s*It prints:\n\n```text\n(?P<printed>.*?)^```)?", re.DOTALL | re.M
)
PICTURE = re.compile(r"\]\((?:\.\./)?pictures/(\w+)\.png\)")


def run(text: str) -> tuple[dict[str, Any], str]:
    """Run a page's programs; return the names they define, and the page with their output."""
    names: dict[str, Any] = {"__name__": "page"}

    def execute(block: re.Match[str]) -> str:
        output = io.StringIO()
        with redirect_stdout(output):
            exec(compile(block["code"], "page", "exec"), names)
        if not block["then"]:
            return block[0]
        return block[0].replace(f"```text\n{block['printed']}```", f"```text\n{output.getvalue()}```")

    return names, PROGRAM.sub(execute, text)


def drawn(text: str) -> list[str]:
    """Return the names of the pictures that the page's own programs draw."""
    code = "\n".join(block["code"] for block in PROGRAM.finditer(text))
    return [name for name in dict.fromkeys(PICTURE.findall(text)) if re.search(rf"^{name} = ", code, re.M)]


def graphical_models() -> Figure:
    """Draw how the population and the training rows come about, the paper's Fig. 2; what is observed is grey."""
    places = {"w": (1.0, 1.6), "x": (0.4, 0.5), "y": (1.6, 0.5)}
    models = {"(a) the population": ("∗", "xy", "wy"), "(b) the training rows": ("n", "yx", "wx")}
    figure, axes = plt.subplots(1, 2, figsize=(6, 3), layout="constrained")
    for axis, (title, (index, *arrows)) in zip(axes, models.items(), strict=True):
        axis.set(xlim=(-0.3, 2.3), ylim=(-0.2, 2.0), aspect="equal")
        axis.set_title(title, size=11)
        axis.axis("off")
        nodes = {name: axis.add_patch(Circle(place, 0.27, fc="#dddddd", ec="black")) for name, place in places.items()}
        for name in ("w",) if index == "n" else ("w", "y"):  # not observed
            nodes[name].set_facecolor("white")
        for name, place in places.items():
            text = "$w$" if name == "w" else f"${name}_{{{index}}}$"
            axis.text(*place, text, ha="center", va="center", size=14)
        for start, end in arrows:
            arrow = {
                "arrowstyle": "-|>",
                "fc": "black",
                "shrinkA": 0,
                "shrinkB": 0,
                "patchA": nodes[start],
                "patchB": nodes[end],
            }
            axis.annotate("", places[end], places[start], arrowprops=arrow)
    axes[1].add_patch(FancyBboxPatch((0.0, 0.05), 2.0, 0.9, "round,pad=0.1", fill=False, ec="#777777"))
    axes[1].text(2.0, 0.0, "$N$", ha="right", size=11)
    return figure


def main() -> None:
    given = [Path(each) for each in sys.argv[1:] if each != "--print"]
    for page in given or sorted(FOLDER.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if not (given or drawn(text)):
            continue
        names, printed = run(text)
        for name in drawn(text):
            names[name].figure.savefig(FOLDER / "pictures" / f"{name}.png", dpi=150)
            print(f"docs/pictures/{name}.png")
        if "--print" in sys.argv:
            page.write_text(printed, encoding="utf-8")
    if not given:
        graphical_models().savefig(FOLDER / "pictures" / "graphical_models.png", dpi=150)
        print("docs/pictures/graphical_models.png")


if __name__ == "__main__":
    main()
