"""Groups one after the other, in this process.

Stage: work, groups → results of each group.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial

from ..config import Group
from ..results import RunResult
from .attempt import one_thread
from .contract import Work


@dataclass(frozen=True)
class InProcess:
    """The simplest engine: for one core, for a debugger, for devices that are driven from one process."""

    def run(
        self, work: Work, groups: Sequence[Group], report: Callable[[int, float], None]
    ) -> Generator[tuple[int, list[RunResult]], None, None]:
        """See `Engine`."""
        for number, group in enumerate(groups):
            with one_thread():
                results = work(group, partial(report, number))
            yield number, results
