"""Functions that tests call in other processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from rightloss.lidc.ct.workers import Failure, Isolated


def noisy_sum(job: str | Sequence[int]) -> int:
    """Print, as libraries do, and return the sum; of "process" the number of the process; of "long" after long."""
    print("on standard output")
    os.write(2, b"as a library would\n")
    if job == "process":
        return os.getpid()
    if job == "long":
        time.sleep(1000)
    if isinstance(job, str):
        raise ValueError(f"no numbers in {job!r}")
    return sum(job)


def own_process(seconds: float) -> int:
    """Return the number of the process after some seconds; below 0 crash."""
    if seconds < 0:
        segfault()
    time.sleep(seconds)
    return os.getpid()


def segfault() -> None:
    time.sleep(0.1)  # a decoder reads the file first
    os.kill(os.getpid(), signal.SIGSEGV)


_nested = Isolated(own_process, 60.0)


def nested(log: str) -> None:
    """Write the numbers of this process and of one that it has started to a file, then take long."""
    found = _nested(0.0)
    assert not isinstance(found, Failure)
    Path(log).write_text(f"{os.getpid()} {found}")
    time.sleep(1000)


def is_running(pid: int) -> bool:
    """Whether the process runs, and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
