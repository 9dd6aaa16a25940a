"""The statistics that every figure depends on: means within each class, and pairwise areas under the ROC curve.

Stage: `Sample` → `MetricSpec`, fixed once on the whole sample → `Statistics`. Every figure is a smooth function of them. So a
bootstrap only recomputes them with new counts, and an analytic interval only needs derivatives.

The area under the ROC curve of a pair of classes is A[k, c] = P(p(k|x) is higher for an x of class k than for one of class c)
+ ½ P(they are equal). Each AUC is a weighted mean of these: that of two classes is A[1, 0]; one against the rest, at the mix π,
is Σ_c π_c/(1 − π_k) A[k, c]; the mean over pairs of ½ (A[k, c] + A[c, k]) is Hand and Till's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csc_array

from .decisions import best_decisions
from .recalibration import Intercepts, Recalibration, fit_intercepts, fit_recalibration
from .sample import Sample

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

MOST_CLASSES_SHOWN = 50  # classes up to which there are figures by class


@dataclass(frozen=True)
class Ranking:
    """The entries sorted by the score of one class.

    Attributes:
        positive: that class.
        order: entry indices from the lowest score to the highest `(m,)`.
        run: the run of equal scores of each position `(m,)`; None if no two are equal.
        starts: the first position of each run `(r,)`; None if no two are equal.
    """

    positive: int
    order: Int64[np.ndarray, " m"]
    run: Int64[np.ndarray, " m"] | None
    starts: Int64[np.ndarray, " r"] | None

    def below(self, mass: Float64[np.ndarray, m * b]) -> Float64[np.ndarray, m * b]:
        """Return, for each position, the mass at lower scores plus half of that at equal scores."""
        reached = mass.cumsum(0)
        if self.run is None or self.starts is None:
            reached -= 0.5 * mass
            return reached
        at_end = reached[np.append(self.starts[1:], len(mass)) - 1]
        at_end[1:] += at_end[:-1].copy()
        return (at_end / 2)[self.run]


@dataclass(frozen=True)
class MetricSpec:
    """Settings fixed on the whole sample, and kept in every resample.

    Attributes:
        costs: true class × decision `(k, k)`.
        rankings: the entries ranked by class: class 1 of two, or every class; none if a class has no example.
        edges: for each class with calibration bins, the inner edges of its bins, as log-probabilities; ∞ after the last.
        recalibration: slope and intercepts; None if there is no such fit.
        reason: why there is none.
        intercepts: shifts of the log-odds; None if there are none.
        no_intercepts: why there are none.
    """

    costs: Float64[np.ndarray, "k k"]
    rankings: tuple[Ranking, ...]
    edges: Float64[np.ndarray, "j e"]
    recalibration: Recalibration | None
    reason: str
    intercepts: Intercepts | None
    no_intercepts: str

    @property
    def num_classes(self) -> int:
        return len(self.costs)

    @property
    def bins(self) -> int:
        """The number of bins of a class."""
        return self.edges.shape[1] + 1

    @property
    def binned(self) -> slice:
        """The classes with calibration bins: 1 of two, or all."""
        return slice(1 if self.num_classes == 2 else 0, None)

    @property
    def fields(self) -> dict[str, int]:
        """Return the number of means of each kind within a class; see `Block.dense`."""
        k, shifts = self.num_classes, 0 if self.intercepts is None else len(self.intercepts.classes)
        shown = k if 2 < k <= MOST_CLASSES_SHOWN else 1
        fit = 0 if self.recalibration is None else k
        sizes = {"score": fit, "curvature": fit * (fit + 1) // 2, "shifted": shifts, "slopes": shifts}
        return {"log_likelihood": 1, "brier": 1, "probs": shown} | sizes


@dataclass(frozen=True)
class Statistics:
    """The statistics that a figure may depend on, for b resamples.

    Attributes:
        spec: what is averaged.
        population: π, class × resample, or class × 1.
        totals: examples of each class × resample.
        areas: A[k, c], × resample.
        means: means within each class c, by kind, each class × position × resample.

            - "log_likelihood": E[log p(c|x) | c]
            - "brier": of the squared error of the probabilities
            - "probs": E[p(j|x) | c] of the classes j with a mean prediction: the last of two or of very many, else all
            - "score": gradient of the recalibration's log-likelihood at the fit
            - "curvature": its negative Hessian, the upper triangle
            - "shifted": E[σ(l_j + a_j) | c], of each class j whose intercept is fitted
            - "slopes": E of its derivative in a_j
            - "confusion": P(decided d | class c)
            - "gaps": E[(p(j|x) − 1{c = j}) · 1{p(j|x) is in bin e} | c], of each class j and bin e

            and for the whole sample only, the noise of the gaps in a correct model. It is computed from the model, not the
            labels, because a bin without an example of the rare class has noise that the labels do not show:

            - "squares": E[Σ_c' (π_c'/n_c') p(c'|x) (p(j|x) − 1{c' = j})² · 1{p(j|x) is in bin e} | c]
            - "products": E[p(j|x) (1 − p(j|x)) · 1{p(j|x) is in bin e} | c]
    """

    spec: MetricSpec
    population: Float64[np.ndarray, "k _"]
    totals: Float64[np.ndarray, "k b"]
    areas: Float64[np.ndarray, "k k b"]
    means: dict[str, np.ndarray]

    @property
    def confusion(self) -> Float64[np.ndarray, "k k b"]:
        """C[c, d], class × decision × resample."""
        return self.means["confusion"]

    @property
    def num_classes(self) -> int:
        return len(self.areas)

    def at_population(self, kind: str) -> np.ndarray:
        """Σ_c π_c E[· | c]: the expectation over the population of means of that kind, position × resample."""
        return (self.population[:, None] * self.means[kind]).sum(0)


@dataclass(frozen=True)
class Block:
    """Some entries of one class.

    Attributes:
        label: the class.
        entries: their indices `(m,)`.
        dense: the numbers that are averaged, in the order of `MetricSpec.fields`, a row for each mean `(d, m)`.
        decided: decisions `(m,)`.
        probs: p(j|x) `(k, m)`.
        errors: p(j|x) − 1{class j} of the classes with bins `(j, m)`.
        cells: the bin of each, numbered over all these classes `(j, m)`.
    """

    label: int
    entries: Int64[np.ndarray, " m"]
    dense: Float64[np.ndarray, "d m"]
    decided: Int64[np.ndarray, " m"]
    probs: Float64[np.ndarray, "k m"]
    errors: Float64[np.ndarray, "j m"]
    cells: Int64[np.ndarray, "j m"]


@np.errstate(all="ignore")  # what has no fit says so
def make_spec(sample: Sample, costs: Float64[np.ndarray, "k k"], bins: int, only: str | None = None) -> MetricSpec:
    """Rank the sample, cut bins of equal weight in the population, and fit recalibration and intercepts.

    `only` names a single figure to compute; statistics that it does not need are then omitted.
    """
    looked_at = [1] if sample.num_classes == 2 else list(range(sample.num_classes))
    no_edges = np.full((len(looked_at), bins - 1), np.inf)
    if sample.missing:
        reason = f"no example of class(es) {sample.missing}"
        return MetricSpec(costs, (), no_edges, None, reason, None, reason)
    ranked = only in (None, "auc", "auc_pairwise", "calibration_error")
    rankings = tuple(rank(sample, j) for j in looked_at) if ranked else ()
    binned = only in (None, "calibration_error")
    edges = np.stack([_equal_weight_edges(sample, each, bins) for each in rankings]) if binned else no_edges
    recalibration = fit_recalibration(sample) if only in (None, "calibration_slope") else (None, "not asked for")
    intercepts = fit_intercepts(sample) if only in (None, "calibration_intercept") else (None, "not asked for")
    return MetricSpec(costs, rankings, edges, *recalibration, *intercepts)


def rank(sample: Sample, positive: int) -> Ranking:
    """Rank by p(positive|x); for two classes by its log-odds, which distinguish predictions that round to 1."""
    score = sample.log_probs[:, positive]
    if sample.num_classes == 2:
        score = score - sample.log_probs[:, 1 - positive]
    score = sample.per_entry(score)
    order = np.argsort(score)
    ordered = score[order]
    new = np.append(True, ordered[1:] != ordered[:-1])
    runs = (None, None) if new.all() else (new.cumsum() - 1, np.flatnonzero(new))
    return Ranking(positive, order, *runs)


def _equal_weight_edges(sample: Sample, ranking: Ranking, bins: int) -> Float64[np.ndarray, " e"]:
    """Return the inner edges of the bins: a value is in bin ⌊bins · fraction of the population strictly below it⌋."""
    weights, first = sample.population_weights[ranking.order], slice(None) if ranking.starts is None else ranking.starts
    below = (weights.cumsum() - weights)[first]
    # a fraction that equals an edge up to rounding is on the edge
    opens = np.searchsorted(below, np.arange(1, bins) / bins - 1e-9)
    entries = ranking.order[first][opens[opens < len(below)]]
    rows = entries if sample.rows is None else sample.rows[entries]
    edges = np.unique(sample.log_probs[rows, ranking.positive].astype(np.float64))
    return np.append(edges, np.full(bins - 1 - len(edges), np.inf))


def blocks(sample: Sample, spec: MetricSpec) -> Iterator[Block]:
    """Yield the sample's entries in blocks, each of one class."""
    for label, entries in sample.by_class():
        columns = sample.columns(entries)
        probs, k = np.exp(columns), spec.num_classes
        errors = probs.copy()
        errors[label] -= 1
        brier = errors[label] ** 2 if k == 2 else (errors**2).sum(0)
        # a probability of 0 for the true class makes the figure infinite, which `evaluate` reports
        own = np.where(np.isneginf(columns[label]), 0.0, columns[label])
        dense = [own[None], brier[None], probs[-spec.fields["probs"] :]]
        if spec.recalibration is not None:
            dense += spec.recalibration.terms(columns, label)[1:]
        if spec.intercepts is not None:
            dense.append(spec.intercepts.terms(columns))
        decided = best_decisions(columns.astype(sample.log_probs.dtype, copy=False).T, spec.costs)
        cells = np.repeat(np.arange(len(spec.edges))[:, None] * spec.bins, len(entries), 1)
        for edge in spec.edges.T:
            cells += columns[spec.binned] >= edge[:, None]
        yield Block(label, entries, np.concatenate(dense), decided, probs, errors[spec.binned], cells)


def compute_statistics(
    sample: Sample, spec: MetricSpec, counts: Float64[np.ndarray, "m b"] | None = None, parts: Iterable[Block] | None = None
) -> Statistics:
    """Compute the statistics of a sample, or of b resamples in which entry i occurs `counts[i]` times.

    `parts` are the sample's `blocks`, if they are known.
    """
    k, width = spec.num_classes, 1 if counts is None else counts.shape[1]
    cells = len(spec.edges) * spec.bins
    sizes = spec.fields | {"confusion": k, "gaps": cells} | ({"squares": cells, "products": cells} if counts is None else {})
    sums, totals = {kind: np.zeros((k, size, width)) for kind, size in sizes.items()}, np.zeros((k, width))
    ends = np.cumsum(list(spec.fields.values()))[:-1]
    weights = sample.prevalence.population / sample.effective_totals
    for block in blocks(sample, spec) if parts is None else parts:
        mass = _mass(sample, counts, block.entries)
        dense = dict(zip(spec.fields, np.split(block.dense @ mass, ends), strict=True))
        dense["confusion"] = sums_at(block.decided[None], None, k, mass)
        dense["gaps"] = sums_at(block.cells, block.errors, cells, mass)
        if counts is None:
            p, weight = block.probs[spec.binned], weights[spec.binned, None]
            squares = (weights @ block.probs - weight * p) * p**2 + weight * p * (1 - p) ** 2
            dense["squares"], dense["products"] = (sums_at(block.cells, each, cells, mass) for each in (squares, p * (1 - p)))
        for kind, each in dense.items():
            sums[kind][block.label] += each
        totals[block.label] += dense["confusion"].sum(0)  # so that a fraction of all is exactly 1
    areas = pairwise_areas(sample, spec.rankings, counts) if spec.rankings else np.full((k, k, 1), math.nan)
    means = {kind: each / totals[:, None] for kind, each in sums.items()}
    return Statistics(spec, sample.prevalence.population[:, None], totals, areas, means)


def pairwise_areas(
    sample: Sample, rankings: tuple[Ranking, ...], counts: Float64[np.ndarray, "m b"] | None = None
) -> Float64[np.ndarray, "k k b"]:
    """Return A[k, c] of each resample, a row per ranked class k.

    The diagonal is ½; for two classes both other entries are equal.
    """
    k, width = sample.num_classes, 1 if counts is None else counts.shape[1]
    result = np.full((k, k, width), 0.5)
    for ranking in rankings:
        labels, positive = sample.labels[ranking.order], ranking.positive
        mass = _mass(sample, counts, ranking.order)
        totals = sums_at(labels[None], None, k, mass)
        above = totals[positive] - ranking.below(mass * (labels == positive)[:, None])
        result[positive] = sums_at(labels[None], None, k, above * mass) / (totals * totals[positive])
        result[positive, positive] = 0.5
    if k == 2:
        result[0, 1] = result[1, 0]
    return result


def area_influence(
    sample: Sample, rankings: tuple[Ranking, ...], gradient: Float64[np.ndarray, "k k"], area: Float64[np.ndarray, "k k"]
) -> Float64[np.ndarray, " m"]:
    """Return the influence of each entry on a figure with that gradient by the areas, before division by its class's total.

    For one area these are DeLong's placement values.
    """
    result, totals = np.zeros(len(sample.labels)), sample.totals
    if sample.num_classes == 2:  # both entries are the same number
        gradient = np.array([[0.0, 0.0], [gradient[1, 0] + gradient[0, 1], 0.0]])
    for ranking in rankings:
        k, labels, mass = ranking.positive, sample.labels[ranking.order], _mass(sample, None, ranking.order)[:, 0]
        is_positive = labels == k
        above = 1 - ranking.below(mass * is_positive) / totals[k]
        below = ranking.below(mass * np.where(is_positive, 0.0, (gradient[k] / totals)[labels]))
        others = np.arange(len(totals)) != k
        as_positive = below - (gradient[k] * area[k])[others].sum()
        as_negative = gradient[k][labels] * (above - area[k][labels])
        result[ranking.order] += np.where(is_positive, as_positive, as_negative)
    return result if sample.votes is None else result * sample.votes


def _mass(sample: Sample, counts: np.ndarray | None, entries: Int64[np.ndarray, " e"]) -> Float64[np.ndarray, "e b"]:
    """Return how often some entries count in each resample."""
    mass = np.ones((len(entries), 1)) if counts is None else counts[entries]
    return mass if sample.votes is None else mass * sample.votes[entries, None]


def sums_at(
    places: Int64[np.ndarray, "j m"], values: Float64[np.ndarray, "j m"] | None, size: int, mass: Float64[np.ndarray, "m b"]
) -> Float64[np.ndarray, "s b"]:
    """Return the sum of `values[:, i] · mass[i]` at each of `size` places, where None is 1."""
    each, m = places.shape
    if mass.shape[1] == 1:  # far faster for a single column
        weights = np.broadcast_to(mass[:, 0], places.shape) if values is None else values * mass[:, 0]
        return np.bincount(places.ravel(), weights.ravel(), size)[:, None]
    numbers = np.ones(places.size) if values is None else values.T.ravel()
    return csc_array((numbers, places.T.ravel(), np.arange(0, each * m + 1, each)), (size, m)) @ mass
