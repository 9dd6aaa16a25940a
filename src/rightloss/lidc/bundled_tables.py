"""The bundled tables in their stored form.

Stage: arrays ⇄ `data/readings.csv`, `data/scans.csv`, `data/outlines.npz`.

Nothing is compressed, so that equal tables are equal bytes with any library. An outline is its first pixel and one byte for
each step to the next: the high half is the step in x plus 8, the low half the step in y plus 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int, Int16, UInt8

from .outlines import Outline, Points

DATA = Path(__file__).parent / "data"
READINGS, SCANS, OUTLINES = "readings.csv", "scans.csv", "outlines.npz"


@dataclass(frozen=True)
class OutlineTable:
    """All outlines, reading by reading, and the positions of all slices, scan by scan.

    Attributes:
        reading_ends: the end of the outlines of each reading; they start at the end of the previous reading.
        slice_index, inclusion, first: of each outline (see `Outline`); `first` is the pixel (x, y) that it starts from.
        step_ends: where the steps of each outline end.
        steps: the encoded steps.
        scan_ends: where the slices of each scan end.
        slice_z: positions in mm, ascending within a scan.
    """

    reading_ends: Int[np.ndarray, " r"]
    slice_index: Int16[np.ndarray, " c"]
    inclusion: UInt8[np.ndarray, " c"]
    first: Int16[np.ndarray, "c 2"]
    step_ends: Int[np.ndarray, " c"]
    steps: UInt8[np.ndarray, " s"]
    scan_ends: Int[np.ndarray, " scans"]
    slice_z: Float32[np.ndarray, " z"]

    def outlines_of(self, reading: int) -> list[Outline]:
        """Return the outlines of the reading in that row of the table."""
        return [self._outline(c) for c in range(_start(self.reading_ends, reading), int(self.reading_ends[reading]))]

    def slice_z_of(self, scan: int) -> Float32[np.ndarray, " slices"]:
        """Return the positions of the slices of the scan in that row of its table."""
        return self.slice_z[_start(self.scan_ends, scan) : self.scan_ends[scan]]

    def _outline(self, c: int) -> Outline:
        steps = self.steps[_start(self.step_ends, c) : self.step_ends[c]]
        moves = np.stack([steps >> 4, steps & 15], 1).astype(np.int64) - 8
        points = np.concatenate([np.zeros((1, 2), np.int64), moves.cumsum(0)]) + self.first[c]
        return Outline(points, int(self.slice_index[c]), bool(self.inclusion[c]))


def encode_steps(points: Points) -> UInt8[np.ndarray, " s"]:
    """Return the steps of an outline from its first pixel on, a byte each."""
    moves = np.diff(points, axis=0) + 8
    if moves.size and not (moves.min() >= 0 and moves.max() < 16):
        raise ValueError(f"Expected steps of at most 7 pixels, but got one of {np.abs(moves - 8).max()}: split the outline.")
    return (moves[:, 0] * 16 + moves[:, 1]).astype(np.uint8)


def outline_table(readings: Sequence[Sequence[Outline]], slice_z: Sequence[np.ndarray]) -> OutlineTable:
    """Return the table of all readings' outlines and all scans' slices."""
    outlines = [outline for reading in readings for outline in reading]
    steps = [encode_steps(outline.points) for outline in outlines]
    return OutlineTable(
        reading_ends=_ends(readings),
        slice_index=np.array([outline.slice_index for outline in outlines], np.int16),
        inclusion=np.array([outline.inclusion for outline in outlines], np.uint8),
        first=np.array([outline.points[0] for outline in outlines], np.int16),
        step_ends=_ends(steps),
        steps=np.concatenate(steps),
        scan_ends=_ends(slice_z),
        slice_z=np.concatenate(slice_z).astype(np.float32),
    )


@cache
def shipped_outlines() -> OutlineTable:
    """Read `data/outlines.npz`, once."""
    with np.load(DATA / OUTLINES, allow_pickle=False) as file:
        return OutlineTable(**{name: file[name] for name in file.files})


def _ends(parts: Sequence[Sequence[object] | np.ndarray]) -> Int[np.ndarray, " n"]:
    return np.cumsum([len(part) for part in parts]).astype(np.int32)


def _start(ends: np.ndarray, row: int) -> int:
    return int(ends[row - 1]) if row else 0
