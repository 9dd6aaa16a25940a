"""The information gain of a softmax likelihood in closed form: value and gradient together, without a graph.

With p_nk = p_r(k|x_n,w), v_nk = 1{y_n=k}, g = 1/N for a mean (1 for a sum), a_k = g (ρ_k − κ r_k)/q_k, or at κ = 0
a_k = g (Σ_n v_nk)/(N q_k), where a row that counts c times has g c instead of g,

    ∂L/∂z_nk = g (p_nk − v_nk) + β_n p_nk (a_k − Σ_j a_j p_nj).

The forward pass computes both, and the backward pass returns the gradient. Large batches are split into blocks of rows that fit
into the processor's cache. Probabilities are not kept in log space, which is exact unless one of them is close to underflow;
such a batch uses `gain_of_rows` in log space instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from ..arrays import map_of, rows_of
from ..likelihoods import Categorical
from .batch import LabelledBatch, Labels, Reduction, full_precision, raise_nonfinite
from .gain import PriorTerms, example_log_weights, gain_of_rows

BLOCK = 2**19  # numbers per block: 2 MiB of float32, about the second-level cache of two cores
NARROW, MANY = 16, 2**14  # with fewer classes and more numbers, torch's softmax is slow along rows and fast along columns
LARGE = 2**17  # numbers from which blocks are faster than `F.cross_entropy`
TINY = {torch.float32: 1e-30, torch.float64: 1e-290}
_NOTHING = nullcontext()


def fused_loss(
    batch: LabelledBatch,
    terms: PriorTerms,
    sampling: Tensor | None,
    log_q_of: Callable[[Tensor], Tensor],
    reduction: Reduction,
) -> Tensor:
    """Return the negative of `gain_of_rows`, reduced to a mean or a sum, for a softmax and int labels on a CPU."""
    with _full_precision():
        loss, gradient, log_q = _closed_form(batch, terms, sampling, log_q_of, reduction, _needs_gradient(batch))
    options = terms, sampling, log_q_of if log_q is None else lambda _: log_q, reduction
    if loss is None:
        return _composed(batch, *options)
    if gradient is None:
        return loss
    again = partial(_closed_form, keep=True), _composed, options
    return _WithGradient.apply(batch.outputs, batch, again, loss, gradient)


def fused_cross_entropy(batch: LabelledBatch, offset: Tensor | None, reduction: Reduction) -> Tensor | None:
    """Return the cross-entropy of a softmax of logits + offset and int labels, all used; None if log space is needed."""
    with _full_precision():
        loss, gradient = _blocks_of_cross_entropy(batch, offset, reduction, _needs_gradient(batch))
    if loss is None or gradient is None:
        return loss
    again = partial(_blocks_of_cross_entropy, keep=True), LabelledBatch.cross_entropy, (offset, reduction)
    return _WithGradient.apply(batch.outputs, batch, again, loss, gradient)


def _needs_gradient(batch: LabelledBatch) -> bool:
    return batch.outputs.requires_grad and torch.is_grad_enabled()


def _full_precision() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else _NOTHING


def _blocks_of_cross_entropy(
    batch: LabelledBatch, offset: Tensor | None, reduction: Reduction, keep: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return the loss (None if log space is needed), and its gradient `g (p_nk − v_nk)`, in one pass over blocks."""
    logits, index = full_precision(_flat(batch.outputs.detach())), batch.labels.index
    assert index is not None
    columns = _in_columns(logits)
    g = 1 / float(len(index) if batch.examples is None else batch.examples) if reduction == "mean" else 1.0
    gradient = _empty_like_blocks(logits, columns) if keep else None
    total, blocks = torch.zeros((), dtype=torch.float64), _blocks(logits, columns)
    into = [(None, None)] * len(blocks) if gradient is None else _blocks(gradient, columns)
    added = offset[:, None] if columns and offset is not None else offset
    for (rows, z), (_, out) in zip(blocks, into, strict=True):
        p = torch.softmax(z if added is None else z + added, 1, out=out)
        labels = _like(index if rows is None else index[rows], p)
        own = p.gather(1, labels)
        if not (float(own.amin()) > TINY[p.dtype] and math.isfinite(float(z.sum()))):
            return None, None
        total += own.log_().sum()
        if keep:
            p.mul_(g).scatter_add_(1, labels, p.new_full((1,), -g).expand(labels.shape))
    return total.mul_(-g).to(logits.dtype), None if gradient is None else _as_outputs(gradient, batch, columns)


def _empty_like_blocks(logits: Tensor, columns: bool) -> Tensor:
    """Return an empty tensor of the logits' shape with the memory layout of the blocks."""
    if columns and logits.ndim == 2:
        return torch.empty(logits.shape[::-1], dtype=logits.dtype).t()
    return torch.empty(logits.shape, dtype=logits.dtype)


def _composed(
    batch: LabelledBatch,
    terms: PriorTerms,
    sampling: Tensor | None,
    log_q_of: Callable[[Tensor], Tensor],
    reduction: Reduction,
) -> Tensor:
    gain = gain_of_rows(Categorical().table(batch.rows()), batch.labels, terms, log_q_of, sampling)
    return batch.reduce(-gain, reduction)


class _WithGradient(torch.autograd.Function):
    """A loss with its precomputed gradient. `again` computes them once more, after the backward pass has freed the gradient.

    It has two functions and their arguments besides the batch: one returns loss and gradient, the other a loss of torch
    operations, for second derivatives.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, batch: LabelledBatch, again: Any, loss: Tensor, gradient: Tensor) -> Tensor:
        labels = batch.labels
        # tensors as long as the batch are saved by autograd: freed after the backward pass, and checked for changes
        ctx.save_for_backward(logits, labels.index, labels.multiples)
        ctx.facts = batch.shape, batch.nonfinite, batch.examples, labels.size, labels.count
        ctx.again, ctx.gradient = again, gradient
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        logits, index, multiples = ctx.saved_tensors
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None or torch.is_grad_enabled():
            shape, nonfinite, examples, size, count = ctx.facts
            labels = Labels(index, None, size, count, multiples)
            batch, (closed, composed, options) = LabelledBatch(logits, labels, None, shape, nonfinite, examples), ctx.again
            with torch.autocast("cpu", enabled=False):
                if torch.is_grad_enabled():  # create_graph=True
                    (gradient,) = torch.autograd.grad(composed(batch, *options), logits, grads[0], create_graph=True)
                    return gradient, None, None, None, None
                gradient = closed(batch, *options)[1]
        scale = float(grads[0])
        return gradient if scale == 1 else gradient.mul_(scale), None, None, None, None


def _closed_form(
    batch: LabelledBatch,
    terms: PriorTerms,
    sampling: Tensor | None,
    log_q_of: Callable[[Tensor], Tensor],
    reduction: Reduction,
    keep: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the loss (None if log space is needed), its gradient (None unless `keep`), and log q (None if not yet known)."""
    labels, count, dtype = batch.labels, batch.labels.count, terms.reference.dtype
    assert isinstance(count, int | float)
    mask = labels.row_weights(dtype)
    over = count if batch.examples is None else batch.examples
    assert isinstance(over, int | float)
    log_weights = example_log_weights(terms, labels, sampling)
    weights = mask if log_weights is None else log_weights.exp() if mask is None else log_weights.exp() * mask
    probs, own, sums = _sweep(batch, terms, weights, keep)
    if own is None:
        return None, None, None
    log_count, g = _scalar(math.log(count), dtype), 1 / over if reduction == "mean" else 1.0
    log_q = log_q_of(sums.log_().sub_(log_count))
    if not float(log_q.amin()) > math.log(TINY[dtype]):
        return None, None, log_q
    if terms.of_marginal is None:
        wanted = labels.per_class(log_q)
    else:
        wanted = terms.of_marginal * _scalar(float(count), dtype)
    loss = (wanted @ log_q).sub_((own.log_() if mask is None else own.log_().mul_(mask)).sum())
    wanted.mul_(_scalar(g, dtype))
    if reduction == "mean":
        loss.div_(_scalar(float(over), dtype))
    if probs is None:
        return loss, None, log_q
    a = wanted.div_(torch.exp(log_q + log_count))
    return loss, _gradient(probs, batch, a, weights, _scalar(g, dtype) if mask is None else mask * g), log_q


def _sweep(
    batch: LabelledBatch, terms: PriorTerms, weights: Tensor | None, keep: bool
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Return p_nk if a gradient is needed, p of each row's label (None if log space is needed), and Σ_n β_n p_nk."""
    logits, index, offset = full_precision(_flat(batch.outputs.detach())), batch.labels.index, terms.log_offset
    assert index is not None
    columns = _in_columns(logits)
    if columns and offset is not None:
        offset = offset[:, None]
    blocks = _blocks(logits, columns)
    if len(blocks) == 1:
        p, own, sums, safe = _sweep_block(blocks[0][1], index, offset, weights, None)
        probs = p[0].t() if columns and logits.ndim == 2 else p
    else:
        probs = _empty_like_blocks(logits, columns) if keep else logits
        own, sums, safe = torch.empty(index.shape, dtype=logits.dtype), torch.zeros(logits.shape[1], dtype=torch.float64), True
        into = _blocks(probs, columns) if keep else [(None, None)] * len(blocks)
        for (rows, z), (_, out) in zip(blocks, into, strict=True):
            _, own[rows], more, fine = _sweep_block(z, index[rows], offset, None if weights is None else weights[rows], out)
            sums, safe = sums.add_(more), safe and fine
        sums = sums.to(logits.dtype)
    if not safe:
        if not bool(torch.isfinite(logits).all()):
            if batch.nonfinite == "raise":
                raise_nonfinite(rows_of(batch.outputs))
            return None, None, sums
        if not min(float(own.amin()), float(sums.amin())) > TINY[sums.dtype]:
            return None, None, sums
    return probs if keep else None, own, sums


def _sweep_block(
    z: Tensor, index: Tensor, offset: Tensor | None, weights: Tensor | None, into: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Return p of one block, p of each row's label, Σ β p, and whether all p are finite and far from underflow."""
    p = torch.softmax(z if offset is None else z + offset, 1, out=into)
    own = p.gather(1, _like(index, p)).view(-1)
    # torch sums in pairs; a product with `weights` would add row after row, and lose digits in float32
    weighted = p if weights is None else p * _like(weights, p)
    return p, own, weighted.sum(0 if p.ndim == 2 else (0, 2)), float(p.amin()) > TINY[p.dtype]


def _gradient(probs: Tensor, batch: LabelledBatch, a: Tensor, weights: Tensor | None, g: Tensor) -> Tensor:
    """Return ∂L/∂z in the shape of the outputs, computed in place of p. `g` is one number, or one per row."""
    index, columns = batch.labels.index, _in_columns(probs)
    assert index is not None
    per_class = a[:, None] if columns else a
    for rows, p in _blocks(probs, columns):
        mean_a = (torch.matmul(a, p) if columns else torch.mv(p, a)).unsqueeze(1)
        labels = _like(index if rows is None else index[rows], p)
        g_rows = g if g.ndim == 0 else _like(g if rows is None else g[rows], p)
        if weights is None:
            p.mul_((g_rows - mean_a) + per_class)
        else:
            beta = _like(weights if rows is None else weights[rows], p)
            p.mul_((beta * per_class).add_(g_rows - beta * mean_a))
        p.scatter_add_(1, labels, (-g_rows).expand(labels.shape))
    return _as_outputs(probs, batch, columns)


def _as_outputs(probs: Tensor, batch: LabelledBatch, columns: bool) -> Tensor:
    """Return a gradient in the shape and dtype of the outputs."""
    shape, dtype = batch.outputs.shape, batch.outputs.dtype
    if probs.ndim == 2 < len(shape):  # rows of channels-last maps
        return map_of(probs, shape).to(dtype)
    return probs if probs.shape == shape and probs.dtype == dtype and not columns else probs.contiguous().view(shape).to(dtype)


def _flat(logits: Tensor) -> Tensor:
    """Return dense logits as (images, k, cells), or as (rows, k) if that is their memory layout."""
    if logits.ndim == 2:
        return logits
    last = logits.movedim(1, -1)
    return last.flatten(0, -2) if last.is_contiguous() else logits.flatten(2)


def _in_columns(logits: Tensor) -> bool:
    """Return True if blocks are (images, k, cells), and False if they are (rows, k)."""
    return logits.ndim == 3 or (logits.shape[1] < NARROW and logits.numel() > MANY)


def _blocks(table: Tensor, columns: bool) -> list[tuple[slice | None, Tensor]]:
    """Return blocks of about BLOCK numbers, as (rows, k) or (images, k, cells), and the slice of their labels (None: all)."""
    turn, cells = columns and table.ndim == 2, table.shape[2] if table.ndim == 3 else 1
    step = max(1, BLOCK // (table.shape[1] * cells))
    if table.shape[0] <= step:
        return [(None, table.t()[None] if turn else table)]
    parts = [
        (slice(start * cells, (start + step) * cells), table[start : start + step]) for start in range(0, len(table), step)
    ]
    return [(rows, part.t()[None]) for rows, part in parts] if turn else parts  # type: ignore[return-value]


def _like(per_row: Tensor, block: Tensor) -> Tensor:
    """Return one number per row in a shape that broadcasts to the block: `(rows, 1)` or `(images, 1, cells)`."""
    return per_row.unsqueeze(1) if block.ndim == 2 else per_row.view(block.shape[0], 1, -1)


@lru_cache(64)
def _scalar(value: float, dtype: torch.dtype) -> Tensor:
    """Return a number as a tensor, which torch handles at half the cost of a Python number."""
    return torch.tensor(value, dtype=dtype)
