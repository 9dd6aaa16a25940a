"""Comparison of candidates at the population: rows, folds, pipelines, corrections and the choice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import log_expit
from sklearn.base import clone
from sklearn.model_selection import PredefinedSplit
from tables import people

from rightloss import Prevalence, retarget
from rightloss.calibration.choice import expected_gain, score
from rightloss.calibration.held_out import HeldOut
from rightloss.metrics import evaluate
from rightloss.sklearn import PrevalenceCorrectedClassifier
from rightloss.sklearn.folds import GivenRows
from rightloss.tabular import fit_table
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
from rightloss.tabular.pipelines import BoostingPipeline, LinearPipeline, Pipeline, column_specs, stratified_rows

BOTH = pytest.mark.parametrize("pipeline", [LinearPipeline(), BoostingPipeline()])


def table_of(odds: np.ndarray) -> np.ndarray:
    return np.stack([log_expit(-odds), log_expit(odds)], 1)


def labelled(x: np.ndarray, codes: np.ndarray, groups: np.ndarray | None = None) -> LabelledTable:
    frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(x.shape[1])])
    return LabelledTable(frame, column_specs(frame, dict.fromkeys(frame, "number")), codes, groups)


def normal_classes(rows: int, cases: float = 0.5, folds: int = 5) -> tuple[np.ndarray, ComparedRows]:
    """x and the rows; the log-odds at equal classes are 1.5 x."""
    codes = (np.arange(rows) < cases * rows).astype(np.int64)
    x = np.random.default_rng(0).normal(size=rows) + 1.5 * (codes - 0.5)
    return x, compared_rows(labelled(x[:, None], codes), folds, 0, rows)


def crossed(odds: np.ndarray, pipeline: Pipeline | None = None) -> CrossFit:
    return CrossFit(pipeline or LinearPipeline(), [], table_of(odds), 0.0)


# Rows and folds.


def test_drawn_rows_keep_the_rare_class_and_the_weighted_mix() -> None:
    codes = np.repeat([0, 1, 2], [9000, 900, 100])
    rows, weights = stratified_rows(codes, 1000, seed=0)
    assert np.bincount(codes[rows]).tolist() == [450, 450, 100]
    np.testing.assert_allclose(np.bincount(codes[rows], weights) / len(rows), [0.9, 0.09, 0.01])
    assert weights.mean() == pytest.approx(1)
    assert len(np.unique(rows)) == len(rows)


def test_a_small_table_is_taken_whole() -> None:
    rows, weights = stratified_rows(np.array([0, 1, 0, 1, 1]), 100, seed=0)
    np.testing.assert_array_equal(rows, np.arange(5))
    np.testing.assert_array_equal(weights, np.ones(5))


@pytest.mark.parametrize("seed", range(3))
def test_folds_never_split_a_group_and_spread_the_classes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes, groups = (rng.random(2000) < 0.1).astype(np.int64), rng.integers(0, 200, 2000)
    folds = compared_rows(labelled(rng.normal(size=(2000, 1)), codes, groups), 5, seed, 5000).folds
    assert all(len(np.unique(folds[groups == group])) == 1 for group in np.unique(groups))
    assert np.bincount(folds[codes == 1], minlength=5).min() > 20


def test_there_are_no_more_folds_than_rows_of_a_class() -> None:
    x, codes = np.zeros((53, 1)), np.array([0] * 50 + [1] * 3)
    few = compared_rows(labelled(x, codes), 5, 0, 100)
    assert len(few.splits) == 3
    assert "3 folds instead of 5" in few.notes[0]
    with pytest.raises(ValueError, match="Expected every class in two groups"):
        compared_rows(labelled(x, codes, np.array([0] * 50 + [1] * 3)), 5, 0, 100)


# Pipelines.


def three_columns(rows: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    codes = np.arange(rows) % num_classes
    shift = codes[:, None] * np.array([1.0, 0, -1])
    return (np.random.default_rng(0).normal(size=(rows, 3)) + shift).astype(np.float32), codes


@pytest.mark.long
@pytest.mark.parametrize("num_classes", [2, 3])
@BOTH
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
@BOTH
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


def test_a_calibration_undoes_a_wrong_slope_and_intercept_and_is_chosen() -> None:
    x, some = normal_classes(20_000)
    _, chosen = corrected(crossed(4 * x + 1), some, Prevalence.binary(0.01, 0.5))
    assert chosen is not None
    assert chosen.method in ("affine", "beta")
    right = retarget(table_of(1.5 * x), 0.5, 0.01)
    odds = chosen.log_probs[:, 1] - chosen.log_probs[:, 0]
    slope, intercept = np.polyfit(right[:, 1] - right[:, 0], odds, 1)
    # 20,000 rows: the standard errors of slope and intercept are about 0.02 and 0.05 (log-odds of −4.6 times that of the slope)
    assert slope == pytest.approx(1, abs=0.06)
    assert intercept == pytest.approx(0, abs=0.25)


def test_few_rows_of_a_class_have_no_beta_calibration() -> None:
    x, some = normal_classes(100, 0.1)
    made, _ = corrected(crossed(x), some, Prevalence.binary(0.1, 0.1))
    assert [each.method for each in made] == ["closed_form", "affine"]


def test_nothing_that_is_no_better_than_answering_the_population_is_chosen() -> None:
    x, some = normal_classes(2000)
    prevalence = Prevalence.binary(0.1, 0.5)
    assert corrected(crossed(-x), some, prevalence)[1] is None
    assert corrected(crossed(np.random.default_rng(1).normal(size=2000)), some, prevalence)[1] is None


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
    codes, values, pi = np.tile([0, 1], 100), np.random.default_rng(0).normal(size=200), np.array([0.7, 0.3])

    def error(copies: int, groups: bool) -> float:
        numbers = np.tile(np.arange(200), copies) if groups else None
        data = HeldOut(np.zeros((200 * copies, 2)), np.tile(codes, copies), numbers)
        return expected_gain(np.tile(values, copies), data, pi)[1]

    assert error(1, True) == pytest.approx(error(1, False))
    assert error(3, True) == pytest.approx(error(1, False), rel=0.01)
    assert error(3, False) == pytest.approx(error(1, False) / np.sqrt(3), rel=0.01)


def test_the_expected_gain_is_the_expected_log_likelihood_of_evaluate() -> None:
    x, some = normal_classes(500, 0.4)
    data, pi = some.held_out(table_of(1.5 * x)), np.array([0.95, 0.05])
    found = evaluate(data.log_probs, data.labels, pi, intervals=None).expected_log_likelihood.value
    assert expected_gain(score({"it": data.log_probs}, data)["it"], data, pi)[0] == pytest.approx(found)


# The same as the classifier of scikit-learn.


@pytest.mark.long
@pytest.mark.parametrize("population", [0.5, 0.02])
@pytest.mark.parametrize("family", ["linear", "boosting"])
def test_the_model_is_the_corrected_classifier_around_the_same_pipeline_and_folds(family: str, population: float) -> None:
    if family == "boosting":
        pytest.importorskip("lightgbm")
    methods = set()
    for distance in (0.4, 3.0):
        frame = people(500, 0.4, distance=distance)
        frame["x"] = np.exp(frame["x"])
        model = fit_table(frame, target="cancer", population=population, candidates=[family], group=None)
        if model.fitted is None or model.folds is None:
            continue
        matrix, codes = model.fitted.encode(frame, model.columns), model.labels(frame)
        cv = PredefinedSplit(model.folds.numbers)
        other: Any = PrevalenceCorrectedClassifier(clone(model.fitted), population, cv=cv).fit(matrix, codes)
        methods.add(other.method_)
        np.testing.assert_allclose(other.predict_proba(matrix), np.exp(model.predict_log_proba(frame)), rtol=0, atol=1e-8)
        np.testing.assert_allclose(other.held_out_.log_probs, model.held_out.log_probs, atol=1e-8)
    assert methods


def test_a_correction_is_applied_before_predictions_are_moved() -> None:
    x, some = normal_classes(2000, 0.3)
    codes, raw = some.table.codes, table_of(3 * x + 1)
    plain, affine = (correction_of(method, raw, codes, np.array([0.7, 0.3])) for method in ("closed_form", "affine"))
    np.testing.assert_array_equal(plain.apply(raw), raw)
    np.testing.assert_allclose(np.exp(affine.apply(raw)).mean(0), [0.7, 0.3])
    np.testing.assert_allclose(affine.sampling, [0.7, 0.3])
