"""Measure the error and speed of prevalence estimates, compared with QuaPy and abstention on the same predictions.

The model is a logistic regression on 10,000 examples at equal classes, made overconfident by unnecessary squared features and
by sharpening with 1.3. Another 10,000 examples are held out for calibration and confusion matrices, and 10,000 are unlabelled
at the target mix, where the last class has frequency π and the others share the rest. 20 draws. Times are medians of processor
time of whole calls on precomputed predictions (probabilities for the other packages, log-probabilities for ours), including
calibration, on one thread, without regions, which the other packages do not give here. QuaPy's EM stops at changes of 1e-4,
and so closer to the training mix; ours and abstention's continue. Writes prevalence_estimates.md: a row per K, π, kind of
method and package.
"""

from __future__ import annotations

import importlib.util
import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from report import folder, medians_apart, table
from sklearn.base import BaseEstimator
from sklearn.linear_model import LogisticRegression

from rightloss.shift import LabelShiftWarning, estimate_prevalence

DRAWS, ROWS, REPEATS, DISTANCE = 20, 10_000, 21, 1.5
# target and held-out probabilities, held-out labels, and both as log-probabilities: each package gets the form it takes
Draw = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Method = Callable[[Draw], np.ndarray]


def ours(**options: Any) -> Method:
    def call(draw: Draw) -> np.ndarray:
        _, _, labels, target, held = draw
        equal = np.full(target.shape[1], 1 / target.shape[1])
        pair = None if options.get("calibration") == "assumed" else (held, labels)
        return estimate_prevalence(target, equal, held_out=pair, region=None, **options).population

    return call


def quapy(name: str, crisp: bool = False, **options: object) -> Method:
    import quapy

    class Fitted(BaseEstimator):
        """The classifier that QuaPy expects, for precomputed predictions."""

        def __init__(self, classes: int) -> None:
            self.classes_ = np.arange(classes)

        def predict_proba(self, x: np.ndarray) -> np.ndarray:
            return x

        def fit(self, x: np.ndarray, y: np.ndarray) -> None: ...

        def predict(self, x: np.ndarray) -> np.ndarray:
            return x.argmax(1)

    def call(draw: Draw) -> np.ndarray:
        target, held, labels, *_ = draw
        quantifier = getattr(quapy.method.aggregative, name)(Fitted(target.shape[1]), fit_classifier=False, **options)
        quantifier.train_prevalence = np.full(target.shape[1], 1 / target.shape[1])
        quantifier.aggregation_fit(held.argmax(1) if crisp else held, labels)
        return np.asarray(quantifier.aggregate(target.argmax(1) if crisp else target))

    return call


def abstention(adapter: str, calibrator: str | None = None, calibrate_target: bool = False) -> Method:
    """Return abstention's method; `calibrate_target` calibrates the target first, as EMImbalanceAdapter 0.1.3.1 does not."""
    import abstention.calibration as calibrations
    import abstention.label_shift as label_shift

    factories = {
        "ts": lambda: calibrations.TempScaling(),
        "bcts": lambda: calibrations.TempScaling(bias_positions="all"),
    }

    def call(draw: Draw) -> np.ndarray:
        target, held, labels, *_ = draw
        hot = np.eye(held.shape[1])[labels]
        factory = factories[calibrator]() if calibrator else None
        if factory is not None and calibrate_target:
            calibrate = factory(valid_preacts=held, valid_labels=hot, posterior_supplied=True)
            target, held, factory = calibrate(target), calibrate(held), None
        made = getattr(label_shift, adapter)(**({"calibrator_factory": factory} if factory else {}))
        found = made(valid_labels=hot, tofit_initial_posterior_probs=target, valid_posterior_probs=held)
        source = held.mean(0) if adapter.startswith("EM") else hot.mean(0)
        if factory is not None:  # the multipliers are relative to the mean calibrated prediction
            source = found.calibrator_func(held).mean(0)
        population = found.multipliers * source
        return population / population.sum()

    return call


def methods() -> dict[str, dict[str, Method]]:
    """Return the methods by kind, ours first."""
    found: dict[str, dict[str, Method]] = {
        "EM as predicted": {
            "rightloss": ours(calibration="assumed"),
            "QuaPy EMQ": quapy("EMQ"),
        },
        "EM, mix by held-out mean": {
            "rightloss": ours(calibration="mean"),
            "QuaPy EMQ": quapy("EMQ", exact_train_prev=False, val_split=5),
            "abstention EM": abstention("EMImbalanceAdapter"),
        },
        "EM, temperature": {
            "rightloss": ours(calibration="temperature"),
            "QuaPy EMQ ts": quapy("EMQ", calib="ts", exact_train_prev=False, val_split=5),
            "abstention EM + TempScaling": abstention("EMImbalanceAdapter", "ts"),
            "abstention, target calibrated too": abstention("EMImbalanceAdapter", "ts", True),
        },
        "EM, temperature and biases": {
            "rightloss": ours(calibration="bias-corrected"),
            "QuaPy EMQ_BCTS": quapy("EMQ", calib="bcts", exact_train_prev=False, val_split=5),
            "abstention EM + BCTS": abstention("EMImbalanceAdapter", "bcts"),
            "abstention, target calibrated too": abstention("EMImbalanceAdapter", "bcts", True),
        },
        "confusion, hard": {
            "rightloss": ours(method="bbse"),
            "QuaPy ACC": quapy("ACC", crisp=True),
            "abstention BBSE": abstention("BBSEImbalanceAdapter"),
        },
        "confusion, soft": {"rightloss": ours(method="bbse-soft"), "QuaPy PACC": quapy("PACC")},
        "RLLS": {"rightloss": ours(method="rlls")},
    }
    if importlib.util.find_spec("cvxpy"):  # needed by the other packages' RLLS
        found["RLLS"] |= {"QuaPy RLLS": quapy("RLLS", mode="hard"), "abstention RLLS": abstention("RLLSImbalanceAdapter")}
    return found


def drawn(mix: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    labels = random.choice(len(mix), ROWS, p=mix)
    return random.normal(size=(ROWS, len(mix))) + DISTANCE * np.eye(len(mix))[labels], labels


def predictions(classes: int, mix: np.ndarray, seed: int) -> Draw:
    random = np.random.default_rng(seed)
    equal = np.full(classes, 1 / classes)

    def features(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x, x**2], 1)

    x, y = drawn(equal, random)
    model = LogisticRegression(C=100, max_iter=500).fit(features(x), y)
    held, labels = drawn(equal, random)
    target, _ = drawn(mix, random)

    def sharpened(x: np.ndarray) -> np.ndarray:
        logits = torch.from_numpy(1.3 * model.predict_log_proba(features(x)))
        return torch.softmax(logits, 1).numpy()

    probs = sharpened(target), sharpened(held)
    return *probs, labels, np.log(probs[0]), np.log(probs[1])


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    warnings.simplefilter("ignore", LabelShiftWarning)
    out = folder()
    rows = []
    for classes in (2, 5, 10):
        for rare in (0.1, 0.01) if classes < 10 else (0.05, 0.01):
            mix = np.full(classes, (1 - rare) / (classes - 1))
            mix[-1] = rare
            draws = [predictions(classes, mix, seed) for seed in range(DRAWS)]
            for kind, contenders in methods().items():
                errors = {name: np.array([np.abs(call(d) - mix).mean() for d in draws]) for name, call in contenders.items()}
                calls = {name: partial(call, draws[0]) for name, call in contenders.items()}
                times = medians_apart(calls, REPEATS, time.process_time)
                own, base = errors["rightloss"], times["rightloss"]
                for name, error in errors.items():
                    paired = own - error
                    spread = paired.std(ddof=1) / np.sqrt(DRAWS)
                    rows.append(
                        [
                            str(classes), f"{rare:g}", kind, name, f"{error.mean():.5f}",
                            "" if name == "rightloss" else f"{paired.mean():+.6f} ± {spread:.6f}",
                            f"{1e3 * times[name]:.1f}", "" if name == "rightloss" else f"{times[name] / base:.1f}",
                        ]
                    )  # fmt: skip
                    print(rows[-1], flush=True)
    header = ["K", "π", "kind", "package", "mean abs. error", "ours − theirs ± s.e.", "CPU ms", "time / ours"]
    without = "" if importlib.util.find_spec("cvxpy") else " RLLS of the other packages needs cvxpy, which was not installed."
    words = f"Made by `python benchmarks/prevalence_estimates.py`: {DRAWS} draws, one thread.{without}\n\n"
    (out / "prevalence_estimates.md").write_text(words + table(header, rows))


if __name__ == "__main__":
    main()
