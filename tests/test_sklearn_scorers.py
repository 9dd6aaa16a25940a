"""Scorers at a prevalence: equal to `evaluate` and to scikit-learn's own, and at home in its searches."""

from __future__ import annotations

import math
import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from draws import assert_refused
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import brier_score_loss, get_scorer
from sklearn.model_selection import GridSearchCV, KFold, TunedThresholdClassifierCV, cross_val_score, cross_validate
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import rightloss as rl
from rightloss.metrics import evaluate
from rightloss.metrics.figures import FIGURES
from rightloss.sklearn.scorers import PrevalenceScorer, prevalence_scorer

NAMES = {2: np.array(["healthy", "ill"]), 3: np.array(["a", "b", "c"])}


def rows(k: int, n: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels in words, class 0 the most frequent."""
    rng = np.random.default_rng(seed)
    y = rng.choice(k, n, p=np.array([6, 3, 1][:k]) / sum([6, 3, 1][:k]))
    return rng.normal(size=(n, 3)) + np.eye(k, 3)[y], NAMES[k][y]


def anything(value: Any) -> Any:
    """Hide a type from the type checker."""
    return value


def numbered(y: np.ndarray) -> np.ndarray:
    return np.unique(y, return_inverse=True)[1]


@pytest.mark.parametrize("figure", FIGURES)
def test_a_score_is_the_figure_of_evaluate_signed_so_that_greater_is_better(figure: str) -> None:
    k = 3 if figure in ("brier", "auc", "off_by_one") else 2
    X, y = rows(k)
    pi = [0.9, 0.1] if k == 2 else [0.7, 0.2, 0.1]
    model = GaussianNB().fit(X, y)
    found = evaluate(model.predict_log_proba(X), numbered(y), pi, intervals=None)[figure].value
    if math.isnan(found):
        with pytest.warns(rl.PrevalenceWarning, match="not defined"):
            assert math.isnan(prevalence_scorer(figure, pi)(model, X, y))
        return
    ideal = {"calibration_slope": 1.0, "calibration_intercept": 0.0, "mean_prediction": pi[-1]}
    lower = figure in ("brier", "calibration_error", "expected_cost")
    expected = -abs(found - ideal[figure]) if figure in ideal else -found if lower else found
    assert prevalence_scorer(figure, pi)(model, X, y) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("figure", "name"),
    [
        ("expected_log_likelihood", "neg_log_loss"),
        ("auc", "roc_auc"),
        ("brier", "neg_brier_score"),
        ("weighted_accuracy", "accuracy"),
        ("balanced_accuracy", "balanced_accuracy"),
    ],
)
def test_at_the_mix_of_the_labels_a_score_is_scikit_learns(figure: str, name: str) -> None:
    X, y = rows(2)
    X_test, y_test = rows(2, seed=1)
    model = RandomForestClassifier(5, random_state=0).fit(X, y)
    if name == "neg_brier_score":  # which wants to be told of labels in words what is positive
        expected = -brier_score_loss(y_test == "ill", model.predict_proba(X_test)[:, 1])
    else:
        expected = get_scorer(name)(model, X_test, y_test)
    share = float((y_test == "ill").mean())
    populations: list[Any] = [None, share, [1 - share, share], {"ill": share, "healthy": 1 - share}]
    populations.append(rl.Prevalence.beta(100 * share, 100 - 100 * share))  # its mean
    for population in populations:
        assert prevalence_scorer(figure, population)(model, X_test, y_test) == pytest.approx(expected, rel=1e-9)


def test_weights_count_within_each_class() -> None:
    X, y = rows(2)
    model = LogisticRegression().fit(X, y)
    times = np.random.default_rng(2).integers(0, 4, len(y))
    for figure in ("expected_log_likelihood", "auc", "calibration_intercept", "balanced_accuracy"):
        scorer = prevalence_scorer(figure, 0.02)
        repeated = scorer(model, np.repeat(X, times, 0), np.repeat(y, times))
        assert scorer(model, X, y, sample_weight=times) == pytest.approx(repeated, rel=1e-9)
        assert scorer(model, X, y, sample_weight=2.5 * times) == pytest.approx(repeated, rel=1e-9)


def test_plain_predictions_are_moved_from_the_mix_named_and_others_are_not() -> None:
    X, y = rows(2)
    model = LogisticRegression().fit(X, y)
    mix = float((y == "ill").mean())
    table = model.predict_log_proba(X)
    moved = evaluate(np.asarray(rl.retarget(table, mix, 0.01)), numbered(y), 0.01, intervals=None).brier.value
    mixes: list[Any] = ["labels", mix, {"healthy": 1 - mix, "ill": mix}, rl.Prevalence.binary(mix)]
    for from_ in mixes:
        assert prevalence_scorer("brier", 0.01, from_=from_)(model, X, y) == pytest.approx(-moved, rel=1e-9)
    as_it_is = prevalence_scorer("brier", 0.01)(model, X, y)
    assert as_it_is < -moved
    own = AtItsPopulation().fit(X, y)
    search = GridSearchCV(make_pipeline(StandardScaler(), AtItsPopulation()), {}, cv=2).fit(X, y)
    ways: list[Any] = [None, "labels"]
    for fitted in (own, make_pipeline(StandardScaler(), AtItsPopulation()).fit(X, y), search):
        plain, asked = (prevalence_scorer("brier", 0.01, from_=from_)(fitted, X, y) for from_ in ways)
        assert plain == asked


class AtItsPopulation(LogisticRegression):
    """A classifier that says at which population it predicts."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> AtItsPopulation:
        super().fit(X, y, sample_weight)
        self.population_ = np.array([0.99, 0.01])
        return self


class OnlyProbabilities(ClassifierMixin, BaseEstimator):
    """A classifier as other libraries write them: no logarithms."""

    def fit(self, X: Any, y: Any) -> OnlyProbabilities:
        self.inner_ = GaussianNB().fit(X, y)
        self.classes_ = self.inner_.classes_
        return self

    def predict_proba(self, X: Any) -> pd.DataFrame:
        return pd.DataFrame(self.inner_.predict_proba(X), columns=self.classes_)


def test_probabilities_alone_are_enough_and_for_auc_a_decision_function_is() -> None:
    X, y = rows(3)
    a, b = OnlyProbabilities().fit(X, y), GaussianNB().fit(X, y)
    scorer = prevalence_scorer(population=[0.5, 0.3, 0.2])
    assert scorer(a, X, y) == pytest.approx(scorer(b, X, y), rel=1e-9)
    X, y = rows(2)
    ridge = RidgeClassifier().fit(X, y)
    assert prevalence_scorer("auc", 0.01)(ridge, X, y) == pytest.approx(get_scorer("roc_auc")(ridge, X, y), rel=1e-12)
    assert_refused(lambda: prevalence_scorer("brier", 0.01)(ridge, X, y), "predict_proba")


def test_a_fold_without_a_class_scores_nan_with_a_warning() -> None:
    X, y = rows(2)
    model = GaussianNB().fit(X, y)
    healthy = y == "healthy"
    each: list[dict[str, Any]] = [{"population": 0.1}, {"population": None}, {"population": 0.1, "from_": "labels"}]
    for options in each:
        with pytest.warns(rl.PrevalenceWarning, match="stratified"):
            assert math.isnan(prevalence_scorer(**options)(model, X[healthy], y[healthy]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert 0 < prevalence_scorer("tnr", 0.1)(model, X[healthy], y[healthy]) < 1  # to which class 1 adds nothing
    order = np.argsort(y)
    with pytest.warns(UserWarning, match=r"not defined|Scoring failed|fits failed"):
        scores = cross_val_score(GaussianNB(), X[order], y[order], cv=KFold(3), scoring=prevalence_scorer(population=0.1))
    assert bool(np.isnan(scores).any())


@pytest.mark.parametrize("jobs", [pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.slow)])
def test_searches_choose_by_it_in_one_process_and_in_several(jobs: int) -> None:
    X, y = rows(2, 400)
    at: Any = {"healthy": 0.98, "ill": 0.02}
    scorers = {"ll": prevalence_scorer(population=at, from_="labels"), "auc": prevalence_scorer("auc", at)}
    search = GridSearchCV(LogisticRegression(), {"C": [1e-4, 1.0]}, scoring=scorers, refit="ll", cv=3, n_jobs=jobs).fit(X, y)
    assert search.best_params_ == {"C": 1.0}
    one = cross_validate(LogisticRegression(C=1.0), X, y, scoring=scorers, cv=3)
    for name in scorers:
        np.testing.assert_allclose(search.cv_results_[f"mean_test_{name}"][1], one[f"test_{name}"].mean(), rtol=1e-12)
    frame, series = pd.DataFrame(X, columns=["u", "v", "w"]), pd.Series(y)
    again = cross_validate(LogisticRegression(), frame, series, scoring=scorers, cv=3)
    np.testing.assert_allclose(again["test_ll"], one["test_ll"])


def test_a_scorer_can_be_cloned_pickled_and_asked_for_weights() -> None:
    import sklearn

    X, y = rows(2)
    model = LogisticRegression().fit(X, y)
    assert PrevalenceScorer().get_params() == prevalence_scorer().get_params()
    populations: list[Any] = [0.02, rl.Prevalence.beta(2.0, 98.0), {"healthy": 0.98, "ill": 0.02}]
    for population in populations:
        scorer = prevalence_scorer("brier", population, threshold=0.1)
        for copied in (clone(scorer), pickle.loads(pickle.dumps(scorer))):
            assert isinstance(copied, PrevalenceScorer)
            assert copied(model, X, y) == scorer(model, X, y)
    with sklearn.config_context(enable_metadata_routing=True):
        asking = prevalence_scorer("brier", 0.02).set_score_request(sample_weight=True)
        weights = np.where(X[:, 0] > 0, 3.0, 1.0)
        weighted = cross_val_score(
            LogisticRegression().set_fit_request(sample_weight=False),
            X, y, scoring=asking, cv=2, params={"sample_weight": weights},
        )  # fmt: skip
        plain = cross_val_score(LogisticRegression(), X, y, scoring=prevalence_scorer("brier", 0.02), cv=2)
    assert bool((weighted != plain).all())


def decided(figure: str, costs: Any, X: np.ndarray, y: np.ndarray, threshold: float) -> float:
    """A figure of the decisions at a threshold, by hand, at 2 % of class 1."""
    said = LogisticRegression().fit(X, y).predict_proba(X)[:, 1] >= threshold
    tpr, fpr = said[y == 1].mean(), said[y == 0].mean()
    if figure == "ppv":
        return 0.02 * tpr / (0.02 * tpr + 0.98 * fpr) if said.any() else 0.0
    return -(0.98 * fpr * costs[0][1] + 0.02 * (1 - tpr) * costs[1][0]) if figure == "expected_cost" else tpr


@pytest.mark.long
@pytest.mark.parametrize("figure", ["expected_cost", "ppv", "tpr"])
def test_a_threshold_is_tuned_by_a_figure_of_decisions(figure: str) -> None:
    X, words = rows(2, 400)
    y, costs = numbered(words), [[0.0, 1.0], [20.0, 0.0]]
    cuts = np.linspace(0.1, 0.95, 12)
    tuned = TunedThresholdClassifierCV(
        LogisticRegression(), scoring=prevalence_scorer(figure, 0.02, costs=costs), thresholds=cuts, store_cv_results=True,
        cv=[(np.arange(400), np.arange(400))], refit=False,
    ).fit(X, y)  # fmt: skip
    expected = [decided(figure, costs, X, y, cut) for cut in cuts]
    np.testing.assert_allclose(tuned.cv_results_["scores"], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("figure", "threshold"), [("tpr", None), ("net_benefit", None), ("expected_cost", 0.1)])
def test_a_figure_of_the_positive_class_is_refused_where_words_do_not_show_it(figure: str, threshold: float | None) -> None:
    X, y = rows(2)
    options: dict[str, Any] = {"figure": figure, "threshold": threshold}
    named = np.where(y == "ill", "case", "control")
    scorer = prevalence_scorer(**options, population={"case": 0.02, "control": 0.98})
    assert_refused(lambda: scorer(GaussianNB().fit(X, named), X, named), "show the positive class")
    assert scorer.set_params(population=0.02)(GaussianNB().fit(X, numbered(y)), X, numbered(y)) == pytest.approx(
        prevalence_scorer(**options, population=0.02)(GaussianNB().fit(X, y), X, y)
    )


def test_what_cannot_be_scored_is_refused_before_anything_is_trained() -> None:
    X, y = rows(2)
    model = LogisticRegression().fit(X, y)
    assert_refused(lambda: prevalence_scorer("f1"), "`figure`")
    tuned = TunedThresholdClassifierCV(LogisticRegression(), scoring=prevalence_scorer("brier", 0.02), cv=2)
    assert_refused(lambda: tuned.fit(X, y), "figure of decisions")
    assert_refused(lambda: prevalence_scorer(population=1.5), "population")
    assert_refused(lambda: prevalence_scorer(population=[0.5, 0.6]), "sum")
    assert_refused(lambda: prevalence_scorer(population=anything("labels")), "frequencies")
    assert_refused(lambda: prevalence_scorer(population=0.1, from_=anything("training")), "labels")
    assert_refused(lambda: prevalence_scorer(costs=[[0, 1], [1, 0]], threshold=0.2), "both")
    assert_refused(lambda: prevalence_scorer(population=anything({"ill": 0.1, "well": 0.9}))(model, X, y), "name the classes")
    assert_refused(
        lambda: prevalence_scorer(population=0.1)(model, X, np.full(len(y), "dead")), "among the classifier's classes"
    )
    assert_refused(lambda: prevalence_scorer(population=0.1)(LogisticRegression(), X, y), "fitted classifier")
    assert_refused(lambda: prevalence_scorer(population=0.1)(model, X, y, sample_weight=-np.ones(len(y))), "sample_weight")
