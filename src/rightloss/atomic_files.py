"""Atomic file writing: a file is written completely or not at all.

Stage: path → a handle whose content appears there only when all of it has been written.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_UMASK = threading.Lock()


@contextmanager
def whole_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; move it to `path` when the block succeeds, delete it when it fails.

    A reader of `path` sees the old file, or none, but never a part of the new one.
    """
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".saving-", suffix=".partial")
    os.close(handle)
    try:
        yield Path(temporary)
        os.chmod(temporary, 0o666 & ~umask())  # mkstemp lets only the owner read the file
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield the file of `whole_path`, open for writing bytes."""
    with whole_path(path) as temporary, open(temporary, "w+b") as file:
        yield file


def write_whole(path: str | os.PathLike[str], content: str) -> None:
    """Write `content` atomically, as UTF-8 with `\\n` line ends."""
    with whole_file(path) as file:
        file.write(content.encode())


def check_writable(folder: str | os.PathLike[str]) -> None:
    """Raise an OSError if no file can be written to a folder: call it before long work; it leaves nothing there."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        raise OSError(
            f"Expected a folder that can be written, but {folder} cannot ({error.strerror}): choose another."
        ) from None


def umask() -> int:
    """Return the umask of the process, which can only be read by setting it."""
    with _UMASK:
        mask = os.umask(0o077)
        os.umask(mask)
    return mask
