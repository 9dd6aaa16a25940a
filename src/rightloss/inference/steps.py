"""Helpers of all methods: a progress bar, random numbers, a check for finite values, checked options.

Stage: number of steps → step numbers, with a progress bar.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from ..arrays import checked_level as checked_level
from ..extras import install
from ..tensors import in_mode as in_mode
from .distributions import Diverged


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


def whole_number(value: Any, name: str, least: int = 1) -> int:
    """Return `value`, or raise a ValueError if it is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise ValueError(f"Expected `{name}` to be a whole number of at least {least}, but got {value!r}: choose one.")
    return int(value)


def positive_number(value: Any, name: str) -> float:
    """Return `value`, or raise a ValueError if it is not a positive, finite number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < float("inf"):
        raise ValueError(f"Expected `{name}` to be positive and finite, but got {value!r}: choose a number above 0.")
    return float(value)


def ordinary(value: Any) -> Any:
    """Return `value`, or a copy if it is a tensor made under `torch.inference_mode()`: autograd refuses those."""
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value


def check_finite(value: Tensor, step: int, last_good: Callable[[], Any], what: str = "the log posterior") -> None:
    """Raise `Diverged`, with the posterior that `last_good` returns, if a number in `value` is not finite."""
    if bool(torch.isfinite(value).all()):
        return
    raise Diverged(
        f"Expected {what} to be finite, but step {step} gave {value.flatten()[:5].tolist()}: lower `lr`, look for NaN in "
        "the inputs, and check their scale and the prior; the last good result is this error's `.posterior`.",
        step,
        last_good(),
    )


@contextmanager
def own_random(seed: Any) -> Iterator[torch.Generator]:
    """Seed torch's global generator inside, restore its state afterwards, and yield a generator with the same seed."""
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise ValueError(f"Expected `seed` to be a whole number, but got {seed!r}: write seed=0.")
    with torch.random.fork_rng():
        torch.manual_seed(int(seed))
        yield torch.Generator().manual_seed(int(seed))
