"""The summary on a terminal: a table that fits it, then what it says.

Stage: `Summary` → text on standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from .contract import Summary
from .export import in_brackets
from .layouts import COLUMNS, LEGEND, PREDICTED, RATING_LEGEND, Line, sections

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDE = {name: title for name, title in COLUMNS.items() if name != "skill"}
_NARROW = {name: title for name, title in _WIDE.items() if name != "calibration_error"}
_RATINGS_NARROW = {
    "expected_log_likelihood": "exp. log-lik.",
    "majority_accuracy": "Acc.",
    "majority_balanced_accuracy": "BA",
    "majority_off_by_one": "Acc. ±1",
    "majority_balanced_off_by_one": "BA ±1",
    "score_error": "score error",
}
_RATINGS_WIDE = {**_RATINGS_NARROW, "majority_malignant_accuracy": "benign or malignant"}
_WITH_INTERVAL = ("expected_log_likelihood", "auc", "majority_balanced_off_by_one")  # where there is room


def print_summary(summary: Summary) -> None:
    """In 80 columns or more; with intervals and more figures where there is room. That runs are missing is said first."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 130, highlight=False)
    for sentence in (*summary.findings[: bool(summary.missing)], summary.question):
        console.print(sentence, markup=False)
        console.print()
    if summary.rows:
        _print_figures(summary, console)
    for sentence in _said(summary):
        console.print()
        console.print(sentence, markup=False)


def _print_figures(summary: Summary, console: Console) -> None:
    rating = summary.config.task == "rating"
    for table in _tables(summary, _RATINGS_NARROW if rating else _NARROW, _RATINGS_WIDE if rating else _WIDE, console.width):
        console.print(table)
    console.print()
    console.print(RATING_LEGEND if rating else f"{LEGEND} {PREDICTED}", markup=False)


def _said(summary: Summary) -> list[str]:
    checks = [f"{check.about} ({check.where}): {check.verdict}. {check.sentence}" for check in summary.checks]
    answer = [summary.answer] if summary.answer else []
    return [*answer, *summary.findings[bool(summary.missing) :], *(f"Paper: {each}" for each in checks)]


def _tables(summary: Summary, narrow: Mapping[str, str], wide: Mapping[str, str], room: int) -> Iterator[Table]:
    """The headers, then one for each section, all with the same columns."""
    for columns, shown in ((wide, _WITH_INTERVAL), (narrow, ())):
        found = [(section, [_cells(line, columns, shown) for line in section.lines]) for section in sections(summary, columns)]
        lines = [line for _, some in found for line in some]
        widths = _widths(lines, columns)
        if sum(widths) + len(widths) <= room:
            break
    widths[0] = max(16, min(widths[0], room - sum(widths[1:]) - len(widths)))
    yield _table("", [], ["", *columns.values()], widths)
    for section, some in found:
        yield _table(section.title, some, [], widths)


def _widths(lines: Sequence[Sequence[str]], columns: Mapping[str, str]) -> list[int]:
    """Of the longest entry, and of the longest word in the header."""
    headers = ["", *columns.values()]
    return [max(len(each) for each in (*title.split(), *(line[at] for line in lines), "")) for at, title in enumerate(headers)]


def _table(title: str, lines: Sequence[Sequence[str]], headers: Sequence[str], widths: Sequence[int]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_header=bool(headers), title_justify="left")
    table.title = Text(f"\n{title}", style="italic") if title else None
    for number, width in enumerate(widths):
        side: Literal["left", "right"] = "right" if number else "left"
        table.add_column(headers[number] if headers else "", justify=side, width=width, overflow="fold", vertical="bottom")
    for line in lines:
        table.add_row(*(Text(each) for each in line))
    return table


def _cells(line: Line, columns: Mapping[str, str], with_interval: Sequence[str]) -> list[str]:
    shown = [
        in_brackets(entry) if name in with_interval else entry.value for name, entry in zip(columns, line.entries, strict=True)
    ]
    return [line.label, *shown]
