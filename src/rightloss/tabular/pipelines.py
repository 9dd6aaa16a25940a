"""The models that `fit_table` compares, as classifiers of scikit-learn: a linear one, and boosted trees.

Stage: a table as a matrix, class numbers, weights → a fitted classifier → log-probabilities at the mix of the weighted labels.
Each chooses one setting on validation rows when it is fitted: the linear one its penalty, boosting its number of trees.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin

from ..extras import install
from ..sklearn.folds import GivenRows, Split, splits_of
from .encode import ColumnSpec, boosting_matrix, linear_matrix

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

PENALTIES = (0.003, 0.03, 0.3, 3.0)  # scikit-learn's C, on standardised columns
_NEWTON = 100  # coefficients up to which Newton's method is fastest
_MOST_TREES, _PATIENCE = 300, 15
_ONE_THREAD = 10_000  # with fewer rows, threads cost more time than they save
_SMALL = 5000  # with fewer rows, trees are smaller, steps shorter, and settings chosen by all of five parts


class EncodedRows(NamedTuple):
    """Rows for one fit: features (n, p), class numbers (n,), and weights with mean 1 (n,)."""

    matrix: np.ndarray
    codes: np.ndarray
    weights: np.ndarray

    def some(self, chosen: np.ndarray, factors: np.ndarray | float = 1.0) -> EncodedRows:
        """Return some of the rows, with weights times `factors`."""
        weights = self.weights[chosen] * factors
        return EncodedRows(self.matrix[chosen], self.codes[chosen], weights / weights.mean())


class TableClassifier(ClassifierMixin, BaseEstimator):
    """What both have in common: a setting that is given, or chosen in `fit`."""

    most_to_tune = 50_000  # rows used to choose the setting
    default: float  # the setting if a class has too few rows for validation

    def fit(self, X: np.ndarray, y: np.ndarray, sample_weight: Any = None, groups: Any = None) -> Any:
        """Choose the setting on validation rows, whole `groups` at a time, and fit to all rows."""
        self.classes_, codes = np.unique(y, return_inverse=True)
        weights = np.ones(len(codes)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        rows, given = EncodedRows(X, codes, weights / weights.mean()), self._given()
        self.setting_ = self._tuned(rows, groups) if given is None else given
        self._fit(rows, self.setting_)
        return self

    def predict_proba(self, X: np.ndarray) -> Float64[np.ndarray, "n k"]:
        """Return probabilities at the mix of the training rows."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the most probable class at the mix of the training rows."""
        return self.classes_[self.predict_log_proba(X).argmax(1)]

    def predict_log_proba(self, X: np.ndarray) -> Float64[np.ndarray, "n k"]:
        """Return log-probabilities at the mix of the training rows."""
        raise NotImplementedError

    def _tuned(self, rows: EncodedRows, groups: Any) -> float:
        chosen, factors = stratified_rows(rows.codes, self.most_to_tune, seed=0)
        rows, groups = rows.some(chosen, factors), None if groups is None else np.asarray(groups)[chosen]
        splits = _inner_splits(rows, groups, self.random_state)
        return self.default if splits is None else self._best_setting(rows, splits)

    def _given(self) -> float | None:
        raise NotImplementedError

    def _best_setting(self, rows: EncodedRows, splits: list[Split]) -> float:
        raise NotImplementedError

    def _fit(self, rows: EncodedRows, setting: float) -> None:
        raise NotImplementedError


class LinearPipeline(TableClassifier):
    """Logistic regression with a ridge penalty, on the columns of `linear_matrix`.

    Args:
        C: as in scikit-learn; None to choose it.
        random_state: seed of the validation rows.
    """

    family, default, most_to_tune, most_cells = "linear", 0.1, 10_000, 60_000_000
    encode = staticmethod(linear_matrix)

    def __init__(self, C: float | None = None, random_state: int = 0) -> None:
        self.C = C
        self.random_state = random_state

    @classmethod
    def of(cls, coefficients: np.ndarray, intercepts: np.ndarray) -> LinearPipeline:
        """Return a fitted one, with coefficients (K, q) and intercepts (K,) of a softmax."""
        made = LinearPipeline()
        made.classes_, made.coef_, made.intercept_ = np.arange(len(intercepts)), coefficients, intercepts
        return made

    def predict_log_proba(self, X: np.ndarray) -> Float64[np.ndarray, "n k"]:
        """Return log-probabilities of the rows of `linear_matrix`."""
        scores = np.einsum("np,kp->nk", X.astype(np.float64), self.coef_)  # unlike BLAS, to the bit the same for any rows
        return log_softmax(scores + self.intercept_, axis=1)

    def _given(self) -> float | None:
        return self.C

    def _best_setting(self, rows: EncodedRows, splits: list[Split]) -> float:
        def score(C: float) -> float:
            return sum(self._fit(rows.some(train), C)._log_likelihood(rows.some(test)) for train, test in splits)

        return max(PENALTIES, key=score)

    def _log_likelihood(self, rows: EncodedRows) -> float:
        own = self.predict_log_proba(rows.matrix)[np.arange(len(rows.codes)), rows.codes]
        return float(rows.weights @ own)

    def _fit(self, rows: EncodedRows, setting: float) -> LinearPipeline:
        with warnings.catch_warnings():  # warnings of separated classes and collinear columns, which the penalty handles
            warnings.simplefilter("ignore")
            coefficients, intercepts = self._coefficients(rows, setting)
        both = (each.astype(np.float64) for each in (coefficients, intercepts))
        self.coef_, self.intercept_ = (each if len(each) > 1 else np.concatenate([0 * each, each]) for each in both)
        return self

    def _coefficients(self, rows: EncodedRows, setting: float) -> tuple[np.ndarray, np.ndarray]:
        """Return coefficients and intercepts of each class, or of the second of two."""
        from sklearn.linear_model import LogisticRegression

        num_classes = int(rows.codes.max()) + 1
        width = rows.matrix.shape[1] * (1 if num_classes == 2 else num_classes)
        model = LogisticRegression(C=setting, solver="newton-cholesky" if width <= _NEWTON else "lbfgs", max_iter=300)
        model.fit(rows.matrix, rows.codes, sample_weight=rows.weights.astype(rows.matrix.dtype))
        return model.coef_, model.intercept_


class BoostingPipeline(TableClassifier):
    """Gradient-boosted trees of LightGBM on the columns of `boosting_matrix`, with missing cells and categories.

    Args:
        categories: the columns of the matrix that are codes of levels.
        trees: how many; None to choose it by early stopping.
        random_state: seed of the validation rows and of LightGBM.
    """

    family, default, most_cells = "boosting", 50, None
    encode = staticmethod(boosting_matrix)

    def __init__(self, categories: tuple[int, ...] = (), trees: int | None = None, random_state: int = 0) -> None:
        self.categories = categories
        self.trees = trees
        self.random_state = random_state

    @classmethod
    def of(cls, booster: Any, num_classes: int) -> BoostingPipeline:
        """Return a fitted one."""
        made = cls()
        made.classes_, made.booster_ = np.arange(num_classes), booster
        return made

    def predict_log_proba(self, X: np.ndarray) -> Float64[np.ndarray, "n k"]:
        """Return log-probabilities of the rows of `boosting_matrix`."""
        scores = np.asarray(self.booster_.predict(X, raw_score=True), dtype=np.float64)
        return log_softmax(np.stack([np.zeros_like(scores), scores], 1) if scores.ndim == 1 else scores, axis=1)

    def _given(self) -> float | None:
        return self.trees

    def _best_setting(self, rows: EncodedRows, splits: list[Split]) -> float:
        import lightgbm

        stop = lightgbm.early_stopping(_PATIENCE, verbose=False)
        options = self._options(rows)
        found = lightgbm.cv(options, self._data(rows), _MOST_TREES, folds=splits, callbacks=[stop], stratified=False)
        return len(next(iter(found.values())))

    def _fit(self, rows: EncodedRows, setting: float) -> None:
        import lightgbm

        self.booster_ = lightgbm.train(self._options(rows), self._data(rows), num_boost_round=int(setting))

    def _data(self, rows: EncodedRows) -> Any:
        import lightgbm

        columns = list(self.categories) or "auto"
        return lightgbm.Dataset(rows.matrix, rows.codes, weight=rows.weights, categorical_feature=columns)

    def _options(self, rows: EncodedRows) -> dict[str, Any]:
        small, several = len(rows.codes) < _SMALL, {"objective": "multiclass", "num_class": int(rows.codes.max()) + 1}
        return {
            **({"objective": "binary"} if several["num_class"] == 2 else several),
            "learning_rate": 0.05 if small else 0.1,
            "num_leaves": 7 if small else 31,
            "min_data_in_leaf": max(1, min(20, len(rows.codes) // 20)),
            "lambda_l2": 1.0,
            "seed": self.random_state,
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": 1 if len(rows.codes) < _ONE_THREAD else 0,
            "verbosity": -1,
        }


Pipeline = LinearPipeline | BoostingPipeline


def pipelines(names: Sequence[str] | None, specs: Sequence[ColumnSpec], seed: int) -> tuple[list[Pipeline], list[str]]:
    """Return the models to compare, the simplest first, and notes about missing ones.

    Args:
        names: "linear" and "boosting"; None for both, if LightGBM is installed.
        specs: the columns.
        seed: seed of the validation rows and of LightGBM.
    """
    known = ("linear", "boosting")
    unknown = [name for name in names or () if name not in known]
    if unknown or (names is not None and not names):
        raise ValueError(f"Expected `candidates` among {', '.join(known)}, but got {unknown or names}: choose one or both.")
    notes, chosen = [], known if names is None else tuple(names)
    if "boosting" in chosen and not _has_lightgbm():
        if names is not None:
            raise ImportError(f"Boosting needs LightGBM: {install('table')}.")
        chosen = ("linear",)
        notes.append(f"boosting was not tried, since LightGBM is not installed: {install('table')}.")
    categories = tuple(number for number, spec in enumerate(specs) if spec.is_category)
    made = [LinearPipeline(random_state=seed), BoostingPipeline(categories, random_state=seed)]
    return [each for each in made if each.family in chosen], notes


def by_fold(models: Sequence[Pipeline], matrix: np.ndarray, numbers: np.ndarray | None = None) -> Float64[np.ndarray, "u k"]:
    """Return predictions of new rows, each from the model of one fold: that with its number, or each in turn."""
    numbers = np.arange(len(matrix)) % len(models) if numbers is None else numbers
    found = np.empty((len(matrix), len(models[0].classes_)))
    for fold, fitted in enumerate(models):
        if (own := numbers == fold).any():
            found[own] = fitted.predict_log_proba(matrix[own])
    return found


def stratified_rows(
    codes: Int64[np.ndarray, " n"], most: int, seed: int
) -> tuple[Int64[np.ndarray, " m"], Float64[np.ndarray, " m"]]:
    """Draw at most `most` rows, with equal numbers of each class or all of its rows, and return them with weights.

    A row of class k has the weight n_k/m_k, so that the weighted class frequencies are those of all rows; the mean weight is 1.

    Returns:
        Row numbers, ascending, and weights.
    """
    counts, rng, left, kept = np.bincount(codes), np.random.default_rng(seed), most, {}
    for place, k in enumerate(np.argsort(counts, kind="stable")):
        own, share = np.flatnonzero(codes == k), max(left // (len(counts) - place), 1)
        kept[k] = own if len(own) <= share else rng.choice(own, share, replace=False)
        left -= len(kept[k])
    rows = np.sort(np.concatenate(list(kept.values())))
    weights = (counts / np.maximum(np.bincount(codes[rows], minlength=len(counts)), 1))[codes[rows]]
    return rows, weights / weights.mean()


def _inner_splits(rows: EncodedRows, groups: Any, seed: int) -> list[Split] | None:
    """Return rows to train on and to validate on: each of five parts in turn, or the first; None if a class has too few."""
    try:
        splits = splits_of(5, GivenRows(rows.matrix, rows.codes, rows.codes, rows.weights, groups), seed + 1)
    except ValueError:  # a class is only in one part
        return None
    return splits if splits is None or len(rows.codes) < _SMALL else splits[:1]


def _has_lightgbm() -> bool:
    try:
        import lightgbm  # noqa: F401
    except (ImportError, OSError):  # the second if its library lacks OpenMP
        return False
    return True
