"""Cells that belong in one picture: the same data, net and training, over prevalences and losses.

Stage: `StudyResults` → `Panel`s.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..pooled_predictions import Cell, cells
from ..results import StudyResults
from .words import panel_title

SHARED = ("data", "minibatches", "net", "likelihood", "inference")


@dataclass(frozen=True, eq=False)
class Column:
    """One prevalence of a panel.

    Attributes:
        rate: π of malignant nodules.
        cells: one for each method, in the config's order.
    """

    rate: float
    cells: tuple[Cell, ...]


@dataclass(frozen=True, eq=False)
class Panel:
    """Same data, minibatches, net, likelihood and inference.

    Attributes:
        title: what is the same, in words.
        columns: by prevalence, in the config's order.
    """

    title: str
    columns: tuple[Column, ...]


def panels(results: StudyResults) -> list[Panel]:
    """Of two classes, in the config's order."""
    grouped: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells(results):
        if len(set(cell.labels)) < 2:  # a few folds of an unfinished study: nothing can be drawn of one class
            continue
        grouped.setdefault(tuple(getattr(cell.key, name) for name in SHARED), []).append(cell)
    return [Panel(panel_title(group[0].key, results.config), _columns(group)) for group in grouped.values()]


def _columns(group: list[Cell]) -> tuple[Column, ...]:
    by_population: dict[float | None, list[Cell]] = {}
    for cell in group:
        by_population.setdefault(cell.key.population, []).append(cell)
    return tuple(Column(float(some[0].population[-1]), tuple(some)) for some in by_population.values())
