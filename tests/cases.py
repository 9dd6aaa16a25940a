"""Labelled predictions that the tests of `evaluate` share, as the reference computations take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
from draws import population, stream
from scipy.special import log_softmax

from rightloss.metrics import Evaluation, evaluate

Method = Literal["bootstrap", "analytic"]  # of intervals


@dataclass(frozen=True)
class Case:
    """Labelled predictions as the reference computations take them: one row per class that has a vote, with weights."""

    log_probs: np.ndarray
    target: np.ndarray
    population: np.ndarray
    rows: np.ndarray
    labels: np.ndarray
    votes: np.ndarray

    @property
    def probs(self) -> np.ndarray:
        return np.exp(self.log_probs)[self.rows]

    @property
    def weights(self) -> np.ndarray:
        """π_c / n_c · vote."""
        k = len(self.population)
        totals = np.array([self.votes[self.labels == c].sum() for c in range(k)])
        return (self.population / totals)[self.labels] * self.votes

    @property
    def decided(self) -> np.ndarray:
        """Return the last of the most probable classes."""
        best = self.probs >= self.probs.max(1, keepdims=True) * (1 - 1e-12)
        return best.shape[1] - 1 - best[:, ::-1].argmax(1)


def hard(log_probs: np.ndarray, target: np.ndarray, pi: np.ndarray) -> Case:
    return Case(log_probs, target, pi, np.arange(len(target)), target, np.ones(len(target)))


def logits(k: int, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Predictions that are informative and not calibrated; labels in a mix of their own."""
    source = stream(seed)
    mix = np.arange(1.0, k + 1)
    y = source.choice(k, n, p=mix / mix.sum())
    y[:k] = np.arange(k)
    return log_softmax(1.4 * (source.normal(size=(n, k)) + 1.2 * np.eye(k)[y]), axis=1), y


def with_ties(k: int) -> Case:
    log_probs, y = logits(k, 240, 7)
    probs = (np.exp(log_probs) * 8).round() + 1
    return hard(np.log(probs / probs.sum(1, keepdims=True)), y, population(k, 1))


def with_votes(k: int) -> Case:
    log_probs, y = logits(k, 150, 3)
    votes = (2 * np.eye(k)[y] + np.eye(k)[np.roll(y, 1)]) / 3
    rows, labels = np.nonzero(votes)
    return Case(log_probs, votes, population(k, 2), rows, labels, votes[rows, labels])


CASES: dict[str, Case] = {
    "2 classes, 1 in 100,000": hard(*logits(2, 300, 0), np.array([1 - 1e-5, 1e-5])),
    "2 classes with ties": with_ties(2),
    "4 classes with ties": with_ties(4),
    "3 classes, votes": with_votes(3),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def figures(case: Case, **options: object) -> Evaluation:
    return evaluate(case.log_probs, case.target, case.population, **{"intervals": None, **options})


def assert_close(found: float, expected: float) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
