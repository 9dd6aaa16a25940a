"""Contour volumes: against the outlines themselves, and kept on disk."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from members import SEED, assert_refused

from rightloss.lidc import binary_set
from rightloss.lidc import volumes as module
from rightloss.lidc.readings import annotations, nodules, shipped_outlines
from rightloss.lidc.volumes import contour_volumes


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RIGHTLOSS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def chosen(count: int) -> list[int]:
    return np.random.default_rng(SEED).choice(2651, count, replace=False).tolist()


@pytest.mark.long
def test_a_voxel_is_the_share_of_readers_who_drew_it_inside() -> None:
    wanted = chosen(6)
    frame, readings = nodules(), annotations()
    found = contour_volumes(wanted, size=48)
    for row, nodule in enumerate(wanted):
        one = frame.iloc[nodule]
        own = np.flatnonzero(readings["nodule"] == nodule)
        generator = np.random.default_rng(nodule)
        for z, y, x in generator.integers(14, 34, (80, 3)):
            inside = [_drawn_inside(int(reading), one, np.array([z, y, x]) - 23.5) for reading in own]
            assert found[row, z, y, x].item() == pytest.approx(np.mean(inside), abs=1e-3)


def _drawn_inside(reading: int, nodule: Any, offset: np.ndarray) -> bool:
    """Whether the pixel and slice nearest to a point were drawn inside, by the crossing numbers of each outline."""
    scan = int(np.flatnonzero(module.scan_table()["scan"] == nodule["scan"])[0])
    slice_z = shipped_outlines().slice_z_of(scan).astype(float)
    k = int(np.abs(slice_z - (nodule["z"] + offset[0])).argmin())
    row, column = (round(nodule[name] + o / nodule["pixel_spacing"]) for name, o in (("y", offset[1]), ("x", offset[2])))
    inside = False
    for outline in sorted(shipped_outlines().outlines_of(reading), key=lambda outline: not outline.inclusion):
        if outline.slice_index == k:
            hit, border = _winding(outline.points, column, row)
            inside = (inside or (hit and not border)) if outline.inclusion else inside and not (hit or border)
    return inside


def _winding(points: np.ndarray, column: int, row: int) -> tuple[bool, bool]:
    """Even-odd rule with a ray a little off the pixel's centre, and whether the pixel is the outline's own."""
    inside, previous = False, points[-1]
    for point in points:
        (x1, y1), (x2, y2) = previous, point
        if (y1 > row) != (y2 > row) and column < (x2 - x1) * (row - y1) / (y2 - y1) + x1:
            inside = not inside
        previous = point
    return inside, bool((points == [column, row]).all(1).any())


def test_the_centre_of_mass_is_the_centre_of_the_box() -> None:
    """Up to sampling at points: half a millimetre for a small nodule, much less on average."""
    axis, found = np.arange(64) - 31.5, []
    for nodule in binary_set().nodules.tolist()[::5]:
        votes = module.contour_votes(nodule).astype(float)
        found.append([votes.sum(others) @ axis / votes.sum() for others in ((1, 2), (0, 2), (0, 1))])
    centres = np.array(found)
    assert np.quantile(np.abs(centres), 0.95) < 0.5
    assert (np.abs(centres.mean(0)) < 4 * centres.std(0) / math.sqrt(len(centres))).all()


def test_a_larger_box_holds_the_smaller_one() -> None:
    wanted = chosen(5)
    torch.testing.assert_close(contour_volumes(wanted, 64)[:, 16:48, 16:48, 16:48], contour_volumes(wanted, 32), rtol=0, atol=0)


@pytest.fixture
def few_nodules(monkeypatch: pytest.MonkeyPatch) -> int:
    """Twelve instead of 2651, of which one is already more than few."""
    monkeypatch.setattr(module, "NUM_NODULES", 12)
    monkeypatch.setattr(module, "FEW", 0)
    return 12


def test_a_few_are_drawn_alone_and_not_kept(own_cache: Path) -> None:
    seen: list[tuple[int, int]] = []
    contour_volumes([3, 1, 7], progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert not own_cache.exists()


@pytest.mark.long
def test_many_are_drawn_once_for_all(own_cache: Path, few_nodules: int, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = torch.cat([contour_volumes([nodule]) for nodule in (3, 1, 7, 3)])
    seen: list[tuple[int, int]] = []
    (own_cache / next(own_cache.iterdir()).name).unlink()
    first = contour_volumes([3, 1], progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (few_nodules, few_nodules)
    torch.testing.assert_close(first, alone[:2], rtol=0, atol=0)
    monkeypatch.setattr(module, "contour_votes", None)
    torch.testing.assert_close(contour_volumes([3, 1, 7, 3]), alone, rtol=0, atol=0)
    assert len(list(own_cache.iterdir())) == 1


def garbled(data: bytes) -> bytes:
    """Noise in the middle of what is compressed."""
    noise = np.random.default_rng(SEED).bytes(200)
    return data[:300] + noise + data[500:]


@pytest.mark.long
@pytest.mark.parametrize("damage", [lambda data: data[:100], garbled])
def test_a_damaged_cache_is_drawn_again(own_cache: Path, few_nodules: int, damage: Callable[[bytes], bytes]) -> None:
    expected = contour_volumes([5, 6])
    (file,) = own_cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    torch.testing.assert_close(contour_volumes([5, 6]), expected, rtol=0, atol=0)
    assert file.read_bytes() == whole


def test_an_interruption_leaves_nothing_behind(own_cache: Path, few_nodules: int) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        contour_volumes([5, 6], progress=stop)
    assert not own_cache.exists()


def test_a_folder_that_cannot_be_written_to_is_told_of(own_cache: Path, few_nodules: int) -> None:
    own_cache.write_text("a file in its place")
    with pytest.warns(UserWarning, match="could not be kept .* set RIGHTLOSS_CACHE"):
        found = contour_volumes([5])
    assert found.any()


def test_no_nodules_are_an_empty_batch() -> None:
    assert contour_volumes(np.zeros(0, int)).shape == (0, 64, 64, 64)


@pytest.mark.parametrize(
    ("wanted", "size", "words"),
    [
        *((wanted, 64, "numbers of nodules, 0 to 2650") for wanted in ([2651], [-1], [0.5])),
        *(([0], size, "`size` to be an int in 1..512") for size in (0, 1000)),
    ],
)
def test_bad_input_is_refused(wanted: Any, size: Any, words: str) -> None:
    assert_refused(lambda: contour_volumes(wanted, size), words)
