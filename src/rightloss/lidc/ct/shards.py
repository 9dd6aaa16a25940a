"""The patches of one series, in a file of their own until all series are done.

Stage: job (a series' files and its nodules) → part file: patches, and what there is to say of the series.

A part is named after all that it was made from: whatever has changed since (files, table, size, this code) is made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int16, Int64

from ...atomic_files import whole_file
from ..npz import open_npz
from .patches import cut_patch
from .series import read_series

__all__ = ["Part", "PartNotWritten", "make_part", "part_job", "read_part"]

_VERSION = 2  # of what parts hold: raise it when the same files come to give other patches
SPACING = 1.0  # mm


class PartNotWritten(OSError):
    """Not the series' fault: the disk is full, or cannot be written."""


@dataclass(frozen=True, eq=False)
class Part:
    """What `make_part` wrote.

    Attributes:
        nodules: the numbers of those that were cut.
        patches: their cubes, in HU; none where they were not asked for.
        outside: the share of each cube that lies outside the scan.
        skipped: why the others were not, by number.
        notes: about the series, and by number about a nodule that was cut all the same.
    """

    nodules: Int64[np.ndarray, " m"]
    patches: Int16[np.ndarray, "_ d h w"]
    outside: Float64[np.ndarray, " m"]
    skipped: dict[int, str]
    notes: tuple[tuple[int | None, str], ...]


def part_job(
    folder: Path,
    root: Path,
    files: Sequence[Path],
    nodules: Mapping[int, tuple[float, float, float, float]],
    size: int,
    expected: Any = None,
) -> dict[str, Any]:
    """What `make_part` is to do, as JSON can hold it.

    Args:
        folder: where parts go.
        root: what the files lie below. How it is spelt, and where it has been moved to, makes no difference to the part.
        files: of the series.
        nodules: centres (x, y, z) and diameters by number, see `cut_patch`.
        size: voxels along each axis.
        expected: z of all slices that the series should have, if known.
    """
    job = {
        "nodules": [[number, *map(float, centre)] for number, centre in nodules.items()],
        "size": size,
        "expected": None if expected is None else [float(z) for z in expected],
    }
    states = [(str(path.relative_to(root)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    key = hashlib.sha256(json.dumps([_VERSION, job, states]).encode()).hexdigest()[:32]
    return {**job, "files": [str(path) for path in files], "part": str(folder / f"{key}.npz")}


def make_part(job: Mapping[str, Any]) -> None:
    """Reads the series, cuts its nodules and writes the part, whole. ValueError and OSError as `read_series` raises them."""
    series, size = read_series(job["files"], job["expected"]), job["size"]
    notes: list[tuple[int | None, str]] = [(None, problem) for problem in series.problems]
    cut, skipped = {}, {}
    for number, x, y, z, diameter in job["nodules"]:
        try:
            cut[number] = cut_patch(series, x, y, z, size, SPACING, diameter)
        except ValueError as error:
            skipped[number] = str(error)
        else:
            notes += [(number, problem) for problem in cut[number].problems]
    cubes = np.array([patch.hu for patch in cut.values()], np.int16).reshape(len(cut), size, size, size)
    arrays: dict[str, Any] = {
        "nodules": np.array(list(cut), np.int64),
        "patches": cubes,
        "outside": np.array([patch.outside for patch in cut.values()], np.float64),
        "report": np.array(json.dumps([list(skipped.items()), notes])),
    }
    try:
        with whole_file(job["part"]) as file:
            np.savez(file, **arrays)
    except OSError as error:
        raise PartNotWritten(f"{error}: is the disk full?") from error


def read_part(path: str | os.PathLike[str], patches: bool = True) -> Part:
    """A part, its checksums compared; without its patches on request. ValueError where it is damaged."""
    file = open_npz(path)
    skipped, notes = json.loads(str(file.read("report")))
    return Part(
        nodules=file.read("nodules"),
        patches=file.read("patches") if patches else np.empty((0, 0, 0, 0), np.int16),
        outside=file.read("outside"),
        skipped={number: reason for number, reason in skipped},
        notes=tuple((number, text) for number, text in notes),
    )
