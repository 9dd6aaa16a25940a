"""A population whose p(y|x) is known: each class is a normal distribution. Tests of `rightloss.shift` and `check` share it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from members import generator
from scipy.optimize import minimize
from torch import Tensor

from rightloss.shift import LabelShiftTest, LabelShiftWarning, PrevalenceEstimate, estimate_prevalence, label_shift_test

DISTANCE = 1.5


def mix(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def equal(k: int) -> Tensor:
    return torch.full((k,), 1 / k, dtype=torch.float64)


def drawn(mix: Tensor, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points of a closed-form population, each class a normal distribution around its own corner, and their labels."""
    y = torch.multinomial(mix, n, replacement=True, generator=generator(seed))
    x = torch.randn(n, len(mix), dtype=torch.float64, generator=generator(seed + 500))
    return x + DISTANCE * torch.nn.functional.one_hot(y, len(mix)), y


def exact(x: Tensor, rho: Tensor) -> Tensor:
    """Its true log-probabilities at the mix ρ."""
    return torch.log_softmax(DISTANCE * x + rho.log(), 1)


def overconfident(x: Tensor) -> Tensor:
    """Predictions that a temperature and biases put right."""
    return torch.log_softmax(1.6 * DISTANCE * x + torch.linspace(-0.6, 0.6, x.shape[1], dtype=torch.float64), 1)


def log_likelihood(pi: np.ndarray, table: Tensor, rho: Tensor) -> float:
    """L(π), written out."""
    return float(np.log((table.exp().numpy() / rho.numpy()) @ pi).sum())


def best_on_simplex(function: Callable[[np.ndarray], float], k: int) -> np.ndarray:
    """scipy's maximum over the simplex."""
    sums = {"type": "eq", "fun": lambda pi: pi.sum() - 1}
    options = {"ftol": 1e-15, "maxiter": 1000}
    found = minimize(lambda pi: -function(pi), np.full(k, 1 / k), bounds=[(1e-12, 1)] * k, constraints=[sums], options=options)
    return found.x


def estimate_quietly(*args: Any, **options: Any) -> PrevalenceEstimate:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LabelShiftWarning)
        return estimate_prevalence(*args, **options)


def shift_test_quietly(x: Tensor, h: Tensor, y: Tensor, **options: Any) -> LabelShiftTest:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LabelShiftWarning)
        return label_shift_test(overconfident(x), (overconfident(h), y), **options)
