"""The standard likelihoods: softmax and logistic for classes, normal and any `torch.distributions` density for regression.

In regression the support of the table is the batch's own labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution

from ..arrays import checked_int
from ..prevalence import AnyPrevalence, ContinuousPrevalence, MultilabelPrevalence, Prevalence
from ..tensors import tensor_of
from .contract import Likelihood, check_outputs, columns


class Categorical(nn.Module):
    """Softmax: `log p(k|x,w) = z_k − log Σ_j exp z_j`, K logits for K classes.

    Args:
        num_classes: K, to be checked; by default that of the prevalence.

    Examples:
        >>> import torch
        >>> import rightloss as rl
        >>> rl.Categorical().table(torch.tensor([[2.0, 1.0, 0.0]])).exp().round(decimals=3)
        tensor([[0.6650, 0.2450, 0.0900]])
    """

    over_classes = True

    def __init__(self, num_classes: int | None = None) -> None:
        super().__init__()
        self.num_classes = None if num_classes is None else checked_int(num_classes, "num_classes", 2, remedy="count them")

    @property
    def num_outputs(self) -> int | None:
        return self.num_classes

    def table(self, outputs: Tensor, support: Tensor | None = None) -> Tensor:
        check_outputs(outputs, self.num_classes or max([2, *outputs.shape[1:2]]), self)
        return columns(F.log_softmax(outputs, dim=1), support)

    def starting_outputs(self, prevalence: AnyPrevalence) -> Tensor:
        return log_population(self, prevalence)

    def extra_repr(self) -> str:
        return "" if self.num_classes is None else str(self.num_classes)


class Bernoulli(nn.Module):
    """Logistic: one logit z of class 1, `log p(1|x,w) = log σ(z)`. Equal to two logits (0, z).

    Examples:
        >>> import torch
        >>> import rightloss as rl
        >>> rl.Bernoulli().table(torch.tensor([[0.0], [2.0]])).exp().round(decimals=3)
        tensor([[0.5000, 0.5000],
                [0.1190, 0.8810]])
    """

    over_classes = True
    num_outputs = 1
    num_classes = 2

    def table(self, outputs: Tensor, support: Tensor | None = None) -> Tensor:
        check_outputs(outputs, 1, self)
        return columns(torch.cat([F.logsigmoid(-outputs), F.logsigmoid(outputs)], dim=1), support)

    def starting_outputs(self, prevalence: AnyPrevalence) -> Tensor:
        log_pi = log_population(self, prevalence)
        return log_pi[1:] - log_pi[:1]


class Findings(nn.Module):
    """A logit for each of L findings, any of which can be present together (multi-label): tables `(L, n, 2)`.

    Losses with a `Prevalence.multilabel` use it.

    Args:
        num_findings: L.

    Examples:
        >>> import torch
        >>> from rightloss.likelihoods import Findings
        >>> Findings(3).table(torch.zeros(4, 3)).shape
        torch.Size([3, 4, 2])
    """

    over_classes = True
    num_classes = 2

    def __init__(self, num_findings: int) -> None:
        super().__init__()
        self.num_outputs = num_findings

    def table(self, outputs: Tensor, support: Tensor | None = None) -> Tensor:
        check_outputs(outputs, self.num_outputs, self)
        return torch.stack([F.logsigmoid(-outputs), F.logsigmoid(outputs)], -1).transpose(0, 1)

    def starting_outputs(self, prevalence: AnyPrevalence) -> Tensor:
        if not isinstance(prevalence, MultilabelPrevalence):
            raise ValueError(f"Expected Prevalence.multilabel(…) for findings, but got {prevalence}: list a rate for each.")
        return torch.logit(tensor_of(prevalence.population))

    def extra_repr(self) -> str:
        return str(self.num_outputs)


class Gaussian(nn.Module):
    """`y ~ N(z, σ²)` with one learned scale σ: `log p(y|x,w) = −½ ((y − z)/σ)² − log σ − ½ log 2π`, summed over dimensions.

    σ is a parameter of the likelihood, so give `criterion.parameters()` to the optimiser too. For a scale that
    depends on x, use `FromDistribution`.

    Args:
        num_outputs: dimension of y.
        scale: the start of σ.
        learn_scale: False keeps σ fixed.

    Examples:
        >>> import torch
        >>> import rightloss as rl
        >>> outputs, y = torch.tensor([[0.0], [1.0]]), torch.tensor([0.0, 2.0])
        >>> rl.Gaussian().table(outputs, support=y).exp().round(decimals=3)
        tensor([[0.3990, 0.0540],
                [0.2420, 0.2420]], grad_fn=<RoundBackward1>)
    """

    over_classes = False
    num_classes = None

    def __init__(self, num_outputs: int = 1, scale: float = 1.0, learn_scale: bool = True) -> None:
        super().__init__()
        if not 0 < scale < math.inf:
            raise ValueError(f"Expected `scale` to be a finite number > 0, but got {scale}: 1 suits a standardised y.")
        self.num_outputs = num_outputs
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)), requires_grad=learn_scale)

    def table(self, outputs: Tensor, support: Tensor | None = None) -> Tensor:
        check_outputs(outputs, self.num_outputs, self)
        values = _values(support, torch.Size([self.num_outputs]))
        distance = (values[None] - outputs[:, None]).div(self.log_scale.exp()).square().sum(2)
        return -0.5 * distance - self.num_outputs * (self.log_scale + 0.5 * math.log(2 * math.pi))

    def starting_outputs(self, prevalence: AnyPrevalence) -> Tensor:
        population = _density(prevalence)
        mean, scale = population.mean.expand(self.num_outputs), population.stddev.square().mean().sqrt()
        if not bool(torch.isfinite(mean).all() & torch.isfinite(scale)):
            came = f"{population}: set the bias by hand"
            raise ValueError(f"Expected a population with a finite mean and variance to start a Gaussian at, but got {came}.")
        if self.log_scale.requires_grad:
            with torch.no_grad():
                self.log_scale.copy_(scale.log())
        return mean.double()

    def extra_repr(self) -> str:
        return f"num_outputs={self.num_outputs}"


class FromDistribution(nn.Module):
    """Any `torch.distributions` density as a likelihood.

    Args:
        build: outputs `(n, num_outputs)` → a distribution with batch shape `(n,)`, for example
            `lambda z: Laplace(z[:, 0], z[:, 1].exp())`, or `lambda z: Poisson(z[:, 0].exp())`.
        num_outputs: the number of outputs that `build` takes.
        start: population density → starting outputs `(num_outputs,)`; needed only by `start_at_prevalence`.

    Examples:
        >>> import torch
        >>> import rightloss as rl
        >>> counts = rl.FromDistribution(lambda z: torch.distributions.Poisson(z[:, 0].exp()), num_outputs=1)
        >>> counts.table(torch.zeros(1, 1), support=torch.tensor([0.0, 1.0, 2.0])).exp().round(decimals=3)
        tensor([[0.3680, 0.3680, 0.1840]])
    """

    over_classes = False
    num_classes = None

    def __init__(
        self,
        build: Callable[[Tensor], Distribution],
        num_outputs: int,
        start: Callable[[Distribution], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.build, self.num_outputs, self.start = build, num_outputs, start

    def table(self, outputs: Tensor, support: Tensor | None = None) -> Tensor:
        check_outputs(outputs, self.num_outputs, self)
        density = self.build(outputs)
        if density.batch_shape != outputs.shape[:1]:
            came = f"{tuple(density.batch_shape)}: index the outputs as z[:, 0], and wrap vectors in `Independent`"
            raise ValueError(f"Expected `build` to give a distribution of batch shape ({len(outputs)},), but got {came}.")
        return density.log_prob(_values(support, density.event_shape)[:, None]).T

    def starting_outputs(self, prevalence: AnyPrevalence) -> Tensor:
        population = _density(prevalence)
        if self.start is None:
            raise ValueError("Expected `start` to be given, but got None: FromDistribution(build, num_outputs, start=…).")
        return torch.as_tensor(self.start(population), dtype=torch.float64).reshape(self.num_outputs)


def likelihood_of(likelihood: Likelihood | None, prevalence: AnyPrevalence) -> Likelihood:
    """Return the checked likelihood: Categorical by default, and a logit for each finding of a multi-label prevalence."""
    if isinstance(prevalence, MultilabelPrevalence):
        check_pair(Bernoulli() if likelihood is None else likelihood, prevalence)
        return Findings(prevalence.num_findings)
    likelihood = Categorical() if likelihood is None else likelihood
    check_pair(likelihood, prevalence)
    return likelihood


def check_pair(likelihood: Likelihood, prevalence: AnyPrevalence) -> None:
    """Check that a likelihood over classes has a Prevalence, and a density a ContinuousPrevalence."""
    if isinstance(likelihood, type) or not isinstance(likelihood, Likelihood):
        remedy = "call the class, and pass other arguments by name (marginal=…)"
        raise ValueError(f"Expected `likelihood` to be a likelihood such as Categorical(), but got {likelihood!r}: {remedy}.")
    if isinstance(prevalence, MultilabelPrevalence):
        if not isinstance(likelihood, Bernoulli | Findings):
            came = f"{type(likelihood).__name__}: leave out `likelihood`"
            raise ValueError(f"Expected Bernoulli(), a logit for each finding, with a multi-label prevalence, but got {came}.")
    elif isinstance(prevalence, Prevalence):
        if not likelihood.over_classes:
            came = f"a Prevalence of {prevalence.num_classes} classes: a density has no classes"
            raise ValueError(f"Expected ContinuousPrevalence(population=…) for {type(likelihood).__name__}, but got {came}.")
        if likelihood.num_classes not in (None, prevalence.num_classes):
            wanted = f"{likelihood.num_classes} classes for {type(likelihood).__name__}"
            raise ValueError(f"Expected a prevalence of {wanted}, but got {prevalence.num_classes}: list the same in both.")
    elif isinstance(prevalence, ContinuousPrevalence):
        if likelihood.over_classes:
            came = "a ContinuousPrevalence: use Prevalence([…]), or Gaussian() for regression"
            raise ValueError(f"Expected a Prevalence of classes for {type(likelihood).__name__}, but got {came}.")
    else:
        raise ValueError(f"Expected a Prevalence, but got {type(prevalence).__name__}: rightloss.Prevalence([…]).")


def log_population(likelihood: Likelihood, prevalence: AnyPrevalence) -> Tensor:
    """Return log π (K,) for a likelihood over classes."""
    check_pair(likelihood, prevalence)
    assert isinstance(prevalence, Prevalence)
    return tensor_of(prevalence.start).log()


def _values(support: Tensor | None, shape: torch.Size) -> Tensor:
    """Return the values of y `(m, *shape)`; a one-dimensional y may be `(m,)` or `(m, 1)`."""
    if support is None:
        raise ValueError("Expected a support, but got None: a density has no list of classes; pass the values of y.")
    if support.shape[1:].numel() != shape.numel():
        remedy = "match the number of outputs to the dimension of y"
        raise ValueError(f"Expected values of y of shape {tuple(shape)} each, but got {tuple(support.shape[1:])}: {remedy}.")
    return support.reshape(-1, *shape)


def _density(prevalence: AnyPrevalence) -> Distribution:
    if not isinstance(prevalence, ContinuousPrevalence) or not isinstance(prevalence.population, Distribution):
        came = f"{type(prevalence).__name__}: a regression starts at the population's mean"
        raise ValueError(f"Expected ContinuousPrevalence(population=…) with a torch distribution, but got {came}.")
    return prevalence.population
