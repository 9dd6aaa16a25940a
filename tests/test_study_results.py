"""Results on disk: a run's predictions are bound to it, and whatever is not its own is refused and named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from members import assert_refused
from study_results import fake_study
from study_work import contents

import rightloss
from rightloss.study import read_one_file, write_one_file
from rightloss.study.config import RunConfig, Source, StudyConfig
from rightloss.study.report import write_tables
from rightloss.study.results import data_path, read_study
from rightloss.study.summary import Summary, summarise

CONFIG = StudyConfig("small", losses=("information-gain", "weighted"), populations=(0.3,), folds=3, num_folds=4)
NODULES = 100
NESTED = "[" * 100_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study's folder. Look, but do not touch."""
    out = tmp_path_factory.mktemp("made")
    fake_study(out, CONFIG, NODULES)
    return out


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    """The same, to do with as one likes."""
    return Path(shutil.copytree(made, tmp_path / "out"))


def file_of(out: Path, fold: int, ending: str) -> Path:
    run: RunConfig = next(run for run in CONFIG.runs() if run.fold == fold and run.loss == "weighted")
    return out / "runs" / f"{run.key}{ending}"


def rewritten(**changed: Any) -> Callable[[Path], None]:
    """Fold 1's predictions with other arrays, as np.savez writes them."""

    def rewrite(out: Path) -> None:
        path = file_of(out, 0, ".npz")
        with np.load(path) as found:
            arrays = dict(found)
        np.savez(path, **{**arrays, **{name: change(arrays[name]) for name, change in changed.items()}})

    return rewrite


def without_digest(out: Path) -> None:
    """As results were written before a run's JSON had a digest of its predictions, offsets and a trace."""
    for path in (out / "runs").glob("*.json"):
        content = json.loads(path.read_text())
        kept = {name: value for name, value in content.items() if name not in ("sha256", "matched", "trace")}
        path.write_text(json.dumps(kept, indent=1) + "\n")


def another_folds(out: Path) -> None:
    shutil.copy(file_of(out, 1, ".npz"), file_of(out, 0, ".npz"))


# What must not be taken for the result of fold 1, without a digest.
OTHER_PREDICTIONS: dict[str, Callable[[Path], None]] = {
    "another fold's": another_folds,
    "negative rows": rewritten(rows=lambda rows: rows - NODULES),
    "fractions for rows": rewritten(rows=lambda rows: rows.astype(float)),
    "missing rows": rewritten(rows=lambda rows: rows[:-1], log_probs=lambda table: table[:-1]),
    "fewer predictions than rows": rewritten(log_probs=lambda table: table[:-3]),
    "predictions of three classes": rewritten(log_probs=lambda table: table[:, [0, 1, 1]]),
    "predictions that are no numbers": rewritten(log_probs=lambda table: table * np.nan),
    "predictions in words": rewritten(log_probs=lambda table: table.astype(str)),
}


@pytest.mark.parametrize("kind", OTHER_PREDICTIONS)
def test_predictions_that_are_not_the_runs_own_are_refused_and_the_run_is_named(out: Path, kind: str) -> None:
    without_digest(out)
    OTHER_PREDICTIONS[kind](out)
    words = r"weighted loss, π = 0\.3, fold 1, seed 0, in .*" + file_of(out, 0, ".json").name + ".*: delete it, and run"
    assert_refused(lambda: read_study(out), words)


def test_with_a_digest_other_predictions_for_the_same_rows_are_refused(out: Path) -> None:
    rewritten(log_probs=lambda table: table[:, ::-1])(out)
    assert_refused(lambda: read_study(out), f"{file_of(out, 0, '.npz').name} is not the file that was written with it")


@pytest.mark.long
def test_older_results_give_the_same_tables_to_the_byte(out: Path, tmp_path: Path) -> None:
    write_tables(summarise(read_study(out)), tmp_path / "with")
    without_digest(out)
    write_tables(summarise(read_study(out)), tmp_path / "without")
    assert contents(tmp_path / "with") == contents(tmp_path / "without")
    assert len(contents(tmp_path / "with")) > 3


def test_files_that_hold_nothing_of_a_study_are_refused_and_named(out: Path) -> None:
    path = file_of(out, 0, ".json")
    before = path.read_bytes()
    for content in (NESTED, "", "[]", "{}", '{"config": 1}', "1" * 5000, "\xff"):
        path.write_bytes(content.encode("latin-1"))
        assert_refused(lambda: read_study(out), f"{path.name}, but .*: delete it, and run the study again")
    path.write_bytes(before)
    data = data_path(out, "contours", "binary")
    data.write_bytes(data.read_bytes()[:-100])
    assert_refused(lambda: read_study(out), f"contours in .*{data.name}, but .*delete it, and run the study again")
    np.savez(data, labels=np.zeros(3))
    assert_refused(lambda: read_study(out), f"contours in .*{data.name}, but .*delete it, and run the study again")
    data.unlink()
    assert_refused(lambda: read_study(out), f"{data.name} is missing: run the study again")
    for content in (NESTED, "", "null", "{}", '{"version": "1", "sources": [], "training": []}'):
        (out / "study.json").write_text(content)
        assert_refused(lambda: read_study(out), "Expected .*study.json to hold a study's config")


def test_a_summary_that_is_none_is_refused_and_named(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    assert_refused(lambda: Summary.read(path), "there is none")
    for content in (NESTED, "", "[]", '{"config": {}}'):
        path.write_text(content)
        assert_refused(lambda: Summary.read(path), "Expected .*summary.json to hold the summary of a study")


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


@pytest.mark.long
@pytest.mark.parametrize("task", ["binary", "rating"])
def test_one_file_gives_the_same_figures_and_verdicts(task: str, tmp_path: Path) -> None:
    """Compare two data sets; float32 costs less than the seventh digit."""
    config = replace(
        CONFIG, task=task, sources=(Source("contours"), Source("other", "1")), populations=(None if task == "rating" else 0.3,)
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
    assert_refused(lambda: write_one_file(read_study(out), tmp_path / "study.zip"), r"ending in \.npz")
    file_of(out, 0, ".json").unlink()
    assert_refused(lambda: write_one_file(read_study(out), tmp_path / "study.npz"), "1 of its runs are missing")
    np.savez(tmp_path / "foreign.npz", content=np.frombuffer(b"{}", np.uint8))
    assert_refused(lambda: read_one_file(tmp_path / "foreign.npz"), "does not hold one")
