"""Labels and counts, checked."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import Tensor

from ..prevalence import Prevalence, class_frequencies


def realised(prevalence: Prevalence, sampling: Tensor) -> Prevalence:
    return prevalence if torch.equal(sampling, prevalence.sampling) else prevalence.with_sampling(sampling)


def checked_prevalence(prevalence: Prevalence) -> Prevalence:
    """A Prevalence, or the ValueError."""
    if not isinstance(prevalence, Prevalence):
        raise ValueError(
            f"Expected a Prevalence, but got {type(prevalence).__name__}: rightloss.Prevalence([…], sampling=[…])."
        )
    return prevalence


def checked_labels(labels: Any, num_classes: int) -> Tensor:
    """Int64 labels (n,) or float64 votes (n, k), with an example of every class."""
    if not isinstance(labels, Tensor):
        array = np.asarray(labels)
        if array.dtype.kind not in "iuf":
            raise ValueError(
                f"Expected int labels or float votes, but got {array.dtype}: number the classes from 0, "
                "and call `.astype(int)` on bools."
            )
        labels = torch.from_numpy(array.astype(np.float64 if array.dtype.kind == "f" else np.int64))
    labels = labels.detach().cpu()
    if labels.numel() == 0:
        raise ValueError(f"Expected at least one label, but got shape {tuple(labels.shape)}: is the dataset empty?")
    if not labels.is_floating_point() and labels.ndim != 1:
        raise ValueError(
            f"Expected int labels of shape (n,), but got {tuple(labels.shape)}: give one label per example, "
            "or votes as floats with rows that sum to 1."
        )
    mix = class_frequencies(labels, num_classes).cpu()
    never = torch.nonzero(mix == 0).flatten().tolist()
    if never:
        raise ValueError(
            f"Expected an example of every class, but class(es) {never} have none: "
            "a class that is never sampled cannot be learned; collect some, or drop it from the prevalence."
        )
    return labels.double() if labels.is_floating_point() else labels.long()


def whole_number(value: int | None, name: str, default: int) -> int:
    try:
        number = default if value is None else operator.index(value)
    except TypeError:
        raise ValueError(f"Expected `{name}` to be a whole number, but got {value!r}: round it.") from None
    if value is not None and number < 1:
        raise ValueError(f"Expected `{name}` to be at least 1, but got {number}: leave it out for the default.")
    return number
