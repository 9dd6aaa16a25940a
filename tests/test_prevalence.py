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

# One of each kind: certain and uncertain, two classes and more, with and without evidence.
PREVALENCES: dict[str, Prevalence] = {
    "binary": Prevalence.binary(0.001, sampling=0.3, evidence=0.25),
    "five classes": Prevalence(population(5, 0), population(5, 1), evidence=2.0),
    "beta": Prevalence.beta(3.0, 2000.0, sampling=0.4),
    "dirichlet": Prevalence.dirichlet([0.5, 3.0, 40.0], population(3, 2), evidence=1.5),
}
each_prevalence = pytest.mark.parametrize("prevalence", PREVALENCES.values(), ids=PREVALENCES)

# The same 8 labels of 3 classes: 4, 3 and 1 of them.
LABELS: list[Any] = [
    [0, 1, 0, 2, 1, 0, 1, 0],
    np.array([0, 1, 0, 2, 1, 0, 1, 0], dtype=np.uint8),
    np.broadcast_to(np.array([0, 1, 0, 2, 1, 0, 1, 0]), (8,)),  # read-only
    pd.Series([0, 1, 0, 2, 1, 0, 1, 0], index=range(8, 0, -1)),
    np.array([0, 1, 0, -100, 2, 1, 0, 1, 0, -100]),
    np.array([[[0, 1, -100], [0, 2, -100]], [[1, 0, -100], [1, 0, -100]]]),
    np.eye(3, dtype=np.float32)[[0, 1, 0, 2, 1, 0, 1, 0]],
    np.array([[0.5, 0.25, 0.25], [0.5, 0.5, 0.0]]),
]


class Flat:
    """A density."""

    def log_prob(self, value: Any) -> Any:
        return 0 * value


def lists(value: Prevalence) -> list[Any]:
    """All that a prevalence holds, as numbers."""
    alpha = value.concentration
    return [value.population.tolist(), value.sampling.tolist(), value.evidence, None if alpha is None else alpha.tolist()]


class TestWhatItHolds:
    def test_binary_is_two_classes_by_the_frequency_of_the_second_sampled_equally_by_default(self) -> None:
        assert Prevalence.binary(0.001, sampling=0.25, evidence=2.0) == Prevalence([0.999, 0.001], [0.75, 0.25], 2.0)
        assert Prevalence.binary(0.001).sampling.tolist() == [0.5, 0.5]
        np.testing.assert_allclose(Prevalence(population(7)).sampling, 1 / 7, rtol=1e-15)
        assert Prevalence(population(7)).num_classes == 7

    def test_the_evidence_is_one_unless_given_also_of_an_uncertain_prevalence(self) -> None:
        """Rows sampled by class say nothing about π, so they count it neither more nor less."""
        beta, dirichlet = Prevalence.beta(3.0, 7.0), Prevalence.dirichlet([60.0, 30.0, 10.0])
        for known in (
            Prevalence([0.9, 0.1]),
            Prevalence.from_labels([0, 1], 0.1),
            beta,
            dirichlet,
            ContinuousPrevalence(Flat()),
        ):
            assert known.evidence == 1
        assert Prevalence.beta(3.0, 7.0, evidence=0.25).evidence == 0.25

    @each_prevalence
    def test_with_evidence_and_with_sampling_change_nothing_else(self, prevalence: Prevalence) -> None:
        other = prevalence.with_evidence(0.0)
        assert other.evidence == 0
        assert [lists(other)[place] for place in (0, 1, 3)] == [lists(prevalence)[place] for place in (0, 1, 3)]
        rho = population(prevalence.num_classes, 77)
        moved = prevalence.with_sampling(rho)
        np.testing.assert_allclose(moved.sampling, rho, rtol=1e-14)
        assert moved.with_sampling(prevalence.sampling) == prevalence

    def test_frequencies_come_in_any_form_and_are_kept_as_float64(self) -> None:
        values = np.array([0.5, 0.25, 0.25])
        for form in ([0.5, 0.25, 0.25], (0.5, 0.25, 0.25), values, values.astype(np.float32), np.broadcast_to(values, (3,))):
            found = Prevalence(form, sampling=form)
            for each in (found.population, found.sampling):
                assert each.dtype == np.float64
                assert each.tolist() == [0.5, 0.25, 0.25]

    def test_rounded_frequencies_are_made_to_sum_to_1_and_not_changed_again(self) -> None:
        rounded = population(5).astype(np.float32)
        found = Prevalence(rounded).population
        assert math.isclose(float(found.sum()), 1, rel_tol=1e-14)
        np.testing.assert_allclose(found / found[0], rounded.astype(np.float64) / rounded[0], rtol=1e-14)
        assert frequencies(found, "population").tolist() == found.tolist()

    @pytest.mark.parametrize("rate", [1e-3, 1e-9])
    def test_weights_are_population_by_sampling_and_rare_classes_keep_their_logarithm(self, rate: float) -> None:
        pi, sampling = [1 - 2 * rate, rate, rate], [0.7, 0.1, 0.2]
        with localcontext() as context:
            context.prec = 40
            exact = [float(Decimal(p).ln() - Decimal(r).ln()) for p, r in zip(pi, sampling, strict=True)]
        found = Prevalence(pi, sampling)
        np.testing.assert_allclose(found.log_weights, exact, rtol=1e-12)
        np.testing.assert_allclose(np.log(found.weights), exact, rtol=1e-12)
        assert math.isclose(float(found.sampling @ found.weights), 1, rel_tol=1e-14)  # of an average training example

    def test_a_class_that_is_never_labelled_has_an_infinite_weight(self) -> None:
        found = Prevalence.positive_unlabelled(0.25, labelled=0)
        assert found.sampling.tolist() == [1, 0]
        assert found.weights.tolist() == [0.75, INF]
        assert found.log_weights.tolist() == [math.log(0.75), INF]

    def test_an_unknown_one_has_a_start_and_no_population(self) -> None:
        found = Prevalence.unknown(3, sampling=[0.5, 0.3, 0.2])
        assert found.is_unknown
        assert found.start.tolist() == found.sampling.tolist() == [0.5, 0.3, 0.2]
        assert_refused(lambda: found.population, "a known prevalence, but this one is Prevalence.unknown")
        assert Prevalence.unknown(2, start=[0.9, 0.1]).retarget(0.25) == Prevalence.binary(0.25)
        assert repr(found).startswith("Prevalence.unknown(start=[0.5, 0.3, 0.2]")

    def test_a_repr_says_what_it_is_and_shortens_long_lists(self) -> None:
        assert repr(Prevalence.binary(0.001)) == "Prevalence(population=[0.999, 0.001], sampling=[0.5, 0.5])"
        assert "evidence=1.5, concentration=[0.5, 3, 40]" in repr(PREVALENCES["dirichlet"])
        assert repr(Prevalence(np.full(1000, 1e-3))).count("0.001") == 12

    def test_a_continuous_one_holds_two_densities_and_the_evidence(self) -> None:
        density, sampling = Flat(), Flat()
        found = ContinuousPrevalence(density, sampling, evidence=0.5)
        assert (found.population, found.sampling, found.evidence) == (density, sampling, 0.5)
        assert ContinuousPrevalence(density).sampling is None
        assert found.with_evidence(2.0).evidence == 2


class TestFromLabels:
    def test_sampling_is_the_mix_of_the_labels_in_any_form(self) -> None:
        expected = Prevalence([0.9, 0.09, 0.01], sampling=[4 / 8, 3 / 8, 1 / 8], evidence=2.0)
        for labels in LABELS:
            assert Prevalence.from_labels(labels, [0.9, 0.09, 0.01], evidence=2.0) == expected

    def test_one_number_is_the_frequency_of_class_1(self) -> None:
        for rate in (0.125, np.float32(0.125), np.array(0.125)):
            assert Prevalence.from_labels([0, 1, 1, 1], rate) == Prevalence([0.875, 0.125], sampling=[0.25, 0.75])

    def test_the_ignored_label_can_be_chosen(self) -> None:
        labels = np.array([0, 255, 1, 255, 0, 0])
        assert Prevalence.from_labels(labels, 0.1, ignore_index=255).sampling.tolist() == [0.75, 0.25]
        assert class_frequencies(labels.clip(max=2), 3).tolist() == [3 / 6, 1 / 6, 2 / 6]
        assert class_frequencies(labels.clip(max=2), 3, ignore_index=0).tolist() == [0, 1 / 3, 2 / 3]


class TestRetarget:
    @each_prevalence
    def test_only_the_population_moves_and_there_and_back_is_the_identity(self, prevalence: Prevalence) -> None:
        pi = population(prevalence.num_classes, 7)
        away = prevalence.retarget(pi)
        np.testing.assert_allclose(away.population, pi, rtol=1e-14)
        assert not away.is_uncertain
        assert lists(away)[1:3] == lists(prevalence)[1:3]
        assert away.retarget(prevalence) == prevalence == prevalence.retarget(prevalence)
        certain = Prevalence(prevalence.population, prevalence.sampling, prevalence.evidence)
        assert away.retarget(prevalence.population.tolist()) == certain

    def test_to_a_number_or_to_another_prevalence_takes_its_population_alone(self) -> None:
        assert Prevalence.binary(0.5, sampling=0.3).retarget(0.125) == Prevalence.binary(0.125, sampling=0.3)
        found = Prevalence.binary(0.5, sampling=0.3, evidence=1.0).retarget(Prevalence.beta(2.0, 6.0, 0.9, evidence=5.0))
        assert found == Prevalence.beta(2.0, 6.0, sampling=0.3, evidence=1.0)


class TestImmutable:
    @pytest.mark.parametrize("name", ["population", "sampling", "new"])
    def test_assignment_raises(self, name: str) -> None:
        with pytest.raises(AttributeError, match=f"cannot be changed: .*`{name}`"):
            setattr(Prevalence.binary(0.1), name, np.array([0.5, 0.5]))

    @each_prevalence
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
        assert {Prevalence(np.array(pi), tuple(rho), 1.0), Prevalence.dirichlet(tuple(alpha), rho, 1.0)} < set(different)
        assert Prevalence([0.5, 0.5]) != [0.5, 0.5]

    @each_prevalence
    def test_copies_are_equal_and_cannot_be_changed_either(self, prevalence: Prevalence) -> None:
        pickled = (pickle.loads(pickle.dumps(prevalence, protocol)) for protocol in (2, 5))
        for found in (copy.copy(prevalence), copy.deepcopy(prevalence), *pickled):
            assert lists(found) == lists(prevalence)
            assert hash(found) == hash(prevalence)
            with pytest.raises(AttributeError, match="cannot be changed"):
                found.evidence = 1.0


class TestUncertain:
    @pytest.mark.parametrize("alpha", [[0.3, 4.0, 25.0], [998.5, 1.5], [1e-3, 2e-3]])
    def test_draws_are_frequencies_with_the_dirichlets_means_and_covariances(self, alpha: list[float]) -> None:
        prevalence, total = Prevalence.dirichlet(alpha), sum(alpha)
        mean = np.array([a / total for a in alpha])
        np.testing.assert_allclose(prevalence.population, mean, rtol=1e-14)
        draws = prevalence.sample(20_000, stream())
        assert bool((draws > 0).all())
        np.testing.assert_allclose(draws.sum(1), 1, rtol=1e-14)
        assert_mean_is(draws, mean)
        around = draws - mean
        assert_mean_is(around[:, :, None] * around[:, None, :], (np.diag(mean) - np.outer(mean, mean)) / (total + 1))

    def test_beta_is_the_distribution_of_the_frequency_of_class_1(self) -> None:
        prevalence = Prevalence.beta(2.0, 6.0, sampling=0.25, evidence=1.0)
        assert lists(prevalence) == [[0.75, 0.25], [0.75, 0.25], 1.0, [6.0, 2.0]]

    def test_draws_of_a_certain_prevalence_are_equal_to_it(self) -> None:
        prevalence = Prevalence(population(4))
        assert not prevalence.is_uncertain
        assert np.array_equal(prevalence.sample(3), np.tile(population(4), (3, 1)))

    def test_a_generator_decides_the_draws(self) -> None:
        prevalence = PREVALENCES["dirichlet"]
        one, again, other = (prevalence.sample(5, stream(seed)) for seed in (0, 0, 1))
        assert one.shape == (5, 3)
        assert np.array_equal(one, again)
        assert not np.array_equal(one, other)
        assert np.array_equal(prevalence.sample(5, 7), prevalence.sample(5, np.random.default_rng(7)))
        assert not np.array_equal(prevalence.sample(5), prevalence.sample(5))


LIST, PAIR, KNOWN = [0.9, 0.1], [0.5, 0.5], Flat()
P: Any = Prevalence

BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "a sum off 1": (lambda: P([0.9, 0.3]), "`population` to sum to 1, but got 1.2: divide"),
    "a sum just off 1": (lambda: P([0.9, 0.10001]), "`population` to sum to 1"),
    "a sampling off 1": (lambda: P(LIST, [0.5, 0.6]), "`sampling` to sum to 1"),
    "a percentage": (lambda: P.binary(10), "`population` .*got 10: is it a percentage"),
    "a sampled percentage": (lambda: P.binary(0.1, 50), "`sampling` .*but got 50"),
    "certainty": (lambda: P.binary(0), "strictly between 0 and 1, but got 0"),
    "a list for a rate": (lambda: P.binary(LIST), "one number"),
    "log-probabilities": (lambda: P([math.log(0.9), math.log(0.1)]), "are these log-probabilities"),
    "NaN": (lambda: P([NAN, 0.5]), "`population` to be finite"),
    "the wrong length": (lambda: P(LIST, [0.5, 0.25, 0.25]), "`sampling` to have 2 entries.* but got 3"),
    "one class": (lambda: P([1.0]), "at least 2 classes, but got 1: .*Prevalence.binary"),
    "a class that does not occur": (lambda: P([1.0, 0.0]), r"it is 0 for \[1\]: drop the class"),
    "a class never sampled": (lambda: P(LIST, [0.0, 1.0]), r"it is 0 for \[0\]: .*never sampled"),
    "a number for a list": (lambda: P(0.1), r"but got shape \(\): .*Prevalence.binary"),
    "words": (lambda: P(["rare", "common"]), "to be numbers"),
    "a complex number": (lambda: P.binary(np.array(0.5 + 0j)), "one number"),
    "negative evidence": (lambda: P(LIST, evidence=-1.0), "`evidence` .*from 0 up, but got -1.0: "),
    "evidence of a beta": (lambda: P.beta(1.0, 2.0, evidence=NAN), "`evidence`"),
    "evidence of a density": (lambda: ContinuousPrevalence(KNOWN, evidence=-1.0), "`evidence`"),
    "a third class that is labelled": (lambda: P.positive_unlabelled(0.1, 2), "`labelled` to be 0 or 1, but got 2"),
    "one unknown class": (lambda: P.unknown(1), "`num_classes` to be an int of at least 2"),
    "a label too high": (lambda: P.from_labels([0, 1, 2], LIST), r"labels in 0\.\.1, but got 0\.\.2: "),
    "an ignored label not to ignore": (lambda: P.from_labels([0, 1, -100], LIST, ignore_index=None), r"got -100\.\.1"),
    "bool labels of many classes": (lambda: P.from_labels([True, False], [0.8, 0.1, 0.1]), "got bool"),
    "float labels": (lambda: P.from_labels([0.0, 1.0], LIST), r"int labels.*float64 of shape \(2,\): "),
    "labels in words": (lambda: P.from_labels(pd.Series(["ill", "well"]), 0.1), r"np\.unique\(y"),
    "no labels": (lambda: P.from_labels([], LIST), "at least one label"),
    "only ignored labels": (lambda: P.from_labels([-100, -100], LIST), "at least one label.*ignore_index"),
    "a class without labels": (lambda: P.from_labels([0, 0], LIST), r"class\(es\) \[1\] have none: .*collect"),
    "votes of too many classes": (lambda: P.from_labels(np.full((4, 3), 1 / 3), LIST), r"votes of shape \(n, 2\)"),
    "votes off 1": (lambda: P.from_labels([[0.5, 0.5], [0.5, 0.75]], LIST), r"row 1 is \[0.5, 0.75\]: divide"),
    "negative votes": (lambda: P.from_labels([[1.5, -0.5], PAIR], LIST), "non-negative .*but row 0"),
    "a percentage with labels": (lambda: P.from_labels([0, 1], 10.0), "is it a percentage"),
    "a beta of nobody": (lambda: P.beta(0.0, 3.0), r"positive and finite, but got \[3.0, 0.0\]: "),
    "an infinite beta": (lambda: P.beta(INF, 3.0), "positive and finite"),
    "another number of classes": (lambda: P(LIST).retarget([0.5, 0.25, 0.25]), "2 entries.* but got 3"),
    "a prevalence of other classes": (lambda: P(LIST).retarget(P(population(3))), "2 classes, but got 3"),
    "classes for a density": (lambda: ContinuousPrevalence(LIST), "`population` .*with `log_prob`"),  # type: ignore[arg-type]
    "classes for a sampled density": (lambda: ContinuousPrevalence(KNOWN, LIST), "`sampling` .*with `log_prob`"),  # type: ignore[arg-type]
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

    def test_labels_numbers_and_generators(self) -> None:
        torch = pytest.importorskip("torch")
        labels = torch.tensor([[0, 1], [1, 1]], dtype=torch.uint8)[..., None]
        assert Prevalence.from_labels(labels, torch.tensor(0.125)) == Prevalence.binary(0.125, 0.75)
        assert_refused(lambda: Prevalence.from_labels(torch.tensor([0j, 1j]), 0.1), "complex64: number the classes")
        one, again, other = (PREVALENCES["beta"].sample(5, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
        assert np.array_equal(one, again)
        assert not np.array_equal(one, other)

    def test_pickles_of_an_older_version_hold_tensors(self) -> None:
        torch = pytest.importorskip("torch")
        pi, alpha = torch.tensor([0.75, 0.25]).double(), torch.tensor([3.0, 1.0]).double()
        assert _rebuild(pi, pi, None, alpha) == Prevalence.dirichlet([3.0, 1.0], [0.75, 0.25])
