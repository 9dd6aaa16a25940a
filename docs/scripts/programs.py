"""Run the programs of pages, write what they print after them, and the pictures that they draw.

Blocks of ```python of a page are run in one namespace, and of ```sh in one folder, where the page says "The terminal shows:";
not those with `no-run`. A picture `pictures/NAME.png` is the figure of the axes with the name NAME in the page's programs, or
the first screen of the HTML that they write (`SCREENS`). Without a page, all pictures of axes are drawn, and the paper's Fig.
2: `graphical_models.png`. `risk_before_after.png` is made by examples/risk_before_after.py.
"""

from __future__ import annotations

import base64
import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch

DOCS = Path(__file__).resolve().parent.parent
PROGRAM = re.compile(
    r"^```(?P<language>python|sh)\n(?P<code>.*?)^```\n(?P<then>\s*(?:It prints|The terminal shows):\n\n"
    r"```text\n(?P<printed>.*?)^```)?",
    re.DOTALL | re.M,
)
PICTURE = re.compile(r"\]\((?:\.\./)?pictures/(\w+)\.png\)")
SCREENS = {  # by page: HTML that its programs make, the name in docs/built and docs/pictures, and the size of the screen
    "card.md": ("card.html", "card", (1120, 700)),
    "table.md": ("model/report.html", "table_report", (1280, 860)),
}
COMMAND = "import sys; sys.argv[0] = 'rightloss'; from rightloss_command import main; main()"


def run(text: str, folder: Path) -> tuple[dict[str, Any], str]:
    """Run a page's programs; return the names they define, and the page with their output."""
    names: dict[str, Any] = {"__name__": "page"}

    def execute(block: re.Match[str]) -> str:
        output = io.StringIO()
        if block["language"] == "sh":
            output.write(in_shell(block["code"], folder) if "The terminal shows:" in text else "")
        else:
            with redirect_stdout(output):
                exec(compile(block["code"], "page", "exec"), names)
        if not block["then"]:
            return block[0]
        return block[0].replace(f"```text\n{block['printed']}```", f"```text\n{output.getvalue()}```")

    return names, PROGRAM.sub(execute, text)


def in_shell(code: str, folder: Path) -> str:
    """Run commands in the folder, in which `examples/` is that of the checkout; return what they print."""
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(DOCS.parent / "examples")
    ours = f'python() {{ \'{sys.executable}\' "$@"; }}; rightloss() {{ python -c "{COMMAND}" "$@"; }}; set -e\n'
    done = subprocess.run(["bash", "-c", ours + code], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"Expected commands that succeed, but got {done.stderr}: {code}")
    return done.stdout.strip("\n") + "\n"


def drawn(text: str) -> list[str]:
    """Return the names of the pictures that the page's own programs draw."""
    code = "\n".join(block["code"] for block in PROGRAM.finditer(text))
    return [name for name in dict.fromkeys(PICTURE.findall(text)) if re.search(rf"^{name} = ", code, re.M)]


def take_picture(html: Path, name: str, size: tuple[int, int]) -> None:
    """Keep a page of HTML in docs/built, and its first screen in docs/pictures, by the browser of the tests."""
    sys.path.append(str(DOCS.parent / "tests"))
    from browser import open_browser

    with tempfile.TemporaryDirectory() as profile, open_browser(Path(profile)) as page:
        page.resize(*size)
        page.open(html)
        shutil.copy(html, DOCS / "built" / f"{name}.html")
        picture = page.call("Page.captureScreenshot", format="png")["data"]
        (DOCS / "pictures" / f"{name}.png").write_bytes(base64.b64decode(picture))


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
            arrow = {"arrowstyle": "-|>", "fc": "black", "shrinkA": 0, "shrinkB": 0}
            axis.annotate("", places[end], places[start], arrowprops={**arrow, "patchA": nodes[start], "patchB": nodes[end]})
    axes[1].add_patch(FancyBboxPatch((0.0, 0.05), 2.0, 0.9, "round,pad=0.1", fill=False, ec="#777777"))
    axes[1].text(2.0, 0.0, "$N$", ha="right", size=11)
    return figure


def make_programs(pages: Sequence[Path]) -> None:
    for page in pages or sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if not (pages or drawn(text)):
            continue
        with tempfile.TemporaryDirectory() as place:
            names, printed = run(text, Path(place))
            if pages and page.name in SCREENS:
                html, name, size = SCREENS[page.name]
                if page.name == "card.md":
                    names["made"].write(place)
                take_picture(Path(place) / html, name, size)
        for name in drawn(text):
            names[name].figure.savefig(DOCS / "pictures" / f"{name}.png", dpi=150)
            print(f"docs/pictures/{name}.png")
        if pages:
            page.write_text(printed, encoding="utf-8")
    if not pages:
        graphical_models().savefig(DOCS / "pictures" / "graphical_models.png", dpi=150)
