"""PrevalenceCorrectedClassifier: right on populations that are known, in every form that scikit-learn's users write."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from draws import SEED, assert_mean_is, assert_refused
from imblearn.over_sampling import SMOTE
from imblearn.pipeline import make_pipeline as sampling_pipeline
from imblearn.under_sampling import RandomUnderSampler
from lightgbm import LGBMClassifier
from scipy import sparse
from scipy.special import log_expit
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier, StackingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Perceptron
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    ShuffleSplit,
    StratifiedKFold,
    cross_val_predict,
    cross_validate,
)
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from xgboost import XGBClassifier

from rightloss import Prevalence, PrevalenceWarning
from rightloss.calibration import fit_calibration, smooth_likelihoods
from rightloss.calibration.auto import choose_correction, clearly_best
from rightloss.calibration.held_out import HeldOut
from rightloss.metrics import evaluate
from rightloss.predictive import retarget
from rightloss.shift import LabelShiftWarning, estimate_prevalence
from rightloss.sklearn.corrected import PrevalenceCorrectedClassifier
from rightloss.sklearn.folds import GivenRows, share_of_copies, splits_of
from rightloss.sklearn.scorers import prevalence_scorer
from rightloss.sklearn.training_mix import was_trained_on

LABELLED = (0.7, 0.3)  # the mix of the labels
SHIFT = 1.2  # the two classes are N(0, I) and N(SHIFT, I) in two dimensions
corrected = PrevalenceCorrectedClassifier


def rows(n: int, rate: float, seed: int, features: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(100 * SEED + seed)
    y = (rng.random(n) < rate).astype(int)
    return rng.normal(size=(n, features)) + SHIFT * y[:, None], y


def truth(X: np.ndarray, rate: float) -> np.ndarray:
    """p(k|x) of a population with that rate of class 1, by Bayes."""
    log_odds = np.log(rate / (1 - rate)) + SHIFT * X.sum(1) - SHIFT**2 * X.shape[1] / 2
    return np.stack([1 / (1 + np.exp(log_odds)), 1 / (1 + np.exp(-log_odds))], axis=1)


def three(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(100 * SEED + seed)
    y = rng.choice(3, n, p=[0.6, 0.3, 0.1])
    return rng.normal(size=(n, 2)) + np.array([[0, 0], [1.5, 0], [0, 1.5]])[y], y


def expected_log_likelihood(model: Any, X: np.ndarray, y: np.ndarray, rate: float) -> float:
    log_probs = model.predict_log_proba(X)
    return float(sum(share * log_probs[y == k, k].mean() for k, share in enumerate((1 - rate, rate))))


def forest(**settings: Any) -> Any:
    return RandomForestClassifier(30, random_state=0, **settings)


def balanced(**settings: Any) -> Any:
    return LogisticRegression(C=1e6, class_weight="balanced", **settings)


# Well-specified classifiers whose training changed the mix of the classes, and the method that puts it right.
WELL_SPECIFIED: dict[str, tuple[Callable[[], Any], str]] = {
    "no weights": (lambda: LogisticRegression(C=1e6), "closed_form"),
    "balanced": (balanced, "closed_form"),
    "balanced, auto": (balanced, "auto"),
    "undersampled": (lambda: sampling_pipeline(RandomUnderSampler(random_state=0), LogisticRegression(C=1e6)), "closed_form"),
    "without probabilities": (lambda: LinearSVC(class_weight="balanced"), "affine"),
}


# Trees that store how many rows each leaf was trained on.
TREES: dict[str, Callable[[], Any]] = {
    "LightGBM, balanced": lambda: LGBMClassifier(n_estimators=3, class_weight="balanced", n_jobs=1, verbosity=-1),
    "XGBoost": lambda: XGBClassifier(n_estimators=3, n_jobs=1),
    "gradient boosting": lambda: GradientBoostingClassifier(n_estimators=3),
    "tree": lambda: DecisionTreeClassifier(max_depth=6, class_weight="balanced"),
    "pipeline": lambda: make_pipeline(StandardScaler(), XGBClassifier(n_estimators=3, n_jobs=1)),
}


@pytest.mark.long
@pytest.mark.parametrize("name", WELL_SPECIFIED)
def test_predictions_and_their_mean_in_the_population_are_the_truth_over_independent_training_sets(name: str) -> None:
    make, method = WELL_SPECIFIED[name]
    points, (X, _) = np.array([[-1.0, 0.0], [0.5, 0.5], [1.5, 1.0]]), rows(20_000, 0.05, 1000)
    models = [corrected(make(), 0.05, method=method).fit(*rows(2000, 0.3, n)) for n in range(12)]
    means = np.array([each.predict_proba(X)[:, 1].mean() for each in models])
    assert_mean_is(means, float(truth(X, 0.05)[:, 1].mean()))
    found = np.stack([np.log(each.predict_proba(points)[:, 1]) for each in models])
    assert_mean_is(found, np.log(truth(points, 0.05)[:, 1]))


class TestTheClosedForm:
    def test_at_the_mix_of_the_training_it_is_the_identity(self) -> None:
        X, y = rows(400, 0.3, 0)
        plain = LogisticRegression().fit(X, y)
        for population in (None, y.mean(), {0: 1 - y.mean(), 1: y.mean()}):
            model = corrected(LogisticRegression(), population, method="closed_form").fit(X, y)
            np.testing.assert_allclose(model.predict_proba(X), plain.predict_proba(X), rtol=1e-10)

    def test_it_divides_by_the_mix_seen_and_multiplies_by_the_population(self) -> None:
        X, y = three(600)
        model = corrected(balanced(), [0.2, 0.3, 0.5], method="closed_form").fit(X, y)
        raw = balanced().fit(X, y).predict_proba(X) * np.array([0.2, 0.3, 0.5]) * 3
        np.testing.assert_allclose(model.predict_proba(X), raw / raw.sum(1, keepdims=True), rtol=1e-9)
        np.testing.assert_allclose(model.sampling_, 1 / 3)

    def test_a_given_sampling_mix_goes_before_the_parameters(self) -> None:
        X, y = rows(400, 0.3, 0)
        model = corrected(balanced(), 0.1, method="closed_form", sampling=0.2).fit(X, y)
        expected = retarget(balanced().fit(X, y).predict_log_proba(X), 0.2, 0.1)
        np.testing.assert_allclose(model.predict_log_proba(X), expected, rtol=1e-9)
        named = corrected(balanced(), 0.1, method="closed_form", sampling={1: 0.2, 0: 0.8}).fit(X, y)
        np.testing.assert_allclose(named.sampling_, [0.8, 0.2])

    def test_made_up_rows_make_it_approximate_and_it_says_so(self) -> None:
        X, y = rows(300, 0.2, 0)
        with pytest.warns(PrevalenceWarning, match="SMOTE changed what the classes look like"):
            corrected(sampling_pipeline(SMOTE(), LogisticRegression()), 0.1, method="closed_form").fit(X, y)


@pytest.mark.long
class TestTheRuleOfAuto:
    def test_a_linear_model_that_is_right_loses_next_to_nothing_by_it(self) -> None:
        lost, new = [], rows(20_000, 0.5, 5)
        for seed in range(5):
            X, y = rows(2000, 0.2, 30 + seed)
            model = corrected(balanced(), 0.01).fit(X, y)
            assert set(model.comparison_) == {"closed_form", "affine", "beta", "population"}
            closed = corrected(balanced(), 0.01, method="closed_form").fit(X, y)
            lost.append(expected_log_likelihood(closed, *new, 0.01) - expected_log_likelihood(model, *new, 0.01))
        assert np.mean(lost) < 0.01 * 0.056, lost  # 1 % of what always answering 1 in 100 loses to certainty

    @pytest.mark.parametrize(("gain", "expected"), [(0.1, "mean_matching"), (0.001, "beta"), (-0.1, "beta")])
    def test_mean_matching_is_used_only_where_it_is_better_by_a_standard_error(self, gain: float, expected: str) -> None:
        labels = np.repeat([0, 1], 200)
        noise = np.random.default_rng(0).normal(size=400)
        noise -= np.where(labels == 1, noise[200:].mean(), noise[:200].mean())
        scores = {"closed_form": np.full(400, -0.1), "affine": np.full(400, -0.31), "beta": np.full(400, -0.3)}
        scores["mean_matching"] = -0.3 + gain + 0.1 * noise  # a standard error of 0.005
        tables = {name: np.repeat(own[:, None], 2, axis=1) for name, own in scores.items()}  # only the label's column counts
        data, half = HeldOut(tables["beta"], labels), np.array([0.5, 0.5])
        assert choose_correction(tables, data, half) == expected
        assert clearly_best(tables, data, half, ("beta", "mean_matching")) == expected

    def test_a_balanced_forest_is_calibrated_and_gains_by_it(self) -> None:
        X, y = rows(2000, 0.1, 4)
        new = rows(20_000, 0.5, 5)
        model = corrected(forest(class_weight="balanced"), 0.01).fit(X, y)
        assert model.method_ in ("affine", "beta")
        closed = corrected(forest(class_weight="balanced"), 0.01, method="closed_form").fit(X, y)
        assert expected_log_likelihood(model, *new, 0.01) > expected_log_likelihood(closed, *new, 0.01) + 0.005

    def test_on_noise_it_is_not_below_answering_the_population(self) -> None:
        rate = 0.01
        always = (1 - rate) * np.log(1 - rate) + rate * np.log(rate)
        gains = []
        for seed in range(4):
            y = rows(500, 0.2, seed)[1]
            noise = np.random.default_rng(seed).normal(size=(20_500, 3))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PrevalenceWarning)
                model = corrected(forest(class_weight="balanced"), rate).fit(noise[:500], y)
            gains.append(expected_log_likelihood(model, noise[500:], rows(20_000, 0.5, seed)[1], rate) - always)
        assert np.mean(gains) > 0.01 * always, gains  # the closed form loses a third of it and more

    def test_where_nothing_helps_it_says_so_and_keeps_the_order(self) -> None:
        X, y = rows(600, 0.3, 8)
        wrong = FrozenEstimator(LogisticRegression().fit(-X, y))  # predicts the opposite
        with pytest.warns(PrevalenceWarning, match="no better than predicting the population"):
            model = corrected(wrong, 0.1, method="auto").fit(X, y)
        assert model.method_ == "flat"
        np.testing.assert_allclose(model.predict_proba(X)[:, 1], 0.1, atol=0.01)
        raw = wrong.predict_proba(X)[:, 1]
        assert roc_auc_score(raw > np.median(raw), model.predict_proba(X)[:, 1]) == 1

    def test_with_few_rows_of_a_class_it_calibrates_only_what_is_worse_than_answering_the_population(self) -> None:
        X, y = rows(2000, 0.3, 9)
        few = np.flatnonzero((y == 0) | (np.cumsum(y) <= 12))
        assert corrected(balanced(), 0.3).fit(X[few], y[few]).method_ == "closed_form"
        guess, gains = 0.3 * np.log(0.3) + 0.7 * np.log(0.7), []
        for seed in range(5):
            X, y = rows(2000, 0.3, 20 + seed)
            few = np.flatnonzero((y == 0) | (np.cumsum(y) <= 12))
            plain = corrected(forest(class_weight="balanced"), 0.3, method="closed_form").fit(X[few], y[few])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PrevalenceWarning)  # of "flat"
                model = corrected(forest(class_weight="balanced"), 0.3).fit(X[few], y[few])
            assert set(model.comparison_) == {"closed_form", "affine", "population"}
            assert model.method_ in ("affine", "flat")
            found, without = (expected_log_likelihood(each, *rows(5000, 0.5, 5), 0.3) for each in (model, plain))
            gains.append(found - guess)
            assert without < 1.3 * guess
            assert found > 1.01 * guess
        assert np.mean(gains) > -0.025 * guess, gains  # it learns from a forest that alone is worse than a guess
        one = np.flatnonzero((y == 0) | (np.cumsum(y) <= 1))
        assert corrected(balanced(), 0.3).fit(X[one], y[one]).method_ == "closed_form"

    def test_its_scores_are_the_expected_log_likelihood_of_out_of_fold_predictions(self) -> None:
        X, y = rows(600, 0.2, 10)
        model = corrected(balanced(), 0.01, cv=4, random_state=3).fit(X, y)
        folds = StratifiedKFold(4, shuffle=True, random_state=3)
        raw = np.log(cross_val_predict(balanced(), X, y, cv=folds, method="predict_proba"))
        moved = retarget(raw, 0.5, 0.01)
        figures = evaluate(moved, y, Prevalence.binary(0.01), intervals=None)
        found = model.comparison_["closed_form"]
        assert found["expected_log_likelihood"] == pytest.approx(figures.expected_log_likelihood.value, rel=1e-9)
        entropy = 0.99 * np.log(0.99) + 0.01 * np.log(0.01)
        assert model.comparison_["population"]["expected_log_likelihood"] == pytest.approx(entropy, rel=1e-12)
        assert found["gain"] == pytest.approx(figures.expected_log_likelihood.value - entropy, rel=1e-9)
        own = moved[np.arange(600), y] - np.log([0.99, 0.01])[y]
        error = np.sqrt(sum(share**2 * own[y == k].var(ddof=1) / (y == k).sum() for k, share in enumerate((0.99, 0.01))))
        assert found["standard_error"] == pytest.approx(error, rel=1e-9)


class TestHeldOut:
    def test_corrected_predictions_are_kept_of_rows_that_nothing_was_fitted_to(self) -> None:
        X, y = rows(400, 0.3, 0)
        weights = np.where(np.arange(400) % 7, 1.0, 0.0)
        model = corrected(balanced(), 0.1, cv=4).fit(X, y, sample_weight=weights, groups=np.arange(400))
        found, kept = model.held_out_, weights > 0
        assert found is not None
        assert found.groups is not None
        np.testing.assert_array_equal(found.labels, y[kept])
        assert len(np.unique(found.groups)) == kept.sum()
        score = sum(pi * found.log_probs[found.labels == k, k].mean() for k, pi in enumerate(model.population_))
        assert model.comparison_[model.method_]["expected_log_likelihood"] == pytest.approx(score, rel=1e-12)
        assert corrected(balanced(), 0.1, method="closed_form").fit(X, y).held_out_ is None


class TestProbabilitiesOf0And1:
    def test_the_logits_of_a_forest_are_finite_and_in_order(self) -> None:
        X, y = rows(500, 0.3, 0)
        new, _ = rows(2000, 0.3, 1)
        model = corrected(forest(), 0.01, method="closed_form").fit(X, y)
        raw = forest().fit(X, y).predict_proba(new)[:, 1]
        assert {0.0, 1.0} <= set(raw)
        found = model.predict_log_proba(new)
        assert np.isfinite(found).all()
        order = np.argsort(raw, kind="stable")
        steps = np.diff(found[order, 1] - found[order, 0])
        assert (steps[np.diff(raw[order]) > 1e-12] > 0).all()
        assert model.floor_ == pytest.approx(0.5 / 30)  # half a vote of 30 trees

    def test_a_tree_that_answers_only_0_and_1_keeps_them_apart(self) -> None:
        X, y = rows(500, 0.3, 0)
        model = corrected(DecisionTreeClassifier(random_state=0), 0.3, method="closed_form").fit(X, y)
        assert model.floor_ == pytest.approx(0.5 / 501)
        np.testing.assert_array_equal(model.predict(X), y)

    def test_a_probability_that_was_rounded_stays_below_all_others(self) -> None:
        X, y = np.array([-50.0, -1.0, 1.0, 0.9, -0.9, 50.0] * 4)[:, None], np.array([0, 0, 1, 0, 1, 1] * 4)
        model = corrected(LogisticRegression(C=1e6), 0.5, method="closed_form").fit(X[1:5].repeat(5, 0), y[1:5].repeat(5))
        found = model.predict_log_proba(np.array([[20.0], [5000.0]]))
        assert np.isfinite(found).all()
        assert found[1, 0] < found[0, 0]


class TestMeanMatching:
    def test_the_mean_prediction_over_the_unlabelled_rows_is_the_population(self) -> None:
        (X, y), (unlabelled, _), population = three(600), three(3000, 1), [0.9, 0.08, 0.02]
        model = corrected(forest(class_weight="balanced"), population, method="mean_matching").fit(
            X, y, X_unlabelled=unlabelled
        )
        np.testing.assert_allclose(model.predict_proba(unlabelled).mean(0), population, rtol=1e-9)

    def test_auto_takes_it_where_the_mix_of_the_training_is_wrong(self) -> None:
        X, y = rows(2000, 0.3, 0)
        frozen = FrozenEstimator(balanced().fit(*rows(2000, 0.3, 7)))
        model = corrected(frozen, 0.02, sampling=0.001).fit(X, y, X_unlabelled=rows(5000, 0.02, 1)[0])
        assert model.comparison_["mean_matching"]["gain"] > model.comparison_["closed_form"]["gain"]
        assert model.method_ != "closed_form"


class TestAdapt:
    @pytest.mark.long
    @pytest.mark.parametrize("method", ["auto", "affine"])
    def test_the_population_is_estimated_and_moved_to(self, method: str) -> None:
        X, y = rows(2000, 0.3, 0)
        model = corrected(balanced(), method=method).fit(X, y)
        before = model.predict_proba(X)
        assert model.adapt(rows(5000, 0.05, 1)[0]) is model
        assert model.estimate_.low[1] < 0.05 < model.estimate_.high[1]
        assert model.prevalence_.is_uncertain
        np.testing.assert_allclose(model.population_, model.estimate_.prevalence().population)
        assert (model.predict_proba(X)[:, 1] < before[:, 1]).all()

    def test_fit_does_it_where_there_are_unlabelled_rows_and_no_population(self) -> None:
        X, y = rows(2000, 0.3, 0)
        unlabelled = rows(5000, 0.05, 1)[0]
        model = corrected(balanced()).fit(X, y, X_unlabelled=unlabelled)
        later = corrected(balanced()).fit(X, y).adapt(unlabelled)
        np.testing.assert_allclose(model.population_, later.population_)

    def test_it_warns_where_more_than_the_mix_has_changed(self) -> None:
        X, y = rows(2000, 0.3, 0)
        model = corrected(balanced()).fit(X, y)
        with pytest.warns(LabelShiftWarning):
            model.adapt(0.3 * rows(5000, 0.3, 1)[0] + 0.5)

    def test_without_out_of_fold_predictions_it_says_that_it_trusts_the_classifier(self) -> None:
        X, y = rows(2000, 0.3, 0)
        model = corrected(balanced(), method="closed_form").fit(X, y)
        unlabelled = rows(5000, 0.05, 1)[0]
        with pytest.warns(PrevalenceWarning, match="calibrat"):
            model.adapt(unlabelled)
        raw = balanced().fit(X, y).predict_log_proba(unlabelled)
        expected = estimate_prevalence(raw, 0.5, calibration="assumed").population
        np.testing.assert_allclose(model.estimate_.population, expected, rtol=1e-6)


class TestWeights:
    @pytest.mark.parametrize("method", ["closed_form", "beta"])
    def test_a_weight_is_a_repetition(self, method: str) -> None:
        X, y = rows(300, 0.3, 0)
        times = np.random.default_rng(1).integers(1, 4, 300)
        fold = np.arange(300) % 3
        splits = [(np.flatnonzero(fold != f), np.flatnonzero(fold == f)) for f in range(3)]
        again = np.arange(300).repeat(times)
        repeated = [(np.flatnonzero(fold[again] != f), np.flatnonzero(fold[again] == f)) for f in range(3)]
        weighted = corrected(LogisticRegression(tol=1e-10), 0.1, method=method, cv=splits).fit(X, y, sample_weight=times)
        plain = corrected(LogisticRegression(tol=1e-10), 0.1, method=method, cv=repeated).fit(X[again], y[again])
        np.testing.assert_allclose(weighted.predict_proba(X), plain.predict_proba(X), rtol=1e-4)

    @pytest.mark.long
    def test_their_scale_changes_nothing(self) -> None:
        (X, y), scale = rows(600, 0.4, 0), 1 / 600
        weights = np.random.default_rng(SEED).gamma(2.0, size=600)
        one, other = (corrected(forest(), 0.1).fit(X, y, sample_weight=each) for each in (weights, scale * weights))
        assert one.method_ == other.method_ != "closed_form"
        np.testing.assert_allclose(other.predict_proba(X), one.predict_proba(X), rtol=1e-6)
        assert one.comparison_[one.method_] == pytest.approx(other.comparison_[one.method_], rel=1e-6)

    @pytest.mark.parametrize(("method", "cv"), [("closed_form", 5), ("affine", KFold(5)), ("auto", 5)])
    def test_a_row_of_weight_0_is_as_if_it_were_not_there(self, method: str, cv: Any) -> None:
        X, y = rows(200, 0.3, 0)
        junk = np.random.default_rng(1).normal(50, 9, size=(100, 2))
        weights = np.append(np.ones(200), np.zeros(100))
        model = make_pipeline(StandardScaler(), LogisticRegression())
        found = corrected(model, 0.1, method=method, cv=cv)
        found.fit(np.vstack([X, junk]), np.append(y, np.arange(100) % 2), sample_weight=weights)
        folds = np.arange(300) // 60
        splits = [(np.flatnonzero(folds[:200] != f), np.flatnonzero(folds[:200] == f)) for f in range(4)]
        expected = corrected(model, 0.1, method=method, cv=5 if cv == 5 else splits).fit(X, y)
        np.testing.assert_allclose(found.predict_proba(X), expected.predict_proba(X), rtol=1e-9)

    @pytest.mark.long
    @pytest.mark.parametrize("times", [0.0, 0.05])
    def test_the_prevalence_is_estimated_by_rows_with_weight(self, times: float) -> None:
        X, y = rows(600, 0.5, 0)
        junk, labels = rows(600, 0.5, 1)
        unlabelled = rows(4000, 0.1, 2)[0]
        weights = np.append(np.ones(600), np.full(600, times))
        weighted = corrected(LogisticRegression(), 0.1, method="affine")
        weighted.fit(np.vstack([X, junk]), np.append(y, 1 - labels), sample_weight=weights)
        plain = corrected(LogisticRegression(), 0.1, method="affine").fit(X, y)
        found, expected = (model.adapt(unlabelled).estimate_ for model in (weighted, plain))
        assert found.low[1] < 0.1 < found.high[1]
        assert abs(found.population[1] - expected.population[1]) < (1e-6 if times == 0 else expected.high[1] - expected.low[1])

    def test_they_reach_the_last_step_of_a_pipeline_and_of_a_search(self) -> None:
        X, y = rows(300, 0.3, 0)
        weights = np.where(y == 1, 3.0, 1.0)
        direct = corrected(LogisticRegression(), 0.1, method="closed_form").fit(X, y, sample_weight=weights)
        for wrapped in (
            make_pipeline("passthrough", LogisticRegression()),
            GridSearchCV(LogisticRegression(), {"C": [1.0]}, cv=2),
        ):
            found = corrected(wrapped, 0.1, method="closed_form").fit(X, y, sample_weight=weights)
            np.testing.assert_allclose(found.predict_proba(X), direct.predict_proba(X), rtol=1e-6)

    def test_a_classifier_without_weights_is_told_of(self) -> None:
        X, y = rows(200, 0.3, 0)
        with pytest.warns(PrevalenceWarning, match="KNeighborsClassifier takes no `sample_weight`"):
            model = corrected(KNeighborsClassifier(), 0.1, method="closed_form").fit(X, y, sample_weight=1.0 + y)
        np.testing.assert_allclose(model.sampling_[1], y.mean())


def copies(n: int, each: int, seed: int, noise: float = 0.01) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of n people, of whom each has several, nearly the same, in random order; and whose they are."""
    X, y = rows(n, 0.4, seed, features=4)
    rng = np.random.default_rng(seed)
    whose = rng.permutation(np.repeat(np.arange(n), each))
    return X[whose] + noise * rng.normal(size=(n * each, 4)), y[whose], whose


@pytest.mark.long
class TestGroups:
    def test_many_groups_stay_together_in_folds_with_the_same_share_of_every_class(self) -> None:
        rng = np.random.default_rng(SEED)
        whose, y = rng.integers(5000, size=9000), np.searchsorted([0.9, 0.98], rng.random(9000))
        given = GivenRows(np.zeros((9000, 1)), y, y, (rng.random(9000) > 0.1).astype(float), whose)
        splits = splits_of(5, given, 3)
        assert splits is not None
        assert len(splits) == 5
        for train, test in splits:
            assert not np.isin(whose[test], whose[train]).any()
            assert len(train) + len(test) == given.weights.sum()
            expected = np.bincount(y, given.weights) / 5
            assert (np.abs(np.bincount(y[test]) - expected) <= 2 + 0.02 * expected).all()

    def test_rows_of_one_person_are_left_out_together_and_the_correction_is_for_new_people(self) -> None:
        found, new = [], rows(4000, 0.1, 1, features=4)
        for seed in range(4):
            X, y, whose = copies(150, 4, 10 * seed)
            with pytest.warns(PrevalenceWarning, match="near-copy in another fold.*`groups`"):
                shuffled = corrected(forest(), 0.1, random_state=0).fit(X, y)
            grouped = corrected(forest(), 0.1, random_state=0).fit(X, y, groups=whose)
            found.append([expected_log_likelihood(each, *new, 0.1) for each in (shuffled, grouped)])
        assert min(grouped - shuffled for shuffled, grouped in found) > 0
        assert min(grouped for _, grouped in found) > 0.1 * np.log(0.1) + 0.9 * np.log(0.9)  # always answering the population

    def test_copies_of_a_person_do_not_shorten_the_interval_of_adapt(self) -> None:
        X, y = rows(300, 0.5, 0, features=2)
        new = rows(1500, 0.1, 1, features=2)[0]
        model = corrected(LogisticRegression(), 0.1, method="affine", random_state=0)
        lengths = []
        for times in (1, 4):
            whose, whose_new = np.repeat(np.arange(len(y)), times), np.repeat(np.arange(len(new)), times)
            fitted = clone(model).fit(np.repeat(X, times, 0), np.repeat(y, times), groups=whose)
            found = fitted.adapt(np.repeat(new, times, 0), groups=whose_new).estimate_
            lengths.append(float(found.high[1] - found.low[1]))
        assert lengths[1] == pytest.approx(lengths[0], rel=0.2)  # without groups it would be half as long

    @pytest.mark.parametrize("routing", [False, True])
    def test_a_splitter_and_a_search_inside_get_them_with_and_without_routing(self, routing: bool) -> None:
        X, y, whose = copies(60, 4, 0)
        by_hand = corrected(forest(), 0.1, cv=list(GroupKFold(3).split(X, y, whose))).fit(X, y)
        with sklearn.config_context(enable_metadata_routing=routing):
            found = corrected(forest(), 0.1, cv=GroupKFold(3)).fit(X, y, groups=whose)
        np.testing.assert_allclose(found.predict_proba(X), by_hand.predict_proba(X))
        for wrap in (lambda each: each, lambda each: make_pipeline(StandardScaler(), each)):
            search = wrap(GridSearchCV(LogisticRegression(), {"C": [1.0]}, cv=GroupKFold(2)))
            with sklearn.config_context(enable_metadata_routing=routing):
                model = corrected(search, 0.1, cv=3).fit(X, y, groups=whose)
            assert model.predict_proba(X).shape == (len(y), 2)

    def test_they_reach_it_through_cross_validation_and_a_pipeline(self) -> None:
        X, y, whose = copies(60, 4, 0)
        with sklearn.config_context(enable_metadata_routing=True):
            plain = LogisticRegression().set_fit_request(sample_weight=True)
            inside = corrected(plain, 0.1, method="affine", cv=GroupKFold(2)).set_fit_request(sample_weight=True)
            found = cross_validate(
                make_pipeline(StandardScaler().set_fit_request(sample_weight=False), inside),
                X, y, cv=GroupKFold(3), params={"groups": whose, "sample_weight": np.ones(len(y))},
                scoring=prevalence_scorer(population=0.1).set_score_request(sample_weight=False),
                error_score="raise", return_estimator=True,
            )  # fmt: skip
        assert np.isfinite(found["test_score"]).all()

    def test_a_splitter_that_tears_them_apart_is_refused(self) -> None:
        X, y, whose = copies(30, 4, 0)
        with pytest.warns(UserWarning, match="ignored by KFold"):
            assert_refused(lambda: corrected(cv=KFold(3)).fit(X, y, groups=whose), "keep the rows of a group together")
        with pytest.raises(ValueError, match="groups"):
            corrected(cv=GroupKFold(3)).fit(X, y)
        for value in (np.nan, None):
            missing = [value, *whose[1:].tolist()]
            assert_refused(lambda missing=missing: corrected().fit(X, y, groups=missing), "group for every row")  # type: ignore[misc]
        one = np.where(y == 1, 0, np.arange(len(y)))
        assert_refused(lambda: corrected(method="affine").fit(X, y, groups=one), "2 groups")

    @pytest.mark.parametrize(("noise", "frame"), [(0.0, True), (0.02, False)])
    def test_near_copies_are_warned_of_and_other_rows_are_not(self, noise: float, frame: bool) -> None:
        for each in (1, 3):
            X, y, whose = copies(200, each, 3, noise)
            table = pd.DataFrame(X, columns=list("abcd")).assign(word="w") if frame else X
            splits = list(StratifiedKFold(5, shuffle=True, random_state=0).split(X, y))
            assert (share_of_copies(table, splits) > 0.5) == (each > 1)
            assert share_of_copies(table, list(GroupKFold(5).split(X, y, whose))) < 0.05

    def test_what_repeats_by_chance_is_no_near_copy(self) -> None:
        rng = np.random.default_rng(SEED)
        heavy, few = np.exp(2 * rng.normal(size=(500, 3))), rng.integers(0, 3, size=(500, 6))
        line = rng.normal(size=(500, 1)) * [1.0, 2.0, 3.0]
        for X in (heavy, few, few.astype(float), line, np.round(heavy, 1), ["a text"] * 500, sparse.csr_matrix(heavy)):
            assert share_of_copies(X, [(np.arange(250, 500), np.arange(250)), (np.arange(250), np.arange(250, 500))]) < 0.2


class TestFrozen:
    def test_the_mix_of_the_held_out_rows_counts_unless_told(self) -> None:
        fitted = LogisticRegression().fit(*rows(400, 0.3, 0))
        X, y = rows(500, 0.5, 1)
        before = fitted.coef_.copy()
        there = corrected(FrozenEstimator(fitted), 0.1, method="closed_form").fit(X, y)
        assert there.estimator_.estimator is fitted
        np.testing.assert_array_equal(fitted.coef_, before)  # it is not fitted again
        np.testing.assert_allclose(there.sampling_[1], y.mean())
        told = corrected(FrozenEstimator(fitted), 0.1, method="closed_form", sampling=0.3).fit(X, y)
        np.testing.assert_allclose(told.predict_log_proba(X), retarget(fitted.predict_log_proba(X), 0.3, 0.1), rtol=1e-9)

    @pytest.mark.long
    @pytest.mark.parametrize("name", TREES)
    def test_trees_that_get_their_training_rows_are_warned_of_and_with_other_rows_not(self, name: str) -> None:
        X, y = rows(1000, 0.3, 0)
        fitted = TREES[name]().fit(X, y)
        order = np.random.default_rng(SEED).permutation(len(y))
        with pytest.warns(PrevalenceWarning, match="was trained on these rows"):
            corrected(FrozenEstimator(fitted), 0.1, method="affine").fit(X[order], y[order])
        for seed in range(1, 4):
            corrected(FrozenEstimator(fitted), 0.1, method="affine").fit(*rows(1000, 0.3, seed))
        corrected(FrozenEstimator(fitted), 0.1, method="closed_form").fit(X, y)  # uses only the labels' mix

    @pytest.mark.parametrize(
        "make",
        [
            lambda: LGBMClassifier(n_estimators=3, subsample=0.5, subsample_freq=1, n_jobs=1, verbosity=-1),
            lambda: LGBMClassifier(n_estimators=3, min_child_samples=900, n_jobs=1, verbosity=-1),  # a single leaf
            lambda: XGBClassifier(n_estimators=3, booster="gblinear", n_jobs=1),
            forest,
            balanced,
        ],
    )
    def test_where_the_training_rows_cannot_be_known_there_is_no_warning_and_no_error(self, make: Callable[[], Any]) -> None:
        X, y = rows(1000, 0.3, 0)
        assert not was_trained_on(FrozenEstimator(make().fit(X, y)), X, y)

    @pytest.mark.parametrize("method", ["affine", "beta"])
    def test_its_calibration_is_that_of_fit_calibration_on_the_same_rows(self, method: Any) -> None:
        fitted = balanced().fit(*rows(400, 0.3, 0))
        (X, y), (new, _) = rows(120, 0.4, 1), rows(50, 0.4, 2)
        model = corrected(FrozenEstimator(fitted), 0.05, method=method).fit(X, y)
        found = fit_calibration(fitted.predict_log_proba(X), y, method)
        expected = retarget(found(fitted.predict_log_proba(new)), found.sampling, 0.05)
        np.testing.assert_allclose(model.predict_proba(new), np.exp(expected), atol=1e-10)


# The same rows in other forms.
FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "pandas": lambda X: pd.DataFrame(X, columns=["a", "b"]),
    "polars": lambda X: pl.DataFrame(X, schema=["a", "b"], orient="row"),
    "sparse": sparse.csr_array,
}


class TestWhatScikitLearnUsersDo:
    @pytest.mark.parametrize("form", FORMS)
    def test_rows_may_come_in_any_form(self, form: str) -> None:
        X, y = rows(300, 0.3, 0)
        expected = corrected(LogisticRegression(), 0.1).fit(X, y).predict_proba(X)
        model = corrected(LogisticRegression(), 0.1).fit(FORMS[form](X), y)
        np.testing.assert_allclose(model.predict_proba(FORMS[form](X)), expected, rtol=1e-6)
        assert model.n_features_in_ == 2
        if form in ("pandas", "polars"):
            assert model.feature_names_in_.tolist() == ["a", "b"]

    @pytest.mark.parametrize("make", [pd.Series, list], ids=["pandas", "list"])
    def test_labels_may_be_words_in_any_form(self, make: Callable[[Any], Any]) -> None:
        X, y = rows(300, 0.3, 0)
        words = make(np.where(y == 1, "ill", "well").tolist())
        model = corrected(LogisticRegression(class_weight={"ill": 4}), {"ill": 0.01, "well": 0.99}).fit(X, words)
        assert model.classes_.tolist() == ["ill", "well"]
        np.testing.assert_allclose(model.population_, [0.01, 0.99])
        expected = corrected(LogisticRegression(class_weight={1: 4}), 0.01).fit(X, y).predict_proba(X)
        np.testing.assert_allclose(model.predict_proba(X)[:, ::-1], expected, rtol=1e-6)
        assert set(model.predict(X)) <= {"ill", "well"}

    def test_it_is_searched_over_cloned_nested_and_stored(self) -> None:
        X, y = rows(300, 0.3, 0)
        search = GridSearchCV(corrected(LogisticRegression(), 0.1), {"estimator__C": [0.01, 1.0], "method": ["affine"]}, cv=2)
        assert search.fit(X, y).best_params_["method"] == "affine"
        nested = make_pipeline(StandardScaler(), corrected(LogisticRegression(), 0.1)).fit(X, y)
        stored = io.BytesIO()
        joblib.dump(nested, stored)
        stored.seek(0)
        np.testing.assert_array_equal(joblib.load(stored).predict_proba(X), nested.predict_proba(X))

    def test_stacking_by_its_default_goes_in(self) -> None:
        X, y = rows(300, 0.3, 0)
        stack = StackingClassifier([("a", LogisticRegression()), ("b", DecisionTreeClassifier(max_depth=2))], cv=2)
        for wrapped in (stack, make_pipeline(StandardScaler(), stack)):
            model = corrected(wrapped, 0.1, method="closed_form").fit(X, y)
            expected = retarget(np.log(model.estimator_.predict_proba(X)), np.bincount(y) / 300, 0.1)
            np.testing.assert_allclose(model.predict_log_proba(X), expected, rtol=1e-9)

    def test_further_arguments_reach_the_classifier(self) -> None:
        X, y = rows(400, 0.3, 0)
        pipeline, weights = make_pipeline(StandardScaler(), LogisticRegression()), 1.0 + (X[:, 0] > 0)
        model = corrected(pipeline, 0.1, method="affine").fit(X, y, logisticregression__sample_weight=weights)
        expected = clone(pipeline).fit(X, y, logisticregression__sample_weight=weights)
        np.testing.assert_array_equal(model.estimator_[-1].coef_, expected[-1].coef_)


def small() -> tuple[np.ndarray, np.ndarray]:
    return rows(60, 0.4, 0)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "another method": (lambda: corrected(method="platt").fit(*small()), "'auto', 'closed_form', .*but got 'platt'"),
    "a population off 1": (lambda: corrected(None, [0.5, 0.6]).fit(*small()), "`population` to sum to 1"),
    "classes by other names": (lambda: corrected(None, {"ill": 0.1, "well": 0.9}).fit(*small()), "name the classes"),
    "a mix off 1": (lambda: corrected(sampling=[0.5, 0.6]).fit(*small()), "`sampling` to sum to 1"),
    "one class": (lambda: corrected().fit(np.ones((5, 1)), np.ones(5, int)), "at least 2 classes"),
    "matching without rows": (lambda: corrected(None, 0.1, method="mean_matching").fit(*small()), "`X_unlabelled`.*is missing"),
    "matching without a population": (
        lambda: corrected(method="mean_matching").fit(*small(), X_unlabelled=small()[0]),
        "a `population`.*is missing",
    ),
    "unlabelled rows that nothing uses": (
        lambda: corrected(None, 0.1, method="affine").fit(*small(), X_unlabelled=small()[0]),
        "no `X_unlabelled`.*leave them out",
    ),
    "no probabilities": (lambda: corrected(LinearSVC(), 0.1, method="closed_form").fit(*small()), "use 'auto', 'affine'"),
    "predictions of NaN": (lambda: corrected(Diverged(), 0.1).fit(*small()), "finite predictions, but row 0 is .*diverge"),
    "no scores at all": (lambda: corrected(WithoutScores(), 0.1).fit(*small()), "has neither"),
    "weights and a sampler": (
        lambda: corrected(sampling_pipeline(RandomUnderSampler(), LogisticRegression())).fit(
            *small(), sample_weight=np.ones(60)
        ),
        "no `sample_weight` with a sampler",
    ),
    "weights of 0 for a class": (lambda: corrected().fit(*small(), sample_weight=small()[1]), "not 0 for a whole class"),
    "smoothing of matched means": (
        lambda: corrected(None, 0.1, method="mean_matching", smoothing=True).fit(*small(), X_unlabelled=small()[0]),
        "no smoothing for method='mean_matching', but got smoothing=True",
    ),
    "another word for smoothing": (
        lambda: corrected(None, 0.1, smoothing="yes").fit(*small()),
        "`smoothing` to be True, False",
    ),
    "one fold": (lambda: corrected(cv=1).fit(*small()), "at least 2 folds"),
    "one row to calibrate on": (
        lambda: corrected(method="affine").fit(np.arange(6.0)[:, None], np.array([0, 0, 0, 0, 0, 1])),
        "at least 2 rows of every class.*'closed_form'",
    ),
    "folds that leave out a row twice": (
        lambda: corrected(method="affine", cv=ShuffleSplit(3)).fit(*small()),
        "each row once",
    ),
    "folds without a class": (
        lambda: corrected(method="affine", cv=KFold(2)).fit(np.arange(8.0)[:, None], np.arange(8) // 4),
        "fold 0 lacks",
    ),
}


class Diverged(LogisticRegression):
    """A classifier that predicts NaN."""

    def predict_proba(self, X: Any) -> np.ndarray:
        return np.full((len(X), 2), np.nan)


class WithoutScores(NearestCentroid):
    """A classifier that predicts labels alone."""

    predict_proba = property()
    decision_function = property()


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_what_to_do(what: str) -> None:
    assert_refused(*BAD[what])


def test_a_classifier_of_decision_values_is_calibrated_by_auto() -> None:
    X, y = rows(500, 0.3, 0)
    model = corrected(Perceptron(), 0.1).fit(X, y)
    assert model.method_ in ("affine", "beta")
    assert model.floor_ is None
    np.testing.assert_allclose(model.sampling_[1], y.mean())


class TestSmoothing:
    """No more is claimed than the labelled rows can show."""

    def test_a_likelihoods_share_is_raised_by_one_over_the_rows_plus_one(self) -> None:
        p, pi, counts = np.array([[0.7, 0.2, 0.1], [1e-9, 1e-3, 1.0]]), np.array([0.9, 0.09, 0.01]), np.array([4, 9, 99])
        p /= p.sum(1, keepdims=True)
        expected = np.empty_like(p)
        for row, own in enumerate(p):
            likelihood = own / pi
            raised = likelihood / likelihood.sum() + np.array([0.2, 0.1, 0.01])
            expected[row] = pi * raised / (pi @ raised)
        np.testing.assert_allclose(np.exp(smooth_likelihoods(np.log(p), pi, counts)), expected, rtol=1e-12)

    def test_likelihood_ratios_are_bounded_by_the_rows_and_keep_their_order(self) -> None:
        z = np.sort(np.random.default_rng(0).normal(0, 30, 200))
        table, pi, counts = log_expit(np.stack([-z, z], 1)), np.array([0.999, 0.001]), np.array([60, 40])
        found = smooth_likelihoods(table, pi, counts)
        ratio = np.exp(found[:, 1] - found[:, 0]) * pi[0] / pi[1]
        assert ratio.max() == pytest.approx((60 + 1) * (1 + 1 / 41))  # rows of the other class, plus one
        assert 1 / ratio.min() == pytest.approx((40 + 1) * (1 + 1 / 61))
        assert (np.diff(ratio) > -1e-12).all()
        np.testing.assert_allclose(np.exp(smooth_likelihoods(table, pi, np.full(2, 1e15))), np.exp(table), atol=1e-12)

    def test_it_is_left_out_where_classes_are_far_apart_and_saves_a_model_that_extrapolates(self) -> None:
        rng = np.random.default_rng(0)
        y = np.repeat([0, 1], 100)
        apart = rng.normal(size=(200, 1)) + 12 * y[:, None]
        assert not corrected(LogisticRegression(), 0.001, smoothing="auto").fit(apart, y).smoothing_
        labels, some = np.repeat([0, 1], 2_100), np.r_[0:100, 2_100:2_200]
        far = (rng.normal(size=(4_200, 1)) + 2 * labels[:, None]) * np.where(rng.random((4_200, 1)) < 0.03, 12, 1)
        models = (corrected(LogisticRegression(C=1e6), 0.001, method="closed_form", smoothing=each) for each in (True, False))
        new = np.delete(far, some, 0), np.delete(labels, some)
        smoothed, plain = (expected_log_likelihood(each.fit(far[some], labels[some]), *new, 0.001) for each in models)
        assert smoothed > plain + 0.001

    def test_chosen_by_name_it_holds_at_every_population_and_for_held_out_rows_whatever_the_scale_of_weights(self) -> None:
        (X, y), weights = rows(300, 0.4, 3), np.full(300, 1e-3)
        plain, smoothed = (
            corrected(balanced(), 0.1, method="affine", smoothing=each).fit(X, y, sample_weight=weights)
            for each in (False, True)
        )
        assert (plain.smoothing_, smoothed.smoothing_) == (False, True)
        held_out: Any = [each.held_out_ for each in (plain, smoothed)]
        assert np.abs(held_out[0].log_probs - plain.predict_log_proba(X)).max() > 1e-3
        expected = smooth_likelihoods(held_out[0].log_probs, plain.population_, np.bincount(y))
        np.testing.assert_allclose(held_out[1].log_probs, expected)
        for share in (0.1, 0.001):
            table = plain.set_population(share).predict_log_proba(X)
            expected = smooth_likelihoods(table, np.array([1 - share, share]), np.bincount(y))
            np.testing.assert_allclose(smoothed.set_population(share).predict_log_proba(X), expected, rtol=1e-9)

    def test_a_frozen_classifier_is_smoothed_only_on_request(self) -> None:
        X, y = rows(400, 0.3, 5)
        frozen = FrozenEstimator(balanced().fit(*rows(400, 0.3, 6)))
        assert not corrected(frozen, 0.001, smoothing="auto").fit(X, y).smoothing_
        assert corrected(frozen, 0.001, smoothing=True).fit(X, y).smoothing_


class _KnowsItsRows(ClassifierMixin, BaseEstimator):
    """A classifier whose predictions show what it was fitted to: a small bias by the number and the sum of its rows."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> _KnowsItsRows:
        self.classes_, self.seen_ = np.unique(y), 0.01 * np.tanh(len(y) * X.mean())
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        p = 1 / (1 + np.exp(-(X[:, 0] > SHIFT / 2).astype(float))) - 0.15 + self.seen_
        return np.stack([1 - p, p], 1)


def test_adapt_predicts_unlabelled_rows_with_the_models_of_the_labelled_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("rightloss.sklearn.corrected.label_shift_test", lambda *args, **options: seen.append((args, options)))
    X, y = rows(400, 0.3, 71)
    PrevalenceCorrectedClassifier(_KnowsItsRows(), population=0.3).fit(X, y).adapt(rows(300, 0.1, 72)[0])
    (table, (held_out, _)), options = seen[0]
    ours, theirs = options["folds"]
    for fold in range(5):
        assert set(table[ours == fold, 1].round(12)) == set(held_out[theirs == fold, 1].round(12))
