"""Predictions of rows that a classifier was not trained on: folds by class and group, and the classifier of each.

Stage: a classifier, `GivenRows` → folds → `OutOfFold`, for calibration and comparison; new rows → `log_probs (n, k)`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import digamma, log_softmax
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold, check_cv
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import _check_method_params, _num_samples, has_fit_parameter

from ..arrays import is_missing
from ..prevalence import PrevalenceWarning
from .training_mix import is_a

Split = tuple[np.ndarray, np.ndarray]

_SOME_ROWS = 10_000
_MANY_GROUPS = 2000  # from here on scikit-learn's StratifiedGroupKFold takes long: 3.5 s for 25,000


@dataclass(frozen=True)
class GivenRows:
    """Rows as given to `fit`.

    Attributes:
        X: in any form that the classifier accepts.
        y: the labels, in the classifier's form `(n,)`.
        labels: the same as class numbers `(n,)`.
        weights: `(n,)`, at least 0.
        groups: ids of rows that belong together `(n,)`, such as those of one person, or None.
    """

    X: Any
    y: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    groups: Any = None

    def take(self, kept: np.ndarray) -> GivenRows:
        """Return the rows of these numbers."""
        groups = None if self.groups is None else _safe_indexing(self.groups, kept)
        return GivenRows(_safe_indexing(self.X, kept), self.y[kept], self.labels[kept], self.weights[kept], groups)


@dataclass(frozen=True)
class OutOfFold:
    """Labelled predictions by classifiers that did not see their rows, in the order of the rows.

    Attributes:
        values: the classifiers' outputs: probabilities `(n, k)`, or decision values.
        folds: the number of the fold that left out the row `(n,)`.
        models: the classifier of each fold; a frozen one alone.
    """

    values: np.ndarray
    folds: np.ndarray
    models: list[Any]


def splits_of(
    cv: Any, rows: GivenRows, random_state: Any = None, metadata: Mapping[str, Any] | None = None
) -> list[Split] | None:
    """Return the row numbers of each fold's training and test rows, without rows of weight 0.

    For a number of folds they are stratified by class, and each group is in one fold. There are fewer folds if the rarest class
    has fewer rows (groups), and None if it has one.

    Args:
        cv: a number of folds, a splitter of scikit-learn, or a list of splits.
        rows: the rows.
        random_state: seed of a number of folds; None does not shuffle the rows.
        metadata: further arguments of the splitter.
    """
    labels, weights = rows.labels, rows.weights
    groups = None if rows.groups is None else np.asarray(rows.groups)
    if groups is not None and any(map(is_missing, groups.tolist())):
        raise ValueError("Expected a group for every row, but some are missing: give such rows a group of their own each.")
    if not isinstance(cv, int | np.integer):
        given = {} if groups is None else {"groups": groups}
        found = check_cv(cv, labels, classifier=True).split(rows.X, rows.y, **given, **(metadata or {}))
        splits = [(train[weights[train] > 0], test[weights[test] > 0]) for train, test in found]
    else:
        if isinstance(cv, bool) or cv < 2:
            raise ValueError(f"Expected `cv` to be at least 2 folds or a splitter, but got {cv!r}: 5 is usual.")
        kept = np.flatnonzero(weights)
        own, units = labels[kept], None if groups is None else np.unique(groups[kept], return_inverse=True)[1]
        seen = own if units is None else np.unique(np.column_stack([own, units]), axis=0)[:, 0]
        most = int(min(cv, np.bincount(seen).min()))
        if most < 2:
            return None
        if units is not None and units.max() >= _MANY_GROUPS and np.bincount(seen).min() >= 10 * most:
            fold = _fold_of_groups(own, units, most, random_state)[units]
            splits = [(kept[fold != number], kept[fold == number]) for number in range(most)]
        else:
            kind = StratifiedKFold if units is None else StratifiedGroupKFold
            splitter = kind(most, shuffle=random_state is not None, random_state=random_state)
            splits = [(kept[train], kept[test]) for train, test in splitter.split(kept, own, units)]
    splits = [(train, test) for train, test in splits if len(test)]
    _check_folds(rows, splits, groups)
    return splits


def out_of_fold(
    estimator: Any,
    rows: GivenRows,
    splits: list[Split],
    params: Mapping[str, Any] | None = None,
    n_jobs: int | None = None,
) -> OutOfFold:
    """Return each row's prediction by a copy of the classifier fitted on the other folds.

    A frozen estimator is not fitted, so all its predictions are out of fold.

    Args:
        estimator: the classifier, unfitted or frozen.
        rows: the rows.
        splits: row numbers of each fold, from `splits_of`: together all rows.
        params: further arguments of `fit`; those with a value per row are split with the rows.
        n_jobs: as in scikit-learn.
    """
    method = response_method(estimator)
    tested = np.concatenate([test for _, test in splits])
    folds = np.concatenate([np.full(len(test), number) for number, (_, test) in enumerate(splits)])
    if isinstance(estimator, FrozenEstimator):
        values, models = np.asarray(getattr(estimator, method)(rows.X))[tested], [estimator]
    else:
        run = Parallel(n_jobs=n_jobs)
        parts = run(delayed(_predict_fold)(estimator, rows, *split, method, params or {}) for split in splits)
        values, models = np.concatenate([part for part, _ in parts]), [fitted for _, fitted in parts]
    order = np.argsort(tested)
    return OutOfFold(values[order], folds[order], models)


def predict_by_fold(models: list[Any], X: Any, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return predictions of new rows, each by the classifier of one fold, drawn at random, and the numbers of the folds.

    These are comparable with out-of-fold predictions. Those of a classifier fitted to all rows are not: it is another one.
    """
    drawn = np.random.default_rng(seed).integers(len(models), size=_num_samples(X))
    parts = [np.flatnonzero(drawn == fold) for fold in range(len(models))]
    found = [
        np.asarray(getattr(each, response_method(each))(_safe_indexing(X, own)))
        for each, own in zip(models, parts, strict=True)
        if len(own)
    ]
    values = np.concatenate(found)
    values[np.concatenate(parts)] = values.copy()
    return values, drawn


def response_method(estimator: Any) -> str:
    """Return the name of the prediction method: "predict_proba" if there is one, else "decision_function"."""
    for name in ("predict_proba", "decision_function"):
        if hasattr(estimator, name) or _stacks_by_default(estimator):
            return name
    raise ValueError(
        f"Expected a classifier with `predict_proba` or `decision_function`, but {type(estimator).__name__} has neither: "
        "use another, or wrap it in sklearn.calibration.CalibratedClassifierCV."
    )


def log_prob_rows(values: Any, num_classes: int, floor: float | None) -> np.ndarray:
    """Return a classifier's values as finite log-probabilities `(n, k)`.

    Args:
        values: probabilities `(n, k)`; or decision values, `(n,)` for two classes, which are used as logits.
        num_classes: K.
        floor: the probability used for 0; None for decision values.
    """
    table = np.asarray(values, dtype=np.float64)
    if table.ndim == 1 and num_classes == 2:
        table = np.stack([-table / 2, table / 2], axis=1)
    if table.ndim != 2 or table.shape[1] != num_classes:
        raise ValueError(
            f"Expected predictions of shape (n, {num_classes}), a column per class, but got {table.shape}: "
            "was the classifier fitted on all classes?"
        )
    if not np.isfinite(table).all():
        row = int(np.flatnonzero(~np.isfinite(table).all(1))[0])
        raise ValueError(f"Expected finite predictions, but row {row} is {table[row].tolist()}: did the training diverge?")
    return log_softmax(table if floor is None else np.log(np.maximum(table, floor)), axis=1)


def probability_floor(values: np.ndarray) -> float:
    """Return the probability to use for 0, so that its logarithm is finite and the predictions keep their order.

    It is half the smallest positive probability below ½ among `values` `(n, k)`. A forest of 100 trees with votes of 0 or 1
    has no probability between 0 and 1/100, and a much smaller floor would distort the slope of a calibration. If all values
    are 0 or 1, as for a single tree, it is 1/(2(n + 1)). If there is no 0, it is at most half the rounding error of a number
    near 1 (10⁻¹⁶, in float32 6·10⁻⁸), because a later 0 is then a rounded probability.
    """
    small = values[(values > 0) & (values < 0.5)]
    floor = 0.5 * float(small.min()) if len(small) else 0.5 / (len(values) + 1)
    if (values > 0).all():
        kind = values.dtype if values.dtype.kind == "f" else np.float64
        floor = min(floor, 0.5 * float(np.finfo(kind).eps))
    return max(floor, float(np.finfo(np.float64).tiny))


def sample_of_predictions(estimator: Any, rows: GivenRows) -> np.ndarray:
    """Return the probabilities of at most 10,000 evenly spaced rows."""
    step = -(-len(rows.labels) // _SOME_ROWS)
    some = rows.X if step == 1 else _safe_indexing(rows.X, np.arange(0, len(rows.labels), step))
    return np.asarray(estimator.predict_proba(some))


def label_mix(labels: np.ndarray, weights: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the labels' mix by weight (K,), which must be positive."""
    if len(classes) < 2:
        raise ValueError(
            f"Expected labels of at least 2 classes, but got one class, {classes.tolist()}: is `y` the right column?"
        )
    mass = np.bincount(labels, weights=weights)
    if weights.min() < 0 or not (mass > 0).all():
        raise ValueError(
            f"Expected `sample_weight` to be at least 0, and not 0 for a whole class, but its sums by class are "
            f"{mass.tolist()}: remove a class without weight."
        )
    return mass / mass.sum()


def rows_of_classes(labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return how many rows of each class there are (K,), which does not depend on the scale of the weights.

    That is Kish's effective number (Σ w)²/Σ w². Only whole numbers from 1 on, as for rows that occur several times, are added
    up instead.
    """
    mass, squares, parts = (np.bincount(labels, weights=each) for each in (weights, weights**2, weights % 1))
    least = np.full(len(mass), np.inf)
    np.minimum.at(least, labels[weights > 0], weights[weights > 0])
    found: np.ndarray = np.where((parts == 0) & (least == 1), mass, mass**2 / squares)
    return found


def rows_by_weight(labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return row numbers, each as often as its weight, by systematic sampling within each class; all of them once if it is 1.

    For functions without weights: there are as many as the weights' sum in each class, at least one.
    """
    chosen = []
    for k in range(int(labels.max()) + 1):
        own = np.flatnonzero(labels == k)
        until = np.cumsum(weights[own])
        count = max(1, round(float(until[-1])))
        chosen.append(own[np.searchsorted(until, (np.arange(count) + 0.5) * until[-1] / count)])
    return np.sort(np.concatenate(chosen))


def one_of_each(groups: Any) -> Any:
    """Return the numbers of one row of each group; all rows without groups."""
    return slice(None) if groups is None else np.sort(np.unique(np.asarray(groups), return_index=True)[1])


def with_weights(estimator: Any, weights: np.ndarray | None, fit_params: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the classifier's `fit`, with the sample weights under the right name."""
    if weights is None or isinstance(estimator, FrozenEstimator):
        return fit_params
    name = name_of_argument(estimator, "sample_weight")
    if name is not None:
        return {**fit_params, name: weights}
    warnings.warn(
        f"{type(estimator).__name__} takes no `sample_weight`: the weights are used only in the correction.",
        PrevalenceWarning,
        stacklevel=4,
    )
    return fit_params


def name_of_argument(estimator: Any, name: str) -> str | None:
    """Return the name by which the classifier's `fit` accepts weights or groups; None if it does not."""
    if has_fit_parameter(estimator, name):
        return name
    if is_a(estimator, "VotingClassifier", "StackingClassifier"):
        return name if name == "sample_weight" else None
    if isinstance(estimator, BaseSearchCV):
        return name if name == "groups" else name_of_argument(estimator.estimator, name)
    if isinstance(estimator, Pipeline):
        last, step = estimator.steps[-1]
        inner = name_of_argument(step, name)
        return None if inner is None else f"{last}__{inner}"
    return None


def share_of_copies(X: Any, splits: list[Split]) -> float:
    """Return the share of rows with a near-copy in another fold, beyond chance; 0 if X is no table of numbers.

    A near-copy is ten times closer than the 10th neighbour. Of rows in m dimensions a share of 1 − (1 − 10^−m)⁹ has one by
    chance; m is estimated from the distances of the 10th and the 20th neighbour. At most 200 rows are compared with all
    others, by up to 20 columns that take many values.
    """
    tested = np.concatenate([test for _, test in splits])
    table = _many_valued_columns(X, tested)
    if table is None:
        return 0.0
    folds = np.concatenate([np.full(len(test), number) for number, (_, test) in enumerate(splits)])
    chosen = np.linspace(0, len(table) - 1, int(np.clip(4e6 / len(table), 50, 200))).astype(int)
    squares = (table**2).sum(1)
    distance = squares[chosen, None] + squares - 2 * table[chosen] @ table.T
    distance[folds[chosen, None] == folds] = np.inf
    first, tenth, last = np.sqrt(np.partition(distance, (0, 9, 19), axis=1)[:, [0, 9, 19]].clip(0)).T
    usable = np.isfinite(last) & (tenth > 0)
    if not usable.any():
        return 0.0
    ratio = float(np.log(last[usable] / tenth[usable]).mean())
    by_chance = 1 - (1 - 0.1 ** ((digamma(20) - digamma(10)) / max(ratio, 1e-3))) ** 9
    return float((first < 0.1 * tenth)[usable].sum() / len(chosen) - by_chance)


def _many_valued_columns(X: Any, kept: np.ndarray) -> np.ndarray | None:
    """Return up to 20 standardised columns in which at least a tenth of the rows differ; None if there are not two of them."""
    table = X.select_dtypes("number") if hasattr(X, "select_dtypes") else X
    if not hasattr(table, "shape") or len(table.shape) != 2 or hasattr(table, "tocsr") or len(kept) < 50:
        return None
    numbers = np.asarray(table)
    if numbers.dtype.kind not in "fiu":
        return None
    some = numbers[kept[:: -(-len(kept) // _SOME_ROWS)]]
    many = [c for c in range(numbers.shape[1]) if len(np.unique(some[:, c])) >= len(some) / 10][:20]
    found = np.nan_to_num(numbers[kept][:, many].astype(np.float64))
    return (found - found.mean(0)) / found.std(0) if len(many) >= 2 else None


def _fold_of_groups(labels: np.ndarray, groups: np.ndarray, folds: int, random_state: Any) -> np.ndarray:
    """Return the fold of each of many groups: dealt in turn, in the order of their rows of each class, rarest first."""
    counts = np.zeros((groups.max() + 1, labels.max() + 1), dtype=np.int64)
    np.add.at(counts, (groups, labels), 1)
    order = np.arange(len(counts)) if random_state is None else check_random_state(random_state).permutation(len(counts))
    by_rarity = np.argsort(-counts.sum(0))
    order = order[np.lexsort(counts[order][:, by_rarity].T)]
    found = np.empty(len(counts), dtype=np.int64)
    found[order] = np.arange(len(counts)) % folds
    return found


def _stacks_by_default(estimator: Any) -> bool:
    """Return True for stacking by the default, logistic regression, which has no prediction methods before it is fitted."""
    if isinstance(estimator, Pipeline):
        return _stacks_by_default(estimator.steps[-1][1])
    if isinstance(estimator, BaseSearchCV):
        return _stacks_by_default(estimator.estimator)
    return is_a(estimator, "StackingClassifier") and estimator.final_estimator is None


def _predict_fold(
    estimator: Any, rows: GivenRows, train: np.ndarray, test: np.ndarray, method: str, params: Mapping[str, Any]
) -> tuple[np.ndarray, Any]:
    """Return the predictions on `test` of a copy fitted on `train`, and that copy.

    scikit-learn's `cross_val_predict` replaces labels by numbers, which breaks a dict of class weights by label.
    """
    fitted = clone(estimator)
    fitted.fit(*_safe_split(fitted, rows.X, rows.y, train), **_check_method_params(rows.X, params, train))
    return np.asarray(getattr(fitted, method)(_safe_split(fitted, rows.X, None, test, train)[0])), fitted


def _check_folds(rows: GivenRows, splits: list[Split], groups: np.ndarray | None) -> None:
    """Raise a ValueError if a fold cannot be fitted, splits a group, or if each row is not left out exactly once."""
    left_out = np.bincount(np.concatenate([test for _, test in splits]), minlength=len(rows.labels))[rows.weights > 0]
    if (left_out != 1).any():
        raise ValueError(
            f"Expected folds that leave out each row once, but {int((left_out != 1).sum())} rows are left out never or more "
            "often: use a splitter such as StratifiedKFold or GroupKFold."
        )
    for number, (train, test) in enumerate(splits):
        missing = np.setdiff1d(rows.labels, rows.labels[train])
        if len(missing):
            raise ValueError(
                f"Expected every class in the training rows of each fold, but fold {number} lacks class number(s) "
                f"{missing.tolist()}: use fewer or stratified folds."
            )
        if groups is not None and np.isin(groups[test], groups[train]).any():
            raise ValueError(
                f"Expected folds that keep the rows of a group together, but fold {number} splits some: use a number of folds, "
                "such as cv=5, or a splitter that uses groups, such as GroupKFold."
            )
