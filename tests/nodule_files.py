"""A small nodule archive: discs on slices, larger and brighter for higher ratings."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rightloss.lidc import write_archive
from rightloss.study.config import Source
from rightloss.study.datasets import source_of

NODULES, SIDE = 120, 40


def small_archive(path: Path, columns: bool = True, seed: int = 0) -> Source:
    """120 slices of 40 × 40, three readers, 60 patients, every rating 24 times."""
    generator = np.random.default_rng(seed)
    rating = np.tile(np.arange(1, 6), NODULES // 5)
    y, x = np.mgrid[:SIDE, :SIDE] - SIDE / 2
    radius = 3 + rating + generator.normal(0, 0.7, NODULES)
    disc = x**2 + y**2 < radius[:, None, None] ** 2
    patches = np.where(disc, -100, -850) + generator.normal(0, 60, disc.shape)
    readers = np.clip(rating[:, None] + generator.choice([-1, 0, 0, 0, 1], size=(NODULES, 3)), 1, 5)
    readers[:, 0] = rating
    readers[:, 1] = rating
    write_archive(
        path,
        patches.astype(np.int16),
        readers,
        np.array([f"patient {number % 60}" for number in range(NODULES)]),
        spacing_mm=1.0,
        columns={"diameter_mm": 2 * radius, "texture": generator.integers(1, 6, NODULES)} if columns else None,
    )
    return source_of(str(path))
