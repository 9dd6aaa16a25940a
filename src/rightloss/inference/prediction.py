"""Prediction: the average over draws, with entropies and intervals.

Stage: `log_probs (s, n, k)` of s draws, in blocks → `Prediction`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..arrays import array_of

_MOST = 1 << 20  # draws of π
_NUMBERS = 1 << 24  # numbers in memory at a time


@dataclass(frozen=True)
class Prediction:
    """The posterior predictive: the average of the draws, and their disagreement.

    With p_s(k|x) of draw s and p = avg_s p_s, the entropy of p is the mean entropy of the draws plus the information I that the
    label of x would give about the weights:

        H[p] = avg_s H[p_s] + I,  I ≥ 0.

    More training data reduce only I. Entropies are in nats. Functions with an argument `log_probs`, such as `retarget` and
    `evaluate`, also accept a prediction.

    Attributes:
        log_probs: log avg_s p_s(k|x), `(n, k)` or dense `(n, k, h, w, …)`; in regression the log-density at m values, `(n, m)`.
        entropy: H[p], `(n,)` or `(n, h, w, …)`; None in regression, like the other two.
        data_entropy: avg_s H[p_s], the uncertainty that remains if the weights are known (aleatoric).
        model_entropy: I, the uncertainty due to unknown weights (epistemic).
        low: lower limit of the central interval of p_s(k|x) over the draws, a probability, class by class, in the shape of
            `log_probs`; None if no interval was requested. With an uncertain population, π is drawn as well. For one draw, such
            as MAP, and a certain population, it is p itself.
        high: upper limit.

    Examples:
        >>> import torch
        >>> from rightloss.inference.prediction import averaged
        >>> two_draws = torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]]).log()
        >>> prediction = averaged([two_draws], over_classes=True)
        >>> prediction.log_probs.exp()
        tensor([[0.5000, 0.5000]])
        >>> bool(prediction.model_entropy > prediction.data_entropy)  # each draw is sure, of something else
        True
    """

    log_probs: Any  # arrays if x is an array, else tensors
    entropy: Any = None
    data_entropy: Any = None
    model_entropy: Any = None
    low: Any = None
    high: Any = None

    def as_given(self, x: Any) -> Prediction:
        """Return the prediction with arrays if x is an array, else with tensors."""
        if not isinstance(x, np.ndarray):
            return self
        parts = (getattr(self, field.name) for field in fields(self))
        return Prediction(*(None if part is None else array_of(part, "log_probs") for part in parts))


def averaged(
    tables: Iterable[Float[Tensor, "m n k *dense"]],
    over_classes: bool,
    level: float | None = None,
    log_ratios: Callable[[int], Float[Tensor, "d k"]] | None = None,
) -> Prediction:
    """Return the prediction of all draws in `tables`, in blocks of any size; sums are in float64.

    With `level`, also return the limits of the interval with this fraction of the draws; then all tables stay in memory.
    `log_ratios` draws log π − log π̄ for an uncertain population, to which the interval moves the draws, each several times.
    """
    log_sum, entropies, count, kept = None, torch.zeros(()), 0, []
    for table in tables:
        kept += [] if level is None else [table]
        dtype, wide = table.dtype, table.double()
        part = torch.logsumexp(wide, 0)
        log_sum = part if log_sum is None else torch.logaddexp(log_sum, part)
        if over_classes:
            entropies = _entropy(wide, 2).sum(0) + entropies.to(wide)
        count += len(table)
    assert log_sum is not None, "no draws"
    log_probs = log_sum - math.log(count)
    ends = (None, None) if level is None else _central(torch.cat(kept), level, log_ratios)
    if not over_classes:
        return Prediction(log_probs.to(dtype), low=ends[0], high=ends[1])
    total, data = _entropy(log_probs, 1), entropies / count
    gain = total - data
    # negative only by rounding, because entropy is concave
    gain = torch.where(gain.abs() < 1e-6, gain.clamp_min(0), gain)
    return Prediction(*(each.to(dtype) for each in (log_probs, total, data, gain)), *ends)


def _central(
    tables: Float[Tensor, "s n k *dense"], level: float, log_ratios: Callable[[int], Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Return the quantiles (1 ± level)/2 over the draws, interpolated; torch.quantile fails for large tables."""
    rows = tables.cpu().movedim(2, -1)
    shape, rows = rows.shape[1:], rows.flatten(1, -2)
    moves = torch.zeros(1, len(rows), 1, 1)
    if log_ratios is not None:
        times = math.ceil(min(200 / (1 - level), _MOST) / len(rows))  # a hundred beyond each limit, as in retarget_interval
        moves = log_ratios(times * len(rows)).to(rows).view(times, len(rows), 1, -1)

    def quantiles(block: Tensor) -> Tensor:
        drawn = block.exp() if log_ratios is None else torch.softmax(block + moves, -1).flatten(0, 1)
        return torch.from_numpy(np.quantile(drawn.numpy(), [(1 - level) / 2, (1 + level) / 2], axis=0))

    blocks = rows.split(max(1, _NUMBERS // (moves.shape[0] * rows[:, 0].numel())), 1)
    low, high = torch.cat([quantiles(block) for block in blocks], 1).unflatten(1, shape[:-1]).movedim(-1, 2).to(tables)
    return low, high


def _entropy(log_probs: Tensor, dim: int) -> Tensor:
    """Return −Σ_k p_k log p_k, with 0 for a class of probability 0."""
    return torch.special.entr(log_probs.exp()).sum(dim)
