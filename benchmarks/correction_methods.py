"""Compare the corrections of `PrevalenceCorrectedClassifier` on populations whose classes are known.

Four populations (two Gaussians; a class in two parts; a weak signal; noise alone), 300 or 1,000 labelled rows with a tenth in
class 1, five classifiers, π = 0.1 and 0.001: 80 cells, 12 draws each. A figure is the expected log-likelihood at π on 6,000 new
rows, less that of always answering π, in units of the latter: 0 is no better than π, 1 is certain and right. "Weighted" are
calibrations fitted to rows weighted to π, instead of at the labels' mix. A correction is within noise of the best of the closed
form, affine and beta if the paired difference from it is less than 1.96 of its standard errors. The thresholds of "auto" were
chosen on other draws (seeds 0 to 7) of the same populations. Writes correction_methods.md: a row per method and one per cell.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from imblearn.pipeline import make_pipeline
from imblearn.under_sampling import RandomUnderSampler
from lightgbm import LGBMClassifier
from report import folder, table
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

from rightloss import PrevalenceWarning
from rightloss.predictive import retarget
from rightloss.sklearn.corrected import PrevalenceCorrectedClassifier
from rightloss.sklearn.logit_calibration import CalibrationMethod, calibrate_logits, flattened
from rightloss.sklearn.method_choice import HeldOutRows, choose_method, score_methods
from rightloss.sklearn.out_of_fold import folds_of

DRAWS, FIRST_SEED, NEW_ROWS, RATE = 12, 1000, 6000, 0.1
CALIBRATIONS: tuple[CalibrationMethod, ...] = ("affine", "beta")
CORRECTIONS = ("closed_form", *CALIBRATIONS)


def forest(**settings: Any) -> Any:
    return RandomForestClassifier(30, random_state=0, **settings)


CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "linear, balanced": lambda: LogisticRegression(class_weight="balanced"),
    "naive Bayes": GaussianNB,
    "forest, balanced": lambda: forest(class_weight="balanced"),
    "forest, undersampled": lambda: make_pipeline(RandomUnderSampler(random_state=0), forest()),
    "LightGBM, scale_pos_weight=9": lambda: LGBMClassifier(n_estimators=30, scale_pos_weight=9, n_jobs=1, verbose=-1),
}
SHIFTS = {"two Gaussians": (1.2, 1.2), "two parts": (0.0, 0.8), "weak": (0.5, 0.0), "noise": (0.0, 0.0)}


def draw(population: str, n: int, rate: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    y = (rng.random(n) < rate).astype(int)
    X = rng.normal(size=(n, 6))
    if population == "two parts":
        X[:, 0] = np.where(y == 1, 0.6 * X[:, 0] + rng.choice([-1.5, 1.5], n), X[:, 0])
    X[:, :2] += y[:, None] * np.array(SHIFTS[population])
    return X, y


def expected_log_likelihood(log_probs: np.ndarray, y: np.ndarray, population: np.ndarray) -> float:
    return float(sum(share * log_probs[y == k, k].mean() for k, share in enumerate(population)))


def predictions(estimator: Any, X: np.ndarray, y: np.ndarray, new: np.ndarray) -> tuple[HeldOutRows, np.ndarray]:
    """Out-of-fold predictions and those on new rows, both at the labels' mix: the fits serve all corrections and every π."""
    model = PrevalenceCorrectedClassifier(estimator, method="affine").fit(X, y)
    folds = np.zeros(len(y), dtype=int)
    for number, (_, test) in enumerate(folds_of(5, y, np.ones(len(y)), None).split(X, y)):
        folds[test] = number
    held, fresh = (
        np.asarray(retarget(each, model.sampling_, model.population_)) for each in (model._held_out[0], model._log_probs(new))
    )
    return HeldOutRows(held, y, np.ones(len(y)), folds, model.population_, model.population_), fresh


def corrections(rows: HeldOutRows, fresh: np.ndarray) -> dict[str, np.ndarray]:
    """Predictions on new rows at the population of `rows`, by correction; "auto" is one of them."""
    found = {"closed_form": rows.at_population(fresh)}
    weights = (rows.population / rows.data)[rows.labels]
    for method in CALIBRATIONS:
        fitted = calibrate_logits(rows.log_probs, rows.labels, rows.weights, method)
        found[method] = rows.at_population(fitted(fresh))
        at_population = rows.at_population(rows.log_probs)
        there = calibrate_logits(at_population, rows.labels, weights * len(weights) / weights.sum(), method)
        found[f"{method}, weighted"] = there(rows.at_population(fresh))
    found["flat"] = rows.at_population(flattened(rows.log_probs, rows.data, rows.weights)(fresh))
    found["auto"] = found[choose_method(score_methods(rows, {"closed_form": rows.at_population(rows.log_probs)}), rows)]
    return found


def gains(name: str, population: str, n: int, seed: int) -> dict[float, dict[str, float]]:
    """The gain of each correction over always answering π, by π."""
    rng = np.random.default_rng(seed)
    X, y = draw(population, n, RATE, rng)
    new, truth = draw(population, NEW_ROWS, 0.5, rng)
    rows, fresh = predictions(CLASSIFIERS[name](), X, y, new)
    result = {}
    for rate in (RATE, 0.001):
        pi = np.array([1 - rate, rate])
        always = float(pi @ np.log(pi))
        found = corrections(replace(rows, population=pi), fresh)
        result[rate] = {each: 1 - expected_log_likelihood(log_probs, truth, pi) / always for each, log_probs in found.items()}
    return result


def check_that_auto_is_that_of_the_class() -> None:
    rng = np.random.default_rng(0)
    X, y = draw("two Gaussians", 300, RATE, rng)
    model = PrevalenceCorrectedClassifier(forest(class_weight="balanced"), 0.001).fit(X, y)
    rows, fresh = predictions(forest(class_weight="balanced"), X, y, X)
    found = corrections(replace(rows, population=model.population_), fresh)
    np.testing.assert_allclose(model.predict_log_proba(X), found["auto"], atol=1e-8)


def error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def main() -> None:
    out = folder()
    warnings.simplefilter("ignore", PrevalenceWarning)
    check_that_auto_is_that_of_the_class()
    cells: dict[tuple[str, int, str, float], dict[str, np.ndarray]] = {}
    for population in SHIFTS:
        for n in (300, 1000):
            for name in CLASSIFIERS:
                drawn = [gains(name, population, n, FIRST_SEED + seed) for seed in range(DRAWS)]
                for rate in drawn[0]:
                    methods = drawn[0][rate]
                    cells[population, n, name, rate] = {m: np.array([each[rate][m] for each in drawn]) for m in methods}
    methods = list(next(iter(cells.values())))
    summary = []
    for method in methods:
        near = below = 0
        for cell in cells.values():
            best = max(CORRECTIONS, key=lambda each, cell=cell: cell[each].mean())
            near += (cell[method] - cell[best]).mean() >= -1.96 * error(cell[method] - cell[best])
            below += cell[method].mean() < -0.002 and cell[method].mean() + 1.96 * error(cell[method]) < 0
        means = np.array([cell[method].mean() for cell in cells.values()])
        summary.append(
            [method, f"{means.mean():+.4f}", f"{means.min():+.3f}", f"{near} of {len(cells)}", f"{below} of {len(cells)}"]
        )
    header = ["method", "mean gain", "worst cell", "within noise of the best", "clearly below answering π"]
    pages = [table(header, summary)]
    rows = [
        [population, str(n), name, f"{rate:g}", *(f"{cell[m].mean():+.3f} ± {error(cell[m]):.3f}" for m in methods)]
        for (population, n, name, rate), cell in cells.items()
    ]
    pages.append(table(["population", "rows", "classifier", "π", *methods], rows))
    apart = [
        (cell[m] - cell[f"{m}, weighted"]).mean() / error(cell[m] - cell[f"{m}, weighted"])
        for cell in cells.values()
        for m in CALIBRATIONS
        if error(cell[m] - cell[f"{m}, weighted"]) > 0
    ]
    pages.append(
        f"Calibrated at the labels' mix against weighted to π: better by two standard errors in {sum(z > 2 for z in apart)}, "
        f"worse in {sum(z < -2 for z in apart)} of {len(apart)} comparisons.\n"
    )
    page = "\n".join(pages)
    (out / "correction_methods.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
