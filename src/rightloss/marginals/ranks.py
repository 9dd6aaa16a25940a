"""Sums over the ranks of a `torch.distributed` job, with gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size(group: Any = None) -> int:
    """How many ranks share the batch; 1 outside a distributed job."""
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


class _Gather(torch.autograd.Function):
    """A row per rank; the gradient of a rank's own row is the sum of what every rank's loss says of it."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any) -> Tensor:
        ctx.group = group
        rows = [torch.empty_like(tensor) for _ in range(world_size(group))]
        dist.all_gather(rows, tensor.contiguous(), group=group)
        return torch.stack(rows)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return sum_over_ranks(grads[0].contiguous(), ctx.group)[dist.get_rank(ctx.group)], None


def gather_ranks(tensor: Tensor, group: Any = None) -> Tensor:
    """`tensor` of every rank, stacked; all must have one shape."""
    gathered: Tensor = _Gather.apply(tensor, group)
    return gathered


def sum_over_ranks(tensor: Tensor, group: Any = None) -> Tensor:
    """The sum of `tensor` over the ranks, without gradient; `group=False` is this rank alone."""
    if group is False or world_size(group) == 1:
        return tensor
    total = tensor.clone()
    dist.all_reduce(total, group=group)
    return total


def log_mean_over_ranks(log_sum: Tensor, log_count: Tensor | float, group: Any = None) -> Tensor:
    """log of the global average, from each rank's log-sum (k,) and log-count: one collective, in log space.

    `group=False` is this rank alone.
    """
    if group is False or world_size(group) == 1:
        return log_sum - log_count
    totals = torch.logsumexp(
        gather_ranks(
            torch.cat([log_sum, torch.as_tensor(log_count, dtype=log_sum.dtype, device=log_sum.device).reshape(1)]), group
        ),
        0,
    )
    return totals[:-1] - totals[-1]
