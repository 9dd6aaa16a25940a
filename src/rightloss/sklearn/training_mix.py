"""The effective class frequencies of a classifier's training: labels, sample weights, class weights and resampling.

Stage: a classifier, its training rows → `TrainingMix`: ρ, and whether rows were generated or chosen by x; a fitted classifier,
rows → whether it was trained on them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.class_weight import compute_class_weight

_REMEDY = "say at which mix of classes its probabilities hold, `sampling=`, or calibrate, method='affine'"
_ROUNDING = 1e-5  # relative, of the weights in a leaf; XGBoost stores sums in single precision
_RANDOM = ("RandomUnderSampler", "RandomOverSampler")  # samplers of imbalanced-learn that choose rows only by label


@dataclass(frozen=True)
class TrainingMix:
    """The rows and weights of each class in training.

    Attributes:
        counts: rows (K,).
        mass: the sum of their weights (K,), class weights included.
        reshaped: names of the samplers that changed p(x|k); empty if only the class frequencies changed.
    """

    counts: np.ndarray
    mass: np.ndarray
    reshaped: tuple[str, ...] = ()

    @property
    def sampling(self) -> np.ndarray:
        """ρ (K,)."""
        return self.mass / self.mass.sum()

    def times(self, weights: np.ndarray) -> TrainingMix:
        """Return the mix after weighting each class by w_k."""
        return replace(self, mass=self.mass * weights)

    def resampled(self, counts: np.ndarray, sampler: Any) -> TrainingMix:
        """Return the mix after a sampler left `counts` rows, each with the average weight of its class."""
        name = type(sampler).__name__
        keeps = name in _RANDOM and getattr(sampler, "shrinkage", None) is None  # p(x|k), apart from chance
        return TrainingMix(counts, counts * self.mass / self.counts, self.reshaped + (() if keeps else (name,)))


def is_a(estimator: Any, *names: str) -> bool:
    """Return whether a classifier is one of scikit-learn's of these names, or derived from it, without importing that."""
    classes = (each for each in type(estimator).__mro__ if each.__module__.startswith("sklearn."))
    return any(each.__name__ in names for each in classes)


def training_mix(
    estimator: Any, X: Any, y: np.ndarray, classes: np.ndarray, sample_weight: np.ndarray | None = None
) -> TrainingMix:
    """Return the class frequencies at which a classifier's probabilities hold, from its parameters.

    ρ is the labels' mix d, by weight, times the class weights w: see `rightloss.undo_sampling`. The function knows

    - `class_weight` of scikit-learn, LightGBM and imbalanced-learn; `priors`, `class_prior` and `fit_prior=False` of naive
      Bayes and discriminant analysis, which are ρ themselves, as is the population of rightloss's own classifiers;
      `balance_probabilities` of TabPFN;
    - `scale_pos_weight` of XGBoost, LightGBM and CatBoost; `is_unbalance`, `pos_bagging_fraction`, `neg_bagging_fraction` of
      LightGBM; `class_weights` and `auto_class_weights` of CatBoost;
    - samplers of imbalanced-learn in a pipeline: it runs a copy of the pipeline without the classifier, and counts the
      resulting rows; and its ensembles, with members trained on resampled rows.

    A search is treated as its best estimator; bagging, boosting, thresholds and frozen estimators as their inner estimator;
    stacking as its final estimator. Probabilities calibrated on the rows themselves, by `CalibratedClassifierCV` or in an
    `SVC`, are at the rows' own mix.

    Args:
        estimator: a classifier, fitted or not.
        X: the rows; used only by samplers.
        y: their labels `(n,)`.
        classes: all labels, sorted (K,).
        sample_weight: of the rows `(n,)`.

    Raises:
        ValueError: if there is no single mix, as for a vote of members with different class weights.
    """
    number = np.searchsorted(classes, y)
    counts = np.bincount(number, minlength=len(classes)).astype(float)
    mass = counts if sample_weight is None else np.bincount(number, weights=sample_weight, minlength=len(classes))
    return _mix(estimator, X, y, classes, TrainingMix(counts, mass))


def resamples(estimator: Any) -> bool:
    """Return True if the estimator contains a sampler of imbalanced-learn."""
    parts = [estimator, *estimator.get_params(deep=True).values()] if hasattr(estimator, "get_params") else [estimator]
    return any(hasattr(part, "fit_resample") for part in parts)


def own_population(estimator: Any) -> np.ndarray | None:
    """Return the class frequencies at which a fitted classifier of rightloss predicts, also inside meta-estimators; else None.

    For members of an ensemble it is their mean. Probabilities that `CalibratedClassifierCV` calibrates again are no longer at
    the population.
    """
    if is_a(estimator, "CalibratedClassifierCV"):
        return None
    if hasattr(estimator, "population_"):
        return np.asarray(estimator.population_, dtype=float)
    found = [own_population(each) for each in _fitted_inside(estimator)]
    known = [each for each in found if each is not None]
    return np.mean(known, axis=0) if known and len(known) == len(found) else None


def _fitted_inside(estimator: Any) -> list[Any]:
    """Return the fitted classifiers from which a meta-estimator's predictions come."""
    if isinstance(estimator, Pipeline):
        return [estimator.steps[-1][1]]
    if isinstance(estimator, FrozenEstimator):
        return [estimator.estimator]
    for name in ("best_estimator_", "final_estimator_", "estimators_", "estimator_"):
        found = getattr(estimator, name, None)  # in an ensemble `estimator_` is not fitted
        if found is not None:
            return list(found) if isinstance(found, list) else [found]
    return []


def _mix(estimator: Any, X: Any, y: np.ndarray, classes: np.ndarray, mix: TrainingMix) -> TrainingMix:
    """Return the mix in the training of `estimator`, given rows at `mix`."""
    known = None if is_a(estimator, "VotingClassifier", "OneVsRestClassifier") else own_population(estimator)
    if known is not None:
        return replace(mix, mass=known)
    if isinstance(estimator, Pipeline):
        return _of_pipeline(estimator, X, y, classes, mix)
    if is_a(estimator, "CalibratedClassifierCV"):
        return mix
    if is_a(estimator, "SVC", "NuSVC"):  # its own calibration ignores all weights
        return replace(mix, mass=mix.counts)
    if is_a(estimator, "StackingClassifier"):
        final = getattr(estimator, "final_estimator_", estimator.final_estimator)
        return mix if final is None else _mix(final, X, np.searchsorted(classes, y), np.arange(len(classes)), mix)
    if is_a(estimator, "VotingClassifier"):
        return _of_votes(estimator, X, y, classes, mix)
    if is_a(estimator, "OneVsRestClassifier"):
        return _of_one_vs_rest(estimator, X, y, classes, mix)
    if type(estimator).__module__.startswith("imblearn.ensemble"):
        return _of_balanced_ensemble(estimator, X, y, classes, mix)
    inner = _inner(estimator)
    if inner is None:
        return _of_classifier(estimator, classes, mix)
    if is_a(estimator, "BaggingClassifier"):  # it passes class numbers to its members
        return _mix(inner, X, np.searchsorted(classes, y), np.arange(len(classes)), mix)
    return _mix(inner, X, y, classes, mix)


def _inner(estimator: Any) -> Any:
    """Return the inner classifier of a meta-estimator, for a search the best one; None for a plain classifier."""
    inner = estimator.get_params(deep=False).get("estimator") if hasattr(estimator, "get_params") else None
    if inner is None or not is_classifier(inner):
        return None
    return getattr(estimator, "best_estimator_", inner)


def _of_pipeline(pipeline: Pipeline, X: Any, y: np.ndarray, classes: np.ndarray, mix: TrainingMix) -> TrainingMix:
    if resamples(pipeline):
        for _, step in clone(pipeline).steps[:-1]:
            if hasattr(step, "fit_resample"):
                X, y = step.fit_resample(X, y)
                mix = mix.resampled(_counts(y, classes), step)
            elif hasattr(step, "transform"):
                X = step.fit(X, y).transform(X)
    return _mix(pipeline.steps[-1][1], X, np.asarray(y), classes, mix)


def _of_votes(voting: Any, X: Any, y: np.ndarray, classes: np.ndarray, mix: TrainingMix) -> TrainingMix:
    numbers = np.searchsorted(classes, y), np.arange(len(classes))
    members = [each for _, each in voting.estimators if each != "drop"]
    found = [_mix(each, X, *numbers, mix) for each in getattr(voting, "estimators_", members)]
    for each in found[1:]:
        if not np.allclose(each.sampling, found[0].sampling, rtol=0.02):
            raise ValueError(
                f"Expected the members of a vote to be trained on one mix of classes, but got {found[0].sampling.round(4)} and "
                f"{each.sampling.round(4)}: {_REMEDY}."
            )
    return replace(found[0], reshaped=tuple(sorted({name for each in found for name in each.reshaped})))


def _of_one_vs_rest(estimator: Any, X: Any, y: np.ndarray, classes: np.ndarray, mix: TrainingMix) -> TrainingMix:
    member = getattr(estimator, "estimators_", [estimator.estimator])[0]
    if len(classes) == 2:
        return _mix(member, X, np.searchsorted(classes, y), np.arange(2), mix)
    counts, mass = (np.array([each[1:].sum(), each[0]]) for each in (mix.counts, mix.mass))
    pair = TrainingMix(counts, mass)
    found = _mix(member, X, (y == classes[0]).astype(int), np.arange(2), pair)
    if not np.allclose(found.sampling, pair.sampling, rtol=1e-6):
        raise ValueError(
            f"Expected one-vs-rest members without class weights and population, but got {type(estimator.estimator).__name__} "
            f"with some: each member then has a mix of its own; {_REMEDY}."
        )
    return mix


def _of_balanced_ensemble(estimator: Any, X: Any, y: np.ndarray, classes: np.ndarray, mix: TrainingMix) -> TrainingMix:
    """Return the mix in one member of an imbalanced-learn ensemble, which is trained on resampled rows."""
    from imblearn.under_sampling import RandomUnderSampler

    params = estimator.get_params(deep=False)
    sampler = RandomUnderSampler() if params.get("sampler") is None else clone(params["sampler"])
    sampler.set_params(sampling_strategy=params["sampling_strategy"])
    rows, labels = sampler.fit_resample(X, y)
    left = mix.resampled(_counts(labels, classes), sampler)
    if "class_weight" in params:  # a forest computes its weights from the rows before resampling
        return left.times(_class_weights(estimator, params, classes, mix))
    inner = params.get("estimator")
    return left if inner is None else _mix(inner, rows, labels, classes, left)


def _of_classifier(estimator: Any, classes: np.ndarray, mix: TrainingMix) -> TrainingMix:
    params = estimator.get_params(deep=False) if hasattr(estimator, "get_params") else {}
    prior = params.get("priors", params.get("class_prior"))
    if prior is not None:
        return replace(mix, mass=np.asarray(prior, dtype=float))
    even = params.get("fit_prior") is False and not is_a(estimator, "ComplementNB")
    if even or params.get("balance_probabilities") is True:  # TabPFN divides by the frequencies of its training
        return replace(mix, mass=np.ones(len(classes)))
    weights = _class_weights(estimator, params, classes, mix)
    package = type(estimator).__module__.partition(".")[0]
    if package == "catboost":
        return mix.times(weights * _of_catboost(params, classes, mix))
    if len(classes) == 2 and package in ("lightgbm", "xgboost"):
        weights = weights * [1.0, params.get("scale_pos_weight") or 1.0]
        weights = weights * _of_lightgbm(params, mix) if package == "lightgbm" else weights
    return mix.times(weights)


def _class_weights(estimator: Any, params: Mapping[str, Any], classes: np.ndarray, mix: TrainingMix) -> np.ndarray:
    """Return `class_weight` as numbers (K,)."""
    given = params.get("class_weight")
    if given is None:
        return np.ones(len(classes))
    if isinstance(given, Mapping):
        return _by_label(given, classes)
    if given in ("balanced", "balanced_subsample"):
        return 1 / (mix.mass if _balances_weights(estimator) else mix.counts)
    raise ValueError(
        f"Expected `class_weight` of {type(estimator).__name__} to be None, 'balanced' or a dict, but got {given!r}: {_REMEDY}."
    )


def _balances_weights(estimator: Any) -> bool:
    """Return True if class_weight="balanced" means equal sums of weights, False if it means weights by equal counts of rows.

    The two differ only with sample weights; which one applies depends on the classifier and the version of scikit-learn.
    """
    if hasattr(estimator, "_validate_y_class_weight"):  # forests
        return "sample_weight" in signature(estimator._validate_y_class_weight).parameters
    knows = "sample_weight" in signature(compute_class_weight).parameters
    return knows and type(estimator).__name__ in ("LogisticRegression", "LogisticRegressionCV", "LinearSVC")


def _of_lightgbm(params: Mapping[str, Any], mix: TrainingMix) -> np.ndarray:
    """Return the weights of two classes from LightGBM's own parameters, including their aliases."""

    def named(*names: str, default: float) -> float:
        return float(next((params[name] for name in names if params.get(name) is not None), default))

    weights = np.ones(2)
    if named("is_unbalance", "unbalance", "unbalanced_sets", default=0.0):
        weights /= mix.counts
    if named("bagging_freq", "subsample_freq", default=0.0) > 0:
        for k, sign in enumerate(("neg", "pos")):
            names = [f"{sign}_{end}" for end in ("bagging_fraction", "sub_row", "subsample", "bagging")]
            weights[k] *= named(*names, default=1.0)
    return weights


def _of_catboost(params: Mapping[str, Any], classes: np.ndarray, mix: TrainingMix) -> np.ndarray:
    given = params.get("class_weights")
    if given is not None:
        return _by_label(given, classes) if isinstance(given, Mapping) else np.asarray(given, dtype=float)
    power = {"Balanced": 1.0, "SqrtBalanced": 0.5}.get(str(params.get("auto_class_weights")), 0.0)
    positive = float(params.get("scale_pos_weight") or 1.0)
    return mix.mass**-power * ([1.0, positive] if len(classes) == 2 else 1.0)


def _by_label(weights: Mapping[Any, float], classes: np.ndarray) -> np.ndarray:
    """Return a dict of weights as numbers (K,): 1 for a class that is not in it."""
    return np.array([float(weights.get(label, 1.0)) for label in classes.tolist()])


def _counts(labels: Any, classes: np.ndarray) -> np.ndarray:
    return np.bincount(np.searchsorted(classes, np.asarray(labels)), minlength=len(classes)).astype(float)


def was_trained_on(estimator: Any, X: Any, labels: np.ndarray) -> bool:
    """Return True if the leaves of the first tree show that these rows were the training rows, in any order.

    A leaf stores the sum of its training rows' weights. The training rows, with one weight per class, match all these sums;
    other rows do not. False means "not known": for other models, for trees trained on a sample of the rows, for very small
    trees, and for a part of the training rows.

    Args:
        estimator: a fitted classifier. Those that can be checked are LightGBM, XGBoost, and trees of scikit-learn with `apply`,
            trained on all rows; also as the last step of a pipeline.
        X: rows.
        labels: their class numbers `(n,)`.
    """
    if isinstance(estimator, FrozenEstimator):
        return was_trained_on(estimator.estimator, X, labels)
    if isinstance(estimator, Pipeline):
        if resamples(estimator):
            return False
        return was_trained_on(estimator.steps[-1][1], estimator[:-1].transform(X) if len(estimator) > 1 else X, labels)
    found = _first_tree(estimator, X)
    if found is None:
        return False
    leaf_of_row, stored = found
    leaves = np.array(sorted(stored))
    if not np.isin(leaf_of_row, leaves).all():
        return False
    counts = np.zeros((len(leaves), int(labels.max()) + 1))
    np.add.at(counts, (np.searchsorted(leaves, leaf_of_row), labels), 1.0)
    sums = np.array([stored[leaf] for leaf in leaves.tolist()])
    if len(leaves) < counts.shape[1] + 3 or sums.min() <= 0:  # too few equations to be sure
        return False
    weights, *_ = np.linalg.lstsq(counts / sums[:, None], np.ones(len(leaves)), rcond=None)
    return bool(np.allclose(counts @ weights, sums, rtol=_ROUNDING, atol=0))


def _first_tree(estimator: Any, X: Any) -> tuple[np.ndarray, dict[int, float]] | None:
    """Return the leaf of each row `(n,)`, and the sum of training weights in each leaf; None if the model has no such tree."""
    package = type(estimator).__module__.partition(".")[0]
    if package == "lightgbm":
        leaves = estimator.predict(X, pred_leaf=True, num_iteration=1)
        tree = estimator.booster_.dump_model(num_iteration=1)["tree_info"][0]["tree_structure"]
        return np.asarray(leaves).reshape(len(leaves), -1)[:, 0], _leaf_weights(tree)
    params = estimator.get_params(deep=False)
    without_dump = params.get("booster") == "gblinear" or params.get("multi_strategy") == "multi_output_tree"
    if package not in ("xgboost", "sklearn") or not hasattr(estimator, "apply") or without_dump:
        return None
    leaves = np.asarray(estimator.apply(X))
    leaf_of_row = leaves.reshape(len(leaves), -1)[:, 0].astype(int)
    if package == "xgboost":
        (tree, *_) = estimator.get_booster()[:1].get_dump(with_stats=True, dump_format="json")
        return leaf_of_row, _leaf_weights(json.loads(tree))
    first = np.ravel(getattr(estimator, "estimators_", estimator))[0].tree_
    ends = np.flatnonzero(first.children_left < 0)
    return leaf_of_row, dict(zip(ends.tolist(), first.weighted_n_node_samples[ends].tolist(), strict=True))


def _leaf_weights(node: dict[str, Any]) -> dict[int, float]:
    """Return the sum of training weights in each leaf below a node of XGBoost's dump, or the number of rows of LightGBM's."""
    children = node.get("children") or [node[side] for side in ("left_child", "right_child") if side in node]
    if not children:
        return {int(node.get("nodeid", node.get("leaf_index", 0))): float(node.get("cover", node.get("leaf_count", 0)))}
    return {leaf: weight for child in children for leaf, weight in _leaf_weights(child).items()}
