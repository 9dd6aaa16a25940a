"""Conformal prediction sets: sets of classes with guaranteed coverage, in another population than that of the calibration.

Stage: labelled predictions, π, a level → `ConformalSets`; log_probs `(n, k)` → bool `(n, k)`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..arrays import as_given, checked_choice, checked_level, fields_as_given, log_prob_table, random_generator, row_blocks
from .sample import Mix, Numbers, Predictions, labelled_sample, refuse_findings

if TYPE_CHECKING:
    from jaxtyping import Float64

_ENTRIES = 1 << 22  # numbers of the table per block


@dataclass(frozen=True)
class ConformalSets:
    """Label-shift conformal sets (Podkopaev & Ramdas 2021, by the weighted quantiles of Tibshirani et al. 2019).

    Class y is in the set of x if its score `s(x, y)` is at most q_y, the smallest q with

        Σ_i w_i 1{s(x_i, y_i) ≤ q}  ≥  level · (1 + w_y),      w_i = π_{y_i} / n_{y_i},   w_y = π_y / n_y,

    over the calibration sample: n_c examples of class c, in any mix. w_y is the weight of the new case, if its class is y. Then
    the set contains the true class for at least a fraction `level` of the population, on average over calibration samples, for
    any quality of the predictions. With `per_class` the quantile is taken within class y, so that `level` holds for each class,
    and therefore at any prevalence; the sets are larger.

    Make one with `ConformalSets.fit`.

    Attributes:
        thresholds: q `(k,)`; ∞ for a class that is in every set, because it had too few examples, or because the true class had
            probability 0 more often than the level allows ("lac").
        level: the guaranteed coverage.
        score: "lac", −log p(y|x), gives the smallest sets, some of them empty; "aps", the probability of the classes at
            least as likely as y, spreads the coverage over easy and hard cases.
        per_class: whether the level holds in every class.
        randomised: whether "aps" uses only a random part of the probability of y and of classes tied with y, so that the
            coverage is not above the level. The part is u ~ U(0, 1): a hash of the row, so that the score is a fixed function
            of x and y; or drawn, see `drawn`.
        drawn: whether u was drawn from a generator, so that `predict` needs one as well. This is exact even if many rows are
            equal, as for a small forest.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import ConformalSets
        >>> y = np.arange(200) % 2
        >>> x = np.random.default_rng(0).normal(size=200) + y
        >>> log_probs = -np.logaddexp(0, np.stack([2 * x, -2 * x], 1))
        >>> sets = ConformalSets.fit(log_probs[:100], y[:100], prevalence=0.1, level=0.9)
        >>> sets.predict(log_probs[100:103]).tolist()
        [[True, False], [True, True], [True, True]]
    """

    thresholds: Float64[np.ndarray, " k"]
    level: float
    score: Literal["lac", "aps"]
    per_class: bool
    randomised: bool
    drawn: bool = False

    @classmethod
    def fit(
        cls,
        log_probs: Predictions,
        labels: Numbers,
        prevalence: Mix | None = None,
        level: float = 0.9,
        score: Literal["lac", "aps"] = "lac",
        per_class: bool = False,
        randomised: bool = False,
        generator: Any = None,
    ) -> ConformalSets:
        """Fit the thresholds to a calibration sample that the model was not trained on.

        Warn if a class is in every set, and say why.

        Args:
            log_probs: predictions `(n, k)`, as log-probabilities.
            labels: int labels `(n,)` or soft votes `(n, k)`, in any mix of classes; every class must occur.
            prevalence: π of the population: a `Prevalence`, an estimate of one, K frequencies, or for two classes that of class
                1. Coverage is linear in π, so the mean of an uncertain π is used, and the level holds on average over π. For a
                level at every π use `per_class`, which needs no prevalence.
            level: the fraction of people with their class in the set.
            score: "lac" or "aps".
            per_class: whether the level must hold in every class.
            randomised: for "aps".
            generator: for `randomised`: a `numpy.random.Generator`, a `torch.Generator` or a seed to draw the random parts from, here
                and in `predict`.
        """
        level = checked_level(level)
        generator = None if generator is None else random_generator(generator)
        _check_choices(score, per_class, randomised, prevalence)
        refuse_findings(prevalence)
        classes = log_prob_table(log_probs).shape[1]
        sample = labelled_sample(log_probs, labels, np.full(classes, 1 / classes) if prevalence is None else prevalence)
        sample.require_every_class("conformal sets")
        table = _scores(sample.log_probs, score, _uniform(sample.log_probs, randomised, generator))
        own = sample.per_entry(table)[np.arange(len(sample.labels)), sample.labels]
        mix = sample.prevalence.population
        share = mix if per_class else np.ones_like(mix)  # rounding error of the weights
        # rounding counts as reached
        mass = level * (share + mix / sample.totals) * (1 - 1e-12)
        thresholds = np.empty_like(mass)
        for c in range(classes):
            among = sample.labels == c if per_class else slice(None)
            thresholds[c] = _quantile(own[among], sample.population_weights[among], mass[c])
        unbounded, few = np.isinf(thresholds), mass > share
        _warn_of(unbounded & few, f"Too few calibration examples for a level of {level:g}", "calibrate on more of them")
        why = f"The predictions give probability 0 to the true class of too many examples for a level of {level:g}"
        _warn_of(unbounded & ~few, why, "use predictions that rule out less")
        return fields_as_given(cls(thresholds, level, score, per_class, randomised, generator is not None), log_probs)

    def predict(self, log_probs: Predictions, generator: Any = None) -> Any:
        """Return which classes are in the set of each row: bool `(n, k)`, an array or a tensor like `log_probs`.

        Args:
            log_probs: predictions of the same model, with the precision and prevalence of the calibration.
            generator: for randomised sets, if `fit` was given one: another one, or the same.
        """
        table = log_prob_table(log_probs, len(self.thresholds))
        generator = None if generator is None else random_generator(generator)
        self._check_same_way(generator)
        found = np.empty(table.shape, dtype=bool)
        for start, block in row_blocks(table, max(1, _ENTRIES // table.shape[1])):
            scores = _scores(block, self.score, _uniform(block, self.randomised, generator))
            found[start : start + len(block)] = scores <= np.asarray(self.thresholds)
        return as_given(found, log_probs)

    def _check_same_way(self, generator: np.random.Generator | None) -> None:
        if self.randomised and self.drawn != (generator is not None):
            expected, came = ("a `generator`, as in", "none") if self.drawn else ("no `generator`, since none came to", "one")
            raise ValueError(
                f"Expected {expected} `fit`, but got {came}: use the same kind of random parts in both, "
                "or the level does not hold."
            )


def _scores(log_probs: np.ndarray, score: str, uniform: np.ndarray | None) -> Float64[np.ndarray, "n k"]:
    """Return s(x, y) of every class."""
    table = log_probs.astype(np.float64)
    if score == "lac":
        return -table
    order = np.argsort(-table, axis=1, kind="stable")
    ordered = np.take_along_axis(table, order, 1)
    total = np.exp(ordered).cumsum(1)
    ends = np.pad(ordered[:, 1:] != ordered[:, :-1], ((0, 0), (0, 1)), constant_values=True)
    upto = np.minimum.accumulate(np.where(ends, total, np.inf)[:, ::-1], 1)[:, ::-1]  # the end of each tie
    if uniform is not None:
        before = np.pad(np.maximum.accumulate(np.where(ends, total, 0.0), 1)[:, :-1], ((0, 0), (1, 0)))
        upto = upto - (upto - before) * uniform[:, None]
    found = np.empty_like(table)
    np.put_along_axis(found, order, upto.round(12), 1)  # rounded, so that sums over all classes, which are 1, are equal
    return found


def _uniform(table: np.ndarray, randomised: bool, generator: np.random.Generator | None) -> Float64[np.ndarray, " n"] | None:
    """Return one number per row, the same for all classes: a hash of the row, or drawn."""
    if not randomised:
        return None
    if generator is not None:
        return generator.random(len(table))
    state = np.zeros(len(table), dtype=np.uint64)
    for column in (table.astype(np.float64) + 0.0).T:  # −0 is 0
        state = _scrambled(state ^ np.ascontiguousarray(column).view(np.uint64))
    return (state >> np.uint64(11)) * 2.0**-53


def _scrambled(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply SplitMix64's step (Steele, Lea & Flood 2014): every bit depends on every bit."""
    z = state + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _quantile(scores: np.ndarray, weights: np.ndarray, mass: float) -> float:
    """Return the smallest score with at least `mass` of the weights at or below it; ∞ if there is none."""
    order = np.argsort(scores, kind="stable")
    reached = weights[order].cumsum() >= mass
    return float(scores[order][reached.argmax()]) if reached[-1] else np.inf


def _warn_of(classes: np.ndarray, reason: str, remedy: str) -> None:
    listed = np.flatnonzero(classes).tolist()
    if listed:
        warnings.warn(f"{reason}: class(es) {listed} are in every set. Lower the level, or {remedy}.", stacklevel=3)


def _check_choices(score: str, per_class: bool, randomised: bool, prevalence: Mix | None) -> None:
    checked_choice(score, "score", ("lac", "aps"))
    if randomised and score != "aps":
        raise ValueError(f'Expected score="aps" for randomised sets, but got {score!r}: "lac" has nothing to randomise.')
    if prevalence is None and not per_class:
        raise ValueError(
            "Expected `prevalence`, the population in which the sets will be used, but got none: give it, or use "
            "per_class=True, with a level that holds at any prevalence."
        )
