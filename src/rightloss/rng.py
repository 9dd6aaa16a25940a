"""Options of functions that draw random numbers: the generator, and the level of intervals.

Stage: the arguments `generator` and `level` → a checked torch.Generator and float.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch


def checked_generator(generator: Any) -> torch.Generator | None:
    """Return `generator`, or raise a ValueError for a seed or another library's generator."""
    if generator is None or isinstance(generator, torch.Generator):
        return generator
    kind, library = type(generator).__name__, type(generator).__module__.split(".")[0]
    seed = generator if isinstance(generator, int) and not isinstance(generator, bool) else 0
    raise ValueError(
        f"Expected `generator` to be a torch.Generator, but got {kind}{'' if library == 'builtins' else f' of {library}'}: "
        f"write torch.Generator().manual_seed({seed})."
    )


def own_stream(generator: Any) -> torch.Generator:
    """Return the given generator, checked, or one with a fixed seed, so that equal input gives equal intervals."""
    return checked_generator(generator) or torch.Generator().manual_seed(0)


def checked_level(level: Any) -> float:
    """Return the level of an interval, strictly between 0 and 1, or raise a ValueError."""
    if isinstance(level, bool) or not isinstance(level, Real) or not 0 < float(level) < 1:
        raise ValueError(
            f"Expected `level` to lie strictly between 0 and 1, but got {level!r}: write 0.95 for an interval of 95 %."
        )
    return float(level)
