"""What a method of inference gives, and how it fails."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class Distribution(Protocol):
    """A distribution of weights as flat vectors (d,)."""

    def sample(self, n: int, generator: torch.Generator | None = None) -> Float[Tensor, "n d"]:
        """n draws."""
        ...

    @property
    def mean(self) -> Float[Tensor, " d"]: ...

    @property
    def standard_deviation(self) -> Float[Tensor, " d"]: ...

    def covariance(self) -> Float[Tensor, "d d"]: ...

    def tensors(self) -> dict[str, Tensor]:
        """Everything there is to save, by the names of the constructor's arguments."""
        ...


class Diverged(ValueError):
    """A step that was not finite. Whatever was good until then is kept.

    Attributes:
        step: the step, counted from 0.
        posterior: what the method would have returned, had it stopped before.
    """

    def __init__(self, message: str, step: int, posterior: Any) -> None:
        super().__init__(message)
        self.step, self.posterior = step, posterior
