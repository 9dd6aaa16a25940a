"""Measure time and memory of estimating a prevalence from up to 10⁸ binary predictions in a file, read in blocks.

The file is memory-mapped. Each size runs in a separate process, which reports how far its memory grew during the call (VmHWM
over VmRSS; mapped pages count in both, and those of the blocks are released). The files, 8 bytes per row, are removed
afterwards. Writes prevalence_stream.md: a row per size and kind of region.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import tempfile
import time
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from report import _status, folder, table

from rightloss.shift import estimate_prevalence

SIZES = [10**6, 10**7, 10**8]
POPULATION, DISTANCE = 0.01, 2.0


def write(path: Path, rows: int) -> None:
    """Write exact predictions at equal classes for draws from two normal distributions, one in a hundred from the second."""
    random = np.random.default_rng(rows)
    with path.open("wb") as file:
        for start in range(0, rows, 10**6):
            count = min(10**6, rows - start)
            x = random.standard_normal(count) + DISTANCE * (random.random(count) < POPULATION)
            logit = DISTANCE * x - DISTANCE**2 / 2
            np.stack([-np.logaddexp(0, logit), -np.logaddexp(0, -logit)], 1).astype(np.float32).tofile(file)


def measure(path: str, rows: int, region: Literal["curvature", "profile"] | None) -> str:
    """Return, from a new process, the estimate, seconds, and bytes over the baseline."""
    torch.set_num_threads(1)
    warm = np.log(np.array([[0.9, 0.1], [0.2, 0.8]] * 1000))
    estimate_prevalence(warm, 0.5, calibration="assumed")  # first-use allocations of libraries are not counted
    table_on_disk = np.memmap(path, dtype=np.float32, mode="r", shape=(rows, 2))
    Path("/proc/self/clear_refs").write_text("5")
    before, start = _status("VmRSS"), time.perf_counter()
    found = estimate_prevalence(table_on_disk, 0.5, calibration="assumed", region=region)
    seconds = time.perf_counter() - start
    grown = max(0, _status("VmHWM") - before)
    return json.dumps([float(found.population[1]), float(found.low[1]), float(found.high[1]), found.iterations, seconds, grown])


def main() -> None:
    out = folder()
    rows = []
    place = Path(tempfile.mkdtemp())
    try:
        for size in SIZES:
            path = place / f"{size}.f32"
            write(path, size)
            for region in ("curvature", "profile"):
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    line = pool.apply(measure, (str(path), size, region))
                value, low, high, iterations, seconds, grown = json.loads(line)
                region_words = f"{value:.5f} [{low:.5f}, {high:.5f}]"
                figures = [str(iterations), f"{seconds:.1f}", f"{grown / 1e6:.1f}"]
                rows.append([f"{size:,}", f"{size * 8 / 1e6:,.0f}", region, region_words, *figures])
                print(rows[-1], flush=True)
            path.unlink()
    finally:
        shutil.rmtree(place)
    header = [
        "predictions",
        "MB on disk",
        "region",
        "class 1 (true 0.01)",
        "Newton steps",
        "seconds",
        "peak memory over baseline, MB",
    ]
    words = (
        "Made by `python benchmarks/prevalence_stream.py`: float32, one thread. "
        "Up to 4 · 10⁶ rows the ratios are kept in memory.\n\n"
    )
    (out / "prevalence_stream.md").write_text(words + table(header, rows))


if __name__ == "__main__":
    main()
