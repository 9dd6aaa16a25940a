"""The report's first picture: how much each loss gains over always answering π, with 95 % intervals.

Stage: `Summary` → `Overview`: labels, numbers, and places in percent of the axis; the page's template draws it as a table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...metrics import Figure
from ..methods import ADJUSTED, DEFAULT, EVIDENCE
from ..pooled_predictions import CellKey
from ..summary import CellSummary, Summary, wording
from ..summary.comparisons import BOTH, is_default, main_loss
from ..summary.contract import CONSTANT, LOG_LIKELIHOOD
from ..summary.wording import INFERENCES, LIKELIHOODS, one_in

Dimension = Literal["loss", "net", "inference", "likelihood"]
Standing = Literal["better", "worse", "unclear"]
_LOWEST = -0.5  # of the axis: a loss can be far worse than π, and would squeeze the others
_STEPS = (0.05, 0.1, 0.2, 0.25, 0.5)
_MOST_TICKS = 5
_TITLES: Mapping[Dimension, str] = {"loss": "loss", "net": "net", "inference": "posterior", "likelihood": "likelihood"}
_VERDICTS = {"ahead": "clearly better", "behind": "clearly worse", "undecided": "no clear difference"}
_SAME = "The default and logit adjustment are the same loss here, up to noise of the minibatches: a difference is chance."
_OPPOSITE = {"ahead": "behind", "behind": "ahead", "undecided": "undecided"}


@dataclass(frozen=True)
class OverviewRow:
    """One loss, net, inference or likelihood.

    Attributes:
        label: its name.
        verdict: compared with the reference, on the same nodules; "" for the reference itself.
        value: the gain, as text.
        interval: its ends, as text; "" if there is none.
        dot: place of the gain on the axis, in percent; None if it is below the axis or not defined.
        left, right: places of the ends of the interval.
        cut: whether the gain or its interval reaches below the axis.
        standing: compared with always answering π.
    """

    label: str
    verdict: str
    value: str
    interval: str
    dot: float | None
    left: float
    right: float
    cut: bool
    standing: Standing

    @property
    def main(self) -> bool:
        """Whether the others are compared with this row."""
        return not self.verdict


@dataclass(frozen=True)
class OverviewPanel:
    """Rows of one population, data set and net."""

    title: str
    rows: tuple[OverviewRow, ...]


@dataclass(frozen=True)
class Overview:
    """The picture.

    Attributes:
        title: what it shows.
        reference: what rows are compared with.
        note: on rows that are the same by theory; "" if there are none.
        ticks: place on the axis in percent, by label.
        zero: place of always answering π.
        shown: panels of the first screen, two at most.
        more: the other panels.
    """

    title: str
    reference: str
    note: str
    ticks: Mapping[str, float]
    zero: float
    shown: tuple[OverviewPanel, ...]
    more: tuple[OverviewPanel, ...]


def overview(summary: Summary) -> Overview | None:
    """Return the picture of a study; None if no run is done.

    Examples:
        >>> from rightloss.study import PRESETS, StudyResults
        >>> from rightloss.study.report.overview import overview
        >>> from rightloss.study.summary import summarise
        >>> overview(summarise(StudyResults(PRESETS["quick"], data={}, runs=()))) is None
        True
    """
    dimension = dimension_of(summary)
    panels = _groups(summary, dimension)
    if not panels:
        return None
    first = _first(panels)
    axis = _Axis.around([row.figures["skill"] for rows in panels for row in rows])
    made = [_panel(rows, summary, dimension, axis) for rows in panels]
    return Overview(
        f"Gain over always answering the prevalence, π, by {_TITLES[dimension]}",
        _reference_name(summary, dimension),
        _SAME if dimension == "loss" and _has_same_losses(summary) else "",
        axis.ticks(),
        axis.place(0.0),
        tuple(made[place] for place in first),
        tuple(panel for place, panel in enumerate(made) if place not in first),
    )


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


def _has_same_losses(summary: Summary) -> bool:
    """Return whether the default is logit adjustment: for two classes, π known, in minibatches with the stated frequencies."""
    config = summary.config
    usual = config.task != "rating" and config.evidence == EVIDENCE and not config.unlabelled
    own = {row.key.loss for row in summary.rows}
    return usual and config.minibatches == ("rebalanced",) and {DEFAULT, ADJUSTED} <= own


def _groups(summary: Summary, dimension: Dimension) -> list[list[CellSummary]]:
    """Return the rows of each panel; if it is not about losses, only those of the default, or else of the first loss."""
    rows = [row for row in summary.rows if row.key.loss != CONSTANT]
    if dimension != "loss":
        shown = next((row.key for row in rows if is_default(row.key, summary.config)), rows[0].key if rows else None)
        rows = [row for row in rows if shown and (row.key.loss, row.key.start) == (shown.loss, shown.start)]
    groups: dict[CellKey, list[CellSummary]] = {}
    for row in rows:
        groups.setdefault(_without(row.key, dimension), []).append(row)
    return list(groups.values())


def _without(key: CellKey, dimension: Dimension) -> CellKey:
    """Return the settings that the rows of a panel share."""
    if dimension == "loss":
        return key._replace(loss="")
    if dimension == "net":
        return key._replace(net="")
    return key._replace(inference="") if dimension == "inference" else key._replace(likelihood="")


def _first(panels: Sequence[Sequence[CellSummary]]) -> list[int]:
    """Return the places of the panels shown first: the highest and the lowest prevalence of the first data set, net, start."""
    start = panels[0][0].key
    shared = ("data", "minibatches", "net", "likelihood", "start", "inference")
    same = [
        place for place, rows in enumerate(panels) if all(getattr(rows[0].key, name) == getattr(start, name) for name in shared)
    ]
    by_rate = sorted(same, key=lambda place: -(panels[place][0].key.population or 0.0))
    return list(dict.fromkeys([by_rate[0], by_rate[-1]]))


def _panel(rows: Sequence[CellSummary], summary: Summary, dimension: Dimension, axis: _Axis) -> OverviewPanel:
    key = _without(rows[0].key, dimension)
    where = wording.where(key, summary.config, without=("population",))
    prevalence = (
        "Ratings as frequent as readers gave them" if key.population is None else f"Prevalence {one_in(key.population)}"
    )
    title = ", ".join(filter(None, [prevalence, where]))
    reference = _reference(rows, summary, dimension)
    return OverviewPanel(title, tuple(_row(row, reference, summary, dimension, axis) for row in rows))


def _row(row: CellSummary, reference: CellSummary | None, summary: Summary, dimension: Dimension, axis: _Axis) -> OverviewRow:
    skill = row.figures["skill"]
    ends = [each for each in (skill.low, skill.value, skill.high) if not math.isnan(each)]
    interval = "" if math.isnan(skill.low) else f"{_percent(skill.low)} to {_percent(skill.high)} %"
    standing: Standing = "better" if skill.low > 0 else "worse" if skill.high < 0 or skill.value == -math.inf else "unclear"
    return OverviewRow(
        _label(row, summary, dimension),
        "" if row is reference else _verdict(row, reference, summary),
        "–" if math.isnan(skill.value) else f"{_percent(skill.value, 1 if abs(skill.value) < 1 else 0)} %",
        interval,
        axis.place(skill.value) if skill.value >= axis.low else None,
        axis.place(min(ends)) if ends else 0.0,
        axis.place(max(ends)) if ends else 0.0,
        bool(ends) and min(ends) < axis.low,
        standing,
    )


def _label(row: CellSummary, summary: Summary, dimension: Dimension) -> str:
    key = row.key
    if dimension == "loss":
        return wording.method(key, summary.config)
    if dimension == "net":
        return wording.net(key, summary.config)
    return INFERENCES[key.inference] if dimension == "inference" else LIKELIHOODS[key.likelihood]


def _reference(rows: Sequence[CellSummary], summary: Summary, dimension: Dimension) -> CellSummary | None:
    """Return the row that the others are compared with, None if it is missing."""
    if dimension == "loss":
        default = next((row for row in rows if is_default(row.key, summary.config)), None)
        return default or next((row for row in rows if row.key.loss == main_loss(summary.config)), None)
    usual = {"net": BOTH, "inference": "map", "likelihood": "categorical"}[dimension]
    return next((row for row in rows if getattr(row.key, dimension) == usual), None)


def _reference_name(summary: Summary, dimension: Dimension) -> str:
    names = {"net": wording.NETS[BOTH], "inference": INFERENCES["map"], "likelihood": LIKELIHOODS["categorical"]}
    return names.get(dimension, wording.METHODS[main_loss(summary.config)].title)


def _verdict(row: CellSummary, reference: CellSummary | None, summary: Summary) -> str:
    """Return the verdict of the paired difference to the reference, "not compared" if there is none."""
    if reference is not None:
        for each in summary.comparisons:
            if LOG_LIKELIHOOD not in each.differences:
                continue
            standing = each.differences[LOG_LIKELIHOOD].standing
            if (each.ours, each.theirs) == (row.key, reference.key):
                return _VERDICTS[standing]
            if (each.ours, each.theirs) == (reference.key, row.key):
                return _VERDICTS[_OPPOSITE[standing]]
    return "not compared"


def _percent(share: float, places: int = 0) -> str:
    return wording.number(100 * share, places, sign=True)


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float

    @classmethod
    def around(cls, skills: Sequence[Figure]) -> _Axis:
        """Return an axis that holds 0, every value and interval, but nothing below `_LOWEST`."""
        ends = [each for skill in skills for each in (skill.low, skill.value, skill.high) if math.isfinite(each)]
        low, high = max(_LOWEST, min([*ends, 0.0])), min(1.0, max([*ends, 0.1]))
        return cls(math.floor(low * 20 - 1e-9) / 20, math.ceil(high * 20 + 1e-9) / 20)

    def place(self, share: float) -> float:
        """Return where a share is on the axis, in percent."""
        inside = min(max(share, self.low), self.high)
        return round(100 * (inside - self.low) / (self.high - self.low), 2)

    def ticks(self) -> dict[str, float]:
        step = next((step for step in _STEPS if (self.high - self.low) / step <= _MOST_TICKS), _STEPS[-1])
        numbers = range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)
        return {f"{_percent(number * step)} %": self.place(number * step) for number in numbers}
