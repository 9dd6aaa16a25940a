"""Labelled predictions that a model was not trained on, checked.

Stage: `(log_probs, labels)` → `HeldOut`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..log_probs import log_prob_table, tensor_of
from ..losses.batch import hard_labels
from .rows import cell_rows

__all__ = ["HeldOut", "held_out_set", "require_every_class"]


@dataclass(frozen=True)
class HeldOut:
    """Labelled predictions: log-probabilities `(n, k)` in float64, and labels `(n,)`."""

    log_probs: Tensor
    labels: Tensor

    @property
    def counts(self) -> np.ndarray:
        """How many examples of each class there are (K,)."""
        return torch.bincount(self.labels, minlength=self.log_probs.shape[1]).double().numpy()


def held_out_set(held_out: Any, num_classes: int | None = None) -> HeldOut:
    """`(log_probs, labels)` checked; of dense maps a row per cell. Rows labelled −100 are left out."""
    if not isinstance(held_out, tuple | list) or len(held_out) != 2:
        raise ValueError(
            f"Expected `held_out` to be a pair (log_probs, labels), but got {type(held_out).__name__}: "
            "pass the predictions of the same model on labelled data, and the labels."
        )
    given = tensor_of(held_out[0], "held_out log_probs").detach()
    table = log_prob_table(cell_rows(given, "held_out log_probs"), num_classes, "held_out log_probs").to("cpu", torch.float64)
    labels = tensor_of(held_out[1], "held_out labels").detach().cpu()
    labels = labels.long() if labels.dtype == torch.bool and table.shape[1] == 2 else labels
    expected = (len(given), *given.shape[2:])
    if labels.shape != expected:
        what = "row" if given.ndim == 2 else "cell"
        raise ValueError(
            f"Expected one held-out label per {what}, {expected}, but got shape {tuple(labels.shape)}: "
            "were some examples dropped from one of the two?"
        )
    index = hard_labels(labels.flatten(), table.shape[1], -100)
    assert index.index is not None
    if index.valid is None:
        return HeldOut(table, index.index)
    return HeldOut(table[index.valid], index.index[index.valid])


def require_every_class(data: HeldOut) -> None:
    """A ValueError where a class has no held-out example."""
    missing = np.flatnonzero(data.counts == 0).tolist()
    if missing:
        raise ValueError(
            f"Expected held-out examples of every class, but class(es) {missing} have none: add some, or leave the class out."
        )
