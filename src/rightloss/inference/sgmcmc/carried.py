"""q for chains that move faster than an average can follow.

Stage: minibatches' log m before and after a step → log q (m, k), as a `Follower`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..followers import averaged_in
from ..priors import Params


class CarriedMarginal:
    """A running average that is taken along by each step.

    A running average tells p(y|w) of where the weights were. An optimiser slows down, and the average catches up; a chain never
    does, and its draws come out too narrow. Here the average is first multiplied by what the step changes in m, on one and the
    same minibatch, where most of the noise cancels: log q ← log q + log m(w_t) − log m(w_{t−1}). Only then is m(w_t) averaged
    in. (The estimator of Cutkosky and Orabona 2019, with ratios in the place of differences, so that q stays positive.)

    Args:
        decay: that of the running average.
    """

    def __init__(self, decay: float) -> None:
        self.decay, self.steps = decay, 0
        self.log_average: Tensor | None = None
        self.before: Tensor | None = None

    def expect(self, before: Float[Tensor, "m k"]) -> None:
        """log m at the weights of the step before, on the minibatches that come next."""
        self.before = before

    def peek(self, params: Params, log_m: Float[Tensor, "m k"]) -> Float[Tensor, "m k"]:
        """log q."""
        if self.log_average is None:
            return log_m
        carried = self.log_average if self.before is None else self.log_average + log_m - self.before
        return averaged_in(carried, log_m, self.decay, self.steps)

    def move(self, params: Params, log_m: Float[Tensor, "m k"]) -> None:
        """Take in what the minibatches said."""
        if bool(torch.isfinite(log_m).all()):
            self.log_average, self.steps = self.peek(params, log_m), self.steps + 1
        self.before = None
