"""Parquet files as parts of a table.

Stage: path → `ParquetPart`: its schema, and which columns have missing cells → a data frame per chunk, with types common to all
parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from .findings import Finding
from .text_files import check_file, check_names, check_same_columns, first_line

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

    def check_alike(self, other: ParquetPart) -> None:
        """Raise a ValueError if another part is not of the same table."""
        check_same_columns(self, other)

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
            for table in _tables(file, schema, size or max(1, self.rows)):
                frame = _to_pandas(table)
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


def _tables(file: pq.ParquetFile, schema: pa.Schema, size: int) -> Iterator[pa.Table]:
    """Yield the rows, `size` at a time, whatever the row groups."""
    held = schema.empty_table()
    for batch in file.iter_batches(size, columns=schema.names):
        more = pa.Table.from_batches([batch]).select(schema.names).cast(schema, safe=False)
        held = pa.concat_tables([held, more])
        while len(held) >= size:
            yield held[:size]
            held = held[size:]
    if len(held):
        yield held


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
    try:
        with pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"Expected a Parquet file, but {path.name} cannot be read ({first_line(error)}): write it again, or use CSV."
        ) from error
