"""Cubes cut from scans, against the volumes that the scans were written from, known at every place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dicom_series import Scan, Values, ramp, write_scan
from members import assert_refused, generator
from numpy.typing import NDArray
from scipy.interpolate import RegularGridInterpolator

from rightloss.lidc import contour_volumes
from rightloss.lidc.ct.series import Series, cut_patch, read_series
from rightloss.lidc.readings import nodules, reading_table, scan_positions, shipped_outlines
from rightloss.lidc.volumes import mask_of

COS, SIN = np.cos(0.3), np.sin(0.3)
TILTED = (1.0, 0.0, 0.0, 0.0, COS, SIN)  # rows rise towards the back
SCAN = Scan()
SCANS = {
    "upright": SCAN,
    "isotropic": replace(SCAN, spacing=(1.0, 1.0), step=(0.0, 0.0, 1.0)),
    "stacked downwards": replace(SCAN, step=(0.0, 0.0, -1.25)),
    "face down": replace(SCAN, orientation=(-1.0, 0.0, 0.0, 0.0, -1.0, 0.0)),
    "feet first": replace(SCAN, orientation=(1.0, 0.0, 0.0, 0.0, -1.0, 0.0)),
    "oblique": replace(SCAN, orientation=TILTED, step=(0.0, -1.25 * SIN, 1.25 * COS)),
    "tilted gantry": replace(SCAN, orientation=TILTED),
    "thick slices": replace(SCAN, slices=12, step=(0.0, 0.0, 3.0)),
}
each_scan = pytest.mark.parametrize("name", SCANS)


def read(scan: Scan, values: Values, folder: Path, leave_out: tuple[int, ...] = ()) -> Series:
    return read_series(list(write_scan(folder, scan, values, leave_out).values()))


def upwards(scan: Scan) -> NDArray[np.float64]:
    normal = np.cross(*np.array(scan.orientation).reshape(2, 3))
    return normal * np.sign(normal[2])


def voxel_places(scan: Scan, centre: NDArray[np.float64], size: int, spacing: float = 1.0) -> NDArray[np.float64]:
    """Where the contract puts the voxels `(size, size, size, 3)`."""
    right, down = np.array(scan.orientation).reshape(2, 3)
    away = (np.arange(size) - (size - 1) / 2) * spacing
    k, j, i = np.meshgrid(away, away, away, indexing="ij")
    return centre + k[..., None] * upwards(scan) + j[..., None] * down + i[..., None] * right


@pytest.mark.long
@each_scan
def test_an_affine_volume_is_cut_to_rounding(name: str, tmp_path: Path) -> None:
    scan = SCANS[name]
    size, spacing = {"upright": (12, 1.0), "oblique": (9, 1.0)}.get(name, (7, 1.6))
    x, y, index = 22.3, 18.6, scan.slices * 0.52
    centre = scan.place(x, y, index)
    patch = cut_patch(read(scan, ramp, tmp_path), x, y, scan.origin_of(index)[2], size, spacing)
    expected = ramp(voxel_places(scan, centre, size, spacing))
    assert patch.hu.dtype == np.int16
    assert (patch.outside, patch.problems) == (0.0, ())
    # Stored values are rounded, and so is the patch.
    assert np.abs(patch.hu - expected).max() <= 1.0 + 1e-6


def noise(shape: tuple[int, ...]) -> NDArray[np.int16]:
    return torch.randint(-1000, 1000, shape, generator=generator(3)).numpy().astype(np.int16)


def series_of(hu: NDArray[Any], z: NDArray[np.float64], spacing: tuple[float, float] = (0.8, 0.7)) -> Series:
    return Series("1.2.3", hu, z, z, np.zeros((len(z), 2)), spacing, ())


def test_a_random_volume_with_uneven_slices_agrees_with_scipys_interpolator() -> None:
    hu = noise((30, 40, 44))
    z = np.cumsum(1 + 0.4 * torch.rand(30, generator=generator(4)).double().numpy())
    series = series_of(hu, z)
    rows, columns = 0.8 * np.arange(40), 0.7 * np.arange(44)
    reference = RegularGridInterpolator((z, rows, columns), hu.astype(float))
    x, y = 21.3, 19.1
    away = np.arange(14) - 6.5
    grid = np.meshgrid(z[15] + 0.2 + away, 0.8 * y + away, 0.7 * x + away, indexing="ij")
    expected = reference(np.stack(grid, -1))
    found = cut_patch(series, x, y, z[15] + 0.2, 14)
    assert np.abs(found.hu - expected).max() <= 0.5 + 1e-6


def test_beyond_the_scan_there_is_air_and_its_share_is_told() -> None:
    series = series_of(np.full((9, 8, 7), 50, np.int16), np.arange(9.0), (1.0, 1.0))
    patch = cut_patch(series, 1, 2, 6.0, 9)
    # Voxels reach from −4 to 4 around z = 6, row 2, column 1; the scan from 0 to 8, 7 and 6, and half a voxel more.
    expected = np.full((9, 9, 9), -1000)
    expected[:7, 2:, 3:] = 50
    np.testing.assert_array_equal(patch.hu, expected)
    assert patch.outside == pytest.approx(1 - 7 * 7 * 6 / 9**3)


def test_the_outermost_half_voxel_belongs_to_the_scan() -> None:
    hu = noise((9, 9, 9))
    series = series_of(hu, np.arange(9.0), (1.0, 1.0))
    patch = cut_patch(series, 4, 4, 8.0, 2, 0.9)  # z = 7.55 and 8.45
    assert patch.outside == 0
    assert cut_patch(series, 4, 4, 8.0, 2, 1.1).outside == 0.5  # z = 8.55
    np.testing.assert_array_equal(cut_patch(series, 8.4, 4, 4.0, 1).hu, hu[4:5, 4:5, 8:9])


def test_float_volumes_are_rounded_and_what_int16_cannot_hold_is_clipped() -> None:
    hu = np.full((5, 5, 5), 12.6, np.float32)
    hu[:, :, 3:] = 1e6
    patch = cut_patch(series_of(hu, np.arange(5.0), (1.0, 1.0)), 2, 2, 2.0, 3)
    assert patch.hu[1, 1].tolist() == [13, 13, 32767]


def outlined_series(nodule: int, margin: int = 60) -> tuple[Series, float, float]:
    """What a scanner would see if a nodule were 1000 HU times the share of readers who drew it, and all else 0.

    On the scan's own slices and pixels, those around the nodule; and its column and row there.
    """
    row = nodules().iloc[nodule]
    z = scan_positions()[row.series_uid].astype(float)
    left, top = int(row.x) - margin, int(row.y) - margin
    hu = np.zeros((len(z), 512, 512), np.int16)
    for reading in np.flatnonzero(reading_table()["nodule"] == nodule):
        mask = mask_of(shipped_outlines().outlines_of(int(reading)))
        hu[tuple(slice(a, a + length) for a, length in zip(mask.first, mask.inside.shape, strict=True))] += (
            mask.inside * np.int16(1000 // row.readers)
        )
    cropped = hu[:, top : top + 2 * margin, left : left + 2 * margin]
    return series_of(cropped, z, (row.pixel_spacing,) * 2), row.x - left, row.y - top


def orientations(cube: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """All 48 ways to turn and mirror a cube, itself first."""
    flips = [axes for count in range(4) for axes in combinations(range(3), count)]
    return [np.flip(cube.transpose(order), axes) for order in permutations(range(3)) for axes in flips]


@pytest.mark.long
@pytest.mark.parametrize("nodule", [567, 1185])  # of 27 and 13 mm, on slices of 2.5 and 1.8 mm
def test_ct_lies_where_the_readers_outlines_do(nodule: int) -> None:
    series, x, y = outlined_series(nodule)
    patch = cut_patch(series, x, y, nodules().iloc[nodule].z)
    seen = np.where(patch.hu < 0, 0, patch.hu) / 1000.0
    drawn = contour_volumes([nodule])[0].double().numpy()
    for axis in range(3):
        rest = tuple(other for other in range(3) if other != axis)
        centres = [float(np.average(np.arange(64), weights=cube.sum(rest))) for cube in (seen, drawn)]
        assert abs(centres[0] - centres[1]) < 0.5
    assert seen.sum() == pytest.approx(drawn.sum(), rel=0.02)
    # They differ at the edges: linear between slices here, a share of each voxel there.
    assert np.minimum(seen, drawn).sum() / np.maximum(seen, drawn).sum() > 0.8
    agreement = [np.corrcoef(cube.ravel(), drawn.ravel())[0, 1] for cube in orientations(seen)]
    assert agreement[0] > 0.95
    assert agreement[0] > max(agreement[1:]) + 0.02


class TestMissingSlices:
    def test_one_is_interpolated_and_named(self, tmp_path: Path) -> None:
        series = read(SCAN, ramp, tmp_path, leave_out=(12,))
        centre = SCAN.place(20.0, 20.0, 9.5)
        patch = cut_patch(series, 20.0, 20.0, centre[2], 10)
        assert np.abs(patch.hu - ramp(voxel_places(SCAN, centre, 10))).max() <= 1.0 + 1e-6
        (problem,) = patch.problems
        assert problem == f"one slice interpolated between {SCAN.origin_of(11)[2]:g} and {SCAN.origin_of(13)[2]:g} mm"

    def test_more_are_not(self, tmp_path: Path) -> None:
        series = read(SCAN, ramp, tmp_path, leave_out=(12, 13))
        for index in (9, 16):
            assert_refused(partial(cut_patch, series, 20.0, 20.0, SCAN.origin_of(index)[2], 10), "one slice in a row")

    @pytest.mark.parametrize(
        ("index", "diameter", "refused"),
        [(12, 0.0, True), (11, 0.0, True), (10.9, 0.0, False), (14, 4.9, False), (14, 5.1, True), (10, 5.1, True)],
    )
    def test_a_nodule_is_not_cut_without_its_own_slices(
        self, index: float, diameter: float, refused: bool, tmp_path: Path
    ) -> None:
        """Slice 12 of 1.25 mm is missing: within the nodule's radius of its centre, or as near as the next slice."""
        series = read(SCAN, ramp, tmp_path, leave_out=(12,))
        cut = partial(cut_patch, series, 20.0, 20.0, SCAN.origin_of(index)[2], 10, 1.0, diameter)
        if refused:
            assert_refused(cut, f"every slice through the nodule, but 1 of them, the first at z = {SCAN.origin_of(12)[2]:g} mm")
        else:
            assert len(cut().problems) == 1

    @pytest.mark.parametrize(
        ("end", "lost", "beyond", "refused"),
        [
            ("above", (9, 10, 11), 0.6, True),
            ("above", (9, 10, 11), -0.4, False),
            ("below", (0, 1, 2), 0.6, True),
            ("below", (0, 1, 2), -0.4, False),
        ],
    )
    def test_slices_lost_at_an_end_are_missed_by_the_first_voxel_beyond_it(
        self, end: str, lost: tuple[int, ...], beyond: float, refused: bool, tmp_path: Path
    ) -> None:
        """The outermost voxel lies `beyond` mm outside the last slice on disk; slices are 3 mm apart."""
        thick = SCANS["thick slices"]
        files = write_scan(tmp_path, thick, ramp, leave_out=lost)
        every = [thick.origin_of(index)[2] for index in range(12)]
        series = read_series(list(files.values()), every)
        z = series.z[-1] - 4.5 + beyond if end == "above" else series.z[0] + 4.5 - beyond
        cut = partial(cut_patch, series, 20.0, 20.0, z, 10)
        if refused:
            assert_refused(cut, f"3 are missing at the scan's end, beyond z = {series.z[-1 if end == 'above' else 0]:g} mm")
        else:
            assert cut().problems == ()

    def test_elsewhere_they_do_not_matter(self, tmp_path: Path) -> None:
        series = read(SCAN, ramp, tmp_path, leave_out=(15, 16, 20))
        assert len(series.problems) == 2
        assert cut_patch(series, 20.0, 20.0, SCAN.origin_of(8)[2], 10).problems == ()


def scan_of_zeros() -> Series:
    return series_of(np.zeros((9, 8, 7), np.int16), np.arange(9.0), (1.0, 1.0))


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "left of the image": (lambda: cut_patch(scan_of_zeros(), -1, 3, 4.0), "a centre within the scan"),
    "below the image": (lambda: cut_patch(scan_of_zeros(), 3, 7.6, 4.0), "a centre within the scan"),
    "above the scan": (lambda: cut_patch(scan_of_zeros(), 3, 3, 8.1), "z from 0 to 8 mm"),
    "no number": (lambda: cut_patch(scan_of_zeros(), float("nan"), 3, 4.0), "x = nan"),
    "a huge size": (lambda: cut_patch(scan_of_zeros(), 3, 3, 4.0, 5000), "`size`"),
    "a diameter of less than nothing": (lambda: cut_patch(scan_of_zeros(), 3, 3, 4.0, 8, 1.0, -1.0), "`diameter`"),
    "no spacing": (lambda: cut_patch(scan_of_zeros(), 3, 3, 4.0, 8, 0.0), "`spacing`"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_what_came_and_what_to_do(what: str) -> None:
    assert_refused(*BAD[what])
