"""`rightloss report DIR`: write the tables and the report of a study's folder from its results.

Stage: `StudyResults`, folder → `Summary`, tables and `report.html`; folder → the saved `Summary`, if nothing has changed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..atomic_files import write_whole
from ..study.config import StudyConfig
from ..study.results import StudyResults, data_path, read_config, read_study
from .errors import plain_errors, require

if TYPE_CHECKING:
    from ..study.summary import Summary

PAGES_SIZE = 30_000_000  # bytes: upper bound for tables, figures and report
_STAMP = ".made"  # digest of the results behind the pages; written after them
_PAGES = ("table.csv", "summary.json", "report.html")


def report(
    folder: Annotated[Path, typer.Argument(help="The folder that `rightloss study` wrote to.", show_default=False)],
) -> None:
    """Write the tables and the report of a study again from its results, even if the study is not finished."""
    with plain_errors():
        from ..study.execute import check_folder

        require("rich", "matplotlib")
        check_folder(folder, PAGES_SIZE)
        show_pages(make_pages(read_study(folder), folder), folder)


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

    if not all((out / name).is_file() for name in ("study.json", _STAMP, *_PAGES)):
        return None
    if read_config(out).to_dict() != config.to_dict():
        return None
    if not all((out / "runs" / f"{run.key}.json").is_file() for run in config.runs()):
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
