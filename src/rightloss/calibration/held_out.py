"""Labelled predictions of rows that a model was not trained on.

Stage: predictions and labels as given → `HeldOut`: float64 rows, class numbers, weights and groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..arrays import array_of, clusters_of, log_prob_table, rows_of
from ..prevalence import class_frequencies

IGNORED = -100  # the label of rows and cells to ignore


@dataclass(frozen=True)
class HeldOut:
    """Labelled predictions.

    Attributes:
        log_probs: `(n, k)`, float64.
        labels: class numbers `(n,)`.
        groups: numbers of the groups of correlated rows `(n,)`, or None.
        weights: of the rows `(n,)`, or None; 2 is the same as the row twice.
    """

    log_probs: np.ndarray
    labels: np.ndarray
    groups: np.ndarray | None = None
    weights: np.ndarray | None = None

    @property
    def mass(self) -> np.ndarray:
        """The weights (n,), 1 if none are given."""
        return np.ones(len(self.labels)) if self.weights is None else self.weights

    @property
    def counts(self) -> np.ndarray:
        """The number of examples of each class, by weight (K,)."""
        return np.bincount(self.labels, self.mass, self.log_probs.shape[1])

    def take(self, rows: np.ndarray) -> HeldOut:
        """Return some of the rows, by number or as a mask."""
        parts = (None if each is None else each[rows] for each in (self.groups, self.weights))
        return HeldOut(self.log_probs[rows], self.labels[rows], *parts)

    def require_every_class(self) -> None:
        """Raise a ValueError if a class has no held-out example."""
        missing = np.flatnonzero(self.counts == 0).tolist()
        if missing:
            raise ValueError(
                f"Expected held-out examples of every class, but class(es) {missing} have none: add some, or leave the class "
                "out."
            )


def held_out_set(held_out: Any, num_classes: int | None = None, groups: Any = None, weights: Any = None) -> HeldOut:
    """Return checked `(log_probs, labels)`, dense maps with a row per cell, without rows labelled −100 and of weight 0.

    Args:
        held_out: predictions `(n, k)` or dense `(n, k, h, w, …)`, and class numbers `(n,)` or `(n, h, w, …)`.
        num_classes: K, if known.
        groups: ids of rows, or images, that belong together `(n,)`.
        weights: of the rows, or images `(n,)`.
    """
    if not isinstance(held_out, tuple | list) or len(held_out) != 2:
        raise ValueError(
            f"Expected `held_out` to be a pair (log_probs, labels), but got {type(held_out).__name__}: "
            "pass the predictions of the same model on labelled data, and the labels."
        )
    given = array_of(held_out[0], "held_out log_probs")
    table = np.ascontiguousarray(log_prob_table(rows_of(given), num_classes, "held_out log_probs"), np.float64)
    labels = array_of(held_out[1], "held_out labels")
    labels = labels.astype(np.int64) if labels.dtype == bool and table.shape[1] == 2 else labels
    expected = (len(given), *given.shape[2:])
    if labels.shape != expected:
        what = "row" if given.ndim == 2 else "cell"
        raise ValueError(
            f"Expected one held-out label per {what}, {expected}, but got shape {labels.shape}: "
            "were some examples dropped from one of the two? For multi-label data, pass a Prevalence.multilabel as `sampling`."
        )
    class_frequencies(labels, table.shape[1], ignore_index=IGNORED)  # raises for labels that are not class numbers
    index, mass = labels.reshape(-1).astype(np.int64), _row_weights(weights, expected)
    clusters = None if groups is None else clusters_of(groups, given.shape)
    kept = index != IGNORED if mass is None else (index != IGNORED) & (mass > 0)
    if kept.all():
        return HeldOut(table, index, clusters, mass)
    found = HeldOut(table, index, clusters, mass).take(kept)
    return found if clusters is None else replace(found, groups=np.unique(clusters[kept], return_inverse=True)[1])


def _row_weights(weights: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    if weights is None:
        return None
    given = array_of(weights, "weights").astype(np.float64)
    if given.shape not in ((shape[0],), shape) or not (np.isfinite(given) & (given >= 0)).all():
        raise ValueError(
            f"Expected `weights` to be {shape[0]} finite numbers of 0 or more, one per row, but got shape {given.shape}"
            f"{'' if given.shape not in ((shape[0],), shape) else ' with others'}: 2 counts a row twice."
        )
    return np.broadcast_to(given.reshape(*given.shape, *[1] * (len(shape) - given.ndim)), shape).reshape(-1)
