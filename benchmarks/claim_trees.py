"""Train gradient boosting by every loss that claim.py compares, on one draw of labelled rows, and score it at every population.

Stage: `Rows` → boosters of LightGBM → figures in `Scores`. Leaves and rounds are chosen on the validation rows, for each loss
and population separately. A booster that does not depend on π is trained once. Logits are at the mix of the labelled rows, ρ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import lightgbm as lgb
import numpy as np
from claim_methods import LOGIT_ADJUSTED, Rows
from claim_posthoc import BOUNDED, METHODS, Scores, add_calibrated, add_matched, moved, pooled_log_odds, score_classifiers
from scipy.special import log_softmax

from rightloss import Prevalence
from rightloss.boosting import InformationGainObjective

LEAVES, ROUNDS = (4, 15), (5, 10, 20, 40, 80)
POOLED = (LOGIT_ADJUSTED, "weighted", "gain, r = ρ, κ = 0")


class Boosted(NamedTuple):
    """A booster, the logits that are to be added to its raw scores so that they are at ρ, and its leaves."""

    booster: lgb.Booster
    offset: np.ndarray
    leaves: int

    def table(self, x: np.ndarray, rounds: int) -> np.ndarray:
        """Return log p_ρ(k|x) after some rounds."""
        raw = np.asarray(self.booster.predict(x, raw_score=True, num_iteration=rounds))
        logits = np.stack([np.zeros(len(raw)), raw], 1) if raw.ndim == 1 else raw
        return np.asarray(log_softmax(logits + self.offset, axis=1))


class Chosen(NamedTuple):
    """The booster and the number of rounds that are best on the validation rows at a population."""

    boosted: Boosted
    rounds: int

    def at(self, x: np.ndarray, rho: np.ndarray, pi: np.ndarray) -> np.ndarray:
        return moved(self.boosted.table(x, self.rounds), rho, pi)


class Data(NamedTuple):
    """The rows as NumPy has them."""

    x: np.ndarray
    y: np.ndarray
    x_valid: np.ndarray
    y_valid: np.ndarray
    x_test: np.ndarray
    others: dict[int, np.ndarray]

    @property
    def rho(self) -> np.ndarray:
        return np.bincount(self.y) / len(self.y)


def train(
    x: np.ndarray, y: np.ndarray, leaves: int, weights: np.ndarray | None, options: dict[str, Any], start: Any
) -> lgb.Booster:
    """Return a booster of the most rounds; `options` hold the objective."""
    params = {"num_leaves": leaves, "num_threads": 1, "verbosity": -1, "seed": 0, "min_data_in_leaf": min(20, len(y) // 20)}
    data = lgb.Dataset(x, y, weight=weights, init_score=start, free_raw_data=False)
    return lgb.train(params | options, data, num_boost_round=max(ROUNDS))


def builtin(data: Data, weights: np.ndarray | None = None) -> list[Boosted]:
    """Train by cross-entropy, each class weighted; the scores are at the weighted mix, from which they are moved to ρ."""
    size, rho = len(data.rho), data.rho
    objective = {"objective": "binary"} if size == 2 else {"objective": "multiclass", "num_class": size}
    seen = rho if weights is None else rho * weights / (rho * weights).sum()
    own = None if weights is None else (weights / (rho @ weights))[data.y]
    offset = np.log(rho) - np.log(seen)
    return [Boosted(train(data.x, data.y, leaves, own, objective, None), offset, leaves) for leaves in LEAVES]


def gained(data: Data, pi: np.ndarray, kappa: float, at_population: bool, start: bool = True) -> list[Boosted]:
    """Train by the information gain of two classes, started at π or at 0."""
    prevalence = Prevalence(pi.tolist(), sampling=data.rho.tolist(), evidence=kappa)
    objective = InformationGainObjective(prevalence, prevalence.population if at_population else None)
    begin = np.log(pi) if start else np.zeros(2)
    init = np.full(len(data.y), begin[1] - begin[0])
    offset = begin + np.log(data.rho) - np.log(pi)
    options = {"objective": objective}
    return [Boosted(train(data.x, data.y, leaves, None, options, init), offset, leaves) for leaves in LEAVES]


def chosen(boosted: Sequence[Boosted], data: Data, pi: np.ndarray) -> Chosen:
    """Return the leaves and rounds of the best expected log-likelihood at π on the validation rows."""

    def score(candidate: Chosen) -> float:
        log_p = candidate.at(data.x_valid, data.rho, pi)[np.arange(len(data.y_valid)), data.y_valid]
        return float(sum(share * log_p[data.y_valid == k].mean() for k, share in enumerate(pi)))

    return max((Chosen(each, rounds) for each in boosted for rounds in ROUNDS), key=score)


def score_boosting(rows: Rows, scores: Scores, trained_at: Sequence[int], seed: int) -> None:
    """Train and score every loss and correction."""
    others = {at: x.numpy() for at, x in rows.unlabelled.items()}
    data = Data(rows.x.numpy(), rows.y.numpy(), rows.x_valid.numpy(), rows.y_valid.numpy(), rows.x_test.numpy(), others)
    two = len(data.rho) == 2
    free = {LOGIT_ADJUSTED: builtin(data)}
    if two:
        free["gain, r = ρ, κ = 0"] = gained(data, scores.populations[0], 0.0, at_population=False)
    natural = data._replace(x=rows.x_natural.numpy(), y=rows.y_natural.numpy())
    as_met = builtin(natural) if len(np.unique(natural.y)) == len(data.rho) else None
    for at, pi in enumerate(scores.populations):
        own = dict(free) | {"weighted": builtin(data, pi / data.rho)}
        if at in trained_at:
            own["half weighted"] = builtin(data, np.sqrt(pi / data.rho))
            if two:
                own["gain as published"] = gained(data, pi, 0.0, at_population=True, start=False)
                own["gain, r = π, κ = 0"] = gained(data, pi, 0.0, at_population=True)
                own["gain, r = π, κ = 1"] = gained(data, pi, 1.0, at_population=True)
        best = {name: chosen(each, data, pi) for name, each in own.items()}
        for name, each in best.items():
            tables = [each.at(x, data.rho, pi) for x in (data.x_valid, data.x_test)]
            (scores.add_bounded if name in BOUNDED else scores.add)(name, at, tables, each.rounds)
        _score_corrections(best, data, scores, at, pi)
        if as_met is not None:
            first, moved_to = (chosen(as_met, natural, each) for each in (scores.populations[0], pi))
            scores.add("natural rows", at, (moved_to.at(x, natural.rho, pi) for x in (data.x_valid, data.x_test)))
            if at:
                as_is = [first.boosted.table(x, first.rounds) for x in (data.x_valid, data.x_test)]
                scores.add("natural rows, as is", at, as_is)
    natural_best = chosen(free[LOGIT_ADJUSTED], data, scores.populations[0])
    score_classifiers(_classifier(data, natural_best), rows, scores, trained_at)


def _score_corrections(best: dict[str, Chosen], data: Data, scores: Scores, at: int, pi: np.ndarray) -> None:
    """Score calibrations on the validation rows, and the match of means on unlabelled ones."""
    pooled = [best[name] for name in POOLED if name in best]
    inputs = data.x_valid, data.x_test, data.others.get(at)
    mixed = [None if x is None else pooled_log_odds([each.at(x, data.rho, pi) for each in pooled]) for x in inputs]
    base = [None if x is None else best[LOGIT_ADJUSTED].at(x, data.rho, pi) for x in inputs]
    for name, (valid, test, unlabelled) in {"": base, "pooled": mixed}.items():
        assert valid is not None
        assert test is not None
        for method in METHODS:
            add_calibrated(name, method, at, [valid, test], scores, unlabelled)
        if name == "" and unlabelled is not None:
            add_matched("mean matching", at, [valid, test], unlabelled, scores)


def _classifier(data: Data, best: Chosen) -> lgb.LGBMClassifier:
    """Return an unfitted classifier with the leaves and rounds of `best`."""
    return lgb.LGBMClassifier(
        num_leaves=best.boosted.leaves, n_estimators=best.rounds, min_child_samples=min(20, len(data.y) // 20), n_jobs=1,
        verbose=-1, random_state=0,
    )  # fmt: skip
