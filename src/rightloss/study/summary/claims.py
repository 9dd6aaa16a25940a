"""Check by intervals whether the paper's findings reproduce, on two classes and on ratings.

Stage: `CellSummary`s, `CellPair`s → `PaperCheck`s: a claim's place in the paper, its figures, ours, and the verdict.
Each is made for every start and, where it is about the information gain, for every published form; in a study without one, for
the default, if the claim is not about the published form. Claims that need several studies are checked by the documentation's
`docs/scripts/across_studies.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...metrics import Figure
from ..config import StudyConfig
from ..methods import DEFAULT, METHODS
from ..paper import POPULATIONS, RATINGS, TABLES
from ..results import CellKey, grouped
from . import wording
from .comparisons import LOG_MEAN_OFF, MARGIN, PLAIN, PUBLISHED, PUBLISHED_FORMS, RULE_FIGURES, WEIGHTED
from .contract import AUC, LOG_LIKELIHOOD, OURS, TPR, CellPair, CellSummary, Outcome, PairedFigure, PaperCheck

COMMON, RARE = POPULATIONS
SIMILAR = 0.03  # as the paper's own −0.39 and −0.36
NEAR_ZERO = 0.05
STEADY = 0.01  # a fall in AUC that does not count
NO_SENSITIVITY = "the weighted loss has a sensitivity of 0 at a prevalence of 0.001"  # as if always answering π
_TITLES = {LOG_LIKELIHOOD: "log-lik.", AUC: "AUC", LOG_MEAN_OFF: "mean over prevalences of |log(mean prediction/π)|"}


# Verdicts, from where intervals lie.

Rule = Callable[[Figure], Outcome]


def when_above(figure: Figure, margin: float = 0.0) -> Outcome:
    """Return "reproduces" if the interval is above the margin, "does not" if below it."""
    return "reproduces" if figure.low > margin else "does not" if figure.high < margin else "undecided"


def when_below(figure: Figure, margin: float = 0.0) -> Outcome:
    """Return "reproduces" if the interval is below the margin, "does not" if above it."""
    return when_above(Figure(-figure.value, -figure.high, -figure.low), -margin)


def when_within(figure: Figure, margin: float) -> Outcome:
    """Return "reproduces" if the interval is within ±margin, "does not" if it is wholly outside."""
    if -margin <= figure.low and figure.high <= margin:
        return "reproduces"
    return "does not" if figure.low > margin or figure.high < -margin else "undecided"


def _alike(figure: Figure) -> Outcome:
    return when_within(figure, SIMILAR)


def every(verdicts: Iterable[Outcome]) -> Outcome:
    """Return "reproduces" if all do, "does not" if one does not."""
    found = set(verdicts)
    return "does not" if "does not" in found else "reproduces" if found == {"reproduces"} else "undecided"


def forms(config: StudyConfig) -> tuple[str, ...]:
    """Return the published forms that the study has; if none, the default stands in for them."""
    return tuple(loss for loss in config.losses if loss in PUBLISHED_FORMS) or (DEFAULT,)


def check_at(key: CellKey, config: StudyConfig, about: str, verdict: Outcome, place: str, paper: str, ours: str) -> PaperCheck:
    """Make a check whose place and setting are those of a key; a loss is named unless it is the only published form."""
    usual = key.loss in ("", PUBLISHED) and forms(config) in ((PUBLISHED,), (DEFAULT,))
    named = [wording.where(key._replace(population=None), config), "" if usual or not key.loss else METHODS[key.loss].short]
    setting = {name: value for name, value in key._asdict().items() if isinstance(value, str) and value}
    where = ", ".join(filter(None, named))
    return PaperCheck(about, where, verdict, place, paper, ours, trivial=about == NO_SENSITIVITY, setting=setting)


def in_order(checks: Iterable[PaperCheck | None]) -> tuple[PaperCheck, ...]:
    """Return the checks that were made, those of one claim next to each other."""
    claims = grouped(filter(None, checks), lambda check: check.about)
    return tuple(check for own in claims.values() for check in own)


# The claims on two classes, in a setting.


@dataclass(frozen=True)
class _Setting:
    """The rows and differences of one data set, net, start and form of the information gain.

    Attributes:
        key: of them all, without population.
        config: of the study.
        rows: by population and loss.
        differences: from the weighted loss, by population and loss; those of "weighted" are from plain cross-entropy.
        falls: AUC at the lowest population minus that at the highest, by loss.
    """

    key: CellKey
    config: StudyConfig
    rows: Mapping[tuple[float | None, str], CellSummary]
    differences: Mapping[tuple[float | None, str], Mapping[str, PairedFigure]]
    falls: Mapping[str, PairedFigure]

    @property
    def table(self) -> str:
        balanced = self.config.task == "balanced"
        return "Section 4, Brompton" if balanced else f"Table {1 if self.key.minibatches == 'rebalanced' else 2}"

    @property
    def ends(self) -> tuple[float, float]:
        """The highest and the lowest prevalence."""
        rates = [rate for rate in self.config.populations if rate is not None]
        return max(rates), min(rates)

    def figure(self, loss: str, name: str) -> Figure | None:
        """Return a figure at the low prevalence."""
        row = self.rows.get((RARE, loss))
        return None if row is None else row.figures[name]

    def paper(self, prefix: str, population: float, name: str, *losses: str) -> str:
        """Return the paper's figures as printed, "AUC bayesIG 0.33, wLoss 0"; "" if its data or nets were different."""
        names = {PUBLISHED: "bayesIG", WEIGHTED: "wLoss"}
        printed = TABLES[self.key.minibatches] if self.config.task == "binary" else {}
        shown = [(loss, printed.get((self.key.net, population, loss), {}).get(name)) for loss in losses]
        text = ", ".join(f"{names[loss]} {value:g}".replace("-", "−") for loss, value in shown if value is not None)
        return prefix + text if text else ""

    def both(self, prefix: str, name: str, population: float = RARE) -> str:
        """Return the paper's figures of both losses."""
        return self.paper(prefix, population, name, PUBLISHED, WEIGHTED)

    def check(self, about: str, verdict: Outcome, place: str, paper: str, ours: str) -> PaperCheck:
        return check_at(self.key, self.config, about, verdict, place, paper, ours)


def _of_others(at: _Setting) -> Iterator[PaperCheck | None]:
    """Yield the claims that are not about the information gain; the last one is ours."""
    if at.table == "Table 2":
        about = "with raw minibatches at 0.3, the weighted loss behaves as the standard loss"
        yield _paired(at, WEIGHTED, (LOG_LIKELIHOOD, AUC), _alike, about, "Appendix B", rate=COMMON)
    tpr = at.figure(WEIGHTED, TPR)
    if tpr is not None:
        ours = f"TPR {wording.with_interval(tpr, 3)}"
        yield at.check(NO_SENSITIVITY, when_within(tpr, NEAR_ZERO), at.table, at.paper("TPR ", RARE, TPR, WEIGHTED), ours)
    yield _between_ends(at, WEIGHTED, "the AUC of the weighted loss falls with the prevalence", _falls)
    yield _never_worse(at)


def _of_form(at: _Setting) -> Iterator[PaperCheck | None]:
    """Yield the claims on a form of the information gain; all but the first two are on the published forms."""
    loss = at.key.loss
    about, paper = "the losses are similar at a prevalence of 0.3", at.both("log-lik. ", LOG_LIKELIHOOD, COMMON)
    yield _paired(at, loss, (LOG_LIKELIHOOD, AUC), _alike, about, at.table, paper, COMMON)
    about, paper = "the weighted loss has a lower AUC at a prevalence of 0.001", at.both("AUC ", AUC)
    yield _paired(at, loss, (AUC,), when_above, about, f"{at.table}, Fig. 3", paper)
    if loss == DEFAULT:
        return
    yield _some_sensitivity(at)
    about = "as published, the information gain has the lower expected log-likelihood at a prevalence of 0.001"
    yield _paired(at, loss, (LOG_LIKELIHOOD,), when_below, about, at.table, at.both("", LOG_LIKELIHOOD))
    yield _between_ends(at, loss, "the AUC of the information gain as published does not fall with the prevalence", _stays)
    yield _worse_than_constant(at)
    about = "as published, the information gain is calibrated more consistently over prevalences than the weighted loss"
    yield _paired(at, loss, (LOG_MEAN_OFF,), when_below, about, "Section 4, Brompton; Fig. 3", rate=at.ends[1])


def _paired(
    at: _Setting, loss: str, names: Sequence[str], rule: Rule, about: str, place: str, paper: str = "", rate: float = RARE
) -> PaperCheck | None:
    """Check that the differences of a loss from its rival all follow a rule."""
    found = at.differences.get((rate, loss), {})
    if not all(name in found for name in names):
        return None
    figures = {name: found[name].figure for name in names}
    shown = ", ".join(f"{_TITLES[name]} {wording.difference(figure)}" for name, figure in figures.items())
    return at.check(about, every(map(rule, figures.values())), place, paper, f"difference in {shown}")


def _some_sensitivity(at: _Setting) -> PaperCheck | None:
    """Check that the published form finds more of the malignant than the weighted loss does at a low prevalence."""
    paired, tpr = at.differences.get((RARE, at.key.loss), {}).get(TPR), at.figure(at.key.loss, TPR)
    if paired is None:
        return None
    found = paired.figure
    verdict: Outcome = "does not" if found.high <= NEAR_ZERO else when_above(found)
    own = "" if tpr is None else f"TPR {wording.with_interval(tpr, 3)}; "
    about = "as published, the information gain has a sensitivity above 0 at a prevalence of 0.001"
    return at.check(about, verdict, at.table, at.both("TPR ", TPR), f"{own}minus weighted loss {wording.difference(found)}")


def _between_ends(at: _Setting, loss: str, about: str, rule: Rule) -> PaperCheck | None:
    """Check how the AUC at the lowest prevalence differs from that at the highest."""
    found = at.falls.get(loss)
    if found is None:
        return None
    printed = [at.paper("", rate, AUC, loss if loss == WEIGHTED else PUBLISHED).partition(" ")[2] for rate in at.ends]
    ours = f"{at.ends[0]:g} to {at.ends[1]:g}: {wording.difference(found.figure)}"
    return at.check(about, rule(found.figure), "Fig. 3", " → ".join(filter(None, printed)), ours)


def _falls(change: Figure) -> Outcome:
    return "reproduces" if change.high < 0 else "does not" if change.low > -STEADY else "undecided"


def _stays(change: Figure) -> Outcome:
    return "reproduces" if change.low > -STEADY else "does not" if change.high < 0 else "undecided"


def _worse_than_constant(at: _Setting) -> PaperCheck | None:
    skill = at.figure(at.key.loss, "skill")
    if skill is None:
        return None
    about = "as published, worse than always answering π at a prevalence of 0.001"
    paper = at.paper("log-lik. ", RARE, LOG_LIKELIHOOD, PUBLISHED)
    constant = wording.number(-_entropy(RARE), wording.decimals(LOG_LIKELIHOOD, RARE))
    paper = f"{paper}, always π {constant}" if paper else ""
    return at.check(about, _worse(skill), f"{at.table}, by its figures", paper, f"skill {wording.with_interval(skill, 2)}")


def _never_worse(at: _Setting) -> PaperCheck | None:
    """Check our own claim for the default, at every prevalence, where the paper's are checked."""
    skills = {rate: row.figures["skill"] for (rate, loss), row in at.rows.items() if loss == DEFAULT}
    if RARE not in skills:
        return None
    opposite: Mapping[Outcome, Outcome] = {"reproduces": "does not", "does not": "reproduces"}
    verdict = every(opposite.get(_worse(skill), "undecided") for skill in skills.values())
    least = min(skills.values(), key=lambda each: each.value)
    about = "the default is never worse than always answering π"
    return at.check(about, verdict, OURS, "", f"least skill {wording.with_interval(least, 2)}")


def _worse(skill: Figure) -> Outcome:
    return "reproduces" if skill.value == -math.inf else when_below(skill)


def _entropy(population: float | None) -> float:
    return 1.0 if population is None else -((1 - population) * math.log1p(-population) + population * math.log(population))


def binary_claims(rows: Sequence[CellSummary], comparisons: Sequence[CellPair], config: StudyConfig) -> tuple[PaperCheck, ...]:
    """Make the checks of two classes that the study has the runs for."""
    found: list[PaperCheck | None] = []
    for setting in _settings(rows, comparisons, config):
        found += _of_others(setting)
        for loss in forms(config):
            found += _of_form(replace(setting, key=setting.key._replace(loss=loss)))
    return in_order([*found, *_nets(comparisons, config), *_inferences(comparisons, config)])


def _settings(rows: Sequence[CellSummary], comparisons: Sequence[CellPair], config: StudyConfig) -> Iterable[_Setting]:
    rivals = {"loss": WEIGHTED, "published": WEIGHTED, "plain": PLAIN}
    for key in dict.fromkeys(_without_loss(row.key) for row in rows if row.key.net):
        mine = [each for each in comparisons if _without_loss(each.ours) == key]
        of_rivals = [each for each in mine if rivals.get(each.about) == each.theirs.loss]
        yield _Setting(
            key,
            config,
            {(row.key.population, row.key.loss): row for row in rows if _without_loss(row.key) == key},
            {(each.ours.population, each.ours.loss): each.differences for each in of_rivals},
            {each.ours.loss: each.differences[AUC] for each in mine if each.about == "population"},
        )


def _without_loss(key: CellKey) -> CellKey:
    return key._replace(population=None, loss="")


# Claims on nets and on inference, each over all populations.


def _nets(comparisons: Sequence[CellPair], config: StudyConfig) -> Iterable[PaperCheck]:
    """Check that the logits of image and metadata together predict better than either alone."""
    for key, own in _by_compared(comparisons, "net").items():
        clear = {each.differences[LOG_LIKELIHOOD].standing for each in own} - {"undecided"}
        verdict: Outcome = "reproduces" if clear == {"ahead"} else "does not" if clear == {"behind"} else "undecided"
        about = f"image and metadata together predict better than {wording.net(key, config)}"
        yield check_at(key, config, about, verdict, "Section 4, Brompton, implied", "", _tally(own))


def _inferences(comparisons: Sequence[CellPair], config: StudyConfig) -> Iterable[PaperCheck]:
    """Check that no approximation of the posterior predicts worse than one net: by less than 0.03 of skill."""
    for key, own in _by_compared(comparisons, "inference").items():
        figures = [each.differences[LOG_LIKELIHOOD].figure for each in own]
        level = [figure.low > -SIMILAR * _entropy(each.ours.population) for figure, each in zip(figures, own, strict=True)]
        behind = [figure.high < 0 for figure in figures]
        verdict: Outcome = "reproduces" if all(level) else "does not" if all(behind) else "undecided"
        about = f"the posterior can be approximated by any standard strategy: {wording.INFERENCES[key.inference]}"
        yield check_at(key, config, about, verdict, "Section 2", "", _tally(own))


def _by_compared(comparisons: Sequence[CellPair], about: str) -> dict[CellKey, list[CellPair]]:
    """Return comparisons of the information gain, by what is compared: for nets theirs, for inferences ours."""
    own = (each for each in comparisons if each.about == about and each.ours.loss in (DEFAULT, *PUBLISHED_FORMS))
    return grouped(own, lambda each: (each.theirs if about == "net" else each.ours)._replace(population=None))


def _tally(own: Sequence[CellPair]) -> str:
    standings = [each.differences[LOG_LIKELIHOOD].standing for each in own]
    words = [word for word in ("ahead", "undecided", "behind") if word in standings]
    return ", ".join(f"{word} in {standings.count(word)} of {len(own)}" for word in words)


# Claims on ratings. The paper's figures are those of onion peeling with the information gain, without intervals: a figure of
# ours is as good if its interval contains the paper's or lies above it, and is not if it lies wholly below. The paper does not
# say how readers' ratings were combined: each claim is checked by both rules, and reproduces if it does by one of them.

RATING_RULES = ("mean", "majority")  # the first is shown if both agree
ROUNDING = 0.005  # the paper gives two places
SECTION = "Section 4, ratings"
_RATING_TITLES = {"accuracy": "Acc.", "balanced_accuracy": "BA", "off_by_one": "Acc. ±1", "balanced_off_by_one": "BA ±1"}
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
        if row.key.likelihood == "onion-peeling" and row.key.loss in forms(config):
            exact, near, malignant = (_as_good(row, config, about) for about in _AS_GOOD)
            found += [exact, near, _extremes(row, config), malignant]
            softmax = row.key._replace(likelihood="categorical")
            found += [_onion_peeling(each, config) for each in comparisons if (each.ours, each.theirs) == (row.key, softmax)]
    for key in dict.fromkeys(row.key._replace(likelihood="", loss="") for row in rows if row.key.net):
        own = [each for each in comparisons if each.ours._replace(likelihood="", loss="") == key]
        found.append(_aggregations(key, own, config))
    return in_order(found)


def _as_good(row: CellSummary, config: StudyConfig, about: str) -> PaperCheck:
    names, others = _AS_GOOD[about]
    verdicts = [every(_reaches(row.figures[f"{rule}_{name}"], RATINGS[name]) for name in names) for rule in RATING_RULES]
    verdict, best = _by_one_rule(verdicts)
    paper = ", ".join(f"{_title(name)} {RATINGS[name]:.2f}" for name in (*names, *others))
    shown = (f"{_title(name)} {wording.with_interval(row.figures[f'{best}_{name}'], 2)}" for name in names)
    return _of_ratings(row.key, config, about, verdict, paper, f"by {best} {', '.join(shown)}")


def _reaches(figure: Figure, paper: float) -> Outcome:
    least = paper - ROUNDING
    return "reproduces" if figure.high >= least else "does not" if figure.high < least else "undecided"


def _by_one_rule(verdicts: Sequence[Outcome]) -> tuple[Outcome, str]:
    """Return "reproduces" if by one rule it does, "does not" if by neither; and the rule to show."""
    if "reproduces" in verdicts:
        return "reproduces", RATING_RULES[verdicts.index("reproduces")]
    return ("does not" if set(verdicts) == {"does not"} else "undecided"), RATING_RULES[0]


def _extremes(row: CellSummary, config: StudyConfig) -> PaperCheck:
    """Check that ratings 2, 3 and 4 are more often right within one than rating 1, the paper's hardest."""
    verdict, best = _by_one_rule([when_above(row.figures[f"{rule}_{MARGIN}"]) for rule in RATING_RULES])
    paper = ", ".join(f"{RATINGS[f'off_by_one_recall_{rating}']:.2f}" for rating in range(1, 6))
    ours = f"least of 2 to 4 minus 1, by {best} {wording.difference(row.figures[f'{best}_{MARGIN}'])}"
    return _of_ratings(row.key, config, "within one, rating 1 is the hardest and 2 to 4 the easiest", verdict, paper, ours)


def _onion_peeling(comparison: CellPair, config: StudyConfig) -> PaperCheck:
    """Check that onion peeling suits ratings better than the softmax does; the paper says so without figures."""
    found = comparison.differences[LOG_LIKELIHOOD].figure
    about = "onion peeling reflects ratings better than the softmax"
    return _of_ratings(comparison.ours, config, about, when_above(found), "", f"log-lik. {wording.difference(found)}")


def _of_ratings(key: CellKey, config: StudyConfig, about: str, verdict: Outcome, paper: str, ours: str) -> PaperCheck:
    return check_at(key._replace(likelihood=""), config, about, verdict, SECTION, paper, ours)


def _aggregations(key: CellKey, comparisons: Iterable[CellPair], config: StudyConfig) -> PaperCheck | None:
    """Check that majority and mean rank likelihoods and losses alike, wherever paired differences by both rules are decided."""
    both = [
        [each.differences[f"{rule}_{name}"].standing for rule in RATING_RULES]
        for each in comparisons
        for name in RULE_FIGURES
        if f"{RATING_RULES[0]}_{name}" in each.differences
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
    return _RATING_TITLES.get(kind, kind.upper())
