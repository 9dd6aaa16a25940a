"""The parts of a table: one after the other in this process, or several at a time on Ray.

Stage: a model, a path → a table in parts; a function, parts → its results, in order. A part whose worker dies is done again.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from .errors import require
from .progress import progress

if TYPE_CHECKING:
    import pandas as pd

    from ..tabular import ColumnSpec, TableModel, TableStream
    from ..tabular.encode import OddCells

Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
ENGINES = ("in-process", "ray")
_RETRIES = 3


def check_engine(name: str, address: str | None, engines: Collection[str] = ENGINES) -> None:
    """Raise ValueError for an unknown engine, or for an address that it does not use."""
    if name not in engines:
        raise ValueError(f"Expected a known engine, but got {name!r}: choose among {', '.join(engines)}.")
    if address is not None and name != "ray":
        raise ValueError(f"Expected --address with --engine ray, but got the engine {name}: leave it out.")


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
    from ..ray_cluster import connected

    with connected(address) as ray, redirect_stdout(sys.stderr):  # Ray prints there what happens to workers
        yield partial(_on_ray, ray)


def over_chunks(
    each: Each,
    table: TableStream,
    columns: Collection[str | None],
    job: Callable[[pd.DataFrame, int], Any],
    specs: Sequence[ColumnSpec] = (),
) -> Iterator[Any]:
    """Yield what `job` makes of each chunk of a table, in order; show the progress, and warn of cells unknown in training.

    Args:
        each: of `engine_of`.
        table: the table.
        columns: those to read.
        job: takes a data frame and the number of its first row.
        specs: the columns of the model.
    """
    from ..tabular.encode import odd_cells, odd_findings
    from ..tabular.findings import warn_of

    def of_part(part: int) -> Iterator[tuple[int, OddCells, Any]]:
        start = table.start(part)
        for frame in table.frames(columns, part):
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


def open_for(model: TableModel, path: Path, encoding: str | None, each: Each, others_as_text: bool = False) -> TableStream:
    """Open a table that a model is to predict, and warn of what was found about its files.

    With `others_as_text`, columns of a text file that the model does not look at are read as they stand.

    Raises:
        ValueError: if it cannot be read, or lacks a column of the model.
    """
    from ..tabular import open_table
    from ..tabular.encode import require_columns
    from ..tabular.findings import warn_of

    known = {spec.name for spec in used(model)}
    text = (lambda name: name not in known) if others_as_text else ()
    table = open_table(path, encoding=encoding, text_columns=text, each=each)
    require_columns(table.columns, used(model))
    warn_of(table.findings)
    return table


def used(model: TableModel) -> list[ColumnSpec]:
    """Return the columns that a model looks at: none if it always answers its population."""
    return [] if model.fitted is None else model.columns


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
    from ..ray_cluster import other_version

    if version != __version__:
        return other_version(version, __version__)
    try:
        found = function(item)
        return list(found) if isinstance(found, Iterator) else found
    except ValueError as error:
        return error


def _result(ray: Any, item: Any, task: Any) -> Any:
    from ..ray_cluster import last_line

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
