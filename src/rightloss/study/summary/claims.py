"""Check by intervals whether the paper's findings on two classes reproduce: one function per claim.

Stage: `CellSummary`s, `CellPair`s → `PaperCheck`s: a claim's place in the paper, its figures, ours, and the verdict.
Each is made for every start and, where it is about the information gain, for every published form; in a study without one, for
the default, if the claim is not about the published form. Claims about ratings are in `rating_claims`; claims that need several
studies or private data in `across_studies`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...metrics import Figure
from ..config import StudyConfig
from ..methods import DEFAULT
from ..paper import POPULATIONS, TABLES
from ..pooled_predictions import CellKey
from . import wording
from .comparisons import LOG_MEAN_OFF, PLAIN, PUBLISHED, PUBLISHED_FORMS, WEIGHTED
from .contract import (
    AUC,
    LOG_LIKELIHOOD,
    OURS,
    TPR,
    CellPair,
    CellSummary,
    Outcome,
    PairedFigure,
    PaperCheck,
    Standing,
)

COMMON, RARE = POPULATIONS
SIMILAR = 0.03  # as the paper's own −0.39 and −0.36
NEAR_ZERO = 0.05
STEADY = 0.01  # a fall in AUC that does not count
NO_SENSITIVITY = "the weighted loss has a sensitivity of 0 at a prevalence of 0.001"  # as if always answering π
_TITLES = {LOG_LIKELIHOOD: "log-lik.", AUC: "AUC", LOG_MEAN_OFF: "mean over prevalences of |log(mean prediction/π)|"}


# Verdicts, from where intervals lie.


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


def every(verdicts: Iterable[Outcome]) -> Outcome:
    """Return "reproduces" if all do, "does not" if one does not."""
    found = set(verdicts)
    return "does not" if "does not" in found else "reproduces" if found == {"reproduces"} else "undecided"


def verdict_of(standings: Iterable[Standing]) -> Outcome:
    """Return "reproduces" if one is ahead and none behind, "does not" if it is the other way round."""
    found = set(standings)
    if "ahead" in found and "behind" not in found:
        return "reproduces"
    return "does not" if "behind" in found and "ahead" not in found else "undecided"


def forms(config: StudyConfig) -> tuple[str, ...]:
    """Return the published forms that the study has; if none, the default stands in for them."""
    return tuple(loss for loss in config.losses if loss in PUBLISHED_FORMS) or (DEFAULT,)


def check_at(key: CellKey, config: StudyConfig, about: str, verdict: Outcome, place: str, paper: str, ours: str) -> PaperCheck:
    """Make a check whose place and setting are those of a key; a loss is named unless it is the only published form."""
    usual = key.loss in ("", PUBLISHED) and forms(config) in ((PUBLISHED,), (DEFAULT,))
    named = [wording.where(key._replace(population=None), config), "" if usual or not key.loss else wording.short_method(key)]
    setting = {name: value for name, value in key._asdict().items() if isinstance(value, str) and value}
    where = ", ".join(filter(None, named))
    return PaperCheck(about, where, verdict, place, paper, ours, trivial=about == NO_SENSITIVITY, setting=setting)


def in_order(checks: Iterable[PaperCheck | None]) -> tuple[PaperCheck, ...]:
    """Return the checks that were made, those of one claim next to each other."""
    claims: dict[str, list[PaperCheck]] = {}
    for check in checks:
        if check is not None:
            claims.setdefault(check.about, []).append(check)
    return tuple(check for own in claims.values() for check in own)


# The claims, each a function of a setting.


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
    def rates(self) -> list[float]:
        return [rate for rate in self.config.populations if rate is not None]

    def figure(self, loss: str, name: str) -> Figure | None:
        """Return a figure at the low prevalence."""
        row = self.rows.get((RARE, loss))
        return None if row is None else row.figures[name]

    def difference(self, name: str, rate: float = RARE) -> Figure | None:
        """Return how far the form differs from the weighted loss."""
        found = self.differences.get((rate, self.key.loss), {}).get(name)
        return None if found is None else found.figure

    def paper(self, prefix: str, population: float, name: str, *losses: str) -> str:
        """Return the paper's figures as printed, "AUC bayesIG 0.33, wLoss 0"; "" if its data or nets were different."""
        names = {PUBLISHED: "bayesIG", WEIGHTED: "wLoss"}
        printed = TABLES[self.key.minibatches] if self.config.task == "binary" else {}
        shown = [(loss, printed.get((self.key.net, population, loss), {}).get(name)) for loss in losses]
        text = ", ".join(f"{names[loss]} {value:g}".replace("-", "−") for loss, value in shown if value is not None)
        return prefix + text if text else ""

    def check(self, about: str, verdict: Outcome, place: str, paper: str, ours: str) -> PaperCheck:
        return check_at(self.key, self.config, about, verdict, place, paper, ours)


def _similar(at: _Setting) -> PaperCheck | None:
    """Check that the losses are similar at a prevalence near the data's own."""
    paper = at.paper("log-lik. ", COMMON, LOG_LIKELIHOOD, PUBLISHED, WEIGHTED)
    return _alike(at, at.key.loss, "the losses are similar at a prevalence of 0.3", at.table, paper)


def _like_cross_entropy(at: _Setting) -> PaperCheck | None:
    """Check that the weighted loss is similar to plain cross-entropy if the data's class frequencies are near the
    population's."""
    about = "with raw minibatches at 0.3, the weighted loss behaves as the standard loss"
    return _alike(at, WEIGHTED, about, "Appendix B") if at.table == "Table 2" else None


def _alike(at: _Setting, loss: str, about: str, place: str, paper: str = "") -> PaperCheck | None:
    found = at.differences.get((COMMON, loss))
    if found is None:
        return None
    both = {name: found[name].figure for name in (LOG_LIKELIHOOD, AUC)}
    shown = ", ".join(f"{_TITLES[name]} {wording.difference(figure)}" for name, figure in both.items())
    verdict = every(when_within(figure, SIMILAR) for figure in both.values())
    return at.check(about, verdict, place, paper, f"difference in {shown}")


def _no_sensitivity(at: _Setting) -> PaperCheck | None:
    """Check that the weighted loss calls nobody malignant at a low prevalence, as always answering π does."""
    tpr = at.figure(WEIGHTED, TPR)
    if tpr is None:
        return None
    paper, ours = at.paper("TPR ", RARE, TPR, WEIGHTED), f"TPR {wording.with_interval(tpr, 3)}"
    return at.check(NO_SENSITIVITY, when_within(tpr, NEAR_ZERO), at.table, paper, ours)


def _some_sensitivity(at: _Setting) -> PaperCheck | None:
    """Check that the published form finds more of the malignant than the weighted loss does at a low prevalence."""
    found, tpr = at.difference(TPR), at.figure(at.key.loss, TPR)
    if found is None:
        return None
    verdict: Outcome = "does not" if found.high <= NEAR_ZERO else when_above(found)
    own = "" if tpr is None else f"TPR {wording.with_interval(tpr, 3)}; "
    about = "as published, the information gain has a sensitivity above 0 at a prevalence of 0.001"
    paper = at.paper("TPR ", RARE, TPR, PUBLISHED, WEIGHTED)
    return at.check(about, verdict, at.table, paper, f"{own}minus weighted loss {wording.difference(found)}")


def _lower_likelihood(at: _Setting) -> PaperCheck | None:
    """Check that the published form has the lower expected log-likelihood at a low prevalence, as the paper's tables say."""
    about = "as published, the information gain has the lower expected log-likelihood at a prevalence of 0.001"
    paper = at.paper("", RARE, LOG_LIKELIHOOD, PUBLISHED, WEIGHTED)
    return _against_weighted(at, LOG_LIKELIHOOD, when_below, about, at.table, paper)


def _lower_auc(at: _Setting) -> PaperCheck | None:
    """Check that the weighted loss ranks worse than the information gain."""
    about, paper = (
        "the weighted loss has a lower AUC at a prevalence of 0.001",
        at.paper("AUC ", RARE, AUC, PUBLISHED, WEIGHTED),
    )
    return _against_weighted(at, AUC, when_above, about, f"{at.table}, Fig. 3", paper)


def _calibrated(at: _Setting) -> PaperCheck | None:
    """Check that over the prevalences the published form's mean prediction is nearer to π than that of the weighted loss."""
    about = "as published, the information gain is calibrated more consistently over prevalences than the weighted loss"
    return _against_weighted(at, LOG_MEAN_OFF, when_below, about, "Section 4, Brompton; Fig. 3", "", min(at.rates))


def _against_weighted(
    at: _Setting, name: str, rule: Callable[[Figure], Outcome], about: str, place: str, paper: str, rate: float = RARE
) -> PaperCheck | None:
    found = at.difference(name, rate)
    if found is None:
        return None
    return at.check(about, rule(found), place, paper, f"difference in {_TITLES[name]} {wording.difference(found)}")


def _falling_auc(at: _Setting) -> PaperCheck | None:
    """Check that the AUC of the weighted loss is lower at the lowest prevalence than at the highest."""

    def falls(change: Figure) -> Outcome:
        return "reproduces" if change.high < 0 else "does not" if change.low > -STEADY else "undecided"

    return _between_ends(at, WEIGHTED, "the AUC of the weighted loss falls with the prevalence", falls)


def _steady_auc(at: _Setting) -> PaperCheck | None:
    """Check that the AUC of the published form is no lower at the lowest prevalence than at the highest."""

    def steady(change: Figure) -> Outcome:
        return "reproduces" if change.low > -STEADY else "does not" if change.high < 0 else "undecided"

    about = "the AUC of the information gain as published does not fall with the prevalence"
    return _between_ends(at, at.key.loss, about, steady)


def _between_ends(at: _Setting, loss: str, about: str, rule: Callable[[Figure], Outcome]) -> PaperCheck | None:
    found = at.falls.get(loss)
    if found is None:
        return None
    low, high = min(at.rates), max(at.rates)
    printed = [at.paper("", rate, AUC, loss if loss == WEIGHTED else PUBLISHED).partition(" ")[2] for rate in (high, low)]
    ours = f"{high:g} to {low:g}: {wording.difference(found.figure)}"
    return at.check(about, rule(found.figure), "Fig. 3", " → ".join(filter(None, printed)), ours)


def _worse_than_constant(at: _Setting) -> PaperCheck | None:
    """Check that the published form is worse than always answering π."""
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


_Claims = tuple[Callable[[_Setting], PaperCheck | None], ...]
_OF_OTHERS: _Claims = (_like_cross_entropy, _no_sensitivity, _falling_auc, _never_worse)
_OF_ANY_FORM: _Claims = (_similar, _lower_auc)
_OF_PUBLISHED: _Claims = (_some_sensitivity, _lower_likelihood, _steady_auc, _worse_than_constant, _calibrated)


def binary_claims(rows: Sequence[CellSummary], comparisons: Sequence[CellPair], config: StudyConfig) -> tuple[PaperCheck, ...]:
    """Make the checks of two classes that the study has the runs for."""
    found: list[PaperCheck | None] = []
    for setting in _settings(rows, comparisons, config):
        found += [claim(setting) for claim in _OF_OTHERS]
        for loss in forms(config):
            of_form = replace(setting, key=setting.key._replace(loss=loss))
            found += [claim(of_form) for claim in (*_OF_ANY_FORM, *(_OF_PUBLISHED if loss != DEFAULT else ()))]
    return in_order([*found, *_nets(comparisons, config), *_inferences(comparisons, config)])


def _settings(rows: Sequence[CellSummary], comparisons: Sequence[CellPair], config: StudyConfig) -> Iterable[_Setting]:
    rivals = {"loss": WEIGHTED, "published": WEIGHTED, "plain": PLAIN}
    for key in dict.fromkeys(_without_loss(row.key) for row in rows if row.key.net):
        mine = [each for each in comparisons if _without_loss(each.ours) == key]
        yield _Setting(
            key,
            config,
            {(row.key.population, row.key.loss): row for row in rows if _without_loss(row.key) == key},
            {
                (each.ours.population, each.ours.loss): each.differences
                for each in mine
                if rivals.get(each.about) == each.theirs.loss
            },
            {each.ours.loss: each.differences[AUC] for each in mine if each.about == "population"},
        )


def _without_loss(key: CellKey) -> CellKey:
    return key._replace(population=None, loss="")


# Claims on nets and on inference, each over all populations.


def _nets(comparisons: Sequence[CellPair], config: StudyConfig) -> Iterable[PaperCheck]:
    """Check that the logits of image and metadata together predict better than either alone."""
    for key, own in _grouped(comparisons, "net").items():
        about = f"image and metadata together predict better than {wording.net(key, config)}"
        verdict = verdict_of(each.differences[LOG_LIKELIHOOD].standing for each in own)
        yield check_at(key, config, about, verdict, "Section 4, Brompton, implied", "", _tally(own))


def _inferences(comparisons: Sequence[CellPair], config: StudyConfig) -> Iterable[PaperCheck]:
    """Check that no approximation of the posterior predicts worse than one net: by less than 0.03 of skill."""
    for key, own in _grouped(comparisons, "inference").items():
        figures = [each.differences[LOG_LIKELIHOOD].figure for each in own]
        level = [figure.low > -SIMILAR * _entropy(each.ours.population) for figure, each in zip(figures, own, strict=True)]
        behind = [figure.high < 0 for figure in figures]
        verdict: Outcome = "reproduces" if all(level) else "does not" if all(behind) else "undecided"
        about = f"the posterior can be approximated by any standard strategy: {wording.INFERENCES[key.inference]}"
        yield check_at(key, config, about, verdict, "Section 2", "", _tally(own))


def _grouped(comparisons: Sequence[CellPair], about: str) -> dict[CellKey, list[CellPair]]:
    """Return comparisons of the information gain, by what is compared: for nets theirs, for inferences ours."""
    groups: dict[CellKey, list[CellPair]] = {}
    for each in comparisons:
        if each.about == about and each.ours.loss in (DEFAULT, *PUBLISHED_FORMS):
            side = each.theirs if about == "net" else each.ours
            groups.setdefault(side._replace(population=None), []).append(each)
    return groups


def _tally(own: Sequence[CellPair]) -> str:
    standings = [each.differences[LOG_LIKELIHOOD].standing for each in own]
    return ", ".join(
        f"{word} in {standings.count(word)} of {len(own)}" for word in ("ahead", "undecided", "behind") if word in standings
    )
