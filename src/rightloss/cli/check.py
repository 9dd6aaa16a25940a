"""`rightloss check data.csv`: what is this table good for?

Stage: a table → classes, rates, kinds of columns and findings on the terminal, and the next command to type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import commands, terminal
from .population import parse_population, population_text
from .terminal import leave, percent, quiet_exit

if TYPE_CHECKING:
    from pathlib import Path

    from ..tabular import TableReport


def check(
    data: commands.Data,
    target: commands.OptionalTarget = None,
    positive: commands.Positive = None,
    group: commands.Group = None,
    population: commands.Population = None,
    encoding: commands.Encoding = None,
    json: commands.Json = False,
) -> None:
    """See what a table is good for: its classes and rates, missing values, kinds of columns, and what looks wrong.

    Nothing is fitted or written. It ends with the next command to type.

    \b
    A first look, when you do not know the columns:
      rightloss check data.csv

    \b
    Before fitting, for a population in which 1 in 1,000 has the disease:
      rightloss check data.csv --target cancer --positive yes \\
        --group patient --population 1/1000
    """
    with quiet_exit():
        from ..tabular import inspect_table, read_table
    with terminal.warnings_on_stderr():
        mix = None if population is None else parse_population(population)
        frame = read_table(data, encoding=encoding)
        report = inspect_table(frame, target=target, positive=positive, group=group, population=mix)
    following = [] if report.errors else next_arguments(report, data, target, positive, group, population)
    if json:
        content = report.to_dict() | {"findings": terminal.findings_json(report.findings)}
        terminal.print_json(content | {"next": terminal.command_line(*following) if following else None})
    else:
        _print_report(report, data, target)
        if following:
            _print_next(report, following, population)
    if report.errors:
        leave(" ".join(each.message for each in report.errors), 2)


def next_arguments(
    report: TableReport, data: Path, target: str | None, positive: str | None, group: str | None, population: str | None
) -> list[object]:
    """Return the next command: `fit`, or `check` with a target; "…" stands for what the table does not show."""
    if target is None or not report.classes:
        likely = report.likely_targets[0] if report.likely_targets else "…"
        return ["check", data, "--target", likely]
    own_mix = population_text([each.share for each in report.classes], [each.label for each in report.classes], report.positive)
    arguments: list[object] = ["fit", data, "--target", target]
    if len(report.classes) == 2:
        arguments += ["--positive", str(report.positive if positive is None else positive)]
    arguments += ["--group", group] if group else []
    arguments += ["--population", population or own_mix]
    for finding in report.findings:
        if finding.column and "leave it out" in finding.message:
            arguments += ["--leave-out", finding.column]
    return [*arguments, "--out", "model"]


def _print_report(report: TableReport, data: Path, target: str | None) -> None:
    used = sum(column.role == "feature" for column in report.columns)
    groups = "" if report.groups is None else f"; {report.groups:,} groups"
    terminal.print_sentences(
        f"{data}: {report.rows:,} rows, {len(report.columns)} columns, of which {used} can be used{groups}."
    )
    if report.classes:
        classes = [(str(each.label), f"{each.rows:,}", percent(each.share)) for each in report.classes]
        terminal.print_table(("class", "rows", "share"), classes, f"Classes of {target}")
    heads, rows = ("column", "kind", "role", "examples, or why not", "distinct", "missing"), list[tuple[str, ...]]()
    for each in report.columns:
        about = each.note or ", ".join(map(_short, each.examples))
        rows.append((each.name, each.kind, each.role, about, f"{each.distinct:,}", percent(each.missing)))
    terminal.print_table(heads, rows, "Columns", left=4)
    terminal.print_findings(report.findings)


def _short(example: str) -> str:
    """Return a number in six digits, and text as it is."""
    try:
        return f"{float(example):.6g}" if len(example) > 7 else example
    except ValueError:
        return example


def _print_next(report: TableReport, following: list[object], population: str | None) -> None:
    if following[0] == "check":
        others = ", ".join(report.likely_targets[1:])
        words = f"; others that could be it: {others}." if others else "."
        terminal.print_sentences(f"Which column has the classes? --target says so{words}")
    elif population is None:
        terminal.print_sentences(
            "--population is this file's own mix here: put how frequent the classes are where you will use the model. Unknown? "
            "Leave it out, then estimate it with `rightloss prevalence`."
        )
    terminal.print_next(*following)
