"""Check by intervals whether the paper's findings reproduce: one function per claim about two classes.

Stage: `CellSummary`s, `Comparison`s → `PaperCheck`s: a claim's place in the paper, its figures, ours, and the verdict.
Claims about ratings are in `rating_checks`; claims that need several studies or private data in `across_studies`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..config import StudyConfig
from ..methods import DEFAULT, METHODS
from ..paper import POPULATIONS, TABLES
from ..pooled_predictions import CellKey
from . import wording
from .comparisons import BOTH, PUBLISHED, WEIGHTED
from .contract import AUC, LOG_LIKELIHOOD, CellSummary, Comparison, Difference, PaperCheck, Standing, Verdict
from .rating_checks import rating_checks

COMMON, RARE = POPULATIONS
SIMILAR = 0.03  # as the paper's own −0.39 and −0.36
NEAR_ZERO = 0.05
STEADY = 0.01  # a fall in AUC that does not count
FEW = 3  # populations over which calibration can be called consistent
LOSSES = (DEFAULT, PUBLISHED)
# Claims that the page explains.
NO_SENSITIVITY = "the weighted loss has a sensitivity of 0 at a prevalence of 0.001"
SOME_SENSITIVITY = "as published, the information gain has a sensitivity above 0 at a prevalence of 0.001"
LOWER_LIKELIHOOD = "as published, the information gain has the lower expected log-likelihood at a prevalence of 0.001"


@dataclass(frozen=True)
class _Context:
    """The rows and differences of one data set and net.

    Attributes:
        where: in wording.
        place: of the paper's text and table on it.
        printed: the paper's figures, by population and loss; none if its data or nets were different.
        rows: by population and loss; for the information gain, the default one.
        differences: from the weighted loss, by population and loss; that of "weighted" is from plain cross-entropy.
        falls: AUC at the lowest population minus that at the highest, by loss.
        ends: the lowest and the highest population.
    """

    where: str
    place: str
    printed: Mapping[tuple[float, str], Mapping[str, float]]
    rows: Mapping[tuple[float | None, str], CellSummary]
    differences: Mapping[tuple[float | None, str], Mapping[str, Difference]]
    falls: Mapping[str, Difference]
    ends: tuple[float, float]

    def paper(self, population: float, name: str, *losses: str) -> str:
        """Return the paper's figures as printed, "bayesIG 0.33, wLoss 0"; "" if it has none."""
        shown = [(loss, self.printed.get((population, loss), {}).get(name)) for loss in losses]
        names = {PUBLISHED: "bayesIG", WEIGHTED: "wLoss"}
        return ", ".join(f"{names[loss]} {value:g}".replace("-", "−") for loss, value in shown if value is not None)


def paper_checks(rows: Sequence[CellSummary], comparisons: Sequence[Comparison], config: StudyConfig) -> tuple[PaperCheck, ...]:
    """Make the checks that the study has the runs for; none if training patients are unlabelled."""
    if config.unlabelled:
        return ()
    if config.task == "rating":
        return in_order(rating_checks(rows, comparisons, config))
    found = [claim(context) for context in _contexts(rows, comparisons, config) for claim in _CLAIMS]
    found += [*_nets(comparisons, config), *_inferences(comparisons, config)]
    return in_order(check for check in found if check is not None)


def in_order(checks: Iterable[PaperCheck]) -> tuple[PaperCheck, ...]:
    """Sort the checks by claim."""
    claims: dict[str, list[PaperCheck]] = {}
    for check in checks:
        claims.setdefault(check.about, []).append(check)
    return tuple(check for own in claims.values() for check in own)


def verdict_of(standings: Iterable[Standing]) -> Verdict:
    """Return "reproduces" if one is ahead and none behind, "does not" if it is the other way round."""
    found = set(standings)
    if "ahead" in found and "behind" not in found:
        return "reproduces"
    return "does not" if "behind" in found and "ahead" not in found else "undecided"


def _contexts(rows: Sequence[CellSummary], comparisons: Sequence[Comparison], config: StudyConfig) -> Iterable[_Context]:
    shown = [row for row in rows if _is_shown(row.key, config)]
    rates = [rate for rate in config.populations if rate is not None]
    for start in dict.fromkeys(_start(row.key) for row in shown):
        mine = [each for each in comparisons if _start(each.ours) == start and _is_shown(each.ours, config)]
        rivals = {"loss": WEIGHTED, "published": WEIGHTED, "plain": "plain"}
        table = TABLES[start.minibatches] if config.task == "binary" else {}
        yield _Context(
            wording.where(start, config, without=["population"]),
            "Section 4, Brompton" if config.task == "balanced" else f"Table {1 if start.minibatches == 'rebalanced' else 2}",
            {(population, loss): figures for (net, population, loss), figures in table.items() if net == start.net},
            {(row.key.population, row.key.loss): row for row in shown if _start(row.key) == start},
            {
                (each.ours.population, each.ours.loss): each.differences
                for each in mine
                if rivals.get(each.about) == each.theirs.loss
            },
            {each.ours.loss: each.differences[AUC] for each in mine if each.about == "population"},
            (min(rates), max(rates)),
        )


def _is_shown(key: CellKey, config: StudyConfig) -> bool:
    return key.loss in (DEFAULT, PUBLISHED, WEIGHTED)


def _start(key: CellKey) -> CellKey:
    return key._replace(population=None, loss="")


# The claims, each a function of a context.


def _similar(context: _Context) -> PaperCheck | None:
    """Check that the losses are similar at a prevalence near the data's own."""
    have = {loss: context.differences[COMMON, loss] for loss in LOSSES if (COMMON, loss) in context.differences}
    if not have:
        return None
    parts = [f"{METHODS[loss].title} minus weighted loss {_both(differences)}" for loss, differences in have.items()]
    return PaperCheck(
        "the losses are similar at a prevalence of 0.3",
        context.where,
        _alike(have.values()),
        f"At π = {COMMON:g}: {'; '.join(parts)}; similar is up to {SIMILAR:g}.",
        context.place,
        _prefixed("log-lik. ", context.paper(COMMON, LOG_LIKELIHOOD, PUBLISHED, WEIGHTED)),
        _minus(have, LOG_LIKELIHOOD, "log-lik."),
    )


def _like_cross_entropy(context: _Context) -> PaperCheck | None:
    """Check that the weighted loss is similar to plain cross-entropy if the data's class frequencies are near the
    population's."""
    differences = context.differences.get((COMMON, WEIGHTED))
    if differences is None or not context.place.endswith("2"):
        return None
    return PaperCheck(
        "with raw minibatches at 0.3, the weighted loss behaves as the standard loss",
        context.where,
        _alike([differences]),
        f"At π = {COMMON:g}: weighted loss minus cross-entropy {_both(differences)}; similar is up to {SIMILAR:g}.",
        "Appendix B",
        "",
        f"log-lik. {wording.difference(differences[LOG_LIKELIHOOD].figure)}",
    )


def _no_sensitivity(context: _Context) -> PaperCheck | None:
    """Check that the weighted loss calls nobody malignant at a low prevalence."""
    row = context.rows.get((RARE, WEIGHTED))
    if row is None:
        return None
    tpr = row.figures["tpr"]
    verdict: Verdict = "reproduces" if tpr.value <= NEAR_ZERO else "does not" if tpr.low > NEAR_ZERO else "undecided"
    ours = f"TPR {wording.with_interval(tpr, 3)}"
    sentence = f"At π = {RARE:g} the weighted loss has a TPR of {wording.with_interval(tpr, 3)}; near 0 is up to {NEAR_ZERO:g}."
    if (default := context.rows.get((RARE, DEFAULT))) is not None:
        sentence += f" That of the default information gain is {wording.with_interval(default.figures['tpr'], 3)}."
    return PaperCheck(
        NO_SENSITIVITY,
        context.where,
        verdict,
        sentence,
        context.place,
        _prefixed("TPR ", context.paper(RARE, "tpr", WEIGHTED)),
        ours,
    )


def _some_sensitivity(context: _Context) -> PaperCheck | None:
    """Check that the published form calls more malignant than the weighted loss at a low prevalence."""
    have = [context.rows[RARE, loss].figures["tpr"] for loss in (PUBLISHED, WEIGHTED) if (RARE, loss) in context.rows]
    if len(have) < 2:
        return None
    published, weighted = have
    verdict: Verdict = "reproduces" if published.low > weighted.high else "undecided"
    if published.high <= NEAR_ZERO or published.high < weighted.low:
        verdict = "does not"
    figures = [wording.with_interval(each, 3) for each in have]
    return PaperCheck(
        SOME_SENSITIVITY,
        context.where,
        verdict,
        f"TPR at π = {RARE:g}: as published {figures[0]}, weighted loss {figures[1]}.",
        context.place,
        _prefixed("TPR ", context.paper(RARE, "tpr", PUBLISHED, WEIGHTED)),
        f"TPR {figures[0]}",
    )


def _lower_likelihood(context: _Context) -> PaperCheck | None:
    """Check that the published form has the lower expected log-likelihood at a low prevalence, as the paper's tables say."""
    differences = context.differences.get((RARE, PUBLISHED))
    if differences is None:
        return None
    found = differences[LOG_LIKELIHOOD]
    verdicts: Mapping[Standing, Verdict] = {"behind": "reproduces", "ahead": "does not", "undecided": "undecided"}
    return PaperCheck(
        LOWER_LIKELIHOOD,
        context.where,
        verdicts[found.standing],
        f"At π = {RARE:g}, as published minus weighted loss: {wording.difference(found.figure)}.",
        context.place,
        context.paper(RARE, LOG_LIKELIHOOD, PUBLISHED, WEIGHTED),
        f"difference {wording.difference(found.figure)}",
    )


def _lower_auc(context: _Context) -> PaperCheck | None:
    """Check that the weighted loss ranks worse than the information gain: one of its forms is ahead and none behind."""
    have = {loss: context.differences[RARE, loss] for loss in LOSSES if (RARE, loss) in context.differences}
    if not have:
        return None
    parts = []
    for loss, each in ((loss, differences[AUC]) for loss, differences in have.items()):
        folds = f"ahead in {each.ahead} of {wording.counted(each.folds, 'fold')}"
        parts.append(f"{METHODS[loss].title} {wording.difference(each.figure)}, {folds}")
    return PaperCheck(
        "the weighted loss has a lower AUC at a prevalence of 0.001",
        context.where,
        verdict_of(differences[AUC].standing for differences in have.values()),
        f"AUC at π = {RARE:g}, minus that of the weighted loss: {'; '.join(parts)}.",
        f"{context.place}, Fig. 3",
        _prefixed("AUC ", context.paper(RARE, AUC, PUBLISHED, WEIGHTED)),
        _minus(have, AUC, "AUC"),
    )


def _falling_auc(context: _Context) -> PaperCheck | None:
    """Check that the AUC of the weighted loss is lower at the lowest prevalence than at the highest."""
    found = context.falls.get(WEIGHTED)
    if found is None:
        return None
    verdict: Verdict = "does not" if found.figure.low > -STEADY else "undecided"
    return _between_ends(
        context,
        WEIGHTED,
        "the AUC of the weighted loss falls with the prevalence",
        "reproduces" if found.figure.high < 0 else verdict,
    )


def _steady_auc(context: _Context) -> PaperCheck | None:
    """Check that the AUC of the published form is no lower at the lowest prevalence than at the highest."""
    found = context.falls.get(PUBLISHED)
    if found is None:
        return None
    verdict: Verdict = "does not" if found.figure.high < 0 else "undecided"
    about = "the AUC of the information gain as published does not fall with the prevalence"
    return _between_ends(context, PUBLISHED, about, "reproduces" if found.figure.low > -STEADY else verdict)


def _between_ends(context: _Context, loss: str, about: str, verdict: Verdict) -> PaperCheck:
    low, high = context.ends
    found = context.falls[loss]
    change = wording.difference(found.figure)
    return PaperCheck(
        about,
        context.where,
        verdict,
        f"AUC at π = {low:g} minus that at {high:g}: {change}, lower in {found.behind} of "
        f"{wording.counted(found.folds, 'fold')}; a fall of less than {STEADY:g} does not count.",
        "Fig. 3",
        " → ".join(context.paper(rate, AUC, loss).partition(" ")[2] for rate in (high, low) if context.paper(rate, AUC, loss)),
        f"{high:g} to {low:g}: {change}",
    )


def _worse_than_constant(context: _Context) -> PaperCheck | None:
    """Check that the published form is worse than always answering π, and the default is not."""
    have = [(loss, context.rows[RARE, loss].figures) for loss in (PUBLISHED, DEFAULT) if (RARE, loss) in context.rows]
    if len(have) < 2:
        return None
    published, default = (figures["skill"] for _, figures in have)
    if published.high < 0 and not default.high < 0:
        verdict: Verdict = "reproduces"
    else:
        verdict = "does not" if published.low > 0 or default.high < 0 else "undecided"
    blind = (1 - RARE) * math.log1p(-RARE) + RARE * math.log(RARE)
    places = wording.decimals(LOG_LIKELIHOOD, RARE)
    constant = wording.number(blind, places)
    parts = [f"{METHODS[loss].title} {wording.with_interval(figures[LOG_LIKELIHOOD], places)}" for loss, figures in have]
    printed = context.paper(RARE, LOG_LIKELIHOOD, PUBLISHED)
    return PaperCheck(
        "as published, worse than always answering π at a prevalence of 0.001; by default, not",
        context.where,
        verdict,
        f"Expected log-likelihood at π = {RARE:g}: {', '.join(parts)}, always answering π {constant}.",
        f"{context.place}, by its figures",
        f"log-lik. {printed}, always π {constant}" if printed else "",
        f"skill {wording.with_interval(published, 2)}, by default {wording.with_interval(default, 2)}",
    )


def _calibrated(context: _Context) -> PaperCheck | None:
    """Check that the published form agrees with π at more prevalences than the weighted loss does."""
    held: dict[str, list[float]] = {}
    for (population, loss), row in context.rows.items():
        mean = row.figures["mean_prediction"]
        if population is not None and not math.isnan(mean.low):
            held.setdefault(loss, []).append(population if mean.low <= population <= mean.high else 0.0)
    if len(held.get(PUBLISHED, ())) < FEW or len(held.get(WEIGHTED, ())) < FEW:
        return None
    counts = {loss: sum(map(bool, each)) for loss, each in held.items()}
    more = counts[PUBLISHED] - counts[WEIGHTED]
    shown = [f"{METHODS[loss].title} {counts[loss]} of {len(each)}" for loss, each in held.items()]
    return PaperCheck(
        "as published, the information gain is calibrated more consistently over prevalences than the weighted loss",
        context.where,
        "reproduces" if more > 0 else "does not" if more < 0 else "undecided",
        f"Prevalences at which the interval of the mean prediction contains π: {', '.join(shown)}.",
        "Section 4, Brompton; Fig. 3",
        "",
        f"as published {counts[PUBLISHED]} of {len(held[PUBLISHED])}, weighted {counts[WEIGHTED]} of {len(held[WEIGHTED])}",
    )


_CLAIMS: tuple[Callable[[_Context], PaperCheck | None], ...] = (
    _similar,
    _like_cross_entropy,
    _no_sensitivity,
    _some_sensitivity,
    _lower_likelihood,
    _lower_auc,
    _falling_auc,
    _steady_auc,
    _worse_than_constant,
    _calibrated,
)


# Claims on nets and on inference, each over all populations and both forms of the information gain.


def _nets(comparisons: Sequence[Comparison], config: StudyConfig) -> Iterable[PaperCheck]:
    """Check that the logits of image and metadata together predict better than either alone."""
    for key, own in _grouped(comparisons, "net", config).items():
        found = [each.differences[LOG_LIKELIHOOD] for each in own]
        yield PaperCheck(
            f"image and metadata together predict better than {wording.net(key, config)}",
            wording.where(key._replace(net=""), config, without=["population"]) or "all prevalences",
            verdict_of(each.standing for each in found),
            f"Expected log-likelihood, minus that of {wording.net(key, config)}: {_cases(own)}.",
            "Section 4, Brompton, implied",
            "",
            _tally(found),
        )


def _inferences(comparisons: Sequence[Comparison], config: StudyConfig) -> Iterable[PaperCheck]:
    """Check that no approximation of the posterior predicts worse than one net."""
    for key, own in _grouped(comparisons, "inference", config).items():
        found = [each.differences[LOG_LIKELIHOOD] for each in own]
        behind = [each.standing == "behind" for each in found]
        yield PaperCheck(
            f"the posterior can be approximated by any standard strategy: {wording.INFERENCES[key.inference]}",
            wording.where(key, config, without=["population", "inference"]),
            "reproduces" if not any(behind) else "does not" if all(behind) else "undecided",
            f"Expected log-likelihood, minus that of one net: {_cases(own)}.",
            "Section 2",
            "",
            _tally(found),
        )


def _grouped(comparisons: Sequence[Comparison], about: str, config: StudyConfig) -> dict[CellKey, list[Comparison]]:
    """Return comparisons of the information gain, by what is compared: for nets theirs, for inferences ours."""
    groups: dict[CellKey, list[Comparison]] = {}
    for each in comparisons:
        if each.about == about and each.ours.loss in LOSSES and _is_shown(each.ours, config):
            groups.setdefault(_start(each.theirs if each.ours.net == BOTH and about == "net" else each.ours), []).append(each)
    return groups


def _cases(own: Sequence[Comparison]) -> str:
    differences = [wording.difference(each.differences[LOG_LIKELIHOOD].figure) for each in own]
    names = [f"{wording.short_method(each.ours)} at π = {each.ours.population:g}" for each in own]
    return "; ".join(f"{name} {difference}" for name, difference in zip(names, differences, strict=True))


def _tally(found: Sequence[Difference]) -> str:
    counts = {word: sum(each.standing == word for each in found) for word in ("ahead", "undecided", "behind")}
    return ", ".join(f"{word} in {count} of {len(found)}" for word, count in counts.items() if count)


def _alike(found: Iterable[Mapping[str, Difference]]) -> Verdict:
    verdicts = [_is_similar(each) for differences in found for each in differences.values()]
    return "does not" if False in verdicts else "undecided" if None in verdicts else "reproduces"


def _is_similar(difference: Difference) -> bool | None:
    """Return whether it is within 0.03; None if it is larger but undecided, or has no interval."""
    if math.isnan(difference.figure.low):
        return None
    near = abs(difference.figure.value) <= SIMILAR
    return None if not near and difference.standing == "undecided" else near


def _minus(have: Mapping[str, Mapping[str, Difference]], name: str, title: str) -> str:
    """Return the difference of the published form, as the paper has it, or else of the default."""
    loss = PUBLISHED if PUBLISHED in have else DEFAULT
    form = "as published" if loss == PUBLISHED else "by default"
    return f"{title} {form} minus weighted {wording.difference(have[loss][name].figure)}"


def _both(differences: Mapping[str, Difference]) -> str:
    likelihood, auc = (wording.difference(differences[name].figure) for name in (LOG_LIKELIHOOD, AUC))
    return f"{likelihood} in expected log-likelihood, {auc} in AUC"


def _prefixed(prefix: str, text: str) -> str:
    return prefix + text if text else ""
