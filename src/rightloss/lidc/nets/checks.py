"""What the nets refuse, before any work.

Stage: arguments as given → arguments that can be relied on, or a ValueError.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...likelihoods import Likelihood
from ...marginals import cannot_be_read


def checked_outputs(num_outputs: Any) -> int:
    """A number of outputs, or that of a likelihood."""
    count = num_outputs.num_outputs if isinstance(num_outputs, Likelihood) else num_outputs
    if count is None:
        raise ValueError(
            f"Expected a likelihood that knows its number of outputs, but {type(num_outputs).__name__}() takes any: "
            "name the classes' number, as in Categorical(5), or pass a number."
        )
    return checked_count(count, "num_outputs")


def checked_count(count: Any, name: str) -> int:
    """An int from a whole number of any kind, NumPy's too; bools are none."""
    is_bool = isinstance(count, bool) or getattr(count, "dtype", None) == torch.bool
    try:
        number = 0 if is_bool else operator.index(count)
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"Expected `{name}` to be a whole number ≥ 1, but got {count!r}: count what it stands for.")
    return number


def checked_widths(widths: Any, name: str = "widths") -> list[int]:
    """A count for each layer, at least one."""
    if not isinstance(widths, Sequence) or isinstance(widths, str) or not widths:
        raise ValueError(f"Expected `{name}`, a number for each layer, but got {widths!r}: (64, 128), say.")
    return [checked_count(width, f"{name}[{layer}]") for layer, width in enumerate(widths)]


def checked_strides(strides: Any, widths: Sequence[int]) -> list[int]:
    found = checked_widths(strides, "strides")
    if len(found) != len(widths):
        raise ValueError(
            f"Expected as many strides as widths, but got {len(found)} for {len(widths)}: 1 for layers that do not shrink maps."
        )
    return found


def checked_dropout(dropout: Any) -> float:
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ValueError(f"Expected `dropout` to be a share in [0, 1), but got {dropout!r}: 0 for none.")
    return float(dropout)


def check_views(views: Any) -> None:
    """Shape and type always; values, which cannot be looked at everywhere, on the CPU.

    A little beyond [0, 1] is left alone, for augmented images.
    """
    if not isinstance(views, Tensor) or views.ndim != 4:
        came = f"shape {tuple(views.shape)}" if isinstance(views, Tensor) else type(views).__name__
        raise ValueError(
            f"Expected views, a tensor of shape (n, s, h, w), but got {came}: for one view per nodule, images[:, None]."
        )
    if not views.is_floating_point():
        raise ValueError(f"Expected views of floating-point numbers, but got {views.dtype}: scale them to [0, 1] first.")
    if 0 in views.shape[1:]:
        raise ValueError(
            f"Expected at least one view of at least one pixel, but got shape {tuple(views.shape)}: cut views of 32×32, say."
        )
    if views.numel() and not cannot_be_read(views):
        low, high = (float(end) for end in views.detach().aminmax())
        if not (-1 <= low and high <= 2):
            raise ValueError(
                f"Expected views with numbers in [0, 1], but they range from {low:g} to {high:g}: "
                "HU go through `window` first, grey levels up to 255 are divided by 255, NaN are filled in."
            )


def check_images(images: Any) -> None:
    if not isinstance(images, Tensor) or images.ndim != 4 or images.shape[1] != 1:
        came = f"shape {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise ValueError(
            f"Expected grey images, a tensor of shape (n, 1, h, w), but got {came}: "
            "images[:, None] where there is no channel, images.mean(1, keepdim=True) where there are several."
        )


def check_metadata(metadata: Any, num_features: int) -> None:
    if not isinstance(metadata, Tensor) or metadata.ndim != 2 or metadata.shape[1] != num_features:
        came = f"shape {tuple(metadata.shape)}" if isinstance(metadata, Tensor) else type(metadata).__name__
        raise ValueError(
            f"Expected metadata, a tensor of shape (n, {num_features}), but got {came}: a row per nodule, "
            "with the columns that the block was made for."
        )
    if not metadata.is_floating_point():
        raise ValueError(f"Expected metadata of floating-point numbers, but got {metadata.dtype}: metadata.float().")


def check_finite(metadata: Tensor) -> None:
    """Looks at the values; for callers who know that they can be seen."""
    good = torch.isfinite(metadata)
    if not bool(good.all()):
        row, column = torch.nonzero(~good)[0].tolist()
        raise ValueError(
            f"Expected metadata of finite numbers, but row {row}, column {column} is {float(metadata[row, column])}, and "
            f"{int((~good).sum())} of the numbers are not finite: fill in what is missing, by the column's mean, say."
        )
