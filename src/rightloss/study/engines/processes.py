"""Groups in several processes of this machine.

Stage: work, groups → results of each group, as they are done.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue

from ...process_pool import let_go
from ..config import Group
from ..results import RunResult
from .child import Child, Died
from .contract import Report, Work


@dataclass(frozen=True)
class Processes:
    """Processes with one thread each. They end when this one does, however that is.

    Attributes:
        workers: how many at once; as many as processors by default. Each has the data in memory.
        retries: how often a group is tried again whose process died, of lack of memory, say.
    """

    workers: int | None = None
    retries: int = 2

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"Expected at least 1 worker, but got {self.workers}: leave it out for one per processor.")
        if self.retries < 0:
            raise ValueError(f"Expected no fewer than 0 retries, but got {self.retries}: 2 is the default.")

    def run(
        self, work: Work, groups: Sequence[Group], report: Callable[[int, float], None]
    ) -> Generator[tuple[int, list[RunResult]], None, None]:
        """See `Engine`."""
        packed = _packed(work)
        crew = [Child(packed) for _ in range(min(self.workers or _processors(), len(groups)))]
        idle, told = list(crew), SimpleQueue[tuple[int, float | list[RunResult] | BaseException]]()

        def job(number: int) -> None:
            child = idle.pop()  # as many threads as children: there is always one
            try:
                told.put((number, self._tried(child, groups[number], lambda share: told.put((number, share)))))
            except BaseException as error:
                told.put((number, error))
            idle.append(child)

        pool = ThreadPoolExecutor(max(1, len(crew)))
        with let_go(crew, pool):
            for number in range(len(groups)):
                pool.submit(job, number)
            yield from _told(told, len(groups), report)

    def _tried(self, child: Child, group: Group, report: Report) -> list[RunResult] | Exception:
        causes = []
        for _ in range(1 + self.retries):
            found = child.run(group, report)
            if not isinstance(found, Died):
                return found
            causes.append(found.cause)
        return ChildProcessError(
            f"Expected a result of {group.label}, but its process died, {len(causes)} times in a row ({causes[-1]}): "
            "if memory is short, take fewer workers, and run again to go on."
        )


def _told(
    told: SimpleQueue[tuple[int, float | list[RunResult] | BaseException]], groups: int, report: Callable[[int, float], None]
) -> Generator[tuple[int, list[RunResult]], None, None]:
    """In this thread, what other threads put there."""
    while groups:
        number, found = told.get()
        if isinstance(found, BaseException):
            raise found
        if isinstance(found, float):
            report(number, found)
        else:
            groups -= 1
            yield number, found


def _packed(work: Work) -> bytes:
    try:
        return pickle.dumps(work)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"Expected work that other processes can import, but {error}: move it to the top of a module."
        ) from error


def _processors() -> int:
    """Those that this process may use, which can be fewer than the machine has."""
    from joblib import cpu_count  # type: ignore[import-untyped]

    return int(cpu_count())
