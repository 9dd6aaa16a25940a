"""Read unlabelled predictions of any size in blocks of rows, any number of times.

Stage: a table, a memory map, or a stream of tables → blocks `(b, k)` of log-probabilities, float64. Only one block is in memory
at a time; every row is checked when it is first read.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from ..arrays import Predictions, array_of, array_or_tensor, is_tensor, log_prob_table, rows_of
from ..finding_tables import finding_tables

# A table, or a sequence of tables: a list, a loader, or a function that returns a new iterator.
Stream = Predictions | Iterable[Any] | Callable[[], Iterable[Any]]

_ELEMENTS = 1 << 18  # numbers per block: 2 MB in float64, which fits into a processor's cache


class PredictionStream:
    """Predictions that can be read block by block, in as many passes as needed.

    Args:
        values: a table `(n, k)` (tensor, array, memory map, list of rows), dense maps `(n, k, h, w, …)`, or a stream of
            these: a list of them, anything like a DataLoader that can be iterated again, or a function without arguments
            that returns a fresh iterator.
        passes: whether there will be several passes; an iterator that can be used only once then raises a ValueError.

    Attributes:
        given: the table, or the first of a stream.
        num_classes: K.
        count: the number of rows; None for a stream that was not read yet.
    """

    def __init__(self, values: Any, passes: bool = True) -> None:
        self.is_stream, self._values, self._checked = _is_stream(values), values, False
        self._waiting: Iterator[Any] | None = None
        self.count: int | None = None
        if self.is_stream:
            if passes:
                _refuse_single_pass(values)
            stream = self._chunks()
            self.given = _unwrapped(next(stream, None))
            if self.given is None:
                raise ValueError("Expected at least one table in `log_probs`, but the stream is empty: is the loader?")
            self._waiting = chain([self.given], stream)  # for the first pass
            first = _rows(self.given)
        else:
            table = values if isinstance(values, np.memmap) else array_or_tensor(values, "log_probs")
            self._checked = table.ndim <= 2 and not isinstance(table, np.memmap)  # others are checked block by block
            self.given, self._values, self.count = values, table, len(table) * math.prod(table.shape[2:])
            first = table if self._checked else _rows(table[:1])
        self.num_classes = int(log_prob_table(first).shape[1])

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield the blocks of one pass."""
        seen = 0
        for chunk in self._chunks():
            table = _unwrapped(chunk)
            mapped = isinstance(table, np.memmap)
            for part in _parts(table if mapped else array_or_tensor(table, "log_probs")):
                if mapped:
                    part = np.array(part)
                    _forget(table)
                rows = _rows(part)
                if not self._checked:
                    log_prob_table(rows, self.num_classes, f"log_probs[{seen}:]" if seen else "log_probs")
                seen += len(rows)
                yield np.ascontiguousarray(array_of(rows, "log_probs"), np.float64)
        if self.count not in (None, seen) or seen == 0:
            came = (
                f"{seen} after {self.count or 'none'}: return a fresh iterator each time, `lambda: (model(x) for x in loader)`"
            )
            raise ValueError(f"Expected the same rows in every pass, but got {came}.")
        self.count, self._checked = seen, True

    def head(self, rows: int = 4096) -> np.ndarray:
        """Return the first blocks, with about that many rows."""
        blocks: list[np.ndarray] = []
        for block in self:
            blocks.append(block)
            if sum(map(len, blocks)) >= rows:
                break
        return np.concatenate(blocks)

    def _chunks(self) -> Iterator[Any]:
        """Return a new iterator over the tables of the stream, or over the one table."""
        if not self.is_stream:
            return iter([self._values])
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            return waiting
        return iter(self._values() if callable(self._values) else self._values)


def predictions_by_finding(values: Any, num_findings: int) -> list[Any]:
    """Return the predictions of each finding as those of two classes: tables, or functions that read the stream again."""
    values = list(_parts(values)) if isinstance(values, np.memmap) else values
    if not _is_stream(values):
        table = finding_tables(values, num_findings)
        return [table[:, :, number] for number in range(num_findings)]
    _refuse_single_pass(values)

    def read(number: int) -> Iterator[Any]:
        for chunk in values() if callable(values) else values:
            yield finding_tables(_unwrapped(chunk), num_findings)[:, :, number]

    return [partial(read, number) for number in range(num_findings)]


def _parts(table: Any) -> Iterator[Any]:
    """Yield blocks of examples that fit into a processor's cache."""
    size = max(1, _ELEMENTS // max(1, math.prod(table.shape[1:])))
    return (table[start : start + size] for start in range(0, len(table), size))


def _refuse_single_pass(values: Any) -> None:
    if isinstance(values, Iterator):
        came = f"a {type(values).__name__} that is used up after one pass: pass a list, a loader, or a function"
        raise ValueError(f"Expected a table, or a stream that can be read more than once, but got {came}.")


def _rows(values: Any) -> Any:
    return rows_of(array_or_tensor(values, "log_probs"))


def _is_stream(values: Any) -> bool:
    if is_tensor(values) or hasattr(values, "__array__") or hasattr(values, "log_probs"):
        return False
    if isinstance(values, list | tuple):
        return len(values) > 0 and getattr(values[0], "ndim", 0) >= 2
    return callable(values) or (isinstance(values, Iterable) and not isinstance(values, str | bytes | dict))


def _unwrapped(chunk: Any) -> Any:
    """Return the table in a list of one, as loaders over a TensorDataset yield."""
    if not isinstance(chunk, list | tuple) or len(chunk) == 0 or getattr(chunk[0], "ndim", 0) < 2:
        return chunk
    if len(chunk) > 1:
        came = f"a {type(chunk).__name__} of {len(chunk)} in it: yield the predictions alone, without inputs or labels"
        raise ValueError(f"Expected a stream of tables of log-probabilities, but got {came}.")
    return chunk[0]


def _forget(table: np.memmap) -> None:
    """Free a memory map's pages, which would otherwise stay in memory; a private copy (mode 'c') must keep its changes."""
    if getattr(table, "mode", "c") == "c" or not hasattr(mmap, "MADV_DONTNEED"):
        return
    base: Any = table
    while base is not None and not isinstance(base, mmap.mmap):
        base = getattr(base, "base", None)
    if base is not None:
        base.madvise(mmap.MADV_DONTNEED)
