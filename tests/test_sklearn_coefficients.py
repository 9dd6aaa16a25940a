"""Standard errors under sampling by class, and Firth's penalty: statsmodels, the infinitesimal jackknife, closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from draws import SEED, assert_refused
from scipy import optimize, special, stats
from sklearn.exceptions import ConvergenceWarning

from rightloss import Prevalence
from rightloss.sklearn.coefficients import prevalence_variance, risk_interval
from rightloss.sklearn.information_gain import InformationGainClassifier


def study(counts: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows sampled by class: normal features whose mean and spread differ between classes, so that no model is exact."""
    rng = np.random.default_rng(1000 * SEED + seed)
    y = np.repeat(np.arange(len(counts)), counts)
    x = rng.normal(size=(len(y), 2)) * (1 + 0.2 * y[:, None]) + np.column_stack([0.6 * y, -0.3 * y])
    return x, y


def fitted(population: Any, x: np.ndarray, y: np.ndarray, **options: Any) -> InformationGainClassifier:
    options = {"penalty": None, "tol": 1e-9, **options}
    weight = options.pop("sample_weight", None)
    return InformationGainClassifier(population, **options).fit(x, y, sample_weight=weight)


def covariance(model: InformationGainClassifier, kind: str) -> np.ndarray:
    return model.summary(kind).covariance.to_numpy()  # type: ignore[arg-type]


def test_without_a_population_the_table_is_that_of_statsmodels() -> None:
    x, y = study([80, 60])
    frame = fitted(None, x, y).summary().frame
    reference = sm.Logit(y, np.column_stack([x, np.ones(len(y))])).fit(disp=0, tol=1e-12)
    np.testing.assert_allclose(frame["coef"], reference.params, rtol=1e-6)
    np.testing.assert_allclose(frame["std_err"], reference.bse, rtol=1e-6)
    np.testing.assert_allclose(frame["p_value"], reference.pvalues, rtol=1e-5)
    np.testing.assert_allclose(frame[["low", "high"]], reference.conf_int(), rtol=1e-5)
    np.testing.assert_allclose(frame["odds_ratio_high"], np.exp(reference.conf_int()[:, 1]), rtol=1e-5)
    sandwich = sm.Logit(y, np.column_stack([x, np.ones(len(y))])).fit(disp=0, tol=1e-12, cov_type="HC0").cov_params()
    np.testing.assert_allclose(covariance(fitted(None, x, y), "robust"), sandwich, rtol=1e-6)


@pytest.mark.parametrize("counts", [[80, 60], [80, 60, 50]])
def test_a_population_changes_the_intercept_variance_alone_by_the_counts_of_prentice_and_pyke(counts: list[int]) -> None:
    x, y = study(counts)
    reference = sm.MNLogit(y, np.column_stack([x, np.ones(len(y))])).fit(disp=0, method="newton", tol=1e-12).cov_params()
    np.testing.assert_allclose(covariance(fitted(None, x, y), "model"), reference, rtol=1e-6, atol=1e-10)
    corrected = np.array(reference)
    corrected[2::3, 2::3] -= 1 / 80 + np.diag(1 / np.array(counts[1:]))
    table = fitted([0.9, 0.09, 0.01] if len(counts) == 3 else 0.01, x, y).summary()
    np.testing.assert_allclose(table.covariance, corrected, rtol=1e-6, atol=1e-10)
    assert table.frame.index.tolist()[-1] == ((2, "intercept") if len(counts) == 3 else "intercept")


@pytest.mark.long
@pytest.mark.parametrize("loss", ["information_gain", "weighted"])
@pytest.mark.parametrize("counts", [[16, 12], [12, 10, 11]])
def test_robust_errors_are_the_spread_of_each_rows_influence_on_the_whole_fit(loss: str, counts: list[int]) -> None:
    x, y = study(counts)
    population = np.arange(len(counts), 0, -1) ** 2.0
    population /= population.sum()
    step, influence = 1e-4, []
    for row in range(len(y)):
        ends = []
        for sign in (-1, 1):
            weight = np.ones(len(y))
            weight[row] += sign * step
            ends.append(fitted(population, x, y, loss=loss, sample_weight=weight, tol=1e-12)._contrasts().ravel())
        influence.append((ends[1] - ends[0]) / (2 * step))
    by_row = np.array(influence)
    for c in range(len(counts)):  # the counts are fixed: what all rows of a class have in common is not chance
        by_row[y == c] -= by_row[y == c].mean(0)
    factor = np.array([n / (n - 1) for n in counts])[y]
    expected = (by_row * factor[:, None]).T @ by_row
    np.testing.assert_allclose(covariance(fitted(population, x, y, loss=loss), "robust"), expected, rtol=2e-4, atol=1e-7)


@pytest.mark.long
def test_model_and_robust_errors_agree_where_the_model_is_right_and_the_inverse_hessian_of_the_weighted_loss_does_not() -> None:
    rng = np.random.default_rng(SEED)
    y = np.repeat([0, 1], 20_000)
    x = rng.normal(size=(len(y), 2)) + y[:, None] * [1.0, 0.3]  # normal classes of one spread: log-odds are linear
    model = fitted(0.02, x, y, loss="weighted")
    by_model, robust = (np.sqrt(np.diag(covariance(model, kind))) for kind in ("model", "robust"))
    np.testing.assert_allclose(by_model, robust, rtol=0.1)
    p, weights = model.predict_proba(x)[:, 1], np.where(y == 1, 0.04, 1.96)
    design = np.column_stack([x, np.ones(len(y))])
    naive = np.sqrt(np.diag(np.linalg.inv((design * (weights * p * (1 - p))[:, None]).T @ design)))
    assert (naive / robust > 2).all()


def test_sample_weights_count_rows() -> None:
    x, y = study([40, 30])
    weight = np.random.default_rng(0).integers(0, 4, len(y))
    rows = np.repeat(np.arange(len(y)), weight)
    for kind in ("model", "robust"):
        weighted = covariance(fitted(0.05, x, y, sample_weight=weight), kind)
        np.testing.assert_allclose(weighted, covariance(fitted(0.05, x[rows], y[rows]), kind), rtol=1e-6, atol=1e-10)


@pytest.mark.long
def test_an_uncertain_population_adds_the_covariance_of_its_log_odds_to_that_of_the_intercepts() -> None:
    alpha, (x, y) = np.array([20.0, 5.0, 2.0]), study([80, 60, 50])
    draws = np.log(np.random.default_rng(SEED).dirichlet(alpha, 200_000))
    odds = draws[:, 1:] - draws[:, :1]
    products = (odds - odds.mean(0))[:, :, None] * (odds - odds.mean(0))[:, None, :]
    errors = products.std(0) / len(draws) ** 0.5
    assert (np.abs(products.mean(0) - prevalence_variance(alpha)) < 4 * errors).all()
    certain, uncertain = (covariance(fitted(p, x, y), "model") for p in (alpha / alpha.sum(), Prevalence.dirichlet(alpha)))
    added = uncertain - certain
    np.testing.assert_allclose(added[2::3, 2::3], prevalence_variance(alpha))
    added[2::3, 2::3] = 0
    np.testing.assert_allclose(added, 0, atol=1e-12)


def test_another_population_moves_the_intercept_and_no_error() -> None:
    x, y = study([80, 60])
    first = fitted(0.01, x, y).summary().frame
    second = fitted(0.01, x, y).set_population(0.2).summary().frame
    np.testing.assert_allclose(second["std_err"], first["std_err"])
    np.testing.assert_allclose(second["coef"] - first["coef"], [0, 0, special.logit(0.2) - special.logit(0.01)], atol=1e-12)


def test_the_interval_of_a_risk_of_two_classes_is_that_of_its_log_odds() -> None:
    x, y = study([80, 60])
    model = fitted(0.01, x, y)
    low, high = model.predict_interval(x[:5], level=0.9)
    design = np.column_stack([x[:5], np.ones(5)])
    error = np.sqrt(np.einsum("na,ab,nb->n", design, covariance(model, "model"), design))
    reach = stats.norm.ppf(0.95) * error
    np.testing.assert_allclose(low[:, 1], special.expit(model.decision_function(x[:5]) - reach))
    np.testing.assert_allclose(high[:, 0], special.expit(-(model.decision_function(x[:5]) - reach)))


def test_the_interval_of_a_risk_of_three_classes_is_the_delta_method_on_its_logit() -> None:
    rng = np.random.default_rng(SEED)
    coefficients, x, root = rng.normal(size=(2, 3)), rng.normal(size=(4, 2)), rng.normal(size=(6, 6))
    matrix = root @ root.T
    low, high = risk_interval(x, coefficients, matrix, 0.95)

    def logits(flat: np.ndarray) -> np.ndarray:
        odds = np.column_stack([np.zeros(4), np.column_stack([x, np.ones(4)]) @ flat.reshape(2, 3).T])
        return special.logit(special.softmax(odds, axis=1))

    flat, step = coefficients.ravel(), 1e-6
    jacobian = np.stack([(logits(flat + step * e) - logits(flat - step * e)) / (2 * step) for e in np.eye(6)], -1)
    reach = stats.norm.ppf(0.975) * np.sqrt(np.einsum("nci,ij,ncj->nc", jacobian, matrix, jacobian))
    np.testing.assert_allclose(low, special.expit(logits(flat) - reach), rtol=1e-6)
    np.testing.assert_allclose(high, special.expit(logits(flat) + reach), rtol=1e-6)


def test_the_table_names_the_features_and_prints_as_text_and_html() -> None:
    x, y = study([80, 60])
    table = fitted(0.01, pd.DataFrame(x, columns=["age", "dose"]), y).summary("robust")
    assert table.frame.index.tolist() == ["age", "dose", "intercept"]
    assert "robust standard errors, case-control sampling" in str(table)
    assert "<td>" in table._repr_html_()
    assert "case-control" in table._repr_html_()


@pytest.mark.parametrize(("k", "said"), [(2, "log-odds of 'b' against '<i>a'"), (3, "log-odds against '<i>a'")])
def test_the_note_names_the_classes_of_the_log_odds_and_no_label_is_markup(k: int, said: str) -> None:
    x, y = study([80, 60, 40][:k])
    names = np.array(["<i>a", "b", "<script>c"])[:k]
    table = fitted([0.6, 0.3, 0.1] if k == 3 else [0.9, 0.1], x, names[y]).summary()
    assert said in str(table)
    assert "<i>" not in table._repr_html_()
    assert "<script>" not in table._repr_html_()


def test_separated_classes_are_named_and_have_no_errors() -> None:
    x = np.linspace(-1, 1, 20)[:, None]
    y = (x[:, 0] > 0).astype(int)
    with pytest.warns(ConvergenceWarning, match="separates"):
        model = InformationGainClassifier(0.1, penalty=None).fit(x, y)
    assert_refused(model.summary, "overlap.*firth")
    x, y = study([40, 30])
    x[:, 1] = (y == 1) & (x[:, 0] > 0.5)  # occurs in one class alone
    with pytest.warns(ConvergenceWarning, match="separates"):
        InformationGainClassifier(0.1, penalty=None).fit(x, y)


def test_shrunken_coefficients_votes_dependent_features_and_wrong_words_are_refused() -> None:
    x, y = study([40, 30])
    shrunken = InformationGainClassifier(0.1).fit(x, y)
    assert_refused(shrunken.summary, "penalty=None")
    assert_refused(lambda: shrunken.predict_interval(x), "penalty=None")
    assert_refused(fitted(0.1, x, np.eye(2)[y]).summary, "votes")
    assert_refused(fitted(0.1, np.column_stack([x, x[:, 0]]), y).summary, "linearly independent")
    assert_refused(lambda: fitted(0.1, x, y).summary("HC3"), "covariance")  # type: ignore[arg-type]
    assert_refused(lambda: fitted(0.1, x, y).summary(level=95), "level")


def overlapping(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(SEED)
    y = (np.arange(n) % 4 == 0).astype(int)
    return rng.normal(size=(n, 2)) + 0.8 * y[:, None], y


def firth(x: np.ndarray, y: np.ndarray, **options: np.ndarray) -> InformationGainClassifier:
    return InformationGainClassifier(penalty="firth", tol=1e-10).fit(x, y, **options)


def penalised(coefficients: np.ndarray, design: np.ndarray, y: np.ndarray) -> float:
    """−ℓ(b) − ½ log det I(b)."""
    p = special.expit(design @ coefficients)
    information = (design * (p * (1 - p))[:, None]).T @ design
    return float(
        np.logaddexp(0, design @ coefficients).sum() - y @ design @ coefficients - np.linalg.slogdet(information)[1] / 2
    )


def test_firths_slopes_maximise_the_likelihood_times_jeffreys_prior() -> None:
    x, y = overlapping()
    design = np.column_stack([x, np.ones(len(y))])
    best = optimize.minimize(penalised, np.zeros(3), (design, y), method="BFGS", options={"gtol": 1e-9}).x
    np.testing.assert_allclose(firth(x, y).coef_[0], best[:2], atol=1e-5)


@pytest.mark.parametrize("cells", [(3, 5, 7, 2), (0, 5, 7, 2), (0, 5, 7, 0)], ids=["overlap", "a zero", "separated"])
def test_in_a_table_of_two_by_two_firths_penalty_adds_a_half_to_each_cell(cells: tuple[int, int, int, int]) -> None:
    x, y = np.repeat([1.0, 1.0, 0.0, 0.0], cells)[:, None], np.repeat([1, 0, 1, 0], cells)
    a, b, c, d = np.array(cells) + 0.5
    np.testing.assert_allclose(firth(x, y).coef_[0, 0], np.log(a * d / (b * c)), atol=1e-7)


def test_firths_mean_prediction_is_the_share_of_the_rows_and_then_moved_to_the_population() -> None:
    x, y = overlapping()
    model = firth(x, y)
    np.testing.assert_allclose(model.predict_proba(x)[:, 1].mean(), y.mean(), atol=1e-10)
    moved = InformationGainClassifier(0.01, penalty="firth", tol=1e-10).fit(x, y)
    np.testing.assert_allclose(moved.coef_, model.coef_)
    np.testing.assert_allclose(moved.intercept_ - model.intercept_, special.logit(0.01) - special.logit(y.mean()))


def test_with_firths_penalty_separated_classes_have_finite_coefficients_and_errors() -> None:
    x = np.linspace(-1, 1, 21)[:, None]
    y = (x[:, 0] > 0).astype(int)
    frame = firth(x, y).summary().frame
    assert np.isfinite(frame.to_numpy()).all()
    assert 1 < frame.loc["x0", "coef"] < 50


def test_with_firths_penalty_an_integer_weight_is_a_repeated_row() -> None:
    x, y = overlapping()
    weight = np.random.default_rng(SEED).integers(0, 3, len(y))
    repeated = np.repeat(np.arange(len(y)), weight)
    np.testing.assert_allclose(firth(x, y, sample_weight=weight).coef_, firth(x[repeated], y[repeated]).coef_, atol=1e-8)


def test_with_firths_penalty_dependent_features_and_three_classes_are_refused() -> None:
    x, y = overlapping()
    model = InformationGainClassifier(penalty="firth")
    assert_refused(lambda: model.fit(np.column_stack([x, x[:, 0]]), y), "linearly independent")
    assert_refused(lambda: model.fit(x, np.arange(len(y)) % 3), "3 classes")


def test_firths_robust_errors_divide_residuals_by_one_minus_the_leverage() -> None:
    x, y = overlapping()
    model = firth(x, y)
    design = np.column_stack([x, np.ones(len(y))])
    p = model.predict_proba(x)[:, 1]
    root = np.sqrt(p * (1 - p))[:, None] * design
    bread = np.linalg.inv(root.T @ root)
    scores = design * ((y - p) / (1 - np.diag(root @ bread @ root.T)))[:, None]
    np.testing.assert_allclose(model.summary("robust").covariance, bread @ scores.T @ scores @ bread, rtol=1e-6)
