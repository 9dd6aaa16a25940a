"""Write tables as CSV, LaTeX and Markdown, and print them. (The page's template writes HTML.)

Stage: `Summary` → `table.csv`, `comparisons.csv`, `summary.json`, `tables/NAME.tex` and `.md`, each written atomically.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...atomic_files import write_whole
from ...card.words import markdown_text
from ...metrics import Figure
from ..results import CellKey
from ..summary import Summary, wording
from .tables import COLUMNS, NAMES, RATING_TITLES, Table, sections, tables

if TYPE_CHECKING:
    from rich.console import Console

Lines = Mapping[str, Sequence[Sequence[str]]]  # of a table, by the title of their section
_COUNTS = ("folds", "seeds", "nodules", "patients")


def write_tables(summary: Summary, out: str | os.PathLike[str]) -> list[Path]:
    """Write every table, byte-identical for the same summary; remove tables of another study in the folder.

    Args:
        summary: of the study, by `summarise`.
        out: folder for `table.csv`, `comparisons.csv`, `summary.json` and `tables/`.

    Returns:
        the paths of the files.

    Examples:
        >>> import tempfile
        >>> from rightloss.study import PRESETS, StudyResults
        >>> from rightloss.study.summary import summarise
        >>> from rightloss.study.report import write_tables
        >>> results = StudyResults(PRESETS["quick"], data={}, runs=())
        >>> [path.name for path in write_tables(summarise(results), tempfile.mkdtemp())]
        ['table.csv', 'comparisons.csv', 'summary.json']
    """
    out = Path(out)
    texts = {"table.csv": figures_csv(summary), "comparisons.csv": comparisons_csv(summary), "summary.json": summary.to_json()}
    for table in tables(summary):
        texts |= {f"tables/{table.name}.tex": to_latex(table), f"tables/{table.name}.md": to_markdown(table)}
    (out / "tables").mkdir(parents=True, exist_ok=True)
    for name in {f"tables/{name}.{ending}" for name in NAMES for ending in ("tex", "md")} - set(texts):
        (out / name).unlink(missing_ok=True)
    for name, text in texts.items():
        write_whole(out / name, text)
    return [out / name for name in texts]


def figures_csv(summary: Summary) -> str:
    """Return a line per row of the summary: value and both ends of each figure, empty if undefined (`summary.json` says
    why)."""
    names = list(dict.fromkeys(name for row in summary.rows for name in row.figures))
    columns = [*CellKey._fields, *_COUNTS, *(column for name in names for column in (name, f"{name}_low", f"{name}_high"))]
    rows = []
    for row in summary.rows:
        figures = [each for name in names for each in _numbers(row.figures.get(name, Figure(math.nan)))]
        rows.append([*row.key, *(getattr(row, name) for name in _COUNTS), *figures])
    return csv_text(columns, rows)


def comparisons_csv(summary: Summary) -> str:
    """Return a line per difference, ours minus theirs."""
    columns = ["about", *CellKey._fields, *(f"their_{name}" for name in CellKey._fields)]
    columns += ["figure", "difference", "low", "high", "standing", "folds", "folds_ahead", "folds_behind"]
    rows = []
    for each in summary.comparisons:
        for name, found in each.differences.items():
            counts = (found.standing, found.folds, found.ahead, found.behind)
            rows.append([each.about, *each.ours, *each.theirs, name, *_numbers(found.figure), *counts])
    return csv_text(columns, rows)


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]], digits: int = 9) -> str:
    """Return the rows as CSV; None and NaN are empty cells."""
    import pandas as pd

    text: str = pd.DataFrame(rows, columns=columns).to_csv(index=False, lineterminator="\n", float_format=f"%.{digits}g")
    return text


def _numbers(figure: Figure) -> tuple[float, float, float]:
    return figure.value, figure.low, figure.high


# Markdown.


def to_markdown(table: Table) -> str:
    """Return a table with its title and notes; intervals are in brackets."""
    lines = [["", *table.columns], ["---", *("--:" for _ in table.columns)]]
    for section in table.sections:
        lines.append([f"**{markdown_text(section.title)}**", *("" for _ in table.columns)])
        lines += [[markdown_text(text) for text in (line.label, *map(str, line.entries))] for line in section.lines]
    notes = "".join(f"{note}\n\n" for note in table.notes)
    return f"**{table.title}**\n\n{markdown_rows(lines)}\n\n{notes}"[:-1]


def markdown_rows(lines: Iterable[Sequence[str]]) -> str:
    """Return the lines as rows of a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# LaTeX: needs `booktabs`, and nothing else.

_LATEX = {
    **{sign: rf"\{sign}" for sign in "{}%_&#$"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "π": r"$\pi$",
    "−": "$-$",
    "–": "--",
    "±": r"$\pm$",
    "½": r"$\frac12$",
    "∞": r"$\infty$",
    "→": r"$\to$",
}
_LAST_KNOWN = "\u017f"  # up to here, plain LaTeX prints every letter


def latex_text(text: str) -> str:
    """Escape LaTeX's markup."""
    return "".join(_LATEX.get(sign, sign if sign <= _LAST_KNOWN else "?") for sign in text)


def to_latex(table: Table) -> str:
    """Return a LaTeX float with the title above and the notes below; intervals are in small print under the figures."""
    import pandas as pd

    rows: list[list[str]] = []
    for section in table.sections:
        rows.append([rf"\rlap{{\textit{{{latex_text(section.title)}}}}}", *("" for _ in table.columns)])
        for line in section.lines:
            rows.append([latex_text(text) for text in (line.label, *(entry.value for entry in line.entries))])
            if any(entry.range for entry in line.entries):
                rows.append(["", *(rf"{{\tiny {latex_text(entry.range)}}}" if entry.range else "" for entry in line.entries)])
    frame = pd.DataFrame(rows, columns=["", *map(latex_text, table.columns)])
    text = frame.to_latex(
        index=False,
        column_format="l" + "r" * len(table.columns),
        caption=latex_text(table.title),
        label=f"tab:{table.name.replace('_', '-')}",
        position="htbp",
    )
    notes = "".join(rf"\par\smallskip\parbox{{\textwidth}}{{\scriptsize {latex_text(note)}}}" + "\n" for note in table.notes)
    wide = r"\centering\footnotesize\setlength{\tabcolsep}{3pt}" + "\n" + r"\makebox[\textwidth][c]{\begin{tabular}"
    text = text.replace(r"\begin{tabular}", wide).replace(r"\end{tabular}", r"\end{tabular}}")
    return "% needs \\usepackage{booktabs}\n" + text.replace(r"\end{table}", notes + r"\end{table}")


# The terminal.

_WIDE = {name: title for name, title in COLUMNS.items() if name != "skill"}
_NARROW = {name: title for name, title in _WIDE.items() if name != "calibration_error"}
_RATINGS_NARROW = {
    "expected_log_likelihood": "exp. log-lik.",
    **{f"majority_{name}": title for name, title in RATING_TITLES.items()},
    "score_error": "score error",
}
_RATINGS_WIDE = {**_RATINGS_NARROW, "majority_malignant_accuracy": "benign or malignant"}
_READING = "Intervals are 95 %, by patient; the report explains every column."
_WITH_INTERVAL = ("expected_log_likelihood", "auc", "majority_balanced_off_by_one")  # in a wide terminal


def print_summary(summary: Summary) -> None:
    """Print the table, and how the default stands; the report has the rest.

    The table fits 80 columns, and has intervals and more figures if there is room. Missing runs come first.

    Examples:
        >>> from rightloss.study import PRESETS, StudyResults
        >>> from rightloss.study.summary import summarise
        >>> from rightloss.study.report import print_summary
        >>> print_summary(summarise(StudyResults(PRESETS["quick"], data={}, runs=())))
        The study is incomplete: 80 of 80 runs are missing, ...
    """
    title = wording.incomplete(summary) or wording.title(summary.config)
    sentences = [*wording.headline(summary), *([_READING] if summary.rows else [])]
    print_page(f"{title}\n", [*_layouts(summary)] if summary.rows else [], ["", *sentences] if summary.rows else sentences)


def _layouts(summary: Summary) -> Iterator[tuple[list[str], Lines]]:
    """Yield the table with more figures and intervals, then a narrow one."""
    wide, narrow = (_RATINGS_WIDE, _RATINGS_NARROW) if summary.config.task == "rating" else (_WIDE, _NARROW)
    for columns, ranges in ((wide, _WITH_INTERVAL), (narrow, ())):
        shown: dict[str, list[list[str]]] = {}
        for section in sections(summary, columns):
            for line in section.lines:
                entries = zip(columns, line.entries, strict=True)
                texts = [str(each) if name in ranges else each.value for name, each in entries]
                shown.setdefault(section.title, []).append([line.label, *texts])
        yield ["", *columns.values()], shown


def print_page(title: str, layouts: Sequence[tuple[Sequence[str], Lines]], sentences: Iterable[str], left: int = 1) -> None:
    """Print a title, the first of these tables that fits the terminal, or else the last, and sentences; 140 columns wide if
    output goes to a file. A table is a header, and lines under titles; its first `left` columns are text."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    console.print(title, markup=False)
    if layouts:
        _print_table(console, layouts, left)
    for sentence in sentences:
        console.print(sentence, markup=False)
    console.print()


def _print_table(console: Console, layouts: Iterable[tuple[Sequence[str], Lines]], left: int) -> None:
    from rich.table import Table as RichTable
    from rich.text import Text

    for headers, shown in layouts:
        lines = [line for some in shown.values() for line in some]
        widths = [max(map(len, (*head.split(), *(line[at] for line in lines), ""))) for at, head in enumerate(headers)]
        if sum(widths) + len(widths) <= console.width:
            break
    widths[0] = max(16, min(widths[0], console.width - sum(widths[1:]) - len(widths)))
    for title, some in {"": [], **shown}.items():
        table = RichTable(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_header=not title, title_justify="left")
        table.title = Text(f"\n{title}", style="italic") if title else None
        for at, (head, width) in enumerate(zip(headers, widths, strict=True)):
            side: Literal["left", "right"] = "left" if at < left else "right"
            table.add_column(head, justify=side, width=width, overflow="fold", vertical="bottom")
        for line in some:
            table.add_row(*map(Text, line))
        console.print(table)
