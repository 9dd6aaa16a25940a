"""Read a table from CSV, TSV or Parquet: a file or a folder of parts, whole or by chunk.

Stage: path → `pandas.DataFrame`, with notes about the file in `frame.attrs["findings"]`; path → `TableStream` → a frame
per chunk.

A stream is read twice: first for the types of its columns, then for its cells. So a column has the same type in all chunks and
parts, which is its type in the whole table, and errors in the file come before the first row is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
import pyarrow as pa

from .columns import Finding
from .text_files import TextPart, check_alike, check_file, check_names, first_line, survey_text

if TYPE_CHECKING:
    import pyarrow.parquet as pq

CHUNK = 100_000  # rows
_PARQUET = (".parquet", ".pq")
_TEXT = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")


def read_table(
    path: str | os.PathLike[str], *, encoding: str | None = None, text_columns: Collection[str] = ()
) -> pd.DataFrame:
    """Read a CSV, TSV or Parquet file, or a folder of parts.

    The delimiter (comma, semicolon, tab or bar) is found from the first lines. If it is no comma, decimal commas and thousands
    separators are found from all cells of a column: "3,5" has the one, "1,234,567" the other. "82,402" may have either: it is
    read as other columns of the file say, with a warning. A file that is not UTF-8 is read as Windows-1252, with a warning.
    Problems that are not errors are listed in `frame.attrs["findings"]`. Empty cells, "NA", "NaN", "null" and similar are
    missing values; "None" is not, because it often names a category.

    Args:
        path: a .csv, .tsv or .txt file, also .gz, or a .parquet file; or a folder of files of one kind with the same columns,
            which are read in the order of their names.
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
    stream = open_table(path, encoding=encoding, text_columns=text_columns, size=None)
    frames = list(stream.frames())
    frame = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
    frame.attrs["findings"] = stream.findings
    return frame


@dataclass(frozen=True, eq=False)
class TableStream:
    """A table on disk that is read by chunk.

    Attributes:
        parts: its files.
        columns: their names.
        types: of the columns, for the parts to read.
        findings: what to know about the files.
        size: rows of a chunk; None for a whole part.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from rightloss.tabular import open_table
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "data.csv").write_text("age,ill\\n50,no\\n60,yes\\n")
        ...     open_table(Path(folder, "data.csv")).rows
        2
    """

    parts: Sequence[TextPart] | Sequence[ParquetPart]
    columns: list[str]
    types: Any
    findings: list[Finding]
    size: int | None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(part.rows for part in self.parts)

    @property
    def is_long(self) -> bool:
        """Whether it has more than one chunk."""
        return self.rows > CHUNK

    @property
    def is_parquet(self) -> bool:
        """Whether its files are Parquet."""
        return self.parts[0].path.suffix.lower() in _PARQUET

    def start(self, part: int) -> int:
        """Return the number of the first row of a part."""
        return sum(each.rows for each in self.parts[:part])

    def empty(self, columns: Collection[str]) -> pd.DataFrame:
        """Return a data frame with the types of some columns, without rows."""
        dtypes = {name.strip(): dtype for name, dtype in self.types.dtypes.items()}
        return pd.DataFrame({name: pd.Series(dtype=dtypes[name]) for name in columns})

    def arrow_types(self) -> dict[str, Any]:
        """Return Arrow's types of the columns for which pandas has none."""
        if self.is_parquet:
            return {field.name.strip(): field.type for field in self.types.schema}
        return {name: pa.bool_() if dtype == "object" else pa.string() for name, dtype in self.types.dtypes.items()}

    def frames(self, columns: Collection[str | None] | None = None, part: int | None = None) -> Iterator[pd.DataFrame]:
        """Yield the rows in order, a data frame per chunk, with some columns or all; of one part or of all."""
        wanted = [name for name in self.columns if columns is None or name in columns]
        for each in self.parts if part is None else [self.parts[part]]:
            for frame in each.frames(wanted, self.types, self.size):
                yield frame[wanted] if list(frame.columns) != wanted else frame


def open_table(
    path: str | os.PathLike[str],
    *,
    encoding: str | None = None,
    text_columns: Collection[str] | Callable[[str], bool] = (),
    size: int | None = CHUNK,
    each: Callable[[Callable[[Path], Any], Sequence[Path]], Iterable[Any]] = map,
) -> TableStream:
    """Open a table to read it by chunk. All of it is read here once, to find the types of its columns.

    Args:
        path: see `read_table`.
        encoding: see `read_table`.
        text_columns: see `read_table`; or a function that says of a column's name whether it is one.
        size: rows of a chunk; None to read each part at once.
        each: `map`, or a function like it that works on several parts at a time.

    Raises:
        ValueError: see `read_table`; or if parts of a folder differ in kind or columns.

    Examples:
        >>> import pathlib, tempfile
        >>> from rightloss.tabular import open_table
        >>> path = pathlib.Path(tempfile.mkdtemp(), "people.csv")
        >>> _ = path.write_text("age,cancer\\n61,yes\\n,no\\n")
        >>> [frame["age"].tolist() for frame in open_table(path, size=1).frames()]
        [[61.0], [nan]]
    """
    path = Path(path)
    paths = _parts_of(path)
    is_text = text_columns if callable(text_columns) else frozenset(text_columns).__contains__
    options: dict[str, Any] = {"encoding": encoding, "is_text": is_text, "size": size, "keep": len(paths) == 1}
    survey: Callable[[Path], Any] = partial(survey_text, **options)
    if paths[0].suffix.lower() in _PARQUET:
        survey = survey_parquet
    parts = list(each(survey, paths))
    for part in parts[1:]:
        check_alike(parts[0], part)
    if not sum(part.rows for part in parts):
        count = len(parts[0].names)
        raise ValueError(f"Expected rows in {path.name}, but got only the {count} column names: add data below them.")
    types, findings = type(parts[0]).common_types(parts, size)
    found = dict.fromkeys([*(finding for part in parts for finding in part.findings), *findings])
    return TableStream(parts, parts[0].names, types, list(found), size)


def _parts_of(path: Path) -> list[Path]:
    """Return the file, or the files of a folder by name; raise a ValueError if there is no table."""
    if not path.is_dir():
        return [path]
    files = sorted(each for each in path.iterdir() if each.is_file() and each.name[0] not in "._")
    parquet, text = ([each for each in files if each.name.lower().endswith(endings)] for endings in (_PARQUET, _TEXT))
    if bool(parquet) == bool(text):
        what = "files of both kinds" if parquet else "no such files"
        raise ValueError(
            f"Expected parts of a table in the folder {path}, .csv or .parquet, but got {what}: name a file, or another folder."
        )
    return parquet or text


_BUFFER = 1 << 20  # bytes read at a time, so that a large row group is not held in memory


class ParquetTypes(NamedTuple):
    """The types of the columns: Arrow's, and pandas' by the name in the file, which depend on missing cells."""

    schema: pa.Schema
    dtypes: dict[str, Any]


@dataclass(frozen=True, eq=False)
class ParquetPart:
    """A Parquet file.

    Attributes:
        path: of the file.
        rows: their number.
        schema: its columns that have single values in their cells; categories are decoded.
        with_missing: the columns with missing cells.
        findings: about columns that are left out.
    """

    path: Path
    rows: int
    schema: pa.Schema
    with_missing: frozenset[str]
    findings: list[Finding]

    @cached_property
    def names(self) -> list[str]:
        """The names of the columns; an index that pandas wrote is none."""
        return [name.strip() for name in self._raw]

    @cached_property
    def _raw(self) -> list[str]:
        return [str(name) for name in _to_pandas(self.schema.empty_table()).columns]

    @staticmethod
    def common_types(parts: Sequence[ParquetPart], size: int | None) -> tuple[ParquetTypes, list[Finding]]:
        """Return the types of the columns in all parts together."""
        try:
            schema = pa.unify_schemas([part.schema for part in parts], promote_options="permissive")
        except pa.ArrowException as error:
            raise ValueError(
                f"Expected parts of one table, but their columns differ in type ({first_line(error)}): write them alike."
            ) from error
        missing = frozenset[str]().union(*(part.with_missing for part in parts))
        one_row = pa.table({name: pa.nulls(1, schema.field(name).type) for name in schema.names}, schema=schema)
        full, empty = (_to_pandas(table).dtypes for table in (schema.empty_table(), one_row))
        return ParquetTypes(schema, {name: (empty if name in missing else full)[name] for name in full.index}), []

    def frames(self, columns: Sequence[str], types: ParquetTypes, size: int | None) -> Iterator[pd.DataFrame]:
        """Yield the rows, a data frame per chunk."""
        raw = [name for name in self._raw if name.strip() in columns]
        schema = pa.schema([types.schema.field(name) for name in raw], types.schema.metadata)
        with _opened(self.path) as file:
            for batch in file.iter_batches(size or max(1, self.rows), columns=schema.names):
                frame = _to_pandas(pa.Table.from_batches([batch]).select(schema.names).cast(schema, safe=False))
                odd = {name: types.dtypes[name] for name in raw if frame[name].dtype != types.dtypes[name]}
                yield frame.astype(odd).set_axis([name.strip() for name in raw], axis=1)


def survey_parquet(path: Path) -> ParquetPart:
    """Return a Parquet file as part of a table: what its schema and the statistics of its row groups say."""
    check_file(path)
    with _opened(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        check_names(schema.names, path)
        nested = [each.name for each in schema if pa.types.is_nested(each.type) or pa.types.is_binary(each.type)]
        fields = [_decoded(each) for each in schema if each.name not in nested]
        names = [each.name for each in fields]
        missing = _with_missing(file, names)
    findings = [Finding("warning", name, "its cells are lists or bytes, not single values: it is left out.") for name in nested]
    part = ParquetPart(path, rows, pa.schema(fields, schema.metadata), missing, findings)
    check_names(part.names, path)
    return part


def _with_missing(file: pq.ParquetFile, names: Sequence[str]) -> frozenset[str]:
    """Return the columns with missing cells: by the statistics of the row groups, or by the cells without them."""
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    unknown, found = set[str](), set[str]()
    for column in (group.column(number) for group in groups for number in range(group.num_columns)):
        stats = column.statistics
        if stats is None or not stats.has_null_count:
            unknown.add(column.path_in_schema)
        elif stats.null_count:
            found.add(column.path_in_schema)
    to_read = [name for name in names if name in unknown - found]
    for batch in file.iter_batches(columns=to_read) if to_read else ():
        found |= {name for name in to_read if batch[name].null_count}
    return frozenset(found)


def _decoded(field: pa.Field) -> pa.Field:
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field


def _to_pandas(table: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas(split_blocks=True, self_destruct=True, date_as_object=False)
    return frame.reset_index(drop=True)


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    import pyarrow.parquet as pq  # within a function: it takes long

    try:
        with pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"Expected a Parquet file, but {path.name} cannot be read ({first_line(error)}): write it again, or use CSV."
        ) from error
