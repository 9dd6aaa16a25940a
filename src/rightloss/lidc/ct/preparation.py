"""Prepare a nodule archive: cut patches of all nodules from DICOM files.

Stage: folder of DICOM files, table of nodules → nodule archive (`.npz`), and a report, `Prepared`.

Each series is read in one of several processes and written to a shard next to the archive (in `OUT.parts`); an interrupted run
continues from the shards.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...arrays import checked_int
from ...atomic_files import check_writable, only_run, write_whole
from ...process_pool import Failure, run_jobs
from ..archive import checked_columns
from ..readings import nodules as all_nodules
from ..readings import scan_positions
from .dicom_files import Found, find_series, printable, require
from .shards import (
    NAMES,
    RATINGS,
    Shard,
    ShardJob,
    ShardNotWritten,
    delete_shards,
    make_shard,
    nodules_written,
    numeric_columns,
    ratings_by_reader,
    read_shard,
    shard_job,
    write_patches,
)

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Prepared", "Remark", "prepare"]

Report = Callable[[int, int, str], object]

_RESERVED = {"patches", "ratings", "spacing_mm", "nodule_id", "outside"}
_ANY_SERIES = (ShardNotWritten.__name__, ModuleNotFoundError.__name__)  # errors that every other series would raise as well


@dataclass(frozen=True)
class Remark:
    """A series (`nodule` None) or nodule that was skipped, or used with a reservation; `text` says why.

    Examples:
        >>> from rightloss.lidc.ct import Remark
        >>> Remark("1.2.3", nodule=None, skipped=True, text="not found").text
        'not found'
    """

    series_uid: str
    nodule: int | None
    skipped: bool
    text: str


@dataclass(frozen=True)
class Prepared:
    """The result of `prepare`.

    Attributes:
        path: the archive; None if no nodule could be cut, and none was written.
        remarks_path: the remarks, as a table.
        nodules: number of nodules in the archive.
        wanted: number of nodules in the requested series.
        series_read: number of series that were read.
        series_missing: UIDs of series that are not in the folder.
        series_failed: UIDs of series that failed by a crash, a time-out or the disk, and may be readable another time.
        parts: the folder of shards, kept for another run; None if none is needed.
        remarks: what was skipped, and what was used with reservations, by series and nodule.

    Examples:
        >>> from pathlib import Path
        >>> from rightloss.lidc.ct import Prepared
        >>> print(Prepared(Path("n.npz"), Path("n.skipped.csv"), 5, 5, 2, (), (), None, ()))
        nodules: 5 of 5 written, 0 skipped in series that were read
        series: 2 read, 0 not found, 0 unreadable; 0 remarks
    """

    path: Path | None
    remarks_path: Path
    nodules: int
    wanted: int
    series_read: int
    series_missing: tuple[str, ...]
    series_failed: tuple[str, ...]
    parts: Path | None
    remarks: tuple[Remark, ...]

    def __str__(self) -> str:
        unread = sum(remark.skipped and remark.nodule is None for remark in self.remarks)
        unread -= len(self.series_missing) + len(self.series_failed)
        skipped = sum(remark.skipped and remark.nodule is not None for remark in self.remarks)
        notes = sum(not remark.skipped for remark in self.remarks)
        lines = [
            f"nodules: {self.nodules} of {self.wanted} written, {skipped} skipped in series that were read",
            f"series: {self.series_read} read, {len(self.series_missing)} not found, {unread} unreadable; {notes} remarks",
        ]
        if self.parts is not None:
            lines += [
                f"incomplete: {len(self.series_failed)} series failed (crash, time-out or disk), or files did not open",
                f"running the same again tries those again and keeps the rest, which is in {printable(self.parts)}",
            ]
        return "\n".join(lines)


def prepare(
    dicom: str | os.PathLike[str],
    out: str | os.PathLike[str],
    workers: int | None = None,
    size: int = 64,
    progress: Report | None = None,
    series: str | Iterable[str] | None = None,
    nodules: DataFrame | None = None,
    timeout: float = 600.0,
) -> Prepared:
    """Cut every nodule from the CT series below a folder, and write them to a nodule archive.

    The archive has `patches` (n, size, size, size) int16 in HU at 1 mm, `ratings`, `patient_id`, `nodule_id`, `series_uid`,
    `spacing_mm`, `outside` (the share of the patch that lies outside the scan, and is air), and every numeric column of the
    table, in its order. It is written atomically, with the same bytes after any number of interruptions. A nodule takes 0.5 MB,
    and three times as much disk space during writing. A table next to the archive, `nodules.skipped.csv` for `nodules.npz`,
    lists what was skipped, and why.

    Series that failed by a crash, a time-out or the disk are not in the archive. `Prepared.parts` is the folder with the
    others: the same call tries the failed ones again, and replaces the archive by one that includes them.

    Args:
        dicom: a folder with the series anywhere below it, see `find_series`.
        out: the archive to write, `.npz`; it must not exist, unless such a run wrote it.
        workers: processes; as many as there are processors by default, at most 8. Each needs the memory of a scan, up to 1 GB.
            0 does the work in this process.
        size: voxels along each axis.
        progress: called with the number of series done, their total number, and a short text.
        series: the UIDs of the series to use; all in the table by default.
        nodules: the table; `rightloss.lidc.nodules()` by default.
        timeout: maximum time per series, in seconds.

    Raises:
        ValueError: an argument is wrong, the folder has no DICOM file, or none of the wanted series, or another run is writing
            the same archive. Nothing is written.
        OSError: the disk is full or cannot be written, a process cannot be started, or there would be fewer nodules than in the
            archive that is there. Shards stay, and another run continues from them.

    Examples:
        >>> from rightloss.lidc.ct import prepare
        >>> prepare("no-such-folder", "nodules.npz")
        Traceback (most recent call last):
        ValueError: Expected a folder of DICOM files, but no-such-folder is none: is the path right?
    """
    require("pydicom", "scipy", "pebble")
    folder, target = Path(dicom), Path(out)
    parts = target.with_name(target.name + ".parts")
    _check(folder, target, parts, size, workers)
    expected = scan_positions() if nodules is None else {}
    table = _checked_table(all_nodules() if nodules is None else nodules, series)
    report = progress or (lambda done, total, text: None)
    with only_run(target):
        report(0, table["series_uid"].nunique(), "looking for series")
        found = find_series(folder, set(table["series_uid"]))
        _check_found(found, folder)
        parts.mkdir(exist_ok=True)
        rows = dict(list(table.groupby("series_uid")))
        jobs = {uid: shard_job(parts, folder, files, rows[uid], size, expected.get(uid)) for uid, files in found.series.items()}
        count = min(8, os.cpu_count() or 1) if workers is None else workers
        failures = _make_shards(jobs, count, timeout, report)
        shards = {uid: read_shard(job.path, patches=False) for uid, job in jobs.items() if uid not in failures}
        prepared = _summary(target, parts, table, found, shards, failures)
        _check_progress(prepared, target, parts)
        _write_remarks(prepared, table)
        if prepared.path is not None:
            report(len(jobs), len(jobs), "writing the archive")
            write_patches(target, table, {jobs[uid].path: shard for uid, shard in shards.items()}, parts, size)
        if prepared.parts is None:
            delete_shards(parts)
    return prepared


def _make_shards(jobs: Mapping[str, ShardJob], workers: int, timeout: float, report: Report) -> dict[str, Failure]:
    """Make the missing shards; return the reasons for series without one."""
    todo = {job: uid for uid, job in jobs.items() if not _is_sound(job.path)}
    failures: dict[str, Failure] = {}
    done = len(jobs) - len(todo)
    report(done, len(jobs), "reading")
    with closing(run_jobs(make_shard, list(todo), workers, timeout)) as results:
        for job, result in results:
            done += 1
            if isinstance(result, Failure):
                if result.error in _ANY_SERIES:
                    raise OSError(result.reason)
                failures[todo[job]] = result
            report(done, len(jobs), f"…{todo[job][-12:]}")
    return failures


def _is_sound(shard: Path) -> bool:
    try:
        read_shard(shard)
    except (FileNotFoundError, ValueError, KeyError):
        return False
    return True


def _summary(
    target: Path, parts: Path, table: DataFrame, found: Found, shards: Mapping[str, Shard], failures: Mapping[str, Failure]
) -> Prepared:
    uids = list(dict.fromkeys(table["series_uid"]))
    remarks = [Remark("", None, False, f"not looked at: {text}") for text in found.unreadable]
    for uid in uids:
        if uid not in found.series:
            remarks.append(Remark(uid, None, True, "not found"))
        elif uid in failures:
            remarks.append(Remark(uid, None, True, printable(failures[uid].reason)))
        else:
            remarks += [Remark(uid, number, True, text) for number, text in shards[uid].skipped.items()]
            remarks += [Remark(uid, number, False, text) for number, text in shards[uid].notes]
    count = sum(len(shard.nodules) for shard in shards.values())
    failed = tuple(uid for uid, failure in failures.items() if failure.again)
    incomplete = bool(failed) or (bool(found.unreadable) and count < len(table))
    return Prepared(
        path=target if count else None,
        remarks_path=target.with_suffix(".skipped.csv"),
        nodules=count,
        wanted=len(table),
        series_read=len(shards),
        series_missing=tuple(uid for uid in uids if uid not in found.series),
        series_failed=failed,
        parts=parts if incomplete else None,
        remarks=tuple(remarks),
    )


def _write_remarks(prepared: Prepared, table: DataFrame) -> None:
    patients = dict(zip(table["series_uid"], table["patient_id"], strict=True))
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(["patient_id", "series_uid", "nodule", "outcome", "reason"])
    for remark in prepared.remarks:
        number = "" if remark.nodule is None else remark.nodule
        outcome = "skipped" if remark.skipped else "used"
        writer.writerow([patients.get(remark.series_uid, ""), remark.series_uid, number, outcome, remark.text])
    write_whole(prepared.remarks_path, lines.getvalue())


def _check(folder: Path, target: Path, parts: Path, size: int, workers: int | None) -> None:
    if not folder.is_dir():
        raise ValueError(f"Expected a folder of DICOM files, but {folder} is none: is the path right?")
    if target.suffix != ".npz" or not target.parent.is_dir():
        raise ValueError(f"Expected the path of an .npz file in a folder that exists, but got {target}: make the folder first?")
    if target.exists() and nodules_written(target, parts) is None:
        raise ValueError(f"Expected a new file, but {target} exists: remove it, or choose another name.")
    checked_int(size, "size", 1, 512, "64 is usual")
    if workers is not None:
        checked_int(workers, "workers", 0, remedy="leave it out for one per processor")
    check_writable(target.parent)  # now rather than after hours


def _check_found(found: Found, folder: Path) -> None:
    if found.series:
        return
    if not found.others:
        raise ValueError(f"Expected DICOM files in {folder}, but got none: is it the right folder?")
    raise ValueError(
        f"Expected series of the table in {folder}, but got {found.others} DICOM files of other series: is it LIDC-IDRI's CT?"
    )


def _check_progress(prepared: Prepared, target: Path, parts: Path) -> None:
    """Check that a continued run has no fewer nodules than before."""
    before = nodules_written(target, parts)
    if before is not None and prepared.nodules < before:
        raise OSError(
            f"{target} has {before} nodules, and this run could cut only {prepared.nodules}, so it was not replaced: are "
            "files gone? To leave them out, remove it."
        )


def _checked_table(table: DataFrame, series: str | Iterable[str] | None) -> DataFrame:
    """Return the rows of these series, or all, with whole `nodule` numbers; ValueError if an archive cannot store them."""
    numbers = ("x", "y", "z", *RATINGS)
    missing = [*(name for name in NAMES if name not in table), *(set(numbers) - set(table.select_dtypes("number")))]
    clash = sorted({*(_RESERVED & set(table.columns)), *map(str, table.columns[table.columns.duplicated()])})
    if missing or clash:
        raise ValueError(
            f"Expected a table like `nodules()`, but it lacks {missing} (as numbers) and has {clash}: add the first, "
            "rename the second."
        )
    if series is not None:
        wanted = [series] if isinstance(series, str) else list(series)
        if unknown := sorted(set(wanted) - set(table["series_uid"])):
            raise ValueError(
                f"Expected series of the table, but {unknown[:3]} are not in it: UIDs are in its column `series_uid`."
            )
        table = table[table["series_uid"].isin(wanted)]
    names, counts = table["nodule"], table[RATINGS]
    if not len(table) or names.duplicated().any() or names.dtype.kind not in "iuf" or (names % 1 != 0).any():
        raise ValueError(
            "Expected nodules with whole numbers of their own in `nodule`, but the table has none, doubles or others: "
            "number them."
        )
    odd = [uid for uid in table["series_uid"].unique() if not re.fullmatch(r"[0-9.]{1,64}", str(uid))]
    if odd:
        raise ValueError(f"Expected DICOM UIDs in `series_uid`, but got {odd[:3]}: digits and dots, at most 64.")
    if not ((counts >= 0) & (counts % 1 == 0)).all(axis=None):
        raise ValueError("Expected whole counts of readers for every rating, but some are others: leave such nodules out.")
    patients = table["patient_id"].fillna("").to_numpy(str)
    columns = {"ratings": ratings_by_reader(table), "patient_id": patients, **numeric_columns(table)}
    checked_columns(np.zeros((len(table), 1, 1)), columns, "the table of nodules")  # now rather than after hours
    return table.assign(nodule=names.astype(np.int64))
