"""Labels of the target column: its classes, the positive class, and the population over the classes.

Stage: target column, `positive`, `population` → classes, a class number per row, and a `Prevalence` over the classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..prevalence import Prevalence
from ..sklearn.population import Population, by_class, class_prevalence, likely_positive
from .columns import Label, plain_label, text_of
from .text_files import MISSING, NUMBER

MOST_CLASSES = 50


@dataclass(frozen=True)
class Labels:
    """The classes of a target column.

    Attributes:
        classes: the labels, sorted; of two the positive one is the second.
        codes: the class number of each row `(n,)`, −1 for a missing label.
        positive: the second of two classes; None if there are more.
        guessed: whether `positive` is an arbitrary choice.
    """

    classes: list[Label]
    codes: np.ndarray
    positive: Label | None
    guessed: bool

    @property
    def counts(self) -> np.ndarray:
        """The rows of each class."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.classes))


def labels_of(series: pd.Series, positive: Label | None = None) -> Labels:
    """Return the classes of a target column, and the class number of each row.

    Raises:
        ValueError: if `positive` is not a class, or there are more than two classes.
    """
    numbers, values = pd.factorize(series.astype(object), use_na_sentinel=True)
    labels = [plain_label(value) for value in values]
    if any(isinstance(label, float) and math.isinf(label) for label in labels):
        raise ValueError(
            f"Expected names or finite numbers as classes in the column {series.name!r}, but got infinity: is it the right one?"
        )
    names: dict[str, Label] = {}
    for label in labels:
        other = names.setdefault(str(label).strip(), label)
        if (type(other), other) != (type(label), label):
            raise ValueError(
                f"Expected classes in the column {series.name!r} that differ in more than blanks or type, but got {other!r} "
                f"and {label!r}: write them in one way."
            )
    mixed = len({type(label) for label in labels}) > 1
    classes = sorted(set(labels), key=str if mixed else None)
    if positive is not None and not classes:
        raise ValueError(f"Expected labels in the column {series.name!r}, but every cell is empty: is it the right column?")
    second = None if positive is None else matching_label(positive, classes, "positive")
    if second is not None and len(classes) > 2:
        raise ValueError(
            f"Expected two classes for positive={positive!r}, but got {len(classes)}: leave `positive` out, and give "
            "the population by class."
        )
    guessed = False
    if len(classes) == 2:
        second = likely_positive(classes) if second is None else second
        guessed = second is None
        second = classes[1] if second is None else second
        classes = sorted(classes, key=lambda label: label == second)
    place = {label: number for number, label in enumerate(classes)}
    codes = np.array([*(place[label] for label in labels), -1], dtype=np.int64)[numbers]
    return Labels(classes, codes, second, guessed)


def population_of(
    population: Population | None, labels: Labels, sampling: np.ndarray | None = None, name: str = "population"
) -> Prevalence:
    """Return the `Prevalence` of a table: the given π, and the labels' own mix as ρ.

    Args:
        population: a number for two classes (the frequency of the positive one), a dict by label, K frequencies in the order
            of the classes, a `Prevalence`, an estimate, or None for the table's own mix.
        labels: the labels of the table.
        sampling: ρ, instead of the labels' own mix.
        name: the argument's name in messages.
    """
    rho = labels.counts / labels.counts.sum() if sampling is None else sampling
    if isinstance(population, Mapping):
        named = {matching_label(key, labels.classes, name): value for key, value in population.items()}
        population = by_class(named, np.array(labels.classes, dtype=object), name)
    elif isinstance(population, int | float) and len(labels.classes) > 2:
        raise ValueError(
            f"Expected a frequency for each of the classes {labels.classes}, but got {population!r}: name them all, such as "
            f"{ {label: round(1 / len(labels.classes), 3) for label in labels.classes} }."
        )
    return class_prevalence(population, np.arange(len(labels.classes)), rho)


def class_numbers(labels: pd.Series, classes: Sequence[Label]) -> np.ndarray:
    """Return the class number of each row (n,), −1 if it has no label; raise a ValueError for unknown labels."""
    place = {text_of(label): number for number, label in enumerate(classes)}
    numbers, names = pd.factorize(labels.astype(object))
    found = {text: _class_number(text, place) for text in map(text_of, names)}
    unknown = sorted(text for text, number in found.items() if number is None)
    if unknown:
        raise ValueError(
            f"Expected the classes {list(place)} in column {labels.name!r}, but got {unknown[:5]}: leave those rows out."
        )
    return np.array([*(found[text_of(name)] for name in names), -1], dtype=np.int64)[numbers]


def _class_number(text: str, place: dict[str, int]) -> int | None:
    """Return the number of the class that a label names, as it stands or loosely; −1 for "NA" and similar, None if unknown."""
    number = text_of(float(text)) if NUMBER.fullmatch(text.strip()) and "," not in text else text  # "1.0" is the class 1
    exact = [place[form] for form in (text, text.rstrip(), number) if form in place]
    alike = [each for label, each in place.items() if label.casefold() == text.casefold()]
    return exact[0] if exact else alike[0] if len(alike) == 1 else -1 if text in MISSING else None


def matching_label(value: Any, classes: list[Label], name: str) -> Label:
    """Return the class that a user means; "1" matches 1, and "true" matches True.

    Raises:
        ValueError: if there is no such class.
    """
    exact = [label for label in classes if type(label) is type(value) and label == value]
    alike = [label for label in classes if str(label) == str(value)]
    loose = [label for label in classes if str(label).strip().casefold() == str(value).strip().casefold()]
    for found in (exact, alike, loose):
        if len(found) == 1:
            return found[0]
    raise ValueError(
        f"Expected `{name}` to name one of the classes {classes[:MOST_CLASSES]}, but got {value!r}: "
        "write it as it stands in the table; a class without rows cannot be learned."
    )
