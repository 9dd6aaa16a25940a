"""From the archive's DICOM files to one file of patches.

Stage: folder of DICOM files, table of nodules → nodule archive (`.npz`), `Prepared`.

A series at a time, in several processes, each to a part file beside the archive (in `OUT.parts`): a run that was stopped goes
on from them.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .archive import write_archive
from .finding import Found, find_series
from .parts import SPACING, Part, PartNotWritten, part_job, read_part
from .prepared import Prepared as Prepared
from .prepared import Remark as Remark
from .prepared import summary_of, write_remarks
from .readings import nodules as all_nodules
from .readings import scan_positions
from .workers import Failure, run_jobs

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Prepared", "Remark", "prepare"]

_MAKE_PART = "rightloss.lidc.parts:make_part"
_RATINGS = [f"rating_{rating}" for rating in range(1, 6)]
_NEEDED = ("nodule", "patient_id", "series_uid", "x", "y", "z", *_RATINGS)
_OWN_NAMES = {"patches", "ratings", "spacing_mm", "nodule_id", "outside"}


def prepare(
    dicom: Any,
    out: Any,
    workers: int | None = None,
    size: Any = 64,
    progress: Callable[[int, int, str], None] | None = None,
    series: Iterable[str] | None = None,
    nodules: DataFrame | None = None,
    timeout: float = 600.0,
) -> Prepared:
    """Cuts every nodule from the CT series below a folder, and writes them to a nodule archive.

    The archive has `patches` (n, size, size, size) int16 in HU at 1 mm, `ratings`, `patient_id`, `nodule_id`, `series_uid`,
    `spacing_mm`, `outside` (the share of the patch that lies outside the scan, and is air), and every numeric column of the
    table, in its order. It is written whole or not at all, and is the same however often the run was interrupted. A nodule
    takes 0.5 MB of it, and while it is written three times as much on disk. What was skipped, and why, goes to a table beside
    it: `nodules.skipped.csv` for `nodules.npz`.

    Args:
        dicom: a folder with the series anywhere below it, see `find_series`.
        out: the archive to write, `.npz`; it must not exist.
        workers: processes; as many as there are processors by default, at most 8. Each needs the memory of a scan, up to 1 GB.
            0 does the work in this process, where a decoder that crashes takes it along.
        size: voxels along each axis.
        progress: called with the number of series done, that of all, and a few words.
        series: the UIDs of those to take; all in the table by default.
        nodules: the table; `rightloss.lidc.readings.nodules()` by default.
        timeout: seconds after which a series is given up.

    Raises:
        ValueError: an argument is wrong, or the folder has no DICOM file, or none of the wanted series. Nothing is written.
        OSError: the disk is full or cannot be written. Parts stay, and another run goes on from them.
    """
    folder, target = Path(dicom), Path(out)
    _check(folder, target, size, workers)
    expected = scan_positions() if nodules is None else {}
    table = _checked_table(all_nodules() if nodules is None else nodules, series)
    report = progress or (lambda done, total, text: None)
    report(0, table["series_uid"].nunique(), "looking for series")
    found = find_series(folder, set(table["series_uid"]))
    _check_found(found, folder)
    parts = target.with_name(target.name + ".parts")
    parts.mkdir(exist_ok=True)
    jobs = {uid: _job(uid, files, table, parts, size, expected) for uid, files in found.series.items()}
    count = min(8, os.cpu_count() or 1) if workers is None else workers
    failures = _make_parts(jobs, count, timeout, report)
    made = {uid: read_part(job["part"], patches=False) for uid, job in jobs.items() if uid not in failures}
    prepared = summary_of(target, table, found, made, failures)
    write_remarks(prepared, table)
    if prepared.path is not None:
        report(len(jobs), len(jobs), "writing the archive")
        _write(target, table, made, {uid: jobs[uid]["part"] for uid in made}, parts, size)
    shutil.rmtree(parts, ignore_errors=True)
    return prepared


def _make_parts(
    jobs: dict[str, dict[str, Any]], workers: int, timeout: float, report: Callable[[int, int, str], None]
) -> dict[str, str]:
    """Makes the parts that are not there yet; returns why a series has none."""
    todo = {uid: job for uid, job in jobs.items() if not _is_sound(job["part"])}
    uids = {job["part"]: uid for uid, job in todo.items()}
    failures: dict[str, str] = {}
    done = len(jobs) - len(todo)
    report(done, len(jobs), "reading")
    with closing(run_jobs(_MAKE_PART, list(todo.values()), workers, timeout)) as results:
        for job, result in results:
            done += 1
            if isinstance(result, Failure):
                if result.error == PartNotWritten.__name__:
                    raise OSError(result.reason)
                failures[uids[job["part"]]] = result.reason
            report(done, len(jobs), f"…{uids[job['part']][-12:]}")
    return failures


def _is_sound(part: str) -> bool:
    try:
        read_part(part)
    except (FileNotFoundError, ValueError, KeyError):
        return False
    return True


def _job(uid: str, files: tuple[Path, ...], table: DataFrame, folder: Path, size: int, expected: Any) -> dict[str, Any]:
    rows = table[table["series_uid"] == uid]
    centres = {int(row.nodule): (row.x, row.y, row.z) for row in rows.itertuples()}
    return part_job(folder, files, centres, size, expected.get(uid))


def _write(target: Path, table: DataFrame, made: dict[str, Part], files: dict[str, str], folder: Path, size: int) -> None:
    """The parts' patches in the table's order, by way of a file of all of them, so that no more than a part is in memory."""
    outside = {int(n): share for part in made.values() for n, share in zip(part.nodules, part.outside, strict=True)}
    rows = table[table["nodule"].isin(outside.keys())]
    place = {int(number): k for k, number in enumerate(rows["nodule"])}
    patches = np.lib.format.open_memmap(folder / "patches.npy", "w+", np.int16, (len(rows), size, size, size))
    for path in files.values():
        part = read_part(path)
        for number, patch in zip(part.nodules, part.patches, strict=True):
            patches[place[int(number)]] = patch
    numeric = [name for name in rows.select_dtypes(["number", "bool"]).columns if name != "nodule"]
    columns = {name: rows[name].to_numpy() for name in numeric}
    columns |= {
        "nodule_id": rows["nodule"].to_numpy(),
        "series_uid": rows["series_uid"].to_numpy(dtype=str),
        "outside": np.array([outside[int(number)] for number in rows["nodule"]]),
    }
    spacing = np.full(len(rows), SPACING, np.float32)
    # In the folder of the parts first: what a kill leaves there, the next run clears away.
    whole = folder / "archive.npz"
    write_archive(whole, patches, _ratings(rows), rows["patient_id"].to_numpy(dtype=str), spacing, columns)
    os.replace(whole, target)


def _ratings(rows: DataFrame) -> NDArray[np.int8]:
    """Each nodule's ratings, ascending, a column per reader, from how many gave each; 0 for none."""
    counts = rows[_RATINGS].to_numpy(dtype=int)
    readers = counts.sum(1)
    ratings = np.zeros((len(rows), readers.max()), np.int8)
    ratings[np.arange(readers.max()) < readers[:, None]] = np.repeat(np.tile(np.arange(1, 6), len(rows)), counts.ravel())
    return ratings


def _check(folder: Path, target: Path, size: Any, workers: Any) -> None:
    if not folder.is_dir():
        raise ValueError(f"Expected a folder of DICOM files, but {folder} is none: is the path right?")
    if target.suffix != ".npz" or not target.parent.is_dir():
        raise ValueError(f"Expected the path of an .npz file in a folder that exists, but got {target}: make the folder first?")
    if target.exists():
        raise ValueError(f"Expected a new file, but {target} exists: remove it, or choose another name.")
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 512:
        raise ValueError(f"Expected `size` to be a whole number from 1 to 512, but got {size!r}: 64 is usual.")
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 0):
        raise ValueError(
            f"Expected `workers` to be a whole number from 0, but got {workers!r}: leave it out for one per processor."
        )
    with tempfile.TemporaryFile(dir=target.parent):  # or an OSError now, not after hours
        pass


def _check_found(found: Found, folder: Path) -> None:
    if found.series:
        return
    if not found.others:
        raise ValueError(f"Expected DICOM files in {folder}, but got none among {found.foreign} files: is it the right folder?")
    raise ValueError(
        f"Expected series of the table in {folder}, but got {found.others} DICOM files of other series: is it LIDC-IDRI's CT?"
    )


def _checked_table(table: DataFrame, series: Iterable[str] | None) -> DataFrame:
    missing = [name for name in _NEEDED if name not in table]
    clash = sorted(_OWN_NAMES & set(table.columns))
    if missing or clash:
        raise ValueError(
            f"Expected a table like `nodules()`, but it lacks {missing} and has {clash}: add the first, rename the second."
        )
    if series is not None:
        wanted = [series] if isinstance(series, str) else list(series)
        unknown = sorted(set(wanted) - set(table["series_uid"]))
        if unknown:
            raise ValueError(
                f"Expected series of the table, but {unknown[:3]} are not in it: UIDs are in its column `series_uid`."
            )
        table = table[table["series_uid"].isin(wanted)]
    numbers = table.select_dtypes(["number", "bool"])
    if len(table) == 0 or table["nodule"].duplicated().any() or not np.isfinite(numbers.to_numpy(dtype=float)).all():
        raise ValueError(
            "Expected nodules with numbers of their own and finite columns, but the table has none, doubles or gaps: mend it."
        )
    if (table[_RATINGS].sum(axis=1) < 1).any() or (table[_RATINGS] < 0).any(axis=None):
        raise ValueError("Expected a rating for every nodule, but some have none: leave them out.")
    odd = [uid for uid in table["series_uid"].unique() if not re.fullmatch(r"[0-9.]{1,64}", str(uid))]
    if odd:
        raise ValueError(f"Expected DICOM UIDs in `series_uid`, but got {odd[:3]}: digits and dots, at most 64.")
    return table
