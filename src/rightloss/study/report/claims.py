"""The page's table of the paper's claims: a row per claim, with what a reader needs to judge it.

Stage: `Summary` → `Claim`s.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..summary import PaperCheck, Summary, wording
from ..summary.checks import LOWER_LIKELIHOOD, NO_SENSITIVITY, RARE, SOME_SENSITIVITY
from ..summary.comparisons import is_default
from ..summary.contract import Verdict

_SEVERAL = "several: see every check below"
_MOST_LINES = 4  # in a cell
_WORDS: Mapping[str, Mapping[str, str]] = {
    "start": wording.STARTS,
    "loss": wording.SHORT_LOSSES,
    "net": wording.NETS,
    "likelihood": wording.LIKELIHOODS,
    "inference": wording.INFERENCES,
    "minibatches": wording.MINIBATCHES,
}
_BY_FIGURES = "by its figures"  # in a check's place, if the paper's text does not say so
_HALF = ", if nodules are called malignant from a probability of ½ on"
_TRIVIAL = "Always answering π does the same, so this says nothing about a loss."


@dataclass(frozen=True)
class Claim:
    """A finding of the paper and its checks, in one row.

    Attributes:
        about: the finding.
        verdicts: what to show, by verdict; with counts if it was checked in several places.
        paper: its figures, or where to find them if the checks have different ones.
        ours: the same of this study, a line for each of up to four checks.
        by_figures: whether the paper's figures say so, but not its text.
        note: what to know about it.
    """

    about: str
    verdicts: Mapping[Verdict, str]
    paper: str
    ours: tuple[str, ...]
    by_figures: bool = False
    note: str = ""


def claims(summary: Summary) -> list[Claim]:
    """Return a row per finding of the paper."""
    by_claim: dict[str, list[PaperCheck]] = {}
    for check in summary.checks:
        by_claim.setdefault(check.about, []).append(check)
    return [_claim(about, own, summary) for about, own in by_claim.items()]


def _claim(about: str, own: Sequence[PaperCheck], summary: Summary) -> Claim:
    verdicts = Counter(check.verdict for check in own)
    shown = {
        verdict: _said(verdict) + (f" in {count} of {len(own)}" if len(own) > 1 else "") for verdict, count in verdicts.items()
    }
    return Claim(
        about + (_HALF if about in (NO_SENSITIVITY, SOME_SENSITIVITY) else ""),
        shown,
        " ".join(_lines([_paper(check) for check in own], own)),
        _lines([_ours(check, summary) for check in own], own, _MOST_LINES),
        any(_by_figures(check) for check in own),
        _TRIVIAL if all(check.trivial for check in own) else "",
    )


def _lines(texts: Sequence[str], own: Sequence[PaperCheck], most: int = 0) -> tuple[str, ...]:
    """Return the text if the checks share it; else a line for each of a few checks, with what sets it apart and its verdict."""
    if len(set(texts)) == 1:
        return (texts[0],)
    if len(own) > most:
        return (_SEVERAL,)
    names = [name for name in own[0].setting if len({check.setting.get(name) for check in own}) > 1]
    return tuple(f"{_setting(check, names)}: {text} – {_said(check.verdict)}" for text, check in zip(texts, own, strict=True))


def _setting(check: PaperCheck, names: Sequence[str]) -> str:
    values = [(name, check.setting.get(name, "")) for name in names]
    return ", ".join(_WORDS.get(name, {}).get(value, value) for name, value in values) or check.where


def _said(verdict: Verdict) -> str:
    return "does not reproduce" if verdict == "does not" else verdict


def _by_figures(check: PaperCheck) -> bool:
    return _BY_FIGURES in check.place or (check.about == LOWER_LIKELIHOOD and check.place.startswith("Table"))


def _paper(check: PaperCheck) -> str:
    """Return the paper's figures; without any, the figure that shows it."""
    drawn = re.search(r"Fig\. \d+", check.place)
    return check.paper or (f"{drawn[0]}, no number" if drawn else "")


def _ours(check: PaperCheck, summary: Summary) -> str:
    """Return our figures; beside the sensitivity of another loss, that of the default."""
    if check.about not in (NO_SENSITIVITY, SOME_SENSITIVITY):
        return check.ours
    config = summary.config
    same = [
        row.figures["tpr"]
        for row in summary.rows
        if is_default(row.key, config)
        and row.key.population == RARE
        and wording.where(row.key, config, without=["population"]) == check.where
    ]
    return check.ours + "".join(f"; by default {wording.with_interval(each, 3)}" for each in same[:1])
