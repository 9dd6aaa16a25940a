"""Recalibration's slope and intercept against other optimisers; the smooth calibration curve against statsmodels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from cases import CASES, Case, Method, each_case, figures, hard
from draws import assert_refused, population, stream, unchecked_types
from labelled import assert_covers, of_odds, predictions
from scipy import optimize, special
from scipy.interpolate import CubicSpline
from scipy.special import expit, log_softmax, logit

import rightloss as rl
from rightloss.metrics import evaluate, smooth_calibration_curve

MU = 0.9


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


def spread_out() -> Case:
    return hard(log_softmax(1e5 * stream(3).normal(size=(60, 3)), axis=1), np.arange(60) % 3, np.array([1, 2, 3]) / 6)


class TestSlope:
    @pytest.mark.long
    @pytest.mark.parametrize(("spread", "pi"), [(1e-3, 0.5), (1.0, 1e-5), (400.0, 0.01), (1e12, 0.5)])
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

    @pytest.mark.parametrize("case", [CASES["3 classes, votes"], spread_out()], ids=["votes", "a spread of 1e5"])
    def test_of_more_classes_equals_a_quasi_newton_search(self, case: Case) -> None:
        table, y, weights, k = case.log_probs[case.rows], case.labels, case.weights, len(case.population)
        x = table - table[:, :1]
        unit, rows = x.std(), np.arange(len(y))

        def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
            scores = theta[0] * x / unit + np.append(0.0, theta[1:])
            log_p = scores - special.logsumexp(scores, axis=1, keepdims=True)
            residual = weights[:, None] * (np.exp(log_p) - np.eye(k)[y])
            return -float(weights @ log_p[rows, y]), np.append((residual * x / unit).sum(), residual[:, 1:].sum(0))

        best = optimize.minimize(loss, np.zeros(k), jac=True, method="BFGS", options={"gtol": 1e-10})
        # whose gradient is 1e-10 at most, and whose curvature is about that of the search's own estimate
        error = float(np.sqrt(best.hess_inv[0, 0])) * 1e-6 / unit
        assert figures(case).calibration_slope.value == pytest.approx(best.x[0] / unit, abs=error, rel=1e-6)

    def test_stretching_the_log_odds_shrinks_the_slope_as_much(self) -> None:
        odds, y = drawn(1.0, 60, 3)
        once = evaluate(of_odds(odds), y, 0.1, intervals="analytic").calibration_slope
        for factor in (1e-4, 1e3, 1e100):
            found = evaluate(of_odds(factor * odds), y, 0.1, intervals="analytic").calibration_slope
            for end in ("value", "low", "high"):
                assert factor * getattr(found, end) == pytest.approx(getattr(once, end), rel=1e-6)

    @pytest.mark.parametrize("k", [2, 4])
    def test_does_not_exist_where_the_classes_are_separated(self, k: int) -> None:
        y, pi = np.arange(40) % k, [1 / k] * k
        table = log_softmax(np.eye(k)[y] * (1 + stream(5).random(40))[:, None], axis=1)
        for sign in (1.0, -1.0):  # right throughout, and wrong throughout
            found = evaluate(log_softmax(sign * table, axis=1), y, pi, intervals=None).calibration_slope
            assert math.isnan(found.value)
            assert "separated" in found.reason
        assert evaluate(table, np.where(np.arange(40) > 0, y, 1), pi, intervals=None).calibration_slope.value > 0
        touching = evaluate(of_odds(np.array([-2.0, 0.5, 0.5, 3.0])), [0, 0, 1, 1], 0.1, intervals=None)
        assert "separated" in touching.calibration_slope.reason

    @pytest.mark.long
    @pytest.mark.parametrize("intervals", ["analytic", "bootstrap"])
    @pytest.mark.parametrize("spread", [700.0, 1e100])
    def test_every_figure_has_an_interval_with_enormous_log_odds(self, spread: float, intervals: Method) -> None:
        for seed in range(3):
            odds, y = drawn(spread, 50, seed)
            found = evaluate(of_odds(odds), y, 0.01, intervals=intervals, draws=200)
            assert spread < 1e100 or "certain" in found.calibration_intercept.reason
            for name in (name for name in found if name != "calibration_intercept"):  # of which resamples may have none
                assert math.isfinite(found[name].value), name
                assert found[name].low <= found[name].value <= found[name].high, name
                assert found[name].low < found[name].high, name

    def test_of_many_rows_begins_at_the_fit_to_some_and_ends_at_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        odds, y = drawn(1.0, 600, 4)
        whole = evaluate(of_odds(odds), y, 0.01, intervals=None)
        monkeypatch.setattr("rightloss.metrics.recalibration._MANY", 300)
        found = evaluate(of_odds(odds), y, 0.01, intervals=None)
        for name in ("calibration_slope", "calibration_intercept"):
            assert found[name].value == pytest.approx(whole[name].value, rel=1e-8)


class TestIntercept:
    @each_case
    def test_is_that_of_statsmodels_with_the_slope_held_at_1(self, case: Case) -> None:
        k = len(case.population)
        found = evaluate(case.log_probs, case.target, case.population, intervals=None).calibration_intercept
        expected = []
        for c in [1] if k == 2 else range(k):
            odds = special.logit(case.probs[:, c])
            options = {"family": sm.families.Binomial(), "offset": odds, "freq_weights": case.weights / case.weights.mean()}
            model = sm.GLM((case.labels == c).astype(float), np.ones((len(odds), 1)), **options)
            expected.append(float(model.fit(tol=1e-14, maxiter=200).params[0]))
        assert found.value == pytest.approx(expected[-1], rel=1e-6, abs=1e-9)
        if k > 2:
            np.testing.assert_allclose([float(each) for each in found.by_class or ()], expected, rtol=1e-6, atol=1e-9)

    @pytest.mark.parametrize("pi", [0.5, 1e-7])
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


def true_odds(rate: float, per_class: tuple[int, int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """True log-odds of class 1 at `rate`, and the labels."""
    y = np.repeat([0, 1], per_class)
    x = stream(seed).normal(size=len(y)) + MU * (2 * y - 1)
    return math.log(rate / (1 - rate)) + 2 * MU * x, y


def bent(odds: np.ndarray, rate: float) -> np.ndarray:
    """Predicted log-odds that rise too fast near π's and too slowly farther away."""
    z = odds - math.log(rate / (1 - rate))
    return math.log(rate / (1 - rate)) + z + 0.8 * np.sin(0.5 * z)


class TestSmoothCurve:
    @pytest.mark.parametrize("rate", [0.3, 0.001])
    def test_with_two_knots_is_logistic_regression_on_the_sample_moved_to_the_population(self, rate: float) -> None:
        odds, y = true_odds(rate, (150, 90), 1)
        predicted = 1.5 * odds + 0.7
        grid = expit(np.quantile(predicted, [0.1, 0.5, 0.9]))
        found = smooth_calibration_curve(of_odds(predicted), y, rate, grid=grid, knots=2)
        fit = sm.GLM(y, sm.add_constant(predicted), family=sm.families.Binomial()).fit(tol=1e-13)
        moved = fit.params @ np.stack([np.ones(3), logit(grid)]) + logit(rate) - math.log(90 / 150)
        np.testing.assert_allclose(logit(found.observed), moved, rtol=1e-7)

    def test_between_its_knots_is_that_of_another_natural_spline(self) -> None:
        odds, y = true_odds(0.2, (4000, 4000), 2)
        predicted = bent(odds, 0.2)
        found = smooth_calibration_curve(of_odds(predicted), y, 0.2, knots=4)
        # the same space in another basis, without a penalty, which 8,000 rows outweigh
        knots = np.quantile(predicted, [0.05, 0.35, 0.65, 0.95])

        def basis(x: np.ndarray) -> np.ndarray:
            inside = x.clip(knots[0], knots[-1])
            splines = [CubicSpline(knots, each, bc_type="natural") for each in np.eye(4)]
            return np.stack([spline(inside) + spline(inside, 1) * (x - inside) for spline in splines], 1)

        fit = sm.GLM(y, basis(predicted), family=sm.families.Binomial()).fit()
        other = basis(logit(found.predicted)) @ fit.params + logit(0.2)
        band = (logit(found.high) - logit(found.low)) / 2
        assert bool((np.abs(logit(found.observed) - other) < 0.05 * band).all())

    def test_moves_with_predictions_and_prevalence_and_does_not_depend_on_the_order(self) -> None:
        log_probs, y = predictions(400, 2)
        first, second = (population(2, seed) for seed in (1, 2))
        change = float(logit(second[1]) - logit(first[1]))
        one = smooth_calibration_curve(log_probs, y, first)
        moved = rl.retarget(log_probs, first, second)
        other = smooth_calibration_curve(moved, y, second, grid=expit(logit(one.predicted) + change))
        for name in ("observed", "low", "high"):
            low = getattr(one, name) < 0.999  # beyond, the log-odds of a float are rounded
            np.testing.assert_allclose(logit(getattr(other, name))[low], logit(getattr(one, name))[low] + change, atol=1e-7)
        three, labels = predictions(400, 3)
        rows, pi = stream(3).permutation(400), population(3)
        pairs = ((three, labels), (three[rows], labels[rows]))
        one, other = (smooth_calibration_curve(*each, pi, positive=1) for each in pairs)
        np.testing.assert_allclose(one.observed, other.observed, rtol=1e-7)

    @pytest.mark.long
    @unchecked_types()
    def test_has_a_band_that_holds_the_truth_of_a_model_that_is_right(self) -> None:
        grid = expit(logit(0.001) + np.array([-2.5, -1.0, 0.0, 1.0, 2.5]))
        hits = []
        for seed in range(200):
            odds, y = true_odds(0.001, (200, 120), 1000 + seed)
            found = smooth_calibration_curve(of_odds(odds), y, 0.001, grid=grid)
            hits.append((found.low <= grid) & (grid <= found.high))
        assert_covers(hits)

    @pytest.mark.long
    def test_of_many_examples_and_its_distances_are_the_known_distortion(self) -> None:
        rate = 0.05
        odds, y = true_odds(rate, (40_000, 40_000), 4)
        found = smooth_calibration_curve(of_odds(bent(odds, rate)), y, rate)
        truth = np.interp(logit(found.predicted), np.sort(bent(odds, rate)), np.sort(odds))
        inner = np.abs(logit(found.predicted) - logit(rate)) < 3.5
        np.testing.assert_allclose(logit(found.observed)[inner], truth[inner], atol=0.15)  # of distances up to 0.8
        weights = np.where(y == 1, rate, 1 - rate) / 40_000
        distance = np.abs(expit(odds) - expit(bent(odds, rate)))
        assert found.ici == pytest.approx(float(weights @ distance), rel=0.1)
        order = np.argsort(distance)
        e90 = distance[order][np.searchsorted(weights[order].cumsum(), 0.9)]
        assert found.e90 == pytest.approx(float(e90), rel=0.15)  # where few distances are
        assert found.e50 < found.ici < found.e90

    def test_counts_groups_votes_and_an_uncertain_prevalence_in_the_band(self) -> None:
        odds, y = true_odds(0.1, (600, 600), 5)
        table = of_odds(odds)

        def width(*args: Any, **options: Any) -> np.ndarray:
            curve = smooth_calibration_curve(*args, grid=[0.05, 0.1, 0.3], knots=4, **options)
            return logit(curve.high) - logit(curve.low)

        plain = width(table, y, 0.1)
        grouped = width(np.tile(table, (3, 1)), np.tile(y, 3), 0.1, groups=np.tile(np.arange(1200), 3))
        np.testing.assert_allclose(grouped, plain, rtol=0.1)
        np.testing.assert_allclose(width(np.tile(table, (4, 1)), np.tile(y, 4), 0.1), plain / 2, rtol=0.1)
        at = rl.Prevalence.beta(5.0, 45.0)
        spread = float(logit(at.sample(100_000, stream(6))[:, 1]).std())
        np.testing.assert_allclose(width(table, y, at), np.hypot(plain, 2 * 1.96 * spread), rtol=0.03)
        one, other = (smooth_calibration_curve(table, target, 0.1).observed for target in (y, np.eye(2)[y]))
        np.testing.assert_allclose(one, other, rtol=1e-9)

    def test_has_knots_at_harrells_places_as_many_as_the_rarer_side_allows(self) -> None:
        for events, knots in ((29, 3), (30, 4), (99, 4), (100, 5)):
            odds, y = true_odds(0.3, (300, events), 9)
            grid = [0.1, 0.3, 0.6]
            one, other = (smooth_calibration_curve(of_odds(odds), y, 0.3, grid=grid, knots=each) for each in (None, knots))
            assert one.observed.tolist() == other.observed.tolist()

    def test_places_predictions_of_exactly_0_or_1_beyond_the_others(self) -> None:
        odds, y = true_odds(0.3, (60, 60), 7)
        table = of_odds(odds)
        table[0] = np.array([0.0, -math.inf])
        table[-1] = np.array([-math.inf, 0.0])
        found = smooth_calibration_curve(table, y, 0.3)
        assert found.num_certain == 2
        assert bool(np.isfinite([found.observed, found.low, found.high]).all())
        np.testing.assert_allclose(found.share.sum(1), 1.0)

    def test_that_does_not_exist_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        odds, y = true_odds(0.3, (40, 40), 8)
        table = of_odds(odds)
        assert_refused(lambda: smooth_calibration_curve(of_odds(4.0 * y - 2 + 0.1 * odds), y, 0.3), "they are separated")
        assert_refused(lambda: smooth_calibration_curve(of_odds(2 - 4.0 * y + 0.1 * odds), y, 0.3), "they are separated")
        assert_refused(lambda: smooth_calibration_curve(of_odds(np.zeros(80)), y, 0.3), "equal or certain")
        assert_refused(lambda: smooth_calibration_curve(table[y == 1], y[y == 1], 0.3), "every class")
        assert_refused(lambda: smooth_calibration_curve(table, y, 0.3, knots=9), "knots")
        assert_refused(lambda: smooth_calibration_curve(table, y, 0.3, grid=[0.1, 1.5]), "grid")
        assert_refused(lambda: smooth_calibration_curve(table, y, 0.3, level=95), "level")
        monkeypatch.setattr("rightloss.metrics.smooth_calibration._STEPS", 1)
        assert_refused(lambda: smooth_calibration_curve(of_odds(3 * odds), y, 0.3), "almost separated: use fewer `knots`")
