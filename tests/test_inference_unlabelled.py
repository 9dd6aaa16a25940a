"""Unlabelled rows in the log posterior: by hand, by autograd, and methods of inference against a grid."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from logistic import Logistic, grid_moments
from members import assert_refused, each_kind, generator, unchecked_types
from small_targets import FEATURES, NUM_DATA, REFERENCES, Small, likelihood_terms, posterior_by_hand, random_weights
from torch import Tensor, nn
from torch.autograd.functional import hessian as plain_hessian
from torch.func import grad
from torch.utils.data import DataLoader, TensorDataset

import rightloss as rl
from rightloss import inference
from rightloss.inference.distributions import Layout
from rightloss.inference.fisher import fisher_information, hessian
from rightloss.inference.sgmcmc import ChainGradients, Underdamped, gradient_noise, heat
from rightloss.inference.weight_sets import evaluate_many, marginal_of_sets

ROWS = 9


def rows(kind: str = "hard", seed: int = 0, size: tuple[int, ...] = (2, 7)) -> Tensor:
    """Unlabelled x; dense maps of any size."""
    cells = size if kind.startswith("dense") else ()
    return torch.randn(ROWS, FEATURES, *cells, dtype=torch.float64, generator=generator(150 + seed))


def streams_by_hand(
    log_probs: np.ndarray, votes: np.ndarray, others: np.ndarray, prevalence: rl.Prevalence, reference: Any, lam: float
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


class TestTarget:
    @pytest.mark.parametrize(
        ("kind", "reference", "weight"),
        [("hard", "sampling", None), ("soft", "another", 0.4), ("dense", "another", None), ("dense soft", "sampling", 0.4)],
    )
    def test_is_the_gain_over_the_streams_and_the_prior(self, kind: str, reference: str, weight: float | None) -> None:
        small, others = Small(kind=kind), rows(kind, size=(3, 2))
        r = REFERENCES[reference](small.prevalence)
        options = {"marginal": rl.BatchMarginal(), "unlabelled": others, "unlabelled_weight": weight, "reference": r}
        target, (x, y) = small.target(**options), small.batch()
        params = random_weights(target)
        lam = ROWS / NUM_DATA if weight is None else weight
        tables = small.log_probs(params, x), small.votes(y), small.log_probs(params, others)
        expected = posterior_by_hand(streams_by_hand(*tables, small.prevalence, r, lam), params)
        assert float(target(params, (x, y))[0]) == pytest.approx(expected, rel=1e-12)

    @each_kind
    def test_is_minus_the_loss_with_unlabelled_rows_for_every_likelihood(self, make: Any, k: int) -> None:
        small, others = Small(k, make), rows()
        (x, y), lam = small.batch(), ROWS / NUM_DATA
        for loss, twin in ((None, rl.information_gain_loss), (rl.LogitAdjustedLoss, rl.logit_adjusted_loss)):
            target = small.target(unlabelled=others, loss=loss)
            params = random_weights(target)

            def value(target: inference.LogPosterior = target, params: Any = params, twin: Any = twin) -> Tensor:
                outputs = [target.model(each) for each in (x, others)]
                options = {"unlabelled": outputs[1], "unlabelled_weight": lam, "unlabelled_evidence": 0.0}
                loss: Tensor = twin(outputs[0], y, small.prevalence, target.likelihood, **options)
                return NUM_DATA * -loss + target.log_prior(params)

            torch.testing.assert_close(NUM_DATA * target(params, (x, y))[0], target.at(params, value), rtol=1e-12, atol=1e-10)

    @pytest.mark.long
    def test_gradients_are_numerical_ones_by_autograd_and_by_torch_func(self) -> None:
        small = Small(kind="soft")
        target, batch = small.target(marginal=rl.BatchMarginal(), unlabelled=rows()), small.batch()
        params, layout = random_weights(target), Layout.of(target.parameters())
        vector = layout.flatten(params).requires_grad_()
        assert torch.autograd.gradcheck(lambda at: target(layout.unflatten(at), batch)[0], vector)
        slopes, aux = grad(lambda at: target(at, batch), has_aux=True)(params)
        target.follow(params, aux)
        expected = torch.autograd.grad(target(layout.unflatten(vector), batch)[0], vector)[0]
        torch.testing.assert_close(layout.flatten(slopes), expected)
        assert aux["log_m"].shape == (small.k + 1,)

    @pytest.mark.parametrize("loss", [None, rl.LogitAdjustedLoss])
    def test_no_rows_that_count_leave_every_bit_as_it_was(self, loss: Any) -> None:
        small = Small()
        batch, params = small.batch(), random_weights(small.target())
        plain = small.target(loss=loss)(params, batch)[0]
        for options in ({"unlabelled": rows()[:0]}, {"unlabelled": rows(), "unlabelled_weight": 0.0}):
            target = small.target(loss=loss, **options)
            assert target.unlabelled is None
            assert torch.equal(target(params, batch)[0], plain)

    def test_some_of_the_rows_stand_for_all(self) -> None:
        """Without a marginal the likelihood is a sum over rows, so the mean over parts of one size is that of all."""
        small, others = Small(), rows()
        target, (x, y) = small.target(unlabelled=others, loss=rl.LogitAdjustedLoss), small.batch()
        params = random_weights(target)
        parts = torch.stack([target(params, (x, y, some))[0] for some in others.split(3)])
        torch.testing.assert_close(parts.mean(), target(params, (x, y))[0])
        assert float(parts.std()) > 0.01

    def test_where_r_is_the_population_the_rows_are_the_pool(self) -> None:
        small, others = Small(), rows()
        pi, (x, y) = small.prevalence.population, small.batch()
        one, two = small.target(reference=pi, pool=others), small.target(reference=pi, unlabelled=others)
        params = random_weights(one)
        assert torch.equal(one(params, (x, y))[0], two(params, (x, y))[0])
        outputs, of_others = (two.outputs(params, each) for each in (x, others))
        loss = rl.information_gain_loss(outputs, y, small.prevalence, reference=pi, unlabelled=of_others)
        torch.testing.assert_close(two(params, (x, y))[0] - two.log_prior(params) / NUM_DATA, -loss)

    def test_an_uncertain_prevalence_counts_with_its_mean_and_a_warning(self) -> None:
        small = Small()
        uncertain = rl.Prevalence.dirichlet([6.0, 3.0, 1.0], sampling=small.prevalence.sampling)
        options: Any = {
            "marginal": rl.BatchMarginal(),
            "unlabelled": rows(),
            "num_data": NUM_DATA,
            "prior": inference.gaussian_prior(2.0),
        }
        with pytest.warns(rl.PrevalenceWarning, match="uses them at its mean"):
            one = inference.log_posterior(small.model(), uncertain, **options)
        two = inference.log_posterior(small.model(), rl.Prevalence(uncertain.population, uncertain.sampling), **options)
        params, batch = random_weights(one), small.batch()
        assert torch.equal(one(params, batch)[0], two(params, batch)[0])

    @pytest.mark.parametrize(
        ("kind", "own", "size"),
        [("soft", True, ()), ("dense", False, (2, 7)), ("dense", True, (4, 1))],
    )
    def test_many_weights_are_evaluated_as_one_by_one(self, kind: str, own: bool, size: tuple[int, ...]) -> None:
        """Each with rows of its `own`, or with the same; maps of another size go through the model apart."""
        small = Small(kind=kind)
        r = REFERENCES["another"](small.prevalence)
        for options in ({"marginal": rl.BatchMarginal(), "reference": r}, {"loss": rl.LogitAdjustedLoss}):
            target = small.target(unlabelled=rows(kind, size=size), **options)
            params, pairs = random_weights(target, members=3), [small.batch(member) for member in range(3)]
            others = [rows(kind, 5 + member, size) for member in range(3)]
            each: Any = [(*pair, some) for pair, some in zip(pairs, others, strict=True)] if own else [pairs[0]] * 3
            batch: Any = tuple(torch.stack(part) for part in zip(*each, strict=True)) if own else each[0]
            values, estimate = evaluate_many(target, params, batch, marginal_of_sets(target), shared=not own)
            loop = [target({n: v[m] for n, v in params.items()}, each[m])[0] for m in range(3)]
            torch.testing.assert_close(values, torch.stack(loop))
            assert (estimate is None) == ("loss" in options)


CURVED: dict[str, dict[str, Any]] = {
    "evidence": {"evidence": 0.4, "unlabelled_weight": 3.0},
    "another r": {"evidence": 0.0, "reference": [0.2, 0.3, 0.5], "kind": "soft"},
    "dense": {"evidence": 0.4, "kind": "dense"},
    "adjusted": {"loss": rl.LogitAdjustedLoss},
}


@pytest.mark.parametrize("name", CURVED)
def test_the_hessian_is_autograds_and_the_fisher_information_what_the_model_expects_of_it(name: str) -> None:
    """Take the information of x given its stream, and for the rival that of the stream given x."""
    options = dict(CURVED[name])
    small = Small(kind=options.pop("kind", "hard"), evidence=options.pop("evidence", 0.3))
    options = options if "loss" in options else {"marginal": rl.BatchMarginal(), **options}
    target, data = small.target(unlabelled=rows(small.kind), **options), small.batch()
    layout = Layout.of(target.parameters())
    vector = layout.flatten(random_weights(target))
    terms = likelihood_terms(target, vector, data)

    def value(at: Tensor) -> Tensor:
        params = layout.unflatten(at)
        return -NUM_DATA * target(params, data)[0] + target.log_prior(params)

    found = hessian(terms, diagonal=False, block=4)
    torch.testing.assert_close(found.matrix, plain_hessian(value, vector))
    leaf = vector.clone().requires_grad_()
    torch.testing.assert_close(found.gradient, torch.autograd.grad(value(leaf), leaf)[0])
    assert terms.log_likelihood == pytest.approx(-float(value(vector)), rel=1e-10)

    own = torch.cat([part.own for part in terms.parts])
    held = torch.maximum(own.sum(0), terms.counts)  # rows of each stream, or as many as its declared mix has

    def expected(at: Tensor) -> Tensor:
        t = torch.cat([terms.table(at, part.x) for part in terms.parts])
        if not target.gains:
            return -(own.sum(1, keepdim=True) * t.detach().exp() * t).sum()
        setting = target.terms(t)
        votes = own / own.sum(1, keepdim=True).clamp_min(1e-300)
        weights = own.sum(1) * (votes @ (setting.reference / setting.sampling))
        log_given = torch.log_softmax(t + weights.log()[:, None], 0)
        return -(held * log_given.detach().exp() * torch.where(log_given.isfinite(), log_given, 0.0)).sum()

    fisher = fisher_information(terms, diagonal=False)
    matrix, slopes = fisher.matrix, fisher.marginal
    assert slopes is not None
    if target.gains:  # what the evidence takes away from these g_k g_kᵀ comes back
        matrix = matrix - slopes.T @ ((held - terms.counts)[:, None] * slopes)
    torch.testing.assert_close(matrix, plain_hessian(expected, vector))
    assert float(torch.linalg.eigvalsh(fisher.matrix).min()) > -1e-8


PROBLEM = Logistic(1, n=60)
POOL = torch.randn(240, 1, dtype=torch.float64, generator=generator(11))
assert len(PROBLEM.data[0]) == 60  # drawn now: inside vmap nothing can be
PU = rl.Prevalence.positive_unlabelled(PROBLEM.population)
POSITIVES = (PROBLEM.data[0][30:], PROBLEM.data[1][30:])


def logistic_target(
    prevalence: rl.Prevalence = PROBLEM.prevalence, rows: Tensor | None = POOL, start: Tensor | None = None, **options: Any
) -> inference.LogPosterior:
    """`start`: slope and intercept that the model has, to save steps."""
    model = PROBLEM.model()
    prior = inference.gaussian_prior(1.0, {"bias": model.bias.detach().clone()})
    if start is not None:
        model.load_state_dict({"weight": start[:1, None], "bias": start[1:]})
    options = {"num_data": 60, **options}
    return inference.log_posterior(model, prevalence, rl.Bernoulli(), prior=prior, unlabelled=rows, **options)


TARGETS: dict[str, Callable[..., inference.LogPosterior]] = {
    "default": logistic_target,
    "evidence": partial(logistic_target, PROBLEM.prevalence.with_evidence(0.3)),
    "another r": partial(logistic_target, reference=[0.7, 0.3], marginal=rl.BatchMarginal()),
    "adjusted": partial(logistic_target, loss=rl.LogitAdjustedLoss),
    "r = π": partial(logistic_target, reference=PROBLEM.prevalence.population),
    "positives": partial(logistic_target, PU, num_data=30),  # 30 labelled examples, all of class 1; N counts these alone
}


@cache
def exact(name: str) -> tuple[Tensor, Tensor]:
    """Mean and standard deviations by the grid."""
    target = TARGETS[name]()
    target = target if target.marginal is None else target.with_marginal(rl.BatchMarginal())
    mean, covariance = grid_moments(PROBLEM, target, 5.0, 101)
    return mean, covariance.diagonal().sqrt()


def assert_near(posterior: inference.Posterior, moments: tuple[Tensor, Tensor], means: float, deviations: float) -> None:
    """Means within so many standard deviations, these within a share."""
    mean, sd = moments
    found = posterior.distribution
    assert float(((found.mean - mean) / sd).abs().max()) < means
    assert float((found.covariance().diagonal().sqrt() / sd).log().abs().max()) < deviations


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Chains disagree", "ignore:The Gaussian differs")  # by a little, in few steps
class TestMethods:
    @pytest.mark.parametrize("name", ["default", "another r", "adjusted"])
    @unchecked_types()
    def test_expectation_propagation_has_the_grids_moments(self, name: str) -> None:
        assert_near(inference.expectation_propagation(TARGETS[name](), PROBLEM.data), exact(name), 0.03, 0.03)

    @pytest.mark.parametrize(("name", "curvature"), [("evidence", "hessian"), ("default", "fisher"), ("r = π", "hessian")])
    @unchecked_types()
    def test_laplace_is_near_the_grids_moments(self, name: str, curvature: Any) -> None:
        found = inference.laplace(TARGETS[name](), PROBLEM.data, curvature=curvature, steps=60, lr=0.05)
        assert_near(found, exact(name), 0.3, 0.15)
        assert found.record["decrement"] < 1e-6

    @unchecked_types()
    def test_variational_inference_by_minibatches_has_the_grids_moments(self) -> None:
        target = TARGETS["evidence"](start=exact("evidence")[0] + 0.1, marginal=rl.RunningMarginal())
        options: dict[str, Any] = {"family": "full-rank", "steps": 350, "batch_size": 30, "lr": 0.02, "initial_sd": 0.2}
        found = inference.variational(target, PROBLEM.data, **options)
        assert_near(found, exact("evidence"), 0.25, 0.15)
        assert found.record["marginal"] == "AuxiliaryMarginal"

    @pytest.mark.parametrize(("name", "batch_size"), [("default", None), ("adjusted", 30)])
    @unchecked_types()
    def test_local_noise_of_variational_inference_finds_the_mean(self, name: str, batch_size: int | None) -> None:
        mean, sd = exact(name)
        target = TARGETS[name](start=mean + 0.1, unlabelled_batch_size=60)
        options: dict[str, Any] = {"steps": 200, "batch_size": batch_size, "lr": 0.02, "initial_sd": 0.1}
        found = inference.variational(target, PROBLEM.data, estimator="local", **options)
        assert float(((found.distribution.mean - mean) / sd).abs().max()) < 0.25

    @unchecked_types()
    def test_all_members_of_an_ensemble_and_map_find_the_mode(self) -> None:
        target = logistic_target()
        mode = inference.map_estimate(target, PROBLEM.data, steps=60, lr=0.05, batch_size=None)
        members = inference.ensemble(target, PROBLEM.data, members=3, steps=300, lr=0.05, batch_size=None)
        one, over_all = mode.distribution.mean, target.with_marginal(rl.BatchMarginal())
        slopes = grad(lambda at: over_all(mode.layout.unflatten(at), PROBLEM.data)[0])(one)
        torch.testing.assert_close(slopes, torch.zeros_like(slopes), atol=1e-7, rtol=0)
        torch.testing.assert_close(members.distribution.mean, one, atol=1e-2, rtol=0)
        assert float(members.distribution.covariance().abs().max()) < 1e-4

    @unchecked_types()
    def test_of_positives_alone_the_moments_are_the_grids(self) -> None:
        target = TARGETS["positives"]()
        propagated = inference.expectation_propagation(target, POSITIVES)
        layout, over_all = propagated.layout, target.with_marginal(rl.BatchMarginal())
        axis = torch.linspace(-5, 5, 101, dtype=torch.float64)
        w = propagated.distribution.mean + 0.25 * torch.cartesian_prod(axis, axis)
        values = torch.func.vmap(lambda at: 30 * over_all(layout.unflatten(at), POSITIVES)[0])(w).detach()
        mass = torch.softmax(values, 0)
        mean = mass @ w
        moments = mean, (mass @ (w - mean).square()).sqrt()
        assert_near(propagated, moments, 0.03, 0.03)
        assert_near(inference.laplace(target, POSITIVES, steps=60, lr=0.05), moments, 0.3, 0.1)

    @unchecked_types()
    def test_minibatches_of_both_lead_every_method_to_the_same_posterior(self) -> None:
        mean, sd = exact("default")
        target = logistic_target(start=mean + 0.1, unlabelled_batch_size=60)
        mode = inference.map_estimate(target, PROBLEM.data, steps=60, lr=0.05, batch_size=None).distribution.mean
        search: dict[str, Any] = {"steps": 200, "lr": 0.02, "batch_size": 25}
        for found in (inference.map_estimate, partial(inference.ensemble, members=2)):
            assert float(((found(target, PROBLEM.data, **search).distribution.mean - mode) / sd).abs().max()) < 0.2
        options: dict[str, Any] = {"family": "full-rank", "steps": 300, "lr": 0.02, "initial_sd": 0.2, "batch_size": 25}
        assert_near(inference.variational(target, PROBLEM.data, **options), (mean, sd), 0.25, 0.2)
        start = inference.expectation_propagation(target, PROBLEM.data)
        chains = inference.sghmc(target, PROBLEM.data, steps=300, chains=8, start=start, thin=2, batch_size=25)
        worth = chains.record["effective_sample_size"]
        assert worth > 30
        assert_near(chains, (mean, sd), 0.1 + 4 / worth**0.5, 0.1 + 4 / (2 * worth) ** 0.5)

    def test_their_noise_is_measured_apart_from_that_of_the_labelled(self) -> None:
        target = logistic_target(unlabelled_batch_size=130, unlabelled_weight=12.0, loss=rl.LogitAdjustedLoss)
        gradients = ChainGradients(target, target.minibatches(PROBLEM.data, 20, generator(3)), 64)
        weights = gradients.layout.flatten(target.parameters()).add(1.5).expand(64, -1)
        found = gradient_noise(gradients, weights, torch.ones(2, dtype=torch.float64), pairs=32)
        slopes = grad(lambda at, *batch: 60 * target(gradients.layout.unflatten(at), batch)[0])
        x, y = PROBLEM.data
        of_labelled = torch.stack([slopes(weights[0], *row, POOL) for row in zip(x.split(1), y.split(1), strict=True)])
        of_others = torch.stack([slopes(weights[0], x, y, row) for row in POOL.split(1)])
        expected = torch.stack([of_labelled.var(0, correction=0) / 20, of_others.var(0, correction=0) / 130])
        torch.testing.assert_close(found, expected, rtol=0.15, atol=0)
        answer = Underdamped(1.0).response(0.3)
        parts = heat(found[:1], answer, [3.0]) + heat(found[1:], answer, [4.0])
        torch.testing.assert_close(heat(found, answer, [3.0, 4.0]), parts)


def test_minibatches_go_through_all_rows_in_an_order_of_their_own() -> None:
    x, y, index = torch.zeros(8, 1), torch.arange(8) % 2, torch.arange(12.0)[:, None]
    target = inference.log_posterior(nn.Linear(1, 2), rl.Prevalence.binary(0.1), unlabelled=index, unlabelled_batch_size=4)
    batches = target.minibatches((x, y), 3, generator(1))
    seen = torch.cat([batches.next()[-1] for _ in range(3)])
    assert sorted(seen.flatten().tolist()) == list(range(12)) != seen.flatten().tolist()
    assert batches.next_each(5)[-1].shape == (5, 4, 1)
    assert batches.epochs == [8 / 3, 3.0]
    assert not target.minibatches((x, y), 8).at_once
    # with all data in a step, all rows are in it
    loader = DataLoader(TensorDataset(x, y), batch_size=5)
    sizes: list[tuple[Any, int | None, list[int]]] = [((x, y), None, [8, 8]), ((x, y), 100, [8, 8, 4]), (loader, 1, [5, 5, 4])]
    for data, size, expected in sizes:
        assert [len(part) for part in target.minibatches(data, size).next()] == expected
    for many in (None, 12):
        assert len(logistic_target(rows=POOL[:12], unlabelled_batch_size=many).minibatches(PROBLEM.data, 20).next()) == 2


def test_normalisation_by_minibatch_is_over_labelled_and_unlabelled_rows_together() -> None:
    net = nn.Sequential(nn.Linear(1, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).double()
    target = inference.log_posterior(net, PROBLEM.prevalence, num_data=60, unlabelled=POOL)
    buffers = target.buffers()
    target({**target.parameters(), **buffers}, PROBLEM.data)
    hidden = net[0](torch.cat([PROBLEM.data[0], POOL]))
    torch.testing.assert_close(buffers["1.running_mean"], 0.1 * hidden.mean(0).detach())


PI = PROBLEM.prevalence.population
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"loss": rl.WeightedLoss}, "its likelihood cannot use them"),
    ({"loss": rl.LogLikelihoodLoss}, "its likelihood cannot use them"),
    ({"unlabelled_weight": -1.0}, "unlabelled_weight"),
    ({"unlabelled_batch_size": 0}, "unlabelled_batch_size"),
    ({"marginal": lambda model: rl.AuxiliaryMarginal(model)}, "no estimate for the unlabelled"),
    ({"marginal": lambda model: rl.PoolMarginal(model, [POOL])}, "no estimate for the unlabelled"),
    ({"reference": PI, "marginal": lambda model: rl.BatchMarginal()}, "no `marginal`"),
    ({"reference": PI, "unlabelled_batch_size": 5}, "no `unlabelled_batch_size`"),
    ({"reference": PI, "pool": POOL}, "one of `pool` and `unlabelled`"),
    ({"prevalence": PU, "unlabelled": None}, "never labelled"),
    ({"prevalence": PU, "unlabelled_weight": 0.0}, "never labelled"),
    ({"prevalence": rl.Prevalence.unknown(2)}, "retarget.criterion.population"),
    (
        {"prevalence": rl.ContinuousPrevalence(torch.distributions.Normal(0.0, 1.0)), "likelihood": rl.Gaussian()},
        "in regression",
    ),
    ({"unlabelled": 3.0}, "a row for each person"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_go_with_unlabelled_rows_is_refused(options: dict[str, Any], words: str) -> None:
    model = nn.Linear(1, 1).double()
    if "marginal" in options:
        options = options | {"marginal": options["marginal"](model)}
    given = {"prevalence": PROBLEM.prevalence, "likelihood": rl.Bernoulli(), "unlabelled": POOL, **options}
    assert_refused(lambda: inference.log_posterior(model, **given), words)


def test_what_the_data_say_against_the_target_is_refused() -> None:
    x, y = PROBLEM.data
    mixed = torch.cat([POSITIVES[0], x[:1]]), torch.cat([POSITIVES[1], y[:1]])
    assert_refused(lambda: inference.map_estimate(logistic_target(PU), mixed), "prevalence.sampling")
    plain = logistic_target(rows=None)
    assert_refused(lambda: plain(plain.parameters(), (x, y, POOL)), "unlabelled=x_u")


def test_an_unknown_prevalence_becomes_a_known_one_and_arrays_what_the_model_takes() -> None:
    unknown = rl.Prevalence.unknown(2)
    criterion = rl.InformationGainLoss(unknown)
    criterion(torch.randn(6, 2), torch.arange(6) % 2, unlabelled=torch.randn(9, 2))
    target = inference.log_posterior(nn.Linear(1, 2), unknown.retarget(criterion.population), unlabelled=POOL.numpy())
    assert target.unlabelled is not None
    assert target.unlabelled.dtype == torch.float32
