"""Measure how long cutting views takes, compared with `map_coordinates` in a loop and `grid_sample`, and with a training step.

32 nodules, with nine views of 32 × 32 at the same random orientations for all implementations, from volumes of 64³ voxels in
their original type: contours (float16), CT (int16) and float32; and from slices of 71² pixels (int16). The loops compute the
points and call SciPy once per nodule, for its nine views together, or once per view; SciPy does not support float16, which is
converted. `grid_sample` gets the whole batch at once, converted to float32. On one thread processor time is measured; on two,
wall-clock time, which includes other work on the machine. The aim was 20 times the speed of the loop. The limits were profiled
once, not by this script: the eight gathers per point take a third of our time or more, and a kernel fused by `torch.compile`
took half of our time.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

os.environ["OMP_NUM_THREADS"] = "2"  # the maximum; torch.set_num_threads reduces it

import numpy as np
import torch
import torch.nn.functional as F
from measuring import medians, shown, table, write_pages
from scipy.ndimage import map_coordinates
from torch import Tensor, nn

from rightloss.lidc import nets
from rightloss.lidc.views import RandomViews, inplane_views, orthogonal_views, random_rotations

N, VIEWS, SIZE, REPEATS = 32, 9, 32, int(os.environ.get("RIGHTLOSS_DRAWS", "30"))
CLOCKS = {1: time.process_time, 2: time.perf_counter}


def by_scipy(patches: np.ndarray, points: np.ndarray, calls: int) -> np.ndarray:
    """Return the views at `points (n, c, views, size, size)`, slowest axis first, in one call a nodule or one a view."""
    views = np.empty((N, VIEWS, SIZE, SIZE), np.float32)
    for own, patch, places in zip(views, patches, points + (patches.shape[1] - 1) / 2, strict=True):
        patch = patch.astype(np.float32) if patch.dtype == np.float16 else patch
        for part, where in zip(np.split(own, calls), np.split(places, calls, 1), strict=True):
            map_coordinates(patch, where, part, order=1, mode="nearest")
    return views


def by_grid_sample(patches: Tensor, rotations: Tensor) -> Tensor:
    steps = torch.arange(SIZE) - (SIZE - 1) / 2
    across, down = (rotations[..., columns].mT.flatten(1, 2)[:, :, None, None] for columns in ([0, 0, 1], [1, 2, 2]))
    grid = (across * steps[:, None] + down * steps[:, None, None]) * (2 / (patches.shape[1] - 1))
    found = F.grid_sample(patches.float()[:, None], grid.flatten(1, 2)[:, None], padding_mode="border", align_corners=True)
    return found.view(N, VIEWS, SIZE, SIZE)


def contenders(patches: Tensor) -> dict[str, Callable[[], Any]]:
    """Return the ways to cut the same views."""
    own, steps = torch.Generator().manual_seed(1), np.arange(SIZE) - (SIZE - 1) / 2
    if patches.ndim == 3:
        angles = 2 * math.pi * torch.rand(N, VIEWS, generator=own)
        cos, sin = (each(angles.numpy())[:, None, :, None, None] for each in (np.cos, np.sin))
        along = np.concatenate([cos * steps - sin * steps[:, None], sin * steps + cos * steps[:, None]], 1)
        calls: dict[str, Callable[[], Any]] = {"rightloss": lambda: inplane_views(patches, angles)}
    else:
        rotations = random_rotations(N * VIEWS // 3, own).unflatten(0, (N, VIEWS // 3))
        across, down = (rotations.numpy()[..., columns] for columns in ([0, 0, 1], [1, 2, 2]))  # (n, t, 3, 3)
        along = across[..., None, None] * steps + down[..., None, None] * steps[:, None]
        along = along.transpose(0, 2, 1, 3, 4, 5).reshape(N, 3, VIEWS, SIZE, SIZE)
        calls = {"rightloss": lambda: orthogonal_views(patches, rotations)}
    calls["SciPy, a call a nodule"] = partial(by_scipy, patches.numpy(), along[:, ::-1], 1)
    calls["SciPy, a call a view"] = partial(by_scipy, patches.numpy(), along[:, ::-1], VIEWS)
    return calls if patches.ndim == 3 else {**calls, "torch grid_sample": lambda: by_grid_sample(patches, rotations)}


def training_step(net: nn.Module, *inputs: Tensor) -> Callable[[], None]:
    """Return a call that takes a step."""
    optimiser = torch.optim.Adam([each for each in net.parameters() if each.requires_grad])

    def call() -> None:
        optimiser.zero_grad()
        F.cross_entropy(net(*inputs), torch.arange(N) % 2).backward()
        optimiser.step()

    return call


def on(threads: int, calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    torch.set_num_threads(threads)
    return medians(calls, repeats, apart=True, clock=CLOCKS[threads])


def lidc_views() -> str:
    own, rows, shares, cut = torch.Generator().manual_seed(0), [], [], RandomViews(VIEWS, SIZE)
    volumes, slices = torch.rand(N, 64, 64, 64, generator=own), (1400 * torch.rand(N, 71, 71, generator=own)).short()
    kinds = {"contours, float16": volumes.half(), "CT, int16": (1400 * volumes).short(), "float32": volumes}
    kinds["slices, int16"] = slices
    for (name, patches), threads in product(kinds.items(), CLOCKS):
        calls = contenders(patches)
        for other in calls.values():
            np.testing.assert_allclose(np.asarray(other()), np.asarray(calls["rightloss"]()), atol=1e-4 * float(patches.max()))
        times = on(threads, calls, REPEATS)
        rows += [
            shown([name, str(threads), who, f"{1e3 * t:.2f}", f"{t / times['rightloss']:.1f}"]) for who, t in times.items()
        ]
    for small, threads in product((False, True), CLOCKS):
        net = nets.convnet(2, small=small, generator=torch.Generator().manual_seed(0))
        both = {"volumes": kinds["contours, float16"], "slices": slices.half()}
        calls = {"step": training_step(net, cut(volumes)), **{name: partial(cut, each) for name, each in both.items()}}
        step, *others = on(threads, calls, REPEATS // 3).values()
        cells = [f"{1e3 * step:.0f}", *(f"{1e3 * t:.2f}" for t in others), *(f"{100 * t / (step + t):.1f} %" for t in others)]
        shares.append(shown(["small" if small else "full", str(threads), *cells]))
    header = ["ConvNet", "threads", "step, ms", "volumes, ms", "slices, ms", "share, volumes", "share, slices"]
    best = max(float(row[-1]) for row in rows if row[2].startswith("SciPy"))
    return (
        f"{N} nodules, {VIEWS} views of {SIZE} × {SIZE}; medians of {REPEATS} calls. {busy()}\n\n"
        f"{table(['patches', 'threads', 'cut by', 'ms', 'time / ours'], rows)}\nThe aim of 20 times the speed of SciPy's loop "
        f"is not reached (at most {best:.1f} times): looking up the eight voxels around each point alone takes a third or more "
        "of our time, and a kernel fused by `torch.compile`, tried once, was twice as fast as ours and still too slow.\n\n"
        f"Cutting at new random orientations, as a share of a training step on the same batch:\n\n{table(header, shares)}"
    )


def busy() -> str:
    load = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    return f"Wall-clock times depend on the machine's load, {load} in the last minute."


if __name__ == "__main__":
    write_pages(__doc__, lidc_views=lidc_views)
