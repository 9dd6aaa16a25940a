"""The calibration slope against other optimisers, of log-odds that hardly vary and of enormous ones; intervals of those."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from members import generator
from scipy import optimize, special
from torch import Tensor

from rightloss.metrics import evaluate

SPREADS = [1e-3, 1.0, 400.0, 700.0, 1e12]


def table_of(odds: Tensor | np.ndarray) -> Tensor:
    odds = torch.as_tensor(odds, dtype=torch.float64)
    return torch.stack([torch.nn.functional.logsigmoid(-odds), torch.nn.functional.logsigmoid(odds)], 1)


def drawn(spread: float, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds that tell nothing of the labels, of which both classes have some."""
    rng = np.random.default_rng(generator(seed).initial_seed())
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


def test_four_predictions_that_are_far_too_sure_have_the_slope_of_bisection() -> None:
    odds, y = np.array([80.0, -90.0, -40.0, -20.0]), np.array([0, 1, 0, 1])
    found = evaluate(table_of(odds), y, 0.01, intervals=None).calibration_slope.value
    assert found == pytest.approx(slope_by_bisection(odds, y, 0.01), rel=1e-9)
    assert found == pytest.approx(-0.0931213, rel=1e-6)


@pytest.mark.parametrize("pi", [0.5, 0.01, 1e-5])
@pytest.mark.parametrize("spread", SPREADS)
def test_of_log_odds_of_any_spread_it_is_that_of_bisection(spread: float, pi: float) -> None:
    fitted = 0
    for seed in range(12):
        odds, y = drawn(spread, 8 if seed % 3 == 0 else 50, seed)
        found = evaluate(table_of(odds), y, pi, intervals=None).calibration_slope
        if are_separated(odds, y):
            assert "separated" in found.reason
        else:
            assert found.value == pytest.approx(slope_by_bisection(odds, y, pi), rel=1e-8)
            fitted += 1
    assert fitted >= 8


@pytest.mark.parametrize("spread", [1.0, 400.0, 1e5])
@pytest.mark.parametrize("k", [3, 5])
def test_of_more_classes_it_is_that_of_a_quasi_newton_search(k: int, spread: float) -> None:
    source = generator(k)
    table = torch.log_softmax(spread * torch.randn(60, k, dtype=torch.float64, generator=source), 1)
    y, pi = torch.arange(60) % k, torch.arange(1.0, k + 1, dtype=torch.float64) / (k * (k + 1) / 2)
    x = (table - table[:, :1]).numpy()
    unit, rows, labels = x.std(), np.arange(60), y.numpy()
    weights = (pi.numpy() / np.bincount(labels))[labels]

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


def test_stretching_the_log_odds_shrinks_the_slope_as_much() -> None:
    odds, y = drawn(1.0, 60, 3)
    once = evaluate(table_of(odds), y, 0.1, intervals="analytic").calibration_slope
    for factor in (1e-4, 1e3, 1e100):
        found = evaluate(table_of(factor * odds), y, 0.1, intervals="analytic").calibration_slope
        for end in ("value", "low", "high"):
            assert factor * getattr(found, end) == pytest.approx(getattr(once, end), rel=1e-6)


@pytest.mark.parametrize("k", [2, 4])
def test_there_is_none_where_the_classes_are_separated_and_one_as_soon_as_they_are_not(k: int) -> None:
    y = torch.arange(40) % k
    ahead = 1 + torch.rand(40, dtype=torch.float64, generator=generator(5))
    table = torch.log_softmax(torch.nn.functional.one_hot(y, k) * ahead[:, None], 1)
    for sign in (1.0, -1.0):  # right throughout, and wrong throughout
        found = evaluate(torch.log_softmax(sign * table, 1), y, [1 / k] * k).calibration_slope
        assert math.isnan(found.value)
        assert "separated" in found.reason
    assert evaluate(table, y.where(torch.arange(40) > 0, 1), [1 / k] * k).calibration_slope.value > 0


def test_classes_that_touch_are_separated() -> None:
    found = evaluate(table_of(np.array([-2.0, 0.5, 0.5, 3.0])), [0, 0, 1, 1], 0.1).calibration_slope
    assert "separated" in found.reason


@pytest.mark.parametrize("intervals", ["analytic", "bootstrap"])
@pytest.mark.parametrize("spread", [700.0, 1e100])
def test_every_figure_has_an_interval_where_log_odds_are_enormous(spread: float, intervals: str) -> None:
    for seed in range(5):
        odds, y = drawn(spread, 50, seed)
        found = evaluate(table_of(odds), y, 0.01, intervals=intervals, draws=200)
        for name in found:
            assert math.isfinite(found[name].value), name
            assert found[name].low <= found[name].value <= found[name].high, name
            assert found[name].low < found[name].high, name
