"""Text files (CSV, TSV) as parts of a table.

Stage: path → `TextPart`: its delimiter, encoding, and what its cells say about the types of its columns → a data frame per
chunk, with types common to all parts.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from .columns import MISSING, MOSTLY, NUMBER, Finding

_SAMPLE = 1 << 16  # bytes inspected before a file is read, or more if its lines are long
_LONGEST = 1 << 26  # bytes of the first line
_LINES = 50  # lines from which the delimiter is found
_DELIMITERS = ",;\t|"
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


class TextTypes(NamedTuple):
    """The types of the columns in pandas' words, and what commas are in those with numbers that have some."""

    dtypes: dict[str, str]
    commas: dict[str, Comma]


@dataclass(frozen=True, eq=False)
class TextPart:
    """A text file.

    Attributes:
        path: of the file.
        encoding: of the text.
        delimiter: between cells.
        names: of its columns.
        text: columns that are read as they stand.
        findings: about the file.
        rows: their number.
        cells: by column some cells from which pandas infers the type of the whole column.
        frame: all rows, if they were kept.
    """

    path: Path
    encoding: str
    delimiter: str
    names: list[str]
    text: frozenset[str]
    findings: list[Finding]
    rows: int = 0
    cells: dict[str, dict[str, None]] = field(default_factory=dict)
    frame: pd.DataFrame | None = None

    @staticmethod
    def common_types(parts: Sequence[TextPart], size: int | None) -> tuple[TextTypes, list[Finding]]:
        """Return the types of the columns in all parts together, and what was found about commas in numbers."""
        dtypes = {name: _dtype_of(cell for part in parts for cell in part.cells[name]) for name in parts[0].names}
        if parts[0].delimiter == ",":
            return TextTypes(dtypes, {}), []
        return _types_with_commas(parts, dtypes, size)

    def frames(self, columns: Collection[str], types: TextTypes, size: int | None) -> Iterator[pd.DataFrame]:
        """Yield the rows, a data frame per chunk."""
        read_as = types.dtypes | dict.fromkeys(types.commas, "str")
        for frame in self.chunks(size, {name: read_as[name] for name in columns}):
            for name in types.commas:
                if name in columns:
                    frame[name] = _without_commas(frame[name], types.commas[name], types.dtypes[name])
            yield frame

    def chunks(self, size: int | None, dtypes: dict[str, str] | None = None) -> Iterator[pd.DataFrame]:
        """Yield rows as they stand, a data frame per chunk: of some columns with given types, or of all with their own."""
        if self.frame is not None and dtypes is not None:
            huge = [name for name, dtype in dtypes.items() if dtype == "str" and self.frame[name].dtype == object]
            yield self.frame[list(dtypes)].assign(**{name: self.frame[name].map(str, na_action="ignore") for name in huge})
            return
        wanted = [name for name in self.names if dtypes is None or name in dtypes]
        given = {} if dtypes is None else {name: dtypes[name] for name in wanted if dtypes[name] != "object"}
        text = dict.fromkeys(self.text.intersection(wanted), "str")
        options = self._options | {"dtype": given | text, "usecols": None if dtypes is None else wanted}
        objects = [name for name, dtype in (dtypes or {}).items() if dtype == "object"]  # True, False and missing
        for frame in self._read(size, options):
            yield frame.astype(dict.fromkeys(objects, object)) if objects else frame

    @property
    def _options(self) -> dict[str, Any]:
        missing: Any = MISSING
        if self.text:
            missing = {name: [""] if name in self.text else MISSING for name in self.names}
        options = {"sep": self.delimiter, "encoding": self.encoding, "na_values": missing}
        return options | {"names": self.names, "header": 0, "index_col": False, "keep_default_na": False, "low_memory": False}

    def _read(self, size: int | None, options: dict[str, Any]) -> Iterator[pd.DataFrame]:
        done = 0
        try:
            with _surplus_cells_are_errors(), pd.read_csv(self.path, iterator=True, **options) as reader:
                while True:
                    with _surplus_cells_are_errors():
                        frame = reader.read(size)
                    yield frame
                    done += len(frame)
                    if size is None:
                        return
        except StopIteration:
            return
        except UnicodeDecodeError:
            raise
        except (ValueError, OSError, EOFError, pd.errors.ParserWarning) as error:  # pandas' own errors are ValueErrors
            if size and done and isinstance(error, pd.errors.ParserWarning):  # pandas has no line for the first of a chunk
                yield from self._read(size + 1, options)
            raise ValueError(
                f"Expected a table in {self.path.name}, but it cannot be read ({first_line(error)}): every line needs the same "
                f"number of cells, separated by {self.delimiter!r}, and text with that sign in it needs quotes."
            ) from error


def survey_text(path: Path, encoding: str | None, is_text: Callable[[str], bool], size: int | None, keep: bool) -> TextPart:
    """Read a text file once, and return it as part of a table.

    Args:
        path: of the file.
        encoding: the user's, or None to find it.
        is_text: says of a column's name whether its cells are read as they stand.
        size: rows read at a time; None for all.
        keep: whether to keep the rows if they are read at once.
    """
    check_file(path)
    start = _first_bytes(path)
    _refuse_binary(start, path)
    try:
        b"a".decode(encoding or "utf-8", "replace")
    except (LookupError, ValueError):  # unknown; or a codec that is not for text, such as rot13 and base64
        raise ValueError(f"Expected the name of an encoding, but got {encoding!r}: such as utf-8, cp1252 or latin-1.") from None
    wide = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    names = [encoding] if encoding else ["utf-16"] if wide else ["utf-8-sig", "cp1252", "latin-1"]  # the last accepts any bytes
    for name in names:
        try:
            part = _survey(path, start, name, is_text, size, keep)
            break
        except UnicodeError as error:
            if name == names[-1]:
                words = f"{path.name} is not ({error}): leave it out, or give the right one."
                raise ValueError(f"Expected text in the encoding {name}, but {words}") from error
    if name == names[0]:
        return part
    words = f"the file is not UTF-8 and was read as {name}: look at names with accents, or give the encoding."
    return replace(part, findings=[Finding("warning", None, words), *part.findings])


def _survey(path: Path, start: bytes, encoding: str, is_text: Callable[[str], bool], size: int | None, keep: bool) -> TextPart:
    """Read the whole file; raise UnicodeDecodeError if the encoding is wrong."""
    delimiter, header = _dialect_of(_text_of(start, encoding), path)
    names = [name.strip() or f"Unnamed: {number}" for number, name in enumerate(header)]
    check_names(names, path)
    unnamed = [name for name, written in zip(names, header, strict=True) if not written.strip()]
    notes = [Finding("note", name, "the column has no name in the file.") for name in unnamed]
    part = TextPart(path, encoding, delimiter, names, frozenset(filter(is_text, names)), notes)
    rows, kept = 0, None
    cells: dict[str, dict[str, None]] = {name: {} for name in part.names}
    for frame in part.chunks(size):
        kept = frame if keep and not rows and (size is None or len(frame) < size) else None
        rows += len(frame)
        for name, column in frame.items():
            cells[str(name)] |= dict.fromkeys(_telling_cells(column, cells[str(name)]))
    return replace(part, rows=rows, cells=cells, frame=kept)


def _telling_cells(column: pd.Series, known: Collection[str]) -> list[str]:
    """Return cells from which pandas infers the type of a column that has these among others."""
    if "text" in known:
        return ["text"]
    if pd.api.types.is_integer_dtype(column):
        return [str(column.min()), str(column.max())] if len(column) else []
    missing = [""] if column.hasnans else []
    if column.dtype == np.float64:
        number = "0.5" if "0.5" in known or (column % 1 > 0).any() else "1.0"
        return [*missing, *([number] if column.notna().any() else [])]
    if pd.api.types.is_bool_dtype(column.dropna().infer_objects()):
        return ["True", *missing]
    return ["text"] if len(column) else []  # strings, or integers of more than 64 bits


def _dtype_of(cells: Iterable[str]) -> str:
    """Return the type that pandas infers for a column with these cells; "object" is True, False and missing."""
    known = dict.fromkeys(cells)
    shown = "".join(f"{cell},\n" for cell in known)
    found = str(pd.read_csv(io.StringIO("cell,\n" + shown), low_memory=False, index_col=False)["cell"].dtype)
    return "str" if found == "object" and not {*known} <= {"True", ""} else found


def _dialect_of(text: str, path: Path) -> tuple[str, list[str]]:
    """Return the delimiter that splits the first lines into the most cells, if possible as many in each, and the names."""

    def score(delimiter: str) -> tuple[float, int]:
        widths = [len(row) for row in _first_rows(text, delimiter)] or [1]
        return sum(width == widths[0] for width in widths) / len(widths) if widths[0] > 1 else 0.0, widths[0]

    delimiter = max(_DELIMITERS, key=score)
    names = next(iter(_first_rows(text, delimiter)), [])
    if not names:
        raise ValueError(f"Expected a table in {path.name}, but it is empty: the first line should name the columns.")
    if all(NUMBER.fullmatch(name.strip()) for name in names):
        raise ValueError(
            f"Expected the names of the columns in the first line of {path.name}, but got the numbers {names[:5]}: "
            "add a line with names at the top."
        )
    return delimiter, names


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


def _types_with_commas(parts: Sequence[TextPart], dtypes: dict[str, str], size: int | None) -> tuple[TextTypes, list[Finding]]:
    """Find decimal commas and thousands separators in columns of text; return the types, and findings about commas.

    Raises:
        ValueError: if neither the column nor the file says which of the two a comma is.
    """
    texts = [name for name, dtype in dtypes.items() if dtype == "str" and name not in parts[0].text]
    columns = _comma_columns(parts, texts, size)
    clear = {next(iter(fits)) for _, fits in columns.values() if len(fits) == 1}
    if any(dtype == "float64" and any("0.5" in part.cells[name] for part in parts) for name, dtype in dtypes.items()):
        clear.add("thousands")  # there are decimal points
    likely = next(iter(clear)) if len(clear) == 1 else "decimal" if parts[0].delimiter == ";" and not clear else None
    findings, meanings = [], dict[str, Comma]()
    where = parts[0].path.name
    for name, (example, fits) in columns.items():
        meaning = next(iter(fits)) if len(fits) == 1 else likely
        two_ways = f"{example!r} may have a decimal comma or a thousands separator"
        remedy = "write numbers with a decimal point and without separators."
        if meaning is None:
            raise ValueError(f"Expected numbers in {where} that are clear, but column {name!r} is not: {two_ways}; {remedy}")
        read = _plain_number(example, meaning)
        if len(fits) > 1:
            findings.append(Finding("warning", name, f"{two_ways}, and was read as {read}: if that is wrong, {remedy}"))
        elif meaning == "thousands":
            findings.append(Finding("note", name, f"{example!r} has a thousands separator, and was read as {read}."))
        meanings[name] = meaning
    decimal = [name for name, meaning in meanings.items() if meaning == "decimal"]
    dtypes = dtypes | _dtypes_without_commas(parts, meanings, size)
    if decimal:
        words = f"numbers are written with a decimal comma, and were read so (columns {decimal[:5]})."
        findings.insert(0, Finding("note", None, words))
        _check_points(parts, [name for name, dtype in dtypes.items() if dtype == "float64"], size)
    return TextTypes(dtypes, meanings), findings


def _comma_columns(
    parts: Sequence[TextPart], columns: Sequence[str], size: int | None
) -> dict[str, tuple[str, frozenset[Comma]]]:
    """Return the columns of numbers with commas: an example, and what the commas may be."""
    others, numbers, examples = Counter[str](), Counter[str](), dict[str, str]()
    fits = {name: frozenset(_COMMAS) for name in columns}
    for frame in _as_text(parts, columns, size):
        for name in columns:
            for cell, count in frame[name].value_counts().items():
                if not _ANY_NUMBER.fullmatch(text := str(cell).strip()):
                    others[name] += count
                    continue
                numbers[name] += count
                fits[name] = frozenset(meaning for meaning in fits[name] if _COMMAS[meaning].fullmatch(text))
                if "," in text:
                    examples.setdefault(name, text)
    mostly = [name for name in examples if fits[name] and numbers[name] >= MOSTLY * (numbers[name] + others[name])]
    return {name: (examples[name], fits[name]) for name in columns if name in mostly}


def _dtypes_without_commas(parts: Sequence[TextPart], meanings: dict[str, Comma], size: int | None) -> dict[str, str]:
    cells: dict[str, dict[str, None]] = {name: {} for name in meanings}
    for frame in _as_text(parts, list(meanings), size):
        for name, meaning in meanings.items():
            cells[name] |= dict.fromkeys(_telling_cells(_without_commas(frame[name], meaning), cells[name]))
    return {name: _dtype_of(each) for name, each in cells.items()}


def _as_text(parts: Sequence[TextPart], columns: Sequence[str], size: int | None) -> Iterator[pd.DataFrame]:
    """Yield the cells of some columns as they stand, a data frame per chunk."""
    for part in parts if columns else ():
        yield from part.chunks(size, dict.fromkeys(columns, "str"))


def _without_commas(series: pd.Series, meaning: Comma, dtype: str | None = None) -> pd.Series:
    """Return a column of numbers with commas as numbers, or as text with decimal points if some cells are no numbers."""
    read = series.astype(object).map(lambda cell: _plain_number(cell, meaning), na_action="ignore")
    if dtype == "str":
        return read
    try:
        numbers = pd.to_numeric(read)
        return numbers if dtype is None else numbers.astype(dtype)
    except ValueError:
        return read


def _plain_number(cell: Any, meaning: Comma) -> str:
    text = str(cell).strip()
    if not _ANY_NUMBER.fullmatch(text):
        return str(cell)
    return text.replace(".", "").replace(",", ".") if meaning == "decimal" else text.replace(",", "")


def _check_points(parts: Sequence[TextPart], columns: Sequence[str], size: int | None) -> None:
    """Raise a ValueError for a point in a file with decimal commas that may separate thousands."""
    pointed, clear = dict[str, str](), set[str]()
    for frame in _as_text([replace(part, frame=None) for part in parts], columns, size):
        for name in columns:
            cells = [cell.strip() for cell in frame[name].dropna().unique() if "." in cell]
            pointed |= {name: cells[0]} if cells else {}
            if not all(map(_POINT_OR_THOUSANDS.fullmatch, cells)):
                clear.add(name)
    for name in (name for name in columns if name in pointed and name not in clear):
        raise ValueError(
            f"Expected numbers in {parts[0].path.name} that are clear, but column {name!r} is not: {pointed[name]!r} may have "
            "a decimal point or, as other columns have decimal commas, a thousands separator; write all with a decimal "
            "point and without separators."
        )


def check_file(path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"Expected a file at {path}, but there is none: is the path right?")
    if path.stat().st_size == 0:
        raise ValueError(f"Expected a table in {path.name}, but the file is empty: was it written to the end?")


def check_names(names: list[str], path: Path) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1 and name]
    if twice:
        raise ValueError(
            f"Expected every column of {path.name} to have a name of its own, but {twice} come more than once: "
            "rename or remove the others."
        )


def check_alike(first: Any, other: Any) -> None:
    """Raise a ValueError if two parts of a table do not have the same columns, or delimiter."""
    odd = sorted(set(first.names) ^ set(other.names))
    if odd:
        raise ValueError(
            f"Expected the same columns in all parts of a table, but {first.path.name} and {other.path.name} differ in "
            f"{odd[:5]}: write them alike, or move the one that does not belong to it."
        )
    if isinstance(first, TextPart) and first.delimiter != other.delimiter:
        raise ValueError(
            f"Expected parts of one table, but {first.path.name} has {first.delimiter!r} between cells and {other.path.name} "
            f"{other.delimiter!r}: write them alike."
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


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].removeprefix("Error tokenizing data. C error: ")
