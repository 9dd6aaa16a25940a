"""The same figures by subgroup, and their differences from everybody else.

Stage: `Question`, log-probabilities at π, the subgroup of each row → figures of each subgroup at its own prevalence, and
differences with limits. How frequent the condition is in a subgroup follows from π and from the shares of the subgroup in each
class, so rows may be sampled by class, but within a class not by subgroup.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import polygamma

from ..metrics.curves import roc_curve
from ..metrics.one_vs_rest import Scores, scores
from ..metrics.predictive_values import operating_point
from ..prevalence import Prevalence
from .figures import Plain, at_threshold, figure, mean_over_observed
from .inputs import Question

FEWEST = 10  # examples with and without the condition
COMPARED = {"sensitivity": "points", "specificity": "points", "auc": "points", "ratio": "factor"}


def by_subgroup(
    question: Question, log_probs: np.ndarray, names: list[str], codes: np.ndarray, groups: Any, level: float
) -> Plain:
    """Return the figures of the subgroups of one column, their differences from all others, and for whom it works worse."""
    seen = scores(log_probs, question.target, question.prevalence, question.positive, "subgroups", groups)
    number = seen.sample.per_entry(codes)
    found = [
        _subgroup(question, log_probs, seen, number == code, codes == code, name, groups, level)
        for code, name in enumerate(names)
    ]
    several = len(names) > 1
    rest = (
        {
            code: _subgroup(question, log_probs, seen, number != code, codes != code, "", groups, level)
            for code in range(len(names))
        }
        if several
        else {}
    )
    rows = []
    for code, each in enumerate(found):
        comparable = several and "reason" not in each and "reason" not in rest[code]
        rows.append(each | {"differences": _differences(each, rest[code]) if comparable else None})
    left_out = int((codes < 0).sum())
    return {"groups": rows, "rows_left_out": left_out, "summary": _summary(rows)}


def _subgroup(
    question: Question,
    log_probs: np.ndarray,
    seen: Scores,
    inside: np.ndarray,
    rows: np.ndarray,
    name: str,
    groups: Any,
    level: float,
) -> Plain:
    """Return the figures of the rows of a subgroup; `inside` says the same by entry."""
    labels, own = seen.sample.labels[inside], question.positive
    events, others = int((labels == own).sum()), int((labels != own).sum())
    about: Plain = {"name": name, "rows": events + others, "events": events}
    if min(events, others) < FEWEST or len(np.unique(labels)) < seen.sample.num_classes:
        return about | {"reason": f"too few to say: {events} with it and {others} without"}
    prevalence = _own_prevalence(question, seen, inside)
    target, table = question.target[rows], log_probs[rows]
    clusters = None if groups is None else np.asarray(groups)[rows]
    at = operating_point(table, target, prevalence, threshold=question.threshold, positive=own, level=level, groups=clusters)
    area = roc_curve(table, target, prevalence=prevalence, positive=own, level=level, groups=clusters)
    found = at_threshold(at) | {"auc": figure(area.auc, area.low, area.high), "ratio": mean_over_observed(seen, inside, level)}
    return about | {"prevalence": at.prevalence, **found}


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
    for name, kind in COMPARED.items():
        a, b = ([each[name][part] for part in ("value", "low", "high")] for each in (own, rest))
        if None in (*a, *b):
            found[name] = figure(math.nan, reason="undefined in one of the two")
            continue
        if kind == "factor":
            a, b = ([math.log(max(each, 1e-9)) for each in three] for three in (a, b))
        value = a[0] - b[0]
        low = value - math.hypot(a[0] - a[1], b[2] - b[0])
        high = value + math.hypot(a[2] - a[0], b[0] - b[1])
        three = (value, low, high)
        found[name] = figure(*(map(math.exp, three) if kind == "factor" else three))
    return found


WORDS = {"sensitivity": "sensitivity", "specificity": "specificity", "auc": "AUC"}


def _summary(rows: list[Plain]) -> list[str]:
    """Return sentences: for whom it works worse, and for whom nobody can say."""
    small = [each["name"] for each in rows if "reason" in each]
    compared = [each for each in rows if each["differences"] is not None]
    said: list[str] = []
    for each in compared:
        said += [_worse(each["name"], words, each["differences"][name]) for name, words in WORDS.items()]
        said.append(_otherwise_calibrated(each["name"], each["differences"]["ratio"]))
    said = [sentence for sentence in said if sentence]
    if compared and not said:
        said.append("No difference between subgroups is certain: every interval includes none.")
    if small:
        said.append(f"Nobody can say for {', '.join(small)}: too few people.")
    return said


def _worse(name: str, words: str, gap: Plain) -> str:
    """Return a sentence if a figure is certainly lower in a subgroup than elsewhere, else ""."""
    if gap["high"] is None or gap["high"] >= 0:
        return ""
    least, size, most = (f"{-100 * gap[end]:.2g}" for end in ("high", "value", "low"))
    return f"Worse for {name}: {words} is {size} points lower than for the others ({least} to {most})."


def _otherwise_calibrated(name: str, gap: Plain) -> str:
    """Return a sentence if risks, relative to what occurs, are certainly higher or lower than elsewhere, else ""."""
    if gap["low"] is None or gap["low"] <= 1 <= gap["high"]:
        return ""
    higher = gap["value"] > 1
    least, size, most = sorted(each if higher else 1 / each for each in (gap["low"], gap["value"], gap["high"]))
    limits = f"{least:.2f} to {most:.2f}"
    word = "higher" if higher else "lower"
    return f"For {name} risks are {size:.2f} times {word}, relative to what occurs, than for the others ({limits})."
