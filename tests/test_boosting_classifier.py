"""`BoostingClassifier`: scikit-learn's checks, probabilities at the population, and what goes through to the libraries."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from members import SEED, assert_refused, unchecked_types
from scipy.special import log_softmax
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import rightloss as rl
from rightloss.boosting import BoostingClassifier

pytestmark = pytest.mark.long

FLOAT32 = "XGBoost sums gradients in float32 and bins by weighted quantiles: repeated rows and weights differ by rounding."
ORDERED = "CatBoost draws permutations of the rows, so that repeated rows and weights are not the same."
WEIGHTS = ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data")
FAILURES: dict[str, dict[str, str]] = {
    "lightgbm": {},
    "xgboost": dict.fromkeys(WEIGHTS, FLOAT32),
    "catboost": dict.fromkeys(WEIGHTS, ORDERED),
}
# every loss that a library takes
MEMBERS = [
    *((library, loss) for library in ("lightgbm", "xgboost") for loss in ("information_gain", "logit_adjusted", "weighted")),
    ("catboost", "logit_adjusted"),
]
each_member = pytest.mark.parametrize(("library", "loss"), MEMBERS)
each_library = pytest.mark.parametrize(("library", "loss"), [MEMBERS[0], MEMBERS[3], MEMBERS[6]])


def model_of(library: str, loss: str, population: Any = None, **options: Any) -> BoostingClassifier:
    options = {"n_estimators": 20, "random_state": 0, "n_jobs": 1} | options
    return BoostingClassifier(population, library=library, loss=loss, **options)  # type: ignore[arg-type]


def people(k: int = 2, n: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two or more Gaussians, classes in equal numbers."""
    y = np.arange(n) % k
    return np.random.default_rng(1000 * SEED + seed).normal(size=(n, 4)) + 0.7 * y[:, None], y


@pytest.mark.parametrize("library", ["lightgbm", "xgboost", "catboost"])
def test_it_passes_scikit_learns_checks(library: str) -> None:
    loss = "logit_adjusted" if library == "catboost" else "information_gain"
    model = model_of(library, loss, n_estimators=10)
    with unchecked_types():  # the checks set every parameter to nonsense
        found = check_estimator(model, expected_failed_checks=FAILURES[library], on_skip=None, on_fail="raise")
    skipped = {each["check_name"] for each in found if each["status"] == "skipped"}
    assert skipped <= {"check_array_api_input"}  # SCIPY_ARRAY_API is not set


@pytest.mark.parametrize(("library", "loss"), [each for each in MEMBERS if each[1] != "weighted"])
def test_its_mean_prediction_is_near_the_population(library: str, loss: str) -> None:
    x, y = people(n=2000)
    x_new, y_new = people(n=4000, seed=1)
    probs = model_of(library, loss, 0.02).fit(x, y).predict_proba(x_new)[:, 1]
    mean = 0.98 * probs[y_new == 0].mean() + 0.02 * probs[y_new == 1].mean()
    assert 0.01 < mean < 0.04


@each_member
@pytest.mark.parametrize("k", [2, 3])
def test_its_parts_give_its_predictions(library: str, loss: str, k: int) -> None:
    import xgboost as xgb

    x, y = people(k)
    population = [0.9, 0.1] if k == 2 else [0.9, 0.09, 0.01]
    model = model_of(library, loss, population).fit(x, y)
    if library == "lightgbm":
        raw = model.booster_.predict(x, raw_score=True)
    elif library == "xgboost":
        raw = model.booster_.predict(xgb.DMatrix(x), output_margin=True)
    else:
        raw = model.booster_.predict(x, prediction_type="RawFormulaVal")
    table = np.stack([np.zeros_like(raw), raw], 1) if k == 2 else raw
    np.testing.assert_allclose(model.predict_log_proba(x), log_softmax(table + np.log(population), 1), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(model.predict_proba(x).sum(1), 1, rtol=1e-9)
    decision = model.decision_function(x)
    assert decision.shape == ((len(x),) if k == 2 else (len(x), k))


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_the_information_gain_at_full_evidence_is_logit_adjustment(library: str) -> None:
    x, y = people()
    gain, adjusted = (model_of(library, loss, 0.01).fit(x, y) for loss in ("information_gain", "logit_adjusted"))
    np.testing.assert_allclose(gain.decision_function(x), adjusted.decision_function(x), atol=2e-3)


@each_library
def test_set_population_is_retarget(library: str, loss: str) -> None:
    x, y = people()
    model = model_of(library, loss, 0.01).fit(x, y)
    expected = rl.retarget(model.predict_log_proba(x), from_=0.01, to=0.3)
    np.testing.assert_allclose(model.set_population(0.3).predict_log_proba(x), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.population_, [0.7, 0.3])
    assert model.get_params()["population"] == clone(model).population == 0.01
    sampled = rl.retarget(expected, from_=0.3, to=0.5)
    np.testing.assert_allclose(model.set_population(None).predict_log_proba(x), sampled, rtol=1e-9, atol=1e-12)


@each_library
def test_logit_adjustment_fitted_at_one_population_and_moved_is_that_fitted_at_another(library: str, loss: str) -> None:
    x, y = people()
    moved = model_of(library, "logit_adjusted", 0.01).fit(x, y).set_population(0.3)
    np.testing.assert_allclose(moved.predict_proba(x), model_of(library, "logit_adjusted", 0.3).fit(x, y).predict_proba(x))


@each_library
def test_string_labels_and_a_population_by_name(library: str, loss: str) -> None:
    x, y = people()
    named = np.array(["well", "ill"])[y]
    model = model_of(library, loss, {"ill": 0.1, "well": 0.9}).fit(x, named)
    assert model.classes_.tolist() == ["ill", "well"]
    by_number = model_of(library, loss, 0.1).fit(x, y)
    np.testing.assert_allclose(model.predict_proba(x)[:, 0], by_number.predict_proba(x)[:, 1], rtol=0.05, atol=0.01)
    assert set(model.predict(x)) <= {"ill", "well"}


@each_library
def test_missing_values_and_categories_go_through(library: str, loss: str) -> None:
    _, y = people(n=800)
    draw = np.random.default_rng(1000 * SEED + 7)
    names = np.array(["a", "b", "c", "d"])
    site = pd.Categorical(names[(2 * y + draw.integers(0, 2, 800)) % 4])  # a and b: class 0, c and d: class 1
    size = draw.normal(size=800)
    size[::7] = np.nan
    frame = pd.DataFrame({"the site, [1]": site, "size": size})
    model = model_of(library, loss, 0.5).fit(frame, y)
    assert model.feature_names_in_.tolist() == ["the site, [1]", "size"]
    assert (model.predict(frame) == y).mean() > 0.95
    # the same values with the categories in another order, and in part
    part = frame.iloc[:20].assign(**{"the site, [1]": pd.Categorical(frame["the site, [1]"].iloc[:20], names[::-1])})
    np.testing.assert_allclose(model.predict_proba(part), model.predict_proba(frame)[:20])
    with pytest.raises(ValueError, match="categorical column"):
        model.predict(frame.assign(**{"the site, [1]": 1.0}))


@each_library
@pytest.mark.parametrize("kind", [str, int, float, bool])
def test_a_category_may_be_of_any_kind_missing_or_new(library: str, loss: str, kind: Any) -> None:
    draw = np.random.default_rng(1000 * SEED + 8)
    y, codes = np.arange(300) % 2, draw.integers(0, 2, 300)
    site = pd.Categorical.from_codes(np.where(np.arange(300) % 7 == 0, -1, codes), categories=[kind(0), kind(1)])
    frame = pd.DataFrame({0: draw.normal(size=300) + y, 1: site})  # also without names
    model = model_of(library, loss, 0.5).fit(frame, y)
    missing, new = (pd.DataFrame({0: frame[0], 1: pd.Categorical([value] * 300, ["new"])}) for value in (None, "new"))
    np.testing.assert_allclose(model.predict_proba(missing), model.predict_proba(new))


@each_library
@pytest.mark.parametrize("k", [2, 3])
def test_without_a_column_that_varies_it_predicts_the_population(library: str, loss: str, k: int) -> None:
    population = [0.7, 0.2, 0.1][:k] if k == 3 else [0.9, 0.1]
    model = model_of(library, loss, population).fit(np.ones((60, 2)), np.arange(60) % k)
    np.testing.assert_allclose(model.predict_proba(np.ones((3, 2))), [population] * 3, rtol=1e-6)


def test_columns_of_words_are_refused_with_what_to_do() -> None:
    frame = pd.DataFrame({"site": pd.Categorical(["a", "b"] * 20), "word": ["u", "v"] * 20})
    for library, loss in (MEMBERS[0], MEMBERS[6]):
        assert_refused(lambda: model_of(library, loss).fit(frame, np.arange(40) % 2), r"\['word'\] have the dtype")  # noqa: B023


@each_member
def test_early_stopping_keeps_fewer_rounds_and_predicts_with_them(library: str, loss: str) -> None:
    x, y = people(n=400)
    model = model_of(library, loss, 0.1, n_estimators=400, early_stopping=True, validation_fraction=0.3, learning_rate=0.3)
    model.fit(x, y)
    assert 1 <= model.n_iter_ < 200
    if library == "lightgbm":
        shorter = model.booster_.predict(x, raw_score=True, num_iteration=model.n_iter_)
        np.testing.assert_allclose(model.decision_function(x), shorter + np.log(0.1 / 0.9))


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_early_stopping_is_the_same_by_either_way_to_the_same_loss(library: str) -> None:
    x, y = people(n=500)
    options: dict[str, Any] = {"n_estimators": 300, "early_stopping": True, "validation_fraction": 0.4, "max_depth": 2}
    gain, adjusted = (model_of(library, loss, 0.1, **options).fit(x, y) for loss in ("information_gain", "logit_adjusted"))
    assert abs(gain.n_iter_ - adjusted.n_iter_) <= 1


@each_library
def test_weights_count_in_the_training_mix(library: str, loss: str) -> None:
    x, y = people()
    weights = np.where(y == 1, 3.0, 1.0)
    model = model_of(library, loss, 0.1).fit(x, y, sample_weight=weights)
    assert model.prevalence_.sampling.tolist() == pytest.approx([0.25, 0.75])
    plain = model_of(library, loss, 0.1).fit(x, y)
    # to weight a class is to sample it more often: at the same population the predictions are near one another
    assert np.abs(model.predict_proba(x) - plain.predict_proba(x)).mean() < 0.03


def test_params_go_to_the_library() -> None:
    x, y = people()
    model = model_of("lightgbm", "information_gain", params={"num_leaves": 2}).fit(x, y)
    assert all(tree["num_leaves"] == 2 for tree in model.booster_.dump_model()["tree_info"])


def test_the_paper_s_form_and_other_evidence_are_other_models() -> None:
    x, y = people()
    default = model_of("lightgbm", "information_gain", 0.05).fit(x, y).predict_proba(x)
    published: dict[str, Any] = {"evidence": 0.0, "reference": "population"}
    for options in (published, published | {"evidence": 0.3}, {"reference": [0.7, 0.3]}):
        other = model_of("lightgbm", "information_gain", 0.05, **options).fit(x, y)
        assert np.abs(other.predict_proba(x) - default).max() > 1e-3, options
    uncertain = model_of("lightgbm", "information_gain", rl.Prevalence.beta(1.0, 19.0), evidence=None).fit(x, y)
    np.testing.assert_array_equal(uncertain.predict_proba(x), default)


@each_library
def test_clone_pickle_pipeline_and_grid_search(library: str, loss: str) -> None:
    x, y = people(n=200)
    model = model_of(library, loss, rl.Prevalence.binary(0.1), n_estimators=5)
    assert clone(model).get_params() == model.get_params()
    fitted = pickle.loads(pickle.dumps(model.fit(x, y)))
    np.testing.assert_array_equal(fitted.predict_proba(x), model.predict_proba(x))
    search = GridSearchCV(make_pipeline(StandardScaler(), model), {"boostingclassifier__max_depth": [2, 3]}, cv=2).fit(x, y)
    assert search.best_score_ > 0.4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"library": "sklearn"}, "Expected `library`"),
        ({"loss": "focal"}, "Expected `loss`"),
        ({"library": "catboost"}, "Expected loss='logit_adjusted' with CatBoost"),
        ({"reference": "ours"}, "Expected `reference`"),
        ({"n_estimators": 0}, "Expected `n_estimators`"),
        ({"early_stopping": True, "validation_fraction": 1.0}, "Expected `validation_fraction`"),
        ({"params": {"objective": "binary"}}, "Expected `params` without"),
        ({"population": 2.0}, "percentage"),
        ({"population": {"ill": 0.1, "well": 0.9}}, "Expected `population` to name the classes"),
        ({"evidence": -1.0}, "Expected `evidence`"),
    ],
)
def test_what_a_user_got_wrong_is_said_before_training(options: dict[str, Any], message: str) -> None:
    x, y = people(n=20)
    assert_refused(lambda: BoostingClassifier(**options).fit(x, y), message)


def test_a_class_with_one_row_cannot_be_split_for_early_stopping() -> None:
    x, _ = people(n=20)
    assert_refused(lambda: BoostingClassifier(early_stopping=True).fit(x, np.arange(20) == 0), "at least 2 rows of each class")


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_columns_that_say_nothing_leave_the_population(library: str) -> None:
    y = np.arange(40) % 2
    probs = model_of(library, "information_gain", 0.05).fit(np.ones((40, 2)), y).predict_proba(np.ones((3, 2)))
    np.testing.assert_allclose(probs, np.tile([0.95, 0.05], (3, 1)), rtol=1e-6)
