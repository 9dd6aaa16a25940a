"""Measure what the losses cost next to F.cross_entropy, focal losses and the information gain written naively.

Forward and backward at default settings, all contenders in one run: in turn, where each finds memory as the others left it; and
apart, each in loops of its own, where memory stays warm. Then whole training steps: ResNet-18 and MONAI's U-Net.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import kornia
import torch
import torch.nn.functional as F
from measuring import medians, peak_extra_bytes, shown, table, write_pages
from monai.losses.focal_loss import FocalLoss as MonaiFocalLoss
from monai.networks.nets import UNet, resnet18
from torch import Tensor, nn

import rightloss as rl

Criterion = Callable[[Tensor, Tensor], Tensor]
SIZES = [(64, 2), (256, 100), (1024, 1000), (4096, 1000), (512, 50_000), (1_000_000, 5)]
COMPARED = ("information gain", "weighted", "logit-adjusted", "naive formula", "MONAI focal", "kornia focal")


def step(criterion: Criterion, logits: Tensor, target: Tensor) -> None:
    """Do forward and backward, as in training."""
    logits.grad = None
    criterion(logits, target).backward()


def ours(kind: Callable[..., Any], k: int, **options: Any) -> Any:
    """Return a loss as it is after the first batches: without its monitor, which the row of the small net has."""
    frequencies = torch.rand(k, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1
    loss = kind(rl.Prevalence(frequencies / frequencies.sum()), **options)
    loss.monitor = None
    return loss


def compared(calls: Sequence[Callable[[], object]], repeats: int, digits: int, apart: bool = False) -> list[str]:
    """Return the cells of a row: milliseconds of cross-entropy and of ours, and their ratio."""
    plain, own = medians(dict(zip("ab", calls, strict=True)), repeats, apart).values()
    return [f"{1e3 * plain:.{digits}f}", f"{1e3 * own:.{digits}f}", f"{own / plain:.{3 - digits // 2}f}"]


def contenders(logits: Tensor, target: Tensor) -> dict[str, Callable[[], object]]:
    """Return what a user could train with instead."""
    k, focal = logits.shape[1], MonaiFocalLoss(to_onehot_y=True, use_softmax=True)
    gain = ours(rl.InformationGainLoss, k)
    log_offset = -torch.tensor(gain.prevalence.log_weights).float()

    def naive(logits: Tensor, target: Tensor) -> Tensor:  # the formula with torch's own functions and q = the batch's marginal
        log_probs = F.log_softmax(logits + log_offset, 1)
        log_marginal = torch.logsumexp(log_probs, 0) - math.log(len(target))
        return (log_marginal[target] - log_probs.gather(1, target[:, None])[:, 0]).mean()

    losses: dict[str, Criterion] = {
        "cross-entropy": F.cross_entropy,
        "information gain": gain,
        "weighted": ours(rl.WeightedLoss, k),
        "logit-adjusted": ours(rl.LogitAdjustedLoss, k),
        "naive formula": naive,
        "MONAI focal": lambda z, y: focal(z, y[:, None]),
        "kornia focal": kornia.losses.FocalLoss(alpha=None, gamma=2.0, reduction="mean"),
    }
    few = len(target) * k <= 5_000_000 or k < 100  # one-hot codes of more take the focal losses minutes and tens of gigabytes
    return {name: partial(step, loss, logits, target) for name, loss in losses.items() if few or "focal" not in name}


def by_size() -> str:
    """Return a row per size: milliseconds of cross-entropy, then ratios to it, in turn and apart."""
    rows = []
    for n, k in SIZES:
        logits, target = torch.randn(n, k, requires_grad=True), torch.randint(k, (n,))
        calls = contenders(logits, target)
        without, repeats = {name: call for name, call in calls.items() if "focal" not in name}, 600 if n * k < 100_000 else 15
        both = medians(calls, repeats), medians(without, repeats, apart=True)
        cells = [f"{n:,}×{k:,}", *(f"{1e3 * times['cross-entropy']:.3f}" for times in both)]
        for name in COMPARED:
            ratios = [f"{times[name] / times['cross-entropy']:.2f}" for times in both if name in times]
            cells.append(" / ".join(ratios) or "–")
        if n * k >= 1_000_000:
            forget = partial(setattr, logits, "grad", None)
            own, plain = (peak_extra_bytes(calls[name], forget) for name in ("information gain", "cross-entropy"))
        rows.append(shown([*cells, f"{own / plain:.2f}" if n * k >= 1_000_000 else "–"]))
    header = ["logits", "cross-entropy in turn, ms", "apart, ms", *(f"{name}, in turn / apart" for name in COMPARED)]
    return table([*header, "information gain, peak memory"], rows)


def by_pixel() -> str:
    """Return the cost for labels of pixels, some of them ignored."""
    logits, target = torch.randn(4, 5, 256, 256, requires_grad=True), torch.randint(5, (4, 256, 256))
    target[:, :20] = 255
    losses = partial(F.cross_entropy, ignore_index=255), ours(rl.InformationGainLoss, 5, ignore_index=255)
    calls = [partial(step, loss, logits, target) for loss in losses]
    rows = [[f"4×5×256×256, ignore_index, {way}", *compared(calls, 30, 2, way == "apart")] for way in ("in turn", "apart")]
    return table(["segmentation", "cross-entropy, ms", "ours, ms", "time ratio"], rows)


def training(model: nn.Module, criterion: Criterion, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()


def small_net() -> str:
    """Return microseconds of the first 1,000 steps of 20–64–2, batches of 64, monitor on, in processor time."""

    def train(with_gain: bool) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
        optimizer = torch.optim.Adam(model.parameters())
        criterion: Criterion = rl.InformationGainLoss(rl.Prevalence.binary(0.01)) if with_gain else F.cross_entropy
        for batch in zip(torch.randn(1000, 64, 20), torch.randint(2, (1000, 64)), strict=True):
            training(model, criterion, optimizer, *batch)

    calls = {"plain": partial(train, False), "ours": partial(train, True)}
    plain, own = medians(calls, 5, clock=time.process_time, warm_up=1).values()
    header = ["first 1,000 steps of 20–64–2, monitor on: cross-entropy, µs a step", "ours", "ratio of CPU time"]
    return table(header, [[f"{1e3 * plain:.0f}", f"{1e3 * own:.0f}", f"{own / plain:.2f}"]])


def large_nets() -> str:
    """Return whole training steps, with the loss's share in them."""
    unet = UNet(spatial_dims=2, in_channels=1, out_channels=5, channels=(16, 32, 64, 128), strides=(2, 2, 2), num_res_units=2)
    resnet, rows = resnet18(spatial_dims=2, n_input_channels=3, num_classes=10, conv1_t_stride=2), []
    for name, model, x, y, k in (
        ("ResNet-18, 32×3×96×96", resnet, torch.randn(32, 3, 96, 96), torch.randint(10, (32,)), 10),
        ("MONAI U-Net, dense labels 4×5×256×256", unet, torch.randn(4, 1, 256, 256), torch.randint(5, (4, 256, 256)), 5),
    ):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        losses: list[Criterion] = [F.cross_entropy, ours(rl.InformationGainLoss, k)]
        calls = [partial(training, model, loss, optimizer, x, y) for loss in losses]
        size = sum(weight.numel() for weight in model.parameters()) / 1e6
        rows.append([f"{name}, {size:.1f} M weights", *compared(calls, 25, 0)])
    return table(["training step", "cross-entropy, ms", "information gain, ms", "time ratio"], rows)


def loss_overhead() -> str:
    torch.manual_seed(0)
    machine = f"torch {torch.__version__}, {torch.get_num_threads()} threads, medians, losses without their monitor unless said"
    return f"{machine}.\n\n{by_size()}\n{by_pixel()}\n{small_net()}\n{large_nets()}"


if __name__ == "__main__":
    write_pages(__doc__, loss_overhead=loss_overhead)
