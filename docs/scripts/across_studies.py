"""Claims of the paper over several studies: those that need them, those that cannot be tested, and what became of each.

Stage: `Summary`s of several studies → `PaperCheck`s; `PaperCheck`s → `ClaimVerdict`s.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from rightloss.card.words import listed
from rightloss.metrics import Figure
from rightloss.study.config import IMAGE_NETS, StudyConfig
from rightloss.study.paper import TABLE_2
from rightloss.study.results import CellKey, grouped
from rightloss.study.summary import PaperCheck, Summary, wording
from rightloss.study.summary.claims import RARE, check_at, when_above
from rightloss.study.summary.comparisons import PUBLISHED, WEIGHTED
from rightloss.study.summary.contract import AUC, OURS, Outcome

ORDER: tuple[Outcome, ...] = ("reproduces", "does not", "undecided", "cannot be tested")


def checks_across(summaries: Sequence[Summary]) -> tuple[PaperCheck, ...]:
    """Make the checks that compare studies, then list the claims that cannot be tested.

    Args:
        summaries: of two-class studies with raw and with rebalanced minibatches; others are ignored.
    """
    return (*_less_degraded_when_raw(summaries), *_every_net(summaries), *_UNTESTABLE)


class ClaimVerdict(NamedTuple):
    """What became of a claim in all settings in which it was checked."""

    claim: str
    counts: Mapping[Outcome, int]  # checks by verdict
    overall: str  # the verdict if all decided checks agree, "mixed" if they differ, else "undecided" or "cannot be tested"
    depends_on: str = ""  # if mixed, the field of `PaperCheck.setting` that alone explains it: "start", "net" or "data", say


def by_claim(checks: Iterable[PaperCheck], *, trivial: bool = False) -> list[ClaimVerdict]:
    """Return what became of each of the paper's claims; our own are left out.

    Args:
        checks: of one study or of several.
        trivial: whether to return the claims that always answering π fulfils, which no headline counts, or the others.
    """
    own = grouped(
        (check for check in checks if check.trivial == trivial and check.place != OURS),
        lambda check: check.about.partition(": ")[0],
    )
    return [_claim_verdict(claim, some) for claim, some in own.items()]


def _claim_verdict(claim: str, checks: Sequence[PaperCheck]) -> ClaimVerdict:
    counts: Mapping[Outcome, int] = dict(Counter(check.verdict for check in checks))
    if "reproduces" in counts and "does not" in counts:
        return ClaimVerdict(claim, counts, "mixed", _explaining(checks))
    return ClaimVerdict(claim, counts, min(counts, key=ORDER.index))


def _explaining(checks: Sequence[PaperCheck]) -> str:
    """Return the field of the settings by which decided checks agree within each of its values; "" if none or several do."""
    decided = [check for check in checks if check.verdict in ("reproduces", "does not")]
    found = []
    for name in dict.fromkeys(name for check in decided for name in check.setting):
        by_value = grouped(decided, lambda check: check.setting.get(name, ""))  # noqa: B023
        if all(len({check.verdict for check in some}) == 1 for some in by_value.values()):
            found.append(name)
    return found[0] if len(found) == 1 else ""


def _less_degraded_when_raw(summaries: Sequence[Summary]) -> Iterable[PaperCheck]:
    """Check that the weighted loss loses less with raw minibatches than with rebalanced ones, at a low prevalence.

    The studies are not paired: the interval of their difference is that of independent ones, which is wider.
    """
    both: dict[CellKey, dict[str, tuple[Figure, StudyConfig]]] = {}
    for summary in (summary for summary in summaries if summary.config.task == "binary"):
        for each in (each for each in summary.comparisons if each.about == "published"):
            if each.ours.net in IMAGE_NETS and each.ours.population == RARE:
                own = both.setdefault(each.ours._replace(minibatches=""), {})
                own[each.ours.minibatches] = each.differences[AUC].figure, summary.config
    printed = {loss: TABLE_2["convnet", RARE, loss][AUC] for loss in (PUBLISHED, WEIGHTED)}
    for key, own in ((key, own) for key, own in both.items() if len(own) == 2):
        (raw, _), (rebalanced, config) = own["raw"], own["rebalanced"]
        found = _minus(rebalanced, raw)
        check = check_at(
            key._replace(minibatches="rebalanced"),
            config,
            "at a prevalence of 0.001 the weighted loss degrades less with raw minibatches than with rebalanced ones",
            when_above(found),
            "Table 2, caption",
            f"AUC, raw: bayesIG {printed[PUBLISHED]:g}, wLoss {printed[WEIGHTED]:g}",
            f"rebalanced minus raw {wording.difference(found)}",
        )
        source = wording.source(key.data)
        yield check if source in check.where else replace(check, where=f"{source}, {check.where}")


def _minus(one: Figure, other: Figure) -> Figure:
    """Return the difference of independent figures, its interval by Zou and Donner's method."""
    value = one.value - other.value
    low = math.hypot(one.value - one.low, other.high - other.value)
    return Figure(value, value - low, value + math.hypot(one.high - one.value, other.value - other.low))


def _every_net(summaries: Sequence[Summary]) -> Iterable[PaperCheck]:
    """Check that each trend holds, or at least is not reversed, for every net of images of the same study and setting."""
    trends: dict[str, dict[object, dict[str, Outcome]]] = {}  # by claim; by study and the rest of the setting; by net
    for number, summary in enumerate(each for each in summaries if each.config.task == "binary"):
        for check in (each for each in summary.checks if each.setting.get("net") in IMAGE_NETS and not each.trivial):
            rest = number, *((name, value) for name, value in check.setting.items() if name != "net")
            trends.setdefault(check.about, {}).setdefault(rest, {})[check.setting["net"]] = check.verdict
    cases = {about: [nets for nets in some.values() if len(nets) > 1] for about, some in trends.items()}
    cases = {about: some for about, some in cases.items() if some}
    if not cases:
        return
    split = [about for about, some in cases.items() if any({"reproduces", "does not"} <= {*nets.values()} for nets in some)]
    names = list(dict.fromkeys(wording.NETS[net] for some in cases.values() for nets in some for net in nets))
    yield PaperCheck(
        "the trends are similar across architectures",
        listed(names),
        "does not" if len(split) > len(cases) / 2 else "undecided" if split else "reproduces",
        "Section 4, architectures",
        "",
        f"claims on which nets disagree: {len(split)} of {len(cases)}",
    )


_REASONS = {  # claim, where it was made, its place in the paper → why it cannot be tested
    ("on the Brompton data, the same as on LIDC-IDRI", "Brompton", "Section 4, Brompton; Fig. 3"):
        "The data are private: 679 nodules with age, sex and smoking status. LIDC-IDRI's balanced set with metadata stands in.",
    ("ROC curves and histograms by prevalence, curve by curve", "Fig. 3", "Fig. 3"):
        "The paper gives no figures for its curves, and not which prevalences they are for: the trend alone is checked.",
    ("with 64³ patches of CT, nine views and the full nets, the same figures", "Tables 1 and 2", "Section 4, data sets"):
        "LIDC-IDRI's CT volumes do not come with the package: slabs of CT, single slices and readers' outlines stand in "
        "for them, and most nets are small.",
}  # fmt: skip
_UNTESTABLE = tuple(
    PaperCheck(claim, where, "cannot be tested", place, ours=why) for (claim, where, place), why in _REASONS.items()
)
