"""Choose the rows for the comparison, and the test fold of each.

Stage: class numbers, groups, a seed → row numbers and weights; fold numbers.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64


def stratified_rows(
    codes: Int64[np.ndarray, " n"], most: int, seed: int
) -> tuple[Int64[np.ndarray, " m"], Float64[np.ndarray, " m"]]:
    """Draw at most `most` rows, with equal numbers of each class or all of its rows, and return them with weights.

    A row of class k has the weight n_k/m_k, so that the weighted class frequencies are those of all rows; the mean weight is 1.

    Returns:
        Row numbers, ascending, and weights.
    """
    counts = np.bincount(codes)
    cap = _cap(counts, most)
    rng = np.random.default_rng(seed)
    parts = []
    for k, count in enumerate(counts.tolist()):
        own = np.flatnonzero(codes == k)
        parts.append(own if count <= cap else rng.choice(own, cap, replace=False))
    rows = np.sort(np.concatenate(parts))
    kept = np.bincount(codes[rows], minlength=len(counts))
    weights = (counts / np.maximum(kept, 1))[codes[rows]]
    return rows, weights / weights.mean()


def fold_numbers(
    codes: Int64[np.ndarray, " n"], groups: Int64[np.ndarray, " n"] | None, num_folds: int, seed: int
) -> Int64[np.ndarray, " n"]:
    """Return the test fold of each row; a group is never split, and the classes are spread evenly.

    Groups are sorted by their rarest class, then by size, with ties in random order, and assigned to the folds in turn, in
    alternating directions. Without groups every row is a group.
    """
    names, member = np.unique(np.arange(len(codes)) if groups is None else groups, return_inverse=True)
    frequency = np.bincount(codes)
    rarest = np.full(len(names), len(frequency), dtype=np.int64)
    rank = np.empty(len(frequency), dtype=np.int64)
    rank[np.argsort(frequency, kind="stable")] = np.arange(len(frequency))
    np.minimum.at(rarest, member, rank[codes])
    size = np.bincount(member)
    order = np.lexsort((np.random.default_rng(seed).random(len(names)), -size, rarest))
    turn = np.arange(len(names)) % (2 * num_folds)
    fold = np.empty(len(names), dtype=np.int64)
    fold[order] = np.minimum(turn, 2 * num_folds - 1 - turn)
    return fold[member]


def usable_folds(codes: Int64[np.ndarray, " n"], groups: Int64[np.ndarray, " n"] | None, num_folds: int) -> int:
    """Return the possible number of folds, so that each class is in two of them: at most the groups with rows of a class."""
    names = np.arange(len(codes)) if groups is None else groups
    return min(num_folds, *(len(np.unique(names[codes == k])) for k in np.unique(codes)))


def _cap(counts: np.ndarray, most: int) -> int:
    """Return the largest number of rows per class for which all classes together have at most `most`."""
    low, high = 1, int(counts.max())
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.minimum(counts, middle).sum() <= most else (low, middle - 1)
    return low
