"""Whether the paper's findings reproduce: four checks for each data set and net, by interval.

Stage: `CellSummary`s, `Comparison`s → `PaperCheck`s: "reproduces", "does not" or "undecided", with the figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..config import StudyConfig
from ..methods import DEFAULT, METHODS
from ..paper import POPULATIONS
from ..pooled_predictions import CellKey
from . import wording
from .comparisons import PUBLISHED, WEIGHTED, is_default
from .contract import AUC, LOG_LIKELIHOOD, CellSummary, Comparison, Difference, PaperCheck, Verdict

COMMON, RARE = POPULATIONS
SIMILAR = 0.03  # as the paper's own −0.39 and −0.36
NEAR_ZERO = 0.05


@dataclass(frozen=True)
class _Context:
    """The rows and differences of one data set and net.

    Attributes:
        where: in wording.
        rows: by population and loss; for the information gain, the default one.
        differences: from the weighted loss, by population and loss.
    """

    where: str
    rows: Mapping[tuple[float | None, str], CellSummary]
    differences: Mapping[tuple[float | None, str], Mapping[str, Difference]]


def paper_checks(rows: Sequence[CellSummary], comparisons: Sequence[Comparison], config: StudyConfig) -> tuple[PaperCheck, ...]:
    """Make the checks that the study has the runs for; none for ratings, nor where training patients are unlabelled."""
    if config.task == "rating" or config.unlabelled:
        return ()
    found = []
    for context in _contexts(rows, comparisons, config):
        found += [_similar(context), _no_sensitivity(context), _lower_auc(context), _worse_than_constant(context)]
    return tuple(check for check in found if check is not None)


def _contexts(rows: Sequence[CellSummary], comparisons: Sequence[Comparison], config: StudyConfig) -> Iterable[_Context]:
    shown = [row for row in rows if _is_shown(row.key, config)]
    for start in dict.fromkeys(_start(row.key) for row in shown):
        own = {(row.key.population, row.key.loss): row for row in shown if _start(row.key) == start}
        differences = {
            (each.ours.population, each.ours.loss): each.differences
            for each in comparisons
            if _start(each.ours) == start and _is_shown(each.ours, config)
            if each.about in ("loss", "published") and (each.theirs.loss, each.theirs.marginal) == (WEIGHTED, "own")
        }
        yield _Context(wording.where(start, config, without=["population"]), own, differences)


def _is_shown(key: CellKey, config: StudyConfig) -> bool:
    return is_default(key, config) or (key.loss in (PUBLISHED, WEIGHTED) and key.marginal == _first(config, key.loss))


def _first(config: StudyConfig, loss: str) -> str:
    return "own" if "own" in config.marginals or not METHODS[loss].takes_marginal else config.marginals[0]


def _start(key: CellKey) -> CellKey:
    return key._replace(population=None, loss="", marginal="")


def _similar(context: _Context) -> PaperCheck | None:
    """Check that the losses are similar at a prevalence near the data's own."""
    found = [(loss, context.differences.get((COMMON, loss))) for loss in (DEFAULT, PUBLISHED)]
    have = [(loss, differences) for loss, differences in found if differences is not None]
    if not have:
        return None
    verdicts = [_is_similar(each) for _, differences in have for each in differences.values()]
    verdict: Verdict = "does not" if False in verdicts else "undecided" if None in verdicts else "reproduces"
    parts = [f"{METHODS[loss].title} minus weighted loss {_both(differences)}" for loss, differences in have]
    sentence = f"At π = {COMMON:g}: {'; '.join(parts)}; similar is up to {SIMILAR:g}."
    return PaperCheck("the losses are similar at a prevalence of 0.3", context.where, verdict, sentence)


def _is_similar(difference: Difference) -> bool | None:
    """Return whether it is within 0.03; None where it is larger but undecided, or has no interval."""
    if math.isnan(difference.figure.low):
        return None
    near = abs(difference.figure.value) <= SIMILAR
    return None if not near and difference.standing == "undecided" else near


def _no_sensitivity(context: _Context) -> PaperCheck | None:
    """Check that the weighted loss calls nobody malignant at a low prevalence."""
    row = context.rows.get((RARE, WEIGHTED))
    if row is None:
        return None
    tpr = row.figures["tpr"]
    verdict: Verdict = "reproduces" if tpr.value <= NEAR_ZERO else "does not" if tpr.low > NEAR_ZERO else "undecided"
    sentence = f"At π = {RARE:g} the weighted loss has a TPR of {wording.with_interval(tpr, 3)}; near 0 is up to {NEAR_ZERO:g}."
    if (default := context.rows.get((RARE, DEFAULT))) is not None:
        sentence += f" That of the default information gain is {wording.with_interval(default.figures['tpr'], 3)}."
    return PaperCheck("the weighted loss has a sensitivity of 0 at a prevalence of 0.001", context.where, verdict, sentence)


def _lower_auc(context: _Context) -> PaperCheck | None:
    """Check that the weighted loss ranks worse than the information gain: one of its forms is ahead and none behind."""
    found = [(loss, context.differences.get((RARE, loss))) for loss in (DEFAULT, PUBLISHED)]
    have = [(loss, differences[AUC]) for loss, differences in found if differences is not None]
    if not have:
        return None
    standings = {each.standing for _, each in have}
    verdict: Verdict = "undecided"
    if "ahead" in standings and "behind" not in standings:
        verdict = "reproduces"
    elif "behind" in standings and "ahead" not in standings:
        verdict = "does not"
    parts = []
    for loss, each in have:
        folds = f"ahead in {each.ahead} of {wording.counted(each.folds, 'fold')}"
        parts.append(f"{METHODS[loss].title} {wording.difference(each.figure)}, {folds}")
    sentence = f"AUC at π = {RARE:g}, minus that of the weighted loss: {'; '.join(parts)}."
    return PaperCheck("the weighted loss has a lower AUC at a prevalence of 0.001", context.where, verdict, sentence)


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
    parts = [f"{METHODS[loss].title} {wording.with_interval(figures[LOG_LIKELIHOOD], places)}" for loss, figures in have]
    sentence = (
        f"Expected log-likelihood at π = {RARE:g}: {', '.join(parts)}, always answering π {wording.number(blind, places)}."
    )
    about = "as published, worse than always answering π at a prevalence of 0.001; by default, not"
    return PaperCheck(about, context.where, verdict, sentence)


def _both(differences: Mapping[str, Difference]) -> str:
    likelihood, auc = (wording.difference(differences[name].figure) for name in (LOG_LIKELIHOOD, AUC))
    return f"{likelihood} in expected log-likelihood, {auc} in AUC"
