"""Files of predictions: text that is harmless and read back as it was; by chunk, in parts, and on Ray."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import itertools
import json
import os
import re
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
import pytest
from commands import answer, invoke, killed
from draws import assert_refused, stream
from table_files import people, read_predictions, write_frame, write_people

from rightloss.cli.labelled import labelled_scores
from rightloss.cli.scores import Asked
from rightloss.cli.tables import (
    FileFormat,
    check_output,
    engine_of,
    probability_names,
    with_predictions,
    without_formulas,
)
from rightloss.tabular import fit_table, load_model, open_table, read_table

FORMULAS = ["=1+1", "+cmd|'/C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "  =1", "＝1+1"]
HARMLESS = ["-1.5", "+3", "1e-3", "a=b", "", "no"]
HOSTILE = [
    *("a,b", 'quo"te', "new\nline", "car\rriage", "\r\n", "=1+1", "+", "-", "'=x", "''+y", "\tTab", "-1+1", "@x", "'", '"'),
    *("ünï", "💊", "p_dose", "p_", "a;b", "a|b", " lead", "trail ", "a\x0b\x0cb", "a\u2028b", "\x1b[31m", "１２", "predicted"),
    *("NA", "null", "01", "1.0", "1e5", "TRUE", "nan", "1,5", "82,402", "inf", "1_0", "0x1", "-0"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a linear model of `people`."""
    return model_in(tmp_path_factory.mktemp("linear"), "linear")


def model_in(folder: Path, family: str) -> Path:
    fit_table(people(400), target="cancer", positive="yes", population=0.05, candidates=[family], folds=3).save(folder / "m")
    return folder / "m"


def test_text_that_a_spreadsheet_would_run_gets_an_apostrophe_and_other_cells_stay(tmp_path: Path) -> None:
    frame = pd.DataFrame({"note": [*FORMULAS, *HARMLESS, None], "p_yes": 0.5})
    safe, changed = without_formulas(frame)
    assert safe["note"].tolist()[: len(FORMULAS)] == [f"'{cell}" for cell in FORMULAS]
    assert safe["note"].astype(object).iloc[len(FORMULAS) :].equals(frame["note"].astype(object).iloc[len(FORMULAS) :])
    assert changed == {"note": len(FORMULAS)}
    frame = pd.DataFrame({"clinic": pd.Categorical(["=1+1", "north"]), "=p": [0.25, 0.5]})
    assert write_frame(frame, tmp_path / "p.csv") == {"clinic": 1, "=p": 1}
    assert (tmp_path / "p.csv").read_text() == "clinic,'=p\n'=1+1,0.25\nnorth,0.5\n"


@pytest.mark.parametrize("name", ["p.csv", "p.csv.gz", "p.tsv", "p.parquet"])
def test_predictions_are_read_back_as_they_were_written(name: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": ["a", "b,c", "d\te"], "p_yes": [1 / 3, 1e-12, 1.0]})
    write_frame(frame, tmp_path / name)
    pd.testing.assert_frame_equal(read_table(tmp_path / name), frame, check_dtype=False)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_apostrophe_is_removed_from_just_the_text_that_got_one(tmp_path: Path) -> None:
    cells = [*FORMULAS, *HARMLESS, "'=1", "''+x", "'quoted'", "'-5", "+", "-", "'+"]
    frame = pd.DataFrame({"=name": cells, "'+name": cells, "p_yes": 0.5})
    write_frame(frame, tmp_path / "p.csv")
    written = [cell for line in (tmp_path / "p.csv").read_text().splitlines() for cell in line.split(",")[:2] if cell != "+3"]
    assert not any(re.match(r"\s*[=@]|\s*[+-]\S*[^\d.]", cell) for cell in written)
    found = read_predictions(tmp_path / "p.csv", "=name")
    assert found.columns.tolist() == frame.columns.tolist()
    assert found["=name"].fillna("").tolist() == cells


@pytest.mark.parametrize(
    ("name", "cell"),
    [("p.csv", "a\r=1+1"), ("p.tsv", "\r=1+1"), ("p.csv.gz", "a\r\n=1+1,2"), ("p.csv", "\r"), ("p.tsv", 'a"\r"=1')],
)
def test_a_cell_with_line_ends_stays_in_its_row(name: str, cell: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": ["x", cell, "y"], f"name{cell}": 1, "p_yes": [0.5, 0.25, 0.125]})
    write_frame(frame, tmp_path / name)
    content = (tmp_path / name).read_bytes()
    with io.StringIO((gzip.decompress(content) if name.endswith("gz") else content).decode(), newline="") as file:
        rows = list(csv.reader(file, delimiter="\t" if name.endswith("tsv") else ","))  # it ends a row at a bare return too
    assert [len(row) for row in rows] == [3] * 4
    assert rows[2][0].removeprefix("'") == cell
    pd.testing.assert_frame_equal(read_predictions(tmp_path / name, "id"), frame.rename(columns=str.strip), check_dtype=False)


@pytest.mark.long
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_predictions_of_classes_and_columns_of_any_name_are_read_back_as_they_were(
    ending: str, folder: Path, tmp_path: Path
) -> None:
    fitted, rng, path = load_model(folder), np.random.default_rng(0), tmp_path / f"p.{ending}"
    names = [name.strip() for name in HOSTILE if name.strip() and name not in ("predicted", "p_dose")]
    for first, second in list(itertools.pairwise(HOSTILE))[::2]:
        model = dataclasses.replace(fitted, classes_=[first, second], positive=second)
        codes, risk = rng.integers(0, 2, 20), rng.random(20)
        log_probs = np.log(np.stack([1 - risk, risk], axis=1))
        free = [name for name in names if name not in probability_names(model)]
        *others, target = rng.choice(free, 6, replace=False).tolist()
        frame = pd.DataFrame({name: rng.choice(HOSTILE, 20) for name in others}).assign(p_dose=risk)
        frame[target] = np.array([first, second], dtype=object)[codes]
        write_frame(with_predictions(frame, log_probs, model, None), path)
        found = labelled_scores(path, Asked([target], second, "0.1"))
        np.testing.assert_array_equal(found.target, codes, err_msg=repr((first, second, target)))
        np.testing.assert_allclose(found.predictions, log_probs, rtol=1e-9)
        assert list(found.classes) == [first.rstrip(), second.rstrip()]


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("")
    for path, overwrite in (("p.xlsx", True), ("p", True), ("none/p.csv", True), ("p.csv", False)):
        assert_refused(lambda path=path, o=overwrite: check_output(tmp_path / path, o), "Expected a (new )?file")  # type: ignore[misc]


# By chunk, and in parts.


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 23 rows in the commands."""
    assert open_table.__kwdefaults__ is not None
    monkeypatch.setitem(open_table.__kwdefaults__, "size", 23)


def answers(model: Path, data: Path, out: Path) -> tuple[dict[str, bytes], list[Any]]:
    """Return the files that `predict` writes, and what `evaluate` and `prevalence` print."""
    files = {}
    for name in ("p.csv.gz", "p.tsv"):
        answer("predict", model, data, "--level", "0.9", "--out", out / name, "--overwrite")
        files[name] = (out / name).read_bytes()
    answer("predict", model, data, "--out", out / "p.parquet", "--overwrite")
    files["p.parquet"] = pd.read_parquet(out / "p.parquet").to_csv().encode()
    evaluated = answer("evaluate", model, data, "--group", "patient", "--threshold", "0.2")
    again = answer("evaluate", out / "p.csv.gz", "--target", "cancer", "--population", "0.05", "--group", "patient")
    return files, [evaluated, again, {**answer("prevalence", model, data), "next": None}]


@pytest.mark.long
@pytest.mark.parametrize("family", ["linear", "boosting"])
def test_chunks_and_parts_give_the_files_and_figures_of_the_whole_table(
    family: str, folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = folder if family == "linear" else model_in(tmp_path, family)
    path = write_people(tmp_path / "new.csv", 150, seed=3, clinic=[*["north", "=1+1"] * 74, "west", ""], late=[*"1" * 149, ""])
    expected = answers(model, path, tmp_path)
    request.getfixturevalue("small_chunks")
    parts, (head, *lines) = tmp_path / "parts", path.read_text().splitlines(keepends=True)
    parts.mkdir()
    for start in range(0, 150, 40):
        (parts / f"part-{start:03}.csv").write_text(head + "".join(lines[start : start + 40]))
    for data in (path, parts):
        assert answers(model, data, tmp_path) == expected


@pytest.mark.long
@pytest.mark.usefixtures("small_chunks")
def test_cells_unknown_in_training_are_counted_over_all_chunks(folder: Path, tmp_path: Path) -> None:
    odd: dict[str, Any] = {"clinic": ["north"] * 50 + ["west"] * 50, "age": ["old"] * 30 + ["50"] * 70}
    path = write_people(tmp_path / "new.csv", 100, seed=3, **odd)
    for command in ("predict", "prevalence"):
        warned = " ".join(invoke(command, str(folder), str(path)).stderr.split())
        assert "column 'clinic': 50 of 100 cells have a category that training did not, such as 'west'" in warned
        assert "column 'age': 30 of 100 cells are no numbers, such as 'old'" in warned


@pytest.mark.long
@pytest.mark.usefixtures("small_chunks")
def test_an_error_in_a_late_chunk_leaves_what_was_there(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = write_people(tmp_path / "new.csv", 130), tmp_path / "p.csv"
    out.write_text("old")
    content, calls = FileFormat.content, iter(range(9))

    def full(self: FileFormat, frame: pd.DataFrame) -> Any:
        if next(calls) == 4:
            raise OSError("No space left on device")
        return content(self, frame)

    monkeypatch.setattr(FileFormat, "content", full)
    done = invoke("predict", str(folder), str(path), "--out", str(out), "--overwrite")
    assert (done.exit_code, out.read_text()) == (1, "old")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["new.csv", "p.csv"]


@pytest.mark.long
def test_predict_that_is_killed_on_the_way_leaves_no_file(folder: Path, tmp_path: Path) -> None:
    pd.concat([people(1000)] * 300).to_parquet(tmp_path / "new.parquet", index=False)
    arguments = ["predict", str(folder), "new.parquet", "--out", "p.csv"]
    killed(arguments, tmp_path, lambda: any(each.stat().st_size > 0 for each in tmp_path.glob(".saving-*")))
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.long
def test_the_commands_for_tables_import_no_torch_and_the_fast_ones_no_picture_library(folder: Path, tmp_path: Path) -> None:
    data = write_people(tmp_path / "data.csv")
    moved = ["--score", "density", "--scale", "logit", "--from", "0.5", "--to", "0.1", "--out", tmp_path / "m.csv"]
    commands: dict[str, list[Any]] = {
        "check": [data, "--target", "cancer"],
        "predict": [folder, data, "--out", tmp_path / "p.csv"],
        "evaluate": [folder, data],
        "prevalence": [folder, data],
        "retarget": [data.with_name("scores.csv"), *moved],
        "card": [folder, data, "--out", tmp_path / "card"],
        "fit": [data, "--target", "cancer", "--positive", "yes", "--folds", "2", "--out", tmp_path / "model"],
    }
    write_people(tmp_path / "scores.csv", density=0.5)
    program = "import json, sys; from rightloss.cli import application\n"
    program += "for words in json.loads(sys.argv[1]):\n"
    program += "    application()(words, standalone_mode=False)\n    print('\\nmodules', words[0], *sys.modules)"
    paths = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    words = json.dumps([[name, *map(str, arguments)] for name, arguments in commands.items()])
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", program, words], env=environment, capture_output=True, text=True)
    imported = {name: set(modules) for name, *modules in map(str.split, re.findall(r"^modules (.*)$", done.stdout, re.M))}
    assert [*imported] == [*commands], done.stderr
    for name, modules in imported.items():
        assert not modules & {"torch", "jaxtyping", "ray"}, name
        assert name in ("fit", "card") or not modules & {"matplotlib", "jinja2"}, name


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
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cmdline").read_bytes().startswith(b"ray::_task"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_on_ray_a_worker_that_is_killed_does_not_change_the_file(ray: Any, folder: Path, tmp_path: Path) -> None:
    rng = stream(1)
    parts = tmp_path / "parts"
    parts.mkdir()
    for number in range(40):
        write_people(parts / f"{number:02}.csv", int(rng.integers(900, 1100)), seed=number)
    lost: list[int] = []

    def kill() -> None:
        until = time.monotonic() + 60
        while not lost and time.monotonic() < until:
            time.sleep(0.02)
            lost.extend(workers()[:1])
        os.kill(lost[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    answer("predict", folder, parts, "--out", tmp_path / "ray.csv.gz", "--engine", "ray")
    killer.join()
    assert lost
    answer("predict", folder, parts, "--out", tmp_path / "here.csv.gz")
    assert (tmp_path / "ray.csv.gz").read_bytes() == (tmp_path / "here.csv.gz").read_bytes()
    assert answer("prevalence", folder, parts, "--engine", "ray") == answer("prevalence", folder, parts)
    assert answer("evaluate", folder, parts, "--engine", "ray") == answer("evaluate", folder, parts)


@pytest.mark.slow
def test_on_ray_an_error_in_a_part_is_told_as_it_is(ray: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "b.csv").write_text("a,b\n1,2\n1,2,3\n")
    with engine_of("ray", None) as each:
        assert_refused(lambda: open_table(tmp_path, each=each), r"a table in b\.csv, but .* in line 3, saw 3")
        np.testing.assert_array_equal(list(each(abs, [-2, 1, -3])), [2, 1, 3])
