"""Curves: against scikit-learn at the population's weights, by counting, on a population known in closed form; bad input."""

from __future__ import annotations

import math
import time
import tracemalloc
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from members import assert_refused, generator, population
from sklearn import metrics as reference
from sklearn.calibration import calibration_curve
from torch import Tensor

from rightloss.metrics.curves import precision_recall_curve, probability_histogram, roc_curve
from rightloss.metrics.decisions import decide
from rightloss.metrics.ranks import areas, rank
from rightloss.metrics.reliability_curve import reliability_curve
from rightloss.metrics.sample import labelled_sample
from rightloss.metrics.value_curves import decision_curve, predictive_value_curve
from rightloss.prevalence import Prevalence
from rightloss.study.population import TwoGaussians

PHI = NormalDist().cdf
SEEDS = range(5)


def predictions(n: int, k: int, seed: int = 0, decimals: int | None = None) -> tuple[Tensor, Tensor]:
    """Informative log-probabilities and labels; with `decimals` most predictions are tied."""
    labels = torch.arange(n) % k
    labels[: n // 2] = torch.randint(k, (n // 2,), generator=generator(seed + 50)) // 2  # an uneven mix
    logits = torch.randn(n, k, dtype=torch.float64, generator=generator(seed)) + 1.5 * torch.eye(k)[labels]
    if decimals is not None:
        logits = logits.round(decimals=decimals)
        logits[:, 2:] = 0.3  # lest rows that are no copies tie but for rounding
    return torch.log_softmax(logits, 1), labels


def voted(n: int, k: int, trees: int = 10, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities of a forest: shares of its trees, with many ties, zeros and ones."""
    rng = np.random.default_rng(generator(seed).initial_seed())
    labels = rng.choice(k, n)
    chances = np.full((n, k), 0.3 / (k - 1))
    chances[np.arange(n), labels] = 0.7
    with np.errstate(divide="ignore"):
        return np.log(np.stack([rng.multinomial(trees, chance) for chance in chances]) / trees), labels


def weights(labels: Tensor, pi: Tensor) -> np.ndarray:
    """π_c / n_c, by hand."""
    counts = [int((labels == c).sum()) for c in range(len(pi))]
    return np.array([float(pi[c]) / counts[c] for c in labels.tolist()])


def normals(rate: float, per_class: int, seed: int) -> tuple[Tensor, Tensor]:
    """True predictions at `rate` for `per_class` examples of each of two classes."""
    truth = TwoGaussians(positive=rate)
    x, y = truth.sample(per_class, 100_000 + 1000 * generator(seed).initial_seed())
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


class TestRoc:
    @pytest.mark.parametrize("decimals", [None, 1, 0])
    @pytest.mark.parametrize("seed", SEEDS)
    def test_is_that_of_scikit_learn(self, seed: int, decimals: int | None) -> None:
        log_probs, labels = predictions(400, 2, seed, decimals)
        odds = (log_probs[:, 1] - log_probs[:, 0]).numpy()
        found = roc_curve(log_probs, labels)
        fpr, tpr, threshold = reference.roc_curve(labels.numpy(), odds, drop_intermediate=False)
        np.testing.assert_allclose(found.false_positive_rate, fpr, atol=1e-12)
        np.testing.assert_allclose(found.true_positive_rate, tpr, atol=1e-12)
        np.testing.assert_allclose(found.threshold[1:], 1 / (1 + np.exp(-threshold[1:])), rtol=1e-12)
        assert found.threshold[0] == math.inf
        assert math.isclose(found.auc, reference.roc_auc_score(labels.numpy(), odds), rel_tol=1e-12)

    @pytest.mark.parametrize("seed", SEEDS)
    def test_of_one_class_against_the_rest_weighs_the_rest_as_the_population_does(self, seed: int) -> None:
        log_probs, labels = predictions(500, 4, seed)
        pi = population(4, seed)
        for positive in range(4):
            found = roc_curve(log_probs, labels, positive, pi)
            truth, score, weight = (labels == positive).numpy(), log_probs[:, positive].numpy(), weights(labels, pi)
            expected = reference.roc_auc_score(truth, score, sample_weight=weight)
            assert math.isclose(found.auc, expected, rel_tol=1e-9)
            fpr, tpr, _ = reference.roc_curve(truth, score, sample_weight=weight, drop_intermediate=False)
            np.testing.assert_allclose(found.false_positive_rate, fpr, atol=1e-12)
            np.testing.assert_allclose(found.true_positive_rate, tpr, atol=1e-12)

    @pytest.mark.parametrize("dtype", ["f8", "f4"])
    @pytest.mark.parametrize("k", [2, 3, 6])
    def test_of_a_forest_has_a_point_per_distinct_prediction_and_the_areas_of_scikit_learn(self, k: int, dtype: str) -> None:
        log_probs, labels = voted(1500, k)
        pi = population(k)
        truth, weight = labels == k - 1, weights(torch.from_numpy(labels), pi)
        score = log_probs[:, -1].clip(-100)
        given = log_probs.astype(dtype)
        found = roc_curve(given, labels, k - 1, pi)
        precision = precision_recall_curve(given, labels, pi, k - 1)
        assert len(found.threshold) == len(np.unique(score)) + 1
        assert math.isclose(found.auc, reference.roc_auc_score(truth, score, sample_weight=weight), rel_tol=1e-9)
        expected = reference.average_precision_score(truth, score, sample_weight=weight)
        assert math.isclose(precision.average_precision, expected, rel_tol=1e-9)

    @pytest.mark.parametrize("dtype", ["f8", "f4"])
    def test_of_a_constant_prediction_is_the_diagonal_whatever_the_others_are(self, dtype: str) -> None:
        p = np.array([[0.6, 0.1, 0.3], [0.5, 0.2, 0.3], [0.4, 0.3, 0.3], [0.3, 0.4, 0.3], [0.2, 0.5, 0.3], [0.1, 0.6, 0.3]])
        found = roc_curve(np.log(p).astype(dtype), [0, 0, 1, 1, 2, 2], 2, [0.3, 0.3, 0.4])
        assert (found.auc, len(found.threshold)) == (0.5, 2)
        again = reliability_curve(np.log(p).astype(dtype), [0, 0, 1, 1, 2, 2], [0.3, 0.3, 0.4], 4, 2)
        assert len(again.weight) == 1

    @pytest.mark.parametrize("scale", [1.0, 4.0, 12.0])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize("k", [2, 3])
    def test_has_the_area_that_evaluate_gives(self, k: int, dtype: torch.dtype, scale: float) -> None:
        log_probs, labels = predictions(1000, k)
        given, pi = torch.log_softmax(scale * log_probs.to(dtype), 1), population(k)
        sample = labelled_sample(given, labels, pi)
        pairs = areas(sample, [rank(sample, c) for c in range(k)])[:, :, 0]
        for positive in range(k):
            rest = [c for c in range(k) if c != positive]
            expected = float(pairs[positive, rest] @ pi[rest] / pi[rest].sum())
            assert math.isclose(roc_curve(given, labels, positive, pi).auc, expected, rel_tol=1e-9)

    @pytest.mark.parametrize("as_array", [False, True])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
    @pytest.mark.parametrize("k", [2, 3])
    def test_calls_positive_whom_the_threshold_does(self, k: int, dtype: torch.dtype, as_array: bool) -> None:
        log_probs, labels = predictions(1000, k)
        given: Any = torch.log_softmax(3 * log_probs, 1).to(dtype)
        p = given.exp()[:, 1].double().numpy()
        if as_array:
            given = given.numpy()
            p = np.exp(given)[:, 1].astype(np.float64)
        y = labels.numpy() == 1
        pi = population(k)
        weight = weights(labels, pi)
        roc, precision = roc_curve(given, labels, 1, pi), precision_recall_curve(given, labels, pi, 1)
        assert set(roc.threshold[1:]) <= set(p)
        rounding = 2 * torch.finfo(dtype).eps
        points = list(zip(roc.threshold, roc.false_positive_rate, roc.true_positive_rate, strict=True))
        alone = [point for point in points if (np.abs(p - point[0]) <= rounding * p).sum() <= 1]
        assert len(alone) > {torch.float64: 0.999, torch.float32: 0.95, torch.float16: 0.05}[dtype] * len(points)
        for t, fpr, tpr in alone:  # the others are told apart by more than their probability
            called = p >= t
            assert math.isclose(tpr, called[y].mean(), abs_tol=1e-12)
            assert math.isclose(fpr, weight[called & ~y].sum() / weight[~y].sum(), abs_tol=1e-12)
        np.testing.assert_array_equal(precision.threshold, roc.threshold[1:])

    def test_of_two_classes_is_the_same_at_every_prevalence(self) -> None:
        log_probs, labels = predictions(300, 2)
        one, other = roc_curve(log_probs, labels), roc_curve(log_probs, labels, prevalence=0.001)
        np.testing.assert_allclose(one.false_positive_rate, other.false_positive_rate, atol=1e-12)
        np.testing.assert_allclose(one.true_positive_rate, other.true_positive_rate, atol=1e-12)

    def test_has_a_point_per_distinct_prediction_and_ends_at_the_corners(self) -> None:
        log_probs, labels = predictions(1000, 2, decimals=0)
        found = roc_curve(log_probs, labels)
        distinct = len({round(p, 12) for p in log_probs[:, 1].exp().tolist()})
        assert len(found.threshold) == distinct + 1
        for rates in (found.false_positive_rate, found.true_positive_rate):
            assert (rates[0], rates[-1]) == (0.0, 1.0)
        constant = roc_curve(torch.full((10, 2), math.log(0.5)), torch.arange(10) % 2)
        assert constant.auc == 0.5
        assert len(constant.threshold) == 2

    def test_of_the_other_class_is_its_mirror_image(self) -> None:
        log_probs, labels = predictions(300, 2)
        assert math.isclose(roc_curve(log_probs, labels, 0).auc, roc_curve(log_probs, labels, 1).auc, rel_tol=1e-12)

    def test_certain_predictions_and_ones_beyond_float_precision_are_ranked(self) -> None:
        log_probs = torch.tensor([[0.0, -math.inf], [-800.0, 0.0], [-900.0, 0.0], [-math.inf, 0.0]], dtype=torch.float64)
        found = roc_curve(log_probs, [0, 0, 1, 1])
        assert found.auc == 1
        assert len(found.threshold) == 5


class TestSoftVotes:
    def test_are_as_many_readers_as_vote(self) -> None:
        log_probs, _ = predictions(60, 3)
        readers = torch.randint(3, (60, 4), generator=generator(3))
        readers[:3] = torch.arange(3)[:, None]
        votes = torch.nn.functional.one_hot(readers, 3).double().mean(1)
        each, labels, pi = log_probs.repeat_interleave(4, 0), readers.flatten(), population(3)
        assert math.isclose(
            precision_recall_curve(log_probs, votes, pi, 2).average_precision,
            precision_recall_curve(each, labels, pi, 2).average_precision,
            rel_tol=1e-12,
        )
        assert math.isclose(roc_curve(log_probs, votes, 1, pi).auc, roc_curve(each, labels, 1, pi).auc, rel_tol=1e-12)
        pairs = [
            (call(log_probs, votes), call(each, labels))
            for call in (
                lambda p, y: decision_curve(p, y, pi, positive=1).net_benefit,
                lambda p, y: predictive_value_curve(p, y, threshold=0.3, from_=pi, positive=1).ppv,
                lambda p, y: reliability_curve(p, y, pi, 5, 1).observed,
                lambda p, y: reliability_curve(p, y, pi, 5, 1).predicted,
                lambda p, y: probability_histogram(p, y, 7, 1).share,
            )
        ]
        for soft, hard in pairs:
            np.testing.assert_allclose(soft, hard, rtol=1e-10, atol=1e-14)

    def test_ignored_rows_count_for_nothing(self) -> None:
        log_probs, labels = predictions(200, 2)
        dropped = torch.where(torch.arange(200) % 3 == 0, -100, labels)
        kept = dropped != -100
        assert roc_curve(log_probs, dropped).auc == roc_curve(log_probs[kept], labels[kept]).auc


class TestPrecisionRecall:
    @pytest.mark.parametrize("decimals", [None, 0])
    @pytest.mark.parametrize("k", [2, 3])
    @pytest.mark.parametrize("seed", SEEDS)
    def test_is_that_of_scikit_learn_with_the_weights_of_the_population(self, seed: int, k: int, decimals: int | None) -> None:
        log_probs, labels = predictions(300, k, seed, decimals)
        pi = population(k, seed)
        truth, weight = (labels == 1).numpy(), weights(labels, pi)
        score = log_probs[:, 1].double().numpy().round(10)
        found = precision_recall_curve(log_probs, labels, pi, 1)
        precision, recall, _ = reference.precision_recall_curve(truth, score, sample_weight=weight)
        np.testing.assert_allclose(found.precision, precision[:-1][::-1], rtol=1e-9)
        np.testing.assert_allclose(found.recall, recall[:-1][::-1], rtol=1e-9, atol=1e-12)
        expected = reference.average_precision_score(truth, score, sample_weight=weight)
        assert math.isclose(found.average_precision, expected, rel_tol=1e-9)

    def test_calls_everybody_at_the_prevalence(self) -> None:
        log_probs, labels = predictions(300, 2)
        found = precision_recall_curve(log_probs, labels, 0.003)
        assert math.isclose(found.precision[-1], 0.003, rel_tol=1e-9)
        assert (found.recall[-1], found.prevalence) == (1.0, 0.003)


class TestPredictiveValues:
    def test_prevalences_can_come_in_a_tensor_with_gradient(self) -> None:
        grid = torch.tensor([0.25, 0.125], requires_grad=True)
        found = predictive_value_curve(*predictions(100, 2), threshold=0.4, prevalences=grid)
        assert found.prevalence.tolist() == [0.125, 0.25]

    def test_follow_from_counts_by_bayes_rule(self) -> None:
        log_probs, labels = predictions(500, 2)
        found = predictive_value_curve(log_probs.numpy(), labels.numpy(), threshold=0.4, prevalences=[0.3, 0.01])
        called = (log_probs[:, 1].exp() >= 0.4).numpy()
        y = labels.numpy()
        tpr, tnr = called[y == 1].mean(), 1 - called[y == 0].mean()
        assert found.prevalence.tolist() == [0.01, 0.3]
        for j, pi in enumerate(found.prevalence):
            people = {(c, d): (pi if c else 1 - pi) * (called[y == c] == d).mean() for c in (0, 1) for d in (0, 1)}
            assert math.isclose(found.ppv[j], people[1, 1] / (people[1, 1] + people[0, 1]), rel_tol=1e-12)
            assert math.isclose(found.npv[j], people[0, 0] / (people[0, 0] + people[1, 0]), rel_tol=1e-12)
        np.testing.assert_allclose(found.true_positive_rate, tpr, rtol=1e-12)
        np.testing.assert_allclose(found.true_negative_rate, tnr, rtol=1e-12)

    def test_retargeted_are_those_of_predictions_moved_by_hand(self) -> None:
        log_probs, labels = predictions(500, 3)
        start = Prevalence(population(3, 1))
        pi0 = start.population
        grid = np.array([0.1, 0.2, 0.6])
        found = predictive_value_curve(
            log_probs, labels, threshold=0.3, prevalences=grid, retarget=True, from_=start, positive=2
        )
        for j, rate in enumerate(grid):
            pi = pi0 * (1 - rate) / (1 - pi0[2])
            pi[2] = rate
            moved = torch.log_softmax(log_probs + pi.log() - pi0.log(), 1)
            fixed = predictive_value_curve(moved, labels, threshold=0.3, prevalences=[rate], from_=pi, positive=2)
            for name in ("ppv", "npv", "true_positive_rate", "true_negative_rate"):
                assert math.isclose(getattr(found, name)[j], getattr(fixed, name)[0], rel_tol=1e-9), name

    def test_retargeted_to_their_own_prevalence_do_not_move(self) -> None:
        log_probs, labels = predictions(500, 2)
        moved = predictive_value_curve(log_probs, labels, threshold=0.3, prevalences=[0.2], retarget=True, from_=0.2)
        still = predictive_value_curve(log_probs, labels, threshold=0.3, prevalences=[0.2])
        np.testing.assert_allclose(moved.threshold, still.threshold, rtol=1e-12)
        assert moved.ppv == still.ppv

    def test_retargeted_keep_at_least_the_threshold_and_fixed_ones_lose_it(self) -> None:
        log_probs, y = normals(0.5, 20_000, 0)
        grid = [0.001, 0.01]
        moved = predictive_value_curve(log_probs, y, threshold=0.2, prevalences=grid, retarget=True, from_=0.5)
        fixed = predictive_value_curve(log_probs, y, threshold=0.2, prevalences=grid)
        assert bool((moved.ppv_high > 0.2).all())
        assert bool((fixed.ppv_high < 0.05).all())

    @pytest.mark.parametrize("decimals", [None, 0])
    @pytest.mark.parametrize("share", [0.5, 0.9, 0.95])
    def test_at_a_rate_take_the_threshold_that_just_reaches_it(self, share: float, decimals: int | None) -> None:
        log_probs, labels = predictions(401, 2, decimals=decimals)
        odds = log_probs[:, 1] - log_probs[:, 0]
        cuts = torch.cat([odds.unique(), torch.tensor([math.inf])]).tolist()
        rates = [[float((odds[labels == c] >= cut).double().mean()) for c in (0, 1)] for cut in cuts]
        found = predictive_value_curve(log_probs, labels, tpr=share, prevalences=[0.1])
        best = max(j for j, (_, tpr) in enumerate(rates) if tpr >= share)
        assert found.true_positive_rate.tolist() == [pytest.approx(rates[best][1])]
        assert found.true_negative_rate.tolist() == [pytest.approx(1 - rates[best][0])]
        found = predictive_value_curve(log_probs, labels, tnr=share, prevalences=[0.1])
        best = min(j for j, (fpr, _) in enumerate(rates) if 1 - fpr >= share)
        assert found.true_positive_rate.tolist() == [pytest.approx(rates[best][1])]
        assert found.true_negative_rate.tolist() == [pytest.approx(1 - rates[best][0])]

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize("decimals", [None, 1, 0])
    @pytest.mark.parametrize("k", [2, 3])
    def test_at_a_rate_are_those_at_the_threshold_that_comes_with_it(
        self, k: int, decimals: int | None, dtype: torch.dtype
    ) -> None:
        log_probs, labels = predictions(400, k, decimals=decimals)
        given, pi = log_probs.to(dtype), population(k)
        options: dict[str, Any] = {"prevalences": [0.1], "from_": pi, "positive": 1}
        for share in (0.05, 0.3, 0.5, 0.8, 0.9, 0.95, 0.999):
            for rate in ("tpr", "tnr"):
                found = predictive_value_curve(given, labels, **{**options, rate: share})
                again = predictive_value_curve(given, labels, threshold=found.threshold[0], **options)
                for name in ("true_positive_rate", "true_negative_rate", "ppv", "npv"):
                    np.testing.assert_array_equal(getattr(found, name), getattr(again, name))
                reached = found.true_positive_rate if rate == "tpr" else found.true_negative_rate
                assert reached[0] >= share - 1e-12
                if k == 2:
                    called = decide(given, threshold=found.threshold[0])
                    assert float(called[labels == 1].double().mean()) == pytest.approx(found.true_positive_rate[0])
                    assert float(called[labels == 0].double().mean()) == pytest.approx(1 - found.true_negative_rate[0])

    def test_at_a_rate_keep_to_thresholds_that_a_float_holds(self) -> None:
        log_probs = torch.tensor([[0.0, -900.0], [0.0, -800.0], [math.log(0.5)] * 2, [-math.inf, 0.0]], dtype=torch.float64)
        found = predictive_value_curve(log_probs, [0, 1, 0, 1], tpr=0.5, prevalences=[0.1])
        assert found.true_positive_rate == 0.5
        assert 0.5 < found.threshold[0] < 1
        assert_refused(
            lambda: predictive_value_curve(log_probs, [0, 1, 0, 1], tpr=0.9, prevalences=[0.1]),
            "`tpr` of 0.9, but .* certain of another class than 1: ",
        )

    @pytest.mark.parametrize("k", [2, 3])
    def test_of_the_vaguest_prevalence_have_limits(self, k: int) -> None:
        """Draws of π in which one class is all there is."""
        log_probs, labels = predictions(100, k)
        vague = Prevalence.dirichlet([1e-3] * k)
        values = predictive_value_curve(log_probs, labels, threshold=0.4, prevalences=vague, positive=1)
        benefit = decision_curve(log_probs, labels, vague, [0.2, 0.4], positive=1)
        for each in (values.ppv_low, values.ppv_high, values.npv_low, values.npv_high, benefit.low, benefit.high):
            assert bool(np.isfinite(each).all())

    def test_at_a_rate_take_a_threshold_between_predictions(self) -> None:
        p = np.array([0.1, 0.4, 0.4, 0.4, 0.4, 0.9])
        found = predictive_value_curve(np.log(np.stack([1 - p, p], 1)), [0, 0, 0, 0, 1, 1], tnr=0.9, prevalences=[0.1])
        assert found.true_negative_rate == 1
        assert 0.45 < found.threshold[0] < 0.85
        top = predictive_value_curve(np.log(np.stack([1 - p, p], 1)), [1, 0, 0, 0, 1, 0], tnr=0.9, prevalences=[0.1])
        assert 0.9 < top.threshold[0] < 1
        assert top.true_negative_rate == 1

    def test_retargeted_move_even_those_whose_probability_rounds_to_1(self) -> None:
        logits = torch.tensor([[0.0, 0.0, 20.0], [0.0, 0.0, 30.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
        given = torch.log_softmax(logits, 1)
        assert given[:2, 2].tolist() == [0, 0]
        found = predictive_value_curve(
            given, [2, 2, 1, 0], threshold=0.5, prevalences=[1e-10], retarget=True, from_=[0.25, 0.25, 0.5], positive=2
        )
        assert found.true_positive_rate == 0.5  # at −3.7 and 6.3 of the log-odds

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_a_prediction_at_the_threshold_is_called_as_decide_calls_it(self, dtype: torch.dtype) -> None:
        p = torch.arange(1, 100, dtype=torch.float64) / 100
        log_probs = torch.stack([torch.log1p(-p), p.log()], 1).to(dtype)
        labels = torch.arange(99) % 2
        for percent in range(1, 100):
            t = percent / 100
            found = predictive_value_curve(log_probs, labels, threshold=t, prevalences=[0.5])
            called = decide(log_probs, threshold=t).double()
            assert int(called.sum()) == 100 - percent
            assert found.true_positive_rate.tolist() == [pytest.approx(float(called[labels == 1].mean()))]

    def test_where_nobody_is_called_positive_there_is_no_ppv(self) -> None:
        log_probs, labels = predictions(100, 2)
        found = predictive_value_curve(log_probs, labels, threshold=1 - 1e-12, prevalences=[0.01])
        assert math.isnan(found.ppv[0])
        assert (found.ppv_low[0], found.ppv_high[0], found.npv[0]) == (0.0, 1.0, 0.99)

    @pytest.mark.parametrize(("n0", "n1", "t"), [(150, 60, 0.5), (600, 25, 0.7)])
    def test_limits_cover_the_truth(self, n0: int, n1: int, t: float) -> None:
        tpr, fpr = (float(rate[0]) for rate in true_rates(0.5, t))
        grid = np.array([0.001, 0.05, 0.4])
        ppv = grid * tpr / (grid * tpr + (1 - grid) * fpr)
        npv = (1 - grid) * (1 - fpr) / ((1 - grid) * (1 - fpr) + grid * (1 - tpr))
        hits = []
        for seed in range(300):
            log_probs, y = normals(0.5, max(n0, n1), seed)
            kept = torch.cat([torch.arange(n0), len(y) // 2 + torch.arange(n1)])
            found = predictive_value_curve(log_probs[kept], y[kept], threshold=t, prevalences=grid)
            inside = (found.ppv_low <= ppv) & (ppv <= found.ppv_high), (found.npv_low <= npv) & (npv <= found.npv_high)
            hits.append(np.concatenate(inside))
        assert_covers(hits)

    def test_an_uncertain_prevalence_widens_the_limits_and_a_firm_one_does_not(self) -> None:
        log_probs, y = normals(0.5, 3000, 0)
        certain = predictive_value_curve(log_probs, y, threshold=0.5, prevalences=[0.02])
        firm = predictive_value_curve(log_probs, y, threshold=0.5, prevalences=Prevalence.beta(2e7, 98e7))
        loose = predictive_value_curve(log_probs, y, threshold=0.5, prevalences=Prevalence.beta(4.0, 196.0))
        assert firm.ppv == pytest.approx(certain.ppv, rel=1e-12)
        np.testing.assert_allclose([firm.ppv_low, firm.ppv_high], [certain.ppv_low, certain.ppv_high], rtol=0.02)
        # with the rates known, the limits are those of π by Bayes' rule
        drawn = np.random.default_rng(0).beta(4.0, 196.0, 200_000)
        tpr, fpr = loose.true_positive_rate, 1 - loose.true_negative_rate
        expected = np.quantile(drawn * tpr / (drawn * tpr + (1 - drawn) * fpr), [0.025, 0.975])
        np.testing.assert_allclose([loose.ppv_low[0], loose.ppv_high[0]], expected, rtol=0.1)


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


class TestDecisionCurve:
    def test_is_what_counting_gives(self) -> None:
        log_probs, labels = predictions(300, 2)
        found = decision_curve(log_probs, labels, 0.05, thresholds=[0.5, 0.02, 0.2])
        p, y = log_probs[:, 1].exp().numpy(), labels.numpy()
        for j, t in enumerate([0.02, 0.2, 0.5]):
            helped = 0.05 * np.mean(p[y == 1] >= t)
            bothered = 0.95 * np.mean(p[y == 0] >= t)
            assert math.isclose(found.net_benefit[j], helped - bothered * t / (1 - t), rel_tol=1e-12)
            assert math.isclose(found.treat_all[j], 0.05 - 0.95 * t / (1 - t), rel_tol=1e-12)
        assert found.treat_none.tolist() == [0, 0, 0]

    def test_is_the_gain_of_the_decisions_in_the_costs_of_the_threshold(self) -> None:
        log_probs, labels = predictions(300, 2)
        t = 0.15
        saved = decision_curve(log_probs, labels, 0.1, [t]).net_benefit[0]
        chosen = decide(log_probs, [[0, t / (1 - t)], [0, -1.0]])
        paid = np.where(labels == 1, -1.0, t / (1 - t)) * chosen.numpy()
        assert math.isclose(saved, -float(weights(labels, torch.tensor([0.9, 0.1], dtype=torch.float64)) @ paid), rel_tol=1e-12)

    def test_of_the_true_predictions_is_never_below_treating_all_or_none(self) -> None:
        found = decision_curve(*normals(0.03, 30_000, 0), 0.03)
        best = np.maximum(found.treat_all, 0)
        assert bool((found.high >= best).all())
        assert found.net_benefit[50] > best[50] + 0.005
        tpr, fpr = true_rates(0.03, found.threshold)
        truth = 0.03 * tpr - 0.97 * fpr * found.threshold / (1 - found.threshold)
        np.testing.assert_allclose(found.net_benefit, truth, atol=2e-3)
        assert found.threshold[50] == pytest.approx(0.03)

    def test_limits_cover_the_truth(self) -> None:
        grid = np.array([0.02, 0.05, 0.2])
        tpr, fpr = true_rates(0.05, grid)
        truth = 0.05 * tpr - 0.95 * fpr * grid / (1 - grid)
        hits = []
        for seed in range(300):
            found = decision_curve(*normals(0.05, 150, seed), 0.05, grid)
            hits.append((found.low <= truth) & (truth <= found.high))
        assert_covers(hits)

    def test_limits_with_an_uncertain_prevalence_cover_a_truth_drawn_from_it(self) -> None:
        grid = np.array([0.02, 0.1])
        uncertain = Prevalence.beta(5.0, 95.0)
        rates = uncertain.sample(300, generator(9))[:, 1].tolist()
        tpr, fpr = true_rates(0.05, grid)
        hits = []
        for seed, rate in enumerate(rates):
            truth = rate * tpr - (1 - rate) * fpr * grid / (1 - grid)
            found = decision_curve(*normals(0.05, 300, seed), uncertain, grid)
            hits.append((found.low <= truth) & (truth <= found.high))
        assert_covers(hits)


class TestHistogram:
    @pytest.mark.parametrize("scale", ["probability", "log-odds"])
    def test_is_that_of_numpy_by_class(self, scale: str) -> None:
        log_probs, labels = predictions(500, 3)
        found = probability_histogram(log_probs, labels, 12, positive=1, scale=scale)
        p = log_probs[:, 1].exp().numpy()
        values = p if scale == "probability" else np.log(p / (1 - p))
        for c in range(3):
            own = values[labels.numpy() == c]
            count, _ = np.histogram(own, bins=found.edges)
            edge = (
                1e-9 if scale == "probability" else 1 + 1e-9
            )  # the outermost values are edges, and rounding may put them beside
            assert np.abs(found.share[c] * len(own) - count).max() <= edge
        np.testing.assert_allclose(found.share.sum(1), 1, rtol=1e-12)

    def test_what_lies_outside_the_edges_counts_to_the_outermost_bin(self) -> None:
        log_probs = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0], [math.log(0.5)] * 2, [math.log(0.5)] * 2])
        found = probability_histogram(log_probs, [0, 1, 0, 1], [-1.0, -0.5, 0.5, 1.0], scale="log-odds")
        assert found.share.tolist() == [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
        assert probability_histogram(log_probs, [0, 1, 0, 1], 4).share.tolist() == [[0.5, 0, 0.5, 0], [0, 0, 0.5, 0.5]]


@pytest.mark.parametrize("rate", [0.5, 0.01])
def test_time_grows_as_that_of_sorting(rate: float) -> None:
    def seconds(n: int) -> float:
        log_probs, labels = predictions(n, 2)
        start = time.process_time()
        precision_recall_curve(log_probs, labels, rate)
        return time.process_time() - start

    seconds(1000)
    assert seconds(1_000_000) < 40 * max(seconds(100_000) for _ in range(3))  # about 12 times; a loop over pairs takes 100


def test_memory_does_not_grow_with_the_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    log_probs, labels = predictions(2000, 100)
    pi, grid, drawn = population(100), np.linspace(0.01, 0.3, 30), []
    gamma = torch._standard_gamma

    def counted(concentration: Tensor, **options: Any) -> Tensor:
        drawn.append(concentration.numel())
        return gamma(concentration, **options)

    monkeypatch.setattr(torch, "_standard_gamma", counted)
    for call in (
        lambda: decision_curve(log_probs, labels, pi, grid, positive=1),
        lambda: predictive_value_curve(log_probs, labels, threshold=0.1, prevalences=grid, retarget=True, from_=pi, positive=1),
        lambda: reliability_curve(log_probs, labels, pi, positive=1),
    ):
        tracemalloc.start()  # which sees NumPy's arrays
        call()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 40e6  # bytes; a table of draws × grid × classes has 48e6 and 96e6
    assert max(drawn) == 4000 * 30


TWO, THREE = predictions(20, 2), predictions(30, 3)
ONE_CLASS = (TWO[0], torch.zeros(20).long())
CALLS: dict[str, Callable[..., Any]] = {
    "roc": lambda p, y, **k: roc_curve(p, y, prevalence=0.1, **k),
    "precision": lambda p, y, **k: precision_recall_curve(p, y, 0.1, **k),
    "values": lambda p, y, **k: predictive_value_curve(p, y, threshold=0.5, **k),
    "reliability": lambda p, y, **k: reliability_curve(p, y, 0.1, **k),
    "net benefit": lambda p, y, **k: decision_curve(p, y, 0.1, **k),
    "histogram": lambda p, y, **k: probability_histogram(p, y, 5, **k),
}


@pytest.mark.parametrize("call", CALLS)
class TestEveryCurve:
    def test_refuses_a_class_without_examples(self, call: str) -> None:
        assert_refused(lambda: CALLS[call](*ONE_CLASS), r"every class .*but class\(es\) \[1\] have none")

    def test_refuses_logits(self, call: str) -> None:
        assert_refused(lambda: CALLS[call](TWO[0] + 1, TWO[1]), "log-probabilities")

    def test_refuses_a_class_that_is_not_there(self, call: str) -> None:
        assert_refused(lambda: CALLS[call](*TWO, positive=2), r"`positive` .*0\.\.1, but got 2")
        assert_refused(lambda: CALLS[call](*TWO, positive=True), "`positive` .*but got True")

    def test_refuses_to_guess_the_class_among_three(self, call: str) -> None:
        assert_refused(lambda: CALLS[call](*THREE), r"`positive`, one of the classes 0\.\.2, but got none")

    def test_of_arrays_is_that_of_tensors(self, call: str) -> None:
        one, other = CALLS[call](*TWO), CALLS[call](TWO[0].numpy(), TWO[1].tolist())
        for name, value in vars(one).items():
            if name in ("threshold", "predicted"):  # the two libraries differ in the last digit of exp
                np.testing.assert_allclose(value, getattr(other, name), rtol=1e-15)
            else:
                np.testing.assert_array_equal(value, getattr(other, name))


P2, Y2 = TWO
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "no mix of the rest": (lambda: roc_curve(*THREE, positive=1), "prevalence for a ROC curve .*2 others, but got none"),
    "no mix of the rest for values": (
        lambda: predictive_value_curve(*THREE, threshold=0.5, positive=1),
        "prevalence for predictive values .*but got none",
    ),
    "no operating point": (lambda: predictive_value_curve(P2, Y2), "one of `threshold`, `tpr` and `tnr`, but got none"),
    "two operating points": (lambda: predictive_value_curve(P2, Y2, tpr=0.5, tnr=0.5), r"but got \['tpr', 'tnr'\]"),
    "a threshold in per cent": (lambda: predictive_value_curve(P2, Y2, threshold=20), "is it a percentage"),
    "a rate in per cent": (lambda: predictive_value_curve(P2, Y2, tpr=90), r"`tpr` strictly .*but got \[90"),
    "prevalences in per cent": (
        lambda: predictive_value_curve(P2, Y2, threshold=0.5, prevalences=[1, 10]),
        r"`prevalences` strictly between 0 and 1, but got \[1.0, 10.0\]",
    ),
    "no prevalences": (
        lambda: predictive_value_curve(P2, Y2, threshold=0.5, prevalences=[]),
        "`prevalences` strictly between",
    ),
    "prevalences in words": (
        lambda: predictive_value_curve(P2, Y2, threshold=0.5, prevalences=["low"]),
        "`prevalences` to be numbers",
    ),
    "a prevalence of other classes": (
        lambda: predictive_value_curve(P2, Y2, threshold=0.5, prevalences=Prevalence(population(3))),
        "2 classes.*but got 3",
    ),
    "a prevalence of other classes than the start": (
        lambda: predictive_value_curve(P2, Y2, threshold=0.5, prevalences=Prevalence(population(3)), from_=0.5),
        "2 classes, but got 3",
    ),
    "retargeting from nowhere": (
        lambda: predictive_value_curve(P2, Y2, threshold=0.5, retarget=True),
        "`threshold` and `from_` to retarget, but got threshold and from_=None",
    ),
    "retargeting a rate": (
        lambda: predictive_value_curve(P2, Y2, tpr=0.9, retarget=True, from_=0.5),
        "to retarget, but got tpr",
    ),
    "a rate beyond what a probability can tell apart": (
        lambda: predictive_value_curve(torch.tensor([[-50.0, 0.0], [-60.0, 0.0]]).double(), [0, 1], tnr=0.5),
        "`tnr` of 0.5, but .* certain of class 1: ",
    ),
    "a seed for a generator": (lambda: decision_curve(P2, Y2, 0.1, generator=0), r"torch\.Generator, but got int: "),
    "a generator of NumPy": (
        lambda: reliability_curve(P2, Y2, 0.1, generator=np.random.default_rng(0)),
        r"torch\.Generator, but got Generator of numpy",
    ),
    "a number for a generator of values": (
        lambda: predictive_value_curve(P2, Y2, threshold=0.5, generator=1.0),
        r"torch\.Generator, but got float: ",
    ),
    "a rule for bins": (lambda: probability_histogram(P2, Y2, "auto"), "`bins` to be numbers, but got str"),
    "a rate beyond reach": (
        lambda: predictive_value_curve(torch.tensor([[-math.inf, 0.0]] * 4), [0, 1, 0, 1], tnr=0.5),
        "`tnr` of 0.5, but .* certain of class 1: ",
    ),
    "a level in per cent": (lambda: decision_curve(P2, Y2, 0.1, level=95), "`level` .*but got 95"),
    "thresholds of 0": (lambda: decision_curve(P2, Y2, 0.1, thresholds=[0.0, 0.5]), "`thresholds` strictly"),
    "no bins": (lambda: reliability_curve(P2, Y2, 0.1, bins=0), "`bins` .*≥ 1, but got 0"),
    "another width": (lambda: reliability_curve(P2, Y2, 0.1, width="equal"), "equal-mass.*but got 'equal'"),
    "another scale": (lambda: probability_histogram(P2, Y2, scale="odds"), "log-odds.*but got 'odds'"),
    "no bins of a histogram": (lambda: probability_histogram(P2, Y2, 0), "at least one of `bins`, but got 0"),
    "falling edges": (lambda: probability_histogram(P2, Y2, [1.0, 0.0]), "rising edges, but got"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_what_came_and_what_to_do(what: str) -> None:
    assert_refused(*BAD[what])
