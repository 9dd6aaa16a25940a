"""`rightloss.metrics.evaluate`: every figure against an independent computation; samples that lack something; bad input."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import CASES, Case, assert_close, each_case, figures, logits
from draws import assert_refused, population, stream
from labelled import of_odds
from scipy import stats
from scipy.special import log_softmax
from sklearn import metrics as sk

import rightloss as rl
from rightloss.metrics import evaluate


@each_case
def test_scores_of_probabilities_equal_scikit_learns_with_sample_weights(case: Case) -> None:
    found, pi, k = figures(case), case.population, len(case.population)
    loss = sk.log_loss(case.labels, case.probs, sample_weight=case.weights, labels=range(k))
    assert_close(found.expected_log_likelihood.value, -loss)
    assert_close(found.skill.value, 1 - loss / stats.entropy(pi))
    given = case.probs if k > 2 else case.probs[:, 1]
    assert_close(found.brier.value, sk.brier_score_loss(case.labels, given, sample_weight=case.weights, labels=range(k)))
    mean = np.average(case.probs, weights=case.weights, axis=0)
    assert_close(found.mean_prediction.value, mean[-1])
    if k > 2:
        np.testing.assert_allclose([each.value for each in found.mean_prediction.by_class or ()], mean, rtol=1e-12)


@each_case
def test_figures_of_decisions_equal_scikit_learns_with_sample_weights(case: Case) -> None:
    found, k = figures(case), len(case.population)
    given = {"y_true": case.labels, "y_pred": case.decided}
    assert_close(found.accuracy.value, sk.accuracy_score(**given, sample_weight=case.votes))
    assert_close(found.weighted_accuracy.value, sk.accuracy_score(**given, sample_weight=case.weights))
    assert_close(found.balanced_accuracy.value, sk.balanced_accuracy_score(**given, sample_weight=case.votes))
    assert_close(found.expected_cost.value, 1 - found.weighted_accuracy.value)
    values: dict[str, list[float]] = {name: [] for name in ("ppv", "npv", "tpr", "tnr")}
    for c in [1] if k == 2 else range(k):
        ((tn, fp), (fn, tp)) = sk.confusion_matrix(case.labels == c, case.decided == c, sample_weight=case.weights)
        for name, value in {"ppv": tp / (tp + fp), "npv": tn / (tn + fn), "tpr": tp / (tp + fn), "tnr": tn / (tn + fp)}.items():
            values[name].append(value)
    for name, expected in values.items():
        assert_close(found[name].value, float(np.mean(expected)))
        if k > 2:
            np.testing.assert_allclose([float(each) for each in found[name].by_class or ()], expected, rtol=1e-9)
        else:
            assert found[name].by_class is None


@each_case
def test_auc_equals_scikit_learns_with_sample_weights(case: Case) -> None:
    found, k = figures(case), len(case.population)
    one = [
        sk.roc_auc_score(case.labels == c, case.log_probs[case.rows, c], sample_weight=case.weights)
        for c in ([1] if k == 2 else range(k))
    ]
    assert_close(found.auc.value, float(np.mean(one)))
    if k == 2:
        assert_close(found.auc_pairwise.value, found.auc.value)
    elif (case.votes == 1).all():
        assert_close(found.auc_pairwise.value, sk.roc_auc_score(case.labels, case.probs, multi_class="ovo", labels=range(k)))


@each_case
def test_off_by_one_cost_and_net_benefit_equal_a_count(case: Case) -> None:
    k = len(case.population)
    assert_close(figures(case).off_by_one.value, case.weights[np.abs(case.decided - case.labels) <= 1].sum())
    costs = np.random.default_rng(0).uniform(0, 1, (k, k)) * (1 - np.eye(k))
    decided = (case.probs @ costs).argmin(1)
    found = figures(case, costs=costs)
    assert_close(found.expected_cost.value, float((costs[case.labels, decided] * case.weights).sum()))
    if k > 2:
        assert math.isnan(found.net_benefit.value)
        assert found.net_benefit.reason == "defined for two classes"
        return
    for t in (0.03, 0.8):
        found, said = figures(case, threshold=t), case.probs[:, 1] >= t
        benefit = case.weights[said & (case.labels == 1)].sum() - case.weights[said & (case.labels == 0)].sum() * t / (1 - t)
        assert_close(found.net_benefit.value, benefit)
        assert_close(found.expected_cost.value, case.population[1].item() - benefit)
    assert figures(case, costs=[[0, 1], [0, 0]]).net_benefit.reason == "a missed case costs nothing"


@each_case
def test_calibration_error_equals_a_count_over_bins_of_equal_weight(case: Case) -> None:
    k, weights = len(case.population), case.weights
    for bins in (1, 4, 15):
        errors = []
        for c in [1] if k == 2 else range(k):
            p, score = case.probs[:, c], case.log_probs[case.rows, c]
            # a value belongs to the bin in which the share of the population strictly below it falls
            number = np.floor(np.array([weights[score < each].sum() for each in score]) * bins + 1e-9)
            gaps = weights * (p - (case.labels == c))
            errors.append(sum(abs(gaps[number == each].sum()) for each in np.unique(number)))
        assert_close(figures(case, bins=bins).calibration_error.value, float(np.mean(errors)))


@pytest.mark.long
@pytest.mark.parametrize("name", ["2 classes with ties", "4 classes with ties"])
def test_always_answering_the_prevalence_has_no_skill_and_no_calibration_error(name: str) -> None:
    case = CASES[name]
    found = evaluate(np.tile(np.log(case.population), (len(case.log_probs), 1)), case.target, case.population)
    for figure, value in {"skill": 0.0, "calibration_error": 0.0, "auc": 0.5, "auc_pairwise": 0.5}.items():
        assert found[figure].value == pytest.approx(value, abs=1e-12)
        assert found[figure].low == pytest.approx(value, abs=1e-9)
        assert found[figure].high == pytest.approx(value, abs=1e-9)
    assert math.isnan(found.calibration_slope.value)
    assert "are equal" in found.calibration_slope.reason
    if len(case.population) == 2:
        assert "never decided" in found.ppv.reason or "always decided" in found.npv.reason


@pytest.mark.long
@pytest.mark.parametrize("intervals", ["analytic", "bootstrap"])
@pytest.mark.parametrize("name", ["2 classes with ties", "3 classes, votes"])
def test_neither_the_order_nor_the_kind_of_the_rows_matters(name: str, intervals: str) -> None:
    case = CASES[name]
    shuffled = stream(9).permutation(len(case.log_probs))
    options: dict[str, Any] = {"intervals": intervals, "draws": 200}
    first = figures(case, **options)
    again = figures(replace(case, log_probs=case.log_probs[shuffled], target=case.target[shuffled]), **options)
    lists = evaluate(case.log_probs.tolist(), case.target.tolist(), case.population.tolist(), **options)
    for figure in first:
        np.testing.assert_equal(lists.to_dict()[figure], first.to_dict()[figure])
        np.testing.assert_allclose(again[figure].value, first[figure].value, rtol=1e-6, atol=1e-9)
        if intervals == "analytic":
            np.testing.assert_allclose(again[figure].low, first[figure].low, rtol=1e-6, atol=1e-9)


def test_rows_without_a_label_or_a_vote_are_left_out() -> None:
    log_probs, y = logits(3, 200, 4)
    kept = np.arange(200) % 5 != 0
    expected = evaluate(log_probs[kept], y[kept], population(3), intervals=None)
    for target in (np.where(kept, y, -100), np.where(kept[:, None], np.eye(3)[y], 0.0)):
        found = evaluate(log_probs, target, population(3), intervals=None)
        assert found.num_examples == expected.num_examples
        for name in expected:
            np.testing.assert_allclose(found[name].value, expected[name].value, rtol=1e-9)


def test_ranks_are_taken_in_log_odds_where_probabilities_round_to_one() -> None:
    y = np.arange(400) % 2
    for scale in (1.0, 1e4):
        odds = scale * (stream(1).normal(size=400) + y + 3)
        found = evaluate(of_odds(odds), y, 0.01, intervals=None)
        assert_close(found.auc.value, sk.roc_auc_score(y, odds))
        assert math.isfinite(found.expected_log_likelihood.value)


def test_figures_of_classes_without_examples_are_nan_with_a_reason() -> None:
    log_probs, y = logits(3, 100, 17)
    found = evaluate(log_probs[y != 1], y[y != 1], population(3))
    for name in found:
        if name != "accuracy":
            assert math.isnan(found[name].value), name
            assert "no example of class(es) [1]" in found[name].reason or name == "net_benefit"
    assert "undefined: no example" in str(found)
    log_probs, y = logits(2, 100, 18)
    found = evaluate(log_probs[y == 1], y[y == 1], 0.1)
    assert 0 < found.tpr.low < found.tpr.value < found.tpr.high < 1
    assert math.isnan(found.tnr.value)
    assert math.isnan(found.auc.value)
    lonely = np.concatenate([np.flatnonzero(y == 0), np.flatnonzero(y == 1)[:1]])
    found = evaluate(log_probs[lonely], y[lonely], 0.1)
    assert math.isfinite(found.auc.value)
    assert math.isnan(found.auc.low)
    assert "[1] occur in a single example" in found.auc.reason
    assert 0 < found.tnr.low < found.tnr.high < 1  # for which the lonely class plays no part
    assert found.tpr.high - found.tpr.low > 0.8


def test_a_class_that_is_never_decided_takes_only_its_own_ppv() -> None:
    y = np.arange(60) % 3
    logit = stream(5).normal(size=(60, 3)) + 2 * np.eye(3)[y]
    logit[:, 2] = -5.0
    found = evaluate(log_softmax(logit, axis=1), y, [0.5, 0.3, 0.2], intervals="analytic")
    assert math.isnan(found.ppv.value)
    assert found.ppv.by_class is not None
    decided, weight = logit.argmax(1), (np.array([0.5, 0.3, 0.2]) / 20)[y]
    for k in (0, 1):
        said = decided == k
        assert_close(found.ppv.by_class[k].value, np.average(y[said] == k, weights=weight[said]))
        assert found.ppv.by_class[k].low < found.ppv.by_class[k].value < found.ppv.by_class[k].high
    assert math.isnan(found.ppv.by_class[2].value)
    assert "never decided" in found.ppv.by_class[2].reason


@pytest.mark.long
def test_many_classes_take_seconds_and_little_memory() -> None:
    k, n = 200, 600
    y = np.arange(n) % k
    log_probs = log_softmax(stream(3).normal(size=(n, k)) + 2 * np.eye(k)[y], axis=1)
    found = evaluate(log_probs, y, [1 / k] * k)
    assert found.intervals == "analytic"
    assert found.tpr.by_class is None
    assert_close(found.accuracy.value, float((log_probs.argmax(1) == y).mean()))


def test_a_probability_of_zero_for_what_happened_is_infinitely_bad_and_no_nan() -> None:
    log_probs, y = logits(2, 100, 19)
    log_probs[3] = np.array([0.0, -math.inf]) if y[3] == 1 else np.array([-math.inf, 0.0])
    found = evaluate(log_probs, y, 0.1)
    assert found.expected_log_likelihood.value == found.skill.value == -math.inf
    assert "1 example(s) were given probability 0" in found.skill.reason
    assert 0 < found.auc.low < found.auc.high < 1
    assert math.isfinite(found.brier.high)
    assert "no log-odds" in found.calibration_slope.reason


def test_an_evaluation_shows_every_figure_once_and_the_unit_of_the_cost() -> None:
    found = evaluate(*logits(2, 100, 22), 0.1)
    shown = str(found).splitlines()
    assert len(shown) == 1 + len(list(found))
    assert "[0.9, 0.1]" in shown[0]
    assert float(found.auc) == found["auc"].value == found.to_dict()["auc"]["value"]
    with pytest.raises(KeyError, match="there is no figure 'f1'"):
        found["f1"]
    units: dict[str, dict[str, Any]] = {"an error costs 1": {}, "a miss costs 1": {"threshold": 0.2}}
    for unit, options in (units | {"units of `costs`": {"costs": [[0, 1], [10, 0]]}}).items():
        found = evaluate(*logits(2, 100, 22), 0.1, intervals=None, **options)
        (line,) = (line for line in str(found).splitlines() if f"expected cost per decision ({unit})" in line)
        assert line.endswith(f"  {found.expected_cost}")


P, Y = logits(2, 40, 23)
REFUSED: dict[str, Callable[[], object]] = {
    "take their logarithm": lambda: evaluate(np.exp(P), Y, 0.1),
    "39 labels for 40 rows": lambda: evaluate(P, Y[:-1], 0.1),
    "1..2": lambda: evaluate(P, Y + 1, 0.1),
    "all are ignore_index": lambda: evaluate(P, np.full(40, -100), 0.1),
    "a column per class": lambda: evaluate(P, Y[:, None].astype(float), 0.1),
    "rows that sum to 1": lambda: evaluate(P, np.full((40, 2), 2.0), 0.1),
    "every row is zero": lambda: evaluate(P, np.zeros((40, 2)), 0.1),
    "single number": lambda: evaluate(P, 1, 0.1),
    "strictly between 0 and 1": lambda: evaluate(P, Y, 0.0),
    "2 classes": lambda: evaluate(P, Y, rl.Prevalence([0.2, 0.3, 0.5])),
    "have none": lambda: evaluate(P, Y, 0.1, groups=["a"] * 39 + [math.nan]),
    "numpy.random.default_rng": lambda: evaluate(P, Y, 0.1, generator="0"),
    "a decision per class": lambda: evaluate(P, Y, 0.1, costs=[[0, 1, 1], [1, 0, 1]]),
    "percentage": lambda: evaluate(P, Y, 0.1, threshold=50),
    "choose one": lambda: evaluate(P, Y, 0.1, intervals="jackknife"),
    "write 0.95": lambda: evaluate(P, Y, 0.1, level=95),
    "at least 100": lambda: evaluate(P, Y, 0.1, draws=10),
    "at least 1": lambda: evaluate(P, Y, 0.1, bins=0),
}


@pytest.mark.parametrize("words", REFUSED)
def test_bad_input_is_refused_with_a_remedy(words: str) -> None:
    assert_refused(REFUSED[words], words)
