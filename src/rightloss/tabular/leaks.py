"""Find leaking columns: single columns that separate the classes, as if written after the class was known.

Stage: columns, labels → AUC of one column at a time, each predicted from the other half of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from .columns import Kind, as_text, as_values, date_format
from .labels import Labels

_SUSPECT = 0.995  # AUC of a single column from which it counts as a leak
_FEWEST = 10  # with fewer rows of a class, a perfect order says little
_MOST_ROWS = 20_000  # rows used per class
_BINS = 32  # parts of each class's values


def leaking_columns(frame: pd.DataFrame, labels: Labels, kinds: Mapping[str, Kind]) -> dict[str, float]:
    """Return the AUC of each column that separates the classes by itself, averaged over the classes against the rest."""
    if len(labels.classes) < 2 or labels.counts.min() < _FEWEST:
        return {}
    steps = -(-labels.counts // _MOST_ROWS)
    rows = np.sort(np.concatenate([np.flatnonzero(labels.codes == k)[::step] for k, step in enumerate(steps)]))
    codes, part = labels.codes[rows], frame.iloc[rows]
    areas = {name: single_column_auc(level_numbers(part[name], kind, codes), codes) for name, kind in kinds.items()}
    return {name: area for name, area in areas.items() if area >= _SUSPECT}


def single_column_auc(levels: np.ndarray, codes: np.ndarray) -> float:
    """Return the AUC of a column cut into levels, where each half of the rows is scored by the class rates of the other."""
    halves, areas = halves_of(codes), []
    for half in (0, 1):
        known, size = halves != half, int(levels.max()) + 1
        total = np.bincount(levels[known], minlength=size) + 1.0
        for k in np.unique(codes):
            own = codes == k
            seen = np.bincount(levels[known & own], minlength=size)
            rates = (seen + own[known].mean()) / total
            areas.append(_area(rates[levels[~known]], own[~known]))
    return float(np.mean(areas))


def level_numbers(series: pd.Series, kind: Kind, codes: np.ndarray) -> np.ndarray:
    """Return the level of each cell: its category, or its bin between the classes' quantiles; missing cells are one level."""
    if kind in ("category", "text", "identifier", "constant"):
        return as_text(series)[0] + 1
    values = as_values(series, kind, date_format(series) if kind == "date" else None)
    known = np.isfinite(values)
    edges = np.unique(np.concatenate([_quantiles(values[known & (codes == k)]) for k in np.unique(codes)]))
    return np.where(known, 1 + np.searchsorted(edges, values, side="right"), 0)


def _quantiles(values: np.ndarray) -> np.ndarray:
    """Return values that split a class into parts of about the same size, from its smallest to just above its largest."""
    if not len(values):
        return values
    return np.append(np.quantile(values, np.linspace(0, 1, _BINS + 1), method="lower"), np.nextafter(values.max(), np.inf))


def halves_of(codes: np.ndarray) -> np.ndarray:
    """Return 0 or 1 per row, alternating within each class."""
    order = np.argsort(codes, kind="stable")
    half = np.empty(len(codes), dtype=np.int64)
    half[order] = np.arange(len(codes)) % 2
    return half


def _area(scores: np.ndarray, own: np.ndarray) -> float:
    """Return the probability that a row of the class scores higher than one of the rest, with ties as one half."""
    ranks = pd.Series(scores).rank().to_numpy()
    n = int(own.sum())
    return float((ranks[own].sum() - n * (n + 1) / 2) / (n * (len(own) - n)))
