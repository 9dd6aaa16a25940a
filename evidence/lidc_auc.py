"""Measure the AUC of plain cross-entropy on LIDC-IDRI, ten folds by patient, with intervals.

*contours*: ConvNet on the readers' contours, which come with the package. *features*: an MLP on the annotations' columns.
*slices*: ConvNet on CT slices (lidc_slices.npz in the folder RIGHTLOSS_DATA), low-level features of VGG16 against random
weights. *metadata*: contours, metadata and both, on the balanced set.

Each net trains on eight folds; the ninth is used for early stopping, and the tenth is predicted. All use the same optimiser
and the same stopping rule. Image nets train for at most 15 epochs, nets without images for 40. In training three random views
per nodule are cut, for prediction nine fixed ones, and features are averaged over views: fewer views and a different pooling
than in the paper, to save time.

If voxels are shares of readers (quarters or thirds), they reveal how many readers there were, and readers mark what looks
suspicious. So contour volumes are also tried as the majority's outline, which does not reveal it, and the table has logistic
regressions on the volume and the number of readers as baselines.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from rightloss import Prevalence, start_at_prevalence
from rightloss.lidc import NoduleSet, balanced_set, binary_set, folds, train_valid_test
from rightloss.lidc.nets import MetadataBlock, convnet, metadata_net
from rightloss.lidc.views import FixedViews, RandomViews
from rightloss.metrics import evaluate

from .data_sets import SLICES
from .engine import Comparison
from .pages import table

FOLDS, RESAMPLES, BATCH, RATE, DECAY = 10, 2000, 32, 1e-3, 1e-4
AVERAGE = 0.99  # decay of the running average of the weights, which is kept and used to predict


@dataclass(frozen=True)
class Method:
    """A net, given the number of feature columns, and which inputs it takes: patches, columns, or both in that order.

    With `majority`, voxels are 1 where at least half of the readers' contours include them, else 0. The step size decays to 0
    over `epochs`, the maximum, as a half cosine.
    """

    net: Callable[[int], nn.Module]
    image: bool = True
    metadata: bool = False
    majority: bool = False
    epochs: int = 15


class Task(NamedTuple):
    """What one page compares, and the column for the baselines, which need no net."""

    title: str
    data: Callable[[], NoduleSet]
    methods: dict[str, Method]
    yardstick: str


def mlp(columns: int) -> nn.Module:
    return nn.Sequential(nn.Linear(columns, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))


def image_net(columns: int, pretrained: bool = True) -> nn.Module:
    return convnet(small=True, pretrained=pretrained, pool="mean")


BOTH = partial(metadata_net, small=True, pool="mean")
ALONE = {"image": False, "metadata": True, "epochs": 40}
TASKS = {
    "contours": Task(
        "Contour volumes, binary set",
        binary_set,
        {
            "ConvNet, small, shares of readers": Method(image_net),
            "ConvNet, small, majority's outline": Method(image_net, majority=True),
        },
        "log_volume_mm3",
    ),
    "features": Task(
        "Annotation features, binary set",
        binary_set,
        {"MLP, 32 hidden units": Method(mlp, **ALONE)},  # type: ignore[arg-type]
        "log_volume_mm3",
    ),
    "slices": Task(
        "CT slices, majority rating other than 3",
        partial(binary_set, SLICES),
        {
            "ConvNet, small, low-level features of VGG16": Method(image_net),
            "ConvNet, small, from random weights": Method(partial(image_net, pretrained=False)),
        },
        "log_equivalent_diameter_mm",
    ),
    "metadata": Task(
        "Contour volumes and metadata, balanced set",
        balanced_set,
        {
            "ConvNet, small, and metadata": Method(BOTH, metadata=True),
            "ConvNet, small, image alone": Method(image_net),
            "metadata block alone": Method(MetadataBlock, **ALONE),  # type: ignore[arg-type]
        },
        "log_diameter_mm",
    ),
}


class Cell(NamedTuple):
    task: str
    method: str
    fold: int


def yardsticks(task: Task) -> tuple[str, str]:
    return f"{task.yardstick} alone", f"{task.yardstick} and number of readers"


def cells(name: str, quick: bool) -> Iterator[Cell]:
    methods = [*TASKS[name].methods, *yardsticks(TASKS[name])]
    yield from (Cell(name, *each) for each in product(methods, range(2 if quick else FOLDS)))


class Inputs(NamedTuple):
    """Patches in [0, 1] and their spacing, standardised features and labels of some rows."""

    patches: Tensor
    spacing_mm: Tensor
    features: Tensor
    labels: Tensor

    def rows(self, index: Tensor) -> Inputs:
        return Inputs(*(part[index] if len(part) else part for part in self))


@cache
def data_of(name: str) -> NoduleSet:
    return TASKS[name].data()


@cache
def images(name: str, majority: bool) -> Tensor:
    found = data_of(name).images()
    return (found >= 0.5).half() if majority else found


def run(cell: Cell) -> list[dict[str, Any]]:
    """Return the log-probabilities of the fold's rows, with the epoch kept and the seconds of an epoch."""
    torch.set_num_threads(1)
    task, data = TASKS[cell.task], data_of(cell.task)
    assert data.patients is not None
    if cell.method in task.methods:
        rows, log_probs, about = trained(task.methods[cell.method], cell, data)
    else:
        (rows, log_probs), about = yardstick(task, cell, data), {"epoch": math.nan, "seconds": math.nan}
    found = pd.DataFrame(log_probs.double().numpy(), columns=["benign", "malignant"])
    who = np.unique(data.patients, return_inverse=True)[1][rows]
    return found.assign(label=data.labels[rows].numpy(), patient=who, **about).to_dict("records")  # type: ignore[return-value]


def trained(method: Method, cell: Cell, data: NoduleSet) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Train on eight folds, stop by the ninth, predict the tenth."""
    parts = train_valid_test(data.labels, data.patients, cell.fold, FOLDS)
    patches = images(cell.task, method.majority) if method.image else torch.zeros(0)
    everything = Inputs(patches, data.spacing_mm, data.standardised(parts.train), data.labels)
    train, valid, test = (everything.rows(rows) for rows in parts)
    torch.manual_seed(cell.fold)
    net = method.net(len(data.feature_names))
    if head := getattr(net, "head", None):
        start_at_prevalence(head, Prevalence(torch.bincount(train.labels, minlength=2) / len(train.labels)))
    best, epoch, seconds = fit(net, method, train, valid)
    net.load_state_dict(best)
    return parts.test, predicted(net, method, test), {"epoch": epoch, "seconds": seconds}


def fit(net: nn.Module, method: Method, train: Inputs, valid: Inputs) -> tuple[dict[str, Tensor], int, float]:
    """Return the weights of the epoch with the best validation log-likelihood, that epoch, and seconds per epoch."""
    steps = method.epochs * math.ceil(len(train.labels) / BATCH)
    optimizer = torch.optim.AdamW([each for each in net.parameters() if each.requires_grad], RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 + 0.5 * math.cos(math.pi * step / steps))
    averaged, cutter = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(AVERAGE)), RandomViews(3)
    best, best_loss, best_epoch, times = {}, math.inf, 0, []
    for epoch in range(1, method.epochs + 1):
        start = time.perf_counter()
        net.train()
        for rows in torch.randperm(len(train.labels)).split(BATCH):
            batch = train.rows(rows)
            optimizer.zero_grad()
            F.cross_entropy(outputs(net, method, cutter, batch), batch.labels).backward()
            optimizer.step()
            averaged.update_parameters(net)
            schedule.step()
        times.append(time.perf_counter() - start)
        loss = F.nll_loss(predicted(averaged.module, method, valid), valid.labels).item()
        if loss < best_loss:
            best, best_loss, best_epoch = copy.deepcopy(averaged.module.state_dict()), loss, epoch
    return best, best_epoch, statistics.median(times)


def outputs(net: nn.Module, method: Method, cutter: RandomViews | FixedViews, batch: Inputs) -> Tensor:
    inputs = [cutter(batch.patches, spacing_mm=batch.spacing_mm)] if method.image else []
    return net(*inputs, *([batch.features] if method.metadata else []))


@torch.no_grad()
def predicted(net: nn.Module, method: Method, part: Inputs) -> Tensor:
    net.eval()
    blocks = [part.rows(rows) for rows in torch.arange(len(part.labels)).split(64)]
    return torch.cat([outputs(net, method, FixedViews(9), block).log_softmax(1) for block in blocks])


def yardstick(task: Task, cell: Cell, data: NoduleSet) -> tuple[Tensor, Tensor]:
    """Fit a logistic regression to the other nine folds: on one column, or with the number of readers."""
    x = data.features[:, data.feature_names.index(task.yardstick)].double()[:, None]
    if cell.method == yardsticks(task)[1]:
        assert data.ratings is not None
        x = torch.cat([x, F.one_hot(data.ratings.sum(1).clamp(max=5)).double()], 1)
    train, test = list(folds(data.labels, data.patients, FOLDS))[cell.fold]
    model = LogisticRegression().fit(x[train], data.labels[train])
    return test, torch.from_numpy(model.predict_log_proba(x[test]))


def difference(one: pd.DataFrame, other: pd.DataFrame) -> str:
    """Return the AUC of `one` minus that of `other`, with a 95 % interval from resampled patients."""
    truth, scores = one["label"].to_numpy(), [each["malignant"].to_numpy() for each in (one, other)]
    rows_of = [np.flatnonzero(one["patient"] == person) for person in np.unique(one["patient"])]
    generator, found = np.random.default_rng(0), []
    for draw in range(RESAMPLES + 1):
        drawn = generator.integers(len(rows_of), size=len(rows_of)) if draw else np.arange(len(rows_of))
        rows = np.concatenate([rows_of[person] for person in drawn])
        found.append(roc_auc_score(truth[rows], scores[0][rows]) - roc_auc_score(truth[rows], scores[1][rows]))
    low, high = np.quantile(found[1:], [0.025, 0.975])
    return f"{found[0]:+.3f} [{low:+.3f}, {high:+.3f}]"


def tables(rows: pd.DataFrame) -> dict[str, str]:
    """Return a table with a row per method and baseline, and the differences between the first and the others."""
    lines, by_method = [], {str(name): part for name, part in rows.groupby("method", sort=False)}
    task = TASKS[rows["task"].iloc[0]]
    for name, part in by_method.items():
        log_probs, labels, groups = (
            part[["benign", "malignant"]].to_numpy(),
            part["label"].to_numpy(),
            part["patient"].to_numpy(),
        )
        auc, cells = evaluate(log_probs, labels, 0.5, groups=groups).auc, ["–"] * 3
        if name in task.methods:
            likelihood = evaluate(log_probs, labels, labels.mean(), groups=groups).expected_log_likelihood
            kept, seconds = part.drop_duplicates("fold")[["epoch", "seconds"]].median()
            cells = [f"{likelihood.value:.3f} [{likelihood.low:.3f}, {likelihood.high:.3f}]"]
            cells += [f"{kept:.0f} of {task.methods[name].epochs}", f"{seconds:.2g}"]
        lines.append([name, f"{auc.value:.3f} [{auc.low:.3f}, {auc.high:.3f}]", *cells])
    first, *others = by_method
    less = [f"AUC, {first} less {other}: {difference(by_method[first], by_method[other])}." for other in others]
    header = ["method", "AUC [95 %]", "log-likelihood [95 %]", "epochs kept", "s/epoch, one core"]
    part = by_method[first]
    counts = f"{len(part)} nodules, {part['patient'].nunique()} patients, {part['fold'].nunique()} of {FOLDS} folds"
    return {"title": f"{task.title}: {counts}", "table": table(header, lines), "differences": "\n\n".join(less)}


COMPARISONS = tuple(Comparison(f"lidc_auc_{name}", partial(cells, name), run, tables) for name in TASKS)
