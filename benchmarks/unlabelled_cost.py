"""What unlabelled rows cost: a training step with as many unlabelled as labelled rows, and memory by the number of rows.

Each step is one forward pass over all rows, the loss, the backward pass and the optimiser. Processor time, each contender in
loops of its own.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from loss_overhead import steady
from measuring import medians, peak_extra_bytes, shown, table, write_pages
from monai.networks.nets import UNet, resnet18
from torch import Tensor, nn

import rightloss as rl

PREVALENCE = rl.Prevalence.binary(0.01)


def step(model: nn.Module, loss: nn.Module, x: Tensor, y: Tensor, others: Tensor | None) -> None:
    """Take a step of training without an update; `others` are the unlabelled inputs."""
    model.zero_grad()
    outputs = model(x if others is None else torch.cat([x, others]))
    more = {} if others is None else {"unlabelled": outputs[len(x) :]}
    loss(outputs[: len(x)], y, **more).backward()


def cases() -> list[tuple[str, nn.Module, Tensor, Tensor, int]]:
    """Return name, model, inputs, labels and repeats of each training step."""
    mlp = nn.Sequential(nn.Linear(30, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
    unet = UNet(spatial_dims=2, in_channels=1, out_channels=2, channels=(16, 32, 64, 128), strides=(2, 2, 2), num_res_units=2)
    resnet = resnet18(spatial_dims=2, n_input_channels=3, num_classes=2, conv1_t_stride=2)
    return [
        ("linear, 256 rows × 30", nn.Linear(30, 2), torch.randn(256, 30), torch.arange(256) % 2, 600),
        ("MLP 256-256, 256 rows × 30", mlp, torch.randn(256, 30), torch.arange(256) % 2, 300),
        ("ResNet-18, 16×3×96×96", resnet, torch.randn(16, 3, 96, 96), torch.arange(16) % 2, 12),
        ("MONAI U-Net, dense labels 4×2×128×128", unet, torch.randn(4, 1, 128, 128), torch.randint(2, (4, 128, 128)), 15),
    ]


def steps() -> str:
    rows = []
    for name, model, x, y, repeats in cases():
        gain, adjusted = (steady(loss(PREVALENCE)) for loss in (rl.InformationGainLoss, rl.LogitAdjustedLoss))
        evidence = steady(rl.LogitAdjustedLoss(PREVALENCE, unlabelled_evidence=3))
        unknown, others = steady(rl.InformationGainLoss(rl.Prevalence.unknown(2))), torch.randn_like(x)
        contenders: dict[str, tuple[Any, Tensor | None]] = {
            **{"gain": (gain, None), "gain, unlabelled": (gain, others), "adjusted": (adjusted, None)},
            **{"adjusted, unlabelled": (adjusted, others), "evidence": (evidence, others), "unknown": (unknown, others)},
        }
        calls = {label: partial(step, model, loss, x, y, more) for label, (loss, more) in contenders.items()}
        times = medians(calls, repeats, apart=True, clock=time.process_time)
        ratios = [times["gain, unlabelled"] / times["gain"], times["adjusted, unlabelled"] / times["adjusted"]]
        ratios += [times["evidence"] / times["adjusted"], times["unknown"] / times["gain"]]
        rows.append(shown([name, f"{1e3 * times['gain']:.2f}", *(f"{ratio:.2f}" for ratio in ratios)]))
    header = ["training step", "labelled alone, ms", "information gain", "logit adjustment"]
    return table([*header, "logit adjustment, ε = 3", "information gain, π unknown"], rows)


def memory() -> str:
    """Return the peak memory of the loss, forward and backward, at growing numbers of unlabelled rows."""
    rows = []
    for unlabelled in (250_000, 500_000, 1_000_000, 2_000_000):
        z, y = torch.randn(10_000, 2, requires_grad=True), torch.arange(10_000) % 2
        others, loss = torch.randn(unlabelled, 2, requires_grad=True), steady(rl.InformationGainLoss(PREVALENCE))

        def call(loss: nn.Module = loss, z: Tensor = z, y: Tensor = y, others: Tensor = others) -> None:
            loss(z, y, unlabelled=others).backward()

        peak = min(peak_extra_bytes(call, partial(setattr, others, "grad", None)) for _ in range(3))
        rows.append(shown([f"{unlabelled:,}", f"{peak / 2**20:.0f}", f"{peak / unlabelled:.0f}"]))
    return table(["unlabelled rows × 2 logits", "peak, MiB", "bytes per row"], rows)


def unlabelled_cost() -> str:
    torch.manual_seed(0)
    words = (
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, medians of processor time; ratios to the same loss "
    )
    return f"{words}on the labelled rows alone, with as many unlabelled rows as labelled ones.\n\n{steps()}\n{memory()}"


if __name__ == "__main__":
    write_pages(__doc__, unlabelled_cost=unlabelled_cost)
