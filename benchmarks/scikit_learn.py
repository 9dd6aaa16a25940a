"""Compare the times of scikit-learn and ours: to fit linear models and small networks, and to evaluate predictions.

*linear_speed*: standardised normal features, of which two tell the classes apart; both at the same `C`, or the same layers,
minibatches and number of epochs, with the settings that are the defaults elsewhere; processor time on one thread, in turn.

*evaluate_large*: `metrics.evaluate` with its intervals, on up to 10⁷ predictions, and scikit-learn's log-loss, Brier score,
AUC, accuracies and confusion matrix with sample weights, which are point values. To resample, it needs that time once per
resample.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from measuring import medians, peak_extra_bytes, shown, table, write_pages
from scipy.special import log_expit, log_softmax
from sklearn import metrics as sk
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

from rightloss import Prevalence
from rightloss.metrics import evaluate
from rightloss.sklearn import InformationGainClassifier, InformationGainMLPClassifier

LINEAR = [(500, 5, 2), (5_000, 20, 2), (100_000, 30, 2), (5_000, 200, 2), (1_000, 10, 3), (50_000, 20, 5), (2_000, 1_000, 2)]
NETS = [(2_000, 10, 2, (50,)), (4_000, 30, 2, (100,)), (4_000, 30, 5, (100,)), (10_000, 100, 2, (100, 50))]
EPOCHS, REPEATS = 10, 11
PREVALENCE, TIMES = 0.01, 3
SIZES = [(10_000, 2), (100_000, 2), (1_000_000, 2), (10_000_000, 2), (1_000_000, 5), (100_000, 100)]


def drawn(n: int, d: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw features and labels."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, k, n)
    x = rng.normal(size=(n, d))
    x[:, 0] += y
    x[:, 1] -= y / 2
    return (x - x.mean(0)) / x.std(0), y


def compared(x: np.ndarray, y: np.ndarray, theirs: Any, *ours: Any) -> list[str]:
    """Return the cells of a row: milliseconds of their fit, then the ratios of ours, each the median of fits in turn."""
    calls = {str(i): partial(each.fit, x, y) for i, each in enumerate((theirs, *ours))}
    first, *others = medians(calls, REPEATS, clock=time.process_time, warm_up=1).values()
    return [f"{1e3 * first:.1f}", *(f"{other / first:.2f}" for other in others)]


def linear_row(n: int, d: int, k: int) -> list[str]:
    """Compare linear models at the default settings."""
    falling = np.arange(k, 0, -1) ** 3.0
    x, y = drawn(n, d, k)
    prevalence = Prevalence.from_labels(y, falling / falling.sum())
    weights = dict(enumerate(prevalence.weights.tolist()))
    plain = compared(x, y, LogisticRegression(), InformationGainClassifier(prevalence.population))
    ours = InformationGainClassifier(prevalence.population, loss="weighted")
    return [f"{n:,} × {d:,}", str(k), *plain, *compared(x, y, LogisticRegression(class_weight=weights), ours)]


def network_row(n: int, d: int, k: int, sizes: tuple[int, ...]) -> list[str]:
    """Compare networks over the same number of epochs; κ = ½ takes the marginal into the loss."""
    settings: dict[str, Any] = {"hidden_layer_sizes": sizes, "max_iter": EPOCHS, "n_iter_no_change": 1000, "random_state": 0}
    ours = [InformationGainMLPClassifier(np.full(k, 1 / k), evidence=kappa, **settings) for kappa in (1.0, 0.5)]
    return [f"{n:,} × {d:,}", str(k), str(sizes), *compared(*drawn(n, d, k), MLPClassifier(**settings), *ours)]


def linear_speed() -> str:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    with threadpool_limits(1):
        linear, nets = [linear_row(*size) for size in LINEAR], [network_row(*size) for size in NETS]
    header = ["rows × features", "classes", "LogisticRegression, ms", "information_gain, ratio"]
    header += ["LogisticRegression with class_weight, ms", "weighted, ratio"]
    more = ["rows × features", "classes", "hidden layers", f"MLPClassifier, {EPOCHS} epochs, ms"]
    more += ["information_gain, ratio", "information_gain with its marginal (κ = ½), ratio"]
    return f"medians of {REPEATS} fits, processor time on one thread.\n\n{table(header, linear)}\n{table(more, nets)}"


def predictions(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return float64 log-probabilities and labels; with two classes, one in ten is in class 1."""
    generator = np.random.default_rng(0)
    if k > 2:
        y = generator.integers(k, size=n)
        logits = generator.standard_normal((n, k))
        logits[np.arange(n), y] += 2
        return log_softmax(logits, 1), y
    y = (generator.random(n) < 0.1).astype(np.int64)
    odds = generator.standard_normal(n) + 2 * y - 4
    return np.stack([log_expit(-odds), log_expit(odds)], 1), y


def scikit_learn(log_probs: np.ndarray, labels: np.ndarray) -> None:
    """Compute the same point values with scikit-learn, where it has them."""
    p, share = np.exp(log_probs[:, 1]), labels.mean()
    weights = np.where(labels == 1, PREVALENCE / share, (1 - PREVALENCE) / (1 - share))
    decided = p >= 0.5
    for figure, prediction in ((sk.log_loss, p), (sk.brier_score_loss, p), (sk.accuracy_score, decided)):
        figure(labels, prediction, sample_weight=weights)
    sk.roc_auc_score(labels, p)
    sk.balanced_accuracy_score(labels, decided)
    sk.confusion_matrix(labels, decided, sample_weight=weights)


def evaluate_large() -> str:
    rows = []
    for n, k in SIZES:
        data = predictions(n, k)
        prevalence: Any = PREVALENCE if k == 2 else [1 / k] * k
        calls: dict[str, Callable[[], Any]] = {"ours": partial(evaluate, *data, prevalence)}
        if k == 2:
            calls["theirs"] = partial(scikit_learn, *data)
        intervals = calls["ours"]().intervals  # also warms up: one-time setup is not timed
        times = medians(calls, TIMES, warm_up=0)
        theirs = [f"{times['theirs']:.3g}", f"{times['ours'] / times['theirs']:.2f}"] if k == 2 else ["–", "–"]
        memory = peak_extra_bytes(calls["ours"], lambda: None)
        given = sum(each.nbytes for each in data)
        sizes = [f"{given / 1e6:,.0f}", f"{memory / 1e6:,.0f}"]
        rows.append(shown([f"{n:,}", str(k), intervals, f"{times['ours']:.3g}", *theirs, *sizes]))
    header = ["predictions", "classes", "intervals", "s", "scikit-learn, no intervals, s", "ratio", "input, MB", "on top, MB"]
    return f"medians of {TIMES} calls.\n\n{table(header, rows)}"


if __name__ == "__main__":
    write_pages(__doc__, linear_speed=linear_speed, evaluate_large=evaluate_large)
