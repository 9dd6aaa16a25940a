"""The linear classifier against scikit-learn, the loss itself and refits."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from draws import SEED, assert_refused, unchecked_types
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

import rightloss as rl
from rightloss.sklearn.information_gain import InformationGainClassifier

LOSSES = ["information_gain", "weighted"]
POPULATIONS: dict[int, Any] = {2: 0.05, 3: [0.8, 0.15, 0.05]}


def rows(k: int = 2, n: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1000 * SEED + seed)
    y = np.concatenate([np.arange(k), rng.choice(k, n - k, p=np.arange(1, k + 1) / np.arange(1, k + 1).sum())])
    return rng.normal(size=(n, 3)) * [1, 3, 0.2] + np.column_stack([y, -y, 0.1 * y]), y


@pytest.mark.parametrize(
    ("k", "C", "population"), [(2, 0.05, 0.05), (3, 100.0, [0.8, 0.15, 0.05]), (2, 1.0, None), (3, 1.0, None)]
)
def test_it_is_logistic_regression_with_the_populations_intercept(k: int, C: float, population: Any) -> None:
    x, y = rows(k)
    ours = InformationGainClassifier(population, C=C, tol=1e-9).fit(x, y)
    theirs = LogisticRegression(C=C, solver="newton-cholesky", tol=1e-10).fit(x, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    mix = np.bincount(y) / len(y)
    moved = rl.retarget(theirs.predict_log_proba(x), from_=mix, to=mix if population is None else population)
    np.testing.assert_allclose(ours.predict_log_proba(x), moved, atol=1e-6)
    if population is None:
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-6)
        np.testing.assert_allclose(ours.decision_function(x), theirs.decision_function(x), atol=1e-5)
        assert (ours.predict(x) == theirs.predict(x)).all()


@pytest.mark.parametrize("k", [2, 3])
def test_the_weighted_loss_is_logistic_regression_with_the_classes_importance_as_weights(k: int) -> None:
    x, y = rows(k)
    prevalence = rl.Prevalence.from_labels(y, POPULATIONS[k])
    ours = InformationGainClassifier(POPULATIONS[k], loss="weighted", tol=1e-9).fit(x, y)
    theirs = LogisticRegression(solver="newton-cholesky", tol=1e-10).fit(x, y, sample_weight=prevalence.weights[y])
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    np.testing.assert_allclose(ours.predict_proba(x), theirs.predict_proba(x), atol=1e-6)


@pytest.mark.parametrize(("d", "k", "offset"), [(20, 2, 0.0), (310, 2, 1e4), (6, 3, 1e4)])
def test_more_features_are_fitted_by_another_solver_with_the_same_result(d: int, k: int, offset: float) -> None:
    rng = np.random.default_rng(SEED)
    x, y = rng.normal(size=(100, d)), np.arange(100) % k
    weight = rng.random(100) + 0.5
    ours = InformationGainClassifier(C=0.1, tol=1e-8, max_iter=2000).fit(x + offset, y, sample_weight=weight)
    theirs = LogisticRegression(C=0.1, solver="newton-cholesky", tol=1e-10).fit(x, y, sample_weight=weight)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    np.testing.assert_allclose(ours.predict_proba(x + offset), theirs.predict_proba(x), atol=1e-5)


@pytest.mark.parametrize(("k", "kappa"), [(2, 0.0), (3, 0.3)])
def test_the_fit_is_an_optimum_of_the_information_gain_whatever_the_evidence(k: int, kappa: float) -> None:
    torch = pytest.importorskip("torch")
    x, y = rows(k)
    model = InformationGainClassifier(POPULATIONS[k], tol=1e-9).fit(x, y)
    coef, intercept = (torch.tensor(each, requires_grad=True) for each in (model.coef_, model.intercept_))
    outputs = torch.from_numpy(x) @ coef.T + intercept
    prevalence, likelihood = model.prevalence_.with_evidence(kappa), rl.Bernoulli() if k == 2 else rl.Categorical()
    loss = rl.information_gain_loss(outputs, torch.from_numpy(y), prevalence, likelihood)
    (loss + coef.square().sum() / (2 * model.C * len(y))).backward()
    np.testing.assert_allclose(np.append(coef.grad.numpy(), intercept.grad.numpy()), 0, atol=1e-7)


def test_the_columns_of_a_table_of_votes_name_the_classes_in_any_order() -> None:
    frames = pytest.importorskip("polars")
    x, y = rows(3)
    votes = np.eye(3)[y]
    table = frames.DataFrame({"c": votes[:, 2], "a": votes[:, 0], "b": votes[:, 1]})
    population: dict[Any, float] = {"b": 0.15, "a": 0.8, "c": 0.05}
    named = InformationGainClassifier(population).fit(x, table)
    assert named.classes_.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(named.predict_proba(x), InformationGainClassifier([0.8, 0.15, 0.05]).fit(x, y).predict_proba(x))


@pytest.mark.parametrize(
    "population",
    [0.05, [0.95, 0.05], {"yes": 0.05, "no": 0.95}, rl.Prevalence([0.95, 0.05]), rl.Prevalence.beta(5.0, 95.0)],
    ids=["number", "list", "dict", "Prevalence", "uncertain"],
)
def test_a_population_may_be_written_in_many_ways(population: Any) -> None:
    x, y = rows()
    model = InformationGainClassifier(population).fit(x, np.array(["no", "yes"])[y])
    np.testing.assert_allclose(model.population_, [0.95, 0.05])
    np.testing.assert_allclose(model.predict_proba(x), InformationGainClassifier(0.05).fit(x, y).predict_proba(x))
    if isinstance(population, rl.Prevalence) and population.is_uncertain:
        assert model.concentration_.tolist() == [95.0, 5.0]  # type: ignore[union-attr]
        assert model.set_population(0.2).prevalence_.concentration is None


def test_too_few_iterations_are_said() -> None:
    x, y = rows()
    for features in (x, np.tile(x, 5)):  # Newton's method, L-BFGS
        with pytest.warns(ConvergenceWarning, match="raise max_iter"):
            InformationGainClassifier(0.01, max_iter=1).fit(features, y)


def test_features_on_very_different_scales_and_a_constant_one_are_no_trouble() -> None:
    x, y = rows()
    scale = np.array([1e-4, 1e5, 1.0])
    plain = InformationGainClassifier(0.05, penalty=None, tol=1e-8).fit(x, y)
    scaled = InformationGainClassifier(0.05, penalty=None, tol=1e-8).fit(np.column_stack([x * scale, np.full(len(y), 7.0)]), y)
    np.testing.assert_allclose(
        scaled.decision_function(np.column_stack([x * scale, np.full(len(y), 7.0)])), plain.decision_function(x), rtol=1e-5
    )


@pytest.mark.long
def test_extreme_populations_stay_finite() -> None:
    x, y = rows()
    for population, loss in ((1e-9, "information_gain"), (1 - 1e-9, "weighted")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = InformationGainClassifier(population, loss=loss).fit(x, y)  # type: ignore[arg-type]
        assert np.isfinite(model.predict_log_proba(1e3 * x)).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"population": 2.0}, "population"),
        ({"population": [0.5, 0.3, 0.2]}, "2 entries"),
        ({"population": {"x": 0.5, "y": 0.5}}, "name the classes"),
        ({"loss": "focal"}, "loss"),
        ({"penalty": "l1"}, "penalty"),
        ({"C": 0.0}, "`C`"),
        ({"tol": -1.0}, "tol"),
        ({"max_iter": 2.5}, "max_iter"),
        ({"penalty": "firth", "loss": "weighted"}, "weighted"),
        ({"hidden_layer_sizes": (3,)}, r"InformationGainMLPClassifier.*rightloss\[torch\]"),
    ],
)
def test_wrong_options_are_refused_with_the_remedy(options: dict[str, Any], words: str) -> None:
    x, y = rows()
    with unchecked_types():
        model = InformationGainClassifier(**options)
    assert_refused(lambda: model.fit(x, y), words)


def test_wrong_rows_are_refused_with_the_remedy() -> None:
    x, y = rows()
    fit = InformationGainClassifier().fit
    assert_refused(lambda: fit(x, np.zeros(len(y), int)), "2 classes")
    assert_refused(lambda: fit(x, np.full((len(y), 2), 0.7)), "sum to 1")
    assert_refused(lambda: fit(x, np.tile([1.0, 0.0], (len(y), 1))), "vote for every class")
    assert InformationGainClassifier().fit(*rows(3), sample_weight=(rows(3)[1] < 2).astype(float)).classes_.tolist() == [0, 1]


@pytest.mark.long
def test_a_model_is_saved_by_skops_without_pickle() -> None:
    io = pytest.importorskip("skops.io")
    x, y = rows()
    model = InformationGainClassifier(0.1, penalty=None).fit(x, y)
    saved, name = io.dumps(model), "rightloss.sklearn.information_gain.InformationGainClassifier"
    assert io.get_untrusted_types(data=saved) == [name]
    loaded = io.loads(saved, trusted=[name])
    np.testing.assert_array_equal(loaded.predict_proba(x), model.predict_proba(x))
    np.testing.assert_array_equal(loaded.summary().frame, model.summary().frame)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_tables_give_feature_names_and_the_same_predictions(library: str) -> None:
    frames = pytest.importorskip(library)
    x, y = rows()
    table = frames.DataFrame({name: x[:, i] for i, name in enumerate(["age", "dose", "size"])})
    model = InformationGainClassifier(0.05).fit(table, frames.Series(y))
    assert model.feature_names_in_.tolist() == ["age", "dose", "size"]
    plain = InformationGainClassifier(0.05).fit(x, y)
    np.testing.assert_allclose(model.predict_proba(table), plain.predict_proba(x), rtol=1e-10)
    if library == "pandas":
        with pytest.raises(ValueError, match="feature names"):
            model.predict(table.rename(columns={"age": "years"}))


@pytest.mark.parametrize(("population", "d"), [(1e-6, 3), (1e-4, 15)])
def test_a_rare_class_does_not_end_a_weighted_fit_early(population: float, d: int) -> None:
    rng = np.random.default_rng(SEED)
    y = np.arange(400) % 2
    x = rng.normal(size=(400, d)) + np.eye(d)[0] * y[:, None]
    found = InformationGainClassifier(population, loss="weighted", C=1e4).fit(x, y)
    weight = np.where(y == 1, 2 * population, 2 * (1 - population))
    theirs = LogisticRegression(C=1e4, solver="newton-cholesky", tol=1e-13).fit(x, y, sample_weight=weight)
    np.testing.assert_allclose(found.coef_, theirs.coef_, atol=1e-3 * np.abs(theirs.coef_).max())
