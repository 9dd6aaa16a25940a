"""The montage: each patch's middle plane, in its place, under its title."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from members import assert_refused

from rightloss.lidc import montage


def shown(figure: Any) -> list[np.ndarray]:
    return [np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images]


def test_each_patch_is_shown_by_its_middle_plane() -> None:
    volumes = torch.zeros(5, 9, 11, 11)
    for row in range(5):
        volumes[row, 4] = row / 5
    figure = montage(volumes, [f"nodule {row}" for row in range(5)], columns=3)
    assert [plane.mean() for plane in shown(figure)] == pytest.approx([row / 5 for row in range(5)])
    assert [axes.get_title() for axes in figure.axes][:5] == [f"nodule {row}" for row in range(5)]
    assert len(figure.axes) == 6


def test_between_two_middle_planes_their_mean_is_shown() -> None:
    volumes = torch.zeros(1, 8, 6, 6)
    volumes[0, 3], volumes[0, 4] = 1, 0.5
    assert shown(montage(volumes))[0] == pytest.approx(np.full((6, 6), 0.75))


def test_slices_are_shown_as_they_are_around_their_middle() -> None:
    slices = np.zeros((2, 71, 71), np.float16)
    slices[:, 35, 35] = 1
    plane = shown(montage(slices, window_mm=41))[0]
    assert plane.shape == (41, 41)
    assert plane[20, 20] == 1


@pytest.mark.parametrize(
    ("images", "titles", "words"),
    [
        (torch.zeros(4, 4), None, r"got \(4, 4\)"),
        (torch.zeros(0, 4, 4, 4), None, r"got \(0, 4, 4, 4\)"),
        (torch.zeros(2, 4, 4), ["one"], "each of 2 patches, but got 1"),
    ],
)
def test_bad_input_is_refused(images: Any, titles: Any, words: str) -> None:
    assert_refused(lambda: montage(images, titles), words)
