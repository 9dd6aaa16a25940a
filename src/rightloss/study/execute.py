"""A study, run: what its folder lacks is computed, and nothing else.

Stage: `StudyConfig`, folder → results on disk → `StudyResults`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

from ..lock import only_run
from .config import Group, Source, StudyConfig
from .engines import Engine, InProcess, Work
from .results import (
    DataSummary,
    RunResult,
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

# Groups done, with those under way as fractions; groups in all; a few words.
Progress = Callable[[float, int, str], None]

_FOLDERS = ("runs", "data")
_PARTIAL = ".saving-*.partial"  # as `rightloss.atomic_files` names them
_STALE = 3600.0  # seconds after which nobody is writing such a file any more


def run_study(
    config: StudyConfig,
    out: Path,
    engine: Engine | None = None,
    progress: Progress = lambda done, total, words: None,
    work: Work | None = None,
) -> StudyResults:
    """Every run that `out` does not hold yet. A study that was stopped, or has grown, goes on from what is there.

    Args:
        config: what to run.
        out: a folder, made if need be. Runs of another study in it stay, and are no part of this one.
        engine: where groups are run; in this process by default.
        progress: told how far it is.
        work: what is done with a group; `train_group` by default.

    Raises:
        ValueError: `out` is no folder for a study, or holds one of another version, or another process is running one there, or
            a result in it is damaged or another run's; the data cannot be read. Nothing is computed.
        OSError: `out` cannot be written, or the disk is full; as a ChildProcessError: the processes that ran a group died,
            again and again. What is done is kept.
    """
    _check(out)
    total = len(config.groups())
    progress(0.0, total, "reading the data")
    summaries = _new_summaries(config, out)  # before anything is written: bad data are refused here
    with ExitStack() as stack:
        with _writing(out):
            for name in _FOLDERS:
                (out / name).mkdir(parents=True, exist_ok=True)
            stack.enter_context(only_run(out / "study.json"))
            _begin(config, out, summaries)
        groups = _missing(config, out)
        if groups:
            _run(groups, out, InProcess() if engine is None else engine, _counted(progress, groups, total), work or _training())
        progress(float(total), total, "done")
        return read_study(out)


def _run(groups: list[Group], out: Path, engine: Engine, report: Callable[[int, float], None], work: Work) -> None:
    report(0, 0.0)
    with closing(engine.run(work, groups, report)) as finished:
        for number, results in finished:
            _write(out, groups[number], results)
            report(number, 1.0)


def _write(out: Path, group: Group, results: list[RunResult]) -> None:
    came = [result.config for result in results]
    assert sorted(run.key for run in came) == sorted(run.key for run in group.runs), f"{group.label}: other runs came back"
    with _writing(out):
        for result in results:
            write_run(out, result)


def _missing(config: StudyConfig, out: Path) -> list[Group]:
    """The groups with those of their runs that are not done; a damaged one is an error."""
    data = {each.name: read_data(out, each.name, config.task, each.digest) for each in config.sources}
    groups = [
        replace(each, runs=tuple(run for run in each.runs if read_run(out, run, data[run.data]) is None))
        for each in config.groups()
    ]
    return [group for group in groups if group.runs]


def _counted(progress: Progress, groups: list[Group], total: int) -> Callable[[int, float], None]:
    """Of each group the largest share that was told: from elsewhere, one may come late."""
    shares = [0.0] * len(groups)

    def report(number: int, share: float) -> None:
        shares[number] = max(shares[number], min(1.0, share))
        progress(total - len(groups) + sum(shares), total, groups[number].label)

    return report


def _new_summaries(config: StudyConfig, out: Path) -> list[tuple[Source, DataSummary]]:
    """Of the data sets that are not there yet; a damaged one is an error."""
    from .datasets import summary_of

    summaries = []
    for source in config.sources:
        if data_path(out, source.name, config.task, source.digest).exists():
            read_data(out, source.name, config.task, source.digest)
        else:
            summaries.append((source, summary_of(source, config.task)))
    return summaries


def _begin(config: StudyConfig, out: Path, summaries: list[tuple[Source, DataSummary]]) -> None:
    """What a killed run left half-written goes; what the runs are of is written."""
    for name in _FOLDERS:
        _clear(out / name)
    _clear(out, _STALE)  # somebody may be writing a report
    for source, summary in summaries:
        write_data(out, summary, config.task, source.digest)
    write_config(out, config)


def _clear(folder: Path, age: float = 0.0) -> None:
    for path in folder.glob(_PARTIAL):
        if time.time() - path.stat().st_mtime >= age:
            path.unlink(missing_ok=True)


def _check(out: Path) -> None:
    """Without writing to it."""
    place = next(each for each in (out, *out.absolute().parents) if os.path.lexists(each))
    if not place.is_dir():
        raise ValueError(f"Expected {out} to be a folder, but {place} is a file: choose another name.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise PermissionError(f"Expected a folder that can be written, but {place} cannot: choose another.")
    if (out / "study.json").exists():
        read_config(out)  # somebody else's is not overwritten


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(
            f"Expected to write the results to {out}, but could not ({error.strerror or error}): make room there, or choose "
            "another folder; what is done is kept."
        ) from error


def _training() -> Work:
    from .training import train_group

    return train_group
