"""One run at a time for one output.

Stage: path of the output → a block in which no other process writes to it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["only_run"]

_held: set[Path] = set()  # by this process


@contextmanager
def only_run(target: Path) -> Iterator[None]:
    """Holds `TARGET.lock`, a file with the number and machine of this process; one that a killed process left is taken over.

    Raises:
        ValueError: another run holds it.
    """
    lock = target.resolve().with_name(target.name + ".lock")
    while not _made(lock):
        _clear_if_left_behind(lock, target)
    _held.add(lock)
    try:
        yield
    finally:
        _held.discard(lock)
        lock.unlink(missing_ok=True)


def _made(lock: Path) -> bool:
    try:
        handle = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileExistsError:
        return False
    try:
        with os.fdopen(handle, "w") as file:
            file.write(f"{os.getpid()} {socket.gethostname()}\n")
    except OSError:  # the disk is full: an empty lock would keep everybody out
        lock.unlink(missing_ok=True)
        raise
    return True


def _clear_if_left_behind(lock: Path, target: Path) -> None:
    # Moved aside first, so that of two runs that find it only one takes it over.
    aside = lock.with_name(f"{lock.name}.{os.getpid()}")
    holder = _holder(lock)
    if holder is not None and _is_at_work(lock, holder):
        raise ValueError(
            f"Expected no other run to write {target}, but process {holder or 'of an unknown number'} does: wait until it has "
            f"ended, or remove {lock} if it has."
        )
    with suppress(FileNotFoundError):
        os.replace(lock, aside)
        if _holder(aside) == holder:
            aside.unlink()
        else:  # meanwhile another took it over
            os.replace(aside, lock)


def _holder(lock: Path) -> str | None:
    """What the lock says; None where it is gone."""
    try:
        return lock.read_text(errors="replace").strip()
    except FileNotFoundError:
        return None


def _is_at_work(lock: Path, holder: str) -> bool:
    """Whether the process lives, as far as can be told from here."""
    number, _, machine = holder.partition(" ")
    if not number.isdecimal() or machine != socket.gethostname() or os.name != "posix":
        return True
    if int(number) == os.getpid():  # this one, or one of the same number before a restart
        return lock in _held
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
