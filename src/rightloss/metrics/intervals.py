"""Confidence intervals: sampling design, resamples, standard errors, and the formulas of BCa and the delta method.

Stage: `Sample` → `Design` (clusters, strata) → resamples, or a standard error from influences → low and high.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import expit, logit, ndtr, ndtri, softmax

from .sample import Sample

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

_ENTRIES = 1 << 19  # numbers of the table of counts drawn at a time


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

    clusters: Int64[np.ndarray, " m"] | None
    strata: Int64[np.ndarray, " g"]

    @cached_property
    def sizes(self) -> Int64[np.ndarray, " s"]:
        """The number of clusters of each stratum."""
        return np.bincount(self.strata)

    def clusters_by_class(self, labels: Int64[np.ndarray, " m"], num_classes: int) -> Int64[np.ndarray, " k"]:
        """Return the number of clusters in which each class occurs."""
        if self.clusters is None:
            return np.bincount(labels, minlength=num_classes)
        met = np.zeros((len(self.strata), num_classes), bool)
        met[self.clusters, labels] = True
        return met.sum(0)


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
        # sums of squares by stratum, or of influences by cluster
        self.sums = np.zeros(len(design.sizes if design.clusters is None else design.strata))
        self.cubes = self.fourths = 0.0
        self.unit = 0.0  # the largest influence so far, the unit of all sums, because powers could overflow

    def add(self, entries: slice | Int64[np.ndarray, " m"], contributions: Float64[np.ndarray, " m"]) -> None:
        """Add the influences of some entries."""
        largest = float(np.abs(contributions).max())
        if largest > self.unit:
            ratio, self.unit = self.unit / largest, largest
            self.sums *= ratio if self.design.clusters is not None else ratio**2
            self.cubes, self.fourths = self.cubes * ratio**3, self.fourths * ratio**4
        if self.unit == 0:
            return
        each = contributions / self.unit
        if self.design.clusters is None:
            each, once = each * each, each
            self.cubes += float(each @ once)
            self.fourths += float(each @ each)
        where = self.design.strata if self.design.clusters is None else self.design.clusters
        self.sums += np.bincount(where[entries], each, len(self.sums))

    def summary(self) -> Influence:
        """Return the standard error, the acceleration and the effective sample size."""
        strata, sizes = self.design.strata, self.design.sizes
        squares: np.ndarray = self.sums
        cubes, fourths = self.cubes, self.fourths
        if self.design.clusters is not None:
            centred = self.sums - (np.bincount(strata, self.sums) / np.maximum(sizes, 1))[strata]
            squares = np.bincount(strata, centred**2).astype(np.float64)
            cubes, fourths = float((centred**3).sum()), float((centred**4).sum())
        # n/(n − 1) within each stratum; a stratum of one has no variance
        variance = float((sizes / np.maximum(sizes - 1, 1)) @ squares)
        total = float(squares.sum())
        if total == 0 or fourths == 0:
            return Influence(0.0, 0.0, float(len(strata)))
        return Influence(self.unit * math.sqrt(variance), cubes / (6 * total**1.5), total**2 / fourths)


def design_of(sample: Sample) -> Design:
    """Return clusters and strata: rows or groups are drawn, and classes are strata.

    A group with several classes belongs to the rarest of them, so that every class occurs in a resample. Strata with a single
    group, which could not vary, are merged. Votes are not strata, because rows were not sampled by votes.
    """
    voted, k = sample.votes is not None and not sample.weighted, sample.num_classes
    if not voted and sample.groups is None:
        return Design(None, sample.labels)
    rows = np.arange(len(sample.labels)) if sample.rows is None else sample.rows
    _, clusters = np.unique(rows if sample.groups is None else sample.groups[rows], return_inverse=True)
    size = int(clusters.max()) + 1
    if voted:
        return Design(clusters, np.zeros(size, np.int64))
    rarity = np.argsort(np.argsort(sample.totals, kind="stable"))  # 0 for the rarest class
    rarest = np.full(size, k)
    np.minimum.at(rarest, clusters, rarity[sample.labels])
    lonely = np.bincount(rarest, minlength=k)[rarest] < 2
    return Design(clusters, np.where(lonely, k, rarest))


def resamples(design: Design, draws: int, numbers: int, generator: np.random.Generator) -> Iterator[Float64[np.ndarray, "m b"]]:
    """Yield the counts of each entry in `draws` resamples, as many at a time as memory allows.

    A resample needs memory for its counts and for `numbers` more numbers. How many come at a time does not change them.
    """
    groups, order = len(design.strata), np.argsort(design.strata, kind="stable")
    _, stratum, sizes = np.unique(design.strata[order], return_inverse=True, return_counts=True)
    first, size = (sizes.cumsum() - sizes)[stratum], sizes[stratum]
    step = max(1, _ENTRIES // max(groups if design.clusters is None else len(design.clusters), numbers))
    for start in range(0, draws, step):
        b = min(step, draws - start)
        drawn = first + (generator.random((b, groups)) * size).astype(np.int64) + groups * np.arange(b)[:, None]
        counts = np.empty((groups, b))
        counts[order] = np.bincount(drawn.ravel(), minlength=b * groups).reshape(b, groups).T
        yield counts if design.clusters is None else counts[design.clusters]


def percentiles(draws: Float64[np.ndarray, " b"], level: float) -> tuple[float, float]:
    """Return the central interval of draws."""
    return _quantiles(draws, [(1 - level) / 2, (1 + level) / 2])


def bca(draws: Float64[np.ndarray, " b"], value: float, acceleration: float, level: float) -> tuple[float, float]:
    """Return Efron's bias-corrected and accelerated percentile interval."""
    bias, shares = _bias(draws, value), []
    for tail in ((1 - level) / 2, (1 + level) / 2):
        z = bias + ndtri(tail)
        slope = 1 - acceleration * z
        shares.append(float(ndtr(bias + z / slope)) if slope > 0 else tail)
    return _quantiles(draws, shares)


def bca_weighted(
    draws: Float64[np.ndarray, " b"], moved: Float64[np.ndarray, " b"], value: float, acceleration: float, level: float
) -> tuple[float, float]:
    """Return the BCa interval of resamples `moved` by another random quantity, which is not corrected.

    Each resample is weighted by the density of BCa's confidence distribution to the bootstrap's, φ(z/(1 + az) − z₀) /
    ((1 + az)² φ(z + z₀)) at z = Φ⁻¹(its rank) − z₀, so that weighted percentiles of `draws` would be those of `bca`.
    """
    b, bias = len(draws), _bias(draws, value)
    _, run, sizes = np.unique(draws, return_inverse=True, return_counts=True)
    z = ndtri(((sizes.cumsum() - 0.5 * sizes) / b)[run]) - bias
    stretch = np.maximum(1 + acceleration * z, 0.1)
    log_weight = ((z + bias) ** 2 - (z / stretch - bias) ** 2) / 2 - 2 * np.log(stretch)
    order = np.argsort(moved)
    ends = np.searchsorted(softmax(log_weight)[order].cumsum(), [(1 - level) / 2, (1 + level) / 2])
    low, high = moved[order][np.minimum(ends, b - 1)].tolist()
    return low, high


def normal_interval(value: float, error: float, level: float, bounds: tuple[float, float]) -> tuple[float, float]:
    """Return value ± z·error, on the scale of `delta_draws`."""
    z = ndtri((1 + level) / 2)
    ends = delta_draws(np.full(2, value), np.array([-z, z]), value, error, bounds)
    return float(ends.min()), float(ends.max())


def delta_draws(
    draws: Float64[np.ndarray, " b"], noise: np.ndarray, value: float, error: float, bounds: tuple[float, float]
) -> Float64[np.ndarray, " b"]:
    """Add normal noise to draws of a figure, on a scale without the figure's bounds.

    The scale is log-odds between two bounds, and the logarithm of the distance from one bound; a value at a bound is not
    transformed.
    """
    low, high = bounds
    if not low < value < high or bounds == (-math.inf, math.inf):
        return draws + error * noise
    if high == math.inf:
        return low + (draws - low) * np.exp(error / (value - low) * noise)
    if low == -math.inf:
        return high - (high - draws) * np.exp(error / (high - value) * noise)
    share = (draws - low) / (high - low)
    slope = (high - low) / ((value - low) * (high - value))
    return low + (high - low) * expit(logit(share) + slope * error * noise)


def calibration_interval(gaps: np.ndarray, noise: np.ndarray, error: float, level: float) -> tuple[float, float]:
    """Return an interval for Σ|γ_e|, where `gaps[e]` estimates γ_e with standard error `noise[e]`.

    Noise makes Σ|gaps| positive: E|g + σz| exceeds |g|. So that excess is subtracted, and the interval includes 0 if noise
    would give such a sum in more than 1 − level of all samples.

    Args:
        gaps: g.
        noise: σ, for a correct model.
        error: the sum's own standard error; if it is larger, as for correlated rows of a patient, σ is raised to match it.
        level: coverage.
    """
    sizes, total = np.abs(gaps), float(np.linalg.norm(noise))
    value, z = float(sizes.sum()), float(ndtri((1 + level) / 2))
    if error <= 1e-12 or total <= 1e-12:  # the gaps of a constant predictor are exact; one that is certain has no noise
        return max(value - z * error, 0.0), value + z * error
    noise, error = noise * max(1.0, error / total), max(error, total)
    ratio = sizes / np.maximum(noise, 1e-300)
    density = np.exp(-(ratio**2) / 2) * math.sqrt(2 / math.pi)
    excess = float((noise * density - 2 * sizes * ndtr(-ratio)).sum())
    alone = math.sqrt(2 / math.pi) * float(noise.sum()) + float(ndtri(level)) * math.sqrt(1 - 2 / math.pi) * error
    centre = max(value - excess, 0.0)
    return 0.0 if value <= alone else max(centre - z * error, 0.0), centre + z * error


def unseen_share(n: Any, level: float) -> Any:
    """Return Wilson's upper limit of the frequency of an event that occurs 0 times of n, z²/(n + z²)."""
    z = ndtri((1 + level) / 2)
    return z * z / (n + z * z)


def _bias(draws: np.ndarray, value: float) -> float:
    """Return BCa's z₀, from the rank of the value among the draws."""
    b = len(draws)
    below = ((draws < value).sum() + 0.5 * (draws == value).sum()) / b
    return float(ndtri(min(max(below, 0.5 / b), 1 - 0.5 / b)))


def _quantiles(draws: np.ndarray, shares: list[float]) -> tuple[float, float]:
    low, high = np.quantile(draws, shares).tolist()
    return low, high
