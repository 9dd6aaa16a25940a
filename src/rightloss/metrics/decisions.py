"""Decisions that minimise the expected cost, and conformal sets of classes with guaranteed coverage in another population.

Stage: log_probs `(n, k)` or dense `(n, k, h, w, …)`, costs `(k, d)` → int decisions, one per row or cell, and their expected
costs. Labelled predictions, π, a level → `ConformalSets`; log_probs `(n, k)` → bool `(n, k)`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays import (
    array_of,
    array_or_tensor,
    as_given,
    checked_level,
    checked_number,
    fields_as_given,
    log_prob_table,
    logsumexp,
    map_of,
    row_blocks,
    rows_of,
)
from .sample import Mix, Numbers, Predictions, labelled_sample

if TYPE_CHECKING:
    from jaxtyping import Float, Float64, Int64

_ENTRIES = 1 << 17  # numbers of the table per block, which stay in the processor's cache


def decide(
    log_probs: Predictions, costs: Numbers | None = None, threshold: float | None = None, abstain_cost: float | None = None
) -> Any:
    """Return the decision with the smallest expected cost for each row or cell, `argmin_d Σ_k p(k|x) cost[k, d]`; −1 to
    abstain.

    **For ties the later decision wins, and abstaining never wins.** So two classes at p₁ = ½ give 1, and `threshold=t` gives 1
    from p₁ = t on. Costs are tied if they are equal up to the rounding of `log_probs`, so that the logarithm of 0.3 ties with a
    threshold of 0.3. Costs are compared in logarithms, so nothing underflows.

    Args:
        log_probs: predictions for the population `(n, k)`, or dense maps `(n, k, h, w, …)`, as log-probabilities.
        costs: `(k, d)`, a row for each true class and a column for each decision; None means 1 for every wrong class. Negative
            costs are gains.
        threshold: for two classes, instead of `costs`: decide 1 where p₁ ≥ t.
        abstain_cost: the cost of leaving a row undecided, in the units of `costs`; None means that every row is decided.

    Returns:
        int64 `(n,)`, or `(n, h, w, …)`; an array or a tensor like `log_probs`.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import decide
        >>> log_probs = np.log([[0.9, 0.1], [0.45, 0.55]])
        >>> decide(log_probs, threshold=0.05).tolist(), decide(log_probs, abstain_cost=0.2).tolist()
        ([1, 1], [0, -1])
    """
    given = array_or_tensor(log_probs, "log_probs")
    table = log_prob_table(rows_of(given))
    matrix = cost_matrix(table.shape[1], costs, threshold)
    extra = None if abstain_cost is None else _cost_of_abstaining(abstain_cost)
    return as_given(map_of(best_decisions(table, matrix, extra), tuple(given.shape)), log_probs)


def best_decisions(
    table: Float[np.ndarray, "n k"], costs: Float64[np.ndarray, "k d"], abstain_cost: float | None = None
) -> Int64[np.ndarray, " n"]:
    """Return the decisions of `decide`, from checked log-probabilities and costs."""
    plain = abstain_cost is None and np.array_equal(costs, 1 - np.eye(table.shape[1]))
    log_regret = np.zeros((1, 0)) if plain else _log_regret(costs, abstain_cost)
    reach = np.abs(log_regret[np.isfinite(log_regret)]).max(initial=0.0)
    found, rounding = np.zeros(len(table), np.int64), float(np.finfo(table.dtype).eps)
    for start, block in row_blocks(table, max(1, _ENTRIES // table.shape[1])):
        columns, chosen = np.ascontiguousarray(block.T), found[start : start + len(block)]
        if plain:
            log_costs = -columns
        else:
            log_costs = np.concatenate([logsumexp(columns.astype(np.float64) + each[:, None], 0) for each in log_regret.T])
        decisions = log_costs if abstain_cost is None else log_costs[:-1]
        least = decisions.min(0)
        slack = np.where(np.isfinite(least), 2 * rounding * (1 + np.abs(least) + reach), 0.0)
        for d, own in enumerate(decisions <= least + slack):  # the last of equal ones is kept
            chosen[own] = d
        if abstain_cost is not None:
            chosen[log_costs[-1] < least - slack] = -1
    return found


def expected_cost(log_probs: Predictions, costs: Numbers | None, decisions: Numbers, abstain_cost: float | None = None) -> Any:
    """Return the expected cost of each decision, `Σ_k p(k|x) cost[k, d]`, float64 `(n,)` or `(n, h, w, …)`.

    Args:
        log_probs: predictions for the population `(n, k)`, or dense maps `(n, k, h, w, …)`.
        costs: `(k, d)`, rows: true class, columns: decision; None means 1 for every wrong class.
        decisions: int `(n,)` or `(n, h, w, …)`, from `decide`.
        abstain_cost: the cost of a −1.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import expected_cost
        >>> costs = [[0, 1], [10, 0]]  # a missed class 1 costs 10
        >>> expected_cost(np.log([[0.9, 0.1], [0.45, 0.55]]), costs, [0, 1]).round(2).tolist()
        [1.0, 0.45]
    """
    given = array_or_tensor(log_probs, "log_probs")
    table = log_prob_table(rows_of(given))
    matrix = cost_matrix(table.shape[1], costs)
    chosen = _decisions(decisions, given.shape, matrix.shape[1], abstain_cost is not None)
    found = np.full(len(table), math.nan if abstain_cost is None else _cost_of_abstaining(abstain_cost))
    with np.errstate(divide="ignore"):
        log_size, sign = np.log(np.abs(matrix)), np.sign(matrix)
    for d in range(matrix.shape[1]):
        own = np.flatnonzero(chosen == d)
        # in logarithms, because a tiny probability can have a huge cost
        found[own] = np.exp(table[own].astype(np.float64) + log_size[:, d]) @ sign[:, d]
    return as_given(map_of(found, tuple(given.shape)), log_probs)


def cost_matrix(num_classes: int, costs: Numbers | None = None, threshold: float | None = None) -> Float64[np.ndarray, "k d"]:
    """Return the checked costs of decision d if class k is true.

    Args:
        num_classes: K.
        costs: `(k, d)`; None means 1 for every wrong class.
        threshold: t, for two classes, instead of `costs`: a missed 1 costs 1 and a false one t/(1 − t), so that deciding 1 is
            best from p₁ = t on.

    Examples:
        >>> from rightloss.metrics import cost_matrix
        >>> cost_matrix(2, threshold=0.2)
        array([[0.  , 0.25],
               [1.  , 0.  ]])
    """
    if costs is not None and threshold is not None:
        raise ValueError("Expected `costs` or `threshold`, but got both: a threshold is shorthand for a table of costs.")
    if threshold is not None and num_classes != 2:
        raise ValueError(f"Expected two classes for a `threshold`, but got {num_classes}: give `costs`, class by decision.")
    if threshold is not None:
        return np.array([[0.0, math.exp(threshold_log_odds(threshold))], [1.0, 0.0]])
    if costs is None:
        return 1 - np.eye(num_classes)
    matrix = array_of(costs, "costs").astype(np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != num_classes or matrix.shape[1] == 0:
        came = f"shape {matrix.shape}: is it transposed?"
        raise ValueError(f"Expected `costs` of shape ({num_classes}, d), a row per true class, but got {came}")
    if not np.isfinite(matrix).all():
        remedy = "give what must never happen a large cost, such as 1e100"
        raise ValueError(f"Expected finite `costs`, but got {matrix.tolist()}: {remedy}.")
    return matrix


def threshold_log_odds(threshold: float) -> float:
    """Return log t/(1 − t) of a checked threshold on a probability."""
    try:
        t = float(threshold)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Expected `threshold` to be one number, but got {threshold!r}: such as 0.2.") from error
    if not 0 < t < 1:
        raise ValueError(f"Expected `threshold` to lie strictly between 0 and 1, but got {t:g}: is it a percentage?")
    return math.log(t) - math.log1p(-t)


@dataclass(frozen=True)
class ConformalSets:
    """Label-shift conformal sets (Podkopaev & Ramdas 2021, by the weighted quantiles of Tibshirani et al. 2019).

    Class y is in the set of x if its score s(x, y) = −log p(y|x) is at most q_y, the smallest q with

        Σ_i w_i 1{s(x_i, y_i) ≤ q}  ≥  level · (1 + w_y),      w_i = π_{y_i} / n_{y_i},   w_y = π_y / n_y,

    over the calibration sample: n_c examples of class c, in any mix. w_y is the weight of the new case, if its class is y. Then
    the set contains the true class for at least a fraction `level` of the population, on average over calibration samples, for
    any quality of the predictions. With `per_class` the quantile is taken within class y, so that `level` holds for each class,
    and therefore at any prevalence; the sets are larger.

    Make one with `ConformalSets.fit`.

    Attributes:
        thresholds: q `(k,)`; ∞ for a class that is in every set, because it had too few examples, or because the true class had
            probability 0 more often than the level allows.
        level: the guaranteed coverage.
        per_class: whether the level holds in every class.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import ConformalSets
        >>> y = np.arange(200) % 2
        >>> x = np.random.default_rng(0).normal(size=200) + y
        >>> log_probs = -np.logaddexp(0, np.stack([2 * x, -2 * x], 1))
        >>> sets = ConformalSets.fit(log_probs[:100], y[:100], prevalence=0.1, level=0.9)
        >>> sets.predict(log_probs[100:103]).tolist()
        [[True, True], [False, True], [True, True]]
    """

    thresholds: Float64[np.ndarray, " k"]
    level: float
    per_class: bool

    @classmethod
    def fit(
        cls, log_probs: Predictions, labels: Numbers, prevalence: Mix | None = None, level: float = 0.9, per_class: bool = False
    ) -> ConformalSets:
        """Fit the thresholds to a calibration sample that the model was not trained on.

        Warn if a class is in every set, and say why.

        Args:
            log_probs: predictions `(n, k)`, as log-probabilities.
            labels: int labels `(n,)` or soft votes `(n, k)`, in any mix of classes; every class must occur.
            prevalence: π of the population: a `Prevalence`, an estimate of one, K frequencies, or for two classes that of class
                1. Coverage is linear in π, so the mean of an uncertain π is used, and the level holds on average over π. For a
                level at every π use `per_class`, which needs no prevalence.
            level: the fraction of people with their class in the set.
            per_class: whether the level must hold in every class.
        """
        level = checked_level(level)
        if prevalence is None and not per_class:
            remedy = "give it, or use per_class=True, with a level that holds at any prevalence"
            raise ValueError(f"Expected `prevalence`, where the sets will be used, but got none: {remedy}.")
        sample = labelled_sample(log_probs, labels, prevalence)
        log_prob_table(log_probs)  # refuses a map
        sample.require_every_class("conformal sets")
        own, mix = -sample.own_log_probs, sample.prevalence.population
        share = mix if per_class else np.ones_like(mix)
        mass = level * (share + mix / sample.totals) * (1 - 1e-12)  # rounding counts as reached
        thresholds = np.empty_like(mass)
        for c in range(sample.num_classes):
            among = sample.labels == c if per_class else slice(None)
            thresholds[c] = _quantile(own[among], sample.population_weights[among], mass[c])
        unbounded, few = np.isinf(thresholds), mass > share
        _warn_of(unbounded & few, f"Too few calibration examples for a level of {level:g}", "calibrate on more of them")
        why = f"The predictions give probability 0 to the true class of too many examples for a level of {level:g}"
        _warn_of(unbounded & ~few, why, "use predictions that rule out less")
        return fields_as_given(cls(thresholds, level, per_class), log_probs)

    def predict(self, log_probs: Predictions) -> Any:
        """Return which classes are in the set of each row: bool `(n, k)`, an array or a tensor like `log_probs`.

        Args:
            log_probs: predictions of the same model, with the precision and prevalence of the calibration.
        """
        table = log_prob_table(log_probs, len(self.thresholds))
        return as_given(-table <= np.asarray(self.thresholds), log_probs)


def _log_regret(costs: np.ndarray, abstain_cost: float | None) -> Float64[np.ndarray, "k d"]:
    """Return the log of each decision's cost above the minimum, which gives the same decisions and is never negative."""
    if abstain_cost is not None:
        costs = np.pad(costs, ((0, 0), (0, 1)), constant_values=abstain_cost)
    # halved everywhere, because the difference of two numbers can overflow
    with np.errstate(divide="ignore"):
        return np.log(costs / 2 - costs.min(1, keepdims=True) / 2)


def _cost_of_abstaining(value: float) -> float:
    return checked_number(value, "abstain_cost", remedy="such as 0.1; leave it out if every row must be decided")


def _decisions(decisions: Numbers, shape: Sequence[int], columns: int, may_abstain: bool) -> Int64[np.ndarray, " n"]:
    index, expected = array_of(decisions, "decisions"), (shape[0], *shape[2:])
    if index.shape != expected or index.dtype.kind in "fb":
        came = f"{index.dtype} of shape {index.shape}: pass the result of `decide`"
        raise ValueError(f"Expected int `decisions` of shape {expected}, but got {came}.")
    index = index.reshape(-1).astype(np.int64)
    low, high = int(index.min()), int(index.max())
    if high >= columns or low < -1:
        came = f"{low}..{high}: they number the columns of `costs` from 0"
        raise ValueError(f"Expected decisions in 0..{columns - 1}, or −1 to abstain, but got {came}.")
    if low == -1 and not may_abstain:
        raise ValueError("Expected a decision for every row, but some abstain (−1): give the cost of that as `abstain_cost`.")
    return index


def _quantile(scores: np.ndarray, weights: np.ndarray, mass: float) -> float:
    """Return the smallest score with at least `mass` of the weights at or below it; ∞ if there is none."""
    order = np.argsort(scores, kind="stable")
    reached = weights[order].cumsum() >= mass
    return float(scores[order][reached.argmax()]) if reached[-1] else np.inf


def _warn_of(classes: np.ndarray, reason: str, remedy: str) -> None:
    listed = np.flatnonzero(classes).tolist()
    if listed:
        warnings.warn(f"{reason}: class(es) {listed} are in every set. Lower the level, or {remedy}.", stacklevel=3)
