"""Many weights at once: their log posteriors, and q for each of them.

Stage: target, weights (M, …), minibatches (M, n, …) → values (M,). An ensemble's members and a sampler's chains go through
the model together by `torch.func.vmap`, where the model allows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import vmap

from ..losses.composed import at_reference
from ..losses.labels import Labels, hard_labels, soft_labels
from ..losses.prior_terms import Setting
from ..marginals import AuxiliaryMarginal, BatchMarginal, PoolMarginal, RunningMarginal, attach
from ..prevalence import Prevalence
from .priors import Params
from .standing import pool_batches
from .steps import in_mode
from .target import LogPosterior

Batch = tuple[Tensor, Tensor]


@runtime_checkable
class Follower(Protocol):
    """q for each of M sets of weights that move at once, where a marginal as a module has one q alone."""

    def peek(self, params: Params, log_m: Float[Tensor, "m k"]) -> Float[Tensor, "m k"]:
        """log q at these weights, given what their minibatches say. Changes nothing: usable inside a transform."""
        ...

    def move(self, params: Params, log_m: Float[Tensor, "m k"]) -> None:
        """Take in what the minibatches said."""
        ...


def follower_of(target: LogPosterior) -> Follower | None:
    """What the target's marginal is for many weights at once; None where it has none."""
    marginal = target.marginal
    if marginal is None:
        return None
    if isinstance(marginal, BatchMarginal):
        return _Batch()
    if isinstance(marginal, RunningMarginal):
        return _Running(marginal.decay)
    if isinstance(marginal, PoolMarginal):
        return _Pool(target, marginal)
    if isinstance(marginal, AuxiliaryMarginal):
        return _Auxiliary(target, marginal)
    raise ValueError(
        f"Expected a marginal that many weights at once can share, but got {type(marginal).__name__}: "
        "use RunningMarginal, BatchMarginal, PoolMarginal, AuxiliaryMarginal, or a pool."
    )


def evaluate_many(
    target: LogPosterior, params: Params, batch: Batch, follower: Follower | None = None, shared: bool = False
) -> tuple[Float[Tensor, " m"], dict[str, Tensor]]:
    """`target(…)` for M weights at once: the values (M,), and the minibatches' `log_m` (M, K) where a marginal is at work.

    Args:
        target: the log posterior, over classes.
        params: weights with a leading dimension of M; buffers, too, if they are to be moved.
        batch: x and y with a leading dimension of M; without it where `shared`.
        follower: q of each of the M weights, from `follower_of`: it is asked, not moved.
        shared: whether all see one minibatch.
    """
    if not isinstance(target.prevalence, Prevalence):
        raise ValueError("Expected classes where many weights are evaluated at once, but got a density: one at a time.")
    assert target.num_data is not None
    x, y = batch
    model, table_of = target.model, target.table
    tables = _each(model, table_of, params, x=x) if shared else _each(model, table_of, params, x)
    members = len(tables)
    if tables.shape[2] != target.prevalence.num_classes:
        raise ValueError(
            f"Expected the model to predict {target.prevalence.num_classes} classes, but got {tables.shape[2]}: match the last "
            "layer to the likelihood and the prevalence (one logit for two classes needs likelihood=Bernoulli())."
        )
    labels = _labels(y.expand(members, *y.shape) if shared else y, tables)
    table, setting = tables.flatten(0, 1), target.setting(tables)
    if target.gains:
        values, aux = _gains(target, params, table, labels, setting, members, follower)
    else:
        values, aux = _rival(target, table, labels, members), {}
    return values + vmap(target.log_prior)(dict(params)) / target.num_data, aux


def _gains(
    target: LogPosterior,
    params: Params,
    table: Tensor,
    labels: Labels,
    setting: Setting,
    members: int,
    follower: Follower | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean of log p(y_n|x_n,w) − log p(y_n|w), plus κ Σ_k r_k log p(k|w), of each member."""
    log_probs = at_reference(table, setting.log_offset)
    aux = {}
    if target.pool is not None:
        log_marginal = _each(target.model, target.log_marginal, params, data=target.pool)
    else:
        log_m = _log_m(log_probs, labels, setting, members)
        assert follower is not None
        if isinstance(follower, _Batch) and len(table) == members:
            raise ValueError(
                "Expected a batch of at least 2 examples for BatchMarginal, but got 1: its marginal is its own prediction, "
                "so the gain is 0; use PoolMarginal or RunningMarginal, or larger batches."
            )
        aux["log_m"] = log_m.detach()
        log_marginal = attach(follower.peek(params, log_m.detach()), log_m)
    gain = labels.pick(log_probs - log_marginal.repeat_interleave(len(table) // members, 0))
    values = _mean(gain, labels, members)
    return values + setting.evidence * (log_marginal @ setting.reference) if setting.evidence else values, aux


def _log_m(log_probs: Tensor, labels: Labels, setting: Setting, members: int) -> Float[Tensor, "m k"]:
    """log avg_n β_n p(k|x_n,w) of each member's minibatch."""
    if not setting.plain:
        log_probs = log_probs + labels.spread(setting.reference / setting.sampling).log()[:, None]
    if labels.valid is None:
        return torch.logsumexp(log_probs.unflatten(0, (members, -1)), 1) - math.log(len(log_probs) // members)
    log_probs = torch.where(labels.valid[:, None], log_probs, -torch.inf)
    return torch.logsumexp(log_probs.unflatten(0, (members, -1)), 1) - _counts(labels, members, log_probs).log()[:, None]


def _rival(target: LogPosterior, table: Tensor, labels: Labels, members: int) -> Tensor:
    """Minus the rival's loss: a table of log-probabilities is its own softmax, so it can stand for a Categorical's logits."""
    loss = type(target.criterion)(target.prevalence, reduction="none", nonfinite="nan")
    y = labels.index if labels.index is not None else labels.votes
    return _mean(-loss(table, y), labels, members)


def _mean(per_row: Tensor, labels: Labels, members: int) -> Tensor:
    rows = labels.mask(per_row).unflatten(0, (members, -1))
    return rows.mean(1) if labels.valid is None else rows.sum(1) / _counts(labels, members, rows)


def _counts(labels: Labels, members: int, like: Tensor) -> Tensor:
    assert labels.valid is not None
    return labels.valid.unflatten(0, (members, -1)).sum(1).to(like.dtype)


def _labels(y: Tensor, tables: Tensor) -> Labels:
    """Of all members' rows, one after the other."""
    classes = tables.shape[2]
    if y.is_floating_point():
        votes = y.flatten(0, 1)
        votes = votes.movedim(1, -1).flatten(0, -2) if votes.ndim > 2 else votes
        _check_rows(y, votes.shape == (tables.shape[0] * tables.shape[1], classes), tables)
        return soft_labels(votes, tables)
    _check_rows(y, y.numel() == tables.shape[0] * tables.shape[1], tables)
    return hard_labels(y, classes, -100)


def _check_rows(y: Tensor, fit: bool, tables: Tensor) -> None:
    if not fit:
        members, rows, classes = tables.shape
        raise ValueError(
            f"Expected {members} × {rows} labels in 0..{classes - 1}, or votes for {classes} classes each, but got {y.dtype} "
            f"of shape {tuple(y.shape)}: a label for each row of the model's outputs; call `y.long()` on class numbers."
        )


def _each(model: nn.Module, call: Callable[..., Tensor], params: Params, *own: Tensor, **shared: Any) -> Tensor:
    """`call(params, *own, **shared)` for each member, by vmap, or one after the other where the model does not allow it."""
    params = dict(params)
    if vmaps(model):
        result: Tensor = vmap(lambda *member: call(*member, **shared), randomness="different")(params, *own)
        return result
    members = range(len(next(iter(params.values()))))
    each = [{name: value[member] for name, value in params.items()} for member in members]
    return torch.stack([call(each[member], *(part[member] for part in own), **shared) for member in members])


def vmaps(model: nn.Module) -> bool:
    """Whether the model's parts go through vmap: RNNs do not, nor does normalisation that moves its averages."""
    moving = nn.modules.batchnorm._NormBase
    return not any(isinstance(part, nn.RNNBase) or (isinstance(part, moving) and part.training) for part in model.modules())


class _Batch:
    """q = m."""

    def peek(self, params: Params, log_m: Tensor) -> Tensor:
        return log_m

    def move(self, params: Params, log_m: Tensor) -> None:
        """Nothing is kept."""


class _Running:
    """q = each member's own exponential average, as `RunningMarginal`."""

    def __init__(self, decay: float) -> None:
        self.decay, self.steps = decay, 0
        self.log_average: Tensor | None = None

    def peek(self, params: Params, log_m: Tensor) -> Tensor:
        return log_m if self.log_average is None else averaged_in(self.log_average, log_m, self.decay, self.steps)

    def move(self, params: Params, log_m: Tensor) -> None:
        if bool(torch.isfinite(log_m).all()):
            self.log_average, self.steps = self.peek(params, log_m), self.steps + 1


def averaged_in(log_average: Tensor, log_m: Tensor, decay: float, steps: int) -> Tensor:
    """The exponential average of `steps` minibatches, with one more; the formula is in `RunningMarginal`."""
    share = (1 - decay) / (1 - decay ** (steps + 1))
    kept = math.log1p(-share) if share < 1 else -math.inf
    return torch.logaddexp(log_average.to(log_m) + kept, log_m + math.log(share))


class _Auxiliary:
    """q = q_ψ(w), one network for all: it reads the weights."""

    def __init__(self, target: LogPosterior, marginal: AuxiliaryMarginal) -> None:
        self.target, self.marginal, self.reads = target, marginal, False

    def peek(self, params: Params, log_m: Tensor) -> Tensor:
        return log_m if int(self.marginal._steps) == 0 else self.marginal.log_marginal(self._vectors(params)).to(log_m)

    def move(self, params: Params, log_m: Tensor) -> None:
        if not self.marginal.training or not bool(torch.isfinite(log_m).all()):
            return
        vectors = self._vectors(params)
        self._check(params, vectors)
        for vector, each in zip(vectors, log_m, strict=True):
            self.marginal.learn(vector, each.exp())

    def _check(self, params: Params, vectors: Tensor) -> None:
        """Once: q_ψ that reads another net, such as the one of which the target's is a copy, would learn nothing."""
        elsewhere = {name: 1.5 * value + 0.1 if value.is_floating_point() else value for name, value in params.items()}
        if not self.reads and torch.equal(self._vectors(elsewhere), vectors):
            raise ValueError(
                "Expected AuxiliaryMarginal to read the weights that are inferred, but got the same vector at other weights: "
                "make it with the model itself (or a part of it), or use another marginal."
            )
        self.reads = True

    def _vectors(self, params: Params) -> Tensor:
        result: Tensor = vmap(lambda each: self.target.at(each, self.marginal.vector))(dict(params))
        return result.detach()


class _Pool:
    """q = exact over the pool at each member's weights, renewed every so many steps, as `PoolMarginal`."""

    def __init__(self, target: LogPosterior, marginal: PoolMarginal) -> None:
        self.target, self.every, self.steps = target, marginal.every, 0
        self.batches: list[Any] = pool_batches(marginal, next(iter(target.parameters().values())).device)
        self.log_q: Tensor | None = None

    def peek(self, params: Params, log_m: Tensor) -> Tensor:
        if self.log_q is None or self.steps % self.every == 0:
            return self._exact(params, log_m)
        return self.log_q.to(log_m)

    def move(self, params: Params, log_m: Tensor) -> None:
        if self.steps % self.every == 0 and self.every > 1:
            self.log_q = self._exact(params, log_m)
        self.steps += 1

    @torch.no_grad()
    def _exact(self, params: Params, log_m: Tensor) -> Tensor:
        self.batches = [(x.to(log_m.device), None if y is None else y.to(log_m.device)) for x, y in self.batches]
        with in_mode(self.target.model, False):
            return _each(self.target.model, self.target.log_marginal, params, data=self.batches).to(log_m)
