"""One class against the rest: how often each class is called positive, and draws of how often that might be.

Stage: predictions with labels → `Scores`, log-odds per entry → examples of every class at or above a threshold → draws of
those shares, and of π. The curves are functions of these alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..prevalence import Prevalence
from ..tables import log_prob_table
from .decisions import threshold_log_odds
from .sample import labelled_sample

Array = NDArray[np.float64]

DRAWS = 4000  # the Monte Carlo error of a 95 % limit is then 4 % of the estimate's standard error


@dataclass(frozen=True)
class Scores:
    """Log-odds of one class against the rest. m entries, K classes.

    Attributes:
        odds: `log p(positive|x) − log p(another|x)` `(m,)`; ±∞ where the model is certain.
        labels: an entry's class `(m,)`.
        votes: its share of its row's label `(m,)`.
        weights: what it stands for in the population, π_c/n_c times the vote `(m,)`; they sum to 1.
        totals: examples by class `(k,)`, votes counted in fractions.
        prevalence: π.
        positive: the class.
        rounding: of the predictions' precision.
    """

    odds: Array
    labels: NDArray[np.int64]
    votes: Array
    weights: Array
    totals: Array
    prevalence: Prevalence
    positive: int
    rounding: float

    @property
    def rate(self) -> float:
        """π of the positive class."""
        return float(self.prevalence.population[self.positive])

    def cut(self, threshold: Any) -> float:
        """A threshold on the probability → one on the log-odds, so low that a tie but for rounding is above it."""
        odds = threshold_log_odds(threshold)
        return odds - 2 * self.rounding * (1 + abs(np.log(threshold)) + abs(odds))

    def counts_from(self, cuts: Array) -> Array:
        """How many examples of each class have log-odds at or above each of the cuts `(c,)` → `(c, k)`."""
        columns = []
        for c in range(len(self.totals)):
            own = self.labels == c
            order = np.argsort(self.odds[own])
            above = np.append(self.votes[own][order][::-1].cumsum()[::-1], 0.0)
            columns.append(above[np.searchsorted(self.odds[own][order], cuts)])
        return np.stack(columns, 1)


def scores(log_probs: Any, target: Any, prevalence: Any, positive: Any, purpose: str) -> Scores:
    """Checks all and states the predictions as one class against the rest.

    Args:
        log_probs: `(n, k)`.
        target: int labels or soft votes.
        prevalence: π; None where there are two classes and `purpose` does not depend on it.
        positive: the class; None means 1 of two.
        purpose: what it is for, in the words of an error.
    """
    classes = log_prob_table(log_probs).shape[1]
    chosen = _positive_class(positive, classes)
    if prevalence is None and classes > 2:
        raise ValueError(
            f"Expected a prevalence for {purpose} of one class against {classes - 1} others, but got none: "
            "how the others are mixed decides it; give K frequencies."
        )
    sample = labelled_sample(log_probs, target, [0.5, 0.5] if prevalence is None else prevalence)
    sample.require_every_class(purpose)
    table = sample.log_probs.double()
    rest = [c for c in range(classes) if c != chosen]
    other = table[:, rest[0]] if len(rest) == 1 else torch.logsumexp(table[:, rest], 1)
    odds = sample.per_entry(table[:, chosen] - other)
    votes = torch.ones_like(odds) if sample.votes is None else sample.votes
    return Scores(
        odds.cpu().numpy(),
        sample.labels.cpu().numpy(),
        votes.cpu().numpy(),
        sample.population_weights.cpu().numpy(),
        sample.totals.cpu().numpy(),
        sample.prevalence,
        chosen,
        torch.finfo(sample.log_probs.dtype).eps,
    )


def drawn_rates(counts: Array, totals: Array, generator: torch.Generator) -> Array:
    """Draws of the shares `counts (c, k) / totals (k,)`: Beta(x + ½, n − x + ½), Jeffreys' posterior `(draws, c, k)`."""
    found = torch.from_numpy(counts).expand(DRAWS, *counts.shape)
    yes = torch._standard_gamma(found + 0.5, generator=generator)
    no = torch._standard_gamma((torch.from_numpy(totals) - found).clamp_min(0) + 0.5, generator=generator)
    return (yes / (yes + no)).numpy()


def drawn_mix(prevalence: Prevalence, generator: torch.Generator) -> Array:
    """Draws of π `(draws, k)`; all alike where it is certain."""
    return prevalence.sample(DRAWS, generator).numpy()


def against_rest(rates: Array, mix: Array, positive: int) -> tuple[Array, Array]:
    """Rates by class `(…, c, k)` in a mix of classes `(…, k)` → those of the positive class and of the rest `(…, c)`."""
    others = np.delete(mix, positive, -1)
    others = others / others.sum(-1, keepdims=True)
    return rates[..., positive], np.einsum("...ck,...k->...c", np.delete(rates, positive, -1), others)


def limits(draws: Array, estimate: Array, level: float) -> tuple[Array, Array]:
    """Pointwise quantiles of draws `(draws, c)`, widened to hold the estimate: a share of 0 or 1 is no quantile."""
    tail = (1 - level) / 2
    low, high = np.quantile(draws, [tail, 1 - tail], axis=0)
    return np.fmin(low, estimate), np.fmax(high, estimate)


def level_of(level: Any) -> float:
    """The level of an interval, checked."""
    if isinstance(level, bool) or not isinstance(level, int | float | np.floating) or not 0 < level < 1:
        raise ValueError(f"Expected `level` to lie strictly between 0 and 1, but got {level!r}: such as 0.95.")
    return float(level)


def shares_of(values: Any, name: str, default: Callable[[], Array]) -> Array:
    """A grid of numbers strictly between 0 and 1, in rising order, checked; `default()` where none is given."""
    if values is None:
        return default()
    try:
        grid = np.unique(np.asarray(values, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise ValueError(f"Expected `{name}` to be numbers, but got {values!r}: such as [0.01, 0.1].") from error
    if len(grid) == 0 or not bool(((grid > 0) & (grid < 1)).all()):
        shown = grid[~((grid > 0) & (grid < 1))][:5].tolist()
        raise ValueError(f"Expected `{name}` strictly between 0 and 1, but got {shown}: are they percentages?")
    return grid


def own_stream(generator: torch.Generator | None) -> torch.Generator:
    """The generator given, or one of a fixed seed: the same predictions then have the same interval."""
    return torch.Generator().manual_seed(0) if generator is None else generator


def logit(p: Any) -> Any:
    return np.log(p) - np.log1p(-np.asarray(p))


def expit(odds: Any) -> Any:
    """1/(1 + e^−odds), of ±∞ too."""
    return np.exp(-np.logaddexp(0.0, -np.asarray(odds)))


def _positive_class(positive: Any, classes: int) -> int:
    if positive is None:
        if classes == 2:
            return 1
        raise ValueError(f"Expected `positive`, one of the classes 0..{classes - 1}, but got none: say which is looked for.")
    if isinstance(positive, bool) or not isinstance(positive, int | np.integer) or not 0 <= int(positive) < classes:
        raise ValueError(f"Expected `positive` to be a class in 0..{classes - 1}, but got {positive!r}: number them from 0.")
    return int(positive)
