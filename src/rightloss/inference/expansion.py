"""The log posterior to second order: a Gaussian around some weights, and whether these are near a mode.

Stage: target, weights, data → `Expansion` → `Posterior` with a `DenseGaussian` or `DiagonalGaussian`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .distributions import DenseGaussian, DiagonalGaussian, Particles
from .fisher import Second, Terms, fisher_information, hessian, likelihood_terms, prior_hessian
from .layout import Layout
from .minibatches import Batch
from .nets import Net
from .posterior import Posterior, posterior_of
from .steps import check_finite
from .target import LIKELIHOOD, LogPosterior

_NEARER = 0.05  # the share of draws that may be nearer to the peak than weights that are near it
_DEVIATIONS = 2.0  # posterior standard deviations by which a Newton step from there may move log p(k|w)
# Nats by which these weights predict better than a constant does. If x told nothing of y, weights that do not know the labels
# would reach log 20 with a probability of at most 1/20: the mean of a likelihood ratio is 1.
_GAINED = 3.0
_TIMES = 4.0  # as many nats as a Newton step would still add
_SINGULAR = 1e-10  # a pivot of a matrix with ones on its diagonal that is as good as 0 in float64


@dataclass(frozen=True, eq=False)
class Problem:
    """A target at weights of which some are inferred.

    Attributes:
        target: with its pool, in the precision of the computation.
        state: all weights and buffers, as they are.
        wide: the same in that precision.
        data: x and y.
        layout: of the inferred weights.
    """

    target: LogPosterior
    state: dict[str, Tensor]
    wide: dict[str, Tensor]
    data: Batch
    layout: Layout

    @property
    def vector(self) -> Float[Tensor, " d"]:
        return self.layout.flatten(self.wide)

    def weights(self, vector: Float[Tensor, " d"]) -> dict[str, Tensor]:
        """All weights by name, the inferred ones from `vector`."""
        return {**self.wide, **self.layout.unflatten(vector)}

    def found(self, distribution: Any, record: Mapping[str, Any], linearised: bool = False) -> Posterior:
        """The posterior; weights that are not inferred stay where they are."""
        kept = Net(self.target.model, self.target.likelihood).own()
        fixed = {name: value for name, value in self.state.items() if name in kept and name not in self.layout.names}
        return posterior_of(self.target, distribution, self.layout, fixed, record=record, linearised=linearised)


# The package `posteriors` has Laplace's approximation, too, but sums over examples one by one: a marginal that they share is
# out of its reach.
@dataclass(frozen=True, eq=False)
class Expansion:
    """The log posterior around the weights of a problem, to second order.

    Attributes:
        problem: where.
        terms: the likelihood.
        curvature: which second derivatives of it were taken.
        slope: its gradient, (d,), of minus its logarithm.
        classes: the gradients of log p(k|w), (k, d).
        prior: second derivatives of minus the log prior, (d,) or (d, d).
        total: H, and the gradient g of minus the log posterior.
        root: F with F Fᵀ = H⁻¹, or the standard deviations of a diagonal H; None where H is not positive definite.
    """

    problem: Problem
    terms: Terms
    curvature: str
    slope: Float[Tensor, " d"]
    classes: Float[Tensor, "k d"]
    prior: Tensor
    total: Second
    root: Tensor | None

    def posterior(self, where: str, linearised: bool | None) -> Posterior:
        """The Gaussian, repaired if need be."""
        problem, narrow = self.problem, self.problem.layout.flatten(self.problem.state)
        check_finite(self.total.matrix, 0, lambda: problem.found(Particles(narrow[None]), {}), "the curvature")
        factor, repaired = (self.root, 0) if self.root is not None else _repaired(self.total.matrix, self.prior)
        log_joint = self.terms.log_likelihood + float(problem.target.log_prior(problem.wide))
        log_volume = float((factor if factor.ndim == 1 else factor.diagonal()).log().sum())
        record = {
            "mode": where,
            "log_evidence": log_joint + 0.5 * len(factor) * math.log(2 * math.pi) + log_volume,
            "decrement": _nats(factor, self.total.gradient),
            "curvature": self.curvature,
            "repaired": repaired,
        }
        gaussian = (DiagonalGaussian if factor.ndim == 1 else DenseGaussian)(narrow, factor.to(narrow.dtype))
        if linearised is None:
            slopes = problem.found(gaussian, record, True) if self.curvature == "fisher" else None
            linearised = slopes is not None and _has_slopes(slopes, problem.data[0][:1])
        return problem.found(gaussian, record, linearised)

    def is_near(self) -> bool:
        """Whether the weights are near a mode, as `laplace` defines it."""
        if self.root is None:
            return False
        freedom = torch.tensor(len(self.root) / 2, dtype=torch.float64)
        nats = _nats(self.root, self.total.gradient)
        nearer = float(torch.special.gammainc(freedom, torch.tensor(nats, dtype=torch.float64)))
        step, classes = (_whitened(self.root, each) for each in (self.total.gradient, self.classes))
        moved = (classes @ step).abs() / torch.linalg.vector_norm(classes, dim=1).clamp_min(torch.finfo(step.dtype).tiny)
        left, gained = min(nats, _nats(self.root, self.slope)), self.terms.log_likelihood - self.terms.constant
        return nearer <= _NEARER and float(moved.max()) <= _DEVIATIONS and gained >= max(_GAINED, _TIMES * left)


def expand_at(problem: Problem, diagonal: bool, curvature: str | None) -> Expansion:
    """The log posterior around the weights of `problem`."""
    target, vector = problem.target, problem.vector
    terms = likelihood_terms(target, problem.weights, vector, problem.data)
    prior = prior_hessian(lambda at: target.log_prior(problem.weights(at)), vector, diagonal)
    layers = {name.rpartition(".")[0] for name in problem.layout.names if not name.startswith(LIKELIHOOD)}
    if curvature == "hessian" or (curvature is None and len(layers) <= 1):
        # where outputs are linear in the weights, what makes a Hessian negative in nets is absent
        found = _expansion(problem, terms, "hessian", hessian(terms, diagonal), prior)
        if curvature is not None or found.root is not None:
            return found
        del found  # before the second one
    return _expansion(problem, terms, "fisher", fisher_information(terms, diagonal), prior)


def _expansion(problem: Problem, terms: Terms, curvature: str, data: Second, prior: Second) -> Expansion:
    total = _sum(data, prior)
    assert data.marginal is not None
    return Expansion(problem, terms, curvature, data.gradient, data.marginal, prior.matrix, total, _inverse_root(total.matrix))


def _whitened(root: Tensor, vectors: Float[Tensor, "*m d"]) -> Float[Tensor, "*m d"]:
    """Fᵀv: of length √(vᵀH⁻¹v)."""
    return vectors * root if root.ndim == 1 else vectors @ root


def _nats(root: Tensor, gradient: Float[Tensor, " d"]) -> float:
    """½ gᵀH⁻¹g, what a Newton step gains."""
    return 0.5 * float(_whitened(root, gradient).square().sum())


def _has_slopes(posterior: Posterior, x: Tensor) -> bool:
    """Whether the linearised model can predict."""
    try:
        posterior.predict(x.to(posterior.distribution.mean.dtype) if x.is_floating_point() else x, samples=1)
    except (RuntimeError, ValueError) as error:  # not worth losing the fit
        warnings.warn(f"Predictions will be with the weights as they are drawn. {error}", stacklevel=5)
        return False
    return True


def _sum(data: Second, prior: Second) -> Second:
    total = data.matrix + (torch.diag(prior.matrix) if prior.matrix.ndim < data.matrix.ndim else prior.matrix)
    return Second(total if total.ndim == 1 else (total + total.T) / 2, data.gradient + prior.gradient)


def _repaired(matrix: Tensor, prior: Tensor) -> tuple[Tensor, int]:
    """F as in `_inverse_root`, of a matrix that is no peak's; and how many curvatures were raised."""
    floor = (prior if prior.ndim == 1 else prior.diagonal()).abs()
    if not bool((floor > 0).all()):
        raise ValueError(
            "Expected the log posterior to have a peak, but in some direction neither data nor prior bend it downwards: "
            "give a prior with a scale for every weight, such as gaussian_prior(1.0)."
        )
    inverse, count = _raised(matrix, floor)
    if count:
        warnings.warn(
            f"The log posterior is no peak at these weights: {count} of {len(matrix)} curvatures are below the prior's, and "
            "were set to it. Go nearer to the mode (more steps, batch_size=None), or use curvature='fisher'.",
            stacklevel=5,
        )
    return inverse, count


def _inverse_root(matrix: Tensor) -> Tensor | None:
    """F with F Fᵀ = H⁻¹, triangular, or the standard deviations of a diagonal H; None where H is not positive, to rounding."""
    scale = (matrix if matrix.ndim == 1 else matrix.diagonal()).clamp_min(0).rsqrt()
    if not bool(torch.isfinite(scale).all()):
        return None
    if matrix.ndim == 1:
        return scale
    root, failed = torch.linalg.cholesky_ex(scale[:, None] * matrix * scale)
    if int(failed) or float(root.diagonal().min()) ** 2 < max(_SINGULAR, 10 * torch.finfo(root.dtype).eps):
        return None
    return scale[:, None] * torch.linalg.solve_triangular(root.T, torch.eye(len(root)).to(root), upper=True)


def _raised(matrix: Tensor, floor: Float[Tensor, " d"]) -> tuple[Tensor, int]:
    """F as in `_inverse_root`, of the matrix with curvatures of at least `floor` in every direction; and how many had less.

    Those that are lost in the rounding of the largest, as where features are not scaled, are taken for the floor's.
    """
    if matrix.ndim == 1:
        return torch.maximum(matrix, floor).rsqrt(), int((matrix < floor).sum())
    root = floor.sqrt()
    values, axes = torch.linalg.eigh(matrix / root[:, None] / root)
    rounding = len(matrix) * torch.finfo(matrix.dtype).eps * float(values.abs().max())
    raised = torch.where(values > rounding, values, 1.0).clamp_min(1)
    triangle = torch.linalg.qr((axes / root[:, None] * raised.rsqrt()).T).R
    return triangle.T * triangle.diagonal().sign(), int((values < 1 - rounding).sum())
