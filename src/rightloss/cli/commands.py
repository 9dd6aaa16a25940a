"""Commands by name, each imported only when it runs or shows its own help.

Stage: a command's name → its one-line help at once, or the command itself, from its module.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from .errors import quiet_exit, running_options

_TABLES, _STUDIES = "For a table (CSV or Parquet), in this order", "For the paper's studies"


@dataclass(frozen=True)
class LazyCommand:
    """The module and the help line of a command.

    Attributes:
        module: of this package, with a function or a `typer.Typer` of the command's name.
        help: one line.
        panel: of the list of commands.
    """

    module: str
    help: str
    panel: str


COMMANDS = {
    "check": LazyCommand("check", "See what a table is good for: classes, rates, missing values, the next command.", _TABLES),
    "fit": LazyCommand("fit", "Compare models at the population by cross-validation, keep the best, write a report.", _TABLES),
    "predict": LazyCommand("predict", "Predict a table's rows, at the model's population or at another.", _TABLES),
    "evaluate": LazyCommand("evaluate", "Evaluate a model on labelled rows: every figure at the population.", _TABLES),
    "prevalence": LazyCommand("prevalence", "Estimate the class frequencies of unlabelled rows, with intervals.", _TABLES),
    "study": LazyCommand("study", "Run a study, print its table, and write tables and a report to a folder.", _STUDIES),
    "report": LazyCommand("report", "Write the tables and the report of a study again from its results.", _STUDIES),
    "lidc": LazyCommand("lidc", "LIDC-IDRI, the paper's case study.", _STUDIES),
}


class LazyGroup(TyperGroup):
    """The group `rightloss`: lists its commands without importing them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: _stand_in(name, known) for name, known in COMMANDS.items()}

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
        module = importlib.import_module(f".{COMMANDS[name].module}", __package__)
    found = getattr(module, name)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(name, cls=getattr(module, "COMMAND_CLASS", TyperCommand))(found)
    return typer.main.get_command(alone)


def _stand_in(name: str, known: LazyCommand) -> Any:
    """Return a placeholder command that only has help."""
    return TyperCommand(name, short_help=known.help, help=known.help, rich_help_panel=known.panel)
