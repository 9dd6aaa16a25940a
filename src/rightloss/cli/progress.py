"""Progress of a long job, on stderr.

Stage: calls with (done, total, a short text) → a bar with the time left; without a terminal, lines.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

Show = Callable[[float | int, int, str], None]
_EVERY = 60.0  # seconds between two lines
_SPEED = 600.0  # seconds over which the speed is measured, for the time left


@contextmanager
def progress(things: str) -> Iterator[Show]:
    """Yield a function that shows what is done (fractions included), how many `things` there are, and a few words."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    bar = Progress(
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TextColumn(f"of {{task.total:,}} {things}"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        speed_estimate_period=_SPEED,
        get_time=lambda: time.monotonic(),  # the stream at the time of the call
    )
    task = bar.add_task("", total=0, visible=False)
    calls, last = 0, time.monotonic()

    def show(done: float | int, total: int, words: str) -> None:
        nonlocal calls, last
        calls += 1
        if calls <= 2:  # done by an earlier run: says nothing about the speed
            bar.reset(task, completed=done, total=total, description=words, visible=True)  # type: ignore[arg-type]
            return
        bar.update(task, completed=done, total=total, description=words)
        if bar.disable and done < total and time.monotonic() - last >= _EVERY:
            last = time.monotonic()
            left = bar.tasks[task].time_remaining
            text = words if left is None else f"{timedelta(seconds=round(left))} left"
            print(
                f"{done if isinstance(done, int) else round(done, 1):,} of {total:,} {things}; {text}",
                file=sys.stderr,
                flush=True,
            )

    with bar:
        yield show
