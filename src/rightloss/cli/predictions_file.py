"""Predictions as a file, CSV or Parquet.

Stage: a data frame, a path → the file, written atomically; no CSV cell that a spreadsheet would run → the frame again.
"""

from __future__ import annotations

import csv
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..atomic_files import check_writable, whole_path
from .errors import require

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = (".csv", ".csv.gz", ".tsv", ".parquet")
PREDICTED = "predicted"
# Spreadsheet programs read text as a formula if it begins with one of these characters and is not a number.
_FORMULA = re.compile(r"[\s\x00-\x1f\ufeff]*[=+\-@＝＋－＠]\s*\S|\s*[\t\r]")
NUMBER = re.compile(r"\s*[+-]?(?:\d+[.,]?\d*|[.,]\d+)(?:[eE][+-]?\d+)?\s*")


def check_output(path: Path, overwrite: bool = True) -> None:
    """Raise a ValueError, OSError or ModuleNotFoundError if predictions cannot be written to this path."""
    if not path.name.lower().endswith(ENDINGS):
        raise ValueError(f"Expected a file that ends in {', '.join(ENDINGS)}, but got {path}: predictions.csv, say.")
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else "is in a folder that does not exist"
        raise ValueError(f"Expected a file to write, but {path} {what}: choose another name, or make the folder first.")
    if path.exists() and not overwrite:
        raise ValueError(f"Expected a new file, but {path} exists: choose another name, or add --overwrite.")
    check_writable(path.parent)
    if path.name.lower().endswith(".parquet"):
        require("pyarrow")


def write_frame(frame: pd.DataFrame, path: Path) -> dict[str, int]:
    """Write the frame in the format of the path's suffix; return, by column, how many cells or names were escaped.

    In CSV, text that a spreadsheet program would run as a formula gets an apostrophe in front. Parquet is written as it is, but
    for cells that it has no type for, such as integers of more than 64 bits: they become text.
    """
    name = path.name.lower()
    if name.endswith(".parquet"):
        with whole_path(path) as temporary:
            _for_parquet(frame).to_parquet(temporary, index=False)
        return {}
    safe, changed = without_formulas(frame)
    with whole_path(path) as temporary:
        compression = "gzip" if name.endswith(".gz") else None
        sep = "\t" if name.endswith(".tsv") else ","
        safe.to_csv(temporary, index=False, sep=sep, compression=compression, quoting=_quoting(frame))
    return changed


def print_frame(frame: pd.DataFrame) -> dict[str, int]:
    """Print the frame as CSV, in UTF-8, on standard output; return what `write_frame` does."""
    safe, changed = without_formulas(frame)
    sys.stdout.flush()
    safe.to_csv(sys.stdout.buffer, index=False, quoting=_quoting(frame))
    sys.stdout.buffer.flush()
    return changed


def read_predictions(path: Path, target: str, encoding: str | None = None) -> pd.DataFrame:
    """Read a file of `write_frame`: without the apostrophes, and with the labels of a CSV file as text."""
    from ..tabular import TableWarning, read_table

    frame = read_table(path, encoding=encoding, text_columns=[target, f"'{target}"])
    for finding in frame.attrs["findings"]:
        if finding.level == "warning":
            warnings.warn(str(finding).removeprefix("warning: "), TableWarning, stacklevel=2)
    if path.suffix.lower() in (".parquet", ".pq"):
        return frame
    for name in _text_columns(frame):
        frame[name] = frame[name].astype(object).map(_without_apostrophe)
    return frame.rename(columns=_without_apostrophe)


def in_order(columns: Sequence[str], probabilities: Sequence[str], limits: Sequence[str] = ()) -> list[str]:
    """Return the columns of a file of predictions: kept ones that could be taken for probabilities come after `predicted`."""
    last = len(columns)
    while last and columns[last - 1].startswith("p_"):
        last -= 1
    return [*columns[:last], *probabilities, PREDICTED, *limits, *columns[last:]]


def probability_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns p_… directly before `predicted`; all of the file if none are there."""
    end = columns.index(PREDICTED) if PREDICTED in columns else 0
    start = end
    while start and columns[start - 1].startswith("p_"):
        start -= 1
    return list(columns[start:end]) or [name for name in columns if name.startswith("p_")]


def without_formulas(frame: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    """Return the frame with an apostrophe before text that would run as a formula, and how many cells that were, by column.

    Text that has apostrophes before a formula gets one more, so that one can be removed from each.
    """
    safe, changed = frame.copy(deep=False), {}
    for name in _text_columns(frame):
        cells = frame[name].astype(object)
        formulas = cells.map(_is_formula).astype(bool)
        if formulas.any():
            safe[name] = cells.where(~formulas, "'" + cells.astype(str))
            changed[str(name)] = int(formulas.sum())
    names = {name: f"'{name}" for name in frame.columns if _is_formula(name)}
    changed |= {str(name): changed.get(str(name), 0) + 1 for name in names}
    return safe.rename(columns=names), changed


def _text_columns(frame: pd.DataFrame) -> list[str]:
    from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

    others = (is_numeric_dtype, is_bool_dtype, is_datetime64_any_dtype)
    return [name for name in frame.columns if not any(is_other(frame[name]) for is_other in others)]


def _quoting(frame: pd.DataFrame) -> Literal[0, 2]:
    """Return the csv module's option; by itself it leaves carriage returns unquoted, where readers would end a row."""
    return csv.QUOTE_NONNUMERIC if _has_return(frame) else csv.QUOTE_MINIMAL


def _has_return(frame: pd.DataFrame) -> bool:
    names = [str(name) for name in frame.columns]
    cells = (cell for name in _text_columns(frame) for cell in frame[name].astype(object))
    return any("\r" in each for each in names) or any(isinstance(cell, str) and "\r" in cell for cell in cells)


def _for_parquet(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame without the findings about its file, and with text where Arrow has no type for the cells."""
    import pyarrow as pa

    table = frame.copy(deep=False)
    table.attrs = {}
    for name in _text_columns(frame):
        try:
            pa.array(frame[name], from_pandas=True)
        except (pa.ArrowException, OverflowError, TypeError):
            table[name] = frame[name].map(str, na_action="ignore")
    return table


def _without_apostrophe(cell: Any) -> Any:
    return cell[1:] if isinstance(cell, str) and cell.startswith("'") and _is_formula(cell) else cell


def _is_formula(cell: object) -> bool:
    text = cell.lstrip("'") if isinstance(cell, str) else ""
    return bool(_FORMULA.match(text)) and not NUMBER.fullmatch(text)
