"""Check training rows in scikit-learn's form: features, class labels or votes, weights, and unlabelled rows.

Stage: `X, y, sample_weight` as given → `LabelledRows`; `X_unlabelled` → `UnlabelledFeatures`, checked to go with them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, validate_data

from ..arrays import checked_number
from ..prevalence import Prevalence, PrevalenceWarning, without_estimate
from .population import is_unknown

EVIDENCE = 3.0  # default of ε, chosen in the benchmark of unlabelled rows


@dataclass(frozen=True)
class LabelledRows:
    """Rows with positive weight.

    Attributes:
        features: X (n, d).
        classes: the K class labels, sorted.
        votes: labels by class (n, K), rows that sum to 1.
        weight: sample weights (n,), all positive; None if all are 1.
        hard: whether each row has one label, rather than votes.
    """

    features: np.ndarray
    classes: np.ndarray
    votes: np.ndarray
    weight: np.ndarray | None
    hard: bool

    @property
    def index(self) -> np.ndarray:
        """Class numbers (n,); of votes those of the majority."""
        return self.votes.argmax(1)

    @property
    def total(self) -> float:
        """The sum of the weights; the number of rows if none are given."""
        return float(len(self.features)) if self.weight is None else float(self.weight.sum())

    def class_totals(self) -> np.ndarray:
        """Return the weight of each class (K,)."""
        return self.table().sum(0)

    def table(self, class_weight: np.ndarray | None = None) -> np.ndarray:
        """Return each row's weight by class (n, K): its label or votes, times its weight, times that of the class."""
        table = self.votes if self.weight is None else self.votes * self.weight[:, None]
        return table if class_weight is None else table * class_weight

    def take(self, rows: np.ndarray) -> LabelledRows:
        """Return some of the rows."""
        weight = None if self.weight is None else self.weight[rows]
        return replace(self, features=self.features[rows], votes=self.votes[rows], weight=weight)


@dataclass(frozen=True, eq=False)
class UnlabelledFeatures:
    """Rows of the population.

    Attributes:
        features: X (m, d).
        mass: λ, their weight relative to the labelled rows.
        evidence: ε, people counted by class for each of them.
    """

    features: np.ndarray
    mass: float
    evidence: float = 0.0


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
    features, labels = validate_data(estimator, X, np.asarray(y, np.float64) if soft else y, dtype=dtype, multi_output=soft)
    weight = None
    if sample_weight is not None:
        weight = _check_sample_weight(sample_weight, features, dtype=np.float64, ensure_non_negative=True)
        check_consistent_length(features, weight)
    if soft:
        known, votes = _votes(labels, getattr(y, "columns", None), weight)
    else:
        check_classification_targets(labels)
        known = classes if classes is not None else np.unique(labels if weight is None else labels[weight > 0])
        index = np.searchsorted(known, labels).clip(0, len(known) - 1)  # rows of weight 0 may have other labels
        votes = np.eye(len(known))[index]
    if len(known) < 2:
        raise ValueError(
            f"Expected at least 2 classes in `y`, but got {len(known)} class: a classifier needs rows of both; "
            "are the weights of one class all 0?"
        )
    rows = LabelledRows(features, known, votes, weight, not soft)
    return rows if weight is None or weight.all() else rows.take(np.flatnonzero(weight))


def read_both(
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: ArrayLike | None,
    X_unlabelled: Any,
    mass: float | None,
    evidence: float,
    dtype: Any = np.float64,
) -> tuple[LabelledRows, UnlabelledFeatures | None]:
    """Return labelled rows, and unlabelled ones if they are given and their weight is not 0.

    With unlabelled rows labels of one of two classes are enough.

    Args:
        estimator: with a `population`; as in `read_rows`, also for the next three arguments and `dtype`.
        X_unlabelled: features (m, d), in the form of `X`, or None.
        mass: λ; None for the ratio of the rows.
        evidence: ε.
    """
    given, population, others = X_unlabelled is not None, estimator.population, None
    rows = read_rows(estimator, X, y, sample_weight, dtype, _both_classes(y, sample_weight, population) if given else None)
    if given:
        features = _unlabelled_features(estimator, X_unlabelled, rows.features.dtype)
        remedy = "it is the weight of unlabelled relative to labelled rows; None takes the ratio of their numbers"
        mass = len(features) / rows.total if mass is None else checked_number(mass, "unlabelled_weight", 0.0, remedy=remedy)
        remedy = "it is the number of people counted by class per unlabelled row; 0 for none, 3 is a good start"
        evidence = checked_number(evidence, "unlabelled_evidence", 0.0, remedy=remedy)
        others = UnlabelledFeatures(features, mass, evidence) if mass > 0 else None
    unknown = is_unknown(population)
    if others is None and (unknown or not rows.class_totals().all()):
        what = "population='unknown'" if unknown else "one class alone labelled"
        came = "unlabelled_weight=0" if given else "none"
        raise ValueError(f"Expected unlabelled rows with {what}, but got {came}: pass X_unlabelled=… to fit.")
    if others is not None and population is None:
        raise ValueError(
            "Expected a `population` with X_unlabelled, but got None: where the labelled rows are in the population's mix, "
            "unlabelled ones add nothing; give it, or 'unknown'."
        )
    return rows, others


def warn_of_shift(rows: LabelledRows, others: UnlabelledFeatures, prevalence: Prevalence) -> None:
    """Warn if p(x|y) differs between the labelled and the unlabelled rows; at most about 10,000 of each are used.

    There is no test for rows of only one class, or without a column that varies.
    """
    from ..shift import unlabelled_shift_test

    labels = rows.index if rows.hard else rows.votes
    if not prevalence.sampling.all() or not np.ptp(np.vstack([rows.features, others.features]), axis=0).any():
        return
    chosen = some_rows(rows.index)
    unlabelled = others.features[some_rows(np.zeros(len(others.features), dtype=np.int64))]
    unlabelled_shift_test(rows.features[chosen], labels[chosen], unlabelled, prevalence)


def warn_of_absent_class(classes: np.ndarray, population: np.ndarray, rows: int) -> None:
    """Warn if less than one of the unlabelled rows is expected to be of some class, by the learned population."""
    absent = classes[population * rows < 1].tolist()
    if absent:
        warnings.warn(
            f"The learned population has hardly any of {absent}: less than 1 of the {rows} unlabelled rows. Check that the "
            "rows are from this population; with few rows, give the population instead.",
            PrevalenceWarning,
            stacklevel=4,
        )


def some_rows(classes: np.ndarray, most: int = 10_000) -> np.ndarray:
    """Return the indices of rows drawn from each class, at most about `most` in total; all rows of rare classes."""
    rng, each = np.random.default_rng(0), -(-most // (int(classes.max()) + 1))
    parts = (np.flatnonzero(classes == k) for k in range(int(classes.max()) + 1))
    return np.sort(np.concatenate([part if len(part) <= each else rng.choice(part, each, replace=False) for part in parts]))


def _are_votes(y: Any) -> bool:
    """Return whether `y` is votes: a column of floats per class."""
    try:
        array = np.asarray(y)
    except ValueError:  # ragged lists: validate_data raises an error for them
        return False
    return array.ndim == 2 and array.shape[1] >= 2 and array.dtype.kind == "f"


def _votes(votes: np.ndarray, names: Any, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes, sorted, and the votes for each (n, K), checked."""
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
    return classes[order], np.ascontiguousarray(votes[:, order])


def _both_classes(y: Any, sample_weight: Any, population: Any) -> np.ndarray | None:
    """Return the two classes if `y` has only one, for positive-unlabelled learning; None if it has more.

    The population, a dict, names the other class; if the labels are 1 or True, it is 0 or False.
    """
    labels = np.asarray(y)
    if labels.ndim != 1 or len(labels) == 0 or (labels.dtype.kind == "f" and not np.isfinite(labels).all()):
        return None
    if sample_weight is not None and np.shape(sample_weight) == labels.shape:
        labels = labels[np.asarray(sample_weight) > 0]
    found = set(labels.tolist())
    if len(found) != 1:
        return None
    (label,) = found
    value = without_estimate(population)
    if is_unknown(value) or (isinstance(value, Prevalence) and value.is_uncertain):
        raise ValueError(
            f"Expected a known population where {label!r} is the only label, but got {population!r}: without it unlabelled "
            "rows of the two classes cannot be distinguished; give a number."
        )
    if isinstance(population, Mapping):
        if len(population) != 2 or label not in population:
            raise ValueError(
                f"Expected `population` to name {label!r} and one other class, but got {list(population)}: with one class "
                "labelled there can be one more; write a frequency for both."
            )
        return np.unique(np.array(list(population), dtype=labels.dtype if labels.dtype == object else None))
    if label is True or (label == 1 and labels.dtype.kind in "iuf"):
        return np.array([0, 1]).astype(labels.dtype)
    raise ValueError(
        f"Expected `population` as a dict where {label!r} is the only label, but got {population!r}: name the other class too, "
        f"such as {{{label!r}: 0.01, 'other': 0.99}}; or label the rows 1."
    )


def _unlabelled_features(estimator: Any, X_unlabelled: Any, dtype: Any) -> np.ndarray:
    try:
        features: np.ndarray = validate_data(estimator, X_unlabelled, dtype=dtype, reset=False)
    except ValueError as error:  # that of scikit-learn names columns that are missing, new, or in another order
        came = " ".join(str(error).split())
        raise ValueError(
            f"Expected `X_unlabelled` to hold rows as `X` does, but got others ({came}): give the same columns, as numbers and "
            "without missing values, such as X_unlabelled[X.columns]."
        ) from error
    return features
