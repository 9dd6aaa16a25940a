"""Confidence intervals: sampling design, resamples, standard errors, and the formulas of BCa and the delta method.

Stage: `Sample` → `Design` (clusters, strata) → resamples, or a standard error from influences → low and high.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from .sample import Sample

_ENTRIES = 1 << 21  # numbers of the table of counts drawn at a time


class ConfidenceLimits(NamedTuple):
    """An interval, NaN if there is none, and the reason why there is none or why it is not reliable."""

    low: float
    high: float
    reason: str = ""


@dataclass(frozen=True)
class Design:
    """A sampling design: clusters are drawn within strata, and a cluster is a row, or all rows of a group.

    Attributes:
        clusters: the cluster of each entry `(m,)`; None if each entry is one of its own.
        strata: the stratum of each cluster `(g,)`. A resample has as many clusters of each stratum as the sample.
    """

    clusters: Int64[Tensor, " m"] | None
    strata: Int64[Tensor, " g"]

    def clusters_by_class(self, labels: Int64[Tensor, " m"], num_classes: int) -> Int64[Tensor, " k"]:
        """Return the number of clusters in which each class occurs."""
        if self.clusters is None:
            return torch.bincount(labels, minlength=num_classes)
        met = torch.zeros(len(self.strata) * num_classes, dtype=torch.bool)
        met[self.clusters * num_classes + labels] = True
        return met.view(-1, num_classes).sum(0)


class Influence(NamedTuple):
    """A summary of the influence of each example on a figure.

    Attributes:
        error: the figure's standard error.
        acceleration: a sixth of the skewness, BCa's a.
        effective_size: (Σ δ²)² / Σ δ⁴ over examples, or groups: n if all influences are equal.
    """

    error: float
    acceleration: float
    effective_size: float


class InfluenceSum:
    """Sums of the influences of all entries on a figure, accumulated in blocks.

    Influences are distances from the class's mean, so those of a stratum sum to 0.
    """

    def __init__(self, design: Design) -> None:
        self.design = design
        size = int(design.strata.max()) + 1 if design.clusters is None else len(design.strata)
        self.sums = torch.zeros(size, dtype=torch.float64)  # sums of squares by stratum, or of influences by cluster
        self.cubes = self.fourths = 0.0
        self.unit = 0.0  # the largest influence so far, the unit of all sums, because powers could overflow

    def add(self, where: Int64[Tensor, " m"], contributions: Float64[Tensor, " m"], times: Tensor | None = None) -> None:
        """Add influences, of entries of these clusters, or without clusters of these strata, each as often as in `times`."""
        self._raise_unit(float(contributions.abs().max()))
        if self.unit == 0:
            return
        contributions = contributions / self.unit
        what = contributions if times is None else contributions * times
        if self.design.clusters is None:
            what, square = what * contributions, contributions.square()
            self.cubes += float(what @ contributions)
            self.fourths += float(what @ square)
        self.sums += torch.bincount(where, weights=what, minlength=len(self.sums))

    def _raise_unit(self, largest: float) -> None:
        if not largest <= self.unit:
            ratio, self.unit = self.unit / largest, largest
            self.sums *= ratio if self.design.clusters is not None else ratio**2
            self.cubes *= ratio**3
            self.fourths *= ratio**4

    def summary(self) -> Influence:
        """Return the standard error, the acceleration and the effective sample size."""
        strata = self.design.strata
        sizes = torch.bincount(strata).double()
        squares, cubes, fourths = self.sums, self.cubes, self.fourths
        if self.design.clusters is not None:
            means = torch.bincount(strata, weights=self.sums) / sizes.clamp_min(1)
            centred = self.sums - means[strata]
            squares = torch.bincount(strata, weights=centred.square())
            cubes, fourths = float((centred**3).sum()), float((centred**4).sum())
        # n/(n − 1) within each stratum; a stratum of one has no variance
        variance = float(((sizes / (sizes - 1).clamp_min(1)) * squares).sum())
        total = float(squares.sum())
        if total == 0 or fourths == 0:
            return Influence(0.0, 0.0, float(len(strata)))
        return Influence(self.unit * math.sqrt(variance), cubes / (6 * total**1.5), total**2 / fourths)


def design_of(sample: Sample) -> Design:
    """Return clusters and strata: rows or groups are drawn, and classes are strata.

    A group with several classes belongs to the rarest of them, so that every class occurs in a resample. Strata with a single
    group, which could not vary, are merged. Votes are not strata, because rows were not sampled by votes.
    """
    voted = sample.votes is not None and not sample.weighted
    if not voted and sample.groups is None:
        return Design(None, sample.labels)
    rows = torch.arange(len(sample.labels)) if sample.rows is None else sample.rows
    named = rows if sample.groups is None else sample.groups[rows]
    _, clusters = torch.unique(named, return_inverse=True)
    size = int(clusters.max()) + 1
    if voted:
        return Design(clusters, torch.zeros(size, dtype=torch.int64))
    rarity = torch.argsort(torch.argsort(sample.totals, stable=True))  # 0 for the rarest class
    rarest = torch.full((size,), sample.num_classes).scatter_reduce(0, clusters, rarity[sample.labels], "amin")
    lonely = torch.bincount(rarest, minlength=sample.num_classes)[rarest] < 2
    return Design(clusters, torch.where(lonely, sample.num_classes, rarest))


def resamples(design: Design, draws: int, numbers: int, generator: torch.Generator) -> Iterator[Float64[Tensor, "m b"]]:
    """Yield the counts of each entry in `draws` resamples, as many at a time as memory allows.

    A resample needs memory for its counts and for `numbers` more numbers.
    """
    strata = [torch.nonzero(design.strata == stratum).flatten() for stratum in design.strata.unique().tolist()]
    entries = len(design.strata) if design.clusters is None else len(design.clusters)
    step = max(1, min(draws, _ENTRIES // max(entries, numbers)))
    for start in range(0, draws, step):
        b = min(step, draws - start)
        counts = torch.empty(len(design.strata), b, dtype=torch.float64)
        for members in strata:
            n = len(members)
            drawn = torch.randint(n, (n, b), generator=generator).mul_(b).add_(torch.arange(b))
            counts[members] = torch.bincount(drawn.flatten(), minlength=n * b).view(n, b).double()
        yield counts if design.clusters is None else counts[design.clusters]


def percentiles(draws: Float64[Tensor, " b"], level: float) -> tuple[float, float]:
    """Return the central interval of draws."""
    return _quantiles(draws, (1 - level) / 2, (1 + level) / 2)


def bca(draws: Float64[Tensor, " b"], value: float, acceleration: float, level: float) -> tuple[float, float]:
    """Return Efron's bias-corrected and accelerated percentile interval."""
    bias = _bias(draws, value)
    shares = []
    for tail in ((1 - level) / 2, (1 + level) / 2):
        z = bias + _normal_quantile(tail)
        slope = 1 - acceleration * z
        shares.append(_normal_cdf(bias + z / slope) if slope > 0 else tail)
    return _quantiles(draws, *shares)


def bca_weighted(
    draws: Float64[Tensor, " b"], moved: Float64[Tensor, " b"], value: float, acceleration: float, level: float
) -> tuple[float, float]:
    """Return the BCa interval of resamples `moved` by another random quantity, which is not corrected.

    Each resample is weighted by the density of BCa's confidence distribution to the bootstrap's, φ(z/(1 + az) − z₀) /
    ((1 + az)² φ(z + z₀)) at z = Φ⁻¹(its rank) − z₀, so that weighted percentiles of `draws` would be those of `bca`.
    """
    b, bias = len(draws), _bias(draws, value)
    _, run, sizes = torch.unique(draws, return_inverse=True, return_counts=True)
    rank = ((sizes.cumsum(0) - 0.5 * sizes) / b)[run]
    z = torch.special.ndtri(rank) - bias
    stretch = (1 + acceleration * z).clamp_min(0.1)
    log_weight = ((z + bias).square() - (z / stretch - bias).square()) / 2 - 2 * stretch.log()
    ordered, order = torch.sort(moved)
    share = torch.softmax(log_weight, 0)[order].cumsum(0)
    ends = torch.searchsorted(share, torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64))
    low, high = ordered[ends.clamp_max(b - 1)].tolist()
    return low, high


def normal_interval(value: float, error: float, level: float, bounds: tuple[float, float]) -> tuple[float, float]:
    """Return value ± z·error, on the scale of `delta_draws`."""
    z = _normal_quantile((1 + level) / 2)
    noise = torch.tensor([-z, z], dtype=torch.float64)
    ends = delta_draws(torch.full((2,), value, dtype=torch.float64), noise, value, error, bounds)
    return float(ends.min()), float(ends.max())


def delta_draws(
    draws: Float64[Tensor, " b"], noise: Tensor, value: float, error: float, bounds: tuple[float, float]
) -> Float64[Tensor, " b"]:
    """Add normal noise to draws of a figure, on a scale without the figure's bounds.

    The scale is log-odds between two bounds, and the logarithm of the distance from one bound; a value at a bound is not
    transformed.
    """
    low, high = bounds
    if not low < value < high or bounds == (-math.inf, math.inf):
        return draws + error * noise
    if high == math.inf:
        return low + (draws - low) * torch.exp(error / (value - low) * noise)
    if low == -math.inf:
        return high - (high - draws) * torch.exp(error / (high - value) * noise)
    share = (draws - low) / (high - low)
    slope = (high - low) / ((value - low) * (high - value))
    return low + (high - low) * torch.sigmoid(torch.logit(share) + slope * error * noise)


def calibration_interval(gaps: Tensor, noise: Tensor, error: float, level: float) -> tuple[float, float]:
    """Return an interval for Σ|γ_e|, where `gaps[e]` estimates γ_e with standard error `noise[e]`.

    Noise makes Σ|gaps| positive: E|g + σz| exceeds |g|. So that excess is subtracted, and the interval includes 0 if noise
    would give such a sum in more than 1 − level of all samples.

    Args:
        gaps: g.
        noise: σ, for a correct model.
        error: the sum's own standard error; if it is larger, as for correlated rows of a patient, σ is raised to match it.
        level: coverage.
    """
    value, total = float(gaps.abs().sum()), math.sqrt(float(noise.square().sum()))
    z = _normal_quantile((1 + level) / 2)
    if error <= 1e-12 or total <= 1e-12:  # the gaps of a constant predictor are exact; one that is certain has no noise
        return max(value - z * error, 0.0), value + z * error
    noise, error = noise * max(1.0, error / total), max(error, total)
    ratio = gaps.abs() / noise.clamp_min(1e-300)
    density = torch.exp(-ratio.square() / 2) * math.sqrt(2 / math.pi)
    excess = float((noise * density - 2 * gaps.abs() * torch.special.ndtr(-ratio)).sum())
    alone = math.sqrt(2 / math.pi) * float(noise.sum()) + _normal_quantile(level) * math.sqrt(1 - 2 / math.pi) * error
    centre = max(value - excess, 0.0)
    return 0.0 if value <= alone else max(centre - z * error, 0.0), centre + z * error


def unseen_share(n: Tensor, level: float) -> Float64[Tensor, " *s"]:
    """Return Wilson's upper limit of the frequency of an event that occurs 0 times of n, z²/(n + z²)."""
    z = _normal_quantile((1 + level) / 2)
    return z * z / (n.double() + z * z)


def _bias(draws: Tensor, value: float) -> float:
    """Return BCa's z₀, from the rank of the value among the draws."""
    b = len(draws)
    below = float(((draws < value).double().sum() + 0.5 * (draws == value).double().sum()) / b)
    return _normal_quantile(min(max(below, 0.5 / b), 1 - 0.5 / b))


def _quantiles(draws: Tensor, low: float, high: float) -> tuple[float, float]:
    ends = torch.quantile(draws, torch.tensor([low, high], dtype=torch.float64))
    return float(ends[0]), float(ends[1])


def _normal_quantile(p: float) -> float:
    return float(torch.special.ndtri(torch.tensor(p, dtype=torch.float64)))


def _normal_cdf(z: float) -> float:
    return float(torch.special.ndtr(torch.tensor(z, dtype=torch.float64)))
