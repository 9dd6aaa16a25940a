"""Tables as HTML and as Markdown.

Stage: `Table` → `Html`, or lines of Markdown.
"""

from __future__ import annotations

from .markup import Html, html, scrolling, tag
from .tables import Line, Table


def to_html(table: Table) -> Html:
    heads = [tag("td"), *(tag("th", each, scope="col") for each in table.columns)]
    bodies = [_body(title, lines, len(table.columns)) for title, lines in table.groups]
    content = tag("table", [tag("thead", tag("tr", heads)), *bodies], aria_label=table.title)
    return html([scrolling(content, table.title), *(tag("p", note, class_="small") for note in table.notes)])


def to_markdown(table: Table) -> list[str]:
    """With a line of its own for the title of each group."""
    lines = [f"### {plain(table.title)}", "", _row(["", *table.columns]), _row(["---", *["--:"] * len(table.columns)])]
    for title, rows in table.groups:
        lines += [_row([f"**{plain(title)}**", *[""] * len(table.columns)])] if title else []
        lines += [_row([plain(row.label), *(_cell(*each) for each in row.cells)]) for row in rows]
    return [*lines, "", *(each for note in table.notes for each in (plain(note), ""))]


def _body(title: str, lines: tuple[Line, ...], columns: int) -> Html:
    head = [tag("tr", tag("th", title, scope="rowgroup", colspan=columns + 1), class_="group")] if title else []
    return tag("tbody", [*head, *(_html_row(line) for line in lines)])


def _html_row(line: Line) -> Html:
    cells = [tag("td", [value, tag("span", reach, class_="range")] if reach else value) for value, reach in line.cells]
    return tag("tr", [tag("th", line.label, scope="row"), *cells], class_=line.kind or None)


def _cell(value: str, reach: str) -> str:
    return f"{value} ({reach})" if reach else value


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def plain(text: str) -> str:
    """What Markdown would take for its own, as text."""
    for mark in ("\\", "|", "<", "*", "_", "`", "[", "]"):
        text = text.replace(mark, f"\\{mark}")
    return text.replace("\n", " ")
