"""One DICOM file: what its header says, and its pixels in Hounsfield units.

Stage: path → series UID; path → `Slice`; `Slice` → HU `(rows, columns)`.

Whatever is wrong with a file, damaged, hostile or merely another kind of image, is an `UnreadableSlice` that says so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from .pixels import (
    DEFLATED,
    HEAD,
    LARGEST_FILE,
    UnreadableSlice,
    read_dataset,
    stored_pixels,
    unreadable_otherwise,
)

if TYPE_CHECKING:
    from pydicom import FileDataset

__all__ = ["AIR", "Slice", "UnreadableSlice", "read_hu", "read_slice", "series_uid_of"]

AIR = -1000  # HU

_LARGEST_SIDE = 4096  # pixels; CT has 512, seldom 1024 or 2048
_FURTHEST = 1e5  # mm from the origin
_CT_RANGE = (-1024, 3071)  # HU that 12 bits hold
_SERIES_UID = 0x0020_000E
_TAGS = [
    *("AcquisitionNumber", "BitsAllocated", "BitsStored", "Columns", "HighBit", "ImageOrientationPatient"),
    *("ImagePositionPatient", "InstanceNumber", "NumberOfFrames", "PixelPaddingValue", "PixelRepresentation", "PixelSpacing"),
    *("RescaleIntercept", "RescaleSlope", "Rows", "SOPInstanceUID", "SamplesPerPixel", "SeriesInstanceUID"),
]


@dataclass(frozen=True, eq=False)
class Slice:
    """The header of one file of a series.

    Attributes:
        path: the file.
        series_uid: of the series it belongs to.
        rank: acquisition, instance number and UID: which of two slices at one place comes first.
        shape: rows and columns.
        orientation: unit vectors `(2, 3)`: the direction in which column numbers grow, and that in which row numbers do.
        position: of the centre of the first pixel, mm.
        spacing: mm between rows, and between columns.
        slope, intercept: HU = slope · stored value + intercept.
        padding: the stored value that stands for "no measurement", if any.
    """

    path: Path
    series_uid: str
    rank: tuple[int, int, str]
    shape: tuple[int, int]
    orientation: Float64[np.ndarray, "2 3"]
    position: Float64[np.ndarray, " 3"]
    spacing: Float64[np.ndarray, " 2"]
    slope: float
    intercept: float
    padding: int | None


def series_uid_of(path: str | os.PathLike[str]) -> str | None:
    """The series that a file belongs to, from its first kilobytes; None where it is no DICOM image."""
    from pydicom.errors import InvalidDicomError
    from pydicom.filereader import read_partial

    with open(path, "rb", buffering=0) as file:
        head = file.read(HEAD)
        if head[128:132] != b"DICM" or DEFLATED in head:
            return None
        rest = min(os.fstat(file.fileno()).st_size, LARGEST_FILE)
        for more in (0, rest):  # of the file, where its head has no series UID
            head += file.read(more)
            try:
                found = read_partial(BytesIO(head), stop_when=_behind_the_series_uid, specific_tags=[_SERIES_UID])
                if uid := found.get("SeriesInstanceUID"):
                    return str(uid)
            except InvalidDicomError:
                return None
            except Exception:  # of a damaged header pydicom raises nearly anything
                continue
    return None


def read_slice(path: str | os.PathLike[str]) -> Slice:
    """The header of a file, checked; its pixels are not decoded.

    Raises:
        UnreadableSlice: it is no DICOM file, is damaged, or is no slice of a CT volume.
        OSError: it cannot be read from the disk.
    """
    with unreadable_otherwise():
        header = read_dataset(path, _TAGS)
        if int(header.get("NumberOfFrames") or 1) != 1 or header.SamplesPerPixel != 1:
            raise UnreadableSlice("it has several frames or colours")
        numbers = [int(header.get(name) or 0) for name in ("AcquisitionNumber", "InstanceNumber")]
        found = Slice(
            path=Path(path),
            series_uid=str(header.SeriesInstanceUID),
            rank=(numbers[0], numbers[1], str(header.SOPInstanceUID)),
            shape=(int(header.Rows), int(header.Columns)),
            orientation=_numbers(header.ImageOrientationPatient, 6).reshape(2, 3),
            position=_numbers(header.ImagePositionPatient, 3),
            spacing=_numbers(header.PixelSpacing, 2),
            slope=float(header.RescaleSlope),
            intercept=float(header.RescaleIntercept),
            padding=_padding(header),
        )
        _check(found, header)
    return found


def read_hu(header: Slice) -> NDArray[np.float64]:
    """The pixels of a slice `(rows, columns)` in HU.

    Padding is air: where the stored value is `PixelPaddingValue`, and that is outside −1024 … 3071 HU, the slice is set to
    −1000 HU. A padding value within that range cannot be told from tissue, and stays.

    Raises:
        UnreadableSlice: the pixels are damaged, cut short, or compressed in a way that no installed decoder knows.
        OSError: they cannot be read from the disk.
    """
    with unreadable_otherwise():
        stored = stored_pixels(read_dataset(header.path), header.path, header.shape)
        hu = stored.astype(np.float64) * header.slope + header.intercept
        if header.padding is not None:
            low, high = _CT_RANGE
            hu[(stored == header.padding) & ((hu < low) | (hu > high))] = AIR
        return hu


def _behind_the_series_uid(tag: Any, vr: str | None, length: int) -> bool:
    return tag > _SERIES_UID or tag >> 16 == 4  # group 4: a DICOMDIR, which lists series but is none


def _numbers(values: Any, count: int) -> NDArray[np.float64]:
    found = np.array([float(value) for value in values], dtype=np.float64)
    if found.shape != (count,) or not np.isfinite(found).all():
        raise UnreadableSlice(f"it has {found.tolist()} in the place of {count} finite numbers")
    return found


def _padding(header: FileDataset) -> int | None:
    value = header.get("PixelPaddingValue")
    if value is None or isinstance(value, bytes):
        return None
    bits = int(header.BitsAllocated)
    # Some write it without a sign where the pixels have one.
    return int(value) - (1 << bits) if header.PixelRepresentation == 1 and int(value) >= 1 << (bits - 1) else int(value)


def _check(found: Slice, header: FileDataset) -> None:
    if not all(0 < side <= _LARGEST_SIDE for side in found.shape):
        raise UnreadableSlice(f"it has {found.shape[0]} rows and {found.shape[1]} columns")
    allocated, stored = int(header.BitsAllocated), int(header.BitsStored)
    if allocated not in (8, 16, 32) or not 0 < stored <= allocated or int(header.get("HighBit", stored - 1)) != stored - 1:
        raise UnreadableSlice(f"its pixels have {stored} of {allocated} bits")
    if not (np.isfinite([found.slope, found.intercept]).all() and 0 < abs(found.slope) < 1e6 and abs(found.intercept) < 1e6):
        raise UnreadableSlice(f"its rescale slope is {found.slope} and its intercept {found.intercept}")
    if not (found.spacing > 1e-3).all() or (found.spacing > 100).any():
        raise UnreadableSlice(f"its pixels are {found.spacing.tolist()} mm apart")
    if (np.abs(found.position) > _FURTHEST).any():
        raise UnreadableSlice(f"its position is {found.position.tolist()} mm")
    if np.abs(found.orientation @ found.orientation.T - np.eye(2)).max() > 1e-3:
        raise UnreadableSlice(f"its orientation {found.orientation.ravel().tolist()} is not two unit vectors at a right angle")
