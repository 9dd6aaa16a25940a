"""Readers' outlines: what they enclose, and how large it is.

Stage: points of an outline, in whole pixels → pixels inside, area, length, diameter.

A reader of LIDC-IDRI drew, slice by slice, the first pixels *outside* the nodule. So the outline's own pixels are not part of
it, and an outline may enclose nothing. A second kind of outline, an exclusion, cuts a hole.
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
        slice_index: which slice of the scan, counted from 0 in ascending z.
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
    """The pixels strictly inside one reader's outlines, and outside of every hole."""
    drawn = np.concatenate([outline.points for outline in outlines])
    low, high = drawn.min(0), drawn.max(0)
    slices = np.array([outline.slice_index for outline in outlines])
    first, shape = int(slices.min()), (int(high[1] - low[1]) + 1, int(high[0] - low[0]) + 1)
    inside = np.zeros((int(slices.max()) - first + 1, *shape), dtype=bool)
    # Holes last: they cut whatever was drawn around them.
    for outline in sorted(outlines, key=lambda outline: not outline.inclusion):
        filled, border = _filled(outline.points - low, shape)
        layer = inside[outline.slice_index - first]
        if outline.inclusion:
            layer |= filled & ~border
        else:
            layer &= ~(filled | border)
    return Mask(inside, (first, int(low[1]), int(low[0])))


def diameter(points: Points) -> float:
    """Largest distance between two of its pixels' centres, in pixels."""
    x, y = points.T
    return float(np.sqrt(((x[:, None] - x) ** 2 + (y[:, None] - y) ** 2).max()))


def connected(points: Points) -> Points:
    """The same closed outline with every step to one of the eight neighbours, gaps filled along straight lines; not closed."""
    steps = np.roll(points, -1, axis=0) - points
    counts = np.maximum(np.abs(steps).max(1), 1)
    owner = np.repeat(np.arange(len(points)), counts)
    part = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    filled = np.rint(points[owner] + steps[owner] * (part / counts[owner])[:, None]).astype(points.dtype)
    stays = (np.roll(filled, -1, axis=0) == filled).all(1)
    return filled[~stays] if not stays.all() else filled[:1]


def _filled(points: Points, shape: tuple[int, int]) -> tuple[Bool[np.ndarray, "h w"], Bool[np.ndarray, "h w"]]:
    """Inside by the even-odd rule, and the outline itself.

    A step between rows y and y + 1 crosses the line through row y at the end that lies there: from that pixel on to the right,
    inside and outside change places.
    """
    points = connected(points)
    following = np.roll(points, -1, axis=0)
    upper = np.where((points[:, 1] <= following[:, 1])[:, None], points, following)[points[:, 1] != following[:, 1]]
    crossings = np.bincount(upper[:, 1] * shape[1] + upper[:, 0], minlength=shape[0] * shape[1]).reshape(shape)
    border = np.zeros(shape, dtype=bool)
    border[points[:, 1], points[:, 0]] = True
    return np.cumsum(crossings, axis=1) % 2 == 1, border
