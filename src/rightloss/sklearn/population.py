"""A population as users of scikit-learn write it → a `Prevalence` over an estimator's classes.

Stage: a number, K frequencies, a dict by class label, a `Prevalence` or an estimate; `classes_` → `Prevalence`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..prevalence import Frequencies, PopulationEstimate, Prevalence, frequencies, without_estimate

Population = Frequencies | Mapping[Any, float] | Prevalence | PopulationEstimate


def class_prevalence(
    population: Population | None, classes: np.ndarray, sampling: Frequencies | Mapping[Any, float]
) -> Prevalence:
    """Return the `Prevalence` of an estimator's classes.

    Args:
        population: π: for two classes the frequency of `classes[1]`; K frequencies in the order of `classes`; a dict by class
            label; a `Prevalence` or an estimate of one, whose uncertainty is kept. None: the sampling mix itself.
        classes: the estimator's `classes_`, sorted as scikit-learn sorts them.
        sampling: ρ (K,), the mix that the estimator was trained on, written as `population`.
    """
    rho = frequencies(by_class(sampling, classes, "sampling"), "sampling", len(classes))
    if population is None:
        return Prevalence(rho, rho)
    value = without_estimate(population)
    if isinstance(value, Prevalence):
        return Prevalence(rho, rho).retarget(value)
    return Prevalence(frequencies(by_class(value, classes, "population"), "population", len(classes)), rho)


def by_class(value: Any, classes: np.ndarray, name: str) -> Any:
    """Return frequencies given by class label as a list in the order of `classes`; anything else as it is."""
    if not isinstance(value, Mapping):
        return value
    known = list(classes.tolist())
    if set(value) != set(known):
        raise ValueError(
            f"Expected `{name}` to name the classes {known}, but got {list(value)}: write a frequency for each of them."
        )
    return [value[label] for label in known]
