"""A population whose p(y|x) is known: each class is a normal distribution. Tests of `rightloss.shift` and `check` share it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from draws import stream
from scipy.optimize import minimize
from scipy.special import log_softmax

from rightloss.shift import LabelShiftTest, LabelShiftWarning, PrevalenceEstimate, estimate_prevalence, label_shift_test

DISTANCE = 1.5


def mix(*values: float) -> np.ndarray:
    return np.array(values)


def equal(k: int) -> np.ndarray:
    return np.full(k, 1 / k)


def drawn(mix: np.ndarray, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of a closed-form population, each class a normal distribution around its own corner, and their labels."""
    random = stream(seed)
    y = random.choice(len(mix), n, p=mix / mix.sum())
    return random.standard_normal((n, len(mix))) + DISTANCE * np.eye(len(mix))[y], y


def exact(x: np.ndarray, rho: np.ndarray) -> np.ndarray:
    """Its true log-probabilities at the mix ρ."""
    return log_softmax(DISTANCE * x + np.log(rho), axis=1)


def overconfident(x: np.ndarray) -> np.ndarray:
    """Predictions that a temperature and biases put right."""
    return log_softmax(1.6 * DISTANCE * x + np.linspace(-0.6, 0.6, x.shape[1]), axis=1)


def certain(labels: Any, k: int) -> np.ndarray:
    """Log-probabilities 0 of the labels, −∞ of the other classes."""
    with np.errstate(divide="ignore"):
        return np.log(np.eye(k)[np.asarray(labels)])


def constant(mix: np.ndarray, n: int) -> np.ndarray:
    """The same log-probabilities in n rows."""
    return np.tile(np.log(mix), (n, 1))


def log_likelihood(pi: np.ndarray, table: np.ndarray, rho: np.ndarray) -> float:
    """L(π), written out."""
    return float(np.log((np.exp(table) / rho) @ pi).sum())


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


def shift_test_quietly(x: np.ndarray, h: np.ndarray, y: np.ndarray, **options: Any) -> LabelShiftTest:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LabelShiftWarning)
        return label_shift_test(overconfident(x), (overconfident(h), y), **options)
