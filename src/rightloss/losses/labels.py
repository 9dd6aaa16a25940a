"""Targets as users give them → labels as the losses use them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..marginals import unseen

NO_LABEL = torch.iinfo(torch.long).min  # stands for `ignore_index=None`


@dataclass(frozen=True)
class Labels:
    """One label per row of the table: a column number, or a share of every column.

    Attributes:
        index: column numbers `(n,)`, `filler` where ignored; None for soft labels.
        votes: v_nk `(n, k)`, zero rows where ignored; None for hard labels.
        valid: which rows count `(n,)`; None where all do.
        size: number of columns, k.
        count: how many rows count, as a tensor where it could not be looked at.
        filler: the column number that stands where a row is ignored.
    """

    index: Tensor | None
    votes: Tensor | None
    valid: Tensor | None
    size: int
    count: int | Tensor
    filler: int = 0

    @property
    def rows(self) -> int:
        """n, ignored rows included."""
        some = self.index if self.index is not None else self.votes
        assert some is not None
        return some.shape[0]

    def log_count(self, like: Tensor) -> Tensor | float:
        """log of how many rows count."""
        return math.log(self.count) if isinstance(self.count, int) else self.count.to(like.dtype).log()

    def pick(self, table: Tensor) -> Tensor:
        """Σ_k v_nk table_nk: each row's own entry (n,). A column without a vote counts for nothing, even if it is infinite."""
        if self.index is not None:
            return table.gather(1, self.index[:, None]).squeeze(1)
        assert self.votes is not None
        return torch.where(self.votes > 0, self.votes * table, 0.0).sum(1)

    def spread(self, values: Tensor) -> Tensor:
        """Σ_k v_nk values_k: a number per class → a number per row (n,).

        The derivative adds up all rows of a class one by one: in float32 millions of small terms would be lost.
        """
        if self.index is not None:
            return wide(values).gather(0, self.index).to(values.dtype)
        assert self.votes is not None
        return torch.where(self.votes > 0, self.votes * values, 0.0).sum(1)

    def shares(self, per_row: Tensor | float, like: Tensor) -> Tensor:
        """Σ_n v_nk per_row_n: a number per row (0 where ignored), or one for all that count → a number per class (k,)."""
        if self.index is None:
            assert self.votes is not None
            return (self.votes * (per_row[:, None] if isinstance(per_row, Tensor) else per_row)).sum(0)
        if isinstance(per_row, Tensor):
            terms = wide(per_row)
            return terms.new_zeros(self.size).scatter_add(0, self.index, terms).to(per_row.dtype)
        counts = torch.bincount(self.index, minlength=self.size).to(like.dtype)
        if self.valid is not None:
            counts[self.filler] -= self.rows - self.count
        return counts if per_row == 1 else counts.mul_(per_row)

    def mask(self, per_row: Tensor) -> Tensor:
        """Zero where ignored."""
        return per_row if self.valid is None else torch.where(self.valid, per_row, 0.0)


def wide(tensor: Tensor) -> Tensor:
    """float64, where the device has it."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def hard_labels(target: Tensor, num_classes: int, ignore_index: int | None) -> Labels:
    """Int labels of any shape, in the table's order."""
    ignore_index = NO_LABEL if ignore_index is None else ignore_index
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise ValueError(
            f"Expected int labels of shape (n,) or soft labels of shape (n, {num_classes}), but got {target.dtype} of shape "
            f"{tuple(target.shape)}: call `target.long()` on class numbers."
        )
    index = target if target.ndim == 1 and target.dtype == torch.long else target.flatten().long()
    if index.shape[0] == 0:
        raise ValueError("Expected at least one example, but the batch is empty: skip it.")
    if unseen(index):
        valid = index != ignore_index
        return Labels(torch.where(valid, index, 0), None, valid, num_classes, valid.sum())
    low, high = torch.aminmax(index)
    if 0 <= int(low) and int(high) < num_classes and not 0 <= ignore_index < num_classes:
        return Labels(index, None, None, num_classes, index.shape[0])
    valid = index != ignore_index
    count = int(torch.count_nonzero(valid))
    if count == 0:
        raise ValueError(
            f"Expected at least one label that counts, but all are ignore_index = {ignore_index}: skip such a batch."
        )
    inside = index.clamp(0, num_classes - 1)
    filler = min(max(ignore_index, 0), num_classes - 1)
    # clamping moves labels one way only, or some are wrong; so it moves the ignored ones alone if the sum moves as theirs does
    both_ways = int(low) < 0 and int(high) >= num_classes
    if both_ways or int(index.sum() - inside.sum()) != (index.shape[0] - count) * (ignore_index - filler):
        low, high = torch.aminmax(index[valid])
        raise ValueError(
            f"Expected labels in 0..{num_classes - 1}, but got {int(low)}..{int(high)}: number the classes from 0, "
            f"or mark what to leave out with ignore_index (now {None if ignore_index == NO_LABEL else ignore_index})."
        )
    return Labels(inside, None, valid, num_classes, count, filler)


def soft_labels(target: Tensor, like: Tensor) -> Labels:
    """Soft labels `(n, k)`: rows of votes that sum to 1, but for the rounding of their dtype; a row of zeros is ignored."""
    votes = target.to(like.dtype)
    if len(votes) == 0:
        raise ValueError("Expected at least one example, but the batch is empty: skip it.")
    sums = votes.sum(1)
    coarse = torch.finfo(target.dtype).eps > 1e-4
    if coarse:
        votes = votes / torch.where(sums == 0, 1.0, sums)[:, None]
    if not unseen(votes):
        wrong = (
            ((sums - 1).abs() > max(1e-3, torch.finfo(target.dtype).eps)) & (sums != 0)
            | (votes < 0).any(1)
            | ~torch.isfinite(sums)
        )
        if bool(wrong.any()):
            row = int(torch.nonzero(wrong)[0])
            raise ValueError(
                f"Expected soft labels to be non-negative with rows that sum to 1, but row {row} is "
                f"{[round(value, 4) for value in votes[row, :10].tolist()]}: divide counts of votes by their row sums."
            )
        count = int(torch.count_nonzero(sums))
        if count == 0:
            raise ValueError("Expected at least one example with votes, but every row is zero: skip such a batch.")
        return Labels(None, votes, None if count == votes.shape[0] else sums != 0, votes.shape[1], count)
    return Labels(None, votes, sums != 0, votes.shape[1], torch.count_nonzero(sums))
