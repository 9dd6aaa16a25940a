"""Claims of the paper that need several studies, or cannot be tested.

Stage: `Summary`s of several studies → `PaperCheck`s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..config import IMAGE_NETS
from ..paper import TABLE_2
from . import wording
from .checks import RARE
from .comparisons import PUBLISHED, WEIGHTED
from .contract import AUC, Difference, PaperCheck, Summary, Verdict


def checks_across(summaries: Sequence[Summary]) -> tuple[PaperCheck, ...]:
    """Make the checks that compare studies, then list the claims that cannot be tested.

    Args:
        summaries: of two-class studies with raw and with rebalanced minibatches; others are ignored.

    Examples:
        >>> [check.verdict for check in checks_across([])]
        ['cannot be tested', 'cannot be tested', 'cannot be tested']
    """
    return (*_less_degraded_when_raw(summaries), *_every_net(summaries), *_UNTESTABLE)


def _less_degraded_when_raw(summaries: Sequence[Summary]) -> Iterable[PaperCheck]:
    """Check that the weighted loss loses less with raw minibatches than with rebalanced ones, at a low prevalence.

    The two studies are compared by their intervals, which is coarser than a paired difference.
    """
    found: dict[tuple[str, str], dict[str, Difference]] = {}
    for each in (each for summary in summaries if summary.config.task == "binary" for each in summary.comparisons):
        ours, theirs = each.ours, each.theirs
        if each.about == "published" and ours.net in IMAGE_NETS and ours.population == RARE and theirs.loss == WEIGHTED:
            found.setdefault((ours.data, ours.net), {})[ours.minibatches] = each.differences[AUC]
    printed = {loss: TABLE_2["convnet", RARE, loss][AUC] for loss in (PUBLISHED, WEIGHTED)}
    for (data, net), both in found.items():
        if len(both) < 2:
            continue
        raw, rebalanced = both["raw"].figure, both["rebalanced"].figure
        verdict: Verdict = "undecided"
        if raw.high < rebalanced.low:
            verdict = "reproduces"
        elif raw.low > rebalanced.high:
            verdict = "does not"
        figures = [wording.difference(each) for each in (raw, rebalanced)]
        yield PaperCheck(
            "at a prevalence of 0.001 the weighted loss degrades less with raw minibatches than with rebalanced ones",
            f"{wording.source(data)}, {wording.NETS[net]}",
            verdict,
            f"AUC as published minus weighted loss: raw {figures[0]}, rebalanced {figures[1]}.",
            "Table 2, caption",
            f"AUC, raw: bayesIG {printed[PUBLISHED]:g}, wLoss {printed[WEIGHTED]:g}",
            f"raw {figures[0]}, rebalanced {figures[1]}",
        )


def _every_net(summaries: Sequence[Summary]) -> Iterable[PaperCheck]:
    """Check that each trend holds, or at least is not reversed, for every net of images of the same study and data."""
    verdicts: dict[tuple[str, int, str], dict[str, Verdict]] = {}  # by claim, study and the rest of the setting; by net
    for number, summary in enumerate(each for each in summaries if each.config.task == "binary"):
        for name in (wording.NETS[net] for net in summary.config.nets if net in IMAGE_NETS):
            for check in (each for each in summary.checks if name in each.where):
                verdicts.setdefault((check.about, number, check.where.replace(name, "")), {})[name] = check.verdict
    trends: dict[str, list[dict[str, Verdict]]] = {}
    for (about, *_), nets in verdicts.items():
        if len(nets) > 1:
            trends.setdefault(about, []).append(nets)
    if not trends:
        return
    split = [about for about, some in trends.items() if any({"reproduces", "does not"} <= {*nets.values()} for nets in some)]
    names = list(dict.fromkeys(name for some in trends.values() for nets in some for name in nets))
    yield PaperCheck(
        "the trends are similar across architectures",
        wording.listed(names),
        "does not" if len(split) > len(trends) / 2 else "undecided" if split else "reproduces",
        f"Of {len(trends)} claims checked for several nets, {len(split)} reproduce for one and not for another"
        + (f": {'; '.join(split)}." if split else "."),
        "Section 4, architectures",
        "",
        f"claims on which nets disagree: {len(split)} of {len(trends)}",
    )


_UNTESTABLE = (
    PaperCheck(
        "on the Brompton data, the same as on LIDC-IDRI",
        "Brompton",
        "cannot be tested",
        "The data are private: 679 nodules with age, sex and smoking status. LIDC-IDRI's balanced set with metadata stands in.",
        "Section 4, Brompton; Fig. 3",
    ),
    PaperCheck(
        "ROC curves and histograms by prevalence, curve by curve",
        "Fig. 3",
        "cannot be tested",
        "The paper gives no figures for its curves, and not which prevalences they are for: the trend alone is checked.",
        "Fig. 3",
    ),
    PaperCheck(
        "with 64³ patches of CT, nine views and the full nets, the same figures",
        "Tables 1 and 2",
        "cannot be tested",
        "LIDC-IDRI's CT volumes do not come with the package: readers' outlines and single CT slices stand in for them, and "
        "the nets are small.",
        "Section 4, data sets",
    ),
)
