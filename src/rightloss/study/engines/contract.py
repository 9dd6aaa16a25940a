"""The engine protocol, and the simplest engine: one group after the other, in this process.

Stage: work, groups → (number of the group, its results), as they are done.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch

from ..config import Group
from ..results import RunResult

# Called with the share of a group that is done, from 0 to 1.
Report = Callable[[float], None]
# Called with the number of a group and the share of it that is done.
GroupReport = Callable[[int, float], None]
# A pure function that can be pickled: results must not depend on where, when and with what else a group is run.
Work = Callable[[Group, Report], list[RunResult]]
Finished = Generator[tuple[int, list[RunResult]], None, None]


@runtime_checkable
class Engine(Protocol):
    """Runs groups; results do not depend on where."""

    def run(self, work: Work, groups: Sequence[Group], report: GroupReport) -> Finished:
        """Yield each group's number and results in order of completion. Closing the iterator stops running groups.

        An error raised by `work` stops everything and is raised unchanged; if a process dies, its group is run again.

        Args:
            work: trains a group.
            groups: the groups.
            report: called from time to time with the number of a group and the share of it that is done.

        Raises:
            ChildProcessError: the processes of a group died repeatedly.
        """
        ...


@dataclass(frozen=True)
class InProcess:
    """Run groups one after the other in this process: for one core, a debugger, or several devices that train one net.

    Examples:
        >>> from rightloss.study import StudyConfig
        >>> from rightloss.study.engines import InProcess
        >>> groups = StudyConfig("quick", folds=2).groups()
        >>> list(InProcess().run(lambda group, report: [], groups, lambda number, share: None))
        [(0, []), (1, [])]
    """

    def run(self, work: Work, groups: Sequence[Group], report: GroupReport) -> Finished:
        """See `Engine`."""
        for number, group in enumerate(groups):
            with one_thread():
                results = work(group, partial(report, number))
            yield number, results


def attempt(work: Work, group: Group, report: Report) -> list[RunResult] | Exception:
    """Run a group on one thread in another process; return its results, or its error in a form that can be pickled."""
    try:
        with one_thread():
            return work(group, report)
    except (Exception, SystemExit) as error:
        return _portable(error)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch and NumPy to one thread: the last bit of a sum depends on the number of threads."""
    from threadpoolctl import threadpool_limits

    threads = torch.get_num_threads()
    with threadpool_limits(1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _portable(error: Exception | SystemExit) -> Exception:
    """Return the error with its traceback as a note; a RuntimeError with its text if it cannot be pickled."""
    keeps = isinstance(error, Exception) and _can_be_pickled(error)
    portable = error if keeps and isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
    portable.add_note("".join(traceback.format_exception(error)))
    return portable


def _can_be_pickled(error: Exception) -> bool:
    try:
        again = pickle.loads(pickle.dumps(error))
    except Exception:  # whatever the error's own code raises
        return False
    return type(again) is type(error) and str(again) == str(error)
