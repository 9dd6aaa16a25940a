"""One class against the rest: fractions of each class called positive, and draws of these fractions.

Stage: predictions with labels → `Scores`, per entry → examples of every class at or above a threshold → draws of these
fractions, and of π. The curves are functions of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit as expit
from scipy.special import logit as logit

from ..arrays import array_of, checked_int, logsumexp
from ..prevalence import Prevalence
from .sample import IGNORED, Mix, Numbers, Predictions, Sample, labelled_sample

Array = NDArray[np.float64]
Formulas = Callable[..., dict[str, Array]]

_DRAWS = 4000  # gives a Monte Carlo error of a 95 % limit of 4 % of the estimate's standard error


@dataclass(frozen=True)
class Scores:
    """Predictions of one class, `positive`, against the rest."""

    sample: Sample
    positive: int

    @cached_property
    def probability(self) -> Array:
        """p(positive|x) of each entry `(m,)`, as exact as the predictions' own dtype."""
        return np.exp(self.sample.per_entry(self.sample.log_probs[:, self.positive])).astype(np.float64)

    @cached_property
    def odds(self) -> Array:
        """`log p(positive|x) − log p(another|x)` `(m,)`; ±∞ where the model is certain."""
        return self.sample.per_entry(log_odds(self.sample.log_probs, self.positive))

    @cached_property
    def place(self) -> NDArray[np.int64]:
        """The rank of each prediction among the distinct ones, from the lowest `(m,)`; compared as in `Ranking`."""
        column = self.sample.per_entry(self.sample.log_probs[:, self.positive])
        return np.unique(self.odds if self.sample.num_classes == 2 else column, return_inverse=True)[1]

    @cached_property
    def groups(self) -> NDArray[np.int64] | None:
        """The patient or image of each entry, numbered from 0 `(m,)`; None if rows are independent."""
        groups = self.sample.groups
        return None if groups is None else np.unique(self.sample.per_entry(groups), return_inverse=True)[1]

    @property
    def is_positive(self) -> NDArray[np.bool_]:
        return self.sample.labels == self.positive

    @property
    def rate(self) -> float:
        """π of the positive class."""
        return float(self.sample.prevalence.population[self.positive])

    @property
    def rounding(self) -> float:
        """The rounding error of the predictions' dtype."""
        return float(np.finfo(self.sample.log_probs.dtype).eps)

    def cuts(self, thresholds: Array) -> Array:
        """Return thresholds on the log-odds from ones on the probability, lowered so that a tie up to rounding is above."""
        odds = logit(thresholds)
        return odds - 2 * self.rounding * (1 + np.abs(np.log(thresholds)) + np.abs(odds))

    def called_from(self, cuts: Array) -> Counts:
        """Return the number of examples of each class with log-odds at or above each of the cuts `(c,)`."""
        ordered, back = np.unique(cuts, return_inverse=True)
        reached = np.searchsorted(ordered, self.odds, side="right")  # the number of cuts
        return self._counted(reached, len(ordered) + 1, lambda inside: inside[:, ::-1].cumsum(1)[:, ::-1][:, 1:][:, back])

    def in_bins(self, index: NDArray[np.int64], bins: int) -> Counts:
        """Return the number of examples of each class in each bin, given the bin of each entry."""
        return self._counted(index, bins, lambda inside: inside)

    def with_limits(
        self, formulas: Formulas, counts: Counts, level: float, generator: Any, at: Prevalence | None = None
    ) -> dict[str, tuple[Array, Array, Array]]:
        """Return curves by name from the fractions of two sides, with pointwise limits: value, low and high of each `(c,)`.

        The limits are quantiles of draws of the fractions, and of an uncertain π, widened to include the value, because a
        fraction of 0 or 1 is not a quantile.

        Args:
            formulas: fractions of the positive class and of the rest, and π of the class `(…, 1)`, → each curve `(…, c)`.
            counts: examples of each class.
            level: coverage of the limits.
            generator: random numbers for the draws.
            at: π; that of the sample by default.
        """
        prevalence, own = self.sample.prevalence if at is None else at, self.positive
        mix, mixes = prevalence.population, prevalence.sample(_DRAWS, generator)
        values = formulas(*against_rest(counts.shares, mix, own), mix[[own]])
        draws = formulas(*_drawn_against_rest(counts, mixes, own, generator), mixes[:, [own]])
        found = {}
        for name, value in values.items():
            low, high = np.quantile(draws[name], [(1 - level) / 2, 1 - (1 - level) / 2], axis=0)
            found[name] = (value, np.fmin(low, value), np.fmax(high, value))
        return found

    def _counted(self, place: NDArray[np.int64], places: int, columns: Callable[[Array], Array]) -> Counts:
        """Sum the votes of each class by group and place `(g, places)`, then by `columns` `(g, c)`, then over the groups."""
        group = 0 if self.groups is None else self.groups
        groups, sample = int(np.max(group)) + 1, self.sample
        size, found, worth = groups * places, [], []
        for c, total in enumerate(sample.totals):
            own = (group * places + place)[sample.labels == c]
            votes = np.bincount(own, None if sample.votes is None else sample.votes[sample.labels == c], size)
            called = columns(votes.astype(np.float64).reshape(groups, places))
            found.append(called.sum(0))
            sizes = votes.reshape(groups, places).sum(1)
            worth.append(np.full(called.shape[1], total) if self.groups is None else _worth(called, sizes))
        return Counts(np.stack(found, 1), sample.totals, np.stack(worth, 1))


@dataclass(frozen=True)
class Counts:
    """Counts of examples, a column per class and a row per threshold or bin.

    Attributes:
        found: the counts `(c, k)`.
        totals: the number of examples `(k,)`.
        worth: the effective number of independent examples `(c, k)`; the totals if rows are independent.
    """

    found: Array
    totals: Array
    worth: Array

    @property
    def shares(self) -> Array:
        return self.found / self.totals


def scores(
    log_probs: Predictions,
    target: Numbers,
    prevalence: Mix | None,
    positive: int | None,
    purpose: str,
    groups: Numbers | None = None,
    ignore_index: int = IGNORED,
) -> Scores:
    """Check predictions and labels, and return the scores of one class against the rest.

    The arguments are those of `evaluate`; `prevalence` may be None if there are two classes and `purpose`, text for an error
    message, does not depend on it; `positive` is the class, and None means 1 of two.
    """
    sample = labelled_sample(log_probs, target, prevalence, groups, ignore_index)
    chosen, classes = positive_class(positive, sample.num_classes), sample.num_classes
    if prevalence is None and classes > 2:
        remedy = "it depends on the mix of the others; give K frequencies"
        raise ValueError(
            f"Expected a prevalence for {purpose} of one class against {classes - 1} others, but got none: {remedy}."
        )
    sample.require_every_class(purpose)
    return Scores(sample, chosen)


def against_rest(rates: Array, mix: Array, positive: int) -> tuple[Array, Array]:
    """Return rates of the positive class and of the rest `(c,)`, from rates by class `(c, k)` and a mix `(k,)`."""
    others = np.delete(mix, positive)
    return rates[:, positive], np.delete(rates, positive, 1) @ (others / others.sum())


def _drawn_against_rest(counts: Counts, mixes: Array, positive: int, generator: Any) -> tuple[Array, Array]:
    """Draw the fractions of the positive class and of the rest `(draws, c)`, with a mix for each draw `(draws, k)`.

    Each is Beta(x + ½, n − x + ½), Jeffreys' posterior, with n the effective number of examples. One class is drawn at a time,
    to bound memory.
    """
    others = np.delete(mixes, positive, 1).sum(1, keepdims=True)  # not 1 − π, which can be 0
    weight = counts.worth / counts.totals
    yes, no = weight * counts.found, weight * (counts.totals - counts.found).clip(0)
    own, rest = np.empty(0), np.zeros((len(mixes), len(weight)))
    for c in range(weight.shape[1]):
        rate = generator.beta(yes[:, c] + 0.5, no[:, c] + 0.5, (len(mixes), len(weight)))
        if c == positive:
            own = rate
        else:
            rest += rate * (mixes[:, [c]] / others)
    return own, rest


def _worth(called: Array, sizes: Array) -> Array:
    """Return the effective number of independent examples for the fractions of one class `(c,)`.

    It is n/d, with d the design effect: the variance of a fraction between groups relative to a binomial one, at least 1 (Korn
    & Graubard 1998). A fraction of 0 or 1 has no variance; its effective number is that of the groups.

    Args:
        called: the number of counted examples of each group `(g, c)`.
        sizes: the number of examples of each group `(g,)`.
    """
    called, sizes = called[sizes > 0], sizes[sizes > 0]
    groups, total = len(sizes), sizes.sum()
    share = called.sum(0) / total
    variance = groups / max(groups - 1, 1) * ((called - share * sizes[:, None]) ** 2).sum(0) / total**2
    binomial = share * (1 - share) / total
    inner = (share > 0) & (share < 1) & (groups > 1)
    design = np.divide(variance, binomial, out=np.ones_like(share), where=inner)
    return np.where(inner, total / np.maximum(design, 1), groups)


def shares_of(values: Numbers | None, name: str, default: Callable[[], Array]) -> Array:
    """Return checked, increasing numbers strictly between 0 and 1; `default()` if none are given."""
    if values is None:
        return default()
    grid = np.unique(array_of(values, name).astype(np.float64))
    outside = grid[~((grid > 0) & (grid < 1))]
    if len(grid) == 0 or len(outside):
        raise ValueError(f"Expected `{name}` strictly between 0 and 1, but got {outside[:5].tolist()}: are they percentages?")
    return grid


def log_odds(table: np.ndarray, positive: int) -> Array:
    """Return `log p − log (1 − p)` of one class `(n,)`.

    It is computed from the class's own column, so that equal predictions have equal odds, and from the others if p rounds to
    1; for two classes always from both.
    """
    if table.shape[1] == 2:
        return (table[:, positive] - table[:, 1 - positive]).astype(np.float64)
    own = table[:, positive].astype(np.float64)
    with np.errstate(divide="ignore"):
        odds = own - np.log(-np.expm1(own))
    sure = np.flatnonzero(own >= 0)
    odds[sure] = -logsumexp(np.delete(table[sure].astype(np.float64), positive, 1))[:, 0]
    return odds


def positive_class(positive: int | None, classes: int) -> int:
    """Return the checked positive class; None means 1 of two."""
    if positive is None:
        if classes == 2:
            return 1
        raise ValueError(f"Expected `positive`, one of the classes 0..{classes - 1}, but got none: choose the positive class.")
    return checked_int(positive, "positive", 0, classes - 1, "number the classes from 0")
