"""Variational inference, against grids, closed forms and Monte Carlo."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from logistic import Logistic, grid_moments
from members import SEED, assert_mean_is, assert_refused, generator, unchecked_types
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import rightloss as rl
from rightloss.inference import Diverged, LogPosterior, gaussian_prior, log_posterior
from rightloss.inference.distributions import Layout
from rightloss.inference.local_noise import LocalNoise
from rightloss.inference.vi import Family, _Bound, family_of, following, variational

PREVALENCE = rl.Prevalence.binary(0.05)
FAMILIES = ("mean-field", "full-rank", "low-rank")


def balanced(n: int = 200, shape: tuple[int, ...] = (3,), seed: int = 0) -> tuple[Tensor, Tensor]:
    y = torch.arange(n) % 2
    x = torch.randn(n, *shape, generator=generator(seed))
    return x + 0.5 * y.reshape(-1, *(1,) * len(shape)), y


def mlp(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1000 * SEED + seed)
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


def conv(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1000 * SEED + seed)
        first = nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2, padding_mode="circular")
        return nn.Sequential(first, nn.Tanh(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(36, 2, bias=False))


def silent(prior: Callable[[Any], Tensor], size: int = 3) -> LogPosterior:
    """A posterior that is its prior: inputs of 0 tell nothing of the weights."""
    return log_posterior(nn.Linear(size, 2, bias=False), PREVALENCE, prior=prior, loss=rl.LogLikelihoodLoss)


def nothing(size: int = 3) -> tuple[Tensor, Tensor]:
    return torch.zeros(20, size), torch.arange(20) % 2


def gaussian_of(covariance: Tensor, mean: Tensor) -> Callable[[Any], Tensor]:
    """log N(w; mean, covariance), up to a constant."""
    precision = torch.linalg.inv(covariance)

    def log_density(params: Any) -> Tensor:
        away = params["weight"].flatten() - mean
        return -0.5 * away @ precision @ away

    return log_density


def correlated() -> tuple[Tensor, Tensor]:
    """A covariance of 6 weights, diagonal but for one direction, and a mean."""
    stream = generator(5)
    common = 0.4 * torch.randn(6, 1, generator=stream)
    own = 0.4 + 0.3 * torch.rand(6, generator=stream)
    return common @ common.T + torch.diag(own.square()), torch.randn(6, generator=stream)


def bound(target: LogPosterior, data: tuple[Tensor, Tensor], local: bool, deviation: float = 0.3) -> tuple[_Bound, Family]:
    """The bound at a mean-field q around the model's weights."""
    params = target.parameters()
    layout = Layout.of(params)
    q = family_of("mean-field", layout.flatten(params), deviation, 1)
    noise = LocalNoise(target, params, data[0]) if local else None
    stream = torch.Generator().manual_seed(1000 * SEED + int(local))
    return _Bound(target.with_data(len(data[1])), q, layout, {}, noise, 1.0, 1, stream), q


def gradients(target: LogPosterior, data: tuple[Tensor, Tensor], local: bool, draws: int = 120) -> Tensor:
    """Return those of `draws` estimates of the bound."""
    climber, q = bound(target, data, local)
    found = []
    for _ in range(draws):
        for leaf in q.leaves:
            leaf.grad = None
        climber.climb(data, 0, lambda: None)
        found.append(torch.cat([leaf.grad for leaf in q.leaves if leaf.grad is not None]))
    return torch.stack(found)


@pytest.mark.long
@unchecked_types()
def test_the_full_rank_gaussian_is_near_the_posterior_on_a_grid() -> None:
    problem = Logistic(1)
    target = problem.target()
    mean, covariance = grid_moments(problem, target, 4.0, 101)
    found = variational(target, problem.data, family="full-rank", steps=250, lr=0.04, batch_size=None).distribution
    deviation = covariance.diagonal().sqrt()
    assert float(((found.mean - mean) / deviation).abs().max()) < 0.15
    assert float((found.standard_deviation / deviation - 1).abs().max()) < 0.1


@pytest.mark.long
@unchecked_types()
def test_without_information_in_the_data_the_prior_is_found_at_the_temperature() -> None:
    centre = torch.randn(2, 3, generator=generator(3))
    target = silent(gaussian_prior(0.4, {"weight": centre}))
    options: Any = {"estimator": "shared", "initial_sd": 0.2, "steps": 250, "lr": 0.1}
    found = variational(target, nothing(), temperature=4.0, **options).distribution
    deviation = 0.8
    torch.testing.assert_close(found.mean, centre.flatten(), rtol=0, atol=0.05 * deviation)
    torch.testing.assert_close(found.standard_deviation, torch.full((6,), deviation), rtol=0.05, atol=0)


@pytest.mark.long
@pytest.mark.parametrize("family", ["full-rank", "low-rank"])
@unchecked_types()
def test_a_correlated_gaussian_is_found_by_the_families_that_contain_it(family: str) -> None:
    covariance, mean = correlated()
    options: Any = {"family": family, "rank": 1, "initial_sd": 0.3, "steps": 1500, "lr": 0.1}
    found = variational(silent(gaussian_of(covariance, mean)), nothing(), **options).distribution
    deviation = covariance.diagonal().sqrt()
    assert float(((found.mean - mean) / deviation).abs().max()) < 0.02
    relative = (found.covariance() - covariance) / torch.outer(deviation, deviation)
    assert float(relative.abs().max()) < 0.03


@pytest.mark.long
@unchecked_types()
def test_the_mean_field_has_the_deviations_of_each_weight_given_the_others() -> None:
    covariance, mean = correlated()
    target = silent(gaussian_of(covariance, mean))
    options: Any = {"estimator": "shared", "initial_sd": 0.3, "samples": 2, "steps": 300, "lr": 0.1}
    with pytest.warns(UserWarning, match="full-rank"):
        found = variational(target, nothing(), **options).distribution
    given_others = torch.linalg.inv(covariance).diagonal().rsqrt()
    assert float((found.standard_deviation / given_others - 1).abs().max()) < 0.08
    assert float(((found.mean - mean) / given_others).abs().max()) < 0.2


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_draws_score_and_entropy_are_those_of_torchs_distribution(family: str) -> None:
    stream = generator(8)
    q = family_of(family, torch.randn(5, generator=stream).double(), 0.3, 2)
    with torch.no_grad():
        for leaf in q.leaves:  # a member of the family with nothing particular about it
            leaf.add_(0.3 * torch.randn(leaf.shape, generator=stream, dtype=leaf.dtype))
        draws = torch.stack([q.draw(torch.randn(q.noise_size, generator=stream).double()) for _ in range(4000)])
    found = q.distribution()
    away = draws - found.mean
    assert_mean_is(draws, found.mean, z=5)
    assert_mean_is(away[:, :, None] * away[:, None, :], found.covariance(), z=5)
    reference = torch.distributions.MultivariateNormal(found.mean, found.covariance())
    noise = torch.randn(q.noise_size, generator=stream).double()
    weights = q.draw(noise).detach().requires_grad_()
    (expected,) = torch.autograd.grad(-reference.log_prob(weights), weights)
    torch.testing.assert_close(q.score(noise), expected)
    torch.testing.assert_close(q.entropy().detach(), reference.entropy())


# A network, the shape of x, and what the likelihood is; under the information gain p(y|w) is left to a shared draw.
LOCAL: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Callable[[Any], dict[str, Any]]]] = {
    "mlp": (mlp, (3,), lambda data: {"loss": rl.WeightedLoss}),
    "conv": (conv, (2, 5, 5), lambda data: {"loss": rl.LogLikelihoodLoss}),
    "gain": (mlp, (3,), lambda data: {"pool": balanced(64, seed=1), "reference": PREVALENCE.population}),
}


@pytest.mark.long
@pytest.mark.parametrize("name", LOCAL)
@unchecked_types()
def test_local_noise_has_the_gradient_of_shared_draws_with_less_variance(name: str) -> None:
    make, shape, options = LOCAL[name]
    data = balanced(64, shape)
    target = log_posterior(make(), PREVALENCE, **options(data))
    local, shared = gradients(target, data, True), gradients(target, data, False)
    assert_mean_is(local - shared, 0.0, z=5)
    assert float(local.var(0).sum()) < 0.8 * float(shared.var(0).sum()) or name == "gain"


def test_layers_called_twice_or_with_shared_weights_keep_one_draw_for_all() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.tied, self.outer = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
            self.again = nn.Linear(3, 3)
            self.again.weight = self.tied.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.outer(self.again(self.tied(self.inner(self.inner(x).tanh()).tanh()).tanh()))

    target = log_posterior(Twice(), PREVALENCE, loss=rl.LogLikelihoodLoss)
    assert list(LocalNoise(target, target.parameters(), torch.randn(4, 3)).layers) == ["outer"]


@pytest.mark.long
@unchecked_types()
def test_the_replacement_of_a_running_average_follows_the_draws() -> None:
    data = balanced()
    default = log_posterior(mlp(), PREVALENCE)
    target = following(default, default.parameters(), data, generator(4))
    auxiliary: Any = target.marginal
    draws = variational(target, data, steps=200, batch_size=64).sample(50)
    each = [{name: value[row] for name, value in draws.items()} for row in range(50)]
    with torch.no_grad():
        exact = torch.stack([target.log_marginal(params, data) for params in each])
        found = torch.stack([target.at(params, lambda: auxiliary.log_marginal(auxiliary.vector())) for params in each])
    mean = exact.exp().mean(0).log()  # the best there is that does not follow

    def divergence(log_q: Tensor) -> float:
        return float((exact.exp() * (exact - log_q)).sum(1).mean())

    assert divergence(found) < 0.25 * divergence(mean)


def test_the_replacement_reads_labelled_examples_and_few_cells_of_dense_maps() -> None:
    x, y = balanced()
    y[:160] = -100
    default = log_posterior(mlp(), PREVALENCE)
    auxiliary: Any = following(default, default.parameters(), (x, y), generator(4)).marginal
    vector = auxiliary.vector()
    assert len(vector) == 2 + 2 * 32
    labelled = torch.softmax(mlp()(x[160:]).detach() - torch.tensor(PREVALENCE.population).log(), 1)  # ρ is even
    gaps = (vector[2:].reshape(32, 1, 2) - labelled).abs().amax(2)
    assert float(gaps.amin(1).max()) < 1e-5
    dense = log_posterior(nn.Conv2d(1, 2, 3, padding=1), PREVALENCE)
    maps = torch.randn(8, 1, 40, 40), torch.arange(40).expand(8, 40, 40) % 2
    auxiliary = following(dense, dense.parameters(), maps, generator(4)).marginal
    assert len(auxiliary.vector()) == 2 + 2 * 512


@pytest.mark.long
def test_the_estimator_is_local_where_nothing_makes_examples_share_a_draw() -> None:
    def used(model: nn.Module, options: dict[str, Any], **more: Any) -> str:
        return str(variational(log_posterior(model, PREVALENCE, **options), balanced(), steps=2, **more).record["estimator"])

    normalised = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    weighted = {"loss": rl.WeightedLoss}
    assert used(mlp(), weighted) == "local"
    assert used(mlp(), {}) == used(mlp(), weighted, family="low-rank", rank=2) == used(normalised, weighted) == "shared"
    assert_refused(lambda: used(normalised, weighted, estimator="local"), "normalisation by minibatch")
    assert_refused(lambda: used(mlp(), {"marginal": rl.ClasswiseMarginal()}, estimator="local"), "ClasswiseMarginal")


def test_bad_inputs_stop_the_first_step_and_errors_in_labels_are_reported_as_such() -> None:
    x, y = balanced()
    loader = DataLoader(TensorDataset(x, y + 1), batch_size=20)
    with pytest.raises(ValueError, match=r"label|class") as error:
        variational(log_posterior(mlp(), PREVALENCE, num_data=200), loader, steps=3)
    assert not isinstance(error.value, Diverged)
    x[3] = torch.nan
    with pytest.raises(Diverged, match="to be finite") as caught:
        variational(log_posterior(mlp(), PREVALENCE), (x, y), batch_size=None, steps=3)
    assert caught.value.step == 0


@pytest.mark.long
@unchecked_types()
def test_the_bound_rises_with_data_of_any_form() -> None:
    pairs = TensorDataset(*balanced())
    for data in (pairs, DataLoader(pairs, batch_size=50, shuffle=True)):
        elbo = variational(log_posterior(mlp(), PREVALENCE), data, steps=40, lr=0.03).record["elbo"]
        assert len(elbo) == 40
        assert sum(elbo[-10:]) > sum(elbo[:10])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"family": "diagonal"}, "mean-field"),
        ({"estimator": "flipout"}, "estimator"),
        ({"family": "full-rank", "estimator": "local"}, "output by output"),
        ({"family": "low-rank", "rank": 1000}, "rank"),
        ({"samples": 0}, "samples"),
        ({"steps": 0}, "steps"),
        ({"temperature": -1.0}, "temperature"),
        ({"initial_sd": 0.0}, "initial_sd"),
        ({"lr": float("nan")}, "lr"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], words: str) -> None:
    assert_refused(lambda: variational(log_posterior(mlp(), PREVALENCE), balanced(), **options), words)


def test_a_large_model_is_refused_a_full_covariance() -> None:
    target = log_posterior(nn.Linear(3000, 2), PREVALENCE)
    data = torch.zeros(10, 3000), torch.arange(10) % 2
    assert_refused(lambda: variational(target, data, family="full-rank"), "low-rank")


@pytest.mark.long
@unchecked_types()
def test_a_run_that_stops_far_from_the_optimum_says_so() -> None:
    problem = Logistic(1)
    for lr, far in ((0.03, False), (1e-4, True)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            record = variational(problem.target(), problem.data, steps=300, lr=lr, batch_size=64).record
        assert any("not converged" in str(each.message) for each in caught) == far
        assert (record["distance"] > 0.3) == far
        assert "sd_ratio" in record
    few = variational(problem.target(), problem.data, steps=10, batch_size=64).record
    assert not {"distance", "sd_ratio"} & few.keys()  # too few to tell
