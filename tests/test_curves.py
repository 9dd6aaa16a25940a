"""Curves: against scikit-learn at the population's weights, by counting, on a population known in closed form; bad input."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
from draws import assert_refused, population, stream
from labelled import SEEDS, predictions, voted, weights
from scipy.special import log_softmax
from sklearn import metrics as reference

from rightloss.metrics import evaluate
from rightloss.metrics.calibration import reliability_curve
from rightloss.metrics.class_statistics import pairwise_areas, rank
from rightloss.metrics.curves import precision_recall_curve, probability_histogram, roc_curve
from rightloss.metrics.predictive_values import decision_curve, operating_point, predictive_value_curve
from rightloss.metrics.sample import labelled_sample
from rightloss.prevalence import Prevalence


class TestRoc:
    @pytest.mark.parametrize("decimals", [None, 1, 0])
    @pytest.mark.parametrize("seed", SEEDS)
    def test_is_that_of_scikit_learn(self, seed: int, decimals: int | None) -> None:
        log_probs, labels = predictions(400, 2, seed, decimals)
        odds = log_probs[:, 1] - log_probs[:, 0]
        found = roc_curve(log_probs, labels)
        fpr, tpr, threshold = reference.roc_curve(labels, odds, drop_intermediate=False)
        np.testing.assert_allclose(found.false_positive_rate, fpr, atol=1e-12)
        np.testing.assert_allclose(found.true_positive_rate, tpr, atol=1e-12)
        np.testing.assert_allclose(found.threshold[1:], 1 / (1 + np.exp(-threshold[1:])), rtol=1e-12)
        assert found.threshold[0] == math.inf
        assert math.isclose(found.auc, reference.roc_auc_score(labels, odds), rel_tol=1e-12)

    @pytest.mark.parametrize("seed", SEEDS)
    def test_of_one_class_against_the_rest_weighs_the_rest_as_the_population_does(self, seed: int) -> None:
        log_probs, labels = predictions(500, 4, seed)
        pi = population(4, seed)
        for positive in range(4):
            found = roc_curve(log_probs, labels, positive, pi)
            truth, score, weight = (labels == positive), log_probs[:, positive], weights(labels, pi)
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
        truth, weight = labels == k - 1, weights(labels, pi)
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
    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    @pytest.mark.parametrize("k", [2, 3])
    def test_has_the_area_that_evaluate_gives(self, k: int, dtype: Any, scale: float) -> None:
        log_probs, labels = predictions(1000, k)
        given, pi = log_softmax(scale * log_probs.astype(dtype), axis=1), population(k)
        sample = labelled_sample(given, labels, pi)
        pairs = pairwise_areas(sample, tuple(rank(sample, c) for c in range(k)))[:, :, 0]
        for positive in range(k):
            rest = [c for c in range(k) if c != positive]
            expected = float(pairs[positive, rest] @ pi[rest] / pi[rest].sum())
            assert math.isclose(roc_curve(given, labels, positive, pi).auc, expected, rel_tol=1e-9)

    @pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
    @pytest.mark.parametrize("k", [2, 3])
    def test_has_the_rates_of_its_thresholds(self, k: int, dtype: Any) -> None:
        log_probs, labels = predictions(1000, k)
        given = log_softmax(3 * log_probs, axis=1).astype(dtype)
        p = np.exp(given)[:, 1].astype(np.float64)
        y = labels == 1
        pi = population(k)
        weight = weights(labels, pi)
        roc, precision = roc_curve(given, labels, 1, pi), precision_recall_curve(given, labels, pi, 1)
        assert set(roc.threshold[1:]) <= set(p)
        rounding = 2 * np.finfo(dtype).eps
        points = list(zip(roc.threshold, roc.false_positive_rate, roc.true_positive_rate, strict=True))
        alone = [point for point in points if (np.abs(p - point[0]) <= rounding * p).sum() <= 1]
        assert len(alone) > {np.float64: 0.999, np.float32: 0.95, np.float16: 0.05}[dtype] * len(points)
        for t, fpr, tpr in alone:  # the others differ by more than their probability
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
        distinct = len({round(p, 12) for p in np.exp(log_probs[:, 1]).tolist()})
        assert len(found.threshold) == distinct + 1
        for rates in (found.false_positive_rate, found.true_positive_rate):
            assert (rates[0], rates[-1]) == (0.0, 1.0)
        constant = roc_curve(np.full((10, 2), math.log(0.5)), np.arange(10) % 2)
        assert constant.auc == 0.5
        assert len(constant.threshold) == 2

    def test_of_the_other_class_is_its_mirror_image(self) -> None:
        log_probs, labels = predictions(300, 2)
        assert math.isclose(roc_curve(log_probs, labels, 0).auc, roc_curve(log_probs, labels, 1).auc, rel_tol=1e-12)

    def test_certain_predictions_and_ones_beyond_float_precision_are_ranked(self) -> None:
        log_probs = np.array([[0.0, -math.inf], [-800.0, 0.0], [-900.0, 0.0], [-math.inf, 0.0]])
        found = roc_curve(log_probs, [0, 0, 1, 1])
        assert found.auc == 1
        assert len(found.threshold) == 5


class TestSoftVotes:
    @pytest.mark.long
    def test_are_as_many_readers_as_vote(self) -> None:
        log_probs, _ = predictions(60, 3)
        readers = stream(3).integers(3, size=(60, 4))
        readers[:3] = np.arange(3)[:, None]
        votes = np.eye(3)[readers].mean(1)
        each, labels, pi = np.repeat(log_probs, 4, 0), readers.ravel(), population(3)
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
        dropped = np.where(np.arange(200) % 3 == 0, -100, labels)
        kept = dropped != -100
        assert roc_curve(log_probs, dropped).auc == roc_curve(log_probs[kept], labels[kept]).auc


class TestPrecisionRecall:
    @pytest.mark.parametrize("decimals", [None, 0])
    @pytest.mark.parametrize("k", [2, 3])
    @pytest.mark.parametrize("seed", SEEDS)
    def test_is_that_of_scikit_learn_with_the_weights_of_the_population(self, seed: int, k: int, decimals: int | None) -> None:
        log_probs, labels = predictions(300, k, seed, decimals)
        pi = population(k, seed)
        truth, weight = (labels == 1), weights(labels, pi)
        score = log_probs[:, 1].round(10)
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


class TestHistogram:
    @pytest.mark.parametrize("scale", ["probability", "log-odds"])
    def test_is_that_of_numpy_by_class(self, scale: Literal["probability", "log-odds"]) -> None:
        log_probs, labels = predictions(500, 3)
        found = probability_histogram(log_probs, labels, 12, positive=1, scale=scale)
        p = np.exp(log_probs[:, 1])
        values = p if scale == "probability" else np.log(p / (1 - p))
        for c in range(3):
            own = values[labels == c]
            count, _ = np.histogram(own, bins=found.edges)
            edge = (
                1e-9 if scale == "probability" else 1 + 1e-9
            )  # the outermost values are edges, and rounding may put them beside
            assert np.abs(found.share[c] * len(own) - count).max() <= edge
        np.testing.assert_allclose(found.share.sum(1), 1, rtol=1e-12)

    def test_what_lies_outside_the_edges_counts_to_the_outermost_bin(self) -> None:
        log_probs = np.array([[0.0, -math.inf], [-math.inf, 0.0], [math.log(0.5)] * 2, [math.log(0.5)] * 2])
        found = probability_histogram(log_probs, [0, 1, 0, 1], [-1.0, -0.5, 0.5, 1.0], scale="log-odds")
        assert found.share.tolist() == [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
        assert probability_histogram(log_probs, [0, 1, 0, 1], 4).share.tolist() == [[0.5, 0, 0.5, 0], [0, 0, 0.5, 0.5]]


@pytest.mark.long
def test_memory_does_not_grow_with_the_classes() -> None:
    log_probs, labels = predictions(1000, 50)
    pi, grid = population(50), np.linspace(0.01, 0.3, 30)
    for call in (
        lambda: decision_curve(log_probs, labels, pi, grid, positive=1),
        lambda: predictive_value_curve(log_probs, labels, threshold=0.1, prevalences=grid, retarget=True, from_=pi, positive=1),
        lambda: reliability_curve(log_probs, labels, pi, positive=1),
    ):
        tracemalloc.start()
        call()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 20e6  # bytes; a table of draws × grid × classes has 24e6 and 48e6


TWO, THREE = predictions(20, 2), predictions(30, 3)
ONE_CLASS = (TWO[0], np.zeros(20, int))
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

    @pytest.mark.long
    def test_of_arrays_is_that_of_lists_and_tensors(self, call: str) -> None:
        torch = pytest.importorskip("torch")
        expected = vars(CALLS[call](*TWO))
        for log_probs, y in ((TWO[0].tolist(), TWO[1].tolist()), (torch.from_numpy(TWO[0]), torch.from_numpy(TWO[1]))):
            np.testing.assert_equal(vars(CALLS[call](log_probs, y)), expected)


P2, Y2 = TWO
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "no mix of the rest": (lambda: roc_curve(*THREE, positive=1), "prevalence for a ROC curve .*2 others, but got none"),
    "no mix of the rest for values": (
        lambda: predictive_value_curve(*THREE, threshold=0.5, positive=1),
        "prevalence for predictive values .*but got none",
    ),
    "a threshold in per cent": (lambda: predictive_value_curve(P2, Y2, threshold=20), "is it a percentage"),
    "a rate in per cent": (lambda: operating_point(P2, Y2, 0.1, recall=90), r"`recall` strictly .*but got \[90"),
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
        "2 classes.*but got 3",
    ),
    "retargeting from nowhere": (
        lambda: predictive_value_curve(P2, Y2, threshold=0.5, retarget=True),
        "`from_` to retarget, but got none",
    ),
    "a rate beyond what a probability can tell apart": (
        lambda: operating_point(np.array([[-50.0, 0.0], [-60.0, 0.0]]), [0, 1], 0.1, specificity=0.5),
        "`specificity` of 0.5, but .* certain, of class 1: ",
    ),
    "words for a generator": (lambda: decision_curve(P2, Y2, 0.1, generator="0"), "or a seed, but got '0': "),
    "a generator of the standard library": (
        lambda: reliability_curve(P2, Y2, 0.1, generator=random.Random(0)),
        "numpy.random.Generator, .*, but got <random.Random",
    ),
    "a number for a generator of values": (
        lambda: predictive_value_curve(P2, Y2, threshold=0.5, generator=1.0),
        "or a seed, but got 1.0: ",
    ),
    "a rule for bins": (lambda: probability_histogram(P2, Y2, "auto"), "`bins` to be numbers, but got str"),
    "a rate beyond reach": (
        lambda: operating_point(np.array([[-math.inf, 0.0]] * 4), [0, 1, 0, 1], 0.1, specificity=0.5),
        "`specificity` of 0.5, but .* certain, of class 1: ",
    ),
    "a level in per cent": (lambda: decision_curve(P2, Y2, 0.1, level=95), "`level` .*but got 95"),
    "thresholds of 0": (lambda: decision_curve(P2, Y2, 0.1, thresholds=[0.0, 0.5]), "`thresholds` strictly"),
    "no bins": (lambda: reliability_curve(P2, Y2, 0.1, bins=0), "`bins` .*at least 1, but got 0"),
    "another width": (lambda: reliability_curve(P2, Y2, 0.1, width="equal"), "equal-mass.*but got 'equal'"),  # type: ignore[arg-type]
    "another scale": (lambda: probability_histogram(P2, Y2, scale="odds"), "log-odds.*but got 'odds'"),  # type: ignore[arg-type]
    "no bins of a histogram": (lambda: probability_histogram(P2, Y2, 0), "`bins` .*at least 1, but got 0"),
    "falling edges": (lambda: probability_histogram(P2, Y2, [1.0, 0.0]), "rising edges, but got"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_what_came_and_what_to_do(what: str) -> None:
    assert_refused(*BAD[what])


@pytest.mark.parametrize("grouped", [False, True])
def test_limits_of_a_roc_curves_area_are_those_of_evaluate(grouped: bool) -> None:
    log_probs, labels = predictions(400, 2, 81)
    groups = np.arange(400) // 4 if grouped else None
    found = roc_curve(log_probs, labels, groups=groups)
    wanted = evaluate(log_probs, labels, 0.1, groups=groups, intervals="analytic").auc
    assert found.auc == pytest.approx(wanted.value, rel=1e-12)
    assert found.high - found.low == pytest.approx(wanted.high - wanted.low, rel=0.03)  # other factors n/(n − 1)
    assert found.low == pytest.approx(wanted.low, abs=2e-3)


def test_copies_of_a_patient_do_not_shorten_the_limits_of_the_area() -> None:
    log_probs, labels = predictions(200, 2, 82)
    once = roc_curve(log_probs, labels)
    copied = roc_curve(np.tile(log_probs, (5, 1)), np.tile(labels, 5), groups=np.tile(np.arange(200), 5))
    assert (copied.low, copied.high) == pytest.approx((once.low, once.high), rel=1e-9)


def test_a_histogram_of_equal_log_odds_has_bins_around_them() -> None:
    log_probs = np.log([[0.2, 0.8]] * 4)
    found = probability_histogram(log_probs, [0, 1, 0, 1], 4, scale="log-odds")
    np.testing.assert_allclose(found.edges, np.linspace(math.log(4) - 1, math.log(4) + 1, 5))
    np.testing.assert_allclose(found.share.sum(1), 1)
