"""When chains warm up, when they are hot, and which steps are kept.

Stage: step → `Phase`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..steps import whole_number

_LOOKS = 8  # at most
_COLD, _KEPT = 0.25, 0.5  # of a cycle: until when it goes without noise, from when on draws are kept


@dataclass(frozen=True)
class Phase:
    """What holds in one step: the step size as a share of the largest, whether noise is injected, whether a draw is kept."""

    factor: float = 1.0
    hot: bool = True
    kept: bool = False


@dataclass(frozen=True)
class Schedule:
    """Steps in all, of which the first `warmup` are for finding the way, and every `thin`-th of the rest may be kept.

    Attributes:
        cycles: None for a step size that stays. Else how often, after the warm-up, it falls from its largest value to 0 as
            (1 + cos πr)/2 with r = 0 … 1 (Zhang et al. 2020): at first large and without noise, which finds another mode, then
            small and with noise, which samples it; draws are kept in the second half.
    """

    steps: int
    warmup: int
    thin: int
    cycles: int | None = None

    def __post_init__(self) -> None:
        if not any(self.phase(step).kept for step in range(self.warmup, self.steps)):
            raise ValueError(
                f"Expected draws to keep, but got none in {self.steps} steps with {self.warmup} of warm-up, every {self.thin}: "
                "raise `steps`."
            )

    def looks(self, step: int) -> bool:
        """Whether the chains look around before this step: some times in the warm-up, the last time at its end."""
        return 0 < step <= self.warmup and (self.warmup - step) % -(-self.warmup // _LOOKS) == 0

    def phase(self, step: int) -> Phase:
        """What holds in this step."""
        after = step - self.warmup
        if after < 0:
            return Phase()
        due = (after + 1) % self.thin == 0
        if self.cycles is None:
            return Phase(kept=due)
        length = max((self.steps - self.warmup) // self.cycles, 1)
        share = after % length / length
        return Phase(
            (1 + math.cos(math.pi * share)) / 2, share >= _COLD, due and share >= _KEPT and after < self.cycles * length
        )


def schedule_of(kind: Any, steps: Any, warmup: Any, thin: Any, cycles: Any) -> Schedule:
    """From what users write; `warmup` None is a quarter of the steps."""
    steps, thin, cycles = whole_number(steps, "steps"), whole_number(thin, "thin"), whole_number(cycles, "cycles")
    warmup = steps // 4 if warmup is None else whole_number(warmup, "warmup", 0)
    if kind not in ("constant", "cyclical"):
        raise ValueError(f"Expected `schedule` to be 'constant' or 'cyclical', but got {kind!r}: choose one.")
    return Schedule(steps, warmup, thin, cycles if kind == "cyclical" else None)
