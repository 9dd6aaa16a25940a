"""Compare what unlabelled rows of the population add to a few labelled ones, by our likelihood and by every rival.

Stage: data sets → a small npz per cell and draw in benchmarks/out/unlabelled → docs/benchmarks/unlabelled*.md, .csv, .png.

A *cell* is a data set, a model and a number of labelled rows of each class. A *draw* splits the rows (the patients) at random:
labelled, validation, unlabelled at the population's mix, test. Every method sees the same rows, starts from the same weights,
has the same minibatches, steps, rate and weight decays, and keeps the step that is best on the same validation rows.

    python benchmarks/unlabelled.py              # runs what is missing: about an hour on one core; stop and resume at will
    python benchmarks/unlabelled.py --quick      # three small sets, three draws: under two minutes
    python benchmarks/unlabelled.py --docs       # writes the pages from the stored results, trains nothing

The CT slices do not come with the package: `--slices PATH`, or their folder in RIGHTLOSS_DATA; skipped where absent.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.nn.functional as F
from data_sets import DataSet, load
from report import ROOT
from unlabelled_methods import (
    Draw,
    Fitted,
    Job,
    Kind,
    evidence_jobs_of,
    evidence_loss,
    fit,
    guess,
    jobs_of,
    paper_loss,
    row_likelihood,
    stream_loss,
    unknown_jobs_of,
)

from rightloss import LogitAdjustedLoss, Prevalence, information_gain_loss, logit_adjusted_loss
from rightloss.atomic_files import whole_file
from rightloss.lidc import binary_set
from rightloss.shift import estimate_prevalence

OUT = ROOT / "benchmarks/out/unlabelled"
SLICES = Path(os.environ.get("RIGHTLOSS_DATA", ROOT.parent / "shared" / "data")) / "lidc_slices.npz"
TABLES = ("Default", "Caravan", "LIDC", "credit", "bank", "TV churn", "sylva", "satimage", "shuttle", "adult", "credit cards")
IMAGES = ("LIDC contours", "CT slices")
SIZES = (50, 100, 200, 1000)  # labelled of each class; 100 only if 200 are not available
DRAWS = 10
TESTED, MOST_TESTED, MOST_UNLABELLED, FEWEST = 0.4, 8_000, 10_000, 30
MOST_VALID = {50: 50, 100: 50, 200: 100, 1000: 250}  # validation rows of each class
QUICK = {"sets": ("Default", "LIDC", "satimage"), "sizes": (50,), "draws": 3}


Part = Literal["known", "unknown", "evidence"]  # whether methods are told π; those of unlabelled_evidence.py
PARTS: tuple[Part, ...] = ("known", "unknown")
JOBS: dict[Part, Callable[[Draw, Kind], list[Job]]] = {
    "known": jobs_of,
    "unknown": unknown_jobs_of,
    "evidence": evidence_jobs_of,
}


class Cell(NamedTuple):
    """A data set, a model and a number of labelled rows of each class."""

    set: str
    model: Kind
    labelled: int

    def path(self, part: Part, draw: int, folder: Path = OUT) -> Path:
        return folder / part / f"{self.set.replace(' ', '_')}-{self.model}-{self.labelled}-{draw}.npz"


@cache
def data_of(name: str, slices: Path = SLICES) -> DataSet:
    """Return a table, or images `(n, channels, 32, 32)` with patients as groups."""
    if name == "LIDC contours":
        nodules = binary_set()
        inside = (nodules.volumes()[:, 16:48, 16:48, 16:48] >= 0.5).float()  # the majority's outline, 32 mm around the centre
        planes = torch.stack([inside[:, 16], inside[:, :, 16], inside[:, :, :, 16]], 1)
        return DataSet(planes.numpy(), nodules.labels.numpy(), nodules.patients)
    if name == "CT slices":
        nodules = binary_set(slices)
        pixels = nodules.images()[:, None, 3:67, 3:67].float()
        return DataSet(F.avg_pool2d(pixels, 2).numpy(), nodules.labels.numpy(), nodules.patients)
    return load(name)


def cells(sets: tuple[str, ...], sizes: tuple[int, ...], slices: Path = SLICES) -> Iterator[Cell]:
    """Yield the cells that the rows suffice for, small ones first."""
    for size in sizes:
        for name in sets:
            if name == "CT slices" and not slices.exists():
                print(f"{name}: skipped, no {slices.name}")
                continue
            positives = (1 - TESTED) * data_of(name, slices).y.sum()
            fits = {each: positives >= each + MOST_VALID[each] + FEWEST for each in SIZES}
            if fits[size] and not (size == 100 and fits[200]):
                models: tuple[Kind, ...] = ("ConvNet",) if name in IMAGES else ("linear", "MLP")
                yield from (Cell(name, model, size) for model in models)


def draw_of(data: DataSet, labelled: int, seed: int) -> Draw:
    """Return draw `seed`; test rows share no patient with the others, validation rows none with labelled ones."""
    random = np.random.default_rng(seed)
    groups = np.arange(len(data.y)) if data.groups is None else np.unique(data.groups, return_inverse=True)[1]
    order = random.permutation(groups.max() + 1)[groups]  # a random place for each patient
    cut = np.quantile(order, [TESTED, TESTED + (1 - TESTED) * 2 / 3])
    test, first, second = (
        np.flatnonzero(part) for part in (order < cut[0], (order >= cut[0]) & (order < cut[1]), order >= cut[1])
    )
    test, first, second = (random.permutation(part) for part in (test, first, second))
    chosen = [of_each(data.y, part, size) for part, size in ((first, labelled), (second, MOST_VALID[labelled]))]
    rest = random.permutation(np.setdiff1d(np.concatenate([first, second]), np.concatenate(chosen)))
    natural = float(data.y.mean())
    unlabelled = at_mix(data.y, rest, natural, MOST_UNLABELLED)
    x = standardised(data.x, unlabelled)
    y = torch.from_numpy(data.y)
    test = at_mix(data.y, test, natural, MOST_TESTED)
    labelled_rows, valid = chosen
    return Draw(x(labelled_rows), y[labelled_rows], x(valid), y[valid], x(unlabelled), x(test), y[test], natural)


def of_each(y: np.ndarray, rows: np.ndarray, size: int) -> np.ndarray:
    """Return the first `size` of the rows of each class, class 0 first."""
    return np.concatenate([rows[y[rows] == k][:size] for k in (0, 1)])


def at_mix(y: np.ndarray, rows: np.ndarray, share: float, most: int) -> np.ndarray:
    """Return as many of the rows as there are, at most `most`, in which class 1 has the share."""
    positive, negative = rows[y[rows] == 1], rows[y[rows] == 0]
    total = min(most, len(positive) / share, len(negative) / (1 - share))
    return np.concatenate([positive[: round(total * share)], negative[: round(total * (1 - share))]])


def standardised(x: np.ndarray, rows: np.ndarray) -> Callable[[np.ndarray], torch.Tensor]:
    """Return a function from rows to float32, standardised by the given ones, at most 5 from the mean, 0 where missing."""
    if x.ndim == 4:
        mean, scale = x[rows].mean(), x[rows].std()
    else:
        mean, scale = np.nanmean(x[rows], 0), np.nanstd(x[rows], 0)
        scale = np.where(scale > 0, scale, 1.0)

    def standardise(chosen: np.ndarray) -> torch.Tensor:
        found = np.nan_to_num((x[chosen] - mean) / scale, nan=0.0).clip(-5, 5)
        return torch.from_numpy(found.astype(np.float32))

    return standardise


def run(cell: Cell, part: Part, draw: int, slices: Path, folder: Path = OUT) -> None:
    """Train every job of a cell's draw and write its figures, whole or not at all."""
    rows = draw_of(data_of(cell.set, slices), cell.labelled, draw)
    jobs = JOBS[part](rows, cell.model)
    write(cell.path(part, draw, folder), rows, jobs, fit(cell.model, rows, jobs, seed=draw))


def write(path: Path, rows: Draw, jobs: list[Job], found: Fitted) -> None:
    """Write the figures of all jobs, and of each guess with the prevalence estimated afterwards."""
    estimates = [_estimated(rows, found, place) for place, job in enumerate(jobs) if job.method == "guess"]
    arrays = {name: getattr(found, name).numpy().astype(np.float32) for name in Fitted._fields if not name.startswith("z_")}
    names = [[job.method, job.setting, f"{job.decay:g}"] for job in jobs]
    buffer = io.BytesIO()
    sizes = [len(rows.y), len(rows.y_valid), len(rows.unlabelled), len(rows.y_test), int(rows.y_test.sum())]
    np.savez_compressed(
        buffer, jobs=np.array(names), y_valid=rows.y_valid.numpy(), population=rows.population, sizes=np.array(sizes),
        estimates=np.array(estimates, dtype=np.float32), **arrays,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(buffer.getvalue())


def _estimated(rows: Draw, found: Fitted, place: int) -> list[float]:
    """Return the test log-likelihood of logit adjustment where π is not known, and π estimated afterwards.

    At half and at twice the odds of π; at π estimated on the unlabelled rows from predictions as they are, and calibrated on
    the validation rows; the two estimates.
    """
    z, z_unlabelled, z_valid = (
        each[:, place] - _log_odds(rows.population) for each in (found.z_test, found.z_unlabelled, found.z_valid)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few held-out rows, and of none
        plain = estimate_prevalence(_table(z_unlabelled), 0.5, calibration="assumed", region=None)
        held_out = (_table(z_valid), rows.y_valid)
        try:
            calibrated = estimate_prevalence(_table(z_unlabelled), 0.5, held_out=held_out, region=None)
        except ValueError:  # predictions that the held-out labels contradict: take what the message advises
            calibrated = estimate_prevalence(_table(z_unlabelled), 0.5, method="bbse", held_out=held_out, region=None)
    shares = [guess(rows.population, factor) for factor in (0.5, 2.0)]
    shares += [min(max(float(each.population[1]), 1e-4), 1 - 1e-4) for each in (plain, calibrated)]
    moved = torch.stack([z + _log_odds(share) for share in shares], 1)
    return [*row_likelihood(moved, rows.y_test).mean(0).tolist(), *shares[2:]]


def _log_odds(share: float) -> float:
    return math.log(share / (1 - share))


def _table(z: torch.Tensor) -> torch.Tensor:
    return torch.stack([F.logsigmoid(-z), F.logsigmoid(z)], 1).double()


def check_losses() -> None:
    """Assert that the losses for stacks of jobs are the library's, in value or gradient, to rounding."""
    generator = torch.Generator().manual_seed(0)
    z, z_unlabelled = (3 * torch.randn(rows, 3, generator=generator, dtype=torch.float64) for rows in (40, 70))
    y, weight, told = torch.arange(40) % 2, torch.tensor([0.0, 1.0, 7.0]).double(), torch.full((3,), 0.1).double()
    prevalence = Prevalence.binary(population=0.1, sampling=0.5)
    ours = stream_loss(z, y, z_unlabelled, told, weight)
    for job, found in enumerate(ours):
        tables = _two(z[:, job]), _two(z_unlabelled[:, job])
        own = logit_adjusted_loss(tables[0], y, prevalence, unlabelled=tables[1], unlabelled_weight=float(weight[job]))
        torch.testing.assert_close(found, own)
    mean = z_unlabelled.sigmoid().mean(0)
    _check_evidence(z[:, :1], y, z_unlabelled[:, :1], prevalence)
    for kappa in (0.0, 1.0):
        inputs = [each[:, :1].clone().requires_grad_() for each in (z, z_unlabelled)]
        q = torch.stack([1 - mean, mean])[:, :1]
        paper_loss(inputs[0], y, inputs[1], told[:1], torch.tensor([kappa]).double(), q).sum().backward()
        doubled = [_two(each[:, 0].detach()).requires_grad_() for each in inputs]
        certain = Prevalence.binary(population=0.1, sampling=0.5, evidence=kappa)
        information_gain_loss(doubled[0], y, certain, reference=certain.population, unlabelled=doubled[1]).backward()
        for one, other in zip(inputs, doubled, strict=True):
            torch.testing.assert_close(one.grad[:, 0], other.grad[:, 1])  # type: ignore[index]


def _check_evidence(z: torch.Tensor, y: torch.Tensor, z_unlabelled: torch.Tensor, prevalence: Prevalence) -> None:
    """Assert that the gradient of the evidence is the library's, which begins with the minibatch's own mean."""
    inputs, doubled = [z.clone(), z_unlabelled.clone()], [_two(each[:, 0]) for each in (z, z_unlabelled)]
    for each in (*inputs, *doubled):
        each.requires_grad_()
    mean = z_unlabelled.sigmoid().mean(0)
    told, people = torch.full((1,), 0.1).double(), torch.full((1,), 3.0).double()
    evidence_loss(inputs[0], y, inputs[1], told, people, torch.stack([1 - mean, mean])).sum().backward()
    LogitAdjustedLoss(prevalence, unlabelled_evidence=3.0)(doubled[0], y, unlabelled=doubled[1]).backward()
    for one, other in zip(inputs, doubled, strict=True):
        torch.testing.assert_close(one.grad[:, 0], other.grad[:, 1])  # type: ignore[index]


def _two(z: torch.Tensor) -> torch.Tensor:
    return torch.stack([torch.zeros_like(z), z], 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=[*TABLES, *IMAGES], help="data sets; all by default")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="labelled rows of each class")
    parser.add_argument("--models", nargs="+", default=["linear", "MLP", "ConvNet"])
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="methods that are told π, and that are not")
    parser.add_argument("--slices", type=Path, default=SLICES, help="lidc_slices.npz")
    parser.add_argument("--quick", action="store_true", help="three small sets, three draws, nothing kept")
    parser.add_argument("--docs", action="store_true", help="write the page into docs/benchmarks from the stored results")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.docs:
        from unlabelled_page import write_page, write_unknown

        if "known" in chosen.parts:
            write_page(OUT, ROOT / "docs/benchmarks", large=min(chosen.sizes) > 200)
        if "unknown" in chosen.parts:
            write_unknown(OUT, ROOT / "docs/benchmarks")
        return
    sets, sizes, draws, folder = tuple(chosen.sets), tuple(chosen.sizes), chosen.draws, OUT
    if chosen.quick:
        sets, sizes, draws, folder = *QUICK.values(), OUT.with_name("unlabelled_quick")  # type: ignore[assignment]
    check_losses()
    for cell in cells(sets, sizes, chosen.slices):
        if cell.model not in chosen.models:
            continue
        start = time.perf_counter()
        missing = [(part, draw) for part in chosen.parts for draw in range(draws) if not cell.path(part, draw, folder).exists()]
        for part, draw in missing:
            run(cell, part, draw, chosen.slices, folder)
        if missing:
            print(f"{cell.set}, {cell.model}, {cell.labelled}: {time.perf_counter() - start:.0f} s", flush=True)
    from unlabelled_page import summary

    print(summary(folder))


if __name__ == "__main__":
    main()
