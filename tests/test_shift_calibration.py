"""Calibration on held-out data, against scikit-learn and scipy; trust without it; columns in another order."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from members import assert_refused, population
from normal_classes import (
    drawn,
    equal,
    exact,
    mix,
    overconfident,
)
from scipy.optimize import minimize
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from rightloss import PrevalenceWarning, undo_sampling
from rightloss.shift import (
    estimate_prevalence,
    fit_calibration,
)


class TestCalibration:
    def test_its_variance_is_that_of_residuals_without_their_own_row(self) -> None:
        """HC3 of a logistic regression, written out: residuals over 1 − leverage."""
        h, y = drawn(equal(2), 60, 52)
        table, found = overconfident(h), fit_calibration(overconfident(h), y)
        design = np.stack([(table[:, 1] - table[:, 0]).numpy(), np.ones(60)], 1)
        p = found(table).exp()[:, 1].numpy()
        bread = np.linalg.inv((design.T * (p * (1 - p))) @ design)
        leverage = p * (1 - p) * np.einsum("ni,ij,nj->n", design, bread, design)
        moves = (design * ((y.numpy() - p) / (1 - leverage))[:, None]) @ bread
        assert float(found.covariance[0, 0]) == pytest.approx(float(moves[:, 0] @ moves[:, 0]), rel=1e-6)

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
    def test_scipy_finds_no_likelier_calibration(self, kind: Any) -> None:
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

    def test_a_calibration_fitted_before_equals_one_fitted_now(self) -> None:
        (x, _), (h, y) = drawn(population(3, 58), 300, 59), drawn(equal(3), 300, 60)
        made = fit_calibration(overconfident(h), y, "vector")
        one = estimate_prevalence(overconfident(x), equal(3), calibration=made)
        two = estimate_prevalence(overconfident(x), equal(3), calibration="vector", held_out=(overconfident(h), y))
        torch.testing.assert_close(one.high, two.high)

    def test_calibration_brings_the_estimate_nearer(self) -> None:
        pi = torch.tensor([0.95, 0.05], dtype=torch.float64)
        (x, _), (h, y) = drawn(pi, 5000, 61), drawn(equal(2), 5000, 62)
        plain = estimate_prevalence(overconfident(x), 0.5, calibration="assumed")
        better = estimate_prevalence(overconfident(x), 0.5, calibration="bias-corrected", held_out=(overconfident(h), y))
        assert float((better.population - pi).abs().max()) < 0.3 * float((plain.population - pi).abs().max())


class TestTrust:
    def test_predictions_without_a_held_out_set_are_trusted_with_a_warning(self) -> None:
        x, _ = drawn(mix(0.9, 0.1), 300, 1)
        with pytest.warns(PrevalenceWarning, match=r"pass held_out=\(log_probs, labels\)"):
            estimate_prevalence(exact(x, equal(2)), 0.5)

    def test_there_is_no_warning_where_calibration_is_stated_fitted_or_not_needed(self) -> None:
        (x, _), (h, y) = drawn(mix(0.9, 0.1), 300, 1), drawn(equal(2), 300, 2)
        table, held_out = exact(x, equal(2)), (exact(h, equal(2)), y)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            stated = estimate_prevalence(table, 0.5, calibration="assumed")
            estimate_prevalence(table, 0.5, held_out=held_out)
            estimate_prevalence(table, 0.5, calibration=fit_calibration(*held_out))
            estimate_prevalence(table, 0.5, method="bbse", held_out=held_out)
        assert not caught
        assert stated.calibration is None
        with pytest.warns(PrevalenceWarning):
            trusted = estimate_prevalence(table, 0.5)
        assert torch.equal(trusted.population, stated.population)
        assert torch.equal(trusted.high, stated.high)

    def test_calibration_cannot_be_assumed_beside_a_held_out_set(self) -> None:
        table, y = exact(drawn(equal(2), 50, 3)[0], equal(2)), torch.arange(50) % 2
        assert_refused(lambda: estimate_prevalence(table, 0.5, calibration="assumed", held_out=(table, y)), "but got both")

    @pytest.mark.parametrize("predict", [lambda x: exact(x, mix(0.7, 0.3)), overconfident], ids=["right", "overconfident"])
    def test_unlabelled_predictions_always_look_calibrated(self, predict: Callable[[Tensor], Tensor]) -> None:
        """Why the warning does not depend on them: weighted back to the sampled mix their mean is that mix, right or wrong."""
        table = predict(drawn(mix(0.9, 0.1), 2000, 4)[0])
        found = estimate_prevalence(table, 0.3, calibration="assumed")
        weights = 1 / ((table.exp() / mix(0.7, 0.3)) @ found.population)
        assert float(weights.mean()) == pytest.approx(1, abs=1e-9)
        torch.testing.assert_close((weights[:, None] * table.exp()).mean(0), mix(0.7, 0.3), atol=1e-9, rtol=0)

    @pytest.mark.long
    def test_a_forest_gives_a_wrong_estimate_and_a_held_out_set_corrects_it(self) -> None:
        (x, y), (h, labels) = drawn(mix(0.9, 0.1), 2000, 5), drawn(mix(0.9, 0.1), 4000, 6)
        forest = RandomForestClassifier(100, class_weight="balanced", random_state=0).fit(x, y)

        def predict(points: Tensor) -> Any:
            votes = np.log(0.99 * forest.predict_proba(points) + 0.005)
            return undo_sampling(votes, class_weight="balanced", labels=y)

        table, rho = predict(drawn(mix(0.7, 0.3), 4000, 7)[0]), float(y.double().mean())
        with pytest.warns(PrevalenceWarning, match="as often with trees"):
            trusted = estimate_prevalence(table, rho)
        corrected = estimate_prevalence(table, rho, held_out=(predict(h), labels))
        assert abs(float(trusted.population[1]) - 0.3) > 10 * float(trusted.standard_error[1])
        assert abs(float(corrected.population[1]) - 0.3) < 4 * float(corrected.standard_error[1])


class TestColumnsInAnotherOrder:
    @pytest.mark.parametrize("kind", ["temperature", "bias-corrected", "vector"])
    @pytest.mark.parametrize(
        ("mixed", "separation"), [(equal(2), 1.0), (mix(0.95, 0.05), 1.0), (equal(2), 50.0)], ids=["even", "rare", "separated"]
    )
    def test_swapped_columns_are_named_with_the_order_that_is_right(self, kind: Any, mixed: Tensor, separation: float) -> None:
        h, y = drawn(mixed, 600, 10)
        h = h + separation * torch.nn.functional.one_hot(y, 2)
        assert_refused(lambda: fit_calibration(exact(h, mixed).flip(1), y, kind), r"log_probs\[:, \[1, 0\]\] agrees")

    @pytest.mark.parametrize("order", [[1, 2, 0], [2, 0, 1], [1, 0, 2], [2, 1, 0], [0, 2, 1]])
    def test_following_the_advice_gives_the_fit_of_the_right_order(self, order: list[int]) -> None:
        h, y = drawn(mix(0.6, 0.3, 0.1), 2000, 11)
        table = exact(h, mix(0.6, 0.3, 0.1))
        wrong = table[:, torch.tensor(order).argsort()]
        kind: Any = "vector" if any(k == column for k, column in enumerate(order)) else "bias-corrected"
        assert_refused(lambda: fit_calibration(wrong, y, kind), rf"log_probs\[:, \[{', '.join(map(str, order))}\]\] agrees")
        torch.testing.assert_close(fit_calibration(wrong[:, order], y).bias, fit_calibration(table, y).bias)

    def test_where_no_order_of_columns_helps_the_advice_is_a_method_that_works(self) -> None:
        """Three classes that avoid their own columns: no order of the columns agrees, and BBSE needs no agreement."""
        (x, _), (h, y) = drawn(mix(0.6, 0.3, 0.1), 4000, 12), drawn(equal(3), 4000, 13)
        table, held = (torch.log_softmax(-each, 1) for each in (x, h))
        assert_refused(lambda: estimate_prevalence(table, equal(3), held_out=(held, y)), "method='bbse'")
        found = estimate_prevalence(table, equal(3), method="bbse", held_out=(held, y))
        assert bool(((found.population - mix(0.6, 0.3, 0.1)).abs() < 4 * found.standard_error).all())

    def test_one_reversed_class_is_answered_with_one_temperature_for_all(self) -> None:
        h, y = drawn(equal(3), 600, 14)
        table = torch.log_softmax(exact(h, equal(3)) * torch.tensor([1.5, 1.5, -1.0]), 1)
        assert_refused(lambda: fit_calibration(table, y, "vector"), "one temperature, 'bias-corrected'")
        fit_calibration(table, y, "bias-corrected")


def test_the_mean_alone_leaves_slopes_without_variance_and_a_fit_does_not() -> None:
    h, y = drawn(population(2, 50), 400, 52)
    table = overconfident(h)
    probs = table.exp().double()
    for kind in ("mean", "temperature", "bias-corrected", "vector"):
        found = fit_calibration(table, y, kind)
        assert bool((found.covariance.diagonal()[:2] > 0).all()) == (kind != "mean")
    of_log_odds = fit_calibration(table, y, "mean").covariance[2:, 2:]
    relative = probs[:, 1] / probs[:, 1].mean() - probs[:, 0] / probs[:, 0].mean()
    contrast = float(of_log_odds[0, 0] + of_log_odds[1, 1] - 2 * of_log_odds[0, 1])
    assert contrast == pytest.approx(float(relative.square().mean()) / 400, rel=0.02)
