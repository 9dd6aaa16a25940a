"""Predictions with labels that the tests of curves share, and what is known of them in closed form."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
from draws import SEED, stream
from scipy.special import log_expit, log_softmax

from rightloss.study.toy.population import TwoGaussians

PHI = NormalDist().cdf


def predictions(n: int, k: int, seed: int = 0, decimals: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Informative log-probabilities and labels; with `decimals` most predictions are tied."""
    labels = np.arange(n) % k
    labels[: n // 2] = stream(seed + 50).integers(k, size=n // 2) // 2  # an uneven mix
    logits = stream(seed).normal(size=(n, k)) + 1.5 * np.eye(k)[labels]
    if decimals is not None:
        logits = logits.round(decimals)
        logits[:, 2:] = 0.3  # so that rows that are not copies do not tie up to rounding
    return log_softmax(logits, axis=1), labels


def of_odds(odds: np.ndarray) -> np.ndarray:
    """Log-probabilities of two classes, from the log-odds of class 1."""
    return log_expit(np.stack([-odds, odds], 1))


def weights(labels: np.ndarray, pi: np.ndarray) -> np.ndarray:
    """π_c / n_c, by hand."""
    counts = [int((labels == c).sum()) for c in range(len(pi))]
    return np.array([float(pi[c]) / counts[c] for c in labels.tolist()])


def normals(rate: float, per_class: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """True predictions at `rate` for `per_class` examples of each of two classes."""
    truth = TwoGaussians(positive=rate)
    x, y = truth.sample(per_class, 100_000 + 1000 * (1000 * SEED + seed))
    return truth.log_probs(x), y


def true_rates(rate: float, threshold: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """TPR and FPR of a population of `TwoGaussians`, whose log-odds are N(logit π ± 2μ², 4μ²)."""
    mu = TwoGaussians(positive=rate).separation
    t = np.atleast_1d(threshold)
    z = (np.log(t / (1 - t)) - math.log(rate / (1 - rate))) / (2 * mu)
    return np.array([1 - PHI(value - mu) for value in z]), np.array([1 - PHI(value + mu) for value in z])


def assert_covers(hits: list[Any], level: float = 0.95) -> None:
    """The share of hits is `level` within four standard errors, at each point."""
    share, n = np.mean(hits, axis=0), len(hits)
    assert bool((np.abs(share - level) < 4 * math.sqrt(level * (1 - level) / n)).all()), share
