"""Measure how often the 95 % regions of an estimated prevalence contain the true value.

Each class is a normal distribution around its own corner of K dimensions, so the correct predictions are known in closed form.
"Exact" predictions are these; "overconfident" ones are 1.5 times as sharp and shifted by a bias per class, which a calibration
can correct. The sampled mix is equal classes; in the population the last class has frequency π, and the others share the rest.
Each case has 2,000 predictions and 2,000 held-out ones, and is repeated 1,000 times. Then 15 to 50 held-out rows of each of two
classes, and the size of `label_shift_test` with few held-out rows of a rare class. Writes prevalence_coverage.md: a row per
method, K and π; a row per number of held-out rows.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from report import folder, table
from torch import Tensor

from rightloss.shift import LabelShiftWarning, estimate_prevalence, label_shift_test

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


def covered(classes: int, rare: float, name: str, held_out: int = ROWS) -> Tensor:
    """Return `(cases, K + 1)`: whether each class's region contains its frequency, and the width of the last one."""
    overconfident, options = METHODS[name]
    equal, mix = torch.full((classes,), 1 / classes, dtype=torch.float64), target_mix(classes, rare)
    generator = torch.Generator().manual_seed(7)
    found = []
    for _ in range(CASES):
        x, _ = drawn(mix, ROWS, generator)
        held, labels = drawn(equal, held_out, generator)
        pair = None if options.get("calibration") == "assumed" else (predicted(held, overconfident), labels)
        try:
            estimate = estimate_prevalence(predicted(x, overconfident), equal, held_out=pair, **options)
        except ValueError:  # few held-out rows that are separated perfectly, or of one class: refused, and left out
            assert held_out < 100
            continue
        inside = ((estimate.low <= mix) & (mix <= estimate.high)).double()
        found.append(torch.cat([inside, (estimate.high - estimate.low)[-1:]]))
    return torch.stack(found)


def rejected(held_out: int, rare: float = 0.001, cases: int = 200) -> float:
    """Return how often `label_shift_test` rejects at 5 % where only the mix may differ, with `held_out · rare` rare rows."""
    mix, generator, found = target_mix(2, rare), torch.Generator().manual_seed(7), []
    for _ in range(cases):
        (x, _), (held, labels) = drawn(mix, held_out, generator), drawn(mix, held_out, generator)
        if labels.any():
            found.append(label_shift_test(predicted(x, False), (predicted(held, False), labels)).tenable)
    return 1 - sum(found) / len(found)


def few() -> str:
    """Return a table of coverage with few held-out rows, and a sentence on the size of the test."""
    rows = []
    for number in (30, 60, 100):
        for rare in (0.2, 0.05):
            found = [
                covered(2, rare, name, number)[:, 1].mean() for name in ("EM, overconfident, temperature and biases", "BBSE")
            ]
            rows.append([str(number), f"{rare:g}", *(f"{100 * each:.1f} %" for each in found)])
            print(rows[-1], flush=True)
    sizes = ", ".join(f"{rejected(number):.3f} with {number:,} held-out rows" for number in (5000, 10_000))
    words = "\n\nWith few held-out rows of two equal classes, the last class is covered in (refused cases are left out):\n\n"
    test = f"\n\n`label_shift_test` at 5 %, one row in a thousand of the rare class in both sets, rejects {sizes}.\n"
    return words + table(["held-out rows", "π", "EM, temperature and biases", "BBSE"], rows) + test


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
    (out / "prevalence_coverage.md").write_text(words + table(header, rows) + few())


if __name__ == "__main__":
    main()
