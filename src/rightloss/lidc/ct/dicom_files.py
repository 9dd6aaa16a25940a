"""DICOM files: find those of each CT series below a folder, and read one, header and pixels in Hounsfield units.

Stage: folder → `Found`: series UID → files; path → `Slice`; `Slice` → HU `(rows, columns)`.

For a damaged or unsuitable file an `UnreadableSlice` says what is wrong.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from ...extras import imported

if TYPE_CHECKING:
    from pydicom import FileDataset


AIR = -1000  # HU

_HEAD = 1 << 13  # bytes; they have the file's transfer syntax
_LARGEST_FILE = 1 << 28  # bytes
_DEFLATED = b"1.2.840.10008.1.2.1.99"  # a file that is compressed as a whole
_LARGEST_SIDE = 4096  # pixels; CT has 512, rarely 1024 or 2048
_FARTHEST = 1e5  # mm from the origin
_CT_RANGE = (-1024, 3071)  # range of HU in 12 bits


class UnreadableSlice(Exception):
    """Raised when a file is not a slice of a CT volume; the message says why."""


def require(*packages: str) -> None:
    """Raise an error that says what to install if a package is missing."""
    for name in packages:
        imported(name, f"{name} is needed for CT", "lidc")


def printable(text: object) -> str:
    """Return `text` with bytes of file names that are not UTF-8 written as `\\udcff`."""
    return str(text).encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True)
class Found:
    """The files that `find_series` found below a folder.

    Attributes:
        series: the files of each wanted series, by its UID; sorted by path.
        others: number of DICOM files of other series.
        foreign: number of files that are not DICOM images, or have a damaged header.
        unreadable: files and folders that could not be opened, and why.

    Examples:
        >>> from rightloss.lidc.ct import Found
        >>> Found(series={}, others=0, foreign=1, unreadable=()).foreign
        1
    """

    series: dict[str, tuple[Path, ...]]
    others: int
    foreign: int
    unreadable: tuple[str, ...]


def find_series(folder: str | os.PathLike[str], wanted: Collection[str] | None = None) -> Found:
    """Return the DICOM files anywhere below a folder, by series. Only the first kilobytes of each file are read.

    Names do not matter. Links are followed, each folder is searched once, files that are not DICOM images are skipped.

    Args:
        folder: the folder to search.
        wanted: the UIDs of the series to keep; all by default.

    Examples:
        >>> import tempfile
        >>> from rightloss.lidc.ct import find_series
        >>> find_series(tempfile.mkdtemp()).series
        {}
    """
    require("pydicom")
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"Expected a folder of DICOM files, but {folder} is none: is the path right?")
    series: dict[str, list[Path]] = {}
    counts = Counter[str]()
    unreadable: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydicom's warnings about values that violate the standard
        for path in _files(folder, unreadable):
            try:
                uid = series_uid_of(path)
            except OSError as error:
                unreadable.append(printable(error))
                continue
            if uid is None:
                counts["foreign"] += 1
            elif wanted is not None and uid not in wanted:
                counts["others"] += 1
            else:
                series.setdefault(uid, []).append(Path(path))
    found = {uid: tuple(sorted(series[uid])) for uid in sorted(series)}
    return Found(found, counts["others"], counts["foreign"], tuple(unreadable))


@dataclass(frozen=True, eq=False)
class Slice:
    """The header of one file of a series.

    Attributes:
        path: the file.
        series_uid: the series it belongs to.
        rank: acquisition, instance number and UID: the order of slices at the same position.
        shape: rows and columns.
        orientation: unit vectors `(2, 3)`: the directions of increasing column and row numbers.
        position: of the centre of the first pixel, mm.
        spacing: mm between rows, and between columns.
        slope, intercept: HU = slope · stored value + intercept.
        padding: the stored value for "no measurement", if any.
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
    """Return the UID of a file's series, from its header; None if it is not a DICOM image, or damaged."""
    from pydicom import dcmread

    with open(path, "rb") as file:
        head = file.read(_HEAD)
        if head[128:132] != b"DICM" or _DEFLATED in head:
            return None
        file.seek(0)
        try:
            found = dcmread(file, stop_before_pixels=True, specific_tags=["SeriesInstanceUID"]).get("SeriesInstanceUID")
        except Exception:  # pydicom raises nearly any error for a damaged header
            return None
    return str(found) if found else None


def read_slice(path: str | os.PathLike[str]) -> Slice:
    """Return the header of a file, checked; its pixels are not decoded.

    Raises:
        UnreadableSlice: it is not a DICOM file, is damaged, or is no slice of a CT volume.
        OSError: it cannot be read from the disk.
    """
    content = _content(path)
    with _unreadable_otherwise():
        header = _dataset(content, stop_before_pixels=True)
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
    """Return the pixels of a slice `(rows, columns)` in HU.

    Padding is air: pixels with the stored value `PixelPaddingValue`, if that is outside −1024 … 3071 HU, are set to −1000 HU. A
    padding value within that range cannot be distinguished from tissue, and is kept.

    Raises:
        UnreadableSlice: the pixels are damaged, truncated, or compressed in a way that no installed decoder supports.
        OSError: they cannot be read from the disk.
    """
    content = _content(header.path)
    with _unreadable_otherwise():
        whole = _dataset(content)
        if "PixelData" not in whole:
            raise UnreadableSlice("it has no pixels")
        stored = whole.pixel_array  # integers; pydicom reshapes them to the header's size, or raises
        # Bits above those stored are undefined, and can hide the sign.
        unused = 8 * stored.dtype.itemsize - int(whole.BitsStored)
        stored = (stored << unused) >> unused
        hu = stored.astype(np.float64) * header.slope + header.intercept
        if header.padding is not None:
            low, high = _CT_RANGE
            hu[(stored == header.padding) & ((hu < low) | (hu > high))] = AIR
        return hu


def _files(folder: Path, unreadable: list[str]) -> Iterator[str]:
    """Yield the regular files below `folder`, once each; a pipe would never end, and links may form a cycle."""
    seen = set[tuple[int, int]]()
    for here, folders, names in os.walk(folder, onerror=lambda error: unreadable.append(printable(error)), followlinks=True):
        status = os.stat(here)
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        yield from filter(os.path.isfile, (os.path.join(here, name) for name in names))


def _numbers(values: Any, count: int) -> NDArray[np.float64]:
    found = np.array([float(value) for value in values], dtype=np.float64)
    if found.shape != (count,) or not np.isfinite(found).all():
        raise UnreadableSlice(f"it has {found.tolist()} instead of {count} finite numbers")
    return found


def _padding(header: FileDataset) -> int | None:
    value = header.get("PixelPaddingValue")
    if value is None or isinstance(value, bytes):
        return None
    bits = int(header.BitsAllocated)
    # Some files store it unsigned although the pixels are signed.
    return int(value) - (1 << bits) if header.PixelRepresentation == 1 and int(value) >= 1 << (bits - 1) else int(value)


def _check(found: Slice, header: FileDataset) -> None:
    for what, values, low, high in (
        ("numbers of rows and columns are", found.shape, 1, _LARGEST_SIDE),
        ("distances of pixels in mm are", found.spacing, 1e-3, 100),
        ("position in mm is", found.position, -_FARTHEST, _FARTHEST),
        ("rescale slope is", abs(found.slope), 1e-12, 1e6),
        ("rescale intercept is", found.intercept, -1e6, 1e6),
    ):
        if not all(low <= value <= high for value in np.ravel(values)):
            raise UnreadableSlice(f"its {what} {np.ravel(values).tolist()}")
    allocated, stored = int(header.BitsAllocated), int(header.BitsStored)
    if allocated not in (8, 16, 32) or not 0 < stored <= allocated or int(header.get("HighBit", stored - 1)) != stored - 1:
        raise UnreadableSlice(f"its pixels have {stored} of {allocated} bits")
    if np.abs(found.orientation @ found.orientation.T - np.eye(2)).max() > 1e-3:
        raise UnreadableSlice(f"its orientation {found.orientation.ravel().tolist()} is not two unit vectors at a right angle")


def _content(path: str | os.PathLike[str]) -> bytes:
    """Return all bytes of a file; in memory, a damaged length cannot request more than there is."""
    size = os.stat(path).st_size
    if size > _LARGEST_FILE:
        raise UnreadableSlice(f"it has {size / 2**20:.0f} MiB")
    return Path(path).read_bytes()


def _dataset(content: bytes, stop_before_pixels: bool = False) -> FileDataset:
    from pydicom import dcmread

    if content[128:132] != b"DICM":
        raise UnreadableSlice("it is not a DICOM file")
    if _DEFLATED in content[:_HEAD]:
        raise UnreadableSlice("it is deflated as a whole, which may unfold to any size")
    return dcmread(BytesIO(content), stop_before_pixels=stop_before_pixels)


@contextmanager
def _unreadable_otherwise() -> Iterator[None]:
    """Turn every error and warning of pydicom and the decoders into `UnreadableSlice`, unless it is not the file's fault."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (UnreadableSlice, MemoryError, ModuleNotFoundError):
        raise
    except AttributeError as error:
        raise UnreadableSlice(f"its header has no {error.name}") from error
    except Exception as error:  # pydicom raises nearly any error for a damaged file
        raise UnreadableSlice(" ".join(str(error).split())[:300] or type(error).__name__) from error
