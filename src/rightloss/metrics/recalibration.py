"""Recalibration at the population's mix: slope and shifts of the predicted log-odds.

Stage: `Sample` → slope b and intercepts a of p(k|x) ∝ exp(a_k + b log p_k), fitted by likelihood at π (Cox's recalibration). A
correct model has b = 1, an overconfident one b < 1. For two classes this is logistic regression of the label on the log-odds.

`Sample` → calibration in the large: for each selected class k, the a_k with E[σ(l_k + a_k)] = π_k, with l_k = log p_k/(1 − p_k)
and E over the population. It is the intercept of a logistic regression with a fixed slope of 1 on l_k: 0 for a correct model,
above 0 if the probabilities are too low.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit, logit

from ..solve import Quadratic, intercepts_for_mean, minimise
from .one_vs_rest import log_odds
from .sample import Sample

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

MOST_CLASSES = 20  # the recalibration has a parameter per class, and a matrix of these per example
_MANY = 1 << 18  # entries from which a fit starts at that of a sixteenth of them, which saves most passes over all
_ALIKE = 1e-6  # spread of log-odds, relative to 1 and to their mean, up to which they count as equal
_FARTHEST = 1e6  # larger log-odds are not meaningful probabilities, nor are shifts between them
_FLAT = 1e-9  # if the spread of the shifted predictions relative to rounding is smaller, the shift is not unique


@dataclass(frozen=True)
class Recalibration:
    """A recalibration model, p(k|x) ∝ exp(θ_k + θ_0 z_k), of standardised log-odds z_k = (log p_k/p_0 − m_k)/s.

    Attributes:
        theta: (θ_0, θ_1 … θ_{K−1}): the slope in these units, then the intercepts of all classes but the first.
        centre: m `(k,)`, mean log-odds; m_0 = 0.
        scale: s, their mean distance from m.
    """

    theta: Float64[np.ndarray, " k"]
    centre: Float64[np.ndarray, " k"]
    scale: float

    def terms(
        self, columns: Float64[np.ndarray, "k m"], labels: Int64[np.ndarray, " m"] | int
    ) -> tuple[Float64[np.ndarray, " m"], Float64[np.ndarray, "k m"], Float64[np.ndarray, "t m"]]:
        """Return each entry's log-likelihood, its gradient in θ, and the upper triangle of its negative Hessian, by row."""
        k, each = len(columns), np.arange(columns.shape[1])
        z = (columns - columns[0] - self.centre[:, None]) / self.scale
        logits = self.theta[0] * z
        logits[1:] += self.theta[1:, None]
        best = logits.argmax(0)
        logits -= logits[best, each]
        probs = np.exp(logits)
        total = probs.sum(0)
        probs /= total
        # relative to the most probable class there is no cancellation, neither in 1 − p, the sum of the others, nor in z − mean
        others = probs.copy()
        others[best, each] = 0.0
        rest = others.sum(0)
        miss = 1 - probs
        miss[best, each] = rest
        z -= z[best, each]
        mean = (probs * z).sum(0)
        log_likelihood = np.where(labels == best, np.log1p(-rest), logits[labels, each] - np.log(total))
        score = -probs
        score[labels, each] = miss[labels, each]
        score[0] = z[labels, each] - mean
        cross = probs * (z - mean)
        curvature = [(cross * z).sum(0), *cross[1:]]
        for i in range(1, k):
            curvature += [probs[i] * miss[i], *(-probs[i] * probs[i + 1 :])]
        return log_likelihood, score, np.stack(curvature)


def symmetric(triangle: Float64[np.ndarray, t * b]) -> Float64[np.ndarray, "p p *b"]:
    """Return symmetric matrices from their upper triangles, by row."""
    size = math.isqrt(2 * len(triangle))
    upper = np.triu_indices(size)
    full = np.empty((size, size, *triangle.shape[1:]))
    full[upper] = full[upper[::-1]] = triangle
    return full


def fit_recalibration(sample: Sample) -> tuple[Recalibration | None, str]:
    """Return the fit; None, and the reason, if there is none.

    The log-likelihood is concave, and has a maximum unless the classes are separated. The search starts at a slope of 0 and the
    population's mix, where the curvature is largest.
    """
    if sample.num_classes > MOST_CLASSES:
        return None, f"not fitted with more than {MOST_CLASSES} classes"
    if np.isneginf(sample.log_probs).any():
        return None, "a probability of exactly 0 has no log-odds"
    centre, scale = _standard(sample)
    if not scale > _ALIKE * (1 + np.abs(centre).max()):
        return None, "all predictions are equal, or the classes are separated"
    if _separated(sample):
        return None, "the classes are separated, so the slope has no bound"
    mix = np.log(sample.prevalence.population)
    start = Recalibration(np.append(0.0, mix[1:] - mix[0]), centre, scale)
    if len(sample.labels) > _MANY and not (some := _every_16th(sample)).missing:
        start = _maximise(some, start) or start
    model = _maximise(sample, start)
    return model, "" if model else "its fit did not converge: the classes are almost separated"


def _every_16th(sample: Sample) -> Sample:
    rows = np.arange(len(sample.labels)) if sample.rows is None else sample.rows
    votes = None if sample.votes is None else sample.votes[::16]
    return replace(sample, rows=rows[::16], labels=sample.labels[::16], votes=votes)


def _maximise(sample: Sample, start: Recalibration) -> Recalibration | None:
    """Maximise the log-likelihood, in units of θ in which all curvatures are about 1; None if that does not converge."""
    pi = sample.prevalence.population
    unit = 1 / np.sqrt(np.append(1 - pi.max(), pi[1:] * (1 - pi[1:])))

    def function(point: np.ndarray) -> Quadratic:
        at = _derivatives(sample, replace(start, theta=start.theta + unit * point))
        return Quadratic(at.value, unit * at.gradient, unit[:, None] * at.hessian * unit)

    found = minimise(function, np.zeros(len(unit)), enough=1e-14)
    if not found.converged:
        return None
    step = np.linalg.solve(found.at.hessian + 1e-14 * np.eye(len(unit)), found.at.gradient)
    return replace(start, theta=start.theta + unit * (found.point - step))


def _derivatives(sample: Sample, model: Recalibration) -> Quadratic:
    """Return minus the log-likelihood at π, to second order in θ."""
    weights, k = sample.population_weights, sample.num_classes
    value, score, curvature = 0.0, np.zeros(k), np.zeros(k * (k + 1) // 2)
    for part in sample.parts(k):
        each = model.terms(sample.columns(part), sample.labels[part])
        value, score, curvature = (
            total + terms @ weights[part] for total, terms in zip((value, score, curvature), each, strict=True)
        )
    return Quadratic(-float(value), -score, symmetric(curvature))


def score_influence(sample: Sample, model: Recalibration) -> Float64[np.ndarray, " m"]:
    """Return the influence of each entry on the slope: the first row of H⁻¹ times its gradient, in units of the slope."""
    row = np.linalg.inv(_derivatives(sample, model).hessian)[0] / model.scale
    parts = sample.parts(sample.num_classes)
    return np.concatenate([row @ model.terms(sample.columns(part), sample.labels[part])[1] for part in parts])


def _standard(sample: Sample) -> tuple[Float64[np.ndarray, " k"], float]:
    """Return the mean of the log-odds against class 0, and their mean distance from it, with all classes equally frequent."""
    weights = (1 / (sample.num_classes * sample.totals))[sample.labels]
    weights = weights if sample.votes is None else weights * sample.votes
    columns = sample.columns(slice(None))
    odds = columns - columns[0]
    centre = odds @ weights
    return centre, float(np.abs(odds - centre[:, None])[1:].mean(0) @ weights)


def _separated(sample: Sample) -> bool:
    """Return whether the classes are separated: a slope b ≠ 0 and intercepts rank no class above an entry's own.

    With b = ±1 the condition is a_j − a_c ≤ b (log p_c − log p_j) for all j and every entry of class c. Such intercepts exist
    unless the smallest right-hand sides have a negative sum around a cycle of classes.
    """
    k = sample.num_classes
    least = np.full((2, k, k), np.inf)  # for b = 1, and for b = −1
    for c, entries in sample.by_class():
        columns = sample.columns(entries)
        ahead = columns[c] - columns
        least[:, c] = np.minimum(least[:, c], [ahead.min(1), -ahead.max(1)])
    for via in range(k):  # Floyd and Warshall
        least = np.minimum(least, least[:, :, via, None] + least[:, None, via])
    return bool((least.diagonal(axis1=1, axis2=2) >= 0).all(1).any())


@dataclass(frozen=True)
class Intercepts:
    """Shifts of the log-odds of some classes, each against the rest.

    Attributes:
        classes: the selected classes: 1 of two, or all.
        shifts: a, one per selected class `(j,)`.
    """

    classes: tuple[int, ...]
    shifts: Float64[np.ndarray, " j"]

    def terms(self, columns: Float64[np.ndarray, "k m"]) -> Float64[np.ndarray, "jj m"]:
        """Return σ(l_k + a_k) of each selected class, then its derivative by a_k `(2j, m)`."""
        odds = np.stack([log_odds(columns.T, k) for k in self.classes]) + self.shifts[:, None]
        shifted = expit(odds)
        return np.concatenate([shifted, shifted * expit(-odds)])


def fit_intercepts(sample: Sample) -> tuple[Intercepts | None, str]:
    """Return the shifts; None, and the reason, if there is no solution."""
    k = sample.num_classes
    if k > MOST_CLASSES:
        return None, f"not fitted with more than {MOST_CLASSES} classes"
    classes, table = (1,) if k == 2 else tuple(range(k)), sample.log_probs.astype(np.float64, copy=False)
    shifts = []
    for positive in classes:
        odds = sample.per_entry(log_odds(table, positive))
        shift = solve_shift(odds, sample.population_weights, float(sample.prevalence.population[positive]))
        if shift is None:
            return None, f"no single shift corrects the mean prediction of class {positive}: too many are almost certain"
        shifts.append(shift)
    return Intercepts(classes, np.array(shifts)), ""


def solve_shift(odds: Float64[np.ndarray, " m"], weights: Float64[np.ndarray, " m"], rate: float) -> float | None:
    """Return the a with Σ_i w_i σ(l_i + a) = rate; None if there is none up to a million, or a whole range of them.

    The sum is only between the weight of l = ∞ and 1 minus that of l = −∞.
    """
    finite, total = np.isfinite(odds), weights.sum()
    if not finite.all():
        rate = (rate * total - weights[np.isposinf(odds)].sum()) / weights[finite].sum()
        odds, weights, total = odds[finite], weights[finite], weights[finite].sum()
    if not 0 < rate < 1:
        return None
    some = slice(None, None, 16 if len(odds) > _MANY else 1)
    logits = np.stack([np.zeros_like(odds[some]), odds[some]], 1)
    low, high = intercepts_for_mean(logits, np.array([1 - rate, rate]), weights[some])
    shift, goal, share = float(high - low), float(logit(rate)), weights / total
    for _ in range(50):  # Newton steps on the log-odds of both sides, which keep the digits of a rare class
        p, q = expit(odds + shift), expit(-odds - shift)
        mean, rest, both = float(share @ p), float(share @ q), float(share @ (p * q))
        if not both > _FLAT * mean * rest or abs(shift) > _FARTHEST:
            return None
        step = (goal - math.log(mean / rest)) * mean * rest / both
        shift += step
        if abs(step) <= 1e-8 * (1 + abs(shift)):  # the next would be about its square
            return shift
    return None
