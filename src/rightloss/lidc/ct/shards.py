"""Shards: files with the patches of one series each, and their combination into one archive.

Stage: `ShardJob` (a series' files and its nodules) → shard: patches, and notes on the series; table, shards → nodule archive.

The name of a shard is a hash of its inputs: if anything changes (files, table, size, this code), a new one is made.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64, Int16, Int64
from numpy.typing import NDArray

from ...atomic_files import whole_file, write_whole
from ..archive import write_archive
from ..npz import open_npz
from .series import cut_patch, read_series

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Shard", "ShardJob", "ShardNotWritten", "delete_shards", "make_shard"]
__all__ += ["nodules_written", "read_shard", "shard_job", "write_patches"]

RATINGS = [f"rating_{rating}" for rating in range(1, 6)]
NAMES = ("nodule", "patient_id", "series_uid")

_VERSION = 2  # version of the content of shards: increase it when the same files give other patches
_NOTE = "written.json"
_OWN = ("[0-9a-f]" * 32 + ".npz", "patches.npy", "archive.npz", _NOTE, ".saving-*.partial")
_SPACING = 1.0  # mm


class ShardNotWritten(OSError):
    """Raised when the disk is full or not writable, which is not an error of the series."""


@dataclass(frozen=True)
class ShardJob:
    """The input of `make_shard`, made by `shard_job`.

    Attributes:
        files: of the series.
        nodules: number, x, y, z and diameter of each, see `cut_patch`.
        size: voxels along each axis.
        expected: z of all slices that the series should have, if known.
        path: the shard.
    """

    files: tuple[Path, ...]
    nodules: tuple[tuple[int, float, float, float, float], ...]
    size: int
    expected: tuple[float, ...] | None
    path: Path


@dataclass(frozen=True, eq=False)
class Shard:
    """The content of a file that `make_shard` wrote.

    Attributes:
        nodules: numbers of the nodules that were cut.
        patches: their cubes, in HU; none if they were not requested.
        outside: the fraction of each cube outside the scan.
        skipped: why the others were not cut, by number.
        notes: on the series (None), or on a nodule that was cut, by number.
    """

    nodules: Int64[np.ndarray, " m"]
    patches: Int16[np.ndarray, "_ d h w"]
    outside: Float64[np.ndarray, " m"]
    skipped: dict[int, str]
    notes: tuple[tuple[int | None, str], ...]


def shard_job(
    folder: Path,
    root: Path,
    files: Sequence[Path],
    table: DataFrame,
    size: int,
    expected: Sequence[float] | NDArray[np.floating] | None = None,
) -> ShardJob:
    """Return the job for one series.

    Args:
        folder: of the shards.
        root: the folder of the files. The shard does not depend on its path.
        files: of the series.
        table: the rows of its nodules; without `diameter_mm`, diameters are 0.
        size: voxels along each axis.
        expected: z of all slices that the series should have, if known.
    """
    diameters = table["diameter_mm"] if "diameter_mm" in table else [0.0] * len(table)
    columns = (map(float, column) for column in (table["x"], table["y"], table["z"], diameters))
    rows = tuple(zip(map(int, table["nodule"]), *columns, strict=True))
    slices = None if expected is None else tuple(float(z) for z in expected)
    states = [(str(path.relative_to(root)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    content = [_VERSION, {"nodules": rows, "size": size, "expected": slices}, states]
    key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]
    return ShardJob(tuple(files), rows, size, slices, folder / f"{key}.npz")


def make_shard(job: ShardJob) -> None:
    """Read the series, cut its nodules and write the shard. ValueError and OSError as in `read_series`."""
    series = read_series(job.files, job.expected)
    notes: list[tuple[int | None, str]] = [(None, problem) for problem in series.problems]
    cut, skipped = {}, {}
    for number, x, y, z, diameter in job.nodules:
        try:
            cut[number] = cut_patch(series, x, y, z, job.size, _SPACING, diameter)
        except ValueError as error:
            skipped[number] = str(error)
        else:
            notes += [(number, problem) for problem in cut[number].problems]
    arrays: dict[str, Any] = {
        "nodules": np.array(list(cut), np.int64),
        "patches": np.array([patch.hu for patch in cut.values()], np.int16).reshape(len(cut), *[job.size] * 3),
        "outside": np.array([patch.outside for patch in cut.values()], np.float64),
        "report": np.array(json.dumps([list(skipped.items()), notes])),
    }
    try:
        with whole_file(job.path) as file:
            np.savez(file, **arrays)
    except OSError as error:
        raise ShardNotWritten(f"{error}: is the disk full?") from error


def read_shard(path: str | os.PathLike[str], patches: bool = True) -> Shard:
    """Return a shard with verified checksums, without its patches on request; raise a ValueError if it is damaged."""
    file = open_npz(path)
    skipped, notes = json.loads(str(file.read("report")))
    return Shard(
        nodules=file.read("nodules"),
        patches=file.read("patches") if patches else np.empty((0, 0, 0, 0), np.int16),
        outside=file.read("outside"),
        skipped={number: reason for number, reason in skipped},
        notes=tuple((number, text) for number, text in notes),
    )


def numeric_columns(table: DataFrame) -> dict[str, NDArray[np.generic]]:
    """Return all columns of numbers but the names of nodules, patients and series."""
    return {name: table[name].to_numpy() for name in table.select_dtypes(["number", "bool"]).columns if name not in NAMES}


def write_patches(target: Path, table: DataFrame, shards: Mapping[Path, Shard], folder: Path, size: int) -> None:
    """Write the patches of all shards, in the table's order, to the archive `target`.

    They go through a memory-mapped file in `folder`, so that no more than one shard is in memory.
    """
    outside = {int(n): share for shard in shards.values() for n, share in zip(shard.nodules, shard.outside, strict=True)}
    rows = table[table["nodule"].isin(outside.keys())]
    place = {int(number): k for k, number in enumerate(rows["nodule"])}
    patches = np.lib.format.open_memmap(folder / "patches.npy", "w+", np.int16, (len(rows), size, size, size))
    for path in shards:
        shard = read_shard(path)
        for number, patch in zip(shard.nodules, shard.patches, strict=True):
            patches[place[int(number)]] = patch
    columns = numeric_columns(rows) | {
        "nodule_id": rows["nodule"].to_numpy(),
        "series_uid": rows["series_uid"].to_numpy(dtype=str),
        "outside": np.array([outside[int(number)] for number in rows["nodule"]]),
    }
    spacing = np.full(len(rows), _SPACING, np.float32)
    whole = folder / "archive.npz"  # in the shards' folder first, which the next run clears after a kill
    write_archive(whole, patches, ratings_by_reader(rows), rows["patient_id"].to_numpy(dtype=str), spacing, columns)
    del patches
    (folder / "patches.npy").unlink()
    write_whole(folder / _NOTE, json.dumps([len(rows), *_state(whole)]))
    os.replace(whole, target)


def delete_shards(folder: Path) -> None:
    """Delete the shards, and what belongs to them; the folder too, unless it has other files."""
    for path in [each for name in _OWN for each in folder.glob(name)]:
        path.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def nodules_written(target: Path, folder: Path) -> int | None:
    """Return the number of nodules in an archive; None unless it was written from these shards and is unchanged."""
    try:
        count, *state = json.loads((folder / _NOTE).read_text())
        return int(count) if state == _state(target) else None
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return None


def _state(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def ratings_by_reader(rows: DataFrame) -> NDArray[np.int8]:
    """Return each nodule's ratings, ascending, a column per reader, from the counts by rating; 0 for none."""
    counts = rows[RATINGS].to_numpy(dtype=int)
    readers = counts.sum(1)
    ratings = np.zeros((len(rows), readers.max()), np.int8)
    ratings[np.arange(readers.max()) < readers[:, None]] = np.repeat(np.tile(np.arange(1, 6), len(rows)), counts.ravel())
    return ratings
