"""What an outline encloses: against Pick's theorem, matplotlib's and hand-made shapes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from members import SEED

from rightloss.lidc.build import diameter, measure
from rightloss.lidc.readings import Outline, encode_steps, outline_table, shipped_outlines
from rightloss.lidc.volumes import connected, mask_of

SQUARE = np.array(
    [(x, 0) for x in range(5)] + [(4, y) for y in range(1, 5)] + [(x, 4) for x in range(3, -1, -1)] + [(0, 3), (0, 2), (0, 1)]
)


def some_readings(count: int = 40) -> list[list[Outline]]:
    chosen = np.random.default_rng(SEED).choice(6859, count, replace=False)
    return [shipped_outlines().outlines_of(int(row)) for row in chosen]


def simple(points: np.ndarray) -> bool:
    """Eight-connected, without a pixel passed twice: a polygon to which Pick's theorem applies."""
    points = points[:-1] if (points[0] == points[-1]).all() else points
    steps = np.abs(np.roll(points, -1, axis=0) - points).max(1)
    if len(points) < 4 or (steps != 1).any() or len(np.unique(points, axis=0)) < len(points):
        return False
    # Two diagonal steps that cross each other have their middles in one place.
    middles = points + np.roll(points, -1, axis=0)
    return len(np.unique(middles, axis=0)) == len(middles)


def area(points: np.ndarray) -> float:
    """Return the area of the polygon through the pixels' centres, by Gauss's formula."""
    x, y = points.astype(float).T
    return abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


def circle(radius: float, centre: int = 40) -> np.ndarray:
    angles = np.linspace(0, 2 * np.pi, 800, endpoint=False)
    points = np.rint(centre + radius * np.stack([np.cos(angles), np.sin(angles)], 1)).astype(np.int64)
    return points[(np.roll(points, 1, axis=0) != points).any(1)]


@pytest.mark.long
def test_pixels_inside_are_as_many_as_picks_theorem_says() -> None:
    outlines = [outline for reading in some_readings() for outline in reading]
    checked = [outline.points for outline in outlines if simple(outline.points)]
    assert len(checked) > len(outlines) / 2
    for points in checked:
        border = len(np.unique(points, axis=0))
        assert mask_of([Outline(points, 0)]).inside.sum() == area(points) - border / 2 + 1


def test_the_outline_itself_is_outside() -> None:
    mask = mask_of([Outline(SQUARE + 7, 3)])
    assert mask.first == (3, 7, 7)
    expected = np.zeros((5, 5), bool)
    expected[1:4, 1:4] = True
    np.testing.assert_array_equal(mask.inside[0], expected)


def test_a_hole_is_cut_out_with_its_outline() -> None:
    around = Outline(circle(20), 0)
    hole = Outline(circle(6), 0, inclusion=False)
    both, filled = mask_of([hole, around]), mask_of([around])
    assert not both.inside[0, 40 - both.first[1], 40 - both.first[2]]
    assert filled.inside.sum() - both.inside.sum() == mask_of([Outline(hole.points, 0)]).inside.sum() + len(hole.points)


def test_two_outlines_in_a_slice_are_one_mask_and_overlap_counts_once() -> None:
    apart = [Outline(SQUARE, 0), Outline(SQUARE + np.array([20, 0]), 0)]
    assert mask_of(apart).inside.sum() == 18
    assert mask_of([Outline(SQUARE, 0), Outline(SQUARE, 0)]).inside.sum() == 9
    assert mask_of([Outline(SQUARE, 0), Outline(SQUARE, 2)]).inside.sum((1, 2)).tolist() == [9, 0, 9]


@pytest.mark.parametrize("points", [[(3, 3)], [(3, 3), (3, 3)], [(3, 3), (4, 4)], [(3, 3), (4, 3), (5, 3), (4, 3)]])
def test_a_point_or_a_line_encloses_nothing(points: list[tuple[int, int]]) -> None:
    assert not mask_of([Outline(np.array(points), 0)]).inside.any()


def test_the_way_round_and_the_start_do_not_matter() -> None:
    for reading in some_readings(10):
        points = connected(reading[0].points)
        expected = mask_of([Outline(points, 0)]).inside
        np.testing.assert_array_equal(mask_of([Outline(points[::-1].copy(), 0)]).inside, expected)
        np.testing.assert_array_equal(mask_of([Outline(np.roll(points, 5, axis=0), 0)]).inside, expected)


def test_jumps_are_bridged_and_nothing_else_is_changed() -> None:
    corners = SQUARE[[0, 4, 8, 12]]
    np.testing.assert_array_equal(connected(corners), SQUARE)
    np.testing.assert_array_equal(connected(np.vstack([SQUARE, SQUARE[:1]])), SQUARE)


def test_the_diameter_of_a_square() -> None:
    assert diameter(SQUARE) == math.hypot(4, 4)


def test_a_ball_has_the_measures_of_a_ball() -> None:
    radius, spacing, thickness = 30, 0.5, 0.5
    heights = range(-29, 30)
    outlines = [Outline(circle(math.sqrt(radius**2 - h**2)), 40 + h) for h in heights]
    found = measure(outlines, pixel_spacing=spacing, slice_spacing=thickness)
    inner = (radius - 0.5) * spacing  # the outline is the first pixel outside, about half a pixel beyond the edge
    # The first pixel beyond the edge is up to a pixel away on either side.
    assert 2 * radius * spacing <= found.diameter_mm <= 2 * (radius + math.sqrt(0.5)) * spacing
    assert found.volume_mm3 == pytest.approx(4 / 3 * math.pi * inner**3, rel=0.02)
    assert found.surface_mm2 == pytest.approx(4 * math.pi * inner**2, rel=0.02)
    assert (found.x, found.y, found.slice_index) == (40, 40, 40)


def test_outlines_come_back_from_their_table() -> None:
    readings = [[Outline(SQUARE, 2), Outline(circle(9), 3, inclusion=False)], [Outline(np.array([(400, 7)]), 0)]]
    table = outline_table(readings, [np.arange(5.0), np.array([-3.5, -1.25])])
    for row, reading in enumerate(readings):
        for found, expected in zip(table.outlines_of(row), reading, strict=True):
            np.testing.assert_array_equal(found.points, expected.points)
            assert (found.slice_index, found.inclusion) == (expected.slice_index, expected.inclusion)
    assert table.slice_z_of(1).tolist() == [-3.5, -1.25]


def test_a_step_that_does_not_fit_into_a_byte_is_refused() -> None:
    assert encode_steps(np.array([(0, 0), (7, -8)])).tolist() == [15 * 16]
    with pytest.raises(ValueError, match="at most 7 pixels, but got one of 8"):
        encode_steps(np.array([(0, 0), (8, 0)]))
