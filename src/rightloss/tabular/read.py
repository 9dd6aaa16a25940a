"""Read a table from a CSV, TSV or Parquet file.

Stage: path of a CSV, TSV or Parquet file → `pandas.DataFrame`, with notes about the file in `frame.attrs["findings"]`.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from .columns import MOSTLY
from .findings import Finding

_SAMPLE = 1 << 16  # bytes inspected before a file is read, or more if its lines are long
_LONGEST = 1 << 26  # bytes of the first line
_LINES = 50  # lines from which the delimiter is found
_DELIMITERS = ",;\t|"
# pandas' own list without "None", which is often the name of a category.
MISSING = ["", "NA", "N/A", "n/a", "<NA>", "#N/A", "#NA", "#N/A N/A", "NaN", "nan", "-NaN", "-nan", "NULL", "null"]
_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")
_ANY_NUMBER = re.compile(r"[+-]?[\d.,]*\d[\d.,]*([eE][+-]?\d+)?")
Comma = Literal["decimal", "thousands"]
_COMMAS: dict[Comma, re.Pattern[str]] = {
    "decimal": re.compile(r"[+-]?(\d*|[1-9]\d{0,2}(\.\d{3})+)(,\d*)?([eE][+-]?\d+)?"),
    "thousands": re.compile(r"[+-]?(\d+|[1-9]\d{0,2}(,\d{3})+)(\.\d*)?"),
}
_POINT_OR_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")
_OTHER_KINDS = {
    b"PK": "a zip or Excel file: save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "an old Excel file: save the sheet as CSV",
    b"PAR1": "a Parquet file: name it .parquet",
    b"%PDF": "a PDF: export the table as CSV",
    b"\x1f\x8b": "a gzip file: name it .csv.gz",
    b"\x28\xb5\x2f\xfd": "a zstd file: unpack it",
}


def read_table(
    path: str | os.PathLike[str], *, encoding: str | None = None, text_columns: Collection[str] = ()
) -> pd.DataFrame:
    """Read a CSV, TSV or Parquet file.

    The delimiter (comma, semicolon, tab or bar) is found from the first lines. If it is no comma, decimal commas and thousands
    separators are found from all cells of a column: "3,5" has the one, "1,234,567" the other. "82,402" may have either: it is
    read as other columns of the file say, with a warning. A file that is not UTF-8 is read as Windows-1252, with a warning.
    Problems that are not errors are listed in `frame.attrs["findings"]`. Empty cells, "NA", "NaN", "null" and similar are
    missing values; "None" is not, because it often names a category.

    Args:
        path: a .csv, .tsv or .txt file, also .gz, or a .parquet file.
        encoding: encoding of the text; None for UTF-8, or else Windows-1252.
        text_columns: columns of a text file whose cells are read as they stand; only empty ones are missing.

    Raises:
        ValueError: if the file is missing, empty, not a table, or without rows, if columns have the same name, or if numbers
            can be read in two ways.

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
    frame, findings = _read_parquet(path) if is_parquet else _read_text(path, encoding, text_columns)
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


def _read_text(path: Path, encoding: str | None, text: Collection[str]) -> tuple[pd.DataFrame, list[Finding]]:
    start = _first_bytes(path)
    _refuse_binary(start, path)
    if encoding is not None:
        return _parse_as(path, start, encoding, text)
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return _parse(path, start, "utf-16", text)
    try:
        return _parse(path, start, "utf-8-sig", text)
    except UnicodeDecodeError:
        pass
    for other in ("cp1252", "latin-1"):  # the second accepts any bytes
        try:
            frame, findings = _parse(path, start, other, text)
        except UnicodeDecodeError:
            continue
        words = f"the file is not UTF-8 and was read as {other}: look at names with accents, or give the encoding."
        return frame, [Finding("warning", None, words), *findings]
    raise AssertionError("latin-1 decodes every byte")


def _parse_as(path: Path, start: bytes, encoding: str, text: Collection[str]) -> tuple[pd.DataFrame, list[Finding]]:
    """Read the file in the encoding that the user gave."""
    try:
        b"a".decode(encoding, "replace")
    except (LookupError, ValueError):  # unknown; or a codec that is not for text, such as rot13 and base64
        raise ValueError(f"Expected the name of an encoding, but got {encoding!r}: such as utf-8, cp1252 or latin-1.") from None
    try:
        return _parse(path, start, encoding, text)
    except UnicodeError as error:
        raise ValueError(
            f"Expected text in the encoding {encoding}, but {path.name} is not ({error}): leave it out, or give the right one."
        ) from error


def _parse(path: Path, start: bytes, encoding: str, text: Collection[str]) -> tuple[pd.DataFrame, list[Finding]]:
    """Read the whole file; raise UnicodeDecodeError if the encoding is wrong."""
    dialect = _dialect_of(_text_of(start, encoding), path)
    _check_names([name.strip() for name in dialect.names], path)
    as_text = [name for name in dialect.names if name.strip() in text]
    options: dict[str, Any] = {"sep": dialect.delimiter, "encoding": encoding, "index_col": False, "keep_default_na": False}
    options |= {"compression": "gzip" if path.suffix.lower() == ".gz" else None, "low_memory": False, "na_values": MISSING}
    if as_text:
        names = [name or f"Unnamed: {number}" for number, name in enumerate(dialect.names)]
        options["na_values"] = {name: [""] if name in as_text else MISSING for name in names}
    try:
        with _surplus_cells_are_errors():
            frame = pd.read_csv(path, dtype=dict.fromkeys(as_text, str), **options)
    except UnicodeDecodeError:
        raise
    except (ValueError, OSError, EOFError, pd.errors.ParserWarning) as error:  # pandas' own errors are ValueErrors
        raise ValueError(
            f"Expected a table in {path.name}, but it cannot be read ({_first_line(error)}): every line needs the same number "
            f"of cells, separated by {dialect.delimiter!r}, and text with that sign in it needs quotes."
        ) from error
    findings: list[Finding] = []
    if dialect.delimiter != ",":
        findings = _read_commas(frame, set(as_text), dialect.delimiter, path)
        if any(finding.column is None for finding in findings):
            floats = list(frame.columns[frame.dtypes == np.float64])
            _check_points(pd.read_csv(path, dtype=str, usecols=floats, **options) if floats else frame[floats], path)
    for number, name in enumerate(dialect.names):
        if not name.strip():
            findings.append(Finding("note", f"Unnamed: {number}", "the column has no name in the file."))
    return frame, findings


def _dialect_of(text: str, path: Path) -> _Dialect:
    """Return the delimiter that splits the first lines into the most cells, if possible the same number in each."""

    def score(delimiter: str) -> tuple[float, int]:
        widths = [len(row) for row in _first_rows(text, delimiter)] or [1]
        return sum(width == widths[0] for width in widths) / len(widths) if widths[0] > 1 else 0.0, widths[0]

    delimiter = max(_DELIMITERS, key=score)
    names = next(iter(_first_rows(text, delimiter)), [])
    if not names:
        raise ValueError(f"Expected a table in {path.name}, but it is empty: the first line should name the columns.")
    if all(_NUMBER.fullmatch(name.strip()) for name in names):
        raise ValueError(
            f"Expected the names of the columns in the first line of {path.name}, but got the numbers {names[:5]}: "
            "add a line with names at the top."
        )
    return _Dialect(delimiter, names)


def _first_rows(text: str, delimiter: str) -> list[list[str]]:
    """Return the first rows that are not blank, up to one that the csv module cannot read: pandas says what is wrong there."""
    rows: list[list[str]] = []
    with suppress(csv.Error):
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter):
            if len(row) > 1 or "".join(row).strip():
                rows.append(row)
            if len(rows) == _LINES:
                break
    return rows


def _read_commas(frame: pd.DataFrame, as_text: Collection[str], delimiter: str, path: Path) -> list[Finding]:
    """Read numbers with decimal commas or thousands separators, in place; return findings, one without a column on the first.

    Raises:
        ValueError: if neither the column nor the file says which of the two a comma is.
    """
    columns = {name: commas for name in frame.columns if name not in as_text and (commas := _commas(frame[name]))}
    clear: set[Comma] = {meaning for _, meaning in columns.values() if meaning is not None}
    if any((frame[name] % 1 > 0).any() for name in frame.columns[frame.dtypes == np.float64]):
        clear.add("thousands")  # there are decimal points
    likely = next(iter(clear)) if len(clear) == 1 else "decimal" if delimiter == ";" and not clear else None
    findings = []
    for name, (example, meaning) in columns.items():
        found = meaning or likely
        two_ways = f"{example!r} may have a decimal comma or a thousands separator"
        remedy = "write numbers with a decimal point and without separators."
        if found is None:
            raise ValueError(
                f"Expected numbers in {path.name} that are clear, but column {name!r} is not: {two_ways}; {remedy}"
            )
        read = _plain_number(example, found)
        if meaning is None:
            findings.append(Finding("warning", name, f"{two_ways}, and was read as {read}: if that is wrong, {remedy}"))
        elif found == "thousands":
            findings.append(Finding("note", name, f"{example!r} has a thousands separator, and was read as {read}."))
        frame[name] = _without_commas(frame[name], found)
    decimal = [name for name, (_, meaning) in columns.items() if (meaning or likely) == "decimal"]
    if decimal:
        words = f"numbers are written with a decimal comma, and were read so (columns {decimal[:5]})."
        findings.insert(0, Finding("note", None, words))
    return findings


def _commas(series: pd.Series) -> tuple[str, Comma | None] | None:
    """Return, of a column of numbers with commas, an example and what the commas are, if that is clear; else None."""
    if pd.api.types.is_numeric_dtype(series) or pd.api.types.is_bool_dtype(series):
        return None
    counts = series.value_counts()
    cells = np.array([str(cell).strip() for cell in counts.index], dtype=object)
    numbers = np.array([bool(_ANY_NUMBER.fullmatch(cell)) for cell in cells], dtype=bool)
    example = next((cell for cell in cells[numbers] if "," in cell), None)
    if example is None or counts.to_numpy()[numbers].sum() < MOSTLY * counts.sum():
        return None
    fits = [meaning for meaning, form in _COMMAS.items() if all(form.fullmatch(cell) for cell in cells[numbers])]
    return (example, fits[0] if len(fits) == 1 else None) if fits else None


def _without_commas(series: pd.Series, meaning: Comma) -> pd.Series:
    """Return a column of numbers with commas as numbers, or as text with decimal points if some cells are no numbers."""
    read = series.astype(object).map(lambda cell: _plain_number(cell, meaning), na_action="ignore")
    try:
        return pd.to_numeric(read)
    except ValueError:
        return read


def _plain_number(cell: Any, meaning: Comma) -> str:
    text = str(cell).strip()
    if not _ANY_NUMBER.fullmatch(text):
        return str(cell)
    return text.replace(".", "").replace(",", ".") if meaning == "decimal" else text.replace(",", "")


def _check_points(cells: pd.DataFrame, path: Path) -> None:
    """Raise a ValueError for a point in a file with decimal commas that may separate thousands."""
    for name in cells.columns:
        pointed = [cell.strip() for cell in cells[name].dropna().unique() if "." in cell]
        if pointed and all(_POINT_OR_THOUSANDS.fullmatch(cell) for cell in pointed):
            raise ValueError(
                f"Expected numbers in {path.name} that are clear, but column {name!r} is not: {pointed[0]!r} may have a "
                "decimal point or, as other columns have decimal commas, a thousands separator; write all with a decimal "
                "point and without separators."
            )


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
    """Return the first bytes, with enough lines to find the delimiter."""
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        try:
            start = more = file.read(_SAMPLE)
            while more and len(start) < _LONGEST and max(start.count(b"\n"), start.count(b"\r")) < _LINES:
                more = file.read(len(start))
                start += more
        except (OSError, EOFError) as error:
            raise ValueError(f"Expected a gzip file, but {path.name} cannot be unpacked ({error}): write it again.") from error
    if len(start) >= _LONGEST and not re.search(rb"[\r\n]", start):
        raise ValueError(f"Expected the names of columns in the first line of {path.name}, but it does not end: is it a table?")
    return start


def _refuse_binary(start: bytes, path: Path) -> None:
    for magic, what in _OTHER_KINDS.items():
        if start.startswith(magic):
            raise ValueError(f"Expected a text file with a table, but {path.name} is {what}.")
    if b"\0" in start and not start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError(f"Expected a text file with a table, but {path.name} holds binary data: save the table as CSV.")


def _text_of(start: bytes, encoding: str) -> str:
    """Return the first bytes as text, without an incomplete last line; invalid bytes are reported when the file is read."""
    text = codecs.getincrementaldecoder(encoding)(errors="replace").decode(start)
    return text.rpartition("\n")[0] if len(start) >= _SAMPLE and "\n" in text else text


@contextmanager
def _surplus_cells_are_errors() -> Iterator[None]:
    """Turn pandas' warning of dropped cells into an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        yield


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].removeprefix("Error tokenizing data. C error: ")
