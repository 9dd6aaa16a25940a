"""`predictive`: a posterior's predictions at any population; and that everything takes a posterior's prediction."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from drawn import posterior_of_net, prevalence_of
from layers import inputs
from members import ClassLikelihood, assert_refused, each_likelihood, generator, population
from torch import Tensor, nn

import rightloss
from rightloss import (
    Bernoulli,
    Categorical,
    ContinuousPrevalence,
    Gaussian,
    Prevalence,
    metrics,
    predictive,
    retarget_interval,
    shift,
    undo_sampling,
)
from rightloss.inference.distributions import Particles
from rightloss.inference.layout import Layout
from rightloss.inference.posterior import Posterior
from rightloss.inference.prediction import Prediction
from rightloss.predictive import PrevalenceLayer
from rightloss.predictive.retarget import retarget

X = inputs().double()


def every_table(posterior: Posterior) -> Tensor:
    return torch.cat(list(posterior.tables(X)))


class TestPredictive:
    @each_likelihood
    def test_each_draw_is_moved_and_then_averaged(self, make: Callable[[], ClassLikelihood], k: int) -> None:
        posterior, to = posterior_of_net(make(), k), population(k, 3)
        probs = [retarget(each, posterior.prevalence, to).exp() for each in every_table(posterior)]
        torch.testing.assert_close(predictive(posterior, X, to).exp(), torch.stack(probs).mean(0))
        torch.testing.assert_close(predictive(posterior, X), posterior.predict(X).log_probs, rtol=0, atol=0)

    def test_it_is_the_prediction_with_the_intercepts_moved(self) -> None:
        posterior, to = posterior_of_net(Categorical(3), 3), population(3, 3)
        draws = posterior.distribution.draws.clone()  # type: ignore[attr-defined]
        draws[:, -3:] += to.log() - prevalence_of(posterior).population.log()  # the output's biases come last
        model, layout = posterior.module(), posterior.layout
        moved = Posterior(model, prevalence_of(posterior).retarget(to), Categorical(3), Particles(draws), layout)
        torch.testing.assert_close(predictive(posterior, X, to), moved.predict(X).log_probs)

    def test_retargeting_the_average_weights_the_draws(self) -> None:
        posterior, to = posterior_of_net(Categorical(3), 3), population(3, 3)
        ratio = to / prevalence_of(posterior).population
        probs = every_table(posterior).exp()
        moved = probs * ratio / (probs * ratio).sum(2, keepdim=True)
        weights = (probs * ratio).sum(2, keepdim=True)
        weighted = (moved * weights).sum(0) / weights.sum(0)
        torch.testing.assert_close(retarget(predictive(posterior, X), posterior.prevalence, to).exp(), weighted)
        assert float((predictive(posterior, X, to).exp() - weighted).abs().max()) > 1e-3

    def test_a_mix_is_written_as_in_retarget(self) -> None:
        posterior = posterior_of_net(Bernoulli(), 2)
        expected = predictive(posterior, X, [0.9, 0.1])
        rows = torch.full((len(X), 1), 0.1, dtype=torch.float64)
        for to in (0.1, np.array([0.9, 0.1]), Prevalence.binary(0.1), Prevalence.beta(1.0, 9.0), rows):
            torch.testing.assert_close(predictive(posterior, X, to), expected)
        found = predictive(posterior, X.numpy(), 0.1, batch_size=2)
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-12)

    def test_draws_are_those_of_the_generator(self) -> None:
        posterior = posterior_of_net(kind="DiagonalGaussian")
        to, prevalence = population(3, 3), posterior.prevalence
        assert torch.equal(predictive(posterior, X, to), predictive(posterior, X, to))
        found = predictive(posterior, X, prevalence, samples=7, generator=generator(1))
        torch.testing.assert_close(found, posterior.predict(X, 7, generator(1)).log_probs)

    def test_dense_maps_are_moved_cell_by_cell(self) -> None:
        posterior = posterior_of_net(net=nn.Conv2d(6, 3, 1).double())
        maps = torch.randn(4, 6, 2, 3, dtype=torch.float64, generator=generator(1))
        cells = maps.movedim(1, -1).reshape(-1, 6, 1, 1)
        found = predictive(posterior, maps, population(3, 3)).movedim(1, -1).reshape(-1, 3)
        torch.testing.assert_close(found, predictive(posterior, cells, population(3, 3)).flatten(1))

    def test_what_cannot_be_moved_is_refused(self) -> None:
        posterior = posterior_of_net()
        assert_refused(lambda: predictive(nn.Linear(6, 3), X), "to be a Posterior, but got Linear: wrap")
        assert_refused(lambda: predictive(posterior, X, [0.5, 0.5]), "`population` to have 3 entries")
        assert_refused(lambda: predictive(posterior, X, 0.3), "`population`")
        assert_refused(lambda: predictive(posterior, X, samples=0), "`samples` to be a whole number of at least 1, but got 0")
        model, prevalence = nn.Linear(6, 1).double(), ContinuousPrevalence(torch.distributions.Normal(0.0, 1.0))
        layout = Layout.of(dict(model.named_parameters()))
        density = Posterior(model, prevalence, Gaussian(), Particles(torch.zeros(1, 7)), layout)
        assert_refused(lambda: predictive(density, X, [0.5, 0.5]), "Expected classes to move .* a density")


def test_the_name_is_a_function_and_a_package() -> None:
    package: Any = sys.modules["rightloss.predictive"]
    assert vars(rightloss)["predictive"] is package
    assert package.PrevalenceLayer is PrevalenceLayer is rightloss.PrevalenceLayer
    posterior = posterior_of_net()
    assert torch.equal(package(posterior, X, samples=2), package.predictive(posterior, X, samples=2))


LOG_PROBS = torch.log_softmax(2 * torch.randn(400, 2, dtype=torch.float64, generator=generator(1)), 1)
LABELS = torch.bernoulli(LOG_PROBS[:, 1].exp(), generator=generator(2)).long()
HELD_OUT = (LOG_PROBS, LABELS)
SETS = metrics.ConformalSets.fit(LOG_PROBS, LABELS, 0.3)
CALIBRATION = shift.fit_calibration(LOG_PROBS, LABELS)

# Whatever takes log-probabilities.
TAKERS: dict[str, Callable[[Any], Any]] = {
    "retarget": lambda p: retarget(p, 0.5, 0.1),
    "retarget_interval": lambda p: retarget_interval(p, 0.5, Prevalence.beta(3.0, 40.0)),
    "undo_sampling": lambda p: undo_sampling(p, pos_weight=3.0),
    "evaluate": lambda p: metrics.evaluate(p, LABELS, 0.1, draws=100),
    "roc_curve": lambda p: metrics.roc_curve(p, LABELS),
    "precision_recall_curve": lambda p: metrics.precision_recall_curve(p, LABELS, 0.1),
    "probability_histogram": lambda p: metrics.probability_histogram(p, LABELS),
    "reliability_curve": lambda p: metrics.reliability_curve(p, LABELS, 0.1),
    "predictive_value_curve": lambda p: metrics.predictive_value_curve(p, LABELS, threshold=0.3),
    "decision_curve": lambda p: metrics.decision_curve(p, LABELS, 0.1),
    "decide": lambda p: metrics.decide(p, threshold=0.2),
    "expected_cost": lambda p: metrics.expected_cost(p, None, LABELS),
    "ConformalSets.fit": lambda p: metrics.ConformalSets.fit(p, LABELS, 0.3),
    "ConformalSets.predict": lambda p: SETS.predict(p),
    "estimate_prevalence": lambda p: shift.estimate_prevalence(p, [0.5, 0.5], calibration="assumed"),
    "estimate_prevalence, held out": lambda p: shift.estimate_prevalence(
        LOG_PROBS, [0.5, 0.5], method="bbse", held_out=(p, LABELS)
    ),
    "label_shift_test": lambda p: shift.label_shift_test(p, (p, LABELS)),
    "fit_calibration": lambda p: shift.fit_calibration(p, LABELS),
    "Calibration": lambda p: CALIBRATION(p),
}


def assert_same(found: Any, expected: Any) -> None:
    """Of one type, and equal in all parts; NumPy's exponentials round by where in memory a number lies."""
    assert type(found) is type(expected)
    if dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            assert_same(getattr(found, field.name), getattr(expected, field.name))
    elif isinstance(expected, tuple | list):
        for pair in zip(found, expected, strict=True):
            assert_same(*pair)
    elif isinstance(expected, Tensor | np.ndarray):
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-12, atol=1e-14)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12, nan_ok=True)
    else:
        assert found == expected


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("kind", [Tensor.clone, Tensor.numpy], ids=["tensor", "array"])
def test_a_prediction_counts_as_its_log_probabilities(taker: str, kind: Callable[[Tensor], Any]) -> None:
    log_probs = kind(LOG_PROBS)
    assert_same(TAKERS[taker](Prediction(log_probs)), TAKERS[taker](log_probs))


def test_what_is_wrong_with_a_prediction_is_said_as_of_its_table() -> None:
    assert_refused(lambda: retarget(Prediction(LOG_PROBS.exp()), 0.5, 0.1), "look like probabilities; take their logarithm")
    assert_refused(lambda: retarget(Prediction(None), 0.5, 0.1), "`log_probs` to be numbers, but got NoneType")
