"""Evaluate the log posterior at many sets of weights.

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
from ..losses.gain import at_reference, example_log_weights, information_gain, log_sum
from ..losses.streams import stream_labels
from ..marginals import (
    AuxiliaryMarginal,
    BatchMarginal,
    MarginalState,
    MinibatchEstimate,
    PoolMarginal,
    RunningMarginal,
    with_minibatch_gradient,
)
from ..marginals.pool import Pool
from ..prevalence import Prevalence
from .exact_mix import exact_gain
from .marginals import AuxiliaryOfSets, PoolOfSets
from .minibatches import Batch
from .priors import Params
from .steps import in_mode
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
    terms, estimate = target.terms(tables), None
    if target.exact:
        target.check_all(len(y) if shared else y.shape[1])
        gains = exact_gain(tables, labels, terms)
        return gains.sum(-1) / examples + vmap(target.log_prior)(dict(params)) / target.num_data, None
    log_offset, weights = target.criterion.cross_entropy_terms(terms)
    log_probs = at_reference(target.columns(tables), log_offset)
    if not target.gains:
        gains = labels.mask(labels.gather(log_probs if weights is None else log_probs * weights))
    else:
        if target.pool is not None:
            log_marginal = _each(target.model, target.log_marginal, params, data=target.pool)
        else:
            assert marginal is not None
            log_m = log_sum(log_probs, labels, example_log_weights(terms, labels)) - labels.log_count(log_probs)
            estimate = MinibatchEstimate(log_m.detach(), tables.shape[1], params=params)
            log_marginal = with_minibatch_gradient(marginal.value(estimate), log_m)
        gains = information_gain(log_probs, log_marginal, labels, terms)
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
