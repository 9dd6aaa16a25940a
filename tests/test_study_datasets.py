"""Data sets for the study: from the package, from archives, from NoduleMNIST3D's file; and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from members import assert_refused
from nodule_files import NODULES, SIDE, small_archive

from rightloss.lidc import binary_set, write_archive
from rightloss.lidc.splits import split_labels
from rightloss.study.config import Source, StudyConfig, Training
from rightloss.study.datasets import check_sources, parts_of, source_of, study_data, summary_of


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return small_archive(tmp_path_factory.mktemp("archive") / "scans.npz")


def archive(path: Path, ratings: Any, shape: tuple[int, ...] = (20, 20)) -> Source:
    """Noise with these ratings, a patient for each nodule."""
    ratings = np.array(ratings)
    patches = np.random.default_rng(0).normal(-500, 100, (len(ratings), *shape)).astype(np.int16)
    write_archive(path, patches, ratings, np.arange(len(ratings)))
    return source_of(str(path))


def test_contours_come_with_the_package() -> None:
    assert source_of("contours") == Source("contours")
    assert torch.equal(study_data(source_of("contours"), "binary").labels, binary_set().labels)


def test_a_source_is_its_content_and_a_name_that_fits_a_disk_and_is_not_the_packages(tmp_path: Path) -> None:
    one = small_archive(tmp_path / "scans.npz")
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "scans.npz").write_bytes((tmp_path / "scans.npz").read_bytes())
    other = source_of(str(tmp_path / "moved" / "scans.npz"))
    assert (other.name, other.digest) == ("scans", one.digest)
    assert small_archive(tmp_path / "others.npz", seed=1).digest != one.digest
    assert small_archive(tmp_path / "contours.npz").name == "contours-file"
    long = small_archive(tmp_path / ("𝒜" * 60 + ".npz"))
    config = StudyConfig(
        "ratings",
        task="rating",
        sources=(long,),
        nets=("fully-convolutional",),
        losses=("published-network",),
        populations=(None,),
        likelihoods=("cumulative-logit",),
        starts=("equal",),
        inferences=("mc-dropout",),
        minibatches=("raw",),
    )
    assert long.name
    assert max(len(f"{run.key}.json".encode()) for run in config.runs()) < 256


@pytest.mark.parametrize("task", ["binary", "rating", "balanced"])
def test_parts_share_no_patient_and_miss_no_nodule_and_a_summary_knows_which_are_tested(source: Source, task: str) -> None:
    data, summary = study_data(source, task), summary_of(source, task)
    tested = []
    for fold in range(4):
        parts = parts_of(data, fold, 4)
        people = [set(np.asarray(data.patients)[rows].tolist()) for rows in parts]
        assert sum(map(len, people)) == len(set().union(*people))
        assert sorted(torch.cat(parts).tolist()) == list(range(len(data.labels)))
        assert summary.tested(fold, 4).tolist() == parts.test.tolist()
        tested += parts.test.tolist()
    assert sorted(tested) == list(range(len(data.labels)))


@pytest.mark.long
def test_a_summary_shows_the_nodules_as_they_are(source: Source) -> None:
    data, summary = study_data(source, "rating"), summary_of(source, "rating")
    assert summary.pictures.shape == (NODULES, SIDE, SIDE)
    np.testing.assert_array_equal(summary.pictures, (255 * data.images().float()).round().to(torch.uint8).numpy())
    np.testing.assert_array_equal(summary.labels, data.labels)
    np.testing.assert_allclose(summary.votes.sum(1), 1, atol=1e-6)
    assert (summary.ratings.sum(), len(set(summary.patients.tolist()))) == (3 * NODULES, 60)
    volumes = summary_of(Source("contours"), "balanced")
    middle = study_data(Source("contours"), "balanced").images([5])[0, 32, 12:52, 12:52]
    assert volumes.pictures.shape == (679, 40, 40)
    np.testing.assert_array_equal(volumes.pictures[5], (255 * middle.float()).round().to(torch.uint8).numpy())


@pytest.mark.long
def test_nodulemnist_has_its_published_parts_as_one_fold(tmp_path: Path) -> None:
    generator, arrays = np.random.default_rng(0), dict[str, Any]()
    for name, count in {"train": 1158, "val": 165, "test": 310}.items():
        arrays[f"{name}_images"] = generator.integers(0, 256, (count, 28, 28, 28), dtype=np.uint8)
        arrays[f"{name}_labels"] = (np.arange(count) % 4 == 0).astype(np.uint8)[:, None]
    np.savez(tmp_path / "nodulemnist3d.npz", **arrays)
    source = source_of(str(tmp_path / "nodulemnist3d.npz"))
    check_sources(StudyConfig("quick", sources=(source,), folds=1))
    data, summary = study_data(source, "binary"), summary_of(source, "binary")
    parts = parts_of(data, 0, 10)
    assert [len(part) for part in parts] == [1158, 165, 310]
    for name, part in zip(("train", "val", "test"), parts, strict=True):
        np.testing.assert_array_equal(data.labels[part], arrays[f"{name}_labels"][:, 0])
        np.testing.assert_array_equal(data.volumes(part[-2:]), arrays[f"{name}_images"][-2:])
    assert (summary.pictures.shape, len(set(summary.patients.tolist()))) == ((1633, 28, 28), 1633)
    assert summary.tested(0, 10).tolist() == parts.test.tolist()
    assert_refused(lambda: check_sources(StudyConfig("quick", sources=(source,), folds=2)), "--folds 1")
    ratings = StudyConfig("ratings", task="rating", sources=(source,), populations=(None,), folds=1)
    assert_refused(lambda: check_sources(ratings), "NoduleMNIST3D")
    assert_refused(lambda: check_sources(StudyConfig("quick", sources=(source,), folds=1, nets=("mlp",))), "features")


@pytest.mark.parametrize("kind", ["truncated", "another kind", "unlabelled", "a folder"])
def test_a_file_that_is_no_archive_is_refused_before_anything_is_computed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "scans.npz"
    if kind == "truncated":
        small_archive(path)
        path.write_bytes(path.read_bytes()[:5000])
    elif kind == "another kind":
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(1000))
    elif kind == "unlabelled":
        np.savez(path, patches=np.zeros((5, 9, 9), np.int16), patient_id=np.arange(5))
    else:
        path.mkdir()
    assert_refused(lambda: check_sources(StudyConfig("quick", sources=(source_of(str(path)),), folds=1)), "scans.npz")


def test_a_missing_file_and_one_that_changed_since_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.npz"):
        source_of(str(tmp_path / "none.npz"))
    source = small_archive(tmp_path / "scans.npz")
    small_archive(tmp_path / "scans.npz", seed=1)
    assert_refused(lambda: study_data(source, "binary"), "has changed")
    assert_refused(lambda: study_data(Source("scans", "1234"), "binary"), "give it by --data")


def test_a_part_without_one_of_the_classes_in_labels_or_votes_is_refused(tmp_path: Path) -> None:
    few = archive(tmp_path / "few.npz", [[1]] * 9 + [[5]])
    config = StudyConfig("quick", sources=(few,), folds=1, num_folds=3)
    assert_refused(lambda: check_sources(config), "a label for every class")
    torn = np.array([[1, 1, 1], [2, 2, 2], [2, 3, 4], [4, 4, 4], [5, 5, 5]] * 12)
    torn[2::5] = [2, 2, 5]  # of mean 3, and no reader says so
    sources = (archive(tmp_path / "torn.npz", torn),)
    ratings = StudyConfig("ratings", task="rating", sources=sources, populations=(None,), folds=1, num_folds=3)
    assert_refused(lambda: check_sources(ratings), "a vote for every class")


def test_of_slices_there_are_any_number_of_fixed_views_and_of_volumes_48(tmp_path: Path) -> None:
    flat, solid = (archive(tmp_path / f"{len(shape)}.npz", [[1], [5]] * 6, shape) for shape in ((20, 20), (20, 20, 20)))

    def config(source: Source, views: int) -> StudyConfig:
        training = Training(batch_size=4, test_views=views)
        return StudyConfig("quick", sources=(source,), folds=1, num_folds=3, training=training)

    check_sources(config(flat, 51))
    check_sources(config(solid, 48))
    assert_refused(lambda: check_sources(config(solid, 51)), "got 51")


def test_nets_of_features_need_features_and_a_batch_no_more_nodules_than_there_are(source: Source, tmp_path: Path) -> None:
    bare = small_archive(tmp_path / "scans.npz", columns=False)
    config = StudyConfig("quick", sources=(bare,), nets=("convnet", "mlp"), folds=1, num_folds=4)
    assert_refused(lambda: check_sources(config), "mlp")
    large = StudyConfig("quick", sources=(source,), folds=1, num_folds=4, training=Training(batch_size=100))
    assert_refused(lambda: check_sources(large), "got 100: lower --batch-size")


# Patients who lose their labels.


@pytest.mark.parametrize(
    ("share", "came"),
    [(0.95, "with labels: take a lower share"), (0.02, "without: take a higher share"), (0.7, "with labels, trains on")],
)
def test_a_share_that_leaves_a_class_or_a_minibatch_without_nodules_is_refused(source: Source, share: float, came: str) -> None:
    training = Training(steps=6, batch_size=30, checkpoints=2)
    config = StudyConfig("quick", sources=(source,), folds=1, num_folds=4, unlabelled=share, training=training)
    assert_refused(lambda: check_sources(config), came)


def test_they_are_that_share_of_the_patients_and_no_patient_is_split_or_released() -> None:
    names, rows = np.array([f"P{row // 3}" for row in range(120)]), torch.arange(0, 120)[torch.arange(120) % 7 > 0]
    before = set[int]()
    for share in (0.0, 0.01, 0.2, 0.8, 0.99):
        labelled, unlabelled = split_labels(rows, names, share, "seed")
        people = [set(names[part].tolist()) for part in (labelled, unlabelled)]
        assert not people[0] & people[1]
        assert len(people[1]) == round(share * 40)
        assert sorted([*labelled.tolist(), *unlabelled.tolist()]) == rows.tolist()
        assert before <= set(unlabelled.tolist())
        before = set(unlabelled.tolist())
    first, again, other = (
        set(split_labels(some, names, 0.5, seed)[1].tolist()) for some, seed in ((rows, "a"), (rows.flip(0), "a"), (rows, "b"))
    )
    assert first == again != other
    assert torch.equal(split_labels(rows, None, 0.0)[0], rows)
    wrong: list[Any] = [1.0, True, "0.5"]
    for each in wrong:
        assert_refused(lambda: split_labels(rows, names, each), "share")  # noqa: B023
