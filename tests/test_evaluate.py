"""`rightloss.metrics.evaluate`: every figure against an independent computation, and its interval against another way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from cases import CASES, Case, assert_close, each_case, figures, logits
from draws import assert_refused, population, stream
from labelled import of_odds
from scipy import optimize, special, stats
from scipy.special import log_softmax
from sklearn import metrics as sk

import rightloss as rl
from rightloss.metrics import evaluate
from rightloss.study.toy.population import FiveRatings, TwoGaussians

PRECISE = {"xatol": 1e-9, "fatol": 1e-9, "maxiter": 20_000, "maxfev": 20_000, "adaptive": True}


@each_case
def test_scores_of_probabilities_equal_scikit_learns_with_sample_weights(make: Callable[[], Case]) -> None:
    case = make()
    found, pi, k = figures(case), case.population, len(case.population)
    loss = sk.log_loss(case.labels, case.probs, sample_weight=case.weights, labels=range(k))
    assert_close(found.expected_log_likelihood.value, -loss)
    assert_close(found.skill.value, 1 - loss / stats.entropy(pi))
    scaled = sk.brier_score_loss(
        case.labels, case.probs if k > 2 else case.probs[:, 1], sample_weight=case.weights, labels=range(k)
    )
    assert_close(found.brier.value, scaled)
    assert_close(found.mean_prediction.value, np.average(case.probs[:, -1], weights=case.weights))


@each_case
def test_figures_of_decisions_equal_scikit_learns_with_sample_weights(make: Callable[[], Case]) -> None:
    case = make()
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


@pytest.mark.parametrize(
    ("options", "unit"),
    [({}, "an error costs 1"), ({"threshold": 0.2}, "a miss costs 1"), ({"costs": [[0, 1], [10, 0]]}, "units of `costs`")],
)
def test_the_unit_of_the_expected_cost_is_printed(options: dict[str, Any], unit: str) -> None:
    table = np.log([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]])
    found = evaluate(table, [0, 0, 1, 1], 0.1, intervals=None, **options)
    (line,) = (line for line in str(found).splitlines() if "expected cost" in line)
    assert line.split("  ")[1] == f"expected cost per decision ({unit})"
    assert line.endswith(f"  {found.expected_cost}")


@each_case
def test_auc_equals_scikit_learns_with_sample_weights(make: Callable[[], Case]) -> None:
    case = make()
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
def test_off_by_one_cost_and_net_benefit_equal_a_count(make: Callable[[], Case]) -> None:
    case = make()
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
    for t in (0.03, 0.3, 0.8):
        found, said = figures(case, threshold=t), case.probs[:, 1] >= t
        benefit = case.weights[said & (case.labels == 1)].sum() - case.weights[said & (case.labels == 0)].sum() * t / (1 - t)
        assert_close(found.net_benefit.value, benefit)
        assert_close(found.expected_cost.value, case.population[1].item() - benefit)


@each_case
@pytest.mark.parametrize("bins", [1, 4, 15])
def test_calibration_error_equals_a_count_over_bins_of_equal_weight(make: Callable[[], Case], bins: int) -> None:
    case = make()
    k, errors = len(case.population), []
    for c in [1] if k == 2 else range(k):
        p, score, weights = case.probs[:, c], case.log_probs[case.rows, c], case.weights
        total = 0.0
        # a value belongs to the bin in which the share of the population strictly below it falls
        shares = np.array([weights[score < each].sum() for each in score])
        number = np.floor(shares * bins + 1e-9)
        for each in np.unique(number):
            inside = number == each
            total += abs((weights * (p - (case.labels == c)))[inside].sum())
        errors.append(total)
    assert_close(figures(case, bins=bins).calibration_error.value, float(np.mean(errors)))


@pytest.mark.long
@each_case
def test_calibration_slope_maximises_the_weighted_likelihood(make: Callable[[], Case]) -> None:
    case = make()
    table, k = case.log_probs[case.rows], len(case.population)
    weights = case.weights / case.weights.min()
    mixed = np.array([case.votes[case.labels == c].sum() for c in range(k)]) / case.votes.sum()
    offset = np.log(case.population) - np.log(mixed)  # about where the intercepts will be

    def loss(theta: np.ndarray) -> float:
        scores = theta[0] * table + offset + np.append(0.0, theta[1:])
        own = scores[np.arange(len(table)), case.labels] - special.logsumexp(scores, axis=1)
        return -float((weights * own).sum())

    best = optimize.minimize(loss, np.append(1.0, np.zeros(k - 1)), method="Nelder-Mead", options=PRECISE)
    assert figures(case).calibration_slope.value == pytest.approx(best.x[0], rel=1e-5)


@pytest.mark.long
def test_the_true_model_has_the_closed_forms_figures() -> None:
    pytest.importorskip("torch")  # the likelihood of the ratings
    for world, per_class in ((TwoGaussians(0.01), 20_000), (FiveRatings(), 8_000)):
        x, y = world.sample(per_class, 5)
        found = evaluate(world.log_probs(x), y, world.prevalence, intervals="analytic", level=0.999)
        expected = {
            "expected_log_likelihood": world.best_log_likelihood,
            "mean_prediction": float(world.prevalence.population[-1]),
            "calibration_slope": 1.0,
            "calibration_error": 0.0,
        }
        expected |= {} if world.best_auc is None else {"auc": world.best_auc}
        for name, value in expected.items():
            assert found[name].low <= value <= found[name].high, name
            assert found[name].high - found[name].low < 0.15, name


@pytest.mark.long
@each_case
def test_always_answering_the_prevalence_has_no_skill_and_no_calibration_error(make: Callable[[], Case]) -> None:
    case = make()
    found = evaluate(np.tile(np.log(case.population), (len(case.log_probs), 1)), case.target, case.population)
    for name, value in {"skill": 0.0, "calibration_error": 0.0, "auc": 0.5, "auc_pairwise": 0.5}.items():
        assert found[name].value == pytest.approx(value, abs=1e-12)
        assert found[name].low == pytest.approx(value, abs=1e-9)
        assert found[name].high == pytest.approx(value, abs=1e-9)
    assert math.isnan(found.calibration_slope.value)
    assert "are equal" in found.calibration_slope.reason
    if len(case.population) == 2:
        assert "never decided" in found.ppv.reason or "always decided" in found.npv.reason


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "intervals"),
    [
        *((name, "analytic") for name in CASES),
        *((name, "bootstrap") for name in ("2 classes", "4 classes with ties", "3 classes, votes")),
    ],
)
def test_neither_the_order_nor_the_kind_of_the_rows_matters(name: str, intervals: str) -> None:
    case = CASES[name]()
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


@pytest.mark.parametrize("name", [name for name in CASES if "votes" not in name])
def test_repeating_a_class_changes_no_figure_but_the_samples_own_accuracy(name: str) -> None:
    case = CASES[name]()
    rows = np.concatenate([np.arange(len(case.target)), np.flatnonzero(case.target == 1)])
    once, twice = figures(case), figures(replace(case, log_probs=case.log_probs[rows], target=case.target[rows]))
    for figure in once:
        if figure != "accuracy":
            np.testing.assert_allclose(twice[figure].value, once[figure].value, rtol=1e-9, atol=1e-12, err_msg=figure)
    assert twice.accuracy.value != once.accuracy.value


@pytest.mark.long
def test_rows_marked_as_ignored_are_left_out() -> None:
    log_probs, y = logits(3, 200, 4)
    kept = np.arange(200) % 5 != 0
    votes = np.eye(3)[y]
    expected = evaluate(log_probs[kept], y[kept], population(3), intervals="analytic")
    for target in (np.where(kept, y, -100), np.where(kept[:, None], votes, 0.0)):
        found = evaluate(log_probs, target, population(3), intervals="analytic")
        assert found.num_examples == expected.num_examples
        for name in expected:
            np.testing.assert_allclose(found[name].value, expected[name].value, rtol=1e-9)
            np.testing.assert_allclose(found[name].high, expected[name].high, rtol=2e-2)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_ranks_are_taken_in_log_odds_where_probabilities_round_to_one(scale: float) -> None:
    y = np.arange(400) % 2
    odds = scale * (stream(1).normal(size=400) + y + 3)
    table = of_odds(odds)
    found = evaluate(table, y, 0.01, intervals=None)
    assert_close(found.auc.value, sk.roc_auc_score(y, odds))
    assert math.isfinite(found.expected_log_likelihood.value)


def test_undefined_figures_are_nan_with_a_reason() -> None:
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


@pytest.mark.long
def test_many_classes_take_seconds_and_little_memory() -> None:
    k, n = 200, 600
    y = np.arange(n) % k
    log_probs = log_softmax(stream(3).normal(size=(n, k)) + 2 * np.eye(k)[y], axis=1)
    found = evaluate(log_probs, y, [1 / k] * k)
    assert found.intervals == "analytic"
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


def test_an_evaluation_shows_every_figure_once() -> None:
    found = evaluate(*logits(2, 100, 22), 0.1)
    shown = str(found).splitlines()
    assert len(shown) == 1 + len(list(found))
    assert "[0.9, 0.1]" in shown[0]
    assert float(found.auc) == found["auc"].value == found.to_dict()["auc"]["value"]
    with pytest.raises(KeyError, match="there is no figure 'f1'"):
        found["f1"]


LOG_PROBS, LABELS = logits(2, 40, 23)
REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: evaluate(np.exp(LOG_PROBS), LABELS, 0.1), "take their logarithm"),
    (lambda: evaluate(3 * LOG_PROBS, LABELS, 0.1), "log_softmax"),
    (lambda: evaluate(LOG_PROBS[:, 1], LABELS, 0.1), "both columns"),
    (lambda: evaluate(LOG_PROBS * np.nan, LABELS, 0.1), "row 0 is"),
    (lambda: evaluate(LOG_PROBS[:0], LABELS[:0], 0.1), "data set empty"),
    (lambda: evaluate(LOG_PROBS, LABELS[:-1], 0.1), "39 labels for 40 rows"),
    (lambda: evaluate(LOG_PROBS, LABELS + 1, 0.1), "1..2"),
    (lambda: evaluate(LOG_PROBS, LABELS.astype(float), 0.1), "astype"),
    (lambda: evaluate(LOG_PROBS, LABELS[:, None].astype(float), 0.1), "a column per class"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.0), "strictly between 0 and 1"),
    (lambda: evaluate(LOG_PROBS, LABELS, [0.2, 0.3, 0.5]), "2 entries"),
    (lambda: evaluate(LOG_PROBS, LABELS, rl.Prevalence([0.2, 0.3, 0.5])), "2 classes"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, groups=[1, 2]), "one group id per row"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, groups=[math.nan] * 40), "an id of its own"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, groups=["a"] * 39 + [math.nan]), "row\\(s\\) \\[39\\] have none"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, groups=pd.Series(["a"] * 39 + [None])), "have none"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, groups=pd.Series(["a"] * 39 + [pd.NA], dtype="string")), "have none"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, groups=np.array(["2020-01-01"] * 39 + ["NaT"], "datetime64[D]")), "have none"),
    (lambda: evaluate(LOG_PROBS, 1, 0.1), "single number"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, generator="0"), "numpy.random.default_rng"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, costs=[[0, 1, 1], [1, 0, 1]]), "a decision per class"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, threshold=50), "percentage"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, intervals="jackknife"), "choose one"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, level=95), "write 0.95"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, draws=10), "at least 100"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, bins=0), "at least 1"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_bad_input_is_refused_with_a_remedy(call: Callable[[], object], words: str) -> None:
    assert_refused(call, words)


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


def test_mean_predictions_by_class_are_weighted_means_and_sum_to_1() -> None:
    y = np.arange(60) % 3
    table = log_softmax(stream(6).normal(size=(60, 3)), axis=1)
    pi = [0.5, 0.3, 0.2]
    found = evaluate(table, y, pi).mean_prediction
    assert found.by_class is not None
    wanted = np.average(np.exp(table), axis=0, weights=(np.array(pi) / 20)[y])
    np.testing.assert_allclose([each.value for each in found.by_class], wanted, rtol=1e-12)
    assert found.by_class[-1].value == found.value
    assert found.by_class[0].low < wanted[0] < found.by_class[0].high
