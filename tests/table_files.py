"""Small tables on disk for tests of the commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from rightloss.cli.tables import FileFormat, as_predicted, open_predictions


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


def write_frame(frame: pd.DataFrame, path: Path) -> dict[str, int]:
    """Write predictions as one chunk; return, by column, how many cells and names were escaped."""
    types = {name: pa.array(frame[name], from_pandas=True).type for name in frame if frame[name].dtype == object}
    file = FileFormat.of(path, frame.iloc[:0], types)
    content, changed = file.content(frame)
    with file.written(path) as write:
        write(content)
    return dict(changed + file.changed_names())


def read_predictions(path: Path, target: str) -> pd.DataFrame:
    """Read a file of `write_frame`."""
    table, names = open_predictions(path, [target].__contains__, None, map)
    return pd.concat(as_predicted(frame, names, table.is_parquet) for frame in table.frames())
