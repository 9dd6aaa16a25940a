"""Gaussian sites that approximate the posterior's factors, for a model that is linear in its random weights.

Stage: Gaussian over w → changes of the sites' natural parameters. The w of z = W h is the rows of W, one after the other.

The site that matches a factor follows from derivatives (Bonnet's and Price's theorems). N(m, V) times a factor g has moments

    m + V a and V + V B V,  a = E[∇ log g],  B = E[∇² log g + ∇ log g ∇ log gᵀ] − a aᵀ,

in expectation under that product. So a small power of a factor loses no digits, as it would in weighted sums of w wᵀ. With m
and V of the approximation itself, and the factor divided by its site as g, the points are where the product has its mass, and a
site that equals its factor does not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.quasirandom import SobolEngine

from ..likelihoods import Bernoulli, Categorical, Likelihood
from ..losses.gain import at_reference
from ..losses.streams import stream_columns

_FACTOR = 30.0  # largest factor by which a site may change a variance in one step
_NODES = {1: 32, 2: 12, 3: 7}  # number of Gauss–Hermite nodes in each direction, by the number of dimensions
_NUMBERS = 1 << 21  # held at once in a tensor of a block


@dataclass(frozen=True, eq=False)
class NaturalParameters:
    """exp(shiftᵀ w − ½ wᵀ precision w)."""

    precision: Tensor
    shift: Tensor

    def plus(self, other: NaturalParameters, step: float = 1.0) -> NaturalParameters:
        """Return the product with `other` to the power `step`."""
        return NaturalParameters(self.precision + step * other.precision, self.shift + step * other.shift)

    def over(self, power: float | Tensor) -> NaturalParameters:
        """Return the density to the power 1/`power`."""
        return NaturalParameters(self.precision / power, self.shift / power)

    def moments(self) -> GaussianMoments | None:
        """Return mean and covariance; None if it is not a distribution."""
        factor, info = torch.linalg.cholesky_ex(self.precision)
        if int(info) or not bool(torch.isfinite(factor).all()):
            return None
        covariance = torch.cholesky_inverse(factor)
        return GaussianMoments(covariance @ self.shift, covariance)


@dataclass(frozen=True, eq=False)
class GaussianMoments:
    """A Gaussian over w, or, with a dimension of n in front, over the outputs z_n of each of n rows."""

    mean: Float[Tensor, "*n d"]
    covariance: Float[Tensor, "*n d d"]

    def outputs(self, features: Float[Tensor, "n p"]) -> GaussianMoments:
        """Return the Gaussians of z_n = W h_n."""
        size = features.shape[1]
        halves = (features @ self.covariance.reshape(-1, size, len(self.mean))).unflatten(-1, (-1, size))
        return GaussianMoments(features @ self.mean.reshape(-1, size).T, torch.einsum("anbp,np->nab", halves, features))

    def matching(self, a: Tensor, b: Tensor) -> NaturalParameters:
        """Return the change of natural parameters that gives the moments m + V a, V + V B V.

        With points far apart B can be inaccurate, so no variance changes by more than a factor of `_FACTOR` in one step.
        """
        factor, info = torch.linalg.cholesky_ex(self.covariance)
        factor = torch.where(info[..., None, None] == 0, factor, torch.nan)
        inner = factor.mT @ b @ factor
        sound = torch.isfinite(inner).flatten(-2).all(-1)[..., None, None]
        values, vectors = torch.linalg.eigh(torch.where(sound, (inner + inner.mT) / 2, 0.0))
        ratio = (1 + values).clamp(1 / _FACTOR, _FACTOR)
        vectors = torch.linalg.solve_triangular(factor.mT, vectors, upper=True)
        precision = torch.where(sound, (vectors * (1 / ratio - 1).unsqueeze(-2)) @ vectors.mT, torch.nan)
        return NaturalParameters(precision, a + _times(precision, self.mean + _times(self.covariance, a)))


@dataclass(frozen=True, eq=False)
class NormalPoints:
    """E[f(ε)] ≈ Σ_s exp(log_weight_s) f(at_s) for ε ~ N(0, I)."""

    at: Float[Tensor, "s d"]
    log_weight: Float[Tensor, " s"]

    def to(self, device: torch.device) -> NormalPoints:
        """Copy to a device."""
        return NormalPoints(self.at.to(device), self.log_weight.to(device))

    def __len__(self) -> int:
        return len(self.at)


def normal_points(dimensions: int, draws: int, seed: int) -> NormalPoints:
    """Return Gauss–Hermite's product rule in up to three dimensions, else `sobol_points`, `draws` of them."""
    if dimensions not in _NODES:
        return sobol_points(dimensions, draws, seed)
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(_NODES[dimensions]))
    at = torch.cartesian_prod(*[nodes] * dimensions).reshape(-1, dimensions)
    log_weight = torch.cartesian_prod(*[weights.log()] * dimensions).reshape(-1, dimensions).sum(1)
    return NormalPoints(at, log_weight - torch.logsumexp(log_weight, 0))


def sobol_points(dimensions: int, draws: int, seed: int) -> NormalPoints:
    """Return Sobol' points made normal, each with its mirror image, and scaled to a covariance of exactly I.

    There are `draws` of them, or at least three for each dimension. So averages of quadratic and of odd functions are exact.
    """
    half = max(math.ceil(draws / 2), math.ceil(1.5 * dimensions))
    uniform = SobolEngine(dimensions, scramble=True, seed=seed).draw(half, dtype=torch.float64)
    normal = torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9))
    factor = torch.linalg.cholesky(normal.T @ normal / half)
    normal = torch.linalg.solve_triangular(factor, normal.T, upper=False).T
    return NormalPoints(torch.cat([normal, -normal]), torch.full((2 * half,), -math.log(2 * half), dtype=torch.float64))


@runtime_checkable
class Sites(Protocol):
    """Sites that are updated together."""

    @property
    def own(self) -> NaturalParameters:
        """Their natural parameters, changed in place."""
        ...

    def change(self, q: GaussianMoments, power: float) -> NaturalParameters:
        """Return the change of their natural parameters, given the approximation q; at power 0 to tangents at its mean.

        Tangents of the marginal have no precision. So their product is always a Gaussian, and its mean converges to the mode.
        """
        ...

    def over_weights(self, own: NaturalParameters) -> NaturalParameters:
        """Return natural parameters of sites as those of one Gaussian in w."""
        ...


@dataclass(frozen=True, eq=False)
class ExampleSites:
    """A site for each row, exp(ηᵀ z_n − ½ z_nᵀ Λ z_n), for the factors of the data, f_n = Π_k p(k|z_n)^{e_nk}.

    Attributes:
        features: h_n.
        exponents: e_nk.
        table: z → log p(k|z).
        points: for z.
        own: Λ and η.
    """

    features: Float[Tensor, "n p"]
    exponents: Float[Tensor, "n k"]
    table: OutputTable
    points: NormalPoints
    own: NaturalParameters

    def change(self, q: GaussianMoments, power: float) -> NaturalParameters:
        outputs = self.points.at.shape[1]
        size = max(1, _NUMBERS // (len(self.points) * self.exponents.shape[1] * outputs * outputs))
        blocks = (slice(start, start + size) for start in range(0, len(self.features), size))
        changes = [self._matched(some, q.outputs(self.features[some]), power) for some in blocks]
        return NaturalParameters(torch.cat([each.precision for each in changes]), torch.cat([each.shift for each in changes]))

    def over_weights(self, own: NaturalParameters) -> NaturalParameters:
        return NaturalParameters(_over_weights(self.features, own.precision), (own.shift.T @ self.features).flatten())

    def _matched(self, some: slice, q: GaussianMoments, power: float) -> NaturalParameters:
        """Return the change of some sites that matches the factors, row by row, given z under the approximation."""
        factor, info = torch.linalg.cholesky_ex(q.covariance)
        points = self.points if power else NormalPoints(self.points.at[:1] * 0, self.points.log_weight[:1] * 0)
        z = q.mean[:, None] + points.at @ torch.where(info[:, None, None] == 0, factor, torch.nan).mT
        log_p, gradients, hessians = self.table.derivatives(z)
        e, precision, shift = self.exponents[some], self.own.precision[some], self.own.shift[some]
        pull = z @ precision
        log_g = torch.einsum("nsk,nk->ns", log_p, e) - (z * (shift[:, None] - 0.5 * pull)).sum(-1)
        weight = torch.softmax(power * log_g + points.log_weight, 1)
        slope = torch.einsum("nsko,nk->nso", gradients, e) + pull - shift[:, None]
        shared = hessians.shape[-3] == 1
        bend = torch.einsum("nskab,nk,ns->nab", hessians, e.sum(1, keepdim=True) if shared else e, weight) + precision
        if power:
            new = q.matching(*_tilt(weight, power * slope, power * bend)).over(power)
        else:
            new = NaturalParameters(-bend, slope[:, 0] - _times(bend, q.mean))
        # a row without a match keeps its site until the others have changed
        sound = torch.isfinite(new.shift).all(1) & torch.isfinite(new.precision).flatten(1).all(1)
        return NaturalParameters(
            torch.where(sound[:, None, None], new.precision, 0.0), torch.where(sound[:, None], new.shift, 0.0)
        )


@dataclass(frozen=True, eq=False)
class MarginalSites:
    """A site for each class, exp(μᵀ w − ½ wᵀ M w), for its factor p(k|w)^{c_k}, p(k|w) = Σ_n b_n p(k|W h_n) over a pool.

    The factor is treated as |c_k| equal ones, p(k|w)^{±1}, with tied sites, because as a whole it is far from Gaussian.

    Attributes:
        features: h_n of the pool.
        log_weights: log b_n.
        exponents: c_k, in the posterior −N_k + N κ r_k.
        table: z → log p(k|z).
        points: for w.
        own: M and μ.
    """

    features: Float[Tensor, "n p"]
    log_weights: Float[Tensor, " n"]
    exponents: Float[Tensor, " k"]
    table: OutputTable
    points: NormalPoints
    own: NaturalParameters

    def change(self, q: GaussianMoments, power: float) -> NaturalParameters:
        if not power:
            log_m = self.log_marginal(q.mean[None])
            slopes = self.exponents[:, None] * self._derivatives(q.mean[None], log_m, torch.ones_like(log_m))[0][0]
            return NaturalParameters(torch.zeros_like(self.own.precision), slopes - self.own.shift)
        w = q.mean + self.points.at @ torch.linalg.cholesky(q.covariance).T
        log_m = self.log_marginal(w)
        powers = power / self.exponents.abs().clamp_min(1.0)
        site = torch.einsum("sd,kd->sk", w, self.own.shift) - 0.5 * torch.einsum("sd,kde,se->sk", w, self.own.precision, w)
        weight = torch.softmax(powers * (self.exponents * log_m - site) + self.points.log_weight[:, None], 0)
        slopes, bends = self._derivatives(w, log_m, weight)
        slopes = self.exponents[:, None] * slopes + torch.einsum("kde,se->skd", self.own.precision, w) - self.own.shift
        bends = self.exponents[:, None, None] * bends + self.own.precision
        changes = []
        for k, own_power in enumerate(powers):
            changes.append(q.matching(*_tilt(weight[:, k], own_power * slopes[:, k], own_power * bends[k])).over(own_power))
        return NaturalParameters(
            torch.stack([each.precision for each in changes]), torch.stack([each.shift for each in changes])
        )

    def over_weights(self, own: NaturalParameters) -> NaturalParameters:
        return NaturalParameters(own.precision.sum(0), own.shift.sum(0))

    def log_marginal(self, w: Float[Tensor, "s d"]) -> Float[Tensor, "s k"]:
        """log p(k|w) of each draw."""
        parts = [self.table.log_probs(self._outputs(w[some])) for some in self._blocks(w)]
        return torch.cat([torch.logsumexp(part + self.log_weights[:, None], 1) for part in parts])

    def _derivatives(self, w: Tensor, log_m: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return ∇ log p(k|w) of each draw `(s, k, d)`, and the draws' weighted mean of ∇² log p(k|w) `(k, d, d)`.

        ∇² log p(k|w) is ∇² p(k|w) / p(k|w) minus the gradient's outer product; the former is a sum over the pool of h_n h_nᵀ
        times terms that can be averaged over the draws first.
        """
        slopes, inner = [], torch.zeros(())
        for some in self._blocks(w):
            log_p, gradients, hessians = self.table.derivatives(self._outputs(w[some]))
            share = (log_p + self.log_weights[:, None] - log_m[some, None]).exp()
            slopes.append(((share.unsqueeze(-1) * gradients).permute(0, 2, 3, 1) @ self.features).flatten(2))
            inner = inner + _mean_bends(share * weight[some, None], gradients, hessians)
        slope = torch.cat(slopes)
        outer = [own.T @ (weight[:, k, None] * own) for k, own in enumerate(slope.unbind(1))]
        return slope, torch.stack([_over_weights(self.features, each) for each in inner]) - torch.stack(outer)

    def _outputs(self, w: Tensor) -> Float[Tensor, "s n o"]:
        return self.features @ w.reshape(len(w), -1, self.features.shape[1]).mT

    def _blocks(self, w: Tensor) -> Iterator[slice]:
        outputs = w.shape[1] // self.features.shape[1]
        size = max(1, _NUMBERS // (len(self.features) * len(self.exponents) * outputs * outputs))
        for start in range(0, len(w), size):
            yield slice(start, start + size)


@runtime_checkable
class OutputTable(Protocol):
    """log p(k|z) at some mix of the classes."""

    def log_probs(self, z: Float[Tensor, "*rows o"]) -> Float[Tensor, "*rows k"]:
        """Return log p(k|z)."""
        ...

    def derivatives(self, z: Float[Tensor, "*rows o"]) -> tuple[Tensor, Tensor, Tensor]:
        """Return log p(k|z), its gradients `(…, k, o)`, and its Hessians `(…, k, o, o)`; `(…, 1, o, o)` if all are the same."""
        ...


def output_table(
    likelihood: Likelihood, log_offset: Float[Tensor, " k"] | None, sampled: Bool[Tensor, " c"] | None = None
) -> OutputTable:
    """Return the likelihood's table, moved to another mix by `log_offset`; closed forms for softmax and logistic.

    With unlabelled rows it is that of the streams: of the classes `sampled`, and of the unlabelled.
    """
    if sampled is None and isinstance(likelihood, Categorical | Bernoulli):
        return _Softmax(log_offset, isinstance(likelihood, Bernoulli))

    def of_rows(z: Tensor) -> Tensor:
        table = likelihood.table(z)
        return at_reference(table if sampled is None else stream_columns(table, sampled), log_offset)

    return _AnyTable(of_rows)


class _Softmax:
    """∇ log p_k = e_k − p, ∇² log p_k = p pᵀ − diag p. With a single output, `logistic`, that of class 0 is 0."""

    def __init__(self, log_offset: Tensor | None, logistic: bool) -> None:
        self.log_offset, self.fixed = log_offset, int(logistic)

    def log_probs(self, z: Tensor) -> Tensor:
        z = F.pad(z, (self.fixed, 0))
        return F.log_softmax(z if self.log_offset is None else z + self.log_offset, -1)

    def derivatives(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_p = self.log_probs(z)
        p, free = log_p.exp(), slice(self.fixed, None)
        gradients = torch.eye(p.shape[-1]).to(p) - p.unsqueeze(-2)
        hessians = p.unsqueeze(-1) * p.unsqueeze(-2) - torch.diag_embed(p)
        return log_p, gradients[..., free], hessians[..., free, free].unsqueeze(-3)


class _AnyTable:
    """Any other function of rows, by automatic differentiation."""

    def __init__(self, of_rows: Callable[[Tensor], Tensor]) -> None:
        self.of_rows = of_rows

    def log_probs(self, z: Tensor) -> Tensor:
        return self.of_rows(z.reshape(-1, z.shape[-1])).reshape(*z.shape[:-1], -1)

    def derivatives(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            log_p = self.log_probs(z)
            gradients = [_by_row(column, z) for column in log_p.unbind(-1)]
            hessians = [torch.stack([_by_row(part, z) for part in each.unbind(-1)], -2) for each in gradients]
        return log_p.detach(), torch.stack(gradients, -2).detach(), torch.stack(hessians, -3).detach()


def _by_row(values: Float[Tensor, "*rows"], z: Float[Tensor, "*rows o"]) -> Float[Tensor, "*rows o"]:
    """Return gradients of values that depend only on their own row."""
    (found,) = torch.autograd.grad(values.sum(), z, create_graph=True, materialize_grads=True)
    return found


def _mean_bends(share: Tensor, gradients: Tensor, hessians: Tensor) -> Float[Tensor, "k n o o"]:
    """Return Σ_s share_snk (∇² log p + ∇ log p ∇ log pᵀ), from `(s, n, k)`, `(s, n, k, o)` and `(s, n, k or 1, o, o)`."""
    outer = torch.einsum("snk,snka,snkb->knab", share, gradients, gradients)
    return outer + torch.einsum("snk,snkab->knab", share, hessians.expand(*share.shape, -1, -1))


def _over_weights(features: Float[Tensor, "n p"], precision: Float[Tensor, "n o o"]) -> Float[Tensor, "d d"]:
    """Return the sum of the rows' precisions, those of z_n = W h_n, as one of w."""
    outputs, size = precision.shape[1], features.shape[1]
    total = features.new_empty(outputs, size, outputs, size)
    for a in range(outputs):
        for b in range(a + 1):
            part = features.T @ (features * precision[:, a, b, None])
            total[a, :, b], total[b, :, a] = part, part.T
    return total.reshape(outputs * size, -1)


def _tilt(weight: Tensor, slope: Tensor, bend: Tensor) -> tuple[Tensor, Tensor]:
    """Return a and B from the points' weights `(…, s)`, ∇ log g `(…, s, o)`, and the weighted mean of ∇² log g `(…, o, o)`."""
    a = (weight.unsqueeze(-2) @ slope).squeeze(-2)
    away = slope - a.unsqueeze(-2)
    return a, bend + away.mT @ (weight.unsqueeze(-1) * away)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)
