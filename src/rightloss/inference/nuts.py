"""NUTS, the no-U-turn sampler: the reference for models of few weights.

Stage: target, data → `Posterior` of draws. Every evaluation uses all data, and p(y|w) is exact.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..arrays import checked_int
from ..extras import install
from ..marginals import BatchMarginal
from ..prevalence import Prevalence
from ..tensors import in_mode, own_random
from .diagnostics import worst_of
from .distributions import DenseGaussian, Distribution, Layout, Particles, check_finite
from .laplace import gaussian_of_layer
from .map import untrained_state
from .minibatches import Data, Device, Pair, steps_of
from .posterior import Posterior, posterior_of
from .priors import Params, positive_number
from .target import LogPosterior, inference_method

LARGEST = 1000  # maximum number of weights; with more, a draw takes too many passes over the data
DENSE = 100  # weights up to which the mass matrix is dense
SPREAD = 0.2  # standard deviation of the chains' starts around one point

Potential = Callable[[Tensor], Tensor]


@inference_method
def nuts(
    target: LogPosterior,
    data: Data,
    *,
    draws: int = 1000,
    warmup: int = 500,
    chains: int = 2,
    start: Posterior | Params | None = None,
    max_tree_depth: int = 10,
    target_accept: float = 0.8,
    seed: int = 0,
    device: Device = None,
    progress: bool | None = None,
) -> Posterior:
    """Draw from the posterior by the no-U-turn sampler (Hoffman and Gelman 2014) of Pyro: exact up to Monte Carlo error.

    p(y|w), value and gradient, is over the target's pool, or else over the training data; the model is in evaluation mode. The
    posterior's `record` has the largest `r_hat`, the smallest `effective_sample_size` and `tail_sample_size`, the number of
    `divergences` in all chains, which should be 0, and the chains' `acceptance`.

    Args:
        target: from `log_posterior`, of at most 1,000 weights.
        data: `(x, y)`, a Dataset or a DataLoader; every evaluation uses all of it.
        draws: number of draws per chain, after its warm-up.
        warmup: number of steps that adapt the step size and the mass matrix; they are discarded.
        chains: number of chains, run one after the other.
        start: a `Posterior`, such as Laplace's: each chain starts at a draw of it, and because it gives the covariance, a
            warm-up of 150 is enough. Or weights by name, around which chains start. None for Laplace's approximation if the
            weights are those of one layer of at most 300, else for the model's own weights.
        max_tree_depth: a step evaluates the log posterior at most 2^depth times.
        target_accept: the acceptance rate to adapt the step size to; closer to 1 if there are divergences.
        seed: seed of all random numbers.
        device: the device to compute on; None for that of the data.
        progress: whether to show a progress bar; None for only on a terminal.

    Examples:
        >>> import torch, rightloss as rl
        >>> y = torch.arange(100) % 2
        >>> x = torch.randn(100, 1, generator=torch.Generator().manual_seed(0)) + y[:, None]
        >>> target = rl.inference.log_posterior(torch.nn.Linear(1, 2), rl.Prevalence.binary(population=0.1))
        >>> posterior = rl.inference.nuts(target, (x, y), draws=10, warmup=20, chains=1)
        >>> posterior.distribution.draws.shape
        torch.Size([10, 4])
    """
    draws, warmup, chains = checked_int(draws, "draws", 4), checked_int(warmup, "warmup", 20), checked_int(chains, "chains", 1)
    if positive_number(target_accept, "target_accept") >= 1:
        raise ValueError(f"Expected `target_accept` to be below 1, but got {target_accept}: 0.8 is usual, 0.95 careful.")
    layout = Layout.of(target.parameters())
    if layout.size > LARGEST:
        raise ValueError(f"Expected at most {LARGEST} weights for nuts, but got {layout.size}: use sghmc.")
    options = {"max_tree_depth": checked_int(max_tree_depth, "max_tree_depth", 1), "target_accept_prob": target_accept}
    runs: list[_Chain] = []
    with own_random(seed), in_mode(target.model, False), _pyro("pyro").validation_enabled(False):
        batches = target.minibatches(data, None, device=device)
        target = target.with_data(batches.num_data, batches.few)
        batch = batches.whole()
        if start is None and isinstance(target.prevalence, Prevalence):
            start = gaussian_of_layer(target, batch, device)
        potential, space = _potential(target, batch, layout), _space(target, layout, start, device)
        for step in steps_of(chains * (warmup + draws), "nuts", progress):
            if step % (warmup + draws) == 0:
                runs.append(_Chain(space, potential, warmup, options))
            runs[-1].step(keep=step % (warmup + draws) >= warmup)
    particles = Particles(torch.cat([run.draws() for run in runs]).to(layout.flatten(target.parameters()).dtype), chains)
    return posterior_of(target, particles, layout, record=_record(particles, runs))


@dataclass(frozen=True)
class _Space:
    """w = origin + factor·u: the sampler changes u, and chains start at u ~ N(0, spread²)."""

    origin: Float[Tensor, " d"]
    factor: Float[Tensor, "d d"] | None
    spread: float

    def weights(self, u: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        return self.origin + (u if self.factor is None else self.factor @ u)


class _Chain:
    """One chain and its draws so far."""

    def __init__(self, space: _Space, potential: Potential, warmup: int, options: Mapping[str, Any]) -> None:
        self.space, self.kept = space, list[Tensor]()
        self.state = {"u": space.spread * torch.randn_like(space.origin)}
        check_finite(potential(space.weights(self.state["u"])), 0, lambda: None)
        # Only Pyro's kernel, without its MCMC class, which has a global progress bar and seeds. NumPyro uses JAX, which cannot
        # differentiate a torch model.
        self.kernel = _pyro("pyro.infer.mcmc").NUTS(
            potential_fn=lambda state: potential(space.weights(state["u"])), full_mass=len(space.origin) <= DENSE, **options
        )
        self.kernel.initial_params = self.state
        self.kernel.setup(warmup)

    def step(self, keep: bool) -> None:
        self.state = self.kernel.sample(self.state)
        if keep:
            self.kept.append(self.state["u"].detach())

    def draws(self) -> Float[Tensor, "n d"]:
        return torch.stack([self.space.weights(u) for u in self.kept])

    def told(self) -> tuple[int, float]:
        """Return the number of divergences, and the mean acceptance."""
        return len(self.kernel.diagnostics()["divergences"]), float(self.kernel.diagnostics()["acceptance rate"])


def _record(particles: Particles, runs: list[_Chain]) -> dict[str, Any]:
    divergences, acceptance = zip(*(run.told() for run in runs), strict=True)
    return {**worst_of(particles.by_chain), "divergences": sum(divergences), "acceptance": list(acceptance)}


def _potential(target: LogPosterior, batch: Pair, layout: Layout) -> Potential:
    """Return w → −log p(w|X,Y) + const., in double precision, except for the model's own computation."""
    # p(y|w) over the target's own pool, or else over the batch, which is all data
    exact = target.on(batch[0].device) if target.marginal is None else target.with_marginal(BatchMarginal())
    own = target.parameters()
    still = untrained_state(target, batch[0].device)

    def weights(vector: Tensor) -> dict[str, Tensor]:
        return still | {name: value.to(own[name].dtype) for name, value in layout.unflatten(vector).items()}

    size, flat = target.num_data, replace(exact, prior=lambda params: torch.zeros(()))
    assert size is not None

    def potential(vector: Tensor) -> Tensor:
        params = weights(vector)
        return -size * flat(params, batch)[0].double() - exact.log_prior(params).double()

    return potential


def _space(target: LogPosterior, layout: Layout, start: Posterior | Params | None, device: Device) -> _Space:
    if isinstance(start, Posterior) and start.layout == layout:
        origin, factor = start.distribution.mean.double().to(device), _factor(start.distribution)
        return _Space(origin, None, SPREAD) if factor is None else _Space(origin, factor.to(device), 1.0)
    given = target.parameters() if start is None else start
    if not isinstance(given, Mapping) or Layout.of(given) != layout:
        raise ValueError(
            f"Expected `start` to be a Posterior of the weights {layout.names}, or these by name, but got "
            f"{type(start).__name__}: leave it out."
        )
    return _Space(layout.flatten(given).detach().double().to(device), None, SPREAD)


def _factor(q: Distribution) -> Float[Tensor, "d d"] | None:
    """Return F with F Fᵀ = its covariance, or None if it is (nearly) singular, as for few draws."""
    if isinstance(q, DenseGaussian):  # its own, because a float32 covariance has half of the digits
        scaled = q.factor.double() / q.standard_deviation.double()[:, None]
        return q.factor.double() if float(torch.linalg.svdvals(scaled.nan_to_num()).min()) > 1e-6 else None
    covariance = q.covariance().double()
    factor, failed = torch.linalg.cholesky_ex(covariance)
    singular = factor.diagonal() <= 1e-3 * covariance.diagonal().clamp_min(0).sqrt()
    return None if int(failed) or bool(singular.any()) else factor


def _pyro(name: str) -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of torch on its import
        try:
            return importlib.import_module(name)
        except ImportError as error:
            raise ImportError(f"nuts needs Pyro: {install('bayes')}.") from error
