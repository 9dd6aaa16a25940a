"""Predictions as a file, CSV or Parquet.

Stage: a data frame, a path → the file, written atomically; no CSV cell that a spreadsheet would run.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..atomic_files import whole_path

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = (".csv", ".csv.gz", ".tsv", ".parquet")
# Spreadsheet programs read text as a formula if it begins with one of these characters and is not a number.
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠\t\r]")
_NUMBER = re.compile(r"\s*[+-]?(?:\d+[.,]?\d*|[.,]\d+)(?:[eE][+-]?\d+)?\s*")


def check_output(path: Path, overwrite: bool = True) -> None:
    """Raise ValueError if predictions cannot be written to this path."""
    if not path.name.lower().endswith(ENDINGS):
        raise ValueError(f"Expected a file that ends in {', '.join(ENDINGS)}, but got {path}: predictions.csv, say.")
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else "is in a folder that does not exist"
        raise ValueError(f"Expected a file to write, but {path} {what}: choose another name, or make the folder first.")
    if path.exists() and not overwrite:
        raise ValueError(f"Expected a new file, but {path} exists: choose another name, or add --overwrite.")


def write_frame(frame: pd.DataFrame, path: Path) -> dict[str, int]:
    """Write the frame in the format of the path's suffix; return, by column, how many cells or names were escaped.

    In CSV, text that a spreadsheet program would run as a formula gets an apostrophe in front. Parquet is written as it is.
    """
    name = path.name.lower()
    if name.endswith(".parquet"):
        with whole_path(path) as temporary:
            frame.to_parquet(temporary, index=False)
        return {}
    safe, changed = without_formulas(frame)
    with whole_path(path) as temporary:
        compression = "gzip" if name.endswith(".gz") else None
        safe.to_csv(temporary, index=False, sep="\t" if name.endswith(".tsv") else ",", compression=compression)
    return changed


def print_frame(frame: pd.DataFrame) -> dict[str, int]:
    """Print the frame as CSV, in UTF-8, on standard output; return what `write_frame` does."""
    safe, changed = without_formulas(frame)
    sys.stdout.flush()
    safe.to_csv(sys.stdout.buffer, index=False)
    sys.stdout.buffer.flush()
    return changed


def without_formulas(frame: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    """Return the frame with an apostrophe before text that would run as a formula, and how many cells that were, by column."""
    from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

    safe, changed = frame.copy(deep=False), {}
    for name in frame.columns:
        if is_numeric_dtype(frame[name]) or is_bool_dtype(frame[name]) or is_datetime64_any_dtype(frame[name]):
            continue
        cells = frame[name].astype(object)
        formulas = cells.map(_is_formula).astype(bool)
        if formulas.any():
            safe[name] = cells.where(~formulas, "'" + cells.astype(str))
            changed[str(name)] = int(formulas.sum())
    names = {name: f"'{name}" for name in frame.columns if _is_formula(name)}
    changed |= {str(name): changed.get(str(name), 0) + 1 for name in names}
    return safe.rename(columns=names), changed


def _is_formula(cell: object) -> bool:
    return isinstance(cell, str) and bool(_FORMULA.match(cell)) and not _NUMBER.fullmatch(cell)
