"""Deep ensembles: MAP estimates from several random starts.

Stage: `LogPosterior`, data → `Posterior` of M draws.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from ..arrays import checked_int
from ..marginals import AuxiliaryMarginal, BatchMarginal, PoolMarginal, RunningMarginal
from ..prevalence import Prevalence
from ..tensors import in_mode, own_random
from .distributions import Layout, Particles
from .map import Search, ascend, most_probable, on_device, reset_marginal, thinned, untrained_state
from .minibatches import Data, Device, Minibatches
from .posterior import Posterior, posterior_of
from .prediction import JointModel, check_given
from .priors import Params
from .target import LogPosterior, inference_method
from .weight_sets import evaluate_many, marginal_of_sets, vmaps


@inference_method
def ensemble(
    target: LogPosterior,
    data: Data,
    *,
    members: int = 10,
    initial: Callable[[int], Params] | None = None,
    steps: int = 1000,
    batch_size: int | None = 128,
    lr: float = 1e-2,
    seed: int = 0,
    device: Device = None,
    progress: bool | None = None,
) -> Posterior:
    """Return an ensemble of modes of log p(w|X,Y) from several starts, each found by Adam as in `map_estimate`.

    Each member has its own start, order of the data, dropout masks and q. They are trained together by `torch.func.vmap` if the
    model supports it, which needs the memory of M models; otherwise one after the other. If normalisation layers have moving
    averages, each member has its own, and they are part of its draw.

    Args:
        target: from `log_posterior`.
        data: `(x, y)`, a Dataset or a DataLoader.
        members: M, the number of members.
        initial: a function from the number of a member to its initial weights by name; others are the model's own. By default,
            trainable weights with two or more dimensions are drawn again by the `reset_parameters` of their modules. The rest,
            mainly biases, are the model's, which keeps a start at the prevalence.
        steps: number of steps of Adam.
        batch_size: examples per step of a member; None for all of them.
        lr: the initial learning rate; it decays to 0 as (1 − t/steps)².
        seed: seed of the starts, the orders of the data, and dropout.
        device: the device to compute on; None for that of the model and the data.
        progress: whether to show a progress bar; None for only on a terminal.

    Returns:
        `Particles`, a draw for each member; `record["log_posterior"]` has the estimates during training, up to a constant.

    Raises:
        Diverged: a value was not finite; the error has the last good `.posterior`.

    Examples:
        >>> import torch, rightloss as rl
        >>> y = torch.arange(100) % 2
        >>> x = torch.randn(100, 1, generator=torch.Generator().manual_seed(0)) + y[:, None]
        >>> target = rl.inference.log_posterior(torch.nn.Linear(1, 2), rl.Prevalence.binary(population=0.1))
        >>> posterior = rl.inference.ensemble(target, (x, y), members=3, steps=20)
        >>> len(posterior.distribution)
        3
    """
    search = Search(steps, batch_size, lr, seed, device, progress)
    with own_random(seed) as generator, in_mode(target.model, True):
        starts = [_start(target, initial, member) for member in range(checked_int(members, "members", 1))]
        batches = target.minibatches(data, batch_size, generator, device)
        target = reset_marginal(target.with_data(batches.num_data, batches.few), batches.at_once, device)
        if _can_go_together(target, starts, batches):
            return _together(target, starts, batches, search)
        plain = data if batches.loader is not None else (batches.x, batches.y)
        seeds = torch.randint(2**62, (len(starts),), generator=generator).tolist()
        return _one_by_one(target, starts, plain, seeds, search)


def _together(target: LogPosterior, starts: list[dict[str, Tensor]], batches: Minibatches, search: Search) -> Posterior:
    """Train all members together, by vmap."""
    members, marginal, device = len(starts), marginal_of_sets(target), search.device
    weights = on_device(_stacked(starts), device)
    others = {} if device is None else untrained_state(target, device)
    state = {**weights, **{name: value.expand(members, *value.shape) for name, value in others.items()}}

    def objective() -> Tensor:
        values, estimate = evaluate_many(target, state, batches.next_each(members), marginal)
        if marginal is not None and estimate is not None:
            marginal.update(estimate)
        return values

    def found(good: Params, record: Mapping[str, Any] | None = None) -> Posterior:
        layout = Layout.of(starts[0])
        return posterior_of(target, Particles(layout.flatten(good).detach().clone()), layout, record=record)

    trace = ascend(objective, weights, {}, search, f"ensemble of {members}", found)
    return found(weights, {"log_posterior": thinned(trace, target)})


def _one_by_one(
    target: LogPosterior, starts: list[dict[str, Tensor]], data: Data, seeds: list[int], search: Search
) -> Posterior:
    """Train one member after the other."""
    ends: list[dict[str, Tensor]] = []
    traces: list[list[float]] = []

    def found(target: LogPosterior, state: Params, record: Mapping[str, Any]) -> Posterior:
        """Return the posterior of all members so far."""
        ends.append({name: value.detach().clone() for name, value in state.items()})
        traces.append(record.get("log_posterior", []))
        return _of_ends(target, ends, {"log_posterior": [list(row) for row in zip(*traces, strict=False)]})

    for number, (start, seed) in enumerate(zip(starts, seeds, strict=True), 1):
        label = f"member {number} of {len(starts)}"
        posterior = most_probable(target, data, replace(search, seed=seed), found, start=start, label=label)
    return posterior


def _of_ends(target: LogPosterior, ends: list[dict[str, Tensor]], record: Mapping[str, Any]) -> Posterior:
    """Return the posterior of trained weights and moving averages; all other tensors are the same in all members."""
    own, stacked = JointModel(target.model, target.likelihood).own(), _stacked(ends)
    moved = [name for name in target.buffers() if name in own and _differs(stacked[name], own[name])]
    draws = {name: stacked[name] for name in (*target.parameters(), *moved)}
    layout = Layout.of({name: ends[0][name] for name in draws})
    return posterior_of(target, Particles(layout.flatten(draws)), layout, ends[0], record=record)


def _differs(values: Tensor, own: Tensor) -> bool:
    return own.is_floating_point() and bool((values != own.to(values.device)).any())


def _stacked(each: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([one[name] for one in each]) for name in each[0]}


def _can_go_together(target: LogPosterior, starts: list[dict[str, Tensor]], batches: Minibatches) -> bool:
    """Return whether vmap supports the model, by a trial on two examples."""
    known = (RunningMarginal, BatchMarginal, PoolMarginal, AuxiliaryMarginal)
    followed = target.marginal is None or isinstance(target.marginal, known)
    if not isinstance(target.prevalence, Prevalence) or not followed or not vmaps(target.model):
        return False
    x = batches.few()
    try:
        with torch.no_grad():
            vmap(lambda weights: target.table(weights, x), randomness="different")(on_device(_stacked(starts), x.device))
    except (RuntimeError, TypeError, ValueError):
        return False  # errors of the model itself are raised when it is trained alone
    return True


def _start(target: LogPosterior, initial: Callable[[int], Params] | None, member: int) -> dict[str, Tensor]:
    own = target.parameters()
    given = _redrawn(target) if initial is None else initial(member)
    check_given(given, own, "initial")
    return {**own, **{name: value.detach().to(own[name], copy=True) for name, value in given.items()}}


def _redrawn(target: LogPosterior) -> dict[str, Tensor]:
    """Return new weights of two or more dimensions, from torch's global generator."""
    model, trained = copy.deepcopy(target.model), target.parameters()
    new: dict[str, Tensor] = {}
    for prefix, part in model.named_modules():
        if _reset(part):
            new |= dict(part.named_parameters(prefix))
    new = {name: value for name, value in new.items() if name in trained and value.ndim > 1}
    if not new:
        raise ValueError(
            "Expected a model whose modules can be reset, but none with trainable weights has `reset_parameters`: "
            "give `initial`, a function from a member's number to its weights."
        )
    return new


def _reset(part: nn.Module) -> bool:
    """Reset the module if it supports that, and return whether it does."""
    reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
    if callable(reset):
        reset()
    return callable(reset)
