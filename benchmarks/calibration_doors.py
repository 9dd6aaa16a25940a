"""One calibration, several doors: on the same held-out rows they give the same probabilities.

A classifier is trained on one third of a data set, calibrated on the second, and moved to a population; probabilities of the
last third are compared. The doors: `rightloss.calibration.fit_calibration`, the same by its name in `rightloss.shift`, and
`PrevalenceCorrectedClassifier` around the frozen classifier. And `rightloss fit` on the first two thirds, by each of its
pipelines, against `PrevalenceCorrectedClassifier(method="auto")` around the same pipeline with the same folds. Prints the
largest difference by set and kind; "π" where the model is no better than always answering π, and so does that.

    python benchmarks/calibration_doors.py
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd
from data_sets import load
from sklearn.base import clone
from sklearn.datasets import load_digits, load_wine
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import PredefinedSplit, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import rightloss as rl
from rightloss import calibration, shift
from rightloss.sklearn import PrevalenceCorrectedClassifier
from rightloss.tabular import fit_table

Rows = tuple[np.ndarray, np.ndarray]
Door = Callable[[Any, Rows, np.ndarray, str, np.ndarray], np.ndarray]
LARGEST = 1e-8  # difference of probabilities
TARGETS = {"OJ": "Purchase", "Smarket": "Direction", "Weekly": "Direction", "College": "Private", "Carseats": "US"}


def data_sets() -> Iterator[tuple[str, Rows]]:
    """Yield ten data sets with two to ten classes."""
    for name in ("Default", "Caravan", "breast cancer"):
        yield name, (load(name).x, load(name).y)
    for name, target in TARGETS.items():
        frame = pd.read_csv(str(files("ISLP") / f"data/{name}.csv")).drop(columns=["Today", "Unnamed: 0"], errors="ignore")
        x = pd.get_dummies(frame.drop(columns=target), drop_first=True).to_numpy(float)
        yield name, (x, np.unique(frame[target], return_inverse=True)[1])
    yield "wine", load_wine(return_X_y=True)
    yield "digits", load_digits(return_X_y=True)


def by_function(fit: Callable[..., Any]) -> Door:
    """Return the door of `fit_calibration`: calibrate, then move from the mix of the held-out labels to π."""

    def predict(model: Any, held_out: Rows, x: np.ndarray, kind: str, population: np.ndarray) -> np.ndarray:
        fitted = fit(model.predict_log_proba(held_out[0]), held_out[1], kind)
        return np.exp(rl.retarget(fitted(model.predict_log_proba(x)), fitted.sampling, population))

    return predict


def by_classifier(model: Any, held_out: Rows, x: np.ndarray, kind: str, population: np.ndarray) -> np.ndarray:
    """Return the predictions of the scikit-learn classifier around the same model."""
    return PrevalenceCorrectedClassifier(FrozenEstimator(model), population, method=kind).fit(*held_out).predict_proba(x)


def by_table(x: np.ndarray, y: np.ndarray, new: np.ndarray, population: np.ndarray, family: str) -> str:
    """Return the largest difference of `fit_table` to the classifier around its pipeline, and the correction."""
    frame, rest = (pd.DataFrame(each, columns=[f"column {j}" for j in range(x.shape[1])]) for each in (x, new))
    model = fit_table(frame.assign(y=y), target="y", population=population, candidates=[family])
    if model.fitted is None or model.folds is None:
        return "π"
    rows, others = (model.fitted.encode(each, model.columns) for each in (frame, rest))
    folds = PredefinedSplit(model.folds.numbers)
    other = PrevalenceCorrectedClassifier(clone(model.fitted), population, cv=folds).fit(rows, y)
    return f"{np.abs(other.predict_proba(others) - np.exp(model.predict_log_proba(rest))).max():.1e} {other.method_}"


DOORS: dict[str, Door] = {
    "calibration": by_function(calibration.fit_calibration),
    "shift": by_function(shift.fit_calibration),
    "sklearn": by_classifier,
}
KINDS, OTHERS, FAMILIES = ("affine", "beta"), list(DOORS)[1:], ("linear", "boosting")


def main() -> None:
    """Print a row per set; end with an error if two doors differ."""
    largest = 0.0
    print(
        f"{'data set':15}{'rows':>7}{'classes':>9}"
        + "".join(f"{kind + ', ' + door:>17}" for kind in KINDS for door in OTHERS)
        + "".join(f"{'fit, ' + family:>21}" for family in FAMILIES)
    )
    for name, (x, y) in data_sets():
        (_, first), (_, second), (_, third) = StratifiedKFold(3, shuffle=True, random_state=0).split(x, y)
        model = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=1000)).fit(
            x[first], y[first]
        )
        size = int(y.max()) + 1
        population = np.r_[1 - 0.05 * (size - 1), np.full(size - 1, 0.05)]
        differences = []
        for kind in KINDS:
            found = {
                door: predict(model, (x[second], y[second]), x[third], kind, population) for door, predict in DOORS.items()
            }
            differences += [np.abs(found[door] - found["calibration"]).max() for door in OTHERS]
        known = np.concatenate([first, second])
        tables = [by_table(x[known], y[known], x[third], population, family) for family in FAMILIES]
        largest = max(largest, *differences, *(float(each.split()[0]) for each in tables if each != "π"))
        cells = [f"{each:17.1e}" for each in differences] + [f"{each:>21}" for each in tables]
        print(f"{name:15}{len(y):7}{size:9}" + "".join(cells), flush=True)
    print(f"largest difference {largest:.1e}")
    sys.exit(int(largest > LARGEST))


if __name__ == "__main__":
    warnings.simplefilter("ignore", rl.PrevalenceWarning)  # of sets whose labels the columns say little about
    main()
