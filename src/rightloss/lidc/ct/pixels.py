"""The bytes of one DICOM file, and the pixels in them.

Stage: path → data set; path → stored values `(rows, columns)`.

Decoders of the JPEG family are C++ that a damaged file can crash, so they run in a process of their own.
"""

from __future__ import annotations

import atexit
import base64
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .workers import Failure, Worker

if TYPE_CHECKING:
    from pydicom import FileDataset

__all__ = ["FileOutOfReach", "UnreadableSlice", "printable", "read_dataset", "require", "stored_pixels", "unreadable_otherwise"]

HEAD = 1 << 13  # bytes, in which nearly every file has its series UID
LARGEST_FILE = 1 << 28  # bytes
DEFLATED = b"1.2.840.10008.1.2.1.99"  # a file that is compressed as a whole

_SECONDS = 60.0  # for one slice
_CRASHES = {"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV"}  # a decoder's own end, and so the file's fault


class UnreadableSlice(Exception):
    """A file that gives no slice of a CT volume; the message says why."""


class FileOutOfReach(OSError):
    """Not the file's fault: it is gone, locked or on a failing disk, or its decoder was killed. Another time it may be read."""


def require(*packages: str) -> None:
    """Says what to install where one is missing."""
    for name in packages:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{name} is needed for CT: pip install 'rightloss[lidc]'", name=name) from error


def printable(text: object) -> str:
    """`text`, whatever bytes the file names in it have: those that are no UTF-8 as `\\udcff`."""
    return str(text).encode("utf-8", "backslashreplace").decode()


def read_dataset(path: str | os.PathLike[str], tags: list[str] | None = None) -> FileDataset:
    """A DICOM file; only those tags of it, and no pixels, where they are given."""
    from pydicom import dcmread

    content = _content(path)
    if content[128:132] != b"DICM":
        raise UnreadableSlice("it is no DICOM file")
    if DEFLATED in content[:HEAD]:
        raise UnreadableSlice("it is deflated as a whole, which may unfold to any size")
    return dcmread(BytesIO(content), stop_before_pixels=tags is not None, specific_tags=None if tags is None else list(tags))


def stored_pixels(whole: FileDataset, path: Path, shape: tuple[int, int]) -> NDArray[Any]:
    """The stored values of a file that has been read, decompressed; without the bits that carry nothing."""
    from pydicom.uid import RLELossless

    if "PixelData" not in whole:
        raise UnreadableSlice("it has no pixels")
    syntax = whole.file_meta.TransferSyntaxUID
    if syntax.is_encapsulated and syntax != RLELossless:
        _check_codestream(whole, shape)
        pixels = _decoded_elsewhere(path)
    else:
        pixels = whole.pixel_array
    if pixels.shape != shape or pixels.dtype.kind not in "iu":
        raise UnreadableSlice(f"its pixels are {pixels.dtype}{list(pixels.shape)}")
    # Bits above those stored may hold anything, and hide the sign.
    unused = 8 * pixels.dtype.itemsize - int(whole.BitsStored)
    return (pixels << unused) >> unused


def decode(path: str) -> tuple[str, list[int], str]:
    """What the other process does: dtype, shape and bytes of the pixels, as JSON can hold them."""
    with unreadable_otherwise():
        pixels = read_dataset(path).pixel_array
    return pixels.dtype.str, list(pixels.shape), base64.b64encode(pixels.tobytes()).decode()


_elsewhere: dict[int, Worker] = {}  # by process: a fork must not talk to its parent's
_one_at_a_time = threading.Lock()


def _decoded_elsewhere(path: Path) -> NDArray[Any]:
    with _one_at_a_time:
        if os.getpid() not in _elsewhere:
            _elsewhere[os.getpid()] = worker = Worker(f"{__name__}:{decode.__name__}", _SECONDS)
            atexit.register(worker.close)
        found = _elsewhere[os.getpid()].run(str(path))
    if isinstance(found, Failure):
        if found.again and found.error not in _CRASHES:
            raise FileOutOfReach(f"{path}: {found.reason}")
        raise UnreadableSlice(found.reason)
    dtype, shape, content = found
    return np.frombuffer(base64.b64decode(content), dtype).reshape(shape)


def _content(path: str | os.PathLike[str]) -> bytes:
    """All of a file, in memory, where a damaged length cannot ask for more than there is."""
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size > LARGEST_FILE:
                raise UnreadableSlice(f"it has {size / 2**20:.0f} MiB")
            return file.read(size)
    except OSError as error:  # pydicom raises it of damaged files, too: only here is it the disk's
        raise FileOutOfReach(str(error)) from error


def _check_codestream(whole: FileDataset, shape: tuple[int, int]) -> None:
    """That the compressed image is as large as the header says: decoders allocate what the image says of itself."""
    from pydicom.encaps import get_frame

    declared = _declared_shape(get_frame(whole.PixelData, 0, number_of_frames=1))
    if declared != shape:
        raise UnreadableSlice(f"its compressed image is {declared}, not {shape}")


def _declared_shape(code: bytes) -> tuple[int, int] | None:
    """Rows and columns in the first frame header of a JPEG, JPEG-LS or JPEG 2000 codestream."""
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
def unreadable_otherwise() -> Iterator[None]:
    """Whatever pydicom and the decoders raise or warn of, as one kind of error; but not what is no fault of the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (UnreadableSlice, FileOutOfReach, ChildProcessError, MemoryError, ModuleNotFoundError):
        raise
    except AttributeError as error:
        raise UnreadableSlice(f"its header has no {error.name}") from error
    except Exception as error:  # of a damaged file pydicom raises nearly anything
        raise UnreadableSlice(" ".join(str(error).split())[:300] or type(error).__name__) from error
