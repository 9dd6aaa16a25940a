"""The report's text: title, answer, question and findings; the headline is in `headline`.

Stage: `StudyResults`, `CellSummary`s, `Comparison`s, `PaperCheck`s → sentences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..config import CONTOURS, StudyConfig
from ..methods import DEFAULT
from ..results import DataSummary, StudyResults
from . import wording
from .across_studies import by_claim
from .comparisons import PUBLISHED_FORMS, is_default
from .contract import AUC, CONSTANT, LOG_LIKELIHOOD, CellSummary, Comparison, PaperCheck, Summary
from .wording import capitalised, counted, listed

_TITLES = {
    "binary": "Which loss for the prevalence you will meet?",
    "rating": "Can a net rate nodules as readers do?",
    "balanced": "Image, metadata, or both, at the prevalence you will meet?",
}
_NAMES = {LOG_LIKELIHOOD: "expected log-likelihood", AUC: "AUC"}
_MOST_NAMED = 6  # cases in one sentence
_OVERALL = {"does not": "does not reproduce", "mixed": "in some settings"}
_FACTORS = {"loss": "marginal", "minibatches": "kind of minibatches"}


def title(config: StudyConfig) -> str:
    """Return the report's heading."""
    if config.unlabelled:
        return "Do patients without a label help?"
    return "Which posterior for rare malignancy?" if len(config.inferences) > 1 else _TITLES[config.task]


# The answer: the findings in one sentence.


def answer(rows: Sequence[CellSummary], config: StudyConfig) -> str:
    """Say how often the default and each published form are worse than always answering π, by start; "" without the default."""
    if not any(is_default(row.key, config) for row in rows):
        return ""
    groups: dict[str, list[CellSummary]] = {}
    for row in rows:
        if row.key.loss in (DEFAULT, *PUBLISHED_FORMS):
            start = f", {wording.STARTS[row.key.start]}" if len(config.starts) > 1 else ""
            groups.setdefault(f"{wording.method(row.key, config)}{start}", []).append(row)
    counts = [f"{name} in {sum(map(is_worse, own))} of {len(own)}" for name, own in groups.items()]
    return f"Clearly worse than always answering the prevalence: {'; '.join(counts)}."


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
    matched: Sequence[Comparison] = (),
) -> tuple[str, ...]:
    """List what is missing, if so; then the paper's findings, wins and losses, as they are and matched to π, the claim, and
    calibration."""
    found = [
        _incomplete(config, missing) if missing else "",
        _paper(checks, config, missing),
        *(_each_rival(comparisons, name, config) for name in _NAMES),
        _each_rival(matched, LOG_LIKELIHOOD, config, "With every net's mean prediction matched to π afterwards, in"),
        _chance(comparisons),
        *(_other_comparisons(comparisons, about, config) for about in _PARTIES),
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
    """Name the paper's claims by what became of them; the figures are in the checks."""
    if not checks:
        if missing or config.task == "rating" or config.unlabelled:  # what is missing may be what was asked
            return ""
        return "Whether the paper's findings reproduce was not asked: that takes its losses at π = 0.3 and 0.001."
    groups: dict[str, list[str]] = {}
    for each in by_claim(checks):
        count = f" ({each.counts.get('reproduces', 0)} of {sum(each.counts.values())})" if sum(each.counts.values()) > 1 else ""
        on = f", by {_FACTORS.get(each.depends_on, each.depends_on)}" if each.depends_on else ""
        groups.setdefault(f"{_OVERALL.get(each.overall, each.overall)}{on}", []).append(f"{each.claim}{count}")
    groups["always answering π does the same, not counted"] = [each.claim for each in by_claim(checks, trivial=True)]
    said = [f"{capitalised(word)}: {'; '.join(claims)}." for word, claims in groups.items() if claims]
    return f"Does what the paper found reproduce, by claim (checks in which it does)? {' '.join(said)}"


def _each_rival(comparisons: Sequence[Comparison], name: str, config: StudyConfig, preface: str = "In") -> str:
    """Say against each rival how often the default is ahead, behind or undecided."""
    own = [each for each in comparisons if each.about == "loss" and name in each.differences]
    if not own:
        return ""
    rivals: dict[str, list[Comparison]] = {}
    for each in own:
        rivals.setdefault(wording.method(each.theirs, config), []).append(each)
    parts = [f"{rival}: {_tally(some, name)}" for rival, some in rivals.items()]
    heading = f"{preface} {_NAMES[name]}, the default information gain against each rival"
    return f"{heading}. {capitalised('; '.join(parts))}.{_lost(own, name, config)}"


def _tally(comparisons: Sequence[Comparison], name: str) -> str:
    """Return "ahead in 3 of 4, undecided in 1"."""
    standings = [each.differences[name].standing for each in comparisons]
    counts = [f"{word} in {standings.count(word)}" for word in ("ahead", "behind", "undecided") if word in standings]
    return f"{counts[0]} of {len(standings)}" + "".join(f", {each}" for each in counts[1:])


def _lost(comparisons: Sequence[Comparison], name: str, config: StudyConfig) -> str:
    """Name the rivals that are clearly ahead, worst first, and count the differences that are not defined."""
    figures = [(each.differences[name].figure, each) for each in comparisons]
    behind = sorted((pair for pair in figures if pair[0].high < 0), key=lambda pair: pair[0].value)
    cases = [
        f"{wording.method(each.theirs, config)} ({wording.where(each.ours, config)}) {wording.difference(figure)}"
        for figure, each in behind
    ]
    undefined = sum(math.isnan(figure.value) for figure, _ in figures)
    lost = f" It loses to: {'; '.join(_short(cases))}." if cases else ""
    return lost + (f" In {undefined} of {len(figures)} the difference is not defined." if undefined else "")


def _short(parts: Sequence[str]) -> Iterator[str]:
    yield from parts[:_MOST_NAMED]
    if len(parts) > _MOST_NAMED:
        yield f"and {len(parts) - _MOST_NAMED} more"


def _chance(comparisons: Sequence[Comparison]) -> str:
    count = sum(name in each.differences for each in comparisons for name in _NAMES)
    if count < 20:
        return ""
    return f"Of {count} differences, about {round(count / 20)} would look decided by chance alone if there were none."


# What else is compared, and what the two parties are called.
_PARTIES: dict[str, Callable[[Comparison, StudyConfig], tuple[str, str]]] = {
    "start": lambda each, _: (wording.STARTS[each.ours.start], wording.STARTS[each.theirs.start]),
    "unlabelled": lambda each, _: ("logit adjustment with the unlabelled patients", "without them"),
    "net": lambda each, config: (wording.net(each.ours, config), wording.net(each.theirs, config)),
    "inference": lambda each, _: (wording.INFERENCES[each.ours.inference], wording.INFERENCES[each.theirs.inference]),
    "likelihood": lambda each, _: (wording.LIKELIHOODS[each.ours.likelihood], wording.LIKELIHOODS[each.theirs.likelihood]),
}


def _other_comparisons(comparisons: Sequence[Comparison], about: str, config: StudyConfig) -> str:
    """Compare starts, nets, inferences or likelihoods, over all losses together."""
    by_parties: dict[tuple[str, str], list[Comparison]] = {}
    for each in comparisons:
        if each.about == about:
            by_parties.setdefault(_PARTIES[about](each, config), []).append(each)
    parts = []
    for (ours, theirs), some in by_parties.items():
        figures = [f"in {_NAMES[name]} {_tally(some, name)}" for name in _NAMES if name in some[0].differences]
        parts.append(capitalised(f"{ours} against {theirs}: {'; '.join(figures)}."))
    return f"{'' if about == 'unlabelled' else 'Over all losses. '}{' '.join(parts)}" if parts else ""


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
    """Say how often the default's calibration error may be noise, and its mean prediction agrees with π."""
    own = [row for row in rows if is_default(row.key, config) and not math.isnan(row.figures["calibration_error"].value)]
    if not own:
        return ""
    fine = sum(row.figures["calibration_error"].low == 0 for row in own)
    means = [(row.figures["mean_prediction"], row.key.population) for row in own if row.key.population is not None]
    held = sum(mean.low <= population <= mean.high for mean, population in means)
    agrees = f" The mean prediction agrees with π in {held} of {len(means)}." if means else ""
    return (
        f"Calibration of the default information gain: in {fine} of {counted(len(own), 'case')} the calibration error is "
        f"no larger than chance would make it.{agrees}"
    )


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
