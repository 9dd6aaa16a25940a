"""Measure the AUC of plain cross-entropy on LIDC-IDRI, ten folds by patient, with intervals.

    python benchmarks/lidc_auc.py contours   # ConvNet on the readers' contours, which come with the package
    python benchmarks/lidc_auc.py features   # an MLP on the annotations' columns
    python benchmarks/lidc_auc.py slices     # ConvNet on CT slices, low-level features of VGG16 against random weights
    python benchmarks/lidc_auc.py metadata   # contours, metadata and both, on the balanced set

Each net trains on eight folds; the ninth is used for early stopping, and the tenth is predicted. All use the same optimiser
and the same stopping rule. Image nets train for at most 15 epochs, nets without images for 40. In training three random views
per nodule are cut, for prediction nine fixed ones, and features are averaged over views: fewer views and a different pooling
than in the paper, to save time. With `--seeds 3` nets of three seeds are trained and their probabilities averaged; the table
also shows the AUC of a single net.

If voxels are shares of readers (quarters or thirds), they reveal how many readers there were, and readers mark what looks
suspicious. So contour volumes are also tried as the majority's outline, which does not reveal it, and the table has logistic
regressions on the volume and the number of readers as baselines. Writes lidc_auc_TASK.md: a row per method and baseline.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from report import ROOT, table
from rich.progress import track
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from rightloss import Prevalence, start_at_prevalence
from rightloss.lidc import NoduleSet, balanced_set, binary_set, folds, train_valid_test
from rightloss.lidc.nets import MetadataBlock, convnet, metadata_net
from rightloss.lidc.views import FixedViews, RandomViews
from rightloss.metrics import evaluate

SLICES = Path(os.environ.get("RIGHTLOSS_DATA", ROOT.parent / "shared" / "data")) / "lidc_slices.npz"
FOLDS = 10
RESAMPLES = 2000
AVERAGE = 0.99  # decay of the running average of the weights, which is kept and used to predict


@dataclass(frozen=True)
class Method:
    """A net and how it is trained.

    Attributes:
        net: function that makes the net, given the number of feature columns.
        image, metadata: which of the two inputs it takes; with both, in that order.
        majority: whether voxels are 1 where at least half of the readers' contours include them, else 0.
        views, spacing: number of views per patch, and millimetres between pixels.
        epochs: maximum; the step size decays to 0 over them as a half cosine.
    """

    net: Callable[[int], nn.Module]
    image: bool = True
    metadata: bool = False
    majority: bool = False
    views: int = 3
    spacing: float = 1.0
    epochs: int = 15
    batch_size: int = 32
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4


class Task(NamedTuple):
    """What one command compares, and the column for the baselines, which need no net."""

    title: str
    data: Callable[[], NoduleSet]
    methods: dict[str, Method]
    yardstick: str


def mlp(num_features: int) -> nn.Module:
    layers = (nn.Linear(num_features, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
    return nn.Sequential(*layers)


def image_net(num_features: int, small: bool, pretrained: bool = True) -> nn.Module:
    return convnet(small=small, pretrained=pretrained, pool="mean")


def both_net(num_features: int, small: bool) -> nn.Module:
    return metadata_net(num_features, small=small, pool="mean")


def tasks(small: bool) -> dict[str, Task]:
    image = partial(image_net, small=small)
    size = "small" if small else "full"
    return {
        "contours": Task(
            "Contour volumes, binary set",
            binary_set,
            {
                f"ConvNet, {size}, shares of readers": Method(image),
                f"ConvNet, {size}, majority's outline": Method(image, majority=True),
            },
            "log_volume_mm3",
        ),
        "features": Task(
            "Annotation features, binary set",
            binary_set,
            {"MLP, 32 hidden units": Method(mlp, image=False, metadata=True, epochs=40)},
            "log_volume_mm3",
        ),
        "slices": Task(
            "CT slices, majority rating other than 3",
            partial(binary_set, SLICES),
            {
                f"ConvNet, {size}, low-level features of VGG16": Method(image),
                f"ConvNet, {size}, from random weights": Method(partial(image, pretrained=False)),
            },
            "log_equivalent_diameter_mm",
        ),
        "metadata": Task(
            "Contour volumes and metadata, balanced set",
            balanced_set,
            {
                f"ConvNet, {size}, and metadata": Method(partial(both_net, small=small), metadata=True),
                f"ConvNet, {size}, image alone": Method(image),
                "metadata block alone": Method(MetadataBlock, image=False, metadata=True, epochs=40),
            },
            "log_diameter_mm",
        ),
    }


class Inputs(NamedTuple):
    """Patches in [0, 1] and their spacing, standardised features and labels of some rows."""

    patches: Tensor
    spacing_mm: Tensor
    features: Tensor
    labels: Tensor

    def rows(self, index: Tensor) -> Inputs:
        return Inputs(*(part[index] if len(part) else part for part in self))


class Fold(NamedTuple):
    """The result of one fold: rows and log-probabilities of the test part, the epoch kept, seconds per epoch."""

    rows: Tensor
    log_probs: Tensor
    best_epoch: int
    seconds: float


def run_fold(name: str, method_name: str, small: bool, fold: int, seed: int) -> Fold:
    """Train on eight folds, stop by the ninth, predict the tenth; a pure function of its arguments."""
    task = tasks(small)[name]
    method, data = task.methods[method_name], _data(name, small)
    parts = train_valid_test(data.labels, data.patients, fold, FOLDS)
    everything = Inputs(
        _images(name, small, method.majority) if method.image else torch.zeros(0),
        data.spacing_mm,
        data.standardised(parts.train),
        data.labels,
    )
    train, valid, test = (everything.rows(rows) for rows in parts)
    torch.manual_seed(1000 * seed + fold)
    net = method.net(len(data.feature_names))
    if head := getattr(net, "head", None):
        start_at_prevalence(head, Prevalence(torch.bincount(train.labels, minlength=2) / len(train.labels)))
    best, best_epoch, seconds = _fit(net, method, train, valid)
    net.load_state_dict(best)
    return Fold(parts.test, _log_probs(net, method, test), best_epoch, seconds)


def _fit(net: nn.Module, method: Method, train: Inputs, valid: Inputs) -> tuple[dict[str, Tensor], int, float]:
    """Return the weights of the epoch with the best validation log-likelihood, that epoch, and seconds per epoch."""
    steps = method.epochs * math.ceil(len(train.labels) / method.batch_size)
    optimizer = torch.optim.AdamW(
        [weight for weight in net.parameters() if weight.requires_grad], method.learning_rate, weight_decay=method.weight_decay
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 + 0.5 * math.cos(math.pi * step / steps))
    averaged = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(AVERAGE))
    cutter = RandomViews(method.views, spacing=method.spacing)
    best, best_loss, best_epoch, times = {}, math.inf, 0, []
    for epoch in range(1, method.epochs + 1):
        start = time.perf_counter()
        net.train()
        for rows in torch.randperm(len(train.labels)).split(method.batch_size):
            batch = train.rows(rows)
            optimizer.zero_grad()
            F.cross_entropy(_outputs(net, method, cutter, batch), batch.labels).backward()
            optimizer.step()
            averaged.update_parameters(net)
            schedule.step()
        times.append(time.perf_counter() - start)
        loss = F.nll_loss(_log_probs(averaged.module, method, valid), valid.labels).item()
        if loss < best_loss:
            best, best_loss, best_epoch = copy.deepcopy(averaged.module.state_dict()), loss, epoch
    return best, best_epoch, statistics.median(times)


def _outputs(net: nn.Module, method: Method, cutter: RandomViews | FixedViews, batch: Inputs) -> Tensor:
    inputs = [cutter(batch.patches, spacing_mm=batch.spacing_mm)] if method.image else []
    return net(*inputs, *([batch.features] if method.metadata else []))


@torch.no_grad()
def _log_probs(net: nn.Module, method: Method, part: Inputs) -> Tensor:
    net.eval()
    cutter = FixedViews(9, spacing=method.spacing)
    blocks = [part.rows(rows) for rows in torch.arange(len(part.labels)).split(64)]
    return torch.cat([_outputs(net, method, cutter, block).log_softmax(1) for block in blocks])


@cache
def _data(name: str, small: bool) -> NoduleSet:
    return tasks(small)[name].data()


@cache
def _images(name: str, small: bool, majority: bool = False) -> Tensor:
    images = _data(name, small).images()
    return (images >= 0.5).half() if majority else images


def _one_thread() -> None:
    torch.set_num_threads(1)


def out_of_fold(name: str, method: str, small: bool, seeds: int, parts: Sequence[int], workers: int) -> list[list[Fold]]:
    """Return the result of each fold, seed by seed."""
    if _data(name, small).source.scale is None:
        _images(name, small)  # fill the cache for the workers
    runs = [(fold, seed) for seed in range(seeds) for fold in parts]
    with ProcessPoolExecutor(workers, get_context("spawn"), _one_thread) as pool:
        futures = [pool.submit(run_fold, name, method, small, *run) for run in runs]
        found = [future.result() for future in track(futures, f"{name}: {method}", transient=True)]
    return [found[start : start + len(parts)] for start in range(0, len(found), len(parts))]


def difference(labels: Tensor, patients: np.ndarray, one: Tensor, other: Tensor) -> tuple[float, float, float]:
    """Return the AUC of `one` minus that of `other`, with a 95 % interval from resampled patients."""
    truth, scores = labels.numpy(), [log_probs[:, 1].numpy() for log_probs in (one, other)]
    people, own = np.unique(patients, return_inverse=True)
    rows_of = [np.flatnonzero(own == person) for person in range(len(people))]
    generator, found = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        rows = np.concatenate([rows_of[person] for person in generator.integers(len(people), size=len(people))])
        found.append(roc_auc_score(truth[rows], scores[0][rows]) - roc_auc_score(truth[rows], scores[1][rows]))
    value = roc_auc_score(truth, scores[0]) - roc_auc_score(truth, scores[1])
    return value, *np.quantile(found, [0.025, 0.975]).tolist()


def report(name: str, small: bool, seeds: int, parts: Sequence[int], workers: int) -> str:
    """Return a table with a row per method and baseline, and the differences between the first and the others."""
    task, data = tasks(small)[name], _data(name, small)
    rows, predictions = [], {}
    for method in task.methods:
        by_seed = out_of_fold(name, method, small, seeds, parts, workers)
        where = torch.cat([part.rows for part in by_seed[0]])
        labels, patients = data.labels[where], _patients(data)[where.numpy()]
        every = torch.stack([torch.cat([part.log_probs for part in parts]) for parts in by_seed])
        predictions[method] = every.logsumexp(0) - math.log(seeds)
        rows.append([method, *_figures(predictions[method], every, labels, patients), *_course(by_seed, task.methods[method])])
    for title, log_probs in _yardsticks(data, task.yardstick).items():
        predictions[title] = log_probs[where]
        rows.append([title, _auc(predictions[title], labels, patients), *["–"] * 4])
    header = [
        "method",
        f"AUC, mean of {seeds} nets [95 %]",
        "AUC, one net",
        "log-likelihood, mean of nets [95 %]",
        "epochs kept",
        "s/epoch, one core",
    ]
    text = f"{task.title}: {data!r}, {len(parts)} of {FOLDS} folds.\n\n" + table(header, rows)
    first, *others = predictions
    for other in others:
        value, low, high = difference(labels, patients, predictions[first], predictions[other])
        text += f"\nAUC, {first} less {other}: {value:+.3f} [{low:+.3f}, {high:+.3f}].\n"
    return text


def _figures(log_probs: Tensor, every: Tensor, labels: Tensor, patients: np.ndarray) -> list[str]:
    likelihood = evaluate(log_probs, labels, labels.double().mean().item(), groups=patients).expected_log_likelihood
    single = statistics.fmean(float(roc_auc_score(labels, one[:, 1])) for one in every)
    return [
        _auc(log_probs, labels, patients),
        f"{single:.3f}",
        f"{likelihood.value:.3f} [{likelihood.low:.3f}, {likelihood.high:.3f}]",
    ]


def _course(by_seed: list[list[Fold]], method: Method) -> list[str]:
    found = [part for parts in by_seed for part in parts]
    kept = statistics.median(part.best_epoch for part in found)
    return [f"{kept:.0f} of {method.epochs}", f"{statistics.median(part.seconds for part in found):.2g}"]


def _auc(log_probs: Tensor, labels: Tensor, patients: np.ndarray) -> str:
    found = evaluate(log_probs, labels, 0.5, groups=patients).auc
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _yardsticks(data: NoduleSet, column: str) -> dict[str, Tensor]:
    """Fit logistic regressions and return their out-of-fold predictions: on one column, and with the number of readers."""
    size = data.features[:, data.feature_names.index(column)].double()
    assert data.ratings is not None
    readers = F.one_hot(data.ratings.sum(1).clamp(max=5)).double()
    inputs = {f"{column} alone": size[:, None], f"{column} and number of readers": torch.cat([size[:, None], readers], 1)}
    found = {title: torch.zeros(len(data), 2, dtype=torch.float64) for title in inputs}
    for train, test in folds(data.labels, data.patients, FOLDS):
        for title, x in inputs.items():
            model = LogisticRegression().fit(x[train], data.labels[train])
            found[title][test] = torch.from_numpy(model.predict_log_proba(x[test]))
    return found


def _patients(data: NoduleSet) -> np.ndarray:
    assert data.patients is not None
    return data.patients


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", choices=list(tasks(True)), help="which comparison; all of them by default")
    parser.add_argument("--full", action="store_true", help="use the paper's nets instead of the small ones")
    parser.add_argument("--seeds", type=int, default=1, help="number of nets to average")
    parser.add_argument("--folds", type=int, default=FOLDS, help="run only the first FOLDS of the ten")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="number of processes, with one thread each")
    parser.add_argument("--docs", action="store_true", help="write into docs/benchmarks, which is kept in the repository")
    chosen = parser.parse_args()
    folder = ROOT / ("docs/benchmarks" if chosen.docs else "benchmarks/out")
    folder.mkdir(parents=True, exist_ok=True)
    for name in [chosen.task] if chosen.task else list(tasks(True)):
        text = report(name, not chosen.full, chosen.seeds, range(chosen.folds), chosen.workers)
        print(text)
        (folder / f"lidc_auc_{name}{'_full' * chosen.full}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
