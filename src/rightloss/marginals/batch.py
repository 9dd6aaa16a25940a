"""q from the minibatch itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .contract import Estimate, not_in_regression, unseen


class BatchMarginal(nn.Module):
    """q = m, the minibatch's own `avg_n β_n p(k|x_n,w)`, Eq. (4).

    Simple and stateless, the one for `torch.func` and for regression. log m is biased low, by about
    Var[m]/(2 p(k|w)²), of order 1/n; at a small prevalence under the paper's reference it hangs on a few examples.
    """

    def prepare(self, num_classes: int | None) -> None:
        """Nothing to prepare: any support will do."""

    def mix(self, sampling: Tensor, batch: Callable[[], Tensor]) -> Tensor:
        return sampling

    def value(self, estimate: Estimate) -> Float[Tensor, " k"]:
        if estimate.examples < 2:
            raise ValueError(
                "Expected a batch of at least 2 examples for BatchMarginal, but got 1: its marginal is its own prediction, "
                "so the gain and its gradient are 0; use PoolMarginal or RunningMarginal, or larger batches."
            )
        return estimate.log_m


class ClasswiseMarginal(nn.Module):
    """q = m with the classes' averages taken apart: `m_k = Σ_c r_c avg_{n: y_n=c} p(k|x_n,w)`, the appendix's last equation.

    It sums to 1, and needs every class in every (global) batch: use `StratifiedBatchSampler`.
    """

    def prepare(self, num_classes: int | None) -> None:
        not_in_regression(num_classes, "ClasswiseMarginal", "it averages within classes")

    def mix(self, sampling: Tensor, batch: Callable[[], Tensor]) -> Tensor:
        realised = batch()
        missing = realised == 0
        if unseen(realised):
            return torch.where(missing.any(), torch.nan, realised)
        if bool(missing.any()):
            absent = torch.nonzero(missing).flatten().tolist()
            raise ValueError(
                f"Expected every class in the batch for ClasswiseMarginal, but class(es) {absent[:10]} are missing: "
                "use StratifiedBatchSampler, larger batches, or another marginal."
            )
        return realised

    def value(self, estimate: Estimate) -> Float[Tensor, " k"]:
        return estimate.log_m
