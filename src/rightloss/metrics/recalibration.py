"""How far predicted log-odds are stretched: Cox's recalibration at the population's mix.

Stage: `Sample` → slope b and intercepts a of p(k|x) ∝ exp(a_k + b log p_k), fitted by likelihood at π. A model that is right
has b = 1; one too sure of itself has b < 1. For two classes this is logistic regression of the label on the log-odds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from .sample import Sample

_STEPS, _HALVINGS = 200, 60
_ENOUGH = 0.1  # of the gain that a Newton step promises: less, and it is halved
_CONVERGED = 1e-12  # of the log-likelihood, the gain that is left to one last Newton step
_ALIKE = 1e-6  # spread of log-odds, relative to 1 and to their mean, up to which they are taken to be equal


@dataclass(frozen=True)
class Recalibration:
    """The model, in log-odds that are centred and of unit spread: p(k|x) ∝ exp(θ_k + θ_0 z_k), z_k = (log p_k/p_0 − m_k)/s.

    Attributes:
        theta: (θ_0, θ_1 … θ_{K−1}): the slope in these units, then the intercepts of all classes but the first.
        centre: m `(k,)`, mean log-odds; m_0 = 0.
        scale: s, their mean distance from m.
    """

    theta: Float64[Tensor, " k"]
    centre: Float64[Tensor, " k"]
    scale: float

    def terms(
        self, table: Float64[Tensor, "m k"], labels: Tensor
    ) -> tuple[Float64[Tensor, " m"], Float64[Tensor, "m k"], Float64[Tensor, "m kk"]]:
        """Each entry's log-likelihood `(m,)`, its gradient in θ `(m, k)` and negative Hessian `(m, k·k)`."""
        z = (table - table[:, :1] - self.centre) / self.scale
        return _two_classes(z[:, 1], labels, self.theta) if table.shape[1] == 2 else _many_classes(z, labels, self.theta)


def fit_recalibration(sample: Sample, block: int) -> tuple[Recalibration | None, str]:
    """The fit by Newton's method, damped; or None and the reason why there is none.

    The log-likelihood is concave, and has a maximum unless the classes are separated. The first guess, a slope of 0 and the
    population's mix, is where its curvature is largest, so that no step is longer than the model is linear.
    """
    if bool(sample.log_probs.isneginf().any()):
        return None, "a probability of exactly 0 has no log-odds"
    centre, scale = _standard(sample, block)
    if not scale > _ALIKE * (1 + float(centre.abs().max())):
        return None, "all predictions are alike, or the classes are separated"
    if _separated(sample, block):
        return None, "the classes are separated, so the slope has no bound"
    mix = sample.prevalence.population.log()
    model = Recalibration(torch.cat([torch.zeros(1, dtype=torch.float64), mix[1:] - mix[0]]), centre, scale)
    value, score, curvature = _derivatives(sample, model, block)
    for _ in range(_STEPS):
        step = _newton_step(curvature, score)
        gain = float(step @ score)
        if gain <= -_CONVERGED * value:
            return _moved(model, step), ""
        for _ in range(_HALVINGS):
            tried = _moved(model, step)
            found = _derivatives(sample, tried, block)
            if found[0] >= value + _ENOUGH * gain:
                break
            step, gain = step / 2, gain / 2
        else:
            break
        model, (value, score, curvature) = tried, found
    return None, "its fit did not converge: the classes are all but separated"


def _newton_step(curvature: Tensor, score: Tensor) -> Float64[Tensor, " k"]:
    """H⁻¹ g, in units in which the diagonal of H is 1; where H is singular but for rounding, a little is added to it."""
    unit = curvature.diagonal().clamp_min(torch.finfo(torch.float64).tiny).rsqrt()
    scaled = curvature * unit[:, None] * unit + 1e-14 * torch.eye(len(score), dtype=torch.float64)
    step: Tensor = unit * torch.linalg.solve(scaled, unit * score)
    return step


def _moved(model: Recalibration, step: Tensor) -> Recalibration:
    return Recalibration(model.theta + step, model.centre, model.scale)


def _two_classes(z: Tensor, labels: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    sign = 2.0 * labels - 1
    logit = sign * (theta[0] * z + theta[1])
    miss = torch.sigmoid(-logit)  # not 1 − p, which is 0 where p rounds to 1
    score = torch.stack([z, torch.ones_like(z)], 1) * (sign * miss)[:, None]
    v = miss * torch.sigmoid(logit)
    cross = v * z
    return torch.nn.functional.logsigmoid(logit), score, torch.stack([cross * z, cross, cross, v], 1)


def _many_classes(z: Tensor, labels: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    k = z.shape[1]
    log_probs = torch.log_softmax(theta[0] * z + torch.cat([torch.zeros_like(theta[:1]), theta[1:]]), 1)
    probs = log_probs.exp()
    # relative to the likeliest class nothing cancels: neither 1 − p, which is the sum of the others, nor z less its mean
    best = log_probs.argmax(1, keepdim=True)
    rest = probs.scatter(1, best, 0.0).sum(1, keepdim=True)
    miss = (1 - probs).scatter(1, best, rest)
    z = z - z.gather(1, best)
    mean = (probs * z).sum(1, keepdim=True)
    own = labels[:, None]
    log_likelihood = torch.where(own == best, torch.log1p(-rest), log_probs.gather(1, own))
    score = (-probs).scatter(1, own, miss.gather(1, own))
    score[:, :1] = z.gather(1, own) - mean
    curvature = -probs[:, :, None] * probs[:, None]
    curvature.diagonal(dim1=1, dim2=2).copy_(probs * miss)
    cross = probs * (z - mean)
    curvature[:, 0], curvature[:, :, 0] = cross, cross
    curvature[:, 0, 0] = (cross * z).sum(1)
    return log_likelihood[:, 0], score, curvature.view(-1, k * k)


def _parts(sample: Sample, block: int) -> Iterator[tuple[slice, Tensor]]:
    """The entries, some at a time, with their log-probabilities."""
    size = max(4 * block // sample.num_classes**2, 1024)
    for start in range(0, len(sample.labels), size):
        part = slice(start, start + size)
        yield part, sample.log_probs[part if sample.rows is None else sample.rows[part]].double()


def _derivatives(sample: Sample, model: Recalibration, block: int) -> tuple[float, Tensor, Tensor]:
    k = sample.num_classes
    value, score = 0.0, torch.zeros(k, dtype=torch.float64)
    curvature = torch.zeros(k * k, dtype=torch.float64)
    weights = sample.population_weights
    for part, table in _parts(sample, block):
        terms = model.terms(table, sample.labels[part])
        value += float(weights[part] @ terms[0])
        score += weights[part] @ terms[1]
        curvature += weights[part] @ terms[2]
    return value, score, curvature.view(k, k)


def _standard(sample: Sample, block: int) -> tuple[Float64[Tensor, " k"], float]:
    """Mean of the log-odds against class 0, and their mean distance from it, as if all classes were equally frequent."""
    weights = (1 / (sample.num_classes * sample.totals))[sample.labels]
    weights = weights if sample.votes is None else weights * sample.votes
    centre, scale = torch.zeros(sample.num_classes, dtype=torch.float64), 0.0
    for part, table in _parts(sample, block):
        centre += weights[part] @ (table - table[:, :1])
    for part, table in _parts(sample, block):
        scale += float(weights[part] @ (table - table[:, :1] - centre)[:, 1:].abs().mean(1))
    return centre, scale


def _separated(sample: Sample, block: int) -> bool:
    """Whether some slope b ≠ 0 and intercepts put no class above an entry's own, so that the likelihood grows along them.

    With b = ±1 that asks for a_j − a_c ≤ b (log p_c − log p_j) for all j and every entry, of class c. Such intercepts exist
    unless the least right-hand sides contradict each other around a cycle of classes: from a class to itself, their sum is < 0.
    """
    k = sample.num_classes
    least = torch.full((2, k, k), torch.inf, dtype=torch.float64)  # of b = 1, and of b = −1
    for part, table in _parts(sample, block):
        labels = sample.labels[part]
        ahead = table.gather(1, labels[:, None]) - table
        for b, sign in enumerate((1.0, -1.0)):
            least[b].scatter_reduce_(0, labels[:, None].expand(-1, k), sign * ahead, "amin")
    for via in range(k):  # Floyd and Warshall
        least = torch.minimum(least, least[:, :, via, None] + least[:, None, via])
    return bool((least.diagonal(dim1=1, dim2=2) >= 0).all(1).any())
