"""A sample with all that is settled about it, before any interval.

Stage: `Sample` → `Problem`: what the figures are functions of, their values, and why some have none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from . import averages as within
from . import ranks
from .figures import FIGURES, State
from .intervals import Design, design_of
from .sample import Sample

_MOST_CLASSES_SHOWN = 50

Key = tuple[str, int | None]  # a figure's name, and the class it is of where it is shown by class


@dataclass(frozen=True)
class Problem:
    """The sample with all that is settled about it.

    Attributes:
        sample: labelled predictions.
        design: who is drawn together.
        rankings: by class, see `ranks.py`.
        state: what the figures are functions of.
        reasons: the figures that have no value, and why.
        quantities: those that have one.
        values: theirs.
        impossible: how many entries were of a class given probability 0.
    """

    sample: Sample
    design: Design
    rankings: list[ranks.Ranking]
    state: State
    reasons: dict[str, str]
    quantities: dict[Key, Callable[[State], Tensor]]
    values: dict[Key, float]
    impossible: int

    def stacked(self, state: State, width: int) -> Float64[Tensor, "f b"]:
        """All quantities, of each resample."""
        return torch.stack([formula(state).expand(width) for formula in self.quantities.values()])


def make_problem(sample: Sample, costs: Tensor, bins: int) -> Problem:
    k = sample.num_classes
    rankings = [] if sample.missing else [ranks.rank(sample, j) for j in ([1] if k == 2 else range(k))]
    recipe = within.make_recipe(sample, rankings, costs, bins)
    state = State(
        within.averages(sample, recipe),
        ranks.areas(sample, rankings) if rankings else torch.full((k, k, 1), math.nan, dtype=torch.float64),
        sample.prevalence.population[:, None],
    )
    reasons = _undefined(sample, state)
    quantities: dict[Key, Callable[[State], Tensor]] = {}
    for name, kind in FIGURES.items():
        if name in reasons:
            continue
        quantities[name, None] = kind.formula
        if kind.by_class is not None and 2 < k <= _MOST_CLASSES_SHOWN:
            for j in range(k):
                quantities[name, j] = _of_class(kind.by_class, j)
    values = {key: float(formula(state)) for key, formula in quantities.items()}
    rows = slice(None) if sample.rows is None else sample.rows
    impossible = int(sample.log_probs[rows].gather(1, sample.labels[:, None]).isneginf().sum())
    return Problem(sample, design_of(sample), rankings, state, reasons, quantities, values, impossible)


def _of_class(by_class: Callable[[State], Tensor], j: int) -> Callable[[State], Tensor]:
    return lambda state: by_class(state)[j]


def _undefined(sample: Sample, state: State) -> dict[str, str]:
    """Figures that this sample cannot have, with the reason."""
    reasons: dict[str, str] = {}
    recipe = state.averages.recipe
    if recipe.recalibration is None:
        reasons["calibration_slope"] = recipe.reason
    if sample.num_classes != 2:
        reasons["net_benefit"] = "defined for two classes"
    elif not float(recipe.costs[1, 0] - recipe.costs[1, 1]) > 0:
        reasons["net_benefit"] = "a missed case costs nothing"
    if sample.missing:
        kept = ["accuracy"]
        if sample.num_classes == 2:
            kept.append("tnr" if sample.missing == [1] else "tpr")
        reasons |= {name: f"no example of class(es) {sample.missing}" for name in FIGURES if name not in kept}
    else:
        never = torch.nonzero(state.confusion[:, :, 0].sum(0) == 0).flatten().tolist()
        always = torch.nonzero((state.confusion[:, :, 0] == 1).all(0)).flatten().tolist()
        if never if sample.num_classes > 2 else 1 in never:
            reasons["ppv"] = f"class(es) {never} are never decided"
        if always if sample.num_classes > 2 else 1 in always:
            reasons["npv"] = f"class {always[0]} is always decided"
    return reasons
