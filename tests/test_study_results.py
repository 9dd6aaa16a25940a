"""Results on disk: a run's predictions are bound to it, and whatever is not its own is refused and named."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from members import assert_refused
from study_results import fake_study

import rightloss
from rightloss.study import read_one_file, write_one_file
from rightloss.study.config import RunConfig, Source, StudyConfig
from rightloss.study.report import write_tables
from rightloss.study.results import data_path, read_study
from rightloss.study.summary import Summary, summarise

CONFIG = StudyConfig("small", losses=("information-gain", "weighted"), populations=(0.3,), folds=3, num_folds=4)
NODULES = 100
NESTED = "[" * 100_000


@pytest.fixture
def out(tmp_path: Path) -> Path:
    fake_study(tmp_path / "out", CONFIG, NODULES)
    return tmp_path / "out"


def run_of(fold: int) -> RunConfig:
    return next(run for run in CONFIG.runs() if run.fold == fold and run.loss == "weighted")


def file_of(out: Path, fold: int, ending: str) -> Path:
    return out / "runs" / f"{run_of(fold).key}{ending}"


def rewrite_run(out: Path, **changed: Any) -> None:
    """Fold 1's predictions with other arrays, as np.savez writes them."""
    path = file_of(out, 0, ".npz")
    with np.load(path) as found:
        arrays = dict(found)
    np.savez(path, **{**arrays, **{name: change(arrays[name]) for name, change in changed.items()}})


def without_digest(out: Path) -> None:
    """As results were written before a run's JSON had a digest of its predictions."""
    for path in (out / "runs").glob("*.json"):
        content = json.loads(path.read_text())
        content.pop("sha256", None)
        path.write_text(json.dumps(content, indent=1) + "\n")


def swap_in_another_fold(out: Path) -> None:
    shutil.copy(file_of(out, 1, ".npz"), file_of(out, 0, ".npz"))


def both(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    return lambda out: rewrite_run(out, rows=change, log_probs=change)


# What must not be taken for the result of fold 1, without a digest.
OTHER_PREDICTIONS: dict[str, Callable[[Path], None]] = {
    "another fold's": swap_in_another_fold,
    "negative rows": lambda out: rewrite_run(out, rows=lambda rows: rows - NODULES),
    "a row twice": lambda out: rewrite_run(out, rows=lambda rows: np.append(rows[:-1], rows[0])),
    "missing rows": both(lambda array: array[:-1]),
    "every row twice": both(lambda array: np.concatenate([array, array])),
    "rows beyond the data set": lambda out: rewrite_run(out, rows=lambda rows: rows + NODULES),
    "rows of other folds": lambda out: rewrite_run(out, rows=lambda rows: (rows + 2) % NODULES),
    "fractions for rows": lambda out: rewrite_run(out, rows=lambda rows: rows.astype(float)),
    "rows of two axes": lambda out: rewrite_run(out, rows=lambda rows: rows[:, None]),
    "no rows": both(lambda array: array[:0]),
    "fewer predictions than rows": lambda out: rewrite_run(out, log_probs=lambda table: table[:-3]),
    "predictions of one axis": lambda out: rewrite_run(out, log_probs=lambda table: table[:, 0]),
    "predictions of one class": lambda out: rewrite_run(out, log_probs=lambda table: table[:, :1]),
    "predictions of three classes": lambda out: rewrite_run(out, log_probs=lambda table: table[:, [0, 1, 1]]),
    "predictions that are no numbers": lambda out: rewrite_run(out, log_probs=lambda table: table * np.nan),
    "predictions in words": lambda out: rewrite_run(out, log_probs=lambda table: table.astype(str)),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", OTHER_PREDICTIONS)
def test_predictions_that_are_not_the_runs_own_are_refused_and_the_run_is_named(out: Path, kind: str) -> None:
    without_digest(out)
    OTHER_PREDICTIONS[kind](out)
    words = r"weighted loss, π = 0\.3, fold 1, seed 0, in .*" + file_of(out, 0, ".json").name + ".*: delete it, and run"
    assert_refused(lambda: read_study(out), words)


def test_with_a_digest_other_predictions_for_the_same_rows_are_refused(out: Path) -> None:
    rewrite_run(out, log_probs=lambda table: table[:, ::-1])
    assert_refused(lambda: read_study(out), f"{file_of(out, 0, '.npz').name} is not the file that was written with it")


@pytest.mark.long
def test_results_without_a_digest_give_the_same_tables_to_the_byte(out: Path, tmp_path: Path) -> None:
    write_tables(summarise(read_study(out)), tmp_path / "with")
    without_digest(out)
    write_tables(summarise(read_study(out)), tmp_path / "without")
    found = [
        {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()}
        for name in ("with", "without")
    ]
    assert found[0] == found[1]
    assert len(found[0]) > 3


@pytest.mark.parametrize(
    "content",
    [NESTED, '{"config": ' + NESTED, "", "[]", "null", "{}", '{"config": 1}', '"\\ud800"', "1" * 5000, "\xff"],
    ids=lambda content: repr(content[:14]),
)
def test_a_file_that_is_no_runs_json_is_refused_and_named(out: Path, content: str) -> None:
    path = file_of(out, 0, ".json")
    path.write_bytes(content.encode("latin-1"))
    assert_refused(lambda: read_study(out), f"{path.name}, but .*: delete it, and run the study again")


def test_a_config_or_a_summary_that_is_nested_without_end_is_refused_and_named(out: Path) -> None:
    for name in ("study.json", "summary.json"):
        (out / name).write_text(NESTED)
    assert_refused(lambda: read_study(out), "Expected .*study.json to hold a study's config")
    assert_refused(lambda: Summary.read(out / "summary.json"), "Expected .*summary.json to hold the summary of a study")


def test_a_data_set_that_is_damaged_is_refused_and_named(out: Path) -> None:
    path = data_path(out, "contours", "binary")
    path.write_bytes(path.read_bytes()[:-100])
    assert_refused(lambda: read_study(out), f"contours in .*{path.name}, but .*delete it, and run the study again")


def test_a_data_set_that_is_missing_is_named(out: Path) -> None:
    path = data_path(out, "contours", "binary")
    path.unlink()
    assert_refused(lambda: read_study(out), f"{path.name} is missing: run the study again")


def test_another_version_is_named_with_what_to_do(out: Path) -> None:
    content = json.loads((out / "study.json").read_text())
    for other in ({**content, "version": "0.0.7"}, {"version": "0.0.7", "preset": "small", "colour": "red"}):
        (out / "study.json").write_text(json.dumps(other))
        words = f"a study by rightloss {rightloss.__version__}, but .*study.json was written by rightloss 0.0.7: install that"
        assert_refused(lambda: read_study(out), words)
    for foreign in ({"version": 3, "preset": "small"}, {"version": "0.0.7"}, {**content, "version": None}):
        (out / "study.json").write_text(json.dumps(foreign))
        assert_refused(lambda: read_study(out), "to hold a study's config, but .*: choose another folder")


# In one file.


def test_one_file_gives_the_same_figures_and_verdicts(tmp_path: Path) -> None:
    """Compare two data sets under both tasks; float32 costs less than the seventh digit."""
    for task in ("binary", "rating"):
        config = dataclasses.replace(
            CONFIG,
            task=task,
            sources=(Source("contours"), Source("other", "digest")),
            losses=("information-gain", "published", "weighted"),
            populations=(None,) if task == "rating" else (0.3, 0.001),
        )
        fake_study(tmp_path / task, config, NODULES)
        results = read_study(tmp_path / task)
        again = read_one_file(write_one_file(results, tmp_path / f"{task}.npz"))
        ours, theirs = summarise(results), summarise(again)
        assert [check.verdict for check in ours.checks] == [check.verdict for check in theirs.checks]
        for row, same in zip(ours.rows, theirs.rows, strict=True):
            assert row.key == same.key
            values = [[figures[name].value for name in row.figures] for figures in (row.figures, same.figures)]
            np.testing.assert_allclose(values[0], values[1], rtol=2e-6, atol=1e-9)
        for run, same_run in zip(results.runs, again.runs, strict=True):
            assert (run.config, run.chosen, run.validation) == (same_run.config, same_run.chosen, same_run.validation)


def test_one_file_refuses_unfinished_studies_and_foreign_files(out: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ending in \.npz"):
        write_one_file(read_study(out), tmp_path / "study.zip")
    file_of(out, 0, ".json").unlink()
    with pytest.raises(ValueError, match="1 of its runs are missing"):
        write_one_file(read_study(out), tmp_path / "study.npz")
    np.savez(tmp_path / "foreign.npz", content=np.frombuffer(b"{}", np.uint8))
    with pytest.raises(ValueError, match="does not hold one"):
        read_one_file(tmp_path / "foreign.npz")
