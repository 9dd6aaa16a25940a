"""Readers' outlines on a grid of 1 mm.

Stage: a nodule's outlines → how many readers drew each voxel inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float64, Int32, UInt8

from .bundled_tables import shipped_outlines
from .outlines import Mask, mask_of
from .readings import nodule_table, reading_table, scan_table


@dataclass(frozen=True)
class Drawn:
    """The voxels of some nodules that anybody drew inside, and by how many: nearly all of a box is empty.

    Attributes:
        counts: such voxels of each nodule.
        voxels: their places in the flattened box, nodule by nodule.
        votes: readers who drew each inside.
    """

    counts: Int32[np.ndarray, " n"]
    voxels: Int32[np.ndarray, " v"]
    votes: UInt8[np.ndarray, " v"]

    def rows(self, wanted: Sequence[int]) -> Drawn:
        """Those of these nodules, in this order."""
        counts = self.counts[list(wanted)]
        starts = (np.cumsum(self.counts) - self.counts)[list(wanted)]
        places = np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        return Drawn(counts, self.voxels[places], self.votes[places])


def draw(nodules: Sequence[int], size: int, progress: Callable[[int, int], Any] | None = None) -> Drawn:
    """What was drawn of these nodules, computed; `progress` is called with (done, total) after each."""
    voxels, votes = [np.zeros(0, np.int32)], [np.zeros(0, np.uint8)]
    for row, nodule in enumerate(nodules):
        flat = contour_votes(nodule, size).ravel()
        voxels.append(np.flatnonzero(flat).astype(np.int32))
        votes.append(flat[voxels[-1]])
        if progress is not None:
            progress(row + 1, len(nodules))
    counts = np.array([len(part) for part in voxels[1:]], np.int32)
    return Drawn(counts, np.concatenate(voxels), np.concatenate(votes))


def contour_votes(nodule: int, size: int = 64) -> UInt8[np.ndarray, "d h w"]:
    """How many readers drew each voxel of one nodule inside, computed."""
    frame = nodule_table().iloc[nodule]
    scan_row = _scan_rows()[int(frame["scan"])]
    slice_z = shipped_outlines().slice_z_of(scan_row).astype(np.float64)
    offsets = np.arange(size) - (size - 1) / 2
    slices = _nearest_slices(frame["z"] + offsets, slice_z)
    rows = np.rint(frame["y"] + offsets / frame["pixel_spacing"]).astype(np.int64)
    columns = np.rint(frame["x"] + offsets / frame["pixel_spacing"]).astype(np.int64)
    votes = np.zeros((size, size, size), np.uint8)
    for reading in _readings_of()[nodule]:
        _add(votes, mask_of(shipped_outlines().outlines_of(reading)), slices, rows, columns)
    return votes


def _add(votes: np.ndarray, mask: Mask, slices: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> None:
    """One vote for each voxel whose nearest pixel is in the mask; only the part of the box that the mask covers is touched."""
    where, which = zip(
        *(
            _overlap(indices, first, extent)
            for indices, first, extent in zip((slices, rows, columns), mask.first, mask.inside.shape, strict=True)
        ),
        strict=True,
    )
    votes[where] += mask.inside[np.ix_(*which)]


def _overlap(indices: np.ndarray, first: int, extent: int) -> tuple[slice, np.ndarray]:
    """The voxels whose pixel lies in the mask, and which pixel of it; the indices ascend."""
    start, stop = np.searchsorted(indices, [first, first + extent])
    return slice(int(start), int(stop)), indices[start:stop] - first


def _nearest_slices(z: Float64[np.ndarray, " n"], slice_z: Float64[np.ndarray, " s"]) -> np.ndarray:
    """Number of the nearest slice; −1 below and the number of slices above the scan."""
    middles = (slice_z[1:] + slice_z[:-1]) / 2
    ends = 1.5 * slice_z[[0, -1]] - 0.5 * slice_z[[1, -2]]
    return np.searchsorted(np.concatenate([ends[:1], middles, ends[1:]]), z) - 1


@cache
def _readings_of() -> dict[int, list[int]]:
    """Rows of the table of readings, by nodule."""
    frame = reading_table()
    return {int(nodule): rows.tolist() for nodule, rows in frame.groupby("nodule").indices.items()}


@cache
def _scan_rows() -> dict[int, int]:
    return {int(scan): row for row, scan in enumerate(scan_table()["scan"])}
