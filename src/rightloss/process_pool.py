"""Processes that work for this one, and how they are let go.

Stage: a crew and the threads that feed it → a block after which no process is left; a process → closed pipes, its last line.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import IO, Any, Protocol, runtime_checkable

__all__ = ["Member", "close_pipes", "last_line", "let_go"]


@runtime_checkable
class Member(Protocol):
    """Of a crew: it has a process."""

    def stop(self) -> None:
        """From another thread: what is under way is given up, and nothing more is taken."""

    def close(self) -> object:
        """Leaves no process and no open pipe."""


@contextmanager
def let_go(crew: Sequence[Member], pool: ThreadPoolExecutor) -> Iterator[None]:
    """However the block ends, no process of the crew outlives it, and no thread of the pool that feeds it."""
    try:
        yield
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for member in crew:
            member.stop()
        pool.shutdown()  # a thread whose process is gone ends
        for member in crew:
            member.close()


def close_pipes(process: subprocess.Popen[Any]) -> None:
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # what it never read cannot be flushed
            if pipe is not None:
                pipe.close()


def last_line(printed: IO[bytes]) -> list[str]:
    """Of what a process printed, if it did; closes the file."""
    with printed as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1000))
        return file.read().decode("utf-8", "replace").strip().splitlines()[-1:]
