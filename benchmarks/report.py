"""What the benchmark scripts share: timing side by side, peak memory, and a page of results."""

from __future__ import annotations

import argparse
import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def folder() -> Path:
    """Where results go: benchmarks/out, or with --docs the pages that the documentation shows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--docs", action="store_true", help="write into docs/benchmarks, which is kept in the repository")
    chosen = ROOT / ("docs/benchmarks" if parser.parse_args().docs else "benchmarks/out")
    chosen.mkdir(parents=True, exist_ok=True)
    return chosen


def medians(contenders: Mapping[str, Callable[[], object]], repeats: int, warm_up: int = 3) -> dict[str, float]:
    """Median seconds of each contender, called in turn so that a slow spell of the machine meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(warm_up + repeats):
        for name, call in contenders.items():
            start = time.perf_counter()
            call()
            if repeat >= warm_up:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def medians_apart(
    contenders: Mapping[str, Callable[[], object]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Median seconds of each contender in loops of its own, three loops each, so that memory it frees is its own to reuse.

    With `time.process_time` as the clock, other work on the machine moves them less.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(3):
        for name, call in contenders.items():
            for repeat in range(3 + repeats // 3):
                start = clock()
                call()
                if repeat >= 3:
                    times[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def peak_extra_bytes(call: Callable[[], object], forget: Callable[[], object]) -> int:
    """By how much the process grows at most during one call, after what the last one left is forgotten (Linux)."""
    call()
    forget()
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    call()
    return max(0, _status("VmHWM") - before)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise ValueError(f"Expected {field} in /proc/self/status: this measurement needs Linux.")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
