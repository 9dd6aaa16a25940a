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
        return PoolOfSets(marginal, target)
    if isinstance(marginal, AuxiliaryMarginal):
        return AuxiliaryOfSets(marginal, target)
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
    x, y, *others = batch
    if shared:
        parts = _each(target.model, lambda each: target.all_tables(each, x, *others), params)
    else:
        parts = _each(target.model, target.all_tables, params, x, *others)
    tables, labelled = torch.cat(parts, 1), parts[0].shape[1]
    members = len(tables)
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

    log_marginal = log_q_of if target.pool is None else _exact(target, params, target.pool)
    gains = target.gains_of(target.columns(tables), labels, target.terms(tables), log_marginal)
    return gains.sum(-1) / examples + vmap(target.log_prior)(dict(params)) / target.num_data, estimate


def vmaps(model: nn.Module) -> bool:
    """Return whether vmap supports the model's modules; not for RNNs, nor for normalisation with moving averages."""
    moving = nn.modules.batchnorm._NormBase
    return not any(isinstance(part, nn.RNNBase) or (isinstance(part, moving) and part.training) for part in model.modules())


def _each(model: nn.Module, call: Callable[..., Any], params: Params, *own: Tensor) -> Any:
    """Return `call(params, *own)` of each set, by vmap, or one after the other if the model does not support it."""
    params = dict(params)
    if vmaps(model):
        return vmap(call, randomness="different")(params, *own)
    each = [dict(zip(params, values, strict=True)) for values in zip(*params.values(), strict=True)]
    found = [call(*one) for one in zip(each, *own, strict=True)]
    if isinstance(found[0], tuple):
        return tuple(torch.stack(part) for part in zip(*found, strict=True))
    return torch.stack(found)


def _exact(target: LogPosterior, params: Params, data: Pool | list[Pool]) -> Float[Tensor, "m k"]:
    result: Tensor = _each(target.model, lambda each: target.log_marginal(each, data), params)
    return result


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
        target: the log posterior.
    """

    def __init__(self, marginal: AuxiliaryMarginal, target: LogPosterior) -> None:
        self.marginal, self.target, self.checked = marginal, target, False

    def vectors(self, params: Params) -> Float[Tensor, "m d"]:
        """Return the network's inputs."""
        result: Tensor = vmap(lambda each: self.target.at(each, self.marginal.vector))(dict(params))
        return result.detach()

    def value(self, estimate: MinibatchEstimate) -> Float[Tensor, "*sets k"]:
        assert estimate.params is not None
        if int(self.marginal._steps) == 0:  # it has learnt nothing yet
            return estimate.log_m
        return self.marginal.log_marginal(self.vectors(estimate.params)).to(estimate.log_m)

    def update(self, estimate: MinibatchEstimate) -> Float[Tensor, "*sets k"]:
        assert estimate.params is not None
        if self.marginal.training and bool(torch.isfinite(estimate.log_m).all()):
            vectors = self.vectors(estimate.params)
            self._check(estimate.params, vectors)
            for vector, each in zip(vectors, estimate.log_m, strict=True):
                self.marginal.learn(vector, each.exp())
        return self.value(estimate)

    def reset(self) -> None:
        self.marginal.reset()

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
        target: the log posterior.
    """

    def __init__(self, marginal: PoolMarginal, target: LogPosterior) -> None:
        self.target, self.every, self.steps = target, marginal.every, 0
        self.batches = list(marginal.batches(next(iter(target.parameters().values())).device))
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
        with in_mode(self.target.model, False):
            return _exact(self.target, estimate.params, self.batches).to(estimate.log_m)


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
