"""What unlabelled rows cost: a training step with as many unlabelled as labelled rows, and memory by the number of rows.

Each step is one forward pass over all rows, the loss, the backward pass and the optimiser. Processor time, each contender in
loops of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from loss_overhead import resnet18, steady
from monai.networks.nets import UNet
from report import folder, medians_apart, peak_extra_bytes, table
from torch import Tensor, nn

import rightloss as rl

POPULATION = 0.01


def step(model: nn.Module, loss: nn.Module, x: Tensor, y: Tensor, others: Tensor | None) -> Callable[[], None]:
    """Return a step of training; `others` are the unlabelled inputs."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def call() -> None:
        optimizer.zero_grad()
        if others is None:
            loss(model(x), y).backward()
        else:
            outputs = model(torch.cat([x, others]))
            loss(outputs[: len(x)], y, unlabelled=outputs[len(x) :]).backward()
        optimizer.step()

    return call


def cases() -> list[tuple[str, nn.Module, Tensor, Tensor, int]]:
    """Return name, model, inputs, labels and repeats of each training step."""
    mlp = nn.Sequential(nn.Linear(30, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
    unet = UNet(spatial_dims=2, in_channels=1, out_channels=2, channels=(16, 32, 64, 128), strides=(2, 2, 2), num_res_units=2)
    return [
        ("linear, 256 rows × 30", nn.Linear(30, 2), torch.randn(256, 30), torch.arange(256) % 2, 600),
        ("MLP 256-256, 256 rows × 30", mlp, torch.randn(256, 30), torch.arange(256) % 2, 300),
        ("ResNet-18, 16×3×96×96", resnet18(2), torch.randn(16, 3, 96, 96), torch.arange(16) % 2, 12),
        ("MONAI U-Net, dense labels 4×2×128×128", unet, torch.randn(4, 1, 128, 128), torch.randint(2, (4, 128, 128)), 15),
    ]


def steps() -> str:
    rows = []
    for name, model, x, y, repeats in cases():
        prevalence = rl.Prevalence.binary(POPULATION)
        calls = {}
        losses: dict[str, Any] = {"gain": rl.InformationGainLoss, "adjusted": rl.LogitAdjustedLoss}
        for label, make in losses.items():
            for others in (None, torch.randn_like(x)):
                calls[label, others is not None] = step(model, steady(make(prevalence)), x, y, others)
        calls["unknown", True] = step(
            model, steady(rl.InformationGainLoss(rl.Prevalence.unknown(2))), x, y, torch.randn_like(x)
        )
        with_evidence = steady(rl.LogitAdjustedLoss(prevalence, unlabelled_evidence=3))
        calls["evidence", True] = step(model, with_evidence, x, y, torch.randn_like(x))
        named = {f"{label} {bool(has)}": call for (label, has), call in calls.items()}
        times = medians_apart(named, repeats, time.process_time)
        ratios = [times["gain True"] / times["gain False"], times["adjusted True"] / times["adjusted False"]]
        ratios += [times["evidence True"] / times["adjusted False"], times["unknown True"] / times["gain False"]]
        rows.append([name, f"{1e3 * times['gain False']:.2f}", *(f"{ratio:.2f}" for ratio in ratios)])
        print(" | ".join(rows[-1]), flush=True)
    header = ["training step", "labelled alone, ms", "information gain", "logit adjustment"]
    header += ["logit adjustment, ε = 3", "information gain, π unknown"]
    return table(header, rows)


def memory() -> str:
    """Return the peak memory of the loss, forward and backward, at growing numbers of unlabelled rows."""
    rows, prevalence = [], rl.Prevalence.binary(POPULATION)
    for unlabelled in (250_000, 500_000, 1_000_000, 2_000_000):
        z, y = torch.randn(10_000, 2, requires_grad=True), torch.arange(10_000) % 2
        others = torch.randn(unlabelled, 2, requires_grad=True)
        loss = steady(rl.InformationGainLoss(prevalence))

        def call(loss: nn.Module = loss, z: Tensor = z, y: Tensor = y, others: Tensor = others) -> None:
            loss(z, y, unlabelled=others).backward()

        peak = min(peak_extra_bytes(call, partial(setattr, others, "grad", None)) for _ in range(3))
        rows.append([f"{unlabelled:,}", f"{peak / 2**20:.0f}", f"{peak / unlabelled:.0f}"])
        print(" | ".join(rows[-1]), flush=True)
    return table(["unlabelled rows × 2 logits", "peak, MiB", "bytes per row"], rows)


def main() -> None:
    torch.manual_seed(0)
    out = folder()
    machine = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    head = (
        f"{machine}, medians of processor time; ratios to the same loss on the labelled rows alone, with as many unlabelled "
        "rows as labelled ones. Made by `python benchmarks/unlabelled_cost.py`.\n"
    )
    page = "\n".join([head, steps(), memory()])
    (out / "unlabelled_cost.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
