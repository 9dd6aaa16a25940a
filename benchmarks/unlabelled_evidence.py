"""Measure what evidence of π on the unlabelled rows, `unlabelled_evidence=ε`, adds to the likelihood of the streams.

Stage: draws of unlabelled.py → a small npz per cell and draw in benchmarks/out/unlabelled/evidence →
docs/benchmarks/unlabelled_evidence.md, .csv, .png.

    python benchmarks/unlabelled_evidence.py          # runs what is missing: half an hour on one core; it can be stopped
    python benchmarks/unlabelled_evidence.py --docs   # writes the page from the stored results, trains nothing

ε = 3 was chosen on cells with 50 labelled of each class, among some twenty pairs of λ and ε; the others are its test.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pandas as pd
import torch
from report import ROOT, table
from unlabelled import DRAWS, IMAGES, OUT, SIZES, SLICES, TABLES, cells, check_losses, run
from unlabelled_page import BASE, CELL, SMALL, Rule, ahead, behind, compared, complete, counts, draw, interval, rows_of

STREAMS, ONE, THREE = "streams alone", "evidence, ε = 1", "evidence, ε = 3"
RULES = {
    BASE: Rule("stream", ("0",)),
    "intercept matched": Rule("stream", ("0",), "matched"),
    STREAMS: Rule("stream", ("batch",)),
    ONE: Rule("evidence", ("1",)),
    THREE: Rule("evidence", ("3",)),
    f"{THREE}, matched": Rule("evidence", ("3",), "matched"),
}
SERIES = {THREE: ("#0072b2", "o"), STREAMS: ("#d55e00", "D"), "intercept matched": ("#999999", "s")}
HOW = """
*Logit adjustment* has the labelled rows alone. *Intercept matched*: then `match_prevalence` on the unlabelled rows. *Streams
alone*: `LogitAdjustedLoss(prevalence)`, called with `unlabelled=`, at the weight it takes by itself, the ratio of the rows in
the minibatch (256 to 100 or 128). *Evidence*: the same with `unlabelled_evidence=ε`, in one run, without a second fit to fall
back on. Draws, models and training are those of the larger comparison. ε = 3 was chosen on the cells with 50 labelled of each
class, among some twenty pairs of λ and ε; the cells with 100, 200 and 1,000 are its test.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=[*TABLES, *IMAGES])
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--slices", type=Path, default=SLICES, help="lidc_slices.npz")
    parser.add_argument("--docs", action="store_true", help="write the page into docs/benchmarks from the stored results")
    chosen = parser.parse_args()
    if chosen.docs:
        return write_page(ROOT / "docs/benchmarks")
    torch.set_num_threads(1)
    check_losses()
    for cell in cells(tuple(chosen.sets), tuple(chosen.sizes), chosen.slices):
        start = time.process_time()
        missing = [each for each in range(DRAWS) if not cell.path("evidence", each).exists()]
        for each in missing:
            run(cell, "evidence", each, chosen.slices)
        if missing:
            print(f"{cell.set}, {cell.model}, {cell.labelled}: {time.process_time() - start:.0f} s", flush=True)
    print(counts(compared(rows_of(OUT, "evidence", RULES))))


def write_page(out: Path) -> None:
    """Write unlabelled_evidence.md, .csv and .png from the results that there are."""
    rows = complete(rows_of(OUT, "evidence", RULES))
    found = compared(rows)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    tested = found[found["labelled"] != 50]
    parts = [
        f"Made by `python benchmarks/unlabelled_evidence.py`, then `--docs`, at commit {commit.stdout.strip()}: "
        f"{found.groupby(CELL).ngroups} cells, draws 0 to {rows['draw'].max()}, each its own seed.\n",
        HOW,
        "\n" + verdict(found[found["labelled"] <= SMALL], f"all cells with ≤ {SMALL} labelled of each class"),
        verdict(tested[tested["labelled"] <= SMALL], "those that ε was not chosen on"),
        "\n" + counts(found),
        "\nThe same against *intercept matched*, which has the unlabelled rows, too:\n\n",
        counts(compared(rows, "intercept matched").query("method != 'intercept matched'")),
        "\n### By cell\n\nDifferences to logit adjustment in nats, with 95 % intervals; bold beyond two standard errors.\n\n",
        by_cell(found),
    ]
    out.mkdir(parents=True, exist_ok=True)
    found.to_csv(out / "unlabelled_evidence.csv", index=False, float_format="%.4g", lineterminator="\n")
    draw(found, out / "unlabelled_evidence.png", SERIES)
    (out / "unlabelled_evidence.md").write_text("".join(parts), encoding="utf-8")


def verdict(found: pd.DataFrame, which: str) -> str:
    """Return in how many cells each of our losses is ahead of and behind logit adjustment."""
    parts = []
    for name in (THREE, STREAMS):
        own = found[found["method"] == name]
        parts.append(f"*{name}* is ahead in {ahead(own).sum()} of {len(own)} and behind in {behind(own).sum()}")
    return f"- Of {which}, {'; '.join(parts)}.\n"


def by_cell(found: pd.DataFrame) -> str:
    """Return a row per cell: logit adjustment, and paired differences to it."""
    names, rows = [name for name in RULES if name != BASE], []
    for key, cell in found.groupby(CELL, sort=False):
        own = cell.set_index("method")
        differences = [_interval(own.loc[name]) for name in names]
        auc = own.loc[THREE]
        rows.append([f"{key[0]}, {key[1]}", f"{key[2]:,}", f"{own.loc[BASE, 'likelihood']:.4f}", *differences,
                     f"{auc['auc −']:+.4f} ± {auc['auc s.e.']:.4f}"])  # fmt: skip
    return table(["cell", "labelled of each class", BASE, *names, "AUC, ε = 3 ± s.e."], rows)


def _interval(row: pd.Series) -> str:
    return interval(row["likelihood −"], row["likelihood s.e."], row["draws"])


if __name__ == "__main__":
    main()
