"""Measure how long cutting views takes, compared with `map_coordinates` in a loop and `grid_sample`, and with a training step.

32 nodules, with nine views of 32 × 32 at the same random orientations for all implementations, from volumes of 64³ voxels in
their original type: contours (float16), CT (int16) and float32; and from slices of 71² pixels (int16). The loops compute the
points and call SciPy once per nodule, for its nine views together, or once per view; SciPy does not support float16, which is
converted. `grid_sample` gets the whole batch at once, converted to float32. On one thread processor time is measured; on two,
wall-clock time, which includes other work on the machine. A training step is forward, backward and update, with a frozen
pretrained low-level block. Writes lidc_views.md: a table of times, and one of shares of a training step.

The aim was 20 times the speed of the loop. The limits were profiled once, not by this script: the eight gathers per point take
a third of our time or more, and a kernel fused by `torch.compile` took half of our time.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from functools import partial

os.environ["OMP_NUM_THREADS"] = "2"  # the maximum; torch.set_num_threads reduces it

import numpy as np
import torch
import torch.nn.functional as F
from report import folder, medians_apart, table
from scipy.ndimage import map_coordinates
from torch import Tensor

from rightloss.lidc.nets import convnet
from rightloss.lidc.views import RandomViews, inplane_views, orthogonal_views, random_rotations

N, VIEWS, SIZE, REPEATS = 32, 9, 32, 30
STEPS = np.arange(SIZE) - (SIZE - 1) / 2
CLOCKS = {1: time.process_time, 2: time.perf_counter}


def volume_points(rotations: np.ndarray) -> np.ndarray:
    """Return where the pixels of a nodule's views are, (x, y, z) first, from its rotations (t, 3, 3)."""
    across, down = (rotations[:, :, columns] for columns in ([0, 0, 1], [1, 2, 2]))
    points = across[..., None, None] * STEPS + down[..., None, None] * STEPS[:, None]
    return points.transpose(1, 0, 2, 3, 4).reshape(3, VIEWS, SIZE, SIZE)


def slice_points(angles: np.ndarray) -> np.ndarray:
    cos, sin = (values[:, None, None] for values in (np.cos(angles), np.sin(angles)))
    return np.stack([cos * STEPS - sin * STEPS[:, None], sin * STEPS + cos * STEPS[:, None]])


def scipy_loop(
    patches: np.ndarray, turns: np.ndarray, points_of: Callable[[np.ndarray], np.ndarray], by_view: bool
) -> np.ndarray:
    views = np.empty((N, VIEWS, SIZE, SIZE), np.float32)
    for i in range(N):
        patch = patches[i].astype(np.float32) if patches.dtype == np.float16 else patches[i]
        places = points_of(turns[i])[::-1] + (patch.shape[0] - 1) / 2
        if by_view:
            for j in range(VIEWS):
                map_coordinates(patch, places[:, j], views[i, j], order=1, mode="nearest")
        else:
            map_coordinates(patch, places, views[i], order=1, mode="nearest")
    return views


def torch_grid(patches: Tensor, rotations: Tensor) -> Tensor:
    steps = torch.arange(SIZE) - (SIZE - 1) / 2
    across, down = (rotations[..., columns].mT.flatten(1, 2)[:, :, None, None] for columns in ([0, 0, 1], [1, 2, 2]))
    grid = (across * steps[:, None] + down * steps[:, None, None]) * (2 / (patches.shape[1] - 1))
    found = F.grid_sample(patches.float()[:, None], grid.flatten(1, 2)[:, None], padding_mode="border", align_corners=True)
    return found.view(N, VIEWS, SIZE, SIZE)


def contenders(patches: Tensor) -> dict[str, Callable[[], np.ndarray | Tensor]]:
    own = torch.Generator().manual_seed(1)
    if patches.ndim == 3:
        angles = 2 * math.pi * torch.rand(N, VIEWS, generator=own)
        loop = partial(scipy_loop, patches.numpy(), angles.numpy(), slice_points)
        return {
            "rightloss": lambda: inplane_views(patches, angles),
            "SciPy, a call a nodule": partial(loop, False),
            "SciPy, a call a view": partial(loop, True),
        }
    rotations = random_rotations(N * VIEWS // 3, own).unflatten(0, (N, VIEWS // 3))
    loop = partial(scipy_loop, patches.numpy(), rotations.numpy(), volume_points)
    return {
        "rightloss": lambda: orthogonal_views(patches, rotations),
        "SciPy, a call a nodule": partial(loop, False),
        "SciPy, a call a view": partial(loop, True),
        "torch grid_sample": lambda: torch_grid(patches, rotations),
    }


def compared(name: str, patches: Tensor) -> list[list[str]]:
    rows = []
    for threads, clock in CLOCKS.items():
        torch.set_num_threads(threads)
        calls = contenders(patches)
        ours = np.asarray(calls["rightloss"]())
        for other in calls.values():
            np.testing.assert_allclose(np.asarray(other()), ours, atol=1e-4 * float(patches.max()))
        times = medians_apart(calls, REPEATS, clock)
        base = times["rightloss"]
        rows += [[name, str(threads), who, f"{1e3 * t:.2f}", f"{t / base:.1f}"] for who, t in times.items()]
        print(*rows[-len(calls) :], sep="\n", flush=True)
    return rows


def training_step(small: bool) -> Callable[[Tensor], None]:
    net = convnet(2, small=small, generator=torch.Generator().manual_seed(0))
    optimiser = torch.optim.SGD([each for each in net.parameters() if each.requires_grad], lr=1e-3)
    labels = torch.arange(N) % 2

    def step(views: Tensor) -> None:
        optimiser.zero_grad()
        F.cross_entropy(net(views), labels).backward()
        optimiser.step()

    return step


def shares(volumes: Tensor, slices: Tensor) -> list[list[str]]:
    rows, cut = [], RandomViews(VIEWS, SIZE)
    for small in (False, True):
        for threads, clock in CLOCKS.items():
            torch.set_num_threads(threads)
            views, step = cut(volumes), training_step(small)
            calls: dict[str, Callable[[], object]] = {
                "step": partial(step, views),
                "volumes": partial(cut, volumes),
                "slices": partial(cut, slices),
            }
            times = medians_apart(calls, 9, clock)
            whole = [times[kind] / (times["step"] + times[kind]) for kind in ("volumes", "slices")]
            cells = [f"{1e3 * times[kind]:.2f}" for kind in ("volumes", "slices")]
            name = "small" if small else "full"
            rows.append([name, str(threads), f"{1e3 * times['step']:.0f}", *cells, *(f"{100 * part:.1f} %" for part in whole)])
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    out, load = folder(), os.getloadavg()[0]
    own = torch.Generator().manual_seed(0)
    volumes, slices = torch.rand(N, 64, 64, 64, generator=own), (1400 * torch.rand(N, 71, 71, generator=own)).short()
    kinds = {
        "contours, float16": volumes.half(),
        "CT, int16": (1400 * volumes).short(),
        "float32": volumes,
        "slices, int16": slices,
    }
    rows = [row for name, patches in kinds.items() for row in compared(name, patches)]
    header = ["patches", "threads", "cut by", "ms", "time / ours"]
    counts = f"{N} nodules, {VIEWS} views of {SIZE} × {SIZE}; medians of {REPEATS} calls"
    busy = f"Times on two threads depend on the machine's load, {load:.1f} on {os.cpu_count()} cores before the run"
    best = max(float(row[-1]) for row in rows if row[2].startswith("SciPy"))
    aim = (
        f"\nThe aim of 20 times the speed of SciPy's loop is not reached (at most {best:.1f} times): looking up the eight "
        "voxels around each point alone takes a third or more of our time, and a kernel fused by `torch.compile`, "
        "tried once, was twice as fast as ours and still too slow.\n"
    )
    words = f"Made by `python benchmarks/lidc_views.py`: {counts}. {busy}.\n\n"
    second = table(
        ["ConvNet", "threads", "step, ms", "volumes, ms", "slices, ms", "share, volumes", "share, slices"],
        shares(kinds["contours, float16"], slices.half()),
    )
    middle = "\nCutting at new random orientations, as a share of a training step on the same batch:\n\n"
    (out / "lidc_views.md").write_text(words + table(header, rows) + aim + middle + second)


if __name__ == "__main__":
    main()
