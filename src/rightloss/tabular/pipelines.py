"""Tables as matrices, and the models that `fit_table` compares: a linear one, and boosted trees.

Stage: training table, kinds → a `ColumnSpec` per column; any table, specs → `(n, p)` float32, never with the target;
class numbers, weights → a fitted classifier of scikit-learn → log-probabilities at the mix of the weighted labels. Each has one
setting, chosen on left-out rows: the linear one its penalty, boosting its number of trees.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin, clone

from ..extras import install
from .columns import Finding, Kind, as_text, as_values, date_format, text_of
from .inspect import LEVELS_KEPT

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

    from ..sklearn.folds import GivenRows, Split

_RARE = 10  # a level with fewer rows is pooled with others; the minimum is smaller in small tables
_NAMES_KEPT = 1000  # names of pooled levels, to distinguish them from new ones
_LARGEST = 1e150  # size of numbers in means and scales, whose squares do not overflow
_FARTHEST = 1e6  # standard deviations at which a number is clipped, well inside float32


OddCells = dict[str, tuple[int, str]]  # by column: how many cells, and an example


@dataclass(frozen=True)
class ColumnSpec:
    """How to encode one column as numbers.

    Attributes:
        name: the name of the column.
        kind: "number", "boolean", "date" or "category".
        categories: the levels with their own code, the most frequent first; all others are pooled into one more.
        pooled: the names of these others, the most frequent 1,000.
        fill: the median, used for a missing number in a linear model.
        mean: the mean of the numbers, which is subtracted.
        scale: their standard deviation, the divisor.
        has_missing: whether cells were missing in training; a linear model then has a column for that.
        date_format: the format of dates in training.

    Examples:
        >>> import pandas as pd
        >>> from rightloss.tabular import column_specs
        >>> frame = pd.DataFrame({"age": [61.0, 48.0, None, 55.0]})
        >>> column_specs(frame, {"age": "number"})[0].fill
        55.0
    """

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    pooled: tuple[str, ...] = ()
    fill: float = 0.0
    mean: float = 0.0
    scale: float = 1.0
    has_missing: bool = False
    date_format: str | None = None

    @property
    def is_category(self) -> bool:
        """Whether the column is encoded as levels rather than one number."""
        return self.kind == "category"

    @property
    def linear_width(self) -> int:
        """The number of its columns in the matrix for linear models."""
        return (len(self.categories) + 1 if self.is_category else 1) + self.has_missing


def column_specs(frame: pd.DataFrame, kinds: dict[str, Kind]) -> list[ColumnSpec]:
    """Return how to encode the columns of a training table.

    Args:
        frame: the table.
        kinds: the columns to use, each with its kind.

    Examples:
        >>> import pandas as pd
        >>> from rightloss.tabular import column_specs
        >>> frame = pd.DataFrame({"sex": ["f", "m", "f", "m", "f"]})
        >>> column_specs(frame, {"sex": "category"})[0].categories
        ('f', 'm')
    """
    return [
        _category_spec(frame[name]) if kind == "category" else _number_spec(frame[name], kind) for name, kind in kinds.items()
    ]


def boosting_matrix(frame: pd.DataFrame, specs: Sequence[ColumnSpec]) -> np.ndarray:
    """Return `(n, p)` float32: standardised numbers and codes of levels, NaN for missing cells."""
    matrix = np.empty((len(frame), len(specs)), dtype=np.float32, order="F")
    for number, spec in enumerate(specs):
        matrix[:, number] = _codes(frame[spec.name], spec) if spec.is_category else _standardised(frame[spec.name], spec)
    return matrix


def linear_matrix(frame: pd.DataFrame, specs: Sequence[ColumnSpec]) -> np.ndarray:
    """Return `(n, q)` float32 without NaN: standardised numbers, a column per level, and one for missing cells if needed."""
    matrix = np.zeros((len(frame), sum(spec.linear_width for spec in specs)), dtype=np.float32)
    start = 0
    for spec in specs:
        _fill_linear(matrix[:, start : start + spec.linear_width], frame[spec.name], spec)
        start += spec.linear_width
    return matrix


def check_columns(frame: pd.DataFrame, specs: Sequence[ColumnSpec], known: Sequence[str] = ()) -> list[Finding]:
    """Compare a table with the training table of a model.

    Args:
        frame: the table to predict.
        specs: the columns that the model uses.
        known: other columns of the training table, such as the target.

    Returns:
        Warnings about cells that did not occur in training, and a note about unknown columns.

    Raises:
        ValueError: if a column is missing or duplicated.
    """
    require_columns(list(frame.columns), specs)
    found = odd_findings([odd_cells(frame, specs)], len(frame), specs)
    extra = [str(name) for name in frame.columns if name not in {spec.name for spec in specs} | set(known)]
    if extra:
        found.append(Finding("note", None, f"the columns {extra[:20]} are not used: the model was trained without them."))
    return found


def require_columns(columns: Sequence[str], specs: Sequence[ColumnSpec]) -> None:
    """Raise a ValueError if a column is missing or duplicated."""
    missing = [spec.name for spec in specs if spec.name not in columns]
    if missing:
        meant = [name for name in columns if name.casefold() in {each.casefold() for each in missing}]
        hint = f" (it has {meant[:20]}, written otherwise)" if meant else ""
        raise ValueError(
            f"Expected the columns of the training table, but {missing[:20]} are missing{hint}: add them, with empty cells "
            "where nothing is known, or train without them (--leave-out)."
        )
    twice = sorted({spec.name for spec in specs if columns.count(spec.name) > 1})
    if twice:
        raise ValueError(f"Expected every column once, but {twice} come more than once: remove the others.")


def odd_cells(frame: pd.DataFrame, specs: Sequence[ColumnSpec]) -> OddCells:
    """Return, by column, how many cells did not occur in training, and an example."""
    found = {}
    for spec in specs:
        cells = frame[spec.name]
        odd = ~readable(cells, spec) & cells.notna().to_numpy()
        if odd.any():
            found[spec.name] = int(odd.sum()), text_of(cells.iloc[int(odd.argmax())])[:40]
    return found


def odd_findings(chunks: Sequence[OddCells], rows: int, specs: Sequence[ColumnSpec]) -> list[Finding]:
    """Return warnings about the odd cells of all chunks of a table."""
    findings = []
    for spec in specs:
        what, read_as = ("are no dates" if spec.kind == "date" else "are no numbers"), "missing"
        if spec.is_category:
            what, read_as = "have a category that training did not", "'other'"
        odd = [chunk[spec.name] for chunk in chunks if spec.name in chunk]
        if odd:
            many = f"{sum(count for count, _ in odd):,} of {rows:,} cells"
            words = f"{many} {what}, such as {odd[0][1]!r}: they are read as {read_as}."
            findings.append(Finding("warning", spec.name, words))
    return findings


def readable(series: pd.Series, spec: ColumnSpec) -> np.ndarray:
    """Return which cells can be read: a number, a date, or a category of the training table."""
    if not spec.is_category:
        return ~np.isnan(as_values(series, spec.kind, spec.date_format))
    codes, texts = as_text(series)
    familiar = {*spec.categories, *spec.pooled}
    return np.array([*(text in familiar for text in texts), False])[codes]


def _number_spec(series: pd.Series, kind: Kind) -> ColumnSpec:
    written = date_format(series) if kind == "date" else None
    values = as_values(series, kind, written)
    known = values[~np.isnan(values)]
    some = np.clip(known, -_LARGEST, _LARGEST) if len(known) else np.zeros(1)
    mean, scale, fill = (float(figure) for figure in (some.mean(), some.std(), np.median(some)))
    return ColumnSpec(str(series.name), kind, (), (), fill, mean, scale or 1.0, len(known) < len(values), written)


def _category_spec(series: pd.Series) -> ColumnSpec:
    codes, texts = as_text(series)
    counts = np.bincount(codes[codes >= 0], minlength=len(texts))
    merged: dict[str, int] = {}
    for text, count in zip(texts, counts.tolist(), strict=True):  # 1 and 1.0 are the same level
        merged[text] = merged.get(text, 0) + count
    enough = max(2, min(_RARE, len(series) // 100))
    ranked = sorted(merged, key=lambda text: (-merged[text], text))
    kept = min(LEVELS_KEPT, sum(count >= enough for count in merged.values()))
    pooled = tuple(ranked[kept : kept + _NAMES_KEPT])
    return ColumnSpec(str(series.name), "category", tuple(ranked[:kept]), pooled, has_missing=bool((codes < 0).any()))


def _standardised(series: pd.Series, spec: ColumnSpec) -> np.ndarray:
    with np.errstate(over="ignore"):  # infinity is clipped
        values = as_values(series, spec.kind, spec.date_format)
        return np.clip((values - spec.mean) / spec.scale, -_FARTHEST, _FARTHEST)


def _codes(series: pd.Series, spec: ColumnSpec) -> np.ndarray:
    """Return the code of each cell's level, the last for all pooled ones, NaN if it is missing."""
    codes, texts = as_text(series)
    place = {text: number for number, text in enumerate(spec.categories)}
    return np.array([*(place.get(text, len(place)) for text in texts), np.nan])[codes]


def _fill_linear(part: np.ndarray, series: pd.Series, spec: ColumnSpec) -> None:
    """Write one column's part of the matrix for linear models."""
    values = _codes(series, spec) if spec.is_category else _standardised(series, spec)
    missing = np.isnan(values)
    if spec.is_category:
        part[np.flatnonzero(~missing), values[~missing].astype(np.int64)] = 1
    else:
        part[:, 0] = np.where(missing, (spec.fill - spec.mean) / spec.scale, values)
    if spec.has_missing:
        part[:, -1] = missing


PENALTIES = (0.003, 0.03, 0.3, 3.0)  # scikit-learn's C, on standardised columns
_NEWTON = 100  # coefficients up to which Newton's method is fastest
_MOST_TREES, _PATIENCE = 300, 15
_ONE_THREAD = 10_000  # with fewer rows, threads cost more time than they save
_SMALL = 5000  # with fewer rows, trees are smaller, steps shorter, and settings chosen on all of five parts


class TableClassifier(ClassifierMixin, BaseEstimator):
    """What both have in common: one setting, which `tuned` chooses."""

    family: str
    predict_log_proba: Callable[[np.ndarray], np.ndarray]  # at the mix of the training rows
    _fit: Callable[[np.ndarray, np.ndarray, np.ndarray], Any]
    _best: Callable[[GivenRows, list[Split]], Any]
    most_cells: int | None = None  # numbers of the matrix in one fit
    most_to_tune = 50_000  # rows used to choose the setting

    def fit(self, X: np.ndarray, y: np.ndarray, sample_weight: Any = None) -> Any:
        """Fit to all rows; X is the result of `encode`."""
        self.classes_, codes = np.unique(y, return_inverse=True)
        weights = np.ones(len(codes)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        return self._fit(X, codes, weights / weights.mean())

    def predict_proba(self, X: np.ndarray) -> Float64[np.ndarray, "n k"]:
        """Return probabilities at the mix of the training rows."""
        return np.exp(self.predict_log_proba(X))

    def tuned(self, rows: GivenRows) -> Any:
        """Return a copy with the setting that predicts left-out rows best, whole groups at a time.

        Each of five parts of the rows is left out, or the first if there are many rows. If a class has too few rows for that,
        the setting stays.
        """
        from ..sklearn.folds import splits_of

        chosen, factors = stratified_rows(rows.labels, self.most_to_tune, seed=0)
        some = rows.take(chosen)
        some = replace(some, weights=some.weights * factors)
        try:
            splits = splits_of(5, some, self.random_state + 1)
        except ValueError:  # a class is only in one part
            splits = None
        return clone(self) if not splits else self._best(some, splits if len(chosen) < _SMALL else splits[:1])


class LinearPipeline(TableClassifier):
    """Logistic regression with a ridge penalty, on the columns of `linear_matrix`.

    Args:
        C: as in scikit-learn.
        random_state: seed of the validation rows.
    """

    family, most_to_tune, most_cells = "linear", 10_000, 60_000_000
    encode = staticmethod(linear_matrix)

    def __init__(self, C: float = 0.1, random_state: int = 0) -> None:
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

    def _best(self, rows: GivenRows, splits: list[Split]) -> Any:
        def score(C: float) -> float:
            model, total = clone(self).set_params(C=C), 0.0
            for train, test in splits:
                table = model.fit(rows.X[train], rows.y[train], rows.weights[train]).predict_log_proba(rows.X[test])
                total += float(rows.weights[test] @ table[np.arange(len(test)), rows.labels[test]])
            return total

        return clone(self).set_params(C=max(PENALTIES, key=score))

    def _fit(self, X: np.ndarray, codes: np.ndarray, weights: np.ndarray) -> LinearPipeline:
        with warnings.catch_warnings():  # warnings of separated classes and collinear columns, which the penalty handles
            warnings.simplefilter("ignore")
            coefficients, intercepts = self._coefficients(X, codes, weights)
        both = (each.astype(np.float64) for each in (coefficients, intercepts))
        self.coef_, self.intercept_ = (each if len(each) > 1 else np.concatenate([0 * each, each]) for each in both)
        return self

    def _coefficients(self, X: np.ndarray, codes: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return coefficients and intercepts of each class, or of the second of two."""
        from sklearn.linear_model import LogisticRegression

        width = X.shape[1] * (1 if len(self.classes_) == 2 else len(self.classes_))
        model = LogisticRegression(C=self.C, solver="newton-cholesky" if width <= _NEWTON else "lbfgs", max_iter=300)
        model.fit(X, codes, sample_weight=weights.astype(X.dtype))
        return model.coef_, model.intercept_


class BoostingPipeline(TableClassifier):
    """Gradient-boosted trees of LightGBM on the columns of `boosting_matrix`, with missing cells and categories.

    Args:
        categories: the columns of the matrix that are codes of levels.
        trees: how many.
        random_state: seed of the validation rows and of LightGBM.
    """

    family = "boosting"
    encode = staticmethod(boosting_matrix)

    def __init__(self, categories: tuple[int, ...] = (), trees: int = 50, random_state: int = 0) -> None:
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

    def _best(self, rows: GivenRows, splits: list[Split]) -> Any:
        import lightgbm

        stop, data = lightgbm.early_stopping(_PATIENCE, verbose=False), self._data(rows.X, rows.labels, rows.weights)
        found: dict[str, Any] = lightgbm.cv(self._options(rows.labels), data, _MOST_TREES, folds=splits, callbacks=[stop])
        return clone(self).set_params(trees=len(next(iter(found.values()))))

    def _fit(self, X: np.ndarray, codes: np.ndarray, weights: np.ndarray) -> BoostingPipeline:
        import lightgbm

        self.booster_ = lightgbm.train(self._options(codes), self._data(X, codes, weights), num_boost_round=self.trees)
        return self

    def _data(self, X: np.ndarray, codes: np.ndarray, weights: np.ndarray) -> Any:
        import lightgbm

        return lightgbm.Dataset(X, codes, weight=weights, categorical_feature=list(self.categories) or "auto")

    def _options(self, codes: np.ndarray) -> dict[str, Any]:
        count, small, num_classes = len(codes), len(codes) < _SMALL, int(codes.max()) + 1
        return {
            **({"objective": "binary"} if num_classes == 2 else {"objective": "multiclass", "num_class": num_classes}),
            "learning_rate": 0.05 if small else 0.1,
            "num_leaves": 7 if small else 31,
            "min_data_in_leaf": max(1, min(20, count // 20)),
            "lambda_l2": 1.0,
            "seed": self.random_state,
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": 1 if count < _ONE_THREAD else 0,
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


def _has_lightgbm() -> bool:
    try:
        import lightgbm  # noqa: F401
    except (ImportError, OSError):  # the second if its library lacks OpenMP
        return False
    return True
