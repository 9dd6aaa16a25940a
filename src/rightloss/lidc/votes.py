"""Readers' malignancy ratings as soft labels, and one answer out of many: the same rules for readers and for predictions.

Stage: counts of votes `(n, k)` → shares `(n, k)`; votes, shares or probabilities `(n, k)` → a class `(n,)` or a score `(n,)`.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ..log_probs import tensor_of

__all__ = ["binary_votes", "expected_score", "majority", "rounded_mean", "vote_shares"]

_ROUNDING = 1e-6  # of a score: shares such as 1/6 in float32 must not take a half below itself


def vote_shares(votes: Any) -> Float[Tensor, "n k"]:
    """p_k, the share of an example's votes for each class: its soft label.

    Args:
        votes: `(n, k)`, how many readers chose each class; or shares or probabilities, which come back as they are, to
            rounding. Every row needs a vote. Log-probabilities are not votes: `log_probs.exp()` are.
    """
    table = _votes(votes)
    return (table / table.sum(1, keepdim=True)).to(torch.get_default_dtype())


def binary_votes(votes: Any) -> Float[Tensor, "n 2"]:
    """Shares for benign and malignant of ratings `(n, 5)`: 1 and 2 are benign, 4 and 5 malignant, a 3 is half of each."""
    shares = vote_shares(votes)
    if shares.shape[1] != 5:
        raise ValueError(f"Expected votes for the ratings 1 to 5, but got {shares.shape[1]} columns: pass `.ratings`.")
    malignant = shares[:, 3] + shares[:, 4] + shares[:, 2] / 2
    return torch.stack([1 - malignant, malignant], 1)


def majority(votes: Any) -> Int64[Tensor, " n"]:
    """The class with most votes, or the most probable one, counted from 0; the lowest where several tie."""
    return _votes(votes).argmax(1)


def expected_score(votes: Any) -> Float64[Tensor, " n"]:
    """The mean rating, s = Σ_k k p_k, with classes counted from 1 as readers count them."""
    table = _votes(votes)
    scores = torch.arange(1, table.shape[1] + 1, dtype=torch.float64, device=table.device)
    return (table * scores).sum(1) / table.sum(1)


def rounded_mean(votes: Any) -> Int64[Tensor, " n"]:
    """The class nearest to the mean rating, ⌊s + ½⌋ − 1, counted from 0; halves go up, to the more malignant."""
    return (expected_score(votes) + 0.5 + _ROUNDING).floor().long() - 1


def _votes(values: Any) -> Float64[Tensor, "n k"]:
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
            "leave out rows without votes; of log-probabilities take `.exp()`."
        )
    return table
