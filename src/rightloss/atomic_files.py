"""Atomic file writing: a file is written completely or not at all, by one run at a time.

Stage: path → a handle whose content appears there only when all of it has been written; or a block in which no other run writes
to it.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


@contextmanager
def only_run(target: Path) -> Iterator[None]:
    """Hold the lock file `TARGET.lock` for the block; it contains the process id and host name.

    The operating system releases the lock when the process ends, also when it is killed, so a leftover file blocks nobody.

    Raises:
        ValueError: another run holds it.
        OSError: the file cannot be created, for example because the disk is full.
    """
    from filelock import FileLock, Timeout  # of the extra "study"; writing a file does not need it

    path = target.resolve().with_name(target.name + ".lock")
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(
            f"Expected no other run to write {target}, but process {_holder(path)} does: wait until it has ended, or stop it."
        ) from None
    try:
        with suppress(OSError):  # on a full disk the lock is held, but the file cannot say by which process
            path.write_text(f"{os.getpid()} on {socket.gethostname()}\n")
        yield
    finally:
        with suppress(OSError):  # before the release: filelock refuses a lock if its file was deleted
            path.unlink()
        lock.release()


def _holder(path: Path) -> str:
    """Return the text of the lock file: the process that holds the lock."""
    with suppress(OSError):
        return path.read_text(errors="replace").strip() or "of an unknown number"
    return "of an unknown number"
