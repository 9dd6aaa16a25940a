"""Run in a process of its own, without run-time type checks: losses under torch.compile. Not a test module."""

from __future__ import annotations

import sys
from typing import Any

import torch

import rightloss as rl


def main(backend: str) -> None:
    torch.manual_seed(0)
    prevalence = rl.Prevalence([0.7, 0.2, 0.1], [0.3, 0.3, 0.4], evidence=0.1)
    several = rl.Prevalence.multilabel([0.1, 0.2, 0.01], sampling=0.3)
    z, y = torch.randn(40, 3), torch.arange(40) % 3
    votes = torch.nn.functional.one_hot(y, 3).float()
    dense, mask = torch.randn(2, 3, 5, 6), torch.randint(3, (2, 5, 6))
    mask[0, 0] = -100
    cases: dict[str, tuple[Any, Any, Any]] = {
        "running": (lambda: rl.InformationGainLoss(prevalence), z, y),
        "batch": (lambda: rl.InformationGainLoss(prevalence, marginal=rl.BatchMarginal()), z, y),
        "classwise": (lambda: rl.InformationGainLoss(prevalence, marginal=rl.ClasswiseMarginal()), z, y),
        "paper": (lambda: rl.InformationGainLoss(prevalence, reference=prevalence.population), z, y),
        "soft": (lambda: rl.InformationGainLoss(prevalence), z, votes),
        "dense": (lambda: rl.InformationGainLoss(prevalence), dense, mask),
        "onion": (lambda: rl.InformationGainLoss(prevalence, likelihood=rl.OnionPeeling(3)), z[:, :2], y),
        "weighted": (lambda: rl.WeightedLoss(prevalence), z, y),
        "adjusted": (lambda: rl.LogitAdjustedLoss(prevalence), z, y),
        "plain": (lambda: rl.LogLikelihoodLoss(prevalence), z, y),
        "findings": (lambda: rl.InformationGainLoss(several), z, torch.where(z > 1.5, torch.nan, votes)),
    }
    chosen = cases if backend != "inductor" else {"running": cases["running"]}
    for name, (make, logits, target) in chosen.items():
        torch.compiler.reset()
        eager: Any = make()
        compiled: Any = torch.compile(make(), fullgraph=True, backend=backend)
        for step in range(3):
            moved = [(logits + 0.1 * step).clone().requires_grad_() for _ in range(2)]
            losses = [criterion(inputs, target) for criterion, inputs in zip((eager, compiled), moved, strict=True)]
            for loss in losses:
                loss.backward()
            torch.testing.assert_close(losses[0], losses[1])
            torch.testing.assert_close(moved[0].grad, moved[1].grad)
        print("same compiled:", name)


if __name__ == "__main__":
    main(sys.argv[1])
