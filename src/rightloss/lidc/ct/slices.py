"""One DICOM file: its header, and its pixels in Hounsfield units.

Stage: path → series UID; path → `Slice`; `Slice` → HU `(rows, columns)`.

For any damaged, malicious or unsuitable file an `UnreadableSlice` says what is wrong. Decoders of the JPEG family are C++ code
that a damaged file can crash, so they run in a separate process.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from ...extras import install
from .workers import Failure, Isolated

if TYPE_CHECKING:
    from pydicom import FileDataset

__all__ = ["AIR", "Slice", "UnreadableSlice", "printable", "read_hu", "read_slice", "require", "series_uid_of"]

AIR = -1000  # HU

_HEAD = 1 << 13  # bytes; nearly every file has its series UID in them
_LARGEST_FILE = 1 << 28  # bytes
_DEFLATED = b"1.2.840.10008.1.2.1.99"  # a file that is compressed as a whole
_SECONDS = 60.0  # to decode one slice
_CRASHES = {"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV"}  # errors of a decoder that are due to the file
_LARGEST_SIDE = 4096  # pixels; CT has 512, rarely 1024 or 2048
_FARTHEST = 1e5  # mm from the origin
_CT_RANGE = (-1024, 3071)  # range of HU in 12 bits
_SERIES_UID = 0x0020_000E
_TAGS = [
    *("AcquisitionNumber", "BitsAllocated", "BitsStored", "Columns", "HighBit", "ImageOrientationPatient"),
    *("ImagePositionPatient", "InstanceNumber", "NumberOfFrames", "PixelPaddingValue", "PixelRepresentation", "PixelSpacing"),
    *("RescaleIntercept", "RescaleSlope", "Rows", "SOPInstanceUID", "SamplesPerPixel", "SeriesInstanceUID"),
]


class UnreadableSlice(Exception):
    """Raised when a file is not a slice of a CT volume; the message says why."""


class FileOutOfReach(OSError):
    """Raised when a file may be readable later: it is gone, locked or on a failing disk, or its decoder was killed."""


def require(*packages: str) -> None:
    """Raise an error that says what to install if a package is missing."""
    for name in packages:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{name} is needed for CT: {install('lidc')}", name=name) from error


def printable(text: object) -> str:
    """Return `text` with bytes of file names that are not UTF-8 written as `\\udcff`."""
    return str(text).encode("utf-8", "backslashreplace").decode()


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
    """Return the UID of a file's series, from its first kilobytes; None if it is not a DICOM image."""
    from pydicom.errors import InvalidDicomError
    from pydicom.filereader import read_partial

    with open(path, "rb", buffering=0) as file:
        head = file.read(_HEAD)
        if head[128:132] != b"DICM" or _DEFLATED in head:
            return None
        rest = min(os.fstat(file.fileno()).st_size, _LARGEST_FILE)
        for more in (0, rest):  # all of the file if its head has no series UID
            head += file.read(more)
            try:
                found = read_partial(BytesIO(head), stop_when=_behind_the_series_uid, specific_tags=[_SERIES_UID])
                if uid := found.get("SeriesInstanceUID"):
                    return str(uid)
            except InvalidDicomError:
                return None
            except Exception:  # pydicom raises nearly any error for a damaged header
                continue
    return None


def read_slice(path: str | os.PathLike[str]) -> Slice:
    """Return the header of a file, checked; its pixels are not decoded.

    Raises:
        UnreadableSlice: it is not a DICOM file, is damaged, or is no slice of a CT volume.
        OSError: it cannot be read from the disk.
    """
    with _unreadable_otherwise():
        header = _read_dataset(path, _TAGS)
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
    with _unreadable_otherwise():
        stored = _stored_pixels(_read_dataset(header.path), header.path, header.shape)
        hu = stored.astype(np.float64) * header.slope + header.intercept
        if header.padding is not None:
            low, high = _CT_RANGE
            hu[(stored == header.padding) & ((hu < low) | (hu > high))] = AIR
        return hu


def _behind_the_series_uid(tag: Any, vr: str | None, length: int) -> bool:
    return tag > _SERIES_UID or tag >> 16 == 4  # group 4: a DICOMDIR, an index of series


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
    if not all(0 < side <= _LARGEST_SIDE for side in found.shape):
        raise UnreadableSlice(f"it has {found.shape[0]} rows and {found.shape[1]} columns")
    allocated, stored = int(header.BitsAllocated), int(header.BitsStored)
    if allocated not in (8, 16, 32) or not 0 < stored <= allocated or int(header.get("HighBit", stored - 1)) != stored - 1:
        raise UnreadableSlice(f"its pixels have {stored} of {allocated} bits")
    if not (np.isfinite([found.slope, found.intercept]).all() and 0 < abs(found.slope) < 1e6 and abs(found.intercept) < 1e6):
        raise UnreadableSlice(f"its rescale slope is {found.slope} and its intercept {found.intercept}")
    if not (found.spacing > 1e-3).all() or (found.spacing > 100).any():
        raise UnreadableSlice(f"its pixels are {found.spacing.tolist()} mm apart")
    if (np.abs(found.position) > _FARTHEST).any():
        raise UnreadableSlice(f"its position is {found.position.tolist()} mm")
    if np.abs(found.orientation @ found.orientation.T - np.eye(2)).max() > 1e-3:
        raise UnreadableSlice(f"its orientation {found.orientation.ravel().tolist()} is not two unit vectors at a right angle")


def _read_dataset(path: str | os.PathLike[str], tags: list[str] | None = None) -> FileDataset:
    """Return a DICOM file; if tags are given only these, and no pixels."""
    from pydicom import dcmread

    content = _content(path)
    if content[128:132] != b"DICM":
        raise UnreadableSlice("it is not a DICOM file")
    if _DEFLATED in content[:_HEAD]:
        raise UnreadableSlice("it is deflated as a whole, which may unfold to any size")
    return dcmread(BytesIO(content), stop_before_pixels=tags is not None, specific_tags=None if tags is None else list(tags))


def _stored_pixels(whole: FileDataset, path: Path, shape: tuple[int, int]) -> NDArray[Any]:
    """Return the stored values of a file, decompressed, without unused bits."""
    from pydicom.uid import RLELossless

    if "PixelData" not in whole:
        raise UnreadableSlice("it has no pixels")
    syntax = whole.file_meta.TransferSyntaxUID
    if syntax.is_encapsulated and syntax != RLELossless:
        _check_codestream(whole, shape)
        pixels = _decode_isolated(path)
    else:
        pixels = whole.pixel_array
    if pixels.shape != shape or pixels.dtype.kind not in "iu":
        raise UnreadableSlice(f"its pixels are {pixels.dtype}{list(pixels.shape)}")
    # Bits above those stored are undefined, and can hide the sign.
    unused = 8 * pixels.dtype.itemsize - int(whole.BitsStored)
    return (pixels << unused) >> unused


def _decode(path: str) -> NDArray[Any]:
    """Return the pixels of a file; called in another process."""
    with _unreadable_otherwise():
        return _read_dataset(path).pixel_array


_isolated = Isolated(_decode, _SECONDS)


def _decode_isolated(path: Path) -> NDArray[Any]:
    found = _isolated(str(path))
    if isinstance(found, Failure):
        if found.again and found.error not in _CRASHES:
            raise FileOutOfReach(f"{path}: {found.reason}")
        raise UnreadableSlice(found.reason)
    return found


def _content(path: str | os.PathLike[str]) -> bytes:
    """Return all bytes of a file; in memory, a damaged length cannot request more than there is."""
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size > _LARGEST_FILE:
                raise UnreadableSlice(f"it has {size / 2**20:.0f} MiB")
            return file.read(size)
    except OSError as error:  # from the disk here; pydicom also raises OSError for damaged files
        raise FileOutOfReach(str(error)) from error


def _check_codestream(whole: FileDataset, shape: tuple[int, int]) -> None:
    """Check that the compressed image has the size in the header: decoders allocate what the image claims."""
    from pydicom.encaps import get_frame

    declared = _declared_shape(get_frame(whole.PixelData, 0, number_of_frames=1))
    if declared != shape:
        raise UnreadableSlice(f"its compressed image is {declared}, not {shape}")


def _declared_shape(code: bytes) -> tuple[int, int] | None:
    """Return rows and columns from the first frame header of a JPEG, JPEG-LS or JPEG 2000 codestream."""
    at = 2
    while at + 12 <= len(code) and code[at] == 0xFF:
        marker, length = code[at + 1], int.from_bytes(code[at + 2 : at + 4])
        if marker == 0x51:  # SIZ of JPEG 2000: extent and offset of the image
            right, bottom, left, top = (int.from_bytes(code[at + k : at + k + 4]) for k in (6, 10, 14, 18))
            return bottom - top, right - left
        if (0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)) or marker == 0xF7:  # SOF of JPEG and of JPEG-LS
            return int.from_bytes(code[at + 5 : at + 7]), int.from_bytes(code[at + 7 : at + 9])
        at += 2 + length
    return None


@contextmanager
def _unreadable_otherwise() -> Iterator[None]:
    """Turn every error and warning of pydicom and the decoders into `UnreadableSlice`, unless it is not the file's fault."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (UnreadableSlice, FileOutOfReach, ChildProcessError, MemoryError, ModuleNotFoundError):
        raise
    except AttributeError as error:
        raise UnreadableSlice(f"its header has no {error.name}") from error
    except Exception as error:  # pydicom raises nearly any error for a damaged file
        raise UnreadableSlice(" ".join(str(error).split())[:300] or type(error).__name__) from error
