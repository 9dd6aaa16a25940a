"""`rightloss fit --unlabelled`: a second table without labels joins the comparison, or is refused with a remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from table_files import people, write_people
from test_cli import invoke


def fit(folder: Path, other: Path, population: str = "0.1") -> Any:
    write_people(folder / "labelled.csv", 160)
    arguments = ["--target", "cancer", "--positive", "yes", "--population", population, "--leave-out", "patient", "--json"]
    command = ["fit", str(folder / "labelled.csv"), "--unlabelled", str(other), "--out", str(folder / "model"), *arguments]
    return invoke(*command)


@pytest.mark.long
@pytest.mark.parametrize("population", ["0.1", "unknown"])
def test_unlabelled_rows_are_counted_and_a_model_is_written(tmp_path: Path, population: str) -> None:
    other = tmp_path / "screening.csv"
    people(600, seed=1, share=0.1).drop(columns="cancer").to_csv(other, index=False)
    done = fit(tmp_path, other, population)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["unlabelled"]["rows"] == 600
    assert (tmp_path / "model").is_dir()


@pytest.mark.parametrize("what", ["missing column", "no rows"])
def test_a_table_that_does_not_fit_is_refused_and_nothing_is_written(tmp_path: Path, what: str) -> None:
    other, frame = tmp_path / "screening.csv", people(60, seed=1).drop(columns="cancer")
    (frame.drop(columns="age") if what == "missing column" else frame[:0]).to_csv(other, index=False)
    done = fit(tmp_path, other)
    assert done.exit_code == 2, done.output
    assert not (tmp_path / "model").exists()
