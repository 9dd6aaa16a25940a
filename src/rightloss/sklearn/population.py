"""Convert the argument `population` of an estimator to a `Prevalence` over its classes.

Stage: a number, K frequencies, a dict by class label, a `Prevalence` or an estimate; `classes_` → `Prevalence`.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, Literal

import numpy as np

from ..prevalence import Frequencies, PopulationEstimate, Prevalence, frequencies, without_estimate

# words of two labels by which one of them is plainly the positive class
_POSITIVE = set("1 yes y true t positive pos + case cases malignant event dead died sick".split())
_NEGATIVE = set("0 -1 no n false f negative neg - control controls benign none alive healthy normal absent".split())

Population = Frequencies | Mapping[Any, float] | Prevalence | PopulationEstimate
LearntPopulation = Population | Literal["unknown"]


def class_prevalence(
    population: Population | None, classes: np.ndarray, sampling: Frequencies | Mapping[Any, float]
) -> Prevalence:
    """Return the `Prevalence` of an estimator's classes.

    Args:
        population: π: for two classes the frequency of `classes[1]`, see `by_class`; K frequencies in the order of `classes`;
            a dict by class label; a `Prevalence` or an estimate of one, with its uncertainty. None for the sampling mix itself.
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
    """Return a dict of frequencies by class label as a list in the order of `classes`; return anything else unchanged.

    A number is the frequency of `classes[1]`: of True, or of the larger label. Words are sorted by the alphabet, which says
    nothing about what is meant. So a number is accepted for two words only if `classes[1]` is plainly the positive one:
    `names_positive`.

    Raises:
        ValueError: if a dict does not name the classes, or if it is not plain which of two words a number is for.
    """
    known = list(classes.tolist())
    if _is_number(value) and len(known) == 2 and 0 < float(value) < 1 and not names_positive(classes):
        raise ValueError(
            f"Expected `{name}` to name its class, because the labels are words, but got {float(value):g}, which could be the "
            f"frequency of {known[0]!r} or of {known[1]!r}: write {_as_dicts(known, float(value))}."
        )
    if not isinstance(value, Mapping):
        return value
    if set(value) != set(known):
        raise ValueError(
            f"Expected `{name}` to name the classes {known}, but got {list(value)}: write a frequency for each of them."
        )
    return [value[label] for label in known]


def names_positive(classes: np.ndarray) -> bool:
    """Return whether `classes[1]` is the positive of two classes: the larger number, True, or a word such as "yes"."""
    known = list(classes.tolist())
    return all(isinstance(label, Real) for label in known) or likely_positive(known) == known[1]


def likely_positive(classes: list[Any]) -> Any:
    """Return which of two labels is plainly the positive one, by its word or that of the other ("no", "healthy"), or None."""
    words = [str(label).strip().casefold() for label in classes]
    for number in (0, 1):
        if (words[number] in _POSITIVE) > (words[1 - number] in _POSITIVE):
            return classes[number]
        if (words[1 - number] in _NEGATIVE) > (words[number] in _NEGATIVE):
            return classes[number]
    return None


def _is_number(value: Any) -> bool:
    return np.ndim(value) == 0 and isinstance(np.asarray(value).item(), Real)


def _as_dicts(labels: list[Any], rate: float) -> str:
    """Return the dict that a number may stand for; both, if it is not plain which label is the positive one."""
    rest, positive = float(f"{1 - rate:.12g}"), likely_positive(labels)
    dicts = [{label: rate if label == chosen else rest for label in labels} for chosen in labels if positive in (None, chosen)]
    return " or ".join(map(str, dicts))


def _trained(sampling: Any, num_classes: int) -> Prevalence:
    """Return the prevalence at the training mix itself; if only one class was labelled, π is one half until it is set."""
    if num_classes == 2 and np.ndim(sampling) == 1 and sorted(map(float, sampling)) == [0.0, 1.0]:
        return Prevalence.positive_unlabelled(0.5, labelled=int(np.argmax(np.asarray(sampling))))
    rho = frequencies(sampling, "sampling", num_classes)
    return Prevalence(rho, rho)
