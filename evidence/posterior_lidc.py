"""Compare posteriors on LIDC-IDRI by the scale of their prior: methods × losses × scales × prevalences, with intervals.

Of ten folds by patient five are tested, each with the next to validate and the other eight to train, in their natural mix.
*features*: all weights of an MLP that reads the annotations' columns. *slabs*: the last layer of a small ConvNet that was
trained with cross-entropy on views of CT in depth; it needs lidc_slabs.npz in the folder that RIGHTLOSS_DATA names. All losses
have the same start, the same minibatches and the same prior: Gaussian by layer, the output bias around log π. The validation
part chooses the scale.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from rightloss import Categorical, Prevalence, WeightedLoss, predictive, start_at_prevalence
from rightloss.atomic_files import whole_file
from rightloss.inference import (
    Diverged,
    LogPosterior,
    Posterior,
    expectation_propagation,
    laplace,
    layer_prior,
    log_posterior,
    map_estimate,
    sghmc,
    variational,
)
from rightloss.lidc import NoduleSet
from rightloss.lidc.splits import Parts
from rightloss.study import datasets
from rightloss.study.config import CONTOURS, RunConfig, StudyConfig
from rightloss.study.datasets import source_of, study_data, study_images
from rightloss.study.training.batches import Batches, stream
from rightloss.study.training.candidates import Candidate, Model, score, take_step

from .engine import OUT, Comparison
from .pages import axes, table

FOLDS, TESTED, RESAMPLES = 10, {"features": 5, "slabs": 3}, 1000
PREVALENCES = {"features": (0.001,), "slabs": (0.001, 0.3)}
SCALES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
LOGITS, R_HATS = [f"logit_{scale:g}" for scale in SCALES], [f"r_hat_{scale:g}" for scale in SCALES]
DEFAULT, PUBLISHED, NETWORK, WEIGHTED = LOSSES = ("default", "as published", "as published, q_ψ", "weighted")
METHODS = ("MAP", "Laplace", "VI", "SGHMC", "EP")
STYLES = {DEFAULT: {"color": "C0"}, PUBLISHED: {"color": "C2"}, NETWORK: {"color": "C2", "ls": "--"}, WEIGHTED: {"color": "C3"}}
TITLES = {
    "features": "All weights of an MLP on the annotations' columns",
    "slabs": "Last layer of a ConvNet on CT in depth",
}
STEPS, BATCH, RATE, CHAIN = 1000, 128, 1e-2, 1000
Rows = tuple[Tensor, Tensor]
Method = Callable[[LogPosterior, Rows, int, Any], Posterior]


class Cell(NamedTuple):
    data: str
    population: float
    fold: int
    loss: str


def cells(data: str) -> Iterator[Cell]:
    losses = LOSSES if data == "features" else (DEFAULT, PUBLISHED, WEIGHTED)
    yield from (Cell(data, *each) for each in product(PREVALENCES[data], range(TESTED[data]), losses))


def run(cell: Cell) -> list[dict[str, Any]]:
    """Fit every method with every scale; return the log-odds of each row of the validation and the test part."""
    torch.set_num_threads(1)
    data, _, fold, loss = cell
    parts, x, y = parts_of(data, fold), inputs(data, fold), nodules(data).labels
    train, asked = (x[parts.train], y[parts.train]), torch.cat([parts.valid, parts.test])
    methods = methods_of(data, loss)
    logits = np.full((len(methods), len(SCALES), len(asked)), np.nan, np.float32)
    r_hat = np.full(len(SCALES), np.nan, np.float32)
    for number, scale in enumerate(SCALES):
        target, mode = target_of(cell, train, scale), None
        for column, (name, method) in enumerate(methods.items()):
            try:
                posterior = method(target, train, fold, mode)
            except Diverged:  # a prior without predictions is not chosen
                continue
            mode = posterior if name == "MAP" else mode
            log_probs = torch.as_tensor(predictive(posterior, x[asked]))
            logits[column, number] = log_probs[:, 1] - log_probs[:, 0]
            r_hat[number] = posterior.record.get("predictions", {}).get("r_hat", r_hat[number])
    frames = [pd.DataFrame(each.T, columns=LOGITS).assign(method=name) for name, each in zip(methods, logits, strict=True)]
    who = np.unique(np.asarray(nodules(data).patients), return_inverse=True)[1][asked]
    about = {"label": y[asked].numpy(), "patient": who, "test": np.arange(len(asked)) >= len(parts.valid)}
    found = pd.concat([frame.assign(**about) for frame in frames])
    return found.assign(**dict(zip(R_HATS, r_hat, strict=True))).to_dict("records")


def methods_of(data: str, loss: str) -> dict[str, Method]:
    """Return the methods by name; q_ψ matters where sampled weights change p(y|w) from minibatch to minibatch."""
    quiet: dict[str, Any] = {"progress": False}
    ascent = {**quiet, "lr": RATE, "steps": STEPS, "batch_size": BATCH}
    if data != "features":  # few weights: all rows at once, and on to the exact mode
        ascent |= {"steps": STEPS // 5, "batch_size": None}
    chain, sweeps = {**quiet, "steps": CHAIN, "batch_size": BATCH}, 200 if data == "features" else 30
    found: dict[str, Method] = {  # with a wide prior the published form needs many sweeps of EP, and they are slow
        "MAP": lambda target, rows, seed, mode: map_estimate(target, rows, seed=seed, **ascent),
        "Laplace": lambda target, rows, seed, mode: laplace(target, rows, mode=mode, **quiet),
        "VI": lambda target, rows, seed, mode: variational(target, rows, seed=seed, **ascent),
        "SGHMC": lambda target, rows, seed, mode: sghmc(target, rows, start=mode, seed=seed, **chain),
        "EP": lambda target, rows, seed, mode: expectation_propagation(
            target, rows, mode=mode, seed=seed, iterations=sweeps, **quiet
        ),
    }
    names = ("VI",) if loss == NETWORK else tuple(found) if data == "features" else ("MAP", "Laplace", "EP")
    return {name: found[name] for name in names}


def target_of(cell: Cell, rows: Rows, scale: float) -> LogPosterior:
    """Return the log posterior; first weights and prior are the same for all losses."""
    prevalence = Prevalence.from_labels(rows[1], cell.population, evidence=float(cell.loss in (DEFAULT, WEIGHTED)))
    columns = rows[0].shape[1]
    net: Any = Model("mlp", Categorical(2), columns, True, 0.0, stream("weights", cell.fold)).net
    if cell.data != "features":
        net = nn.Sequential(nn.Linear(columns, 2))
        nn.init.zeros_(net[-1].weight)
    start_at_prevalence(net[-1], prevalence)
    how: dict[str, Any] = {"loss": WeightedLoss} if cell.loss == WEIGHTED else {}
    if cell.loss in (PUBLISHED, NETWORK):  # exact over the training rows, or a network that reads the weights
        how = {"reference": prevalence.population, "pool": rows if cell.loss == PUBLISHED else None}
    return log_posterior(net, prevalence, prior=layer_prior(net, scale), **how)


@cache
def config_of(data: str) -> StudyConfig:
    """Return the study whose net gives the features: cross-entropy, equal classes in each minibatch."""
    archive = CONTOURS if data == "features" else str(Path(os.environ["RIGHTLOSS_DATA"]) / "lidc_slabs.npz")
    how: dict[str, Any] = {"nets": ("convnet",), "losses": ("corrected",), "populations": (0.5,)}
    return StudyConfig("quick", sources=(source_of(archive),), folds=5, num_folds=FOLDS, **how)


@cache
def nodules(data: str) -> NoduleSet:
    return study_data(config_of(data).sources[0], "binary")


def parts_of(data: str, fold: int) -> Parts:
    return datasets.parts_of(nodules(data), fold, FOLDS)


@cache
def inputs(data: str, fold: int) -> Tensor:
    """Return the model's inputs, standardised by the training rows: columns, or features of a ConvNet."""
    train = parts_of(data, fold).train
    if data == "features":
        return nodules(data).standardised(train)
    path = OUT / "posterior_lidc_slabs" / f"features-{fold}.npy"
    if not path.exists():
        with whole_file(path) as file:
            np.save(file, net_features(data, [run for group in config_of(data).groups() for run in group.runs][fold]))
    found = torch.from_numpy(np.load(path))
    return (found - found[train].mean(0)) / found[train].std(0).clamp_min(1e-6)


def net_features(data: str, run: RunConfig) -> np.ndarray:
    """Train the net, keep its best checkpoint, and return the inputs of its last layer for fixed views of all rows."""
    batches = Batches(nodules(data), study_images(config_of(data).sources[0], run.task), run, torch.device("cpu"))
    mix, columns = np.array([0.5, 0.5]), len(nodules(data).feature_names)
    candidate = Candidate(run, run.training.learning_rates[0], batches.sampling, mix, columns)
    valid, every = batches.fixed(batches.parts.valid), run.training.steps // run.training.checkpoints
    for step, batch in enumerate(batches, start=1):
        take_step([candidate], batch, step)
        if step % every == 0:
            score([candidate], valid)
    candidate.restore()
    averaged: Any = candidate.nets[0].averaged.module
    net = averaged.net.eval()
    with torch.no_grad():
        blocks = torch.arange(len(batches.target)).split(64)
        return torch.cat([net.features(batches.fixed(block).inputs.features) for block in blocks]).numpy()


# Figures with 95 % intervals: arrays whose first value is of all patients, the others of resamples.


def weights_of(patients: Sequence[object] | np.ndarray, number: int) -> np.ndarray:
    """Return `(1 + number, n)`: how often each row counts, once in the first, then as often as its patient was drawn."""
    people, own = np.unique(np.asarray(patients), return_inverse=True)
    drawn = np.random.default_rng(0).multinomial(len(people), np.full(len(people), 1 / len(people)), number)
    return np.concatenate([np.ones((1, len(own)), dtype=drawn.dtype), drawn[:, own]])


def limits(values: np.ndarray) -> tuple[float, float]:
    low, high = np.nanquantile(values[1:], [0.025, 0.975])
    return float(low), float(high)


def words(values: np.ndarray, digits: int = 3, sign: str = "") -> str:
    """Return a figure with its interval; of a difference (`sign` is "+") with * if the interval excludes 0."""
    low, high = limits(values)
    star = " *" if sign and low * high > 0 else ""
    return f"{values[0]:{sign}.{digits}f} [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]{star}"


class Part:
    """The rows of one data set and prevalence: of each method and loss the log-odds `(scales, rows)`."""

    def __init__(self, rows: pd.DataFrame, population: float) -> None:
        own = rows[rows["population"] == population]
        self.population = population
        self.of: Mapping[Any, pd.DataFrame] = dict(iter(own.groupby(["method", "loss"], sort=False)))
        first = next(iter(self.of.values()))
        self.all_folds, self.all_labels = first["fold"].to_numpy(), first["label"].to_numpy()
        self.test, self.folds = first["test"].to_numpy(), np.unique(first["fold"])
        self.label, self.fold = self.all_labels[self.test], self.all_folds[self.test]
        self.weights = weights_of(first["patient"][self.test], RESAMPLES)

    def logits(self, method: str, loss: str) -> np.ndarray | None:
        return self.of[method, loss][LOGITS].to_numpy().T if (method, loss) in self.of else None

    def figures(self, logits: np.ndarray) -> dict[str, np.ndarray]:
        """Return the figures of each resample: AUC within folds, AUC of all folds together, skill and mean prediction."""
        pi = self.population
        score = self._mean(-np.logaddexp(0, np.where(self.label, -logits, logits)))
        return {
            "AUC": np.nanmean([self._area(logits, self.fold == fold) for fold in self.folds], 0),
            "together": self._area(logits, np.full(len(self.label), True)),
            "skill": 1 - score / (pi * np.log(pi) + (1 - pi) * np.log1p(-pi)),
            "mean": self._mean(np.exp(-np.logaddexp(0, -logits))),
        }

    def validated(self, logits: np.ndarray, most: float = np.inf) -> tuple[np.ndarray, list[float]]:
        """Return the test logits with the scale of each fold that has the best validation score, and these scales."""
        found, chosen = np.full(len(self.test), np.nan), []
        for fold in self.folds:
            here = self.all_folds == fold
            valid, y = here & ~self.test, self.all_labels[here & ~self.test]
            scores = -np.logaddexp(0, np.where(y, -logits[:, valid], logits[:, valid]))
            score = self.population * scores[:, y == 1].mean(1) + (1 - self.population) * scores[:, y == 0].mean(1)
            score[(np.array(SCALES) > most) | ~np.isfinite(score)] = -np.inf
            found[here] = logits[int(score.argmax()), here]
            chosen.append(SCALES[int(score.argmax())])
        return found[self.test], chosen

    def _mean(self, values: np.ndarray) -> np.ndarray:
        by_class = [(self.weights * (self.label == c)) @ values / self.weights[:, self.label == c].sum(1) for c in (0, 1)]
        return (1 - self.population) * by_class[0] + self.population * by_class[1]

    def _area(self, logits: np.ndarray, rows: np.ndarray) -> np.ndarray:
        ill, well = (rows & (self.label == c) for c in (1, 0))
        above = np.sign(logits[ill][:, None] - logits[well]) / 2 + 0.5
        ours, others = self.weights[:, ill], self.weights[:, well]
        with np.errstate(invalid="ignore"):  # a resample may lack a class in a fold
            return ((ours @ above) * others).sum(1) / (ours.sum(1) * others.sum(1))


def section(data: str, part: Part) -> str:
    """Return the figures with the validated scale, from the whole grid and from scales up to 1, and paired differences."""
    rows, pairs, default = [], [], list[dict[str, np.ndarray]]()
    for method, loss in product(METHODS, LOSSES):
        if (logits := part.logits(method, loss)) is None:
            continue
        found = [part.validated(logits, most) for most in (np.inf, 1.0)]
        wide, narrow = figures = [part.figures(each) for each, _ in found]
        default = figures if loss == DEFAULT else default
        name = f"{method}, R̂ up to {part.of[method, loss][R_HATS].max().max():.2g}" if method == "SGHMC" else method
        cells = [words(wide["AUC"]), f"{wide['together'][0]:.3f}", words(wide["skill"], 2), f"{wide['mean'][0]:.2g}"]
        chosen = " ".join(f"{scale:g}" for scale in found[0][1])
        rows.append([name, loss, *cells, chosen, words(narrow["AUC"]), words(narrow["skill"], 2)])
        less = [{kind: one[kind] - other[kind] for kind in one} for one, other in zip(figures, default, strict=True)]
        both = [text for each in less for text in (words(each["AUC"], 3, "+"), words(each["skill"], 2, "+"))]
        pairs += [] if loss == DEFAULT else [[method, loss, *both]]
    capped = ["AUC, scales up to 1", "skill, scales up to 1"]
    head = ["method", "loss", "AUC", "AUC, folds together", "skill", "mean prediction", "scales chosen", *capped]
    return (
        f"### {TITLES[data]}, π = {part.population:g}, {len(part.folds)} folds\n\n{table(head, rows)}\n\n"
        "Minus the default, paired; * where the interval excludes 0:\n\n"
        f"{table(['method', 'loss', 'AUC', 'skill', *capped], pairs)}\n"
    )


def tables(rows: pd.DataFrame) -> dict[str, str]:
    data = rows["data"].iloc[0]
    parts = [Part(rows, population) for population in rows["population"].unique()]
    return {"sections": "\n".join(section(data, part) for part in parts)}


def draw(rows: pd.DataFrame) -> Any:
    """Draw AUC and skill against the scale: a column for each method, a line for each loss, with 95 % intervals."""
    part = Part(rows, 0.001)
    methods = [each for each in METHODS if (each, DEFAULT) in part.of]
    figure, grid = axes(2, len(methods), (2.1 * len(methods) + 1, 4.8), 110, sharex=True, sharey="row")
    for (column, method), (loss, style) in product(enumerate(methods), STYLES.items()):
        if (logits := part.logits(method, loss)) is None:
            continue
        by_scale = [part.figures(each[part.test]) for each in logits]
        for row, kind in enumerate(("AUC", "skill")):
            grid[row, column].plot(SCALES, [each[kind][0] for each in by_scale], **style, marker=".", label=loss)
            low, high = zip(*(limits(each[kind]) for each in by_scale), strict=True)
            grid[row, column].fill_between(SCALES, low, high, color=style["color"], alpha=0.12, lw=0)
    for column, method in enumerate(methods):
        grid[0, column].set(title=f"{method}, last layer" if method == "EP" else method, xscale="log", ylim=(0.3, 1))
        grid[1, column].set(xlabel="prior's scale", ylim=(-1, 0.5))
        grid[1, column].axhline(0, color="0.6", lw=0.8)
        for each in grid[:, column]:
            each.axvline(1, color="0.8", lw=0.8, ls=":")
            each.spines[["top", "right"]].set_visible(False)
    grid[0, 0].set_ylabel("AUC")
    grid[1, 0].set_ylabel("skill")
    handles = {label: line for each in grid[0] for line, label in zip(*each.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)
    return figure


COMPARISONS = tuple(Comparison(f"posterior_lidc_{data}", partial(cells, data), run, tables, draw) for data in TITLES)
