"""Unlabelled rows in the log posterior: by hand, by autograd, and every method of inference against a grid."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from logistic import Logistic, grid_moments
from members import assert_mean_is, assert_refused, each_likelihood, generator, unchecked_types
from small_targets import FEATURES, KINDS, NUM_DATA, REFERENCES, Small, posterior_by_hand, random_weights
from torch import Tensor, nn
from torch.autograd.functional import hessian as plain_hessian
from torch.func import grad
from torch.utils.data import DataLoader, TensorDataset

from rightloss import (
    AuxiliaryMarginal,
    BatchMarginal,
    Bernoulli,
    Categorical,
    ContinuousPrevalence,
    Gaussian,
    InformationGainLoss,
    LogitAdjustedLoss,
    LogLikelihoodLoss,
    PoolMarginal,
    Prevalence,
    PrevalenceWarning,
    RunningMarginal,
    WeightedLoss,
    information_gain_loss,
    logit_adjusted_loss,
)
from rightloss.inference import (
    LogPosterior,
    Posterior,
    ensemble,
    expectation_propagation,
    gaussian_prior,
    laplace,
    log_posterior,
    map_estimate,
    mc_dropout,
    nuts,
    sghmc,
    sgld,
    variational,
)
from rightloss.inference.distributions import Layout
from rightloss.inference.ep_factors import output_table
from rightloss.inference.ep_sites import OutputTable
from rightloss.inference.fisher import fisher_information, hessian, likelihood_terms
from rightloss.inference.minibatches import Minibatches, UnlabelledRows
from rightloss.inference.sgmcmc import ChainGradients, Underdamped, gradient_noise, heat
from rightloss.inference.weight_sets import evaluate_many, marginal_of_sets

ROWS = 9


def rows(kind: str = "hard", seed: int = 0, size: tuple[int, ...] = (2, 7)) -> Tensor:
    """Unlabelled x; dense maps of any size."""
    cells = size if kind.startswith("dense") else ()
    return torch.randn(ROWS, FEATURES, *cells, dtype=torch.float64, generator=generator(150 + seed))


def streams_by_hand(
    log_probs: np.ndarray, votes: np.ndarray, others: np.ndarray, prevalence: Prevalence, reference: Any, lam: float
) -> float:
    """The gain over the streams, per labelled example, with m over all rows."""
    pi, rho = np.asarray(prevalence.population), np.asarray(prevalence.sampling)
    r = rho if reference is None else np.asarray(reference)
    log_probs, votes = log_probs[votes.sum(1) > 0], votes[votes.sum(1) > 0]
    n, m = len(votes), len(others)
    t = np.exp(np.concatenate([log_probs, others])) * r / pi
    t = np.concatenate([t, np.full((n + m, 1), lam)], 1)
    t /= t.sum(1, keepdims=True)
    labels = np.zeros_like(t)
    labels[:n, :-1], labels[n:, -1] = votes, 1
    counts = np.concatenate([np.ones(n), np.full(m, lam * n / m)])
    mean = (counts * (labels @ np.append(r / rho, 1))) @ t / counts.sum()
    # with evidence the declared ρ stands for the labels' own frequencies
    counted = np.append(rho, lam) - prevalence.evidence * np.append(r, lam) if prevalence.evidence else counts @ labels / n
    return float(counts @ np.sum(labels * np.log(t), 1) / n - counted @ np.log(mean))


def outputs_of(params: dict[str, Tensor], x: Tensor) -> Tensor:
    return x @ params["weight"].T + params["bias"]


class TestTarget:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("reference", ["sampling", "another"])
    @pytest.mark.parametrize("weight", [None, 0.4])
    def test_is_the_gain_over_the_streams_and_the_prior(self, kind: str, reference: str, weight: float | None) -> None:
        small, others = Small(kind=kind), rows(kind, size=(3, 2))
        r = REFERENCES[reference](small.prevalence)
        options = {"marginal": BatchMarginal(), "unlabelled": others, "unlabelled_weight": weight, "reference": r}
        target, (x, y) = small.target(**options), small.batch()
        params = random_weights(target)
        cells = len(small.log_probs(params, others))
        lam = ROWS / NUM_DATA if weight is None else weight
        tables = small.log_probs(params, x), small.votes(y), small.log_probs(params, others)
        expected = posterior_by_hand(streams_by_hand(*tables, small.prevalence, r, lam), params)
        assert float(target(params, (x, y))[0]) == pytest.approx(expected, rel=1e-12)
        assert cells == (ROWS * 6 if kind.startswith("dense") else ROWS)

    @each_likelihood
    def test_is_minus_the_loss_with_unlabelled_rows_for_every_likelihood(self, make: Any, k: int) -> None:
        small, others = Small(k, make), rows()
        (x, y), lam = small.batch(), ROWS / NUM_DATA
        for loss, twin in ((None, information_gain_loss), (LogitAdjustedLoss, logit_adjusted_loss)):
            target = small.target(unlabelled=others, loss=loss)
            params = random_weights(target)

            def value(target: LogPosterior = target, params: Any = params, twin: Any = twin) -> Tensor:
                outputs = [target.model(each) for each in (x, others)]
                options = {"unlabelled": outputs[1], "unlabelled_weight": lam, "unlabelled_evidence": 0.0}
                loss: Tensor = twin(outputs[0], y, small.prevalence, target.likelihood, **options)
                return NUM_DATA * -loss + target.log_prior(params)

            torch.testing.assert_close(NUM_DATA * target(params, (x, y))[0], target.at(params, value), rtol=1e-12, atol=1e-10)

    @pytest.mark.long
    @pytest.mark.parametrize("evidence", [0.0, 0.3, 1.0])
    @pytest.mark.parametrize("kind", ["hard", "soft"])
    def test_gradients_are_numerical_ones(self, evidence: float, kind: str) -> None:
        small, layout = Small(kind=kind, evidence=evidence), Layout.of(Small().target().parameters())
        target, batch = small.target(marginal=BatchMarginal(), unlabelled=rows()), small.batch()
        vector = layout.flatten(random_weights(target)).requires_grad_()
        assert torch.autograd.gradcheck(lambda at: target(layout.unflatten(at), batch)[0], vector)

    @pytest.mark.long
    def test_torch_func_gives_autograds_gradient(self) -> None:
        small = Small()
        target, batch = small.target(unlabelled=rows()), small.batch()
        params = random_weights(target)
        slopes, aux = grad(lambda at: target(at, batch), has_aux=True)(params)
        target.follow(params, aux)
        leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
        other = small.target(unlabelled=rows())
        expected = torch.autograd.grad(other(leaves, batch)[0], list(leaves.values()))
        torch.testing.assert_close(list(slopes.values()), list(expected))
        assert aux["log_m"].shape == (small.k + 1,)

    @pytest.mark.parametrize("loss", [None, LogitAdjustedLoss])
    def test_no_rows_that_count_leave_every_bit_as_it_was(self, loss: Any) -> None:
        small = Small()
        batch, params = small.batch(), random_weights(small.target())
        plain = small.target(loss=loss)(params, batch)[0]
        for options in ({"unlabelled": None}, {"unlabelled": rows()[:0]}, {"unlabelled": rows(), "unlabelled_weight": 0.0}):
            target = small.target(loss=loss, **options)
            assert target.unlabelled is None
            assert torch.equal(target(params, batch)[0], plain)

    def test_some_of_the_rows_stand_for_all(self) -> None:
        """Without a marginal the likelihood is a sum over rows, so the mean over parts of one size is that of all."""
        small, others = Small(), rows()
        target, (x, y) = small.target(unlabelled=others, loss=LogitAdjustedLoss), small.batch()
        params = random_weights(target)
        parts = torch.stack([target(params, (x, y, some))[0] for some in others.split(3)])
        torch.testing.assert_close(parts.mean(), target(params, (x, y))[0])
        assert float(parts.std()) > 0.01

    def test_where_r_is_the_population_the_rows_are_the_pool(self) -> None:
        small, others = Small(), rows()
        pi, batch = small.prevalence.population, small.batch()
        one, two = small.target(reference=pi, pool=others), small.target(reference=pi, unlabelled=others)
        params = random_weights(one)
        assert torch.equal(one(params, batch)[0], two(params, batch)[0])
        loss = information_gain_loss(
            outputs_of(params, batch[0]), batch[1], small.prevalence, reference=pi, unlabelled=outputs_of(params, others)
        )
        torch.testing.assert_close(two(params, batch)[0] - two.log_prior(params) / NUM_DATA, -loss)

    def test_an_uncertain_prevalence_counts_with_its_mean_and_a_warning(self) -> None:
        small = Small()
        uncertain = Prevalence.dirichlet([6.0, 3.0, 1.0], sampling=small.prevalence.sampling)
        options: Any = {"marginal": BatchMarginal(), "unlabelled": rows(), "num_data": NUM_DATA, "prior": gaussian_prior(2.0)}
        with pytest.warns(PrevalenceWarning, match="uses them at its mean"):
            one = log_posterior(small.model(), uncertain, **options)
        two = log_posterior(small.model(), Prevalence(uncertain.population, uncertain.sampling), **options)
        params, batch = random_weights(one), small.batch()
        assert torch.equal(one(params, batch)[0], two(params, batch)[0])


class TestManyWeights:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("reference", ["sampling", "another"])
    @pytest.mark.parametrize("own", [True, False])
    def test_are_evaluated_as_one_by_one(self, kind: str, reference: str, own: bool) -> None:
        small = Small(kind=kind)
        r = REFERENCES[reference](small.prevalence)
        for options in ({"marginal": BatchMarginal(), "reference": r}, {"loss": LogitAdjustedLoss}):
            target = small.target(unlabelled=rows(kind), **options)
            params, pairs = random_weights(target, members=3), [small.batch(member) for member in range(3)]
            each = [(x, y, rows(kind, 5 + member)) if own else (x, y) for member, (x, y) in enumerate(pairs)]
            batch: Any = tuple(torch.stack(part) for part in zip(*each, strict=True))
            values, estimate = evaluate_many(target, params, batch, marginal_of_sets(target))
            loop = [target({n: v[m] for n, v in params.items()}, each[m])[0] for m in range(3)]
            torch.testing.assert_close(values, torch.stack(loop))
            assert (estimate is None) == ("loss" in options)

    @pytest.mark.parametrize("shape", [(2, 7), (4, 1)])
    def test_maps_of_another_size_go_through_the_model_apart(self, shape: tuple[int, int]) -> None:
        small = Small(kind="dense")
        target, batch = small.target(marginal=BatchMarginal(), unlabelled=rows("dense", size=shape)), small.batch()
        params = random_weights(target, members=2)
        values, _ = evaluate_many(target, params, batch, marginal_of_sets(target), shared=True)
        loop = [target({n: v[m] for n, v in params.items()}, batch)[0] for m in range(2)]
        torch.testing.assert_close(values, torch.stack(loop))


CURVED: dict[str, dict[str, Any]] = {
    "default": {"evidence": 1.0},
    "evidence": {"evidence": 0.4},
    "as published but for r": {"evidence": 0.0},
    "another r": {"evidence": 0.4, "reference": [0.2, 0.3, 0.5]},
    "soft": {"evidence": 0.4, "kind": "soft"},
    "dense": {"evidence": 0.4, "kind": "dense"},
    "adjusted": {"loss": LogitAdjustedLoss},
    "given weight": {"evidence": 0.4, "unlabelled_weight": 3.0},
}
each_curved = pytest.mark.parametrize("options", CURVED.values(), ids=CURVED)


def curved(options: dict[str, Any]) -> tuple[LogPosterior, tuple[Tensor, Tensor], Layout, Tensor]:
    """Target, data, layout and weights."""
    options = dict(options)
    small = Small(kind=options.pop("kind", "hard"), evidence=options.pop("evidence", 0.3))
    options = options if "loss" in options else {"marginal": BatchMarginal(), **options}
    target = small.target(unlabelled=rows(small.kind), **options)
    layout = Layout.of(target.parameters())
    return target, small.batch(), layout, layout.flatten(random_weights(target))


class TestCurvature:
    @each_curved
    def test_the_hessian_is_autograds(self, options: dict[str, Any]) -> None:
        target, data, layout, vector = curved(options)
        terms = likelihood_terms(target, layout.unflatten, vector, data)

        def value(at: Tensor) -> Tensor:
            params = layout.unflatten(at)
            return -NUM_DATA * target(params, data)[0] + target.log_prior(params)

        found = hessian(terms, diagonal=False, block=4)
        torch.testing.assert_close(found.matrix, plain_hessian(value, vector))
        leaf = vector.clone().requires_grad_()
        torch.testing.assert_close(found.gradient, torch.autograd.grad(value(leaf), leaf)[0])
        assert terms.log_likelihood == pytest.approx(-float(value(vector)), rel=1e-10)

    @each_curved
    def test_the_fisher_information_is_the_hessian_that_the_model_expects(self, options: dict[str, Any]) -> None:
        """Take the information of x given its stream, and for the rival that of the stream given x."""
        target, data, layout, vector = curved(options)
        terms = likelihood_terms(target, layout.unflatten, vector, data)
        own = torch.cat([part.own for part in terms.parts])
        x = [part.x for part in terms.parts]
        held = torch.maximum(own.sum(0), terms.counts)  # rows of each stream, or as many as its declared mix has

        def expected(at: Tensor) -> Tensor:
            t = torch.cat([terms.table(at, each) for each in x])
            if not target.gains:
                return -(own.sum(1, keepdim=True) * t.detach().exp() * t).sum()
            setting = target.terms(t)
            votes = own / own.sum(1, keepdim=True).clamp_min(1e-300)
            weights = own.sum(1) * (votes @ (setting.reference / setting.sampling))
            log_given = torch.log_softmax(t + weights.log()[:, None], 0)
            return -(held * log_given.detach().exp() * torch.where(log_given.isfinite(), log_given, 0.0)).sum()

        found = fisher_information(terms, diagonal=False).matrix
        if target.gains:  # what the evidence takes away from these g_k g_kᵀ comes back
            slopes = fisher_information(terms, diagonal=False).marginal
            assert slopes is not None
            found = found - slopes.T @ ((held - terms.counts)[:, None] * slopes)
        torch.testing.assert_close(found, plain_hessian(expected, vector))
        assert float(torch.linalg.eigvalsh(fisher_information(terms, diagonal=False).matrix).min()) > -1e-8

    def test_the_fisher_information_is_the_mean_square_of_simulated_gradients(self) -> None:
        """Streams drawn from the model, row by row: E[∇ log t ∇ log tᵀ] by Monte Carlo, for logit adjustment."""
        target, data, layout, vector = curved({"loss": LogitAdjustedLoss, "unlabelled_weight": ROWS / 28})
        terms = likelihood_terms(target, layout.unflatten, vector, data)
        tables = torch.cat([terms.table(vector, part.x) for part in terms.parts])
        counts = torch.cat([part.own.sum(1) for part in terms.parts])
        jacobian = torch.cat([torch.func.jacrev(terms.table)(vector, part.x) for part in terms.parts])
        streams = torch.multinomial(tables.exp(), 4000, replacement=True, generator=generator(7))
        drawn = jacobian[torch.arange(len(tables))[:, None], streams]
        squares = torch.einsum("n,nsd,nse->sde", counts, drawn, drawn)
        assert_mean_is(squares, fisher_information(terms, diagonal=False).matrix)


@pytest.mark.long
@each_likelihood
def test_derivatives_of_a_row_in_expectation_propagation_are_autograds(make: Any, k: int) -> None:
    likelihood = make().double()
    sampled = torch.ones(k, dtype=torch.bool)
    sampled[0] = k > 2
    offset = torch.randn(int(sampled.sum()) + 1, dtype=torch.float64, generator=generator(3))
    table = output_table(likelihood, offset, sampled)
    z = torch.randn(3, likelihood.num_outputs or k, dtype=torch.float64, generator=generator(4))
    log_p, slopes, bends = table.derivatives(z)
    for row in range(3):
        one = partial(_row, table)
        torch.testing.assert_close(log_p[row], one(z[row]).detach())
        torch.testing.assert_close(slopes[row], torch.autograd.functional.jacobian(one, z[row]))
        for column in range(len(offset)):
            torch.testing.assert_close(bends[row, column], plain_hessian(partial(_row, table, column=column), z[row]))


def _row(table: OutputTable, z: Tensor, column: int | None = None) -> Tensor:
    log_p = table.log_probs(z[None])[0]
    return log_p if column is None else log_p[column]


PROBLEM = Logistic(1, n=60)
POOL = torch.randn(240, 1, dtype=torch.float64, generator=generator(11))
assert len(PROBLEM.data[0]) == 60  # drawn now: inside vmap nothing can be
PU = Prevalence.positive_unlabelled(PROBLEM.population)
POSITIVES = (PROBLEM.data[0][30:], PROBLEM.data[1][30:])


def logistic_target(
    prevalence: Prevalence = PROBLEM.prevalence, rows: Tensor | None = POOL, start: Tensor | None = None, **options: Any
) -> LogPosterior:
    """`start`: slope and intercept that the model has, to save steps."""
    model = PROBLEM.model()
    prior = gaussian_prior(1.0, {"bias": model.bias.detach().clone()})
    if start is not None:
        model.load_state_dict({"weight": start[:1, None], "bias": start[1:]})
    return log_posterior(model, prevalence, Bernoulli(), prior=prior, num_data=60, unlabelled=rows, **options)


TARGETS: dict[str, Callable[[], LogPosterior]] = {
    "default": logistic_target,
    "evidence": lambda: logistic_target(PROBLEM.prevalence.with_evidence(0.3), marginal=BatchMarginal()),
    "another r": lambda: logistic_target(reference=[0.7, 0.3], marginal=BatchMarginal()),
    "adjusted": lambda: logistic_target(loss=LogitAdjustedLoss),
    "r = π": lambda: logistic_target(reference=PROBLEM.prevalence.population),
    "weighed": lambda: logistic_target(unlabelled_weight=1.0),
}


@cache
def exact(name: str) -> tuple[Tensor, Tensor]:
    """Mean and standard deviations by the grid."""
    target = TARGETS[name]()
    target = target if target.marginal is None else target.with_marginal(BatchMarginal())
    mean, covariance = grid_moments(PROBLEM, target, 5.0, 101)
    return mean, covariance.diagonal().sqrt()


def assert_near(posterior: Posterior, moments: tuple[Tensor, Tensor], means: float, deviations: float) -> None:
    """Means within so many standard deviations, these within a share."""
    mean, sd = moments
    found = posterior.distribution
    assert float(((found.mean - mean) / sd).abs().max()) < means
    assert float((found.covariance().diagonal().sqrt() / sd).log().abs().max()) < deviations


def assert_draws_are_near(posterior: Posterior, moments: tuple[Tensor, Tensor], method: float = 0.0) -> None:
    """Within 4 standard errors of what the draws are worth, and the `method`'s own error."""
    worth = posterior.record["effective_sample_size"]
    assert worth > 30
    assert_near(posterior, moments, method + 4 / worth**0.5, method + 4 / (2 * worth) ** 0.5)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Run as for users, in half the time."""
    with unchecked_types():
        yield


@pytest.mark.usefixtures("unchecked")
class TestMethods:
    @pytest.mark.long
    @pytest.mark.parametrize("name", TARGETS)
    def test_expectation_propagation_has_the_grids_moments(self, name: str) -> None:
        assert_near(expectation_propagation(TARGETS[name](), PROBLEM.data), exact(name), 0.03, 0.03)

    @pytest.mark.long
    @pytest.mark.parametrize("name", TARGETS)
    @pytest.mark.parametrize("curvature", ["hessian", "fisher"])
    def test_laplace_is_near_the_grids_moments(self, name: str, curvature: Any) -> None:
        found = laplace(TARGETS[name](), PROBLEM.data, curvature=curvature, steps=60, lr=0.05)
        assert_near(found, exact(name), 0.3, 0.15)
        assert found.record["decrement"] < 1e-6

    @pytest.mark.long
    @pytest.mark.parametrize("name", ["default", "evidence"])
    def test_nuts_has_the_grids_moments(self, name: str) -> None:
        target = TARGETS[name]()
        start = laplace(target, PROBLEM.data, steps=60, lr=0.05)
        found = nuts(target, PROBLEM.data, draws=300, warmup=60, chains=1, start=start)
        assert_draws_are_near(found, exact(name))
        assert found.record["divergences"] == 0

    @pytest.mark.long
    @pytest.mark.parametrize("name", ["default", "evidence"])
    @pytest.mark.parametrize("batch_size", [None, 30])
    def test_variational_inference_has_the_grids_moments(self, name: str, batch_size: int | None) -> None:
        kappa = 1.0 if name == "default" else 0.3
        near = exact(name)[0] + 0.1
        target = logistic_target(PROBLEM.prevalence.with_evidence(kappa), start=near, marginal=RunningMarginal())
        found = variational(target, PROBLEM.data, family="full-rank", steps=350, batch_size=batch_size, lr=0.02, initial_sd=0.2)
        assert_near(found, exact(name), 0.25, 0.15)
        assert found.record["marginal"] == ("BatchMarginal" if batch_size is None else "AuxiliaryMarginal")

    @pytest.mark.long
    @pytest.mark.filterwarnings("ignore:Chains disagree")
    @pytest.mark.parametrize("sampler", [sghmc, sgld])
    def test_chains_have_the_grids_moments(self, sampler: Callable[..., Posterior]) -> None:
        target, steps = logistic_target(), 600 if sampler is sghmc else 1000
        start = expectation_propagation(target, PROBLEM.data)
        found = sampler(target, PROBLEM.data, steps=steps, batch_size=None, chains=8, thin=steps // 150, start=start)
        assert_draws_are_near(found, exact("default"), 0.05)

    @pytest.mark.long
    def test_all_members_of_an_ensemble_and_map_find_the_mode(self) -> None:
        target = logistic_target()
        mode = map_estimate(target, PROBLEM.data, steps=60, lr=0.05, batch_size=None)
        members = ensemble(target, PROBLEM.data, members=3, steps=300, lr=0.05, batch_size=None)
        one = mode.distribution.mean
        layout = Layout.of(target.parameters())
        slopes = grad(lambda at: target.with_marginal(BatchMarginal())(layout.unflatten(at), PROBLEM.data)[0])(one)
        torch.testing.assert_close(slopes, torch.zeros_like(slopes), atol=1e-7, rtol=0)
        torch.testing.assert_close(members.distribution.mean, one, atol=1e-2, rtol=0)
        assert float(members.distribution.covariance().abs().max()) < 1e-4

    @pytest.mark.long
    def test_more_unlabelled_rows_make_the_posterior_narrower(self) -> None:
        some = [None, POOL[:60], POOL]
        found = [expectation_propagation(logistic_target(rows=each), PROBLEM.data) for each in some]
        widths = [each.standard_deviation["weight"].item() for each in found]
        assert widths[2] < 0.97 * widths[1] < 0.97**2 * widths[0]

    @pytest.mark.long
    @pytest.mark.filterwarnings("ignore")  # a few steps do not lead far
    def test_at_the_population_every_method_treats_them_as_the_pool(self) -> None:
        pi = PROBLEM.prevalence.population
        one, two = logistic_target(reference=pi), logistic_target(rows=None, reference=pi, pool=POOL)
        for method in (
            partial(map_estimate, steps=20, batch_size=20),
            partial(laplace, steps=20, mode="search"),
            partial(variational, steps=20),
            partial(sghmc, steps=40, chains=2, start=one.parameters()),
            expectation_propagation,
        ):
            both = [method(each, PROBLEM.data).distribution.mean for each in (one, two)]
            assert torch.equal(*both)

    @pytest.mark.long
    @pytest.mark.filterwarnings("ignore:The Gaussian differs")
    @pytest.mark.parametrize("estimator", ["local", "shared"])
    def test_both_estimators_of_variational_inference_agree(self, estimator: Any) -> None:
        for name in ("adjusted", "default"):
            mean, sd = exact(name)
            loss = None if name == "default" else LogitAdjustedLoss
            target = logistic_target(start=mean + 0.1, loss=loss)
            found = variational(target, PROBLEM.data, estimator=estimator, steps=200, batch_size=None, lr=0.02, initial_sd=0.1)
            assert float(((found.distribution.mean - mean) / sd).abs().max()) < 0.25


class TestPositiveUnlabelled:
    @pytest.mark.long
    @pytest.mark.filterwarnings("ignore:Chains disagree")
    @pytest.mark.usefixtures("unchecked")
    def test_every_method_has_the_grids_moments(self) -> None:
        """Give 30 labelled examples, all of class 1; N still counts these alone."""
        target = log_posterior(
            PROBLEM.model(),
            PU,
            Bernoulli(),
            prior=gaussian_prior(1.0, PROBLEM.model().state_dict()),
            num_data=30,
            unlabelled=POOL,
        )
        propagated = expectation_propagation(target, POSITIVES)
        layout = propagated.layout
        axis = torch.linspace(-5, 5, 101, dtype=torch.float64)
        w = propagated.distribution.mean + 0.25 * torch.cartesian_prod(axis, axis)
        exact = target.with_marginal(BatchMarginal())
        values = torch.func.vmap(lambda at: 30 * exact(layout.unflatten(at), POSITIVES)[0])(w).detach()
        mass = torch.softmax(values, 0)
        mean = mass @ w
        moments = mean, (mass @ (w - mean).square()).sqrt()
        assert_near(propagated, moments, 0.03, 0.03)
        assert_near(laplace(target, POSITIVES, steps=60, lr=0.05), moments, 0.3, 0.1)
        settled = replace(target, model=propagated.model)
        options: dict[str, Any] = {"steps": 300, "lr": 0.02, "initial_sd": 0.2, "batch_size": None}
        assert_near(variational(settled, POSITIVES, family="full-rank", **options), moments, 0.25, 0.15)
        assert_draws_are_near(sghmc(target, POSITIVES, steps=400, chains=8, start=propagated, thin=3), moments, 0.05)
        assert_draws_are_near(nuts(target, POSITIVES, draws=200, warmup=60, chains=1, start=propagated), moments)

    def test_its_posterior_is_saved_and_read_again(self, tmp_path: Path) -> None:
        target = logistic_target(PU)
        posterior = map_estimate(target, POSITIVES, steps=5)
        posterior.save(tmp_path / "posterior.safetensors")
        again = Posterior.load(tmp_path / "posterior.safetensors", PROBLEM.model(), Bernoulli())
        assert again.prevalence == PU
        assert torch.equal(again.predict(POOL[:3]).log_probs, posterior.predict(POOL[:3]).log_probs)

    def test_labels_of_the_other_class_and_missing_rows_are_refused(self) -> None:
        x, y = PROBLEM.data
        mixed = (torch.cat([POSITIVES[0], x[:1]]), torch.cat([POSITIVES[1], y[:1]]))
        assert_refused(lambda: map_estimate(logistic_target(PU), mixed), "prevalence.sampling")
        assert_refused(lambda: logistic_target(PU, rows=None), "never labelled")
        assert_refused(lambda: logistic_target(PU, unlabelled_weight=0.0), "never labelled")
        pi = PU.population
        one, two = logistic_target(PU, reference=pi), logistic_target(PU, rows=None, pool=POOL, reference=pi)
        params = random_weights(one)
        assert torch.equal(one(params, POSITIVES)[0], two(params, POSITIVES)[0])


class TestMinibatches:
    def test_go_through_all_rows_in_an_order_of_their_own(self) -> None:
        index = torch.arange(12.0)[:, None]
        batches = Minibatches(
            (torch.zeros(7, 1), torch.zeros(7).long()), 3, generator(1), unlabelled=UnlabelledRows(index, batch_size=4)
        )
        seen = torch.cat([batches.next()[-1] for _ in range(3)])
        assert sorted(seen.flatten().tolist()) == list(range(12)) != seen.flatten().tolist()
        assert batches.next_each(5)[-1].shape == (5, 4, 1)
        assert batches.epoch == (7 / 3, 3.0)
        assert not batches.at_once

    def test_with_all_data_in_a_step_all_rows_are_in_it(self) -> None:
        few = UnlabelledRows(POOL, batch_size=4)
        assert len(Minibatches(PROBLEM.data, None, unlabelled=few).next()) == 2
        assert len(Minibatches(PROBLEM.data, 20, unlabelled=UnlabelledRows(POOL)).next()) == 2
        assert [len(each) for each in Minibatches(PROBLEM.data, 1000, unlabelled=few).next()] == [60, 60, 4]
        loader = DataLoader(TensorDataset(*PROBLEM.data), batch_size=15)
        assert [len(each) for each in Minibatches(loader, 1, unlabelled=few).next()] == [15, 15, 4]

    @pytest.mark.long
    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.filterwarnings("ignore:Chains disagree")  # by a little, in few steps
    @pytest.mark.parametrize("batch_size", [25, 1000])
    def test_lead_every_method_to_the_same_posterior(self, batch_size: int) -> None:
        mean, sd = exact("default")
        target = logistic_target(start=mean + 0.1, unlabelled_batch_size=60)
        mode = map_estimate(target, PROBLEM.data, steps=60, lr=0.05, batch_size=None).distribution.mean
        options: dict[str, Any] = {"batch_size": batch_size}
        found = map_estimate(target, PROBLEM.data, steps=200, lr=0.02, **options).distribution.mean
        assert float(((found - mode) / sd).abs().max()) < 0.2
        members = ensemble(target, PROBLEM.data, members=2, steps=200, initial=lambda member: {}, **options).distribution.mean
        assert float(((members - mode) / sd).abs().max()) < 0.25
        shared: dict[str, Any] = {"lr": 0.02, "initial_sd": 0.2, **options}
        assert_near(variational(target, PROBLEM.data, family="full-rank", steps=300, **shared), (mean, sd), 0.25, 0.2)
        start = expectation_propagation(target, PROBLEM.data)
        assert_near(start, (mean, sd), 0.03, 0.03)
        chains = sghmc(target, PROBLEM.data, steps=300, chains=8, start=start, thin=2, **options)
        assert_draws_are_near(chains, (mean, sd), 0.1)

    @pytest.mark.long
    def test_runs_are_reproducible_and_leave_the_model_alone(self) -> None:
        target = logistic_target(unlabelled_batch_size=30)
        before = copy.deepcopy(target.model.state_dict())
        runs = [map_estimate(target, PROBLEM.data, steps=5, batch_size=20, seed=seed).distribution.mean for seed in (0, 0, 1)]
        assert torch.equal(runs[0], runs[1])
        assert not torch.equal(runs[0], runs[2])
        assert all(torch.equal(value, before[name]) for name, value in target.model.state_dict().items())

    @pytest.mark.long
    def test_their_noise_is_measured_apart_from_that_of_the_labelled(self) -> None:
        target = logistic_target(unlabelled_batch_size=60, loss=LogitAdjustedLoss)
        batches = Minibatches(PROBLEM.data, 20, generator(3), unlabelled=target.unlabelled)
        gradients = ChainGradients(target, batches, 64)
        weights = gradients.layout.flatten(target.parameters()).expand(64, -1)
        found = gradient_noise(gradients, weights, torch.ones(2, dtype=torch.float64), pairs=16)
        assert target.unlabelled is not None
        leaf = {name: value.requires_grad_() for name, value in target.parameters().items()}
        (x, y), each = PROBLEM.data, []
        for row in target.unlabelled.x.split(1):
            slopes = torch.autograd.grad(60 * target(leaf, (x, y, row))[0], list(leaf.values()))
            each.append(torch.cat([slope.flatten() for slope in slopes]))
        torch.testing.assert_close(found[1], torch.stack(each).var(0, correction=0) / 60, rtol=0.15, atol=0)
        assert float(found[0].min()) > 0
        answer = Underdamped(1.0).response(0.3)
        parts = heat(found[0], answer, 3.0) + heat(found[1], answer, 4.0)
        torch.testing.assert_close(heat(found, answer, (3.0, 4.0)), parts)


class Nets:
    """Models with parts that see more than one row, or draw masks."""

    @staticmethod
    def of(*parts: nn.Module) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(1, 8), *parts, nn.Tanh(), nn.Linear(8, 2)).double()


class TestNetworks:
    @pytest.mark.long
    def test_laplace_of_a_network_counts_them_in_every_structure(self) -> None:
        net = Nets.of()
        target = log_posterior(net, PROBLEM.prevalence, num_data=60, unlabelled=POOL)
        mode = map_estimate(target, PROBLEM.data, steps=100, lr=0.02, batch_size=None)
        plain = log_posterior(net, PROBLEM.prevalence, num_data=60)
        for covariance in ("full", "diagonal", "last-layer"):
            both = [laplace(each, PROBLEM.data, covariance=covariance, mode=mode) for each in (target, plain)]
            widths = [each.distribution.covariance().diagonal().log().mean() for each in both]
            assert float(widths[0]) < float(widths[1])
            assert both[0].record["repaired"] == 0
            assert bool(torch.isfinite(both[0].predict(POOL[:5]).log_probs).all())
        assert both[0].linearised is both[1].linearised

    def test_normalisation_by_minibatch_is_over_labelled_and_unlabelled_rows_together(self) -> None:
        net = Nets.of(nn.BatchNorm1d(8)).train()
        target = log_posterior(net, PROBLEM.prevalence, num_data=60, unlabelled=POOL)
        buffers = target.buffers()
        target({**target.parameters(), **buffers}, PROBLEM.data)
        hidden = net[0](torch.cat([PROBLEM.data[0], POOL]))  # type: ignore[index]
        torch.testing.assert_close(buffers["1.running_mean"], 0.1 * hidden.mean(0).detach())

    @pytest.mark.long
    @pytest.mark.parametrize("method", [map_estimate, ensemble, mc_dropout])
    def test_training_methods_take_networks_that_normalise_and_drop_out(self, method: Callable[..., Posterior]) -> None:
        net = Nets.of(nn.BatchNorm1d(8), nn.Dropout(0.1))
        target = log_posterior(net, PROBLEM.prevalence, num_data=60, unlabelled=POOL, unlabelled_batch_size=50)
        options = {"members": 2} if method is ensemble else {}
        found = method(target, PROBLEM.data, steps=60, batch_size=30, **options)
        trace = torch.tensor(found.record["log_posterior"]).reshape(60, -1).mean(1)
        assert float(trace[-10:].mean()) > float(trace[:10].mean())


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"loss": WeightedLoss}, "its likelihood cannot use them"),
            ({"loss": LogLikelihoodLoss}, "its likelihood cannot use them"),
            ({"unlabelled_weight": -1.0}, "unlabelled_weight"),
            ({"unlabelled_batch_size": 0}, "unlabelled_batch_size"),
            ({"unlabelled_batch_size": 2.5}, "unlabelled_batch_size"),
            ({"marginal": "auxiliary"}, "no estimate for the unlabelled"),
            ({"marginal": "pool"}, "no estimate for the unlabelled"),
            ({"reference": [0.95, 0.05], "marginal": BatchMarginal()}, "no `marginal`"),
            ({"reference": [0.95, 0.05], "unlabelled_batch_size": 5}, "no `unlabelled_batch_size`"),
        ],
    )
    def test_what_cannot_go_with_unlabelled_rows(self, options: dict[str, Any], words: str) -> None:
        model = PROBLEM.model()
        made = {"auxiliary": lambda: AuxiliaryMarginal(model), "pool": lambda: PoolMarginal(model, [POOL])}
        given = options.get("marginal")
        options = options | ({"marginal": made[given]()} if isinstance(given, str) else {})
        assert_refused(lambda: log_posterior(model, PROBLEM.prevalence, Bernoulli(), unlabelled=POOL, **options), words)

    def test_an_unknown_prevalence_with_the_way_to_a_known_one(self) -> None:
        unknown = Prevalence.unknown(2)
        assert_refused(lambda: log_posterior(nn.Linear(1, 2), unknown, unlabelled=POOL), "retarget.criterion.population")
        criterion = InformationGainLoss(unknown)
        criterion(torch.randn(6, 2), torch.arange(6) % 2, unlabelled=torch.randn(9, 2))
        known = unknown.retarget(criterion.population)
        assert log_posterior(nn.Linear(1, 2), known, unlabelled=POOL.float()).unlabelled is not None

    def test_regression_numbers_and_rows_in_a_batch_that_the_target_does_not_expect(self) -> None:
        density = ContinuousPrevalence(torch.distributions.Normal(0.0, 1.0))
        assert_refused(lambda: log_posterior(nn.Linear(1, 2), density, Gaussian(), unlabelled=POOL.float()), "in regression")
        assert_refused(lambda: log_posterior(nn.Linear(1, 2), PROBLEM.prevalence, unlabelled=3.0), "a row for each person")
        assert_refused(lambda: logistic_target(reference=[0.95, 0.05], pool=POOL), "one of `pool` and `unlabelled`")
        plain, (x, y) = logistic_target(rows=None), PROBLEM.data
        assert_refused(lambda: plain(plain.parameters(), (x, y, POOL)), "unlabelled=x_u")

    def test_arrays_become_what_the_model_takes(self) -> None:
        target = log_posterior(nn.Linear(1, 2), PROBLEM.prevalence, unlabelled=POOL.numpy())
        assert target.unlabelled is not None
        assert target.unlabelled.x.dtype == torch.float32
        assert target.likelihood is not None
        assert isinstance(target.likelihood, Categorical)
