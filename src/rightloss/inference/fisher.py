"""Fisher information and Hessian: second derivatives of the negative log-likelihood, summed in blocks.

Stage: target, weights, data → `LikelihoodTerms` → matrix (d, d), or its diagonal (d,), and the gradient.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.func import jacrev, vmap

from ..arrays import rows_of
from ..losses.batch import check_finite_rows
from ..losses.gain import PriorTerms, at_reference
from ..tensors import full_precision
from .exact_mix import exact_mix
from .priors import Params
from .target import LogPosterior

_NUMBERS, _INPUTS = 1 << 24, 1 << 20  # numbers in memory at a time: of derivatives, and of x times backward passes
_BASIS = 64  # rows of a Hessian computed together


@dataclass(frozen=True, eq=False)
class DataBlock:
    """Some of the data, a row for each label.

    Attributes:
        x: the model's input.
        own: a_nk, the weight of each entry of the table as an example's label.
        share: q_nk, its fraction of the marginal: `Σ_n q_nk = 1` over all parts; losses without a marginal do not use it.
        expected: f_nk, the weight of its gradient's square in the Fisher information.
    """

    x: Tensor
    own: Float[Tensor, "rows k"]
    share: Float[Tensor, "rows k"]
    expected: Float[Tensor, "rows k"]


@dataclass(frozen=True, eq=False)
class LikelihoodTerms:
    """The negative log-likelihood of all data, as a function of the tables t_nk = log p_r(k|x_n,w):

        −Σ_nk a_nk t_nk + Σ_k c_k log Σ_n β_n exp(t_nk) + const,    c_k = N ρ_k − N κ r_k, or N_k if κ = 0.

    With the fractions `q_nk ∝ β_n exp(t_nk)` of each class's marginal and g_k = Σ_n q_nk ∇t_nk, the gradient is
    `Σ_nk (c_k q_nk − a_nk) ∇t_nk`. Second derivatives are also sums over rows, except for the last term:

        Hessian              Σ_nk ∇²[c_k q_nk exp(t_nk − stop(t_nk)) − a_nk t_nk] − Σ_k c_k g_k g_kᵀ
        Fisher information   Σ_nk N_k q_nk ∇t_nk ∇t_nkᵀ − Σ_k c_k g_k g_kᵀ

    The latter is the expected Hessian over the x that the model itself expects for each label, q_·k, because labels were
    sampled first and x was observed. It is also the generalised Gauss–Newton matrix with respect to t, and never negative.
    Losses without a marginal have c = 0, and a Fisher information of `Σ_nk a_n p_nk ∇t_nk ∇t_nkᵀ` with a_n = Σ_k a_nk.
    With unlabelled rows, k runs over the streams, including "unlabelled", which is the label of these rows, and
    ρ and r are their mix, and N is N (1 + λ).

    If π is known exactly (see `exact_mix`), t is at the mix r(w) of these weights and c = 0; the derivatives of r(w) add
    Σ_jk S_j g_j [N A]⁻¹_jk S_k g_kᵀ with A the curvature of r(w) and S_k = Σ_n u_nk. So −C, instead of −diag(c), is `coupling`.

    Attributes:
        table: weights (d,), x → t.
        vector: w.
        parts: the data, labelled and unlabelled; and the pool, if p(y|w) is taken over other data than these.
        counts: c_k.
        log_likelihood: its value at w.
        coupling: C (k, k) in place of diag(c) in second derivatives; None for diag(c).
    """

    table: Callable[[Tensor, Tensor], Tensor]
    vector: Float[Tensor, " d"]
    parts: list[DataBlock]
    counts: Float[Tensor, " k"]
    log_likelihood: float
    coupling: Float[Tensor, "k k"] | None = None

    @property
    def constant(self) -> float:
        """The largest log-likelihood Σ_k (Σ_n a_nk − c_k) log p_k of constant predictions p; 0, that of π, if π is exact."""
        if self.coupling is not None:
            return 0.0
        counts = torch.stack([part.own.sum(0) for part in self.parts]).sum(0) - self.counts
        shares = counts / counts.sum().clamp_min(torch.finfo(counts.dtype).tiny)
        return float(torch.xlogy(counts, shares.clamp_min(0)).sum())


@dataclass(frozen=True, eq=False)
class SecondOrder:
    """Second derivatives, `(d, d)` or the diagonal `(d,)`, and the gradient `(d,)`, of a negative log-density.

    Those of a likelihood include g_k `(k, d)`, the gradient of log p(k|w).
    """

    matrix: Tensor
    gradient: Float[Tensor, " d"]
    marginal: Float[Tensor, "k d"] | None = None


class DataLikelihood:
    """The likelihood of data at any weights, with p(y|w) taken over `target.pool`, or over the data themselves, exactly.

    Args:
        target: over classes, with `num_data`.
        params: some weights, to find the shape of the outputs.
        data: x and y.
    """

    def __init__(self, target: LogPosterior, params: Params, data: tuple[Tensor, Tensor]) -> None:
        assert target.num_data is not None
        self.target = target
        self.rows = _Rows(target, params, *data, target.unlabelled)
        self.pool = self.rows if target.pool is None else _Rows(target, params, *target.pool)
        self.total = target.num_data * (1 + target.unlabelled_mass)
        importance, votes = self.rows.mix[1], self.rows.labels.counted_votes(self.rows.setting.reference)
        self.own = votes * importance * (self.total / votes.sum())

    def at(self, weights: Callable[[Tensor], Params], vector: Float[Tensor, " d"]) -> LikelihoodTerms:
        """Return the likelihood; `weights` turns the inferred weights (d,) into all weights by name."""
        target, rows, own, params = self.target, self.rows, self.own, weights(vector)
        log_probs = rows.log_probs(params)
        if target.exact:
            return self._exact(weights, vector, log_probs)

        def table(at: Tensor, some: Tensor) -> Tensor:
            return at_reference(target.columns(target.table(weights(at), some)), rows.mix[0])

        value, nothing = torch.where(own > 0, own * log_probs, 0.0).sum(), torch.zeros_like(own)
        if not target.gains:
            expected = own.sum(1, keepdim=True) * log_probs.exp()
            share = expected / expected.sum(0).clamp_min(torch.finfo(expected.dtype).tiny)
            return LikelihoodTerms(table, vector, rows.blocks(own, share, expected), nothing[0], float(value))
        pool, of_pool = self.pool, log_probs if self.pool is rows else self.pool.log_probs(params)
        log_terms = of_pool + pool.log_weights[:, None]
        log_sums, labelled, of_marginal = torch.logsumexp(log_terms, 0), own.sum(0), rows.setting.of_marginal
        counts = labelled if of_marginal is None else self.total * of_marginal
        labelled = torch.maximum(labelled, counts)  # so that the Fisher information is never negative
        value = value - counts @ (log_sums - pool.labels.log_count(log_sums))
        share = (log_terms - log_sums).exp()
        if pool is rows:
            return LikelihoodTerms(table, vector, rows.blocks(own, share, labelled * share), counts, float(value))
        parts = rows.blocks(own, nothing, nothing) + pool.blocks(torch.zeros_like(share), share, labelled * share)
        return LikelihoodTerms(table, vector, parts, counts, float(value))

    def _exact(
        self, weights: Callable[[Tensor], Params], vector: Float[Tensor, " d"], log_probs: Float[Tensor, "n k"]
    ) -> LikelihoodTerms:
        """Return the likelihood of an exactly known π."""
        rows, votes = self.rows, self.own.double()
        assert rows.setting.population is not None
        log_density = log_probs.double() - rows.setting.sampling.double().log()  # up to a constant of the row
        counted = votes.sum(1)
        r, z = exact_mix(log_density, counted)
        offset = (r.log() - rows.setting.population.double().log()).to(log_probs)

        def table(at: Tensor, some: Tensor) -> Tensor:
            return at_reference(self.target.table(weights(at), some), offset)

        at_mix = torch.log_softmax(log_density + r.log(), 1)
        u = (at_mix - r.log()).exp() * counted[:, None]
        sums = u.sum(0)
        curvature = (at_mix - r.log()).exp().T @ u + torch.diag(self.total * z / r)
        coupling = -sums[:, None] * torch.linalg.solve(curvature, torch.diag(sums))
        value = torch.where(votes > 0, votes * (at_mix - r.log()), 0.0).sum()
        parts = (each.to(log_probs) for each in (votes, u / sums, counted[:, None] * at_mix.exp()))
        nothing = torch.zeros_like(r).to(log_probs)
        return LikelihoodTerms(table, vector, rows.blocks(*parts), nothing, float(value), coupling.to(nothing))


def fisher_information(terms: LikelihoodTerms, diagonal: bool, block: int | None = None) -> SecondOrder:
    """Return the Fisher information of `LikelihoodTerms`, `block` examples at a time."""
    d, k = len(terms.vector), len(terms.counts)
    matrix, gradient = terms.vector.new_zeros(d if diagonal else (d, d)), terms.vector.new_zeros(d)
    marginal = terms.vector.new_zeros(k, d)
    for x, own, share, expected in _blocks(terms, block):
        jacobian = _jacobian(terms, x)
        root = jacobian * expected.sqrt()[..., None]
        matrix += root.square().sum((0, 1)) if diagonal else root.flatten(0, 1).T @ root.flatten(0, 1)
        marginal += torch.einsum("nk,nkd->kd", share, jacobian)
        gradient += torch.einsum("nk,nkd->d", terms.counts * share - own, jacobian)
    return SecondOrder(_less_marginal(matrix, terms, marginal), gradient, marginal)


def hessian(terms: LikelihoodTerms, diagonal: bool, block: int | None = None) -> SecondOrder:
    """Return the Hessian of `LikelihoodTerms`, `block` examples at a time."""
    d, k = len(terms.vector), len(terms.counts)
    matrix, gradient = terms.vector.new_zeros(d if diagonal else (d, d)), terms.vector.new_zeros(d)
    marginal = terms.vector.new_zeros(k, d)
    for x, own, share, _ in _blocks(terms, block, _BASIS):
        vector = terms.vector.detach().requires_grad_()
        table = terms.table(vector, x)
        shares = torch.diag_embed(share).permute(1, 0, 2)
        marginal += _products(table, vector, shares)
        moved = torch.exp(table - table.detach())
        first = _gradient((terms.counts * share * moved - own * table).sum(), vector, create_graph=True)
        gradient += first.detach()
        _add_rows(matrix, first, vector)
    return SecondOrder(_less_marginal(matrix, terms, marginal), gradient, marginal)


def prior_hessian(log_prior: Callable[[Tensor], Tensor], vector: Float[Tensor, " d"], diagonal: bool) -> SecondOrder:
    """Return the Hessian of −log p(w); only its diagonal, even if not `diagonal`, if all other entries are 0."""
    vector = vector.detach().requires_grad_()
    first = _gradient(-log_prior(vector), vector, create_graph=True)
    probe = torch.randn(len(vector), generator=torch.Generator().manual_seed(0), dtype=vector.dtype).to(vector.device)
    sums, probed = _products(first, vector, torch.stack([torch.ones_like(probe), probe]))
    if torch.allclose(probed, sums * probe, rtol=1e-4, atol=1e-6 * float(sums.abs().max())):
        return SecondOrder(sums, first.detach())  # the weights are independent: H v = diag(H) v for any v
    matrix = vector.new_zeros(len(vector) if diagonal else (len(vector), len(vector)))
    _add_rows(matrix, first, vector)
    return SecondOrder(matrix, first.detach())


def _add_rows(matrix: Tensor, first: Tensor, vector: Tensor) -> None:
    """Add the derivatives of `first` to a matrix, or to its diagonal, in place, with only some rows in memory."""
    for index in torch.arange(len(vector), device=vector.device).split(_BASIS):
        rows = _products(first, vector, F.one_hot(index, len(vector)).to(vector))
        if matrix.ndim == 2:
            matrix[index] += rows
        else:
            matrix[index] += rows.gather(1, index[:, None]).squeeze(1)


def _products(value: Tensor, vector: Tensor, directions: Float[Tensor, "m ..."]) -> Float[Tensor, "m d"]:
    """Return Σ_i u_i ∇value_i for each direction u, together if the model's operations support it."""
    if not value.requires_grad:
        return vector.new_zeros(len(directions), len(vector))
    try:
        with _quiet():
            return _gradient(value, vector, directions, is_grads_batched=True)
    except RuntimeError:
        return torch.stack([_gradient(value, vector, each) for each in directions])


def _gradient(value: Tensor, vector: Tensor, directions: Tensor | None = None, **options: Any) -> Tensor:
    if not value.requires_grad:
        return torch.zeros_like(vector)
    result: Tensor = torch.autograd.grad(
        value, vector, directions, retain_graph=True, allow_unused=True, materialize_grads=True, **options
    )[0]
    return result


def _less_marginal(matrix: Tensor, terms: LikelihoodTerms, marginal: Float[Tensor, "k d"]) -> Tensor:
    """Subtract Σ_jk C_jk g_j g_kᵀ."""
    coupled = terms.counts[:, None] * marginal if terms.coupling is None else terms.coupling @ marginal
    return matrix - ((marginal * coupled).sum(0) if matrix.ndim == 1 else marginal.T @ coupled)


def _blocks(terms: LikelihoodTerms, block: int | None, backward: int | None = None) -> Iterator[tuple[Tensor, ...]]:
    """Yield x, a, q and f of some examples at a time."""
    for part in terms.parts:
        cells, k = len(part.own) // len(part.x), len(terms.counts)
        size = min(
            _NUMBERS // (cells * k * (len(terms.vector) if backward is None else backward)),
            _INPUTS // (part.x[0].numel() * (backward or k)),
        )
        block_size = max(1, size) if block is None else block
        rows = [each.split(block_size * cells) for each in (part.own, part.share, part.expected)]
        yield from zip(part.x.split(block_size), *rows, strict=True)


def _jacobian(terms: LikelihoodTerms, x: Tensor) -> Float[Tensor, "rows k d"]:
    """Return ∇t of each row, which depends only on that example's x."""

    def one(vector: Tensor, each: Tensor) -> Tensor:
        return terms.table(vector, each.unsqueeze(0))

    try:
        with _quiet():
            return vmap(jacrev(one), in_dims=(None, 0))(terms.vector, x).flatten(0, 1)
    except RuntimeError:  # the model has operations without vmap support
        return torch.cat([_jacobian_of_one(terms, each.unsqueeze(0)) for each in x])


def _jacobian_of_one(terms: LikelihoodTerms, x: Tensor) -> Float[Tensor, "rows k d"]:
    vector = terms.vector.detach().requires_grad_()
    table = terms.table(vector, x)
    return torch.stack([_gradient(entry, vector) for entry in table.flatten()]).unflatten(0, table.shape)


def _quiet() -> warnings.catch_warnings[None]:
    return warnings.catch_warnings(action="ignore")


class _Rows:
    """Rows of the likelihood, at any weights: x, followed by the unlabelled `others` if there are any.

    Attributes:
        labels: of all rows, over the classes; with unlabelled ones, over the streams.
        setting: r, ρ and κ.
        mix: the offset that the loss adds to the table, and its weight of each label.
        log_weights: log β_n plus the log of the row's multiple; −∞ where ignored. A pool may have no labels.
    """

    def __init__(self, target: LogPosterior, params: Params, x: Tensor, y: Tensor | None, others: Tensor | None = None) -> None:
        self.target, self.x = target, [x] if others is None else [x, others]
        one = [self._outputs(params, each[:1]) for each in self.x]
        self.sizes = [len(each) * outputs[0, 0].numel() for each, outputs in zip(self.x, one, strict=True)]
        like = one[0].expand(len(x), *one[0].shape[1:])
        self.labels = target.labels_of(like, y, sum(self.sizes[1:]))
        self.setting = target.terms(like)
        self.mix = loss_mix(target, self.setting)
        beta, counted = self.setting.reference / self.setting.sampling, self.labels.row_weights(self.setting.reference.dtype)
        weights = beta.new_ones(self.labels.rows) if y is None else self.labels.per_row(beta)
        self.log_weights = weights.log() if counted is None else weights.log() + counted.log()

    def blocks(self, own: Tensor, share: Tensor, expected: Tensor) -> list[DataBlock]:
        """Return the rows of each x as a block."""
        parts = (each.split(self.sizes) for each in (own, share, expected))
        return [DataBlock(x, *rows) for x, *rows in zip(self.x, *parts, strict=True)]

    def log_probs(self, params: Params) -> Float[Tensor, "rows k"]:
        """Return t_nk, at the mix of the loss."""
        rows = [check_finite_rows(rows_of(full_precision(self._outputs(params, each))), "raise") for each in self.x]
        with torch.no_grad():
            table = self.target.at(params, lambda: self.target.likelihood.table(torch.cat(rows)))
            return at_reference(self.target.columns(table), self.mix[0])

    @torch.no_grad()
    def _outputs(self, params: Params, x: Tensor) -> Tensor:
        size = max(1, _INPUTS // x[0].numel())
        outputs = torch.cat([self.target.outputs(params, some) for some in x.split(size)])
        return outputs.unsqueeze(1) if outputs.ndim == 1 else outputs


def loss_mix(target: LogPosterior, setting: PriorTerms) -> tuple[Tensor | None, Tensor]:
    """Return the offset that the loss adds to the table, and its weight of each label."""
    offset, weights = (setting.log_offset, None) if target.gains else target.criterion.cross_entropy_terms(setting)
    return offset, torch.ones_like(setting.reference) if weights is None else weights
