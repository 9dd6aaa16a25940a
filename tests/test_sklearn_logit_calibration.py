"""Slopes and intercepts on logits, against `rightloss.shift.fit_calibration`, scikit-learn and their own optimality."""

from __future__ import annotations

import numpy as np
import pytest
from members import SEED
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from rightloss.shift import fit_calibration
from rightloss.sklearn.logit_calibration import CalibrationMethod, calibrate_logits, fit_logits, flattened, match_mean


def predictions(n: int, k: int, seed: int = 0, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Informative, overconfident predictions and labels in a mix of their own."""
    rng = np.random.default_rng(100 * SEED + seed)
    y = rng.choice(k, n, p=np.arange(1, k + 1) / np.arange(1, k + 1).sum())
    return log_softmax(scale * (2 * rng.normal(size=(n, k)) + 1.5 * np.eye(k)[y]), axis=1), y


@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize(("method", "kind"), [("affine", "bias-corrected"), ("beta", "vector")])
def test_with_rows_enough_the_fit_is_that_of_fit_calibration(method: CalibrationMethod, kind: str, k: int) -> None:
    log_probs, y = predictions(800, k)
    found = fit_logits(log_probs, y, np.full(800, 1e7), method)(log_probs)  # the prior is outweighed
    expected = fit_calibration(log_probs, y, kind)(log_probs)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_an_affine_fit_is_logistic_regression_on_the_log_odds_with_its_slope_drawn_to_1() -> None:
    log_probs, y = predictions(60, 2)
    odds = (log_probs[:, 1] - log_probs[:, 0])[:, None]
    weights = np.random.default_rng(0).uniform(0.2, 3, 60)
    found = fit_logits(log_probs, y, weights, "affine")

    def loss(slope: float, bias: float) -> float:
        logits = slope * odds[:, 0] + bias
        return float(weights @ (np.logaddexp(0, logits) - y * logits) + (slope - 1) ** 2 / 2)

    a, b = found.slope[0], found.intercept[1] - found.intercept[0]
    for step in (1e-4, -1e-4):
        assert loss(a, b) < min(loss(a + step, b), loss(a, b + step))
    free = LogisticRegression(C=np.inf, tol=1e-10).fit(odds, y, sample_weight=1e6 * weights)
    many = fit_logits(log_probs, y, 1e6 * weights, "affine")
    np.testing.assert_allclose(many.slope, free.coef_[0, 0], rtol=1e-4)


@pytest.mark.parametrize("method", ["affine", "beta"])
class TestAFit:
    def test_weights_are_repetitions(self, method: CalibrationMethod) -> None:
        log_probs, y = predictions(100, 3)
        times = np.random.default_rng(1).integers(0, 4, 100)
        weighted = fit_logits(log_probs, y, times.astype(float), method)
        again = np.arange(100).repeat(times)
        repeated = fit_logits(log_probs[again], y[again], np.ones(len(again)), method)
        np.testing.assert_allclose(weighted(log_probs), repeated(log_probs), atol=1e-5)

    def test_its_weighted_mean_prediction_is_the_frequency_of_the_labels(self, method: CalibrationMethod) -> None:
        log_probs, y = predictions(300, 3)
        weights = np.random.default_rng(1).uniform(0.2, 3, 300)
        found = np.exp(fit_logits(log_probs, y, weights, method)(log_probs))
        np.testing.assert_allclose(weights @ found / weights.sum(), np.bincount(y, weights) / weights.sum(), atol=1e-6)

    def test_rows_that_the_predictions_separate_give_a_finite_fit(self, method: CalibrationMethod) -> None:
        y = np.arange(40) % 2
        found = fit_logits(log_softmax(np.stack([0 * y, 4.0 * y - 2], axis=1), axis=1), y, np.ones(40), method)
        assert np.isfinite(found.intercept).all()
        assert (found.slope < 4).all()

    def test_predictions_of_the_opposite_get_a_slope_of_0(self, method: CalibrationMethod) -> None:
        log_probs, y = predictions(400, 2)
        found = fit_logits(log_probs[:, ::-1], y, np.ones(400), method)
        np.testing.assert_allclose(found.slope, 0, atol=1e-6)
        np.testing.assert_allclose(np.exp(found(log_probs))[:, 1], y.mean(), atol=1e-5)

    @pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
    def test_the_fit_does_not_depend_on_the_predictions_scale(self, method: CalibrationMethod, scale: float) -> None:
        log_probs, y = predictions(400, 2)
        tall = log_softmax(scale * log_probs, axis=1)
        found = fit_logits(tall, y, np.full(400, 1e8), "affine")
        expected = fit_logits(log_probs, y, np.full(400, 1e8), "affine")
        np.testing.assert_allclose(found(tall), expected(log_probs), atol=1e-3)
        assert np.isfinite(fit_logits(tall, y, np.ones(400), method)(tall)).all()


class TestShrinkage:
    @pytest.mark.parametrize(("method", "slopes"), [("affine", 1), ("beta", 3)])
    def test_slopes_are_shrunk_by_the_likelihood_ratio_and_the_mean_prediction_stays(
        self, method: CalibrationMethod, slopes: int
    ) -> None:
        log_probs, y = predictions(80, 3)
        free, found = fit_logits(log_probs, y, np.ones(80), method), calibrate_logits(log_probs, y, np.ones(80), method)
        data = np.bincount(y) / 80
        ratio = 2 * (-log_loss(y, np.exp(free(log_probs))) - data @ np.log(data)) * 80
        np.testing.assert_allclose(found.slope, free.slope * (1 - slopes / ratio), rtol=1e-6)
        np.testing.assert_allclose(np.exp(found(log_probs)).mean(0), data, rtol=1e-9)

    @pytest.mark.long
    def test_predictions_that_tell_nothing_lose_less_by_it_on_new_rows(self) -> None:
        gains = []
        for seed in range(30):
            rng = np.random.default_rng(1000 * SEED + seed)
            y = rng.permutation(np.arange(2060) % 4 == 0).astype(int)
            log_probs = log_softmax(np.stack([0 * y, rng.normal(size=2060)], axis=1), axis=1)
            old, new = slice(60), slice(60, None)
            both = (each(log_probs[old], y[old], np.ones(60), "affine") for each in (calibrate_logits, fit_logits))
            shrunk, free = (-log_loss(y[new], np.exp(each(log_probs[new]))) for each in both)
            gains.append(shrunk - free)
        assert np.mean(gains) > 3 * np.std(gains) / np.sqrt(len(gains))

    def test_what_tells_nothing_is_flattened(self) -> None:
        y = np.arange(400) % 2
        log_probs = log_softmax(np.stack([0 * y, np.repeat(np.arange(200) / 50 - 2, 2)], axis=1), axis=1)
        found = np.exp(calibrate_logits(log_probs, y, np.ones(400), "affine")(log_probs))
        np.testing.assert_allclose(found, 0.5, atol=0.01)


@pytest.mark.parametrize("mean", [[0.5, 0.5], [0.999, 0.001], [1 - 1e-7, 1e-7], [0.2, 0.3, 0.5], [0.98, 0.0199, 0.0001]])
def test_intercepts_give_the_mean_that_was_asked_for(mean: list[float]) -> None:
    log_probs, _ = predictions(500, len(mean), scale=5)
    weights = np.random.default_rng(0).uniform(0.2, 3, 500)
    found = match_mean(log_probs, np.array(mean), weights)
    np.testing.assert_allclose(weights @ np.exp(found(log_probs)) / weights.sum(), mean, rtol=1e-9)
    np.testing.assert_array_equal(found.slope, 1)


def test_a_mean_that_is_there_already_changes_nothing() -> None:
    log_probs, _ = predictions(500, 3)
    found = match_mean(log_probs, np.exp(log_probs).mean(0), np.ones(500))
    np.testing.assert_allclose(found.intercept, 0, atol=1e-9)


def test_flattened_predictions_are_nearly_the_mean_and_in_order() -> None:
    log_probs, _ = predictions(500, 2)
    found = np.exp(flattened(log_probs, np.array([0.99, 0.01]), np.ones(500))(log_probs))[:, 1]
    np.testing.assert_allclose(found.mean(), 0.01, rtol=1e-9)
    assert np.ptp(found) < 0.005
    assert (np.argsort(found) == np.argsort(log_probs[:, 1] - log_probs[:, 0])).all()


def test_a_mean_is_matched_where_predictions_are_nearly_certain_and_a_class_is_rare() -> None:
    random = np.random.default_rng(0)
    for _ in range(60):
        rows, classes = int(random.integers(20, 1000)), int(random.integers(2, 6))
        log_probs = log_softmax(10 * random.normal(size=(rows, classes)), axis=1)
        mean = random.dirichlet(np.full(classes, 0.3)).clip(1e-4)
        found = match_mean(log_probs, mean / mean.sum(), np.ones(rows))
        moved = np.exp(log_softmax(log_probs + found.intercept, axis=1))
        np.testing.assert_allclose(moved.mean(0), mean / mean.sum(), rtol=1e-9)


@pytest.mark.parametrize("classes", [2, 4])
def test_a_mean_is_matched_where_all_predictions_are_certain(classes: int) -> None:
    for seed in range(20):
        random = np.random.default_rng(seed)
        log_probs = log_softmax(400 * random.normal(size=(100, classes)), axis=1)
        mean = random.dirichlet(np.full(classes, 0.3)).clip(1e-4)
        found = match_mean(log_probs, mean / mean.sum(), np.ones(100))
        np.testing.assert_allclose(np.exp(found(log_probs)).mean(0), mean / mean.sum(), rtol=1e-9)


@pytest.mark.parametrize(("k", "seeds"), [(2, (0, 9, 13)), (3, (0, 2, 11)), (4, (5, 6, 18))])
def test_no_other_solver_finds_better_slopes_for_certain_predictions_that_are_often_wrong(
    k: int, seeds: tuple[int, ...]
) -> None:
    for seed in seeds:
        random = np.random.default_rng(seed)
        y = np.concatenate([np.arange(k), random.choice(k, 60 - k)])
        log_probs = log_softmax(300 * (random.normal(size=(60, k)) + random.normal(size=k)), axis=1).clip(np.log(1e-16))

        def loss(both: np.ndarray, log_probs: np.ndarray = log_probs, y: np.ndarray = y) -> float:
            calibrated = log_softmax(both[:k] * log_probs + both[k:], axis=1)
            return float(((both[:k] - 1) ** 2).sum() / 2 - calibrated[np.arange(60), y].sum())

        found = fit_logits(log_probs, y, np.ones(60), "beta")
        bounds = [(0.0, None)] * k + [(None, None)] * k
        flat = np.concatenate([np.full(k, 1e-3), np.zeros(k)])
        best = minimize(loss, flat, bounds=bounds, method="SLSQP", options={"ftol": 1e-12, "maxiter": 1000})
        assert loss(np.concatenate([found.slope, found.intercept])) < best.fun + 1e-6
