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
        assert torch.bincount(made.labels).tolist() == [88, 191, 585, 246, 82]

    @pytest.mark.parametrize("rule", ["majority", "mean"])
    def test_the_balanced_set_is_half_malignant_out_of_the_binary_one_and_always_the_same(self, rule: str) -> None:
        made, binary = balanced_set(rule=rule), binary_set(rule=rule)
        assert torch.bincount(made.labels).tolist() == [340, 339]
        known = dict(zip(binary.nodules.tolist(), binary.labels.tolist(), strict=True))
        assert [known[nodule] for nodule in made.nodules.tolist()] == made.labels.tolist()
        if rule == "majority":  # the nodules published with this version
            listed = ",".join(str(nodule) for nodule in made.nodules.tolist())
            assert sha256(listed.encode()).hexdigest()[:16] == "158c9f03093b8cd2"


class TestColumns:
    @each_set
    def test_votes_are_the_readers_and_features_their_means_or_logarithms(self, make: Callable[[], NoduleSet]) -> None:
        made = make()
        worth = np.eye(5) if made.num_classes == 5 else np.array([[1, 0], [1, 0], [0.5, 0.5], [0, 1], [0, 1]])
        expected = np.stack([worth[np.array(readings()[nodule]) - 1].mean(0) for nodule in made.nodules.tolist()])
        np.testing.assert_allclose(made.votes, expected, rtol=0, atol=1e-6)
        counts = [[readings()[nodule].count(rating) for rating in range(1, 6)] for nodule in made.nodules.tolist()]
        assert made.ratings is not None
        assert made.ratings.tolist() == counts
        assert made.patients is not None
        assert made.patients.tolist() == nodules().set_index("nodule").patient_id[made.nodules.tolist()].tolist()
        table = reading_frame()
        assert made.feature_names == tuple(
            f"log_{name}" if name.endswith(("_mm", "_mm2", "_mm3")) else name
            for name in (METADATA if made.name == "balanced" else FEATURES)
        )
        for column, name in enumerate(made.feature_names):
            means = table.groupby("nodule")[name.removeprefix("log_")].mean()[made.nodules.tolist()].to_numpy(float)
            expected = np.log(means) if name.startswith("log_") else means
            np.testing.assert_allclose(made.features[:, column], expected, rtol=1e-6)


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
        assert_refused(lambda: made.standardised([]), "training part")


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
        malignant = made.subset(made.labels == 4)
        assert len(malignant) == 82
        assert malignant.subset([3, 1]).nodules.tolist() == malignant.nodules[[3, 1]].tolist()

    @pytest.mark.parametrize("rows", [[679], [-680], [0.5], torch.ones(5, dtype=torch.bool), [[1]]])
    def test_other_rows_are_refused(self, rows: Any) -> None:
        assert_refused(lambda: balanced_set().subset(rows), "below 679")


def test_every_row_has_its_own_patch_and_no_more_are_made_than_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contour volumes that are one voxel each, the nodule's number."""
    drawn: list[int] = []

    def volumes(ids: Any) -> Tensor:
        drawn.append(len(ids))
        return torch.tensor(ids, dtype=torch.float64).reshape(-1, 1, 1, 1)

    monkeypatch.setattr(module, "contour_volumes", volumes)
    made = rating_set()
    part = made.subset(torch.randperm(len(made), generator=generator(3))[:9])
    for each, rows in ((made, None), (made, [5, 0]), (part, None), (part, torch.arange(9) > 6)):
        expected = each.nodules if rows is None else each.nodules[rows]
        assert each.volumes(rows).flatten().tolist() == expected.tolist()
        assert each.images(rows).flatten().tolist() == expected.tolist()
    assert drawn == [1192, 1192, 2, 2, 9, 9, 2, 2]


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
        sent = pickle.loads(pickle.dumps(made))  # to another process
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

    def test_a_balanced_set_needs_both_classes_and_any_set_an_archive(self, tmp_path: Path) -> None:
        write_archive(tmp_path / "a.npz", np.zeros((2, 1, 1)), [[1], [2]], ["a", "b"])
        assert_refused(lambda: balanced_set(tmp_path / "a.npz"), r"\[2, 0\]")
        assert_refused(lambda: binary_set(7), "got int")  # type: ignore[arg-type]

    def test_of_ones_own_columns_all_but_answers_and_numbers_are_features_unless_they_are_chosen(self, tmp_path: Path) -> None:
        answers = "malignancy mean_malignancy Malignancy avg_rating is_malignant benign Diagnosis class label target votes_4"
        numbers = " readers nodule_id scan z slice_spacing outside fold"
        known = {"age": [60, 70], "log_volume": [-1.0, 0.0], "volume_mm3": [10.0, 20.0]}
        known |= {"diameter_mm": [5, 9], "lobulation": [1, 2]}
        columns: dict[str, Any] = {name: [1, 2] for name in (answers + numbers).split()} | known | {"site": ["a", "b"]}
        clinic = tmp_path / "a.npz"
        write_archive(clinic, np.zeros((2, 1, 1)), [[1], [5]], ["a", "b"], columns=columns)
        expected = ("age", "log_volume", "log_volume_mm3", "log_diameter_mm", "lobulation")
        assert set(binary_set(clinic).feature_names) == set(expected)
        assert balanced_set(clinic).feature_names == ("log_diameter_mm", "age", "log_volume")
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


def test_a_window_is_numpys_interpolation_between_air_and_calcium() -> None:
    hu = torch.randint(-3000, 3000, (500,), generator=generator(4))
    np.testing.assert_allclose(window(hu), np.interp(hu, [-1000, 400], [0, 1]), rtol=0, atol=1e-6)
    np.testing.assert_allclose(window(hu.short(), -50, 150), np.interp(hu, [-50, 150], [0, 1]), rtol=0, atol=1e-6)
    every = torch.arange(-1000.0, 401)
    assert len(window(every).half().unique()) == 1401  # half precision tells every unit apart
    assert torch.equal(every, torch.arange(-1000.0, 401))  # and what is given stays
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
    even = torch.zeros(1, 8, 6, 6)
    even[0, 3], even[0, 4] = 1, 0.5  # the mean of the two middle planes
    assert shown(montage(even))[0] == pytest.approx(np.full((6, 6), 0.75))
    slices = np.zeros((2, 71, 71), np.float16)
    slices[:, 35, 35] = 1
    (plane, _) = shown(montage(slices, window_mm=41))
    assert (plane.shape, plane[20, 20]) == ((41, 41), 1)
    assert_refused(lambda: montage(torch.zeros(0, 4, 4, 4)), r"got \(0, 4, 4, 4\)")
    assert_refused(lambda: montage(torch.zeros(2, 4, 4), ["one"]), "each of 2 patches, but got 1")
