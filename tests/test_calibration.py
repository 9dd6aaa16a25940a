"""Calibration: the slope against other optimisers, the reliability curve against scikit-learn and by its limits' coverage."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from cases import CASES, Method
from draws import population, stream, unchecked_types
from labelled import SEEDS, assert_covers, normals, of_odds, predictions, true_rates, weights
from scipy import optimize, special
from scipy.special import log_softmax
from sklearn.calibration import calibration_curve

from rightloss.metrics import evaluate, probability_histogram, reliability_curve
from rightloss.predictive import retarget
from rightloss.prevalence import Prevalence

SPREADS = [1e-3, 1.0, 400.0, 700.0, 1e12]


def drawn(spread: float, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds that tell nothing of the labels, of which both classes have some."""
    rng = stream(seed)
    return rng.normal(0, spread, n), rng.permutation(np.arange(n) % 2)


def are_separated(odds: np.ndarray, y: np.ndarray) -> bool:
    return bool(odds[y == 1].min() >= odds[y == 0].max() or odds[y == 0].min() >= odds[y == 1].max())


def slope_by_bisection(odds: np.ndarray, y: np.ndarray, pi: float) -> float:
    """Where the likelihood's derivative in the slope is 0, with the intercept for which that in the intercept is."""
    weights = np.where(y == 1, pi / (y == 1).sum(), (1 - pi) / (y == 0).sum())
    sign, spread = 2 * y - 1, odds.std()
    z = (odds - odds.mean()) / spread

    def residuals(a: float, b: float) -> np.ndarray:
        return np.asarray(weights * sign * special.expit(-sign * (a + b * z)))

    def derivative(b: float) -> float:
        reach = 50 + 2 * abs(b) * np.abs(z).max()
        a = optimize.brentq(lambda a: residuals(a, b).sum(), -reach, reach, xtol=1e-14, rtol=1e-15)
        return float(residuals(a, b) @ z)

    low, high = -1.0, 1.0
    while derivative(low) < 0:
        low *= 2
    while derivative(high) > 0:
        high *= 2
    return float(optimize.brentq(derivative, low, high, xtol=1e-14, rtol=1e-15)) / spread


class TestSlope:
    def test_four_predictions_that_are_far_too_sure_have_the_slope_of_bisection(self) -> None:
        odds, y = np.array([80.0, -90.0, -40.0, -20.0]), np.array([0, 1, 0, 1])
        found = evaluate(of_odds(odds), y, 0.01, intervals=None).calibration_slope.value
        assert found == pytest.approx(slope_by_bisection(odds, y, 0.01), rel=1e-9)
        assert found == pytest.approx(-0.0931213, rel=1e-6)

    @pytest.mark.long
    @pytest.mark.parametrize("pi", [0.5, 0.01, 1e-5])
    @pytest.mark.parametrize("spread", SPREADS)
    @unchecked_types()
    def test_equals_bisection_for_log_odds_of_any_spread(self, spread: float, pi: float) -> None:
        fitted = 0
        for seed in range(12):
            odds, y = drawn(spread, 8 if seed % 3 == 0 else 50, seed)
            found = evaluate(of_odds(odds), y, pi, intervals=None).calibration_slope
            if are_separated(odds, y):
                assert "separated" in found.reason
            else:
                assert found.value == pytest.approx(slope_by_bisection(odds, y, pi), rel=1e-8)
                fitted += 1
        assert fitted >= 8

    @pytest.mark.parametrize("spread", [1.0, 400.0, 1e5])
    @pytest.mark.parametrize("k", [3, 5])
    def test_of_more_classes_equals_a_quasi_newton_search(self, k: int, spread: float) -> None:
        source = stream(k)
        table = log_softmax(spread * source.normal(size=(60, k)), axis=1)
        y, pi = np.arange(60) % k, np.arange(1.0, k + 1) / (k * (k + 1) / 2)
        x = table - table[:, :1]
        unit, rows, labels = x.std(), np.arange(60), y
        weights = (pi / np.bincount(labels))[labels]

        def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
            scores = theta[0] * x / unit + np.append(0.0, theta[1:])
            log_p = scores - special.logsumexp(scores, axis=1, keepdims=True)
            residual = weights[:, None] * (np.exp(log_p) - np.eye(k)[labels])
            return -float(weights @ log_p[rows, labels]), np.append((residual * x / unit).sum(), residual[:, 1:].sum(0))

        best = optimize.minimize(loss, np.zeros(k), jac=True, method="BFGS", options={"gtol": 1e-10})
        found = evaluate(table, y, pi, intervals=None).calibration_slope.value
        # whose gradient is 1e-10 at most, and whose curvature is about that of the search's own estimate
        error = float(np.sqrt(best.hess_inv[0, 0])) * 1e-6 / unit
        assert found == pytest.approx(best.x[0] / unit, abs=error, rel=1e-6)

    def test_stretching_the_log_odds_shrinks_the_slope_as_much(self) -> None:
        odds, y = drawn(1.0, 60, 3)
        once = evaluate(of_odds(odds), y, 0.1, intervals="analytic").calibration_slope
        for factor in (1e-4, 1e3, 1e100):
            found = evaluate(of_odds(factor * odds), y, 0.1, intervals="analytic").calibration_slope
            for end in ("value", "low", "high"):
                assert factor * getattr(found, end) == pytest.approx(getattr(once, end), rel=1e-6)

    @pytest.mark.long
    @pytest.mark.parametrize("k", [2, 4])
    def test_does_not_exist_where_the_classes_are_separated(self, k: int) -> None:
        y = np.arange(40) % k
        ahead = 1 + stream(5).random(40)
        table = log_softmax(np.eye(k)[y] * ahead[:, None], axis=1)
        for sign in (1.0, -1.0):  # right throughout, and wrong throughout
            found = evaluate(log_softmax(sign * table, axis=1), y, [1 / k] * k).calibration_slope
            assert math.isnan(found.value)
            assert "separated" in found.reason
        assert evaluate(table, np.where(np.arange(40) > 0, y, 1), [1 / k] * k).calibration_slope.value > 0

    def test_classes_that_touch_are_separated(self) -> None:
        found = evaluate(of_odds(np.array([-2.0, 0.5, 0.5, 3.0])), [0, 0, 1, 1], 0.1).calibration_slope
        assert "separated" in found.reason

    @pytest.mark.long
    @pytest.mark.parametrize("intervals", ["analytic", "bootstrap"])
    @pytest.mark.parametrize("spread", [700.0, 1e100])
    def test_every_figure_has_an_interval_with_enormous_log_odds(self, spread: float, intervals: Method) -> None:
        for seed in range(5):
            odds, y = drawn(spread, 50, seed)
            found = evaluate(of_odds(odds), y, 0.01, intervals=intervals, draws=200)
            assert spread < 1e100 or "certain" in found.calibration_intercept.reason
            for name in (name for name in found if name != "calibration_intercept"):  # of which resamples may have none
                assert math.isfinite(found[name].value), name
                assert found[name].low <= found[name].value <= found[name].high, name
                assert found[name].low < found[name].high, name


class TestIntercept:
    @pytest.mark.parametrize("name", CASES)
    def test_it_is_that_of_statsmodels_with_the_slope_held_at_1(self, name: str) -> None:
        case = CASES[name]()
        k = len(case.population)
        found = evaluate(case.log_probs, case.target, case.population, intervals=None).calibration_intercept
        weights = case.weights / case.weights.mean()
        expected = []
        for c in [1] if k == 2 else range(k):
            odds = special.logit(case.probs[:, c])
            model = sm.GLM(
                (case.labels == c).astype(float),
                np.ones((len(odds), 1)),
                family=sm.families.Binomial(),
                offset=odds,
                freq_weights=weights,
            )
            expected.append(float(model.fit(tol=1e-14, maxiter=200).params[0]))
        assert found.value == pytest.approx(expected[-1], rel=1e-6, abs=1e-9)
        if k > 2:
            np.testing.assert_allclose([float(each) for each in found.by_class or ()], expected, rtol=1e-6, atol=1e-9)

    @pytest.mark.parametrize("pi", [0.5, 0.01, 1e-7])
    def test_shifting_the_log_odds_by_it_makes_the_mean_prediction_right(self, pi: float) -> None:
        for scale in (0.1, 1.0, 30.0):
            odds, y = drawn(scale, 200, 3)
            odds = odds + y
            before = evaluate(of_odds(odds), y, pi, intervals=None).calibration_intercept.value
            after = evaluate(of_odds(odds + before), y, pi, intervals=None)
            assert after.mean_prediction.value == pytest.approx(pi, rel=1e-9)
            assert after.calibration_intercept.value == pytest.approx(0.0, abs=1e-9)
            raised = evaluate(of_odds(odds + 2.5), y, pi, intervals=None).calibration_intercept.value
            assert raised == pytest.approx(before - 2.5, rel=1e-9, abs=1e-9)

    def test_retargeting_from_the_training_mix_takes_the_shift_away(self) -> None:
        table, y = normals(0.5, 20_000, 5)
        moved = evaluate(retarget(table, 0.5, 0.01), y, 0.01, intervals="analytic").calibration_intercept
        assert moved.low < 0 < moved.high
        assert moved.high - moved.low < 0.15
        plain = evaluate(table, y, 0.01, intervals="analytic").calibration_intercept
        assert plain.high < -3  # near log 0.01/0.99 for predictions that say little

    @pytest.mark.slow
    @pytest.mark.parametrize("intervals", ["analytic", "bootstrap"])
    @unchecked_types()
    def test_its_interval_holds_the_truth(self, intervals: Method) -> None:
        hits = []
        for seed in range(200):
            table, y = normals(0.2, 150, 2000 + seed)
            found = evaluate(table, y, 0.2, intervals=intervals, draws=300).calibration_intercept
            hits.append([found.low <= 0 <= found.high])
        assert_covers(hits)

    def test_predictions_of_exactly_0_or_1_leave_it_defined_unless_they_are_too_many(self) -> None:
        odds, y = drawn(1.0, 100, 6)
        table = of_odds(odds)
        table[0] = np.array([0.0, -math.inf])
        assert math.isfinite(evaluate(table, y, 0.3, intervals=None).calibration_intercept.value)
        table[y == 1] = np.array([-math.inf, 0.0])
        table[y == 0] = np.array([0.0, -math.inf])
        found = evaluate(table, y, 0.3, intervals=None).calibration_intercept
        assert math.isnan(found.value)
        assert "no single shift" in found.reason


class TestReliabilityCurve:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_of_equal_width_is_that_of_scikit_learn_on_repeated_rows(self, seed: int) -> None:
        log_probs, labels = predictions(400, 2, seed)
        n0, n1 = (int((labels == c).sum()) for c in (0, 1))
        found = reliability_curve(log_probs, labels, n1 / (n1 + 3 * n0), bins=10, width="equal-width")
        repeated = np.where(labels == 0, 3, 1)
        p, y = np.repeat(np.exp(log_probs[:, 1]), repeated), np.repeat(labels, repeated)
        observed, predicted = calibration_curve(y, p, n_bins=10)
        np.testing.assert_allclose(found.observed, observed, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found.predicted, predicted, rtol=1e-9)

    @pytest.mark.long
    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    @pytest.mark.parametrize("k", [2, 3])
    @pytest.mark.parametrize("bins", [10, 20, 100])
    def test_round_probabilities_fall_into_the_bin_that_begins_with_them(self, bins: int, k: int, dtype: Any) -> None:
        p = np.arange(bins) / bins
        with np.errstate(divide="ignore"):
            given = np.log(np.stack([1 - p, p] if k == 2 else [0.3 * (1 - p), p, 0.7 * (1 - p)], 1)).astype(dtype)
        labels = np.arange(bins) % k
        found = reliability_curve(given, labels, population(k), bins=bins, positive=1, width="equal-width")
        np.testing.assert_allclose(found.predicted, p, atol=1e-6)
        shares = probability_histogram(given, labels, bins, positive=1).share
        assert bool(((shares > 0).sum(0) == 1).all())

    @pytest.mark.parametrize("k", [2, 4])
    def test_bins_of_equal_mass_make_up_the_population(self, k: int) -> None:
        log_probs, labels = predictions(3000, k)
        pi = population(k)
        found = reliability_curve(log_probs, labels, pi, bins=8, positive=1)
        largest = float(weights(labels, pi).max())
        np.testing.assert_allclose(found.weight, np.full(8, 1 / 8), atol=2 * largest)
        assert math.isclose(found.weight @ found.observed, float(pi[1]), rel_tol=1e-9)
        mean = float(weights(labels, pi) @ np.exp(log_probs[:, 1]))
        assert math.isclose(found.weight @ found.predicted, mean, rel_tol=1e-9)
        assert bool((np.diff(found.predicted) > 0).all())

    def test_tied_predictions_share_a_bin(self) -> None:
        p = np.array([0.1] * 70 + [0.6] * 30)
        labels = np.array([0] * 60 + [1] * 10 + [0] * 10 + [1] * 20)
        found = reliability_curve(np.log(np.stack([1 - p, p], 1)), labels, 30 / 100, bins=10)
        np.testing.assert_allclose(found.predicted, [0.1, 0.6], rtol=1e-12)
        np.testing.assert_allclose(found.observed, [10 / 70, 20 / 30], rtol=1e-12)
        np.testing.assert_allclose(found.weight, [0.7, 0.3], rtol=1e-12)

    @pytest.mark.long
    @pytest.mark.parametrize("rate", [0.3, 0.02])
    @unchecked_types()
    def test_limits_cover_the_truth_in_fixed_bins(self, rate: float) -> None:
        """On the true predictions, from a balanced sample."""
        edges = np.array([0.2, 0.4, 0.6]) if rate > 0.1 else np.array([1e-9, 0.2, 0.4])
        tpr, fpr = true_rates(rate, edges)
        truth = rate * -np.diff(tpr) / (rate * -np.diff(tpr) + (1 - rate) * -np.diff(fpr))
        hits = []
        for seed in range(150):
            found = reliability_curve(*normals(rate, 300, seed), rate, bins=5, width="equal-width")
            first = 1 if rate > 0.1 else 0
            low, high = found.low[first : first + 2], found.high[first : first + 2]
            hits.append((low <= truth) & (truth <= high))
        assert_covers(hits)

    def test_an_uncertain_prevalence_widens_the_limits(self) -> None:
        log_probs, y = normals(0.02, 2000, 0)
        certain, loose = (reliability_curve(log_probs, y, at, 5) for at in (0.02, Prevalence.beta(4.0, 196.0)))
        np.testing.assert_allclose(certain.observed, loose.observed, rtol=1e-9)
        assert bool((loose.high - loose.low > 1.3 * (certain.high - certain.low)).all())
