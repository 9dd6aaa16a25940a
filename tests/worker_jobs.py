"""Functions that tests call in other processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path


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


def segfault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def endless(log: str) -> None:
    """Write the number of this process to a file, then take long."""
    Path(log).write_text(f"{os.getpid()}")
    time.sleep(1000)


def is_running(pid: int) -> bool:
    """Whether the process runs, and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
