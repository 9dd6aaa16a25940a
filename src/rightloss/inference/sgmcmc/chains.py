"""Markov chains that walk together: where they start, how they warm up, what they keep.

Stage: `LogPosterior`, data, a rule for one step → `Posterior` of draws. Chains move in u with w = s ⊙ u, where s makes the
curvature about 1 in every direction: a step size then means the same for every model. s is fitted while chains warm up, and
frozen before a draw is kept, so that it needs no correction.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ...prevalence import Prevalence
from ..distributions import Particles
from ..layout import Layout
from ..map import anew, kept_besides, map_estimate, on_device, thinned
from ..minibatches import Minibatches
from ..nets import Net
from ..posterior import Posterior, posterior_of
from ..steps import check_finite, in_mode, own_random, positive_number, steps_of, whole_number
from ..target import LogPosterior
from .diagnostics import effective_sample_size, r_hat
from .schedules import Phase, Schedule
from .tuning import FIRST_SCALE, Slopes, Tuning, fitted_scale, gradient_noise, heat, steady_lr, steepest, too_hot

MIXED = 1.05  # R̂ above this is worth a warning
_ROWS, _NUMBERS = 64, 2000  # examples whose predictions are compared across chains, and how many numbers at most
_LEVELS = 20  # step sizes of a schedule for which the heat of minibatches is worked out


@runtime_checkable
class Walker(Protocol):
    """All chains, somewhere on their way."""

    @property
    def position(self) -> Float[Tensor, "c d"]:
        """u."""
        ...

    def step(self, gradient: Float[Tensor, "c d"], lr: float, temperature: Float[Tensor, " d"]) -> None:
        """Move by the gradient of the log posterior in u, and by noise of this temperature in each direction."""
        ...


@dataclass(frozen=True)
class Rule:
    """A method of walking.

    Attributes:
        label: its name.
        begin: u (c, d) and temperature → `Walker`.
        response: lr → (t,), how u, at curvature 1, answers in the next steps to a gradient that was off by 1 in one step.
        largest_lr: the largest curvature in u → the step size where gradients have no noise.
        corrected: whether the heat of minibatches is taken off what is injected; else the rule takes care of it, and has
            independent ones.
    """

    label: str
    begin: Callable[[Tensor, float], Walker]
    response: Callable[[float], Tensor]
    largest_lr: Callable[[float], float]
    corrected: bool = True


@dataclass(frozen=True)
class Settings:
    """What samplers have in common; `sghmc` says what each is."""

    chains: Any
    lr: Any
    temperature: Any
    scale: Any
    batch_size: Any
    start: Any
    seed: Any
    device: Any
    progress: bool | None

    def __post_init__(self) -> None:
        whole_number(self.chains, "chains")
        positive_number(self.temperature, "temperature")
        if self.lr is not None:
            positive_number(self.lr, "lr")
        if self.scale != "adaptive":
            positive_number(self.scale, "scale")


def walk(target: LogPosterior, data: Any, rule: Rule, schedule: Schedule, settings: Settings) -> Posterior:
    """Chains by one rule: start, warm up, and keep what the schedule says."""
    if not isinstance(target.prevalence, Prevalence):
        raise ValueError(f"Expected classes for {rule.label}, but got a density: use `map_estimate` or `variational`.")
    start = _start(target, data, settings, min(schedule.steps, 1000))
    with own_random(settings.seed) as generator, in_mode(target.model, False):
        batches = Minibatches(data, settings.batch_size, generator, settings.device, target.prevalence, target.model)
        target = anew(target.with_data(batches.num_data), batches.at_once, settings.device)
        weights, fixed = _placed(target, start, settings, generator)
        slopes = Slopes(target, batches, settings.chains, fixed, independent=not rule.corrected)
        posterior = _Walk(slopes, rule, settings).go(weights, schedule)
        _judge(posterior, batches)
    return posterior


class _Walk:
    """One run."""

    def __init__(self, slopes: Slopes, rule: Rule, settings: Settings) -> None:
        self.slopes, self.rule, self.settings = slopes, rule, settings
        self.response = lru_cache(None)(rule.response)
        self.injected = lru_cache(None)(self._injected)
        self.curvatures: list[Tensor] = []
        self.variances: list[Tensor] = []
        self.steepest: list[Tensor] = []

    def go(self, weights: Float[Tensor, "c d"], schedule: Schedule) -> Posterior:
        """From these weights through all steps."""
        walker, good = self._first(weights), weights
        kept: list[Tensor] = []
        trace: list[Tensor] = []
        for step in steps_of(schedule.steps, self.rule.label, self.settings.progress):
            if schedule.looks(step):
                walker = self._settled(good)
            weights = self.tuning.scale * walker.position
            gradient, values = self.slopes.moved(weights)
            check_finite(values + weights.sum(1), step, partial(self._found, kept or [good]))
            good, phase = weights, schedule.phase(step)
            walker.step(self.tuning.scale * gradient, phase.factor * self.tuning.lr, self._temperature(phase))
            trace.append(values.mean())
            if phase.kept:
                kept.append(weights)
        self._warn_of_heat()
        return self._found(kept, {"lr": self.tuning.lr, "log_posterior": thinned(trace, self.slopes.target)})

    def _first(self, weights: Tensor) -> Walker:
        """Chains apart, and a first idea of s."""
        given = self.settings.scale
        scale = torch.full_like(weights[0], FIRST_SCALE if given == "adaptive" else given)
        for _ in range(3 if given == "adaptive" else 0):
            scale = fitted_scale(self.slopes, weights, scale, 4)
        if bool((weights == weights[0]).all()):
            # Farther apart than they will be in the end: chains that meet have forgotten where they came from.
            weights = weights + 2 * self.settings.temperature**0.5 * scale * torch.randn_like(weights)
        return self._tuned(weights, scale)

    def _settled(self, weights: Tensor) -> Walker:
        """The same chains, with s by what they have seen in the later half of their looks around: the mean curvature."""
        if self.settings.scale != "adaptive":
            return self._tuned(weights, self.tuning.scale)
        self.curvatures.append(fitted_scale(self.slopes, weights, self.tuning.scale, 4) ** -2)
        return self._tuned(weights, _late(self.curvatures).mean(0) ** -0.5)

    def _tuned(self, weights: Tensor, scale: Tensor) -> Walker:
        self.variances.append(gradient_noise(self.slopes, weights, scale) / scale**2)
        noise, lr = _late(self.variances).mean(0) * scale**2, self.settings.lr
        if lr is None:
            self.steepest.append(torch.tensor(steepest(self.slopes, weights, scale)))
            largest = self.rule.largest_lr(float(_late(self.steepest).max()))
            lr = steady_lr(noise, self.response, self.slopes.epoch, largest, float(self.settings.temperature))
        self.tuning = Tuning(scale, noise, float(lr))
        self.injected.cache_clear()
        return self.rule.begin(weights / scale, float(self.settings.temperature))

    def _temperature(self, phase: Phase) -> Float[Tensor, " d"]:
        return self.injected(round(phase.factor * _LEVELS) if phase.hot else None)

    def _injected(self, level: int | None) -> Float[Tensor, " d"]:
        """The temperature less what minibatches heat, at a step size of so many twentieths; none: 0."""
        noise, temperature = self.tuning.noise, torch.full_like(self.tuning.noise, self.settings.temperature)
        if level is None:
            return torch.zeros_like(noise)
        if not level or not self.rule.corrected:
            return temperature
        response = self.response(self.tuning.lr * level / _LEVELS)
        return (temperature - heat(noise, response, self.slopes.epoch)).clamp_min(0)

    def _found(self, kept: list[Tensor], record: Mapping[str, Any] | None = None) -> Posterior:
        draws = torch.stack(kept, 1).flatten(0, 1)
        slopes = self.slopes
        return posterior_of(slopes.target, Particles(draws, len(kept[0])), slopes.layout, slopes.fixed, record=record)

    def _warn_of_heat(self) -> None:
        tuning, temperature = self.tuning, float(self.settings.temperature)
        if self.rule.corrected and too_hot(tuning.noise, self.response, self.slopes.epoch, tuning.lr, temperature):
            warnings.warn(
                "Minibatches heat the chains above the temperature: draws are too wide. Lower `lr`, or raise `batch_size`.",
                stacklevel=6,
            )


def _late(values: list[Tensor]) -> Tensor:
    """The later half of them, once there are some: chains set out from places that are steeper than where they end up."""
    return torch.stack(values[len(values) // 2 :] if len(values) > 4 else values)


def _start(target: LogPosterior, data: Any, settings: Settings, steps: int) -> Any:
    """The mode, if nothing else was given."""
    if settings.start is not None:
        return settings.start
    return map_estimate(
        target,
        data,
        steps=steps,
        batch_size=settings.batch_size,
        seed=settings.seed,
        device=settings.device,
        progress=settings.progress,
    )


def _placed(
    target: LogPosterior, start: Any, settings: Settings, generator: torch.Generator
) -> tuple[Float[Tensor, "c d"], dict[str, Tensor]]:
    """The chains' first weights, and what else the net that they start from has: frozen weights and moving averages."""
    own, rest = target.parameters(), kept_besides(target)
    named: Mapping[str, Any]
    if isinstance(start, Posterior):
        theirs = _drawn(start, own, settings.chains, generator)
        named = {name: value for name, value in theirs.items() if name in own}
        rest |= {name: value for name, value in theirs.items() if name in rest}
    elif isinstance(start, Mapping):
        named = start
    else:
        raise ValueError(
            f"Expected `start` to be a Posterior or weights by name, but got {type(start).__name__}: write "
            "start=map_estimate(target, data)."
        )
    _check_start(named, own, settings.chains)
    each = {name: named.get(name, value).to(value).expand(settings.chains, *value.shape) for name, value in own.items()}
    return Layout.of(own).flatten(on_device(each, settings.device)), on_device(rest, settings.device)


def _drawn(start: Posterior, own: Mapping[str, Tensor], chains: int, generator: torch.Generator) -> dict[str, Tensor]:
    """All that the start's net has, its random weights once for each chain; what chains must share, once."""
    whole, drawn = Net(start.model, start.likelihood).own(), start.sample(chains, generator)
    missing = [name for name in own if name not in whole]
    if missing:
        raise ValueError(
            f"Expected `start` to have the target's weights, but got a Posterior without {missing[:5]}: take one of the same "
            "model and likelihood, or weights by name, such as its `mean`."
        )
    shared = {name: value for name, value in drawn.items() if name not in own}
    if any(bool((value != value[0]).any()) for value in shared.values()):
        raise ValueError(
            f"Expected moving averages that all chains can share, but got a `start` whose draws have {list(shared)[:3]} of "
            "their own: make the target with one of its nets, start.module(0), and write start=target.parameters()."
        )
    return whole | drawn | {name: value[0] for name, value in shared.items()}


def _check_start(named: Mapping[str, Tensor], own: Mapping[str, Tensor], chains: int) -> None:
    for name, value in named.items():
        if name not in own or value.shape not in (own[name].shape, (chains, *own[name].shape)):
            expected = tuple(own[name].shape) if name in own else f"one of {list(own)[:10]}"
            raise ValueError(
                f"Expected the weights to start from by the target's names and shapes, but got {name!r} of shape "
                f"{tuple(value.shape)} for {expected}: take those of target.parameters(), or {chains} of each."
            )


def _judge(posterior: Posterior, batches: Minibatches) -> None:
    """What the chains tell of themselves goes into the record; a warning where they have not mixed.

    A net's hidden units can be exchanged, so that its weights may never agree across chains. The warning is for predictions.
    """
    distribution = posterior.distribution
    assert isinstance(distribution, Particles)
    if len(distribution) < 4 * distribution.chains:
        return
    x = batches.next()[0] if batches.loader is not None else batches.x
    rows = x[:: max(len(x) // _ROWS, 1)][:_ROWS]
    tables = torch.cat([table.flatten(1) for table in posterior.tables(rows)])
    moving = (tables != tables[0]).any(0)  # probabilities that round to 1 in every draw do not speak against the chains
    tables = tables[:, moving] if bool(moving.any()) else tables
    predicted = _summary(tables.unflatten(0, (distribution.chains, -1)))
    posterior.record.update(_summary(distribution.by_chain), predictions=predicted)
    if predicted["r_hat"] > MIXED:
        warnings.warn(
            f"Chains disagree: R̂ of predictions is {predicted['r_hat']:.2f}, where {MIXED} would do. Raise `steps` (and "
            "`warmup`), or take several modes for granted with schedule='cyclical' or `ensemble`.",
            stacklevel=5,
        )


def _summary(draws: Float[Tensor, "c n d"]) -> dict[str, float]:
    """The worst of (some of) the d numbers."""
    some = draws[:, :, :: -(-draws.shape[2] // _NUMBERS)]
    sizes = {"effective_sample_size": False, "tail_sample_size": True}
    worst = {name: float(effective_sample_size(some, tail).min()) for name, tail in sizes.items()}
    return {"r_hat": float(r_hat(some).max()), **worst}
