"""Metrics of tensors: the numbers of arrays, under `no_grad` and `inference_mode` too, and for tensors made there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import pytest
from draws import stream
from scipy.special import log_softmax

import rightloss as rl
from rightloss import metrics

torch = pytest.importorskip("torch")

Mode = Callable[[], AbstractContextManager[Any]]
MODES: dict[str, Mode] = {"with gradients": nullcontext, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


def given(k: int) -> tuple[np.ndarray, np.ndarray, rl.Prevalence, np.ndarray]:
    y = np.arange(240) % k
    costs = np.where(np.tri(k, k=-1), 3.0, 1 - np.eye(k))
    at = rl.Prevalence.dirichlet(np.arange(1.0, k + 1) * 10)
    return log_softmax(stream(1).normal(size=(240, k)) + 1.5 * np.eye(k)[y], axis=1), y, at, costs


CALLS: dict[str, Callable[..., Any]] = {
    "evaluate, bootstrap": lambda t, y, pi, c: metrics.evaluate(t, y, pi, costs=c, intervals="bootstrap", draws=200),
    "evaluate, analytic": lambda t, y, pi, c: metrics.evaluate(t, y, pi, costs=c, intervals="analytic"),
    "evaluate, groups": lambda t, y, pi, c: metrics.evaluate(t, y, pi, groups=np.arange(240) // 6, draws=200),
    "roc_curve": lambda t, y, pi, c: metrics.roc_curve(t, y, 1, pi),
    "precision_recall_curve": lambda t, y, pi, c: metrics.precision_recall_curve(t, y, pi, 1),
    "probability_histogram": lambda t, y, pi, c: metrics.probability_histogram(t, y, positive=1),
    "reliability_curve": lambda t, y, pi, c: metrics.reliability_curve(t, y, pi, positive=1),
    "decision_curve": lambda t, y, pi, c: metrics.decision_curve(t, y, pi, positive=1),
    "predictive_value_curve": lambda t, y, pi, c: metrics.predictive_value_curve(
        t, y, threshold=0.4, prevalences=pi, from_=pi, positive=1
    ),
    "decide": lambda t, y, pi, c: metrics.decide(t, c, abstain_cost=0.4),
    "expected_cost": lambda t, y, pi, c: metrics.expected_cost(t, c, y),
    "conformal sets": lambda t, y, pi, c: metrics.ConformalSets.fit(t, y, pi).predict(t),
}


def numbers(result: Any) -> Any:
    """Anything's numbers, to be compared."""
    if isinstance(result, metrics.Evaluation):
        return result.to_dict()
    return np.asarray(result) if isinstance(result, np.ndarray | torch.Tensor) else vars(result)


@cache
def expected_numbers(call: str, k: int) -> Any:
    return numbers(CALLS[call](*given(k)))


@pytest.mark.long
@pytest.mark.parametrize(
    ("made_in", "called_in"),
    [
        ("with gradients", "no_grad"),
        ("with gradients", "inference_mode"),
        ("inference_mode", "with gradients"),
        ("inference_mode", "inference_mode"),
    ],
)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("k", [2, 3])
def test_numbers_are_those_of_arrays_in_every_mode(call: str, called_in: str, made_in: str, k: int) -> None:
    log_probs, y, at, costs = given(k)
    with MODES[made_in]():
        tensors = torch.tensor(log_probs), torch.tensor(y), at, torch.tensor(costs)
        if made_in == "with gradients":
            tensors[0].requires_grad_()
    with MODES[called_in]():
        found = CALLS[call](*tensors)
    assert isinstance(found, torch.Tensor) == (call in ("decide", "expected_cost", "conformal sets"))
    np.testing.assert_equal(numbers(found), expected_numbers(call, k))
