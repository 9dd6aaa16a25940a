"""NoduleMNIST3D's published file, and files that are not it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from members import SEED, assert_refused

from rightloss.lidc import NoduleMNIST, folds, read_archive, read_nodulemnist, write_archive


def arrays(side: int = 28, **counts: int) -> dict[str, Any]:
    draw = np.random.default_rng(SEED + 2)
    made: dict[str, Any] = {}
    for part, n in ({"train": 1158, "val": 165, "test": 310} | counts).items():
        made[f"{part}_images"] = np.tile(draw.integers(0, 256, (n, 1, 1, side), np.uint8), (1, side, side, 1))
        made[f"{part}_labels"] = draw.integers(0, 2, (n, 1), np.uint8)
    return made


@pytest.mark.long
def test_the_published_layout_gives_three_sets(tmp_path: Path) -> None:
    given = arrays()
    np.savez_compressed(tmp_path / "n.npz", **given)
    found = read_nodulemnist(tmp_path / "n.npz")
    for part, made in zip(NoduleMNIST._fields, found, strict=True):
        images, labels = given[f"{part}_images"], given[f"{part}_labels"][:, 0]
        assert made.labels.tolist() == labels.tolist()
        assert torch.equal(made.votes, torch.eye(2)[made.labels])
        assert torch.equal(made.volumes(), torch.from_numpy(images))
        expected = torch.from_numpy(images[[7, 3]] / 255).half()
        torch.testing.assert_close(made.images([7, 3]), expected, rtol=0, atol=1e-3)
        assert "unnamed patients" in repr(made)


def test_folds_by_patient_are_refused_with_the_reason(tmp_path: Path) -> None:
    np.savez(tmp_path / "n.npz", **arrays(2, train=20, val=5, test=5))
    train = read_nodulemnist(tmp_path / "n.npz", check=False).train
    assert_refused(lambda: folds(train.labels, train.patients), "does not name its patients")


@pytest.mark.long
@pytest.mark.parametrize(
    ("counts", "changed", "words"),
    [
        ({"val": 166}, {}, r"165 uint8 cubes.*\[166, .*check=False"),
        ({}, {"test_labels": None}, "`test_labels`"),
        ({}, {"train_labels": np.full((1158, 1), 2, np.uint8)}, "0 .benign. and 1"),
        ({}, {"val_images": np.zeros((165, 28, 28), np.uint8)}, "`val_images`"),
        ({}, {"val_images": np.zeros((165, 9, 9, 9), np.uint8)}, "28³ or 64³"),
        ({}, {"val_images": np.zeros((165, 28, 28, 28), np.int16)}, "uint8"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, counts: dict[str, int], changed: dict[str, Any], words: str) -> None:
    given = {name: array for name, array in (arrays(**counts) | changed).items() if array is not None}
    np.savez(tmp_path / "n.npz", **given)
    assert_refused(lambda: read_nodulemnist(tmp_path / "n.npz"), words)


def test_each_reader_names_the_other_when_given_its_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "n.npz", **arrays(2, train=2, val=2, test=2))
    assert_refused(lambda: read_archive(tmp_path / "n.npz"), "read_nodulemnist")
    write_archive(tmp_path / "a.npz", np.zeros((1, 2, 2, 2)), [[1]], ["P1"])
    assert_refused(lambda: read_nodulemnist(tmp_path / "a.npz"), "read_archive")
