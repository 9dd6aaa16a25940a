"""What the benchmark scripts share: timing side by side, peak memory, and pages of results."""

from __future__ import annotations

import argparse
import ctypes
import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def write_pages(about: str | None, **parts: Callable[[], str]) -> None:
    """Make a page NAME.md of each part that the command line names, by default of all.

    They go to benchmarks/out, or with `--docs` to docs/benchmarks. A part returns how it was made, then its tables.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if len(parts) > 1:
        parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(parts)}; all by default")
    parser.add_argument("--docs", action="store_true", help="write into docs/benchmarks, which is kept in the repository")
    chosen = parser.parse_args()
    names = getattr(chosen, "names", None) or list(parts)
    if unknown := sorted(set(names) - set(parts)):
        parser.error(f"expected some of {', '.join(parts)}, but got {', '.join(unknown)}")
    out = ROOT / ("docs/benchmarks" if chosen.docs else "benchmarks/out")
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        text = parts[name]()
        command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *([name] if len(parts) > 1 else [])])
        (out / f"{name}.md").write_text(f"Made by `{command}`: {text}", encoding="utf-8")
        print(text)


def shown(row: list[str]) -> list[str]:
    """Print a row of a table as soon as it is known, and return it."""
    print(" | ".join(row), flush=True)
    return row


def medians(
    calls: Mapping[str, Callable[[], object]],
    repeats: int,
    apart: bool = False,
    clock: Callable[[], float] = time.perf_counter,
    warm_up: int = 3,
) -> dict[str, float]:
    """Return median seconds of each call, made in turn, so that a slow spell of the machine meets all of them.

    With `apart` each has loops of its own, three of them, so that memory it frees is its own to use again. With
    `time.process_time` as the clock, other work on the machine moves them less.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    if apart:
        order = [(name, repeat) for _ in range(3) for name in calls for repeat in range(warm_up + max(1, repeats // 3))]
    else:
        order = [(name, repeat) for repeat in range(warm_up + repeats) for name in calls]
    for name, repeat in order:
        start = clock()
        calls[name]()
        if repeat >= warm_up:
            times[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def peak_extra_bytes(call: Callable[[], object], forget: Callable[[], object]) -> int:
    """By how much the process grows at most during one call, after what the last one left is forgotten (Linux)."""
    call()
    forget()
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    call()
    return max(0, status("VmHWM") - before)


def status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise ValueError(f"Expected {field} in /proc/self/status: this measurement needs Linux.")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
