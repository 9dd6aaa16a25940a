"""Check by intervals whether the paper's findings on ratings 1 to 5 reproduce: one function per claim.

Stage: `CellSummary`s, `Comparison`s of a study of ratings → `PaperCheck`s. The paper's figures are those of onion peeling with
the information gain. It does not say how readers' ratings were combined: each claim is checked by both rules, and reproduces if
it does by one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from ...metrics import Figure
from ..config import StudyConfig
from ..methods import DEFAULT
from ..paper import RATINGS
from ..pooled_predictions import CellKey
from . import wording
from .comparisons import PUBLISHED
from .contract import LOG_LIKELIHOOD, CellSummary, Comparison, Difference, PaperCheck, Standing, Verdict

RULES = ("mean", "majority")  # the first is shown if both agree
ONION, SOFTMAX = "onion-peeling", "categorical"
ROUNDING = 0.005  # the paper gives two places
SECTION = "Section 4, ratings"


class _Context(NamedTuple):
    """One data set, net, minibatches and form of the information gain, as published or the default.

    Attributes:
        where: in wording.
        onion: figures of onion peeling; None if it was not run.
        differences: of onion peeling from the softmax; None if one of them was not run.
    """

    where: str
    onion: Mapping[str, Figure] | None
    differences: Mapping[str, Difference] | None


def rating_checks(
    rows: Sequence[CellSummary], comparisons: Sequence[Comparison], config: StudyConfig
) -> tuple[PaperCheck, ...]:
    """Make the checks that the study has the runs for: with both forms of the information gain, and once over all losses."""
    found = []
    for start in dict.fromkeys(_start(row.key) for row in rows if row.key.net):
        own = [row for row in rows if _start(row.key) == start]
        where = wording.where(start, config)
        found += [claim(context) for context in _contexts(own, comparisons, where) for claim in _CLAIMS]
        found.append(_aggregations(own, where))
    return tuple(check for check in found if check is not None)


def _contexts(rows: Sequence[CellSummary], comparisons: Sequence[Comparison], where: str) -> Iterator[_Context]:
    for loss, form in ((PUBLISHED, "as published"), (DEFAULT, "by default")):
        for row in (row for row in rows if (row.key.likelihood, row.key.loss) == (ONION, loss)):
            softmax = row.key._replace(likelihood=SOFTMAX)
            against = [each.differences for each in comparisons if (each.ours, each.theirs) == (row.key, softmax)]
            yield _Context(f"{where}, {form}", row.figures, against[0] if against else None)


def _start(key: CellKey) -> CellKey:
    return key._replace(likelihood="", loss="")


def _exact(context: _Context) -> PaperCheck | None:
    return _as_good(context, "ratings by onion peeling are as accurate as the paper's", ("accuracy", "balanced_accuracy"))


def _off_by_one(context: _Context) -> PaperCheck | None:
    names = ("off_by_one", "balanced_off_by_one")
    return _as_good(context, "ratings by onion peeling are as often off by no more than one as the paper's", names)


def _malignant(context: _Context) -> PaperCheck | None:
    about = "benign or malignant, by the ratings, is as accurate as the paper's"
    return _as_good(
        context, about, ("malignant_accuracy",), ("malignant_tpr", "malignant_tnr", "malignant_ppv", "malignant_npv")
    )


def _as_good(context: _Context, about: str, names: Sequence[str], others: Sequence[str] = ()) -> PaperCheck | None:
    """Check that by one rule every figure's interval reaches the paper's figure; `others` are reported alone."""
    figures = context.onion
    if figures is None:
        return None
    reached = [all(figures[f"{rule}_{name}"].high >= RATINGS[name] - ROUNDING for name in names) for rule in RULES]
    best = RULES[reached.index(True)] if any(reached) else RULES[0]
    every = (*names, *others)
    sentence = "; ".join(f"by {rule} {_figures(figures, rule, every)}" for rule in RULES)
    return PaperCheck(
        about,
        context.where,
        "reproduces" if any(reached) else "does not",
        f"{wording.capitalised(sentence)}.",
        SECTION,
        ", ".join(f"{_title(name)} {RATINGS[name]:.2f}" for name in every),
        f"by {best} {_figures(figures, best, names)}",
    )


def _figures(figures: Mapping[str, Figure], rule: str, names: Sequence[str]) -> str:
    return ", ".join(f"{_title(name)} {wording.with_interval(figures[f'{rule}_{name}'], 2)}" for name in names)


def _extremes(context: _Context) -> PaperCheck | None:
    """Check that ratings 2, 3 and 4 are more often right within one than rating 1, the paper's hardest."""
    figures = context.onion
    if figures is None:
        return None
    names = [f"off_by_one_recall_{rating}" for rating in range(1, 6)]
    verdicts = []
    for rule in RULES:
        one, *middle = (figures[f"{rule}_{name}"] for name in names[:4])
        apart, turned = one.high < min(each.low for each in middle), one.low > max(each.high for each in middle)
        verdicts.append("reproduces" if apart else "does not" if turned else "undecided")
    verdict: Verdict = (
        "reproduces" if "reproduces" in verdicts else "does not" if set(verdicts) == {"does not"} else "undecided"
    )
    shown = {rule: ", ".join(wording.with_interval(figures[f"{rule}_{name}"], 2) for name in names) for rule in RULES}
    best = RULES[verdicts.index(verdict)] if verdict in verdicts else RULES[0]
    return PaperCheck(
        "within one, rating 1 is the hardest and 2 to 4 the easiest",
        context.where,
        verdict,
        f"True rates of ratings 1 to 5, within one: {'; '.join(f'by {rule} {text}' for rule, text in shown.items())}.",
        SECTION,
        ", ".join(f"{RATINGS[name]:.2f}" for name in names),
        f"by {best} {', '.join(wording.number(figures[f'{best}_{name}'].value, 2) for name in names)}",
    )


def _onion_peeling(context: _Context) -> PaperCheck | None:
    """Check that onion peeling suits ratings better than the softmax does; the paper says so without figures."""
    if context.differences is None:
        return None
    found = context.differences[LOG_LIKELIHOOD]
    verdicts: Mapping[Standing, Verdict] = {"ahead": "reproduces", "behind": "does not", "undecided": "undecided"}
    return PaperCheck(
        "onion peeling reflects ratings better than the softmax",
        context.where,
        verdicts[found.standing],
        f"Expected log-likelihood of onion peeling minus softmax: {wording.difference(found.figure)}, ahead in "
        f"{found.ahead} of {wording.counted(found.folds, 'fold')}.",
        SECTION,
        "",
        f"log-lik. {wording.difference(found.figure)}",
    )


def _aggregations(own: Sequence[CellSummary], where: str) -> PaperCheck | None:
    """Check that majority and mean rank likelihoods and losses alike, wherever both rules tell two of them apart."""
    rows = [row.figures for row in own if "majority_accuracy" in row.figures]
    if not rows:
        return None
    decided = [
        (first, second)
        for name in (*_TITLES, "malignant_accuracy")
        for ours, theirs in combinations(rows, 2)
        if (first := _order(ours, theirs, f"majority_{name}")) and (second := _order(ours, theirs, f"mean_{name}"))
    ]
    turned = sum(first != second for first, second in decided)
    verdict: Verdict = "undecided" if not decided else "does not" if turned > len(decided) / 20 else "reproduces"
    pairs = len(rows) * (len(rows) - 1) // 2 * (len(_TITLES) + 1)
    gap = max(abs(row[f"majority_{name}"].value - row[f"mean_{name}"].value) for row in rows for name in _TITLES)
    return PaperCheck(
        "majority vote and mean rating of the readers show the same trends",
        where,
        verdict,
        f"Of {pairs} comparisons of likelihoods and losses, both rules decide {len(decided)} by intervals apart, and disagree "
        f"on {turned}. The figures themselves differ by up to {wording.number(gap, 2)} between the rules.",
        "Section 4, data sets",
        "",
        f"decided by both {len(decided)} of {pairs}, opposed {turned}",
    )


def _order(ours: Mapping[str, Figure], theirs: Mapping[str, Figure], name: str) -> int:
    """Return 1 or −1 if the intervals are disjoint, else 0."""
    return int(ours[name].low > theirs[name].high) - int(ours[name].high < theirs[name].low)


_TITLES = {"accuracy": "Acc.", "balanced_accuracy": "BA", "off_by_one": "Acc. ±1", "balanced_off_by_one": "BA ±1"}


def _title(name: str) -> str:
    kind = name.removeprefix("malignant_")
    return _TITLES.get(kind, kind.upper())


_CLAIMS: tuple[Callable[[_Context], PaperCheck | None], ...] = (
    _exact,
    _off_by_one,
    _extremes,
    _malignant,
    _onion_peeling,
)
