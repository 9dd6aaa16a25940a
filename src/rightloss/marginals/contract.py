"""The interface of a marginal, and functions that all marginals share; averages over the ranks of a `torch.distributed` job.

A group of ranks of None means this rank only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from ..tensors import cannot_be_read as cannot_be_read
from ..tensors import in_transform as in_transform

Measure = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | float]]


class MinibatchEstimate(NamedTuple):
    """The minibatch's estimate of the marginal, at one set of weights or at many.

    Attributes:
        log_m: `log avg_n β_n p(k|x_n,w)` of the (global) minibatch, `(k,)` or `(*sets, k)`, without gradient.
        examples: the number of examples in it.
        measure: (outputs, target or None) → (`log Σ_n β_n p(k|x_n,w)`, `log n`) over other data; None if there are none.
        finite: True if log_m is known to be finite; False if it was not checked.
        params: the weights by name, `(*sets, …)`, if a method of inference made the estimate.
        read: for several findings, `(*sets,)`, which of them were read in the minibatch; None for all.
    """

    log_m: Tensor
    examples: int
    measure: Measure | None = None
    finite: bool = False
    params: Mapping[str, Tensor] | None = None
    read: Tensor | None = None


@runtime_checkable
class MarginalState(Protocol):
    """q, the value used for p(y|w) in denominators, at one set of weights, `(k,)`, or at many, `(*sets, k)`.

    Training calls `update` once per minibatch. `value` returns the same without a change of state, so it can be used inside
    `torch.func`.
    """

    def value(self, estimate: MinibatchEstimate) -> Float[Tensor, "*sets k"]:
        """Return log q, given the minibatch's estimate, without a change of state."""
        ...

    def update(self, estimate: MinibatchEstimate) -> Float[Tensor, "*sets k"]:
        """Update the state with the minibatch, except in eval mode, and return log q."""
        ...

    def reset(self) -> None:
        """Forget all minibatches."""
        ...


@runtime_checkable
class Marginal(MarginalState, Protocol):
    """An estimator of q for a loss."""

    def prepare(self, num_classes: int | None) -> None:
        """Allocate the state for K classes, or for regression (None), where the support is the labels of each batch."""
        ...

    def sampling_frequencies(self, sampling: Tensor, realised: Callable[[], Tensor]) -> Tensor:
        """Return the class frequencies (K,) in the denominator of β: the declared ρ, or those of the batch, `realised()`."""
        ...


class Reference:
    """Refer to a module, or to a function of one, without registering it: it is not saved, trained or moved.

    A deep copy refers to the copy of the module if both are copied together, in any order; otherwise to the module itself.
    """

    def __init__(self, target: Any, memo: dict[int, Any] | None = None) -> None:
        self._target, self._memo = target, memo

    def get(self) -> Any:
        """Return the object referred to."""
        if self._memo is not None:
            self._target, self._memo = _copied(self._target, self._memo), None
        return self._target

    def __deepcopy__(self, memo: dict[int, Any]) -> Reference:
        return Reference(self.get(), memo)

    def __reduce__(self) -> tuple[type[Reference], tuple[Any]]:
        return Reference, (self.get(),)


def _copied(target: Any, memo: dict[int, Any]) -> Any:
    """Return the deep copy of `target` in `memo`, or `target` itself."""
    if isinstance(target, MethodType):
        return MethodType(target.__func__, memo.get(id(target.__self__), target.__self__))
    return memo.get(id(target), target)


def with_minibatch_gradient(log_q: Float[Tensor, "*sets k"], log_m: Float[Tensor, "*sets k"]) -> Float[Tensor, "*sets k"]:
    """Return log p(y|w) with the value `log q` and the gradient ∇m/q of the minibatch estimate m, Eq. (5).

    It is log(q + m − stop(m)), so that the second derivative, ∇²m/q − ∇m∇mᵀ/q², is that of a logarithm as well, and with
    q = m every derivative is exactly that of log m. It is computed as `log q + log1p(m/q − stop(m/q))`, without underflow.
    """
    ratio = torch.exp(log_m - log_q)
    return log_q + torch.log1p(ratio - ratio.detach())


def check_classes(num_classes: int | None, name: str, why: str) -> int:
    """Return K, or raise a ValueError for marginals that need a fixed list of classes."""
    if num_classes is None:
        raise ValueError(f"Expected classes for {name}, but the likelihood is a density: {why}; use BatchMarginal().")
    return num_classes


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
