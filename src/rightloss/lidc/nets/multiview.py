"""Many views of one nodule, one answer.

Stage: views (n, s, h, w) → features of each (n, s, m) → pooled (n, m) → logits (n, num_outputs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .checks import check_views, checked_count, checked_outputs
from .start import zero_start

POOLS: dict[str, Callable[..., Tensor]] = {"min": torch.amin, "max": torch.amax, "mean": torch.mean}


class MultiViewNet(nn.Module):
    """Features of each view, with the same weights for all; their smallest, largest or mean over views; a linear layer.

    The linear layer, `head`, starts at zero: see `zero_start`.

    Args:
        low_level: images (n, 1, h, w) → (n, c, h', w'), a `LowLevelBlock`.
        body: (n, c, h', w') → (n, m): `ConvBody`, `InceptionBody`.
        num_features: m.
        num_outputs: of the head, or the likelihood that they are for.
        pool: "min", "max" or "mean", for each feature by itself.
    """

    def __init__(self, low_level: nn.Module, body: nn.Module, num_features: Any, num_outputs: Any, pool: Any = "max") -> None:
        super().__init__()
        self.pool = checked_pool(pool)
        self.low_level, self.body = low_level, body
        self.head = nn.Linear(checked_count(num_features, "num_features"), checked_outputs(num_outputs))
        zero_start(self.head)

    def forward(self, views: Float[Tensor, "n s *chw"]) -> Float[Tensor, "n k"]:
        return self.head(self.features(views))

    def features(self, views: Float[Tensor, "n s *chw"]) -> Float[Tensor, "n m"]:
        """Pooled over views: what the head sees."""
        return pool_views(each_view(views, self.low_level, self.body), self.pool)

    def extra_repr(self) -> str:
        return f"pool={self.pool!r}"


def each_view(views: Tensor, low_level: nn.Module, *stages: nn.Module) -> Float[Tensor, "n s ..."]:
    """The stages, one after the other, on every view as an image (n·s, 1, h, w) of its own.

    Nets whose low-level blocks are the same can share what it gives, `each_view(views, block)`: with nn.Identity in its place
    they take (n, s, c, h, w).
    """
    if isinstance(low_level, nn.Identity) and isinstance(views, Tensor) and views.ndim == 5:
        found = views.flatten(0, 1)
    else:
        check_views(views)
        found = low_level(views.flatten(0, 1)[:, None])
    for stage in stages:
        found = stage(found)
    return found.unflatten(0, views.shape[:2])


def pool_views(features: Float[Tensor, "n s m"], pool: str) -> Float[Tensor, "n m"]:
    """Over views, elementwise."""
    return POOLS[pool](features, 1)


def checked_pool(pool: Any) -> str:
    if not isinstance(pool, str) or pool not in POOLS:
        raise ValueError(f'Expected `pool` to be "min", "max" or "mean", but got {pool!r}: choose one of the three.')
    return pool
