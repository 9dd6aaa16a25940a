"""An estimated prevalence as a population: it is used as its uncertain prevalence."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from members import assert_refused, generator
from torch import nn

import rightloss as rl
from rightloss import metrics
from rightloss.metrics.sample import as_prevalence
from rightloss.predictive import retarget
from rightloss.shift import PrevalenceEstimate, estimate_prevalence
from rightloss.study.toy.population import TwoGaussians

RATE = 0.1


@cache
def estimated(k: int, rows: int = 600, seed: int = 0) -> PrevalenceEstimate:
    """From predictions stated at even classes, on data with twice as many of each class as of the next."""
    mix = 0.5 ** torch.arange(k, dtype=torch.float64)
    y = torch.multinomial(mix, rows, replacement=True, generator=generator(seed))
    x = torch.randn(rows, k, dtype=torch.float64, generator=generator(seed + 1)) + 2 * nn.functional.one_hot(y, k)
    return estimate_prevalence(torch.log_softmax(2 * x, 1), [1 / k] * k, calibration="assumed")


def labelled(k: int) -> tuple[np.ndarray, np.ndarray]:
    y = torch.arange(120) % k
    x = torch.randn(120, k, dtype=torch.float64, generator=generator(9)) + nn.functional.one_hot(y, k)
    return torch.log_softmax(2 * x, 1).numpy(), y.numpy()


def layered(k: int) -> rl.PrevalenceLayer:
    return rl.PrevalenceLayer(nn.Identity(), rl.Prevalence([1 / k] * k))


USES: dict[str, Callable[[np.ndarray, np.ndarray, Any], Any]] = {
    "retarget to": lambda t, y, pi: retarget(t, [1 / t.shape[1]] * t.shape[1], pi),
    "retarget from": lambda t, y, pi: retarget(t, pi, [1 / t.shape[1]] * t.shape[1]),
    "retarget_interval": lambda t, y, pi: rl.retarget_interval(t, [1 / t.shape[1]] * t.shape[1], pi, generator=generator(1)),
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
    table = torch.log_softmax(torch.tensor([[9.0, -9.0], [0.0, 0.0]], dtype=torch.float64), 1)
    estimate = estimate_prevalence(table[:1].expand(200, 2), 0.5, calibration="assumed")
    assert estimate.population[1] == 0
    moved = retarget(table, 0.5, estimate)
    assert bool(moved.isfinite().all())
    assert moved[1, 1].exp() < 0.02


@pytest.mark.long
def test_an_interval_at_an_estimate_is_as_wide_as_its_own_noise_makes_the_figure_vary() -> None:
    """PPV of a large labelled sample, at estimates from 300 sets of 400 unlabelled people each."""
    world = TwoGaussians(RATE)
    x, y = world.sample(20_000, 3)
    table = world.log_probs(x)
    rates = metrics.evaluate(table, y, RATE, threshold=0.2, intervals=None)
    t, f = rates.tpr.value, 1 - rates.tnr.value
    source, at = generator(4), []
    for _ in range(300):
        sick = (torch.rand(400, generator=source) < RATE).long()
        x = torch.randn(400, 5, generator=source) + (2 * sick[:, None] - 1) * world.separation / math.sqrt(5)
        at.append(estimate_prevalence(world.log_probs(x), RATE, calibration="assumed"))
    spread = np.std([float(e.population[1]) * t / (float(e.population[1]) * t + float(e.population[0]) * f) for e in at])
    widths = []
    for estimate in at[:10]:
        found = metrics.evaluate(table, y, estimate, threshold=0.2, intervals="analytic").ppv
        widths.append((found.high - found.low) / (2 * 1.96))
    # a standard deviation of 300 is known to 4 %; PPV is not linear in π, and its own interval leans
    assert np.mean(widths) == pytest.approx(spread, rel=0.15)


def test_an_estimate_in_the_place_of_two_mixes_is_refused_with_the_remedy() -> None:
    table, _ = labelled(2)
    assert_refused(lambda: rl.undo_sampling(table, sampling=estimated(2), labels=[0, 1]), r"write `estimate\.sampling`")  # type: ignore[arg-type]
    layer: Any = rl.PrevalenceLayer
    assert_refused(lambda: layer(nn.Identity(), estimated(2)), "trained for, and the estimate to `predict")


def test_an_object_that_holds_a_prevalence_is_not_an_estimate() -> None:
    assert_refused(lambda: as_prevalence(layered(2), 2), "`prevalence` to be numbers")  # type: ignore[arg-type]
    assert_refused(lambda: retarget(labelled(2)[0], 0.5, layered(2)), "`to` to be numbers")  # type: ignore[arg-type]
