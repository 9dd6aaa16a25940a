"""Measure time and peak memory of the commands on large tables, each in a process of its own.

*fit_table*: `fit` and `predict` on 1,000,000 rows and 30 columns: 18 numbers, 8 categories (one of 1,000 levels), 2 booleans,
an identifier and the class, missing values in half of the columns, and 1 % positives; the population is 0.1 %.

*table_stream*: `predict` and `prevalence` on 20,000,000 rows and 5 columns, as one CSV file, one Parquet file, and a folder of
40 Parquet files. The folder is predicted in one process, and by a Ray on this machine of which a worker is killed on the way:
the files must be the same to the bit. `RIGHTLOSS_ROWS=10000` makes both quick.
"""

from __future__ import annotations

import filecmp
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from measuring import table, write_pages

PROGRAM = "import sys; sys.argv[0] = 'rightloss'; from rightloss_command import main; main()"
TARGET, PARTS = ("--target", "cancer", "--positive", "yes", "--population"), 40
Cost = tuple[float, float, float]


def run(*arguments: str | Path) -> Cost:
    """Run `rightloss`; return seconds by the clock and of the processors, and GB of memory at its peak."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *map(str, arguments)])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"rightloss {arguments[0]} failed")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss / 1e9


def people(rows: int, numbers: int, categories: int, rate: float, seed: int = 0) -> pd.DataFrame:
    """Return a table with a class of the given rate, about which a third of the columns tell; half of them lack values."""
    rng = np.random.default_rng(seed)
    cancer = rng.random(rows) < rate
    columns: dict[str, object] = {}
    for k in range(numbers):
        values = np.round(rng.normal((0.7 if k % 3 == 0 else 0) * cancer, 1), 4)
        columns[f"number_{k}"] = np.where(rng.random(rows) < 0.1 * (k % 2), np.nan, values)
    for k in range(categories):
        levels = 1000 if k == 7 else 4 + k
        codes = (rng.integers(0, levels, rows) + (cancer * rng.integers(0, 2, rows) if k % 3 == 0 else 0)) % levels
        names = np.array([f"level_{i}" for i in range(levels)], dtype=object)[codes]
        columns[f"category_{k}"] = np.where(rng.random(rows) < 0.05 * (k % 2), None, names)
    for k in range(categories // 4):
        columns[f"boolean_{k}"] = rng.random(rows) < 0.3 + 0.2 * cancer * k
    return pd.DataFrame({**columns, "cancer": np.where(cancer, "yes", "no")})


def fit_table() -> str:
    count = int(os.environ.get("RIGHTLOSS_ROWS", "1000000"))
    with tempfile.TemporaryDirectory() as name:
        data, model, out = (Path(name) / each for each in ("data.csv", "model", "predictions.csv"))
        people(count, 18, 8, 0.01).rename_axis("record").to_csv(data)
        costs = {
            "fit": run("fit", data, *TARGET, "0.001", "--out", model),
            "predict": run("predict", model, data, "--keep", "record", "--out", out),
        }
        sizes = {"fit": sum(path.stat().st_size for path in model.iterdir()), "predict": out.stat().st_size}
        given = data.stat().st_size
    rows = [
        [f"`{each}`", f"{wall:.0f}", f"{processor:.0f}", f"{peak:.2f}", f"{sizes[each] / 1e6:.1f}"]
        for each, (wall, processor, peak) in costs.items()
    ]
    words = f"{count:,} rows × 30 columns, 1 % positives, population 0.001, {busy()}. The aims are 180 s and 4 GB."
    header = ["command", "wall, s", "processor, s", "peak memory, GB", "written, MB"]
    return f"{words}\n\n{table(header, [*rows, ['the CSV', '', '', '', f'{given / 1e6:.1f}']])}"


def busy() -> str:
    return f"{os.cpu_count()} cores with a load average of {os.getloadavg()[2]:.0f} in the last 15 minutes"


def kill_a_worker() -> None:
    """Kill a process of Ray that is at a part."""
    while True:
        time.sleep(1.0)
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                if (process / "cmdline").read_bytes().startswith(b"ray::_task"):
                    return os.kill(int(process.name), signal.SIGKILL)


def table_stream() -> str:
    count = int(os.environ.get("RIGHTLOSS_ROWS", "20000000"))
    with tempfile.TemporaryDirectory() as name:
        at = Path(name)
        people(4000, 4, 1, 0.3).to_csv(at / "train.csv", index=False)
        run("fit", at / "train.csv", *TARGET, "0.05", "--out", at / "model")
        (at / "parts").mkdir()
        for number in range(PARTS):
            rows = people(count // PARTS, 4, 1, 0.3, number + 1).drop(columns="cancer")
            rows.to_csv(at / "data.csv", mode="a", header=number == 0, index=False)
            rows.to_parquet(at / "parts" / f"{number:02}.parquet", index=False)
        pq.write_table(pq.read_table(at / "parts"), at / "data.parquet", row_group_size=count // PARTS)

        def predict(data: str, out: str, *options: str) -> Cost:
            return run("predict", at / "model", at / data, "--out", at / out, *options)

        costs = {
            "`predict`, CSV → CSV": predict("data.csv", "out.csv"),
            "`predict`, Parquet → Parquet": predict("data.parquet", "out.parquet"),
            "`prevalence`, CSV": run("prevalence", at / "model", at / "data.csv"),
            "`prevalence`, Parquet": run("prevalence", at / "model", at / "data.parquet"),
            f"`predict`, {PARTS} parts → Parquet": predict("parts", "here.parquet"),
        }
        killer = threading.Thread(target=kill_a_worker)
        killer.start()
        on_ray = predict("parts", "ray.parquet", "--engine", "ray")
        costs[f"`predict`, {PARTS} parts → Parquet, `--engine ray`, a worker killed"] = on_ray
        killer.join()
        if not filecmp.cmp(at / "here.parquet", at / "ray.parquet", shallow=False):
            raise SystemExit("the file made on Ray differs")
    lines = [[each, f"{a:.0f}", f"{b:.0f}", f"{1e6 * b / count:.1f}", f"{peak:.2f}"] for each, (a, b, peak) in costs.items()]
    words = f"{count:,} rows × 5 columns, {busy()}. With Ray, the figures are those of the command's own process, without the "
    words += "workers. The file made on Ray, with a worker killed on the way, is the same to the bit."
    return f"{words}\n\n{table(['command', 'wall, s', 'processor, s', 'processor, µs per row', 'peak memory, GB'], lines)}"


if __name__ == "__main__":
    write_pages(__doc__, fit_table=fit_table, table_stream=table_stream)
