"""Montage of nodules, to inspect the data before training.

Stage: patches → a figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from ..extras import install

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def montage(images: ArrayLike, titles: Sequence[str] | None = None, columns: int = 6, window_mm: int = 40) -> Figure:
    """Return a figure with the middle plane of each patch (axial for volumes) and its title.

    Args:
        images: patches in [0, 1], `(n, d, h, w)` or `(n, h, w)`: `NoduleSet.images()` or rows of it.
        titles: one for each patch.
        columns: patches in a row.
        window_mm: voxels of the plane that are shown along each side, around the middle; millimetres if a voxel is one.

    Examples:
        >>> import torch
        >>> from rightloss.lidc import montage
        >>> len(montage(torch.rand(5, 8, 8, 8), titles=list("abcde"), columns=3).axes)
        6
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"Plots need matplotlib: {install('study')}") from error
    planes = np.asarray(images, np.float32)
    if planes.ndim not in (3, 4) or not len(planes):
        raise ValueError(f"Expected patches (n, d, h, w) or (n, h, w), but got {planes.shape}: give rows of `.images()`.")
    if titles is not None and len(titles) != len(planes):
        raise ValueError(f"Expected a title for each of {len(planes)} patches, but got {len(titles)}: leave none out.")
    if planes.ndim == 4:
        planes = planes[:, (planes.shape[1] - 1) // 2 : planes.shape[1] // 2 + 1].mean(1)
    rows = math.ceil(len(planes) / columns)
    figure = Figure(figsize=(1.3 * columns, 1.5 * rows), dpi=150, layout="constrained")
    for place, axes in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
        axes.set_axis_off()
        if place < len(planes):
            axes.imshow(_middle(planes[place], window_mm), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set_title("" if titles is None else titles[place], fontsize=7)
    return figure


def _middle(plane: np.ndarray, width: int) -> np.ndarray:
    top, left = (max(0, (side - width) // 2) for side in plane.shape)
    return plane[top : plane.shape[0] - top, left : plane.shape[1] - left]
