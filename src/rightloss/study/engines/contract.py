"""What an engine is: it runs groups somewhere.

Stage: work, groups → (number of the group, its results), as they are done.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Protocol, runtime_checkable

from ..config import Group
from ..results import RunResult

# Told the share of a group that is done, from 0 to 1.
Report = Callable[[float], None]
# A pure function that can be pickled: a group's results must not depend on where, when and beside what it is run.
Work = Callable[[Group, Report], list[RunResult]]


@runtime_checkable
class Engine(Protocol):
    def run(
        self, work: Work, groups: Sequence[Group], report: Callable[[int, float], None]
    ) -> Generator[tuple[int, list[RunResult]], None, None]:
        """Each group's number and results, in the order in which they are done. Closing it stops what is under way.

        An error of the work itself stops all, and comes through as it is; a process that dies is another's chance.

        Args:
            work: what to do with a group.
            groups: the groups.
            report: told the number of a group and the share of it that is done, now and then.

        Raises:
            ChildProcessError: the processes that ran a group died, again and again.
        """
        ...
