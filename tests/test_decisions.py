"""Decisions: the cheapest by brute force, the rule for ties, extremes, abstaining, what they cost, bad input."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from draws import assert_refused, population, stream
from scipy.special import log_softmax

from rightloss.metrics.decisions import cost_matrix, decide, expected_cost

SEEDS = range(10)


def table(n: int, k: int, seed: int = 0, scale: float = 2.0) -> np.ndarray:
    return log_softmax(scale * stream(seed).normal(size=(n, k)), axis=1)


def exact_costs(log_probs: np.ndarray, costs: np.ndarray) -> list[list[Fraction]]:
    """Σ_k p(k|x) cost[k, d] as fractions, with p the float64 exponential."""
    rows = [[Fraction(p) for p in row] for row in np.exp(log_probs).tolist()]
    columns = [[Fraction(c) for c in column] for column in costs.T.tolist()]
    return [[sum((p * c for p, c in zip(row, column, strict=True)), Fraction(0)) for column in columns] for row in rows]


class TestTheCheapest:
    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize(("k", "d"), [(2, 2), (2, 5), (4, 3), (6, 1)])
    def test_is_that_of_exact_arithmetic(self, k: int, d: int, seed: int) -> None:
        log_probs = table(60, k, seed)
        costs = 3 * stream(seed + 100).normal(size=(k, d))  # gains among them
        expected = [row.index(min(row)) for row in exact_costs(log_probs, costs)]
        assert decide(log_probs, costs).tolist() == expected

    @pytest.mark.parametrize("seed", SEEDS)
    def test_with_abstaining_is_that_of_exact_arithmetic(self, seed: int) -> None:
        log_probs = table(80, 3, seed)
        costs = (1 - np.eye(3)) * (0.5 + stream(seed + 100).random((3, 3)))
        expected = [row.index(min(row)) if min(row) <= Fraction(0.3) else -1 for row in exact_costs(log_probs, costs)]
        assert decide(log_probs, costs, abstain_cost=0.3).tolist() == expected
        assert set(expected) == {-1, 0, 1, 2}

    def test_is_the_likeliest_class_by_default(self) -> None:
        log_probs = table(500, 7)
        assert np.array_equal(decide(log_probs), log_probs.argmax(1))
        assert np.array_equal(decide(log_probs, 1 - np.eye(7)), log_probs.argmax(1))

    def test_without_a_cost_the_plain_and_the_general_way_agree(self) -> None:
        log_probs = table(2000, 4)
        shifted = 1 - np.eye(4) + population(4)[:, None]  # a constant per true class changes nothing
        assert np.array_equal(decide(log_probs, shifted), decide(log_probs))

    @pytest.mark.parametrize("t", [0.001, 0.2, 0.5, 0.99])
    def test_by_threshold_is_a_probability_of_at_least_that(self, t: float) -> None:
        log_probs = table(3000, 2, scale=4.0)
        assert np.array_equal(decide(log_probs, threshold=t), np.exp(log_probs[:, 1]) >= t)

    def test_does_not_depend_on_how_many_rows_come_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        log_probs, costs = table(1000, 3), stream(1).random((3, 4))
        whole = [
            decide(log_probs),
            decide(log_probs, costs, abstain_cost=0.3),
            expected_cost(log_probs, None, decide(log_probs)),
        ]
        monkeypatch.setattr("rightloss.metrics.decisions._ENTRIES", 7 * 3)
        parts = [
            decide(log_probs),
            decide(log_probs, costs, abstain_cost=0.3),
            expected_cost(log_probs, None, decide(log_probs)),
        ]
        assert all(np.array_equal(one, other) for one, other in zip(whole, parts, strict=True))

    def test_comes_in_the_kind_given(self) -> None:
        log_probs = table(20, 3)
        for given in (log_probs, log_probs.astype(np.float32)):
            assert np.array_equal(decide(given), given.argmax(1))
        found = decide(log_probs, costs=np.eye(3).tolist())
        assert isinstance(found, np.ndarray)
        assert found.dtype == np.int64
        assert found.tolist() == decide(log_probs, np.eye(3)).tolist()

    def test_of_tensors_is_a_tensor(self) -> None:
        torch = pytest.importorskip("torch")
        log_probs, costs = table(20, 3), stream(1).random((3, 3))
        for dtype in (torch.float64, torch.bfloat16):
            given = torch.from_numpy(log_probs).to(dtype).requires_grad_()
            assert torch.equal(decide(given), given.argmax(1))
        found = expected_cost(torch.from_numpy(log_probs), torch.from_numpy(costs), decide(torch.from_numpy(log_probs)))
        assert isinstance(found, torch.Tensor)
        np.testing.assert_array_equal(found, expected_cost(log_probs, costs, decide(log_probs)))


class TestTies:
    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    @pytest.mark.parametrize("percent", [1, 7, 30, 50, 70, 93, 99])
    def test_a_probability_at_the_threshold_decides_1(self, percent: int, dtype: Any) -> None:
        p = percent / 100
        rates = np.array([p, p * (1 - 1e-4), p + (1 - p) * 1e-4])
        given = np.stack([np.log1p(-rates), np.log(rates)], 1).astype(dtype)
        assert decide(given, threshold=p).tolist() == [1, 0, 1]
        fair = np.array([[0.0, p], [1 - p, 0.0]])  # the same costs, in other units
        assert decide(given, fair).tolist() == [1, 0, 1]

    def test_the_later_decision_wins(self) -> None:
        equal = np.log(np.full((1, 4), 0.25))
        assert decide(equal).tolist() == [3]
        assert decide(equal, np.array([[1.0, 2, 1, 2]] * 4)).tolist() == [2]
        assert decide(np.log([[0.4, 0.4, 0.2]])).tolist() == [1]
        assert decide(equal, np.zeros((4, 3))).tolist() == [2]

    def test_the_default_and_a_threshold_of_one_half_agree(self) -> None:
        rates = np.arange(1, 1000) / 1000
        given = np.stack([np.log1p(-rates), np.log(rates)], 1)
        assert np.array_equal(decide(given), decide(given, threshold=0.5))
        assert int(decide(given).sum()) == 500

    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    @pytest.mark.parametrize("percent", [1, 3, 7, 20, 25, 30, 33, 49])
    def test_abstaining_loses_a_tie(self, percent: int, dtype: Any) -> None:
        p = percent / 100
        rates = np.array([p, p * (1 + 1e-4), p * (1 - 1e-4)])
        given = np.stack([np.log1p(-rates), np.log(rates)], 1).astype(dtype)
        assert decide(given, abstain_cost=p).tolist() == [0, -1, 0]
        assert decide(given[:, ::-1], abstain_cost=p).tolist() == [1, -1, 1]


class TestExtremes:
    def test_tiny_probabilities_meet_huge_costs(self) -> None:
        tiny = math.log(1e-300)
        given = np.array([[0.0, tiny], [0.0, 2 * tiny]])
        assert decide(given, [[0.0, 1.0], [1.1e300, 0.0]]).tolist() == [1, 0]
        assert decide(given, [[0.0, 1.0], [0.9e300, 0.0]]).tolist() == [0, 0]
        assert decide(given, [[0.0, 1e-300], [1.1e300, 0.0]]).tolist() == [1, 1]

    def test_a_terrible_decision_does_not_drown_the_others(self) -> None:
        given = np.array([[0.0, -400.0, -700.0]])  # the second and third decision: e^−400 and e^−700
        costs = [[1e300, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
        assert decide(given, costs).tolist() == [2]

    def test_differences_too_large_for_a_number_are_compared(self) -> None:
        given = np.log([[0.6, 0.4], [0.4, 0.6]])
        assert decide(given, [[1.5e308, -1.5e308], [-1.5e308, 1.5e308]]).tolist() == [1, 0]

    def test_impossible_classes_cost_nothing(self) -> None:
        given = np.array([[0.0, -math.inf], [-math.inf, 0.0]])
        assert decide(given, [[0.0, 1e-300], [1e300, 0.0]]).tolist() == [0, 1]
        assert expected_cost(given, [[0.0, 1.0], [1e300, 0.0]], np.array([1, 1])).tolist() == [1.0, 0.0]

    def test_logits_of_ten_thousand(self) -> None:
        given = log_softmax(1e4 * stream().normal(size=(100, 3)), axis=1)
        assert np.array_equal(decide(given, np.array([[0.0, 1, 1], [1, 0, 1], [2, 2, 0]])), decide(given))


class TestExpectedCost:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_is_that_of_exact_arithmetic(self, seed: int) -> None:
        log_probs = table(50, 3, seed)
        costs = stream(seed + 100).normal(size=(3, 4))
        chosen = stream(seed + 200).integers(4, size=(50,))
        exact = [float(row[d]) for row, d in zip(exact_costs(log_probs, costs), chosen.tolist(), strict=True)]
        np.testing.assert_allclose(expected_cost(log_probs, costs, chosen), np.array(exact), rtol=1e-12, atol=1e-14)

    def test_no_decision_costs_less_than_the_chosen_one(self) -> None:
        log_probs = table(400, 3)
        costs = stream(1).random((3, 4))
        chosen = decide(log_probs, costs, abstain_cost=0.35)
        best = expected_cost(log_probs, costs, chosen, abstain_cost=0.35)
        for other in range(-1, 4):
            assert bool((best <= expected_cost(log_probs, costs, np.full((400,), other), abstain_cost=0.35) + 1e-15).all())
        assert bool((best[chosen == -1] == 0.35).all())

    @pytest.mark.parametrize("dtype", ["int8", "uint8", "uint16", "uint32", "uint64"])
    def test_takes_decisions_of_every_int(self, dtype: str) -> None:
        given = np.log([[0.9, 0.1], [0.3, 0.7]])
        decisions = np.array([0, 1], dtype)
        assert expected_cost(given, None, decisions).tolist() == pytest.approx([0.1, 0.3])

    def test_keeps_what_a_float_would_lose(self) -> None:
        given = np.array([[0.0, math.log(1e-200) + math.log(1e-200)]])
        found = expected_cost(given, [[0.0, 1.0], [1e308, 0.0]], np.array([0]))
        assert math.isclose(found[0], 1e-92, rel_tol=1e-12)
        assert isinstance(found, np.ndarray)


def test_a_threshold_is_shorthand_for_costs() -> None:
    assert cost_matrix(2, None, 0.2).tolist() == [[0.0, pytest.approx(0.25, rel=1e-15)], [1.0, 0.0]]
    assert cost_matrix(3).tolist() == [[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
    assert cost_matrix(2, [[0, 1, 2], [3, 4, 5]]).dtype == np.float64


TWO, THREE = table(5, 2), table(5, 3)
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "logits": (lambda: decide(np.full((4, 2), 3.0)), "log-probabilities"),
    "both": (lambda: decide(TWO, np.eye(2), 0.5), "`costs` or `threshold`, but got both"),
    "a threshold for three": (lambda: decide(THREE, threshold=0.5), "two classes for a `threshold`, but got 3"),
    "a percentage": (lambda: decide(TWO, threshold=20), "`threshold` .*but got 20: .*percentage"),
    "a threshold of 0": (lambda: decide(TWO, threshold=0.0), "strictly between 0 and 1, but got 0"),
    "a threshold of NaN": (lambda: decide(TWO, threshold=math.nan), "strictly between"),
    "a threshold in words": (lambda: decide(TWO, threshold="high"), "one number, but got 'high'"),  # type: ignore[arg-type]
    "transposed costs": (lambda: decide(THREE, np.ones((2, 3))), r"shape \(3, d\).*but got shape \(2, 3\): .*transposed"),
    "no decision": (lambda: decide(TWO, np.ones((2, 0))), r"shape \(2, d\).*but got shape \(2, 0\)"),
    "a list of costs": (lambda: decide(TWO, [1.0, 2.0]), r"but got shape \(2,\)"),
    "infinite costs": (lambda: decide(TWO, [[0, math.inf], [1, 0]]), "finite `costs`"),
    "NaN costs": (lambda: decide(TWO, [[0, math.nan], [1, 0]]), "finite `costs`"),
    "an infinite cost of abstaining": (lambda: decide(TWO, abstain_cost=math.inf), "`abstain_cost` to be a finite number"),
    "a cost of abstaining in words": (lambda: decide(TWO, abstain_cost="little"), "number, but got 'little'"),  # type: ignore[arg-type]
    "float decisions": (lambda: expected_cost(TWO, None, np.zeros(5)), "int `decisions`"),
    "too few decisions": (lambda: expected_cost(TWO, None, np.zeros(4, int)), r"shape \(5,\)"),
    "a decision too high": (lambda: expected_cost(TWO, None, np.full((5,), 2)), r"0\.\.1, or −1 .*got 2\.\.2"),
    "abstaining at no cost": (lambda: expected_cost(TWO, None, np.full((5,), -1)), "for every row, but some abstain"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_what_came_and_what_to_do(what: str) -> None:
    assert_refused(*BAD[what])
