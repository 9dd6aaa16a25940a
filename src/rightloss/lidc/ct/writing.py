"""The archive, put together from parts.

Stage: table, parts → nodule archive (`.npz`), and beside the parts a note by which another run knows it as theirs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...atomic_files import write_whole
from ..archive import write_archive
from .shards import SPACING, Part, read_part
from .tables import RATINGS, numeric_columns

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["nodules_written", "write_patches"]

_NOTE = "written.json"


def write_patches(target: Path, table: DataFrame, made: dict[str, Part], files: dict[str, str], parts: Path, size: int) -> None:
    """The parts' patches in the table's order, by way of a file of all of them, so that no more than a part is in memory."""
    outside = {int(n): share for part in made.values() for n, share in zip(part.nodules, part.outside, strict=True)}
    rows = table[table["nodule"].isin(outside.keys())]
    place = {int(number): k for k, number in enumerate(rows["nodule"])}
    patches = np.lib.format.open_memmap(parts / "patches.npy", "w+", np.int16, (len(rows), size, size, size))
    for path in files.values():
        part = read_part(path)
        for number, patch in zip(part.nodules, part.patches, strict=True):
            patches[place[int(number)]] = patch
    columns = numeric_columns(rows) | {
        "nodule_id": rows["nodule"].to_numpy(),
        "series_uid": rows["series_uid"].to_numpy(dtype=str),
        "outside": np.array([outside[int(number)] for number in rows["nodule"]]),
    }
    spacing = np.full(len(rows), SPACING, np.float32)
    # In the folder of the parts first: what a kill leaves there, the next run clears away.
    whole = parts / "archive.npz"
    write_archive(whole, patches, _ratings(rows), rows["patient_id"].to_numpy(dtype=str), spacing, columns)
    del patches
    (parts / "patches.npy").unlink()
    write_whole(parts / _NOTE, json.dumps([len(rows), *_state(whole)]))
    os.replace(whole, target)


def nodules_written(target: Path, parts: Path) -> int | None:
    """How many nodules an archive has that was written from these parts, and not touched since; None of any other."""
    try:
        count, *state = json.loads((parts / _NOTE).read_text())
        return int(count) if state == _state(target) else None
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return None


def _state(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _ratings(rows: DataFrame) -> NDArray[np.int8]:
    """Each nodule's ratings, ascending, a column per reader, from how many gave each; 0 for none."""
    counts = rows[RATINGS].to_numpy(dtype=int)
    readers = counts.sum(1)
    ratings = np.zeros((len(rows), readers.max()), np.int8)
    ratings[np.arange(readers.max()) < readers[:, None]] = np.repeat(np.tile(np.arange(1, 6), len(rows)), counts.ravel())
    return ratings
