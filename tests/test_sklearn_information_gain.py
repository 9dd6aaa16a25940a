"""The classifier, linear and with hidden layers, against scikit-learn, the losses themselves and refits."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from members import SEED, assert_refused, unchecked_types
from scipy import special
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import rightloss as rl
from rightloss.boosting import BoostingClassifier
from rightloss.sklearn import OrdinalClassifier, PrevalenceCorrectedClassifier, prevalence_scorer
from rightloss.sklearn.information_gain import InformationGainClassifier

LOSSES = ["information_gain", "as_published", "logit_adjusted", "weighted", "log_likelihood"]
POPULATIONS: dict[int, Any] = {2: 0.05, 3: [0.8, 0.15, 0.05]}


def rows(k: int = 2, n: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1000 * SEED + seed)
    y = np.concatenate([np.arange(k), rng.choice(k, n - k, p=np.arange(1, k + 1) / np.arange(1, k + 1).sum())])
    return rng.normal(size=(n, 3)) * [1, 3, 0.2] + np.column_stack([y, -y, 0.1 * y]), y


def network(population: Any = None, **options: Any) -> InformationGainClassifier:
    options = {"hidden_layer_sizes": (8,), "max_iter": 30, "tol": 1e-9, "n_iter_no_change": 1000, "random_state": 0, **options}
    return InformationGainClassifier(population, **options)


def trained(model: InformationGainClassifier, x: Any, y: Any, **options: Any) -> InformationGainClassifier:
    """Fit for the epochs given, without the warning that more might help."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(x, y, **options)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("C", [0.05, 1.0, 100.0])
def test_the_slopes_are_those_of_logistic_regression_and_the_intercept_is_the_populations(k: int, C: float) -> None:
    x, y = rows(k)
    ours = InformationGainClassifier(POPULATIONS[k], C=C, tol=1e-9).fit(x, y)
    theirs = LogisticRegression(C=C, solver="newton-cholesky", tol=1e-10).fit(x, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    moved = rl.retarget(theirs.predict_log_proba(x), from_=np.bincount(y) / len(y), to=POPULATIONS[k])
    np.testing.assert_allclose(ours.predict_log_proba(x), moved, atol=1e-6)


@pytest.mark.parametrize("k", [2, 3])
def test_without_a_population_it_is_logistic_regression(k: int) -> None:
    x, y = rows(k)
    ours, theirs = (
        InformationGainClassifier(tol=1e-9).fit(x, y),
        LogisticRegression(solver="newton-cholesky", tol=1e-10).fit(x, y),
    )
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-6)
    np.testing.assert_allclose(ours.decision_function(x), theirs.decision_function(x), atol=1e-5)
    assert (ours.predict(x) == theirs.predict(x)).all()


@pytest.mark.parametrize("k", [2, 3])
def test_the_weighted_loss_is_logistic_regression_with_the_classes_importance_as_weights(k: int) -> None:
    x, y = rows(k)
    prevalence = rl.Prevalence.from_labels(y, POPULATIONS[k])
    ours = InformationGainClassifier(POPULATIONS[k], loss="weighted", tol=1e-9).fit(x, y)
    theirs = LogisticRegression(solver="newton-cholesky", tol=1e-10).fit(x, y, sample_weight=prevalence.weights.numpy()[y])
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    np.testing.assert_allclose(ours.predict_proba(x), theirs.predict_proba(x), atol=1e-6)


@pytest.mark.parametrize(("d", "k"), [(20, 2), (310, 2), (6, 3)])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_more_features_are_fitted_by_another_solver_with_the_same_result(d: int, k: int, offset: float) -> None:
    rng = np.random.default_rng(SEED)
    x, y = rng.normal(size=(100, d)), np.arange(100) % k
    weight = rng.random(100) + 0.5
    ours = InformationGainClassifier(C=0.1, tol=1e-8, max_iter=2000).fit(x + offset, y, sample_weight=weight)
    theirs = LogisticRegression(C=0.1, solver="newton-cholesky", tol=1e-10).fit(x, y, sample_weight=weight)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    np.testing.assert_allclose(ours.predict_proba(x + offset), theirs.predict_proba(x), atol=1e-5)


def gain_gradient(model: InformationGainClassifier, x: np.ndarray, y: np.ndarray, kappa: float, reference: Any) -> np.ndarray:
    """The gradient of `information_gain_loss` plus the penalty at the fitted coefficients, by autograd."""
    prevalence = model.prevalence_.with_evidence(kappa)
    coef = torch.from_numpy(model.coef_.copy()).requires_grad_()
    intercept = torch.from_numpy(model.intercept_.copy()).requires_grad_()
    likelihood = rl.Bernoulli() if len(coef) == 1 else rl.Categorical()
    outputs = torch.from_numpy(x) @ coef.T + intercept
    loss = rl.information_gain_loss(outputs, torch.from_numpy(y), prevalence, likelihood, reference=reference)
    loss = loss + coef.square().sum() / (2 * model.C * len(y))
    loss.backward()
    assert coef.grad is not None
    assert intercept.grad is not None
    return np.concatenate([coef.grad.numpy().ravel(), intercept.grad.numpy()])


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("kappa", [0.0, 0.3, 2.0])
def test_in_the_training_mix_evidence_does_not_move_the_optimum(k: int, kappa: float) -> None:
    x, y = rows(k)
    model = InformationGainClassifier(POPULATIONS[k], evidence=kappa, tol=1e-9).fit(x, y)
    np.testing.assert_allclose(gain_gradient(model, x, y, kappa, None), 0, atol=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("kappa", [0.5, 1.0])
def test_at_another_reference_the_fit_is_an_optimum_of_the_gain_with_its_marginal(k: int, kappa: float) -> None:
    x, y = rows(k)
    options: dict[str, Any] = {"reference": "population", "evidence": kappa, "tol": 1e-8, "max_iter": 5000}
    model = InformationGainClassifier(POPULATIONS[k], **options).fit(x, y)
    np.testing.assert_allclose(gain_gradient(model, x, y, kappa, model.prevalence_.population), 0, atol=1e-6)
    plain = InformationGainClassifier(POPULATIONS[k]).fit(x, y)
    assert np.abs(gain_gradient(plain, x, y, kappa, model.prevalence_.population)).max() > 1e-3


@pytest.mark.long
def test_as_published_is_the_gain_at_the_population_without_evidence() -> None:
    x, y = rows()
    published = InformationGainClassifier(0.3, loss="as_published", tol=1e-8, max_iter=5000).fit(x, y)
    options: dict[str, Any] = {"reference": "population", "evidence": 0.0, "tol": 1e-8, "max_iter": 5000}
    spelled = InformationGainClassifier(0.3, **options).fit(x, y)
    np.testing.assert_allclose(published.coef_, spelled.coef_, rtol=1e-10)
    assert not np.allclose(published.coef_, InformationGainClassifier(0.3).fit(x, y).coef_, rtol=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("loss", LOSSES)
def test_an_integer_weight_is_a_repeated_row_and_zero_leaves_it_out(loss: Any) -> None:
    x, y = rows(3)
    weight = np.random.default_rng(SEED).integers(0, 3, len(y))
    weight[:3] = 1
    repeated = np.repeat(np.arange(len(y)), weight)
    options: dict[str, Any] = {"loss": loss, "tol": 1e-9, "max_iter": 5000}
    weighted = InformationGainClassifier([0.8, 0.15, 0.05], **options).fit(x, y, sample_weight=weight)
    plain = InformationGainClassifier([0.8, 0.15, 0.05], **options).fit(x[repeated], y[repeated])
    np.testing.assert_allclose(weighted.sampling_, plain.sampling_)
    np.testing.assert_allclose(weighted.predict_proba(x), plain.predict_proba(x), atol=1e-5)


def test_a_class_whose_rows_all_weigh_nothing_is_not_there() -> None:
    x, y = rows(3)
    model = InformationGainClassifier().fit(x, y, sample_weight=(y < 2).astype(float))
    assert model.classes_.tolist() == [0, 1]


@pytest.mark.long
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("k", [2, 3])
def test_votes_of_one_for_a_class_are_its_label(loss: Any, k: int) -> None:
    x, y = rows(k)
    hard, soft = (InformationGainClassifier(POPULATIONS[k], loss=loss).fit(x, labels) for labels in (y, np.eye(k)[y]))
    np.testing.assert_allclose(soft.predict_proba(x), hard.predict_proba(x), atol=1e-6)


def test_divided_votes_are_rows_of_each_class_with_the_votes_as_weights() -> None:
    x, y = rows(3)
    votes = np.random.default_rng(SEED).dirichlet([1, 1, 1], len(y))
    soft = InformationGainClassifier([0.8, 0.15, 0.05], tol=1e-9).fit(x, votes)
    apart = InformationGainClassifier([0.8, 0.15, 0.05], tol=1e-9)
    apart.fit(np.tile(x, (3, 1)), np.repeat([0, 1, 2], len(y)), sample_weight=votes.T.ravel())
    np.testing.assert_allclose(soft.coef_, apart.coef_, atol=1e-7)
    np.testing.assert_allclose(soft.intercept_, apart.intercept_, atol=1e-7)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_the_columns_of_a_table_of_votes_name_the_classes_in_any_order(library: str) -> None:
    frames = pytest.importorskip(library)
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


def cases() -> tuple[np.ndarray, np.ndarray]:
    """Rows with labels of which the first by the alphabet is the positive one."""
    x, y = rows()
    return x, np.array(["control", "case"])[y]


NAMED: Any = {"case": 0.056, "control": 0.944}
DOORS: dict[str, Callable[[], Any]] = {
    "population": lambda: InformationGainClassifier(0.056).fit(*cases()),
    "population of ordered classes": lambda: OrdinalClassifier(0.056).fit(*cases()),
    "population of any classifier": lambda: PrevalenceCorrectedClassifier(population=0.056).fit(*cases()),
    "population of boosting": lambda: BoostingClassifier(0.056, n_estimators=2).fit(*cases()),
    "population in partial_fit": lambda: InformationGainClassifier(0.056).partial_fit(*cases(), ["case", "control"]),
    "another population": lambda: InformationGainClassifier(NAMED).fit(*cases()).set_population(np.array(0.1)),
    "reference": lambda: InformationGainClassifier(NAMED, reference=0.056).fit(*cases()),
    "sampling": lambda: PrevalenceCorrectedClassifier(population=NAMED, sampling=0.056).fit(*cases()),
    "population of a scorer": lambda: prevalence_scorer("brier", 0.056)(LogisticRegression().fit(*cases()), *cases()),
    "mix of a scorer": lambda: prevalence_scorer("brier", NAMED, from_=0.5)(LogisticRegression().fit(*cases()), *cases()),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_number_for_two_words_is_refused_with_the_dict_to_write(door: str) -> None:
    name = {"reference": "reference", "sampling": "sampling"}.get(door, "population")
    assert_refused(DOORS[door], rf"`{name}` to name its class, because the labels are words.*\{{'case': 0.*, 'control': 0.*\}}")


@pytest.mark.parametrize(
    ("words", "accepted"),
    [
        (["no", "yes"], True),
        (["Benign", "Malignant"], True),
        (["False", "True"], True),
        (["healthy", "stroke"], True),
        (["0", "1"], True),
        (["1", "2"], False),
        (["default", "paid"], False),
        (["disease", "healthy"], False),
        (["no", "none"], False),
        ([1, 2], True),
        ([-1, 1], True),
        ([False, True], True),
    ],
)
def test_a_number_is_for_the_larger_label_or_a_second_word_that_is_plainly_positive(words: Any, accepted: bool) -> None:
    x, y = rows()
    model, labels = InformationGainClassifier(0.056), np.array(words)[y]
    if accepted:
        assert dict(zip(words, model.fit(x, labels).population_, strict=True))[words[1]] == pytest.approx(0.056)
    else:
        assert_refused(lambda: model.fit(x, labels), "name its class")


@pytest.mark.long
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("hidden", [(), (4,)])
def test_another_population_without_refitting_is_bayes_rule_and_there_and_back_is_the_identity(k: int, hidden: Any) -> None:
    x, y = rows(k)
    model = trained(network(hidden_layer_sizes=hidden), x, y)
    before = model.predict_log_proba(x)
    moved = model.set_population(POPULATIONS[k]).predict_log_proba(x)
    np.testing.assert_allclose(moved, rl.retarget(before, from_=model.sampling_, to=POPULATIONS[k]), atol=1e-10)
    np.testing.assert_allclose(model.set_population(None).predict_log_proba(x), before, atol=1e-10)


def test_an_uncertain_population_keeps_its_uncertainty() -> None:
    x, y = rows()
    model = InformationGainClassifier(rl.Prevalence.beta(5.0, 95.0)).fit(x, y)
    assert model.concentration_ is not None
    assert model.concentration_.tolist() == [95.0, 5.0]
    assert model.set_population(0.2).prevalence_.concentration is None


@pytest.mark.long
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("soft", [False, True], ids=["labels", "votes"])
def test_a_network_trains_on_every_loss_and_beats_answering_the_population(loss: Any, soft: bool) -> None:
    x, y = rows(3, n=400)
    x = StandardScaler().fit_transform(x)
    model = trained(network([0.5, 0.3, 0.2], loss=loss, learning_rate_init=0.01), x, np.eye(3)[y] if soft else y)
    weight = np.array([0.5, 0.3, 0.2])[y] / np.bincount(y)[y]
    gained = model.predict_log_proba(x)[np.arange(len(y)), y] @ weight
    assert gained > np.log([0.5, 0.3, 0.2]) @ [0.5, 0.3, 0.2] + 0.1


@pytest.mark.long
@pytest.mark.parametrize("loss", ["log_likelihood", "logit_adjusted", "information_gain"])
def test_a_network_without_features_that_tell_answers_the_population(loss: Any) -> None:
    y = np.repeat([0, 1], 50)
    model = trained(network(0.01, loss=loss, learning_rate_init=0.05, max_iter=200), np.zeros((100, 2)), y)
    np.testing.assert_allclose(model.predict_proba([[0.0, 0.0]])[0, 1], 0.01, rtol=0.01)


@pytest.mark.long
def test_a_network_keeps_the_precision_of_its_features_and_is_set_by_its_seed() -> None:
    x, y = rows()
    first, second = (trained(network(0.1), x.astype(np.float32), y) for _ in range(2))
    assert first.coefs_[0].dtype == np.float32
    np.testing.assert_array_equal(first.coefs_[0], second.coefs_[0])
    assert not np.array_equal(trained(network(0.1, random_state=1), x.astype(np.float32), y).coefs_[0], first.coefs_[0])


@pytest.mark.long
def test_training_leaves_the_global_random_numbers_alone() -> None:
    x, y = rows()
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    trained(network(0.1), x, y)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.long
def test_early_stopping_keeps_the_weights_with_the_best_validation_score() -> None:
    x, y = rows(n=300)
    options: dict[str, Any] = {"early_stopping": True, "learning_rate_init": 0.05, "hidden_layer_sizes": (30,), "penalty": None}
    model = trained(network(0.2, max_iter=40, **options), x, y)
    assert model.validation_scores_ is not None
    best = int(np.argmax(model.validation_scores_))
    assert best < 39
    shorter = trained(network(0.2, max_iter=best + 1, **options), x, y)
    np.testing.assert_array_equal(shorter.coefs_[0], model.coefs_[0])


@pytest.mark.long
def test_early_stopping_stops_when_the_score_no_longer_improves() -> None:
    x, y = rows(n=300)
    model = InformationGainClassifier(
        0.2, hidden_layer_sizes=(30,), early_stopping=True, learning_rate_init=0.05, n_iter_no_change=3, random_state=0
    ).fit(x, y)
    assert model.n_iter_ == len(model.validation_scores_ or []) < 200


@pytest.mark.long
def test_partial_fit_nears_what_fit_finds() -> None:
    x, y = rows(n=400)
    x = StandardScaler().fit_transform(x)
    whole = InformationGainClassifier(0.05).fit(x, y)
    model = InformationGainClassifier(0.05, learning_rate_init=0.03, batch_size=200, random_state=0)
    for _ in range(60):
        model.partial_fit(x[:200], y[:200], classes=[0, 1]).partial_fit(x[200:], y[200:])
    np.testing.assert_allclose(model.sampling_, whole.sampling_)
    np.testing.assert_allclose(model.decision_function(x), whole.decision_function(x), atol=0.3)  # ρ and π are 3.6 apart
    assert model.n_iter_ == 120


@pytest.mark.parametrize("hidden", [(), (4,)])
def test_partial_fit_starts_with_rows_of_one_class_and_moves_with_the_population(hidden: Any) -> None:
    x, y = rows(3)
    model = network([0.8, 0.15, 0.05], hidden_layer_sizes=hidden, evidence=None)
    model.partial_fit(x[y == 1], y[y == 1], classes=[0, 1, 2])
    assert np.isfinite(model.predict_log_proba(x)).all()
    model.partial_fit(x, y).set_population([0.2, 0.3, 0.5])
    first = model.predict_proba(x).mean(0)
    model.partial_fit(x[:2], y[:2])
    np.testing.assert_allclose(model.population_, [0.2, 0.3, 0.5])
    np.testing.assert_allclose(model.predict_proba(x).mean(0), first, atol=0.05)


@pytest.mark.long
def test_a_warm_start_goes_on_where_the_last_fit_ended() -> None:
    x, y = rows()
    model = InformationGainClassifier(0.05, warm_start=True, tol=1e-6).fit(x, y)
    first = model.n_iter_
    again = model.set_params(population=0.2).fit(x, y)
    assert again.n_iter_ < first
    np.testing.assert_allclose(again.coef_, InformationGainClassifier(0.2, tol=1e-6).fit(x, y).coef_, atol=1e-6)
    net = trained(network(0.05, warm_start=True), x, y)
    cold, warm = net.loss_curve_, trained(net, x, y).loss_curve_
    assert warm[0] < cold[0]
    assert warm[-1] < cold[-1]


def test_a_fit_forgets_what_came_before() -> None:
    x, y = rows()
    model = InformationGainClassifier(0.05).partial_fit(x, y, classes=[0, 1]).fit(x[:, :2], y)
    np.testing.assert_array_equal(model.coef_, InformationGainClassifier(0.05).fit(x[:, :2], y).coef_)
    assert model.partial_fit(x[:, :2], y).coef_.shape == (1, 2)
    before = model.predict_proba(x[:, :2])
    np.testing.assert_array_equal(model.set_params(hidden_layer_sizes=(3,)).predict_proba(x[:, :2]), before)


def test_too_few_iterations_are_said() -> None:
    x, y = rows()
    cases: list[dict[str, Any]] = [{}, {"loss": "as_published"}, {"hidden_layer_sizes": (3,)}]
    for options in cases:
        with pytest.warns(ConvergenceWarning, match="raise max_iter"):
            InformationGainClassifier(0.01, max_iter=1, **options).fit(x, y)


def test_features_on_very_different_scales_and_a_constant_one_are_no_trouble() -> None:
    x, y = rows()
    scale = np.array([1e-4, 1e5, 1.0])
    plain = InformationGainClassifier(0.05, penalty=None, tol=1e-8).fit(x, y)
    scaled = InformationGainClassifier(0.05, penalty=None, tol=1e-8).fit(np.column_stack([x * scale, np.full(len(y), 7.0)]), y)
    np.testing.assert_allclose(
        scaled.decision_function(np.column_stack([x * scale, np.full(len(y), 7.0)])), plain.decision_function(x), rtol=1e-5
    )


@pytest.mark.long
@pytest.mark.parametrize("population", [1e-9, 1 - 1e-9])
def test_extreme_populations_stay_finite(population: float) -> None:
    x, y = rows()
    for loss in LOSSES:
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
        ({"activation": "selu"}, "activation"),
        ({"C": 0.0}, "`C`"),
        ({"tol": -1.0}, "tol"),
        ({"max_iter": 0}, "max_iter"),
        ({"max_iter": 2.5}, "max_iter"),
        ({"batch_size": 0}, "batch_size"),
        ({"validation_fraction": 1.0}, "validation_fraction"),
        ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes"),
        ({"hidden_layer_sizes": "100"}, "hidden_layer_sizes"),
        ({"reference": "training"}, "reference"),
        ({"evidence": -1.0}, "evidence"),
        ({"penalty": "firth", "hidden_layer_sizes": (3,)}, "hidden layers"),
        ({"penalty": "firth", "loss": "weighted"}, "weighted"),
        ({"learning_rate_init": 1e300, "hidden_layer_sizes": (3,)}, "finite loss"),
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
    partial = InformationGainClassifier().partial_fit(x, y, classes=[0, 1])
    assert_refused(lambda: partial.partial_fit(x, y + 1), "among the classes")
    assert_refused(lambda: partial.partial_fit(x, np.eye(3)[y]), "vote|classes")
    few = InformationGainClassifier(hidden_layer_sizes=(3,), early_stopping=True)
    assert_refused(lambda: few.fit(x[:5], [0, 1, 1, 1, 1]), "early_stopping=False")


@pytest.mark.long
@pytest.mark.parametrize(
    "model",
    [
        InformationGainClassifier(),
        InformationGainClassifier(loss="weighted"),
        InformationGainClassifier(hidden_layer_sizes=(20,), learning_rate_init=0.01, max_iter=100),
    ],
    ids=["linear", "weighted", "network"],
)
def test_scikit_learns_own_checks_pass(model: InformationGainClassifier) -> None:
    with unchecked_types(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(model, on_skip=None)
    skipped = {result["check_name"] for result in results if result["status"] != "passed"}
    assert skipped <= {"check_array_api_input"}  # which needs SCIPY_ARRAY_API in the environment


@pytest.mark.long
@pytest.mark.parametrize("hidden", [(), (4,)])
def test_a_clone_fits_the_same_and_pickles_and_copies_predict_the_same(hidden: Any) -> None:
    x, y = rows()
    model = trained(network({0: 0.9, 1: 0.1}, hidden_layer_sizes=hidden), x, y)
    for other in (trained(clone(model), x, y), pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        np.testing.assert_array_equal(other.predict_proba(x), model.predict_proba(x))
    partial = pickle.loads(pickle.dumps(model.partial_fit(x, y)))
    np.testing.assert_array_equal(partial.partial_fit(x, y).predict_proba(x), model.partial_fit(x, y).predict_proba(x))


@pytest.mark.long
@pytest.mark.parametrize("hidden", [(), (4,)])
def test_a_model_is_saved_by_skops_without_pickle(hidden: Any) -> None:
    io = pytest.importorskip("skops.io")
    x, y = rows()
    model = trained(network(0.1, hidden_layer_sizes=hidden), x, y)
    saved = io.dumps(model)
    name = "rightloss.sklearn.information_gain.InformationGainClassifier"
    assert io.get_untrusted_types(data=saved) == [name]
    np.testing.assert_array_equal(io.loads(saved, trusted=[name]).predict_proba(x), model.predict_proba(x))


@pytest.mark.long
def test_it_works_in_a_pipeline_under_a_grid_search() -> None:
    x, y = rows()
    pipeline = make_pipeline(StandardScaler(), InformationGainClassifier(0.3))
    search = GridSearchCV(pipeline, {"informationgainclassifier__C": [0.01, 1.0]}, scoring="neg_log_loss").fit(x, y)
    assert search.best_params_["informationgainclassifier__C"] in (0.01, 1.0)
    assert search.predict_proba(x).shape == (len(y), 2)


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


def test_verbose_prints_each_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = rows()
    trained(network(0.1, max_iter=3, verbose=True), x, y)
    assert capsys.readouterr().out.count("Iteration") == 3


def test_decision_function_and_probabilities_say_the_same() -> None:
    x, y = rows()
    for hidden in ((), (4,)):
        model = trained(network(0.05, hidden_layer_sizes=hidden), x, y)
        np.testing.assert_allclose(special.expit(model.decision_function(x)), model.predict_proba(x)[:, 1], rtol=1e-6)


@pytest.mark.parametrize("population", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("d", [3, 15])
def test_a_rare_class_does_not_end_a_weighted_fit_early(population: float, d: int) -> None:
    rng = np.random.default_rng(SEED)
    y = np.arange(400) % 2
    x = rng.normal(size=(400, d)) + np.eye(d)[0] * y[:, None]
    found = InformationGainClassifier(population, loss="weighted", C=1e4).fit(x, y)
    weight = np.where(y == 1, 2 * population, 2 * (1 - population))
    theirs = LogisticRegression(C=1e4, solver="newton-cholesky", tol=1e-13).fit(x, y, sample_weight=weight)
    np.testing.assert_allclose(found.coef_, theirs.coef_, atol=1e-3 * np.abs(theirs.coef_).max())
