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
            loss = criterion(ddp(x[rows]), y[rows])
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
    os._exit(0)  # threads of the process group now and then abort an ordinary exit


def make_criterion(case: dict[str, Any]) -> rl.InformationGainLoss:
    if case["marginal"] == "regression":
        normal = torch.distributions.Normal(0.0, 1.0)
        return rl.InformationGainLoss(rl.ContinuousPrevalence(normal), rl.Gaussian(scale=0.8, learn_scale=False))
    prevalence = rl.Prevalence(case["population"], case["sampling"], case["evidence"])
    marginal: Any = {"batch": rl.BatchMarginal, "classwise": rl.ClasswiseMarginal, "running": rl.RunningMarginal}[
        case["marginal"]
    ]()
    reference = prevalence.population if case["paper"] else None
    return rl.InformationGainLoss(prevalence, marginal=marginal, reference=reference, fused=case["fused"])


if __name__ == "__main__":
    main(sys.argv[1])
