"""What a study found, in sentences for whoever reads only the top of the page.

Stage: `Row`s, `Comparison`s, `Check`s → sentences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..config import StudyConfig
from ..paper import RATINGS
from . import words
from .answer import is_worse
from .comparisons import AUC, LOG_LIKELIHOOD, is_default
from .contract import CONSTANT, Check, Comparison, Row

_NAMES = {LOG_LIKELIHOOD: "expected log-likelihood", AUC: "AUC"}
_MOST_NAMED = 6  # cases in one sentence


def findings_of(
    rows: Sequence[Row], comparisons: Sequence[Comparison], checks: Sequence[Check], config: StudyConfig, missing: int
) -> tuple[str, ...]:
    """First that the study is incomplete, if so; then the paper's findings, wins and losses, the claim, calibration."""
    found = [
        _incomplete(config, missing) if missing else "",
        _of_checks(checks, config, missing),
        *(_against_rivals(comparisons, name, config) for name in _NAMES),
        _chance(comparisons),
        *(_others(comparisons, about, pair, config) for about, pair in _OTHERS.items()),
        *(_of_ratings(rows, config) if config.task == "rating" else ()),
        _claim(rows, config),
        _calibration(rows, config),
    ]
    return tuple(sentence for sentence in found if sentence)


def _incomplete(config: StudyConfig, missing: int) -> str:
    return (
        f"The study is incomplete: {missing:,} of {words.counted(len(config.runs()), 'run')} are missing, and all that is said "
        "here is of the others. Run it again to go on."
    )


def _of_checks(checks: Sequence[Check], config: StudyConfig, missing: int) -> str:
    """Each of the four with its verdicts; the figures are in the checks."""
    if not checks:
        if missing or config.task == "rating":  # what is missing may be what was asked
            return ""
        return "Whether the paper's findings reproduce was not asked: that takes its losses at π = 0.3 and 0.001."
    parts = []
    for about in dict.fromkeys(check.about for check in checks):
        own = [check for check in checks if check.about == about]
        verdicts = dict.fromkeys(check.verdict for check in own)
        places = [f"{verdict} ({'; '.join(each.where for each in own if each.verdict == verdict)})" for verdict in verdicts]
        parts.append(f"{about}: {', '.join(places)}")
    return f"Does what the paper found reproduce? {'. '.join(_sentence(part) for part in parts)}."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _against_rivals(comparisons: Sequence[Comparison], name: str, config: StudyConfig) -> str:
    """Ahead, behind or undecided against each; losses by name."""
    own = [each for each in comparisons if each.about == "loss" and name in each.differences]
    if not own:
        return ""
    rivals = dict.fromkeys(words.method(each.theirs) for each in own)
    parts = [f"{rival}: {_tally([each for each in own if words.method(each.theirs) == rival], name)}" for rival in rivals]
    title = f"In {_NAMES[name]}, the default information gain against each rival"
    return f"{title}. {_sentence('; '.join(parts))}. {_lost(own, name, config)}"


def _tally(comparisons: Sequence[Comparison], name: str) -> str:
    """ "ahead in 3 of 4, undecided in 1"."""
    standings = [each.differences[name].standing for each in comparisons]
    counts = [f"{word} in {standings.count(word)}" for word in ("ahead", "behind", "undecided") if word in standings]
    return f"{counts[0]} of {len(standings)}" + "".join(f", {each}" for each in counts[1:])


def _lost(comparisons: Sequence[Comparison], name: str, config: StudyConfig) -> str:
    defined = [each for each in comparisons if not math.isnan(_value(each, name))]
    behind = [each for each in defined if each.differences[name].standing == "behind"]
    worst = sorted(behind or defined, key=lambda each: _value(each, name))
    sentences = []
    if behind:
        sentences = [f"It loses to: {'; '.join(_short([_case(each, name, config) for each in worst]))}."]
    elif worst and _value(worst[0], name) < 0:
        sentences = [f"It is nowhere clearly behind; furthest, though undecided, {_case(worst[0], name, config)}."]
    elif worst:
        sentences = ["It is nowhere behind."]
    if len(defined) < len(comparisons):
        sentences.append(f"In {len(comparisons) - len(defined)} of {len(comparisons)} the difference is not defined.")
    return " ".join(sentences)


def _value(comparison: Comparison, name: str) -> float:
    return comparison.differences[name].figure.value


def _case(comparison: Comparison, name: str, config: StudyConfig) -> str:
    place = words.where(comparison.ours, config)
    return f"{words.method(comparison.theirs)} ({place}) {words.difference(comparison.differences[name].figure)}"


def _short(parts: Sequence[str]) -> Iterator[str]:
    yield from parts[:_MOST_NAMED]
    if len(parts) > _MOST_NAMED:
        yield f"and {len(parts) - _MOST_NAMED} more"


def _chance(comparisons: Sequence[Comparison]) -> str:
    count = sum(len(each.differences) for each in comparisons)
    if count < 20:
        return ""
    return f"Of {count} differences, about {round(count / 20)} would look decided by chance alone were there none."


# What else is compared, and how the two are called.
_OTHERS: dict[str, Callable[[Comparison, StudyConfig], tuple[str, str]]] = {
    "net": lambda each, config: (words.net(each.ours, config), words.net(each.theirs, config)),
    "inference": lambda each, config: (words.INFERENCES[each.ours.inference], words.INFERENCES[each.theirs.inference]),
    "likelihood": lambda each, config: (words.LIKELIHOODS[each.ours.likelihood], words.LIKELIHOODS[each.theirs.likelihood]),
}


def _others(
    comparisons: Sequence[Comparison],
    about: str,
    pair: Callable[[Comparison, StudyConfig], tuple[str, str]],
    config: StudyConfig,
) -> str:
    """Over all losses together."""
    own = [each for each in comparisons if each.about == about]
    parts = []
    for ours, theirs in dict.fromkeys(pair(each, config) for each in own):
        some = [each for each in own if pair(each, config) == (ours, theirs)]
        figures = [f"in {_NAMES[name]} {_tally(some, name)}" for name in _NAMES if name in some[0].differences]
        parts.append(f"{ours} against {theirs}: {'; '.join(figures)}")
    return f"Over all losses. {'. '.join(_sentence(part) for part in parts)}." if parts else ""


def _claim(rows: Sequence[Row], config: StudyConfig) -> str:
    """Never worse than answering π."""
    own = [row for row in rows if row.key.loss != CONSTANT]
    default = [row for row in own if is_default(row.key, config)]
    worse = [row for row in own if is_worse(row)]
    others = [row for row in worse if row not in default]
    sentences = [_of_default(default, [row for row in default if row in worse], config)] if default else []
    sentences += [f"Other losses that are worse than always answering π: {_cases(others, config)}."] if others else []
    return " ".join(sentences)


def _of_default(default: Sequence[Row], below: Sequence[Row], config: StudyConfig) -> str:
    better = [row for row in default if row.figures["skill"].low > 0]
    undecided = len(default) - len(better) - len(below)
    counts = (
        f"better in {len(better)}, undecided in {undecided}, worse in {len(below)} of {words.counted(len(default), 'case')}"
    )
    where = f" It is worse in: {'; '.join(_short([words.where(row.key, config) for row in below]))}." if below else ""
    return f"Against always answering π, in expected log-likelihood, the default information gain is {counts}.{where}"


def _cases(rows: Sequence[Row], config: StudyConfig) -> str:
    by_method: dict[str, list[str]] = {}
    for row in rows:
        by_method.setdefault(words.method(row.key), []).append(words.where(row.key, config))
    return "; ".join(
        f"{name} in {words.counted(len(places), 'case')} ({'; '.join(_short(places))})" for name, places in by_method.items()
    )


def _calibration(rows: Sequence[Row], config: StudyConfig) -> str:
    """Of the default: whether noise alone would show its calibration error, and its mean prediction."""
    own = [row for row in rows if is_default(row.key, config) and not math.isnan(row.figures["calibration_error"].value)]
    if not own:
        return ""
    fine = sum(row.figures["calibration_error"].low == 0 for row in own)
    text = (
        f"Calibration of the default information gain: in {fine} of {words.counted(len(own), 'case')} the calibration error is "
        "no larger than chance would make it."
    )
    return text + _of_means([row for row in own if row.key.population is not None], config)


def _of_means(rows: Sequence[Row], config: StudyConfig) -> str:
    if not rows:
        return ""
    held = sum(_holds(row) for row in rows)
    furthest = max(rows, key=_ratio)
    mean = words.told(furthest.figures["mean_prediction"], words.decimals("mean_prediction", furthest.key.population))
    place = words.where(furthest.key, config)
    return f" The mean prediction agrees with π in {held} of {len(rows)}; it is furthest off at {place}: {mean}."


def _holds(row: Row) -> bool:
    mean, population = row.figures["mean_prediction"], row.key.population
    return population is not None and mean.low <= population <= mean.high


def _ratio(row: Row) -> float:
    assert row.key.population is not None
    return abs(float(np.log(row.figures["mean_prediction"].value / row.key.population)))


_BESIDE = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "off_by_one": "off-by-one accuracy",
    "balanced_off_by_one": "balanced off-by-one accuracy",
    "malignant_accuracy": "accuracy of benign or malignant",
}


def _of_ratings(rows: Sequence[Row], config: StudyConfig) -> list[str]:
    """The paper's figures beside those of its likelihood, or of the first that the study has."""
    likelihood = "onion-peeling" if "onion-peeling" in config.likelihoods else config.likelihoods[0]
    own = [row for row in rows if is_default(row.key, config) and row.key.likelihood == likelihood]
    return [f"Ratings by the default information gain ({words.where(row.key, config)}): {_beside(row)}." for row in own]


def _beside(row: Row) -> str:
    parts = []
    for name, title in _BESIDE.items():
        ours = " and ".join(f"{words.told(row.figures[f'{rule}_{name}'], 2)} by {rule}" for rule in ("majority", "mean"))
        parts.append(f"{title} {ours} (paper: {RATINGS[name]:.2f})")
    return "; ".join(parts)
