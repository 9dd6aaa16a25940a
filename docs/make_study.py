"""Convert a study's files into docs/results/study-NAME.md, which docs/study.md includes, and its pictures.

Of the quick study the report is kept, too: docs/built/study_quick.html.

    .venv/bin/rightloss study quick --out results/quick
    .venv/bin/python docs/make_study.py results/quick [NAME]      # NAME is the folder's name by default

Computes nothing: every figure is taken from `summary.json` or `tables/`, as the study wrote them.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def pictures(results: Path) -> list[Path]:
    """Return the traces, and ROC curves with histograms, for each data set, net and start."""
    return sorted([*(results / "figures").glob("trace-*.svg"), *(results / "figures").glob("roc-*.svg")], reverse=True)


def page(results: Path, name: str, command: str) -> str:
    """Return the page: tables and pictures."""
    summary = json.loads((results / "summary.json").read_text(encoding="utf-8"))
    if summary["missing"]:
        raise ValueError(f"Expected a finished study in {results}, but {summary['missing']} runs are missing: let it end.")
    tables = [path.read_text(encoding="utf-8") for path in sorted((results / "tables").glob("*.md"))]
    shown = [f"![{picture.stem.replace('-', ' ')}](results/study-{name}-{picture.name})" for picture in pictures(results)]
    made = f"Made by `{command}` and `python docs/make_study.py`."
    return "\n\n".join([made, *tables, *shown]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="the study's folder")
    parser.add_argument("name", nargs="?", help="name of the page part; the folder's name by default")
    parser.add_argument("--command", help="command that made the results, as shown on the page")
    chosen = parser.parse_args()
    name = chosen.name or chosen.results.name
    command = chosen.command or f"rightloss study {name} --out results/{name}"
    folder = ROOT / "docs" / "results"
    (folder / f"study-{name}.md").write_text(page(chosen.results, name, command), encoding="utf-8")
    for picture in pictures(chosen.results):
        shutil.copyfile(picture, folder / f"study-{name}-{picture.name}")
    if name == "quick":  # the landing page links to it
        shutil.copyfile(chosen.results / "report.html", ROOT / "docs" / "built" / "study_quick.html")


if __name__ == "__main__":
    main()
