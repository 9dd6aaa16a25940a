"""Measure a training step of each net of the case study, full and small, and the low-level block against VGG16's layers.

A step is forward, backward and an update by Adam, with a frozen low-level block. An epoch is one pass over the 1412 nodules of
the binary set, without the time to cut views. The low-level block is compared with the plain implementation: the grey image in
three channels, normalised, through two `nn.Conv2d`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lidc_views import REPEATS, SIZE, VIEWS, N, busy, on, training_step
from measuring import shown, table, write_pages
from torch import Tensor, nn

from rightloss.lidc import nets

NODULES, COLUMNS = 1412, 8
NETS: dict[str, tuple[Callable[..., Any], int]] = {  # function and number of views
    "convnet": (nets.convnet, VIEWS),
    "inception_net": (nets.inception_net, VIEWS),
    "fully_convolutional_net": (nets.fully_convolutional_net, 1),
    "gated_net": (nets.gated_net, VIEWS),
    "metadata_net": (partial(nets.metadata_net, COLUMNS), VIEWS),
}


def map_sides(net: nn.Module, inputs: tuple[Tensor, ...]) -> str:
    """Return the sides of a view's feature maps, from the low-level block to the last convolution."""
    sides: set[int] = set()
    for part in net.modules():
        if isinstance(part, nn.Conv2d):
            part.register_forward_hook(lambda _, __, found: sides.add(found.shape[-1]))
    net(*(each[:1] for each in inputs))
    return " → ".join(str(side) for side in sorted(sides, reverse=True))


def net_row(name: str, small: bool) -> list[str]:
    torch.manual_seed(0)
    make, views = NETS[name]
    inputs = (torch.rand(N, views, SIZE, SIZE), *([torch.randn(N, COLUMNS)] if name == "metadata_net" else []))
    call, steps = training_step(net := make(small=small), *inputs), math.ceil(NODULES / N)
    seconds = [on(threads, {"": call}, REPEATS // 3)[""] for threads in (2, 1)]
    counts = [sum(each.numel() for each in net.parameters() if each.requires_grad or every) for every in (True, False)]
    cells = [f"`{name}`", "small" if small else "full", str(views), *(f"{count:,}" for count in counts)]
    times = [text for t in seconds for text in (f"{1e3 * t:.0f}", f"{steps * t:.1f}")]
    return shown([*cells, map_sides(make(small=small), inputs), str(net.head.weight.shape[1]), *times])


class Published(nn.Module):
    """The first two layers of VGG16, as published."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        convolutions = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 64, 3, stride, padding=1)
        self.layers = nn.Sequential(convolutions[0], nn.ReLU(), convolutions[1], nn.ReLU()).requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        mean, std = (torch.tensor(each)[:, None, None] for each in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
        found: Tensor = self.layers((images.expand(-1, 3, -1, -1) - mean) / std)
        return found


def lidc_nets() -> str:
    rows = [net_row(name, small) for name in NETS for small in (False, True)]
    blocks, images = [], torch.rand(N * VIEWS, 1, SIZE, SIZE)
    for stride in (1, 2):
        block = {"published": Published(stride), "ours": nets.LowLevelBlock(stride=stride)}
        plain, own = on(1, {name: partial(each, images) for name, each in block.items()}, REPEATS // 3).values()
        blocks.append([str(stride), f"{1e3 * plain:.0f}", f"{1e3 * own:.0f}", f"{own / plain:.2f}"])
    both, one = "on two threads, wall clock", "on one thread, processor time"
    times = [f"step {both}, ms", f"epoch {both}, s", f"step {one}, ms", f"epoch {one}, s"]
    return (
        f"torch {torch.__version__}, medians. Batches of {N} nodules with views of {SIZE}×{SIZE} and a frozen low-level block; "
        f"an epoch has {NODULES} nodules; the head has m input features. {busy()}\n\n"
        + table(["net", "", "views", "weights", "trained", "maps", "m", *times], rows)
        + "\n"
        + table(["low-level block, stride", "three channels, one thread, ms", "ours, ms", "time ratio"], blocks)
    )


if __name__ == "__main__":
    write_pages(__doc__, lidc_nets=lidc_nets)
