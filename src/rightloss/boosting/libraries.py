"""One small interface to training and raw scores with LightGBM, XGBoost and CatBoost.

Stage: a checked table, class numbers, weights, a start (k,) and a loss → `Trained`, the library's own booster; it and a table →
raw scores by row, `(n, k)`, without the start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from .objectives import BoostingMetric, InformationGainObjective, WeightedObjective

Library = Literal["lightgbm", "xgboost", "catboost"]
_MISSING = "(missing)"
Objective = InformationGainObjective | WeightedObjective


class Part(NamedTuple):
    """Rows to train or validate on: a table, class numbers, weights (None: all 1)."""

    x: Any
    y: np.ndarray
    sample_weight: np.ndarray | None


@dataclass(frozen=True)
class Plan:
    """How to train, with scikit-learn's names.

    Attributes:
        objective: our objective; None for the library's cross-entropy.
        start: (k,) the score of every class before the first round.
        metric: a metric of raw scores, for early stopping.
        adjust: (k,) added to the library's own scores before `metric` is computed: log π − log ρ for the built-in objective.
        names: column names that the library accepts.
        params: further parameters of the library.
    """

    objective: Objective | None
    start: np.ndarray
    metric: BoostingMetric
    adjust: np.ndarray
    n_estimators: int
    learning_rate: float
    num_leaves: int | None
    max_depth: int | None
    n_iter_no_change: int
    names: list[str] | None
    params: dict[str, Any]
    seed: int
    n_jobs: int | None

    @property
    def num_classes(self) -> int:
        return len(self.start)

    def scores_at_start(self, n: int) -> np.ndarray:
        """Return the start for n rows in the libraries' form: `(n,)` log-odds for two classes, else `(n, k)`."""
        return np.full(n, self.start[1] - self.start[0]) if self.num_classes == 2 else np.tile(self.start, (n, 1))


class Trained(NamedTuple):
    """The library's booster, truncated at its best round, and the number of its rounds; None and 0 if CatBoost has no split."""

    booster: Any
    rounds: int


def train_lightgbm(plan: Plan, train: Part, valid: Part | None) -> Trained:
    """Train with `lightgbm.train`."""
    import lightgbm as lgb

    params: dict[str, Any] = {
        "objective": plan.objective or ("binary" if plan.num_classes == 2 else "multiclass"),
        "learning_rate": plan.learning_rate,
        "num_leaves": plan.num_leaves,
        "max_depth": plan.max_depth,
        "num_threads": _threads(plan.n_jobs, 0),
        "seed": plan.seed,
        "verbosity": -1,
        "metric": "none",
        "num_class": plan.num_classes if plan.num_classes > 2 else None,
    }
    data = [
        lgb.Dataset(
            part.x,
            part.y,
            weight=part.sample_weight,
            init_score=plan.scores_at_start(len(part.y)),
            feature_name=plan.names or "auto",
        )
        for part in (train, valid)
        if part is not None
    ]
    if valid is not None:
        data[1].reference = data[0]
    data[0].params = {"verbosity": -1} | plan.params
    data[0].construct()
    if not any(data[0].feature_num_bin(column) > 1 for column in range(data[0].num_feature())):
        plan = replace(plan, objective=None)  # no split is possible: LightGBM accepts such data only with its own objective
        params["objective"] = "binary" if plan.num_classes == 2 else "multiclass"
    booster = lgb.train(
        _given(params) | plan.params,
        data[0],
        plan.n_estimators,
        valid_sets=data[1:],
        feval=_metric(plan) if valid is not None else None,
        callbacks=[lgb.early_stopping(plan.n_iter_no_change, verbose=False)] if valid is not None else [],
    )
    return Trained(booster, booster.best_iteration if valid is not None else booster.current_iteration())


def train_xgboost(plan: Plan, train: Part, valid: Part | None) -> Trained:
    """Train with `xgboost.train`."""
    import xgboost as xgb

    params: dict[str, Any] = {
        "objective": "binary:logistic" if plan.num_classes == 2 else "multi:softprob",
        "base_score": 0.5,  # log-odds 0; for several classes the same score for all
        "learning_rate": plan.learning_rate,
        "max_leaves": plan.num_leaves,
        "grow_policy": None if plan.num_leaves is None else "lossguide",
        "max_depth": plan.max_depth,
        "nthread": _threads(plan.n_jobs, None),
        "seed": plan.seed,
        "verbosity": 0,
        "disable_default_eval_metric": 1,
        "num_class": plan.num_classes if plan.num_classes > 2 else None,
    }
    data = [
        _dmatrix(part.x, plan.names, label=part.y, weight=part.sample_weight, base_margin=plan.scores_at_start(len(part.y)))
        for part in (train, valid)
        if part is not None
    ]
    booster = xgb.train(
        _given(params) | plan.params,
        data[0],
        plan.n_estimators,
        evals=[(data[1], "valid")] if valid is not None else [],
        obj=plan.objective,
        custom_metric=_metric(plan) if valid is not None else None,
        early_stopping_rounds=plan.n_iter_no_change if valid is not None else None,
        verbose_eval=False,
    )
    booster = booster[: booster.best_iteration + 1] if valid is not None else booster
    return Trained(booster, booster.num_boosted_rounds())


def train_catboost(plan: Plan, train: Part, valid: Part | None) -> Trained:
    """Train with CatBoost's own cross-entropy; early stopping uses that loss, at the training mix."""
    import catboost

    params: dict[str, Any] = {
        "loss_function": "Logloss" if plan.num_classes == 2 else "MultiClass",
        "iterations": plan.n_estimators,
        "learning_rate": plan.learning_rate,
        "max_leaves": plan.num_leaves,
        "grow_policy": None if plan.num_leaves is None else "Lossguide",
        "max_depth": plan.max_depth,
        "thread_count": _threads(plan.n_jobs, None),
        "random_seed": plan.seed,
        "od_wait": plan.n_iter_no_change if valid is not None else None,
        "od_type": "Iter" if valid is not None else None,
        "logging_level": "Silent",
        "allow_writing_files": False,
        "boost_from_average": False if plan.num_classes == 2 else None,
    }
    pools = [
        catboost.Pool(
            part.x,
            part.y,
            weight=part.sample_weight,
            baseline=plan.scores_at_start(len(part.y)),
            cat_features=_categorical(part.x),
            feature_names=plan.names,
        )
        for part in (train, valid)
        if part is not None
    ]
    booster = catboost.CatBoost(_given(params) | plan.params)
    try:
        booster.fit(pools[0], eval_set=pools[1:] or None, use_best_model=valid is not None)
    except catboost.CatBoostError as error:
        if "All features are either constant or ignored" not in str(error):
            raise
        return Trained(None, 0)  # no split is possible
    return Trained(booster, booster.tree_count_)


TRAIN: dict[str, Callable[[Plan, Part, Part | None], Trained]] = {
    "lightgbm": train_lightgbm,
    "xgboost": train_xgboost,
    "catboost": train_catboost,
}


def raw_scores(library: Library, booster: Any, x: Any, names: list[str] | None, n_jobs: int | None = None) -> np.ndarray:
    """Return the trees' scores without the start, `(n, k)` in float64; for two classes the first column is 0.

    Without a booster the scores are 0.
    """
    if booster is None:
        return np.zeros((x.shape[0], 1))
    if library == "lightgbm":
        scores = booster.predict(x, raw_score=True, num_threads=_threads(n_jobs, 0))
    elif library == "xgboost":
        scores = booster.predict(_dmatrix(x, names), output_margin=True)
    else:
        import catboost

        pool = catboost.Pool(x, cat_features=_categorical(x), feature_names=names)
        scores = booster.predict(pool, prediction_type="RawFormulaVal")
    scores = np.asarray(scores, dtype=np.float64)
    return np.stack([np.zeros_like(scores), scores], axis=1) if scores.ndim == 1 else scores


def is_frame(x: Any) -> bool:
    """Return whether `x` is a pandas frame, which the libraries accept."""
    return hasattr(x, "iloc") and hasattr(x, "select_dtypes")


def with_plain_categories(x: Any, library: Library) -> Any:
    """Return a frame with categories that the library accepts.

    For XGBoost floats and bools become strings. For CatBoost all do, and a missing or new one is a category of its own.
    """
    for name in x.select_dtypes("category").columns:
        labels = x[name].cat.categories.tolist()
        if library == "catboost":
            words = list(dict.fromkeys([*map(str, labels), _MISSING]))
            x = x.assign(**{name: x[name].cat.rename_categories(str).cat.set_categories(words).fillna(_MISSING)})
        elif library == "xgboost" and any(isinstance(label, float | bool) for label in labels):
            x = x.assign(**{name: x[name].cat.rename_categories(str)})
    return x


def _dmatrix(x: Any, names: list[str] | None, **rest: Any) -> Any:
    import xgboost as xgb

    return xgb.DMatrix(x, feature_names=names, enable_categorical=is_frame(x), **rest)


def _categorical(x: Any) -> list[int] | None:
    return [x.columns.get_loc(name) for name in x.select_dtypes("category").columns] if is_frame(x) else None


def _metric(plan: Plan) -> Any:
    """Return the metric of raw scores; built-in objectives pass probabilities, to whose logits `adjust` is added."""
    if plan.objective is not None:
        return plan.metric

    def of_probabilities(probs: np.ndarray, data: Any) -> Any:
        probs = np.clip(np.asarray(probs, dtype=np.float64), 1e-7, 1 - 1e-7)
        table = np.log(np.stack([1 - probs, probs], axis=1) if probs.ndim == 1 else probs) + plan.adjust
        return plan.metric(table, data)

    return of_probabilities


def _threads(n_jobs: int | None, default: int | None) -> int | None:
    """Return the number of threads: n_jobs, or all for None and −1."""
    return default if n_jobs is None or n_jobs < 0 else n_jobs


def _given(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}
