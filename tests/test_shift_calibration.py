"""Calibration of predictions on held-out data, against scikit-learn and scipy, and what it does for an estimate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from members import population
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from test_shift import drawn, equal, overconfident
from torch import Tensor

from rightloss.shift import estimate_prevalence, fit_calibration

pytestmark = pytest.mark.filterwarnings("ignore:The predictions are taken at their word:rightloss.PrevalenceWarning")


class TestCalibration:
    def test_two_classes_with_biases_are_logistic_regression_on_the_log_odds(self) -> None:
        h, y = drawn(population(2, 50), 800, 51)
        table = overconfident(h)
        odds = (table[:, 1] - table[:, 0]).numpy()[:, None]
        model = LogisticRegression(C=np.inf, tol=1e-12, max_iter=10_000).fit(odds, y)
        found = fit_calibration(table, y)
        np.testing.assert_allclose(found(table).exp().numpy(), model.predict_proba(odds), atol=1e-6)
        assert float(1 / found.temperature[0]) == pytest.approx(float(model.coef_[0, 0]), rel=1e-5)
        assert float(found.bias[1] - found.bias[0]) == pytest.approx(float(model.intercept_[0]), abs=1e-5)

    @pytest.mark.parametrize("kind", ["temperature", "bias-corrected", "vector"])
    def test_no_search_of_scipys_finds_a_likelier_one(self, kind: Any) -> None:
        h, y = drawn(population(3, 52), 600, 53)
        table = overconfident(h)

        def unpacked(params: np.ndarray) -> tuple[Tensor, Tensor]:
            theta = torch.from_numpy(params)
            slope = theta[:3] if kind == "vector" else theta[:1]
            return slope, torch.zeros(3) if kind == "temperature" else theta[len(slope) :]

        def loss(params: np.ndarray) -> float:
            slope, bias = unpacked(params)
            return float(torch.nn.functional.cross_entropy(slope * table + bias, y))

        size = {"temperature": 1, "bias-corrected": 4, "vector": 6}[kind]
        best = minimize(loss, np.full(size, 0.5), method="BFGS", options={"gtol": 1e-9})
        found = fit_calibration(table, y, kind)
        own = float(torch.nn.functional.nll_loss(found(table), y))
        assert own == pytest.approx(best.fun, abs=1e-9)
        slope, bias = unpacked(best.x)
        expected = torch.log_softmax(slope * table + bias, 1)
        torch.testing.assert_close(found(table), expected, atol=1e-3, rtol=1e-3)

    @pytest.mark.parametrize("kind", ["bias-corrected", "vector"])
    def test_with_biases_the_mean_prediction_is_the_label_frequencies(self, kind: Any) -> None:
        h, y = drawn(population(4, 54), 700, 55)
        found = fit_calibration(overconfident(h), y, kind)
        torch.testing.assert_close(found.sampling, torch.bincount(y, minlength=4).double() / 700, atol=1e-8, rtol=0)

    def test_it_undoes_what_was_done_to_the_predictions(self) -> None:
        h, y = drawn(equal(3), 40_000, 56)
        found = fit_calibration(overconfident(h), y)
        assert float(found.temperature[0]) == pytest.approx(1.6, abs=0.05)
        torch.testing.assert_close(found.bias, torch.tensor([0.6, 0.0, -0.6]).double() / 1.6, atol=0.05, rtol=0)

    def test_calibrated_predictions_come_in_the_kind_given(self) -> None:
        h, y = drawn(equal(2), 100, 57)
        found = fit_calibration(overconfident(h), y)
        assert isinstance(found(overconfident(h).numpy()), np.ndarray)
        assert found(overconfident(h).float()).dtype == torch.float32

    def test_a_calibration_made_before_serves_as_one_fitted_now(self) -> None:
        (x, _), (h, y) = drawn(population(3, 58), 300, 59), drawn(equal(3), 300, 60)
        made = fit_calibration(overconfident(h), y, "vector")
        one = estimate_prevalence(overconfident(x), equal(3), calibration=made)
        two = estimate_prevalence(overconfident(x), equal(3), calibration="vector", held_out=(overconfident(h), y))
        torch.testing.assert_close(one.high, two.high)

    def test_calibration_brings_the_estimate_nearer(self) -> None:
        pi = torch.tensor([0.95, 0.05], dtype=torch.float64)
        (x, _), (h, y) = drawn(pi, 5000, 61), drawn(equal(2), 5000, 62)
        plain = estimate_prevalence(overconfident(x), 0.5)
        better = estimate_prevalence(overconfident(x), 0.5, calibration="bias-corrected", held_out=(overconfident(h), y))
        assert float((better.population - pi).abs().max()) < 0.3 * float((plain.population - pi).abs().max())
