"""From a table to a model: columns as matrices, pipelines, corrections, the comparison at the population and the choice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from draws import assert_refused
from scipy.special import log_expit
from sklearn.base import clone
from sklearn.model_selection import PredefinedSplit
from tables import people

from rightloss import Prevalence, retarget
from rightloss.calibration.auto import expected_gain, score
from rightloss.calibration.held_out import HeldOut
from rightloss.sklearn import PrevalenceCorrectedClassifier
from rightloss.sklearn.folds import GivenRows
from rightloss.tabular import column_specs, fit_table
from rightloss.tabular.columns import Kind
from rightloss.tabular.fit import (
    ComparedRows,
    CrossFit,
    LabelledTable,
    TableCandidate,
    compared_rows,
    corrected,
    correction_of,
    cross_fit,
    simplest,
)
from rightloss.tabular.pipelines import (
    BoostingPipeline,
    LinearPipeline,
    Pipeline,
    boosting_matrix,
    check_columns,
    linear_matrix,
    stratified_rows,
)

# Columns as matrices.

KINDS: dict[str, Kind] = {"age": "number", "sex": "category", "smoker": "boolean", "seen": "date"}


@pytest.fixture
def table() -> pd.DataFrame:
    rng, rows = np.random.default_rng(0), 300
    columns: dict[str, Any] = {"age": rng.normal(60, 10, rows), "sex": rng.choice(["f", "m"], rows)}
    columns |= {"smoker": rng.random(rows) < 0.3, "seen": pd.date_range("2020-01-01", periods=rows).strftime("%Y-%m-%d")}
    frame = pd.DataFrame(columns)
    frame.loc[:9, "age"] = np.nan
    frame.loc[10:14, "sex"] = None
    frame.loc[15, "sex"] = "x"
    return frame


def test_columns_are_standardised_and_missing_cells_have_a_column_or_stay_missing(table: pd.DataFrame) -> None:
    specs = column_specs(table, KINDS)
    matrix, trees = linear_matrix(table, specs), boosting_matrix(table, specs)
    assert matrix.shape == (300, sum(spec.linear_width for spec in specs)) == (300, 2 + 4 + 1 + 1)
    known = matrix[10:, 0]
    np.testing.assert_allclose([known.mean(), known.std()], [0, 1], atol=1e-5)
    median = (table["age"].median() - table["age"].mean()) / table["age"].std(ddof=0)
    np.testing.assert_allclose(matrix[:10, 0], median, rtol=1e-5)
    np.testing.assert_array_equal(matrix[:, 1], table["age"].isna())
    assert np.isfinite(matrix).all()
    np.testing.assert_array_equal(np.isnan(trees[:, 0]), table["age"].isna())
    assert trees.dtype == np.float32
    assert np.all(np.diff(trees[:, 3]) > 0)  # dates in their order


def test_each_known_level_has_a_column_and_the_others_share_one(table: pd.DataFrame) -> None:
    specs, sex = column_specs(table, {"sex": "category"}), table["sex"]
    levels = specs[0].categories
    assert set(levels) == {"f", "m"}
    expected = np.stack([sex == levels[0], sex == levels[1], sex == "x", sex.isna()], 1)
    np.testing.assert_array_equal(linear_matrix(table, specs), expected)
    codes = boosting_matrix(table, specs)[:, 0]
    assert np.isnan(codes[10:15]).all()
    np.testing.assert_array_equal(codes[15:], expected[15:].argmax(1))
    many = np.repeat(np.arange(150), np.arange(150) + 10).astype(str)
    spec = column_specs(pd.DataFrame({"c": many}), {"c": "category"})[0]
    assert set(spec.categories) == {str(code) for code in range(50, 150)}  # the most frequent hundred
    assert set(spec.pooled) == {str(code) for code in range(50)}


def test_columns_are_read_by_name_whatever_their_order_or_dtype(table: pd.DataFrame) -> None:
    specs = column_specs(table, KINDS)
    other = table[["seen", "smoker", "sex", "age"]].astype({"age": object, "smoker": int})
    other["age"] = other["age"].map(str).replace("nan", "")
    np.testing.assert_array_equal(linear_matrix(other, specs), linear_matrix(table, specs))
    levels = column_specs(pd.DataFrame({"c": ["1", "2"] * 20}), {"c": "category"})
    first, second = (linear_matrix(pd.DataFrame({"c": cells}), levels) for cells in ([1.0, 2.0, np.nan], ["1", "2", None]))
    np.testing.assert_array_equal(first, second)


def test_cells_unlike_those_of_training_are_counted_and_columns_must_be_there_once(table: pd.DataFrame) -> None:
    specs = column_specs(table, KINDS)
    assert check_columns(table, specs) == []  # the rare level x was there at training
    odd = table.head(5).assign(age=["1", "old", "older", None, "3"], sex=["f", "q", "q", "q", None], seen="today", extra=1)
    found = {finding.column: finding for finding in check_columns(odd, specs, ["cancer"])}
    assert "2 of 5 cells are no numbers" in found["age"].message
    assert "3 of 5 cells have a category" in found["sex"].message
    assert "5 of 5 cells are no dates" in found["seen"].message
    assert (found[None].level, "extra" in found[None].message) == ("note", True)
    assert_refused(lambda: check_columns(table.drop(columns="age"), specs), r"\['age'\] are missing")
    assert_refused(lambda: check_columns(pd.concat([table, table["age"]], axis=1), specs), r"'age'.*more than once")


def test_numbers_are_standardised_alike_in_any_unit_and_stay_finite() -> None:
    frame = pd.DataFrame({"x": [-180.0, 3.0, 7.5, np.nan, 250.0, 3.0]})
    expected = linear_matrix(frame, column_specs(frame, {"x": "number"}))
    for unit in (2.0**-400, 2.0**400, 2.0**1015):  # the last gives numbers near the largest
        specs = column_specs(frame * unit, {"x": "number"})
        matrix, trees = linear_matrix(frame * unit, specs), boosting_matrix(frame * unit, specs)[:, 0]
        assert np.isfinite([specs[0].mean, specs[0].scale, specs[0].fill, *matrix.ravel(), *np.delete(trees, 3)]).all()
        if unit < 2.0**1000:
            np.testing.assert_allclose(matrix, expected, rtol=1e-6)
            np.testing.assert_allclose(np.delete(trees, 3), np.delete(expected[:, 0], 3), rtol=1e-6)
    specs = column_specs(pd.DataFrame({"age": [1.0, 2.0, 3.0]}), {"age": "number"})
    assert np.isfinite(linear_matrix(pd.DataFrame({"age": [1e300, -1e300]}), specs)).all()


# Rows and folds.


def table_of(odds: np.ndarray) -> np.ndarray:
    return np.stack([log_expit(-odds), log_expit(odds)], 1)


def labelled(x: np.ndarray, codes: np.ndarray, groups: np.ndarray | None = None) -> LabelledTable:
    frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(x.shape[1])])
    return LabelledTable(frame, column_specs(frame, dict.fromkeys(frame, "number")), codes, groups)


def normal_classes(rows: int, cases: float = 0.5) -> tuple[np.ndarray, ComparedRows]:
    """x and the rows; the log-odds at equal classes are 1.5 x."""
    codes = (np.arange(rows) < cases * rows).astype(np.int64)
    x = np.random.default_rng(0).normal(size=rows) + 1.5 * (codes - 0.5)
    return x, compared_rows(labelled(x[:, None], codes), 5, 0, rows)


def crossed(odds: np.ndarray, pipeline: Pipeline | None = None) -> CrossFit:
    return CrossFit(pipeline or LinearPipeline(), [], table_of(odds), 0.0)


def test_drawn_rows_keep_the_rare_class_and_the_weighted_mix_and_a_small_table_is_taken_whole() -> None:
    codes = np.repeat([0, 1, 2], [9000, 900, 100])
    rows, weights = stratified_rows(codes, 1000, seed=0)
    assert np.bincount(codes[rows]).tolist() == [450, 450, 100]
    np.testing.assert_allclose(np.bincount(codes[rows], weights) / len(rows), [0.9, 0.09, 0.01])
    assert weights.mean() == pytest.approx(1)
    assert len(np.unique(rows)) == len(rows)
    rows, weights = stratified_rows(np.array([0, 1, 0, 1, 1]), 100, seed=0)
    assert (rows.tolist(), weights.tolist()) == ([0, 1, 2, 3, 4], [1.0] * 5)


def test_folds_never_split_a_group_spread_the_classes_and_are_no_more_than_rows_of_a_class() -> None:
    rng = np.random.default_rng(0)
    codes, groups = (rng.random(2000) < 0.1).astype(np.int64), rng.integers(0, 200, 2000)
    folds = compared_rows(labelled(rng.normal(size=(2000, 1)), codes, groups), 5, 0, 5000).folds
    assert all(len(np.unique(folds[groups == group])) == 1 for group in np.unique(groups))
    assert np.bincount(folds[codes == 1], minlength=5).min() > 20
    x, codes = np.zeros((53, 1)), np.array([0] * 50 + [1] * 3)
    few = compared_rows(labelled(x, codes), 5, 0, 100)
    assert len(few.splits) == 3
    assert "3 folds instead of 5" in few.notes[0]
    one_group = labelled(x, codes, np.array([0] * 50 + [1] * 3))
    assert_refused(lambda: compared_rows(one_group, 5, 0, 100), "every class in two groups")


# Pipelines.


def three_columns(rows: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    codes = np.arange(rows) % num_classes
    shift = codes[:, None] * np.array([1.0, 0, -1])
    return (np.random.default_rng(0).normal(size=(rows, 3)) + shift).astype(np.float32), codes


@pytest.mark.long
@pytest.mark.parametrize(("pipeline", "num_classes"), [(LinearPipeline(), 3), (BoostingPipeline(), 2), (BoostingPipeline(), 3)])
def test_a_pipeline_predicts_log_probabilities_that_hold_out_of_fold(pipeline: Pipeline, num_classes: int) -> None:
    if isinstance(pipeline, BoostingPipeline):
        pytest.importorskip("lightgbm")
    x, codes = three_columns(1500, num_classes)
    found = cross_fit(pipeline, compared_rows(labelled(x, codes), 3, 0, 5000))
    np.testing.assert_allclose(np.exp(found.log_probs).sum(1), 1)
    # two classes at a distance of √2, three at 2√2 from first to last: the Bayes-optimal log-likelihood by Monte Carlo
    rng = np.random.default_rng(1)
    y = rng.integers(0, num_classes, 200_000)
    z = rng.normal(size=200_000) + np.sqrt(2) * y
    scores = np.sqrt(2) * z[:, None] * np.arange(num_classes) - np.arange(num_classes) ** 2
    best = np.mean(scores[np.arange(len(y)), y] - np.log(np.exp(scores).sum(1)))
    own = found.log_probs[np.arange(len(codes)), codes]
    error = own.std() / np.sqrt(len(own))
    assert own.mean() < best + 4 * error
    assert own.mean() > best - 4 * error - (0.0 if isinstance(pipeline, LinearPipeline) else 0.06)  # trees learn a line slowly


@pytest.mark.long
@pytest.mark.parametrize("pipeline", [LinearPipeline(), BoostingPipeline()])
def test_weights_stand_for_rows(pipeline: Pipeline) -> None:
    """Half of one class at twice the weight gives nearly the mix of all of it."""
    if isinstance(pipeline, BoostingPipeline):
        pytest.importorskip("lightgbm")
    x, codes = three_columns(3000, 2)
    kept = (codes == 1) | (np.arange(3000) % 4 == 0)
    weights = np.where(codes == 0, 2.0, 1.0)[kept]
    rows = GivenRows(x[kept], codes[kept], codes[kept], weights)
    fitted = pipeline.tuned(rows).fit(x[kept], codes[kept], weights)
    assert np.exp(fitted.predict_log_proba(x)).mean(0)[1] == pytest.approx(0.5, abs=0.02)


def test_a_penalty_is_chosen_where_there_are_rows_to_choose_it_on() -> None:
    x, codes = three_columns(400, 2)
    weights = np.ones(400)
    assert LinearPipeline().tuned(GivenRows(x, codes, codes, weights)).C > 0.003
    noise = np.random.default_rng(2).normal(size=(400, 30)).astype(np.float32)
    assert LinearPipeline().tuned(GivenRows(noise, codes, codes, weights)).C == 0.003
    few = np.array([0, 1, 2, 4])  # one row of class 1
    assert LinearPipeline(C=0.7).tuned(GivenRows(x[few], codes[few], codes[few], np.ones(4))).C == 0.7


# Corrections and the choice.


def test_the_closed_form_is_retarget_and_uncorrected_predictions_are_shown() -> None:
    x, some = normal_classes(1000)
    made, _ = corrected(crossed(1.5 * x), some, Prevalence.binary(0.01, 0.5))
    assert [each.method for each in made] == ["closed_form", "affine", "beta", "none"]
    assert [each.name for each in made] == [f"linear, {name}" for name in ("closed form", "affine", "beta", "uncorrected")]
    np.testing.assert_allclose(made[0].log_probs, retarget(table_of(1.5 * x), 0.5, 0.01))
    assert "none" not in [each.method for each in corrected(crossed(x), some, Prevalence.binary(0.5, 0.5))[0]]
    x, some = normal_classes(100, 0.1)  # too few of a class for a beta calibration
    assert [each.method for each in corrected(crossed(x), some, Prevalence.binary(0.1, 0.1))[0]] == ["closed_form", "affine"]


def test_boosting_is_chosen_if_it_is_better_by_more_than_a_standard_error() -> None:
    x, some = normal_classes(2000)
    right, population = 1.5 * x, np.array([0.5, 0.5])
    best = TableCandidate("boosting", crossed(right, BoostingPipeline()), "closed_form", table_of(right))
    near, far = right.copy(), right + np.random.default_rng(1).normal(size=2000)
    near[0] += 1.0  # a case: higher by less than 1
    near[-1] += 10.0  # no case: lower by more, so that two rows, opposite to each other, make all of the difference
    linear = TableCandidate("linear", crossed(near), "closed_form", table_of(near))
    own = score({"near": linear.log_probs, "best": best.log_probs}, some.held_out(best.log_probs))
    assert expected_gain(own["near"], some.held_out(best.log_probs), population)[0] < own["best"].mean()
    assert simplest([linear, best], some, population) is linear
    assert simplest([replace(linear, log_probs=table_of(far)), best], some, population) is best
    assert simplest([], some, population) is None


def test_rows_of_a_group_count_as_one_draw() -> None:
    codes, values, numbers = np.tile([0, 1], 100), np.random.default_rng(0).normal(size=200), np.arange(200)

    def error(copies: int, groups: np.ndarray | None) -> float:
        data = HeldOut(np.zeros((200 * copies, 2)), np.tile(codes, copies), groups)
        return expected_gain(np.tile(values, copies), data, np.array([0.7, 0.3]))[1]

    assert error(1, numbers) == pytest.approx(error(1, None))
    assert error(3, np.tile(numbers, 3)) == pytest.approx(error(1, None), rel=0.01)
    assert error(3, None) == pytest.approx(error(1, None) / np.sqrt(3), rel=0.01)


def test_a_correction_is_applied_before_predictions_are_moved() -> None:
    x, some = normal_classes(2000, 0.3)
    codes, raw = some.table.codes, table_of(3 * x + 1)
    plain, affine = (correction_of(method, raw, codes, np.array([0.7, 0.3])) for method in ("closed_form", "affine"))
    np.testing.assert_array_equal(plain.apply(raw), raw)
    np.testing.assert_allclose(np.exp(affine.apply(raw)).mean(0), [0.7, 0.3])
    np.testing.assert_allclose(affine.sampling, [0.7, 0.3])


# The whole of it.


@pytest.mark.long
@pytest.mark.parametrize(("family", "population"), [("linear", 0.02), ("boosting", 0.5)])
def test_the_model_is_the_corrected_classifier_around_the_same_pipeline_and_folds(family: str, population: float) -> None:
    """So the model that is kept has the correction that was compared."""
    if family == "boosting":
        pytest.importorskip("lightgbm")
    methods = set()
    for distance in (0.4, 3.0):
        frame = people(500, 0.4, distance=distance)
        frame["x"] = np.exp(frame["x"])
        model = fit_table(frame, target="cancer", population=population, candidates=[family])
        if model.fitted is None or model.folds is None:
            continue
        matrix, codes = model.fitted.encode(frame, model.columns), model.labels(frame)
        cv = PredefinedSplit(model.folds.numbers)
        other: Any = PrevalenceCorrectedClassifier(clone(model.fitted), population, cv=cv).fit(matrix, codes)
        methods.add(other.method_)
        np.testing.assert_allclose(other.predict_proba(matrix), np.exp(model.predict_log_proba(frame)), rtol=0, atol=1e-8)
        np.testing.assert_allclose(other.held_out_.log_probs, model.held_out.log_probs, atol=1e-8)
    assert methods & {"affine", "beta"}, methods


@pytest.mark.long
def test_the_same_seed_gives_the_same_model_and_each_step_is_counted() -> None:
    pytest.importorskip("lightgbm")
    frame, calls = people(300), list[tuple[float, int, str]]()
    settings: dict[str, Any] = {"target": "cancer", "population": 0.1, "folds": 2, "seed": 4}
    first, second = (fit_table(frame, **settings, progress=lambda *each: calls.append(each)) for _ in range(2))
    np.testing.assert_array_equal(first.predict_log_proba(frame), second.predict_log_proba(frame))
    pd.testing.assert_frame_equal(first.comparison.drop(columns="seconds"), second.comparison.drop(columns="seconds"))
    assert [call[:2] for call in calls] == [(step, 4) for step in range(5)] * 2


@pytest.mark.long
def test_a_large_table_is_compared_on_some_rows_and_fitted_to_all_that_have_a_label() -> None:
    frame = people(4000, 0.02)
    frame.loc[frame.index[frame["cancer"] == "no"][:20], "cancer"] = None
    model = fit_table(frame, target="cancer", population=None, candidates=["linear"], max_compare_rows=1000, folds=2)
    assert np.bincount(model.held_out.target).tolist() == [920, 80]
    assert model.rows == 3980
    # the weights keep the mix: predictions out of fold are right on average
    held = np.exp(model.held_out.log_probs[:, 1])
    mean = np.mean([0.98 * held[model.held_out.target == 0].mean() + 0.02 * held[model.held_out.target == 1].mean()])
    assert mean == pytest.approx(0.02, abs=0.008)  # 0.08 without the weights
    assert any("1,000 of 3,980" in finding.message for finding in model.findings)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": "nope"}, "'nope'"),
        ({"candidates": ["forest"]}, "linear"),
        ({"candidates": []}, "linear"),
        ({"folds": 1}, "`folds`"),
        ({"max_compare_rows": 3}, "max_compare_rows"),
        ({"population": "unknown"}, "unlabelled rows from which"),
        ({"population": None, "unlabelled": people(9)}, "a population with unlabelled rows"),
        ({"unlabelled": people(9)[:0]}, "a table without any"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_fitted(options: dict[str, Any], words: str) -> None:
    assert_refused(lambda: fit_table(people(100), **{"target": "cancer", "population": 0.1, **options}), words)


def test_without_lightgbm_linear_models_are_compared_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rightloss.tabular.pipelines._has_lightgbm", lambda: False)
    with pytest.raises(ImportError, match="Boosting needs LightGBM"):
        fit_table(people(100), target="cancer", population=0.1, candidates=["boosting"])
    beta = Prevalence.beta(2.0, 98.0)
    model = fit_table(people(100), target="cancer", population=beta, folds=2)
    assert "boosting" not in set(model.comparison["family"])
    assert any("LightGBM" in finding.message for finding in model.findings)
    assert model.population.is_uncertain
    assert float(model.population.population[1]) == pytest.approx(0.02)


@pytest.mark.long
def test_groups_are_never_in_both_parts_of_a_fold() -> None:
    """A column that names the group says nothing of new groups, and is not to look as if it did."""
    pytest.importorskip("lightgbm")
    rng = np.random.default_rng(0)
    site = np.repeat(np.arange(60), 10)
    sick = np.repeat(rng.random(60) < 0.5, 10)
    frame = pd.DataFrame({"level": site % 60 * 1.0 + 0.01 * rng.normal(size=600), "site": site, "sick": sick.astype(int)})
    honest = fit_table(frame, target="sick", population=None, group="site", candidates=["boosting"], folds=3)
    naive = fit_table(frame, target="sick", population=None, leave_out=["site"], candidates=["boosting"], folds=3)
    best = [model.comparison.set_index("candidate")["skill"].drop("always answering π").max() for model in (honest, naive)]
    assert best[0] < 0.1 < 0.4 < best[1]
