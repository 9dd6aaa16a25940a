"""A pool of processes that may die without ending this one.

Stage: number of processes → pebble's pool, which replaces a process that died; futures → those that are done. Added here are
processes that end with their parent, also in the middle of a job, and that Ctrl-C does not reach.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pebble import ProcessPool


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


def end_with_parent(last: Callable[[], None] = lambda: None) -> None:
    """Let this process end with its parent, in the middle of a job, which pebble would finish first; call `last` before."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        last()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def cause_of_death(exit_code: int) -> str:
    """Return the name of the signal that ended a process, or its exit code."""
    return signal.Signals(-exit_code).name if exit_code < 0 else f"exit code {exit_code}"
