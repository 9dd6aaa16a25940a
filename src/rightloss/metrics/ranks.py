"""How well one class is ranked above another: the area under the ROC curve, for each pair of classes.

Stage: `Sample` → A[k, c] = P(p(k|x) is higher for an x of class k than for one of class c) + ½ P(they are equal), a row per
class k. Each AUC is a weighted mean of these: that of two classes is A[1, 0]; one against the rest, at the mix π, is
Σ_c π_c/(1 − π_k) A[k, c]; the mean over pairs of ½ (A[k, c] + A[c, k]) is Hand and Till's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from .sample import Sample
from .sums import add_by_place


@dataclass(frozen=True)
class Ranking:
    """The entries in the order of one class's score.

    Attributes:
        positive: that class.
        order: entry numbers from the lowest score to the highest `(m,)`.
        run: which run of equal scores each place belongs to `(m,)`; None where no two are equal.
        sizes: how long each run is.
    """

    positive: int
    order: Int64[Tensor, " m"]
    run: Int64[Tensor, " m"] | None
    sizes: Int64[Tensor, " r"] | None

    def below(self, mass: Float64[Tensor, "m b"]) -> Float64[Tensor, "m b"]:
        """The mass at lower scores plus half of that at the same score, for each place."""
        reached = mass.cumsum(0)
        if self.run is None:
            return reached.sub_(mass, alpha=0.5)
        assert self.sizes is not None
        at_end = reached[self.sizes.cumsum(0) - 1]
        before = torch.cat([torch.zeros_like(at_end[:1]), at_end[:-1]])
        return ((at_end + before) / 2)[self.run]


def rank(sample: Sample, positive: int) -> Ranking:
    """Ranks by p(positive|x); for two classes by its log-odds, which tell apart what rounds to a probability of 1."""
    score = sample.log_probs[:, positive]
    if sample.num_classes == 2:
        score = score - sample.log_probs[:, 1 - positive]
    ordered, order = torch.sort(sample.per_entry(score))
    if bool((ordered[1:] != ordered[:-1]).all()):
        return Ranking(positive, order, None, None)
    _, run, sizes = torch.unique_consecutive(ordered, return_inverse=True, return_counts=True)
    return Ranking(positive, order, run, sizes)


def areas(sample: Sample, rankings: list[Ranking], counts: Float64[Tensor, "m b"] | None = None) -> Float64[Tensor, "k k b"]:
    """A[k, c] for each of b resamples in which entry i occurs `counts[i]` times. The diagonal is ½; for two classes both
    entries are the same number."""
    k = sample.num_classes
    resamples = 1 if counts is None else counts.shape[1]
    result = torch.full((k, k, resamples), 0.5, dtype=torch.float64)
    for ranking in rankings:
        labels = sample.labels[ranking.order]
        mass = _mass(sample, counts, ranking.order)
        totals = add_by_place(torch.zeros(k, resamples, dtype=torch.float64), labels, weights=mass)
        positives = mass * (labels == ranking.positive)[:, None]
        above = totals[ranking.positive] - ranking.below(positives)
        won = add_by_place(torch.zeros(k, resamples, dtype=torch.float64), labels, weights=above.mul_(mass))
        result[ranking.positive] = won / (totals * totals[ranking.positive])
        result[ranking.positive, ranking.positive] = 0.5
    if k == 2:
        result[0, 1] = result[1, 0]
    return result


def contributions(
    sample: Sample, rankings: list[Ranking], gradient: Float64[Tensor, "k k"], area: Float64[Tensor, "k k"]
) -> Float64[Tensor, " m"]:
    """What each entry adds to a figure with that gradient (its placement value), before division by its class's total."""
    result = torch.zeros(len(sample.labels), dtype=torch.float64)
    totals = sample.totals
    if sample.num_classes == 2:  # one number stands in both places
        gradient = torch.tensor([[0.0, 0.0], [float(gradient[1, 0] + gradient[0, 1]), 0.0]], dtype=torch.float64)
    for ranking in rankings:
        k = ranking.positive
        labels = sample.labels[ranking.order]
        mass = _mass(sample, None, ranking.order)
        is_positive = labels == k
        above = 1 - ranking.below(mass * is_positive[:, None])[:, 0] / totals[k]
        below = ranking.below(mass * (gradient[k] / totals)[labels][:, None] * ~is_positive[:, None])[:, 0]
        as_negative = gradient[k][labels] * (above - area[k][labels])
        as_positive = below - (gradient[k] * area[k]).sum() + gradient[k, k] * area[k, k]
        result[ranking.order] += torch.where(is_positive, as_positive, as_negative)
    return result if sample.votes is None else result * sample.votes


def _mass(sample: Sample, counts: Tensor | None, order: Tensor) -> Tensor:
    mass = torch.ones(len(order), 1, dtype=torch.float64) if counts is None else counts[order]
    return mass if sample.votes is None else mass * sample.votes[order][:, None]
