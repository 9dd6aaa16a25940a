"""Whether predictions come true: observed frequency against predicted probability, at the population's prevalence.

Stage: log_probs, target, π → `ReliabilityCurve`, a point per bin of predictions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..inference.steps import checked_level
from ..rng import own_stream
from .one_vs_rest import Array, Scores, against_rest, drawn_against_rest, drawn_mix, limits, scores
from .sample import IGNORED

__all__ = ["ReliabilityCurve", "reliability_curve"]


@dataclass(frozen=True)
class ReliabilityCurve:
    """Bins in rising order of the prediction; those without an example are left out.

    Attributes:
        predicted: mean prediction in the bin, over the population `(b,)`.
        observed, low, high: how often the positive class occurs there, at π, with limits `(b,)`.
        weight: the bin's share of the population `(b,)`; they sum to 1.
        prevalence: π of the class.
        level: of the limits.
        positive: the class.
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
    log_probs: Any,
    target: Any,
    prevalence: Any,
    bins: Any = 15,
    positive: Any = None,
    width: str = "equal-mass",
    level: Any = 0.95,
    generator: Any = None,
    groups: Any = None,
    ignore_index: int = IGNORED,
) -> ReliabilityCurve:
    """In bin b the class is met at `π a₁ / (π a₁ + (1 − π) a₀)`, with a₁, a₀ the shares of it and of the rest in b.

    Limits: a₁ and a₀ (of every class, where there are more) are drawn from Jeffreys' posterior, Beta(x + ½, n − x + ½), and
    π from its own distribution where it is uncertain; 4,000 draws and their pointwise quantiles. The edges of the bins are
    taken as given and rows as independent; where there are groups, n counts as n/d, with d the design effect of the share.

    Args:
        log_probs: predictions for the population `(n, k)`, or dense maps `(n, k, h, w, …)`, as log-probabilities.
        target: int labels `(n,)` or `(n, h, w, …)`, or soft votes of the predictions' shape, in any mix of classes.
        prevalence: π: a `Prevalence`, an estimate of one, K frequencies, or for two classes that of class 1.
        bins: how many.
        positive: the class; 1 where there are two.
        width: "equal-mass", each with the same share of the population as far as ties allow, or "equal-width"; a
            probability at an edge is in the upper bin.
        level: of the limits.
        generator: for the draws behind the limits; of a fixed seed by default.
        groups: ids of patients (or sites) `(n,)`, where rows are not independent; by default each image of a dense map is one.
        ignore_index: the int label of examples that are left out.
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
    mixes = drawn_mix(found.prevalence, stream)
    mix = found.prevalence.population.numpy()
    observed = _observed(*against_rest(counts.shares, mix, found.positive), found.rate)
    drawn = drawn_against_rest(counts, mixes, found.positive, stream)
    low, high = limits(_observed(*drawn, mixes[:, [found.positive]]), observed, level)
    return ReliabilityCurve(predicted, observed, low, high, weight, found.rate, level, found.positive)


def _observed(own: Array, rest: Array, pi: Any) -> Array:
    """Shares of the positive class and of the rest in a bin → how often the positive one is met there."""
    return pi * own / (pi * own + (1 - pi) * rest)


def _mass_below(found: Scores) -> Array:
    """The share of the population with lower predictions than each entry's, and half of that with the same."""
    mass = np.bincount(found.place, found.weights)
    return (np.cumsum(mass) - mass / 2)[found.place]
