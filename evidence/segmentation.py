"""Compare losses for segmentation on real CT: nodules outlined by radiologists, patches around them, whole slabs to predict.

A small U-Net sees axial planes of LIDC-IDRI's slabs: `lidc_slabs.npz` in the folder RIGHTLOSS_DATA, not in the package. The
mask is where at least half of a nodule's readers drew it. Patches contain a random voxel of a mask, so that masks are more
frequent in them (ρ) than in whole slabs (π). All losses have the same patches, initial weights, step sizes and choice of the
checkpoint, and both starts of the output bias. Stored are sums by patient. About 20 minutes of one core.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rightloss as rl
from rightloss.lidc import contour_volumes, read_archive, train_valid_test, window
from rightloss.solve import intercepts_for_mean

from .engine import ROOT, Comparison
from .pages import axes, table
from .resampled import limits, weights_of, words

SLABS = Path(os.environ.get("RIGHTLOSS_DATA", ROOT.parent / "shared" / "data")) / "lidc_slabs.npz"
FOLDS, TESTED, SIZE, WIDTH, BATCH, RESAMPLES = 5, 3, 32, 8, 16, 2000
STEPS, EVERY, CHECKPOINTS, RATES = 300, 2, 3, (0.002, 0.005)
COSTS = (1, 3, 9)  # of a missed voxel, in false ones
EDGES = torch.tensor([0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9])  # of the bins of predictions
SUMS = [f"sum_{number}" for number in range(2 + len(EDGES) + 1 + 2 * len(COSTS))]
FINE, FAR = 100, 400  # bins of log-odds per unit, and the largest, where an intercept is matched
STARTS, VARIANTS = ("½", "π"), ("as given", "matched")
CROSS_ENTROPY, DEFAULT = "cross-entropy", "information gain, the default"
MOVED = "cross-entropy, moved from ρ to π"
Criterion = Callable[[Tensor, Tensor], Tensor]


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


class Cell(NamedTuple):
    """A net to train; `every` plane of the data is used."""

    fold: int
    start: str
    loss: str
    steps: int
    every: int


def cells(quick: bool) -> Iterator[Cell]:
    if not SLABS.is_file():
        raise ValueError(f"Expected {SLABS.name}, but there is none: set RIGHTLOSS_DATA to the folder that has it.")
    folds, *size = (1, 6, 40) if quick else (TESTED, STEPS, EVERY)
    yield from (Cell(*each, *size) for each in product(range(folds), STARTS, LOSSES))


class UNet(nn.Module):
    """Two levels down and up, without normalisation, whose statistics would differ between patches and slabs."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.top, self.middle, self.bottom = _block(1, width), _block(width, 2 * width), _block(2 * width, 4 * width)
        self.to_middle, self.to_top = _block(6 * width, 2 * width), _block(3 * width, width)
        self.head, self.up = nn.Conv2d(width, 2, 1), nn.Upsample(scale_factor=2)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

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
def part_of(fold: int, steps: int, every: int) -> Part:
    """Split by patient, and draw the patches of all steps: around random voxels of masks, each at a random place."""
    some = planes().of(torch.arange(0, len(planes().x), every))
    split = train_valid_test(np.zeros(len(some.x), int), some.patients, fold, FOLDS)
    train, rng, number = some.of(split.train), np.random.default_rng(fold), steps * BATCH
    inside = train.y.nonzero().numpy()
    plane, row, column = inside[rng.integers(len(inside), size=number)].T
    corner = [np.clip(each - rng.integers(SIZE, size=number), 0, 64 - SIZE) for each in (row, column)]
    rows, columns = (each[:, None] + np.arange(SIZE) for each in corner)
    where = plane[:, None, None], rows[:, :, None], columns[:, None, :]
    patches = Planes(train.x[where], train.y[where], train.patients[plane])
    prevalence = rl.Prevalence.binary(float(train.y.double().mean()), sampling=float(patches.y.double().mean()))
    return Part(patches, some.of(split.valid[::3]), some.of(split.test), prevalence)


def train(cell: Cell, part: Part, rate: float) -> Iterator[tuple[int, UNet]]:
    """Train with Adam and a cosine schedule; yield the net at each checkpoint."""
    torch.manual_seed(cell.fold)
    net = UNet()
    assert net.head.bias is not None
    nn.init.zeros_(net.head.bias)
    if cell.start == "π":
        rl.start_at_prevalence(net.head, part.prevalence)
    criterion = LOSSES[cell.loss](part.prevalence, net.head)
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cell.steps)
    for step in range(cell.steps):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        optimizer.zero_grad()
        criterion(net(part.patches.x[rows, None]), part.patches.y[rows].long()).backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % (cell.steps // CHECKPOINTS) == 0:
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


class Chosen(NamedTuple):
    """The step size and the checkpoint with the highest log-likelihood on validation slabs."""

    value: float
    intercept: float
    rate: float
    step: int
    weights: dict[str, Tensor]


def choose(cell: Cell, part: Part) -> dict[str, Chosen]:
    """Train with each step size; choose for each variant by its own log-likelihood."""
    best: dict[str, Chosen] = {}
    pi, rho = (float(each[1]) for each in (part.prevalence.population, part.prevalence.sampling))
    for rate in RATES:
        for step, net in train(cell, part, rate):
            seen = Validation(log_odds(net, part.valid.x), part.valid.y)
            intercepts = {"as given": 0.0, "matched": seen.intercept(pi)}
            if cell.loss == CROSS_ENTROPY:
                intercepts[MOVED] = float(np.log(pi / (1 - pi)) - np.log(rho / (1 - rho)))
            for variant, intercept in intercepts.items():
                value = seen.log_likelihood(intercept)
                if variant not in best or value > best[variant].value:
                    best[variant] = Chosen(value, intercept, rate, step, copy.deepcopy(net.state_dict()))
    return best


def run(cell: Cell) -> list[dict[str, Any]]:
    """Train, predict the test slabs, and return sums by variant and patient, with what was chosen."""
    torch.set_num_threads(1)
    part, net, found = part_of(cell.fold, cell.steps, cell.every), UNet(), []
    people, own = np.unique(part.test.patients, return_inverse=True)
    voxels, inside = np.bincount(own) * 64 * 64, np.bincount(own, part.test.y.sum((1, 2)).numpy()).astype(int)
    pi, rho = (float(each[1]) for each in (part.prevalence.population, part.prevalence.sampling))
    about = pd.DataFrame({"patient": np.arange(len(people)), "voxels": voxels, "inside": inside, "pi": pi, "rho": rho})
    for variant, chosen in choose(cell, part).items():
        net.load_state_dict(chosen.weights)
        sums = sums_by_patient(log_odds(net, part.test.x) + chosen.intercept, part.test).astype(np.float32)
        what = {"variant": variant, "rate": chosen.rate, "step": chosen.step, "intercept": chosen.intercept}
        found.append(about.assign(**what).join(pd.DataFrame(sums, columns=SUMS)))
    return pd.concat(found).to_dict("records")


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


Figures = dict[str, np.ndarray]
Key = tuple[str, str, str]  # method, start, variant
DICE, COST = (tuple(f"{name} {cost}" for cost in COSTS) for name in ("Dice", "cost"))


def figures(data: Any, sums: np.ndarray, weights: np.ndarray) -> Figures:
    """Return every figure of all patients and of each resample (rows of `weights`); of voxels together, Dice by patient."""
    voxels, inside, pi = (np.asarray(data[name]) for name in ("voxels", "inside", "pi"))
    total, expected = weights @ sums, weights @ (voxels * pi)
    guess = weights @ (inside * np.log(pi) + (voxels - inside) * np.log1p(-pi))
    hits, marked, drawn = sums[:, 12:15], sums[:, 15:18], weights * (inside > 0)
    dice = drawn @ (2 * hits / np.maximum(marked + inside[:, None], 1)) / drawn.sum(1, keepdims=True)
    found = {"log-likelihood": 1000 * total[:, 0] / (weights @ voxels), "skill": 1 - total[:, 0] / guess}
    found |= {"mean": total[:, 1] / expected, "calibration": np.abs(total[:, 2:12]).sum(1) / expected}
    missed = (weights @ inside)[:, None] - total[:, 12:15]
    cost = (missed + (total[:, 15:18] - total[:, 12:15]) / np.array(COSTS)) / (weights @ inside)[:, None]
    return found | dict(zip(DICE, dice.T, strict=True)) | dict(zip(COST, cost.T, strict=True))


def parts(rows: pd.DataFrame) -> dict[Key, pd.DataFrame]:
    """Return the rows by method, start and variant, one per patient; cross-entropy moved and matched is that matched."""
    own = dict(iter(rows.groupby(["loss", "start", "variant"], sort=False)))
    found = {}
    for method, start, variant in product(METHODS, STARTS, VARIANTS):
        loss, name = (CROSS_ENTROPY, MOVED if variant == "as given" else variant) if method == MOVED else (method, variant)
        found[method, start, variant] = own[loss, start, name]
    return found


def all_figures(rows: pd.DataFrame) -> dict[Key, Figures]:
    """Return figures by method, start and variant; the first entry is of all patients, the others of resampled ones."""
    every = {key: part for key, part in parts(rows).items() if (key[0], key[2]) != (MOVED, "matched")}
    number = len(next(iter(every.values())))
    weights = weights_of(range(number), RESAMPLES)
    return {key: figures(part, part[SUMS].to_numpy(float), weights) for key, part in every.items()}


PROBABILITIES = ["start", "loss", "log-likelihood, nats/1000", "difference", "mean prediction ÷ π", "calibration error ÷ π"]
DECISIONS = ["start", "loss", *(f"Dice, {cost}:1" for cost in COSTS), f"difference, {COSTS[-1]}:1"]
DECISIONS += [f"cost, {cost}:1" for cost in COSTS]


def tables(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the tables of skills, probabilities and decisions, and the counts that the page names."""
    found, columns = all_figures(rows), [*product(VARIANTS, STARTS)]
    skills = [[found.get((method, start, variant), {}).get("skill") for variant, start in columns] for method in METHODS]
    lines = [[m, *("as above" if e is None else words(e, 2) for e in own)] for m, own in zip(METHODS, skills, strict=True)]
    pieces = {"skills": table(["skill", *(f"{variant}, start {start}" for variant, start in columns)], lines)}
    for variant in VARIANTS:
        own = [key for start in STARTS for key in found if key[1:] == (start, variant)]
        name = variant.replace(" ", "_")
        pieces[f"{name}_probabilities"] = table(PROBABILITIES, [_probabilities(found, key) for key in own])
        pieces[f"{name}_decisions"] = table(DECISIONS, [_decisions(found, key) for key in own])
    return pieces | _counts(rows)


def _counts(rows: pd.DataFrame) -> dict[str, Any]:
    every = parts(rows)
    people = next(iter(every.values()))
    chosen = pd.concat([part.drop_duplicates("fold") for part in every.values()])
    return {
        "people": len(people),
        "millions": f"{people['voxels'].sum() / 1e6:.1f}",
        "share": f"{100 * people['inside'].sum() / people['voxels'].sum():.2f}",
        "pi": f"{people['pi'].mean():.4f}",
        "rho": f"{people['rho'].mean():.3f}",
        "choices": len(chosen),
        "last": int((chosen["step"] == chosen["steps"]).sum()),
        "fast": int(np.isclose(chosen["rate"], RATES[-1]).sum()),
    }


def _probabilities(found: dict[Key, Figures], key: Key) -> list[str]:
    own, default = found[key], found[DEFAULT, key[1], key[2]]
    both = [words(own["log-likelihood"], 1), _difference(own, default, "log-likelihood", 1)]
    return [key[1], key[0], *both, words(own["mean"], 2), words(own["calibration"], 2)]


def _decisions(found: dict[Key, Figures], key: Key) -> list[str]:
    own, default = found[key], found[DEFAULT, key[1], key[2]]
    dice, cost = ([words(own[name], 2) for name in names] for names in (DICE, COST))
    return [key[1], key[0], *dice, _difference(own, default, DICE[-1], 3), *cost]


def _difference(own: Figures, default: Figures, name: str, digits: int) -> str:
    return "–" if own is default else words(own[name] - default[name], digits, "+")


PANELS = {
    "mean": "mean prediction ÷ π (1 is right)",
    "skill": "skill, cut at −1 (0: always π)",
    DICE[-1]: "Dice where a miss costs 9:1",
}


def draw(rows: pd.DataFrame) -> Any:
    """Draw mean predictions, skills and Dice coefficients of all losses, from both starts, as given and matched."""
    figure, panels = axes(1, 3, (11, 4.4), 120, sharey=True)
    found = all_figures(rows)
    for axis, (name, title) in zip(panels, PANELS.items(), strict=True):
        for (method, start, variant), each in found.items():
            place = METHODS.index(method) + 0.2 * (2 * VARIANTS.index(variant) + STARTS.index(start) - 1.5)
            axis.plot(limits(each[name]), [place, place], color=_style(start, variant)["color"], lw=1)
            axis.plot(each[name][0], place, **_style(start, variant))
        axis.set_title(title, fontsize=10)
        axis.set(yticks=range(len(METHODS)), yticklabels=METHODS)
        axis.grid(axis="x", color="0.9")
        axis.set_axisbelow(True)
    panels[0].invert_yaxis()
    panels[0].set(xscale="log", xticks=[1, 2, 5, 10], xticklabels=["1", "2", "5", "10"])
    panels[0].minorticks_off()
    panels[1].set_xlim(-1, 0.7)
    for axis, best in ((panels[0], 1), (panels[1], 0)):
        axis.axvline(best, color="0.5", lw=0.8)
    kinds = [*product(VARIANTS, STARTS)]
    handles = [panels[2].plot([], [], **_style(start, variant), ls="")[0] for variant, start in kinds]
    labels = [f"{variant}, start {start}" for variant, start in kinds]
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _style(start: str, variant: str) -> dict[str, Any]:
    colour = {"as given": "tab:orange", "matched": "tab:blue"}[variant]
    return {"color": colour, "marker": "o", "ms": 5, "mfc": "white" if start == "½" else colour}


COMPARISON = Comparison("segmentation", cells, run, tables, draw)
