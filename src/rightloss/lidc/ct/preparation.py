"""From the archive's DICOM files to one file of patches.

Stage: folder of DICOM files, table of nodules → nodule archive (`.npz`), `Prepared`.

A series at a time, in several processes, each to a part file beside the archive (in `OUT.parts`): a run that was stopped goes
on from them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...lock import only_run
from ..readings import nodules as all_nodules
from ..readings import scan_positions
from .dicom_index import Found, find_series
from .pixels import require
from .prepare_report import Prepared, summary_of, write_remarks
from .shards import PartNotWritten, part_job, read_part
from .tables import checked_table
from .workers import Failure, run_jobs
from .writing import nodules_written, write_patches

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["prepare"]

_MAKE_PART = "rightloss.lidc.ct.shards:make_part"
_RUNS_OWN = (PartNotWritten.__name__, ModuleNotFoundError.__name__)  # errors that every other series would meet, too


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

    Series that failed by a crash, a time-out or the disk are left out of the archive, and `Prepared.parts` says where what was
    done is kept: the same call again tries them again, and replaces the archive by one that has them, too.

    Args:
        dicom: a folder with the series anywhere below it, see `find_series`.
        out: the archive to write, `.npz`; it must not exist, unless it is of such a run.
        workers: processes; as many as there are processors by default, at most 8. Each needs the memory of a scan, up to 1 GB.
            0 does the work in this process, where a decoder that crashes takes it along.
        size: voxels along each axis.
        progress: called with the number of series done, that of all, and a few words.
        series: the UIDs of those to take; all in the table by default.
        nodules: the table; `rightloss.lidc.readings.nodules()` by default.
        timeout: seconds after which a series is given up.

    Raises:
        ValueError: an argument is wrong, the folder has no DICOM file, or none of the wanted series, or another run is writing
            the same archive. Nothing is written.
        OSError: the disk is full or cannot be written, a process cannot be started, or there would be fewer nodules than in the
            archive that is there. Parts stay, and another run goes on from them.
    """
    require("pydicom", "scipy")
    folder, target = Path(dicom), Path(out)
    parts = target.with_name(target.name + ".parts")
    _check(folder, target, parts, size, workers)
    expected = scan_positions() if nodules is None else {}
    table = checked_table(all_nodules() if nodules is None else nodules, series)
    report = progress or (lambda done, total, text: None)
    with only_run(target):
        report(0, table["series_uid"].nunique(), "looking for series")
        found = find_series(folder, set(table["series_uid"]))
        _check_found(found, folder)
        parts.mkdir(exist_ok=True)
        jobs = {uid: _job(uid, files, table, folder, parts, size, expected) for uid, files in found.series.items()}
        count = min(8, os.cpu_count() or 1) if workers is None else workers
        failures = _make_parts(jobs, count, timeout, report)
        made = {uid: read_part(job["part"], patches=False) for uid, job in jobs.items() if uid not in failures}
        prepared = summary_of(target, parts, table, found, made, failures)
        _check_progress(prepared, target, parts)
        write_remarks(prepared, table)
        if prepared.path is not None:
            report(len(jobs), len(jobs), "writing the archive")
            write_patches(target, table, made, {uid: jobs[uid]["part"] for uid in made}, parts, size)
        if prepared.parts is None:
            shutil.rmtree(parts, ignore_errors=True)
    return prepared


def _make_parts(
    jobs: dict[str, dict[str, Any]], workers: int, timeout: float, report: Callable[[int, int, str], None]
) -> dict[str, Failure]:
    """Makes the parts that are not there yet; returns why a series has none."""
    todo = {uid: job for uid, job in jobs.items() if not _is_sound(job["part"])}
    uids = {job["part"]: uid for uid, job in todo.items()}
    failures: dict[str, Failure] = {}
    done = len(jobs) - len(todo)
    report(done, len(jobs), "reading")
    with closing(run_jobs(_MAKE_PART, list(todo.values()), workers, timeout)) as results:
        for job, result in results:
            done += 1
            if isinstance(result, Failure):
                if result.error in _RUNS_OWN:
                    raise OSError(result.reason)
                failures[uids[job["part"]]] = result
            report(done, len(jobs), f"…{uids[job['part']][-12:]}")
    return failures


def _is_sound(part: str) -> bool:
    try:
        read_part(part)
    except (FileNotFoundError, ValueError, KeyError):
        return False
    return True


def _job(
    uid: str, files: tuple[Path, ...], table: DataFrame, root: Path, parts: Path, size: int, expected: Any
) -> dict[str, Any]:
    rows = table[table["series_uid"] == uid]
    diameters = rows["diameter_mm"] if "diameter_mm" in rows else [0.0] * len(rows)
    columns = zip(rows["nodule"], rows["x"], rows["y"], rows["z"], diameters, strict=True)
    nodules = {int(number): (x, y, z, diameter) for number, x, y, z, diameter in columns}
    return part_job(parts, root, files, nodules, size, expected.get(uid))


def _check(folder: Path, target: Path, parts: Path, size: Any, workers: Any) -> None:
    if not folder.is_dir():
        raise ValueError(f"Expected a folder of DICOM files, but {folder} is none: is the path right?")
    if target.suffix != ".npz" or not target.parent.is_dir():
        raise ValueError(f"Expected the path of an .npz file in a folder that exists, but got {target}: make the folder first?")
    if target.exists() and nodules_written(target, parts) is None:
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
        raise ValueError(f"Expected DICOM files in {folder}, but got none: is it the right folder?")
    raise ValueError(
        f"Expected series of the table in {folder}, but got {found.others} DICOM files of other series: is it LIDC-IDRI's CT?"
    )


def _check_progress(prepared: Prepared, target: Path, parts: Path) -> None:
    """That nothing is lost where a run goes on."""
    before = nodules_written(target, parts)
    if before is not None and prepared.nodules < before:
        raise OSError(
            f"{target} has {before} nodules, and this run could cut only {prepared.nodules}, so that it stays as it is: are "
            "files gone? If they are to be left out, remove it."
        )
