"""Folds: no patient split, labels evenly spread, and the same for everyone."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np
import pytest
import torch
from members import SEED, assert_refused, generator
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedGroupKFold
from torch import Tensor

from rightloss.lidc import binary_set, folds, rating_set, train_valid_test
from rightloss.lidc.splits import fold_numbers

FOLDS = 10


def study(seed: int, people: int = 150, classes: int = 4) -> tuple[Tensor, NDArray[np.str_]]:
    """Labels of rare and frequent classes, and their patients: one to nine rows each, which tend to be alike."""
    draw = generator(seed)
    rows = torch.randint(1, 10, (people,), generator=draw)
    own = torch.randint(classes, (people,), generator=draw).repeat_interleave(rows)
    other = (torch.rand(len(own), generator=draw) ** 3 * classes).long()
    labels = torch.where(torch.rand(len(own), generator=draw) < 0.3, own, other)
    return labels, np.array([f"P-{i:04d}" for i in range(people)]).repeat(rows.numpy())


def counted(number: Tensor, labels: Tensor) -> Tensor:
    """Rows of each fold and class (folds, k)."""
    return torch.stack([torch.bincount(labels[number == fold], minlength=int(labels.max()) + 1) for fold in range(FOLDS)])


def unevenness(number: Tensor, labels: Tensor) -> float:
    """Σ_f Σ_k (n_fk / N_k − 1/F)²: 0 where every fold has its share of every class."""
    counts = counted(number, labels).double()
    return float((counts / counts.sum(0) - 1 / FOLDS).square().sum())


def scikit_learns(labels: Tensor, patients: NDArray[np.str_], seed: int) -> Tensor:
    splitter = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=seed)
    number = torch.empty(len(labels), dtype=torch.int64)
    for fold, (_, test) in enumerate(splitter.split(labels, labels, patients)):
        number[torch.from_numpy(test)] = fold
    return number


class TestFolds:
    @pytest.mark.parametrize("num_folds", [2, FOLDS, 150])
    def test_every_row_is_tested_once_and_trained_on_otherwise_and_no_patient_is_split(self, num_folds: int) -> None:
        labels, patients = study(1)
        parts = folds(labels, patients, num_folds)
        assert len(parts) == num_folds
        assert sorted(torch.cat([test for _, test in parts]).tolist()) == list(range(len(labels)))
        for train, test in parts:
            assert len(test)
            assert sorted([*train.tolist(), *test.tolist()]) == list(range(len(labels)))
            assert not {*patients[train.numpy()]} & {*patients[test.numpy()]}

    def test_patients_of_one_row_each_give_folds_of_equal_classes(self) -> None:
        labels = torch.randint(3, (997,), generator=generator(3))
        counts = counted(fold_numbers(labels, torch.arange(997)), labels)
        assert int((counts.amax(0) - counts.amin(0)).max()) <= 1

    @pytest.mark.long
    def test_they_are_no_less_even_than_scikit_learns(self) -> None:
        ours, theirs = 0.0, 0.0
        for seed in range(10):
            labels, patients = study(seed)
            ours += unevenness(fold_numbers(labels, patients, FOLDS, seed), labels)
            theirs += unevenness(scikit_learns(labels, patients, SEED * 10 + seed), labels)
        assert ours <= theirs

    @pytest.mark.long
    def test_the_paper_sets_are_as_even_as_whole_rows_allow(self) -> None:
        for made in (binary_set(), rating_set()):
            assert made.patients is not None
            for seed in range(3):
                counts = counted(fold_numbers(made.labels, made.patients, FOLDS, seed), made.labels)
                assert int((counts.amax(0) - counts.amin(0)).max()) <= 1  # of each class
                assert int(counts.sum(1).max() - counts.sum(1).min()) <= 1


class TestTheSameForEveryone:
    def test_neither_the_order_of_the_rows_nor_the_numbers_of_classes_nor_the_form_of_names_matter(self) -> None:
        labels, patients = study(4)
        order = torch.randperm(len(labels), generator=generator(5))
        number = fold_numbers(labels, patients)
        assert torch.equal(fold_numbers(labels[order], patients[order.numpy()]), number[order])
        assert torch.equal(fold_numbers(3 * labels + 2, patients), number)
        people = torch.arange(len(labels)) // 3
        expected = fold_numbers(labels, people)
        for form in (
            people.tolist(),
            people.numpy().astype(np.int16),
            people.numpy().astype(str),
            list(map(str, people.tolist())),
        ):
            assert torch.equal(fold_numbers(labels.numpy(), form), expected)

    def test_another_seed_gives_other_folds(self) -> None:
        labels, patients = study(8)
        first, second = fold_numbers(labels, patients, seed=0), fold_numbers(labels, patients, seed=1)
        together = [(number[:, None] == number[None]) for number in (first, second)]
        # Were the folds only renumbered, the same rows would be together; by chance a tenth are.
        assert float((together[0] & together[1]).sum() / together[0].sum()) < 0.4

    @pytest.mark.parametrize(("make", "digest"), [(binary_set, "9c49f3ecff3057a5"), (rating_set, "b39944206855bd36")])
    def test_the_folds_of_the_paper_sets_are_those_published_with_this_version(self, make: Any, digest: str) -> None:
        made = make()
        number = fold_numbers(made.labels, made.patients)
        listed = sorted(f"{patient}:{fold}" for patient, fold in {*zip(made.patients.tolist(), number.tolist(), strict=True)})
        assert sha256(",".join(listed).encode()).hexdigest()[:16] == digest


class TestTrainValidTest:
    def test_it_is_the_fold_with_the_next_one_taken_out_of_the_rest(self) -> None:
        labels, patients = study(9)
        parts = folds(labels, patients, 5, seed=3)
        for fold in range(5):
            train, valid, test = train_valid_test(labels, patients, fold, 5, seed=3)
            assert torch.equal(test, parts[fold][1])
            assert torch.equal(valid, parts[(fold + 1) % 5][1])
            assert sorted(torch.cat([train, valid, test]).tolist()) == list(range(len(labels)))
            assert not {*patients[train.numpy()]} & {*patients[valid.numpy()]}

    @pytest.mark.parametrize(("fold", "num_folds", "words"), [(5, 5, "0..4"), (0, 2, "at least 3")])
    def test_folds_that_are_not_there_are_refused(self, fold: Any, num_folds: int, words: str) -> None:
        labels, patients = study(10)
        assert_refused(lambda: train_valid_test(labels, patients, fold, num_folds), words)


class TestBadInput:
    LABELS, PATIENTS = [0, 1, 0, 1], ["a", "b", "c", "c"]

    @pytest.mark.parametrize(
        ("labels", "patients", "num_folds", "seed", "words"),
        [
            (LABELS, None, 2, 0, "NoduleMNIST3D"),
            (LABELS, PATIENTS[:3], 2, 0, "each of the 4 labels, but got 3"),
            (LABELS, PATIENTS, 4, 0, "in 2..3"),
            (LABELS, PATIENTS, 2, 0.5, "`seed`"),
            (LABELS, [0.5, 1, 2, 3], 2, 0, "float64"),
            (LABELS, ["a", None, "b", "c"], 2, 0, "object"),
            ([0.0, 1.0, 0.0, 1.0], PATIENTS, 2, 0, "class numbers"),
            ([], [], 2, 0, "class numbers"),
        ],
    )
    def test_it_is_refused(self, labels: Any, patients: Any, num_folds: Any, seed: Any, words: str) -> None:
        assert_refused(lambda: folds(labels, patients, num_folds, seed), words)
