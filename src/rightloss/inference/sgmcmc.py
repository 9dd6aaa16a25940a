"""Stochastic-gradient Markov chain Monte Carlo: `sghmc`, with momentum, and `sgld`, without; their chains run together.

Stage: `LogPosterior`, data, an integrator → `Posterior` of draws. Chains move in u with w = s ⊙ u, where s makes the curvature
about 1 in every direction, so that a step size means the same for every model. s is fitted in the warm-up and then fixed, so
that draws need no correction.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..arrays import checked_int
from ..marginals import MarginalState, MinibatchEstimate, RunningMarginal
from ..prevalence import Prevalence
from ..tensors import in_mode, own_random
from .diagnostics import judge_chains
from .distributions import Layout, Particles, check_finite
from .map import map_estimate, on_device, reset_marginal, thinned, untrained_state
from .minibatches import Batch, Data, Device, Minibatches, steps_of
from .posterior import Posterior, posterior_of
from .prediction import JointModel, check_given
from .priors import Params, positive_number
from .target import LogPosterior, inference_method
from .weight_sets import CarriedMarginal, evaluate_many, marginal_of_sets

_ADAPTATIONS = 8  # in the warm-up, at most


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
    options = ChainOptions(steps, thin, chains, warmup, lr, temperature, scale, batch_size, start, seed, device, progress)
    return run_chains(target, data, Underdamped(positive_number(friction, "friction")), options)


@inference_method
def sgld(target: LogPosterior, data: Data, *, steps: int = 10_000, thin: int = 20, **options: Any) -> Posterior:
    """Draw from p(w|X,Y) by gradient steps with noise (Welling and Teh 2011):

        u ← u + lr ∇ log p(u|X,Y) + N(0, 2 lr T),  w = s ⊙ u.

    Prefer `sghmc`: it explores faster, because it has momentum, and its error is of order lr² instead of lr. (At curvature 1 in
    u, the variance of `sgld` is 1/(1 − lr/2).) This method is for comparison.

    Args:
        target: from `log_posterior`, over classes.
        data: `(x, y)`, a Dataset or a DataLoader.
        steps: total number of steps of each chain.
        thin: keep a draw every `thin` steps.
        **options: the other arguments of `sghmc` except `friction`. `lr` is in units of s², by default 0.1 divided by the
            largest curvature in u, halved until minibatches contribute at most a quarter of the temperature.

    Returns:
        The same as `sghmc`.

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
    return run_chains(target, data, Overdamped(), ChainOptions(steps=steps, thin=thin, **options))


class Underdamped:
    """The BAOA integrator: gradients change the momentum, which moves u by half a step before and after friction and noise.

    `position` is u (c, d) of all chains. `Overdamped` has the same methods.
    """

    label = "SGHMC"

    def __init__(self, friction: float) -> None:
        self.friction = friction

    def begin(self, position: Float[Tensor, "c d"], temperature: float) -> None:
        """Set u, and start from there."""
        self.position, self.momentum = position, math.sqrt(temperature) * torch.randn_like(position)

    def step(self, gradient: Float[Tensor, "c d"], lr: float, temperature: Float[Tensor, " d"]) -> None:
        """Take a step along the gradient of the log posterior in u, with noise of the given temperature in each direction."""
        kicked = self.momentum + lr * gradient
        noise = (-math.expm1(-2 * self.friction * lr) * temperature).sqrt() * torch.randn_like(kicked)
        self.momentum = math.exp(-self.friction * lr) * kicked + noise
        self.position = self.position + lr / 2 * kicked + lr / 2 * self.momentum

    def response(self, lr: float) -> Float[Tensor, " t"]:
        """Return u in the steps after a gradient with an error of 1, at curvature 1, until it has decayed."""
        kept, u, m, answers = math.exp(-self.friction * lr), 0.0, lr, []
        for _ in range(math.ceil(8 * max(2 / self.friction, self.friction) / lr)):
            u += lr / 2 * (1 + kept) * m
            answers.append(u)
            m = kept * m - lr * u
        return torch.tensor(answers, dtype=torch.float64)

    def largest_lr(self, curvature: float) -> float:
        """Return a quarter of the stable step size, 2/√curvature, because a chain can reach steeper regions."""
        return min(0.5, 0.5 / math.sqrt(max(curvature, 1e-12)))


class Overdamped:
    """Euler's steps of Langevin dynamics."""

    label = "SGLD"

    def begin(self, position: Tensor, temperature: float) -> None:
        self.position = position

    def step(self, gradient: Tensor, lr: float, temperature: Tensor) -> None:
        self.position = self.position + lr * gradient + (2 * lr * temperature).sqrt() * torch.randn_like(self.position)

    def response(self, lr: float) -> Float[Tensor, " t"]:
        return lr * (1 - lr) ** torch.arange(math.ceil(10 / lr), dtype=torch.float64)

    def largest_lr(self, curvature: float) -> float:
        return 0.1 / max(curvature, 1.0)


@dataclass(frozen=True)
class ChainOptions:
    """The common arguments of the samplers; `sghmc` documents them."""

    steps: int
    thin: int
    chains: int = 4
    warmup: int | None = None
    lr: float | None = None
    temperature: float = 1.0
    scale: Literal["adaptive"] | float = "adaptive"
    batch_size: int | None = 128
    start: Posterior | Params | None = None
    seed: int = 0
    device: Device = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        for name in ("chains", "steps", "thin"):
            checked_int(getattr(self, name), name, 1)
        if self.warmup is not None:
            checked_int(self.warmup, "warmup", 0)
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


def run_chains(target: LogPosterior, data: Data, rule: Underdamped | Overdamped, options: ChainOptions) -> Posterior:
    """Run the chains of one sampler, with start and warm-up, and return their draws."""
    if not isinstance(target.prevalence, Prevalence):
        raise ValueError(f"Expected classes for {rule.label}, but got a density: use `map_estimate` or `variational`.")
    start = options.start
    if start is None:
        how = {name: getattr(options, name) for name in ("batch_size", "seed", "device", "progress")}
        start = map_estimate(target, data, steps=min(options.steps, 1000), **how)
    with own_random(options.seed) as generator, in_mode(target.model, False):
        batches = target.minibatches(data, options.batch_size, generator, options.device)
        target = reset_marginal(target.with_data(batches.num_data, batches.few), batches.at_once, options.device)
        weights, fixed = _placed(target, start, options, generator)
        posterior = _Run(ChainGradients(target, batches, options.chains, fixed), rule, options).go(weights)
        judge_chains(posterior, batches.next()[0] if batches.loader is not None else batches.x)
    return posterior


class _Run:
    """One run of all chains."""

    def __init__(self, gradients: ChainGradients, rule: Underdamped | Overdamped, options: ChainOptions) -> None:
        self.gradients, self.rule, self.options = gradients, rule, options
        self.response, self.temperature = lru_cache(None)(rule.response), float(options.temperature)
        self.curvatures: list[Tensor] = []
        self.variances: list[Tensor] = []
        self.steepest: list[Tensor] = []

    def go(self, weights: Float[Tensor, "c d"]) -> Posterior:
        """Run all steps from these weights."""
        self._first(weights)
        good, kept, trace = weights, list[Tensor](), list[Tensor]()
        for step in steps_of(self.options.steps, self.rule.label, self.options.progress):
            if self.options.adapts(step):
                self._adapt_again(good)
            weights = self.scale * self.rule.position
            gradient, values = self.gradients.moved(weights)
            check_finite(values + weights.sum(1), step, partial(self._found, kept or [good]))
            good = weights
            self.rule.step(self.scale * gradient, self.lr, self.injected)
            trace.append(values.mean())
            if self.options.keeps(step):
                kept.append(weights)
        if self.hottest > self.temperature:
            warnings.warn(
                "Minibatches heat the chains above the temperature: draws are too wide. Lower `lr`, or raise `batch_size`.",
                stacklevel=5,
            )
        return self._found(kept, {"lr": self.lr, "log_posterior": thinned(trace, self.gradients.target)})

    def _first(self, weights: Tensor) -> None:
        """Spread the chains, and fit s for the first time."""
        given = self.options.scale
        scale = torch.full_like(weights[0], FIRST_SCALE if given == "adaptive" else given)
        for _ in range(3 if given == "adaptive" else 0):
            scale = fitted_scale(self.gradients, weights, scale, 4)
        if bool((weights == weights[0]).all()):
            # Further apart than at the end, so that chains that meet have forgotten their starts.
            weights = weights + 2 * self.options.temperature**0.5 * scale * torch.randn_like(weights)
        self._adapt(weights, scale)

    def _adapt_again(self, weights: Tensor) -> None:
        """Continue with s from the mean curvature in the later half of the adaptations."""
        if self.options.scale == "adaptive":
            self.curvatures.append(fitted_scale(self.gradients, weights, self.scale, 4) ** -2)
        self._adapt(weights, _late(self.curvatures).mean(0) ** -0.5 if self.curvatures else self.scale)

    def _adapt(self, weights: Tensor, scale: Tensor) -> None:
        self.variances.append(gradient_noise(self.gradients, weights, scale) / scale**2)
        noise, epochs, lr = _late(self.variances).mean(0) * scale**2, self.gradients.batches.epochs, self.options.lr
        if lr is None:
            self.steepest.append(torch.tensor(steepest(self.gradients, weights, scale)))
            largest = self.rule.largest_lr(float(_late(self.steepest).max()))
            lr = steady_lr(noise, self.response, epochs, largest, self.temperature)
        self.scale, self.lr = scale, float(lr)
        # the noise of minibatches heats the chains, so less is injected
        heated = heat(noise, self.response(self.lr), epochs)
        self.hottest, self.injected = most_heated(heated), (self.temperature - heated).clamp_min(0)
        self.rule.begin(weights / scale, self.temperature)

    def _found(self, kept: list[Tensor], record: Mapping[str, Any] | None = None) -> Posterior:
        draws, of = torch.stack(kept, 1).flatten(0, 1), self.gradients
        return posterior_of(of.target, Particles(draws, len(kept[0])), of.layout, of.fixed, record=record)


def _late(values: list[Tensor]) -> Tensor:
    """Return the later half of more than 4, because chains start in regions that are steeper than later ones."""
    return torch.stack(values[len(values) // 2 :] if len(values) > 4 else values)


def _placed(
    target: LogPosterior, start: Posterior | Params, options: ChainOptions, generator: torch.Generator
) -> tuple[Float[Tensor, "c d"], dict[str, Tensor]]:
    """Return the chains' initial weights, and the shared frozen weights and moving averages of the start."""
    own, rest = target.parameters(), untrained_state(target, options.device)
    named: Params
    if isinstance(start, Posterior):
        theirs = _start_draws(start, own, options.chains, generator)
        named = {name: value for name, value in theirs.items() if name in own}
        rest |= on_device({name: value for name, value in theirs.items() if name in rest}, options.device)
    else:
        named = start
    check_given(named, own, "start", options.chains)
    each = {name: named.get(name, value).to(value).expand(options.chains, *value.shape) for name, value in own.items()}
    return Layout.of(own).flatten(on_device(each, options.device)), rest


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


FIRST_SCALE = 1e-3  # initial s
_REACH = 0.3  # step of finite differences, in units of s
_HEAT = 0.25  # fraction of the temperature that minibatches may contribute, if the step size is chosen automatically
_QUANTILE = 0.9  # fraction of the directions for which that must hold
_HALVINGS = 12

Response = Callable[[float], Tensor]


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
    """Return the variance (s, d) of independent minibatches' gradients in u, from pairs at the same weights; 0 with all data.

    A row is that of one source: of the labelled rows, and of the unlabelled ones if a minibatch has only some of them.
    """
    batches, chains = gradients.batches, gradients.chains
    if batches.at_once:
        return torch.zeros_like(scale)[None]

    def variance(unlabelled: bool) -> Tensor:
        differences = []
        for _ in range(pairs):
            one, other = batches.any_each(chains), batches.any_each(chains)
            other = (*one[:2], *other[2:]) if unlabelled else (*other[:2], *one[2:])
            differences.append(gradients.at(weights, one)[0] - gradients.at(weights, other)[0])
        return torch.nan_to_num((scale * torch.stack(differences)).square().mean((0, 1)) / 2)

    return torch.stack([variance(source > 0) for source in range(len(batches.epochs))])


def heat(noise: Float[Tensor, "s d"], response: Float[Tensor, " t"], epochs: list[float | None]) -> Float[Tensor, " d"]:
    """Return the variance of u, at curvature 1, that is due to minibatches: how much they heat a chain.

    A gradient with an error of ξ_t changes u by h_j ξ_t j steps later, so independent ξ give Var ξ Σ h². Minibatches of one
    epoch are not independent: any two of its M steps have the covariance −Var ξ/E, with E = N divided by the size of a
    minibatch. If E is whole, M = E, and errors cancel within each epoch, as do the parts of the response that are slower than
    an epoch; else M = ⌊E⌋, and they cancel in part. Averaged over the position in the epoch, Var ξ (Σ_j h_j² − Σ_j (h_j + … +
    h_{j+M−1})²/(M E)) remains.

    Args:
        noise: Var ξ of independent minibatches; a row for each source, whose heat adds up.
        response: h.
        epochs: E of each source; None for independent minibatches.
    """
    heated = torch.zeros_like(noise[0])
    for variance, epoch in zip(noise, epochs, strict=True):
        gain = response.square().sum()
        if epoch is not None:
            steps = int(epoch)
            summed = torch.nn.functional.pad(response, (steps, steps)).cumsum(0)
            gain = gain - (summed[steps:] - summed[:-steps]).square().sum() / (steps * epoch)
        heated += variance * float(gain.clamp_min(0))
    return heated


def steady_lr(
    noise: Float[Tensor, "s d"], response: Response, epochs: list[float | None], largest: float, temperature: float
) -> float:
    """Return the step size, halved until minibatches heat nine of ten directions by at most a quarter of T."""
    halved = (largest / 2**times for times in range(_HALVINGS))
    return next(
        (lr for lr in halved if most_heated(heat(noise, response(lr), epochs)) <= _HEAT * temperature), largest / 2**_HALVINGS
    )


def most_heated(heated: Float[Tensor, " d"]) -> float:
    """Return the heat that nine of ten directions do not exceed; above the temperature, no correction can fix it."""
    return float(heated.sort().values[int(_QUANTILE * (len(heated) - 1))])


def _marginal(target: LogPosterior) -> MarginalState | None:
    if isinstance(target.marginal, RunningMarginal):
        return CarriedMarginal(target.marginal.decay)
    return marginal_of_sets(target)
