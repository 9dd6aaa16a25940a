"""Compare losses for segmentation on real CT: nodules outlined by radiologists, patches around them, whole slabs to predict.

    python benchmarks/segmentation.py --docs     # trains what is missing (about 20 minutes of one core), writes the page
    python benchmarks/segmentation.py --stored   # writes the page from docs/benchmarks/segmentation.npz, trains nothing
    python benchmarks/segmentation.py --quick    # a smoke run, half a minute

A small U-Net sees axial planes of LIDC-IDRI's slabs: `lidc_slabs.npz` in the folder RIGHTLOSS_DATA, not in the package. The
mask is where at least half of a nodule's readers drew it. Patches contain a random voxel of a mask, so that masks are more
frequent in them (ρ) than in whole slabs (π). All losses have the same patches, initial weights, step sizes and choice of the
checkpoint, and both starts of the output bias. Writes segmentation.npz (sums by patient), segmentation.md, segmentation.png.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import os
import subprocess
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from report import ROOT, table
from rich.progress import track
from torch import Tensor, nn

import rightloss as rl
from rightloss.atomic_files import whole_file
from rightloss.lidc import contour_volumes, read_archive, train_valid_test, window
from rightloss.solve import intercepts_for_mean

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SLABS = Path(os.environ.get("RIGHTLOSS_DATA", ROOT.parent / "shared" / "data")) / "lidc_slabs.npz"
OUT, DOCS = ROOT / "benchmarks" / "out", ROOT / "docs" / "benchmarks"
FOLDS, TESTED, SIZE, WIDTH, BATCH, RESAMPLES = 5, 3, 32, 8, 16, 2000
COSTS = (1, 3, 9)  # of a missed voxel, in false ones
EDGES = torch.tensor([0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9])  # of the bins of predictions
FINE, FAR = 100, 400  # bins of log-odds per unit, and the largest, where an intercept is matched
STARTS, VARIANTS = ("½", "π"), ("as given", "matched")
CROSS_ENTROPY, DEFAULT = "cross-entropy", "information gain, the default"
MOVED = "cross-entropy, moved from ρ to π"
Criterion = Callable[[Tensor, Tensor], Tensor]


class Settings(NamedTuple):
    """How long to train, and on what part of the data."""

    steps: int = 300
    checkpoints: int = 3
    rates: tuple[float, ...] = (0.002, 0.005)
    tested: int = TESTED
    every: int = 2  # plane of the data that is used


def focal(logits: Tensor, y: Tensor) -> Tensor:
    """Return the focal loss with γ = 2."""
    own = -F.cross_entropy(logits, y, reduction="none")
    return -((1 - own.exp()) ** 2 * own).mean()


def soft_dice(logits: Tensor, y: Tensor) -> Tensor:
    """Return 1 − the soft Dice coefficient of the minibatch."""
    p = logits.softmax(1)[:, 1]
    return 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)


def published_auxiliary(prevalence: rl.Prevalence, head: nn.Module) -> Criterion:
    return rl.InformationGainLoss.as_published(prevalence, marginal=rl.AuxiliaryMarginal(head))


LOSSES: dict[str, Callable[[rl.Prevalence, nn.Module], Criterion]] = {
    DEFAULT: lambda prevalence, head: rl.InformationGainLoss(prevalence),
    "as published, minibatch": lambda prevalence, head: rl.InformationGainLoss.as_published(prevalence),
    "as published, q_ψ": published_auxiliary,
    "weighted": lambda prevalence, head: rl.WeightedLoss(prevalence),
    CROSS_ENTROPY: lambda prevalence, head: F.cross_entropy,
    "focal": lambda prevalence, head: focal,
    "soft Dice": lambda prevalence, head: soft_dice,
}
METHODS = (*LOSSES, MOVED)


class UNet(nn.Module):
    """Two levels down and up, without normalisation, whose statistics would differ between patches and slabs."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.top, self.middle, self.bottom = _block(1, width), _block(width, 2 * width), _block(2 * width, 4 * width)
        self.to_middle, self.to_top = _block(6 * width, 2 * width), _block(3 * width, width)
        self.head, self.up = nn.Conv2d(width, 2, 1), nn.Upsample(scale_factor=2)

    def forward(self, x: Tensor) -> Tensor:
        top = self.top(x)
        middle = self.middle(F.max_pool2d(top, 2))
        bottom = self.bottom(F.max_pool2d(middle, 2))
        middle = self.to_middle(torch.cat([self.up(bottom), middle], 1))
        logits: Tensor = self.head(self.to_top(torch.cat([self.up(middle), top], 1)))
        return logits


def _block(inputs: int, outputs: int) -> nn.Sequential:
    convolutions = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
    for each in convolutions:
        nn.init.kaiming_normal_(each.weight, nonlinearity="relu")
        assert each.bias is not None
        nn.init.zeros_(each.bias)
    return nn.Sequential(convolutions[0], nn.ReLU(), convolutions[1], nn.ReLU())


class Planes(NamedTuple):
    """Axial planes: grey levels and masks `(n, h, w)`, and the patient of each."""

    x: Tensor
    y: Tensor
    patients: np.ndarray

    def of(self, rows: Tensor) -> Planes:
        return Planes(self.x[rows], self.y[rows], self.patients[rows.numpy()])


@dataclass(frozen=True)
class Part:
    """One fold: patches to train on, planes to validate and to test on, π of whole slabs and ρ of the patches."""

    patches: Planes
    valid: Planes
    test: Planes
    prevalence: rl.Prevalence


@cache
def planes() -> Planes:
    """Return all planes that a slab has."""
    archive = read_archive(SLABS)
    spans = np.array([span.split(":") for span in archive.columns["slab_planes"]], int)
    filled = torch.from_numpy((np.arange(64) >= spans[:, :1]) & (np.arange(64) < spans[:, 1:]))
    masks = contour_volumes(archive.columns["nodule_id"]) >= 0.5
    return Planes(window(archive.patches()[filled]) - 0.5, masks[filled], archive.patients[filled.nonzero()[:, 0].numpy()])


@cache
def part_of(fold: int, settings: Settings) -> Part:
    """Split by patient, and draw the patches of all steps."""
    every = planes().of(torch.arange(0, len(planes().x), settings.every))
    split = train_valid_test(np.zeros(len(every.x), int), every.patients, fold, FOLDS)
    train = every.of(split.train)
    patches = _patches(train, settings.steps * BATCH, np.random.default_rng(fold))
    prevalence = rl.Prevalence.binary(float(train.y.double().mean()), sampling=float(patches.y.double().mean()))
    return Part(patches, every.of(split.valid[::3]), every.of(split.test), prevalence)


def _patches(train: Planes, number: int, rng: np.random.Generator) -> Planes:
    """Draw patches around random voxels of masks, each at a random place in its patch."""
    inside = train.y.nonzero().numpy()
    plane, row, column = inside[rng.integers(len(inside), size=number)].T
    corner = [np.clip(each - rng.integers(SIZE, size=number), 0, 64 - SIZE) for each in (row, column)]
    rows, columns = (each[:, None] + np.arange(SIZE) for each in corner)
    where = plane[:, None, None], rows[:, :, None], columns[:, None, :]
    return Planes(train.x[where], train.y[where], train.patients[plane])


class Case(NamedTuple):
    """A net to train."""

    fold: int
    start: str
    loss: str

    def path(self, settings: Settings) -> Path:
        key = hashlib.sha256(repr((*self, *settings._replace(tested=0), SIZE, WIDTH, BATCH)).encode()).hexdigest()[:16]
        return OUT / "segmentation" / f"{key}.npz"


def train(case: Case, part: Part, rate: float, settings: Settings) -> Iterator[tuple[int, UNet]]:
    """Train with Adam and a cosine schedule; yield the net at each checkpoint."""
    torch.manual_seed(case.fold)
    net = UNet().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    nn.init.zeros_(net.head.bias)
    if case.start == "π":
        rl.start_at_prevalence(net.head, part.prevalence)
    criterion = LOSSES[case.loss](part.prevalence, net.head)
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps)
    for step in range(settings.steps):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        optimizer.zero_grad()
        criterion(net(part.patches.x[rows, None]), part.patches.y[rows].long()).backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % (settings.steps // settings.checkpoints) == 0:
            yield step + 1, net


@torch.no_grad()
def log_odds(net: UNet, x: Tensor) -> Tensor:
    """Return the log-odds of the mask `(n, h, w)`."""
    return torch.cat([(z := net(each[:, None]))[:, 1] - z[:, 0] for each in x.split(64)])


class Validation:
    """Predictions on validation slabs, counted by log-odds and label: their likelihood at any intercept."""

    def __init__(self, odds: Tensor, y: Tensor) -> None:
        index = (odds.double().clamp(-FAR, FAR).add(FAR) * FINE).round().long()
        self.odds = np.arange(2 * FAR * FINE + 1) / FINE - FAR
        self.counts = [torch.bincount(index[y == label], minlength=len(self.odds)).double().numpy() for label in (False, True)]

    def intercept(self, population: float) -> float:
        """Return the intercept for which the mean prediction is π."""
        logits = np.stack([np.zeros_like(self.odds), self.odds], 1)
        low, high = intercepts_for_mean(logits, np.array([1 - population, population]), np.sum(self.counts, 0))
        return float(high - low)

    def log_likelihood(self, intercept: float) -> float:
        odds = self.odds + intercept
        return -float(sum(np.logaddexp(0, sign * odds) @ each for sign, each in zip((1, -1), self.counts, strict=True)))


def intercepts(case: Case, seen: Validation, prevalence: rl.Prevalence) -> dict[str, float]:
    """Return what is added to the log-odds, by variant."""
    pi, rho = float(prevalence.population[1]), float(prevalence.sampling[1])
    moved = {MOVED: float(np.log(pi / (1 - pi)) - np.log(rho / (1 - rho)))} if case.loss == CROSS_ENTROPY else {}
    return {"as given": 0.0, "matched": seen.intercept(pi), **moved}


class Chosen(NamedTuple):
    """The step size and the checkpoint with the highest log-likelihood on validation slabs."""

    value: float
    intercept: float
    rate: float
    step: int
    weights: dict[str, Tensor]


def choose(case: Case, part: Part, settings: Settings) -> dict[str, Chosen]:
    """Train with each step size; choose for each variant by its own log-likelihood."""
    best: dict[str, Chosen] = {}
    for rate in settings.rates:
        for step, net in train(case, part, rate, settings):
            seen = Validation(log_odds(net, part.valid.x), part.valid.y)
            for variant, intercept in intercepts(case, seen, part.prevalence).items():
                value = seen.log_likelihood(intercept)
                if variant not in best or value > best[variant].value:
                    best[variant] = Chosen(value, intercept, rate, step, copy.deepcopy(net.state_dict()))
    return best


def run(case: Case, settings: Settings) -> Path:
    """Train, predict the test slabs and save sums by patient; a pure function of the case and the settings."""
    path = case.path(settings)
    if not path.exists():
        part, net, found = part_of(case.fold, settings), UNet().to(memory_format=torch.channels_last), {}  # type: ignore[call-overload]
        for variant, chosen in choose(case, part, settings).items():
            net.load_state_dict(chosen.weights)
            found[variant] = sums_by_patient(log_odds(net, part.test.x) + chosen.intercept, part.test)
            found[f"{variant}, chosen"] = np.array([chosen.rate, chosen.step, chosen.intercept])
        with whole_file(path) as file:
            np.savez(file, allow_pickle=False, **found)
    return path


def sums_by_patient(odds: Tensor, test: Planes) -> np.ndarray:
    """Return by patient `(p, 18)`: log-likelihood, predictions, their excess by bin; hits and marked voxels by threshold."""
    y, p = test.y.float(), torch.sigmoid(odds)
    excess, bins = p - y, torch.bucketize(p, EDGES)
    columns = [y * odds - F.softplus(odds), p, *(excess * (bins == each) for each in range(len(EDGES) + 1))]
    marks = [odds >= -np.log(cost) for cost in COSTS]
    columns += [(mark & test.y).float() for mark in marks] + [mark.float() for mark in marks]
    by_plane = torch.stack([each.sum((1, 2)) for each in columns], 1).double().numpy()
    own = np.unique(test.patients, return_inverse=True)[1]
    return np.stack([np.bincount(own, each) for each in by_plane.T], 1)


def collect(settings: Settings) -> dict[str, Any]:
    """Train what is missing, and return everything that the page needs, in arrays."""
    cases = [Case(*each) for each in product(range(settings.tested), STARTS, LOSSES)]
    for case in track(cases, "nets"):
        run(case, settings)
    parts = [part_of(fold, settings) for fold in range(settings.tested)]
    facts = [_facts(part) for part in parts]
    people = {name: np.concatenate([each[name] for each in facts]) for name in facts[0]}
    about = {"commit": _commit(), "settings": settings._asdict(), "patch": SIZE, "batch": BATCH, "folds": FOLDS}
    return {**_stacked(settings), **people, "about": json.dumps(about)}


def _stacked(settings: Settings) -> dict[str, np.ndarray]:
    """Return sums (methods, starts, variants, patients, 18), and what was chosen (methods, starts, variants, folds, 3)."""
    sums, chosen = [], []
    for method, start, variant in product(METHODS, STARTS, VARIANTS):
        loss, key = (CROSS_ENTROPY, MOVED if variant == "as given" else variant) if method == MOVED else (method, variant)
        files = [np.load(Case(fold, start, loss).path(settings)) for fold in range(settings.tested)]
        sums.append(np.concatenate([file[key] for file in files]))
        chosen.append(np.stack([file[f"{key}, chosen"] for file in files]))
    shape = len(METHODS), len(STARTS), len(VARIANTS)
    return {
        name: np.stack(each).reshape(*shape, *each[0].shape).astype(np.float32)
        for name, each in (("sums", sums), ("chosen", chosen))
    }


def _facts(part: Part) -> dict[str, np.ndarray]:
    """Return by patient: voxels, those in masks, and π and ρ of the fold."""
    people, own = np.unique(part.test.patients, return_inverse=True)
    voxels, inside = np.bincount(own) * 64 * 64, np.bincount(own, part.test.y.sum((1, 2)).numpy()).astype(int)
    pi, rho = (float(each[1]) for each in (part.prevalence.population, part.prevalence.sampling))
    return {"voxels": voxels, "inside": inside, "pi": np.full(len(people), pi), "rho": np.full(len(people), rho)}


def _commit() -> str:
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()


Figures = dict[str, np.ndarray]
Cell = tuple[str, str, str]  # method, start, variant
DICE, COST = (tuple(f"{name} {cost}" for cost in COSTS) for name in ("Dice", "cost"))


def figures(data: dict[str, Any], sums: np.ndarray, weights: np.ndarray) -> Figures:
    """Return every figure of all patients and of each resample (rows of `weights`); of voxels together, Dice by patient."""
    total, inside, pi = weights @ sums, data["inside"], data["pi"]
    expected = weights @ (data["voxels"] * pi)
    guess = weights @ (inside * np.log(pi) + (data["voxels"] - inside) * np.log1p(-pi))
    hits, marked, drawn = sums[:, 12:15], sums[:, 15:18], weights * (inside > 0)
    dice = drawn @ (2 * hits / np.maximum(marked + inside[:, None], 1)) / drawn.sum(1, keepdims=True)
    found = {"log-likelihood": 1000 * total[:, 0] / (weights @ data["voxels"]), "skill": 1 - total[:, 0] / guess}
    found |= {"mean": total[:, 1] / expected, "calibration": np.abs(total[:, 2:12]).sum(1) / expected}
    missed = (weights @ inside)[:, None] - total[:, 12:15]
    cost = (missed + (total[:, 15:18] - total[:, 12:15]) / np.array(COSTS)) / (weights @ inside)[:, None]
    return found | dict(zip(DICE, dice.T, strict=True)) | dict(zip(COST, cost.T, strict=True))


def all_figures(data: dict[str, Any]) -> dict[Cell, Figures]:
    """Return figures by method, start and variant; the first entry is of all patients, the others of resampled ones."""
    number = len(data["voxels"])
    drawn = np.random.default_rng(0).multinomial(number, np.full(number, 1 / number), RESAMPLES)
    weights = np.vstack([np.ones(number), drawn])
    cells = product(enumerate(METHODS), enumerate(STARTS), enumerate(VARIANTS))
    return {
        (method, start, variant): figures(data, data["sums"][i, j, k].astype(float), weights)
        for (i, method), (j, start), (k, variant) in cells
        if (method, variant) != (MOVED, "matched")  # the same as cross-entropy, matched
    }


def interval(values: np.ndarray) -> tuple[float, float, float]:
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return float(values[0]), float(low), float(high)


def words(values: np.ndarray, digits: int, sign: str = "") -> str:
    """Return a figure with its interval; of a difference (`sign` is "+") with * if the interval excludes 0."""
    value, low, high = (f"{each:{sign}.{digits}f}" for each in interval(values))
    star = " *" if sign and interval(values)[1] * interval(values)[2] > 0 else ""
    return f"{value} [{low}, {high}]{star}"


def page(data: dict[str, Any]) -> str:
    """Return the table of skills, and everything else in a fold, in Markdown."""
    found, details = all_figures(data), _made(data)
    columns = [*product(VARIANTS, STARTS)]
    skills = [[found.get((method, start, variant), {}).get("skill") for variant, start in columns] for method in METHODS]
    rows = [
        [m, *("as above" if each is None else words(each, 2) for each in own)] for m, own in zip(METHODS, skills, strict=True)
    ]
    for variant in VARIANTS:
        own = [cell for start in STARTS for cell in found if cell[1:] == (start, variant)]
        details += f"\n**Predictions {variant}.** Differences are to the default from the same start, paired; * excludes 0.\n\n"
        details += table(_PROBABILITIES, [_probabilities(found, cell) for cell in own]) + "\n"
        details += table(_DECISIONS, [_decisions(found, cell) for cell in own])
    header = ["skill", *(f"{variant}, start {start}" for variant, start in columns)]
    return table(header, rows) + '\n??? note "All figures, and how they were made"\n\n' + indent(details, "    ")


_PROBABILITIES = ["start", "loss", "log-likelihood, nats/1000", "difference", "mean prediction ÷ π", "calibration error ÷ π"]
_DECISIONS = ["start", "loss", *(f"Dice, {cost}:1" for cost in COSTS), f"difference, {COSTS[-1]}:1"]
_DECISIONS += [f"cost, {cost}:1" for cost in COSTS]


def _probabilities(found: dict[Cell, Figures], cell: Cell) -> list[str]:
    own, default = found[cell], found[DEFAULT, cell[1], cell[2]]
    both = [words(own["log-likelihood"], 1), _difference(own, default, "log-likelihood", 1)]
    return [cell[1], cell[0], *both, words(own["mean"], 2), words(own["calibration"], 2)]


def _decisions(found: dict[Cell, Figures], cell: Cell) -> list[str]:
    own, default = found[cell], found[DEFAULT, cell[1], cell[2]]
    dice, cost = ([words(own[name], 2) for name in names] for names in (DICE, COST))
    return [cell[1], cell[0], *dice, _difference(own, default, DICE[-1], 3), *cost]


def _difference(own: Figures, default: Figures, name: str, digits: int) -> str:
    return "–" if own is default else words(own[name] - default[name], digits, "+")


def _made(data: dict[str, Any]) -> str:
    about = json.loads(str(data["about"]))
    settings, chosen, size = Settings(**about["settings"]), data["chosen"].reshape(-1, 3), about["patch"]
    voxels, inside, people = data["voxels"].sum(), data["inside"].sum(), len(data["voxels"])
    rates = " or ".join(f"{rate:g}" for rate in settings.rates)
    last, fast = (chosen[:, 1] == settings.steps).sum(), (chosen[:, 0] == np.float32(settings.rates[-1])).sum()
    return f"""Made by `python benchmarks/segmentation.py --docs` at commit {about["commit"]}.

- **Data**: the first {settings.tested} of {about["folds"]} folds by patient, the fold's number as seed. {people} patients
  are tested, with {voxels / 1e6:.1f} million voxels (one plane in {settings.every}), {100 * inside / voxels:.2f} % of them in
  masks. On average π = {data["pi"].mean():.4f} and ρ = {data["rho"].mean():.3f}.
- **Training**: {settings.steps} steps of {about["batch"]} patches of {size}×{size}. The step size, {rates}, and one of
  {settings.checkpoints} checkpoints are those with the highest log-likelihood on another fold's slabs. Of {len(chosen)} choices
  {last} are the last checkpoint, {fast} the larger step.
- **Matched**: with the intercept that makes the mean prediction on that fold's slabs π.
- **Figures**: likelihood, calibration and cost of all voxels together, Dice as the average over patients; intervals of 95 %
  resample patients. *9:1*: a missed voxel costs as much as nine false ones, so voxels are marked from a prediction of 0.1
  on (¼ for 3:1, ½ for 1:1). *Cost* is relative to marking nothing.
"""


def picture(data: dict[str, Any]) -> plt.Figure:
    """Return mean predictions, skills and Dice coefficients of all losses, from both starts, as given and matched."""
    found = all_figures(data)
    panels = {
        "mean": "mean prediction ÷ π (1 is right)",
        "skill": "skill, cut at −1 (0: always π)",
        DICE[-1]: "Dice where a miss costs 9:1",
    }
    figure, axes = plt.subplots(1, 3, figsize=(11, 4.4), layout="constrained", sharey=True)
    for axis, (name, title) in zip(axes, panels.items(), strict=True):
        for cell, each in found.items():
            _bar(axis, cell, *interval(each[name]))
        axis.set_title(title, fontsize=10)
        axis.set(yticks=range(len(METHODS)), yticklabels=METHODS)
        axis.grid(axis="x", color="0.9")
        axis.set_axisbelow(True)
    axes[0].invert_yaxis()
    axes[0].set(xscale="log", xticks=[1, 2, 5, 10], xticklabels=["1", "2", "5", "10"])
    axes[0].minorticks_off()
    axes[0].axvline(1, color="0.5", lw=0.8)
    axes[1].set_xlim(-1, 0.7)
    axes[1].axvline(0, color="0.5", lw=0.8)
    handles = [axes[2].plot([], [], **_style(start, variant), ls="")[0] for variant, start in product(VARIANTS, STARTS)]
    labels = [f"{variant}, start {start}" for variant, start in product(VARIANTS, STARTS)]
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _style(start: str, variant: str) -> dict[str, Any]:
    colour = {"as given": "tab:orange", "matched": "tab:blue"}[variant]
    return {"color": colour, "marker": "o", "ms": 5, "mfc": "white" if start == "½" else colour}


def _bar(axis: Any, cell: Cell, value: float, low: float, high: float) -> None:
    method, start, variant = cell
    place = METHODS.index(method) + 0.2 * (2 * VARIANTS.index(variant) + STARTS.index(start) - 1.5)
    axis.plot([low, high], [place, place], color=_style(start, variant)["color"], lw=1)
    axis.plot(value, place, **_style(start, variant))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true", help="write into docs/benchmarks, which is kept in the repository")
    parser.add_argument("--stored", action="store_true", help="train nothing; write the page of the stored figures")
    parser.add_argument("--quick", action="store_true", help="a smoke run on one fold, with few planes and steps")
    chosen = parser.parse_args()
    folder = DOCS if (chosen.docs or chosen.stored) and not chosen.quick else OUT
    (OUT / "segmentation").mkdir(parents=True, exist_ok=True)
    if not chosen.stored:
        if not SLABS.is_file():
            print(f"Skipped: there is no {SLABS.name}. Set RIGHTLOSS_DATA to the folder that has it.")
            return
        torch.set_num_threads(1)
        warnings.simplefilter("ignore", rl.PrevalenceWarning)  # some starts and losses are wrong on purpose
        found = collect(Settings(4, 2, (0.002,), 1, 40) if chosen.quick else Settings())
        with whole_file(folder / "segmentation.npz") as file:
            np.savez_compressed(file, allow_pickle=False, **found)
    data = dict(np.load(folder / "segmentation.npz"))
    (folder / "segmentation.md").write_text(page(data), encoding="utf-8")
    picture(data).savefig(folder / "segmentation.png", dpi=120)
    print(page(data))


if __name__ == "__main__":
    main()
