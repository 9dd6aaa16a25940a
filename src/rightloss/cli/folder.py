"""Whether a folder can take what a study writes, without writing to it.

Stage: path, bytes → nothing, or what stands in the way.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def check_folder(out: Path, needed: int) -> None:
    """Looks at `out`, or at the nearest folder above it that exists; nothing is left there.

    Raises:
        ValueError: a file, or a link that leads nowhere, is in the way.
        OSError: nothing can be written there, or not `needed` bytes.
    """
    place = nearest(out)
    if not place.is_dir():
        what = "a file" if place.exists() else "a link that leads nowhere"
        raise ValueError(f"Expected {out} to be a folder, but {place} is {what}: choose another name.")
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        raise OSError(
            f"Expected a folder that can be written, but {place} cannot ({error.strerror}): choose another."
        ) from None
    free = shutil.disk_usage(place).free
    if free < needed:
        raise OSError(
            f"Expected {size_in_words(needed)} of free space for the results, but {place} has {size_in_words(free)}: "
            "make room, or choose a folder on another disk."
        )


def nearest(out: Path) -> Path:
    """`out`, or whatever above it exists."""
    return next(each for each in (out, *out.absolute().parents) if os.path.lexists(each))


def size_in_words(size: int) -> str:
    """Two digits, and a unit: 64 kB, 3.1 MB, 120 MB, 2.5 GB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            number = size / scale
            return f"{number:.1f} {unit}" if number < 10 else f"{number:.0f} {unit}"
    return f"{size} bytes"
