"""How far a long job is, on stderr.

Stage: (done, of how many, a few words), again and again → a bar with the time left; without a terminal, lines.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Show = Callable[[float | int, int, str], None]
_EVERY = 60.0  # seconds between two lines


@contextmanager
def progress(things: str, workers: int = 1) -> Iterator[Show]:
    """Shown by calling with what is done, fractions included, what there is, and a few words.

    Args:
        things: what is counted.
        workers: how many are at work at once, for the time left.
    """
    from rich.console import Console

    console = Console(stderr=True)
    clock = Clock(workers)
    if not console.is_terminal:
        yield _lines(things, clock)
        return
    from rich.progress import BarColumn, Progress, TextColumn

    columns = [TextColumn(text) for text in ("{task.percentage:.0f} %", f"of {{task.total}} {things}", "{task.fields[left]}")]
    with Progress(BarColumn(), *columns, TextColumn("{task.description}"), console=console, transient=True) as bar:
        task = bar.add_task("", total=0, visible=False, left="")

        def show(done: float | int, total: int, words: str) -> None:
            bar.update(
                task, completed=done, total=total, description=words, left=in_words(clock.left(done, total)), visible=True
            )

        yield show


class Clock:
    """The time left, when things of about the same length are done by `workers` at once.

    They are taken to go in rounds, so that the last round takes as long as any other however few are left for it. What was
    done at the first two looks, before and after the data were read, was done earlier and says nothing of the speed.
    """

    def __init__(self, workers: int = 1) -> None:
        self._workers, self._looks, self._start, self._before = workers, 0, 0.0, 0.0

    def left(self, done: float | int, total: int) -> float | None:
        """Seconds; None before anything is done."""
        self._looks += 1
        if self._looks <= 2:
            self._start, self._before = time.monotonic(), float(done)
        gone = rounds(done - self._before, total - self._before, self._workers)
        if gone <= 0:
            return None
        whole = rounds(total - self._before, total - self._before, self._workers)
        return (time.monotonic() - self._start) * (whole / gone - 1)


def rounds(done: float, total: float, workers: int) -> float:
    """After how many rounds `done` of `total` things are done, when `workers` at once do one each."""
    full = total // workers
    if done <= full * workers:
        return done / workers
    return full + (done - full * workers) / (total - full * workers)


def in_words(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{max(1, round(seconds))} s left"
    return f"{round(seconds / 60)} min left" if seconds < 5400 else f"{seconds / 3600:.1f} h left"


def _lines(things: str, clock: Clock) -> Show:
    """A line on stderr each minute, for logs."""
    last = time.monotonic()

    def show(done: float | int, total: int, words: str) -> None:
        nonlocal last
        left = in_words(clock.left(done, total))
        if time.monotonic() - last >= _EVERY and done < total:
            last = time.monotonic()
            print(f"{done:.1f} of {total} {things}; {left or words}", file=sys.stderr, flush=True)

    return show
