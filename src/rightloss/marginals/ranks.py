"""Averages over the ranks of a `torch.distributed` job, with gradients.

A group of None means this rank only.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def sharing_group(process_group: dist.ProcessGroup | None, training: bool) -> dist.ProcessGroup | None:
    """Return the ranks that share a batch, all by default; None if there is only this rank.

    In eval mode it is always None, because other ranks may be doing something else.
    """
    if not training or not dist.is_available() or not dist.is_initialized():
        return None
    group = dist.group.WORLD if process_group is None else process_group
    return group if dist.get_world_size(group) > 1 else None


def gather_ranks(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return `tensor` of every rank, stacked, without gradient; all must have the same shape."""
    rows = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, tensor.detach().contiguous(), group=group)
    return torch.stack(rows)


def sum_over_ranks(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return the sum of `tensor` over the ranks, without gradient."""
    if group is None:
        return tensor
    total = tensor.detach().clone()
    dist.all_reduce(total, group=group)
    return total


def log_mean_over_ranks(log_sum: Tensor, log_count: Tensor | float, group: dist.ProcessGroup | None) -> Tensor:
    """Return the log of the global average, from each rank's log-sum `(*sets, k)` and log-count."""
    if group is None:
        return log_sum - log_count
    count = torch.as_tensor(log_count, dtype=log_sum.dtype, device=log_sum.device)
    mean: Tensor = _LogMean.apply(log_sum, count.reshape(*log_sum.shape[:-1], 1), group)
    return mean


class _LogMean(torch.autograd.Function):
    """Average in log space: one collective of k + 1 numbers forward, one of k numbers backward.

    Every rank's loss depends on every rank's sum, so the gradients by the mean are summed over ranks first.
    """

    @staticmethod
    def forward(ctx: Any, log_sum: Tensor, log_count: Tensor, group: dist.ProcessGroup) -> Tensor:
        totals = torch.logsumexp(gather_ranks(torch.cat([log_sum, log_count], -1), group), 0)
        ctx.group, ctx.share = group, torch.exp(log_sum - totals[..., :-1])
        return totals[..., :-1] - totals[..., -1:]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return sum_over_ranks(grads[0], ctx.group) * ctx.share, None, None
