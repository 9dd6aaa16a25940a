"""The command line: `rightloss study toy --out DIR`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from . import __version__

if TYPE_CHECKING:
    from typer import Typer

PRESETS = ("toy",)
_EXTRA = {"typer": "typer", "rich": "rich", "sklearn": "scikit-learn"}


def main() -> None:
    """The entry point: `rightloss` in a shell."""
    with _plain_errors():
        application()()


def application() -> "Typer":
    """The commands. typer is imported here, so that its absence can be told in one line."""
    import typer

    app = typer.Typer(
        help="Train with the right loss for the prevalence you will meet.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_version)
        ] = False,
    ) -> None: ...

    @app.command()
    def study(
        preset: Annotated[str, typer.Argument(help=f"Which study: {', '.join(PRESETS)}.")],
        out: Annotated[Path, typer.Option(help="Folder for the results; a study that was stopped goes on from there.")],
        seeds: Annotated[int, typer.Option(help="Repetitions, each with its own data.")] = 5,
    ) -> None:
        """Run a study, print its table and write it to a folder.

        toy: each loss on small synthetic populations whose best possible answer is known; about two minutes.
        """
        with _plain_errors():
            _study(preset, out, seeds)

    return app


def _study(preset: str, out: Path, seeds: int) -> None:
    if preset not in PRESETS:
        raise ValueError(f"Expected a study among {', '.join(PRESETS)}, but got {preset!r}.")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from .study.table import print_results
    from .study.toy import ToyConfig, run_study

    config, console = ToyConfig(seeds=seeds), Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def show(done: int, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total, description=label)

        results = run_study(config, out, show)
    print_results(results)
    for name in ("results.json", "table.csv", "report.md"):
        print(out / name)


def _version(asked: bool) -> bool:
    if asked:
        print(__version__)
        raise SystemExit(0)
    return asked


@contextmanager
def _plain_errors() -> Iterator[None]:
    """What a user can mend is said in one line on stderr, without a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        _leave("interrupted; run again to go on", 130)
    except ModuleNotFoundError as error:
        missing = _EXTRA.get((error.name or "").partition(".")[0])
        if missing is None:
            raise
        _leave(f'{missing} is needed for this: pip install "rightloss[study]"', 1)
    except ValueError as error:
        _leave(str(error), 2)
    except OSError as error:
        _leave(str(error), 1)


def _leave(message: str, code: int) -> None:
    print(f"rightloss: {message}", file=sys.stderr)
    # Without the cause, which would be shown as a traceback.
    raise SystemExit(code) from None
