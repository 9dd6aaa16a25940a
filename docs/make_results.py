"""The toy study's files → the table in README.md and the page docs/results/toy.md.

    make study
    .venv/bin/python docs/make_results.py [RESULTS]      # RESULTS is results/toy by default

It computes nothing: every figure is one of `results.json` or `report.md`, as the study wrote them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- begin toy -->", "<!-- end toy -->"
BEST, NONE = "best possible", "–"

Row = dict[str, Any]


def readme_table(rows: list[Row]) -> str:
    """What each method loses to the best possible, a column per population; and two figures of the rarest one."""
    populations = list(dict.fromkeys(row["prevalence"] for row in rows))
    methods = list(dict.fromkeys((row["model"], row["method"]) for row in rows if row["method"] != BEST))
    found = {(row["prevalence"], row["model"], row["method"]): row for row in rows}
    rarest = min((each for each in populations if _is_number(each)), key=float)
    names = [f"prevalence {each}" if _is_number(each) else each for each in populations]
    header = ["network", "loss", *names, f"AUC at {rarest}", f"mean prediction at {rarest}"]
    lines = [header, ["---"] * 2 + ["--:"] * (len(header) - 2)]
    for model, method in methods:
        lost = [found[population, model, method]["lost"] for population in populations]
        row = found[rarest, model, method]
        figures = [*(_figure(value, 6) for value in lost), _figure(row["auc"], 4), _figure(row["mean_prediction"], 5)]
        lines.append([model, method, *figures])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def readme_block(rows: list[Row]) -> str:
    """The table between its two marks, with a line on how to read it."""
    lead = (
        "Trained on equal classes, used at the prevalence of the column: expected log-likelihood lost to the best possible "
        "answer, in nats; lower is better."
    )
    return f"{BEGIN}\n{lead}\n\n{readme_table(rows)}\n{END}"


def fill(text: str, block: str) -> str:
    """`text` with what stands between the marks, and the marks, replaced by `block`."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(END) < text.index(BEGIN):
        raise ValueError(f"Expected {BEGIN} once in README.md and {END} once after it, but they are not: put them back.")
    before, rest = text.split(BEGIN)
    return before + block + rest.split(END)[1]


def toy_page(report: str) -> str:
    """The study's report without its heading, to stand under one of docs/results.md."""
    heading, _, body = report.partition("\n")
    if not heading.startswith("# "):
        raise ValueError("Expected report.md to begin with a heading, but it does not: run `make study` again.")
    return f"Made by `make study` and `python docs/make_results.py`.\n\n*{heading[2:]}*\n{body}"


def main(results: Path) -> None:
    for name in ("results.json", "report.md"):
        if not (results / name).is_file():
            raise ValueError(f"Expected {results / name}, but there is none: run `make study` first, and let it end.")
    rows = json.loads((results / "results.json").read_text(encoding="utf-8"))["rows"]
    readme, page = ROOT / "README.md", ROOT / "docs" / "results" / "toy.md"
    filled = fill(readme.read_text(encoding="utf-8"), readme_block(rows))
    body = toy_page((results / "report.md").read_text(encoding="utf-8"))
    page.parent.mkdir(exist_ok=True)
    page.write_text(body, encoding="utf-8")
    readme.write_text(filled, encoding="utf-8")
    print(f"{readme.relative_to(ROOT)}\n{page.relative_to(ROOT)}")


def _figure(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results" / "toy")
    except ValueError as error:
        sys.exit(f"make_results: {error}")
