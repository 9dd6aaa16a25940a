"""Calibration at the population's mix: the slope of predicted log-odds, and observed frequencies against predicted ones.

Stage: `Sample` → slope b and intercepts a of p(k|x) ∝ exp(a_k + b log p_k), fitted by likelihood at π (Cox's recalibration). A
correct model has b = 1, an overconfident one b < 1. For two classes this is logistic regression of the label on the log-odds.
The other stage: log_probs, target, π → `ReliabilityCurve`, a point per bin of predictions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ..rng import checked_level, own_stream
from .one_vs_rest import Array, Scores, scores, with_limits
from .sample import IGNORED, Mix, Numbers, Predictions, Sample

BLOCK = 1 << 18  # entries at a time, so that a large sample is not copied
MOST_CLASSES = 20  # the recalibration has a parameter per class, and a matrix of these per example
_STEPS, _HALVINGS = 200, 60
_ENOUGH = 0.1  # smallest fraction of the expected gain of a Newton step; with less the step is halved
_CONVERGED = 1e-12  # tolerance of the log-likelihood before one last Newton step
_ALIKE = 1e-6  # spread of log-odds, relative to 1 and to their mean, up to which they count as equal


@dataclass(frozen=True)
class ReliabilityCurve:
    """Observed against predicted frequency, in increasing bins without the empty ones. See `reliability_curve`.

    Attributes:
        predicted: mean prediction in the bin, over the population `(b,)`.
        observed, low, high: frequency of the positive class in the bin, at π, with limits `(b,)`.
        weight: the fraction of the population in the bin `(b,)`; they sum to 1.
        prevalence: π of the class.
        level: the level of the limits.
        positive: the class.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import reliability_curve
        >>> p = np.array([0.1, 0.4, 0.3, 0.8])  # of class 1
        >>> log_probs, y = np.log(np.stack([1 - p, p], 1)), [0, 0, 1, 1]
        >>> reliability_curve(log_probs, y, prevalence=0.1, bins=2).weight.round(2).tolist()
        [0.5, 0.5]
    """

    predicted: Array
    observed: Array
    low: Array
    high: Array
    weight: Array
    prevalence: float
    level: float
    positive: int


def reliability_curve(
    log_probs: Predictions,
    target: Numbers,
    prevalence: Mix,
    bins: int = 15,
    positive: int | None = None,
    width: Literal["equal-mass", "equal-width"] = "equal-mass",
    level: float = 0.95,
    generator: torch.Generator | None = None,
    groups: Numbers | None = None,
    ignore_index: int = IGNORED,
) -> ReliabilityCurve:
    """Compare predicted probabilities of one class with how often it occurs, in bins of predictions, at the prevalence π.

    In bin b the class has the frequency `π a₁ / (π a₁ + (1 − π) a₀)`, with a₁, a₀ the fractions of it and of the rest in b.
    The limits are computed as those of `decision_curve`, for fixed edges of the bins.

    Args:
        log_probs: predictions for the population `(n, k)`, or dense maps `(n, k, h, w, …)`, as log-probabilities.
        target: int labels `(n,)` or `(n, h, w, …)`, or soft votes of the predictions' shape, in any mix of classes.
        prevalence: π: a `Prevalence`, an estimate of one, K frequencies, or for two classes that of class 1.
        bins: the number of bins.
        positive: the class; 1 where there are two.
        width: "equal-mass", the same fraction of the population in each bin as far as ties allow, or "equal-width"; a
            probability at an edge is in the upper bin.
        level: coverage of the limits.
        generator: random numbers for the limits; with a fixed seed by default.
        groups: ids of patients (or sites) `(n,)`, if rows are not independent; by default each image of a dense map is a group.
        ignore_index: the int label of examples to ignore.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import reliability_curve
        >>> p = np.array([0.1, 0.1, 0.1, 0.1, 0.8, 0.8])
        >>> curve = reliability_curve(np.log(np.stack([1 - p, p], 1)), [0, 0, 0, 1, 0, 1], prevalence=0.2, bins=2)
        >>> curve.predicted.round(3).tolist(), curve.observed.round(3).tolist()
        ([0.1, 0.8], [0.143, 0.333])
    """
    level = checked_level(level)
    if width not in ("equal-mass", "equal-width"):
        raise ValueError(f'Expected `width` to be "equal-mass" or "equal-width", but got {width!r}: choose one of the two.')
    if isinstance(bins, bool) or not isinstance(bins, int | np.integer) or bins < 1:
        raise ValueError(f"Expected `bins` to be an int ≥ 1, but got {bins!r}: such as 15.")
    found = scores(log_probs, target, prevalence, positive, "a reliability curve", groups, ignore_index)
    stream = own_stream(generator)
    share = _mass_below(found) if width == "equal-mass" else found.to_bin
    _, index = np.unique(np.minimum((share * bins).astype(np.int64), bins - 1), return_inverse=True)
    weight: Array = np.bincount(index, found.weights).astype(np.float64)
    predicted = np.bincount(index, found.weights * found.probability) / weight
    counts = found.in_bins(index, len(weight))
    values = with_limits(_observed, counts, found.prevalence, found.positive, level, stream)
    return ReliabilityCurve(predicted, *values, weight, found.rate, level, found.positive)


def _observed(own: Array, rest: Array, pi: Array) -> Array:
    """Return the frequency of the positive class in a bin, from the fractions of it and of the rest in the bin."""
    return pi * own / (pi * own + (1 - pi) * rest)


def _mass_below(found: Scores) -> Array:
    """Return, for each entry, the fraction of the population with lower predictions, plus half of that with equal ones."""
    mass = np.bincount(found.place, found.weights)
    return (np.cumsum(mass) - mass / 2)[found.place]


@dataclass(frozen=True)
class Recalibration:
    """A recalibration model, p(k|x) ∝ exp(θ_k + θ_0 z_k), of standardised log-odds z_k = (log p_k/p_0 − m_k)/s.

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
        """Return each entry's log-likelihood `(m,)`, its gradient in θ `(m, k)` and negative Hessian `(m, k·k)`."""
        z = (table - table[:, :1] - self.centre) / self.scale
        return _two_classes(z[:, 1], labels, self.theta) if table.shape[1] == 2 else _many_classes(z, labels, self.theta)


def fit_recalibration(sample: Sample) -> tuple[Recalibration | None, str]:
    """Return the fit by damped Newton steps; None, and the reason, if there is none.

    The log-likelihood is concave, and has a maximum unless the classes are separated. It starts at a slope of 0 and the
    population's mix, where the curvature is largest, so that no step is too long.
    """
    if sample.num_classes > MOST_CLASSES:
        return None, f"not fitted with more than {MOST_CLASSES} classes"
    if bool(sample.log_probs.isneginf().any()):
        return None, "a probability of exactly 0 has no log-odds"
    centre, scale = _standard(sample)
    if not scale > _ALIKE * (1 + float(centre.abs().max())):
        return None, "all predictions are equal, or the classes are separated"
    if _separated(sample):
        return None, "the classes are separated, so the slope has no bound"
    mix = sample.prevalence.population.log()
    start = Recalibration(torch.cat([torch.zeros(1, dtype=torch.float64), mix[1:] - mix[0]]), centre, scale)
    if len(sample.labels) > BLOCK and not (some := _every_16th(sample)).missing:  # saves most passes over all entries
        start = _newton(some, start) or start
    model = _newton(sample, start)
    return model, "" if model else "its fit did not converge: the classes are almost separated"


def _every_16th(sample: Sample) -> Sample:
    some = slice(None, None, 16)
    rows = torch.arange(len(sample.labels))[some] if sample.rows is None else sample.rows[some]
    return replace(sample, rows=rows, labels=sample.labels[some], votes=None if sample.votes is None else sample.votes[some])


def _newton(sample: Sample, model: Recalibration) -> Recalibration | None:
    """Maximise the log-likelihood from `model` on; None if that does not converge."""
    value, score, curvature = _derivatives(sample, model)
    for _ in range(_STEPS):
        step = _newton_step(curvature, score)
        gain = float(step @ score)
        if gain <= -_CONVERGED * value:
            return replace(model, theta=model.theta + step)
        for _ in range(_HALVINGS):
            tried = replace(model, theta=model.theta + step)
            found = _derivatives(sample, tried)
            if found[0] >= value + _ENOUGH * gain:
                break
            step, gain = step / 2, gain / 2
        else:
            break
        model, (value, score, curvature) = tried, found
    return None


def score_influence(sample: Sample, model: Recalibration) -> Float64[Tensor, " m"]:
    """Return the influence of each entry on the slope: the first row of H⁻¹ times its gradient, in units of the slope."""
    curvature, scores = torch.zeros(sample.num_classes**2, dtype=torch.float64), []
    weights = sample.population_weights
    for part, table in _parts(sample):
        _, score, second = model.terms(table, sample.labels[part])
        curvature += weights[part] @ second
        scores.append(score)
    return torch.cat(scores) @ (torch.linalg.inv(curvature.view(sample.num_classes, -1))[0] / model.scale)


def _newton_step(curvature: Tensor, score: Tensor) -> Float64[Tensor, " k"]:
    """Return H⁻¹ g, in units in which the diagonal of H is 1; if H is singular up to rounding, a small ridge is added."""
    unit = curvature.diagonal().clamp_min(torch.finfo(torch.float64).tiny).rsqrt()
    scaled = curvature * unit[:, None] * unit + 1e-14 * torch.eye(len(score), dtype=torch.float64)
    step: Tensor = unit * torch.linalg.solve(scaled, unit * score)
    return step


def _two_classes(z: Tensor, labels: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    sign = 2.0 * labels - 1
    logit = sign * (theta[0] * z + theta[1])
    miss = torch.sigmoid(-logit)  # not 1 − p, which is 0 if p rounds to 1
    score = torch.stack([z, torch.ones_like(z)], 1) * (sign * miss)[:, None]
    v = miss * torch.sigmoid(logit)
    cross = v * z
    return torch.nn.functional.logsigmoid(logit), score, torch.stack([cross * z, cross, cross, v], 1)


def _many_classes(z: Tensor, labels: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    k = z.shape[1]
    log_probs = torch.log_softmax(theta[0] * z + torch.cat([torch.zeros_like(theta[:1]), theta[1:]]), 1)
    probs = log_probs.exp()
    # relative to the most probable class there is no cancellation, neither in 1 − p, the sum of the others, nor in z − mean
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


def _parts(sample: Sample) -> Iterator[tuple[slice, Tensor]]:
    """Yield the entries in blocks, with their log-probabilities."""
    size = max(4 * BLOCK // sample.num_classes**2, 1024)
    for start in range(0, len(sample.labels), size):
        part = slice(start, start + size)
        yield part, sample.log_probs[part if sample.rows is None else sample.rows[part]].double()


def _derivatives(sample: Sample, model: Recalibration) -> tuple[float, Tensor, Tensor]:
    k = sample.num_classes
    value, score = 0.0, torch.zeros(k, dtype=torch.float64)
    curvature = torch.zeros(k * k, dtype=torch.float64)
    weights = sample.population_weights
    for part, table in _parts(sample):
        terms = model.terms(table, sample.labels[part])
        value += float(weights[part] @ terms[0])
        score += weights[part] @ terms[1]
        curvature += weights[part] @ terms[2]
    return value, score, curvature.view(k, k)


def _standard(sample: Sample) -> tuple[Float64[Tensor, " k"], float]:
    """Return the mean of the log-odds against class 0, and their mean distance from it, with all classes equally frequent."""
    weights = (1 / (sample.num_classes * sample.totals))[sample.labels]
    weights = weights if sample.votes is None else weights * sample.votes
    centre, scale = torch.zeros(sample.num_classes, dtype=torch.float64), 0.0
    for part, table in _parts(sample):
        centre += weights[part] @ (table - table[:, :1])
    for part, table in _parts(sample):
        scale += float(weights[part] @ (table - table[:, :1] - centre)[:, 1:].abs().mean(1))
    return centre, scale


def _separated(sample: Sample) -> bool:
    """Return whether the classes are separated: a slope b ≠ 0 and intercepts rank no class above an entry's own.

    With b = ±1 the condition is a_j − a_c ≤ b (log p_c − log p_j) for all j and every entry of class c. Such intercepts exist
    unless the smallest right-hand sides have a negative sum around a cycle of classes.
    """
    k = sample.num_classes
    least = torch.full((2, k, k), torch.inf, dtype=torch.float64)  # for b = 1, and for b = −1
    for part, table in _parts(sample):
        labels = sample.labels[part]
        ahead = table.gather(1, labels[:, None]) - table
        for b, sign in enumerate((1.0, -1.0)):
            least[b].scatter_reduce_(0, labels[:, None].expand(-1, k), sign * ahead, "amin")
    for via in range(k):  # Floyd and Warshall
        least = torch.minimum(least, least[:, :, via, None] + least[:, None, via])
    return bool((least.diagonal(dim1=1, dim2=2) >= 0).all(1).any())
