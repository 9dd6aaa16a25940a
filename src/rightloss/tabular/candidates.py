"""The model families to compare on a table: linear models and boosted trees.

Stage: a `Part` of the table as a matrix, with labels and weights → a fitted model → log-probabilities at the mix of the
weighted labels. Each family chooses one setting on validation rows: the linear one its penalty, boosting its number of trees.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from jaxtyping import Float, Float64, Int64

from ..extras import install
from .encode import ColumnSpec, boosting_matrix, linear_matrix
from .splits import stratified_rows

PENALTIES = (0.003, 0.03, 0.3, 3.0)  # scikit-learn's C, on standardised columns
_NEWTON = 100  # coefficients up to which Newton's method is fastest
MOST_CELLS = 60_000_000  # numbers of the linear matrix in one fit
_MOST_TREES, _PATIENCE = 300, 15
_MOST_TO_TUNE = 10_000  # rows used to choose a penalty: the best one hardly depends on their number
_ONE_THREAD = 10_000  # with fewer rows, threads cost more time than they save
_SMALL = 5000  # with fewer rows, trees are smaller and steps shorter


@dataclass(frozen=True)
class Part:
    """Rows of a table for one fit.

    Attributes:
        matrix: the features, as encoded by the family.
        codes: class numbers.
        weights: row weights with mean 1.
        num_classes: K.
    """

    matrix: Float[np.ndarray, "n p"]
    codes: Int64[np.ndarray, " n"]
    weights: Float64[np.ndarray, " n"]
    num_classes: int

    def rows(self, chosen: np.ndarray) -> Part:
        """Return some of the rows, with weights scaled to mean 1."""
        weights = self.weights[chosen]
        return Part(self.matrix[chosen], self.codes[chosen], weights / weights.mean(), self.num_classes)

    def at_most(self, most: int) -> Part:
        """Return at most `most` rows, with weights that keep the mix of classes; see `stratified_rows`."""
        chosen, factors = stratified_rows(self.codes, most, seed=0)
        part = self.rows(chosen)
        weights = part.weights * factors
        return Part(part.matrix, part.codes, weights / weights.mean(), self.num_classes)


@runtime_checkable
class Fitted(Protocol):
    """The interface of a fitted model: a matrix → log-probabilities."""

    def log_probs(self, matrix: np.ndarray) -> Float64[np.ndarray, "n k"]: ...


@runtime_checkable
class Family(Protocol):
    """The interface of a model family: `tune` chooses a setting on validation rows, and `fit` uses it."""

    @property
    def name(self) -> str: ...

    @property
    def most_cells(self) -> int | None: ...

    def matrix(self, frame: pd.DataFrame, specs: Sequence[ColumnSpec]) -> np.ndarray: ...

    def tune(self, train: Part, valid: Part) -> float: ...

    def fit(self, part: Part, setting: float) -> Fitted: ...


@dataclass(frozen=True, eq=False)
class LinearModel:
    """Coefficients `(k, q)` and intercepts `(k,)` of a softmax."""

    coefficients: Float64[np.ndarray, "k q"]
    intercepts: Float64[np.ndarray, " k"]

    def log_probs(self, matrix: np.ndarray) -> Float64[np.ndarray, "n k"]:
        """Return log-probabilities of the rows of `linear_matrix`."""
        return log_softmax(matrix.astype(np.float64) @ self.coefficients.T + self.intercepts)


@dataclass(frozen=True)
class Linear:
    """Logistic regression with a ridge penalty."""

    name: str = "linear"
    most_cells: int | None = MOST_CELLS

    def matrix(self, frame: pd.DataFrame, specs: Sequence[ColumnSpec]) -> np.ndarray:
        """Return `linear_matrix`."""
        return linear_matrix(frame, specs)

    def tune(self, train: Part, valid: Part) -> float:
        """Return the penalty with the highest weighted log-likelihood on the validation rows."""
        some = train.at_most(_MOST_TO_TUNE)
        return max(PENALTIES, key=lambda setting: log_likelihood(self.fit(some, setting), valid))

    def fit(self, part: Part, setting: float) -> LinearModel:
        """Fit by maximum penalised likelihood."""
        from sklearn.linear_model import LogisticRegression

        width = part.matrix.shape[1] * (1 if part.num_classes == 2 else part.num_classes)
        model = LogisticRegression(C=setting, solver="newton-cholesky" if width <= _NEWTON else "lbfgs", max_iter=300)
        with warnings.catch_warnings():  # warnings of separated classes and collinear columns, which the penalty handles
            warnings.simplefilter("ignore")
            model.fit(part.matrix, part.codes, sample_weight=part.weights.astype(part.matrix.dtype))
        coefficients, intercepts = model.coef_.astype(np.float64), model.intercept_.astype(np.float64)
        if part.num_classes == 2:
            coefficients = np.concatenate([0 * coefficients, coefficients])
            intercepts = np.concatenate([0 * intercepts, intercepts])
        return LinearModel(coefficients, intercepts)


@dataclass(frozen=True, eq=False)
class BoostingModel:
    """A LightGBM booster that predicts log-odds (two classes) or a log-odds per class."""

    booster: Any
    num_classes: int

    def log_probs(self, matrix: np.ndarray) -> Float64[np.ndarray, "n k"]:
        """Return log-probabilities of the rows of `boosting_matrix`."""
        scores = np.asarray(self.booster.predict(matrix, raw_score=True), dtype=np.float64)
        return log_softmax(np.stack([np.zeros_like(scores), scores], 1) if self.num_classes == 2 else scores)


@dataclass(frozen=True)
class Boosting:
    """Gradient-boosted trees of LightGBM, with its built-in objective and handling of missing cells and categories.

    Attributes:
        categories: the columns of the matrix that are codes of levels.
        seed: seed of LightGBM.
    """

    categories: tuple[int, ...]
    seed: int = 0
    name: str = "boosting"
    most_cells: int | None = None

    def matrix(self, frame: pd.DataFrame, specs: Sequence[ColumnSpec]) -> np.ndarray:
        """Return `boosting_matrix`."""
        return boosting_matrix(frame, specs)

    def tune(self, train: Part, valid: Part) -> float:
        """Return the number of trees after which the log-likelihood of the validation rows no longer increases."""
        import lightgbm

        data = self._data(train)
        stop = lightgbm.early_stopping(_PATIENCE, verbose=False)
        booster = lightgbm.train(self._options(train), data, _MOST_TREES, [self._data(valid, data)], callbacks=[stop])
        return float(max(booster.best_iteration, 1))

    def fit(self, part: Part, setting: float) -> BoostingModel:
        """Fit that many trees."""
        import lightgbm

        booster = lightgbm.train(self._options(part), self._data(part), num_boost_round=round(setting))
        return BoostingModel(booster, part.num_classes)

    def _data(self, part: Part, reference: Any = None) -> Any:
        import lightgbm

        return lightgbm.Dataset(
            part.matrix,
            part.codes,
            reference=reference,
            weight=part.weights,
            categorical_feature=list(self.categories) or "auto",
            free_raw_data=True,
        )

    def _options(self, part: Part) -> dict[str, Any]:
        small = len(part.codes) < _SMALL
        several = {"objective": "multiclass", "num_class": part.num_classes}
        return {
            **({"objective": "binary"} if part.num_classes == 2 else several),
            "learning_rate": 0.05 if small else 0.1,
            "num_leaves": 7 if small else 31,
            "min_data_in_leaf": max(1, min(20, len(part.codes) // 20)),
            "lambda_l2": 1.0,
            "seed": self.seed,
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": 1 if len(part.codes) < _ONE_THREAD else 0,
            "verbosity": -1,
        }


def families(names: Sequence[str] | None, specs: Sequence[ColumnSpec], seed: int) -> tuple[list[Family], list[str]]:
    """Return the families to compare, and notes about missing ones.

    Args:
        names: "linear" and "boosting"; None for both, if installed.
        specs: the columns.
        seed: seed of families that draw random numbers.
    """
    known = ("linear", "boosting")
    unknown = [name for name in names or () if name not in known]
    if unknown or (names is not None and not names):
        raise ValueError(f"Expected `candidates` among {', '.join(known)}, but got {unknown or names}: choose one or both.")
    notes, chosen = [], list(known if names is None else dict.fromkeys(names))
    if "boosting" in chosen and not _has_lightgbm():
        if names is not None:
            raise ImportError(f"Boosting needs LightGBM: {install('table')}.")
        chosen.remove("boosting")
        notes.append(f"boosting was not tried, since LightGBM is not installed: {install('table')}.")
    categories = tuple(number for number, spec in enumerate(specs) if spec.is_category)
    made: dict[str, Family] = {"linear": Linear(), "boosting": Boosting(categories, seed)}
    return [made[name] for name in known if name in chosen], notes


def log_likelihood(model: Fitted, part: Part) -> float:
    """Return the weighted mean log-likelihood of the labels."""
    own = model.log_probs(part.matrix)[np.arange(len(part.codes)), part.codes]
    return float(np.average(own, weights=part.weights))


def log_softmax(scores: Float64[np.ndarray, "n k"]) -> Float64[np.ndarray, "n k"]:
    """Return the log-softmax of scores."""
    scores = scores - scores.max(1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(1, keepdims=True))


def _has_lightgbm() -> bool:
    try:
        import lightgbm  # noqa: F401
    except (ImportError, OSError):  # the second if its library lacks OpenMP
        return False
    return True
