"""Tables of nodules, checked before hours of work are spent on them.

Stage: data frame like `nodules()` → the rows and columns that `prepare` takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["RATINGS", "checked_table", "numeric_columns"]

RATINGS = [f"rating_{rating}" for rating in range(1, 6)]

_NAMES = ("nodule", "patient_id", "series_uid")
_NEEDED = (*_NAMES, "x", "y", "z", *RATINGS)
_TAKEN = {"patches", "ratings", "spacing_mm", "nodule_id", "outside"}


def checked_table(table: DataFrame, series: Iterable[str] | None) -> DataFrame:
    """The rows of these series, or of all, with whole `nodule` numbers; ValueError where the archive could not hold them."""
    missing = [name for name in _NEEDED if name not in table]
    clash = sorted({*(_TAKEN & set(table.columns)), *map(str, table.columns[table.columns.duplicated()])})
    if missing or clash:
        raise ValueError(
            f"Expected a table like `nodules()`, but it lacks {missing} and has {clash}: add the first, rename the second."
        )
    if series is not None:
        table = _of_series(table, [series] if isinstance(series, str) else list(series))
    _check_names(table)
    _check_numbers(table)
    return table.assign(nodule=table["nodule"].astype(np.int64))


def numeric_columns(table: DataFrame) -> dict[str, NDArray[np.generic]]:
    """All columns of numbers but those that name a nodule, a patient or a series."""
    return {name: table[name].to_numpy() for name in table.select_dtypes(["number", "bool"]).columns if name not in _NAMES}


def _of_series(table: DataFrame, wanted: list[str]) -> DataFrame:
    unknown = sorted(set(wanted) - set(table["series_uid"]))
    if unknown:
        raise ValueError(f"Expected series of the table, but {unknown[:3]} are not in it: UIDs are in its column `series_uid`.")
    return table[table["series_uid"].isin(wanted)]


def _check_names(table: DataFrame) -> None:
    numbers = table["nodule"].to_numpy()
    whole = numbers.dtype.kind in "iu" or (numbers.dtype.kind == "f" and (numbers % 1 == 0).all())
    if len(table) == 0 or not whole or table["nodule"].duplicated().any():
        raise ValueError(
            "Expected nodules with whole numbers of their own in `nodule`, but the table has none, doubles or others: mend it."
        )
    if table["patient_id"].isna().any() or (table["patient_id"].astype(str) == "").any():
        raise ValueError("Expected a `patient_id` for every nodule, but some have none: name every patient.")
    odd = [uid for uid in table["series_uid"].unique() if not re.fullmatch(r"[0-9.]{1,64}", str(uid))]
    if odd:
        raise ValueError(f"Expected DICOM UIDs in `series_uid`, but got {odd[:3]}: digits and dots, at most 64.")


def _check_numbers(table: DataFrame) -> None:
    columns = numeric_columns(table)
    odd = [name for name, values in columns.items() if values.dtype.kind not in "biuf" or values.dtype.itemsize > 8]
    odd += [name for name in ("x", "y", "z", *RATINGS) if name not in columns]
    gaps = [name for name, values in columns.items() if name not in odd and not np.isfinite(values).all()]
    if odd or gaps:
        raise ValueError(
            f"Expected finite columns of whole or floating-point numbers, but {odd} are none and {gaps} have gaps: mend or "
            "leave them out."
        )
    counts = table[RATINGS].to_numpy(dtype=float)
    if (counts.sum(1) < 1).any() or (counts < 0).any() or (counts % 1 != 0).any():
        raise ValueError("Expected whole counts and a rating for every nodule, but some have others or none: leave them out.")
