"""Check by intervals whether the paper's findings on ratings 1 to 5 reproduce: one function per claim.

Stage: `CellSummary`s, `Comparison`s of a study of ratings → `PaperCheck`s. The paper's figures are those of onion peeling with
the information gain, without intervals: a figure of ours is as good if its interval contains the paper's or lies above it, and
is not if it lies wholly below. The paper does not say how readers' ratings were combined: each claim is checked by both rules,
and reproduces if it does by one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ...metrics import Figure
from ..config import StudyConfig
from ..paper import RATINGS
from ..pooled_predictions import CellKey
from . import wording
from .cell_figures import MARGIN, RULE_FIGURES
from .contract import LOG_LIKELIHOOD, CellSummary, Comparison, PaperCheck, Verdict
from .verdicts import check_at, every, forms, when_above

RULES = ("mean", "majority")  # the first is shown if both agree
ONION, SOFTMAX = "onion-peeling", "categorical"
ROUNDING = 0.005  # the paper gives two places
SECTION = "Section 4, ratings"
Figures = Mapping[str, Figure]


def rating_checks(
    rows: Sequence[CellSummary], comparisons: Sequence[Comparison], config: StudyConfig
) -> tuple[PaperCheck, ...]:
    """Make the checks that the study has the runs for: of onion peeling with each form, and once over all losses."""
    found: list[PaperCheck | None] = []
    for row in rows:
        if row.key.likelihood == ONION and row.key.loss in forms(config):
            found += [claim(row, config) for claim in _CLAIMS]
            softmax = row.key._replace(likelihood=SOFTMAX)
            found += [_onion_peeling(each, config) for each in comparisons if (each.ours, each.theirs) == (row.key, softmax)]
    for key in dict.fromkeys(_setting(row.key) for row in rows if row.key.net):
        found.append(_aggregations(key, [each for each in comparisons if _setting(each.ours) == key], rows, config))
    return tuple(check for check in found if check is not None)


def _setting(key: CellKey) -> CellKey:
    return key._replace(likelihood="", loss="")


def _check(
    row: CellSummary, config: StudyConfig, about: str, verdict: Verdict, sentence: str, paper: str, ours: str
) -> PaperCheck:
    return check_at(row.key._replace(likelihood=""), config, about, verdict, sentence, SECTION, paper, ours)


def _exact(row: CellSummary, config: StudyConfig) -> PaperCheck:
    return _as_good(row, config, "ratings by onion peeling are as accurate as the paper's", ("accuracy", "balanced_accuracy"))


def _off_by_one(row: CellSummary, config: StudyConfig) -> PaperCheck:
    about = "ratings by onion peeling are as often off by no more than one as the paper's"
    return _as_good(row, config, about, ("off_by_one", "balanced_off_by_one"))


def _malignant(row: CellSummary, config: StudyConfig) -> PaperCheck:
    others = ("malignant_tpr", "malignant_tnr", "malignant_ppv", "malignant_npv")
    return _as_good(
        row, config, "benign or malignant, by the ratings, is as accurate as the paper's", ("malignant_accuracy",), others
    )


def _as_good(row: CellSummary, config: StudyConfig, about: str, names: Sequence[str], others: Sequence[str] = ()) -> PaperCheck:
    """Check that by one rule every figure's interval reaches the paper's figure; `others` are reported alone."""
    figures = row.figures
    verdicts = [every(_reaches(figures[f"{rule}_{name}"], RATINGS[name]) for name in names) for rule in RULES]
    verdict, best = _by_one_rule(verdicts)
    shown = (*names, *others)
    sentence = "; ".join(f"by {rule} {_shown(figures, rule, shown)}" for rule in RULES)
    paper = ", ".join(f"{_title(name)} {RATINGS[name]:.2f}" for name in shown)
    said = f"{wording.capitalised(sentence)}; the paper gives no interval."
    return _check(row, config, about, verdict, said, paper, f"by {best} {_shown(figures, best, names)}")


def _reaches(figure: Figure, paper: float) -> Verdict:
    least = paper - ROUNDING
    return "reproduces" if figure.high >= least else "does not" if figure.high < least else "undecided"


def _by_one_rule(verdicts: Sequence[Verdict]) -> tuple[Verdict, str]:
    """Return "reproduces" if by one rule it does, "does not" if by neither; and the rule to show."""
    if "reproduces" in verdicts:
        return "reproduces", RULES[verdicts.index("reproduces")]
    return ("does not" if set(verdicts) == {"does not"} else "undecided"), RULES[0]


def _extremes(row: CellSummary, config: StudyConfig) -> PaperCheck:
    """Check that ratings 2, 3 and 4 are more often right within one than rating 1, the paper's hardest."""
    names = [f"off_by_one_recall_{rating}" for rating in range(1, 6)]
    figures = row.figures
    verdict, best = _by_one_rule([when_above(figures[f"{rule}_{MARGIN}"]) for rule in RULES])
    rates = {rule: ", ".join(wording.with_interval(figures[f"{rule}_{name}"], 2) for name in names) for rule in RULES}
    margin = f"least of 2 to 4 minus 1, by {best} {wording.difference(figures[f'{best}_{MARGIN}'])}"
    sentence = f"True rates of ratings 1 to 5, within one: {'; '.join(f'by {rule} {text}' for rule, text in rates.items())}."
    paper = ", ".join(f"{RATINGS[name]:.2f}" for name in names)
    return _check(row, config, "within one, rating 1 is the hardest and 2 to 4 the easiest", verdict, sentence, paper, margin)


def _onion_peeling(comparison: Comparison, config: StudyConfig) -> PaperCheck:
    """Check that onion peeling suits ratings better than the softmax does; the paper says so without figures."""
    found = comparison.differences[LOG_LIKELIHOOD]
    shown = wording.difference(found.figure)
    sentence = (
        f"Expected log-likelihood of onion peeling minus softmax: {shown}, ahead in {found.ahead} of "
        f"{wording.counted(found.folds, 'fold')}."
    )
    about = "onion peeling reflects ratings better than the softmax"
    key = comparison.ours._replace(likelihood="")
    return check_at(key, config, about, when_above(found.figure), sentence, SECTION, "", f"log-lik. {shown}")


def _aggregations(
    key: CellKey, comparisons: Iterable[Comparison], rows: Iterable[CellSummary], config: StudyConfig
) -> PaperCheck | None:
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
    verdict: Verdict = "undecided" if not decided else "does not" if turned > len(decided) / 20 else "reproduces"
    gaps = [
        abs(row.figures[f"majority_{name}"].value - row.figures[f"mean_{name}"].value)
        for row in rows
        if _setting(row.key) == key
        for name in RULE_FIGURES
    ]
    sentence = (
        f"Of {len(both)} paired differences between likelihoods or losses, both rules decide {len(decided)}, and disagree on "
        f"{turned}. The figures themselves differ by up to {wording.number(max(gaps, default=0.0), 2)} between the rules."
    )
    about = "majority vote and mean rating of the readers show the same trends"
    ours = f"decided by both {len(decided)} of {len(both)}, opposed {turned}"
    return check_at(key, config, about, verdict, sentence, "Section 4, data sets", "", ours)


_TITLES = {"accuracy": "Acc.", "balanced_accuracy": "BA", "off_by_one": "Acc. ±1", "balanced_off_by_one": "BA ±1"}


def _title(name: str) -> str:
    kind = name.removeprefix("malignant_")
    return _TITLES.get(kind, kind.upper())


def _shown(figures: Figures, rule: str, names: Sequence[str]) -> str:
    return ", ".join(f"{_title(name)} {wording.with_interval(figures[f'{rule}_{name}'], 2)}" for name in names)


_CLAIMS: tuple[Callable[[CellSummary, StudyConfig], PaperCheck], ...] = (_exact, _off_by_one, _extremes, _malignant)
