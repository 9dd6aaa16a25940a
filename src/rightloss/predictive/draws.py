"""How sure an interval is to be.

Stage: whatever was given as `level` → a number, checked.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def checked_level(level: Any) -> float:
    """The level of an interval, a share strictly between 0 and 1."""
    if isinstance(level, bool) or not isinstance(level, int | float | np.floating) or not 0 < level < 1:
        raise ValueError(
            f"Expected `level` to lie strictly between 0 and 1, but got {level!r}: write 0.95 for an interval of 95 %."
        )
    return float(level)
