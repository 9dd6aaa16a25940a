"""Where random numbers come from.

Stage: whatever was given as `generator` → a torch.Generator, checked.
"""

from __future__ import annotations

from typing import Any

import torch


def checked_generator(generator: Any) -> torch.Generator | None:
    """`generator`, or a ValueError where it is a seed or another library's."""
    if generator is not None and not isinstance(generator, torch.Generator):
        kind, library = type(generator).__name__, type(generator).__module__.split(".")[0]
        raise ValueError(
            f"Expected `generator` to be a torch.Generator, but got {kind}{'' if library == 'builtins' else f' of {library}'}: "
            "write torch.Generator().manual_seed(0)."
        )
    return generator


def own_stream(generator: Any) -> torch.Generator:
    """The generator given, checked, or one of a fixed seed: equal input then has equal intervals."""
    return checked_generator(generator) or torch.Generator().manual_seed(0)
