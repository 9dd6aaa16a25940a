"""Run a study: compute only what is missing in its folder.

Stage: `StudyConfig`, folder → results on disk → `StudyResults`.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

from ..atomic_files import check_writable, only_run
from .config import Group, Source, StudyConfig
from .engines import Engine, InProcess, Work
from .results import (
    DataSummary,
    StudyResults,
    data_path,
    read_config,
    read_data,
    read_run,
    read_study,
    write_config,
    write_data,
    write_run,
)

# Called with the groups done, including fractions; the number of groups; a short text.
Progress = Callable[[float, int, str], None]

_FOLDERS = ("runs", "data")
_MARKS = ("runs", "study.json", "results.json")  # one of them is in a study's folder from the start
_PAGES = ("table.csv", "comparisons.csv", "summary.json", "report.html", "report.md", "biases.csv", "tables", "figures")
_PARTIAL = ".saving-*.partial"  # as `rightloss.atomic_files` names them
_STALE = 3600.0  # seconds after which such a file is abandoned
_RUN_SIZE = 24_000  # bytes: predictions for some hundred nodules, and how they were chosen
_SOURCE_SIZE = 8_000_000  # bytes: small pictures of some thousand nodules


def run_study(
    config: StudyConfig,
    out: Path,
    engine: Engine | None = None,
    progress: Progress = lambda done, total, words: None,
    work: Work | None = None,
) -> StudyResults:
    """Run what is missing in `out` and return the results of all runs. A stopped or extended study resumes.

    Args:
        config: what to run.
        out: a folder, created if needed. Runs of other studies in it are kept and ignored.
        engine: where groups are run; in this process by default.
        progress: called with the groups done (with fractions), the groups in all, and a few words.
        work: function that trains a group; `rightloss.study.training.train_group` by default.

    Raises:
        ValueError: `out` is not a study folder, comes from another version, is in use by another process, or has a damaged
            result; or the data cannot be read. Nothing is computed.
        OSError: `out` cannot be written, or the disk is full; a ChildProcessError if the processes of a group died repeatedly.
            Finished runs are kept.

    Examples:
        >>> from pathlib import Path
        >>> from rightloss.study import StudyConfig, run_study
        >>> config = StudyConfig("quick", nets=("mlp",), losses=("weighted",), populations=(0.3,), folds=1)
        >>> len(config.runs())
        1
        >>> results = run_study(config, Path("results"))  # doctest: +SKIP
    """
    check_folder(out)
    if (out / "study.json").exists():
        read_config(out)  # the folder of something else is not overwritten
    total = len(config.groups())
    progress(0.0, total, "reading the data")
    summaries = _summaries(config, out)  # before anything is written: bad data are refused here
    with ExitStack() as stack:
        with _writing(out):
            for name in _FOLDERS:
                (out / name).mkdir(parents=True, exist_ok=True)
            stack.enter_context(only_run(out / "study.json"))
            _begin(config, out, summaries)
        groups = _missing(config, out, {source.name: summary for source, summary in summaries.items()})
        if groups:
            if work is None:
                from .training import train_group

                work = train_group
            _run(groups, out, InProcess() if engine is None else engine, _counted(progress, groups, total), work)
        progress(float(total), total, "done")
        return read_study(out)


def check_folder(out: Path, needed: int = 0) -> None:
    """Check that results can be written to `out`, or to its nearest existing parent; leave nothing there.

    Args:
        out: the folder.
        needed: bytes that must be free.

    Raises:
        ValueError: a file or a broken link is in the way, or the folder has files of others with the names of a study's pages.
        OSError: nothing can be written there, or not `needed` bytes.
    """
    place = nearest(out)
    if not place.is_dir():
        what = "a file" if place.exists() else "a broken link"
        raise ValueError(f"Expected {out} to be a folder, but {place} is {what}: choose another name.")
    check_writable(place)
    foreign = [] if any((out / name).exists() for name in _MARKS) else [name for name in _PAGES if (out / name).exists()]
    if foreign:
        raise ValueError(
            f"Expected a new folder or a study's, but {out} holds {', '.join(foreign)} of another program, which the study "
            "would overwrite: choose another name."
        )
    free = shutil.disk_usage(place).free
    if free < needed:
        raise OSError(
            f"Expected {size_in_words(needed)} of free space for the results, but {place} has {size_in_words(free)}: "
            "make room, or choose a folder on another disk."
        )


def disk_space(runs: int, sources: int) -> int:
    """Return an upper bound, in bytes, for this many results and data sets."""
    return _RUN_SIZE * runs + _SOURCE_SIZE * sources


def size_in_words(size: int) -> str:
    """Return bytes with two digits and a unit: 64 kB, 3.1 MB, 120 MB, 2.5 GB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            number = size / scale
            return f"{number:.1f} {unit}" if number < 10 else f"{number:.0f} {unit}"
    return f"{size} bytes"


def nearest(out: Path) -> Path:
    """Return `out`, or the nearest path above it that exists."""
    return next(each for each in (out, *out.absolute().parents) if os.path.lexists(each))


def _run(groups: list[Group], out: Path, engine: Engine, report: Callable[[int, float], None], work: Work) -> None:
    report(0, 0.0)
    with closing(engine.run(work, groups, report)) as finished:
        for number, results in finished:
            group, came = groups[number], sorted(result.config.key for result in results)
            assert came == sorted(run.key for run in group.runs), f"{group.label}: other runs came back"
            with _writing(out):
                for result in results:
                    write_run(out, result)
            report(number, 1.0)


def _missing(config: StudyConfig, out: Path, data: Mapping[str, DataSummary]) -> list[Group]:
    """Return the groups with their unfinished runs; raise an error if a result is damaged."""
    groups = [
        replace(each, runs=tuple(run for run in each.runs if read_run(out, run, data[run.data]) is None))
        for each in config.groups()
    ]
    return [group for group in groups if group.runs]


def _counted(progress: Progress, groups: list[Group], total: int) -> Callable[[int, float], None]:
    """Return a progress callback that never decreases: messages from other machines may come late."""
    shares = [0.0] * len(groups)

    def report(number: int, share: float) -> None:
        shares[number] = max(shares[number], min(1.0, share))
        progress(total - len(groups) + sum(shares), total, groups[number].label)

    return report


def _summaries(config: StudyConfig, out: Path) -> dict[Source, DataSummary]:
    """Return the data sets, from `out` or made again; raise an error if one there is damaged."""
    from .datasets import summary_of

    there = {each: data_path(out, each.name, config.task, each.digest).exists() for each in config.sources}
    return {
        each: read_data(out, each.name, config.task, each.digest) if found else summary_of(each, config.task)
        for each, found in there.items()
    }


def _begin(config: StudyConfig, out: Path, summaries: dict[Source, DataSummary]) -> None:
    """Remove what a killed run left half-written; write the data sets that are missing, and the config."""
    ages = {**{out / name: 0.0 for name in _FOLDERS}, out: _STALE}  # a report may be in progress in the folder itself
    for path, age in ((path, age) for folder, age in ages.items() for path in folder.glob(_PARTIAL)):
        if time.time() - path.stat().st_mtime >= age:
            path.unlink(missing_ok=True)
    for source, summary in summaries.items():
        if not data_path(out, source.name, config.task, source.digest).exists():
            write_data(out, summary, config.task, source.digest)
    write_config(out, config)


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(
            f"Expected to write the results to {out}, but could not ({error.strerror or error}): make room there, or choose "
            "another folder; finished runs are kept."
        ) from error
