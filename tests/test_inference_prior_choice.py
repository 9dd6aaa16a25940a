"""The choice of a prior's scale: against quadrature, a closed form and the evidence of single fits."""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from members import assert_refused, generator
from scipy.integrate import quad
from torch import Tensor, nn

from rightloss import Bernoulli, ContinuousPrevalence, Gaussian, LogLikelihoodLoss, Prevalence, inference, start_at_prevalence
from rightloss.inference.prior_choice import _bound


def _data(n: int = 200, d: int = 1, slope: float = 1.5) -> tuple[Tensor, Tensor]:
    y, stream = torch.arange(n) % 2, generator(3)
    x = torch.randn(n, d, dtype=torch.float64, generator=stream)
    return x + slope * (y[:, None] - 0.5), y


def _line(d: int = 1, **options: Any) -> inference.LogPosterior:
    """Plain logistic regression without an intercept, so that one weight is left to integrate over."""
    model = nn.Linear(d, 1, bias=False).double()
    return inference.log_posterior(model, Prevalence.binary(0.5), Bernoulli(), loss=LogLikelihoodLoss, **options)


@cache
def _chosen() -> inference.ChosenPrior:
    return inference.optimize_prior(_line(), _data(), prior=inference.gaussian_prior)


def _log_evidence_by_quadrature(scale: float) -> float:
    """log ∫ N(w; 0, s²) Π_n σ(± x_n w) dw, in NumPy."""
    x, y = (np.asarray(each, dtype=float) for each in _data())
    sign = 2 * y - 1

    def log_joint(w: float) -> float:
        return float(-np.logaddexp(0, -sign * x[:, 0] * w).sum() - 0.5 * (w / scale) ** 2) - math.log(
            scale * math.sqrt(2 * math.pi)
        )

    peak = max(log_joint(w) for w in np.linspace(-3, 5, 801))
    return peak + math.log(quad(lambda w: math.exp(log_joint(w) - peak), -8, 10, points=[0, 1, 2], limit=500)[0])


@pytest.mark.long
def test_the_chosen_scale_maximises_the_evidence_by_quadrature() -> None:
    chosen = _chosen()
    for scale, value in chosen.tried:
        assert isinstance(scale, float)
        assert value == pytest.approx(_log_evidence_by_quadrature(scale), abs=0.05)
    scales = np.geomspace(0.01, 100, 81)
    best = max(_log_evidence_by_quadrature(float(scale)) for scale in scales)
    assert isinstance(chosen.scale, float)
    assert _log_evidence_by_quadrature(chosen.scale) > best - 0.01


@pytest.mark.long
def test_for_one_weight_the_best_scale_is_the_size_of_the_weight_and_a_chosen_prior_is_a_prior() -> None:
    """d/ds [log N(ŵ; 0, s²) + ½ log 2πC] = 0 at s² = ŵ² + C, the second moment of the posterior."""
    chosen = _chosen()
    moment = chosen.posterior.mean["weight"].square() + chosen.posterior.standard_deviation["weight"].square()
    assert chosen.scale == pytest.approx(float(moment.sqrt()), rel=0.15)
    assert chosen.log_evidence == max(value for _, value in chosen.tried)
    found = inference.laplace(_line(prior=chosen), _data(), mode="search")
    assert found.record["log_evidence"] == pytest.approx(chosen.log_evidence, abs=1e-4)


@pytest.mark.long
def test_one_scale_for_all_is_that_of_the_default_prior() -> None:
    model = nn.Linear(3, 1).double()
    prevalence = Prevalence.binary(0.1)
    start_at_prevalence(model, prevalence, Bernoulli())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    target = inference.log_posterior(model, prevalence, Bernoulli())
    chosen = inference.optimize_prior(target, _data(d=3))
    assert isinstance(chosen.scale, float)
    same = inference.log_posterior(
        model, prevalence, Bernoulli(), prior=inference.layer_prior(model, chosen.scale, target.likelihood)
    )
    assert inference.laplace(same, _data(d=3), mode="search").record["log_evidence"] == pytest.approx(
        chosen.log_evidence, abs=1e-4
    )
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)


class Halves(nn.Module):
    """Two layers in parallel: one sees informative features, the other noise."""

    def __init__(self) -> None:
        super().__init__()
        self.signal, self.noise = nn.Linear(4, 1, bias=False), nn.Linear(20, 1, bias=False)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.signal(x[:, :4]) + self.noise(x[:, 4:])
        return result


@pytest.mark.long
def test_by_layer_noise_gets_a_narrower_prior_and_the_evidence_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference.prior_choice, "_SWEEPS", 1)
    x, y = _data(100, 4)
    data = torch.cat([x, torch.randn(len(x), 20, dtype=torch.float64, generator=generator(5))], 1), y
    target = inference.log_posterior(Halves(), Prevalence.binary(0.5), Bernoulli(), loss=LogLikelihoodLoss)
    found = inference.optimize_prior(target, data, layers=True, steps=0, bounds=(0.1, 10.0))
    assert isinstance(found.scale, dict)
    assert found.scale["noise"] < 0.5 * found.scale["signal"]
    of_both = [value for scale, value in found.tried if isinstance(scale, dict) and scale["noise"] == scale["signal"]]
    assert found.log_evidence > max(of_both) + 1


@pytest.mark.filterwarnings("ignore:The Gaussian differs:UserWarning")  # after so few steps
@pytest.mark.long
def test_the_bound_is_below_the_evidence_and_chooses_the_same_scale() -> None:
    """A Gaussian of one weight is nearly the posterior itself."""
    options: dict[str, Any] = {"steps": 200, "lr": 0.1, "initial_sd": 0.3}
    found = inference.optimize_prior(_line(), _data(), prior=inference.gaussian_prior, by="elbo", bounds=(0.5, 8.0), **options)
    for scale, value in found.tried[1:]:
        assert isinstance(scale, float)
        assert -0.1 < _log_evidence_by_quadrature(scale) - value < 0.5
    assert isinstance(found.scale, float)
    assert _log_evidence_by_quadrature(found.scale) > _chosen().log_evidence - 0.1


@pytest.mark.long
def test_the_bound_of_the_exact_posterior_is_the_evidence() -> None:
    """With labels that no weight can explain, x = 0, the posterior is the prior, and the evidence N log ½."""
    from rightloss.inference.distributions import DiagonalGaussian, Layout
    from rightloss.inference.map import Search
    from rightloss.inference.posterior import posterior_of

    target = _line(prior=inference.gaussian_prior(0.7))
    data = torch.zeros(40, 1, dtype=torch.float64), torch.arange(40) % 2
    q = DiagonalGaussian(torch.zeros(1).double(), torch.full((1,), 0.7).double())
    found = posterior_of(target, q, Layout.of(target.parameters()))
    value = _bound(target, data, found, Search(1, None, 0.1, 0, None, False))
    assert value == pytest.approx(40 * math.log(0.5), abs=3 * 0.5 * math.sqrt(2 / 100))


@pytest.mark.long
def test_an_optimum_at_a_bound_is_said() -> None:
    data = torch.randn(60, 1, dtype=torch.float64, generator=generator(7)), torch.arange(60) % 2
    with pytest.warns(UserWarning, match="at its bound, 0.1"):
        inference.optimize_prior(_line(), data, prior=inference.gaussian_prior, bounds=(0.1, 3.0))
    with pytest.warns(UserWarning, match="at its bound, 0.3"):
        inference.optimize_prior(_line(), _data(), prior=inference.gaussian_prior, bounds=(0.1, 0.3))


NORMAL = torch.distributions.Normal(0.0, 1.0)
REFUSED: dict[str, Any] = {
    "bounds": [{"bounds": each} for each in ((1.0,), 3, (0.0, 1.0), (2.0, 1.0), (1.0, math.inf))],
    "`by`": [{"by": "aic"}],
    "`layers`": [{"layers": "all"}],
    "gaussian_prior": [{"prior": 1.0}],
    "freeze": [{"covariance": "last-layer"}],
}


def test_bad_input_is_refused_with_a_remedy() -> None:
    for words, each in REFUSED.items():
        for options in each:
            assert_refused(partial(inference.optimize_prior, _line(), _data(), **options), words)
    density = inference.log_posterior(nn.Linear(2, 2), ContinuousPrevalence(NORMAL, NORMAL), Gaussian())
    assert_refused(lambda: inference.optimize_prior(density, (torch.zeros(3, 2), torch.zeros(3))), "classes")
