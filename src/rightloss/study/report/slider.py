"""Data for the page's slider: each method's log-odds by class.

Stage: `Panel`s → JSON for `templates/page.js`; `templates/slider.html.j2` has the controls.

The script shifts the log-odds from the trained prevalence to the slider's, counts those at or above the threshold, and applies
Bayes' rule. It agrees with `metrics.predictive_value_curve(…, retarget=True)` and `metrics.decision_curve` up to rounding.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from ..pooled_predictions import Cell
from ..summary.wording import STARTS, method, one_in
from .panel_figures import Column, Panel

_MANTISSAS = "1 1.1 1.2 1.3 1.4 1.6 1.8 2 2.2 2.5 2.8 3 3.5 4 4.5 5 5.5 6 7 8 9".split()
_MIXES = {"rebalanced": "half and half", "raw": "the mix of the data"}
_TICKS = (1e-4, 1e-3, 0.01, 0.1, 0.5)


def grid(lowest: int) -> list[float]:
    """Return round numbers from 10^lowest to 0.5, nearly evenly spaced in the logarithm."""
    numbers = [float(f"{mantissa}e{power}") for power in range(lowest, 0) for mantissa in _MANTISSAS]
    return [number for number in numbers if number <= 0.5]


PREVALENCES, THRESHOLDS = grid(-4), grid(-3)


def ticks(values: list[float], people: bool = False) -> dict[str, float]:
    """Return the labels below a slider, as "1 in 1,000" or in percent, with their places in percent of its width."""
    shown = [each for each in values if each in _TICKS]
    return {one_in(each) if people else f"{100 * each:g} %": 100 * values.index(each) / (len(values) - 1) for each in shown}


def slider_data(panels: Sequence[Panel]) -> dict[str, Any]:
    """Return the data for the script; the start is named if there are several."""
    several = len({panel.columns[0].cells[0].key.start for panel in panels}) > 1
    return {
        "prevalences": PREVALENCES,
        "thresholds": THRESHOLDS,
        "panels": [
            {
                "title": panel.title,
                "mix": _MIXES[key.minibatches] + (f", {STARTS[key.start]}" if several else ""),
                "columns": [_column(column) for column in panel.columns],
            }
            for panel, key in ((panel, panel.columns[0].cells[0].key) for panel in panels)
        ],
    }


def _column(column: Column) -> dict[str, Any]:
    return {
        "label": one_in(column.rate),
        "rate": column.rate,
        "seeds": max(len(np.unique(cell.seed)) for cell in column.cells),
        "methods": [_method(cell) for cell in column.cells],
    }


def _method(cell: Cell) -> dict[str, str]:
    odds, labels = cell.log_probs[:, 1] - cell.log_probs[:, 0], cell.labels
    return {"name": method(cell.key), "benign": _packed(odds[labels == 0]), "malignant": _packed(odds[labels == 1])}


def _packed(odds: Float64[np.ndarray, " n"]) -> str:
    """Return the sorted values as float64 in base64, without rounding."""
    return base64.b64encode(np.sort(odds).astype("<f8").tobytes()).decode("ascii")
