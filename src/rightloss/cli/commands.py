"""Commands by name, each imported only when it runs or shows its own help.

Stage: a command's name → its one-line help at once, or the command itself, from its module.
"""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from .errors import plain_errors, quiet_exit, running_options

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
