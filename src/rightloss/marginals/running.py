"""q from the recent minibatches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .contract import Estimate, in_transform, not_in_regression, unseen


class RunningMarginal(nn.Module):
    """q = exponential average of the minibatches' m, the present one included, corrected for its start at nothing.

    The default. After t batches `q = Σ_s d^(t−s) m_s / Σ_s d^(t−s)`, kept in log space, however small the m. In `eval()` mode
    it is used but not moved. A non-finite batch leaves it as it was.

    Args:
        decay: d in [0, 1): how much of the past is kept per batch; 0 is `BatchMarginal`.
    """

    log_average: Tensor
    steps: Tensor

    def __init__(self, decay: float = 0.9) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise ValueError(f"Expected `decay` in [0, 1), but got {decay}: 0.9 averages over about ten batches.")
        self.decay = float(decay)
        self.register_buffer("log_average", torch.empty(0))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def prepare(self, num_classes: int | None) -> None:
        k = not_in_regression(num_classes, "RunningMarginal", "its support changes with every batch")
        if len(self.log_average) == k:
            return
        if int(self.steps) > 0:
            raise ValueError(
                f"Expected a RunningMarginal that is new, or of {k} classes, but it holds an average over "
                f"{len(self.log_average)}: make one for each loss."
            )
        self.log_average = self.log_average.new_zeros(k)

    def mix(self, sampling: Tensor, batch: Callable[[], Tensor]) -> Tensor:
        return sampling

    def value(self, estimate: Estimate) -> Float[Tensor, " k"]:
        log_m, training = estimate.log_m, self.training
        if training and in_transform():
            raise ValueError(
                "Expected no state to be changed inside a torch.func transform: use BatchMarginal(), "
                "or call `.eval()` on the loss to use the running average as it stands."
            )
        if self.log_average.device != log_m.device:
            self.log_average, self.steps = self.log_average.to(log_m.device), self.steps.to(log_m.device)
        average, steps = self.log_average.to(log_m.dtype), self.steps
        if unseen(log_m):
            return self._value_unseen(log_m)
        if not training or not (estimate.finite or math.isfinite(float(log_m.sum()))):
            return average if float(steps) > 0 else log_m
        share = (1 - self.decay) / (1 - self.decay ** float(steps.add_(1)))
        average = torch.logaddexp(average + _log(1 - share), log_m + math.log(share))
        # past nn.Module's bookkeeping, which costs as much as the average
        self._buffers["log_average"] = _ordinary(average) if average.is_inference() else average
        return average

    def _value_unseen(self, log_m: Tensor) -> Tensor:
        """The same without looking at a value."""
        steps, average = self.steps, self.log_average.to(log_m.dtype)
        if self.training:
            use = torch.isfinite(log_m.sum())
            share = (self.decay - 1) / torch.expm1((steps + 1).to(log_m.dtype) * _log(self.decay))
            share = share.clamp_max(1.0)
            moved = torch.logaddexp(average + torch.log1p(-share), log_m + torch.log(share))
            moved = torch.where(steps == 0, log_m, moved)  # where rounding keeps share from being 1
            steps, average = steps + use, torch.where(use, moved, average)
            self.steps.copy_(steps)
            self.log_average.copy_(average)
        return torch.where(steps > 0, average, log_m)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """As every module's, in the precision that was saved."""
        saved = state_dict.get(f"{prefix}log_average")
        if isinstance(saved, Tensor):
            self.log_average = self.log_average.to(saved.dtype)
        super()._load_from_state_dict(state_dict, prefix, *others)

    def extra_repr(self) -> str:
        return f"decay={self.decay:g}"


def _ordinary(tensor: Tensor) -> Tensor:
    """A tensor made under `torch.inference_mode` as one that can be used outside."""
    with torch.inference_mode(False):
        return tensor.clone()


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
