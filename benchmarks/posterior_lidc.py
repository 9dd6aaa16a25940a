"""Compare posteriors on LIDC-IDRI by the scale of their prior: methods × losses × scales × prevalences, with intervals.

    python benchmarks/posterior_lidc.py --fit features  # finished fits are kept in benchmarks/out: stop and resume at will
    python benchmarks/posterior_lidc.py --fit slabs     # needs lidc_slabs.npz in the folder that RIGHTLOSS_DATA names
    python benchmarks/posterior_lidc.py --docs          # gathers the fits and writes posterior_lidc.npz, .md and .png

Of ten folds by patient five are tested, each with the next to validate and the other eight to train, in their natural mix.
*features*: all weights of an MLP that reads the annotations' columns. *slabs*: the last layer of a small ConvNet that was
trained with cross-entropy on views of CT in depth. All losses have the same start, the same minibatches and the same prior:
Gaussian by layer, the output bias around log π. The validation part chooses the scale.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
import warnings
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import ROOT, table
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
from rightloss.lidc.splits import Parts
from rightloss.study.config import CONTOURS, RunConfig, StudyConfig
from rightloss.study.datasets import StudyData, source_of, study_data, study_images
from rightloss.study.training.batches import Batches, stream
from rightloss.study.training.candidates import Candidate, Model, score, take_step

DATA = ("features", "slabs")
FOLDS, TESTED = 10, range(5)
PREVALENCES = (0.001, 0.3)
SCALES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
DEFAULT, PUBLISHED, NETWORK, WEIGHTED = LOSSES = ("default", "as published", "as published, q_ψ", "weighted")
METHODS = ("MAP", "Laplace", "VI", "SGHMC", "EP")
STYLES: dict[str, dict[str, str]] = {
    DEFAULT: {"color": "C0"}, PUBLISHED: {"color": "C2"}, NETWORK: {"color": "C2", "ls": "--"}, WEIGHTED: {"color": "C3"},
}  # fmt: skip
RESAMPLES = 1000
TITLES = {
    "features": "All weights of an MLP on the annotations' columns",
    "slabs": "Last layer of a ConvNet on CT in depth",
}
STEPS, BATCH, RATE, CHAIN = 1000, 128, 1e-2, 1000
OPENING = f"""Made by `python benchmarks/posterior_lidc.py --docs` from `docs/benchmarks/posterior_lidc.npz`, the logits of all
fits, at commit {{commit}}. Seeds are the numbers of the folds, the first of {FOLDS} by patient. The validation part chooses the
scale of the prior, for each fold, from {", ".join(f"{each:g}" for each in SCALES)}, by the expected log-likelihood at π.
AUC: pairs of the same fold, mean over folds. *Skill*: 0 for always answering π, 1 for certainty. Intervals (95 %) resample
patients. EP has the last layer alone, at MAP's features. *As published*: r = π and κ = 0, with p(y|w) exact over the training
rows, or by a network (q_ψ). MLP: {STEPS} steps with minibatches of {BATCH}; SGHMC: 4 chains of {CHAIN} steps, too few where R̂
is above 1.05.

"""
OUT = ROOT / "benchmarks" / "out" / "posterior_lidc"
Rows = tuple[Tensor, Tensor]


def fit(data: str, population: float, fold: int, loss: str) -> None:
    """Fit every method with every scale, and save the logits of the validation and the test part."""
    path = path_of(data, population, fold, loss)
    if path.exists():
        return
    parts, x, y = parts_of(data, fold), inputs(data, fold), nodules(data).labels
    train, asked = (x[parts.train], y[parts.train]), torch.cat([parts.valid, parts.test])
    methods, start = methods_of(data, loss), time.process_time()
    logits = np.full((len(SCALES), len(methods), len(asked)), np.nan, np.float32)
    r_hat = np.full(len(SCALES), np.nan, np.float32)
    for number, scale in enumerate(SCALES):
        target, mode = target_of(data, fold, train, population, loss, scale), None
        for column, (name, method) in enumerate(methods.items()):
            try:
                posterior = method(target, train, fold, mode)
            except Diverged:  # a prior without predictions is not chosen
                continue
            mode = posterior if name == "MAP" else mode
            log_probs = torch.as_tensor(predictive(posterior, x[asked]))
            logits[number, column] = log_probs[:, 1] - log_probs[:, 0]
            r_hat[number] = posterior.record.get("predictions", {}).get("r_hat", r_hat[number])
    with whole_file(path) as file:
        np.savez(file, logits=logits, methods=[*methods], r_hat=r_hat, seconds=time.process_time() - start)
    print(f"{path.stem}: {time.process_time() - start:.0f} s", flush=True)


def path_of(data: str, population: float, fold: int, loss: str) -> Path:
    return OUT / f"{data}-{population:g}-{fold}-{LOSSES.index(loss)}.npz"


Method = Callable[[LogPosterior, Rows, int, Any], Posterior]


def methods_of(data: str, loss: str) -> dict[str, Method]:
    """Return the methods by name; q_ψ matters where sampled weights change p(y|w) from minibatch to minibatch."""
    quiet: dict[str, Any] = {"progress": False}
    ascent = {**quiet, "lr": RATE, "steps": STEPS, "batch_size": BATCH}
    if data != "features":  # few weights: all rows at once, and on to the exact mode
        ascent |= {"steps": STEPS // 5, "batch_size": None}
    sweeps = 200 if data == "features" else 30  # with a wide prior the published form needs many, and they are slow
    found: dict[str, Method] = {
        "MAP": lambda target, rows, seed, mode: map_estimate(target, rows, seed=seed, **ascent),
        "Laplace": lambda target, rows, seed, mode: laplace(target, rows, mode=mode, **quiet),
        "VI": lambda target, rows, seed, mode: variational(target, rows, seed=seed, **ascent),
        "SGHMC": lambda target, rows, seed, mode: sghmc(
            target, rows, start=mode, seed=seed, steps=CHAIN, batch_size=BATCH, **quiet
        ),
        "EP": lambda target, rows, seed, mode: expectation_propagation(
            target, rows, mode=mode, seed=seed, iterations=sweeps, **quiet
        ),
    }
    names = ("VI",) if loss == NETWORK else tuple(found) if data == "features" else ("MAP", "Laplace", "EP")
    return {name: found[name] for name in names}


def target_of(data: str, fold: int, rows: Rows, population: float, loss: str, scale: float) -> LogPosterior:
    """Return the log posterior; first weights and prior are the same for all losses."""
    prevalence = Prevalence.from_labels(rows[1], population, evidence=float(loss in (DEFAULT, WEIGHTED)))
    columns = rows[0].shape[1]
    net: Any = Model("mlp", Categorical(2), columns, True, 0.0, stream("weights", fold)).net
    if data != "features":
        net = nn.Sequential(nn.Linear(columns, 2))
        nn.init.zeros_(net[-1].weight)
    start_at_prevalence(net[-1], prevalence)
    how: dict[str, Any] = {"loss": WeightedLoss} if loss == WEIGHTED else {}
    if loss in (PUBLISHED, NETWORK):  # exact over the training rows, or a network that reads the weights
        how = {"reference": prevalence.population, "pool": rows if loss == PUBLISHED else None}
    return log_posterior(net, prevalence, prior=layer_prior(net, scale), **how)


@cache
def config_of(data: str) -> StudyConfig:
    """Return the study whose net gives the features: cross-entropy, equal classes in each minibatch."""
    archive = CONTOURS if data == "features" else str(Path(os.environ["RIGHTLOSS_DATA"]) / "lidc_slabs.npz")
    return StudyConfig(
        "quick", sources=(source_of(archive),), nets=("convnet",), losses=("corrected",), populations=(0.5,),
        folds=len(TESTED), num_folds=FOLDS,
    )  # fmt: skip


@cache
def nodules(data: str) -> StudyData:
    return study_data(config_of(data).sources[0], "binary")


def parts_of(data: str, fold: int) -> Parts:
    return nodules(data).parts(fold, FOLDS)


@cache
def inputs(data: str, fold: int) -> Tensor:
    """Return the model's inputs, standardised by the training rows: columns, or features of a ConvNet."""
    train = parts_of(data, fold).train
    if data == "features":
        return nodules(data).standardised(train)
    path = OUT / f"{data}-features-{fold}.npy"
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
    print(f"{run.label}: validation {max(candidate.scores):.4f}", flush=True)
    with torch.no_grad():
        blocks = torch.arange(len(batches.target)).split(64)
        return torch.cat([net.features(batches.fixed(block).inputs.features) for block in blocks]).numpy()


def losses_of(data: str) -> tuple[str, ...]:
    return LOSSES if data == "features" else (DEFAULT, PUBLISHED, WEIGHTED)


def gathered(stored: Path) -> dict[str, np.ndarray]:
    """Return the stored predictions, and those of finished folds in benchmarks/out; rows of folds follow one another."""
    found = {**np.load(stored)} if stored.exists() else {}
    for data, population in product(DATA, PREVALENCES):
        done = [fold for fold in TESTED if all(path_of(data, population, fold, loss).exists() for loss in losses_of(data))]
        if not done:
            continue
        parts, name = [parts_of(data, fold) for fold in done], f"{data}/{population:g}"
        rows = torch.cat([torch.cat([each.valid, each.test]) for each in parts]).numpy()
        found[f"{name}/label"] = nodules(data).labels.numpy()[rows].astype(np.int8)
        found[f"{name}/patient"] = np.unique(nodules(data).patients, return_inverse=True)[1][rows].astype(np.int16)
        found[f"{name}/fold"] = np.repeat(done, [len(each.valid) + len(each.test) for each in parts]).astype(np.int8)
        found[f"{name}/test"] = np.concatenate([np.repeat([False, True], [len(e.valid), len(e.test)]) for e in parts])
        for loss in losses_of(data):
            files = [np.load(path_of(data, population, fold, loss)) for fold in done]
            for number, method in enumerate(files[0]["methods"]):
                found[f"{name}/{method}/{loss}"] = np.concatenate([each["logits"][:, number] for each in files], 1)
            found[f"{name}/r_hat/{loss}"] = np.stack([each["r_hat"] for each in files])
        found["commit"] = np.array(
            subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
        )
    return found


class Part:
    """The test rows of one comparison, with 1 for each row first and then weights of resampled patients."""

    def __init__(self, stored: dict[str, np.ndarray], name: str) -> None:
        self.test, self.all_folds, self.all_labels = (stored[f"{name}/{each}"] for each in ("test", "fold", "label"))
        self.folds = np.unique(self.all_folds)
        self.label, self.fold = self.all_labels[self.test], self.all_folds[self.test]
        people, own = np.unique(stored[f"{name}/patient"][self.test], return_inverse=True)
        drawn = np.random.default_rng(0).multinomial(len(people), np.full(len(people), 1 / len(people)), RESAMPLES)
        self.weights = np.concatenate([np.ones((1, len(own))), drawn[:, own]])

    def figures(self, logits: np.ndarray, population: float) -> dict[str, np.ndarray]:
        """Return the figures of each resample: AUC within folds, AUC of all folds together, skill and mean prediction."""
        within = [self._area(logits, self.fold == fold) for fold in self.folds]
        score = self._mean(-np.logaddexp(0, np.where(self.label, -logits, logits)), population)
        guess = population * np.log(population) + (1 - population) * np.log1p(-population)
        mean = self._mean(np.exp(-np.logaddexp(0, -logits)), population)
        together = self._area(logits, np.full(len(self.label), True))
        return {"AUC": np.nanmean(within, 0), "together": together, "skill": 1 - score / guess, "mean": mean}

    def validated(self, logits: np.ndarray, population: float, most: float = np.inf) -> tuple[np.ndarray, list[float]]:
        """Return the test logits with the scale of each fold that has the best validation score, and these scales."""
        found, chosen = np.full(len(self.test), np.nan), []
        for fold in self.folds:
            here = self.all_folds == fold
            valid, y = here & ~self.test, self.all_labels[here & ~self.test]
            scores = -np.logaddexp(0, np.where(y, -logits[:, valid], logits[:, valid]))
            score = population * scores[:, y == 1].mean(1) + (1 - population) * scores[:, y == 0].mean(1)
            score[(np.array(SCALES) > most) | ~np.isfinite(score)] = -np.inf
            found[here] = logits[int(score.argmax()), here]
            chosen.append(SCALES[int(score.argmax())])
        return found[self.test], chosen

    def _mean(self, values: np.ndarray, population: float) -> np.ndarray:
        by_class = [(self.weights * (self.label == c)) @ values / self.weights[:, self.label == c].sum(1) for c in (0, 1)]
        return (1 - population) * by_class[0] + population * by_class[1]

    def _area(self, logits: np.ndarray, rows: np.ndarray) -> np.ndarray:
        ill, well = (rows & (self.label == c) for c in (1, 0))
        above = np.sign(logits[ill][:, None] - logits[well]) / 2 + 0.5
        ours, others = self.weights[:, ill], self.weights[:, well]
        with np.errstate(invalid="ignore"):  # a resample may lack a class in a fold
            return ((ours @ above) * others).sum(1) / (ours.sum(1) * others.sum(1))


def interval(values: np.ndarray, digits: int = 3, sign: str = "") -> str:
    low, high = np.nanquantile(values[1:], [0.025, 0.975])
    star = " *" if sign and low * high > 0 else ""
    return f"{values[0]:{sign}.{digits}f} [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]{star}"


def tables(stored: dict[str, np.ndarray], data: str, population: float) -> str:
    """Return the figures with the validated scale, from the whole grid and from scales up to 1, and paired differences."""
    name, rows, pairs = f"{data}/{population:g}", [], []
    part, default = Part(stored, name), list[dict[str, np.ndarray]]()
    for method, loss in product(METHODS, LOSSES):
        if (logits := stored.get(f"{name}/{method}/{loss}")) is None:
            continue
        (_, scales), _ = found = [part.validated(logits, population, most) for most in (np.inf, 1.0)]
        wide, narrow = figures = [part.figures(each, population) for each, _ in found]
        default = figures if loss == DEFAULT else default
        r_hat = stored[f"{name}/r_hat/{loss}"].max() if method == "SGHMC" else np.nan
        rows.append([
            method + ("" if np.isnan(r_hat) else f", R̂ up to {r_hat:.2g}"), loss, interval(wide["AUC"]),
            f"{wide['together'][0]:.3f}", interval(wide["skill"], 2), f"{wide['mean'][0]:.2g}",
            " ".join(f"{each:g}" for each in scales), interval(narrow["AUC"]), interval(narrow["skill"], 2),
        ])  # fmt: skip
        less = [{kind: one[kind] - other[kind] for kind in one} for one, other in zip(figures, default, strict=True)]
        both = [text for each in less for text in (interval(each["AUC"], 3, "+"), interval(each["skill"], 2, "+"))]
        pairs += [] if loss == DEFAULT else [[method, loss, *both]]
    capped_heads = ["AUC, scales up to 1", "skill, scales up to 1"]
    head = ["method", "loss", "AUC", "AUC, folds together", "skill", "mean prediction", "scales chosen", *capped_heads]
    text = f"### {TITLES[data]}, π = {population:g}, {len(part.folds)} folds\n\n{table(head, rows)}\n"
    paired = table(["method", "loss", "AUC", "skill", *capped_heads], pairs)
    return f"{text}Minus the default, paired; * where the interval excludes 0:\n\n{paired}\n"


def draw(stored: dict[str, np.ndarray], data: str, population: float, path: Path) -> None:
    """Draw AUC and skill against the scale: a column for each method, a line for each loss, with 95 % intervals."""
    import matplotlib.pyplot as plt

    name = f"{data}/{population:g}"
    part, methods = Part(stored, name), [each for each in METHODS if f"{name}/{each}/{DEFAULT}" in stored]
    figure, axes = plt.subplots(2, len(methods), figsize=(2.1 * len(methods) + 1, 4.8), sharex=True, sharey="row")
    for (column, method), (loss, style) in product(enumerate(methods), STYLES.items()):
        if (logits := stored.get(f"{name}/{method}/{loss}")) is None:
            continue
        by_scale = [part.figures(each[part.test], population) for each in logits]
        for row, kind in enumerate(("AUC", "skill")):
            values = np.stack([each[kind] for each in by_scale])
            axes[row, column].plot(SCALES, values[:, 0], **style, marker=".", label=loss)
            axes[row, column].fill_between(
                SCALES, *np.nanquantile(values[:, 1:], [0.025, 0.975], axis=1), color=style["color"], alpha=0.12, lw=0
            )
    for column, method in enumerate(methods):
        axes[0, column].set(title=f"{method}, last layer" if method == "EP" else method, xscale="log", ylim=(0.3, 1))
        axes[1, column].set(xlabel="prior's scale", ylim=(-1, 0.5))
        axes[1, column].axhline(0, color="0.6", lw=0.8)
        for row in axes[:, column]:
            row.axvline(1, color="0.8", lw=0.8, ls=":")
            row.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("AUC")
    axes[1, 0].set_ylabel("skill")
    handles = {label: line for each in axes[0] for line, label in zip(*each.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", choices=DATA, help="fit the posteriors on these data")
    parser.add_argument("--folds", type=int, default=len(TESTED), help="fit only the first of the folds")
    parser.add_argument("--docs", action="store_true", help="write into docs/benchmarks, which is kept in the repository")
    chosen = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)  # chains may disagree: R̂ is in the table, and the validation part decides
    if chosen.fit:
        for population, fold, loss in product(PREVALENCES, TESTED[: chosen.folds], losses_of(chosen.fit)):
            fit(chosen.fit, population, fold, loss)
    else:
        write(ROOT / "docs" / "benchmarks" if chosen.docs else OUT)


def write(folder: Path) -> None:
    """Write predictions, page and pictures, from the finished fits and those already stored in docs/benchmarks."""
    stored = gathered(ROOT / "docs" / "benchmarks" / "posterior_lidc.npz")
    with whole_file(folder / "posterior_lidc.npz") as file:
        np.savez_compressed(file, allow_pickle=False, **stored)
    done = [each for each in product(DATA, PREVALENCES) if f"{each[0]}/{each[1]:g}/MAP/{DEFAULT}" in stored]
    pages = "".join([OPENING.format(commit=stored["commit"]), *(tables(stored, *each) for each in done)])
    (folder / "posterior_lidc.md").write_text(pages, encoding="utf-8")
    for data, population in done:
        if population == PREVALENCES[0]:
            draw(stored, data, population, folder / f"posterior_lidc_{data}.png")


if __name__ == "__main__":
    main()
