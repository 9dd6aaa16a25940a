"""`rightloss report DIR`: write the tables and the report of a study's folder, or of its one file, from its results.

Stage: `StudyResults`, folder → `Summary`, tables and `report.html`; folder → the saved `Summary`, if nothing has changed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..atomic_files import write_whole
from ..study.config import StudyConfig
from ..study.results import StudyResults, data_path, read_config, read_study, write_config
from .commands import argument
from .terminal import require

if TYPE_CHECKING:
    from ..study.summary import Summary

PAGES_SIZE = 30_000_000  # bytes: upper bound for tables, figures and report
_STAMP = ".made"  # digest of the results behind the pages; written after them
_PAGES = ("table.csv", "summary.json", "report.html")


def report(
    folder: Annotated[Path, argument("The folder that `rightloss study` wrote to, or a file that --keep wrote.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the pages; by default that of the study.")] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Also store the finished study in this small file (.npz), to make its pages from later.")
    ] = None,
) -> None:
    """Write the tables and the report of a study again from its results, even if the study is not finished."""
    from ..study.execute import check_folder
    from ..study.results import read_one_file, write_one_file

    require("rich", "matplotlib")
    if folder.is_file() and out is None:
        raise ValueError(f"Expected a folder for the pages of {folder}, but got none: add --out DIR.")
    out = folder if out is None else out
    check_folder(out, PAGES_SIZE)
    results = read_one_file(folder) if folder.is_file() else read_study(folder)
    if out != folder:
        _claim(out, results.config)
    if keep is not None:
        write_one_file(results, keep)
    show_pages(make_pages(results, out), out)


def _claim(out: Path, config: StudyConfig) -> None:
    """Make the folder that of this study; refuse that of another."""
    if (out / "study.json").exists() and read_config(out).to_dict() != config.to_dict():
        raise ValueError(f"Expected an empty folder for the pages, but {out} holds another study: choose another by --out.")
    out.mkdir(parents=True, exist_ok=True)
    write_config(out, config)


def make_pages(results: StudyResults, out: Path) -> Summary:
    """Write tables and report to `out`; return the summary that they show."""
    if not results.runs:
        raise ValueError(f"Expected a finished run in {out}, but there is none: run `rightloss study` again.")
    from ..study.report import write_report, write_tables
    from ..study.summary import summarise

    summary = summarise(results)
    try:
        write_tables(summary, out)
        write_report(results, summary, out)
        write_whole(out / _STAMP, _digest(out, results.config) + "\n")
    except OSError as error:
        raise OSError(
            f"Expected to write tables and report to {out}, but could not ({error.strerror or error}): make room, and run "
            "again; the results are kept."
        ) from error
    return summary


def made_pages(config: StudyConfig, out: Path) -> Summary | None:
    """Return the summary in `out` if all runs of `config` are done and the pages are up to date, else None."""
    from ..study.summary import Summary

    needed = [*("study.json", _STAMP, *_PAGES), *(f"runs/{run.key}.json" for run in config.runs())]
    if not all((out / name).is_file() for name in needed) or read_config(out).to_dict() != config.to_dict():
        return None
    if (out / _STAMP).read_bytes().strip() != _digest(out, config).encode():
        return None
    try:
        return Summary.read(out / "summary.json")
    except ValueError:  # damaged; it can be made again
        return None


def show_pages(summary: Summary, out: Path) -> None:
    """Print the table, and on the last line the path of the report."""
    from ..study.report import print_summary

    print_summary(summary)
    for name in ("table.csv", "report.html"):
        print(out / name)


def _digest(out: Path, config: StudyConfig) -> str:
    """Return a digest of all results in the folder that the pages use."""
    data = [data_path(out, source.name, config.task, source.digest) for source in config.sources]
    runs = [out / "runs" / f"{run.key}{ending}" for run in config.runs() for ending in (".json", ".npz")]
    digest = hashlib.sha256()
    for path in (out / "study.json", *data, *runs):
        content = path.read_bytes() if path.is_file() else b""
        digest.update(f"{path.relative_to(out).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()
