"""Find the DICOM files below a folder, by CT series.

Stage: folder → `Found`: series UID → files.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from .slices import printable, require, series_uid_of

__all__ = ["Found", "find_series"]


@dataclass(frozen=True)
class Found:
    """The files that `find_series` found below a folder.

    Attributes:
        series: the files of each wanted series, by its UID; sorted by path.
        others: number of DICOM files of other series.
        foreign: number of files that are not DICOM images, or have a damaged header.
        unreadable: files and folders that could not be opened, and why.

    Examples:
        >>> from rightloss.lidc.ct import Found
        >>> Found(series={}, others=0, foreign=1, unreadable=()).foreign
        1
    """

    series: dict[str, tuple[Path, ...]]
    others: int
    foreign: int
    unreadable: tuple[str, ...]


def find_series(folder: str | os.PathLike[str], wanted: Collection[str] | None = None) -> Found:
    """Return the DICOM files anywhere below a folder, by series. Only the first kilobytes of each file are read.

    Names do not matter. Links are followed, each folder is searched once, files that are not DICOM images are skipped.

    Args:
        folder: the folder to search.
        wanted: the UIDs of the series to keep; all by default.

    Examples:
        >>> import tempfile
        >>> from rightloss.lidc.ct import find_series
        >>> find_series(tempfile.mkdtemp()).series
        {}
    """
    require("pydicom")
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"Expected a folder of DICOM files, but {folder} is none: is the path right?")
    keep = None if wanted is None else frozenset(wanted)
    series: dict[str, list[Path]] = {}
    counts = Counter[str]()
    unreadable: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydicom's warnings about values that violate the standard
        for path in _files(folder, unreadable):
            try:
                uid = series_uid_of(path)
            except OSError as error:
                unreadable.append(printable(error))
                continue
            if uid is None:
                counts["foreign"] += 1
            elif keep is not None and uid not in keep:
                counts["others"] += 1
            else:
                series.setdefault(uid, []).append(Path(path))
    found = {uid: tuple(sorted(series[uid])) for uid in sorted(series)}
    return Found(found, counts["others"], counts["foreign"], tuple(unreadable))


def _files(folder: Path, unreadable: list[str]) -> Iterator[str]:
    """Yield the regular files below `folder`, once each; a pipe would never end, and links may form a cycle."""
    todo, seen = [str(folder)], set[tuple[int, int]]()
    while todo:
        here = todo.pop()
        try:
            status = os.stat(here)
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(here) as entries:
                for entry in entries:
                    try:
                        is_folder, is_file = entry.is_dir(), entry.is_file()
                    except OSError as error:  # such as a link to itself; continue with the others
                        unreadable.append(printable(error))
                        continue
                    if is_folder:
                        todo.append(entry.path)
                    elif is_file:
                        yield entry.path
        except OSError as error:
            unreadable.append(printable(error))
