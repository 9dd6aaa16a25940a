"""The statistics that every figure depends on: means within each class, and pairwise areas under the ROC curve.

Stage: `Sample` → `MetricSpec`, fixed once on the whole sample → `Statistics`. Every figure is a smooth function of them. So a
bootstrap only recomputes them with new counts, and an analytic interval only needs derivatives.

The area under the ROC curve of a pair of classes is A[k, c] = P(p(k|x) is higher for an x of class k than for one of class c)
+ ½ P(they are equal). Each AUC is a weighted mean of these: that of two classes is A[1, 0]; one against the rest, at the mix π,
is Σ_c π_c/(1 − π_k) A[k, c]; the mean over pairs of ½ (A[k, c] + A[c, k]) is Hand and Till's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from .calibration import BLOCK, Recalibration, fit_recalibration
from .calibration_intercept import Intercepts, fit_intercepts
from .decisions import decide
from .sample import Sample

MOST_CLASSES_SHOWN = 50  # classes up to which there are figures by class


@dataclass(frozen=True)
class Ranking:
    """The entries sorted by the score of one class.

    Attributes:
        positive: that class.
        order: entry indices from the lowest score to the highest `(m,)`.
        run: the run of equal scores of each position `(m,)`; None if no two are equal.
        sizes: the length of each run.
    """

    positive: int
    order: Int64[Tensor, " m"]
    run: Int64[Tensor, " m"] | None
    sizes: Int64[Tensor, " r"] | None

    def below(self, mass: Float64[Tensor, "m b"]) -> Float64[Tensor, "m b"]:
        """Return, for each position, the mass at lower scores plus half of that at equal scores."""
        reached = mass.cumsum(0)
        if self.run is None:
            return reached.sub_(mass, alpha=0.5)
        assert self.sizes is not None
        at_end = reached[self.sizes.cumsum(0) - 1]
        before = torch.cat([torch.zeros_like(at_end[:1]), at_end[:-1]])
        return ((at_end + before) / 2)[self.run]


@dataclass(frozen=True)
class MetricSpec:
    """Settings fixed on the whole sample, and kept in every resample.

    Attributes:
        costs: true class × decision `(k, k)`.
        weights: π_c / n_c `(k,)`, the weight of an example, with n_c the effective number if examples have weights.
        rankings: the entries ranked by class: class 1 of two, or every class; none if a class has no example.
        edges: for each class with calibration bins, the inner edges of its bins, as log-probabilities.
        bins: the maximum number of bins.
        recalibration: slope and intercepts; None if there is no such fit.
        reason: why there is none.
        intercepts: shifts of the log-odds; None if there are none.
        no_intercepts: why there are none.
    """

    costs: Float64[Tensor, "k k"]
    weights: Float64[Tensor, " k"]
    rankings: tuple[Ranking, ...]
    edges: tuple[Tensor, ...]
    bins: int
    recalibration: Recalibration | None
    reason: str
    intercepts: Intercepts | None
    no_intercepts: str

    @property
    def num_classes(self) -> int:
        return self.costs.shape[0]

    @property
    def num_shown(self) -> int:
        """The number of classes with a mean prediction: the last of two or of very many, else all."""
        return self.num_classes if 2 < self.num_classes <= MOST_CLASSES_SHOWN else 1

    @property
    def num_cells(self) -> int:
        """The number of bins of all classes."""
        return len(self.edges) * self.bins

    @property
    def sizes(self) -> list[int]:
        """Return the length of each field of `ClassAverages` in an entry's vector, in order."""
        parameters = 0 if self.recalibration is None else self.num_classes
        shifts = 0 if self.intercepts is None else len(self.intercepts.classes)
        return [1, 1, self.num_shown, parameters, parameters**2, shifts, shifts, self.num_classes, *[self.num_cells] * 3]

    @property
    def size(self) -> int:
        """Return the length of an entry's vector."""
        return sum(self.sizes)

    @property
    def num_dense(self) -> int:
        """The number of dense positions of an entry's vector; of the decisions, and of each class's bins, only one is not 0."""
        return sum(self.sizes[:7])


@dataclass(frozen=True)
class ClassAverages:
    """Means within each class c, for b resamples at once.

    Attributes:
        spec: what is averaged.
        means: all means, class × position × resample; the other fields are parts of it.
        totals: examples of each class × resample.
        log_likelihood: E[log p(c|x) | c], (k, b).
        brier: of the squared error of the probabilities (k, b).
        probs: E[p(j|x) | c] of the classes j with a mean prediction, (k, j, b).
        score: gradient of the recalibration's log-likelihood at the fit, (k, parameters, b).
        curvature: its negative Hessian, (k, parameters, parameters, b).
        shifted: E[σ(l_j + a_j) | c], of each class j whose intercept is fitted, (k, j, b).
        slopes: E of its derivative in a_j, (k, j, b).
        confusion: P(decided d | class c), (k, k, b).
        gaps: E[(p(j|x) − 1{c = j}) · 1{p(j|x) is in bin e} | c], (k, j·e, b).
        squares: E[Σ_c' (π_c'/n_c') p(c'|x) (p(j|x) − 1{c' = j})² · 1{p(j|x) is in bin e} | c], (k, j·e, b). Over the
            population: the mean squares of such a sample's gaps for a correct model. They are computed from the model, not the
                labels, because a bin without an example of the rare class has noise that the labels do not show.
        products: E[p(j|x) (1 − p(j|x)) · 1{p(j|x) is in bin e} | c], (k, j·e, b).
    """

    spec: MetricSpec
    means: Float64[Tensor, "k j b"]
    totals: Float64[Tensor, "k b"]
    log_likelihood: Tensor
    brier: Tensor
    probs: Tensor
    score: Tensor
    curvature: Tensor
    shifted: Tensor
    slopes: Tensor
    confusion: Tensor
    gaps: Tensor
    squares: Tensor
    products: Tensor

    @classmethod
    def of(cls, spec: MetricSpec, means: Tensor, totals: Tensor) -> ClassAverages:
        """Return the means, split into their parts."""
        ell, brier, probs, score, curvature, *rest = means.split(spec.sizes, 1)
        square = curvature.unflatten(1, (score.shape[1], score.shape[1]))
        return cls(spec, means, totals, ell[:, 0], brier[:, 0], probs, score, square, *rest)


@dataclass(frozen=True)
class Statistics:
    """The statistics that a figure may depend on, for b resamples.

    Attributes:
        averages: within each class.
        areas: A[k, c].
        population: π, class × resample, or class × 1.
        decided: C instead of that of the averages, if it is drawn separately.
    """

    averages: ClassAverages
    areas: Float64[Tensor, "k k b"]
    population: Float64[Tensor, "k _"]
    decided: Float64[Tensor, "k k _"] | None = None

    @property
    def confusion(self) -> Tensor:
        """C[c, d], class × decision × resample."""
        return self.averages.confusion if self.decided is None else self.decided

    @property
    def num_classes(self) -> int:
        return len(self.areas)

    def at_population(self, by_class: Tensor) -> Tensor:
        """Σ_c π_c (·)_c: the expectation over the population."""
        return (self.population * by_class).sum(0)


@dataclass(frozen=True)
class Block:
    """Some entries and their vectors: dense values, and for each group of positions, within its span, the one that is not 0."""

    entries: slice
    labels: Int64[Tensor, " m"]
    votes: Float64[Tensor, " m"] | None
    dense: Float64[Tensor, "m d"]
    places: tuple[Int64[Tensor, " m"], ...]
    spans: tuple[tuple[int, int], ...]
    values: tuple[Float64[Tensor, " m"] | None, ...]


@dataclass(frozen=True)
class MeanGradient:
    """The gradient of a figure by the class means, for the positions from `first` on that it depends on.

    Attributes:
        first: index of the first such position.
        values: class × position.
        base: Σ_j values[c, j] · mean[c, j], by class.
    """

    first: int
    values: Float64[Tensor, "k j"]
    base: Float64[Tensor, " k"]

    @classmethod
    def of(cls, gradient: Float64[Tensor, "k j"], means: Float64[Tensor, "k j"]) -> MeanGradient | None:
        """Return the gradient without leading positions that the figure does not depend on; None if there is no other."""
        used = torch.nonzero(gradient.any(0)).flatten()
        if len(used) == 0:
            return None
        part = slice(int(used[0]), int(used[-1]) + 1)
        values = gradient[:, part].clone()
        return cls(part.start, values, torch.where(values == 0, 0.0, values * means[:, part]).sum(1))

    def influence(self, block: Block) -> Float64[Tensor, " m"]:
        """Return the influence of each entry of a block on the figure, before division by its class's total."""
        result = -self.base[block.labels]
        width = self.values.shape[1]
        for j in range(self.first, min(self.first + width, block.dense.shape[1])):
            result += self.values[:, j - self.first][block.labels] * block.dense[:, j]
        flat = self.values.flatten()
        for place, span, value in zip(block.places, block.spans, block.values, strict=True):
            low, high = (each - self.first for each in span)
            if high < 0 or low >= width:
                continue
            at = place - self.first
            part = flat[block.labels * width + at.clamp(0, width - 1)]
            if low < 0 or high >= width:
                part = torch.where((at >= 0) & (at < width), part, 0.0)
            result += part if value is None else part * value
        return result if block.votes is None else result * block.votes


def make_spec(sample: Sample, costs: Tensor, bins: int, only: str | None = None) -> MetricSpec:
    """Rank the sample, cut bins of equal weight in the population, and fit recalibration and intercepts.

    `only` names a single figure to compute; statistics that it does not need are then omitted.
    """
    k, weights = sample.num_classes, sample.prevalence.population / sample.effective_totals
    looked_at = [1] if k == 2 else list(range(k))
    no_edges = (torch.empty(0, dtype=torch.float64),) * len(looked_at)
    if sample.missing:
        reason = f"no example of class(es) {sample.missing}"
        return MetricSpec(costs, weights, (), no_edges, bins, None, reason, None, reason)
    ranked = only in (None, "auc", "auc_pairwise", "calibration_error")
    rankings = tuple(rank(sample, j) for j in looked_at) if ranked else ()
    binned = only in (None, "calibration_error")
    edges = tuple(_equal_weight_edges(sample, ranking, bins) for ranking in rankings) if binned else no_edges
    recalibration = fit_recalibration(sample) if only in (None, "calibration_slope") else (None, "not asked for")
    intercepts = fit_intercepts(sample) if only in (None, "calibration_intercept") else (None, "not asked for")
    return MetricSpec(costs, weights, rankings, edges, bins, *recalibration, *intercepts)


def compute_statistics(sample: Sample, spec: MetricSpec, counts: Float64[Tensor, "m b"] | None = None) -> Statistics:
    """Compute the statistics of a sample, or of b resamples in which entry i occurs `counts[i]` times."""
    k = spec.num_classes
    areas = pairwise_areas(sample, spec.rankings, counts)
    if not spec.rankings:
        areas = torch.full((k, k, 1), math.nan, dtype=torch.float64)
    return Statistics(_class_averages(sample, spec, counts), areas, sample.prevalence.population[:, None])


def rank(sample: Sample, positive: int) -> Ranking:
    """Rank by p(positive|x); for two classes by its log-odds, which distinguish predictions that round to 1."""
    score = sample.log_probs[:, positive]
    if sample.num_classes == 2:
        score = score - sample.log_probs[:, 1 - positive]
    ordered, order = torch.sort(sample.per_entry(score))
    if bool((ordered[1:] != ordered[:-1]).all()):
        return Ranking(positive, order, None, None)
    _, run, sizes = torch.unique_consecutive(ordered, return_inverse=True, return_counts=True)
    return Ranking(positive, order, run, sizes)


def pairwise_areas(
    sample: Sample, rankings: tuple[Ranking, ...], counts: Float64[Tensor, "m b"] | None = None
) -> Float64[Tensor, "k k b"]:
    """Return A[k, c] of each resample, a row per ranked class k.

    The diagonal is ½; for two classes both other entries are equal.
    """
    k, resamples = sample.num_classes, 1 if counts is None else counts.shape[1]
    result = torch.full((k, k, resamples), 0.5, dtype=torch.float64)
    for ranking in rankings:
        labels = sample.labels[ranking.order]
        mass = _mass(sample, counts, ranking.order)
        totals = _add_at(torch.zeros(k, resamples, dtype=torch.float64), labels, weights=mass)
        positives = mass * (labels == ranking.positive)[:, None]
        above = totals[ranking.positive] - ranking.below(positives)
        won = _add_at(torch.zeros(k, resamples, dtype=torch.float64), labels, weights=above.mul_(mass))
        result[ranking.positive] = won / (totals * totals[ranking.positive])
        result[ranking.positive, ranking.positive] = 0.5
    if k == 2:
        result[0, 1] = result[1, 0]
    return result


def area_influence(
    sample: Sample, rankings: tuple[Ranking, ...], gradient: Float64[Tensor, "k k"], area: Float64[Tensor, "k k"]
) -> Float64[Tensor, " m"]:
    """Return the influence of each entry on a figure with that gradient by the areas, before division by its class's total.

    For one area these are DeLong's placement values.
    """
    result = torch.zeros(len(sample.labels), dtype=torch.float64)
    totals = sample.totals
    if sample.num_classes == 2:  # both entries are the same number
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


def blocks(sample: Sample, spec: MetricSpec) -> Iterator[Block]:
    """Yield the sample's entries in blocks."""
    size = max(BLOCK // max(1, spec.num_classes // 4), 1024)
    for start in range(0, len(sample.labels), size):
        entries = slice(start, start + size)
        rows = entries if sample.rows is None else sample.rows[entries]
        votes = None if sample.votes is None else sample.votes[entries]
        yield _block(entries, sample.log_probs[rows], sample.labels[entries], votes, spec)


def _class_averages(sample: Sample, spec: MetricSpec, counts: Float64[Tensor, "m b"] | None) -> ClassAverages:
    k, size = spec.num_classes, spec.size
    resamples = 1 if counts is None else counts.shape[1]
    sums = torch.zeros(k * size, resamples, dtype=torch.float64)
    totals = torch.zeros(k, resamples, dtype=torch.float64)
    for block in blocks(sample, spec):
        weight = None if counts is None else counts[block.entries]
        if block.votes is not None:
            weight = block.votes[:, None] if weight is None else weight * block.votes[:, None]
        for j in range(spec.num_dense):
            _add_at(sums, block.labels * size + j, block.dense[:, j], weight)
        for place, value in zip(block.places, block.values, strict=True):
            _add_at(sums, block.labels * size + place, value, weight)
        _add_at(totals, block.labels, weights=weight)
    return ClassAverages.of(spec, sums.view(k, size, resamples) / totals[:, None], totals)


def _block(entries: slice, log_probs: Tensor, labels: Tensor, votes: Tensor | None, spec: MetricSpec) -> Block:
    k, table = spec.num_classes, log_probs.double()
    probs = table.exp()
    own = table.gather(1, labels[:, None]).squeeze(1)
    miss = 1 - probs.gather(1, labels[:, None]).squeeze(1)
    brier = miss.square() if k == 2 else probs.square().sum(1) - (1 - miss).square() + miss.square()
    # a probability of 0 for the true class makes the figure infinite, which `evaluate` reports
    dense = [own.masked_fill(own.isneginf(), 0.0)[:, None], brier[:, None], probs[:, -spec.num_shown :]]
    if spec.recalibration is not None:
        dense += spec.recalibration.terms(table, labels)[1:]
    if spec.intercepts is not None:
        dense.append(spec.intercepts.terms(table))
    places = [spec.num_dense + decide(log_probs, costs=spec.costs)]
    values: list[Tensor | None] = [None]
    total_weight = probs @ spec.weights
    for number, edges in enumerate(spec.edges):
        j = 1 if k == 2 else number
        start = spec.num_dense + k + number * spec.bins
        bin_ = start + torch.bucketize(table[:, j].contiguous(), edges, right=True)
        p, weight = probs[:, j], spec.weights[j]
        places += [bin_, bin_ + spec.num_cells, bin_ + 2 * spec.num_cells]
        squares = (total_weight - weight * p) * p.square() + weight * p * (1 - p).square()
        values += [p - (labels == j).double(), squares, p * (1 - p)]
    spans = tuple((int(low), int(high)) for low, high in map(torch.aminmax, places))
    return Block(entries, labels, votes, torch.cat(dense, 1), tuple(places), spans, tuple(values))


def _equal_weight_edges(sample: Sample, ranking: Ranking, bins: int) -> Tensor:
    """Return the inner edges of the bins: a value is in bin ⌊bins · fraction of the population strictly below it⌋."""
    weights = sample.population_weights[ranking.order]
    below = weights.cumsum(0) - weights
    starts = torch.arange(len(below)) if ranking.sizes is None else ranking.sizes.cumsum(0) - ranking.sizes
    cuts = torch.arange(1, bins, dtype=torch.float64) / bins
    opens = torch.searchsorted(below[starts], cuts - 1e-9)  # a fraction that equals an edge up to rounding is on the edge
    entries = ranking.order[starts[opens[opens < len(starts)]]]
    return torch.unique(sample.per_entry(sample.log_probs[:, ranking.positive])[entries].double())


def _mass(sample: Sample, counts: Tensor | None, order: Tensor) -> Tensor:
    mass = torch.ones(len(order), 1, dtype=torch.float64) if counts is None else counts[order]
    return mass if sample.votes is None else mass * sample.votes[order][:, None]


def _add_at(
    sums: Float64[Tensor, "p b"],
    places: Int64[Tensor, " m"],
    values: Float64[Tensor, " m"] | None = None,
    weights: Float64[Tensor, "m _"] | None = None,
) -> Float64[Tensor, "p b"]:
    """Add to `sums`, in place: `sums[places[i], :] += values[i] · weights[i, :]`, where None is 1."""
    if (weights is None or weights.shape[1] == 1) and len(sums) <= 4 * len(places):  # far faster for a single column
        single = None if weights is None else weights[:, 0]
        product = single if values is None else values if single is None else values * single
        return sums.add_(torch.bincount(places, weights=product, minlength=len(sums)).double()[:, None])
    if weights is None:
        weights = torch.ones(len(places), 1, dtype=sums.dtype)
    return sums.index_add_(0, places, weights if values is None else values[:, None] * weights)
