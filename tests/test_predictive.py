"""`predictive`: a posterior's predictions at any population; and that everything takes a posterior's prediction."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from layers import inputs
from members import ClassLikelihood, assert_refused, each_kind, generator, population
from posterior_fixtures import posterior_of_net, prevalence_of
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
from rightloss.inference.distributions import Layout, Particles
from rightloss.inference.posterior import Posterior
from rightloss.inference.prediction import Prediction
from rightloss.predictive import PrevalenceLayer
from rightloss.predictive.retarget import retarget
from rightloss.tensors import tensor_of

X = inputs().double()


def every_table(posterior: Posterior) -> Tensor:
    return torch.cat(list(posterior.tables(X)))


class TestPredictive:
    @each_kind
    def test_each_draw_is_moved_and_then_averaged(self, make: Callable[[], ClassLikelihood], k: int) -> None:
        posterior, to = posterior_of_net(make(), k), population(k, 3)
        probs = np.stack([retarget(each, prevalence_of(posterior), to).exp().numpy() for each in every_table(posterior)])
        torch.testing.assert_close(predictive(posterior, X), posterior.predict(X).log_probs, rtol=0, atol=0)
        found = posterior.predict(X, population=to, level=0.8)
        np.testing.assert_allclose(predictive(posterior, X, to).exp(), probs.mean(0), rtol=1e-9)
        np.testing.assert_allclose(found.log_probs.exp(), probs.mean(0), rtol=1e-9)
        each, average = scipy.special.entr(probs).sum(2).mean(0), scipy.special.entr(probs.mean(0)).sum(1)
        np.testing.assert_allclose(found.entropy, average, rtol=1e-8)
        np.testing.assert_allclose(found.data_entropy, each, rtol=1e-8)
        np.testing.assert_allclose(found.model_entropy, average - each, rtol=1e-6, atol=1e-9)
        ordered = np.sort(probs, axis=0)  # of 6 draws: 10 % and 90 % lie halfway between the two at either end
        np.testing.assert_allclose(found.low, ordered[:2].mean(0), rtol=1e-9)
        np.testing.assert_allclose(found.high, ordered[-2:].mean(0), rtol=1e-9)

    def test_retargeting_the_average_weights_the_draws(self) -> None:
        posterior, to = posterior_of_net(Categorical(3), 3), population(3, 3)
        ratio = to / tensor_of(prevalence_of(posterior).population)
        probs = every_table(posterior).exp()
        moved = probs * ratio / (probs * ratio).sum(2, keepdim=True)
        weights = (probs * ratio).sum(2, keepdim=True)
        weighted = (moved * weights).sum(0) / weights.sum(0)
        torch.testing.assert_close(retarget(predictive(posterior, X), prevalence_of(posterior), to).exp(), weighted)
        assert float((predictive(posterior, X, to).exp() - weighted).abs().max()) > 1e-3

    def test_a_mix_is_written_as_in_retarget(self) -> None:
        posterior = posterior_of_net(Bernoulli(), 2)
        expected = predictive(posterior, X, [0.9, 0.1])
        rows = torch.full((len(X), 1), 0.1, dtype=torch.float64)
        for to in (0.1, np.array([0.9, 0.1]), Prevalence.binary(0.1), Prevalence.beta(1.0, 9.0), rows):
            torch.testing.assert_close(predictive(posterior, X, to), expected)
        found = predictive(posterior, X.numpy(), 0.1, batch_size=2)
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-12)

    def test_bad_input_is_refused(self) -> None:
        posterior = posterior_of_net()
        assert_refused(lambda: predictive(nn.Linear(6, 3), X), "to be a Posterior, but got Linear: wrap")
        assert_refused(lambda: predictive(posterior, X, [0.5, 0.5]), "`population` to have 3 entries")
        assert_refused(lambda: predictive(posterior, X, samples=0), "`samples` to be an int of at least 1, but got 0")
        levels: list[Any] = [0, 95, "0.9"]
        for level in levels:
            assert_refused(partial(posterior.predict, X, level=level), "`level` to lie strictly between 0 and 1")


class TestPredictAtAPopulation:
    def test_its_own_population_changes_nothing_and_draws_that_agree_have_no_width(self) -> None:
        posterior = posterior_of_net(kind="DiagonalGaussian")
        expected, found = posterior.predict(X), posterior.predict(X, population=posterior.prevalence)
        torch.testing.assert_close(dataclasses.astuple(found)[:4], dataclasses.astuple(expected)[:4], rtol=0, atol=0)
        assert found.low is found.high is expected.low is None
        point = posterior_of_net(kind="a point").predict(X, population=population(3, 3), level=0.99)
        torch.testing.assert_close(point.low, point.log_probs.exp())
        torch.testing.assert_close(point.high, point.low, rtol=0, atol=0)

    def test_an_uncertain_or_estimated_prevalence_counts_with_its_mean(self) -> None:
        posterior = posterior_of_net(Bernoulli(), 2)
        estimate = shift.estimate_prevalence(LOG_PROBS, [0.5, 0.5], calibration="assumed")
        mean = estimate.prevalence().population
        for told in (estimate, estimate.prevalence()):
            found, expected = (posterior.predict(X, population=mix, level=0.9) for mix in (told, mean))
            torch.testing.assert_close(dataclasses.astuple(found)[:4], dataclasses.astuple(expected)[:4])
            assert bool((found.low < expected.low).all() and (found.high > expected.high).all())  # its uncertainty, too
            torch.testing.assert_close(predictive(posterior, X, told), predictive(posterior, X, mean))
        none = dataclasses.replace(estimate, population=torch.tensor([1.0, 0.0]).double())  # nobody of class 1 was found
        assert bool(posterior.predict(X, population=none).log_probs.isfinite().all())

    def test_arrays_dense_maps_and_a_mix_for_each_row_are_taken(self) -> None:
        posterior, rows = posterior_of_net(), torch.stack([population(3, seed) for seed in range(len(X))])
        found = posterior.predict(X.numpy(), population=rows.numpy(), level=0.9)
        for row, mix in enumerate(rows):
            one = posterior.predict(X[row : row + 1], population=mix, level=0.9)
            for name in ("log_probs", "model_entropy", "low", "high"):
                assert isinstance(getattr(found, name), np.ndarray)
                np.testing.assert_allclose(getattr(found, name)[row], getattr(one, name)[0], rtol=1e-9, atol=1e-12)
        dense = posterior_of_net(net=nn.Conv2d(6, 3, 1).double())
        maps = torch.randn(4, 6, 2, 3, dtype=torch.float64, generator=generator(1))
        cells = dense.predict(maps.movedim(1, -1).reshape(-1, 6, 1, 1), population=rows[0], level=0.9)
        high = dense.predict(maps, population=rows[0], level=0.9).high
        torch.testing.assert_close(high.movedim(1, -1).reshape(-1, 3), cells.high.flatten(1))

    def test_a_density_has_an_interval_and_no_population(self) -> None:
        model, prevalence = nn.Linear(6, 1).double(), ContinuousPrevalence(torch.distributions.Normal(0.0, 1.0))
        draws = torch.randn(11, 7, dtype=torch.float64, generator=generator(1))
        posterior = Posterior(
            model, prevalence, Gaussian().double(), Particles(draws), Layout.of(dict(model.named_parameters()))
        )
        found, support = posterior.predict(X, support=[0.0, 1.0], level=0.8), torch.tensor([0.0, 1.0]).double()
        ordered = torch.cat(list(posterior.tables(X, support=support))).exp().sort(0).values
        torch.testing.assert_close(found.low, ordered[1])  # one of 11 draws below, and one above
        torch.testing.assert_close(found.high, ordered[9])
        assert_refused(lambda: posterior.predict(X, support=support, population=0.1), "Expected classes to move .* a density")


def test_the_name_is_a_function_and_a_package() -> None:
    package: Any = sys.modules["rightloss.predictive"]
    assert vars(rightloss)["predictive"] is package
    assert package.PrevalenceLayer is PrevalenceLayer is rightloss.PrevalenceLayer
    posterior = posterior_of_net()
    assert torch.equal(package(posterior, X, samples=2), package.predictive(posterior, X, samples=2))


LOG_PROBS = torch.log_softmax(2 * torch.randn(200, 2, dtype=torch.float64, generator=generator(1)), 1)
LABELS = torch.bernoulli(LOG_PROBS[:, 1].exp(), generator=generator(2)).long()
SETS = metrics.ConformalSets.fit(LOG_PROBS, LABELS, 0.3)
CALIBRATION = shift.fit_calibration(LOG_PROBS, LABELS)

# Whatever takes log-probabilities: each entry once.
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


@pytest.mark.long
@pytest.mark.parametrize("taker", TAKERS)
def test_a_prediction_counts_as_its_log_probabilities(taker: str) -> None:
    log_probs = LOG_PROBS if list(TAKERS).index(taker) % 3 else LOG_PROBS.numpy()  # some of arrays, most of tensors
    assert_same(TAKERS[taker](Prediction(log_probs)), TAKERS[taker](log_probs))


def test_a_bad_prediction_is_refused_like_its_table() -> None:
    assert_refused(lambda: retarget(Prediction(LOG_PROBS.exp()), 0.5, 0.1), "look like probabilities; take their logarithm")
    assert_refused(lambda: retarget(Prediction(None), 0.5, 0.1), "`log_probs` to be numbers, but got NoneType")
