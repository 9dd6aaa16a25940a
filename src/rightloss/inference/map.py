"""The most probable weights.

Stage: `LogPosterior`, data → `Posterior` of one draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..marginals import BatchMarginal, RunningMarginal
from .distributions import Particles
from .layout import Layout
from .minibatches import Minibatches
from .nets import Net
from .posterior import Posterior, posterior_of
from .priors import Params
from .steps import check_finite, in_mode, own_random, positive_number, steps_of, whole_number
from .target import LogPosterior, inference_method

Found = Callable[[LogPosterior, Params, Mapping[str, Any]], Posterior]  # target, state by name, record → posterior

_TRACE = 200  # numbers that a record keeps of the way


@inference_method
def map_estimate(
    target: LogPosterior,
    data: Any,
    *,
    steps: Any = 1000,
    batch_size: Any = 128,
    lr: Any = 1e-2,
    polish: bool | None = None,
    seed: Any = 0,
    device: Any = None,
    progress: bool | None = None,
) -> Posterior:
    """The mode of log p(w|X,Y), from the model's present weights: Adam, whose step size falls to 0 as (1 − t/steps)².

    The model is trained in training mode (dropout on, normalisation by minibatch); moving averages are kept in the posterior,
    the user's model stays as it is.

    Args:
        target: from `log_posterior`.
        data: `(x, y)`, a Dataset or a DataLoader.
        steps: of Adam.
        batch_size: examples in a step; None for all of them.
        lr: the first step size.
        polish: whether L-BFGS goes from there to the mode itself. None: where it can, that is where all data are in every step
            and nothing is random: no dropout, and p(y|w) that of the data or of a pool.
        seed: of the order of the data, and of dropout.
        device: where to compute; None: where model and data are.
        progress: whether a bar is shown; None: on a terminal.

    Returns:
        `Particles` of one draw; `record["log_posterior"]` holds its estimates along the way, up to a constant.

    Raises:
        Diverged: a value was not finite; the error has the last good `.posterior`.
    """
    return most_probable(target, data, steps, batch_size, lr, polish, seed, device, progress, one_draw())


def most_probable(
    target: LogPosterior,
    data: Any,
    steps: Any,
    batch_size: Any,
    lr: Any,
    polish: bool | None,
    seed: Any,
    device: Any,
    progress: bool | None,
    found: Found,
    start: Params | None = None,
    label: str = "MAP",
) -> Posterior:
    """What `map_estimate` does, from the weights `start` if given, and with `found` to make a posterior of where it ends."""
    with own_random(seed) as generator, in_mode(target.model, True):
        batches = Minibatches(data, batch_size, generator, device, target.prevalence, target.model)
        target = anew(target.with_data(batches.num_data), batches.at_once, device)
        polish = _polished(polish, target, batches)
        weights = on_device({**target.parameters(), **(start or {})}, device)
        buffers = on_device(kept_besides(target), device)
        state, transient = {**weights, **buffers}, unsaved(target, device)

        def objective() -> Tensor:
            value: Tensor = target({**state, **transient}, batches.next())[0]
            return value

        keep = partial(found, target)
        trace = ascend(objective, weights, buffers, steps, lr, label, progress, lambda good: keep(good, {}))
        if polish and float(objective().detach()) == float(objective().detach()):  # else something random is in the model
            _polish(objective, weights, buffers)
        return keep(state, {"log_posterior": thinned(trace, target)})


def one_draw(dropout: bool = False) -> Found:
    """`Particles` of the weights where the search has ended; with masks in its predictions if `dropout`."""

    def found(target: LogPosterior, state: Params, record: Mapping[str, Any]) -> Posterior:
        layout = Layout.of(target.parameters())
        draw, fixed = layout.flatten(state).detach().clone(), {k: v for k, v in state.items() if k not in layout.names}
        return posterior_of(target, Particles(draw[None]), layout, fixed, dropout, record)

    return found


def ascend(
    objective: Callable[[], Tensor],
    weights: Params,
    buffers: Params,
    steps: Any,
    lr: Any,
    label: str,
    progress: bool | None,
    found: Callable[[Params], Posterior],
) -> list[Tensor]:
    """Adam's steps uphill, in place; the values on the way.

    Args:
        objective: the log posterior at `weights`, a number, or one for each of several, of which each has weights of its own.
        weights: what moves.
        buffers: what moves along as the model is evaluated.
        steps: how many.
        lr: the first step size; it falls to 0 as (1 − t/steps)².
        label: what the bar says.
        progress: whether a bar is shown.
        found: state → what is to be kept of it, for `Diverged`.
    """
    steps, lr = whole_number(steps, "steps", 0), positive_number(lr, "lr")
    leaves, state = [value.requires_grad_() for value in weights.values()], {**weights, **buffers}
    optimiser = torch.optim.Adam(leaves, lr=lr, maximize=True, fused=True)
    good = {name: value.detach().clone() for name, value in state.items()}
    trace = []
    for step in steps_of(steps, label, progress):
        optimiser.param_groups[0]["lr"] = lr * (1 - step / steps) ** 2
        values = objective()
        trace.append(values.detach())
        check_finite(trace[-1], step, lambda: found(good))
        _copy(state, good)
        optimiser.zero_grad()
        values.sum().backward()
        optimiser.step()
    for value in leaves:
        check_finite(value.detach().sum(), steps, lambda: found(good), "the weights")
    return trace


def anew(target: LogPosterior, at_once: bool, device: Any = None) -> LogPosterior:
    """The target with a marginal that has seen nothing; where all data come at once, m itself is the running average."""
    if device is not None and target.pool is not None:
        x, y = target.pool
        target = replace(target, pool=(x.to(device), None if y is None else y.to(device)))
    exact = at_once and isinstance(target.marginal, RunningMarginal)
    return target.with_marginal(BatchMarginal()) if exact else target.anew()


def kept_besides(target: LogPosterior) -> dict[str, Tensor]:
    """What model and likelihood keep besides trainable weights, in a file, too: moving averages and frozen weights."""
    trained = target.parameters()
    return {name: value for name, value in Net(target.model, target.likelihood).own().items() if name not in trained}


def unsaved(target: LogPosterior, device: Any) -> dict[str, Tensor]:
    """Buffers that no file keeps, there; None: they may stay where they are."""
    if device is None:
        return {}
    saved = target.model.state_dict()
    return on_device({name: value for name, value in target.buffers().items() if name not in saved}, device)


def on_device(state: Mapping[str, Tensor], device: Any) -> dict[str, Tensor]:
    """Copies there; None: where they are."""
    return {name: value.detach().to(device, copy=True) for name, value in state.items()}


def drops_out(target: LogPosterior) -> bool:
    """Whether something in the model drops out."""
    with in_mode(target.model, False):
        return Net(target.model, target.likelihood).wake_dropout() > 0


def thinned(trace: list[Tensor], target: LogPosterior) -> list[Any]:
    """At most 200 of the values, evenly, as log p(w|X,Y) rather than per example."""
    assert target.num_data is not None
    some = trace[:: max(1, math.ceil(len(trace) / _TRACE))]
    return (torch.stack(some) * target.num_data).tolist() if some else []


@torch.no_grad()
def _copy(state: Params, copies: Params) -> None:
    for name, value in state.items():
        copies[name].copy_(value)


def _polished(polish: bool | None, target: LogPosterior, batches: Minibatches) -> bool:
    random = drops_out(target)
    steady = target.marginal is None or isinstance(target.marginal, BatchMarginal)
    if polish and (random or not steady or not batches.at_once):
        raise ValueError(
            "Expected the same log posterior in every step in order to polish its mode, but got minibatches, dropout, or a "
            "marginal that follows: batch_size=None without them, or polish=False."
        )
    return steady and batches.at_once and not random if polish is None else polish


def _polish(objective: Callable[[], Tensor], weights: Params, buffers: Params) -> None:
    """L-BFGS uphill, in place; where it does not get higher, nothing."""
    leaves, state, start = list(weights.values()), {**weights, **buffers}, float(objective().detach())
    before = {name: value.detach().clone() for name, value in state.items()}
    eps = torch.finfo(leaves[0].dtype).eps
    optimiser = torch.optim.LBFGS(
        leaves, max_iter=1000, tolerance_grad=eps, tolerance_change=eps, history_size=30, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = -objective()
        loss.backward()
        return loss

    optimiser.step(closure)
    if not float(objective().detach()) >= start:
        _copy(before, state)
