"""Whether predictions come true: observed frequency against predicted probability, at the population's prevalence.

Stage: log_probs, target, π → `ReliabilityCurve`, a point per bin of predictions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .class_rates import Array, Scores, against_rest, drawn_mix, drawn_rates, expit, level_of, limits, own_stream, scores

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
    generator: torch.Generator | None = None,
) -> ReliabilityCurve:
    """In bin b the class is met at `π a₁ / (π a₁ + (1 − π) a₀)`, with a₁, a₀ the shares of it and of the rest in b.

    Limits: a₁ and a₀ (of every class, where there are more) are drawn from Jeffreys' posterior, Beta(x + ½, n − x + ½), and
    π from its own distribution where it is uncertain; 4,000 draws and their pointwise quantiles. The edges of the bins are
    taken as given and rows as independent.

    Args:
        log_probs: predictions for the population `(n, k)`, as log-probabilities.
        target: int labels `(n,)` or soft votes `(n, k)`, in any mix of classes.
        prevalence: π: a `Prevalence`, K frequencies, or for two classes that of class 1.
        bins: how many.
        positive: the class; 1 where there are two.
        width: "equal-mass", each with the same share of the population as far as ties allow, or "equal-width".
        level: of the limits.
        generator: for the draws behind the limits; of a fixed seed by default.
    """
    level = level_of(level)
    if width not in ("equal-mass", "equal-width"):
        raise ValueError(f'Expected `width` to be "equal-mass" or "equal-width", but got {width!r}: choose one of the two.')
    if isinstance(bins, bool) or not isinstance(bins, int | np.integer) or bins < 1:
        raise ValueError(f"Expected `bins` to be an int ≥ 1, but got {bins!r}: such as 15.")
    found = scores(log_probs, target, prevalence, positive, "a reliability curve")
    p = expit(found.odds)
    index = _by_mass(found, int(bins)) if width == "equal-mass" else np.minimum((p * bins).astype(np.int64), bins - 1)
    _, index = np.unique(index, return_inverse=True)
    weight: Array = np.bincount(index, found.weights).astype(np.float64)
    predicted = np.bincount(index, found.weights * p) / weight
    counts = np.zeros((len(weight), len(found.totals)))
    np.add.at(counts, (index, found.labels), found.votes)
    stream = own_stream(generator)
    mixes = drawn_mix(found.prevalence, stream)
    mix = found.prevalence.population.numpy()
    observed = _observed(counts / found.totals, mix, found.positive)
    low, high = limits(_observed(drawn_rates(counts, found.totals, stream), mixes, found.positive), observed, level)
    return ReliabilityCurve(predicted, observed, low, high, weight, found.rate, level, found.positive)


def _observed(rates: Array, mix: Array, positive: int) -> Array:
    """Shares of each class in a bin `(…, b, k)` → how often the positive one is met there `(…, b)`."""
    own, rest = against_rest(rates, mix, positive)
    pi = mix[..., positive, None]
    return pi * own / (pi * own + (1 - pi) * rest)


def _by_mass(found: Scores, bins: int) -> NDArray[np.int64]:
    """The bin of each entry: where the middle of the population's mass with that same prediction lies."""
    order = np.argsort(found.odds)
    odds = found.odds[order]
    group = np.cumsum(np.append(True, odds[1:] != odds[:-1])) - 1
    mass = np.bincount(group, found.weights[order])
    middle = (np.cumsum(mass) - mass / 2)[group]
    index = np.empty(len(odds), dtype=np.int64)
    index[order] = np.minimum((middle * bins).astype(np.int64), bins - 1)
    return index
