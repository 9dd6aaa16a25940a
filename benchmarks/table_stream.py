"""Measure time and peak memory of `rightloss predict` and `prevalence` on a table of 20,000,000 rows and 5 columns.

The same rows as one CSV file, one Parquet file, and a folder of 40 Parquet files. The folder is predicted in one process, and
by a Ray on this machine of which a worker is killed on the way: the files must be the same to the bit. Writes table_stream.md.
`RIGHTLOSS_ROWS=200000` makes it quick.
"""

from __future__ import annotations

import filecmp
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from fit_table import Cost, run
from report import folder
from report import table as page_table

ROWS, PARTS = int(os.environ.get("RIGHTLOSS_ROWS", "20000000")), 40
FIT = ["--target", "cancer", "--positive", "yes", "--population", "0.05"]


def people(rows: int, seed: int) -> pd.DataFrame:
    """Return a table of four numbers, a category and the class, of which 30 % are positive."""
    rng = np.random.default_rng(seed)
    sick = rng.random(rows) < 0.3
    return pd.DataFrame(
        {
            "age": rng.integers(30, 90, rows) + 5 * sick,
            "marker": np.round(rng.normal(sick, 1), 5),
            "weight": np.round(rng.normal(70 + 2 * sick, 12), 1),
            "dose": np.round(rng.gamma(2.0, 1 + 0.3 * sick), 4),
            "smoker": np.where(rng.random(rows) < 0.3 + 0.2 * sick, "yes", "no"),
            "cancer": np.where(sick, "yes", "no"),
        }
    )


def write_table(where: Path) -> None:
    """Write the rows three times: data.csv, data.parquet, and the folder parts."""
    (where / "parts").mkdir()
    writer = None
    for number in range(PARTS):
        frame = people(ROWS // PARTS, number + 1).drop(columns="cancer")
        frame.to_csv(where / "data.csv", mode="a", header=number == 0, index=False)
        frame.to_parquet(where / "parts" / f"{number:02}.parquet", index=False)
        rows = pa.Table.from_pandas(frame, preserve_index=False)
        writer = pq.ParquetWriter(where / "data.parquet", rows.schema) if writer is None else writer
        writer.write_table(rows)
    assert writer is not None
    writer.close()


def kill_a_worker(killed: list[int]) -> None:
    """Kill a process of Ray that has been at a part for a second."""
    while not killed:
        time.sleep(1.0)
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if not killed and (process / "cmdline").read_bytes().startswith(b"ray::_task"):
                    killed.append(int(process.name))
            except OSError:  # it has ended
                continue
    os.kill(killed[0], signal.SIGKILL)


def measure(where: Path) -> dict[str, Cost]:
    """Make the table and run the commands."""
    people(4000, 0).to_csv(where / "train.csv", index=False)
    run("fit", str(where / "train.csv"), *FIT, "--out", str(where / "model"))
    write_table(where)

    def command(name: str, data: str, *options: str) -> Cost:
        return run(name, str(where / "model"), str(where / data), *options)

    costs = {
        "`predict`, CSV → CSV": command("predict", "data.csv", "--out", str(where / "data_out.csv")),
        "`predict`, Parquet → Parquet": command("predict", "data.parquet", "--out", str(where / "data_out.parquet")),
        "`prevalence`, CSV": command("prevalence", "data.csv"),
        "`prevalence`, Parquet": command("prevalence", "data.parquet"),
        f"`predict`, {PARTS} parts → Parquet": command("predict", "parts", "--out", str(where / "here.parquet")),
    }
    killed: list[int] = []
    killer = threading.Thread(target=kill_a_worker, args=(killed,))
    killer.start()
    name = f"`predict`, {PARTS} parts → Parquet, `--engine ray`, a worker killed"
    costs[name] = command("predict", "parts", "--out", str(where / "ray.parquet"), "--engine", "ray")
    killer.join()
    if not filecmp.cmp(where / "here.parquet", where / "ray.parquet", shallow=False):
        raise SystemExit("the file made on Ray differs")
    return costs


def main() -> None:
    out = folder()
    with tempfile.TemporaryDirectory() as name:
        costs = measure(Path(name))
    rows = [
        [name, f"{cost.wall:.0f}", f"{cost.processor:.0f}", f"{1e6 * cost.processor / ROWS:.1f}", f"{cost.peak / 1e9:.2f}"]
        for name, cost in costs.items()
    ]
    words = f"{ROWS:,} rows × 5 columns, {os.cpu_count()} cores with a load average of {os.getloadavg()[2]:.0f} in the last "
    words += "15 minutes. With Ray, the figures are those of the command's own process, without the workers"
    header = ["command", "wall, s", "processor, s", "processor, µs per row", "peak memory, GB"]
    page = (
        f"Made by `python benchmarks/table_stream.py`: {words}. The file made on Ray, with a worker killed on the way, is the "
    )
    page += f"same to the bit.\n\n{page_table(header, rows)}"
    (out / "table_stream.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
