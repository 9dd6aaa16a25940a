"""The paper's sets: their rules told over again from the single readings, and the same from an archive."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from statistics import mean, multimode
from typing import Any

import numpy as np
import pytest
import torch
from members import assert_refused, generator
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from rightloss.lidc import (
    NoduleSet,
    balanced_set,
    binary_set,
    expected_score,
    montage,
    nodules,
    rating_set,
    read_archive,
    window,
    write_archive,
)
from rightloss.lidc import annotations as reading_frame
from rightloss.lidc import sets as module
from rightloss.lidc.sets import FEATURES, METADATA

SETS = {"binary": binary_set, "rating": rating_set, "balanced": balanced_set}
each_set = pytest.mark.parametrize("make", SETS.values(), ids=SETS.keys())
SLICES = Path(os.environ.get("RIGHTLOSS_DATA", Path(__file__).parents[2] / "shared" / "data")) / "lidc_slices.npz"
needs_slices = pytest.mark.skipif(not SLICES.is_file(), reason="the CT slices of LIDC-IDRI are not available")


@cache
def readings() -> dict[int, list[int]]:
    """Each nodule's malignancy ratings, one by one."""
    return {int(nodule): ratings.tolist() for nodule, ratings in reading_frame().groupby("nodule")["malignancy"]}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of all nodules, as `prepare` writes it, but for its patches: one voxel in HU, the nodule's number."""
    frame = nodules().sample(frac=1, random_state=1)
    ratings = np.zeros((len(frame), 8), int)
    for row, nodule in enumerate(frame["nodule"]):
        ratings[row, : len(readings()[nodule])] = readings()[nodule]
    columns = {name: frame[name].to_numpy() for name in frame.columns if name not in ("patient_id", "nodule")}
    path = tmp_path_factory.mktemp("archive") / "nodules.npz"
    patches = frame["nodule"].to_numpy(np.int16).reshape(-1, 1, 1, 1)
    write_archive(
        path, patches, ratings, frame["patient_id"], 1.0, {**columns, "outside": columns["x"], "nodule_id": frame["nodule"]}
    )
    return path


class TestRules:
    @pytest.mark.parametrize(("rule", "counts"), [("majority", [1068, 344]), ("mean", [1162, 557])])
    def test_the_binary_set_has_another_rating_than_three_by_its_rule(
        self, rule: str, counts: list[int], prepared: Path
    ) -> None:
        answer_of = {"majority": lambda ratings: min(multimode(ratings)), "mean": mean}[rule]
        frame, expected = nodules().set_index("nodule"), {}
        for nodule, ratings in readings().items():
            answer = answer_of(ratings)
            if frame.slice_thickness[nodule] <= 2.5 and frame.diameter_mm[nodule] >= 3 and answer != 3:
                expected[nodule] = int(answer > 3)
        for made in (binary_set(rule=rule), binary_set(prepared, rule=rule)):
            assert dict(zip(made.nodules.tolist(), made.labels.tolist(), strict=True)) == expected
            assert torch.bincount(made.labels).tolist() == counts

    def test_the_rules_differ_where_readers_do(self) -> None:
        majority, average = (
            dict(zip(made.nodules.tolist(), made.labels.tolist(), strict=True))
            for made in (binary_set(), binary_set(rule="mean"))
        )
        assert {mean(readings()[nodule]) for nodule in majority.keys() - average.keys()} == {3}
        assert {min(multimode(readings()[nodule])) for nodule in average.keys() - majority.keys()} == {3}
        assert len(majority.keys() - average.keys()) == 69
        assert len(average.keys() - majority.keys()) == 376
        moved = [(majority[nodule], average[nodule]) for nodule in majority.keys() & average.keys()]
        assert (moved.count((0, 1)), moved.count((1, 0))) == (36, 0)

    def test_another_rule_is_refused(self) -> None:
        for make in (binary_set, balanced_set):
            assert_refused(partial(make, rule="median"), "'majority' or 'mean', but got 'median'")

    def test_the_rating_set_is_the_mean_of_three_readers_or_more_rounded_half_up(self) -> None:
        made, frame = rating_set(), nodules().set_index("nodule")
        expected = {
            nodule: int(mean(ratings) + 0.5) - 1
            for nodule, ratings in readings().items()
            if frame.slice_thickness[nodule] <= 2.5 and len(ratings) >= 3
        }
        assert dict(zip(made.nodules.tolist(), made.labels.tolist(), strict=True)) == expected
        assert len(made) == 1192

    def test_halves_rounded_up_and_only_they_give_the_known_shares(self) -> None:
        made, known = rating_set(), torch.tensor([0.074, 0.160, 0.491, 0.206, 0.069])
        shares = torch.bincount(made.labels, minlength=5) / len(made)
        assert float((shares - known).abs().max()) < 0.002
        assert made.ratings is not None
        to_even = expected_score(made.ratings).round().long() - 1  # torch rounds halves to even
        assert float((torch.bincount(to_even, minlength=5) / len(made) - known).abs().max()) > 0.05

    @pytest.mark.parametrize("rule", ["majority", "mean"])
    def test_the_balanced_set_is_half_malignant_and_out_of_the_binary_one(self, rule: str) -> None:
        made, binary = balanced_set(rule=rule), binary_set(rule=rule)
        assert torch.bincount(made.labels).tolist() == [340, 339]
        known = dict(zip(binary.nodules.tolist(), binary.labels.tolist(), strict=True))
        assert [known[nodule] for nodule in made.nodules.tolist()] == made.labels.tolist()

    def test_the_nodules_in_it_are_those_published_with_this_version(self) -> None:
        listed = ",".join(str(nodule) for nodule in balanced_set().nodules.tolist())
        assert sha256(listed.encode()).hexdigest()[:16] == "158c9f03093b8cd2"

    def test_the_benign_ones_in_it_are_no_special_ones(self) -> None:
        made, binary = balanced_set(), binary_set()
        pool = binary.features[binary.labels == 0][:, binary.feature_names.index("log_diameter_mm")].double()
        chosen = made.features[made.labels == 0][:, made.feature_names.index("log_diameter_mm")].double()
        error = pool.std() * (1 / len(chosen) - 1 / len(pool)) ** 0.5  # of a mean of some out of all, drawn without replacement
        assert abs(float((chosen.mean() - pool.mean()) / error)) < 3


class TestColumns:
    @each_set
    def test_the_votes_are_the_readers(self, make: Callable[[], NoduleSet]) -> None:
        made = make()
        worth = np.eye(5) if made.num_classes == 5 else np.array([[1, 0], [1, 0], [0.5, 0.5], [0, 1], [0, 1]])
        expected = np.stack([worth[np.array(readings()[nodule]) - 1].mean(0) for nodule in made.nodules.tolist()])
        np.testing.assert_allclose(made.votes, expected, rtol=0, atol=1e-6)
        counts = [[readings()[nodule].count(rating) for rating in range(1, 6)] for nodule in made.nodules.tolist()]
        assert made.ratings is not None
        assert made.ratings.tolist() == counts
        assert made.patients is not None
        assert made.patients.tolist() == nodules().set_index("nodule").patient_id[made.nodules.tolist()].tolist()

    @each_set
    def test_the_features_are_means_over_readers_with_sizes_in_logarithms(self, make: Callable[[], NoduleSet]) -> None:
        made, table = make(), reading_frame()
        assert made.feature_names == tuple(
            f"log_{name}" if name.endswith(("_mm", "_mm2", "_mm3")) else name
            for name in (METADATA if made.name == "balanced" else FEATURES)
        )
        for column, name in enumerate(made.feature_names):
            means = table.groupby("nodule")[name.removeprefix("log_")].mean()[made.nodules.tolist()].to_numpy(float)
            expected = np.log(means) if name.startswith("log_") else means
            np.testing.assert_allclose(made.features[:, column], expected, rtol=1e-6)

    def test_it_says_what_it_is(self) -> None:
        assert repr(binary_set()) == "NoduleSet(binary: 1412 nodules (1068/344), 635 patients, 11 features)"


class TestStandardised:
    def test_it_is_scikit_learns_fitted_on_the_training_rows(self) -> None:
        made = binary_set()
        train = torch.randperm(len(made), generator=generator(1))[:900]
        expected = StandardScaler().fit(made.features[train].double()).transform(made.features.double())
        np.testing.assert_allclose(made.standardised(train), expected, rtol=0, atol=1e-5)

    def test_a_constant_column_is_zero_not_nan(self) -> None:
        made = balanced_set()
        same = torch.nonzero(made.features[:, made.feature_names.index("internal_structure")] == 1).flatten()
        found = made.standardised(same)
        assert bool(found.isfinite().all())
        assert bool((found[same, made.feature_names.index("internal_structure")] == 0).all())

    def test_no_rows_are_refused(self) -> None:
        assert_refused(lambda: balanced_set().standardised([]), "training part")


class TestSubset:
    def test_rows_keep_what_belongs_to_them(self) -> None:
        made = rating_set()
        rows = torch.randperm(len(made), generator=generator(2))[:50]
        part = made.subset(rows.numpy())
        assert len(part) == 50
        for name in ("labels", "votes", "ratings", "features", "nodules", "spacing_mm"):
            assert torch.equal(getattr(part, name), getattr(made, name)[rows])
        assert part.patients is not None
        assert made.patients is not None
        assert part.patients.tolist() == made.patients[rows.numpy()].tolist()

    def test_a_mask_and_a_subset_of_a_subset_work(self) -> None:
        made = binary_set()
        malignant = made.subset(made.labels == 1)
        assert len(malignant) == 344
        assert malignant.subset([3, 1]).nodules.tolist() == malignant.nodules[[3, 1]].tolist()

    @pytest.mark.parametrize("rows", [[679], [-680], [0.5], torch.ones(5, dtype=torch.bool), [[1]]])
    def test_other_rows_are_refused(self, rows: Any) -> None:
        assert_refused(lambda: balanced_set().subset(rows), "below 679")


class TestPatches:
    @pytest.fixture
    def numbered(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Contour volumes that are one voxel each, the nodule's number; and how many were drawn at a time."""
        drawn: list[int] = []

        def volumes(ids: Any) -> Tensor:
            drawn.append(len(ids))
            return torch.tensor(ids, dtype=torch.float64).reshape(-1, 1, 1, 1)

        monkeypatch.setattr(module, "contour_volumes", volumes)
        return drawn

    def test_every_row_has_its_own(self, numbered: list[int]) -> None:
        made = rating_set()
        part = made.subset(torch.randperm(len(made), generator=generator(3))[:9])
        for each, rows in ((made, None), (made, [5, 0]), (part, None), (part, torch.arange(9) > 6)):
            expected = each.nodules if rows is None else each.nodules[rows]
            assert each.volumes(rows).flatten().tolist() == expected.tolist()
            assert each.images(rows).flatten().tolist() == expected.tolist()

    def test_no_more_are_made_than_are_asked_for(self, numbered: list[int]) -> None:
        binary_set().subset([1, 2]).volumes()
        balanced_set().volumes([0])
        assert numbered == [2, 1]


class TestArchives:
    @pytest.mark.parametrize("make", [rating_set, balanced_set])
    def test_the_rules_give_the_same_nodules_from_an_archive(self, make: Callable[..., NoduleSet], prepared: Path) -> None:
        shipped, found = make(), make(prepared)
        order = found.nodules.argsort()
        assert torch.equal(found.nodules[order], shipped.nodules)
        assert torch.equal(found.labels[order], shipped.labels)
        assert torch.equal(found.votes[order], shipped.votes)
        assert found.feature_names == shipped.feature_names
        assert torch.equal(found.features[order], shipped.features)
        assert found.volumes().flatten().tolist() == found.nodules.tolist()
        assert found.subset([7, 2]).volumes([1]).flatten().tolist() == found.nodules[[2]].tolist()

    def test_its_patches_are_windowed_hounsfield_units(self, prepared: Path) -> None:
        made = binary_set(read_archive(prepared))
        expected = ((made.nodules + 1000) / 1400).clamp(0, 1)
        torch.testing.assert_close(made.images().flatten().float(), expected, rtol=0, atol=2**-12)

    def test_a_set_can_be_sent_to_another_process(self, prepared: Path) -> None:
        made = rating_set(prepared)
        sent = pickle.loads(pickle.dumps(made))
        assert torch.equal(sent.images([3]), made.images([3]))

    @pytest.mark.long
    @needs_slices
    def test_the_slices_at_hand_give_their_known_counts(self) -> None:
        archive = read_archive(SLICES)
        assert [torch.bincount(make(archive).labels).tolist() for make in (binary_set, balanced_set)] == [
            [907, 273],
            [273, 273],
        ]
        made = rating_set(archive)
        assert len(made) == 1000
        assert made.feature_names == ("log_equivalent_diameter_mm",)
        assert made.images([0, 1]).shape == (2, 71, 71)

    @pytest.mark.parametrize(
        ("ratings", "columns", "words"),
        [
            ([[3], [3]], {}, "none of 2"),
            ([[1], [5]], {"slice_thickness": [3.0, 5.0]}, "none of 2"),
            ([[1], [5]], {"diameter_mm": [2.0, 2.9]}, "none of 2"),
            ([[1], [5]], {"volume_mm3": [0.0, 1.0]}, "above 0 in `volume_mm3`"),
            ([[1], [5]], {"nodule_id": [1, 1]}, "`nodule_id`"),
            ([[1], [5]], {"nodule_id": [1.5, 2.5]}, "`nodule_id`"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, tmp_path: Path, ratings: Any, columns: dict[str, Any], words: str) -> None:
        write_archive(tmp_path / "a.npz", np.zeros((2, 1, 1)), ratings, ["a", "b"], columns=columns)
        assert_refused(lambda: binary_set(tmp_path / "a.npz"), words)

    def test_a_balanced_set_needs_both_classes(self, tmp_path: Path) -> None:
        write_archive(tmp_path / "a.npz", np.zeros((2, 1, 1)), [[1], [2]], ["a", "b"])
        assert_refused(lambda: balanced_set(tmp_path / "a.npz"), r"\[2, 0\]")

    @pytest.fixture
    def clinic(self, tmp_path: Path) -> Path:
        """An archive with columns of one's own, in the words of different clinics."""
        answers = (
            "malignancy mean_malignancy Malignancy avg_rating is_malignant benign Diagnosis class label target votes_4 readers"
        )
        numbers = "nodule_id scan z slice_spacing outside fold"
        known = {
            "age": [60, 70],
            "log_volume": [-1.0, 0.0],
            "volume_mm3": [10.0, 20.0],
            "diameter_mm": [5, 9],
            "lobulation": [1, 2],
        }
        columns: dict[str, Any] = {name: [1, 2] for name in (answers + " " + numbers).split()} | known | {"site": ["a", "b"]}
        write_archive(tmp_path / "a.npz", np.zeros((2, 1, 1)), [[1], [5]], ["a", "b"], columns=columns)
        return tmp_path / "a.npz"

    def test_of_foreign_columns_those_that_may_hold_the_answer_or_a_number_are_no_features(self, clinic: Path) -> None:
        expected = ("age", "log_volume", "log_volume_mm3", "log_diameter_mm", "lobulation")
        assert set(binary_set(clinic).feature_names) == set(expected)

    def test_metadata_of_ones_own_stand_beside_the_known_ones(self, clinic: Path) -> None:
        assert balanced_set(clinic).feature_names == ("log_diameter_mm", "age", "log_volume")

    def test_features_can_be_chosen(self, clinic: Path) -> None:
        for make in (binary_set, balanced_set):
            assert make(clinic, features=["lobulation", "benign"]).feature_names == ("lobulation", "benign")
        assert binary_set(features="diameter_mm").feature_names == ("log_diameter_mm",)
        assert_refused(lambda: binary_set(clinic, features=["agee"]), r"among \[.*'age'.* but got \['agee'\]")

    def test_what_cannot_be_hounsfield_units_is_refused(self, tmp_path: Path) -> None:
        for patches in (np.full((2, 4, 4), 200, np.uint8), np.full((2, 4, 4), 0.5)):
            write_archive(tmp_path / "a.npz", patches, [[1], [5]], ["a", "b"])
            made = binary_set(tmp_path / "a.npz")
            assert made.volumes().shape == (2, 4, 4)
            assert_refused(made.images, "in Hounsfield units")

    def test_a_file_that_was_replaced_is_not_read_on(self, tmp_path: Path) -> None:
        path = tmp_path / "a.npz"
        write_archive(path, np.zeros((2, 4, 4)), [[1], [5]], ["a", "b"])
        made = binary_set(path)
        write_archive(path, np.ones((2, 4, 4)), [[5], [1]], ["b", "a"])
        assert_refused(made.volumes, "has changed since: read it again")

    def test_something_else_than_an_archive_is_refused(self) -> None:
        assert_refused(lambda: binary_set(7), "got int")  # type: ignore[arg-type]


class TestWindow:
    def test_it_is_numpys_interpolation_between_air_and_calcium(self) -> None:
        hu = torch.randint(-3000, 3000, (500,), generator=generator(4))
        np.testing.assert_allclose(window(hu), np.interp(hu, [-1000, 400], [0, 1]), rtol=0, atol=1e-6)
        np.testing.assert_allclose(window(hu.short(), -50, 150), np.interp(hu, [-50, 150], [0, 1]), rtol=0, atol=1e-6)

    def test_half_precision_tells_every_unit_apart_and_what_is_given_stays(self) -> None:
        hu = torch.arange(-1000.0, 401)
        assert len(window(hu).half().unique()) == 1401
        assert torch.equal(hu, torch.arange(-1000.0, 401))

    def test_a_window_without_width_is_refused(self) -> None:
        assert_refused(lambda: window([1.0], 5, 5), "`low` below `high`")


@pytest.mark.long
def test_importing_needs_the_core_packages_only() -> None:
    code = "import sys, rightloss.lidc; print(*({'pandas', 'scipy', 'pydicom', 'sklearn', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def shown(figure: Any) -> list[np.ndarray]:
    return [np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images]


def test_a_montage_shows_each_patch_by_its_middle_plane() -> None:
    volumes = torch.zeros(5, 9, 11, 11)
    for row in range(5):
        volumes[row, 4] = row / 5
    figure = montage(volumes, [f"nodule {row}" for row in range(5)], columns=3)
    assert [plane.mean() for plane in shown(figure)] == pytest.approx([row / 5 for row in range(5)])
    assert [axes.get_title() for axes in figure.axes][:5] == [f"nodule {row}" for row in range(5)]
    assert len(figure.axes) == 6


def test_a_montage_shows_between_two_middle_planes_their_mean() -> None:
    volumes = torch.zeros(1, 8, 6, 6)
    volumes[0, 3], volumes[0, 4] = 1, 0.5
    assert shown(montage(volumes))[0] == pytest.approx(np.full((6, 6), 0.75))


def test_a_montage_shows_slices_as_they_are_around_their_middle() -> None:
    slices = np.zeros((2, 71, 71), np.float16)
    slices[:, 35, 35] = 1
    plane = shown(montage(slices, window_mm=41))[0]
    assert plane.shape == (41, 41)
    assert plane[20, 20] == 1


def test_a_montage_of_no_patches_or_too_few_titles_is_refused() -> None:
    assert_refused(lambda: montage(torch.zeros(0, 4, 4, 4)), r"got \(0, 4, 4, 4\)")
    assert_refused(lambda: montage(torch.zeros(2, 4, 4), ["one"]), "each of 2 patches, but got 1")
