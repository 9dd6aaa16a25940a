"""q from the minibatches: the present one, a running average of all, and one of these for each of several findings."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..tensors import ordinary
from .contract import Marginal, MinibatchEstimate, cannot_be_read, check_classes, in_transform
from .pool import PoolMarginal

_ONE = torch.tensor(1)


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


class RunningMarginal(nn.Module):
    """q = exponential average of m over the minibatches, including the current one, with bias correction.

    The default. After t batches `q = Σ_s d^(t−s) m_s / Σ_s d^(t−s)`, kept in log space against underflow. In `eval()` mode it
    is used but not updated. A non-finite batch does not change it.

    Args:
        decay: d in [0, 1), the weight of the past per batch; 0 is `BatchMarginal`.

    Examples:
        >>> import torch, rightloss as rl
        >>> loss = rl.InformationGainLoss(rl.Prevalence.binary(0.01, evidence=0.5), marginal=rl.RunningMarginal(0.99))
        >>> for _ in range(3):
        ...     value = loss(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
        >>> int(loss.marginal.steps)
        3
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
        k = check_classes(num_classes, "RunningMarginal", "its support changes with every batch")
        if len(self.log_average) == k:
            return
        if int(self.steps) > 0:
            raise ValueError(
                f"Expected a RunningMarginal that is new, or of {k} classes, but it holds an average over "
                f"{len(self.log_average)}: make one for each loss."
            )
        self.log_average = self.log_average.new_zeros(k)

    def sampling_frequencies(self, sampling: Tensor, realised: Callable[[], Tensor]) -> Tensor:
        return sampling

    def value(self, estimate: MinibatchEstimate) -> Float[Tensor, "*sets k"]:
        log_m, average, steps = estimate.log_m, self._buffers["log_average"], self._buffers["steps"]
        assert average is not None
        assert steps is not None
        if cannot_be_read(log_m):
            return self._value_unread(log_m, average.to(log_m), steps.to(log_m.device))
        taken = int(steps)
        if taken == 0:
            return log_m
        if not self.training or not _is_finite(estimate):
            return average.to(log_m)
        return running_average(average, log_m, self.decay, taken)

    def update(self, estimate: MinibatchEstimate) -> Float[Tensor, "*sets k"]:
        log_q, log_m = self.value(estimate), estimate.log_m
        if not self.training:
            return log_q
        if in_transform():
            raise ValueError(
                "Expected no state to be changed inside a torch.func transform, but a RunningMarginal is in training mode: "
                "use BatchMarginal(), or call `.eval()` on the loss to use the running average as it stands."
            )
        if cannot_be_read(log_m):
            self.log_average, self.steps = self.log_average.to(log_m.device), self.steps.to(log_m.device)
            use = torch.isfinite(log_m.sum())
            self.log_average.copy_(torch.where(use, log_q, self.log_average))
            self.steps.copy_(self.steps + use)
        elif _is_finite(estimate):
            # bypass nn.Module's attribute handling, which costs as much as the average
            self._buffers["log_average"] = ordinary(log_q)
            self._buffers["steps"].add_(_ONE)  # type: ignore[union-attr]
        return log_q

    def reset(self) -> None:
        self.log_average = torch.zeros_like(self.log_average)
        self.steps = torch.zeros_like(self.steps)

    def _value_unread(self, log_m: Tensor, average: Tensor, steps: Tensor) -> Tensor:
        """Return log q without reading a value of a tensor."""
        before = torch.where(steps > 0, average, log_m)
        if not self.training:
            return before
        # the first average is exactly that of the batch, even if rounding makes its weight differ from 1
        moved = torch.where(steps == 0, log_m, running_average(average, log_m, self.decay, steps))
        return torch.where(torch.isfinite(log_m.sum()), moved, before)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Load the state in the saved precision."""
        saved = state_dict.get(f"{prefix}log_average")
        if isinstance(saved, Tensor):
            self.log_average = self.log_average.to(saved.dtype)
        super()._load_from_state_dict(state_dict, prefix, *others)

    def extra_repr(self) -> str:
        return f"decay={self.decay:g}"


class FindingMarginals(nn.ModuleList):
    """Copies of one marginal, one for each finding; that of a finding that no row of the minibatch has read is not updated.

    Args:
        marginal: the one to copy: `RunningMarginal`, `BatchMarginal`, `ClasswiseMarginal` or `AuxiliaryMarginal`.
        num_findings: L.
    """

    def __init__(self, marginal: Marginal, num_findings: int) -> None:
        given: Any = marginal
        if not isinstance(given, nn.Module) or isinstance(given, PoolMarginal):
            came = f"{type(given).__name__}: use RunningMarginal(), or one loss for each finding"
            raise ValueError(f"Expected a marginal of the minibatches for multi-label findings, but got {came}.")
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


def running_average(
    log_average: Float[Tensor, "... k"], log_m: Float[Tensor, "*sets k"], decay: float, steps: int | Tensor
) -> Float[Tensor, "*sets k"]:
    """Return the log of the exponential average of `steps` minibatches and one more; `RunningMarginal` has the formula.

    Args:
        log_average: log of the average so far; any finite numbers if `steps` is 0.
        log_m: log m of the new minibatch.
        decay: d.
        steps: t − 1, as a tensor if it cannot be read.
    """
    if isinstance(steps, Tensor):
        share = ((decay - 1) / torch.expm1((steps + 1).to(log_m.dtype) * _log(decay))).clamp_max(1.0)
        return torch.logaddexp(log_average.to(log_m) + torch.log1p(-share), log_m + torch.log(share))
    kept, taken = _log_shares((1 - decay) / (1 - decay ** (steps + 1)), log_m.dtype)
    return torch.logaddexp(log_average.to(log_m) + kept, log_m + taken)


@lru_cache(16)
def _log_shares(portion: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return log(1 − portion) and log portion as tensors, which torch handles faster than Python numbers."""
    with torch.inference_mode(False):
        return torch.tensor(_log(1 - portion), dtype=dtype), torch.tensor(math.log(portion), dtype=dtype)


def _is_finite(estimate: MinibatchEstimate) -> bool:
    return estimate.finite or math.isfinite(float(estimate.log_m.sum()))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
