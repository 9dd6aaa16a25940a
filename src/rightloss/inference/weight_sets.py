"""Evaluate the log posterior at many sets of weights, with a marginal for each.

Stage: target, weights (M, …), minibatches (M, n, …) → values (M,). An ensemble's members and a sampler's chains are evaluated
together by `torch.func.vmap`, if the model supports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import vmap

from ..losses.batch import Labels, hard_labels, soft_labels
from ..losses.streams import stream_labels
from ..marginals import (
    AuxiliaryMarginal,
    BatchMarginal,
    MarginalState,
    MinibatchEstimate,
    PoolMarginal,
    RunningMarginal,
    running_average,
)
from ..marginals.pool import Pool
from ..prevalence import Prevalence
from ..tensors import in_mode
from .minibatches import Batch
from .priors import Params
from .target import LogPosterior


def marginal_of_sets(target: LogPosterior) -> MarginalState | None:
    """Return the target's marginal for many sets of weights, reset; None if it has none."""
    marginal = target.marginal
    if marginal is None or isinstance(marginal, BatchMarginal):
        return marginal
    if isinstance(marginal, RunningMarginal):
        own = RunningMarginal(marginal.decay)
        own.prepare(target.terms(torch.empty(0)).reference.shape[0])
        return own
    if isinstance(marginal, PoolMarginal):
        return PoolOfSets(marginal, lambda params, data: _exact(target, params, data), _device(target))
    if isinstance(marginal, AuxiliaryMarginal):
        return AuxiliaryOfSets(marginal, lambda params: _vectors(target, marginal, params))
    raise ValueError(
        f"Expected a marginal that many weights at once can share, but got {type(marginal).__name__}: "
        "use RunningMarginal, BatchMarginal, PoolMarginal, AuxiliaryMarginal, or a pool."
    )


def evaluate_many(
    target: LogPosterior, params: Params, batch: Batch, marginal: MarginalState | None = None, shared: bool = False
) -> tuple[Float[Tensor, " m"], MinibatchEstimate | None]:
    """Return `target(…)` at M sets of weights, (M,), and the minibatches' estimate, for the marginal's `update`.

    Args:
        target: the log posterior, over classes.
        params: weights with a leading dimension of M; also buffers to update.
        batch: x, y and unlabelled rows with a leading dimension of M; without it if `shared`.
        marginal: q of each of the M sets, from `marginal_of_sets`; it is not changed.
        shared: whether all use the same minibatch.
    """
    if not isinstance(target.prevalence, Prevalence):
        raise ValueError("Expected classes where many weights are evaluated at once, but got a density: one at a time.")
    assert target.num_data is not None
    tables, labelled = _tables(target, params, batch, shared)
    members, y = len(tables), batch[1]
    if tables.shape[2] != target.prevalence.num_classes:
        raise ValueError(
            f"Expected the model to predict {target.prevalence.num_classes} classes, but got {tables.shape[2]}: match the last "
            "layer to the likelihood and the prevalence (one logit for two classes needs likelihood=Bernoulli())."
        )
    labels = _labels(y.expand(members, *y.shape) if shared else y, tables[:, :labelled]).in_sets(members)
    examples = labels.count
    if target.unlabelled is not None:
        rows, sampled = tables.shape[1] - labelled, target.class_terms(tables).sampling > 0
        labels = stream_labels(labels, rows, sampled, target.unlabelled_mass * examples / rows)
    if target.exact:
        target.check_all(len(y) if shared else y.shape[1])
    estimate: MinibatchEstimate | None = None

    def log_q_of(log_m: Tensor) -> Tensor:
        nonlocal estimate
        assert marginal is not None
        estimate = MinibatchEstimate(log_m, tables.shape[1], params=params)
        return marginal.value(estimate)

    over_pool = None if target.pool is None else _each(target.model, target.log_marginal, params, data=target.pool)
    gains = target.gains_of(target.columns(tables), labels, target.terms(tables), log_q_of if over_pool is None else over_pool)
    return gains.sum(-1) / examples + vmap(target.log_prior)(dict(params)) / target.num_data, estimate


def vmaps(model: nn.Module) -> bool:
    """Return whether vmap supports the model's modules; not for RNNs, nor for normalisation with moving averages."""
    moving = nn.modules.batchnorm._NormBase
    return not any(isinstance(part, nn.RNNBase) or (isinstance(part, moving) and part.training) for part in model.modules())


def _each(model: nn.Module, call: Callable[..., Any], params: Params, *own: Tensor, **shared: Any) -> Any:
    """Return `call(params, *own, **shared)` of each set, by vmap, or one after the other if the model does not support it."""
    params = dict(params)
    if vmaps(model):
        return vmap(lambda *member: call(*member, **shared), randomness="different")(params, *own)
    members = range(len(next(iter(params.values()))))
    each = [{name: value[member] for name, value in params.items()} for member in members]
    found = [call(each[member], *(part[member] for part in own), **shared) for member in members]
    if isinstance(found[0], tuple):
        return tuple(torch.stack(part) for part in zip(*found, strict=True))
    return torch.stack(found)


def _tables(target: LogPosterior, params: Params, batch: Batch, shared: bool) -> tuple[Float[Tensor, "m n k"], int]:
    """Return the tables of each set, labelled rows followed by unlabelled ones, and the number of labelled rows."""
    model, x, others = target.model, batch[0], batch[2:]
    if target.unlabelled is None:
        tables = _each(model, target.table, params, x=x) if shared else _each(model, target.table, params, x)
        return tables, tables.shape[1]
    if shared:
        pair = _each(model, target.joint_tables, params, x=x, others=others[0] if others else None)
    else:
        pair = _each(model, target.joint_tables, params, x, *others)
    return torch.cat(pair, 1), pair[0].shape[1]


def _exact(target: LogPosterior, params: Params, batches: list[Pool]) -> Float[Tensor, "m k"]:
    with in_mode(target.model, False):
        result: Tensor = _each(target.model, target.log_marginal, params, data=batches)
    return result


def _vectors(target: LogPosterior, marginal: AuxiliaryMarginal, params: Params) -> Float[Tensor, "m d"]:
    result: Tensor = vmap(lambda each: target.at(each, marginal.vector))(dict(params))
    return result.detach()


def _device(target: LogPosterior) -> torch.device:
    return next(iter(target.parameters().values())).device


def _labels(y: Tensor, tables: Float[Tensor, "m n k"]) -> Labels:
    """Return the labels of all members' rows, one after the other."""
    members, rows, classes = tables.shape
    votes = y.is_floating_point()
    flat = y.flatten(0, 1)
    if votes and flat.ndim > 2:
        flat = flat.movedim(1, -1).flatten(0, -2)
    if flat.shape != (members * rows, classes) if votes else y.numel() != members * rows:
        raise ValueError(
            f"Expected {members} × {rows} labels in 0..{classes - 1}, or votes for {classes} classes each, but got {y.dtype} "
            f"of shape {tuple(y.shape)}: a label for each row of the model's outputs; call `y.long()` on class numbers."
        )
    return soft_labels(flat, tables) if votes else hard_labels(flat, classes, -100)


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
        self._last = estimate, log_q
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
    same minibatch, where most of the noise cancels: log q ← log q + log m(w_t) − log m(w_{t−1}). Then m(w_t) is averaged in.
    (This is the estimator of Cutkosky and Orabona 2019, with ratios instead of differences, so that q is positive.)

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
