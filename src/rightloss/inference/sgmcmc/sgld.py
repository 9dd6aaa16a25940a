"""Stochastic-gradient Langevin dynamics: chains without momentum.

Stage: `LogPosterior`, data → `Posterior` of draws.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..minibatches import Data, Device
from ..posterior import Posterior
from ..priors import Params
from ..target import LogPosterior, inference_method
from .chains import ChainOptions, TransitionKernel, run_chains


@inference_method
def sgld(
    target: LogPosterior,
    data: Data,
    *,
    chains: int = 4,
    steps: int = 10_000,
    warmup: int | None = None,
    thin: int = 20,
    lr: float | None = None,
    temperature: float = 1.0,
    scale: Literal["adaptive"] | float = "adaptive",
    batch_size: int | None = 128,
    start: Posterior | Params | None = None,
    seed: int = 0,
    device: Device = None,
    progress: bool | None = None,
) -> Posterior:
    """Draw from p(w|X,Y) by gradient steps with noise (Welling and Teh 2011):

        u ← u + lr ∇ log p(u|X,Y) + N(0, 2 lr T),  w = s ⊙ u.

    Prefer `sghmc`: it explores faster, because it has momentum, and its error is of order lr² instead of lr. (At curvature 1 in
    u, the variance of `sgld` is 1/(1 − lr/2).) This method is for comparison.

    Args:
        target: from `log_posterior`, over classes.
        data: `(x, y)`, a Dataset or a DataLoader.
        chains: number of chains, run together.
        steps: total number of steps of each chain.
        warmup: number of these for the warm-up; None for a quarter.
        thin: keep a draw every `thin` steps.
        lr: step size, in units of s². None for 0.1 divided by the largest curvature in u, halved until minibatches contribute
            at most a quarter of the temperature.
        temperature: T.
        scale: s: "adaptive", or a number.
        batch_size: examples per step; None for all.
        start: a Posterior, or weights by name; None to run `map_estimate` first.
        seed: seed of the data's order and of the noise.
        device: the device to compute on.
        progress: whether to show a progress bar.

    Returns:
        The same as `sghmc`, which documents the arguments in full.

    Raises:
        Diverged: if a value is not finite; the error's `.posterior` has the draws so far.

    Examples:
        >>> import torch, rightloss as rl
        >>> y = torch.arange(100) % 2
        >>> x = torch.randn(100, 1, generator=torch.Generator().manual_seed(0)) + y[:, None]
        >>> target = rl.inference.log_posterior(torch.nn.Linear(1, 2), rl.Prevalence.binary(population=0.1))
        >>> posterior = rl.inference.sgld(target, (x, y), chains=2, steps=40, warmup=20, thin=10, start=target.parameters())
        >>> posterior.distribution.by_chain.shape  # chains, draws, weights
        torch.Size([2, 2, 4])
    """
    kernel = TransitionKernel("SGLD", Overdamped, response, lambda curvature: 0.1 / max(curvature, 1.0))
    options = ChainOptions(chains, steps, warmup, thin, lr, temperature, scale, batch_size, start, seed, device, progress)
    return run_chains(target, data, kernel, options)


def response(lr: float) -> Float[Tensor, " t"]:
    """Return u in the steps after a gradient with an error of 1, at curvature 1, until it has decayed."""
    return lr * (1 - lr) ** torch.arange(math.ceil(10 / lr), dtype=torch.float64)


class Overdamped:
    """Euler's steps of Langevin dynamics."""

    def __init__(self, position: Tensor, temperature: float) -> None:
        self.position = position

    def step(self, gradient: Tensor, lr: float, temperature: Tensor) -> None:
        self.position = self.position + lr * gradient + (2 * lr * temperature).sqrt() * torch.randn_like(self.position)
