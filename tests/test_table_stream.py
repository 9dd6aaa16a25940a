"""Tables larger than memory: by chunk, in parts, and on Ray, with the numbers of the whole table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import invoke, killed
from draws import assert_refused, stream
from table_files import people, write_people

from rightloss.cli.tables import FileFormat, engine_of
from rightloss.tabular import fit_table, open_table, read_table

# Columns whose type is only known at the end.
LATE = {
    "whole numbers to missing": [*"1234567", "", "9"],
    "whole numbers to words": [*"12345678", "many"],
    "whole numbers to fractions": [*"12345678", "0.1"],
    "missing to whole numbers": ["", *"12345678"],
    "truth values to missing": ["True", "False"] * 4 + [""],
    "truth values to numbers": ["True"] * 8 + ["1"],
    "numbers of 64 bits to missing": ["9007199254740993"] * 8 + [""],
    "numbers of 70 bits": [*"12345678", str(2**70)],
    "all missing": ["NA"] * 9,
    "words": [f"é{i}" for i in range(9)],
}


def text_of(columns: dict[str, list[str]], delimiter: str = ",") -> str:
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    return "".join(delimiter.join(row) + "\n" for row in rows)


def whole(path: Path, size: int | None) -> pd.DataFrame:
    """Read a table by chunk, and put the chunks together; each has the same types."""
    table = open_table(path, size=size)
    frames = list(table.frames())
    assert len(frames) >= table.rows / (size or table.rows)
    assert len({tuple(map(str, frame.dtypes)) for frame in frames}) == 1
    return pd.concat(frames, ignore_index=True)


def split(content: str, folder: Path, rows: int) -> Path:
    """Write the lines of a text file as parts of a table."""
    folder.mkdir()
    head, *lines = content.splitlines(keepends=True)
    for start in range(0, len(lines), rows):
        (folder / f"part-{start:06}.csv").write_text(head + "".join(lines[start : start + rows]))
    return folder


@pytest.fixture(params=["commas", "semicolons", "parquet"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A table with types that are only known at the end."""
    if request.param == "parquet":
        cells = {"i": [*range(8), None], "b": [*[True] * 8, None], "d": pd.to_datetime([*["2020-01-01"] * 8, None])}
        found = pa.table(cells | {"c": pa.array([*"aabbaabb", "c"]).dictionary_encode(), "n": pa.nulls(9)})
        pq.write_table(found, tmp_path / "a.parquet", row_group_size=4)
        pq.write_table(found, tmp_path / "b.parquet", row_group_size=4, write_statistics=False)
        return tmp_path / "b.parquet"
    european = {"decimal commas": [*"12345678", "3,5"], "thousands": [*"12345678", "1.234,5"]}
    content = text_of(LATE | european, ";") if request.param == "semicolons" else text_of(LATE)
    (tmp_path / "a.csv").write_text(content)
    return tmp_path / "a.csv"


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 9, 100])
def test_chunks_are_the_whole_table_to_the_bit_and_the_type(table: Path, size: int) -> None:
    expected = read_table(table)
    pd.testing.assert_frame_equal(whole(table, size), expected, check_exact=True)
    assert open_table(table, size=size).findings == expected.attrs["findings"]


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_a_folder_of_parts_is_one_table(table: Path, rows: int, tmp_path: Path) -> None:
    if table.suffix == ".parquet":
        folder = tmp_path / "parts"
        folder.mkdir()
        for start in range(0, 9, rows):
            pq.write_table(pq.read_table(table).slice(start, rows), folder / f"{start}.parquet")
        (folder / "_SUCCESS").touch()
    else:
        folder = split(table.read_text(), tmp_path / "parts", rows)
    for size in (None, 3):
        pd.testing.assert_frame_equal(whole(folder, size), read_table(table), check_exact=True)
    assert read_table(folder).attrs["findings"] == read_table(table).attrs["findings"]


def test_only_the_columns_asked_for_are_read(table: Path) -> None:
    expected = read_table(table)
    wanted = list(expected.columns[[3, 0]])
    found = pd.concat(open_table(table, size=2).frames(wanted), ignore_index=True)
    pd.testing.assert_frame_equal(found, expected[sorted(wanted, key=list(expected.columns).index)], check_exact=True)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_line_with_more_cells_is_refused_with_its_number(size: int, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n" + "1,2\n" * 5 + "1,2,3\n" + "1,2\n" * 2)
    assert_refused(lambda: open_table(tmp_path / "a.csv", size=size), "Expected 2 fields in line 7, saw 3")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "no such files"),
        ({"a.csv": "x,y\n1,2\n", "b.parquet": ""}, "files of both kinds"),
        ({"a.csv": "x,y\n1,2\n", "b.csv": "x,z\n1,2\n"}, r"a\.csv and b\.csv differ in \['y', 'z'\]"),
        ({"a.csv": "x,y\n1,2\n", "b.csv": "x;y\n1;2\n"}, "has ',' between cells and b.csv ';'"),
        ({"a.csv": "x,y\n", "b.csv": "x,y\n"}, "only the 2 column names"),
    ],
)
def test_files_that_are_no_parts_of_one_table_are_refused(files: dict[str, str], words: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert_refused(lambda: open_table(tmp_path), words)


def test_parts_of_parquet_with_types_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for name, cells in (("a", [1]), ("b", ["x"])):
        pq.write_table(pa.table({"x": cells}), tmp_path / f"{name}.parquet")
    assert_refused(lambda: open_table(tmp_path), "differ in type")


# Predictions.


@pytest.fixture(scope="module", params=["linear", "boosting"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model of `people`."""
    folder = tmp_path_factory.mktemp("stream") / request.param
    fit_table(people(400), target="cancer", positive="yes", population=0.05, candidates=[request.param], folds=3).save(folder)
    return folder


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of seven rows in the commands."""
    assert open_table.__kwdefaults__ is not None
    monkeypatch.setitem(open_table.__kwdefaults__, "size", 7)


def run(*arguments: object) -> Any:
    done = invoke(*map(str, arguments), "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def answers(model: Path, data: Path, out: Path) -> tuple[dict[str, bytes], list[Any]]:
    """Return the files that `predict` writes, and what `evaluate` and `prevalence` print."""
    files = {}
    for name in ("p.csv", "p.csv.gz", "p.tsv"):
        run("predict", model, data, "--level", "0.9", "--out", out / name, "--overwrite")
        files[name] = (out / name).read_bytes()
    run("predict", model, data, "--out", out / "p.parquet", "--overwrite")
    files["p.parquet"] = pd.read_parquet(out / "p.parquet").to_csv().encode()
    evaluated = run("evaluate", model, data, "--group", "patient", "--threshold", "0.2")
    again = run("evaluate", out / "p.csv", "--target", "cancer", "--population", "0.05", "--group", "patient")
    estimated = run("prevalence", model, data)
    return files, [evaluated, again, {**estimated, "next": None}]


@pytest.mark.long
def test_chunks_and_parts_give_the_files_and_figures_of_the_whole_table(
    model: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = write_people(tmp_path / "new.csv", 150, seed=3, clinic=[*["north", "=1+1"] * 74, "west", ""], late=[*"1" * 149, ""])
    expected = answers(model, path, tmp_path)
    request.getfixturevalue("small_chunks")
    for data in (path, split(path.read_text(), tmp_path / "parts", 40)):
        files, figures = answers(model, data, tmp_path)
        assert files == expected[0]
        assert figures == expected[1]


@pytest.mark.long
@pytest.mark.usefixtures("small_chunks")
def test_cells_unknown_in_training_are_counted_over_all_chunks(model: Path, tmp_path: Path) -> None:
    path = write_people(
        tmp_path / "new.csv", 100, seed=3, clinic=["north"] * 50 + ["west"] * 50, age=["old"] * 30 + ["50"] * 70
    )
    for command in ("predict", "prevalence"):
        warned = " ".join(invoke(command, str(model), str(path)).stderr.split())
        assert "column 'clinic': 50 of 100 cells have a category that training did not, such as 'west'" in warned
        assert "column 'age': 30 of 100 cells are no numbers, such as 'old'" in warned


@pytest.mark.long
@pytest.mark.usefixtures("small_chunks")
def test_an_error_in_a_late_chunk_leaves_what_was_there(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = write_people(tmp_path / "new.csv", 40), tmp_path / "p.csv"
    out.write_text("old")
    content, calls = FileFormat.content, iter(range(9))

    def full(self: FileFormat, frame: pd.DataFrame) -> Any:
        if next(calls) == 4:
            raise OSError("No space left on device")
        return content(self, frame)

    monkeypatch.setattr(FileFormat, "content", full)
    done = invoke("predict", str(model), str(path), "--out", str(out), "--overwrite")
    assert (done.exit_code, out.read_text()) == (1, "old")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["new.csv", "p.csv"]


@pytest.mark.long
def test_predict_that_is_killed_on_the_way_leaves_no_file(model: Path, tmp_path: Path) -> None:
    frame = pd.concat([people(1000, seed=seed) for seed in range(300)])
    frame.to_parquet(tmp_path / "new.parquet", index=False)
    killed(
        ["predict", str(model), "new.parquet", "--out", "p.csv"],
        tmp_path,
        lambda: any(each.stat().st_size > 0 for each in tmp_path.glob(".saving-*")),
    )
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.long
@pytest.mark.parametrize("command", ["check", "fit", "predict", "evaluate", "prevalence", "card", "retarget"])
def test_the_commands_for_tables_import_no_torch_and_the_fast_ones_no_picture_library(command: str, tmp_path: Path) -> None:
    data = write_people(tmp_path / "data.csv")
    model = tmp_path / "model"
    if command not in ("check", "fit"):
        fit_table(people(), target="cancer", positive="yes", population=0.05, candidates=["linear"], folds=2).save(model)
    arguments = {
        "check": [data, "--target", "cancer"],
        "fit": [data, "--target", "cancer", "--positive", "yes", "--folds", "2", "--out", model],
        "predict": [model, data, "--out", tmp_path / "p.csv"],
        "card": [model, data, "--out", tmp_path / "card"],
        "retarget": [
            data,
            "--score",
            "density",
            "--scale",
            "logit",
            "--from",
            "0.5",
            "--to",
            "0.1",
            "--out",
            tmp_path / "m.csv",
        ],
    }.get(command, [model, data])
    program = "import sys; from rightloss.cli import application as a\n"
    program += "try: a()(sys.argv[1:])\nfinally: print('modules', *sys.modules)"
    paths = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    words = [sys.executable, "-c", program, command, *map(str, arguments)]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    modules = set(done.stdout.partition("modules ")[2].split())
    assert modules, done.stderr
    assert not modules & {"torch", "jaxtyping", "ray"}
    assert command in ("fit", "card") or not modules & {"matplotlib", "jinja2"}


# On Ray.


def test_an_unknown_engine_and_an_address_without_ray_are_refused() -> None:
    for arguments, words in ((("dask", None), "choose among in-process, ray"), (("in-process", "head:1"), "with --engine ray")):
        with pytest.raises(ValueError, match=words), engine_of(*arguments):
            pass


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A cluster of two workers on this machine."""
    found = pytest.importorskip("ray", reason='needs Ray: pip install -e ".[ray]"')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(map(os.path.abspath, filter(None, sys.path))))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        found.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield found
        found.shutdown()


def workers() -> list[int]:
    """Return the processes that are at a part."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(b"ray::_task"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_on_ray_a_worker_that_is_killed_does_not_change_the_file(ray: Any, model: Path, tmp_path: Path) -> None:
    rng = stream(1)
    folder = tmp_path / "parts"
    folder.mkdir()
    for number in range(40):
        write_people(folder / f"{number:02}.csv", int(rng.integers(900, 1100)), seed=number)
    lost: list[int] = []

    def kill() -> None:
        until = time.monotonic() + 60
        while not lost and time.monotonic() < until:
            time.sleep(0.02)
            lost.extend(workers()[:1])
        os.kill(lost[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    run("predict", model, folder, "--out", tmp_path / "ray.csv.gz", "--engine", "ray")
    killer.join()
    assert lost
    run("predict", model, folder, "--out", tmp_path / "here.csv.gz")
    assert (tmp_path / "ray.csv.gz").read_bytes() == (tmp_path / "here.csv.gz").read_bytes()
    assert run("prevalence", model, folder, "--engine", "ray") == run("prevalence", model, folder)
    assert run("evaluate", model, folder, "--engine", "ray") == run("evaluate", model, folder)


@pytest.mark.slow
def test_on_ray_an_error_in_a_part_is_told_as_it_is(ray: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "b.csv").write_text("a,b\n1,2\n1,2,3\n")
    with engine_of("ray", None) as each:
        assert_refused(lambda: open_table(tmp_path, each=each), r"a table in b\.csv, but .* in line 3, saw 3")
        np.testing.assert_array_equal(list(each(abs, [-2, 1, -3])), [2, 1, 3])
