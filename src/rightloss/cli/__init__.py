"""The command line.

Stage: arguments of the shell → a table's model and its predictions, a study and its report, or an archive of nodules.

    commands                commands by name, each imported only when it is used; options that they share
    check, fit, predict     `rightloss check`, `fit`, `predict`, `evaluate`, `prevalence`: commands for tables
    evaluate, prevalence
    card, retarget          `rightloss card`, `retarget`: scores of any program
    population              the population as users type it: 0.001, 0.1%, 1/1000, 12/3000, a range, a=0.9,b=0.1
    scores                  files of scores; at other class frequencies
    labelled                labelled predictions of a file, a model or a study, for `card` and `evaluate`
    tables                  tables that are read and written by chunk, predictions as CSV or Parquet
    terminal                what they print: tables, findings, JSON, the next command, progress; user errors in one line
    study, dry_run          `rightloss study`: options and execution; the plan of a dry run
    report                  `rightloss report`: tables and report of a study's folder
    lidc                    `rightloss lidc prepare`
"""

from typing import TYPE_CHECKING, Annotated

from .. import __version__
from .terminal import plain_errors

if TYPE_CHECKING:
    from typer import Typer


def main() -> None:
    """Run the command line; called by `rightloss_command`."""
    with plain_errors():
        application()()


def application() -> "Typer":
    """Return the commands. typer is imported here, so that a missing typer is reported in one line."""
    import typer

    from .commands import LazyGroup

    app = typer.Typer(
        cls=LazyGroup,
        help="Train with the right loss for the prevalence you will meet.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version)
        ] = False,
    ) -> None: ...

    return app


def _version(asked: bool) -> bool:
    if asked:
        print(__version__)
        raise SystemExit(0)
    return asked
