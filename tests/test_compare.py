"""`rightloss.metrics.compare`: paired differences against `evaluate`, DeLong's formula, the jackknife, a known population."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from cases import CASES, Case, Method, each_case, hard, logits
from draws import assert_refused, population, stream, unchecked_types
from labelled import of_odds
from scipy.special import log_softmax

import rightloss as rl
from rightloss.metrics import Comparison, compare, evaluate

MU = 0.6  # half the distance of the classes in one measurement
both_ways = pytest.mark.parametrize("intervals", ["bootstrap", "analytic"])


def two_and_one(rate: float, per_class: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """True predictions from two measurements and from one of them, and the labels."""
    y = np.arange(2 * per_class) % 2
    x = stream(seed).normal(size=(2 * per_class, 2)) + (MU * (2 * y - 1))[:, None]
    odds = math.log(rate / (1 - rate))
    return of_odds(odds + 2 * MU * x.sum(1)), of_odds(odds + 2 * MU * x[:, 0]), y


def rival(case: Case) -> np.ndarray:
    """Predictions that share most of their noise with a case's."""
    noise = stream(77).normal(size=case.log_probs.shape)
    return log_softmax(0.8 * case.log_probs + 0.4 * noise, axis=1)


@each_case
def test_values_are_those_of_evaluate_subtracted(case: Case) -> None:
    other = rival(case)
    found = compare(case.log_probs, other, case.target, case.population, intervals=None)
    a, b = (evaluate(each, case.target, case.population, intervals=None) for each in (case.log_probs, other))
    for name in a:
        np.testing.assert_allclose(found[name].value, a[name].value - b[name].value, rtol=1e-9, atol=1e-12, err_msg=name)
        np.testing.assert_equal([found[name].a, found[name].b], [a[name].value, b[name].value], err_msg=name)
        assert found[name].verdict == "undecided"
        assert getattr(found, name) == found[name] or math.isnan(found[name].value)


@pytest.mark.long
@both_ways
@pytest.mark.parametrize("name", ["2 classes with ties", "3 classes, votes"])
def test_a_model_differs_from_itself_by_exactly_nothing(name: str, intervals: Method) -> None:
    case = CASES[name]
    found = compare(case.log_probs, case.log_probs, case.target, case.population, intervals=intervals, draws=200)
    for figure in found:
        if not math.isnan(found[figure].value):
            assert (found[figure].value, found[figure].low, found[figure].high) == (0, 0, 0), figure
            assert found[figure].verdict == "undecided"


@pytest.mark.long
@both_ways
@pytest.mark.parametrize(("name", "uncertain"), [("2 classes with ties", True), ("4 classes with ties", False)])
def test_exchanging_the_models_mirrors_every_interval_and_verdict(name: str, uncertain: bool, intervals: Method) -> None:
    case = CASES[name]
    at = rl.Prevalence.dirichlet(50 * case.population) if uncertain else rl.Prevalence(case.population)
    ab, ba = (
        compare(*pair, case.target, at, intervals=intervals, draws=400)
        for pair in ((case.log_probs, rival(case)), (rival(case), case.log_probs))
    )
    exchanged = {"a ahead": "b ahead", "b ahead": "a ahead", "undecided": "undecided"}
    for figure in ab:
        one, other = ab[figure], ba[figure]
        np.testing.assert_allclose([one.value, one.a], [-other.value, other.b], rtol=1e-9)
        # noise of the delta method and weighted percentiles are mirrored in distribution alone
        exact = not uncertain or one.low == one.value
        width = 0.0 if math.isnan(one.low) else one.high - one.low
        tolerance: dict[str, Any] = {"rtol": 1e-7, "atol": 1e-9} if exact else {"rtol": 0.0, "atol": 0.25 * width + 1e-12}
        np.testing.assert_allclose([one.low, one.high], [-other.high, -other.low], err_msg=figure, **tolerance)
        if exact:
            assert one.verdict == exchanged[other.verdict]


def delong(a: np.ndarray, b: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Difference of AUCs and its standard error, from all pairs of a positive and a negative, with ties as halves."""
    wins = [(s[y == 1][:, None] > s[y == 0]) + 0.5 * (s[y == 1][:, None] == s[y == 0]) for s in (a, b)]
    difference = wins[0] - wins[1]
    of_positives, of_negatives = difference.mean(1), difference.mean(0)
    variance = of_positives.var(ddof=1) / len(of_positives) + of_negatives.var(ddof=1) / len(of_negatives)
    return float(difference.mean()), math.sqrt(variance)


@pytest.mark.parametrize("decimals", [None, 1])
def test_the_analytic_interval_of_the_auc_is_delongs(decimals: int | None) -> None:
    a, b, y = two_and_one(0.05, 80, 3)
    if decimals is not None:
        a, b = (of_odds((each[:, 1] - each[:, 0]).round(decimals - 1)) for each in (a, b))
    value, error = delong(a[:, 1] - a[:, 0], b[:, 1] - b[:, 0], y)
    found = compare(a, b, y, 0.05, intervals="analytic").auc
    np.testing.assert_allclose(
        [found.value, found.low, found.high], [value, value - 1.959964 * error, value + 1.959964 * error], rtol=1e-5
    )


@pytest.mark.long
@pytest.mark.parametrize("k", [2, 3])
def test_analytic_standard_errors_equal_the_jackknifes(k: int) -> None:
    case = hard(*logits(k, 60, 21), population(k, 4))
    other, rows = rival(case), np.arange(60)
    # groups of one, for else differences of decisions are made otherwise
    found = compare(case.log_probs, other, case.target, case.population, intervals="analytic", groups=range(60))
    with unchecked_types():
        left = [
            compare(case.log_probs[rows != i], other[rows != i], case.target[rows != i], case.population, intervals=None)
            for i in rows
        ]
    for name in ("expected_log_likelihood", "skill", "brier", "mean_prediction", "auc", "weighted_accuracy", "tpr", "tnr"):
        values = np.array([each[name].value for each in left])
        by_class = [values[case.labels == c] for c in range(k)]
        expected = math.sqrt(sum((len(v) - 1) / len(v) * ((v - v.mean()) ** 2).sum() for v in by_class))
        assert (found[name].high - found[name].low) / 2 / 1.959964 == pytest.approx(expected, rel=0.03), name


@pytest.mark.long
def test_verdicts_follow_what_is_better() -> None:
    a, b, y = two_and_one(0.1, 1000, 5)
    options: dict[str, Any] = {"threshold": 0.1, "intervals": "analytic"}
    found = compare(a, b, y, 0.1, **options)
    for name in ("expected_log_likelihood", "skill", "brier", "auc", "expected_cost", "net_benefit"):
        assert found[name].verdict == "a ahead", name
    # b is right, and its logits times 2 or 0.5 are equally wrong in their slope, to one side each
    odds = b[:, 1] - b[:, 0]
    steep, flat, raised = of_odds(2 * odds), of_odds(0.5 * odds), of_odds(odds + 1)
    for wrong in (steep, flat):
        assert compare(b, wrong, y, 0.1, **options).calibration_slope.verdict == "a ahead"
        assert compare(wrong, b, y, 0.1, **options).calibration_slope.verdict == "b ahead"
    opposite = compare(of_odds(1.5 * odds), of_odds(0.75 * odds), y, 0.1, **options).calibration_slope  # slopes of 2/3 and 4/3
    assert opposite.high < 0
    assert opposite.verdict == "undecided"
    for name in ("mean_prediction", "calibration_intercept", "calibration_error"):
        assert compare(b, raised, y, 0.1, **options)[name].verdict == "a ahead", name


@pytest.mark.long
@both_ways
def test_an_uncertain_prevalence_widens_the_interval(intervals: Method) -> None:
    a, b, y = two_and_one(0.1, 1000, 6)
    options: dict[str, Any] = {"threshold": 0.1, "intervals": intervals, "draws": 400}
    certain, unsure = (compare(a, b, y, at, **options) for at in (0.1, rl.Prevalence.beta(1.0, 9.0)))
    for name in ("expected_log_likelihood", "net_benefit"):
        assert unsure[name].high - unsure[name].low > 1.3 * (certain[name].high - certain[name].low), name


def test_undefined_and_infinite_figures_say_why() -> None:
    a, b, y = two_and_one(0.1, 30, 7)
    sure = b.copy()
    sure[0] = np.array([-math.inf, 0.0])  # of class 1, but y is 0
    found = compare(a, sure, y, 0.1)
    assert found.expected_log_likelihood.value == math.inf
    assert found.expected_log_likelihood.verdict == "a ahead"
    assert found.expected_log_likelihood.reason == "b gave probability 0 to 1 example(s)"
    assert compare(sure, a, y, 0.1).skill.verdict == "b ahead"
    assert math.isnan(compare(sure, sure, y, 0.1).skill.value)
    assert found.calibration_slope.reason.startswith("b: a probability of exactly 0")
    assert math.isnan(compare(a[y == 1], b[y == 1], y[y == 1], 0.1).auc.value)
    assert "undefined: a: no example of class(es) [0]" in str(compare(a[y == 1], b[y == 1], y[y == 1], 0.1))


def test_what_cannot_be_compared_is_refused() -> None:
    a, b, y = two_and_one(0.1, 30, 8)
    three, dense = log_softmax(np.zeros((60, 3)), axis=1), np.moveaxis(a.reshape(30, 2, 2), 2, 1)
    assert_refused(lambda: compare(a, b[:-1], y, 0.1), "one label per row")
    assert_refused(lambda: compare(a, three, y, 0.1), "a frequency per class")
    assert_refused(lambda: compare(dense, b, y.reshape(30, 2), 0.1), "class numbers|per row")
    assert_refused(lambda: compare(a, b, y, 0.1, draws=5), "draws")
    assert_refused(lambda: compare(a, b, y, 0.1, level=95), "level")


def test_a_comparison_can_be_stored_and_read_as_a_table() -> None:
    a, b, y = two_and_one(0.1, 40, 9)
    found = compare(a, b, y, 0.1, intervals="analytic")
    again: Comparison = pickle.loads(pickle.dumps(found))
    assert again.to_dict().keys() == found.to_dict().keys()
    assert again.auc == found.auc
    assert str(found).count("\n") == 1 + len(list(found))
    with pytest.raises(KeyError, match="there is no figure"):
        found["f1"]
    with pytest.raises(AttributeError, match="its figures are"):
        found.f1  # noqa: B018


@pytest.mark.long
def test_it_is_analytic_unless_asked_and_resampling_agrees_but_for_the_calibration_error() -> None:
    a, b, y = two_and_one(0.1, 300, 91)
    asked, found, drawn = (compare(a, b, y, 0.1, intervals=each) for each in ("analytic", "auto", "bootstrap"))
    assert found.intervals == "analytic"
    assert found.to_dict() == asked.to_dict()
    for name in ("expected_log_likelihood", "brier", "auc", "calibration_slope", "ppv"):
        assert drawn[name].high - drawn[name].low == pytest.approx(asked[name].high - asked[name].low, rel=0.15), name
    # resamples of absolute values vary too little
    lengths = [each.calibration_error.high - each.calibration_error.low for each in (drawn, asked)]
    assert lengths[0] >= lengths[1] * (1 - 1e-9)
