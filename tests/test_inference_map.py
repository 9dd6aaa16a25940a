"""MAP: against scikit-learn and SciPy, and what a search leaves untouched."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from logistic import Logistic
from members import SEED, assert_refused, generator, unchecked_types
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logit
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import rightloss as rl
from rightloss.inference import Diverged, LogPosterior, ensemble, gaussian_prior, log_posterior
from rightloss.inference.map import Search, map_estimate, mc_dropout, most_probable, one_draw

POPULATION = 0.2


def problem() -> tuple[Tensor, Tensor, rl.Prevalence]:
    """Two features and a constant, 300 examples of which 100 are of class 1, and π = 0.2."""
    y = torch.arange(300) % 3 // 2
    x = torch.randn(300, 3, dtype=torch.float64, generator=generator(1)) + y[:, None] * torch.tensor([1.0, -0.5, 0.0])
    x[:, 2] = 1
    return x, y, rl.Prevalence.from_labels(y, population=POPULATION)


def linear(features: int = 3) -> nn.Linear:
    return nn.Linear(features, 1, bias=False).double()


def net(*extra: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8), *extra, nn.Tanh(), nn.Linear(8, 2)).double()


def target_of(model: nn.Module, **options: Any) -> LogPosterior:
    return log_posterior(model, problem()[2], **options)


@pytest.mark.long
@pytest.mark.parametrize(("scale", "weighted"), [(0.3, False), (1.0, True)])
def test_with_a_gaussian_prior_the_mode_is_scikit_learns_ridge(scale: float, weighted: bool) -> None:
    x, y, prevalence = problem()
    loss, importance = (rl.WeightedLoss, {0: 0.8 / (2 / 3), 1: 0.2 / (1 / 3)}) if weighted else (rl.LogLikelihoodLoss, None)
    target = log_posterior(linear(), prevalence, rl.Bernoulli(), prior=gaussian_prior(scale), loss=loss)
    with unchecked_types():
        found = map_estimate(target, (x, y), batch_size=None, steps=100)
    ridge = LogisticRegression(C=scale**2, fit_intercept=False, class_weight=importance, tol=1e-10, max_iter=1000)
    expected = ridge.fit(x.numpy(), y.numpy()).coef_
    torch.testing.assert_close(found.mean["weight"], torch.from_numpy(expected), atol=1e-5, rtol=1e-5)


def corrected_mode(at_population: bool) -> np.ndarray:
    """By SciPy, from the equation: p_r has log-odds xᵀw + logit r − logit π, and its average is over the data, in the mix r."""
    x, y = (each.numpy() for each in problem()[:2])
    offset = 0.0 if at_population else logit(1 / 3) - logit(POPULATION)
    weights = np.where(y == 1, POPULATION / (1 / 3), 0.8 / (2 / 3)) if at_population else np.ones(len(y))

    def loss(w: np.ndarray) -> float:
        odds = x @ w + offset
        marginal = [np.mean(weights * expit(sign * odds)) for sign in (-1, 1)]
        gains = log_expit(np.where(y == 1, odds, -odds)) - np.log(np.take(marginal, y))
        return float(-gains.sum() + 0.5 * w @ w)

    return minimize(loss, np.zeros(3), method="BFGS", options={"gtol": 1e-6}).x


@pytest.mark.long
@pytest.mark.parametrize(("at_population", "pool"), [(False, False), (True, True)])
def test_the_corrected_mode_is_the_one_that_scipy_finds(at_population: bool, pool: bool) -> None:
    x, y, known = problem()
    prevalence = known.with_evidence(0.0)
    reference = prevalence.population if at_population else None
    options: dict[str, Any] = {"pool": (x, y)} if pool else {}
    target = log_posterior(linear(), prevalence, rl.Bernoulli(), prior=gaussian_prior(1.0), reference=reference, **options)
    with unchecked_types():
        found = map_estimate(target, (x, y), batch_size=None, steps=100)
    expected = torch.from_numpy(corrected_mode(at_population))
    torch.testing.assert_close(found.mean["weight"][0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.long
def test_polishing_ends_where_the_gradient_is_0_and_adam_alone_does_not() -> None:
    problem = Logistic(9, seed=SEED)
    target = problem.target()

    def steepness(polish: bool) -> float:
        search = Search(50, None, 1e-2, 0, None, False)
        with unchecked_types():
            found = most_probable(target, problem.data, search, one_draw(), polish)
        weights = {name: value.requires_grad_() for name, value in found.mean.items()}
        slopes = torch.autograd.grad(problem.n * target(weights, problem.data)[0], list(weights.values()))
        return max(float(slope.abs().max()) for slope in slopes)

    assert steepness(True) < 1e-5 < 0.1 < steepness(False)


def test_an_auxiliary_network_that_has_been_trained_before_is_used_as_it_stands_in_eval_mode() -> None:
    x, y, prevalence = problem()
    model = net()
    marginal = rl.AuxiliaryMarginal(model)
    target = target_of(model, marginal=marginal, reference=prevalence.population)  # at r = ρ, p(y|w) cancels
    fresh = map_estimate(target, (x, y), steps=3).distribution.mean
    assert int(marginal._steps) == 3  # it is the user's own that was trained
    marginal.eval()
    first, again = (map_estimate(target, (x, y), steps=3).distribution.mean for _ in range(2))
    assert int(marginal._steps) == 3
    assert torch.equal(first, again)
    assert not torch.equal(first, fresh)


class Scaled(nn.Module):
    """By factors that no file keeps."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()
        self.register_buffer("scale", torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.inner(x * self.scale)
        return outputs


def test_naming_the_present_device_changes_nothing() -> None:
    x, y, _ = problem()
    target = target_of(Scaled())
    for method in (map_estimate, ensemble):
        here, named = (method(target, (x, y), steps=3, device=device).distribution.mean for device in (None, "cpu"))
        torch.testing.assert_close(here, named, rtol=0, atol=0)


@pytest.mark.long
def test_in_regression_a_likelihoods_own_parameters_are_found_too() -> None:
    x, everybody = problem()[0], torch.distributions.Normal(0.0, 3.0)
    y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    y, prevalence = (
        y + torch.randn(300, dtype=torch.float64, generator=generator(2)),
        rl.ContinuousPrevalence(everybody, everybody),
    )
    likelihood = rl.Gaussian(scale=3.0).double()
    target = log_posterior(linear(), prevalence, likelihood, prior=gaussian_prior(1e4), loss=rl.LogLikelihoodLoss)
    found, best = map_estimate(target, (x, y), batch_size=None, steps=50), torch.linalg.lstsq(x, y).solution
    torch.testing.assert_close(found.mean["weight"][0], best, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.mean["likelihood.log_scale"], (y - x @ best).square().mean().log() / 2)
    assert float(likelihood.log_scale.detach().exp()) == pytest.approx(3)


@pytest.mark.long
def test_the_record_has_at_most_200_values_and_they_rise_and_a_bar_is_shown_on_request(
    capfd: pytest.CaptureFixture[str],
) -> None:
    x, y, _ = problem()
    target = target_of(net(), loss=rl.LogitAdjustedLoss)
    with unchecked_types():
        found = map_estimate(target, (x, y), batch_size=None, steps=250)
        assert capfd.readouterr().err == ""
        map_estimate(target, (x, y), steps=7, progress=True)
    trace, shown = found.record["log_posterior"], capfd.readouterr().err
    assert "MAP" in shown
    assert "100%" in shown
    start = float(target.with_data(300)(target.parameters(), (x, y))[0].detach())
    assert 100 < len(trace) <= 200
    assert trace[0] == pytest.approx(300 * start)
    assert trace[-1] > trace[0]


def test_weights_that_become_nan_in_the_last_step_are_noticed() -> None:
    x, y, prevalence = problem()
    hostile = log_posterior(linear(), prevalence, rl.Bernoulli(), prior=lambda params: (0 * params["weight"]).sqrt().sum())
    with pytest.raises(Diverged, match="the weights to be finite") as caught:
        map_estimate(hostile, (x, y), steps=1)
    assert caught.value.posterior is not None


def test_invalid_options_are_refused() -> None:
    x, y, _ = problem()
    target = target_of(net())
    assert_refused(lambda: map_estimate(target, (x, y), lr=-1.0), "`lr` to be positive")
    assert_refused(lambda: map_estimate(target, (x, y), steps=-1), "`steps` to be an int")
    for seed in ("today", 1.5, True):
        assert_refused(partial(map_estimate, target, (x, y), seed=seed), "seed=0")  # type: ignore[arg-type]
    assert_refused(lambda: map_estimate(target, (x, 1 - y)), "prevalence.sampling")


@pytest.mark.long
def test_dropout_is_trained_as_before_and_stays_on_in_predictions() -> None:
    x, y, _ = problem()
    target = target_of(net(nn.Dropout(0.3)))
    found, plain = mc_dropout(target, (x, y), steps=20), map_estimate(target, (x, y), steps=20)
    assert torch.equal(found.distribution.mean, plain.distribution.mean)
    tables = torch.cat(list(found.tables(x[:5], samples=20)))
    assert bool((tables.std(0) > 0).all())
    assert float(found.predict(x).model_entropy.mean()) > 0
    for part in (nn.Identity(), nn.Dropout(0.0)):
        assert_refused(lambda part=part: mc_dropout(target_of(net(part)), (x, y)), "or use map_estimate")  # type: ignore[misc]
