"""The information gain of a softmax likelihood in closed form: one sweep forward, one backward, no second graph.

With p_nk = p_r(k|x_n,w), g_n the gradient that comes in (1/N for a mean), a_k = (Σ_n g_n v_nk − κ r_k Σ_n g_n)/(N q_k),

    ∂L/∂z_nk = g_n (p_nk − v_nk) + β_n p_nk (a_k − Σ_j a_j p_nj).

Rows are taken in blocks that stay in the processor's cache. Probabilities are kept as such, which is exact until one that
matters nears underflow; such a batch is composed in log space instead.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..likelihoods import Categorical
from ..marginals import log_mean_over_ranks, sum_over_ranks
from .batch import Frame, Reduction, raise_nonfinite
from .composed import composed_loss
from .labels import Labels
from .prior_terms import Setting

BLOCK = 2**19  # numbers per block: 2 MiB of float32, about the second-level caches of two cores
LARGE = 2**17  # from this size on, one pass less over the block is worth four more calls
FEW = 16  # with fewer classes torch's softmax is slow along a row and fast along a column
TINY = {torch.float32: 1e-30, torch.float64: 1e-290}


def fused_loss(
    frame: Frame,
    setting: Setting,
    log_weights: Tensor | None,
    value: Callable[[Tensor], Tensor],
    group: Any,
    reduction: Reduction,
) -> Tensor:
    """As `composed_loss`, reduced, for a softmax and int labels on a CPU."""
    logits = frame.outputs
    if logits.ndim > 2:
        last = logits.movedim(1, -1)
        logits = last.flatten(0, -2) if last.is_contiguous() else logits.flatten(2)
    try:
        loss: Tensor = ClosedForm.apply(logits, frame, setting, log_weights, value, group, reduction)
    except _LogSpaceNeededError as needed:
        log_q = needed.log_q
        known = value if log_q is None else lambda _: log_q
        loss = frame.reduce(composed_loss(frame, setting, Categorical(), log_weights, known, group), reduction)
    return loss


class _LogSpaceNeededError(Exception):
    """A probability that matters is about to underflow, or logits are not finite and NaN is wanted."""

    def __init__(self, log_q: Tensor | None = None) -> None:
        super().__init__()
        self.log_q = log_q


class ClosedForm(torch.autograd.Function):
    """Minus the gain of each row, reduced, with the gradient of the module's docstring."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        frame: Frame,
        setting: Setting,
        log_weights: Tensor | None,
        value: Callable[[Tensor], Tensor],
        group: Any,
        reduction: Reduction,
    ) -> Tensor:
        labels = frame.labels
        with _without_autocast():
            mask = None if labels.valid is None else labels.valid.to(setting.reference.dtype)
            weights = mask if log_weights is None else log_weights.exp() if mask is None else log_weights.exp() * mask
            probs, picked, sums = _sweep(logits, frame, setting.log_offset, weights, ctx.needs_input_grad[0])
            log_m, ctx.log_count = log_mean_over_ranks(sums.log_(), labels.log_count(sums), group)
            log_q = value(log_m)
            if group is False and not float(log_q.amin()) > math.log(TINY[log_q.dtype]):
                raise _LogSpaceNeededError(log_q)
            # what is as long as the batch is saved as autograd wants it: freed after the backward pass, and checked for changes
            ctx.save_for_backward(logits, labels.index, labels.valid, mask, weights, log_weights)
            bare = replace(labels, index=None, valid=None)
            ctx.frame = replace(frame, outputs=logits.new_empty(0), labels=bare)
            ctx.setting, ctx.group, ctx.reduction = setting, group, reduction
            ctx.probs, ctx.log_q, ctx.log_m = probs, log_q, log_m
            if reduction != "none":
                ctx.counts = labels.shares(1.0, log_q)
            return _loss(picked.log_(), log_q, mask, labels, ctx)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        logits, index, valid, mask, weights, log_weights = ctx.saved_tensors
        frame = replace(ctx.frame, outputs=logits, labels=replace(ctx.frame.labels, index=index, valid=valid))
        if torch.is_grad_enabled():  # create_graph=True: a derivative of this gradient is wanted
            rows = composed_loss(frame, ctx.setting, Categorical(), log_weights, lambda _: ctx.log_q, ctx.group)
            (grad,) = torch.autograd.grad(frame.reduce(rows, ctx.reduction), logits, grads[0], create_graph=True)
        else:
            with _without_autocast():
                grad = _gradient(ctx, frame, mask, weights, grads[0])
        return grad, None, None, None, None, None, None


def _loss(log_picked: Tensor, log_q: Tensor, mask: Tensor | None, labels: Labels, ctx: Any) -> Tensor:
    """log q_y − log p_y, and the evidence; a sum needs the classes' counts alone, which the backward pass uses again."""
    setting = ctx.setting
    evidence = setting.evidence * (setting.reference * log_q).sum() if setting.evidence else 0.0
    if ctx.reduction == "none":
        assert labels.index is not None
        rows = log_q.gather(0, labels.index).sub_(log_picked).sub_(evidence)
        return ctx.frame.reduce(rows if mask is None else rows * mask, "none")
    own = (log_picked if mask is None else log_picked.mul_(mask)).sum()
    total = ctx.counts @ log_q - own - labels.count * evidence
    return total / ctx.frame.mean_count if ctx.reduction == "mean" else total


def _sweep(
    logits: Tensor, frame: Frame, log_offset: Tensor | None, weights: Tensor | None, keep: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """p_nk where it is to be kept, p_n,y_n `(n,)`, and Σ_n β_n p_nk `(k,)`."""
    index = frame.labels.index
    assert index is not None
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    columns, safe = _in_columns(logits), True
    offset = log_offset[:, None] if columns and log_offset is not None else log_offset
    blocks = _blocks(logits)
    probs: Tensor | None
    if len(blocks) == 1:
        p, picked, sums, safe = _sweep_block(_block(logits, None, columns), index, offset, weights, frame, 0, None)
        probs = p[0].t() if columns and logits.ndim == 2 else p
    else:
        probs = _empty_probs(logits, columns, dtype) if keep else None
        picked, sums = torch.empty(index.shape, dtype=dtype), torch.zeros(logits.shape[1], dtype=torch.float64)
        for where, rows in blocks:
            assert rows is not None
            part = None if weights is None else weights[rows]
            into = None if probs is None else _block(probs, where, columns)
            z = _block(logits, where, columns)
            _, own, more, fine = _sweep_block(z, index[rows], offset, part, frame, rows.start, into)
            picked[rows] = own
            sums += more
            safe = safe and fine
        sums = sums.to(dtype)
    if not safe and not min(float(picked.amin()), float(sums.amin())) > TINY[dtype]:
        raise _LogSpaceNeededError
    return probs if keep else None, picked, sums


def _sweep_block(
    z: Tensor,
    index: Tensor,
    offset: Tensor | None,
    weights: Tensor | None,
    frame: Frame,
    first_row: int,
    into: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """p of one block, each row's own p, Σ β p, and whether every p is clear of underflow."""
    z = z.to(torch.float32) if z.dtype not in TINY else z
    moved = z if offset is None else torch.add(z, offset, out=_scratch(z.shape, z.dtype))
    p = torch.softmax(moved, 1, out=into)
    fine = float(p.amin()) > TINY[p.dtype]  # false of NaN as well
    if not fine and not bool(torch.isfinite(z).all()):
        if frame.nonfinite == "raise":
            raise_nonfinite(z if z.ndim == 2 else z.movedim(1, 2).flatten(0, 1), first_row)
        raise _LogSpaceNeededError
    own = p.gather(1, _like_block(index, p)).flatten()
    # torch's own sums are made in pairs; a product with `weights` would add up row after row, and lose digits in float32
    weighted = p if weights is None else torch.mul(p, _like_block(weights, p), out=_scratch(p.shape, p.dtype))
    return p, own, weighted.sum(0 if z.ndim == 2 else (0, 2)), fine


def _gradient(ctx: Any, frame: Frame, mask: Tensor | None, weights: Tensor | None, grad_loss: Tensor) -> Tensor:
    """∂L/∂z, made of the probabilities in their own memory; asked for once more, they are swept anew."""
    logits, index = frame.outputs, frame.labels.index
    assert index is not None
    probs, ctx.probs = ctx.probs, None
    if probs is None:
        probs, _, _ = _sweep(logits, frame, ctx.setting.log_offset, weights, True)
    g = _row_gradients(grad_loss, mask, ctx)
    a = _pull(g, grad_loss, frame.labels, ctx)
    columns = _in_columns(logits)
    in_place = not columns or logits.ndim == 3
    grad = probs if in_place else torch.empty_like(logits, dtype=probs.dtype)
    in_one_pass = not columns and weights is None and logits.numel() >= LARGE
    wish = _repeated(a, min(len(logits), max(1, BLOCK // len(a)))) if in_one_pass else None
    for where, rows in _blocks(logits):
        p = _block(probs, where, columns)
        labels = _like_block(_part(index, rows), p)
        beta = None if weights is None else _like_block(_part(weights, rows), p)
        g_rows = _like_block(_part(g, rows), p) if isinstance(g, Tensor) else g
        if wish is None:
            _gradient_block(p, labels, a, beta, g_rows)
        else:
            _gradient_rows(p, labels, wish[: len(p)], g_rows)
        if not in_place:
            _block(grad, where, columns).copy_(p)
    return grad if grad.dtype == logits.dtype else grad.to(logits.dtype)


def _row_gradients(grad_loss: Tensor, mask: Tensor | None, ctx: Any) -> Tensor | float:
    """g_n, 0 where ignored; one number where it is the same for all rows."""
    if ctx.reduction == "none":
        return grad_loss.flatten() if mask is None else grad_loss.flatten() * mask
    g = _common_gradient(grad_loss, ctx)
    return g if mask is None else mask * g


def _common_gradient(grad_loss: Tensor, ctx: Any) -> float:
    """g of every row that counts, for a mean or a sum."""
    return float(grad_loss) / (float(ctx.frame.mean_count) if ctx.reduction == "mean" else 1)


def _pull(g: Tensor | float, grad_loss: Tensor, labels: Labels, ctx: Any) -> Tensor:
    """a_k = (Σ_n g_n v_nk − κ r_k Σ_n g_n)/(N q_k), over all ranks."""
    setting = ctx.setting
    if ctx.reduction == "none":
        assert isinstance(g, Tensor)
        wanted, total = labels.shares(g, ctx.log_q), float(g.sum())
    else:
        common = _common_gradient(grad_loss, ctx)
        wanted, total = ctx.counts * common, common * float(labels.count)
    if setting.evidence:
        wanted = wanted - setting.evidence * total * setting.reference
    if ctx.group is False:
        return wanted / torch.exp(ctx.log_q + ctx.log_count)
    # summed as the gradient by log m, which is what a rank that had to compose in log space adds
    return sum_over_ranks(wanted * torch.exp(ctx.log_m - ctx.log_q), ctx.group) / torch.exp(ctx.log_m + ctx.log_count)


def _gradient_block(p: Tensor, index: Tensor, a: Tensor, beta: Tensor | None, g: Tensor | float) -> None:
    """p → g (p − v) + β p (a − Σ_j a_j p_j), in place."""
    mean_a = (p @ a if p.ndim == 2 else torch.matmul(a, p)).unsqueeze(1)
    per_class = a if p.ndim == 2 else a[:, None]
    space = _scratch(p.shape, p.dtype)
    if beta is None:
        p.mul_(torch.add(g - mean_a, per_class, out=space))
    else:
        p.mul_(torch.mul(beta, per_class, out=space).add_(g - beta * mean_a))
    p.scatter_add_(1, index, -g if isinstance(g, Tensor) else p.new_tensor(-g).expand(index.shape))


def _gradient_rows(p: Tensor, index: Tensor, wish: Tensor, g: Tensor | float) -> None:
    """The same where β = 1, in one pass: a softmax's own backward, p ⊙ (d − Σ_j d_j p_j), of the wish d = a − g v/p.

    `wish` holds a in every row, and does so again afterwards.
    """
    plain = wish.gather(1, index)
    wish.scatter_(1, index, plain - g / p.gather(1, index))
    torch._softmax_backward_data(wish, p, 1, p.dtype, grad_input=p)
    wish.scatter_(1, index, plain)


def _repeated(row: Tensor, rows: int) -> Tensor:
    """`row` as a matrix of equal rows."""
    space = _scratch(torch.Size((rows, len(row))), row.dtype)
    return row.expand(rows, -1).contiguous() if space is None else space.copy_(row)


_kept = threading.local()


def _scratch(shape: torch.Size, dtype: torch.dtype) -> Tensor | None:
    """Memory for one block that is needed for a moment, the same from call to call; None for small ones.

    To get fresh memory of this size from the system takes longer than to fill it.
    """
    size = math.prod(shape)
    if size < LARGE // 4 or size > 4 * BLOCK:
        return None
    space: Tensor | None = getattr(_kept, str(dtype), None)
    if space is None or len(space) < size:
        # off the page's start, where logits and probabilities lie: planes of 2^k pixels would meet in the same cache lines
        with torch.inference_mode(False):
            space = torch.empty(max(size, BLOCK) + 528, dtype=dtype)[528:]
        setattr(_kept, str(dtype), space)
    return space[:size].view(shape)


def _without_autocast() -> Any:
    return torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else nullcontext()


def _in_columns(logits: Tensor) -> bool:
    """Whether blocks are taken as (images, k, s), with the examples along the memory's fast dimension, or as (rows, k)."""
    return logits.ndim == 3 or (logits.shape[1] < FEW and logits.numel() > LARGE // 8)


def _blocks(logits: Tensor) -> list[tuple[slice | None, slice | None]]:
    """Where to find each block, of about BLOCK numbers, and the rows (labels' order) it holds; None for all of them."""
    size = logits.shape[2] if logits.ndim == 3 else 1
    count, step = logits.shape[0], max(1, BLOCK // (logits.shape[1] * size))
    if count <= step:
        return [(None, None)]
    parts = [slice(start, min(start + step, count)) for start in range(0, count, step)]
    return [(part, slice(part.start * size, part.stop * size)) for part in parts]


def _block(tensor: Tensor, where: slice | None, columns: bool) -> Tensor:
    block = tensor if where is None else tensor[where]
    return block.t()[None] if columns and tensor.ndim == 2 else block


def _part(per_row: Tensor, rows: slice | None) -> Tensor:
    return per_row if rows is None else per_row[rows]


def _like_block(per_row: Tensor, block: Tensor) -> Tensor:
    """A number per row, so that it meets a block's entries: `(rows, 1)` or `(images, 1, s)`."""
    return per_row.unsqueeze(1) if block.ndim == 2 else per_row.view(block.shape[0], 1, -1)


def _empty_probs(logits: Tensor, columns: bool, dtype: torch.dtype) -> Tensor:
    """Room for p_nk in the logits' shape, in memory as the blocks are."""
    if logits.ndim == 2 and columns:
        return torch.empty(logits.shape[::-1], dtype=dtype).t()
    return torch.empty(logits.shape, dtype=dtype)
