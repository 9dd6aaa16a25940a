"""Check training rows in scikit-learn's form: features, class labels or votes, and weights.

Stage: `X, y, sample_weight` as given → `LabelledRows`: float features, class numbers or votes, positive weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, validate_data


@dataclass(frozen=True)
class LabelledRows:
    """Rows with positive weight, with labels as indices into `classes`.

    Attributes:
        features: X (n, d).
        classes: the K class labels, sorted.
        index: class numbers (n,); None for soft labels.
        votes: soft labels (n, K), rows that sum to 1; None for class numbers.
        weight: sample weights (n,), all positive; None if all are 1.
    """

    features: np.ndarray
    classes: np.ndarray
    index: np.ndarray | None
    votes: np.ndarray | None
    weight: np.ndarray | None

    @property
    def total(self) -> float:
        """The sum of the weights; the number of rows if none are given."""
        return float(len(self.features)) if self.weight is None else float(self.weight.sum())

    def class_totals(self) -> np.ndarray:
        """Return the weight of each class (K,)."""
        if self.index is not None:
            return np.bincount(self.index, self.weight, len(self.classes)).astype(np.float64)
        assert self.votes is not None
        totals: np.ndarray = self.votes.sum(0) if self.weight is None else self.weight @ self.votes
        return totals

    def table(self, class_weight: np.ndarray | None = None) -> np.ndarray:
        """Return each row's weight by class (n, K): its label or votes, times its weight, times that of the class."""
        if self.votes is not None:
            table = self.votes.copy()
        else:
            assert self.index is not None
            table = np.zeros((len(self.index), len(self.classes)))
            table[np.arange(len(self.index)), self.index] = 1.0
        table = table if self.weight is None else table * self.weight[:, None]
        return table if class_weight is None else table * class_weight

    def take(self, rows: np.ndarray) -> LabelledRows:
        """Return some of the rows."""
        parts = {name: getattr(self, name) for name in ("features", "index", "votes", "weight")}
        taken: dict[str, Any] = {name: None if part is None else part[rows] for name, part in parts.items()}
        return replace(self, **taken)


def read_rows(
    estimator: BaseEstimator,
    X: Any,
    y: Any,
    sample_weight: ArrayLike | None,
    dtype: Any = np.float64,
    classes: np.ndarray | None = None,
) -> LabelledRows:
    """Return checked rows without those of weight 0.

    Args:
        estimator: its `n_features_in_` and `feature_names_in_` are set.
        X: features (n, d): array, or DataFrame.
        y: labels (n,), or votes (n, K) as floats; the columns of a DataFrame of votes name the classes.
        sample_weight: (n,), ≥ 0: a weight of 2 is the same as the row twice.
        dtype: the dtype of the features.
        classes: all possible classes, sorted, if `y` lacks some.
    """
    soft = _are_votes(y)
    names = getattr(y, "columns", None) if soft else None
    given = np.asarray(y, dtype=np.float64) if soft else y
    features, labels = validate_data(estimator, X, given, dtype=dtype, multi_output=soft)
    weight = None
    if sample_weight is not None:
        weight = _check_sample_weight(sample_weight, features, dtype=np.float64, ensure_non_negative=True)
        check_consistent_length(features, weight)
    if soft:
        rows = _soft_rows(features, labels, names, weight)
    else:
        check_classification_targets(labels)
        known = classes if classes is not None else np.unique(labels if weight is None else labels[weight > 0])
        index = np.searchsorted(known, labels).clip(0, len(known) - 1)  # rows of weight 0 may have other labels
        rows = LabelledRows(features, known, index, None, weight)
    if weight is not None and not weight.all():
        rows = rows.take(np.flatnonzero(weight))
    if len(rows.classes) < 2:
        raise ValueError(
            f"Expected at least 2 classes in `y`, but got {len(rows.classes)} class: a classifier needs rows of both; "
            "are the weights of one class all 0?"
        )
    return rows


def _are_votes(y: Any) -> bool:
    """Return whether `y` is votes: a column of floats per class."""
    try:
        array = np.asarray(y)
    except ValueError:  # ragged lists: validate_data raises an error for them
        return False
    return array.ndim == 2 and array.shape[1] >= 2 and array.dtype.kind == "f"


def _soft_rows(features: np.ndarray, votes: np.ndarray, names: Any, weight: np.ndarray | None) -> LabelledRows:
    sums = votes.sum(1)
    wrong = (np.abs(sums - 1) > 1e-3) | (votes < 0).any(1)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"Expected soft labels to be non-negative with rows that sum to 1, but row {row} of `y` is "
            f"{votes[row, :10].round(4).tolist()}: divide counts of votes by their row sums."
        )
    votes = votes / sums[:, None]
    classes = np.arange(votes.shape[1]) if names is None else np.asarray(list(names))
    order = np.argsort(classes, kind="stable")
    never = classes[(votes if weight is None else votes[weight > 0]).sum(0) == 0].tolist()
    if never:
        raise ValueError(f"Expected a vote for every class in `y`, but got none for {never}: drop the column.")
    return LabelledRows(features, classes[order], None, np.ascontiguousarray(votes[:, order]), weight)
