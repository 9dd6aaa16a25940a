"""Tables as files: CSV, LaTeX, Markdown, JSON.

Stage: `Summary` → `table.csv`, `comparisons.csv`, `summary.json`, `tables/NAME.tex` and `.md`, each written whole.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from pathlib import Path

from ...atomic_files import write_whole
from ...metrics import Figure
from ..pooled_predictions import CellKey
from .contract import Summary
from .latex import to_latex
from .layouts import NAMES, Entry, Line, Table, tables

_COUNTS = ("folds", "seeds", "nodules", "patients")


def write_tables(summary: Summary, out: Path) -> list[Path]:
    """All of them, the same to the byte for the same summary; tables of another study in this folder go. Returns the paths."""
    texts = {"table.csv": to_csv(summary), "comparisons.csv": comparisons_csv(summary), "summary.json": summary.to_json()}
    for table in tables(summary):
        texts |= {f"tables/{table.name}.tex": to_latex(table), f"tables/{table.name}.md": to_markdown(table)}
    (out / "tables").mkdir(parents=True, exist_ok=True)
    for name in {f"tables/{name}.{ending}" for name in NAMES for ending in ("tex", "md")} - set(texts):
        (out / name).unlink(missing_ok=True)
    for name, text in texts.items():
        write_whole(out / name, text)
    return [out / name for name in texts]


def to_csv(summary: Summary) -> str:
    """A line per row; of each figure the value and both ends, empty where it has none (`summary.json` says why)."""
    names = list(dict.fromkeys(name for row in summary.rows for name in row.figures))
    lines = [[*CellKey._fields, *_COUNTS, *(column for name in names for column in (name, f"{name}_low", f"{name}_high"))]]
    for row in summary.rows:
        figures = [text for name in names for text in _numbers(row.figures.get(name, Figure(math.nan)))]
        lines.append([*_words(row.key), *(str(getattr(row, name)) for name in _COUNTS), *figures])
    return _csv(lines)


def comparisons_csv(summary: Summary) -> str:
    """A line per difference, ours less theirs."""
    lines = [["about", *CellKey._fields, *(f"their_{name}" for name in CellKey._fields)]]
    lines[0] += ["figure", "difference", "low", "high", "standing", "folds", "folds_ahead", "folds_behind"]
    for each in summary.comparisons:
        for name, found in each.differences.items():
            counts = [str(count) for count in (found.folds, found.ahead, found.behind)]
            keys = [*_words(each.ours), *_words(each.theirs)]
            lines.append([each.about, *keys, name, *_numbers(found.figure), found.standing, *counts])
    return _csv(lines)


def to_markdown(table: Table) -> str:
    """With intervals in brackets."""
    head = ["", *table.columns]
    rule = ["---", *("--:" for _ in table.columns)]
    lines = [head, rule]
    for section in table.sections:
        lines.append([f"**{_cell(section.title)}**", *("" for _ in table.columns)])
        lines += [_markdown_line(line) for line in section.lines]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{table.title}**\n\n{rows}\n\n" + "\n\n".join(table.notes) + "\n"


def _markdown_line(line: Line) -> list[str]:
    return [_cell(line.label), *(in_brackets(entry) for entry in line.entries)]


def in_brackets(entry: Entry) -> str:
    return f"{entry.value} ({entry.interval})" if entry.interval else entry.value


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _words(key: CellKey) -> list[str]:
    return ["" if each is None else f"{each:.12g}" if isinstance(each, float) else each for each in key]


def _numbers(figure: Figure) -> list[str]:
    return ["" if math.isnan(each) else f"{each:.9g}" for each in (figure.value, figure.low, figure.high)]


def _csv(lines: Iterable[Iterable[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
