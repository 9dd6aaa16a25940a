"""Measure the way from a folder of LIDC-IDRI's DICOM files to Table 1: time, memory and disk of the two commands.

First a rehearsal: a few made-up scans with the UIDs and slice positions of real ones, the longest among them, through both
commands, with a study of one step. Then the time of `prepare` for the whole collection, from the times of `lidc_prepare.py` and
the numbers of files, scans and nodules in the bundled tables; and that of Table 1 as `rightloss study table1 --dry-run` prints
it, on contour volumes, which are as large as CT patches. Its clock is the processor's, which other work hardly moves. Writes
lidc_dicom.md, and lidc_dicom.txt: what the rehearsal printed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import lidc_prepare
from report import folder, table

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
        process = subprocess.Popen(command, cwd=at, stdout=printed, env={**os.environ, "OMP_NUM_THREADS": "1"})
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        text = printed.read()
    if process.returncode:
        raise SystemExit(f"rightloss {words} ended with {process.returncode}")
    return text, usage.ru_maxrss / 1e6


def write_scans(at: Path) -> None:
    """Write made-up scans with the UIDs and slice positions of real ones."""
    data, positions = binary_set(), scan_positions()
    series = nodules().set_index("nodule")["series_uid"][data.nodules.tolist()]
    by_class = [
        sorted(set(series[data.labels.numpy() == label]), key=lambda uid: (len(positions[uid]), uid)) for label in (0, 1)
    ]
    for uid in {
        *by_class[0][:SCANS],
        *by_class[1][:SCANS],
        max(by_class[0] + by_class[1], key=lambda uid: len(positions[uid])),
    }:
        (at / uid).mkdir(parents=True)
        lidc_prepare.write_series(at / uid, uid, [float(z) for z in positions[uid]])


def rehearsal(at: Path) -> tuple[str, float]:
    """Run both commands on made-up scans; return what the first printed, and its memory."""
    write_scans(at / "LIDC-IDRI")
    prepare = "lidc prepare --dicom LIDC-IDRI --out nodules.npz"
    printed, memory = rightloss(prepare, at)
    study = f"study table1 --data nodules.npz --small --views 3 --batch-size 4 --num-folds 3 {ONE_STEP} --out results/table1"
    rightloss(study, at)
    assert (at / "results/table1/report.html").is_file()
    return f"$ rightloss {prepare}\n{printed}", memory


def minutes_to_prepare() -> float:
    """Return processor minutes for the whole collection, from those of one series."""
    with tempfile.TemporaryDirectory() as at:
        lidc_prepare.write_series(Path(at))
        calls = {what: {"": each["rightloss"]} for (what, _, _), each in lidc_prepare.contenders(Path(at)).items()}
        times = {what: lidc_prepare.medians(each, lidc_prepare.REPEATS)[""] for what, each in calls.items()}
    slices, used = scan_positions(), set(nodules()["series_uid"])
    files, read = sum(map(len, slices.values())), sum(len(slices[uid]) for uid in used)
    seconds = (times["finding"] * files + times["reading"] * read) / lidc_prepare.SLICES + times["cutting"] * len(nodules())
    return seconds / 60


def planned(options: str) -> tuple[str, str]:
    """Return the time and the space that a dry run of Table 1 prints."""
    printed, _ = rightloss(f"study table1 {options} --dry-run", before=PROCESSOR)
    found = dict(re.findall(r"^(time|space) +(?:about|at most) (.+)$", printed, re.M))
    return found["time"], found["space"]


@cache
def memory_of(size: str) -> float:
    """Return the memory that one process of Table 1 needs, in GB."""
    with tempfile.TemporaryDirectory() as at:
        return rightloss(f"study table1 {size} {ONE_STEP} --out {at}/table1")[1]


def main() -> None:
    out = folder()
    with tempfile.TemporaryDirectory() as at:
        printed, memory = rehearsal(Path(at))
    size, reading = 2 * 64**3 * len(nodules()) / 1e9, 1e3 * COLLECTION / DISK / 60
    time = f"{minutes_to_prepare():.0f} minutes of one processor; reading at {DISK} MB/s {reading:.0f} minutes"
    rows = [["`lidc prepare`", "all scans", time, f"{memory:.1f} GB", f"{size:.1f} GB, {3 * size:.1f} GB while it is written"]]
    for name, options in VARIANTS.items():
        time, space = planned(options)
        memory = memory_of("--small --views 3" if "--small" in options else "--full")
        rows.append(["`study table1`", name, time, f"{memory:.1f} GB", space])
        print(rows[-1], flush=True)
    head = (
        "Made by `python benchmarks/lidc_dicom.py`. Times of the study are estimates for this processor "
        "when idle. Memory is that of one process.\n\n"
    )
    page = head + table(["command", "what", "time", "memory", "disk"], rows)
    (out / "lidc_dicom.md").write_text(page)
    (out / "lidc_dicom.txt").write_text(printed)
    print(page, printed, sep="\n")


if __name__ == "__main__":
    main()
