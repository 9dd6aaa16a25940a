"""The intervals of `evaluate`: against the jackknife, scipy, and how often they hold the truth."""

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


@unchecked_types()
def jackknife(case: Case) -> dict[str, float]:
    """Standard errors by leaving out one example at a time, class by class: no formula of ours in them."""
    rows = np.arange(len(case.target))
    left_out = [hard(case.log_probs[rows != row], case.target[rows != row], case.population) for row in rows]
    found = [figures(each) for each in left_out]
    errors = {}
    for name in found[0]:
        values = np.array([each[name].value for each in found])
        by_class = [values[case.labels == c] for c in range(len(case.population))]
        errors[name] = math.sqrt(sum((len(v) - 1) / len(v) * ((v - v.mean()) ** 2).sum() for v in by_class))
    return errors


@pytest.mark.long
@pytest.mark.parametrize("k", [2, 3])
def test_analytic_standard_errors_equal_the_jackknifes(k: int) -> None:
    case = hard(*logits(k, 160, 11), population(k, 3))
    # one standard error to each side; and groups of one, for else figures of decisions are made otherwise
    found = figures(case, intervals="analytic", level=0.6826894921370859, groups=range(160))
    expected = jackknife(case)
    for name, end in {"expected_log_likelihood": 0.0, "skill": 1.0, "brier": 0.0}.items():
        value, low, high = found[name].value, found[name].low, found[name].high
        width = abs(math.log((high - end) / (low - end))) / 2 * abs(value - end)
        assert width == pytest.approx(expected[name], rel=0.02), name
    width = (found.calibration_slope.high - found.calibration_slope.low) / 2
    assert width == pytest.approx(expected["calibration_slope"], rel=0.12)
    width = (found.calibration_intercept.high - found.calibration_intercept.low) / 2
    assert width == pytest.approx(expected["calibration_intercept"], rel=0.04)
    for name in ("ppv", "npv", "tpr", "tnr", "auc", "auc_pairwise", "off_by_one", "mean_prediction", "weighted_accuracy"):
        value, low, high = found[name].value, found[name].low, found[name].high
        if value < 1:
            width = (stats.logistic.ppf(high) - stats.logistic.ppf(low)) / 2 * value * (1 - value)
            assert width == pytest.approx(expected[name], rel=0.04 if name in ("ppv", "npv") else 0.02), name  # not linear


@pytest.mark.long
@pytest.mark.parametrize("intervals", ["bootstrap", "analytic"])
@pytest.mark.parametrize(("n", "missed"), [(40, 0), (40, 1), (300, 60), (1, 0)])
def test_the_interval_of_a_share_is_jeffreys(n: int, missed: int, intervals: Method) -> None:
    y = np.repeat([0, 1], [50, n])
    odds = np.where(y == 1, 2.0, -1.0) + 0.1 * stream(6).random(50 + n)
    odds[50 : 50 + missed] = -2.0
    table = of_odds(odds)
    found = evaluate(table, y, 0.01, intervals=intervals, draws=20_000).tpr
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
@pytest.mark.parametrize("intervals", ["bootstrap", "analytic"])
@pytest.mark.parametrize("k", [2, 3])
def test_copies_of_examples_grouped_with_them_add_nothing(k: int, intervals: Method) -> None:
    log_probs, y = logits(k, 300, 14)
    single = evaluate(log_probs, y, population(k), intervals=intervals)
    rows = np.arange(300).repeat(3)
    names = np.array([f"patient {row}" for row in rows.tolist()])
    grouped = evaluate(log_probs[rows], y[rows], population(k), groups=names, intervals=intervals)
    naive = evaluate(log_probs[rows], y[rows], population(k), intervals=intervals)
    for name in ("expected_log_likelihood", "brier", "auc", "tnr", "calibration_slope", "weighted_accuracy"):
        of_decisions = name in ("tnr", "weighted_accuracy")
        assert_close(grouped[name].value, single[name].value)
        width = single[name].high - single[name].low
        tolerance = 0.15 if of_decisions else 1e-9 if intervals == "analytic" else 0.1
        assert abs(grouped[name].low - single[name].low) < tolerance * width
        assert naive[name].high - naive[name].low < 0.7 * width, name


@pytest.mark.long
def test_groups_of_one_are_no_groups() -> None:
    log_probs, y = logits(3, 300, 15)
    alone = evaluate(log_probs, y, population(3), groups=stream(2).permutation(300), intervals="analytic")
    plain = evaluate(log_probs, y, population(3), intervals="analytic")
    for name in ("expected_log_likelihood", "skill", "brier", "auc", "auc_pairwise", "calibration_error", "calibration_slope"):
        np.testing.assert_allclose(alone[name].high, plain[name].high, rtol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("intervals", ["bootstrap", "analytic"])
def test_an_uncertain_prevalence_widens_what_depends_on_it(intervals: Method) -> None:
    log_probs, y = logits(2, 600, 16)
    certain = evaluate(log_probs, y, 0.05, intervals=intervals)
    vague = evaluate(log_probs, y, rl.Prevalence.beta(5.0, 95.0), intervals=intervals)
    for name in certain:
        np.testing.assert_allclose(vague[name].value, certain[name].value, rtol=1e-9)
    for name in ("ppv", "npv", "skill"):
        assert vague[name].high - vague[name].low > 1.2 * (certain[name].high - certain[name].low), name
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


@pytest.mark.long
@pytest.mark.parametrize("intervals", ["bootstrap", "analytic"])
@unchecked_types()
def test_intervals_hold_the_truth_as_often_as_they_say(intervals: Method) -> None:
    world, draws = TwoGaussians(0.2), 120
    x, y = world.sample(200_000, 99)
    truth = evaluate(world.log_probs(x), y, 0.2, threshold=0.3, intervals=None)
    names = ["expected_log_likelihood", "brier", "ppv", "npv", "tpr", "tnr", "auc", "net_benefit", "calibration_slope"]
    held = dict.fromkeys(names, 0)
    for draw in range(draws):
        x, y = world.sample(200, 1000 + draw)
        found = evaluate(world.log_probs(x), y, 0.2, threshold=0.3, intervals=intervals, draws=400)
        for name in names:
            held[name] += found[name].low <= truth[name].value <= found[name].high
    for name, count in held.items():
        assert stats.binomtest(count, draws, 0.95).pvalue > 1e-3, (name, count / draws)


@pytest.mark.parametrize("intervals", ["bootstrap", "analytic"])
def test_an_interval_has_a_width_where_no_mistake_was_seen(intervals: Method) -> None:
    y = np.arange(60) % 2
    odds = (2.0 * y - 1) * (1 + stream(5).random(60))
    table = of_odds(odds)
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
    odds = np.where((y == 1) & (np.arange(100) % 4 == 1), 3.0, -3.0)
    table = of_odds(odds)
    for groups in (None, range(100)):
        found = evaluate(table, y, 0.01, groups=groups)
        assert found.weighted_accuracy.low < found.tnr.low + 0.005
        assert found.expected_cost.high > 1 - found.tnr.low - 0.005
        assert found.net_benefit.low < -0.02


def test_few_examples_or_groups_are_reported() -> None:
    log_probs, y = logits(2, 100, 18)
    some = np.concatenate([np.flatnonzero(y == 0), np.flatnonzero(y == 1)[:6]])
    found = evaluate(log_probs[some], y[some], 0.1)
    assert "fewer than 10 examples of class(es) [1]" in found.auc.reason
    assert math.isfinite(found.auc.low)
    assert found.tnr.reason == ""
    assert "2 groups are too few" in evaluate(log_probs, y, 0.1, groups=np.arange(100) // 50).brier.reason


def test_a_figure_of_small_effective_sample_size_says_so() -> None:
    # one of 100 healthy people looks ill: the slope depends on little else, the ranking only a bit
    odds = np.concatenate([np.linspace(-9, -4, 99), [4.0], np.linspace(-7, -2, 100)])
    found = evaluate(of_odds(odds), np.repeat([0, 1], 100), 0.01)
    assert "effective sample size ≈" in found.calibration_slope.reason
    assert found.auc.reason == found.tpr.reason == ""


def test_a_resample_without_a_slope_is_left_out() -> None:
    p = np.array([0.9, 0.1, 0.1, 0.1, 0.1, 0.9, 0.9, 0.5])
    found = evaluate(np.log(np.stack([1 - p, p], 1)), np.repeat([0, 1], 4), 0.1)
    assert math.isfinite(found.brier.low)
    assert math.isnan(found.calibration_slope.low) or found.calibration_slope.low < found.calibration_slope.high


@pytest.mark.parametrize("intervals", ["bootstrap", "analytic"])
def test_no_interval_leaves_the_figures_bounds(intervals: Method) -> None:
    y = np.concatenate([np.zeros(300), np.ones(4)]).astype(int)
    odds = np.concatenate([stream(8).normal(size=300) - 9, np.array([9.0, 9, 9, -3])])
    table = of_odds(odds)
    for prevalence in (0.3, rl.Prevalence.beta(30.0, 70.0)):
        found = evaluate(table, y, prevalence, intervals=intervals)
        assert found.expected_log_likelihood.high < 0
        assert found.skill.high < 1
        assert min(found.brier.low, found.expected_cost.low, found.calibration_error.low) >= 0


@pytest.mark.long
@pytest.mark.parametrize(("positive", "per_class"), [(0.2, 30), (0.01, 100), (0.5, 200)])
@unchecked_types()
def test_the_calibration_error_of_a_model_that_is_right_may_be_zero(positive: float, per_class: int) -> None:
    world, draws, reached = TwoGaussians(positive), 100, 0
    for draw in range(draws):
        x, y = world.sample(per_class, 500 + draw)
        reached += evaluate(world.log_probs(x), y, positive, intervals="analytic").calibration_error.low == 0
    assert stats.binomtest(reached, draws, 0.95, alternative="less").pvalue > 1e-3, reached / draws


@pytest.mark.long
@unchecked_types()
def test_votes_make_intervals_as_wide_as_the_estimates_vary() -> None:
    """Rows are drawn at random and read by four: the standard error is that over samples, with 250 of them."""
    source, world = stream(31), TwoGaussians(0.3)
    values, errors = [], []
    for _ in range(250):
        y = (source.random(200) < 0.3).astype(int)
        x = source.normal(size=(200, 5)) + (2 * y[:, None] - 1) * world.separation / math.sqrt(5)
        probs = np.exp(world.log_probs(x))[:, 1:]
        said = (source.random((200, 4)) < probs).astype(float).mean(1)
        found = evaluate(world.log_probs(x), np.stack([1 - said, said], 1), 0.3, intervals="analytic").accuracy
        values.append(found.value)
        errors.append((stats.logistic.ppf(found.high) - stats.logistic.ppf(found.low)) / 3.92 * found.value * (1 - found.value))
    # a standard deviation of 250 is known to 4.5 %
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.15)


@pytest.mark.long
def test_equal_input_gives_equal_output_and_another_generator_another() -> None:
    log_probs, y = logits(2, 100, 20)
    first, second = evaluate(log_probs, y, 0.1), evaluate(log_probs, y, 0.1)
    assert first == second
    assert evaluate(log_probs, y, 0.1, generator=stream(77)).auc.low != first.auc.low
    numbers: dict[str, Any] = {"level": np.float32(0.95), "draws": np.int64(1000)}
    with unchecked_types():
        assert evaluate(log_probs, y, 0.1, **numbers).brier.value == first.brier.value


@pytest.mark.long
def test_small_samples_are_resampled_and_large_ones_differentiated() -> None:
    assert evaluate(*logits(2, 100, 21), 0.1).intervals == "bootstrap"
    assert evaluate(*logits(2, 30_000, 21), 0.1).intervals == "analytic"
    assert evaluate(*logits(2, 100, 21), 0.1, intervals=None).intervals == "none"
