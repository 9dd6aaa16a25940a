"""Decisions that minimise the expected cost.

Stage: log_probs `(n, k)` or dense `(n, k, h, w, …)`, costs `(k, d)` → int decisions, one per row or cell, and their expected
costs.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..log_probs import as_given, log_prob_table, map_of, row_blocks, rows_of, tensor_of
from .sample import Numbers, Predictions

_ENTRIES = 1 << 22  # numbers of the table per block


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
    given = tensor_of(log_probs, "log_probs").detach()
    table = log_prob_table(rows_of(given))
    matrix = cost_matrix(table.shape[1], costs, threshold)
    extra = None if abstain_cost is None else _cost_of_abstaining(abstain_cost)
    plain = extra is None and torch.equal(matrix, 1 - torch.eye(table.shape[1], dtype=torch.float64))
    log_regret = None if plain else _log_regret(matrix, extra).to(table.device)
    found = table.new_empty(len(table), dtype=torch.int64)
    for start, block in row_blocks(table, max(1, _ENTRIES // table.shape[1])):
        rounding = torch.finfo(block.dtype).eps
        chosen = _likeliest(block, rounding) if log_regret is None else _cheapest(block, log_regret, extra, rounding)
        found[start : start + len(block)] = chosen
    return as_given(map_of(found, given.shape), log_probs)


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
    given = tensor_of(log_probs, "log_probs").detach()
    table = log_prob_table(rows_of(given))
    matrix = cost_matrix(table.shape[1], costs).to(table.device)
    chosen = _decisions(decisions, given.shape, matrix.shape[1], abstain_cost is not None).to(table.device)
    extra = math.nan if abstain_cost is None else _cost_of_abstaining(abstain_cost)
    found = table.new_empty(len(table), dtype=torch.float64)
    for start, block in row_blocks(table, max(1, _ENTRIES // table.shape[1])):
        index = chosen[start : start + len(block)]
        each = matrix.T[index.clamp_min(0)]
        # in logarithms, because a tiny probability can have a huge cost
        terms = each.sign() * (block.double() + each.abs().log()).exp()
        found[start : start + len(block)] = torch.where(index < 0, extra, terms.sum(1))
    return as_given(map_of(found, given.shape), log_probs)


def cost_matrix(num_classes: int, costs: Numbers | None = None, threshold: float | None = None) -> Float64[Tensor, "k d"]:
    """Return the checked costs of decision d if class k is true.

    Args:
        num_classes: K.
        costs: `(k, d)`; None means 1 for every wrong class.
        threshold: t, for two classes, instead of `costs`: a missed 1 costs 1 and a false one t/(1 − t), so that deciding 1 is
            best from p₁ = t on.

    Examples:
        >>> from rightloss.metrics import cost_matrix
        >>> cost_matrix(2, threshold=0.2)
        tensor([[0.0000, 0.2500],
                [1.0000, 0.0000]], dtype=torch.float64)
    """
    if costs is not None and threshold is not None:
        raise ValueError("Expected `costs` or `threshold`, but got both: a threshold is shorthand for a table of costs.")
    if threshold is not None:
        if num_classes != 2:
            raise ValueError(
                f"Expected two classes for a `threshold`, but got {num_classes}: give `costs`, true class by decision."
            )
        odds = math.exp(threshold_log_odds(threshold))
        return torch.tensor([[0.0, odds], [1.0, 0.0]], dtype=torch.float64)
    if costs is None:
        return 1 - torch.eye(num_classes, dtype=torch.float64)
    matrix = tensor_of(costs, "costs").detach().to("cpu", torch.float64)
    if matrix.ndim != 2 or matrix.shape[0] != num_classes or matrix.shape[1] == 0:
        raise ValueError(
            f"Expected `costs` of shape ({num_classes}, d), a row per true class and a column per decision, "
            f"but got shape {tuple(matrix.shape)}: is it transposed?"
        )
    if not bool(torch.isfinite(matrix).all()):
        raise ValueError(
            f"Expected finite `costs`, but got {matrix.tolist()}: give what must never happen a large cost, such as 1e100."
        )
    return matrix


def threshold_log_odds(threshold: float) -> float:
    """Return log t/(1 − t) of a checked threshold on a probability."""
    try:
        t = float(threshold)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Expected `threshold` to be one number, but got {threshold!r}: such as 0.2.") from error
    if not 0 < t < 1:
        raise ValueError(
            f"Expected `threshold` to lie strictly between 0 and 1, but got {t:g}: is it a percentage, or on the log-odds?"
        )
    return math.log(t) - math.log1p(-t)


def _likeliest(block: Tensor, rounding: float) -> Int64[Tensor, " n"]:
    best = block.amax(1, keepdim=True)
    return _last(block >= best - 2 * rounding * (1 + best.abs()))


def _cheapest(block: Tensor, log_regret: Tensor, abstain_cost: float | None, rounding: float) -> Int64[Tensor, " n"]:
    wide = block.double()
    log_costs = torch.stack([torch.logsumexp(wide + column, 1) for column in log_regret.T], 1)
    decisions = log_costs if abstain_cost is None else log_costs[:, :-1]
    least = decisions.amin(1, keepdim=True)
    sizes = log_regret[log_regret.isfinite()].abs()
    largest = float(sizes.max()) if len(sizes) else 0.0
    slack = torch.where(least.isfinite(), 2 * rounding * (1 + least.abs() + largest), 0.0)
    chosen = _last(decisions <= least + slack)
    return chosen if abstain_cost is None else torch.where(log_costs[:, -1] < (least - slack)[:, 0], -1, chosen)


def _last(holds: Tensor) -> Int64[Tensor, " n"]:
    """Return the last column that is True."""
    return holds.shape[1] - 1 - holds.flip(1).to(torch.uint8).argmax(1)


def _log_regret(costs: Tensor, abstain_cost: float | None) -> Float64[Tensor, "k d"]:
    """Return the log of each decision's cost above the minimum, which gives the same decisions and is never negative."""
    if abstain_cost is not None:
        costs = torch.cat([costs, costs.new_full((len(costs), 1), abstain_cost)], 1)
    # halved everywhere, because the difference of two numbers can overflow
    return (costs / 2 - costs.amin(1, keepdim=True) / 2).log()


def _cost_of_abstaining(value: float) -> float:
    try:
        cost = float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Expected `abstain_cost` to be one number, but got {value!r}: such as 0.1.") from error
    if not math.isfinite(cost):
        raise ValueError(f"Expected a finite `abstain_cost`, but got {cost:g}: leave it out if every row must be decided.")
    return cost


def _decisions(decisions: Numbers, shape: torch.Size, columns: int, may_abstain: bool) -> Int64[Tensor, " n"]:
    index, expected = tensor_of(decisions, "decisions").detach(), (shape[0], *shape[2:])
    if index.shape != expected or index.is_floating_point() or index.dtype == torch.bool:
        raise ValueError(
            f"Expected int `decisions` of shape {expected}, one per row of `log_probs`, but got {index.dtype} "
            f"of shape {tuple(index.shape)}: pass the result of `decide`."
        )
    index = index.flatten().long()
    low, high = (int(each) for each in torch.aminmax(index))
    if high >= columns or low < -1:
        raise ValueError(
            f"Expected decisions in 0..{columns - 1}, or −1 to abstain, but got {low}..{high}: "
            "they number the columns of `costs` from 0."
        )
    if low == -1 and not may_abstain:
        raise ValueError("Expected a decision for every row, but some abstain (−1): give the cost of that as `abstain_cost`.")
    return index
