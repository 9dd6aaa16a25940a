"""Marginals where states cannot change, or must not be kept: heard, gone over anew, begun anew.

Stage: a marginal → one whose value a `torch.func` transform can use at any weights, or one that a run begins with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..marginals import AuxiliaryMarginal, Estimate, Marginal, PoolMarginal, RunningMarginal, mean_over_batches
from .steps import in_mode

Pool = tuple[Tensor, Tensor | None]


class Heard:
    """A marginal whose minibatch estimate can be heard."""

    log_m: Tensor

    def __init__(self, marginal: Any) -> None:
        self.prepare, self.mix, self.marginal = marginal.prepare, marginal.mix, marginal

    def value(self, estimate: Estimate) -> Tensor:
        self.log_m = estimate.log_m
        result: Tensor = self.marginal.value(estimate)
        return result


class Pass:
    """A `PoolMarginal` that goes over its pool for every batch, at the weights the model has, and keeps nothing."""

    def __init__(self, model: nn.Module, marginal: PoolMarginal) -> None:
        self.model, self.marginal = model, marginal

    def prepare(self, num_classes: int | None) -> None:
        """Nothing to prepare."""

    def mix(self, sampling: Tensor, batch: Callable[[], Tensor]) -> Tensor:
        return sampling

    @torch.no_grad()
    def value(self, estimate: Estimate) -> Tensor:
        with in_mode(self.model, False):
            batches = pool_batches(self.marginal, estimate.log_m.device)
            return mean_over_batches([estimate.measure(self.model(x), y) for x, y in batches])


def begun_anew(marginal: Marginal) -> Marginal:
    """The marginal as a run begins with it: one that knows nothing of the runs before.

    A running average and a pool's last pass are another object's. q_ψ unlearns in place, so that it can be asked after the run;
    in eval mode it is to be used as it stands. Others are as they are: those of this package have no state.
    """
    if isinstance(marginal, RunningMarginal):
        return RunningMarginal(marginal.decay)
    if isinstance(marginal, PoolMarginal):
        return PoolMarginal(marginal.model, marginal.loader, marginal.every, marginal.labelled)
    if isinstance(marginal, AuxiliaryMarginal) and marginal.training:
        _unlearn(marginal)
    return marginal


def _unlearn(marginal: AuxiliaryMarginal) -> None:
    assert marginal.network is not None
    origin, classes = marginal.network.origin, marginal._seen_marginals.shape[1]
    blank = AuxiliaryMarginal(lambda: origin, marginal.hidden, marginal.lr, marginal.memory, marginal.draw)
    blank.prepare(classes)
    marginal.load_state_dict(blank.state_dict())


def pool_batches(marginal: PoolMarginal, device: torch.device) -> list[Pool]:
    """What the pool holds, there; None for labels that it does not have."""
    pairs = [
        (batch[0], batch[1] if marginal.labelled else None) if isinstance(batch, tuple | list) else (batch, None)
        for batch in marginal.loader
    ]
    if not pairs:
        raise ValueError("Expected the pool's loader to give at least one batch, but got none: is it a used-up iterator?")
    return [(x.to(device), None if y is None else y.to(device)) for x, y in pairs]


def no_measure(outputs: Tensor, target: Tensor | None) -> tuple[Tensor, Tensor | float]:
    """`Estimate.measure` for a marginal that only follows weights, and needs no other data."""
    raise AssertionError("a marginal that follows weights asked for other data")
