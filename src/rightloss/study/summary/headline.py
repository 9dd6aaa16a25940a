"""The report's first two sentences, which are also the last of the terminal.

Stage: `Summary` → two sentences at most. A study of losses says which to avoid; other studies count wins and losses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..paper import RATINGS
from ..pooled_predictions import CellKey
from . import wording
from .comparisons import is_default
from .contract import CONSTANT, LOG_LIKELIHOOD, Comparison, Standing, Summary
from .narrative import is_worse
from .wording import capitalised, counted, listed, one_in

_DEFAULT = "the default information gain"
_OTHER_QUESTIONS = {"unlabelled", "inference", "net"}
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_MOST_RATES = 3  # that are named
_MOST_PARTS = 3  # of the first sentence
_CLEARLY: Mapping[Standing, str] = {"ahead": "clearly worse", "behind": "clearly better"}  # the rival, seen from the default

Standings = Mapping[str, Mapping[float, Sequence[Standing]]]  # of the default, by rival and population


def headline(summary: Summary) -> tuple[str, ...]:
    """Say what was found in two short sentences at most; of several starts, for the first."""
    starts = summary.config.starts
    if len(starts) > 1:
        first, *others = headline(_from(starts[0], summary))
        return f"{capitalised(wording.STARTS[starts[0]])}: {first[:1].lower()}{first[1:]}", *others
    standings = _standings(summary)
    mixed = any({"ahead", "behind"} <= set(some) for by_rate in standings.values() for some in by_rate.values())
    parts = [] if mixed else [*_parts(standings, "ahead"), *_parts(standings, "behind")]
    if not standings or mixed or len(parts) > _MOST_PARTS:
        return _by_counts(summary)
    return _which_loss(parts, standings), _against_constant(summary, standings)


def _from(start: str, summary: Summary) -> Summary:
    """Return the part of the summary that is about nets with this start."""
    return replace(
        summary,
        config=replace(summary.config, starts=(start,)),
        rows=tuple(row for row in summary.rows if row.key.start in (start, "")),
        comparisons=tuple(each for each in summary.comparisons if each.ours.start == each.theirs.start == start),
    )


# A study of losses.


def _standings(summary: Summary) -> Standings:
    """Return how the default stands against each rival; nothing if the study is about something else."""
    config = summary.config
    if config.task == "rating" or config.unlabelled or _OTHER_QUESTIONS & {each.about for each in summary.comparisons}:
        return {}
    skills = {row.key: row.figures["skill"].value for row in summary.rows}
    found: dict[str, dict[float, list[Standing]]] = {}
    for each in summary.comparisons:
        if each.about == "loss" and LOG_LIKELIHOOD in each.differences and each.ours.population is not None:
            by_rate = found.setdefault(wording.method(each.theirs, config), {})
            by_rate.setdefault(each.ours.population, []).append(_standing(each, skills))
    return found


def _standing(comparison: Comparison, skills: Mapping[CellKey, float]) -> Standing:
    """Return the standing of ours; a probability of 0 for what happened leaves no difference, but is clearly worse."""
    infinite = [skills.get(key) == -math.inf for key in (comparison.ours, comparison.theirs)]
    if infinite[0] != infinite[1]:
        return "behind" if infinite[0] else "ahead"
    return comparison.differences[LOG_LIKELIHOOD].standing


def _parts(standings: Standings, word: Standing) -> list[str]:
    """Return "at 1 in 1,000, avoid the weighted loss" for the rivals that are worse, or "prefer …" for the better ones."""
    groups: dict[str, list[str]] = {}
    for rival, by_rate in standings.items():
        rates = [rate for rate, some in by_rate.items() if word in some]
        if rates:
            cases = [standing for rate in rates for standing in by_rate[rate]]
            count = cases.count(word)
            share = f" ({_CLEARLY[word]} in {count} of {len(cases)} settings)" if count < len(cases) else ""
            groups.setdefault(_at(rates, by_rate, "a prevalence of "), []).append(f"{_the(rival)}{share}")
    if word == "ahead":
        return [f"{place}, avoid {listed(names)}" for place, names in groups.items()]
    return [f"{place}, prefer {listed(names)} to {_DEFAULT}" for place, names in groups.items()]


def _which_loss(parts: Sequence[str], standings: Standings) -> str:
    if not parts:
        rates = dict.fromkeys(rate for by_rate in standings.values() for rate in by_rate)
        return f"No other loss differs clearly from {_DEFAULT}, {_at(rates, rates)}."
    named = capitalised("; ".join(parts))
    if not any("undecided" in some for by_rate in standings.values() for some in by_rate.values()):
        return f"{named}."
    return f"{named}; otherwise no loss differs clearly from {'it' if 'prefer' in parts[-1] else _DEFAULT}."


def _against_constant(summary: Summary, standings: Standings) -> str:
    """Compare every loss that is nowhere clearly worse with always answering π, or else the default alone."""
    avoided = {rival for rival, by_rate in standings.items() if any("ahead" in some for some in by_rate.values())}
    rows = [row for row in summary.rows if row.key.loss != CONSTANT]
    rest = [row for row in rows if wording.method(row.key, summary.config) not in avoided]
    if any(not row.figures["skill"].low > 0 for row in rest):
        return _default_alone(summary)
    rates = list(dict.fromkeys(row.key.population for row in rest if row.key.population is not None))
    count = len({wording.method(row.key, summary.config) for row in rest})
    number = _WORDS[count] if count < len(_WORDS) else f"{count}"
    losses = f"the other {number} losses" if avoided else "both losses" if count == 2 else f"all {number} losses"
    verb = "beats" if count == 1 else "beat"
    subject = _DEFAULT if count == 1 else losses
    return f"{capitalised(subject)} clearly {verb} always answering the prevalence, {_at(rates, rates)}."


def _at(rates: Iterable[float], every: Iterable[float], noun: str = "") -> str:
    """Return "at 30 % and 1 in 1,000", with a noun after "at"; many are counted."""
    some, count = list(rates), len(list(every))
    if len(some) <= _MOST_RATES:
        return f"at {noun}{listed([one_in(rate) for rate in some])}"
    return "at every prevalence" if len(some) == count else f"at {len(some)} of {count} prevalences"


def _the(rival: str) -> str:
    """Return a loss's name within a sentence."""
    name = rival if rival.startswith(("cross-entropy", "as published")) else f"the {rival}"
    return f"“{name}”" if "," in name else name


# Other studies.

# By what is compared: the beginning of the second sentence.
_SUBJECTS = {
    "unlabelled": "With the unlabelled patients, logit adjustment is",
    "inference": "Against one net, averages over many weights are",
    "net": "Against either alone, image and metadata together are",
    "loss": "Against the other losses, it is",
}


def _by_counts(summary: Summary) -> tuple[str, ...]:
    first = _default_alone(summary)
    return tuple(filter(None, [first, _second_sentence(summary) if summary.rows else ""]))


def _default_alone(summary: Summary) -> str:
    """Count the cases in which the default, or without it any net, is better and worse than always answering π."""
    own = [row for row in summary.rows if is_default(row.key, summary.config)]
    name = _DEFAULT
    if not own:
        own, name = [row for row in summary.rows if row.key.loss != CONSTANT], "a trained net"
    if not own:
        return "No run is done yet."
    better, worse = sum(row.figures["skill"].low > 0 for row in own), sum(is_worse(row) for row in own)
    bad = f", and is clearly worse in {worse}" if worse else ""
    cases = counted(len(own), "case")
    return f"{capitalised(name)} predicts clearly better than always answering the prevalence in {better} of {cases}{bad}."


def _second_sentence(summary: Summary) -> str:
    """Answer the question of the title: by ratings within one, or by how often one party is ahead."""
    rated = [row for row in summary.rows if is_default(row.key, summary.config) and "majority_off_by_one" in row.figures]
    if rated and not summary.config.unlabelled:
        likelihood = "onion-peeling" if "onion-peeling" in summary.config.likelihoods else rated[0].key.likelihood
        row = next(row for row in rated if row.key.likelihood == likelihood)
        share = wording.percent(round(row.figures["majority_off_by_one"].value, 2))
        name, paper = wording.LIKELIHOODS[likelihood], wording.percent(RATINGS["off_by_one"])
        return f"With {name}, {share} of predicted ratings are within one of the readers' (paper: {paper})."
    for about, subject in _SUBJECTS.items():
        standings = [
            each.differences[LOG_LIKELIHOOD].standing
            for each in summary.comparisons
            if each.about == about and LOG_LIKELIHOOD in each.differences
        ]
        if standings:
            ahead, behind, undecided = (standings.count(word) for word in ("ahead", "behind", "undecided"))
            return (
                f"{subject} clearly better in {ahead} of {counted(len(standings), 'comparison')} and clearly worse in "
                f"{behind or 'none'}" + (f"; no clear difference in {undecided}." if undecided else ".")
            )
    return ""
