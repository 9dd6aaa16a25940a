"""Engines that train groups of runs: in this process, in others, or on a Ray cluster. Results are the same.

Stage: work, groups → (number of the group, its results), as they are done.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import pickle
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch

from .. import __version__
from ..arrays import checked_int
from ..process_pool import be_silent, cause_of_death, new_pool, no_interrupts, stop, wait_for_some
from ..ray_cluster import connected, last_line, other_version
from .config import Group
from .results import RunResult

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
            report: called from time to time with the number of a group and the share of it that is done, less if the group is
                run again; not on Ray.

        Raises:
            ChildProcessError: the processes of a group died repeatedly.
        """
        ...


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


def attempt(work: Work, group: Group, report: Report) -> list[RunResult] | Exception:
    """Run a group on one thread in another process; return its results, or its error in a form that can be pickled: with its
    traceback as a note, and as a RuntimeError with its text if there is no other way."""
    try:
        with one_thread():
            return work(group, report)
    except (Exception, SystemExit) as error:
        portable: Exception = RuntimeError(f"{type(error).__name__}: {error}")
        with suppress(Exception):  # whatever the error's own code raises
            again = pickle.loads(pickle.dumps(error))
            if isinstance(error, Exception) and (type(again), str(again)) == (type(error), str(error)):
                portable = error
        portable.add_note("".join(traceback.format_exception(error)))
        return portable


def _result(found: list[RunResult] | Exception) -> list[RunResult]:
    if isinstance(found, Exception):
        raise found
    return found


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


# Processes of this machine.

_PAUSE = 0.1  # seconds between two looks at how far the groups are
# In a worker: the share of each group that is done, in shared memory. It has no lock, which a killed worker could hold
# forever: each group's number is written by only one worker.
_shares: Any = None


@dataclass(frozen=True)
class Processes:
    """Run groups in processes with one thread each; they end with this process, even if it is killed.

    Processes are started with "spawn": a script must run the study under `if __name__ == "__main__":`.

    Attributes:
        workers: number of processes; by default one per processor. Each holds the data in memory.
        retries: how often a group is run again if its process dies, for example for lack of memory.

    Examples:
        >>> from pathlib import Path
        >>> from rightloss.study import PRESETS, run_study
        >>> from rightloss.study.engines import Processes
        >>> results = run_study(PRESETS["quick"], Path("results/quick"), Processes(workers=2))  # doctest: +SKIP
    """

    workers: int | None = None
    retries: int = 2

    def __post_init__(self) -> None:
        _check_numbers(self.workers, self.retries)

    def run(self, work: Work, groups: Sequence[Group], report: GroupReport) -> Finished:
        """See `Engine`."""
        from pebble import ProcessExpired

        if not groups:
            return
        packed, deaths = _packed(work), [0] * len(groups)
        shares = multiprocessing.get_context("spawn").RawArray("d", len(groups))
        pool = new_pool(min(self.workers or processors(), len(groups)), _prepare_worker, (shares,))

        def start(number: int) -> Any:
            return pool.schedule(_run_group, args=(packed, groups[number], number))

        try:
            with no_interrupts():  # the first call starts the processes
                running = {start(number): number for number in range(len(groups))}
            while running:
                done = wait_for_some(pool, running, _PAUSE)
                for number in running.values():
                    report(number, shares[number])
                for future in done:
                    number = running.pop(future)
                    try:
                        found = future.result()
                    except ProcessExpired as error:
                        deaths[number] += 1
                        if deaths[number] > self.retries:
                            cause = f"its process died, {deaths[number]} times in a row ({cause_of_death(error.exitcode)})"
                            raise _gave_up(groups[number], cause, "if memory is short, use fewer workers, and") from None
                        running[start(number)] = number
                        continue
                    yield number, _result(found)
        except BrokenProcessPool as error:
            raise ChildProcessError(
                f"Expected processes to run groups in, but they could not be started ({error.__cause__ or error}): "
                "if memory is short, use fewer workers, and run again to resume."
            ) from error
        finally:
            stop(pool)


def processors() -> int:
    """Return the number of processors that this process may use; the machine may have more."""
    from joblib import cpu_count

    return int(cpu_count())


def _check_numbers(workers: int | None, retries: int) -> None:
    if workers is not None:
        checked_int(workers, "workers", 1, remedy="leave it out for one per processor")
    checked_int(retries, "retries", 0)


def _gave_up(group: Group, cause: str, remedy: str) -> ChildProcessError:
    return ChildProcessError(f"Expected a result of {group.label}, but {cause}: {remedy} run again to resume.")


def _prepare_worker(shares: Any) -> None:
    """Initialise a process. glibc keeps freed memory for the next minibatch: to return it and ask again takes a tenth of the
    time."""
    global _shares
    _shares = shares
    be_silent()
    with suppress(OSError, AttributeError, TypeError):  # another C library, or another system
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
        mallopt(-2, 2**26)  # M_TOP_PAD
        mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, at its largest


def _packed(work: Work) -> bytes:
    try:
        return pickle.dumps(work)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise _not_importable(error) from error


def _run_group(packed: bytes, group: Group, number: int) -> list[RunResult] | Exception:
    """Called in a worker."""
    try:
        work = pickle.loads(packed)
    except AttributeError as error:
        return _not_importable(error)
    except Exception as error:
        return error
    return attempt(work, group, partial(_shares.__setitem__, number))


def _not_importable(error: Exception) -> ValueError:
    return ValueError(f"Expected work that other processes can import, but {error}: move it to the top of a module.")


# Ray.


@dataclass(frozen=True)
class OnRay:
    """Run groups as Ray tasks with one processor and one thread each. Tasks of a machine that dies are run again on others.

    Results are returned by value, so machines need no shared disk; data files must be at the same path on each machine.

    Attributes:
        address: of a running cluster, as for `ray.init`; None uses the cluster that this process is connected to, or starts a
            temporary one on this machine.
        workers: processors of a cluster that is started here; all by default.
        retries: how often a group is run again when its process or machine dies.

    Examples:
        >>> from pathlib import Path
        >>> from rightloss.study import PRESETS, run_study
        >>> from rightloss.study.engines import OnRay
        >>> results = run_study(PRESETS["table1"], Path("results"), OnRay("head:6379"))  # doctest: +SKIP
    """

    address: str | None = None
    workers: int | None = None
    retries: int = 3

    def __post_init__(self) -> None:
        _check_numbers(self.workers, self.retries)
        if self.workers is not None and self.address is not None:
            raise ValueError(
                f"Expected no number of workers for the cluster at {self.address}, but got {self.workers}: it has its own."
            )

    def run(self, work: Work, groups: Sequence[Group], report: GroupReport) -> Finished:
        """See `Engine`."""
        if not groups:
            return
        with connected(self.address, self.workers) as ray:
            task = ray.remote(num_cpus=1, max_retries=self.retries)(_task)
            running = {task.remote(__version__, work, group): number for number, group in enumerate(groups)}
            try:
                while running:
                    (done,), _ = ray.wait([*running], num_returns=1)
                    number = running.pop(done)
                    yield number, _result(_fetched(ray, done, groups[number]))
            finally:
                for each in running:
                    ray.cancel(each, force=True)


def _fetched(ray: Any, task: Any, group: Group) -> list[RunResult] | Exception:
    try:
        found: list[RunResult] | Exception = ray.get(task)
    except ray.exceptions.RayError as error:
        cause = f"Ray gave up ({type(error).__name__}: {last_line(error)})"
        remedy = f"is rightloss {__version__} on every machine of the cluster, and memory enough? Then"
        raise _gave_up(group, cause, remedy) from error
    return found


def _task(version: str, work: Work, group: Group) -> list[RunResult] | Exception:
    """Run a group on a machine of the cluster."""
    return attempt(work, group, lambda share: None) if version == __version__ else other_version(version, __version__)
