"""What the losses cost next to F.cross_entropy, focal losses and the information gain written naively.

Forward and backward, default settings (sampled mix as the reference, running marginal), all contenders in one run: in turn,
where each finds memory as the others left it; and apart, each in loops of its own, where memory stays warm. Then whole
training steps: ResNet-18 with a label per image, MONAI's U-Net with a label per pixel.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import kornia
import torch
import torch.nn.functional as F
from monai.losses.focal_loss import FocalLoss as MonaiFocalLoss
from monai.networks.nets import UNet
from report import folder, medians, medians_apart, peak_extra_bytes, table
from torch import Tensor, nn

import rightloss as rl

Loss = TypeVar("Loss", rl.InformationGainLoss, rl.WeightedLoss, rl.LogitAdjustedLoss)
SIZES = [(64, 2), (256, 100), (1024, 1000), (4096, 1000), (512, 50_000), (1_000_000, 5)]


def naive(logits: Tensor, target: Tensor, log_offset: Tensor) -> Tensor:
    """The formula with torch's own functions and q = the batch's marginal."""
    log_probs = F.log_softmax(logits + log_offset, 1)
    log_marginal = torch.logsumexp(log_probs, 0) - math.log(len(target))
    return (log_marginal[target] - log_probs.gather(1, target[:, None])[:, 0]).mean()


def step(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, target: Tensor) -> Callable[[], None]:
    """Forward and backward, as in training."""

    def call() -> None:
        logits.grad = None
        loss(logits, target).backward()

    return call


def steady(loss: Loss) -> Loss:
    """Return the loss as it is after the first batches: without its monitor, which looks at all of the first 16.

    Of the first 1,000 batches it looks at about 90, each for the cost of a forward pass; `warnings_of_losses.py` measures it.
    """
    loss.monitor = None
    return loss


def random_prevalence(k: int) -> rl.Prevalence:
    frequencies = torch.rand(k, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1
    return rl.Prevalence(frequencies / frequencies.sum())


def contenders(logits: Tensor, target: Tensor) -> dict[str, Callable[[], None]]:
    """What a user could train with instead, ours first after cross-entropy."""
    k = logits.shape[1]
    prevalence = random_prevalence(k)
    log_offset = -torch.tensor(prevalence.log_weights)
    monai_focal = MonaiFocalLoss(to_onehot_y=True, use_softmax=True)
    kornia_focal = kornia.losses.FocalLoss(alpha=None, gamma=2.0, reduction="mean")
    losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "cross-entropy": F.cross_entropy,
        "information gain": steady(rl.InformationGainLoss(prevalence)),
        "weighted": steady(rl.WeightedLoss(prevalence)),
        "logit-adjusted": steady(rl.LogitAdjustedLoss(prevalence)),
        "naive formula": lambda z, y: naive(z, y, log_offset.float()),
        "MONAI focal": lambda z, y: monai_focal(z, y[:, None]),
        "kornia focal": kornia_focal,
    }
    return {name: step(loss, logits, target) for name, loss in losses.items()}


def overhead() -> str:
    """A row per size: milliseconds of cross-entropy, then ratios to it, in turn and apart."""
    compared = ["information gain", "weighted", "logit-adjusted", "naive formula", "MONAI focal", "kornia focal"]
    rows = []
    for n, k in SIZES:
        torch.manual_seed(0)
        logits, target = torch.randn(n, k, requires_grad=True), torch.randint(k, (n,))
        calls = contenders(logits, target)
        if n * k > 5_000_000:  # one-hot codes of this size take the focal losses minutes and tens of gigabytes
            calls = {name: call for name, call in calls.items() if "focal" not in name or k < 100}
        repeats = 600 if n * k < 100_000 else 15
        in_turn = medians(calls, repeats)
        apart = medians_apart({name: call for name, call in calls.items() if "focal" not in name}, repeats)
        cells = [f"{n:,}×{k:,}", f"{1e3 * in_turn['cross-entropy']:.3f}", f"{1e3 * apart['cross-entropy']:.3f}"]
        for name in compared:
            ratios = [times[name] / times["cross-entropy"] for times in (in_turn, apart) if name in times]
            cells.append(" / ".join(f"{ratio:.2f}" for ratio in ratios) or "–")
        cells.append(memory_ratio(calls, logits) if n * k >= 1_000_000 else "–")
        rows.append(cells)
        print(" | ".join(cells), flush=True)
    header = ["logits", "cross-entropy in turn, ms", "apart, ms", *(f"{name}, in turn / apart" for name in compared)]
    return table([*header, "information gain, peak memory"], rows)


def memory_ratio(calls: dict[str, Callable[[], None]], logits: Tensor) -> str:
    """Peak memory of the information gain over that of cross-entropy."""
    forget = partial(setattr, logits, "grad", None)
    names = ("information gain", "cross-entropy")
    # the minimum of some calls, because the loss's monitor sometimes checks a batch, which takes memory
    ours, plain = (min(peak_extra_bytes(calls[name], forget) for _ in range(4)) for name in names)
    return f"{ours / plain:.2f}"


def segmentation() -> str:
    torch.manual_seed(0)
    logits, target = torch.randn(4, 5, 256, 256, requires_grad=True), torch.randint(5, (4, 256, 256))
    target[:, :20] = 255
    prevalence = random_prevalence(5)
    ours = steady(rl.InformationGainLoss(prevalence, ignore_index=255))
    calls = {
        "cross-entropy": step(lambda z, y: F.cross_entropy(z, y, ignore_index=255), logits, target),
        "ours": step(ours, logits, target),
    }
    rows = []
    for words, times in (("in turn", medians(calls, 30)), ("apart", medians_apart(calls, 30))):
        ratio = times["ours"] / times["cross-entropy"]
        milliseconds = [f"{1e3 * times['cross-entropy']:.2f}", f"{1e3 * times['ours']:.2f}"]
        rows.append([f"4×5×256×256, ignore_index, {words}", *milliseconds, f"{ratio:.2f}"])
    return table(["segmentation", "cross-entropy, ms", "ours, ms", "time ratio"], rows)


def slopes() -> str:
    """Return slopes of log time against log n and log k, at sizes where the fixed cost does not matter; 1 is linear."""
    rows = []
    for label, sizes in (("n", [(16_384, 256), (131_072, 256)]), ("k", [(1024, 4096), (1024, 32_768)])):
        seconds = []
        for n, k in sizes:
            logits, target = torch.randn(n, k, requires_grad=True), torch.randint(k, (n,))
            ours = step(steady(rl.InformationGainLoss(random_prevalence(k))), logits, target)
            seconds.append(medians({"ours": ours, "ce": step(F.cross_entropy, logits, target)}, 11))
        slopes = [f"{math.log(seconds[1][name] / seconds[0][name]) / math.log(8):.2f}" for name in ("ours", "ce")]
        rows.append([f"{label}, {sizes[0]} → {sizes[1]}", *slopes])
    return table(["cost grows with", "slope of log time, ours", "cross-entropy"], rows)


class Block(nn.Module):
    """Two 3×3 convolutions and a short cut, as in ResNet-18."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.short = nn.Conv2d(channels, out, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x))


def resnet18(k: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(channels, out, stride), Block(out, out, 1)]
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, k))


def training_steps() -> str:
    """Whole steps of training, with the loss's share in them."""
    torch.manual_seed(0)
    net, images, labels = resnet18(10), torch.randn(32, 3, 96, 96), torch.randint(10, (32,))
    unet = UNet(spatial_dims=2, in_channels=1, out_channels=5, channels=(16, 32, 64, 128), strides=(2, 2, 2), num_res_units=2)
    scans, masks = torch.randn(4, 1, 256, 256), torch.randint(5, (4, 256, 256))
    rows = []
    for name, model, x, y, k, repeats in (
        ("ResNet-18, 32×3×96×96", net, images, labels, 10, 25),
        ("MONAI U-Net, dense labels 4×5×256×256", unet, scans, masks, 5, 25),
    ):
        ours = steady(rl.InformationGainLoss(random_prevalence(k)))
        losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"cross-entropy": F.cross_entropy, "ours": ours}
        times = medians({key: training_step(model, loss, x, y) for key, loss in losses.items()}, repeats)
        size = sum(weight.numel() for weight in model.parameters()) / 1e6
        ratio = f"{times['ours'] / times['cross-entropy']:.3f}"
        rows.append([f"{name}, {size:.1f} M weights", *(f"{1e3 * times[key]:.0f}" for key in losses), ratio])
    return table(["training step", "cross-entropy, ms", "information gain, ms", "time ratio"], rows)


def small_net() -> str:
    """The first 1,000 steps of a small net, 20–64–2, batches of 64, Adam, monitor on; the best of five runs each, in turn."""
    seconds: dict[str, list[float]] = {"cross-entropy": [], "ours": []}
    for repeat in range(5):
        for name in seconds:
            torch.manual_seed(repeat)
            model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
            optimizer, x = torch.optim.Adam(model.parameters()), torch.randn(1000, 64, 20)
            y = torch.randint(2, (1000, 64))
            ours = rl.InformationGainLoss(rl.Prevalence.binary(0.01))
            loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy if name == "cross-entropy" else ours
            start = time.process_time()
            for some, labels in zip(x, y, strict=True):
                optimizer.zero_grad()
                loss(model(some), labels).backward()
                optimizer.step()
            seconds[name].append(time.process_time() - start)
    best = {name: min(values) for name, values in seconds.items()}
    row = [f"{1e3 * best[name]:.0f}" for name in best] + [f"{best['ours'] / best['cross-entropy']:.2f}"]
    return table(["first 1,000 steps of 20–64–2, monitor on: cross-entropy, µs a step", "ours", "ratio of CPU time"], [row])


def training_step(model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Callable[[], None]:
    """Forward, backward and a step of the optimiser."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def call() -> None:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

    return call


def main() -> None:
    out = folder()
    parts = [overhead(), segmentation(), slopes(), small_net(), training_steps()]
    machine = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    head = f"{machine}, medians, losses without their monitor unless said; made by `python benchmarks/loss_overhead.py`.\n"
    page = "\n".join([head, *parts])
    (out / "loss_overhead.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
