"""Jobs in processes that may die without ending this one.

Stage: number of processes → pebble's pool, which replaces a process that died; futures → those that are done; function, jobs →
(job, its result or `Failure`). Added to pebble are processes that end with their parent, also in the middle of a job, and that
Ctrl-C does not reach.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pebble import ProcessPool

Job = TypeVar("Job")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Failure:
    """A job without a result.

    Attributes:
        reason: why.
        error: name of the error, or of the signal that ended the process.
        again: whether another try may succeed: the process died or took too long, or disk or memory failed.
    """

    reason: str
    error: str = ""
    again: bool = False


def run_jobs(
    function: Callable[[Job], Answer], jobs: Sequence[Job], workers: int, timeout: float
) -> Generator[tuple[Job, Answer | Failure]]:
    """Yield each job with the function's result, or a `Failure`, in order of completion.

    No process is left when the generator is exhausted or closed. The user's script needs no `if __name__ == "__main__"`.

    Args:
        function: of one argument, at the top of a module.
        jobs: the arguments.
        workers: number of processes; 0 calls the function in this one, without protection.
        timeout: maximum time per job, in seconds.

    Raises:
        ChildProcessError: if processes cannot be started.
    """
    if workers == 0 or not jobs:
        for job in jobs:
            yield job, _attempt(function, job)
        return
    pool = new_pool(min(workers, len(jobs)), be_silent, context=_WithoutMainContext())
    try:
        with no_interrupts():  # the first call starts the processes
            pending: dict[Any, Job] = {pool.schedule(_attempt, (function, job), timeout=timeout): job for job in jobs}
        while pending:
            for future in wait_for_some(pool, pending, 1.0):
                yield pending.pop(future), _outcome(future, timeout)
    except BrokenProcessPool as error:
        raise ChildProcessError(f"a process could not be started ({error.__cause__ or error})") from error
    finally:
        stop(pool)


def new_pool(
    workers: int, initializer: Callable[..., None], arguments: tuple[Any, ...] = (), context: Any = None
) -> ProcessPool:
    """Return a pool, started by its first job; `context` is multiprocessing's, "spawn" by default."""
    from pebble import ProcessPool

    if os.name == "posix":
        resource_tracker.ensure_running()  # now: it unblocks SIGINT when it starts
    context = multiprocessing.get_context("spawn") if context is None else context
    return ProcessPool(workers, initializer=initializer, initargs=arguments, context=context)


def stop(pool: ProcessPool) -> None:
    """End all processes of a pool."""
    pool.stop()
    pool.join()


def wait_for_some(pool: ProcessPool, futures: Collection[Future[Any]], seconds: float) -> set[Future[Any]]:
    """Return the futures that are done, after a wait of at most this time for the first; raise if the pool has given up."""
    done, _ = wait(futures, seconds, FIRST_COMPLETED)
    if not done and not pool.active:  # pebble loses jobs that were not yet sent when it gives up
        raise BrokenProcessPool("all processes ended")
    return done


@contextmanager
def no_interrupts() -> Iterator[None]:
    """Block Ctrl-C inside, and permanently in processes and threads that are started inside, as those of a pool."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def cause_of_death(exit_code: int) -> str:
    """Return the name of the signal that ended a process, or its exit code."""
    return signal.Signals(-exit_code).name if exit_code < 0 else f"exit code {exit_code}"


class _WithoutMain(SpawnProcess):
    """A new interpreter that does not run the user's script again, as "spawn" would."""

    def start(self) -> None:
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main


class _WithoutMainContext(SpawnContext):
    Process = _WithoutMain


def be_silent() -> None:
    """Set up a new process: libraries print nothing, and it ends with its parent, in the middle of a job, which pebble would
    finish first."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _attempt(function: Callable[[Job], Answer], job: Job) -> Answer | Failure:
    try:
        return function(job)
    except Exception as error:  # error of one job; the others continue
        name = type(error).__name__
        return Failure(str(error) or name, name, isinstance(error, OSError | MemoryError))


def _outcome(future: Future[Answer | Failure], timeout: float) -> Answer | Failure:
    from pebble import ProcessExpired

    try:
        return future.result()
    except TimeoutError:
        return Failure(f"given up after {timeout:g} s", TimeoutError.__name__, True)
    except ProcessExpired as error:
        cause = cause_of_death(error.exitcode)
        return Failure(f"the process that read it died ({cause})", cause, True)
