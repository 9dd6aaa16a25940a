"""Run by `torchrun`: each rank takes half of a saved batch and writes its loss and gradients. Not a test module."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import rightloss as rl


def main(folder: str) -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    cases = torch.load(f"{folder}/cases.pt", weights_only=True)
    results = {}
    for name, case in cases.items():
        model = nn.Linear(case["x"].shape[-1], case["outputs"])
        model.load_state_dict(case["weights"])
        criterion = make_criterion(case)
        ddp = nn.parallel.DistributedDataParallel(model)
        losses = []
        for x, y in zip(case["x"], case["y"], strict=True):
            rows = slice(rank * len(x) // ranks, (rank + 1) * len(x) // ranks)
            ddp.zero_grad()
            loss = loss_of(criterion, ddp, case, x[rows], y[rows], rank, ranks)
            loss.backward()
            losses.append(loss.detach())
        average = torch.stack(losses)
        dist.all_reduce(average)
        results[name] = {"loss": average / ranks, "gradients": [p.grad for p in model.parameters()]}
    alone = make_criterion(next(iter(cases.values()))).eval()
    if rank == 0:  # would wait for the other rank for ever if it asked it for anything
        alone(torch.randn(8, 3), torch.arange(8) % 3)
        torch.save(results, f"{folder}/results.pt")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # threads of the process group sometimes abort a normal exit


def loss_of(
    criterion: rl.InformationGainLoss,
    model: nn.Module,
    case: dict[str, Any],
    x: torch.Tensor,
    y: torch.Tensor,
    rank: int = 0,
    ranks: int = 1,
) -> torch.Tensor:
    """Return the loss of a rank's rows, with its share of the unlabelled ones where there are any; one forward pass."""
    if "unlabelled" not in case:
        loss: torch.Tensor = criterion(model(x), y)
        return loss
    others = case["unlabelled"]
    cut = round(0.25 * len(others)) if ranks == 2 else 0  # the ranks have unequal shares
    own = others if ranks == 1 else others[:cut] if rank == 0 else others[cut:]
    outputs = model(torch.cat([x, own]))
    loss = criterion(outputs[: len(x)], y, unlabelled=outputs[len(x) :])
    return loss


def make_criterion(case: dict[str, Any]) -> rl.InformationGainLoss:
    if case["marginal"] == "regression":
        normal = torch.distributions.Normal(0.0, 1.0)
        return rl.InformationGainLoss(rl.ContinuousPrevalence(normal), rl.Gaussian(scale=0.8, learn_scale=False))
    if case.get("findings"):
        prevalence: Any = rl.Prevalence.multilabel(case["population"], case["sampling"], case["evidence"])
    else:
        prevalence = rl.Prevalence(case["population"], case["sampling"], case["evidence"])
    if case.get("unknown"):
        prevalence = rl.Prevalence.unknown(3, case["sampling"]).with_evidence(case["evidence"])
    marginal: Any = {"batch": rl.BatchMarginal, "classwise": rl.ClasswiseMarginal, "running": rl.RunningMarginal}[
        case["marginal"]
    ]()
    return rl.InformationGainLoss(
        prevalence,
        marginal=marginal,
        reference="population" if case["paper"] else None,
        fused=case["fused"],
        unlabelled_weight=case.get("weight"),
        unlabelled_evidence=case.get("people", 0.0),
    )


if __name__ == "__main__":
    main(sys.argv[1])
