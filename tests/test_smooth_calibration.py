"""The smooth calibration curve: against statsmodels, a known distortion, and by how often its band holds the truth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from draws import assert_refused, population, stream, unchecked_types
from labelled import assert_covers, of_odds, predictions
from scipy.interpolate import CubicSpline

import rightloss as rl
from rightloss.metrics import smooth_calibration_curve
from rightloss.metrics.one_vs_rest import expit, logit

MU = 0.9


def true_odds(rate: float, per_class: tuple[int, int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """True log-odds of class 1 at `rate`, and the labels."""
    y = np.repeat([0, 1], per_class)
    x = stream(seed).normal(size=len(y)) + MU * (2 * y - 1)
    return math.log(rate / (1 - rate)) + 2 * MU * x, y


def bent(odds: np.ndarray, rate: float) -> np.ndarray:
    """Predicted log-odds that rise too fast near π's and too slowly farther away."""
    z = odds - math.log(rate / (1 - rate))
    return math.log(rate / (1 - rate)) + z + 0.8 * np.sin(0.5 * z)


@pytest.mark.parametrize("rate", [0.3, 0.001])
def test_a_line_is_logistic_regression_on_the_sample_moved_to_the_population(rate: float) -> None:
    odds, y = true_odds(rate, (150, 90), 1)
    predicted = 1.5 * odds + 0.7
    grid = expit(np.quantile(predicted, [0.1, 0.5, 0.9]))
    found = smooth_calibration_curve(of_odds(predicted), y, rate, grid=grid, knots=2)
    fit = sm.GLM(y, sm.add_constant(predicted), family=sm.families.Binomial()).fit(tol=1e-13)
    moved = fit.params @ np.stack([np.ones(3), logit(grid)]) + logit(rate) - math.log(90 / 150)
    np.testing.assert_allclose(logit(found.observed), moved, rtol=1e-7)


def test_between_its_knots_the_curve_is_that_of_another_natural_spline() -> None:
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


@pytest.mark.parametrize("k", [2, 3])
def test_moving_predictions_and_prevalence_together_moves_the_curve_with_them(k: int) -> None:
    log_probs, y = predictions(400, k)
    first, second = (population(k, seed) for seed in (1, 2))
    options: dict[str, Any] = {"positive": 1}
    moved = rl.retarget(log_probs, first, second)
    if k == 2:
        change = float(logit(second[1]) - logit(first[1]))
        one = smooth_calibration_curve(log_probs, y, first, **options)
        other = smooth_calibration_curve(moved, y, second, grid=expit(logit(one.predicted) + change), **options)
        for name in ("observed", "low", "high"):
            low = getattr(one, name) < 0.999  # beyond, the log-odds of a float are rounded
            np.testing.assert_allclose(logit(getattr(other, name))[low], logit(getattr(one, name))[low] + change, atol=1e-7)
    for table, pi in ((log_probs, first), (moved, second)):
        rows = stream(3).permutation(400)
        one, other = (smooth_calibration_curve(*each, pi, **options) for each in ((table, y), (table[rows], y[rows])))
        np.testing.assert_allclose(one.observed, other.observed, rtol=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("rate", [0.3, 0.001])
@unchecked_types()
def test_the_band_holds_the_truth_of_a_model_that_is_right(rate: float) -> None:
    grid = expit(logit(rate) + np.array([-2.5, -1.0, 0.0, 1.0, 2.5]))
    hits = []
    for seed in range(300):
        odds, y = true_odds(rate, (200, 120), 1000 + seed)
        found = smooth_calibration_curve(of_odds(odds), y, rate, grid=grid)
        hits.append((found.low <= grid) & (grid <= found.high))
    assert_covers(hits)


@pytest.mark.long
def test_with_many_examples_the_curve_and_its_distances_are_the_known_distortion() -> None:
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


def test_groups_votes_and_an_uncertain_prevalence_count_in_the_band() -> None:
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
    votes = np.eye(2)[y]
    one, other = (smooth_calibration_curve(table, target, 0.1).observed for target in (y, votes))
    np.testing.assert_allclose(one, other, rtol=1e-9)


def test_predictions_of_exactly_0_or_1_are_placed_beyond_the_others() -> None:
    odds, y = true_odds(0.3, (60, 60), 7)
    table = of_odds(odds)
    table[0] = np.array([0.0, -math.inf])
    table[-1] = np.array([-math.inf, 0.0])
    found = smooth_calibration_curve(table, y, 0.3)
    assert found.num_certain == 2
    assert bool(np.isfinite([found.observed, found.low, found.high]).all())
    np.testing.assert_allclose(found.share.sum(1), 1.0)


def test_curves_that_do_not_exist_are_refused() -> None:
    odds, y = true_odds(0.3, (40, 40), 8)
    table = of_odds(odds)
    assert_refused(lambda: smooth_calibration_curve(of_odds(4.0 * y - 2 + 0.1 * odds), y, 0.3), "separated")
    assert_refused(lambda: smooth_calibration_curve(of_odds(np.zeros(80)), y, 0.3), "equal or certain")
    assert_refused(lambda: smooth_calibration_curve(table[y == 1], y[y == 1], 0.3), "every class")
    assert_refused(lambda: smooth_calibration_curve(table, y, 0.3, knots=9), "knots")
    assert_refused(lambda: smooth_calibration_curve(table, y, 0.3, grid=[0.1, 1.5]), "grid")
    assert_refused(lambda: smooth_calibration_curve(table, y, 0.3, level=95), "level")


def test_a_fit_that_does_not_converge_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rightloss.metrics.smooth_calibration._STEPS", 1)
    odds, y = true_odds(0.3, (40, 40), 95)
    assert_refused(lambda: smooth_calibration_curve(of_odds(3 * odds), y, 0.3), "almost separated: use fewer `knots`")
