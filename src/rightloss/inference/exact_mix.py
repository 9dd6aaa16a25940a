"""The likelihood of an exactly known prevalence: the information gain at the mix of classes that the rows are most probable in.

Stage: tables of log p(k|x_n,w) (*sets, n, k), labels → the gain of each row (*sets, n).

A row of class k comes from p(x|k) = g_k(x) p(x) with g_k(x) = p(k|x,w)/π_k. The population's p(x) is unknown, but if π is known
exactly, it satisfies E[g_k(x)] = 1 for every class. With p(x) profiled out under these constraints (multipliers N r_k), the
rows get the masses 1/(N Σ_j r_j g_j(x_n)), and the log-likelihood is, up to a constant,

    ℓ(w) = Σ_n [log g_{y_n}(x_n) − log Σ_j r_j g_j(x_n)] = Σ_n [log p_r(y_n|x_n,w) − log r_{y_n}],    r = r(w).

r(w) solves avg_n p_r(k|x_n,w) = r_k. It is the mix in which the x_n are most probable: the maximum of Σ_n log Σ_j r_j g_j(x_n),
a concave function, over the simplex. (At its boundary, r_k = 0, people that no row resembles make up for what E[g_k(x)] lacks.)
So ℓ(w) is a minimum over r, its gradient is that at fixed r, and under a flat prior its mode is that of κ = 1, where r = ρ.
The curvature is larger by that of r(w). Only the intercepts' variance changes: with two classes it is smaller by 1/n₀ + 1/n₁.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..losses.batch import Labels
from ..losses.gain import PriorTerms, at_reference
from ..tensors import cannot_be_read

_STEPS = 60  # a dozen are usual
_ACCURACY = 1e-11


def exact_gain(table: Float[Tensor, "*sets n k"], labels: Labels, terms: PriorTerms) -> Float[Tensor, "*sets n"]:
    """Return the gain of each row at the mix r(w), 0 where ignored, with exact first and second derivatives."""
    assert terms.population is not None
    log_pi = terms.population.log()
    log_density = table - log_pi
    found = log_density.detach().double()
    weights = labels.row_weights(found.dtype)
    r, z = exact_mix(found, weights)
    # One more Newton step, at the solution: its value is r, and its derivative that of r(w), by the implicit function theorem.
    slope, curvature = _slope_and_curvature(log_density.double(), r, weights)
    curvature = curvature.detach() + torch.diag_embed(z / r)
    r = r - torch.linalg.solve(curvature, slope - slope.detach())
    log_r = r.log().to(table)
    log_probs = at_reference(table, (log_r - log_pi).unsqueeze(-2))
    return labels.mask(labels.gather(log_probs) - labels.per_row(log_r))


def exact_mix(
    log_density: Float[Tensor, "*sets n k"], weights: Float[Tensor, "*sets n"] | None = None
) -> tuple[Float[Tensor, "*sets k"], Float[Tensor, "*sets k"]]:
    """Return r, positive, and the multipliers z ≥ 0 of r ≥ 0, by a primal-dual interior-point method.

    It minimises −avg_n log Σ_j r_j g_j(x_n) + Σ_j r_j, which has Σ_j r_j = 1 at its minimum, from log g `(*sets, n, k)`.
    """
    k = log_density.shape[-1]
    r = torch.full_like(log_density[..., 0, :], 1 / k)
    z = torch.ones_like(r)
    for _ in range(_STEPS):
        slope, curvature = _slope_and_curvature(log_density, r, weights)
        gap = (r * z).mean(-1, keepdim=True)
        error = torch.maximum(gap, (slope - z).abs().amax(-1, keepdim=True))
        if not cannot_be_read(error) and not bool((error > _ACCURACY).any()):  # or not a number
            break
        goal = 0.1 * gap
        dr = torch.linalg.solve(curvature + torch.diag_embed(z / r), goal / r - slope)
        dz = (goal - z * dr) / r - z
        r, z = _moved(r, dr), _moved(z, dz)
    return r, z


def _slope_and_curvature(
    log_density: Float[Tensor, "*sets n k"], r: Float[Tensor, "*sets k"], weights: Float[Tensor, "*sets n"] | None
) -> tuple[Float[Tensor, "*sets k"], Float[Tensor, "*sets k k"]]:
    """Return the derivatives in r: 1 − avg_n u_nk and avg_n u_nj u_nk, u_nk = g_k(x_n)/Σ_j r_j g_j(x_n)."""
    u = torch.exp(log_density - torch.logsumexp(log_density + r.log().unsqueeze(-2), -1, keepdim=True))
    counted = torch.ones_like(u[..., 0]) if weights is None else weights
    shares = (counted / counted.sum(-1, keepdim=True)).unsqueeze(-1) * u
    return 1 - shares.sum(-2), u.mT @ shares


def _moved(positive: Tensor, step: Tensor) -> Tensor:
    """Return the sum, or less of the step, so that all entries stay positive."""
    most = torch.where(step < 0, -positive / step, torch.inf).amin(-1, keepdim=True)
    return positive + (0.99 * most).clamp(max=1) * step
