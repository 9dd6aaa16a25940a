"""Figures of a cell that are means within groups; paired comparisons: which cells are compared, and their differences on the
same nodules.

Stage: `Cell` → `GroupMeans` by name; `Cell`s, their AUCs, `Resamples` → `CellPair`s.

Of two classes: `expected_log_likelihood`, `mean_prediction`, `tpr` and `tnr` at ½, and for each cost C of a missed cancer
`tpr_cost_C`, `tnr_cost_C` and `net_benefit_cost_C`, true positives per person minus false ones at their cost. Of ratings:

    expected_log_likelihood                                     readers' votes as soft labels, at the shares of the votes
    RULE_accuracy, RULE_balanced_accuracy                       the answer is the readers'
    RULE_off_by_one, RULE_balanced_off_by_one                   … or beside it
    RULE_off_by_one_recall_1 … _5                               … of the nodules that readers rated so
    RULE_off_by_one_margin                                      … the least of 2 to 4, minus 1
    RULE_malignant_accuracy, _tpr, _tnr, _ppv, _npv             4 and 5 against 1 and 2, nodules rated 3 left out
    score_within_half, score_within_one, score_error            the mean rating, and how far off it is

RULE is how votes and predictions become one answer: "majority", or "mean", the class nearest to the mean rating. "Balanced" is
the mean over the ratings that occur.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float64, Int64

from ...lidc import expected_score, majority, rounded_mean
from ...metrics import Figure
from ..config import StudyConfig
from ..methods import ADJUSTED, ADJUSTED_LABELLED, DEFAULT, METHODS
from ..results import Cell, CellKey, grouped
from .contract import AUC, COSTS, LOG_LIKELIHOOD, MEAN, CellPair, PairedFigure
from .resampling import Areas, BootstrapEstimate, GroupMeans, Resamples, combined, mean_area

PUBLISHED, WEIGHTED, PLAIN, BOTH = "published", "weighted", "plain", "both"
PUBLISHED_FORMS = tuple(name for name, method in METHODS.items() if method.published)
LOG_MEAN_OFF = "log_mean_off"  # mean over prevalences of |log(mean prediction/π)|
FEW = 3  # prevalences for that mean
RULES: dict[str, Callable[[np.ndarray], Int64[np.ndarray, " n"]]] = {
    "majority": lambda votes: majority(votes).numpy(),
    "mean": lambda votes: rounded_mean(votes).numpy(),
}
RULE_FIGURES = ("accuracy", "balanced_accuracy", "off_by_one", "balanced_off_by_one", "malignant_accuracy")
MARGIN = "off_by_one_margin"
_MIDDLE = 2  # rating 3, counted from 0


def is_binary(cell: Cell) -> bool:
    return cell.log_probs.shape[1] == 2


def votes_of(cell: Cell) -> Float64[np.ndarray, "n k"]:
    """Return the weight of each class in each row: its label, or for ratings the readers' shares."""
    return np.eye(2)[cell.labels] if is_binary(cell) else cell.data.votes[cell.rows].astype(np.float64)


def paired_figures(cell: Cell) -> Mapping[str, GroupMeans]:
    """Return the figures in which cells are compared: their groups do not depend on the predictions."""
    likelihood = {LOG_LIKELIHOOD: GroupMeans(cell.log_probs, votes_of(cell), cell.population)}
    if is_binary(cell):
        return likelihood | decision_figures(cell)
    rated = rating_figures(cell)
    return likelihood | {name: rated[name] for rule in RULES for name in (f"{rule}_{each}" for each in RULE_FIGURES)}


def decision_figures(cell: Cell) -> dict[str, GroupMeans]:
    """Return the mean prediction, and the figures of decisions at ½ and by cost."""
    classes = np.eye(2)[cell.labels]
    prob = np.exp(cell.log_probs[:, 1:])
    log_odds = cell.log_probs[:, 1:] - cell.log_probs[:, :1]
    found = {MEAN: GroupMeans(np.hstack([prob, prob]), classes, cell.population)}
    for name, cost in (("", 1), *((f"_cost_{cost}", cost) for cost in COSTS)):
        called = (log_odds >= -np.log(cost) if name else log_odds > 0).astype(np.float64)
        found[f"tpr{name}"] = GroupMeans(called, classes[:, 1:], np.ones(1), share=True)
        found[f"tnr{name}"] = GroupMeans(1 - called, classes[:, :1], np.ones(1), share=True)
        if name:
            found[f"net_benefit{name}"] = GroupMeans(np.hstack([-called / cost, called]), classes, cell.population)
    return found


def rating_figures(cell: Cell) -> dict[str, GroupMeans]:
    """Return accuracies of one answer per nodule, by each rule, and of the mean rating."""
    votes, probs = votes_of(cell), np.exp(cell.log_probs)
    off = np.abs(np.asarray(expected_score(probs)) - np.asarray(expected_score(votes)))
    everybody = np.ones(len(off), dtype=bool)
    rounding = 1e-6  # shares are kept in float32
    return {
        **{f"{rule}_{name}": each for rule in RULES for name, each in _rule_figures(rule, votes, probs).items()},
        "score_within_half": _share(off <= 0.5 + rounding, everybody),
        "score_within_one": _share(off <= 1 + rounding, everybody),
        "score_error": GroupMeans(off[:, None], np.ones((len(off), 1)), np.ones(1)),
    }


def _rule_figures(rule: str, votes: np.ndarray, probs: np.ndarray) -> dict[str, GroupMeans]:
    """A nodule is called malignant if P(4) + P(5) > P(1) + P(2); half of P(3) on each side would change nothing."""
    truth, answer = RULES[rule](votes), RULES[rule](probs)
    exact, near = answer == truth, np.abs(answer - truth) <= 1
    everybody = np.ones(len(truth), dtype=bool)
    called = probs[:, 3:].sum(1) > probs[:, :2].sum(1)
    malignant, benign = truth > _MIDDLE, truth < _MIDDLE
    sure = malignant | benign
    return {
        "accuracy": _share(exact, everybody),
        "balanced_accuracy": _balanced(exact, truth),
        "off_by_one": _share(near, everybody),
        "balanced_off_by_one": _balanced(near, truth),
        **{f"off_by_one_recall_{k + 1}": _share(near, truth == k) for k in range(5)},
        "malignant_accuracy": _share(called == malignant, sure),
        "malignant_tpr": _share(called, malignant),
        "malignant_tnr": _share(~called, benign),
        "malignant_ppv": _share(malignant, called & sure),
        "malignant_npv": _share(benign, ~called & sure),
    }


def _share(marked: Bool[np.ndarray, " n"], among: Bool[np.ndarray, " n"]) -> GroupMeans:
    return GroupMeans(marked[:, None].astype(np.float64), among[:, None].astype(np.float64), np.ones(1), share=True)


def _balanced(marked: Bool[np.ndarray, " n"], truth: Int64[np.ndarray, " n"]) -> GroupMeans:
    ratings = np.unique(truth)
    members = (truth[:, None] == ratings).astype(np.float64)
    values = np.repeat(marked[:, None].astype(np.float64), len(ratings), axis=1)
    return GroupMeans(values, members, np.full(len(ratings), 1 / len(ratings)), share=True)


def pairs(keys: Sequence[CellKey], config: StudyConfig) -> Iterator[tuple[str, CellKey, CellKey]]:
    """Yield the respect in which two cells differ, ours, and theirs.

    From the same start: the default against every rival; each published form against the weighted loss, as in the paper, and
    the weighted loss against plain cross-entropy; logit adjustment with unlabelled patients against without; the lowest
    population against the highest; image and metadata against either alone; each inference against a single net, and each
    likelihood against the softmax. A start at equal classes against one at π.
    """
    have = set(keys)
    rates = [rate for rate in config.populations if rate is not None]
    for ours in keys:
        if ours.loss == DEFAULT:
            yield from (("loss", ours, theirs) for theirs in keys if theirs != ours and _context(theirs) == _context(ours))
        if ours.loss in PUBLISHED_FORMS and (theirs := ours._replace(loss=WEIGHTED)) in have:
            yield "published", ours, theirs
        if ours.loss == WEIGHTED and (theirs := ours._replace(loss=PLAIN)) in have:
            yield "plain", ours, theirs
        if rates and ours.population == min(rates) and (theirs := ours._replace(population=max(rates))) in have - {ours}:
            yield "population", ours, theirs
        if ours.loss == ADJUSTED and (theirs := ours._replace(loss=ADJUSTED_LABELLED)) in have:
            yield "unlabelled", ours, theirs
        if ours.net == BOTH:
            yield from (("net", ours, theirs) for theirs in keys if theirs != ours and ours._replace(net=theirs.net) == theirs)
        plain = {
            "start": ours._replace(start="population"),
            "inference": ours._replace(inference="map"),
            "likelihood": ours._replace(likelihood="categorical"),
        }
        yield from ((about, ours, theirs) for about, theirs in plain.items() if theirs in have and theirs != ours)


def main_loss(config: StudyConfig) -> str:
    """Return the main loss: the default, or else the study's first."""
    return DEFAULT if DEFAULT in config.losses else config.losses[0]


def compare(about: str, ours: Cell, theirs: Cell, areas: tuple[Areas, Areas] | None, resamples: Resamples) -> CellPair | None:
    """Compare two cells on their common runs; None if there are none. Between populations the AUC alone is compared."""
    own, other = _shared(ours, theirs)
    if len(own) == 0:
        return None
    found = {}
    if ours.key.population == theirs.key.population:
        mine, yours = paired_figures(ours), paired_figures(theirs)
        patient, fold = resamples.patient[ours.rows[own]], ours.fold[own]
        differences = {name: mine[name].at(own) - yours[name].at(other) for name in mine}
        found = {name: _difference(each, patient, fold, resamples) for name, each in differences.items()}
    if areas is not None:
        found[AUC] = _area_difference(*areas)
    return CellPair(about, ours.key, theirs.key, found)


def calibration_difference(ours: Sequence[Cell], theirs: Sequence[Cell], resamples: Resamples) -> PairedFigure | None:
    """Compare |log(mean prediction/π)|, averaged over populations; None if fewer than three have common runs."""
    estimates: list[BootstrapEstimate] = []
    folds: list[dict[int, float]] = []
    rates = []
    for one, other in zip(ours, theirs, strict=True):
        shared = _shared(one, other)
        if len(shared[0]):
            means = [paired_figures(cell)[MEAN].at(rows) for cell, rows in zip((one, other), shared, strict=True)]
            patient, fold = resamples.patient[one.rows[shared[0]]], one.fold[shared[0]]
            estimates += [each.estimate(patient, resamples) for each in means]
            folds += [each.in_folds(fold) for each in means]
            rates.append(one.population[1])
    if len(rates) < FEW:
        return None

    def off(means: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            gaps = np.abs(np.log(means / np.repeat(rates, 2)[:, None]))
        return np.asarray((gaps[::2] - gaps[1::2]).mean(0))

    common = set(folds[0]).intersection(*folds)
    by_fold = {fold: float(off(np.array([[each[fold]] for each in folds]))[0]) for fold in common}
    return _counted(combined(off, estimates).figure("a class has no nodule"), by_fold)


def _context(key: CellKey) -> CellKey:
    return key._replace(loss="")


def _shared(ours: Cell, theirs: Cell) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the entries that both have, in the same order."""
    places = [
        {key: number for number, key in enumerate(zip(cell.rows.tolist(), cell.seed.tolist(), strict=True))}
        for cell in (ours, theirs)
    ]
    both = [key for key in places[0] if key in places[1]]
    own, other = (np.array([place[key] for key in both], dtype=np.int64) for place in places)
    return own, other


def _difference(means: GroupMeans, patient: np.ndarray, fold: np.ndarray, resamples: Resamples) -> PairedFigure:
    if not np.isfinite(means.counted).all():
        return PairedFigure(Figure(math.nan, reason="a probability of 0 was given to what happened"), 0, 0, 0)
    return _counted(means.figure(patient, resamples, "a class has no nodule"), means.in_folds(fold))


def _area_difference(ours: Areas, theirs: Areas) -> PairedFigure:
    areas = {run: ours[run] - theirs[run] for run in ours if run in theirs}
    by_fold = grouped(areas, lambda run: run[0])
    means = {fold: float(np.mean([areas[run].value for run in runs])) for fold, runs in by_fold.items()}
    return _counted(mean_area(areas), means)


def _counted(figure: Figure, by_fold: Mapping[int, float]) -> PairedFigure:
    values = list(by_fold.values())
    return PairedFigure(figure, len(values), sum(value > 0 for value in values), sum(value < 0 for value in values))
