"""Check unlabelled rows in scikit-learn's form, and whether they can be used.

Stage: `X_unlabelled`, `unlabelled_weight`, the labelled rows → checked `PopulationRows`; labels of one class → both classes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import _get_feature_names, validate_data

from ..arrays import checked_number
from ..prevalence import Prevalence, PrevalenceWarning, without_estimate
from .labelled_rows import LabelledRows
from .population import is_unknown

EVIDENCE = 3.0  # default of ε, chosen in the benchmark of unlabelled rows


@dataclass(frozen=True, eq=False)
class PopulationRows:
    """Rows of the population.

    Attributes:
        features: X (m, d).
        mass: λ, their weight relative to the labelled rows.
        evidence: ε, people counted by class for each of them.
    """

    features: np.ndarray
    mass: float
    evidence: float = 0.0


def read_unlabelled(
    estimator: Any, X_unlabelled: Any, rows: LabelledRows, mass: float | None, evidence: float
) -> PopulationRows | None:
    """Return the rows, checked against the columns of `X`; None if their weight is 0.

    Args:
        estimator: already fitted to the columns of `X`.
        X_unlabelled: features (m, d), in the form of `X`.
        rows: the labelled ones.
        mass: λ; None for the ratio of the rows.
        evidence: ε.
    """
    _check_names(X_unlabelled, getattr(estimator, "feature_names_in_", None))
    try:
        features = validate_data(estimator, X_unlabelled, dtype=rows.features.dtype, reset=False)
    except ValueError as error:
        raise ValueError(
            f"Expected `X_unlabelled` to hold rows as `X` does, but got others ({error}): give the same columns, as numbers "
            "and without missing values."
        ) from error
    remedy = "it is the weight of unlabelled relative to labelled rows; None takes the ratio of their numbers"
    mass = len(features) / rows.total if mass is None else checked_number(mass, "unlabelled_weight", 0.0, remedy=remedy)
    remedy = "it is the number of people counted by class per unlabelled row; 0 for none, 3 is a good start"
    evidence = checked_number(evidence, "unlabelled_evidence", 0.0, remedy=remedy)
    return PopulationRows(features, mass, evidence) if mass > 0 else None


def check_usable(population: Any, rows: LabelledRows, others: PopulationRows | None, given: bool) -> None:
    """Raise a ValueError if a population and its unlabelled rows cannot be combined.

    Args:
        population: as given.
        rows: labelled.
        others: unlabelled; None if their weight is 0.
        given: whether unlabelled rows were given.
    """
    unknown, one_class = is_unknown(population), not rows.class_totals().all()
    if others is None and (unknown or one_class):
        what = "population='unknown'" if unknown else "one class alone labelled"
        came = "unlabelled_weight=0" if given else "none"
        raise ValueError(f"Expected unlabelled rows with {what}, but got {came}: pass X_unlabelled=… to fit.")
    if others is not None and population is None:
        raise ValueError(
            "Expected a `population` with X_unlabelled, but got None: where the labelled rows are in the population's mix, "
            "unlabelled ones add nothing; give it, or 'unknown'."
        )


def warn_of_shift(rows: LabelledRows, others: PopulationRows, prevalence: Prevalence) -> None:
    """Warn if p(x|y) differs between the labelled and the unlabelled rows; at most about 10,000 of each are used.

    There is no test for rows of only one class, or without a column that varies.
    """
    from ..shift import unlabelled_shift_test

    labels = rows.index if rows.index is not None else rows.votes
    assert labels is not None
    if not prevalence.sampling.all() or not np.ptp(np.vstack([rows.features, others.features]), axis=0).any():
        return
    chosen = some_rows(rows.table().argmax(1))
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


def both_classes(y: Any, sample_weight: Any, population: Any) -> np.ndarray | None:
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


def _check_names(X_unlabelled: Any, known: np.ndarray | None) -> None:
    """Raise a ValueError that names the columns that are only in `X` or only in `X_unlabelled`."""
    names = _get_feature_names(X_unlabelled)
    if names is None or known is None or list(names) == list(known):
        return
    missing, new = ([str(name) for name in a if name not in set(b)][:10] for a, b in ((known, names), (names, known)))
    problem = f"{missing} are missing and {new} are not in `X`" if missing or new else "they are in another order"
    raise ValueError(
        f"Expected `X_unlabelled` to have the columns of `X`, but {problem}: select them as X_unlabelled[X.columns]."
    )
