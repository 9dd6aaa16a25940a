"""Figures of a cell that are means within groups, so that two cells can be compared pairwise.

Stage: `Cell` → `GroupMeans` by name.

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

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Bool, Float64, Int64

from ...lidc.votes import expected_score, majority, rounded_mean
from ..pooled_predictions import Cell
from .contract import COSTS, LOG_LIKELIHOOD, MEAN
from .resampling import GroupMeans

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
