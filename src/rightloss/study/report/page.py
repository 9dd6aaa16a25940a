"""One page with all that a study found, complete in itself.

Stage: `StudyResults`, `Summary`, `Drawing`s → HTML.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from string import Template

from ... import __version__
from ..methods import METHODS
from ..results import StudyResults
from ..summary import Check, Summary
from .command import command
from .drawing import Drawing
from .hardest_cases import judging_loss
from .markup import Html, html, tag
from .methods_section import how_it_was_done, limits
from .nodule_cards import nodule_cards
from .panels import Panel
from .slider_section import slider_section
from .table_text import to_html
from .tables import comparison_table, result_tables

_TITLES = {
    "binary": "Which loss for the prevalence you will meet?",
    "rating": "Can a net rate nodules as readers do?",
    "balanced": "Image, metadata, or both, at the prevalence you will meet?",
}

_SHOWN = 8  # checks, before the others are folded away


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading; left out where it has no content."""

    name: str
    title: str
    content: Html


def page(results: StudyResults, summary: Summary, shown: list[Panel], drawings: dict[str, list[Drawing]]) -> str:
    sections = [each for each in _sections(results, summary, shown, drawings) if each.content]
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return Template(_asset("page.html")).substitute(
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'",
        version=__version__,
        title=html(f"{title_of(results)} · rightloss"),
        style=_asset("page.css"),
        script=script,
        body=html(
            [_header(results, summary, sections), tag("main", [_section(each) for each in sections], id="main"), _footer()]
        ),
    )


def title_of(results: StudyResults) -> str:
    return "Which posterior for rare malignancy?" if len(results.config.inferences) > 1 else _TITLES[results.config.task]


def _sections(results: StudyResults, summary: Summary, shown: list[Panel], drawings: dict[str, list[Drawing]]) -> list[Section]:
    return [
        Section("checks", "Does the paper's finding reproduce?", _checks(summary.checks)),
        Section("ratings", "Readers' ratings and predicted ones", _figures(drawings["ratings"])),
        Section("inferences", "One net or many weights", _figures(drawings["inferences"])),
        Section("prevalences", "Over prevalences", _unfolding(drawings["prevalences"])),
        Section("tables", "The tables", _tables(summary)),
        Section("slider", "Move the prevalence", slider_section(shown) if shown else Html("")),
        Section("roc", "Ranking and probabilities", _unfolding(drawings["roc"])),
        Section("reliability", "Do predictions come true?", _unfolding(drawings["reliability"])),
        Section("nodules", "The nodules most often misjudged", _nodules(results)),
        Section("how", "How it was done", _how(results)),
    ]


def _header(results: StudyResults, summary: Summary, sections: list[Section]) -> Html:
    missing = summary.findings[:1] if summary.missing else ()  # what is told first of an incomplete study
    links = [tag("li", tag("a", each.title, href=f"#{each.name}")) for each in sections]
    return tag(
        "header",
        [
            tag("p", f"Lung nodules · study “{results.config.preset}”", class_="kicker"),
            tag("h1", title_of(results)),
            *(tag("p", each, class_="note", role="note") for each in missing),
            *([tag("p", summary.answer, class_="lead")] if summary.answer else []),
            tag("p", summary.question),
            tag("ul", [tag("li", each) for each in summary.findings[len(missing) :]], class_="findings"),
            tag("nav", tag("ul", links), aria_label="Sections"),
        ],
    )


def _section(section: Section) -> Html:
    heading = tag("h2", section.title, id=f"{section.name}-title")
    return tag("section", [heading, section.content], id=section.name, aria_labelledby=f"{section.name}-title")


def _footer() -> Html:
    text = f"Made by rightloss {__version__}. This page is complete in itself: it loads nothing and sends nothing."
    return tag("footer", tag("p", text))


def _checks(checks: tuple[Check, ...]) -> Html:
    if not checks:
        return Html("")
    first, rest = ([_check(each) for each in some] for some in (checks[:_SHOWN], checks[_SHOWN:]))
    more = tag("details", [tag("summary", f"{len(rest)} more"), tag("ul", rest, class_="checks")])
    return html([tag("ul", first, class_="checks"), *([more] if rest else [])])


def _check(check: Check) -> Html:
    verdict = tag("span", check.verdict, class_=f"chip {check.verdict.replace(' ', '-')}")
    about = tag("strong", check.about[:1].upper() + check.about[1:])
    return tag("li", [tag("p", [about, f" · {check.where} ", verdict]), tag("p", check.sentence, class_="small")])


def _tables(summary: Summary) -> Html:
    parts: list[Html] = []
    for table in result_tables(summary):
        parts += [tag("h3", table.title), to_html(table)]
    compared = comparison_table(summary)
    if compared is not None:
        parts.append(tag("details", [tag("summary", compared.title), to_html(compared)]))
    return html(parts)


def _figures(drawings: list[Drawing]) -> Html:
    return html([each.figure() for each in drawings])


def _unfolding(drawings: list[Drawing]) -> Html:
    """The first is open, the others unfold."""
    if len(drawings) < 2:
        return _figures(drawings)
    parts = enumerate(drawings)
    return html([tag("details", [tag("summary", each.title), each.figure()], open=place == 0) for place, each in parts])


def _nodules(results: StudyResults) -> Html:
    cards, judge = nodule_cards(results), judging_loss(results)
    about = (
        f"Judged by the {METHODS[judge].title if judge else ''} over all nets, prevalences, folds and seeds; predictions are "
        "first moved to where benign and malignant nodules are equally frequent, so that no prevalence decides. Worst first. "
        "The pictures show the middle plane."
    )
    return Html("") if cards is None else html([tag("p", about), cards])


def _how(results: StudyResults) -> Html:
    return html(
        [
            tag("ul", [tag("li", each) for each in how_it_was_done(results)], class_="plain"),
            tag("h3", "What it cannot say"),
            tag("ul", [tag("li", each) for each in limits(results.config)], class_="plain"),
            tag("h3", "The command that makes it again"),
            tag("pre", tag("code", command(results.config))),
        ]
    )


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
