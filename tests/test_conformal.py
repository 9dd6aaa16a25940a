"""Conformal sets: coverage under label shift where plain sets miss it, thresholds by hand, small samples, bad input."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from draws import assert_refused, population, stream, unchecked_types
from scipy.special import log_softmax

from rightloss.metrics.conformal import ConformalSets
from rightloss.prevalence import Prevalence

# Trained and calibrated in one mix, used in another: (calibration counts, population).
SHIFTS = {
    2: ([750, 750], [0.9, 0.1]),
    5: ([300, 300, 300, 300, 300], [0.5, 0.3, 0.1, 0.07, 0.03]),
}
SPREAD = {2: 1.0, 5: 1.6}


def people(counts: list[int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Predictions at the mix of an even training set, and labels: `counts` of each class.

    The first class is harder than the others, so that a mix with more of it is covered less.
    """
    k = len(counts)
    labels = np.repeat(np.arange(k), counts)
    hardness = np.linspace(0.2, 1.8, k)[labels, None]
    logits = SPREAD[k] * stream(seed).normal(size=(len(labels), k))
    return log_softmax(logits + 2 * hardness * np.eye(k)[labels], axis=1), labels


@unchecked_types()
def coverages(k: int, at: Any, draws: int = 200, **options: Any) -> np.ndarray:
    """Share of the population whose set holds their class, and that of each class, by calibration sample `(draws, 1 + k)`."""
    counts, pi = SHIFTS[k]
    found = []
    for seed in range(draws):
        sets = ConformalSets.fit(*people(counts, seed), at, **options)
        fresh, truth = people([1000] * k, 10**5 + seed)
        holds = sets.predict(fresh)[np.arange(len(truth)), truth]
        each = np.array([holds[truth == c].mean() for c in range(k)])
        found.append(np.append(np.array(pi) @ each, each))
    return np.stack(found)


def assert_level(samples: np.ndarray, level: float = 0.9) -> None:
    """The mean over calibration samples is at least the level and at most one point more, within 3 standard errors."""
    mean, error = float(samples.mean()), float(samples.std()) / len(samples) ** 0.5
    assert level - 3 * error <= mean <= level + 0.01 + 3 * error, f"{mean:.4f} ± {error:.4f}"
    assert error < 0.002


class TestCoverage:
    @pytest.mark.long
    @pytest.mark.parametrize("k", SHIFTS)
    def test_at_a_shifted_prevalence_is_the_level_where_plain_sets_miss_it(self, k: int) -> None:
        counts, pi = SHIFTS[k]
        assert_level(coverages(k, pi)[:, 0])
        even = [count / sum(counts) for count in counts]  # plain split conformal: the mix of the calibration sample
        plain = coverages(k, even, draws=50)[:, 0]
        assert float(plain.mean() + 3 * plain.std() / 50**0.5) < 0.89

    @pytest.mark.long
    @pytest.mark.parametrize("k", SHIFTS)
    def test_in_every_class_is_the_level_of_class_wise_sets(self, k: int) -> None:
        for each in coverages(k, None, per_class=True)[:, 1:].T:
            assert_level(each)

    @pytest.mark.long
    def test_at_an_uncertain_prevalence_is_the_level_on_average(self) -> None:
        uncertain = Prevalence.dirichlet(20 * np.array(SHIFTS[5][1]))
        each = coverages(5, uncertain)[:, 1:]
        assert_level((each * uncertain.sample(200, stream(1))).sum(1))


class TestThresholds:
    @pytest.mark.parametrize("n", [9, 19, 99, 100, 101])
    @pytest.mark.parametrize("level", ["0.9", "0.8"])
    def test_within_a_class_are_order_statistics(self, n: int, level: str) -> None:
        log_probs, labels = people([n, n], n)
        found = ConformalSets.fit(log_probs, labels, per_class=True, level=float(level)).thresholds
        rank = math.ceil((n + 1) * Fraction(level))
        for c in (0, 1):
            own = sorted((-log_probs[labels == c, c]).tolist())
            assert float(found[c]) == own[rank - 1]

    @pytest.mark.long
    @pytest.mark.parametrize("seed", range(5))
    def test_weigh_the_classes_as_the_population_does(self, seed: int) -> None:
        """Against a search in exact arithmetic."""
        log_probs, labels = people([30, 50, 20, 40, 60], seed)
        pi, level = population(5, seed), 0.7
        own = (-log_probs[np.arange(len(labels)), labels]).tolist()
        weight = [Fraction(float(pi[c])) / int((labels == c).sum()) for c in range(5)]
        found = ConformalSets.fit(log_probs, labels, pi, level=level).thresholds
        for c in range(5):
            enough = [
                s
                for s in sorted(own)
                if sum(weight[y] for t, y in zip(own, labels.tolist(), strict=True) if t <= s)
                >= Fraction(level) * (1 + weight[c])
            ]
            assert float(found[c]) == enough[0]

    def test_at_the_mix_of_the_sample_are_those_of_plain_split_conformal(self) -> None:
        log_probs, labels = people([150, 49], 0)
        own = sorted((-log_probs[np.arange(len(labels)), labels]).tolist())
        found = ConformalSets.fit(log_probs, labels, [150 / 199, 49 / 199]).thresholds
        assert found.tolist() == [own[math.ceil(200 * Fraction("0.9")) - 1]] * 2

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


class TestSets:
    def test_are_everything_and_said_to_be_where_the_sample_is_too_small(self) -> None:
        log_probs, labels = people([8, 200], 0)
        with pytest.warns(UserWarning, match=r"Too few .*level of 0.9: class\(es\) \[0\] are in every set"):
            sets = ConformalSets.fit(log_probs, labels, per_class=True)
        assert bool(sets.predict(log_probs)[:, 0].all())
        assert not bool(sets.predict(log_probs)[:, 1].all())

    def test_grow_with_the_level(self) -> None:
        log_probs, labels = people([200] * 5, 0)
        low, high = (ConformalSets.fit(log_probs, labels, SHIFTS[5][1], level=a) for a in (0.6, 0.9))
        small, large = low.predict(log_probs), high.predict(log_probs)
        assert bool((small <= large).all())
        assert large.sum(1).mean() > small.sum(1).mean() + 0.2

    def test_come_in_the_kind_given(self) -> None:
        torch = pytest.importorskip("torch")
        log_probs, labels = people([50] * 5, 0)
        found = ConformalSets.fit(log_probs, labels, SHIFTS[5][1]).predict(log_probs)
        assert isinstance(found, np.ndarray)
        assert found.dtype == np.bool_
        tensors = torch.from_numpy(log_probs), torch.from_numpy(labels)
        sets = ConformalSets.fit(*tensors, SHIFTS[5][1])
        assert isinstance(sets.thresholds, torch.Tensor)
        assert torch.equal(sets.predict(tensors[0]), torch.from_numpy(found))
        np.testing.assert_array_equal(sets.predict(log_probs), found)

    def test_are_everything_where_the_truth_is_too_often_ruled_out_and_that_is_said(self) -> None:
        certain = np.array([[0.0, -math.inf]] * 50 + [[-math.inf, 0.0]] * 50)
        labels = [0] * 40 + [1] * 10 + [1] * 40 + [0] * 10  # a fifth of each class is given probability 0
        with pytest.warns(UserWarning, match=r"probability 0 .*class\(es\) \[0, 1\] are in every set") as caught:
            sets = ConformalSets.fit(certain, labels, 0.5)
        assert len(caught) == 1
        assert sets.thresholds.tolist() == [math.inf, math.inf]
        with pytest.warns(UserWarning, match="are in every set") as caught:
            few = ConformalSets.fit(certain[50:], [0] * 45 + [1] * 5, per_class=True)
        assert [str(each.message)[:9] for each in caught] == ["Too few c", "The predi"]
        assert few.thresholds.tolist() == [math.inf, math.inf]

    def test_certain_predictions_are_fair(self) -> None:
        log_probs = np.array([[0.0, -math.inf]] * 30 + [[-math.inf, 0.0]] * 30)
        sets = ConformalSets.fit(log_probs, [0] * 30 + [1] * 30, 0.1)
        assert sets.predict(log_probs[[0, -1]]).tolist() == [[True, False], [False, True]]


P, Y = people([20, 20], 0)
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "no population": (lambda: ConformalSets.fit(P, Y), "`prevalence`.*but got none: .*per_class=True"),
    "a level in per cent": (lambda: ConformalSets.fit(P, Y, 0.1, level=90), "`level` .*but got 90"),
    "a class without examples": (lambda: ConformalSets.fit(P, Y * 0, 0.1), r"every class for conformal.*\[1\] have none"),
    "logits": (lambda: ConformalSets.fit(P + 1, Y, 0.1), "log-probabilities"),
    "other classes": (lambda: ConformalSets.fit(P, Y, 0.1).predict(people([9] * 5, 0)[0]), "2 columns.* but got 5"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_what_came_and_what_to_do(what: str) -> None:
    assert_refused(*BAD[what])
