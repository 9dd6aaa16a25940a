"""Measure the way from a folder of LIDC-IDRI's DICOM files to Table 1: time, memory and disk of the two commands.

First a rehearsal: a few made-up scans with the UIDs and slice positions of real ones, the longest among them, through both
commands, with a study of one step; it prints what docs/benchmarks/lidc_dicom.txt keeps. Then the time of `prepare` for the
whole collection, from the times of lidc_prepare.py and the numbers of files, scans and nodules; and that of Table 1 as
`rightloss study table1 --dry-run` prints it, on contour volumes, which are as large as CT patches. Its clock is the
processor's, which other work hardly moves.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from lidc_prepare import SLICES, timed, write_series
from measuring import shown, table, write_pages

from rightloss.lidc import binary_set, nodules
from rightloss.lidc.readings import scan_positions

SCANS = 6  # of each class, those with the fewest slices, and the longest of all
COLLECTION, DISK = 125, 150  # GB of files; MB a second of a hard disk
VARIANTS = {
    "full nets, as in the paper": "",
    "the same, five processes": "--workers 5",
    "small nets, three views, 400 steps": "--small --views 3 --steps 400 --learning-rate 3e-3 --learning-rate 1e-3 "
    "--checkpoints 8 --averaging 0.98",
}
PROCESSOR = "import time, types, rightloss.cli.dry_run as d; d.time = types.SimpleNamespace(monotonic=time.process_time); "
ONE_STEP = "--steps 1 --checkpoints 1 --folds 1 --learning-rate 1e-3 --engine in-process"


def rightloss(words: str, at: Path | None = None, before: str = "") -> tuple[str, float]:
    """Run a command; return what it printed, and the memory that its largest process needed, in GB."""
    command = [sys.executable, "-c", f"{before}from rightloss_command import main; main()", *words.split()]
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(command, cwd=at, stdout=printed)
        _, status, usage = os.wait4(process.pid, 0)
        printed.seek(0)
        text = printed.read()
    if status:
        raise SystemExit(f"rightloss {words} failed")
    return text, usage.ru_maxrss / 1e6


def rehearsal(at: Path) -> float:
    """Run both commands on made-up scans, print what the first printed, and return its memory."""
    data, positions = binary_set(), scan_positions()
    series = nodules().set_index("nodule")["series_uid"][data.nodules.tolist()]
    ordered = [sorted(set(series[data.labels.numpy() == k]), key=lambda uid: (len(positions[uid]), uid)) for k in (0, 1)]
    longest = max((each[-1] for each in ordered), key=lambda uid: len(positions[uid]))
    for uid in {*ordered[0][:SCANS], *ordered[1][:SCANS], longest}:
        (at / "LIDC-IDRI" / uid).mkdir(parents=True)
        write_series(at / "LIDC-IDRI" / uid, uid, [float(z) for z in positions[uid]])
    prepare = "lidc prepare --dicom LIDC-IDRI --out nodules.npz"
    printed, memory = rightloss(prepare, at)
    print(f"$ rightloss {prepare}\n{printed}")
    rightloss(f"study table1 --data nodules.npz --small --views 3 --batch-size 4 --num-folds 3 {ONE_STEP} --out results", at)
    assert (at / "results/report.html").is_file()
    return memory


def lidc_dicom() -> str:
    with tempfile.TemporaryDirectory() as at:
        memory = rehearsal(Path(at))
        of = {
            s: rightloss(f"study table1 {s} {ONE_STEP} --out {at}/{i}")[1]
            for i, s in enumerate(("--small --views 3", "--full"))
        }
    times = {what: each["rightloss"] for (what, _, _), each in timed(True).items()}
    slices, used = scan_positions(), set(nodules()["series_uid"])
    files, read = sum(map(len, slices.values())), sum(len(slices[uid]) for uid in used)
    seconds = (times["finding"] * files + times["reading"] * read) / SLICES + times["cutting"] * len(nodules())
    size = 2 * 64**3 * len(nodules()) / 1e9
    time = f"{seconds / 60:.0f} minutes of one processor; reading at {DISK} MB/s {1e3 * COLLECTION / DISK / 60:.0f} minutes"
    rows = [["`lidc prepare`", "all scans", time, f"{memory:.1f} GB", f"{size:.1f} GB, {3 * size:.1f} GB while it is written"]]
    for name, options in VARIANTS.items():
        printed, _ = rightloss(f"study table1 {options} --dry-run", before=PROCESSOR)
        found = dict(re.findall(r"^(time|space) +(?:about|at most) (.+)$", printed, re.M))
        memory = of["--small --views 3" if "--small" in options else "--full"]
        rows.append(shown(["`study table1`", name, found["time"], f"{memory:.1f} GB", found["space"]]))
    words = "times of the study are estimates for this processor when idle. Memory is that of one process."
    return f"{words}\n\n{table(['command', 'what', 'time', 'memory', 'disk'], rows)}"


if __name__ == "__main__":
    write_pages(__doc__, lidc_dicom=lidc_dicom)
