"""Stochastic-gradient Hamiltonian Monte Carlo: chains with momentum.

Stage: `LogPosterior`, data → `Posterior` of draws.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..posterior import Posterior
from ..steps import positive_number
from ..target import LogPosterior, inference_method
from .chains import Rule, Settings, walk
from .schedules import schedule_of
from .sgld import linear, posteriors_rule


@inference_method
def sghmc(
    target: LogPosterior,
    data: Any,
    *,
    chains: Any = 4,
    steps: Any = 5000,
    warmup: Any = None,
    thin: Any = 10,
    lr: Any = None,
    friction: Any = 1.0,
    thermostat: bool = False,
    schedule: Any = "constant",
    cycles: Any = 4,
    temperature: Any = 1.0,
    scale: Any = "adaptive",
    batch_size: Any = 128,
    start: Any = None,
    seed: Any = 0,
    device: Any = None,
    progress: bool | None = None,
) -> Posterior:
    """Draws from p(w|X,Y) by chains that roll with friction γ and are kicked by noise (Chen et al. 2014):

        du = m dt,  dm = ∇ log p(u|X,Y) dt − γ m dt + √(2γT) dB,  w = s ⊙ u.

    One step is B A O A of Leimkuhler and Matthews, from `posteriors`: one gradient; of a Gaussian it has the right mean and
    variance at any step size at which it is stable, and else an error that falls as lr². The gradients of minibatches are noisy
    and heat the chains, an error that falls as lr: by what the noise measured in the warm-up tells, less is injected.

    With minibatches p(y|w) is best exact over a pool, or a `BatchMarginal` where each class is well represented in a minibatch.
    A `RunningMarginal` is carried along with the chains (`CarriedMarginal`), but its errors last for as long as its memory:
    chains mix slowly, and in small minibatches the mean is off.

    The model runs in eval mode: no dropout, and normalisation by the moving averages of the start.

    Args:
        target: from `log_posterior`, over classes.
        data: `(x, y)`, a Dataset or a DataLoader.
        chains: how many, all at once; two or more show whether they agree.
        steps: of each chain in all.
        warmup: of these, how many are for finding the way; None: a quarter.
        thin: every so many steps a draw is kept.
        lr: step size, in units of s. None: 0.5, or a quarter of what is stable in the steepest direction, halved until
            minibatches supply at most a quarter of the heat.
        friction: γ. Momentum is forgotten in 1/(γ lr) steps.
        thermostat: whether, in the place of that correction, the friction of each chain adapts itself until the mean kinetic
            energy is right (Ding et al. 2014; B A D O D A of Leimkuhler and Shang 2016). It needs no measurement, but takes the
            noise to be equal in all directions, many weights, and minibatches drawn with replacement, which it then gets.
        schedule: "constant", or "cyclical" (Zhang et al. 2020), which looks for several modes: see `Schedule`.
        cycles: how many of these.
        temperature: T; draws are from p(w|X,Y)^(1/T).
        scale: s. "adaptive": from the mean curvature seen in the warm-up; or a number for all weights.
        batch_size: examples in a step, others for each chain; None for all.
        start: a Posterior, or weights by name, one or `chains` of each. None: `map_estimate` first. From one point chains set
            out 2 s apart.
        seed: of the data's order and of the noise.
        device: where to compute; None: where model and data are.
        progress: whether a bar is shown; None: on a terminal.

    Returns:
        `Particles` by chain. `record`: "r_hat", "effective_sample_size" and "tail_sample_size" of the worst weight, the same
        under "predictions" of the worst prediction, "lr" and the trace "log_posterior". A warning says where R̂ of predictions
        is above 1.05.

    Raises:
        Diverged: a value was not finite; the error's `.posterior` has the draws until then.
    """
    friction = positive_number(friction, "friction")
    begin = partial(_Thermostatted, friction) if thermostat else partial(_Underdamped, friction)
    rule = Rule("SGHMC", begin, partial(response, friction), _largest_lr, corrected=not thermostat)
    settings = Settings(chains, lr, temperature, scale, batch_size, start, seed, device, progress)
    return walk(target, data, rule, schedule_of(schedule, steps, warmup, thin, cycles), settings)


def response(friction: float, lr: float) -> Float[Tensor, " t"]:
    """u in the steps after a gradient that was off by 1, at curvature 1, until it is forgotten."""
    kept, u, m, answers = math.exp(-friction * lr), 0.0, lr, []
    for _ in range(math.ceil(8 * max(2 / friction, friction) / lr)):
        u += lr / 2 * (1 + kept) * m
        answers.append(u)
        m = kept * m - lr * u
    return torch.tensor(answers, dtype=torch.float64)


def _largest_lr(curvature: float) -> float:
    """A quarter of what is stable, 2/√curvature, since a chain comes through places that are steeper than those seen."""
    return min(0.5, 0.5 / math.sqrt(max(curvature, 1e-12)))


class _Underdamped:
    """B A O A by `posteriors`."""

    def __init__(self, friction: float, position: Tensor, temperature: float) -> None:
        self.rule, self.friction = posteriors_rule("baoa"), friction
        self.state = self.rule.init(position, math.sqrt(temperature) * torch.randn_like(position))

    @property
    def position(self) -> Tensor:
        result: Tensor = self.state.params
        return result

    def step(self, gradient: Tensor, lr: float, temperature: Tensor) -> None:
        options = {"lr": lr, "alpha": self.friction, "temperature": temperature}
        self.state, _ = self.rule.update(self.state, gradient, linear, **options)


class _Thermostatted:
    """B A D O D A: one friction for each chain, where that of `posteriors` is one for all."""

    def __init__(self, friction: float, position: Tensor, temperature: float) -> None:
        self.position, self.least = position, friction
        self.momentum = math.sqrt(temperature) * torch.randn_like(position)
        self.friction = torch.full_like(position[:, :1], friction)

    def step(self, gradient: Tensor, lr: float, temperature: Tensor) -> None:
        self.momentum = self.momentum + lr * gradient
        self.position = self.position + lr / 2 * self.momentum
        self._adapt(lr, temperature)
        forgotten = -torch.expm1(-2 * self.friction * lr) / (2 * self.friction)
        injected = (2 * self.least * temperature * forgotten).sqrt()
        self.momentum = torch.exp(-self.friction * lr) * self.momentum + injected * torch.randn_like(gradient)
        self._adapt(lr, temperature)
        self.position = self.position + lr / 2 * self.momentum

    def _adapt(self, lr: float, temperature: Tensor) -> None:
        excess = self.momentum.square().mean(1, keepdim=True) - temperature.mean()
        friction = self.friction + lr / 2 * excess
        # At 0 the share forgotten is lr by continuity, which a division cannot say.
        self.friction = torch.where(friction.abs() < 1e-6, 1e-6, friction)
