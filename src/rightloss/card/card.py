"""The function `card` and the class `Card`: one page about a model at a prevalence, for the people who must decide.

Stage: predictions, labels, a prevalence → `CardInputs` → plain numbers → `Card`, written as HTML, Markdown and JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..arrays import Predictions, checked_level
from ..atomic_files import write_whole
from ..metrics.compare import compare
from ..metrics.decisions import best_decisions
from ..metrics.evaluate import evaluate
from ..metrics.sample import Numbers
from . import content
from .inputs import CardInputs, Question, card_inputs
from .numbers import Plain, answer, figure, judged, prevalence_limits
from .subgroups import by_subgroup
from .words import crowd

SCHEMA = "rightloss card 1"
_FILES = ("card.html", "card.md", "card.json")
_UNCHOSEN = "the average risk of the population, since no threshold was given"
_COMPARED = ("expected_log_likelihood", "auc", "tpr", "tnr", "ppv", "npv", "net_benefit", "calibration_slope")


def card(
    predictions: Predictions | Mapping[str, Any] | Any,
    target: Numbers,
    prevalence: Any,
    *,
    rows: Any = None,
    from_: Any = None,
    threshold: float | Mapping[str, float] | None = None,
    by: Mapping[str, Any] | None = None,
    groups: Numbers | None = None,
    classes: Any = None,
    about: Mapping[str, Any] | None = None,
    level: float = 0.95,
) -> Card:
    """Return one page about a model at a prevalence, made from its predictions on labelled rows.

    The page begins with a picture of 1,000 people: flagged and ill, flagged and well, missed, and the rest, with the prevalence
    and the threshold to move. Then follow where the prevalence comes from, what was undone, the usual figures with intervals,
    calibration, net benefit, and the same by subgroup. Figures are those of `operating_point`, `decision_curve` and
    `smooth_calibration_curve`; models are compared as by `compare`.

    Args:
        predictions: log-probabilities `(n, k)`, or those that each finding is present, `(n, L)`; a fitted scikit-learn
            classifier, with `rows`; or a dict by name of several models on the same rows.
        target: labels in any mix of classes: numbers of the columns, or names in `classes`; for findings `(n, L)` of 0, 1, NaN.
        prevalence: π, as in `evaluate`: a number, K frequencies, a `Prevalence` such as `Prevalence.beta(12.5, 2988.5)` from a
            survey, an estimate, or by finding.
        rows: the labelled rows' columns, for fitted classifiers.
        from_: the class frequencies that the predictions are for, from where they are moved to π; None if they are for π.
        threshold: flag from this risk on, a number or by class or finding; π by default, the average risk.
        by: labels of subgroups by column, such as `{"sex": labels}`; many different numbers are cut into quarters.
        groups: ids of patients, if rows are not independent.
        classes: names of the classes, in the order of the columns.
        about: words for the page: `title`, `target` (the condition), `model`, `data`, `population_source`, `sampling`,
            `undone`, `shift` (text, or the result of `label_shift_test`); other entries are listed as they are.
        level: of the intervals.

    Examples:
        >>> import numpy as np
        >>> from rightloss.metrics import card
        >>> y = np.arange(400) % 2
        >>> x = np.random.default_rng(0).normal(size=400) + 2 * y - 1
        >>> log_probs = -np.logaddexp(0, np.stack([2 * x, -2 * x], 1))  # from equal classes
        >>> made = card(log_probs, y, prevalence=0.02, from_=0.5, classes=["healthy", "cancer"])
        >>> made.data["answers"][0]["whole_people"]
        {'found': 17, 'false_alarms': 185, 'missed': 3, 'rest': 795}
    """
    inputs = card_inputs(predictions, target, prevalence, rows, from_, threshold, by, groups, classes, checked_level(level))
    words = {str(name): _text(value) for name, value in (about or {}).items() if value is not None}
    answers = [_answer(inputs, model, number) for model in inputs.models for number in range(len(inputs.questions))]
    data = {
        "schema": SCHEMA,
        "made_by": f"rightloss {__version__}",
        "level": inputs.level,
        "about": words,
        "kind": "findings" if inputs.multilabel else "classes",
        "labels": inputs.labels,
        "models": list(inputs.models),
        "questions": [_question(inputs, each) for each in inputs.questions],
        "left_out": inputs.left_out,
        "answers": answers,
        "decisions": [_decisions(inputs, model) for model in inputs.models if inputs.questions[0].prevalence.num_classes > 2],
        "comparisons": _comparisons(inputs),
    }
    return Card(data)


@dataclass(frozen=True, repr=False)
class Card:
    """The result of `card`: the numbers, and pages made from them.

    Attributes:
        data: all numbers and words, as plain dicts and lists; the form is described by `card.schema.json` in the package.
    """

    data: Plain

    def __repr__(self) -> str:
        models = ", ".join(filter(None, self.data["models"])) or "a model"
        return f"Card of {models}: {', '.join(each['label'] for each in self.data['questions'])}"

    def json(self) -> str:
        """Return the numbers as JSON."""
        return json.dumps(self.data, ensure_ascii=False, allow_nan=False, indent=1) + "\n"

    def html(self) -> str:
        """Return the page: one file that loads nothing."""
        return content.html_page(self.data)

    def markdown(self) -> str:
        """Return the same as Markdown, with the metadata that model hubs read."""
        return content.markdown_page(self.data)

    def write(self, folder: str | os.PathLike[str], overwrite: bool = False) -> Path:
        """Write `card.html`, `card.md` and `card.json` to a folder, and return it."""
        folder = Path(folder)
        there = [name for name in _FILES if (folder / name).exists()]
        if there and not overwrite:
            raise ValueError(
                f"Expected a folder without a card, but {folder} has {', '.join(there)}: choose another, or overwrite it."
            )
        pages = dict(zip(_FILES, (self.html(), self.markdown(), self.json()), strict=True))
        folder.mkdir(parents=True, exist_ok=True)
        for name, page in pages.items():
            write_whole(folder / name, page)
        return folder


def _question(inputs: CardInputs, question: Question) -> Plain:
    """Return what is asked: π, the threshold, and the rows that answer."""
    read = question.target >= 0
    events = int((question.target == question.positive).sum())
    clusters = None if inputs.groups is None else len(np.unique(np.asarray(inputs.groups)[read]))
    return {
        "label": question.label,
        "prevalence": prevalence_limits(question.prevalence, question.positive, inputs.level),
        "predicted_at": question.predicted_at,
        "threshold": question.threshold,
        "threshold_reason": _UNCHOSEN if question.given is None else "as given",
        "threshold_chosen": question.given is not None,
        "weight": question.weight,
        "rows": int(read.sum()),
        "events": events,
        "patients": clusters,
        "people": crowd(question.rate),
    }


def _answer(inputs: CardInputs, model: str, number: int) -> Plain:
    """Return one model's answer to one question, with that of each subgroup."""
    question, table = inputs.questions[number], inputs.models[model][number]
    by = {"groups": inputs.groups, "level": inputs.level}
    found = answer(question, table, **by)
    whole = evaluate(table, question.target, question.certain, intervals="analytic", **by)
    slope, skill = (figure(each.value, each.low, each.high, each.reason) for each in (whole.calibration_slope, whole.skill))
    events = int((question.target == question.positive).sum())
    rest = int((question.target >= 0).sum()) - events
    found["figures"]["skill"] = skill
    found["calibration"] |= {"slope": slope} | judged(found["calibration"], slope, events, rest)
    subgroups = {column: by_subgroup(question, table, names, codes, **by) for column, (names, codes) in inputs.by.items()}
    return {"model": model, "question": number, **found, "subgroups": subgroups}


def _decisions(inputs: CardInputs, model: str) -> Plain:
    """Return the people of each class by the most probable class, per person of the population."""
    question, k = inputs.questions[0], len(inputs.labels)
    decided = best_decisions(inputs.models[model][0], 1 - np.eye(k))
    counts = np.bincount(question.target * k + decided, minlength=k * k).reshape(k, k)
    shares = question.prevalence.population[:, None] * counts / counts.sum(1, keepdims=True)
    return {"model": model, "shares": shares.tolist()}


def _comparisons(inputs: CardInputs) -> list[Plain]:
    """Return the differences of each pair of models, over all classes or for each finding."""
    found = []
    for number, question in enumerate(inputs.questions if inputs.multilabel else inputs.questions[:1]):
        two = question.prevalence.num_classes == 2
        options: Plain = {"threshold": question.threshold if two else None, "groups": inputs.groups, "level": inputs.level}
        for a, b in combinations(inputs.models, 2):
            first, second = (inputs.models[each][number] for each in (a, b))
            seen = compare(first, second, question.target, question.prevalence, **options)
            differences = {}
            for name in _COMPARED:
                each, ahead = seen[name], {"a ahead": a, "b ahead": b}.get(seen[name].verdict)
                differences[name] = figure(each.value, each.low, each.high, each.reason) | {"verdict": ahead}
            label = question.label if two else None
            found.append({"a": a, "b": b, "question": label, "differences": differences})
    return found


def _text(value: Any) -> str:
    """Return words as text: of a test of shift, its message."""
    return str(getattr(value, "message", value))
