"""Check by intervals whether the paper's findings on ratings 1 to 5 reproduce: one function per claim.

Stage: `CellSummary`s, `CellPair`s of a study of ratings → `PaperCheck`s. The paper's figures are those of onion peeling with
the information gain, without intervals: a figure of ours is as good if its interval contains the paper's or lies above it, and
is not if it lies wholly below. The paper does not say how readers' ratings were combined: each claim is checked by both rules,
and reproduces if it does by one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...metrics import Figure
from ..config import StudyConfig
from ..paper import RATINGS
from ..pooled_predictions import CellKey
from . import wording
from .claims import check_at, every, forms, in_order, when_above
from .comparisons import MARGIN, RULE_FIGURES
from .contract import LOG_LIKELIHOOD, CellPair, CellSummary, Outcome, PaperCheck

RULES = ("mean", "majority")  # the first is shown if both agree
ONION, SOFTMAX = "onion-peeling", "categorical"
ROUNDING = 0.005  # the paper gives two places
SECTION = "Section 4, ratings"
_TITLES = {"accuracy": "Acc.", "balanced_accuracy": "BA", "off_by_one": "Acc. ±1", "balanced_off_by_one": "BA ±1"}
_MALIGNANT = tuple(f"malignant_{name}" for name in ("accuracy", "tpr", "tnr", "ppv", "npv"))
# Claims that hold if by one rule the interval of every figure reaches the paper's; further figures of the paper are shown.
_AS_GOOD = {
    "ratings by onion peeling are as accurate as the paper's": (("accuracy", "balanced_accuracy"), ()),
    "ratings by onion peeling are as often off by no more than one as the paper's": (("off_by_one", "balanced_off_by_one"), ()),
    "benign or malignant, by the ratings, is as accurate as the paper's": (_MALIGNANT[:1], _MALIGNANT[1:]),
}


def rating_claims(rows: Sequence[CellSummary], comparisons: Sequence[CellPair], config: StudyConfig) -> tuple[PaperCheck, ...]:
    """Make the checks that the study has the runs for: of onion peeling with each form, and once over all losses."""
    found: list[PaperCheck | None] = []
    for row in rows:
        if row.key.likelihood == ONION and row.key.loss in forms(config):
            exact, near, malignant = (_as_good(row, config, about) for about in _AS_GOOD)
            found += [exact, near, _extremes(row, config), malignant]
            softmax = row.key._replace(likelihood=SOFTMAX)
            found += [_onion_peeling(each, config) for each in comparisons if (each.ours, each.theirs) == (row.key, softmax)]
    for key in dict.fromkeys(_setting(row.key) for row in rows if row.key.net):
        found.append(_aggregations(key, [each for each in comparisons if _setting(each.ours) == key], config))
    return in_order(found)


def _setting(key: CellKey) -> CellKey:
    return key._replace(likelihood="", loss="")


def _as_good(row: CellSummary, config: StudyConfig, about: str) -> PaperCheck:
    names, others = _AS_GOOD[about]
    verdicts = [every(_reaches(row.figures[f"{rule}_{name}"], RATINGS[name]) for name in names) for rule in RULES]
    verdict, best = _by_one_rule(verdicts)
    paper = ", ".join(f"{_title(name)} {RATINGS[name]:.2f}" for name in (*names, *others))
    shown = (f"{_title(name)} {wording.with_interval(row.figures[f'{best}_{name}'], 2)}" for name in names)
    return _check(row.key, config, about, verdict, paper, f"by {best} {', '.join(shown)}")


def _reaches(figure: Figure, paper: float) -> Outcome:
    least = paper - ROUNDING
    return "reproduces" if figure.high >= least else "does not" if figure.high < least else "undecided"


def _by_one_rule(verdicts: Sequence[Outcome]) -> tuple[Outcome, str]:
    """Return "reproduces" if by one rule it does, "does not" if by neither; and the rule to show."""
    if "reproduces" in verdicts:
        return "reproduces", RULES[verdicts.index("reproduces")]
    return ("does not" if set(verdicts) == {"does not"} else "undecided"), RULES[0]


def _extremes(row: CellSummary, config: StudyConfig) -> PaperCheck:
    """Check that ratings 2, 3 and 4 are more often right within one than rating 1, the paper's hardest."""
    verdict, best = _by_one_rule([when_above(row.figures[f"{rule}_{MARGIN}"]) for rule in RULES])
    paper = ", ".join(f"{RATINGS[f'off_by_one_recall_{rating}']:.2f}" for rating in range(1, 6))
    ours = f"least of 2 to 4 minus 1, by {best} {wording.difference(row.figures[f'{best}_{MARGIN}'])}"
    return _check(row.key, config, "within one, rating 1 is the hardest and 2 to 4 the easiest", verdict, paper, ours)


def _onion_peeling(comparison: CellPair, config: StudyConfig) -> PaperCheck:
    """Check that onion peeling suits ratings better than the softmax does; the paper says so without figures."""
    found = comparison.differences[LOG_LIKELIHOOD].figure
    about = "onion peeling reflects ratings better than the softmax"
    return _check(comparison.ours, config, about, when_above(found), "", f"log-lik. {wording.difference(found)}")


def _check(key: CellKey, config: StudyConfig, about: str, verdict: Outcome, paper: str, ours: str) -> PaperCheck:
    return check_at(key._replace(likelihood=""), config, about, verdict, SECTION, paper, ours)


def _aggregations(key: CellKey, comparisons: Iterable[CellPair], config: StudyConfig) -> PaperCheck | None:
    """Check that majority and mean rank likelihoods and losses alike, wherever paired differences by both rules are decided."""
    both = [
        [each.differences[f"{rule}_{name}"].standing for rule in RULES]
        for each in comparisons
        for name in RULE_FIGURES
        if f"{RULES[0]}_{name}" in each.differences
    ]
    if not both:
        return None
    decided = [(first, second) for first, second in both if "undecided" not in (first, second)]
    turned = sum(first != second for first, second in decided)
    verdict: Outcome = "undecided" if not decided else "does not" if turned > len(decided) / 20 else "reproduces"
    about = "majority vote and mean rating of the readers show the same trends"
    ours = f"decided by both {len(decided)} of {len(both)}, opposed {turned}"
    return check_at(key, config, about, verdict, "Section 4, data sets", "", ours)


def _title(name: str) -> str:
    kind = name.removeprefix("malignant_")
    return _TITLES.get(kind, kind.upper())
