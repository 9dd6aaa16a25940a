"""Estimates of a prevalence: how often their 95 % regions contain the true value, and what 10⁸ predictions cost.

*prevalence_coverage*: each class is a normal distribution around its own corner of K dimensions, so correct predictions are
known in closed form. "Exact" predictions are these; "overconfident" ones are 1.5 times as sharp and shifted by a bias per
class, which a calibration can correct. The sampled mix is equal classes; in the population the last class has frequency π, and
the others share the rest. 2,000 predictions and 2,000 held-out ones; then 15 to 50 held-out rows of each of two classes, and
the size of `label_shift_test` with few held-out rows of a rare class.

*prevalence_stream*: binary predictions in a memory-mapped file, read in blocks. Each size runs in a process of its own, which
reports how far its memory grew during the call (VmHWM over VmRSS; mapped pages count in both, and those of the blocks are
released).
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import shown, status, table, write_pages
from scipy.special import log_expit
from torch import Tensor

from rightloss.shift import LabelShiftWarning, estimate_prevalence, label_shift_test

CASES, ROWS, DISTANCE = int(os.environ.get("RIGHTLOSS_DRAWS", "1000")), 2000, 1.5
STREAMED, APART = (10**6, 10**7, 10**8), 2.0
CALIBRATED = "EM, overconfident, temperature and biases"
METHODS: dict[str, tuple[bool, dict[str, Any]]] = {  # whether predictions are overconfident, and options
    "EM, exact": (False, {"calibration": "assumed"}),
    "EM, exact, curvature": (False, {"calibration": "assumed", "region": "curvature"}),
    "EM, exact, mix by held-out mean": (False, {"calibration": "mean"}),
    CALIBRATED: (True, {"calibration": "bias-corrected"}),
    "EM, overconfident, vector": (True, {"calibration": "vector"}),
    "BBSE": (True, {"method": "bbse"}),
    "BBSE, soft": (True, {"method": "bbse-soft"}),
    "RLLS": (True, {"method": "rlls"}),
}


def drawn(mix: Tensor, rows: int, overconfident: bool, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw log-probabilities at equal classes, and labels."""
    y = torch.multinomial(mix, rows, replacement=True, generator=generator)
    x = torch.randn(rows, len(mix), dtype=torch.float64, generator=generator)
    logits = DISTANCE * (x + DISTANCE * torch.nn.functional.one_hot(y, len(mix)))
    if overconfident:
        logits = 1.5 * logits + torch.linspace(-0.5, 0.5, x.shape[1], dtype=torch.float64)
    return torch.log_softmax(logits, 1), y


def covered(classes: int, rare: float, name: str, held_out: int = ROWS) -> Tensor:
    """Return `(cases, K + 1)`: whether each class's region contains its frequency, and the width of the last one."""
    overconfident, options = METHODS[name]
    equal = torch.full((classes,), 1 / classes, dtype=torch.float64)
    mix = torch.tensor([(1 - rare) / (classes - 1)] * (classes - 1) + [rare], dtype=torch.float64)
    generator, found = torch.Generator().manual_seed(7), []
    for _ in range(CASES):
        (log_probs, _), pair = (drawn(*each, overconfident, generator) for each in ((mix, ROWS), (equal, held_out)))
        try:
            given = None if options.get("calibration") == "assumed" else pair
            estimate = estimate_prevalence(log_probs, equal, held_out=given, **options)
        except ValueError:  # few held-out rows that are separated perfectly, or of one class: refused, and left out
            assert held_out < 100
            continue
        inside = ((estimate.low <= mix) & (mix <= estimate.high)).double()
        found.append(torch.cat([inside, (estimate.high - estimate.low)[-1:]]))
    return torch.stack(found)


def rejected(held_out: int, rare: float = 0.001) -> float:
    """Return how often `label_shift_test` rejects at 5 % where only the mix may differ, with `held_out · rare` rare rows."""
    mix, generator = torch.tensor([1 - rare, rare], dtype=torch.float64), torch.Generator().manual_seed(7)
    pairs = ([drawn(mix, held_out, False, generator) for _ in range(2)] for _ in range(min(200, CASES)))
    found = [label_shift_test(new[0], held).tenable for new, held in pairs if held[1].any()]
    return 1 - sum(found) / len(found)


def prevalence_coverage() -> str:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", LabelShiftWarning)
    rows, few = [], []
    for classes, rare, name in product((2, 5), (0.1, 0.01), METHODS):
        found = covered(classes, rare, name)
        share = 100 * found.mean(0)
        cells = [f"{share[-2]:.1f} %", f"{share[:-1].mean():.1f} %", f"{found[:, -1].mean():.4f}"]
        rows.append(shown([name, str(classes), f"{rare:g}", *cells]))
    for number, rare in product((30, 60, 100), (0.2, 0.05)):
        shares = [100 * covered(2, rare, name, number)[:, 1].mean() for name in (CALIBRATED, "BBSE")]
        few.append(shown([str(number), f"{rare:g}", *(f"{share:.1f} %" for share in shares)]))
    sizes = ", ".join(f"{rejected(number):.3f} with {number:,} held-out rows" for number in (5000, 10_000))
    return (
        f"{CASES:,} cases a row, so ± 0.7 % is one standard error.\n\n"
        f"{table(['method', 'K', 'π', 'class K covered', 'mean over classes', 'mean width, class K'], rows)}"
        "\n\nWith few held-out rows of two equal classes, the last class is covered in (refused cases are left out):\n\n"
        f"{table(['held-out rows', 'π', 'EM, temperature and biases', 'BBSE'], few)}\n\n"
        f"`label_shift_test` at 5 %, one row in a thousand of the rare class in both sets, rejects {sizes}.\n"
    )


def write_predictions(path: Path, rows: int) -> None:
    """Write exact predictions at equal classes for draws from two normal distributions, one in a hundred from the second."""
    random = np.random.default_rng(rows)
    with path.open("wb") as file:
        for start in range(0, rows, 10**6):
            count = min(10**6, rows - start)
            x = random.standard_normal(count) + APART * (random.random(count) < 0.01)
            logit = APART * x - APART**2 / 2
            np.stack([log_expit(-logit), log_expit(logit)], 1).astype(np.float32).tofile(file)


def measure(path: Path, rows: int, region: Any) -> list[float]:
    """Return, from a new process, the estimate, its limits, steps, seconds, and bytes over the baseline."""
    torch.set_num_threads(1)
    warm = np.log(np.array([[0.9, 0.1], [0.2, 0.8]] * 1000))
    estimate_prevalence(warm, 0.5, calibration="assumed")  # first-use allocations of libraries are not counted
    on_disk = np.memmap(path, dtype=np.float32, mode="r", shape=(rows, 2))
    Path("/proc/self/clear_refs").write_text("5")
    before, start = status("VmRSS"), time.perf_counter()
    found = estimate_prevalence(on_disk, 0.5, calibration="assumed", region=region)
    seconds, grown = time.perf_counter() - start, max(0, status("VmHWM") - before)
    return [*(float(each[1]) for each in (found.population, found.low, found.high)), found.iterations, seconds, grown]


def prevalence_stream() -> str:
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for size in STREAMED:
            write_predictions(path := Path(place) / f"{size}.f32", size)
            for region in ("curvature", "profile"):
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    value, low, high, steps, seconds, grown = pool.apply(measure, (path, size, region))
                cells = [f"{value:.5f} [{low:.5f}, {high:.5f}]", str(steps), f"{seconds:.1f}", f"{grown / 1e6:.1f}"]
                rows.append(shown([f"{size:,}", f"{size * 8 / 1e6:,.0f}", region, *cells]))
            path.unlink()
    header = ["predictions", "MB on disk", "region", "class 1 (true 0.01)", "Newton steps", "seconds", "peak over baseline, MB"]
    return f"float32, one thread. Up to 4 · 10⁶ rows the ratios are kept in memory.\n\n{table(header, rows)}"


if __name__ == "__main__":
    write_pages(__doc__, prevalence_coverage=prevalence_coverage, prevalence_stream=prevalence_stream)
