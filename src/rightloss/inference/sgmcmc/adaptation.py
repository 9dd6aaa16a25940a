"""Warm-up of Markov chains: a scale for each direction, the noise of minibatch gradients, and a step size.

Stage: gradients of the log posterior → s with w = s ⊙ u, the variance of minibatch gradients in u, a step size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from ...marginals import MarginalState, MinibatchEstimate, RunningMarginal
from ..distributions import Layout
from ..minibatches import Batch, Minibatches
from ..target import LogPosterior
from ..weight_sets import CarriedMarginal, evaluate_many, marginal_of_sets

FIRST_SCALE = 1e-3  # initial s
_REACH = 0.3  # step of finite differences, in units of s
_HEAT = 0.25  # fraction of the temperature that minibatches may contribute, if the step size is chosen automatically
_QUANTILE = 0.9  # fraction of the directions for which that must hold
_HALVINGS = 12

Response = Callable[[float], Tensor]
Epoch = float | tuple[float | None, float] | None  # steps per epoch; of labelled and of unlabelled rows, if in parts


class ChainGradients:
    """The log posterior's gradients, for all chains together.

    Args:
        target: the log posterior.
        batches: the data.
        chains: number of chains.
        fixed: weights that do not change, by name.
    """

    def __init__(
        self, target: LogPosterior, batches: Minibatches, chains: int, fixed: Mapping[str, Tensor] | None = None
    ) -> None:
        self.target, self.batches, self.chains, self.fixed = target, batches, chains, dict(fixed or {})
        self.layout = Layout.of(target.parameters())
        self.marginal = _marginal(target)
        self.last: Tensor | None = None

    def batch(self) -> Batch:
        """Return the data of one step: all data, or one minibatch for each chain."""
        return self.batches.next() if self.batches.at_once else self.batches.next_each(self.chains)

    def any_two(self, unlabelled: bool) -> tuple[Batch, Batch]:
        """Return two minibatches for each chain, drawn with replacement, that differ in only one source of noise."""
        one, other = self.batches.any_each(self.chains), self.batches.any_each(self.chains)
        if len(one) == 2 or len(other) == 2:
            return one, other
        return one, (*one[:2], other[2]) if unlabelled else (*other[:2], one[2])

    def at(self, weights: Float[Tensor, "c d"], batch: Batch) -> tuple[Tensor, Tensor, MinibatchEstimate | None]:
        """Return the gradients (c, d) of log p(w|X,Y), its values divided by N (c,), and the estimate of p(y|w)."""
        leaf = weights.detach().requires_grad_()
        values, estimate = self._evaluate(leaf, batch)
        (gradient,) = torch.autograd.grad(values.sum(), leaf)
        assert self.target.num_data is not None
        return gradient * self.target.num_data, values.detach(), estimate

    def moved(self, weights: Float[Tensor, "c d"]) -> tuple[Tensor, Tensor]:
        """Return gradients and values on the next minibatch, and update the marginal, as in a step to these weights."""
        batch = self.batch()
        if isinstance(self.marginal, CarriedMarginal) and self.last is not None:
            with torch.no_grad():
                before = self._evaluate(self.last, batch)[1]
            assert before is not None
            self.marginal.expect(before.log_m)
        gradient, values, estimate = self.at(weights, batch)
        if self.marginal is not None and estimate is not None:
            self.marginal.update(estimate)
        self.last = weights
        return gradient, values

    def _evaluate(self, weights: Tensor, batch: Batch) -> tuple[Tensor, MinibatchEstimate | None]:
        return evaluate_many(self.target, self._named(weights), batch, self.marginal, shared=self.batches.at_once)

    def _named(self, weights: Tensor) -> dict[str, Tensor]:
        """Return all weights of the chains' nets."""
        shared = {name: value.expand(len(weights), *value.shape) for name, value in self.fixed.items()}
        return {**self.layout.unflatten(weights), **shared}


def fitted_scale(gradients: ChainGradients, weights: Float[Tensor, "c d"], scale: Float[Tensor, " d"], probes: int) -> Tensor:
    """Return s after one more iteration towards rows of length 1 of the Hessian in u, s_i H_ij s_j.

    The lengths are estimated from Hessian-vector products with random directions, by differences of gradients (equilibration;
    Dauphin et al. 2015). Unlike the diagonal they include the dependence between weights, and are positive even if the
    curvature is not.

    Args:
        gradients: of the log posterior.
        weights: the weights of each chain.
        scale: s of the previous iteration.
        probes: number of random directions for each chain.
    """
    squares = torch.zeros_like(scale)
    for _ in range(probes):
        batch, shift = gradients.batch(), _REACH * scale * torch.randn_like(weights)
        change = gradients.at(weights + shift, batch)[0] - gradients.at(weights - shift, batch)[0]
        squares += (scale * change / (2 * _REACH)).square().mean(0) / probes
    length = torch.nan_to_num(squares.sqrt(), nan=1.0)
    return scale / length.clamp(1e-6, 1e6).sqrt()


def steepest(gradients: ChainGradients, weights: Float[Tensor, "c d"], scale: Float[Tensor, " d"], rounds: int = 8) -> float:
    """Return the largest curvature in u over directions and chains, by power iteration on differences of gradients."""
    direction = torch.randn_like(weights)
    largest = 1.0
    for _ in range(rounds):
        direction = direction / direction.norm(dim=1, keepdim=True).clamp_min(1e-12)
        batch, shift = gradients.batch(), _REACH * scale * direction
        change = gradients.at(weights + shift, batch)[0] - gradients.at(weights - shift, batch)[0]
        direction = torch.nan_to_num(scale * change / (2 * _REACH))
        largest = float(direction.norm(dim=1).max())
    return largest


def gradient_noise(
    gradients: ChainGradients, weights: Float[Tensor, "c d"], scale: Float[Tensor, " d"], pairs: int = 8
) -> Tensor:
    """Return the variance (d,) of independent minibatches' gradients in u, from pairs at the same weights; 0 with all data.

    If the unlabelled rows are in parts as well, it is that of the labelled and of the unlabelled rows, (2, d).
    """
    if gradients.batches.at_once:
        return torch.zeros_like(scale)

    def variance(unlabelled: bool) -> Tensor:
        two = (gradients.any_two(unlabelled) for _ in range(pairs))
        differences = [gradients.at(weights, one)[0] - gradients.at(weights, other)[0] for one, other in two]
        return torch.nan_to_num((scale * torch.stack(differences)).square().mean((0, 1)) / 2)

    return variance(False) if gradients.batches.others is None else torch.stack([variance(False), variance(True)])


def heat(noise: Float[Tensor, "*sources d"], response: Float[Tensor, " t"], epoch: Epoch) -> Float[Tensor, " d"]:
    """Return the variance of u, at curvature 1, that is due to minibatches: how much they heat a chain.

    A gradient with an error of ξ_t changes u by h_j ξ_t j steps later, so independent ξ give Var ξ Σ h². Minibatches of one
    epoch
    are not independent: any two of its M steps have the covariance −Var ξ/E, with E = N divided by the size of a minibatch. If
    E is whole, M = E, and errors cancel within each epoch, as do the parts of the response that are slower than an epoch; else
    M = ⌊E⌋, and they cancel in part. Averaged over the position in the epoch, Var ξ (Σ_j h_j² − Σ_j (h_j + … + h_{j+M−1})²/(M
    E)) remains.

    Args:
        noise: Var ξ of independent minibatches; a row for each source, whose heat adds up.
        response: h.
        epoch: E, of each source; None for independent minibatches.
    """
    if isinstance(epoch, tuple):
        return heat(noise[0], response, epoch[0]) + heat(noise[1], response, epoch[1])
    gain = response.square().sum()
    if epoch is not None:
        steps = int(epoch)
        summed = torch.nn.functional.pad(response, (steps, steps)).cumsum(0)
        gain = gain - (summed[steps:] - summed[:-steps]).square().sum() / (steps * epoch)
    return noise * float(gain.clamp_min(0))


def steady_lr(
    noise: Float[Tensor, "*sources d"], response: Response, epoch: Epoch, largest: float, temperature: float
) -> float:
    """Return the step size, halved until minibatches heat nine of ten directions by at most a quarter of T."""
    halved = (largest / 2**times for times in range(_HALVINGS))
    return next(
        (lr for lr in halved if most_heated(heat(noise, response(lr), epoch)) <= _HEAT * temperature), largest / 2**_HALVINGS
    )


def most_heated(heated: Float[Tensor, " d"]) -> float:
    """Return the heat that nine of ten directions do not exceed; above the temperature, no correction can fix it."""
    return float(heated.sort().values[int(_QUANTILE * (len(heated) - 1))])


def _marginal(target: LogPosterior) -> MarginalState | None:
    if isinstance(target.marginal, RunningMarginal):
        return CarriedMarginal(target.marginal.decay)
    return marginal_of_sets(target)
