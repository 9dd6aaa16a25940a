"""What all classifiers of `rightloss.sklearn` have in common: weights, votes, moving to another population, and copies."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from draws import SEED, assert_refused, unchecked_types
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import check_estimator
from without_torch import HAS_TORCH

import rightloss as rl
from rightloss.sklearn import InformationGainClassifier, OrdinalClassifier, PrevalenceCorrectedClassifier, prevalence_scorer

POPULATION = [0.8, 0.15, 0.05]


def linear(population: Any = None, **options: Any) -> Any:
    return InformationGainClassifier(population, tol=1e-9, max_iter=5000, **options)


def corrected(population: Any = None, **options: Any) -> Any:
    return PrevalenceCorrectedClassifier(LogisticRegression(tol=1e-10), population, **{"method": "closed_form", **options})


def network(population: Any = None, **options: Any) -> Any:
    from rightloss.sklearn import InformationGainMLPClassifier

    options = {"max_iter": 30, "n_iter_no_change": 1000, "batch_size": 1000, **options}
    return InformationGainMLPClassifier(population, hidden_layer_sizes=(8,), random_state=0, **options)


MODELS: dict[str, Callable[..., Any]] = {
    "linear": linear,
    "linear, weighted": lambda population=None: linear(population, loss="weighted"),
    "cumulative logit": lambda population=None: OrdinalClassifier(population, tol=1e-8, max_iter=5000),
    "onion peeling": lambda population=None: OrdinalClassifier(population, likelihood="onion_peeling", tol=1e-8, max_iter=5000),
    "corrected": corrected,
    **({"network": network} if HAS_TORCH else {}),
}
CHECKED: dict[str, Callable[[], Any]] = {
    "linear": InformationGainClassifier,
    "ordinal": OrdinalClassifier,
    "corrected": PrevalenceCorrectedClassifier,
    "closed form": lambda: PrevalenceCorrectedClassifier(method="closed_form"),
    **({"network": lambda: network(learning_rate_init=0.02, max_iter=60, n_iter_no_change=10)} if HAS_TORCH else {}),
}
each_model = pytest.mark.parametrize("name", MODELS)
pytestmark = pytest.mark.filterwarnings("ignore:Training stopped at max_iter")  # of the network, which need not be good


def rows(k: int = 3, n: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1000 * SEED + seed)
    y = np.concatenate([np.arange(k), rng.choice(k, n - k, p=np.arange(1, k + 1) / np.arange(1, k + 1).sum())])
    return rng.normal(size=(n, 3)) + np.column_stack([y, -y, 0.1 * y]), y


@pytest.mark.long
@each_model
def test_an_integer_weight_is_a_repeated_row_and_zero_leaves_it_out(name: str) -> None:
    x, y = rows()
    weight = np.random.default_rng(SEED).integers(0, 3, len(y))
    weight[:3] = 1
    again = np.repeat(np.arange(len(y)), weight)
    weighted, plain = MODELS[name](POPULATION).fit(x, y, sample_weight=weight), MODELS[name](POPULATION).fit(x[again], y[again])
    np.testing.assert_allclose(weighted.sampling_, plain.sampling_)
    np.testing.assert_allclose(weighted.predict_proba(x), plain.predict_proba(x), atol=1e-8 if name == "network" else 1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", [each for each in MODELS if each != "corrected"])
def test_votes_of_one_for_a_class_are_its_label(name: str) -> None:
    x, y = rows()
    hard, soft = (MODELS[name](POPULATION).fit(x, labels) for labels in (y, np.eye(3)[y]))
    np.testing.assert_allclose(soft.predict_proba(x), hard.predict_proba(x), atol=1e-6)


@pytest.mark.parametrize("name", [*MODELS, "beta"])
def test_another_population_without_refitting_is_bayes_rule_and_there_and_back_is_the_identity(name: str) -> None:
    x, y = rows()
    model = (corrected(method="beta") if name == "beta" else MODELS[name]()).fit(x, y)
    before = model.predict_log_proba(x)
    moved = model.set_population(dict(enumerate(POPULATION))).predict_log_proba(x)
    np.testing.assert_allclose(moved, rl.retarget(before, from_=model.sampling_, to=POPULATION), atol=1e-10)
    np.testing.assert_allclose(logsumexp(moved, axis=1), 0, atol=1e-10)
    np.testing.assert_allclose(model.set_population(None).predict_log_proba(x), before, atol=1e-10)


@each_model
def test_a_clone_fits_the_same_and_pickles_and_copies_predict_the_same(name: str) -> None:
    x, y = rows()
    model = MODELS[name](POPULATION).fit(x, y)
    for other in (clone(model).fit(x, y), pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        np.testing.assert_array_equal(other.predict_proba(x), model.predict_proba(x))
    assert not hasattr(clone(model.set_population([0.1, 0.2, 0.7])), "population_")
    assert clone(model).population == POPULATION


@pytest.mark.long
@pytest.mark.parametrize("name", CHECKED)
def test_scikit_learns_own_checks_pass(name: str) -> None:
    with unchecked_types(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(CHECKED[name](), on_skip=None)
    left = {each["check_name"]: str(each["exception"]) for each in results if each["status"] != "passed"}
    assert set(left) <= {"check_array_api_input"}, left  # skipped by scikit-learn unless SCIPY_ARRAY_API is set
    assert len(results) > 50


def cases() -> tuple[np.ndarray, np.ndarray]:
    """Rows with labels of which the first by the alphabet is the positive one."""
    x, y = rows(2)
    return x, np.array(["control", "case"])[y]


NAMED: Any = {"case": 0.056, "control": 0.944}
DOORS: dict[str, Callable[[], Any]] = {
    "population": lambda: InformationGainClassifier(0.056).fit(*cases()),
    "population of ordered classes": lambda: OrdinalClassifier(0.056).fit(*cases()),
    "population of any classifier": lambda: PrevalenceCorrectedClassifier(population=0.056).fit(*cases()),
    "another population": lambda: InformationGainClassifier(NAMED).fit(*cases()).set_population(np.array(0.1)),
    "sampling": lambda: PrevalenceCorrectedClassifier(population=NAMED, sampling=0.056).fit(*cases()),
    "population of a scorer": lambda: prevalence_scorer("brier", 0.056)(LogisticRegression().fit(*cases()), *cases()),
    "mix of a scorer": lambda: prevalence_scorer("brier", NAMED, from_=0.5)(LogisticRegression().fit(*cases()), *cases()),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_number_for_two_words_is_refused_with_the_dict_to_write(door: str) -> None:
    name = "sampling" if door == "sampling" else "population"
    assert_refused(DOORS[door], rf"`{name}` to name its class, because the labels are words.*\{{'case': 0.*, 'control': 0.*\}}")


@pytest.mark.parametrize(
    ("words", "accepted"),
    [
        (["no", "yes"], True),
        (["healthy", "stroke"], True),
        (["1", "2"], False),
        (["default", "paid"], False),
        (["disease", "healthy"], False),
        (["no", "none"], False),
        ([-1, 1], True),
        ([False, True], True),
    ],
)
def test_a_number_is_for_the_larger_label_or_a_second_word_that_is_plainly_positive(words: Any, accepted: bool) -> None:
    x, y = rows(2)
    model, labels = InformationGainClassifier(0.056), np.array(words)[y]
    if accepted:
        assert dict(zip(words, model.fit(x, labels).population_, strict=True))[words[1]] == pytest.approx(0.056)
    else:
        remedy = rf"write \{{'{words[0]}': 0.056, '{words[1]}': 0.944\}}"  # and the other way round, where that may be meant
        assert_refused(lambda: model.fit(x, labels), "name its class.*" + remedy)
