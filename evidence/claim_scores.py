"""Train nets or trees on one draw, correct their predictions in every way that needs no new training, and score all of it.

Stage: `Rows` → `Scores`: a row of figures per method and population, with the test rows weighted by class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import lightgbm as lgb
import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import log_softmax, logsumexp
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from rightloss import Prevalence
from rightloss.boosting import InformationGainObjective
from rightloss.calibration import Calibration, fit_mean, smooth_likelihoods
from rightloss.calibration.auto import cross_fitted, expected_gain
from rightloss.calibration.fit_with_shrinkage import fit_slopes, maximise
from rightloss.calibration.held_out import HeldOut
from rightloss.shift import label_shift_test
from rightloss.sklearn import PrevalenceCorrectedClassifier

from . import streams
from .losses import DECAYS, GAIN, LOGIT_ADJUSTED, MEMBERS, Job, Kept, Rows, fit, jobs_of
from .nets import LABELLED, Kind, auc, log_table

FOLDS, CLASSIFIER_FOLDS = 2, 5
KINDS = ("affine", "beta")
PEOPLE = 3.0  # ε of the evidence on unlabelled rows, as `InformationGainClassifier` takes it
BOUNDED = (LOGIT_ADJUSTED, "weighted", GAIN)  # also scored with capped and with smoothed likelihood ratios
POOLED = (LOGIT_ADJUSTED, "weighted", "by uncertainty", GAIN)  # whose log-odds are averaged
LEAVES, ROUNDS = (4, 15), (5, 10, 20, 40, 80)
Tables = Sequence[np.ndarray]


class Scores:
    """The figures of every method at every population."""

    def __init__(self, rows: Rows) -> None:
        self.populations = rows.populations.double().numpy()
        self.counts = torch.bincount(rows.y).numpy()
        size = len(self.counts)
        self.valid_rows, self.test_rows = (HeldOut(np.empty((len(y), size)), y.numpy()) for y in (rows.y_valid, rows.y_test))
        self.rows: list[dict[str, Any]] = []
        self.valid: dict[tuple[str, int], np.ndarray] = {}  # log-likelihood of each validation row
        self.bounds = {"capped": self.capped, "smoothed": self.smoothed}
        self.shift = math.nan  # p-value of `label_shift_test`

    def add(self, name: str, at: int, tables: Iterable[np.ndarray], slope: float = 1.0, own_name: str | None = None) -> None:
        """Score tables log p_π(k|x) of the validation and of the test rows, at the population's place.

        `own_name` is the method before its likelihood ratios were bounded, `slope` that of a calibration.
        """
        valid, test = tables
        pi, y = self.populations[at], self.valid_rows.labels
        own = self.valid[name, at] = valid[np.arange(len(valid)), y]
        others = {
            "guess": np.log(pi)[y],
            "base": self.valid.get((LOGIT_ADJUSTED, at), own),
            "own": self.valid[own_name or name, at],
        }
        errors = {f"over_{key}_se": expected_gain(own - other, self.valid_rows, pi)[1] for key, other in others.items()}
        log_p = test[np.arange(len(test)), self.test_rows.labels]
        likelihood, mean = (expected_gain(each, self.test_rows, pi)[0] for each in (log_p, np.exp(test[:, -1])))
        ranks = auc(test[:, -1] - logsumexp(test[:, :-1], axis=1), self.test_rows.labels)
        figures: dict[str, Any] = {"likelihood": likelihood, "auc": ranks, "mean": mean, "valid": self.score(name, at)}
        figures |= errors | {"slope": slope}
        self.rows.append({"method": name, "place": at, **{key: np.float32(value) for key, value in figures.items()}})

    def add_bounded(self, name: str, at: int, tables: Iterable[np.ndarray], slope: float = 1.0) -> None:
        """Score tables as they are, and with capped and with smoothed likelihood ratios."""
        tables = list(tables)
        self.add(name, at, tables, slope)
        for title, bounded in self.bounds.items():
            self.add(f"{name}, {title}", at, [bounded(each, at) for each in tables], slope, name)

    def capped(self, table: np.ndarray, at: int) -> np.ndarray:
        """Return predictions at π in which no class is less likely to have produced x than 1/(n_k + 1) of the most probable.

        Of n_k labelled rows of class k, none may have been like x; they cannot show that fewer than about one in n_k is.
        The likelihoods are p(x|k) ∝ p(k|x)/π_k.
        """
        pi = self.populations[at]
        ratio = table - np.log(pi)
        floor = ratio.max(axis=1, keepdims=True) - np.log1p(self.counts)
        return np.asarray(log_softmax(np.maximum(ratio, floor) + np.log(pi), axis=1))

    def smoothed(self, table: np.ndarray, at: int) -> np.ndarray:
        """Return predictions at π with 1/(n_k + 1) added to each class's share of the likelihood."""
        return smooth_likelihoods(table, self.populations[at], self.counts)

    def score(self, name: str, at: int) -> float:
        return expected_gain(self.valid[name, at], self.valid_rows, self.populations[at])[0]

    # What needs no new training.

    def add_calibrations(
        self, name: str, at: int, tables: Tables, others: np.ndarray | None = None, kinds: Sequence[str] = KINDS
    ) -> None:
        """Score calibrations as "NAME, KIND"; with unlabelled rows also with the intercept that makes their mean π.

        They are fitted as `PrevalenceCorrectedClassifier` does, here to the validation rows at their own mix, cross-fitted
        where both kinds are wanted, and moved to π, at which the tables are.
        """
        pi, y = self.populations[at], self.valid_rows.labels
        data = np.bincount(y, minlength=len(pi)) / len(y)
        at_data, *rest = (moved(each, pi, data) for each in (*tables, *([] if others is None else [others])))
        held_out, folds = HeldOut(at_data, y), np.empty(len(y), dtype=np.int64)
        for k in np.unique(y):  # each class dealt out in turn
            folds[y == k] = np.arange(int((y == k).sum())) % FOLDS
        crossed = kinds == KINDS and np.bincount(y).min() >= 2 * FOLDS
        for kind in kinds:
            whole = fit_slopes(held_out, kind)
            valid = cross_fitted(held_out, folds, kind, pi) if crossed else moved(whole.apply(at_data), data, pi)
            test, *mean_of = (moved(whole.apply(each), data, pi) for each in rest)
            slope, title = float(whole.slopes[0]), f"{name}, {kind}" if name else kind
            self.add_bounded(title, at, [valid, test], slope)
            if others is not None:
                self.add_matched(f"{title}, matched", at, [valid, test], mean_of[0], slope)

    def add_matched(self, name: str, at: int, tables: Tables, others: np.ndarray, slope: float = 1.0) -> None:
        """Score tables moved until the mean over the unlabelled rows is π, as they are, and capped or smoothed before."""
        by_mean = fit_mean(others, self.populations[at])
        self.add(name, at, (by_mean(each) for each in tables), slope)
        for title, bounded in self.bounds.items():
            by_mean = fit_mean(bounded(others, at), self.populations[at])
            self.add(f"{name}, {title}", at, (by_mean(bounded(each, at)) for each in tables), slope, name)

    def add_classifiers(self, model: Any, rows: Rows, trained_at: Sequence[int]) -> None:
        """Score `PrevalenceCorrectedClassifier` around a classifier, by method, on out-of-fold predictions of labelled rows.

        Every method is without smoothing, and smoothed; "classifier, smoothing auto" is method="auto" with smoothing="auto".
        """
        x, y = rows.x.numpy(), rows.y.numpy()
        folds = list(StratifiedKFold(CLASSIFIER_FOLDS, shuffle=True, random_state=0).split(x, y))
        for method in ("auto", "beta", "affine", "closed_form"):
            corrected = None
            for at in trained_at:
                pi = self.populations[at].tolist()
                if corrected is None or method == "auto":
                    corrected = PrevalenceCorrectedClassifier(model, pi, method=method, smoothing="auto", cv=folds).fit(x, y)
                chosen, corrected.smoothing_ = corrected.smoothing_, False
                corrected.set_population(pi)
                tables = [np.asarray(corrected.predict_log_proba(each.numpy())) for each in (rows.x_valid, rows.x_test)]
                self.add_bounded(f"classifier, {method.replace('_', ' ')}", at, tables)
                if method == "auto":
                    tables = [self.smoothed(each, at) for each in tables] if chosen else tables
                    self.add("classifier, smoothing auto", at, tables)


def moved(log_p: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return predictions at the mix `start` as predictions at the mix `end`: `retarget`, in the order of the stored results.

    The AUC of trees depends on it, because rounding breaks their ties.
    """
    return np.asarray(log_softmax(log_p + np.log(end) - np.log(start), axis=1))


def pooled_log_odds(tables: Tables) -> np.ndarray:
    """Return the mean of log-odds."""
    return np.asarray(log_softmax(np.mean(tables, axis=0), axis=1))


# --- nets ---


def score_nets(kind: Kind, rows: Rows, scores: Scores, trained_at: Sequence[int], ensembles: bool, seed: int) -> Kept:
    """Train the nets; score them as they are, and after every correction."""
    kept = fit(kind, rows, jobs_of(kind, len(scores.populations), trained_at, ensembles), seed)
    rho = kept.sampling.double().numpy()
    valid, test = (kept.table(x).numpy() for x in (rows.x_valid, rows.x_test))
    place_of = {name: place for place, name in enumerate(kept.names)}
    for at, pi in enumerate(scores.populations):
        order = sorted((each for each in kept.names if each[1:] == (at, 0)), key=lambda each: each[0] != LOGIT_ADJUSTED)
        of = {
            name: [moved(each[:, place], rho, pi) for each in (valid, test)]
            for name, place in place_of.items()
            if name[1] == at
        }
        for name in order:
            (scores.add_bounded if name[0] in BOUNDED else scores.add)(name[0], at, of[name])
            if name[0] in ("focal", "weighted", "half weighted") and at in rows.unlabelled:
                scores.add_calibrations(name[0], at, of[name], kinds=("affine",))
        pool, others = [(name, at, 0) for name in POOLED], None
        if at in rows.unlabelled:
            of_pool = kept.table(rows.unlabelled[at], [place_of[each] for each in pool]).numpy()
            others = pooled_log_odds([moved(of_pool[:, place], rho, pi) for place in range(len(pool))])
        mixed = [pooled_log_odds([of[each][part] for each in pool]) for part in (0, 1)]
        scores.add_calibrations("pooled", at, mixed, others)
        _corrected(rows, kept, place_of[LOGIT_ADJUSTED, at, 0], at, of[LOGIT_ADJUSTED, at, 0], scores)
        if ensembles:
            members = [of[LOGIT_ADJUSTED, at, member] for member in range(MEMBERS)]
            mixed = [np.asarray(logsumexp([each[part] for each in members], axis=0) - math.log(MEMBERS)) for part in (0, 1)]
            scores.add_bounded("ensemble", at, mixed)
            scores.add_calibrations("ensemble", at, mixed)
    return kept


def _corrected(rows: Rows, kept: Kept, base: int, at: int, tables: list[np.ndarray], scores: Scores) -> None:
    """Score corrections of the logit-adjusted net `base` at the population `at`."""
    rho, y, pi = kept.sampling.double().numpy(), rows.y_valid.numpy(), scores.populations[at]
    own = kept.table(rows.x, [base]).exp()[:, 0]
    in_sample = sum(share * own[rows.y == k].mean(0).numpy() for k, share in enumerate(rho))
    scores.add("Prior2Posterior", at, (moved(moved(each, pi, rho), in_sample, pi) for each in tables))
    others = moved(kept.table(rows.unlabelled[at], [base])[:, 0].numpy(), rho, pi) if at in rows.unlabelled else None
    scores.add_calibrations("", at, tables, others)
    weights = len(y) * pi[y] / np.bincount(y, minlength=len(pi))[y]
    at_pi = Calibration("affine", *maximise(HeldOut(tables[0], y, None, weights), "affine", 1.0), pi)
    scores.add("affine, fitted at π", at, [at_pi.apply(each) for each in tables])
    if kept.nets.kind == "linear" and len(pi) == 2:
        spread = laplace_spread(rows, kept, base)
        scores.add("Laplace", at, (averaged(t, spread(x)) for t, x in zip(tables, (rows.x_valid, rows.x_test), strict=True)))
    if others is not None:
        scores.add_matched("mean matching", at, tables, others)
        if at == 0:
            held_out = torch.from_numpy(tables[0]), rows.y_valid
            scores.shift = label_shift_test(torch.from_numpy(others), held_out).p_value


def laplace_spread(rows: Rows, kept: Kept, place: int) -> Callable[[Tensor], np.ndarray]:
    """Return a function x → standard deviation of the log-odds, by Laplace's approximation of the penalised likelihood."""
    design = F.pad(rows.x.double(), (0, 1), value=1.0)
    p = kept.table(rows.x, [place])[:, 0, 1].exp()
    share = (len(rows.y) / 2 / torch.bincount(rows.y).double())[rows.y]  # rows of either class weigh the same
    prior = 2 * kept.decays[place] * len(rows.y) * torch.ones(design.shape[1]).double()
    prior[-1] = 1e-6  # the bias is free
    factor = torch.linalg.cholesky((design * (share * p * (1 - p))[:, None]).T @ design + torch.diag(prior))

    def spread(x: Tensor) -> np.ndarray:
        solved = torch.linalg.solve_triangular(factor, F.pad(x.double(), (0, 1), value=1.0).T, upper=False)
        return np.asarray(solved.square().sum(0).sqrt().numpy())

    return spread


def averaged(table: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Return log E[p] where the log-odds are normal around those of the table, by Gauss–Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    z = (table[:, 1] - table[:, 0])[:, None] + spread[:, None] * nodes
    logs = [logsumexp(-np.logaddexp(0, sign * z), axis=1, b=weights / weights.sum()) for sign in (1, -1)]
    return np.stack(logs, 1)


def score_natural(kind: Kind, rows: Rows, seed: int, scores: Scores) -> None:
    """Train on as many rows as they are met, by cross-entropy, and score that as it is, and moved to each population."""
    kept = fit(kind, rows, [Job(LOGIT_ADJUSTED, None, decay) for decay in DECAYS[kind]], seed, natural=True)
    rho = kept.sampling.double().numpy()
    valid, test = (kept.table(x).numpy() for x in (rows.x_valid, rows.x_test))
    first = kept.names.index((LOGIT_ADJUSTED, 0, 0))
    for place, (_, at, _) in enumerate(kept.names):
        scores.add("natural rows", at, (moved(each[:, place], rho, scores.populations[at]) for each in (valid, test)))
        if at:
            scores.add("natural rows, as is", at, (valid[:, first], test[:, first]))


def can_stream(rows: Rows) -> bool:
    """Return whether minibatches of streams.py would have as many rows of either class."""
    counts = torch.bincount(rows.y)
    return len(counts) == 2 and (int(counts.min()) >= LABELLED or int(counts[0]) == int(counts[1]))


def score_streams(kind: Kind, rows: Rows, seed: int, scores: Scores, at: int, kept: Kept) -> None:
    """Train with the unlabelled rows of a population as one more stream, two classes; score it plain, guarded, matched.

    Once with mass √(N_u/n) and no evidence of π, and once as `InformationGainClassifier` does: the rows of the minibatch, and
    evidence that their mean prediction is π.
    """
    pi = scores.populations[at]
    parts = rows.x, rows.y, rows.x_valid, rows.y_valid, rows.unlabelled[at], rows.x_test, rows.y_test
    draw = streams.Draw(*parts, float(pi[1]))
    plain_jobs = [streams.Job("stream", "root", math.sqrt(draw.ratio), float(pi[1]))]
    plain_jobs += [streams.Job("evidence", f"{PEOPLE:g}", PEOPLE, float(pi[1]))]
    jobs = streams.with_decays(plain_jobs, DECAYS[kind])
    found = streams.fit(kind, draw, jobs, seed)
    place, rho = kept.names.index((LOGIT_ADJUSTED, at, 0)), kept.sampling.double().numpy()
    plain = [moved(kept.table(x, [place])[:, 0].numpy(), rho, pi) for x in (rows.x_valid, rows.x_test, rows.unlabelled[at])]
    for name, guarded, method in (
        ("unlabelled, root", "unlabelled, guarded", "stream"),
        ("unlabelled, evidence", "unlabelled, evidence, guarded", "evidence"),
    ):
        own = [number for number, job in enumerate(jobs) if job.method == method]
        best = max(own, key=lambda number: float(found.score[number]))
        tables = [log_table(z[:, best]).numpy() for z in (found.z_valid, found.z_test, found.z_unlabelled)]
        scores.add_bounded(name, at, tables[:2])
        if method == "evidence":
            scores.add_matched(f"{name}, matched", at, tables[:2], tables[2])
            scores.add_calibrations(name, at, tables[:2], tables[2])
        *two, others = tables if scores.score(name, at) >= scores.score(LOGIT_ADJUSTED, at) else plain
        scores.add_bounded(guarded, at, two)
        scores.add_matched(f"{guarded}, matched", at, two, others)
        scores.add_calibrations(guarded, at, two, others)


# --- boosting: leaves and rounds are chosen on the validation rows, for each loss and population separately ---


class Boosted(NamedTuple):
    """A booster of LightGBM with its rounds, and what is added to its raw scores so that they are at the mix ρ of its rows."""

    booster: Any
    offset: np.ndarray
    leaves: int
    rounds: int

    def at(self, x: np.ndarray, rho: np.ndarray, pi: np.ndarray) -> np.ndarray:
        """Return log p_π(k|x)."""
        raw = np.asarray(self.booster.predict(x, raw_score=True, num_iteration=self.rounds))
        logits = np.stack([np.zeros(len(raw)), raw], 1) if raw.ndim == 1 else raw
        return moved(np.asarray(log_softmax(logits + self.offset, axis=1)), rho, pi)


class Trees:
    """Boosters on some labelled rows, and the same validation and test rows for all."""

    def __init__(self, x: Tensor, y: Tensor, rows: Rows, scores: Scores) -> None:
        self.x, self.y, self.scores = x.numpy(), y.numpy(), scores
        self.parts = rows.x_valid.numpy(), rows.x_test.numpy()
        self.rho, self.fewest = np.bincount(self.y) / len(self.y), min(20, len(self.y) // 20)

    def train(self, options: dict[str, Any], offset: np.ndarray, **data: Any) -> list[Boosted]:
        found = []
        for leaves in LEAVES:
            params = {"num_leaves": leaves, "num_threads": 1, "verbosity": -1, "seed": 0, "min_data_in_leaf": self.fewest}
            rows = lgb.Dataset(self.x, self.y, free_raw_data=False, **data)
            booster = lgb.train(params | options, rows, num_boost_round=max(ROUNDS))
            found += [Boosted(booster, offset, leaves, rounds) for rounds in ROUNDS]
        return found

    def builtin(self, weights: np.ndarray | None = None) -> list[Boosted]:
        """Train by cross-entropy, each class weighted; the scores are at the weighted mix, from which they are moved to ρ."""
        rho, size = self.rho, len(self.rho)
        objective = {"objective": "binary"} if size == 2 else {"objective": "multiclass", "num_class": size}
        seen = rho if weights is None else rho * weights / (rho * weights).sum()
        own = None if weights is None else (weights / (rho @ weights))[self.y]
        return self.train(objective, np.log(rho) - np.log(seen), weight=own)

    def gained(self, pi: np.ndarray) -> list[Boosted]:
        """Train by the information gain of two classes, κ = 0, started at π."""
        objective = InformationGainObjective(Prevalence(pi.tolist(), sampling=self.rho.tolist(), evidence=0.0))
        return self.train({"objective": objective}, np.log(self.rho), init_score=np.full(len(self.y), np.log(pi[1] / pi[0])))

    def best(self, boosted: Sequence[Boosted], pi: np.ndarray) -> Boosted:
        """Return the leaves and rounds of the best expected log-likelihood at π on the validation rows."""
        rows = self.scores.valid_rows

        def score(candidate: Boosted) -> float:
            log_p = candidate.at(self.parts[0], self.rho, pi)[np.arange(len(rows.labels)), rows.labels]
            return expected_gain(log_p, rows, pi)[0]

        return max(boosted, key=score)

    def tables(self, best: Boosted, pi: np.ndarray) -> list[np.ndarray]:
        return [best.at(x, self.rho, pi) for x in self.parts]


def score_boosting(rows: Rows, scores: Scores, trained_at: Sequence[int]) -> None:
    """Train and score every loss and correction."""
    trees, natural = Trees(rows.x, rows.y, rows, scores), Trees(rows.x_natural, rows.y_natural, rows, scores)
    rho = trees.rho
    free = {LOGIT_ADJUSTED: trees.builtin()} | ({GAIN: trees.gained(scores.populations[0])} if len(rho) == 2 else {})
    as_met = natural.builtin() if len(np.unique(natural.y)) == len(rho) else None
    for at, pi in enumerate(scores.populations):
        own = free | {"weighted": trees.builtin(pi / rho)}
        own |= {"half weighted": trees.builtin(np.sqrt(pi / rho))} if at in trained_at else {}
        best = {name: trees.best(each, pi) for name, each in own.items()}
        of = {name: trees.tables(each, pi) for name, each in best.items()}
        for name, tables in of.items():
            (scores.add_bounded if name in BOUNDED else scores.add)(name, at, tables)
        pooled = [name for name in (LOGIT_ADJUSTED, "weighted", GAIN) if name in own]
        others = {name: best[name].at(rows.unlabelled[at].numpy(), rho, pi) for name in pooled} if at in rows.unlabelled else {}
        scores.add_calibrations("", at, of[LOGIT_ADJUSTED], others.get(LOGIT_ADJUSTED))
        if others:
            scores.add_matched("mean matching", at, of[LOGIT_ADJUSTED], others[LOGIT_ADJUSTED])
        mixed = [pooled_log_odds([of[name][part] for name in pooled]) for part in (0, 1)]
        scores.add_calibrations("pooled", at, mixed, pooled_log_odds([*others.values()]) if others else None)
        if as_met is not None:
            scores.add("natural rows", at, natural.tables(natural.best(as_met, pi), pi))
            if at:
                first = natural.best(as_met, scores.populations[0])
                scores.add("natural rows, as is", at, natural.tables(first, natural.rho))
    first = trees.best(free[LOGIT_ADJUSTED], scores.populations[0])
    options: dict[str, Any] = {"num_leaves": first.leaves, "n_estimators": first.rounds, "min_child_samples": trees.fewest}
    scores.add_classifiers(lgb.LGBMClassifier(**options, n_jobs=1, verbose=-1, random_state=0), rows, trained_at)
