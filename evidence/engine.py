"""One engine for every large comparison: cells → a small file each → one Parquet file → one page and one picture.

    python -m evidence NAME                         # runs what is missing; stop and resume at will
    python -m evidence NAME --only set=LIDC draw=0  # some of the cells: a look
    python -m evidence NAME --docs                  # writes the page from docs/benchmarks/NAME.parquet, runs nothing

A *cell* is a NamedTuple of everything that its figures depend on (data set, model, size, draw, …), so its result is a pure
function of it, wherever and whenever it is run. Each is kept in evidence/out/NAME as soon as it is there, whole or not at all;
a rerun does only what is missing. When no planned cell is missing, docs/benchmarks/NAME.parquet, .md and .png are written; of a
part of the cells they go to evidence/out. Delete evidence/out/NAME after a change of the methods.

To add a comparison, write evidence/NAME.py with

    class Cell(NamedTuple):                                  # strings and numbers; a field `draw` or `seed` is the seed
        set: str
        draw: int

    def cells() -> Iterator[Cell]: ...                       # in the order of running: small ones first
    def run(cell: Cell) -> list[dict[str, Any]]: ...         # its rows, without the cell's fields, which the engine adds
    def tables(rows: pd.DataFrame) -> dict[str, str]: ...    # pieces of Markdown for the page (table and interval of pages.py)
    def draw(rows: pd.DataFrame) -> Figure: ...              # optional

    COMPARISONS = (Comparison("NAME", cells, run, tables, draw),)

and evidence/pages/NAME.md: the words, a Jinja template that names those pieces, `{{ made }}` (by which command, at which
commit), and `{{ command }}`, `{{ commit }}` apart. Add NAME to `COMPARISONS` in __main__.py. Where all rows are too many to
keep, `reduced(rows)` returns those to keep (means over draws, say) and the pieces that need the others; both are stored. Other
scripts read results by `stored("NAME").rows`, or pandas.read_parquet. tests/test_evidence.py checks that every stored file
yields its page.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import jinja2
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from rightloss.atomic_files import whole_file, whole_path, write_whole

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
OUT, DOCS = HERE / "out", ROOT / "docs/benchmarks"


@dataclass(frozen=True)
class Comparison:
    """Say what is run and what is shown of it."""

    name: str  # of the Parquet file, the page, the picture and the words
    cells: Callable[[], Iterable[Any]]  # in the order of running
    run: Callable[[Any], list[dict[str, Any]]]  # a cell's rows; at the top of a module, so that other processes find it
    tables: Callable[[pd.DataFrame], dict[str, str]] = lambda rows: {}  # pieces of the page, of the stored rows
    draw: Callable[[pd.DataFrame], Any] | None = None  # the picture, of the stored rows
    # What is stored of all rows: rows, and pieces of the page that cannot be had from these.
    reduced: Callable[[pd.DataFrame], tuple[pd.DataFrame, dict[str, str]]] = lambda rows: (rows, {})
    folder: str = ""  # of the cells, where several pages share them; the name by default

    def path(self, cell: Any) -> Path:
        """Return where a cell's rows are kept."""
        return OUT / (self.folder or self.name) / f"{title(cell, '-').replace(' ', '_').replace('/', '∕')}.parquet"

    def page(self, found: Stored) -> str:
        """Return the page of stored results."""
        words = (HERE / "pages" / f"{self.name}.md").read_text(encoding="utf-8")
        template = jinja2.Template(words, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
        about = dict(found.about)
        was = f" (it was `{about['was']}`)" if "was" in about else ""
        made = f"Made by `{about['command']}`{was} at commit {about['commit']}"
        return template.render(**about.pop("pieces"), **about, made=made, **self.tables(found.rows))

    def write_page(self, folder: Path = DOCS) -> None:
        """Write the page and the picture beside the stored results."""
        found = stored(self.name, folder)
        write_whole(folder / f"{self.name}.md", self.page(found))
        if self.draw is not None:
            import matplotlib

            matplotlib.use("Agg")
            with whole_path(folder / f"{self.name}.png") as path:
                self.draw(found.rows).savefig(path, format="png")

    def collect(self, cells: Sequence[Any], folder: Path, command: str) -> None:
        """Store the results of cells that have been run, and write their page."""
        all_rows = pd.concat([pd.read_parquet(self.path(cell)) for cell in cells], ignore_index=True)
        rows, pieces = self.reduced(all_rows)
        about = {"command": command, "commit": commit(), "seeds": seeds(all_rows), "pieces": pieces}
        with whole_file(folder / f"{self.name}.parquet") as file:
            file.write(packed(rows, about))
        self.write_page(folder)


class Task(NamedTuple):
    """A cell, as the study's engines take it."""

    cell: Any
    label: str


class Stored(NamedTuple):
    """The stored rows of a comparison, and what is known about them: command, commit, seeds, pieces of the page."""

    rows: pd.DataFrame
    about: dict[str, Any]


def stored(name: str, folder: Path = DOCS) -> Stored:
    """Return the stored results of a comparison."""
    if not (folder / f"{name}.parquet").exists():
        raise SystemExit(f"Expected stored results of {name}, but there are none: python -m evidence {name} makes them.")
    content = pq.read_table(folder / f"{name}.parquet")
    return Stored(content.to_pandas(), json.loads(content.schema.metadata[b"about"]))


def packed(rows: pd.DataFrame, about: dict[str, Any]) -> bytes:
    """Return rows as the bytes of a Parquet file, with what is known about them in its metadata."""
    content, buffer = pa.Table.from_pandas(rows, preserve_index=False), io.BytesIO()
    metadata = {**content.schema.metadata, b"about": json.dumps(about, ensure_ascii=False).encode()}
    pq.write_table(content.replace_schema_metadata(metadata), buffer, compression="zstd")
    return buffer.getvalue()


def title(cell: Any, between: str) -> str:
    return between.join(f"{value:g}" if isinstance(value, float) else str(value) for value in cell)


def seeds(rows: pd.DataFrame) -> str:
    found = next((sorted(set(rows[name])) for name in ("draw", "seed") if name in rows), [])
    return f"{found[0]} to {found[-1]}" if found else "in the cells"


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip() or "unknown"


def work(run: Callable[[Any], list[dict[str, Any]]], task: Task, report: Callable[[float], None]) -> list[bytes]:
    """Run a cell in some process, and return its rows as a file."""
    warnings.simplefilter("ignore")
    rows = pd.DataFrame([{**task.cell._asdict(), **row} for row in run(task.cell)])
    return [packed(rows, {"cell": [*task.cell]})]


def run_missing(comparison: Comparison, cells: Sequence[Any], engine: Any) -> None:
    """Run the cells that have no file, by one of the study's engines, and write each file when its rows are there."""
    from rich.progress import track

    missing = [Task(cell, title(cell, ", ")) for cell in cells if not comparison.path(cell).exists()]
    if not missing:
        return
    comparison.path(cells[0]).parent.mkdir(parents=True, exist_ok=True)
    with closing(engine.run(partial(work, comparison.run), missing, lambda number, share: None)) as done:
        for number, (content,) in track(done, f"{comparison.name}: cells", len(missing)):
            with whole_file(comparison.path(missing[number].cell)) as file:
                file.write(content)


def chosen(cells: Iterable[Any], only: Sequence[str]) -> list[Any]:
    """Return the cells whose fields have the values asked for, `field=value,value`; a value may itself have commas.

    Raises:
        ValueError: there is none.
    """
    wanted = dict(each.split("=", 1) for each in only)
    every = list(cells)

    def fits(cell: Any, name: str, value: str) -> bool:
        return name in cell._fields and title([getattr(cell, name)], "") in (value, *value.split(","))

    found = [cell for cell in every if all(fits(cell, *each) for each in wanted.items())]
    if not found:
        known = ", ".join(every[0]._fields) if every else "none"
        raise ValueError(f"Expected cells, but none of {len(every)} has {' '.join(only)}: the fields are {known}.")
    return found


def execute(comparison: Comparison, only: Sequence[str], engine: Any, command: str) -> Path:
    """Run what is missing, store the results, write the page, and return its folder."""
    cells = chosen(comparison.cells(), only)
    run_missing(comparison, cells, engine)
    folder = OUT if only else DOCS
    comparison.collect(cells, folder, command)
    return folder
