"""Cubes of CT around a nodule.

Stage: `Series`, centre → `Patch`: HU `(size, size, size)` along (z, y, x) = (slices' normal, image rows, image columns).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int16
from numpy.typing import NDArray

from .pixels import require
from .series import SAME_PLACE, Series
from .slices import AIR

__all__ = ["Patch", "cut_patch"]


class Patch(NamedTuple):
    """A cube of CT.

    Attributes:
        hu: the values, rounded.
        outside: the share of voxels that lie outside the scan, and are air.
        problems: slices that are missing within it and were interpolated.
    """

    hu: Int16[np.ndarray, "d h w"]
    outside: float
    problems: tuple[str, ...]


def cut_patch(series: Series, x: Any, y: Any, z: Any, size: Any = 64, spacing: Any = 1.0, diameter: Any = 0.0) -> Patch:
    """The cube around a point, trilinear between the voxels of the scan.

    Voxel i of an axis lies (i − (size − 1)/2) · spacing mm from the centre. The axes are the slices' normal, upwards, and the
    directions in which the image's row and column numbers grow, also where the gantry was tilted. The scan ends half a voxel
    beyond the centres of its outermost ones; further out there is air, −1000 HU.

    Args:
        series: the scan.
        x: column of the centre, counted from 0, at pixels' centres.
        y: its row.
        z: its position in mm: ImagePositionPatient[2], between slices where need be.
        size: voxels along each axis.
        spacing: mm from voxel to voxel.
        diameter: of the nodule, mm.

    Raises:
        ValueError: the centre lies outside the scan; or a slice is missing through the nodule, or next to its centre; or more
            than one in a row is missing elsewhere in the cube, or one at the end of the scan.
    """
    require("scipy")
    _check(series, x, y, z, size, spacing, diameter)
    away = (np.arange(size) - (size - 1) / 2) * spacing
    centre = np.interp(z, series.z, series.positions)
    problems = _interpolated(series, float(centre), float(away[-1]), float(diameter) / 2)
    axes = _coordinates(series, centre, float(x), float(y), away)
    inside = np.ones((size, size, size), dtype=bool)
    for coordinate, length in zip(axes, series.hu.shape, strict=True):
        inside &= (coordinate >= -0.5) & (coordinate <= length - 0.5)
    cube = np.full((size, size, size), float(AIR))
    cube[inside] = _trilinear(series.hu, [np.broadcast_to(axis, inside.shape)[inside] for axis in axes])
    rounded = np.clip(np.rint(cube), -(1 << 15), (1 << 15) - 1).astype(np.int16)
    return Patch(rounded, 1 - float(inside.mean()), problems)


def _coordinates(series: Series, centre: float, x: float, y: float, away: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Slice, row and column numbers of the cube's voxels, to be broadcast; a tilted gantry moves slices within their plane."""
    index = np.arange(len(series.positions))
    slices = _extended_interp(centre + away, series.positions, index)
    own = _extended_interp(np.array([centre]), series.positions, index)
    moved = np.stack(
        [_extended_interp(slices, index, shift) - _extended_interp(own, index, shift) for shift in series.shifts.T]
    )
    rows = y + (away[None, :] - moved[0][:, None]) / series.pixel_spacing[0]
    columns = x + (away[None, :] - moved[1][:, None]) / series.pixel_spacing[1]
    return [slices[:, None, None], rows[:, :, None], columns[:, None, :]]


def _extended_interp(at: NDArray[np.float64], xs: NDArray[Any], ys: NDArray[Any]) -> NDArray[np.float64]:
    """Linear between the points, and beyond the outer ones as between the last two."""
    k = np.clip(np.searchsorted(xs, at, side="right") - 1, 0, len(xs) - 2)
    return ys[k] + (at - xs[k]) * ((ys[k + 1] - ys[k]) / (xs[k + 1] - xs[k]))


def _trilinear(volume: NDArray[Any], coordinates: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    from scipy.ndimage import map_coordinates

    if not coordinates[0].size:
        return np.empty(0)
    # The box around the cube: map_coordinates would otherwise look at, and convert, the whole scan.
    starts = [max(0, int(np.floor(axis.min()))) for axis in coordinates]
    ends = [int(np.ceil(axis.max())) + 1 for axis in coordinates]
    box = volume[tuple(slice(start, max(start + 1, end)) for start, end in zip(starts, ends, strict=True))]
    shifted = [axis - start for axis, start in zip(coordinates, starts, strict=True)]
    return map_coordinates(box, shifted, output=np.float64, order=1, mode="nearest")


def _interpolated(series: Series, centre: float, reach: float, radius: float) -> tuple[str, ...]:
    """The missing slices that the cube, `centre` ± `reach`, is interpolated across; refused where that would not do."""
    places = series.positions
    missing = _extended_interp(series.missing, series.z, places)
    through = np.abs(missing - centre) <= max(radius, float(np.median(np.diff(places)))) + SAME_PLACE
    if through.any():
        raise ValueError(
            f"Expected every slice through the nodule, but {through.sum()} of them, the first at z = "
            f"{series.missing[through][0]:g} mm, are missing: download the series again?"
        )
    above = np.searchsorted(places, missing)  # how many slices lie below each
    low, high = centre - reach, centre + reach
    ends = ((above == 0) & (low < places[0] - SAME_PLACE)) | ((above == len(places)) & (high > places[-1] + SAME_PLACE))
    if ends.any():
        raise ValueError(
            f"Expected slices up to the patch's ends, but {ends.sum()} are missing at the scan's end, beyond z = "
            f"{series.z[0] if above[ends][0] == 0 else series.z[-1]:g} mm: download the series again?"
        )
    notes = []
    for k, number in zip(*np.unique(above[(above > 0) & (above < len(places))], return_counts=True), strict=True):
        if places[k - 1] < high and places[k] > low:
            between = f"{places[k - 1]:g} and {places[k]:g} mm"
            if number > 1:
                raise ValueError(
                    f"Expected at most one slice in a row to be missing, but {number} are between {between}: download the "
                    "series again?"
                )
            notes.append(f"one slice interpolated between {between}")
    return tuple(notes)


def _check(series: Series, x: Any, y: Any, z: Any, size: Any, spacing: Any, diameter: Any) -> None:
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 512:
        raise ValueError(f"Expected `size` to be a whole number from 1 to 512, but got {size!r}: 64 is usual.")
    if not 0 < spacing < 1000:
        raise ValueError(f"Expected `spacing` to be positive, but got {spacing!r}: give millimetres.")
    if not 0 <= diameter < 1000:
        raise ValueError(f"Expected `diameter` to be 0 or more, but got {diameter!r}: give millimetres.")
    _, rows, columns = series.hu.shape
    if not (-0.5 <= x <= columns - 0.5 and -0.5 <= y <= rows - 0.5 and series.z[0] - 0.01 <= z <= series.z[-1] + 0.01):
        raise ValueError(
            f"Expected a centre within the scan, {columns} × {rows} pixels and z from {series.z[0]:g} to {series.z[-1]:g} mm, "
            f"but got x = {x:g}, y = {y:g}, z = {z:g}: are slices missing at the scan's end?"
        )
