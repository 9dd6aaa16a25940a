"""The one calibration: against scikit-learn and scipy, on rows that say nothing, and as a step of estimating a prevalence."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from draws import assert_refused, population, stream
from normal_classes import drawn as drawn_at
from normal_classes import equal, exact, overconfident
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from rightloss import PrevalenceWarning
from rightloss.calibration import Calibration, fit_calibration, fit_mean, match_mean
from rightloss.shift import estimate_prevalence

KINDS = ("temperature", "affine", "beta")
WITH_BIASES = ("affine", "beta")


def drawn(mix: Any, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    return drawn_at(np.asarray(mix), n, seed)


def likelihood(found: Calibration, table: np.ndarray, y: np.ndarray) -> float:
    return float(found.apply(table)[np.arange(len(y)), y].sum())


def covariance(found: Calibration) -> np.ndarray:
    assert found.covariance is not None
    return found.covariance


class TestMaximumLikelihood:
    """With shrink=0."""

    def test_two_classes_with_biases_are_logistic_regression_on_the_log_odds(self) -> None:
        h, y = drawn(population(2, 50), 800, 51)
        table = overconfident(h)
        odds = (table[:, 1] - table[:, 0])[:, None]
        model = LogisticRegression(C=np.inf, tol=1e-12, max_iter=10_000).fit(odds, y)
        found = fit_calibration(table, y, shrink=0)
        np.testing.assert_allclose(np.exp(found(table)), model.predict_proba(odds), atol=1e-6)
        assert found.slopes == pytest.approx(np.repeat(model.coef_, 2), rel=1e-5)
        assert found.biases[1] - found.biases[0] == pytest.approx(float(model.intercept_[0]), abs=1e-5)

    @pytest.mark.parametrize("kind", KINDS)
    def test_scipy_finds_no_likelier_calibration(self, kind: Any) -> None:
        h, y = drawn(population(3, 52), 600, 53)
        table = overconfident(h)

        def logits(theta: np.ndarray) -> np.ndarray:
            slope = theta[:3] if kind == "beta" else theta[:1]
            return log_softmax(slope * table + (0 if kind == "temperature" else theta[len(slope) :]), axis=1)

        size = {"temperature": 1, "affine": 4, "beta": 6}[kind]
        best = minimize(
            lambda each: -logits(each)[np.arange(600), y].mean(), np.full(size, 0.5), method="BFGS", options={"gtol": 1e-9}
        )
        found = fit_calibration(table, y, kind, shrink=0)
        assert -likelihood(found, table, y) / 600 == pytest.approx(best.fun, abs=1e-9)
        np.testing.assert_allclose(found(table), logits(best.x), atol=1e-3, rtol=1e-3)

    def test_weights_are_repetitions_and_0_is_no_row(self) -> None:
        h, y = drawn(equal(3), 150, 3)
        times, table = stream(1).integers(0, 4, 150), overconfident(h)
        again = np.arange(150).repeat(times)
        for kind, shrink in (("temperature", 0), ("affine", 1), ("beta", 1)):
            weighted = fit_calibration(table, y, kind, weights=times, shrink=shrink)
            repeated = fit_calibration(table[again], y[again], kind, shrink=shrink)
            np.testing.assert_allclose(weighted(table), repeated(table), atol=1e-9)
            np.testing.assert_allclose(covariance(weighted), covariance(repeated), atol=1e-9)

    @pytest.mark.parametrize(("kind", "shrink"), [("affine", 0), ("beta", 1)])
    def test_with_biases_the_mean_prediction_is_the_label_frequencies(self, kind: Any, shrink: float) -> None:
        h, y = drawn(population(4, 54), 700, 55)
        weights = stream(2).uniform(0.2, 3, 700)
        found, share = fit_calibration(overconfident(h), y, kind, weights, shrink), np.bincount(y, weights) / weights.sum()
        np.testing.assert_allclose(found.sampling, share, atol=1e-9)
        np.testing.assert_allclose(weights @ np.exp(found(overconfident(h))) / weights.sum(), share, atol=1e-9)

    def test_the_fit_does_not_depend_on_the_predictions_scale(self) -> None:
        h, y = drawn(equal(2), 400, 4)
        table = overconfident(h)
        expected = fit_calibration(table, y, shrink=0)(table)
        for scale in (1e-3, 100.0):
            scaled = log_softmax(scale * table, axis=1)
            np.testing.assert_allclose(fit_calibration(scaled, y, shrink=0)(scaled), expected, atol=1e-6)

    def test_large_sets_start_on_a_part_and_end_on_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        h, y = drawn(equal(3), 1000, 5)
        expected = fit_calibration(overconfident(h), y, "beta")
        monkeypatch.setattr("rightloss.calibration.fit_with_shrinkage._BLOCK", 170)
        np.testing.assert_allclose(fit_calibration(overconfident(h), y, "beta").slopes, expected.slopes, rtol=1e-9)


class TestCovariance:
    def test_it_is_that_of_residuals_without_their_own_row(self) -> None:
        """HC3 of a logistic regression, written out: residuals over 1 − leverage; those of a group are added up."""
        h, y = drawn(equal(2), 60, 52)
        table, groups = overconfident(h), np.arange(60) // 3
        design = np.stack([table[:, 1] - table[:, 0], np.ones(60)], 1)
        for each in (None, groups):
            found = fit_calibration(table, y, shrink=0, groups=each)
            p = np.exp(found(table))[:, 1]
            bread = np.linalg.inv((design.T * (p * (1 - p))) @ design)
            leverage = p * (1 - p) * np.einsum("ni,ij,nj->n", design, bread, design)
            moves = (design * ((y - p) / (1 - leverage))[:, None]) @ bread
            slope = moves[:, 0] if each is None else np.bincount(groups, moves[:, 0])
            assert covariance(found)[0, 0] == pytest.approx(slope @ slope, rel=1e-6)

    @pytest.mark.long
    @pytest.mark.parametrize("kind", ["mean", "temperature", "affine"])  # of "beta" too, but with more rows
    def test_it_is_that_of_fits_without_one_row_each(self, kind: Any) -> None:
        """The jackknife, of slopes and of biases less the logarithm of the mean prediction."""
        h, y = drawn(equal(3), 150, 59)
        table = overconfident(h)

        def parameters(rows: np.ndarray) -> np.ndarray:
            fit = fit_calibration(table[rows], y[rows], kind, shrink=0)
            offsets = fit.biases - np.log(fit.sampling)
            return np.concatenate([fit.slopes, offsets - offsets.mean()])

        without = np.stack([parameters(np.delete(np.arange(150), row)) for row in range(150)])
        expected = 149 * np.cov(without.T, ddof=0)
        centre = np.eye(6)
        centre[3:, 3:] -= 1 / 3
        found = centre @ covariance(fit_calibration(table, y, kind, shrink=0)) @ centre
        errors = np.sqrt(expected.diagonal().clip(1e-6 * expected.max()))
        difference = np.abs((found - expected) / np.outer(errors, errors)).max()
        assert difference < 0.15, difference

    def test_the_mean_alone_leaves_slopes_without_variance_and_a_fit_does_not(self) -> None:
        h, y = drawn(population(2, 50), 400, 52)
        table = overconfident(h)
        for kind in ("mean", *KINDS):
            found = fit_calibration(table, y, kind)
            assert (np.diag(covariance(found))[:2] > 0).all() == (kind != "mean")
        of_log_odds, probs = covariance(fit_calibration(table, y, "mean"))[2:, 2:], np.exp(table)
        relative = probs[:, 1] / probs[:, 1].mean() - probs[:, 0] / probs[:, 0].mean()
        contrast = of_log_odds[0, 0] + of_log_odds[1, 1] - 2 * of_log_odds[0, 1]
        assert contrast == pytest.approx((relative**2).mean() / 400, rel=0.03)


class TestShrinkage:
    @pytest.mark.parametrize(("kind", "number", "shrink"), [("affine", 1, 1.0), ("beta", 3, 2.0)])
    def test_slopes_have_a_prior_and_are_multiplied_by_the_likelihood_ratios_factor(
        self, kind: Any, number: int, shrink: float
    ) -> None:
        h, y = drawn(population(3, 7), 80, 6)
        table, data = overconfident(h), np.bincount(y) / 80

        def loss(theta: np.ndarray) -> float:
            slope = theta[:number]
            calibrated = log_softmax(slope * table + theta[number:], axis=1)
            return float(shrink * ((slope - 1) ** 2).sum() / 2 - calibrated[np.arange(80), y].sum())

        best = minimize(loss, np.r_[np.ones(number), np.zeros(3)], method="BFGS", options={"gtol": 1e-8})
        prior = log_softmax(best.x[:number] * table + best.x[number:], axis=1)
        ratio = 2 * 80 * (-log_loss(y, np.exp(prior)) - data @ np.log(data))
        found = fit_calibration(table, y, kind, shrink=shrink)
        np.testing.assert_allclose(found.slopes[:number], best.x[:number] * (1 - shrink * number / ratio), rtol=1e-4)

    @pytest.mark.parametrize("kind", KINDS)
    def test_rows_that_the_predictions_separate_give_a_finite_fit_and_none_without_it(self, kind: Any) -> None:
        y = np.arange(40) % 2
        table = log_softmax(np.stack([0 * y, 4.0 * y - 2], axis=1), axis=1)
        found = fit_calibration(table, y, kind)
        assert np.isfinite(found.biases).all()
        assert (found.slopes < 4).all()
        assert_refused(lambda: fit_calibration(table, y, kind, shrink=0), "separate the held-out labels.*shrink=1")


class TestLabelsThatSayNothing:
    """All doors answer the label frequencies, and say so."""

    def test_noise_is_answered_with_the_frequencies_and_a_warning(self) -> None:
        y = np.arange(400) % 4 // 3
        table = log_softmax(np.stack([0 * y, np.repeat(np.arange(100) / 25 - 2, 4)], axis=1), axis=1)
        for kind in WITH_BIASES:
            with pytest.warns(PrevalenceWarning, match="no more than by chance.*another model"):
                found = fit_calibration(table, y, kind)
            np.testing.assert_allclose(np.exp(found(table))[:, 1], 0.25, atol=0.01)

    def test_predictions_of_the_opposite_get_a_slope_of_0(self) -> None:
        h, y = drawn(equal(3), 400, 8)
        table = log_softmax(-h, axis=1)
        with pytest.warns(PrevalenceWarning, match=r"contradict the predictions of class\(es\) \[0, 1, 2\].*'bbse'"):
            found = fit_calibration(table, y, "affine")
        np.testing.assert_array_equal(found.slopes, 0)
        np.testing.assert_allclose(np.exp(found(table)), np.tile(np.bincount(y) / 400, (400, 1)), atol=1e-9)
        certain = np.log(np.eye(3)[[0, 1]] + 1e-300)
        certain[certain < -600] = -np.inf
        assert np.isfinite(found(certain)).all()

    def test_one_reversed_class_is_told_of_one_slope_for_all(self) -> None:
        h, y = drawn(equal(3), 600, 14)
        table = log_softmax(exact(h, equal(3)) * np.array([1.5, 1.5, -1.0]), axis=1)
        with pytest.warns(PrevalenceWarning, match=r"class\(es\) \[2\].*kind='affine'"):
            fit_calibration(table, y, "beta")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fit_calibration(table, y, "affine")

    @pytest.mark.parametrize(("kind", "mixed", "apart"), [("temperature", 0.5, 1), ("affine", 0.05, 1), ("beta", 0.5, 50)])
    def test_swapped_columns_are_named_with_the_order_that_is_right(self, kind: Any, mixed: float, apart: float) -> None:
        mix = np.array([1 - mixed, mixed])
        h, y = drawn(mix, 600, 10)
        table = exact(h + apart * np.eye(2)[y], mix)
        assert_refused(lambda: fit_calibration(table[:, ::-1], y, kind), r"log_probs\[:, \[1, 0\]\] agrees")

    @pytest.mark.parametrize("order", [[1, 2, 0], [2, 0, 1], [2, 1, 0]])
    def test_following_the_advice_gives_the_fit_of_the_right_order(self, order: list[int]) -> None:
        h, y = drawn((0.6, 0.3, 0.1), 2000, 11)
        table = exact(h, np.array([0.6, 0.3, 0.1]))
        wrong = table[:, np.argsort(order)]
        kind: Any = "beta" if any(k == column for k, column in enumerate(order)) else "affine"
        assert_refused(lambda: fit_calibration(wrong, y, kind), rf"log_probs\[:, \[{', '.join(map(str, order))}\]\] agrees")
        np.testing.assert_allclose(fit_calibration(wrong[:, order], y).biases, fit_calibration(table, y).biases)


class TestMatchingAMean:
    @pytest.mark.parametrize("mean", [[0.5, 0.5], [1 - 1e-7, 1e-7], [0.98, 0.0199, 0.0001]])
    def test_the_mean_is_the_one_asked_for_and_slopes_stay(self, mean: list[float]) -> None:
        table, weights = overconfident(3 * drawn(equal(len(mean)), 500, 9)[0]), stream(1).uniform(0.2, 3, 500)
        np.testing.assert_allclose(weights @ np.exp(match_mean(table, mean, weights)) / weights.sum(), mean, rtol=1e-9)
        found = fit_mean(table, mean, weights)
        np.testing.assert_array_equal(found.slopes, 1)
        np.testing.assert_allclose(found.sampling, mean)

    def test_it_is_matched_where_predictions_are_certain_and_a_class_is_rare(self) -> None:
        random = stream(3)
        for scale in np.repeat([10.0, 400.0], 25):
            rows, classes = int(random.integers(20, 1000)), int(random.integers(2, 6))
            table = log_softmax(scale * random.normal(size=(rows, classes)), axis=1)
            mean = random.dirichlet(np.full(classes, 0.3)).clip(1e-4)
            np.testing.assert_allclose(np.exp(match_mean(table, mean / mean.sum())).mean(0), mean / mean.sum(), rtol=1e-9)


class TestWhatComesIn:
    def test_predictions_come_back_in_the_kind_given(self) -> None:
        torch = pytest.importorskip("torch")
        h, y = drawn(equal(2), 100, 57)
        table = overconfident(h)
        found = fit_calibration(torch.from_numpy(table), torch.from_numpy(y))
        assert isinstance(found(table), np.ndarray)
        assert found(torch.from_numpy(table).float()).dtype == torch.float32
        assert torch.is_tensor(match_mean(torch.from_numpy(table), 0.1))
        np.testing.assert_array_equal(found(torch.from_numpy(table)), fit_calibration(table, y)(table))

    def test_dense_maps_are_rows_and_ignored_cells_are_none(self) -> None:
        h, y = drawn(equal(3), 240, 58)
        table = overconfident(h)
        dense, labels = np.moveaxis(table.reshape(6, 8, 5, 3), -1, 1), y.reshape(6, 8, 5).copy()
        found = fit_calibration(dense, labels)
        np.testing.assert_allclose(found(dense)[2, :, 3, 4], fit_calibration(table, y)(table)[2 * 40 + 19])
        labels[0, 0, 0] = -100
        np.testing.assert_allclose(fit_calibration(dense, labels).slopes, fit_calibration(table[1:], y[1:]).slopes)

    def test_names_of_version_0_2_go_on_with_a_warning(self) -> None:
        h, y = drawn(equal(2), 200, 59)
        for old, new in (("bias-corrected", "affine"), ("vector", "beta")):
            with pytest.warns(DeprecationWarning, match=f"called '{new}' now"):
                found = fit_calibration(overconfident(h), y, old)
            np.testing.assert_array_equal(found.slopes, fit_calibration(overconfident(h), y, new).slopes)


TABLE, LABELS = overconfident(drawn(equal(3), 60, 1)[0]), np.arange(60) % 3
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "another kind": (lambda: fit_calibration(TABLE, LABELS, "isotonic"), "`kind`.*'isotonic'"),
    "a negative shrinkage": (lambda: fit_calibration(TABLE, LABELS, shrink=-1), "`shrink`"),
    "labels out of range": (lambda: fit_calibration(TABLE, LABELS + 1), r"0\.\.2"),
    "a class missing": (lambda: fit_calibration(TABLE, LABELS.clip(0, 1)), r"class\(es\) \[2\]"),
    "labels of other rows": (lambda: fit_calibration(TABLE, LABELS[:9]), "one held-out label per row"),
    "weights of other rows": (lambda: fit_calibration(TABLE, LABELS, weights=np.ones(9)), "`weights` to be 60"),
    "negative weights": (lambda: fit_calibration(TABLE, LABELS, weights=-np.ones(60)), "0 or more"),
    "labels ruled out": (
        lambda: fit_calibration(np.where(np.eye(3)[[0, 1, 0, 2]] > 0, 0.0, -np.inf), [0, 1, 2, 2]),
        "row 2 gives its label none",
    ),
    "logits": (lambda: fit_calibration(TABLE + 1, LABELS), "log"),
    "a mean of other classes": (lambda: match_mean(TABLE, [0.5, 0.5]), "`population`"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_with_what_to_do(case: str) -> None:
    assert_refused(*BAD[case])


class TestBeforeAnEstimate:
    """A calibration as a step of `estimate_prevalence`."""

    def test_predictions_without_a_held_out_set_are_trusted_with_a_warning(self) -> None:
        (x, _), (h, y) = drawn((0.9, 0.1), 300, 1), drawn(equal(2), 300, 2)
        table, held_out = exact(x, equal(2)), (exact(h, equal(2)), y)
        with pytest.warns(PrevalenceWarning, match=r"pass held_out=\(log_probs, labels\)"):
            trusted = estimate_prevalence(table, 0.5)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            stated = estimate_prevalence(table, 0.5, calibration="assumed")
            estimate_prevalence(table, 0.5, held_out=held_out)
            estimate_prevalence(table, 0.5, calibration=fit_calibration(*held_out))
            estimate_prevalence(table, 0.5, method="bbse", held_out=held_out)
        assert stated.calibration is None
        np.testing.assert_array_equal(trusted.high, stated.high)
        assert_refused(lambda: estimate_prevalence(table, 0.5, calibration="assumed", held_out=held_out), "but got both")
