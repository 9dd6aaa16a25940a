"""What is averaged within each class: log-likelihood, Brier score, decisions, calibration.

Stage: `Sample` → `Recipe` (all that is settled once: costs, bins, recalibration) → `Averages`, from which each figure is a
smooth function. So a bootstrap need only average anew, and an analytic interval only differentiate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from .decisions import decide
from .ranks import Ranking
from .recalibration import Recalibration, fit_recalibration
from .sample import Sample
from .sums import add_by_place

BLOCK = 1 << 18  # entries at a time: a large sample is never held in a second form
MOST_CLASSES_FOR_SLOPE = 20  # the recalibration has a parameter per class, and a matrix of them per example
_LOG_LIKELIHOOD, _BRIER, _LAST, _SCORE = 0, 1, 2, 3


@dataclass(frozen=True)
class Recipe:
    """What is settled on the whole sample, and kept in every resample.

    Attributes:
        costs: true class × decision `(k, k)`.
        weights: π_c / n_c `(k,)`, what an example stands for.
        edges: for each class whose calibration is looked at, the inner borders of its bins, as log-probabilities.
        bins: how many there are at most.
        recalibration: slope and intercepts; None where there is no such fit.
        reason: why there is none.
    """

    costs: Float64[Tensor, "k k"]
    weights: Float64[Tensor, " k"]
    edges: tuple[Tensor, ...]
    bins: int
    recalibration: Recalibration | None
    reason: str

    @property
    def num_classes(self) -> int:
        return self.costs.shape[0]

    @property
    def num_scores(self) -> int:
        """Parameters of the recalibration."""
        return 0 if self.recalibration is None else self.num_classes

    @property
    def num_dense(self) -> int:
        """Quantities of which every entry has a value."""
        return _SCORE + self.num_scores * (1 + self.num_scores)

    @property
    def size(self) -> int:
        """Length of an entry's vector: dense quantities, one place per decision, three per bin of each class."""
        return self.num_dense + self.num_classes + 3 * self.num_cells

    @property
    def num_cells(self) -> int:
        """Bins of all classes whose calibration is looked at."""
        return len(self.edges) * self.bins


@dataclass(frozen=True)
class Averages:
    """Means within each class, for a number of resamples b at once: `means[c, j, b]`.

    Attributes:
        recipe: what the places j are.
        means: class × place × resample.
        totals: examples of each class × resample.
    """

    recipe: Recipe
    means: Float64[Tensor, "k j b"]
    totals: Float64[Tensor, "k b"]

    @property
    def log_likelihood(self) -> Tensor:
        """E[log p(c|x) | c], (k, b)."""
        return self.means[:, _LOG_LIKELIHOOD]

    @property
    def brier(self) -> Tensor:
        return self.means[:, _BRIER]

    @property
    def last(self) -> Tensor:
        """E[p(last class|x) | c]."""
        return self.means[:, _LAST]

    @property
    def score(self) -> Tensor:
        """Gradient of the recalibration's log-likelihood at the fit, (k, parameters, b)."""
        return self.means[:, _SCORE : _SCORE + self.recipe.num_scores]

    @property
    def curvature(self) -> Tensor:
        """Its negative Hessian, (k, parameters, parameters, b)."""
        p = self.recipe.num_scores
        return self.means[:, _SCORE + p : self.recipe.num_dense].unflatten(1, (p, p))

    @property
    def confusion(self) -> Tensor:
        """P(decided d | class c), (k, k, b)."""
        start = self.recipe.num_dense
        return self.means[:, start : start + self.recipe.num_classes]

    @property
    def gaps(self) -> Tensor:
        """E[(p(j|x) − 1{c = j}) · 1{p(j|x) is in bin e} | c], (k, j·e, b)."""
        start = self.recipe.num_dense + self.recipe.num_classes
        return self.means[:, start : start + self.recipe.num_cells]

    @property
    def squares(self) -> Tensor:
        """E[Σ_c' (π_c'/n_c') p(c'|x) (p(j|x) − 1{c' = j})² · 1{p(j|x) is in bin e} | c], (k, j·e, b).

        Over the population: the mean squares that such a sample's gaps have if the model is right. By the model and not by the
        labels, since a bin without an example of the rare class shows no noise, and has some.
        """
        return self.means[:, -2 * self.recipe.num_cells : -self.recipe.num_cells]

    @property
    def products(self) -> Tensor:
        """E[p(j|x) (1 − p(j|x)) · 1{p(j|x) is in bin e} | c], (k, j·e, b)."""
        return self.means[:, -self.recipe.num_cells :]


@dataclass(frozen=True)
class Block:
    """Some entries and their vectors: dense values, and in each group of places the one where an entry has a value."""

    entries: slice
    labels: Int64[Tensor, " m"]
    votes: Float64[Tensor, " m"] | None
    dense: Float64[Tensor, "m d"]
    places: tuple[Int64[Tensor, " m"], ...]
    values: tuple[Float64[Tensor, " m"] | None, ...]


def make_recipe(sample: Sample, rankings: list[Ranking], costs: Tensor, bins: int) -> Recipe:
    """Bins of equal weight in the population, and the recalibration, by the whole sample."""
    k = sample.num_classes
    weights = sample.prevalence.population / sample.totals
    if sample.missing:
        nothing = torch.empty(0, dtype=torch.float64)
        return Recipe(
            costs, weights, (nothing,) * (1 if k == 2 else k), bins, None, f"no example of class(es) {sample.missing}"
        )
    edges = tuple(_equal_weight_edges(sample, ranking, bins) for ranking in rankings)
    if k > MOST_CLASSES_FOR_SLOPE:
        return Recipe(costs, weights, edges, bins, None, f"not fitted with more than {MOST_CLASSES_FOR_SLOPE} classes")
    fit, reason = fit_recalibration(sample, BLOCK)
    return Recipe(costs, weights, edges, bins, fit, reason)


def averages(sample: Sample, recipe: Recipe, counts: Float64[Tensor, "m b"] | None = None) -> Averages:
    """The means of a sample, or of b resamples in which entry i occurs `counts[i]` times."""
    k, size, dense = recipe.num_classes, recipe.size, recipe.num_dense
    resamples = 1 if counts is None else counts.shape[1]
    sums = torch.zeros(k * size, resamples, dtype=torch.float64)
    totals = torch.zeros(k, resamples, dtype=torch.float64)
    for block in blocks(sample, recipe):
        weight = None if counts is None else counts[block.entries]
        if block.votes is not None:
            weight = block.votes[:, None] if weight is None else weight * block.votes[:, None]
        for j in range(dense):
            add_by_place(sums, block.labels * size + j, block.dense[:, j], weight)
        for place, value in zip(block.places, block.values, strict=True):
            add_by_place(sums, block.labels * size + place, value, weight)
        add_by_place(totals, block.labels, weights=weight)
    return Averages(recipe, sums.view(k, size, resamples) / totals[:, None], totals)


@dataclass(frozen=True)
class Gradient:
    """Of a figure in the class means, kept for the places that it depends on, `first` and on.

    Attributes:
        first: number of the first such place.
        values: class × place.
        base: Σ_j values[c, j] · mean[c, j], by class.
    """

    first: int
    values: Float64[Tensor, "k j"]
    base: Float64[Tensor, " k"]

    @classmethod
    def of(cls, gradient: Float64[Tensor, "k j"], means: Float64[Tensor, "k j"]) -> Gradient | None:
        """None where the figure does not depend on the class means."""
        used = torch.nonzero(gradient.any(0)).flatten()
        if len(used) == 0:
            return None
        part = slice(int(used[0]), int(used[-1]) + 1)
        values = gradient[:, part].clone()
        return cls(part.start, values, torch.where(values == 0, 0.0, values * means[:, part]).sum(1))

    def contributions(self, block: Block) -> Float64[Tensor, " m"]:
        """What each entry of a block adds to the figure, before division by its class's total."""
        result = -self.base[block.labels]
        width = self.values.shape[1]
        for j in range(self.first, min(self.first + width, block.dense.shape[1])):
            result += self.values[:, j - self.first][block.labels] * block.dense[:, j]
        flat = self.values.flatten()
        for place, value in zip(block.places, block.values, strict=True):
            low, high = (int(each) - self.first for each in torch.aminmax(place))
            if high < 0 or low >= width:
                continue
            at = place - self.first
            part = flat[block.labels * width + at.clamp(0, width - 1)]
            if low < 0 or high >= width:
                part = torch.where((at >= 0) & (at < width), part, 0.0)
            result += part if value is None else part * value
        return result if block.votes is None else result * block.votes


def blocks(sample: Sample, recipe: Recipe) -> Iterator[Block]:
    """The sample's entries, a block at a time."""
    size = max(BLOCK // max(1, recipe.num_classes // 4), 1024)
    for start in range(0, len(sample.labels), size):
        entries = slice(start, start + size)
        rows = entries if sample.rows is None else sample.rows[entries]
        votes = None if sample.votes is None else sample.votes[entries]
        yield _block(entries, sample.log_probs[rows], sample.labels[entries], votes, recipe)


def _block(entries: slice, log_probs: Tensor, labels: Tensor, votes: Tensor | None, recipe: Recipe) -> Block:
    k = recipe.num_classes
    table = log_probs.double()
    probs = table.exp()
    own = table.gather(1, labels[:, None]).squeeze(1)
    miss = 1 - probs.gather(1, labels[:, None]).squeeze(1)
    if k == 2:
        brier = miss.square()
    else:
        brier = probs.square().sum(1) - (1 - miss).square() + miss.square()
    # a probability of 0 for what happened makes the figure infinite; that is looked after there
    dense = [own.masked_fill(own.isneginf(), 0.0)[:, None], brier[:, None], probs[:, -1:]]
    if recipe.recalibration is not None:
        dense += recipe.recalibration.terms(table, labels)[1:]
    places = [recipe.num_dense + decide(log_probs, costs=recipe.costs)]
    values: list[Tensor | None] = [None]
    spread = probs @ recipe.weights
    for number, edges in enumerate(recipe.edges):
        j = 1 if k == 2 else number
        start = recipe.num_dense + k + number * recipe.bins
        bin_ = start + torch.bucketize(table[:, j].contiguous(), edges, right=True)
        p, weight = probs[:, j], recipe.weights[j]
        places += [bin_, bin_ + recipe.num_cells, bin_ + 2 * recipe.num_cells]
        squares = (spread - weight * p) * p.square() + weight * p * (1 - p).square()
        values += [p - (labels == j).double(), squares, p * (1 - p)]
    return Block(entries, labels, votes, torch.cat(dense, 1), tuple(places), tuple(values))


def _equal_weight_edges(sample: Sample, ranking: Ranking, bins: int) -> Tensor:
    """Inner borders of the bins of p(j|x): a value belongs to bin ⌊bins · share of the population strictly below it⌋."""
    weights = sample.population_weights[ranking.order]
    below = weights.cumsum(0) - weights
    starts = torch.arange(len(below)) if ranking.sizes is None else ranking.sizes.cumsum(0) - ranking.sizes
    cuts = torch.arange(1, bins, dtype=torch.float64) / bins
    opens = torch.searchsorted(below[starts], cuts - 1e-9)  # a share that is a cut but for rounding is one
    entries = ranking.order[starts[opens[opens < len(starts)]]]
    rows = entries if sample.rows is None else sample.rows[entries]
    return torch.unique(sample.log_probs[rows, ranking.positive].double())
