"""The commands for tables: check → fit → predict → evaluate → prevalence."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import itertools
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import invoke
from draws import assert_refused, unchecked_types
from table_files import people, read_predictions, write_frame, write_people

from rightloss import Prevalence, retarget
from rightloss.cli.population import parse_population, population_text
from rightloss.cli.predict import probability_names, with_predictions
from rightloss.cli.scores import Asked, labelled_scores
from rightloss.cli.tables import check_output, without_formulas
from rightloss.cli.terminal import command_line
from rightloss.metrics import evaluate
from rightloss.tabular import load_model, read_table

FIT = ["--target", "cancer", "--positive", "yes", "--population", "0.01", "--folds", "3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data.csv, and the model that `fit` made of it."""
    found = tmp_path_factory.mktemp("table")
    write_people(found / "data.csv")
    done = invoke("fit", str(found / "data.csv"), *FIT, "--group", "patient", "--out", str(found / "model"))
    assert done.exit_code == 0, done.stderr
    (found / "printed.txt").write_text(done.stdout)
    return found


def answer(*arguments: str) -> dict[str, Any]:
    """Return the JSON that a command prints, which must be all that it prints."""
    done = invoke(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def next_command(printed: str) -> list[str]:
    """Return the arguments of the command after "Next:", as a shell would read it."""
    _, _, line = printed.partition("Next:\n")
    words = shlex.split(line.strip())
    assert words[0] == "rightloss"
    return words[1:]


# The population as it is typed.


@pytest.mark.parametrize("text", ["0.001", "0.1%", "0.1 %", "1/1000", "1e-3", "1 / 1000", ".001"])
def test_a_population_can_be_written_in_many_ways(text: str) -> None:
    assert parse_population(text) == pytest.approx(0.001, rel=1e-15)


def test_classes_may_have_signs_in_their_names() -> None:
    assert parse_population("a=b=50%, c d=1/4,e=0.25") == {"a=b": 0.5, "c d": 0.25, "e": 0.25}


@pytest.mark.parametrize(
    "text",
    ["", "0", "1", "2", "100%", "-0.1", "nan", "inf", "1/0", "5%/3", "x", "1e400", "0,001", "a=0.5", "a=0.5,a=0.5", "=1"],
)
def test_what_is_no_population_is_refused(text: str) -> None:
    assert_refused(lambda: parse_population(text), "population|shares|share for each class")


@pytest.mark.parametrize("shares", [[0.999, 0.001], [1 - 1 / 3, 1 / 3], [0.123456, 0.876544]])
def test_a_population_in_a_command_is_read_as_it_was_meant(shares: list[float]) -> None:
    assert parse_population(population_text(shares, ["no", "yes"], "yes")) == pytest.approx(shares[1], rel=1e-3)
    assert parse_population(population_text([1e-6, 1 - 1e-6], ["no", "yes"], "yes")) == pytest.approx(1 - 1e-6)
    found = parse_population(population_text([*(0.5 * each for each in shares), 0.5], ["a", "b", "c"], None))
    assert isinstance(found, dict)
    assert list(found.values()) == pytest.approx([*(0.5 * each for each in shares), 0.5], rel=1e-3)


HOSTILE = ["a,b", "c=d, e", '"quoted"', "x=0.5,y", " padded ", "f\x1b[31mg", "two\nlines", "don't", "100%", "…", "12 of 30"]


def test_frequencies_of_classes_with_any_name_are_read_as_they_were_written() -> None:
    shares = [1 / len(HOSTILE)] * len(HOSTILE)
    assert parse_population(population_text(shares, HOSTILE, None)) == pytest.approx(
        dict(zip(HOSTILE, shares, strict=True)), rel=1e-3
    )
    assert parse_population("other, benign=0.9,malignant=0.1") == {"other, benign": 0.9, "malignant": 0.1}


@pytest.mark.parametrize("argument", [*HOSTILE, "\udcff.csv", "\u202eab", "$(touch harm)\x07", "é\x07f1"])
def test_the_shell_reads_a_command_as_it_was_meant_and_the_terminal_gets_no_control_characters(argument: str) -> None:
    line = command_line(argument, "end")
    assert line.isprintable()
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("needs bash")
    read = subprocess.run([shell, "-c", line.replace("rightloss", "printf '%s|'", 1)], capture_output=True, check=True).stdout
    assert read == f"{argument}|end|".encode("utf-8", "surrogateescape")


def test_counts_of_a_survey_are_an_uncertain_population() -> None:
    found = parse_population("12 of 3000")
    assert isinstance(found, Prevalence)
    assert found.concentration is not None
    assert found.concentration.tolist() == [2988.5, 12.5]  # Jeffreys' prior
    assert_refused(lambda: parse_population("3 of 2"), "counts")


@pytest.mark.parametrize("text", ["5e-324", "1e-300", "a=1,b=5e-324", "0.9999999999999"])
def test_a_population_too_small_for_figures_is_refused(text: str) -> None:
    assert_refused(lambda: parse_population(text), "population of 1e-12 or more")


# Files of predictions.

FORMULAS = ["=1+1", "+cmd|'/C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "  =1", "＝1+1"]
HARMLESS = ["-1.5", "+3", "1e-3", "a=b", "", "no"]


def test_text_that_a_spreadsheet_would_run_gets_an_apostrophe_and_other_cells_stay() -> None:
    frame = pd.DataFrame({"note": [*FORMULAS, *HARMLESS, None], "p_yes": 0.5})
    safe, changed = without_formulas(frame)
    assert safe["note"].tolist()[: len(FORMULAS)] == [f"'{cell}" for cell in FORMULAS]
    assert safe["note"].astype(object).iloc[len(FORMULAS) :].equals(frame["note"].astype(object).iloc[len(FORMULAS) :])
    assert changed == {"note": len(FORMULAS)}


def test_categories_with_formulas_are_made_harmless_too(tmp_path: Path) -> None:
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
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert not any(
        re.match(r"\s*[=@]|\s*[+-]\S*[^\d.]", cell) for line in lines for cell in line.split(",")[:2] if cell != "+3"
    )
    found = read_predictions(tmp_path / "p.csv", "=name")
    assert found.columns.tolist() == frame.columns.tolist()
    assert found["=name"].fillna("").tolist() == cells


@pytest.mark.parametrize("cell", ["a\r=1+1", "\r=1+1", "a\r\n=1+1,2", "a\n=1+1", "\r", 'a"\r"=1'])
@pytest.mark.parametrize("name", ["p.csv", "p.tsv", "p.csv.gz"])
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
def test_what_parquet_has_no_type_for_is_written_as_text(folder: Path, tmp_path: Path) -> None:
    path = write_people(tmp_path / "new.csv", 3, id=[str(2**70), "3", ""], seen=[True, None, False])
    done = invoke("predict", str(folder / "model"), str(path), "--out", str(tmp_path / "p.parquet"))
    assert done.exit_code == 0, done.stderr
    found = pd.read_parquet(tmp_path / "p.parquet")
    assert found["id"].tolist()[:2] == [str(2**70), "3"]
    assert found["seen"].tolist() == [True, None, False]


HOSTILE = [
    *("a,b", 'quo"te', "new\nline", "car\rriage", "\r\n", "=1+1", "+", "-", "'=x", "''+y", "\tTab", "-1+1", "@x", "'", '"'),
    *("ünï", "💊", "p_dose", "p_", "a;b", "a|b", " lead", "trail ", "a\x0b\x0cb", "a\u2028b", "\x1b[31m", "１２", "predicted"),
    *("NA", "null", "01", "1.0", "1e5", "TRUE", "nan", "1,5", "82,402", "inf", "1_0", "0x1", "-0"),
]


@pytest.mark.long
@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_predictions_of_classes_and_columns_of_any_name_are_read_back_as_they_were(
    ending: str, folder: Path, tmp_path: Path
) -> None:
    fitted, rng, path = load_model(folder / "model"), np.random.default_rng(0), tmp_path / f"p.{ending}"
    names = [name.strip() for name in HOSTILE if name.strip() and name not in ("predicted", "p_dose")]
    for first, second in list(itertools.pairwise(HOSTILE))[::2]:
        model = dataclasses.replace(fitted, classes_=[first, second], positive=second)
        codes, risk = rng.integers(0, 2, 20), rng.random(20)
        log_probs = np.log(np.stack([1 - risk, risk], axis=1))
        *others, target = rng.choice(
            [name for name in names if name not in probability_names(model)], 6, replace=False
        ).tolist()
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


# From a table to a model.


@pytest.mark.long
def test_check_says_what_the_table_holds_and_the_next_command_fits_it(tmp_path: Path) -> None:
    path = write_people(tmp_path / "my data.csv", share=0.25)
    first = invoke("check", str(path))
    assert "Next:" in first.stdout
    assert next_command(first.stdout)[:4] == ["check", str(path), "--target", "cancer"]
    second = invoke("check", str(path), "--target", "cancer", "--group", "patient", "--population", "1/50")
    assert re.search(r"yes +60 +25 %\n", second.stdout)
    assert "prevalence" not in second.stdout
    assert re.search(r"density +number +feature .* (9|10|11)[.\d]* %", second.stdout)
    assert "120 groups" in second.stdout
    without = invoke("check", str(path), "--target", "cancer").stdout
    assert "Unknown? Leave it out, then estimate it with `rightloss prevalence`." in " ".join(without.split())
    words = next_command(second.stdout)
    assert words[:8] == ["fit", str(path), "--target", "cancer", "--positive", "yes", "--group", "patient"]
    assert words[8:10] == ["--population", "1/50"]
    done = invoke(*words[:-1], str(tmp_path / "model"), "--folds", "3")
    assert done.exit_code == 0, done.stderr
    assert load_model(tmp_path / "model").population.population[1] == pytest.approx(0.02)


@pytest.mark.long
def test_fit_prints_the_comparison_and_writes_a_model_with_its_report(folder: Path) -> None:
    printed = (folder / "printed.txt").read_text()
    model = load_model(folder / "model")
    for row in model.comparison.to_dict("records"):
        assert row["candidate"] in printed
    assert printed.count(" ✓ ") == 1
    assert "\n✓ is the model that is kept" in printed
    assert "Cross-validated at the population 0.01 (yes)" in printed
    assert (folder / "model" / "report.html").read_text().startswith("<!doctype html>")
    assert next_command(printed)[:2] == ["predict", str(folder / "model")]
    assert sorted(path.name for path in folder.iterdir()) == ["data.csv", "model", "printed.txt"]


@pytest.mark.long
def test_without_a_population_the_risks_are_at_the_files_own_mix_and_an_estimate_is_offered_first(tmp_path: Path) -> None:
    data, model = str(write_people(tmp_path / "data.csv", share=0.25)), str(tmp_path / "model")
    done = invoke("fit", data, "--target", "cancer", "--positive", "yes", "--folds", "2", "--out", model)
    assert done.exit_code == 0, done.stderr
    printed = " ".join(done.stdout.split())
    assert f"at this file's own mix, 25 % yes. If new rows have that mix: `rightloss predict {model} new.csv" in printed
    assert next_command(done.stdout) == ["prevalence", model, "new.csv"]


@pytest.mark.long
def test_with_a_population_nothing_is_said_of_the_files_own_mix(folder: Path) -> None:
    assert "own mix" not in (folder / "printed.txt").read_text()


@pytest.mark.long
def test_predictions_are_those_of_the_model_beside_the_columns_that_were_there(folder: Path, tmp_path: Path) -> None:
    new = people(40, seed=1).drop(columns="cancer")
    new.to_csv(tmp_path / "new.csv", index=False)
    out = tmp_path / "p.csv"
    found = answer("predict", str(folder / "model"), str(tmp_path / "new.csv"), "--out", str(out))
    written, model = pd.read_csv(out), load_model(folder / "model")
    expected = np.exp(model.predict_log_proba(read_table(tmp_path / "new.csv")))
    assert list(written.columns) == [*new.columns, "p_no", "p_yes", "predicted"]
    np.testing.assert_allclose(written[["p_no", "p_yes"]], expected, rtol=1e-12)
    assert found["mean"]["p_yes"] == pytest.approx(expected[:, 1].mean())
    assert (found["rows"], found["population"]) == (40, "0.01")
    assert shlex.split(found["next"])[1:] == ["prevalence", str(folder / "model"), str(tmp_path / "new.csv")]


@pytest.mark.long
def test_another_population_a_threshold_and_the_columns_kept_are_obeyed(folder: Path, tmp_path: Path) -> None:
    path, out = write_people(tmp_path / "new.parquet", 40, seed=1), tmp_path / "p.parquet"
    options = ["--population", "no=3/4,yes=25%", "--threshold", "0.4", "--keep", "patient", "--out", str(out)]
    done = invoke("predict", str(folder / "model"), str(path), *options)
    assert done.exit_code == 0, done.stderr
    written, model = pd.read_parquet(out), load_model(folder / "model")
    expected = np.exp(model.predict_log_proba(read_table(path), population=0.25))[:, 1]
    assert list(written.columns) == ["patient", "p_no", "p_yes", "predicted"]
    np.testing.assert_allclose(written["p_yes"], expected, rtol=1e-12)
    assert (written["predicted"] == np.where(expected >= 0.4, "yes", "no")).all()
    assert "prevalence" not in done.stdout  # it would be a circle: the population may be its estimate
    assert answer("predict", str(folder / "model"), str(path), *options, "--overwrite")["next"] is None


def test_an_unknown_population_is_answered_with_the_command_that_estimates_it(tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    done = invoke("predict", "model", "new.csv", "--population", "Unknown", "--out", str(out))
    assert done.exit_code == 2
    assert done.stderr.count("estimate it first: `rightloss prevalence MODEL DATA`") == 1
    assert "estimate" not in invoke("predict", "model", "new.csv", "--population", "2", "--out", str(out)).stderr


@pytest.mark.long
def test_evaluate_gives_the_figures_of_the_library_for_model_and_for_file(folder: Path, tmp_path: Path) -> None:
    path, out = write_people(tmp_path / "labelled.csv", 300, seed=2), tmp_path / "p.csv"
    model, frame = load_model(folder / "model"), read_table(path)
    expected = evaluate(
        model.predict_log_proba(frame, population=0.05),
        (frame["cancer"] == "yes").to_numpy().astype(np.int64),
        0.05,
        threshold=0.1,
        groups=frame["patient"].to_numpy(),
    )
    options = ["--population", "5%", "--threshold", "0.1", "--group", "patient"]
    by_model = answer("evaluate", str(folder / "model"), str(path), *options)
    for name in ("expected_log_likelihood", "auc", "ppv", "tpr", "calibration_slope", "net_benefit"):
        shown = by_model["figures"][name]
        assert (shown["value"], shown["low"], shown["high"]) == (expected[name].value, expected[name].low, expected[name].high)
    invoke("predict", str(folder / "model"), str(path), "--population", "5%", "--out", str(out))
    by_file = answer("evaluate", str(out), "--target", "cancer", "--positive", "yes", *options)
    for name, figure in by_model["figures"].items():
        assert by_file["figures"][name]["value"] == pytest.approx(figure["value"], rel=1e-9), name
    printed = invoke("evaluate", str(folder / "model"), str(path), *options).stdout
    assert "150 no, 150 yes" in printed
    assert "At the population 0.05" in printed


@pytest.mark.long
def test_the_prevalence_of_unlabelled_rows_is_found_and_goes_into_the_next_command(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "clinic.csv"
    people(3000, seed=3, share=0.2).drop(columns="cancer").to_csv(path, index=False)
    found = answer("prevalence", str(folder / "model"), str(path))
    assert found["low"][1] < 0.2 < found["high"][1]
    assert found["high"][1] - found["low"][1] < 0.2
    assert found["label_shift_test"]["p_value"] > 0.001
    words = shlex.split(found["next"])[1:]
    assert words[:3] == ["predict", str(folder / "model"), str(path)]
    assert float(words[words.index("--population") + 1]) == pytest.approx(found["population"][1], rel=1e-3)
    printed = invoke("prevalence", str(folder / "model"), str(path)).stdout
    assert f"Label-shift test: not contradicted (p = {found['label_shift_test']['p_value']:.2g}). It cannot see" in printed
    assert "condition" not in printed
    assert found["learnt"] is None
    assert next_command(printed) == words


@pytest.mark.long
def test_rows_that_are_no_mixture_of_the_classes_are_said_to_contradict_label_shift(folder: Path, tmp_path: Path) -> None:
    between = people(2000, seed=4).drop(columns="cancer").assign(age=64.0, density=0.75)
    between.to_csv(tmp_path / "clinic.csv", index=False)
    printed = invoke("prevalence", str(folder / "model"), str(tmp_path / "clinic.csv")).stdout
    assert "Label-shift test: do not rely on the estimate (p = " in printed
    assert "not contradicted" not in printed


@pytest.mark.long
@pytest.mark.parametrize("rate", [0.5, 0.001, 1e-6])
def test_the_test_of_the_same_rows_does_not_depend_on_the_population_of_the_model(
    rate: float, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "clinic.csv"
    people(3000, seed=3, share=0.2).drop(columns="cancer").to_csv(path, index=False)
    model = load_model(folder / "model")
    held_out = dataclasses.replace(
        model.held_out, log_probs=retarget(model.held_out.log_probs, from_=model.population, to=rate)
    )
    elsewhere = Prevalence([1 - rate, rate], model.sampling)
    dataclasses.replace(model, population=elsewhere, held_out=held_out).save(tmp_path / "elsewhere")
    here, there = (answer("prevalence", str(each), str(path)) for each in (folder / "model", tmp_path / "elsewhere"))
    assert there["population"] == pytest.approx(here["population"], abs=1e-6)
    for name in ("p_value", "condition", "error"):
        assert there["label_shift_test"][name] == pytest.approx(here["label_shift_test"][name], rel=1e-6)
    assert there["label_shift_test"]["well_conditioned"]


@pytest.mark.long
def test_three_classes_are_fitted_predicted_and_evaluated(tmp_path: Path) -> None:
    frame = people(300)
    frame["stage"] = np.where(frame["density"] > 1.4, "late", np.where(frame["cancer"] == "yes", "early", "none"))
    frame.drop(columns="cancer").to_csv(tmp_path / "data.csv", index=False)
    data, model, out = (str(tmp_path / name) for name in ("data.csv", "model", "p.csv"))
    population = "none=0.9,early=0.09,late=0.01"
    done = invoke("fit", data, "--target", "stage", "--population", population, "--folds", "3", "--out", model)
    assert done.exit_code == 0, done.stderr
    assert invoke("predict", model, data, "--out", out).exit_code == 0
    assert pd.read_csv(out)[["p_early", "p_late", "p_none"]].sum(axis=1).to_numpy() == pytest.approx(1)
    found = answer("evaluate", model, data)
    assert dict(zip(found["classes"], found["population"], strict=True)) == {"early": 0.09, "late": 0.01, "none": 0.9}
    assert found["figures"]["auc"]["value"] > 0.7
    assert invoke("predict", model, data, "--out", out, "--overwrite", "--threshold", "0.5").exit_code == 2
    assert invoke("evaluate", model, data, "--population", "0.1").exit_code == 2


# What is said is what can be typed.


@pytest.mark.long
def test_a_number_is_refused_if_no_label_is_plainly_positive_and_the_options_to_type_are_named(tmp_path: Path) -> None:
    frame = people(60)
    frame["out"] = np.where(frame["cancer"] == "yes", "default", "paid")
    frame.drop(columns="cancer").to_csv(tmp_path / "data.csv", index=False)
    arguments = ["fit", str(tmp_path / "data.csv"), "--target", "out", "--out", str(tmp_path / "model")]
    refused = invoke(*arguments, "--population", "0.056")
    assert refused.exit_code == 2
    assert "--positive 'default' or --positive 'paid', or both frequencies, such as default=0.056,paid=0.944." in refused.stderr
    assert not (tmp_path / "model").exists()
    for named in (["--population", "0.056", "--positive", "default"], ["--population", "default=0.056,paid=0.944"]):
        done = invoke(*arguments, *named, "--folds", "2", "--overwrite")
        assert done.exit_code == 0, done.stderr
        model = load_model(tmp_path / "model")
        assert model.population.population[model.classes_.index("default")] == pytest.approx(0.056)


@pytest.mark.long
def test_advice_names_the_options_of_the_running_command(tmp_path: Path) -> None:
    rng, sick = np.random.default_rng(0), np.arange(120) % 2
    frame = pd.DataFrame({"x": rng.normal(30 * sick, 1), "cancer": np.where(sick, "yes", "no")})
    frame.to_csv(tmp_path / "data.csv", index=False)
    data, model = str(tmp_path / "data.csv"), str(tmp_path / "model")
    done = invoke("fit", data, "--target", "cancer", "--population", "0.05", "--folds", "2", "--out", model)
    assert done.exit_code == 0, done.stderr
    assert "calibration=" not in done.stdout
    refused = invoke("prevalence", model, data)
    assert refused.exit_code == 2
    assert "--calibration 'mean'" in refused.stderr
    for advice in (["--calibration", "mean"], ["--method", "bbse"]):
        assert answer("prevalence", model, data, *advice)["population"] == pytest.approx([0.5, 0.5], abs=0.01)
    with unchecked_types():
        assert "Expected --method to be 'em', 'bbse'" in invoke("prevalence", model, data, "--method", "x").stderr
    three = invoke("check", data, "--target", "x", "--population", "0.1")
    assert "`" not in three.stderr


# Predictions on standard output, and their limits.


@pytest.mark.long
def test_without_out_the_predictions_are_all_of_standard_output(folder: Path, tmp_path: Path) -> None:
    new = people(40, seed=1).drop(columns="cancer").assign(clinic="zürich", code="007")
    new.to_csv(tmp_path / "new.csv", index=False)
    arguments = ["predict", str(folder / "model"), str(tmp_path / "new.csv")]
    printed = invoke(*arguments)
    assert printed.exit_code == 0, printed.stderr
    assert invoke(*arguments, "--out", str(tmp_path / "p.csv")).exit_code == 0
    assert printed.stdout == (tmp_path / "p.csv").read_text()
    assert pd.read_csv(tmp_path / "p.csv", dtype=str)["code"].eq("007").all()  # as it stands
    assert "40 rows predicted at the population 0.01 (yes)" in printed.stderr
    assert "Expected --out with --json" in invoke(*arguments, "--json").stderr


@pytest.mark.long
def test_limits_are_written_beside_the_risks_and_it_is_said_what_they_allow_for(folder: Path, tmp_path: Path) -> None:
    path, model = write_people(tmp_path / "new.csv", 40, seed=1), load_model(folder / "model")
    arguments = ["predict", str(folder / "model"), str(path), "--keep", "age", "--out", str(tmp_path / "p.csv"), "--overwrite"]
    known = answer(*arguments, "--level", "0.9")
    written = pd.read_csv(tmp_path / "p.csv")
    assert list(written.columns) == ["age", "p_no", "p_yes", "predicted", "low_no", "high_no", "low_yes", "high_yes"]
    low, high = model.predict_limits(read_table(path), level=0.9)
    np.testing.assert_allclose(written[["low_no", "low_yes"]], low, rtol=1e-12)
    np.testing.assert_allclose(written[["high_no", "high_yes"]], high, rtol=1e-12)
    assert "the population is taken as known" in known["limits_allow_for"]
    surveyed = answer(*arguments, "--level", "0.9", "--population", "3 of 300")
    assert "the uncertainty of the population" in surveyed["limits_allow_for"]
    assert "3 of 300, a mean of 0.01163" in " ".join(invoke(*arguments, "--population", "3 of 300").stdout.split())
    assert invoke(*arguments, "--level", "2").exit_code == 2


@pytest.mark.long
def test_a_card_of_a_model_is_that_of_its_predictions_of_labelled_or_held_out_rows(folder: Path, tmp_path: Path) -> None:
    path, model = write_people(tmp_path / "labelled.csv", 300, seed=2), load_model(folder / "model")
    options = ["--population", "0.3%-2%", "--threshold", "0.02"]
    found = answer("card", str(folder / "model"), str(path), *options, "--by", "clinic", "--out", str(tmp_path / "card"))[
        "card"
    ]
    flagged = np.exp(model.predict_log_proba(read_table(path), parse_population("0.3%-2%"))[:, 1]) >= 0.02
    sick = read_table(path)["cancer"] == "yes"
    figures = found["answers"][0]["figures"]
    assert figures["sensitivity"]["value"] == pytest.approx(flagged[sick].mean(), rel=1e-12)
    assert figures["specificity"]["value"] == pytest.approx(1 - flagged[~sick].mean(), rel=1e-12)
    held_out = answer("card", str(folder / "model"), *options[2:], "--out", str(tmp_path / "own"))["card"]
    flagged, sick = np.exp(model.held_out.log_probs[:, 1]) >= 0.02, model.held_out.target == 1
    assert held_out["answers"][0]["figures"]["sensitivity"]["value"] == pytest.approx(flagged[sick].mean(), rel=1e-12)
    assert held_out["questions"][0]["prevalence"]["value"] == pytest.approx(model.population.population[1])
    moved = answer("card", str(folder / "model"), *options, "--out", str(tmp_path / "moved"))["card"]
    assert moved["questions"][0]["predicted_at"] == pytest.approx(model.population.population[1])
    assert invoke("card", str(folder / "model"), "--by", "clinic", "--out", str(tmp_path / "no")).exit_code == 2
