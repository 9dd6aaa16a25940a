"""A study's report on disk.

Stage: `StudyResults`, `Summary` → `report.html`, `report.md`, `figures/`. Nothing is trained, no data set is opened.
"""

from __future__ import annotations

from pathlib import Path

from ...atomic_files import write_whole
from ..results import StudyResults
from ..summary import Summary
from .comparison_figure import comparison_figure
from .drawing import Drawing, named_apart, write_drawings
from .interval_figures import inference_figures, prevalence_figures
from .markdown import markdown
from .page import page
from .panels import Panel, panels
from .rating_figure import rating_figures
from .reliability_figure import reliability_figure


def write_report(results: StudyResults, summary: Summary, out: Path) -> Path:
    """Into `out`; the same results give the same bytes.

    Returns:
        the path of `report.html`, which is written last.
    """
    shown = [] if results.config.task == "rating" else panels(results)
    drawings = _drawings(results, summary, shown)
    drawn = [each for some in drawings.values() for each in some]
    (out / "figures").mkdir(parents=True, exist_ok=True)
    write_drawings(drawn, out / "figures")
    write_whole(out / "report.md", markdown(results, summary, drawn))
    path = out / "report.html"
    write_whole(path, page(results, summary, shown, drawings))
    return path


def _drawings(results: StudyResults, summary: Summary, shown: list[Panel]) -> dict[str, list[Drawing]]:
    """By section, each with a name of its own."""
    found = {
        "ratings": rating_figures(results, summary),
        "inferences": inference_figures(summary),
        "prevalences": prevalence_figures(summary),
        "roc": [comparison_figure(panel) for panel in shown],
        "reliability": [reliability_figure(panel) for panel in shown],
    }
    names = iter(named_apart([each for some in found.values() for each in some]))
    return {section: [next(names) for _ in some] for section, some in found.items()}
