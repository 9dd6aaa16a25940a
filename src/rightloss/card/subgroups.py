"""The same figures by subgroup, and their differences from everybody else.

Stage: `Question`, log-probabilities at π, the subgroup of each row → figures of each subgroup at its own prevalence, and
differences with limits. How frequent the condition is in a subgroup follows from π and from the shares of the subgroup in each
class, so rows may be sampled by class, but within a class not by subgroup.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from scipy.special import polygamma

from ..metrics.curves import roc_curve
from ..metrics.one_vs_rest import Scores, scores
from ..metrics.predictive_values import operating_point
from ..prevalence import Prevalence
from .inputs import Question
from .numbers import Plain, at_threshold, figure, mean_over_observed
from .words import counted, number, percent

FEWEST = 10  # examples with and without the condition
WIDEST = 0.3  # interval of a sensitivity or specificity that still says something
WORDS = {"sensitivity": "sensitivity", "specificity": "specificity", "auc": "AUC"}


def by_subgroup(
    question: Question, log_probs: np.ndarray, names: list[str], codes: np.ndarray, groups: Any, level: float
) -> Plain:
    """Return the figures of the subgroups of one column, their differences from all others, and for whom it works worse."""
    seen = scores(log_probs, question.target, question.prevalence, question.positive, "subgroups", groups)
    part = partial(_subgroup, question, log_probs, seen, groups, level)
    found = [part(name, codes == code) for code, name in enumerate(names)]
    rest = found[::-1]
    if len(names) != 2 or (codes < 0).any():
        rest = [part("", codes != code) for code in range(len(names))]
    rows = []
    for own, others in zip(found, rest, strict=True):
        comparable = "reason" not in own and "reason" not in others
        row = own | {"differences": _differences(own, others) if comparable else None}
        if comparable:
            row["few"] = own["few"] and not any(_is_worse(row, name) for name in WORDS)  # what is certain can be said
        rows.append(row)
    return {"groups": rows, "rows_left_out": int((codes < 0).sum()), "summary": _summary(rows)}


def _subgroup(
    question: Question, log_probs: np.ndarray, seen: Scores, groups: Any, level: float, name: str, rows: np.ndarray
) -> Plain:
    """Return the figures of some rows."""
    inside, own = seen.sample.per_entry(rows), question.positive
    labels = seen.sample.labels[inside]
    events, others = int((labels == own).sum()), int((labels != own).sum())
    about: Plain = {"name": name, "rows": events + others, "events": events}
    if min(events, others) < FEWEST or len(np.unique(labels)) < seen.sample.num_classes:
        return about | {"reason": f"too few to say: {events} with it and {others} without"}
    prevalence = _own_prevalence(question, seen, inside)
    options: Plain = {"prevalence": prevalence, "positive": own, "level": level}
    options["groups"] = None if groups is None else np.asarray(groups)[rows]
    at = operating_point(log_probs[rows], question.target[rows], threshold=question.threshold, **options)
    area = roc_curve(log_probs[rows], question.target[rows], **options)
    found = at_threshold(at) | {"auc": figure(area.auc, area.low, area.high), "ratio": mean_over_observed(seen, inside, level)}
    few = any(found[name]["high"] - found[name]["low"] > WIDEST for name in ("sensitivity", "specificity"))
    return about | {"prevalence": at.prevalence, "few": few, **found}


def _own_prevalence(question: Question, seen: Scores, inside: np.ndarray) -> Prevalence:
    """Return how frequent the classes are in a subgroup, π_c P(subgroup|c) rescaled, as a Dirichlet as wide as its error.

    The error is that of the log-odds of the class, from the shares of the subgroup in it and in the rest, and from π.
    """
    pi, own = question.prevalence.population, question.positive
    counts = seen.in_bins(inside.astype(np.int64), 2)
    share = counts.shares[1]
    mix = pi * share / (pi * share).sum()
    rest = np.delete(pi, own) / np.delete(pi, own).sum()
    variance = (1 - share) / (share * counts.worth[1])
    of_rest = np.delete(pi * share, own) / np.delete(pi * share, own).sum() if len(pi) > 2 else rest
    error = float(variance[own] + (of_rest**2 * np.delete(variance, own)).sum())
    alpha = question.prevalence.concentration
    if alpha is not None:
        error += float(polygamma(1, alpha[own]) + polygamma(1, alpha.sum() - alpha[own]))
    if error <= 1e-12:
        return Prevalence(mix)
    rate = float(mix[own])
    return Prevalence.dirichlet(mix * max(1 / (rate * (1 - rate) * error) - 1, 1.0))


def _differences(own: Plain, rest: Plain) -> Plain:
    """Return differences of a subgroup from everybody else; of the mean prediction over the observed frequency, the ratio.

    Rows of the two are independent: the distances to the limits are added in squares (MOVER).
    """
    found = {}
    for name in (*WORDS, "ratio"):
        a, b = ([each[name][part] for part in ("value", "low", "high")] for each in (own, rest))
        if None in (*a, *b):
            found[name] = figure(math.nan, reason="undefined in one of the two")
            continue
        if name == "ratio":
            a, b = ([math.log(max(each, 1e-9)) for each in three] for three in (a, b))
        value = a[0] - b[0]
        three = (value, value - math.hypot(a[0] - a[1], b[2] - b[0]), value + math.hypot(a[2] - a[0], b[0] - b[1]))
        found[name] = figure(*(map(math.exp, three) if name == "ratio" else three))
    return found


def worst(columns: Plain) -> str:
    """Return a sentence about the largest certain difference of all columns, or that none is certain; "" without subgroups."""
    compared = [(column, each) for column, found in columns.items() for each in found["groups"] if each["differences"]]
    for names in (("sensitivity", "specificity"), ("auc",)):
        all_ = [(each["differences"][name]["value"], column, each, name) for column, each in compared for name in names]
        worse = [one for one in all_ if _is_worse(*one[2:])]
        if worse:
            _, column, each, name = min(worse, key=lambda one: one[0])
            sentence = _worse(each, name).removesuffix(").")
            return f"By {column}, {sentence[0].lower()}{sentence[1:]}; the largest of {len(all_)} differences)."
    return _not_excluded([each for _, each in compared]) if compared else ""


def _summary(rows: list[Plain]) -> list[str]:
    """Return sentences: for whom it works worse, and for whom nobody can say."""
    compared = [each for each in rows if each["differences"] is not None]
    said: list[str] = []
    for each in compared:
        said += [_worse(each, name) for name in WORDS if _is_worse(each, name)]
        said += filter(None, [_otherwise_calibrated(each["name"], each["differences"]["ratio"])])
    if compared and not said:
        said.append(_not_excluded(compared))
    unclear = [each for each in rows if "reason" in each and each["differences"] is None]
    unclear += [each for each in compared if each["few"]]
    if unclear:
        named = ", ".join(f"{each['name']} ({counted(each['rows'], 'row')})" for each in unclear)
        said.append(f"Nobody can say for {named}: too few.")
    return said


def _is_worse(group: Plain, name: str) -> bool:
    high = group["differences"][name]["high"]
    return high is not None and high < 0


def _worse(group: Plain, name: str) -> str:
    """Return a sentence about a figure that is certainly lower in a subgroup than elsewhere."""
    gap, own = group["differences"][name], group[name]["value"]
    of, unit, points = (number, -1, "") if name == "auc" else (percent, -100, " points")
    least, most = (f"{unit * gap[end]:.2g}" for end in ("high", "low"))
    against = f"{of(own)} against {of(round(own - gap['value'], 3))} of the others"
    return f"Worse for {group['name']}: {WORDS[name]} {against} ({least} to {most}{points} lower)."


def _not_excluded(compared: list[Plain]) -> str:
    """Return a sentence for subgroups whose differences all may be none."""
    clear = [each for each in compared if not each["few"]] or compared
    ends = [abs(each["differences"]["sensitivity"][end] or 0.0) for each in clear for end in ("low", "high")]
    size = f"{100 * max(ends):.2g}"
    return (
        "These rows show no certain difference between subgroups, which does not mean that there is none: sensitivity may "
        f"differ by up to {size} points."
    )


def _otherwise_calibrated(name: str, gap: Plain) -> str:
    """Return a sentence if risks, relative to what occurs, are certainly higher or lower than elsewhere, else ""."""
    if gap["low"] is None or gap["low"] <= 1 <= gap["high"]:
        return ""
    higher = gap["value"] > 1
    least, size, most = sorted(each if higher else 1 / each for each in (gap["low"], gap["value"], gap["high"]))
    limits = f"{least:.2f} to {most:.2f}"
    word = "higher" if higher else "lower"
    return f"For {name} risks are {size:.2f} times {word}, relative to what occurs, than for the others ({limits})."
