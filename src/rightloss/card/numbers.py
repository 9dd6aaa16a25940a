"""The numbers of one model's answer to one question: at the threshold, by threshold and prevalence, calibration, benefit.

Stage: `Question`, log-probabilities at π → plain numbers for JSON. A figure is a dict of `value`, `low` and `high`; None is
undefined, with a `reason`. People are counted among `people`, 1,000 or more where the condition is rare.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import expit, logit
from scipy.stats import beta
from scipy.stats import t as student_t

from ..arrays import random_generator
from ..metrics.curves import roc_curve
from ..metrics.one_vs_rest import Array, Counts, Scores, scores
from ..metrics.predictive_values import OperatingPoint, decision_curve, figures_at, operating_point
from ..metrics.smooth_calibration import smooth_calibration_curve
from ..prevalence import Prevalence
from .inputs import Question
from .page import round_shares
from .thousand_people import whole_people
from .words import crowd

Plain = dict[str, Any]

NAMES = {
    "recall": "sensitivity", "specificity": "specificity", "lr_plus": "lr_plus", "lr_minus": "lr_minus", "ppv": "ppv",
    "npv": "npv", "alarms": "flagged", "found": "found", "false_alarms": "false_alarms", "missed": "missed",
}  # fmt: skip
COUNTED = ("flagged", "found", "false_alarms", "missed", "rest")
_HIGH = (0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.94, 0.96, 0.98, 0.99, 0.995, 0.999)
_TABLE = tuple(float(f"{each}e{power}") for power in range(-7, 0) for each in (1, 2, 5))
_MOST_CURVED = 500_000  # rows of a class for the calibration curve
_MOST_COUNTED = 1 << 24  # groups × thresholds counted at a time
_CLOSE = 1.25  # a calibration within this factor is close enough
_FEW = 10  # examples of a class


def figure(value: float, low: float = math.nan, high: float = math.nan, reason: str = "") -> Plain:
    """Return a figure for JSON: what is undefined or infinite is None, with a reason."""
    found: Plain = {
        name: float(each) if math.isfinite(each) else None
        for name, each in zip(("value", "low", "high"), (value, low, high), strict=True)
    }
    if math.isnan(value):
        found |= {"low": None, "high": None}
    return found | ({"reason": reason} if reason else {})


def answer(question: Question, log_probs: np.ndarray, groups: Any, level: float) -> Plain:
    """Return all numbers of one model's answer to one question."""
    seen = scores(log_probs, question.target, question.prevalence, question.positive, "a card", groups)
    options: Plain = {"prevalence": question.prevalence, "positive": question.positive, "level": level, "groups": groups}
    people = crowd(question.rate)
    at = operating_point(log_probs, question.target, threshold=question.threshold, people=people, **options)
    area = roc_curve(log_probs, question.target, **options)
    found = at_threshold(at) | {"auc": figure(area.auc, area.low, area.high)}
    slider = moving(seen, question, level)
    found["rest"] = figure(*(at.people * row[slider["start"]] for row in slider["rest"]))
    _start_as(slider, found, at.people)
    return {
        "figures": found,
        "whole_people": whole_people(at),
        "prevalences": at_prevalences(seen, found, question, level),
        "helps": helpful_range(found, question),
        "slider": slider,
        "calibration": calibration(seen, question, log_probs, groups, level),
        "decision": _decision(question, log_probs, groups, level),
    }


def at_threshold(at: OperatingPoint) -> Plain:
    """Return the figures of an operating point; people as counts."""
    figures = {ours: getattr(at, theirs) for theirs, ours in NAMES.items()}
    return {name: figure(each.value, each.low, each.high, each.reason) for name, each in figures.items()}


def moving(seen: Scores, question: Question, level: float) -> Plain:
    """Return what the page's controls show: every figure, with limits, at each threshold, at π and per person.

    At another prevalence the same people are flagged. Then sensitivity, specificity and likelihood ratios are the same, and
    the other figures follow from them, with their limits.
    """

    def per_person(tpr: Array, fpr: Array, pi: Array) -> dict[str, Array]:
        return figures_at(tpr, fpr, pi) | {"rest": (1 - pi) * (1 - fpr)}

    cuts = _thresholds(seen, question.threshold)
    clusters = 1 if seen.groups is None else int(seen.groups.max()) + 1
    size = max(1, _MOST_COUNTED // clusters)
    parts = [seen.called_from(seen.cuts(cuts[start : start + size])) for start in range(0, len(cuts), size)]
    found, worth = (np.concatenate([getattr(part, name) for part in parts]) for name in ("found", "worth"))
    counts = Counts(found, seen.sample.totals, worth)
    limits = seen.with_limits(per_person, counts, level, random_generator(None))
    listed = {NAMES.get(name, name): [[_short(x) for x in row.tolist()] for row in three] for name, three in limits.items()}
    lowest = min(-5, math.floor(math.log10(question.rate)))
    rates = sorted({*round_shares(lowest), *(each for each in _HIGH if question.rate > 0.5), question.rate})
    return {
        "thresholds": cuts.tolist(),
        "start": int(np.searchsorted(cuts, question.threshold)),
        "prevalences": rates,
        "rate": question.rate,
        **listed,
    }


def _thresholds(seen: Scores, own: float) -> Array:
    """Return round numbers over the range of the predictions, and the threshold of the card."""
    finite = seen.odds[np.isfinite(seen.odds)]
    low, high = expit(np.quantile(finite, [0.002, 0.999])) if len(finite) else (own, own)
    low, high = min(low, own / 4), max(high, expit(logit(own) + 1.5))
    round_ones = np.array([each for each in (*round_shares(-9), *_HIGH) if low <= each <= high])
    most = 60 if seen.sample.num_classes == 2 else 30
    return np.unique(np.append(round_ones[:: math.ceil(len(round_ones) / most) or 1], own))


def _start_as(slider: Plain, found: Plain, people: float) -> None:
    """Put the card's own figures where the controls start, whose limits would else differ by the noise of the draws."""
    for name in (*NAMES.values(), "rest"):
        unit = people if name in COUNTED else 1.0
        own = [found[name][part] for part in ("value", "low", "high")]
        for row, each in zip(slider[name], own, strict=True):
            row[slider["start"]] = None if each is None else each / unit


def _short(value: float) -> float | None:
    return float(f"{value:.12g}") if math.isfinite(value) else None


def at_prevalences(seen: Scores, at: Plain, question: Question, level: float) -> list[Plain]:
    """Return the figures of flagging the same people at other prevalences, and whether that `helps` there.

    All are counted among as many people, so that rows can be compared.
    """
    rate = question.rate
    others = [each for each in _TABLE if rate / 30 <= each <= min(0.5, 30 * rate) and abs(each / rate - 1) > 1e-9]
    grid = np.array(sorted([*others, rate]))
    counts = seen.called_from(seen.cuts(np.array([question.threshold])))
    people = 10 * crowd(rate)

    def shown(tpr: Array, fpr: Array, pi: Array) -> dict[str, Array]:
        each = figures_at(tpr, fpr, np.where(grid == rate, pi, grid), people)
        return {NAMES[name]: each[name] for name in ("ppv", "npv", "alarms", "found", "missed")}

    limits = seen.with_limits(shown, counts, level, random_generator(None))
    rows = []
    for number, pi in enumerate(grid.tolist()):
        row = {"prevalence": pi, "people": people, "helps": helps(at, pi, question.weight)}
        rows.append(row | {name: figure(*(each[number] for each in three)) for name, three in limits.items()})
    return rows


def helps(at: Plain, pi: float, weight: float) -> str:
    """Return "yes" if flagging is better than flagging nobody and than flagging everybody, "unclear" if it may be.

    Else return what is better, "nobody" or "everybody", or "same" if flagging is the same as one of them. A missed case weighs
    as much as `weight` false alarms. Then flagging is better than flagging nobody where LR+ is above 1/(weight × odds of π),
    and better than flagging everybody where LR− is below; the limits of both decide.
    """
    least = (1 - pi) / pi / weight
    plus, minus = _three(at["lr_plus"]), _three(at["lr_minus"])
    if math.isnan(plus[0]) or math.isnan(minus[0]):
        return "same"
    if plus[1] > least > minus[2]:
        return "yes"
    return "nobody" if plus[2] < least else "everybody" if minus[1] > least else "unclear"


def helpful_range(at: Plain, question: Question) -> Plain:
    """Return the prevalences between which flagging helps; `sure` where `helps` is "yes", `possible` where it may be."""
    plus, minus = _three(at["lr_plus"]), _three(at["lr_minus"])

    def between(upper: float, lower: float) -> Plain:
        low, high = (_indifferent(ratio, question.weight) for ratio in (upper, lower))
        return {"low": low, "high": high} if low < high else {"low": None, "high": None}  # also if one is NaN

    return between(plus[0], minus[0]) | {"sure": between(plus[1], minus[2]), "possible": between(plus[2], minus[1])}


def _indifferent(ratio: float, weight: float) -> float:
    """Return the prevalence where a group with that likelihood ratio may be flagged or not, for the same net benefit."""
    return 1 / (1 + weight * ratio)


def _three(found: Plain) -> tuple[float, float, float]:
    """Return a ratio and its limits, infinite where only the lower limit is known, NaN where it is undefined."""
    value, low, high = (found[name] for name in ("value", "low", "high"))
    if value is None:
        return (math.nan, math.nan, math.nan) if low is None else (math.inf, low, math.inf)
    return value, math.nan if low is None else low, math.nan if high is None else high


def calibration(seen: Scores, question: Question, log_probs: np.ndarray, groups: Any, level: float) -> Plain:
    """Return the mean prediction over π, a smooth curve, and whether the predictions are calibrated."""
    ratio = mean_over_observed(seen, np.ones(len(seen.odds), bool), level)
    found: Plain = {"ratio": ratio, "mean_prediction": ratio["value"] * question.rate}
    some = _some_of_each(question.target, log_probs.shape[1])
    clusters = None if groups is None else np.asarray(groups)[some]
    options: Plain = {"positive": question.positive, "level": level, "groups": clusters}
    try:
        curve = smooth_calibration_curve(log_probs[some], question.target[some], question.certain, **options)
    except ValueError as error:
        return found | {"curve": None, "reason": str(error), "slope": figure(math.nan, reason=str(error))}
    return found | {"curve": _listed(curve, "predicted", "observed", "low", "high"), "ici": float(curve.ici)}


def _some_of_each(labels: Array, num_classes: int) -> Any:
    """Return the places of all rows, or of `_MOST_CURVED` of each class that has more, if there are many."""
    if len(labels) <= 2 * _MOST_CURVED:
        return slice(None)
    stream, each = np.random.default_rng(0), [np.flatnonzero(labels == c) for c in range(num_classes)]
    return np.sort(
        np.concatenate([own if len(own) <= _MOST_CURVED else stream.choice(own, _MOST_CURVED, False) for own in each])
    )


def mean_over_observed(seen: Scores, inside: np.ndarray, level: float) -> Plain:
    """Return the mean prediction over the observed frequency among some of the population, with limits.

    With all of them the observed frequency is π. The classes are sampled separately; patients are drawn as a whole. Where the
    class is rare a few predictions make up much of the mean, whose estimates are then skewed. So the limits are those of a t
    distribution with Satterthwaite's degrees of freedom, corrected for skewness as by Hall (1992).
    """
    sample, weights = seen.sample, seen.sample.population_weights
    predicted, hit = np.where(inside, seen.probability, 0.0), np.where(inside & seen.is_positive, 1.0, 0.0)
    expected, observed = float(weights @ predicted), float(weights @ hit)
    if observed == 0 or expected == 0:
        return figure(math.nan, reason="no events" if observed == 0 else "all predictions are 0")
    added = predicted / expected - hit / observed
    means = np.bincount(sample.labels, weights * added, sample.num_classes) / sample.prevalence.population
    influence = weights * (added - means[sample.labels])
    if seen.groups is not None:
        influence = np.bincount(seen.groups, influence)
    value, error = expected / observed, math.sqrt(float(np.square(influence).sum()))
    if error <= 1e-9:
        return figure(value, value, value)
    standard = influence / error
    squares = standard * standard
    reach, skewness = float(student_t.ppf((1 + level) / 2, 2 / float(squares @ squares))), float(squares @ standard)
    low, high = (value * (1 - error * _unskewed(each, skewness)) for each in (reach, -reach))
    return figure(value, max(low, 0.0), high)


def _unskewed(quantile: float, skewness: float) -> float:
    """Return the quantile of a skewed mean's t statistic, by the inverse of Hall's cubic transformation."""
    if abs(skewness) < 1e-9:
        return quantile
    return 3 / skewness * (float(np.cbrt(1 + skewness * (quantile - skewness / 6))) - 1)


def judged(found: Plain, slope: Plain, events: float, rest: float) -> Plain:
    """Return whether predictions are calibrated, "yes", "no", "unclear" or "unknown", and a sentence that says so."""
    ratio = found["ratio"]
    if min(events, rest) < _FEW or ratio["value"] is None or ratio["low"] is None:
        return {"verdict": "unknown", "sentence": f"Too few rows to say: {events:g} with it and {rest:g} without."}
    known = slope["low"] is not None
    off, bent = _off(ratio), known and _off(slope)
    said = ["No."]
    if off:
        size, way = max(ratio["value"], 1 / ratio["value"]), "high" if ratio["value"] > 1 else "low"
        said.append(f"On average its risks are {size:.2g} times too {way}.")
    if bent:
        way = "extreme" if slope["value"] < 1 else "cautious"
        said.append(f"Its risks are too {way}: the calibration slope is {slope['value']:.2f}, not 1.")
    if off or bent:
        return {"verdict": "no", "sentence": " ".join(said)}
    if not _within(ratio) or (known and not _within(slope)):
        return {"verdict": "unclear", "sentence": "No sign against it, but these rows are too few to show it."}
    mean = f"on average its risks are {ratio['value']:.2f} times what occurs"
    if not known:
        sentence = f"In part: {mean}; whether they are too extreme cannot be said ({slope['reason']})."
        return {"verdict": "unclear", "sentence": sentence}
    near = f"Yes, near enough (within a factor of {_CLOSE:g}), on these test rows: {mean}"
    bend = f"they are hardly too extreme or too cautious (slope {slope['value']:.2f})"
    return {"verdict": "yes", "sentence": f"{near}, and {bend}."}


def _off(figure: Plain) -> bool:
    """Return whether a figure certainly differs from 1, and by at least a tenth."""
    outside = figure["low"] > 1 or figure["high"] < 1
    return outside and not 1 / 1.1 < figure["value"] < 1.1


def _within(figure: Plain) -> bool:
    return 1 / _CLOSE < figure["low"] and figure["high"] < _CLOSE


def _decision(question: Question, log_probs: np.ndarray, groups: Any, level: float) -> Plain:
    """Return the decision curve at the mean of π: its uncertainty would move all lines together."""
    odds = logit(question.rate) + np.linspace(-math.log(20), math.log(20), 41)
    cuts = expit(np.unique(np.append(odds, logit(question.threshold))))
    options: Plain = {"positive": question.positive, "level": level, "groups": groups}
    curve = decision_curve(log_probs, question.target, question.certain, cuts, **options)
    return _listed(curve, "threshold", "net_benefit", "low", "high", "treat_all")


def _listed(curve: Any, *names: str) -> Plain:
    """Return arrays of a curve as lists for JSON."""
    return {name: [_short(x) for x in getattr(curve, name).tolist()] for name in names}


def prevalence_limits(prevalence: Prevalence, positive: int, level: float) -> Plain:
    """Return π of a class, with the limits of an uncertain one."""
    alpha, value = prevalence.concentration, float(prevalence.population[positive])
    if alpha is None:
        return figure(value)
    a, b = float(alpha[positive]), float(alpha.sum() - alpha[positive])
    low, high = beta.ppf([(1 - level) / 2, (1 + level) / 2], a, b)
    return figure(value, low, high) | {"beta": [a, b]}
