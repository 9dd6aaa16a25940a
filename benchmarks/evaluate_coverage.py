"""Measure how often the intervals of `rightloss.metrics.evaluate` contain the true value.

The classes are two Gaussians (π = 0.05), with labels in equal numbers. The model's log-odds are scaled by 1.3 and shifted by
0.2. The true value of each figure is an integral over the log-odds, computed on a grid. The cases differ in what is drawn
(examples; patients with four examples that share a random shift; π itself from a Beta) and in the kind of interval. For
patients the true values are those of the wider Gaussians that result from the shift. Each case is drawn `DRAWS` times; with
1,000 draws, the standard error of a coverage of 95 % is 0.7 percentage points. Writes evaluate_coverage.md: a row per figure,
a column per case.
"""

from __future__ import annotations

import math
import sys
from typing import Literal

import torch
import torch.nn.functional as F
from report import folder, table
from torch import Tensor

import rightloss as rl
from rightloss.metrics import evaluate

Method = Literal["bootstrap", "analytic"]

DRAWS = 1000
SEPARATION, STRETCH, MOVE = 0.8, 1.3, 0.2
FIGURES = [
    "expected_log_likelihood",
    "skill",
    "brier",
    "mean_prediction",
    "accuracy",
    "weighted_accuracy",
    "balanced_accuracy",
    "ppv",
    "npv",
    "tpr",
    "tnr",
    "auc",
    "calibration_error",
    "calibration_slope",
    "expected_cost",
    "net_benefit",
]
THRESHOLD = 0.1


def truth(pi: float, shared: float, model_pi: float) -> dict[str, float]:
    """Return every figure at prevalence `pi` for the model made for `model_pi`; patients' shifts have deviation `shared`."""
    width = math.sqrt(1 + shared**2)
    x = torch.linspace(-12 * width, 12 * width, 400_001, dtype=torch.float64)
    density = [torch.exp(-((x - side * SEPARATION) ** 2) / (2 * width**2)) for side in (-1, 1)]
    density = [each / each.sum() for each in density]
    table_ = predictions(x, model_pi)
    p = table_[:, 1].exp()
    positive = p >= THRESHOLD
    tpr, fpr = float(density[1] @ positive.double()), float(density[0] @ positive.double())
    ell = pi * float(density[1] @ table_[:, 1]) + (1 - pi) * float(density[0] @ table_[:, 0])
    entropy = pi * math.log(pi) + (1 - pi) * math.log1p(-pi)
    price = THRESHOLD / (1 - THRESHOLD)
    both = pi * density[1] + (1 - pi) * density[0]
    bins = (both.cumsum(0) * 15).long().clamp_max(14)
    gap = torch.bincount(bins, weights=both * p - pi * density[1])
    # the true log-odds are linear in x even if patients differ: 2 μ x / width²
    slope = (1 / width**2) / STRETCH
    below = density[0].cumsum(0) - 0.5 * density[0]
    return {
        "expected_log_likelihood": ell,
        "skill": 1 - ell / entropy,
        "brier": pi * float(density[1] @ (1 - p) ** 2) + (1 - pi) * float(density[0] @ p**2),
        "mean_prediction": float(both @ p),
        "accuracy": (tpr + 1 - fpr) / 2,
        "weighted_accuracy": pi * tpr + (1 - pi) * (1 - fpr),
        "balanced_accuracy": (tpr + 1 - fpr) / 2,
        "ppv": pi * tpr / (pi * tpr + (1 - pi) * fpr),
        "npv": (1 - pi) * (1 - fpr) / ((1 - pi) * (1 - fpr) + pi * (1 - tpr)),
        "tpr": tpr,
        "tnr": 1 - fpr,
        "auc": float(density[1] @ below),
        "calibration_error": float(gap.abs().sum()),
        "calibration_slope": slope,
        "expected_cost": pi * (1 - tpr) + (1 - pi) * fpr * price,
        "net_benefit": pi * tpr - (1 - pi) * fpr * price,
    }


def predictions(x: Tensor, pi: float) -> Tensor:
    odds = STRETCH * (math.log(pi) - math.log1p(-pi) + 2 * SEPARATION * x) + MOVE
    return torch.stack([F.logsigmoid(-odds), F.logsigmoid(odds)], 1)


def coverage(per_class: int, intervals: Method, patients: bool, uncertain: bool, draws: int) -> dict[str, float]:
    held = dict.fromkeys(FIGURES, 0)
    shared = 0.7 if patients else 0.0
    fixed = truth(0.05, shared, 0.05)
    belief = rl.Prevalence.beta(20, 380)
    for draw in range(draws):
        generator = torch.Generator().manual_seed(draw)
        y = torch.arange(2).repeat_interleave(per_class)
        x = torch.randn(2 * per_class, dtype=torch.float64, generator=generator) + (2 * y - 1) * SEPARATION
        groups = None
        if patients:
            groups = torch.arange(2 * per_class) // 4
            x = x + shared * torch.randn(len(groups.unique()), dtype=torch.float64, generator=generator)[groups]
        right = fixed
        if uncertain:
            right = truth(float(belief.sample(1, generator)[0, 1]), shared, 0.05)
        found = evaluate(
            predictions(x, 0.05),
            y,
            belief if uncertain else 0.05,
            threshold=THRESHOLD,
            groups=groups,
            intervals=intervals,
            generator=generator,
        )
        for name in FIGURES:
            held[name] += found[name].low <= right[name] <= found[name].high
    return {name: count / draws for name, count in held.items()}


def main(draws: int = DRAWS) -> None:
    out = folder()
    torch.set_num_threads(1)
    cases: list[tuple[str, tuple[int, Method, bool, bool]]] = [
        ("1,000 + 1,000 examples, bootstrap", (1000, "bootstrap", False, False)),
        ("1,000 + 1,000 examples, analytic", (1000, "analytic", False, False)),
        ("300 + 300 examples, bootstrap", (300, "bootstrap", False, False)),
        ("300 + 300 examples, analytic", (300, "analytic", False, False)),
        ("100 + 100 examples, bootstrap", (100, "bootstrap", False, False)),
        ("150 + 150 patients of 4, bootstrap", (600, "bootstrap", True, False)),
        ("150 + 150 patients of 4, analytic", (600, "analytic", True, False)),
        ("300 + 300 examples, π from Beta(20, 380), bootstrap", (300, "bootstrap", False, True)),
        ("300 + 300 examples, π from Beta(20, 380), analytic", (300, "analytic", False, True)),
    ]
    columns = {}
    for words, case in cases:
        columns[words] = coverage(*case, draws)
        print(words, {name: round(100 * value, 1) for name, value in columns[words].items()}, file=sys.stderr, flush=True)
    rows = [[name, *(f"{100 * columns[words][name]:.1f}" for words in columns)] for name in FIGURES]
    page = (
        f"Made by `python benchmarks/evaluate_coverage.py`: coverage in % of 95 % intervals, {draws} draws each.\n\n"
        + table(["figure", *columns], rows)
    )
    (out / "evaluate_coverage.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
