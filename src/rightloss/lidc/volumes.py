"""Contour volumes: shapes of nodules on a grid of 1 mm, from the readers' outlines.

Stage: outlines of a reading → pixels inside; numbers of nodules → fraction of readers for each voxel, cached on disk.

An outline's own pixels are not part of the nodule, and an outline may enclose no pixel.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float16, Float64, Int32, UInt8
from numpy.typing import ArrayLike
from torch import Tensor

from ..arrays import checked_int
from ..atomic_files import whole_file
from ..serialization import open_npz
from .readings import DATA, NUM_NODULES, TABLES, Outline, Points, nodule_table, reading_table, scan_table, shipped_outlines

FORMAT = 1  # version of the cached file: increase it when the same outlines give other volumes
FEW = 100  # up to this number of nodules, volumes are computed without the cache

Progress = Callable[[int, int], object]


def contour_volumes(nodules: int | ArrayLike, size: int = 64, progress: Progress | None = None) -> Float16[Tensor, "n d h w"]:
    """Return, for each voxel of 1 mm, the fraction of the nodule's readers who drew it inside.

    A voxel takes the value of the pixel and slice nearest to its centre, so it is `k/readers` exactly (to the precision of
    float16). An outline's own pixels are outside, and holes are cut out. The axes are z, y, x (ascending position, row,
    column); voxel i lies `i − (size − 1)/2` mm from the nodule's centre, that of `nodules()`. Nodules larger than the box are
    cut off: at 64³ six reach its sides. One, number 2325, is too small to contain the centre of any voxel.

    Args:
        nodules: numbers of nodules, the column `nodule` of `nodules()`.
        size: voxels along each edge.
        progress: called with (done, total) after each nodule that is computed.

    Returns:
        shares in [0, 1]; 0.5 MB a nodule at 64³. The first call for more than 100 nodules computes all 2651, in a few seconds,
        and caches them in the folder `RIGHTLOSS_CACHE`, or the system's cache folder; later calls read them from there.

    Examples:
        >>> from rightloss.lidc import contour_volumes
        >>> volumes = contour_volumes([0, 7], size=32)
        >>> volumes.shape, float(volumes.max())
        (torch.Size([2, 32, 32, 32]), 1.0)
    """
    wanted = _checked(nodules, size)
    path = cache_folder() / f"contours-{size}-{FORMAT}-{_tables_digest()[:16]}.npz"
    drawn = _kept(path)
    if drawn is None and len(wanted) > FEW:
        drawn = draw(range(NUM_NODULES), size, progress)
        _keep(path, drawn)
    drawn = draw(wanted, size, progress) if drawn is None else drawn.rows(wanted)
    shares = np.zeros((len(wanted), size**3), np.float16)
    readers = np.repeat(nodule_table()["readers"].to_numpy()[wanted], drawn.counts)
    shares[np.repeat(np.arange(len(wanted)), drawn.counts), drawn.voxels] = drawn.votes / readers
    return torch.from_numpy(shares.reshape(-1, size, size, size))


def _checked(nodules: int | ArrayLike, size: int) -> list[int]:
    wanted = np.atleast_1d(np.asarray(nodules))
    if (
        wanted.ndim != 1
        or not np.issubdtype(wanted.dtype, np.integer)
        or (wanted.size and not 0 <= wanted.min() <= wanted.max() < NUM_NODULES)
    ):
        raise ValueError(
            f"Expected numbers of nodules, 0 to {NUM_NODULES - 1}, but got {nodules!r}: take "
            "the column `nodule` of `nodules()`."
        )
    checked_int(size, "size", 1, 512, "voxels; the paper takes 64")
    return wanted.tolist()


@cache
def _tables_digest() -> str:
    return hashlib.sha256(b"".join((DATA / name).read_bytes() for name in TABLES)).hexdigest()


def _kept(path: Path) -> VoxelVotes | None:
    """Return the result of an earlier call, or None if there is none or it is damaged."""
    try:
        file = open_npz(path)
        return VoxelVotes(*(file.read(name) for name in ("counts", "voxels", "votes")))
    except (FileNotFoundError, ValueError, KeyError):
        return None


def _keep(path: Path, drawn: VoxelVotes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            np.savez_compressed(file, allow_pickle=False, **vars(drawn))
    except OSError as error:
        warnings.warn(
            f"The contour volumes could not be kept ({error}): set RIGHTLOSS_CACHE to a folder to write to.", stacklevel=3
        )


@dataclass(frozen=True)
class VoxelVotes:
    """The voxels of some nodules that at least one reader drew inside, with their votes, in sparse form.

    Attributes:
        counts: such voxels of each nodule.
        voxels: their places in the flattened box, nodule by nodule.
        votes: readers who drew each inside.
    """

    counts: Int32[np.ndarray, " n"]
    voxels: Int32[np.ndarray, " v"]
    votes: UInt8[np.ndarray, " v"]

    def rows(self, wanted: Sequence[int]) -> VoxelVotes:
        """Return the voxels of these nodules, in this order."""
        counts = self.counts[list(wanted)]
        starts = (np.cumsum(self.counts) - self.counts)[list(wanted)]
        places = np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        return VoxelVotes(counts, self.voxels[places], self.votes[places])


def draw(nodules: Sequence[int], size: int, progress: Progress | None = None) -> VoxelVotes:
    """Compute the voxels of these nodules; `progress` is called with (done, total) after each."""
    voxels, votes = [np.zeros(0, np.int32)], [np.zeros(0, np.uint8)]
    for row, nodule in enumerate(nodules):
        flat = contour_votes(nodule, size).ravel()
        voxels.append(np.flatnonzero(flat).astype(np.int32))
        votes.append(flat[voxels[-1]])
        if progress is not None:
            progress(row + 1, len(nodules))
    counts = np.array([len(part) for part in voxels[1:]], np.int32)
    return VoxelVotes(counts, np.concatenate(voxels), np.concatenate(votes))


def contour_votes(nodule: int, size: int = 64) -> UInt8[np.ndarray, "d h w"]:
    """Compute how many readers drew each voxel of one nodule inside."""
    frame, outlines = nodule_table().iloc[nodule], shipped_outlines()
    slice_z = outlines.slice_z_of(int(np.searchsorted(scan_table()["scan"], frame["scan"]))).astype(np.float64)
    offsets = np.arange(size) - (size - 1) / 2
    slices = _nearest_slices(frame["z"] + offsets, slice_z)
    rows, columns = (np.rint(frame[name] + offsets / frame["pixel_spacing"]).astype(np.int64) for name in ("y", "x"))
    votes = np.zeros((size, size, size), np.uint8)
    for reading in _readings_of()[nodule]:
        _add(votes, mask_of(outlines.outlines_of(reading)), (slices, rows, columns))
    return votes


def _add(votes: np.ndarray, mask: Mask, places: Sequence[np.ndarray]) -> None:
    """Add a vote to each voxel whose nearest pixel, by slice, row and column, is in the mask."""
    pixels = [place - first for place, first in zip(places, mask.first, strict=True)]
    within = [(0 <= pixel) & (pixel < length) for pixel, length in zip(pixels, mask.inside.shape, strict=True)]
    votes[np.ix_(*within)] += mask.inside[np.ix_(*(pixel[own] for pixel, own in zip(pixels, within, strict=True)))]


def _nearest_slices(z: Float64[np.ndarray, " n"], slice_z: Float64[np.ndarray, " s"]) -> np.ndarray:
    """Return the number of the nearest slice; −1 below and the number of slices above the scan."""
    middles = (slice_z[1:] + slice_z[:-1]) / 2
    ends = 1.5 * slice_z[[0, -1]] - 0.5 * slice_z[[1, -2]]
    return np.searchsorted(np.concatenate([ends[:1], middles, ends[1:]]), z) - 1


@cache
def _readings_of() -> dict[int, list[int]]:
    """Return rows of the table of readings, by nodule."""
    return {int(nodule): rows.tolist() for nodule, rows in reading_table().groupby("nodule").indices.items()}


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


def cache_folder() -> Path:
    """Return `RIGHTLOSS_CACHE` if set, else `rightloss` in the system's cache folder; it need not exist yet."""
    if own := os.environ.get("RIGHTLOSS_CACHE"):
        return Path(own)
    from platformdirs import user_cache_path

    return user_cache_path("rightloss", appauthor=False)
