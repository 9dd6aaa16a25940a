"""Read a table from a CSV, TSV or Parquet file.

Stage: path of a CSV, TSV or Parquet file → `pandas.DataFrame`, with notes about the file in `frame.attrs["findings"]`.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from .findings import Finding

_SAMPLE = 1 << 16  # bytes inspected before a file is read
_DELIMITERS = ",;\t|"
# pandas' own list without "None", which is often the name of a category.
_MISSING = ["", "NA", "N/A", "n/a", "<NA>", "#N/A", "#NA", "#N/A N/A", "NaN", "nan", "-NaN", "-nan", "NULL", "null"]
_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")
_OTHER_KINDS = {
    b"PK": "a zip or Excel file: save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "an old Excel file: save the sheet as CSV",
    b"PAR1": "a Parquet file: name it .parquet",
    b"%PDF": "a PDF: export the table as CSV",
    b"\x1f\x8b": "a gzip file: name it .csv.gz",
    b"\x28\xb5\x2f\xfd": "a zstd file: unpack it",
}


def read_table(path: str | os.PathLike[str], *, encoding: str | None = None) -> pd.DataFrame:
    """Read a CSV, TSV or Parquet file.

    The delimiter (comma, semicolon, tab or bar) and a decimal comma are found from the first lines. A file that is not UTF-8
    is read as Windows-1252, with a finding. Problems that are not errors are listed in `frame.attrs["findings"]`. Empty cells,
    "NA", "NaN", "null" and similar are missing values; "None" is not, because it often names a category.

    Args:
        path: a .csv, .tsv or .txt file, also .gz, or a .parquet file.
        encoding: encoding of the text; None for UTF-8, or else Windows-1252.

    Raises:
        ValueError: if the file is missing, empty, not a table, or without rows, or if columns have the same name.

    Examples:
        >>> import pathlib, tempfile
        >>> from rightloss.tabular import read_table
        >>> path = pathlib.Path(tempfile.mkdtemp(), "people.csv")
        >>> _ = path.write_text("age;cancer\\n61,5;yes\\n48,0;no\\n")
        >>> read_table(path)["age"].tolist()
        [61.5, 48.0]
    """
    path = Path(path)
    _check_file(path)
    is_parquet = path.suffix.lower() in (".parquet", ".pq")
    frame, findings = _read_parquet(path) if is_parquet else _read_text(path, encoding)
    frame.columns = pd.Index([str(name).strip() for name in frame.columns])
    _check_names(list(frame.columns), path)
    if not len(frame):
        raise ValueError(f"Expected rows in {path.name}, but got only the {frame.shape[1]} column names: add data below them.")
    frame.attrs["findings"] = findings
    return frame


@dataclass(frozen=True)
class _Dialect:
    """The format of a table in a text file."""

    delimiter: str
    decimal: str
    names: list[str]


def _read_parquet(path: Path) -> tuple[pd.DataFrame, list[Finding]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError("Reading Parquet files needs pyarrow: pip install pyarrow, or save the table as CSV.") from error
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"Expected a Parquet file, but {path.name} cannot be read ({_first_line(error)}): write it again, or use CSV."
        ) from error
    _check_names(table.column_names, path)
    nested = [field.name for field in table.schema if pa.types.is_nested(field.type) or pa.types.is_binary(field.type)]
    findings = [Finding("warning", name, "its cells are lists or bytes, not single values: it is left out.") for name in nested]
    frame = table.drop_columns(nested).to_pandas(split_blocks=True, self_destruct=True, date_as_object=False)
    return frame.reset_index(drop=True), findings


def _read_text(path: Path, encoding: str | None) -> tuple[pd.DataFrame, list[Finding]]:
    start = _first_bytes(path)
    _refuse_binary(start, path)
    if encoding is not None:
        return _parse_as(path, start, encoding)
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return _parse(path, start, "utf-16")
    try:
        return _parse(path, start, "utf-8-sig")
    except UnicodeDecodeError:
        pass
    for other in ("cp1252", "latin-1"):  # the second accepts any bytes
        try:
            frame, findings = _parse(path, start, other)
        except UnicodeDecodeError:
            continue
        words = f"the file is not UTF-8 and was read as {other}: look at names with accents, or give the encoding."
        return frame, [Finding("warning", None, words), *findings]
    raise AssertionError("latin-1 decodes every byte")


def _parse_as(path: Path, start: bytes, encoding: str) -> tuple[pd.DataFrame, list[Finding]]:
    """Read the file in the encoding that the user gave."""
    try:
        codecs.lookup(encoding)
        return _parse(path, start, encoding)
    except LookupError:
        raise ValueError(f"Expected the name of an encoding, but got {encoding!r}: such as utf-8, cp1252 or latin-1.") from None
    except UnicodeError as error:
        raise ValueError(
            f"Expected text in the encoding {encoding}, but {path.name} is not ({error}): leave it out, or give the right one."
        ) from error


def _parse(path: Path, start: bytes, encoding: str) -> tuple[pd.DataFrame, list[Finding]]:
    """Read the whole file; raise UnicodeDecodeError if the encoding is wrong."""
    dialect = _dialect_of(_text_of(start, encoding), path)
    _check_names([name.strip() for name in dialect.names], path)
    options: dict[str, Any] = {"sep": dialect.delimiter, "decimal": dialect.decimal, "encoding": encoding}
    options |= {"index_col": False, "na_values": _MISSING, "keep_default_na": False, "low_memory": False}
    try:
        with _surplus_cells_are_errors():
            frame = pd.read_csv(path, compression="gzip" if path.suffix.lower() == ".gz" else None, **options)
    except UnicodeDecodeError:
        raise
    except (ValueError, OSError, EOFError, pd.errors.ParserWarning) as error:  # pandas' own errors are ValueErrors
        raise ValueError(
            f"Expected a table in {path.name}, but it cannot be read ({_first_line(error)}): every line needs the same number "
            f"of cells, separated by {dialect.delimiter!r}, and text with that sign in it needs quotes."
        ) from error
    findings = []
    if dialect.decimal == ",":
        findings.append(Finding("note", None, "numbers are written with a decimal comma, and were read so."))
    for number, name in enumerate(dialect.names):
        if not name.strip():
            findings.append(Finding("note", f"Unnamed: {number}", "the column has no name in the file."))
    return frame, findings


def _dialect_of(text: str, path: Path) -> _Dialect:
    """Return the delimiter that splits the first lines into the most cells, if possible the same number in each."""
    lines = [line for line in text.splitlines()[:50] if line.strip()]
    if not lines:
        raise ValueError(f"Expected a table in {path.name}, but it is empty: the first line should name the columns.")

    def score(delimiter: str) -> tuple[float, int]:
        widths = [len(row) for row in csv.reader(lines, delimiter=delimiter)]
        return sum(width == widths[0] for width in widths) / len(widths) if widths[0] > 1 else 0.0, widths[0]

    delimiter = max(_DELIMITERS, key=score)
    rows = list(csv.reader(lines, delimiter=delimiter))
    names = rows[0]
    if all(_NUMBER.fullmatch(name.strip()) for name in names):
        raise ValueError(
            f"Expected the names of the columns in the first line of {path.name}, but got the numbers {names[:5]}: "
            "add a line with names at the top."
        )
    cells = [cell.strip() for row in rows[1:] for cell in row if _NUMBER.fullmatch(cell.strip())]
    comma = delimiter != "," and any("," in cell for cell in cells) and not any("." in cell for cell in cells)
    return _Dialect(delimiter, "," if comma else ".", names)


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise ValueError(f"Expected a file, but {path} is a folder: name a .csv or .parquet file in it.")
    if not path.is_file():
        raise ValueError(f"Expected a file at {path}, but there is none: is the path right?")
    if path.stat().st_size == 0:
        raise ValueError(f"Expected a table in {path.name}, but the file is empty: was it written to the end?")


def _check_names(names: list[str], path: Path) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1 and name]
    if twice:
        raise ValueError(
            f"Expected every column of {path.name} to have a name of its own, but {twice} come more than once: "
            "rename or remove the others."
        )


def _first_bytes(path: Path) -> bytes:
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        try:
            return file.read(_SAMPLE)
        except (OSError, EOFError) as error:
            raise ValueError(f"Expected a gzip file, but {path.name} cannot be unpacked ({error}): write it again.") from error


def _refuse_binary(start: bytes, path: Path) -> None:
    for magic, what in _OTHER_KINDS.items():
        if start.startswith(magic):
            raise ValueError(f"Expected a text file with a table, but {path.name} is {what}.")
    if b"\0" in start and not start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError(f"Expected a text file with a table, but {path.name} holds binary data: save the table as CSV.")


def _text_of(start: bytes, encoding: str) -> str:
    """Return the first bytes as text, without an incomplete last line; invalid bytes are reported when the file is read."""
    text = codecs.getincrementaldecoder(encoding)(errors="replace").decode(start)
    return text.rpartition("\n")[0] if len(start) == _SAMPLE and "\n" in text else text


@contextmanager
def _surplus_cells_are_errors() -> Iterator[None]:
    """Turn pandas' warning of dropped cells into an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        yield


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].removeprefix("Error tokenizing data. C error: ")
