"""Small tables on disk for tests of the commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd


def people(rows: int = 240, seed: int = 0, share: float = 0.5) -> pd.DataFrame:
    """Return a table with numbers, a category, missing cells, patients of two rows each, and the class "yes" or "no"."""
    rng = np.random.default_rng(seed)
    cancer = rng.permutation(np.arange(rows) < share * rows)
    frame = pd.DataFrame(
        {
            "patient": np.arange(rows) // 2,
            "age": np.round(rng.normal(60 + 8 * cancer, 8), 1),
            "density": rng.normal(1.5 * cancer, 1),
            "clinic": rng.choice(["north", "south", "east"], rows),
            "cancer": np.where(cancer, "yes", "no"),
        }
    )
    frame.loc[rng.random(rows) < 0.1, "density"] = np.nan
    return frame


def write_people(path: Path, rows: int = 240, seed: int = 0, share: float = 0.5, **columns: object) -> Path:
    """Write the table, with more columns or others in their place; return the path."""
    frame = people(rows, seed, share).assign(**columns)
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False)
    return path
