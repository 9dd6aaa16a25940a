"""Check by intervals whether the paper's findings reproduce: one function per claim about two classes.

Stage: `CellSummary`s, `Comparison`s → `PaperCheck`s: a claim's place in the paper, its figures, ours, and the verdict.
Each is made for every start and, where it is about the information gain, for every published form; in a study without one, for
the default, if the claim is not about the published form. Claims about ratings are in `rating_checks`; claims that need several
studies or private data in `across_studies`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...metrics import Figure
from ..config import StudyConfig
from ..methods import DEFAULT, METHODS
from ..paper import POPULATIONS, TABLES
from ..pooled_predictions import CellKey
from . import wording
from .comparisons import LOG_MEAN_OFF, PLAIN, PUBLISHED, PUBLISHED_FORMS, WEIGHTED
from .contract import AUC, LOG_LIKELIHOOD, OURS, TPR, CellSummary, Comparison, Difference, PaperCheck, Verdict
from .rating_checks import rating_checks
from .verdicts import check_at, every, forms, in_order, verdict_of, when_above, when_below, when_within

COMMON, RARE = POPULATIONS
SIMILAR = 0.03  # as the paper's own −0.39 and −0.36
NEAR_ZERO = 0.05
STEADY = 0.01  # a fall in AUC that does not count
# Claims that the page explains.
NO_SENSITIVITY = "the weighted loss has a sensitivity of 0 at a prevalence of 0.001"
SOME_SENSITIVITY = "as published, the information gain has a sensitivity above 0 at a prevalence of 0.001"
LOWER_LIKELIHOOD = "as published, the information gain has the lower expected log-likelihood at a prevalence of 0.001"


@dataclass(frozen=True)
class _Context:
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
    differences: Mapping[tuple[float | None, str], Mapping[str, Difference]]
    falls: Mapping[str, Difference]

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

    def paper(self, population: float, name: str, *losses: str) -> str:
        """Return the paper's figures as printed, "bayesIG 0.33, wLoss 0"; "" if its data or nets were different."""
        names = {PUBLISHED: "bayesIG", WEIGHTED: "wLoss"}
        printed = TABLES[self.key.minibatches] if self.config.task == "binary" else {}
        shown = [(loss, printed.get((self.key.net, population, loss), {}).get(name)) for loss in losses]
        return ", ".join(f"{names[loss]} {value:g}".replace("-", "−") for loss, value in shown if value is not None)

    def check(self, about: str, verdict: Verdict, sentence: str, place: str, paper: str, ours: str) -> PaperCheck:
        trivial = about == NO_SENSITIVITY
        return check_at(self.key, self.config, about, verdict, sentence, place, paper, ours, trivial)


def paper_checks(rows: Sequence[CellSummary], comparisons: Sequence[Comparison], config: StudyConfig) -> tuple[PaperCheck, ...]:
    """Make the checks that the study has the runs for; none if training patients are unlabelled."""
    if config.unlabelled:
        return ()
    if config.task == "rating":
        return in_order(rating_checks(rows, comparisons, config))
    found: list[PaperCheck | None] = []
    for context in _contexts(rows, comparisons, config):
        found += [claim(context) for claim in _OF_OTHERS]
        for loss in forms(config):
            of_form = _Context(context.key._replace(loss=loss), config, context.rows, context.differences, context.falls)
            found += [claim(of_form) for claim in (*_OF_ANY_FORM, *(_OF_PUBLISHED if loss != DEFAULT else ()))]
    found += [*_nets(comparisons, config), *_inferences(comparisons, config)]
    return in_order(check for check in found if check is not None)


def _contexts(rows: Sequence[CellSummary], comparisons: Sequence[Comparison], config: StudyConfig) -> Iterable[_Context]:
    rivals = {"loss": WEIGHTED, "published": WEIGHTED, "plain": PLAIN}
    for key in dict.fromkeys(_without_loss(row.key) for row in rows if row.key.net):
        mine = [each for each in comparisons if _without_loss(each.ours) == key]
        yield _Context(
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


# The claims, each a function of a context.


def _similar(context: _Context) -> PaperCheck | None:
    """Check that the losses are similar at a prevalence near the data's own."""
    loss = context.key.loss
    return _alike(
        context,
        context.differences.get((COMMON, loss)),
        "the losses are similar at a prevalence of 0.3",
        f"{METHODS[loss].title} minus weighted loss",
        context.table,
        _prefixed("log-lik. ", context.paper(COMMON, LOG_LIKELIHOOD, PUBLISHED, WEIGHTED)),
    )


def _like_cross_entropy(context: _Context) -> PaperCheck | None:
    """Check that the weighted loss is similar to plain cross-entropy if the data's class frequencies are near the
    population's."""
    found = context.differences.get((COMMON, WEIGHTED)) if context.table == "Table 2" else None
    about = "with raw minibatches at 0.3, the weighted loss behaves as the standard loss"
    return _alike(context, found, about, "weighted loss minus cross-entropy", "Appendix B", "")


def _alike(
    context: _Context, found: Mapping[str, Difference] | None, about: str, what: str, place: str, paper: str
) -> PaperCheck | None:
    if found is None:
        return None
    both = {title: found[name].figure for name, title in ((LOG_LIKELIHOOD, "log-lik."), (AUC, "AUC"))}
    shown = ", ".join(f"{title} {wording.difference(figure)}" for title, figure in both.items())
    verdict = every(when_within(figure, SIMILAR) for figure in both.values())
    sentence = f"At π = {COMMON:g}, {what}: {shown}; similar is an interval within ±{SIMILAR:g}."
    return context.check(about, verdict, sentence, place, paper, f"difference in {shown}")


def _no_sensitivity(context: _Context) -> PaperCheck | None:
    """Check that the weighted loss calls nobody malignant at a low prevalence, as always answering π does."""
    tpr = context.figure(WEIGHTED, TPR)
    if tpr is None:
        return None
    shown = wording.with_interval(tpr, 3)
    sentence = f"At π = {RARE:g} the weighted loss has a TPR of {shown}; near 0 is an interval up to {NEAR_ZERO:g}."
    if (default := context.figure(DEFAULT, TPR)) is not None:
        sentence += f" That of the default information gain is {wording.with_interval(default, 3)}."
    paper = _prefixed("TPR ", context.paper(RARE, TPR, WEIGHTED))
    return context.check(NO_SENSITIVITY, when_within(tpr, NEAR_ZERO), sentence, context.table, paper, f"TPR {shown}")


def _some_sensitivity(context: _Context) -> PaperCheck | None:
    """Check that the published form finds more of the malignant than the weighted loss does at a low prevalence."""
    found = context.differences.get((RARE, context.key.loss), {})
    if TPR not in found:
        return None
    difference = found[TPR].figure
    verdict: Verdict = "does not" if difference.high <= NEAR_ZERO else when_above(difference)
    tpr = context.figure(context.key.loss, TPR)
    own = "" if tpr is None else f"TPR {wording.with_interval(tpr, 3)}; "
    ours = f"{own}minus weighted loss {wording.difference(difference)}"
    paper = _prefixed("TPR ", context.paper(RARE, TPR, PUBLISHED, WEIGHTED))
    sentence = f"At π = {RARE:g}, {ours}; up to {NEAR_ZERO:g} more does not count."
    return context.check(SOME_SENSITIVITY, verdict, sentence, context.table, paper, ours)


def _lower_likelihood(context: _Context) -> PaperCheck | None:
    """Check that the published form has the lower expected log-likelihood at a low prevalence, as the paper's tables say."""
    paper = context.paper(RARE, LOG_LIKELIHOOD, PUBLISHED, WEIGHTED)
    return _against_weighted(context, LOG_LIKELIHOOD, when_below, LOWER_LIKELIHOOD, context.table, paper)


def _lower_auc(context: _Context) -> PaperCheck | None:
    """Check that the weighted loss ranks worse than the information gain."""
    about, paper = "the weighted loss has a lower AUC at a prevalence of 0.001", context.paper(RARE, AUC, PUBLISHED, WEIGHTED)
    return _against_weighted(context, AUC, when_above, about, f"{context.table}, Fig. 3", _prefixed("AUC ", paper))


def _calibrated(context: _Context) -> PaperCheck | None:
    """Check that over the prevalences the published form's mean prediction is nearer to π than that of the weighted loss."""
    about = "as published, the information gain is calibrated more consistently over prevalences than the weighted loss"
    return _against_weighted(context, LOG_MEAN_OFF, when_below, about, "Section 4, Brompton; Fig. 3", "")


_TITLES = {LOG_LIKELIHOOD: "log-lik.", AUC: "AUC", LOG_MEAN_OFF: "mean over prevalences of |log(mean prediction/π)|"}


def _against_weighted(
    context: _Context, name: str, rule: Callable[[Figure], Verdict], about: str, place: str, paper: str
) -> PaperCheck | None:
    rate = min(context.rates) if name == LOG_MEAN_OFF else RARE
    found = context.differences.get((rate, context.key.loss), {})
    if name not in found:
        return None
    shown = f"{_TITLES[name]} {wording.difference(found[name].figure)}"
    folds = f"larger in {found[name].ahead} of {wording.counted(found[name].folds, 'fold')}"
    sentence = f"{METHODS[context.key.loss].title} minus weighted loss: {shown}, {folds}."
    return context.check(about, rule(found[name].figure), wording.capitalised(sentence), place, paper, f"difference in {shown}")


def _falling_auc(context: _Context) -> PaperCheck | None:
    """Check that the AUC of the weighted loss is lower at the lowest prevalence than at the highest."""

    def falls(change: Figure) -> Verdict:
        return "reproduces" if change.high < 0 else "does not" if change.low > -STEADY else "undecided"

    return _between_ends(context, WEIGHTED, "the AUC of the weighted loss falls with the prevalence", falls)


def _steady_auc(context: _Context) -> PaperCheck | None:
    """Check that the AUC of the published form is no lower at the lowest prevalence than at the highest."""

    def steady(change: Figure) -> Verdict:
        return "reproduces" if change.low > -STEADY else "does not" if change.high < 0 else "undecided"

    about = "the AUC of the information gain as published does not fall with the prevalence"
    return _between_ends(context, context.key.loss, about, steady)


def _between_ends(context: _Context, loss: str, about: str, rule: Callable[[Figure], Verdict]) -> PaperCheck | None:
    found = context.falls.get(loss)
    if found is None:
        return None
    low, high = min(context.rates), max(context.rates)
    change = wording.difference(found.figure)
    printed = [context.paper(rate, AUC, loss if loss == WEIGHTED else PUBLISHED).partition(" ")[2] for rate in (high, low)]
    sentence = (
        f"AUC at π = {low:g} minus that at {high:g}: {change}, lower in {found.behind} of "
        f"{wording.counted(found.folds, 'fold')}; a fall of less than {STEADY:g} does not count."
    )
    return context.check(
        about, rule(found.figure), sentence, "Fig. 3", " → ".join(filter(None, printed)), f"{high:g} to {low:g}: {change}"
    )


def _worse_than_constant(context: _Context) -> PaperCheck | None:
    """Check that the published form is worse than always answering π."""
    skill, likelihood = (context.figure(context.key.loss, name) for name in ("skill", LOG_LIKELIHOOD))
    if skill is None or likelihood is None:
        return None
    places = wording.decimals(LOG_LIKELIHOOD, RARE)
    constant = wording.number((1 - RARE) * math.log1p(-RARE) + RARE * math.log(RARE), places)
    printed = context.paper(RARE, LOG_LIKELIHOOD, PUBLISHED)
    return context.check(
        "as published, worse than always answering π at a prevalence of 0.001",
        _worse(skill),
        f"Expected log-likelihood at π = {RARE:g}: {wording.with_interval(likelihood, places)}, always answering π {constant}.",
        f"{context.table}, by its figures",
        f"log-lik. {printed}, always π {constant}" if printed else "",
        f"skill {wording.with_interval(skill, 2)}",
    )


def _never_worse(context: _Context) -> PaperCheck | None:
    """Check our own claim for the default, at every prevalence, where the paper's are checked."""
    skills = {rate: row.figures["skill"] for (rate, loss), row in context.rows.items() if loss == DEFAULT}
    if RARE not in skills:
        return None
    opposite: Mapping[Verdict, Verdict] = {"reproduces": "does not", "does not": "reproduces"}
    shown = "; ".join(f"π = {rate:g} {wording.with_interval(skill, 2)}" for rate, skill in skills.items())
    return context.check(
        "the default is never worse than always answering π",
        every(opposite.get(_worse(skill), "undecided") for skill in skills.values()),
        f"Skill by prevalence: {shown}.",
        OURS,
        "",
        f"least skill {wording.with_interval(min(skills.values(), key=lambda each: each.value), 2)}",
    )


def _worse(skill: Figure) -> Verdict:
    return "reproduces" if skill.value == -math.inf else when_below(skill)


_Claims = tuple[Callable[[_Context], PaperCheck | None], ...]
_OF_OTHERS: _Claims = (_like_cross_entropy, _no_sensitivity, _falling_auc, _never_worse)
_OF_ANY_FORM: _Claims = (_similar, _lower_auc)
_OF_PUBLISHED: _Claims = (_some_sensitivity, _lower_likelihood, _steady_auc, _worse_than_constant, _calibrated)


# Claims on nets and on inference, each over all populations.


def _nets(comparisons: Sequence[Comparison], config: StudyConfig) -> Iterable[PaperCheck]:
    """Check that the logits of image and metadata together predict better than either alone."""
    for key, own in _grouped(comparisons, "net", config).items():
        name = wording.net(key, config)
        verdict = verdict_of(each.differences[LOG_LIKELIHOOD].standing for each in own)
        about = f"image and metadata together predict better than {name}"
        yield check_at(key, config, about, verdict, _cases(own, name), "Section 4, Brompton, implied", "", _tally(own))


def _inferences(comparisons: Sequence[Comparison], config: StudyConfig) -> Iterable[PaperCheck]:
    """Check that no approximation of the posterior predicts worse than one net: by less than 0.03 of skill."""
    for key, own in _grouped(comparisons, "inference", config).items():
        figures = [each.differences[LOG_LIKELIHOOD].figure for each in own]
        level = [figure.low > -SIMILAR * _entropy(each.ours.population) for figure, each in zip(figures, own, strict=True)]
        behind = [figure.high < 0 for figure in figures]
        verdict: Verdict = "reproduces" if all(level) else "does not" if all(behind) else "undecided"
        about = f"the posterior can be approximated by any standard strategy: {wording.INFERENCES[key.inference]}"
        yield check_at(key, config, about, verdict, _cases(own, "one net"), "Section 2", "", _tally(own))


def _entropy(population: float | None) -> float:
    return 1.0 if population is None else -sum(each * math.log(each) for each in (population, 1 - population))


def _grouped(comparisons: Sequence[Comparison], about: str, config: StudyConfig) -> dict[CellKey, list[Comparison]]:
    """Return comparisons of the information gain, by what is compared: for nets theirs, for inferences ours."""
    groups: dict[CellKey, list[Comparison]] = {}
    for each in comparisons:
        if each.about == about and each.ours.loss in (DEFAULT, *PUBLISHED_FORMS):
            side = each.theirs if about == "net" else each.ours
            groups.setdefault(side._replace(population=None), []).append(each)
    return groups


def _cases(own: Sequence[Comparison], rival: str) -> str:
    differences = [wording.difference(each.differences[LOG_LIKELIHOOD].figure) for each in own]
    shown = [f"π = {each.ours.population:g} {text}" for each, text in zip(own, differences, strict=True)]
    return f"Expected log-likelihood, minus that of {rival}: {'; '.join(shown)}."


def _tally(own: Sequence[Comparison]) -> str:
    standings = [each.differences[LOG_LIKELIHOOD].standing for each in own]
    return ", ".join(
        f"{word} in {standings.count(word)} of {len(own)}" for word in ("ahead", "undecided", "behind") if word in standings
    )


def _prefixed(prefix: str, text: str) -> str:
    return prefix + text if text else ""
