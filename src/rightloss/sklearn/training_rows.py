"""Detect that a fitted model of trees is given the rows it was trained on.

Stage: a fitted classifier, rows, class numbers → bool.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline

from .training_mix import resamples

_ROUNDING = 1e-5  # relative; XGBoost stores sums in single precision


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
        return np.asarray(leaves).reshape(len(leaves), -1)[:, 0], _leaf_counts(tree)
    if package not in ("xgboost", "sklearn") or not hasattr(estimator, "apply") or _has_other_trees(estimator):
        return None
    leaves = np.asarray(estimator.apply(X))
    leaf_of_row = leaves.reshape(len(leaves), -1)[:, 0].astype(int)
    if package == "xgboost":
        (tree, *_) = estimator.get_booster()[:1].get_dump(with_stats=True, dump_format="json")
        return leaf_of_row, _leaf_covers(json.loads(tree))
    first = np.ravel(getattr(estimator, "estimators_", estimator))[0].tree_
    ends = np.flatnonzero(first.children_left < 0)
    return leaf_of_row, dict(zip(ends.tolist(), first.weighted_n_node_samples[ends].tolist(), strict=True))


def _has_other_trees(estimator: Any) -> bool:
    """Return True for XGBoost's linear models, and for its trees with several outputs, which have no dump."""
    params = estimator.get_params(deep=False)
    return params.get("booster") == "gblinear" or params.get("multi_strategy") == "multi_output_tree"


def _leaf_covers(node: dict[str, Any]) -> dict[int, float]:
    """Return the sum of training weights in each leaf below a node of XGBoost's dump."""
    if "leaf" in node:
        return {int(node["nodeid"]): float(node["cover"])}
    return {leaf: cover for child in node["children"] for leaf, cover in _leaf_covers(child).items()}


def _leaf_counts(node: dict[str, Any]) -> dict[int, float]:
    """Return the number of training rows in each leaf below a node of LightGBM's dump."""
    if "left_child" not in node:
        return {int(node.get("leaf_index", 0)): float(node.get("leaf_count", 0))}
    return _leaf_counts(node["left_child"]) | _leaf_counts(node["right_child"])
