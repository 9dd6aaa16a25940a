"""Time one fold of `rightloss study quick`, and compare it with another checkout of this repository.

The whole command is timed: start of Python, reading the data, ten runs of 300 steps side by side, tables and report. Training
is timed apart: it is what remains after the time of `rightloss report` on the same folder. It runs in one process on one
thread, as the command does for each core; checkouts take turns. `--against PATH` names the other checkout, whose code runs in
this environment (`git worktree add PATH COMMIT`). Writes study_speed.md: a row per checkout, and how far apart the predictions
are.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from report import ROOT, table

COMMAND = ["study", "quick", "--folds", "1", "--engine", "processes", "--workers", "1"]
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="the other checkout; without it, this one is timed alone")
    parser.add_argument("--turns", type=int, default=3, help="how often each is timed")
    parser.add_argument("--steps", type=int, help="minibatches of a run, if not 300; 10 checkpoints all the same")
    parser.add_argument("--docs", action="store_true", help="write into docs/benchmarks, which is kept in the repository")
    return parser.parse_args()


def processor_seconds(checkout: Path, command: list[str]) -> float:
    """Run the command with the code of a checkout; return its user and system time."""
    run = "from rightloss.cli import main; main()"
    environment = {**os.environ, **_ONE_THREAD, "PYTHONPATH": str(checkout / "src")}
    before = os.times()
    subprocess.run(
        [sys.executable, "-c", run, *command],
        env=environment,
        cwd=tempfile.gettempdir(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def predictions(out: Path) -> dict[str, np.ndarray]:
    """Return the log-probabilities of each run, by its name without the digest of its config."""
    return {
        path.stem.rpartition("-")[0]: np.load(path, allow_pickle=False)["log_probs"] for path in sorted(out.glob("runs/*.npz"))
    }


def commit_of(checkout: Path) -> str:
    found = subprocess.run(["git", "-C", checkout, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def main() -> None:
    given = arguments()
    command = COMMAND + ([] if given.steps is None else ["--steps", str(given.steps)])
    checkouts = {"this checkout": ROOT, **({} if given.against is None else {"the other": given.against.resolve()})}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in checkouts}  # of the command, and of training alone
    predicted: dict[str, dict[str, np.ndarray]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(given.turns):
            for name, checkout in checkouts.items():
                out = Path(folder) / f"{turn}-{name.replace(' ', '-')}"
                whole = processor_seconds(checkout, [*command, "--out", str(out)])
                times[name].append((whole, whole - processor_seconds(checkout, ["report", str(out)])))
                predicted[name] = predictions(out)
    seconds = {name: [statistics.median(each) for each in zip(*found, strict=True)] for name, found in times.items()}
    rows = [
        [name, commit_of(checkouts[name])]
        + [f"{statistics.median(each):.1f} ({min(each):.1f} to {max(each):.1f})" for each in zip(*found, strict=True)]
        for name, found in times.items()
    ]
    steps = "" if given.steps is None else f" --steps {given.steps}"
    text = (
        f"Made by `python benchmarks/study_speed.py --against CHECKOUT --turns {given.turns}{steps}`: "
        f"processor seconds of `rightloss {' '.join(command)}`, median and range. *Training* is the command without what "
        "`rightloss report` takes: start, tables and pictures.\n\n" + table(["code", "commit", "command", "training"], rows)
    )
    if given.against is not None:
        ours, theirs = predicted["this checkout"], predicted["the other"]
        common = sorted(set(ours) & set(theirs))
        apart = max((float(np.abs(ours[run] - theirs[run]).max()) for run in common), default=None)
        whole, training = (other / own for own, other in zip(seconds["this checkout"], seconds["the other"], strict=True))
        text += f"\nThe other takes {training:.2f} × the time of this checkout for training, {whole:.2f} × for the command. "
        text += (
            f"The largest difference between the log-probabilities of their {len(common)} runs is {apart:g}.\n"
            if apart is not None
            else "They have no run in common.\n"
        )
    print(text)
    out = ROOT / ("docs/benchmarks" if given.docs else "benchmarks/out")
    out.mkdir(parents=True, exist_ok=True)
    (out / "study_speed.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
