"""An engine that runs groups on a Ray cluster.

Stage: work, groups → results of each group, as they are done.

Results are returned by value, so machines need no shared disk; data files must be at the same path on each machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ... import __version__
from ...ray_cluster import connected, last_line, other_version
from ..config import Group
from ..results import RunResult
from .contract import Finished, GroupReport, Report, Work, attempt

_PAUSE = 0.5  # seconds between two messages about the share of a group that is done


@dataclass(frozen=True)
class OnRay:
    """Run groups as Ray tasks with one processor and one thread each. Tasks of a machine that dies are run again on others.

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
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"Expected at least 1 worker, but got {self.workers}: leave it out for one per processor.")
        if self.workers is not None and self.address is not None:
            raise ValueError(
                f"Expected no number of workers for the cluster at {self.address}, but got {self.workers}: it has its own."
            )
        if self.retries < 0:
            raise ValueError(f"Expected no fewer than 0 retries, but got {self.retries}: 3 is the default.")

    def run(self, work: Work, groups: Sequence[Group], report: GroupReport) -> Finished:
        """See `Engine`."""
        if not groups:
            return
        with connected(self.address, self.workers) as ray:
            shares = ray.remote(num_cpus=0, max_restarts=-1)(_Shares).remote()
            task = ray.remote(num_cpus=1, max_retries=self.retries)(_task)
            tasks = {task.remote(__version__, work, group, number, shares): number for number, group in enumerate(groups)}
            try:
                for done in _done(ray, list(tasks), shares, report):
                    yield tasks[done], self._result(ray, done, groups[tasks[done]])
            finally:
                _stop(ray, [*tasks], shares)

    def _result(self, ray: Any, task: Any, group: Group) -> list[RunResult]:
        try:
            found = ray.get(task)
        except ray.exceptions.RayError as error:
            raise ChildProcessError(
                f"Expected a result of {group.label}, but Ray gave up ({type(error).__name__}: {last_line(error)}): "
                f"is rightloss {__version__} on every machine of the cluster, and memory enough? Run again to resume."
            ) from error
        if isinstance(found, Exception):
            raise found
        return found


class _Shares:
    """An actor that stores the progress of tasks. Progress lost with its machine is soon reported again."""

    def __init__(self) -> None:
        self.shares: dict[int, float] = {}

    def update(self, number: int, share: float) -> None:
        self.shares[number] = share

    def news(self) -> dict[int, float]:
        news, self.shares = self.shares, {}
        return news


def _task(version: str, work: Work, group: Group, number: int, shares: Any) -> list[RunResult] | Exception:
    """Run a group on a machine of the cluster."""
    if version != __version__:
        return other_version(version, __version__)
    return attempt(work, group, _seldom(lambda share: shares.update.remote(number, share)))


def _seldom(report: Report) -> Report:
    """Limit `report` to a few calls per second: each call costs a message."""
    last = -_PAUSE

    def limited(share: float) -> None:
        nonlocal last
        if time.monotonic() - last >= _PAUSE:
            last = time.monotonic()
            report(float(share))

    return limited


def _done(ray: Any, tasks: list[Any], shares: Any, report: GroupReport) -> Iterator[Any]:
    asked = shares.news.remote()
    while tasks:
        ready, tasks = ray.wait(tasks, num_returns=1, timeout=_PAUSE)
        yield from ready
        if ray.wait([asked], timeout=0)[0]:
            try:
                for number, share in ray.get(asked).items():
                    report(number, share)
            except ray.exceptions.RayError:  # its machine died; it is started again elsewhere
                pass
            asked = shares.news.remote()


def _stop(ray: Any, tasks: list[Any], shares: Any) -> None:
    """Cancel the tasks that are running."""
    for task in ray.wait(tasks, num_returns=len(tasks), timeout=0)[1]:
        ray.cancel(task, force=True)
    ray.kill(shares)
