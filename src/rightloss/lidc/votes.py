"""Labels from readers' votes: soft labels, a class, or a score.

Stage: counts of votes `(n, k)` → shares `(n, k)`; votes, shares or probabilities `(n, k)` → a class `(n,)` or a score `(n,)`.
The same rules apply to readers' ratings and to predictions.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64, Int64
from numpy.typing import ArrayLike
from torch import Tensor

from ..arrays import checked_choice
from ..tensors import tensor_of

__all__ = ["RULES", "UNDECIDED", "binary_labels", "binary_votes", "expected_score", "majority", "rounded_mean", "vote_shares"]

UNDECIDED = -1
RULES = ("majority", "mean")  # how readers' ratings become benign or malignant
_ROUNDING = 1e-6  # tolerance of a score: fractions such as 1/6 in float32 must not move a half below itself


def vote_shares(votes: ArrayLike) -> Float[Tensor, "n k"]:
    """Return the fraction of an example's votes for each class: its soft label.

    Args:
        votes: `(n, k)`, the number of readers for each class; fractions or probabilities are returned unchanged, up to
            rounding. Every row needs a vote. Log-probabilities are not votes: pass `log_probs.exp()`.

    Examples:
        >>> from rightloss.lidc import vote_shares
        >>> vote_shares([[3, 1], [0, 2]])
        tensor([[0.7500, 0.2500],
                [0.0000, 1.0000]])
    """
    table = _votes(votes)
    return (table / table.sum(1, keepdim=True)).to(torch.get_default_dtype())


def binary_votes(votes: ArrayLike) -> Float[Tensor, "n 2"]:
    """Return fractions for benign and malignant from ratings `(n, 5)`: 1 and 2 are benign, 4 and 5 malignant, 3 is half of
    each.

    Examples:
        >>> from rightloss.lidc import binary_votes
        >>> binary_votes([[1, 0, 2, 1, 0]])
        tensor([[0.5000, 0.5000]])
    """
    shares = vote_shares(votes)
    if shares.shape[1] != 5:
        raise ValueError(f"Expected votes for the ratings 1 to 5, but got {shares.shape[1]} columns: pass `.ratings`.")
    malignant = shares[:, 3] + shares[:, 4] + shares[:, 2] / 2
    return torch.stack([1 - malignant, malignant], 1)


def binary_labels(votes: ArrayLike, rule: str = "majority") -> Int64[Tensor, " n"]:
    """Return 0 (benign), 1 (malignant) or `UNDECIDED` (−1) from ratings `(n, 5)`: majority or mean below, above or at 3."""
    checked_choice(rule, "rule", RULES, "the majority gives the paper's counts, the mean is its text")
    above = (majority(votes) + 1 if rule == "majority" else expected_score(votes)) - 3
    return torch.where(above.abs() < _ROUNDING, UNDECIDED, (above > 0).long())


def majority(votes: ArrayLike) -> Int64[Tensor, " n"]:
    """Return the class with most votes, or the most probable one, counted from 0; the lowest in a tie.

    Examples:
        >>> from rightloss.lidc import majority
        >>> majority([[1, 2, 0], [1, 1, 0]])
        tensor([1, 0])
    """
    return _votes(votes).argmax(1)


def expected_score(votes: ArrayLike) -> Float64[Tensor, " n"]:
    """Return the mean rating, s = Σ_k k p_k, with classes counted from 1 as readers count them.

    Examples:
        >>> from rightloss.lidc import expected_score
        >>> expected_score([[1, 0, 0, 1, 0]])
        tensor([2.5000], dtype=torch.float64)
    """
    table = _votes(votes)
    scores = torch.arange(1, table.shape[1] + 1, dtype=torch.float64, device=table.device)
    return (table * scores).sum(1) / table.sum(1)


def rounded_mean(votes: ArrayLike) -> Int64[Tensor, " n"]:
    """Return the class closest to the mean rating, ⌊s + ½⌋ − 1, counted from 0; halves are rounded up.

    Examples:
        >>> from rightloss.lidc import rounded_mean
        >>> rounded_mean([[1, 0, 0, 1, 0]])
        tensor([2])
    """
    return (expected_score(votes) + 0.5 + _ROUNDING).floor().long() - 1


def _votes(values: ArrayLike) -> Float64[Tensor, "n k"]:
    table = tensor_of(values, "votes").detach().double()
    if table.ndim != 2 or table.shape[1] < 2:
        raise ValueError(
            f"Expected votes of shape (n, k), a column per class, but got shape {tuple(table.shape)}: "
            "count the readers of each rating."
        )
    wrong = ~((table >= 0).all(1) & table.isfinite().all(1) & (table.sum(1) > 0))
    if bool(wrong.any()):
        row = int(torch.nonzero(wrong)[0])
        raise ValueError(
            f"Expected votes from 0 up, and some in every row, but row {row} is {table[row].tolist()}: "
            "leave out rows without votes, and take `.exp()` of log-probabilities."
        )
    return table
