"""Run Markov chains together: start, warm-up, and the draws to keep.

Stage: `LogPosterior`, data, a sampler's rule for one step → `Posterior` of draws. Chains move in u with w = s ⊙ u, where s
makes the curvature about 1 in every direction, so that a step size means the same for every model. s is fitted in the warm-up
and then fixed, so that draws need no correction.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ...prevalence import Prevalence
from ..diagnostics import judge_chains
from ..distributions import Layout, Particles
from ..joint_model import JointModel
from ..map import map_estimate, on_device, reset_marginal, thinned, untrained_state
from ..minibatches import Data, Device, Minibatches
from ..posterior import Posterior, posterior_of
from ..priors import Params
from ..steps import check_finite, in_mode, own_random, positive_number, steps_of, whole_number
from ..target import LogPosterior
from .adaptation import FIRST_SCALE, Adapted, ChainGradients, fitted_scale, gradient_noise, heat, steady_lr, steepest, too_hot

_ADAPTATIONS = 8  # in the warm-up, at most


@runtime_checkable
class ChainStates(Protocol):
    """The states of all chains, updated by a sampler's integrator.

    Attributes:
        position: u (c, d).
    """

    position: Tensor

    def step(self, gradient: Float[Tensor, "c d"], lr: float, temperature: Float[Tensor, " d"]) -> None:
        """Take a step along the gradient of the log posterior in u, with noise of the given temperature in each direction."""
        ...


@dataclass(frozen=True)
class TransitionKernel:
    """The update rule of a sampler.

    Attributes:
        label: its name.
        begin: u (c, d) and temperature → `ChainStates`.
        response: lr → (t,), the change of u, at curvature 1, in the steps after a gradient with an error of 1.
        largest_lr: the largest curvature in u → the step size for gradients without noise.
    """

    label: str
    begin: Callable[[Tensor, float], ChainStates]
    response: Callable[[float], Tensor]
    largest_lr: Callable[[float], float]


@dataclass(frozen=True)
class ChainOptions:
    """The common arguments of the samplers; `sghmc` documents them."""

    chains: int
    steps: int
    warmup: int | None
    thin: int
    lr: float | None
    temperature: float
    scale: Literal["adaptive"] | float
    batch_size: int | None
    start: Posterior | Params | None
    seed: int
    device: Device
    progress: bool | None

    def __post_init__(self) -> None:
        for name in ("chains", "steps", "thin"):
            whole_number(getattr(self, name), name)
        if self.warmup is not None:
            whole_number(self.warmup, "warmup", 0)
        positive_number(self.temperature, "temperature")
        if self.lr is not None:
            positive_number(self.lr, "lr")
        if self.scale != "adaptive":
            positive_number(self.scale, "scale")
        if self.steps - self.warmup_steps < self.thin:
            raise ValueError(
                f"Expected draws to keep, but got none in {self.steps} steps with {self.warmup_steps} of warm-up, every "
                f"{self.thin}: raise `steps`."
            )

    @property
    def warmup_steps(self) -> int:
        """A quarter of the steps by default."""
        return self.steps // 4 if self.warmup is None else self.warmup

    def adapts(self, step: int) -> bool:
        """Whether s and the step size are fitted before this step: a few times in the warm-up, the last time at its end."""
        warmup = self.warmup_steps
        return 0 < step <= warmup and (warmup - step) % -(-warmup // _ADAPTATIONS) == 0

    def keeps(self, step: int) -> bool:
        """Whether the draw of this step is kept."""
        after = step - self.warmup_steps
        return after >= 0 and (after + 1) % self.thin == 0


def run_chains(target: LogPosterior, data: Data, kernel: TransitionKernel, options: ChainOptions) -> Posterior:
    """Run the chains of one sampler, with start and warm-up, and return their draws."""
    if not isinstance(target.prevalence, Prevalence):
        raise ValueError(f"Expected classes for {kernel.label}, but got a density: use `map_estimate` or `variational`.")
    start = _start(target, data, options)
    with own_random(options.seed) as generator, in_mode(target.model, False):
        batches = Minibatches(
            data, options.batch_size, generator, options.device, target.prevalence, target.model, target.unlabelled
        )
        target = reset_marginal(target.with_data(batches.num_data, batches.few), batches.at_once, options.device)
        weights, fixed = _placed(target, start, options, generator)
        posterior = _Run(ChainGradients(target, batches, options.chains, fixed), kernel, options).go(weights)
        judge_chains(posterior, batches.next()[0] if batches.loader is not None else batches.x)
    return posterior


class _Run:
    """One run of all chains."""

    def __init__(self, gradients: ChainGradients, kernel: TransitionKernel, options: ChainOptions) -> None:
        self.gradients, self.kernel, self.options = gradients, kernel, options
        self.response = lru_cache(None)(kernel.response)
        self.curvatures: list[Tensor] = []
        self.variances: list[Tensor] = []
        self.steepest: list[Tensor] = []

    def go(self, weights: Float[Tensor, "c d"]) -> Posterior:
        """Run all steps from these weights."""
        states, good = self._first(weights), weights
        kept: list[Tensor] = []
        trace: list[Tensor] = []
        for step in steps_of(self.options.steps, self.kernel.label, self.options.progress):
            if self.options.adapts(step):
                states = self._adapted_again(good)
            weights = self.adapted.scale * states.position
            gradient, values = self.gradients.moved(weights)
            check_finite(values + weights.sum(1), step, partial(self._found, kept or [good]))
            good = weights
            states.step(self.adapted.scale * gradient, self.adapted.lr, self.injected)
            trace.append(values.mean())
            if self.options.keeps(step):
                kept.append(weights)
        self._warn_of_heat()
        return self._found(kept, {"lr": self.adapted.lr, "log_posterior": thinned(trace, self.gradients.target)})

    def _first(self, weights: Tensor) -> ChainStates:
        """Spread the chains, and fit s for the first time."""
        given = self.options.scale
        scale = torch.full_like(weights[0], FIRST_SCALE if given == "adaptive" else given)
        for _ in range(3 if given == "adaptive" else 0):
            scale = fitted_scale(self.gradients, weights, scale, 4)
        if bool((weights == weights[0]).all()):
            # Further apart than at the end, so that chains that meet have forgotten their starts.
            weights = weights + 2 * self.options.temperature**0.5 * scale * torch.randn_like(weights)
        return self._adapted(weights, scale)

    def _adapted_again(self, weights: Tensor) -> ChainStates:
        """Return the same chains, with s from the mean curvature in the later half of the adaptations."""
        if self.options.scale != "adaptive":
            return self._adapted(weights, self.adapted.scale)
        self.curvatures.append(fitted_scale(self.gradients, weights, self.adapted.scale, 4) ** -2)
        return self._adapted(weights, _late(self.curvatures).mean(0) ** -0.5)

    def _adapted(self, weights: Tensor, scale: Tensor) -> ChainStates:
        self.variances.append(gradient_noise(self.gradients, weights, scale) / scale**2)
        noise, lr, temperature = _late(self.variances).mean(0) * scale**2, self.options.lr, float(self.options.temperature)
        if lr is None:
            self.steepest.append(torch.tensor(steepest(self.gradients, weights, scale)))
            largest = self.kernel.largest_lr(float(_late(self.steepest).max()))
            lr = steady_lr(noise, self.response, self.gradients.epoch, largest, temperature)
        self.adapted = Adapted(scale, noise, float(lr))
        # the noise of minibatches heats the chains, so less is injected
        heated = heat(noise, self.response(self.adapted.lr), self.gradients.epoch)
        self.injected = (torch.full_like(heated, temperature) - heated).clamp_min(0)
        return self.kernel.begin(weights / scale, temperature)

    def _found(self, kept: list[Tensor], record: Mapping[str, Any] | None = None) -> Posterior:
        draws, of = torch.stack(kept, 1).flatten(0, 1), self.gradients
        return posterior_of(of.target, Particles(draws, len(kept[0])), of.layout, of.fixed, record=record)

    def _warn_of_heat(self) -> None:
        adapted, temperature = self.adapted, float(self.options.temperature)
        if too_hot(adapted.noise, self.response, self.gradients.epoch, adapted.lr, temperature):
            warnings.warn(
                "Minibatches heat the chains above the temperature: draws are too wide. Lower `lr`, or raise `batch_size`.",
                stacklevel=6,
            )


def _late(values: list[Tensor]) -> Tensor:
    """Return the later half of more than 4, because chains start in regions that are steeper than later ones."""
    return torch.stack(values[len(values) // 2 :] if len(values) > 4 else values)


def _start(target: LogPosterior, data: Data, options: ChainOptions) -> Posterior | Params:
    """Return the given start, or else the mode."""
    if options.start is not None:
        return options.start
    return map_estimate(
        target,
        data,
        steps=min(options.steps, 1000),
        batch_size=options.batch_size,
        seed=options.seed,
        device=options.device,
        progress=options.progress,
    )


def _placed(
    target: LogPosterior, start: Posterior | Params, options: ChainOptions, generator: torch.Generator
) -> tuple[Float[Tensor, "c d"], dict[str, Tensor]]:
    """Return the chains' initial weights, and the shared frozen weights and moving averages of the start."""
    own, rest = target.parameters(), untrained_state(target)
    named: Params
    if isinstance(start, Posterior):
        theirs = _start_draws(start, own, options.chains, generator)
        named = {name: value for name, value in theirs.items() if name in own}
        rest |= {name: value for name, value in theirs.items() if name in rest}
    elif isinstance(start, Mapping):
        named = start
    else:
        raise ValueError(
            f"Expected `start` to be a Posterior or weights by name, but got {type(start).__name__}: write "
            "start=map_estimate(target, data)."
        )
    _check_start(named, own, options.chains)
    each = {name: named.get(name, value).to(value).expand(options.chains, *value.shape) for name, value in own.items()}
    return Layout.of(own).flatten(on_device(each, options.device)), on_device(rest, options.device)


def _start_draws(start: Posterior, own: Params, chains: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return all weights of the start: random ones once for each chain, shared ones once."""
    whole = JointModel(start.model, start.likelihood).own()
    drawn = start.layout.unflatten(start.distribution.sample(chains, generator))  # at the mean of an uncertain prevalence
    missing = [name for name in own if name not in whole]
    if missing:
        raise ValueError(
            f"Expected `start` to have the target's weights, but got a Posterior without {missing[:5]}: take one of the same "
            "model and likelihood, or weights by name."
        )
    shared = {name: value for name, value in drawn.items() if name not in own}
    if any(bool((value != value[0]).any()) for value in shared.values()):
        raise ValueError(
            f"Expected moving averages that all chains can share, but got a `start` whose draws have {list(shared)[:3]} of "
            "their own: make the target with one of its nets, start.module(0), and write start=target.parameters()."
        )
    return whole | drawn | {name: value[0] for name, value in shared.items()}


def _check_start(named: Params, own: Params, chains: int) -> None:
    for name, value in named.items():
        if name not in own or value.shape not in (own[name].shape, (chains, *own[name].shape)):
            expected = tuple(own[name].shape) if name in own else f"one of {list(own)[:10]}"
            raise ValueError(
                f"Expected the weights to start from by the target's names and shapes, but got {name!r} of shape "
                f"{tuple(value.shape)} for {expected}: take those of target.parameters(), or {chains} of each."
            )
