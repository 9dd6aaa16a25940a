"""Variational inference: the Gaussian that maximises the evidence lower bound (ELBO).

Stage: target, data → `Posterior` over a `DiagonalGaussian`, `DenseGaussian` or `LowRankGaussian`.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..arrays import checked_choice, checked_int
from ..losses.gain import at_reference
from ..marginals import AuxiliaryMarginal, MinibatchEstimate, RunningMarginal, with_minibatch_gradient
from ..tensors import in_mode, own_random
from .diagnostics import judge_gaussian
from .distributions import DenseGaussian, DiagonalGaussian, Distribution, Layout, LowRankGaussian, check_finite
from .local_noise import LocalNoise, local_noise_for
from .map import reset_marginal, untrained_state
from .minibatches import Batch, Data, Device, counting, steps_of
from .posterior import Posterior, posterior_of
from .priors import Params, positive_number
from .target import LogPosterior, inference_method

_ANCHORS = 32  # number of examples whose predictions are the inputs of q_ψ
_CELLS = 512  # maximum number of these predictions, because dense maps have many
_KEPT = 100  # number of values of the bound in the record
_LAST, _FEWEST = 5, 30  # the last fifth of the steps shows whether q has arrived, if it has at least 30
_FAR = 0.3  # distance from the optimum that causes a warning
_LOG_2PI_E = math.log(2 * math.pi) + 1
_LARGEST_DENSE = 2000  # maximum number of weights for a full covariance

# `posteriors` has vi.diag and vi.dense with the same bound. On a small MLP a step of vi.diag took nearly four times as long as
# one of MAP, a step here as long as one of MAP; and under its transforms q_ψ cannot learn from the very draw it is asked about.


@inference_method
def variational(
    target: LogPosterior,
    data: Data,
    *,
    family: Literal["mean-field", "full-rank", "low-rank"] = "mean-field",
    rank: int = 8,
    samples: int = 1,
    estimator: Literal["auto", "shared", "local"] = "auto",
    initial_sd: float = 0.05,
    temperature: float = 1.0,
    steps: int = 1000,
    batch_size: int | None = 128,
    lr: float = 1e-2,
    seed: int = 0,
    device: Device = None,
    progress: bool | None = None,
) -> Posterior:
    """Return the Gaussian q(w) that maximises the evidence lower bound, by Adam on reparametrised draws:

        E_q[Σ_n log-likelihood of n] + E_q[log p(w)] + T H[q].

    With the information gain the likelihood of n contains p(y|w) at the drawn w, so the marginal must depend on the draw. A
    running average cannot. So a `RunningMarginal`, the default, is replaced for the run by an `AuxiliaryMarginal`, which reads
    the weights through the model's predictions for 32 examples; if every step has all data, by a `BatchMarginal`, which is then
    exact. A pool is exact, at the cost of a pass over it in every step.

    Args:
        target: the log posterior.
        data: `(x, y)`, a Dataset or a DataLoader, at the mix `prevalence.sampling`.
        family: the family of q: "mean-field" for independent weights; "full-rank" for any covariance, up to 2000 weights;
            "low-rank" for a compromise.
        rank: columns of the low-rank factor.
        samples: number of draws per step, in antithetic pairs around the mean.
        estimator: "shared" for one draw for the minibatch. "local" for a draw per example, by local reparametrisation in linear
            layers and flipout in convolutions, with less variance; only for mean-field. Then p(y|w) of the information gain, in
            which all examples share w, needs a second pass with a shared draw. "auto" for local with mean-field and losses
            without p(y|w), unless the model normalises by minibatch; else shared.
        initial_sd: initial standard deviation of every weight; the initial mean is the model's weight.
        temperature: T. Below 1 for a cold posterior; towards 0 for MAP.
        steps: number of steps of Adam.
        batch_size: examples per step; None for all data.
        lr: the initial learning rate, for means in the weights' units, for standard deviations in relative units; it decays to
            0 along a cosine.
        seed: seed of draws and minibatches.
        device: the device to compute on.
        progress: whether to show a progress bar; None for only on a terminal.

    Returns:
        The posterior. Its record has `elbo`, the bound per example during the run (up to 100 averages); `distance`, how
        far q is from its optimum, as far as the gradients of the last steps can tell: of a mean in its standard deviations, or
        relatively of a variance; and the names of the `family`, `estimator` and `marginal` used. A warning says if the distance
        is above 0.3: q has not converged. Fewer than 150 steps are too few to tell.

    Raises:
        Diverged: if a step is not finite; the error's `.posterior` is the q before it.

    Examples:
        >>> import torch, rightloss as rl
        >>> y = torch.arange(100) % 2
        >>> x = torch.randn(100, 1, generator=torch.Generator().manual_seed(0)) + y[:, None]
        >>> target = rl.inference.log_posterior(torch.nn.Linear(1, 2), rl.Prevalence.binary(population=0.1))
        >>> posterior = rl.inference.variational(target, (x, y), steps=20, batch_size=50)
        >>> posterior.record["marginal"]  # follows the draws of the weights
        'AuxiliaryMarginal'
    """
    for name, count in {"samples": samples, "steps": steps, "rank": rank}.items():
        checked_int(count, name, 1)
    for name, value in {"temperature": temperature, "lr": lr, "initial_sd": initial_sd}.items():
        positive_number(value, name)
    checked_choice(estimator, "estimator", ("auto", "shared", "local"))
    with own_random(seed) as stream, in_mode(target.model, True):
        batches = target.minibatches(data, batch_size, stream, device)
        layout = Layout.of(target.parameters())
        q = family_of(family, layout.flatten(target.parameters()).to(device), initial_sd, rank)
        fixed = untrained_state(target, device)
        start, batch = layout.unflatten(q.leaves[0].detach()) | fixed, batches.next()
        given = target.with_data(batches.num_data, batches.few)
        target = reset_marginal(given, batches.at_once, device)
        target = following(target, start, batch, stream)
        local = local_noise_for(target, estimator, isinstance(q, MeanField), start, batch[0])
        bound = _Bound(target, q, layout, fixed, local, temperature, samples, stream)
        record: dict[str, Any] = {"family": family, "estimator": "local" if local else "shared"}
        record["marginal"] = None if target.marginal is None else type(target.marginal).__name__

        course: list[Tensor] = []

        def result() -> Posterior:
            return posterior_of(target, q.distribution(), layout, fixed, record=record | {"elbo": _course(course)})

        slope, changing = _Slope(), [*q.leaves, *fixed.values()]
        good = [value.detach().clone() for value in changing]

        def last_good() -> Posterior:
            with torch.no_grad():
                for value, kept_value in zip(changing, good, strict=True):
                    value.copy_(kept_value)
            return result()

        # the second moments of the gradients change as q widens, so Adam must forget them quickly
        optimizer = torch.optim.Adam(q.leaves, lr=lr, betas=(0.9, 0.99), fused=True)
        for step in steps_of(steps, "variational inference", progress):
            optimizer.param_groups[0]["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / steps))
            optimizer.zero_grad()
            bound.landing = 2 * step >= steps
            course.append(bound.climb(batch, step, last_good))
            good = [value.detach().clone() for value in changing]
            if step >= steps - steps // _LAST:
                slope.add(q)
            optimizer.step()
            batch = batches.next()
        if slope.count >= _FEWEST:
            record["distance"] = slope.distance(q.distribution(), bound.share)
        if record.get("distance", 0.0) > _FAR:
            warnings.warn(
                f"Variational inference has not converged: a mean is about {record['distance']:.2g} standard deviations from "
                "its optimum, or a variance off by that fraction. Raise `steps` or `lr`, or scale the features.",
                stacklevel=3,
            )
        found = result()
        if batches.loader is None and slope.count >= _FEWEST:
            judge_gaussian(found, given, batches.whole(), temperature)
        return found


class _Slope:
    """The gradients of the negative bound by the means and by the logarithms of the scales, in sums over steps."""

    def __init__(self) -> None:
        self.count, self.total, self.squares = 0, torch.zeros(()), torch.zeros(())

    def add(self, q: Family) -> None:
        """Add the gradients of one step."""
        grad = torch.stack([leaf.grad for leaf in q.leaves[:2] if leaf.grad is not None])
        self.count, self.total, self.squares = self.count + 1, self.total + grad, self.squares + grad.square()

    def distance(self, q: Distribution, share: float) -> float:
        """Return the largest length of a Newton step beyond the noise: |g| σ for a mean, |g| for a variance, times N/T."""
        mean = self.total / self.count
        error = (self.squares / self.count - mean.square()).clamp_min(0).sqrt() / math.sqrt(self.count - 1)
        beyond = mean.abs() - (3 + math.sqrt(2 * math.log(mean.numel()))) * error  # of the largest of many
        units = torch.stack([q.standard_deviation, torch.ones_like(q.standard_deviation)])
        return float((units * beyond.clamp_min(0)).max()) / share


class _Bound:
    """The evidence lower bound per example, (E_q[log p(w, Y|X)] + T H[q]) / N, and its gradient by q's numbers."""

    def __init__(
        self,
        target: LogPosterior,
        q: Family,
        layout: Layout,
        fixed: dict[str, Tensor],
        local: LocalNoise | None,
        temperature: float,
        samples: int,
        stream: torch.Generator,
    ) -> None:
        assert target.num_data is not None
        self.target, self.q, self.layout, self.fixed, self.local = target, q, layout, fixed, local
        self.share, self.samples, self.stream = temperature / target.num_data, samples, stream
        self.landing = False

    def climb(self, batch: Batch, step: int, last_good: Callable[[], Any]) -> Tensor:
        """Add the gradient of the negative bound to q's leaves, and return the bound; raise Diverged if not finite."""
        total = torch.zeros(())
        for noise in self._noises():
            try:
                value = self.estimate(noise, batch) / self.samples
            except ValueError:
                self._check_outputs(noise, batch[0], step, last_good)
                raise
            (-value).backward()
            total = total + value.detach()
        grads = [leaf.grad.sum() for leaf in self.q.leaves if leaf.grad is not None]
        check_finite(torch.stack([total, *grads]), step, last_good, "the bound and its gradient")
        return total

    def estimate(self, noise: Tensor, batch: Batch) -> Tensor:
        """Return the estimate from one draw of the weights."""
        weights = self.q.draw(noise)
        drawn = self.layout.unflatten(weights) | self.fixed
        if self.local is None:
            return self.target(drawn, batch)[0] + self.share * self._entropy(noise, weights)
        assert self.target.num_data is not None
        prior = self.target.log_prior(drawn) / self.target.num_data
        return self._local_likelihood(drawn, batch) + prior + self.share * self.q.entropy()

    def _entropy(self, noise: Tensor, weights: Tensor) -> Tensor:
        """Return H[q]; near the end with the gradient −∇ log q(w) ∂w of this draw ("sticking the landing", Roeder et al. 2017).

        Its noise cancels that of the log posterior if q is close to it; far away, where q is narrow, it adds noise.
        """
        if not self.landing:
            return self.q.entropy()
        along = (self.q.score(noise) * weights).sum()
        return along - along.detach() + self.q.entropy().detach()

    @torch.no_grad()
    def _check_outputs(self, noise: Tensor, x: Tensor, step: int, last_good: Callable[[], Any]) -> None:
        drawn = self.layout.unflatten(self.q.draw(noise)) | self.fixed
        check_finite(self.target.outputs(drawn, x), step, last_good, "the model's outputs")

    def _local_likelihood(self, drawn: Params, batch: Batch) -> Tensor:
        assert self.local is not None
        assert isinstance(self.q, MeanField)
        means = self.layout.unflatten(self.q.mean)
        deviations = self.layout.unflatten(self.q.log_scale.exp())
        unlabelled = batch[2] if len(batch) > 2 else self.target.unlabelled
        outputs = self.local.outputs(means, deviations, drawn, batch[0], self.stream)
        others = None if unlabelled is None else self.local.outputs(means, deviations, drawn, unlabelled, self.stream)
        log_marginal = _shared_marginal(self.target, drawn, batch) if self.target.gains else None
        result: Tensor = self.target.at(drawn, lambda: self.target.likelihood_of(outputs, batch[1], others, log_marginal))
        return result

    def _noises(self) -> list[Tensor]:
        """Return standard normal vectors in antithetic pairs, which cancels odd terms."""
        like = self.q.leaves[0]
        half = [torch.randn(self.q.noise_size, generator=self.stream, dtype=like.dtype) for _ in range((self.samples + 1) // 2)]
        return [noise.to(like.device) for each in half for noise in (each, -each)][: self.samples]


def _shared_marginal(target: LogPosterior, drawn: Params, batch: Batch) -> Tensor:
    """Return log p(y|w) at one w: exact over the pool, or with the minibatch's gradient and the marginal's value."""
    if target.pool is not None:
        return target.log_marginal(drawn, target.pool)
    log_m = target.log_m(drawn, batch)
    estimate = MinibatchEstimate(log_m.detach(), len(batch[1]))
    return with_minibatch_gradient(target.at(drawn, lambda: target.criterion.marginal.update(estimate)), log_m)


def following(target: LogPosterior, params: Params, batch: Batch, stream: torch.Generator) -> LogPosterior:
    """Return the target with q_ψ(w) instead of a running average.

    There are many weights, and p(y|w) depends on their products. So the inputs of q_ψ are the model's predictions for a few
    examples, at the sampled mix, in which no class is rare, and log p(y|w) over these few. With 32,
    KL[p(·|w) ‖ q_ψ(w)] over draws of an MLP's weights, at r = ρ, was 20 times smaller than when it read the weights themselves.

    Args:
        target: the log posterior.
        params: weights and buffers of the model.
        batch: gives these few examples, at random, and as many of the unlabelled rows.
        stream: the generator for their choice.
    """
    if not isinstance(target.marginal, RunningMarginal):
        return target
    counts = counting(batch[1])
    labelled = torch.nonzero(counts if bool(counts.any()) else ~counts).flatten()  # if there are none, the loss raises an error
    rows = labelled[_some(len(labelled), _ANCHORS, stream).to(labelled.device)]
    few: Batch = (batch[0][rows], batch[1][rows])
    if target.unlabelled is not None:
        few += (target.unlabelled[_some(len(target.unlabelled), _ANCHORS, stream).to(target.unlabelled.device)],)

    def table() -> Tensor:
        with torch.no_grad(), in_mode(target.model, False):
            found = torch.cat(target.all_tables({}, few[0], *few[2:]))
            return at_reference(target.columns(found), target.terms(found).log_adjust)

    start = target.at(params, table)
    cells = _some(len(start), _CELLS, stream).to(start.device)

    def predictions() -> Tensor:
        with torch.no_grad(), in_mode(target.model, False):
            return torch.cat([target.log_m({}, few), table()[cells].exp().flatten()])

    marginal = AuxiliaryMarginal(predictions)
    target.at(params, lambda: marginal.prepare(start.shape[1]))
    return target.with_marginal(marginal)


def _some(many: int, few: int, stream: torch.Generator) -> Tensor:
    return torch.randperm(many, generator=stream)[:few]


def _course(values: list[Tensor]) -> list[float]:
    if not values:
        return []
    parts = torch.stack(values).tensor_split(min(_KEPT, len(values)))
    return [float(part.mean()) for part in parts]


class Family(ABC):
    """A Gaussian N(μ, Σ) over d weights, in training, with Σ = D A Aᵀ D and D = diag(s): w = μ + s ⊙ A ε, ε standard normal."""

    def __init__(self, start: Float[Tensor, " d"], deviation: float, *others: Tensor) -> None:
        self.mean = start.clone().requires_grad_()
        self.log_scale = torch.full_like(start, math.log(deviation)).requires_grad_()
        self.leaves, self.noise_size = [self.mean, self.log_scale, *(each.requires_grad_() for each in others)], len(start)

    def draw(self, noise: Float[Tensor, " e"]) -> Float[Tensor, " d"]:
        """Return w."""
        return torch.addcmul(self.mean, self.log_scale.exp(), self._spread(noise))

    @torch.no_grad()
    def score(self, noise: Float[Tensor, " e"]) -> Float[Tensor, " d"]:
        """Return Σ⁻¹(w − μ) = −∇ log q(w) at `draw(noise)`, without gradient."""
        return self._gathered(noise) * torch.exp(-self.log_scale)

    def entropy(self) -> Tensor:
        """Return H[q] in nats."""
        return self.log_scale.sum() + self._half_log_det() + 0.5 * _LOG_2PI_E * len(self.mean)

    @abstractmethod
    def distribution(self) -> Distribution:
        """Return the current Gaussian, detached."""

    @abstractmethod
    def _spread(self, noise: Float[Tensor, " e"]) -> Float[Tensor, " d"]:
        """Return A ε."""

    @abstractmethod
    def _gathered(self, noise: Float[Tensor, " e"]) -> Float[Tensor, " d"]:
        """Return (A Aᵀ)⁻¹ A ε."""

    def _half_log_det(self) -> Tensor | float:
        """Return ½ log det A Aᵀ."""
        return 0.0


def family_of(name: str, start: Float[Tensor, " d"], deviation: float, rank: int) -> Family:
    """Return the family of that name around `start`, with this standard deviation."""
    families: dict[str, Callable[[], Family]] = {
        "mean-field": lambda: MeanField(start, deviation),
        "full-rank": lambda: FullRank(start, deviation),
        "low-rank": lambda: LowRank(start, deviation, rank),
    }
    return families[checked_choice(name, "family", families)]()


class MeanField(Family):
    """A = I."""

    def distribution(self) -> DiagonalGaussian:
        return DiagonalGaussian(self.mean.detach().clone(), self.log_scale.detach().exp())

    def _spread(self, noise: Tensor) -> Tensor:
        return noise

    def _gathered(self, noise: Tensor) -> Tensor:
        return noise


class FullRank(Family):
    """A = I + U, U strictly below the diagonal."""

    def __init__(self, start: Float[Tensor, " d"], deviation: float) -> None:
        if len(start) > _LARGEST_DENSE:
            raise ValueError(
                f"Expected at most {_LARGEST_DENSE} weights for family='full-rank', but got {len(start)}, "
                f"with {len(start) ** 2:,} covariances: use family='low-rank' or 'mean-field'."
            )
        self.below = start.new_zeros(len(start), len(start))
        super().__init__(start, deviation, self.below)

    def distribution(self) -> DenseGaussian:
        factor = self.log_scale.exp()[:, None] * (self.below.tril(-1) + torch.eye(len(self.mean)).to(self.mean))
        return DenseGaussian(self.mean.detach().clone(), factor.detach())

    def _spread(self, noise: Tensor) -> Tensor:
        return noise + self.below.tril(-1) @ noise

    def _gathered(self, noise: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.below.T, noise[:, None], upper=True, unitriangular=True)[:, 0]


class LowRank(Family):
    """A = (I, C) with C of `rank` columns."""

    def __init__(self, start: Float[Tensor, " d"], deviation: float, rank: int) -> None:
        if rank > len(start):
            raise ValueError(f"Expected `rank` up to the number of weights, {len(start)}, but got {rank}: lower it.")
        # not 0, where the gradient of C is always 0
        common = torch.randn(len(start), rank, dtype=start.dtype) / math.sqrt(len(start) * rank)
        self.common = common.to(start.device)
        super().__init__(start, deviation, self.common)
        self.noise_size += rank

    def distribution(self) -> LowRankGaussian:
        scale = self.log_scale.detach().exp()
        return LowRankGaussian(self.mean.detach().clone(), scale[:, None] * self.common.detach(), scale)

    def _spread(self, noise: Tensor) -> Tensor:
        own, common = noise.split([len(self.mean), self.common.shape[1]])
        return own + self.common @ common

    def _gathered(self, noise: Tensor) -> Tensor:
        away = self._spread(noise)
        return away - self.common @ torch.linalg.solve(self._inner(), self.common.T @ away)  # Woodbury

    def _half_log_det(self) -> Tensor:
        return 0.5 * torch.logdet(self._inner())

    def _inner(self) -> Float[Tensor, "r r"]:
        """Return I + CᵀC."""
        return torch.eye(self.common.shape[1]).to(self.mean) + self.common.T @ self.common
