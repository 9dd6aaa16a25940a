"""Measure time, peak memory and sizes of `rightloss fit` and `predict` on a table of 1,000,000 rows and 30 columns.

The table has 18 numbers, 8 categories (one of 1,000 levels), 2 booleans, an identifier and the class, missing values in half of
the columns, and 1 % positives; the population is 0.1 %. Each command runs in a process of its own, and the kernel tells its
peak resident memory. Writes fit_table.md. `RIGHTLOSS_ROWS=10000` makes it quick.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from report import folder
from report import table as page_table

ROWS = int(os.environ.get("RIGHTLOSS_ROWS", "1000000"))
POSITIVES, POPULATION, NUMBERS, CATEGORIES = 0.01, 0.001, 18, 8
PROGRAM = "import sys; sys.argv[0] = 'rightloss'; from rightloss_command import main; main()"


@dataclass(frozen=True)
class Cost:
    """What a process took: seconds by the clock and of the processors, and bytes of memory at its peak."""

    wall: float
    processor: float
    peak: int


def people(rows: int, seed: int = 0) -> pd.DataFrame:
    """Return the table; a third of the numbers and of the categories tell about the class."""
    rng = np.random.default_rng(seed)
    cancer = rng.random(rows) < POSITIVES
    columns: dict[str, object] = {"record": np.arange(rows)}
    for k in range(NUMBERS):
        values = np.round(rng.normal((0.7 if k % 3 == 0 else 0) * cancer, 1), 4)
        columns[f"number_{k}"] = np.where(rng.random(rows) < 0.1 * (k % 2), np.nan, values)
    for k in range(CATEGORIES):
        levels = 1000 if k == 0 else 4 + k
        codes = (rng.integers(0, levels, rows) + (cancer * rng.integers(0, 2, rows) if k % 3 == 0 else 0)) % levels
        names = np.array([f"level_{i}" for i in range(levels)], dtype=object)[codes]
        columns[f"category_{k}"] = np.where(rng.random(rows) < 0.05 * (k % 2), None, names)
    for k in range(2):
        columns[f"boolean_{k}"] = rng.random(rows) < 0.3 + 0.2 * cancer * k
    return pd.DataFrame({**columns, "cancer": np.where(cancer, "yes", "no")})


def run(*arguments: str) -> Cost:
    """Run `rightloss` in a process of its own."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"rightloss {arguments[0]} failed")
    return Cost(time.perf_counter() - start, usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss)


def measure(where: Path) -> list[list[str]]:
    """Make the table, run the commands, and return the rows of the page."""
    data, model, out = where / "data.csv", where / "model", where / "predictions.csv"
    frame = people(ROWS)
    assert frame.shape == (ROWS, 30)
    frame.to_csv(data, index=False)
    del frame
    options = ["--target", "cancer", "--positive", "yes", "--population", str(POPULATION)]
    costs = {
        "fit": run("fit", str(data), *options, "--out", str(model)),
        "predict": run("predict", str(model), str(data), "--keep", "record", "--out", str(out)),
    }
    sizes = {"fit": sum(path.stat().st_size for path in model.iterdir()), "predict": out.stat().st_size}
    return [
        [f"`{name}`", f"{cost.wall:.0f}", f"{cost.processor:.0f}", f"{cost.peak / 1e9:.2f}", f"{sizes[name] / 1e6:.1f}"]
        for name, cost in costs.items()
    ] + [["the CSV", "", "", "", f"{data.stat().st_size / 1e6:.1f}"]]


def main() -> None:
    out = folder()
    with tempfile.TemporaryDirectory() as name:
        rows = measure(Path(name))
    words = f"{ROWS:,} rows × 30 columns, {100 * POSITIVES:g} % positives, population {POPULATION:g}, {os.cpu_count()} cores"
    words += f" with a load average of {os.getloadavg()[2]:.0f} in the last 15 minutes"
    header = ["command", "wall, s", "processor, s", "peak memory, GB", "written, MB"]
    page = f"Made by `python benchmarks/fit_table.py`: {words}. The aims are 180 s and 4 GB.\n\n{page_table(header, rows)}"
    (out / "fit_table.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
