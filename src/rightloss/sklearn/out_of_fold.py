"""Finite log-probabilities of a classifier: for new rows, and out of fold for its training rows.

Stage: a classifier, rows → `log_probs (n, k)`; with labels → `OutOfFold`, for calibration and comparison.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_softmax
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import StratifiedKFold, check_cv
from sklearn.utils import _safe_indexing
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import _check_method_params, _num_samples

_ROWS_FOR_FLOOR = 10_000


@dataclass(frozen=True)
class OutOfFold:
    """Labelled predictions by models that did not see their rows.

    Attributes:
        values: the classifiers' outputs: probabilities `(n, k)`, or decision values.
        labels: class numbers `(n,)`.
        weights: of the rows `(n,)`.
        folds: the number of the fold that left out the row `(n,)`.
        models: the classifier of each fold; a frozen one alone.
    """

    values: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    folds: np.ndarray
    models: list[Any]


def response_method(estimator: Any) -> str:
    """Return the name of the prediction method: "predict_proba" if there is one, else "decision_function"."""
    for name in ("predict_proba", "decision_function"):
        if hasattr(estimator, name):
            return name
    raise ValueError(
        f"Expected a classifier with `predict_proba` or `decision_function`, but {type(estimator).__name__} has neither: "
        "use another, or wrap it in sklearn.calibration.CalibratedClassifierCV."
    )


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


def sample_of_predictions(estimator: Any, X: Any, rows: int) -> np.ndarray:
    """Return the probabilities of at most 10,000 evenly spaced rows of X."""
    step = -(-rows // _ROWS_FOR_FLOOR)
    return np.asarray(estimator.predict_proba(X if step == 1 else _safe_indexing(X, np.arange(0, rows, step))))


def folds_of(cv: Any, labels: np.ndarray, weights: np.ndarray, random_state: Any) -> Any:
    """Return a stratified splitter with at most `cv` folds; fewer if the rarest class has fewer rows, None if it has one."""
    if not isinstance(cv, int | np.integer):
        return check_cv(cv, labels, classifier=True)
    if isinstance(cv, bool) or cv < 2:
        raise ValueError(f"Expected `cv` to be at least 2 folds or a splitter, but got {cv!r}: 5 is usual.")
    most = int(min(cv, np.bincount(labels[weights > 0]).min()))
    if most < 2:
        return None
    return StratifiedKFold(most, shuffle=random_state is not None, random_state=random_state)


def out_of_fold(
    estimator: Any,
    X: Any,
    y: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
    splitter: Any,
    n_jobs: int | None,
    params: dict[str, Any],
) -> OutOfFold:
    """Return each row's prediction by a copy of the classifier fitted on the other folds.

    A frozen estimator is not fitted, so all its predictions are out of fold.

    Args:
        estimator: the classifier, unfitted or frozen.
        X: the rows.
        y: their labels, in the classifier's form.
        labels: the same as class numbers.
        weights: of the rows.
        splitter: of scikit-learn.
        n_jobs: as in scikit-learn.
        params: further arguments of `fit`; those with a value per row are split with the rows.
    """
    splits = list(splitter.split(X, y))
    _check_folds(labels, weights, splits)
    method = response_method(estimator)
    folds = np.full(len(labels), -1)
    for number, (_, test) in enumerate(splits):
        folds[test] = number
    if isinstance(estimator, FrozenEstimator):
        return OutOfFold(np.asarray(getattr(estimator, method)(X)), labels, weights, folds, [estimator])
    parts = Parallel(n_jobs=n_jobs)(delayed(_predict_fold)(estimator, X, y, *split, method, params) for split in splits)
    values = np.concatenate([part for part, _ in parts])
    values[np.concatenate([test for _, test in splits])] = values.copy()
    return OutOfFold(values, labels, weights, folds, [fitted for _, fitted in parts])


def predict_by_fold(models: list[Any], X: Any, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return predictions of new rows, each by the classifier of one fold, drawn at random, and the numbers of the folds.

    These are comparable with out-of-fold predictions. Those of a classifier fitted to all rows are not: it is another one.
    """
    drawn = np.random.default_rng(seed).integers(len(models), size=_num_samples(X))
    order = np.argsort(drawn, kind="stable")
    parts = [np.flatnonzero(drawn == fold) for fold in range(len(models))]
    found = [np.asarray(_response(each, _safe_indexing(X, own))) for each, own in zip(models, parts, strict=True) if len(own)]
    values = np.concatenate(found)
    values[order] = values.copy()
    return values, drawn


def _response(estimator: Any, X: Any) -> Any:
    return getattr(estimator, response_method(estimator))(X)


def _predict_fold(
    estimator: Any, X: Any, y: np.ndarray, train: np.ndarray, test: np.ndarray, method: str, params: dict[str, Any]
) -> tuple[np.ndarray, Any]:
    """Return the predictions on `test` of a copy fitted on `train`, and that copy.

    scikit-learn's `cross_val_predict` replaces labels by numbers, which breaks a dict of class weights by label.
    """
    fitted = clone(estimator)
    rows, labels = _safe_split(fitted, X, y, train)
    fitted.fit(rows, labels, **_check_method_params(X, params, train))
    return np.asarray(getattr(fitted, method)(_safe_split(fitted, X, None, test, train)[0])), fitted


def _check_folds(labels: np.ndarray, weights: np.ndarray, splits: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Raise a ValueError if a fold cannot be fitted, or if the folds do not leave out each row exactly once."""
    left_out = np.bincount(np.concatenate([test for _, test in splits]), minlength=len(labels))
    if (left_out != 1).any():
        raise ValueError(
            f"Expected folds that leave out each row once, but {int((left_out != 1).sum())} rows are left out never or more "
            "often: use a splitter such as StratifiedKFold or GroupKFold."
        )
    every = np.unique(labels)
    for number, (train, _) in enumerate(splits):
        missing = np.setdiff1d(every, labels[train][weights[train] > 0])
        if len(missing):
            raise ValueError(
                f"Expected every class in the training rows of each fold, but fold {number} lacks class number(s) "
                f"{missing.tolist()}: use fewer or stratified folds."
            )
