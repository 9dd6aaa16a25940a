"""Convert the argument `population` of an estimator to a `Prevalence` over its classes.

Stage: a number, K frequencies, a dict by class label, a `Prevalence` or an estimate; `classes_` → `Prevalence`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from ..prevalence import Frequencies, PopulationEstimate, Prevalence, frequencies, without_estimate

Population = Frequencies | Mapping[Any, float] | Prevalence | PopulationEstimate
LearntPopulation = Population | Literal["unknown"]


def class_prevalence(
    population: Population | None, classes: np.ndarray, sampling: Frequencies | Mapping[Any, float]
) -> Prevalence:
    """Return the `Prevalence` of an estimator's classes.

    Args:
        population: π: for two classes the frequency of `classes[1]`; K frequencies in the order of `classes`; a dict by class
            label; a `Prevalence` or an estimate of one, with its uncertainty. None for the sampling mix itself.
        classes: the estimator's `classes_`, sorted as scikit-learn sorts them.
        sampling: ρ (K,), the mix of the estimator's training, in the form of `population`; (0, 1) or (1, 0) if only one of
            two classes was labelled.
    """
    trained = _trained(by_class(sampling, classes, "sampling"), len(classes))
    if population is None:
        if not bool(trained.sampling.all()):
            raise ValueError(
                "Expected a population, because only one class was labelled, but got None: give its class frequencies."
            )
        return trained
    value = without_estimate(population)
    if isinstance(value, Prevalence):
        return trained.retarget(value)
    return trained.retarget(frequencies(by_class(value, classes, "population"), "population", len(classes)))


def is_unknown(population: Any) -> bool:
    """Return whether a population is to be learned from unlabelled rows: "unknown", or `Prevalence.unknown`."""
    if isinstance(population, str):
        if population != "unknown":
            raise ValueError(
                f"Expected `population` to be frequencies or 'unknown', but got {population!r}: write a number, or a dict."
            )
        return True
    return isinstance(population, Prevalence) and population.is_unknown


def by_class(value: Any, classes: np.ndarray, name: str) -> Any:
    """Return a dict of frequencies by class label as a list in the order of `classes`; return anything else unchanged."""
    if not isinstance(value, Mapping):
        return value
    known = list(classes.tolist())
    if set(value) != set(known):
        raise ValueError(
            f"Expected `{name}` to name the classes {known}, but got {list(value)}: write a frequency for each of them."
        )
    return [value[label] for label in known]


def _trained(sampling: Any, num_classes: int) -> Prevalence:
    """Return the prevalence at the training mix itself; if only one class was labelled, π is one half until it is set."""
    if num_classes == 2 and np.ndim(sampling) == 1 and sorted(map(float, sampling)) == [0.0, 1.0]:
        return Prevalence.positive_unlabelled(0.5, labelled=int(np.argmax(np.asarray(sampling))))
    rho = frequencies(sampling, "sampling", num_classes)
    return Prevalence(rho, rho)
