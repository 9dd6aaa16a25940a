"""training_mix: the mix of classes at which a classifier's probabilities hold, against ones that fit every cell exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from catboost import CatBoostClassifier
from draws import assert_refused
from imblearn.ensemble import (
    BalancedBaggingClassifier,
    BalancedRandomForestClassifier,
    EasyEnsembleClassifier,
)
from imblearn.over_sampling import SMOTE, RandomOverSampler
from imblearn.pipeline import make_pipeline as sampling_pipeline
from imblearn.under_sampling import RandomUnderSampler, TomekLinks
from lightgbm import LGBMClassifier
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    BaggingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier, GridSearchCV, TunedThresholdClassifierCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import CategoricalNB, ComplementNB, GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from xgboost import XGBClassifier

from rightloss.predictive import retarget
from rightloss.sklearn import InformationGainClassifier, PrevalenceCorrectedClassifier, prevalence_scorer
from rightloss.sklearn.training_mix import resamples, training_mix

CELLS = 3  # X is which of three cells a row is in, one-hot: every classifier here can fit the frequencies in each exactly
WEIGHTED = {0: 1.0, 1: 4.0, 2: 9.0}


def cells(k: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows in three cells, with other frequencies of the k classes in each, the first class most frequent over all."""
    by_cell = np.array([[200, 20, 10], [100, 60, 15], [90, 30, 40]])[:, :k]
    cell, label = (index.ravel() for index in np.indices(by_cell.shape))
    return np.eye(CELLS)[cell.repeat(by_cell.ravel())], label.repeat(by_cell.ravel())


def linear(**settings: Any) -> Any:
    return LogisticRegression(C=1e8, tol=1e-10, max_iter=2000, **settings)


def tree(**settings: Any) -> Any:
    return DecisionTreeClassifier(random_state=0, **settings)


def forest(**settings: Any) -> Any:
    return RandomForestClassifier(20, bootstrap=False, random_state=0, **settings)


def hist(**settings: Any) -> Any:
    return HistGradientBoostingClassifier(max_iter=150, learning_rate=0.5, early_stopping=False, min_samples_leaf=1, **settings)


def lightgbm(**settings: Any) -> Any:
    return LGBMClassifier(n_estimators=150, learning_rate=0.5, min_child_samples=1, n_jobs=1, verbose=-1, **settings)


def xgboost(**settings: Any) -> Any:
    return XGBClassifier(n_estimators=150, learning_rate=0.5, reg_lambda=0, min_child_weight=0, n_jobs=1, **settings)


def catboost(**settings: Any) -> Any:
    options: dict[str, Any] = {"depth": 2, "l2_leaf_reg": 0, "verbose": 0, "thread_count": 1, "allow_writing_files": False}
    return CatBoostClassifier(
        iterations=200,
        learning_rate=0.5,
        bootstrap_type="No",
        random_strength=0,
        leaf_estimation_iterations=5,
        **options,
        **settings,
    )


def by_number(**settings: Any) -> Any:
    """Naive Bayes of one variable, the number of the cell."""
    number = FunctionTransformer(lambda X: X.argmax(axis=1)[:, None])
    return make_pipeline(number, CategoricalNB(alpha=1e-9, force_alpha=True, **settings))


def voting(*settings: dict[str, Any]) -> Any:
    return VotingClassifier([(str(n), linear(**each)) for n, each in enumerate(settings)], voting="soft")


# Classifiers, the number of classes, and how exactly they fit the cells.
CLASSIFIERS: dict[str, tuple[Callable[[], Any], int, float]] = {
    "no weights": (linear, 3, 1e-5),
    "linear, dict of one class": (lambda: linear(class_weight={1: 4}), 2, 1e-5),
    "linear, balanced": (lambda: linear(class_weight="balanced"), 3, 1e-5),
    "forest, balanced by tree": (lambda: forest(class_weight="balanced_subsample"), 3, 1e-9),
    "hist, balanced": (lambda: hist(class_weight="balanced"), 2, 1e-3),
    "LightGBM, balanced": (lambda: lightgbm(class_weight="balanced"), 3, 1e-3),
    "LightGBM, positive weight": (lambda: lightgbm(scale_pos_weight=5), 2, 1e-3),
    "LightGBM, unbalanced by another name": (lambda: lightgbm(unbalance=True), 2, 1e-3),
    "LightGBM, fractions without bags": (lambda: lightgbm(neg_bagging_fraction=0.3), 2, 1e-3),
    "XGBoost, positive weight": (lambda: xgboost(scale_pos_weight=5), 2, 1e-3),
    "CatBoost, weights": (lambda: catboost(class_weights=[1, 4, 9]), 3, 1e-2),
    "CatBoost, weights in a dict": (lambda: catboost(class_weights={0: 1, 1: 4}), 2, 1e-2),
    "CatBoost, balanced": (lambda: catboost(auto_class_weights="Balanced"), 2, 1e-2),
    "CatBoost, root of balanced": (lambda: catboost(auto_class_weights="SqrtBalanced"), 3, 1e-2),
    "CatBoost, positive weight": (lambda: catboost(scale_pos_weight=5), 2, 1e-2),
    "naive Bayes, priors": (lambda: by_number(class_prior=[0.2, 0.8]), 2, 1e-6),
    "naive Bayes, equal priors": (lambda: by_number(fit_prior=False), 3, 1e-6),
    "search in a pipeline": (
        lambda: make_pipeline(StandardScaler(), GridSearchCV(linear(), {"class_weight": ["balanced"]}, cv=2)),
        2,
        1e-4,
    ),
    "bagging": (lambda: BaggingClassifier(tree(class_weight={1: 6}), 1, bootstrap=False), 2, 1e-9),
    "threshold": (lambda: FixedThresholdClassifier(linear(class_weight={1: 6})), 2, 1e-5),
    "frozen": (lambda: FrozenEstimator(linear(class_weight={1: 6}).fit(*cells(2))), 2, 1e-5),
    "vote": (lambda: voting({"class_weight": {1: 6}}, {"class_weight": {1: 6}}), 2, 1e-5),
    "one against rest of two": (lambda: OneVsRestClassifier(linear(class_weight={1: 6})), 2, 1e-5),
}


@pytest.mark.long
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_moved_back_to_the_labels_mix_predictions_are_the_frequencies_in_the_cells(name: str) -> None:
    """p_w(k|x) ∝ w_k p(k|x), for classifiers that fit every cell exactly."""
    make, k, precision = CLASSIFIERS[name]
    X, y = cells(k)
    fitted = make().fit(X, y)
    mix = training_mix(fitted, X, y, np.arange(k))
    assert mix.reshaped == ()
    assert_cells(fitted, mix.sampling, np.ones(len(y)), X, y, precision)


def assert_cells(
    fitted: Any, sampling: np.ndarray, weights: np.ndarray, X: np.ndarray, y: np.ndarray, precision: float
) -> None:
    own = np.eye(y.max() + 1)[y] * weights[:, None]
    found = np.exp(
        retarget(np.log(np.asarray(fitted.predict_proba(np.eye(CELLS)), dtype=float)), sampling, own.mean(0) / weights.mean())
    )
    by_cell = X.T @ own
    np.testing.assert_allclose(found, by_cell / by_cell.sum(1, keepdims=True), rtol=0, atol=precision)


SAMPLE_WEIGHTED: dict[str, Callable[[], Any]] = {
    "linear, dict": lambda: linear(class_weight={0: 1, 1: 4}),
    "linear, balanced": lambda: linear(class_weight="balanced"),
    "forest, balanced": lambda: forest(class_weight="balanced"),
    "hist, balanced": lambda: hist(class_weight="balanced"),
    "LightGBM, unbalanced": lambda: lightgbm(is_unbalance=True),
    "CatBoost, balanced": lambda: catboost(auto_class_weights="Balanced"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", SAMPLE_WEIGHTED)
def test_sample_weights_and_class_weights_act_together_as_the_classifier_has_it(name: str) -> None:
    X, y = cells(2)
    weights = np.where(y == 1, 3.0, 0.5) * np.where(X[:, 0] == 1, 2.0, 1.0)
    fitted = SAMPLE_WEIGHTED[name]().fit(X, y, sample_weight=weights)
    mix = training_mix(fitted, X, y, np.arange(2), weights)
    assert_cells(fitted, mix.sampling, weights, X, y, 1e-2)


# Classifiers that predict at their own population, wherever they are.
MOVED: dict[str, Callable[[], Any]] = {
    "corrected": lambda: PrevalenceCorrectedClassifier(linear(), 0.02, method="closed_form"),
    "tuned threshold": lambda: TunedThresholdClassifierCV(InformationGainClassifier(0.02), cv=2),
    "search": lambda: GridSearchCV(InformationGainClassifier(0.02), {"C": [1.0]}, cv=2),
    "frozen": lambda: FrozenEstimator(InformationGainClassifier(0.5).fit(*cells(2)).set_population(0.02)),
    "vote": lambda: VotingClassifier([(each, InformationGainClassifier(0.02)) for each in "ab"], voting="soft"),
    "stacking": lambda: StackingClassifier([("a", linear())], InformationGainClassifier(0.02), cv=2),
    "one against rest": lambda: OneVsRestClassifier(InformationGainClassifier(0.02)),
    "balanced bagging": lambda: BalancedBaggingClassifier(InformationGainClassifier(0.02), 3, random_state=0),
    "all": lambda: FixedThresholdClassifier(make_pipeline(StandardScaler(), BaggingClassifier(MOVED["corrected"](), 2))),
}


@pytest.mark.parametrize("name", [pytest.param(each, marks=pytest.mark.long) for each in MOVED])
def test_a_classifier_at_its_own_population_is_not_moved_a_second_time(name: str) -> None:
    X, y = cells(2)
    fitted = MOVED[name]().fit(X, y)
    np.testing.assert_allclose(training_mix(fitted, X, y, np.arange(2)).sampling, [0.98, 0.02])
    corrected = PrevalenceCorrectedClassifier(FrozenEstimator(fitted), 0.02, method="closed_form").fit(X, y)
    np.testing.assert_allclose(corrected.predict_proba(X), fitted.predict_proba(X), rtol=1e-6)
    moved, given = (prevalence_scorer(population=0.02, from_=each)(fitted, X, y) for each in ("labels", None))
    assert moved == given


class Balanced(LogisticRegression):
    """A stand-in for TabPFN, which can divide its probabilities by the frequencies of its training rows."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {"balance_probabilities": True}


STATED: dict[str, tuple[Callable[[], Any], list[str], list[float]]] = {
    "balanced as by TabPFN": (Balanced, ["a", "b", "c"], [1, 1, 1]),
    "priors": (lambda: LinearDiscriminantAnalysis(priors=[0.2, 0.3, 0.5]), ["a", "b", "c"], [0.2, 0.3, 0.5]),
    "priors not given": (GaussianNB, ["a", "b", "c"], [390, 110, 65]),
    "weights by word": (lambda: linear(class_weight={"ill": 4}), ["well", "ill"], [440, 390]),
    "stack": (
        lambda: StackingClassifier([("a", linear())], final_estimator=linear(class_weight="balanced"), cv=3),
        ["a", "b"],
        [1, 1],
    ),
    "bags": (
        lambda: lightgbm(subsample_freq=1, neg_bagging_fraction=0.2, pos_bagging_fraction=0.5),
        ["a", "b"],
        [0.2 * 390, 0.5 * 110],
    ),
}


@pytest.mark.parametrize("name", STATED)
def test_what_parameters_say_is_taken_by_label(name: str) -> None:
    make, words, mass = STATED[name]
    X, y = cells(len(words))
    found = training_mix(make(), X, np.array(words)[y], np.array(sorted(words)))
    np.testing.assert_allclose(found.sampling, np.array(mass) / sum(mass))


def numbers() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = (np.arange(400) % 10 == 0).astype(int)
    return rng.normal(size=(400, 3)) + y[:, None], y


# Classifiers that resample, the rows of each class that they leave of 360 and 40, and the names of what changes p(x|k).
SAMPLERS: dict[str, tuple[Callable[[], Any], Callable[[np.ndarray, np.ndarray], Any], tuple[str, ...]]] = {
    "undersampling to a ratio": (
        lambda: sampling_pipeline(StandardScaler(), RandomUnderSampler(sampling_strategy=0.25), linear()),
        lambda X, y: [160, 40],
        (),
    ),
    "oversampling and weights": (
        lambda: sampling_pipeline(RandomOverSampler(), linear(class_weight={1: 3})),
        lambda X, y: [360, 3 * 360],
        (),
    ),
    "balanced after undersampling": (
        lambda: sampling_pipeline(RandomUnderSampler(sampling_strategy=0.25), linear(class_weight="balanced")),
        lambda X, y: [1, 1],
        (),
    ),
    "Tomek links": (
        lambda: sampling_pipeline(TomekLinks(), linear()),
        lambda X, y: np.bincount(TomekLinks().fit_resample(X, y)[1]),
        ("TomekLinks",),
    ),
    "SMOTE": (lambda: sampling_pipeline(SMOTE(sampling_strategy=0.5), linear()), lambda X, y: [360, 180], ("SMOTE",)),
    "a sampler in a search": (
        lambda: GridSearchCV(
            sampling_pipeline(RandomUnderSampler(), linear()), {"randomundersampler__sampling_strategy": [0.5]}, cv=2
        ),
        lambda X, y: [80, 40],
        (),
    ),
    "a sampler in a pipeline in a pipeline": (
        lambda: make_pipeline(StandardScaler(), sampling_pipeline(RandomUnderSampler(sampling_strategy=0.5), linear())),
        lambda X, y: [80, 40],
        (),
    ),
    "smoothed oversampling": (
        lambda: sampling_pipeline(RandomOverSampler(shrinkage=0.5), linear()),
        lambda X, y: [360, 360],
        ("RandomOverSampler",),
    ),
    "balanced forest to a ratio, weighted": (
        lambda: BalancedRandomForestClassifier(3, sampling_strategy=0.5, class_weight={1: 3}),
        lambda X, y: [80, 120],
        (),
    ),
    "balanced bagging of weighted trees": (
        lambda: BalancedBaggingClassifier(tree(class_weight={1: 3}), n_estimators=3, sampling_strategy=0.5),
        lambda X, y: [80, 120],
        (),
    ),
    "easy ensemble": (lambda: EasyEnsembleClassifier(3, random_state=0), lambda X, y: [40, 40], ()),
}


@pytest.mark.long
@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_are_run_and_what_they_leave_is_counted(name: str) -> None:
    make, left, reshaped = SAMPLERS[name]
    X, y = numbers()
    found = training_mix(make().fit(X, y), X, y, np.arange(2))
    expected = np.asarray(left(X, y), dtype=float)
    np.testing.assert_allclose(found.sampling, expected / expected.sum(), rtol=1e-12)
    assert found.reshaped == reshaped


# Calibrated on the rows themselves, or by a final estimator without weights: their weights are undone already.
AT_THE_LABELS_MIX: dict[str, Callable[[], Any]] = {
    "calibrated": lambda: CalibratedClassifierCV(linear(class_weight="balanced"), cv=3),
    "calibrated again": lambda: CalibratedClassifierCV(InformationGainClassifier([0.9, 0.05, 0.05]), cv=2).fit(*cells(3)),
    "stacked": lambda: StackingClassifier([("a", linear(class_weight="balanced"))], cv=3),
    "complement naive Bayes": lambda: ComplementNB(fit_prior=False),
    "one against rest": lambda: OneVsRestClassifier(linear()),
}


@pytest.mark.parametrize("name", AT_THE_LABELS_MIX)
def test_what_is_calibrated_on_the_rows_is_at_their_mix(name: str) -> None:
    X, y = cells(3)
    found = training_mix(AT_THE_LABELS_MIX[name](), X, y, np.arange(3))
    np.testing.assert_allclose(found.sampling, np.bincount(y) / len(y))


def test_only_classifiers_with_samplers_resample() -> None:
    assert resamples(GridSearchCV(sampling_pipeline(SMOTE(), linear()), {}))
    assert not resamples(make_pipeline(StandardScaler(), linear()))
    assert not resamples(clone(linear(class_weight="balanced")))


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "a vote of many minds": (lambda: voting({}, {"class_weight": "balanced"}), "one mix of classes.*`sampling=`"),
    "weights against the rest": (
        lambda: OneVsRestClassifier(linear(class_weight="balanced")),
        "without class weights.*`sampling=`",
    ),
    "weights of many outputs": (lambda: tree(class_weight=[{0: 1}]), "'balanced' or a dict"),
}


@pytest.mark.parametrize("what", BAD)
def test_combinations_without_one_mix_are_refused(what: str) -> None:
    make, words = BAD[what]
    X, y = cells(3)
    assert_refused(lambda: training_mix(make(), X, y, np.arange(3)), words)
