"""The ordinal classifier against statsmodels, logistic regression, the likelihoods and repeated rows."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from members import SEED, assert_refused, unchecked_types
from scipy import special
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import check_estimator
from statsmodels.miscmodels.ordinal_model import OrderedModel

import rightloss as rl
from rightloss.sklearn.ordinal import LIKELIHOODS, OrdinalClassifier

KINDS = list(LIKELIHOODS)
POPULATION = [0.6, 0.2, 0.15, 0.05]


def ratings(n: int = 200, slope: float = 1.2, cuts: Any = (-1.0, 0.2, 1.0), seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Ratings 1 to 4 by proportional odds."""
    rng = np.random.default_rng(1000 * SEED + seed)
    x = rng.normal(size=(n, 2))
    latent = slope * x[:, 0] - 0.5 * x[:, 1] + rng.logistic(size=n)
    return x, 1 + np.searchsorted(cuts, latent)


def trained(model: OrdinalClassifier, x: Any, y: Any, **options: Any) -> OrdinalClassifier:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(x, y, **options)


@pytest.mark.long
def test_proportional_odds_are_those_of_statsmodels() -> None:
    x, y = ratings()
    ours = OrdinalClassifier(penalty=None, tol=1e-8, max_iter=1000).fit(x, y)
    model = OrderedModel(y, x, distr="logit")
    theirs = model.fit(method="bfgs", disp=0, gtol=1e-8).params
    np.testing.assert_allclose(ours.coef_[0], theirs[:2], atol=1e-5)
    np.testing.assert_allclose(np.array(ours.cutpoints_), model.transform_threshold_params(theirs)[1:-1], atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_with_two_classes_every_likelihood_is_logistic_regression_at_the_population(kind: Any) -> None:
    x, y = ratings()
    y = y > 2
    ours = OrdinalClassifier(0.05, likelihood=kind, tol=1e-8, max_iter=1000).fit(x, y)
    theirs = LogisticRegression(solver="newton-cholesky", tol=1e-10).fit(x, y)
    moved = rl.retarget(theirs.predict_log_proba(x), from_=y.mean(), to=0.05)
    np.testing.assert_allclose(ours.predict_log_proba(x), moved, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", ["information_gain", "logit_adjusted", "weighted", "as_published", "log_likelihood"])
def test_the_fit_is_an_optimum_of_the_loss(kind: Any, loss: Any) -> None:
    x, y = ratings()
    model = OrdinalClassifier(POPULATION, likelihood=kind, loss=loss, tol=1e-7, max_iter=5000).fit(x, y)
    likelihood = LIKELIHOODS[kind](4)
    likelihood.double()
    if isinstance(likelihood, rl.CumulativeLogit):
        assert model.cutpoints_ is not None
        with torch.no_grad():
            likelihood.first.copy_(torch.from_numpy(model.cutpoints_[:1]))
            likelihood.log_gaps.copy_(torch.from_numpy(np.diff(model.cutpoints_)).log())
    coef = torch.from_numpy(model.coef_).requires_grad_()
    intercept = torch.from_numpy(model.intercept_).requires_grad_(kind != "cumulative_logit")
    losses: dict[str, Any] = {
        "information_gain": rl.information_gain_loss,
        "logit_adjusted": rl.logit_adjusted_loss,
        "weighted": rl.weighted_loss,
        "log_likelihood": rl.log_likelihood_loss,
        "as_published": lambda z, t, p, lik: rl.information_gain_loss(z, t, p.with_evidence(0.0), lik, reference=p.population),
    }
    outputs = torch.from_numpy(x) @ coef.T + intercept
    value = losses[loss](outputs, torch.from_numpy(y - 1), model.prevalence_, likelihood)
    (value + coef.square().sum() / (2 * len(y))).backward()
    parts = [coef, intercept, *likelihood.parameters()]
    gradient = torch.cat([part.grad.flatten() for part in parts if part.grad is not None])
    assert float(gradient.abs().max()) < 2e-6


@pytest.mark.long
def test_sampling_by_rating_is_undone() -> None:
    x, y = ratings(20_000)
    mix = np.bincount(y)[1:] / len(y)
    rng = np.random.default_rng(SEED)
    kept = np.concatenate([rng.choice(np.flatnonzero(y == c), 1500, replace=False) for c in (1, 2, 3, 4)])
    model = OrdinalClassifier(mix, penalty=None).fit(x[kept], y[kept])
    whole = OrdinalClassifier(penalty=None).fit(x, y)
    np.testing.assert_allclose(model.coef_, whole.coef_, atol=0.15)
    uncorrected = OrdinalClassifier(penalty=None).fit(x[kept], y[kept])
    cuts, wanted, wrong = (np.array(each.cutpoints_) for each in (model, whole, uncorrected))
    np.testing.assert_allclose(cuts, wanted, atol=0.15)
    assert np.abs(wrong - wanted).max() > 0.3


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hidden", [(), (4,)])
def test_another_population_without_refitting_is_bayes_rule(kind: Any, hidden: Any) -> None:
    x, y = ratings()
    model = trained(OrdinalClassifier(likelihood=kind, hidden_layer_sizes=hidden, max_iter=20, random_state=0), x, y)
    before = model.predict_log_proba(x)
    moved = model.set_population(dict(zip([1, 2, 3, 4], POPULATION, strict=True))).predict_log_proba(x)
    np.testing.assert_allclose(moved, rl.retarget(before, from_=model.sampling_, to=POPULATION), atol=1e-10)
    np.testing.assert_allclose(special.logsumexp(moved, axis=1), 0, atol=1e-10)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_an_integer_weight_is_a_repeated_row(kind: Any) -> None:
    x, y = ratings()
    weight = np.random.default_rng(SEED).integers(0, 3, len(y))
    repeated = np.repeat(np.arange(len(y)), weight)
    options: dict[str, Any] = {"likelihood": kind, "tol": 1e-8, "max_iter": 2000}
    weighted = OrdinalClassifier(POPULATION, **options).fit(x, y, sample_weight=weight)
    plain = OrdinalClassifier(POPULATION, **options).fit(x[repeated], y[repeated])
    np.testing.assert_allclose(weighted.predict_proba(x), plain.predict_proba(x), atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_network_learns_a_rating_that_is_not_linear(kind: Any) -> None:
    x, _ = ratings(600)
    y = np.searchsorted([0.3, 1.0, 2.0], x[:, 0] ** 2)
    options: dict[str, Any] = {"hidden_layer_sizes": (16,), "learning_rate_init": 0.02, "max_iter": 60, "random_state": 0}
    net = trained(OrdinalClassifier(likelihood=kind, **options), x, y)
    linear = OrdinalClassifier(likelihood=kind).fit(x, y)
    assert net.score(x, y) > linear.score(x, y) + 0.15


@pytest.mark.long
def test_early_stopping_a_clone_and_a_pickle() -> None:
    x, y = ratings()
    model = OrdinalClassifier(POPULATION, hidden_layer_sizes=(5,), early_stopping=True, max_iter=15, random_state=0)
    model = trained(model, x, y)
    assert len(model.validation_scores_ or []) == model.n_iter_
    for other in (trained(clone(model), x, y), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(other.predict_proba(x), model.predict_proba(x))


@pytest.mark.long
def test_votes_are_taken() -> None:
    x, y = ratings()
    hard, soft = (OrdinalClassifier(POPULATION).fit(x, labels) for labels in (y, np.eye(4)[y - 1]))
    np.testing.assert_allclose(soft.predict_proba(x), hard.predict_proba(x), atol=1e-6)


def test_wrong_options_are_refused() -> None:
    x, y = ratings()
    with unchecked_types():
        assert_refused(lambda: OrdinalClassifier(likelihood="probit").fit(x, y), "likelihood")  # type: ignore[arg-type]
        assert_refused(lambda: OrdinalClassifier(penalty="firth").fit(x, y), "penalty")  # type: ignore[arg-type]
        assert_refused(lambda: OrdinalClassifier([0.5, 0.5]).fit(x, y), "4 entries")


@pytest.mark.long
@pytest.mark.parametrize(
    "model",
    [
        OrdinalClassifier(),
        OrdinalClassifier(likelihood="onion_peeling"),
        OrdinalClassifier(hidden_layer_sizes=(20,), max_iter=10),
    ],
    ids=["cumulative", "onion", "network"],
)
def test_scikit_learns_own_checks_pass(model: OrdinalClassifier) -> None:
    with unchecked_types(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(model, on_skip=None)
    assert {result["check_name"] for result in results if result["status"] != "passed"} <= {"check_array_api_input"}
