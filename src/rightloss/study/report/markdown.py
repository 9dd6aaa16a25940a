"""The report as Markdown: findings, tables, links to the figures.

Stage: `StudyResults`, `Summary`, `Drawing`s → text.
"""

from __future__ import annotations

from textwrap import indent

from ..results import StudyResults
from ..summary import Summary
from .command import command
from .drawing import Drawing
from .methods_section import how_it_was_done, limits
from .page import title_of
from .table_text import plain, to_markdown
from .tables import comparison_table, result_tables


def markdown(results: StudyResults, summary: Summary, drawings: list[Drawing]) -> str:
    compared = comparison_table(summary)
    tables = [*result_tables(summary), *([] if compared is None else [compared])]
    lines = [
        f"# {title_of(results)}",
        "",
        *([plain(summary.answer), ""] if summary.answer else []),
        plain(summary.question),
        "",
    ]
    lines += [f"- {plain(each)}" for each in summary.findings]
    lines += ["", "## Tables", "", *(line for table in tables for line in to_markdown(table))]
    if drawings:
        lines += ["## Figures", ""]
    for each in drawings:
        lines += [f"![{plain(each.alt)}](figures/{each.name}.png)", "", plain(each.caption), ""]
    lines += ["## How it was done", "", *(f"- {plain(each)}" for each in how_it_was_done(results)), ""]
    lines += ["What it cannot say:", "", *(f"- {plain(each)}" for each in limits(results.config)), ""]
    return "\n".join([*lines, "The command that makes it again:", "", indent(command(results.config), "    "), ""])
