"""Figures with 95 % intervals from resampled patients: arrays whose first value is of all patients, the others of resamples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def weights_of(patients: Sequence[object] | np.ndarray, number: int) -> np.ndarray:
    """Return `(1 + number, n)`: how often each row counts, once in the first, then as often as its patient was drawn."""
    people, own = np.unique(np.asarray(patients), return_inverse=True)
    drawn = np.random.default_rng(0).multinomial(len(people), np.full(len(people), 1 / len(people)), number)
    return np.concatenate([np.ones((1, len(own)), dtype=drawn.dtype), drawn[:, own]])


def limits(values: np.ndarray) -> tuple[float, float]:
    low, high = np.nanquantile(values[1:], [0.025, 0.975])
    return float(low), float(high)


def words(values: np.ndarray, digits: int = 3, sign: str = "") -> str:
    """Return a figure with its interval; of a difference (`sign` is "+") with * if the interval excludes 0."""
    low, high = limits(values)
    star = " *" if sign and low * high > 0 else ""
    return f"{values[0]:{sign}.{digits}f} [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]{star}"
