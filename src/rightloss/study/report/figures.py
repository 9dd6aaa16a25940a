"""The figures of a study.

Stage: `StudyResults`, `Summary` → `Drawing`s of `rightloss.card.svg` side by side: intercepts during training, figures over
prevalences, by inference, of ratings, and, for `Panel`s of cells with the same data, net and training, ROC curves with
histograms, and reliability; `Drawing` → HTML of each plot; one SVG, which needs no page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float64
from scipy.special import expit

from ...card.svg import Axis, Scale, Series, drawing, plot, swatch, tag
from ...card.words import number, share
from ...lidc import rounded_mean
from ...metrics import Figure, RocCurve, probability_histogram, reliability_curve, roc_curve
from ..methods import METHODS
from ..paper import RATINGS
from ..results import Cell, CellKey, RunResult, StudyResults, cells, grouped, trace_steps
from ..summary import CellSummary, Summary
from ..summary.comparisons import main_loss
from ..summary.contract import AUC, CONSTANT, LOG_LIKELIHOOD
from ..summary.wording import INFERENCES, LIKELIHOODS, STARTS, file_name, net, panel_title

if TYPE_CHECKING:
    from markupsafe import Markup

Keyed = TypeVar("Keyed", Cell, CellSummary)

RARE = 0.05  # below this prevalence most probabilities are near 0: axes are logarithmic
_LOWEST = -1.0  # lower end of the skill's axis
_LEVELS = 5
_BINS = 24  # of a histogram


def _by(some: Iterable[Keyed], *names: str) -> list[list[Keyed]]:
    """Group cells or rows by these fields of their keys."""
    return list(grouped(some, lambda each: tuple(getattr(each.key, name) for name in names)).values())


# Intercepts.


def trace_figures(results: StudyResults) -> list[Drawing]:
    """Draw the mean prediction during training, of the first data set and net: the highest and the lowest prevalence first."""
    traced = [run for run in results.runs if run.trace]
    shared = ("data", "minibatches", "net", "likelihood", "inference")
    same = (run for run in traced if all(getattr(run.config, each) == getattr(traced[0].config, each) for each in shared))
    by_rate = grouped(same, lambda run: run.config.population)
    rates = sorted(by_rate, key=lambda rate: -(rate or 0.0))
    return [_trace(by_rate[rate], results) for rate in dict.fromkeys([*rates[:1], *rates[-1:], *rates])]


def mean_and_range(runs: Sequence[RunResult]) -> Float64[np.ndarray, "3 steps"]:
    """Return the mean over runs at each step, the lowest and the highest; a trace that ended early is left out afterwards."""
    table = np.full((len(runs), max(len(run.trace) for run in runs)), np.nan)
    for row, run in zip(table, runs, strict=True):
        row[: len(run.trace)] = run.trace
    return np.stack([np.nanmean(table, 0), np.nanmin(table, 0), np.nanmax(table, 0)])


def _trace(runs: Sequence[RunResult], results: StudyResults) -> Drawing:
    first, config = runs[0].config, results.config
    steps, rate = first.training.steps, first.population
    if rate is None:
        rate = float(results.data[first.data].votes[:, -1].mean(dtype=np.float64))
    where = panel_title(CellKey.of(first), config, without=("start",))
    x = Axis("training step", 0, steps, words=number)
    y = _axis("mean prediction", [np.clip(run.trace, rate / 100, 1) for run in runs], "log")
    plots = []
    for start in config.starts:
        series = [Series("π", [0, steps], [rate, rate], style=None)]
        for style, loss in enumerate(config.losses):
            if some := [run for run in runs if (run.config.loss, run.config.start) == (loss, start)]:
                mean, low, high = mean_and_range(some)
                name = METHODS[loss].short
                series.append(Series(name, trace_steps(steps)[: len(mean)], mean, low, high, style=style))
        title = f"π = {share(rate)}" + (f", {STARTS[start]}" if len(config.starts) > 1 else "")
        plots.append(Plot(title, x, y, series, f"mean prediction by training step and loss, {title}"))
    return Drawing(f"trace-{file_name(f'{where} {rate:g}')}", f"π = {share(rate)}, {where}", tuple(plots))


def _axis(label: str, values: Iterable[Any], scale: Scale = "linear", **options: Any) -> Axis:
    return Axis.around(label, np.concatenate([np.ravel(np.asarray(each, float)) for each in values]), scale, **options)


# Over prevalences, by inference, and of ratings.


def prevalence_figures(summary: Summary) -> list[Drawing]:
    """Draw AUC and skill over three or more prevalences: a line per loss for each panel, and in a study of metadata a line per
    net."""
    config = summary.config
    if config.task == "rating" or len(config.populations) < 3:
        return []
    drawings = []
    if config.task == "balanced" and len(config.nets) > 1:
        rows = [row for row in summary.rows if row.key.loss == main_loss(config)]
        for some in _by(rows, "data", "minibatches", "start", "inference"):
            title = ", ".join([panel_title(some[0].key, config, without=("net",)), METHODS[some[0].key.loss].title])
            drawings.append(_over_prevalence(some, lambda key: net(key, config), "nets", f"By net: {title}"))
    if len(config.losses) > 1:
        rows = [row for row in summary.rows if row.key.loss != CONSTANT]
        for some in _by(rows, "data", "minibatches", "net", "likelihood", "start", "inference"):
            title = f"By loss: {panel_title(some[0].key, config)}"
            drawings.append(_over_prevalence(some, lambda key: METHODS[key.loss].short, "prevalences", title))
    return drawings


def _over_prevalence(rows: Sequence[CellSummary], line: Callable[[CellKey], str], name: str, title: str) -> Drawing:
    rates = sorted({row.key.population or math.nan for row in rows})
    names = list(dict.fromkeys(line(row.key) for row in rows))
    x = Axis("prevalence", rates[0] / 1.5, min(1.0, rates[-1] * 1.5), "log", ticks=tuple(rates))
    plots = []
    for measure, label in ((AUC, "AUC"), ("skill", "gain over always answering π")):
        values = [np.clip([getattr(row.figures[measure], end) for end in ("value", "low", "high")], _LOWEST, 1) for row in rows]
        series = [] if measure == AUC else [Series("", rates, [0.0] * len(rates), style=None)]
        for place, each in enumerate(names):
            own = [row for row in rows if line(row.key) == each]
            beside = 1.04 ** (place - (len(names) - 1) / 2)  # so that bars do not overlap
            found = [row.figures[measure] for row in own]
            series.append(_with_bars(each, [beside * (row.key.population or math.nan) for row in own], found, place))
        plots.append(
            Plot(label, x, _axis(label, values, words=number if measure == AUC else _percent), series, f"{label}, {title}")
        )
    return Drawing(f"{name}-{file_name(title)}", title, tuple(plots))


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %".replace("-", "−")


def _with_bars(name: str, x: Sequence[float], figures: Sequence[Figure], style: int, joined: bool = True) -> Series:
    value, low, high = ([getattr(each, end) for each in figures] for end in ("value", "low", "high"))
    return Series(name, x, value, low, high, marks=True, joined=joined, style=style)


def inference_figures(summary: Summary) -> list[Drawing]:
    """Draw the expected log-likelihood of several inferences, a plot for each prevalence."""
    if summary.config.task == "rating" or len(summary.config.inferences) < 2:
        return []
    blind = {(*row.key[:2], row.key.population): row for row in summary.rows if row.key.loss == CONSTANT}
    rows = [row for row in summary.rows if row.key.loss != CONSTANT]
    found = []
    for some in _by(rows, "data", "minibatches", "net", "start"):
        title = panel_title(some[0].key, summary.config, without=("inference",))
        plots = [_inferences(own, blind[*own[0].key[:2], own[0].key.population]) for own in _by(some, "population")]
        found.append(Drawing(f"inferences-{file_name(title)}", title, tuple(plots)))
    return found


def _inferences(rows: Sequence[CellSummary], blind: CellSummary) -> Plot:
    names = list(dict.fromkeys(row.key.inference for row in rows))
    level = blind.figures[LOG_LIKELIHOOD].value
    series = [Series("always answering π", [-0.5, len(names) - 0.5], [level, level], style=None)]
    by_loss = _by(rows, "loss")
    for place, own in enumerate(by_loss):
        x = [names.index(row.key.inference) + 0.7 * ((place + 0.5) / len(by_loss) - 0.5) for row in own]
        series.append(
            _with_bars(METHODS[own[0].key.loss].short, x, [row.figures[LOG_LIKELIHOOD] for row in own], place, joined=False)
        )
    title = f"π = {share(rows[0].key.population or math.nan)}"
    ticks = {float(place): INFERENCES[name].removesuffix(" dropout") for place, name in enumerate(names)}
    x_axis = Axis("inference", -0.5, len(names) - 0.5, words=ticks.__getitem__, ticks=tuple(ticks))
    values = [[level], *([each.figures[LOG_LIKELIHOOD].low, each.figures[LOG_LIKELIHOOD].high] for each in rows)]
    y_axis = _axis("expected log-likelihood", values, words=number)
    return Plot(title, x_axis, y_axis, series, f"expected log-likelihood by inference and loss, {title}")


def rating_figures(results: StudyResults, summary: Summary) -> list[Drawing]:
    """Draw how often ratings are off by one at most, by the readers' rating: a plot per likelihood."""
    if results.config.task != "rating":
        return []
    found = []
    for some in _by(_of_default(results), "data", "minibatches", "net", "inference"):
        title = panel_title(some[0].key, summary.config, without=("likelihood",))
        found.append(Drawing(f"ratings-{file_name(title)}", title, tuple(_near(cell.key, summary) for cell in some)))
    return found


def _near(key: CellKey, summary: Summary) -> Plot:
    levels = [float(level) for level in range(1, _LEVELS + 1)]
    figures = next(row.figures for row in summary.rows if row.key == key)
    series = [_with_bars("ours", levels, [figures[f"mean_off_by_one_recall_{level:g}"] for level in levels], 0, joined=False)]
    if key.likelihood == "onion-peeling":
        of_paper = [RATINGS[f"off_by_one_recall_{level:g}"] for level in levels]
        series.append(Series("the paper", np.array(levels) + 0.15, of_paper, marks=True, joined=False, style=1))
    x = Axis("readers' rating", 0.5, _LEVELS + 0.5, words=number, ticks=tuple(levels))
    title = LIKELIHOODS[key.likelihood]
    return Plot(title, x, Axis("off by one at most", 0, 1), series, f"share of ratings off by one at most, {title}")


def _of_default(results: StudyResults) -> list[Cell]:
    config = results.config
    return [cell for cell in cells(results) if (cell.key.loss, cell.key.start) == (main_loss(config), config.starts[0])]


def confusions(results: StudyResults) -> Iterator[tuple[str, Float64[np.ndarray, "5 5"]]]:
    """Yield the confusion of the default's ratings with a title, for each data set, net and likelihood."""
    for cell in _of_default(results) if results.config.task == "rating" else ():
        yield panel_title(cell.key, results.config), confusion(cell)


def confusion(cell: Cell) -> Float64[np.ndarray, "5 5"]:
    """Return shares of the nodules of each of the readers' rounded mean ratings (rows) by the prediction's (columns)."""
    truth = rounded_mean(cell.data.votes[cell.rows]).numpy()
    answer = rounded_mean(np.exp(cell.log_probs)).numpy()
    counts = np.zeros((_LEVELS, _LEVELS))
    np.add.at(counts, (truth, answer), 1)
    return counts / np.maximum(counts.sum(1, keepdims=True), 1)


# ROC curves, histograms and reliability.


@dataclass(frozen=True, eq=False)
class Panel:
    """Same data, minibatches, net, likelihood, start and inference.

    Attributes:
        title: the shared settings.
        columns: by prevalence, a cell for each method, in the config's order.
    """

    title: str
    columns: Mapping[float, Sequence[Cell]]


def panels_of(results: StudyResults) -> list[Panel]:
    """Return the panels in the config's order; none for ratings."""
    if results.config.task == "rating":
        return []
    # Folds of an unfinished study may have a single class, for which nothing can be drawn.
    found = [cell for cell in cells(results) if len(set(cell.labels)) == 2]
    groups = _by(found, "start", "data", "minibatches", "net", "likelihood", "inference")
    return [
        Panel(panel_title(group[0].key, results.config), grouped(group, lambda cell: float(cell.population[-1])))
        for group in groups
    ]


def roc_figure(panel: Panel) -> Drawing:
    """Draw ROC curves, averaged over folds and seeds, and for each loss the predictions by class: a row per prevalence."""
    plots = []
    for rate, some in panel.columns.items():
        title = f"π = {share(rate)}"
        curves = [(METHODS[cell.key.loss].short, mean_roc(cell)) for cell in some]
        series = [
            Series(f"{name}, AUC {curve.auc:.3f}", curve.false_positive_rate, curve.true_positive_rate, style=place)
            for place, (name, curve) in enumerate(curves)
            if curve is not None
        ]
        x, y = (Axis(f"{word} positive rate", 0, 1) for word in ("false", "true"))
        plots.append(Plot(title, x, y, [Series("", [0, 1], [0, 1], style=None), *series], f"ROC curves by loss, {title}"))
        plots += [_histogram(cell, rate) for cell in some]
    return Drawing(f"roc-{file_name(panel.title)}", panel.title, tuple(plots))


def _histogram(cell: Cell, rate: float) -> Plot:
    """Draw the shares of benign and malignant nodules by predicted probability, from the 0.5 % to the 99.5 % quantile."""
    scale: Any = "log-odds" if rate < RARE else "probability"
    odds = cell.log_probs[:, 1] - cell.log_probs[:, 0]
    finite = odds[np.isfinite(odds)]
    low, high = np.quantile(finite, [0.005, 0.995]) if len(finite) else (-1.0, 1.0)
    ends = (low, max(high, low + 1)) if rate < RARE else (0.0, max(float(expit(high)), 0.02))
    found = probability_histogram(cell.log_probs, cell.labels, np.linspace(*ends, _BINS + 1), scale=scale)
    edges = np.repeat(expit(found.edges) if rate < RARE else found.edges, 2)
    steps = [np.concatenate([[0.0], np.repeat(heights, 2), [0.0]]) for heights in found.share]
    series = [Series("π", [rate, rate], [0.0, found.share.max()], style=None)]
    series += [Series(name, edges, steps[place], style=place) for place, name in enumerate(("benign", "malignant"))]
    title = f"π = {share(rate)}, {METHODS[cell.key.loss].short}"
    x = Axis("predicted probability", float(edges[0]), float(edges[-1]), "log-odds" if rate < RARE else "linear")
    y = Axis("share of nodules", 0, float(found.share.max()))
    return Plot(title, x, y, series, f"predicted probabilities of benign and malignant nodules, {title}")


def mean_roc(cell: Cell) -> RocCurve | None:
    """Average the ROC curves of folds and seeds, since their scores are not comparable; None if no fold has both classes.

    The true positive rates are averaged at each false positive rate. The area of the mean is the mean of the areas: at a step
    both ends are averaged, so that nothing is lost between the points.
    """
    parts = [part for part in cell.runs.values() if len(set(cell.labels[part])) == 2]
    curves = [roc_curve(cell.log_probs[part], cell.labels[part]) for part in parts]
    if not curves:
        return None
    grid = np.unique(np.concatenate([curve.false_positive_rate for curve in curves]))
    ends = [np.mean([_rates_at(curve, grid, side) for curve in curves], 0) for side in ("left", "right")]
    x, y = np.repeat(grid, 2), np.stack(ends, 1).reshape(-1)
    return RocCurve(x, y, np.full(len(x), np.nan), float(np.mean([curve.auc for curve in curves])), 1)


def _rates_at(curve: RocCurve, grid: Float64[np.ndarray, " m"], side: str) -> Float64[np.ndarray, " m"]:
    """Return the true positive rate at each point of the grid; where the curve steps up, the lower (left) or upper end."""
    x, y = curve.false_positive_rate, curve.true_positive_rate
    found = np.interp(grid, x, y)
    at = np.searchsorted(x, grid, "left") if side == "left" else np.searchsorted(x, grid, "right") - 1
    exact = x[at] == grid
    found[exact] = y[at[exact]]
    return found


def reliability_figure(panel: Panel) -> Drawing:
    """Draw observed against predicted shares: a row per prevalence, a plot per loss."""
    plots = [_reliability(cell, rate, place) for rate, some in panel.columns.items() for place, cell in enumerate(some)]
    return Drawing(f"reliability-{file_name(panel.title)}", panel.title, tuple(plots))


def _reliability(cell: Cell, rate: float, place: int) -> Plot:
    """Draw bins of equal weight in the population; limits treat nodules as independent."""
    curve = reliability_curve(cell.log_probs, cell.labels, rate, bins=6)
    shown = np.concatenate([curve.predicted, curve.observed, curve.high])
    low = max(float(shown[shown > 0].min()), 1e-7) / 1.5 if rate < RARE else 0.0
    high = min(1.0, 1.5 * float(shown.max())) if rate < RARE else 1.0
    x, y = (Axis(label, low, high, "log" if rate < RARE else "linear") for label in ("predicted", "observed"))
    own = Series("", curve.predicted, curve.observed, curve.low, curve.high, marks=True, style=place)
    title = f"π = {share(rate)}, {METHODS[cell.key.loss].short}"
    return Plot(title, x, y, [Series("", [low, high], [low, high], style=None), own], f"calibration, {title}")


# Plots side by side, for the page and as an SVG file of their own.

_WIDTH, _HEIGHT, _TITLE, _LINE = 440, 340, 30, 20  # pixels of a plot, its title, and a line of its legend
_ACROSS = 3


class Plot(NamedTuple):
    """A plot: its title, axes, series, and what it shows for readers who do not see it."""

    title: str
    x: Axis
    y: Axis
    series: list[Series]
    alt: str

    def html(self) -> Markup:
        """Return the plot with its legend."""
        return plot(self.x, self.y, self.series, alt=self.alt, width=_WIDTH, height=_HEIGHT)

    @property
    def named(self) -> list[Series]:
        return [each for each in self.series if each.name]


@dataclass(frozen=True)
class Drawing:
    """Plots that belong together.

    Attributes:
        name: of its file, without ending.
        title: its subject, in a few words.
        plots: in reading order.
    """

    name: str
    title: str
    plots: tuple[Plot, ...]

    @property
    def alt(self) -> str:
        return f"{self.title}: {', '.join(dict.fromkeys(each.alt for each in self.plots))}"

    def svg(self) -> str:
        """Return the drawing as a file, in light colours."""
        across = min(_ACROSS, len(self.plots))
        height = _TITLE + _HEIGHT + _LINE * (max(len(each.named) for each in self.plots) + 1)
        width, total = across * _WIDTH, -(-len(self.plots) // across) * height
        cells = (_cell(each, i % across * _WIDTH, i // across * height) for i, each in enumerate(self.plots))
        inside = [tag("style", _style()), tag("rect", width="100%", height="100%", fill="#fff"), *cells]
        return (
            str(tag("svg", *inside, class_="plot", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {total}")) + "\n"
        )


def _cell(each: Plot, left: int, top: int) -> Markup:
    from markupsafe import Markup

    drawn = str(drawing(each.x, each.y, each.series, alt=each.alt, width=_WIDTH, height=_HEIGHT))
    nested = drawn.replace("<svg ", f'<svg y="{_TITLE}" width="{_WIDTH}" height="{_HEIGHT}" ', 1)
    legend = [_sample(series, _TITLE + _HEIGHT + _LINE * row) for row, series in enumerate(each.named)]
    title = tag("text", each.title, class_="title", x=14, y=20)
    return tag("g", title, Markup(nested), *legend, transform=f"translate({left} {top})")


def _sample(series: Series, top: int) -> Markup:
    """Return a line of a legend."""
    from markupsafe import Markup

    mark = str(swatch(series)).removesuffix("</svg>").partition(">")[2]
    return tag("g", Markup(mark), tag("text", series.name, x=46, y=10), transform=f"translate(64 {top})")


def _style() -> Markup:
    """Return what `page.css` says about plots, in light colours."""
    from markupsafe import Markup

    text = files("rightloss.card").joinpath("templates", "page.css").read_text("utf-8")
    rules = [line.strip() for line in text.splitlines() if re.match(r"\.(plot|ideal|s\d)\b", line)]
    return Markup(
        "\n".join([text.partition("}")[0] + "}", *rules, "svg.plot { max-width: none; } svg svg.plot { width: revert-layer; }"])
        + "\n.plot .title { fill: var(--ink); font-weight: 600; }"
    )


def with_unique_names(drawings: Iterable[Drawing]) -> list[Drawing]:
    """Return the drawings with unique names: duplicates get a number."""
    taken: dict[str, int] = {}
    found = []
    for each in drawings:
        taken[each.name] = number = taken.get(each.name, 0) + 1
        found.append(each if number == 1 else Drawing(f"{each.name}-{number}", each.title, each.plots))
    return found
