"""Data sets for the study: from the package, from archives, from NoduleMNIST3D's file; and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from members import assert_refused
from nodule_files import NODULES, SIDE, small_archive

from rightloss.lidc import binary_set, write_archive
from rightloss.study.config import Source, StudyConfig, Training
from rightloss.study.datasets import check_sources, source_of, study_data, summary_of
from rightloss.study.results import data_path, read_data, write_data


def test_contours_come_with_the_package() -> None:
    source = source_of("contours")
    assert source == Source("contours")
    assert torch.equal(study_data(source, "binary").labels, binary_set().labels)


def test_the_same_content_elsewhere_is_the_same_source(tmp_path: Path) -> None:
    one = small_archive(tmp_path / "scans.npz")
    (tmp_path / "moved").mkdir()
    moved = (tmp_path / "moved" / "scans.npz").write_bytes((tmp_path / "scans.npz").read_bytes())
    other = source_of(str(tmp_path / "moved" / "scans.npz"))
    assert moved
    assert (other.name, other.digest) == (one.name, one.digest) == ("scans", one.digest)
    assert small_archive(tmp_path / "others.npz", seed=1).digest != one.digest


def test_a_file_named_contours_is_not_taken_for_the_packages(tmp_path: Path) -> None:
    assert small_archive(tmp_path / "contours.npz").name == "contours-file"


def test_names_of_files_are_no_longer_than_a_disk_takes(tmp_path: Path) -> None:
    source = small_archive(tmp_path / ("𝒜" * 60 + ".npz"))
    config = StudyConfig(
        "ratings",
        task="rating",
        sources=(source,),
        nets=("fully-convolutional",),
        losses=("published-network",),
        populations=(None,),
        likelihoods=("cumulative-logit",),
        starts=("equal",),
        inferences=("mc-dropout",),
        minibatches=("raw",),
    )
    assert source.name
    assert max(len(f"{run.key}.json".encode()) for run in config.runs()) < 256


def test_a_file_that_changed_since_is_refused(tmp_path: Path) -> None:
    source = small_archive(tmp_path / "scans.npz")
    small_archive(tmp_path / "scans.npz", seed=1)
    assert_refused(lambda: study_data(source, "binary"), "has changed")


@pytest.mark.parametrize("task", ["binary", "rating", "balanced"])
def test_parts_share_no_patient_and_miss_no_nodule(tmp_path: Path, task: str) -> None:
    data = study_data(small_archive(tmp_path / "scans.npz"), task)
    tested = []
    for fold in range(4):
        parts = data.parts(fold, 4)
        people = [set(np.asarray(data.sets[0].patients)[rows].tolist()) for rows in parts]
        assert sum(map(len, people)) == len(set().union(*people))
        assert sorted(torch.cat(parts).tolist()) == list(range(len(data.labels)))
        tested += parts.test.tolist()
    assert sorted(tested) == list(range(len(data.labels)))


def test_a_summary_shows_the_nodules_as_they_are(tmp_path: Path) -> None:
    source = small_archive(tmp_path / "scans.npz")
    data, summary = study_data(source, "rating"), summary_of(source, "rating")
    assert summary.pictures.shape == (NODULES, SIDE, SIDE)
    np.testing.assert_array_equal(summary.pictures, (255 * data.images().float()).round().to(torch.uint8).numpy())
    np.testing.assert_array_equal(summary.labels, data.labels)
    np.testing.assert_allclose(summary.votes.sum(1), 1, atol=1e-6)
    assert summary.ratings.sum() == 3 * NODULES
    assert len(set(summary.patients.tolist())) == 60


@pytest.mark.long
def test_pictures_of_volumes_are_their_middle_planes() -> None:
    summary, data = summary_of(Source("contours"), "balanced"), study_data(Source("contours"), "balanced")
    assert summary.pictures.shape == (679, 40, 40)
    middle = data.sets[0].images([5])[0, 32, 12:52, 12:52]
    np.testing.assert_array_equal(summary.pictures[5], (255 * middle.float()).round().to(torch.uint8).numpy())


@pytest.mark.parametrize("task", ["binary", "rating"])
def test_a_summary_knows_the_rows_that_each_fold_tests(tmp_path: Path, task: str) -> None:
    source = small_archive(tmp_path / "scans.npz")
    summary, data = summary_of(source, task), study_data(source, task)
    for fold in range(4):
        assert summary.tested(fold, 4).tolist() == data.parts(fold, 4).test.tolist()


def nodulemnist(path: Path) -> Path:
    generator = np.random.default_rng(0)
    parts = {"train": 1158, "val": 165, "test": 310}
    arrays: dict[str, Any] = {}
    for name, count in parts.items():
        arrays[f"{name}_images"] = generator.integers(0, 256, (count, 28, 28, 28), dtype=np.uint8)
        arrays[f"{name}_labels"] = (np.arange(count) % 4 == 0).astype(np.uint8)[:, None]
    np.savez(path, **arrays)
    return path


@pytest.mark.long
def test_nodulemnist_has_its_published_parts_as_one_fold(tmp_path: Path) -> None:
    source = source_of(str(nodulemnist(tmp_path / "nodulemnist3d.npz")))
    check_sources(StudyConfig("quick", sources=(source,), folds=1))
    parts = study_data(source, "binary").parts(0, 10)
    assert [len(part) for part in parts] == [1158, 165, 310]
    summary = summary_of(source, "binary")
    assert summary.pictures.shape == (1633, 28, 28)
    assert len(set(summary.patients.tolist())) == 1633
    assert summary.tested(0, 10).tolist() == parts.test.tolist()
    assert_refused(lambda: check_sources(StudyConfig("quick", sources=(source,), folds=2)), "--folds 1")
    ratings = StudyConfig("ratings", task="rating", sources=(source,), populations=(None,), folds=1)
    assert_refused(lambda: check_sources(ratings), "NoduleMNIST3D")
    assert_refused(lambda: check_sources(StudyConfig("quick", sources=(source,), folds=1, nets=("mlp",))), "features")


def damaged(kind: str, folder: Path) -> Path:
    path = folder / "scans.npz"
    small_archive(path)
    content = path.read_bytes()
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "flipped":
        middle = len(content) // 3
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :])
    elif kind == "another kind":
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(1000))
    elif kind == "unlabelled":
        np.savez(path, patches=np.zeros((5, 9, 9), np.int16), patient_id=np.arange(5))
    elif kind == "a folder":
        path.unlink()
        path.mkdir()
    return path


@pytest.mark.parametrize("kind", ["empty", "truncated", "flipped", "another kind", "unlabelled", "a folder"])
def test_a_file_that_is_no_archive_is_refused_before_anything_is_computed(tmp_path: Path, kind: str) -> None:
    path = damaged(kind, tmp_path)
    assert_refused(lambda: check_sources(StudyConfig("quick", sources=(source_of(str(path)),), folds=1)), "scans.npz")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.npz"):
        source_of(str(tmp_path / "none.npz"))


def test_a_part_without_one_of_the_classes_is_refused(tmp_path: Path) -> None:
    ratings = np.array([[1]] * 9 + [[5]])
    patches = np.random.default_rng(0).normal(-500, 100, (10, 20, 20)).astype(np.int16)
    write_archive(tmp_path / "few.npz", patches, ratings, np.arange(10))
    config = StudyConfig("quick", sources=(source_of(str(tmp_path / "few.npz")),), folds=1, num_folds=3)
    assert_refused(lambda: check_sources(config), "a label for every class")


def test_a_part_without_a_vote_for_one_of_the_ratings_is_refused(tmp_path: Path) -> None:
    ratings = np.array([[1, 1, 1], [2, 2, 2], [2, 3, 4], [4, 4, 4], [5, 5, 5]] * 12)
    ratings[2::5] = [2, 2, 5]  # of mean 3, and no reader says so
    patches = np.random.default_rng(0).normal(-500, 100, (60, 20, 20)).astype(np.int16)
    write_archive(tmp_path / "torn.npz", patches, ratings, np.arange(60))
    config = StudyConfig(
        "ratings", task="rating", sources=(source_of(str(tmp_path / "torn.npz")),), populations=(None,), folds=1, num_folds=3
    )
    assert_refused(lambda: check_sources(config), "a vote for every class")


@pytest.mark.parametrize("shape", [(20, 20), (20, 20, 20)])
def test_of_slices_there_are_any_number_of_fixed_views_and_of_volumes_48(tmp_path: Path, shape: tuple[int, ...]) -> None:
    patches = np.random.default_rng(0).normal(-500, 100, (12, *shape)).astype(np.int16)
    write_archive(tmp_path / "scans.npz", patches, np.array([[1], [5]] * 6), np.arange(12))
    source = source_of(str(tmp_path / "scans.npz"))
    few, many = (
        StudyConfig("quick", sources=(source,), folds=1, num_folds=3, training=Training(batch_size=4, test_views=views))
        for views in (48, 51)
    )
    check_sources(few)
    if len(shape) == 2:
        check_sources(many)
    else:
        assert_refused(lambda: check_sources(many), "got 51")


def test_nets_of_features_need_features(tmp_path: Path) -> None:
    source = small_archive(tmp_path / "scans.npz", columns=False)
    config = StudyConfig("quick", sources=(source,), nets=("convnet", "mlp"), folds=1, num_folds=4)
    assert_refused(lambda: check_sources(config), "mlp")


@pytest.mark.parametrize("kind", ["foreign", "damaged"])
def test_a_data_file_of_a_study_that_cannot_be_read_is_named_with_the_remedy(tmp_path: Path, kind: str) -> None:
    source = small_archive(tmp_path / "scans.npz")
    (tmp_path / "data").mkdir()
    write_data(tmp_path, summary_of(source, "binary"), "binary", source.digest)
    path = data_path(tmp_path, "scans", "binary", source.digest)
    assert len(read_data(tmp_path, "scans", "binary", source.digest).labels) > 0
    if kind == "foreign":
        np.savez(path, labels=np.zeros(3))
    else:
        path.write_bytes(path.read_bytes()[:1000])
    assert_refused(lambda: read_data(tmp_path, "scans", "binary", source.digest), "delete it, and run the study again")
