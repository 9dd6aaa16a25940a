"""Convert the files of studies into parts of pages. Computes nothing: every figure is as the study wrote it.

The toy study: the table in README.md and docs/results/toy.md, toy.csv, biases.md and biases.png. Another study:
docs/results/study-NAME.md, which docs/study.md includes, and its pictures; of the quick study also the report,
docs/built/study_quick.html.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rightloss.study.report.export import markdown_rows

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "docs" / "results"
BEGIN, END = "<!-- begin toy -->", "<!-- end toy -->"
BEST, ANY, NONE = "best possible", "any", "–"
STUDY = "make toy"
MADE = f"Made by `{STUDY}` and `python docs/make.py results`."
FILES = ("results.json", "table.csv", "report.md", "biases.csv", "figures/biases.png")
LEAD = (
    "A small network, trained on equal classes and used at the prevalence of the column: expected log-likelihood lost to "
    "the best possible answer, in nats; lower is better. Start: what it predicts before training, π or equal classes; for "
    "cross-entropy the two coincide."
)
Row = dict[str, Any]


def table(header: Sequence[str], words: int, rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table of which the first columns, `words`, are not numbers."""
    alignment = ["---"] * words + ["--:"] * (len(header) - words)
    return markdown_rows([[cell.replace("|", "\\|") for cell in line] for line in (header, alignment, *rows)])


def readme_table(rows: list[Row], model: str = "MLP") -> str:
    """Return a table of what each method loses to the best possible answer with one network, from each start."""
    populations = [each for each in dict.fromkeys(row["prevalence"] for row in rows) if each.replace(".", "", 1).isdigit()]
    shown = [row for row in rows if row["model"] in (model, ANY) and row["method"] != BEST]
    found = {(row["prevalence"], row["method"], row["start"]): row for row in shown}
    rarest, lines = min(populations, key=float), []
    for method, start in dict.fromkeys((row["method"], row["start"]) for row in shown):
        lost = [f"{found[population, method, start]['lost']:.6f}" for population in populations]
        lines.append([method, start or NONE, *lost, f"{found[rarest, method, start]['mean_prediction']:.5f}"])
    header = ["loss", "start", *(f"prevalence {each}" for each in populations), f"mean prediction at {rarest}"]
    return table(header, 2, lines)


def fill(text: str, block: str) -> str:
    """Return `text` with everything between the marks replaced by `block`."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(END) < text.index(BEGIN):
        raise ValueError(f"Expected {BEGIN} once in README.md and {END} once after it, but they are not: put them back.")
    return f"{text.split(BEGIN)[0]}{BEGIN}\n{block}\n{END}{text.split(END)[1]}"


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
    lost, mean = (
        table(header, 2, [[*key, *(cell(found[*key, kind]) for kind in kinds)] for key in dict.fromkeys(k[:2] for k in found)])
        for cell in (_lost, lambda row: f"{float(row['mean_prediction']):.4f}")
    )
    best = ", ".join(dict.fromkeys(f"{float(row['best']):.4f} ({row['model']})" for row in rows))
    return (
        f"{MADE}\n\nExpected log-likelihood lost in the population, in nats, beyond the best that the model can do, and its "
        f"95 % interval over repetitions; bold where it is no more than noise. The best models themselves lose {best} to the "
        f"truth.\n\n{lost}\n\nMean prediction in the population, where class 1 has {float(rows[0]['population']):.4f}."
        f"\n\n{mean}\n"
    )


def _lost(row: dict[str, str]) -> str:
    value, low, high = (f"{float(row[name]):.4f}" for name in ("beyond", "beyond_low", "beyond_high"))
    return f"{f'**{value}**' if row['right'] == 'yes' else value} ({low} to {high})"


def write_toy(results: Path) -> None:
    for name in FILES:
        if not (results / name).is_file():
            raise ValueError(f"Expected {results / name}, but there is none: run `{STUDY}` first, and let it end.")
    rows = json.loads((results / "results.json").read_text(encoding="utf-8"))["rows"]
    readme = ROOT / "README.md"
    with open(results / "biases.csv", encoding="utf-8", newline="") as file:
        biases = biases_page(list(csv.DictReader(file)))
    pages = {
        readme: fill(readme.read_text(encoding="utf-8"), f"{LEAD}\n\n{readme_table(rows)}"),
        RESULTS / "toy.md": toy_page((results / "report.md").read_text(encoding="utf-8")),
        RESULTS / "biases.md": biases,
    }
    for page, text in pages.items():
        page.write_text(text, encoding="utf-8")
    shutil.copyfile(results / "table.csv", RESULTS / "toy.csv")
    shutil.copyfile(results / "figures" / "biases.png", RESULTS / "biases.png")
    print("\n".join(str(page.relative_to(ROOT)) for page in (*pages, RESULTS / "toy.csv", RESULTS / "biases.png")))


def write_study(results: Path, name: str, command: str | None) -> None:
    """Write the part of a study's page: its tables, and traces, ROC curves and histograms for each data set, net and start."""
    summary = json.loads((results / "summary.json").read_text(encoding="utf-8"))
    if summary["missing"]:
        raise ValueError(f"Expected a finished study in {results}, but {summary['missing']} runs are missing: let it end.")
    pictures = sorted([*(results / "figures").glob("trace-*.svg"), *(results / "figures").glob("roc-*.svg")], reverse=True)
    tables = [path.read_text(encoding="utf-8") for path in sorted((results / "tables").glob("*.md"))]
    shown = [f"![{picture.stem.replace('-', ' ')}](results/study-{name}-{picture.name})" for picture in pictures]
    made = f"Made by `{command or f'rightloss study {name} --out results/{name}'}` and `python docs/make.py study`."
    (RESULTS / f"study-{name}.md").write_text("\n\n".join([made, *tables, *shown]) + "\n", encoding="utf-8")
    for picture in pictures:
        shutil.copyfile(picture, RESULTS / f"study-{name}-{picture.name}")
    if name == "quick":  # the landing page links to it
        shutil.copyfile(results / "report.html", ROOT / "docs" / "built" / "study_quick.html")
