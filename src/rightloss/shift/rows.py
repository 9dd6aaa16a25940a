"""Unlabelled predictions of any size → blocks of rows, as often as they are asked for.

Stage: a table, a map of a file, or a stream of tables → blocks `(b, k)` of log-probabilities, float64. Only a block is in
memory at a time; every row is checked the first time it is read.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..log_probs import log_prob_table, tensor_of

__all__ = ["Rows", "cell_rows"]

_ELEMENTS = 1 << 18  # of a block: 2 MB in float64, which a processor's cache still holds


class Rows:
    """Predictions that can be read block by block, again and again.

    Args:
        values: a table `(n, k)` (tensor, array, map of a file, list of rows), dense maps `(n, k, h, w, …)`, or a stream of
            these: a list of them, anything like a DataLoader that can be iterated anew, or a function without arguments that
            returns a fresh iterator.
        name: what the caller calls it.
        passes: whether more than one pass will be made; an iterator that can be used once is then refused.
    """

    def __init__(self, values: Any, name: str = "log_probs", passes: bool = True) -> None:
        self._name, self._checked = name, False
        self.is_stream = _is_stream(values)
        if self.is_stream and passes and isinstance(values, Iterator):
            raise ValueError(
                f"Expected `{name}` to be a table, or a stream that can be read more than once, but got a "
                f"{type(values).__name__} that is used up after one pass: pass a list of tables, a loader, or a function "
                "that returns a fresh iterator, such as `lambda: (model(x) for x in loader)`."
            )
        if not self.is_stream and not isinstance(values, np.memmap):
            values = tensor_of(values, name).detach()
            if values.ndim <= 2:  # maps are checked cut by cut
                log_prob_table(values, name=name)
                self._checked = True
        if not self.is_stream and not self._checked:
            log_prob_table(cell_rows(values[:1], name), name=name)  # refuses the shape
        self._values = values
        self._opened: Iterator[Any] | None = None
        self._waiting: Iterator[Any] | None = None
        self.num_classes = self._first_width() if self.is_stream else int(values.shape[1])
        self.count: int | None = None if self.is_stream else len(values) * math.prod(values.shape[2:])

    def __iter__(self) -> Iterator[Tensor]:
        """One pass."""
        seen = 0
        for chunk in self._stream() if self.is_stream else [self._values]:
            for block in self._cut(_unwrapped(chunk), seen):
                seen += len(block)
                yield block
        if self.count not in (None, seen) or seen == 0:
            raise ValueError(
                f"Expected `{self._name}` to give the same rows in every pass, but got {seen} after {self.count or 'none'}: "
                "does the function return a fresh iterator each time, and the loader drop nothing?"
            )
        self.count, self._checked = seen, True

    def head(self, rows: int = 4096) -> Tensor:
        """The first blocks, up to that many rows or a few more."""
        blocks, seen = [], 0
        for block in self:
            blocks.append(block)
            seen += len(block)
            if seen >= rows:
                break
        return torch.cat(blocks)

    def _cut(self, table: Any, seen: int) -> Iterator[Tensor]:
        if self.is_stream and not isinstance(table, Tensor | np.ndarray):
            table = log_prob_table(table, name=self._name)
        size = max(1, _ELEMENTS // max(1, math.prod(table.shape[1:])))
        for start in range(0, len(table), size):
            part = table[start : start + size]
            if isinstance(table, np.memmap):
                part = np.array(part)
                _forget(table)
            part = cell_rows(part, self._name)
            if not self._checked:
                log_prob_table(part, self.num_classes, self._name if seen == 0 else f"{self._name}[{seen}:]")
            seen += len(part)
            yield part.detach().to("cpu", torch.float64)

    def _stream(self) -> Iterator[Any]:
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            return waiting
        opened = iter(self._values() if callable(self._values) else self._values)
        if opened is self._opened:
            raise ValueError(
                f"Expected `{self._name}` to give the same rows in every pass, but the function returned the same iterator "
                "again: let it make a fresh one, such as `lambda: (model(x) for x in loader)`."
            )
        self._opened = opened
        return opened

    def _first_width(self) -> int:
        """Look at the first table of a stream, and put it back for the first pass."""
        stream = self._stream()
        first = next(stream, None)
        if first is None:
            raise ValueError(f"Expected at least one table in `{self._name}`, but the stream is empty: is the loader?")
        table = log_prob_table(cell_rows(_unwrapped(first), self._name), name=self._name)
        self._waiting = _chained(first, stream)
        return int(table.shape[1])


def cell_rows(values: Any, name: str) -> Tensor:
    """A table `(n, k)` as it is, dense maps `(n, k, h, w, …)` with a row per cell, `(n·h·w·…, k)`."""
    table = tensor_of(values, name)
    return table.movedim(1, -1).flatten(0, -2) if table.ndim > 2 else table


def _is_stream(values: Any) -> bool:
    if isinstance(values, Tensor | np.ndarray) or hasattr(values, "__array__"):
        return False
    if isinstance(values, list | tuple):
        return len(values) > 0 and getattr(values[0], "ndim", 0) >= 2
    return callable(values) or (isinstance(values, Iterable) and not isinstance(values, str | bytes | dict))


def _unwrapped(chunk: Any) -> Any:
    """Loaders over a TensorDataset give lists of one tensor."""
    if not isinstance(chunk, list | tuple) or len(chunk) == 0 or getattr(chunk[0], "ndim", 0) < 2:
        return chunk
    if len(chunk) > 1:
        raise ValueError(
            f"Expected a stream of tables of log-probabilities, but got a {type(chunk).__name__} of {len(chunk)} in it: yield "
            "the predictions alone, without inputs or labels."
        )
    return chunk[0]


def _chained(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _forget(table: np.memmap) -> None:
    """Let go of a map's pages, which would otherwise stay in memory; a private copy (mode 'c') must keep its changes."""
    if getattr(table, "mode", "c") == "c" or not hasattr(mmap, "MADV_DONTNEED"):
        return
    base: Any = table
    while base is not None and not isinstance(base, mmap.mmap):
        base = getattr(base, "base", None)
    if base is not None:
        base.madvise(mmap.MADV_DONTNEED)
