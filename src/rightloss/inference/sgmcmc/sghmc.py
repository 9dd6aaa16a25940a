"""Stochastic-gradient Hamiltonian Monte Carlo: chains with momentum.

Stage: `LogPosterior`, data → `Posterior` of draws.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..minibatches import Data, Device
from ..posterior import Posterior
from ..priors import Params
from ..steps import positive_number
from ..target import LogPosterior, inference_method
from .chains import ChainOptions, TransitionKernel, run_chains


@inference_method
def sghmc(
    target: LogPosterior,
    data: Data,
    *,
    chains: int = 4,
    steps: int = 5000,
    warmup: int | None = None,
    thin: int = 10,
    lr: float | None = None,
    friction: float = 1.0,
    temperature: float = 1.0,
    scale: Literal["adaptive"] | float = "adaptive",
    batch_size: int | None = 128,
    start: Posterior | Params | None = None,
    seed: int = 0,
    device: Device = None,
    progress: bool | None = None,
) -> Posterior:
    """Draw from p(w|X,Y) by stochastic-gradient Hamiltonian Monte Carlo with friction γ (Chen et al. 2014):

        du = m dt,  dm = ∇ log p(u|X,Y) dt − γ m dt + √(2γT) dB,  w = s ⊙ u.

    One step is the BAOA integrator of Leimkuhler and Matthews (2015), with one gradient. For a Gaussian, mean and variance are
    exact at any stable step size; otherwise the error is of order lr². Minibatch gradients are noisy and heat the
    chains, an error of order lr: so less noise is injected, by the variance measured in the warm-up.

    With minibatches, use a pool for an exact p(y|w), or a `BatchMarginal` if each minibatch has enough rows of each class. A
    `RunningMarginal` is corrected at each step (`CarriedMarginal`), but its errors decay slowly: chains mix slowly, and with
    small minibatches the mean is biased.

    The model runs in eval mode: no dropout, and normalisation by the moving averages of the start.

    Args:
        target: from `log_posterior`, over classes.
        data: `(x, y)`, a Dataset or a DataLoader.
        chains: number of chains, run together; two or more show whether they agree.
        steps: total number of steps of each chain.
        warmup: number of these for the warm-up; None for a quarter.
        thin: keep a draw every `thin` steps.
        lr: step size, in units of s. None for 0.5, or a quarter of the stable step size in the steepest direction, halved until
            minibatches contribute at most a quarter of the temperature.
        friction: γ. Momentum decays in 1/(γ lr) steps.
        temperature: T; draws are from p(w|X,Y)^(1/T).
        scale: s. "adaptive" for the mean curvature in the warm-up; or a number for all weights.
        batch_size: examples per step, different ones for each chain; None for all.
        start: a Posterior, or weights by name, one or `chains` of each. None to run `map_estimate` first. From a single point,
            chains start 2 s apart.
        seed: seed of the data's order and of the noise.
        device: the device to compute on; None for that of the model and the data.
        progress: whether to show a progress bar; None for only on a terminal.

    Returns:
        `Particles` by chain. Its `record` has "r_hat", "effective_sample_size" and "tail_sample_size" of the worst weight, the
        same for the worst prediction in "predictions", "lr" and the trace "log_posterior". There is a warning if R̂ of
        predictions is above 1.05.

    Raises:
        Diverged: if a value is not finite; the error's `.posterior` has the draws so far.

    Examples:
        >>> import torch, rightloss as rl
        >>> y = torch.arange(100) % 2
        >>> x = torch.randn(100, 1, generator=torch.Generator().manual_seed(0)) + y[:, None]
        >>> target = rl.inference.log_posterior(torch.nn.Linear(1, 2), rl.Prevalence.binary(population=0.1))
        >>> posterior = rl.inference.sghmc(target, (x, y), chains=2, steps=40, warmup=20, thin=10, start=target.parameters())
        >>> posterior.distribution.by_chain.shape  # chains, draws, weights
        torch.Size([2, 2, 4])
    """
    friction = positive_number(friction, "friction")
    kernel = TransitionKernel("SGHMC", partial(Underdamped, friction), partial(response, friction), _largest_lr)
    options = ChainOptions(chains, steps, warmup, thin, lr, temperature, scale, batch_size, start, seed, device, progress)
    return run_chains(target, data, kernel, options)


def response(friction: float, lr: float) -> Float[Tensor, " t"]:
    """Return u in the steps after a gradient with an error of 1, at curvature 1, until it has decayed."""
    kept, u, m, answers = math.exp(-friction * lr), 0.0, lr, []
    for _ in range(math.ceil(8 * max(2 / friction, friction) / lr)):
        u += lr / 2 * (1 + kept) * m
        answers.append(u)
        m = kept * m - lr * u
    return torch.tensor(answers, dtype=torch.float64)


def _largest_lr(curvature: float) -> float:
    """Return a quarter of the stable step size, 2/√curvature, because a chain can reach steeper regions."""
    return min(0.5, 0.5 / math.sqrt(max(curvature, 1e-12)))


class Underdamped:
    """The BAOA integrator: gradients change the momentum, which moves u by half a step before and after friction and noise."""

    def __init__(self, friction: float, position: Tensor, temperature: float) -> None:
        self.friction, self.position = friction, position
        self.momentum = math.sqrt(temperature) * torch.randn_like(position)

    def step(self, gradient: Tensor, lr: float, temperature: Tensor) -> None:
        kicked = self.momentum + lr * gradient
        noise = (-math.expm1(-2 * self.friction * lr) * temperature).sqrt() * torch.randn_like(kicked)
        self.momentum = math.exp(-self.friction * lr) * kicked + noise
        self.position = self.position + lr / 2 * kicked + lr / 2 * self.momentum
