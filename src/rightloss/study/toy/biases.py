"""Remedies against kinds of sampling bias: logistic regressions on selected people, tested in the population.

Stage: `BiasConfig`, seed → `BiasFigures`, a pure function; those of all seeds → `BiasRow`s → CSV, and a figure: the people
selected, and what each remedy then loses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float64
from scipy.special import expit
from torch import Tensor

from ...atomic_files import whole_path
from ...likelihoods import Bernoulli
from ...marginals import BatchMarginal
from ...prevalence import Prevalence
from ...tensors import tensor_of
from ..engines import one_thread
from ..methods import METHODS
from ..report.export import csv_text
from ..results import grouped
from .population import BY_BOTH, BY_FEATURE, BY_LABEL, SELECTIONS, CurvedRisk, Drawn, Selection, drawn, met

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

BY_LOSS = ("plain", "information-gain", "published", "weighted", "corrected")
BY_CHANCE = {"given-x": "weighted by 1 / p(selected | x)", "given-both": "weighted by 1 / p(selected | x, y)"}
REMEDIES = {**{name: METHODS[name].title for name in BY_LOSS}, **BY_CHANCE}
CURVED, STRAIGHT = "curved", "straight"
MODELS = (CURVED, STRAIGHT)


@dataclass(frozen=True)
class BiasConfig:
    """The simulation.

    Attributes:
        seeds: repetitions; one takes half a second.
        examples: selected people that a model is trained on.
        population: where they come from, and where predictions are tested.
        selections: how they are selected.
    """

    seeds: int = 10
    examples: int = 10_000
    population: CurvedRisk = field(default_factory=CurvedRisk)
    selections: tuple[Selection, ...] = SELECTIONS

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.examples < 1:
            raise ValueError(f"Expected seeds and examples, but got {self.seeds} and {self.examples}: 10 and 10,000, say.")


@dataclass(frozen=True)
class BiasFigures:
    """Figures of one fitted model in the population, by quadrature.

    Attributes:
        selection, model, remedy: by name.
        lost: expected log-likelihood lost against the truth.
        mean_prediction: of class 1; correct if it equals π.
    """

    selection: str
    model: str
    remedy: str
    lost: float
    mean_prediction: float


@dataclass(frozen=True)
class BiasRow:
    """`BiasFigures` over the seeds: means, with 95 % intervals of the means.

    Attributes:
        selection, model: by name.
        remedy: as tables show it.
        best: lost by the best that this model can do in the population.
        beyond: lost beyond that, and its interval.
        mean_prediction: with its interval.
        population: π, which it should be.
        noise: the largest loss that may be noise: five times what n examples cost a model of 6 coefficients, 6 / 2n.
    """

    selection: str
    model: str
    remedy: str
    best: float
    beyond: float
    beyond_low: float
    beyond_high: float
    mean_prediction: float
    mean_prediction_low: float
    mean_prediction_high: float
    population: float
    noise: float

    @property
    def right(self) -> bool:
        """Whether the loss is no more than noise."""
        return self.beyond_high < self.noise


def run_seed(config: BiasConfig, seed: int) -> list[BiasFigures]:
    """Run one repetition: new people, all selections, models and remedies. The same config and seed give the same figures."""
    found, population = [], config.population
    with one_thread():
        for selection in config.selections:
            people = drawn(population, selection, config.examples, seed)
            for model in MODELS:
                for remedy in REMEDIES:
                    odds = fitted(people, model, remedy, population)(population.people[0])
                    mean = float(population.people[1] @ expit(odds))
                    found.append(BiasFigures(selection.name, model, remedy, population.lost(odds), mean))
    return found


def fitted(
    people: Drawn, model: str, remedy: str, population: CurvedRisk
) -> Callable[[Float64[np.ndarray, "n 2"]], Float64[np.ndarray, " n"]]:
    """Fit a logistic regression, x → log-odds. All people are one batch, so the marginal of the loss is exact."""
    prevalence = Prevalence.from_labels(people.y, population=[1 - population.positive, population.positive])
    start = float(Bernoulli().starting_outputs(prevalence))
    weights = _minimised(_inputs(people.x, model), _criterion(people, remedy, prevalence), start)
    if remedy in METHODS and METHODS[remedy].corrected:
        weights[0] += prevalence.log_weights[1] - prevalence.log_weights[0]
    return lambda x: _inputs(x, model) @ weights


def best_of(model: str, population: CurvedRisk) -> float:
    """Return what the best model of its kind loses in the population: fitted there to the true probabilities."""
    x, mass = population.people
    inputs, true = _inputs(x, model), expit(population.log_odds(x))
    with one_thread():
        return population.lost(inputs @ _minimised(inputs, _cross_entropy(true, mass), 0.0))


def bias_rows(config: BiasConfig, figures: list[BiasFigures]) -> list[BiasRow]:
    """Return a row for each selection, model and remedy, over its seeds."""
    best = {model: best_of(model, config.population) for model in MODELS}
    groups = grouped(figures, lambda each: (each.selection, each.model, each.remedy))
    rows, ends = [], (config.population.positive, 5 * 6 / (2 * config.examples))
    for (selection, model, remedy), found in groups.items():
        beyond = _interval([each.lost - best[model] for each in found])
        mean = _interval([each.mean_prediction for each in found])
        rows.append(BiasRow(selection, model, REMEDIES[remedy], best[model], *beyond, *mean, *ends))
    return rows


def biases_csv(rows: list[BiasRow]) -> str:
    """Return the rows as CSV."""
    names = [each.name for each in dataclasses.fields(BiasRow)]
    lines = [[*dataclasses.astuple(row), "yes" if row.right else "no"] for row in rows]
    return csv_text([*names, "right"], lines, digits=6)


def _criterion(people: Drawn, remedy: str, prevalence: Prevalence) -> Callable[[Tensor], Tensor]:
    if remedy in METHODS:
        method = METHODS[remedy]
        loss = method.loss(prevalence, Bernoulli(), BatchMarginal() if method.rival is None else None)
        return lambda outputs: loss(outputs, tensor_of(people.y))
    chance = people.given_x if remedy == "given-x" else people.given_both
    return _cross_entropy(people.y.astype(np.float64), 1 / chance / (1 / chance).sum())


def _cross_entropy(target: np.ndarray, weights: np.ndarray) -> Callable[[Tensor], Tensor]:
    truth, mass = tensor_of(target), tensor_of(weights)
    return lambda outputs: F.binary_cross_entropy_with_logits(outputs[:, 0], truth, mass, reduction="sum")


def _minimised(inputs: np.ndarray, loss: Callable[[Tensor], Tensor], start: float) -> Float64[np.ndarray, " d"]:
    """Return the weights with the least loss, at full convergence, so that optimiser settings do not matter."""
    x = tensor_of(inputs)
    weights = torch.zeros(x.shape[1], dtype=torch.float64)
    weights[0] = start
    weights.requires_grad_()
    optimiser = torch.optim.LBFGS(
        [weights], max_iter=300, tolerance_grad=1e-6, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        optimiser.zero_grad()
        value = loss((x @ weights)[:, None])
        value.backward()
        return float(value.detach())

    optimiser.step(closure)
    assert weights.grad is not None
    slope = float(weights.grad.abs().max())
    assert slope < 1e-4, f"a fit stopped where the slope is {slope}"
    return weights.detach().numpy()


def _inputs(x: Float64[np.ndarray, "n 2"], model: str) -> Float64[np.ndarray, "n d"]:
    """Return what a model is linear in: 1 and x; for the one that can express the truth also squares and product."""
    straight = np.hstack([np.ones_like(x[:, :1]), x])
    return straight if model == STRAIGHT else np.hstack([straight, x**2, x[:, :1] * x[:, 1:]])


def _interval(values: list[float]) -> tuple[float, float, float]:
    """Return the mean and its 95 % interval by Student's t; from one seed, the mean three times."""
    from scipy.stats import sem, t

    mean, n = fmean(values), len(values)
    width = float(t.ppf(0.975, n - 1) * sem(values)) if n > 1 else 0.0
    return mean, mean - width, mean + width


# The figure.

_PEOPLE = 500  # in the small pictures
_LEAST = 2e-5  # nats: the left end of the axis
_WORDS = {
    BY_FEATURE.name: "who has the symptom comes",
    BY_LABEL.name: "cases and controls",
    BY_BOTH.name: "clear cases, healthy volunteers",
}
_WRONG, _RIGHT = "#D55E00", "#0072B2"  # also distinguished by the filling


def plot_biases(rows: list[BiasRow], config: BiasConfig | None = None) -> Canvas:
    """Draw a column per kind of selection: above the people selected, below what each remedy loses, for either model."""
    import matplotlib.figure

    config = BiasConfig() if config is None else config
    figure = matplotlib.figure.Figure(figsize=(10, 8.2), dpi=150, layout="constrained")
    axes = figure.subplots(3, len(config.selections), height_ratios=(1.15, 1, 1), squeeze=False)
    for column, selection in enumerate(config.selections):
        _show_people(axes[0, column], config.population, selection)
        for line, model in enumerate(MODELS, start=1):
            shown = [row for row in rows if (row.selection, row.model) == (selection.name, model)]
            _show_remedies(axes[line, column], shown, first=column == 0)
    _explain(figure, axes[0, 0], axes[1, 0], axes[2, 0])
    return figure


def save_biases(rows: list[BiasRow], config: BiasConfig, paths: tuple[Path, ...]) -> None:
    """Write the figure to each path, in the format of its suffix; the same rows give the same bytes."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "biases"}):
        figure = plot_biases(rows, config)
        for path in paths:
            with whole_path(path) as temporary:
                kind = path.suffix[1:]
                figure.savefig(temporary, format=kind, metadata={"Date": None} if kind == "svg" else None)


def _show_people(ax: Axes, population: CurvedRisk, selection: Selection) -> None:
    x, y, selected = met(population, selection, _PEOPLE, torch.Generator().manual_seed(0))
    ax.scatter(x[:, 0], x[:, 1], s=3, color="0.75", linewidths=0, label="not selected")
    for label, marker, colour in ((0, "o", "none"), (1, "^", "black")):
        shown = x[selected & (y == label)]
        style: dict[str, Any] = {"marker": marker, "facecolors": colour, "edgecolors": "black", "linewidths": 0.7}
        ax.scatter(shown[:, 0], shown[:, 1], s=16, label=f"selected, class {label}", **style)
    across = np.linspace(-3.2, 3.2, 100)
    height = -population.log_odds(np.stack([across, 0 * across], 1)) / population.slopes[1]
    ax.plot(across, height, color="black", linestyle="--", linewidth=0.9, label="a risk of one half")
    words = _WORDS.get(selection.name)
    ax.set_title(f"Selected {selection.name}" + (f":\n{words}" if words else ""), fontsize=10)
    ax.set(xlim=(-3.2, 3.2), ylim=(-3.2, 3.2), xticks=[], yticks=[], xlabel="x₁", ylabel="x₂")


def _show_remedies(ax: Axes, rows: list[BiasRow], first: bool) -> None:
    ax.axvspan(_LEAST, rows[0].noise, color="0.92", linewidth=0)
    for place, row in enumerate(rows):
        colour = _RIGHT if row.right else _WRONG
        ends = [max(end, _LEAST) for end in (row.beyond_low, row.beyond_high)]
        ax.plot(ends, [place, place], color=colour, linewidth=2)
        filling = colour if row.right else "white"
        ax.plot(max(row.beyond, _LEAST), place, "o", color=colour, markerfacecolor=filling, markersize=6)
    ax.set_xscale("log")
    ax.set_xlim(_LEAST, 0.6)
    ax.set_xticks([1e-4, 1e-3, 1e-2, 1e-1], ["0.0001", "0.001", "0.01", "0.1"])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), [row.remedy for row in rows] if first else [""] * len(rows))
    ax.grid(axis="y", color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(labelsize=8.5)
    ax.spines[["top", "right"]].set_visible(False)


def _explain(figure: Canvas, people: Axes, curved: Axes, straight: Axes) -> None:
    people.legend(loc="center right", bbox_to_anchor=(-0.12, 0.5), fontsize=9, frameon=False)
    curved.set_ylabel(f"{CURVED} model:\ncan express the truth", fontsize=10)
    straight.set_ylabel("straight model:\ncannot", fontsize=10)
    figure.supxlabel(
        "expected log-likelihood lost in the population, beyond the best this model can do (nats; further left is better)\n"
        "filled: no more than noise (the grey zone); hollow: wrong; bars: 95 % intervals over repetitions",
        fontsize=9.5,
    )
