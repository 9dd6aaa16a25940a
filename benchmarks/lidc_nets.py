"""Measure a training step of each net of the case study, full and small, and the low-level block against VGG16's layers.

A batch is 32 nodules with 9 views of 32×32 (one view for the fully convolutional net). A step is forward, backward and an
update by Adam, with a frozen low-level block. An epoch is one pass over the 1412 nodules of the binary set, without the time
to cut views. The low-level block is compared with the plain implementation: the grey image in three channels, normalised,
through two `nn.Conv2d`. Writes lidc_nets.md: a table of the nets and one of the low-level block.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from report import folder, medians, medians_apart, table
from torch import Tensor, nn

from rightloss.lidc import nets

NODULES, BATCH, VIEWS, SIZE, REPEATS, COLUMNS = 1412, 32, 9, 32, 9, 8
Make = Callable[..., Any]
NETS: dict[str, tuple[Make, int]] = {  # function and number of views
    "convnet": (nets.convnet, VIEWS),
    "inception_net": (nets.inception_net, VIEWS),
    "fully_convolutional_net": (nets.fully_convolutional_net, 1),
    "gated_net": (nets.gated_net, VIEWS),
    "metadata_net": (lambda **options: nets.metadata_net(COLUMNS, **options), VIEWS),
}


def map_sides(net: nn.Module, inputs: tuple[Tensor, ...]) -> str:
    """Return the sides of a view's feature maps, from the low-level block to the last convolution."""
    sides: set[int] = set()
    hooks = [
        part.register_forward_hook(lambda _, __, found: sides.add(found.shape[-1]))
        for part in net.modules()
        if isinstance(part, nn.Conv2d)
    ]
    net(*(each[:1] for each in inputs))
    for hook in hooks:
        hook.remove()
    return " → ".join(str(side) for side in sorted(sides, reverse=True))


def training_step(net: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[[], None]:
    optimiser = torch.optim.Adam([each for each in net.parameters() if each.requires_grad])
    y = torch.arange(BATCH) % 2

    def call() -> None:
        optimiser.zero_grad()
        F.cross_entropy(net(*inputs), y).backward()
        optimiser.step()

    return call


def one_thread(call: Callable[[], object]) -> float:
    """Return the median processor time in seconds on one thread, which depends little on other work on the machine."""
    torch.set_num_threads(1)
    try:
        return medians_apart({"": call}, REPEATS, time.process_time)[""]
    finally:
        torch.set_num_threads(2)


def each_net() -> str:
    rows = []
    for name, (make, views) in NETS.items():
        for small in (False, True):
            torch.manual_seed(0)
            net = make(small=small)
            inputs: tuple[Tensor, ...] = (torch.rand(BATCH, views, SIZE, SIZE),)
            if name == "metadata_net":
                inputs += (torch.randn(BATCH, COLUMNS),)
            call = training_step(net, inputs)
            seconds, processor = medians({name: call}, REPEATS)[name], one_thread(call)
            steps = math.ceil(NODULES / BATCH)
            count = sum(each.numel() for each in net.parameters())
            trained = sum(each.numel() for each in net.parameters() if each.requires_grad)
            rows.append(
                [
                    f"`{name}`", "small" if small else "full", str(views), f"{count:,}", f"{trained:,}",
                    map_sides(net, inputs), str(net.head.weight.shape[1]),
                    f"{1e3 * seconds:.0f}", f"{steps * seconds:.1f}",
                    f"{1e3 * processor:.0f}", f"{steps * processor:.1f}",
                ]
            )  # fmt: skip
            print(rows[-1], flush=True)
    both, one = "on two threads, wall clock", "on one thread, processor time"
    times = [f"step {both}, ms", f"epoch {both}, s", f"step {one}, ms", f"epoch {one}, s"]
    head = ["net", "", "views", "weights", "trained", "maps", "m", *times]
    return table(head, rows)


class Published(nn.Module):
    """The first two layers of VGG16, as published."""

    mean: Tensor
    std: Tensor

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, stride, padding=1), nn.ReLU()
        ).requires_grad_(False)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406])[:, None, None])
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225])[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        return self.layers((images.expand(-1, 3, -1, -1) - self.mean) / self.std)


def low_level() -> str:
    rows = []
    images = torch.rand(BATCH * VIEWS, 1, SIZE, SIZE)
    for stride in (1, 2):
        blocks = {"published": Published(stride), "ours": nets.LowLevelBlock(stride=stride)}
        times = {name: one_thread(partial(block, images)) for name, block in blocks.items()}
        ratio = times["ours"] / times["published"]
        rows.append([str(stride), *(f"{1e3 * times[name]:.0f}" for name in ("published", "ours")), f"{ratio:.2f}"])
    return table(["low-level block, stride", "three channels, one thread, ms", "ours, ms", "time ratio"], rows)


def main() -> None:
    out, load = folder(), os.getloadavg()[0]
    torch.set_num_threads(2)
    parts = [each_net(), low_level()]
    machine = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    head = (
        f"{machine}, medians; made by `python benchmarks/lidc_nets.py`. Batches of {BATCH} nodules with views of {SIZE}×{SIZE} "
        f"and a frozen low-level block; an epoch has {NODULES} nodules; the head has m input features. "
        f"Wall-clock times depend on the machine's load, {load:.1f} on {os.cpu_count()} cores in the minute before the run.\n"
    )
    page = "\n".join([head, *parts])
    (out / "lidc_nets.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
