"""Call functions in other processes, which may crash, hang or run out of memory without ending this one.

Stage: function, jobs → (job, its result or `Failure`), in order of completion.

The pool is that of `process_pool`, with a time limit for each job. Its processes can be started from any script (see
`_WorkerProcess`).
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.util import Finalize, is_exiting
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ...process_pool import cause_of_death, end_with_parent, new_pool, no_interrupts, stop, wait_for_some

if TYPE_CHECKING:
    from pebble import ProcessPool

__all__ = ["Failure", "Isolated", "run_jobs"]

Job = TypeVar("Job")
Answer = TypeVar("Answer")

_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}  # one thread each; no modules from the current folder
_starting = threading.Lock()


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

    No process is left when the generator is exhausted or closed.

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
    pool = _started(min(workers, len(jobs)))
    try:
        futures = {_scheduled(pool, function, job, timeout): job for job in jobs}
        for future in _completed(pool, futures):
            yield futures[future], _outcome(future, timeout)
    except BrokenProcessPool as error:
        raise ChildProcessError(f"a process could not be started ({error.__cause__ or error})") from error
    finally:
        stop(pool)


class Isolated(Generic[Job, Answer]):
    """A function called in one other process, which is started when needed, and restarted after it died.

    Args:
        function: of one argument, at the top of a module.
        timeout: maximum time per call, in seconds.
    """

    def __init__(self, function: Callable[[Job], Answer], timeout: float) -> None:
        self.function, self.timeout = function, timeout
        self._pools: dict[int, ProcessPool] = {}  # by process, because a fork must not use its parent's
        self._lock = threading.Lock()

    def __call__(self, job: Job) -> Answer | Failure:
        """Return the result, or a `Failure`."""
        with self._lock:
            for _ in range(2):  # pebble gives up a pool whose only process died while idle
                try:
                    pool = self._pool()
                    (future,) = _completed(pool, [_scheduled(pool, self.function, job, self.timeout)])
                    return _outcome(future, self.timeout)
                except RuntimeError as error:  # includes BrokenProcessPool
                    broken = error
                    self.close()
        raise ChildProcessError(f"a process could not be started ({broken.__cause__ or broken})") from broken

    def close(self) -> None:
        """End the process, if there is one."""
        if pool := self._pools.pop(os.getpid(), None):
            stop(pool)

    def _pool(self) -> ProcessPool:
        own = os.getpid()
        if own not in self._pools:
            self._pools[own] = _started(1)
            # Runs before this process waits for its children to end.
            Finalize(None, self.close, exitpriority=10)
        return self._pools[own]


class _WorkerProcess(SpawnProcess):
    """A new interpreter that does not run the user's script again, as "spawn" would: it needs no `if __name__ == "__main__"`.

    It can also be started by a daemonic process, such as a worker of torch's DataLoader. Ctrl-C reaches only the first process,
    which stops the others.
    """

    def start(self) -> None:
        with _starting, no_interrupts():
            own: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
            before = (own.copy(), os.environ.copy(), sys.modules["__main__"])
            own["daemon"] = False
            os.environ.update(_ENVIRONMENT)
            sys.modules["__main__"] = ModuleType("__main__")
            try:
                super().start()
            finally:
                own.clear()
                own.update(before[0])
                for name in _ENVIRONMENT:
                    os.environ.pop(name)
                    os.environ.update({name: before[1][name]} if name in before[1] else {})
                sys.modules["__main__"] = before[2]


class _WorkerContext(SpawnContext):
    Process = _WorkerProcess


def _started(workers: int) -> ProcessPool:
    return new_pool(workers, _set_up, context=_WorkerContext())


def _scheduled(pool: ProcessPool, function: Callable[[Job], Answer], job: Job, timeout: float) -> Future[Answer | Failure]:
    return pool.schedule(_guarded, (function, job, timeout), timeout=timeout)


def _completed(pool: ProcessPool, futures: Iterable[Future[Answer]]) -> Iterator[Future[Answer]]:
    pending = set(futures)
    while pending:
        done = wait_for_some(pool, pending, 1.0)
        pending -= done
        yield from done


def _outcome(future: Future[Answer | Failure], timeout: float) -> Answer | Failure:
    from pebble import ProcessExpired

    try:
        return future.result()
    except TimeoutError:
        return Failure(f"given up after {timeout:g} s", TimeoutError.__name__, True)
    except ProcessExpired as error:
        cause = cause_of_death(error.exitcode)
        return Failure(f"the process that read it died ({cause})", cause, True)


def _set_up() -> None:
    """Set up a new process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)  # decoders print messages
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    end = signal.getsignal(signal.SIGTERM)
    # Not a second time: a process that is ending must first end its own processes.
    signal.signal(signal.SIGTERM, lambda *given: None if is_exiting() or not callable(end) else end(*given))
    end_with_parent()


def _guarded(function: Callable[[Job], Answer], job: Job, timeout: float) -> Answer | Failure:
    """Call the function in a worker; SIGALRM ends a decoder that hangs with Python's lock, even if the parent is gone."""
    _alarm(math.ceil(timeout) + 5)
    try:
        return _attempt(function, job)
    finally:
        _alarm(0)


def _alarm(seconds: int) -> None:
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)


def _attempt(function: Callable[[Job], Answer], job: Job) -> Answer | Failure:
    try:
        return function(job)
    except Exception as error:  # error of one job; the others continue
        name = type(error).__name__
        return Failure(str(error) or name, name, isinstance(error, OSError | MemoryError))
