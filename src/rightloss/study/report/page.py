"""The report as one self-contained page, and the same as Markdown.

Stage: `StudyResults`, `Summary` → figures, then `report.md` and `report.html`, by the templates in `templates/`: the first
picture, what the sliders move, what was run, and the nodules most often misjudged. Nothing is trained, no data set is opened.
"""

from __future__ import annotations

import base64
import io
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float64, Int64, UInt8
from scipy.special import expit

from ...atomic_files import write_whole
from ...card.page import render
from ...card.words import Shown, counted, listed, markdown_text, percent, share
from ...lidc import rounded_mean
from ..config import CONTOURS, IMAGE_NETS, PRESETS, StudyConfig, Training, options_of
from ..methods import DEFAULT, METHODS
from ..paper import CITATION
from ..results import Cell, CellKey, DataSummary, StudyResults, cells, grouped
from ..summary import CellSummary, Summary, wording
from ..summary.comparisons import BOTH, main_loss
from ..summary.contract import CONSTANT, LOG_LIKELIHOOD
from .export import to_markdown
from .figures import (
    Drawing,
    Panel,
    confusions,
    inference_figures,
    panels_of,
    prevalence_figures,
    rating_figures,
    reliability_figure,
    roc_figure,
    trace_figures,
    with_unique_names,
)
from .tables import comparison_table, tables

Config = TypeVar("Config", StudyConfig, Training)
_MANTISSAS = "1 1.1 1.2 1.3 1.4 1.6 1.8 2 2.2 2.5 2.8 3 3.5 4 4.5 5 5.5 6 7 8 9".split()


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
    drawings = drawings_of(results, summary, panels)
    (out / "figures").mkdir(parents=True, exist_ok=True)
    for each in (drawing for some in drawings.values() for drawing in some):
        write_whole(out / "figures" / f"{each.name}.svg", each.svg())
    context = _context(results, summary, panels) | {"drawings": drawings}
    for name in ("report.md", "report.html"):
        write_whole(out / name, render(f"{name}.j2", context, __package__))
    return out / "report.html"


def drawings_of(results: StudyResults, summary: Summary, panels: Sequence[Panel]) -> dict[str, list[Drawing]]:
    """Return the figures by section."""
    found = {
        "Did the intercept arrive?": trace_figures(results),
        "Ratings off by one at most": rating_figures(results, summary),
        "Expected log-likelihood by inference": inference_figures(summary),
        "AUC and gain over prevalences": prevalence_figures(summary),
        "ROC curves and predicted probabilities": [roc_figure(panel) for panel in panels],
        "Calibration: predicted and observed shares": [reliability_figure(panel) for panel in panels],
    }
    unique = iter(with_unique_names(each for some in found.values() for each in some))
    return {title: [next(unique) for _ in some] for title, some in found.items() if some}


def _context(results: StudyResults, summary: Summary, panels: Sequence[Panel]) -> dict[str, Any]:
    config, compared = results.config, comparison_table(summary)
    judge = judging_loss(results)
    return {
        "title": wording.title(config),
        "incomplete": wording.incomplete(summary),
        "headline": wording.headline(summary) if summary.rows else [],
        "config": config,
        "losses": {name: METHODS[name].title for name in config.losses},
        "settings": settings(results),
        "citation": CITATION,
        "overview": overview(summary),
        "tables": [*tables(summary), *([compared] if compared else [])],
        "markdown": to_markdown,
        "escaped": markdown_text,
        "confusions": list(confusions(results)),
        "judge": METHODS[judge].title if judge else "",
        "nodules": nodules_by_side(results),
        "command": command(config),
        "data": {"prevalences": grid(-4), "thresholds": grid(-3), "panels": [slider_data(panel, config) for panel in panels]},
    }


# The first picture: how much each loss gains over always answering π, with 95 % intervals. The page's template draws it.

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
        >>> from rightloss.study.report.page import overview
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
    panels = {_title(rows, summary, about): _panel(rows, summary, about, axis) for rows in [*first, *groups]}
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
    return list(grouped(rows, lambda row: _without(row.key, about)).values())


def _without(key: CellKey, about: Dimension) -> CellKey:
    """Return the settings that the rows of a panel share."""
    return CellKey(**{**key._asdict(), about: ""})


def _title(rows: Sequence[CellSummary], summary: Summary, about: Dimension) -> str:
    key = _without(rows[0].key, about)
    where = wording.where(key, summary.config, without=("population",))
    prevalence = "Ratings as frequent as readers gave them" if key.population is None else f"Prevalence {share(key.population)}"
    return ", ".join(filter(None, [prevalence, where]))


def _panel(rows: Sequence[CellSummary], summary: Summary, about: Dimension, axis: _Axis) -> list[OverviewRow]:
    usual = main_loss(summary.config) if about == "loss" else _REFERENCES[about]
    reference = next((row for row in rows if getattr(row.key, about) == usual), None)
    verdicts = {} if reference is None else {reference.key: "", **_verdicts(reference.key, summary)}
    return [_row(row, _label(getattr(row.key, about), about), verdicts.get(row.key, "not compared"), axis) for row in rows]


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


def _verdicts(reference: CellKey, summary: Summary) -> dict[CellKey, str]:
    """Return the verdict of each cell's paired difference to the reference."""
    found: dict[CellKey, str] = {}
    for each in (each for each in summary.comparisons if LOG_LIKELIHOOD in each.differences):
        standing = each.differences[LOG_LIKELIHOOD].standing
        if each.theirs == reference:
            found.setdefault(each.ours, _VERDICTS[standing])
        elif each.ours == reference:
            found.setdefault(each.theirs, _VERDICTS[_OPPOSITE[standing]])
    return found


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


# What the sliders move: each method's log-odds by class.


def grid(lowest: int) -> list[float]:
    """Return round numbers from 10^lowest to 0.5, nearly evenly spaced in the logarithm."""
    numbers = [float(f"{mantissa}e{power}") for power in range(lowest, 0) for mantissa in _MANTISSAS]
    return [number for number in numbers if number <= 0.5]


def slider_data(panel: Panel, config: StudyConfig) -> dict[str, Any]:
    """Return the data for the page's script."""
    columns = [{"rate": rate, "methods": [_method(cell, config) for cell in some]} for rate, some in panel.columns.items()]
    return {"title": panel.title, "columns": columns}


def _method(cell: Cell, config: StudyConfig) -> dict[str, Any]:
    """Return the sorted log-odds of benign and malignant nodules, and of how many patients they are."""
    odds, labels = cell.log_probs[:, 1] - cell.log_probs[:, 0], cell.labels
    sides = {name: labels == label for label, name in enumerate(("benign", "malignant"))}
    return {
        "name": wording.method(cell.key, config),
        "patients": {name: len(np.unique(cell.patients[own])) for name, own in sides.items()},
        **{name: _packed(odds[own]) for name, own in sides.items()},
    }


def _packed(odds: np.ndarray) -> str:
    """Return the sorted values as float64 in base64, without rounding."""
    return base64.b64encode(np.sort(odds).astype("<f8").tobytes()).decode("ascii")


# Methods.


def settings(results: StudyResults) -> dict[str, str]:
    """Return what was run, by what it is about."""
    config, training = results.config, results.config.training
    images = any(each in (*IMAGE_NETS, "both") for each in config.nets)
    rates = listed([share(rate) for rate in config.populations if rate is not None])
    found = {
        "Data": "; ".join(_counts(results, name) for name in results.data),
        "Nets": listed([wording.NETS[each] for each in config.nets]) + (", small" if training.small and images else ""),
        "Likelihood": listed([wording.LIKELIHOODS[each] for each in config.likelihoods]),
        "Inference": listed([wording.INFERENCES[each] for each in config.inferences]),
        "Prevalence": f"{rates or 'shares of the readers’ votes'}; evidence κ = {config.evidence:g}",
        "Before training": listed([wording.STARTS[each] for each in config.starts]),
        "Training": f"{training.steps:,} steps of AdamW, step size {listed([f'{rate:g}' for rate in training.learning_rates])}",
        "Minibatches": f"{training.batch_size} nodules; {listed([wording.MINIBATCHES[each] for each in config.minibatches])}"
        + (f"; {training.views} views of each, {training.test_views} in the test" if images else ""),
        "Weights": f"running mean with decay {training.averaging:g}; best of {training.checkpoints} checkpoints",
        "Unlabelled": _unlabelled(config),
        "Tested": f"{config.folds} of {config.num_folds} folds by patient, {counted(config.seeds, 'seed')}",
        "Runs": f"{len(results.runs):,} of {len(config.runs()):,}",
    }
    return {name: text for name, text in found.items() if text}


def _counts(results: StudyResults, name: str) -> str:
    """Return the size of a data set; patients if they are named."""
    data = results.data[name]
    patients = f", {counted(len(np.unique(data.patients)), 'patient')}" if len(data.ratings) else ""
    malignant = "" if results.config.task == "rating" else f", {int((data.labels == 1).sum()):,} malignant"
    return f"{wording.source(name)}: {counted(len(data.labels), 'nodule')}{patients}{malignant}"


def _unlabelled(config: StudyConfig) -> str:
    learnt = listed([METHODS[loss].title for loss in config.losses if METHODS[loss].takes_unlabelled])
    weight = (
        "" if config.unlabelled_weight is None else f", with {config.unlabelled_weight:g} times the mass of the labelled ones"
    )
    lost = f"{percent(config.unlabelled)} of the training patients lost their labels"
    return f"{lost}{weight}; used by {learnt}" if config.unlabelled else ""


def command(config: StudyConfig) -> str:
    """Return the command: the preset, and an option for each difference from it."""
    preset = PRESETS.get(config.preset, StudyConfig(config.preset, task=config.task, populations=config.populations))
    words = ["rightloss", "study", config.preset, "--out", "FOLDER"]
    if [source.name for source in config.sources] != [CONTOURS]:
        names = [source.name if source.name == CONTOURS else f"{source.name}.npz" for source in config.sources]
        words += [word for name in names for word in ("--data", name)]
    words += _differences(replace(config, sources=preset.sources), preset)
    return shlex.join([*words, *_differences(config.training, preset.training)])


def _differences(own: Config, usual: Config) -> list[str]:
    """Return options for the fields that differ."""
    words = []
    for field, option in options_of(type(own)).items():
        value = getattr(own, field)
        if value == getattr(usual, field):
            continue
        if isinstance(value, bool):
            words.append(f"--{option.name}" if value else "--full")
        else:
            values = value if isinstance(value, tuple) else (value,)
            words += [word for each in values if each is not None for word in (f"--{option.name}", f"{each}")]
    return words


# The nodules that the nets most often misjudge, the worst first, with pictures and readers' ratings.

BENIGN, MALIGNANT, NEITHER = 0, 1, -1
_SIDES = {BENIGN: "benign", MALIGNANT: "malignant"}
_NOT_MOVED = "plain"


class HardCase(NamedTuple):
    """A nodule, and how wrong the nets are about it.

    Attributes:
        row: of the data set.
        wrong: mean probability of the wrong side, at equal class frequencies.
        share: share of the judging loss's predictions on the wrong side.
        by_loss: `wrong` for each loss of the study.
    """

    row: int
    wrong: float
    share: float
    by_loss: dict[str, float]


def hardest_cases(results: StudyResults, data: str, most: int = 12) -> dict[int, list[HardCase]]:
    """Return for each side the nodules that the judging loss misjudges most, over all nets, prevalences, folds and seeds, from
    the study's first start.

    Predictions are first moved to equal class frequencies, so the prevalence plays no part. Plain cross-entropy predicts at its
    minibatches' frequencies, whatever π is, and is left out.
    """
    first = (data, results.config.starts[0])
    shown = (each for each in cells(results) if (each.key.data, each.key.start) == first and each.key.loss != _NOT_MOVED)
    by_loss = grouped(shown, lambda cell: cell.key.loss)
    judge = judging_loss(results)
    if judge not in by_loss:
        return {BENIGN: [], MALIGNANT: []}
    side = _sides(results.data[data])
    errors = {loss: _errors(some, side) for loss, some in by_loss.items()}
    return {which: _worst(errors, judge, np.flatnonzero(side == which), most) for which in (BENIGN, MALIGNANT)}


def judging_loss(results: StudyResults) -> str | None:
    """Return the default loss, or else the first that has runs; None if there are none."""
    done = dict.fromkeys(run.config.loss for run in results.runs if run.config.loss != _NOT_MOVED)
    return DEFAULT if DEFAULT in done else next(iter(done), None)


def nodules_by_side(results: StudyResults) -> dict[str, list[dict[str, Any]]]:
    """Return the hardest cases of each data set and side as the page shows them; none of data sets without pictures."""
    found = {}
    for name, data in ((name, data) for name, data in results.data.items() if data.pictures.size):
        for side, cases in hardest_cases(results, name).items():
            title = f"{wording.capitalised(_SIDES[side])}, taken for {_SIDES[1 - side]}"
            title += f" ({wording.source(name)})" if len(results.data) > 1 else ""
            if cases:
                found[title] = [{**case._asdict(), **_shown(case, data), "side": _SIDES[side]} for case in cases]
    return found


def _shown(case: HardCase, data: DataSummary) -> dict[str, Any]:
    ratings = np.repeat(np.arange(1, 6), data.ratings[case.row]).tolist() if len(data.ratings) else []
    return {
        "nodule": int(data.nodules[case.row]),
        "picture": _data_uri(data.pictures[case.row]),
        "ratings": ", ".join(map(str, ratings)),
        "others": {METHODS[loss].short: wrong for loss, wrong in case.by_loss.items()},
    }


def _data_uri(plane: UInt8[np.ndarray, "h w"]) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(plane).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _sides(data: DataSummary) -> Int64[np.ndarray, " n"]:
    """Return benign, malignant or neither: for five ratings by the readers' rounded mean, where 3 is neither."""
    if data.votes.shape[1] == 2:
        return data.labels
    rating = rounded_mean(data.votes).numpy()
    return np.select([rating < 2, rating > 2], [BENIGN, MALIGNANT], NEITHER)


def _side_odds(cell: Cell) -> Float64[np.ndarray, " n"]:
    """Return log-odds of malignant against benign at equal class frequencies."""
    table = np.concatenate([cell.log_probs, np.log(cell.population)[None]])
    middle = table.shape[1] // 2
    odds = np.logaddexp.reduce(table[:, -middle:], axis=1) - np.logaddexp.reduce(table[:, :middle], axis=1)
    return np.asarray(odds[:-1] - odds[-1])


def _errors(some: list[Cell], side: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, "n 2"]:
    """Return, by row, the mean probability of the wrong side and the share of predictions there; NaN if not tested."""
    total = np.zeros((len(side), 3))
    for cell in some:
        odds = _side_odds(cell) * np.where(side[cell.rows] == MALIGNANT, -1.0, 1.0)
        np.add.at(total, cell.rows, np.stack([expit(odds), odds > 0, np.ones(len(odds))], 1))
    with np.errstate(invalid="ignore"):
        return total[:, :2] / total[:, 2:]


def _worst(errors: Mapping[str, Float64[np.ndarray, "n 2"]], judge: str, rows: np.ndarray, most: int) -> list[HardCase]:
    """Return the worst of these rows by the judging loss, without rows that were not tested."""
    tested = rows[~np.isnan(errors[judge][rows, 0])]
    found = []
    for row in tested[np.argsort(-errors[judge][tested, 0], kind="stable")][:most].tolist():
        by_loss = {loss: float(table[row, 0]) for loss, table in errors.items() if not np.isnan(table[row, 0])}
        wrong, misjudged = errors[judge][row].tolist()
        found.append(HardCase(row, wrong, misjudged, by_loss))
    return found
