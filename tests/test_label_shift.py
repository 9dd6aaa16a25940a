"""The test of label shift: its size and its power, small sets, tied scores, absent classes."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from draws import assert_refused
from normal_classes import DISTANCE, constant, drawn, equal, exact, mix, overconfident, shift_test_quietly
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax, xlogy
from scipy.stats import chi2, chisquare, kstest

from rightloss.calibration.held_out import HeldOut
from rightloss.shift import LabelShiftWarning, label_shift_test
from rightloss.shift.label_shift import _binned


@pytest.mark.long
@pytest.mark.parametrize(
    ("pi", "rows", "held_out"), [(mix(0.7, 0.3), 600, 600), (mix(0.98, 0.02), 600, 600), (mix(0.5, 0.5, 0, 0, 0), 200, 150)]
)
def test_it_has_its_size_under_label_shift(pi: np.ndarray, rows: int, held_out: int) -> None:
    found = []
    for seed in range(150):
        (x, _), (h, y) = drawn(pi, rows, 40_000 + 1000 * seed), drawn(equal(len(pi)), held_out, 40_001 + 1000 * seed)
        found.append(shift_test_quietly(x, h, y))
    assert np.mean([not each.tenable for each in found]) < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 150)
    # where a class may be absent the degrees are an upper bound, and the p-values too large
    side = "two-sided" if float(pi.min()) > 0.05 else "greater"
    assert kstest([each.p_value for each in found], "uniform", alternative=side).pvalue > 1e-4


@pytest.mark.long
@pytest.mark.parametrize("change", ["spread", "one class moved", "new kind of case"])
def test_it_has_power_where_more_than_the_mix_differs(change: str) -> None:
    refused = []
    for seed in range(15):
        (x, y), (h, labels) = drawn(mix(0.8, 0.2), 3000, 50_000 + 1000 * seed), drawn(equal(2), 3000, 50_001 + 1000 * seed)
        if change == "spread":
            x = 1.2 * x
        elif change == "one class moved":
            x = x - 0.8 * DISTANCE * np.eye(2)[y] * (y == 1)[:, None]
        else:
            x[:200] = np.array([3.0, -3.0])
        refused.append(not shift_test_quietly(x, h, labels).tenable)
    assert np.mean(refused) > 0.8


@pytest.mark.long
def test_its_statistic_is_twice_what_the_likelihood_lacks() -> None:
    """Also where one of few held-out rows of a class is where hardly any is expected, which decides Pearson's statistic."""
    (x, _), (h, _) = drawn(mix(0.99, 0.01), 400, 66), drawn(mix(1 - 1e-9, 1e-9), 400, 67)
    y = (np.arange(400) < 4).astype(int)
    h[1:4, 1] += 2 * DISTANCE
    target, held = exact(x, equal(2)), exact(h, equal(2))
    counts, by_class = _binned(target, HeldOut(held, y))

    def log_likelihood(theta: np.ndarray) -> float:
        shares = softmax(theta[:-1].reshape(2, -1), axis=1).T
        mixed = shares @ np.array([1 / (1 + np.exp(theta[-1])), 1 / (1 + np.exp(-theta[-1]))])
        return float(xlogy(counts, mixed).sum() + xlogy(by_class, shares).sum())

    pooled = np.log((counts + by_class.sum(1)) / 800)
    start = np.concatenate([pooled, pooled, [-3.0]])
    best = minimize(lambda theta: -log_likelihood(theta), start, method="BFGS").fun
    saturated = xlogy(counts, counts / 400).sum() + xlogy(by_class, by_class / by_class.sum(0)).sum()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LabelShiftWarning)
        found = label_shift_test(target, (held, y))
    assert found.statistic == pytest.approx(2 * (saturated + best), abs=0.05)


def test_models_of_folds_are_tested_one_by_one() -> None:
    (x, _), (h, y) = drawn(mix(0.8, 0.2), 900, 68), drawn(equal(2), 900, 69)
    target, held, folds = exact(x, equal(2)), exact(h, equal(2)), np.arange(900) % 3
    both = label_shift_test(target, (held, y), folds=(folds, folds), level=0.9999)
    alone = [label_shift_test(target[folds == j], (held[folds == j], y[folds == j]), level=0.9999) for j in range(3)]
    assert both.statistic == pytest.approx(sum(each.statistic for each in alone), rel=1e-9)
    assert both.degrees == sum(each.degrees for each in alone)
    few = label_shift_test(target, (held, y), folds=(np.arange(900), np.arange(900)), level=0.9999)
    assert few.statistic == label_shift_test(target, (held, y), level=0.9999).statistic  # all rows together
    assert_refused(lambda: label_shift_test(target, (held, y), folds=(folds, folds[:5])), "a number for every row")


def test_it_warns_rather_than_guesses_and_only_then() -> None:
    (x, _), (h, y) = drawn(mix(0.8, 0.2), 3000, 60), drawn(equal(2), 3000, 61)
    with pytest.warns(LabelShiftWarning, match="no mixture of the held-out classes"):
        found = label_shift_test(overconfident(1.5 * x), (overconfident(h), y))
    assert not found.tenable
    assert str(found) == found.message
    assert found.message.startswith(found.complaints[0])
    fine = label_shift_test(overconfident(x), (overconfident(h), y), equal(2), level=0.9999)  # a warning would be an error
    assert fine.tenable
    assert fine.well_conditioned
    assert fine.complaints == ()
    assert fine.sampling_p_value == pytest.approx(float(chisquare(np.bincount(y), [1500, 1500]).pvalue), rel=1e-9)
    assert shift_test_quietly(x, h, y).sampling_p_value is None
    with pytest.warns(LabelShiftWarning, match="do not have the mix"):
        label_shift_test(overconfident(x), (overconfident(h), y), 0.9)
    with np.errstate(divide="ignore"):  # probabilities to one digit: many scores are equal, some of them 0
        tied, held = (log_softmax(np.log(np.exp(exact(each, equal(2))).round(1)), axis=1) for each in (x, h))
    tied[:1500] = math.log(0.5)
    for target in (tied, constant(equal(2), 2000)):
        with pytest.warns(LabelShiftWarning, match="no mixture"):
            found = label_shift_test(target, (held, y))
        assert found.p_value < 1e-50
        assert math.isfinite(found.statistic + found.error)
    assert fine.p_value == pytest.approx(float(chi2.sf(fine.statistic, fine.degrees)), rel=1e-9)


def test_classes_that_look_alike_and_sets_too_small_are_named() -> None:
    (x, _), (h, y) = drawn(equal(3), 1000, 66), drawn(equal(3), 1000, 67)
    alike = shift_test_quietly(x[:, [0, 1, 1]], h[:, [0, 1, 1]], y)
    assert alike.condition > 30
    assert not alike.well_conditioned
    assert "hardly distinguishes some classes" in alike.message
    (x, _), (h, y) = drawn(equal(2), 12, 68), drawn(equal(2), 12, 69)
    small = shift_test_quietly(x, h, y)
    assert small.error > 0.1
    assert not small.well_conditioned
    assert "collect more" in small.message


def test_bad_input_is_refused() -> None:
    (x, _), (h, y) = drawn(equal(2), 50, 70), drawn(equal(2), 50, 71)
    table, pair = overconfident(x), (overconfident(h), y)
    assert_refused(lambda: label_shift_test(np.exp(table), pair), "look like probabilities")
    assert_refused(lambda: label_shift_test(table, None), "a pair")
    assert_refused(lambda: label_shift_test(table, (pair[0], y * 0)), "every class")
    assert_refused(lambda: label_shift_test(table, pair, level=0), "`level`")
    assert_refused(lambda: label_shift_test(table, pair, [0.5, 0.2, 0.3]), "2 entries")
