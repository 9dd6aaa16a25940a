"""Tables that are read and written by chunk, in this process or on Ray, and files of predictions.

Stage: a model, a path → a table in parts; a function, chunks → its results, in order; data frames → a file, written atomically,
with no CSV cell that a spreadsheet would run → data frames again. A part whose worker dies is done again.
"""

from __future__ import annotations

import csv
import gzip
import sys
import warnings
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from .. import __version__
from ..atomic_files import check_writable, whole_path
from ..ray_cluster import connected, last_line, other_version
from ..tabular import ColumnSpec, TableModel, TableStream, open_table
from ..tabular.columns import is_formula, is_text, warn_of
from ..tabular.pipelines import OddCells, odd_cells, odd_findings, require_columns
from .commands import check_engine
from .terminal import progress, require

Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
_RETRIES = 3


@contextmanager
def engine_of(name: str, address: str | None) -> Iterator[Each]:
    """Yield `map`, or a function like it that works on Ray; there, a function that yields gives a list.

    Raises:
        ValueError: if the engine is unknown, or there is no cluster at the address.
    """
    check_engine(name, address)
    if name != "ray":
        yield map
        return
    require("ray")

    with connected(address) as ray, redirect_stdout(sys.stderr):  # Ray prints there what happens to workers
        yield partial(_on_ray, ray)


def over_chunks(
    each: Each,
    table: TableStream,
    columns: Collection[str],
    job: Callable[[pd.DataFrame, int], Any],
    model: TableModel | None = None,
) -> Iterator[Any]:
    """Yield what `job` makes of each chunk of a table, in order; show the progress, and warn of cells unknown in training.

    Args:
        each: of `engine_of`.
        table: the table.
        columns: those to read, besides those of the model.
        job: takes a data frame and the number of its first row.
        model: the model that predicts the rows, if there is one.
    """
    specs = _used(model)
    wanted = {*columns, *(spec.name for spec in specs)}

    def of_part(part: int) -> Iterator[tuple[int, OddCells, Any]]:
        start = table.start(part)
        for frame in table.frames(wanted, part):
            yield len(frame), odd_cells(frame, specs), job(frame, start)
            start += len(frame)

    done, odd = 0, []
    with progress("rows") if table.is_long else nullcontext() as show:
        for rows, cells, found in chain.from_iterable(each(of_part, range(len(table.parts)))):
            yield found
            done += rows
            odd.append(cells)
            if show is not None:
                show(done, table.rows, "")
    warn_of(odd_findings(odd, table.rows, specs))


def stacked(chunks: Iterable[np.ndarray], rows: int) -> np.ndarray:
    """Return the rows of all chunks as one table; they are never held twice."""
    found, start = np.empty(0), 0
    for chunk in chunks:
        found = found if start else np.empty((rows, chunk.shape[1]))
        found[start : start + len(chunk)] = chunk
        start += len(chunk)
    return found


def open_for(model: TableModel, path: Path, encoding: str | None, each: Each, others_as_text: bool = False) -> TableStream:
    """Open a table that a model is to predict, and warn of what was found about its files.

    With `others_as_text`, columns of a text file that the model does not look at are read as they stand.

    Raises:
        ValueError: if it cannot be read, or lacks a column of the model.
    """
    known = {spec.name for spec in _used(model)}
    text = (lambda name: name not in known) if others_as_text else ()
    table = open_table(path, encoding=encoding, text_columns=text, each=each)
    require_columns(table.columns, _used(model))
    warn_of(table.findings)
    return table


def _used(model: TableModel | None) -> list[ColumnSpec]:
    """Return the columns that a model looks at: none if it always answers its population."""
    return [] if model is None or model.fitted is None else model.columns


def _on_ray(ray: Any, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """Yield the results in order; only as many parts are under way, or done and waiting, as there are processors and two."""
    task = ray.remote(num_cpus=1, max_retries=_RETRIES)(_task)
    shared, waiting = ray.put(function), deque[Any]()
    most = int(ray.cluster_resources().get("CPU", 1)) + 2
    for item in items:
        waiting.append((item, task.remote(__version__, shared, item)))
        if len(waiting) == most:
            yield _result(ray, *waiting.popleft())
    while waiting:
        yield _result(ray, *waiting.popleft())


def _task(version: str, function: Callable[[Any], Any], item: Any) -> Any:
    """Do one part on a machine of the cluster; return a user's error, as Ray would add a traceback to its message."""
    if version != __version__:
        return other_version(version, __version__)
    try:
        found = function(item)
        return list(found) if isinstance(found, Iterator) else found
    except ValueError as error:
        return error


def _result(ray: Any, item: Any, task: Any) -> Any:
    try:
        found = ray.get(task)
    except ray.exceptions.RayError as error:
        raise ChildProcessError(
            f"Expected a result of part {item}, but Ray gave up ({type(error).__name__}: {last_line(error)}): is rightloss "
            f"{__version__} on every machine of the cluster, the file at the same path, and memory enough?"
        ) from error
    if isinstance(found, Exception):
        raise found
    return found


ENDINGS = (".csv", ".csv.gz", ".tsv", ".parquet")
PREDICTED = "predicted"


def check_output(path: Path | None, overwrite: bool = True, json: bool = False) -> None:
    """Raise a ValueError or OSError if predictions cannot be written to this path, or beside JSON."""
    if path is None:
        if json:
            raise ValueError("Expected --out with --json, but got none: predictions and JSON would mix on standard output.")
        return
    if not path.name.lower().endswith(ENDINGS):
        raise ValueError(f"Expected a file that ends in {', '.join(ENDINGS)}, but got {path}: predictions.csv, say.")
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else "is in a folder that does not exist"
        raise ValueError(f"Expected a file to write, but {path} {what}: choose another name, or make the folder first.")
    if path.exists() and not overwrite:
        raise ValueError(f"Expected a new file, but {path} exists: choose another name, or add --overwrite.")
    check_writable(path.parent)


def writes_text(out: Path | None) -> bool:
    """Return whether predictions are written as text: to standard output, or to a file that is not Parquet."""
    return out is None or not out.name.lower().endswith(".parquet")


class FileFormat(NamedTuple):
    """The format of a file of predictions.

    Attributes:
        empty: a data frame with its columns, without rows.
        schema: Arrow's, for Parquet; None for text.
        delimiter: between the cells of text.
        packed: whether it is gzip.
    """

    empty: pd.DataFrame
    schema: Any
    delimiter: str
    packed: bool

    @classmethod
    def of(cls, path: Path | None, empty: pd.DataFrame, types: Mapping[str, Any]) -> FileFormat:
        """Return the format by the suffix of the path, CSV without one.

        Args:
            path: of the file.
            empty: its columns, without rows.
            types: Arrow's types of the columns for which pandas has none.
        """
        name = "" if path is None else path.name.lower()
        schema = _schema(empty, types) if name.endswith(".parquet") else None
        return cls(empty, schema, "\t" if name.endswith(".tsv") else ",", name.endswith(".gz"))

    def content(self, frame: pd.DataFrame) -> tuple[Any, Counter[str]]:
        """Return the rows as they are written, and, by column, how many cells were escaped.

        In CSV, text that a spreadsheet program would run as a formula gets an apostrophe in front.
        """
        if self.schema is not None:
            return pa.Table.from_pandas(frame, self.schema, preserve_index=False), Counter()
        safe, changed = without_formulas(frame)
        text = safe.to_csv(header=False, index=False, sep=self.delimiter, quoting=_quoting(frame))
        return text.encode(), changed

    @contextmanager
    def written(self, to: Path | BinaryIO) -> Iterator[Callable[[Any], Any]]:
        """Yield a function that writes the content of chunks; a file appears when the block ends, whole or not at all."""
        names = [_safe(name) for name in self.empty.columns]
        head = self.empty.set_axis(names, axis=1).to_csv(index=False, sep=self.delimiter, quoting=_quoting(self.empty)).encode()
        if not isinstance(to, Path):
            to.write(head)
            yield to.write
            to.flush()
            return
        with whole_path(to) as temporary:
            if self.schema is not None:
                import pyarrow.parquet as pq

                with pq.ParquetWriter(temporary, self.schema) as writer:
                    yield writer.write_table
                return
            with temporary.open("wb") as plain:  # the same rows give the same bytes: gzip's header is without name and time
                with gzip.GzipFile("", "wb", fileobj=plain, mtime=0) if self.packed else nullcontext(plain) as file:
                    file.write(head)
                    yield file.write

    def changed_names(self) -> Counter[str]:
        """Return the columns of CSV whose names are escaped."""
        return Counter(str(name) for name in self.empty.columns if self.schema is None and _is_formula(name))


def write_table(
    table: TableStream,
    columns: Sequence[str],
    change: Callable[[pd.DataFrame, int], tuple[pd.DataFrame, np.ndarray]],
    out: Path | BinaryIO,
    each: Each,
    types: Mapping[str, Any],
    model: TableModel | None = None,
) -> tuple[Counter[str], np.ndarray]:
    """Change a table and write it, chunk by chunk; return the cells that got an apostrophe, and sums over the rows.

    Args:
        table: the table.
        columns: those that are read, besides those of the model.
        change: takes a chunk and the number of its first row; returns the chunk to write, and its sums.
        out: file to write, or standard output.
        each: of `engine_of`.
        types: Arrow's types of columns for which pandas has none.
        model: the model that predicts the rows, if there is one.
    """

    def content(frame: pd.DataFrame, start: int) -> tuple[Any, Counter[str], np.ndarray]:
        made, numbers = change(frame, start)
        return *file.content(made), numbers

    empty, sums = change(table.empty(dict.fromkeys([*columns, *(spec.name for spec in _used(model))])), 0)
    file = FileFormat.of(out if isinstance(out, Path) else None, empty, types)
    changed = file.changed_names()
    with file.written(out) as write:
        for rows, more, numbers in over_chunks(each, table, columns, content, model):
            write(rows)
            changed, sums = changed + more, sums + numbers
    for name, cells in changed.items():
        warnings.warn(f"column {name!r}: {cells} cells begin like a formula and got an apostrophe in front", stacklevel=2)
    return changed, sums


def kept_columns(columns: Sequence[str], keep: Sequence[str], new: Sequence[str]) -> list[str]:
    """Return the columns to keep: those named, or all; raise ValueError if one has the name of a new column."""
    missing = [name for name in keep if name not in columns]
    if missing:
        raise ValueError(f"Expected columns of the table with --keep, but got {missing}: write them as they stand there.")
    kept = list(dict.fromkeys(keep)) or list(columns)
    taken = sorted({*new} & {*kept})
    if taken:
        raise ValueError(f"Expected a table without columns named {taken}, but it has them: choose others with --keep.")
    return kept


def open_predictions(
    path: Path, is_text: Callable[[str], bool], encoding: str | None, each: Each
) -> tuple[TableStream, dict[str, str]]:
    """Open a file of predictions, or a folder of them, with some columns of a CSV file as they stand.

    Returns:
        The table, and the names of its columns by those without the apostrophe of a formula.
    """
    table = open_table(path, encoding=encoding, text_columns=lambda name: is_text(_without_apostrophe(name)), each=each)
    warn_of(table.findings)
    return table, {name if table.is_parquet else _without_apostrophe(name): name for name in table.columns}


def as_predicted(frame: pd.DataFrame, names: Mapping[str, str], is_parquet: bool) -> pd.DataFrame:
    """Return some columns of a file of predictions, called as in `names`, and without the apostrophes of CSV."""
    plain = frame[list(names.values())].set_axis(list(names), axis=1)
    for name in [] if is_parquet else _text_columns(plain):
        plain[name] = plain[name].astype(object).map(_without_apostrophe)
    return plain


def probability_names(model: TableModel) -> list[str]:
    """Return the name of each class's column of probabilities, as `read_table` reads it."""
    return [f"p_{label}".strip() for label in model.classes_]


def limit_names(model: TableModel) -> list[str]:
    """Return the names of each class's columns of limits."""
    return [f"{side}_{label}" for label in model.classes_ for side in ("low", "high")]


def plain_classes(model: TableModel) -> list[Any]:
    """Return the classes for a column of a file: as text if they are of several types."""
    alike = len({type(label) for label in model.classes_}) == 1
    return list(model.classes_) if alike else [str(label) for label in model.classes_]


def with_predictions(
    frame: pd.DataFrame,
    log_probs: np.ndarray,
    model: TableModel,
    threshold: float | None,
    limits: tuple[np.ndarray, np.ndarray] | None = None,
) -> pd.DataFrame:
    """Return the columns with a probability per class, its limits, and the predicted class."""
    probabilities = np.exp(log_probs)
    best = probabilities.argmax(1) if threshold is None else (probabilities[:, 1] >= threshold).astype(int)
    names, ends = probability_names(model), [] if limits is None else limit_names(model)
    added = dict(zip(names, probabilities.T, strict=True)) | {PREDICTED: np.array(plain_classes(model), dtype=object)[best]}
    if limits is not None:
        added |= dict(zip(ends, np.stack(limits, 2).reshape(len(frame), len(ends)).T, strict=True))
    return frame.assign(**added)[in_order(list(frame.columns), names, ends)]


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


def without_formulas(frame: pd.DataFrame) -> tuple[pd.DataFrame, Counter[str]]:
    """Return the frame with an apostrophe before text that would run as a formula, and how many cells that were, by column.

    Text that has apostrophes before a formula gets one more, so that one can be removed from each.
    """
    import pandas as pd

    safe, changed = frame.copy(deep=False), Counter[str]()
    for name in _text_columns(frame):
        codes, cells = pd.factorize(frame[name].astype(object))
        formulas = np.array([*map(_is_formula, cells), False])[codes]
        if formulas.any():
            safe[name] = np.array([*map(_safe, cells), None], dtype=object)[codes]
            changed[str(name)] = int(formulas.sum())
    return safe, changed


def _schema(empty: pd.DataFrame, types: Mapping[str, Any]) -> Any:
    """Return Arrow's types of the columns, which do not depend on the cells of a chunk."""

    schema = pa.Schema.from_pandas(empty, preserve_index=False)
    for number, name in enumerate(empty.columns):
        if empty[name].dtype == object:
            schema = schema.set(number, schema.field(number).with_type(types[name]))
    return schema


def _text_columns(frame: pd.DataFrame) -> list[str]:
    return [name for name in frame.columns if is_text(frame[name])]


def _quoting(frame: pd.DataFrame) -> Literal[0, 2]:
    """Return the csv module's option; by itself it leaves carriage returns unquoted, where readers would end a row."""
    cells = [*frame.columns, *(cell for name in _text_columns(frame) for cell in frame[name].unique())]
    has_return = any(isinstance(cell, str) and "\r" in cell for cell in cells)
    return csv.QUOTE_NONNUMERIC if has_return else csv.QUOTE_MINIMAL


def _safe(name: Any) -> Any:
    return f"'{name}" if _is_formula(name) else name


def _without_apostrophe(cell: Any) -> Any:
    return cell[1:] if isinstance(cell, str) and cell.startswith("'") and _is_formula(cell) else cell


def _is_formula(cell: object) -> bool:
    return isinstance(cell, str) and is_formula(cell.lstrip("'"))
