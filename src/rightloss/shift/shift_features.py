"""Prepare labelled and unlabelled rows for the shift test: features, votes and folds of all rows.

Stage: `x`, `y`, `unlabelled`, `groups` → `Streams`, on which `unlabelled_shift_test` learns to distinguish the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri

from ..arrays import Numbers, array_of
from ..prevalence import mix_of_every_class

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

_MOST_COLUMNS = 50  # with more columns, their leading principal components are used
_MOST_IN_PAIRS = 20  # the same for products of two columns
_SORTED_BY = 32  # columns by which rows are put in order
_PER_PART = 4  # rows of a class per part, if possible
MEANS, SPREADS, PAIRS = "means", "spreads", "pairs"


@dataclass(frozen=True)
class Streams:
    """All rows, the labelled and the unlabelled, as numbers.

    Attributes:
        features: standardised `(rows, q)`: normal scores, their squares, products of two of them.
        kinds: the kind of each feature (q,).
        votes: a row's votes for each class, and 1 in the last column for unlabelled rows `(rows, K + 1)`.
        groups: the number of each row's group; its own where rows are independent.
        part: the part of each row; all rows of a group are in one part.
        parts: the number of parts.
    """

    features: np.ndarray
    kinds: np.ndarray
    votes: Float64[np.ndarray, "rows streams"]
    groups: Int64[np.ndarray, " rows"]
    part: Int64[np.ndarray, " rows"]
    parts: int


def streams_of(
    x: Any, y: Numbers, unlabelled: Any, num_classes: int | None, groups: Any, folds: int, generator: np.random.Generator
) -> Streams:
    """Check all input, sort the rows, and split them into random parts.

    With the same generator the result does not depend on the order of the given rows.
    """
    labelled, others = _rows(x, "x"), _rows(unlabelled, "unlabelled")
    _require_equal_columns(x, labelled, unlabelled, others)
    if num_classes is None:
        num_classes = _count_classes(y)
    votes = _votes(y, len(labelled), num_classes)
    kept = votes.sum(1) > 0
    labels = _group_labels(groups, len(labelled), len(others))
    rows = np.concatenate([labelled, others])
    streams = np.zeros((len(rows), num_classes + 1))
    streams[: len(labelled), :-1], streams[len(labelled) :, -1] = votes, 1
    order = _sorting(rows, streams)
    order = order[np.concatenate([kept, np.ones(len(others), dtype=bool)])[order]]
    rows, streams, labels = rows[order], streams[order], _numbered(labels[order])
    parts = int(np.clip(streams.sum(0).min() // _PER_PART, 2, folds))
    part = _parts(streams, labels, parts, generator)
    return Streams(*_features(rows, generator), streams, labels, part, parts)


def _rows(values: Any, name: str) -> Float64[np.ndarray, "n d"]:
    """Return features as a table, images flattened."""
    table = array_of(values, name).astype(np.float64, copy=False)
    if table.ndim < 2 or 0 in table.shape:
        remedy = "write one column as `x[:, None]`" if table.ndim == 1 else "is the data set empty?"
        raise ValueError(f"Expected `{name}` to be features, a row per example, but got shape {table.shape}: {remedy}.")
    return table.reshape(len(table), -1)


def _require_equal_columns(x: Any, labelled: np.ndarray, unlabelled: Any, others: np.ndarray) -> None:
    names = [list(getattr(each, "columns", [])) for each in (x, unlabelled)]
    if labelled.shape[1] != others.shape[1]:
        raise ValueError(
            f"Expected `unlabelled` to have the {labelled.shape[1]} columns of `x`, but got {others.shape[1]}: "
            "take both from the same source, without the label."
        )
    if names[0] and names[1] and names[0] != names[1]:
        raise ValueError(
            f"Expected `unlabelled` to have the columns of `x` in their order, but got {names[1][:10]} for {names[0][:10]}: "
            "write `unlabelled[x.columns]`."
        )


def _count_classes(y: Numbers) -> int:
    labels = array_of(y, "labels")
    if labels.dtype.kind == "f" and labels.ndim == 2:
        return labels.shape[1]
    return max(2, int(labels.max(initial=0)) + 1)


def _votes(y: Numbers, rows: int, num_classes: int) -> Float64[np.ndarray, "n k"]:
    """Return one-hot labels or soft votes, with zeros for rows labelled −100."""
    labels = array_of(y, "labels")
    labels = labels.astype(np.int64) if labels.dtype == bool and num_classes == 2 else labels
    remedy = "p(x|y) of such a class cannot be tested; label some, or drop the class"
    mix_of_every_class(labels, num_classes, ignore_index=-100, remedy=remedy)
    if len(labels) != rows or (labels.ndim != 1 and labels.dtype.kind != "f"):
        raise ValueError(
            f"Expected one label per row of `x`, {rows}, but got shape {labels.shape}: "
            "were some rows dropped from one of the two?"
        )
    if labels.dtype.kind == "f":
        votes = labels.astype(np.float64)
        return votes / votes.sum(1, keepdims=True)
    return (labels[:, None] == np.arange(num_classes)).astype(np.float64)


def _group_labels(groups: Any, labelled: int, others: int) -> np.ndarray:
    """Return a number per row, equal within a group: of the labelled rows, then of the others."""
    if groups is None:
        return np.arange(labelled + others)
    if not isinstance(groups, tuple | list) or len(groups) != 2:
        raise ValueError(
            f"Expected `groups` to be a pair, of the labelled and of the unlabelled rows, but got {type(groups).__name__}: "
            "write (patients, patients_of_unlabelled), or None instead of one if its rows are independent."
        )
    keys: list[Any] = []
    for each, rows in zip(groups, (labelled, others), strict=True):
        names = [(len(keys), row) for row in range(rows)] if each is None else np.asarray(each).tolist()
        if len(names) != rows:
            raise ValueError(
                f"Expected one group per row, {rows}, but got {len(names)}: were some rows dropped from one of the two?"
            )
        keys += names
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys])


def _sorting(rows: np.ndarray, streams: np.ndarray) -> np.ndarray:
    """Return the sorted order of the rows: by stream, by their first columns, and for ties by the mean of all columns."""
    with np.errstate(invalid="ignore"):
        last = np.nan_to_num(rows).mean(1)
    return np.lexsort([last, *rows.T[:_SORTED_BY][::-1], *streams.T])


def _numbered(labels: np.ndarray) -> Int64[np.ndarray, " rows"]:
    """Return the groups numbered in the order in which they appear."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return first.argsort().argsort()[inverse].astype(np.int64)


def _parts(streams: np.ndarray, groups: np.ndarray, parts: int, generator: np.random.Generator) -> Int64[np.ndarray, " rows"]:
    """Assign the groups to parts at random, separately for each class and for the unlabelled rows."""
    totals = np.zeros((groups.max() + 1, streams.shape[1]))
    np.add.at(totals, groups, streams)
    main, part = totals.argmax(1), np.zeros(len(totals), dtype=np.int64)
    for stream in range(streams.shape[1]):
        own = np.flatnonzero(main == stream)
        part[generator.permutation(own)] = np.arange(len(own)) % parts
    return part[groups]


def _features(rows: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the features without constant ones, and the kind of each."""
    scores = normal_scores(_imputed(rows))
    scores = scores[:, scores.std(0) > 0]
    if scores.shape[1] == 0:
        raise ValueError(
            "Expected a column of `x` and `unlabelled` that varies, but got only constant ones: pass features that vary."
        )
    scores = _components(scores, _MOST_COLUMNS, generator)
    few = _components(scores, _MOST_IN_PAIRS, generator)
    first, second = np.triu_indices(few.shape[1], 1)
    blocks = [scores, scores**2, few[:, first] * few[:, second]]
    kinds = np.repeat([MEANS, SPREADS, PAIRS], [block.shape[1] for block in blocks])
    centred = np.concatenate(blocks, 1)
    centred -= centred.mean(0)
    spread = centred.std(0)
    kept = spread > math.sqrt(np.finfo(np.float64).eps)
    return centred[:, kept] / spread[kept], kinds[kept]


def _imputed(rows: np.ndarray) -> np.ndarray:
    """Replace NaN by the mean of the column's finite values, and by 0 in a column without any."""
    missing = np.isnan(rows)
    if not missing.any():
        return rows
    finite = np.isfinite(rows)
    means = np.where(finite, rows, 0).sum(0) / finite.sum(0).clip(1)
    return np.where(missing, means, rows)


def normal_scores(table: Float64[np.ndarray, "n d"]) -> Float64[np.ndarray, "n d"]:
    """Return Φ⁻¹(rank/n) of each column, with the middle rank for ties; monotone changes of a column have no effect."""
    from scipy.stats import rankdata  # 0.3 s, which other functions need not wait for

    scores = ndtri((rankdata(table, axis=0) - 0.5) / len(table))
    return scores - scores.mean(0)


def _components(table: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """Return normal scores of the leading principal components, if there are more columns than `count`.

    By a randomised singular value decomposition (Halko et al. 2011).
    """
    if table.shape[1] <= count:
        return table
    found = table @ generator.standard_normal((table.shape[1], min(count + 10, table.shape[1])))
    for _ in range(3):
        found = table @ (table.T @ np.linalg.qr(found)[0])
    directions = np.linalg.svd(np.linalg.qr(found)[0].T @ table, full_matrices=False)[2][:count]
    return normal_scores(table @ directions.T)
