"""What the page needs to show any prevalence: each method's log-odds, by class.

Stage: `Panel`s → JSON that the page's script reads.

The script moves the log-odds from the trained prevalence to the slider's, counts those from the threshold up, and follows
Bayes' rule: `metrics.predictive_value_curve(…, retarget=True)` and `metrics.decision_curve`, to the last digit.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
from jaxtyping import Float64

from ..pooled_predictions import Cell
from ..summary.words import method
from .panels import Column, Panel
from .words import one_in

_MANTISSAS = "1 1.1 1.2 1.3 1.4 1.6 1.8 2 2.2 2.5 2.8 3 3.5 4 4.5 5 5.5 6 7 8 9".split()


def grid(lowest: int) -> list[float]:
    """Round numbers from 10^lowest to 0.5, nearly even in the logarithm."""
    numbers = [float(f"{mantissa}e{power}") for power in range(lowest, 0) for mantissa in _MANTISSAS]
    return [number for number in numbers if number <= 0.5]


def slider_data(shown: list[Panel]) -> dict[str, Any]:
    return {
        "prevalences": grid(-4),
        "thresholds": grid(-3),
        "panels": [{"title": panel.title, "columns": [_column(each) for each in panel.columns]} for panel in shown],
    }


def to_script(content: dict[str, Any]) -> str:
    """JSON that cannot end the element it stands in."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _column(column: Column) -> dict[str, Any]:
    return {"label": one_in(column.rate), "rate": column.rate, "methods": [_method(cell) for cell in column.cells]}


def _method(cell: Cell) -> dict[str, str]:
    odds, labels = cell.log_probs[:, 1] - cell.log_probs[:, 0], cell.labels
    return {"name": method(cell.key), "benign": _packed(odds[labels == 0]), "malignant": _packed(odds[labels == 1])}


def _packed(odds: Float64[np.ndarray, " n"]) -> str:
    """Sorted, as the bytes of float64 in base64: nothing is rounded."""
    return base64.b64encode(np.sort(odds).astype("<f8").tobytes()).decode("ascii")
