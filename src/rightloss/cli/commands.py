"""Commands by name, each imported only when it runs or shows its own help, and the options that they share.

Stage: a command's name → its one-line help at once, or the command itself, from its module; a file's header → shell completion
of column names; one declaration of each option for every `--help`.
"""

from __future__ import annotations

import csv
import gzip
import importlib
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from .terminal import plain_errors, quiet_exit, running_options

_TABLES, _STUDIES = "For a table (CSV or Parquet), in this order", "For the paper's studies"


# By name, which is that of a module of this package and of a function or a `typer.Typer` in it: the panel of the list, a line.
COMMANDS = {
    "check": (_TABLES, "See what a table is good for: classes, rates, missing values, the next command."),
    "fit": (_TABLES, "Compare models at the population by cross-validation, keep the best, write a report."),
    "predict": (_TABLES, "Predict a table's rows, at the model's population or at another."),
    "evaluate": (_TABLES, "Evaluate a model on labelled rows: every figure at the population."),
    "card": (_TABLES, "Write one page about a model at a population, for the people who must decide."),
    "retarget": (_TABLES, "Move scores to other class frequencies, without a model: those of any program."),
    "prevalence": (_TABLES, "Estimate the class frequencies of unlabelled rows, with intervals."),
    "study": (_STUDIES, "Run a study, print its table, and write tables and a report to a folder."),
    "report": (_STUDIES, "Write the tables and the report of a study again from its results."),
    "lidc": (_STUDIES, "LIDC-IDRI, the paper's case study."),
}


class LazyGroup(TyperGroup):
    """The group `rightloss`: lists its commands without importing them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, (panel, text) in COMMANDS.items():  # placeholders, which only have help
            self.commands[name] = TyperCommand(name, short_help=text, help=text, rich_help_panel=panel)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; user errors are printed in one line."""
        with plain_errors():
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command itself, for running it, its help, and the completion of its options."""
        name, command, rest = super().resolve_command(ctx, args)
        loaded = load_command(str(command.name)) if command else None
        running_options.clear()
        running_options.update({each.name: each.opts[0] for each in getattr(loaded, "params", ()) if "--" in each.opts[0]})
        return name, loaded, rest


def load_command(name: str) -> Any:
    """Import the command's module and return the command; Ctrl-C during the import ends the process at once."""
    with quiet_exit():
        module = importlib.import_module(f".{name}", __package__)
    found = getattr(module, name)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(name, cls=getattr(module, "COMMAND_CLASS", TyperCommand))(found)
    return typer.main.get_command(alone)


def complete_column(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the columns with this prefix, of the table on the command line; none if it cannot be read."""
    named = [ctx.params.get(name) for name in ("data", "source", "model")]
    given = [*named, *reversed(ctx.args)]  # the latter if later arguments are incomplete
    path = next((Path(each) for each in given if each and Path(each).is_file()), None)
    try:
        return [name for name in _header(path) if name.startswith(incomplete)] if path else []
    except Exception:  # completion must not fail
        return []


def _header(path: Path) -> list[str]:
    if path.suffix.lower() == ".parquet":
        parquet: Any = importlib.import_module("pyarrow.parquet")
        return list(parquet.read_schema(path).names)
    opened: Any = gzip.open(path, "rt", errors="replace") if path.suffix == ".gz" else open(path, errors="replace")
    with opened as file:
        line = file.readline()
    return [name.strip() for name in next(csv.reader([line], delimiter=max(",;\t|", key=line.count)))]


def option(text: str, *names: str, **more: Any) -> Any:
    """Return an option whose default is not shown."""
    return typer.Option(*names, help=text, **{"show_default": False} | more)


def argument(text: str) -> Any:
    """Return an argument without a default."""
    return typer.Argument(help=text, show_default=False)


def column_option(text: str, *names: str) -> Any:
    """Return an option that is the name of a column."""
    return option(text, *names, metavar="COLUMN", autocompletion=complete_column)


def from_option() -> Any:
    """Return the option of the mix at which scores hold."""
    text = "The class frequencies at which the scores hold: 0.5 after training on as many ill as healthy people, say."
    return option(text, "--from", metavar="MIX")


def population_option(more: str = ".", *names: str) -> Any:
    """Return the option of the population; `more` ends its help."""
    forms = "0.001, 0.1%, 1/1000, 12/3000 of a survey, a range 0.3%-2%, or a=0.9,b=0.09,c=0.01"
    return option(f"How frequent the classes are where the model is used: {forms}{more}", *names, metavar="RATE")


Data = Annotated[Path, argument("The table: .csv, .tsv or .parquet; .gz too; or a folder of parts.")]
ModelFolder = Annotated[Path, argument("The folder that `rightloss fit` wrote.")]
Target = Annotated[str, column_option("The column with the classes.", "--target")]
OptionalTarget = Annotated[str | None, column_option("The column with the classes.", "--target")]
Targets = Annotated[
    list[str], column_option("The column with the classes. Repeat it for several findings, 0 or 1 each.", "--target")
]
Score = Annotated[
    list[str],
    column_option("A column of scores, the risk of the positive class. Repeat it for several models, or findings.", "--score"),
]
Scale = Annotated[
    str, typer.Option(help="What the scores are: probability, logit or log-probability. It is never guessed.", metavar="SCALE")
]
From = Annotated[str | None, from_option()]
Out = Annotated[Path | None, option("File to write: .csv, .csv.gz, .tsv or .parquet; by default CSV on standard output.")]
Keep = Annotated[list[str], column_option("A column of the table to keep; all by default. Repeat the option for more.")]
Positive = Annotated[str | None, option("The positive class: --population can give its frequency as a single number.")]
Group = Annotated[str | None, column_option("A column of patients or sites; rows of one group are never split.", "--group")]
Population = Annotated[str | None, population_option()]
Threshold = Annotated[float | None, option("For two classes: decide for the positive one from this probability on.")]
Encoding = Annotated[str | None, option("Encoding of a text file that is not UTF-8, such as cp1252.")]
Json = Annotated[bool, typer.Option("--json", help="Print only one JSON document on standard output.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]
Engine = Annotated[
    str, typer.Option(help="in-process, or ray: several parts of a folder at a time, on a Ray cluster.", metavar="ENGINE")
]
Address = Annotated[str | None, option("Address of a Ray cluster. By default Ray is started on this machine.")]
ENGINES = ("in-process", "ray")


def check_engine(name: str, address: str | None, engines: Collection[str] = ENGINES) -> None:
    """Raise ValueError for an unknown engine, or for an address that it does not use."""
    if name not in engines:
        raise ValueError(f"Expected a known engine, but got {name!r}: choose among {', '.join(engines)}.")
    if address is not None and name != "ray":
        raise ValueError(f"Expected --address with --engine ray, but got the engine {name}: leave it out.")
