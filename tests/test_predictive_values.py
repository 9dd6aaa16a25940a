"""Predictive values and net benefit: by counting, and on a population known in closed form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from draws import assert_refused, population, stream, unchecked_types
from labelled import assert_covers, normals, predictions, true_rates, weights
from scipy.special import log_softmax

from rightloss.metrics.decisions import decide
from rightloss.metrics.predictive_values import decision_curve, operating_point, predictive_value_curve
from rightloss.prevalence import Prevalence


class TestPredictiveValues:
    def test_prevalences_can_come_in_a_tensor_with_gradient(self) -> None:
        torch = pytest.importorskip("torch")
        grid = torch.tensor([0.25, 0.125], requires_grad=True)
        found = predictive_value_curve(*predictions(100, 2), threshold=0.4, prevalences=grid)
        assert found.prevalence.tolist() == [0.125, 0.25]

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
        start = Prevalence(population(3, 1))
        pi0 = start.population
        grid = np.array([0.1, 0.2, 0.6])
        found = predictive_value_curve(
            log_probs, labels, threshold=0.3, prevalences=grid, retarget=True, from_=start, positive=2
        )
        for j, rate in enumerate(grid):
            pi = pi0 * (1 - rate) / (1 - pi0[2])
            pi[2] = rate
            moved = log_softmax(log_probs + np.log(pi) - np.log(pi0), axis=1)
            fixed = predictive_value_curve(moved, labels, threshold=0.3, prevalences=[rate], from_=pi, positive=2)
            for name in ("ppv", "npv", "true_positive_rate", "true_negative_rate"):
                assert math.isclose(getattr(found, name)[j], getattr(fixed, name)[0], rel_tol=1e-9), name

    def test_retargeted_to_their_own_prevalence_do_not_move(self) -> None:
        log_probs, labels = predictions(500, 2)
        moved = predictive_value_curve(log_probs, labels, threshold=0.3, prevalences=[0.2], retarget=True, from_=0.2)
        still = predictive_value_curve(log_probs, labels, threshold=0.3, prevalences=[0.2])
        np.testing.assert_allclose(moved.threshold, still.threshold, rtol=1e-12)
        assert moved.ppv == still.ppv

    def test_retargeted_keep_at_least_the_threshold_and_fixed_ones_lose_it(self) -> None:
        log_probs, y = normals(0.5, 20_000, 0)
        grid = [0.001, 0.01]
        moved = predictive_value_curve(log_probs, y, threshold=0.2, prevalences=grid, retarget=True, from_=0.5)
        fixed = predictive_value_curve(log_probs, y, threshold=0.2, prevalences=grid)
        assert bool((moved.ppv_high > 0.2).all())
        assert bool((fixed.ppv_high < 0.05).all())

    @pytest.mark.parametrize("decimals", [None, 0])
    @pytest.mark.parametrize("share", [0.5, 0.9, 0.95])
    def test_at_a_rate_take_the_threshold_that_just_reaches_it(self, share: float, decimals: int | None) -> None:
        log_probs, labels = predictions(401, 2, decimals=decimals)
        odds = log_probs[:, 1] - log_probs[:, 0]
        rates = [[(odds[labels == c] >= cut).mean() for c in (0, 1)] for cut in np.append(np.unique(odds), math.inf)]
        found = operating_point(log_probs, labels, 0.1, recall=share)
        best = max(j for j, (_, tpr) in enumerate(rates) if tpr >= share)
        assert (found.recall.value, found.specificity.value) == pytest.approx((rates[best][1], 1 - rates[best][0]))
        found = operating_point(log_probs, labels, 0.1, specificity=share)
        best = min(j for j, (fpr, _) in enumerate(rates) if 1 - fpr >= share)
        assert (found.recall.value, found.specificity.value) == pytest.approx((rates[best][1], 1 - rates[best][0]))

    @pytest.mark.long
    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    @pytest.mark.parametrize("decimals", [None, 1, 0])
    @pytest.mark.parametrize("k", [2, 3])
    def test_at_a_rate_equal_those_at_its_threshold(self, k: int, decimals: int | None, dtype: Any) -> None:
        log_probs, labels = predictions(400, k, decimals=decimals)
        given, pi = log_probs.astype(dtype), population(k)
        for share in (0.05, 0.5, 0.9, 0.999):
            for rate in ("recall", "specificity"):
                option: dict[str, Any] = {rate: share}
                found = operating_point(given, labels, pi, positive=1, **option)
                assert getattr(found, rate).value >= share - 1e-12
                again = predictive_value_curve(
                    given, labels, threshold=found.threshold, prevalences=[pi[1]], from_=pi, positive=1
                )
                reached = (again.true_positive_rate[0], again.true_negative_rate[0], again.ppv[0], again.npv[0])
                asked = (found.recall.value, found.specificity.value, found.ppv.value, found.npv.value)
                assert asked == pytest.approx(reached, rel=1e-12, nan_ok=True)
                if k == 2:
                    called = decide(given, threshold=found.threshold)
                    assert called[labels == 1].mean() == pytest.approx(found.recall.value)
                    assert called[labels == 0].mean() == pytest.approx(1 - found.specificity.value)

    def test_at_a_rate_keep_to_thresholds_that_a_float_holds(self) -> None:
        log_probs = np.array([[0.0, -900.0], [0.0, -800.0], [math.log(0.5)] * 2, [-math.inf, 0.0]])
        found = operating_point(log_probs, [0, 1, 0, 1], 0.1, recall=0.5)
        assert found.recall.value == 0.5
        assert 0.5 < found.threshold < 1
        assert_refused(
            lambda: operating_point(log_probs, [0, 1, 0, 1], 0.1, recall=0.9),
            "`recall` of 0.9, but .* certain, of another class than 1: ",
        )

    @pytest.mark.parametrize("k", [2, 3])
    def test_of_the_vaguest_prevalence_have_limits(self, k: int) -> None:
        """Draws of π in which one class is all there is."""
        log_probs, labels = predictions(100, k)
        vague = Prevalence.dirichlet([1e-3] * k)
        values = predictive_value_curve(log_probs, labels, threshold=0.4, prevalences=vague, positive=1)
        benefit = decision_curve(log_probs, labels, vague, [0.2, 0.4], positive=1)
        for each in (values.ppv_low, values.ppv_high, values.npv_low, values.npv_high, benefit.low, benefit.high):
            assert bool(np.isfinite(each).all())

    def test_at_a_rate_take_a_threshold_between_predictions(self) -> None:
        p = np.array([0.1, 0.4, 0.4, 0.4, 0.4, 0.9])
        found = operating_point(np.log(np.stack([1 - p, p], 1)), [0, 0, 0, 0, 1, 1], 0.1, specificity=0.9)
        assert found.specificity.value == 1
        assert 0.45 < found.threshold < 0.85
        top = operating_point(np.log(np.stack([1 - p, p], 1)), [1, 0, 0, 0, 1, 0], 0.1, specificity=0.9)
        assert 0.9 < top.threshold < 1
        assert top.specificity.value == 1

    def test_retargeted_move_even_those_whose_probability_rounds_to_1(self) -> None:
        logits = np.array([[0.0, 0.0, 20.0], [0.0, 0.0, 30.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
        given = log_softmax(logits.astype(np.float32), axis=1)
        assert given[:2, 2].tolist() == [0, 0]
        found = predictive_value_curve(
            given, [2, 2, 1, 0], threshold=0.5, prevalences=[1e-10], retarget=True, from_=[0.25, 0.25, 0.5], positive=2
        )
        assert found.true_positive_rate == 0.5  # at −3.7 and 6.3 of the log-odds

    @pytest.mark.long
    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    def test_a_prediction_at_the_threshold_is_called_as_decide_calls_it(self, dtype: Any) -> None:
        p = np.arange(1, 100) / 100
        log_probs = np.stack([np.log1p(-p), np.log(p)], 1).astype(dtype)
        labels = np.arange(99) % 2
        for percent in range(1, 100):
            t = percent / 100
            found = predictive_value_curve(log_probs, labels, threshold=t, prevalences=[0.5])
            called = decide(log_probs, threshold=t)
            assert called.sum() == 100 - percent
            assert found.true_positive_rate.tolist() == [pytest.approx(float(called[labels == 1].mean()))]

    def test_where_nobody_is_called_positive_there_is_no_ppv(self) -> None:
        log_probs, labels = predictions(100, 2)
        found = predictive_value_curve(log_probs, labels, threshold=1 - 1e-12, prevalences=[0.01])
        assert math.isnan(found.ppv[0])
        assert (found.ppv_low[0], found.ppv_high[0], found.npv[0]) == (0.0, 1.0, 0.99)

    @pytest.mark.long
    @pytest.mark.parametrize(("n0", "n1", "t"), [(150, 60, 0.5), (600, 25, 0.7)])
    @unchecked_types()
    def test_limits_cover_the_truth(self, n0: int, n1: int, t: float) -> None:
        tpr, fpr = (float(rate[0]) for rate in true_rates(0.5, t))
        grid = np.array([0.001, 0.05, 0.4])
        ppv = grid * tpr / (grid * tpr + (1 - grid) * fpr)
        npv = (1 - grid) * (1 - fpr) / ((1 - grid) * (1 - fpr) + grid * (1 - tpr))
        hits = []
        for seed in range(150):
            log_probs, y = normals(0.5, max(n0, n1), seed)
            kept = np.concatenate([np.arange(n0), len(y) // 2 + np.arange(n1)])
            found = predictive_value_curve(log_probs[kept], y[kept], threshold=t, prevalences=grid)
            inside = (found.ppv_low <= ppv) & (ppv <= found.ppv_high), (found.npv_low <= npv) & (npv <= found.npv_high)
            hits.append(np.concatenate(inside))
        assert_covers(hits)

    def test_an_uncertain_prevalence_widens_the_limits_and_a_firm_one_does_not(self) -> None:
        log_probs, y = normals(0.5, 3000, 0)
        certain = predictive_value_curve(log_probs, y, threshold=0.5, prevalences=[0.02])
        firm = predictive_value_curve(log_probs, y, threshold=0.5, prevalences=Prevalence.beta(2e7, 98e7))
        loose = predictive_value_curve(log_probs, y, threshold=0.5, prevalences=Prevalence.beta(4.0, 196.0))
        assert firm.ppv == pytest.approx(certain.ppv, rel=1e-12)
        np.testing.assert_allclose([firm.ppv_low, firm.ppv_high], [certain.ppv_low, certain.ppv_high], rtol=0.02)
        # with the rates known, the limits are those of π by Bayes' rule
        drawn = np.random.default_rng(0).beta(4.0, 196.0, 200_000)
        tpr, fpr = loose.true_positive_rate, 1 - loose.true_negative_rate
        expected = np.quantile(drawn * tpr / (drawn * tpr + (1 - drawn) * fpr), [0.025, 0.975])
        np.testing.assert_allclose([loose.ppv_low[0], loose.ppv_high[0]], expected, rtol=0.1)


class TestDecisionCurve:
    def test_is_what_counting_gives(self) -> None:
        log_probs, labels = predictions(300, 2)
        found = decision_curve(log_probs, labels, 0.05, thresholds=[0.5, 0.02, 0.2])
        p, y = np.exp(log_probs[:, 1]), labels
        for j, t in enumerate([0.02, 0.2, 0.5]):
            helped = 0.05 * np.mean(p[y == 1] >= t)
            bothered = 0.95 * np.mean(p[y == 0] >= t)
            assert math.isclose(found.net_benefit[j], helped - bothered * t / (1 - t), rel_tol=1e-12)
            assert math.isclose(found.treat_all[j], 0.05 - 0.95 * t / (1 - t), rel_tol=1e-12)

    def test_is_the_gain_of_the_decisions_in_the_costs_of_the_threshold(self) -> None:
        log_probs, labels = predictions(300, 2)
        t = 0.15
        saved = decision_curve(log_probs, labels, 0.1, [t]).net_benefit[0]
        chosen = decide(log_probs, [[0, t / (1 - t)], [0, -1.0]])
        paid = np.where(labels == 1, -1.0, t / (1 - t)) * chosen
        assert math.isclose(saved, -float(weights(labels, np.array([0.9, 0.1])) @ paid), rel_tol=1e-12)

    @pytest.mark.long
    def test_of_the_true_predictions_is_never_below_treating_all_or_none(self) -> None:
        found = decision_curve(*normals(0.03, 30_000, 0), 0.03)
        best = np.maximum(found.treat_all, 0)
        assert bool((found.high >= best).all())
        assert found.net_benefit[50] > best[50] + 0.005
        tpr, fpr = true_rates(0.03, found.threshold)
        truth = 0.03 * tpr - 0.97 * fpr * found.threshold / (1 - found.threshold)
        np.testing.assert_allclose(found.net_benefit, truth, atol=2e-3)
        assert found.threshold[50] == pytest.approx(0.03)

    @pytest.mark.long
    @unchecked_types()
    def test_limits_cover_the_truth(self) -> None:
        grid = np.array([0.02, 0.05, 0.2])
        tpr, fpr = true_rates(0.05, grid)
        truth = 0.05 * tpr - 0.95 * fpr * grid / (1 - grid)
        hits = []
        for seed in range(150):
            found = decision_curve(*normals(0.05, 150, seed), 0.05, grid)
            hits.append((found.low <= truth) & (truth <= found.high))
        assert_covers(hits)

    @pytest.mark.long
    @unchecked_types()
    def test_limits_with_an_uncertain_prevalence_cover_a_truth_drawn_from_it(self) -> None:
        grid = np.array([0.02, 0.1])
        uncertain = Prevalence.beta(5.0, 95.0)
        rates = uncertain.sample(150, stream(9))[:, 1].tolist()
        tpr, fpr = true_rates(0.05, grid)
        hits = []
        for seed, rate in enumerate(rates):
            truth = rate * tpr - (1 - rate) * fpr * grid / (1 - grid)
            found = decision_curve(*normals(0.05, 300, seed), uncertain, grid)
            hits.append((found.low <= truth) & (truth <= found.high))
        assert_covers(hits)
