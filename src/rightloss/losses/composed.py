"""The information gain as a composition of torch operations: any likelihood, any derivative, any transform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..likelihoods import Likelihood
from ..marginals import Estimate, Marginal, attach, log_mean_over_ranks, sum_over_ranks, world_size
from .batch import Frame
from .labels import Labels
from .prior_terms import Setting


def information_gain(log_probs: Float[Tensor, "n k"], log_marginal: Float[Tensor, " k"], labels: Labels) -> Float[Tensor, " n"]:
    """How much x tells about y: `log p(y|x,w) − log p(y|w)`, Eq. (1); Σ_k v_nk of it for soft labels."""
    return labels.pick(log_probs) - labels.spread(log_marginal)


def at_reference(table: Float[Tensor, "n k"], log_offset: Float[Tensor, " k"] | None) -> Float[Tensor, "n k"]:
    """`p_r(k|x,w) ∝ p(k|x,w) r_k/π_k`: the same x seen in another mix of the classes."""
    return table if log_offset is None else F.log_softmax(table + log_offset, dim=1)


def composed_loss(
    frame: Frame,
    setting: Setting,
    likelihood: Likelihood,
    log_weights: Tensor | None,
    value: Callable[[Tensor], Tensor],
    group: Any,
) -> Float[Tensor, " n"]:
    """Minus the information gain of each row, minus κ Σ_k r_k log p(k|w).

    Args:
        log_weights: log β_n of the rows, None where all are 1.
        value: the minibatch's log m (without gradient) → log q.
        group: ranks to average m over; `False` for this rank alone.
    """
    log_probs = at_reference(likelihood.table(frame.rows(), frame.support), setting.log_offset)
    log_m = mean_over_batch(log_probs, frame.labels, log_weights, group)
    log_marginal = attach(value(log_m.detach()), log_m)
    loss = -information_gain(log_probs, log_marginal, frame.labels)
    if setting.evidence:
        loss = loss - setting.evidence * (setting.reference * log_marginal).sum()
    return frame.labels.mask(loss)


def mean_over_batch(
    log_probs: Float[Tensor, "n k"], labels: Labels, log_weights: Tensor | None, group: Any
) -> Float[Tensor, " k"]:
    """log m_k = log avg_n β_n p(k|x_n,w), Eq. (4), over the rows that count on all ranks."""
    log_sum, log_count = sum_over_batch(log_probs, labels, log_weights)
    return log_mean_over_ranks(log_sum, log_count, group)[0]


def sum_over_batch(log_probs: Tensor, labels: Labels, log_weights: Tensor | None) -> tuple[Tensor, Tensor | float]:
    """log Σ_n β_n p(k|x_n,w), and log n."""
    if labels.valid is not None:
        shut = torch.where(labels.valid, 0.0, -torch.inf).to(log_probs)
        log_weights = shut if log_weights is None else log_weights + shut
    weighted = log_probs if log_weights is None else log_probs + log_weights[:, None]
    return torch.logsumexp(weighted, 0), labels.log_count(log_probs)


def example_log_weights(setting: Setting, labels: Labels, marginal: Marginal, like: Tensor, group: Any) -> Tensor | None:
    """log β_n, β_n = Σ_c v_nc r_c/ρ_c, with the marginal's word on ρ; None where every β is 1."""

    def batch() -> Tensor:
        counts = torch.cat(
            [labels.shares(labels.mask(like.new_ones(labels.rows)), like), torch.as_tensor(labels.count).to(like).reshape(1)]
        )
        counts = sum_over_ranks(counts, group)
        return counts[:-1] / counts[-1]

    sampling = marginal.mix(setting.sampling, batch)
    if sampling is setting.sampling and setting.plain:
        return None
    return labels.spread(setting.reference / sampling).log()


def estimate_from(
    log_m: Tensor,
    frame: Frame,
    group: Any,
    measure: Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | float]],
    finite: bool = False,
) -> Estimate:
    """What the marginal is told of the batch."""
    count = frame.labels.count
    rows = count if isinstance(count, int) else frame.labels.rows
    return Estimate(log_m, rows if group is False else rows * world_size(group), measure, finite)
