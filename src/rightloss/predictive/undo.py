"""Undo the effect of rebalanced training on a model's probabilities.

Stage: `log_probs` of a model fitted with weights or resampling → `log_probs` at the data's own mix, or at a population's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from ..arrays import Array, Numbers, Predictions, array_of, checked_choice, logsumexp, multiply_classes
from ..finding_tables import in_order, map_findings
from ..prevalence import (
    FindingMix,
    Frequencies,
    Mix,
    MultilabelPrevalence,
    PopulationEstimate,
    Prevalence,
    by_finding,
    label_matrix,
    log_mix,
    mix_of_every_class,
)
from .retarget import class_table


def undo_sampling(
    log_probs: Predictions,
    *,
    class_weight: Literal["balanced"] | Mapping[int, float | int] | Numbers | None = None,
    pos_weight: Numbers | None = None,
    scale_pos_weight: Numbers | None = None,
    pos_bagging_fraction: Numbers | None = None,
    neg_bagging_fraction: Numbers | None = None,
    kept: Mapping[int, float | int] | Numbers | None = None,
    sampling: Frequencies | FindingMix | None = None,
    population: Mix | FindingMix | None = None,
    labels: Numbers | None = None,
) -> Any:
    """Return log-probabilities without the effect of class weights or resampling in training.

    A weight w_k of class k in the loss, or drawing it w_k times as often, fits the model to data in which p(x, k) is
    multiplied by w_k. It learns p_w(k|x) ∝ w_k p(k|x), so

        log p(k|x) = log p_w(k|x) − log w_k − normaliser.

    No frequency is needed to return to the data's own mix d. A sampler that draws minibatches at ρ has w_k = ρ_k / d_k. With
    `population` π, the result is also moved from d to π with `retarget`: log p_w(k|x) + log π_k − log(w_k d_k), where
    w_k d_k = ρ_k.

    | you trained with | write |
    |---|---|
    | scikit-learn `class_weight={0: 1, 1: 9}` | `class_weight={0: 1, 1: 9}` |
    | scikit-learn, LightGBM `class_weight="balanced"` | `class_weight="balanced", labels=y` |
    | `nn.CrossEntropyLoss(weight=w)` | `class_weight=w` |
    | `nn.BCEWithLogitsLoss(pos_weight=9)` | `pos_weight=9` |
    | XGBoost, LightGBM `scale_pos_weight=9` | `scale_pos_weight=9` |
    | LightGBM `is_unbalance=True` | `class_weight="balanced", labels=y` |
    | LightGBM `neg_bagging_fraction=0.1` | `neg_bagging_fraction=0.1` |
    | `RandomUnderSampler`, 900 of 9,000 negatives left | `kept={0: 0.1}` |
    | each positive repeated five times | `kept={1: 5}` |
    | `WeightedRandomSampler`, examples of class k weighted w_k | `class_weight=w` |
    | a sampler at even classes | `sampling=[0.5, 0.5], labels=y` |
    | rightloss `RebalancedSampler` and plain cross-entropy | `sampling=sampler.sampling, labels=y` |
    | any of these, for use at π | the same and `population=π`, with `labels=y` unless `sampling` is given |

    It can only undo class weights: not focal loss or label smoothing, which change the target at every x, and not SMOTE,
    which changes p(x|k). For a regularised, early-stopped or misspecified model the result is close to that of a model
    trained without weights, but not equal. For trees the difference is large: deep trees, as in a forest, fit every label
    regardless of its weight, and the mean of the result is then far below (or above) the frequency of the class. Compare the
    two on held-out rows, and if they differ, calibrate: `rightloss.shift.fit_calibration(undone, labels)`. After training
    with rightloss's own losses there is nothing to undo.

    With several findings (multi-label), `log_probs` are `(n, L)`, the log-probability that each finding is present; give
    `pos_weight` as L numbers, as `nn.BCEWithLogitsLoss` takes it, or `sampling` as L rates, `labels` as `(n, L)`, and
    `population` as a `Prevalence.multilabel`.

    Args:
        log_probs: log-probabilities `(n, k)` or dense maps `(n, k, h, w, …)`; tensor or array.
        class_weight: w_k: K numbers, a dict by class number (1 where a class is not in it), or "balanced", which is
            n / (K n_k) of `labels`, after `kept`. With `sampling` write the numbers, because "balanced" could mean before or
            after resampling.
        pos_weight: w_1 of two classes, as torch calls it.
        scale_pos_weight: w_1 of two classes, as XGBoost and LightGBM call it.
        pos_bagging_fraction: share of class 1, of two classes, in each bag, as LightGBM calls it. It acts as `kept={1: …}` and
            moves the probabilities by as much (LightGBM issue 6639), if `bagging_freq` > 0: without it LightGBM draws no bags.
        neg_bagging_fraction: that of class 0; as `kept={0: …}`.
        kept: copies of each class kept per original example, K numbers or a dict: 0.1 is a tenth, 5 is five of each.
        sampling: ρ, the class frequencies of the minibatches. It includes all resampling, so do not give `kept` as well.
        population: π, the population of the predictions, as `to` of `retarget`. None for the data's own mix.
        labels: the labels of the training data before any rebalancing.

    Returns:
        Log-probabilities of the same shape, dtype and type.

    Raises:
        ValueError: if there is nothing to undo, an argument is missing (the message says which), or two contradict each other.

    Examples:
        >>> import numpy as np
        >>> import rightloss as rl
        >>> log_probs = np.log([[0.25, 0.75]])  # of a model trained with pos_weight=9
        >>> np.exp(rl.undo_sampling(log_probs, pos_weight=9)).round(3)
        array([[0.75, 0.25]])
    """
    if _numbers(pos_weight) > 1 or isinstance(population, MultilabelPrevalence) or isinstance(sampling, MultilabelPrevalence):
        others = (class_weight, scale_pos_weight, pos_bagging_fraction, neg_bagging_fraction, kept)
        if any(each is not None for each in others):
            came = "another argument: its weights are not by finding"
            raise ValueError(f"Expected `pos_weight` or `sampling` with multi-label predictions, but got {came}.")
        return _undo_findings(log_probs, pos_weight, sampling, population, labels)
    table = class_table(log_probs)
    rows, num_classes = table.shape[:2]
    positive = _given(pos_weight=pos_weight, scale_pos_weight=scale_pos_weight)
    bags = _given(neg_bagging_fraction=neg_bagging_fraction, pos_bagging_fraction=pos_bagging_fraction)
    _check_choice(class_weight, positive, kept, bags, sampling, num_classes)
    log_w = _log_weights(kept, "kept", num_classes)
    for name, fraction in bags.items():
        log_w[int(name.startswith("pos"))] = _log_positive(name, fraction, most=1.0)
    data = None
    if labels is not None:
        remedy = "give the labels that the model was trained on, numbered as the columns of `log_probs`"
        data = np.log(mix_of_every_class(labels, num_classes, -100, remedy))
    if isinstance(class_weight, str):  # n / (K n_k) of what was kept
        checked_choice(class_weight, "class_weight", ["balanced"], "or write the weights themselves, a number per class")
        log_w = -_required(data, "`labels`, those of the training data", "know the 'balanced' weights")
    else:
        log_w += _log_weights(class_weight, "class_weight", num_classes)
    for name, weight in positive.items():
        log_w[1] += _log_positive(name, weight)
    back = -log_w
    if sampling is not None:
        back = back - log_mix(sampling, "sampling", num_classes)
        if population is None:
            back = back + _required(data, "`labels`, or `population` to go there instead", "undo `sampling`")
    elif population is not None:
        back = back - _required(data, "`labels`, those of the training data", "go on to `population`")
    if population is not None:
        back = back + log_mix(population, "population", num_classes, rows)
    return multiply_classes(table, back)


def _undo_findings(log_probs: Predictions, pos_weight: Any, sampling: Any, population: Any, labels: Any) -> Any:
    """Return `undo_sampling` of each finding (multi-label)."""
    given = [each for each in (population, sampling) if isinstance(each, MultilabelPrevalence)]
    if any(each.patterns is not None for each in given):
        raise ValueError(
            "Expected findings that were sampled each by itself, but the prevalence has weights of images by the findings they "
            "have together: rates cannot undo that; train with one of rightloss's losses and this prevalence."
        )
    if not given and _numbers(pos_weight) == 2 and _is_two_classes(log_probs):
        remedy = "write class_weight=[…] for both classes; for two findings (multi-label) give a table (n, 2, 2)"
        raise ValueError(f"Expected `pos_weight` to be one number for two classes, but got 2: {remedy}.")
    names = given[0].names if given else tuple(f"finding {number}" for number in range(_numbers(pos_weight)))
    if isinstance(sampling, MultilabelPrevalence):
        sampling = sampling.sampling
    if _numbers(pos_weight) == 1:
        pos_weight = [pos_weight] * len(names)
    both = {"pos_weight": pos_weight, "sampling": sampling, "population": population}
    by_name = {name: by_finding(value, name, names) for name, value in both.items() if value is not None}
    matrix = None if labels is None else label_matrix(in_order(labels, names), "labels", len(names))

    def undone(table: Array, number: int) -> Any:
        column = None if matrix is None else matrix[:, number]
        read = None if column is None else column[~np.isnan(column)].astype(np.int64)
        return undo_sampling(table, labels=read, **{name: part[number] for name, part in by_name.items()})

    return map_findings(log_probs, names, undone)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _numbers(pos_weight: Any) -> int:
    return 0 if pos_weight is None else array_of(pos_weight, "pos_weight").size


def _is_two_classes(log_probs: Predictions) -> bool:
    table = array_of(log_probs, "log_probs")
    return table.ndim == 2 and table.shape[1] == 2 and bool((np.abs(logsumexp(table)) < 1e-3).all())


def _check_choice(class_weight: Any, positive: Any, kept: Any, bags: Any, sampling: Any, size: int) -> None:
    """Raise a ValueError for arguments that say too little, or contradict each other."""
    refused = {
        "an argument that says how the training was rebalanced, but got none of `class_weight`, `pos_weight`, `kept`, "
        "`sampling` or their like: name it, or use retarget(log_probs, from_=…, to=…) to move between two mixes": (
            class_weight is None and not positive and kept is None and not bags and sampling is None
        ),
        f"two classes for {' and '.join([*positive, *bags])}, but got {size}: use `class_weight`, or `kept`": (
            bool(positive or bags) and size != 2
        ),
        "`pos_weight` or `scale_pos_weight`, but got both: one model has one of them": len(positive) == 2,
        "`kept` or LightGBM's bagging fractions, but got both: write their products as `kept`": bool(bags) and kept is not None,
        "`kept` or `sampling`, but got both: `sampling` is the mix finally drawn, leave out `kept`": (
            sampling is not None and (kept is not None or bool(bags))
        ),
        f"class_weight={class_weight!r} or `sampling`, but got both: were the weights computed before or after "
        "resampling? write the weights themselves, a number per class": isinstance(class_weight, str) and sampling is not None,
        f"`sampling` to be frequencies, but got a {type(sampling).__name__}: write `prevalence.sampling`": (
            isinstance(sampling, Prevalence | PopulationEstimate)
        ),
    }
    for expected, wrong in refused.items():
        if wrong:
            raise ValueError(f"Expected {expected}.")


def _required(data: np.ndarray | None, what: str, purpose: str) -> np.ndarray:
    if data is None:
        raise ValueError(f"Expected the data's own mix of classes to {purpose}, but it is not known: add {what}.")
    return data


def _log_weights(weights: Any, name: str, num_classes: int) -> np.ndarray:
    if weights is None:
        return np.zeros(num_classes)
    if isinstance(weights, Mapping):
        unknown = [key for key in weights if key not in range(num_classes)]
        if unknown:
            expected = f"the classes of `{name}` to be numbered 0..{num_classes - 1}"
            raise ValueError(f"Expected {expected}, but got {unknown}: name them by their columns in `log_probs`.")
        weights = [weights.get(k, 1.0) for k in range(num_classes)]
    vector = array_of(weights, name).astype(np.float64)
    if vector.shape != (num_classes,):
        remedy = "list all classes, or name some in a dict"
        raise ValueError(f"Expected `{name}` to be {num_classes} numbers, but got shape {vector.shape}: {remedy}.")
    if not (np.isfinite(vector) & (vector > 0)).all():
        remedy = "a class without weight in training cannot be recovered"
        raise ValueError(f"Expected `{name}` to be positive and finite, but got {vector.tolist()}: {remedy}.")
    return np.log(vector)


def _log_positive(name: str, weight: Any, most: float = np.inf) -> float:
    value = array_of(weight, name)
    if value.size != 1 or not 0 < value.item() <= most or np.isinf(value.item()):
        expected = "one positive number" + f" of at most {most:g}" * (most < np.inf)
        raise ValueError(f"Expected `{name}` to be {expected}, but got {weight!r}: it is the weight, or share, of one class.")
    return float(np.log(value.item()))
