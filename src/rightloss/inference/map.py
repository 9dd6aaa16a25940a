"""MAP: the most probable weights; MC dropout: the same network with many dropout masks.

Stage: `LogPosterior`, data → `Posterior` of one draw; with MC dropout, its predictions draw masks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..arrays import checked_int
from ..marginals import BatchMarginal, PoolMarginal, RunningMarginal
from ..tensors import in_mode, own_random
from .distributions import Layout, Particles, check_finite
from .minibatches import Data, Device, steps_of
from .posterior import Posterior, posterior_of
from .prediction import JointModel
from .priors import Params, positive_number
from .target import LogPosterior, inference_method

Found = Callable[[LogPosterior, Params, Mapping[str, Any]], Posterior]  # target, state by name, record → posterior

_TRACE = 200  # maximum number of log posterior values in a record


@inference_method
def map_estimate(
    target: LogPosterior,
    data: Data,
    *,
    steps: int = 1000,
    batch_size: int | None = 128,
    lr: float = 1e-2,
    seed: int = 0,
    device: Device = None,
    progress: bool | None = None,
) -> Posterior:
    """Return the mode of log p(w|X,Y), by Adam from the model's current weights; the learning rate decays as (1 − t/steps)².

    If possible, L-BFGS continues to the exact mode: with all data in every step (`batch_size=None`) and nothing random, that is
    no dropout, and p(y|w) that of the data or of a pool.

    The model is trained in training mode (dropout on, normalisation by minibatch). Moving averages are stored in the posterior;
    the given model is not changed.

    Args:
        target: from `log_posterior`.
        data: `(x, y)`, a Dataset or a DataLoader.
        steps: number of steps of Adam.
        batch_size: labelled examples per step; None for all of them, and all unlabelled rows.
        lr: the initial learning rate.
        seed: seed of the order of the data, and of dropout.
        device: the device to compute on; None for that of the model and the data.
        progress: whether to show a progress bar; None for only on a terminal.

    Returns:
        `Particles` of one draw; `record["log_posterior"]` has the estimates during training, up to a constant.

    Raises:
        Diverged: a value was not finite; the error has the last good `.posterior`.

    Examples:
        >>> import torch, rightloss as rl
        >>> y = torch.arange(100) % 2
        >>> x = torch.randn(100, 1, generator=torch.Generator().manual_seed(0)) + y[:, None]
        >>> target = rl.inference.log_posterior(torch.nn.Linear(1, 2), rl.Prevalence.binary(population=0.1))
        >>> posterior = rl.inference.map_estimate(target, (x, y), steps=100, batch_size=None)
        >>> round(float(posterior.predict(x).log_probs[:, 1].exp().mean()), 1)  # half of the rows are of class 1
        0.2
    """
    return most_probable(target, data, Search(steps, batch_size, lr, seed, device, progress), one_draw(), polish=True)


@inference_method
def mc_dropout(
    target: LogPosterior,
    data: Data,
    *,
    steps: int = 1000,
    batch_size: int | None = 128,
    lr: float = 1e-2,
    seed: int = 0,
    device: Device = None,
    progress: bool | None = None,
) -> Posterior:
    """Train with dropout, and keep it on in predictions: variational inference at the cost of MAP (Gal 2016).

    q(w) is a point with random masks. The dropout probability fixes its variance; the data do not change it.

    Args:
        target: from `log_posterior`, of a model with `nn.Dropout` or another dropout layer.
        data: `(x, y)`, a Dataset or a DataLoader.
        steps: number of steps of Adam.
        batch_size: examples per step; None for all of them.
        lr: the initial learning rate; it decays to 0 as (1 − t/steps)².
        seed: seed of the order of the data, and of the masks in training.
        device: the device to compute on; None for that of the model and the data.
        progress: whether to show a progress bar; None for only on a terminal.

    Returns:
        `Particles` of one draw, with `dropout=True`; the record is that of `map_estimate`.

    Raises:
        Diverged: a value was not finite; the error has the last good `.posterior`.

    Examples:
        >>> import torch, rightloss as rl
        >>> y = torch.arange(100) % 2
        >>> x = torch.randn(100, 1, generator=torch.Generator().manual_seed(0)) + y[:, None]
        >>> model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 2))
        >>> target = rl.inference.log_posterior(model, rl.Prevalence.binary(population=0.1))
        >>> posterior = rl.inference.mc_dropout(target, (x, y), steps=20)
        >>> bool((posterior.predict(x).model_entropy > 0).all())  # masks disagree
        True
    """
    if not drops_out(target):
        raise ValueError(
            "Expected a model that drops out, but none of its modules does with a probability above 0: "
            "put nn.Dropout(0.1) between layers, or use map_estimate."
        )
    search = Search(steps, batch_size, lr, seed, device, progress)
    return most_probable(target, data, search, one_draw(dropout=True))


@dataclass(frozen=True)
class Search:
    """Options of a search by Adam; `map_estimate` documents them."""

    steps: int
    batch_size: int | None
    lr: float
    seed: int
    device: Device
    progress: bool | None


def most_probable(
    target: LogPosterior,
    data: Data,
    search: Search,
    found: Found,
    polish: bool = False,
    start: Params | None = None,
    label: str = "MAP",
) -> Posterior:
    """Run `map_estimate`, from the weights `start` if given, and return the posterior made by `found`.

    With `polish` it continues with L-BFGS, if every step has the same log posterior.
    """
    device = search.device
    with own_random(search.seed) as generator, in_mode(target.model, True):
        batches = target.minibatches(data, search.batch_size, generator, device)
        target = reset_marginal(target.with_data(batches.num_data, batches.few), batches.at_once, device)
        follows = not (target.marginal is None or isinstance(target.marginal, BatchMarginal))
        polish = polish and batches.at_once and not follows and not drops_out(target)
        weights = on_device({**target.parameters(), **(start or {})}, device)
        buffers = untrained_state(target, device)
        state = {**weights, **buffers}

        def objective() -> Tensor:
            value: Tensor = target(state, batches.next())[0]
            return value

        keep = partial(found, target)
        trace = ascend(objective, weights, buffers, search, label, lambda good: keep(good, {}))
        if polish and float(objective().detach()) == float(objective().detach()):  # otherwise something in the model is random
            _polish(objective, weights, buffers)
        return keep(state, {"log_posterior": thinned(trace, target)})


def one_draw(dropout: bool = False) -> Found:
    """Return a function that turns the final weights into `Particles`; with dropout masks in predictions if `dropout`."""

    def found(target: LogPosterior, state: Params, record: Mapping[str, Any]) -> Posterior:
        layout = Layout.of(target.parameters())
        return posterior_of(target, Particles(layout.flatten(state).detach().clone()[None]), layout, state, dropout, record)

    return found


def ascend(
    objective: Callable[[], Tensor],
    weights: Params,
    buffers: Params,
    search: Search,
    label: str,
    found: Callable[[Params], Posterior],
) -> list[Tensor]:
    """Maximise by Adam, in place, and return the values of all steps.

    Args:
        objective: the log posterior at `weights`: one value, or one for each of several sets of weights.
        weights: the tensors to optimise.
        buffers: tensors that change when the model is evaluated.
        search: steps, initial learning rate, which decays to 0 as (1 − t/steps)², and whether to show a progress bar.
        label: the text of the bar.
        found: state → posterior, for `Diverged`.
    """
    steps, lr = checked_int(search.steps, "steps", 0), positive_number(search.lr, "lr")
    leaves, state = [value.requires_grad_() for value in weights.values()], {**weights, **buffers}
    optimiser = torch.optim.Adam(leaves, lr=lr, maximize=True, fused=True)
    good = {name: value.detach().clone() for name, value in state.items()}
    trace = []
    for step in steps_of(steps, label, search.progress):
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


def reset_marginal(target: LogPosterior, at_once: bool, device: Device = None) -> LogPosterior:
    """Return the target with a reset marginal, without state from earlier runs.

    If every step uses all data, m itself is the running average. A running average or a pool is copied. Others are reset in
    place, so that an `AuxiliaryMarginal` can be used after the run; one in eval mode is not reset.
    """
    target = target.on(device)
    marginal = target.marginal
    if isinstance(marginal, RunningMarginal):
        return target.with_marginal(BatchMarginal() if at_once else RunningMarginal(marginal.decay))
    if isinstance(marginal, PoolMarginal):
        return target.with_marginal(PoolMarginal(marginal.model, marginal.loader, marginal.every, marginal.labelled))
    if marginal is not None and (not isinstance(marginal, torch.nn.Module) or marginal.training):
        marginal.reset()
    return target


def untrained_state(target: LogPosterior, device: Device) -> dict[str, Tensor]:
    """Return copies of buffers and frozen weights, all of model and likelihood that is not trained, on `device`."""
    trained, own = target.parameters(), JointModel(target.model, target.likelihood).own(unsaved=True)
    return on_device({name: value for name, value in own.items() if name not in trained}, device)


def on_device(state: Params, device: Device) -> dict[str, Tensor]:
    """Return copies on `device`; None for the same device."""
    return {name: value.detach().to(device, copy=True) for name, value in state.items()}


def drops_out(target: LogPosterior) -> bool:
    """Return whether the model has active dropout."""
    with in_mode(target.model, False):
        return JointModel(target.model, target.likelihood).wake_dropout() > 0


def thinned(trace: list[Tensor], target: LogPosterior) -> list[Any]:
    """Return at most 200 evenly spaced values, as log p(w|X,Y) rather than per example."""
    assert target.num_data is not None
    some = trace[:: max(1, math.ceil(len(trace) / _TRACE))]
    return (torch.stack(some) * target.num_data).tolist() if some else []


@torch.no_grad()
def _copy(state: Params, copies: Params) -> None:
    for name, value in state.items():
        copies[name].copy_(value)


def _polish(objective: Callable[[], Tensor], weights: Params, buffers: Params) -> None:
    """Maximise by L-BFGS, in place; undo the steps if the result is not higher."""
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
