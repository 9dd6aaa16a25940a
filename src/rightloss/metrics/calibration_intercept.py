"""Calibration in the large: the shift of predicted log-odds that makes the mean prediction right at the population's mix.

Stage: `Sample` → for each selected class k, the a_k with E[σ(l_k + a_k)] = π_k, where l_k = log p_k/(1 − p_k) and E is over
the population. It is the intercept of a logistic regression with a fixed slope of 1 on l_k: 0 for a correct model, above 0 if
the probabilities are too low.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import logsigmoid

from .calibration import BLOCK, MOST_CLASSES
from .one_vs_rest import log_odds
from .sample import Sample

_STEPS = 400
_FARTHEST = 1e6  # larger log-odds are not meaningful probabilities, nor are shifts between them
_FLAT = 1e-9  # if the spread of the shifted predictions relative to rounding is smaller, the shift is not unique


@dataclass(frozen=True)
class Intercepts:
    """Shifts of the log-odds of some classes, each against the rest.

    Attributes:
        classes: the selected classes: 1 of two, or all.
        shifts: a, one per selected class `(j,)`.
    """

    classes: tuple[int, ...]
    shifts: Float64[Tensor, " j"]

    def terms(self, table: Float64[Tensor, "m k"]) -> Float64[Tensor, "m jj"]:
        """Return σ(l_k + a_k) of each selected class, then its derivative by a_k `(m, 2j)`."""
        odds = torch.stack([log_odds(table, k) for k in self.classes], 1) + self.shifts
        shifted = torch.sigmoid(odds)
        return torch.cat([shifted, shifted * torch.sigmoid(-odds)], 1)


def fit_intercepts(sample: Sample) -> tuple[Intercepts | None, str]:
    """Return the shifts; None, and the reason, if there is no solution."""
    k = sample.num_classes
    if k > MOST_CLASSES:
        return None, f"not fitted with more than {MOST_CLASSES} classes"
    classes = (1,) if k == 2 else tuple(range(k))
    shifts = []
    for positive in classes:
        odds = sample.per_entry(log_odds(sample.log_probs, positive))
        shift = solve_shift(odds, sample.population_weights, float(sample.prevalence.population[positive]))
        if shift is None:
            return None, f"no single shift corrects the mean prediction of class {positive}: too many are almost certain"
        shifts.append(shift)
    return Intercepts(classes, torch.tensor(shifts, dtype=torch.float64)), ""


def solve_shift(odds: Float64[Tensor, " m"], weights: Float64[Tensor, " m"], rate: float) -> float | None:
    """Return the a with Σ_i w_i σ(l_i + a) = rate, by Newton steps on the log-odds of both sides, kept inside a bracket.

    Return None if there is no solution up to a million, or a whole range of them: the sum is only between the weight of l = ∞
    and 1 minus that of l = −∞.
    """
    total = float(weights.sum())
    if not float(weights[odds == torch.inf].sum()) < rate * total < total - float(weights[odds == -torch.inf].sum()):
        return None
    log_weights, goal = (weights / total).log(), math.log(rate) - math.log1p(-rate)
    low, high, shift = -math.inf, math.inf, 0.0
    if len(odds) > BLOCK:  # saves most passes over all entries
        shift = solve_shift(odds[::16], weights[::16], rate) or 0.0
    for _ in range(_STEPS):
        log_p, log_q = logsigmoid(odds + shift), logsigmoid(-odds - shift)
        log_mean, log_rest = torch.logsumexp(log_weights + log_p, 0), torch.logsumexp(log_weights + log_q, 0)
        gap = float(log_mean - log_rest) - goal
        slope = float((torch.logsumexp(log_weights + log_p + log_q, 0) - log_mean - log_rest).exp())
        low, high = (low, shift) if gap > 0 else (shift, high)
        step = -gap / slope if slope > 0 else math.inf
        if abs(step) <= 1e-13 * (1 + abs(shift)):
            return shift + step if slope > _FLAT else None
        if abs(shift) > _FARTHEST:
            return None
        shift = _inside(shift + step, shift, low, high)
    return None


def _inside(wanted: float, now: float, low: float, high: float) -> float:
    """Return the next point: as proposed, or the middle of the bracket; twice as far if one of its ends is open."""
    if low < wanted < high and abs(wanted - now) <= 10 * (1 + abs(now)):
        return wanted
    if math.isinf(low) or math.isinf(high):
        reach = 10 * (1 + abs(now))
        return now + reach if math.isinf(high) else now - reach
    return (low + high) / 2
