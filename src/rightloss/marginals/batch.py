"""BatchMarginal and ClasswiseMarginal: q from the minibatch itself, without state."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .contract import MinibatchEstimate, cannot_be_read, check_classes


class BatchMarginal(nn.Module):
    """q = m, the minibatch's own `avg_n β_n p(k|x_n,w)`, Eq. (4).

    Simple and stateless: use it for `torch.func` and for regression. log m is biased downwards by about
    Var[m]/(2 p(k|w)²), of order 1/n. At a small prevalence with the paper's reference it depends on few examples.

    Examples:
        >>> import torch, rightloss as rl
        >>> loss = rl.InformationGainLoss(rl.Prevalence.binary(0.01, evidence=0.0), marginal=rl.BatchMarginal())
        >>> y = torch.tensor([0, 1, 0, 1])
        >>> abs(float(loss(torch.ones(4, 2), y))) < 1e-6  # a constant prediction gains nothing
        True
    """

    def prepare(self, num_classes: int | None) -> None:
        """Accept any support."""

    def sampling_frequencies(self, sampling: Tensor, realised: Callable[[], Tensor]) -> Tensor:
        return sampling

    def value(self, estimate: MinibatchEstimate) -> Float[Tensor, "*sets k"]:
        if estimate.examples < 2:
            raise ValueError(
                "Expected a batch of at least 2 examples for BatchMarginal, but got 1: its marginal is its own prediction, "
                "so the gain and its gradient are 0; use PoolMarginal or RunningMarginal, or larger batches."
            )
        return estimate.log_m

    def update(self, estimate: MinibatchEstimate) -> Float[Tensor, "*sets k"]:
        return self.value(estimate)

    def reset(self) -> None:
        """Do nothing: there is no state."""


class ClasswiseMarginal(nn.Module):
    """q = m with an average per class: `m_k = Σ_c r_c avg_{n: y_n=c} p(k|x_n,w)`, the appendix's last equation.

    It sums to 1, and needs every class in every (global) batch: use `StratifiedBatchSampler`.

    Examples:
        >>> import torch, rightloss as rl
        >>> loss = rl.InformationGainLoss(rl.Prevalence.binary(0.01, evidence=0.0), marginal=rl.ClasswiseMarginal())
        >>> abs(float(loss(torch.ones(3, 2), torch.tensor([0, 1, 1])))) < 1e-6
        True
    """

    def prepare(self, num_classes: int | None) -> None:
        check_classes(num_classes, "ClasswiseMarginal", "it averages within classes")

    def sampling_frequencies(self, sampling: Tensor, realised: Callable[[], Tensor]) -> Tensor:
        found = realised()
        missing = found == 0
        if cannot_be_read(found):
            return torch.where(missing.any(), torch.nan, found)
        if bool(missing.any()):
            absent = torch.nonzero(missing).flatten().tolist()
            raise ValueError(
                f"Expected every class in the batch for ClasswiseMarginal, but class(es) {absent[:10]} are missing: "
                "use StratifiedBatchSampler, larger batches, or another marginal."
            )
        return found

    def value(self, estimate: MinibatchEstimate) -> Float[Tensor, "*sets k"]:
        return estimate.log_m

    def update(self, estimate: MinibatchEstimate) -> Float[Tensor, "*sets k"]:
        return estimate.log_m

    def reset(self) -> None:
        """Do nothing: there is no state."""
