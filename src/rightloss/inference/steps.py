"""Steps with a progress bar, and a check of their size.

Stage: number of steps → step numbers, with a progress bar.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from numbers import Real
from typing import Any

from ..extras import install


def steps_of(total: int, label: str, progress: bool | None) -> Iterator[int]:
    """Yield 0 … total − 1, with a progress bar on stderr: on request, or if stderr is a terminal.

    Without `rich` there is no bar; if one was requested, an ImportError is raised.
    """
    if progress is False or (progress is None and not sys.stderr.isatty()):
        yield from range(total)
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError as error:
        if progress:
            raise ImportError(f"A progress bar needs rich: progress=False, or {install('bayes')}.") from error
        yield from range(total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=progress is None) as bar:
        task = bar.add_task(label, total=total)
        for step in range(total):
            yield step
            bar.advance(task)


def positive_number(value: Any, name: str) -> float:
    """Return `value`, or raise a ValueError if it is not a positive, finite number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < float("inf"):
        raise ValueError(f"Expected `{name}` to be positive and finite, but got {value!r}: choose a number above 0.")
    return float(value)
