"""Where a study runs.

Stage: options → `Machine`: an engine, the work that it does, and how many groups it runs at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..study.engines import Engine, InProcess, OnRay, Processes, Work
from ..study.training import Hardware, train_group
from .errors import require

ENGINES = ("in-process", "processes", "ray")


@dataclass(frozen=True)
class Machine:
    """Where groups are trained.

    Attributes:
        engine: runs them.
        work: trains one.
        workers: how many are trained at once; of a Ray cluster elsewhere, as many as this machine would.
        words: for a sentence that ends "with …".
    """

    engine: Engine
    work: Work
    workers: int
    words: str


def machine_of(options: Mapping[str, Any], groups: int) -> Machine:
    """What the options ask for, refused where they contradict each other or this machine has no such device."""
    devices = options.get("devices", 1)
    name = options.get("engine", "processes" if cores() > 1 and devices == 1 else "in-process")
    _check(name, options, devices)
    if name == "ray":
        require("ray")
    work = _work(options, elsewhere="address" in options)
    if name == "in-process":
        return Machine(InProcess(), work, 1, "1 process" if devices == 1 else f"{devices} devices")
    workers = min(options.get("workers", cores()), max(1, groups))
    if name == "processes":
        return Machine(Processes(workers), work, workers, "1 process" if workers == 1 else f"{workers} processes")
    words = "1 worker of Ray" if workers == 1 else f"{workers} workers of Ray"
    engine = OnRay(options.get("address"), options.get("workers"))
    return Machine(engine, work, workers, "Ray" if "address" in options else words)


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _check(name: str, options: Mapping[str, Any], devices: int) -> None:
    if name not in ENGINES:
        raise ValueError(f"Expected a known engine, but got {name!r}: choose among {', '.join(ENGINES)}.")
    if "address" in options and name != "ray":
        raise ValueError(f"Expected --address with --engine ray, but got the engine {name}: leave it out.")
    if "workers" in options and name == "in-process":
        raise ValueError("Expected --workers with --engine processes, but got the engine in-process: leave it out.")
    if options.get("workers", 1) < 1:
        raise ValueError(f"Expected at least 1 worker, but got {options['workers']}: leave it out for one per core.")
    if devices > 1 and name != "in-process":
        raise ValueError(
            f"Expected --engine in-process with {devices} devices, but got {name}: devices train one net together."
        )


def _work(options: Mapping[str, Any], elsewhere: bool) -> Work:
    given = {name: options[name] for name in ("accelerator", "devices") if name in options}
    if not given:
        return train_group
    hardware = Hardware(**given)
    if not elsewhere:
        hardware.fabric()  # which refuses what this machine does not have
    return partial(train_group, hardware=hardware)
