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
    """Hold the lock file `TARGET.lock` for the block; it contains the process id and host name.

    The operating system releases the lock when the process ends, also when it is killed, so a leftover file blocks nobody.

    Raises:
        ValueError: another run holds it.
        OSError: the file cannot be created, for example because the disk is full.
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
