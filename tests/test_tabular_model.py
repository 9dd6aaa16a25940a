"""Models of tables: what they predict at a population, and their folders."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from draws import assert_refused
from scipy import special, stats
from tables import people

from rightloss import Prevalence
from rightloss.calibration import fit_calibration
from rightloss.cli.tables import check_output
from rightloss.metrics import evaluate
from rightloss.serialization import read_file, write_file
from rightloss.tabular import TableModel, TableWarning, check_destination, column_specs, fit_table, load_model
from rightloss.tabular.columns import kind_of, labels_of
from rightloss.tabular.fit import LabelledTable, correction_of
from rightloss.tabular.folder import _ARRAYS_FORMAT
from rightloss.tabular.limits import odds_ratios


@pytest.fixture(scope="module")
def linear() -> TableModel:
    return fit_table(people(), target="cancer", population=0.01, candidates=["linear"])


@pytest.fixture(scope="module")
def trees() -> TableModel:
    pytest.importorskip("lightgbm")
    frame = people().assign(site=np.arange(400) % 50)
    frame["x"] = frame["x"] ** 2 * np.where(frame["cancer"] == "yes", 1, -1)
    return fit_table(frame, target="cancer", population=0.2, group="site", candidates=["boosting"], folds=3)


@pytest.fixture(scope="module", params=["linear", "trees"])
def model(request: pytest.FixtureRequest) -> TableModel:
    found: TableModel = request.getfixturevalue(request.param)
    return found


@pytest.mark.long
def test_another_population_moves_the_log_odds_by_as_much(model: TableModel) -> None:
    frame = people(50, seed=9)
    low, high = (model.predict_log_proba(frame, population) for population in (0.001, {"yes": 0.5, "no": 0.5}))
    moved = (high[:, 1] - high[:, 0]) - (low[:, 1] - low[:, 0])
    np.testing.assert_allclose(moved, np.log(0.999 / 0.001))
    own = float(model.population.population[1])
    np.testing.assert_array_equal(model.predict_log_proba(frame), model.predict_log_proba(frame, own))


@pytest.mark.long
def test_a_folder_holds_the_same_model(model: TableModel, tmp_path: Path) -> None:
    model.save(tmp_path / "model", also={"report.html": "<p>ü"})
    loaded = load_model(tmp_path / "model")
    frame = people(100, seed=5)
    np.testing.assert_array_equal(loaded.predict_log_proba(frame), model.predict_log_proba(frame))
    assert loaded.predict(frame) == model.predict(frame)
    np.testing.assert_array_equal(loaded.predict_limits(frame), model.predict_limits(frame))
    pd.testing.assert_frame_equal(loaded.comparison, model.comparison)
    for each in ("target", "group", "classes_", "positive", "population", "columns", "family", "rows", "findings"):
        assert getattr(loaded, each) == getattr(model, each)
    np.testing.assert_array_equal(loaded.held_out.log_probs, model.held_out.log_probs)
    np.testing.assert_array_equal(loaded.held_out.target, model.held_out.target)
    assert (loaded.held_out.groups is None) == (model.group is None)
    assert (tmp_path / "model" / "report.html").read_text(encoding="utf-8") == "<p>ü"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.long
def test_the_chosen_candidate_has_the_figures_of_its_held_out_predictions(linear: TableModel) -> None:
    row = linear.comparison[linear.comparison["chosen"]].iloc[0]
    found = evaluate(linear.held_out.log_probs, linear.held_out.target, linear.population, intervals=None)
    assert row["expected_log_likelihood"] == found.expected_log_likelihood.value
    assert (row["auc"], row["skill"]) == (found.auc.value, found.skill.value)
    assert row["skill"] > 0
    uncorrected = linear.comparison.set_index("correction").loc["none"]
    assert uncorrected["skill"] < 0 < uncorrected["auc"]  # trained at 0.5, used at 0.01
    assert uncorrected["calibration_intercept"] < -3


@pytest.mark.long
def test_a_table_that_says_nothing_makes_a_model_that_answers_the_population(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.random.default_rng(3).normal(size=200), "y": np.arange(200) % 2})
    model = fit_table(frame, target="y", population=0.03, candidates=["linear"])
    assert model.family is None
    np.testing.assert_allclose(np.exp(model.predict_log_proba(frame)[:, 1]), 0.03)
    assert "always answering π" in model.findings[-1].message
    np.testing.assert_array_equal(model.predict_log_proba(frame), model.held_out.log_probs)  # to the bit
    model.save(tmp_path / "model")
    np.testing.assert_allclose(np.exp(load_model(tmp_path / "model").predict_log_proba(frame, 0.2)[:, 1]), 0.2)


@pytest.mark.long
def test_cells_that_training_did_not_have_are_warned_of_and_labels_have_the_models_numbers(linear: TableModel) -> None:
    frame = people(20, seed=2)
    with pytest.warns(TableWarning, match="'sex'.*20 of 20"):
        linear.predict_log_proba(frame.assign(sex="unknown"))
    with pytest.warns(TableWarning, match="'x'.*20 of 20"):
        assert np.isfinite(linear.predict_log_proba(frame.assign(x="?"))).all()
    assert_refused(lambda: linear.predict_log_proba(frame.drop(columns="noise")), "'noise'")
    assert linear.predict_log_proba(frame.head(0)).shape == (0, 2)
    np.testing.assert_array_equal(linear.labels(pd.DataFrame({"cancer": ["yes", None, "Yes", "no ", "NA"]})), [1, -1, 1, 0, -1])
    assert_refused(lambda: linear.labels(pd.DataFrame({"cancer": ["maybe", "no"]})), "'maybe'")
    assert_refused(lambda: linear.labels(pd.DataFrame({"x": [1]})), "'cancer'")


@pytest.mark.long
def test_an_existing_folder_is_refused_or_replaced_whole(linear: TableModel, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    linear.save(folder, also={"old.txt": "x"})
    assert_refused(lambda: linear.save(folder), "exists")
    linear.save(folder, overwrite=True)
    assert not (folder / "old.txt").exists()
    load_model(folder)
    assert_refused(lambda: check_destination(tmp_path / "no" / "model"), "there is none")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# By name: the files of others, and a change to the model.json of the model beside them, if there is one.
FOREIGN: dict[str, tuple[dict[str, str], Callable[[dict[str, Any]], Any] | None]] = {
    "photos": ({"a.jpg": "x"}, None),
    "a model.json that is no JSON": ({"model.json": "x"}, None),
    "notes beside a model": ({"notes.txt": "weeks of work"}, lambda facts: None),
    "an older model, and notes": ({"notes.txt": "x"}, lambda facts: facts.pop("also")),
    "a model.json that names files elsewhere": (
        {"../elsewhere.txt": "x", "other.txt": "x"},
        lambda facts: facts.update(also=["../elsewhere.txt", 3, ".", "runs"]),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", FOREIGN)
def test_a_folder_with_files_of_others_is_never_overwritten(name: str, linear: TableModel, tmp_path: Path) -> None:
    folder, (files, change) = tmp_path / "model", FOREIGN[name]
    folder.mkdir()
    if change is not None:
        linear.save(folder, overwrite=True)
        edited(change)(folder)
    for each, content in files.items():
        (folder / each).parent.mkdir(exist_ok=True)
        (folder / each).write_text(content)
    before = contents(tmp_path)
    for refused in (lambda: check_destination(folder, overwrite=True), lambda: linear.save(folder, overwrite=True)):
        assert_refused(refused, r"holds other files \(.*\): move them elsewhere, or choose another name")
    assert contents(tmp_path) == before


@pytest.mark.long
def test_an_older_model_with_its_report_and_an_empty_folder_are_overwritten(linear: TableModel, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    linear.save(tmp_path / "model", overwrite=True, also={"report.html": "x"})
    edited(lambda facts: facts.pop("also"))(tmp_path / "model")
    linear.save(tmp_path / "model", overwrite=True)
    assert sorted(contents(tmp_path)) == ["model/arrays.safetensors", "model/model.json"]
    (tmp_path / "latest").symlink_to(tmp_path / "model")
    linear.save(tmp_path / "latest", overwrite=True)
    assert not (tmp_path / "latest").is_symlink()
    load_model(tmp_path / "model")
    load_model(tmp_path / "latest")


def test_a_place_that_cannot_be_written_is_refused_before_a_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    with monkeypatch.context() as patch:  # root may write wherever others may not
        patch.setattr(os, "access", lambda path, mode: False)
        with pytest.raises(OSError, match=r"Expected a folder that can be written, but .*model cannot"):
            check_destination(tmp_path / "model", overwrite=True)

    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(OSError, match=r"Expected a folder that can be written, but .* cannot \(Permission denied\)"):
        check_destination(tmp_path / "new")
    with pytest.raises(OSError, match=r"Expected a folder that can be written"):
        check_output(tmp_path / "p.csv")


@pytest.mark.long
def test_a_save_that_fails_leaves_nothing(linear: TableModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rightloss.tabular.folder._facts", lambda model: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        linear.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], Any]:
    """Change model.json as a forger would, with a digest that is right."""

    def edit(folder: Path) -> None:
        facts = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        change(facts)
        facts.pop("sha256")
        facts["sha256"] = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        (folder / "model.json").write_text(json.dumps(facts), encoding="utf-8")

    return edit


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "no json": lambda folder: (folder / "model.json").unlink(),
    "NaN in json": lambda folder: (folder / "model.json").write_text('{"format": NaN}'),
    "another's json": lambda folder: (folder / "model.json").write_text("{}"),
    "json changed": lambda folder: (folder / "model.json").write_text(
        (folder / "model.json").read_text().replace('"rows": 400', '"rows": 401')
    ),
    "no arrays": lambda folder: (folder / "arrays.safetensors").unlink(),
    "arrays cut short": lambda folder: (folder / "arrays.safetensors").write_bytes(
        (folder / "arrays.safetensors").read_bytes()[:-8]
    ),
    "newer version": edited(lambda facts: facts.update(version=3)),
    "one class": edited(lambda facts: facts.update(classes=["no"])),
    "classes twice": edited(lambda facts: facts.update(classes=["no", "no"])),
    "population missing": edited(lambda facts: facts.pop("prevalence")),
    "population above 1": edited(lambda facts: facts["prevalence"].update(population=[0.5, 0.9])),
    "a column less": edited(lambda facts: facts["columns"].pop()),
    "scale of 0": edited(lambda facts: facts["columns"][0].update(scale=0)),
    "unknown key of a column": edited(lambda facts: facts["columns"][0].update(run="rm")),
    "unknown family": edited(lambda facts: facts.update(family="os.system")),
    "file outside": edited(lambda facts: facts["files"].update({"../secret": "x"})),
    "unknown correction": edited(lambda facts: facts.update(correction="os.system")),
    "positive unknown": edited(lambda facts: facts.update(positive="maybe")),
}


@pytest.mark.long
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_forged_folder_is_refused(linear: TableModel, tmp_path: Path, damage: str) -> None:
    linear.save(tmp_path / "model")
    DAMAGE[damage](tmp_path / "model")
    assert_refused(lambda: load_model(tmp_path / "model"), "Expected ")


@pytest.mark.long
def test_trees_that_do_not_fit_the_columns_are_refused(trees: TableModel, tmp_path: Path) -> None:
    trees.save(tmp_path / "model")
    shutil.copytree(tmp_path / "model", tmp_path / "other")
    edited(lambda facts: facts["columns"].pop())(tmp_path / "model")
    assert_refused(lambda: load_model(tmp_path / "model"), "trees")
    (tmp_path / "other" / "boosting.txt").write_text("tree\nversion=v4\n")
    assert_refused(lambda: load_model(tmp_path / "other"), r"boosting\.txt")


@pytest.mark.long
def test_a_folder_of_the_version_before_is_read(model: TableModel, tmp_path: Path) -> None:
    """Its correction is the closed form, or an affine one with a temperature; it has no models of the folds."""
    assert model.folds is not None
    kind = {"linear": "closed form"}.get(str(model.family), "affine")
    codes, rho, raw = model.held_out.target, model.sampling, model.folds.log_probs
    affine = fit_calibration(raw, codes, "affine", shrink=0.0)
    model.save(tmp_path / "model")
    arrays, _ = read_file(_ARRAYS_FORMAT, tmp_path / "model" / "arrays.safetensors", "numpy")
    corrections = ("slopes", "biases", "sampling")
    kept = {each: value for each, value in arrays.items() if each not in corrections and not each.startswith("folds.")}
    if kind == "affine":
        kept |= {"calibration.temperature": affine.temperature, "calibration.bias": affine.biases}
        kept["calibration.sampling"] = affine.sampling
    write_file(_ARRAYS_FORMAT, tmp_path / "model" / "arrays.safetensors", kept, {})
    digest = hashlib.sha256((tmp_path / "model" / "arrays.safetensors").read_bytes()).hexdigest()
    edited(lambda facts: facts.update(version=1, correction=kind))(tmp_path / "model")
    edited(lambda facts: facts["files"].update({"arrays.safetensors": digest}))(tmp_path / "model")
    loaded, frame = load_model(tmp_path / "model"), people(30, seed=9)
    same = replace(model, correction=affine if kind == "affine" else correction_of("closed_form", raw, codes, rho))
    np.testing.assert_allclose(loaded.predict_log_proba(frame, 0.3), same.predict_log_proba(frame, 0.3), rtol=1e-12)
    assert_refused(lambda: loaded.predict_limits(frame), r"Expected a model with the models of its folds, .*: fit it again")


# Limits of risks.


@pytest.mark.long
def test_limits_are_those_of_a_jackknife_by_folds(model: TableModel) -> None:
    frame = people(30, seed=9)
    assert model.folds is not None
    logits = []
    for fold, fitted in enumerate(model.folds.models):
        table = fitted.predict_log_proba(fitted.encode(frame, model.columns))
        codes, others = model.held_out.target, model.folds.numbers != fold
        mix = np.bincount(codes[others]) / others.sum()
        if model.correction is not None and model.correction.kind != "mean":
            table = fit_calibration(model.folds.log_probs[others], codes[others], model.correction.kind)(table)
        logits.append(table[:, 1] - table[:, 0] - special.logit(mix[1]) + special.logit(0.05))
    count = len(logits)
    error = np.sqrt((count - 1) / count * ((logits - np.mean(logits, axis=0)) ** 2).sum(0))
    middle = special.logit(np.exp(model.predict_log_proba(frame, 0.05)[:, 1]))
    reach = stats.t.isf(0.05, count - 1) * error
    low, high = model.predict_limits(frame, 0.05, level=0.9)
    np.testing.assert_allclose(special.logit(low[:, 1]), middle - reach, rtol=1e-6)
    np.testing.assert_allclose(special.logit(high[:, 1]), middle + reach, rtol=1e-6)
    np.testing.assert_allclose(low[:, 0], 1 - high[:, 1], atol=1e-12)


@pytest.mark.long
def test_a_model_that_always_answers_the_population_is_as_uncertain_as_that(linear: TableModel) -> None:
    frame, nothing = people(3), replace(linear, fitted=None, correction=None, folds=None)
    low, high = nothing.predict_limits(frame, 0.3)
    np.testing.assert_allclose(np.stack([low, high]), np.broadcast_to([0.7, 0.3], (2, 3, 2)))
    low, high = nothing.predict_limits(frame, Prevalence.beta(2.5, 48.5))
    np.testing.assert_allclose([low[0, 1], high[0, 1]], stats.beta(2.5, 48.5).ppf([0.025, 0.975]), rtol=1e-3)
    own = nothing.predict_limits(frame, Prevalence(linear.sampling, linear.sampling))
    width = special.logit(own[1][0, 1]) - special.logit(own[0][0, 1])
    no, yes = np.bincount(linear.held_out.target)
    assert width == pytest.approx(2 * stats.norm.isf(0.025) * np.sqrt(1 / no + 1 / yes))


@pytest.mark.long
def test_an_uncertain_population_widens_the_limits_as_draws_of_it_do(linear: TableModel) -> None:
    frame, draws = people(5, seed=9), np.random.default_rng(0).beta(2.5, 48.5, 200_000)
    mean = 2.5 / 51
    known, found = linear.predict_limits(frame, mean), linear.predict_limits(frame, Prevalence.beta(2.5, 48.5))
    z = np.random.default_rng(1).normal(size=len(draws))
    for row in range(len(frame)):
        middle, end = special.logit(known[0][row, 1]), special.logit(known[1][row, 1])
        error = (end - middle) / 2 / stats.norm.isf(0.025)
        drawn = (middle + end) / 2 + error * z + special.logit(draws) - special.logit(mean)
        # 200,000 draws: the standard error of a quantile is below 0.01
        np.testing.assert_allclose(
            special.logit([found[0][row, 1], found[1][row, 1]]), np.quantile(drawn, [0.025, 0.975]), atol=0.04
        )


# Odds ratios.


def cells(counts: dict[tuple[str, str], int]) -> pd.DataFrame:
    """A table with these numbers of rows by sex and class, in random order."""
    rows = [pair for pair, count in counts.items() for _ in range(count)]
    return pd.DataFrame(rows, columns=["sex", "cancer"]).sample(frac=1, random_state=0, ignore_index=True)


@pytest.mark.long
def test_three_classes_have_odds_ratios_against_the_first_and_limits_of_each_risk() -> None:
    counts = {("m", "a"): 60, ("f", "a"): 30, ("m", "b"): 50, ("f", "b"): 90, ("m", "c"): 20, ("f", "c"): 70}
    mix = {"a": 0.1, "b": 0.2, "c": 0.7}
    model = fit_table(cells(counts), target="cancer", population=mix, candidates=["linear"])
    assert model.odds_ratios is not None
    for label, row in zip("bc", model.odds_ratios.to_dict("records"), strict=True):
        four = [counts[sex, each] for sex in "mf" for each in (label, "a")]
        assert (row["class"], row["change"]) == (label, "m against f")
        ratio, error = four[0] * four[3] / (four[1] * four[2]), np.sqrt(sum(1 / count for count in four))
        expected = ratio * np.exp([0, -1.959964 * error, 1.959964 * error])  # Woolf's, of the two-by-two table
        np.testing.assert_allclose([row["odds_ratio"], row["low"], row["high"]], expected, rtol=1e-3)
    frame = pd.DataFrame({"sex": ["m", "f"]})
    risk, (low, high) = np.exp(model.predict_log_proba(frame)), model.predict_limits(frame)
    assert ((low < risk) & (risk < high)).all()
    wider = model.predict_limits(frame, Prevalence.dirichlet([5, 10, 35]))
    assert ((wider[0] < low) & (high < wider[1])).all()


def ratios(frame: pd.DataFrame, groups: np.ndarray | None = None) -> tuple[Any, list[str]]:
    """The odds ratios of the columns beside the class."""
    kinds = {name: kind_of(frame[name]) for name in frame if name != "cancer"}
    labels = labels_of(frame["cancer"])
    return odds_ratios(LabelledTable(frame, column_specs(frame, kinds), labels.codes, groups), labels.classes)


def test_odds_ratios_of_a_number_are_for_a_round_step_whatever_its_unit() -> None:
    first, second = (ratios(people().assign(x=lambda f, s=s: 60 + 8 * s * f["x"]))[0].iloc[0] for s in (1, 365.25))
    assert (first["change"], second["change"]) == ("+10", "+5000")
    assert np.log(second["low"]) * 365.25 / 5000 == pytest.approx(np.log(first["low"]) / 10, rel=1e-4)


def test_copies_of_rows_in_one_group_add_nothing_to_odds_ratios() -> None:
    frame, site = people(200), np.arange(200)
    twice = pd.concat([frame, frame], ignore_index=True)
    once, grouped, alone = (ratios(each, of)[0] for each, of in ((frame, site), (twice, np.tile(site, 2)), (twice, None)))
    np.testing.assert_allclose(grouped[["odds_ratio", "low", "high"]], once[["odds_ratio", "low", "high"]], rtol=1e-4)
    assert (np.log(alone["high"] / alone["low"]) < 0.8 * np.log(once["high"] / once["low"])).all()


def test_columns_that_follow_from_others_and_separated_classes_have_no_odds_ratio_and_it_is_said_why() -> None:
    none, notes = ratios(people(100, distance=40.0))
    assert none is None
    assert "no odds ratios, since the columns separate" in notes[0]
    many = pd.DataFrame(np.random.default_rng(0).normal(size=(400, 300))).add_prefix("x")
    assert ratios(many.assign(cancer=people()["cancer"])) == (None, ["no odds ratios, since there would be 300 of them."])
    frame = people().assign(double=lambda f: 2 * f["x"] + 1, also=lambda f: f["sex"].map({"f": "here", "m": "there"}))
    frame["late"] = pd.date_range("2020-01-01", periods=400)[np.random.default_rng(0).permutation(400)]
    frame["smoker"] = np.random.default_rng(1).choice(np.array([True, False, None], dtype=object), 400)
    found, _ = ratios(frame)
    assert list(found["column"]) == ["x", "noise", "sex", "late", "smoker", "smoker"]
    assert list(found["change"])[3:] == ["+100 days", "true against false", "missing against false"]


def test_a_row_of_a_table_is_comparable_with_a_held_out_row_of_the_same_fold(model: TableModel, tmp_path: Path) -> None:
    """The model of a fold gives a row of its test part the same prediction as out of fold, the one of all rows does not."""
    model.save(tmp_path / "model")
    frame = people().assign(site=np.arange(400) % 50)
    if model.family == "boosting":
        frame["x"] = frame["x"] ** 2 * np.where(frame["cancer"] == "yes", 1, -1)
    for each in (model, load_model(tmp_path / "model")):
        found = each.compared(each.comparable_log_probs(frame))
        assert found.folds is not None
        same = found.folds[0][each.held_out.rows] == found.folds[1]
        assert same.any()
        np.testing.assert_allclose(found.log_probs[each.held_out.rows][same], found.held_out[same], rtol=1e-6, atol=1e-9)
        other = found.log_probs[each.held_out.rows][~same] - found.held_out[~same]
        assert np.abs(other).max() > 1e-3
