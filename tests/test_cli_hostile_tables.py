"""Tables that cannot be learned from, or that mislead: a clear line and exit code 2, or a warning that names the column."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import invoke, killed
from table_files import people, write_people

from rightloss.tabular import fit_table, load_model, read_table

FIT = ["--target", "cancer", "--positive", "yes", "--population", "0.01", "--folds", "2", "--out", "model"]


def written(change: Callable[[pd.DataFrame], object]) -> Callable[[Path], object]:
    """Return what writes the table after a change to it."""

    def write(path: Path) -> None:
        frame = people()
        found = change(frame)
        (frame if found is None else pd.DataFrame(found)).to_csv(path, index=False)

    return write


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


def twice(path: Path) -> None:
    path.write_text("age,age,cancer\n1,2,yes\n3,4,no\n5,6,yes\n")


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no such file": (lambda path: None, "Expected a file at data.csv, but there is none"),
    "an empty file": (text(""), "empty"),
    "no rows": (text("age,cancer\n"), "Expected rows in data.csv"),
    "one row": (text("age,cancer\n50,yes\n"), "Expected t"),
    "no target column": (written(lambda frame: frame.drop(columns="cancer")), "Expected the target column 'cancer'"),
    "no labels": (written(lambda frame: frame.assign(cancer=None)), "Expected"),
    "one class": (written(lambda frame: frame.assign(cancer="yes")), "two classes or more"),
    "one row of a class": (written(lambda frame: frame.assign(cancer=["yes"] + ["no"] * 239)), "'yes'"),
    "numbers as classes": (written(lambda frame: frame.assign(cancer=np.arange(240) + 0.5)), "distinct values"),
    "the positive class is not there": (written(lambda frame: frame.replace("yes", "ja")), "'yes'"),
    "columns of one name": (twice, "'age'"),
    "a binary file": (lambda path: path.write_bytes(b"PK\x03\x04\0\0"), "Expected a text file"),
    "lines of different length": (text("a,b,cancer\n1,2,yes\n1,2,3,no\n4,5,6,7,no\n"), "same number"),
    "nothing to learn from": (written(lambda frame: frame[["cancer"]]), "every column is left out"),
    "infinity as a class": (
        written(lambda frame: frame.assign(cancer=np.where(frame["cancer"] == "yes", np.inf, 3))),
        "infinity",
    ),
    "classes that differ in blanks": (written(lambda frame: frame.replace("no", "yes ")), "blanks"),
    "numbers that can be read in two ways": (text("age\tcancer\n82,402\tyes\n999\tno\n"), "'82,402'"),
    "the columns in no line": (text("1,2\n3,4\n5,6\n"), "add a line with names"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_table_that_cannot_be_learned_from_gives_one_line_and_writes_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make, words = REFUSED[name]
    make(Path("data.csv"))
    before = sorted(tmp_path.iterdir())
    done = invoke("fit", "data.csv", *FIT)
    assert (done.exit_code, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("rightloss: ")
    assert words in line
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--population", "no=0.9,maybe=0.1"], "maybe"),
        (["--population", "no=0.9,yes=0.05,maybe=0.05"], "maybe"),
        (["--population", "no=1,yes=0"], "positive for every class"),
        (["--population", "1.5"], "between 0 and 1"),
        (["--group", "nobody"], "'nobody'"),
        (["--leave-out", "nothing"], "'nothing'"),
        (["--folds", "1"], "fold"),
        (["--out", "nowhere/model"], "make it first"),
        (["--out", "data.csv"], "is a file"),
        (["--out", ""], "--out model"),
        (["--encoding", "klingon"], "klingon"),
        (["--encoding", "rot13"], "rot13"),
    ],
)
def test_an_option_that_does_not_fit_the_table_gives_one_line_and_writes_nothing(
    options: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_people(Path("data.csv"))
    done = invoke("fit", "data.csv", *FIT, *options)
    assert (done.exit_code, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert words in line
    assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]


WARNED: dict[str, tuple[str, Callable[[pd.DataFrame], object], str]] = {
    "text in a numeric column": (
        "age",
        lambda f: f.assign(age=[*f["age"].astype(str)[:-3], "?", "unknown", "-"]),
        "text among",
    ),
    "a column of identifiers": ("case_id", lambda f: f.assign(case_id=[f"A{i:05d}" for i in range(240)]), "identifier"),
    "a column that leaks": ("treated", lambda f: f.assign(treated=np.where(f["cancer"] == "yes", "T", "-")), "alone tells"),
    "a formula": ("clinic", lambda f: f.assign(clinic=["=1+1", *f["clinic"][1:]]), "formula"),
    "missing labels": ("cancer", lambda f: f.assign(cancer=[None, None, *f["cancer"][2:]]), "no label"),
    "a copy of a column": ("years", lambda f: f.assign(years=f["age"]), "same as"),
    "free text": ("note", lambda f: f.assign(note=[f"seen on day {i} by x" for i in range(240)]), "distinct texts"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", WARNED)
def test_a_table_that_may_mislead_gives_a_warning_that_names_the_column(name: str, tmp_path: Path) -> None:
    column, change, words = WARNED[name]
    written(change)(tmp_path / "data.csv")
    done = invoke("check", str(tmp_path / "data.csv"), "--target", "cancer")
    assert done.exit_code == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"warning: column {column!r}")]
    assert words in " ".join(done.stdout.split()), line
    found = json.loads(invoke("check", str(tmp_path / "data.csv"), "--target", "cancer", "--json").stdout)
    assert column in {each["column"] for each in found["findings"] if each["level"] == "warning"}


@pytest.mark.long
def test_a_column_that_leaks_is_left_out_in_the_next_command(tmp_path: Path) -> None:
    written(WARNED["a column that leaks"][1])(tmp_path / "data.csv")
    done = invoke("check", str(tmp_path / "data.csv"), "--target", "cancer")
    assert "--leave-out treated" in done.stdout


@pytest.mark.long
def test_latin_1_text_is_read_and_said_to_be(tmp_path: Path) -> None:
    frame = people().replace({"clinic": {"north": "Nørrebro", "east": "Østerbro"}})
    (tmp_path / "data.csv").write_bytes(frame.to_csv(index=False).encode("latin-1"))
    done = invoke("fit", str(tmp_path / "data.csv"), *FIT[:-1], str(tmp_path / "model"))
    assert done.exit_code == 0, done.stderr
    assert "not UTF-8" in done.stdout
    (clinic,) = [each for each in load_model(tmp_path / "model").columns if each.name == "clinic"]
    assert {"Nørrebro", "Østerbro"} <= set(clinic.categories)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    done = invoke("fit", str(write_people(folder / "data.csv")), *FIT[:-1], str(folder / "model"), "--leave-out", "patient")
    assert done.exit_code == 0, done.stderr
    return folder / "model"


@pytest.mark.long
def test_a_formula_in_a_cell_that_is_kept_is_made_harmless_with_a_warning(model: Path, tmp_path: Path) -> None:
    cells = ["=HYPERLINK(1)", *["-5"] * 39]
    path = write_people(tmp_path / "new.csv", 40, note=cells)
    done = invoke("predict", str(model), str(path), "--out", str(tmp_path / "p.csv"))
    assert done.exit_code == 0, done.stderr
    assert "warning: column 'note': 1 cells" in done.stderr
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert ",'=HYPERLINK(1)," in lines[1]
    assert ",-5," in lines[2]


NAMES: dict[str, tuple[dict[str, str], str]] = {
    "signs": ({"no": "-", "yes": "+"}, "+"),
    "truth values": ({"no": "FALSE", "yes": "TRUE"}, "TRUE"),
    "formulas": ({"no": "=1+1", "yes": "'=1+1"}, "'=1+1"),
    "commas and line ends": ({"no": "a,b", "yes": 'a\r"b"\n,c'}, 'a\r"b"\n,c'),
}


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_evaluate_reads_what_predict_wrote_and_finds_the_figures_of_the_model(name: str, tmp_path: Path) -> None:
    classes, positive = NAMES[name]
    frame = people().assign(p_dose=np.arange(240) % 7, cancer=lambda frame: frame["cancer"].map(classes))
    frame.to_csv(tmp_path / "data.csv", index=False, lineterminator="\r\n")
    data, model = str(tmp_path / "data.csv"), str(tmp_path / "model")
    options = ["--target", "cancer", "--positive", positive, "--population", "0.1"]
    assert invoke("fit", data, *options, "--folds", "2", "--out", model).exit_code == 0
    expected = json.loads(invoke("evaluate", model, data, "--json").stdout)
    for ending in ("csv", "parquet"):
        assert invoke("predict", model, data, "--out", str(tmp_path / f"p.{ending}")).exit_code == 0
        done = invoke("evaluate", str(tmp_path / f"p.{ending}"), *options, "--json")
        assert done.exit_code == 0, done.stderr
        found = json.loads(done.stdout)
        for each, figure in expected["figures"].items():
            assert found["figures"][each]["value"] == pytest.approx(figure["value"], rel=1e-9), each


FINDINGS: dict[str, Callable[[Path], Path]] = {
    "a decimal comma": lambda folder: written_as(folder / "new.csv", people(40).to_csv(index=False, sep=";", decimal=",")),
    "cp1252": lambda folder: written_as(folder / "new.csv", people(40).assign(note="é").to_csv(index=False), "cp1252"),
    "a nested column": lambda folder: write_people(folder / "new.parquet", 40, note=[[1, 2]] * 40),
    "integers of 70 bits": lambda folder: write_people(folder / "new.csv", 40, note=[str(2**70), *["3"] * 39]),
}


def written_as(path: Path, content: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(content.encode(encoding))
    return path


@pytest.mark.long
@pytest.mark.parametrize("name", FINDINGS)
def test_a_table_with_a_finding_is_predicted_to_parquet_and_a_warning_is_printed(
    name: str, model: Path, tmp_path: Path
) -> None:
    path = FINDINGS[name](tmp_path)
    done = invoke("predict", str(model), str(path), "--out", str(tmp_path / "p.parquet"))
    assert done.exit_code == 0, done.stderr
    warned = [finding for finding in read_table(path).attrs["findings"] if finding.level == "warning"]
    assert all(finding.message in done.stderr for finding in warned)
    assert bool(warned) == (name in ("cp1252", "a nested column"))
    plain = write_people(tmp_path / "plain.csv", 40)
    expected = np.exp(load_model(model).predict_log_proba(read_table(plain)))
    np.testing.assert_allclose(pd.read_parquet(tmp_path / "p.parquet")[["p_no", "p_yes"]], expected, rtol=1e-9)


@pytest.mark.long
def test_numbers_near_the_largest_are_learned_from(tmp_path: Path) -> None:
    path = write_people(tmp_path / "data.csv", size=np.where(np.arange(240) % 2, "1.7e308", "-1.6e308"))
    done = invoke("fit", str(path), *FIT[:-1], str(tmp_path / "model"), "--json")
    assert done.exit_code == 0, done.stderr
    assert np.isfinite(load_model(tmp_path / "model").predict_log_proba(read_table(path))).all()


@pytest.mark.long
def test_a_model_that_always_answers_the_population_says_nothing_of_a_prevalence(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"x": np.arange(400) % 2, "y": np.array(["a", "b", "c"])[np.random.default_rng(5).integers(0, 3, 400)]}
    )
    model = fit_table(frame, target="y", population={"a": 0.7, "b": 0.2, "c": 0.1}, candidates=["linear"], folds=3)
    assert model.family is None
    model.save(tmp_path / "model")
    frame.to_csv(tmp_path / "data.csv", index=False)
    np.testing.assert_array_equal(model.predict_log_proba(frame), model.held_out.log_probs)
    done = invoke("prevalence", str(tmp_path / "model"), str(tmp_path / "data.csv"))
    assert (done.exit_code, done.stdout) == (2, "")
    assert "always answers its population" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: write_people(path).write_text("age,clinic\n1,north\n"), "density"),
        (lambda path: write_people(path, p_yes=0.5), "p_yes"),
        (lambda path: path.write_text("age,density,clinic\n"), "rows"),
    ],
    ids=["a column is missing", "a column is taken", "no rows"],
)
def test_a_table_that_the_model_cannot_read_is_refused_and_nothing_is_written(
    make: Callable[[Path], object], words: str, model: Path, tmp_path: Path
) -> None:
    make(tmp_path / "new.csv")
    done = invoke("predict", str(model), str(tmp_path / "new.csv"), "--out", str(tmp_path / "p.csv"))
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]


@pytest.mark.long
def test_what_training_did_not_have_gives_a_warning_that_names_the_column(model: Path, tmp_path: Path) -> None:
    path = write_people(tmp_path / "new.csv", 40, clinic="west", age=["old", *["50"] * 39])
    done = invoke("predict", str(model), str(path), "--out", str(tmp_path / "p.csv"))
    assert done.exit_code == 0
    lines = done.stderr.splitlines()
    assert all(line.startswith("rightloss: warning: column ") for line in lines)
    assert {"'clinic'", "'age'"} <= {line.split()[3].rstrip(":") for line in lines}
    assert pd.read_csv(tmp_path / "p.csv")["p_yes"].between(0, 1).all()


@pytest.mark.long
def test_labels_that_the_model_does_not_know_and_folders_that_are_none_are_refused(model: Path, tmp_path: Path) -> None:
    path = write_people(tmp_path / "labelled.csv", 40, cancer=["maybe", *["no"] * 39])
    unknown = invoke("evaluate", str(model), str(path))
    assert unknown.exit_code == 2
    assert "maybe" in unknown.stderr
    for arguments in (
        ["predict", str(tmp_path), str(path), "--out", str(tmp_path / "p.csv")],
        ["prevalence", "none", str(path)],
    ):
        refused = invoke(*arguments)
        assert (refused.exit_code, len(refused.stderr.splitlines())) == (2, 1)
    assert invoke("evaluate", str(path), "--target", "cancer", "--population", "0.1").exit_code == 2
    assert invoke("evaluate", str(model)).exit_code == 2


@pytest.mark.long
def test_a_model_is_only_overwritten_on_request(model: Path) -> None:
    before = (model / "model.json").read_bytes()
    data = str(model.parent / "data.csv")
    refused = invoke("fit", data, *FIT[:-1], str(model))
    assert refused.exit_code == 2
    assert (model / "model.json").read_bytes() == before


@pytest.mark.long
def test_fit_that_is_killed_while_it_writes_leaves_no_model(tmp_path: Path) -> None:
    write_people(tmp_path / "data.csv", rows=4000)
    killed(["fit", "data.csv", *FIT], tmp_path, lambda: any(tmp_path.glob(".saving-*/*")))
    assert not (tmp_path / "model").exists()
    done = invoke("fit", str(tmp_path / "data.csv"), *FIT[:-1], str(tmp_path / "model"))
    assert done.exit_code == 0, done.stderr


@pytest.mark.long
def test_predict_that_is_killed_while_it_writes_leaves_no_file(model: Path, tmp_path: Path) -> None:
    write_people(tmp_path / "new.csv", rows=100_000)
    started = lambda: any(path.stat().st_size for path in tmp_path.glob(".saving-*"))  # noqa: E731
    killed(["predict", str(model), "new.csv", "--out", "p.csv"], tmp_path, started)
    assert not (tmp_path / "p.csv").exists()
