"""Comparison of candidates at the population: rows, folds, standard errors, corrections and the choice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import log_expit

from rightloss import Prevalence, retarget
from rightloss.metrics import evaluate
from rightloss.tabular.candidates import Boosting, Linear, Part
from rightloss.tabular.compare import (
    Candidate,
    CrossValidation,
    always_population,
    candidates_of,
    choose,
    choose_folds,
    cross_validate,
    expectation,
    likelihoods,
    standard_error,
)
from rightloss.tabular.splits import fold_numbers, stratified_rows


def normal_classes(rows: int, cases: float, seed: int = 0, distance: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    """x and class numbers; the log-odds at equal classes are distance · x."""
    rng = np.random.default_rng(seed)
    codes = (np.arange(rows) < cases * rows).astype(np.int64)
    return rng.normal(size=rows) + distance * (codes - 0.5), codes


def table_of(odds: np.ndarray) -> np.ndarray:
    return np.stack([log_expit(-odds), log_expit(odds)], 1)


def test_drawn_rows_keep_the_rare_class_and_the_weighted_mix() -> None:
    codes = np.repeat([0, 1, 2], [9000, 900, 100])
    rows, weights = stratified_rows(codes, 1000, seed=0)
    kept = np.bincount(codes[rows])
    assert kept.sum() <= 1000
    assert kept.tolist() == [450, 450, 100]
    np.testing.assert_allclose(np.bincount(codes[rows], weights) / len(rows), [0.9, 0.09, 0.01])
    assert weights.mean() == pytest.approx(1)
    assert len(np.unique(rows)) == len(rows)


def test_a_small_table_is_taken_whole() -> None:
    rows, weights = stratified_rows(np.array([0, 1, 0, 1, 1]), 100, seed=0)
    np.testing.assert_array_equal(rows, np.arange(5))
    np.testing.assert_array_equal(weights, np.ones(5))


@pytest.mark.parametrize("seed", range(5))
def test_folds_never_split_a_group_and_spread_the_classes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 200, 2000)
    codes = (rng.random(2000) < 0.1).astype(np.int64)
    folds = fold_numbers(codes, groups, 5, seed)
    assert all(len(np.unique(folds[groups == group])) == 1 for group in np.unique(groups))
    assert np.bincount(folds[codes == 1], minlength=5).min() > 20
    alone = fold_numbers(codes, None, 5, seed)
    for k in (0, 1):
        counts = np.bincount(alone[codes == k], minlength=5)
        assert counts.max() - counts.min() <= 2


def test_folds_depend_on_the_seed_alone() -> None:
    codes = np.arange(100) % 2
    np.testing.assert_array_equal(fold_numbers(codes, None, 5, 1), fold_numbers(codes, None, 5, 1))
    assert (fold_numbers(codes, None, 5, 1) != fold_numbers(codes, None, 5, 2)).any()


def test_there_are_no_more_folds_than_rows_of_a_class() -> None:
    codes = np.array([0] * 50 + [1] * 3)
    assert choose_folds(codes, None, 5, 0).max() + 1 == 3
    with pytest.raises(ValueError, match="group"):
        choose_folds(codes, np.array([0] * 50 + [1] * 3), 5, 0)


@pytest.mark.long
def test_the_standard_error_is_that_of_repeated_samples() -> None:
    prevalence, rng = Prevalence.binary(0.1), np.random.default_rng(0)
    codes = np.repeat([0, 1], [300, 60])
    scale = np.array([1.0, 3.0])[codes]
    draws = [rng.normal(size=360) * scale for _ in range(500)]
    means = [expectation(each, codes, prevalence) for each in draws]
    errors = [standard_error(each, codes, prevalence) for each in draws]
    spread = np.std(means)
    assert np.mean(errors) == pytest.approx(spread, abs=4 * spread / np.sqrt(2 * 500) + 0.01 * spread)


def test_rows_of_a_group_count_as_one_draw() -> None:
    codes, prevalence = np.tile([0, 1], 100), Prevalence.binary(0.3)
    values, groups = np.random.default_rng(0).normal(size=200), np.arange(200)
    tripled = standard_error(np.tile(values, 3), np.tile(codes, 3), prevalence, np.tile(groups, 3))
    assert tripled == pytest.approx(standard_error(values, codes, prevalence))
    assert standard_error(np.tile(values, 3), np.tile(codes, 3), prevalence) == pytest.approx(tripled / np.sqrt(3))


def test_the_expectation_is_the_expected_log_likelihood_of_evaluate() -> None:
    x, codes = normal_classes(500, 0.4)
    prevalence, table = Prevalence.binary(0.05), table_of(1.5 * x)
    found = evaluate(table, codes, prevalence, intervals=None).expected_log_likelihood.value
    assert expectation(likelihoods(table, codes), codes, prevalence) == pytest.approx(found)


def cross_validated(odds: np.ndarray) -> CrossValidation:
    return CrossValidation(table_of(odds), [1.0], 0.0)


def test_the_closed_form_is_retarget_and_uncorrected_predictions_are_shown() -> None:
    x, codes = normal_classes(1000, 0.5)
    prevalence = Prevalence.binary(0.01, 0.5)
    made, notes = candidates_of("linear", cross_validated(1.5 * x), codes, np.arange(1000) % 5, prevalence)
    assert [each.correction for each in made] == ["closed form", "affine", "none"]
    np.testing.assert_allclose(made[0].log_probs, retarget(table_of(1.5 * x), 0.5, 0.01))
    assert notes == []
    assert "none" not in [
        each.correction
        for each in candidates_of("linear", cross_validated(x), codes, np.arange(1000) % 5, Prevalence.binary(0.5, 0.5))[0]
    ]


def test_the_affine_correction_undoes_a_wrong_slope_and_intercept() -> None:
    x, codes = normal_classes(20_000, 0.5)
    prevalence = Prevalence.binary(0.01, 0.5)
    made, _ = candidates_of("linear", cross_validated(4 * x + 1), codes, np.arange(20_000) % 5, prevalence)
    right = retarget(table_of(1.5 * x), 0.5, 0.01)
    odds = made[1].log_probs[:, 1] - made[1].log_probs[:, 0]
    slope, intercept = np.polyfit(right[:, 1] - right[:, 0], odds, 1)
    # 20,000 rows: the standard errors of slope and intercept are about 0.02 and 0.05 (log-odds of −4.6 times that of the slope)
    assert slope == pytest.approx(1, abs=0.06)
    assert intercept == pytest.approx(0, abs=0.25)


def test_few_rows_of_a_class_leave_the_affine_correction_out_with_a_note() -> None:
    x, codes = normal_classes(100, 0.1)
    made, notes = candidates_of("linear", cross_validated(x), codes, np.arange(100) % 5, Prevalence.binary(0.1, 0.1))
    assert [each.correction for each in made] == ["closed form"]
    assert "fewer than" in notes[0]


def candidate(family: str | None, odds: np.ndarray, correction: Any = "closed form") -> Candidate:
    return Candidate(str(family), family, correction, table_of(odds), 0.0)


def test_the_simplest_within_one_standard_error_is_chosen() -> None:
    x, codes = normal_classes(2000, 0.5)
    prevalence, right = Prevalence.binary(0.5), 1.5 * x
    nothing, best = always_population(prevalence, 2000), candidate("boosting", right)
    near, far = right.copy(), right + np.random.default_rng(1).normal(size=2000)
    near[0] += 1.0  # a case: higher by less than 1
    near[-1] += 10.0  # no case: lower by more, so that two rows, opposite to each other, make all of the difference
    assert expectation(likelihoods(table_of(near), codes), codes, prevalence) < expectation(
        likelihoods(table_of(right), codes), codes, prevalence
    )
    simple = candidate("linear", near)
    assert choose([nothing, simple, best], codes, prevalence) is simple
    assert choose([nothing, candidate("linear", far), best], codes, prevalence) is best
    assert choose([nothing, best, simple], codes, prevalence) is best


def test_nothing_worse_than_answering_the_population_is_chosen() -> None:
    x, codes = normal_classes(2000, 0.5)
    prevalence = Prevalence.binary(0.5)
    nothing = always_population(prevalence, 2000)
    wrong = candidate("linear", -x)
    assert choose([nothing, wrong], codes, prevalence) is nothing
    uncorrected = candidate("linear", 1.5 * x, "none")
    assert choose([nothing, wrong, uncorrected], codes, prevalence) is nothing


def parts(family: Linear | Boosting, rows: int = 3000, num_classes: int = 2) -> Part:
    rng = np.random.default_rng(0)
    codes = np.arange(rows) % num_classes
    matrix = rng.normal(size=(rows, 3)) + codes[:, None] * np.array([1.0, 0, -1])
    return Part(matrix.astype(np.float32), codes, np.ones(rows), num_classes)


@pytest.mark.long
@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("family", [Linear(), Boosting(())])
def test_a_family_predicts_log_probabilities_that_hold_out_of_fold(family: Linear | Boosting, num_classes: int) -> None:
    if isinstance(family, Boosting):
        pytest.importorskip("lightgbm")
    part = parts(family, 1500, num_classes)
    folds = fold_numbers(part.codes, None, 3, 0)
    found = cross_validate(family, part, folds, None, seed=0)
    np.testing.assert_allclose(np.exp(found.log_probs).sum(1), 1)
    # two classes at a distance of √2, three at 2√2 from first to last: the Bayes-optimal log-likelihood by Monte Carlo
    rng = np.random.default_rng(1)
    y = rng.integers(0, num_classes, 200_000)
    z = rng.normal(size=200_000) + np.sqrt(2) * y
    scores = np.sqrt(2) * z[:, None] * np.arange(num_classes) - np.arange(num_classes) ** 2
    best = np.mean(scores[np.arange(len(y)), y] - np.log(np.exp(scores).sum(1)))
    own = likelihoods(found.log_probs, part.codes)
    error = own.std() / np.sqrt(len(own))
    assert own.mean() < best + 4 * error
    assert own.mean() > best - 4 * error - (0.0 if isinstance(family, Linear) else 0.06)  # trees learn a line slowly


@pytest.mark.long
@pytest.mark.parametrize("family", [Linear(), Boosting(())])
def test_weights_stand_for_rows(family: Linear | Boosting) -> None:
    """Half of one class at twice the weight gives nearly the mix of all of it."""
    if isinstance(family, Boosting):
        pytest.importorskip("lightgbm")
    part = parts(family)
    rows, weights = stratified_rows(part.codes[: len(part.codes)], 3000, 0)
    keep = (part.codes[rows] == 1) | (rows % 4 == 0)
    factor = np.where(part.codes == 0, 2.0, 1.0)[keep]
    fitted = family.fit(
        Part(part.matrix[keep], part.codes[keep], factor / factor.mean(), 2), 1.0 if family.name == "linear" else 50.0
    )
    assert np.exp(fitted.log_probs(part.matrix))[:, 1].mean() == pytest.approx(0.5, abs=0.03)
    assert weights.mean() == 1
