"""The report as one self-contained page, and the same as Markdown.

Stage: `StudyResults`, `Summary` → figures, then `report.md` and `report.html`, by the templates in `templates/`. Nothing is
trained, no data set is opened.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from ... import __version__
from ...atomic_files import whole_file, write_whole
from ..methods import METHODS
from ..paper import CITATION
from ..results import StudyResults
from ..summary import Summary, narrative, wording
from ..summary.headline import headline
from .claims import claims
from .export import markdown_text, to_markdown
from .figures import Drawing, inference_figures, inline_svg, prevalence_figures, rating_figures, with_unique_names
from .hardest_cases import judging_loss, nodule_cards
from .methods_section import command, facts, glossary, limits, methods
from .overview import overview
from .panel_figures import Panel, panels_of, reliability_figure, roc_figure
from .slider import PREVALENCES, THRESHOLDS, slider_data, ticks
from .tables import beyond_intercept, comparison_table, tables
from .trace_figure import CAPTION, trace_figures

if TYPE_CHECKING:
    from jinja2 import Environment

# The folded sections, in order.
_SECTIONS = {
    "glossary": "The losses and terms, in a line each",
    "findings": "All findings in sentences",
    "other-panels": "The same picture for the other nets, data sets and prevalences",
    "slider-more": "More that the slider moves: predictive values, net benefit, counts",
    "ratings": "Readers' ratings and predicted ones",
    "inferences": "One net or many weights: expected log-likelihood",
    "prevalences": "AUC and gain over prevalences",
    "tables": "Tables: every figure with its interval, matched to π, and by cost",
    "comparisons": "Paired differences, with intervals and verdicts",
    "roc": "ROC curves and histograms of predicted probabilities",
    "reliability": "Calibration: predicted and observed shares",
    "nodules": "The nodules most often misjudged, with pictures",
    "methods": "Methods, limits, and the command that reproduces this study",
}


def write_report(results: StudyResults, summary: Summary, out: str | os.PathLike[str]) -> Path:
    """Write the page, its Markdown version, and the figures; the same results give the same bytes.

    Args:
        results: of the study.
        summary: of the same results, by `summarise`.
        out: folder for `report.html`, `report.md` and `figures/`.

    Returns:
        the path of `report.html`, which is written last.

    Examples:
        >>> import tempfile
        >>> from rightloss.study import PRESETS, StudyResults
        >>> from rightloss.study.summary import summarise
        >>> from rightloss.study.report import write_report
        >>> results = StudyResults(PRESETS["quick"], data={}, runs=())
        >>> write_report(results, summarise(results), tempfile.mkdtemp()).name
        'report.html'
    """
    out = Path(out)
    panels = panels_of(results)
    drawings = _draw(results, summary, panels)
    (out / "figures").mkdir(parents=True, exist_ok=True)
    for each in (drawing for some in drawings.values() for drawing in some):
        write_whole(out / "figures" / f"{each.name}.svg", each.svg)
        with whole_file(out / "figures" / f"{each.name}.png") as file:
            file.write(each.png)
    for name, text in _render(results, summary, panels, drawings).items():
        write_whole(out / name, text)
    return out / "report.html"


def _draw(results: StudyResults, summary: Summary, panels: Sequence[Panel]) -> dict[str, list[Drawing]]:
    """Return the report's figures by section, with unique names."""
    return with_unique_names(
        {
            "trace": trace_figures(results),
            "ratings": rating_figures(results, summary),
            "inferences": inference_figures(summary),
            "prevalences": prevalence_figures(summary),
            "roc": [roc_figure(panel) for panel in panels],
            "reliability": [reliability_figure(panel) for panel in panels],
        }
    )


def _render(
    results: StudyResults, summary: Summary, panels: Sequence[Panel], drawings: Mapping[str, Sequence[Drawing]]
) -> dict[str, str]:
    """Render `report.md` and `report.html`; sections without content are left out."""
    nodules, judge, found = nodule_cards(results), judging_loss(results), tables(summary, more=True)
    compared, picture = comparison_table(summary), overview(summary)
    start = wording.STARTS[results.config.starts[0]] if len(results.config.starts) > 1 else ""
    content = {
        "glossary": True,
        "findings": True,
        "other-panels": picture and picture.more,
        "slider-more": panels,
        "tables": found,
        "comparisons": compared,
        "nodules": nodules,
        "methods": True,
        **drawings,
    }
    context = {
        "title": narrative.title(results.config),
        "headline": headline(summary),
        "facts": facts(results),
        "citation": CITATION,
        "mean_off": narrative.mean_prediction_off(summary),
        "glossary": glossary(results.config),
        "version": __version__,
        "results": results,
        "summary": summary,
        "overview": picture,
        "trace_caption": CAPTION,
        "beyond_intercept": beyond_intercept(summary),
        "claims": claims(summary),
        "sections": {name: title for name, title in _SECTIONS.items() if content[name]},
        "tables": found,
        "comparisons": compared,
        "drawings": drawings,
        "slider": slider_data(panels),
        "sliders": {"prevalence": PREVALENCES, "threshold": THRESHOLDS},
        "nodules": nodules,
        "judge": ", ".join(filter(None, [METHODS[judge].title, start])) if judge else "",
        "methods": methods(results),
        "limits": limits(results.config),
        "command": command(results.config),
    }
    environment = _environment()
    return {name: environment.get_template(f"{name}.j2").render(context) for name in ("report.md", "report.html")}


def _environment() -> Environment:
    """Return the template environment; all text is escaped in HTML, except our own style, script and figures."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    assets = {
        name: files(__package__).joinpath("templates", name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    }
    environment = Environment(
        loader=PackageLoader(__package__, "templates"),
        autoescape=lambda name: name is None or not name.endswith(".md.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    environment.filters |= {
        "capitalised": wording.capitalised,
        "markdown": markdown_text,
        "markdown_table": to_markdown,
        "svg": lambda drawing: Markup(inline_svg(drawing)),
        "ticks": ticks,
    }
    digest = base64.b64encode(hashlib.sha256(assets["page.js"].encode()).digest()).decode("ascii")
    environment.globals |= {
        "style": Markup(assets["page.css"]),
        "script": Markup(assets["page.js"]),
        "script_digest": digest,
    }
    return environment
