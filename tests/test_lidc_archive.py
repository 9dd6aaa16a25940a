"""Nodule archives, whole, damaged, foreign and hostile."""

from __future__ import annotations

import pickle
import shutil
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from members import SEED, assert_refused, unchecked_types

from rightloss import serialization
from rightloss.lidc import Archive, read_archive, write_archive
from rightloss.serialization import open_npz

N = 6
FORMS = [
    ("i2", (N, 3, 4, 5)),
    (">i2", (N, 7, 2)),
    (">u2", (N, 3, 4, 5)),
    ("u4", (N, 7, 2)),
    ("f2", (N, 7, 2)),
    (">f4", (N, 3, 4, 5)),
]


def content(shape: tuple[int, ...] = (N, 3, 4, 5), dtype: str = "i2") -> dict[str, Any]:
    """The parts of an archive, with numbers that every dtype can hold."""
    draw = np.random.default_rng(SEED)
    return {
        "patches": draw.integers(0, 100, shape).astype(dtype),
        "ratings": np.array([[1, 0, 3], [5, 5, 5], [0, 0, 2], [3, 2, 1], [4, 4, 0], [1, 1, 1]], np.int8),
        "patient_id": np.array(["P1", "P1", "P2", "P3", "Ångström", "P5"]),
        "spacing_mm": np.linspace(0.5, 1, N),
        "columns": {"nodule_id": np.arange(10, 10 + N), "contrast": np.arange(N) > 3, "site": np.array(list("abcabc"))},
    }


def saved(folder: Path, save: Callable[..., None] = np.savez, **changed: Any) -> Path:
    """An archive by NumPy, with parts replaced, added, or (None) left out."""
    whole = content()
    arrays = {**whole, **whole.pop("columns"), **changed}
    path = folder / "given.npz"
    save(path, **{name: array for name, array in arrays.items() if array is not None and name != "columns"})
    return path


@contextmanager
def little_memory() -> Iterator[None]:
    """Whatever is done here takes less than 50 MB at a time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


class TestThereAndBack:
    @pytest.mark.parametrize(("dtype", "shape"), FORMS)
    def test_what_is_written_is_read(self, tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
        given = content(shape, dtype)
        write_archive(tmp_path / "a.npz", **given)
        archive = read_archive(tmp_path / "a.npz")
        assert (len(archive), archive.shape) == (N, shape)
        columns = {"patients": given.pop("patient_id"), **given.pop("columns"), **given}
        assert everything(archive) == {name: column.tolist() for name, column in columns.items()}

    @pytest.mark.parametrize(("save", "order"), [(np.savez, "F"), (np.savez_compressed, "C")])
    def test_numpys_own_files_are_read(self, tmp_path: Path, save: Callable[..., None], order: Any) -> None:
        patches = np.asarray(content()["patches"], order=order)
        archive = read_archive(saved(tmp_path, save, patches=patches))
        assert torch.equal(archive.patches(), torch.from_numpy(patches.copy("C")))
        assert torch.equal(archive.patches([4, 1, 1]), torch.from_numpy(patches[[4, 1, 1]].copy("C")))
        assert torch.equal(archive.patches(np.arange(N) == 2), torch.from_numpy(patches[2:3].copy("C")))
        assert archive.patches([]).shape == (0, 3, 4, 5)
        archive.patches().zero_()  # a copy, as that of some rows
        archive.patches([0]).zero_()
        assert torch.equal(archive.patches(), torch.from_numpy(patches.copy("C")))

    def test_one_spacing_holds_for_all_and_patients_may_be_numbers_or_bytes(self, tmp_path: Path) -> None:
        assert read_archive(saved(tmp_path, spacing_mm=None)).spacing_mm is None
        one = read_archive(saved(tmp_path, spacing_mm=np.float32(0.5))).spacing_mm
        assert one is not None
        assert one.tolist() == [0.5] * N
        for given in (np.arange(N), np.arange(N).astype("S2"), np.arange(N).astype(">i8")):
            assert read_archive(saved(tmp_path, patient_id=given)).patients.tolist() == ["0", "1", "2", "3", "4", "5"]

    def test_the_same_arrays_give_the_same_bytes(self, tmp_path: Path) -> None:
        for name, order in (("a.npz", "C"), ("b.npz", "F")):
            write_archive(tmp_path / name, **content() | {"patches": content()["patches"].copy(order)})
        assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()

    def test_text_of_a_data_frame_and_tensors_are_written(self, tmp_path: Path) -> None:
        given = content()
        patches, ratings = (torch.from_numpy(given[name]) for name in ("patches", "ratings"))
        write_archive(tmp_path / "a.npz", patches, ratings, np.array(given["patient_id"].tolist(), dtype=object))
        assert read_archive(tmp_path / "a.npz").patients.tolist() == given["patient_id"].tolist()


class TestMemory:
    @pytest.mark.long
    def test_neither_reading_nor_writing_holds_all_patches(self, tmp_path: Path) -> None:
        rows = 2 * 2**26 // 64**3 // 4  # 130 MB
        patches = np.lib.format.open_memmap(tmp_path / "p.npy", "w+", np.dtype("f4"), (rows, 64, 64, 64))
        patches[-1] = 7
        with little_memory():
            write_archive(tmp_path / "a.npz", patches, np.ones((rows, 1), int), np.arange(rows))
            archive = read_archive(tmp_path / "a.npz")
            assert archive.patches([rows - 1]).unique().tolist() == [7]

    def test_another_process_is_sent_the_path_not_the_patches(self, tmp_path: Path) -> None:
        write_archive(tmp_path / "a.npz", **content((N, 32, 32, 32)))
        archive = read_archive(tmp_path / "a.npz")
        sent = pickle.dumps(archive)
        assert len(sent) < archive.patches().numel()
        assert torch.equal(pickle.loads(sent).patches([3]), archive.patches([3]))


class TestWrongFiles:
    @pytest.mark.long
    @pytest.mark.parametrize(
        ("changed", "words"),
        [
            ({"patches": None}, r"lacks \['patches'\]"),
            ({"patches": np.zeros((N, 3, 0))}, r"\[6, 3, 0\]"),
            ({"patches": np.zeros((N, 3, 3), bool)}, "bool"),
            ({"patches": np.where(np.arange(N * 8).reshape(N, 2, 2, 2) == 20, np.nan, 1.0)}, "finite.* row 2 "),
            ({"ratings": np.ones((N - 1, 3), int)}, r"`ratings`.*\[5, 3\]"),
            ({"ratings": np.ones((N, 0), int)}, r"`ratings`.*\[6, 0\]"),
            ({"ratings": np.ones((N, 2))}, "`ratings`.*float64"),
            ({"ratings": np.full((N, 2), 6)}, r"1 to 5.* row 0 .*\[6, 6\]"),
            ({"ratings": np.array([[1, 2]] * 5 + [[0, 0]])}, "every row.* row 5 "),
            ({"patient_id": np.array(list("abc"))}, r"`patient_id`.*\[3\]"),
            ({"patient_id": np.array(["a"] * 5 + [""])}, "every row.* row 5 "),
            ({"patient_id": np.array([b"a"] * 5 + [b"\xff"])}, "text in `patient_id`"),
            ({"patient_id": np.full(N, 0xFFFFFFF0, np.uint32).view("<U1")}, "text in `patient_id`"),
            ({"spacing_mm": np.zeros(N)}, "positive `spacing_mm`.* row 0 "),
            ({"spacing_mm": np.float64("nan")}, "finite numbers in `spacing_mm`"),
            ({"age": np.array([1.0] * 5 + [np.nan])}, "finite numbers in `age`.* row 5 "),
            ({"age": np.ones((N, 2))}, r"`age`.*\[6, 2\]"),
            ({"age": np.array([{}] * N)}, "`age` holds Python objects"),
        ],
    )
    def test_it_is_refused_and_named(self, tmp_path: Path, changed: dict[str, Any], words: str) -> None:
        path = saved(tmp_path, **changed)
        assert_refused(lambda: read_archive(path), words)

    def test_a_pickle_a_folder_and_a_missing_file_are_named(self, tmp_path: Path) -> None:
        (tmp_path / "x.npz").write_bytes(b"\x80\x04N.")
        assert_refused(lambda: read_archive(tmp_path / "x.npz"), "not a zip")
        assert_refused(lambda: read_archive(tmp_path), "is a folder")
        with pytest.raises(FileNotFoundError, match=r"Expected .* but .*absent\.npz: "):
            read_archive(tmp_path / "absent.npz")

    def test_other_zip_files_are_refused(self, tmp_path: Path) -> None:
        for names in ([], ["words.txt"], ["patches.npy"]):
            with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
                for name in names:
                    archive.writestr(name, b"no array")
            assert_refused(lambda: read_archive(tmp_path / "x.npz"), "not, or is damaged")
        path = saved(tmp_path)
        with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
            warnings.simplefilter("ignore")
            archive.writestr("ratings.npy", archive.read("ratings.npy"))  # a second one of this name
        assert_refused(lambda: read_archive(path), "different names")

    @pytest.mark.parametrize("claimed", ["(10000000000, 64, 64, 64)", "(6, 3, 4, 4)", "(-6, -3, 4, 5)", "'" * 9])
    def test_a_shape_that_the_file_does_not_hold_is_refused_unread(self, tmp_path: Path, claimed: str) -> None:
        path = saved(tmp_path)
        with zipfile.ZipFile(path) as archive:
            arrays = {name: archive.read(name) for name in archive.namelist()}
        header = f"{{'descr': '<i2', 'fortran_order': False, 'shape': {claimed}, }}".encode()
        arrays["patches.npy"] = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + arrays["patches.npy"][128:]
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in arrays.items():
                archive.writestr(name, data)
        with little_memory():
            assert_refused(lambda: read_archive(path), "damaged")

    def test_an_array_that_unfolds_beyond_a_limit_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = saved(tmp_path, np.savez_compressed)
        read_archive(path)
        monkeypatch.setattr(serialization, "_LIMIT", 300)
        assert_refused(lambda: read_archive(path), "GB")

    @pytest.mark.long
    def test_a_bomb_is_refused_unread(self, tmp_path: Path) -> None:
        path = saved(tmp_path, np.savez_compressed, age=np.zeros((2**28, 1), np.int8))
        with zipfile.ZipFile(path) as archive:
            assert archive.getinfo("age.npy").file_size > 500 * archive.getinfo("age.npy").compress_size
        with little_memory():
            assert_refused(lambda: read_archive(path), "`age`")

    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    def test_a_file_cut_short_anywhere_is_refused(self, tmp_path: Path, save: Callable[..., None]) -> None:
        path = saved(tmp_path, save)
        whole = path.read_bytes()
        for length in range(0, len(whole), 41):
            path.write_bytes(whole[:length])
            assert_refused(lambda: read_archive(path), "damaged")

    @pytest.mark.long
    def test_of_mutated_files_each_is_refused_or_right(self, tmp_path: Path) -> None:
        path = saved(tmp_path)
        whole, expected = path.read_bytes(), everything(read_archive(shutil.copy(path, tmp_path / "whole.npz")))
        draw = np.random.default_rng(SEED + 1)
        outcomes = []
        with unchecked_types():
            for _ in range(500):
                mutated = bytearray(whole)
                for place in draw.integers(0, len(whole), draw.integers(1, 4)):
                    mutated[place] = draw.integers(256)
                path.write_bytes(mutated)
                outcomes.append(outcome(path, expected))
        assert set(outcomes) == {"refused", "right"}

    @pytest.mark.long
    def test_of_mutated_headers_with_right_checksums_each_is_refused_or_right(self, tmp_path: Path) -> None:
        path = saved(tmp_path)
        expected = everything(read_archive(shutil.copy(path, tmp_path / "whole.npz")))
        with zipfile.ZipFile(path) as archive:
            arrays = {name: archive.read(name) for name in archive.namelist()}
        draw = np.random.default_rng(SEED + 3)
        marks = b"()[]{}'\",:-0129<>|OUSifu \\\n\0\xff"
        outcomes = []
        with unchecked_types(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's, of headers as Python 2 wrote them
            for _ in range(400):
                name = list(arrays)[draw.integers(len(arrays))]
                mutated = bytearray(arrays[name])
                for place in draw.integers(6, 80, draw.integers(1, 4)):
                    mutated[place] = marks[draw.integers(len(marks))]
                with zipfile.ZipFile(path, "w") as archive:
                    for each, data in (arrays | {name: bytes(mutated)}).items():
                        archive.writestr(each, data)
                outcomes.append(outcome(path, expected))
        # A header may say other numbers that fit the file; it must not end otherwise.
        assert set(outcomes) <= {"refused", "right", "other numbers"}
        assert outcomes.count("refused") > 200


def outcome(path: Path, expected: dict[str, Any]) -> str:
    """What came of reading it: "refused" with an explanation, "right", or something that must not be."""
    try:
        found = read_archive(path)
    except ValueError as error:
        return "refused" if str(error).startswith("Expected ") else f"unexplained: {error}"
    return "right" if everything(found) == expected else "other numbers"


def everything(archive: Archive) -> dict[str, Any]:
    """All that an archive holds, in lists."""
    spacing = None if archive.spacing_mm is None else archive.spacing_mm.tolist()
    held = {"patches": archive.patches().tolist(), "ratings": archive.ratings.tolist(), "spacing_mm": spacing}
    return {**held, "patients": archive.patients.tolist(), **{name: each.tolist() for name, each in archive.columns.items()}}


class TestWriting:
    @pytest.mark.parametrize(
        ("changed", "words"),
        [
            ({"ratings": [[0]] * N}, "every row"),
            ({"ratings": [[1], [1, 2], [1], [1], [1], [1]]}, "`ratings`.*different lengths"),
            ({"patches": np.full((N, 2, 2), np.nan)}, "finite"),
            ({"columns": {"patches": np.arange(N)}}, r"\['patches'\]"),
            ({"columns": {"age": [1, "a", None, 2, 3, 4]}}, "`age`.*object"),
        ],
    )
    def test_what_could_not_be_read_is_not_written(self, tmp_path: Path, changed: dict[str, Any], words: str) -> None:
        path = tmp_path / "a.npz"
        path.write_bytes(b"an older file")
        assert_refused(lambda: write_archive(path, **{**content(), **changed}), words)
        assert [each.name for each in tmp_path.iterdir()] == ["a.npz"]
        assert path.read_bytes() == b"an older file"
        assert_refused(lambda: write_archive(tmp_path / "none" / "a.npz", **content()), "none")
        assert_refused(lambda: write_archive(tmp_path, **content()), "path of a file")


def test_a_stored_array_is_mapped_where_it_stands(tmp_path: Path) -> None:
    file = open_npz(saved(tmp_path))
    mapped = file.map("patches")
    assert isinstance(mapped, np.memmap)
    np.testing.assert_array_equal(mapped, file.read("patches"))
