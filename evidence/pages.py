"""What the pages share: Markdown tables, paired differences and their words, charts' canvas.

Stage: paired differences → mean, standard error, 95 % interval → text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import t as student


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, without its last line end."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def paired(differences: Any) -> tuple[float, float, int]:
    """Return the mean of paired differences, its standard error, and how many there are."""
    values = np.asarray(differences, dtype=float)
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))), len(values)


def half_width(error: float, count: int) -> float:
    """Return half a 95 % interval by Student's t."""
    return float(student.ppf(0.975, count - 1) * error)


def interval(mean: float, error: float, count: int) -> str:
    """Return a mean with its 95 % interval, bold beyond two standard errors."""
    half, mark = half_width(error, count), "**" if abs(mean) > 2 * error else ""
    return f"{mark}{mean:+.4f}{mark} ({mean - half:+.4f} to {mean + half:+.4f})"


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"


def axes(rows: int, columns: int, size: tuple[float, float], dpi: int, **options: Any) -> tuple[Any, Any]:
    """Return a figure and its axes."""
    import matplotlib.pyplot as plt

    return plt.subplots(rows, columns, figsize=size, dpi=dpi, layout="constrained", **options)
