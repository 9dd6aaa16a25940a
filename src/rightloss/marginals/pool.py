"""q from a full pass over given data, now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .contract import Estimate, Reference


class PoolMarginal(nn.Module):
    """q = the marginal over a whole pool of data, exact at the weights of the last pass.

    Only the value comes from the pool: gradients are the minibatch's. Under `torch.distributed` each rank goes over its own
    loader, so give all ranks the same pool. The pool should be the training data (or, for
    curvature and checks, data of the same kind); a pool held out from training is overfitted to under the paper's
    reference and is no cure for a drifting intercept.

    Args:
        model: the network, called on the pool's inputs in eval mode and without gradients.
        loader: what to go over, any number of times: batches `(x, y)` with classes at the rates of `prevalence.sampling`;
            or, with `labelled=False`, inputs `x` (or tuples that start with them) drawn from the population, where β = 1.
            The latter needs the loss's `reference` to be the population.
        every: how many training batches one pass serves.
        labelled: whether the loader gives labels.
    """

    def __init__(self, model: nn.Module, loader: Iterable[Any], every: int = 100, labelled: bool = True) -> None:
        super().__init__()
        if every < 1:
            raise ValueError(f"Expected `every` to be at least 1 batch, but got {every}: 1 makes a pass for every batch.")
        self._model = Reference(model)
        self.loader, self.every, self.labelled = loader, int(every), labelled
        self._calls = 0
        self._pool: list[tuple[Tensor, Tensor | None]] = []
        self._log_q: Tensor | None = None
        self._over_classes = True

    @property
    def model(self) -> nn.Module:
        """The network."""
        model: nn.Module = self._model.get()
        return model

    def prepare(self, num_classes: int | None) -> None:
        self._over_classes = num_classes is not None

    def mix(self, sampling: Tensor, batch: Callable[[], Tensor]) -> Tensor:
        return sampling

    @torch.no_grad()
    def value(self, estimate: Estimate) -> Float[Tensor, " k"]:
        due = self.training and self._calls % self.every == 0
        self._calls += int(self.training)
        if self._over_classes:
            if self._log_q is None or due:
                self._log_q = mean_over_batches(self._over(estimate.measure, estimate.log_m.device))
            return self._log_q.to(estimate.log_m)
        if not self._pool or due:
            self._pool = self._over(lambda outputs, target: (outputs, target), estimate.log_m.device)
        return mean_over_batches([estimate.measure(outputs, target) for outputs, target in self._pool]).to(estimate.log_m)

    def refresh(self) -> None:
        """Forget the last pass, so that the next batch makes a new one: after loading weights, for example."""
        self._log_q, self._pool = None, []

    def _over(self, use: Callable[[Tensor, Tensor | None], Any], device: torch.device) -> list[Any]:
        """What `use` makes of the model's outputs on each batch of the pool; the model is left in the modes it was in."""
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        try:
            results = []
            for batch in self.loader:
                x, y = batch if self.labelled else (batch[0] if isinstance(batch, tuple | list) else batch, None)
                results.append(use(self.model(x.to(device)), None if y is None else y.to(device)))
        finally:
            for module, training in modes:
                module.training = training
        if not results:
            raise ValueError("Expected the pool's loader to give at least one batch, but got none: is it a used-up iterator?")
        return results


def mean_over_batches(sums: Sequence[tuple[Tensor, Tensor | float]]) -> Tensor:
    """log of the mean, from each batch's log-sum and log-count."""
    log_sums = torch.stack([each for each, _ in sums])
    log_counts = torch.stack([torch.as_tensor(count, dtype=log_sums.dtype, device=log_sums.device) for _, count in sums])
    return torch.logsumexp(log_sums, 0) - torch.logsumexp(log_counts, 0)
