"""The boosting objectives: derivatives against finite differences and the torch losses, and both libraries' calls."""

from __future__ import annotations

from typing import Any

import lightgbm as lgb
import numpy as np
import pytest
import xgboost as xgb
from draws import population, stream
from scipy import special
from sklearn.metrics import log_loss

import rightloss as rl
from rightloss.boosting import InformationGainObjective, WeightedObjective

KINDS = [(2, "sampling", 1.0), (2, "population", 0.3), (3, "sampling", 0.3), (3, "population", 0.0)]
each_kind = pytest.mark.parametrize(("k", "reference", "kappa"), KINDS)


def problem(k: int, n: int = 24, scale: float = 2.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels with every class, scores and weights."""
    draw = stream(seed)
    y = np.concatenate([np.arange(k), draw.integers(0, k, n - k)])
    return y, scale * draw.normal(size=(n, k)), draw.uniform(0.2, 2.0, n)


def objective_of(k: int, reference: str, kappa: float) -> InformationGainObjective:
    """An objective at a random π and ρ that are not the labels' own."""
    prevalence = rl.Prevalence(population(k, 1), population(k, 2) * 0.3 + 0.7 / k, kappa)
    return InformationGainObjective(prevalence, None if reference == "sampling" else prevalence.population)


def finite_difference(f: Any, at: np.ndarray, step: float) -> tuple[np.ndarray, np.ndarray]:
    """First and second central differences of order 4 of `f` in each entry of `at`."""
    first, second = np.zeros_like(at), np.zeros_like(at)
    for index in np.ndindex(at.shape):
        values = []
        for multiple in (-2, -1, 0, 1, 2):
            moved = at.copy()
            moved[index] += multiple * step
            values.append(f(moved))
        a, b, c, d, e = values
        first[index] = (a - 8 * b + 8 * d - e) / (12 * step)
        second[index] = (-a + 16 * b - 30 * c + 16 * d - e) / (12 * step**2)
    return first, second


@pytest.mark.filterwarnings("ignore::rightloss.PrevalenceWarning")
@each_kind
def test_metric_and_gradient_are_those_of_the_torch_loss(k: int, reference: str, kappa: float) -> None:
    torch = pytest.importorskip("torch")
    objective, (y, scores, _) = objective_of(k, reference, kappa), problem(k)
    weights = stream(3).integers(1, 4, len(y))
    rows = np.repeat(np.arange(len(y)), weights)  # the losses repeat what the objective weighs
    z = torch.tensor(scores, requires_grad=True)
    options: dict[str, Any] = {"marginal": rl.BatchMarginal(), "reference": objective.reference, "fused": False}
    loss = rl.information_gain_loss(z[rows], torch.as_tensor(y[rows]), objective.prevalence, **options)
    (loss * len(rows)).backward()
    np.testing.assert_allclose(objective(y, scores, weights)[0], z.grad.numpy(), rtol=1e-9, atol=1e-11)
    assert objective.metric.score(y, scores, weights) == pytest.approx(loss.item(), rel=1e-10)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::rightloss.PrevalenceWarning")
@each_kind
def test_the_hessian_bounds_the_curvature_along_every_tree_of_one_class(k: int, reference: str, kappa: float) -> None:
    objective, (y, scores, _) = objective_of(k, reference, kappa), problem(k, n=14, scale=3.0)
    positive = objective(y, scores)[1] * (k - 1) / k
    for column in range(k):
        change = np.zeros((len(y), *scores.shape))
        change[np.arange(len(y)), np.arange(len(y)), column] = 1e-5
        ends = [np.stack([objective(y, scores + sign * each)[0][:, column] for each in change]) for sign in (1, -1)]
        hessian = (ends[0] - ends[1]) / 2e-5
        lowest = np.linalg.eigvalsh(np.diag(positive[:, column]) - (hessian + hessian.T) / 2).min()
        assert lowest > -1e-6 * max(1.0, positive.max())


@pytest.mark.filterwarnings("ignore::rightloss.PrevalenceWarning")
@each_kind
def test_the_hessian_is_at_least_that_of_cross_entropy(k: int, reference: str, kappa: float) -> None:
    objective, (y, scores, weights) = objective_of(k, reference, kappa), problem(k, scale=5.0)
    r = objective.prevalence.sampling if reference == "sampling" else objective.prevalence.population
    p = special.softmax(scores + np.log(r) - np.log(objective.prevalence.population), axis=1)
    least = weights[:, None] * p * (1 - p) * k / (k - 1)
    assert (objective(y, scores, weights)[1] >= least * (1 - 1e-9)).all()


@pytest.mark.filterwarnings("ignore::rightloss.PrevalenceWarning")
@pytest.mark.parametrize(
    ("reference", "kappa", "weighted"), [("sampling", 1.0, False), ("sampling", 0.0, True), ("population", 4.0, True)]
)
def test_one_score_is_the_difference_of_two(reference: str, kappa: float, weighted: bool) -> None:
    objective, (y, scores, weights) = objective_of(2, reference, kappa), problem(2)
    one = scores[:, 1] - scores[:, 0]
    given = weights if weighted else None
    gradient, hessian = objective(y, one, given)
    by_class = objective(y, np.stack([np.zeros_like(one), one], 1), given)
    np.testing.assert_allclose(gradient, by_class[0][:, 1], rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(hessian, by_class[1][:, 1] / 2, rtol=1e-10, atol=1e-13)


@pytest.mark.filterwarnings("ignore::rightloss.PrevalenceWarning")
@each_kind
def test_extreme_scores_give_finite_derivatives(k: int, reference: str, kappa: float) -> None:
    objective, (y, scores, weights) = objective_of(k, reference, kappa), problem(k)
    last = np.eye(k)[np.full(len(y), k - 1)]  # the other classes' marginals underflow
    weights[0] = 0.0
    for extreme in (800.0 * last, -800.0 * last, 1e6 * np.sign(scores)):
        for z in [extreme] + [extreme[:, 1] - extreme[:, 0]] * (k == 2):
            gradient, hessian = objective(y, z, weights)
            assert np.isfinite(gradient).all()
            assert np.isfinite(hessian).all()
            assert (hessian > 0).all()
            assert np.isfinite(objective.metric.score(y, z, weights))


def test_weighted_derivatives_are_those_of_finite_differences_of_the_weighted_log_loss() -> None:
    for k in (2, 3):
        prevalence = rl.Prevalence(population(k, 1))
        y, scores, weights = problem(k)
        objective, total = WeightedObjective(prevalence), weights.sum()
        own = special.log_softmax(scores, axis=1)[np.arange(len(y)), y]
        assert objective.metric.score(y, scores, weights) == pytest.approx(-own @ (weights * prevalence.weights[y]) / total)
        gradient, hessian = objective(y, scores, weights)
        first, second = finite_difference(lambda z: total * objective.metric.score(y, z, weights), scores, 0.01)  # noqa: B023
        np.testing.assert_allclose(gradient, first, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(hessian * (k - 1) / k, second, rtol=1e-4, atol=1e-6)
    one, y = scores[:, 1] - scores[:, 0], y % 2
    two = WeightedObjective(rl.Prevalence(population(2, 1)))
    by_class = two(y, np.stack([np.zeros_like(one), one], 1), weights)
    np.testing.assert_allclose(two(y, one, weights), (by_class[0][:, 1], by_class[1][:, 1] / 2))


def test_the_log_loss_metric_is_scikit_learns_with_rows_weighted_to_the_population() -> None:
    y, scores, weights = problem(3)
    prevalence = rl.Prevalence(population(3, 1))
    to_population = weights * (prevalence.population / np.bincount(y, weights))[y]
    expected = log_loss(y, special.softmax(scores, axis=1), sample_weight=to_population)
    assert InformationGainObjective(prevalence).log_loss.score(y, scores, weights) == pytest.approx(expected, rel=1e-10)


def test_metrics_answer_each_library_in_its_own_form() -> None:
    y, scores, weights = problem(2)
    objective = InformationGainObjective(rl.Prevalence.from_labels(y, 0.1))
    one = scores[:, 1]
    value = objective.metric.score(y, one, weights)
    dataset = lgb.Dataset(scores, y, weight=weights, params={"verbosity": -1}).construct()
    assert objective.metric(one, dataset) == ("information_gain_loss", pytest.approx(value, rel=1e-6), False)
    assert objective.metric(one, xgb.DMatrix(scores, y, weight=weights)) == (
        "information_gain_loss",
        pytest.approx(value, rel=1e-6),
    )


TREES = {"learning_rate": 0.2, "verbosity": -1, "num_threads": 1, "min_data_in_leaf": 5}


def table_of_people(k: int, n: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = stream(seed)
    y = draw.choice(k, n, p=np.arange(1, k + 1) / np.arange(1, k + 1).sum())
    return draw.normal(size=(n, 4)) + 0.7 * y[:, None], y


@pytest.mark.long
@pytest.mark.parametrize("k", [2, 3])
def test_at_the_sampled_mix_and_full_evidence_it_is_lightgbms_own_objective(k: int) -> None:
    x, y = table_of_people(k)
    prevalence = rl.Prevalence.from_labels(y, population(k, 1))
    log_pi, log_rho = np.log(prevalence.population), np.log(prevalence.sampling)

    def start(log_mix: np.ndarray) -> np.ndarray:
        return np.full(len(y), log_mix[1] - log_mix[0]) if k == 2 else np.tile(log_mix, (len(y), 1))

    many = {} if k == 2 else {"num_class": k}
    ours = lgb.train(
        TREES | many | {"objective": InformationGainObjective(prevalence)}, lgb.Dataset(x, y, init_score=start(log_pi)), 30
    )
    built_in = {"objective": "binary" if k == 2 else "multiclass"}
    theirs = lgb.train(TREES | many | built_in, lgb.Dataset(x, y, init_score=start(log_rho)), 30)
    np.testing.assert_allclose(ours.predict(x), theirs.predict(x, raw_score=True), rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_at_the_sampled_mix_and_full_evidence_it_is_xgboosts_own_objective() -> None:
    x, y = table_of_people(2)
    prevalence = rl.Prevalence.from_labels(y, 0.01)
    log_pi, log_rho = np.log(prevalence.population), np.log(prevalence.sampling)
    params = {"objective": "binary:logistic", "base_score": 0.5, "nthread": 1, "max_depth": 3, "eta": 0.2}
    at_pi = xgb.DMatrix(x, y, base_margin=np.full(len(y), log_pi[1] - log_pi[0]))
    at_rho = xgb.DMatrix(x, y, base_margin=np.full(len(y), log_rho[1] - log_rho[0]))
    ours = xgb.train(params, at_pi, 20, obj=InformationGainObjective(prevalence))
    theirs = xgb.train(params, at_rho, 20)
    new = xgb.DMatrix(x)
    np.testing.assert_allclose(ours.predict(new, output_margin=True), theirs.predict(new, output_margin=True), atol=1e-3)


@pytest.mark.long
@pytest.mark.parametrize(("k", "kind"), [(2, InformationGainObjective), (3, WeightedObjective)])
def test_the_scikit_learn_classes_call_it_as_the_native_functions_do(k: int, kind: Any) -> None:
    x, y = table_of_people(k)
    weights = stream(5).uniform(0.5, 2, len(y))
    mix = np.bincount(y, weights) / weights.sum()
    objective = kind(rl.Prevalence(population(k, 1), mix, 0.5))
    many = {} if k == 2 else {"num_class": k}
    native = lgb.train(TREES | many | {"objective": objective}, lgb.Dataset(x, y, weight=weights), 10)
    wrapped = lgb.LGBMClassifier(
        objective=objective, n_estimators=10, learning_rate=0.2, min_child_samples=5, n_jobs=1, verbosity=-1
    )
    wrapped.fit(x, y, sample_weight=weights)
    np.testing.assert_allclose(wrapped.predict_proba(x, raw_score=True), native.predict(x))
    built_in = (
        {"objective": "binary:logistic", "base_score": 0.5} if k == 2 else {"objective": "multi:softprob", "base_score": 0.5}
    )
    params = {"nthread": 1, "max_depth": 3, "eta": 0.2} | many
    booster = xgb.train(params | built_in, xgb.DMatrix(x, y, weight=weights), 10, obj=objective)
    model = xgb.XGBClassifier(objective=objective, n_estimators=10, learning_rate=0.2, max_depth=3, n_jobs=1, base_score=0.5)
    model.fit(x, y, sample_weight=weights)
    np.testing.assert_allclose(
        model.predict(x, output_margin=True), booster.predict(xgb.DMatrix(x), output_margin=True), rtol=1e-5, atol=1e-5
    )


@pytest.mark.long
def test_early_stopping_by_either_metric_keeps_the_best_round() -> None:
    (x, y), new = table_of_people(2, 400), table_of_people(2, 400, seed=1)
    objective = InformationGainObjective(rl.Prevalence.from_labels(y, 0.05, evidence=0.5))
    for metric in (objective.metric, objective.log_loss):
        found: dict[str, Any] = {}
        train = lgb.Dataset(x, y)
        valid = lgb.Dataset(*new, reference=train)
        stop: list[Any] = [lgb.early_stopping(5, verbose=False), lgb.record_evaluation(found)]
        params: dict[str, Any] = TREES | {"objective": objective, "metric": "none"}
        booster = lgb.train(params, train, 200, [valid], feval=metric, callbacks=stop)
        assert booster.best_iteration == 1 + int(np.argmin(found["valid_0"][metric.name])) < 200
        found, params = {}, {"base_score": 0.5, "nthread": 1, "disable_default_eval_metric": 1}
        options: dict[str, Any] = {"evals": [(xgb.DMatrix(*new), "valid")], "evals_result": found, "verbose_eval": False}
        options |= {"obj": objective, "custom_metric": metric, "early_stopping_rounds": 5}
        model = xgb.train(params | {"objective": "binary:logistic"}, xgb.DMatrix(x, y), 200, **options)
        assert model.best_iteration == int(np.argmin(found["valid"][metric.name])) < 199


@pytest.mark.parametrize(
    ("labels", "scores", "message"),
    [
        ([0, 1, 2], np.zeros(3), "Expected labels 0..1"),
        ([0.5, 1, 0], np.zeros(3), "Expected labels 0..1"),
        ([0, 1, 1], np.zeros((3, 3)), "Expected raw scores of shape"),
        ([0, 1, 1], np.zeros(6), "Expected raw scores of shape"),
    ],
)
def test_rows_that_do_not_fit_the_prevalence_are_refused(labels: list[float], scores: np.ndarray, message: str) -> None:
    for kind in (InformationGainObjective, WeightedObjective):
        with pytest.raises(ValueError, match=message):
            kind(rl.Prevalence.binary(0.1))(np.array(labels), scores)
    with pytest.raises(ValueError, match=r"class\(es\) \[1\] are missing"):
        InformationGainObjective(rl.Prevalence.binary(0.1)).log_loss(np.zeros(3), np.zeros(3))


def test_rows_in_another_mix_than_declared_are_warned_of_once() -> None:
    objective = InformationGainObjective(rl.Prevalence.binary(0.1))
    y = np.array([0, 0, 0, 1])
    with pytest.warns(rl.PrevalenceWarning, match="from_labels"):
        objective(y, np.zeros(4))
    objective(y, np.zeros(4))


def test_a_class_that_is_gone_names_what_to_write() -> None:
    with pytest.raises(ImportError, match="PrevalenceCorrectedClassifier"):
        from rightloss.boosting import BoostingClassifier  # noqa: F401
