"""One group, on one thread, wherever that is.

Stage: work, group → its results, or its error as a value that can travel.
"""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..config import Group
from ..results import RunResult
from .contract import Report, Work

_PAUSE = 0.2  # seconds between two reports from elsewhere


def attempt(work: Work, group: Group, report: Report) -> list[RunResult] | Exception:
    """What the work gives or raises."""
    try:
        with one_thread():
            return work(group, _seldom(report))
    except Exception as error:
        return _portable(error)


@contextmanager
def one_thread() -> Iterator[None]:
    """The last bit of a sum depends on the number of threads, in torch as in NumPy."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    threads = torch.get_num_threads()
    with threadpool_limits(1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _seldom(report: Report) -> Report:
    """A report costs a message."""
    last = -_PAUSE

    def told(share: float) -> None:
        nonlocal last
        if time.monotonic() - last >= _PAUSE:
            last = time.monotonic()
            report(float(share))

    return told


def _portable(error: Exception) -> Exception:
    """The same error with its traceback as a note; of one that cannot be pickled, the words."""
    portable = error if _can_travel(error) else RuntimeError(f"{type(error).__name__}: {error}")
    portable.add_note("".join(traceback.format_exception(error)))
    return portable


def _can_travel(error: Exception) -> bool:
    try:
        again = pickle.loads(pickle.dumps(error))
    except Exception:  # whatever the error's own code raises
        return False
    return type(again) is type(error) and str(again) == str(error)
