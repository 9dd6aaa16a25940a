"""Cross-validation folds that never split a patient, have similar class frequencies, and are reproducible everywhere.

Stage: labels `(n,)`, patients `(n,)`, a seed → row numbers to train, validate and test on; with and without labels.
"""

from __future__ import annotations

import math
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..arrays import array_of, checked_int, checked_number


class Parts(NamedTuple):
    """Row numbers of the training, validation and test part, ascending."""

    train: Int64[Tensor, " train"]
    valid: Int64[Tensor, " valid"]
    test: Int64[Tensor, " test"]


def folds(labels: ArrayLike, groups: ArrayLike | None, num_folds: int = 10, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Return row numbers `(train, test)` of each fold; every row is in one test part. Arguments as in `fold_numbers`.

    Examples:
        >>> from rightloss.lidc import folds
        >>> (train, test), _ = folds([0, 1, 0, 1], ["a", "a", "b", "c"], num_folds=2)
        >>> train, test
        (tensor([2, 3]), tensor([0, 1]))
    """
    number = fold_numbers(labels, groups, num_folds, seed)
    return [(_rows(number != fold), _rows(number == fold)) for fold in range(num_folds)]


def train_valid_test(labels: ArrayLike, groups: ArrayLike | None, fold: int, num_folds: int = 10, seed: int = 0) -> Parts:
    """Return one fold for testing, the next (the first after the last) for validation, and the others for training.

    Examples:
        >>> from rightloss.lidc import train_valid_test
        >>> train_valid_test([0, 1, 0, 1, 0], ["a", "a", "b", "c", "d"], fold=0, num_folds=3)
        Parts(train=tensor([2, 3]), valid=tensor([4]), test=tensor([0, 1]))
    """
    checked_int(num_folds, "num_folds", 3, remedy="one to test, one to validate, the others to train")
    checked_int(fold, "fold", 0, num_folds - 1, "folds are counted from 0")
    number, following = fold_numbers(labels, groups, num_folds, seed), (fold + 1) % num_folds
    return Parts(_rows((number != fold) & (number != following)), _rows(number == following), _rows(number == fold))


def fold_numbers(labels: ArrayLike, groups: ArrayLike | None, num_folds: int = 10, seed: int = 0) -> Int64[Tensor, " n"]:
    """Return the fold in which each row is tested.

    Patients are assigned one by one, those with most rows first, ties in the order of SHA-256 of "seed:patient". Each is
    assigned to the fold f where it increases the imbalance least,

        Σ_f Σ_k (n_fk / N_k)²,      n_fk rows of class k in fold f,   N_k of them in all,

    for ties to the one with fewest rows so far, then the lowest f. It is computed in integers, without a random number
    generator, so that the folds are the same everywhere, for any order of the rows.

    Args:
        labels: class numbers `(n,)`.
        groups: the patient of each row `(n,)`, text or integers.
        num_folds: 2 or more, and no more than there are patients.
        seed: another seed gives other folds.
    """
    target, names = _labels(labels), _names(groups)
    if len(target) != len(names):
        raise ValueError(f"Expected a patient for each of the {len(target)} labels, but got {len(names)}: one per row.")
    people, person = np.unique(names, return_inverse=True)
    checked_int(num_folds, "num_folds", 2, len(people), "a patient is never split")
    checked_int(seed, "seed", 0, remedy="the same seed gives the same folds")
    classes, label = np.unique(target, return_inverse=True)
    counts = np.zeros((len(people), len(classes)), dtype=np.int64)
    np.add.at(counts, (person, label), 1)
    chosen = _assign(people.tolist(), counts.tolist(), num_folds, seed)
    return torch.tensor(chosen, dtype=torch.int64)[torch.from_numpy(person)]


def split_labels(
    rows: Int64[Tensor, " rows"], groups: ArrayLike | None, share: float, seed: int | str = 0
) -> tuple[Int64[Tensor, " labelled"], Int64[Tensor, " unlabelled"]]:
    """Return the rows that keep their labels, and the rows of a fraction `share` of the patients that lose them.

    The latter are the first patients in the order of SHA-256 of "seed:patient", so that a larger share only adds patients;
    their number is rounded.

    Args:
        rows: row numbers to split.
        groups: the patient of each row of the data set `(n,)`, text or integers; not needed where `share` is 0.
        share: fraction of the patients, from 0 and below 1.
        seed: a number or text; another seed chooses other patients.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.splits import split_labels
        >>> split_labels(torch.tensor([0, 1, 2, 3]), ["a", "a", "b", "c", "d"], share=1 / 3)
        (tensor([0, 1, 3]), tensor([2]))
    """
    checked_number(share, "share", 0, 0.9999, "0.8 for four patients of five")
    if share == 0:
        return rows, rows[:0]
    people, person = np.unique(_names(groups)[rows.numpy()], return_inverse=True)
    order = sorted(range(len(people)), key=lambda i: sha256(f"{seed}:{people[i]}".encode()).digest())
    chosen = np.zeros(len(people), dtype=bool)
    chosen[order[: round(share * len(people))]] = True
    lost = torch.from_numpy(chosen[person])
    return rows[~lost], rows[lost]


def _assign(people: list[str], counts: list[list[int]], num_folds: int, seed: int) -> list[int]:
    """Return the fold of each person: an added patient c changes Σ_k (n_fk / N_k)² by Σ_k (2 n_fk + c_k) c_k / N_k²."""
    totals = [sum(column) for column in zip(*counts, strict=True)]
    common = math.lcm(*totals)
    weights = [(common // total) ** 2 for total in totals]
    sums = [[0] * len(totals) for _ in range(num_folds)]
    chosen = [0] * len(people)

    def cost(fold: int, own: list[int]) -> int:
        return sum(weight * there * each for weight, there, each in zip(weights, sums[fold], own, strict=True))

    order = sorted(range(len(people)), key=lambda i: (-sum(counts[i]), sha256(f"{seed}:{people[i]}".encode()).digest()))
    for i in order:
        chosen[i] = min(range(num_folds), key=lambda fold: (cost(fold, counts[i]), sum(sums[fold])))
        sums[chosen[i]] = [there + each for there, each in zip(sums[chosen[i]], counts[i], strict=True)]
    return chosen


def _rows(mask: Tensor) -> Int64[Tensor, " rows"]:
    return torch.nonzero(mask).flatten()


def _labels(labels: ArrayLike) -> NDArray[np.int64]:
    target = array_of(labels, "labels")
    if target.ndim != 1 or target.dtype.kind not in "iub" or not len(target):
        raise ValueError(
            f"Expected `labels` to be class numbers of shape (n,), but got {target.dtype}{list(target.shape)}: "
            "one integer per row."
        )
    return target.astype(np.int64)


def _names(groups: ArrayLike | None) -> Shaped[np.ndarray, " n"]:
    if groups is None:
        raise ValueError(
            "Expected the patient of each row, but got None: this set does not name its patients, as NoduleMNIST3D does not; "
            "take its own train, val and test parts."
        )
    array = groups.detach().cpu().numpy() if isinstance(groups, Tensor) else np.asarray(groups)
    if array.ndim == 1 and array.dtype == object and all(isinstance(name, str) for name in array):
        array = array.astype(np.str_)
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        raise ValueError(
            f"Expected `groups` to be text or integers of shape (n,), but got {array.dtype}{list(array.shape)}: "
            "the patient of each row."
        )
    return array.astype(np.str_)
