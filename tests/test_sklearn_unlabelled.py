"""Unlabelled rows in `InformationGainClassifier`: against scipy on the formula, the losses, differences, simulated studies."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from draws import SEED, assert_refused
from scipy import optimize, special
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import rightloss as rl
from rightloss.shift import LabelShiftWarning
from rightloss.sklearn import InformationGainClassifier
from rightloss.sklearn.rows import some_rows
from rightloss.sklearn.stream_likelihood import StreamLikelihood

MEANS = {2: np.array([[0.0, 0.0], [2.0, 1.0]]), 3: np.array([[0.0, 0.0], [2.0, 1.0], [-1.0, 2.0]])}
POPULATION: dict[int, Any] = {2: 0.1, 3: [0.7, 0.2, 0.1]}


def draw(rng: np.random.Generator, classes: np.ndarray, k: int) -> np.ndarray:
    """Features of normal classes with one spread: log-odds are linear."""
    return rng.normal(size=(len(classes), 2)) + MEANS[k][classes]


def study(k: int = 2, each: int = 30, m: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows sampled by class, and unlabelled rows of the population."""
    rng = np.random.default_rng(1000 * SEED + seed)
    y = np.repeat(np.arange(k), [each + 5 * c for c in range(k)])
    pi = np.array([0.9, 0.1]) if k == 2 else np.array(POPULATION[k])
    return draw(rng, y, k), y, draw(rng, rng.choice(k, m, p=pi), k)


def model(population: Any, **options: Any) -> InformationGainClassifier:
    options = {"tol": 1e-9, "max_iter": 1000, "check_unlabelled": False, **options}
    return InformationGainClassifier(population, **options)


def stream_loss(logits: np.ndarray, y: np.ndarray, others: np.ndarray, pi: np.ndarray, rho: np.ndarray, mass: float) -> float:
    """The formula, as plainly as it can be written: the mean of −log t(y|x), and λ times the mean of −log t(u|x)."""

    def t(z: np.ndarray) -> np.ndarray:
        p = special.softmax(z, axis=1)
        masses = np.column_stack([rho * p / pi, np.full(len(p), mass)])
        return np.asarray(masses / masses.sum(1, keepdims=True))

    return float(-np.log(t(logits)[np.arange(len(y)), y]).mean() - mass * np.log(t(others)[:, -1]).mean())


def optimum(
    x: np.ndarray, y: np.ndarray, others: np.ndarray, pi: np.ndarray | None, rho: np.ndarray, mass: float, ridge: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Slopes (K, d), intercepts (K,) and π, by scipy's BFGS without derivatives, from a few starts."""
    k, d = len(rho), x.shape[1]

    def parts(point: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        free = point[: k * d].reshape(k, d)  # for two classes one row is enough: the first is left at 0
        slopes = free if k > 2 else free * [[0.0], [1.0]]
        intercepts = np.append(0.0, point[k * d : k * d + k - 1])
        return slopes, intercepts, pi if pi is not None else special.softmax(np.append(0.0, point[k * d + k - 1 :]))

    def value(point: np.ndarray) -> float:
        slopes, intercepts, mix = parts(point)
        found = stream_loss(x @ slopes.T + intercepts, y, others @ slopes.T + intercepts, mix, rho, mass)
        return found + ridge / 2 * float((slopes**2).sum())

    rng = np.random.default_rng(0)
    size = k * d + (k - 1) * (1 if pi is not None else 2)
    with np.errstate(all="ignore"):
        found = [optimize.minimize(value, 0.5 * rng.normal(size=size), method="BFGS", options={"gtol": 1e-8}) for _ in range(4)]
    return parts(min(found, key=lambda each: each.fun).x)


def odds(fitted: InformationGainClassifier) -> tuple[np.ndarray, np.ndarray]:
    """Slopes and intercepts of the log-odds against class 0."""
    found = fitted._contrasts()
    return found[:, :-1], found[:, -1]


# The likelihood and its optimum.


@pytest.mark.parametrize(("k", "mass", "people"), [(2, 13.0, 2.0), (3, 0.3, 0.0)])
def test_the_objective_is_the_loss_of_the_library_and_so_is_its_gradient(k: int, mass: float, people: float) -> None:
    torch = pytest.importorskip("torch")
    x, y, others = study(k)
    rng = np.random.default_rng(SEED)
    outputs = 2 * rng.normal(size=(len(x) + len(others), 1 if k == 2 else k))
    table = np.eye(k)[y]
    pi = np.array([0.9, 0.1]) if k == 2 else np.array(POPULATION[3])
    streams = StreamLikelihood(table, len(others), mass, table.mean(0), pi, evidence=people)
    value, gradient, _ = streams(outputs, np.empty(0))
    logits = torch.from_numpy(outputs).requires_grad_()
    likelihood = rl.Bernoulli() if k == 2 else rl.Categorical()
    prevalence = rl.Prevalence(pi, table.mean(0))
    options: dict[str, Any] = {"unlabelled": logits[len(y) :], "unlabelled_weight": mass, "unlabelled_evidence": people}
    loss = rl.logit_adjusted_loss(logits[: len(y)], torch.from_numpy(y), prevalence, likelihood, **options)
    loss.backward()
    assert logits.grad is not None
    assert value == pytest.approx(loss.item(), rel=1e-12)
    np.testing.assert_allclose(gradient, logits.grad.numpy(), atol=1e-14)


@pytest.mark.long
@pytest.mark.parametrize(
    ("k", "known", "penalty", "weight"),
    [(2, True, "l2", 0.5), (2, False, None, None), (3, True, None, None), (3, False, "l2", 0.5)],
)
def test_the_fit_is_what_scipy_finds_on_the_formula(k: int, known: bool, penalty: Any, weight: float | None) -> None:
    x, y, others = study(k, each=60, m=600)
    rho = np.bincount(y) / len(y)
    pi = (np.array([0.9, 0.1]) if k == 2 else np.array(POPULATION[3])) if known else None
    mass = len(others) / len(y) if weight is None else weight
    options: dict[str, Any] = {"penalty": penalty, "unlabelled_weight": weight, "unlabelled_evidence": 0.0}
    fitted = model(pi if known else "unknown", **options).fit(x, y, X_unlabelled=others)
    slopes, intercepts, mix = optimum(x, y, others, pi, rho, mass, 1 / len(y) if penalty else 0.0)
    found = odds(fitted)
    np.testing.assert_allclose(found[0], slopes[1:] - slopes[0], atol=2e-4)
    np.testing.assert_allclose(found[1], intercepts[1:], atol=2e-4)
    np.testing.assert_allclose(fitted.population_, mix, atol=2e-5)


@pytest.mark.parametrize(("k", "options"), [(2, {"unlabelled_weight": 0.2}), (3, {})])
def test_an_unknown_population_is_the_mean_prediction_over_the_unlabelled_rows(k: int, options: dict[str, Any]) -> None:
    x, y, others = study(k, each=60)
    fitted = model("unknown", **options).fit(x, y, X_unlabelled=others)
    np.testing.assert_allclose(fitted.predict_proba(others).mean(0), fitted.population_, atol=1e-6)
    started = model(rl.Prevalence.unknown(k, start=[0.8, 0.1, 0.1] if k == 3 else [0.8, 0.2]), **options)
    np.testing.assert_allclose(started.fit(x, y, X_unlabelled=others).population_, fitted.population_, atol=1e-5)
    for other in (clone(fitted).fit(x, y, X_unlabelled=others), pickle.loads(pickle.dumps(fitted))):
        np.testing.assert_array_equal(other.predict_proba(x), fitted.predict_proba(x))


@pytest.mark.parametrize("population", [0.1, "unknown"])
def test_an_integer_weight_is_a_repeated_row_and_votes_of_one_are_labels(population: Any) -> None:
    x, y, others = study(each=60)
    weight = np.random.default_rng(0).integers(0, 4, len(y))
    again = np.repeat(np.arange(len(y)), weight)
    weighted = model(population).fit(x, y, sample_weight=weight, X_unlabelled=others)
    for labels in (y[again], np.eye(2)[y[again]]):
        repeated = model(population).fit(x[again], labels, X_unlabelled=others)
        np.testing.assert_allclose(weighted.predict_proba(x), repeated.predict_proba(x), atol=1e-6)
    assert weighted.unlabelled_weight_ == pytest.approx(len(others) / weight.sum())


def test_evidence_holds_the_mean_prediction_over_the_unlabelled_rows_at_the_population() -> None:
    """With 60 columns, one of which matters, 40 labelled rows can be memorised."""
    rng = np.random.default_rng(SEED)
    classes = (np.arange(40) % 2, rng.choice(2, 3000, p=[0.9, 0.1]))
    x, others = (rng.normal(size=(len(y), 60)) + np.outer(2 * y, np.eye(60)[0]) for y in classes)
    means = [
        model(0.1, unlabelled_evidence=people).fit(x, classes[0], X_unlabelled=others).predict_proba(others)[:, 1].mean()
        for people in (0.0, None, 100.0)
    ]
    assert means[0] < 0.08
    assert means[1] == pytest.approx(0.1, abs=0.02)
    assert means[2] == pytest.approx(0.1, abs=0.002)


# One class alone is labelled.


def test_with_one_class_labelled_the_fit_is_what_scipy_finds_on_the_formula() -> None:
    x, y, others = study(each=80)
    cases, labels = x[y == 1], y[y == 1]
    fitted = model(0.1, penalty=None).fit(cases, labels, X_unlabelled=others)
    assert fitted.classes_.tolist() == [0, 1]
    assert fitted.sampling_.tolist() == [0.0, 1.0]
    mass = len(others) / len(cases)
    slopes, intercepts, _ = optimum(cases, labels, others, np.array([0.9, 0.1]), np.array([0.0, 1.0]), mass, 0.0)
    np.testing.assert_allclose(odds(fitted)[0], slopes[1:] - slopes[0], atol=1e-4)
    np.testing.assert_allclose(odds(fitted)[1], intercepts[1:], atol=1e-4)
    before, after = fitted.decision_function(x), fitted.set_population(0.3).decision_function(x)
    np.testing.assert_allclose(after - before, special.logit(0.3) - special.logit(0.1), atol=1e-4)


def test_a_dict_names_the_class_without_labels_whichever_comes_first() -> None:
    x, y, others = study(each=80)
    cases = x[y == 1]
    reference = model(0.1).fit(cases, np.ones(len(cases), dtype=bool), X_unlabelled=others)
    assert reference.classes_.tolist() == [False, True]
    for name, other in (("cancer", "healthy"), ("malignant", "benign")):
        fitted = model({name: 0.1, other: 0.9}).fit(cases, [name] * len(cases), X_unlabelled=others)
        assert fitted.classes_.tolist() == sorted([name, other])
        risk = fitted.predict_proba(x)[:, fitted.classes_.tolist().index(name)]
        np.testing.assert_allclose(risk, reference.predict_proba(x)[:, 1], atol=1e-6)


def test_where_the_other_class_cannot_be_named_the_remedy_is_said() -> None:
    x, y, others = study()
    for population, labels, words in (
        (0.1, ["cancer"] * len(y), "as a dict"),
        ({"cancer": 0.1, "benign": 0.5, "other": 0.4}, ["cancer"] * len(y), "one other class"),
        ({"a": 0.1, "b": 0.9}, ["cancer"] * len(y), "to name 'cancer'"),
        ("unknown", np.ones(len(y)), "known population"),
        (rl.Prevalence.beta(2.0, 18.0), np.ones(len(y)), "known population"),
        (None, np.ones(len(y)), "as a dict|`population` with"),
    ):
        assert_refused(lambda p=population, v=labels: model(p).fit(x, v, X_unlabelled=others), words)  # type: ignore[misc]
    assert_refused(lambda: model(0.1).fit(x, np.ones(len(y))), "at least 2 classes")
    assert_refused(
        lambda: model(0.1, unlabelled_weight=0.0).fit(x, np.ones(len(y)), X_unlabelled=others), "unlabelled_weight=0"
    )
    fitted = model(0.1).fit(x, np.ones(len(y)), X_unlabelled=others)
    assert_refused(lambda: fitted.set_population(None), "only one class was labelled")


# Standard errors.


@pytest.mark.parametrize(("k", "learnt", "weight"), [(2, True, None), (3, False, 0.7), (3, True, 0.7)])
def test_robust_errors_are_the_sandwich_within_streams_by_differences(k: int, learnt: bool, weight: float | None) -> None:
    x, y, others = study(k, each=60)
    population = "unknown" if learnt else POPULATION[k]
    fitted = model(population, penalty=None, unlabelled_weight=weight).fit(x, y, X_unlabelled=others)
    size, mass = fitted._contrasts().size, fitted.unlabelled_weight_
    theta = np.concatenate([fitted._contrasts().ravel(), np.log(fitted.population_[1:] / fitted.population_[0])])
    theta = theta if learnt else theta[:size]
    design = np.column_stack([np.vstack([x, others]), np.ones(len(x) + len(others))])
    stream = np.append(y, np.full(len(others), k))
    counts = np.where(stream == k, mass * len(y) / len(others), 1.0)

    def losses(point: np.ndarray) -> np.ndarray:
        """−log t(s|x) of each row, by log-odds against class 0, class by class, and those of π; also at complex numbers."""
        odds = np.exp(np.column_stack([np.zeros(len(design)), design @ point[:size].reshape(k - 1, -1).T]))
        pi = np.exp(np.append(0, point[size:])) if learnt else fitted.population_
        masses = fitted.sampling_ * odds / odds.sum(1, keepdims=True) / (pi / pi.sum())
        own = np.column_stack([masses, np.full(len(design), mass)])[np.arange(len(design)), stream]
        return -counts * np.log(own / (masses.sum(1) + mass))

    def scores(point: np.ndarray) -> np.ndarray:
        return np.stack([losses(point + 1e-30j * each).imag * 1e30 for each in np.eye(len(point))], 1)

    steps = 1e-5 * np.eye(len(theta))
    hessian = np.stack([(scores(theta + each) - scores(theta - each)).sum(0) / 2e-5 for each in steps])
    np.testing.assert_allclose(scores(theta).sum(0), 0, atol=1e-5)
    middle = sum(np.cov(scores(theta)[stream == s].T) * (stream == s).sum() for s in range(k + 1))
    expected = np.linalg.inv(hessian) @ middle @ np.linalg.inv(hessian)
    found = fitted.summary("robust").covariance.to_numpy()
    np.testing.assert_allclose(found, expected[:size, :size], rtol=1e-5, atol=1e-8)
    assert ("population learnt" in str(fitted.summary())) == learnt


@pytest.mark.long
@pytest.mark.parametrize(("k", "population"), [(2, "unknown"), (3, "known")])
def test_model_and_robust_errors_agree_where_the_model_is_right(k: int, population: str) -> None:
    x, y, others = study(k, each=10_000, m=30_000)
    fitted = model("unknown" if population == "unknown" else POPULATION[k], penalty=None).fit(x, y, X_unlabelled=others)
    errors = [fitted.summary(kind).frame["std_err"] for kind in ("model", "robust")]
    np.testing.assert_allclose(errors[0], errors[1], rtol=0.05)


def test_a_population_set_afterwards_takes_the_uncertainty_of_the_learnt_one_away() -> None:
    x, y, others = study(each=100, m=2000)
    fitted = model("unknown", penalty=None).fit(x, y, X_unlabelled=others)
    learnt = fitted.summary().frame["std_err"]
    after = fitted.set_population(0.2).summary().frame["std_err"]
    np.testing.assert_allclose(after[:2], learnt[:2])
    assert after["intercept"] < learnt["intercept"]


def test_a_well_known_uncertain_population_is_a_known_one_and_a_vague_one_is_unknown() -> None:
    x, y, others = study(each=100, m=2000)
    for concentration, other in ((1e9, 0.1), (1e-6, "unknown")):
        uncertain = model(rl.Prevalence.beta(0.1 * concentration, 0.9 * concentration), penalty=None)
        uncertain.fit(x, y, X_unlabelled=others)
        expected = model(other, penalty=None).fit(x, y, X_unlabelled=others)
        np.testing.assert_allclose(uncertain.population_, expected.population_, atol=1e-5)
        for column in ("coef", "std_err"):
            np.testing.assert_allclose(uncertain.summary().frame[column], expected.summary().frame[column], rtol=1e-3)


def test_errors_are_refused_where_they_would_be_wrong() -> None:
    x, y, others = study(each=60)
    assert_refused(model(0.1).fit(x, y, X_unlabelled=others).summary, "penalty=None")
    assert_refused(model(0.1, penalty=None).fit(x, np.eye(2)[y], X_unlabelled=others).summary, "votes")
    double = np.column_stack([x, x[:, 0]]), np.column_stack([others, others[:, 0]])
    assert_refused(model(0.1, penalty=None).fit(double[0], y, X_unlabelled=double[1]).summary, "linearly independent")
    with pytest.warns(rl.PrevalenceWarning, match="hardly any"):
        absent = model("unknown", penalty=None).fit(x, y, X_unlabelled=others[others[:, 0] < -1])
    assert_refused(absent.summary, "estimate of one class is 0")


def test_separated_rows_are_named() -> None:
    x = np.linspace(-1, 1, 40)[:, None]
    with pytest.warns(ConvergenceWarning, match="separates"):
        model(0.1, penalty=None, max_iter=200).fit(np.sign(x), (x[:, 0] > 0).astype(int), X_unlabelled=np.sign(x[:25]))


# What users give.


def test_tables_have_the_same_columns_or_the_error_names_them() -> None:
    made = pytest.importorskip("polars")
    x, y, others = study()

    def table(values: np.ndarray, names: list[str]) -> Any:
        return made.DataFrame(dict(zip(names, values.T, strict=True)))

    fitted = model(0.1).fit(table(x, ["age", "dose"]), y, X_unlabelled=table(others, ["age", "dose"]))
    np.testing.assert_allclose(fitted.coef_, model(0.1).fit(x, y, X_unlabelled=others).coef_, rtol=1e-6)
    for names, words in ((["age", "weight"], "unseen.*weight.*missing: - dose"), (["dose", "age"], "same order")):
        given = table(others, names)
        assert_refused(lambda g=given: model(0.1).fit(table(x, ["age", "dose"]), y, X_unlabelled=g), words)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("others", "words"),
    [
        (np.zeros((5, 3)), "3 features"),
        (np.zeros((0, 2)), "0 sample"),
        (np.full((5, 2), np.nan), "NaN"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(others: np.ndarray, words: str) -> None:
    x, y, _ = study()
    assert_refused(lambda: model(0.1).fit(x, y, X_unlabelled=others), words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"population": None}, "`population` with X_unlabelled"),
        ({"population": "learn"}, "'unknown'"),
        ({"loss": "weighted"}, "no part in its likelihood"),
        ({"penalty": "firth"}, "'firth'.*X_unlabelled"),
        ({"unlabelled_weight": "much"}, "unlabelled_weight"),
        ({"unlabelled_evidence": -1.0}, "unlabelled_evidence"),
        ({"unlabelled_evidence": 3.0, "penalty": None}, "standard errors are those of the likelihood alone"),
    ],
)
def test_options_that_do_not_go_with_unlabelled_rows_are_refused(options: dict[str, Any], words: str) -> None:
    x, y, others = study()
    assert_refused(lambda: model(**{"population": 0.1, **options}).fit(x, y, X_unlabelled=others), words)


def test_an_unknown_population_needs_unlabelled_rows_and_a_weight_of_0_leaves_them_out() -> None:
    x, y, others = study()
    assert_refused(lambda: model("unknown").fit(x, y), "X_unlabelled")
    without = model(0.1, unlabelled_weight=0.0).fit(x, y, X_unlabelled=others)
    np.testing.assert_array_equal(without.coef_, model(0.1).fit(x, y).coef_)


def test_classes_that_look_different_among_the_unlabelled_rows_are_warned_of_before_the_fit() -> None:
    x, y, others = study(each=100, m=1000)
    moved = others + np.array([0.0, 3.0])
    with pytest.warns(LabelShiftWarning):
        InformationGainClassifier(0.1).fit(x, y, X_unlabelled=moved)
    for population in (0.1, "unknown"):
        with pytest.warns(LabelShiftWarning):
            InformationGainClassifier(population).fit(x, y, X_unlabelled=others * [1.0, 4.0])
    InformationGainClassifier(0.1, check_unlabelled=False).fit(x, y, X_unlabelled=moved)
    InformationGainClassifier(0.1).fit(x[y == 1], y[y == 1], X_unlabelled=moved)  # one class says nothing of it


@pytest.mark.parametrize("each", [1, 5])
def test_few_rows_are_no_reason_not_to_fit(each: int) -> None:
    x, y, others = study(each=each, m=3)
    for labels in (y, np.eye(2)[y]):
        with pytest.warns(LabelShiftWarning, match="Too few rows"):
            InformationGainClassifier(0.1).fit(x, labels, X_unlabelled=others)
    constant = np.zeros((len(x), 1))
    np.testing.assert_allclose(InformationGainClassifier(0.1).fit(constant, y, X_unlabelled=constant).coef_, 0)


def test_of_many_rows_some_of_every_class_are_tested() -> None:
    chosen = some_rows(np.repeat([0, 1, 2], [1000, 10, 400]), most=300)
    assert np.bincount(np.repeat([0, 1, 2], [1000, 10, 400])[chosen]).tolist() == [100, 10, 100]
    assert len(np.unique(chosen)) == len(chosen)


@pytest.mark.filterwarnings("ignore")
def test_an_unknown_population_is_not_left_at_0_where_another_is_likelier() -> None:
    rng = np.random.default_rng(16)
    y, means = np.arange(30) % 2, 0.8 * rng.normal(size=(2, 2))
    hidden = rng.choice(2, p=rng.dirichlet([0.5, 0.5]), size=200)
    x, others = rng.normal(size=(30, 2)) + means[y], rng.normal(size=(200, 2)) + means[hidden]
    learnt = InformationGainClassifier("unknown").fit(x, y, X_unlabelled=others).loss_curve_[-1]
    for population in (1e-6, 0.01, 0.04, 0.1, 0.3):
        given = InformationGainClassifier(population, unlabelled_evidence=0.0).fit(x, y, X_unlabelled=others)
        assert learnt < given.loss_curve_[-1] + 1e-5


@pytest.mark.parametrize(("population", "evidence"), [(None, 3.0), ([0.9, 0.1], 3.0)])
def test_evidence_counts_people_of_a_known_population_only(population: list[float] | None, evidence: float) -> None:
    _, y, _ = study(each=5, m=20)
    pi = None if population is None else np.array(population)
    table, rho = np.eye(2)[y], np.bincount(y) / len(y)
    outputs, own = np.random.default_rng(0).normal(size=(len(y) + 20, 1)), np.full(1 if pi is None else 0, -1.0)
    without, given = (StreamLikelihood(table, 20, 1.0, rho, pi, None, people)(outputs, own) for people in (0.0, evidence))
    expected = 0.0
    if pi is not None:
        mean = special.expit(outputs[len(y) :, 0]).mean()
        expected = -evidence * float(pi @ np.log([1 - mean, mean]))
    assert given[0] - without[0] == pytest.approx(expected, abs=1e-12)
