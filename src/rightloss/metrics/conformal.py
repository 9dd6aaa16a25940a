"""Sets of classes that hold the true one as often as promised, in a population other than the one calibrated on.

Stage: labelled predictions, π, a level → `ConformalSets`; log_probs `(n, k)` → bool `(n, k)`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from ..tables import as_given, log_prob_table, row_blocks
from .class_rates import level_of
from .sample import labelled_sample

__all__ = ["ConformalSets"]

_ENTRIES = 1 << 22  # of the table, looked at in one go


@dataclass(frozen=True)
class ConformalSets:
    """Label-shift conformal sets (Podkopaev & Ramdas 2021, by the weighted quantiles of Tibshirani et al. 2019).

    Class y is in the set of x where its score `s(x, y)` is at most q_y, the smallest q with

        Σ_i w_i 1{s(x_i, y_i) ≤ q}  ≥  level · (1 + w_y),      w_i = π_{y_i} / n_{y_i},   w_y = π_y / n_y,

    over the calibration sample: n_c examples of class c, whatever their mix. w_y is the weight of the new case itself, were
    y its class. Then the true class is in the set of at least `level` of the population's people, on average over
    calibration samples, however good the predictions are. With `per_class` the quantile is taken within class y, so that
    `level` holds for each class, and hence at any prevalence; the sets are larger.

    Made by `ConformalSets.fit`.

    Attributes:
        thresholds: q `(k,)`; ∞ for a class with too few examples, which is then in every set.
        level: the coverage promised.
        score: "lac", −log p(y|x), gives the smallest sets, some of them empty; "aps", the probability of the classes at
            least as likely as y, spreads the coverage over easy and hard cases.
        per_class: whether the level holds in every class.
        randomised: whether only a random part of y's own probability counts for "aps", which takes away its excess.
    """

    thresholds: Float64[Tensor, " k"]
    level: float
    score: Literal["lac", "aps"]
    per_class: bool
    randomised: bool

    @classmethod
    def fit(
        cls,
        log_probs: Any,
        labels: Any,
        prevalence: Any = None,
        level: Any = 0.9,
        score: Any = "lac",
        per_class: bool = False,
        randomised: bool = False,
        generator: torch.Generator | None = None,
    ) -> ConformalSets:
        """Thresholds from a calibration sample that the model was not trained on.

        Warns where a class has too few examples for the level: it is then in every set.

        Args:
            log_probs: predictions `(n, k)`, as log-probabilities.
            labels: int labels `(n,)` or soft votes `(n, k)`, in any mix of classes; every class must occur.
            prevalence: π, where the sets will be used: a `Prevalence`, K frequencies, or for two classes that of class 1.
                Coverage is linear in π, so where π is uncertain its mean is taken and the level holds on average over
                π; for a level at every π take `per_class`, which needs no prevalence.
            level: share of people whose set is to hold their class.
            score: "lac" or "aps".
            per_class: whether the level is to hold in every class.
            randomised: for "aps".
            generator: for `randomised`; of a fixed seed by default.
        """
        level = level_of(level)
        _check_choices(score, per_class, randomised, prevalence)
        classes = log_prob_table(log_probs).shape[1]
        sample = labelled_sample(log_probs, labels, torch.full((classes,), 1 / classes) if prevalence is None else prevalence)
        sample.require_every_class("conformal sets")
        table = _scores(sample.log_probs, score, _uniform(sample.log_probs, randomised, generator))
        own = sample.per_entry(table).gather(1, sample.labels[:, None]).squeeze(1)
        mix = sample.prevalence.population.to(own.device)
        thresholds = []
        for c in range(classes):
            among = sample.labels == c if per_class else slice(None)
            share = mix[c] if per_class else 1.0  # of the weights
            weight = mix[c] / sample.totals[c]
            thresholds.append(_quantile(own[among], sample.population_weights[among], level * (share + weight)))
        found = cls(torch.stack(thresholds).cpu(), level, score, per_class, randomised)
        _warn_if_unbounded(found.thresholds, level)
        return found

    def predict(self, log_probs: Any, generator: torch.Generator | None = None) -> Any:
        """Which classes are in the set of each row: bool `(n, k)`, an array or a tensor as `log_probs` is.

        Args:
            log_probs: predictions of the same model, at the same prevalence as those calibrated on.
            generator: for randomised sets; of a fixed seed, other than that of `fit`, by default.
        """
        table = log_prob_table(log_probs, len(self.thresholds)).detach()
        stream = torch.Generator().manual_seed(1) if generator is None else generator
        thresholds = self.thresholds.to(table.device)
        found: Bool[Tensor, "n k"] = torch.empty(table.shape, dtype=torch.bool, device=table.device)
        for start, block in row_blocks(table, max(1, _ENTRIES // table.shape[1])):
            scores = _scores(block, self.score, _uniform(block, self.randomised, stream))
            found[start : start + len(block)] = scores <= thresholds
        return as_given(found, log_probs)


def _scores(log_probs: Tensor, score: str, uniform: Tensor | None) -> Float64[Tensor, "n k"]:
    """s(x, y) of every class."""
    table = log_probs.double()
    if score == "lac":
        return -table
    ordered, order = table.sort(stable=True, dim=1, descending=True)
    p = ordered.exp()
    mass = p.cumsum(1)
    if uniform is not None:
        mass = mass - p * uniform[:, None]
    # rounded, so that the sums of all classes, which are 1, tie
    return torch.empty_like(mass).scatter_(1, order, mass.round(decimals=12))


def _uniform(table: Tensor, randomised: bool, generator: torch.Generator | None) -> Float64[Tensor, " n"] | None:
    """A number per row: the same for all of its classes."""
    if not randomised:
        return None
    stream = torch.Generator().manual_seed(0) if generator is None else generator
    return torch.rand(len(table), dtype=torch.float64, generator=stream, device=stream.device).to(table.device)


def _quantile(scores: Tensor, weights: Tensor, mass: Tensor) -> Float64[Tensor, ""]:
    """The smallest score up to which there is `mass` of the weights; ∞ where there is none. Rounding counts as reached."""
    ordered, order = scores.sort()
    reached = weights[order].cumsum(0) >= mass * (1 - 1e-12)
    return ordered[reached.to(torch.uint8).argmax()] if bool(reached[-1]) else ordered.new_tensor(torch.inf)


def _warn_if_unbounded(thresholds: Tensor, level: float) -> None:
    unbounded = torch.nonzero(thresholds.isinf()).flatten().tolist()
    if unbounded:
        warnings.warn(
            f"Too few calibration examples for a level of {level:g}: class(es) {unbounded} are in every set. "
            "Calibrate on more of them, or lower the level.",
            stacklevel=3,
        )


def _check_choices(score: Any, per_class: bool, randomised: bool, prevalence: Any) -> None:
    if score not in ("lac", "aps"):
        raise ValueError(f'Expected `score` to be "lac" or "aps", but got {score!r}: choose one of the two.')
    if randomised and score != "aps":
        raise ValueError(f'Expected score="aps" for randomised sets, but got {score!r}: "lac" has nothing to randomise.')
    if prevalence is None and not per_class:
        raise ValueError(
            "Expected `prevalence`, the population in which the sets will be used, but got none: "
            "give it, or take per_class=True, whose level holds at any."
        )
