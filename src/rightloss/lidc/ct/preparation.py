"""Prepare a nodule archive: cut patches of all nodules from DICOM files.

Stage: folder of DICOM files, table of nodules → nodule archive (`.npz`), and a report, `Prepared`.

Each series is read in one of several processes and written to a shard next to the archive (in `OUT.parts`): its patches, and
notes on it. The name of a shard is a hash of its inputs (files, table, size, version of this code), so an interrupted run
continues from the shards, and if anything changes new ones are made.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray

from ...arrays import Numbers, checked_int
from ...atomic_files import check_writable, only_run, whole_file, write_whole
from ...process_pool import Failure, run_jobs
from ...serialization import open_npz
from ..archive import checked_columns, write_archive
from ..readings import nodules as all_nodules
from ..readings import scan_positions
from .dicom_files import Found, find_series, printable, require
from .series import cut_patch, read_series

if TYPE_CHECKING:
    from pandas import DataFrame


Report = Callable[[int, int, str], object]

RATINGS = [f"rating_{rating}" for rating in range(1, 6)]
NAMES = ("nodule", "patient_id", "series_uid")

_VERSION = 3  # version of the content of shards: increase it when the same files give other patches
_NOTE = "written.json"
_OWN = ("[0-9a-f]" * 32 + ".npz", "patches.npy", "archive.npz", _NOTE, ".saving-*.partial")
_SPACING = 1.0  # mm
_RESERVED = {"patches", "ratings", "spacing_mm", "nodule_id", "outside"}


class ShardNotWritten(OSError):
    """Raised when the disk is full or not writable, which is not an error of the series."""


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
    require("pydicom", "pebble")
    folder, target = Path(dicom), Path(out)
    parts = target.with_name(target.name + ".parts")
    count = min(8, os.cpu_count() or 1) if workers is None else workers
    checked_int(count, "workers", 0, remedy="leave it out for one per processor")
    _check(target, parts, size)
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
        failures = _make_shards(jobs, count, timeout, report)
        shards = {uid: read_shard(job.path) for uid, job in jobs.items() if uid not in failures}
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
        file = open_npz(shard)
        for name in file.members:
            file.check(name)
    except (FileNotFoundError, ValueError):
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
            remarks += [Remark(uid, *remark) for remark in shards[uid].remarks]
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
    import pandas as pd

    patients = dict(zip(table["series_uid"], table["patient_id"], strict=True))
    rows = [
        (patients.get(each.series_uid), each.series_uid, each.nodule, "skipped" if each.skipped else "used", each.text)
        for each in prepared.remarks
    ]
    frame = pd.DataFrame(rows, columns=["patient_id", "series_uid", "nodule", "outcome", "reason"], dtype=object)
    write_whole(prepared.remarks_path, frame.to_csv(index=False, lineterminator="\n"))


def _check(target: Path, parts: Path, size: int) -> None:
    if target.suffix != ".npz" or not target.parent.is_dir():
        raise ValueError(f"Expected the path of an .npz file in a folder that exists, but got {target}: make the folder first?")
    if target.exists() and nodules_written(target, parts) is None:
        raise ValueError(f"Expected a new file, but {target} exists: remove it, or choose another name.")
    checked_int(size, "size", 1, 512, "64 is usual")
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
    if not ((counts >= 0) & (counts % 1 == 0)).all(axis=None):
        raise ValueError("Expected whole counts of readers for every rating, but some are others: leave such nodules out.")
    patients = table["patient_id"].fillna("").to_numpy(str)
    columns = {"ratings": ratings_by_reader(table), "patient_id": patients, **numeric_columns(table)}
    checked_columns(np.zeros((len(table), 1, 1)), columns, "the table of nodules")  # now rather than after hours
    return table.assign(nodule=names.astype(np.int64))


@dataclass(frozen=True)
class ShardJob:
    """The input of `make_shard`, made by `shard_job`.

    Attributes:
        files: of the series.
        nodules: number, x, y, z and diameter of each, see `cut_patch`.
        size: voxels along each axis.
        expected: z of all slices that the series should have, if known.
        path: the shard.
    """

    files: tuple[Path, ...]
    nodules: tuple[tuple[int, float, float, float, float], ...]
    size: int
    expected: tuple[float, ...] | None
    path: Path


class Shard(NamedTuple):
    """The content of a file that `make_shard` wrote, without its patches.

    Attributes:
        nodules: numbers of the nodules that were cut.
        outside: the fraction of each cube outside the scan.
        remarks: number of a nodule, or None for the series; whether it was skipped; why.
    """

    nodules: Int64[np.ndarray, " m"]
    outside: Float64[np.ndarray, " m"]
    remarks: list[tuple[int | None, bool, str]]


def shard_job(
    folder: Path, root: Path, files: Sequence[Path], table: DataFrame, size: int, expected: Numbers | None = None
) -> ShardJob:
    """Return the job for one series, with the table's rows of it. The shard does not depend on the path of `root`, the folder
    of the files. Without `diameter_mm` in the table, diameters are 0."""
    places = table.assign(diameter_mm=table.get("diameter_mm", 0.0))[["x", "y", "z", "diameter_mm"]].to_numpy(float)
    rows = tuple((int(number), *place) for number, place in zip(table["nodule"], places.tolist(), strict=True))
    slices = None if expected is None else tuple(np.asarray(expected, np.float64).tolist())
    states = [(str(path.relative_to(root)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    content = [_VERSION, {"nodules": rows, "size": size, "expected": slices}, states]
    key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]
    return ShardJob(tuple(files), rows, size, slices, folder / f"{key}.npz")


def make_shard(job: ShardJob) -> None:
    """Read the series, cut its nodules and write the shard. ValueError and OSError as in `read_series`."""
    series = read_series(job.files, job.expected)
    skipped: list[tuple[int | None, bool, str]] = []
    notes: list[tuple[int | None, bool, str]] = [(None, False, problem) for problem in series.problems]
    cut = {}
    for number, x, y, z, diameter in job.nodules:
        try:
            cut[number] = cut_patch(series, x, y, z, job.size, _SPACING, diameter)
            notes += [(number, False, problem) for problem in cut[number].problems]
        except ValueError as error:
            skipped.append((number, True, str(error)))
    arrays: dict[str, Any] = {
        "nodules": np.array(list(cut), np.int64),
        "patches": np.array([patch.hu for patch in cut.values()], np.int16).reshape(len(cut), *[job.size] * 3),
        "outside": np.array([patch.outside for patch in cut.values()], np.float64),
        "remarks": np.array(json.dumps(skipped + notes)),
    }
    try:
        with whole_file(job.path) as file:
            np.savez(file, **arrays)
    except OSError as error:
        raise ShardNotWritten(f"{error}: is the disk full?") from error


def read_shard(path: Path) -> Shard:
    """Return a shard without its patches; raise a ValueError if it is damaged."""
    file = open_npz(path)
    remarks = [(number, skipped, text) for number, skipped, text in json.loads(str(file.read("remarks")))]
    return Shard(file.read("nodules"), file.read("outside"), remarks)


def numeric_columns(table: DataFrame) -> dict[str, NDArray[np.generic]]:
    """Return all columns of numbers but the names of nodules, patients and series."""
    return {name: table[name].to_numpy() for name in table.select_dtypes(["number", "bool"]).columns if name not in NAMES}


def write_patches(target: Path, table: DataFrame, shards: Mapping[Path, Shard], folder: Path, size: int) -> None:
    """Write the patches of all shards, in the table's order, to the archive `target`.

    They go through a memory-mapped file in `folder`, so that no more than one shard is in memory.
    """
    outside = {int(n): share for shard in shards.values() for n, share in zip(shard.nodules, shard.outside, strict=True)}
    rows = table[table["nodule"].isin(outside.keys())]
    place = {int(number): k for k, number in enumerate(rows["nodule"])}
    patches = np.lib.format.open_memmap(folder / "patches.npy", "w+", np.int16, (len(rows), size, size, size))
    for path, shard in shards.items():
        patches[[place[int(number)] for number in shard.nodules]] = open_npz(path).read("patches")
    columns = numeric_columns(rows) | {
        "nodule_id": rows["nodule"].to_numpy(),
        "series_uid": rows["series_uid"].to_numpy(dtype=str),
        "outside": np.array([outside[int(number)] for number in rows["nodule"]]),
    }
    spacing = np.full(len(rows), _SPACING, np.float32)
    whole = folder / "archive.npz"  # in the shards' folder first, which the next run clears after a kill
    write_archive(whole, patches, ratings_by_reader(rows), rows["patient_id"].to_numpy(dtype=str), spacing, columns)
    del patches
    (folder / "patches.npy").unlink()
    write_whole(folder / _NOTE, json.dumps([len(rows), *_state(whole)]))
    os.replace(whole, target)


def delete_shards(folder: Path) -> None:
    """Delete the shards, and what belongs to them; the folder too, unless it has other files."""
    for path in [each for name in _OWN for each in folder.glob(name)]:
        path.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def nodules_written(target: Path, folder: Path) -> int | None:
    """Return the number of nodules in an archive; None unless it was written from these shards and is unchanged."""
    try:
        count, *state = json.loads((folder / _NOTE).read_text())
        return int(count) if state == _state(target) else None
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return None


def _state(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def ratings_by_reader(rows: DataFrame) -> NDArray[np.int8]:
    """Return each nodule's ratings, ascending, a column per reader, from the counts by rating; 0 for none."""
    counts = rows[RATINGS].to_numpy(dtype=int)
    readers = counts.sum(1)
    ratings = np.zeros((len(rows), readers.max()), np.int8)
    ratings[np.arange(readers.max()) < readers[:, None]] = np.repeat(np.tile(np.arange(1, 6), len(rows)), counts.ravel())
    return ratings
