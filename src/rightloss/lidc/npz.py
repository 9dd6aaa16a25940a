"""Read arrays of an untrusted `.npz` file: never unpickled, never larger than declared, memory-mapped if possible.

Stage: path → `Npz`: names, shapes and dtypes; name → array, or memory map.
"""

from __future__ import annotations

import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Npz", "StoredArray", "open_npz"]

_BLOCK = 1 << 24  # bytes read at a time
_LIMIT = 1 << 33  # bytes of a compressed array in memory: a hostile file can be a thousand times smaller
_LOCAL = struct.Struct("<4s22xHH")  # a member's own header: signature, …, lengths of its name and extra field
# Errors of the zip reader and NumPy for damaged, foreign or hostile files, line by line: streams that do not decompress or end
# early; headers, offsets and sizes that make no sense. RuntimeError: unknown compression (NotImplementedError) and encryption.
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError),
    *(struct.error, ValueError, OverflowError, OSError, MemoryError),
    RuntimeError,
)


@dataclass(frozen=True)
class StoredArray:
    """The header of one array of the file; its content has not been read."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    start: int  # offset of the numbers from the start of the member
    info: zipfile.ZipInfo

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def stored(self) -> bool:
        """Return whether the numbers are uncompressed in the file, so that they can be memory-mapped."""
        return self.info.compress_type == zipfile.ZIP_STORED


@dataclass(frozen=True)
class Npz:
    """The arrays of a file by name, made by `open_npz`."""

    path: Path
    members: dict[str, StoredArray]
    stamp: tuple[int, ...]  # of the opened file; a file that replaced it has another

    def read(self, name: str) -> NDArray[Any]:
        """Return the array in memory, with its checksum verified."""
        with _reading(self.path), zipfile.ZipFile(self.path) as archive, archive.open(self.members[name].info) as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
            file.read(1)  # past the end, where the checksum is compared
            return array

    def check(self, name: str) -> None:
        """Verify the checksum of an array, reading in blocks."""
        with _reading(self.path), zipfile.ZipFile(self.path) as archive, archive.open(self.members[name].info) as file:
            while file.read(_BLOCK):
                pass

    def map(self, name: str) -> NDArray[Any]:
        """Return a memory map of an uncompressed array: only the rows used are read."""
        member = self.members[name]
        assert member.stored, "a compressed array cannot be mapped"
        if _stamp(self.path) != self.stamp:
            raise ValueError(f"Expected the file that was read, but {self.path} has changed since: read it again.")
        with _reading(self.path):
            with open(self.path, "rb") as file:
                file.seek(member.info.header_offset)
                signature, *lengths = _LOCAL.unpack(file.read(_LOCAL.size))
            if signature != b"PK\3\4":
                raise zipfile.BadZipFile(f"no member at the place where `{name}` should be")
            start = member.info.header_offset + _LOCAL.size + sum(lengths) + member.start
            return np.memmap(self.path, member.dtype, "r", start, member.shape, "F" if member.fortran else "C")


def open_npz(path: str | PathLike[str]) -> Npz:
    """Return the file's arrays without reading them; ValueError if it is damaged, FileNotFoundError if there is none."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"Expected an .npz file, but {path} is a folder: give the path of the file in it.")
    if not path.is_file():
        raise FileNotFoundError(f"Expected an .npz file, but there is none at {path}: is the path right?")
    with _reading(path), zipfile.ZipFile(path) as archive:
        stamp = _stamp(path)
        infos = archive.infolist()
        names = [info.filename for info in infos]
        if not infos or len(set(names)) != len(names) or not all(name.endswith(".npy") for name in names):
            raise zipfile.BadZipFile(f"it holds {names[:5]}, not arrays of different names")
        count = _count_at_end(path)
        if count not in (len(infos), 0xFFFF):  # one flipped bit in an entry's length hides the entries after it
            raise zipfile.BadZipFile(f"its directory lists {len(infos)} of {count} arrays")
        members = [_member(archive, info) for info in infos]
    return Npz(path, {member.name: member for member in members}, stamp)


def _stamp(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _count_at_end(path: Path) -> int:
    """Return the number of members that the last record of a zip file without a comment gives; all bits set if it is larger."""
    with open(path, "rb") as file:
        file.seek(-22, os.SEEK_END)
        return int.from_bytes(file.read()[10:12], "little")


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> StoredArray:
    name = info.filename.removesuffix(".npy")
    with archive.open(info) as file:
        shape, fortran, dtype = _header(file)
        start = file.tell()
    if dtype.hasobject:
        raise zipfile.BadZipFile(f"`{name}` holds Python objects, which are never unpickled")
    size = prod(shape) * dtype.itemsize
    if not dtype.itemsize or min(shape, default=0) < 0 or start + size != info.file_size:
        raise zipfile.BadZipFile(f"`{name}` is said to be {dtype}{list(shape)}, but has {info.file_size - start} bytes")
    if info.compress_type != zipfile.ZIP_STORED and size > _LIMIT:
        raise zipfile.BadZipFile(f"`{name}` decompresses to {size / 1e9:.0f} GB: store it uncompressed")
    return StoredArray(name, shape, dtype, fortran, start, info)


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise zipfile.BadZipFile(f"an array of format {version}, which only records need")
    try:
        return (np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0)(file)
    except Exception as error:  # Python's parser raises nearly anything for a damaged header
        raise zipfile.BadZipFile(f"an array's header cannot be read: {error}") from error


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn every error of a damaged file into a ValueError."""
    try:
        yield
    except _DAMAGE as error:
        raise ValueError(
            f"Expected an .npz file that np.savez wrote, but {path} is not, or is damaged "
            f"({str(error)[:200] or type(error).__name__}): copy or make it again."
        ) from error
