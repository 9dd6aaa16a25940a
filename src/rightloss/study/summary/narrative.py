"""The report's text: title, answer, question and findings; the headline is in `headline`.

Stage: `StudyResults`, `CellSummary`s, `Comparison`s, `PaperCheck`s → sentences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..config import CONTOURS, StudyConfig
from ..methods import METHODS
from ..paper import RATINGS
from ..results import DataSummary, StudyResults
from . import wording
from .comparisons import PUBLISHED, is_default
from .contract import AUC, CONSTANT, LOG_LIKELIHOOD, CellSummary, Comparison, PaperCheck, Summary
from .wording import capitalised, counted, listed

_TITLES = {
    "binary": "Which loss for the prevalence you will meet?",
    "rating": "Can a net rate nodules as readers do?",
    "balanced": "Image, metadata, or both, at the prevalence you will meet?",
}
_NAMES = {LOG_LIKELIHOOD: "expected log-likelihood", AUC: "AUC"}
_MOST_NAMED = 6  # cases in one sentence
_MOST_PLACES = 4  # that a finding of the paper is checked in, and that are named


def title(config: StudyConfig) -> str:
    """Return the report's heading."""
    if config.unlabelled:
        return "Do patients without a label help?"
    return "Which posterior for rare malignancy?" if len(config.inferences) > 1 else _TITLES[config.task]


# The answer: the findings in one paragraph.


def answer(rows: Sequence[CellSummary], comparisons: Sequence[Comparison], config: StudyConfig) -> str:
    """Say how the default loss does against always answering π, against the other losses, and as published; "" without it."""
    default = [row for row in rows if is_default(row.key, config)]
    if not default:
        return ""
    rivals = [each for each in comparisons if each.about == "loss" and LOG_LIKELIHOOD in each.differences]
    published = [row for row in rows if row.key.loss == PUBLISHED]
    found = [_against_constant(default), _against_rivals(rivals, config), _as_published(published)]
    return " ".join(filter(None, [*found, _with_and_without(comparisons)]))


def _against_constant(default: Sequence[CellSummary]) -> str:
    better, worse = sum(row.figures["skill"].low > 0 for row in default), sum(is_worse(row) for row in default)
    return (
        "In short: nets trained with the default information gain predict better than always answering the prevalence in "
        f"{better} of {counted(len(default), 'case')}, and clearly worse in {worse or 'none'}."
    )


def _against_rivals(rivals: Sequence[Comparison], config: StudyConfig) -> str:
    if not rivals:
        return ""
    standings: dict[str, list[str]] = {}
    for each in rivals:
        standings.setdefault(wording.method(each.theirs, config), []).append(each.differences[LOG_LIKELIHOOD].standing)
    every = [standing for some in standings.values() for standing in some]
    ahead, behind, undecided = (every.count(word) for word in ("ahead", "behind", "undecided"))
    text = (
        f"Compared with the other losses, on the same nodules, their probabilities are clearly better in {ahead} of "
        f"{counted(len(rivals), 'comparison')}, clearly worse in {behind}, and undecided in {undecided}."
    )
    alike = [name for name, some in standings.items() if set(some) == {"undecided"}]
    return f"{text} Undecided in every comparison: {'; '.join(alike)}." if alike else text


def _as_published(published: Sequence[CellSummary]) -> str:
    if not published:
        return ""
    worse = sum(is_worse(row) for row in published)
    name = METHODS[PUBLISHED].title
    return f"The {name} is worse than always answering the prevalence in {worse} of {counted(len(published), 'case')}."


def _with_and_without(comparisons: Sequence[Comparison]) -> str:
    """Compare logit adjustment with unlabelled patients and without, all else being equal."""
    own = [each for each in comparisons if each.about == "unlabelled"]
    if not own:
        return ""
    figures = [f"in {_NAMES[name]} {_tally(own, name)}" for name in _NAMES if name in own[0].differences]
    return f"Logit adjustment with the unlabelled patients against without them: {'; '.join(figures)}."


def is_worse(row: CellSummary) -> bool:
    """Return whether a row is clearly worse than always answering π. A skill of −∞, from a probability of 0 for an observed
    class, has no interval."""
    skill = row.figures["skill"]
    return skill.high < 0 or skill.value == -math.inf


# The question: data, training, population, test.

_MINIBATCHES = {
    "rebalanced": "minibatches in which all classes are equally frequent",
    "raw": "minibatches mixed as the data are",
}


def question(results: StudyResults) -> str:
    """Say what the nets were trained on, for which population, and how they were tested."""
    config = results.config
    data = "; ".join(_data(each, config.task) for each in results.data.values()) or "no run is done yet"
    minibatches = listed([_MINIBATCHES[each] for each in config.minibatches])
    return f"Data: {data}. Nets were trained on {minibatches}.{_unlabelled(config)} {_asked(config)} {_tested(config)}"


def _data(data: DataSummary, task: str) -> str:
    what = "readers' outlines of lung nodules in LIDC-IDRI" if data.name == CONTOURS else f"nodules of {data.name}"
    counts = f"{len(data.labels):,} of {counted(len(np.unique(data.patients)), 'patient')}"
    if task == "rating":
        return f"{what} ({counts}), with the ratings that readers gave, 1 to 5"
    return f"{what} ({counts}), {int((data.labels == 1).sum()):,} of them malignant"


def _unlabelled(config: StudyConfig) -> str:
    if not config.unlabelled:
        return ""
    return (
        f" Of the training patients {wording.percent(config.unlabelled)} lost their labels and stand for the population: the "
        "information gain and logit adjustment learnt from them, too, all other losses from the labelled ones alone."
    )


def _asked(config: StudyConfig) -> str:
    if config.task == "rating":
        return "They were asked for probabilities where ratings are as frequent as readers gave them."
    shares = listed([f"{population:g}" for population in config.populations if population is not None])
    return f"They were asked for probabilities in a population where the share of malignant nodules, π, is {shares}."


def _tested(config: StudyConfig) -> str:
    folds = f"{config.folds} of {config.num_folds} folds" if config.folds < config.num_folds else f"all {config.folds} folds"
    seeds = "" if config.seeds == 1 else f", with {config.seeds} seeds"
    return (
        f"Each was tested on patients that it had not seen, in {folds}{seeds}; step size and stopping were chosen on other "
        "patients, by one rule for all losses. Intervals, of 95 %, show how far a figure would vary with other patients; it "
        "would also vary with another training run."
    )


# The findings, a sentence or two each.


def findings(
    rows: Sequence[CellSummary],
    comparisons: Sequence[Comparison],
    checks: Sequence[PaperCheck],
    config: StudyConfig,
    missing: int,
) -> tuple[str, ...]:
    """List what is missing, if so; then the paper's findings, wins and losses, the claim, and calibration."""
    found = [
        _incomplete(config, missing) if missing else "",
        _paper(checks, config, missing),
        *(_each_rival(comparisons, name, config) for name in _NAMES),
        _chance(comparisons),
        *(_other_comparisons(comparisons, about, config) for about in _PARTIES),
        *(_ratings(rows, config) if config.task == "rating" and not config.unlabelled else ()),
        _claim(rows, config),
        _calibration(rows, config),
    ]
    return tuple(sentence for sentence in found if sentence)


def _incomplete(config: StudyConfig, missing: int) -> str:
    return (
        f"The study is incomplete: {missing:,} of {counted(len(config.runs()), 'run')} are missing, and this report covers the "
        "others. Run it again to go on."
    )


def _paper(checks: Sequence[PaperCheck], config: StudyConfig, missing: int) -> str:
    """Name each finding with its verdicts, and where, or how often; the figures are in the checks."""
    if not checks:
        if missing or config.task == "rating" or config.unlabelled:  # what is missing may be what was asked
            return ""
        return "Whether the paper's findings reproduce was not asked: that takes its losses at π = 0.3 and 0.001."
    parts = []
    for claim in dict.fromkeys(check.about.partition(": ")[0] for check in checks):
        own = [check for check in checks if check.about.partition(": ")[0] == claim]
        places = []
        for verdict in dict.fromkeys(check.verdict for check in own):
            where = [each.where for each in own if each.verdict == verdict]
            named = f"({'; '.join(where)})" if len(own) <= _MOST_PLACES else f"in {len(where)} of {len(own)}"
            places.append(f"{'does not reproduce' if verdict == 'does not' else verdict} {named}")
        parts.append(f"{capitalised(claim)}: {', '.join(places)}.")
    return f"Does what the paper found reproduce? {' '.join(parts)}"


def _each_rival(comparisons: Sequence[Comparison], name: str, config: StudyConfig) -> str:
    """Say against each rival how often the default is ahead, behind or undecided."""
    own = [each for each in comparisons if each.about == "loss" and name in each.differences]
    if not own:
        return ""
    rivals: dict[str, list[Comparison]] = {}
    for each in own:
        rivals.setdefault(wording.method(each.theirs, config), []).append(each)
    parts = [f"{rival}: {_tally(some, name)}" for rival, some in rivals.items()]
    heading = f"In {_NAMES[name]}, the default information gain against each rival"
    return f"{heading}. {capitalised('; '.join(parts))}. {_lost(own, name, config)}"


def _tally(comparisons: Sequence[Comparison], name: str) -> str:
    """Return "ahead in 3 of 4, undecided in 1"."""
    standings = [each.differences[name].standing for each in comparisons]
    counts = [f"{word} in {standings.count(word)}" for word in ("ahead", "behind", "undecided") if word in standings]
    return f"{counts[0]} of {len(standings)}" + "".join(f", {each}" for each in counts[1:])


def _lost(comparisons: Sequence[Comparison], name: str, config: StudyConfig) -> str:
    def value(comparison: Comparison) -> float:
        return comparison.differences[name].figure.value

    def case(comparison: Comparison) -> str:
        theirs, place = wording.method(comparison.theirs, config), wording.where(comparison.ours, config)
        return f"{theirs} ({place}) {wording.difference(comparison.differences[name].figure)}"

    defined = [each for each in comparisons if not math.isnan(value(each))]
    behind = [each for each in defined if each.differences[name].standing == "behind"]
    worst = sorted(behind or defined, key=value)
    sentences = []
    if behind:
        sentences = [f"It loses to: {'; '.join(_short([case(each) for each in worst]))}."]
    elif worst and value(worst[0]) < 0:
        sentences = [f"It is nowhere clearly behind; furthest, though undecided, {case(worst[0])}."]
    elif worst:
        sentences = ["It is nowhere behind."]
    if len(defined) < len(comparisons):
        sentences.append(f"In {len(comparisons) - len(defined)} of {len(comparisons)} the difference is not defined.")
    return " ".join(sentences)


def _short(parts: Sequence[str]) -> Iterator[str]:
    yield from parts[:_MOST_NAMED]
    if len(parts) > _MOST_NAMED:
        yield f"and {len(parts) - _MOST_NAMED} more"


def _chance(comparisons: Sequence[Comparison]) -> str:
    count = sum(len(each.differences) for each in comparisons)
    if count < 20:
        return ""
    return f"Of {count} differences, about {round(count / 20)} would look decided by chance alone if there were none."


# What else is compared, and what the two parties are called.
_PARTIES: dict[str, Callable[[Comparison, StudyConfig], tuple[str, str]]] = {
    "net": lambda each, config: (wording.net(each.ours, config), wording.net(each.theirs, config)),
    "inference": lambda each, _: (wording.INFERENCES[each.ours.inference], wording.INFERENCES[each.theirs.inference]),
    "likelihood": lambda each, _: (wording.LIKELIHOODS[each.ours.likelihood], wording.LIKELIHOODS[each.theirs.likelihood]),
}


def _other_comparisons(comparisons: Sequence[Comparison], about: str, config: StudyConfig) -> str:
    """Compare nets, inferences or likelihoods, over all losses together."""
    by_parties: dict[tuple[str, str], list[Comparison]] = {}
    for each in comparisons:
        if each.about == about:
            by_parties.setdefault(_PARTIES[about](each, config), []).append(each)
    parts = []
    for (ours, theirs), some in by_parties.items():
        figures = [f"in {_NAMES[name]} {_tally(some, name)}" for name in _NAMES if name in some[0].differences]
        parts.append(capitalised(f"{ours} against {theirs}: {'; '.join(figures)}."))
    return f"Over all losses. {' '.join(parts)}" if parts else ""


_BESIDE_PAPER = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "off_by_one": "off-by-one accuracy",
    "balanced_off_by_one": "balanced off-by-one accuracy",
    "malignant_accuracy": "accuracy of benign or malignant",
}


def _ratings(rows: Sequence[CellSummary], config: StudyConfig) -> list[str]:
    """Put the paper's figures beside those of its likelihood, or of the first that the study has."""
    likelihood = "onion-peeling" if "onion-peeling" in config.likelihoods else config.likelihoods[0]
    own = [row for row in rows if is_default(row.key, config) and row.key.likelihood == likelihood]
    return [f"Ratings by the default information gain ({wording.where(row.key, config)}): {_beside(row)}." for row in own]


def _beside(row: CellSummary) -> str:
    parts = []
    for name, words in _BESIDE_PAPER.items():
        figures = {rule: wording.with_interval(row.figures[f"{rule}_{name}"], 2) for rule in ("majority", "mean")}
        ours = " and ".join(f"{figure} by {rule}" for rule, figure in figures.items())
        parts.append(f"{words} {ours} (paper: {RATINGS[name]:.2f})")
    return "; ".join(parts)


def _claim(rows: Sequence[CellSummary], config: StudyConfig) -> str:
    """Say where the default, and any other loss, is worse than always answering π."""
    default = [row for row in rows if is_default(row.key, config)]
    worse = [row for row in rows if row.key.loss != CONSTANT and is_worse(row)]
    others: dict[str, list[str]] = {}
    for row in worse:
        if row not in default:
            others.setdefault(wording.method(row.key, config), []).append(wording.where(row.key, config))
    sentences = [_default_claim(default, [row for row in default if row in worse], config)] if default else []
    cases = [f"{name} in {counted(len(places), 'case')} ({'; '.join(_short(places))})" for name, places in others.items()]
    sentences += [f"Other losses that are worse than always answering π: {'; '.join(cases)}."] if cases else []
    return " ".join(sentences)


def _default_claim(default: Sequence[CellSummary], worse: Sequence[CellSummary], config: StudyConfig) -> str:
    better = sum(row.figures["skill"].low > 0 for row in default)
    undecided = len(default) - better - len(worse)
    counts = f"better in {better}, undecided in {undecided}, worse in {len(worse)} of {counted(len(default), 'case')}"
    where = f" It is worse in: {'; '.join(_short([wording.where(row.key, config) for row in worse]))}." if worse else ""
    return f"Against always answering π, in expected log-likelihood, the default information gain is {counts}.{where}"


def _calibration(rows: Sequence[CellSummary], config: StudyConfig) -> str:
    """Say whether the default's calibration error may be noise, and how its mean prediction compares with π."""
    own = [row for row in rows if is_default(row.key, config) and not math.isnan(row.figures["calibration_error"].value)]
    if not own:
        return ""
    fine = sum(row.figures["calibration_error"].low == 0 for row in own)
    text = (
        f"Calibration of the default information gain: in {fine} of {counted(len(own), 'case')} the calibration error is "
        "no larger than chance would make it."
    )
    return text + _mean_predictions([row for row in own if row.key.population is not None], config)


def _mean_predictions(rows: Sequence[CellSummary], config: StudyConfig) -> str:
    if not rows:
        return ""
    means = [(row, row.figures["mean_prediction"], row.key.population or math.nan) for row in rows]
    held = sum(mean.low <= population <= mean.high for _, mean, population in means)
    furthest, mean, population = max(means, key=lambda each: abs(float(np.log(each[1].value / each[2]))))
    value = wording.with_interval(mean, wording.decimals("mean_prediction", population))
    place = wording.where(furthest.key, config)
    return f" The mean prediction agrees with π in {held} of {len(rows)}; it is furthest off at {place}: {value}."


def mean_prediction_off(summary: Summary) -> str:
    """Say where the default's mean prediction is clearly above or below π; "" if nowhere."""
    own = [row for row in summary.rows if is_default(row.key, summary.config)]
    cases = [(row, row.figures["mean_prediction"], row.key.population) for row in own if row.key.population is not None]
    off = [each for each in cases if each[1].low > each[2] or each[1].high < each[2]]
    if not off:
        return ""
    row, mean, population = max(off, key=lambda each: abs(float(np.log(each[1].value / each[2]))))
    side = "above" if mean.low > population else "below"
    value = wording.with_interval(mean, wording.decimals("mean_prediction", population))
    places = [
        wording.where(each.key, summary.config, without=("population",)) for each, _, _ in [(row, mean, population), *cases]
    ]
    at = wording.one_in(population) + (f", {places[0]}" if len(set(places)) > 1 else "")
    name = "The mean prediction of the default information gain"
    if len(off) == 1:
        held = sum(each[1].low <= each[2] <= each[1].high for each in cases)
        elsewhere = "; elsewhere it agrees" if held and held == len(cases) - 1 else ""
        return f"{name} is clearly {side} the prevalence at {at}: {value}{elsewhere}."
    return f"{name} is clearly off the prevalence in {len(off)} of {len(cases)} cases; furthest {side} it at {at}: {value}."
