"""Predictive values, net benefit and operating points: by counting, against `evaluate`, and on a population in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from draws import assert_refused, population, stream, unchecked_types
from labelled import assert_covers, normals, predictions, true_rates, weights
from scipy.special import log_softmax

import rightloss as rl
from rightloss.metrics import OperatingPoint, decide, decision_curve, evaluate, operating_point, predictive_value_curve


class TestPredictiveValues:
    def test_follow_from_counts_by_bayes_rule(self) -> None:
        log_probs, labels = predictions(500, 2)
        found = predictive_value_curve(log_probs, labels, threshold=0.4, prevalences=[0.3, 0.01])
        called, y = np.exp(log_probs[:, 1]) >= 0.4, labels
        tpr, tnr = called[y == 1].mean(), 1 - called[y == 0].mean()
        assert found.prevalence.tolist() == [0.01, 0.3]
        for j, pi in enumerate(found.prevalence):
            people = {(c, d): (pi if c else 1 - pi) * (called[y == c] == d).mean() for c in (0, 1) for d in (0, 1)}
            assert math.isclose(found.ppv[j], people[1, 1] / (people[1, 1] + people[0, 1]), rel_tol=1e-12)
            assert math.isclose(found.npv[j], people[0, 0] / (people[0, 0] + people[1, 0]), rel_tol=1e-12)
        np.testing.assert_allclose(found.true_positive_rate, tpr, rtol=1e-12)
        np.testing.assert_allclose(found.true_negative_rate, tnr, rtol=1e-12)

    def test_retargeted_are_those_of_predictions_moved_by_hand(self) -> None:
        log_probs, labels = predictions(500, 3)
        start = rl.Prevalence(population(3, 1))
        pi0, grid = start.population, np.array([0.1, 0.2, 0.6])
        options: dict[str, Any] = {"threshold": 0.3, "positive": 2}
        found = predictive_value_curve(log_probs, labels, prevalences=grid, retarget=True, from_=start, **options)
        for j, rate in enumerate(grid):
            pi = pi0 * (1 - rate) / (1 - pi0[2])
            pi[2] = rate
            moved = log_softmax(log_probs + np.log(pi) - np.log(pi0), axis=1)
            fixed = predictive_value_curve(moved, labels, prevalences=[rate], from_=pi, **options)
            for name in ("ppv", "npv", "true_positive_rate", "true_negative_rate"):
                assert math.isclose(getattr(found, name)[j], getattr(fixed, name)[0], rel_tol=1e-9), name
        own = predictive_value_curve(log_probs, labels, prevalences=[pi0[2]], retarget=True, from_=start, **options)
        np.testing.assert_allclose(own.threshold, 0.3, rtol=1e-12)

    def test_retargeted_move_even_those_whose_probability_rounds_to_1(self) -> None:
        logits = np.array([[0.0, 0.0, 20.0], [0.0, 0.0, 30.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
        given = log_softmax(logits.astype(np.float32), axis=1)
        assert given[:2, 2].tolist() == [0, 0]
        found = predictive_value_curve(
            given, [2, 2, 1, 0], threshold=0.5, prevalences=[1e-10], retarget=True, from_=[0.25, 0.25, 0.5], positive=2
        )
        assert found.true_positive_rate == 0.5  # at −3.7 and 6.3 of the log-odds

    @pytest.mark.parametrize("k", [2, 3])
    def test_of_the_vaguest_prevalence_have_limits(self, k: int) -> None:
        """Draws of π in which one class is all there is."""
        log_probs, labels = predictions(100, k)
        vague = rl.Prevalence.dirichlet([1e-3] * k)
        values = predictive_value_curve(log_probs, labels, threshold=0.4, prevalences=vague, positive=1)
        benefit = decision_curve(log_probs, labels, vague, [0.2, 0.4], positive=1)
        for each in (values.ppv_low, values.ppv_high, values.npv_low, values.npv_high, benefit.low, benefit.high):
            assert bool(np.isfinite(each).all())

    @pytest.mark.long
    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    def test_a_prediction_at_the_threshold_is_called_as_decide_calls_it(self, dtype: Any) -> None:
        p = np.arange(1, 100) / 100
        log_probs = np.stack([np.log1p(-p), np.log(p)], 1).astype(dtype)
        labels = np.arange(99) % 2
        for percent in range(1, 100, 7):
            found = predictive_value_curve(log_probs, labels, threshold=percent / 100, prevalences=[0.5])
            called = decide(log_probs, threshold=percent / 100)
            assert called.sum() == 100 - percent
            assert found.true_positive_rate.tolist() == [pytest.approx(float(called[labels == 1].mean()))]

    def test_where_nobody_is_called_positive_there_is_no_ppv(self) -> None:
        log_probs, labels = predictions(100, 2)
        found = predictive_value_curve(log_probs, labels, threshold=1 - 1e-12, prevalences=[0.01])
        assert math.isnan(found.ppv[0])
        assert (found.ppv_low[0], found.ppv_high[0], found.npv[0]) == (0.0, 1.0, 0.99)

    def test_an_uncertain_prevalence_widens_the_limits_and_a_firm_one_does_not(self) -> None:
        log_probs, y = normals(0.5, 3000, 0)
        certain = predictive_value_curve(log_probs, y, threshold=0.5, prevalences=[0.02])
        firm = predictive_value_curve(log_probs, y, threshold=0.5, prevalences=rl.Prevalence.beta(2e7, 98e7))
        loose = predictive_value_curve(log_probs, y, threshold=0.5, prevalences=rl.Prevalence.beta(4.0, 196.0))
        assert firm.ppv == pytest.approx(certain.ppv, rel=1e-12)
        np.testing.assert_allclose([firm.ppv_low, firm.ppv_high], [certain.ppv_low, certain.ppv_high], rtol=0.02)
        # with the rates known, the limits are those of π by Bayes' rule
        drawn = np.random.default_rng(0).beta(4.0, 196.0, 200_000)
        tpr, fpr = loose.true_positive_rate, 1 - loose.true_negative_rate
        expected = np.quantile(drawn * tpr / (drawn * tpr + (1 - drawn) * fpr), [0.025, 0.975])
        np.testing.assert_allclose([loose.ppv_low[0], loose.ppv_high[0]], expected, rtol=0.1)


class TestDecisionCurve:
    def test_is_what_counting_gives_and_the_gain_of_the_decisions_at_those_costs(self) -> None:
        log_probs, labels = predictions(300, 2)
        found = decision_curve(log_probs, labels, 0.05, thresholds=[0.5, 0.02, 0.2])
        p, y = np.exp(log_probs[:, 1]), labels
        for j, t in enumerate([0.02, 0.2, 0.5]):
            price = t / (1 - t)
            benefit = 0.05 * np.mean(p[y == 1] >= t) - 0.95 * np.mean(p[y == 0] >= t) * price
            assert math.isclose(found.net_benefit[j], benefit, rel_tol=1e-12)
            assert math.isclose(found.treat_all[j], 0.05 - 0.95 * price, rel_tol=1e-12)
            paid = np.where(labels == 1, -1.0, price) * decide(log_probs, [[0, price], [0, -1.0]])
            assert math.isclose(found.net_benefit[j], -float(weights(labels, np.array([0.95, 0.05])) @ paid), rel_tol=1e-12)

    @pytest.mark.long
    @unchecked_types()
    def test_limits_with_an_uncertain_prevalence_cover_a_truth_drawn_from_it(self) -> None:
        grid, uncertain = np.array([0.02, 0.1]), rl.Prevalence.beta(5.0, 95.0)
        tpr, fpr = true_rates(0.05, grid)
        hits = []
        for seed, rate in enumerate(uncertain.sample(150, stream(9))[:, 1].tolist()):
            truth = rate * tpr - (1 - rate) * fpr * grid / (1 - grid)
            found = decision_curve(*normals(0.05, 300, seed), uncertain, grid)
            hits.append((found.low <= truth) & (truth <= found.high))
        assert_covers(hits)


ASKED: list[dict[str, Any]] = [{"recall": 0.9}, {"specificity": 0.95}, {"alarms": 2.5, "people": 40}, {"threshold": 0.2}]


class TestOperatingPoint:
    @pytest.mark.parametrize("asked", ASKED, ids=str)
    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    def test_has_the_figures_of_evaluate_at_its_threshold(self, asked: dict[str, Any], dtype: Any) -> None:
        log_probs, y = predictions(300, 2, decimals=1)
        given = log_probs.astype(dtype)
        found = operating_point(given, y, 0.05, **asked)
        expected = evaluate(given, y, 0.05, threshold=found.threshold, intervals=None)
        for name, other in {"recall": "tpr", "specificity": "tnr", "ppv": "ppv", "npv": "npv"}.items():
            assert getattr(found, name).value == pytest.approx(expected[other].value, rel=1e-12), name
        people, tpr, fpr = asked.get("people", 1000), expected.tpr.value, 1 - expected.tnr.value
        shares = {"found": 0.05 * tpr, "missed": 0.05 * (1 - tpr), "false_alarms": 0.95 * fpr}
        shares["alarms"] = shares["found"] + shares["false_alarms"]
        for name, share in shares.items():
            assert getattr(found, name).value == pytest.approx(people * share, rel=1e-9, abs=1e-9), name
        ratios = {"lr_plus": tpr / fpr, "lr_minus": (1 - tpr) / (1 - fpr)}
        assert {name: getattr(found, name).value for name in ratios} == pytest.approx(ratios, rel=1e-9)

    @pytest.mark.parametrize("decimals", [None, 1])
    @pytest.mark.parametrize("k", [2, 3])
    def test_no_other_threshold_reaches_the_aim_with_fewer_alarms_or_more_cases(self, k: int, decimals: int | None) -> None:
        log_probs, y = predictions(300, k, decimals=decimals)
        pi = population(k, 5)
        given: dict[str, Any] = {} if k == 2 else {"positive": 1}
        p, weight, own = np.exp(log_probs[:, 1]), weights(y, pi), y == 1
        cuts = np.append(np.unique(p.round(12)), 2.0) - 1e-9
        recall = np.array([weight[own & (p >= cut)].sum() / weight[own].sum() for cut in cuts])
        specificity = np.array([weight[~own & (p < cut)].sum() / weight[~own].sum() for cut in cuts])
        alarms = np.array([weight[p >= cut].sum() for cut in cuts])
        for share in (0.3, 0.62, 0.9):
            best = operating_point(log_probs, y, pi, recall=share, **given)
            assert best.specificity.value == pytest.approx(specificity[recall >= share - 1e-12].max())
            best = operating_point(log_probs, y, pi, specificity=share, **given)
            assert best.recall.value == pytest.approx(recall[specificity >= share - 1e-12].max())
            best = operating_point(log_probs, y, pi, alarms=100 * share, people=100, **given)
            assert best.recall.value == pytest.approx(recall[alarms <= share + 1e-12].max())
            assert best.alarms.value <= 100 * share + 1e-9

    def test_its_threshold_lies_between_predictions_and_a_float_holds_it(self) -> None:
        p = np.array([0.1, 0.4, 0.4, 0.4, 0.4, 0.9])
        table = np.log(np.stack([1 - p, p], 1))
        found = operating_point(table, [0, 0, 0, 0, 1, 1], 0.1, specificity=0.9)
        assert found.specificity.value == 1
        assert 0.45 < found.threshold < 0.85
        top = operating_point(table, [1, 0, 0, 0, 1, 0], 0.1, specificity=0.9)
        assert 0.9 < top.threshold < 1
        assert top.specificity.value == 1
        log_probs = np.array([[0.0, -900.0], [0.0, -800.0], [math.log(0.5)] * 2, [-math.inf, 0.0]])
        half = operating_point(log_probs, [0, 1, 0, 1], 0.1, recall=0.5)
        assert half.recall.value == 0.5
        assert 0.5 < half.threshold < 1
        assert_refused(lambda: operating_point(log_probs, [0, 1, 0, 1], 0.1, recall=0.9), "certain, of another class than 1: ")

    def test_an_uncertain_prevalence_and_groups_widen_the_intervals(self) -> None:
        log_probs, y = normals(0.1, 200, 3)

        def width(found: OperatingPoint) -> float:
            return found.ppv.high - found.ppv.low

        plain = operating_point(log_probs, y, 0.1, recall=0.8)
        unsure = operating_point(log_probs, y, rl.Prevalence.beta(2.0, 18.0), recall=0.8)
        assert unsure.threshold == plain.threshold
        assert width(unsure) > 1.5 * width(plain)
        tripled = operating_point(np.tile(log_probs, (3, 1)), np.tile(y, 3), 0.1, recall=0.8, groups=np.tile(np.arange(400), 3))
        assert width(tripled) == pytest.approx(width(plain), rel=0.1)

    def test_nobody_called_has_no_predictive_value_but_limits_of_the_rest(self) -> None:
        found = operating_point(*predictions(100, 2), 0.05, threshold=1 - 1e-9)
        assert math.isnan(found.ppv.value)
        assert found.ppv.reason == "nobody is called positive"
        assert found.alarms.value == 0 < found.alarms.high
        assert "undefined: nobody is called positive" in str(found)
        assert str(found).splitlines()[0].startswith("Class 1 from a probability of 1")


P, Y = predictions(100, 2)
CERTAIN = np.tile([-math.inf, 0.0], (100, 1))


def values(**options: Any) -> Any:
    return predictive_value_curve(P, Y, **{"threshold": 0.5, **options})


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "no mix of the rest": (lambda: predictive_value_curve(*predictions(30, 3), threshold=0.5, positive=1), "but got none"),
    "a threshold in per cent": (lambda: values(threshold=20), "is it a percentage"),
    "prevalences in per cent": (lambda: values(prevalences=[1, 10]), r"strictly between 0 and 1, but got \[1.0, 10.0\]"),
    "no prevalences": (lambda: values(prevalences=[]), "`prevalences` strictly between"),
    "prevalences in words": (lambda: values(prevalences=["low"]), "`prevalences` to be numbers"),
    "a prevalence of other classes": (lambda: values(prevalences=rl.Prevalence(population(3)), from_=0.5), "2 classes.*got 3"),
    "retargeting from nowhere": (lambda: values(retarget=True), "`from_` to retarget, but got none"),
    "a number for a generator": (lambda: values(generator=1.0), "or a seed, but got 1.0: "),
    "thresholds of 0": (lambda: decision_curve(P, Y, 0.1, thresholds=[0.0, 0.5]), "`thresholds` strictly"),
    "no aim": (lambda: operating_point(P, Y, 0.05), "one of recall"),
    "two aims": (lambda: operating_point(P, Y, 0.05, recall=0.9, alarms=3), "recall and alarms"),
    "a recall in per cent": (lambda: operating_point(P, Y, 0.05, recall=90), "`recall` strictly between"),
    "too many alarms": (lambda: operating_point(P, Y, 0.05, alarms=2000), "fewer `alarms` than `people`"),
    "no alarms": (lambda: operating_point(P, Y, 0.05, alarms=0), "above 0"),
    "unknown people": (lambda: operating_point(P, Y, 0.05, alarms=3, people=math.nan), "`people`"),
    "a threshold of 2": (lambda: operating_point(P, Y, 0.05, threshold=2.0), "threshold"),
    "alarms out of reach": (lambda: operating_point(CERTAIN, Y, 0.05, alarms=3), "certain"),
    "a rate out of reach": (lambda: operating_point(CERTAIN, Y, 0.05, specificity=0.9), "certain, of class 1: "),
    "a rate beyond what a probability can tell apart": (
        lambda: operating_point(np.array([[-50.0, 0.0], [-60.0, 0.0]]), [0, 1], 0.1, specificity=0.5),
        "certain, of class 1: ",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_what_came_and_what_to_do(what: str) -> None:
    assert_refused(*BAD[what])
