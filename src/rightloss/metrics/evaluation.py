"""Every figure at a prevalence, as it is handed out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .figures import FIGURES


@dataclass(frozen=True)
class Figure:
    """A number with its interval. `float(figure)` is its value.

    Attributes:
        value: the figure; NaN where it is not defined.
        low: the interval's lower end; NaN where there is none.
        high: its upper end.
        reason: why something is NaN, or why the interval is not to be trusted; empty otherwise.
        by_class: with more than two classes, the figure of each against the rest.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    reason: str = ""
    by_class: tuple[Figure, ...] | None = None

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        if math.isnan(self.value):
            return f"undefined: {self.reason}"
        interval = "" if math.isnan(self.low) and math.isnan(self.high) else f" ({self.low:.4g} to {self.high:.4g})"
        return f"{self.value:.4g}{interval}" + (f"; {self.reason}" if self.reason else "")


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Every figure at one prevalence. Print it for a table.

    Attributes:
        expected_log_likelihood: Σ_c π_c E[log p(c|x) | c], in nats.
        skill: 1 − (expected log-likelihood) / Σ_c π_c log π_c: 0 for always answering π.
        brier: mean squared error of the probabilities.
        mean_prediction: of the last class; its π in a model that is right.
        accuracy: share of right decisions in the sample as it is.
        weighted_accuracy: in the population.
        balanced_accuracy: were all classes equally frequent.
        ppv: positive predictive value, or precision.
        npv: negative predictive value.
        tpr: true positive rate, sensitivity, or recall.
        tnr: true negative rate, or specificity.
        auc: area under the ROC curve; one against the rest for more than two classes.
        auc_pairwise: its mean over pairs of classes.
        off_by_one: share of decisions within one class of the truth.
        calibration_error: mean distance between predicted and observed frequency, in bins of equal weight.
        calibration_slope: 1 in a model that is right, less in one too sure of itself.
        expected_cost: of the decisions.
        net_benefit: true positives per person, less false ones at their price.
        level: of the intervals.
        intervals: how they were made: "bootstrap", "analytic" or "none".
        num_examples: how many examples of each class there were, votes counted in fractions.
        population: π.
    """

    expected_log_likelihood: Figure
    skill: Figure
    brier: Figure
    mean_prediction: Figure
    accuracy: Figure
    weighted_accuracy: Figure
    balanced_accuracy: Figure
    ppv: Figure
    npv: Figure
    tpr: Figure
    tnr: Figure
    auc: Figure
    auc_pairwise: Figure
    off_by_one: Figure
    calibration_error: Figure
    calibration_slope: Figure
    expected_cost: Figure
    net_benefit: Figure
    level: float
    intervals: str
    num_examples: tuple[float, ...]
    population: tuple[float, ...]

    def __getitem__(self, name: str) -> Figure:
        if name not in FIGURES:
            raise KeyError(f"there is no figure {name!r}; there are {', '.join(FIGURES)}")
        figure: Figure = getattr(self, name)
        return figure

    def __iter__(self) -> Iterator[str]:
        return iter(FIGURES)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Plain numbers and words, for JSON or a data frame: `pandas.DataFrame(evaluation.to_dict()).T`."""
        figures = {name: self[name] for name in FIGURES}
        return {name: {"value": f.value, "low": f.low, "high": f.high, "reason": f.reason} for name, f in figures.items()}

    def __repr__(self) -> str:
        share = ", ".join(f"{value:.4g}" for value in self.population[:6]) + (", …" if len(self.population) > 6 else "")
        counts = ", ".join(f"{value:g}" for value in self.num_examples[:6]) + (", …" if len(self.num_examples) > 6 else "")
        how = "" if self.intervals == "none" else f"; {self.level:.0%} intervals, {self.intervals}"
        lines = [f"At a population of [{share}], from [{counts}] examples{how}"]
        width = max(len(kind.words) for kind in FIGURES.values())
        lines += [f"  {FIGURES[name].words:<{width}}  {self[name]}" for name in FIGURES]
        return "\n".join(lines)
