"""The statistics of a sample that all intervals use, and the influence of each example on each figure.

Stage: `Sample`, `MetricSpec` → `EvaluationInputs` → `Influence` of each figure, or of the difference of two models' figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .class_statistics import (
    MOST_CLASSES_SHOWN,
    Block,
    MetricSpec,
    Statistics,
    area_influence,
    blocks,
    compute_statistics,
)
from .figures import FIGURES, GRADIENTS, Gradient
from .intervals import Design, Influence, InfluenceSum, design_of
from .sample import Sample

if TYPE_CHECKING:
    from jaxtyping import Float64

Key = tuple[str, int | None]  # a figure's name, and its class for figures by class


class Quantity(NamedTuple):
    """A figure, or that of one class: its formula, and its gradient at one sample."""

    compute: Callable[[Statistics], np.ndarray]
    gradient: Callable[[Statistics], Gradient]


@dataclass(frozen=True)
class EvaluationInputs:
    """A sample, and the statistics that all intervals use.

    Attributes:
        sample: labelled predictions.
        design: which entries are drawn together.
        statistics: the inputs of the figures.
        reasons: the figures without a value, and why.
        quantities: the formulas of the others.
        values: their values; −∞ for the log-likelihood and the skill if a true class had probability 0.
        impossible: the number of entries with probability 0 for their class.
    """

    sample: Sample
    design: Design
    statistics: Statistics
    reasons: dict[str, str]
    quantities: dict[Key, Quantity]
    values: dict[Key, float]
    impossible: int

    @property
    def spec(self) -> MetricSpec:
        return self.statistics.spec


@np.errstate(all="ignore")  # what divides by 0 is reported as undefined
def prepare(sample: Sample, spec: MetricSpec, only: str | None = None) -> EvaluationInputs:
    """Return the statistics of a sample, and the values of all defined figures, or of one."""
    k, statistics = sample.num_classes, compute_statistics(sample, spec)
    reasons, lacking = _undefined(sample, statistics)
    quantities: dict[Key, Quantity] = {}
    for name, formula in FIGURES.items():
        if only not in (None, name):
            continue
        if name not in reasons:
            quantities[name, None] = _quantity(name, None)
        if formula.by_class is not None and (name not in reasons or name in lacking) and 2 < k <= MOST_CLASSES_SHOWN:
            quantities |= {(name, j): _quantity(name, j) for j in range(k) if j not in lacking.get(name, ())}
    values = {key: float(each.compute(statistics)[0]) for key, each in quantities.items()}
    impossible = int(np.isneginf(sample.own_log_probs).sum())
    if impossible:
        infinite = [("expected_log_likelihood", None), ("skill", None)]
        values |= dict.fromkeys(quantities.keys() & infinite, -math.inf)
    return EvaluationInputs(sample, design_of(sample), statistics, reasons, quantities, values, impossible)


def _quantity(name: str, j: int | None) -> Quantity:
    by_class = FIGURES[name].by_class
    compute = FIGURES[name].compute if j is None or by_class is None else lambda s: by_class(s)[j]
    return Quantity(compute, lambda s: GRADIENTS[name](s, j))


def _undefined(sample: Sample, statistics: Statistics) -> tuple[dict[str, str], dict[str, list[int]]]:
    """Return the figures that are undefined for this sample, with the reason, and the classes of those that others have."""
    reasons: dict[str, str] = {}
    spec, two = statistics.spec, sample.num_classes == 2
    if spec.recalibration is None:
        reasons["calibration_slope"] = spec.reason
    if spec.intercepts is None:
        reasons["calibration_intercept"] = spec.no_intercepts
    if not two:
        reasons["net_benefit"] = "defined for two classes"
    elif not spec.costs[1, 0] - spec.costs[1, 1] > 0:
        reasons["net_benefit"] = "a missed case costs nothing"
    if sample.missing:
        kept = ["accuracy", *(["tnr" if sample.missing == [1] else "tpr"] * two)]
        return reasons | {name: f"no example of class(es) {sample.missing}" for name in FIGURES if name not in kept}, {}
    confusion = statistics.confusion[:, :, 0]
    never = np.flatnonzero(confusion.sum(0) == 0).tolist()
    always = np.flatnonzero((confusion == 1).all(0)).tolist()
    if 1 in never if two else never:
        reasons["ppv"] = f"class(es) {never} are never decided"
    if 1 in always if two else always:
        reasons["npv"] = f"class {always[0]} is always decided"
    return reasons, {name: classes for name, classes in (("ppv", never), ("npv", always)) if name in reasons and not two}


class _Gradients:
    """Gradients of some of a model's quantities, for the influence of each entry.

    Attributes:
        each: the gradient of every quantity.
        dense: in the dense means over the population, quantity × position; and `rows`, the quantities that depend on them.
        confusion: in the decisions of each class, quantity × class × decision; and `decided`, those that depend on them.
        base: Σ gradient · mean, quantity × class.
        by_total: in the classes' totals, quantity × class.
    """

    def __init__(self, inputs: EvaluationInputs, keys: Sequence[Key]) -> None:
        self.inputs, s = inputs, inputs.statistics
        self.each = [inputs.quantities[key].gradient(s) for key in keys]
        fields, k = inputs.spec.fields, s.num_classes

        def stacked(kind: str, *shape: int) -> np.ndarray:
            return np.nan_to_num([each.get(kind, np.zeros(shape)) for each in self.each])

        self.dense = np.concatenate([stacked(kind, size) for kind, size in fields.items()], 1)
        self.rows = np.flatnonzero(self.dense.any(1))
        self.gaps = {row: each["gaps"] for row, each in enumerate(self.each) if "gaps" in each}
        self.confusion, self.by_total = stacked("confusion", k, k), stacked("totals", k)
        self.decided = np.flatnonzero(self.confusion.any((1, 2)))
        means = {kind: np.nan_to_num(each[..., 0]) for kind, each in s.means.items()}
        self.base = self.dense @ np.concatenate([means[kind] for kind in fields], 1).T
        for row, gradient in self.gaps.items():
            self.base[row] += means["gaps"] @ gradient
        self.base = self.base * s.population[:, 0] + (self.confusion * means["confusion"]).sum(2)

    def of_block(self, block: Block) -> Float64[np.ndarray, "f m"]:
        """Return the influence of each entry of a block through the class means."""
        s, c, votes = self.inputs.statistics, block.label, self.inputs.sample.votes
        added = np.zeros((len(self.each), len(block.entries)))
        added[self.rows] = self.dense[self.rows] @ block.dense
        for row, gradient in self.gaps.items():
            added[row] += (gradient[block.cells] * block.errors).sum(0)
        added *= s.population[c]
        added[self.decided] += self.confusion[self.decided, c][:, block.decided]
        added -= self.base[:, [c]]
        added /= s.totals[c]
        if self.inputs.design.clusters is not None:  # then the class frequencies vary as well
            added += self.by_total[:, [c]]
        return added if votes is None else added * votes[block.entries]

    def of_areas(self, number: int) -> Float64[np.ndarray, " m"]:
        """Return the influence of each entry through the areas, on the quantity with that number."""
        sample, s = self.inputs.sample, self.inputs.statistics
        added = area_influence(sample, self.inputs.spec.rankings, self.each[number]["areas"], s.areas[..., 0])
        return added / s.totals[sample.labels, 0]

    def classes(self, number: int) -> set[int]:
        """Return the classes on which a quantity depends."""
        gradient = self.each[number]
        if "areas" in gradient:
            return set(np.flatnonzero(gradient["areas"].any(0) | gradient["areas"].any(1)).tolist())
        of_all = any(gradient[kind].any() for kind in gradient if kind not in ("confusion", "totals"))
        return set(np.flatnonzero(self.confusion[number].any(1) | of_all).tolist())


def influences(models: Sequence[EvaluationInputs], keys: Sequence[Key]) -> tuple[dict[Key, Influence], dict[Key, list[int]]]:
    """Return the summed influences on each quantity, and the classes that the quantity depends on.

    For two models, with predictions of the same entries, the influence is that on the first minus that on the second.
    """
    gradients = [_Gradients(model, keys) for model in models]
    sums = [InfluenceSum(models[0].design) for _ in keys]
    ranked = {number: each["areas"].tobytes() for number, each in enumerate(gradients[0].each) if "areas" in each}
    same_areas = {gradient: number for number, gradient in ranked.items()}  # with two classes both areas are one
    for same in zip(*(blocks(model.sample, model.spec) for model in models), strict=True):
        added = reduce(np.subtract, [each.of_block(block) for each, block in zip(gradients, same, strict=True)])
        for number in set(range(len(keys))) - ranked.keys():
            sums[number].add(same[0].entries, added[number])
    for number in same_areas.values():
        sums[number].add(slice(None), reduce(np.subtract, [each.of_areas(number) for each in gradients]))
    for number, gradient in ranked.items():
        sums[number] = sums[same_areas[gradient]]
    classes = {key: sorted(set().union(*(each.classes(number) for each in gradients))) for number, key in enumerate(keys)}
    return {key: each.summary() for key, each in zip(keys, sums, strict=True)}, classes
