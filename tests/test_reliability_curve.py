"""Reliability: against scikit-learn on repeated rows, by counting, and how often its limits hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from labelled import SEEDS, assert_covers, normals, predictions, true_rates, weights
from members import population
from sklearn.calibration import calibration_curve

from rightloss.metrics.calibration import reliability_curve
from rightloss.metrics.curves import probability_histogram
from rightloss.prevalence import Prevalence


class TestReliability:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_of_equal_width_is_that_of_scikit_learn_on_repeated_rows(self, seed: int) -> None:
        log_probs, labels = predictions(400, 2, seed)
        n0, n1 = (int((labels == c).sum()) for c in (0, 1))
        found = reliability_curve(log_probs, labels, n1 / (n1 + 3 * n0), bins=10, width="equal-width")
        repeated = torch.where(labels == 0, 3, 1)
        p, y = log_probs[:, 1].exp().repeat_interleave(repeated), labels.repeat_interleave(repeated)
        observed, predicted = calibration_curve(y.numpy(), p.numpy(), n_bins=10)
        np.testing.assert_allclose(found.observed, observed, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found.predicted, predicted, rtol=1e-9)

    @pytest.mark.parametrize("as_array", [False, True])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize("k", [2, 3])
    @pytest.mark.parametrize("bins", [10, 20, 100])
    def test_round_probabilities_fall_into_the_bin_that_begins_with_them(
        self, bins: int, k: int, dtype: torch.dtype, as_array: bool
    ) -> None:
        p = torch.arange(bins, dtype=torch.float64) / bins
        table = torch.stack([1 - p, p] if k == 2 else [0.3 * (1 - p), p, 0.7 * (1 - p)], 1).log().to(dtype)
        labels = torch.arange(bins) % k
        given: Any = table.numpy() if as_array else table
        found = reliability_curve(given, labels, population(k), bins=bins, positive=1, width="equal-width")
        np.testing.assert_allclose(found.predicted, p, atol=1e-6)
        shares = probability_histogram(given, labels, bins, positive=1).share
        assert bool(((shares > 0).sum(0) == 1).all())

    @pytest.mark.parametrize("k", [2, 4])
    def test_bins_of_equal_mass_make_up_the_population(self, k: int) -> None:
        log_probs, labels = predictions(3000, k)
        pi = population(k)
        found = reliability_curve(log_probs, labels, pi, bins=8, positive=1)
        largest = float(weights(labels, pi).max())
        np.testing.assert_allclose(found.weight, np.full(8, 1 / 8), atol=2 * largest)
        assert math.isclose(found.weight @ found.observed, float(pi[1]), rel_tol=1e-9)
        mean = float(weights(labels, pi) @ log_probs[:, 1].exp().numpy())
        assert math.isclose(found.weight @ found.predicted, mean, rel_tol=1e-9)
        assert bool((np.diff(found.predicted) > 0).all())

    def test_tied_predictions_share_a_bin(self) -> None:
        p = torch.tensor([0.1] * 70 + [0.6] * 30, dtype=torch.float64)
        labels = torch.tensor([0] * 60 + [1] * 10 + [0] * 10 + [1] * 20)
        found = reliability_curve(torch.stack([1 - p, p], 1).log(), labels, 30 / 100, bins=10)
        np.testing.assert_allclose(found.predicted, [0.1, 0.6], rtol=1e-12)
        np.testing.assert_allclose(found.observed, [10 / 70, 20 / 30], rtol=1e-12)
        np.testing.assert_allclose(found.weight, [0.7, 0.3], rtol=1e-12)

    @pytest.mark.parametrize("rate", [0.3, 0.02])
    def test_limits_cover_the_truth_in_fixed_bins(self, rate: float) -> None:
        """On the true predictions, from a balanced sample."""
        edges = np.array([0.2, 0.4, 0.6]) if rate > 0.1 else np.array([1e-9, 0.2, 0.4])
        tpr, fpr = true_rates(rate, edges)
        truth = rate * -np.diff(tpr) / (rate * -np.diff(tpr) + (1 - rate) * -np.diff(fpr))
        hits = []
        for seed in range(300):
            found = reliability_curve(*normals(rate, 300, seed), rate, bins=5, width="equal-width")
            first = 1 if rate > 0.1 else 0
            low, high = found.low[first : first + 2], found.high[first : first + 2]
            hits.append((low <= truth) & (truth <= high))
        assert_covers(hits)

    def test_an_uncertain_prevalence_widens_the_limits(self) -> None:
        log_probs, y = normals(0.02, 2000, 0)
        certain, loose = (reliability_curve(log_probs, y, at, 5) for at in (0.02, Prevalence.beta(4.0, 196.0)))
        np.testing.assert_allclose(certain.observed, loose.observed, rtol=1e-9)
        assert bool((loose.high - loose.low > 1.3 * (certain.high - certain.low)).all())
