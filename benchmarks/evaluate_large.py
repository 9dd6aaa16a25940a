"""Measure time and peak memory of `rightloss.metrics.evaluate` on up to ten million predictions.

For comparison: scikit-learn's log-loss, Brier score, AUC, accuracies and confusion matrix with sample weights, which give
point values only. With resampling, scikit-learn would need that time once per resample. Writes evaluate_large.md: a row per
size.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
from report import folder, peak_extra_bytes, table
from scipy.special import log_expit, log_softmax
from sklearn import metrics as sk

from rightloss.metrics import evaluate

PREVALENCE = 0.01
SIZES = [10_000, 100_000, 1_000_000, 10_000_000]
TIMES = 3


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
    sk.log_loss(labels, p, sample_weight=weights)
    sk.brier_score_loss(labels, p, sample_weight=weights)
    sk.roc_auc_score(labels, p)
    sk.accuracy_score(labels, decided, sample_weight=weights)
    sk.balanced_accuracy_score(labels, decided)
    sk.confusion_matrix(labels, decided, sample_weight=weights)


def seconds(call: Callable[[], object]) -> float:
    times = []
    for _ in range(TIMES):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    out, rows = folder(), []
    for k, n in [*((2, size) for size in SIZES), (5, 1_000_000), (100, 100_000)]:
        log_probs, y = predictions(n, k)
        prevalence: float | list[float] = PREVALENCE if k == 2 else [1 / k] * k
        found = evaluate(log_probs, y, prevalence)  # also warms up: one-time setup is not timed

        def ours(data: tuple[np.ndarray, np.ndarray] = (log_probs, y), at: float | list[float] = prevalence) -> object:
            return evaluate(*data, at)

        own = seconds(ours)
        memory = peak_extra_bytes(ours, lambda: None) / 1e6
        theirs = seconds(lambda data=(log_probs, y): scikit_learn(*data)) if k == 2 else None  # type: ignore[misc]
        ratio = ["–", "–"] if theirs is None else [f"{theirs:.3g}", f"{own / theirs:.2f}"]
        given = log_probs.nbytes + y.nbytes
        rows.append([f"{n:,}", str(k), found.intervals, f"{own:.3g}", *ratio, f"{given / 1e6:,.0f}", f"{memory:,.0f}"])
        print(rows[-1], flush=True)
    header = ["predictions", "classes", "intervals", "s", "scikit-learn, no intervals, s", "ratio", "input, MB", "on top, MB"]
    page = f"Made by `python benchmarks/evaluate_large.py`: medians of {TIMES} calls.\n\n{table(header, rows)}"
    (out / "evaluate_large.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
