"""Laplace's approximation: second derivatives against autograd's, the Gaussian against closed forms and a dense grid."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from logistic import Logistic, grid_moments
from members import SEED, assert_refused, generator, unchecked_types
from scipy.optimize import brentq
from small_targets import likelihood_terms
from torch import Tensor, nn
from torch.autograd.functional import hessian as plain_hessian
from torch.func import vmap
from torch.utils.data import DataLoader, TensorDataset

import rightloss as rl
from rightloss.inference import LogPosterior, gaussian_prior, horseshoe_prior, log_posterior
from rightloss.inference.distributions import Layout, Particles
from rightloss.inference.fisher import LikelihoodTerms, fisher_information, hessian, prior_hessian
from rightloss.inference.laplace import laplace
from rightloss.inference.map import map_estimate
from rightloss.inference.posterior import posterior_of

POPULATION = {2: [0.9, 0.1], 3: [0.7, 0.2, 0.1], 5: [0.4, 0.3, 0.15, 0.1, 0.05]}


def _net(outputs: int, seed: int = 1, hidden: int = 3) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(int(generator(seed).initial_seed()))
        return nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, outputs)).double()


def _data(k: int, n: int = 30, soft: bool = False) -> tuple[Tensor, Tensor]:
    """Every class equally often; `soft`: votes of readers who may disagree."""
    y, stream = torch.arange(n) % k, generator(2)
    x = torch.randn(n, 2, dtype=torch.float64, generator=stream) + y[:, None]
    if not soft:
        return x, y
    other = (y + torch.randint(k, (n,), generator=stream)) % k
    return x, 0.7 * nn.functional.one_hot(y, k).double() + 0.3 * nn.functional.one_hot(other, k).double()


def _terms(target: LogPosterior, data: tuple[Tensor, Tensor]) -> LikelihoodTerms:
    vector = Layout.of(target.parameters()).flatten(target.parameters())
    return likelihood_terms(target.with_data(len(data[1])), vector, data)


def _as_vector(target: LogPosterior, value: Callable[[Any], Tensor]) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A function of weights by name as one of the flat vector; and that vector."""
    layout = Layout.of(target.parameters())
    return lambda vector: value(layout.unflatten(vector)), layout.flatten(target.parameters())


# likelihood, number of classes, whether labels are votes, options of log_posterior
CASES: dict[str, tuple[Callable[[], Any], int, bool, dict[str, Any]]] = {
    "at the population": (rl.Categorical, 3, True, {"reference": "population"}),
    "with evidence": (rl.Bernoulli, 2, False, {"evidence": 0.5}),
    "with much evidence at the population": (rl.Categorical, 2, False, {"evidence": 3.0, "reference": "population"}),
    "cutpoints": (lambda: rl.CumulativeLogit(5).double(), 5, True, {"reference": "population"}),
    "weighted": (rl.Categorical, 3, True, {"loss": rl.WeightedLoss}),
    "adjusted": (lambda: rl.OnionPeeling(5), 5, False, {"loss": rl.LogitAdjustedLoss}),
}


def _target(make: Callable[[], Any] = rl.Categorical, k: int = 3, options: Any = None, **more: Any) -> LogPosterior:
    options = dict(options or {})
    prevalence = rl.Prevalence(POPULATION[k], evidence=options.pop("evidence", 0.0))
    if options.get("reference") == "population":
        options["reference"] = prevalence.population
    likelihood = make()
    net = _net(likelihood.num_outputs or k)
    return log_posterior(net, prevalence, likelihood, prior=gaussian_prior(1.0), **options, **more)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_the_hessian_is_that_of_the_log_posterior_with_the_data_as_its_pool_in_blocks_of_any_size(name: str) -> None:
    make, k, soft, options = CASES[name]
    data = _data(k, soft=soft)
    terms = _terms(_target(make, k, options), data)
    found = hessian(terms, diagonal=False)
    pooled = _target(make, k, options, num_data=30, **({} if "loss" in options else {"pool": data}))

    def value(params: Any) -> Tensor:
        return -30 * pooled(params, data)[0] + pooled.log_prior(params)

    function, vector = _as_vector(pooled, value)
    vector = vector.requires_grad_()
    torch.testing.assert_close(found.matrix, plain_hessian(function, vector))
    torch.testing.assert_close(found.gradient, torch.autograd.grad(function(vector), vector)[0])
    assert terms.log_likelihood == pytest.approx(-float(function(vector.detach())))
    assert float(found.matrix.abs().max()) > 1
    for second in (hessian, fisher_information):
        whole, some, diagonal = second(terms, False), second(terms, False, 7), second(terms, True, 7)
        torch.testing.assert_close(some.matrix, whole.matrix)
        torch.testing.assert_close(diagonal.matrix, whole.matrix.diagonal())
        torch.testing.assert_close(some.gradient, found.gradient)


@pytest.mark.parametrize("name", CASES)
def test_the_fisher_information_is_the_hessian_that_the_model_expects(name: str) -> None:
    """The model's own probabilities instead of the observed values: of x given y, or, for other losses, of y given x."""
    make, k, _, options = CASES[name]
    data = _data(k)
    terms = _terms(_target(make, k, options), data)
    target = _target(make, k, options, num_data=30)
    counts, setting = torch.bincount(data[1]).double(), target.terms(data[0])
    offset = setting.log_adjust if options.get("loss") is rl.LogitAdjustedLoss else setting.log_offset if target.gains else None

    def expected(params: Any) -> Tensor:
        table = target.table(params, data[0])
        table = table if offset is None else torch.log_softmax(table + offset, 1)
        if target.gains:
            log_given_y = torch.log_softmax(table + (setting.reference / setting.sampling)[data[1], None].log(), 0)
            return -(counts * log_given_y.detach().exp() * log_given_y).sum()
        weights = (
            torch.tensor(rl.Prevalence(POPULATION[k]).weights)[data[1], None] if options["loss"] is rl.WeightedLoss else 1.0
        )
        return -(weights * table.detach().exp() * table).sum()

    function, vector = _as_vector(target, expected)
    reference = plain_hessian(function, vector)
    if setting.evidence:  # as many people again, counted by class alone
        marginal, _ = _as_vector(target, lambda params: target.log_marginal(params, data))
        slopes = torch.autograd.functional.jacobian(marginal, vector)
        reference = reference + 30 * setting.evidence * slopes.T @ (setting.reference[:, None] * slopes)
    found = fisher_information(terms, diagonal=False).matrix
    torch.testing.assert_close(found, reference)
    assert float(torch.linalg.eigvalsh(found).min()) > -1e-9 * float(found.abs().max())


def test_a_pool_takes_the_place_of_the_data_in_the_marginal() -> None:
    data, (x, y) = _data(3), _data(3, 90)
    options: dict[str, Any] = {"options": {"reference": "population"}, "num_data": 30}
    without = hessian(_terms(_target(**options), data), diagonal=False).matrix
    for pool in ((x, y), x):
        target = _target(**options, pool=pool)

        def value(params: Any, target: LogPosterior = target) -> Tensor:
            return -30 * target(params, data)[0] + target.log_prior(params)

        function, vector = _as_vector(target, value)
        found = hessian(_terms(target, data), diagonal=False).matrix
        torch.testing.assert_close(found, plain_hessian(function, vector))
        assert not torch.allclose(without, found, rtol=0.01)


@pytest.mark.long
def test_a_model_that_vmap_does_not_support_is_run_row_by_row() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells, self.head = nn.LSTM(1, 3, batch_first=True), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.head(self.cells(x.unsqueeze(2))[0][:, -1])
            return result

    data = _data(2, 8)
    target = log_posterior(Recurrent().double(), rl.Prevalence.binary(0.1), num_data=8, loss=rl.LogLikelihoodLoss)

    def expected(params: Any) -> Tensor:
        table = target.table(params, data[0])
        return -(table.detach().exp() * table).sum()

    function, vector = _as_vector(target, expected)
    torch.testing.assert_close(fisher_information(_terms(target, data), False).matrix, plain_hessian(function, vector))
    assert laplace(target, data, mode=target.parameters()).record["curvature"] == "fisher"


PRIORS: dict[str, Callable[[Tensor], Tensor]] = {
    "gaussian": lambda w: gaussian_prior({"a": 2.0, "b": 0.5})({"a": w[:3], "b": w[3:]}),
    "horseshoe": lambda w: horseshoe_prior(0.3)({"w": w}),
    "joint": lambda w: -torch.log1p(w.square().sum()),
    "flat": lambda w: torch.zeros(()),
}


@pytest.mark.parametrize("prior", PRIORS)
def test_the_priors_curvature_is_that_of_any_function(prior: str) -> None:
    vector = torch.randn(7, dtype=torch.float64, generator=generator(4))
    reference = -plain_hessian(PRIORS[prior], vector)
    full, diagonal = (prior_hessian(PRIORS[prior], vector, only).matrix for only in (False, True))
    torch.testing.assert_close(full if full.ndim == 2 else torch.diag(full), reference)
    torch.testing.assert_close(diagonal, reference.diagonal())


@pytest.mark.long
def test_an_intercept_alone_has_the_width_of_the_closed_form() -> None:
    """x = 0: the slope keeps its prior; the intercept b has the mode Σy − n σ(b) = b/s² and the precision n p(1 − p) + 1/s²."""
    y = (torch.arange(40) % 4 == 0).long()
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        net = nn.Linear(1, 1).double()
    prevalence = rl.Prevalence.from_labels(y, [0.9, 0.1])
    target = log_posterior(net, prevalence, rl.Bernoulli(), loss=rl.LogLikelihoodLoss, prior=gaussian_prior(1.5))
    found = laplace(target, (torch.zeros(40, 1, dtype=torch.float64), y), steps=50)
    mode = brentq(lambda b: 10 - 40 / (1 + math.exp(-b)) - b / 1.5**2, -5, 5)
    p = 1 / (1 + math.exp(-mode))
    width = (40 * p * (1 - p) + 1 / 1.5**2) ** -0.5
    torch.testing.assert_close(found.mean["bias"], torch.tensor([mode], dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.standard_deviation["bias"], torch.tensor([width], dtype=torch.float64))
    torch.testing.assert_close(found.standard_deviation["weight"], torch.tensor([[1.5]], dtype=torch.float64))


@pytest.mark.long
@unchecked_types()
def test_diagonal_and_last_layer_are_parts_of_the_full_precision() -> None:
    target, data = _target(), _data(3)
    mode = map_estimate(target, data, steps=50, batch_size=None)
    full = laplace(target, data, mode=mode)
    precision = torch.linalg.inv(full.distribution.covariance())
    diagonal = laplace(target, data, mode=mode, covariance="diagonal")
    torch.testing.assert_close(diagonal.distribution.standard_deviation, precision.diagonal().rsqrt())
    last = laplace(target, data, mode=mode, covariance="last-layer", curvature="fisher")
    assert last.layout.names == ("2.weight", "2.bias")
    columns = slice(-last.layout.size, None)  # the last layer comes last
    torch.testing.assert_close(torch.linalg.inv(last.distribution.covariance()), precision[columns, columns])
    for name, value in mode.model.named_parameters():
        torch.testing.assert_close(dict(last.model.named_parameters())[name], value)
    first = laplace(target, data, mode=mode, covariance="last-layer", layer="0")
    assert first.layout.names == ("0.weight", "0.bias")


@pytest.mark.long
@unchecked_types()
def test_the_last_layer_of_a_single_layer_is_all_weights() -> None:
    data = _data(5)
    target = log_posterior(nn.Linear(2, 1).double(), rl.Prevalence(POPULATION[5]), rl.CumulativeLogit(5).double())
    mode = map_estimate(target, data, steps=50, batch_size=None)
    full, last = (laplace(target, data, covariance=name, mode=mode) for name in ("full", "last-layer"))
    assert last.layout.names == ("weight", "bias", "likelihood.first", "likelihood.log_gaps")
    torch.testing.assert_close(full.distribution.covariance(), last.distribution.covariance())
    assert last.sample(4)["likelihood.log_gaps"].shape == (4, 3)


def test_a_saddle_is_made_a_peak_that_is_as_wide_as_the_prior() -> None:
    """With logits a b x, x = ±1 and y its sign, −log p(w|X,Y) has at 0 the Hessian [[1, −15], [−15, 1]] of 30 examples."""

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            return self.a * self.b * x

    y = torch.arange(30) % 2
    data = (2.0 * y[:, None] - 1, y)
    options: dict[str, Any] = {"loss": rl.LogLikelihoodLoss, "prior": gaussian_prior(1.0)}
    target = log_posterior(Product(), rl.Prevalence.binary(0.1), rl.Bernoulli(), **options)
    with pytest.warns(UserWarning, match="no peak"):
        found = laplace(target, data, mode=target.parameters(), curvature="hessian")
    assert found.record["repaired"] == 1
    sharp, wide = 1 / 16, 1.0  # along (1, −1) and (1, 1), or the other way round: curvatures 1 ± 15
    expected = torch.tensor([[sharp + wide, wide - sharp], [wide - sharp, sharp + wide]]) / 2
    torch.testing.assert_close(found.distribution.covariance(), expected)
    assert laplace(target, data, mode=target.parameters()).record["curvature"] == "fisher"


def test_features_that_are_not_scaled_leave_what_the_data_do_not_see_as_wide_as_the_prior() -> None:
    """Logits w_k x, x = ±10⁶, w = 0: H has the eigenvalues 1/s² along (1, 1), and Σx²/2 + 1/s² along (1, −1)."""
    y, s = torch.arange(40) % 2, 3.0
    x = 1e6 * (1 - 2.0 * (torch.arange(40)[:, None] // 2 % 2)).double()
    options: dict[str, Any] = {"loss": rl.LogLikelihoodLoss, "prior": gaussian_prior(s)}
    target = log_posterior(nn.Linear(1, 2, bias=False).double(), rl.Prevalence.binary(0.1), **options)
    found = laplace(target, (x, y), mode={"weight": torch.zeros(2, 1, dtype=torch.float64)})
    narrow = 1 / (20e12 + 1 / s**2)
    spreads = torch.tensor([narrow, s**2], dtype=torch.float64)
    torch.testing.assert_close(torch.linalg.svdvals(found.distribution.factor).square().flip(0), spreads)  # type: ignore[attr-defined]
    torch.testing.assert_close(found.distribution.covariance().sum(1), spreads[1:].expand(2))
    evidence = 40 * math.log(0.5) - 2 * math.log(s) + 0.5 * (math.log(narrow) + math.log(s**2))
    assert found.record["log_evidence"] == pytest.approx(evidence, rel=1e-6)
    assert found.record["repaired"] == 0


def test_a_weight_with_a_horseshoe_prior_alone_has_the_width_of_its_curvature() -> None:
    data = torch.zeros(30, 1, dtype=torch.float64), torch.arange(30) % 2
    prior = horseshoe_prior(0.3)
    target = log_posterior(
        nn.Linear(1, 1).double(), rl.Prevalence.binary(0.1), rl.Bernoulli(), prior=prior, loss=rl.LogLikelihoodLoss
    )
    mode = {name: torch.ones_like(value) for name, value in target.parameters().items()}
    bent = plain_hessian(lambda w: -prior({"w": w}), torch.ones(1, dtype=torch.float64))
    assert float(bent) < 0
    for covariance in ("full", "diagonal"):
        with pytest.warns(UserWarning, match="no peak"):
            found = laplace(target, data, mode=mode, covariance=covariance, curvature="fisher")
        torch.testing.assert_close(found.standard_deviation["weight"], bent.abs().rsqrt())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The log posterior is")  # 20 steps do not lead to the mode, and need not
def test_data_may_have_any_form_and_frozen_weights_stay() -> None:
    net = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2))
    net[0].bias.requires_grad_(False)
    x, y = (each.float() if each.is_floating_point() else each for each in _data(2))
    target = log_posterior(net, rl.Prevalence.binary(0.1))
    found = laplace(target, (x, y), steps=20, batch_size=10)
    assert "0.bias" not in found.layout.names
    assert found.distribution.mean.dtype == torch.float32
    again = laplace(target, (x.numpy(), y.numpy()), mode=found)
    loader = DataLoader(TensorDataset(x, y), batch_size=7)
    for other in (again, laplace(target, loader, mode=found), laplace(target, loader.dataset, mode=found)):
        torch.testing.assert_close(other.distribution.covariance(), found.distribution.covariance())
    assert found.predict(x).log_probs.shape == (30, 2)


def test_bad_input_is_refused_with_a_remedy() -> None:
    target, data = _target(), _data(3)
    many = posterior_of(target, Particles(torch.zeros(3, 21, dtype=torch.float64)))
    refused: list[tuple[dict[str, Any], str]] = [
        ({"covariance": "kfac"}, "covariance"),
        ({"curvature": "ggn"}, "curvature"),
        ({"layer": "2"}, "last-layer"),
        ({"mode": target.parameters(), "covariance": "last-layer", "layer": "head"}, "trainable"),
        ({"mode": {"4.weight": torch.zeros(2)}}, "4.weight"),
        ({"mode": 3}, "map_estimate"),
        ({"mode": "models"}, "`mode` to be 'model', 'search' or None"),
        ({"mode": many}, "one set of weights, but got 3 draws"),
    ]
    for options, words in refused:
        assert_refused(partial(laplace, target, data, **options), words)
    wide = log_posterior(nn.Linear(2, 10_000), rl.Prevalence(torch.full((10_000,), 1e-4)))
    wide_data = torch.zeros(10_000, 2), torch.arange(10_000)
    assert_refused(lambda: laplace(wide, wide_data, mode=wide.parameters()), "20000 weights")
    normal = torch.distributions.Normal(0.0, 1.0)
    density = log_posterior(nn.Linear(2, 2), rl.ContinuousPrevalence(normal, normal), rl.Gaussian())
    assert_refused(lambda: laplace(density, (torch.zeros(3, 2), torch.zeros(3))), "classes")


def test_directions_that_neither_data_nor_prior_fix_are_refused() -> None:
    """A softmax does not see a shift common to all logits."""
    target = log_posterior(nn.Linear(2, 3).double(), rl.Prevalence(POPULATION[3]), prior=lambda params: torch.zeros(()))
    assert_refused(lambda: laplace(target, _data(3), mode=target.parameters()), "peak")
    held = _target()
    found = laplace(held, _data(3), mode=held.parameters())
    assert float(torch.linalg.eigvalsh(found.distribution.covariance()).min()) > 0


@pytest.mark.long
@pytest.mark.parametrize("curvature", [None, "fisher"])
@unchecked_types()
def test_moments_and_evidence_are_those_of_the_grid(curvature: Any) -> None:
    problem, target, mean, deviation, log_integral = _grid()
    found = laplace(target, problem.data, curvature=curvature, steps=50)
    assert found.record["decrement"] < 1e-6
    assert found.record["repaired"] == 0
    assert found.record["curvature"] == (curvature or "hessian")
    assert float(((found.distribution.mean - mean) / deviation).abs().max()) < 0.15
    assert float((found.distribution.standard_deviation / deviation - 1).abs().max()) < 0.15
    assert found.record["log_evidence"] == pytest.approx(log_integral, abs=0.1)


@cache
def _grid() -> tuple[Logistic, LogPosterior, Tensor, Tensor, float]:
    """A problem, its means and standard deviations, and log ∫ p(w) p(Y|X,w) dw."""
    problem = Logistic(features=1)
    target = problem.target()
    mean, covariance = grid_moments(problem, target, points=101)
    deviation = covariance.diagonal().sqrt()
    axis = torch.linspace(-8, 8, 81, dtype=torch.float64)  # in standard deviations: a coarse sum is exact to e^(−2 π²/step²)
    both = mean + torch.cartesian_prod(axis, axis) * deviation
    params = {"weight": both[:, :1, None], "bias": both[:, 1:]}
    values = problem.n * vmap(lambda each: target(each, problem.data)[0], chunk_size=10_000)(params).detach()
    cell = float(axis[1] - axis[0]) ** 2 * float(deviation.prod())
    return problem, target, mean, deviation, float(torch.logsumexp(values, 0)) + math.log(cell)


def test_a_search_that_ends_far_below_the_peak_causes_a_warning() -> None:
    problem = Logistic(1)
    with pytest.warns(UserWarning, match=r"nats below its peak where the search ended.+Raise `steps`"):
        found = laplace(problem.target(), problem.data, steps=2, batch_size=50)
    assert found.record["decrement"] > 0.5 * len(found.distribution.mean)
