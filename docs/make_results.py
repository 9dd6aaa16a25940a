"""Convert the toy study's files into the table in README.md and the page parts docs/results/toy.md, biases.md and biases.png.

    make toy
    .venv/bin/python docs/make_results.py [RESULTS]      # RESULTS is results/toy by default

Computes nothing: every figure is taken from `results.json`, `report.md` or `biases.csv`, as the study wrote them.
"""

from __future__ import annotations

import csv
import json
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- begin toy -->", "<!-- end toy -->"
BEST, ANY, NONE = "best possible", "any", "–"
STUDY = "make toy"
MADE = f"Made by `{STUDY}` and `python docs/make_results.py`."
FILES = ("results.json", "report.md", "biases.csv", "figures/biases.png")

Row = dict[str, Any]


def readme_table(rows: list[Row], model: str = "MLP") -> str:
    """Return a table of what each method loses to the best possible answer with one network, from each start."""
    populations = [each for each in dict.fromkeys(row["prevalence"] for row in rows) if _is_number(each)]
    shown = [row for row in rows if row["model"] in (model, ANY) and row["method"] != BEST]
    found = {(row["prevalence"], row["method"], row["start"]): row for row in shown}
    rarest = min(populations, key=float)
    header = ["loss", "start", *(f"prevalence {each}" for each in populations), f"mean prediction at {rarest}"]
    lines = [header, ["---"] * 2 + ["--:"] * (len(header) - 2)]
    for method, start in dict.fromkeys((row["method"], row["start"]) for row in shown):
        lost = [found[population, method, start]["lost"] for population in populations]
        mean = found[rarest, method, start]["mean_prediction"]
        lines.append([method, start or NONE, *(f"{value:.6f}" for value in lost), f"{mean:.5f}"])
    return _markdown(lines)


def readme_block(rows: list[Row]) -> str:
    """Return the table between its two marks, with a line on how to read it."""
    lead = (
        "A small network, trained on equal classes and used at the prevalence of the column: expected log-likelihood lost to "
        "the best possible answer, in nats; lower is better. Start: what it predicts before training, π or equal classes; for "
        "cross-entropy the two coincide."
    )
    return f"{BEGIN}\n{lead}\n\n{readme_table(rows)}\n{END}"


def fill(text: str, block: str) -> str:
    """Return `text` with the marks and everything between them replaced by `block`."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(END) < text.index(BEGIN):
        raise ValueError(f"Expected {BEGIN} once in README.md and {END} once after it, but they are not: put them back.")
    before, rest = text.split(BEGIN)
    return before + block + rest.split(END)[1]


def toy_page(report: str) -> str:
    """Return the study's report without its heading, to be included in docs/results.md."""
    heading, _, body = report.partition("\n")
    if not heading.startswith("# "):
        raise ValueError(f"Expected report.md to begin with a heading, but it does not: run `{STUDY}` again.")
    return f"{MADE}\n\n*{heading[2:]}*\n{body}"


def biases_page(rows: list[dict[str, str]]) -> str:
    """Return tables of the loss and of the mean prediction, a column per kind of selection, correct ones in bold."""
    kinds = list(dict.fromkeys(row["selection"] for row in rows))
    found = {(row["model"], row["remedy"], row["selection"]): row for row in rows}
    header = ["model", "remedy", *(f"selected {kind}" for kind in kinds)]
    tables = []
    for cell in (_lost, _mean):
        lines = [header, ["---"] * 2 + ["--:"] * len(kinds)]
        for model, remedy in dict.fromkeys((row["model"], row["remedy"]) for row in rows):
            lines.append([model, remedy, *(cell(found[model, remedy, kind]) for kind in kinds)])
        tables.append(_markdown(lines))
    best = ", ".join(dict.fromkeys(f"{float(row['best']):.4f} ({row['model']})" for row in rows))
    return (
        f"{MADE}\n\nExpected log-likelihood lost in the population, in nats, beyond the best that the model can do, and its "
        f"95 % interval over repetitions; bold where it is no more than noise. The best models themselves lose {best} to the "
        f"truth.\n\n{tables[0]}\n\nMean prediction in the population, where class 1 has {float(rows[0]['population']):.4f}."
        f"\n\n{tables[1]}\n"
    )


def main(results: Path) -> None:
    for name in FILES:
        if not (results / name).is_file():
            raise ValueError(f"Expected {results / name}, but there is none: run `{STUDY}` first, and let it end.")
    rows = json.loads((results / "results.json").read_text(encoding="utf-8"))["rows"]
    readme, folder = ROOT / "README.md", ROOT / "docs" / "results"
    with open(results / "biases.csv", encoding="utf-8", newline="") as file:
        biases = biases_page(list(csv.DictReader(file)))
    pages = {
        readme: fill(readme.read_text(encoding="utf-8"), readme_block(rows)),
        folder / "toy.md": toy_page((results / "report.md").read_text(encoding="utf-8")),
        folder / "biases.md": biases,
    }
    folder.mkdir(exist_ok=True)
    for page, text in pages.items():
        page.write_text(text, encoding="utf-8")
    shutil.copyfile(results / "figures" / "biases.png", folder / "biases.png")
    print("\n".join(str(page.relative_to(ROOT)) for page in (*pages, folder / "biases.png")))


def _lost(row: dict[str, str]) -> str:
    value, low, high = (f"{float(row[name]):.4f}" for name in ("beyond", "beyond_low", "beyond_high"))
    return f"{f'**{value}**' if row['right'] == 'yes' else value} ({low} to {high})"


def _mean(row: dict[str, str]) -> str:
    return f"{float(row['mean_prediction']):.4f}"


def _markdown(lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results" / "toy")
    except ValueError as error:
        sys.exit(f"make_results: {error}")
