"""An estimated prevalence as a population: it is used as its uncertain prevalence."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from draws import assert_refused, stream
from scipy.special import log_expit, log_softmax

import rightloss as rl
from rightloss import metrics
from rightloss.metrics.sample import as_prevalence
from rightloss.predictive import retarget
from rightloss.shift import PrevalenceEstimate, estimate_prevalence

RATE = 0.1


@cache
def estimated(k: int, rows: int = 600, seed: int = 0) -> PrevalenceEstimate:
    """From predictions stated at even classes, on data with twice as many of each class as of the next."""
    mix, random = 0.5 ** np.arange(k), stream(seed)
    x = random.standard_normal((rows, k)) + 2 * np.eye(k)[random.choice(k, rows, p=mix / mix.sum())]
    return estimate_prevalence(log_softmax(2 * x, axis=1), [1 / k] * k, calibration="assumed")


def labelled(k: int) -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(120) % k
    return log_softmax(2 * (stream(9).standard_normal((120, k)) + np.eye(k)[y]), axis=1), y


def layered(k: int) -> Any:
    torch = pytest.importorskip("torch")
    return rl.PrevalenceLayer(torch.nn.Identity(), rl.Prevalence([1 / k] * k))


USES: dict[str, Callable[[np.ndarray, np.ndarray, Any], Any]] = {
    "retarget to": lambda t, y, pi: retarget(t, [1 / t.shape[1]] * t.shape[1], pi),
    "retarget from": lambda t, y, pi: retarget(t, pi, [1 / t.shape[1]] * t.shape[1]),
    "retarget_interval": lambda t, y, pi: rl.retarget_interval(t, [1 / t.shape[1]] * t.shape[1], pi, generator=1),
    "undo_sampling": lambda t, y, pi: rl.undo_sampling(t, sampling=[1 / t.shape[1]] * t.shape[1], population=pi),
    "PrevalenceLayer.predict": lambda t, y, pi: layered(t.shape[1]).predict(t, pi),
    "evaluate, bootstrap": lambda t, y, pi: metrics.evaluate(t, y, pi, draws=200).to_dict(),
    "evaluate, analytic": lambda t, y, pi: metrics.evaluate(t, y, pi, intervals="analytic").to_dict(),
    "roc_curve": lambda t, y, pi: metrics.roc_curve(t, y, 1, pi),
    "precision_recall_curve": lambda t, y, pi: metrics.precision_recall_curve(t, y, pi, 1),
    "reliability_curve": lambda t, y, pi: metrics.reliability_curve(t, y, pi, positive=1),
    "decision_curve": lambda t, y, pi: metrics.decision_curve(t, y, pi, positive=1),
    "predictive_value_curve": lambda t, y, pi: metrics.predictive_value_curve(
        t, y, threshold=0.3, prevalences=pi, from_=pi, positive=1
    ),
    "conformal sets": lambda t, y, pi: metrics.ConformalSets.fit(t, y, pi).predict(t),
}


@pytest.mark.long
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("k", [2, 4])
def test_an_estimate_counts_as_the_uncertain_prevalence_it_states(use: str, k: int) -> None:
    table, y = labelled(k)
    found, expected = (USES[use](table, y, pi) for pi in (estimated(k), estimated(k).prevalence()))
    if dataclasses.is_dataclass(found):
        found, expected = vars(found), vars(expected)
    np.testing.assert_equal(found, expected)


def test_a_class_estimated_at_zero_is_not_ruled_out() -> None:
    table = log_softmax([[9.0, -9.0], [0.0, 0.0]], axis=1)
    estimate = estimate_prevalence(np.repeat(table[:1], 200, 0), 0.5, calibration="assumed")
    assert estimate.population[1] == 0
    moved = retarget(table, 0.5, estimate)
    assert np.isfinite(moved).all()
    assert np.exp(moved[1, 1]) < 0.02


@pytest.mark.long
def test_an_interval_at_an_estimate_is_as_wide_as_its_own_noise_makes_the_figure_vary() -> None:
    """PPV of a large labelled sample, at estimates from 300 sets of 400 unlabelled people each."""
    random, at = stream(4), []

    def predicted(sick: np.ndarray) -> np.ndarray:
        """Return exact predictions of one normal feature, 2 apart."""
        odds = 2 * random.normal(2.0 * sick - 1) + math.log(RATE / (1 - RATE))
        return np.stack([log_expit(-odds), log_expit(odds)], 1)

    y = (random.random(20_000) < RATE).astype(int)
    table = predicted(y)
    rates = metrics.evaluate(table, y, RATE, threshold=0.2, intervals=None)
    t, f = rates.tpr.value, 1 - rates.tnr.value
    for _ in range(300):
        at.append(estimate_prevalence(predicted(random.random(400) < RATE), RATE, calibration="assumed"))
    spread = np.std([float(e.population[1]) * t / (float(e.population[1]) * t + float(e.population[0]) * f) for e in at])
    widths = []
    for estimate in at[:10]:
        found = metrics.evaluate(table, y, estimate, threshold=0.2, intervals="analytic").ppv
        widths.append((found.high - found.low) / (2 * 1.96))
    # a standard deviation of 300 is known to 4 %; PPV is not linear in π, and its own interval leans
    assert np.mean(widths) == pytest.approx(spread, rel=0.15)


def test_an_estimate_in_the_place_of_two_mixes_is_refused_with_the_remedy() -> None:
    table, _ = labelled(2)
    assert_refused(lambda: rl.undo_sampling(table, sampling=estimated(2), labels=[0, 1]), r"write `prevalence\.sampling`")  # type: ignore[arg-type]


def test_a_layer_is_trained_for_no_estimate() -> None:
    torch = pytest.importorskip("torch")
    layer: Any = rl.PrevalenceLayer
    assert_refused(lambda: layer(torch.nn.Identity(), estimated(2)), "trained for, and the estimate to `predict")


def test_an_object_that_holds_a_prevalence_is_not_an_estimate() -> None:
    assert_refused(lambda: as_prevalence(layered(2), 2), "`prevalence` to be numbers")
    assert_refused(lambda: retarget(labelled(2)[0], 0.5, layered(2)), "`to` to be numbers")
