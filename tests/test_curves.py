"""Curves: against scikit-learn at the population's weights, by counting, on a population known in closed form; bad input."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
from draws import assert_refused, population, stream
from labelled import normals, predictions, weights
from scipy.special import log_softmax
from sklearn import metrics as reference
from sklearn.calibration import calibration_curve

from rightloss.metrics import evaluate
from rightloss.metrics.curves import precision_recall_curve, probability_histogram, reliability_curve, roc_curve
from rightloss.metrics.predictive_values import decision_curve, predictive_value_curve
from rightloss.prevalence import Prevalence


class TestRoc:
    @pytest.mark.parametrize("decimals", [None, 1, 0])
    def test_is_that_of_scikit_learn(self, decimals: int | None) -> None:
        log_probs, labels = predictions(400, 2, 1, decimals)
        odds = log_probs[:, 1] - log_probs[:, 0]
        found = roc_curve(log_probs, labels)
        fpr, tpr, threshold = reference.roc_curve(labels, odds, drop_intermediate=False)
        np.testing.assert_allclose(found.false_positive_rate, fpr, atol=1e-12)
        np.testing.assert_allclose(found.true_positive_rate, tpr, atol=1e-12)
        np.testing.assert_allclose(found.threshold[1:], 1 / (1 + np.exp(-threshold[1:])), rtol=1e-12)
        assert found.threshold[0] == math.inf
        assert math.isclose(found.auc, reference.roc_auc_score(labels, odds), rel_tol=1e-12)
        at_another = roc_curve(log_probs, labels, prevalence=0.001)
        np.testing.assert_allclose(found.false_positive_rate, at_another.false_positive_rate, atol=1e-12)
        assert math.isclose(roc_curve(log_probs, labels, 0).auc, found.auc, rel_tol=1e-12)  # its mirror image

    def test_of_one_class_against_the_rest_weighs_the_rest_as_the_population_does(self) -> None:
        log_probs, labels = predictions(500, 4, 1)
        pi = population(4, 1)
        for positive in range(4):
            found = roc_curve(log_probs, labels, positive, pi)
            truth, score, weight = (labels == positive), log_probs[:, positive], weights(labels, pi)
            assert math.isclose(found.auc, reference.roc_auc_score(truth, score, sample_weight=weight), rel_tol=1e-9)
            fpr, tpr, _ = reference.roc_curve(truth, score, sample_weight=weight, drop_intermediate=False)
            np.testing.assert_allclose(found.false_positive_rate, fpr, atol=1e-12)
            np.testing.assert_allclose(found.true_positive_rate, tpr, atol=1e-12)

    def test_of_a_constant_prediction_is_the_diagonal_whatever_the_others_are(self) -> None:
        p = np.array([[0.6, 0.1, 0.3], [0.5, 0.2, 0.3], [0.4, 0.3, 0.3], [0.3, 0.4, 0.3], [0.2, 0.5, 0.3], [0.1, 0.6, 0.3]])
        given = np.log(p).astype("f4")
        found = roc_curve(given, [0, 0, 1, 1, 2, 2], 2, [0.3, 0.3, 0.4])
        assert (found.auc, len(found.threshold)) == (0.5, 2)
        assert len(reliability_curve(given, [0, 0, 1, 1, 2, 2], [0.3, 0.3, 0.4], 4, 2).weight) == 1

    @pytest.mark.parametrize(("k", "dtype"), [(2, np.float64), (3, np.float32), (2, np.float16)])
    def test_has_the_rates_of_its_thresholds(self, k: int, dtype: Any) -> None:
        log_probs, labels = predictions(1000, k)
        given = log_softmax(3 * log_probs, axis=1).astype(dtype)
        p, y, pi = np.exp(given)[:, 1].astype(np.float64), labels == 1, population(k)
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

    def test_certain_predictions_and_ones_beyond_float_precision_are_ranked(self) -> None:
        log_probs = np.array([[0.0, -math.inf], [-800.0, 0.0], [-900.0, 0.0], [-math.inf, 0.0]])
        found = roc_curve(log_probs, [0, 0, 1, 1])
        assert (found.auc, len(found.threshold)) == (1, 5)
        for rates in (found.false_positive_rate, found.true_positive_rate):
            assert (rates[0], rates[-1]) == (0.0, 1.0)
        assert 0 < found.low < found.high == 1  # no resample changes it, but two of each class say little

    @pytest.mark.parametrize("grouped", [False, True])
    def test_limits_of_its_area_are_those_of_evaluate(self, grouped: bool) -> None:
        log_probs, labels = predictions(400, 2, 81)
        groups = np.arange(400) // 4 if grouped else None
        found = roc_curve(log_probs, labels, groups=groups)
        wanted = evaluate(log_probs, labels, 0.1, groups=groups, intervals="analytic").auc
        assert found.auc == pytest.approx(wanted.value, rel=1e-12)
        assert found.high - found.low == pytest.approx(wanted.high - wanted.low, rel=0.03)  # other factors n/(n − 1)
        assert found.low == pytest.approx(wanted.low, abs=2e-3)
        copied = roc_curve(np.tile(log_probs, (5, 1)), np.tile(labels, 5), groups=np.tile(np.arange(400), 5))
        once = roc_curve(log_probs, labels)
        assert (copied.low, copied.high) == pytest.approx((once.low, once.high), rel=1e-9)

    def test_its_area_has_no_limits_from_a_single_row_of_a_class(self) -> None:
        log_probs, labels = predictions(100, 2)
        some = np.append(np.flatnonzero(labels == 0), np.flatnonzero(labels == 1)[0])
        assert math.isnan(roc_curve(log_probs[some], labels[some]).low)


@pytest.mark.long
def test_soft_votes_are_as_many_readers_as_vote() -> None:
    log_probs, _ = predictions(60, 3)
    readers = stream(3).integers(3, size=(60, 4))
    readers[:3] = np.arange(3)[:, None]
    votes = np.eye(3)[readers].mean(1)
    each, labels, pi = np.repeat(log_probs, 4, 0), readers.ravel(), population(3)
    calls: list[Callable[..., Any]] = [
        lambda p, y: roc_curve(p, y, 1, pi).auc,
        lambda p, y: precision_recall_curve(p, y, pi, 2).average_precision,
        lambda p, y: decision_curve(p, y, pi, positive=1).net_benefit,
        lambda p, y: predictive_value_curve(p, y, threshold=0.3, from_=pi, positive=1).ppv,
        lambda p, y: reliability_curve(p, y, pi, 5, 1).observed,
        lambda p, y: reliability_curve(p, y, pi, 5, 1).predicted,
        lambda p, y: probability_histogram(p, y, 7, 1).share,
    ]
    for call in calls:
        np.testing.assert_allclose(call(log_probs, votes), call(each, labels), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("k", "decimals"), [(2, None), (3, 0)])
def test_precision_and_recall_are_those_of_scikit_learn_at_the_population(k: int, decimals: int | None) -> None:
    log_probs, labels = predictions(300, k, 1, decimals)
    pi = population(k, 1)
    truth, weight, score = (labels == 1), weights(labels, pi), log_probs[:, 1].round(10)
    found = precision_recall_curve(log_probs, labels, pi, 1)
    precision, recall, _ = reference.precision_recall_curve(truth, score, sample_weight=weight)
    np.testing.assert_allclose(found.precision, precision[:-1][::-1], rtol=1e-9)
    np.testing.assert_allclose(found.recall, recall[:-1][::-1], rtol=1e-9, atol=1e-12)
    expected = reference.average_precision_score(truth, score, sample_weight=weight)
    assert math.isclose(found.average_precision, expected, rel_tol=1e-9)
    assert math.isclose(found.precision[-1], found.prevalence, rel_tol=1e-9)  # of calling everybody


class TestHistogram:
    @pytest.mark.parametrize("scale", ["probability", "log-odds"])
    def test_is_that_of_numpy_by_class(self, scale: Literal["probability", "log-odds"]) -> None:
        log_probs, labels = predictions(500, 3)
        found = probability_histogram(log_probs, labels, 12, positive=1, scale=scale)
        p = np.exp(log_probs[:, 1])
        values = p if scale == "probability" else np.log(p / (1 - p))
        # the outermost values are edges of log-odds, and rounding may put them beside
        edge = 1e-9 if scale == "probability" else 1 + 1e-9
        for c in range(3):
            own = values[labels == c]
            count, _ = np.histogram(own, bins=found.edges)
            assert np.abs(found.share[c] * len(own) - count).max() <= edge
        np.testing.assert_allclose(found.share.sum(1), 1, rtol=1e-12)

    def test_what_lies_outside_the_edges_counts_to_the_outermost_bin(self) -> None:
        log_probs = np.array([[0.0, -math.inf], [-math.inf, 0.0], [math.log(0.5)] * 2, [math.log(0.5)] * 2])
        found = probability_histogram(log_probs, [0, 1, 0, 1], [-1.0, -0.5, 0.5, 1.0], scale="log-odds")
        assert found.share.tolist() == [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
        assert probability_histogram(log_probs, [0, 1, 0, 1], 4).share.tolist() == [[0.5, 0, 0.5, 0], [0, 0, 0.5, 0.5]]

    def test_of_equal_or_certain_log_odds_has_bins_around_them(self) -> None:
        found = probability_histogram(np.log([[0.2, 0.8]] * 4), [0, 1, 0, 1], 4, scale="log-odds")
        np.testing.assert_allclose(found.edges, np.linspace(math.log(4) - 1, math.log(4) + 1, 5))
        np.testing.assert_allclose(found.share.sum(1), 1)
        certain = np.array([[0.0, -math.inf], [-math.inf, 0.0]])
        assert probability_histogram(certain, [0, 1], 2, scale="log-odds").edges.tolist() == [-1, 0, 1]


class TestReliabilityCurve:
    def test_of_equal_width_is_that_of_scikit_learn_on_repeated_rows(self) -> None:
        log_probs, labels = predictions(400, 2, 1)
        n0, n1 = (int((labels == c).sum()) for c in (0, 1))
        found = reliability_curve(log_probs, labels, n1 / (n1 + 3 * n0), bins=10, width="equal-width")
        repeated = np.where(labels == 0, 3, 1)
        p, y = np.repeat(np.exp(log_probs[:, 1]), repeated), np.repeat(labels, repeated)
        observed, predicted = calibration_curve(y, p, n_bins=10)
        np.testing.assert_allclose(found.observed, observed, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found.predicted, predicted, rtol=1e-9)

    @pytest.mark.parametrize(("k", "dtype"), [(2, np.float64), (3, np.float32)])
    def test_round_probabilities_fall_into_the_bin_that_begins_with_them(self, k: int, dtype: Any) -> None:
        for bins in (10, 20, 100):
            p = np.arange(bins) / bins
            with np.errstate(divide="ignore"):
                given = np.log(np.stack([1 - p, p] if k == 2 else [0.3 * (1 - p), p, 0.7 * (1 - p)], 1)).astype(dtype)
            labels = np.arange(bins) % k
            found = reliability_curve(given, labels, population(k), bins=bins, positive=1, width="equal-width")
            np.testing.assert_allclose(found.predicted, p, atol=1e-6)
            shares = probability_histogram(given, labels, bins, positive=1).share
            assert bool(((shares > 0).sum(0) == 1).all())

    @pytest.mark.parametrize("k", [2, 4])
    def test_bins_of_equal_mass_make_up_the_population(self, k: int) -> None:
        log_probs, labels = predictions(3000, k)
        pi = population(k)
        found = reliability_curve(log_probs, labels, pi, bins=8, positive=1)
        np.testing.assert_allclose(found.weight, np.full(8, 1 / 8), atol=2 * float(weights(labels, pi).max()))
        assert math.isclose(found.weight @ found.observed, float(pi[1]), rel_tol=1e-9)
        mean = float(weights(labels, pi) @ np.exp(log_probs[:, 1]))
        assert math.isclose(found.weight @ found.predicted, mean, rel_tol=1e-9)
        assert bool((np.diff(found.predicted) > 0).all())

    def test_tied_predictions_share_a_bin(self) -> None:
        p = np.array([0.1] * 70 + [0.6] * 30)
        labels = np.array([0] * 60 + [1] * 10 + [0] * 10 + [1] * 20)
        found = reliability_curve(np.log(np.stack([1 - p, p], 1)), labels, 30 / 100, bins=10)
        np.testing.assert_allclose(found.predicted, [0.1, 0.6], rtol=1e-12)
        np.testing.assert_allclose(found.observed, [10 / 70, 20 / 30], rtol=1e-12)
        np.testing.assert_allclose(found.weight, [0.7, 0.3], rtol=1e-12)

    def test_an_uncertain_prevalence_widens_the_limits(self) -> None:
        log_probs, y = normals(0.02, 2000, 0)
        certain, loose = (reliability_curve(log_probs, y, at, 5) for at in (0.02, Prevalence.beta(4.0, 196.0)))
        np.testing.assert_allclose(certain.observed, loose.observed, rtol=1e-9)
        assert bool((loose.high - loose.low > 1.3 * (certain.high - certain.low)).all())
        assert bool((certain.low < certain.observed).all())
        assert bool((certain.observed < certain.high).all())


P, Y = predictions(20, 2)
THREE = predictions(30, 3)
EVERY: dict[str, Callable[..., Any]] = {
    "roc": lambda p, y, **k: roc_curve(p, y, **k),
    "precision": lambda p, y, **k: precision_recall_curve(p, y, np.full(p.shape[1], 1 / p.shape[1]), **k),
    "values": lambda p, y, **k: predictive_value_curve(p, y, threshold=0.5, **k),
    "reliability": lambda p, y, **k: reliability_curve(p, y, np.full(p.shape[1], 1 / p.shape[1]), **k),
    "net benefit": lambda p, y, **k: decision_curve(p, y, np.full(p.shape[1], 1 / p.shape[1]), **k),
    "histogram": lambda p, y, **k: probability_histogram(p, y, 5, **k),
}


@pytest.mark.parametrize("call", EVERY)
def test_every_curve_refuses_a_class_without_examples_or_that_is_not_there_or_not_named(call: str) -> None:
    assert_refused(lambda: EVERY[call](P, Y * 0), r"every class .*but class\(es\) \[1\] have none")
    assert_refused(lambda: EVERY[call](P + 1, Y), "log-probabilities")
    assert_refused(lambda: EVERY[call](P, Y, positive=2), r"`positive` .*0\.\.1, but got 2")
    assert_refused(lambda: EVERY[call](*THREE), r"`positive`, one of the classes 0\.\.2, but got none")


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "no mix of the rest": (lambda: roc_curve(*THREE, positive=1), "prevalence for a ROC curve .*2 others, but got none"),
    "a generator of the standard library": (
        lambda: reliability_curve(P, Y, 0.1, generator=random.Random(0)),
        "numpy.random.Generator, .*, but got <random.Random",
    ),
    "a level in per cent": (lambda: roc_curve(P, Y, level=95), "`level` .*but got 95"),
    "no bins": (lambda: reliability_curve(P, Y, 0.1, bins=0), "`bins` .*at least 1, but got 0"),
    "another width": (lambda: reliability_curve(P, Y, 0.1, width="equal"), "equal-mass.*but got 'equal'"),  # type: ignore[arg-type]
    "another scale": (lambda: probability_histogram(P, Y, scale="odds"), "log-odds.*but got 'odds'"),  # type: ignore[arg-type]
    "a rule for bins": (lambda: probability_histogram(P, Y, "auto"), "`bins` to be numbers, but got str"),
    "falling edges": (lambda: probability_histogram(P, Y, [1.0, 0.0]), "rising edges, but got"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_what_came_and_what_to_do(what: str) -> None:
    assert_refused(*BAD[what])
