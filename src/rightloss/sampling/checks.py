"""Check labels and counts."""

from __future__ import annotations

import operator
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..arrays import Numbers
from ..prevalence import Prevalence, class_frequencies, mix_of_every_class
from ..tensors import tensor_of


def checked_prevalence(prevalence: Prevalence) -> Prevalence:
    """Return the prevalence, or raise a ValueError if it is not a `Prevalence`."""
    if not isinstance(prevalence, Prevalence):
        raise ValueError(
            f"Expected a Prevalence, but got {type(prevalence).__name__}: rightloss.Prevalence([…], sampling=[…])."
        )
    return prevalence


def checked_labels(labels: Numbers, prevalence: Prevalence) -> Tensor:
    """Return int64 labels (n,) or float64 votes (n, k); every sampled class must have an example, and no other class."""
    given = tensor_of(labels, "labels").detach().cpu()
    if given.layout != torch.strided:
        raise ValueError(f"Expected `labels` in a dense tensor, but got {given.layout}: call `.to_dense()` on it.")
    if not given.is_floating_point() and given.ndim != 1:
        raise ValueError(
            f"Expected int labels of shape (n,), but got {tuple(given.shape)}: give one label per example, "
            "or votes as floats with rows that sum to 1."
        )
    sampled = prevalence.sampling > 0
    if sampled.all():
        mix_of_every_class(given, prevalence.num_classes)
    elif not np.array_equal(seen := class_frequencies(given, prevalence.num_classes) > 0, sampled):
        expected, got = (np.flatnonzero(which).tolist() for which in (sampled, seen))
        raise ValueError(
            f"Expected `labels` of class(es) {expected} only, those whose `sampling` is positive, but got {got}: "
            "leave the other examples out, or give them as unlabelled."
        )
    return given.double() if given.is_floating_point() else given.long()


def checked_int(value: Any, name: str) -> int:
    """Return an int of Python, NumPy or torch as a Python int, or raise a ValueError."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise ValueError(f"Expected `{name}` to be an int, but got {value!r}: give a whole number.")


def whole_number(value: int | None, name: str, default: int | None = None) -> int:
    """Return the value, an int ≥ 1 that can be a length; for None return the default, if there is one."""
    if value is None and default is not None:
        return default
    number = checked_int(value, name)
    if not 1 <= number <= sys.maxsize:
        remedy = "give a whole number from 1 up" if default is None else "leave it out for the default"
        raise ValueError(f"Expected `{name}` to be at least 1, and at most {sys.maxsize}, but got {number}: {remedy}.")
    return number
