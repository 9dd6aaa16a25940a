"""One run at a time for one output.

Stage: path of the output → a block in which no other process writes to it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

__all__ = ["only_run"]


@contextmanager
def only_run(target: Path) -> Iterator[None]:
    """Hold `TARGET.lock` for the block; the file has the number and machine of this process.

    The operating system holds the lock and gives it up when the process ends, however it ends, so that a file left by a killed
    process locks nobody out.

    Raises:
        ValueError: another run holds it.
        OSError: the file cannot be created, because the disk is full, say.
    """
    path = target.resolve().with_name(target.name + ".lock")
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(
            f"Expected no other run to write {target}, but process {_holder(path)} does: wait until it has ended, or stop it."
        ) from None
    try:
        with suppress(OSError):  # on a full disk nobody learns who holds the lock, but it is held
            path.write_text(f"{os.getpid()} on {socket.gethostname()}\n")
        yield
    finally:
        with suppress(OSError):  # while it is held: filelock accepts no lock on a file that is gone
            path.unlink()
        lock.release()


def _holder(path: Path) -> str:
    """Return what the lock's file says of the process that holds it."""
    with suppress(OSError):
        return path.read_text(errors="replace").strip() or "of an unknown number"
    return "of an unknown number"
