"""Correct the predictions of trained nets in every way that needs no new training, and score them at every population.

Stage: `Rows`, `Kept` nets → `Scores`: a row of figures per method and population.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from claim_methods import DECAYS, LOGIT_ADJUSTED, MEMBERS, Job, Kept, Rows, fit
from scipy.special import log_softmax, logsumexp
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from torch import Tensor
from unlabelled_methods import LABELLED, Draw, Kind, matched
from unlabelled_methods import Job as StreamJob
from unlabelled_methods import fit as fit_streams

from rightloss.calibration import Calibration, fit_mean, smooth_likelihoods
from rightloss.calibration.held_out import HeldOut
from rightloss.calibration.model import CalibrationKind, fit_slopes, maximise
from rightloss.shift import label_shift_test
from rightloss.sklearn import PrevalenceCorrectedClassifier

FOLDS, CLASSIFIER_FOLDS = 2, 5
METHODS: tuple[CalibrationKind, ...] = ("affine", "beta")
FIGURES = (
    "likelihood",
    "auc",
    "mean",
    "valid",
    "valid_over_guess_se",
    "valid_over_base_se",
    "valid_over_own_se",
    "step",
    "slope",
)
STREAM = "unlabelled, root"
EVIDENCE = "unlabelled, evidence"
PEOPLE = 3.0  # ε of the evidence on unlabelled rows, as `InformationGainClassifier` takes it
GUARDED = "unlabelled, guarded"
BOUNDED = (LOGIT_ADJUSTED, "weighted", "gain, r = ρ, κ = 0")  # also scored with capped and with smoothed likelihood ratios
POOLED = (LOGIT_ADJUSTED, "weighted", "by uncertainty", "gain, r = ρ, κ = 0")  # whose log-odds are averaged


class Validation(NamedTuple):
    """A method's log-likelihood of each validation row, and its score at π."""

    rows: np.ndarray
    score: float


class Scores:
    """The figures of every method at every population, with the test rows weighted by class."""

    def __init__(self, rows: Rows) -> None:
        self.y_valid, self.y_test = rows.y_valid.numpy(), rows.y_test.numpy()
        self.populations = rows.populations.double().numpy()
        self.counts = torch.bincount(rows.y).numpy()
        self.names: list[tuple[str, int]] = []
        self.figures: list[list[float]] = []
        self.valid: dict[tuple[str, int], Validation] = {}
        self.shift = math.nan  # p-value of `label_shift_test`

    def add(
        self, name: str, at: int, tables: Iterable[np.ndarray], step: int = -1, slope: float = 1.0, own_name: str | None = None
    ) -> None:
        """Score tables log p_π(k|x) of the validation and of the test rows.

        Args:
            name: of the method.
            at: place of the population.
            tables: of the validation and of the test rows.
            step: that was kept.
            slope: of a calibration.
            own_name: the method before its likelihood ratios were bounded.
        """
        valid, test = tables
        pi = self.populations[at]
        own = valid[np.arange(len(valid)), self.y_valid]
        self.valid[name, at] = Validation(own, self.expected(own, self.y_valid, at)[0])
        base = self.valid.get((LOGIT_ADJUSTED, at), self.valid[name, at]).rows
        before = self.valid[own_name or name, at].rows
        log_p = test[np.arange(len(test)), self.y_test]
        mean = sum(share * np.exp(test[self.y_test == k, -1]).mean() for k, share in enumerate(pi))
        errors = [self.expected(own - other, self.y_valid, at)[1] for other in (np.log(pi)[self.y_valid], base, before)]
        odds = test[:, -1] - logsumexp(test[:, :-1], axis=1)
        likelihood = self.expected(log_p, self.y_test, at)[0]
        self.names.append((name, at))
        self.figures.append([likelihood, auc(odds, self.y_test), mean, self.valid[name, at].score, *errors, step, slope])

    def add_bounded(self, name: str, at: int, tables: Iterable[np.ndarray], step: int = -1, slope: float = 1.0) -> None:
        """Score tables as they are, and with capped and with smoothed likelihood ratios."""
        tables = list(tables)
        self.add(name, at, tables, step, slope)
        self.add(f"{name}, capped", at, [self.capped(each, at) for each in tables], step, slope, name)
        self.add(f"{name}, smoothed", at, [self.smoothed(each, at) for each in tables], step, slope, name)

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

    def expected(self, values: np.ndarray, y: np.ndarray, at: int) -> tuple[float, float]:
        """Return Σ_k π_k × mean over class k, and its standard error."""
        parts = [(share, values[y == k]) for k, share in enumerate(self.populations[at])]
        error = sum(share**2 * own.var(ddof=1) / len(own) for share, own in parts if len(own) > 1)
        return float(sum(share * own.mean() for share, own in parts)), math.sqrt(error)


def auc(odds: np.ndarray, y: np.ndarray) -> float:
    """Return the area under the ROC curve of the last class against the others, ties counted half."""
    positive = y == y.max()
    count = int(positive.sum())
    total = rankdata(odds)[positive].sum() - count * (count + 1) / 2
    return float(total / (count * (len(y) - count)))


def moved(log_p: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return predictions at the mix `start` as predictions at the mix `end`."""
    return np.asarray(log_softmax(log_p + np.log(end) - np.log(start), axis=1))


class Calibrated(NamedTuple):
    """A calibration fitted to the validation rows at their own mix, applied to any rows, and moved to π."""

    valid: np.ndarray  # cross-fitted on request
    test: np.ndarray
    slope: np.ndarray
    others: np.ndarray | None


def calibrated(
    tables: list[np.ndarray], y: np.ndarray, pi: np.ndarray, method: CalibrationKind, crossed: bool = True
) -> Calibrated:
    """Calibrate as `PrevalenceCorrectedClassifier` does, here on the validation rows; tables are at π."""
    data = np.bincount(y, minlength=len(pi)) / len(y)
    at_data, *rest = (moved(each, pi, data) for each in tables)
    whole = fit_slopes(HeldOut(at_data, y), method)
    folds, valid = _folds(y), whole.apply(at_data)
    for fold in range(FOLDS if crossed and np.bincount(y).min() >= 2 * FOLDS else 0):
        out = folds == fold
        valid[out] = fit_slopes(HeldOut(at_data[~out], y[~out]), method).apply(at_data[out])
    test, *others = (moved(whole.apply(each), data, pi) for each in rest)
    return Calibrated(moved(valid, data, pi), test, whole.slopes, others[0] if others else None)


def _folds(y: np.ndarray) -> np.ndarray:
    """Return the fold of each row, each class dealt out in turn."""
    folds = np.empty(len(y), dtype=np.int64)
    for k in np.unique(y):
        folds[y == k] = np.arange(int((y == k).sum())) % FOLDS
    return folds


def score_nets(rows: Rows, kept: Kept, scores: Scores, ensembles: bool) -> None:
    """Score the nets as they are, and after every correction."""
    rho = kept.sampling.double().numpy()
    valid, test = (kept.table(x).numpy() for x in (rows.x_valid, rows.x_test))
    place_of = {name: place for place, name in enumerate(kept.names)}
    for at, pi in enumerate(scores.populations):
        base = place_of[LOGIT_ADJUSTED, at, 0]
        order = sorted(
            (each for each in kept.names if each[1] == at and each[2] == 0), key=lambda each: each[0] != LOGIT_ADJUSTED
        )
        for name in order:
            place = place_of[name]
            tables = [moved(each[:, place], rho, pi) for each in (valid, test)]
            add = scores.add_bounded if name[0] in BOUNDED else scores.add
            add(name[0], at, tables, int(kept.steps[place]))
            if name[0] in ("focal", "weighted", "half weighted") and at in rows.unlabelled:
                add_calibrated(name[0], "affine", at, tables, scores, crossed=False)
        pool = [place_of[name, at, 0] for name in POOLED]
        inputs = [each[:, pool] for each in (valid, test)]
        inputs += [kept.table(rows.unlabelled[at], pool).numpy()] if at in rows.unlabelled else []
        mixed = [pooled_log_odds([moved(each[:, place], rho, pi) for place in range(len(pool))]) for each in inputs]
        for method in METHODS:
            add_calibrated("pooled", method, at, mixed[:2], scores, others=mixed[2] if len(mixed) > 2 else None)
        tables = [moved(each[:, base], rho, pi) for each in (valid, test)]
        _corrected(rows, kept, base, at, pi, tables, scores)
        if ensembles:
            places = [place_of[LOGIT_ADJUSTED, at, member] for member in range(MEMBERS)]
            mixed = [_mixture([moved(each[:, place], rho, pi) for place in places]) for each in (valid, test)]
            scores.add_bounded("ensemble", at, mixed)
            for method in METHODS:
                add_calibrated("ensemble", method, at, mixed, scores)


def _corrected(rows: Rows, kept: Kept, base: int, at: int, pi: np.ndarray, tables: list[np.ndarray], scores: Scores) -> None:
    """Score corrections of the logit-adjusted net `base` at the population `at`."""
    rho, y = kept.sampling.double().numpy(), rows.y_valid.numpy()
    own = kept.table(rows.x, [base]).exp()[:, 0]
    in_sample = sum(share * own[rows.y == k].mean(0).numpy() for k, share in enumerate(rho))
    tables_rho = [moved(each, pi, rho) for each in tables]
    scores.add("Prior2Posterior", at, (moved(each, in_sample, pi) for each in tables_rho))
    others = moved(kept.table(rows.unlabelled[at], [base])[:, 0].numpy(), rho, pi) if at in rows.unlabelled else None
    for method in METHODS:
        add_calibrated("", method, at, tables, scores, others)
    weights = len(y) * pi[y] / np.bincount(y, minlength=len(pi))[y]
    at_pi = Calibration("affine", *maximise(HeldOut(tables[0], y, None, weights), "affine", 1.0), pi)
    scores.add("affine, fitted at π", at, [at_pi.apply(each) for each in tables])
    if kept.nets.kind == "linear" and len(pi) == 2:
        spread = laplace_spread(rows, kept, base)
        scores.add("Laplace", at, (averaged(t, spread(x)) for t, x in zip(tables, (rows.x_valid, rows.x_test), strict=True)))
    if others is not None:
        add_matched("mean matching", at, tables, others, scores)
        if at == 0:
            held_out = torch.from_numpy(tables[0]), rows.y_valid
            scores.shift = label_shift_test(torch.from_numpy(others), held_out).p_value


def add_calibrated(
    name: str, method: CalibrationKind, at: int, tables: list[np.ndarray], scores: Scores,
    others: np.ndarray | None = None, crossed: bool = True,
) -> None:  # fmt: skip
    """Score a calibration as "NAME, METHOD"; with unlabelled rows also with the intercept that makes their mean π."""
    tables = tables if others is None else [*tables, others]
    found = calibrated(tables, scores.y_valid, scores.populations[at], method, crossed)
    slope, title = float(found.slope[0]), f"{name}, {method}" if name else method
    scores.add_bounded(title, at, (found.valid, found.test), slope=slope)
    if found.others is not None:
        add_matched(f"{title}, matched", at, [found.valid, found.test], found.others, scores, slope)


def add_matched(name: str, at: int, tables: list[np.ndarray], others: np.ndarray, scores: Scores, slope: float = 1.0) -> None:
    """Score tables moved until the mean over the unlabelled rows is π, as they are, and capped or smoothed before."""
    by_mean = at_mean(others, scores.populations[at])
    scores.add(name, at, (by_mean(each) for each in tables), slope=slope)
    for title, bounded in {"capped": scores.capped, "smoothed": scores.smoothed}.items():
        by_mean = at_mean(bounded(others, at), scores.populations[at])
        scores.add(f"{name}, {title}", at, (by_mean(bounded(each, at)) for each in tables), slope=slope, own_name=name)


def at_mean(others: np.ndarray, pi: np.ndarray) -> Calibration:
    """Return the intercepts with which the mean of unlabelled predictions is π; by bisection for two classes."""
    if len(pi) > 2:
        return fit_mean(others, pi)
    odds = torch.from_numpy(others[:, 1] - others[:, 0])
    shift = float(matched(odds[:, None], float(pi[1]))[0])
    return Calibration("intercepts", np.ones(2), np.array([-shift / 2, shift / 2]), pi)


def pooled_log_odds(tables: list[np.ndarray]) -> np.ndarray:
    """Return the mean of log-odds."""
    return np.asarray(log_softmax(np.mean(tables, axis=0), axis=1))


def _mixture(tables: list[np.ndarray]) -> np.ndarray:
    return np.asarray(logsumexp(np.stack(tables), axis=0) - math.log(len(tables)))


def laplace_spread(rows: Rows, kept: Kept, place: int) -> Callable[[Tensor], np.ndarray]:
    """Return a function x → standard deviation of the log-odds, by Laplace's approximation of the penalised likelihood."""
    design = F.pad(rows.x.double(), (0, 1), value=1.0)
    p = kept.table(rows.x, [place])[:, 0, 1].exp()
    count = torch.bincount(rows.y).double()
    share = (len(rows.y) / 2 / count)[rows.y]  # rows of either class weigh the same, as in the minibatches
    prior = 2 * kept.decays[place] * len(rows.y) * torch.ones(design.shape[1]).double()
    prior[-1] = 1e-6  # the bias is free
    precision = (design * (share * p * (1 - p))[:, None]).T @ design + torch.diag(prior)
    factor = torch.linalg.cholesky(precision)

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


def score_classifiers(model: Any, rows: Rows, scores: Scores, trained_at: Sequence[int]) -> None:
    """Score `PrevalenceCorrectedClassifier` around a classifier, by method, on out-of-fold predictions of the labelled rows.

    Every method is without smoothing, and smoothed; "classifier, smoothing auto" is method="auto" with smoothing="auto".
    """
    x, y = rows.x.numpy(), rows.y.numpy()
    folds = list(StratifiedKFold(CLASSIFIER_FOLDS, shuffle=True, random_state=0).split(x, y))
    for method in ("auto", "beta", "affine", "closed_form"):
        corrected = None
        for at in trained_at:
            pi = scores.populations[at].tolist()
            if corrected is None or method == "auto":
                corrected = PrevalenceCorrectedClassifier(model, pi, method=method, smoothing="auto", cv=folds).fit(x, y)
            chosen, corrected.smoothing_ = corrected.smoothing_, False
            corrected.set_population(pi)
            tables = [np.asarray(corrected.predict_log_proba(each.numpy())) for each in (rows.x_valid, rows.x_test)]
            scores.add_bounded(f"classifier, {method.replace('_', ' ')}", at, tables)
            if method == "auto":
                tables = [scores.smoothed(each, at) for each in tables] if chosen else tables
                scores.add("classifier, smoothing auto", at, tables)


def linear_classifier(rows: Rows, kept: Kept) -> Any:
    """Return scikit-learn's logistic regression with the penalty that was best on the validation rows."""
    decay = kept.decays[kept.names.index((LOGIT_ADJUSTED, 0, 0))]
    return LogisticRegression(C=1 / (2 * decay * len(rows.y)), max_iter=1_000)


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


def score_streams(kind: Kind, rows: Rows, seed: int, scores: Scores, at: int, kept: Kept) -> None:
    """Train with the unlabelled rows of a population as one more stream, two classes; score it plain, guarded, matched.

    Once with mass √(N_u/n) and no evidence of π, and once as `InformationGainClassifier` does: the rows of the minibatch, and
    evidence that their mean prediction is π.
    """
    pi = scores.populations[at]
    parts = rows.x, rows.y, rows.x_valid, rows.y_valid, rows.unlabelled[at], rows.x_test, rows.y_test
    draw = Draw(*parts, float(pi[1]))
    jobs = [StreamJob("stream", "root", decay, math.sqrt(draw.ratio), float(pi[1])) for decay in DECAYS[kind]]
    jobs += [StreamJob("evidence", f"{PEOPLE:g}", decay, PEOPLE, float(pi[1])) for decay in DECAYS[kind]]
    found = fit_streams(kind, draw, jobs, seed)
    place, rho = kept.names.index((LOGIT_ADJUSTED, at, 0)), kept.sampling.double().numpy()
    inputs = rows.x_valid, rows.x_test, rows.unlabelled[at]
    plain = [moved(kept.table(x, [place])[:, 0].numpy(), rho, pi) for x in inputs]
    for name, guarded, method in ((STREAM, GUARDED, "stream"), (EVIDENCE, f"{EVIDENCE}, guarded", "evidence")):
        own = [number for number, job in enumerate(jobs) if job.method == method]
        best = max(own, key=lambda number: float(found.score[number]))
        tables = [_two(z[:, best]) for z in (found.z_valid, found.z_test, found.z_unlabelled)]
        scores.add_bounded(name, at, tables[:2])
        if name == EVIDENCE:
            add_matched(f"{name}, matched", at, tables[:2], tables[2], scores)
            for method in METHODS:
                add_calibrated(name, method, at, tables[:2], scores, tables[2])
        better = scores.valid[name, at].score >= scores.valid[LOGIT_ADJUSTED, at].score
        *two, others = tables if better else plain
        scores.add_bounded(guarded, at, two)
        add_matched(f"{guarded}, matched", at, two, others, scores)
        for method in METHODS:
            add_calibrated(guarded, method, at, two, scores, others)


def _two(z: Tensor) -> np.ndarray:
    z = z.double()
    return torch.stack([F.logsigmoid(-z), F.logsigmoid(z)], 1).numpy()


def can_stream(rows: Rows) -> bool:
    """Return whether minibatches of unlabelled_methods.py would have as many rows of either class."""
    counts = torch.bincount(rows.y)
    return len(counts) == 2 and (int(counts.min()) >= LABELLED or int(counts[0]) == int(counts[1]))
