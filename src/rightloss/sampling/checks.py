"""Validate labels and counts."""

from __future__ import annotations

import operator
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..prevalence import Prevalence, class_frequencies


def checked_prevalence(prevalence: Prevalence) -> Prevalence:
    """Return the prevalence, or raise the ValueError for anything else."""
    if not isinstance(prevalence, Prevalence):
        raise ValueError(
            f"Expected a Prevalence, but got {type(prevalence).__name__}: rightloss.Prevalence([…], sampling=[…])."
        )
    return prevalence


def checked_labels(labels: Any, num_classes: int) -> Tensor:
    """Return int64 labels (n,) or float64 votes (n, k), with an example of every class."""
    labels = (labels if isinstance(labels, Tensor) else _tensor(labels)).detach().cpu()
    if labels.is_complex() or labels.layout != torch.strided:
        raise ValueError(
            f"Expected int labels or float votes in a dense tensor, but got {labels.dtype}, {labels.layout}: "
            "number the classes from 0, and call `.to_dense()` on sparse tensors."
        )
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


def checked_int(value: Any, name: str) -> int:
    """Return an int of Python, NumPy or torch as an int, or raise the ValueError for anything else."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise ValueError(f"Expected `{name}` to be an int, but got {value!r}: give a whole number.")


def whole_number(value: int | None, name: str, default: int) -> int:
    """Return the value, an int from 1 up that can be a length; the default where it is None."""
    number = default if value is None else checked_int(value, name)
    if value is not None and not 1 <= number <= sys.maxsize:
        raise ValueError(
            f"Expected `{name}` to be at least 1, and at most {sys.maxsize}, but got {number}: leave it out for the default."
        )
    return number


def _tensor(labels: Any) -> Tensor:
    try:
        array = np.asarray(labels)
    except ValueError as error:
        raise ValueError(
            f"Expected labels of shape (n,) or votes of shape (n, k), but got rows of different lengths ({error}): "
            "give each example a label, or a vote for every class."
        ) from error
    if array.dtype.kind not in "iuf":
        raise ValueError(
            f"Expected int labels or float votes, but got {array.dtype}: number the classes from 0, "
            "and call `.astype(int)` on bools."
        )
    return torch.from_numpy(array.astype(np.float64 if array.dtype.kind == "f" else np.int64))
