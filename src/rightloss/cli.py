"""The command line: `rightloss study toy --out DIR`, `rightloss lidc prepare --dicom DIR --out nodules.npz`."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from . import __version__

if TYPE_CHECKING:
    from typer import Typer

PRESETS = ("toy",)
# By the module that is missing: what to install, and with which extra of rightloss.
_EXTRA = {
    "typer": ("typer", "study"),
    "rich": ("rich", "study"),
    "sklearn": ("scikit-learn", "study"),
    "pandas": ("pandas", "lidc"),
    "scipy": ("scipy", "lidc"),
    "pydicom": ("pydicom", "lidc"),
}


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

    lidc = typer.Typer(help="LIDC-IDRI, the paper's case study.", no_args_is_help=True)
    app.add_typer(lidc, name="lidc")

    @lidc.command()
    def prepare(
        dicom: Annotated[Path, typer.Option(help="Folder with LIDC-IDRI's CT series, anywhere below it.")],
        out: Annotated[Path, typer.Option(help="The file to write, .npz; a run that was stopped goes on.")],
        workers: Annotated[int | None, typer.Option(help="Processes; by default one per processor, at most 8.")] = None,
    ) -> None:
        """Cut every nodule from CT, 64³ voxels at 1 mm, and write them to one file."""
        with _plain_errors():
            _prepare(dicom, out, workers)

    return app


def _study(preset: str, out: Path, seeds: int) -> None:
    if preset not in PRESETS:
        raise ValueError(f"Expected a study among {', '.join(PRESETS)}, but got {preset!r}.")
    with _progress() as show:
        from .study.table import print_results
        from .study.toy import ToyConfig, run_study

        results = run_study(ToyConfig(seeds=seeds), out, show)
    print_results(results)
    for name in ("results.json", "table.csv", "report.md"):
        print(out / name)


def _prepare(dicom: Path, out: Path, workers: int | None) -> None:
    with _progress() as show:
        from .lidc.ct import prepare
        from .lidc.ct.pixels import printable

        prepared = prepare(dicom, out, workers=workers, progress=show)
    print(prepared)
    print(f"what was skipped, and why: {printable(prepared.remarks_path)}")
    if prepared.path is None:
        _leave("no nodule could be cut, so that no archive was written", 1)
    print(printable(prepared.path))
    if prepared.parts is not None:
        _leave("the archive is incomplete; run again to try again what failed", 1)


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr, where that is a terminal; shown by calling with what is done, what there is, and a few words."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def show(done: int, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total, description=label)

        yield show


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
        _leave(f'{missing[0]} is needed for this: pip install "rightloss[{missing[1]}]"', 1)
    except ValueError as error:
        _leave(str(error), 2)
    except OSError as error:
        _leave(str(error), 1)


def _leave(message: str, code: int) -> None:
    print(f"rightloss: {message}", file=sys.stderr)
    # Without the cause, which would be shown as a traceback.
    raise SystemExit(code) from None
