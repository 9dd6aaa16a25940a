"""How large is what a reader drew, and where is it?

Stage: outlines of one reading, spacing of the scan → diameter, volume, surface, centre.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .outlines import Mask, Outline, diameter, mask_of


@dataclass(frozen=True)
class Measures:
    """Of one reading.

    Attributes:
        diameter_mm: the largest distance within a slice between two pixels of an outline.
        volume_mm3: pixels inside, times the volume of one; 0 where the outlines enclose nothing.
        surface_mm2: 2/3 of the area of all faces between a pixel inside and one outside. Each axis sees the surface S from both
            sides as `∫ |n_axis| dS`, and the mean of `|n_x| + |n_y| + |n_z|` over all directions is 3/2.
        x, y: column and row of the centre of mass of the pixels inside, or of the outlines where there are none.
        slice_index: the same along the scan, in slices.
    """

    diameter_mm: float
    volume_mm3: float
    surface_mm2: float
    x: float
    y: float
    slice_index: float


def measure(outlines: Sequence[Outline], pixel_spacing: float, slice_spacing: float) -> Measures:
    """Sizes and centre of one reading; spacings in mm."""
    mask = mask_of(outlines)
    slice_index, y, x = _centre(mask, outlines)
    return Measures(
        diameter_mm=max(diameter(outline.points) for outline in outlines) * pixel_spacing,
        volume_mm3=float(mask.inside.sum()) * pixel_spacing**2 * slice_spacing,
        surface_mm2=_surface(mask, pixel_spacing, slice_spacing),
        x=x,
        y=y,
        slice_index=slice_index,
    )


def _centre(mask: Mask, outlines: Sequence[Outline]) -> tuple[float, float, float]:
    if mask.inside.any():
        slice_index, y, x = np.argwhere(mask.inside).mean(0) + mask.first
    else:
        points = np.concatenate([np.insert(outline.points, 2, outline.slice_index, axis=1) for outline in outlines])
        x, y, slice_index = points.mean(0)
    return float(slice_index), float(y), float(x)


def _surface(mask: Mask, pixel_spacing: float, slice_spacing: float) -> float:
    padded = np.pad(mask.inside, 1)
    lid, side = pixel_spacing**2, pixel_spacing * slice_spacing
    faces = sum(area * np.count_nonzero(np.diff(padded, axis=axis)) for axis, area in enumerate((lid, side, side)))
    return float(faces * 2 / 3)
