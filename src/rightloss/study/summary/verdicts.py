"""Verdicts on the paper's claims, from where intervals lie, and the checks that hold them.

Stage: `Figure`s → `Verdict`; `CellKey`, a claim, its verdict and figures → `PaperCheck`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...metrics import Figure
from ..config import StudyConfig
from ..methods import DEFAULT
from ..pooled_predictions import CellKey
from . import wording
from .comparisons import PUBLISHED, PUBLISHED_FORMS
from .contract import PaperCheck, Standing, Verdict


def when_above(figure: Figure, margin: float = 0.0) -> Verdict:
    """Return "reproduces" if the interval is above the margin, "does not" if below it."""
    return "reproduces" if figure.low > margin else "does not" if figure.high < margin else "undecided"


def when_below(figure: Figure, margin: float = 0.0) -> Verdict:
    """Return "reproduces" if the interval is below the margin, "does not" if above it."""
    return when_above(Figure(-figure.value, -figure.high, -figure.low), -margin)


def when_within(figure: Figure, margin: float) -> Verdict:
    """Return "reproduces" if the interval is within ±margin, "does not" if it is wholly outside."""
    if -margin <= figure.low and figure.high <= margin:
        return "reproduces"
    return "does not" if figure.low > margin or figure.high < -margin else "undecided"


def every(verdicts: Iterable[Verdict]) -> Verdict:
    """Return "reproduces" if all do, "does not" if one does not."""
    found = set(verdicts)
    return "does not" if "does not" in found else "reproduces" if found == {"reproduces"} else "undecided"


def verdict_of(standings: Iterable[Standing]) -> Verdict:
    """Return "reproduces" if one is ahead and none behind, "does not" if it is the other way round."""
    found = set(standings)
    if "ahead" in found and "behind" not in found:
        return "reproduces"
    return "does not" if "behind" in found and "ahead" not in found else "undecided"


def forms(config: StudyConfig) -> tuple[str, ...]:
    """Return the published forms that the study has; if none, the default stands in for them."""
    return tuple(loss for loss in config.losses if loss in PUBLISHED_FORMS) or (DEFAULT,)


def check_at(
    key: CellKey,
    config: StudyConfig,
    about: str,
    verdict: Verdict,
    sentence: str,
    place: str,
    paper: str,
    ours: str,
    trivial: bool = False,
) -> PaperCheck:
    """Make a check whose place and setting are those of a key; a loss is named unless it is the only published form."""
    usual = key.loss in ("", PUBLISHED) and forms(config) in ((PUBLISHED,), (DEFAULT,))
    named = [wording.where(key._replace(population=None), config), "" if usual or not key.loss else wording.short_method(key)]
    setting = {name: value for name, value in key._asdict().items() if isinstance(value, str) and value}
    return PaperCheck(about, ", ".join(filter(None, named)), verdict, sentence, place, paper, ours, trivial, setting)


def in_order(checks: Iterable[PaperCheck]) -> tuple[PaperCheck, ...]:
    """Sort the checks by claim."""
    claims: dict[str, list[PaperCheck]] = {}
    for check in checks:
        claims.setdefault(check.about, []).append(check)
    return tuple(check for own in claims.values() for check in own)
