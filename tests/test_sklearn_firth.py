"""Firth's penalty: closed form, direct maximisation, separation, and the corrected intercept."""

from __future__ import annotations

import numpy as np
import pytest
from draws import SEED, assert_refused
from scipy import optimize, special

from rightloss.sklearn.information_gain import InformationGainClassifier


def rows(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(SEED)
    y = (np.arange(n) % 4 == 0).astype(int)
    return rng.normal(size=(n, 2)) + 0.8 * y[:, None], y


def fitted(x: np.ndarray, y: np.ndarray, **options: np.ndarray) -> InformationGainClassifier:
    return InformationGainClassifier(penalty="firth", tol=1e-10).fit(x, y, **options)


def penalised(coefficients: np.ndarray, design: np.ndarray, y: np.ndarray) -> float:
    """−ℓ(b) − ½ log det I(b)."""
    p = special.expit(design @ coefficients)
    information = (design * (p * (1 - p))[:, None]).T @ design
    return float(
        np.logaddexp(0, design @ coefficients).sum() - y @ design @ coefficients - np.linalg.slogdet(information)[1] / 2
    )


def test_the_slopes_maximise_the_likelihood_times_jeffreys_prior() -> None:
    x, y = rows()
    design = np.column_stack([x, np.ones(len(y))])
    best = optimize.minimize(penalised, np.zeros(3), (design, y), method="BFGS", options={"gtol": 1e-9}).x
    np.testing.assert_allclose(fitted(x, y).coef_[0], best[:2], atol=1e-5)


@pytest.mark.parametrize("cells", [(3, 5, 7, 2), (0, 5, 7, 2), (0, 5, 7, 0)], ids=["overlap", "a zero", "separated"])
def test_in_a_table_of_two_by_two_it_adds_a_half_to_each_cell(cells: tuple[int, int, int, int]) -> None:
    x, y = np.repeat([1.0, 1.0, 0.0, 0.0], cells)[:, None], np.repeat([1, 0, 1, 0], cells)
    a, b, c, d = np.array(cells) + 0.5
    np.testing.assert_allclose(fitted(x, y).coef_[0, 0], np.log(a * d / (b * c)), atol=1e-7)


def test_the_mean_prediction_is_the_share_of_the_rows_and_then_moved_to_the_population() -> None:
    x, y = rows()
    model = fitted(x, y)
    np.testing.assert_allclose(model.predict_proba(x)[:, 1].mean(), y.mean(), atol=1e-10)
    moved = InformationGainClassifier(0.01, penalty="firth", tol=1e-10).fit(x, y)
    np.testing.assert_allclose(moved.coef_, model.coef_)
    np.testing.assert_allclose(moved.intercept_ - model.intercept_, special.logit(0.01) - special.logit(y.mean()))


def test_separated_classes_have_finite_coefficients_and_errors() -> None:
    x = np.linspace(-1, 1, 21)[:, None]
    y = (x[:, 0] > 0).astype(int)
    frame = fitted(x, y).summary().frame
    assert np.isfinite(frame.to_numpy()).all()
    assert 1 < frame.loc["x0", "coef"] < 50


def test_an_integer_weight_is_a_repeated_row() -> None:
    x, y = rows()
    weight = np.random.default_rng(SEED).integers(0, 3, len(y))
    repeated = np.repeat(np.arange(len(y)), weight)
    np.testing.assert_allclose(fitted(x, y, sample_weight=weight).coef_, fitted(x[repeated], y[repeated]).coef_, atol=1e-8)


def test_dependent_features_and_three_classes_are_refused() -> None:
    x, y = rows()
    model = InformationGainClassifier(penalty="firth")
    assert_refused(lambda: model.fit(np.column_stack([x, x[:, 0]]), y), "linearly independent")
    assert_refused(lambda: model.fit(x, np.arange(len(y)) % 3), "3 classes")


def test_robust_errors_divide_residuals_by_one_minus_the_leverage() -> None:
    x, y = rows()
    model = fitted(x, y)
    design = np.column_stack([x, np.ones(len(y))])
    p = model.predict_proba(x)[:, 1]
    root = np.sqrt(p * (1 - p))[:, None] * design
    bread = np.linalg.inv(root.T @ root)
    scores = design * ((y - p) / (1 - np.diag(root @ bread @ root.T)))[:, None]
    np.testing.assert_allclose(model.summary("robust").covariance, bread @ scores.T @ scores @ bread, rtol=1e-6)
