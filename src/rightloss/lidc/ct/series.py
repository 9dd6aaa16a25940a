"""Read a CT series as one volume, and cut cubes from it.

Stage: files of one series → `Series`: HU `(slices, rows, columns)`, and the position of each slice; `Series`, centre →
`Patch`: HU `(size, size, size)` along (z, y, x) = (slices' normal, image rows, image columns).

Slices are ordered by their positions, never by file names or instance numbers.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int16
from numpy.typing import NDArray

from ...arrays import Numbers, checked_int, checked_number
from .dicom_files import AIR, Slice, UnreadableSlice, printable, read_hu, read_slice, require

SAME_PLACE = 0.01  # mm

_GAP = 1.5  # times the median distance: beyond it a slice is missing
_FOUND = 0.4  # times the smallest distance: tolerance of a slice's position
_GAPS_TOLD = 5  # one by one
_SAME_ORIENTATION = 1e-3  # per component: a quarter of a millimetre at the edge of a slice
_TRANSVERSE = 0.7  # at least this much of the slices' normal lies along z
_LARGEST_VOLUME = 1 << 32  # voxels


@dataclass(frozen=True, eq=False)
class Series:
    """A CT volume; made by `read_series`.

    Attributes:
        uid: its SeriesInstanceUID.
        hu: `(slices, rows, columns)`, along the slices' normal with z ascending; int16, clipped at its limits, or float32 if a
            slope or intercept is not a whole number.
        positions: mm along the normal, ascending.
        z: the third coordinate of each slice's ImagePositionPatient, mm, ascending.
        shifts: in-plane offset of each slice's first pixel from that of slice 0 `(slices, 2)`, mm: down the image, and to its
            right. 0 unless the gantry was tilted.
        pixel_spacing: mm between rows, and between columns.
        problems: files that were left out, and slices that are missing, as text.
        missing: the third coordinate of each missing slice, mm, ascending.

    Examples:
        >>> import numpy as np
        >>> from rightloss.lidc.ct import Series
        >>> z, hu = np.arange(12.0), np.zeros((12, 16, 16), np.int16)
        >>> Series("1.2.3", hu, z, z, np.zeros((12, 2)), (1.0, 1.0), ()).hu.shape
        (12, 16, 16)
    """

    uid: str
    hu: Int16[np.ndarray, "s r c"] | Float[np.ndarray, "s r c"]
    positions: Float64[np.ndarray, " s"]
    z: Float64[np.ndarray, " s"]
    shifts: Float64[np.ndarray, "s 2"]
    pixel_spacing: tuple[float, float]
    problems: tuple[str, ...]
    missing: Float64[np.ndarray, " m"] = field(default_factory=lambda: np.empty(0))


def read_series(files: Sequence[str | os.PathLike[str]], expected: Numbers | None = None) -> Series:
    """Return the volume in the files of one series, from `find_series`.

    Damaged files are ignored, and files that differ from most in size, orientation or pixel spacing (localisers). Of several
    slices at one position the first is kept (by acquisition, instance number, UID). A slice is missing if one of `expected` is
    not found, or, without `expected`, if the distance of two is more than 1.5 times the median. `problems` lists all of these.

    Args:
        files: their paths.
        expected: z of all slices of the scan (ImagePositionPatient[2]), if known. Without it, a truncated series, or one with
            only every other slice, is not detected. Gaps between expected slices belong to the scan.

    Raises:
        ValueError: fewer than two slices could be read, they are of several series, or they are not transverse.
        OSError: a file cannot be read from the disk.

    Examples:
        >>> from rightloss.lidc.ct import read_series
        >>> read_series([])
        Traceback (most recent call last):
        ValueError: Expected a series of at least 2 slices, but got 0 out of 0 files: download it again?
    """
    require("pydicom")
    problems: list[str] = []
    headers = _headers(files, problems)
    if len(uids := sorted({header.series_uid for header in headers})) > 1:
        raise ValueError(
            f"Expected files of one series, but got {len(uids)} series, {uids[:3]}: `find_series` tells them apart."
        )
    headers = _majority(headers, problems)
    _check_number(headers, files, problems)
    normal = _normal(headers)
    places = _places(headers, normal)
    kept, hu = _volume(places, problems)
    _check_number(kept, files, problems)
    origins = np.stack([header.position for header in kept])
    positions, down_right = origins @ normal, kept[0].orientation[::-1]
    if not (np.diff(origins[:, 2]) > 0).all():
        raise ValueError(
            "Expected z to grow from slice to slice, but it does not along their normal: are the positions damaged?"
        )
    missing = _missing(origins[:, 2], expected)
    _report_gaps(kept, missing, problems)
    return Series(
        uid=uids[0],
        hu=hu,
        positions=positions,
        z=origins[:, 2],
        shifts=(origins - origins[0]) @ down_right.T,
        pixel_spacing=(float(kept[0].spacing[0]), float(kept[0].spacing[1])),
        problems=tuple(problems),
        missing=missing,
    )


def _headers(files: Sequence[str | os.PathLike[str]], problems: list[str]) -> list[Slice]:
    headers = []
    for path in files:
        try:
            headers.append(read_slice(path))
        except UnreadableSlice as error:
            problems.append(f"{_name(path)} left out: {printable(error)}")
    return headers


def _majority(headers: list[Slice], problems: list[str]) -> list[Slice]:
    """Return the slices with the most common size, orientation and spacing."""
    if not headers:
        return headers
    kinds = Counter(_kind(header) for header in headers)
    commonest = max(kinds, key=lambda kind: (kinds[kind], kind))
    model = next(header for header in headers if _kind(header) == commonest)
    kept = []
    for header in headers:
        turned = np.abs(header.orientation - model.orientation).max() > _SAME_ORIENTATION
        scaled = not np.allclose(header.spacing, model.spacing, rtol=1e-3, atol=0)
        if header.shape != model.shape or turned or scaled:
            what = "size" if header.shape != model.shape else "orientation" if turned else "pixel spacing"
            problems.append(f"{_name(header.path)} left out: of another {what} than most slices")
        else:
            kept.append(header)
    return kept


def _kind(header: Slice) -> tuple[int | float, ...]:
    # + 0.0: −0 is 0
    return (*header.shape, *(header.orientation.ravel().round(2) + 0.0), *header.spacing.round(3))


def _normal(headers: list[Slice]) -> Float64[np.ndarray, " 3"]:
    """Return the slices' common normal, upwards."""
    across = np.cross(*headers[0].orientation)
    normal = across / np.linalg.norm(across)
    if abs(normal[2]) < _TRANSVERSE:
        raise ValueError(
            f"Expected transverse slices, but their normal is {normal.round(3).tolist()}: it has no slice at a given z."
        )
    return normal * np.sign(normal[2])


def _places(headers: list[Slice], normal: NDArray[np.float64]) -> list[list[Slice]]:
    """Return the slices in order, grouped by position."""
    ordered = sorted(headers, key=lambda header: (float(header.position @ normal), header.rank))
    places: list[list[Slice]] = []
    for header in ordered:
        if places and (header.position - places[-1][0].position) @ normal < SAME_PLACE:
            places[-1].append(header)
        else:
            places.append([header])
    return [sorted(place, key=lambda header: header.rank) for place in places]


def _volume(places: list[list[Slice]], problems: list[str]) -> tuple[list[Slice], NDArray[Any]]:
    """Return the first readable slice of each position, and their pixels."""
    every = [header for place in places for header in place]
    if len(places) * every[0].shape[0] * every[0].shape[1] > _LARGEST_VOLUME:
        raise ValueError(
            f"Expected a CT volume, but got {len(places)} slices of {every[0].shape}: too large to be one; read a part of it."
        )
    whole = all(header.slope.is_integer() and header.intercept.is_integer() for header in every)
    hu = np.empty((len(places), *every[0].shape), np.int16 if whole else np.float32)
    kept: list[Slice] = []
    for place in places:
        chosen: Slice | None = None
        for header in place:
            try:
                pixels = _as(hu.dtype, read_hu(header))
            except UnreadableSlice as error:
                problems.append(f"{_name(header.path)} left out: {printable(error)}")
                continue
            if chosen is None:
                chosen, hu[len(kept)] = header, pixels
            elif not np.array_equal(pixels, hu[len(kept)]):
                where = f"z = {header.position[2]:g} mm"
                problems.append(
                    f"{_name(header.path)} left out: at {where}, but not the same as {_name(chosen.path)}, which is kept"
                )
        kept += [] if chosen is None else [chosen]
    return kept, hu[: len(kept)]


def _as(dtype: np.dtype[Any], hu: NDArray[np.float64]) -> NDArray[Any]:
    if dtype != np.int16:
        return hu.astype(dtype)
    return np.clip(np.rint(hu), -(1 << 15), (1 << 15) - 1).astype(dtype)


def _missing(z: NDArray[np.float64], expected: Numbers | None) -> NDArray[np.float64]:
    """Return z of the missing slices."""
    if expected is not None:
        every = np.unique(np.asarray(expected, np.float64))
        near = max(SAME_PLACE, _FOUND * np.diff(every).min()) if len(every) > 1 else SAME_PLACE
        nearest = np.abs(every[:, None] - z).min(1)
        return every[nearest > near]
    distances = np.diff(z)
    usual = np.median(distances)
    found = [
        np.linspace(z[k], z[k + 1], max(1, round(distances[k] / usual) - 1) + 2)[1:-1]
        for k in np.flatnonzero(distances > _GAP * usual)
    ]
    return np.concatenate([np.empty(0), *found])


def _report_gaps(kept: list[Slice], missing: NDArray[np.float64], problems: list[str]) -> None:
    names = [f"{_name(header.path)} (z = {header.position[2]:g} mm)" for header in kept]
    gaps = Counter(np.searchsorted([header.position[2] for header in kept], missing).tolist())  # by the number of slices below
    for above, number in list(gaps.items())[:_GAPS_TOLD]:
        where = f"between {names[above - 1]} and {names[above]}" if 0 < above < len(kept) else ""
        where = where or (f"below {names[0]}, the first" if above == 0 else f"above {names[-1]}, the last")
        problems.append(f"{number} slice{'s' if number > 1 else ''} missing {where}")
    if len(gaps) > _GAPS_TOLD:
        more = list(gaps.values())[_GAPS_TOLD:]
        problems.append(f"{sum(more)} slices missing in {len(more)} further places")


def _name(path: str | os.PathLike[str]) -> str:
    return printable(Path(path).name)


def _check_number(headers: list[Slice], files: Sequence[str | os.PathLike[str]], problems: list[str]) -> None:
    if len(headers) < 2:
        why = f" ({problems[0]})" if problems else ""
        raise ValueError(
            f"Expected a series of at least 2 slices, but got {len(headers)} out of {len(files)} files{why}: download it again?"
        )


class Patch(NamedTuple):
    """A cube of CT.

    Attributes:
        hu: the values, rounded.
        outside: the fraction of voxels outside the scan, which are air.
        problems: missing slices within it that were interpolated.

    Examples:
        >>> import numpy as np
        >>> from rightloss.lidc.ct import Patch
        >>> Patch(np.zeros((8, 8, 8), np.int16), outside=0.0, problems=()).hu.shape
        (8, 8, 8)
    """

    hu: Int16[np.ndarray, "d h w"]
    outside: float
    problems: tuple[str, ...]


def cut_patch(
    series: Series,
    x: float | int,
    y: float | int,
    z: float | int,
    size: int = 64,
    spacing: float | int = 1.0,
    diameter: float | int = 0.0,
) -> Patch:
    """Return the cube around a point, interpolated trilinearly between the voxels of the scan.

    Voxel i of an axis lies (i − (size − 1)/2) · spacing mm from the centre. The axes are the slices' normal, upwards, and the
    directions of increasing row and column numbers, also with a tilted gantry. The scan ends half a voxel beyond the centres of
    its outermost voxels; further out is air, −1000 HU.

    Args:
        series: the scan.
        x: column of the centre, counted from 0, at pixels' centres.
        y: its row.
        z: its position in mm: ImagePositionPatient[2], also between slices.
        size: voxels along each axis.
        spacing: mm from voxel to voxel.
        diameter: of the nodule, mm.

    Raises:
        ValueError: the centre lies outside the scan; or a slice is missing through the nodule, or next to its centre; or more
            than one in a row is missing elsewhere in the cube, or one at the end of the scan.

    Examples:
        >>> import numpy as np
        >>> from rightloss.lidc.ct import Series, cut_patch
        >>> z, hu = np.arange(12.0), np.full((12, 16, 16), 40, np.int16)
        >>> series = Series("1.2.3", hu, z, z, np.zeros((12, 2)), (1.0, 1.0), ())
        >>> patch = cut_patch(series, x=8, y=8, z=5.5, size=8)
        >>> patch.hu.shape, int(patch.hu.max()), patch.outside
        ((8, 8, 8), 40, 0.0)
    """
    from scipy.ndimage import map_coordinates

    checked_int(size, "size", 1, 512, "64 is usual")
    checked_number(spacing, "spacing", 1e-3, 1000, "give millimetres")
    checked_number(diameter, "diameter", 0, 1000, "give millimetres")
    _check_place(series, x, y, z)
    away = (np.arange(size, dtype=np.float64) - (size - 1) / 2) * spacing
    centre = np.interp(z, series.z, series.positions)
    problems = _interpolated(series, float(centre), float(away[-1]), float(diameter) / 2)
    axes = _coordinates(series, centre, float(x), float(y), away)
    inside = np.ones((size, size, size), dtype=bool)
    for coordinate, length in zip(axes, series.hu.shape, strict=True):
        inside &= (coordinate >= -0.5) & (coordinate <= length - 0.5)
    cube = np.full((size, size, size), float(AIR))
    places = [np.broadcast_to(axis, inside.shape)[inside] for axis in axes]
    cube[inside] = map_coordinates(series.hu, places, output=np.float64, order=1, mode="nearest")
    return Patch(_as(np.dtype(np.int16), cube), 1 - float(inside.mean()), problems)


def _coordinates(series: Series, centre: float, x: float, y: float, away: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Return slice, row and column numbers of the voxels, to be broadcast; a tilted gantry moves slices within their plane."""
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
    """Interpolate linearly between the points, and extrapolate beyond them."""
    k = np.clip(np.searchsorted(xs, at, side="right") - 1, 0, len(xs) - 2)
    return ys[k] + (at - xs[k]) * ((ys[k + 1] - ys[k]) / (xs[k + 1] - xs[k]))


def _interpolated(series: Series, centre: float, reach: float, radius: float) -> tuple[str, ...]:
    """Return notes on missing slices within `centre` ± `reach`; raise a ValueError if interpolation is not enough."""
    places = series.positions
    missing = _extended_interp(series.missing, series.z, places)
    through = np.abs(missing - centre) <= max(radius, float(np.median(np.diff(places)))) + SAME_PLACE
    if through.any():
        raise ValueError(
            f"Expected every slice through the nodule, but {through.sum()} of them, the first at z = "
            f"{series.missing[through][0]:g} mm, are missing: download the series again?"
        )
    above = np.searchsorted(places, missing)  # the number of slices below each
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


def _check_place(series: Series, x: float | int, y: float | int, z: float | int) -> None:
    _, rows, columns = series.hu.shape
    if not (-0.5 <= x <= columns - 0.5 and -0.5 <= y <= rows - 0.5 and series.z[0] - 0.01 <= z <= series.z[-1] + 0.01):
        raise ValueError(
            f"Expected a centre within the scan, {columns} × {rows} pixels and z from {series.z[0]:g} to {series.z[-1]:g} mm, "
            f"but got x = {x:g}, y = {y:g}, z = {z:g}: are slices missing at the scan's end?"
        )
