"""PoolMarginal: q from a full pass over given data, repeated every few batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..arrays import checked_int
from ..tensors import in_mode
from .contract import MinibatchEstimate, Reference

Pool = tuple[Tensor, Tensor | None]


class PoolMarginal(nn.Module):
    """q = the marginal over a whole pool of data, exact at the weights of the last pass.

    Only the value is from the pool; gradients are from the minibatch. Under `torch.distributed` each rank reads its own
    loader, so give all ranks the same pool. Use the training data as the pool (or, for curvature and checks, similar data).
    With the paper's reference, the model overfits to a held-out pool, and the intercept can still drift.

    Args:
        model: the network, called on the pool's inputs in eval mode and without gradients.
        loader: an iterable that can be read repeatedly: batches `(x, y)` with class frequencies `prevalence.sampling`; or,
            with `labelled=False`, inputs `x` (or tuples that start with x) from the population, where β = 1. The latter needs
            the population as the loss's `reference`.
        every: the number of training batches per pass.
        labelled: whether the loader has labels.

    Examples:
        >>> import torch, rightloss as rl
        >>> model, x, y = torch.nn.Linear(3, 2), torch.randn(8, 3), torch.arange(8) % 2
        >>> marginal = rl.PoolMarginal(model, [(x, y)], every=10)
        >>> loss = rl.InformationGainLoss(rl.Prevalence.binary(0.1), marginal=marginal)
        >>> loss(model(x[:4]), y[:4]).shape
        torch.Size([])
    """

    def __init__(self, model: nn.Module, loader: Iterable[Any], every: int = 100, labelled: bool = True) -> None:
        super().__init__()
        self._model = Reference(model)
        self.loader, self.labelled = loader, labelled
        self.every = checked_int(every, "every", 1, remedy="1 makes a pass for every batch")
        self._calls, self._over_classes = 0, True
        self._last_pass: Any = None  # log q; in regression, where the support changes, the outputs from which log q is computed

    @property
    def model(self) -> nn.Module:
        """The network."""
        model: nn.Module = self._model.get()
        return model

    def prepare(self, num_classes: int | None) -> None:
        self._over_classes = num_classes is not None

    def sampling_frequencies(self, sampling: Tensor, realised: Callable[[], Tensor]) -> Tensor:
        return sampling

    def value(self, estimate: MinibatchEstimate) -> Float[Tensor, " k"]:
        return self._from(self._latest(estimate), estimate)

    def update(self, estimate: MinibatchEstimate) -> Float[Tensor, " k"]:
        self._last_pass = self._latest(estimate)
        self._calls += int(self.training)
        return self._from(self._last_pass, estimate)

    def reset(self) -> None:
        """Discard the last pass, so that the next batch makes a new one, for example after loading weights."""
        self._last_pass, self._calls = None, 0

    def exact(self, estimate: MinibatchEstimate, model: nn.Module | None = None) -> Float[Tensor, " k"]:
        """Return log q from a new pass with `model` instead of the marginal's own, without a change of state."""
        return self._from(self._new_pass(estimate, self.model if model is None else model), estimate)

    def batches(self, device: torch.device) -> Iterator[Pool]:
        """Yield the pool's inputs and labels (None if it has none), on the device."""
        empty = True
        for batch in self.loader:
            x, y = (batch[0], batch[1] if self.labelled else None) if isinstance(batch, tuple | list) else (batch, None)
            empty = False
            yield x.to(device), None if y is None else y.to(device)
        if empty:
            raise ValueError("Expected the pool's loader to give at least one batch, but got none: is it a used-up iterator?")

    def _latest(self, estimate: MinibatchEstimate) -> Any:
        due = self.training and self._calls % self.every == 0
        return self._new_pass(estimate, self.model) if due or self._last_pass is None else self._last_pass

    @torch.no_grad()
    def _new_pass(self, estimate: MinibatchEstimate, model: nn.Module) -> Any:
        assert estimate.measure is not None
        with in_mode(model, training=False):
            outputs = ((model(x), y) for x, y in self.batches(estimate.log_m.device))
            return log_mean([estimate.measure(*each) for each in outputs]) if self._over_classes else list(outputs)

    @torch.no_grad()
    def _from(self, last_pass: Any, estimate: MinibatchEstimate) -> Tensor:
        if isinstance(last_pass, Tensor):
            return last_pass.to(estimate.log_m)
        assert estimate.measure is not None
        return log_mean([estimate.measure(outputs, target) for outputs, target in last_pass]).to(estimate.log_m)


def log_mean(sums: Sequence[tuple[Tensor, Tensor | float]]) -> Tensor:
    """Return the log of the mean over several batches, from the log-sum and log-count of each."""
    log_sums = torch.stack([each for each, _ in sums])
    log_counts = torch.stack([torch.as_tensor(count, dtype=log_sums.dtype, device=log_sums.device) for _, count in sums])
    return torch.logsumexp(log_sums, 0) - torch.logsumexp(log_counts, 0)
