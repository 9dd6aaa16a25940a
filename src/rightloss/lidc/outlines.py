"""Readers' outlines: the pixels inside, and their size and centre.

Stage: points of an outline, in whole pixels → pixels inside; outlines of one reading → diameter, volume, surface, centre.

A reader of LIDC-IDRI drew, slice by slice, the first pixels *outside* the nodule. So the outline's own pixels are not part of
the nodule, and an outline may enclose no pixel. Another kind of outline, an exclusion, cuts a hole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

Points = Int[np.ndarray, "_ 2"]


@dataclass(frozen=True)
class Outline:
    """One closed outline in one slice.

    Attributes:
        points: column and row (x, y) of its pixels in order, counted from 0; the last one may repeat the first.
        slice_index: the slice of the scan, counted from 0 in ascending z.
        inclusion: False for a hole.
    """

    points: Points
    slice_index: int
    inclusion: bool = True


@dataclass(frozen=True)
class Mask:
    """Pixels inside, in a box: `inside[k, j, i]` is slice `first[0] + k`, row `first[1] + j`, column `first[2] + i`."""

    inside: Bool[np.ndarray, "k h w"]
    first: tuple[int, int, int]


def mask_of(outlines: Sequence[Outline]) -> Mask:
    """Return the pixels strictly inside one reader's outlines, and outside of every hole."""
    drawn = np.concatenate([outline.points for outline in outlines])
    low, high = drawn.min(0), drawn.max(0)
    slices = np.array([outline.slice_index for outline in outlines])
    first, shape = int(slices.min()), (int(high[1] - low[1]) + 1, int(high[0] - low[0]) + 1)
    inside = np.zeros((int(slices.max()) - first + 1, *shape), dtype=bool)
    # Holes last, because they cut everything drawn around them.
    for outline in sorted(outlines, key=lambda outline: not outline.inclusion):
        filled, border = _filled(outline.points - low, shape)
        layer = inside[outline.slice_index - first]
        if outline.inclusion:
            layer |= filled & ~border
        else:
            layer &= ~(filled | border)
    return Mask(inside, (first, int(low[1]), int(low[0])))


def points_of(outlines: Sequence[Outline]) -> Int[np.ndarray, "_ 3"]:
    """Return column, row and slice number of every outline pixel."""
    return np.concatenate([np.insert(outline.points, 2, outline.slice_index, axis=1) for outline in outlines])


def diameter(points: Points) -> float:
    """Return the largest distance between two of its pixels' centres, in pixels."""
    x, y = points.T
    return float(np.sqrt(((x[:, None] - x) ** 2 + (y[:, None] - y) ** 2).max()))


def connected(points: Points) -> Points:
    """Return the outline with every step to one of the eight neighbours, gaps filled along straight lines; not closed."""
    steps = np.roll(points, -1, axis=0) - points
    counts = np.maximum(np.abs(steps).max(1), 1)
    owner = np.repeat(np.arange(len(points)), counts)
    part = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    filled = np.rint(points[owner] + steps[owner] * (part / counts[owner])[:, None]).astype(points.dtype)
    stays = (np.roll(filled, -1, axis=0) == filled).all(1)
    return filled[~stays] if not stays.all() else filled[:1]


def _filled(points: Points, shape: tuple[int, int]) -> tuple[Bool[np.ndarray, "h w"], Bool[np.ndarray, "h w"]]:
    """Return the pixels inside by the even-odd rule, and those of the outline itself.

    A step between rows y and y + 1 crosses the line through row y at its end in that row: to the right of that pixel, inside
    and outside are exchanged.
    """
    points = connected(points)
    following = np.roll(points, -1, axis=0)
    upper = np.where((points[:, 1] <= following[:, 1])[:, None], points, following)[points[:, 1] != following[:, 1]]
    crossings = np.bincount(upper[:, 1] * shape[1] + upper[:, 0], minlength=shape[0] * shape[1]).reshape(shape)
    border = np.zeros(shape, dtype=bool)
    border[points[:, 1], points[:, 0]] = True
    return np.cumsum(crossings, axis=1) % 2 == 1, border


@dataclass(frozen=True)
class Measures:
    """Size and centre of one reading.

    Attributes:
        diameter_mm: the largest distance within a slice between two pixels of an outline.
        volume_mm3: pixels inside, times the volume of one; 0 where the outlines enclose nothing.
        surface_mm2: 2/3 of the area of all faces between a pixel inside and one outside. Each axis sees the surface S from both
            sides as `∫ |n_axis| dS`, and the mean of `|n_x| + |n_y| + |n_z|` over all directions is 3/2.
        x, y: column and row of the centre of mass of the pixels inside, or of the outlines where there are none.
        slice_index: its centre along the scan, in slices.
    """

    diameter_mm: float
    volume_mm3: float
    surface_mm2: float
    x: float
    y: float
    slice_index: float


def measure(outlines: Sequence[Outline], pixel_spacing: float, slice_spacing: float) -> Measures:
    """Return size and centre of one reading; spacings in mm."""
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
        x, y, slice_index = points_of(outlines).mean(0)
    return float(slice_index), float(y), float(x)


def _surface(mask: Mask, pixel_spacing: float, slice_spacing: float) -> float:
    padded = np.pad(mask.inside, 1)
    lid, side = pixel_spacing**2, pixel_spacing * slice_spacing
    faces = sum(area * np.count_nonzero(np.diff(padded, axis=axis)) for axis, area in enumerate((lid, side, side)))
    return float(faces * 2 / 3)
