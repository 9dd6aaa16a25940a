"""One call after training: right models pass, each mistake is found and named, figures are those of other libraries."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from draws import assert_refused, stream, unchecked_types
from normal_classes import DISTANCE, certain, constant, drawn, equal, exact, mix
from scipy.optimize import brentq
from scipy.special import expit, log_expit, log_softmax, logit
from scipy.stats import binomtest, t
from sklearn.linear_model import LogisticRegression

from rightloss import Prevalence, retarget
from rightloss.check import Check, check
from rightloss.check.diagnostics import p_value

RARE = Prevalence(mix(0.99, 0.01))
THREE = Prevalence(mix(0.9, 0.08, 0.02), mix(0.5, 0.3, 0.2))

# (prevalence, labelled rows): at a rare class the figures at π rest on few of them.
SETTINGS: dict[str, tuple[Prevalence, int]] = {
    "rare": (RARE, 800),
    "very rare, few rows": (Prevalence.binary(0.001), 200),
    "three classes": (THREE, 900),
}


def right(prevalence: Prevalence, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """True log-probabilities at π of rows at ρ, and their labels."""
    x, y = drawn(prevalence.sampling, n, seed)
    return exact(x, prevalence.population), y


@cache
@unchecked_types()
def checks_of_right_models(setting: str) -> list[Check]:
    prevalence, n = SETTINGS[setting]
    found = []
    for seed in range(100, 180):
        unlabelled = exact(drawn(prevalence.population, n, 10_000 + seed)[0], prevalence.population)
        found.append(check(*right(prevalence, n, 2000 * seed), prevalence, unlabelled=unlabelled))
    return found


class TestRightModels:
    @pytest.mark.long
    @pytest.mark.parametrize("setting", SETTINGS)
    def test_all_rows_are_ok_in_at_least_95_of_100_cases_and_none_is_small_more_often_than_chance(self, setting: str) -> None:
        found = checks_of_right_models(setting)
        alarms = [not each.ok for each in found]
        assert np.mean(alarms) < 0.05 + 4 * math.sqrt(0.05 * 0.95 / len(alarms)), np.mean(alarms)
        names = ["label mix", "mean prediction", "calibration slope", "calibration intercept", "skill"]
        assert list(found[0]) == [*names, "label shift", "unlabelled mean"]
        for name in found[0]:
            values = [p for each in found if (p := each[name].p_value) is not None]
            assert np.mean([value < 0.1 for value in values]) < 0.1 + 4 * math.sqrt(0.09 / len(values)), name
            if setting == "rare" and name in ("label mix", "calibration slope", "calibration intercept"):  # nor too large
                below = np.mean([value < 0.3 for value in values])
                assert abs(below - 0.3) < 4 * math.sqrt(0.21 / len(values)) + 0.03  # a mix is one of few numbers

    def test_a_constant_prediction_of_the_population_is_right_too(self) -> None:
        found = check(constant(RARE.population, 400).astype(np.float32), np.arange(400) % 2, RARE)
        assert found.ok
        assert found["calibration slope"].verdict == "not tested"
        assert "are equal" in found["calibration slope"].remedy


def shifted(prevalence: Prevalence) -> np.ndarray:
    """Predictions where p(x|y) has changed."""
    return exact(1.4 * drawn(prevalence.population, 2000, 8)[0], prevalence.population)


def overconfident(prevalence: Prevalence, slope: float = 1.6) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds at ρ stretched, then moved to π."""
    x, y = drawn(prevalence.sampling, 2000, 7)
    stretched = log_softmax(slope * exact(x, prevalence.sampling), axis=1)
    return retarget(stretched, prevalence.sampling, prevalence.population), y


def plain(prevalence: Prevalence) -> tuple[np.ndarray, np.ndarray]:
    x, y = drawn(prevalence.sampling, 2000, 7)
    return exact(x, prevalence.sampling), y


def wrong_sampling(prevalence: Prevalence) -> tuple[np.ndarray, np.ndarray]:
    """What a loss learns on rows at another mix than it is told: p(x|k) d_k π_k/ρ_k."""
    d = prevalence.sampling[::-1] ** 2
    d = d / d.sum() if len(d) > 2 else mix(0.8, 0.2)
    x, y = drawn(d, 2000, 7)
    return retarget(exact(x, d), prevalence.sampling, prevalence.population), y


def moved(rows: tuple[np.ndarray, np.ndarray], from_: np.ndarray, to: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return retarget(rows[0], from_, to), rows[1]


def true(prevalence: Prevalence) -> tuple[np.ndarray, np.ndarray]:
    return right(prevalence, 2000, 7)


# Predictions, labels, and unlabelled predictions if there are any; the rows that must say "look" (others may), and words of the
# remedy of the last of them.
MISTAKES: dict[str, tuple[Callable[[Prevalence], tuple[np.ndarray, ...]], str, str]] = {
    "plain cross-entropy": (
        plain, "mean prediction, calibration intercept",
        r"as after plain cross-entropy: retarget\(log_probs, from_=prevalence.sampling",
    ),
    "moved twice": (lambda p: moved(true(p), p.sampling, p.population), "calibration intercept", "once too often"),
    "moved the wrong way": (
        lambda p: moved(plain(p), p.population, p.sampling), "mean prediction, calibration intercept", "the wrong way",
    ),
    "another mix than stated": (wrong_sampling, "label mix, calibration intercept", r"Prevalence.from_labels\(y"),
    "overconfident": (overconfident, "calibration slope", "overfitting.*fit_calibration"),
    "underconfident": (lambda p: overconfident(p, 0.6), "calibration slope", "second softmax"),
    "columns in another order": (
        lambda p: (np.roll(true(p)[0], 1, 1), true(p)[1]), "skill, mean prediction, calibration slope",
        "order of the class numbers",
    ),
    "another p(x|y) where it is used": (lambda p: (*true(p), shifted(p)), "label shift", "scanner, site"),
    "another prevalence where it is used": (
        lambda p: (*true(p), exact(drawn(p.sampling, 2000, 8)[0], p.population)), "unlabelled mean", "estimate_prevalence",
    ),
}  # fmt: skip


class TestMistakes:
    @pytest.mark.parametrize("mistake", MISTAKES)
    def test_each_is_found_and_named(self, mistake: str) -> None:
        make, rows, words = MISTAKES[mistake]
        for prevalence in (RARE, THREE):
            table, y, *there = make(prevalence)
            found = check(table, y, prevalence, unlabelled=there[0] if there else None)
            assert not found.ok
            for name in rows.split(", "):
                assert found[name].verdict == "look", f"{name}\n{found}"
            last = found[rows.split(", ")[-1]]
            assert re.search(words, last.remedy), found
            assert last.remedy in str(found)

    def test_labels_given_no_probability_are_counted(self) -> None:
        table, y = right(RARE, 400, 10)
        table[:3] = certain(1 - y[:3], 2)
        found = check(table, y, RARE)
        assert found["impossible labels"].seen == "3"
        assert found["impossible labels"].verdict == "look"
        assert found["skill"].verdict == "not tested"


class TestFigures:
    @pytest.mark.parametrize(("n", "rate"), [(1, 0.3), (1000, 0.1)])
    def test_the_mix_of_two_classes_is_tested_by_the_binomial_distribution(self, n: int, rate: float) -> None:
        y = np.repeat([0, 1], [n, n // 3 + 1])
        found = check(constant(equal(2), len(y)), y, Prevalence.binary(0.5, sampling=rate))["label mix"].p_value
        assert found == pytest.approx(binomtest(int(y.sum()), len(y), rate).pvalue, rel=1e-6)

    def test_that_of_three_is_the_least_of_three_such_tests_times_three(self) -> None:
        y = np.repeat(np.arange(3), [50, 30, 35])
        found = check(constant(THREE.population, len(y)), y, THREE)["label mix"].p_value
        each = [binomtest(int((y == k).sum()), len(y), float(THREE.sampling[k])).pvalue for k in range(3)]
        assert found == pytest.approx(3 * min(each), rel=1e-6)

    def test_the_mean_prediction_is_averaged_within_classes(self) -> None:
        table, y = right(THREE, 500, 20)
        row = check(table, y, THREE)["mean prediction"]
        means = sum(float(THREE.population[c]) * np.exp(table[y == c]).mean(0) for c in range(3))
        k = int(row.seen.split(":")[0].removeprefix("class "))
        assert isinstance(means, np.ndarray)
        assert float(row.seen.split()[2]) == pytest.approx(float(means[k]), rel=1e-3)
        assert row.expected == f"{THREE.population[k]:.4g}"

    def test_slope_and_intercept_are_those_of_logistic_regression_at_the_rows_mix(self) -> None:
        table, y = right(Prevalence(mix(0.9, 0.1), mix(0.7, 0.3)), 700, 21)
        prevalence = Prevalence(mix(0.9, 0.1), mix(0.7, 0.3))
        rate = float(y.mean())
        odds = np.diff(retarget(table, prevalence.population, rate))
        fit = LogisticRegression(C=np.inf, tol=1e-12, max_iter=10_000).fit(odds, y)
        found = check(table, y, prevalence)
        assert float(found["calibration slope"].seen.split()[0]) == pytest.approx(float(fit.coef_[0, 0]), rel=1e-3)
        offset = brentq(lambda a: float(np.mean(1 / (1 + np.exp(-odds - a)))) - rate, -5, 5)
        assert float(found["calibration intercept"].seen.split()[0]) == pytest.approx(offset, rel=1e-3)

    @pytest.mark.parametrize("weight", [2.0, 10.0, 1e6])
    def test_few_examples_are_tested_by_students_t(self, weight: float) -> None:
        for distance in (0.5, 2.0, 4.0):
            exactly = 2 * t.sf(distance, weight - 1)
            assert p_value(3 * distance, 3.0, weight) == pytest.approx(exactly, rel=0.02 if weight >= 10 else 0.09)
            assert p_value(3 * distance, 3.0, weight) > 0.99 * exactly

    def test_the_skill_is_against_always_answering_the_population(self) -> None:
        table, y = right(RARE, 600, 23)
        own = [float(table[y == c, c].mean()) for c in range(2)]
        expected = 1 - (0.99 * own[0] + 0.01 * own[1]) / (0.99 * math.log(0.99) + 0.01 * math.log(0.01))
        assert float(check(table, y, RARE)["skill"].seen.split()[0]) == pytest.approx(expected, rel=1e-3)
        below = check(exact(drawn(RARE.sampling, 600, 23)[0], mix(0.3, 0.7)), y, RARE)["skill"]
        assert below.verdict == "look"
        assert "always answering the population" in below.remedy


def assert_same(found: Check, expected: Check) -> None:
    for row in expected.rows:
        other = found[row.name]
        assert other.verdict == row.verdict
        assert (other.p_value is None) == (row.p_value is None)
        assert row.p_value is None or other.p_value == pytest.approx(row.p_value, rel=1e-4, abs=1e-9)


class TestForms:
    """Whatever the model and the rows come as, the figures are the same."""

    def test_tables(self) -> None:
        table, y = right(THREE, 300, 30)
        expected = check(table, y, THREE, unlabelled=table)
        forms = [(table.astype(np.float32), y.tolist()), (table.tolist(), pd.Series(y)), (pd.DataFrame(table), y.astype("i4"))]
        for form, labels in forms:
            assert_same(check(form, labels, THREE, unlabelled=form), expected)

    def test_labels_to_be_ignored_are(self) -> None:
        table, y = right(RARE, 300, 36)
        marked = y.copy()
        marked[::5] = -100
        kept = marked >= 0
        assert_same(check(table, marked, RARE), check(table[kept], y[kept], RARE))

    def test_unanimous_votes_give_the_figures_of_labels(self) -> None:
        table, y = right(RARE, 400, 37)
        votes = check(table, np.eye(2)[y], RARE)
        for row in check(table, y, RARE).rows:
            assert votes[row.name].seen.split()[0] == row.seen.split()[0]
            assert votes[row.name].verdict == row.verdict

    def test_the_package_itself_can_be_called(self) -> None:
        table, y = right(RARE, 100, 39)
        called: Any = sys.modules["rightloss.check"]
        assert called(table, y, RARE).rows == check(table, y, RARE).rows

    def test_rows_drawn_without_the_sampler_are_not_tested_against_its_mix(self) -> None:
        x, y = drawn(mix(0.9, 0.1), 2000, 38)
        table = exact(x, RARE.population)
        assert check(table, y, RARE)["label mix"].verdict == "look"
        found = check(table, y, RARE, sampled=False, level=0.9999)
        assert found.ok
        with pytest.raises(KeyError, match="there is no row 'label mix'; there are mean prediction"):
            found["label mix"]


class TestDependence:
    def grouped(self, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """100 patients with 6 much alike rows each."""
        x, y = drawn(equal(2), 100, 1000 * seed)
        own = stream(1000 * seed + 7).standard_normal((600, 2))
        centre = DISTANCE * np.eye(2)[y]
        rows = np.repeat(0.9**0.5 * (x - centre) + centre, 6, 0) + 0.1**0.5 * own
        return exact(rows, RARE.population), np.repeat(y, 6), np.repeat(np.arange(100), 6)

    @pytest.mark.long
    @unchecked_types()
    def test_rows_of_a_patient_raise_no_false_alarms_once_they_are_named(self) -> None:
        alarms = {"named": 0, "not": 0}
        for seed in range(40):
            table, y, patients = self.grouped(40 + seed)
            alarms["named"] += int(not check(table, y, RARE, groups=patients).ok)
            alarms["not"] += int(not check(table, y, RARE).ok)
        assert alarms["named"] / 40 < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 40)
        assert alarms["not"] / 40 > 0.3

    def test_cells_of_a_map_are_rows_of_their_image(self) -> None:
        table, y, images = self.grouped(5)
        dense, masks = np.moveaxis(table.reshape(100, 2, 3, 2), -1, 1), y.reshape(100, 2, 3)
        found, expected = check(dense, masks, RARE), check(table, y, RARE, groups=images)
        for row in expected.rows:
            assert found[row.name].p_value == pytest.approx(row.p_value, rel=1e-9)
        unlabelled = check(dense, masks, RARE, unlabelled=dense)
        assert unlabelled["label shift"].verdict == "not tested"
        assert unlabelled["unlabelled mean"].p_value is not None


class TestTheTable:
    def test_it_reads_well(self) -> None:
        found = check(*plain(RARE), RARE)
        lines = str(found).splitlines()
        assert lines[0].startswith("Look at: mean prediction, calibration intercept, skill (examples by class: ")
        assert lines[1].split() == ["seen", "expected", "p"]
        assert [line[2:25].strip() for line in lines[2:7]] == [row.name for row in found.rows]
        column = lines[1].index("expected")
        assert all(line[column:].startswith(row.expected) for line, row in zip(lines[2:7], found.rows, strict=True))
        assert found["calibration slope"].expected == "1 at the rows' mix"
        assert lines[7].startswith("- mean prediction, calibration intercept: these are predictions at `sampling`")
        assert str(check(*right(RARE, 300, 63), RARE, level=0.9999)).startswith("No problem found")

    def test_it_is_handed_on_as_plain_numbers_and_as_html(self) -> None:
        found = check(*plain(RARE), RARE)
        frame = pd.DataFrame(found.to_dict()).T
        assert list(frame.index) == [row.name for row in found.rows]
        assert list(frame.columns) == ["name", "seen", "expected", "p_value", "verdict", "remedy"]
        page = found._repr_html_()
        assert page.count("<tr>") == len(found.rows) + 1
        assert "&lt; 1e-6" in page

    def test_intervals_hold_what_is_expected_where_the_verdict_is_ok_and_not_elsewhere(self) -> None:
        for found in (check(*right(RARE, 500, 64), RARE), check(*plain(RARE), RARE), check(*overconfident(THREE), THREE)):
            for name in ("mean prediction", "calibration slope", "calibration intercept"):
                row = found[name]
                _, low, high = (float(part.strip("(),")) for part in row.seen.split(": ")[-1].replace("to", "").split())
                assert (low <= float(row.expected.split()[0]) <= high) == (row.verdict == "ok"), row


TABLE, LABELS = right(RARE, 40, 65)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a number for a prevalence": (lambda: check(TABLE, LABELS, 0.01), r"sampling mix, but got float"),  # type: ignore[call-overload]
    "an estimator": (lambda: check(LogisticRegression(), (TABLE, LABELS), RARE), "pass `model.predict_log_proba`"),
    "probabilities": (lambda: check(np.exp(TABLE), LABELS, RARE), "look like probabilities"),
    "a class without rows": (lambda: check(TABLE, LABELS * 0, RARE), r"every class for a check, but class\(es\) \[1\]"),
    "labels of other rows": (lambda: check(TABLE, LABELS[:5], RARE), "5 labels for 40 rows"),
    "other classes": (lambda: check(TABLE, LABELS, THREE), "prevalence of 2 classes"),
    "a level of 5 %": (lambda: check(TABLE, LABELS, RARE, level=5), "`level`"),
    "unlabelled logits": (lambda: check(TABLE, LABELS, RARE, unlabelled=3 * TABLE), "log-probabilities"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_with_a_remedy(case: str) -> None:
    assert_refused(*REFUSED[case])


def test_an_intercept_is_found_however_far_away() -> None:
    rng = np.random.default_rng(30)
    y, odds = np.arange(60) % 3 == 0, np.append(60 + rng.normal(size=59), -70.0)
    found = check(np.stack([log_expit(-odds), log_expit(odds)], 1), y.astype(int), Prevalence.binary(0.02, sampling=1 / 3))
    at_rows = odds + logit(1 / 3) - logit(0.02)
    expected = brentq(lambda a: expit(at_rows + a).mean() - 1 / 3, -500, 500, xtol=1e-12)
    assert float(found["calibration intercept"].seen.split()[0]) == pytest.approx(expected, rel=1e-3)
