"""`operating_point`: thresholds by counting, figures against `evaluate`, and intervals by how often they hold the truth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from draws import assert_refused, population, unchecked_types
from labelled import PHI, assert_covers, normals, predictions, weights

import rightloss as rl
from rightloss.metrics import OperatingPoint, evaluate, operating_point
from rightloss.study.toy.population import TwoGaussians

ASKED: list[dict[str, Any]] = [
    {"recall": 0.9},
    {"recall": 0.5},
    {"specificity": 0.95},
    {"alarms": 60},
    {"alarms": 2.5, "people": 40},
    {"threshold": 0.2},
]


@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.parametrize("decimals", [None, 1])
def test_figures_are_those_of_evaluate_at_the_threshold(asked: dict[str, Any], decimals: int | None) -> None:
    log_probs, y = predictions(300, 2, decimals=decimals)
    found = operating_point(log_probs, y, 0.05, **asked)
    expected = evaluate(log_probs, y, 0.05, threshold=found.threshold, intervals=None)
    for name, other in {"recall": "tpr", "specificity": "tnr", "ppv": "ppv", "npv": "npv"}.items():
        assert getattr(found, name).value == pytest.approx(expected[other].value, rel=1e-12), name
    people, tpr, fpr = asked.get("people", 1000), expected.tpr.value, 1 - expected.tnr.value
    per_day = {"found": 0.05 * tpr, "missed": 0.05 * (1 - tpr), "false_alarms": 0.95 * fpr, "alarms": 0.05 * tpr + 0.95 * fpr}
    for name, share in per_day.items():
        assert getattr(found, name).value == pytest.approx(people * share, rel=1e-9, abs=1e-9), name


@pytest.mark.parametrize("decimals", [None, 1])
@pytest.mark.parametrize("k", [2, 3])
def test_no_other_threshold_reaches_it_with_fewer_alarms_or_more_cases(k: int, decimals: int | None) -> None:
    log_probs, y = predictions(300, k, decimals=decimals)
    pi = population(k, 5)
    given: dict[str, Any] = {} if k == 2 else {"positive": 1}
    p, weight, own = np.exp(log_probs[:, 1]), weights(y, pi), y == 1
    cuts = np.append(np.unique(p.round(12)), 2.0) - 1e-9
    recall = np.array([weight[own & (p >= cut)].sum() / weight[own].sum() for cut in cuts])
    specificity = np.array([weight[~own & (p < cut)].sum() / weight[~own].sum() for cut in cuts])
    alarms = np.array([weight[p >= cut].sum() for cut in cuts])
    for share in (0.3, 0.62, 0.9):
        best = operating_point(log_probs, y, pi, recall=share, **given)
        assert best.specificity.value == pytest.approx(specificity[recall >= share - 1e-12].max())
        best = operating_point(log_probs, y, pi, specificity=share, **given)
        assert best.recall.value == pytest.approx(recall[specificity >= share - 1e-12].max())
        best = operating_point(log_probs, y, pi, alarms=100 * share, people=100, **given)
        assert best.recall.value == pytest.approx(recall[alarms <= share + 1e-12].max())
        assert best.alarms.value <= 100 * share + 1e-9


@pytest.mark.long
@pytest.mark.parametrize("asked", [{"recall": 0.9}, {"alarms": 150}], ids=str)
@unchecked_types()
def test_intervals_hold_the_truth_of_the_threshold_that_was_chosen(asked: dict[str, Any]) -> None:
    rate, hits = 0.1, []
    mu = TwoGaussians(positive=rate).separation
    for seed in range(200):
        found = operating_point(*normals(rate, 150, 500 + seed), rate, **asked)
        z = (math.log(found.threshold / (1 - found.threshold)) - math.log(rate / (1 - rate))) / (2 * mu)
        tpr, fpr = 1 - PHI(z - mu), 1 - PHI(z + mu)
        called = rate * tpr + (1 - rate) * fpr
        truth = {
            "recall": tpr,
            "specificity": 1 - fpr,
            "ppv": rate * tpr / called,
            "npv": (1 - rate) * (1 - fpr) / (1 - called),
            "alarms": 1000 * called,
            "missed": 1000 * rate * (1 - tpr),
        }
        hits.append([getattr(found, name).low <= value <= getattr(found, name).high for name, value in truth.items()])
    assert_covers(hits)


def test_an_uncertain_prevalence_and_groups_widen_the_intervals() -> None:
    log_probs, y = normals(0.1, 200, 3)

    def width(found: OperatingPoint) -> float:
        return found.ppv.high - found.ppv.low

    plain = operating_point(log_probs, y, 0.1, recall=0.8)
    unsure = operating_point(log_probs, y, rl.Prevalence.beta(2.0, 18.0), recall=0.8)
    assert unsure.threshold == plain.threshold
    assert width(unsure) > 1.5 * width(plain)
    tripled = operating_point(np.tile(log_probs, (3, 1)), np.tile(y, 3), 0.1, recall=0.8, groups=np.tile(np.arange(400), 3))
    assert width(tripled) == pytest.approx(width(plain), rel=0.1)


def test_nobody_called_has_no_predictive_value_but_limits_of_the_rest() -> None:
    log_probs, y = predictions(100, 2)
    found = operating_point(log_probs, y, 0.05, threshold=1 - 1e-9)
    assert math.isnan(found.ppv.value)
    assert found.ppv.reason == "nobody is called positive"
    assert found.alarms.value == 0 < found.alarms.high
    assert "undefined: nobody is called positive" in str(found)
    assert str(found).splitlines()[0].startswith("Class 1 from a probability of 1")


def test_what_cannot_be_reached_or_is_asked_twice_is_refused() -> None:
    log_probs, y = predictions(100, 2)
    assert_refused(lambda: operating_point(log_probs, y, 0.05), "one of recall")
    assert_refused(lambda: operating_point(log_probs, y, 0.05, recall=0.9, alarms=3), "recall and alarms")
    assert_refused(lambda: operating_point(log_probs, y, 0.05, recall=90), "`recall` strictly between")
    assert_refused(lambda: operating_point(log_probs, y, 0.05, alarms=2000), "fewer `alarms` than `people`")
    assert_refused(lambda: operating_point(log_probs, y, 0.05, alarms=0), "above 0")
    assert_refused(lambda: operating_point(log_probs, y, 0.05, alarms=3, people=math.nan), "`people`")
    assert_refused(lambda: operating_point(log_probs, y, 0.05, threshold=2.0), "threshold")
    certain = np.tile([-math.inf, 0.0], (100, 1))
    assert_refused(lambda: operating_point(certain, y, 0.05, alarms=3), "certain")
    assert_refused(lambda: operating_point(certain, y, 0.05, specificity=0.9), "certain")
    log_probs, y = predictions(100, 3)
    assert_refused(lambda: operating_point(log_probs, y, [0.5, 0.3, 0.2], recall=0.9), "`positive`")
