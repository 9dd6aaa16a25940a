"""Tables and report of a study's folder, made once for the results that they are of.

Stage: `StudyResults`, folder → `Summary`, tables and `report.html`; folder → the same `Summary` again, if nothing has changed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from ..atomic_files import write_whole
from ..study.config import StudyConfig
from ..study.report import print_summary, write_report, write_tables
from ..study.results import StudyResults, data_path, read_config
from ..study.summary import Summary, summarise

PAGES_SIZE = 30_000_000  # bytes of tables, figures and report, with room to spare
_STAMP = ".made"  # digest of the results that the pages are of; written after them
_PAGES = ("table.csv", "summary.json", "report.html")


def make_pages(results: StudyResults, out: Path) -> Summary:
    """Summary, tables and report, written to `out`."""
    if not results.runs:
        raise ValueError(f"Expected a run that is done in {out}, but there is none: run `rightloss study` again.")
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
    """The summary in `out`, if all runs of `config` are there and the pages are of them; else None."""
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
    """The table on the terminal, and last of all where the report is."""
    print_summary(summary)
    for name in ("table.csv", "report.html"):
        print(out / name)


def _digest(out: Path, config: StudyConfig) -> str:
    """Of everything in the folder that the pages are made from."""
    data = [data_path(out, source.name, config.task, source.digest) for source in config.sources]
    runs = [out / "runs" / f"{run.key}{ending}" for run in config.runs() for ending in (".json", ".npz")]
    digest = hashlib.sha256()
    for path in (out / "study.json", *data, *runs):
        content = path.read_bytes() if path.is_file() else b""
        digest.update(f"{path.relative_to(out).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()
