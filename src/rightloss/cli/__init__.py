"""The command line.

Stage: arguments of the shell → a study, its report, or an archive of nodules.

    study, dry_run      `rightloss study`: its options, and what it does; what it would do
    report              `rightloss report`: tables and report of a study's folder
    lidc                `rightloss lidc prepare`
    progress, errors    how far a job is; errors that a user can correct, in one line
"""

from typing import TYPE_CHECKING, Annotated

from .. import __version__
from .errors import plain_errors

if TYPE_CHECKING:
    from typer import Typer


def main() -> None:
    """Run the command of this process's arguments; `rightloss_command` calls it."""
    with plain_errors():
        application()()


def application() -> "Typer":
    """Return the commands. typer is imported here, so that its absence can be reported in one line."""
    import typer

    from .lidc import prepare
    from .report import report
    from .study import StudyCommand, study

    app = typer.Typer(
        help="Train with the right loss for the prevalence you will meet.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version)
        ] = False,
    ) -> None: ...

    app.command(cls=StudyCommand)(study)
    app.command()(report)
    lidc = typer.Typer(help="LIDC-IDRI, the paper's case study.", no_args_is_help=True)
    app.add_typer(lidc, name="lidc")
    lidc.command()(prepare)
    return app


def _version(asked: bool) -> bool:
    if asked:
        print(__version__)
        raise SystemExit(0)
    return asked
