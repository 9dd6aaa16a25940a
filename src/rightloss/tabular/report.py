"""The report of a table's model: one page, complete in itself, with a prevalence slider.

Stage: `TableModel` → `report.html`, by the templates in `templates/`. Nothing is fitted; what it shows is the comparison and the
held-out predictions that the model keeps.
"""

from __future__ import annotations

import base64
import hashlib
import os
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from .. import __version__
from ..atomic_files import write_whole
from ..predictive import retarget
from .report_picture import calibration_drawing

if TYPE_CHECKING:
    from jinja2 import Environment

    from .model import TableModel

_MANTISSAS = "1 1.2 1.5 2 2.5 3 4 5 6 8".split()
_HIGH = (0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99)
_PEOPLE = {"median": 0.5, "top 10 %": 0.9, "top 1 %": 0.99, "top 1 in 1,000": 0.999, "highest of all": 1.0}
_RECALL = 0.8  # at the threshold that the slider starts with
_LIMITS = (
    "The slider, and predictions at another population, hold where each class looks as it did in this file and only the mix of "
    "classes differs (label shift); `rightloss prevalence` tests that on rows without labels. Figures without intervals rest on "
    "the held-out rows alone: with few rows of a class they are rough."
)


def write_report(model: TableModel, path: str | os.PathLike[str]) -> Path:
    """Write the report of a fitted model to one HTML file, whole or not at all; return its path."""
    path = Path(path)
    write_whole(path, report_page(model))
    return path


def report_page(model: TableModel) -> str:
    """Return the page as HTML; all text of the table is escaped."""
    population, sampling, focus = _mix(model.population.population), _mix(model.population.sampling), _focus_classes(model)
    held = model.held_out
    context = {
        "version": __version__,
        "title": f"{model.target}: {_title_classes(model)}",
        "sentences": sentences(model),
        "focus_label": str(model.classes_[focus[0]]),
        "drawing": calibration_drawing(held.log_probs, held.target, population, sampling, focus[0]),
        "slider": slider_data(model),
        "people": list(_PEOPLE),
        "comparison": _comparison(model),
        "findings": model.findings,
        "columns": _columns(model),
        "commands": _commands(model),
        "limits": _LIMITS,
    }
    return _environment().get_template("table.html.j2").render(context)
