"""Validate the source of random numbers.

Stage: the argument `generator` → a torch.Generator.
"""

from __future__ import annotations

from typing import Any

import torch


def checked_generator(generator: Any) -> torch.Generator | None:
    """Return `generator`, or raise the ValueError for a seed or another library's generator."""
    if generator is None or isinstance(generator, torch.Generator):
        return generator
    kind, library = type(generator).__name__, type(generator).__module__.split(".")[0]
    seed = generator if isinstance(generator, int) and not isinstance(generator, bool) else 0
    raise ValueError(
        f"Expected `generator` to be a torch.Generator, but got {kind}{'' if library == 'builtins' else f' of {library}'}: "
        f"write torch.Generator().manual_seed({seed})."
    )


def own_stream(generator: Any) -> torch.Generator:
    """Return the generator given, checked, or one of a fixed seed: equal input then gives equal intervals."""
    return checked_generator(generator) or torch.Generator().manual_seed(0)
