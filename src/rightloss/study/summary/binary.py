"""Figures of a cell with two classes.

Stage: `Cell`, its AUCs → figures by name; a population and labels → the figures of always answering π.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ...metrics import Figure, evaluate
from ..pooled_predictions import Cell
from .areas import Areas, mean_area
from .contract import rounded
from .likelihood import votes_of
from .resampling import DRAWS, LEVEL, Resamples

EVALUATED = (
    "expected_log_likelihood",
    "skill",
    "brier",
    "accuracy",
    "weighted_accuracy",
    "balanced_accuracy",
    "ppv",
    "npv",
    "tpr",
    "tnr",
    "calibration_error",
    "mean_prediction",
)
FIGURES = (*EVALUATED, "auc")


def binary_figures(cell: Cell, areas: Areas, resamples: Resamples) -> Mapping[str, Figure]:
    """Of all out-of-fold predictions together, but for the AUC; intervals by patient. A nodule stands there once per seed,
    which narrows nothing: its patient is drawn as a whole."""
    found = evaluate(cell.log_probs, cell.labels, cell.population, groups=cell.patients, level=LEVEL, draws=DRAWS)
    auc = mean_area(areas, resamples).figure("no fold has both classes")
    return {**{name: rounded(found[name]) for name in EVALUATED}, "auc": _noted(auc, cell, areas)}


def constant_figures(cell: Cell, names: tuple[str, ...]) -> Mapping[str, Figure]:
    """Of always answering π to the cell's nodules: no interval, since nothing was learnt. Its AUC is ½."""
    rows = np.unique(cell.rows, return_index=True)[1]
    answer = np.tile(np.log(cell.population), (len(rows), 1))
    target = cell.labels[rows] if len(cell.population) == 2 else votes_of(cell)[rows]
    found = evaluate(answer, target, cell.population, intervals=None)
    figures = {name: Figure(round(found[name].value, 12), reason=found[name].reason) for name in names}
    figures |= {"skill": Figure(0.0), "calibration_error": Figure(0.0)}  # but for rounding
    return {**figures, "auc": Figure(0.5)} if len(cell.population) == 2 else figures


def _noted(auc: Figure, cell: Cell, areas: Areas) -> Figure:
    runs = len(set(zip(cell.fold.tolist(), cell.seed.tolist(), strict=True)))
    if len(areas) == runs or math.isnan(auc.value) or auc.reason:
        return auc
    return Figure(auc.value, auc.low, auc.high, f"{runs - len(areas)} of {runs} tests have one class alone, and are left out")
