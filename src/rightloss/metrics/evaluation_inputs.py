"""The statistics of a sample that all intervals use, and the influence of each example on each figure.

Stage: `Sample`, `MetricSpec` → `EvaluationInputs` → `Influence` of each figure, or of the difference of two models' figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float64
from torch import Tensor

from .class_statistics import (
    MOST_CLASSES_SHOWN,
    Block,
    ClassAverages,
    MeanGradient,
    MetricSpec,
    Statistics,
    area_influence,
    blocks,
    compute_statistics,
)
from .decisions import decide
from .figures import FIGURES
from .intervals import Design, Influence, InfluenceSum, design_of
from .sample import Sample

_MOST_CELLS = 1 << 22  # groups × classes × decisions counted at a time

Key = tuple[str, int | None]  # a figure's name, and its class for figures by class


@dataclass(frozen=True)
class EvaluationInputs:
    """A sample, and the statistics that all intervals use.

    Attributes:
        sample: labelled predictions.
        design: which entries are drawn together.
        statistics: the inputs of the figures.
        reasons: the figures without a value, and why.
        by_class: the classes without a value, for figures that only some classes lack.
        quantities: the formulas of the others.
        values: their values.
        impossible: the number of entries with probability 0 for their class.
    """

    sample: Sample
    design: Design
    statistics: Statistics
    reasons: dict[str, str]
    by_class: dict[str, list[int]]
    quantities: dict[Key, Callable[[Statistics], Tensor]]
    values: dict[Key, float]
    impossible: int

    @property
    def spec(self) -> MetricSpec:
        return self.statistics.averages.spec

    def computed(self, statistics: Statistics, width: int) -> Float64[Tensor, "f b"]:
        """Return all quantities of each of `width` resamples."""
        return torch.stack([formula(statistics).expand(width) for formula in self.quantities.values()])


def prepare(sample: Sample, spec: MetricSpec, only: str | None = None) -> EvaluationInputs:
    """Return the statistics of a sample, and the values of all defined figures, or of one."""
    k, statistics = sample.num_classes, compute_statistics(sample, spec)
    reasons, lacking = _undefined(sample, statistics)
    quantities: dict[Key, Callable[[Statistics], Tensor]] = {}
    for name, formula in FIGURES.items():
        if only not in (None, name):
            continue
        if name not in reasons:
            quantities[name, None] = formula.compute
        shown = name not in reasons or name in lacking
        if formula.by_class is not None and shown and 2 < k <= MOST_CLASSES_SHOWN:
            for j in sorted(set(range(k)) - set(lacking.get(name, ()))):
                quantities[name, j] = _of_class(formula.by_class, j)
    values = {key: float(formula(statistics)) for key, formula in quantities.items()}
    impossible = int(sample.per_entry(sample.log_probs).gather(1, sample.labels[:, None]).isneginf().sum())
    return EvaluationInputs(sample, design_of(sample), statistics, reasons, lacking, quantities, values, impossible)


def _of_class(by_class: Callable[[Statistics], Tensor], j: int) -> Callable[[Statistics], Tensor]:
    return lambda statistics: by_class(statistics)[j]


def _undefined(sample: Sample, statistics: Statistics) -> tuple[dict[str, str], dict[str, list[int]]]:
    """Return the figures that are undefined for this sample, with the reason, and the classes of those that others have."""
    reasons: dict[str, str] = {}
    spec, two = statistics.averages.spec, sample.num_classes == 2
    if spec.recalibration is None:
        reasons["calibration_slope"] = spec.reason
    if spec.intercepts is None:
        reasons["calibration_intercept"] = spec.no_intercepts
    if not two:
        reasons["net_benefit"] = "defined for two classes"
    elif not float(spec.costs[1, 0] - spec.costs[1, 1]) > 0:
        reasons["net_benefit"] = "a missed case costs nothing"
    if sample.missing:
        kept = ["accuracy"]
        if two:
            kept.append("tnr" if sample.missing == [1] else "tpr")
        return reasons | {name: f"no example of class(es) {sample.missing}" for name in FIGURES if name not in kept}, {}
    confusion = statistics.confusion[:, :, 0]
    never = torch.nonzero(confusion.sum(0) == 0).flatten().tolist()
    always = torch.nonzero((confusion == 1).all(0)).flatten().tolist()
    if 1 in never if two else never:
        reasons["ppv"] = f"class(es) {never} are never decided"
    if 1 in always if two else always:
        reasons["npv"] = f"class {always[0]} is always decided"
    return reasons, {name: classes for name, classes in (("ppv", never), ("npv", always)) if name in reasons and not two}


@dataclass(frozen=True)
class Gradients:
    """Gradients of a model's quantities, for the influence of each entry.

    Attributes:
        inputs: the model's.
        by_mean: of the quantities that depend on class means.
        by_total: in the classes' totals `(k,)`, of each quantity.
        by_area: in the areas `(k, k)`, of each.
        classes: on which each depends.
    """

    inputs: EvaluationInputs
    by_mean: dict[Key, MeanGradient]
    by_total: dict[Key, Tensor]
    by_area: dict[Key, Tensor]
    classes: dict[Key, list[int]]

    @classmethod
    def of(cls, inputs: EvaluationInputs) -> Gradients:
        """Differentiate every quantity."""
        means = inputs.statistics.averages.means[..., 0].nan_to_num()
        by_mean, by_total, by_area, classes = {}, {}, {}, {}
        for key, found in _gradients(inputs).items():
            of_means, by_total[key], by_area[key] = (each[..., 0].nan_to_num() for each in found)
            if (gradient := MeanGradient.of(of_means, means)) is not None:
                by_mean[key] = gradient
            used = of_means.any(1) | by_area[key].any(0) | by_area[key].any(1)
            classes[key] = torch.nonzero(used).flatten().tolist()
        return cls(inputs, by_mean, by_total, by_area, classes)

    @property
    def per_example(self) -> Tensor:
        """Return 1/n of each class `(k,)`."""
        return 1 / self.inputs.statistics.averages.totals[:, 0]

    def of_block(self, key: Key, block: Block) -> Tensor | float:
        """Return the influence of each entry of a block through the class means `(m,)`."""
        if key not in self.by_mean:
            return 0.0
        added = self.by_mean[key].influence(block) * self.per_example[block.labels]
        if self.inputs.design.clusters is None:
            return added
        # then the class frequencies vary as well
        return added + self.by_total[key][block.labels] * (1 if block.votes is None else block.votes)

    def of_cells(self, key: Key, cells: Tensor, labels: Tensor) -> Tensor:
        """Return the influence of an entry in each cell, class · K + decision, on a figure of decisions."""
        gradient, k = self.by_mean[key], self.inputs.sample.num_classes
        at = self.inputs.spec.num_dense + cells % k - gradient.first
        inside = (at >= 0) & (at < gradient.values.shape[1])
        value = torch.where(inside, gradient.values[labels, at.clamp(0, gradient.values.shape[1] - 1)], 0.0)
        added = (value - gradient.base[labels]) * self.per_example[labels]
        return added if self.inputs.design.clusters is None else added + self.by_total[key][labels]

    def of_areas(self, key: Key) -> Tensor | float:
        """Return the influence of each entry through the areas `(m,)`."""
        if not bool(self.by_area[key].any()):
            return 0.0
        sample, areas = self.inputs.sample, self.inputs.statistics.areas[..., 0]
        added = area_influence(sample, self.inputs.spec.rankings, self.by_area[key], areas)
        return added * self.per_example[sample.labels]


def influences(
    inputs: EvaluationInputs, other: EvaluationInputs | None = None
) -> tuple[dict[Key, Influence], dict[Key, list[int]]]:
    """Return the summed influences on each quantity, and the classes that the quantity depends on.

    With `other`, another model's predictions of the same entries, the influence is that on `inputs` minus `other`.
    """
    models = [Gradients.of(each) for each in ([inputs] if other is None else [inputs, other])]
    keys = [key for key in inputs.quantities if all(key in model.by_area for model in models)]
    sums = {key: InfluenceSum(inputs.design) for key in keys}
    counted = _add_decisions(models[0], sums) if other is None else set()
    where = inputs.design.strata if inputs.design.clusters is None else inputs.design.clusters
    for same in zip(*(blocks(model.inputs.sample, model.inputs.spec) for model in models), strict=True):
        for key in keys:
            if key not in counted:
                added = [model.of_block(key, block) for model, block in zip(models, same, strict=True)]
                _add(sums[key], where[same[0].entries], added)
    for key in keys:
        _add(sums[key], where, [model.of_areas(key) for model in models])
    classes = {key: sorted(set().union(*(model.classes[key] for model in models))) for key in keys}
    return {key: each.summary() for key, each in sums.items()}, classes


def _add_decisions(model: Gradients, sums: dict[Key, InfluenceSum]) -> set[Key]:
    """Add the influences on figures of decisions, equal for all entries of one class and decision, and return these figures.

    With very many classes and groups there are more such cells than entries; then nothing is added. Nor for rows with
    weights of their own, whose influences differ.
    """
    sample, design, k = model.inputs.sample, model.inputs.design, model.inputs.sample.num_classes
    if sample.weighted and design.clusters is None:
        return set()
    if len(design.strata) * k**2 > max(_MOST_CELLS, len(sample.labels)) and design.clusters is not None:
        return set()
    cells = sample.labels * k + sample.per_entry(decide(sample.log_probs, costs=model.inputs.spec.costs))
    groups = torch.zeros_like(cells) if design.clusters is None else design.clusters
    mass = torch.bincount(groups * k**2 + cells, weights=sample.votes).double()
    mass = torch.nn.functional.pad(mass, (0, -len(mass) % k**2)).view(-1, k**2)
    met = torch.nonzero(mass.sum(0)).flatten()
    labels, mass = met // k, mass[:, met]
    chosen = {key for key in sums if FIGURES[key[0]].of_decisions and key in model.by_mean}
    for key in chosen:
        each = model.of_cells(key, met, labels)
        if design.clusters is None:
            sums[key].add(labels, each, mass[0])
        else:
            sums[key].add(torch.arange(len(mass)), mass @ each)
    return chosen


def _add(sums: InfluenceSum, where: Tensor, added: Sequence[Tensor | float]) -> None:
    """Add the first model's influences, minus the second's if there are two."""
    difference = added[0] if len(added) == 1 else added[0] - added[1]
    if isinstance(difference, Tensor):
        sums.add(where, difference)


@torch.inference_mode(False)
@torch.enable_grad()
def _gradients(inputs: EvaluationInputs) -> dict[Key, tuple[Tensor, ...]]:
    """Return the gradient of every quantity by the class means, totals and areas, in any gradient mode of the caller.

    They are computed at copies, because autograd cannot use tensors made in inference mode.
    """
    statistics, averages = inputs.statistics, inputs.statistics.averages
    at = tuple(each.clone().requires_grad_() for each in (averages.means, averages.totals, statistics.areas))
    spec = replace(inputs.spec, costs=inputs.spec.costs.clone())
    live = Statistics(ClassAverages.of(spec, at[0], at[1]), at[2], statistics.population.clone())
    return {
        key: torch.autograd.grad(formula(live).sum(), at, allow_unused=True, materialize_grads=True)
        for key, formula in inputs.quantities.items()
    }
