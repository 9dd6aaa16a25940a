"""The report as one self-contained page, and the same as Markdown.

Stage: `StudyResults`, `Summary` → figures, then `report.md` and `report.html`, by the templates in `templates/`. Nothing is
trained, no data set is opened.
"""

from __future__ import annotations

import base64
import io
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float64, Int64, UInt8
from scipy.special import expit

from ...atomic_files import write_whole
from ...card.page import render
from ...card.words import counted, listed, markdown_text, percent, share
from ...lidc.votes import rounded_mean
from ..config import CONTOURS, IMAGE_NETS, PRESETS, StudyConfig, Training, options_of
from ..methods import DEFAULT, METHODS
from ..paper import CITATION
from ..pooled_predictions import Cell, cells
from ..results import DataSummary, StudyResults
from ..summary import Summary, wording
from .drawing import Drawing, with_unique_names
from .export import to_markdown
from .figures import (
    Panel,
    confusions,
    inference_figures,
    panels_of,
    prevalence_figures,
    rating_figures,
    reliability_figure,
    roc_figure,
    trace_figures,
)
from .overview import overview
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


# What the sliders move: each method's log-odds by class.


def grid(lowest: int) -> list[float]:
    """Return round numbers from 10^lowest to 0.5, nearly evenly spaced in the logarithm."""
    numbers = [float(f"{mantissa}e{power}") for power in range(lowest, 0) for mantissa in _MANTISSAS]
    return [number for number in numbers if number <= 0.5]


def slider_data(panel: Panel, config: StudyConfig) -> dict[str, Any]:
    """Return the data for the page's script."""
    columns = [{"rate": each.rate, "methods": [_method(cell, config) for cell in each.cells]} for each in panel.columns]
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


@dataclass(frozen=True)
class HardCase:
    """A nodule, and how wrong the nets are about it.

    Attributes:
        row: of the data set.
        side: 0 for benign, 1 for malignant.
        wrong: mean probability of the wrong side, at equal class frequencies.
        share: share of the judging loss's predictions on the wrong side.
        by_loss: `wrong` for each loss of the study.
    """

    row: int
    side: int
    wrong: float
    share: float
    by_loss: dict[str, float]


def hardest_cases(results: StudyResults, data: str, most: int = 12) -> dict[int, list[HardCase]]:
    """Return for each side the nodules that the judging loss misjudges most, over all nets, prevalences, folds and seeds, from
    the study's first start.

    Predictions are first moved to equal class frequencies, so the prevalence plays no part. Plain cross-entropy predicts at its
    minibatches' frequencies, whatever π is, and is left out.
    """
    by_loss: dict[str, list[Cell]] = {}
    for cell in cells(results):
        if (cell.key.data, cell.key.start) == (data, results.config.starts[0]) and cell.key.loss != _NOT_MOVED:
            by_loss.setdefault(cell.key.loss, []).append(cell)
    judge = judging_loss(results)
    if judge not in by_loss:
        return {BENIGN: [], MALIGNANT: []}
    side = _sides(results.data[data])
    errors = {loss: _errors(some, side) for loss, some in by_loss.items()}
    return {which: _worst(errors, judge, np.flatnonzero(side == which), which, most) for which in (BENIGN, MALIGNANT)}


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
                found[title] = [_shown(case, data) for case in cases]
    return found


def _shown(case: HardCase, data: DataSummary) -> dict[str, Any]:
    ratings = np.repeat(np.arange(1, 6), data.ratings[case.row]).tolist() if len(data.ratings) else []
    return {
        "nodule": int(data.nodules[case.row]),
        "side": _SIDES[case.side],
        "picture": _data_uri(data.pictures[case.row]),
        "ratings": ", ".join(map(str, ratings)),
        "wrong": case.wrong,
        "share": case.share,
        "others": {wording.SHORT_LOSSES[loss]: wrong for loss, wrong in case.by_loss.items()},
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
    benign = np.logaddexp.reduce(table[:, :middle], axis=1)
    malignant = np.logaddexp.reduce(table[:, -middle:], axis=1)
    return (malignant - benign)[:-1] - (malignant - benign)[-1]


def _errors(some: list[Cell], side: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, "n 2"]:
    """Return, by row, the mean probability of the wrong side and the share of predictions there; NaN if not tested."""
    total = np.zeros((len(side), 3))
    for cell in some:
        odds = _side_odds(cell) * np.where(side[cell.rows] == MALIGNANT, -1.0, 1.0)
        np.add.at(total, cell.rows, np.stack([expit(odds), odds > 0, np.ones(len(odds))], 1))
    tested = total[:, 2:] > 0
    return np.where(tested, total[:, :2] / np.where(tested, total[:, 2:], 1), np.nan)


def _worst(
    errors: dict[str, Float64[np.ndarray, "n 2"]], judge: str, rows: Int64[np.ndarray, " m"], side: int, most: int
) -> list[HardCase]:
    tested = rows[~np.isnan(errors[judge][rows, 0])]
    order = tested[np.argsort(-errors[judge][tested, 0], kind="stable")][:most].tolist()
    found = []
    for row in order:
        by_loss = {loss: float(table[row, 0]) for loss, table in errors.items() if not np.isnan(table[row, 0])}
        wrong, misjudged = errors[judge][row].tolist()
        found.append(HardCase(row, side, wrong, misjudged, by_loss))
    return found
