"""The answer in a few plain words, for whoever reads no further.

Stage: `Row`s, `Comparison`s → two or three sentences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..config import StudyConfig
from ..methods import METHODS
from . import words
from .comparisons import LOG_LIKELIHOOD, PUBLISHED, is_default
from .contract import Comparison, Row


def answer_of(rows: Sequence[Row], comparisons: Sequence[Comparison], config: StudyConfig) -> str:
    """Of the default loss, against always answering π, against the others, and as it was published; "" without it."""
    default = [row for row in rows if is_default(row.key, config)]
    if not default:
        return ""
    rivals = [each for each in comparisons if each.about == "loss" and LOG_LIKELIHOOD in each.differences]
    published = [row for row in rows if row.key.loss == PUBLISHED]
    return " ".join(filter(None, [_against_constant(default), _against_rivals(rivals), _as_published(published)]))


def _against_constant(default: Sequence[Row]) -> str:
    better, worse = sum(row.figures["skill"].low > 0 for row in default), sum(is_worse(row) for row in default)
    text = (
        "In short: trained with the default information gain, nets say more than always answering the prevalence does in "
        f"{better} of {words.counted(len(default), 'case')}"
    )
    return f"{text}, and less in {worse}." if worse else f"{text}, and clearly less in none."


def _against_rivals(rivals: Sequence[Comparison]) -> str:
    if not rivals:
        return ""
    standings = [each.differences[LOG_LIKELIHOOD].standing for each in rivals]
    counts = [standings.count(word) for word in ("ahead", "behind", "undecided")]
    text = (
        f"Beside the other losses, on the same nodules, their probabilities are clearly better in {counts[0]} of "
        f"{words.counted(len(rivals), 'comparison')}, clearly worse in {counts[1]}, and not told apart in {counts[2]}."
    )
    alike = [name for name in dict.fromkeys(words.method(each.theirs) for each in rivals) if _never_told_apart(rivals, name)]
    return f"{text} Nowhere told apart: {'; '.join(alike)}." if alike else text


def _never_told_apart(rivals: Sequence[Comparison], name: str) -> bool:
    own = [each.differences[LOG_LIKELIHOOD].standing for each in rivals if words.method(each.theirs) == name]
    return all(standing == "undecided" for standing in own)


def _as_published(published: Sequence[Row]) -> str:
    if not published:
        return ""
    worse = sum(is_worse(row) for row in published)
    title = METHODS[PUBLISHED].title
    return f"The {title} is worse than always answering the prevalence in {worse} of {words.counted(len(published), 'case')}."


def is_worse(row: Row) -> bool:
    """Than always answering π, clearly. −∞, for a probability of 0 that was given to what happened, has no interval."""
    skill = row.figures["skill"]
    return skill.high < 0 or skill.value == -math.inf
