"""Which readings are of one nodule?

Stage: outlines of all readings of a scan → a group number for each reading.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int

MOST_READERS = 4
SHRINK, SMALLEST = 0.9, 0.1


def group_readings(outlines: Sequence[np.ndarray], tolerance: float) -> Int[np.ndarray, " n"]:
    """Readings whose closest outline points lie within a tolerance, directly or through others, are one nodule.

    Four readers looked at each scan, so the tolerance shrinks by a tenth while a group has more than four readings, until it
    is below 0.1; what is left then are nodules that touch, or a reader who drew one twice.

    Args:
        outlines: for each reading all of its outline points `(p, 3)`: column, row and slice *number*. In these units 2651
            nodules with 771, 488, 481, 897 and 14 times one, two, three, four and more readings come out, the figures that the
            field quotes; in millimetres it would be 769, 491, 481, 896 and 14.
        tolerance: where to start: the slice thickness, taken as a number.

    Returns:
        a group for each reading, numbered from 0 in the order of their first readings.
    """
    from scipy.sparse.csgraph import connected_components

    distances = _closest(outlines, tolerance)
    while True:
        count, groups = connected_components(distances <= tolerance, directed=False)
        tolerance *= SHRINK
        if count == 0 or np.bincount(groups).max() <= MOST_READERS or tolerance < SMALLEST:
            return _by_first(groups)


def _closest(outlines: Sequence[np.ndarray], tolerance: float) -> Float64[np.ndarray, "n n"]:
    """Distances of the closest points; infinite where the boxes around two readings are further apart than the tolerance."""
    from scipy.spatial import cKDTree

    trees = [cKDTree(points) for points in outlines]
    distances = np.full((len(trees), len(trees)), np.inf)
    np.fill_diagonal(distances, 0)
    for i, one in enumerate(trees):
        for j, other in enumerate(trees[:i]):
            apart = np.maximum(np.maximum(one.mins - other.maxes, other.mins - one.maxes), 0)
            if np.linalg.norm(apart) <= tolerance:
                distances[i, j] = distances[j, i] = one.query(other.data)[0].min()
    return distances


def _by_first(groups: np.ndarray) -> Int[np.ndarray, " n"]:
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]
