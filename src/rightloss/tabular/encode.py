"""Encode the columns of a table as a matrix of numbers: one for linear models, one for boosted trees.

Stage: training table, kinds → a `ColumnSpec` per column; any table, specs → `(n, p)` float32. The target is never used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from .columns import Kind, as_text, as_values, date_format, text_of
from .findings import Finding
from .inspect import LEVELS_KEPT

_RARE = 10  # a level with fewer rows is pooled with others; the minimum is smaller in small tables
_NAMES_KEPT = 1000  # names of pooled levels, to distinguish them from new ones
_FAR = 400  # binary exponent of the largest number from which a column's mean and scale are computed in another unit
_FARTHEST = 1e6  # standard deviations at which a number is clipped, well inside float32


OddCells = dict[str, tuple[int, str]]  # by column: how many cells, and an example


@dataclass(frozen=True)
class ColumnSpec:
    """How to encode one column as numbers.

    Attributes:
        name: the name of the column.
        kind: "number", "boolean", "date" or "category".
        categories: the levels with their own code, the most frequent first; all others are pooled into one more.
        pooled: the names of these others, the most frequent 1,000.
        fill: the median, used for a missing number in a linear model.
        mean: the mean of the numbers, which is subtracted.
        scale: their standard deviation, the divisor.
        has_missing: whether cells were missing in training; a linear model then has a column for that.
        date_format: the format of dates in training.

    Examples:
        >>> import pandas as pd
        >>> from rightloss.tabular import column_specs
        >>> frame = pd.DataFrame({"age": [61.0, 48.0, None, 55.0]})
        >>> column_specs(frame, {"age": "number"})[0].fill
        55.0
    """

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    pooled: tuple[str, ...] = ()
    fill: float = 0.0
    mean: float = 0.0
    scale: float = 1.0
    has_missing: bool = False
    date_format: str | None = None

    @property
    def is_category(self) -> bool:
        """Whether the column is encoded as levels rather than one number."""
        return self.kind == "category"

    @property
    def linear_width(self) -> int:
        """The number of its columns in the matrix for linear models."""
        return (len(self.categories) + 1 if self.is_category else 1) + self.has_missing


def column_specs(frame: pd.DataFrame, kinds: dict[str, Kind]) -> list[ColumnSpec]:
    """Return how to encode the columns of a training table.

    Args:
        frame: the table.
        kinds: the columns to use, each with its kind.

    Examples:
        >>> import pandas as pd
        >>> from rightloss.tabular import column_specs
        >>> frame = pd.DataFrame({"sex": ["f", "m", "f", "m", "f"]})
        >>> column_specs(frame, {"sex": "category"})[0].categories
        ('f', 'm')
    """
    return [
        _category_spec(frame[name]) if kind == "category" else _number_spec(frame[name], kind) for name, kind in kinds.items()
    ]


def boosting_matrix(frame: pd.DataFrame, specs: Sequence[ColumnSpec]) -> np.ndarray:
    """Return `(n, p)` float32: standardised numbers and codes of levels, NaN for missing cells."""
    matrix = np.empty((len(frame), len(specs)), dtype=np.float32, order="F")
    for number, spec in enumerate(specs):
        matrix[:, number] = _codes(frame[spec.name], spec) if spec.is_category else _standardised(frame[spec.name], spec)
    return matrix


def linear_matrix(frame: pd.DataFrame, specs: Sequence[ColumnSpec]) -> np.ndarray:
    """Return `(n, q)` float32 without NaN: standardised numbers, a column per level, and one for missing cells if needed."""
    matrix = np.zeros((len(frame), sum(spec.linear_width for spec in specs)), dtype=np.float32)
    start = 0
    for spec in specs:
        _fill_linear(matrix[:, start : start + spec.linear_width], frame[spec.name], spec)
        start += spec.linear_width
    return matrix


def check_columns(frame: pd.DataFrame, specs: Sequence[ColumnSpec], known: Sequence[str] = ()) -> list[Finding]:
    """Compare a table with the training table of a model.

    Args:
        frame: the table to predict.
        specs: the columns that the model uses.
        known: other columns of the training table, such as the target.

    Returns:
        Warnings about cells that did not occur in training, and a note about unknown columns.

    Raises:
        ValueError: if a column is missing or duplicated.
    """
    require_columns(list(frame.columns), specs)
    found = odd_findings([odd_cells(frame, specs)], len(frame), specs)
    extra = [str(name) for name in frame.columns if name not in {spec.name for spec in specs} | set(known)]
    if extra:
        found.append(Finding("note", None, f"the columns {extra[:20]} are not used: the model was trained without them."))
    return found


def require_columns(columns: Sequence[str], specs: Sequence[ColumnSpec]) -> None:
    """Raise a ValueError if a column is missing or duplicated."""
    missing = [spec.name for spec in specs if spec.name not in columns]
    if missing:
        meant = [name for name in columns if name.casefold() in {each.casefold() for each in missing}]
        hint = f" (it has {meant[:20]}, written otherwise)" if meant else ""
        raise ValueError(
            f"Expected the columns of the training table, but {missing[:20]} are missing{hint}: add them, with empty cells "
            "where nothing is known, or train without them (--leave-out)."
        )
    twice = sorted({spec.name for spec in specs if columns.count(spec.name) > 1})
    if twice:
        raise ValueError(f"Expected every column once, but {twice} come more than once: remove the others.")


def odd_cells(frame: pd.DataFrame, specs: Sequence[ColumnSpec]) -> OddCells:
    """Return, by column, how many cells did not occur in training, and an example."""
    found = {}
    for spec in specs:
        cells = frame[spec.name]
        odd = ~readable(cells, spec) & cells.notna().to_numpy()
        if odd.any():
            found[spec.name] = int(odd.sum()), text_of(cells.iloc[int(odd.argmax())])[:40]
    return found


def odd_findings(chunks: Sequence[OddCells], rows: int, specs: Sequence[ColumnSpec]) -> list[Finding]:
    """Return warnings about the odd cells of all chunks of a table."""
    findings = []
    for spec in specs:
        odd = [chunk[spec.name] for chunk in chunks if spec.name in chunk]
        many = f"{sum(count for count, _ in odd):,} of {rows:,} cells"
        if odd:
            what, read_as = ("are no dates" if spec.kind == "date" else "are no numbers"), "missing"
            if spec.is_category:
                what, read_as = "have a category that training did not", "'other'"
            words = f"{many} {what}, such as {odd[0][1]!r}: they are read as {read_as}."
            findings.append(Finding("warning", spec.name, words))
    return findings


def readable(series: pd.Series, spec: ColumnSpec) -> np.ndarray:
    """Return which cells can be read: a number, a date, or a category of the training table."""
    if not spec.is_category:
        return ~np.isnan(as_values(series, spec.kind, spec.date_format))
    codes, texts = as_text(series)
    familiar = {*spec.categories, *spec.pooled}
    return np.array([*(text in familiar for text in texts), False])[codes]


def _number_spec(series: pd.Series, kind: Kind) -> ColumnSpec:
    written = date_format(series) if kind == "date" else None
    values = as_values(series, kind, written)
    known = values[~np.isnan(values)]
    exponent = math.frexp(np.abs(known).max(initial=0))[1] - 1
    unit = 2.0**exponent if abs(exponent) > _FAR else 1.0  # exact, and squares neither overflow nor vanish
    some = known / unit if len(known) else np.zeros(1)
    mean, scale, fill = (float(figure) * unit for figure in (some.mean(), some.std(), np.median(some)))
    missing = len(known) < len(values)
    scale = scale if 0 < scale < np.inf else 1.0
    return ColumnSpec(str(series.name), kind, (), (), fill, mean, scale, missing, written)


def _category_spec(series: pd.Series) -> ColumnSpec:
    codes, texts = as_text(series)
    counts = np.bincount(codes[codes >= 0], minlength=len(texts))
    merged: dict[str, int] = {}
    for text, count in zip(texts, counts.tolist(), strict=True):  # 1 and 1.0 are the same level
        merged[text] = merged.get(text, 0) + count
    enough = max(2, min(_RARE, len(series) // 100))
    ranked = sorted(merged, key=lambda text: (-merged[text], text))
    kept = min(LEVELS_KEPT, sum(count >= enough for count in merged.values()))
    pooled = tuple(ranked[kept : kept + _NAMES_KEPT])
    return ColumnSpec(str(series.name), "category", tuple(ranked[:kept]), pooled, has_missing=bool((codes < 0).any()))


def _standardised(series: pd.Series, spec: ColumnSpec) -> np.ndarray:
    with np.errstate(over="ignore"):  # infinity is clipped, and halves of the largest numbers do not overflow
        values = as_values(series, spec.kind, spec.date_format)
        return np.clip((values / 2 - spec.mean / 2) / spec.scale * 2, -_FARTHEST, _FARTHEST)


def _codes(series: pd.Series, spec: ColumnSpec) -> np.ndarray:
    """Return the code of each cell's level, the last for all pooled ones, NaN if it is missing."""
    codes, texts = as_text(series)
    place = {text: number for number, text in enumerate(spec.categories)}
    return np.array([*(place.get(text, len(place)) for text in texts), np.nan])[codes]


def _fill_linear(part: np.ndarray, series: pd.Series, spec: ColumnSpec) -> None:
    """Write one column's part of the matrix for linear models."""
    values = _codes(series, spec) if spec.is_category else _standardised(series, spec)
    missing = np.isnan(values)
    if spec.is_category:
        part[np.flatnonzero(~missing), values[~missing].astype(np.int64)] = 1
    else:
        part[:, 0] = np.where(missing, (spec.fill - spec.mean) / spec.scale, values)
    if spec.has_missing:
        part[:, -1] = missing
