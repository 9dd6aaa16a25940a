"""The commands for tables: check → fit → predict → evaluate → prevalence, and what they refuse or warn of."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import answer, invoke, killed, ran, refused
from draws import unchecked_types
from table_files import people, write_people

from rightloss import Prevalence, retarget
from rightloss.cli.population import parse_population
from rightloss.metrics import evaluate
from rightloss.tabular import fit_table, load_model, read_table

FIT = ["--target", "cancer", "--positive", "yes", "--population", "0.01", "--folds", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data.csv, and the model that `fit` made of it."""
    found = tmp_path_factory.mktemp("table")
    write_people(found / "data.csv")
    done = ran("fit", str(found / "data.csv"), *FIT, "--group", "patient", "--out", str(found / "model"))
    (found / "printed.txt").write_text(done.stdout)
    return found


@pytest.fixture(scope="module")
def model(folder: Path) -> str:
    return str(folder / "model")


def next_command(printed: str) -> list[str]:
    """Return the arguments of the command after "Next:", as a shell would read it."""
    _, _, line = printed.partition("Next:\n")
    words = shlex.split(line.strip())
    assert words[0] == "rightloss"
    return words[1:]


# From a table to a model.


@pytest.mark.long
def test_check_says_what_the_table_holds_and_the_next_command_fits_it(tmp_path: Path) -> None:
    path = write_people(tmp_path / "my data.csv", share=0.25)
    first = invoke("check", str(path))
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
    ran(*words[:-1], str(tmp_path / "model"), "--folds", "2")
    assert load_model(tmp_path / "model").population.population[1] == pytest.approx(0.02)


@pytest.mark.long
def test_check_warns_of_each_odd_column_and_leaves_out_a_leak_in_the_next_command(tmp_path: Path) -> None:
    odd: dict[str, Any] = {
        "age": lambda f: [*f["age"].astype(str)[:-3], "?", "unknown", "-"],
        "case_id": [f"A{i:05d}" for i in range(240)],
        "treated": lambda f: np.where(f["cancer"] == "yes", "T", "-"),
        "clinic": lambda f: ["=1+1", *f["clinic"][1:]],
        "years": lambda f: f["density"],
        "cancer": lambda f: [None, None, *f["cancer"][2:]],
    }
    write_people(tmp_path / "data.csv", **odd)
    words = ["text among", "identifier", "alone tells", "formula", "same as", "no label"]
    done = invoke("check", str(tmp_path / "data.csv"), "--target", "cancer")
    for column, text in zip(odd, words, strict=True):
        (start,) = [place.start() for place in re.finditer(f"^warning: column '{column}'", done.stdout, re.M)]
        assert text in " ".join(done.stdout[start:].split())[:200], column
    assert "--leave-out treated" in done.stdout
    found = answer("check", tmp_path / "data.csv", "--target", "cancer")["findings"]
    assert {*odd} <= {each["column"] for each in found if each["level"] == "warning"}


@pytest.mark.long
def test_fit_prints_the_comparison_and_writes_a_model_with_its_report(folder: Path) -> None:
    printed = (folder / "printed.txt").read_text()
    model = load_model(folder / "model")
    for row in model.comparison.to_dict("records"):
        assert row["candidate"] in printed
    assert printed.count(" ✓ ") == 1
    assert "\n✓ is the model that is kept" in printed
    assert "Cross-validated at the population 0.01 (yes)" in printed
    assert "own mix" not in printed
    assert (folder / "model" / "report.html").read_text().startswith("<!doctype html>")
    assert next_command(printed)[:2] == ["predict", str(folder / "model")]
    assert sorted(path.name for path in folder.iterdir()) == ["data.csv", "model", "printed.txt"]
    before = (folder / "model" / "model.json").read_bytes()
    assert invoke("fit", str(folder / "data.csv"), *FIT, "--out", str(folder / "model")).exit_code == 2  # not overwritten
    assert (folder / "model" / "model.json").read_bytes() == before


@pytest.mark.long
def test_without_a_population_the_risks_are_at_the_files_own_mix_and_an_estimate_is_offered_first(tmp_path: Path) -> None:
    data, model = str(write_people(tmp_path / "data.csv", share=0.25)), str(tmp_path / "model")
    done = ran("fit", data, "--target", "cancer", "--positive", "yes", "--folds", "2", "--out", model)
    printed = " ".join(done.stdout.split())
    assert f"at this file's own mix, 25 % yes. If new rows have that mix: `rightloss predict {model} new.csv" in printed
    assert next_command(done.stdout) == ["prevalence", model, "new.csv"]


@pytest.mark.long
def test_three_classes_are_fitted_predicted_and_evaluated(tmp_path: Path) -> None:
    frame = people(300)
    frame["stage"] = np.where(frame["density"] > 1.4, "late", np.where(frame["cancer"] == "yes", "early", "none"))
    frame.drop(columns="cancer").to_csv(tmp_path / "data.csv", index=False)
    data, model, out = (str(tmp_path / name) for name in ("data.csv", "model", "p.csv"))
    population = "none=0.9,early=0.09,late=0.01"
    ran("fit", data, "--target", "stage", "--population", population, "--folds", "2", "--out", model)
    ran("predict", model, data, "--out", out)
    assert pd.read_csv(out)[["p_early", "p_late", "p_none"]].sum(axis=1).to_numpy() == pytest.approx(1)
    found = answer("evaluate", model, data)
    assert dict(zip(found["classes"], found["population"], strict=True)) == {"early": 0.09, "late": 0.01, "none": 0.9}
    assert found["figures"]["auc"]["value"] > 0.7
    assert invoke("predict", model, data, "--out", out, "--overwrite", "--threshold", "0.5").exit_code == 2
    assert invoke("evaluate", model, data, "--population", "0.1").exit_code == 2


# Predictions.


@pytest.mark.long
def test_predictions_are_those_of_the_model_beside_the_columns_that_were_there(model: str, tmp_path: Path) -> None:
    new = people(40, seed=1).drop(columns="cancer").assign(clinic="zürich", code="007")
    new.to_csv(tmp_path / "new.csv", index=False)
    out, arguments = tmp_path / "p.csv", ["predict", model, str(tmp_path / "new.csv")]
    found = answer(*arguments, "--out", out)
    written = pd.read_csv(out, dtype={"code": str})
    with pytest.warns(UserWarning, match="zürich"):
        expected = np.exp(load_model(model).predict_log_proba(read_table(tmp_path / "new.csv")))
    assert list(written.columns) == [*new.columns, "p_no", "p_yes", "predicted"]
    assert written["code"].eq("007").all()  # as it stands
    np.testing.assert_allclose(written[["p_no", "p_yes"]], expected, rtol=1e-12)
    assert found["mean"]["p_yes"] == pytest.approx(expected[:, 1].mean())
    assert (found["rows"], found["population"]) == (40, "0.01")
    assert shlex.split(found["next"])[1:] == ["prevalence", *arguments[1:]]
    printed = invoke(*arguments)
    assert (printed.exit_code, printed.stdout) == (0, out.read_text()), "without --out they are all of standard output"
    assert "40 rows predicted at the population 0.01 (yes)" in printed.stderr
    assert "Expected --out with --json" in invoke(*arguments, "--json").stderr


@pytest.mark.long
def test_another_population_a_threshold_and_the_columns_kept_are_obeyed(model: str, tmp_path: Path) -> None:
    path, out = write_people(tmp_path / "new.parquet", 40, seed=1), tmp_path / "p.parquet"
    options = ["--population", "no=3/4,yes=25%", "--threshold", "0.4", "--keep", "patient", "--out", str(out)]
    done = ran("predict", model, str(path), *options)
    written = pd.read_parquet(out)
    expected = np.exp(load_model(model).predict_log_proba(read_table(path), population=0.25))[:, 1]
    assert list(written.columns) == ["patient", "p_no", "p_yes", "predicted"]
    np.testing.assert_allclose(written["p_yes"], expected, rtol=1e-12)
    assert (written["predicted"] == np.where(expected >= 0.4, "yes", "no")).all()
    assert "prevalence" not in done.stdout  # it would be a circle: the population may be its estimate
    assert answer("predict", model, path, *options, "--overwrite")["next"] is None


@pytest.mark.long
def test_limits_are_written_beside_the_risks_and_it_is_said_what_they_allow_for(model: str, tmp_path: Path) -> None:
    path = write_people(tmp_path / "new.csv", 40, seed=1)
    arguments = ["predict", model, str(path), "--keep", "age", "--out", str(tmp_path / "p.csv"), "--overwrite"]
    known = answer(*arguments, "--level", "0.9")
    written = pd.read_csv(tmp_path / "p.csv")
    assert list(written.columns) == ["age", "p_no", "p_yes", "predicted", "low_no", "high_no", "low_yes", "high_yes"]
    low, high = load_model(model).predict_limits(read_table(path), level=0.9)
    np.testing.assert_allclose(written[["low_no", "low_yes"]], low, rtol=1e-12)
    np.testing.assert_allclose(written[["high_no", "high_yes"]], high, rtol=1e-12)
    assert "the population is taken as known" in known["limits_allow_for"]
    surveyed = answer(*arguments, "--level", "0.9", "--population", "3 of 300")
    assert "the uncertainty of the population" in surveyed["limits_allow_for"]
    assert "3 of 300, a mean of 0.01163" in " ".join(invoke(*arguments, "--population", "3 of 300").stdout.split())
    assert invoke(*arguments, "--level", "2").exit_code == 2


@pytest.mark.long
def test_what_parquet_has_no_type_for_is_written_as_text(model: str, tmp_path: Path) -> None:
    path = write_people(tmp_path / "new.csv", 3, id=[str(2**70), "3", ""], seen=[True, None, False])
    ran("predict", model, str(path), "--out", str(tmp_path / "p.parquet"))
    found = pd.read_parquet(tmp_path / "p.parquet")
    assert found["id"].tolist()[:2] == [str(2**70), "3"]
    assert found["seen"].tolist() == [True, None, False]


@pytest.mark.long
def test_a_table_with_a_finding_is_predicted_and_a_warning_is_printed(model: str, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_bytes(people(40).assign(note="é").to_csv(index=False).encode("cp1252"))
    done = ran("predict", model, str(tmp_path / "new.csv"), "--out", str(tmp_path / "p.parquet"))
    (finding,) = read_table(tmp_path / "new.csv").attrs["findings"]
    assert finding.message in done.stderr
    expected = np.exp(load_model(model).predict_log_proba(read_table(write_people(tmp_path / "plain.csv", 40))))
    np.testing.assert_allclose(pd.read_parquet(tmp_path / "p.parquet")[["p_no", "p_yes"]], expected, rtol=1e-9)


@pytest.mark.long
def test_what_training_did_not_have_and_what_a_spreadsheet_would_run_give_a_warning(model: str, tmp_path: Path) -> None:
    note = ["=HYPERLINK(1)", *["-5"] * 39]
    path = write_people(tmp_path / "new.csv", 40, clinic="west", age=["old", *["50"] * 39], note=note)
    done = invoke("predict", model, str(path), "--out", str(tmp_path / "p.csv"))
    assert done.exit_code == 0
    lines = done.stderr.splitlines()
    assert all(line.startswith("rightloss: warning: column ") for line in lines)
    assert {line.split()[3].rstrip(":") for line in lines} == {"'clinic'", "'age'", "'note'"}
    assert "column 'note': 1 cells" in done.stderr
    written = pd.read_csv(tmp_path / "p.csv")
    assert written["p_yes"].between(0, 1).all()
    assert written["note"].tolist()[:2] == ["'=HYPERLINK(1)", "-5"]


# Figures and estimates.


@pytest.mark.long
def test_evaluate_gives_the_figures_of_the_library(model: str, tmp_path: Path) -> None:
    path = write_people(tmp_path / "labelled.csv", 300, seed=2)
    frame = read_table(path)
    expected = evaluate(
        load_model(model).predict_log_proba(frame, population=0.05),
        (frame["cancer"] == "yes").to_numpy().astype(np.int64),
        0.05,
        threshold=0.1,
        groups=frame["patient"].to_numpy(),
    )
    options = ["--population", "5%", "--threshold", "0.1", "--group", "patient"]
    by_model = answer("evaluate", model, path, *options)
    for name in ("expected_log_likelihood", "auc", "ppv", "tpr", "calibration_slope", "net_benefit"):
        shown = by_model["figures"][name]
        assert (shown["value"], shown["low"], shown["high"]) == (expected[name].value, expected[name].low, expected[name].high)
    printed = invoke("evaluate", model, str(path), *options).stdout
    assert "150 no, 150 yes" in printed
    assert "At the population 0.05" in printed


@pytest.mark.long
@pytest.mark.parametrize("classes", [("FALSE", "TRUE"), ("a,b", 'a\r"b"\n,c')], ids=["truth values", "commas"])
def test_evaluate_reads_what_predict_wrote_and_finds_the_figures_of_the_model(classes: tuple[str, str], tmp_path: Path) -> None:
    frame, (no, yes) = people().assign(p_dose=np.arange(240) % 7), classes
    frame["cancer"] = frame["cancer"].map({"no": no, "yes": yes})
    frame.to_csv(tmp_path / "data.csv", index=False, lineterminator="\r\n")
    data, model = tmp_path / "data.csv", tmp_path / "model"
    settings: dict[str, Any] = {"population": 0.1, "positive": yes, "folds": 2, "candidates": ["linear"]}
    fit_table(read_table(data), target="cancer", **settings).save(model)
    expected = answer("evaluate", model, data)
    for ending in ("csv", "parquet"):
        ran("predict", str(model), str(data), "--out", str(tmp_path / f"p.{ending}"))
        options = ["--target", "cancer", "--positive", yes, "--population", "0.1"]
        found = answer("evaluate", tmp_path / f"p.{ending}", *options)
        for each, figure in expected["figures"].items():
            assert found["figures"][each]["value"] == pytest.approx(figure["value"], rel=1e-9), each


@pytest.mark.long
def test_the_prevalence_of_unlabelled_rows_is_found_and_goes_into_the_next_command(model: str, tmp_path: Path) -> None:
    path = tmp_path / "clinic.csv"
    people(3000, seed=3, share=0.2).drop(columns="cancer").to_csv(path, index=False)
    found = answer("prevalence", model, path)
    assert found["low"][1] < 0.2 < found["high"][1]
    assert found["high"][1] - found["low"][1] < 0.2
    assert found["label_shift_test"]["p_value"] > 0.001
    words = shlex.split(found["next"])[1:]
    assert words[:3] == ["predict", model, str(path)]
    assert float(words[words.index("--population") + 1]) == pytest.approx(found["population"][1], rel=1e-3)
    printed = invoke("prevalence", model, str(path)).stdout
    assert f"Label-shift test: not contradicted (p = {found['label_shift_test']['p_value']:.2g}). It cannot see" in printed
    assert found["learnt"] is None
    assert next_command(printed) == words
    people(2000, seed=4).drop(columns="cancer").assign(age=64.0, density=0.75).to_csv(path, index=False)  # of neither class
    assert "Label-shift test: do not rely on the estimate (p = " in invoke("prevalence", model, str(path)).stdout


@pytest.mark.long
def test_the_test_of_the_same_rows_does_not_depend_on_the_population_of_the_model(model: str, tmp_path: Path) -> None:
    path, fitted, rate = tmp_path / "clinic.csv", load_model(model), 1e-6
    people(3000, seed=3, share=0.2).drop(columns="cancer").to_csv(path, index=False)
    moved = retarget(fitted.held_out.log_probs, from_=fitted.population, to=rate)
    held_out = dataclasses.replace(fitted.held_out, log_probs=moved)
    elsewhere = Prevalence([1 - rate, rate], fitted.sampling)
    dataclasses.replace(fitted, population=elsewhere, held_out=held_out).save(tmp_path / "elsewhere")
    here, there = (answer("prevalence", each, path) for each in (model, tmp_path / "elsewhere"))
    assert there["population"] == pytest.approx(here["population"], abs=1e-6)
    for name in ("p_value", "condition", "error"):
        assert there["label_shift_test"][name] == pytest.approx(here["label_shift_test"][name], rel=1e-6)
    assert there["label_shift_test"]["well_conditioned"]


@pytest.mark.long
def test_a_card_of_a_model_is_that_of_its_predictions_of_labelled_or_held_out_rows(model: str, tmp_path: Path) -> None:
    path, fitted = write_people(tmp_path / "labelled.csv", 300, seed=2), load_model(model)
    options = ["--population", "0.3%-2%", "--threshold", "0.02"]
    found = answer("card", model, path, *options, "--by", "clinic", "--out", tmp_path / "card")["card"]
    flagged = np.exp(fitted.predict_log_proba(read_table(path), parse_population("0.3%-2%"))[:, 1]) >= 0.02
    sick = read_table(path)["cancer"] == "yes"
    figures = found["answers"][0]["figures"]
    assert figures["sensitivity"]["value"] == pytest.approx(flagged[sick].mean(), rel=1e-12)
    assert figures["specificity"]["value"] == pytest.approx(1 - flagged[~sick].mean(), rel=1e-12)
    held_out = answer("card", model, *options[2:], "--out", tmp_path / "own")["card"]
    flagged, sick = np.exp(fitted.held_out.log_probs[:, 1]) >= 0.02, fitted.held_out.target == 1
    assert held_out["answers"][0]["figures"]["sensitivity"]["value"] == pytest.approx(flagged[sick].mean(), rel=1e-12)
    assert held_out["questions"][0]["prevalence"]["value"] == pytest.approx(fitted.population.population[1])
    moved = answer("card", model, *options, "--out", tmp_path / "moved")["card"]
    assert moved["questions"][0]["predicted_at"] == pytest.approx(fitted.population.population[1])
    assert invoke("card", model, "--by", "clinic", "--out", str(tmp_path / "no")).exit_code == 2


# What is said is what can be typed.


@pytest.mark.long
def test_a_number_is_refused_if_no_label_is_plainly_positive_and_the_options_to_type_are_named(tmp_path: Path) -> None:
    frame = people(60)
    frame["out"] = np.where(frame["cancer"] == "yes", "default", "paid")
    frame.drop(columns="cancer").to_csv(tmp_path / "data.csv", index=False)
    arguments = ["fit", str(tmp_path / "data.csv"), "--target", "out", "--out", str(tmp_path / "model")]
    words = "--positive 'default' or --positive 'paid', or both frequencies, such as default=0.056,paid=0.944."
    refused(words, *arguments, "--population", "0.056")
    assert not (tmp_path / "model").exists()
    ran(*arguments, "--population", "default=0.056,paid=0.944", "--folds", "2")
    model = load_model(tmp_path / "model")
    assert model.population.population[model.classes_.index("default")] == pytest.approx(0.056)


@pytest.mark.long
def test_advice_names_the_options_of_the_running_command(tmp_path: Path) -> None:
    rng, sick = np.random.default_rng(0), np.arange(120) % 2
    frame = pd.DataFrame({"x": rng.normal(30 * sick, 1), "cancer": np.where(sick, "yes", "no")})
    frame.to_csv(tmp_path / "data.csv", index=False)
    data, model = str(tmp_path / "data.csv"), str(tmp_path / "model")
    fit_table(frame, target="cancer", population=0.05, folds=2, candidates=["linear"]).save(model)
    assert "--calibration 'mean'" in invoke("prevalence", model, data).stderr
    for advice in (["--calibration", "mean"], ["--method", "bbse"]):
        assert answer("prevalence", model, data, *advice)["population"] == pytest.approx([0.5, 0.5], abs=0.01)
    with unchecked_types():
        assert "Expected --method to be 'em', 'bbse'" in invoke("prevalence", model, data, "--method", "x").stderr
    dataclasses.replace(load_model(model), fitted=None, correction=None, folds=None).save(tmp_path / "none")
    assert "always answers its population" in invoke("prevalence", str(tmp_path / "none"), data).stderr
    three = invoke("check", data, "--target", "x", "--population", "0.1")
    assert "`" not in three.stderr
    unknown = ["predict", "model", "new.csv", "--out", str(tmp_path / "p.csv"), "--population"]
    done = invoke(*unknown, "Unknown")
    assert (done.exit_code, done.stderr.count("estimate it first: `rightloss prevalence MODEL DATA`")) == (2, 1)
    assert "estimate" not in invoke(*unknown, "2").stderr


# What is refused.


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


def changed(**columns: Any) -> Callable[[Path], object]:
    return lambda path: write_people(path, **columns)


REFUSED: dict[str, tuple[Callable[[Path], object], list[str], str]] = {
    "no such file": (lambda path: None, [], "Expected a file at data.csv, but there is none"),
    "one class": (changed(cancer="yes"), [], "two classes or more"),
    "a class of 0": (changed(), ["--population", "no=1,yes=0"], "positive for every class"),
    "a population above 1": (changed(), ["--population", "1.5"], "between 0 and 1"),
    "one fold": (changed(), ["--folds", "1"], "fold"),
    "a folder nowhere": (changed(), ["--out", "nowhere/model"], "make it first"),
    "a file as folder": (changed(), ["--out", "data.csv"], "is a file"),
    "no folder": (changed(), ["--out", ""], "--out model"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_learned_from_gives_one_line_and_writes_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make, options, words = REFUSED[name]
    make(Path("data.csv"))
    before = sorted(tmp_path.iterdir())
    refused(words, "fit", "data.csv", *FIT, "--out", "model", *options)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.long
def test_what_the_model_cannot_read_is_refused_and_nothing_is_written(model: str, tmp_path: Path) -> None:
    path, out = tmp_path / "new.csv", str(tmp_path / "p.csv")
    for make, words in (
        (text("age,clinic\n1,north\n"), "density"),
        (changed(p_yes=0.5), "p_yes"),
        (text("age,density,clinic\n"), "rows"),
    ):
        make(path)
        refused(words, "predict", model, path, "--out", out)
        assert [each.name for each in tmp_path.iterdir()] == ["new.csv"]
    changed(cancer=["maybe", *["no"] * 239])(path)
    for arguments, words in (
        (["evaluate", model, str(path)], "maybe"),
        (["evaluate", model], "a labelled table after the model's folder"),
        (["evaluate", model, str(path), "--score", "age"], "no --score"),
        (["evaluate", str(path), "--target", "cancer", "--population", "0.1"], "a column p_…"),
        (["evaluate", str(path), "--score", "age"], "--target and --population"),
        (["predict", str(tmp_path), str(path), "--out", out], "a model's folder"),
        (["predict", model, str(path), "--keep", "nobody", "--out", out], "--keep"),
    ):
        refused(words, *arguments)


@pytest.mark.long
def test_fit_that_is_killed_while_it_writes_leaves_no_model(tmp_path: Path) -> None:
    write_people(tmp_path / "data.csv", rows=4000)
    killed(["fit", "data.csv", *FIT, "--out", "model"], tmp_path, lambda: any(tmp_path.glob(".saving-*/*")))
    assert not (tmp_path / "model").exists()
