"""Votes of readers: soft labels, and one answer out of many."""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pytest
import torch
from members import assert_mean_is, assert_refused, generator
from scipy import stats
from torch import Tensor

from rightloss.lidc.sets import UNDECIDED, binary_labels, binary_votes, expected_score, majority, rounded_mean, vote_shares
from rightloss.likelihoods import CumulativeLogit

# What up to eight readers can say, each on their own list: the most that a nodule has.
READINGS = [list(each) for readers in range(1, 9) for each in combinations_with_replacement(range(1, 6), readers)]
COUNTS = torch.tensor([[each.count(rating) for rating in range(1, 6)] for each in READINGS])
MODES = [int(stats.mode(each).mode) - 1 for each in READINGS]  # the smallest of several, by its documentation
FORMS: dict[str, Callable[[Tensor], Any]] = {
    "counts": lambda counts: counts,
    "a list": lambda counts: counts.tolist(),
    "shares in float32": vote_shares,
}
each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())


class TestShares:
    @each_form
    def test_they_are_the_same_from_any_form_of_votes(self, form: Callable[[Tensor], Any]) -> None:
        expected = torch.tensor([[float(Fraction(n, sum(row))) for n in row] for row in COUNTS.tolist()])
        torch.testing.assert_close(vote_shares(form(COUNTS)), expected, rtol=0, atol=2e-7)
        assert not vote_shares(expected.requires_grad_()).requires_grad

    def test_for_two_classes_every_reader_has_one_vote_and_a_three_is_split(self) -> None:
        value = {1: 0, 2: 0, 3: 0.5, 4: 1, 5: 1}
        malignant = torch.tensor([np.mean([value[rating] for rating in each]) for each in READINGS]).float()
        torch.testing.assert_close(binary_votes(COUNTS), torch.stack([1 - malignant, malignant], 1), rtol=0, atol=2e-7)


class TestOneAnswer:
    def test_for_two_classes_the_majority_decides_unless_it_is_three(self) -> None:
        sides = {0: 0, 1: 0, 2: UNDECIDED, 3: 1, 4: 1}
        assert binary_labels(COUNTS).tolist() == [sides[mode] for mode in MODES]

    @each_form
    def test_or_the_mean_decides_unless_it_is_exactly_three(self, form: Callable[[Tensor], Any]) -> None:
        sides = [UNDECIDED if sum(each) == 3 * len(each) else int(sum(each) > 3 * len(each)) for each in READINGS]
        assert binary_labels(form(COUNTS), "mean").tolist() == sides

    @each_form
    def test_the_majority_is_scipys_mode(self, form: Callable[[Tensor], Any]) -> None:
        assert majority(form(COUNTS)).tolist() == MODES

    @each_form
    def test_the_rounded_mean_is_exact_with_halves_up(self, form: Callable[[Tensor], Any]) -> None:
        exact = [Decimal(sum(each)) / Decimal(len(each)) for each in READINGS]
        expected = [int(mean.quantize(Decimal(1), ROUND_HALF_UP)) - 1 for mean in exact]
        assert rounded_mean(form(COUNTS)).tolist() == expected
        assert sum(mean % 1 == Decimal("0.5") for mean in exact) > 100  # so that halves were looked at

    @each_form
    def test_the_expected_score_is_the_mean_of_the_ratings(self, form: Callable[[Tensor], Any]) -> None:
        expected = torch.tensor([np.mean(each) for each in READINGS])
        torch.testing.assert_close(expected_score(form(COUNTS)), expected, rtol=0, atol=1e-6)

    def test_of_predictions_the_expected_score_is_the_mean_of_their_draws(self) -> None:
        likelihood = CumulativeLogit(5)
        outputs = torch.randn(4, likelihood.num_outputs, generator=generator(1))
        probs = likelihood.table(outputs).detach().exp()
        draws = torch.multinomial(probs, 20_000, replacement=True, generator=generator(2)) + 1
        assert_mean_is(draws.T, expected_score(probs))

    def test_of_two_classes_all_answers_agree_but_at_a_half(self) -> None:
        probs = torch.rand(100, generator=generator(3), dtype=torch.float64)
        table = torch.stack([1 - probs, probs], 1).requires_grad_()
        assert not expected_score(table).requires_grad
        assert torch.equal(majority(table), (probs > 0.5).long())
        clear = (probs - 0.5).abs() > 1e-5
        assert torch.equal(rounded_mean(table)[clear], majority(table)[clear])
        half = torch.tensor([[0.5, 0.5]])
        assert (majority(half).item(), rounded_mean(half).item()) == (0, 1)


class TestBadVotes:
    @pytest.mark.parametrize(
        ("votes", "words"),
        [
            (torch.log_softmax(torch.ones(2, 5), 1), r"row 0 .*\.exp\(\)"),
            ([[1, 0, 0, 0, 0], [0, 0, 0, 0, 0]], "row 1"),
            ([[1, 0, 0, 0, -1]], "row 0"),
            ([[1, 0, 0, 0, float("nan")]], "row 0"),
            ([[1, 0, 0, 0, float("inf")]], "row 0"),
            ([1, 2, 3, 4, 5], r"shape \(5,\)"),
            ([[1], [2]], r"shape \(2, 1\)"),
            ([["a", "b"]], "numbers"),
        ],
    )
    def test_it_is_refused(self, votes: Any, words: str) -> None:
        assert_refused(lambda: rounded_mean(votes), words)

    def test_two_classes_are_made_of_five_ratings_only(self) -> None:
        assert_refused(lambda: binary_votes([[1, 2, 3]]), "3 columns")
