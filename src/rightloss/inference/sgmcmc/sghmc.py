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
from .sgld import linear, posteriors_rule


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
    kernel = TransitionKernel("SGHMC", partial(_Underdamped, friction), partial(response, friction), _largest_lr)
    options = ChainOptions(chains, steps, warmup, thin, lr, temperature, scale, batch_size, start, seed, device, progress)
    return run_chains(target, data, kernel, options)


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
