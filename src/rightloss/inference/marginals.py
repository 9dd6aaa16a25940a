"""Marginals for inference: inside `torch.func`, at the start of a run, and for many sets of weights.

Stage: the minibatches' log m `(*sets, k)` → log q `(*sets, k)`. An ensemble's members and a sampler's chains are sets.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..marginals import (
    AuxiliaryMarginal,
    Marginal,
    MinibatchEstimate,
    PoolMarginal,
    RunningMarginal,
    in_transform,
    running_average,
)
from ..marginals.pool import Pool
from .priors import Params
from .steps import in_mode


class RecordingMarginal:
    """A marginal that records the minibatch's estimate. Inside `torch.func` it does not change state.

    There the marginal is used as in eval mode; a pool is evaluated at the model's current weights.

    Args:
        marginal: gives the value.
        model: the model, with the weights of the evaluation.
    """

    log_m: Tensor

    def __init__(self, marginal: Marginal, model: nn.Module) -> None:
        self.marginal, self.model = marginal, model
        self.prepare, self.sampling_frequencies, self.reset = marginal.prepare, marginal.sampling_frequencies, marginal.reset

    def value(self, estimate: MinibatchEstimate) -> Float[Tensor, " k"]:
        if isinstance(self.marginal, PoolMarginal):
            return self.marginal.exact(estimate, self.model)
        if not isinstance(self.marginal, nn.Module):
            return self.marginal.value(estimate)
        with in_mode(self.marginal, False):
            return self.marginal.value(estimate)

    def update(self, estimate: MinibatchEstimate) -> Float[Tensor, " k"]:
        self.log_m = estimate.log_m
        return self.value(estimate) if in_transform() else self.marginal.update(estimate)


def fresh_marginal(marginal: Marginal) -> Marginal:
    """Return a reset marginal for a new run, without state from earlier runs.

    A running average or a pool is copied first. Others are reset in place, so that an `AuxiliaryMarginal` can be used after the
    run; one in eval mode is not reset.
    """
    if isinstance(marginal, RunningMarginal):
        return RunningMarginal(marginal.decay)
    if isinstance(marginal, PoolMarginal):
        return PoolMarginal(marginal.model, marginal.loader, marginal.every, marginal.labelled)
    if not isinstance(marginal, nn.Module) or marginal.training:
        marginal.reset()
    return marginal


class AuxiliaryOfSets:
    """q = q_ψ(w), one network for all sets of weights: it reads the weights.

    Args:
        marginal: the network.
        vectors: sets of weights by name → the network's inputs, `(*sets, d)`.
    """

    def __init__(self, marginal: AuxiliaryMarginal, vectors: Callable[[Params], Tensor]) -> None:
        self.marginal, self.vectors, self.checked = marginal, vectors, False

    def value(self, estimate: MinibatchEstimate) -> Float[Tensor, "*sets k"]:
        assert estimate.params is not None
        return self._value(self.vectors(estimate.params), estimate.log_m) if self._has_learnt else estimate.log_m

    def update(self, estimate: MinibatchEstimate) -> Float[Tensor, "*sets k"]:
        log_m, params = estimate.log_m, estimate.params
        assert params is not None
        vectors = self.vectors(params)
        if self.marginal.training and bool(torch.isfinite(log_m).all()):
            self._check(params, vectors)
            for vector, each in zip(vectors, log_m, strict=True):
                self.marginal.learn(vector, each.exp())
        return self._value(vectors, log_m) if self._has_learnt else log_m

    def reset(self) -> None:
        self.marginal.reset()

    @property
    def _has_learnt(self) -> bool:
        return int(self.marginal._steps) > 0

    def _value(self, vectors: Tensor, like: Tensor) -> Tensor:
        return self.marginal.log_marginal(vectors).to(like)

    def _check(self, params: Params, vectors: Tensor) -> None:
        """Check once that q_ψ reads the weights of the target; one that reads another network would learn nothing."""
        elsewhere = {name: 1.5 * value + 0.1 if value.is_floating_point() else value for name, value in params.items()}
        if not self.checked and torch.equal(self.vectors(elsewhere), vectors):
            raise ValueError(
                "Expected AuxiliaryMarginal to read the weights that are inferred, but got the same vector at other weights: "
                "make it with the model itself (or a part of it), or use another marginal."
            )
        self.checked = True


class PoolOfSets:
    """q = exact over the pool at each set of weights, computed again every few steps, as in `PoolMarginal`.

    Args:
        marginal: the pool.
        exact: sets of weights by name, batches → log p(k|w) over the batches, `(*sets, k)`.
        device: the device of the pool's data.
    """

    def __init__(self, marginal: PoolMarginal, exact: Callable[[Params, list[Pool]], Tensor], device: torch.device) -> None:
        self.exact, self.every, self.steps = exact, marginal.every, 0
        self.batches = list(marginal.batches(device))
        self.log_q: Tensor | None = None
        self._last: tuple[MinibatchEstimate, Tensor] | None = None

    def value(self, estimate: MinibatchEstimate) -> Float[Tensor, "*sets k"]:
        if self.log_q is not None and self.steps % self.every:
            return self.log_q.to(estimate.log_m)
        if self._last is not None and self._last[0] is estimate:  # called again by `update`
            return self._last[1]
        log_q = self._pass(estimate)
        self._last = None if in_transform() else (estimate, log_q)
        return log_q

    def update(self, estimate: MinibatchEstimate) -> Float[Tensor, "*sets k"]:
        self.log_q = self.value(estimate)
        self.steps, self._last = self.steps + 1, None
        return self.log_q

    def reset(self) -> None:
        self.log_q, self.steps = None, 0

    @torch.no_grad()
    def _pass(self, estimate: MinibatchEstimate) -> Tensor:
        device = estimate.log_m.device
        assert estimate.params is not None
        self.batches = [(x.to(device), None if y is None else y.to(device)) for x, y in self.batches]
        return self.exact(estimate.params, self.batches).to(estimate.log_m)


class CarriedMarginal:
    """A running average that is corrected at each step, for chains that move too fast for a plain running average.

    A running average estimates p(y|w) at past weights. An optimiser slows down, so the average catches up; a chain does not,
    and its draws would have too small a variance. Here the average is first multiplied by the change of m in the step, on the
    same
    minibatch, where most of the noise cancels: log q ← log q + log m(w_t) − log m(w_{t−1}). Then m(w_t) is averaged in. (This
    is the estimator of Cutkosky and Orabona 2019, with ratios instead of differences, so that q is positive.)

    Args:
        decay: the decay of the running average.
    """

    def __init__(self, decay: float) -> None:
        self.decay, self.steps = decay, 0
        self.log_average: Tensor | None = None
        self.before: Tensor | None = None

    def expect(self, before: Float[Tensor, "*sets k"]) -> None:
        """Set log m at the weights of the previous step, on the next minibatches."""
        self.before = before

    def value(self, estimate: MinibatchEstimate) -> Float[Tensor, "*sets k"]:
        if self.log_average is None:
            return estimate.log_m
        carried = self.log_average if self.before is None else self.log_average + estimate.log_m - self.before
        return running_average(carried, estimate.log_m, self.decay, self.steps)

    def update(self, estimate: MinibatchEstimate) -> Float[Tensor, "*sets k"]:
        log_q = self.value(estimate)
        if bool(torch.isfinite(estimate.log_m).all()):
            self.log_average, self.steps = log_q, self.steps + 1
        self.before = None
        return log_q

    def reset(self) -> None:
        self.steps, self.log_average, self.before = 0, None, None
