"""Measure how often the 95 % regions of an estimated prevalence contain the true value.

Each class is a normal distribution around its own corner of K dimensions, so the correct predictions are known in closed form.
"Exact" predictions are these; "overconfident" ones are 1.5 times as sharp and shifted by a bias per class, which a calibration
can correct. The sampled mix is equal classes; in the population the last class has frequency π, and the others share the rest.
Each case has 2,000 predictions and 2,000 held-out ones, and is repeated 1,000 times. Writes prevalence_coverage.md: a row per
method, K and π.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from report import folder, table
from torch import Tensor

from rightloss.shift import LabelShiftWarning, estimate_prevalence

CASES, ROWS, DISTANCE = 1000, 2000, 1.5
METHODS: dict[str, tuple[bool, dict[str, Any]]] = {
    "EM, exact": (False, {"calibration": "assumed"}),
    "EM, exact, curvature": (False, {"calibration": "assumed", "region": "curvature"}),
    "EM, exact, mix by held-out mean": (False, {"calibration": "mean"}),
    "EM, overconfident, temperature and biases": (True, {"calibration": "bias-corrected"}),
    "EM, overconfident, vector": (True, {"calibration": "vector"}),
    "BBSE": (True, {"method": "bbse"}),
    "BBSE, soft": (True, {"method": "bbse-soft"}),
    "RLLS": (True, {"method": "rlls"}),
}


def drawn(mix: Tensor, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw inputs and labels."""
    y = torch.multinomial(mix, rows, replacement=True, generator=generator)
    x = torch.randn(rows, len(mix), dtype=torch.float64, generator=generator)
    return x + DISTANCE * torch.nn.functional.one_hot(y, len(mix)), y


def predicted(x: Tensor, overconfident: bool) -> Tensor:
    """Return log-probabilities at equal classes."""
    logits = DISTANCE * x
    if overconfident:
        logits = 1.5 * logits + torch.linspace(-0.5, 0.5, x.shape[1], dtype=torch.float64)
    return torch.log_softmax(logits, 1)


def target_mix(classes: int, rare: float) -> Tensor:
    mix = torch.full((classes,), (1 - rare) / (classes - 1), dtype=torch.float64)
    mix[-1] = rare
    return mix


def covered(classes: int, rare: float, name: str) -> Tensor:
    """Return `(cases, K + 1)`: whether each class's region contains its frequency, and the width of the last one."""
    overconfident, options = METHODS[name]
    equal, mix = torch.full((classes,), 1 / classes, dtype=torch.float64), target_mix(classes, rare)
    generator = torch.Generator().manual_seed(7)
    found = []
    for _ in range(CASES):
        x, _ = drawn(mix, ROWS, generator)
        held, labels = drawn(equal, ROWS, generator)
        pair = None if options.get("calibration") == "assumed" else (predicted(held, overconfident), labels)
        estimate = estimate_prevalence(predicted(x, overconfident), equal, held_out=pair, **options)
        inside = ((estimate.low <= mix) & (mix <= estimate.high)).double()
        found.append(torch.cat([inside, (estimate.high - estimate.low)[-1:]]))
    return torch.stack(found)


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", LabelShiftWarning)
    out = folder()
    rows = []
    for classes in (2, 5):
        for rare in (0.1, 0.01):
            for name in METHODS:
                found = covered(classes, rare, name)
                share = 100 * found.mean(0)
                rows.append(
                    [
                        name,
                        str(classes),
                        f"{rare:g}",
                        f"{share[-2]:.1f} %",
                        f"{share[:-1].mean():.1f} %",
                        f"{found[:, -1].mean():.4f}",
                    ]
                )
                print(rows[-1], flush=True)
    header = ["method", "K", "π", "class K covered", "mean over classes", "mean width, class K"]
    words = f"Made by `python benchmarks/prevalence_coverage.py`: {CASES:,} cases a row, so ± 0.7 % is one standard error.\n\n"
    (out / "prevalence_coverage.md").write_text(words + table(header, rows))


if __name__ == "__main__":
    main()
