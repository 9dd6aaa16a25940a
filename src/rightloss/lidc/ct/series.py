"""The files of a CT series as one volume.

Stage: files of one series → `Series`: HU `(slices, rows, columns)`, and where each slice lies.

Slices are put in order by their positions, never by file names or instance numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int16
from numpy.typing import NDArray

from .pixels import UnreadableSlice, printable, require
from .slices import Slice, read_hu, read_slice

__all__ = ["SAME_PLACE", "Series", "read_series"]

SAME_PLACE = 0.01  # mm

_GAP = 1.5  # times the median distance: a slice is missing
_FOUND = 0.4  # times the least distance: at most this far from where it should be
_GAPS_TOLD = 5  # one by one
_SAME_ORIENTATION = 1e-3  # per component: a quarter of a millimetre at the edge of a slice
_TRANSVERSE = 0.7  # at least this much of the slices' normal lies along z
_LARGEST_VOLUME = 1 << 32  # voxels


@dataclass(frozen=True, eq=False)
class Series:
    """A CT volume; made by `read_series`.

    Attributes:
        uid: its SeriesInstanceUID.
        hu: `(slices, rows, columns)`, along the slices' normal with z ascending; int16, clipped at its ends, or float32 where a
            slope or intercept is no whole number.
        positions: mm along the normal, ascending.
        z: the third coordinate of each slice's ImagePositionPatient, mm, ascending.
        shifts: how far each slice's first pixel lies from that of slice 0 within the plane `(slices, 2)`, mm: down the image,
            and to its right. 0 unless the gantry was tilted.
        pixel_spacing: mm between rows, and between columns.
        problems: what was left out, doubled or missing, by name; for people to read.
        missing: the third coordinate of each slice that is missing, mm, ascending.
    """

    uid: str
    hu: Int16[np.ndarray, "s r c"] | Float[np.ndarray, "s r c"]
    positions: Float64[np.ndarray, " s"]
    z: Float64[np.ndarray, " s"]
    shifts: Float64[np.ndarray, "s 2"]
    pixel_spacing: tuple[float, float]
    problems: tuple[str, ...]
    missing: Float64[np.ndarray, " m"] = field(default_factory=lambda: np.empty(0))


def read_series(files: Sequence[Any], expected: Any = None) -> Series:
    """The volume in the files of one series, as `find_series` gives them.

    Files that are damaged, or that differ from most in size, orientation or pixel spacing (localisers), are left out. Of
    several slices at one place the first is kept (by acquisition, instance number, UID), and one that differs from it is named.
    Missing are those of `expected` that are not there, or else as many slices as fill a distance of more than 1.5 times the
    median. All of that is told in `problems`.

    Args:
        files: their paths.
        expected: z of all slices that the scan has (ImagePositionPatient[2]), if known: a series that was cut short, or of
            which only every other slice is there, does not show it. Gaps between them are the scan's own.

    Raises:
        ValueError: fewer than two slices could be read, they are of several series, or they are not transverse.
        OSError: a file cannot be read from the disk.
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


def _headers(files: Sequence[Any], problems: list[str]) -> list[Slice]:
    headers = []
    for path in files:
        try:
            headers.append(read_slice(path))
        except UnreadableSlice as error:
            problems.append(f"{_name(path)} left out: {printable(error)}")
    return headers


def _majority(headers: list[Slice], problems: list[str]) -> list[Slice]:
    """Those of the commonest size, orientation and spacing."""
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
    """The slices' common normal, upwards."""
    across = np.cross(*headers[0].orientation)
    normal = across / np.linalg.norm(across)
    if abs(normal[2]) < _TRANSVERSE:
        raise ValueError(
            f"Expected transverse slices, but their normal is {normal.round(3).tolist()}: it has no slice at a given z."
        )
    return normal * np.sign(normal[2])


def _places(headers: list[Slice], normal: NDArray[np.float64]) -> list[list[Slice]]:
    """The slices in order, those at one place together."""
    ordered = sorted(headers, key=lambda header: (float(header.position @ normal), header.rank))
    places: list[list[Slice]] = []
    for header in ordered:
        if places and (header.position - places[-1][0].position) @ normal < SAME_PLACE:
            places[-1].append(header)
        else:
            places.append([header])
    return [sorted(place, key=lambda header: header.rank) for place in places]


def _volume(places: list[list[Slice]], problems: list[str]) -> tuple[list[Slice], NDArray[Any]]:
    """The first readable slice of each place, and all their pixels."""
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


def _missing(z: NDArray[np.float64], expected: Any) -> NDArray[np.float64]:
    """z of the slices that are not there."""
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
    gaps = Counter(np.searchsorted([header.position[2] for header in kept], missing).tolist())  # by how many slices lie below
    for above, number in list(gaps.items())[:_GAPS_TOLD]:
        where = f"between {names[above - 1]} and {names[above]}" if 0 < above < len(kept) else ""
        where = where or (f"below {names[0]}, the first" if above == 0 else f"above {names[-1]}, the last")
        problems.append(f"{number} slice{'s' if number > 1 else ''} missing {where}")
    if len(gaps) > _GAPS_TOLD:
        more = list(gaps.values())[_GAPS_TOLD:]
        problems.append(f"{sum(more)} slices missing in {len(more)} further places")


def _name(path: Any) -> str:
    return printable(Path(path).name)


def _check_number(headers: list[Slice], files: Sequence[Any], problems: list[str]) -> None:
    if len(headers) < 2:
        why = f" ({problems[0]})" if problems else ""
        raise ValueError(
            f"Expected a series of at least 2 slices, but got {len(headers)} out of {len(files)} files{why}: download it again?"
        )
