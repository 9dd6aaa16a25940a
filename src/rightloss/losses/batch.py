"""Check outputs and targets, and turn them into rows, labels and a support."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..arrays import checked_choice, map_of, rows_of
from ..likelihoods import Likelihood
from ..marginals import gather_ranks, sum_over_ranks
from ..prevalence import (
    AnyPrevalence,
    MultilabelPrevalence,
    Prevalence,
    PrevalenceWarning,
    check_findings,
)
from ..tensors import cannot_be_read
from ..tensors import full_precision as full_precision

NonFinite = Literal["raise", "nan"]
Reduction = Literal["mean", "sum", "none"]
UNREAD = 1e-30  # the weight of a row for a finding that no row has read: its marginal is finite, and the loss 0 up to rounding
NO_LABEL = torch.iinfo(torch.long).min  # stands for `ignore_index=None`


@dataclass(eq=False)
class LabelledBatch:
    """A checked batch.

    Attributes:
        outputs: as given, `(n, num_outputs)` or dense `(n, num_outputs, h, w, …)`.
        labels: one per row; in regression the label of row n is entry n of the support.
        support: None for classes; in regression the (global) batch's own labels.
        shape: the shape of an unreduced loss.
        nonfinite: "raise" or "nan", for outputs that are not finite.
        examples: the divisor of a mean; None for the rows not ignored. With unlabelled rows it counts only the labelled ones.
    """

    outputs: Tensor
    labels: Labels
    support: Tensor | None
    shape: torch.Size
    nonfinite: NonFinite
    examples: int | float | Tensor | None = None

    def rows(self) -> Tensor:
        """Return the outputs as `(n, num_outputs)`, a row per label, in float32 or float64; check that they are finite."""
        return check_finite_rows(rows_of(full_precision(self.outputs)), self.nonfinite)

    def reduce(self, loss: Float[Tensor, "*sets n"], reduction: Reduction, group: dist.ProcessGroup | None = None) -> Tensor:
        """Return the reduced loss. With several ranks, the average of their means is the mean over all rows."""
        if reduction == "mean":
            count = self.mean_count(loss, group)
            if loss.ndim == 2:  # several findings: the mean over findings; one that was not read adds nothing
                return (loss.sum(1) / torch.as_tensor(count).to(loss).clamp_min(UNREAD**0.5)).mean()
            return loss.sum() / count
        if reduction == "sum":
            return loss.sum()
        if loss.ndim == 2:
            return map_of(loss.T, (self.shape[0], self.shape[1], *self.shape[2:]))
        return loss.reshape(self.shape)

    def cross_entropy(self, offset: Tensor | None, reduction: Reduction) -> Tensor:
        """Return that of a softmax of logits + offset and int labels, by torch's function; nothing is ignored or weighted."""
        logits = check_finite_rows(full_precision(self.outputs), self.nonfinite)
        if offset is not None:
            logits = logits + (offset if logits.ndim == 2 else offset.view(-1, *(1 for _ in logits.shape[2:])))
        assert self.labels.index is not None
        target = self.labels.index if logits.ndim == 2 else self.labels.index.view(self.shape)
        if reduction == "mean" and self.examples is not None:
            return F.cross_entropy(logits, target, reduction="sum") / self.examples
        return F.cross_entropy(logits, target, reduction=reduction)

    def mean_count(self, like: Tensor, group: dist.ProcessGroup | None) -> int | float | Tensor:
        """Return the divisor of a mean; with several ranks, the average count per rank."""
        own = self.labels.count if self.examples is None else self.examples
        if group is None:
            return own
        count = torch.as_tensor(own).to(like)
        return sum_over_ranks(count, group) / dist.get_world_size(group)


@dataclass(eq=False)
class Labels:
    """One label per row of the table: a column number, or a soft label over the columns.

    With leading dimensions `*sets`, each set of weights has its own rows.

    Attributes:
        index: column numbers `(*sets, n)`, any where ignored; None for soft labels.
        votes: v_nk `(*sets, n, k)`, zero rows where ignored; None for hard labels.
        size: number of columns, k.
        count: number of rows not ignored, or the sum of their multiples; a tensor `(*sets,)` if it cannot be read or differs
            between sets.
        multiples: how many times each row counts `(*sets, n)`, 0 where ignored; bools for 1 and 0; None for once each.
    """

    index: Tensor | None
    votes: Tensor | None
    size: int
    count: int | float | Tensor
    multiples: Tensor | None = None

    @property
    def rows(self) -> int:
        """n, ignored rows included."""
        if self.index is not None:
            return self.index.shape[-1]
        assert self.votes is not None
        return self.votes.shape[-2]

    def log_count(self, like: Tensor) -> Tensor | float:
        """Return the log of `count`, in a shape that can be subtracted from `(*sets, k)`."""
        if isinstance(self.count, int | float):
            return math.log(self.count)
        log_count = self.count.to(like.dtype).log()
        return log_count.unsqueeze(-1) if log_count.ndim else log_count

    def gather(self, table: Float[Tensor, "*sets n k"]) -> Float[Tensor, "*sets n"]:
        """Return Σ_k v_nk table_nk, each row's entry at its label. A column without a vote is ignored, even if infinite."""
        if self.index is not None:
            return table.gather(-1, self.index.unsqueeze(-1)).squeeze(-1)
        assert self.votes is not None
        return torch.where(self.votes > 0, self.votes * table, 0.0).sum(-1)

    def per_row(self, per_class: Float[Tensor, "... k"]) -> Float[Tensor, "*sets n"]:
        """Return Σ_k v_nk per_class_k: one value per row from one value per class.

        The derivative sums over all rows of a class; in float32 it would lose millions of small terms.
        """
        if self.index is not None:
            values = wide(per_class)
            values = values if values.ndim == self.index.ndim else values.expand(*self.index.shape[:-1], -1)
            return values.gather(-1, self.index).to(per_class.dtype)
        assert self.votes is not None
        return torch.where(self.votes > 0, self.votes * per_class.unsqueeze(-2), 0.0).sum(-1)

    def per_class(self, like: Tensor) -> Float[Tensor, "*sets k"]:
        """Return Σ_n v_nk over the rows not ignored: how often each class occurs."""
        if self.index is None:
            assert self.votes is not None
            return (self.votes if self.multiples is None else self.votes * self.multiples.unsqueeze(-1)).sum(-2)
        if cannot_be_read(self.index) or self.index.ndim > 1:
            ones = self.mask(wide(like.new_ones(self.index.shape)))
            return ones.new_zeros(*ones.shape[:-1], self.size).scatter_add(-1, self.index, ones).to(like.dtype)
        weights = None if self.multiples is None else wide(self.multiples)
        return torch.bincount(self.index, weights, minlength=self.size).to(like.dtype)

    def mask(self, per_row: Float[Tensor, "*sets n"]) -> Float[Tensor, "*sets n"]:
        """Return `per_row` times the multiple of each row: 0 where ignored."""
        if self.multiples is None:
            return per_row
        if self.multiples.dtype == torch.bool:
            return torch.where(self.multiples, per_row, 0.0)
        return torch.where(self.multiples > 0, per_row * self.multiples.to(per_row.dtype), 0.0)

    def row_weights(self, dtype: torch.dtype) -> Float[Tensor, "*sets n"] | None:
        """Return the multiple of each row; None if every row counts once."""
        return None if self.multiples is None else self.multiples.to(dtype)

    def counted_votes(self, like: Tensor) -> Float[Tensor, "*sets n k"]:
        """Return v_nk times the multiple of each row, in the dtype of `like`; rows of 0 where ignored."""
        if self.index is None:
            assert self.votes is not None
            return self.votes.to(like) if self.multiples is None else (self.votes * self.multiples.unsqueeze(-1)).to(like)
        votes, counted = F.one_hot(self.index, self.size).to(like), self.row_weights(like.dtype)
        return votes if counted is None else votes * counted.unsqueeze(-1)

    def in_sets(self, sets: int) -> Labels:
        """Return the labels `(sets · n,)`, ordered by set, as `(sets, n)`."""

        def split(part: Tensor | None) -> Tensor | None:
            return None if part is None else part.unflatten(0, (sets, -1))

        multiples = split(self.multiples)
        count = self.rows // sets if multiples is None else multiples.sum(-1)
        return Labels(split(self.index), split(self.votes), self.size, count, multiples)

    def times(self, weights: Tensor | None) -> Labels:
        """Return the labels of rows that count `weights` times `(n,)`: those of 0 are ignored."""
        if weights is None:
            return self
        multiples = weights if self.multiples is None else self.multiples * weights
        count = multiples.sum()
        if cannot_be_read(count):
            return replace(self, count=count, multiples=multiples)
        if float(count) == 0:
            raise ValueError("Expected a label with a `sample_weight` above 0, but got none in this batch: skip it.")
        return replace(self, count=float(count), multiples=multiples)


def wide(tensor: Tensor) -> Tensor:
    """Return `tensor` in float64, if the device supports it."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def checked_batch(
    outputs: Tensor,
    target: Tensor,
    prevalence: AnyPrevalence,
    likelihood: Likelihood,
    ignore_index: int | None = -100,
    nonfinite: NonFinite = "raise",
    group: dist.ProcessGroup | None = None,
    sample_weight: Tensor | None = None,
) -> LabelledBatch:
    """Return a batch for classes, for several findings, or for regression."""
    if isinstance(prevalence, Prevalence):
        return class_batch(outputs, target, likelihood, prevalence.num_classes, ignore_index, nonfinite, sample_weight)
    if isinstance(prevalence, MultilabelPrevalence):
        return finding_batch(outputs, target, prevalence, ignore_index, nonfinite, sample_weight)
    if sample_weight is not None:
        remedy = "the labels are also the support of the marginal; repeat rows instead"
        raise ValueError(f"Expected no `sample_weight` in regression, but got one: {remedy}.")
    return regression_batch(outputs, target, likelihood, nonfinite, group)


def class_batch(
    outputs: Tensor,
    target: Tensor,
    likelihood: Likelihood,
    num_classes: int,
    ignore_index: int | None,
    nonfinite: NonFinite,
    sample_weight: Tensor | None = None,
) -> LabelledBatch:
    """Return a batch for classes; labels are int `(n,)` or dense `(n, h, w, …)`, or soft `(n, k)` or `(n, k, h, w, …)`."""
    num_outputs = num_classes if likelihood.num_outputs is None else likelihood.num_outputs
    _check_tensors(outputs, target, "logits")
    if num_outputs == 1 and outputs.shape == target.shape:
        if outputs.ndim == 2 and outputs.shape[1] > 1:
            remedy = "for several findings (multi-label) use Prevalence.multilabel(…); for signals call `logits.unsqueeze(1)`"
            raise ValueError(f"Expected a logit per example, but logits and target are both {tuple(target.shape)}: {remedy}.")
        if target.is_floating_point():
            came = f"{target.dtype} of the logits' shape {tuple(target.shape)}: call `target.long()`"
            raise ValueError(f"Expected class numbers, or soft labels for {num_classes} classes, but got {came}.")
        outputs = outputs.unsqueeze(1)
    if outputs.ndim < 2 or outputs.shape[1] != num_outputs:
        wanted = f"(n, {num_outputs}, …) for {type(likelihood).__name__} and {num_classes} classes"
        remedy = "match the last layer to the likelihood and the prevalence"
        remedy += " (one logit for two classes needs likelihood=Bernoulli())" if num_classes == 2 else ""
        raise ValueError(f"Expected logits of shape {wanted}, but got {tuple(outputs.shape)}: {remedy}.")
    shape = outputs.shape[:1] + outputs.shape[2:]
    weights = None if sample_weight is None else row_weights(sample_weight, shape)
    if target.is_floating_point() and target.shape == (*shape[:1], num_classes, *shape[1:]):
        votes = target.movedim(1, -1).flatten(0, -2) if target.ndim > 2 else target
        labels = soft_labels(votes, full_precision(outputs))
        if labels.multiples is not None and not cannot_be_read(votes) and bool(((votes == 0) | (votes == 1)).all()):
            warnings.warn(
                "Rows of zeros among one-hot labels are left out, as examples without a vote: if they are images without a "
                "finding, the labels are multi-label; use Prevalence.multilabel(…). For rows to ignore use class numbers and "
                "ignore_index.",
                PrevalenceWarning,
                stacklevel=2,
            )
        return LabelledBatch(outputs, labels.times(weights), None, shape, nonfinite)
    if target.shape != shape:
        wanted = f"{tuple(shape)} (class numbers), or {(shape[0], num_classes, *shape[1:])} (soft)"
        remedy = "do they come from one batch?"
        if target.shape == (*shape[:1], num_classes, *shape[1:]):
            remedy = "for several findings (multi-label) use Prevalence.multilabel(…); for one-hot labels `target.argmax(1)`."
        elif target.shape == (*shape[:1], 1, *shape[1:]):
            remedy = "call `target.squeeze(1)`."
        raise ValueError(f"Expected a target of shape {wanted}, but got {target.dtype}, {tuple(target.shape)}: {remedy}")
    labels = hard_labels(target, num_classes, ignore_index).times(weights)
    return LabelledBatch(outputs, labels, None, shape, nonfinite)


def row_weights(sample_weight: Tensor, shape: torch.Size) -> Float[Tensor, " n"]:
    """Return a checked weight for each row, from one for each example or, for dense maps, for each cell."""
    if not isinstance(sample_weight, Tensor) or sample_weight.shape not in (shape[:1], shape):
        found = tuple(sample_weight.shape) if isinstance(sample_weight, Tensor) else type(sample_weight).__name__
        cells = f", or {tuple(shape)} for each cell" if len(shape) > 1 else ""
        raise ValueError(f"Expected `sample_weight` of shape {tuple(shape[:1])}, one for each example{cells}, but got {found}.")
    weights = wide(sample_weight.detach())
    if not cannot_be_read(weights) and not bool(((weights >= 0) & weights.isfinite()).all()):
        raise ValueError(
            "Expected `sample_weight` to be finite and ≥ 0, but some is not: 0 leaves a row out, 2 is a row twice."
        )
    return weights.view(-1, *[1] * (len(shape) - weights.ndim), *weights.shape[1:]).expand(shape).flatten()


def finding_batch(
    outputs: Tensor,
    target: Tensor,
    prevalence: MultilabelPrevalence,
    ignore_index: int | None,
    nonfinite: NonFinite,
    sample_weight: Tensor | None = None,
) -> LabelledBatch:
    """Return a batch for several findings (multi-label): logits and targets of one shape, `(n, L)` or dense `(n, L, h, w, …)`.

    Targets are 0 and 1, or the share of readers who saw the finding; NaN, or `ignore_index`, where it was not read. The labels
    have a set of rows for each finding.
    """
    _check_tensors(outputs, target, "logits")
    findings = prevalence.num_findings
    if outputs.ndim < 2 or outputs.shape[1] != findings or target.shape != outputs.shape or target.is_complex():
        came = f"{tuple(outputs.shape)} and {tuple(target.shape)}: give a column for each finding, NaN where it was not read"
        raise ValueError(f"Expected multi-label logits and target of one shape (n, {findings}, …), but got {came}.")
    values = rows_of(target)
    values = values if values.is_floating_point() else values.long()
    read = ~values.isnan() if values.is_floating_point() else values != (NO_LABEL if ignore_index is None else ignore_index)
    multiple = None
    if sample_weight is not None:
        multiple = row_weights(sample_weight, outputs.shape[:1] + outputs.shape[2:])
        read = read & (multiple > 0)[:, None]
    values, readable, like = wide(torch.where(read, values, 0)), not cannot_be_read(values), full_precision(outputs[:0])
    if readable:
        check_findings(values, "target")
        if not bool(read.any()):
            raise ValueError("Expected at least one finding to be read, but none is in this batch: skip such a batch.")
    present, valid = values.T, read.T
    whole = readable and bool(((present == 0) | (present == 1)).all())
    index = present.long() if whole else None
    votes = None if whole else torch.where(valid[..., None], torch.stack([1 - present, present], -1), 0.0).to(like.dtype)
    if prevalence.patterns is None and multiple is None and readable and bool(read.all()):
        count = torch.full((findings,), len(values), dtype=like.dtype)
        return LabelledBatch(outputs, Labels(index, votes, 2, count), None, outputs.shape, nonfinite)
    multiples = wide(valid)
    if prevalence.patterns is not None:
        multiples = multiples * prevalence.patterns.of_rows(torch.where(read, values, torch.nan)).T
    multiples = multiples if multiple is None else multiples * multiple
    examples, unread = multiples.sum(1), ~valid.any(1)
    count = torch.where(unread, UNREAD * len(values), examples)
    labels = Labels(index, votes, 2, count, torch.where(unread[:, None], UNREAD, multiples))
    return LabelledBatch(outputs, labels, None, outputs.shape, nonfinite, examples)


def regression_batch(
    outputs: Tensor, target: Tensor, likelihood: Likelihood, nonfinite: NonFinite, group: dist.ProcessGroup | None = None
) -> LabelledBatch:
    """Return a batch for regression: float labels `(n,)` or `(n, d)`. Ranks that share a batch also share its support."""
    _check_tensors(outputs, target, "outputs")
    outputs = outputs.unsqueeze(1) if outputs.ndim == 1 else outputs
    if outputs.ndim != 2 or outputs.shape[1] != likelihood.num_outputs:
        wanted = f"(n, {likelihood.num_outputs}) for {type(likelihood).__name__}"
        raise ValueError(f"Expected outputs of shape {wanted}, but got {tuple(outputs.shape)}: match the last layer to it.")
    if not target.is_floating_point() or len(target) != len(outputs) or len(target) == 0:
        came = f"{target.dtype} of shape {tuple(target.shape)}: call `target.float()`, or use a likelihood over classes"
        raise ValueError(f"Expected a float target with {len(outputs)} rows, but got {came}.")
    support = target.to(full_precision(outputs).dtype)
    if not cannot_be_read(support) and not bool(torch.isfinite(support).all()):
        raise ValueError("Expected finite labels, but some are not: drop the rows without a measurement.")
    first = 0
    if group is not None:
        support, first = gather_ranks(support, group).flatten(0, 1), dist.get_rank(group) * len(target)
    index = torch.arange(first, first + len(target), device=target.device)
    return LabelledBatch(outputs, Labels(index, None, len(support), len(target)), support, target.shape[:1], nonfinite)


def finding(batch: LabelledBatch, number: int) -> LabelledBatch | None:
    """Return one finding of a multi-label batch as a batch of two classes, without the rows that were not read."""
    labels = batch.labels
    use: slice | Tensor = slice(None)
    if labels.multiples is not None:
        assert isinstance(batch.examples, Tensor)
        if float(batch.examples[number]) == 0:
            return None
        use = labels.multiples[number] > 0
    index, votes = (None if part is None else part[number][use] for part in (labels.index, labels.votes))
    outputs = rows_of(batch.outputs)[use, number, None]
    own = Labels(index, votes, 2, len(outputs))
    shape = outputs.shape[:1] if batch.outputs.ndim == 2 else outputs.shape  # two dimensions for cells of maps
    return LabelledBatch(outputs, own, None, shape, batch.nonfinite)


def check_options(reduction: object, nonfinite: object, ignore_index: object) -> None:
    """Validate the options of a loss."""
    checked_choice(reduction, "reduction", ("mean", "sum", "none"))
    checked_choice(nonfinite, "nonfinite", ("raise", "nan"))
    if ignore_index is not None and (isinstance(ignore_index, bool) or not isinstance(ignore_index, Integral)):
        came = f"{ignore_index!r}: -100 is the default"
        raise ValueError(f"Expected `ignore_index` to be an int label, or None if none is ignored, but got {came}.")


def check_finite_rows(outputs: Tensor, nonfinite: NonFinite) -> Tensor:
    """Raise a ValueError for rows that are not finite; with "nan", or if values cannot be read, set the whole row to NaN."""
    if nonfinite == "raise" and not cannot_be_read(outputs):
        # fast check: a finite sum means that all are finite; a sum that is not finite may be an overflow
        if not math.isfinite(float(outputs.detach().sum())) and not bool(torch.isfinite(outputs).all()):
            raise_nonfinite(rows_of(outputs))
        return outputs
    return outputs + 0 * outputs.sum(1, keepdim=True)


def raise_nonfinite(rows: Tensor) -> None:
    """Raise a ValueError that names the first row that is not finite."""
    bad = torch.nonzero(~torch.isfinite(rows).all(1)).flatten()
    remedy = f"{rows[int(bad[0]), :10].tolist()}; lower the learning rate, look for bad inputs, or pass nonfinite='nan'"
    raise ValueError(f"Expected finite logits, but row {int(bad[0])} is not: {remedy}.")


def _check_tensors(outputs: object, target: object, name: str) -> None:
    if not isinstance(outputs, Tensor) or not isinstance(target, Tensor):
        what, value = ("target", target) if isinstance(outputs, Tensor) else (name, outputs)
        raise ValueError(f"Expected `{what}` to be a tensor, but got {type(value).__name__}: call torch.as_tensor on it.")
    if not outputs.is_floating_point():
        remedy = "pass the outputs of the last layer, without a softmax"
        raise ValueError(f"Expected {name} to be an unnormalised float tensor, but got {outputs.dtype}: {remedy}.")
    if outputs.ndim == 0 or outputs.numel() == 0:
        raise ValueError(
            "Expected at least one example, but the batch is empty: skip it, or pass drop_last=True to the loader."
        )


def hard_labels(target: Tensor, num_classes: int, ignore_index: int | None) -> Labels:
    """Return int labels of any shape as checked `Labels`, in the table's order."""
    ignore_index = NO_LABEL if ignore_index is None else ignore_index
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        came = f"{target.dtype} of shape {tuple(target.shape)}: call `target.long()` on class numbers"
        raise ValueError(f"Expected int labels of shape (n,) or soft labels of shape (n, {num_classes}), but got {came}.")
    index = target if target.ndim == 1 and target.dtype == torch.long else target.flatten().long()
    if cannot_be_read(index):
        valid = index != ignore_index
        return Labels(torch.where(valid, index, 0), None, num_classes, valid.sum(), valid)
    low, high = torch.aminmax(index)
    if 0 <= int(low) and int(high) < num_classes and not 0 <= ignore_index < num_classes:
        return Labels(index, None, num_classes, index.shape[0])
    valid = index != ignore_index
    count = int(torch.count_nonzero(valid))
    if count == 0:
        raise ValueError(f"Expected at least one label, but all are ignore_index = {ignore_index}: skip such a batch.")
    inside = index.clamp(0, num_classes - 1)
    filler = min(max(ignore_index, 0), num_classes - 1)
    # If clamping changes the sum of the labels by the same amount as that of the ignored ones, no other label was out of range.
    both_ways = int(low) < 0 and int(high) >= num_classes
    if both_ways or int(index.sum() - inside.sum()) != (index.shape[0] - count) * (ignore_index - filler):
        low, high = torch.aminmax(index[valid])
        remedy = f"number the classes from 0, or mark rows by ignore_index={None if ignore_index == NO_LABEL else ignore_index}"
        raise ValueError(f"Expected labels in 0..{num_classes - 1}, but got {int(low)}..{int(high)}: {remedy}.")
    return Labels(inside, None, num_classes, count, valid)


def soft_labels(target: Tensor, like: Tensor) -> Labels:
    """Return soft labels `(n, k)` as checked `Labels`: rows sum to 1, up to rounding; a row of zeros is ignored."""
    votes = target.to(like.dtype)
    sums = votes.sum(1)
    coarse = torch.finfo(target.dtype).eps > 1e-4
    if coarse:
        votes = votes / torch.where(sums == 0, 1.0, sums)[:, None]
    if not cannot_be_read(votes):
        wrong = (
            ((sums - 1).abs() > max(1e-3, torch.finfo(target.dtype).eps)) & (sums != 0)
            | (votes < 0).any(1)
            | ~torch.isfinite(sums)
        )
        if bool(wrong.any()):
            row = int(torch.nonzero(wrong)[0])
            remedy = "divide counts of votes by their row sums"
            if bool(((target == 0) | (target == 1)).all()):
                remedy = "are these findings that can be present together (multi-label)? Use Prevalence.multilabel(…)"
            came = [round(value, 4) for value in target[row, :10].tolist()]
            raise ValueError(f"Expected soft labels to be non-negative and to sum to 1, but row {row} is {came}: {remedy}.")
        count = int(torch.count_nonzero(sums))
        if count == 0:
            raise ValueError("Expected at least one example with votes, but every row is zero: skip such a batch.")
        return Labels(None, votes, votes.shape[1], count, None if count == len(votes) else sums != 0)
    return Labels(None, votes, votes.shape[1], torch.count_nonzero(sums), sums != 0)
