"""Compare the fit times of our linear model and network with those of scikit-learn's `LogisticRegression` and `MLPClassifier`.

Standardised normal features, of which two tell the classes apart; both at the same `C`, or the same layers, minibatches and
number of epochs, with the settings that are the defaults elsewhere; processor time on one thread, in turn, medians. Writes
linear_speed.md: a row per size, milliseconds and ratios.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import time
import warnings
from typing import Any

import numpy as np
import torch
from report import folder, table
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

from rightloss import Prevalence
from rightloss.sklearn import InformationGainClassifier, InformationGainMLPClassifier

LINEAR = [(500, 5, 2), (5_000, 20, 2), (100_000, 30, 2), (5_000, 200, 2), (1_000, 10, 3), (50_000, 20, 5), (2_000, 1_000, 2)]
NETS = [(2_000, 10, 2, (50,)), (4_000, 30, 2, (100,)), (4_000, 30, 5, (100,)), (10_000, 100, 2, (100, 50))]
EPOCHS, REPEATS = 10, 11


def rows(n: int, d: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw features and labels."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, k, n)
    x = rng.normal(size=(n, d))
    x[:, 0] += y
    x[:, 1] -= y / 2
    return (x - x.mean(0)) / x.std(0), y


def compared(x: np.ndarray, y: np.ndarray, theirs: Any, *ours: Any) -> list[str]:
    """Return the cells of a row: milliseconds of their fit, then the ratios of ours, each the median of fits in turn."""
    times: list[list[float]] = [[] for _ in (theirs, *ours)]
    for repeat in range(REPEATS + 1):
        for model, found in zip((theirs, *ours), times, strict=True):
            start = time.process_time()
            clone(model).fit(x, y)
            if repeat:
                found.append(time.process_time() - start)
    first, *others = (statistics.median(found) for found in times)
    return [f"{1e3 * first:.1f}", *(f"{other / first:.2f}" for other in others)]


def linear_row(n: int, d: int, k: int) -> list[str]:
    """Compare linear models at the default settings."""
    falling = np.arange(k, 0, -1) ** 3.0
    x, y = rows(n, d, k)
    prevalence = Prevalence.from_labels(y, falling / falling.sum())
    weights = dict(enumerate(prevalence.weights.tolist()))
    plain = compared(x, y, LogisticRegression(), InformationGainClassifier(prevalence.population))
    ours = InformationGainClassifier(prevalence.population, loss="weighted")
    return [f"{n:,} × {d:,}", str(k), *plain, *compared(x, y, LogisticRegression(class_weight=weights), ours)]


def network_row(n: int, d: int, k: int, sizes: tuple[int, ...]) -> list[str]:
    """Compare networks over the same number of epochs; κ = ½ takes the marginal into the loss."""
    settings: dict[str, Any] = {"hidden_layer_sizes": sizes, "max_iter": EPOCHS, "n_iter_no_change": 1000, "random_state": 0}
    ours = [InformationGainMLPClassifier(np.full(k, 1 / k), evidence=kappa, **settings) for kappa in (1.0, 0.5)]
    return [f"{n:,} × {d:,}", str(k), str(sizes), *compared(*rows(n, d, k), MLPClassifier(**settings), *ours)]


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    out = folder()
    linear, nets = [linear_row(*size) for size in LINEAR], [network_row(*size) for size in NETS]
    words = f"Made by `python benchmarks/linear_speed.py`: medians of {REPEATS} fits, processor time on one thread.\n\n"
    header = ["rows × features", "classes", "LogisticRegression, ms", "information_gain, ratio"]
    header += ["LogisticRegression with class_weight, ms", "weighted, ratio"]
    more = ["rows × features", "classes", "hidden layers", f"MLPClassifier, {EPOCHS} epochs, ms"]
    more += ["information_gain, ratio", "information_gain with its marginal (κ = ½), ratio"]
    page = f"{words}{table(header, linear)}\n{table(more, nets)}"
    print(page)
    (out / "linear_speed.md").write_text(page)


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
