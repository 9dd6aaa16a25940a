"""The report's first picture: how much each loss gains over always answering π, with 95 % intervals.

Stage: `Summary` → panels of rows: labels, numbers, and places in percent of one axis; the page's template draws them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...card.words import Shown, share
from ..methods import METHODS
from ..pooled_predictions import CellKey
from ..summary import CellSummary, Summary, wording
from ..summary.comparisons import BOTH, main_loss
from ..summary.contract import CONSTANT, LOG_LIKELIHOOD

Dimension = Literal["loss", "net", "inference", "likelihood"]
_LOWEST = -0.5  # of the axis: a loss can be far worse than π, and would squeeze the others
_STEPS = (0.05, 0.1, 0.2, 0.25, 0.5)
_MOST_TICKS = 5
_REFERENCES = {"net": BOTH, "inference": "map", "likelihood": "categorical"}
_VERDICTS = {"ahead": "clearly better", "behind": "clearly worse", "undecided": "no clear difference"}
_OPPOSITE = {"ahead": "behind", "behind": "ahead", "undecided": "undecided"}


@dataclass(frozen=True)
class OverviewRow:
    """One loss, net, inference or likelihood.

    Attributes:
        label: its name.
        verdict: compared with the reference, on the same nodules; "" for the reference itself.
        gain: with its interval, as text.
        dot: place of the gain on the axis, in percent; None if it is below the axis or not defined.
        left, right: places of the ends of the interval.
        cut: whether the gain or its interval reaches below the axis.
        standing: "better", "worse" or "unclear", compared with always answering π.
    """

    label: str
    verdict: str
    gain: Shown
    dot: float | None
    left: float
    right: float
    cut: bool
    standing: str


@dataclass(frozen=True)
class Overview:
    """The picture.

    Attributes:
        about: "loss", "net", "inference" or "likelihood".
        reference: what rows are compared with.
        ticks: place on the axis in percent, by label.
        zero: place of always answering π.
        panels: rows by title; those of the highest and the lowest prevalence of the first data set, net and start first.
        first: how many these are.
    """

    about: Dimension
    reference: str
    ticks: Mapping[str, float]
    zero: float
    panels: Mapping[str, Sequence[OverviewRow]]
    first: int


def overview(summary: Summary) -> Overview | None:
    """Return the picture of a study; None if no run is done.

    Examples:
        >>> from rightloss.study import PRESETS, StudyResults
        >>> from rightloss.study.report.overview import overview
        >>> from rightloss.study.summary import summarise
        >>> overview(summarise(StudyResults(PRESETS["quick"], data={}, runs=()))) is None
        True
    """
    about = dimension_of(summary)
    groups = _groups(summary, about)
    if not groups:
        return None
    same = [rows for rows in groups if rows[0].key._replace(population=None) == groups[0][0].key._replace(population=None)]
    by_rate = sorted(same, key=lambda rows: -(rows[0].key.population or 0.0))
    first = [by_rate[0], by_rate[-1]] if len(by_rate) > 1 else by_rate
    axis = _Axis.around(groups)
    panels = {_title(rows, summary, about): _rows(rows, summary, about, axis) for rows in [*first, *groups]}
    name = METHODS[main_loss(summary.config)].title if about == "loss" else _label(_REFERENCES[about], about)
    return Overview(about, name, axis.ticks(), axis.place(0.0), panels, len(first))


def dimension_of(summary: Summary) -> Dimension:
    """Return what the study is about: its posteriors, nets or likelihoods if it has several, else its losses."""
    config = summary.config
    if config.unlabelled:
        return "loss"
    if len(config.inferences) > 1:
        return "inference"
    if config.task == "balanced" and len(config.nets) > 1:
        return "net"
    return "likelihood" if config.task == "rating" and len(config.likelihoods) > 1 else "loss"


def _groups(summary: Summary, about: Dimension) -> list[list[CellSummary]]:
    """Return the rows of each panel; if it is not about losses, only those of the default, or else of the first loss."""
    rows = [row for row in summary.rows if row.key.loss != CONSTANT]
    if about != "loss" and rows:
        shown = next((row.key for row in rows if row.key.loss == main_loss(summary.config)), rows[0].key)
        rows = [row for row in rows if (row.key.loss, row.key.start) == (shown.loss, shown.start)]
    groups: dict[CellKey, list[CellSummary]] = {}
    for row in rows:
        groups.setdefault(_without(row.key, about), []).append(row)
    return list(groups.values())


def _without(key: CellKey, about: Dimension) -> CellKey:
    """Return the settings that the rows of a panel share."""
    return CellKey(**{**key._asdict(), about: ""})


def _title(rows: Sequence[CellSummary], summary: Summary, about: Dimension) -> str:
    key = _without(rows[0].key, about)
    where = wording.where(key, summary.config, without=("population",))
    prevalence = "Ratings as frequent as readers gave them" if key.population is None else f"Prevalence {share(key.population)}"
    return ", ".join(filter(None, [prevalence, where]))


def _rows(rows: Sequence[CellSummary], summary: Summary, about: Dimension, axis: _Axis) -> list[OverviewRow]:
    usual = main_loss(summary.config) if about == "loss" else _REFERENCES[about]
    reference = next((row for row in rows if getattr(row.key, about) == usual), None)
    verdicts = {row.key: "" if row is reference else _verdict(row, reference, summary) for row in rows}
    return [_row(row, _label(getattr(row.key, about), about), verdicts[row.key], axis) for row in rows]


def _row(row: CellSummary, label: str, verdict: str, axis: _Axis) -> OverviewRow:
    skill = row.figures["skill"]
    ends = [each for each in (skill.low, skill.value, skill.high) if not math.isnan(each)]
    value = "–" if math.isnan(skill.value) else f"{_percent(skill.value, 1 if abs(skill.value) < 1 else 0)} %"
    return OverviewRow(
        label,
        verdict,
        Shown(value, "" if math.isnan(skill.low) else f"{_percent(skill.low)} to {_percent(skill.high)} %"),
        axis.place(skill.value) if skill.value >= axis.low else None,
        axis.place(min(ends)) if ends else 0.0,
        axis.place(max(ends)) if ends else 0.0,
        bool(ends) and min(ends) < axis.low,
        "better" if wording.is_better(skill) else "worse" if wording.is_worse(skill) else "unclear",
    )


def _label(name: str, about: Dimension) -> str:
    if about == "loss":
        return METHODS[name].title
    return {"net": wording.NETS, "inference": wording.INFERENCES, "likelihood": wording.LIKELIHOODS}[about][name]


def _verdict(row: CellSummary, reference: CellSummary | None, summary: Summary) -> str:
    """Return the verdict of the paired difference to the reference, "not compared" if there is none."""
    for each in summary.comparisons if reference is not None else ():
        standing = each.differences[LOG_LIKELIHOOD].standing if LOG_LIKELIHOOD in each.differences else ""
        if standing and reference is not None and {each.ours, each.theirs} == {row.key, reference.key}:
            return _VERDICTS[standing if each.ours == row.key else _OPPOSITE[standing]]
    return "not compared"


def _percent(value: float, places: int = 0) -> str:
    return wording.number(100 * value, places, sign=True)


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float

    @classmethod
    def around(cls, groups: Sequence[Sequence[CellSummary]]) -> _Axis:
        """Return an axis that holds 0, every gain and interval, but nothing below `_LOWEST`."""
        skills = [row.figures["skill"] for rows in groups for row in rows]
        ends = [each for skill in skills for each in (skill.low, skill.value, skill.high) if math.isfinite(each)]
        low, high = max(_LOWEST, min([*ends, 0.0])), min(1.0, max([*ends, 0.1]))
        return cls(math.floor(low * 20 - 1e-9) / 20, math.ceil(high * 20 + 1e-9) / 20)

    def place(self, value: float) -> float:
        """Return where a gain is on the axis, in percent."""
        inside = min(max(value, self.low), self.high)
        return round(100 * (inside - self.low) / (self.high - self.low), 2)

    def ticks(self) -> dict[str, float]:
        step = next((step for step in _STEPS if (self.high - self.low) / step <= _MOST_TICKS), _STEPS[-1])
        numbers = range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)
        return {f"{_percent(number * step)} %": self.place(number * step) for number in numbers}
