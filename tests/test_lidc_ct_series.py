"""Series read, against the synthetic volumes they were written from; and files made to break the reader."""

from __future__ import annotations

import os
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from dicom_series import SYNTAXES, Scan, dataset, ramp, write_scan, write_slice
from members import assert_refused, generator
from numpy.typing import NDArray
from pydicom import dcmread

from rightloss.lidc.ct.dicom_files import UnreadableSlice, find_series, read_hu, read_slice
from rightloss.lidc.ct.series import Series, read_series

OTHER = replace(Scan(), uid="1.2.826.0.1.3680043.8.498.2", slices=5, rows=8, columns=9)
SMALL = replace(OTHER, uid="1.2.826.0.1.3680043.8.498.3")


def volume_of(scan: Scan, indices: list[int] | None = None) -> NDArray[np.float64]:
    """What was written, before it was rounded to what the file can hold."""
    return np.stack([ramp(scan.places(index)) for index in (range(scan.slices) if indices is None else indices)])


def read_folder(folder: Path) -> Series:
    (files,) = find_series(folder).series.values()
    return read_series(files)


class TestReading:
    @pytest.mark.long
    @pytest.mark.parametrize(
        ("syntax", "bits", "signed"),
        [(syntax, (16, 12)[k % 2], signed) for k, syntax in enumerate(SYNTAXES) for signed in (False, True)],
    )
    def test_every_encoding_gives_the_volume_back(self, syntax: str, bits: int, signed: bool, tmp_path: Path) -> None:
        scan = replace(SMALL, syntax=syntax, bits=bits, signed=signed, intercept=0.0 if signed else -1024.0)
        files = write_scan(tmp_path, scan, ramp)
        assert dcmread(files[0]).file_meta.TransferSyntaxUID == SYNTAXES[syntax]
        assert volume_of(scan).min() < 0  # so that signs matter
        series = read_folder(tmp_path)
        assert series.hu.dtype == np.int16
        np.testing.assert_array_equal(series.hu, np.rint(volume_of(scan)))
        assert (series.uid, series.problems) == (scan.uid, ())

    def test_slices_are_in_order_of_position_whatever_their_names_and_numbers(self, tmp_path: Path) -> None:
        scan = Scan()
        files = write_scan(tmp_path, scan, ramp)
        names = [files[index].name for index in range(scan.slices)]
        numbers = [dcmread(files[index]).InstanceNumber for index in range(scan.slices)]
        assert names != sorted(names)
        assert numbers == sorted(numbers, reverse=True)
        series = read_folder(tmp_path)
        np.testing.assert_allclose(series.z, [scan.origin_of(index)[2] for index in range(scan.slices)])
        np.testing.assert_allclose(series.positions, series.z)
        np.testing.assert_array_equal(series.hu, np.rint(volume_of(scan)))
        assert series.pixel_spacing == scan.spacing
        assert not series.shifts.any()

    def test_z_ascends_also_where_the_normal_points_down(self, tmp_path: Path) -> None:
        scan = replace(SMALL, orientation=(1.0, 0.0, 0.0, 0.0, -1.0, 0.0), step=(0.0, 0.0, -2.0))
        write_scan(tmp_path, scan, ramp)
        series = read_folder(tmp_path)
        assert (np.diff(series.z) > 0).all()
        np.testing.assert_array_equal(series.hu, np.rint(volume_of(scan))[::-1])

    def test_slope_and_intercept_are_each_slices_own(self, tmp_path: Path) -> None:
        for index in range(SMALL.slices):
            own = replace(SMALL, slope=0.5 + 0.25 * index, intercept=-1000.5 + index)
            write_slice(tmp_path / f"{index}.dcm", own, index, ramp(own.places(index)))
        series = read_folder(tmp_path)
        assert series.hu.dtype == np.float32
        error = np.abs(series.hu - volume_of(SMALL)).max((1, 2))
        steps = 0.5 + 0.25 * np.arange(SMALL.slices)
        assert (error <= steps / 2 + 1e-3).all()  # half of what one step of the stored value is worth

    @pytest.mark.parametrize(
        ("padding", "stored", "hu"),
        [
            (-2000, -2000, -1000),
            (-2000, -1999, -1999),
            (63536, -2000, -1000),
            (0, 0, 0),
        ],
    )
    def test_padding_outside_the_range_of_ct_is_air(self, padding: int, stored: int, hu: int, tmp_path: Path) -> None:
        scan = replace(SMALL, signed=True, intercept=0.0)
        image = np.full((scan.rows, scan.columns), 40.0)
        image[2, 3] = stored
        for index in range(2):
            made = dataset(scan, index, image)
            made.add_new("PixelPaddingValue", "US" if padding > 32767 else "SS", padding)
            made.save_as(tmp_path / f"{index}", enforce_file_format=True)
        expected = np.full((scan.rows, scan.columns), 40)
        expected[2, 3] = hu
        np.testing.assert_array_equal(read_folder(tmp_path).hu[0], expected)

    def test_bits_above_those_stored_are_not_looked_at(self, tmp_path: Path) -> None:
        scan = replace(SMALL, bits=12)
        for index in range(scan.slices):
            made = dataset(scan, index, ramp(scan.places(index)))
            made.PixelData = (np.frombuffer(made.PixelData, "<u2") | 0xA000).tobytes()
            made.save_as(tmp_path / f"{index}", enforce_file_format=True)
        np.testing.assert_array_equal(read_folder(tmp_path).hu, np.rint(volume_of(scan)))


class TestFlaws:
    @pytest.mark.parametrize("name", ["0-first-by-name.dcm", "z-last-by-name.dcm"])
    def test_of_slices_at_one_place_the_first_acquired_is_kept_and_one_that_differs_named(
        self, name: str, tmp_path: Path
    ) -> None:
        files = write_scan(tmp_path, SMALL, ramp)
        write_slice(tmp_path / name, SMALL, 2, ramp(SMALL.places(2)) + 7, number=2)
        write_slice(tmp_path / "the same again.dcm", SMALL, 3, ramp(SMALL.places(3)), number=2)
        series = read_folder(tmp_path)
        np.testing.assert_array_equal(series.hu, np.rint(volume_of(SMALL)))
        (problem,) = series.problems
        assert name in problem
        assert f"{files[2].name}, which is kept" in problem

    def test_missing_slices_are_named_by_their_neighbours(self, tmp_path: Path) -> None:
        scan = replace(SMALL, slices=14)
        files = write_scan(tmp_path, scan, ramp, leave_out=(3, 7, 8, 9))
        series = read_folder(tmp_path)
        one, three = series.problems
        assert one.startswith("1 slice missing")
        assert three.startswith("3 slices missing")
        for problem, (below, above) in ((one, (2, 4)), (three, (6, 10))):
            assert all(files[k].name in problem and f"z = {scan.origin_of(k)[2]:g} mm" in problem for k in (below, above))
        np.testing.assert_array_equal(series.hu, np.rint(volume_of(scan, [0, 1, 2, 4, 5, 6, 10, 11, 12, 13])))

    def test_what_is_missing_is_told_from_the_slices_that_the_scan_has(self, tmp_path: Path) -> None:
        scan = replace(SMALL, slices=16)
        z = np.array([scan.origin_of(index)[2] for index in range(16)])
        files = write_scan(tmp_path, scan, ramp, leave_out=(0, 1, *range(3, 14, 2)))
        assert read_series(list(files.values())).problems == ()  # a scan of half the slices looks like this
        series = read_series(list(files.values()), z.astype(np.float32))
        np.testing.assert_allclose(series.missing, z[[0, 1, *range(3, 14, 2)]], atol=1e-4)
        assert series.problems[0] == f"2 slices missing below {files[2].name} (z = {z[2]:g} mm), the first"
        assert series.problems[1].startswith(f"1 slice missing between {files[2].name} (z = {z[2]:g} mm) and {files[4].name}")
        assert series.problems[5:] == ("2 slices missing in 2 further places",)

    def test_a_gap_of_the_scans_own_is_none(self, tmp_path: Path) -> None:
        files = write_scan(tmp_path, replace(SMALL, slices=14), ramp, leave_out=(7, 8))
        unaware = read_series(list(files.values()))
        np.testing.assert_allclose(unaware.missing, [SMALL.origin_of(index)[2] for index in (7, 8)])
        series = read_series(list(files.values()), unaware.z)
        assert (len(series.missing), series.problems) == (0, ())

    @pytest.mark.parametrize(
        ("change", "word"),
        [
            ({"rows": 20}, "size"),
            ({"orientation": (1.0, 0.0, 0.0, 0.0, 0.0, -1.0)}, "orientation"),
            ({"spacing": (0.5, 0.5)}, "pixel spacing"),
        ],
    )
    def test_a_localiser_is_left_out_and_named(self, change: dict[str, object], word: str, tmp_path: Path) -> None:
        write_scan(tmp_path, SMALL, ramp)
        scout = replace(SMALL, **change)  # type: ignore[arg-type]
        write_slice(tmp_path / "scout.dcm", scout, 1, ramp(scout.places(1)), number=9)
        series = read_folder(tmp_path)
        np.testing.assert_array_equal(series.hu, np.rint(volume_of(SMALL)))
        (problem,) = series.problems
        assert problem == f"scout.dcm left out: of another {word} than most slices"

    @pytest.mark.parametrize("syntax", ["explicit", "JPEG lossless"])
    def test_files_truncated_or_foreign_or_without_a_slope_are_left_out_and_named(self, syntax: str, tmp_path: Path) -> None:
        scan = replace(SMALL, syntax=syntax, slices=6)
        files = write_scan(tmp_path, scan, ramp)
        files[3].write_bytes(files[3].read_bytes()[:-40])
        (tmp_path / "readme.txt").write_text("not an image")
        without = dcmread(files[5])
        del without.RescaleSlope
        without.save_as(files[5])
        series = read_series([*files.values(), tmp_path / "readme.txt"])
        np.testing.assert_array_equal(series.hu, np.rint(volume_of(scan, [0, 1, 2, 4])))
        assert f"{files[5].name} left out: its header has no RescaleSlope" in series.problems
        assert "readme.txt left out: it is not a DICOM file" in series.problems
        assert any(problem.startswith(f"{files[3].name} left out") for problem in series.problems)
        assert any("1 slice missing" in problem for problem in series.problems)

    def test_a_file_that_the_disk_does_not_give_is_not_taken_for_a_bad_one(self, tmp_path: Path) -> None:
        files = list(write_scan(tmp_path, SMALL, ramp).values())
        files[1].unlink()
        with pytest.raises(OSError, match="No such file"):
            read_series(files)

    def test_a_name_that_is_no_utf8_can_be_printed(self, tmp_path: Path) -> None:
        files = write_scan(tmp_path, SMALL, ramp)
        odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/double\xff.dcm"))
        write_slice(odd, SMALL, 2, ramp(SMALL.places(2)) + 7, number=2)
        (problem,) = read_series([*files.values(), odd]).problems
        assert "double\\udcff.dcm left out" in problem.encode().decode()

    def test_what_is_no_volume_is_refused(self, tmp_path: Path) -> None:
        both = [*write_scan(tmp_path / "a", OTHER, ramp).values(), *write_scan(tmp_path / "b", SMALL, ramp).values()]
        assert_refused(lambda: read_series(both), "files of one series")
        assert_refused(lambda: read_series(both[:1]), "at least 2 slices")
        assert_refused(lambda: read_series([]), "at least 2 slices")
        coronal = replace(SMALL, orientation=(1.0, 0.0, 0.0, 0.0, 0.0, -1.0), step=(0.0, 2.0, 0.0))
        files = list(write_scan(tmp_path / "c", coronal, ramp).values())
        assert_refused(lambda: read_series(files), "transverse")


def outcome(path: Path) -> str:
    """ "slice", or why it is none; anything else that happens is the test's to fail on."""
    try:
        header = read_slice(path)
        hu = read_hu(header)
    except UnreadableSlice:
        return "skipped"
    assert hu.shape == header.shape
    assert np.isfinite(hu).all()
    return "slice"


def outcome_and_memory(path: Path) -> tuple[str, int]:
    """The outcome, and the most bytes that were allocated for it."""
    outcome(path)  # imports
    tracemalloc.start()
    found = outcome(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return found, peak


def mutated(good: bytes, rng: torch.Generator) -> bytes:
    """Cut short; or bytes changed anywhere, or in the header; or a stretch replaced by another of another length."""

    def draw(low: int, high: int, count: int = 1) -> list[int]:
        return torch.randint(low, high, (count,), generator=rng).tolist()

    data, (kind,) = bytearray(good), draw(0, 4)
    if kind == 0:
        return good[: draw(0, len(good))[0]]
    if kind == 3:
        (at,), (length,) = draw(128, len(good)), draw(1, 40)
        data[at : at + length] = bytes(draw(0, 256, draw(0, 40)[0]))
        return bytes(data)
    end = len(good) if kind == 1 else min(900, len(good))
    (count,) = draw(1, 13)
    for at, value in zip(draw(128, end, count), draw(0, 256, count), strict=True):
        data[at] = value
    return bytes(data)


class TestHostileFiles:
    @pytest.mark.long
    @pytest.mark.parametrize("syntax", ["explicit", "RLE"])  # not in C++
    def test_mutated_files_end_in_a_slice_or_a_reported_skip(self, syntax: str, tmp_path: Path) -> None:
        rng, scan, path = generator(sum(map(ord, syntax))), replace(SMALL, syntax=syntax), tmp_path / "mutated.dcm"
        files = write_scan(tmp_path, scan, ramp)
        good, outcomes = files[2].read_bytes(), Counter[str]()
        for k in range(200):
            path.write_bytes(mutated(good, rng))
            found = find_series(tmp_path) if k % 25 == 0 else None
            outcomes[outcome(path)] += 1
            if found is not None:
                series = read_series(found.series[scan.uid])
                named = any("mutated.dcm" in problem for problem in series.problems)
                assert len(series.z) >= scan.slices
                assert named or path not in found.series[scan.uid] or outcome(path) == "slice"
        assert outcomes["slice"] > 0
        assert outcomes["skipped"] > outcomes["slice"] / 3

    @pytest.mark.parametrize(
        ("syntax", "rows", "columns"), [("explicit", 65535, 9), ("explicit", 0, 9), ("RLE", 4096, 4096), ("RLE", 65535, 65535)]
    )
    def test_a_size_that_is_not_the_images_allocates_nothing(
        self, syntax: str, rows: int, columns: int, tmp_path: Path
    ) -> None:
        path = tmp_path / "a.dcm"
        write_slice(path, replace(SMALL, syntax=syntax), 0, ramp(SMALL.places(0)))
        lying = dcmread(path)
        lying.Rows, lying.Columns = rows, columns
        lying.save_as(path)
        found, peak = outcome_and_memory(path)
        assert found == "skipped"
        # RLE is decoded into what the header says, and that is at most 4096².
        assert peak < (2 * 4096**2 * 2 + 2e6 if syntax == "RLE" else 2e6)

    def test_a_length_beyond_the_end_of_the_file_allocates_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "a.dcm"
        write_slice(path, replace(SMALL, syntax="implicit"), 0, ramp(SMALL.places(0)))
        data = path.read_bytes()
        at = data.index(b"\xe0\x7f\x10\x00") + 4
        path.write_bytes(data[:at] + (0xFFFF_FFF0).to_bytes(4, "little") + data[at + 4 :])
        found, peak = outcome_and_memory(path)
        assert (found, peak < 2e6) == ("slice", True)  # the pixels are all there; only their length is not
