"""Contour volumes: real shapes of nodules, from the readers' outlines alone.

Stage: numbers of nodules → shares of readers, voxel by voxel, cached on disk.
"""

from __future__ import annotations

import hashlib
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float16
from torch import Tensor

from ..atomic_files import whole_file
from .bundled_tables import DATA, OUTLINES, READINGS, SCANS
from .cache import cache_folder
from .npz import open_npz
from .rasterise import Drawn, draw
from .readings import NUM_NODULES, nodule_table

FORMAT = 1  # of the kept file: to be raised when the same outlines would give other volumes
FEW = 100  # nodules that are sooner drawn than all


def contour_volumes(nodules: Any, size: int = 64, progress: Any = None) -> Float16[Tensor, "n d h w"]:
    """For each voxel of 1 mm, the share of the nodule's readers who drew it inside.

    A voxel takes the value of the pixel and slice nearest to its centre, so it is `k/readers` exactly (to the precision of
    float16). An outline's own pixels are outside, and holes are cut out. The axes are z, y, x (ascending position, row,
    column); voxel i lies `i − (size − 1)/2` mm from the nodule's centre, that of `nodules()`. What is larger than the box is
    cut off: at 64³ six nodules reach its sides. One, number 2325, is too small to meet the centre of any voxel.

    Args:
        nodules: numbers of nodules, the column `nodule` of `nodules()`.
        size: voxels along each edge.
        progress: called with (done, total) after each nodule that has to be drawn.

    Returns:
        shares in [0, 1]; 0.5 MB a nodule at 64³. The first call for more than 100 nodules draws all 2651, in a few seconds, and
        keeps them in the folder that `RIGHTLOSS_CACHE` names, or the system's cache folder; later calls read them from there.
    """
    wanted = _checked(nodules, size)
    path = cache_folder() / f"contours-{size}-{FORMAT}-{_tables_digest()[:16]}.npz"
    drawn = _kept(path, size)
    if drawn is None and len(wanted) > FEW:
        drawn = draw(range(NUM_NODULES), size, progress)
        _keep(path, drawn)
    drawn = draw(wanted, size, progress) if drawn is None else drawn.rows(wanted)
    shares = np.zeros((len(wanted), size**3), np.float16)
    readers = np.repeat(nodule_table()["readers"].to_numpy()[wanted], drawn.counts)
    shares[np.repeat(np.arange(len(wanted)), drawn.counts), drawn.voxels] = drawn.votes / readers
    return torch.from_numpy(shares.reshape(-1, size, size, size))


def _checked(nodules: Any, size: int) -> list[int]:
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
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 512:
        raise ValueError(f"Expected `size` to be a whole number of voxels from 1 to 512, but got {size!r}: the paper takes 64.")
    return wanted.tolist()


@cache
def _tables_digest() -> str:
    return hashlib.sha256(b"".join((DATA / name).read_bytes() for name in (OUTLINES, READINGS, SCANS))).hexdigest()


def _kept(path: Path, size: int) -> Drawn | None:
    """What an earlier call drew, or None where there is nothing or it is damaged."""
    try:
        file = open_npz(path)
        counts, voxels, votes = (file.read(name) for name in ("counts", "voxels", "votes"))
    except (FileNotFoundError, ValueError, KeyError):
        return None
    fits = counts.shape == (NUM_NODULES,) and voxels.shape == votes.shape == (counts.sum(),)
    return Drawn(counts, voxels, votes) if fits and 0 <= voxels.min() <= voxels.max() < size**3 else None


def _keep(path: Path, drawn: Drawn) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            np.savez_compressed(file, allow_pickle=False, **vars(drawn))
    except OSError as error:
        warnings.warn(
            f"The contour volumes could not be kept ({error}): set RIGHTLOSS_CACHE to a folder to write to.", stacklevel=3
        )
