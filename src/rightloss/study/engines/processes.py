"""An engine that runs groups in several processes of this machine.

Stage: work, groups → results of each group, as they are done.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...process_pool import cause_of_death, end_with_parent, new_pool, no_interrupts, stop, wait_for_some
from ..config import Group
from ..results import RunResult
from .contract import Finished, GroupReport, Work, attempt

if TYPE_CHECKING:
    from pebble import ProcessPool

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
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"Expected at least 1 worker, but got {self.workers}: leave it out for one per processor.")
        if self.retries < 0:
            raise ValueError(f"Expected no fewer than 0 retries, but got {self.retries}: 2 is the default.")

    def run(self, work: Work, groups: Sequence[Group], report: GroupReport) -> Finished:
        """See `Engine`."""
        from pebble import ProcessExpired

        if not groups:
            return
        packed, deaths, told = _packed(work), [0] * len(groups), [0.0] * len(groups)
        shares = multiprocessing.get_context("spawn").RawArray("d", len(groups))
        with _pool(min(self.workers or processors(), len(groups)), shares) as (pool, printed):

            def start(number: int) -> Any:
                return pool.schedule(_run_group, args=(packed, groups[number], number))

            with no_interrupts():  # the first call starts the processes
                running = {start(number): number for number in range(len(groups))}
            while running:
                done = wait_for_some(pool, running, _PAUSE)
                for number in running.values():
                    if shares[number] > told[number]:
                        told[number] = shares[number]
                        report(number, told[number])
                for future in done:
                    number = running.pop(future)
                    try:
                        found = future.result()
                    except ProcessExpired as error:
                        deaths[number] += 1
                        if deaths[number] > self.retries:
                            raise _gave_up(groups[number], deaths[number], error, printed) from None
                        running[start(number)] = number
                        continue
                    if isinstance(found, Exception):
                        raise found
                    yield number, found


def processors() -> int:
    """Return the number of processors that this process may use; the machine may have more."""
    from joblib import cpu_count

    return int(cpu_count())


@contextmanager
def _pool(workers: int, shares: Any) -> Iterator[tuple[ProcessPool, Path]]:
    """Yield a pool that is closed after the block, and the folder with the output of each process."""
    with tempfile.TemporaryDirectory(prefix="rightloss-", ignore_cleanup_errors=True) as folder:
        printed = Path(folder)
        pool = new_pool(workers, _prepare_worker, (shares, printed))
        try:
            yield pool, printed
        except BrokenProcessPool as error:
            raise ChildProcessError(
                f"Expected processes to run groups in, but they could not be started ({error.__cause__ or error}): "
                "if memory is short, use fewer workers, and run again to resume."
            ) from error
        finally:
            stop(pool)


def _prepare_worker(shares: Any, printed: Path) -> None:
    """Initialise a process."""
    global _shares
    _shares = shares
    with open(printed / str(os.getpid()), "wb") as file:  # libraries may print; a process that dies may say why
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    end_with_parent(lambda: shutil.rmtree(printed, ignore_errors=True))
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next minibatch; to return it and ask again takes a tenth of the time."""
    with suppress(OSError, AttributeError, TypeError):  # another C library, or another system
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
        mallopt(-2, 2**26)  # M_TOP_PAD
        mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, at its largest


def _run_group(packed: bytes, group: Group, number: int) -> list[RunResult] | Exception:
    """Called in a worker."""

    def report(share: float) -> None:
        _shares[number] = share

    try:
        work = pickle.loads(packed)
    except AttributeError as error:
        return ValueError(f"Expected work that other processes can import, but {error}: move it to a module of its own.")
    except Exception as error:
        return error
    return attempt(work, group, report)


def _packed(work: Work) -> bytes:
    try:
        return pickle.dumps(work)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"Expected work that other processes can import, but {error}: move it to the top of a module."
        ) from error


def _gave_up(group: Group, deaths: int, error: Any, printed: Path) -> ChildProcessError:
    cause = cause_of_death(error.exitcode)
    with suppress(OSError):
        text = (printed / str(error.pid)).read_bytes()[-1000:].decode("utf-8", "replace")
        cause = ", ".join([cause, *text.strip().splitlines()[-1:]])
    return ChildProcessError(
        f"Expected a result of {group.label}, but its process died, {deaths} times in a row ({cause}): "
        "if memory is short, use fewer workers, and run again to resume."
    )
