"""Factors of the posterior → Gaussian sites that stand for them, for a model that is linear in its random weights.

Stage: Gaussian over w → changes of the sites' natural parameters. The w of z = W h is the rows of W, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from .derivatives import Table
from .natural import Moments, Natural
from .points import Points

_NUMBERS = 1 << 21  # held at once in a tensor of a block


@runtime_checkable
class Sites(Protocol):
    """Some of the sites."""

    @property
    def own(self) -> Natural:
        """Their natural parameters, changed in place."""
        ...

    def change(self, q: Moments, power: float) -> Natural:
        """What is to be added to them, given the approximation q."""
        ...

    def over_weights(self, own: Natural) -> Natural:
        """Natural parameters such as theirs, as those of one Gaussian in w."""
        ...


@dataclass(frozen=True, eq=False)
class Rows:
    """The factors of the data, f_n = Π_k p(k|z_n)^{e_nk}.

    Attributes:
        features: h_n.
        exponents: e_nk.
        table: z → log p(k|z).
        points: for z.
    """

    features: Float[Tensor, "n p"]
    exponents: Float[Tensor, "n k"]
    table: Table
    points: Points

    def parts(self, size: int | None = None) -> Iterator[tuple[slice, Rows]]:
        """`size` at a time; None: as many as there is room for."""
        outputs = self.outputs
        size = max(1, _NUMBERS // (len(self.points) * self.exponents.shape[1] * outputs * outputs)) if size is None else size
        for start in range(0, len(self.features), size):
            some = slice(start, start + size)
            yield some, self.where(some)

    def at_mean(self) -> Rows:
        """The same, with the mean of z for all points: sites become tangents."""
        return Rows(self.features, self.exponents, self.table, Points(self.points.at[:1] * 0, self.points.log_weight[:1] * 0))

    @property
    def outputs(self) -> int:
        """How many outputs there are."""
        return self.points.at.shape[1]

    def matched(self, q: Moments, site: Natural, power: float) -> Natural:
        """What leads from sites to those that match the factors, row by row, given z of each under the approximation."""
        factor, info = torch.linalg.cholesky_ex(q.covariance)
        z = q.mean[:, None] + self.points.at @ torch.where(info[:, None, None] == 0, factor, torch.nan).mT
        log_p, gradients, hessians = self.table.derivatives(z)
        e = self.exponents
        pull = z @ site.precision
        log_g = torch.einsum("nsk,nk->ns", log_p, e) - (z * (site.shift[:, None] - 0.5 * pull)).sum(-1)
        weight = torch.softmax(power * log_g + self.points.log_weight, 1)
        slope = torch.einsum("nsko,nk->nso", gradients, e) + pull - site.shift[:, None]
        shared = hessians.shape[-3] == 1
        bend = torch.einsum("nskab,nk,ns->nab", hessians, e.sum(1, keepdim=True) if shared else e, weight) + site.precision
        change = q.matching(*_tilt(weight, power * slope, power * bend))
        return Natural(change.precision / power, change.shift / power)

    def where(self, some: slice | Tensor) -> Rows:
        """Those of the rows."""
        return Rows(self.features[some], self.exponents[some], self.table, self.points)

    def over_weights(self, site: Natural) -> Natural:
        """The product of the rows' sites, in w."""
        return Natural(_over_weights(self.features, site.precision), (site.shift.T @ self.features).flatten())


@dataclass(frozen=True, eq=False)
class RowSites:
    """A site for each row, exp(ηᵀ z_n − ½ z_nᵀ Λ z_n)."""

    rows: Rows
    own: Natural

    def change(self, q: Moments, power: float) -> Natural:
        precision, shift = torch.empty_like(self.own.precision), torch.empty_like(self.own.shift)
        for some, rows in self.rows.parts():
            site = Natural(self.own.precision[some], self.own.shift[some])
            new = rows.matched(q.outputs(rows.features), site, power)
            # a row for which there is no match yet keeps its site until the others have moved
            sound = torch.isfinite(new.shift).all(1) & torch.isfinite(new.precision).flatten(1).all(1)
            precision[some] = torch.where(sound[:, None, None], new.precision, 0.0)
            shift[some] = torch.where(sound[:, None], new.shift, 0.0)
        return Natural(precision, shift)

    def over_weights(self, own: Natural) -> Natural:
        return self.rows.over_weights(own)

    def parts(self, size: int | None) -> Iterator[RowSites]:
        """`size` sites at a time; what is written into them is written here."""
        for some, rows in self.rows.parts(len(self.rows.features) if size is None else size):
            yield RowSites(rows, Natural(self.own.precision[some], self.own.shift[some]))


@dataclass(frozen=True, eq=False)
class TiedSites:
    """One site in w for all n rows, each row's being the n-th root of it: stochastic EP (Li et al. 2015)."""

    rows: Rows
    own: Natural

    def change(self, q: Moments, power: float) -> Natural:
        cavity = q.without(self.own, power / len(self.rows.features))
        total = Natural(torch.zeros_like(self.own.precision), torch.zeros_like(self.own.shift))
        for _, rows in self.rows.parts():
            none = Natural(*(rows.features.new_zeros(len(rows.features), *[rows.outputs] * times) for times in (2, 1)))
            total = total.plus(rows.over_weights(rows.matched(cavity.outputs(rows.features), none, power)))
        return total.plus(self.own, -1.0)

    def over_weights(self, own: Natural) -> Natural:
        return own


@dataclass(frozen=True, eq=False)
class MarginalSites:
    """A site for each class, exp(μᵀ w − ½ wᵀ M w), for its factor p(k|w)^{c_k}, p(k|w) = Σ_n b_n p(k|W h_n) over a pool.

    The factor is one of |c_k| equal ones, p(k|w)^{±1}, whose sites are tied: as a whole it is far from Gaussian.

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
    table: Table
    points: Points
    own: Natural

    def change(self, q: Moments, power: float) -> Natural:
        factor = torch.linalg.cholesky(q.covariance)
        w = q.mean + self.points.at @ factor.T
        log_m = self.log_marginal(w)
        powers = power / self.exponents.abs().clamp_min(1.0)
        site = torch.einsum("sd,kd->sk", w, self.own.shift) - 0.5 * torch.einsum("sd,kde,se->sk", w, self.own.precision, w)
        weight = torch.softmax(powers * (self.exponents * log_m - site) + self.points.log_weight[:, None], 0)
        slopes, bends = self._derivatives(w, log_m, weight)
        slopes = self.exponents[:, None] * slopes + torch.einsum("kde,se->skd", self.own.precision, w) - self.own.shift
        bends = self.exponents[:, None, None] * bends + self.own.precision
        changes = []
        for k, own_power in enumerate(powers):
            change = q.matching(*_tilt(weight[:, k], own_power * slopes[:, k], own_power * bends[k]))
            changes.append(Natural(change.precision / own_power, change.shift / own_power))
        return Natural(torch.stack([each.precision for each in changes]), torch.stack([each.shift for each in changes]))

    def over_weights(self, own: Natural) -> Natural:
        return Natural(own.precision.sum(0), own.shift.sum(0))

    def log_marginal(self, w: Float[Tensor, "s d"]) -> Float[Tensor, "s k"]:
        """log p(k|w) of each draw."""
        parts = [self.table.log_probs(self._outputs(w[some])) for some in self._blocks(w)]
        return torch.cat([torch.logsumexp(part + self.log_weights[:, None], 1) for part in parts])

    def slopes(self, w: Float[Tensor, "s d"]) -> Float[Tensor, "s k d"]:
        """∇ log p(k|w) of each draw."""
        log_m = self.log_marginal(w)
        return self._derivatives(w, log_m, torch.ones_like(log_m))[0]

    def _derivatives(self, w: Tensor, log_m: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """∇ log p(k|w) of each draw `(s, k, d)`, and the draws' weighted mean of ∇² log p(k|w) `(k, d, d)`.

        ∇² log p(k|w) is ∇² p(k|w) / p(k|w) less the gradient's outer product; the former is a sum over the pool of
        h_n h_nᵀ times what can be averaged over the draws first.
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


@dataclass(frozen=True, eq=False)
class MarginalTangents:
    """The same sites, without a precision: c_k log p(k|w) as it rises at the mean."""

    sites: MarginalSites

    @property
    def own(self) -> Natural:
        return self.sites.own

    def change(self, q: Moments, power: float) -> Natural:
        slopes = self.sites.slopes(q.mean[None])[0]
        return Natural(torch.zeros_like(self.own.precision), self.sites.exponents[:, None] * slopes - self.own.shift)

    def over_weights(self, own: Natural) -> Natural:
        return self.sites.over_weights(own)


def _mean_bends(share: Tensor, gradients: Tensor, hessians: Tensor) -> Float[Tensor, "k n o o"]:
    """Σ_s share_snk (∇² log p + ∇ log p ∇ log pᵀ), from `(s, n, k)`, `(s, n, k, o)` and `(s, n, k or 1, o, o)`."""
    outer = torch.einsum("snk,snka,snkb->knab", share, gradients, gradients)
    return outer + torch.einsum("snk,snkab->knab", share, hessians.expand(*share.shape, -1, -1))


def _over_weights(features: Float[Tensor, "n p"], precision: Float[Tensor, "n o o"]) -> Float[Tensor, "d d"]:
    """Σ_n of the rows' precisions, those of z_n = W h_n, as one of w."""
    outputs, size = precision.shape[1], features.shape[1]
    total = features.new_empty(outputs, size, outputs, size)
    for a in range(outputs):
        for b in range(a + 1):
            part = features.T @ (features * precision[:, a, b, None])
            total[a, :, b], total[b, :, a] = part, part.T
    return total.reshape(outputs * size, -1)


def _tilt(weight: Tensor, slope: Tensor, bend: Tensor) -> tuple[Tensor, Tensor]:
    """a and B from the points' weights `(…, s)`, ∇ log g `(…, s, o)`, and the weighted mean of ∇² log g `(…, o, o)`."""
    a = (weight.unsqueeze(-2) @ slope).squeeze(-2)
    away = slope - a.unsqueeze(-2)
    return a, bend + away.mT @ (weight.unsqueeze(-1) * away)
