"""Decisions: the cheapest in exact arithmetic, ties, extremes, abstaining, costs. Conformal sets: their thresholds."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from draws import assert_refused, population, stream
from scipy.special import log_softmax

from rightloss.metrics.decisions import ConformalSets, cost_matrix, decide, expected_cost


def table(n: int, k: int, seed: int = 0, scale: float = 2.0) -> np.ndarray:
    return log_softmax(scale * stream(seed).normal(size=(n, k)), axis=1)


def exact_costs(log_probs: np.ndarray, costs: np.ndarray) -> list[list[Fraction]]:
    """Σ_k p(k|x) cost[k, d] as fractions, with p the float64 exponential."""
    rows = [[Fraction(p) for p in row] for row in np.exp(log_probs).tolist()]
    columns = [[Fraction(c) for c in column] for column in costs.T.tolist()]
    return [[sum((p * c for p, c in zip(row, column, strict=True)), Fraction(0)) for column in columns] for row in rows]


class TestTheCheapest:
    @pytest.mark.parametrize(("k", "d"), [(2, 2), (2, 5), (4, 3), (6, 1)])
    def test_is_that_of_exact_arithmetic(self, k: int, d: int) -> None:
        for seed in range(3):
            log_probs = table(60, k, seed)
            costs = 3 * stream(seed + 100).normal(size=(k, d))  # gains among them
            expected = [row.index(min(row)) for row in exact_costs(log_probs, costs)]
            assert decide(log_probs, costs).tolist() == expected

    def test_with_abstaining_is_that_of_exact_arithmetic(self) -> None:
        log_probs = table(200, 3)
        costs = (1 - np.eye(3)) * (0.5 + stream(100).random((3, 3)))
        expected = [row.index(min(row)) if min(row) <= Fraction(0.3) else -1 for row in exact_costs(log_probs, costs)]
        assert decide(log_probs, costs, abstain_cost=0.3).tolist() == expected
        assert set(expected) == {-1, 0, 1, 2}

    def test_is_the_likeliest_class_by_default_and_a_constant_per_true_class_changes_nothing(self) -> None:
        log_probs = table(2000, 4)
        for given in (log_probs, log_probs.astype(np.float32)):
            assert np.array_equal(decide(given), given.argmax(1))
        assert np.array_equal(decide(log_probs, 1 - np.eye(4) + population(4)[:, None]), decide(log_probs))

    def test_does_not_depend_on_how_many_rows_come_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        log_probs, costs = table(1000, 3), stream(1).random((3, 4))

        def found() -> list[Any]:
            plain = decide(log_probs)
            return [plain, decide(log_probs, costs, abstain_cost=0.3), expected_cost(log_probs, None, plain)]

        whole = found()
        monkeypatch.setattr("rightloss.metrics.decisions._ENTRIES", 7 * 3)
        assert all(np.array_equal(one, other) for one, other in zip(whole, found(), strict=True))


class TestTies:
    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    def test_a_probability_at_the_threshold_decides_1(self, dtype: Any) -> None:
        for p in (0.01, 0.07, 0.3, 0.5, 0.7, 0.93, 0.99):
            rates = np.array([p, p * (1 - 1e-4), p + (1 - p) * 1e-4])
            given = np.stack([np.log1p(-rates), np.log(rates)], 1).astype(dtype)
            assert decide(given, threshold=p).tolist() == [1, 0, 1]
            assert decide(given, np.array([[0.0, p], [1 - p, 0.0]])).tolist() == [1, 0, 1]  # in other units

    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    def test_abstaining_loses_a_tie(self, dtype: Any) -> None:
        for p in (0.01, 0.03, 0.07, 0.2, 0.25, 0.3, 0.33, 0.49):
            rates = np.array([p, p * (1 + 1e-4), p * (1 - 1e-4)])
            given = np.stack([np.log1p(-rates), np.log(rates)], 1).astype(dtype)
            assert decide(given, abstain_cost=p).tolist() == [0, -1, 0]
            assert decide(given[:, ::-1], abstain_cost=p).tolist() == [1, -1, 1]

    def test_the_later_decision_wins(self) -> None:
        equal = np.log(np.full((1, 4), 0.25))
        assert decide(equal).tolist() == [3]
        assert decide(equal, np.array([[1.0, 2, 1, 2]] * 4)).tolist() == [2]
        assert decide(np.log([[0.4, 0.4, 0.2]])).tolist() == [1]
        assert decide(equal, np.zeros((4, 3))).tolist() == [2]
        rates = np.arange(1, 1000) / 1000
        given = np.stack([np.log1p(-rates), np.log(rates)], 1)
        assert np.array_equal(decide(given), decide(given, threshold=0.5))
        assert int(decide(given).sum()) == 500


class TestExtremes:
    def test_tiny_probabilities_meet_huge_costs(self) -> None:
        tiny = math.log(1e-300)
        given = np.array([[0.0, tiny], [0.0, 2 * tiny]])
        assert decide(given, [[0.0, 1.0], [1.1e300, 0.0]]).tolist() == [1, 0]
        assert decide(given, [[0.0, 1.0], [0.9e300, 0.0]]).tolist() == [0, 0]
        assert decide(given, [[0.0, 1e-300], [1.1e300, 0.0]]).tolist() == [1, 1]
        # a terrible decision does not drown the others
        three = np.array([[0.0, -400.0, -700.0]])  # the second and third decision: e^−400 and e^−700
        assert decide(three, [[1e300, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]).tolist() == [2]

    def test_differences_too_large_for_a_number_are_compared(self) -> None:
        given = np.log([[0.6, 0.4], [0.4, 0.6]])
        assert decide(given, [[1.5e308, -1.5e308], [-1.5e308, 1.5e308]]).tolist() == [1, 0]
        wide = log_softmax(1e4 * stream().normal(size=(100, 3)), axis=1)
        assert np.array_equal(decide(wide, np.array([[0.0, 1, 1], [1, 0, 1], [2, 2, 0]])), decide(wide))

    def test_impossible_classes_cost_nothing(self) -> None:
        given = np.array([[0.0, -math.inf], [-math.inf, 0.0]])
        assert decide(given, [[0.0, 1e-300], [1e300, 0.0]]).tolist() == [0, 1]
        assert expected_cost(given, [[0.0, 1.0], [1e300, 0.0]], np.array([1, 1])).tolist() == [1.0, 0.0]


class TestExpectedCost:
    def test_is_that_of_exact_arithmetic(self) -> None:
        log_probs, costs, chosen = table(100, 3), stream(100).normal(size=(3, 4)), stream(200).integers(4, size=(100,))
        exact = [float(row[d]) for row, d in zip(exact_costs(log_probs, costs), chosen.tolist(), strict=True)]
        np.testing.assert_allclose(expected_cost(log_probs, costs, chosen), np.array(exact), rtol=1e-12, atol=1e-14)
        small = chosen.astype("uint8")
        np.testing.assert_array_equal(expected_cost(log_probs, costs, small), expected_cost(log_probs, costs, chosen))

    def test_keeps_what_a_float_would_lose(self) -> None:
        given = np.array([[0.0, 2 * math.log(1e-200)]])
        found = expected_cost(given, [[0.0, 1.0], [1e308, 0.0]], np.array([0]))
        assert math.isclose(found[0], 1e-92, rel_tol=1e-12)

    def test_a_threshold_is_shorthand_for_costs(self) -> None:
        assert cost_matrix(2, None, 0.2).tolist() == [[0.0, pytest.approx(0.25, rel=1e-15)], [1.0, 0.0]]
        assert cost_matrix(3).tolist() == [[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
        assert cost_matrix(2, [[0, 1, 2], [3, 4, 5]]).dtype == np.float64


def people(counts: list[int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Predictions at the mix of an even training set, and labels: `counts` of each class."""
    labels = np.repeat(np.arange(len(counts)), counts)
    logits = 1.6 * stream(seed).normal(size=(len(labels), len(counts)))
    return log_softmax(logits + 2 * np.eye(len(counts))[labels], axis=1), labels


class TestConformalThresholds:
    @pytest.mark.parametrize("level", ["0.9", "0.8"])
    def test_within_a_class_are_order_statistics(self, level: str) -> None:
        for n in (9, 19, 99, 100, 101):
            log_probs, labels = people([n, n], n)
            found = ConformalSets.fit(log_probs, labels, per_class=True, level=float(level)).thresholds
            for c in (0, 1):
                own = sorted((-log_probs[labels == c, c]).tolist())
                assert float(found[c]) == own[math.ceil((n + 1) * Fraction(level)) - 1]

    def test_weigh_the_classes_as_the_population_does(self) -> None:
        """Against a search in exact arithmetic."""
        log_probs, labels = people([15, 25, 10, 20, 30], 1)
        pi, level = population(5, 1), 0.7
        own = (-log_probs[np.arange(len(labels)), labels]).tolist()
        pairs = list(zip(own, labels.tolist(), strict=True))
        weight = [Fraction(float(pi[c])) / int((labels == c).sum()) for c in range(5)]
        found = ConformalSets.fit(log_probs, labels, pi, level=level).thresholds
        for c in range(5):
            least = Fraction(level) * (1 + weight[c])
            assert float(found[c]) == next(s for s in sorted(own) if sum(weight[y] for t, y in pairs if t <= s) >= least)

    def test_soft_votes_are_as_many_readers_as_vote(self) -> None:
        log_probs, _ = people([40, 40], 0)
        readers = stream(3).integers(2, size=(80, 4))
        votes = np.stack([1 - readers.mean(1), readers.mean(1)], 1)
        soft = ConformalSets.fit(log_probs, votes, 0.2, level=0.75).thresholds
        # the weight of a new case is that of one example, which is 4 readers
        own = -np.repeat(log_probs, 4, 0)[np.arange(320), readers.ravel()]
        n1 = float(readers.sum()) / 4
        each = np.where(readers.ravel() == 1, 0.2 / n1, 0.8 / (80 - n1)) / 4
        for c, weight in enumerate([0.8 / (80 - n1), 0.2 / n1]):
            reached = [float(each[own <= s].sum()) >= 0.75 * (1 + weight) for s in np.sort(own)]
            assert float(soft[c]) == float(np.sort(own)[reached.index(True)])


class TestConformalSets:
    def test_are_everything_and_said_to_be_where_the_sample_is_too_small(self) -> None:
        log_probs, labels = people([8, 200], 0)
        with pytest.warns(UserWarning, match=r"Too few .*level of 0.9: class\(es\) \[0\] are in every set"):
            sets = ConformalSets.fit(log_probs, labels, per_class=True)
        assert bool(sets.predict(log_probs)[:, 0].all())
        assert not bool(sets.predict(log_probs)[:, 1].all())

    def test_are_everything_where_the_truth_is_too_often_ruled_out_and_that_is_said(self) -> None:
        certain = np.array([[0.0, -math.inf]] * 50 + [[-math.inf, 0.0]] * 50)
        labels = [0] * 40 + [1] * 10 + [1] * 40 + [0] * 10  # a fifth of each class is given probability 0
        with pytest.warns(UserWarning, match=r"probability 0 .*class\(es\) \[0, 1\] are in every set") as caught:
            sets = ConformalSets.fit(certain, labels, 0.5)
        assert len(caught) == 1
        assert sets.thresholds.tolist() == [math.inf, math.inf]
        with pytest.warns(UserWarning, match="are in every set") as caught:
            ConformalSets.fit(certain[50:], [0] * 45 + [1] * 5, per_class=True)
        assert [str(each.message)[:9] for each in caught] == ["Too few c", "The predi"]
        fair = ConformalSets.fit(certain[20:80], [0] * 30 + [1] * 30, 0.1)
        assert fair.predict(certain[[0, -1]]).tolist() == [[True, False], [False, True]]


TWO, THREE = table(5, 2), table(5, 3)
P, Y = people([20, 20], 0)
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "logits": (lambda: decide(np.full((4, 2), 3.0)), "log-probabilities"),
    "both": (lambda: decide(TWO, np.eye(2), 0.5), "`costs` or `threshold`, but got both"),
    "a threshold for three": (lambda: decide(THREE, threshold=0.5), "two classes for a `threshold`, but got 3"),
    "a percentage": (lambda: decide(TWO, threshold=20), "`threshold` .*but got 20: .*percentage"),
    "a threshold of NaN": (lambda: decide(TWO, threshold=math.nan), "strictly between"),
    "a threshold in words": (lambda: decide(TWO, threshold="high"), "one number, but got 'high'"),  # type: ignore[arg-type]
    "transposed costs": (lambda: decide(THREE, np.ones((2, 3))), r"shape \(3, d\).*but got shape \(2, 3\): .*transposed"),
    "infinite costs": (lambda: decide(TWO, [[0, math.inf], [1, 0]]), "finite `costs`"),
    "a cost of abstaining in words": (lambda: decide(TWO, abstain_cost="little"), "number, but got 'little'"),  # type: ignore[arg-type]
    "float decisions": (lambda: expected_cost(TWO, None, np.zeros(5)), "int `decisions`"),
    "too few decisions": (lambda: expected_cost(TWO, None, np.zeros(4, int)), r"shape \(5,\)"),
    "a decision too high": (lambda: expected_cost(TWO, None, np.full((5,), 2)), r"0\.\.1, or −1 .*got 2\.\.2"),
    "a decision too low": (lambda: expected_cost(TWO, None, np.full((5,), -2)), r"0\.\.1, or −1 .*got -2\.\.-2"),
    "abstaining at no cost": (lambda: expected_cost(TWO, None, np.full((5,), -1)), "for every row, but some abstain"),
    "no population": (lambda: ConformalSets.fit(P, Y), "`prevalence`.*but got none: .*per_class=True"),
    "a level in per cent": (lambda: ConformalSets.fit(P, Y, 0.1, level=90), "`level` .*but got 90"),
    "a class without examples": (lambda: ConformalSets.fit(P, Y * 0, 0.1), r"every class for conformal.*\[1\] have none"),
    "other classes": (lambda: ConformalSets.fit(P, Y, 0.1).predict(people([9] * 5, 0)[0]), "2 columns.* but got 5"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_what_came_and_what_to_do(what: str) -> None:
    assert_refused(*BAD[what])
