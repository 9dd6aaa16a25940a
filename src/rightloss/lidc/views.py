"""Views for the networks: random for training, fixed for evaluation; and predictions averaged over draws of views.

Stage: patches `(n, d, h, w)` or `(n, h, w)` of any real dtype → views `(n, s, size, size)`, float32. How a view is
oriented is described at the top of `planes.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from numpy.typing import ArrayLike
from torch import Tensor, nn

from ..arrays import checked_int, checked_number, log_prob_table
from ..tensors import checked_generator, in_mode, tensor_of
from .planes import (
    checked_outside,
    checked_patches,
    checked_rows,
    fixed_rotations,
    inplane_views,
    orthogonal_views,
    per_example,
    random_rotations,
)

__all__ = [
    "FixedViews",
    "RandomViews",
    "average_over_views",
    "fixed_rotations",
    "inplane_views",
    "orthogonal_views",
    "random_rotations",
]


@dataclass(frozen=True)
class _Cutter:
    """What random and fixed views share; a subclass says how they are oriented."""

    views: int = 9
    size: int = 32
    spacing: float | int = 1.0
    outside: float | int | None = None

    def __post_init__(self) -> None:
        checked_int(self.views, "views", 1)
        checked_int(self.size, "size", 1)
        checked_number(self.spacing, "spacing", 1e-6, remedy="millimetres between pixels")
        checked_outside(self.outside)

    def __call__(
        self,
        patches: ArrayLike,
        generator: torch.Generator | None = None,
        spacing_mm: float | int | ArrayLike = 1.0,
        rows: Int64[Tensor, " n"] | None = None,
    ) -> Float[Tensor, "n views size size"]:
        """Return views of `patches`, whose voxels are `spacing_mm` apart.

        Args:
            patches: `(n, d, h, w)` or `(n, h, w)`.
            generator: as in `random_rotations`; fixed views do not use it.
            spacing_mm: a number, or `(n,)`.
            rows: as in `orthogonal_views`; `spacing_mm` is theirs.
        """
        patches, rows, spacing = _ready(self, patches, spacing_mm, rows)
        if patches.ndim == 4:
            rotations = self._rotations(len(rows), self.views // 3, generator, patches.device)
            return orthogonal_views(patches, rotations, self.size, spacing, self.outside, rows)
        angles, flips = self._turns(len(rows), generator, patches.device)
        return inplane_views(patches, angles, flips, self.size, spacing, self.outside, rows)

    def _rotations(self, n: int, triplets: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        raise NotImplementedError

    def _turns(self, n: int, generator: torch.Generator | None, device: torch.device) -> tuple[Tensor, Tensor | None]:
        raise NotImplementedError


@dataclass(frozen=True)
class RandomViews(_Cutter):
    """Random views, drawn in each call: triplets of orthogonal planes of volumes, turned and flipped copies of slices.

    Args:
        views: how many of each patch; of volumes a multiple of 3.
        size: pixels along the sides of a view.
        spacing: millimetres from pixel to pixel.
        outside: as in `orthogonal_views`.

    Examples:
        >>> import torch
        >>> from rightloss.lidc import RandomViews
        >>> RandomViews(views=9, size=32)(torch.rand(5, 64, 64, 64)).shape
        torch.Size([5, 9, 32, 32])
    """

    def _rotations(self, n: int, triplets: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        return random_rotations(n * triplets, generator, device).unflatten(0, (n, triplets))

    def _turns(self, n: int, generator: torch.Generator | None, device: torch.device) -> tuple[Tensor, Tensor | None]:
        source = checked_generator(generator)
        on = "cpu" if source is None else source.device
        angles, flips = (torch.rand((n, self.views), generator=source, device=on).to(device) * 2 - 1 for _ in range(2))
        return math.pi * angles, flips < 0


@dataclass(frozen=True)
class FixedViews(_Cutter):
    """Fixed views, equal in each call, for evaluation.

    Of volumes the triplets of `fixed_rotations`, axial, coronal and sagittal first, up to 48 views; of slices any number of
    turns by equal angles, the slice itself first.

    Args:
        views: how many of each patch; of volumes a multiple of 3.
        size: pixels along the sides of a view.
        spacing: millimetres from pixel to pixel.
        outside: as in `orthogonal_views`.

    Examples:
        >>> import torch
        >>> from rightloss.lidc import FixedViews
        >>> FixedViews(views=3, size=32)(torch.rand(5, 64, 64, 64)).shape
        torch.Size([5, 3, 32, 32])
    """

    def _rotations(self, n: int, triplets: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        return fixed_rotations(triplets).expand(n, -1, 3, 3)

    def _turns(self, n: int, generator: torch.Generator | None, device: torch.device) -> tuple[Tensor, Tensor | None]:
        return (torch.arange(self.views) * (2 * math.pi / self.views)).expand(n, -1), None


@torch.no_grad()
def average_over_views(
    model: Callable[..., Tensor],
    patches: ArrayLike,
    cutter: Callable[..., Tensor],
    draws: int = 10,
    generator: torch.Generator | None = None,
    spacing_mm: float | int | ArrayLike = 1.0,
    batch_size: int = 64,
    extra: Sequence[ArrayLike] = (),
) -> Float[Tensor, "n k"]:
    """Return log (1/D Σ_d p(y|views_d)), the log of probabilities averaged over D draws of views, without gradient.

    Args:
        model: views, and the tensors in `extra`, → log-probabilities `(n, k)`. An nn.Module is put into eval mode and back.
            Other callables are not: call `net.eval()` before you wrap a net in a function.
        patches: `(n, d, h, w)` or `(n, h, w)`.
        cutter: `RandomViews(…)`; with `FixedViews(…)`, the same in each draw, one draw is enough.
        draws: D.
        generator: as in `random_rotations`.
        spacing_mm: as for `RandomViews`.
        batch_size: patches per call of the model. The random draws depend on it.
        extra: tensors `(n, …)`, split like the patches and passed to the model after the views, such as `(metadata,)`.

    Examples:
        >>> import torch
        >>> from rightloss.lidc import RandomViews, average_over_views
        >>> from rightloss.lidc.nets import convnet
        >>> net = convnet(2, small=True).eval()
        >>> average_over_views(lambda views: net(views).log_softmax(1), torch.rand(5, 64, 64, 64), RandomViews(3), draws=2)[0]
        tensor([-0.6931, -0.6931])
    """
    patches = checked_patches(patches, 3, 4)
    draws, rows = checked_int(draws, "draws", 1), checked_int(batch_size, "batch_size", 1)
    spacing = per_example(spacing_mm, "spacing_mm", patches)
    if not callable(model) or not callable(cutter):
        raise ValueError(
            f"Expected a model and a cutter to call, but got {type(model).__name__} and {type(cutter).__name__}: "
            "write average_over_views(model, patches, RandomViews())."
        )
    given = [patches, spacing, *_checked_extra(extra, len(patches))]
    batches = zip(*(each.split(rows) for each in given), strict=True)
    with in_mode(model, training=False) if isinstance(model, nn.Module) else nullcontext():
        return torch.cat([_log_mean(model, cutter, draws, generator, *batch) for batch in batches])


def _log_mean(
    model: Callable[..., Tensor],
    cutter: Callable[..., Tensor],
    draws: int,
    generator: torch.Generator | None,
    patches: Tensor,
    spacing: Tensor,
    *extra: Tensor,
) -> Float[Tensor, "n k"]:
    tables = [tensor_of(model(cutter(patches, generator=generator, spacing_mm=spacing), *extra)) for _ in range(draws)]
    for table in tables:
        log_prob_table(table, name="predictions")
    return torch.logsumexp(torch.stack(tables), 0) - math.log(draws)


def _checked_extra(extra: Sequence[ArrayLike], n: int) -> list[Tensor]:
    found = [tensor_of(each, f"extra[{number}]") for number, each in enumerate(extra)]
    for number, each in enumerate(found):
        if each.shape[:1] != (n,):
            came = f"extra[{number}] has shape {tuple(each.shape)}: write extra=(metadata,), of the same rows"
            raise ValueError(f"Expected a row for each of the {n} patches in `extra`, but {came}.")
    return found


def _ready(
    cutter: _Cutter, patches: ArrayLike, spacing_mm: float | int | ArrayLike, rows: Tensor | None
) -> tuple[Tensor, Int64[Tensor, " n"], Float[Tensor, " n"]]:
    """Return the checked patches and rows to cut, and the spacing of a view's pixels in voxels of each patch."""
    patches = checked_patches(patches, 3, 4)
    rows = checked_rows(rows, patches)
    if len(rows) == 0:
        raise ValueError("Expected at least one patch, but got none: is the data set empty?")
    if patches.ndim == 4 and cutter.views % 3:
        raise ValueError(
            f"Expected `views` to be a multiple of 3 for volumes, but got {cutter.views}: "
            "they come as triplets of orthogonal planes."
        )
    return patches, rows, cutter.spacing / per_example(spacing_mm, "spacing_mm", patches, len(rows))
