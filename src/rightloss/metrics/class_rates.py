"""One class against the rest: how often each class is called positive, and draws of how often that might be.

Stage: predictions with labels → `Scores`, per entry → examples of every class at or above a threshold → draws of
those shares, and of π. The curves are functions of these alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from numpy.typing import NDArray
from torch import Tensor

from ..prevalence import Prevalence
from ..tables import log_prob_table, tensor_of
from .sample import labelled_sample

Array = NDArray[np.float64]

DRAWS = 4000  # the Monte Carlo error of a 95 % limit is then 4 % of the estimate's standard error


@dataclass(frozen=True)
class Scores:
    """Predictions of one class against the rest. m entries, K classes.

    Attributes:
        probability: p(positive|x) `(m,)`, as exact as the predictions' own dtype.
        odds: `log p(positive|x) − log p(another|x)` `(m,)`; ±∞ where the model is certain.
        place: which of the distinct predictions it is, numbered from the lowest `(m,)`. As in `ranks`, predictions are told
            apart by log p(positive|x), for two classes by the log-odds.
        labels: an entry's class `(m,)`.
        votes: its share of its row's label `(m,)`.
        weights: what it stands for in the population, π_c/n_c times the vote `(m,)`; they sum to 1.
        totals: examples by class `(k,)`, votes counted in fractions.
        prevalence: π.
        positive: the class.
        rounding: of the predictions' precision.
    """

    probability: Array
    odds: Array
    place: NDArray[np.int64]
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

    @property
    def to_bin(self) -> Array:
        """The probabilities, raised by their rounding, so that a round number is in the bin that begins with it."""
        return self.probability + 2 * self.rounding

    def cuts(self, thresholds: Array) -> Array:
        """Thresholds on the probability → on the log-odds, so low that a tie but for rounding is above."""
        odds = logit(thresholds)
        return odds - 2 * self.rounding * (1 + np.abs(np.log(thresholds)) + np.abs(odds))

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
    column, odds = (sample.per_entry(each) for each in (sample.log_probs[:, chosen], _log_odds(sample.log_probs, chosen)))
    votes = torch.ones_like(odds) if sample.votes is None else sample.votes
    # by the library whose predictions they are, since the last digit of exp differs between the two
    p = (column.exp() if isinstance(log_probs, torch.Tensor) else torch.from_numpy(np.exp(column.numpy()))).double().numpy()
    return Scores(
        p,
        odds.numpy(),
        np.unique((odds if classes == 2 else column.double()).numpy(), return_inverse=True)[1],
        sample.labels.cpu().numpy(),
        votes.cpu().numpy(),
        sample.population_weights.cpu().numpy(),
        sample.totals.cpu().numpy(),
        sample.prevalence,
        chosen,
        torch.finfo(sample.log_probs.dtype).eps,
    )


def drawn_against_rest(
    counts: Array, totals: Array, mixes: Array, positive: int, generator: torch.Generator
) -> tuple[Array, Array]:
    """Draws of the shares `counts (c, k) / totals (k,)`, each Beta(x + ½, n − x + ½), Jeffreys' posterior, in a mix for each
    draw `(draws, k)` → those of the positive class and of the rest `(draws, c)`. One class at a time, to bound memory."""
    others = np.delete(mixes, positive, 1).sum(1, keepdims=True)  # not 1 − π, which can be 0
    rest = np.zeros((len(mixes), len(counts)))
    for c, (found, total) in enumerate(zip(torch.from_numpy(counts.T), totals.tolist(), strict=True)):
        yes, no = (
            torch._standard_gamma((each + 0.5).expand(len(mixes), -1), generator=generator)
            for each in (found, (total - found).clamp_min(0))
        )
        rate = (yes / (yes + no)).numpy()
        if c == positive:
            own = rate
        else:
            rest += rate * (mixes[:, [c]] / others)
    return own, rest


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


def shares_of(values: Any, name: str, default: Callable[[], Array]) -> Array:
    """A grid of numbers strictly between 0 and 1, in rising order, checked; `default()` where none is given."""
    if values is None:
        return default()
    grid = np.unique(tensor_of(values, name).detach().to("cpu", torch.float64).numpy())
    if len(grid) == 0 or not bool(((grid > 0) & (grid < 1)).all()):
        shown = grid[~((grid > 0) & (grid < 1))][:5].tolist()
        raise ValueError(f"Expected `{name}` strictly between 0 and 1, but got {shown}: are they percentages?")
    return grid


def logit(p: Any) -> Any:
    return np.log(p) - np.log1p(-np.asarray(p))


def expit(odds: Any) -> Any:
    """1/(1 + e^−odds), of ±∞ too."""
    return np.exp(-np.logaddexp(0.0, -np.asarray(odds)))


def _log_odds(table: Tensor, positive: int) -> Float64[Tensor, " n"]:
    """`log p − log (1 − p)` of one class: of its own column, so that equal predictions have equal odds, and of the others where
    p rounds to 1; for two classes always of both."""
    if table.shape[1] == 2:
        return (table[:, positive] - table[:, 1 - positive]).double()
    others = [c for c in range(table.shape[1]) if c != positive]
    own = table[:, positive].double()
    sure = own >= 0
    odds = own - torch.log(-torch.expm1(own))
    odds[sure] = -torch.logsumexp(table[sure][:, others].double(), 1)
    return odds


def _positive_class(positive: Any, classes: int) -> int:
    if positive is None:
        if classes == 2:
            return 1
        raise ValueError(f"Expected `positive`, one of the classes 0..{classes - 1}, but got none: say which is looked for.")
    if isinstance(positive, bool) or not isinstance(positive, int | np.integer) or not 0 <= int(positive) < classes:
        raise ValueError(f"Expected `positive` to be a class in 0..{classes - 1}, but got {positive!r}: number them from 0.")
    return int(positive)
