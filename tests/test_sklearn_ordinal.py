"""The ordinal classifier against statsmodels, logistic regression, the torch likelihoods and repeated rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from draws import SEED, assert_refused, unchecked_types
from scipy import special
from sklearn.linear_model import LogisticRegression
from statsmodels.miscmodels.ordinal_model import OrderedModel

import rightloss as rl
from rightloss.sklearn.ordinal import LIKELIHOODS, OrdinalClassifier, likelihood_of

KINDS = list(LIKELIHOODS)
POPULATION = [0.6, 0.2, 0.15, 0.05]


def ratings(n: int = 200, slope: float = 1.2, cuts: Any = (-1.0, 0.2, 1.0), seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Ratings 1 to 4 by proportional odds."""
    rng = np.random.default_rng(1000 * SEED + seed)
    x = rng.normal(size=(n, 2))
    latent = slope * x[:, 0] - 0.5 * x[:, 1] + rng.logistic(size=n)
    return x, 1 + np.searchsorted(cuts, latent)


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("levels", [2, 5])
def test_the_likelihoods_and_their_derivatives_are_those_of_finite_differences_and_of_torch(kind: str, levels: int) -> None:
    rng = np.random.default_rng(SEED)
    likelihood, pi = likelihood_of(kind, levels), rng.dirichlet(np.full(levels, 2.0))
    start, own = likelihood.start(pi)
    for mix in (pi, np.insert(pi * (1 - 1e-13), 1, 1e-13)):  # also with a rare class between others
        member = likelihood_of(kind, len(mix))
        begin, its_own = member.start(mix)
        np.testing.assert_allclose(np.exp(member.table(begin[None], its_own)[0]), mix, rtol=1e-10)
    outputs, weights = 3 * rng.normal(size=(6, len(start))), rng.normal(size=(6, levels))
    np.testing.assert_allclose(special.logsumexp(likelihood.table(outputs, own), axis=1), 0, atol=1e-12)
    step = 1e-6
    by_outputs, by_own = likelihood.backward(outputs, own, weights)
    for place in np.ndindex(outputs.shape):
        change = step * np.eye(outputs.size)[np.ravel_multi_index(place, outputs.shape)].reshape(outputs.shape)
        ends = [np.vdot(weights, likelihood.table(outputs + sign * change, own)) for sign in (1, -1)]
        assert by_outputs[place] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-7)
    for number, change in enumerate(step * np.eye(len(own))):
        ends = [np.vdot(weights, likelihood.table(outputs, own + sign * change)) for sign in (1, -1)]
        assert by_own[number] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-6)
    torch = pytest.importorskip("torch")
    kinds = {"cumulative_logit": rl.CumulativeLogit, "stick_breaking": rl.StickBreaking, "onion_peeling": rl.OnionPeeling}
    reference: Any = kinds[kind](levels).double()
    np.testing.assert_allclose(reference.starting_outputs(rl.Prevalence(pi)).numpy(), start, atol=1e-12)
    table = reference.table(torch.from_numpy(outputs)).detach().numpy()
    np.testing.assert_allclose(likelihood.table(outputs, own), table, atol=1e-12)


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


def test_wrong_options_are_refused() -> None:
    x, y = ratings()
    with unchecked_types():
        assert_refused(lambda: OrdinalClassifier(likelihood="probit").fit(x, y), "likelihood")  # type: ignore[arg-type]
        assert_refused(lambda: OrdinalClassifier(penalty="firth").fit(x, y), "penalty")  # type: ignore[arg-type]
        assert_refused(lambda: OrdinalClassifier([0.5, 0.5]).fit(x, y), "4 entries")
