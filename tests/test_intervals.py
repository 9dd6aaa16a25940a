"""The intervals of `evaluate`: against the jackknife, SciPy and closed forms. Benchmarks count how often they hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from cases import Case, Method, assert_close, figures, hard, logits
from draws import population, stream, unchecked_types
from labelled import of_odds
from scipy import stats

import rightloss as rl
from rightloss.metrics import evaluate
from rightloss.study.toy.population import TwoGaussians

both_ways = pytest.mark.parametrize("intervals", ["bootstrap", "analytic"])
ONE_ERROR = 0.6826894921370859  # the level of one standard error to each side


@unchecked_types()
def jackknife(case: Case, by_class: bool = True) -> dict[str, float]:
    """Standard errors by leaving out one row at a time, class by class or not: no formula of ours in them."""
    rows = np.arange(len(case.target))
    left_out = [hard(case.log_probs[rows != row], case.target[rows != row], case.population) for row in rows]
    found = [figures(each) for each in left_out]
    strata = [case.labels == c for c in range(len(case.population))] if by_class else [np.full(len(rows), True)]
    errors = {}
    for name in found[0]:
        values = [np.array([each[name].value for each in found])[own] for own in strata]
        errors[name] = math.sqrt(sum((len(v) - 1) / len(v) * ((v - v.mean()) ** 2).sum() for v in values))
    return errors


def in_log_odds(found: Any) -> float:
    """Half the width of an interval on the scale of log-odds, in units of the figure."""
    width = stats.logistic.ppf(found.high) - stats.logistic.ppf(found.low)
    return float(width / 2 * found.value * (1 - found.value))


@pytest.mark.long
@pytest.mark.parametrize("k", [2, 3])
def test_analytic_standard_errors_equal_the_jackknifes(k: int) -> None:
    case = hard(*logits(k, 160, 11), population(k, 3))
    # groups of one, for else figures of decisions are made otherwise
    found = figures(case, intervals="analytic", level=ONE_ERROR, groups=range(160))
    expected = jackknife(case)
    for name, end in {"expected_log_likelihood": 0.0, "skill": 1.0, "brier": 0.0}.items():
        value, low, high = found[name].value, found[name].low, found[name].high
        width = abs(math.log((high - end) / (low - end))) / 2 * abs(value - end)
        assert width == pytest.approx(expected[name], rel=0.02), name
    for name, tolerance in {"calibration_slope": 0.12, "calibration_intercept": 0.04}.items():
        assert (found[name].high - found[name].low) / 2 == pytest.approx(expected[name], rel=tolerance), name
    for name in ("ppv", "npv", "tpr", "tnr", "auc", "auc_pairwise", "off_by_one", "mean_prediction", "weighted_accuracy"):
        if found[name].value < 1:
            tolerance = 0.04 if name in ("ppv", "npv") else 0.02  # not linear
            assert in_log_odds(found[name]) == pytest.approx(expected[name], rel=tolerance), name


@pytest.mark.long
def test_rows_with_votes_are_drawn_as_they_came_whatever_their_votes() -> None:
    log_probs, y = logits(2, 120, 31)
    votes = 0.25 * np.eye(2)[y] + 0.75 * np.eye(2)[np.roll(y, 1)]
    case = hard(log_probs, votes, population(2, 3))
    found, expected = figures(case, intervals="analytic", level=ONE_ERROR), jackknife(case, by_class=False)
    for name in ("accuracy", "mean_prediction", "tpr"):
        assert in_log_odds(found[name]) == pytest.approx(expected[name], rel=0.02), name


@pytest.mark.long
@both_ways
@pytest.mark.parametrize(("n", "missed"), [(40, 0), (300, 60), (1, 0)])
def test_the_interval_of_a_share_is_jeffreys(n: int, missed: int, intervals: Method) -> None:
    y = np.repeat([0, 1], [50, n])
    odds = np.where(y == 1, 2.0, -1.0) + 0.1 * stream(6).random(50 + n)
    odds[50 : 50 + missed] = -2.0
    found = evaluate(of_odds(odds), y, 0.01, intervals=intervals, draws=20_000).tpr
    low, high = stats.beta.ppf([0.025, 0.975], n - missed + 0.5, missed + 0.5)
    # the standard error of a 2.5 % quantile of 20,000 draws is about 2 % of the standard deviation
    error = 0.1 * stats.beta.std(n - missed + 0.5, missed + 0.5)
    assert found.low == pytest.approx(low, abs=error)
    assert found.high == pytest.approx(max(high, found.value), abs=error)


@pytest.mark.long
def test_the_bootstrap_equals_scipys() -> None:
    case = hard(*logits(2, 1000, 12), np.array([0.9, 0.1]))
    found = figures(case, intervals="bootstrap", draws=8000)
    p, y = case.probs[:, 1], case.labels

    def brier(zeros: np.ndarray, ones: np.ndarray, axis: int = -1) -> np.ndarray:
        return 0.1 * ((1 - ones) ** 2).mean(axis) + 0.9 * (zeros**2).mean(axis)

    def ell(zeros: np.ndarray, ones: np.ndarray, axis: int = -1) -> np.ndarray:
        return 0.1 * np.log(ones).mean(axis) + 0.9 * np.log1p(-zeros).mean(axis)

    for name, statistic in {"brier": brier, "expected_log_likelihood": ell}.items():
        reference = stats.bootstrap(
            (p[y == 0], p[y == 1]), statistic, n_resamples=8000, vectorized=True, rng=np.random.default_rng(0)
        ).confidence_interval
        width = reference.high - reference.low
        # of 8,000 resamples, a 2.5 % quantile has a standard error of about 1 % of the interval's width
        assert abs(found[name].low - reference.low) < 0.04 * width
        assert abs(found[name].high - reference.high) < 0.04 * width


@pytest.mark.long
@pytest.mark.parametrize("k", [2, 4])
def test_the_two_ways_agree_on_a_large_sample(k: int) -> None:
    case = hard(*logits(k, 4000, 13), population(k, 4))
    by = {how: figures(case, intervals=how, draws=2000) for how in ("bootstrap", "analytic")}
    for name in by["bootstrap"]:
        one, other = (by[how][name].high - by[how][name].low for how in ("bootstrap", "analytic"))
        if not math.isnan(by["bootstrap"][name].value):
            # the distance between two quantiles of 2,000 draws is known to about 2 %
            assert one == pytest.approx(other, rel=0.08), name


@pytest.mark.long
@both_ways
def test_copies_of_examples_grouped_with_them_add_nothing(intervals: Method) -> None:
    log_probs, y = logits(3, 300, 14)
    rows = np.arange(300).repeat(3)
    names = np.array([f"patient {row}" for row in rows.tolist()])
    single = evaluate(log_probs, y, population(3), intervals=intervals)
    grouped = evaluate(log_probs[rows], y[rows], population(3), groups=names, intervals=intervals)
    naive = evaluate(log_probs[rows], y[rows], population(3), intervals=intervals)
    for name in ("expected_log_likelihood", "brier", "auc", "tnr", "calibration_slope", "weighted_accuracy"):
        of_decisions = name in ("tnr", "weighted_accuracy")
        assert_close(grouped[name].value, single[name].value)
        width = single[name].high - single[name].low
        tolerance = 0.15 if of_decisions else 1e-9 if intervals == "analytic" else 0.1
        assert abs(grouped[name].low - single[name].low) < tolerance * width
        assert naive[name].high - naive[name].low < 0.7 * width, name


@pytest.mark.long
@both_ways
def test_an_uncertain_prevalence_widens_what_depends_on_it(intervals: Method) -> None:
    log_probs, y = logits(2, 600, 16)
    certain = evaluate(log_probs, y, 0.05, intervals=intervals)
    vague = evaluate(log_probs, y, rl.Prevalence.beta(5.0, 95.0), intervals=intervals)
    for name in certain:
        np.testing.assert_allclose(vague[name].value, certain[name].value, rtol=1e-9)
    for name, factor in {"ppv": 1.2, "npv": 1.2, "skill": 1.2, "calibration_error": 1.05}.items():
        assert vague[name].high - vague[name].low > factor * (certain[name].high - certain[name].low), name
    error = certain.calibration_error
    assert vague.calibration_error.high - error.value < 2 * (error.high - error.value)
    for name in ("tpr", "tnr", "auc"):
        assert vague[name].high - vague[name].low == pytest.approx(certain[name].high - certain[name].low, rel=0.15), name
    # with so large a sample, PPV's interval is that of π, carried through a formula that rises with it
    x, labels = TwoGaussians(0.05).sample(4000, 3)
    large = evaluate(TwoGaussians(0.05).log_probs(x), labels, rl.Prevalence.beta(5.0, 95.0), intervals=intervals, threshold=0.2)
    ends = [stats.beta.ppf(q, 5, 95) for q in (0.025, 0.975)]
    t, f = large.tpr.value, 1 - large.tnr.value
    expected = [pi * t / (pi * t + (1 - pi) * f) for pi in ends]
    assert large.ppv.low == pytest.approx(expected[0], abs=0.03)
    assert large.ppv.high == pytest.approx(expected[1], abs=0.03)


@both_ways
def test_an_interval_has_a_width_where_no_mistake_was_seen(intervals: Method) -> None:
    y = np.arange(60) % 2
    table = of_odds((2.0 * y - 1) * (1 + stream(5).random(60)))
    unseen = stats.norm.ppf(0.975) ** 2 / (30 + stats.norm.ppf(0.975) ** 2)  # Wilson's limit of 0 among 30
    found = evaluate(table, y, 0.01, intervals=intervals)
    assert found.tpr.value == found.ppv.value == found.auc.value == 1
    assert found.tpr.low == pytest.approx(stats.beta.ppf(0.025, 30.5, 0.5), abs=0.01)
    assert found.ppv.low < 0.25
    assert_close(found.auc.low, 1 - unseen)
    assert "separated" in found.calibration_slope.reason
    # people who come in groups cannot be counted so: Wilson's limit, of groups
    rows = np.arange(60).repeat(2)
    grouped = evaluate(table[rows], y[rows], 0.01, intervals=intervals, groups=rows)
    assert_close(grouped.tpr.low, 1 - unseen)
    assert_close(grouped.ppv.low, 0.01 * (1 - unseen) / (0.01 * (1 - unseen) + 0.99 * unseen))


def test_accuracy_in_the_population_allows_for_unseen_mistakes() -> None:
    # 1 in 100 is ill; all of 50 healthy are right, half of 50 ill: the healthy carry 99 % of the weight
    y = np.arange(100) % 2
    table = of_odds(np.where((y == 1) & (np.arange(100) % 4 == 1), 3.0, -3.0))
    for groups in (None, range(100)):
        found = evaluate(table, y, 0.01, groups=groups)
        assert found.weighted_accuracy.low < found.tnr.low + 0.005
        assert found.expected_cost.high > 1 - found.tnr.low - 0.005
        assert found.net_benefit.low < -0.02


def test_intervals_that_are_not_reliable_say_so() -> None:
    log_probs, y = logits(2, 100, 18)
    some = np.concatenate([np.flatnonzero(y == 0), np.flatnonzero(y == 1)[:6]])
    found = evaluate(log_probs[some], y[some], 0.1)
    assert "fewer than 10 examples of class(es) [1]" in found.auc.reason
    assert math.isfinite(found.auc.low)
    assert found.tnr.reason == ""
    assert "2 groups are too few" in evaluate(log_probs, y, 0.1, groups=np.arange(100) // 50).brier.reason
    # one of 100 healthy people looks ill: the slope depends on little else, the ranking only a bit
    odds = np.concatenate([np.linspace(-9, -4, 99), [4.0], np.linspace(-7, -2, 100)])
    found = evaluate(of_odds(odds), np.repeat([0, 1], 100), 0.01)
    assert "effective sample size ≈" in found.calibration_slope.reason
    assert found.auc.reason == found.tpr.reason == ""


def test_a_figure_that_many_resamples_lack_has_no_interval() -> None:
    odds = np.full(100, -2.0)
    odds[-1] = 2.0  # without this row, which 36 % of the resamples lack, nobody is called positive
    found = evaluate(of_odds(odds), np.repeat([0, 1], 50), 0.1, intervals="bootstrap", groups=range(100))
    assert math.isfinite(found.brier.low)
    assert found.ppv.value == 1
    assert math.isnan(found.ppv.low)
    assert "% of the resamples" in found.ppv.reason


@both_ways
def test_no_interval_leaves_the_figures_bounds(intervals: Method) -> None:
    y = np.repeat([0, 1], [300, 4])
    table = of_odds(np.concatenate([stream(8).normal(size=300) - 9, np.array([9.0, 9, 9, -3])]))
    for prevalence in (0.3, rl.Prevalence.beta(30.0, 70.0)):
        found = evaluate(table, y, prevalence, intervals=intervals)
        assert found.expected_log_likelihood.high < 0
        assert found.skill.high < 1
        assert min(found.brier.low, found.expected_cost.low, found.calibration_error.low) >= 0


@pytest.mark.long
@unchecked_types()
def test_the_calibration_error_of_a_model_that_is_right_may_be_zero() -> None:
    reached = 0
    for draw in range(60):
        x, y = TwoGaussians(0.01).sample(100, 500 + draw)
        reached += evaluate(TwoGaussians(0.01).log_probs(x), y, 0.01, intervals="analytic").calibration_error.low == 0
    assert stats.binomtest(reached, 60, 0.95, alternative="less").pvalue > 1e-3, reached


@pytest.mark.long
def test_equal_input_gives_equal_output_and_large_samples_are_not_resampled() -> None:
    log_probs, y = logits(2, 100, 20)
    first = evaluate(log_probs, y, 0.1)
    assert first == evaluate(log_probs, y, 0.1)
    assert evaluate(log_probs, y, 0.1, generator=stream(77)).auc.low != first.auc.low
    large = evaluate(*logits(2, 30_000, 21), 0.1)
    none = evaluate(log_probs, y, 0.1, intervals=None)
    assert [each.intervals for each in (first, large, none)] == ["bootstrap", "analytic", "none"]
    numbers: dict[str, Any] = {"level": np.float32(0.95), "draws": np.int64(1000)}
    with unchecked_types():
        assert evaluate(log_probs, y, 0.1, **numbers).brier.value == first.brier.value
