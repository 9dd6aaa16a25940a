"""Convert the files of studies into parts of pages. Computes nothing: every figure is as the study wrote it.

The toy study: the table in README.md and docs/results/toy.md, toy.csv, biases.md and biases.png. Another study:
docs/results/study-NAME.md, which docs/study.md includes, and its pictures; of the quick study also the report,
docs/built/study_quick.html.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from rightloss.study.report.export import markdown_rows

from .charts import make_charts

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


def table(header: Sequence[str], words: int, rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table of which the first columns, `words`, are not numbers."""
    alignment = ["---"] * words + ["--:"] * (len(header) - words)
    return markdown_rows([[cell.replace("|", "\\|") for cell in line] for line in (header, alignment, *rows)])


def readme_table(rows: pd.DataFrame, model: str = "MLP") -> str:
    """Return a table of what each method loses to the best possible answer with one network, from each start."""
    shown = rows[rows["model"].isin([model, ANY]) & (rows["method"] != BEST) & rows["prevalence"].str.match(r"[\d.]+$")]
    lost, mean = (
        shown.set_index(["method", "start", "prevalence"])[name].unstack(sort=False) for name in ("lost", "mean_prediction")
    )
    rarest = min(lost, key=float)
    lines = [
        [key[0], key[1] or NONE, *(f"{each:.6f}" for each in values), f"{mean.loc[key, rarest]:.5f}"]
        for key, values in lost.T.items()
    ]
    return table(["loss", "start", *(f"prevalence {each}" for each in lost), f"mean prediction at {rarest}"], 2, lines)


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


def biases_page(rows: pd.DataFrame) -> str:
    """Return tables of the loss and of the mean prediction, a column per kind of selection, correct ones in bold."""
    shown = rows.map(lambda each: each if isinstance(each, str) else f"{each:.4f}")
    lost = [
        f"{f'**{row.beyond}**' if row.right == 'yes' else row.beyond} ({row.beyond_low} to {row.beyond_high})"
        for row in shown.itertuples()
    ]
    both, tables = shown.assign(lost=lost).set_index(["model", "remedy", "selection"]), []
    for wide in (both[name].unstack(sort=False) for name in ("lost", "mean_prediction")):
        lines = [[*key, *values] for key, values in wide.T.items()]
        tables.append(table(["model", "remedy", *(f"selected {kind}" for kind in wide)], 2, lines))
    best = ", ".join(dict.fromkeys(f"{row.best} ({row.model})" for row in shown.itertuples()))
    return (
        f"{MADE}\n\nExpected log-likelihood lost in the population, in nats, beyond the best that the model can do, and its "
        f"95 % interval over repetitions; bold where it is no more than noise. The best models themselves lose {best} to the "
        f"truth.\n\n{tables[0]}\n\nMean prediction in the population, where class 1 has {shown['population'].iloc[0]}."
        f"\n\n{tables[1]}\n"
    )


def make_results(folder: Path) -> None:
    for name in FILES:
        if not (folder / name).is_file():
            raise ValueError(f"Expected {folder / name}, but there is none: run `{STUDY}` first, and let it end.")
    readme, rows = ROOT / "README.md", json.loads((folder / "results.json").read_text(encoding="utf-8"))["rows"]
    pages = {
        readme: fill(readme.read_text(encoding="utf-8"), f"{LEAD}\n\n{readme_table(pd.DataFrame(rows))}"),
        RESULTS / "toy.md": toy_page((folder / "report.md").read_text(encoding="utf-8")),
        RESULTS / "biases.md": biases_page(pd.read_csv(folder / "biases.csv")),
    }
    for page, text in pages.items():
        page.write_text(text, encoding="utf-8")
    shutil.copyfile(folder / "table.csv", RESULTS / "toy.csv")
    shutil.copyfile(folder / "figures" / "biases.png", RESULTS / "biases.png")
    print("\n".join(str(page.relative_to(ROOT)) for page in (*pages, RESULTS / "toy.csv", RESULTS / "biases.png")))
    make_charts()


def make_study(folder: Path, name: str | None, command: str | None) -> None:
    """Write the part of a study's page: its tables, and traces, ROC curves and histograms for each data set, net and start."""
    name = name or folder.name
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    if summary["missing"]:
        raise ValueError(f"Expected a finished study in {folder}, but {summary['missing']} runs are missing: let it end.")
    pictures = sorted([*(folder / "figures").glob("trace-*.svg"), *(folder / "figures").glob("roc-*.svg")], reverse=True)
    tables = [path.read_text(encoding="utf-8") for path in sorted((folder / "tables").glob("*.md"))]
    shown = [f"![{picture.stem.replace('-', ' ')}](results/study-{name}-{picture.name})" for picture in pictures]
    made = f"Made by `{command or f'rightloss study {name} --out results/{name}'}` and `python docs/make.py study`."
    (RESULTS / f"study-{name}.md").write_text("\n\n".join([made, *tables, *shown]) + "\n", encoding="utf-8")
    for picture in pictures:
        shutil.copyfile(picture, RESULTS / f"study-{name}-{picture.name}")
    if name == "quick":  # the landing page links to it
        shutil.copyfile(folder / "report.html", ROOT / "docs" / "built" / "study_quick.html")
