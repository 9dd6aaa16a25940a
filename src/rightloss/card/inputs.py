"""What a card is about: models, and the questions that they answer, each a class against the rest or a finding.

Stage: predictions in any form, labels, a prevalence → `CardInputs`, with all predictions at that prevalence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..arrays import array_of, is_missing, is_tensor, log_prob_table
from ..finding_tables import FindingRows, by_name, option_by_name
from ..metrics.decisions import threshold_log_odds
from ..metrics.sample import as_prevalence
from ..predictive import retarget
from ..prevalence import Prevalence, without_estimate

MOST_QUESTIONS = 12  # classes or findings on a card
_MOST_GROUPS = 12  # subgroups of a column
_QUARTERS = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Question:
    """A class against the rest, or a finding.

    Attributes:
        label: what it is called.
        prevalence: π, of two or more classes.
        positive: the class.
        target: a class number for each row, −100 where a finding was not read.
        given: the threshold that somebody chose; None for the average risk.
        predicted_at: how frequent it was where the predictions came from; None if they are at π as they are.
    """

    label: str
    prevalence: Prevalence
    positive: int
    target: np.ndarray
    given: float | None
    predicted_at: float | None

    @property
    def certain(self) -> Prevalence:
        """The mean of π, without its uncertainty."""
        return Prevalence(self.prevalence.population)

    @property
    def rate(self) -> float:
        """π of the class."""
        return float(self.prevalence.population[self.positive])

    @property
    def threshold(self) -> float:
        """The risk from which on people are flagged."""
        return self.rate if self.given is None else self.given

    @property
    def weight(self) -> float:
        """How many false alarms a missed case weighs, for whom the threshold is best: (1 − t)/t."""
        return (1 - self.threshold) / self.threshold


@dataclass(frozen=True)
class CardInputs:
    """Models, and the questions that they answer.

    Attributes:
        models: for each model, log-probabilities `(n, k)` at π for each question.
        questions: what is asked.
        labels: names of the classes, or of the findings.
        multilabel: whether the questions are findings.
        by: for each column, the names of its subgroups and the number of each row's, −1 for none.
        groups: patients.
        level: of the intervals.
        left_out: how many classes or findings are not on the card.
    """

    models: dict[str, list[np.ndarray]]
    questions: list[Question]
    labels: list[str]
    multilabel: bool
    by: dict[str, tuple[list[str], np.ndarray]]
    groups: Any
    level: float
    left_out: int


def card_inputs(
    predictions: Any,
    target: Any,
    prevalence: Any,
    rows: Any,
    from_: Any,
    threshold: Any,
    by: Any,
    groups: Any,
    classes: Any,
    level: float,
) -> CardInputs:
    """Check the arguments of `card`, and return what the card is about."""
    if (findings := by_name(prevalence)) is not None and classes is None:
        classes = list(findings)
    tables, classes = _tables(predictions, rows, classes, findings is not None)
    if findings is not None:
        models, questions = _findings(tables, target, prevalence, findings, from_, threshold)
    else:
        models, questions = _classes(tables, target, prevalence, classes, from_, threshold)
    labels, kept = [each.label for each in questions], _kept(questions)
    if findings is None:
        labels = [str(each) for each in classes]
    models = {name: [tables[number] for number in kept] for name, tables in models.items()}
    columns = {str(name): subgroups(values, str(name), len(questions[0].target)) for name, values in _columns(by).items()}
    left_out = len(questions) - len(kept)
    return CardInputs(models, [questions[i] for i in kept], labels, findings is not None, columns, groups, level, left_out)


def _tables(predictions: Any, rows: Any, classes: Any, multilabel: bool) -> tuple[dict[str, Any], Any]:
    """Return the predictions of each model, and the names of the classes."""
    named = predictions if isinstance(predictions, Mapping) else {"": predictions}
    if not named:
        raise ValueError("Expected predictions of at least one model, but got none: give log-probabilities (n, k).")
    tables = {}
    for name, each in named.items():
        if hasattr(each, "predict_proba"):
            each, own = _predicted(each, rows)
            classes = own if classes is None else classes
        tables[str(name)] = each
    if not multilabel:
        tables = {name: log_prob_table(each) for name, each in tables.items()}
        widths = {table.shape[1] for table in tables.values()}
        if len(widths) > 1 or len({len(table) for table in tables.values()}) > 1:
            shapes = " and ".join(str(table.shape) for table in tables.values())
            raise ValueError(f"Expected predictions of the same rows and classes, but got {shapes}: align the models first.")
        (width,) = widths
        classes = list(range(width)) if classes is None else list(classes)
        if len(classes) != width:
            raise ValueError(
                f"Expected {width} `classes`, as predictions have columns, but got {len(classes)}: name each column."
            )
    return tables, classes


def _predicted(model: Any, rows: Any) -> tuple[np.ndarray, list[Any]]:
    """Return log-probabilities of rows by a fitted classifier, and its classes."""
    if rows is None:
        raise ValueError("Expected `rows` for a fitted classifier, but got none: give the columns X of the labelled rows.")
    with np.errstate(divide="ignore"):  # a probability of 0
        found = model.predict_log_proba(rows) if hasattr(model, "predict_log_proba") else np.log(model.predict_proba(rows))
    return np.asarray(found), list(model.classes_)


def _classes(
    tables: dict[str, np.ndarray], target: Any, prevalence: Any, classes: list[Any], from_: Any, threshold: Any
) -> tuple[dict[str, list[np.ndarray]], list[Question]]:
    """Return the questions of classes that exclude each other: class 1 of two, or each against the rest."""
    k = len(classes)
    at = as_prevalence(prevalence, k)
    labels = class_numbers(target, classes)
    asked = [1] if k == 2 else list(range(k))
    if threshold is not None and k > 2 and not isinstance(threshold, Mapping):
        threshold = dict.fromkeys(map(str, classes), threshold)
    questions = []
    mix = None if from_ is None else as_prevalence(from_, k).population
    for j in asked:
        given = threshold.get(str(classes[j])) if isinstance(threshold, Mapping) else threshold
        start = None if mix is None else float(mix[j])
        questions.append(Question(str(classes[j]), at, j, labels, _checked_threshold(given), start))
    moved = {name: table if mix is None else retarget(table, mix, at.population) for name, table in tables.items()}
    return {name: [table] * len(asked) for name, table in moved.items()}, questions


def _findings(
    tables: dict[str, Any], target: Any, prevalence: Any, findings: dict[str, Any], from_: Any, threshold: Any
) -> tuple[dict[str, list[np.ndarray]], list[Question]]:
    """Return the questions of findings that can be present together."""
    names = list(findings)
    mixes = [as_prevalence(without_estimate(each), 2) for each in findings.values()]
    starts, cuts = option_by_name(from_, names, "from_"), option_by_name(threshold, names, "threshold")
    if from_ is not None and np.ndim(from_) == 1 and not isinstance(from_, Mapping):
        starts = dict(zip(names, from_, strict=True))
    found = {model: FindingRows.of(each, target, prevalence) for model, each in tables.items()}
    first, questions = next(iter(found.values())), []
    if first.weights is not None:
        remedy = "give the rates alone, for rows that were sampled each by itself"
        raise ValueError(f"Expected findings that were sampled each by itself, but they were sampled together: {remedy}.")
    for number, (name, mix) in enumerate(zip(names, mixes, strict=True)):
        labels = first[number][1]
        if set(np.unique(labels[labels >= 0]).tolist()) != {0, 1}:
            raise ValueError(
                f"Expected rows with and without {name!r}, but got only one kind: add some, or leave the finding out."
            )
        start = None if starts[name] is None else float(as_prevalence(starts[name], 2).population[1])
        questions.append(Question(name, mix, 1, labels, _checked_threshold(cuts[name]), start))

    def moved(table: np.ndarray, asked: Question) -> np.ndarray:
        return table if asked.predicted_at is None else retarget(table, asked.predicted_at, asked.prevalence.population)

    models = {model: [moved(rows[number][0], asked) for number, asked in enumerate(questions)] for model, rows in found.items()}
    return models, questions


def _checked_threshold(given: Any) -> float | None:
    if given is None:
        return None
    threshold_log_odds(given)
    return float(given)


def _kept(questions: list[Question]) -> list[int]:
    """Return the questions that the card has room for: the most frequent ones, in their own order."""
    order = np.argsort([-each.rate for each in questions], kind="stable")[:MOST_QUESTIONS]
    return sorted(order.tolist())


def class_numbers(target: Any, classes: Sequence[Any]) -> np.ndarray:
    """Return labels as numbers of classes: those of names, or numbers as they are."""
    given = array_of(target, "target") if is_tensor(target) else np.asarray(target)
    numbers = list(range(len(classes)))
    named = list(classes) != numbers
    if named and sorted(map(str, classes)) == sorted(map(str, numbers)) and not isinstance(classes[0], str):
        raise ValueError(
            f"Expected `classes` that are names, or {numbers} in this order, but got {list(classes)}, whose labels can be "
            "names or numbers of columns: bring the columns into the order of the numbers, or give names."
        )
    values, names = set(given.tolist()), set(classes)
    if named and (given.dtype.kind not in "biuf" or (given.dtype.kind != "f" and values <= names)):
        if unknown := sorted(map(str, values - names)):
            raise ValueError(f"Expected labels among {list(classes)}, but got {unknown[:5]}: are they labels of this model?")
        place = {name: number for number, name in enumerate(classes)}
        return np.array([place[each] for each in given.tolist()], dtype=np.int64)
    if given.dtype.kind not in "biu" and not (given.dtype.kind == "f" and (given == np.round(given)).all()):
        came = f"{given.dtype} such as {given[:3].tolist()}"
        raise ValueError(
            f"Expected labels that are numbers of classes or among {list(classes)[:5]}, but got {came}: name the `classes`."
        )
    return given.astype(np.int64)


def _columns(by: Any) -> dict[str, Any]:
    if by is None:
        return {}
    if not isinstance(by, Mapping) and hasattr(by, "columns"):
        return {name: by[name] for name in by.columns}
    if not isinstance(by, Mapping):
        raise ValueError(
            f"Expected `by` to be a dict of labels by column, but got {type(by).__name__}: write {{'sex': labels}}."
        )
    return dict(by)


def subgroups(values: Any, name: str, rows: int) -> tuple[list[str], np.ndarray]:
    """Return the names of the subgroups, the largest first, and the number of each row's subgroup, −1 for one too many.

    Many different numbers are cut into quarters.
    """
    given = values.to_numpy() if hasattr(values, "to_numpy") else values
    given = np.asarray(given, dtype=None if hasattr(given, "dtype") else object)
    if given.shape != (rows,):
        raise ValueError(
            f"Expected a label for each of the {rows} rows in `by` {name!r}, but got shape {given.shape}: align them."
        )
    if given.dtype.kind in "biuf":
        names, codes, counts = np.unique(given, return_inverse=True, return_counts=True)
        if len(names) > _MOST_GROUPS and given.dtype.kind != "b":
            return _quarters(given.astype(np.float64))
    else:
        listed = given.tolist()
        place = {value: number for number, value in enumerate(dict.fromkeys(listed))}
        texts = ["missing" if is_missing(value) else str(value) for value in place]
        names, same = np.unique(texts, return_inverse=True)
        codes = same[np.fromiter(map(place.__getitem__, listed), np.int64, len(listed))]
        counts = np.bincount(codes)
    order = np.argsort(-counts, kind="stable")[:_MOST_GROUPS]
    number = np.full(len(names), -1)
    number[order] = np.arange(len(order))
    return ["missing" if is_missing(each) else str(each) for each in names[order].tolist()], number[codes]


def _quarters(values: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Return quarters of numbers, named such as "45 to 60", and the quarter of each row."""
    edges = np.unique(np.nanquantile(values, [0.0, *_QUARTERS, 1.0]))
    names = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges)]
    place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(names) - 1)
    absent = np.isnan(values)
    return names + ["missing"] * bool(absent.any()), np.where(absent, len(names), place)
