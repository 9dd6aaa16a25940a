"""FindingMarginals: a marginal for each of several findings (multi-label)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .contract import Marginal, MinibatchEstimate, cannot_be_read
from .pool import PoolMarginal


class FindingMarginals(nn.ModuleList):
    """Copies of one marginal, one for each finding; that of a finding that no row of the minibatch has read is not updated.

    Args:
        marginal: the one to copy: `RunningMarginal`, `BatchMarginal`, `ClasswiseMarginal` or `AuxiliaryMarginal`.
        num_findings: L.
    """

    def __init__(self, marginal: Marginal, num_findings: int) -> None:
        given: Any = marginal
        if not isinstance(given, nn.Module) or isinstance(given, PoolMarginal):
            raise ValueError(
                f"Expected a marginal of the minibatches for multi-label findings, but got {type(given).__name__}: "
                "use RunningMarginal(), or one loss for each finding."
            )
        super().__init__(copy.deepcopy(given) for _ in range(num_findings))

    @property
    def each(self) -> list[Marginal]:
        """The marginals in the order of the findings."""
        return [cast(Marginal, marginal) for marginal in self]

    def prepare(self, num_classes: int | None) -> None:
        for marginal in self.each:
            marginal.prepare(num_classes)

    def sampling_frequencies(self, sampling: Tensor, realised: Callable[[], Tensor]) -> Tensor:
        found: list[Tensor] = []

        def once() -> Tensor:
            found[:] = found or [realised()]
            return found[0]

        def of(number: int) -> Callable[[], Tensor]:
            return lambda: once()[number]

        each = [marginal.sampling_frequencies(sampling[number], of(number)) for number, marginal in enumerate(self.each)]
        return torch.stack(each) if found else sampling

    def value(self, estimate: MinibatchEstimate) -> Float[Tensor, "l k"]:
        return self._each(estimate, "value")

    def update(self, estimate: MinibatchEstimate) -> Float[Tensor, "l k"]:
        return self._each(estimate, "update")

    def reset(self) -> None:
        for marginal in self.each:
            marginal.reset()

    def _each(self, estimate: MinibatchEstimate, call: str) -> Tensor:
        """Return log q of each finding; log m for one that was not read, which then has no weight in the loss."""
        log_m, read = estimate.log_m, estimate.read
        if read is None or not cannot_be_read(log_m):
            used = [True] * len(self) if read is None else read.tolist()
            parts = zip(self.each, log_m, used, strict=True)
            own = estimate._replace(read=None, measure=None)
            return torch.stack([getattr(each, call)(own._replace(log_m=m)) if use else m for each, m, use in parts])
        # without reading a value: a marginal ignores a minibatch that is not finite
        masked = torch.where(read[:, None], log_m, -torch.inf)
        own = estimate._replace(read=None, measure=None, finite=False)
        found = torch.stack([getattr(each, call)(own._replace(log_m=m)) for each, m in zip(self.each, masked, strict=True)])
        return torch.where(read[:, None], found, log_m)
