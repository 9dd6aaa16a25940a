"""Averages over the ranks of a `torch.distributed` job, with gradients.

In every function `group=False` means this rank alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size(group: Any = None) -> int:
    """How many ranks share the batch; 1 outside a distributed job."""
    if group is False or not dist.is_available() or not dist.is_initialized():
        return 1
    return dist.get_world_size(group)


def gather_ranks(tensor: Tensor, group: Any = None) -> Tensor:
    """`tensor` of every rank, stacked, without gradient; all must have one shape."""
    rows = [torch.empty_like(tensor) for _ in range(world_size(group))]
    dist.all_gather(rows, tensor.detach().contiguous(), group=group)
    return torch.stack(rows)


def sum_over_ranks(tensor: Tensor, group: Any = None) -> Tensor:
    """The sum of `tensor` over the ranks, without gradient."""
    if world_size(group) == 1:
        return tensor
    total = tensor.detach().clone()
    dist.all_reduce(total, group=group)
    return total


def log_mean_over_ranks(log_sum: Tensor, log_count: Tensor | float, group: Any = None) -> tuple[Tensor, Tensor | float]:
    """log of the global average, and log of the global count, from each rank's log-sum (k,) and log-count."""
    if world_size(group) == 1:
        return log_sum - log_count, log_count
    count = torch.as_tensor(log_count, dtype=log_sum.dtype, device=log_sum.device)
    mean: tuple[Tensor, Tensor] = _LogMean.apply(log_sum, count.reshape(1), group)
    return mean


class _LogMean(torch.autograd.Function):
    """One collective of k + 1 numbers forward, in log space; one of k numbers backward.

    Every rank's loss depends on every rank's sum, so what the losses say of the mean is added up first.
    """

    @staticmethod
    def forward(ctx: Any, log_sum: Tensor, log_count: Tensor, group: Any) -> tuple[Tensor, Tensor]:
        totals = torch.logsumexp(gather_ranks(torch.cat([log_sum, log_count]), group), 0)
        ctx.group, ctx.share = group, torch.exp(log_sum - totals[:-1])
        count = totals[-1].clone()
        ctx.mark_non_differentiable(count)
        return totals[:-1] - totals[-1], count

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return sum_over_ranks(grads[0], ctx.group) * ctx.share, None, None
