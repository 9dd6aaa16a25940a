"""Prevalence: what it holds, where it comes from, that it cannot change, its distribution, bad input."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pandas as pd
import pytest
from draws import assert_mean_is, assert_refused, population, stream

from rightloss.prevalence import ContinuousPrevalence, Prevalence, _rebuild, class_frequencies, frequencies

NAN, INF = float("nan"), float("inf")
SEEDS = range(5)

# One of each kind: certain and uncertain, two classes and more, with and without evidence.
PREVALENCES: dict[str, Prevalence] = {
    "binary": Prevalence.binary(0.001, sampling=0.3, evidence=0.25),
    "five classes": Prevalence(population(5, 0), population(5, 1), evidence=2.0),
    "beta": Prevalence.beta(3.0, 2000.0, sampling=0.4),
    "dirichlet": Prevalence.dirichlet([0.5, 3.0, 40.0], population(3, 2), evidence=1.5),
}

# For 0.5, 0.25, 0.25, which float32 holds too, in every form users have them in.
FORMS: dict[str, Callable[[], Any]] = {
    "list": lambda: [0.5, 0.25, 0.25],
    "tuple": lambda: (0.5, 0.25, 0.25),
    "float64 array": lambda: np.array([0.5, 0.25, 0.25]),
    "float32 array": lambda: np.array([0.5, 0.25, 0.25], dtype=np.float32),
    "read-only array": lambda: np.broadcast_to(np.array([0.5, 0.25, 0.25]), (3,)),
}

# The same 8 labels of 3 classes: 4, 3 and 1 of them.
LABELS: dict[str, Callable[[], Any]] = {
    "list": lambda: [0, 1, 0, 2, 1, 0, 1, 0],
    "uint8 array": lambda: np.array([0, 1, 0, 2, 1, 0, 1, 0], dtype=np.uint8),
    "int32 array": lambda: np.array([0, 1, 0, 2, 1, 0, 1, 0], dtype=np.int32),
    "read-only array": lambda: np.broadcast_to(np.array([0, 1, 0, 2, 1, 0, 1, 0]), (8,)),
    "column of a table": lambda: pd.Series([0, 1, 0, 2, 1, 0, 1, 0], index=range(8, 0, -1)),
    "labels and ignored ones": lambda: np.array([0, 1, 0, -100, 2, 1, 0, 1, 0, -100]),
    "masks": lambda: np.array([[[0, 1], [0, 2]], [[1, 0], [1, 0]]]),
    "masks with ignored pixels": lambda: np.array([[[0, 1, -100], [0, 2, -100]], [[1, 0, -100], [1, 0, -100]]]),
    "one-hot votes": lambda: np.eye(3, dtype=np.float32)[[0, 1, 0, 2, 1, 0, 1, 0]],
    "split votes": lambda: np.array([[0.5, 0.25, 0.25], [0.5, 0.5, 0.0]]),
}


class Flat:
    """A density."""

    def log_prob(self, value: Any) -> Any:
        return 0 * value


@pytest.fixture(params=PREVALENCES)
def prevalence(request: pytest.FixtureRequest) -> Prevalence:
    return PREVALENCES[request.param]


def lists(value: Prevalence) -> list[Any]:
    """All that a prevalence holds, as numbers."""
    alpha = value.concentration
    return [value.population.tolist(), value.sampling.tolist(), value.evidence, None if alpha is None else alpha.tolist()]


class TestWhatItHolds:
    @pytest.mark.parametrize("rate", [0.5, 0.001, 0.97])
    def test_binary_is_two_classes_by_the_frequency_of_the_second(self, rate: float) -> None:
        two = Prevalence([1 - rate, rate], sampling=[0.75, 0.25], evidence=2.0)
        assert Prevalence.binary(rate, sampling=0.25, evidence=2.0) == two
        assert two.population.tolist() == [1 - rate, rate]

    def test_binary_is_sampled_equally_by_default(self) -> None:
        assert Prevalence.binary(0.001).sampling.tolist() == [0.5, 0.5]

    @pytest.mark.parametrize("k", [2, 3, 7])
    def test_no_sampling_means_equal_classes(self, k: int) -> None:
        found = Prevalence(population(k))
        np.testing.assert_allclose(found.sampling, 1 / k, rtol=1e-15)
        assert found.num_classes == k

    def test_a_known_prevalence_has_an_evidence_of_one(self) -> None:
        labels = [0, 1, 1]
        for known in (Prevalence([0.9, 0.1]), Prevalence.binary(0.1), Prevalence.from_labels(labels, 0.1)):
            assert known.evidence == 1
        assert ContinuousPrevalence(Flat()).evidence == 1

    def test_with_evidence_changes_nothing_else(self, prevalence: Prevalence) -> None:
        other = prevalence.with_evidence(0.0)
        assert other.evidence == 0
        assert other != prevalence
        assert other.with_evidence(prevalence.evidence) == prevalence.with_evidence(prevalence.evidence)
        assert [lists(other)[place] for place in (0, 1, 3)] == [lists(prevalence)[place] for place in (0, 1, 3)]

    def test_with_sampling_changes_nothing_else(self, prevalence: Prevalence) -> None:
        rho = population(prevalence.num_classes, 77)
        other = prevalence.with_sampling(rho)
        np.testing.assert_allclose(other.sampling, rho, rtol=1e-14)
        assert other.evidence == prevalence.evidence
        assert other.with_sampling(prevalence.sampling) == prevalence

    @pytest.mark.parametrize("form", FORMS)
    def test_frequencies_come_in_any_form(self, form: str) -> None:
        found = Prevalence(FORMS[form](), sampling=FORMS[form]())
        for values in (found.population, found.sampling):
            assert values.dtype == np.float64
            assert values.tolist() == [0.5, 0.25, 0.25]

    @pytest.mark.parametrize("seed", SEEDS)
    def test_weights_are_population_by_sampling(self, seed: int) -> None:
        pi, rho = population(4, seed).tolist(), population(4, seed + 100).tolist()
        found = Prevalence(pi, sampling=rho)
        expected = [p / r for p, r in zip(pi, rho, strict=True)]
        np.testing.assert_allclose(found.weights, expected, rtol=1e-13)
        np.testing.assert_allclose(np.exp(found.log_weights), expected, rtol=1e-13)

    @pytest.mark.parametrize("seed", SEEDS)
    def test_the_mean_weight_of_a_training_example_is_1(self, seed: int) -> None:
        found = Prevalence(population(4, seed), sampling=population(4, seed + 100))
        assert math.isclose(float(found.sampling @ found.weights), 1, rel_tol=1e-14)

    @pytest.mark.parametrize("rate", [1e-3, 1e-6, 1e-9])
    @pytest.mark.parametrize("rho", [0.5, 0.3])
    def test_rare_classes_keep_their_log_weights(self, rate: float, rho: float) -> None:
        pi, sampling = [1 - 2 * rate, rate, rate], [1 - rho, rho / 3, 2 * rho / 3]
        with localcontext() as context:
            context.prec = 40
            exact = [float(Decimal(p).ln() - Decimal(r).ln()) for p, r in zip(pi, sampling, strict=True)]
        found = Prevalence(pi, sampling).log_weights
        np.testing.assert_allclose(found, exact, rtol=1e-12)
        binary = Prevalence.binary(rate, rho).log_weights[1]
        assert math.isclose(float(binary), math.log(rate) - math.log(rho), rel_tol=1e-12)

    @pytest.mark.parametrize("seed", SEEDS)
    def test_rounded_frequencies_are_made_to_sum_to_1(self, seed: int) -> None:
        rounded = population(5, seed).astype(np.float32)
        found = Prevalence(rounded).population
        assert math.isclose(float(found.sum()), 1, rel_tol=1e-14)
        np.testing.assert_allclose(found / found[0], rounded.astype(np.float64) / rounded[0], rtol=1e-14)

    @pytest.mark.parametrize("seed", SEEDS)
    def test_accepted_frequencies_are_not_changed_again(self, seed: int) -> None:
        once = frequencies(population(5, seed).astype(np.float32), "population")
        assert frequencies(once, "population").tolist() == once.tolist()

    def test_a_class_that_is_never_labelled_has_an_infinite_weight(self) -> None:
        found = Prevalence.positive_unlabelled(0.25, labelled=0)
        assert found.sampling.tolist() == [1, 0]
        assert found.weights.tolist() == [0.75, INF]
        assert found.log_weights.tolist() == [math.log(0.75), INF]

    def test_a_repr_says_what_it_is_and_shortens_long_lists(self) -> None:
        assert repr(Prevalence.binary(0.001)) == "Prevalence(population=[0.999, 0.001], sampling=[0.5, 0.5])"
        assert "evidence=1.5, concentration=[0.5, 3, 40]" in repr(PREVALENCES["dirichlet"])
        assert repr(Prevalence(np.full(1000, 1e-3))).count("0.001") == 12


class TestFromLabels:
    @pytest.mark.parametrize("form", LABELS)
    def test_sampling_is_the_mix_of_the_labels(self, form: str) -> None:
        found = Prevalence.from_labels(LABELS[form](), [0.9, 0.09, 0.01], evidence=2.0)
        assert found == Prevalence([0.9, 0.09, 0.01], sampling=[4 / 8, 3 / 8, 1 / 8], evidence=2.0)

    @pytest.mark.parametrize("rate", [0.125, np.float32(0.125), np.array(0.125)])
    def test_one_number_is_the_frequency_of_class_1(self, rate: Any) -> None:
        assert Prevalence.from_labels([0, 1, 1, 1], rate) == Prevalence([0.875, 0.125], sampling=[0.25, 0.75])

    def test_the_ignored_label_can_be_chosen(self) -> None:
        labels = np.array([0, 255, 1, 255, 0, 0])
        assert Prevalence.from_labels(labels, 0.1, ignore_index=255).sampling.tolist() == [0.75, 0.25]
        assert class_frequencies(labels.clip(max=2), 3).tolist() == [3 / 6, 1 / 6, 2 / 6]
        assert class_frequencies(labels.clip(max=2), 3, ignore_index=0).tolist() == [0, 1 / 3, 2 / 3]

    def test_votes_are_averaged(self) -> None:
        votes = np.stack([population(3, seed) for seed in range(50)])
        by_hand = [math.fsum(row[c] for row in votes.tolist()) / 50 for c in range(3)]
        found = Prevalence.from_labels(votes, population(3, 99)).sampling
        np.testing.assert_allclose(found, by_hand, rtol=1e-14)


class TestTheEvidenceOfAnUncertainPrevalence:
    def test_is_one_as_for_a_known_one(self) -> None:
        """Rows sampled by class say nothing about π, so they count it neither more nor less."""
        assert Prevalence.beta(3.0, 7.0).evidence == Prevalence.dirichlet([60.0, 30.0, 10.0]).evidence == 1

    def test_a_given_one_is_kept(self) -> None:
        assert Prevalence.beta(3.0, 7.0, evidence=0.25).evidence == 0.25


class TestRetarget:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_there_and_back_is_the_identity(self, seed: int) -> None:
        start = Prevalence(population(3, seed), population(3, seed + 100), evidence=1.5)
        away = start.retarget(population(3, seed + 200))
        assert away != start
        for back in (start, start.population, start.population.tolist()):
            assert away.retarget(back) == start

    def test_there_and_back_is_the_identity_for_every_kind(self, prevalence: Prevalence) -> None:
        away = prevalence.retarget(population(prevalence.num_classes, 7))
        assert not away.is_uncertain
        assert away.retarget(prevalence) == prevalence

    def test_to_its_own_population_is_the_identity(self, prevalence: Prevalence) -> None:
        assert prevalence.retarget(prevalence) == prevalence

    def test_only_the_population_moves(self, prevalence: Prevalence) -> None:
        pi = population(prevalence.num_classes, 7)
        found = prevalence.retarget(pi)
        np.testing.assert_allclose(found.population, pi, rtol=1e-14)
        assert lists(found)[1:3] == lists(prevalence)[1:3]

    def test_to_a_number_is_to_the_frequency_of_class_1(self) -> None:
        assert Prevalence.binary(0.5, sampling=0.3).retarget(0.125) == Prevalence.binary(0.125, sampling=0.3)

    def test_to_another_prevalence_takes_its_population_alone(self) -> None:
        found = Prevalence.binary(0.5, sampling=0.3, evidence=1.0).retarget(Prevalence.beta(2.0, 6.0, 0.9, evidence=5.0))
        assert found == Prevalence.beta(2.0, 6.0, sampling=0.3, evidence=1.0)


class TestImmutable:
    @pytest.mark.parametrize("name", ["population", "sampling", "evidence", "weights", "_population", "new"])
    def test_assignment_raises(self, name: str) -> None:
        with pytest.raises(AttributeError, match=f"cannot be changed: .*`{name}`"):
            setattr(Prevalence.binary(0.1), name, np.array([0.5, 0.5]))

    def test_arrays_are_read_only_or_copies(self, prevalence: Prevalence) -> None:
        before = lists(prevalence)
        for name in ("population", "sampling", "start", "concentration"):
            value = getattr(prevalence, name)
            if value is not None:
                with pytest.raises(ValueError, match="read-only"):
                    value[:] = 0
        for fresh in (prevalence.weights, prevalence.log_weights, prevalence.sample(3)):
            fresh[:] = 0
        assert lists(prevalence) == before

    def test_changing_the_input_afterwards_changes_nothing(self) -> None:
        pi, rho, alpha, moved = (np.array([0.5, 0.25, 0.25]) for _ in range(4))
        made = [Prevalence(pi, rho), Prevalence.dirichlet(alpha), Prevalence(pi, rho).retarget(moved)]
        before = [lists(each) for each in made]
        for values in (pi, rho, alpha, moved):
            values[:] = 9.0
        assert [lists(each) for each in made] == before

    def test_equal_ones_are_equal_and_hash_alike(self) -> None:
        pi, rho, alpha = [0.75, 0.25], [0.375, 0.625], [3.0, 1.0]
        different = [
            Prevalence(pi, rho, 1.0),
            Prevalence(pi[::-1], rho, 1.0),
            Prevalence(pi, rho[::-1], 1.0),
            Prevalence(pi, rho, 2.0),
            Prevalence.dirichlet(alpha, rho, 1.0),
            Prevalence.dirichlet([6.0, 2.0], rho, 1.0),
        ]
        assert len(set(different)) == len(different)
        for one in different:
            assert [one == other for other in different].count(True) == 1
        again = {Prevalence(np.array(pi), tuple(rho), 1.0), Prevalence.dirichlet(tuple(alpha), rho, 1.0)}
        assert again < set(different)

    def test_other_things_are_not_equal(self) -> None:
        assert Prevalence([0.5, 0.5]) != [0.5, 0.5]
        assert Prevalence([0.5, 0.5]) != "half"

    @pytest.mark.parametrize(
        "travel", [copy.copy, copy.deepcopy, *(lambda p, v=v: pickle.loads(pickle.dumps(p, v)) for v in (2, 5))]
    )
    def test_copies_are_equal(self, prevalence: Prevalence, travel: Callable[[Prevalence], Prevalence]) -> None:
        found = travel(prevalence)
        assert found == prevalence
        assert lists(found) == lists(prevalence)
        assert hash(found) == hash(prevalence)
        with pytest.raises(AttributeError, match="cannot be changed"):
            found.evidence = 1.0


class TestUncertain:
    N = 20_000

    @pytest.mark.parametrize(("a", "b"), [(2.0, 6.0), (0.5, 0.5), (1.5, 998.5), (40.0, 3.0)])
    def test_beta_is_the_distribution_of_the_frequency_of_class_1(self, a: float, b: float) -> None:
        prevalence = Prevalence.beta(a, b, sampling=0.25, evidence=1.0)
        mean, variance = a / (a + b), a * b / ((a + b) ** 2 * (a + b + 1))
        np.testing.assert_allclose(prevalence.population, [1 - mean, mean], rtol=1e-14)
        assert lists(prevalence)[1:] == [[0.75, 0.25], 1.0, [b, a]]
        draws = prevalence.sample(self.N, stream())[:, 1]
        assert_mean_is(draws, mean)
        assert_mean_is((draws - mean) ** 2, variance)

    @pytest.mark.parametrize("alpha", [[1.0, 1.0, 1.0], [0.3, 4.0, 25.0], [5.0, 0.5, 0.5, 90.0, 4.0], [1e-3, 2e-3]])
    def test_dirichlet_draws_have_its_means_and_covariances(self, alpha: list[float]) -> None:
        prevalence, total = Prevalence.dirichlet(alpha), sum(alpha)
        mean = np.array([a / total for a in alpha])
        np.testing.assert_allclose(prevalence.population, mean, rtol=1e-14)
        draws = prevalence.sample(self.N, stream())
        assert_mean_is(draws, mean)
        around = draws - mean
        assert_mean_is(around[:, :, None] * around[:, None, :], (np.diag(mean) - np.outer(mean, mean)) / (total + 1))

    @pytest.mark.parametrize("alpha", [[1e-3, 1e-3], [1e-3, 1.0, 1e4], [0.5, 1e9]])
    def test_every_draw_is_a_frequency(self, alpha: list[float]) -> None:
        draws = Prevalence.dirichlet(alpha).sample(1000, stream())
        assert bool((draws > 0).all())
        np.testing.assert_allclose(draws.sum(1), 1, rtol=1e-14)

    def test_draws_of_a_certain_prevalence_are_equal_to_it(self) -> None:
        pi = population(4)
        prevalence = Prevalence(pi)
        assert not prevalence.is_uncertain
        assert prevalence.concentration is None
        assert np.array_equal(prevalence.sample(3), np.tile(pi, (3, 1)))

    def test_draws_come_in_the_number_asked_for(self, prevalence: Prevalence) -> None:
        for n in (0, 1, 5):
            assert prevalence.sample(n).shape == (n, prevalence.num_classes)

    def test_a_generator_decides_the_draws(self) -> None:
        prevalence = PREVALENCES["dirichlet"]
        one, again, other = (prevalence.sample(5, stream(seed)) for seed in (0, 0, 1))
        assert np.array_equal(one, again)
        assert not np.array_equal(one, other)
        assert np.array_equal(prevalence.sample(5, 7), prevalence.sample(5, np.random.default_rng(7)))
        shared = stream()
        assert not np.array_equal(prevalence.sample(5, shared), prevalence.sample(5, shared))
        assert not np.array_equal(prevalence.sample(5), prevalence.sample(5))


class TestContinuous:
    def test_it_holds_two_densities_and_the_evidence(self) -> None:
        population, sampling = Flat(), Flat()
        found = ContinuousPrevalence(population, sampling, evidence=0.5)
        assert (found.population, found.sampling, found.evidence) == (population, sampling, 0.5)
        assert ContinuousPrevalence(population).sampling is None
        assert found.with_evidence(2.0).evidence == 2


LIST, PAIR, KNOWN = [0.9, 0.1], [0.5, 0.5], Flat()

# (what was done, words of the message).
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    # frequencies
    "a sum above 1": (lambda: Prevalence([0.9, 0.3]), "`population` to sum to 1, but got 1.2: divide"),
    "a sum below 1": (lambda: Prevalence([0.5, 0.4]), "`population` to sum to 1, but got 0.9: divide"),
    "a sum just off 1": (lambda: Prevalence([0.9, 0.10001]), "`population` to sum to 1"),
    "a sampling off 1": (lambda: Prevalence(LIST, [0.5, 0.6]), "`sampling` to sum to 1, but got 1.1"),
    "percentages": (lambda: Prevalence([99.9, 0.1]), "sum to 1, but got 100: divide by its sum"),
    "counts": (lambda: Prevalence([900, 100]), "sum to 1, but got 1000"),
    "a percentage": (lambda: Prevalence.binary(10), "`population` .*between 0 and 1, but got 10: is it a percentage"),
    "a sampled percentage": (lambda: Prevalence.binary(0.1, 50), "`sampling` .*between 0 and 1, but got 50"),
    "a negative frequency": (lambda: Prevalence([1.1, -0.1]), r"positive, but got \[1.1, -0.1\]: are these log"),
    "log-probabilities": (lambda: Prevalence([math.log(0.9), math.log(0.1)]), "are these log-probabilities"),
    "NaN": (lambda: Prevalence([NAN, 0.5]), r"`population` to be finite, but got \[nan, 0.5\]: "),
    "infinity": (lambda: Prevalence([INF, 0.5]), r"`population` to be finite, but got \[inf, 0.5\]: "),
    "NaN in the sampling": (lambda: Prevalence(LIST, [0.5, NAN]), "`sampling` to be finite"),
    "the wrong length": (lambda: Prevalence(LIST, [0.5, 0.25, 0.25]), "`sampling` to have 2 entries.* but got 3"),
    "one class": (lambda: Prevalence([1.0]), "at least 2 classes, but got 1: .*Prevalence.binary"),
    "no class": (lambda: Prevalence([]), "at least 2 classes, but got 0"),
    "a class that does not occur": (lambda: Prevalence([1.0, 0.0]), r"it is 0 for \[1\]: drop the class"),
    "a class never sampled": (lambda: Prevalence(LIST, [0.0, 1.0]), r"it is 0 for \[0\]: .*never sampled"),
    "a number for a list": (lambda: Prevalence(0.1), r"but got shape \(\): .*Prevalence.binary"),
    "a nested list": (lambda: Prevalence([[0.9, 0.1]]), r"but got shape \(1, 2\): "),
    "a ragged list": (lambda: Prevalence([[0.9], [0.1, 0.0]]), "to be numbers"),
    "a matrix": (lambda: Prevalence(np.eye(2)), r"but got shape \(2, 2\): "),
    "words": (lambda: Prevalence(["rare", "common"]), "to be numbers, but got list of dtype <U6: give"),
    "nothing": (lambda: Prevalence(None), "to be numbers, but got None"),  # type: ignore[arg-type]
    "certainty": (lambda: Prevalence.binary(0), "`population` .*strictly between 0 and 1, but got 0"),
    "a rate of NaN": (lambda: Prevalence.binary(NAN), "between 0 and 1, but got nan"),
    "a list for a rate": (lambda: Prevalence.binary(LIST), r"one number.* but got \[0.9, 0.1\]: "),  # type: ignore[arg-type]
    # evidence
    "negative evidence": (lambda: Prevalence(LIST, evidence=-1.0), "`evidence` .*from 0 up, but got -1.0: "),
    "evidence of NaN": (lambda: Prevalence(LIST, evidence=NAN), "`evidence` .*from 0 up, but got nan"),
    "infinite evidence": (lambda: Prevalence(LIST, evidence=INF), "`evidence` .*finite.* but got inf"),
    "evidence in words": (lambda: Prevalence(LIST, evidence="1"), "`evidence` .*but got '1'"),  # type: ignore[arg-type]
    "evidence of a beta": (lambda: Prevalence.beta(1.0, 2.0, evidence=-1.0), "`evidence`"),
    "evidence of a density": (lambda: ContinuousPrevalence(KNOWN, evidence=-1.0), "`evidence` .*but got -1"),
    "NaN evidence of a density": (lambda: ContinuousPrevalence(KNOWN, evidence=NAN), "`evidence` .*but got nan"),
    "a third class that is labelled": (lambda: Prevalence.positive_unlabelled(0.1, 2), "`labelled` to be 0 or 1, but got 2"),
    # labels
    "a label too high": (lambda: Prevalence.from_labels([0, 1, 2], LIST), r"labels in 0\.\.1, but got 0\.\.2: "),
    "a label too low": (lambda: Prevalence.from_labels([0, 1, -1], LIST), r"labels in 0\.\.1, but got -1\.\.1: "),
    "an ignored label not to ignore": (
        lambda: Prevalence.from_labels([0, 1, -100], LIST, ignore_index=None),
        r"labels in 0\.\.1, but got -100\.\.1",
    ),
    "bool labels of many classes": (
        lambda: Prevalence.from_labels([True, False], [0.8, 0.1, 0.1]),
        r"got bool: call `labels.long\(\)`, or `.astype\(int\)`",
    ),
    "labels in words": (lambda: Prevalence.from_labels(pd.Series(["ill", "well"]), 0.1), r"np\.unique\(y"),
    "complex labels": (lambda: Prevalence.from_labels(np.array([0j, 1j]), 0.1), "complex128: number the classes"),
    "complex frequencies": (lambda: Prevalence([0.5 + 0j, 0.5]), "to be numbers, but got list of dtype complex128"),
    "a complex number": (lambda: Prevalence.binary(np.array(0.5 + 0j)), "one number"),  # type: ignore[arg-type]
    "float labels": (lambda: Prevalence.from_labels([0.0, 1.0], LIST), r"int labels.*float64 of shape \(2,\): "),
    "words for labels": (lambda: Prevalence.from_labels(["a", "b"], LIST), "to be numbers.*number the classes from 0"),
    "no labels": (lambda: Prevalence.from_labels([], LIST), r"at least one label, but got shape \(0,\)"),
    "no votes": (lambda: Prevalence.from_labels(np.zeros((0, 2)), LIST), r"at least one label, but got shape \(0, 2\)"),
    "only ignored labels": (lambda: Prevalence.from_labels([-100, -100], LIST), "at least one label.*ignore_index"),
    "a class without labels": (lambda: Prevalence.from_labels([0, 0], LIST), r"class\(es\) \[1\] have none: .*collect"),
    "a class without votes": (lambda: Prevalence.from_labels([[0.0, 1.0]], LIST), r"class\(es\) \[0\] have none"),
    "votes of too many classes": (
        lambda: Prevalence.from_labels(np.full((4, 3), 1 / 3), LIST),
        r"votes of shape \(n, 2\), but got .*\(4, 3\): ",
    ),
    "votes of three dimensions": (lambda: Prevalence.from_labels(np.ones((4, 2, 2)) / 2, LIST), r"got .*\(4, 2, 2\): "),
    "votes off 1": (
        lambda: Prevalence.from_labels([[0.5, 0.5], [0.5, 0.75]], LIST),
        r"rows that sum to 1, but row 1 is \[0.5, 0.75\]: divide",
    ),
    "negative votes": (lambda: Prevalence.from_labels([[1.5, -0.5], PAIR], LIST), "non-negative .*but row 0"),
    "votes of NaN": (lambda: Prevalence.from_labels([PAIR, [NAN, 0.5]], LIST), "sum to 1, but row 1"),
    "a bad population with labels": (lambda: Prevalence.from_labels([0, 1], [0.9, 0.3]), "`population` to sum to 1"),
    "a percentage with labels": (lambda: Prevalence.from_labels([0, 1], 10.0), "is it a percentage"),
    # uncertain prevalence
    "a beta of nobody": (lambda: Prevalence.beta(0.0, 3.0), r"positive and finite, but got \[3.0, 0.0\]: "),
    "a negative beta": (lambda: Prevalence.beta(1.0, -3.0), "positive and finite"),
    "a beta of NaN": (lambda: Prevalence.beta(NAN, 3.0), "positive and finite"),
    "an infinite beta": (lambda: Prevalence.beta(INF, 3.0), "positive and finite"),
    "a beta sampled at a percentage": (lambda: Prevalence.beta(1.0, 3.0, 50.0), "is it a percentage"),
    "a dirichlet of one class": (lambda: Prevalence.dirichlet([1.0]), "at least 2 classes"),
    "a dirichlet sampled otherwise": (lambda: Prevalence.dirichlet([1.0, 2.0, 3.0], PAIR), "3 entries.* but got 2"),
    # retargeting
    "another number of classes": (lambda: Prevalence(LIST).retarget([0.5, 0.25, 0.25]), "2 entries.* but got 3"),
    "a prevalence of other classes": (
        lambda: Prevalence(LIST).retarget(Prevalence(population(3))),
        "2 classes, but got 3: .*cannot change",
    ),
    "one number for three classes": (lambda: Prevalence(population(3)).retarget(0.1), "3 entries.* but got 2"),
    "a target off 1": (lambda: Prevalence(LIST).retarget([0.9, 0.3]), "`population` to sum to 1"),
    "a target percentage": (lambda: Prevalence(LIST).retarget(10.0), "is it a percentage"),
    # densities
    "classes for a density": (lambda: ContinuousPrevalence(LIST), "with `log_prob`.* but got list: "),  # type: ignore[arg-type]
    "classes for a sampled density": (
        lambda: ContinuousPrevalence(KNOWN, LIST),  # type: ignore[arg-type]
        "`sampling` .*with `log_prob`.* but got list: ",
    ),
    "no density": (lambda: ContinuousPrevalence(None), "`population` .*but got NoneType: "),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_what_came_and_what_to_do(what: str) -> None:
    assert_refused(*BAD[what])


class TestTensors:
    """Tensors are taken wherever arrays are; a prevalence holds arrays."""

    @pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
    def test_frequencies_and_votes(self, dtype: str) -> None:
        torch = pytest.importorskip("torch")
        given = torch.tensor([0.5, 0.25, 0.25], dtype=getattr(torch, dtype), requires_grad=True)
        for found in (Prevalence(given, given), Prevalence.from_labels(given[None], given)):
            assert found == Prevalence([0.5, 0.25, 0.25], [0.5, 0.25, 0.25])
        thirds = torch.full((4, 3), 1 / 3, dtype=getattr(torch, dtype))
        np.testing.assert_allclose(Prevalence.from_labels(thirds, thirds[0]).sampling, 1 / 3, rtol=1e-15)

    def test_labels_and_numbers(self) -> None:
        torch = pytest.importorskip("torch")
        for dtype in (torch.int64, torch.uint8):
            labels = torch.tensor([[0, 1], [1, 1]], dtype=dtype)[..., None]
            assert Prevalence.from_labels(labels, torch.tensor(0.125)) == Prevalence.binary(0.125, 0.75)
        assert_refused(lambda: Prevalence.from_labels(torch.tensor([0j, 1j]), 0.1), "complex64: number the classes")
        assert_refused(lambda: Prevalence.binary(torch.tensor(0.5 + 0j)), "one number")

    def test_a_generator_of_torch_decides_the_draws(self) -> None:
        torch = pytest.importorskip("torch")
        one, again, other = (PREVALENCES["beta"].sample(5, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
        assert np.array_equal(one, again)
        assert not np.array_equal(one, other)

    def test_pickles_of_an_older_version_hold_tensors(self) -> None:
        torch = pytest.importorskip("torch")
        pi, alpha = torch.tensor([0.75, 0.25]).double(), torch.tensor([3.0, 1.0]).double()
        assert _rebuild(pi, pi, None, alpha) == Prevalence.dirichlet([3.0, 1.0], [0.75, 0.25])
